"""Is the advice of `edp-lab explain` any good? Of runs with one deliberate fault each, it must name this one first, and
following the advice must lower the error.

    python -m edp_lab.reproduce.explained smart-home atis snips      # JSON, a line for each run
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from edp_lab.corpora import load_corpus
from edp_lab.corpora.smart_home import write_jsonl
from edp_lab.training import TrainConfig, train
from edp_lab.training.explain import Explained, explain, followed

POOLED = 4500  # utterances, of which 45 % are to train on
BASE = {
    "size": "small",
    "method": "dp-sgd",
    "sampling": "shuffle",
    "num_devices": 1,
    "z0": 0.02,
    "epochs": 6,
    "batch_size": 32,
}
FEW = 60  # pooled
# What is changed, and the cause that must come first.
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "C = 2e-6": ({"clip_norm": 2e-6}, "clip norm too small"),
    "C = 300": ({"clip_norm": 300.0}, "clip norm too large"),
    "z0 = 3": ({"z0": 3.0}, "too much noise"),
    "lr = 2e-4": ({"lr": 2e-4}, "learning rate too small"),
    "one epoch of 256": ({"epochs": 1, "batch_size": 256}, "too few steps"),
    "27 utterances": ({}, "too few utterances"),
}


def measure(
    name: str, faults: Mapping[str, tuple[dict[str, Any], str]] = FAULTS, pooled: int = POOLED, **base: Any
) -> Iterator[dict[str, Any]]:
    """A row for a run without a fault, then one for each fault: what came first, and the error before and after."""
    corpus = load_corpus(name)
    everyone = list(corpus.utterances)
    Random(0).shuffle(everyone)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)

        def of(count: int) -> str:
            """A corpus of that many utterances."""
            path = place / f"{min(count, len(everyone))}.jsonl"
            if not path.exists():
                write_jsonl(replace(corpus, utterances=everyone[:count]), path)
            return str(path)

        def run(config: TrainConfig) -> Explained:
            out = place / f"run{len(list(place.iterdir()))}"
            train(config, out)
            return explain(out)

        usual = TrainConfig(of(pooled), **{**BASE, **base})
        good = run(usual)
        yield row(name, "none", good)
        for fault, (change, expected) in faults.items():
            config = replace(usual, **change)
            if expected == "too few utterances":  # as many steps
                epochs = good.steps // -(-int(0.45 * FEW) // config.batch_size)
                config = replace(config, corpus=of(FEW), epochs=epochs)
            found = run(config)
            cause = found.causes[0] if found.causes else None
            after = None
            if cause is not None:
                better, _ = followed(found, cause)
                more = (
                    better if cause.utterances is None else replace(better, corpus=of(round(cause.utterances / 0.45)))
                )
                after = run(more).ser
            yield {**row(name, fault, found), "expected": expected, "without_fault": good.ser, "followed": after}


def row(corpus: str, fault: str, found: Explained) -> dict[str, Any]:
    """As JSON."""
    causes = [{"name": one.name, "factor": one.factor, "said": one.said, "change": one.change} for one in found.causes]
    numbers = {name: getattr(found, name) for name in ("utterances", "steps", "ser", "noise", "gradient", "unlearnt")}
    return {"corpus": corpus, "fault": fault, **numbers, "causes": causes}


if __name__ == "__main__":
    for corpus in sys.argv[1:]:
        for found in measure(corpus):
            print(json.dumps(found), flush=True)
