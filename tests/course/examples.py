"""Arguments for panels in the contract tests, unless a panel's defaults are sufficient.

A panel with defaults for all arguments needs no entry here.
"""

import atexit
import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
import torch
from typer.testing import CliRunner

from edp_lab.__main__ import app
from edp_lab.attacks.loss import attack_loss
from edp_lab.course.kit.panel import PANELS, Frame, Panel
from edp_lab.course.nb00_start.panels import SmallModel
from edp_lab.course.nb04_edp_sgd.panels import GradientHistory
from edp_lab.course.nb05_membership.panels import measured, target_config
from edp_lab.course.nb06_audit.panels import StepNoise
from edp_lab.course.nb07_train.panels import BASE, load_grid
from edp_lab.course.nb10_phases.panels import Sketch
from edp_lab.three_phase.settings import ThreePhaseSettings
from edp_lab.training.config import TrainConfig
from edp_lab.training.session import train


class Wrong(NamedTuple):
    """A wrong answer to an exercise, and a part of the message that the student sees."""

    answer: Any
    says: str


SMALL = TrainConfig("smart-home", as_printed=True, alpha="none", size="small", lr=0.02, epochs=1)


def once(make: Callable[[], Any]) -> Callable[[], Any]:
    """Computed once, on one thread."""

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
    """A small overfitted model, with the loss attack and with an attack that is always right."""
    folder = Path(mkdtemp(prefix="edp-lab-")) / "target"
    atexit.register(rmtree, folder.parent, ignore_errors=True)
    train(target_config("smart-home-health", 0, 3), folder)
    loss = attack_loss(folder)
    sure = np.repeat([1.0, 0.0], len(loss.target.members))
    return {"loss": loss, "lira-online": replace(loss, result=replace(loss.result, attack="lira-online"), scores=sure)}


THESIS = ThreePhaseSettings(epochs=1)


ARGUMENTS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "00 read": lambda: (small_model(),),
    "00 Step": lambda: (small_model(), SMALL),
    "00 Private": lambda: (3.0, 2_000),
    "02 training": lambda: (1.0, 2.0, 20, 1.0),
    "04 decay": lambda: (gradient_history(), True, 1.0, 0.03, "exponential", 0.3, 8),
    "05 roc": lambda: (attacked_target(), True, 4.0, 8, 8),
    "05 canaries": lambda: (measured_attacks().canaries, "edp-sgd", 0.01, 4),
    "06 step": lambda: (step_noise(), True, 1.0, 1.0, 8, 1000),
    "06 OneRun": lambda: (True, 4.0, 8, 50, 2, 0),
    "07 Explorer": lambda: (load_grid(), replace(BASE, z0=0.03, epochs=4)),
    "09 Processes": lambda: (TrainConfig("smart-home", size="small"),),
    "10 pixels": lambda: (phases_sketch(), THESIS),
    "10 Pipeline": lambda: (phases_sketch(), THESIS),
}


@cache
def all_panels() -> dict[str, Callable[..., Frame]]:
    """Every panel of the course, by notebook and name."""
    for room in sorted(Path(__file__).parents[2].glob("edp_lab/course/nb*/panels.py")):
        import_module(f"edp_lab.course.{room.parent.name}.panels")
    return PANELS


@cache
def _made(name: str) -> Any:
    return all_panels()[name](*ARGUMENTS.get(name, tuple)())


def panel_of(name: str, **values: Any) -> Any:
    """A panel of the registry, reset to its initial state and then set to these values."""
    panel = _made(name)
    if isinstance(panel, Panel):
        panel.reset()
        panel.errors.clear()
        if values:
            panel.set(**values)
    return panel


def drawn(panel: Any) -> list[go.Figure]:
    """A panel's figures as plotly objects, which reject unknown properties."""
    return [go.Figure(live.figure) for live in panel.figures]


def report_of(line: str) -> dict[str, Any]:
    """The JSON output of a call of `edp-lab`."""
    result = CliRunner().invoke(app, [*shlex.split(line)[1:], "--json"])
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))
