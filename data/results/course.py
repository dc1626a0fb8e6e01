"""Measure again, in a quarter of an hour on one core, what notebooks 00, 05 and 07 show of trained models.

python data/results/course.py tradeoff PATH          # tradeoff.json
python data/results/course.py membership PATH        # course_membership.json
python data/results/course.py shadow PATH            # shadows, of notebook 05
python data/results/course.py private PATH           # course_private.json, of notebook 00
"""

from __future__ import annotations

import base64
import gzip
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edp_lab.attacks.canaries import measure_memorisation
from edp_lab.attacks.lira import shadow_logits
from edp_lab.attacks.loss import Attacked, attack_loss, equal_sides
from edp_lab.attacks.shadow import attack_shadow
from edp_lab.corpora.catalog import load_corpus
from edp_lab.corpora.corpus import split
from edp_lab.course.nb00_start.panels import Private
from edp_lab.course.nb05_membership.panels import CANARIES, METHODS, REPETITIONS, Z0S, Moments, kept_lira, target_config
from edp_lab.course.nb07_train.panels import BASE, SCORES, configured, work
from edp_lab.files import write_whole
from edp_lab.jobs import machine, write_result
from edp_lab.training.config import TrainConfig
from edp_lab.training.evaluate import evaluate_model
from edp_lab.training.run_files import Event, StepDone, versions
from edp_lab.training.session import train
from edp_lab.training.trainer import Trainer

# ---- A file that grows by one item at a time -------------------------------------------------------------------------


def write_kept(path: Path, command: str, **parts: Mapping[str, Any] | list[Any]) -> None:
    """The command, machine and versions, then each part: a list with one item a line."""
    about = {"command": command, "machine": f"{machine()}; one thread", "versions": versions()}
    lines = [f' "{name}": {json.dumps(value)}' for name, value in about.items()]
    for name, part in parts.items():
        items = ",\n".join(json.dumps(item, allow_nan=False) for item in part) if isinstance(part, list) else ""
        lines.append(f' "{name}": ' + (f"[\n{items}\n ]" if items else json.dumps(part)))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def changed_settings(config: TrainConfig) -> dict[str, Any]:
    """The corpus, and all settings that differ from the defaults."""
    defaults = asdict(type(config)(config.corpus))
    return {name: value for name, value in asdict(config).items() if name == "corpus" or value != defaults[name]}


# ---- tradeoff.json ---------------------------------------------------------------------------------------------------

MARKS = (1, 2, 4, 8)  # with a constant learning rate, a run stopped after k epochs is the run of k epochs
GRID: tuple[tuple[str, int, str, tuple[float, ...]], ...] = (
    ("sgd", 1, "none", (0.0,)),
    ("sound", 8, "none", (0.003, 0.01, 0.03, 0.1, 0.3)),
    ("sound", 1, "none", (0.01, 0.03, 0.1, 0.3, 1.0)),
    ("printed", 8, "none", (0.001, 0.003, 0.01, 0.03, 0.1)),
    ("sound", 2, "none", (0.01, 0.03, 0.1)),
    ("sound", 4, "none", (0.01, 0.03, 0.1)),
    ("poisson", 1, "none", (0.1, 0.3, 1.0)),
    ("sound", 1, "exponential", (0.03, 0.1, 0.3)),
    ("sound", 8, "exponential", (0.01, 0.03, 0.1)),
    ("printed", 8, "exponential", (0.01, 0.03)),
    ("sound", 1, "linear", (0.03, 0.1, 0.3)),
)
REPEATED = (("sgd", 1, 0.0), ("printed", 8, 0.01), ("sound", 1, 0.1))  # with seeds 1 and 2, too


def tradeoff(path: Path) -> None:
    """Train the 43 runs of notebook 07, score each after `MARKS` epochs, and time an epoch of each kind."""
    runs = [configured(BASE, method, m, z0, decay, BASE.epochs) for method, m, decay, z0s in GRID for z0 in z0s]
    first = [configured(BASE, method, m, z0, "none", BASE.epochs) for method, m, z0 in REPEATED]
    runs += [replace(run, seed=seed) for seed in (1, 2) for run in first]
    runs.append(replace(first[-1], method="dp-sgd-naive", epochs=1))
    pace = paces(list({work(config): config for config in runs}.values()))
    write_kept(path, command(), seconds_per_epoch=pace, runs=[scored(config) for config in runs])


def trainer(config: TrainConfig) -> Trainer:
    corpus = load_corpus(config.corpus)
    return Trainer(config, corpus, split(corpus, config.seed))


def scored(config: TrainConfig) -> dict[str, Any]:
    run, rows = trainer(config), []
    for epoch in range(1, config.epochs + 1):
        run.epoch()
        if epoch in MARKS:
            found = evaluate_model(run.model, run.test)
            scores = {name: round(getattr(found, name), 4) for name in SCORES}
            rows.append({"epoch": epoch, **scores, "validation_ser": round(run.record["epochs"][-1]["ser"], 4)})
    return {"config": changed_settings(config), "utterances": len(run.train_data), "scores": rows}


