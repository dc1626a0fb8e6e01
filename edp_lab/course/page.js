// Panels of a page without a kernel. Each widget is drawn by its own front end; when a control moves, what the panel shows
// is looked up in its table (`Panel.table` in panel.py).
const { modules, how } = edpLab;
globalThis.edpLabReady = false;  // until all tables are unpacked
globalThis.edpLabPlotly = { promise: Promise.resolve({ plotly: Plotly, ...how }) };
const load = code => import(URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
const loaded = Object.fromEntries(Object.entries(modules).map(([name, code]) => [name, load(code)]));

// What a front end knows of its widget.
class Model {
    #state; #listeners = [];
    constructor(state) { this.#state = state; }
    get(name) { return this.#state[name]; }
    set(name, value) { this.#state[name] = value; }
    on(events, listener) { this.#listeners.push([events.split(" ").map(event => event.replace("change:", "")), listener]); }
    save_changes() { this.moved?.(); }
    show(values) {
        Object.assign(this.#state, values);
        for (const [names, listener] of this.#listeners) if (names.some(name => name in values)) listener();
    }
}

// Draws a widget and all that is in it; its models go into `panel.models`, its buttons into `panel.buttons`.
const draw = async (widget, place, panel) => {
    const el = place.appendChild(document.createElement("button" in widget ? "button" : "div"));
    el.classList.add(...(widget.classes ?? []));
    for (const [name, value] of Object.entries(widget.style ?? {})) el.style.setProperty(name, value);
    if (el.classList.contains("edp-run")) el.textContent = "Run works in the notebook. This page shows a run that has ended.";
    else if ("button" in widget) panel.buttons[el.textContent = widget.button] = el;
    else if ("html" in widget) el.innerHTML = widget.html;
    else for (const child of widget.children ?? []) await draw(child, el, panel);
    if (!("module" in widget)) return el;
    const model = panel.models[widget.id] = new Model(widget.state);
    await (await loaded[widget.module]).default.render?.({ model, el });
    return el;
};

// The states of a table; each part of its pool is made of earlier ones.
const unpack = async packed => {
    const bytes = Uint8Array.from(atob(packed), letter => letter.charCodeAt());
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const { pool, joint, alone } = await new Response(stream).json(), parts = [];
    const whole = value => {
        if (Array.isArray(value)) return value.map(whole);
        if (value === null || typeof value != "object") return value;
        if ("$" in value) return parts[value.$];
        return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, whole(part)]));
    };
    for (const part of pool) parts.push(whole(part));
    return { joint: whole(joint), alone: whole(alone) };
};

const move = (el, { table, models, buttons }) => {
    let unpacked;
    const states = () => unpacked ??= unpack(table.states);
    const controls = table.controls.map(control => ({ ...control, place: control.at, model: models[control.id] }));
    const [joint, alone] = [controls.filter(one => one.joint), controls.filter(one => !one.joint)];

    const state = async () => {
        const away = alone.filter(one => one.place != one.at);
        if (!away.length) return (await states()).joint[joint.reduce((k, one) => k * one.stops.length + one.place, 0)];
        return (await states()).alone[alone.indexOf(away[0])][away[0].place];
    };
    const start = those => { for (const one of those) one.model.show({ entered: one.stops[one.place = one.at] }); };
    let turn = 0;
    const show = async (moved, message = "") => {
        const mine = ++turn, shown = await state();
        if (mine != turn) return;  // moved again while the table was unpacked
        el.classList.toggle("edp-stale", Object.values(shown).some(values => values.error));
        for (const one of controls) one.model.show({ error: "" });
        for (const [id, values] of Object.entries(shown)) models[id].show(values);
        if (message) moved.model.show({ error: message });
    };
    for (const one of controls) one.model.moved = () => {
        const value = one.model.get("entered");
        el.classList.toggle("edp-stale", typeof value != "number");
        if (typeof value != "number") return one.model.show({ error: `${one.model.get("label")} must be a number.` });
        const away = one.stops.map(stop => Math.abs(stop - value)), messages = [];
        one.place = away.indexOf(Math.min(...away));
        if (one.stops[one.place] !== value) messages.push(`Shown is ${one.stops[one.place]}, the nearest on this page.`);
        const others = one.joint ? alone : controls.filter(other => other != one);
        if (others.some(other => other.place != other.at)) {
            start(others);
            const with_it = one.joint ? joint.map(other => other.model.get("label")).join(", ") : one.model.get("label");
            messages.push(`On this page ${with_it} move${one.joint ? "" : "s"} alone, so the others are back at their start.`);
        }
        return show(one, messages.length ? messages.join(" ") + " In the notebook all move freely." : "");
    };
    buttons.reset.onclick = () => {
        start(controls);
        return show();
    };
    if (buttons.more) buttons.more.onclick = () => {
        const { style } = el.querySelector(".edp-buttons").closest(".edp-controls").nextSibling;
        style.display = style.display ? "" : "none";
        buttons.more.textContent = style.display ? "more" : "less";
    };
    return states;
};

addEventListener("DOMContentLoaded", async () => {
    const dark = matchMedia("(prefers-color-scheme: dark)"), paint = () => { document.body.dataset.jpThemeLight = !dark.matches; };
    dark.addEventListener("change", paint);
    addEventListener("beforeprint", () => dispatchEvent(new Event("resize")));
    paint();
    const tables = [];
    for (const place of document.querySelectorAll(".edp-still")) {
        const panel = { models: {}, buttons: {}, ...JSON.parse(place.textContent) };
        const el = await draw(panel, place, panel);
        if (panel.table) tables.push(move(el, panel));
    }
    dispatchEvent(new Event("resize"));  // a figure that was drawn before its neighbour came has the wrong width
    for (const states of tables) await states();  // unpacked before anyone moves anything
    globalThis.edpLabReady = true;
});
