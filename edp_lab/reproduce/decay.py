"""Does noise that decays pay? Runs at one epsilon under a constant learning rate, as a falling one hides late noise.

    python -m edp_lab.reproduce.decay FILE atis snips

FILE gets a row for each corpus, seed and decay as soon as it is there; after an interruption the same command goes on.
The paper names forms and rates of decay, no schedule: these are the ends of its grids (section 4.2) and two between.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from edp_lab.corpora import load_corpus, split
from edp_lab.privacy import Decay
from edp_lab.reproduce.paper.runs import Change
from edp_lab.reproduce.paper.table1 import under
from edp_lab.reproduce.results_io import changed_settings, grow
from edp_lab.training import TrainConfig
from edp_lab.training.inference import evaluate_model
from edp_lab.training.trainer import Trainer

COMMAND = "python -m edp_lab.reproduce.decay FILE CORPUS ..."
TAUS = {Decay.LINEAR: (0.02, 0.1, 0.3, 0.9), Decay.EXPONENTIAL: (0.01, 0.05, 0.2, 0.5)}
ARMS = [(Decay.NONE, 0.0), *((decay, tau) for decay, taus in TAUS.items() for tau in taus)]
SEEDS = (0, 1, 2, 3, 4)


def config(corpus: str, seed: int, decay: Decay = Decay.NONE, tau: float = 0.0) -> TrainConfig:
    """A small CLC, eDP-SGD with sound noise; under a decay it starts as much higher as leaves epsilon the same."""
    settings: dict[str, Any] = {"size": "small", "epochs": 8, "lr": 0.01, "lr_schedule": "constant", "z0": 0.01}
    return under(decay, TrainConfig(corpus, seed=seed, **settings), tau)


def measure(corpus: str, seed: int, decay: Decay, tau: float) -> dict[str, Any]:
    """One run, and its error on the test split."""
    chosen = config(corpus, seed, decay, tau)
    whole = load_corpus(corpus)
    data = split(whole, seed, **chosen.split)
    run = Trainer(chosen, whole, data)
    for _ in range(chosen.epochs):
        run.epoch()
    place = {"corpus": corpus, "seed": seed, "decay": str(decay), "tau": tau, "z0": chosen.z0}
    return {**place, "epsilon": run.progress.rows[-1]["epsilon"], "ser": evaluate_model(run.model, data.test).ser}


def changes(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, Decay, float], Change]:
    """By corpus and decay: how many percent it changes the error of constant noise, paired by seed."""
    ser = {(row["corpus"], Decay(row["decay"]), row["tau"], row["seed"]): row["ser"] for row in rows}
    found = {}
    for corpus in dict.fromkeys(row["corpus"] for row in rows):
        for decay, tau in ARMS[1:]:
            seeds = [seed for seed in SEEDS if (corpus, decay, tau, seed) in ser]
            if len(seeds) > 1:
                steady, falling = ([ser[corpus, *arm, seed] for seed in seeds] for arm in (ARMS[0], (decay, tau)))
                found[corpus, decay, tau] = Change.of(steady, falling)
    return found


def main(file: Path, corpora: Sequence[str]) -> None:
    """See above."""
    torch.set_num_threads(1)
    places = [(corpus, seed, *arm) for corpus in corpora for seed in SEEDS for arm in ARMS]
    place_of = itemgetter("corpus", "seed", "decay", "tau")
    grow(file, COMMAND, places, measure, place_of, settings=changed_settings(config("", 0)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
