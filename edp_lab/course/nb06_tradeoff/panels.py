"""The panels of ``06_train_and_trade_off.ipynb``: measured runs, one more run, the ladder; figures, tables."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from edp_lab import training
from edp_lab.course.kit import figure as fig
from edp_lab.course.kit import theme
from edp_lab.course.kit.controls import Control, choice, decades, decay_of, devices, number
from edp_lab.course.kit.figure import Figure, Trace, figure, line, log_axis, points, positive
from edp_lab.course.kit.panel import Panel, RunPanel, Tile, epsilons, holds, panel
from edp_lab.course.kit.private import Private as Private
from edp_lab.course.kit.text import Html, Words, account_command, at_most, count, html_table, short, train_command
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import CLAIMED, HOLDS, INK, NOISE, OTHER, PLAIN, PRINTED
from edp_lab.course.nb06_tradeoff import compute
from edp_lab.course.nb06_tradeoff.compute import METHODS, Decayed, Explored, Grid, Ladder, Point
from edp_lab.privacy import Adjacency, Decay
from edp_lab.privacy.guarantee import upward
from edp_lab.reproduce.results_io import RESULTS, rows
from edp_lab.training import TrainConfig

NEIGHBOURS = {Adjacency.ZERO_OUT: "one sentence zeroed out", Adjacency.REPLACE_ONE: "one sentence replaced"}
ROUND = {  # ticks in full: plotly writes a 2 for 20 and for 200
    "type": "log",
    "tickvals": [digit * 10.0**power for power in range(-3, 7) for digit in (1, 2, 5)],
    "tickformat": "~g",
}
ROOM = 0.05  # decades beyond the values on a log axis


def told(point: Point) -> str:
    """The setting of a run, in short."""
    config = point.config
    epochs = count(config.epochs, "epoch")
    if point.method == "sgd":
        return f"SGD, {epochs}"
    size = f", m = {point.micro_batch}" if point.method == "sound" else ""
    decay = "" if config.decay == "none" else f", {config.decay} decay τ = {config.tau:g}"
    return f"{METHODS[point.method]}{size}, z0 = {config.z0:g}{decay}, {epochs}"


def epsilon(value: float | None, written: Callable[[float], str] = at_most) -> str:
    """One that holds, in words; one that is claimed is `written` by `digits`, as in tiles."""
    return "none" if value is None else written(value)


def table(*rows: Sequence[str]) -> Html:
    """Headings and rows, with room between the columns, which a panel's narrow place would close."""
    return html_table([[f"{cell}\N{EM SPACE}" for cell in row] for row in rows])


words = Words(__file__, told=told, epsilon=epsilon, digits=d, NEIGHBOURS=NEIGHBOURS)


def _delta(start: float) -> Control:
    """In three digits, with a stop of its own: slider, box, read-out and command say the same number."""
    rounded = float(f"{start:.3g}")
    return number("δ", rounded, sorted({*decades(-9, -2), rounded}), unit="probability", rare=True)


def _chosen(x: float | None, y: float) -> Trace:
    """A ring around the point that is looked at."""
    return fig.ring(22, x=positive([x]), y=[y], hoverinfo="skip")


# ---- Measured runs, and one more -----------------------------------------------------------------------------------


@panel("06")
class Explorer(Panel):
    """The measured runs under sliders; `result` is an `Explored`."""

    def __init__(self, grid: Grid, start: TrainConfig) -> None:
        self.live: list[Point] = []  # runs that were made here; `add` draws one more
        methods = {"SGD": "sgd", "as printed": "printed", "sound": "sound", "Poisson": "poisson"}
        tips = ["no noise", "Algorithm 1 of the paper, verbatim", "micro-batches of m; 1 is DP-SGD", "m = 1, sampled"]
        super().__init__(
            "Error against privacy",
            "All measured runs of one length; the ring marks the one that is nearest to your sliders.",
            lambda **values: compute.explore(grid, **values, live=self.live),
            [(draw_runs, "1 1 auto")],
            words.explored,
            lambda result, **_: run_command(result.point.config),
            tiles=tell_explored,
            idle=lambda _: IDLE[self.values["method"]],
            method=choice("method", "sound", methods, tooltips=tips),
            micro_batch=number("micro-batch size m", 8, [1, 2, 4, 8], unit="if sound"),
            z0=number("noise multiplier z0", start.z0, decades(-3, 0)),
            decay=decay_of(start.decay),
            epochs=number("epochs", start.epochs, range(1, 9), unit="passes"),
        )

    def add(self, point: Point) -> None:
        """Draw a run that was made here as a star."""
        self.live.append(point)
        self.set()


