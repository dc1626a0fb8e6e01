// Moves one slider after the other by a stop, as often as asked for in all, turning round at the ends;
// milliseconds of each move that changed a figure, until the frame after the last redrawing. A move is over when the
// kernel is idle again and two frames have gone by without a redrawing, or half a second without any.
const [heading, moves] = arguments;
const kernel = window.notebook.sessionContext.session.kernel;
const panel = [...document.querySelectorAll(".edp-panel")].find(e => e.querySelector("h3")?.textContent == heading);
const handles = [...panel.querySelectorAll("input[type=range]:enabled")].filter(handle => handle.offsetWidth);
const all = what => [...panel.querySelectorAll(what)];
const frame = () => new Promise(requestAnimationFrame), pause = ms => new Promise(resolve => setTimeout(resolve, ms));
let redrawn = 0, painted = null;
const drawn = () => { redrawn++; requestAnimationFrame(() => { painted = performance.now(); }); };
const idle = () => new Promise(resolve => {
    let busy = false;
    const hear = (_, status) => {
        busy ||= status == "busy";
        if (busy && status == "idle") { kernel.statusChanged.disconnect(hear); resolve(); }
    };
    kernel.statusChanged.connect(hear);
});
async function press(handle, way) {
    const over = idle(), start = performance.now();
    painted = null;
    if (way > 0) handle.stepUp(); else handle.stepDown();  // a page may not press keys
    handle.dispatchEvent(new Event("input", {bubbles: true}));
    await Promise.race([over, pause(5000)]);
    for (let waited = 0; painted === null && waited < 500; waited += 20) await pause(20);
    for (let before = -1; before != redrawn;) { before = redrawn; await pause(20); await frame(); await frame(); }
    return painted === null ? null : painted - start;
}
return (async () => {
    panel.scrollIntoView();
    do await pause(200); while (all(".js-plotly-plot").length < all(".edp-figure").length);
    const plots = all(".js-plotly-plot");
    plots.forEach(plot => plot.on("plotly_afterplot", drawn));
    const times = [];
    for (const [number, handle] of handles.entries()) {
        const share = Math.floor(moves / handles.length) + (number < moves % handles.length);
        for (let move = 0, way = 1; move < share; move++) {
            if (handle.valueAsNumber >= Number(handle.max)) way = -1;
            if (handle.valueAsNumber <= Number(handle.min)) way = 1;
            times.push(await press(handle, way));
        }
    }
    plots.forEach(plot => plot.removeListener("plotly_afterplot", drawn));
    return times.filter(time => time !== null);
})();
