"""What the recipe reaches: runs for an epsilon, as `edp-lab train --epsilon` makes them, each with its certificate.

    python -m edp_lab.reproduce.recipe_runs FILE atis snips nlu-eval

FILE gets a row for each corpus, epsilon and seed as soon as it is there; after an interruption the same command goes
on. Everything but the noise is a function of the seed; its key is secret, so a row is not repeated exactly. `seconds`
are those that `edp-lab train` expects, `sgd_seconds` those of the paper's SGD: from single steps. Beside the rows
stands what the same start reaches without privacy: SGD, whose learning rate is chosen on the validation split of
`TUNED`, the seed with which the recipe was made.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from edp_lab.corpora import load_corpus, split
from edp_lab.files import read_json, write_whole
from edp_lab.models.public_start import start_for
from edp_lab.reproduce.results_io import machine
from edp_lab.training import TrainConfig, train
from edp_lab.training.certificate import check_certificate
from edp_lab.training.recipe import plan, seconds_of_step
from edp_lab.training.run_folder import versions

EPSILONS = (8.0, 3.0, 1.0)
SEEDS = (203, 204, 205)  # none below was scored on a test split while the recipe was made (200 to 202: its first form)
TUNED = 100
RATES = (0.002, 0.005)  # SGD's
SCORES = ("ser", "intent_accuracy", "slot_f1")
COMMAND = "python -m edp_lab.reproduce.recipe_runs FILE CORPUS ..."


def measure(corpus: str, epsilon: float, seed: int) -> dict[str, Any]:
    """One run: its settings, its scores on the test split, what its certificate says."""
    made = plan(corpus, epsilon, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        record = train(made.config, Path(folder) / "run")
        certificate = check_certificate(Path(folder) / "run")
    assert certificate is not None
    settings = {line.setting: line.value for line in made.lines} | {"z0": made.config.z0}
    scores = {name: record["final"][name] for name in SCORES}
    told = {name: certificate[name] for name in ("epsilon", "delta", "protected", "releases", "best_attack_auc")}
    return {"corpus": corpus, "target": epsilon, "seed": seed, **scores, **told, "settings": settings}


def without_privacy(corpus: str, seed: int, rate: float) -> dict[str, Any]:
    """The same network from the same start under SGD, for 12 epochs."""
    start = start_for(corpus)
    config = TrainConfig(corpus, method="sgd", size="medium", pretrained=start, lr=rate, epochs=12, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        record = train(config, Path(folder) / "run")
    scores = {name: record["final"][name] for name in SCORES}
    settings = {"pretrained": start, "size": config.size, "epochs": config.epochs, "lr": rate}
    row = {"corpus": corpus, "target": None, "seed": seed, **scores}
    return {**row, "validation_ser": record["epochs"][-1]["ser"], "settings": settings}


def time_of_sgd(corpus: str) -> float:
    """Seconds of SGD as in `edp_lab.reproduce.pareto`, at the paper's size, from one step; without evaluation."""
    whole = load_corpus(corpus)
    config = TrainConfig(corpus, method="sgd", size="paper", epochs=12)
    data = split(whole, config.seed, **config.split)
    return config.epochs * math.ceil(len(data.train) / config.batch_size) * seconds_of_step(config, whole, data)


def main(file: Path, corpora: list[str]) -> None:
    """See above."""
    made = read_json(file) if file.exists() else {"rows": [], "trials": [], "seconds": {}, "sgd_seconds": {}}
    made |= {"command": COMMAND, "machine": machine(), "versions": versions()}

    def keep(rows: list[dict[str, Any]], row: dict[str, Any]) -> None:
        rows.append(row)
        write_whole(file, f"{json.dumps(made, indent=1)}\n".encode())
        print(json.dumps(row), flush=True)

    done = {(row["corpus"], row["target"], row["seed"]) for row in made["rows"]}
    for seed, corpus, epsilon in product(SEEDS, corpora, EPSILONS):
        if (corpus, epsilon, seed) not in done:
            if corpus not in made["seconds"]:
                made["seconds"][corpus] = plan(corpus, epsilon).seconds
                made["sgd_seconds"][corpus] = time_of_sgd(corpus)
            keep(made["rows"], measure(corpus, epsilon, seed))
    for corpus in corpora:
        tried = [row for row in made["trials"] if row["corpus"] == corpus]
        for rate in RATES[len(tried) :]:
            keep(made["trials"], without_privacy(corpus, TUNED, rate))
        tried = [row for row in made["trials"] if row["corpus"] == corpus]
        best = min(tried, key=lambda row: row["validation_ser"])["settings"]["lr"]
        for seed in SEEDS:
            if (corpus, None, seed) not in done:
                keep(made["rows"], without_privacy(corpus, seed, best))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
