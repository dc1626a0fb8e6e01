"""Parallel jobs and their stored results: nothing is done twice or incompletely, and no process is left running."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from edp_lab.corpora.smart_home import generate, write_jsonl
from edp_lab.errors import UsageError
from edp_lab.jobs import NUMERICS, content_key, content_of, kept_results, parallel, read_result, write_result
from edp_lab.training.config import TrainConfig
from edp_lab.training.session import train
from tests.training.own_corpus import runs, wait_for
from tests.workers import add


@dataclass(frozen=True)
class Settings:
    lr: float = 0.1
    private: bool = False
    name: str | None = None


JOBS = [{"number": k, "array": np.full(3, k)} for k in range(5)]


# A parent of two workers: one soon finishes the first nap, then both sleep.
NAPS = "kept_results(folder, 'abc', [(sys.argv[1], s) for s in (0, 600, 600)], sleep, 2)"
PARENT = f"""
import sys
from pathlib import Path
from edp_lab.jobs import kept_results
from tests.workers import sleep
folder = Path(sys.argv[1])
{NAPS}
"""


def test_keys_follow_settings_data_and_declared_numerics_and_nothing_that_is_off(monkeypatch):
    def key(settings: Settings = Settings(), data: Any = (1.0, 2.0), areas: tuple[str, ...] = ("training",)) -> str:
        return content_key(areas, settings, np.array(data))

    others = [key(Settings(lr=0.2)), key(Settings(lr=0)), key(Settings(private=True)), key(Settings(name="a"))]
    others += [key(data=(1.0, 2.5)), key(data=((1.0, 2.0),)), key(data=(1, 2)), key(areas=("membership",))]
    assert len({key(), *others}) == 9
    assert key() == content_key(["training"], {"lr": 0.1}, np.array([1.0, 2.0]))
    before = key()
    monkeypatch.setitem(NUMERICS, "training", NUMERICS["training"] + 1)
    assert key() not in (before, *others)
    with pytest.raises(TypeError, match="content key"):
        content_key(["training"], object())


def test_the_numerics_of_training_are_still_those_whose_results_are_kept(tmp_path):
    """If this fails by more than rounding, raise NUMERICS["training"], which makes stored results count as missing.

    The stored results of sound runs used different draws of the same noise, which was not yet rounded with the sum.
    """
    corpus, losses = tmp_path / "own.jsonl", {}
    write_jsonl(generate(100, seed=1, domain="health"), corpus)
    for method in ("sgd", "edp-sgd", "dp-sgd"):
        config = TrainConfig(str(corpus), method=method, z0=0.01, size="small", epochs=3, batch_size=16)
        losses[method] = train(config, tmp_path / method)["epochs"][-1]["loss"]
    assert NUMERICS["training"] == 1
    assert losses == pytest.approx({"sgd": 14.55048, "edp-sgd": 15.32380, "dp-sgd": 15.10171}, rel=1e-3)


def test_content_is_that_of_all_files_wherever_they_lie(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder / "in").mkdir(parents=True)
        (tmp_path / folder / "in" / "weights").write_text("1")
    first = content_of(str(tmp_path / "a"))
    assert first == content_of(str(tmp_path / "b"))
    (tmp_path / "b" / "in" / "weights").rename(tmp_path / "b" / "weights")
    assert content_of(str(tmp_path / "b")) != first
    assert content_of("name/on-a-hub") == "name/on-a-hub"
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="is empty"):
        content_of(str(tmp_path / "empty"))


def test_a_result_is_read_as_it_was_written_unless_it_is_damaged_or_anothers(tmp_path):
    result = {"ser": 0.1 + 0.2, "rows": [1, None, "ä"], "none": {}}
    assert read_result(tmp_path / "missing", "a") is None
    assert write_result(tmp_path, "a", {**result, "rows": (1, None, "ä")}) == read_result(tmp_path, "a") == result
    entry = tmp_path / "a.json"
    whole = entry.read_text()
    for damaged in (whole[:-9], whole.replace("0.3", "0.4"), json.dumps(result), "[]", ""):
        entry.write_text(damaged)
        assert read_result(tmp_path, "a") is None
    entry.write_text(whole)
    entry.rename(tmp_path / "b.json")
    assert read_result(tmp_path, "b") is None


@pytest.mark.parametrize("workers", [1, 2])
def test_any_number_of_workers_does_every_job_once_on_one_thread(workers, tmp_path):
    counts, threads, keys = [], torch.get_num_threads(), [str(k) for k in range(5)]
    write_result(tmp_path, "3", {"sum": 9.0, "kept": True})
    found = kept_results(tmp_path, keys, JOBS, add, workers, counts.append)
    assert [one["sum"] for one in found] == [0, 3, 6, 9, 12]
    assert found[3]["kept"]
    done = [one for k, one in enumerate(found) if k != 3]
    assert {one["threads"] for one in done} == {1}
    pids = {one["pid"] for one in done}
    assert pids == {os.getpid()} if workers == 1 else os.getpid() not in pids
    assert counts == [1, 2, 3, 4, 5]
    assert kept_results(tmp_path, keys, JOBS, add, workers) == found
    assert torch.get_num_threads() == threads
    assert not any(map(runs, pids - {os.getpid()}))


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_input_is_told_in_the_jobs_words_and_finished_results_are_kept(workers, tmp_path):
    jobs = [*JOBS[:3], {"fails after": tmp_path / "a.json"}]
    with pytest.raises(UsageError, match=r"^bad input: mend it$"):
        kept_results(tmp_path, list("abcd"), jobs, add, workers)
    assert read_result(tmp_path, "d") is None
    assert read_result(tmp_path, "a") is not None


def workers_of(folder: Path) -> list[int]:
    """The two workers of `NAPS`, once both are in a long nap."""
    assert wait_for(lambda: len(list(folder.glob("pid-*"))) == 2 and (folder / "a.json").exists(), 120)
    return [int(path.name.removeprefix("pid-")) for path in folder.glob("pid-*")]


def only_the_first_is_kept(folder: Path) -> bool:
    return [read_result(folder, key) for key in "abc"] == [{"slept": 0}, None, None]


@pytest.mark.parametrize("how", ["worker", signal.SIGINT, signal.SIGKILL])
def test_a_killed_worker_or_parent_leaves_no_worker_and_what_was_finished(how, tmp_path):
    command, root = [sys.executable, "-c", PARENT, str(tmp_path)], Path(__file__).parents[1]
    pipes: dict[str, Any] = {"stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=root, start_new_session=True, **pipes) as parent:
        workers = workers_of(tmp_path)
        if how == "worker":
            os.kill(workers[0], signal.SIGKILL)
        else:
            parent.send_signal(how)
        _, errors = parent.communicate(timeout=120)
    assert wait_for(lambda: not any(map(runs, workers)), 10)
    assert only_the_first_is_kept(tmp_path)
    if how == "worker":
        assert "UsageError: a worker process was killed (out of memory?): the same command resumes" in errors
    assert not [one for one in psutil.process_iter() if str(tmp_path) in " ".join(_command(one))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_listener_that_stops_the_work_leaves_no_worker():
    def stop() -> None:
        for _, result in parallel(add, dict(enumerate(JOBS)), 2):
            pids.append(result["pid"])
            raise KeyboardInterrupt

    pids: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        stop()
    assert wait_for(lambda: not any(map(runs, pids)))
