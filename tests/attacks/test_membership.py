"""Membership inference on whole runs: the target, the paper's attack, LiRA and the command line. LiRA is also tested on
numbers with a known likelihood ratio, on an untrained model and on an overfitted model."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from edp_lab.attacks import lira as lira_module
from edp_lab.attacks.lira import ShadowLogits, aligned, attack_lira, lira_scores
from edp_lab.attacks.loss import Floats, attack_loss, equal_sides, load_target
from edp_lab.attacks.shadow import GENERATED, attack_shadow, default_shadow, shadow_config, shadow_corpus
from edp_lab.attacks.statistics import LEAST_MEMBERS, auc, auc_interval
from edp_lab.corpora.catalog import load_corpus
from edp_lab.corpora.corpus import split
from edp_lab.corpora.smart_home import generate, write_jsonl
from edp_lab.errors import UsageError
from edp_lab.privacy import gdp_epsilon
from edp_lab.training.config import TrainConfig
from edp_lab.training.run_files import read_record, run_ledger, write_record
from edp_lab.training.session import train

TINY = {"size": "small", "batch_size": 32, "dropout": 0.0, "num_devices": 4, "delta": 1e-4}
Trains = Callable[..., Path]


@pytest.fixture(scope="module")
def trains(tmp_path_factory: pytest.TempPathFactory) -> Trains:
    """Function that trains a run of this name on 400 utterances or another corpus, and returns its folder."""
    folder = tmp_path_factory.mktemp("runs")
    write_jsonl(generate(400, 5), folder / "own.jsonl")

    def run(name: str, corpus: str | Path = folder / "own.jsonl", **settings: Any) -> Path:
        train(TrainConfig(corpus=str(corpus), **{"epochs": 1, **TINY, **settings}), folder / name)
        return folder / name

    return run


@pytest.fixture(scope="module")
def overfitted(trains: Trains) -> Path:
    """A model that was trained on few utterances until it overfitted."""
    return trains("plain", method="sgd", epochs=25)


@pytest.fixture(scope="module")
def private(trains: Trains) -> Path:
    return trains("private", method="edp-sgd", z0=8.0, epochs=2)


def test_sides_are_those_of_the_split_and_one_that_leaks_makes_an_attack_worthless(overfitted):
    target = load_target(overfitted)
    data = split(target.corpus, 0)
    assert set(target.members) <= set(data.train)
    assert set(target.non_members) <= set(data.test)
    assert len(target.members) == len(target.non_members) == min(len(data.train), len(data.test))
    attacked = attack_loss(overfitted)
    for fault in ({"leaks": True}, {"duplicates": 3}):
        vars(attacked.target)["guards"] = target.guards._replace(**fault)
        assert "invalid" in attacked.verdict
    vars(attacked.target)["guards"] = target.guards
    bound = {"auc": 0.51}
    assert "more than epsilon allows" in replace(attacked, result=replace(attacked.result, bound=bound)).verdict


def test_a_guarantee_counts_for_utterances_that_change_places(private, trains):
    """If each micro-batch is one utterance, replace-one has sensitivity 2C, twice that of zero-out."""
    mu = 2**0.5 / run_ledger(private).mechanism.noise_multiplier(0)  # two epochs
    assert load_target(private).guarantee.conditional_epsilon == pytest.approx(gdp_epsilon(mu, 1e-4), rel=1e-6)
    alone = load_target(trains("alone", method="edp-sgd", z0=8.0, micro_batch_size=1)).guarantee
    assert alone.conditional_epsilon == pytest.approx(gdp_epsilon(2 / 8.0, 1e-4), rel=1e-6)
    sampled = trains("sampled", method="dp-sgd", z0=2.0)  # replacing costs more than removing
    assert (
        load_target(sampled).guarantee.conditional_epsilon > 1.5 * read_record(sampled)["final"]["conditional_epsilon"]
    )


def test_copies_of_a_text_are_protected_together(trains, tmp_path):
    """All copies are on one side of the split, so k copies of a text are protected as a group of k."""
    corpus = generate(150, 9)
    write_jsonl(replace(corpus, utterances=corpus.utterances * 4), tmp_path / "copies.jsonl")
    attacked = attack_loss(trains("copies", tmp_path / "copies.jsonl", method="edp-sgd", z0=60.0))
    target, (low, high) = attacked.target, attacked.result.auc_interval
    assert target.copies >= 4
    assert target.guarantee.conditional_epsilon == pytest.approx(gdp_epsilon(target.copies / 60, 1e-4), rel=1e-6)
    narrow = auc_interval(*target.sides(attacked.scores))
    assert high - low > 1.5 * (narrow[1] - narrow[0])


def test_bad_targets_are_refused_in_a_sentence(overfitted, trains, tmp_path):
    with pytest.raises(UsageError, match=f"which needs {LEAST_MEMBERS}"):
        equal_sides(split(generate(100, 1), 0), 0)
    own = load_target(overfitted).config.corpus
    labels = trains("labels", "smart-home-health", method="sgd")
    members = trains("members", own, method="sgd", seed=1)  # with the same labels and the same size
    for run in (labels, members):
        shutil.copy(overfitted / "record.json", run / "record.json")
        with pytest.raises(UsageError, match="does not match the run's record"):
            load_target(run)
    write_jsonl(generate(400, 6), tmp_path / "changed.jsonl")
    record = read_record(overfitted)
    config = record["config"]
    for spoilt, message in (
        ({**record, "status": "running"}, "is running: finish it with edp-lab train --resume"),
        ({**record, "config": {**config, "corpus": str(tmp_path / "gone.jsonl")}}, r"gone\.jsonl"),
        ({**record, "config": {**config, "corpus": str(tmp_path / "changed.jsonl")}}, "has changed since"),
    ):
        write_record(members, spoilt)
        with pytest.raises(UsageError, match=message):
            load_target(members)


def test_the_paper_s_attack_and_lira_find_members_of_an_overfitted_model(overfitted, tmp_path):
    attacked = attack_shadow(overfitted, GENERATED, cache=tmp_path)
    low, _ = attacked.result.auc_interval
    assert low > 0.5
    assert "membership leaks" in attacked.verdict
    assert attacked.result.bound is None
    messages: list[str] = []
    attacked = attack_lira(overfitted, shadows=4, epochs=8, cache=tmp_path, progress=messages.append)
    assert attacked.result.auc_interval[0] > 0.5
    assert messages[-1] == "shadow model 4 of 4"
    assert attacked.to_json()["shadow_epochs"] == 8
    assert attack_loss(overfitted).result.auc_interval[0] > 0.5


def test_noise_hides_members_and_the_bound_is_shown(private, tmp_path):
    attacked = attack_shadow(private, GENERATED, cache=tmp_path)
    low, high = attacked.result.auc_interval
    assert low < 0.5 < high
    bound = attacked.result.bound
    assert 0.5 < bound["auc"] < 1
    assert attacked.result.auc < bound["auc"]
    assert "with a secret seed" in attacked.bound_said


def test_the_shadow_is_another_corpus_with_the_targets_settings(monkeypatch):
    assert default_shadow("smart-home") == default_shadow("smart-home-video") == GENERATED
    monkeypatch.setattr("edp_lab.attacks.shadow.find", lambda name: None)
    assert default_shadow("atis") == GENERATED
    monkeypatch.setattr("edp_lab.attacks.shadow.find", lambda name: Path())
    assert default_shadow("atis") == "snips"
    assert default_shadow("snips") == "atis"
    health = SimpleNamespace(config=TrainConfig(corpus="smart-home-health"), corpus=load_corpus("smart-home-health"))
    own = shadow_corpus(GENERATED, health)
    assert set(own.intents) == set(load_corpus("smart-home-health").intents)
    first = [{u.tokens for u in one.utterances[:200]} for one in (own, load_corpus("smart-home-health"))]
    assert first[0] != first[1]
    found = shadow_config(TrainConfig(corpus="atis", as_printed=True, z0=0.5, private_seed=True), own)
    assert (found.z0, found.as_printed, found.alpha_source, found.private_seed) == (0.5, True, "private", False)


def test_a_plain_shadow_is_the_same_for_every_method(overfitted, private, monkeypatch, tmp_path):
    """Shadow models use SGD and the target's other settings, so one shadow model serves all targets of a table."""
    trained: list[TrainConfig] = []

    def shadow_model(config: TrainConfig, *rest: Any) -> Any:
        trained.append(config)
        return load_target(overfitted).model

    monkeypatch.setattr("edp_lab.attacks.shadow.shadow_model", shadow_model)
    for run in (overfitted, private):
        attack_shadow(run, GENERATED, cache=tmp_path, plain=True)
    assert [config.method for config in trained] == ["sgd"] * 2
    kept = {"corpus": load_target(overfitted).corpus.name, "epochs": 9, "lr": 0.1, "pretrained": "x"}
    noised = TrainConfig(method="dp-sgd", clip_norm=0.5, z0=0.7, decay="linear", tau=0.3, delta=1e-6, **kept)
    assert shadow_config(noised, load_target(overfitted).corpus, plain=True) == TrainConfig(method="sgd", **kept)


