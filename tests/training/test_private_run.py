"""A run and its ledger, and the promise of a private seed: the key is only in the run's memory and in one file."""

import errno
import json
import os
import stat
import tempfile
import threading
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import edp_lab
from edp_lab.corpora.catalog import load_corpus
from edp_lab.corpora.corpus import split
from edp_lab.errors import UsageError
from edp_lab.files import PARTIAL
from edp_lab.privacy import judge
from edp_lab.training import checkpoint, noise, run_files
from edp_lab.training import trainer as run
from edp_lab.training.evaluate import evaluate_run
from edp_lab.training.ledger import LEDGER, PrivacyLedger, fingerprint
from edp_lab.training.pretraining import pretrain_vectors
from edp_lab.training.run_files import MODEL, SECRET, STATE, StepDone, may_begin, read_record, run_ledger, write_record
from edp_lab.training.session import resume, train, train_here
from edp_lab.training.trainer import Trainer
from tests.training.own_corpus import config, write_corpus

STEPS = 2  # per epoch


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_corpus(tmp_path_factory.mktemp("corpus") / "own.jsonl", 60))


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / LEDGER).read_bytes().splitlines()[1:]]


def ctrl_c(event: object) -> None:
    if isinstance(event, StepDone) and (event.epoch, event.step) == (1, 1):
        raise KeyboardInterrupt


@pytest.fixture
def nan_in_epoch(monkeypatch):
    """Make the weights of a later run NaN in this epoch."""

    def poison(epoch: int) -> None:
        original = Trainer.step

        def step(self, *arguments):
            if self.progress.epoch == epoch:
                self.model.intent.weight.data[0, 0] = float("nan")
            return original(self, *arguments)

        monkeypatch.setattr(Trainer, "step", step)

    return poison


@pytest.fixture
def no_room_after(monkeypatch, tmp_path):
    """Let the disk accept this number of ledger lines and no more."""

    def fill(number: int) -> None:
        original, ledger = os.fsync, tmp_path / "run" / LEDGER

        def sync(descriptor: int) -> None:
            mine = ledger.exists() and os.path.samestat(os.fstat(descriptor), ledger.stat())
            if mine and ledger.read_bytes().count(b"\n") > number:
                raise OSError(errno.ENOSPC, "No space left on device")
            original(descriptor)

        monkeypatch.setattr(os, "fsync", sync)

    return fill


def test_every_step_is_on_the_disk_before_its_noise_is_drawn(corpus, tmp_path, monkeypatch):
    original, seen = noise.add_exactly, []

    def look(pieces, key, purpose, step, block):
        seen.append(step)
        assert [line["step"] for line in lines(tmp_path / "run")] == list(range(step + 1))
        assert lines(tmp_path / "run")[-1]["key"] == fingerprint(key)
        original(pieces, key, purpose, step, block)

    monkeypatch.setattr(noise, "add_exactly", look)
    train(config(corpus), tmp_path / "run")
    assert sorted(set(seen)) == list(range(2 * STEPS))
    assert [line["epoch"] for line in lines(tmp_path / "run")] == [0] * STEPS + [1] * STEPS


@pytest.mark.parametrize("stop", [lambda event: None, ctrl_c])
def test_record_and_ledger_give_the_same_bill(corpus, tmp_path, stop):
    record = train(config(corpus, private_seed=True, decay="linear", tau=0.3), tmp_path / "run", stop)
    ledger = run_ledger(tmp_path / "run")
    assert ledger.releases_by_epoch() == {0: 1, 1: 1}  # an interrupted epoch counts as a whole epoch
    assert record["status"] == ("interrupted" if stop is ctrl_c else "finished")
    verdict = judge(ledger.mechanism, ledger.releases_by_epoch(), record["guarantee"]["delta"], seed_published=False)
    assert verdict.conditional_epsilon == record["final"]["conditional_epsilon"]
    assert (verdict.status, verdict.epochs) == (record["guarantee"]["status"], record["guarantee"]["epochs"])
    assert ledger.chain == record["ledger"]
    assert record == read_record(tmp_path / "run")
    assert len(record["epochs"]) == (1 if stop is ctrl_c else 2)
    assert record["final"]["ser"] == evaluate_run(tmp_path / "run")["ser"]  # usable even after an interruption


