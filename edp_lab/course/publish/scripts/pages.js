// Every page: dark where the reader's system is, light on paper, and figures that are drawn when they come into view.
const dark = matchMedia("screen and (prefers-color-scheme: dark)");
const follow = () => { document.body.dataset.jpThemeLight = String(!dark.matches); };
dark.addEventListener("change", follow);
follow();

const waiting = new Set(document.querySelectorAll(".edp-drawn"));
const draw = place => {
    if (!waiting.delete(place)) return;
    const { data, layout } = JSON.parse(place.querySelector("script").textContent);
    const plot = place.appendChild(document.createElement("div"));
    plot.style.height = "100%";
    Plotly.newPlot(plot, data, { ...layout, template: layout.template ?? TEMPLATE },
        { ...CONFIG, staticPlot: place.classList.contains("edp-picture") });
    new ResizeObserver(() => plot.offsetWidth && Plotly.Plots.resize(plot)).observe(place);
};
const near = new IntersectionObserver(
    places => places.forEach(place => place.isIntersecting && draw(place.target)), { rootMargin: "800px" });
waiting.forEach(place => near.observe(place));
addEventListener("beforeprint", () => waiting.forEach(draw));
