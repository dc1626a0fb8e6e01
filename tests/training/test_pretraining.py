"""Pretraining: the loss decreases, the result depends only on the arguments, and other libraries can read it."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer
from typer import Typer
from typer.testing import CliRunner

from edp_lab.cli.train import pretrain, read_sentences
from edp_lab.corpora import smart_home
from edp_lab.corpora.encoding import SPECIAL, PieceFeatures
from edp_lab.errors import UsageError
from edp_lab.models.bert import BertSize, load_bert
from edp_lab.models.factory import build_model
from edp_lab.training import pretraining
from edp_lab.training.pretraining import PretrainingEpoch, mask_pieces, pretrain_bert, pretrain_vectors

TINY = BertSize(layers=1, heads=2, hidden=16, intermediate=32, positions=16)
ROOMS = ("kitchen", "attic", "cellar", "garage")
TEXT = [("turn", "on", "the", room, "lights", "please") for room in ROOMS] * 40
CLS, SEP, MASK = (SPECIAL.index(p) for p in ("[CLS]", "[SEP]", "[MASK]"))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_loss_falls_to_what_cannot_be_known(tmp_path, monkeypatch):
    monkeypatch.setattr(pretraining, "LEARNING_RATE", 5e-3)  # suits this tiny model
    heard: list[PretrainingEpoch] = []
    losses = pretrain_bert(TEXT, tmp_path / "out", epochs=40, size=TINY, progress=heard.append)
    assert [p.loss for p in heard] == losses
    assert [(p.epoch, p.epochs) for p in heard] == [(k, 40) for k in range(1, 41)]
    assert losses[0] > 3  # about ln(vocabulary)
    assert math.log(4) / 6 < losses[-1] < 0.6  # one word in six, the room, cannot be predicted better than 1 in 4


def test_the_same_arguments_give_the_same_files_which_load_here_and_with_transformers(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.manual_seed(len(name) + seed)
        pretrain_bert(TEXT[:20], tmp_path / name, epochs=2, seed=seed, size=TINY)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert files(tmp_path / "a") != files(tmp_path / "c")
    bert, tokenizer = load_bert(str(tmp_path / "a"))
    theirs = AutoTokenizer.from_pretrained(tmp_path / "a")
    sentence = "Turn ON the zebra lights"
    pieces = PieceFeatures(tokenizer, TINY.positions).rows([sentence.split()])["pieces"].values
    assert theirs(sentence)["input_ids"] == tokenizer.encode(sentence).ids == pieces.tolist()
    language_model = AutoModelForMaskedLM.from_pretrained(tmp_path / "a")
    for name, tensor in bert.state_dict().items():
        assert torch.equal(language_model.bert.state_dict()[name], tensor)


def test_masks_have_the_stated_shares_and_every_sentence_is_seen_once_per_epoch():
    random = np.random.default_rng(0)
    truth = torch.cat([torch.tensor([CLS, SEP]), torch.full((200_000,), 7)])
    shown, chosen = mask_pieces(truth, 1005, random)
    assert not chosen[:2].any()
    assert torch.equal(shown[~chosen], truth[~chosen])
    assert chosen.float().mean() == pytest.approx(0.15, abs=0.005)
    assert (shown[chosen] == MASK).float().mean() == pytest.approx(0.8, abs=0.01)
    assert (shown[chosen] == 7).float().mean() == pytest.approx(0.1, abs=0.01)
    assert shown[chosen].min() >= MASK
    assert shown.max() < 1005
    lengths = np.random.default_rng(1).integers(3, 9, 10_000)
    batches = list(pretraining._batches(lengths, np.random.default_rng(2)))
    assert sorted(np.concatenate(batches)) == list(range(10_000))
    assert {len(b) for b in batches} <= {64, 10_000 % 64}


def test_one_short_sentence_is_enough_and_an_interrupted_run_leaves_nothing_behind(tmp_path):
    def stop(progress: PretrainingEpoch) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain_bert(TEXT[:4], tmp_path / "out", epochs=2, size=TINY, progress=stop)
    assert not list(tmp_path.iterdir())
    assert np.isfinite(pretrain_bert([("hi",)], tmp_path / "out", epochs=10, size=TINY)).all()


@pytest.mark.parametrize("train", [pretrain_bert, pretrain_vectors])
def test_bad_input_leaves_nothing_behind(tmp_path, train):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "file").touch()
    for message, text, folder in (
        ("exists already", TEXT[:2], "full"),
        ("file exists already", TEXT[:2], "file"),
        ("cannot be written", TEXT[:2], "file/below"),
        ("is empty", [()], "new"),
    ):
        with pytest.raises(UsageError, match=message):
            train(text, tmp_path / folder, epochs=1)
    with pytest.raises(UsageError, match="has no letter or digit"):
        pretrain_bert([("\0",)], tmp_path / "new", epochs=1, size=TINY)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "full"]


@pytest.mark.parametrize("model", ["clc", "bert"])
def test_the_command_makes_what_build_model_reads(tmp_path, model):
    from edp_lab.corpora.encoding import Labels

    text = tmp_path / "text.txt"
    text.write_text("\n".join(" ".join(sentence) for sentence in TEXT[:8]) + "\n\n", encoding="utf-8")
    app = Typer()
    app.command()(pretrain)
    out = str(tmp_path / "out")
    arguments = ["--model", model, "--text", str(text), "--out", out, "--epochs", "2", "--size", "small"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{out}\n"
    assert result.stderr.count("epoch") == (2 if model == "bert" else 0)
    built = build_model(model, Labels(("a", "b"), ()), seed=0, private=True, pretrained=out)
    assert "kitchen" in str(built.config())


def test_the_text_of_pretraining(tmp_path):
    (tmp_path / "ok.txt").write_text("Turn  on\n\n café \n", encoding="utf-8")
    assert read_sentences(str(tmp_path / "ok.txt"), 0) == [("Turn", "on"), ("café",)]
    corpus = smart_home.generate(30, smart_home.EMBEDDED_SEED)
    smart_home.write_jsonl(corpus, tmp_path / "corpus.jsonl")
    assert read_sentences(str(tmp_path / "corpus.jsonl"), 0) == [u.tokens for u in corpus.utterances]
    generated = read_sentences(None, 30)  # the default text differs from the embedded corpus
    assert len(generated) == 30
    assert generated != [u.tokens for u in corpus.utterances]
