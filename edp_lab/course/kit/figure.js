// plotly.js, which a page has once (`theme.bundle`), turns the figure that is drawn into the one that is wanted.
export default { async render({ model, el }) {
    const { plotly, template, config } = await (globalThis.edpLabPlotly ??= Promise.withResolvers()).promise;
    const draw = () => {
        const { data, layout } = structuredClone(model.get("drawn"));  // plotly writes into what it is given
        el.ariaLabel = layout.title?.text ?? "figure";
        return plotly.react(el, data, { ...layout, template, uirevision: true }, config);  // a zoom stays
    };
    el.setAttribute("role", "figure");  // to a screen reader it is one thing with a name: its title
    model.on("change:drawn", draw);  // before the first drawing, which takes a while
    await draw();
    return () => plotly.purge(el);
} }
