"""What networks start from: public text, and a published encoder's words and layers, whatever machine makes them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from edp_lab.errors import UsageError
from edp_lab.models.bert import BertSize, load_bert
from edp_lab.models.vectors import load_vectors
from edp_lab.reproduce import run_cache as starts
from edp_lab.reproduce.run_cache import VECTORS, Inputs, content, encoder_at_hand, layers_of, made, words_of
from edp_lab.training.pretraining import pretrain_bert

CORPUS = "smart-home-health"
SENTENCES = [("turn", "on", "the", "lights"), ("turning", "lights", "off", "[", "now", "]")] * 30


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("published") / "bert"
    size = BertSize(layers=2, heads=2, hidden=4, intermediate=6, positions=32)
    pretrain_bert(SENTENCES, folder, epochs=1, size=size)
    return str(folder)


def test_a_published_encoders_whole_words_are_the_clcs_vectors_to_the_last_bit(published: str, tmp_path: Path) -> None:
    start = made(words_of(published), CORPUS, tmp_path, Inputs())
    vectors = load_vectors(str(start))
    assert {"turn", "lights", "["} <= set(vectors.words)
    assert not any(word.startswith("##") or word in ("[CLS]", "[PAD]") for word in vectors.words)
    bert, tokenizer = load_bert(published)
    own = bert.embeddings.word_embeddings.weight[tokenizer.get_vocab()["lights"]].detach()
    assert torch.equal(vectors.matrix[vectors.words.index("lights")], 8 * own)


def test_bert_starts_from_the_first_layers_which_are_made_once(published: str, tmp_path: Path) -> None:
    start = made(layers_of(published, 1), CORPUS, tmp_path, Inputs())
    assert len(load_bert(str(start))[0].encoder.layer) == 1
    assert made(layers_of(published, 1), CORPUS, tmp_path, Inputs()) == start
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(UsageError, match=r"the public encoder .* cannot be used.* has 2 layers"):
        made(layers_of(published, 3), CORPUS, tmp_path, Inputs())


def test_an_encoder_is_known_by_its_weights_and_pieces_not_by_its_files(published: str, tmp_path: Path) -> None:
    here, elsewhere = Inputs(), str(shutil.copytree(published, tmp_path / "elsewhere"))
    Path(elsewhere, "README.md").write_text("the same")
    assert here.encoder(published) == here.encoder(elsewhere)
    keys = {
        content(start, CORPUS, here)
        for start in (layers_of(published, 1), layers_of(published, 2), words_of(published))
    }
    assert len(keys) == 3
    pretrain_bert(SENTENCES[1:], tmp_path / "other", epochs=1, size=BertSize(2, 2, 4, 6, positions=32))
    assert here.encoder(str(tmp_path / "other")) != here.encoder(published)


def test_of_an_encoder_that_is_not_at_hand_the_index_is_believed_and_of_one_that_is_its_weights(published: str) -> None:
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

    monkeypatch.setattr(starts, "load_corpus", lambda name: starts.generate(3, 1, "health"))
    monkeypatch.setattr(starts, "pretrain_vectors", lambda text, folder: texts.append(text) or folder.mkdir())
    start = made(VECTORS, "snips", tmp_path, Here())
    assert set(asked) == {"atis", "nlu-eval"}
    assert len(texts[0]) == starts.TEXT + 3
    assert start != made(VECTORS, "nlu-eval", tmp_path, Here())
