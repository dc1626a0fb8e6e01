// plotly.js, which a page has once (`theme.bundle`), turns the figure that is drawn into the one that is wanted.
export default { render({ model, el }) {
    const bundle = (globalThis.edpLabPlotly ??= Promise.withResolvers()).promise;
    const draw = async () => {
        const { data, layout } = structuredClone(model.get("drawn"));  // plotly writes into what it is given
        el.ariaLabel = layout.title?.text ?? "figure";
        const { plotly, template, config } = await bundle;
        return plotly.react(el, data, { ...layout, template, uirevision: true }, config);  // a zoom stays
    };
    el.setAttribute("role", "figure");  // to a screen reader it is one thing with a name: its title
    model.on("change:drawn", draw);
    draw();
    return async () => (await bundle).plotly.purge(el);
} }
