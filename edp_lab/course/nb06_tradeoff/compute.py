"""What ``06_train_and_trade_off.ipynb`` computes: the measured run nearest to a setting, and the ladder.

    grid = load_grid()                       # as they ship with the course
    shown = explore(grid, "sound", micro_batch=8, z0=0.01, decay="none", epochs=8)
    result = ladder(micro_batch=8, num_devices=8, batch_size=64, z=1.0, epochs=8, delta=1e-4)

No widgets, and no torch: mechanism and accountants are the library's, and the runs were measured by
``data/results/course.py``. Values that make no sense, and a missing or damaged file, are refused by `UsageError`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from edp_lab.course.kit.controls import require
from edp_lab.course.kit.text import plain
from edp_lab.errors import UsageError
from edp_lab.privacy import Adjacency, Guarantee, Mechanism, judge
from edp_lab.reproduce.results_io import RESULTS, read_kept
from edp_lab.training import TrainConfig

BASE = TrainConfig("smart-home", size="small", lr_schedule="constant", epochs=8, tau=0.2)
SCORES = ("ser", "intent_accuracy", "slot_f1")
USELESS = 0.9  # SER: nearly as many errors as there are slots and intents

METHODS = {
    "sgd": "SGD",
    "printed": "eDP-SGD as printed",
    "sound": "eDP-SGD, sound",
    "dp": "DP-SGD, disjoint batches",
    "poisson": "DP-SGD, Poisson sampling",
    "naive": "DP-SGD, one pass per sentence",
}


# ---- Runs and points -----------------------------------------------------------------------------------------------


def method_of(config: TrainConfig) -> str:
    """A key of `METHODS`."""
    dp, edp = "poisson" if config.poisson else "dp", "printed" if config.as_printed else "sound"
    return {"sgd": "sgd", "edp-sgd": edp, "dp-sgd": dp}.get(config.method, "naive")


@dataclass(frozen=True)
class Point:
    """One run of `config.epochs` epochs, measured.

    Seconds of the grid are those of one processor, the same for all runs of a method and micro-batch size; those of a
    run that the reader made are by the clock.
    """

    config: TrainConfig
    utterances: int  # n, of the training set
    ser: float  # on the test set, as the next two
    intent_accuracy: float
    slot_f1: float
    seconds: float  # of training

    @cached_property
    def method(self) -> str:
        return method_of(self.config)

    @property
    def micro_batch(self) -> int:
        return self.config.largest_micro_batch

    @cached_property
    def guarantee(self) -> Guarantee:
        """Of this run, whose seed is published; at delta = n^-1.1 unless the configuration has another."""
        delta = self.config.delta or self.utterances**-1.1
        return judge(self.config.mechanism(self.utterances), self.config.epochs, delta)

    @property
    def epsilon(self) -> float | None:
        """The epsilon if the seed were secret and alpha public; None without noise."""
        return self.guarantee.epsilon_if_alpha_public


class Grid(NamedTuple):
    """Measured points, and with what they were measured: "command", "machine", "versions"."""

    points: tuple[Point, ...]
    about: Mapping[str, Any]

    def after(self, epochs: int) -> list[Point]:
        """The points of the first seed after so many epochs."""
        return [p for p in self.points if (p.config.epochs, p.config.seed) == (epochs, BASE.seed)]

    def seeds(self, point: Point) -> list[Point]:
        """The same setting with every seed that was measured."""
        setting = replace(point.config, seed=0)
        return [p for p in self.points if replace(p.config, seed=0) == setting]


def configured(base: TrainConfig, method: str, micro_batch: int, z0: float, decay: str, epochs: int) -> TrainConfig:
    """A run of `method` ("sgd", "printed", "sound", "poisson"): corpus, model, C, N, tau and seed as in `base`.

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
    """The point of a run that `edp_lab.training.train` has made."""
    scores = {name: record["final"][name] for name in (*SCORES, "seconds")}
    done = replace(config, epochs=len(record["epochs"]))
    return Point(done, record["corpus"]["splits"]["train"], **scores)


