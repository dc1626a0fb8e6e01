// Returns the texts in arguments[0] with insufficient contrast to their background (WCAG 2, 1.4.3), with all folds open.
const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const colour = css => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = css;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
};
const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
const linear = c => c / 255 <= .04045 ? c / 255 / 12.92 : ((c / 255 + .055) / 1.055) ** 2.4;
const luminance = ([r, g, b]) => .2126 * linear(r) + .7152 * linear(g) + .0722 * linear(b);
const behind = element => {
    if (!element) return [255, 255, 255, 1];
    const own = element.closest('svg') ? [0, 0, 0, 0] : colour(getComputedStyle(element).backgroundColor);
    return own[3] == 1 ? own : over(own, behind(element.parentElement));
};
const bar = element => element.closest('.bars .point')?.querySelector('path');
const contrast = element => {
    const style = getComputedStyle(element), painted = bar(element);
    const back = painted ? over(colour(getComputedStyle(painted).fill), behind(element)) : behind(element);
    const ink = over(colour(element.closest('svg') ? style.fill : style.color), back);
    const [low, high] = [luminance(ink), luminance(back)].sort((a, b) => a - b);
    return (high + .05) / (low + .05);
};
arguments[0].querySelectorAll('details').forEach(fold => { fold.open = true; });
const patterned = element => getComputedStyle(bar(element) ?? element).fill.startsWith('url');
// (The background of text in a heatmap's cell is an image, whose colours cannot be read.)
const off = 'style, .heatmap-label, .modebar, :disabled, .edp-control:has(:disabled)';
const says = element => element.matches('input[type=text], select') || [...element.childNodes].some(
    node => node.nodeType == Node.TEXT_NODE && node.textContent.trim());
const seen = [...arguments[0].querySelectorAll('*')].filter(e => e.getBoundingClientRect().width && !e.closest(off));
const written = seen.filter(says).filter(e => !patterned(e)).map(e => [contrast(e), (typeof e.value == "string" ? e.value : e.textContent).trim().slice(0, 60)]);
return written.filter(([ratio]) => ratio < arguments[1]).map(([ratio, text]) => `${ratio.toFixed(1)}: ${text}`);
