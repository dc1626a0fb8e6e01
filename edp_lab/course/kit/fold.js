export default { render({ model, el }) {
    const fold = document.createElement("details"), head = document.createElement("summary");
    const body = document.createElement(model.get("code") ? "pre" : "div"), copy = document.createElement("button");
    el.classList.add("edp-fold");
    head.textContent = model.get("summary");
    fold.append(head, body);
    if (model.get("code")) {
        copy.textContent = "Copy";
        body.tabIndex = 0;
        copy.addEventListener("click", async () => {
            getSelection().selectAllChildren(body);
            try { await navigator.clipboard.writeText(body.textContent); } catch { document.execCommand("copy"); }
            copy.textContent = "Copied";
            setTimeout(() => { copy.textContent = "Copy"; }, 1500);
        });
        fold.append(copy);
    }
    el.append(fold);
    const follow = () => {
        const value = model.get("value");
        fold.hidden = !value;
        if (model.get("code")) body.textContent = value; else body.innerHTML = value;
    };
    model.on("change:value", follow);
    follow();
} }