def tell_explored(result: Explored) -> tuple[Tile, Tile, str]:
    """Both epsilons of the nearest run, its error, and the run that does as well for less."""
    point, cheaper = result.point, result.cheaper
    had = [f"{name} = {one if isinstance(one, str) else short(one)}" for name, (_, one) in result.differs.items()]
    run = f"The nearest measured run ({', '.join(had)})" if had else "This run"
    says = f"{run} has SER {point.ser:.2f}"
    if point.epsilon is None:
        says += ", with which noise has to compete."
    elif cheaper is None:
        says += ". With so many errors it is of no use, whatever its ε."
    elif cheaper == point:
        says += ", and no other measured run does as well at a smaller ε."
    else:
        other = told(cheaper) + (" (not in this picture)" if cheaper not in result.others else "")
        says += f"; {other} does at least as well, at ε = {at_most(cheaper.epsilon)}."
    return *epsilons(point.guarantee), says


IDLE = {"sgd": ["micro_batch", "z0", "decay"], "printed": ["micro_batch"], "sound": [], "poisson": ["micro_batch"]}
FAMILIES = {
    "printed": ("as printed", PRINTED, "square", 10),
    "sound": ("sound, m = 2 to 8", HOLDS, "circle", 10),
    "dp": ("DP-SGD (m = 1)", PLAIN, "diamond", 11),
    "poisson": ("DP-SGD, Poisson", OTHER, "x", 10),
}


def draw_runs(result: Explored) -> Figure:
    """SER on the test set against epsilon, of all measured runs that are as long as the chosen one, which are bright
    where method and micro-batch are its."""

    def of(shown: Sequence[Point]) -> dict[str, Any]:
        text = [f"{told(p)}\nSER {p.ser:.3f}, ε {epsilon(p.epsilon)}, {d(p.seconds)} s" for p in shown]
        places = {"x": positive(p.epsilon for p in shown), "y": [p.ser for p in shown]}
        return {**places, "text": text, "hoverinfo": "text"}

    def family(method: str) -> Trace:
        own = [p for p in result.others if p.method == method]
        bright = [(p.method, p.micro_batch) == (result.point.method, result.point.micro_batch) for p in own]
        return points(
            *FAMILIES[method], edge=None, marker={"opacity": [1.0 if one else 0.4 for one in bright]}, **of(own)
        )

    level = [p.ser for p in result.others if p.method == "sgd"][:1]
    sgd = {"x": [1e-3, 1e12] if level else [], "y": level * 2, "hoverinfo": "skip"}
    shown = [point.epsilon for point in (*result.others, *result.path, *result.live)]
    lengths = ", ".join(map(str, sorted({point.config.epochs for point in result.live})))
    star = {"color": OTHER, "line": {"width": 2, "color": INK}}
    return figure(
        f"Runs of {count(result.point.config.epochs, 'epoch')}",
        line("SGD", PLAIN, "dash", width=1.5, **sgd),
        line("the ring's setting, 1 to 8 epochs", "#777", "dot", width=1, symbol="circle", size=5, **of(result.path)),
        *map(family, FAMILIES),
        points(f"trained below, epochs: {lengths}", INK, "star", 11, marker=star, **of(result.live)),
        _chosen(result.point.epsilon, result.point.ser),
        height=380,
        xaxis=log_axis("ε, smaller is more private (as printed: if α were public)", shown, margin=ROOM),
        yaxis=fig.axis("semantic error rate (SER)", [0, 1.08]),
    )


