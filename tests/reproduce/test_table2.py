"""Table 2: which methods take part and what is reported. Ratios themselves depend on the machine."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from edp_lab.corpora import load_corpus, split
from edp_lab.errors import UsageError
from edp_lab.models.bert import BertSize, new_bert
from edp_lab.models.factory import seeded
from edp_lab.models.wordpiece import train_wordpieces
from edp_lab.reproduce.table2 import (
    Contestant,
    OpacusPeer,
    Task,
    _encoder,
    _row,
    reordered,
    table2,
    turns,
)
from edp_lab.training.config import TrainConfig
from edp_lab.training.gradients import model_gradients
from edp_lab.training.trainer import Trainer

FIELDS = {"model", "corpus", "method", "gpus", "processes", "seconds", "ratio_to_sgd", "ratio_spread", "peak_memory_mb"}


def task(**changes: object) -> Task:
    settings = {"corpus": "smart-home", "size": "small", "rounds": 2, "batch_size": 16, **changes}
    return Task(**settings)  # type: ignore[arg-type]


def test_sgd_comes_first_slow_methods_run_on_one_process_and_the_papers_figures_stand_beside():
    everyone = task(methods=("opacus", "dp-sgd-naive", "dp-sgd", "edp-sgd", "sgd"), gpus=(1, 2, 8), processes=(1, 2))
    assert everyone.contestants(1) == [
        Contestant("sgd", 1, 1),
        *(Contestant("edp-sgd", gpus, 1) for gpus in (1, 2, 8)),
        *(Contestant(method, 1, 1) for method in ("dp-sgd-naive", "dp-sgd", "opacus")),
    ]
    assert everyone.contestants(2) == [
        Contestant("sgd", 2, 2),
        Contestant("edp-sgd", 2, 2),
        Contestant("edp-sgd", 8, 2),
        Contestant("dp-sgd", 2, 2),
    ]
    bert, turn = task(corpus="atis", model="bert"), {"number": 1, "seconds": 2.0, "sgd": 1.0, "steps": 9, "threads": 2}
    told = [_row(bert, Contestant(method, 1, 1), k, [turn], 1.0) for k, method in enumerate(("sgd", "edp-sgd"))]
    assert [(row["paper_ratio"], row["ratio_to_sgd"]) for row in told] == [(1.0, 1.0), (1.29, 2.0)]


@pytest.mark.parametrize("model", ["clc", "bert"])
def test_every_method_takes_a_step_in_every_round_and_sgd_one_beside_it(model, tmp_path):
    chosen = task(model=model, methods=("sgd", "edp-sgd", "dp-sgd", "dp-sgd-naive"), gpus=(2,))
    contestants = chosen.contestants(1)
    encoder = _encoder(chosen, tmp_path) if model == "bert" else None
    told = list(turns(chosen, contestants, encoder, memory=False))
    places = [(t["round"], t["number"]) for t in told]
    assert [number for number, _ in places] == sorted(number for number, _ in places)
    assert places != sorted(places)  # in random order within a round
    assert {(r, k) for r in range(2) for k in range(1, len(contestants))} == set(places)
    assert min(t[name] for t in told for name in ("seconds", "sgd")) > 0


def test_rows_on_two_processes_have_every_field():
    [row] = table2(task(methods=("sgd",), processes=(2,)))
    assert (row["method"], row["processes"], row["ratio_to_sgd"], row["device"]) == ("sgd", 2, 1, "cpu")
    assert set(row) >= FIELDS
    assert row["peak_memory_mb"] > 50


def test_a_process_that_dies_ends_the_benchmark_in_one_sentence(monkeypatch):
    monkeypatch.setattr("edp_lab.reproduce.table2.KEEP_PAGES", {"EDP_LAB_DATA": "/nowhere"})
    monkeypatch.setattr("edp_lab.reproduce.table2.load_corpus", lambda name: None)
    with pytest.raises(UsageError, match="died with status 1"):
        table2(task(corpus="/nowhere/at/all.jsonl"))


# ---- The Opacus peer is the same model and the same step: without noise and dropout it moves every weight as we do ---


LONGEST = 11
MODELS = pytest.mark.parametrize("model", ["clc", "bert"])
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Utterances of 1 to 11 words with and without slot annotation, and an untrained BERT encoder."""
    folder = tmp_path_factory.mktemp("peer")
    chosen = np.random.default_rng(0)
    rows = []
    for k in range(60):
        tags = chosen.choice(["O", "O", "B-room", "B-time"], 1 + k % LONGEST).tolist()
        words = [f"{tag.lower()}{'s' * int(chosen.integers(9))}{chosen.integers(20)}" for tag in tags]
        rows.append({"tokens": words, "tags": tags, "intent": ["on", "off", "dim"][k % 3]})
    (folder / "slots.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    bare = [{"tokens": row["tokens"], "intent": row["intent"]} for row in rows]
    (folder / "bare.jsonl").write_text("".join(json.dumps(row) + "\n" for row in bare))
    tokenizer = train_wordpieces([row["tokens"] for row in rows])
    size = BertSize(layers=2, heads=2, hidden=16, intermediate=24, positions=96)
    with seeded(0):
        new_bert(size.architecture(tokenizer.get_vocab_size())).save_pretrained(folder / "encoder")
    tokenizer.save(str(folder / "encoder" / "tokenizer.json"))
    return folder


def run_of(folder: Path, model: str, corpus: str = "slots", **changes: object) -> Trainer:
    """A run whose only batch is the whole training set, so of all lengths; half of its gradients are clipped.

    That batch is smaller than the batch size, by which both divide.
    """
    loaded = load_corpus(folder / f"{corpus}.jsonl")
    data = split(loaded, 0)
    settings = {"size": "small", "z0": 0.0, "dropout": 0.0, "sampling": "shuffle", "num_devices": 1, "lr": 1e-3}
    pretrained = str(folder / "encoder") if model == "bert" else None
    config = TrainConfig(
        corpus=str(folder / f"{corpus}.jsonl"),
        model=model,
        method="dp-sgd",
        batch_size=len(data.train) + 3,
        pretrained=pretrained,
        **{**settings, **changes},  # type: ignore[arg-type]
    )
    run = Trainer(config, loaded, data)
    norms = gradient_norms(run)
    assert {len(u.tokens) for u in data.train} == set(range(1, LONGEST + 1))
    assert norms.min() < 0.9 * norms.median() < 0.8 * norms.max()
    return Trainer(replace(config, clip_norm=float(norms.median())), loaded, data)


def gradient_norms(run: Trainer) -> Tensor:
    parts = [np.array([k]) for k in range(len(run.train_data))]
    gradients = model_gradients(run.model, run.train_data, parts, None, run.layout)
    return torch.cat([some.norms() for some in gradients]).norm(dim=1)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def as_ours(peer: dict[str, Tensor]) -> dict[str, Tensor]:
    """The peer's weights, or their gradients, under our names and in our shapes."""
    own = {name.removeprefix("encoder."): value for name, value in peer.items()}
    if "convolution.weight" in own:
        own["convolution.weight"] = own["convolution.weight"][:, :, 0].transpose(1, 2).flatten(1)
    for layer in sorted({name.rpartition(".")[0] for name in own if name.startswith("lstm.")}):
        for ours, theirs in (("w_ih", "weight_ih"), ("w_hh", "weight_hh"), ("bias", "bias_ih")):
            both = [own.pop(f"{layer}.{theirs}_l0{end}") for end in ("", "_reverse")]
            own[f"{layer}.{ours}"] = torch.stack([reordered(one) for one in both])
    if "crf.score.weight" in own:
        flat, k = own.pop("crf.score.weight")[0], len(own["slots.bias"])
        start, transitions, end = flat.split([k, k * k, k])
        own |= {"crf.start": start, "crf.transitions": transitions.view(k, k), "crf.end": end}
    return own


def distance(peer: dict[str, Tensor], ours: dict[str, Tensor]) -> float:
    """The largest relative difference of any layer.

    Attention ignores what is added to all keys: the gradient of that bias is rounding alone, hence the smallest scale.
    """
    assert peer.keys() == ours.keys()
    assert all(peer[name].shape == ours[name].shape for name in ours)
    return max(float((peer[name] - ours[name]).norm() / ours[name].norm().clamp_min(1e-4)) for name in ours)


@MODELS
@pytest.mark.parametrize("corpus", ["slots", "bare"])
def test_without_noise_a_step_moves_every_weight_as_ours_does(folder, monkeypatch, model, corpus):
    """In float64, because Adam moves a weight by the sign of its gradient, however small."""
    monkeypatch.setattr("edp_lab.training.dp_step.headroom", lambda *steps: 0.0)  # ours clips by 2^-11 more
    run = run_of(folder, model, corpus, precision="float64")
    peer = OpacusPeer(run)
    before = weights(run.model)
    assert distance(as_ours(weights(peer.model)), before) == 0
    loss = peer.step(np.arange(len(run.train_data))[::-1])
    ours, _, _ = run.step()
    assert loss == pytest.approx(ours, rel=1e-9)
    assert distance(as_ours(gradients(peer.model)), gradients(run.model)) < 1e-5
    moved, peer_moved = (
        {name: p - before[name] for name, p in after.items()}
        for after in (weights(run.model), as_ours(weights(peer.model)))
    )
    assert distance(peer_moved, moved) < 1e-4
    assert all(float(change.norm()) > 1e-3 for name, change in moved.items() if not name.endswith("key.bias"))


@MODELS
def test_the_noise_has_the_deviation_that_the_mechanism_says(folder, model):
    left = []
    for z0 in (0.0, 1.7):
        run = run_of(folder, model, z0=z0)
        peer = OpacusPeer(run)
        with seeded(3):
            peer.step(np.arange(len(run.train_data)))
        left.append(torch.cat([g.flatten() for g in gradients(peer.model).values()]).double())
    assert run.mechanism is not None
    noise = (left[1] - left[0]) * run.config.batch_size / run.mechanism.noise_std(0)
    assert len(noise) == run.layout.size
    assert float(noise.std()) == pytest.approx(1, abs=0.02)
    assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-3


@MODELS
def test_dropout_takes_the_same_units_from_all_words_of_an_utterance(folder, model):
    run = run_of(folder, model, dropout=0.5)
    longest = max(range(len(run.train_data)), key=lambda k: len(run.train_data.utterances[k].tokens))
    with seeded(0):
        _, tokens = OpacusPeer(run).model.encoder(run.train_data.batch([longest]))
    dropped = tokens[0] == 0  # (T, D)
    assert len(dropped) == LONGEST
    assert (dropped == dropped[0]).all()
    assert 0.2 < dropped[0].float().mean() < 0.8


def test_without_opacus_one_sentence_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("edp_lab.reproduce.table2.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install opacus"):
        task(methods=("sgd", "opacus"))
