"""Runs behind Table 1: each is done once, resumed after a kill, and found by settings and data; starts are public."""

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sklearn  # noqa: F401 - as in a worker: it sets environment variables, which `resume` compares
import torch

from edp_lab.errors import UsageError
from edp_lab.jobs import NUMERICS
from edp_lab.models.bert import BertSize, load_bert
from edp_lab.models.vectors import load_vectors
from edp_lab.reproduce import table1, table1_runs
from edp_lab.reproduce.results_io import RESULTS
from edp_lab.reproduce.table1_runs import (
    COMMITTED,
    LAYERS,
    VECTORS,
    WORDS,
    TableRuns,
    Work,
    do,
    encoder_at_hand,
    encoder_content,
    make_start,
    read_lines,
    settings,
)
from edp_lab.training import TrainConfig, pretraining, train
from edp_lab.training.pretraining import pretrain_bert

CORPUS = "smart-home-health"
BASE: dict[str, Any] = {"size": "small", "batch_size": 64, "num_devices": 4, "pretrained": VECTORS}
CONFIG = TrainConfig(CORPUS, epochs=1, **BASE)


@pytest.fixture
def stubs(monkeypatch, tmp_path):
    """No public corpus, no committed result; a run comes to its z0 at once. Returns the runs that were done."""
    done: list[TrainConfig] = []

    def stub(work: Work) -> dict[str, Any]:
        done.append(work.config)
        return {"ser": work.config.z0, "examples": 667}

    monkeypatch.setattr(table1_runs, "COMMITTED", tmp_path / "committed.jsonl")
    monkeypatch.setattr(table1_runs, "corpus_at_hand", lambda name: name.startswith("smart-home"))
    monkeypatch.setattr(table1_runs, "make_start", lambda start, encoder, texts, folder: folder.mkdir(parents=True))
    monkeypatch.setattr(table1_runs, "do", stub)
    return done


def test_a_run_is_done_once_and_kept_as_soon_as_it_is_there(stubs, tmp_path):
    louder = replace(CONFIG, z0=1.0)
    lines: list[str] = []
    [first, again] = TableRuns(tmp_path / "out").results([CONFIG, CONFIG], "test")
    assert first is again
    assert len(stubs) == 1
    runs = TableRuns(tmp_path / "out", tell=lambda line, kept: lines.append(line))
    assert [result["ser"] for result in runs.results([louder, CONFIG], "test")] == [1.0, CONFIG.z0]
    assert stubs[1:] == [replace(louder, pretrained=stubs[1].pretrained)]
    assert lines[0] == "test: 1 of 2 runs are done"
    assert len(read_lines(tmp_path / "out" / "cells.jsonl")) == 2
    (tmp_path / "out" / "cells.jsonl").write_text("{")
    with pytest.raises(UsageError, match="is damaged"):
        TableRuns(tmp_path / "out")


def test_a_result_counts_for_its_settings_data_and_numerics_alone(stubs, tmp_path, monkeypatch):
    runs = TableRuns(tmp_path / "out")
    runs.results([CONFIG], "test")
    for changed in ({"z0": CONFIG.z0 * (1 + 1e-15)}, {"seed": 1}, {"pretrained": WORDS}):
        assert runs.known(replace(CONFIG, **changed)) is None
    assert runs.known(CONFIG)
    with monkeypatch.context() as patch:
        patch.setitem(NUMERICS, "membership", 99)
        assert TableRuns(tmp_path / "out").known(CONFIG) is None
    with monkeypatch.context() as patch:
        patch.setattr(table1_runs, "corpus_content", lambda name: "changed")
        assert TableRuns(tmp_path / "out").known(CONFIG) is None
    monkeypatch.setattr(table1_runs, "default_shadow", lambda own, has: "smart-home-video")
    new = TableRuns(tmp_path / "new")
    new.results([CONFIG], "test")
    assert "smart-home-video" in read_lines(tmp_path / "new" / "cells.jsonl")[0]["contents"]


@pytest.fixture
def committed(stubs, tmp_path):
    """A checkout with one result, of a corpus and an encoder that are not at hand."""
    config = replace(CONFIG, corpus="atis", pretrained=f"{LAYERS}2")
    contents = {"atis": "its sha256", "encoder": "its digest"}
    line = {"config": settings(config), "contents": contents, "numerics": TableRuns(tmp_path)._numerics}
    line["result"] = {"ser": 1, "examples": 72}
    (tmp_path / "committed.jsonl").write_text(json.dumps(line) + "\n")
    return config


def test_committed_results_are_read_without_their_corpus_unless_fresh(committed, tmp_path, monkeypatch):
    monkeypatch.setattr(table1_runs, "encoder_at_hand", lambda name: False)
    monkeypatch.setenv("EDP_LAB_DATA", str(tmp_path / "nothing"))
    table1_runs.corpus_content.cache_clear()
    runs = TableRuns(tmp_path / "out")
    assert runs.results([committed], "test") == [{"ser": 1, "examples": 72}]
    assert runs.examples("atis") == 72
    fresh = TableRuns(tmp_path / "out", fresh=True)
    with pytest.raises(UsageError, match="atis"):
        fresh.examples("atis")
    with pytest.raises(UsageError, match="atis"):
        fresh.results([committed], "test")


