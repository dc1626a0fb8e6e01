"""Runs behind a table: one that was cut off goes on, and what comes out is the same; what they start from is
public, whatever machine makes it."""

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from edp_lab.errors import UsageError
from edp_lab.jobs import NUMERICS, write_result
from edp_lab.models.bert import BertSize, load_bert
from edp_lab.models.vectors import load_vectors
from edp_lab.reproduce import run_cache, table1
from edp_lab.reproduce.results_io import RESULTS
from edp_lab.reproduce.run_cache import (
    VECTORS,
    Inputs,
    Job,
    TableRuns,
    content,
    encoder_at_hand,
    layers_of,
    made,
    words_of,
)
from edp_lab.training import TrainConfig, pretraining, train
from edp_lab.training.pretraining import pretrain_bert
from tests.training.own_corpus import write_corpus


def jobs(corpus: str) -> list[Job]:
    base: Any = {"size": "small", "epochs": 3, "batch_size": 16, "num_devices": 4}
    return [Job(TrainConfig(corpus, seed=seed, **base)) for seed in range(4)]


def key_of(job: Job, out: Path) -> str:
    return TableRuns(out).key(job, Inputs())


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    return str(write_corpus(tmp_path / "own.jsonl", 160))


def test_a_run_that_was_cut_off_goes_on(corpus, tmp_path, monkeypatch):
    [job, *_], stop = jobs(corpus), threading.Event()
    folder = tmp_path / "runs" / key_of(job, tmp_path)
    assert train(job.config, folder, lambda event: stop.set(), stop)["status"] == "interrupted"
    [whole] = TableRuns(tmp_path / "whole").results([job], "test")
    monkeypatch.setattr(run_cache, "train", None)  # it may only go on
    [found] = TableRuns(tmp_path).results([job], "test")
    assert {**found, "seconds": 0} == {**whole, "seconds": 0}


def test_the_key_follows_settings_corpus_attack_and_the_declared_numerics(corpus, tmp_path, monkeypatch):
    [job, other, *_] = jobs(corpus)
    attacked = Job(job.config, attack=True)
    louder = Job(replace(job.config, z0=job.config.z0 * (1 + 1e-15)))
    keys = {key_of(one, tmp_path) for one in (job, other, attacked, louder)}
    assert len(keys) == 4
    with monkeypatch.context() as patch:
        patch.setitem(NUMERICS, "membership", 99)
        assert key_of(job, tmp_path) in keys
        assert key_of(attacked, tmp_path) not in keys
        patch.setitem(NUMERICS, "training", 99)
        assert key_of(job, tmp_path) not in keys
    (weights := tmp_path / "weights").write_text("1")
    started = Job(replace(job.config, pretrained=str(weights)))
    keys.add(key_of(started, tmp_path))
    weights.write_text("2")
    assert key_of(started, tmp_path) not in keys
    Path(corpus).write_text(Path(corpus).read_text().replace("song", "tune"))
    assert key_of(job, tmp_path) not in keys


def test_the_key_of_an_attack_follows_the_corpus_of_its_shadow_model(corpus, tmp_path, monkeypatch):
    [job, *_], keys = jobs(corpus), []
    for shadow in ("generated", "smart-home-video"):
        monkeypatch.setattr(run_cache, "default_shadow", lambda own, has, shadow=shadow: shadow)
        keys.append([key_of(Job(job.config, attack), tmp_path) for attack in (False, True)])
    assert [one == other for one, other in zip(*keys, strict=True)] == [True, False]


@pytest.fixture
def committed(corpus, tmp_path, monkeypatch) -> list[Job]:
    """The first of these jobs is finished in a checkout, and the corpus is gone."""
    made_of = Inputs()
    index = {"corpora": {"own.jsonl": {"sha256": made_of.corpus(corpus), "train": {"0": 72}}}}
    write_result(tmp_path / "committed", TableRuns(tmp_path / "out").key(jobs(corpus)[0], made_of), {"ser": 1})
    (tmp_path / "committed" / run_cache.INDEX).write_text(json.dumps(index))
    monkeypatch.setattr(run_cache, "COMMITTED", tmp_path / "committed")
    Path(corpus).rename(f"{corpus}.gone")
    return jobs(corpus)


def test_committed_runs_are_joined_without_their_corpus_unless_fresh(committed, tmp_path):
    job, other = committed[:2]
    lines: list[str] = []
    runs = TableRuns(tmp_path / "out", tell=lambda line, kept: lines.append(line))
    assert runs.results([job, job], "test") == [{"ser": 1}] * 2
    assert lines == ["test: 1 of 1 runs are done, 1 of them came with the checkout"]
    assert runs.inputs.examples(job.config.corpus, 0) == 72
    with pytest.raises(UsageError, match="no corpus at"):
        runs.results([job, other], "test")
    with pytest.raises(UsageError, match="no corpus at"):
        TableRuns(tmp_path / "out", fresh=True).results([job], "test")
    assert not (tmp_path / "out").exists()  # what is refused begins nothing
    assert TableRuns(tmp_path / "out", fresh=True).cells.parent == tmp_path / "out"
    with pytest.raises(UsageError, match="no corpus at"):  # a folder that was begun afresh stays so
        TableRuns(tmp_path / "out").results([job], "test")


def test_committed_runs_of_another_corpus_of_that_name_are_not_joined(committed, tmp_path):
    [job, *_], text = committed, Path(f"{committed[0].config.corpus}.gone").read_text()
    for own, known in ((text, {"ser": 1}), (text.replace("song", "tune"), None)):
        Path(job.config.corpus).write_text(own)
        assert TableRuns(tmp_path / "out").known(job) == known


