"""What one training step releases: the frozen description that the step executes and the accountant judges.

Write u_i for the clipped micro-batch gradient of device i, ||u_i|| <= C. Both variants release

    (1/N) (sum_i u_i + noise),        noise ~ N(0, s^2 I)

and differ in s, and in the space in which the noise is added (see `Mechanism.noise_std`):

* ``as_printed``: Algorithm 1 of the paper verbatim. Every device adds y/N with std(y) = C z_t *after* the
  gradient was scaled back by alpha_k, so the sum carries s = C z_t / sqrt(N).
* ``sound``: noise in the scaled space, s = z_t * sensitivity, so that z_t is the noise multiplier that an
  accountant expects. Scaling back by alpha is post-processing and costs nothing.

There is no third place where sigma, C, N or alpha is written down.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from numbers import Integral
from typing import TypeVar

from edp_lab.errors import UsageError

Choice = TypeVar("Choice", bound=StrEnum)


class Decay(StrEnum):
    """How the noise multiplier falls with the epoch t = 0, 1, ...: z_t = z0 * d(t) (paper, section 3)."""

    NONE = "none"
    LINEAR = "linear"  # d(t) = 1 / (1 + tau t)
    EXPONENTIAL = "exponential"  # d(t) = exp(-tau t)

    def factor(self, epoch: int, tau: float) -> float:
        if self is Decay.LINEAR:
            return 1.0 / (1.0 + tau * epoch)
        return math.exp(-tau * epoch) if self is Decay.EXPONENTIAL else 1.0


class Variant(StrEnum):
    AS_PRINTED = "as-printed"
    SOUND = "sound"


class Alpha(StrEnum):
    """Where the layer scales alpha_k come from."""

    NONE = "none"  # alpha_k = 1
    PUBLIC = "public"  # gradient norms on public text
    PRIVATE = "private"  # gradient norms of the first private batch, as the paper does


class Adjacency(StrEnum):
    """When two corpora are neighbours; names as in dp_accounting."""

    ZERO_OUT = "REPLACE_SPECIAL"  # one utterance's slot stays and contributes no gradient
    REPLACE_ONE = "REPLACE_ONE"
    ADD_OR_REMOVE_ONE = "ADD_OR_REMOVE_ONE"


class NoGuarantee(Exception):  # noqa: N818 - an answer rather than a fault
    """Asked for a number that does not exist; the message says why."""


@dataclass(frozen=True)
class Mechanism:
    """One step of eDP-SGD. Build it with `Mechanism.as_printed` or `Mechanism.sound`, never directly.

    Attributes:
        clip_norm: C, the L2 bound on a device's scaled gradient.
        z0: the noise multiplier of the first epoch. As printed it is std(y)/C of one device's noise; sound,
            it is noise over sensitivity of what is released. At equal z0 the sound noise is 2 sqrt(N) times
            larger (sqrt(N) times at micro-batch size 1).
        num_devices: N.
        micro_batch_size: the most utterances that share one clipped gradient, ceil(|B| / N) in the paper.
        alpha: source of the layer scales; normalised so that their maximum is 1.

    Batches are disjoint: every epoch is one shuffled pass in which each utterance occurs exactly once.
    """

    variant: Variant
    clip_norm: float
    z0: float
    decay: Decay
    tau: float
    num_devices: int
    micro_batch_size: int
    alpha: Alpha

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
    ) -> Mechanism:
        """Algorithm 1 of the paper, verbatim: far less private than its z0 suggests."""
        rate, source = _choice(Decay, decay), _choice(Alpha, alpha)
        return cls(Variant.AS_PRINTED, clip_norm, z0, rate, tau, num_devices, micro_batch_size, source)

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
    ) -> Mechanism:
        """The version whose guarantee holds: central Gaussian noise, calibrated to the true sensitivity.

        Raises:
            UsageError: alpha from private gradients, which would be an unaccounted release.
        """
        rate, source = _choice(Decay, decay), _choice(Alpha, alpha)
        return cls(Variant.SOUND, clip_norm, z0, rate, tau, num_devices, micro_batch_size, source)

    def __post_init__(self) -> None:
        # A mechanism read back from a record holds plain strings, which `is` would misjudge.
        for name, kind in (("variant", Variant), ("decay", Decay), ("alpha", Alpha)):
            object.__setattr__(self, name, _choice(kind, getattr(self, name)))
        if self.variant is Variant.SOUND and self.alpha is Alpha.PRIVATE:
            raise UsageError(
                "alpha 'private' has no sound form: its values leak the first batch; use 'none' or 'public'"
            )
        _check("clip norm C", self.clip_norm, self.clip_norm > 0, "greater than 0")
        _check("noise multiplier z0", self.z0, self.z0 >= 0, "0 or more")
        _check("decay rate tau", self.tau, self.tau >= 0, "0 or more")
        for name, count in (
            ("number of devices N", self.num_devices),
            ("micro-batch size", self.micro_batch_size),
        ):
            _check(name, count, isinstance(count, Integral) and count >= 1, "a whole number, at least 1")

    def noise_multiplier_setting(self, epoch: int) -> float:
        """z_t = z0 d(t): the number the user set, in the variant's own meaning of z."""
        return self.z0 * self.decay.factor(epoch, self.tau)

    def sensitivity(self, adjacency: Adjacency = Adjacency.ZERO_OUT) -> float:
        """The L2 distance by which one utterance can move sum_i u_i.

        A micro-batch's *mean* gradient can be moved anywhere by one utterance, so its clipped value moves by
        up to 2C; only a micro-batch that is a single utterance, zeroed out, moves by C. As printed the sum is
        scaled back by alpha_k <= 1 before the noise, which leaves the bound as it is.

        Raises:
            NoGuarantee: add/remove, because removing an utterance shifts every later batch of a shuffled
                pass.
        """
        adjacency = _choice(Adjacency, adjacency)
        if adjacency is Adjacency.ADD_OR_REMOVE_ONE:
            raise NoGuarantee(
                "with disjoint shuffled batches, adding or removing one utterance shifts every later batch; "
                "use zero-out or replace-one adjacency"
            )
        single = self.micro_batch_size == 1 and adjacency is Adjacency.ZERO_OUT
        return self.clip_norm if single else 2 * self.clip_norm

    def noise_std(self, epoch: int) -> float:
        """Standard deviation s per coordinate of the noise on sum_i u_i, all devices together.

        As printed it is added after scaling back by alpha (isotropic in parameter space); sound, before
        (isotropic in the scaled space). Divide by N for the noise on the released mean.
        """
        z = self.noise_multiplier_setting(epoch)
        if self.variant is Variant.AS_PRINTED:
            return self.clip_norm * z / math.sqrt(self.num_devices)
        return z * self.sensitivity()

    def device_noise_std(self, epoch: int) -> float:
        """Standard deviation of the independent noise that each device adds to its share of the sum."""
        return self.noise_std(epoch) / math.sqrt(self.num_devices)

    def noise_multiplier(self, epoch: int, adjacency: Adjacency = Adjacency.ZERO_OUT) -> float:
        """The effective multiplier: true noise over true sensitivity.

        As printed: z_t / (2 sqrt(N)) (zero-out at
        micro-batch size 1: z_t / sqrt(N)).

        Raises:
            NoGuarantee: as `sensitivity`. Alpha from private gradients is judged by `edp_lab.privacy.judge`;
                the number given here then takes alpha to be public.
        """
        return self.noise_std(epoch) / self.sensitivity(adjacency)


def _choice(kind: type[Choice], value: str) -> Choice:
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(kind)
        raise UsageError(f"unknown {kind.__name__.lower()} {value!r}: choose one of {names}") from None


def _check(name: str, value: float, holds: bool, cure: str) -> None:
    if not (holds and value < math.inf):
        raise UsageError(f"{name} is {value}: it must be {cure}")
