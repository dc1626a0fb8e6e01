"""Whom an epsilon covers: utterances or speakers, measured by an attack on speakers. No widgets.

    python -m edp_lab.course.nb07_membership.speakers mine.json     # again, in minutes; what the file has is kept

The corpus is generated: `SPEAKERS` people, who go on talking after it, so that the attack can also be made on what they
say later. More than half of them are in no training set. What was not measured is refused by `UsageError`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from edp_lab.attacks.membership.attacks import speaker_scores
from edp_lab.attacks.statistics import Rate, auc, auc_interval
from edp_lab.corpora import Corpus, Split, Utterance, split
from edp_lab.corpora.corpus import cap_speakers, speaker_ids
from edp_lab.corpora.smart_home import generate
from edp_lab.course.kit.inputs import require
from edp_lab.privacy import Mechanism, NoGuarantee, accountant_for
from edp_lab.privacy.calibration import Budget, calibrate_z0
from edp_lab.reproduce.results_io import RESULTS, changed_settings, read_kept, write_kept
from edp_lab.training import TrainConfig
from edp_lab.training.config import CAP, MOST
from edp_lab.training.inference import evaluate_model
from edp_lab.training.trainer import Trainer

KEPT = RESULTS / "course_speakers.json"
COMMAND = "python -m edp_lab.course.nb07_membership.speakers PATH"
SPEAKERS, UTTERANCES, LATER = 400, 4000, 4000
EPSILONS = (3.0, 10.0, 30.0, 100.0)
SAID = {"trained": "in the corpus", "fresh": "later"}
PLAIN = TrainConfig("smart-home", method="sgd", size="small", dropout=0.0, epochs=12, keep_speakers_together=True)
PRIVATE = replace(PLAIN, method="dp-sgd", num_devices=1)
BY_UNIT = {
    "utterance": replace(PRIVATE, batch_size=128),
    "speaker": replace(PRIVATE, batch_size=18, unit="speaker"),
}


@dataclass(frozen=True)
class Covered:
    """A measured run."""

    unit: str  # whom its epsilon covers; "nobody" for SGD
    epsilon: float | None  # at n^-1.1, for n utterances or speakers; were the seed secret
    delta: float | None
    epsilon_of_most: float | None  # what that means for the speaker who says most; None where nothing
    most: int  # utterances of theirs
    z0: float
    ser: float  # on the test set
    speakers: int  # on either side of the attack
    found: Mapping[str, Rate]  # AUC of the attack, by whether it hears what was `SAID` in the corpus or later


class Shown(NamedTuple):
    """Two runs of one epsilon, among all that were measured."""

    said: str
    utterance: Covered
    speaker: Covered
    runs: Sequence[Covered]

    def of(self, unit: str) -> list[Covered]:
        return [run for run in self.runs if run.unit == unit]


def show_cover(runs: Sequence[Covered], epsilon: float, said: str) -> Shown:
    """The two runs of this epsilon, attacked by what was `SAID` in the corpus or later."""
    known = sorted({run.epsilon for run in runs if run.epsilon is not None})
    require(epsilon in known, f"epsilon {epsilon:g} was not measured: choose {', '.join(f'{e:g}' for e in known)}")
    require(said in SAID, f"utterances {said!r} were not measured: choose {' or '.join(SAID)}")
    one, other = (next(r for r in runs if (r.unit, r.epsilon) == (unit, epsilon)) for unit in BY_UNIT)
    return Shown(said, one, other, runs)


@cache
def covered(path: Path = KEPT) -> tuple[Covered, ...]:
    """What `measure` wrote."""
    runs = []
    for run in read_kept(path, "runs")["runs"]:
        found = {said: Rate(leak["auc"], tuple(leak["interval"])) for said, leak in run["found"].items()}
        own = {name: run[name] for name in Covered.__dataclass_fields__ if name != "found"}
        runs.append(Covered(**own, found=found))
    return tuple(runs)


# ---- Measured ------------------------------------------------------------------------------------------------------


def measure(path: Path, told: Callable[[str], None] = print) -> None:
    """Measure what `path` lacks and write it after each run."""
    torch.set_num_threads(1)
    whole = generate(UTTERANCES + LATER, 0, speakers=SPEAKERS)
    corpus = replace(whole, utterances=whole.utterances[:UTTERANCES])
    data = split(corpus, 0, keep_speakers_together=True)
    kept = read_kept(path, "runs")["runs"] if path.exists() else []
    jobs = [(unit, epsilon) for epsilon in EPSILONS for unit in BY_UNIT]
    for unit, epsilon in [("nobody", None), *jobs]:
        if not any((run["unit"], run["epsilon"]) == (unit, epsilon) for run in kept):
            told(f"{unit}, epsilon {epsilon}")
            run = _measured(unit, epsilon, corpus, data, whole.utterances[UTTERANCES:])
            kept.append(json.loads(json.dumps(run), parse_float=lambda digits: float(f"{float(digits):.4g}")))
            about = {"speakers": SPEAKERS, "utterances": UTTERANCES, "later": LATER, "seed": 0}
            write_kept(path, COMMAND, corpus=about, runs=kept)


def _measured(
    unit: str, epsilon: float | None, corpus: Corpus, data: Split, later: Sequence[Utterance]
) -> dict[str, Any]:
    config, mechanism, delta = BY_UNIT.get(unit, PLAIN), None, None
    if epsilon is not None:
        n = int(speaker_ids(data.train, corpus.name).max()) + 1 if config.speakers else len(data.train)
        free, delta = config.mechanism(n), n**-1.1
        assert free is not None
        config = replace(config, z0=calibrate_z0(free, config.epochs, Budget(epsilon, delta)))
        mechanism = config.mechanism(n)
    run = Trainer(config, corpus, data)
    for _ in range(config.epochs):
        run.epoch()
    cap = CAP if config.speakers else MOST
    most = int(np.bincount(speaker_ids(cap_speakers(data.train, cap, 0, corpus.name)[0], corpus.name)).max())
    found: dict[str, Any] = {}
    for said in SAID:
        more = None if said == "trained" else later
        ins, outs = (_scores(run, side, cap, more) for side in (data.train, data.test))
        found[said] = {"auc": auc(ins, outs), "interval": auc_interval(ins, outs), "speakers": min(len(ins), len(outs))}
    return {
        "unit": unit,
        "epsilon": epsilon,
        "delta": delta,
        "epsilon_of_most": epsilon if config.speakers else _together(mechanism, config.epochs, delta, most),
        "most": most,
        "z0": config.z0,
        "ser": evaluate_model(run.model, data.test).ser,
        "speakers": found["trained"].pop("speakers"),
        "steps": run.progress.step,
        "config": changed_settings(config),
        "found": found,
    }


def _scores(run: Trainer, side: Sequence[Utterance], cap: int, later: Sequence[Utterance] | None) -> np.ndarray:
    """Of the speakers of one side, by what was kept of them or by what they say later: (S)."""
    heard, _ = cap_speakers(side, cap, 0, "")
    if later is not None:
        names = {u.speaker for u in side}
        heard = tuple(u for u in later if u.speaker in names)
    return speaker_scores(run.model, heard, speaker_ids(heard, ""))


def _together(mechanism: Mechanism | None, epochs: int, delta: float | None, utterances: int) -> float | None:
    """Epsilon of so many utterances together."""
    if mechanism is None or delta is None:
        return None
    try:
        found = accountant_for(mechanism, mechanism.bill(epochs), utterances_per_person=utterances).epsilon(delta)
    except NoGuarantee:
        return None
    return found if np.isfinite(found) else None


if __name__ == "__main__":
    measure(Path(sys.argv[1]))
