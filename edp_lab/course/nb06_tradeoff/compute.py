"""What ``06_train_and_trade_off.ipynb`` computes: measured runs, the nearest of them, the ladder, decay.

    grid = load_grid()                       # as they ship with the course
    shown = explore(grid, "sound", micro_batch=8, z0=0.01, decay="none", epochs=8)
    rungs = ladder(micro_batch=8, num_devices=8, batch_size=64, z=1.0, epochs=8, delta=1e-4)

No widgets, and no torch: mechanism and accountants are the library's, and the runs were measured by
``data/results/course.py``. Values that make no sense, and a missing or damaged file, are refused by `UsageError`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edp_lab.course.kit.inputs import Array, require
from edp_lab.course.kit.text import plain
from edp_lab.errors import UsageError
from edp_lab.privacy import Adjacency, Decay, Guarantee, Mechanism, judge
from edp_lab.privacy.calibration import Budget, calibrate_z0
from edp_lab.reproduce.results_io import RESULTS, changed_settings, read_kept
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

    In a grid the seconds are those of one processor, the same for all runs of a method and micro-batch size; of a live
    run, those of the clock.
    """

    config: TrainConfig
    utterances: int  # n, that it was trained on
    ser: float  # on the test set, as the next two
    intent_accuracy: float
    slot_f1: float
    seconds: float  # of training

    @cached_property
    def method(self) -> str:
        return method_of(self.config)

    @cached_property
    def setting(self) -> dict[str, Any]:
        """What its configuration says, but for epochs and seed."""
        told = changed_settings(self.config)
        return {name: value for name, value in told.items() if name not in ("epochs", "seed")}

    @property
    def micro_batch(self) -> int:
        return self.config.largest_micro_batch

    @cached_property
    def guarantee(self) -> Guarantee:
        """Of this very run, whose seed is published; at delta = n^-1.1 unless the configuration has its own."""
        delta = self.config.delta or self.utterances**-1.1
        return judge(self.config.mechanism(self.utterances), self.config.epochs, delta)

    @property
    def epsilon(self) -> float | None:
        """Were the seed secret and alpha public; None without noise."""
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
        own = point.config.epochs, point.setting
        return [p for p in self.points if (p.config.epochs, p.setting) == own]


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
    told = read_kept(path, "runs", "seconds_per_epoch")
    try:
        points = []
        for run in told["runs"]:
            whole = TrainConfig(**run["config"])
            pace = told["seconds_per_epoch"].get(work(whole), math.nan)
            for row in run["scores"]:
                config, scores = replace(whole, epochs=row["epoch"]), {name: row[name] for name in SCORES}
                points.append(Point(config, run["utterances"], **scores, seconds=pace * row["epoch"]))
        return Grid(tuple(points), {name: told[name] for name in ("command", "machine", "versions")})
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path} is damaged or of another version: restore it from the repository") from error


def work(config: TrainConfig) -> str:
    """What decides how long an epoch takes."""
    return f"{method_of(config)}, m = {config.largest_micro_batch}"


# ---- The nearest measured point ------------------------------------------------------------------------------------


class Explored(NamedTuple):
    """A measured point, and its place among the others."""

    point: Point  # measured, nearest to what was asked for
    differs: dict[str, tuple[Any, Any]]  # of what was asked for, what the point does not have: (asked, measured)
    others: tuple[Point, ...]  # all measured points after as many epochs, `point` among them
    path: tuple[Point, ...]  # the same run after 1, 2, ... epochs
    seeds: tuple[float, ...]  # SER of the same setting with each seed that was measured
    cheaper: Point | None  # the least epsilon with at most this SER, of all; None for SGD, and where SER is `USELESS`
    live: tuple[Point, ...]  # that were made since


def explore(
    grid: Grid, method: str, micro_batch: int, z0: float, decay: str, epochs: int, live: Sequence[Point] = ()
) -> Explored:
    """The measured point nearest to a setting: of the method, then by micro-batch size, decay, z0 and epochs."""
    noised = method == "sgd" or 0 < z0 < math.inf
    require(noised, f"z0 is {z0}: the measured runs have noise, so give a number above 0")
    asked = configured(BASE, method, micro_batch, z0, decay, epochs)
    methods = ("sound", "dp") if method == "sound" else (method,)
    known = [p for p in grid.points if p.config.seed == BASE.seed and p.method in methods]

    def distance(p: Point) -> tuple[float, ...]:
        size = 0.0 if method != "sound" else abs(math.log(p.micro_batch / micro_batch))
        noise = 0.0 if method == "sgd" else round(abs(math.log(p.config.z0 / z0)), 6)
        return size, p.config.decay != asked.decay, noise, abs(math.log(p.config.epochs / epochs))

    point = min(known, key=distance)
    names = {"m": "largest_micro_batch", "z0": "z0", "decay": "decay", "epochs": "epochs"}
    pairs = {name: (getattr(asked, of), getattr(point.config, of)) for name, of in names.items()}
    good = [p for p in grid.points if p.epsilon is not None and p.ser <= point.ser]
    compared = point.epsilon is not None and point.ser <= USELESS
    return Explored(
        point,
        differs={name: pair for name, pair in pairs.items() if pair[0] != pair[1]},
        others=tuple(grid.after(point.config.epochs)),
        path=tuple(p for p in known if p.setting == point.setting),
        seeds=tuple(p.ser for p in grid.seeds(point)),
        cheaper=min(good, key=lambda p: p.epsilon or math.inf) if compared else None,
        live=tuple(live),
    )


