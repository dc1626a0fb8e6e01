"""Why a model is bad: noise counted right, nothing read off the training set, one sentence where there is no answer."""

import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch

from edp_lab.corpora import Utterance, load_corpus
from edp_lab.corpora.smart_home import write_jsonl
from edp_lab.errors import UsageError
from edp_lab.training import TrainConfig, read_record, train
from edp_lab.training import explain as module
from edp_lab.training.explain import Cause, explain, followed
from edp_lab.training.optimizers import make_optimizer
from tests.training.own_corpus import write_corpus

Z0, BATCH, EPOCHS, CLIP = 0.1, 18, 3, 0.5


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """DP-SGD on 54 utterances: three steps an epoch."""
    folder = tmp_path_factory.mktemp("explained")
    corpus = str(write_corpus(folder / "own.jsonl"))
    private = {"method": "dp-sgd", "sampling": "shuffle", "num_devices": 1, "clip_norm": CLIP, "z0": Z0}
    config = TrainConfig(corpus, size="small", epochs=EPOCHS, batch_size=BATCH, **private)
    train(config, folder / "run")
    train(replace(config, method="sgd"), folder / "plain")
    return folder / "run"


def test_noise_is_that_of_all_steps_over_what_clipping_lets_through(run):
    found = explain(run)
    weights = sum(layer.size for layer in found.layers)
    assert found.steps == EPOCHS * 3
    assert found.gradient > CLIP
    assert found.noise == pytest.approx(Z0 / BATCH * math.sqrt(weights / found.steps), rel=1e-6)
    assert math.hypot(*(layer.noise for layer in found.layers)) == pytest.approx(CLIP * Z0 / BATCH * math.sqrt(weights))
    assert found.more == [(k * found.utterances, pytest.approx(found.noise / k)) for k in (1, 2, 4)]


def test_what_noise_alone_does_to_a_weight_is_what_the_optimizer_does():
    torch.manual_seed(0)
    weights = torch.nn.Parameter(torch.zeros(4000))
    rates, stds = np.linspace(0.1, 0.02, 40), np.repeat([1.0, 0.5], 20)
    optimizer = make_optimizer("adam", [weights], 0.1)
    for rate, std in zip(rates, stds, strict=True):
        weights.grad = std * torch.randn(4000)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    assert module._walk(rates, stds) == pytest.approx(float(weights.detach().square().mean().sqrt()), rel=0.1)


def test_nothing_is_read_off_the_training_set_unless_asked(run, monkeypatch):
    """Another training set of the same size gives the same answer, but for `look`."""
    usual, looked = explain(run), explain(run, look=True)
    assert looked._replace(looked=None) == usual
    assert 0 < looked.looked.clipped <= 1
    assert 0 < looked.looked.cosine <= 1 + 1e-6
    read = module.run_data

    def others(folder):
        record, corpus, data = read(folder)
        one = Utterance(("play", "song", "x"), ("O", "O", "B-title"), "play")
        return record, corpus, replace(data, train=[one] * len(data.train), validation=[one], test=[one])

    monkeypatch.setattr(module, "run_data", others)
    assert explain(run) == usual
    assert explain(run, look=True) != looked


def test_more_steps_keep_epsilon_and_a_ceiling_excuses_noise(run):
    found = explain(run)
    config, epsilon = followed(found, Cause("too few steps", 10.0, "", {"epochs": 10 * EPOCHS}))
    assert config.epochs == 10 * EPOCHS
    assert 0.97 * found.epsilon < epsilon <= found.epsilon
    beside = explain(run, run.parent / "plain")
    assert beside.plain_ser is not None
    if beside.plain_ser > 0.8 * beside.ser:
        assert "too much noise" not in [cause.name for cause in beside.causes]


def test_a_run_from_another_start_is_no_ceiling(run, monkeypatch):
    def started(folder):
        record = read_record(folder)
        return record | {"config": record["config"] | {"pretrained": "public-start"}}

    monkeypatch.setattr(module, "read_record", started)
    with pytest.raises(UsageError, match="starts from public-start, the other from nothing"):
        explain(run, run.parent / "plain")


# ---- Is advice good? -------------------------------------------------------------------------------------------------

# What is changed, and the cause that must come first; docs/training.md has such a table.
FAULTS = {
    "clip norm too small": {"clip_norm": 2e-6},
    "clip norm too large": {"clip_norm": 300.0},
    "too much noise": {"z0": 3.0},
    "learning rate too small": {"lr": 2e-4},
    "too few steps": {"epochs": 1, "batch_size": 48},
    "too few utterances": {},  # but a smaller corpus, and as many steps
}


@pytest.fixture(scope="module")
def smart_home(tmp_path_factory):
    """Generated corpora, by how many utterances they have."""
    folder, corpus = tmp_path_factory.mktemp("smart-home"), load_corpus("smart-home")
    everyone = Random(0).sample(list(corpus.utterances), 1000)

    def of(count):
        path = folder / f"{count}.jsonl"
        if not path.exists():
            write_jsonl(replace(corpus, utterances=everyone[:count]), path)
        return str(path)

    return of


@pytest.mark.parametrize("fault", FAULTS)
def test_first_advice_names_the_fault_and_following_it_lowers_the_error(fault, smart_home, tmp_path):
    base = {"method": "dp-sgd", "sampling": "shuffle", "num_devices": 1, "size": "small", "lr_schedule": "constant"}
    config = TrainConfig(smart_home(800), z0=0.01, batch_size=12, epochs=7, **base)
    config = replace(config, **FAULTS[fault])
    if fault == "too few utterances":
        config = replace(config, corpus=smart_home(60), epochs=70)
    train(config, tmp_path / "run")
    found = explain(tmp_path / "run")
    cause = found.causes[0]
    assert cause.name == fault
    better, _ = followed(found, cause)
    if cause.utterances is not None:
        better = replace(better, corpus=smart_home(min(1000, round(cause.utterances / 0.45))))
    assert train(better, tmp_path / "better")["final"]["ser"] < found.ser - 0.02