def run_command(config: TrainConfig) -> str:
    """The call of `edp-lab train` that makes this very run, into a folder that is named after the setting."""
    kind = compute.method_of(config)
    parts = [kind, f"m{config.largest_micro_batch}"] if kind == "sound" else [kind]
    if kind != "sgd":
        parts += [f"z{config.z0:g}", *([] if config.decay == "none" else [str(config.decay)])]
    return train_command(config, f"runs/{'-'.join(parts)}-{config.epochs}epochs-seed{config.seed}")


@panel("06")
class Live(RunPanel):
    """Trains just what the explorer's sliders say, with the notebook's corpus, C, N, tau and seed."""

    def __init__(self, base: TrainConfig, explorer: Explorer) -> None:
        self._base, self._explorer = base, explorer
        self.points: list[Point] = []  # of the runs that were made; the explorer shows them as stars
        super().__init__(
            "Train one more",
            "Run trains the setting of the sliders above in a few seconds and adds a star to the picture.",
        )

    def prepare(self) -> TrainConfig:
        return compute.configured(self._base, **self._explorer.values)

    def work(self, config: TrainConfig) -> None:
        self.words.value, self.command.value = "", run_command(config)
        with tempfile.TemporaryDirectory(prefix="edp-lab-") as folder:
            record = training.train(config, Path(folder) / "run", self.progress_of, self.stop_event)
        if not record["epochs"]:
            self.words.value = "Stopped before the first epoch was over: there is nothing to draw."
            return
        self.points.append(point := compute.live_point(config, record))
        self._explorer.add(point)
        stopped = ", stopped early," if record["status"] == "interrupted" else ""
        says = f"Run {len(self.points)}{stopped} has SER {point.ser:.2f} after {short(point.seconds)} s: {told(point)}."
        self.tiles.show(*epsilons(point.guarantee), says)
        self.words.value = words.live(point)


# ---- The ladder ----------------------------------------------------------------------------------------------------


@panel("06")
def ladder(start: TrainConfig, delta: float) -> Panel:
    """What a micro-batch size costs; `result` is a `Ladder`."""
    neighbours = {"zero-out": "REPLACE_SPECIAL", "replace-one": "REPLACE_ONE"}
    sizes = [1, 2, 4, 8, 16, 32, 64]
    return Panel(
        "The ladder",
        "The noise that reaches the model and ε for micro-batches of all sizes.",
        partial(compute.ladder, clip_norm=start.clip_norm),
        [draw_noise, draw_ladder],
        lambda result: words.ladder(result, rungs_table(result)),
        ladder_command,
        tiles=tell_ladder,
        micro_batch=number("micro-batch size m", start.largest_micro_batch, sizes, unit="sentences"),
        num_devices=devices(start.num_devices),
        batch_size=number("batch size", start.batch_size, [16, 32, 64, 128, 256, 512], unit="sentences"),
        z=number("noise multiplier z", start.z0, decades(-3, 1), unit="noise over sensitivity"),
        adjacency=choice("neighbours", str(Adjacency.ZERO_OUT), neighbours),
        epochs=number("epochs", start.epochs, range(1, 41), unit="passes", rare=True),
        delta=_delta(delta),
    )


def tell_ladder(result: Ladder) -> tuple[Tile, Tile, str]:
    """Epsilon of the chosen rung, and of the bottom one with as much noise on the mean."""
    chosen, single = result.chosen, result.rungs[0]
    here = holds(epsilon(chosen.epsilon), "ε at this z", f"chosen, m = {chosen.micro_batch}")
    bottom = holds(epsilon(single.equal_epsilon), "ε with as much noise on the mean", "bottom rung, m = 1")
    if not single.noise:
        return here, bottom, "Without noise no rung has a guarantee."
    if chosen.micro_batch == 1:
        return here, bottom, "m = 1 is the bottom rung, where each sentence is clipped alone (DP-SGD)."
    price = "the same ε" if chosen.epsilon == single.epsilon else "a smaller ε"
    times = f"At the same z, m = {chosen.micro_batch} puts {short(chosen.noise / single.noise)} times as much noise"
    return here, bottom, f"{times} on the mean as m = 1, for {price}."


