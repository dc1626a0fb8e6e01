"""Notebook 09: real processes are started, missing measurements are reported, and common mistakes are recognised. The
contract of all panels is in `test_contract`."""

import math
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from edp_lab.course.nb09_devices import panels
from edp_lab.jobs import RESULTS, read_kept
from edp_lab.reproduce.table2 import METHODS
from edp_lab.training.config import TrainConfig
from tests.course.conftest import prediction
from tests.course.examples import Wrong

pytestmark = pytest.mark.usefixtures("one_thread")


def test_command_makes_this_very_run(trained: Any) -> None:
    config = panels.Processes(TrainConfig("smart-home", size="small", processes=2)).prepare()
    make, run = panels.run_command(config).splitlines()
    assert make == "edp-lab data make smart-home --utterances 600 --out little.jsonl"
    assert trained(run) == replace(config, corpus="little.jsonl")
    other = panels.run_command(replace(config, processes=1)).splitlines()[1]
    assert shlex.split(run)[-1] != shlex.split(other)[-1]  # different processes, different folder


def test_committed_rows_say_how_they_were_measured() -> None:
    rows = read_kept(RESULTS / "bench_step.json")
    assert {row["method"] for row in rows} == {*METHODS, "opacus"}
    for row in rows:
        assert {"date", "machine", "versions"} <= row.keys()
        assert row["command"].startswith("edp-lab reproduce table2")


def draws(seed: Callable[[int, int, int], Any], scale: Callable[[int], float] = lambda n: 1 / math.sqrt(n)) -> Any:
    """A rank's noise from a seed computed from key, step and rank, with `scale` times the total standard deviation."""
    return lambda key, step, rank, ranks, size, std: np.random.default_rng(seed(key, step, rank)).normal(
        0, std * scale(ranks), size
    )


COMES_AGAIN = "numbers of one step recur in the next"
UNKEYED = "in step 0 another key gives the same numbers"
guess = partial(prediction, "09", "processes")
WRONG: dict[str, dict[str, Any]] = {
    "aggregate": {
        "takes the draws for one and the same": lambda stds: np.mean(stds),
        "adds up and forgets the mean": lambda stds: np.sqrt(np.sum(stds**2)),
        "divides by the root only": lambda stds: np.sqrt(np.sum(stds**2)) / np.sqrt(len(stds)),
        "the spread of the deviations": lambda stds: np.std(stds),
    },
    "processes": {
        "two processes draw twice as much": guess("stays", "rises", "rises", "falls"),
        "half the noise for each, half the privacy": guess("falls", "stays", "falls", "rises"),
        "other numbers, another gradient": guess("falls", "stays", "rises", "stays"),
        "two processes share the work of all": guess("falls", "falls", "stays", "stays"),
    },
    "ranks": {
        "divides, but all ranks draw the same": Wrong(
            draws(lambda key, step, rank: [key, step], lambda ranks: 1 / ranks), "ranks 0 and 1 draw the same numbers"
        ),
        "own draws, not divided": Wrong(draws(lambda *own: own, lambda ranks: 1.0), "ranks has standard deviation"),
        "own draws, divided like a mean": draws(lambda *own: own, lambda ranks: 1 / ranks),
        "the same numbers in every step": Wrong(draws(lambda key, step, rank: [key, rank]), COMES_AGAIN),
        "seeds of rank and step meet": Wrong(draws(lambda key, step, rank: key + step + rank), COMES_AGAIN),
        "step and rank, but no key": Wrong(draws(lambda key, step, rank: [step, rank]), UNKEYED),
        "no seed at all": Wrong(draws(lambda *own: None), "returns other numbers"),
        "step 0 loses the key": Wrong(draws(lambda key, step, rank: key * step + rank), UNKEYED),
    },
}
