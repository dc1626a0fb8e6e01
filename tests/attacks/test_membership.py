"""Membership inference on whole runs: the target, the paper's attack, the command line."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from edp_lab.attacks.membership import attacks as membership
from edp_lab.attacks.membership.attacks import (
    CLASSIFIERS,
    GENERATED,
    attack_lira,
    attack_loss,
    attack_shadow,
    default_shadow,
    equal_sides,
    load_target,
    shadow_config,
    shadow_corpus,
    shadow_scores,
)
from edp_lab.attacks.membership.guards import LEAST_MEMBERS
from edp_lab.attacks.membership.shadow_models import ShadowSignals
from edp_lab.attacks.membership.signals import Signals
from edp_lab.attacks.statistics import auc_interval
from edp_lab.cli import app
from edp_lab.corpora import load_corpus, split
from edp_lab.corpora.smart_home import generate, write_jsonl
from edp_lab.errors import UsageError
from edp_lab.privacy import gdp_epsilon
from edp_lab.training import TrainConfig, train
from edp_lab.training.inference import run_ledger

TINY = {"size": "small", "batch_size": 32, "dropout": 0.0, "num_devices": 4}


def corpus_file(folder: Path, utterances: int, seed: int) -> str:
    path = folder / "own.jsonl"
    write_jsonl(generate(utterances, seed), path)
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def overfitted(folder: Path) -> Path:
    """Trained on few utterances until it knows them by heart."""
    corpus = corpus_file(folder, 400, 5)
    train(TrainConfig(corpus=corpus, method="sgd", epochs=25, **TINY), folder / "plain")
    return folder / "plain"


@pytest.fixture(scope="module")
def private(folder: Path, overfitted: Path) -> Path:
    corpus = str(folder / "own.jsonl")
    train(TrainConfig(corpus=corpus, method="edp-sgd", z0=8.0, epochs=2, delta=1e-4, **TINY), folder / "private")
    return folder / "private"


# ---- The target


def test_members_are_of_the_training_set_and_non_members_of_the_test_set(overfitted):
    target = load_target(overfitted)
    data = split(target.corpus, 0)
    assert set(target.members) <= set(data.train)
    assert set(target.non_members) <= set(data.test)
    assert len(target.members) == len(target.non_members) == min(len(data.train), len(data.test))


def test_a_guarantee_counts_for_utterances_that_change_places(private, folder):
    """Replace-one costs 2C where a micro-batch is one utterance: twice what zero-out does."""
    target = load_target(private)
    ledger = run_ledger(private)
    ratio = ledger.mechanism.noise_multiplier(0)
    mu = 2**0.5 / ratio  # two epochs
    assert target.guarantee.epsilon == pytest.approx(gdp_epsilon(mu, 1e-4), rel=1e-6)
    alone = TrainConfig(corpus=target.config.corpus, method="edp-sgd", z0=8.0, epochs=1, micro_batch_size=1, **TINY)
    train(replace(alone, delta=1e-4), folder / "alone")
    swapped = load_target(folder / "alone").guarantee
    assert swapped.epsilon == pytest.approx(gdp_epsilon(2 / 8.0, 1e-4), rel=1e-6)


def test_under_poisson_sampling_changing_places_costs_more_than_going(folder, overfitted):
    config = TrainConfig(corpus=str(folder / "own.jsonl"), method="dp-sgd", z0=2.0, epochs=1, delta=1e-4, **TINY)
    record = train(config, folder / "sampled")
    assert load_target(folder / "sampled").guarantee.epsilon > 1.5 * record["final"]["epsilon"]


def test_copies_of_a_text_are_protected_together(folder):
    """All copies are on one side of the split, so who has k of them is a group of k."""
    corpus = generate(150, 9)
    write_jsonl(replace(corpus, utterances=corpus.utterances * 4), folder / "copies.jsonl")
    config = TrainConfig(corpus=str(folder / "copies.jsonl"), method="edp-sgd", z0=60.0, epochs=1, delta=1e-4, **TINY)
    train(config, folder / "copies")
    target = load_target(folder / "copies")
    assert target.copies >= 4
    assert target.guarantee.epsilon == pytest.approx(gdp_epsilon(target.copies / 60, 1e-4), rel=1e-6)
    attacked = attack_loss(folder / "copies")
    low, high = attacked.result.auc_interval
    members, others = target.sides(attacked.scores)
    narrow = auc_interval(members, others)
    assert high - low > 1.5 * (narrow[1] - narrow[0])


def test_the_model_of_another_seed_is_refused(overfitted, tmp_path):
    """It has the same labels and size, but other members."""
    shutil.copytree(overfitted, tmp_path / "mixed")
    shutil.rmtree(tmp_path / "mixed" / "model")
    corpus = load_target(overfitted).config.corpus
    train(TrainConfig(corpus=corpus, method="sgd", epochs=1, seed=1, **TINY), tmp_path / "seed1")
    shutil.copytree(tmp_path / "seed1" / "model", tmp_path / "mixed" / "model")
    with pytest.raises(UsageError, match="not the one of the run's record"):
        load_target(tmp_path / "mixed")


def test_a_split_that_leaks_makes_an_attack_worthless(overfitted):
    attacked = attack_loss(overfitted)
    for fault in ({"leaks": True}, {"duplicates": 3}):
        guards = {**attacked.result.guards, **fault}
        assert "worthless" in replace(attacked, result=replace(attacked.result, guards=guards)).verdict
    bound = {"auc": 0.51}
    assert "more than epsilon allows" in replace(attacked, result=replace(attacked.result, bound=bound)).verdict


def test_plain_training_promises_nothing(overfitted):
    assert load_target(overfitted).guarantee is None


def test_bad_targets_are_refused_in_a_sentence(overfitted, private, folder, tmp_path):
    with pytest.raises(UsageError, match="holds no run"):
        load_target(tmp_path)
    shutil.copytree(overfitted, tmp_path / "swapped")
    shutil.rmtree(tmp_path / "swapped" / "model")
    train(TrainConfig(corpus="smart-home-health", method="sgd", epochs=1, **TINY), tmp_path / "other")
    shutil.copytree(tmp_path / "other" / "model", tmp_path / "swapped" / "model")
    with pytest.raises(UsageError, match="not the one of the run's record"):
        load_target(tmp_path / "swapped")
    with pytest.raises(UsageError, match=f"it takes {LEAST_MEMBERS}"):
        equal_sides(split(generate(100, 1), 0), 0)
    shutil.copytree(overfitted, tmp_path / "bare")
    bare = json.loads((tmp_path / "bare" / "record.json").read_text())
    del bare["status"]
    (tmp_path / "bare" / "record.json").write_text(json.dumps(bare))
    with pytest.raises(UsageError, match="is damaged"):
        load_target(tmp_path / "bare")
    shutil.copytree(overfitted, tmp_path / "lost")
    record = json.loads((tmp_path / "lost" / "record.json").read_text())
    record["config"]["corpus"] = str(tmp_path / "gone.jsonl")
    (tmp_path / "lost" / "record.json").write_text(json.dumps(record))
    with pytest.raises(UsageError, match=r"gone\.jsonl"):
        load_target(tmp_path / "lost")
    record["config"]["corpus"] = corpus_file(tmp_path, 400, 6)
    (tmp_path / "lost" / "record.json").write_text(json.dumps(record))
    with pytest.raises(UsageError, match="has changed since"):
        load_target(tmp_path / "lost")


# ---- The paper's attack


def test_the_attack_finds_members_of_an_overfitted_model(overfitted, tmp_path):
    attacked = attack_shadow(overfitted, (GENERATED,), cache=tmp_path)
    low, _ = attacked.result.auc_interval
    assert low > 0.5
    assert "membership leaks" in attacked.verdict
    assert attacked.result.bound is None


def test_noise_hides_members_and_the_bound_is_shown(private, tmp_path):
    attacked = attack_shadow(private, (GENERATED,), cache=tmp_path)
    low, high = attacked.result.auc_interval
    assert low < 0.5 < high
    bound = attacked.result.bound
    assert 0.5 < bound["auc"] < 1
    assert attacked.result.auc < bound["auc"]
    assert "were the seed secret" in attacked.bound_said


@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_every_classifier_beats_guessing(overfitted, classifier, tmp_path_factory):
    cache = tmp_path_factory.getbasetemp() / "shadow-cache"
    target = load_target(overfitted)
    members, others = target.sides(shadow_scores(target, [GENERATED], classifier, cache=cache))
    assert members.mean() > others.mean()


def test_the_shadow_is_another_corpus_with_the_targets_settings(monkeypatch):
    assert default_shadow("smart-home") == default_shadow("smart-home-video") == GENERATED
    monkeypatch.setattr("edp_lab.attacks.membership.attacks.find", lambda name: None)
    assert default_shadow("atis") == GENERATED
    monkeypatch.setattr("edp_lab.attacks.membership.attacks.find", lambda name: Path())
    assert default_shadow("atis") == "snips"
    assert default_shadow("snips") == "atis"
    assert default_shadow("snips-original") == "atis"
    health = SimpleNamespace(config=TrainConfig(corpus="smart-home-health"), corpus=load_corpus("smart-home-health"))
    own = shadow_corpus(GENERATED, health)
    assert set(own.intents) == set(load_corpus("smart-home-health").intents)
    first = [{u.tokens for u in one.utterances[:200]} for one in (own, load_corpus("smart-home-health"))]
    assert first[0] != first[1]
    public = TrainConfig(corpus="atis", as_printed=True, alpha="public:smart-home", z0=0.5, private_seed=True)
    settings = shadow_config(public, own)
    assert (settings.z0, settings.as_printed, settings.alpha_source, settings.private_seed) == (
        0.5,
        True,
        "private",
        False,
    )


def test_a_plain_shadow_is_the_same_for_every_method(overfitted, private, monkeypatch, tmp_path):
    """SGD by the target's other settings: one shadow model serves all targets of a table."""
    trained: list[TrainConfig] = []

    def train_shadow(config: TrainConfig, *rest: Any) -> Any:
        trained.append(config)
        return load_target(overfitted).model

    monkeypatch.setattr("edp_lab.attacks.membership.attacks.train_shadow", train_shadow)
    for run in (overfitted, private):
        attack_shadow(run, (GENERATED,), cache=tmp_path, plain=True)
    assert [config.method for config in trained] == ["sgd"] * 2
    kept = {"corpus": load_target(overfitted).corpus.name, "epochs": 9, "lr": 0.1, "pretrained": "x"}
    noised = TrainConfig(method="dp-sgd", clip_norm=0.5, z0=0.7, decay="linear", tau=0.3, delta=1e-6, **kept)
    assert shadow_config(noised, load_target(overfitted).corpus, plain=True) == TrainConfig(method="sgd", **kept)


