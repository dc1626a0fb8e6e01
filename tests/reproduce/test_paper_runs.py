"""Small runs behind the paper's claims: trained once, side by side, with the same results as one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from edp_lab.reproduce.claims import Verdict
from edp_lab.reproduce.paper import claims_measured as gradients
from edp_lab.reproduce.paper import claims_mechanism as mechanism
from edp_lab.reproduce.paper import runs
from edp_lab.training import result_cache
from edp_lab.training.processes import Ranks


@pytest.fixture
def one_epoch(monkeypatch):
    monkeypatch.setattr(runs, "EPOCHS", 1)


def test_a_small_run_is_trained_once_and_measured(one_epoch):
    told: list[str] = []
    first = runs.small_runs("SGD", told.append, seeds=(0,), method="sgd")
    assert told == ["training: SGD, seed 0"]
    again = runs.small_runs("SGD", told.append, seeds=(0,), method="sgd")
    assert again[0] is first[0]
    assert len(told) == 1
    assert first[0].noise_share is first[0].log10_epsilon is None
    [noised] = runs.small_runs("no decay", seeds=(0,), **{**runs.PRINTED, "z0": 1.0})
    assert noised.noise_share is not None
    assert noised.noise_share > 0.9
    decay = {"z0": 1.0, "decay": "exponential", "tau": 0.5, "epochs": 2}  # the first epoch's noise is remembered
    [decayed] = runs.small_runs("decay", seeds=(0,), **{**runs.PRINTED, **decay})
    assert decayed.noise_share > 0.9
    assert noised.log10_epsilon is not None


def test_runs_side_by_side_are_those_of_one_process_and_an_end_ends_them(one_epoch, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "usable_cores", lambda: 2)
    told: list[str] = []
    several = runs.small_runs("SGD", told.append, seeds=(3, 4, 5), method="sgd")
    assert sorted(told) == [f"training: SGD, seed {seed}" for seed in (3, 4, 5)]
    torch.set_num_threads(1)
    alone = [runs.small_run(runs.small_config(seed, method="sgd"), lambda what: None) for seed in (3, 4, 5)]
    assert several == tuple(alone)

    def stop(what: str) -> None:
        raise KeyboardInterrupt

    ranks: list[Any] = []
    monkeypatch.setattr(result_cache, "Ranks", lambda *a, **b: ranks.append(Ranks(*a, **b)) or ranks[-1])
    with pytest.raises(KeyboardInterrupt):
        runs.small_runs("DP-SGD", stop, seeds=(3, 4), **runs.SCHEMES["DP-SGD"])
    assert len(ranks) == 2
    assert all(rank.poll() is not None for worker in ranks for rank in worker._ranks)


def test_one_utterance_moves_the_norms_of_the_first_gradient(one_epoch):
    norms, neighbour = runs.first_gradient_norms(), runs.first_gradient_norms(3)
    assert norms == runs.first_gradient_norms()
    assert norms.keys() == neighbour.keys()
    assert mechanism.p4_private_scales(norms, neighbour).verdict == Verdict.FAILS


def test_norms_are_followed_through_both_trainings():
    random, tuned = runs.gradient_norms(1)
    assert random.shape == tuned.shape
    assert random.min() > 0
    assert gradients.p7_first_norm(random, tuned).measured["steps"] == len(random)
    assert gradients.p7_first_norm(np.ones((3, 2)), np.ones((3, 2))).verdict == Verdict.HOLDS
