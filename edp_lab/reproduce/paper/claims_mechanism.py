"""The paper's claims about its mechanism, Algorithm 1: P1 to P6, P19 and P22.

`algorithm_1` is the print, line by line, and shares nothing with `edp_lab.privacy.Mechanism`, which holds what we
derive from it: so evidence drawn from the print can contradict us.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri

from edp_lab.errors import UsageError
from edp_lab.privacy import Alpha, Mechanism, gdp_epsilon, true_epsilon, zcdp_epsilon
from edp_lab.privacy.csprng import key_from_seed
from edp_lab.reproduce.claims import CONDITIONAL, FAILS, HOLDS, UNTESTABLE, Claim, Measured, Pair, Verdict
from edp_lab.reproduce.paper.printed import NUM_GPUS
from edp_lab.reproduce.paper.runs import first_gradient_norms
from edp_lab.training.noise import Share, standard_noise

DELTA = 1e-5
DRAWS = 20_000
COUNTS = (1, 2, 4, 8, 16, 32)  # of devices
BEYOND = 1e-3  # chance with which an interval of a deviation misses it
ROUNDING = 1e-9
REPLACED = 3  # place of an utterance in the first batch, for P4
Vector = NDArray[np.float64]
claim = partial(Claim, cell="11_claims#paper-mechanism")


def algorithm_1(gradients: Vector, alpha: Vector, clip_norm: float, z: float, rng: np.random.Generator) -> Vector:
    """Algorithm 1 as printed: micro-batch gradients (N, P), layer scales by coordinate (P) -> the DP-gradient (P)."""
    total, devices = np.zeros(gradients.shape[1]), len(gradients)
    for gradient in gradients:
        scaled = gradient / alpha
        norm = float(np.linalg.norm(scaled))
        clipped = scaled * min(1.0, clip_norm / norm if norm else 1.0)
        rescaled = alpha * clipped
        y = rng.normal(0.0, clip_norm * z, rescaled.shape)
        total += rescaled + y / devices
    return total / devices


def deviation(samples: Vector) -> tuple[float, float, float]:
    """Standard deviation around the known mean 0, and an interval that misses it in one case of a thousand."""
    squares, n = float(np.sum(samples**2)), samples.size
    low, high = (math.sqrt(squares / chdtri(n, tail)) for tail in (BEYOND / 2, 1 - BEYOND / 2))
    return math.sqrt(squares / n), low, high


def _noise(devices: int, draws: int, clip_norm: float, z: float) -> Vector:
    """What Algorithm 1 returns for gradients of 0."""
    return algorithm_1(np.zeros((devices, draws)), np.ones(draws), clip_norm, z, np.random.default_rng(0))


def _devices(number: int) -> int:
    if number < 1:
        raise UsageError(f"the number of devices is {number}: it must be at least 1")
    return int(number)


@claim(
    "P1",
    "Noise N(0, s^2) on each of n micro-batches is noise N(0, (n s)^2) on the gradient aggregated over them.",
    source='section 3, "Micro-batch computations per GPU", second paragraph',
    quote="to gradients per micro-batch is equivalent to adding a noise",
    rule=lambda m: Verdict.of(m.deviation_low <= m.claimed_deviation <= m.deviation_high),
    said="The sum over {devices} devices has a standard deviation of {deviation:.3g} where {claimed_deviation:g} is "
    "claimed: variances add up, deviations do not. If all devices added the same vector it would be "
    "{deviation_of_one_shared_draw:.2g}, but Algorithm 1 draws one on each.",
    strength="measured ({draws:,} draws, 99.9 %: {deviation_low:.3g} to {deviation_high:.3g})",
    counter={"one draw for all devices": (HOLDS, {"deviation_low": 7.9, "deviation_high": 8.1})},
    pair=Pair("claimed_deviation", "deviation", "noise"),
)
def p1_noise_per_device(num_devices: int = NUM_GPUS, sigma: float = 1.0) -> Measured:
    """The sum of N(0, sigma^2) from each of n devices, drawn independently, and as one draw that all of them add."""
    devices = _devices(num_devices)
    noise = np.random.default_rng(0).normal(0.0, sigma, (devices, DRAWS))
    independent, low, high = deviation(noise.sum(axis=0))
    return {
        "devices": devices, "sigma": sigma, "claimed_deviation": devices * sigma, "draws": DRAWS,
        "deviation": independent, "deviation_low": low, "deviation_high": high,
        "deviation_of_one_shared_draw": deviation(devices * noise[0])[0],
    }  # fmt: skip


@claim(
    "P2",
    "The noise multiplier of what Algorithm 1 returns is z, by which epsilon is computed: noise C z / N on the mean.",
    source='section 3, "Noise Decay", first sentence; Algorithm 1, last four lines; Table 1, caption',
    quote="the noise multiplier z, used to compute theoretical DP guarantees",
    rule=lambda m: Verdict.of(m.noise_high >= m.claimed_noise),
    said="With N = {devices} the noise has a standard deviation of {noise:.3g}; z = {z0:g} asks for "
    "{claimed_noise:.3g}, {times_too_small:.2f} times as much (the root of N). Both the y / N and the mean divide "
    "by N, but independent draws add up to no more than the root of N.",
    strength="measured ({draws:,} draws, 99.9 %: {noise_low:.3g} to {noise_high:.3g})",
    counter={"noise as accounted": (HOLDS, {"noise_high": 0.126})},
    pair=Pair("claimed_noise", "noise", "noise"),
)
def p2_noise_of_the_release(
    num_devices: int = NUM_GPUS, z0: float = 1.0, clip_norm: float = 1.0, draws: int = DRAWS
) -> Measured:
    """What Algorithm 1 returns for gradients of 0: nothing but its noise."""
    devices = _devices(num_devices)
    if not (z0 > 0 and clip_norm > 0):
        raise UsageError(f"z0 is {z0} and C is {clip_norm}: both must be greater than 0")
    noise, low, high = deviation(_noise(devices, draws, clip_norm, z0))
    needed, ours = clip_norm * z0 / devices, Mechanism.as_printed(clip_norm, z0, devices, 2, alpha=Alpha.PUBLIC)
    return {
        "devices": devices, "z0": z0, "clip_norm": clip_norm, "claimed_noise": needed, "draws": draws,
        "noise": noise, "noise_low": low, "noise_high": high,
        "noise_by_our_formula": ours.noise_std(0) / devices, "times_too_small": needed / noise,
    }  # fmt: skip


@claim(
    "P3",
    "Our reading: a gradient that was scaled, clipped and rescaled is within the clip norm C of its noise.",
    source='Algorithm 1, lines "Scale", "Clip", "Rescale" and "Add scaled Gaussian noise"',
    quote="We scale a constant clipping value C by the factor α_k for each layer",
    inputs=lambda told: {"norms": first_gradient_norms()},
    rule=lambda m: Verdict.of(
        m.longest <= m.clip_norm * (1 + ROUNDING),
        m.longest_if_the_largest_scale_is_1 <= m.clip_norm * (1 + ROUNDING),
    ),
    said="With the first gradient's norms as scales (small CLC, seed 0) a clipped gradient comes back up to "
    "{longest:.2g} long, at C = {clip_norm:g}: {layers_with_a_scale_above_1} of {layers} layers get too little noise. "
    'The paper says "proportional"; if the constant makes the largest scale 1, it is '
    "{longest_if_the_largest_scale_is_1:.2g}.",
    strength="proven",
    counter={
        "all scales below 1": (HOLDS, {"longest": 0.9}),
        "even a largest scale of 1 too long": (FAILS, {"longest_if_the_largest_scale_is_1": 1.5}),
    },
    pair=Pair("clip_norm", "longest", "norm"),
)
def p3_rescaling(norms: Mapping[str, float], clip_norm: float = 1.0) -> Measured:
    """How long a clipped gradient may be after the rescaling, which comes before the noise.

    `norms`: of the first gradient by layer, as the layer scales have it (see `first_gradient_norms`).
    """
    raw = np.array(list(norms.values()))

    def longest(alpha: Vector) -> float:
        """Over gradients that lie within one layer, which are the worst; a layer is one coordinate here."""
        far, scales = np.diag(1e6 * clip_norm * np.maximum(alpha, 1.0)), np.where(alpha > 0, alpha, 1.0)
        silent = np.random.default_rng(0)
        return max(float(np.linalg.norm(algorithm_1(one[None], scales, clip_norm, 0.0, silent))) for one in far)

    return {
        "clip_norm": clip_norm,
        "layers": len(raw),
        "layers_with_a_scale_above_1": int((raw > 1).sum()),
        "largest_scale": float(raw.max()),
        "longest": longest(raw),
        "longest_if_the_largest_scale_is_1": longest(raw / raw.max()),
    }


@claim(
    "P4",
    "Our reading: layer scales from the first iteration's gradients cost no privacy; epsilon is computed without them.",
    source='section 3, "Scaling"; Algorithm 1, "Scaling"',
    quote="proportional to the norm of gradient calculated on the first iteration for each layer",
    inputs=lambda told: {"norms": first_gradient_norms(), "neighbour": first_gradient_norms(REPLACED)},
    rule=lambda m: Verdict.of(m.scales_that_move == 0, m.noise_on_scales > 0 and m.billed),
    said="Exchange one utterance of the first batch (small CLC, seed 0), and {scales_that_move} of {layers} scales "
    "change, by up to {largest_move_percent:.2g} %. They are used without noise, and nothing is billed for them "
    "(`--alpha noised` does both): whoever sees them tells the two training sets apart, and for whoever does not, only "
    "the clip bounds what they do to all devices at once.",
    strength="proven",
    counter={
        "scales of public text": (HOLDS, {"scales_that_move": 0}),
        "noised and billed": (CONDITIONAL, {"noise_on_scales": 0.1, "billed": True}),
    },
)
def p4_private_scales(norms: Mapping[str, float], neighbour: Mapping[str, float]) -> Measured:
    """Gradient norms by layer, the scales, of two training sets that differ in one utterance of the first batch."""
    moved = {name: abs(neighbour[name] / norm - 1) for name, norm in norms.items() if norm > 0}
    return {
        "layers": len(moved),
        "scales_that_move": sum(change > 0 for change in moved.values()),
        "largest_move_percent": 100 * max(moved.values()),
        "noise_on_scales": 0.0,
        "billed": False,
    }


@claim(
    "P5",
    "Clipping micro-batches instead of examples maintains the DP guarantee.",
    source='section 3, "Micro-batch computations per GPU", first paragraph',
    quote="still maintain DP-guarantees for the resulting model",
    rule=lambda m: Verdict.of(
        m.sensitivity <= m.claimed_sensitivity * (1 + ROUNDING),
        m.sensitivity <= 2 * m.claimed_sensitivity * (1 + ROUNDING),
    ),
    said="A guarantee is kept, but that of noise multiplier {z_that_holds:g} where {z:g} is claimed. In a micro-batch "
    "of {micro_batch} one utterance moves the clipped mean by {sensitivity:.3g} (in none by more than 2C), "
    "where C = {claimed_sensitivity:g} is assumed: a step has epsilon {epsilon:.2f↑} (Gaussian DP, zero-out, delta "
    "{delta:g}) where zCDP is said to give {claimed_epsilon:.2f}. At equal epsilon and C the mean carries "
    "{noise_at_equal_epsilon:g} times the noise of per-example DP-SGD.",
    strength="proven",
    counter={
        "one utterance in a micro-batch": (HOLDS, {"sensitivity": 1.0}),
        "unclipped": (FAILS, {"sensitivity": 8.0}),
    },
    pair=Pair("claimed_epsilon", "epsilon", "ε"),
)
def p5_micro_batches(micro_batch: int = 8, clip_norm: float = 1.0, z: float = 1.0, delta: float = DELTA) -> Measured:
    """One utterance among others that all pull the other way, and the same micro-batch with its slot emptied."""
    if micro_batch < 1 or not z > 0:
        raise UsageError(f"a micro-batch of {micro_batch} with z = {z}: give at least one utterance, and noise")
    far, silent = 10 * clip_norm, np.random.default_rng(0)
    with_it, without = (
        algorithm_1(np.array([[np.mean(batch)]]), np.ones(1), clip_norm, 0.0, silent).item()
        for batch in ([own, *[-far] * (micro_batch - 1)] for own in ((2 * micro_batch - 1) * far, 0.0))
    )
    moved = abs(with_it - without)
    return {
        "micro_batch": micro_batch, "claimed_sensitivity": clip_norm, "sensitivity": moved,
        "z": z, "z_that_holds": z * clip_norm / moved,
        "claimed_epsilon": zcdp_epsilon(1 / (2 * z**2), delta), "epsilon": gdp_epsilon(moved / (clip_norm * z), delta),
        "delta": delta, "noise_at_equal_epsilon": micro_batch * moved / clip_norm,
    }  # fmt: skip


@claim(
    "P6",
    "The noise has a variance of C times z.",
    source='section 3, "Noise Decay", first sentence',
    quote="with a variance equal to the clipping parameter C times the noise multiplier z",
    rule=lambda m: Verdict.of(m.variance_low <= m.claimed_variance <= m.variance_high),
    said="At C = {clip_norm:g} and z = {z:g} Algorithm 1 draws noise of variance {variance:.3g}, not "
    "{claimed_variance:.3g}: C z is its standard deviation, {deviation:.3g}.",
    strength="measured ({draws:,} draws, 99.9 %: {variance_low:.3g} to {variance_high:.3g})",
    counter={"C z as variance": (HOLDS, {"variance_low": 0.049, "variance_high": 0.051})},
    pair=Pair("claimed_variance", "variance", "variance"),
)
def p6_variance(clip_norm: float = 0.5, z: float = 0.1) -> Measured:
    """The variance of one device's noise as Algorithm 1 draws it, beside the sentence about it."""
    drawn, low, high = deviation(_noise(1, DRAWS, clip_norm, z))
    return {
        "clip_norm": clip_norm, "z": z, "claimed_variance": clip_norm * z, "draws": DRAWS,
        "variance": drawn**2, "variance_low": low**2, "variance_high": high**2, "deviation": drawn,
    }  # fmt: skip


