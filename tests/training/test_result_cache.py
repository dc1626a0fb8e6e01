"""Kept results and the pool that makes them: nothing twice, nothing half, nothing left running."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from edp_lab.corpora.smart_home import generate, write_jsonl
from edp_lab.errors import UsageError
from edp_lab.training import TrainConfig, train
from edp_lab.training.result_cache import NUMERICS, ResultCache, content_key, content_of, run_jobs
from tests.training.own_corpus import runs, wait_for


@dataclass(frozen=True)
class Settings:
    lr: float = 0.1
    private: bool = False
    name: str | None = None


def about(job: dict[str, Any], say: Callable[[Any], None]) -> dict[str, Any]:
    """Of a job: what came in, and what the process is like in which it is done."""
    print("not for the parent")
    say(("at", job["number"]))
    if job.get("fails"):
        raise UsageError("bad input: mend it")
    ranks = [name for name in ("RANK", "WORLD_SIZE") if name in os.environ]
    return {"sum": float(job["array"].sum()), "threads": torch.get_num_threads(), "ranks": ranks, "pid": os.getpid()}


JOBS = [{"number": k, "array": np.full(3, k)} for k in range(5)]


def sleep(seconds: float, say: Callable[[Any], None]) -> dict[str, Any]:
    say(os.getpid())
    time.sleep(seconds)
    return {"slept": seconds}


KEYS, NAPS = "abc", [0, 600, 600]  # of two workers, one is soon through with the first; then both are asleep
# A parent of two workers, in a process of its own, which says their process ids.
PARENT = """
import sys
from pathlib import Path
from tests.training.test_result_cache import KEYS, NAPS, ResultCache, sleep
say = lambda done, pid: pid and print(pid, flush=True)
ResultCache(Path(sys.argv[1])).results(KEYS, NAPS, sleep, 2, say)
"""


def test_keys_follow_settings_data_and_declared_numerics_and_nothing_that_is_off(monkeypatch):
    def key(settings: Settings = Settings(), data: Any = (1.0, 2.0), areas: tuple[str, ...] = ("training",)) -> str:
        return content_key(areas, settings, np.array(data))

    others = [key(Settings(lr=0.2)), key(Settings(private=True)), key(Settings(name="a")), key(data=(1.0, 2.5))]
    others += [key(data=((1.0, 2.0),)), key(data=(1, 2)), key(areas=("membership",)), key(areas=(*NUMERICS,))]
    assert len({key(), *others}) == 9
    assert key() == content_key(["training"], {"lr": 0.1}, np.array([1.0, 2.0]))
    before = key()
    monkeypatch.setitem(NUMERICS, "training", NUMERICS["training"] + 1)
    assert key() not in (before, *others)
    with pytest.raises(TypeError, match="no content"):
        content_key(["training"], object())


def test_the_numerics_of_training_are_still_those_whose_results_are_kept(tmp_path):
    """Where this fails for more than rounding, raise NUMERICS["training"], so that kept results count as missing.

    The results of sound runs that are kept had other draws of the same noise, before it was rounded with the sum.
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


def test_a_result_is_read_as_it_was_written_and_not_where_it_is_damaged_or_anothers(tmp_path):
    cache, found = ResultCache(tmp_path / "new"), {"ser": 0.1 + 0.2, "rows": [1, None, "ä"], "none": {}}
    assert cache.read("a") is None
    assert cache.write("a", {**found, "rows": (1, None, "ä")}) == cache.read("a") == found
    assert [file.name for file in cache.folder.iterdir()] == ["a.json"]
    entry = cache.folder / "a.json"
    whole = entry.read_text()
    for damaged in (whole[:-9], whole.replace("0.3", "0.4"), json.dumps(found), "[]", "", "1" * 5_000):
        entry.write_text(damaged)
        assert cache.read("a") is None
    entry.write_text(whole)
    entry.rename(cache.folder / "b.json")
    assert cache.read("b") is None


@pytest.mark.parametrize("workers", [1, 2, 9])
def test_any_number_of_workers_does_every_job_once_on_one_thread_of_its_own(workers, tmp_path, capfd):
    cache, heard, threads = ResultCache(tmp_path), [], torch.get_num_threads()
    keys = [str(k) for k in range(5)]
    cache.write("3", {"sum": 9.0, "kept": True})
    found = cache.results(keys, JOBS, about, workers, lambda done, what: heard.append((done, what)))
    assert [one["sum"] for one in found] == [0, 3, 6, 9, 12]
    assert found[3]["kept"]
    done = [one for k, one in enumerate(found) if k != 3]
    assert {(one["threads"], *one["ranks"]) for one in done} == {(1,)}
    pids = {one["pid"] for one in done}
    assert pids == {os.getpid()} if workers == 1 else len(pids) == min(workers, 4) and os.getpid() not in pids
    assert [count for count, what in heard if what is None] == [1, 2, 3, 4, 5]
    assert sorted(what for _, what in heard if what) == [("at", k) for k in (0, 1, 2, 4)]
    assert cache.results(keys, JOBS, about, workers) == found
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_input_is_told_in_the_jobs_words_and_what_was_done_before_is_kept(workers, tmp_path):
    cache = ResultCache(tmp_path)
    jobs = [{"number": 0, "array": np.zeros(1)}, *JOBS[1:3], {"number": 3, "array": np.zeros(1), "fails": True}]
    with pytest.raises(UsageError, match=r"^bad input: mend it$"):
        cache.results(list("abcd"), jobs, about, workers)
    assert cache.read("d") is None
    assert cache.read("b") is not None


def test_what_a_listener_raises_ends_all_workers_and_no_folder_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(KeyboardInterrupt):
        run_jobs(about, JOBS, 2, said=Mock(side_effect=KeyboardInterrupt))
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file cannot be written \(.*\): choose another --cache"):
        ResultCache(tmp_path / "file", "choose another --cache")


def only_the_first_is_kept(cache: ResultCache) -> bool:
    return [cache.read(key) for key in KEYS] == [{"slept": 0}, None, None]


def test_a_worker_that_dies_is_named_in_one_sentence_and_what_is_finished_stays(tmp_path):
    cache, workers = ResultCache(tmp_path), []

    def kill(done: int, pid: int | None) -> None:
        workers.extend([pid] if pid else [])
        if len(workers) == 3:
            os.kill(workers[0], signal.SIGKILL)

    with pytest.raises(UsageError, match=r"^a sleeper was killed by signal SIGKILL \(out of memory\?\): wake it$"):
        cache.results(KEYS, NAPS, sleep, 2, kill, "wake it", "a sleeper")
    assert len(set(workers)) == 2
    assert not any(map(runs, workers))
    assert only_the_first_is_kept(cache)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_parent_that_is_killed_leaves_no_worker_no_job_and_what_was_finished(how, tmp_path):
    cache, scratch = ResultCache(tmp_path / "cache"), tmp_path / "scratch"
    scratch.mkdir()
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(cache.folder)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    workers = [int(parent.stdout.readline()) for _ in range(3)]
    assert all(map(runs, workers))
    assert wait_for(lambda: only_the_first_is_kept(cache))
    parent.send_signal(how)
    parent.communicate(timeout=20)
    assert wait_for(lambda: not any(map(runs, workers)), 10)
    assert not list(scratch.iterdir() if how == signal.SIGINT else scratch.glob("*/*"))
    assert only_the_first_is_kept(cache)