def test_shadow_attacks_refuse_what_makes_no_sense(overfitted, tmp_path):
    target = load_target(overfitted)
    copy = tmp_path / "copy.jsonl"
    shutil.copy(target.config.corpus, copy)
    for own in (target.config.corpus, str(copy)):
        with pytest.raises(UsageError, match="give the attack the answers"):
            shadow_scores(target, [own])
    with pytest.raises(UsageError, match="unknown attack model 'svm'"):
        shadow_scores(target, [GENERATED], "svm")
    with pytest.raises(UsageError, match="nowhere"):
        shadow_scores(target, ["nowhere"])


# ---- All attacks side by side


def test_lira_finds_members_and_says_what_it_does(overfitted, tmp_path):
    told: list[str] = []
    attacked = attack_lira(overfitted, shadows=8, epochs=8, cache=tmp_path, told=told.append)
    assert attacked.result.auc_interval[0] > 0.5
    assert told[-1] == "shadow model 8 of 8"
    assert attacked.to_json()["shadow_epochs"] == 8
    assert attack_loss(overfitted).result.auc_interval[0] > 0.5


def run_command(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["attack", *map(str, arguments)])
    if isinstance(done.exception, UsageError):
        return 2, done.stdout, str(done.exception)
    return done.exit_code, done.stdout, done.stderr


