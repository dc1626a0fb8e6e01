"""The figures of ``06_train_and_trade_off.ipynb``: those of a panel are drawn once, then patched in place.

What a result holds is in `compute` and `grid`; nothing is computed here but axis ranges.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from edp_lab.course.kit.text import at_most, digits
from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION
from edp_lab.course.nb06_tradeoff.compute import Decayed, Explored, Ladder, Tuning
from edp_lab.course.nb06_tradeoff.grid import Grid, Point
from edp_lab.course.nb06_tradeoff.words import NEIGHBOURS, told
from edp_lab.privacy import Decay

FAMILIES: dict[tuple[str, int], tuple[str, dict[str, Any]]] = {
    ("printed", 8): ("as printed", {"color": ORANGE, "symbol": "square-open", "size": 10, "line": {"width": 2}}),
    ("sound", 8): ("sound, m = 8", {"color": BLUE, "symbol": "circle", "size": 9}),
    ("sound", 4): ("m = 4", {"color": SKY, "symbol": "triangle-up", "size": 10}),
    ("sound", 2): ("m = 2", {"color": PURPLE, "symbol": "diamond", "size": 10}),
    ("dp", 1): ("DP-SGD, m = 1", {"color": GREEN, "symbol": "star-square", "size": 10}),
    ("poisson", 1): ("DP-SGD, Poisson", {"color": VERMILLION, "symbol": "x", "size": 9}),
    ("naive", 1): ("one pass each", {"color": BLACK, "symbol": "cross-open", "size": 10, "line": {"width": 2}}),
}
YOURS = {"color": "white", "symbol": "star", "size": 15, "line": {"width": 2, "color": BLACK}}
RING = {"color": BLACK, "symbol": "circle-open", "size": 22, "line": {"width": 2.5}}
LEGEND = {"orientation": "h", "entrywidth": 118, "entrywidthmode": "pixels"}
SCALES = {"type": "log", "dtick": 1, "exponentformat": "power"}
ROUND = {  # ticks in full: plotly writes a 2 for 20 and for 200
    "type": "log",
    "tickvals": [digit * 10.0**power for power in range(-3, 7) for digit in (1, 2, 5)],
    "tickformat": "~g",
}


# ---- The measured runs ---------------------------------------------------------------------------------------------


def epsilon_figure(result: Explored) -> go.Figure:
    """SER on the test set against epsilon, of all measured runs that are as long as the chosen one."""
    figure = _explorer("Error against privacy")
    figure.update_layout(height=560, margin_t=236)
    figure.update_xaxes(title="ε (smaller is more private)", **SCALES)
    update_epsilon(figure, result)
    return figure


def update_epsilon(figure: go.Figure, result: Explored) -> None:
    with figure.batch_update():
        _place(figure, result, "epsilon")
        figure.layout.xaxis.range = _decades([*(p.epsilon for p in result.others), *_own(result)])
        delta = result.point.guarantee.delta
        figure.layout.title.subtitle.text = (
            f"{_epochs(result)}, test set; dashed: SGD, no guarantee<br>"
            f"δ = {digits(delta)}; one utterance zeroed out, Gaussian DP<br>"
            "(Poisson: added or removed, Rényi DP); seed 0, published:<br>"
            "every ε is void; open squares: and if α were public"
        )


def time_figure(result: Explored) -> go.Figure:
    """SER on the test set against time, of the same runs."""
    figure = _explorer("Error against time")
    figure.update_layout(height=560, margin_t=236)
    figure.update_xaxes(title="seconds of training, one thread", **ROUND)
    update_time(figure, result)
    return figure


def update_time(figure: go.Figure, result: Explored) -> None:
    with figure.batch_update():
        _place(figure, result, "seconds")
        times = [p.seconds for p in (*result.others, *result.path, *result.live)]
        figure.layout.xaxis.range = [math.log10(min(times) / 1.6), math.log10(max(times) * 1.6)]
        figure.layout.title.subtitle.text = (
            f"{_epochs(result)}, test set, seed 0; dashed: SGD<br>"
            "CPU time, median of an epoch (stars: by the clock);<br>ε of each run: in the other picture"
        )


def _explorer(title: str) -> go.Figure:
    figure = go.Figure()
    line = {"color": BLACK, "dash": "dash", "width": 1.5}
    figure.add_scatter(mode="lines", name="SGD", line=line, hoverinfo="skip")
    thin = {"color": "#777", "width": 1, "dash": "dot"}
    figure.add_scatter(
        mode="lines+markers", name="other lengths", line=thin, marker={"size": 5, "color": "#777"}, hoverinfo="text"
    )
    for name, marker in FAMILIES.values():
        figure.add_scatter(mode="markers", name=name, marker=marker, hoverinfo="text")
    figure.add_scatter(mode="markers", name="your runs", marker=YOURS, hoverinfo="text")
    figure.add_scatter(mode="markers", name="chosen", marker=RING, hoverinfo="skip")
    figure.update_layout(title=title, legend=LEGEND)
    figure.update_yaxes(title="semantic error rate (SER)", range=[0, 1.08])
    return figure


def _place(figure: go.Figure, result: Explored, what: str) -> None:
    """`what`: the attribute of a point that goes to the right."""
    line, path, *families, yours, ring = figure.data
    for trace, key in zip(families, FAMILIES, strict=True):
        _points(trace, [p for p in result.others if (p.method, p.micro_batch) == key], what)
    _points(path, result.path, what)
    _points(yours, result.live, what)
    ring.x, ring.y = [_finite(getattr(result.point, what))], [result.point.ser]
    level = [p.ser for p in result.others if p.method == "sgd"][:1]
    line.x, line.y = ([1e-3, 1e12], level * 2) if level else ([], [])


def _points(trace: Any, points: Sequence[Point], what: str) -> None:
    trace.x, trace.y = [_finite(getattr(p, what)) for p in points], [p.ser for p in points]
    trace.text = [f"{told(p)}<br>SER {p.ser:.3f}, ε {_short(p.epsilon)}, {p.seconds:.1f} s" for p in points]


def _own(result: Explored) -> list[float | None]:
    return [p.epsilon for p in (*result.path, *result.live)]


def _epochs(result: Explored) -> str:
    epochs = result.point.config.epochs
    return f"Runs of {epochs} epochs" if epochs > 1 else "Runs of 1 epoch"


# ---- The ladder ----------------------------------------------------------------------------------------------------


def noise_figure(result: Ladder) -> go.Figure:
    """Noise on the mean gradient by micro-batch size, at the same z."""
    figure = go.Figure()
    look = {"line": {"color": BLUE}, "marker": {"symbol": "circle", "size": 9}}
    figure.add_scatter(mode="lines+markers", name="sound", hovertemplate="m = %{x}: %{y:.3g}<extra></extra>", **look)
    square = {"color": ORANGE, "symbol": "square-open", "size": 12, "line": {"width": 2}}
    figure.add_scatter(mode="markers", name="as printed", marker=square, hovertemplate="%{y:.3g}<extra></extra>")
    figure.add_scatter(mode="markers", name="chosen m", marker=RING, hoverinfo="skip")
    figure.update_layout(height=480, title="Noise on the mean gradient", margin_t=170, legend={"orientation": "h"})
    figure.update_xaxes(title="micro-batch size m (utterances that share a clip)", type="log")
    figure.update_yaxes(title="standard deviation per weight", **SCALES)
    update_noise(figure, result)
    return figure


def update_noise(figure: go.Figure, result: Ladder) -> None:
    with figure.batch_update():
        sound, printed, chosen = figure.data
        noise = [r.noise for r in result.rungs]
        sound.x, sound.y = _sizes(result), noise
        printed.x, printed.y = [result.rungs[-1].micro_batch], [result.printed_noise]
        chosen.x, chosen.y = [result.chosen.micro_batch], [result.chosen.noise]
        _axes(figure, result, [*noise, result.printed_noise])
        figure.layout.title.subtitle.text = (
            f"{_setting(result)};<br>at every m the same z; as printed: the same z0<br>{_under(result)}"
        )


def ladder_figure(result: Ladder) -> go.Figure:
    """Epsilon by micro-batch size: at the same z, and at the chosen rung's noise on the mean."""
    figure = go.Figure()
    hover = "m = %{x}: ε %{y:.3g}<extra></extra>"
    looks: dict[str, dict[str, Any]] = {
        "same z": {"line": {"color": GREEN, "dash": "dash"}, "marker": {"symbol": "diamond", "size": 9}},
        "same noise on the mean": {"line": {"color": BLUE, "width": 3}, "marker": {"symbol": "circle", "size": 9}},
    }
    for name, look in looks.items():
        figure.add_scatter(mode="lines+markers", name=name, hovertemplate=hover, **look)
    square = {"color": ORANGE, "size": 12, "line": {"width": 2}}
    for name, symbol in (("as printed, if α were public", "square-open"), ("as printed, claimed", "square-x-open")):
        marker = {**square, "symbol": symbol}
        figure.add_scatter(mode="markers", name=name, marker=marker, hovertemplate="ε %{y:.3g}<extra></extra>")
    figure.update_layout(height=480, title="ε of the run", margin_t=170, legend={"orientation": "h"})
    figure.update_xaxes(title="micro-batch size m (utterances that share a clip)", type="log")
    figure.update_yaxes(title="ε", **SCALES)
    update_ladder(figure, result)
    return figure


