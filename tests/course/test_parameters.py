"""Every notebook, run with other parameters: each of them reaches what is shown, and all exercises are solved.

`run_notebook` also puts a fault into the first panel, which must make the last cell fail.
"""

import re
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest

from edp_lab.course.kit.panel import Panel, RunPanel
from edp_lab.course.nb00_start import compute as start
from edp_lab.course.nb00_start.compute import SmallModel
from edp_lab.course.nb03_edp_sgd import compute as edp_sgd
from tests.course.examples import gradient_history
from tests.training.own_corpus import write_corpus

PARAMETERS: dict[str, dict[str, Any]] = {  # values that stand nowhere else, so that to find one is to know its way
    "00": {"corpus": "smart-home", "C": 0.57, "z0": 0.23, "tau": 0.37, "decay": "linear", "num_devices": 9, "seed": 17},
    "01": {
        "epsilon": 0.53, "epsilon_count": 0.2, "sensitivity": 3, "queries": 23, "budget": 2.1, "sigma": 3.7,
        "epsilon_each": 0.053, "releases": 401, "delta": 1.7e-6, "seed": 19,
    },
    "02": {"corpus": "smart-home", "C": 0.57, "z0": 3.7, "batch_size": 43, "optimizer": "adam", "seed": 17},
    "03": {"corpus": "smart-home", "C": 0.57, "z0": 2.3, "tau": 0.13, "decay": "linear", "num_devices": 16, "seed": 17},
    "04": {
        "corpus": "smart-home", "C": 0.57, "z0": 3.7, "tau": 0.23, "decay": "linear", "num_devices": 13, "epochs": 7,
        "delta": 1.7e-6, "seed": 17,
    },
    "05": {"corpus": "smart-home-health", "seed": 17},
    "06": {
        "corpus": "commands", "C": 0.57, "z0": 0.23, "tau": 0.37, "decay": "linear", "num_devices": 4, "epochs": 1,
        "seed": 17,
    },
    "07": {
        "corpus": "smart-home-health", "C": 0.57, "z0": 23.0, "z0_trained": 0.03, "num_devices": 13, "epochs": 1,
        "seed": 17,
    },
    "08": {"C": 0.57, "z0": 2.3, "z0_run": 3.7, "num_devices": 13, "draws": 53, "canaries": 103, "seed": 17},
    "09": {
        "corpus": "smart-home", "C": 0.57, "z0": 0.83, "num_devices": 13, "processes": 2, "delta": 1.7e-6, "seed": 17,
    },
    "10": {
        "sigma": 0.37, "instructors": 12, "vote": "gaussian", "vote_epsilon": 0.23, "labels": 123, "delta": 1.7e-6,
        "seed": 17,
    },
}  # fmt: skip
UNSEEN = {"04": {"corpus"}}  # what goes into a sum or a draw alone
TOLD = {
    "01": "44 answers cost ε = 31",
    "03": "differ by [0-9]e-0[6-9]",
    "04": r"ε = (\S+) by hand, \1 by the library",
}


@pytest.mark.parametrize("number", PARAMETERS)
def test_every_parameter_reaches_what_the_notebook_shows(
    number: str, run_notebook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(start, "SmallModel", lambda config, epochs: SmallModel(config, 1))  # which takes less long
    monkeypatch.setattr(edp_sgd, "GradientHistory", lambda config, epochs: gradient_history())
    given = PARAMETERS[number]
    if given.get("corpus") == "commands":
        given = {**given, "corpus": str(write_corpus(tmp_path / "commands.jsonl", 400))}
    space = run_notebook(number, **given)
    shown = [value for value in space.values() if is_dataclass(value)]
    shown += [panel.values for panel in space.values() if isinstance(panel, Panel)]
    shown += [panel.prepare() for panel in space.values() if isinstance(panel, RunPanel)]
    missing = {
        name
        for name, value in given.items()
        if not re.search(rf"(?<![\w.]){re.escape(repr(value))}(?![\w.])", repr(shown))
    }
    assert missing == UNSEEN.get(number, set())
    assert re.search(TOLD.get(number, ""), capsys.readouterr().out)
