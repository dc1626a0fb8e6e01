"""What the recipe reaches: runs for an epsilon, as `edp-lab train --epsilon` makes them, each with its certificate.

    python -m edp_lab.reproduce.recipe_runs FILE 8,3,1 atis snips nlu-eval
    edp-lab data make smart-home --utterances 1000000 --out MILLION
    python -m edp_lab.reproduce.recipe_runs FILE 3 MILLION

FILE gets a row for each corpus, epsilon and seed as soon as it is there; after an interruption the same command goes
on, with a broken run, too. Rows of an earlier form of the recipe are made anew. Everything but the noise is a function
of the seed; its key is secret, so a row is not repeated exactly. Beside the rows stands what the start alone reaches
(target 0), and what it reaches without privacy (null): SGD, whose learning rate and epochs are chosen on the validation
split of seed 206 (see `_next_trial`).
All `seconds` are expected from single steps, and from reading the training set where a run does that but once: of the
largest epsilon, of that SGD, and of the paper's.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from edp_lab.corpora import load_corpus, split
from edp_lab.files import read_json, write_whole
from edp_lab.models.public_start import start_for
from edp_lab.reproduce.results_io import machine
from edp_lab.training import TrainConfig, resume, train
from edp_lab.training.certificate import check_certificate
from edp_lab.training.inference import evaluate_model
from edp_lab.training.recipe import pace, plan, recipe
from edp_lab.training.run_folder import versions
from edp_lab.training.trainer import Trainer

SEEDS = (227, 228, 229)  # fresh: no run was scored with them before; earlier: 200 to 214, 218 to 220, 224 to 226
TUNED = 206  # with which SGD's rate and epochs were sought
RATES = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05)  # that SGD may have
SCORES = ("ser", "intent_accuracy", "slot_f1")
COMMAND = "python -m edp_lab.reproduce.recipe_runs FILE EPSILONS CORPUS ..."

Row = dict[str, Any]


@contextmanager
def _ran(config: TrainConfig, folder: Path) -> Iterator[Row]:
    """The record of a run, which lies in the folder for as long as the block runs; one that broke off goes on."""
    record = resume(folder) if folder.exists() else train(config, folder)
    assert record["status"] == "finished"
    yield record
    shutil.rmtree(folder)


def measure(corpus: str, epsilon: float, seed: int, folder: Path) -> Row:
    """One run: its settings, its scores on the test split, what its certificate says."""
    made = plan(corpus, epsilon, seed=seed)
    with _ran(made.config, folder) as record:
        certificate = check_certificate(folder)
    assert certificate is not None
    settings = {line.setting: line.value for line in made.lines} | {"z0": made.config.z0}
    told = {name: certificate[name] for name in ("epsilon", "delta", "protected", "releases", "best_attack_auc")}
    return {**_scores(corpus, epsilon, seed, record), **told, "settings": settings}


def without_privacy(config: TrainConfig, folder: Path) -> Row:
    """All weights of the same start under SGD."""
    with _ran(config, folder) as record:
        settings = {name: getattr(config, name) for name in ("pretrained", "size", "batch_size", "epochs", "lr")}
        row = _scores(config.corpus, None, config.seed, record)
        return {**row, "validation_ser": record["epochs"][-1]["ser"], "settings": settings}


def untrained(corpus: str, seed: int) -> Row:
    """The start alone, which has read no utterance, only label names: epsilon 0."""
    whole = load_corpus(corpus)
    config = replace(_sgd_here(corpus, seed)[0], frozen=_private(corpus, seed)["frozen"])
    data = split(whole, seed, **config.split)
    found = evaluate_model(Trainer(config, whole, data).model.eval(), data.test)
    return _scores(corpus, 0.0, seed, {"final": asdict(found)})


def of_another_recipe(row: Row) -> bool:
    """Whether a private run's settings are not what the recipe says today."""
    own = row.get("settings", {})
    return bool(row["target"]) and own != settled(row["protected"], own["pretrained"]) | {"z0": own["z0"]}


def settled(n: int, start: str) -> Row:
    """The recipe's settings for n utterances."""
    return {line.setting: line.value for line in recipe(n, start)}


def _scores(corpus: str, epsilon: float | None, seed: int, record: Row) -> Row:
    found = {name: record["final"][name] for name in SCORES}
    return {"corpus": Path(corpus).name, "target": epsilon, "seed": seed, **found}


