"""Models depend only on their seed, and are read back exactly as saved or not at all."""

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from edp_lab import files
from edp_lab.corpora.corpus import Utterance
from edp_lab.corpora.encoding import HASH_BUCKETS, Labels
from edp_lab.errors import UsageError
from edp_lab.models.bert import BertSize, load_bert
from edp_lab.models.clc import CLC
from edp_lab.models.factory import build_model, load_model, save_model, seeded
from edp_lab.models.vectors import train_vectors
from edp_lab.training.pretraining import pretrain_bert

LABELS = Labels(("lights", "music"), ("O", "B-room", "I-room"))
TRAINING = [
    Utterance(("Turn", "on", "the", "zyzzyva", "lights"), ("O", "O", "O", "B-room", "O"), "lights"),
    Utterance(("turn", "on", "the", "café", "music"), ("O", "O", "O", "B-room", "O"), "music"),
]
SIZES = {
    "clc": {"hidden": 4, "layers": 1, "word": 3, "character": 2, "filters": 2},
    "bert": {"layers": 1, "heads": 2, "hidden": 4, "intermediate": 6, "positions": 32},
}
WAYS = ("clc", "clc private", "clc vectors", "bert", "bert pretrained")


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> dict[str, str]:
    """Folders with word vectors and with an encoder."""
    folder = tmp_path_factory.mktemp("weights")
    (folder / "vectors").mkdir()
    train_vectors([["turn", "on", "Lights"], ["music", "lamp"]], size=5, epochs=1).save(folder / "vectors")
    pretrain_bert([("turn", "on", "the", "lights")] * 3, folder / "bert", epochs=1, size=BertSize(**SIZES["bert"]))
    return {name: str(folder / name) for name in ("vectors", "bert")}


@pytest.fixture
def build(weights):
    """Build a model in one of several ways."""

    def build(way: str, seed: int = 0, **changes):
        kind = way.split()[0]
        pretrained = {"clc vectors": "vectors", "bert pretrained": "bert"}.get(way)
        options = {"training": TRAINING, "private": "private" in way, "pretrained": weights.get(pretrained)}
        options["size"] = None if way == "bert pretrained" else SIZES[kind]
        return build_model(kind, LABELS, seed=seed, **{**options, **changes})

    return build


def same(one, two) -> bool:
    ours, theirs = one.state_dict(), two.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("way", WAYS)
def test_weights_are_a_function_of_the_seed(way, build):
    torch.manual_seed(1)
    first = build(way)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert same(first, build(way))
    assert torch.equal(torch.get_rng_state(), before)
    for other in (1, 2**32, -1):
        assert not torch.equal(first.intent.weight, build(way, seed=other).intent.weight)


@pytest.mark.parametrize("way", WAYS)
def test_a_private_model_never_sees_the_training_words(way, build):
    if way == "bert":
        with pytest.raises(UsageError, match="edp-lab pretrain --model bert"):
            build(way, private=True)
        return
    model = build(way, private=True)
    assert same(model, build(way, private=True, training=()))
    assert "zyzzyva" not in json.dumps(model.config())
    assert model.losses(model.dataset(TRAINING).batch([0, 1])).isfinite().all()


def test_where_words_and_weights_come_from(build, weights):
    with pytest.raises(UsageError, match="contains a BERT: choose --model bert"):
        build_model("clc", LABELS, seed=0, private=True, pretrained=weights["bert"])
    hashed = build("clc private")
    assert (hashed.features.words, len(hashed.words.weight)) == ((), HASH_BUCKETS)
    model = build("clc vectors")
    assert not model.words.weight.requires_grad
    row, unknown = (model.features.rows([[word]])["words"].values[0] for word in ("LIGHTS", "zyzzyva"))
    assert torch.equal(model.words.weight[row], model.words.weight[model.features.words.index("lights")])
    assert not model.words.weight[unknown].any()
    model = build("bert pretrained", size={"dropout": 0.3})
    assert same(model.bert, load_bert(weights["bert"])[0])
    assert (model.dropout, model.features.positions) == (0.3, SIZES["bert"]["positions"])