def test_json_of_an_attack_has_what_a_script_needs(private, tmp_path):
    out = tmp_path / "loss.json"
    status, printed, _ = run_command("loss", "--run", private, "--json", "--out", out)
    assert status == 0
    told = json.loads(printed)
    assert json.loads(out.read_text()) == told
    assert {"auc", "auc_interval", "tpr_at_fpr", "bound", "guards", "members", "non_members"} <= set(told)
    assert set(told["tpr_at_fpr"]["0.01"]) >= {"value", "interval"}
    assert told["tpr_at_fpr"]["0.001"]["value"] is None  # 180 non-members cannot resolve it
    assert told["bound"]["epsilon"] > 0


def test_people_read_what_was_found_and_what_could_not_be(overfitted):
    status, printed, _ = run_command("loss", "--run", overfitted)
    assert status == 0
    assert "AUC" in printed
    assert "TPR at 0.1 %   no number" in printed
    assert "guarantee: none (plain training)" in printed
    assert "verdict: membership leaks" in printed


def test_noise_lowers_the_auc_by_a_measured_amount(overfitted, private, tmp_path):
    status, printed, _ = run_command("loss", "--run", private, "--against", overfitted, "--json")
    assert status == 0
    changed = json.loads(printed)["change"]
    assert changed["relative"] < changed["interval"][1] < 0
    assert "AUC against" in run_command("loss", "--run", private, "--against", overfitted)[1]
    train(TrainConfig(corpus="smart-home-health", method="sgd", epochs=1, **TINY), tmp_path / "other")
    status, _, error = run_command("loss", "--run", private, "--against", tmp_path / "other")
    assert status == 2
    assert "other members" in error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["loss", "--fpr", "0"], "--fpr is '0'"),
        (["loss", "--fpr", "a,b"], "--fpr is 'a,b'"),
        (["lira", "--shadows", "3"], "3 shadow models"),
        (["shadow", "--classifier", "svm"], "unknown attack model"),
        (["loss", "--out", "/nowhere/at/all.json"], "cannot be written"),
    ],
)
def test_bad_options_end_in_one_sentence(overfitted, arguments, said):
    status, printed, error = run_command(*arguments[:1], "--run", overfitted, *arguments[1:])
    assert status == 2
    assert said in error
    assert printed == ""


@pytest.mark.parametrize(("size", "rate"), [("small", 0.011), ("medium", None), (None, 0.011)])
def test_lira_aligns_the_target_with_shadows_that_keep_its_learning_rate_if_they_have_its_size(
    overfitted, tmp_path, monkeypatch, size, rate
):
    """The rate of one size lets another one diverge; shadows of other settings are as sure only once aligned."""
    asked = []

    def shadow_signals(config, corpus, pool, shadows, *rest):
        asked.append(config)
        draw = np.random.default_rng(0)
        inside = np.arange(shadows)[:, None] % 2 == draw.integers(2, size=len(pool))
        logits = 400 + draw.normal(size=(shadows, len(pool))) + 3 * inside
        return ShadowSignals(Signals(-logits, logits, logits), inside)

    target = replace(load_target(overfitted), config=replace(load_target(overfitted).config, lr=0.011))
    monkeypatch.setattr(membership, "load_target", lambda run: target)
    monkeypatch.setattr(membership, "shadow_signals", shadow_signals)
    found = attack_lira(overfitted, 8, size=size, cache=tmp_path)
    assert asked[0].lr == rate
    assert np.abs(found.scores).max() < 300  # unaligned, every logit lies hundreds of deviations below the shadows'
