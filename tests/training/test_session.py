"""Training from start to end on a small corpus of the user's own: results, records and refusals."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from edp_lab.corpora.catalog import load_corpus
from edp_lab.corpora.corpus import split
from edp_lab.privacy import Mechanism, guaranteed_epsilon
from edp_lab.training import session
from edp_lab.training import trainer as run
from edp_lab.training.config import TrainConfig
from edp_lab.training.evaluate import evaluate_run, predict_texts
from edp_lab.training.gradients import ghost_gradients
from edp_lab.training.run_files import EpochDone, StepDone, read_record
from edp_lab.training.session import train
from edp_lab.training.trainer import Trainer
from tests.training.own_corpus import config, write_corpus


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    return str(write_corpus(tmp_path / "own.jsonl"))


def test_sgd_learns_tells_each_step_and_the_run_can_be_used_again(corpus, tmp_path):
    events = []
    record = train(config(corpus, method="sgd", epochs=8), tmp_path / "run", events.append)
    steps = [e for e in events if isinstance(e, StepDone)]
    assert [(e.epoch, e.step) for e in steps] == [(e, s + 1) for e in range(8) for s in range(steps[0].steps)]
    assert [e.epoch for e in events if isinstance(e, EpochDone)] == list(range(8))
    assert record["final"]["ser"] < 0.2
    assert record["guarantee"]["status"] == "none"
    assert record["final"]["conditional_epsilon"] is None
    scores = evaluate_run(tmp_path / "run")
    assert scores["ser"] == record["final"]["ser"]
    answer = predict_texts(tmp_path / "run", ["call anna 17"])[0]
    assert answer["intent"] == "call"
    assert {"slot": "name", "value": "anna"}.items() <= answer["slots"][0].items()


def test_record_has_every_field_and_a_guarantee_from_the_mechanism(corpus, tmp_path):
    settings = config(corpus, z0=0.7, decay="linear", tau=0.5, delta=1e-3)
    record = train(settings, tmp_path / "run")
    assert record == read_record(tmp_path / "run")
    assert {"config", "versions", "device", "world_size", "corpus", "epochs", "final", "guarantee"} <= set(record)
    assert record["corpus"]["sha256"] == load_corpus(corpus).sha256
    keys = {"loss", "seconds", "ser", "intent_accuracy", "slot_f1", "exact_match", "z_t", "noise_multiplier"}
    keys |= {"claimed_epsilon", "conditional_epsilon", "guaranteed_epsilon", "epsilon_if_alpha_public"}
    assert [set(row) for row in (*record["epochs"], record["final"])] == [keys] * 3
    assert [row["z_t"] for row in record["epochs"]] == pytest.approx([0.7, 0.7 / 1.5])
    mechanism = Mechanism.sound(1.0, 0.7, 4, 4, "linear", 0.5)
    assert record["final"]["conditional_epsilon"] == pytest.approx(guaranteed_epsilon(mechanism, 2, 1e-3))
    assert record["guarantee"]["status"] == "void: seed published"
    assert "zero-out" in record["guarantee"]["scope"]


@pytest.mark.parametrize("private_seed", [False, True])
def test_private_alpha_has_no_epsilon_also_with_a_secret_key_and_a_useless_delta_is_flagged(
    corpus, tmp_path, private_seed
):
    record = train(config(corpus, epochs=1, as_printed=True, private_seed=private_seed, delta=0.5), tmp_path / "run")
    assert (record["guarantee"]["status"], record["final"]["conditional_epsilon"]) == ("none", None)
    assert record["final"]["epsilon_if_alpha_public"] > 2 * record["final"]["claimed_epsilon"]
    assert "alpha" in record["guarantee"]["reason"]
    assert {"alpha", "delta"} <= {word for flag in record["not_private"] for word in flag.replace(":", "").split()}


def test_seed_and_weight_of_the_intent_make_another_loss_and_the_same_seed_the_same(corpus, tmp_path):
    settings = enumerate(({"seed": 3}, {"seed": 3}, {"seed": 4}, {"intent_weight": 1e-3}, {"intent_weight": 100.0}))
    losses = [train(config(corpus, **one), tmp_path / str(k))["epochs"][-1]["loss"] for k, one in settings]
    assert losses[0] == losses[1] != losses[2]
    assert losses[4] > 10 * losses[3]


@pytest.mark.parametrize("settings", [{}, {"as_printed": True, "alpha": "none"}])
def test_model_with_an_epsilon_does_not_depend_on_words_of_the_training_set(corpus, settings):
    """For a guaranteed epsilon, the vocabulary must not come from private text, so it has only hash buckets."""
    loaded = load_corpus(corpus)
    assert Trainer(config(corpus, **settings), loaded, split(loaded, 0)).model.features.words == ()


def test_no_model_is_left_whose_epochs_were_not_billed(corpus, tmp_path, monkeypatch):
    """A save that is interrupted between its two writes has written the ledger entries, but not the model."""
    original, saved = run.save_model, []

    def once(model, folder, *cure):
        if saved:
            raise OSError("the power went")
        saved.append(original(model, folder, *cure))

    monkeypatch.setattr(run, "save_model", once)
    with pytest.raises(OSError, match="power"):
        train(config(corpus, epochs=3), tmp_path / "run")
    record = read_record(tmp_path / "run")
    assert len(record["epochs"]) == record["guarantee"]["epochs"] == 2


def test_interrupt_while_the_test_split_is_scored_leaves_a_usable_run(corpus, tmp_path, monkeypatch):
    original, calls = session.evaluate_model, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(session, "evaluate_model", interrupted)
    record = train(config(corpus), tmp_path / "run")
    assert (record["status"], len(record["epochs"])) == ("interrupted", 2)
    assert record["final"]["ser"] == evaluate_run(tmp_path / "run")["ser"]


def test_a_run_adds_the_noise_it_is_billed_for(corpus, monkeypatch):
    """The noise is new in every step, with the standard deviation that the mechanism describes for that epoch."""
    loaded, noises, original = load_corpus(corpus), [], run.add_noise
    settings = config(corpus, epochs=3, z0=0.5, decay="exponential", tau=0.4)

    def spy(clipped, epoch, step, noise):
        without = clipped.scale * torch.cat(list(clipped.layers))
        released = original(clipped, epoch, step, noise)
        noises.append((released.gradient - without).double())
        return released

    monkeypatch.setattr(run, "add_noise", spy)
    here = Trainer(settings, loaded, split(loaded, 0))
    for epoch in range(3):
        begun = len(noises)
        here.epoch()
        for noise in noises[begun:]:
            assert float(noise.std()) == pytest.approx(2 * 0.5 * math.exp(-0.4 * epoch) / 4, rel=0.01)
    correlation = np.corrcoef(torch.stack(noises).numpy()) - np.eye(len(noises))
    assert np.abs(correlation).max() < 5.5 / math.sqrt(here.layout.size)


def test_corpus_without_tags_trains_the_intent_head_alone_and_says_so(tmp_path):
    path = write_corpus(tmp_path / "own.jsonl", tags=False)
    record = train(config(str(path), method="sgd", epochs=4), tmp_path / "run")
    assert record["final"]["slot_f1"] is None
    assert record["final"]["intent_accuracy"] > 0.9
    assert any("no tags" in warning for warning in record["corpus"]["warnings"])
    assert predict_texts(tmp_path / "run", ["call anna"])[0]["slots"] == []


@pytest.mark.parametrize("method", ["sgd", "dp-sgd"])
def test_text_without_spaces_is_learnt_by_its_characters(tmp_path, method):
    """Otherwise each sentence would be one word, which reveals nothing about other sentences."""
    wishes = {"on": "请帮我把{}的灯打开", "off": "请帮我把{}的灯关掉", "close": "请帮我把{}的窗帘拉上"}
    places = [a + b for a in "北南东西上下前后" for b in "京海方边楼山门厅"]
    rows = [{"text": wish.format(at), "intent": intent} for at in places for intent, wish in wishes.items()]
    path = tmp_path / "zh.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    accuracy = {}
    for tokens in ("words", "characters"):
        asked = config(path, method=method, tokens=tokens, epochs=6, z0=0.05, lr=0.02)
        accuracy[tokens] = train(asked, tmp_path / tokens)["final"]["intent_accuracy"]
        assert evaluate_run(tmp_path / tokens)["intent_accuracy"] == accuracy[tokens]
    assert accuracy["characters"] == 1 > 0.6 > accuracy["words"]
    (answer,) = predict_texts(tmp_path / "characters", ["把北楼的灯打开"])
    assert (answer["intent"], answer["text"], len(answer["tokens"])) == ("on", "把北楼的灯打开", 7)


def test_bert_trains_with_one_gradient_per_device(corpus, tmp_path):
    settings = config(corpus, model="bert", as_printed=True, z0=1e-6, lr=2e-3, epochs=6, clip_norm=5.0)
    record = train(settings, tmp_path / "run")
    assert record["final"]["intent_accuracy"] > 0.8
    assert evaluate_run(tmp_path / "run")["ser"] == record["final"]["ser"]


def test_learns_real_atis(real_data, tmp_path):
    """Three epochs of the small model on real ATIS already beat the majority intent (73 %) and tag most slots."""
    settings = TrainConfig(corpus="atis", method="sgd", size="small", epochs=3, batch_size=32, lr=2e-2)
    record = train(settings, tmp_path / "run")
    assert record["final"]["intent_accuracy"] > 0.8
    assert record["final"]["ser"] < 0.35


@pytest.mark.parametrize(
    "settings",
    [{}, {"as_printed": True}, {"clip_norm": 1e-3}, {"clip_norm": 1e9}, {"model": "bert", "as_printed": True}],
)
def test_one_device_steps_in_place_as_by_book_keeping(corpus, settings, monkeypatch):
    """Same clip, noise and parameters after several steps, also with layer scales from private gradients."""
    loaded, ended = load_corpus(corpus), []
    one = config(corpus, num_devices=1, z0=0.3, precision="float64", **settings)
    for in_place in (True, False):
        if not in_place:
            monkeypatch.setattr(run, "model_gradients", lambda *given: ghost_gradients(*given[:5]))
        here = Trainer(one, loaded, split(loaded, 0))
        for _ in range(3):
            here.step()
        ended.append(torch.cat([p.detach().flatten() for _, p in here.parameters]))
    start = torch.cat([p.detach().flatten() for _, p in Trainer(one, loaded, split(loaded, 0)).parameters])
    assert float((ended[0] - start).abs().max()) > 1e-3
    torch.testing.assert_close(ended[0], ended[1], rtol=1e-7, atol=1e-8)
