"""What only the last model reveals: lower bounds for who sees every step, and for who sees what training ends with.

    python -m edp_lab.reproduce.last_model data/results/last_model.json

FILE gets a row for each epsilon, seed and kind of canary as soon as it is there; after an interruption the same command
goes on. Every bound is distribution-free: what the last model gives away need not be Gaussian.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from edp_lab.attacks.audit.one_run import Kind, audit_one_run
from edp_lab.reproduce.results_io import changed_settings, grow
from edp_lab.training import TrainConfig

COMMAND = "python -m edp_lab.reproduce.last_model data/results/last_model.json"
EPSILONS, SEEDS = (2.0, 4.0, 8.0), (0, 1, 2)  # that hold for all steps
CANARIES = {Kind.GRADIENT: 2000, Kind.MISLABELLED: 600}
SHARE = 0.1  # of the canaries, on which guesses are made
SETTINGS: dict[str, Any] = {"method": "dp-sgd", "sampling": "shuffle", "size": "small", "epochs": 2, "batch_size": 128}
CONFIG = TrainConfig("smart-home-health", alpha="none", dropout=0.0, delta=1e-5, lr_schedule="constant", **SETTINGS)


def measure(epsilon: float, seed: int, kind: Kind) -> dict[str, Any]:
    """One audited run: its right guesses, and what they prove."""
    config = replace(CONFIG, seed=seed)
    audit = audit_one_run(config, CANARIES[kind], kind, target_epsilon=epsilon, shares=(SHARE,))
    row = {"epsilon": audit.epsilon_holds, "seed": seed, "kind": str(kind), "guesses": audit.guesses}
    row |= {"steps": audit.steps, "z0": audit.mechanism.z0}
    seen = {"every step": audit.bounds, "last model": audit.last_model}
    if kind is Kind.MISLABELLED:  # a loss is the last model's
        seen = {"last model": audit.bounds}
    found = {name: bounds for name, bounds in seen.items() if bounds}
    return row | {name: [one.tally.correct, one.distribution_free] for name, one in found.items()}


def _place_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return round(row["epsilon"]), row["seed"], row["kind"]  # what holds is the target, but for a millionth


def main(file: Path) -> None:
    """See above."""
    torch.set_num_threads(1)
    places = [(epsilon, seed, kind) for seed in SEEDS for epsilon in EPSILONS for kind in Kind]
    settings = changed_settings(CONFIG) | {"canaries": CANARIES, "share": SHARE}
    grow(file, COMMAND, places, measure, _place_of, settings=settings)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
