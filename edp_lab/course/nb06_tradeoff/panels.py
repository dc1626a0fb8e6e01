"""The panels of ``06_train_and_trade_off.ipynb``: measured runs with the reader's, the ladder; tables of runs."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from edp_lab import training
from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import choice, decades, decay_of, devices, number
from edp_lab.course.kit.figure import Figure, Trace, figure, line, log_axis, points, positive
from edp_lab.course.kit.panel import Panel, Runs, Tile, epsilons, holds, panel
from edp_lab.course.kit.private import Private as Private
from edp_lab.course.kit.text import Html, Words, account_of, at_most, count, html_table, short, train_command
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import HOLDS, INK, NOISE, OTHER, PLAIN, PRINTED
from edp_lab.course.nb06_tradeoff import compute
from edp_lab.course.nb06_tradeoff.compute import METHODS, Explored, Grid, Ladder, Point
from edp_lab.privacy import Adjacency
from edp_lab.training import TrainConfig

NEIGHBOURS = {Adjacency.ZERO_OUT: "one sentence zeroed out", Adjacency.REPLACE_ONE: "one sentence replaced"}
ROOM = 0.05  # decades beyond the values on a log axis


def setting(point: Point) -> str:
    """The setting of a run, in short."""
    config = point.config
    epochs = count(config.epochs, "epoch")
    if point.method == "sgd":
        return f"SGD, {epochs}"
    size = f", m = {point.micro_batch}" if point.method == "sound" else ""
    decay = "" if config.decay == "none" else f", {config.decay} decay τ = {config.tau:g}"
    return f"{METHODS[point.method]}{size}, z0 = {config.z0:g}{decay}, {epochs}"


def epsilon(value: float | None) -> str:
    """A guaranteed epsilon, rounded up."""
    return "none" if value is None else at_most(value)


def table(*rows: Sequence[str]) -> Html:
    """Headings and rows, with room between the columns, which a panel's narrow place would close."""
    return html_table([[f"{cell}\N{EM SPACE}" for cell in row] for row in rows])


words = Words(__file__, epsilon=epsilon, NEIGHBOURS=NEIGHBOURS)


# ---- Measured runs, and the reader's -------------------------------------------------------------------------------


@panel("06")
class Explorer(Panel, Runs):
    """The measured runs under sliders; Run trains what the sliders say, with the notebook's corpus, C, N, tau and seed.

    Attributes:
        result: an `Explored`.
        live: the runs that were made here.
    """

    def __init__(self, grid: Grid, base: TrainConfig) -> None:
        self._base = base
        self.live: list[Point] = []
        methods = {"SGD": "sgd", "as printed": "printed", "sound": "sound", "Poisson": "poisson"}
        tips = ["no noise", "Algorithm 1 of the paper, verbatim", "micro-batches of m; 1 is DP-SGD", "m = 1, sampled"]
        super().__init__(
            "Error against privacy",
            "All runs of one length; the ring marks the one nearest to your sliders. Run trains one more.",
            lambda **values: compute.explore(grid, **values, live=self.live),
            [(draw_runs, "1 1 auto")],
            lambda result: words.run(result.point),
            lambda result, **_: train_command(result.point.config),
            tiles=tell_explored,
            idle=lambda _: IDLE.get(self.values["method"], ()),
            method=choice("method", "sound", methods, tooltips=tips),
            micro_batch=number("micro-batch size m", 8, [1, 2, 4, 8], unit="if sound"),
            z0=number("noise multiplier z0", base.z0, decades(-3, 0)),
            decay=decay_of(base.decay),
            epochs=number("epochs", base.epochs, range(1, 9), unit="passes"),
        )

    def prepare(self) -> TrainConfig:
        return compute.configured(self._base, **self.values)

    def work(self, config: TrainConfig) -> None:
        with tempfile.TemporaryDirectory(prefix="edp-lab-") as folder:
            record = training.train(config, Path(folder) / "run", self.progress_of, self.stop_event)
        if record["epochs"]:
            self.live.append(compute.live_point(config, record))
            self.set()


IDLE = {"sgd": ["micro_batch", "z0", "decay"], "printed": ["micro_batch"], "poisson": ["micro_batch"]}


def tell_explored(result: Explored) -> tuple[Tile, Tile, str]:
    """Both epsilons of the nearest run, its error, and the run that does as well for less."""
    point, cheaper = result.point, result.cheaper
    differs = [f"{name} = {own if isinstance(own, str) else short(own)}" for name, own in result.differs.items()]
    whose = "Your run" if point in result.live else "The nearest measured run" if differs else "This run"
    had = f" ({', '.join(differs)})" if differs else ""
    says = f"{whose}{had} has SER {point.ser:.2f}"
    if point.epsilon is None:
        says += ", with which noise has to compete."
    elif point.ser > compute.USELESS:
        says += ". With so many errors it is of no use, whatever its ε."
    elif cheaper == point:
        says += ", and no other run does as well at a smaller ε."
    else:
        hidden = "" if cheaper in (*result.others, *result.live) else " (not in this picture)"
        says += f"; {setting(cheaper)}{hidden} does at least as well, at ε = {at_most(cheaper.epsilon)}."
    return *epsilons(point.guarantee), says


