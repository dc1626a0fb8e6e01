"""Runs behind a table: a kill at any point loses no finished run, and what comes out is the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from edp_lab.attacks.membership import attacks
from edp_lab.errors import UsageError
from edp_lab.reproduce import run_cache as table_runs
from edp_lab.reproduce.run_cache import Job, TableRuns
from edp_lab.training import TrainConfig

WORK = """
import sys
from pathlib import Path
from edp_lab.reproduce.run_cache import Job, TableRuns
from edp_lab.training import TrainConfig
base = dict(size="small", epochs=3, batch_size=16, num_devices=4)
jobs = [Job(TrainConfig(sys.argv[1], seed=seed, **base)) for seed in range(4)]
TableRuns(Path(sys.argv[2]), 2).results(jobs, "test")
"""


def write_corpus(path: Path) -> str:
    draw = np.random.default_rng(0)
    rows = [
        {"tokens": ["call", str(draw.integers(9)), str(k)], "tags": ["O", "B-name", "B-number"], "intent": "call"}
        if draw.random() < 0.5
        else {"tokens": ["play", "song", str(k)], "tags": ["O", "O", "B-title"], "intent": "play"}
        for k in range(160)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def jobs(corpus: str) -> list[Job]:
    return [
        Job(TrainConfig(corpus, seed=seed, size="small", epochs=3, batch_size=16, num_devices=4)) for seed in range(4)
    ]


def cells(out: Path) -> dict[str, tuple[int, bytes]]:
    return {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in (out / "cells").glob("*.json")}


def without_times(found: list[dict]) -> list[dict]:
    return [{name: value for name, value in one.items() if name != "seconds"} for one in found]


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    return write_corpus(tmp_path / "own.jsonl")


@pytest.mark.skipif(sys.platform == "win32", reason="kills by signals")
def test_after_a_kill_no_finished_run_is_repeated_and_the_results_are_the_same(corpus, tmp_path):
    out = tmp_path / "killed"
    working = subprocess.Popen([sys.executable, "-c", WORK, corpus, str(out)], start_new_session=True)
    until = time.monotonic() + 120
    while len(cells(out)) < 2:
        assert time.monotonic() < until
        assert working.poll() is None
        time.sleep(0.05)
    os.kill(working.pid, signal.SIGKILL)
    working.wait()
    time.sleep(1)  # its workers notice that it is gone
    before = cells(out)
    found = TableRuns(out, 1).results(jobs(corpus), "test")
    after = cells(out)
    assert before.items() <= after.items()
    assert len(after) == 4
    whole = TableRuns(tmp_path / "whole", 2).results(jobs(corpus), "test")
    assert without_times(found) == without_times(whole)
    assert TableRuns(out, 1).results(jobs(corpus), "test") == found


def test_the_key_follows_the_corpus_the_settings_and_the_attack(corpus, tmp_path, monkeypatch):
    runs, [job, other, *_] = TableRuns(tmp_path / "out"), jobs(corpus)
    key = runs.key(job)
    assert len({key, runs.key(other), runs.key(Job(job.config, attack=True))}) == 3
    Path(corpus).write_text(Path(corpus).read_text().replace("song", "tune"))
    assert TableRuns(tmp_path / "out").key(job) != key


def test_the_key_follows_what_pretrained_weights_are_not_where_they_lie(corpus, tmp_path):
    def key(folder: str, weights: str) -> str:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "weights").write_text(weights)
        config = TrainConfig(corpus, batch_size=16, pretrained=str(tmp_path / folder))
        return TableRuns(tmp_path / "out").key(Job(config))

    assert key("here", "1") == key("there", "1") != key("elsewhere", "2")
    (tmp_path / "here" / "weights").write_text("2")
    config = TrainConfig(corpus, batch_size=16, pretrained=str(tmp_path / "here"))
    assert TableRuns(tmp_path / "out").key(Job(config)) == key("changed", "2")


def test_the_key_of_an_attack_follows_the_corpus_of_its_shadow_model(corpus, tmp_path, monkeypatch):
    runs, [job, *_] = TableRuns(tmp_path / "out"), jobs(corpus)
    keys = {}
    for shadow in ("generated", "smart-home-video"):
        monkeypatch.setattr(attacks, "default_shadow", lambda own, shadow=shadow: shadow)
        keys[shadow] = runs.key(Job(job.config, attack=True)), runs.key(job)
    (first, plain), (second, same) = keys.values()
    assert plain == same
    assert first != second


def test_runs_that_come_with_a_checkout_are_not_repeated_unless_fresh(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(table_runs, "KEPT", tmp_path / "kept")
    (tmp_path / "kept").mkdir()
    [job, *_], runs = jobs(corpus), TableRuns(tmp_path / "out")
    (tmp_path / "kept" / f"{runs.key(job)}.json").write_text('{"ser": 1}')
    assert runs.results([job], "test") == [{"ser": 1}]
    for fresh in (True, False):  # a folder that was begun afresh stays so
        assert TableRuns(tmp_path / "out", fresh=fresh).known(job) is None
    assert (tmp_path / "kept" / f"{runs.key(job)}.json").is_file()


def test_a_damaged_cell_counts_as_missing_and_fresh_forgets_all(corpus, tmp_path):
    runs, [job, *_] = TableRuns(tmp_path / "out"), jobs(corpus)
    cell = tmp_path / "out" / "cells" / f"{runs.key(job)}.json"
    cell.write_text('{"ser": 1}')
    assert runs.known(job) == {"ser": 1}
    cell.write_text('{"ser": ')
    assert runs.known(job) is None
    cell.write_text('{"ser": 1}')
    (tmp_path / "out" / "public" / "seconds.json").write_text("[1]")
    assert TableRuns(tmp_path / "out", fresh=True).known(job) is None
    assert not list((tmp_path / "out" / "public").iterdir())


def test_a_worker_that_fails_ends_in_one_sentence(tmp_path):
    corpus = write_corpus(tmp_path / "own.jsonl")
    job = Job(TrainConfig(corpus, size="small", epochs=1, batch_size=16, num_devices=4, lr=1e30, method="sgd"))
    with pytest.raises(UsageError, match="lower --lr"):
        TableRuns(tmp_path / "out").results([job], "test")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="choose another --out"):
        TableRuns(tmp_path / "file")