@claim(
    "P19",
    "Noise on each device before aggregation, instead of one noise after it, accelerates the computation.",
    source='section 3, "Micro-batch computations per GPU", last sentence',
    quote="relaxes the need for aggregation before noise addition and accelerates computation",
    rule=lambda m: (
        HOLDS
        if m.drawn_by_a_device < m.drawn_after_aggregation
        else UNTESTABLE
        if m.devices_timed < m.devices
        else Verdict.of(m.milliseconds_before_aggregation < m.milliseconds_after_aggregation)
    ),
    said="No draw is saved: after aggregation one noise vector of {drawn_after_aggregation:,} numbers is drawn, before "
    "it each of {devices} devices draws {drawn_by_a_device:,}. On one process that takes "
    "{milliseconds_before_aggregation:.2g} ms instead of {milliseconds_after_aggregation:.2g}. Whether eight GPUs save "
    "time because they need not wait for one another was not measured here.",
    strength="argued",
    counter={
        "a device draws its share only": (HOLDS, {"drawn_by_a_device": 125}),
        "eight devices timed, and slower": (
            FAILS,
            {"devices_timed": 8, "milliseconds_before_aggregation": 2.0, "milliseconds_after_aggregation": 1.0},
        ),
    },
)
def p19_time_of_noise(num_devices: int = NUM_GPUS, size: int = 500_000, rounds: int = 5) -> Measured:
    """Numbers drawn for the noise of one step, after aggregation and on each device before it; and how long that takes
    on one process, which simulates the devices one after another: the best of some rounds.
    """
    devices, key = _devices(num_devices), key_from_seed(19)
    seconds: dict[str, list[float]] = {"aggregate": [], "per-device": []}
    for step in range(rounds):
        for kind, taken in seconds.items():
            start = time.perf_counter()
            standard_noise(key, step, size, Share(kind, devices))
            taken.append(time.perf_counter() - start)
    once, each = (min(taken) for taken in seconds.values())
    few, counts = 10, []

    def normal(mean: float, std: float, shape: tuple[int, ...]) -> Vector:
        counts.append(math.prod(shape))
        return np.zeros(shape)

    counting = cast(Any, SimpleNamespace(normal=normal))
    algorithm_1(np.zeros((devices, few)), np.ones(few), 1.0, 1.0, counting)
    drawn = sum(counts) * size // few
    return {
        "devices": devices,
        "drawn_after_aggregation": size,
        "drawn_by_a_device": drawn // devices,
        "devices_timed": 1,
        "milliseconds_after_aggregation": 1e3 * once,
        "milliseconds_before_aggregation": 1e3 * each,
    }


