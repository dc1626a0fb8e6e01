"""What networks start from: public text, and a published encoder's words, whatever machine makes them."""

from __future__ import annotations

from typing import Any

import torch

from edp_lab.errors import UsageError
from edp_lab.models.bert import BertSize, load_bert
from edp_lab.models.vectors import load_vectors
from edp_lab.reproduce import pretrained as starts
from edp_lab.reproduce.pretrained import public_words
from edp_lab.training.pretraining import pretrain_bert

SENTENCES = [("turn", "on", "the", "lights"), ("turning", "lights", "off", "[", "now", "]")] * 30


def test_a_published_encoders_whole_words_are_the_clcs_vectors_to_the_last_bit(tmp_path):
    size = BertSize(layers=1, heads=2, hidden=4, intermediate=6, positions=32)
    pretrain_bert(SENTENCES, tmp_path / "published", epochs=1, size=size)
    made = public_words(str(tmp_path / "published"), tmp_path / "public")
    vectors = load_vectors(made)
    assert {"turn", "lights", "["} <= set(vectors.words)
    assert not any(word.startswith("##") or word in ("[CLS]", "[PAD]") for word in vectors.words)
    bert, tokenizer = load_bert(str(tmp_path / "published"))
    own = bert.embeddings.word_embeddings.weight[tokenizer.get_vocab()["lights"]].detach()
    assert torch.equal(vectors.matrix[vectors.words.index("lights")], 8 * own)
    assert public_words(str(tmp_path / "published"), tmp_path / "public") == made
    assert len(list((tmp_path / "public").iterdir())) == 1


def test_fasttext_vectors_never_read_the_corpus_at_hand(tmp_path, monkeypatch):
    asked: list[str] = []

    def load(name: str) -> Any:
        asked.append(name)
        raise UsageError("not at hand")

    monkeypatch.setattr(starts, "load_corpus", load)
    monkeypatch.setattr(starts, "pretrain_vectors", lambda text, folder: folder.mkdir())
    starts.public_vectors("snips", tmp_path / "public")
    assert asked == ["atis", "nlu-eval"]
