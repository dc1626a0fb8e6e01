"""Models are built from their seed alone, and read back exactly as saved or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edp_lab.corpora import Utterance
from edp_lab.corpora.encoding import HASH_BUCKETS, Labels
from edp_lab.errors import UsageError
from edp_lab.models import build_model, files, load_model, save_model, train_vectors
from edp_lab.models import factory as checkpoint
from edp_lab.models.clc import CLC

LABELS = Labels(("lights", "music"), ("O", "B-room", "I-room"))
TRAINING = [
    Utterance(("Turn", "on", "the", "zyzzyva", "lights"), ("O", "O", "O", "B-room", "O"), "lights"),
    Utterance(("turn", "on", "the", "café", "music"), ("O", "O", "O", "B-room", "O"), "music"),
]
SIZES = {
    "clc": {"hidden": 4, "layers": 1, "word": 3, "character": 2, "filters": 2},
    "bert": {"layers": 1, "heads": 2, "hidden": 4, "intermediate": 6, "positions": 32},
}


def build(kind: str, seed: int = 0, **changes):
    options = {"training": TRAINING, "private": False, "size": SIZES[kind], **changes}
    return build_model(kind, LABELS, seed=seed, **options)


@pytest.fixture(scope="module")
def vectors_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    train_vectors([["turn", "on", "Lights"], ["music", "lamp"]], size=5, epochs=1).save(folder)
    return folder


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory) -> Path:
    from edp_lab.models.bert import BertSize
    from edp_lab.training.pretraining import pretrain_bert

    folder = tmp_path_factory.mktemp("pretrained") / "bert"
    size = BertSize(**SIZES["bert"])
    pretrain_bert([("turn", "on", "the", "lights")] * 3, folder, epochs=1, size=size)
    return folder


def losses(model) -> torch.Tensor:
    return model.losses(model.dataset(TRAINING).batch([0, 1])).detach()


def same(one, two) -> bool:
    ours, theirs = one.state_dict(), two.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("kind", ["clc", "bert"])
def test_weights_are_a_function_of_the_seed(kind):
    torch.manual_seed(1)
    first = build(kind)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert same(first, build(kind))
    assert torch.equal(torch.get_rng_state(), before)
    for other in (1, 2**32, -1):
        assert not same(first, build(kind, seed=other))


@pytest.mark.parametrize("kind", ["clc", "bert"])
def test_pretrained_models_are_a_function_of_the_seed_too(kind, vectors_folder, bert_folder):
    options = {"pretrained": str(vectors_folder)} if kind == "clc" else {"pretrained": str(bert_folder), "size": None}
    assert same(build(kind, **options), build(kind, **options))
    assert not torch.equal(build(kind, **options).intent.weight, build(kind, seed=1, **options).intent.weight)


@pytest.mark.parametrize("pretrained", [False, True])
@pytest.mark.parametrize("kind", ["clc", "bert"])
def test_a_private_model_never_sees_the_training_words(kind, pretrained, vectors_folder, bert_folder):
    paths = {"clc": str(vectors_folder), "bert": str(bert_folder)}
    options = {"private": True, "pretrained": paths[kind] if pretrained else None}
    if pretrained and kind == "bert":
        options["size"] = None
    if kind == "bert" and not pretrained:
        with pytest.raises(UsageError, match="edp-lab pretrain --model bert"):
            build(kind, **options)
        return
    model = build(kind, **options)
    assert same(model, build(kind, **options, training=()))
    assert "zyzzyva" not in json.dumps(model.config())
    assert losses(model).isfinite().all()


def test_a_private_clc_hashes_every_word():
    model = build("clc", private=True)
    assert model.features.words == ()
    assert len(model.words.weight) == HASH_BUCKETS


def test_pretrained_vectors_are_frozen_and_found_by_lower_case(vectors_folder):
    model = build("clc", pretrained=str(vectors_folder))
    assert "lights" in model.features.words
    assert not model.words.weight.requires_grad
    row = model.features.rows([["LIGHTS"]])["words"].values[0]
    assert torch.equal(model.words.weight[row], model.words.weight[model.features.words.index("lights")])
    unknown = model.features.rows([["zyzzyva"]])["words"].values[0]
    assert not model.words.weight[unknown].any()


def test_pretrained_bert_weights_are_used(bert_folder):
    from edp_lab.models.bert import load_bert

    model = build("bert", pretrained=str(bert_folder), size={"dropout": 0.3})
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.bert.parameters(), load_bert(str(bert_folder))[0].parameters(), strict=True)
    )
    assert model.dropout == 0.3
    assert model.features.positions == SIZES["bert"]["positions"]


def test_unknown_names_are_refused(bert_folder):
    with pytest.raises(UsageError, match="unknown model 'gpt': choose one of clc, bert"):
        build_model("gpt", LABELS, seed=0, private=False)
    for kind in ("clc", "bert"):
        with pytest.raises(UsageError, match="unknown size 'depth': choose from"):
            build(kind, size={"depth": 3})
    with pytest.raises(UsageError, match="hidden is that of its pretrained weights"):
        build("bert", pretrained=str(bert_folder), size={"hidden": 8})


@pytest.mark.parametrize("which", ["clc", "clc private", "clc vectors", "clc encoder", "bert", "bert pretrained"])
def test_a_saved_model_comes_back_exactly(which, tmp_path, vectors_folder, bert_folder):
    options = {
        "clc private": {"private": True},
        "clc vectors": {"pretrained": str(vectors_folder)},
        "clc encoder": {"pretrained": str(bert_folder)},
        "bert pretrained": {"pretrained": str(bert_folder), "size": None},
    }.get(which, {})
    model = build(which.split()[0], seed=5, **options)
    save_model(model, tmp_path / "new" / "folder")
    before = torch.get_rng_state()
    read = load_model(tmp_path / "new" / "folder")
    assert torch.equal(torch.get_rng_state(), before)
    assert same(model, read)
    assert type(read) is type(model)
    assert read.labels == model.labels
    assert read.config() == model.config()
    assert [p.requires_grad for p in read.parameters()] == [p.requires_grad for p in model.parameters()]
    assert torch.equal(losses(model), losses(read))


def test_saving_again_replaces_the_older_model(tmp_path):
    for seed in (1, 2, 2):
        save_model(build("clc", seed), tmp_path)
    assert same(load_model(tmp_path), build("clc", 2))
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("calls", [0, 1, 2])
def test_a_save_that_dies_leaves_the_older_model(tmp_path, monkeypatch, calls):
    save_model(build("clc", 1), tmp_path)
    replace, count = os.replace, iter(range(9))

    def dying(source, target):
        if next(count) == calls:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(files.os, "replace", dying)
    if calls < 2:
        with pytest.raises(KeyboardInterrupt):
            save_model(build("clc", 2), tmp_path)
    else:
        monkeypatch.setattr(Path, "unlink", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            save_model(build("clc", 2), tmp_path)
    monkeypatch.undo()
    assert same(load_model(tmp_path), build("clc", 1 if calls < 2 else 2))
    save_model(build("clc", 3), tmp_path)
    assert len(list(tmp_path.glob("weights-*"))) == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(data=st.data())
def test_any_damaged_byte_is_noticed(tmp_path, data):
    save_model(build("clc"), tmp_path)
    file = data.draw(st.sampled_from(sorted(tmp_path.iterdir())))
    content = bytearray(file.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[place] ^= data.draw(st.integers(1, 255))
    else:
        del content[place:]
    file.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match="holds no saved model"):
        load_model(tmp_path / "nowhere")
    save_model(build("clc"), tmp_path)
    next(tmp_path.glob("weights-*")).unlink()
    with pytest.raises(UsageError, match=r"weights-.*\.safetensors cannot be read"):
        load_model(tmp_path)


@pytest.mark.parametrize("about", ["[]", "{}", '{"sha256": 3}', "null"])
def test_a_file_that_describes_no_model_is_refused(tmp_path, about):
    (tmp_path / "model.json").write_text(about)
    with pytest.raises(UsageError, match=r"model\.json does not describe a model"):
        load_model(tmp_path)


def test_a_model_of_another_version_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(
        CLC, "config", lambda self: {"words": [], "buckets": 3, "size": {"width": 3}, "vector_size": None}
    )
    save_model(build("clc"), tmp_path)
    with pytest.raises(UsageError, match="another version of edp_lab"):
        load_model(tmp_path)
    monkeypatch.undo()
    model = build("clc")
    model.intent.double()  # one part in another precision than the rest
    save_model(model, tmp_path)
    with pytest.raises(UsageError, match="another version of edp_lab"):
        load_model(tmp_path)


@pytest.mark.parametrize("kind", ["clc", "bert"])
def test_a_model_comes_back_in_its_own_precision(tmp_path, kind):
    for model in (build(kind).double(), build(kind)):
        save_model(model, tmp_path)
        assert {p.dtype for p in load_model(tmp_path).parameters()} == {p.dtype for p in model.parameters()}
        assert same(load_model(tmp_path), model)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be saved"):
        save_model(build("clc"), tmp_path / "file" / "run")


def test_nothing_is_unpickled(tmp_path, monkeypatch):
    save_model(build("bert"), tmp_path)
    monkeypatch.setattr("pickle.Unpickler", None)
    monkeypatch.setattr("pickle.loads", None)
    monkeypatch.setattr(torch, "load", None)
    assert same(load_model(tmp_path), build("bert"))


def test_seeded_blocks_nest():
    with checkpoint.seeded(1):
        expected = torch.rand(2)
        with checkpoint.seeded(2):
            torch.rand(5)
        after = torch.rand(2)
    with checkpoint.seeded(1):
        assert torch.equal(torch.rand(4), torch.cat([expected, after]))