def test_committed_results_of_other_data_do_not_count(committed, tmp_path, monkeypatch):
    monkeypatch.setattr(table1_runs, "encoder_at_hand", lambda name: False)
    for at_hand, content, known in ((True, "its sha256", True), (True, "another", False), (False, "another", True)):
        monkeypatch.setattr(table1_runs, "corpus_at_hand", lambda name, at_hand=at_hand: at_hand)
        monkeypatch.setattr(table1_runs, "corpus_content", lambda name, content=content: content)
        monkeypatch.setattr(table1_runs, "default_shadow", lambda own, has: "generated")
        assert (TableRuns(tmp_path / "out").known(committed) is not None) == known
    monkeypatch.setattr(table1_runs, "encoder_at_hand", lambda name: True)
    monkeypatch.setattr(table1_runs, "encoder_content", lambda name: "another")
    assert TableRuns(tmp_path / "out").known(committed) is None


def test_the_committed_table_1_is_that_of_the_committed_results_without_corpora_or_encoder(tmp_path, monkeypatch):
    def none(*_: object) -> None:
        raise AssertionError("something is read or trained")

    for name, stub in {"corpus_at_hand": lambda name: False, "encoder_at_hand": lambda name: False}.items():
        monkeypatch.setattr(table1_runs, name, stub)
    for name in ("load_corpus", "encoder_content", "make_start", "do"):
        monkeypatch.setattr(table1_runs, name, none)
    rows = table1.table1(TableRuns(tmp_path), table1.FULL, table1.MODELS, list(table1.CORPORA)[:3])
    made_now = json.loads(json.dumps([cell for row in rows for cell in row]))
    stored = json.loads((RESULTS / "table1.json").read_text())
    for cell in (*made_now, *stored):
        del cell["about"]["machine"]  # of one seed, run again since then with the same result
    assert made_now == stored
    assert len(read_lines(COMMITTED)) == 163


def test_a_run_that_was_cut_off_is_resumed(tmp_path, monkeypatch):
    stop, folder = threading.Event(), tmp_path / "run"
    config = replace(CONFIG, pretrained=None, epochs=2)
    assert train(config, folder, lambda event: stop.set(), stop)["status"] == "interrupted"
    whole = do(Work(config, tmp_path / "whole", "generated", tmp_path / "shadows"))
    monkeypatch.setattr(table1_runs, "train", None)  # it may only be resumed
    resumed = do(Work(config, folder, "generated", tmp_path / "shadows"))
    assert {**resumed, "seconds": 0, "run": ""} == {**whole, "seconds": 0, "run": ""}
    assert whole["shadow_corpora"] == ["generated"]
    assert 0 < whole["auc"] < 1


# ---- What runs start from --------------------------------------------------------------------------------------------

SENTENCES = [("turn", "on", "the", "lights"), ("turning", "lights", "off", "[", "now", "]")] * 30


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("published") / "bert"
    pretrain_bert(SENTENCES, folder, epochs=1, size=BertSize(2, 2, 4, 6, positions=32))
    return str(folder)


def test_networks_start_from_a_published_encoders_words_and_first_layers(published: str, tmp_path: Path) -> None:
    make_start(WORDS, published, [], tmp_path / "words")
    vectors = load_vectors(str(tmp_path / "words"))
    assert {"turn", "lights", "["} <= set(vectors.words)
    assert not any(word.startswith("##") or word in ("[CLS]", "[PAD]") for word in vectors.words)
    bert, tokenizer = load_bert(published)
    own = bert.embeddings.word_embeddings.weight[tokenizer.get_vocab()["lights"]].detach()
    assert torch.equal(vectors.matrix[vectors.words.index("lights")], 8 * own)
    make_start(f"{LAYERS}1", published, [], tmp_path / "layers")
    assert len(load_bert(str(tmp_path / "layers"))[0].encoder.layer) == 1
    with pytest.raises(UsageError, match=r"the public encoder .* cannot be used.* has 2 layers"):
        make_start(f"{LAYERS}3", published, [], tmp_path / "more")


def test_an_encoder_is_known_by_its_weights(published: str, tmp_path: Path) -> None:
    elsewhere = str(shutil.copytree(published, tmp_path / "elsewhere"))
    Path(elsewhere, "README.md").write_text("the same")
    assert encoder_content(published) == encoder_content(elsewhere)
    pretrain_bert(SENTENCES[1:], tmp_path / "other", epochs=1, size=BertSize(2, 2, 4, 6, positions=32))
    assert encoder_content(str(tmp_path / "other")) != encoder_content(published)
    assert not encoder_at_hand("far/away")
    assert not encoder_at_hand("no such: name")


def test_fasttext_vectors_never_read_the_corpus_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[Any] = []
    monkeypatch.setattr(table1_runs, "corpus_at_hand", lambda name: name in ("snips", "nlu-eval"))
    monkeypatch.setattr(table1_runs, "corpus_content", lambda name: f"content of {name}")
    monkeypatch.setattr(table1_runs, "load_corpus", lambda name: table1_runs.generate(3, 1, "health"))
    monkeypatch.setattr(pretraining, "pretrain_vectors", lambda text, folder: texts.append(text) or folder.mkdir())
    monkeypatch.setattr(table1_runs, "TEXT", 5)
    runs = TableRuns(tmp_path, fresh=True)
    config = TrainConfig("snips", **BASE)
    assert runs._sources(config) == {"nlu-eval": "content of nlu-eval"}
    (tmp_path / "public").mkdir()
    start = runs._start(config)
    assert len(texts[0]) == 5 + 3
    assert start == runs._start(config) != runs._start(replace(config, corpus="nlu-eval"))