def test_new_runs_are_not_set_beside_committed_ones_that_were_made_of_something_else(committed, tmp_path, monkeypatch):
    """Here the corpus is at hand, but not the one on which the committed runs' shadow models were trained."""
    [job, other, *_] = (Job(job.config, attack=True) for job in committed)
    Path(f"{job.config.corpus}.gone").rename(job.config.corpus)
    (tmp_path / "committed" / run_cache.INDEX).write_text(json.dumps({"corpora": {"snips": {"sha256": "then"}}}))
    monkeypatch.setattr(run_cache, "corpus_at_hand", lambda name: name == job.config.corpus)
    runs = TableRuns(tmp_path / "out")
    write_result(tmp_path / "committed", runs.key(job, runs.inputs), {"ser": 1})
    assert runs.results([job], "test") == [{"ser": 1}]
    with pytest.raises(UsageError, match="bring those, or give --fresh"):
        runs.results([job, other], "test")


@pytest.fixture
def nothing_at_hand(monkeypatch):
    embedded = run_cache.corpus_at_hand
    monkeypatch.setattr(run_cache, "corpus_at_hand", lambda name: name.startswith("smart-home") and embedded(name))
    monkeypatch.setattr(run_cache, "encoder_at_hand", lambda name: False)

    def none(*_: object) -> None:
        raise AssertionError("something is read or trained")

    for name in ("load_corpus", "encoder_content", "made", "do"):
        monkeypatch.setattr(run_cache, name, none)


def test_the_committed_table_1_is_that_of_the_committed_runs_found_without_corpora_or_encoder(
    nothing_at_hand, tmp_path
):
    made_now = table1.table1(TableRuns(tmp_path), table1.FULL, table1.MODELS, list(table1.CORPORA)[:3])
    found = json.loads(json.dumps([cell for row in made_now for cell in row]))
    committed = json.loads((RESULTS / "table1.json").read_text())
    for cell in (*found, *committed):
        del cell["about"]["machine"]  # of one seed, run again since then with the same result
    assert found == committed


def test_fresh_forgets_all_that_is_finished(corpus, tmp_path):
    runs, [job, *_] = TableRuns(tmp_path), jobs(corpus)
    write_result(runs.cells, runs.key(job, Inputs()), {"ser": 1})
    (tmp_path / "public").mkdir()
    assert runs.known(job) == {"ser": 1}
    assert TableRuns(tmp_path, fresh=True).known(job) is None
    assert not (tmp_path / "public").exists()


CORPUS = "smart-home-health"
SENTENCES = [("turn", "on", "the", "lights"), ("turning", "lights", "off", "[", "now", "]")] * 30


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("published") / "bert"
    pretrain_bert(SENTENCES, folder, epochs=1, size=BertSize(2, 2, 4, 6, positions=32))
    return str(folder)


def test_networks_start_from_a_published_encoders_words_and_first_layers(published: str, tmp_path: Path) -> None:
    start = made(words_of(published), CORPUS, tmp_path, Inputs())
    vectors = load_vectors(str(start))
    assert {"turn", "lights", "["} <= set(vectors.words)
    assert not any(word.startswith("##") or word in ("[CLS]", "[PAD]") for word in vectors.words)
    bert, tokenizer = load_bert(published)
    own = bert.embeddings.word_embeddings.weight[tokenizer.get_vocab()["lights"]].detach()
    assert torch.equal(vectors.matrix[vectors.words.index("lights")], 8 * own)
    start = made(layers_of(published, 1), CORPUS, tmp_path, Inputs())
    assert len(load_bert(str(start))[0].encoder.layer) == 1
    assert made(layers_of(published, 1), CORPUS, tmp_path, Inputs()) == start
    assert len(list(tmp_path.iterdir())) == 2  # of words, and of the first layers
    with pytest.raises(UsageError, match=r"the public encoder .* cannot be used.* has 2 layers"):
        made(layers_of(published, 3), CORPUS, tmp_path, Inputs())


def test_an_encoder_is_known_by_its_weights_or_else_by_the_index(published: str, tmp_path: Path) -> None:
    here, elsewhere = Inputs(), str(shutil.copytree(published, tmp_path / "elsewhere"))
    Path(elsewhere, "README.md").write_text("the same")
    assert here.encoder(published) == here.encoder(elsewhere)
    starts = layers_of(published, 1), layers_of(published, 2), words_of(published)
    assert len({content(start, CORPUS, here) for start in starts}) == 3
    pretrain_bert(SENTENCES[1:], tmp_path / "other", epochs=1, size=BertSize(2, 2, 4, 6, positions=32))
    assert here.encoder(str(tmp_path / "other")) != here.encoder(published)
    index = Inputs({"encoders": {"far/away": "its content", published: "something else"}})
    assert index.encoder("far/away") == "its content"
    assert index.encoder(published) == Inputs().encoder(published)
    assert not encoder_at_hand("far/away")
    assert not encoder_at_hand("no such: name")


def test_fasttext_vectors_never_read_the_corpus_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    texts: list[Any] = []

    class Here(Inputs):
        def has(self, corpus: str) -> bool:
            asked.append(corpus)
            return corpus == "nlu-eval"

        def corpus(self, name: str) -> str:
            return f"content of {name}"

    monkeypatch.setattr(run_cache, "load_corpus", lambda name: run_cache.generate(3, 1, "health"))
    monkeypatch.setattr(pretraining, "pretrain_vectors", lambda text, folder: texts.append(text) or folder.mkdir())
    start = made(VECTORS, "snips", tmp_path, Here())
    assert set(asked) == {"atis", "nlu-eval"}
    assert len(texts[0]) == run_cache.TEXT + 3
    assert start != made(VECTORS, "nlu-eval", tmp_path, Here())
