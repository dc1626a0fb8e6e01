"""Panel of ``07_train_privately.ipynb``: measured runs, the reader's runs, and tables of both.

    grid = load_grid()                       # the runs that ship with the course
    shown = explore(grid, "sound", micro_batch=8, z0=0.01, decay="none", epochs=8)

The library computes every epsilon, and ``data/results/course.py`` measured the runs. Invalid values raise `UsageError`,
and so does a missing or damaged file.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import choice, decades, decay_of, number, require
from edp_lab.course.kit.figure import Figure, figure, line, log_axis, points, positive
from edp_lab.course.kit.panel import Panel, panel
from edp_lab.course.kit.runs import Runs
from edp_lab.course.kit.text import Html, Tile, Words, at_most, count, epsilons, html_table, plain, short, train_command
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import HOLDS, INK, OTHER, PLAIN, PRINTED
from edp_lab.errors import UsageError
from edp_lab.jobs import RESULTS, read_kept
from edp_lab.privacy import Guarantee, judge
from edp_lab.training.config import TrainConfig

BASE = TrainConfig("smart-home", size="small", lr_schedule="constant", epochs=8, tau=0.2)
SCORES = ("ser", "intent_accuracy", "slot_f1")
USELESS = 0.9  # SER of a useless run: nearly one error per slot or intent

METHODS = {
    "sgd": "SGD",
    "printed": "eDP-SGD as printed",
    "sound": "eDP-SGD, sound",
    "dp": "DP-SGD, disjoint batches",
    "poisson": "DP-SGD, Poisson sampling",
    "naive": "DP-SGD, one pass per sentence",
}
ROOM = 0.05  # margin of a log axis, in decades


# ---- Runs and points -----------------------------------------------------------------------------------------------


def method_of(config: TrainConfig) -> str:
    """Return the method of a run, a key of `METHODS`."""
    dp, edp = "poisson" if config.poisson else "dp", "printed" if config.as_printed else "sound"
    return {"sgd": "sgd", "edp-sgd": edp, "dp-sgd": dp}.get(config.method, "naive")


@dataclass(frozen=True)
class Point:
    """Results of one run of `config.epochs` epochs.

    In the grid, the training time was measured on one processor, once for each method and micro-batch size. For the
    reader's runs it is wall-clock time.
    """

    config: TrainConfig
    utterances: int  # size of the training set, n
    ser: float  # on the test set, like the next two scores
    intent_accuracy: float
    slot_f1: float
    seconds: float  # training time

    @cached_property
    def method(self) -> str:
        return method_of(self.config)

    @property
    def micro_batch(self) -> int:
        return self.config.largest_micro_batch

    @cached_property
    def guarantee(self) -> Guarantee:
        """Guarantee of this run with its published seed, at the configured delta (default n^-1.1)."""
        delta = self.config.delta or self.utterances**-1.1
        return judge(self.config.mechanism(self.utterances), self.config.epochs, delta)

    @property
    def epsilon(self) -> float | None:
        """Epsilon if the seed were secret and alpha public; None without noise."""
        return self.guarantee.epsilon_if_alpha_public


class Grid(NamedTuple):
    """Measured points, with the "command", "machine" and "versions" of the measurement."""

    points: tuple[Point, ...]
    about: Mapping[str, Any]

    def after(self, epochs: int) -> list[Point]:
        """The points of the first seed after this number of epochs."""
        return [p for p in self.points if (p.config.epochs, p.config.seed) == (epochs, BASE.seed)]


def configured(base: TrainConfig, method: str, micro_batch: int, z0: float, decay: str, epochs: int) -> TrainConfig:
    """Configure a run of `method`: "sgd", "printed", "sound" or "poisson". Other settings are those of `base`.

    Sound eDP-SGD with micro-batches of 1 is per-example DP-SGD.
    """
    single = {"method": "dp-sgd", "sampling": "shuffle"}
    if method == "sgd":
        return plain(base, epochs)
    kinds: dict[str, dict[str, Any]] = {
        "printed": {"as_printed": True},
        "sound": single if micro_batch == 1 else {"micro_batch_size": micro_batch},
        "poisson": {"method": "dp-sgd"},
    }
    require(method in kinds, f"unknown method {method!r}: choose sgd, printed, sound or poisson")
    return replace(base, z0=z0, decay=decay, epochs=epochs, **kinds[method])


def live_point(config: TrainConfig, record: Mapping[str, Any]) -> Point:
    """Convert the record of a run of `edp_lab.training.train` to a point."""
    scores = {name: record["final"][name] for name in (*SCORES, "seconds")}
    done = replace(config, epochs=len(record["epochs"]))
    return Point(done, record["corpus"]["splits"]["train"], **scores)


def load_grid(path: Path = RESULTS / "tradeoff.json") -> Grid:
    """Load measured points from a file written by ``data/results/course.py``."""
    kept = read_kept(path, "runs", "seconds_per_epoch")
    try:
        points = []
        for run in kept["runs"]:
            whole = TrainConfig(**run["config"])
            pace = kept["seconds_per_epoch"].get(work(whole), math.nan)
            for row in run["scores"]:
                config, scores = replace(whole, epochs=row["epoch"]), {name: row[name] for name in SCORES}
                points.append(Point(config, run["utterances"], **scores, seconds=pace * row["epoch"]))
        return Grid(tuple(points), {name: kept[name] for name in ("command", "machine", "versions")})
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path} is damaged or of another version: restore it from the repository") from error


def work(config: TrainConfig) -> str:
    """Key of the seconds per epoch: method and micro-batch size."""
    return f"{method_of(config)}, m = {config.largest_micro_batch}"


def setting(point: Point) -> str:
    """Short description of a run's setting."""
    config = point.config
    epochs = count(config.epochs, "epoch")
    if point.method == "sgd":
        return f"SGD, {epochs}"
    size = f", m = {point.micro_batch}" if point.method == "sound" else ""
    decay = "" if config.decay == "none" else f", {config.decay} decay τ = {config.tau:g}"
    return f"{METHODS[point.method]}{size}, z0 = {config.z0:g}{decay}, {epochs}"