def test_plain_training_has_no_ledger_and_leaves_no_key(corpus, tmp_path):
    record = train(config(corpus, method="sgd", epochs=1, private_seed=True), tmp_path / "run")
    assert record["ledger"] is None
    assert not {LEDGER, SECRET} & {*os.listdir(tmp_path / "run")}


def test_a_folder_with_a_billed_step_or_with_files_of_somebody_else_is_not_empty(corpus, tmp_path):
    train(config(corpus, epochs=1), tmp_path / "run")
    mechanism, step, *_ = (tmp_path / "run" / LEDGER).read_bytes().splitlines(keepends=True)
    for ledger, lock, empty in ((mechanism, True, True), (mechanism + step, True, False), (mechanism, False, False)):
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        (folder / LEDGER).write_bytes(ledger)
        if lock:
            (folder / run_files.LOCK).touch()
        assert may_begin(folder) == empty


def test_a_step_that_cannot_be_billed_is_not_taken(corpus, tmp_path, monkeypatch, no_room_after):
    original, drawn = noise.add_exactly, set()
    monkeypatch.setattr(noise, "add_exactly", lambda *a: drawn.add(a[3]) or original(*a))
    no_room_after(1 + STEPS + 1)  # the mechanism, one epoch, one step
    with pytest.raises(UsageError, match=r"ledger .* cannot be written .*No space left"):
        train(config(corpus, private_seed=True), tmp_path / "run")
    assert drawn == set(range(STEPS + 1))
    record = read_record(tmp_path / "run")
    assert (record["status"], len(record["epochs"]), record["guarantee"]["epochs"]) == ("failed", 1, 2)
    assert (tmp_path / "run" / SECRET).exists()  # the run can be resumed once there is space


@pytest.mark.parametrize("room", [0, 1, 2])
def test_where_the_disk_is_full_before_the_first_state_a_run_begins_anew_or_goes_on(
    corpus, tmp_path, monkeypatch, no_room_after, room
):
    cure = f"run edp-lab train --resume {tmp_path}" if room else "choose another --out"
    no_room_after(room)
    with pytest.raises(UsageError, match=f"ledger .*{cure}"):
        train(config(corpus, private_seed=True), tmp_path / "run")
    assert (tmp_path / "run").exists() is (room > 0)
    monkeypatch.undo()
    again = resume(tmp_path / "run") if room else train(config(corpus, private_seed=True), tmp_path / "run")
    assert (again["status"], run_ledger(tmp_path / "run").releases_by_epoch()) == ("finished", {0: 1, 1: 1})