@pytest.mark.parametrize("way", WAYS)
def test_a_saved_model_comes_back_exactly(way, tmp_path, build, monkeypatch):
    """In its own precision, and without unpickling."""
    monkeypatch.setattr("pickle.Unpickler", None)
    monkeypatch.setattr("pickle.loads", None)
    monkeypatch.setattr(torch, "load", None)
    for model in (build(way, seed=5).double(), build(way, seed=5)):
        save_model(model, tmp_path / "new" / "folder")
        before = torch.get_rng_state()
        read = load_model(tmp_path / "new" / "folder")
        assert torch.equal(torch.get_rng_state(), before)
        assert same(model, read)
        assert type(read) is type(model)
        assert (read.labels, read.config()) == (model.labels, model.config())
        kinds = [[(p.requires_grad, p.dtype) for p in each.parameters()] for each in (read, model)]
        assert kinds[0] == kinds[1]
        batch = model.dataset(TRAINING).batch([0, 1])
        assert torch.equal(model.losses(batch), read.losses(batch))


@pytest.mark.parametrize("calls", [0, 1, 2])
def test_a_save_that_dies_leaves_the_older_model(tmp_path, monkeypatch, calls, build):
    """The save ends before the weights, before the description, or before the old weights are removed."""
    save_model(build("clc", 1), tmp_path)
    replace, count = os.replace, iter(range(9))

    def die(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "replace", lambda *paths: die() if next(count) == calls else replace(*paths))
    monkeypatch.setattr(Path, "unlink", die)
    with pytest.raises(KeyboardInterrupt):
        save_model(build("clc", 2), tmp_path)
    monkeypatch.undo()
    assert same(load_model(tmp_path), build("clc", 1 if calls < 2 else 2))
    save_model(build("clc", 3), tmp_path)
    assert len(list(tmp_path.glob("weights-*"))) == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_any_damaged_byte_is_noticed(tmp_path, data, build):
    save_model(build("clc"), tmp_path)
    file = data.draw(st.sampled_from(sorted(tmp_path.iterdir())))
    content = bytearray(file.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[place] ^= data.draw(st.integers(1, 255))
        assume(not (file.suffix == ".json" and content[place : place + 1].isspace()))  # white space has no effect
    else:
        del content[place:]
    file.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("about", ["[]", "{}", '{"sha256": 3}', '{"sha256": "a\\u0000b"}', "null"])
def test_what_is_no_model_is_refused(tmp_path, about, build):
    with pytest.raises(UsageError, match="contains no saved model"):
        load_model(tmp_path / "nowhere")
    save_model(build("clc"), tmp_path)
    next(tmp_path.glob("weights-*")).unlink()
    with pytest.raises(UsageError, match=r"weights-.*\.safetensors cannot be read"):
        load_model(tmp_path)
    (tmp_path / "model.json").write_text(about)
    with pytest.raises(UsageError, match=r"model\.json does not describe a model"):
        load_model(tmp_path)
    with pytest.raises(UsageError, match="cannot be written"):
        save_model(build("clc"), tmp_path / "model.json" / "run")


@pytest.mark.parametrize(
    "other",
    [
        {},  # but one part has a different precision from the rest
        {"size": {"width": 3}},
        {"size": {**SIZES["clc"], "hidden": 10**7}},
        {"size": {**SIZES["clc"], "filters": -3}},
        {"size": {**SIZES["clc"], "layers": 10**7}},
        {"bert": {"num_hidden_layers": 10**7}, "tokenizer": "{}"},
        {"buckets": 10**12},
        {"buckets": -1},
        {"vector_size": 10**12},
        {"bert": {"hidden_size": 10**6, "vocab_size": 10**9}, "tokenizer": "{}"},
        {"bert": {}, "tokenizer": "x"},
    ],
)
def test_a_model_of_another_version_is_refused(tmp_path, monkeypatch, build, other):
    model = build("clc")
    known = model.config()
    monkeypatch.setattr(CLC, "config", lambda self: {**known, **other})
    if not other:
        model.intent.double()
    save_model(model, tmp_path)
    with pytest.raises(UsageError, match="another version of edp_lab"):
        load_model(tmp_path)


def test_seeded_blocks_nest():
    with seeded(1):
        expected = torch.rand(2)
        with seeded(2):
            torch.rand(5)
        after = torch.rand(2)
    with seeded(1):
        assert torch.equal(torch.rand(4), torch.cat([expected, after]))
