"""Notebook 06, cell by cell: its parameters are followed, and no error stays hidden."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pytest

from edp_lab.course.kit.exercises import WrongAnswerError
from edp_lab.course.nb06_tradeoff import grid as tradeoff_grid
from edp_lab.course.nb06_tradeoff.grid import BASE, Grid, load_grid
from edp_lab.course.publish.build import instructor, read_source, student
from edp_lab.training import TrainConfig

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "source" / "06_train_and_trade_off.ipynb"
DELTA = 2e-4


@pytest.fixture(scope="module")
def grid() -> Grid:
    return load_grid()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """Two epochs on a corpus of 400 short commands."""
    rows = [
        {"tokens": ["call", f"n{k % 40}", str(k)], "tags": ["O", "B-x", "O"], "intent": "ab"[k % 2]} for k in range(400)
    ]
    path = tmp_path_factory.mktemp("corpus") / "commands.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return replace(BASE, corpus=str(path), epochs=2, z0=0.01)


# ---- The notebook --------------------------------------------------------------------------------------------------


def cells(kind: str, notebook: nbformat.NotebookNode | None = None) -> Sequence[nbformat.NotebookNode]:
    found = notebook or instructor(read_source(NOTEBOOK))
    return [cell for cell in found.cells if cell.cell_type == kind]


def test_notebook_follows_its_parameters_and_fails_on_a_hidden_error(small: TrainConfig) -> None:
    values = {
        "corpus": small.corpus, "C": 0.5, "z0": 0.2, "tau": 0.3, "decay": "linear", "num_devices": 4, "epochs": 1,
        "seed": 2, "STRICT": True,
    }  # fmt: skip
    space: dict[str, Any] = {}
    for cell in cells("code"):
        exec(cell.source, space)
        if "parameters" in cell.metadata.get("tags", ()):
            assert set(space) >= {"mode", *values}
            space.update(values)
    explorer = {"method": "sound", "micro_batch": 8, "z0": 0.2, "decay": "linear", "epochs": 1}
    assert space["explorer"].values == explorer
    [point] = space["live"].points
    config = point.config
    assert (config.corpus, config.clip_norm, config.num_devices, config.seed) == (small.corpus, 0.5, 4, 2)
    assert (config.tau, config.decay, config.epochs) == (0.3, "linear", 1)
    assert {"z": 0.2, "num_devices": 4, "epochs": 1}.items() <= space["ladder"].values.items()
    assert [verdict.status for verdict in space["check"].verdicts.values()] == ["solved"] * 3

    space["tuning"]._show = lambda result: 1 / 0  # a fault that only a moved slider meets
    space["tuning"].controls["trials"].slider.value = 5
    with pytest.raises(ZeroDivisionError):
        exec(cells("code")[-1].source.replace("live.run(wait=True)", ""), space)


def test_full_mode_measures_the_runs_anew(monkeypatch: pytest.MonkeyPatch, grid: Grid) -> None:
    asked: list[Path] = []

    def measured(path: Path, say: Any) -> Grid:
        asked.append(path)
        return grid

    monkeypatch.setattr(tradeoff_grid, "measure", measured)
    space = {"mode": "full", "tradeoff_grid": tradeoff_grid, "Path": Path}
    exec(next(cell.source for cell in cells("code") if "load_grid" in cell.source), space)
    assert asked == [Path("runs/tradeoff.json")]


def test_an_untouched_exercise_stops_a_strict_notebook_only() -> None:
    untouched = cells("code", student(read_source(NOTEBOOK)))
    place = next(k for k, cell in enumerate(untouched) if 'check("smaller"' in cell.source)
    for strict in (False, True):
        space: dict[str, Any] = {}
        for cell in untouched[:place]:
            exec(cell.source.replace("STRICT = False", f"STRICT = {strict}"), space)
        if strict:
            with pytest.raises(WrongAnswerError, match=r"06\.smaller"):
                exec(untouched[place].source, space)
        else:
            exec(untouched[place].source, space)
