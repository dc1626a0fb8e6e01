// Functions with which the browser tests examine a page.
const place = element => element.getBoundingClientRect();
const all = (within, selector) => [...within.querySelectorAll(selector)];
const errors = () => {
    const boxes = all(document, '.edp-lab-error, .jp-RenderedText[data-mime-type*=stderr], .jp-mod-error');
    return boxes.map(box => box.textContent.trim()).filter(text => text);
};
const panels = () => all(document, '.edp-panel');
// The enabled, visible sliders of the first panel without a Run button.
const sliders = () => {
    const handles = all(document, '.edp-panel:not(:has(.edp-run)) input[type=range]:enabled').filter(e => e.offsetWidth);
    return handles.filter(handle => handle.closest('.edp-panel') == handles[0].closest('.edp-panel'));
};
const box = handle => handle.closest('.edp-control').querySelector('input[type=text]');
// A panel's read-outs, its number boxes, and the content of its figures.
const shown = handle => {
    const panel = handle.closest('.edp-panel');
    const numbers = values => values?.length === undefined || typeof values === 'string' ? undefined
        : Array.from(values).flatMap(v => v?.length === undefined || typeof v === 'string' ? [v] : Array.from(v));
    return JSON.stringify({
        heading: panel.querySelector('h3').textContent,
        words: all(panel, '.widget-html-content, .edp-fold :is(div, pre)').map(e => e.textContent),
        box: box(handle).value,
        figures: all(panel, '.js-plotly-plot').map(plot => plot._fullData.map(
            trace => Object.fromEntries(['x', 'y', 'z'].map(key => [key, numbers(trace[key])])))),
    });
};
const buttons = () => all(document, '.edp-panel .modebar-btn').map(e => e.dataset.title ?? '');
const asText = html => {
    const element = document.createElement('div');
    element.innerHTML = html;
    return element.textContent;
};
// Whether each figure of a panel is as wide as its container, and ends within the panel.
const fits = panel => all(panel, '.edp-figure').every(figure => {
    const drawing = place(figure.querySelector('.main-svg')).right;
    return Math.abs(place(figure).right - drawing) < 4 && drawing < place(panel).right;
});
const stickingOut = panel => {
    const looked = '.widget-html-content *, .edp-tile *, .edp-label, input:not([type=radio]), button';
    const out = all(panel, looked).filter(e => place(e).right > place(panel).right + 1);
    return out.map(e => e.outerHTML.slice(0, 120));
};
// Texts in a panel's figures that are cut off at the edge or covered by buttons, and commands that are too long for
// their box.
const cut = panel => {
    const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
    const faults = all(panel, '.edp-tile b, .edp-label').filter(e => e.scrollWidth > e.clientWidth + 2);
    for (const figure of all(panel, '.edp-figure')) {
        const edge = place(figure), buttons = all(figure, '.modebar-group').map(place);
        for (const text of all(figure, 'svg text')) {
            const box = place(text), out = box.left < edge.left - 1 || box.right > edge.right + 1 ||
                box.top < edge.top - 1 || box.bottom > edge.bottom + 1;
            const under = text.closest('.g-gtitle') && buttons.some(button => meet(button, box));
            if (box.width && (out || under)) faults.push(text);
        }
    }
    return faults.map(e => e.value ?? e.textContent);
};
// Titles, legends and notes of a panel's figures that overlap, or legends that overlap a plot.
const covered = panel => all(panel, '.js-plotly-plot').flatMap(plot => {
    const meet = (a, b) => a.left < b.right - 2 && b.left < a.right - 2 && a.top < b.bottom - 2 && b.top < a.bottom - 2;
    const texts = all(plot, 'svg text').filter(e => place(e).width && e.closest('.legend, .infolayer, .annotation'));
    const {legend, _plots} = plot._fullLayout, edge = place(plot);
    const on = ({xaxis: x, yaxis: y}, e) => meet(place(e), {left: edge.left + x._offset, right: edge.left + x._offset + x._length,
        top: edge.top + y._offset, bottom: edge.top + y._offset + y._length});
    const faults = texts.filter((a, k) => texts.slice(k + 1).some(b => meet(place(a), place(b))));
    const above = legend?.yref == 'container' ? texts.filter(e => e.closest('.legend')) : [];
    return [...faults, ...above.filter(e => Object.values(_plots).some(one => on(one, e)))].map(e => e.textContent);
});
const besideFiles = () => {
    window.jupyterapp.shell.expandLeft();
    window.jupyterapp.commands.execute('filebrowser:activate');
};
const changeTheme = async theme => {
    await window.jupyterapp.commands.execute('apputils:change-theme', {theme});
    await new Promise(resolve => setTimeout(resolve, 500));
};
// Height from the first control of a panel to the bottom of its main figure.
const span = panel => {
    const [control, figure] = ['.edp-control', '.edp-figure'].map(name => panel.querySelector(name));
    return control && figure ? place(figure).bottom - place(control).top : 0;
};
// Ratio of vertical to horizontal pixels per unit, for plots whose axes should have the same scale.
const ratios = panel => {
    const layouts = all(panel, '.js-plotly-plot').map(plot => plot._fullLayout);
    const axes = layouts.flatMap(layout => layout._subplots.cartesian.map(id => id.split('y')).map(
        ([x, y]) => [layout['xaxis' + x.slice(1)], layout['yaxis' + y]]));
    return axes.filter(([x, y]) => x.scaleanchor || y.scaleanchor).map(([x, y]) => Math.abs(y._m / x._m));
};