def epsilon(value: float | None, written: Callable[[float], str] = at_most) -> str:
    """Format an epsilon, by default rounded up; None becomes "none"."""
    return "none" if value is None else written(value)


def table(*rows: Sequence[str]) -> Html:
    """HTML table with wide gaps between the columns; the first row contains the headings."""
    return html_table([[f"{cell}\N{EM SPACE}" for cell in row] for row in rows])


def points_table(runs: Sequence[Point]) -> Html:
    """HTML table of runs, one per row."""
    heading = ("", "SER", "guaranteed ε if the seed were secret and α public", "claimed ε", "seconds")
    rows = [
        (setting(r), f"{r.ser:.3f}", epsilon(r.epsilon), epsilon(r.guarantee.claimed_epsilon, d), f"{r.seconds:.1f}")
        for r in runs
    ]
    return table(heading, *rows)


words = Words(__file__, epsilon=epsilon)


# ---- The nearest measured run, and the reader's ---------------------------------------------------------------------


class Explored(NamedTuple):
    """The measured run nearest to a setting, and the runs to compare it with."""

    point: Point
    differs: dict[str, Any]  # settings in which the point differs from the request
    others: tuple[Point, ...]  # all measured points after the same number of epochs
    live: tuple[Point, ...]  # the reader's runs of the same number of epochs; `point` is in `others` or `live`
    cheaper: Point  # smallest epsilon among runs with at most this SER on this corpus; may be `point`


def explore(
    grid: Grid, method: str, micro_batch: int, z0: float, decay: str, epochs: int, live: Sequence[Point] = ()
) -> Explored:
    """Find the run of this method that is nearest in micro-batch size, decay, z0 and epochs; newer runs win ties."""
    noised = method == "sgd" or 0 < z0 < math.inf
    require(noised, f"z0 is {z0}: the measured runs have noise, so enter a number above 0")
    asked = configured(BASE, method, micro_batch, z0, decay, epochs)
    methods = ("sound", "dp") if method == "sound" else (method,)
    every = (*reversed(live), *(p for p in grid.points if p.config.seed == BASE.seed))

    def distance(p: Point) -> tuple[float, ...]:
        size = 0.0 if method != "sound" else abs(math.log(p.micro_batch / micro_batch))
        noise = 0.0 if method == "sgd" else round(abs(math.log(p.config.z0 / z0)), 6)
        return size, p.config.decay != asked.decay, noise, abs(math.log(p.config.epochs / epochs))

    point = min((p for p in every if p.method in methods), key=distance)
    names = {"m": "largest_micro_batch", "z0": "z0", "decay": "decay", "epochs": "epochs"}
    pairs = {name: (getattr(asked, of), getattr(point.config, of)) for name, of in names.items()}
    good = [p for p in (*live, *grid.points) if p.ser <= point.ser and p.config.corpus == point.config.corpus]
    return Explored(
        point,
        differs={name: actual for name, (wanted, actual) in pairs.items() if wanted != actual},
        others=tuple(grid.after(point.config.epochs)),
        live=tuple(p for p in live if p.config.epochs == point.config.epochs),
        cheaper=min((point, *good), key=lambda p: p.epsilon or math.inf),
    )


