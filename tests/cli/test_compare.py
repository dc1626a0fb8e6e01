"""``edp-lab compare`` as a person uses it: real runs and a narrow terminal."""

import json
from pathlib import Path

import pytest

from edp_lab.privacy.guarantee import upward
from edp_lab.training import TrainConfig, train
from edp_lab.training.run_folder import read_record, write_record
from tests.cli.conftest import write_rows

SETTINGS = {"plain": {"method": "sgd"}, "noised": {"z0": 0.5}, "secret": {"z0": 0.5, "private_seed": True}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with three runs on a tiny corpus."""
    folder = tmp_path_factory.mktemp("trained")
    corpus = str(write_rows(folder / "own.jsonl"))
    for name, told in SETTINGS.items():
        config = TrainConfig(corpus, size="small", epochs=2, batch_size=16, num_devices=4, **told)
        train(config, folder / name)
    return folder


@pytest.fixture
def compare(cli, monkeypatch, trained):
    """``edp-lab compare ARGS`` among the runs, on a terminal of 80 columns: what it prints."""
    monkeypatch.chdir(trained)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str) -> str:
        status, out, err = cli("compare", *arguments)
        assert (status, err) == (0, "")
        return out

    return run


def final(trained: Path, name: str) -> dict:
    return read_record(trained / name)["final"]


# ---- Tables --------------------------------------------------------------------------------------------------------


def test_few_runs_stand_side_by_side_on_a_narrow_terminal(compare, trained):
    out = compare(*SETTINGS)
    lines = [line.split() for line in out.splitlines()]
    assert ["run", *SETTINGS] in lines
    assert ["test", "SER", *(f"{final(trained, name)['ser']:.4f}" for name in SETTINGS)] in lines
    epsilon = upward(final(trained, "secret")["epsilon"], 4)
    assert ["guaranteed", "epsilon", "none", "none", epsilon] in lines
    assert ["epsilon", "if", "seed", "secret", "-", epsilon, "-"] in lines
    assert max(map(len, out.splitlines())) <= 80


def test_many_runs_stand_in_tables_that_fit(compare, tmp_path):
    names = []
    for k in range(12):
        one = read_record("noised")
        one["config"]["z0"] = k + 0.123
        one["config"]["seed"] = k % 2
        one["final"]["exact_match"] = k / 1000
        folder = tmp_path / ("a-name-that-is-far-too-long-for-a-table" if k == 5 else f"[bold]:cat:{k}")
        folder.mkdir()
        write_record(folder, one)
        names.append(str(folder))
    out = compare(*names)
    assert max(map(len, out.splitlines())) <= 80
    assert "note: seeds 0 and 1 make different splits" in out
    for k in set(range(12)) - {5}:
        assert f"{k + 0.123}" in out


@pytest.mark.parametrize("width", ["60", "100", "300"])
def test_a_usual_terminal_is_wide_enough_and_shows_every_number(compare, trained, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    out = compare(*SETTINGS)
    assert max(map(len, out.splitlines())) <= int(width)
    for name in SETTINGS:
        assert f"{final(trained, name)['exact_match']:.4f}" in out


def test_json_names_the_runs_and_the_one_that_others_are_timed_by(compare, trained):
    told = json.loads(compare(*SETTINGS, "--json"))
    assert told["reference"] == "plain"
    assert {run["name"]: run["test_ser"] for run in told["runs"]} == {n: final(trained, n)["ser"] for n in SETTINGS}