@claim(
    "P22",
    "Our reading: the number of GPUs is free, and epsilon depends on z and the epochs only.",
    source='section 3, "Micro-batch computations per GPU", first paragraph; Algorithm 1, "Require"; Table 1, caption',
    quote="Given a batch of data points and n GPUs",
    rule=lambda m: Verdict.of(m.epsilon <= 1.01 * m.epsilon_with_fewest),
    said="The noise falls with N to the power {exponent_of_noise:.2f}, where the sensitivity falls with N to the power "
    "-1: one epoch at z = {z0:g} and micro-batch size {micro_batch} has epsilon {epsilon_with_fewest:.3g↑} with "
    "{fewest} GPU and {epsilon:.3g↑} with {most}; {claimed_epsilon:.2f} is claimed for any number (Gaussian DP, "
    "zero-out, delta {delta:g}).",
    strength="proven",
    counter={"the same for any number": (HOLDS, {"epsilon": 10.0, "epsilon_with_fewest": 10.0})},
    pair=Pair("claimed_epsilon", "epsilon", "ε"),
)
def p22_free_devices(
    counts: Sequence[int] = COUNTS, z0: float = 1.0, delta: float = DELTA, draws: int = DRAWS, micro_batch: int = 8
) -> Measured:
    """How the noise of the print falls with the number of devices, from 1 to 32, and epsilon of one epoch at `counts`.

    Alpha is public with largest value 1; `micro_batch` utterances share one clipped gradient.
    """
    rng = np.random.default_rng(0)
    noise = [deviation(algorithm_1(np.zeros((n, draws)), np.ones(draws), 1.0, z0, rng))[0] for n in COUNTS]
    settings = [Mechanism.as_printed(1.0, z0, n, micro_batch, alpha=Alpha.PUBLIC) for n in counts]
    epsilons = [true_epsilon(mechanism, 1, delta) for mechanism in settings]
    return {
        "fewest": min(counts), "most": max(counts), "micro_batch": micro_batch, "z0": z0,
        "claimed_epsilon": zcdp_epsilon(1 / (2 * z0**2), delta),
        "epsilon_with_fewest": epsilons[0], "epsilon": epsilons[-1], "delta": delta,
        "exponent_of_noise": float(np.polyfit(np.log(COUNTS), np.log(noise), 1)[0]), "exponent_claimed": -1.0,
    }  # fmt: skip
