// Draws the widgets of a page without a kernel: each by its own front end, from a state that never changes.
const { modules, how } = JSON.parse(document.getElementById("edp-shared").textContent);
globalThis.edpLabPlotly = { promise: Promise.resolve({ plotly: globalThis.Plotly, ...how }) };
const load = code => import(URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
const loaded = Object.fromEntries(Object.entries(modules).map(([name, code]) => [name, load(code)]));
const draw = async (widget, place) => {
    const el = place.appendChild(document.createElement("div"));
    el.classList.add(...(widget.classes ?? []));
    for (const [name, value] of Object.entries(widget.style ?? {})) el.style.setProperty(name, value);
    if ("html" in widget) el.innerHTML = widget.html;
    for (const child of widget.children ?? []) await draw(child, el);
    if (!("module" in widget)) return;
    const model = { get: name => widget.state[name], set() {}, on() {}, save_changes() {} };
    await (await loaded[widget.module]).default.render?.({ model, el });
};
for (const place of document.querySelectorAll(".edp-still")) await draw(JSON.parse(place.textContent), place);