def paces(runs: Sequence[TrainConfig]) -> dict[str, float]:
    """CPU seconds of an epoch by kind of work, the median of three, in turn."""
    turns = [trainer(replace(config, epochs=3)) for config in runs]
    seconds = [[cpu_seconds(run) for run in turns] for _ in range(3)]
    return {work(run.config): round(statistics.median(own), 3) for run, *own in zip(turns, *seconds, strict=True)}


def cpu_seconds(run: Trainer) -> float:
    """CPU seconds of an epoch, up to its last step."""
    start = last = time.process_time()

    def tick(event: Event) -> None:
        nonlocal last
        if isinstance(event, StepDone):
            last = time.process_time()

    run.epoch(tick)
    return last - start


# ---- course_membership.json ------------------------------------------------------------------------------------------

SHADOWS = {"smart-home": 32, "atis": 16}  # models, by corpus


def membership(path: Path) -> None:
    """Train LiRA's shadow models, attack runs with and without noise, and hide canaries."""
    shadows = [shadow_moments(name, count) for name, count in SHADOWS.items()]
    write_kept(path, command(), shadows=shadows, defended=[], canaries=[])  # read by the attacks
    plain = target_config("smart-home", 0)
    noised = [replace(plain, method="edp-sgd", as_printed=printed, z0=z0) for printed in (True, False) for z0 in Z0S]
    runs = [attacked(config, path) for config in (plain, *noised)]
    canaries = []
    for method in METHODS:
        for z0 in (None,) if method == "sgd" else Z0S:
            config = CANARIES if z0 is None else replace(CANARIES, z0=z0)
            rows = [asdict(row) for row in measure_memorisation(config, [method], REPETITIONS)]
            canaries.append({"method": method, "z0": z0, "config": changed_settings(config), "rows": rows})
    write_kept(path, command(), shadows=shadows, defended=rounded(runs), canaries=rounded(canaries))


def shadow_moments(name: str, count: int) -> dict[str, Any]:
    corpus, config = load_corpus(name), target_config(name, 0)
    members, non_members = equal_sides(split(corpus, 0), 0)
    moments = Moments.of(shadow_logits(config, corpus, members + non_members, count))
    packed = {
        side: base64.b64encode(getattr(moments, side).astype("<f2").tobytes()).decode()
        for side in ("inside", "outside")
    }
    variances = {side: getattr(moments, side).round(5).tolist() for side in ("v_in", "v_out")}
    about = {"corpus": name, "corpus_sha256": corpus.sha256, "seed": 0, "config": changed_settings(config)}
    return {**about, "models": count, "pool": len(moments.inside), **variances, **packed}


def attacked(config: TrainConfig, path: Path) -> dict[str, Any]:
    """A run, its guarantee, and what the loss and LiRA find."""
    with tempfile.TemporaryDirectory() as folder:
        record = train(config, Path(folder) / "run")
        loss = attack_loss(Path(folder) / "run")
        attacks = [loss, *filter(None, [kept_lira(loss, path)])]
    held, target = loss.target.guarantee, loss.target
    return {
        "config": changed_settings(config),
        "ser": record["epochs"][-1]["ser"],
        "delta": len(target.members) ** -1.1 if held is None else held.delta,
        "claimed_epsilon": None if held is None else held.claimed_epsilon,
        "epsilon_if_alpha_public": None if held is None else held.epsilon_if_alpha_public,
        "found": {one.result.attack: rates(one) for one in attacks},
    }


def rates(attack: Attacked) -> dict[str, Any]:
    tpr = attack.result.tpr_at_fpr["0.01"]
    area = {"auc": attack.result.auc, "auc_interval": attack.result.auc_interval}
    return {**area, "tpr": tpr["value"] or 0.0, "tpr_interval": tpr.get("interval", (0.0, 1.0))}


def rounded(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Numbers with five digits."""
    return [json.loads(json.dumps(item), parse_float=lambda digits: float(f"{float(digits):.5g}")) for item in items]


# ---- shadows ---------------------------------------------------------------------------------------------------------


def shadow(path: Path) -> None:
    """Train the shadow model of the paper's attack, and store its scores as float32, as the forest reads them."""
    with tempfile.TemporaryDirectory() as folder:
        train(target_config("smart-home", 0), Path(folder) / "target")
        attack_shadow(Path(folder) / "target", cache=Path(folder) / "shadows")
        for file in (Path(folder) / "shadows").glob("*.json"):
            scores = np.array(json.loads(file.read_bytes())["scores"], dtype=np.float32)
            write_result(file.parent, file.stem, {"scores": [[float(str(score)) for score in row] for row in scores]})
            write_whole(path / f"{file.name}.gz", gzip.compress(file.read_bytes(), mtime=0))


# ---- course_private.json ---------------------------------------------------------------------------------------------


def private(path: Path) -> None:
    """Make the run that notebook 00 shows before the reader's own."""
    panel = Private()
    panel.run(wait=True)
    panel.check()
    rows = [{"ser": row["ser"]} for row in panel.rows]
    write_kept(path, command(), settings=panel.settings, outcome=panel.outcome, rows=rows)


def command() -> str:
    return f"python data/results/course.py {sys.argv[1]} PATH"


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"tradeoff": tradeoff, "membership": membership, "shadow": shadow, "private": private}[sys.argv[1]](
        Path(sys.argv[2])
    )
