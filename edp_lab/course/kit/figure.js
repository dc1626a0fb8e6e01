// Draws and updates a figure with plotly.js, which is loaded once per page (`theme.bundle`). If the page is narrow, titles
// are wrapped, the plots of a grid are arranged in fewer columns, and the figure becomes taller.
const LINE = 1.3;  // line height relative to font size
const LEGEND = 67, TITLE = 20;  // heights in pixels of a three-row legend and of a plot's title
const UNSEEN = 700, BUTTONS = 64;  // widths in pixels of a figure that is out of view and of a figure's buttons
const telephone = matchMedia("(max-width: 30rem)");  // phones show no buttons: see panel.css
const NARROW = 150;  // minimum width in pixels of a plot in a grid
const NOTHING = { legend: 0, axes: {} };
const pen = document.createElement("canvas").getContext("2d");
const lines = text => text.split("<br>").length;

function broken(text, size, most) {
    pen.font = `${size}px system-ui, sans-serif`;
    const fits = line => pen.measureText(line.replace(/<[^>]*>/g, "").replace(/&\w+;/g, "m")).width <= most;
    if (text.split("<br>").every(fits)) return text;
    const [first, ...words] = text.replaceAll("<br>", " ").split(/ (?![^<]*>)/);
    return words.reduce((done, word) => done + (fits(`${done.split("<br>").at(-1)} ${word}`) ? " " : "<br>") + word, first);
}

// Arranges the plots of a grid in as many columns as fit; returns the factor by which the grid's height grows.
function stack(layout, width) {
    const ids = Object.keys(layout).map(name => /^xaxis(\d*)$/.exec(name)?.[1]).filter(id => id !== undefined);
    const axes = side => ids.map(id => layout[`${side}axis${id}`]);
    const count = side => new Set(axes(side).map(axis => axis.domain?.[0])).size;
    const columns = Math.max(1, Math.floor(width / NARROW)), rows = Math.ceil(ids.length / columns), before = count("y");
    if (columns >= count("x")) return 1;
    const high = axes("y")[0].domain[1] - axes("y")[0].domain[0], gap = before > 1 ? (1 - before * high) / (before - 1) : 0;
    const whole = rows * high + (rows - 1) * gap, between = columns > 1 ? 0.3 : 0;
    const named = Object.fromEntries(["x", "y"].map(side => [side, axes(side).find(axis => axis.title?.text)?.title.text]));
    const titles = layout.annotations ?? [];
    ids.forEach((_, k) => {
        const [x, y, column, row] = [axes("x")[k], axes("y")[k], k % columns, Math.floor(k / columns)];
        const left = column * (1 + between) / (columns + (columns - 1) * between), top = 1 - row * (high + gap) / whole;
        x.domain = [left, left + 1 / (columns + (columns - 1) * between)];
        y.domain = [Math.max(0, top - high / whole), top];
        x.title = { ...x.title, text: k + columns >= ids.length ? named.x ?? "" : "" };
        y.title = { ...y.title, text: column ? "" : named.y ?? "" };
        Object.assign(titles[k] ?? {}, { x: (x.domain[0] + x.domain[1]) / 2, y: top });
    });
    return whole;
}

// Returns the layout for a container of this width, given the last drawing's legend height and axes: [start, length] by name.
function fitted(layout, margin, width, { legend, axes }) {
    const { t, b } = { ...margin, ...layout.margin }, high = layout.height ??= 450;
    const fit = (title, size, most) => {
        if (!title?.text) return 0;
        const before = lines(title.text);
        title.text = broken(title.text, title.font?.size ?? size, most);
        return (lines(title.text) - before) * size * LINE;
    };
    const free = width - 16, headed = fit(layout.title, 14, free - (telephone.matches ? 0 : BUTTONS)) + fit(layout.title?.subtitle, 12, free);
    if (lines(layout.title?.text ?? "") > 1) layout.title.pad = { t: 20, l: 8 };  // plotly places titles of several lines higher
    const plots = (high - t - b) * (stack(layout, width) - 1);
    let below = 0;
    for (const [name, [start, length]] of Object.entries(axes)) {
        const middle = start + length / 2, most = Math.min(2 * Math.min(middle, width - middle) - 8, length + 90);
        const more = fit(layout[name]?.title, 14, name[0] == "x" ? most : length + 20);
        if (name[0] == "x") below = Math.max(below, more);
    }
    const under = layout.legend?.yref == "container" ? (1 - layout.legend.y) * high : 0;
    const room = layout.margin?.autoexpand === false ? t - under - TITLE : LEGEND;  // plotly reserves space for a few rows
    const above = headed + (under && Math.max(0, legend - room));
    layout.width = width;
    layout.height = Math.round(high + above + plots + below);
    layout.margin = { ...layout.margin, t: t + above };
    if (under) layout.legend.y = 1 - (under + headed) / layout.height;
    return layout;
}

export default { render({ model, el }) {
    const bundle = (globalThis.edpLabPlotly ??= Promise.withResolvers()).promise;
    let loaded, width = 0, seen = NOTHING;  // width and measurements of the last drawing
    const look = () => {
        const { legend, _subplots, _plots } = el._fullLayout;
        const axes = _subplots.cartesian.flatMap(id => [_plots[id].xaxis, _plots[id].yaxis]);
        const places = Object.fromEntries(axes.map(axis => [axis._name, [axis._offset, axis._length]]));
        return { legend: legend?._height ?? 0, axes: places };
    };
    const draw = () => {
        if (!loaded) return;
        width ||= UNSEEN;
        const { plotly, template, config } = loaded, drawn = model.get("drawn");
        const wanted = () => fitted(structuredClone(drawn.layout), template.layout.margin, width, seen);
        let layout = wanted();
        el.ariaLabel = drawn.layout.title?.text ?? "figure";
        for (let times = 0; times < 3; times++) {
            const text = JSON.stringify(layout);
            (el.closest(".edp-figure") ?? el).style.height = `${layout.height}px`;
            // plotly modifies the data passed to it; uirevision preserves the zoom
            plotly.react(el, structuredClone(drawn.data), { ...layout, template, uirevision: true }, config);
            seen = look();
            if (JSON.stringify(layout = wanted()) == text) return;
        }
    };
    const resize = () => {  // measuring the width is slow, so not at every slider move
        const now = el.clientWidth;
        if (!loaded || !now || now == width) return;
        [width, seen] = [now, NOTHING];
        draw();
    };
    const watch = new ResizeObserver(resize);
    el.setAttribute("role", "figure");  // screen readers announce the figure's title
    model.on("change:drawn", draw);
    addEventListener("resize", resize);
    bundle.then(all => {
        loaded = all;
        resize();
        if (!width) draw();
        watch.observe(el);
    });
    return async () => {
        removeEventListener("resize", resize);
        watch.disconnect();
        (await bundle).plotly.purge(el);
    };
} }
