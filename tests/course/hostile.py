"""Text that is harmful as markup, and figures and panels that show it in every possible place."""

from typing import Any

import numpy as np

from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import choice, number
from edp_lab.course.kit.panel import Panel
from edp_lab.course.kit.text import Tile, html_table

__all__ = ["EVIL", "TEX", "draw", "fig", "html_table", "show"]  # for the notebook

RUN = "(window.pwned=1)"
SHORT = f"<svg onload={RUN}>"
NAME = f"""'"><img src=x onerror="{RUN}">{SHORT}<a href="javascript:{RUN}">click"""  # a possible file name
EVIL = f"{NAME}</a></script></title></textarea><script>{RUN}</script><a href='https://a.org'>away</a>"


TEX = r"$\href{https://a.org}{away}$"  # Jupyter renders formulas, including their links, in HTML


def draw(result: Any) -> fig.Figure:
    """A figure with the text in every place that can show text."""
    on = {"x": [EVIL, "b"], "y": [1, 2], "text": [EVIL] * 2, "hovertext": EVIL, "customdata": np.array([EVIL, "b"])}
    traces = [
        fig.line(EVIL, fig.theme.PLAIN, symbol="circle", size=9, **on, mode="lines+markers+text"),
        fig.bar(EVIL, fig.theme.CLAIMED, **on, hover=f"{EVIL} %{{customdata}} %{{text}}" + fig.ALONE),
    ]
    x = fig.axis(EVIL, ticktext=[EVIL, "b"], tickvals=[0, 1])
    layout = fig.plots(1, 1, [EVIL], [(x, fig.axis(EVIL, ticksuffix=EVIL))])
    legend = {"title": {"text": EVIL}}
    told = fig.note(EVIL, x=0, y=0, hovertext=EVIL)
    return fig.figure(EVIL, *traces, told, caption=EVIL, hover=EVIL, **layout, legend=legend, barmode="overlay")


def show() -> Panel:
    """A panel with the text in every place that can show text, also for a notebook."""
    controls = {
        "a": number(EVIL, 1.0, [1.0, 2.0], unit=EVIL),
        "b": choice(EVIL, EVIL, {SHORT: EVIL, NAME: NAME}, tooltips=[EVIL, EVIL]),
    }
    return Panel(
        EVIL,
        EVIL,
        lambda a, b: 1 / (2 - a),
        [draw],
        lambda result: EVIL,
        lambda *_, **values: EVIL,
        tiles=lambda result: (Tile(EVIL, EVIL, EVIL), Tile(EVIL, EVIL), EVIL),
        **controls,
    )
