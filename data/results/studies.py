"""Repeat the runs behind pareto.json, decay.json, recipe.json, in_class.json and large.json.

    python data/results/studies.py recipe atis snips > rows.jsonl

The first argument names a file beside this script, whose rows say what to run; then corpora may follow, as names or
paths (default: all of the file). Prints one JSON line per run: epsilon and scores on the test split. Runs with a secret
key (recipe, in_class, large) repeat up to their noise. Rows of pareto.json have seeds 3 to 5; we use their first z0.
Its rows of a CLC on a frozen encoder are not repeated: edp_lab no longer has that model.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from edp_lab.reproduce.table1 import ENCODER, LAYERS, make_start
from edp_lab.training.config import TrainConfig
from edp_lab.training.recipe import plan
from edp_lab.training.session import train


def configs(name: str, row: dict[str, Any], corpus: str, shared: dict[str, Any], folder: Path) -> Iterator[TrainConfig]:
    """The runs behind one row of a file; none for target 0 (the start without training) and for a CLC on an encoder."""
    if name == "decay":
        noise = {key: row[key] for key in ("seed", "decay", "tau", "z0")}
        yield TrainConfig(**{**shared, **noise, "corpus": corpus})
    elif name == "pareto":
        if row["model"] == "clc" and row["method"] != "SGD":
            return  # a CLC on a frozen encoder: that model is gone
        settings: dict[str, Any] = {**row["settings"], "model": row["model"], "method": "sgd"}
        settings["lr"] = settings.pop("learning_rate")
        if row["epsilon"] is not None:
            shuffled = {"method": "edp-sgd", "micro_batch_size": 8}
            settings |= {"method": "dp-sgd"} if row["method"] == "DP-SGD" else shuffled
        if row["model"] == "bert":
            settings["pretrained"] = str(folder / "encoder")
            if not Path(settings["pretrained"]).exists():
                make_start(f"{LAYERS}4", ENCODER, Path(settings["pretrained"]))
        yield from (TrainConfig(corpus, seed=seed, **settings) for seed in (3, 4, 5))
    elif row["target"] is None:
        yield TrainConfig(corpus, method="sgd", seed=row["seed"], **row["settings"])
    elif row["target"] > 0:
        yield plan(corpus, row["target"], seed=row["seed"]).config


def main(name: str, corpora: list[str], folder: Path) -> None:
    content = json.loads(Path(__file__).with_name(f"{name}.json").read_text(encoding="utf-8"))
    rows, shared = (content, {}) if name == "pareto" else (content["rows"], content.get("settings", {}))
    for row in rows:
        for corpus in [path for path in corpora or [row["corpus"]] if Path(path).name == row["corpus"]]:
            for config in configs(name, row, corpus, shared, folder):
                final = train(config, folder / f"run-{len(list(folder.iterdir()))}")["final"]
                scores = {key: final[key] for key in ("ser", "intent_accuracy", "slot_f1")}
                scores["epsilon"] = final["guaranteed_epsilon"]
                place = {key: row[key] for key in ("corpus", "method", "target", "decay", "tau") if key in row}
                print(json.dumps({**place, "seed": config.seed, **scores}), flush=True)


if __name__ == "__main__":
    with TemporaryDirectory() as scratch:
        main(sys.argv[1], sys.argv[2:], Path(scratch))