def test_shadow_attacks_refuse_what_makes_no_sense(overfitted, tmp_path):
    own = load_target(overfitted).config.corpus
    shutil.copy(own, tmp_path / "copy.jsonl")
    for shadow, said in (
        (own, "would know the answers"),
        (str(tmp_path / "copy.jsonl"), "would know the answers"),
        ("nowhere", "nowhere"),
    ):
        with pytest.raises(UsageError, match=said):
            attack_shadow(overfitted, shadow)


def test_the_command_reports_the_attack(overfitted, private, cli):
    status, printed, _ = cli("attack", "loss", "--run", str(overfitted))
    parts = ("AUC", "TPR at 0.1 % no number", "guarantee none (plain training)", "verdict membership leaks")
    assert (status, [part for part in parts if part not in " ".join(printed.split())]) == (0, [])
    report = json.loads(cli("attack", "loss", "--run", str(private), "--json")[1])
    assert report["bound"]["epsilon"] > 0


@pytest.mark.parametrize(("size", "rate"), [("small", 0.011), ("medium", None), (None, 0.011)])
def test_lira_aligns_the_target_with_shadows_that_keep_its_learning_rate_if_they_have_its_size(
    overfitted, tmp_path, monkeypatch, size, rate
):
    """A rate for one size makes another size diverge; other settings are equally confident only after alignment."""
    asked = []

    def drawn_logits(config, corpus, pool, shadows, *rest):
        asked.append(config)
        draw = np.random.default_rng(0)
        inside = np.arange(shadows)[:, None] % 2 == draw.integers(2, size=len(pool))
        logits = 400 + draw.normal(size=(shadows, len(pool))) + 3 * inside
        return ShadowLogits(np.stack([logits, logits], axis=-1), inside)

    target = replace(load_target(overfitted), config=replace(load_target(overfitted).config, lr=0.011))
    monkeypatch.setattr(lira_module, "load_target", lambda run: target)
    monkeypatch.setattr(lira_module, "shadow_logits", drawn_logits)
    found = attack_lira(overfitted, 8, size=size, cache=tmp_path)
    assert asked[0].lr == rate
    assert np.abs(found.scores).max() < 300  # without alignment, logits are hundreds of standard deviations below