def update_ladder(figure: go.Figure, result: Ladder) -> None:
    with figure.batch_update():
        same_z, same_noise, printed, claimed = figure.data
        same_z.x = same_noise.x = _sizes(result)
        epsilons = [_finite(r.epsilon) for r in result.rungs]
        equal = [_finite(r.equal_epsilon) for r in result.rungs]
        same_z.y, same_noise.y = epsilons, equal
        printed.x = claimed.x = [result.rungs[-1].micro_batch]
        printed.y, claimed.y = [_finite(result.printed_epsilon)], [_finite(result.printed_claim)]
        _axes(figure, result, [*epsilons, *equal, result.printed_epsilon, result.printed_claim])
        figure.layout.title.subtitle.text = (
            f"δ = {digits(result.delta)}, Gaussian DP (claimed: zCDP), disjoint batches,<br>"
            f"{NEIGHBOURS[result.adjacency]}; {result.config.epochs} epochs;<br>if the seed is secret"
        )


def _sizes(result: Ladder) -> list[int]:
    return [r.micro_batch for r in result.rungs]


def _axes(figure: go.Figure, result: Ladder, values: Iterable[float | None]) -> None:
    sizes = _sizes(result)
    figure.layout.xaxis.tickvals = sizes
    figure.layout.xaxis.range = [-0.15, math.log10(sizes[-1]) + 0.15]
    figure.layout.yaxis.range = _decades(values)


