"""A CLC on a frozen encoder: what it reads is transformers' own, utterance by utterance; none of it is trained."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertModel

from edp_lab.corpora import Utterance
from edp_lab.corpora.encoding import Labels
from edp_lab.errors import UsageError
from edp_lab.models import build_model, wordpiece
from edp_lab.models.bert import BertSize, load_bert
from edp_lab.models.clc import CLC
from edp_lab.models.ghost_clipping.ops import PLAIN
from edp_lab.models.wordpiece import ContextFeatures
from edp_lab.training.gradients import trainable
from edp_lab.training.pretraining import pretrain_bert, shorten_bert

SENTENCES = [("turn", "on", "the", "lights"), ("on",), ("thethelights", "turnon", "!"), ("on", "turn", "xyz")]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("encoder") / "bert"
    size = BertSize(layers=3, heads=2, hidden=8, intermediate=12, positions=24)
    pretrain_bert([("turn", "on", "the", "lights", "!")] * 3, folder, epochs=1, size=size)
    return folder


@pytest.fixture
def features(encoder) -> ContextFeatures:
    return ContextFeatures(*load_bert(str(encoder)))


def vectors(features: ContextFeatures, sentences) -> list[np.ndarray]:
    found = features.rows(sentences)["words"]
    return [found.gather(np.array([k]))[0] for k in range(len(sentences))]


def test_a_words_vector_is_the_mean_over_its_pieces_and_over_transformers_layers(encoder, features):
    peer = BertModel.from_pretrained(encoder, add_pooling_layer=False).eval()
    for sentence, found in zip(SENTENCES, vectors(features, SENTENCES), strict=True):
        read = features.pieces.rows([sentence])
        pieces, first = read["pieces"].values, read["words"].values
        with torch.no_grad():
            states = peer(torch.from_numpy(pieces)[None], output_hidden_states=True).hidden_states
        mixed = torch.stack(states).mean(0)[0].numpy()
        ends = [*first[1:], len(pieces) - 1]
        expected = [mixed[a:b].mean(0) for a, b in zip(first, ends, strict=True)]
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert len(features.pieces.rows([("thethelights",)])["pieces"].values) > 3  # some pieces


def test_an_utterance_is_encoded_once_while_it_is_remembered_and_as_if_it_were_alone(features, monkeypatch):
    encoded, encode = [], features._encoded
    monkeypatch.setattr(features, "_encoded", lambda sentences: encoded.extend(sentences) or encode(sentences))
    together = vectors(features, [*SENTENCES, SENTENCES[0]])
    features.rows(SENTENCES)
    assert sorted(encoded) == sorted(SENTENCES)
    monkeypatch.setattr(wordpiece, "KEPT", 4)
    features.rows([("lights",)])
    features.rows([("lights",), SENTENCES[1]])
    assert encoded[len(SENTENCES) :] == [("lights",), SENTENCES[1]]
    monkeypatch.setattr(wordpiece, "KEPT", 0)
    for sentence, expected in zip(SENTENCES, together, strict=False):
        np.testing.assert_allclose(vectors(features, [sentence])[0], expected, atol=1e-6)


def test_nothing_of_the_encoder_is_trained_and_the_heads_read_it_beside_the_lstm(encoder):
    size, labels = {"hidden": 4, "layers": 1, "character": 2, "filters": 2}, Labels(("lights", "music"), ("O",))
    model = build_model("clc", labels, seed=0, private=True, pretrained=str(encoder), size=size)
    assert isinstance(model, CLC)
    names = [name for name, _ in trainable(model)]
    assert names
    assert not any(name.startswith(("encoder", "words")) for name in names)
    batch = model.dataset([Utterance(s, ("O",) * len(s), "lights") for s in SENTENCES]).batch([0, 1, 2, 3])
    model.losses(batch).sum().backward()
    assert all(parameter.grad is not None for _, parameter in trainable(model))
    for parameter in model.lstm.parameters():
        parameter.data.zero_()  # now it says nothing
    pooled, tokens = model.encode(batch, PLAIN, None)
    read = [torch.from_numpy(own) for own in vectors(model.features, SENTENCES)]
    assert torch.equal(tokens, torch.cat([torch.zeros(len(tokens), 8), torch.cat(read)], dim=1))
    torch.testing.assert_close(pooled[:, 8:], torch.stack([own.mean(0) for own in read]))
    assert model.double().losses(batch).dtype == torch.float64


def test_the_first_layers_of_an_encoder_give_what_they_gave_within_it(encoder, tmp_path):
    shorten_bert(str(encoder), 2, tmp_path / "short")
    peer = BertModel.from_pretrained(encoder, add_pooling_layer=False).eval()
    short, tokenizer = load_bert(str(tmp_path / "short"))
    assert tokenizer.to_str() == load_bert(str(encoder))[1].to_str()
    pieces = torch.tensor([[2, 7, 9, 3]])
    with torch.no_grad():
        states = peer(pieces, output_hidden_states=True).hidden_states
        assert torch.allclose(short(pieces).last_hidden_state, states[2], atol=1e-6)
    for layers in (0, 4):
        with pytest.raises(UsageError, match="has 3 layers"):
            shorten_bert(str(encoder), layers, tmp_path / "out")
        assert not (tmp_path / "out").exists()
