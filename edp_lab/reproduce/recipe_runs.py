"""What the recipe reaches: runs for an epsilon, as `edp-lab train --epsilon` makes them, each with its certificate.

    python -m edp_lab.reproduce.recipe_runs FILE atis snips nlu-eval

FILE gets a row for each corpus, epsilon and seed as soon as it is there; after an interruption the same command goes
on. Everything but the noise is a function of the seed; its key is secret, so a row is not repeated exactly.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from edp_lab.corpora import load_corpus, split
from edp_lab.files import read_json, write_whole
from edp_lab.reproduce.results_io import machine
from edp_lab.training import TrainConfig, train
from edp_lab.training.certificate import check_certificate
from edp_lab.training.recipe import plan, seconds_of_step
from edp_lab.training.run_folder import versions

EPSILONS = (8.0, 3.0, 1.0)
SEEDS = (200, 201, 202)  # none below was scored on a test split while the recipe was made
COMMAND = "python -m edp_lab.reproduce.recipe_runs FILE CORPUS ..."


def measure(corpus: str, epsilon: float, seed: int) -> dict[str, Any]:
    """One run: its settings, its scores on the test split, what its certificate says, its time beside SGD's."""
    made = plan(corpus, epsilon, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        record = train(made.config, Path(folder) / "run")
        seconds = time.perf_counter() - start
        certificate = check_certificate(Path(folder) / "run")
    assert certificate is not None
    settings = {line.setting: line.value for line in made.lines} | {"z0": made.config.z0}
    scores = {name: record["final"][name] for name in ("ser", "intent_accuracy", "slot_f1")}
    told = {name: certificate[name] for name in ("epsilon", "delta", "protected", "releases", "best_attack_auc")}
    place = {"corpus": corpus, "target": epsilon, "seed": seed, "seconds": seconds}
    return {**place, **scores, **told, "settings": settings}


def time_of_sgd(corpus: str) -> float:
    """Seconds of SGD as in `edp_lab.reproduce.pareto`, at the paper's size, from one step; without evaluation."""
    whole = load_corpus(corpus)
    config = TrainConfig(corpus, method="sgd", size="paper", epochs=12)
    data = split(whole, config.seed, **config.split)
    return config.epochs * math.ceil(len(data.train) / config.batch_size) * seconds_of_step(config, whole, data)


def main(file: Path, corpora: list[str]) -> None:
    """See above."""
    made = read_json(file) if file.exists() else {"rows": [], "sgd_seconds": {}}
    done = {(row["corpus"], row["target"], row["seed"]) for row in made["rows"]}
    made |= {"command": COMMAND, "machine": machine(), "versions": versions()}
    for place in [(corpus, epsilon, seed) for seed in SEEDS for corpus in corpora for epsilon in EPSILONS]:
        if place not in done:
            made["sgd_seconds"].setdefault(place[0], time_of_sgd(place[0]))
            made["rows"].append(measure(*place))
            write_whole(file, f"{json.dumps(made, indent=1)}\n".encode())
            print(json.dumps(made["rows"][-1]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