@panel("07")
class Explorer(Panel, Runs):
    """Panel of measured runs; Run trains the chosen setting with the notebook's corpus, C, N, tau and seed.

    Attributes:
        result: an `Explored`.
        live: the reader's runs, oldest first.
    """

    def __init__(self, grid: Grid, base: TrainConfig) -> None:
        self._base = base
        self.live: list[Point] = []
        methods = {"SGD": "sgd", "as printed": "printed", "sound": "sound", "Poisson": "poisson"}
        tips = ["no noise", "Algorithm 1 of the paper, verbatim", "micro-batches of m; 1 is DP-SGD", "Poisson DP-SGD"]
        super().__init__(
            "Error against privacy",
            "All runs with this number of epochs. The ring marks the run nearest to your sliders. Run trains a model.",
            lambda **values: explore(grid, **values, live=self.live),
            [(draw_runs, "1 1 auto")],
            lambda result: words.run(result.point),
            lambda result, **_: train_command(result.point.config),
            tiles=tell_explored,
            joint=("method", "micro_batch", "z0"),
            idle=lambda result: IDLE.get(result.point.method, ()),
            method=choice("method", "sound", methods, tooltips=tips),
            micro_batch=number("micro-batch size m", 8, [1, 2, 4, 8], unit="if sound"),
            z0=number("noise multiplier z0", base.z0, decades(-3, 0)),
            decay=decay_of(base.decay),
            epochs=number("epochs", base.epochs, range(1, 9), unit="passes"),
        )

    def prepare(self) -> TrainConfig:
        return configured(self._base, **self.values)

    def work(self, config: TrainConfig) -> None:
        from edp_lab.training.session import train  # importing torch takes seconds

        with tempfile.TemporaryDirectory(prefix="edp-lab-") as folder:
            record = train(config, Path(folder) / "run", self.progress_of, self.stop_event)
        if record["epochs"]:
            self.live.append(live_point(config, record))
            self.set()


IDLE = {"sgd": ["micro_batch", "z0", "decay"], "printed": ["micro_batch"], "poisson": ["micro_batch"]}


def tell_explored(result: Explored) -> tuple[Tile, Tile, str]:
    """Tiles with both epsilons of the nearest run; a sentence with its error and a run with a smaller epsilon."""
    point, cheaper = result.point, result.cheaper
    differs = [
        f"{name} = {value if isinstance(value, str) else short(value)}" for name, value in result.differs.items()
    ]
    whose = "Your run" if point in result.live else "The nearest measured run" if differs else "This run"
    had = f" ({', '.join(differs)})" if differs else ""
    says = f"{whose}{had} has an SER of {point.ser:.2f}"
    if point.epsilon is None:
        says += ": the error without privacy."
    elif point.ser > USELESS:
        says += ". With this many errors it is useless at any ε."
    elif cheaper == point:
        says += ", and no other run does as well at a smaller ε."
    else:
        hidden = "" if cheaper in (*result.others, *result.live) else " (not in this picture)"
        says += f"; {setting(cheaper)}{hidden} does at least as well, at ε = {at_most(cheaper.epsilon)}."
    nearest = ", nearest run" if differs else ""
    claim, guaranteed = (tile._replace(unit=tile.unit + nearest) for tile in epsilons(point.guarantee))
    return claim, guaranteed, says


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
    """Plot SER against epsilon for all runs of equally many epochs; those like the nearest run are bright."""
    families = []
    for method, look in FAMILIES.items():
        family = [p for p in result.others if p.method == method]
        bright = [(p.method, p.micro_batch) == (result.point.method, result.point.micro_batch) for p in family]
        marker = {"opacity": [1.0 if is_bright else 0.4 for is_bright in bright]}
        families.append(points(*look, edge=None, marker=marker, **_places(family)))
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
