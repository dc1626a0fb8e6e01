"""Audit the bare mechanism: run the real step on two neighbouring inputs, and compute a lower bound on epsilon.

One utterance, the canary, moves device 0's clipped gradient along a direction e. The gradient is +C e if the canary is
present. If it is zeroed out, the gradient is -C e, or 0 if the canary was alone in its micro-batch. An attacker who
sees the released gradient guesses "present" if its projection onto e is above the midpoint of the two means. This
threshold does not depend on the draws. If more guesses are correct than the claimed epsilon allows, the claim is
refuted at the stated confidence. No training or tuning is needed, because no other neighbours are further apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from numbers import Integral
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from edp_lab.attacks.statistics import Bounds, ErrorRate, check_confidence, error_rate, lower_bounds, upper_limit
from edp_lab.errors import UsageError
from edp_lab.privacy import Alpha, Guarantee, Mechanism, Variant, judge
from edp_lab.privacy.csprng import key_from_seed
from edp_lab.training.dp_step import release
from edp_lab.training.gradients import Layout, StackedGradients
from edp_lab.training.noise import float_noise

LAYOUT = Layout(("large", "small"), (slice(0, 4), slice(4, 8)))
ALPHA = torch.tensor([1.0, 0.5])
# In the as-printed variant, the layer with the largest alpha gets too little noise. In the sound variant, all layers
# are equally private if the noise is scaled back with the gradient; a test of this needs an alpha other than 1.
DIRECTIONS = {
    Variant.AS_PRINTED: torch.tensor([0.5] * 4 + [0.0] * 4),
    Variant.SOUND: torch.tensor([0.0] * 4 + [0.5] * 4),
}
FAR = 10.0  # norm, in multiples of the clip norm, of a gradient that is certain to be clipped
MOST_DRAWS = 2**31  # maximum per side, because every draw is a separate step and noise is keyed by a 32-bit step


# ---- Verdict on a claim ----------------------------------------------------------------------------------------------


class Finding(StrEnum):
    """Verdict of an audit, which can refute a claim but never prove one."""

    REFUTED = "refuted"
    CONSISTENT = "consistent"
    NO_POWER = "no power"  # even draws without a single error would not refute the claim


def claim_under_test(guarantee: Guarantee, mechanism: Mechanism) -> float:
    """Epsilon to test: the paper's zCDP claim (as printed) or the guaranteed epsilon (sound). UsageError if neither."""
    sound = mechanism.variant is Variant.SOUND
    claimed = guarantee.conditional_epsilon if sound else guarantee.claimed_epsilon
    if claimed is None:
        why = guarantee.reason if sound or mechanism.z0 == 0 else "the claimed epsilon exceeds the largest float"
        raise UsageError(f"there is no claim to audit ({why}): choose a larger z0")
    return claimed


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Claimed, guaranteed and measured epsilon, with the verdict."""

    verdict: Finding
    explanation: str
    claimed_epsilon: float  # see `claim_under_test`
    epsilon_if_seed_secret: float | None  # guaranteed for a secret seed and real numbers; None without a guarantee
    measured_epsilon: float  # lower bound on epsilon, at `confidence`
    ceiling: float  # lower bound that guesses without errors would yield
    confidence: float
    delta: float
    adjacency: str
    noise_multiplier: float  # actual standard deviation of the noise divided by the actual sensitivity
    mechanism: Mechanism

    @classmethod
    def of(
        cls,
        mechanism: Mechanism,
        guarantee: Guarantee,
        lower_bound: float,
        ceiling: float,
        confidence: float,
        evidence: str,
        observed: str = "",
        flawless: str = "a single error",
        remark: str = "",
        **subclass_fields: Any,
    ) -> Self:
        """Judge the claim by a lower bound, and explain the verdict.

        Args:
            evidence: such as "100 draws per side"; `observed`: its result; `flawless`: errors that `ceiling` excludes.
        """
        claimed = claim_under_test(guarantee, mechanism)
        shown = f"{observed}at {100 * confidence:.6g} % confidence epsilon is at least {lower_bound:.4g}"
        if lower_bound > claimed:
            verdict, why = Finding.REFUTED, f"refute the claim: {shown}, but {claimed:.4g} is claimed"
        elif ceiling <= claimed:
            most = f"even without {flawless} they would show no more than epsilon {ceiling:.4g}"
            verdict, why = Finding.NO_POWER, f"cannot test the claim: {most}, and {claimed:.4g} is claimed"
        else:
            nothing = "do not contradict the claim, which proves nothing"
            verdict, why = Finding.CONSISTENT, f"{nothing}: {shown}, and {claimed:.4g} is claimed"
        return cls(
            verdict=verdict,
            explanation=f"{evidence} {why}{remark}.",
            claimed_epsilon=claimed,
            epsilon_if_seed_secret=guarantee.conditional_epsilon,
            measured_epsilon=lower_bound,
            ceiling=ceiling,
            confidence=confidence,
            delta=guarantee.delta,
            adjacency=guarantee.adjacency,
            noise_multiplier=mechanism.noise_multiplier(0),
            mechanism=mechanism,
            **subclass_fields,
        )


# ---- One step --------------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    """Neighbouring inputs of the step."""

    present: Tensor  # (N, P) mean gradients of the devices with the canary
    absent: Tensor  # (N, P) the same without the canary
    alpha: Tensor | None  # (K) layer scales
    direction: Tensor  # (P) the unit vector e


@dataclass(frozen=True, kw_only=True)
class MechanismAudit(Audit):
    """Claimed, guaranteed and measured epsilon of one step; the lower bound assumes Gaussian noise."""

    epsilon_if_alpha_public: float | None  # guaranteed if alpha came from public text, as the draws assume
    bounds: Bounds
    draws: int
    false_positive_rate: ErrorRate  # rate of guessing "present" without the canary
    false_negative_rate: ErrorRate  # rate of guessing "absent" with the canary


def audit_mechanism(
    mechanism: Mechanism,
    delta: float,
    key: int,
    draws: int = 10_000,
    confidence: float = 0.95,
    progress: Callable[[int], None] | None = None,
) -> MechanismAudit:
    """Test the epsilon claimed for one step of the first epoch, with `draws` draws of that step per side.

    Args:
        key: 128-bit noise key; draw i uses the noise that training with this key would add at step i.
        progress: called regularly with the number of draws made, out of 2 `draws`.

    Guarantee: if the noise is as good as random, epsilon is at least `measured_epsilon` with probability
    `confidence`. So a true claim is refuted with probability at most 1 - `confidence`. Alpha from private gradients is
    audited as if it were public, which can only favour the claim. float32 noise is treated as exactly Gaussian.

    Raises UsageError for Poisson sampling, a mechanism that claims no finite epsilon, or a number out of range.
    """
    if mechanism.z0 == 0:
        raise UsageError("z0 is 0: no noise is added and epsilon is infinite; choose z0 greater than 0")
    if mechanism.sampling_rate is not None:
        raise UsageError(
            "this audit assumes that the canary is in the batch, which is random under Poisson sampling: audit the "
            "mechanism with disjoint batches"
        )
    if not (isinstance(draws, Integral) and 1 <= draws <= MOST_DRAWS):
        raise UsageError(f"the number of draws is {draws}: it must be a whole number from 1 to {MOST_DRAWS}")
    check_confidence(confidence)
    claim_under_test(judge(mechanism, 1, delta, seed_published=False), mechanism)  # raise UsageError before any draw
    return audit_draws(mechanism, delta, *draw_statistics(mechanism, draws, key, progress), confidence)


def audit_draws(
    mechanism: Mechanism, delta: float, absent: np.ndarray, present: np.ndarray, confidence: float = 0.95
) -> MechanismAudit:
    """Audit from equal numbers of draws without and with the canary: projections onto e, minus the means' midpoint.

    Raises UsageError if there is no finite claim or if delta is out of range.
    """
    guarantee, draws = judge(mechanism, 1, delta, seed_published=False), len(absent)
    fpr, fnr = (error_rate(wrong, confidence) for wrong in (absent > 0, present <= 0))
    bounds, least = lower_bounds(fpr.upper_limit, fnr.upper_limit, delta), upper_limit(0, draws, confidence)
    as_if = "; alpha was audited as if it were public, which can only help the claim"
    return MechanismAudit.of(
        mechanism,
        guarantee,
        bounds.gaussian,
        lower_bounds(least, least, delta).gaussian,
        confidence,
        f"{draws:,} draws per side",
        remark=as_if if mechanism.alpha is Alpha.PRIVATE else "",
        epsilon_if_alpha_public=guarantee.epsilon_if_alpha_public,
        bounds=bounds,
        draws=draws,
        false_positive_rate=fpr,
        false_negative_rate=fnr,
    )


class StepAudit(NamedTuple):
    """One step of the first epoch, drawn equally often without and with a canary."""

    seed: int
    audit: MechanismAudit
    absent: np.ndarray  # (draws) projections of the released gradient onto e, minus the midpoint of the means
    present: np.ndarray
    distance: float  # distance between the means
    std: float  # standard deviation of each side


class StepNoise:
    """Standard normal noise that training with this seed uses in many steps, projected onto each canary's direction.

    A step is linear in its noise, so the same draws can be reused for any C, z0, N and alpha_max. An `audit` takes
    milliseconds. `draws` is the maximum number of draws per side.
    """

    def __init__(self, seed: int, draws: int = 10_000) -> None:
        if seed < 0:
            raise UsageError(f"seed is {seed}: it must be 0 or more")
        key, self.seed = key_from_seed(seed), seed
        steps = torch.stack([float_noise(key, step, LAYOUT.size) for step in range(2 * draws)])
        self._along = {variant: (steps.double() @ e.double()).numpy() for variant, e in DIRECTIONS.items()}

    def audit(self, mechanism: Mechanism, delta: float, draws: int, confidence: float = 0.95) -> StepAudit:
        """Same draws and guarantee as `audit_mechanism` with this seed's key, but without alpha in the sound variant.

        Raises UsageError as `audit_mechanism` does, or if nothing is guaranteed.
        """
        distance, std = (x / mechanism.num_devices for x in (mechanism.sensitivity(), mechanism.noise_std(0)))
        along = std * self._along[mechanism.variant]
        absent, present = along[:draws] - distance / 2, along[draws : 2 * draws] + distance / 2
        audit = audit_draws(mechanism, delta, absent, present, confidence)
        if audit.epsilon_if_alpha_public is None:
            reason = judge(mechanism, 1, delta, seed_published=False).reason
            raise UsageError(f"there is no claim to audit ({reason}): choose a larger z0")
        return StepAudit(self.seed, audit, absent, present, distance, std)


def worst_case_pair(mechanism: Mechanism) -> Pair:
    """Zero-out neighbours whose clipped sums are as far apart as one utterance can move them.

    In a micro-batch of b utterances on device 0, all but the canary have gradient -10 C e, and the canary has
    (2 b - 1) 10 C e. So the mean is 10 C e with the canary and -10 C e (b - 1)/b without it, and both are clipped. At
    b = 1 the means are 10 C e and 0. The other devices have arbitrary gradients, the same in both inputs.
    """
    others = mechanism.clip_norm * torch.linspace(-1, 1, mechanism.num_devices * LAYOUT.size)
    present, absent = (others.view(mechanism.num_devices, LAYOUT.size).clone() for _ in range(2))
    b, far = mechanism.micro_batch_size, FAR * mechanism.clip_norm
    e = DIRECTIONS[mechanism.variant]
    present[0] = far * e
    absent[0] = -far * (b - 1) / b * e
    return Pair(present, absent, None if mechanism.alpha is Alpha.NONE else ALPHA, e)


def draw_statistics(
    mechanism: Mechanism, draws: int, key: int, progress: Callable[[int], None] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Projections of the released gradient onto e without and with the canary, minus the means' midpoint: (draws) each.

    Both are Gaussian with standard deviation `noise_std(0)` / N and means -d and +d, where 2 d = sensitivity / N (in
    the sound variant with alpha, multiply both by the alpha of the canary's layer).
    """
    # Rescale to make the largest alpha 1: step(s alpha, C, z) = step(alpha, s C, z / s).
    s = mechanism.alpha_max
    run = replace(mechanism, clip_norm=s * mechanism.clip_norm, z0=mechanism.z0 / s, alpha_max=1.0)
    pair = worst_case_pair(run)
    e = pair.direction.double().numpy()

    def projections(gradients: Tensor, noises: Iterable[Tensor]) -> np.ndarray:
        """Projections onto e of the real step's output for each noise tensor: (draws), float64."""
        stack = [StackedGradients(gradients, LAYOUT)]
        with torch.inference_mode():
            outputs = (release(run, 0, stack, LAYOUT, pair.alpha, noise).gradient for noise in noises)
            return np.fromiter((output.numpy() @ e for output in outputs), np.float64)

    def noise(steps: range) -> Iterator[Tensor]:
        for step in steps:
            if progress is not None and step % 100 == 0:
                progress(step)
            yield float_noise(key, step, LAYOUT.size)

    silence = torch.zeros(1, LAYOUT.size)
    midpoint = sum(projections(side, silence)[0] for side in (pair.absent, pair.present)) / 2
    absent = projections(pair.absent, noise(range(draws)))
    present = projections(pair.present, noise(range(draws, 2 * draws)))
    return absent - midpoint, present - midpoint
