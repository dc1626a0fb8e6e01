"""Draw promise.svg: N goes from 1 to 32, the claimed epsilon stays, the guaranteed one grows.

python docs/images/promise.py [FILE]
"""

import sys
from pathlib import Path

from edp_lab.privacy import Mechanism, judge
from edp_lab.privacy.guarantee import upward

TITLE = "The claimed ε stays. The guaranteed ε grows."
FRAMES = [1] * 5 + list(range(1, 33)) + [32] * 11  # the first and the last stay for a while
COLUMNS = {"claimed": 490, "guaranteed": 590}
SECONDS = 0.25 * len(FRAMES)
# The card has a ground of its own, so it can be read on any page; readers who ask for less motion see the last frame.
STYLE = f"""
text {{ font: 16px system-ui, sans-serif; fill: #222 }} .title {{ font-size: 22px; font-weight: 600 }}
.large {{ font-size: 42px; font-weight: 600 }} .card {{ fill: #fff; stroke: #bbb }} .axis {{ stroke: #888 }}
polyline, path {{ fill: none }} circle {{ stroke-dasharray: 0 !important }} .claimed, .guaranteed {{ stroke-width: 4 }}
.claimed {{ stroke: #e69f00; stroke-dasharray: 9 5 }} .guaranteed {{ stroke: #d55e00 }}
.frame {{ opacity: 0 }} .frame:last-of-type {{ opacity: 1 }}
@media (prefers-color-scheme: dark) {{ text {{ fill: #eee }} .card {{ fill: #161b22; stroke: #444 }} }}
@media (prefers-reduced-motion: no-preference) {{ .frame {{ animation: show {SECONDS}s steps(1) infinite }} }}
@keyframes show {{ 0% {{ opacity: 1 }} {100 / len(FRAMES):.4f}%, 100% {{ opacity: 0 }} }}"""


def text(x: float, y: float, said: object, look: str = "", anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" class="{look}" text-anchor="{anchor}">{said}</text>'


def line(look: str, *points: tuple[float, float]) -> str:
    places = [f"{64 + 12 * devices:g},{274 - 1.7 * epsilon:.1f}" for devices, epsilon in points]
    x, y = places[-1].split(",")
    return f'<polyline class="{look}" points="{" ".join(places)}"/><circle class="{look}" cx="{x}" cy="{y}" r="2"/>'


def draw() -> str:
    """The picture of one epoch of Algorithm 1 as printed, with layer scales from public text."""
    bills = [judge(Mechanism.as_printed(1.0, 1.0, n, 8, alpha="public"), 1, delta=1e-5) for n in range(1, 33)]
    guaranteed = [bill.conditional_epsilon or 0 for bill in bills]
    bounds = {"claimed": [bill.claimed_epsilon or 0 for bill in bills], "guaranteed": guaranteed}
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 780 340"><title>{TITLE}</title>']
    parts += [f'<style>{STYLE}</style><rect class="card" x="1" y="1" width="778" height="338" rx="10"/>']
    parts += [text(24, 40, TITLE, "title"), '<path class="axis" d="M 64 70 V 274 H 460"/>']
    parts += [text(56, 279 - 1.7 * epsilon, epsilon, anchor="end") for epsilon in range(0, 121, 40)]
    parts += [text(64 + 12 * n, 296, n, anchor="middle") for n in (1, 8, 16, 24, 32)]
    parts += [text(76, 80, "ε after one epoch"), text(262, 322, "number of GPUs N", anchor="middle")]
    parts += ['<path class="claimed" d="M 490 156 h 50"/><path class="guaranteed" d="M 590 156 h 50"/>']
    parts += [text(490, 182, "claimed ε"), text(590, 182, "guaranteed ε")]
    parts += [text(490, 282, "z0 = 1, δ = 0.00001,"), text(490, 304, "α public, secret exact noise")]
    for number, devices in enumerate(FRAMES):
        drawn = [line(look, *enumerate(bound[:devices], 1)) for look, bound in bounds.items()]
        drawn += [text(490, 116, f"N = {devices}", "large")]
        drawn += [text(x, 226, upward(bounds[look][devices - 1]), "large") for look, x in COLUMNS.items()]
        parts += [f'<g class="frame" style="animation-delay: {0.25 * number - SECONDS}s">{"".join(drawn)}</g>']
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    Path(sys.argv[1] if sys.argv[1:] else Path(__file__).with_suffix(".svg")).write_text(draw(), encoding="utf-8")