def draw_noise(result: Ladder) -> Figure:
    """Noise on the mean gradient by micro-batch size, at the same z."""
    noise, hover = [rung.noise for rung in result.rungs], "%{y:.3g}" + fig.ALONE
    return _draw_rungs(
        "Noise on the mean, at the same z",
        result,
        line("sound", HOLDS, symbol="circle", size=9, x=_sizes(result), y=noise, hover="m = %{x}: " + hover),
        _printed(result, result.printed_noise, hover),
        _chosen(result.chosen.micro_batch, result.chosen.noise),
        yaxis=log_axis("noise per weight", [*noise, result.printed_noise], margin=ROOM),
    )


def draw_ladder(result: Ladder) -> Figure:
    """Epsilon by micro-batch size: at the same z, and at the chosen rung's noise on the mean."""
    hover = "ε ≈ %{y:.3g}" + fig.ALONE
    on: dict[str, Any] = {"x": _sizes(result), "hover": "m = %{x}: " + hover}
    same, equal = (positive(getattr(r, name) for r in result.rungs) for name in ("epsilon", "equal_epsilon"))
    held, claims = positive([result.printed.epsilon, result.printed.epsilon_claimed])
    return _draw_rungs(
        f"ε after {count(result.config.epochs, 'epoch')}",
        result,
        line("same z", HOLDS, "dash", symbol="diamond", size=9, y=same, **on),
        line("same noise", PLAIN, width=3, symbol="circle", size=9, y=equal, **on),
        _printed(result, held, hover),
        _printed(result, claims, hover, "claimed", CLAIMED, "square-x-open"),
        _chosen(result.chosen.micro_batch, result.chosen.epsilon or math.nan),
        yaxis=log_axis("ε", [*same, *equal, held, claims], margin=ROOM),
    )


def _printed(
    result: Ladder, y: Any, hover: str, name: str = "as printed", color: str = PRINTED, symbol: str = "square-open"
) -> Trace:
    """A point of Algorithm 1 as printed, whose micro-batches are the largest."""
    return points(name, color, symbol, 12, edge=2, x=_sizes(result)[-1:], y=[y], hover=hover)


def _sizes(result: Ladder) -> list[int]:
    return [rung.micro_batch for rung in result.rungs]


def _draw_rungs(title: str, result: Ladder, *marks: Trace, yaxis: dict[str, Any]) -> Figure:
    span = [-0.15, math.log10(_sizes(result)[-1]) + 0.15]
    xaxis = fig.axis("micro-batch size m", span, type="log", tickvals=_sizes(result))
    return figure(title, *marks, height=380, xaxis=xaxis, yaxis=yaxis)


def rungs_table(result: Ladder) -> Html:
    """What each rung adds and costs."""
    rows = [
        (str(r.micro_batch), d(r.sensitivity), d(r.noise), epsilon(r.epsilon), epsilon(r.equal_epsilon))
        for r in result.rungs
    ]
    return table(("m", "moves the sum by", "noise on the mean", "ε at this z", "ε at this noise"), *rows)


def ladder_command(result: Ladder, **_: Any) -> str:
    """The calls of `edp-lab account` for the chosen rung, and for m = 1 with as much noise on the mean."""
    c, rungs = result.config, {rung.micro_batch: rung.equal_z for rung in (result.chosen, result.rungs[0])}
    run = {"epochs": c.epochs, "delta": result.printed.delta, "adjacency": result.adjacency.name.lower()}
    of = [{"clip": c.clip_norm, "z0": z, "gpus": c.num_devices, "micro-batch-size": m} for m, z in rungs.items()]
    return "\n".join(account_command(mechanism | run) for mechanism in of)


# ---- Decay ---------------------------------------------------------------------------------------------------------

