"""The runs behind the paper's measured claims: Table 1 made anew, if it has been committed, and small ones.

Small ones are labelled as such wherever they are shown: a CLC with 64 hidden units on the health part of the embedded
corpus (667 training utterances), Algorithm 1 as printed with eight devices, three or five seeds. They take seconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from edp_lab.attacks.membership.attacks import equal_sides
from edp_lab.attacks.membership.signals import signals
from edp_lab.attacks.statistics import auc
from edp_lab.corpora import Corpus, Split, Utterance, load_corpus, split
from edp_lab.errors import UsageError
from edp_lab.privacy import Decay
from edp_lab.reproduce.claims import Told
from edp_lab.reproduce.results_io import RESULTS
from edp_lab.training import TrainConfig
from edp_lab.training.gradients import plain_gradient, trainable
from edp_lab.training.inference import evaluate_model
from edp_lab.training.optimizers import BETAS, make_optimizer
from edp_lab.training.processes import usable_cores
from edp_lab.training.result_cache import Say, run_jobs
from edp_lab.training.trainer import Trainer

CORPUS, EPOCHS = "smart-home-health", 8
SEEDS, FEW = (0, 1, 2, 3, 4), (0, 1, 2)  # of norms, and of whole runs
Z0, TAU = 0.003, 0.1
SMALL = f"small CLC, {CORPUS}, {EPOCHS} epochs, z0 {Z0:g}, loss attack, measured now"


@dataclass(frozen=True)
class Change:
    """Mean of a relative change over so many seeds, in percent, with the half-width of its 95 % interval."""

    mean: float
    half_width: float
    seeds: int = 3

    @classmethod
    def of(cls, before: Sequence[float], after: Sequence[float]) -> Change:
        """From two or more values on either side, paired by seed."""
        return cls(*mean_of(relative(before, after)), len(before))

    @property
    def falls(self) -> bool:
        """Beyond chance, if nothing else is tested beside it: see `beyond_chance`."""
        return self.mean < -self.half_width

    @property
    def p(self) -> float:
        """The chance of a mean as far from 0, on either side, if nothing had changed (Student's t)."""
        deviations = abs(self.mean) / max(self.half_width, 1e-12) * stdtrit(self.seeds - 1, 0.975)
        return float(2 * stdtr(self.seeds - 1, -deviations))


def mean_of(values: Sequence[float]) -> tuple[float, float]:
    """Mean of two or more values, and the half-width of its 95 % interval (Student's t)."""
    reach = stdtrit(len(values) - 1, 0.975) / math.sqrt(len(values))
    return float(np.mean(values)), float(reach * np.std(values, ddof=1))


def spread(**values: Sequence[float]) -> dict[str, float]:
    """Of each name's values the mean, and as NAME_half_width that of its interval, see `mean_of`."""
    found = {name: mean_of(own) for name, own in values.items()}
    return {name + end: one for name, own in found.items() for end, one in zip(("", "_half_width"), own, strict=True)}


def relative(before: Sequence[float], after: Sequence[float]) -> list[float]:
    """Changes in percent, pair by pair."""
    return [100 * (new / old - 1) for old, new in zip(before, after, strict=True)]


def beyond_chance(changes: Sequence[Change]) -> list[bool]:
    """Which of several changes are no chance, when the chance that any of these is one is to be 5 % (Holm 1979)."""
    found = [False] * len(changes)
    for rank, place in enumerate(sorted(range(len(changes)), key=lambda k: changes[k].p)):
        if changes[place].p * (len(changes) - rank) > 0.05:
            break
        found[place] = True
    return found


# ---- Table 1, made anew ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Anew:
    """One cell of Algorithm 1, `as printed` or `sound`: `ser`, `auc` (the paper's attack) and `loss_auc` are changes
    against SGD, `examples` its training utterances.

    Epsilon is as the paper accounts, rounded to six places, so that what is equal but for rounding is equal.
    """

    model: str
    corpus: str
    decay: Decay
    ser: Change
    auc: Change
    loss_auc: Change
    log10_epsilon: float
    examples: int
    variant: str = "as printed"


def table1_anew(path: Path = RESULTS / "table1.json", variants: Sequence[str] = ("as printed",)) -> tuple[Anew, ...]:
    """The cells of ``edp-lab reproduce table1 --json`` of some variants of Algorithm 1; none where the file is missing.

    Those of a single seed have no interval and are left out. UsageError where the file holds something else.
    """
    if not path.exists():
        return ()
    found = []
    try:
        for cell in json.loads(path.read_text(encoding="utf-8")):
            if cell["variant"] in variants and cell["seeds"] > 1:
                decay, claimed = cell["decay"], round(float(cell["log10_claimed"]), 6)
                ser, auc, loss_auc = (
                    Change(told["mean"], (told["high"] - told["low"]) / 2, cell["seeds"])
                    for told in (cell["ser_change"], cell["auc_change"], cell["loss_auc_change"])
                )
                setting = cell["model"], cell["corpus"], Decay(decay)
                about = claimed, int(cell["about"]["examples"]), cell["variant"]
                found.append(Anew(*setting, ser, auc, loss_auc, *about))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(
            f"{path} is not Table 1 ({type(error).__name__}: {error}): restore it, or make it "
            "anew with `edp-lab reproduce table1`"
        ) from None
    return tuple(found)


# ---- Small runs ------------------------------------------------------------------------------------------------------

PRINTED: dict[str, Any] = {"method": "edp-sgd", "as_printed": True, "z0": Z0, "tau": TAU}
SCHEMES: dict[str, dict[str, Any]] = {
    "no decay": PRINTED,
    "exponential decay": {**PRINTED, "decay": "exponential"},
    "DP-SGD": {"method": "dp-sgd", "sampling": "shuffle", "z0": Z0},
}


@dataclass(frozen=True)
class Outcome:
    """What one run came to."""

    ser: float  # semantic error rate on the test set, a fraction
    auc: float  # of an attack by the loss (Yeom et al. 2018)
    log10_epsilon: float | None  # by the paper's own accounting; None without noise
    noise_share: float | None  # how much of Adam's second moment is noise, in the median weight at the end; likewise


@cache
def data(seed: int) -> tuple[Corpus, Split]:
    corpus = load_corpus(CORPUS)
    return corpus, split(corpus, seed)


def small_config(seed: int, **settings: Any) -> TrainConfig:
    return TrainConfig(**{"corpus": CORPUS, "size": "small", "epochs": EPOCHS, "seed": seed, **settings})


def small_runs(
    told: Told, settings: Mapping[str, Mapping[str, Any]], seeds: Sequence[int] = FEW
) -> dict[str, tuple[Outcome, ...]]:
    """By name of settings, a run for each seed; all of them side by side, as in `runs_of`."""
    configs = {name: [small_config(seed, **own) for seed in seeds] for name, own in settings.items()}
    runs_of(", ".join(configs), told, [config for own in configs.values() for config in own])
    return {name: runs_of(name, told, own) for name, own in configs.items()}


def runs_of(what: str, told: Told, configs: Sequence[TrainConfig]) -> tuple[Outcome, ...]:
    """A run for each configuration, each trained once in a process. `told` hears what it is."""
    missing = [config for config in configs if config not in _TRAINED]

    def keep(place: int, outcome: Outcome) -> None:
        _TRAINED[missing[place]] = outcome

    run_jobs(small_run, missing, usable_cores(), lambda seed: told(f"training: {what}, {seed}"), keep)
    return tuple(_TRAINED[config] for config in configs)


_TRAINED: dict[TrainConfig, Outcome] = {}


def small_run(config: TrainConfig, say: Say) -> Outcome:
    """Train, in memory, and attack."""
    say(f"seed {config.seed}")
    corpus, parts = data(config.seed)
    run = Trainer(config, corpus, parts)
    while run.progress.epoch < config.epochs:
        run.epoch()
    members, non_members = equal_sides(parts, config.seed)
    scores = -signals(run.model, members + non_members).loss
    claimed = run.progress.rows[-1]["epsilon_claimed"]
    return Outcome(
        ser=evaluate_model(run.model, parts.test).ser,
        auc=auc(scores[: len(members)], scores[len(members) :]),
        log10_epsilon=math.log10(claimed) if claimed else None,
        noise_share=_noise_share(run),
    )


def _noise_share(run: Trainer) -> float | None:
    """The noise in Adam's second moment over all of it, at most 1: the median over weights, after the last step.

    Its std^2 is averaged as Adam averages squared gradients: a step counts for 1 - beta2, once more beta2 as much with
    each step that follows.
    """
    if run.private is None:
        return None
    steps, epochs = run.batches.steps_per_epoch, run.config.epochs
    weights = (1 - BETAS[1]) * BETAS[1] ** np.arange(steps * epochs)[::-1].reshape(epochs, steps)
    variances = np.square([run.private.noise_stds(epoch) for epoch in range(epochs)])  # (epochs, K)
    shares = []
    for (_, p), noise in zip(run.parameters, weights.sum(axis=1) @ variances, strict=True):
        second = run.optimizer.state[p]["exp_avg_sq"].clamp_min(1e-30)
        shares.append((float(noise) / second).clamp_max(1).flatten())
    return float(torch.cat(shares).median())


# ---- Gradients -------------------------------------------------------------------------------------------------------


@cache
def first_gradient_norms(replaced: int | None = None, seed: int = 0) -> dict[str, float]:
    """Norm of each parameter's gradient on the first batch of a small CLC, by name; neither clipped nor noised.

    These are the layer scales of the paper, but for a constant of proportionality that it does not give.

    `replaced`: place in the batch whose utterance is exchanged for one that is not in it; None: as it is.
    """
    corpus, parts = data(seed)
    run = Trainer(small_config(seed, method="sgd"), corpus, parts)
    [[batch]] = run.batches.devices(0, 0, 0)
    if replaced is not None:
        batch = batch.copy()
        batch[replaced] = next(k for k in range(len(parts.train)) if k not in batch)
    plain_gradient(run.model, run.train_data, batch, None, 1.0)
    return {name: float(torch.linalg.vector_norm(p.grad)) for name, p in trainable(run.model) if p.grad is not None}


@cache
def gradient_norms(seed: int, epochs: int = 6) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Norms of the batch's mean gradient by step and parameter tensor: (S, K) twice.

    First of a plain training from random weights on one half of the training set, then of the one that goes on from
    there, as fine-tuning does, on the other half.
    """
    corpus, parts = data(seed)
    config = small_config(seed, method="sgd", epochs=epochs, lr_schedule="constant")
    run, half = Trainer(config, corpus, parts), len(parts.train) // 2
    return _norms_by_step(run, parts.train[:half]), _norms_by_step(run, parts.train[half:])


def _norms_by_step(run: Trainer, utterances: Sequence[Utterance]) -> NDArray[np.float64]:
    config, parameters = run.config, [p for _, p in run.parameters]
    run.train_data = run.model.dataset(utterances)
    run.batches = config.batches(run.key, len(utterances))
    run.optimizer = make_optimizer(config.optimizer, parameters, config.learning_rate)
    rows = []
    for epoch in range(config.epochs):
        for step in range(run.batches.steps_per_epoch):
            run.progress.epoch, run.progress.step_in_epoch = epoch, step
            run.step()
            rows.append([0.0 if p.grad is None else float(torch.linalg.vector_norm(p.grad)) for p in parameters])
    return np.array(rows)
