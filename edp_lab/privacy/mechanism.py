"""Mechanism of a training step: the frozen description that the step executes and the accountant judges.

Let u_i be the clipped micro-batch gradient of device i: divided by alpha_k in each layer k, its norm is at most C. Both
variants release

    (1/N) (sum_i u_i + A noise),        noise ~ N(0, s^2 I)

and differ in s (see `Mechanism.noise_std`) and in A. As printed, A is the identity; in the sound variant it multiplies
layer k by alpha_k, because the noise is added before scaling back:

* ``as_printed``: Algorithm 1 of the paper verbatim. Every device adds y/N with std(y) = C z_t *after* the
  gradient was scaled back by alpha_k, so the sum carries s = C z_t / sqrt(N).
* ``sound``: noise in the scaled space, s = z_t * sensitivity, so that z_t is the noise multiplier that an
  accountant expects. Scaling back by alpha is post-processing and costs nothing.

If a device holds several micro-batches (the ladder, `micro_batch_size`), the sum runs over all of them and is divided
by their fixed number instead of N; neither affects the guarantee. z0, C, N and alpha's source are defined only here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from numbers import Integral
from typing import TypeVar

import numpy as np

from edp_lab.errors import UsageError, check_types

Choice = TypeVar("Choice", bound=StrEnum)
# Far above realistic values; they keep every product of these numbers finite.
LARGEST = 1e12  # C, z0 and alpha
MOST = 10**6  # devices, utterances in a micro-batch, epochs
SMALLEST_RATE = 1e-9


class Decay(StrEnum):
    """How the noise multiplier falls with the epoch t = 0, 1, ...: z_t = z0 * d(t) (paper, section 3)."""

    NONE = "none"
    LINEAR = "linear"  # d(t) = 1 / (1 + tau t)
    EXPONENTIAL = "exponential"  # d(t) = exp(-tau t)

    def factors(self, epochs: np.ndarray, tau: float) -> np.ndarray:
        """d(t) for each epoch number: (T) -> (T)."""
        if self is Decay.LINEAR:
            return 1.0 / (1.0 + tau * epochs)
        return np.exp(-tau * epochs) if self is Decay.EXPONENTIAL else np.ones(len(epochs))


class Variant(StrEnum):
    AS_PRINTED = "as-printed"
    SOUND = "sound"


class Alpha(StrEnum):
    """Source of the layer scales alpha_k."""

    NONE = "none"  # alpha_k = 1
    PUBLIC = "public"  # gradient norms on public text
    PRIVATE = "private"  # gradient norms of the first private batch, as the paper does


class Adjacency(StrEnum):
    """When two corpora are neighbours; names as in dp_accounting."""

    ZERO_OUT = "REPLACE_SPECIAL"  # one utterance's slot stays and contributes no gradient
    REPLACE_ONE = "REPLACE_ONE"
    ADD_OR_REMOVE_ONE = "ADD_OR_REMOVE_ONE"


class NoGuarantee(Exception):  # noqa: N818 - an expected outcome, not an error
    """There is no epsilon for this mechanism; the message says why."""


@dataclass(frozen=True)
class Mechanism:
    """One step of eDP-SGD. Build it with `Mechanism.as_printed` or `Mechanism.sound`, never directly.

    Attributes:
        clip_norm: C, the L2 bound on a micro-batch's scaled gradient.
        z0: the noise multiplier of the first epoch. As printed it is std(y)/C of one device's noise; in the sound
            variant it is noise divided by the sensitivity of what is released. At equal z0 its noise is 2 sqrt(N) times
            larger (sqrt(N) times at micro-batch size 1).
        num_devices: N.
        micro_batch_size: the most utterances that share one clipped gradient: ceil(|B| / N) in the paper, 1 in
            per-example DP-SGD; in between lies the ladder.
        alpha: source of the layer scales.
        alpha_max: the largest layer scale that the step accepts. `edp_lab.training.private_step` makes scales whose
            largest is 1: as printed, scaling alpha by s equals scaling C by s and z by 1/s.
        sampling_rate: None for disjoint batches (every epoch is one shuffled pass in which each utterance occurs
            exactly once); q for Poisson sampling (each utterance takes part in each step with probability q, in a
            micro-batch chosen by a keyed hash of its index: if batches were split by position, one extra utterance
            would shift all the others; at micro-batch size 1 it is always alone).
        exact_noise: the noise is an ideal normal, rounded together with the sum (`edp_lab.privacy.exact_noise`), so
            that the accounting covers what is released. Otherwise it is a float, and only real numbers are covered.
    """

    variant: Variant
    clip_norm: float
    z0: float
    decay: Decay
    tau: float
    num_devices: int
    micro_batch_size: int
    alpha: Alpha
    alpha_max: float = 1.0
    sampling_rate: float | None = None
    exact_noise: bool = False

    @classmethod
    def as_printed(
        cls,
        clip_norm: float,
        z0: float,
        num_devices: int,
        micro_batch_size: int,
        decay: Decay | str = Decay.NONE,
        tau: float = 0.0,
        alpha: Alpha | str = Alpha.PRIVATE,
        alpha_max: float = 1.0,
    ) -> Mechanism:
        """Algorithm 1 of the paper, verbatim: far less private than its z0 suggests."""
        rate, scales = _choice(Decay, decay), _choice(Alpha, alpha)
        return cls(Variant.AS_PRINTED, clip_norm, z0, rate, tau, num_devices, micro_batch_size, scales, alpha_max)

    @classmethod
    def sound(
        cls,
        clip_norm: float,
        z0: float,
        num_devices: int,
        micro_batch_size: int,
        decay: Decay | str = Decay.NONE,
        tau: float = 0.0,
        alpha: Alpha | str = Alpha.NONE,
        sampling_rate: float | None = None,
        exact_noise: bool = True,
    ) -> Mechanism:
        """The version whose guarantee holds: central Gaussian noise, calibrated to the true sensitivity."""
        rate, scales = _choice(Decay, decay), _choice(Alpha, alpha)
        shape = (num_devices, micro_batch_size, scales, 1.0, sampling_rate, exact_noise)
        return cls(Variant.SOUND, clip_norm, z0, rate, tau, *shape)

    def __post_init__(self) -> None:
        check_types(self)
        # A mechanism read back from a record holds plain strings, which `is` would misjudge.
        for name, choices in (("variant", Variant), ("decay", Decay), ("alpha", Alpha)):
            object.__setattr__(self, name, _choice(choices, getattr(self, name)))
        positive, whole = f"greater than 0, at most {LARGEST:g}", f"a whole number, at least 1 and at most {MOST:,}"
        above_0 = math.ulp(0.0)
        for name, title, kind, least, most, hint in (
            ("clip_norm", "clip norm C", float, above_0, LARGEST, positive),
            ("z0", "noise multiplier z0", float, 0, LARGEST, f"0 or more, at most {LARGEST:g}"),
            ("tau", "decay rate tau", float, 0, math.inf, "0 or more"),
            ("alpha_max", "largest layer scale alpha", float, above_0, LARGEST, positive),
            ("num_devices", "number of devices N", int, 1, MOST, whole),
            ("micro_batch_size", "micro-batch size", int, 1, MOST, whole),
        ):
            value = getattr(self, name)
            _check(title, value, (kind is float or isinstance(value, Integral)) and least <= value <= most, hint)
            object.__setattr__(self, name, kind(value))
        if self.alpha is Alpha.NONE and self.alpha_max != 1:
            raise UsageError(f"alpha 'none' means that every layer scale is 1, not {self.alpha_max}: choose 'public'")
        if self.sampling_rate is not None:
            check_sampling_rate(self.sampling_rate)
        if self.variant is Variant.AS_PRINTED:
            if self.sampling_rate is not None or self.exact_noise:
                raise UsageError(
                    "Algorithm 1 as printed has disjoint batches and independent float noise: drop the sampling rate "
                    "and exact noise, or use the sound mechanism"
                )
        elif self.alpha is Alpha.PRIVATE:
            raise UsageError(
                "alpha 'private' guarantees nothing: its values leak the first batch; use 'public' or 'none'"
            )
        elif self.alpha_max != 1:
            raise UsageError("the sound mechanism adds its noise before scaling back: leave the largest alpha at 1")

    @property
    def adjacency(self) -> Adjacency:
        """The neighbours that sampling allows: add/remove under Poisson sampling, zero-out with disjoint batches."""
        return Adjacency.ZERO_OUT if self.sampling_rate is None else Adjacency.ADD_OR_REMOVE_ONE

    def neighbours(self, adjacency: Adjacency | str | None) -> Adjacency:
        """The adjacency of that name (UsageError if there is none); None is the mechanism's own."""
        return self.adjacency if adjacency is None else _choice(Adjacency, adjacency)

    @property
    def releases_per_epoch(self) -> int:
        """In how many releases of an epoch one utterance may take part: 1, or ceil(1/q) under Poisson sampling."""
        return 1 if self.sampling_rate is None else math.ceil(1 / self.sampling_rate)

    def noise_multiplier_setting(self, epoch: int) -> float:
        """z_t = z0 d(t): the number the user set, in the variant's own meaning of z."""
        return self.z0 * float(self.decay.factors(np.array([epoch]), self.tau)[0])

    def sensitivity(self, adjacency: Adjacency | str | None = None) -> float:
        """The L2 distance by which one utterance can move sum_i u_i, in the space where the noise is added.

        A micro-batch's *mean* gradient can be moved anywhere by one utterance, so its clipped value moves by
        up to 2C, under any adjacency; only a micro-batch that is a single utterance moves by C when that is zeroed
        out, added or removed. As printed, scaling back by alpha comes before the noise and stretches the
        bound by max alpha.

        Raises:
            NoGuarantee: add/remove with disjoint batches, because removing an utterance shifts every later batch of
                a shuffled pass; under Poisson sampling replace-one, and zero-out where utterances share a clip, which
                no accountant here bounds.
        """
        adjacency, sampled = self.neighbours(adjacency), self.sampling_rate is not None
        if not sampled and adjacency is Adjacency.ADD_OR_REMOVE_ONE:
            raise NoGuarantee(
                "with disjoint shuffled batches, adding or removing one utterance shifts every later batch; "
                "use zero-out or replace-one adjacency"
            )
        if sampled and adjacency is Adjacency.REPLACE_ONE:
            raise NoGuarantee(
                "replace-one is not supported under Poisson sampling: it is one utterance removed and one added; "
                "use add/remove with two of them (--utterances-per-person 2)"
            )
        if sampled and adjacency is Adjacency.ZERO_OUT and self.micro_batch_size > 1:
            raise NoGuarantee(
                "under Poisson sampling zero-out is supported only at micro-batch size 1: an empty slot that remains "
                "changes the mean of the others; use add/remove"
            )
        single = self.micro_batch_size == 1 and adjacency is not Adjacency.REPLACE_ONE
        return (1 if single else 2) * self.clip_norm * self.alpha_max

    def noise_std(self, epoch: int) -> float:
        """Standard deviation s per coordinate of the noise on sum_i u_i, all devices together.

        As printed, the noise is isotropic in parameter space; in the sound variant, in the scaled space.
        """
        z = self.noise_multiplier_setting(epoch)
        if self.variant is Variant.AS_PRINTED:
            return self.clip_norm * z / math.sqrt(self.num_devices)
        return z * self.sensitivity()

    def device_noise_std(self, epoch: int) -> float:
        """Standard deviation of the noise that each device adds to its share of the sum, independently."""
        return self.noise_std(epoch) / math.sqrt(self.num_devices)

    def noise_multiplier(self, epoch: int, adjacency: Adjacency | str | None = None) -> float:
        """The effective multiplier, true noise over true sensitivity; a description, not a guarantee.

        As printed: z_t / (2 sqrt(N) max alpha) (zero-out at micro-batch size 1: z_t / (sqrt(N) max alpha)).
        """
        return self.noise_std(epoch) / self.sensitivity(adjacency)

    def why_no_guarantee(self) -> str:
        """Why this mechanism guarantees nothing, whatever the number of epochs; empty if it does."""
        if self.z0 == 0:
            return "z0 is 0: no noise is added, so epsilon is infinite"
        if self.alpha is Alpha.PRIVATE:
            return "alpha comes from private gradients and is released without being accounted for: no useful guarantee"
        return ""

    def with_public_alpha(self) -> Mechanism:
        """A copy that treats a private alpha as public; unchanged if alpha is not private."""
        return replace(self, alpha=Alpha.PUBLIC) if self.alpha is Alpha.PRIVATE else self


def check_sampling_rate(rate: float) -> None:
    if not SMALLEST_RATE <= rate <= 1:
        raise UsageError(
            f"sampling rate q is {rate}: it must be above 0 (from {SMALLEST_RATE:g}) and at most 1; it is the "
            "batch size over the number of utterances"
        )


def _choice(kind: type[Choice], value: str) -> Choice:
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(kind)
        raise UsageError(f"unknown {kind.__name__.lower()} {value!r}: choose one of {names}") from None


def _check(name: str, value: float, holds: bool, hint: str) -> None:
    if not (holds and value < math.inf):
        raise UsageError(f"{name} is {value}: it must be {hint}")