def _setting(result: Ladder) -> str:
    config = result.config
    return f"batch {config.batch_size}, N = {config.num_devices}, C = {config.clip_norm:g}, z = {config.z0:g}"


def _under(result: Ladder) -> str:
    return f"ε of each: in the other picture ({NEIGHBOURS[result.adjacency]})"


# ---- Decay ---------------------------------------------------------------------------------------------------------

DECAYS = {
    Decay.NONE: {"line": {"color": BLUE}, "marker": {"symbol": "circle", "size": 9}},
    Decay.LINEAR: {"line": {"color": PURPLE, "dash": "dash"}, "marker": {"symbol": "diamond", "size": 9}},
    Decay.EXPONENTIAL: {"line": {"color": VERMILLION, "dash": "dot"}, "marker": {"symbol": "x", "size": 9}},
}


def decay_figure(decays: Sequence[Decayed], grid: Grid, epochs: int, delta: float) -> go.Figure:
    """Left: what each decay costs at the same z0. Right: what it bought, measured, against what it cost."""
    figure = make_subplots(1, 2, horizontal_spacing=0.13)
    for decayed in decays:
        look, name = DECAYS[decayed.decay], str(decayed.decay)
        ts = list(range(1, len(decayed.epsilon) + 1))
        shared = {"name": name, "legendgroup": name, **look}
        hover = f"{name}: %{{x}} epochs, ε %{{y:.3g}}<extra></extra>"
        figure.add_scatter(x=ts, y=decayed.epsilon, mode="lines+markers", hovertemplate=hover, **shared, row=1, col=1)
        points = _by_epsilon(p for p in grid.after(epochs) if p.method == "dp" and p.config.decay == name)
        figure.add_scatter(
            x=[p.epsilon for p in points], y=[p.ser for p in points], text=[told(p) for p in points],
            mode="lines+markers", hovertemplate="%{text}<br>SER %{y:.3f}, ε %{x:.3g}<extra></extra>", **shared,
            showlegend=False, row=1, col=2,
        )  # fmt: skip
    figure.update_layout(
        height=440, title="What decay costs, and what it buys", margin_t=150, legend={"orientation": "h"}
    )
    figure.update_xaxes(title="epochs trained", row=1, col=1)
    figure.update_yaxes(title="ε", **ROUND, row=1, col=1)
    figure.update_xaxes(title="ε", **SCALES, row=1, col=2)
    figure.update_yaxes(title="SER on the test set", range=[0, 1.05], row=1, col=2)
    figure.layout.title.subtitle.text = (
        f"δ = {digits(delta)}, Gaussian DP, one utterance zeroed out, disjoint batches;<br>left: all from z0 = "
        f"{decays[0].z0:g}; right: DP-SGD, measured, {epochs} epochs, seed 0 (void)"
    )
    return figure


