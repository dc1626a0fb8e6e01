"""Comparison of runs: differences, the meaning of each number, incomparable values, and unrounded numbers."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from edp_lab.cli.compare import compare_runs, table_lines
from edp_lab.errors import UsageError
from edp_lab.privacy.guarantee import upward
from edp_lab.training.config import TrainConfig
from edp_lab.training.run_files import read_record, write_record
from edp_lab.training.session import train
from tests.cli.conftest import write_rows

SCORES = {"ser": 0.5, "intent_accuracy": 0.25, "slot_f1": 0.125, "exact_match": 0.0625}
VOID, FLOATS = "void: seed published", "for real numbers only"
KINDS = ("guaranteed_epsilon", "epsilon_if_seed_secret", "epsilon_in_real_numbers", "epsilon_if_alpha_public")


def record(method: str = "edp-sgd", seconds: float = 2.0, epochs: int = 3, **config: Any) -> dict[str, Any]:
    """The record of a run, either with noise from a published seed or without noise."""
    told = asdict(TrainConfig(corpus="smart-home", method=method, epochs=epochs, delta=1e-5, **config))
    plain = method == "sgd"
    epsilon = None if plain else 8.0
    bill = {
        "claimed_epsilon": None if plain else 9.0,
        "conditional_epsilon": epsilon,
        "epsilon_if_alpha_public": epsilon,
    }
    return {
        "status": "finished",
        "ledger": None,
        "config": told,
        "device": "cpu",
        "threads": 1,
        "parameters": 1000,
        "corpus": {"sha256": "ab" * 32},
        "epochs": [{"seconds": seconds, **SCORES, "ser": 1 / (k + 1), **bill} for k in range(epochs)],
        "final": {"seconds": seconds * epochs, **SCORES, **bill},
        "guarantee": {
            "status": "none" if plain else VOID,
            "delta": 1e-5,
            "adjacency": "" if plain else "REPLACE_SPECIAL",
            "sampling": "" if plain else "disjoint",
        },
    }


@pytest.fixture
def runs(tmp_path):
    """Write records as runs, and return their folders."""

    def write(**records: dict[str, Any]) -> list[Path]:
        for name, one in records.items():
            write_record(tmp_path / name, one)
        return [tmp_path / name for name in records]

    return write


DIFFERENCES = {  # runs, and the settings that are shown for each run
    "only those that differ": (
        (record(z0=0.1), record(z0=0.2, lr=0.01), record(z0=0.1)),
        ({"z0": 0.1, "lr": "none"}, {"z0": 0.2, "lr": 0.01}, {"z0": 0.1, "lr": "none"}),
    ),
    "no noise of plain runs": ((record("sgd", z0=0.5), record("sgd", clip_norm=2.0)), ({}, {})),
    "noise beside a plain run": ((record("sgd"), record(z0=0.5), record(z0=0.4)), ({}, {"z0": 0.5}, {"z0": 0.4})),
    "no tau without decay": ((record(tau=0.2), record(tau=0.3)), ({}, {})),
    "tau beside none": (
        (record(tau=0.2), record(tau=0.3, decay="linear")),
        ({"decay": "none", "tau": "none"}, {"decay": "linear", "tau": 0.3}),
    ),
    "no default that is given": ((record(), record(alpha="none", sampling="shuffle", micro_batch_size=8)), ({}, {})),
    "as printed": (
        (record(), record(as_printed=True)),
        ({"as_printed": False, "alpha": "none"}, {"as_printed": True, "alpha": "private"}),
    ),
}


@pytest.mark.parametrize("case", DIFFERENCES)
def test_settings_that_differ_and_count_are_named_and_no_others(runs, case):
    records, shown = DIFFERENCES[case]
    found = compare_runs(runs(**{f"run{k}": one for k, one in enumerate(records)}))
    assert [run["settings"] for run in found.runs] == list(shown)
    assert set(found.settings) == {name for one in shown for name in one}


def test_an_epsilon_stands_only_where_what_it_assumes_is_said(runs):
    holds, floats, printed = record(private_seed=True), record(noise="per-device"), record(as_printed=True)
    holds["guarantee"]["status"], floats["guarantee"]["status"] = "holds", FLOATS
    printed["guarantee"]["status"] = "none"
    printed["final"]["conditional_epsilon"] = None
    found = compare_runs(runs(holds=holds, void=record(), floats=floats, printed=printed, plain=record("sgd")))
    names = ("guarantee", "delta", "claimed_epsilon", *KINDS)
    assert [tuple(run[name] for name in names) for run in found.runs] == [
        ("holds", 1e-5, 9.0, 8.0, None, None, None),
        (VOID, 1e-5, 9.0, None, 8.0, None, None),
        (FLOATS, 1e-5, 9.0, None, None, 8.0, None),
        ("none", 1e-5, 9.0, None, None, None, 8.0),
        ("none", None, None, None, None, None, None),
    ]


def test_runs_that_did_not_finish_show_it_and_what_they_have(runs):
    running, failed, started = record(), record(), record()
    running |= {"status": "running", "final": None, "epochs": running["epochs"][:2]}
    failed |= {"status": "failed", "final": {**failed["final"], **dict.fromkeys(SCORES), "seconds": None}}
    started |= {"status": "interrupted", "epochs": []}
    found = compare_runs(runs(running=running, failed=failed, started=started))
    names = ("status", "epochs", "test_ser", "seconds_per_epoch", "epsilon_if_seed_secret")
    assert [tuple(run[name] for name in names) for run in found.runs] == [
        ("running", 2, None, 2, 8),
        ("failed", 3, None, 2, 8),
        ("interrupted", 0, 0.5, None, 8),
    ]


def test_a_run_that_was_killed_is_billed_by_its_ledger_not_by_its_last_whole_epoch(tmp_path):
    whole = train(TrainConfig("smart-home-health", size="small", epochs=2, num_devices=4), tmp_path / "killed")
    [run] = compare_runs([tmp_path / "killed"]).runs
    theirs = {"test_ser": "ser", "epsilon_if_seed_secret": "conditional_epsilon"}
    for name in ("test_ser", "intent_accuracy", "slot_f1", "exact_match", "claimed_epsilon", "epsilon_if_seed_secret"):
        assert run[name] == whole["final"][theirs.get(name, name)]
    for epochs in (1, 0):
        cut = {**whole, "status": "running", "final": None, "epochs": whole["epochs"][:epochs]}
        write_record(tmp_path / "killed", cut)
        found = compare_runs([tmp_path / "killed"])
        assert (
            whole["epochs"][0]["conditional_epsilon"]
            < whole["final"]["conditional_epsilon"]
            == found.runs[0]["epsilon_if_seed_secret"]
        )
        assert "for the steps so far" in found.notes[0]
        assert "--resume" in found.notes[0]


def changed(path: str, value: Any, **told: Any) -> dict[str, Any]:
    one = record(**told)
    *parents, last = path.split(".")
    part = one
    for name in parents:
        part = part[name]
    part[last] = value
    return one


PLAIN = changed("guarantee.delta", 1e-3, method="sgd")  # SGD does not use delta


@pytest.mark.parametrize(
    ("other", "saying"),
    [
        (PLAIN, ""),
        (record(z0=1.0), ""),
        (changed("corpus.sha256", "cd" * 32), "corpora"),
        (record(seed=1), "seeds"),
        (changed("guarantee.delta", 1e-4), "deltas"),
        (changed("guarantee.adjacency", "ADD_OR_REMOVE_ONE"), "neighbours"),
    ],
)
def test_each_reason_not_to_compare_is_said_once(runs, other, saying):
    notes = compare_runs(runs(a=record(), b=other, c=record())).notes
    assert len(notes) == bool(saying)
    assert saying in "".join(notes)


def test_what_no_run_has_is_left_out(runs):
    plain, faster = record("sgd"), record("sgd", lr=0.1)
    plain["final"]["slot_f1"] = faster["final"]["slot_f1"] = None
    about, scores = ["run", "status", "corpus", "model", "method", "lr", "epochs"], ["test SER", "intent accuracy"]
    titles = [title for title, *_ in table_lines(compare_runs(runs(a=plain, b=faster)))]
    assert titles == [*about, *scores, "exact match", "seconds per epoch", "guarantee"]


def test_a_sealed_record_that_lacks_what_is_compared_is_refused_in_one_sentence(runs):
    lacking = record()
    del lacking["guarantee"]
    with pytest.raises(UsageError, match=r"^[^\n]*bad is from another version[^\n]*$"):
        compare_runs(runs(good=record(), bad=lacking))


# ---- The command, on real runs and a narrow terminal -----------------------------------------------------------------

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
def compare_command(cli, monkeypatch, trained):
    """Output of ``edp-lab compare ARGS`` in the folder of the runs, on a terminal of 80 columns."""
    monkeypatch.chdir(trained)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str) -> str:
        status, out, err = cli("compare", *arguments)
        assert (status, err) == (0, "")
        return out

    return run


def final(trained: Path, name: str) -> dict:
    return read_record(trained / name)["final"]


def test_runs_stand_side_by_side_on_a_narrow_terminal(compare_command, trained):
    out = compare_command(*SETTINGS)
    lines = [line.split() for line in out.splitlines()]
    assert ["run", *SETTINGS] in lines
    assert ["test", "SER", *(f"{final(trained, name)['ser']:.4g}" for name in SETTINGS)] in lines
    epsilon = upward(final(trained, "secret")["conditional_epsilon"], 4)
    assert ["guaranteed", "epsilon", "-", "-", epsilon] in lines
    assert ["epsilon", "if", "seed", "secret", "-", epsilon, "-"] in lines
    assert max(map(len, out.splitlines())) <= 80


def test_long_names_are_folded_and_nothing_in_them_is_a_command(compare_command, tmp_path):
    names = ["a-name-that-is-far-too-long-for-a-table" * 2, "[bold]:cat:"]
    for name in names:
        (tmp_path / name).mkdir()
        write_record(tmp_path / name, read_record("noised"))
    out = compare_command(*(str(tmp_path / name) for name in names))
    assert max(map(len, out.splitlines())) <= 80
    assert f"{final(Path(), 'noised')['ser']:.4g}" in out


def test_json_has_a_row_for_each_run(compare_command, trained):
    rows = json.loads(compare_command(*SETTINGS, "--json"))["runs"]
    assert {row["name"]: row["test_ser"] for row in rows} == {name: final(trained, name)["ser"] for name in SETTINGS}
