// plotly's widget, drawn by the code in the page's `theme.bundle`.
const untold = ["_js2py_traceDeltas", "_js2py_layoutDelta", "_js2py_widget_layoutDelta"];
const reticent = model => new Proxy(model, { get(target, name) {
    if (name == "set") return (key, value) => { if (!untold.includes(key)) target.set(key, value); };
    const found = target[name];
    return typeof found == "function" ? found.bind(target) : found;
} });
// A figure that was told its width while it was first drawn believes that it has it, and stays 700 pixels wide.
const refit = el => {
    const drawn = el.querySelector(".main-svg")?.clientWidth, place = el.clientWidth;
    if (!drawn || !place || Math.abs(drawn - place) < 2) return;
    el._fullLayout.width = drawn;
    window.dispatchEvent(new Event("resize"));
};
// To a screen reader a figure is one thing with a name: its title.
const named = render => async ({ model, el }) => {
    const end = await render({ model: reticent(model), el });
    const name = () => { el.ariaLabel = model.get("_layout")?.title?.text ?? "figure"; };
    el.setAttribute("role", "figure");
    name();
    el.on("plotly_afterplot", () => { name(); refit(el); });
    return end;
};
export default async () => {
    const { default: made } = await (globalThis.edpLabPlotly ??= Promise.withResolvers()).promise;
    const { initialize, render } = typeof made == "function" ? await made() : made;
    return {
        initialize: ({ model, ...rest }) => initialize?.({ model: reticent(model), ...rest }),
        render: named(render),
    };
}
