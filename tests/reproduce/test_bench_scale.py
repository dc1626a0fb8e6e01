"""The benchmark of corpus sizes: memory and time per utterance do not grow with the corpus, and guesses are marked."""

from __future__ import annotations

import pytest

from edp_lab.errors import UsageError
from edp_lab.reproduce.bench.train_step import NETWORKS, bench_scale, extrapolated


def test_twenty_times_the_utterances_take_no_more_memory_to_train_on():
    small, large = bench_scale((2_000, 40_000), steps=2, size="small", threads=1)
    assert large["train_utterances"] == 20 * small["train_utterances"] == 18_000
    assert large["peak_memory_mb"] < small["peak_memory_mb"] + 60
    assert large["parameters"] == small["parameters"]
    assert large["allreduce_bytes"] == 4 * large["parameters"]


def test_an_epoch_on_eight_gpus_is_their_share_and_a_ring_around_them():
    row = {"share_seconds": 0.01, "allreduce_bytes": 20_000_000, "steps_per_epoch": 100}
    one, several = extrapolated(row)
    assert several["step_seconds"] == pytest.approx(0.01 + 1.75 * 20e6 / 1.25e9)
    assert one["epoch_seconds"] == pytest.approx(100 * (0.01 + 1.75 * 20e6 / 100e9))
    assert [guess["network"] for guess in (one, several)] == list(NETWORKS)
    assert not one["measured"]


@pytest.mark.parametrize(("sizes", "steps"), [((), 5), ((10,), 5), ((2000,), 1)])
def test_bad_input_is_refused(sizes, steps):
    with pytest.raises(UsageError, match="at least"):
        next(bench_scale(sizes, steps))