FAMILIES = {
    "printed": ("as printed", PRINTED, "square", 10),
    "sound": ("sound, m = 2 to 8", HOLDS, "circle", 10),
    "dp": ("DP-SGD (m = 1)", PLAIN, "diamond", 11),
    "poisson": ("DP-SGD, Poisson", OTHER, "x", 10),
}


def _places(shown: Sequence[Point]) -> dict[str, Any]:
    text = [f"{setting(p)}\nSER {p.ser:.3f}, ε {epsilon(p.epsilon)}, {d(p.seconds)} s" for p in shown]
    return {"x": positive(p.epsilon for p in shown), "y": [p.ser for p in shown], "text": text, "hoverinfo": "text"}


def draw_runs(result: Explored) -> Figure:
    """SER against epsilon of all runs as long as the chosen one; bright if method and micro-batch size are its."""
    families = []
    for method, look in FAMILIES.items():
        own = [p for p in result.others if p.method == method]
        bright = [(p.method, p.micro_batch) == (result.point.method, result.point.micro_batch) for p in own]
        marker = {"opacity": [1.0 if one else 0.4 for one in bright]}
        families.append(points(*look, edge=None, marker=marker, **_places(own)))
    level = [p.ser for p in result.others if p.method == "sgd"][:1]
    shown = [p.epsilon for p in (*result.others, *result.live)]
    star = {"color": OTHER, "line": {"width": 2, "color": INK}}
    return figure(
        f"Runs of {count(result.point.config.epochs, 'epoch')}",
        line("SGD", PLAIN, "dash", width=1.5, x=[1e-3, 1e12] if level else [], y=level * 2, hoverinfo="skip"),
        *families,
        points("yours", INK, "star", 11, marker=star, **_places(result.live)),
        fig.ring(22, x=positive([result.point.epsilon]), y=[result.point.ser], hoverinfo="skip"),
        height=380,
        xaxis=log_axis("ε, smaller is more private (as printed: if α were public)", shown, margin=ROOM),
        yaxis=fig.axis("semantic error rate (SER)", [0, 1.08]),
    )


# ---- The ladder ----------------------------------------------------------------------------------------------------


