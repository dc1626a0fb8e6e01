"""What the contract of all panels is tried on: arguments for each that does not do with its defaults, and settings.

A panel whose arguments all have defaults needs no entry here.
"""

import atexit
import json
import math
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
import torch
from typer.testing import CliRunner

from edp_lab.attacks.membership.attacks import attack_loss
from edp_lab.cli import app
from edp_lab.course.kit.inputs import SOUND
from edp_lab.course.kit.panel import PANELS, Panel, all_panels
from edp_lab.course.nb00_start.compute import SmallModel
from edp_lab.course.nb03_edp_sgd.compute import GradientHistory
from edp_lab.course.nb06_tradeoff.compute import BASE, load_grid
from edp_lab.course.nb07_membership.compute import measured, target_config
from edp_lab.course.nb08_audit.compute import StepNoise
from edp_lab.course.nb10_phases.compute import Sketch
from edp_lab.three_phase.settings import ThreePhaseSettings
from edp_lab.training import TrainConfig, train


class Wrong(NamedTuple):
    """A wrong answer to an exercise, and what the student reads about it, among other things."""

    answer: Any
    says: str


SMALL = TrainConfig("smart-home", as_printed=True, size="small", lr=0.02)


def once(make: Callable[[], Any]) -> Callable[[], Any]:
    """Made once, on one thread."""

    @cache
    def made() -> Any:
        torch.set_num_threads(1)
        return make()

    return made


small_model = once(lambda: SmallModel(SMALL, epochs=1))
gradient_history = once(lambda: GradientHistory(TrainConfig("smart-home", size="small", lr=0.02), epochs=2))
measured_attacks = cache(measured)
step_noise = cache(lambda: StepNoise(3))
phases_sketch = once(lambda: Sketch(0))


@once
def attacked_target() -> Any:
    """A little model that has overfitted, under the attack by its loss and under one that is right about everybody."""
    folder = Path(mkdtemp(prefix="edp-lab-")) / "target"
    atexit.register(rmtree, folder.parent, ignore_errors=True)
    train(target_config("smart-home-health", 0, 3), folder)
    loss = attack_loss(folder)
    sure = np.repeat([1.0, 0.0], len(loss.target.members))
    return {"loss": loss, "lira-online": replace(loss, result=replace(loss.result, attack="lira-online"), scores=sure)}


THESIS = ThreePhaseSettings(epochs=1)


ARGUMENTS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "00 read": lambda: (small_model(),),
    "00 step": lambda: (small_model(), replace(SMALL, epochs=40)),  # so that every stop of t lies in the run
    "00 Training": lambda: (small_model(), PANELS["00 step"](small_model(), SMALL)),
    "02 training": lambda: (1.0, 2.0, 20, "sgd", 1.0, 0),
    "03 decay": lambda: (gradient_history(), True, 1.0, 0.03, "exponential", 0.3, 8),
    "04 bill": lambda: (1.0, 1.0, "exponential", 0.1, 8, 30, 1e-5),
    "04 needed": lambda: (8.0, "exponential", 0.1, 8, 30, 1e-5),
    "07 roc": lambda: (attacked_target(), True, 4.0, 8, 8),
    "07 canaries": lambda: (measured_attacks().canaries, "edp-sgd", 0.01, 4),
    "08 step": lambda: (step_noise(), True, 1.0, 1.0, 8, 1000),
    "08 OneRun": lambda: (True, 4.0, 8, 50, 2, 0),
    "06 Explorer": lambda: (load_grid(), replace(BASE, z0=0.03, epochs=4)),
    "06 Live": lambda: (BASE, PANELS["06 Explorer"](*ARGUMENTS["06 Explorer"]())),
    "06 ladder": lambda: (replace(BASE, z0=0.1), 2e-4),
    "09 noise": lambda: (1.0, 1.0, 8, 10, 1e-5, 0),
    "09 Processes": lambda: (PANELS["09 noise"](1.0, 1.0, 8, 10, 1e-5, 0), TrainConfig("smart-home", size="small")),
    "10 pixels": lambda: (phases_sketch(), THESIS),
    "10 votes": lambda: (phases_sketch(), THESIS),
    "10 Pipeline": lambda: (phases_sketch(), THESIS),
}