# ---- The ladder ----------------------------------------------------------------------------------------------------


class Rung(NamedTuple):
    """One micro-batch size."""

    micro_batch: int  # m
    micro_batches: int  # how many of them a batch has
    sensitivity: float  # how far one utterance moves the sum of clipped micro-batch gradients
    noise: float  # standard deviation per weight on the mean of the micro-batches, at the ladder's z
    epsilon: float | None  # at the ladder's z; under zero-out the same on every rung; None: no guarantee
    equal_z: float  # with which this rung has the *chosen* rung's noise on the mean
    equal_epsilon: float | None  # at that z


class Ladder(NamedTuple):
    """Rungs from per-example DP-SGD (m = 1) to eDP-SGD (m = batch / N), and Algorithm 1 as printed at the same z0."""

    config: TrainConfig  # of the chosen rung
    adjacency: Adjacency
    chosen: Rung
    rungs: tuple[Rung, ...]
    printed: Guarantee  # of Algorithm 1 as printed, alpha taken to be public
    printed_noise: float  # on the mean


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
    """What a micro-batch size costs, disjoint batches; nothing is trained."""
    neighbours = Adjacency(adjacency)
    unknown = "with disjoint batches there is no number for add/remove: choose zero-out or replace-one"
    require(neighbours is not Adjacency.ADD_OR_REMOVE_ONE, unknown)
    base = TrainConfig(
        "smart-home", z0=z, clip_norm=clip_norm, num_devices=num_devices, batch_size=batch_size, epochs=epochs
    )
    largest = base.largest_micro_batch
    most = f"a batch of {batch_size} on {num_devices} devices has at most {largest} sentences in each"
    require(1 <= micro_batch <= largest, f"micro-batches of {micro_batch}: {most}")
    held = partial(judge, bill=epochs, delta=delta, seed_published=False, adjacency=neighbours)
    sizes = sorted({micro_batch, largest, *(2**k for k in range(largest.bit_length()))})
    configs = {m: replace(base, micro_batch_size=m) for m in sizes}
    mechanisms: dict[int, Any] = {m: config.mechanism() for m, config in configs.items()}
    units = {m: replace(mechanisms[m], z0=1.0).noise_std(0) / configs[m].micro_batches for m in sizes}
    rungs = {}
    for m, mechanism in mechanisms.items():
        equal_z, moves = z * units[micro_batch] / units[m], mechanism.sensitivity(neighbours)
        epsilon, equal = held(mechanism).epsilon, held(replace(mechanism, z0=equal_z)).epsilon
        rungs[m] = Rung(m, configs[m].micro_batches, moves, z * units[m], epsilon, equal_z, equal)
    printed = Mechanism.as_printed(clip_norm, z, num_devices, largest, alpha="public")
    noise = printed.noise_std(0) / num_devices
    return Ladder(configs[micro_batch], neighbours, rungs[micro_batch], tuple(rungs.values()), held(printed), noise)


# ---- Decay ---------------------------------------------------------------------------------------------------------


class Decayed(NamedTuple):
    """One decay, once at the same z0 as the others and once at the same epsilon."""

    decay: Decay
    epsilon: Array  # (T) after each epoch, at the same z0
    z0: float  # with which it ends at the epsilon that no decay has
    noise: Array  # (T) the noise multiplier z_t of each epoch, from that z0


def decays(z0: float, tau: float, epochs: int, delta: float) -> list[Decayed]:
    """No decay, linear and exponential, of the sound mechanism on disjoint batches."""
    steady = Mechanism.sound(1.0, z0, 1, 1)
    budget = Budget(judge(steady, epochs, delta).epsilon or math.inf, delta)
    found = []
    for decay in Decay:
        mechanism = Mechanism.sound(1.0, z0, 1, 1, decay, tau)
        losses = [judge(mechanism, t, delta).epsilon or math.nan for t in range(1, epochs + 1)]
        equal = z0 if decay is Decay.NONE else calibrate_z0(mechanism, epochs, budget)
        found.append(Decayed(decay, np.array(losses), equal, equal * decay.factors(np.arange(epochs), mechanism.tau)))
    return found