def test_a_run_that_fails_in_its_first_step_leaves_nothing(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "model_gradients", Mock(side_effect=RuntimeError("out of memory")))
    with pytest.raises(RuntimeError, match="memory"):
        train(config(corpus, private_seed=True), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_was_released_before_a_failure_stays_billed(corpus, tmp_path, nan_in_epoch):
    nan_in_epoch(0)
    with pytest.raises(UsageError, match="not finite"):
        train(config(corpus, private_seed=True), tmp_path / "run")
    assert len(run_ledger(tmp_path / "run").releases) == STEPS
    with pytest.raises(UsageError, match="--out"):
        train(config(corpus, private_seed=True), tmp_path / "run")


def test_lines_that_only_the_state_of_a_killed_run_remembers_are_missed(corpus, tmp_path):
    folder = tmp_path / "run"
    train(config(corpus, private_seed=True), folder, ctrl_c)
    lines = (folder / LEDGER).read_bytes().splitlines(keepends=True)
    record = read_record(folder) | {
        "ledger": json.loads(lines[0])["chain"]
    }  # as in a run that is killed in its first epoch
    write_record(folder, record)
    assert run_ledger(folder).releases
    (folder / LEDGER).write_bytes(lines[0])
    with pytest.raises(UsageError, match="lacks entries that the run remembers"):
        run_ledger(folder)


def test_two_runs_into_one_folder_do_not_touch_each_other(corpus, tmp_path):
    """Both found the folder empty, but the first run was faster."""
    folder = tmp_path / "run"
    first = PrivacyLedger(folder / LEDGER, config(corpus).mechanism())
    (folder / SECRET).write_text("of the first")
    (folder / "record.json").touch()
    with pytest.raises(UsageError, match="--out"):
        train_here(config(corpus), folder, lambda event: None, threading.Event(), resuming=False)
    assert (folder / SECRET).read_text() == "of the first"
    first.write(0, 0, 1)


def spelled(key: int) -> set[bytes]:
    ways = {f"{key:x}", f"{key:X}", f"{key:032x}", str(key)}
    raw = {key.to_bytes(16, order) for order in ("big", "little")}
    return {way.encode() for way in ways} | raw


@pytest.mark.parametrize("ending", ["finished", "interrupted", "failed"])
def test_the_secret_key_lies_in_one_guarded_file_and_goes_with_the_run(corpus, tmp_path, ending, nan_in_epoch):
    folder, keys, looks = tmp_path / "run", set(), []

    def look(event: object) -> None:
        secret = folder / SECRET
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        keys.add(int(secret.read_text(), 16))
        (key,) = keys
        others = [p for p in folder.rglob("*") if p.is_file() and p != secret]
        assert not [p for p in others if any(way in p.read_bytes() for way in spelled(key))]
        assert {line["key"] for line in lines(folder)} == {fingerprint(key)}
        looks.append(len(others))
        if ending == "interrupted":
            ctrl_c(event)

    if ending == "failed":
        nan_in_epoch(1)
        with pytest.raises(UsageError, match=r"gradient of layer '\w.* is not finite"):
            train(config(corpus, private_seed=True), folder, look)
    else:
        train(config(corpus, private_seed=True), folder, look)
    record = read_record(folder)
    assert record["status"] == ending
    assert looks[-1] >= (1 if ending == "failed" else 3)  # ledger; record and model
    left = [p for p in folder.rglob("*") if p.is_file() and p.name != SECRET]
    assert (folder / SECRET).exists() == (ending != "finished")
    assert not [p for p in left if any(way in p.read_bytes() for way in spelled(*keys))]
    assert record["guarantee"]["status"] == "holds"
    assert record["final"]["conditional_epsilon"] > 0
    assert (len(record["epochs"]), record["guarantee"]["epochs"]) == (2 if ending == "finished" else 1, 2)
    if ending == "failed":
        assert "not finite" in record["error"]
        assert evaluate_run(folder)["ser"] >= 0  # the model of the last complete epoch is kept


def test_a_resume_that_is_refused_leaves_the_key_as_it_is(corpus, tmp_path, monkeypatch):
    folder = broken_off(corpus, tmp_path / "run")
    secret, key = folder / SECRET, (folder / SECRET).read_bytes()
    state = (folder / STATE).read_bytes()
    monkeypatch.setattr(checkpoint, "surroundings", lambda *_: {"device": "cpu", "of": "another machine"})
    for damaged, of_key, says in (
        (state[:-99], key, "state"),
        (state, b"-1\n", "key is damaged"),
        (state, b"0" * 33, "key is damaged"),
        (state, None, "is a folder"),
    ):
        (folder / STATE).write_bytes(damaged)
        secret.unlink()
        secret.mkdir() if of_key is None else secret.write_bytes(of_key)
        with pytest.raises(UsageError, match=says):
            resume(folder)
        assert secret.is_dir() if of_key is None else secret.read_bytes() == of_key
        assert not [*folder.glob(f"{PARTIAL}*")]
    secret.rmdir()
    secret.write_bytes(key)
    assert resume(folder)["status"] == "finished"
    assert not secret.exists()


def test_an_older_checkpoint_is_not_continued_with_the_noise_of_a_later_key(corpus, tmp_path, monkeypatch):
    def break_off(event: object) -> None:
        if isinstance(event, StepDone) and event.epoch == 2:
            raise KeyboardInterrupt

    folder, here = broken_off(corpus, tmp_path / "run", epochs=3), checkpoint.surroundings
    old = (folder / STATE).read_bytes()
    assert resume(folder, break_off)["keys"] == 0
    monkeypatch.setattr(checkpoint, "surroundings", lambda *given: {**here(*given), "of": "another machine"})
    assert resume(folder, break_off)["keys"] == 1
    (folder / STATE).write_bytes(old)
    assert resume(folder)["keys"] == 2
    assert run_ledger(folder).releases_by_epoch() == {0: 1, 1: 2, 2: 3}


def test_a_private_seed_is_drawn_anew_for_every_run(corpus, tmp_path):
    """Order, dropout and noise are secret; split and initial weights follow the published seed."""

    for name in ("a", "b"):
        train(config(corpus, epochs=1, private_seed=True), tmp_path / name)
    models = [next((tmp_path / name / MODEL).glob("*.safetensors")).read_bytes() for name in ("a", "b")]
    assert models[0] != models[1]
    assert not {line["key"] for line in lines(tmp_path / "a")} & {line["key"] for line in lines(tmp_path / "b")}
    loaded, settings = load_corpus(corpus), config(corpus, private_seed=True)
    runs = [Trainer(settings, loaded, split(loaded, settings.seed), key=key) for key in (1, 2)]
    weights = [np.concatenate([p.detach().numpy().ravel() for p in one.model.parameters()]) for one in runs]
    assert np.array_equal(*weights)


def broken_off(corpus: str, folder: Path, **changes: object) -> Path:
    """A run that was interrupted in its second epoch."""
    assert train(config(corpus, private_seed=True, **changes), folder, ctrl_c)["status"] == "interrupted"
    return folder


def test_a_ledger_of_other_noise_or_that_lost_what_state_or_record_remembers_is_refused(corpus, tmp_path):
    folder = broken_off(corpus, tmp_path / "run")
    raw, record = (folder / LEDGER).read_bytes(), read_record(folder)
    louder = {**record, "config": {**record["config"], "z0": 20.0}}
    for content, told, says in (
        (raw, louder, "different mechanisms"),
        (b"".join(raw.splitlines(keepends=True)[:-1]), record, "lacks entries"),
    ):
        (folder / LEDGER).write_bytes(content)
        write_record(folder, told)
        with pytest.raises(UsageError, match=says):
            resume(folder)


@pytest.mark.parametrize("change", ["learning rate", "code"])
def test_a_run_that_goes_on_with_other_inputs_gets_a_fresh_key(corpus, tmp_path, change, monkeypatch):
    """Otherwise the same noise would hide two different gradients, and could be subtracted."""
    folder = broken_off(corpus, tmp_path / "run")
    if change == "learning rate":
        record = read_record(folder)
        record["config"]["lr"] = 1e-3
        write_record(folder, record)
    else:
        (tmp_path / "edp_lab").mkdir()
        (tmp_path / "edp_lab" / "__init__.py").write_text("# another version\n")
        monkeypatch.setattr(edp_lab, "__file__", str(tmp_path / "edp_lab" / "__init__.py"))
    record = resume(folder)
    assert (record["status"], record["keys"]) == ("finished", 1)
    assert len({line["key"] for line in lines(folder)}) == 2
    assert run_ledger(folder).releases_by_epoch() == {0: 1, 1: 2}


def test_a_run_goes_on_bit_for_bit_from_another_folder(corpus, tmp_path, monkeypatch):
    (tmp_path / "own.jsonl").write_text(Path(corpus).read_text())
    pretrain_vectors([u.tokens for u in load_corpus(corpus).utterances], tmp_path / "vectors", size=4, epochs=1)
    monkeypatch.chdir(tmp_path)
    settings = config("own.jsonl", pretrained="vectors")
    whole = train(settings, "whole")
    assert train(settings, "run", ctrl_c)["status"] == "interrupted"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    record = resume("../run")
    for name in ("config", "corpus", "surroundings", "keys", "model_sha256"):
        assert record[name] == whole[name]