def load_grid(path: Path = RESULTS / "tradeoff.json") -> Grid:
    """The measured points of a file that ``data/results/course.py`` wrote."""
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
    """What decides how long an epoch takes."""
    return f"{method_of(config)}, m = {config.largest_micro_batch}"


# ---- The nearest measured point ------------------------------------------------------------------------------------


class Explored(NamedTuple):
    """The run nearest to a setting, and its place among the others."""

    point: Point
    differs: dict[str, Any]  # settings of the point that are not those asked for
    others: tuple[Point, ...]  # all measured points after as many epochs
    live: tuple[Point, ...]  # the reader's runs of as many epochs; `point` is among the others or these
    cheaper: Point  # the smallest epsilon with at most this SER on this corpus; `point` itself if there is none


def explore(
    grid: Grid, method: str, micro_batch: int, z0: float, decay: str, epochs: int, live: Sequence[Point] = ()
) -> Explored:
    """The run nearest to a setting: of the method, then by micro-batch size, decay, z0 and epochs, the newest first."""
    noised = method == "sgd" or 0 < z0 < math.inf
    require(noised, f"z0 is {z0}: the measured runs have noise, so give a number above 0")
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
        differs={name: own for name, (wanted, own) in pairs.items() if wanted != own},
        others=tuple(grid.after(point.config.epochs)),
        live=tuple(p for p in live if p.config.epochs == point.config.epochs),
        cheaper=min((point, *good), key=lambda p: p.epsilon or math.inf),
    )


# ---- The ladder ----------------------------------------------------------------------------------------------------


class Rung(NamedTuple):
    """One micro-batch size."""

    micro_batch: int  # m
    sensitivity: float  # how far one utterance moves the sum of clipped micro-batch gradients
    noise: float  # standard deviation per weight on the mean of the micro-batches, at the ladder's z
    epsilon: float | None  # at the ladder's z; under zero-out the same on every rung; None: no guarantee
    equal_epsilon: float | None  # at the z that gives this rung the chosen rung's noise on the mean


class Ladder(NamedTuple):
    """Rungs from per-example DP-SGD (m = 1) to sound eDP-SGD (m = batch / N)."""

    mechanism: Mechanism  # of the chosen rung
    adjacency: Adjacency
    epochs: int
    delta: float
    chosen: Rung
    rungs: tuple[Rung, ...]


def ladder(
    micro_batch: int,
    num_devices: int,
    batch_size: int,
    z: float,
    epochs: int,
    delta: float,
    adjacency: str = Adjacency.ZERO_OUT,
    clip_norm: float = 1.0,
) -> Ladder:
    """Noise and epsilon of each micro-batch size, disjoint batches; nothing is trained."""
    neighbours = Adjacency(adjacency)
    unknown = "with disjoint batches there is no number for add/remove: choose zero-out or replace-one"
    require(neighbours is not Adjacency.ADD_OR_REMOVE_ONE, unknown)
    base = TrainConfig("smart-home", num_devices=num_devices, batch_size=batch_size, epochs=epochs)
    largest = base.largest_micro_batch
    most = f"a batch of {batch_size} on {num_devices} devices has at most {largest} sentences in each"
    require(1 <= micro_batch <= largest, f"micro-batches of {micro_batch}: {most}")

    def rung(m: int) -> Rung:
        mechanism = mechanisms[m]
        equal = replace(mechanism, z0=z * units[micro_batch] / units[m])
        epsilons = (judge(one, epochs, delta, seed_published=False, adjacency=neighbours) for one in (mechanism, equal))
        moves = mechanism.sensitivity(neighbours)
        return Rung(m, moves, z * units[m], *(held.epsilon for held in epsilons))

    sizes = sorted({micro_batch, largest, *(2**k for k in range(largest.bit_length()))})
    mechanisms = {m: Mechanism.sound(clip_norm, z, num_devices, m) for m in sizes}
    units = {m: replace(one, z0=1.0).noise_std(0) / math.ceil(batch_size / m) for m, one in mechanisms.items()}
    rungs = {m: rung(m) for m in sizes}
    return Ladder(mechanisms[micro_batch], neighbours, epochs, delta, rungs[micro_batch], tuple(rungs.values()))
