// Panels on pages without a kernel. Each widget is drawn by its own front end. When a control moves, the panel's new state
// is looked up in its table (kit/table.py).
const { modules, how } = edpLab;
globalThis.edpLabReady = false;  // true once all tables are unpacked
globalThis.edpLabPlotly = { promise: Promise.resolve({ plotly: Plotly, ...how }) };
const load = code => import(URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
const loaded = Object.fromEntries(Object.entries(modules).map(([name, code]) => [name, load(code)]));

// Replaces the anywidget model that a front end uses.
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

// Draws a widget and its children; adds their models to `panel.models` and their buttons to `panel.buttons`.
const draw = async (widget, place, panel) => {
    const el = place.appendChild(document.createElement("button" in widget ? "button" : "div"));
    el.classList.add(...(widget.classes ?? []));
    for (const [name, value] of Object.entries(widget.style ?? {})) el.style.setProperty(name, value);
    if ("button" in widget) panel.buttons[el.textContent = widget.button] = el;
    else if ("html" in widget) el.innerHTML = widget.html;
    else if (el.classList.contains("edp-run")) {
        (await draw(widget.children[0], el, panel)).disabled = true;
        const file = location.pathname.split("/").at(-1).replace(/html$/, "ipynb");
        const shown = panel.table ? "The panel shows" : "The panel shows the settings and the result of";
        el.append(`Run works only in the notebook: enter “make lab” and open ${file}. ${shown} an earlier run.`);
    } else for (const child of widget.children ?? []) await draw(child, el, panel);
    if (!("module" in widget)) return el;
    const model = panel.models[widget.id] = new Model(widget.state);
    await (await loaded[widget.module]).default.render?.({ model, el });
    return el;
};

// Unpacks the states of a table; parts of the pool can refer to earlier parts.
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
    const label = one => one.model.get("label");
    const several = joint.length > 1, together = `${new Intl.ListFormat("en-GB").format(joint.map(label))} can be combined`;
    const near = (one, stop) => `${label(one)}: the nearest value on this page is ${stop}. `;
    const back = one => `The other controls were reset: on this page, ${one.joint && several ? together : `${label(one)} moves alone`}. `;
    if (alone.length || controls.some(one => one.model.get("kind") == "number")) {
        const note = el.querySelector(".edp-controls").appendChild(document.createElement("div"));
        note.className = "edp-note";  // all messages share one place, as high as the longest, to keep the layout fixed
        const longest = controls.map(one => near(one, one.stops.at(-1)) + (alone.length ? back(one) : ""));
        const each = several ? `${together}, and the other controls move one at a time` : "controls move one at a time";
        const steps = alone.length ? each : "sliders move in steps";
        const texts = [`On this page, ${steps}. In the notebook, all controls move freely.`, ...longest];
        for (const text of texts) note.appendChild(document.createElement("span")).textContent = text;
        note.append(...el.querySelectorAll(".edp-control > .edp-lab-error"));
    }
    const start = those => {
        for (const one of those) one.model.show({ entered: one.stops[one.place = one.at] }), delete one.value;
    };
    let turn = 0;
    const show = async (moved, message = "") => {
        const mine = ++turn, shown = await state();
        if (mine != turn) return;  // moved again while the table was unpacked
        el.classList.toggle("edp-stale", Object.values(shown).some(values => values.error));
        for (const one of controls) one.model.show(one == moved ? { error: "" } : { error: "", entered: one.stops[one.place] });
        for (const [id, values] of Object.entries(shown)) models[id].show(values);
        if (message) moved.model.show({ error: message });
    };
    for (const one of controls) one.model.moved = () => {
        const value = one.model.get("entered");
        if (value === one.value) return;  // on Enter, a text box reports its value twice
        one.value = value;
        el.classList.toggle("edp-stale", typeof value != "number");
        if (typeof value != "number") return one.model.show({ error: `${label(one)} must be a number.` });
        const away = one.stops.map(stop => Math.abs(stop - value)), messages = [];
        one.place = away.indexOf(Math.min(...away));
        if (one.stops[one.place] !== value) messages.push(near(one, one.stops[one.place]));
        const others = one.joint ? alone : controls.filter(other => other != one);
        if (others.some(other => other.place != other.at)) {
            start(others);
            messages.push(back(one));
        }
        return show(one, messages.join("").trim());
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
    const dark = matchMedia("(prefers-color-scheme: dark)"), paint = ({ type }) => {
        document.body.dataset.jpThemeLight = !dark.matches || type == "beforeprint";
        document.body.classList.toggle("edp-print", type == "beforeprint");  // apply the width of the paper immediately
        dispatchEvent(new Event("resize"));
    };
    dark.addEventListener("change", paint);
    addEventListener("beforeprint", paint);
    addEventListener("afterprint", paint);
    paint({});
    const tables = [];
    for (const place of document.querySelectorAll(".edp-still")) {
        const panel = { models: {}, buttons: {}, ...JSON.parse(place.textContent) };
        const el = await draw(panel, place, panel);
        if (panel.table) tables.push(move(el, panel));
    }
    for (const pre of document.querySelectorAll(".jp-OutputArea pre")) {  // do not wrap lines of tables
        pre.classList.toggle("edp-columns", (pre.textContent.match(/^.*\S {2,}\S/gm) ?? []).length > 1);
    }
    const wide = ".edp-columns, [style*=overflow-x], .jp-OutputArea-output, .jp-RenderedMarkdown, .jp-RenderedMarkdown p";
    for (const one of document.querySelectorAll(wide)) {
        const size = parseFloat(getComputedStyle(one).fontSize), wanted = size * one.clientWidth / one.scrollWidth;
        if (wanted < size && !one.matches("div")) one.style.fontSize = `${Math.max(8, Math.floor(9.8 * wanted) / 10)}px`;
        if (one.scrollWidth > one.clientWidth + 1) one.tabIndex = 0;  // lets the keyboard scroll it
    }
    for (const states of tables) await states();  // unpack all tables before the first move
    globalThis.edpLabReady = true;
});