def _by_epsilon(points: Iterable[Point]) -> list[Point]:
    return sorted(points, key=lambda p: p.epsilon or 0.0)


# ---- Tuning --------------------------------------------------------------------------------------------------------


def tuning_figure(result: Tuning) -> go.Figure:
    """Epsilon by the number of trials."""
    figure = go.Figure()
    looks: dict[str, dict[str, Any]] = {
        "one run: as usually quoted": {"line": {"color": ORANGE, "dash": "dash"}, "marker": {"symbol": "square-open"}},
        "all trials may be seen": {"line": {"color": BLUE, "width": 3}, "marker": {"symbol": "circle"}},
        "only the best, number secret": {"line": {"color": GREEN, "dash": "dot"}, "marker": {"symbol": "diamond"}},
    }
    for name, look in looks.items():
        marker = {**look["marker"], "size": 8}
        hover = f"%{{x}} trials: ε %{{y:.3g}}<extra>{name}</extra>"
        figure.add_scatter(mode="lines+markers", name=name, line=look["line"], marker=marker, hovertemplate=hover)
    figure.add_scatter(mode="markers", name="chosen", marker=RING, hoverinfo="skip")
    figure.update_layout(height=460, title="The price of tuning", margin_t=150, legend={"orientation": "h"})
    figure.update_xaxes(title="trials (of a random number: its mean)", type="log", dtick=1)
    figure.update_yaxes(title="ε", **SCALES)
    update_tuning(figure, result)
    return figure


def update_tuning(figure: go.Figure, result: Tuning) -> None:
    with figure.batch_update():
        free, published, random, ring = figure.data
        free.x = published.x = random.x = result.trials
        free.y, published.y, random.y = [result.free] * len(result.trials), result.published, result.random
        ring.x, ring.y = [result.trials[result.chosen]], [result.published[result.chosen]]
        figure.layout.yaxis.range = _decades([result.free, *result.published, *result.random])
        figure.layout.title.subtitle.text = (
            f"δ = {digits(result.delta)}, one utterance zeroed out, disjoint batches;<br>z0 = {result.z0:g}, "
            f"{result.epochs} epochs each; Gaussian DP, secret number: Rényi DP"
        )


# ---- Small parts ---------------------------------------------------------------------------------------------------


def _finite(value: float | None) -> float | None:
    """A number that a log axis can show, else None."""
    return value if value is not None and value > 0 and math.isfinite(value) else None


def _short(epsilon: float | None) -> str:
    return "none" if epsilon is None else at_most(epsilon)


def _decades(values: Iterable[float | None]) -> list[float]:
    """Exponents of the powers of ten around the values: an axis that stands still while a slider moves a little."""
    logs = [math.log10(v) for v in map(_finite, values) if v is not None] or [0.0]
    return [math.floor(min(logs) - 0.05), math.ceil(max(logs) + 0.05)]