@panel("06")
def ladder(start: TrainConfig, delta: float) -> Panel:
    """What a micro-batch size costs; `result` is a `Ladder`."""
    neighbours = {"zero-out": "REPLACE_SPECIAL", "replace-one": "REPLACE_ONE"}
    sizes = [1, 2, 4, 8, 16, 32, 64]
    return Panel(
        "The ladder",
        "The noise that reaches the model and ε for micro-batches of all sizes.",
        partial(compute.ladder, clip_norm=start.clip_norm, delta=delta),
        [draw_noise, draw_ladder],
        lambda result: words.ladder(result, rungs_table(result)),
        ladder_command,
        tiles=tell_ladder,
        micro_batch=number("micro-batch size m", start.largest_micro_batch, sizes, unit="sentences"),
        num_devices=devices(start.num_devices),
        batch_size=number("batch size", start.batch_size, [16, 32, 64, 128, 256, 512], unit="sentences"),
        z=number("noise multiplier z", start.z0, decades(-3, 1), unit="noise over sensitivity"),
        adjacency=choice("neighbours", str(Adjacency.ZERO_OUT), neighbours),
        epochs=number("epochs", start.epochs, range(1, 41), unit="passes"),
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
    noise = [rung.noise for rung in result.rungs]
    return _draw_rungs(
        "Noise on the mean, at the same z",
        result,
        line("sound", HOLDS, symbol="circle", size=9, x=_sizes(result), y=noise),
        fig.ring(22, x=[result.chosen.micro_batch], y=[result.chosen.noise], hoverinfo="skip"),
        yaxis=log_axis("noise per weight", noise, margin=ROOM),
    )


def draw_ladder(result: Ladder) -> Figure:
    """Epsilon by micro-batch size: at the same z, and at the chosen rung's noise on the mean."""
    same, equal = (positive(getattr(r, name) for r in result.rungs) for name in ("epsilon", "equal_epsilon"))
    return _draw_rungs(
        f"ε after {count(result.epochs, 'epoch')}",
        result,
        line("same z", HOLDS, "dash", symbol="diamond", size=9, x=_sizes(result), y=same),
        line("same noise", PLAIN, width=3, symbol="circle", size=9, x=_sizes(result), y=equal),
        fig.ring(22, x=[result.chosen.micro_batch], y=positive([result.chosen.epsilon]), hoverinfo="skip"),
        yaxis=log_axis("ε", [*same, *equal], margin=ROOM),
    )


def _sizes(result: Ladder) -> list[int]:
    return [rung.micro_batch for rung in result.rungs]


def _draw_rungs(title: str, result: Ladder, *marks: Trace, yaxis: dict[str, Any]) -> Figure:
    span = [-0.15, math.log10(_sizes(result)[-1]) + 0.15]
    xaxis = fig.axis("micro-batch size m", span, type="log", tickvals=_sizes(result))
    return figure(title, *marks, height=380, hover="m = %{x}: %{y:.3g}", xaxis=xaxis, yaxis=yaxis)


def rungs_table(result: Ladder) -> Html:
    """What each rung adds and costs."""
    rows = [
        (str(r.micro_batch), d(r.sensitivity), d(r.noise), epsilon(r.epsilon), epsilon(r.equal_epsilon))
        for r in result.rungs
    ]
    return table(("m", "moves the sum by", "noise on the mean", "ε at this z", "ε at this noise"), *rows)


def ladder_command(result: Ladder, **_: Any) -> str:
    """The call of `edp-lab account` for the chosen rung."""
    neighbours = result.adjacency.name.lower()
    return account_of(result.mechanism, epochs=result.epochs, delta=result.delta, adjacency=neighbours)


# ---- Drawn once ----------------------------------------------------------------------------------------------------

DECAYS = {"none": (PLAIN, "solid", "circle"), "linear": (NOISE, "dash", "diamond"), "exponential": (OTHER, "dot", "x")}


def decay_figure(grid: Grid, epochs: int) -> fig.Still:
    """SER against epsilon of DP-SGD by decay, as measured."""
    curves = []
    for decay, (color, dash, symbol) in DECAYS.items():
        own = [p for p in grid.after(epochs) if p.method == "dp" and p.config.decay == decay]
        own.sort(key=lambda p: p.epsilon or 0.0)
        curves.append(line(decay, color, dash, symbol=symbol, size=9, **_places(own)))
    axes = {"xaxis": fig.logs("ε, if the seed were secret"), "yaxis": fig.axis("SER on the test set", [0, 1.05])}
    return fig.still(f"DP-SGD by decay, {epochs} epochs", *curves, height=380, **axes)


def points_table(runs: Sequence[Point]) -> Html:
    """Runs side by side."""
    heading = ("", "SER", "guaranteed ε, if seed secret and α public", "claimed ε", "seconds")
    rows = [
        (setting(r), f"{r.ser:.3f}", epsilon(r.epsilon), _claimed(r.guarantee.epsilon_claimed), f"{r.seconds:.1f}")
        for r in runs
    ]
    return table(heading, *rows)


def _claimed(value: float | None) -> str:
    return "none" if value is None else d(value)


def seeds_table(grid: Grid, runs: Sequence[Point]) -> Html:
    """SER of the same setting with other seeds, which also split the corpus differently."""
    sers = {setting(run): [other.ser for other in grid.seeds(run)] for run in runs}
    rows = [(name, ", ".join(f"{s:.3f}" for s in own), f"{max(own) - min(own):.3f}") for name, own in sers.items()]
    return table(("", "SER with seed 0, 1, 2", "from best to worst"), *rows)


def pace_table(grid: Grid) -> Html:
    """Seconds of an epoch, the fastest first."""
    seconds = {}
    for run in grid.points:
        size = f", m = {run.micro_batch}" if run.method in ("sound", "printed") else ""
        seconds[METHODS[run.method] + size] = run.seconds / run.config.epochs
    rows = [(name, f"{each:.2f}", f"{each / seconds['SGD']:.1f}") for name, each in seconds.items()]
    return table(("", "seconds for an epoch", "times SGD"), *sorted(rows, key=lambda row: float(row[1])))


def large_runs_table(rows: Sequence[Mapping[str, Any]]) -> Html:
    """Errors by corpus and method, for the rows of data/results/pareto.json."""
    errors: dict[str, dict[str, str]] = {}
    for row in rows:
        epsilon = "" if row["epsilon"] is None else f", ε = {math.ceil(row['epsilon'])}"
        own = errors.setdefault(f"{row['model'].upper()} on {row['corpus']}", {})
        own[row["method"] + epsilon] = f"{row['ser']['mean']:.1f}"
    methods = list(dict.fromkeys(method for own in errors.values() for method in own))
    lines = [(where, *(own.get(method, "") for method in methods)) for where, own in errors.items()]
    return table(("SER in percent", *methods), *lines)
