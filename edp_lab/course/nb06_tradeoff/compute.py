"""What ``06_train_and_trade_off.ipynb`` computes: the nearest measured run, the ladder of micro-batches, decay, tuning.

    shown = explore(load_grid(), "sound", micro_batch=8, z0=0.01, decay="none", epochs=8)
    rungs = ladder(micro_batch=8, num_devices=8, batch_size=64, z=1.0, epochs=8, delta=1e-4)

No widgets. Mechanism and accountants are the library's; what was trained is in `edp_lab.course.nb06_tradeoff.grid`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edp_lab.course.nb06_tradeoff.grid import BASE, Grid, Point, configured
from edp_lab.errors import UsageError
from edp_lab.privacy import Adjacency, Decay, Guarantee, Mechanism, gdp_epsilon, judge
from edp_lab.privacy.calibration import Budget, calibrate_z0
from edp_lab.privacy.tuning import best_of_random, composed
from edp_lab.training import TrainConfig

MOST_TRIALS = 1000


# ---- The nearest measured point ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Explored:
    """A measured point, and its place among the others.

    Attributes:
        point: measured, nearest to what was asked for.
        asked, differs: what was asked for; of that, what the point does not have, by name: (asked, measured).
        others: all measured points after as many epochs, `point` among them.
        path: the same run after 1, 2, ... epochs.
        seeds: SER of the same setting with each seed that was measured.
        cheaper: of all measured points with at most this SER, the one with the smallest epsilon; None for SGD.
        live: points that were made since.
    """

    point: Point
    asked: TrainConfig
    differs: Mapping[str, tuple[Any, Any]]
    others: tuple[Point, ...]
    path: tuple[Point, ...]
    seeds: tuple[float, ...]
    cheaper: Point | None
    live: tuple[Point, ...] = ()


def explore(
    grid: Grid, method: str, micro_batch: int, z0: float, decay: str, epochs: int, live: Sequence[Point] = ()
) -> Explored:
    """The measured point nearest to a setting: of the method, then by micro-batch size, decay, z0 and epochs.

    Raises:
        UsageError: as `configured`; a z0 that is not positive.
    """
    if method != "sgd" and not (0 < z0 < math.inf):
        raise UsageError(f"z0 is {z0}: the measured runs have noise, so give a number above 0")
    asked = configured(BASE, method, micro_batch, z0, decay, epochs)
    known = [p for p in grid.points if p.config.seed == BASE.seed and _kind(p) == method]

    def distance(p: Point) -> tuple[float, ...]:
        size = 0.0 if method != "sound" else abs(math.log(p.micro_batch / micro_batch))
        noise = 0.0 if method == "sgd" else round(abs(math.log(p.config.z0 / z0)), 6)
        return size, p.config.decay != asked.decay, noise, abs(math.log(p.config.epochs / epochs))

    point = min(known, key=distance)
    return Explored(
        point,
        asked,
        differs=_differences(asked, point.config),
        others=tuple(grid.after(point.config.epochs)),
        path=tuple(p for p in known if replace(p.config, epochs=1) == replace(point.config, epochs=1)),
        seeds=tuple(p.ser for p in grid.seeds(point)),
        cheaper=_cheapest(grid, point) if point.epsilon is not None else None,
        live=tuple(live),
    )


def _kind(point: Point) -> str:
    """The method as `configured` calls it."""
    return "sound" if point.method == "dp" else point.method


def _differences(asked: TrainConfig, measured: TrainConfig) -> dict[str, tuple[Any, Any]]:
    pairs = {"m": (asked.largest_micro_batch, measured.largest_micro_batch)}
    pairs |= {name: (getattr(asked, name), getattr(measured, name)) for name in ("z0", "decay", "epochs")}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _cheapest(grid: Grid, point: Point) -> Point:
    good = [p for p in grid.points if p.epsilon is not None and p.ser <= point.ser]
    return min(good, key=lambda p: p.epsilon or math.inf)


# ---- The ladder ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rung:
    """One micro-batch size.

    Attributes:
        micro_batch, micro_batches: m, and how many of them a batch has.
        sensitivity: how far one utterance moves the sum of clipped micro-batch gradients.
        noise: standard deviation per weight on the mean of the micro-batches, at the ladder's z.
        epsilon: at the ladder's z; under zero-out the same on every rung. None where there is no guarantee.
        equal_z, equal_epsilon: z with which this rung has the *chosen* rung's noise on the mean, and its epsilon.
    """

    micro_batch: int
    micro_batches: int
    sensitivity: float
    noise: float
    epsilon: float | None
    equal_z: float
    equal_epsilon: float | None


@dataclass(frozen=True)
class Ladder:
    """Rungs from per-example DP-SGD (m = 1) to eDP-SGD (m = batch / N), and Algorithm 1 as printed at the same z0.

    Attributes:
        chosen: one of `rungs`.
        printed_noise, printed_epsilon, printed_claim: of Algorithm 1 as printed, alpha taken to be public.
    """

    config: TrainConfig
    adjacency: Adjacency
    delta: float
    rungs: tuple[Rung, ...]
    chosen: Rung
    printed_noise: float
    printed_epsilon: float | None
    printed_claim: float | None


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
    """What a micro-batch size costs, disjoint batches; nothing is trained.

    Raises:
        UsageError: as `TrainConfig`; micro-batches that are too large for N devices; another adjacency than zero-out
            and replace-one.
    """
    neighbours = Adjacency(adjacency)
    if neighbours is Adjacency.ADD_OR_REMOVE_ONE:
        raise UsageError("with disjoint batches there is no number for add/remove: choose zero-out or replace-one")
    base = TrainConfig(
        "smart-home", z0=z, clip_norm=clip_norm, num_devices=num_devices, batch_size=batch_size, epochs=epochs
    )
    largest = base.largest_micro_batch
    if not 1 <= micro_batch <= largest:
        raise UsageError(
            f"micro-batches of {micro_batch}: a batch of {batch_size} on {num_devices} devices has at most {largest} "
            "utterances in each"
        )
    sizes = sorted({micro_batch, largest, *(2**k for k in range(largest.bit_length()))})
    unit = {m: _mechanism(base, m, 1.0).noise_std(0) / _on(base, m).micro_batches for m in sizes}  # at z = 1

    def rung(m: int) -> Rung:
        mechanism, equal_z = _mechanism(base, m, z), z * unit[micro_batch] / unit[m]
        return Rung(
            m,
            _on(base, m).micro_batches,
            mechanism.sensitivity(neighbours),
            z * unit[m],
            _epsilon(mechanism, epochs, delta, neighbours).epsilon,
            equal_z,
            _epsilon(replace(mechanism, z0=equal_z), epochs, delta, neighbours).epsilon,
        )

    rungs = {m: rung(m) for m in sizes}
    printed = Mechanism.as_printed(clip_norm, z, num_devices, largest, alpha="public")
    told = _epsilon(printed, epochs, delta, neighbours)
    return Ladder(
        replace(base, micro_batch_size=micro_batch),
        neighbours,
        delta,
        tuple(rungs.values()),
        rungs[micro_batch],
        printed.noise_std(0) / num_devices,
        told.epsilon,
        told.epsilon_claimed,
    )


def _on(base: TrainConfig, micro_batch: int) -> TrainConfig:
    return replace(base, micro_batch_size=micro_batch)


def _mechanism(base: TrainConfig, micro_batch: int, z: float) -> Mechanism:
    mechanism = replace(_on(base, micro_batch), z0=z).mechanism()
    assert mechanism is not None  # eDP-SGD has one
    return mechanism


def _epsilon(mechanism: Mechanism, epochs: int, delta: float, adjacency: Adjacency) -> Guarantee:
    """What would hold with a secret seed."""
    return judge(mechanism, epochs, delta, seed_published=False, adjacency=adjacency)


# ---- Decay ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Decayed:
    """One decay, once at the same z0 as the others and once at the same epsilon.

    Attributes:
        epsilon: (T) after each epoch, at the same z0.
        z0: with which it ends at the epsilon that no decay has.
        noise: (T) the noise multiplier z_t of each epoch, from that z0.
    """

    decay: Decay
    epsilon: np.ndarray
    z0: float
    noise: np.ndarray


def decays(z0: float, tau: float, epochs: int, delta: float) -> list[Decayed]:
    """No decay, linear and exponential, of the sound mechanism on disjoint batches.

    Raises:
        UsageError: z0 not positive; as `Mechanism`.
    """
    steady = Mechanism.sound(1.0, z0, 1, 1)
    budget = Budget(judge(steady, epochs, delta).epsilon or math.inf, delta)
    found = []
    for decay in Decay:
        mechanism = Mechanism.sound(1.0, z0, 1, 1, decay, tau)
        losses = [judge(mechanism, t, delta).epsilon or math.nan for t in range(1, epochs + 1)]
        equal = z0 if decay is Decay.NONE else calibrate_z0(mechanism, epochs, budget)
        found.append(Decayed(decay, np.array(losses), equal, equal * decay.factors(np.arange(epochs), mechanism.tau)))
    return found


# ---- The price of tuning -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tuning:
    """What it costs to try settings on private data; all trials with the same noise.

    Attributes:
        trials: numbers of trials, for which the others are given.
        free: epsilon of one run, which is all that is usually quoted.
        published: everything about that many runs may be published, the best one too.
        random: only the best of a secret random number of runs is published, whose mean that is; None for 1.
        chosen: the place of the number that was asked for.
    """

    z0: float
    epochs: int
    delta: float
    trials: tuple[int, ...]
    free: float
    published: tuple[float, ...]
    random: tuple[float | None, ...]
    chosen: int

    @property
    def mu(self) -> float:
        """Of one trial."""
        return math.sqrt(self.epochs) / self.z0


def tuning(z0: float, epochs: int, trials: int, delta: float) -> Tuning:
    """The price of `trials` runs of `epochs` epochs each, disjoint batches, sound noise z0 (noise over sensitivity).

    Raises:
        UsageError: z0 not positive, trials no whole number from 1 to 1000; as `judge`.
    """
    if not 1 <= trials <= MOST_TRIALS:
        raise UsageError(f"the number of trials is {trials}: it must be a whole number from 1 to {MOST_TRIALS}")
    if not 0 < z0 < math.inf:
        raise UsageError(f"z0 is {z0}: it must be greater than 0, for a run without noise has no epsilon to begin with")
    mechanism = Mechanism.sound(1.0, z0, 1, 1)
    trial = mechanism.schedule(mechanism.bill(epochs))
    numbers = tuple(sorted({1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, trials}))
    random = tuple(best_of_random(trial, float(k), delta) if k > 1 else None for k in numbers)
    return Tuning(
        z0,
        epochs,
        delta,
        numbers,
        gdp_epsilon(trial.mu, delta),
        tuple(composed(trial, k, delta) for k in numbers),
        random,
        numbers.index(trials),
    )
