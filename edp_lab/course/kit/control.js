// Front end of `Control` (controls.py): a label, native input elements, which support keyboards and screen readers, and
// an error message below them.
function element(tag, properties = {}, ...children) {
    const one = Object.assign(document.createElement(tag), properties);
    one.append(...children);
    return one;
}

// For each kind of control, a function that returns its elements and a function that shows a value in them.
const KINDS = {
    number(model, id, enter) {
        const stops = model.get("stops"), unit = model.get("unit"), label = model.get("label");
        const nearest = value => stops.reduce((at, stop, k) =>
            Math.abs(stop - value) < Math.abs(stops[at] - value) ? k : at, 0);
        const range = element("input", {type: "range", min: 0, max: stops.length - 1, step: 1, ariaLabel: label});
        const box = element("input", {type: "text", inputMode: "decimal", id, autocomplete: "off"});
        const say = value => { range.ariaValueText = `${value} ${unit}`.trim(); };
        range.addEventListener("input", () => {
            box.value = stops[range.valueAsNumber];
            say(box.value);
            enter(stops[range.valueAsNumber]);
        });
        const read = () => {
            const typed = box.value.trim().replace(/,(?=\d{3}\b)/g, "");
            enter(typed !== "" && Number.isFinite(Number(typed)) ? Number(typed) : typed);
        };
        box.addEventListener("change", read);
        box.addEventListener("keydown", event => { if (event.key == "Enter") read(); });  // JupyterLab fires no change event
        const show = value => {
            box.value = value;
            if (Number.isFinite(Number(value))) range.valueAsNumber = nearest(value);
            say(value);
        };
        return [stops.length ? [range, box] : [box], show];
    },
    choice(model, id, enter) {
        const tips = model.get("tips");
        const radios = model.get("names").map((_, k) => element("input", {type: "radio", name: id, value: k}));
        radios.forEach((radio, k) => radio.addEventListener("change", () => enter(k)));
        const labels = model.get("names").map((name, k) => element("label", {title: tips[k] ?? ""}, radios[k], name));
        return [[element("div", {className: "edp-options"}, ...labels)], k => radios.forEach((r, n) => { r.checked = n === k; })];
    },
    list(model, id, enter) {
        const select = element("select", {id});
        select.append(...model.get("names").map(name => element("option", {}, name)));
        select.addEventListener("change", () => enter(select.selectedIndex));
        return [[select], k => { select.selectedIndex = k ?? -1; }];
    },
};

export default { render({ model, el }) {
    const kind = model.get("kind"), id = `edp-control-${Math.random().toString(36).slice(2)}`;
    const enter = value => { model.set("entered", value); model.save_changes(); };
    const [inputs, show] = KINDS[kind](model, id, enter);
    const name = element(kind == "choice" ? "span" : "label", {className: "edp-label", id: `${id}-label`}, model.get("label"));
    if (kind != "choice") name.htmlFor = id;
    const error = element("div", {className: "edp-lab-error", id: `${id}-error`});
    error.setAttribute("role", "alert");
    el.classList.add("edp-control", `edp-${kind}`);
    el.title = model.get("unit");
    if (kind == "choice") { el.setAttribute("role", "radiogroup"); el.setAttribute("aria-labelledby", name.id); }
    el.append(name, ...inputs, error);
    const elements = el.querySelectorAll("input, select");
    elements.forEach(one => { one.dataset.lmSuppressShortcuts = true; });  // in JupyterLab, arrow keys would leave the slider
    const follow = () => {
        show(model.get("entered"));
        error.textContent = model.get("error");
        elements.forEach(one => {
            one.disabled = model.get("disabled");
            one.ariaInvalid = Boolean(model.get("error"));
            one.setAttribute("aria-describedby", error.id);
        });
    };
    model.on("change:entered change:error change:disabled", follow);
    follow();
} };
