"""What ``06_train_and_trade_off.ipynb`` computes: the nearest measured run, the ladder of micro-batches, decay, tuning.

    shown = explore(load_grid(), "sound", micro_batch=8, z0=0.01, decay="none", epochs=8)
    rungs = ladder(micro_batch=8, num_devices=8, batch_size=64, z=1.0, epochs=8, delta=1e-4)

No widgets. Mechanism and accountants are the library's; what was trained is in `edp_lab.course.nb06_tradeoff.grid`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from edp_lab.course.kit.controls import Array
from edp_lab.course.nb06_tradeoff.grid import BASE, Grid, Point, configured
from edp_lab.errors import UsageError
from edp_lab.privacy import Adjacency, Decay, Guarantee, Mechanism, gdp_epsilon, judge
from edp_lab.privacy.calibration import Budget, calibrate_z0
from edp_lab.privacy.composition import best_of_random, composed
from edp_lab.training import TrainConfig

MOST_TRIALS = 1000


# ---- The nearest measured point ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Explored:
    """A measured point, and its place among the others.

    Attributes:
        point: measured, nearest to what was asked for.
        others: all measured points after as many epochs, `point` among them.
        path: the same run after 1, 2, ... epochs.
        seeds: SER of the same setting with each seed that was measured.
        cheaper: of all measured points with at most this SER, the one with the smallest epsilon; None for SGD.
        live: points that were made since.
    """

    point: Point
    asked: TrainConfig
    others: tuple[Point, ...]
    path: tuple[Point, ...]
    seeds: tuple[float, ...]
    cheaper: Point | None
    live: tuple[Point, ...] = ()

    @property
    def differs(self) -> dict[str, tuple[Any, Any]]:
        """Of what was asked for, what the point does not have, by name: (asked, measured)."""
        names = {"m": "largest_micro_batch", "z0": "z0", "decay": "decay", "epochs": "epochs"}
        pairs = {name: (getattr(self.asked, of), getattr(self.point.config, of)) for name, of in names.items()}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


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
        others=tuple(grid.after(point.config.epochs)),
        path=tuple(p for p in known if replace(p.config, epochs=1) == replace(point.config, epochs=1)),
        seeds=tuple(p.ser for p in grid.seeds(point)),
        cheaper=_cheapest(grid, point) if point.epsilon is not None else None,
        live=tuple(live),
    )


def _kind(point: Point) -> str:
    """The method as `configured` calls it."""
    return "sound" if point.method == "dp" else point.method


def _cheapest(grid: Grid, point: Point) -> Point:
    good = [p for p in grid.points if p.epsilon is not None and p.ser <= point.ser]
    return min(good, key=lambda p: p.epsilon or math.inf)


# ---- The ladder ----------------------------------------------------------------------------------------------------


class Rung(NamedTuple):
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


class Ladder(NamedTuple):
    """Rungs from per-example DP-SGD (m = 1) to eDP-SGD (m = batch / N), and Algorithm 1 as printed at the same z0.

    Attributes:
        config: of the chosen rung.
        printed, printed_noise: of Algorithm 1 as printed, alpha taken to be public; noise on the mean.
    """

    config: TrainConfig
    adjacency: Adjacency
    rungs: tuple[Rung, ...]
    printed: Guarantee
    printed_noise: float

    @property
    def chosen(self) -> Rung:
        return next(rung for rung in self.rungs if rung.micro_batch == self.config.micro_batch_size)


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
    on = {m: replace(base, micro_batch_size=m) for m in sizes}
    unit = {m: _mechanism(config, 1.0).noise_std(0) / config.micro_batches for m, config in on.items()}  # at z = 1
    held = partial(judge, bill=epochs, delta=delta, seed_published=False, adjacency=neighbours)

    def rung(m: int) -> Rung:
        mechanism, equal_z = _mechanism(on[m], z), z * unit[micro_batch] / unit[m]
        moves, epsilon = mechanism.sensitivity(neighbours), held(mechanism).epsilon
        equal = held(replace(mechanism, z0=equal_z)).epsilon
        return Rung(m, on[m].micro_batches, moves, z * unit[m], epsilon, equal_z, equal)

    printed = Mechanism.as_printed(clip_norm, z, num_devices, largest, alpha="public")
    noise = printed.noise_std(0) / num_devices
    return Ladder(on[micro_batch], neighbours, tuple(map(rung, sizes)), held(printed), noise)


def _mechanism(config: TrainConfig, z: float) -> Mechanism:
    mechanism = replace(config, z0=z).mechanism()
    assert mechanism is not None  # eDP-SGD has one
    return mechanism


# ---- Decay ---------------------------------------------------------------------------------------------------------


class Decayed(NamedTuple):
    """One decay, once at the same z0 as the others and once at the same epsilon.

    Attributes:
        epsilon: (T) after each epoch, at the same z0.
        z0: with which it ends at the epsilon that no decay has.
        noise: (T) the noise multiplier z_t of each epoch, from that z0.
    """

    decay: Decay
    epsilon: Array
    z0: float
    noise: Array


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


class Tuning(NamedTuple):
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
    published = tuple(composed(trial, k, delta) for k in numbers)
    random = tuple(best_of_random(trial, float(k), delta) if k > 1 else None for k in numbers)
    free = gdp_epsilon(trial.mu, delta)
    return Tuning(z0, epochs, delta, numbers, free, published, random, numbers.index(trials))