IN, OUT = (3.0, 1.0), (1.0, -1.0)  # mean intent and tags logit with and without the utterance
SPREAD_IN, SPREAD_OUT = (0.5, 1.0), (1.0, 2.0)


def synthetic(models: int, utterances: int, seed: int = 0) -> tuple[Floats, ShadowLogits]:
    """Shadow models with these mean logits plus each utterance's difficulty, and a target to score.

    The first half of the utterances are members of the target.
    """
    draw = np.random.default_rng(seed)
    inside = draw.random((models, utterances)).argsort(0) < models // 2
    difficulty = 5 * draw.standard_normal((utterances, 2))

    def logits(member: np.ndarray) -> Floats:
        mean, spread = np.where(member[..., None], IN, OUT), np.where(member[..., None], SPREAD_IN, SPREAD_OUT)
        return difficulty + mean + spread * draw.standard_normal((*member.shape, 2))

    return logits(np.arange(utterances) < utterances // 2), ShadowLogits(logits(inside), inside)


@pytest.mark.parametrize("fixed", [True, False])
def test_scores_are_the_log_likelihood_ratio_by_hand(fixed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lira_module, "MANY", 7 if fixed else 6)
    inside = np.array([[1, 0], [1, 0], [0, 1], [0, 1], [0, 1], [1, 0]], dtype=bool)
    models = np.random.default_rng(0).normal(size=(6, 2, 2))
    x, shadows = np.array([[0.3, -1.0], [2.0, 0.5]]), ShadowLogits(models, inside)
    spread = {}
    for side in (True, False):
        own = [models[inside[:, i] == side, i].var(0, ddof=1) for i in range(2)]
        spread[side] = {False: own, True: [np.mean(own, axis=0)] * 2}
    for i in range(2):
        part = [
            norm.logpdf(x[i], models[inside[:, i] == side, i].mean(0), np.sqrt(spread[side][fixed][i])).sum()
            for side in (True, False)
        ]
        assert lira_scores(x, shadows)[i] == pytest.approx(part[0] - part[1])


def test_a_target_that_is_surer_of_everything_is_attacked_as_well_once_it_is_aligned() -> None:
    target, shadows = synthetic(models=16, utterances=4000)

    def area(target: Floats) -> float:
        found = lira_scores(target, shadows)
        return auc(found[:2000], found[2000:])

    surer = target + np.array([4.0, 7.0])
    assert area(surer) < 0.7 < 0.9 < area(target)
    assert area(aligned(surer, shadows)) == pytest.approx(area(target), abs=0.01)
    np.testing.assert_allclose(aligned(surer, shadows), aligned(target, shadows))


@pytest.mark.parametrize("models", [4, 64])
def test_models_that_agree_to_the_last_bit_give_finite_scores(models: int) -> None:
    shadows = synthetic(models, 6)[1]._replace(logits=np.full((models, 6, 2), 27.6))
    assert np.isfinite(lira_scores(np.zeros((6, 2)), shadows)).all()


def test_signals_that_do_not_fit_and_too_few_models_are_refused() -> None:
    target, shadows = synthetic(models=8, utterances=6)
    for other in (target[:5], target[:, :1]):
        with pytest.raises(UsageError, match="the same utterances and heads"):
            lira_scores(aligned(other, shadows), shadows)
    for side in (True, False):
        inside = shadows.inside.copy()
        inside[1:, 2] = side
        with pytest.raises(UsageError, match="fewer than two shadow models"):
            lira_scores(target, shadows._replace(inside=inside))
