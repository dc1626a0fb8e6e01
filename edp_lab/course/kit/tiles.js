const element = (tag, className, textContent) =>
    Object.assign(document.createElement(tag), {className, textContent});
export default { render({ model, el }) {
    el.classList.add("edp-tiles");
    const follow = () => {
        const tiles = model.get("tiles").map(([label, value, unit, role]) => {
            const tile = element("div", `edp-tile edp-${role}`, "");
            const name = element("span", "edp-tile-label", label);
            tile.append(name, element("b", "", value), element("small", "", unit));
            return tile;
        });
        el.replaceChildren(...tiles, sentence);
        if (sentence.textContent != model.get("sentence")) sentence.textContent = model.get("sentence");
    };
    const sentence = element("p", "", "");
    sentence.setAttribute("role", "status");
    model.on("change:tiles change:sentence", follow);
    follow();
} }
