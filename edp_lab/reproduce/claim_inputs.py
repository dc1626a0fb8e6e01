"""What the evidence functions of the claims ledger are given: committed results, small runs, embedded images.

Each returns arguments by name, and tells what it does where that takes seconds. A run that several claims rest on is
trained once in a process; nothing is written but to a folder that goes with the process.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edp_lab.corpora.images import load_images
from edp_lab.errors import UsageError
from edp_lab.reproduce.paper import in_print as paper_print
from edp_lab.reproduce.paper import privacy as paper_privacy
from edp_lab.reproduce.paper.runs import (
    FEW,
    PRINTED,
    SCHEMES,
    SEEDS,
    SMALL,
    Z0,
    Change,
    Outcome,
    Told,
    equal_epsilon_z0,
    first_gradient_norms,
    gradient_norms,
    runs_of,
    small_config,
    small_runs,
    table1_anew,
)
from edp_lab.reproduce.thesis.lab import Lab
from edp_lab.reproduce.thesis.thesis_tables import QUICK

Inputs = Callable[[Told], Mapping[str, Any]]
GRID = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # of z0, for P18
LONG, LITTLE = 16, 1e-4  # epochs, in which a network begins to overfit, and z0, for P20
SAMPLE = 4000  # images of MNIST, for T3
REPLACED = 3  # place of an utterance in the first batch, for P4


def nothing(told: Told) -> Mapping[str, Any]:
    return {}


# ---- The paper -------------------------------------------------------------------------------------------------------


def benchmark(told: Told) -> Mapping[str, Any]:
    return {"steps": paper_print.benchmark()}


def first_norms(told: Told) -> Mapping[str, Any]:
    return {"norms": _norms(None)}


def neighbouring_norms(told: Told) -> Mapping[str, Any]:
    return {"norms": _norms(None), "neighbour": _norms(REPLACED)}


@cache
def _norms(replaced: int | None) -> dict[str, float]:
    return first_gradient_norms(replaced)


def norms_in_training(told: Told) -> Mapping[str, Any]:
    told("training: norms of gradients")
    random, tuned = _norms_by_step()
    return {"random": random, "tuned": tuned}


def norms_from_random(told: Told) -> Mapping[str, Any]:
    return {"random": norms_in_training(told)["random"]}


@cache
def _norms_by_step() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return gradient_norms()


def copied_texts(told: Told) -> Mapping[str, Any]:
    told("splitting corpora")
    return {"shares": paper_privacy.copied_texts()}


def decay_at_equal_epsilon(told: Told) -> Mapping[str, Any]:
    equal = small_runs("no decay, equal epsilon", told, **{**PRINTED, "z0": equal_epsilon_z0()})
    return {"decayed": _scheme("exponential decay", told), "equal": equal, "anew": table1_anew()}


def attacked(told: Told) -> Mapping[str, Any]:
    plain, anew = _scheme("SGD", told), table1_anew()
    schemes = {name: _scheme(name, told) for name in ("no decay", "exponential decay")}
    attacks, errors = (
        [Change.of(f"small CLC, {name}", _values(what, plain), _values(what, runs)) for name, runs in schemes.items()]
        for what in ("auc", "ser")
    )
    return {
        "attacks": [*attacks, *(cell.auc for cell in anew)],
        "errors": [*errors, *(cell.ser for cell in anew)],
        "origin": f"{SMALL}, {len(SEEDS)} seeds" + ("; data/results/table1.json" if anew else ""),
    }


def _values(what: str, runs: Sequence[Outcome]) -> list[float]:
    return [getattr(run, what) for run in runs]


def per_example(told: Told) -> Mapping[str, Any]:
    return {"per_example": _scheme("DP-SGD", told, FEW), "printed": _scheme("no decay", told, FEW)}


def noised(told: Told) -> Mapping[str, Any]:
    return {"runs": {scheme: _scheme(scheme, told, FEW) for scheme in SCHEMES if scheme != "SGD"}}


def grid_of_z0(told: Told) -> Mapping[str, Any]:
    configs = [small_config(FEW[0], **{**PRINTED, "z0": z0}) for z0 in GRID]
    return {"grid": runs_of("values of z0", told, configs), "anew": table1_anew()}


def overfitted(told: Told) -> Mapping[str, Any]:
    long = {"epochs": LONG, "dropout": 0.0}
    return {
        "plain": small_runs("SGD, long", told, FEW, method="sgd", **long),
        "private": small_runs("little noise, long", told, FEW, **{**PRINTED, **long, "z0": LITTLE}),
        "dropout": small_runs("SGD with dropout, long", told, FEW, method="sgd", epochs=LONG),
        "anew": table1_anew(),
    }


def raw_scales(told: Told) -> Mapping[str, Any]:
    """Scales s times as large are C s times as large and z as much smaller: step(s alpha, C, z) is one formula."""
    norms = _norms(None)
    s = max(norms.values())
    raw = small_runs("scales as they are", told, FEW, **{**PRINTED, "clip_norm": s, "z0": Z0 / s})
    return {"norms": norms, "raw": raw, "normalised": _scheme("no decay", told, FEW)}


def _scheme(name: str, told: Told, seeds: Sequence[int] = SEEDS) -> tuple[Outcome, ...]:
    return small_runs(name, told, seeds, **SCHEMES[name])


# ---- The thesis ------------------------------------------------------------------------------------------------------


def images(told: Told) -> Mapping[str, Any]:
    """MNIST, as in the thesis, where it is at hand."""
    try:
        found, name = load_images("mnist").train[:SAMPLE], f"{SAMPLE} images of MNIST"
    except UsageError:
        found, name = load_images("digits").train, "scikit-learn's digits"
    return {"images": found, "name": name, "rng": np.random.default_rng(0)}


def chance(told: Told) -> Mapping[str, Any]:
    return {"rng": np.random.default_rng(0)}


def telling(told: Told) -> Mapping[str, Any]:
    return {"told": told}


def lab(told: Told) -> Mapping[str, Any]:
    """Quick networks on digits, kept in a folder that goes with the lab."""
    folder = tempfile.TemporaryDirectory()
    made = Lab(Path(folder.name), QUICK, 0, lambda line, kept: told(line))
    weakref.finalize(made, folder.cleanup)
    return {"lab": made}


TRAINING = (  # inputs that train networks, for seconds or minutes
    norms_in_training,
    norms_from_random,
    decay_at_equal_epsilon,
    attacked,
    per_example,
    noised,
    grid_of_z0,
    overfitted,
    raw_scales,
    telling,
    lab,
)