def _sgd_here(corpus: str, seed: int) -> tuple[TrainConfig, int]:
    """The first trial of SGD, and how many epochs it may have at most: as many as the private run."""
    private = _private(corpus, seed)
    own = {"pretrained": private["pretrained"], "size": private["size"], "epochs": min(12, private["epochs"])}
    return TrainConfig(corpus, method="sgd", lr=0.005, seed=seed, **own), private["epochs"]


def _private(corpus: str, seed: int) -> Row:
    """The recipe's settings."""
    whole = load_corpus(corpus)
    train = split(whole, seed, **TrainConfig(corpus).split).train
    return settled(len(train), start_for(whole.name))


def _best(tried: list[Row]) -> Row:
    return min(tried, key=lambda row: row["validation_ser"])


def _next_trial(tried: list[Row], first: TrainConfig, most: int) -> TrainConfig | None:
    """What stands beside the best trial so far: a rate higher or lower, twice the epochs. None if all were tried."""
    done = [(row["settings"]["lr"], row["settings"]["epochs"]) for row in tried]
    wanted = [(first.learning_rate, first.epochs)]
    if tried:
        rate, epochs = (_best(tried)["settings"][name] for name in ("lr", "epochs"))
        at = RATES.index(rate)
        wanted = [(other, epochs) for other in (*RATES[at + 1 : at + 2], *RATES[max(at - 1, 0) : at])]
        wanted += [(rate, 2 * epochs)] if 2 * epochs <= most else []
    return next((replace(first, lr=rate, epochs=epochs) for rate, epochs in wanted if (rate, epochs) not in done), None)


def expected(corpus: str, epsilon: float, sgd: TrainConfig) -> dict[str, float]:
    """Seconds of the private run, of SGD beside it, and of SGD as in `edp_lab.reproduce.pareto` at the paper's size."""
    whole, seed = load_corpus(corpus), SEEDS[0]
    paper = TrainConfig(corpus, method="sgd", size="paper", epochs=12, seed=seed)
    private, found = plan(corpus, epsilon, seed=seed).config, {}
    for name, config in (("private", private), ("sgd", sgd), ("sgd_paper_size", paper)):
        data = split(whole, seed, **config.split)
        steps = config.epochs * math.ceil(len(data.train) / config.batch_size)
        step, scored = pace(config, whole, data)
        found[name] = steps * step + (scored * len(data.train) if config.frozen else 0)
    return found


def main(file: Path, epsilons: list[float], corpora: list[str]) -> None:
    """See above."""
    made = read_json(file) if file.exists() else {"rows": [], "trials": [], "seconds": {}}
    made |= {"command": COMMAND, "machine": machine(), "versions": versions()}

    def folder(*what: object) -> Path:
        return file.with_name("-".join(map(str, (file.stem, *what))))

    def write() -> None:
        write_whole(file, f"{json.dumps(made, indent=1)}\n".encode())

    def keep(rows: list[Row], row: Row) -> None:
        rows.append(row)
        write()
        print(json.dumps(row), flush=True)

    for corpus in corpora:
        name = Path(corpus).name
        here = [row for row in made["rows"] if row["corpus"] == name]
        if any(of_another_recipe(row) or row["seed"] not in SEEDS for row in here):
            kept = [row for row in here if row["target"] is None and row["seed"] in SEEDS]
            made["rows"] = [row for row in made["rows"] if row not in here or row in kept]
            made["seconds"].pop(name, None)
        done = {(row["target"], row["seed"]) for row in made["rows"] if row["corpus"] == name}
        for seed, epsilon in product(SEEDS, [0.0, *epsilons]):
            if (epsilon, seed) not in done:
                path = folder(name, epsilon, seed)
                keep(made["rows"], measure(corpus, epsilon, seed, path) if epsilon else untrained(corpus, seed))
        tried = [row for row in made["trials"] if row["corpus"] == name]
        first, most = _sgd_here(corpus, TUNED)
        while config := _next_trial(tried, first, most):
            tried.append(without_privacy(config, folder(name, config.lr, config.epochs, config.seed)))
            keep(made["trials"], tried[-1])
        best = _best(tried)
        chosen = replace(first, lr=best["settings"]["lr"], epochs=best["settings"]["epochs"])
        if name not in made["seconds"]:
            made["seconds"][name] = expected(corpus, max(epsilons), chosen)
            write()
        for seed in SEEDS:
            if (None, seed) not in done:
                config = replace(chosen, seed=seed)
                path = folder(name, config.lr, config.epochs, seed)
                keep(made["rows"], without_privacy(config, path))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [float(epsilon) for epsilon in sys.argv[2].split(",")], sys.argv[3:])