# Of a panel, settings at which it says something else, or refuses in words of its own: see the snapshots.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "00 step": [
        {"as_printed": False, "num_devices": 1},
        {"z0": 0.0},
        {"as_printed": False, "z0": 1e-6, "decay": "exponential", "tau": 12.0},
        {"num_devices": 64},
        {"epoch": 12, "epochs": 12},
    ],
    "00 refute": [{"z0": 0.1}, {"z0": 10.0, "num_devices": 1}],  # no refutation, though the claim is false
    "01 coin": [
        {"epsilon": math.log(3)},
        {"epsilon": 800.0, "people": 10},
        {"epsilon": 12.0, "people": 50},
        {"epsilon": 10.0, "share": 0.0},
        {"people": 10**9},
        {"share": 1.2},
    ],
    "01 delta": [{"epsilon": math.log(3), "sigma": 2**0.5}, {"epsilon": 0.5}, {"epsilon": 100.0, "sigma": 1.0}],
    "01 composition": [{"epsilon": 1.0}, {"epsilon": 1e-6, "budget": 1e3}, {"releases": 1}, {"releases": 10**6}],
    "02 cloud": [
        {"z": 0.0},
        {"examples": 2000},
        {"z": 0.0, "clip_norm": 20.0, "examples": 1},
        {"rule": "by value"},
        {"outliers": 1.5},
    ],
    "02 training": [{"z": 0.1}, {"sampling": "shuffle"}, {"z": 0.0}, {"batch_size": 401}],
    "02 denominators": [{"noise_std": 0.0}, {"noise_std": 0.00105}],
    "03 promise": [{"delta": 1.0}],
    "03 stages": [{"z": 0.0}, {"num_devices": 65}],
    "03 decay": [{"num_devices": 5}],
    "04 bill": [
        {"decay": "none"},
        {"variant": SOUND, "z0": 0.0},
        {"variant": SOUND, "z0": 1e-6, "tau": 0.5, "epochs": 12},  # noise that float32 arithmetic swallows
        {"variant": SOUND, "utterances": 3, "epochs": 1},
        {"num_devices": 64},
    ],
    "04 needed": [
        {"decay": "none"},
        {"variant": SOUND, "tau": 2.0, "target": 0.1, "epochs": 20},
        {"variant": SOUND, "utterances": 3},
        {"epochs": 1},
        {"tau": 2.0, "epochs": 20},
        {"target": 0.0},
        {"utterances": 0},
    ],
    "04 loss": [{"draws": 1}],
    "04 sampling": [
        {"rate": 0.8, "steps": 1},
        {"rate": 0.01, "noise_multiplier": 10.0, "delta": 0.1},
        {"rate": 2.0},
        {"delta": 2.0},
    ],
    "04 table1": [{"epochs": 5}, {"epochs": 121}],
    "05 ser": [
        {"name": "right"},
        {"name": "right", "intent": "wrong"},
        {"name": "wrong label"},
        {"name": "split in two", "others": 4},
        {"name": "missed", "time": "missed"},
    ],
    "05 crf": [{"transition": 0.4}, {"emission": 2.0}, {"transition": 1000.0}],
    "06 Explorer": [
        {"method": "poisson", "z0": 0.1, "epochs": 8},
        {"micro_batch": 16},
        {"method": "sgd"},
        {"method": "printed"},
    ],
    "06 ladder": [
        {"z": 1.0},
        {"z": 1.0, "micro_batch": 2, "adjacency": "REPLACE_ONE"},
        {"z": 1.0, "micro_batch": 1},
        {"micro_batch": 16},
        {"num_devices": 64},
    ],
    "07 roc": [  # what no epsilon allows, what one of both does, what both do, and where there is none
        {"z0": 50.0},
        {"z0": 2.5},
        {"z0": 0.01},
        {"attack": "loss", "z0": 1.0},
        {"z0": 0.0},
        {"people": 49},
        {"people": 10_000},
    ],
    "07 canaries": [{"z0": 0.02}, {"repetitions": 3}],
    "08 step": [{"draws": 10_001}, {"z0": 1e-6}, {"clip_norm": 1e-35}],
    "09 noise": [{"z0": 0.0}, {"num_devices": 64}],
    "09 scaling": [{"devices": 33}, {"devices": 1, "batch": 2}],
    "10 pixels": [{"sigma": 0.0}, {"sigma": 0.6}, {"sigma": 30.0}],
    "10 votes": [{"sigma": 0.0, "instructors": 30}, {"instructors": 200}, {"image": 540}],
}


@cache
def _made(name: str) -> Any:
    return all_panels()[name](*ARGUMENTS.get(name, tuple)())


def panel_of(name: str, **values: Any) -> Any:
    """A panel of the registry as it is at its start, whatever the test before has done to it, moved to these values."""
    panel = _made(name)
    if isinstance(panel, Panel):
        panel.reset()
        panel.errors.clear()
        if values:
            panel.set(**values)
    return panel


def drawn(panel: Any) -> list[go.Figure]:
    """A panel's figures as objects; plotly refuses a property that it does not know."""
    return [go.Figure(live.figure) for live in panel.figures]


def report_of(line: str) -> dict[str, Any]:
    """What a call of `edp-lab` says as JSON."""
    result = CliRunner().invoke(app, [*shlex.split(line)[1:], "--json"])
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))
