"""Mechanism of a training step: an immutable description for the step and for the accountant.

Let u_i be the clipped micro-batch gradient of device i: divided by alpha_k in each layer k, it has a norm of at most C.
Both variants release

    (1/N) (sum_i u_i + A noise),        noise ~ N(0, s^2 I)

but differ in s (see `Mechanism.noise_std`) and A. As printed, A is the identity. In the sound variant, A multiplies
layer k by alpha_k, because the noise is added before scaling back:

* ``as_printed``: Algorithm 1 as printed in the paper. Every device adds y/N with std(y) = C z_t *after* the
  gradient is scaled back by alpha_k, so s = C z_t / sqrt(N).
* ``sound``: the noise is added in the scaled space with s = z_t * sensitivity, so z_t is the noise multiplier that
  an accountant expects. Scaling back by alpha is post-processing, which does not change epsilon.

If a device has several micro-batches (see `micro_batch_size`), the sum is over all micro-batches and is divided by
their fixed number instead of N. The guarantee stays the same. z0, C, N and alpha's source are defined only here.
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
# Limits far above realistic values, which keep all products of these numbers finite.
LARGEST = 1e12  # C, z0 and alpha
MOST = 10**6  # devices, utterances in a micro-batch, epochs
SMALLEST_RATE = 1e-9


class Decay(StrEnum):
    """Decay of the noise multiplier over the epochs t = 0, 1, ...: z_t = z0 * d(t) (paper, section 3)."""

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
    """Neighbouring relation of two corpora, named as in dp_accounting."""

    ZERO_OUT = "REPLACE_SPECIAL"  # one utterance's slot stays and contributes no gradient
    REPLACE_ONE = "REPLACE_ONE"
    ADD_OR_REMOVE_ONE = "ADD_OR_REMOVE_ONE"


class NoGuarantee(Exception):  # noqa: N818 - an expected outcome, not an error
    """Raised if a mechanism has no epsilon; the message gives the reason."""


@dataclass(frozen=True)
class Mechanism:
    """One step of eDP-SGD. Build it with `Mechanism.as_printed` or `Mechanism.sound`, never directly.

    Attributes:
        clip_norm: C, the L2 bound on a micro-batch's scaled gradient.
        z0: the noise multiplier in the first epoch. As printed, z0 is std(y)/C for the noise of one device; in the
            sound variant, z0 is the noise divided by the sensitivity. For the same z0, the sound noise is 2 sqrt(N)
            times larger (sqrt(N) times at micro-batch size 1).
        num_devices: the number N of devices.
        micro_batch_size: maximum number of utterances per clipped gradient: ceil(|B| / N) in the paper, 1 in
            per-example DP-SGD, or any number in between.
        alpha: source of the layer scales.
        alpha_max: the largest layer scale that the step accepts. `edp_lab.training.private_step` normalises the largest
            scale to 1: as printed, multiplying alpha by c is like multiplying C by c and dividing z0 by c.
        sampling_rate: None for disjoint batches (every epoch is one shuffled pass in which each utterance occurs
            exactly once); q for Poisson sampling (each utterance takes part in each step with probability q, alone at
            micro-batch size 1, otherwise in a micro-batch chosen by a keyed hash of its index). If batches were split
            by position, one extra utterance would shift all the others.
        exact_noise: whether the noise is an ideal normal, rounded together with the sum (see `exact_noise` in this
            package). Accounting then covers the actual release; with floating-point noise, it covers real numbers only.
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
        """Build Algorithm 1 as printed in the paper, which is far less private than its z0 suggests."""
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
        """Build the variant whose guarantee holds: central Gaussian noise, calibrated to the true sensitivity."""
        rate, scales = _choice(Decay, decay), _choice(Alpha, alpha)
        shape = (num_devices, micro_batch_size, scales, 1.0, sampling_rate, exact_noise)
        return cls(Variant.SOUND, clip_norm, z0, rate, tau, *shape)

    def __post_init__(self) -> None:
        check_types(self)
        # A mechanism from a record has plain strings, which cannot be compared by `is`.
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
                    "Algorithm 1 as printed uses disjoint batches and independent float noise: drop the sampling rate "
                    "and exact noise, or use the sound mechanism"
                )
        elif self.alpha is Alpha.PRIVATE:
            raise UsageError(
                "alpha 'private' guarantees nothing: its values leak the first batch; use 'public' or 'none'"
            )
        elif self.alpha_max != 1:
            raise UsageError("the sound mechanism adds noise before scaling back: leave the largest alpha at 1")

    @property
    def adjacency(self) -> Adjacency:
        """Default neighbouring relation: add/remove with Poisson sampling, zero-out with disjoint batches."""
        return Adjacency.ZERO_OUT if self.sampling_rate is None else Adjacency.ADD_OR_REMOVE_ONE

    def neighbours(self, adjacency: Adjacency | str | None) -> Adjacency:
        """Return the adjacency with this name (default: the mechanism's); raise UsageError if it is unknown."""
        return self.adjacency if adjacency is None else _choice(Adjacency, adjacency)

    @property
    def releases_per_epoch(self) -> int:
        """Number of releases per epoch in which an utterance may take part: 1, or ceil(1/q) with Poisson sampling."""
        return 1 if self.sampling_rate is None else math.ceil(1 / self.sampling_rate)

    def noise_multiplier_setting(self, epoch: int) -> float:
        """Return z_t = z0 d(t), with z as the variant defines it."""
        return self.z0 * float(self.decay.factors(np.array([epoch]), self.tau)[0])

    def sensitivity(self, adjacency: Adjacency | str | None = None) -> float:
        """Return the L2 distance by which one utterance can move sum_i u_i, in the space where the noise is added.

        One utterance can move the *mean* gradient of a micro-batch anywhere, so the clipped gradient moves by up to 2C
        under any adjacency. Only at micro-batch size 1 is it C, if the utterance is zeroed out, added or removed. As
        printed, scaling back by alpha comes before the noise and multiplies the bound by max alpha.

        Raises:
            NoGuarantee: for add/remove with disjoint batches, because removing an utterance shifts every later batch
                of a shuffled pass. With Poisson sampling, no accountant here covers replace-one, or zero-out if
                utterances are clipped together.
        """
        adjacency, sampled = self.neighbours(adjacency), self.sampling_rate is not None
        if not sampled and adjacency is Adjacency.ADD_OR_REMOVE_ONE:
            raise NoGuarantee(
                "with disjoint shuffled batches, adding or removing one utterance shifts every later batch; "
                "use zero-out or replace-one adjacency"
            )
        if sampled and adjacency is Adjacency.REPLACE_ONE:
            raise NoGuarantee(
                "replace-one is not supported with Poisson sampling: it removes one utterance and adds another; "
                "use add/remove with two utterances (--utterances-per-person 2)"
            )
        if sampled and adjacency is Adjacency.ZERO_OUT and self.micro_batch_size > 1:
            raise NoGuarantee(
                "with Poisson sampling, zero-out is supported only at micro-batch size 1: the empty slot changes the "
                "mean gradient of the other utterances; use add/remove"
            )
        single = self.micro_batch_size == 1 and adjacency is not Adjacency.REPLACE_ONE
        return (1 if single else 2) * self.clip_norm * self.alpha_max

    def noise_std(self, epoch: int) -> float:
        """Return the standard deviation s per coordinate of the total noise on sum_i u_i, from all devices.

        The noise is isotropic: as printed in the parameter space, in the sound variant in the scaled space.
        """
        z = self.noise_multiplier_setting(epoch)
        if self.variant is Variant.AS_PRINTED:
            return self.clip_norm * z / math.sqrt(self.num_devices)
        return z * self.sensitivity()

    def device_noise_std(self, epoch: int) -> float:
        """Return the standard deviation of the independent noise that each device adds to its share of the sum."""
        return self.noise_std(epoch) / math.sqrt(self.num_devices)

    def noise_multiplier(self, epoch: int, adjacency: Adjacency | str | None = None) -> float:
        """Return the effective multiplier, the true noise divided by the true sensitivity; this is not a guarantee.

        As printed, it is z_t / (2 sqrt(N) max alpha); for zero-out at micro-batch size 1, z_t / (sqrt(N) max alpha).
        """
        return self.noise_std(epoch) / self.sensitivity(adjacency)

    def why_no_guarantee(self) -> str:
        """Return the reason why this mechanism guarantees nothing for any number of epochs; otherwise empty."""
        if self.z0 == 0:
            return "z0 is 0: no noise is added, so epsilon is infinite"
        if self.alpha is Alpha.PRIVATE:
            return "alpha comes from private gradients and is released without being accounted for: no useful guarantee"
        return ""

    def with_public_alpha(self) -> Mechanism:
        """Return a copy that treats a private alpha as public; unchanged if alpha is not private."""
        return replace(self, alpha=Alpha.PUBLIC) if self.alpha is Alpha.PRIVATE else self


def check_sampling_rate(rate: float) -> None:
    if not SMALLEST_RATE <= rate <= 1:
        raise UsageError(
            f"sampling rate q is {rate}: it must be from {SMALLEST_RATE:g} to 1, and is the batch size divided by "
            "the number of utterances"
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