DECAYS: dict[Decay, tuple[str, str, str]] = {
    Decay.NONE: (PLAIN, "solid", "circle"),
    Decay.LINEAR: (NOISE, "dash", "diamond"),
    Decay.EXPONENTIAL: (OTHER, "dot", "x"),
}


def decay_figure(decays: Sequence[Decayed], grid: Grid, epochs: int, delta: float) -> fig.Still:
    """Left: what each decay costs at the same z0. Right: what it bought, measured, against what it cost."""
    traces: list[Trace] = []
    for decayed in decays:
        name, (color, dash, symbol) = str(decayed.decay), DECAYS[decayed.decay]
        curve = partial(line, name, color, dash, symbol=symbol, size=9, legendgroup=name)
        own = [p for p in grid.after(epochs) if p.method == "dp" and p.config.decay == name]
        own.sort(key=lambda p: p.epsilon or 0.0)
        bought = {"x": [p.epsilon for p in own], "y": [p.ser for p in own], "text": [told(p) for p in own]}
        cost = {"x": list(range(1, len(decayed.epsilon) + 1)), "y": decayed.epsilon}
        hover = "%{text}\nSER %{y:.3f}, ε ≈ %{x:.3g}" + fig.ALONE
        traces += [
            curve(**cost, hover=f"{name}: %{{x}} epochs, ε %{{y:.3g}}" + fig.ALONE, **fig.at(1)),
            curve(**bought, hover=hover, showlegend=False, **fig.at(2)),
        ]
    left = fig.axis("epochs trained"), fig.axis("ε", **ROUND)
    right = fig.logs("ε"), fig.axis("SER on the test set", [0, 1.05])
    caption = (
        f"δ = {d(delta)}, Gaussian DP, one sentence zeroed out, disjoint batches;\nleft: all from z0 = "
        f"{decays[0].z0:g}; right: DP-SGD, measured, {epochs} epochs, seed 0 (published, so these ε are void)"
    )
    layout = fig.plots(1, 2, axes=[left, right], horizontal_spacing=0.13)
    return fig.still("What decay costs, and what it buys", *traces, caption=caption, height=440, top=150, **layout)


# ---- Tables of runs ------------------------------------------------------------------------------------------------


def points_table(runs: Sequence[Point]) -> Html:
    """Runs side by side."""
    rows = [
        (told(r), f"{r.ser:.3f}", epsilon(r.epsilon), epsilon(r.guarantee.epsilon_claimed, d), f"{r.seconds:.1f}")
        for r in runs
    ]
    return table(("", "SER", "ε that would hold", "ε claimed", "seconds"), *rows)


def seeds_table(grid: Grid, runs: Sequence[Point]) -> Html:
    """SER of the same setting with other seeds, which also deal other splits."""
    found = {told(run): [other.ser for other in grid.seeds(run)] for run in runs}
    rows = [(name, ", ".join(f"{s:.3f}" for s in sers), f"{max(sers) - min(sers):.3f}") for name, sers in found.items()]
    return table(("", "SER with seed 0, 1, 2", "from best to worst"), *rows)


def pace_table(grid: Grid) -> Html:
    """Seconds of an epoch, the fastest first."""
    seconds = {}
    for run in grid.points:
        size = f", m = {run.micro_batch}" if run.method in ("sound", "printed") else ""
        seconds[METHODS[run.method] + size] = run.seconds / run.config.epochs
    lines = [(name, f"{each:.2f}", f"{each / seconds[METHODS['sgd']]:.1f}") for name, each in seconds.items()]
    return table(("", "seconds for an epoch", "times SGD"), *sorted(lines, key=lambda row: float(row[1])))


# ---- Utility, privacy and time: data/results/pareto.json -------------------------------------------------------------

