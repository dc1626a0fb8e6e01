"""Random settings, judged by hand with dp_accounting: no epsilon of ours is too small, whatever was trained.

The releases are written down from the noise that a step adds and the distance by which one utterance moves it, not from
the schedule that our accountants compose. EDP_LAB_LONG=1 tries fifty times as many settings.
"""

import math
import os
from functools import reduce
from typing import NamedTuple

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from edp_lab.privacy import Mechanism, judge
from edp_lab.privacy.csprng import Purpose, SecretStream, key_from_seed

TIMES = 50 if os.environ.get("EDP_LAB_LONG") == "1" else 1
FINENESS = 50  # grid steps of dp_accounting's distributions per release and unit of our epsilon


class Release(NamedTuple):
    """So many Gaussian releases: noise of this std, which one utterance moves by `shift` with probability `rate`."""

    std: float
    shift: float
    times: int
    rate: float


def at_least(releases: list[Release], delta: float, epsilon: float) -> float:
    """Optimistic epsilon by dp_accounting, losses rounded down: a lower bound on every true epsilon."""
    width = epsilon / (FINENESS * max(5, sum(one.times for one in releases)))
    distributions = [
        pld.from_gaussian_mechanism(
            one.std,
            sensitivity=one.shift,
            value_discretization_interval=width,
            sampling_prob=one.rate,
            pessimistic_estimate=False,
            use_connect_dots=False,
        ).self_compose(one.times)
        for one in releases
    ]
    return float(reduce(lambda total, one: total.compose(one), distributions).get_epsilon_for_delta(delta))


def logarithmic(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log10(low), math.log10(high)).map(lambda power: 10**power)


SHUFFLED = st.none()
SAMPLED = logarithmic(5e-3, 0.5)


def judged(
    rate: float | None, micro_batch_size: int, alpha: str, z0: float, epochs: int, delta: float
) -> tuple[float, float]:
    """Guaranteed epsilon of a sound run of eDP-SGD, and dp_accounting's lower bound on the true one."""
    mechanism = Mechanism.sound(0.7, z0, 3, micro_batch_size, "linear", 0.2, alpha, rate)
    epsilon = judge(mechanism, epochs, delta, seed_published=False).epsilon
    assert epsilon is not None
    if not 0.05 <= epsilon <= 12:  # beyond, dp_accounting takes long
        return epsilon, 0.0
    shift = 0.7 * (1 if micro_batch_size == 1 else 2)  # the clipped mean of several may turn round
    steps, chance = (1, 1.0) if rate is None else (math.ceil(1 / rate), rate)
    releases = [Release(mechanism.noise_std(epoch), shift, steps, chance) for epoch in range(epochs)]
    if alpha == "noised":
        releases.append(Release(mechanism.scales_noise_std(), shift, 1, chance))
    return epsilon, at_least(releases, delta, epsilon)


@settings(max_examples=15 * TIMES, deadline=None)
@given(
    rate=SHUFFLED | SAMPLED,
    micro_batch_size=st.sampled_from([1, 2, 8]),
    alpha=st.sampled_from(["none", "noised"]),
    z0=logarithmic(0.5, 15),
    epochs=st.integers(1, 3),
    delta=logarithmic(1e-8, 1e-3),
)
@example(rate=0.01, micro_batch_size=2, alpha="none", z0=1.0, epochs=1, delta=1e-5)
def test_no_epsilon_is_below_dp_accountings_optimistic_one(
    rate: float | None, micro_batch_size: int, alpha: str, z0: float, epochs: int, delta: float
) -> None:
    epsilon, bound = judged(rate, micro_batch_size, alpha, z0, epochs, delta)
    assume(bound > 0)
    assert epsilon >= bound * (1 - 1e-6)


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        ("sensitivity", lambda self, adjacency=None: self.clip_norm),  # also where several share a clip
        ("releases_per_epoch", property(lambda self: int(0.5 / self.sampling_rate))),
        ("scales_noise_std", lambda self: 0.5 * self.z0 * self.sensitivity()),
    ],
)
def test_a_step_that_does_other_than_is_accounted_is_noticed(
    fault: str, wrong: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mechanism, fault, wrong)
    epsilon, bound = judged(0.05, 2, "noised", 2.0, 2, 1e-5)
    assert epsilon < bound * (1 - 1e-6)


def test_streams_of_noise_do_not_repeat() -> None:
    """Other keys, steps and devices, a third each. A generator with 32 seed bits would repeat some of a million."""
    firsts = np.empty((30_000 * TIMES, 1), dtype=np.uint64)
    for draw, number in zip(firsts, range(len(firsts)), strict=True):
        kind, place = number % 3, number // 3
        key = key_from_seed(place if kind == 0 else -1)
        SecretStream(key, Purpose.NOISE, *((0, 0), (place, 0), (0, place + 1))[kind]).fill(draw)
    assert len(np.unique(firsts)) == len(firsts)
