"""Which utterance is where in which step: nobody twice, nobody forgotten, and nobody moved by a neighbour."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from edp_lab.training.trainer import Batches, Devices

KEY = 2**90 + 7
SHUFFLED = Batches(KEY, 103, 20, 4, 4, "shuffle", alone=False)
POISSON = Batches(KEY, 400, 32, 4, 8, "poisson", alone=False)
ALONE = Batches(KEY, 400, 32, 4, 32, "poisson", alone=True)
SECRET = [replace(one, secret=True) for one in (POISSON, ALONE)]


def everyone(devices: Devices) -> list[int]:
    return [int(k) for device in devices for part in device for k in part]


def places(devices: Devices) -> dict[int, tuple[int, int]]:
    """Device and micro-batch of each utterance."""
    return {int(k): (i, m) for i, device in enumerate(devices) for m, part in enumerate(device) for k in part}


@given(st.integers(1, 200), st.integers(1, 50), st.integers(1, 8), st.integers(1, 8))
def test_a_shuffled_epoch_meets_every_utterance_once_in_even_parts(examples, batch_size, devices, per_device):
    shape = (examples, batch_size, devices, devices * per_device, "shuffle")
    batches = Batches(KEY, *shape, alone=False, secret=examples % 2 == 0)
    seen: list[int] = []
    for step in range(batches.steps_per_epoch):
        dealt = batches.devices(0, step, step)
        sizes = [len(part) for device in dealt for part in device]
        assert [len(device) for device in dealt] == [per_device] * devices
        assert max(sizes) - min(sizes) <= 1
        seen += everyone(dealt)
    assert sorted(seen) == list(range(examples))


def test_orders_differ_and_poisson_micro_batches_are_as_likely_as_one_another_or_alone():
    orders = [everyone(b.devices(e, 0, 0)) for b in (SHUFFLED, replace(SHUFFLED, key=KEY + 1)) for e in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    numbers = [i * 2 + m for step in range(1000) for i, m in places(POISSON.devices(0, 0, step)).values()]
    assert stats.chisquare(np.bincount(numbers, minlength=8)).pvalue > 1e-4
    assert {len(part) for step in range(200) for device in ALONE.devices(0, 0, step) for part in device} == {1}


@pytest.mark.parametrize("batches", [POISSON, ALONE, *SECRET])
def test_each_utterance_takes_part_with_the_chance_that_is_accounted_for(batches):
    steps, rate = 4000, 32 / 400
    counts, together = np.zeros(400), 0
    for step in range(steps):
        drawn = everyone(batches.devices(0, 0, step))
        assert len(set(drawn)) == len(drawn)
        counts[drawn] += 1
        together += {0, 399} <= set(drawn)
    squares = ((counts - steps * rate) ** 2).sum() / (steps * rate * (1 - rate))
    assert 1e-4 < stats.chi2.cdf(squares, 400) < 1 - 1e-4
    assert stats.binomtest(together, steps, rate**2).pvalue > 1e-4  # independently


@pytest.mark.parametrize("batches", [POISSON, ALONE, *SECRET])
def test_one_utterance_more_moves_no_other(batches):
    """What add/remove adjacency under Poisson sampling rests on."""
    larger = replace(batches, examples=401, batch_size=32 * 401 / 400)  # type: ignore[arg-type]  # the same rate
    for step in range(100):
        few, many = batches.devices(0, 0, step), larger.devices(0, 0, step)
        with_it = {k: place for k, place in places(many).items() if k != 400}
        if batches.alone:  # the number of the micro-batch is only a position then
            assert {k: i for k, (i, _) in with_it.items()} == {k: i for k, (i, _) in places(few).items()}
        else:
            assert with_it == places(few)


def test_a_poisson_epoch_has_the_steps_that_are_accounted_for_in_which_nobody_may_be_drawn():
    assert POISSON.steps_per_epoch == math.ceil(400 / 32)
    assert replace(POISSON, examples=20).steps_per_epoch == 1
    for one in (POISSON, *SECRET):
        assert sorted(everyone(replace(one, examples=20).devices(0, 0, 3))) == list(range(20))  # q = 1
    rare = Batches(KEY, 10, 1, 2, 2, "poisson", alone=False)
    assert min(len(everyone(rare.devices(0, 0, step))) for step in range(50)) == 0