PARETO_LOOKS = (
    (PLAIN, "solid", "circle"),
    (OTHER, "dash", "square"),
    (NOISE, "dot", "diamond"),
    (INK, "dashdot", "triangle-up"),
    ("#777", "longdash", "x"),
)
LEVELS = {  # without privacy: what it is called, and its dash
    "SGD": ("SGD", "dot"),
    "SGD, the private model": ("SGD, same network as the private runs", "dashdot"),
}
PARETO_CAPTION = Html(
    "ε of one sentence at δ = n<sup>-1.1</sup>, if the seeds were secret. Poisson sampling: privacy loss\n"
    "distributions, add or remove one; shuffled: Gaussian DP, zero-out, without what sampling hides.\n"
    "Bars: 95 % over seeds. x0.73: took 0.73 times as long as SGD with the paper's network and batches\n"
    "of 64 (the private CLC is smaller than the paper's, so it can be faster)"
)


def pareto_points() -> list[dict[str, Any]]:
    """Rows of data/results/pareto.json. UsageError: as `rows`."""
    return rows(RESULTS / "pareto.json", "python data/results/studies.py pareto")


def pareto_figure(measured: Sequence[Mapping[str, Any]]) -> fig.Still:
    """Error by epsilon, a picture for each model and corpus, a line a method; errors without privacy are levels."""
    pictures: dict[str, list[Mapping[str, Any]]] = {}
    for one in measured:
        pictures.setdefault(f"{one['model'].upper()} on {one['corpus']}", []).append(one)
    columns = min(2, len(pictures))
    lines = -(-len(pictures) // columns)
    order = sorted({_rounded(one) for one in measured if one["epsilon"]}, key=float)
    names = {"type": "category", "categoryorder": "array", "categoryarray": order}
    x = fig.axis("ε that holds (no unit)", [-0.5, len(order) - 0.5], **names)
    y = fig.axis("SER on the test split (%)", rangemode="tozero")
    room = {"vertical_spacing": 0.32 / lines, "horizontal_spacing": 0.1}
    layout = fig.plots(lines, columns, list(pictures), [(x, y)] * (lines * columns), **room)
    looks: dict[str, tuple[str, str, str]] = {}
    marks = []
    for plot, own in enumerate(pictures.values(), 1):
        at = fig.at(plot)
        for method in dict.fromkeys(one["method"] for one in own if one["epsilon"]):
            curve = sorted((one for one in own if one["method"] == method), key=lambda one: one["epsilon"] or 0)
            first = method not in looks
            look = looks.setdefault(method, PARETO_LOOKS[len(looks) % len(PARETO_LOOKS)])
            marks.append({**_pareto_line(method, curve, *look), **at, "showlegend": first})
        plain = sorted((one for one in own if one["epsilon"] is None), key=lambda one: one["ser"]["mean"])
        for level, anchor in zip(plain, ("top", "bottom"), strict=False):
            name, dash = LEVELS[level["method"]]
            error, text = level["ser"]["mean"], f"{name}, x{level['time_ratio']:.2g}"
            place = {"x": 0, "xanchor": "left", "xref": f"{at['xaxis']} domain", "y": error, "yanchor": anchor}
            marks.append(fig.hline(error, at["yaxis"], line={"dash": dash, "width": 1.5}))
            marks.append(fig.note(text, yref=at["yaxis"], **place))
    layout |= {"template": theme.TEMPLATE, "legend": {"y": 1 + 0.12 / lines, "yanchor": "bottom"}}
    height = 360 * lines + 170
    return fig.still("Utility, privacy, time", *marks, caption=PARETO_CAPTION, height=height, top=170, **layout)


def _pareto_line(method: str, own: Sequence[Mapping[str, Any]], color: str, dash: str, symbol: str) -> Trace:
    errors, times = [one["ser"] for one in own], [f"x{one['time_ratio']:.2g}" for one in own]
    half = [0 if error["high"] is None else error["high"] - error["mean"] for error in errors]
    places = {"x": [_rounded(one) for one in own], "y": [error["mean"] for error in errors], "error_y": {"array": half}}
    text = {"mode": "lines+markers+text", "text": times, "textposition": "top right"}
    return line(method, color, dash, symbol=symbol, size=9, legendgroup=method, **places, **text)


def _rounded(one: Mapping[str, Any]) -> str:
    """Up: a target is met with a little to spare."""
    return upward(one["epsilon"], 2)
