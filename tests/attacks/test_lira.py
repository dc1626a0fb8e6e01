"""LiRA on numbers whose likelihood ratio is known, on a model that knows nothing, and on one that knows by heart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from edp_lab.attacks.membership.attacks import aligned, lira_scores
from edp_lab.attacks.membership.shadow_models import ShadowSignals, half_samples, train_shadow
from edp_lab.attacks.membership.signals import Floats, Signals, signals
from edp_lab.attacks.statistics import auc, auc_interval, tpr_at_fpr
from edp_lab.corpora import load_corpus
from edp_lab.corpora.encoding import Labels
from edp_lab.errors import UsageError
from edp_lab.models import build_model
from edp_lab.training import TrainConfig
from edp_lab.training.config import SIZES

TINY = {"hidden": 16, "layers": 1, "word": 16, "filters": 8}
IN, OUT = (3.0, 1.0), (1.0, -1.0)  # mean intent and tags logit with and without the utterance
SPREAD_IN, SPREAD_OUT = (0.5, 1.0), (1.0, 2.0)


def of(logits: Floats) -> Signals:
    return Signals(-logits.sum(-1), logits[..., 0], logits[..., 1] if logits.shape[-1] > 1 else None)


def synthetic(models: int, utterances: int, seed: int = 0) -> tuple[Signals, ShadowSignals]:
    """Shadow models with logits of those means, the difficulty of each utterance added; a target to score them by.

    Of the target, the first half of the utterances are members.
    """
    draw = np.random.default_rng(seed)
    inside = draw.random((models, utterances)).argsort(0) < models // 2
    difficulty = 5 * draw.standard_normal((utterances, 2))

    def logits(member: np.ndarray) -> Floats:
        mean, spread = np.where(member[..., None], IN, OUT), np.where(member[..., None], SPREAD_IN, SPREAD_OUT)
        return difficulty + mean + spread * draw.standard_normal((*member.shape, 2))

    return of(logits(np.arange(utterances) < utterances // 2)), ShadowSignals(of(logits(inside)), inside)


def test_scores_are_the_log_likelihood_ratio_by_hand() -> None:
    inside = np.array([[1, 0], [1, 0], [0, 1], [0, 1], [0, 1], [1, 0]], dtype=bool)
    models = np.random.default_rng(0).normal(size=(6, 2, 2))
    x, shadows = np.array([[0.3, -1.0], [2.0, 0.5]]), ShadowSignals(of(models), inside)
    spread = {}
    for side in (True, False):
        own = [models[inside[:, i] == side, i].var(0, ddof=1) for i in range(2)]
        spread[side] = {False: own, True: [np.mean(own, axis=0)] * 2}
    for fixed in (True, False):
        for i in range(2):
            part = [
                norm.logpdf(x[i], models[inside[:, i] == side, i].mean(0), np.sqrt(spread[side][fixed][i])).sum()
                for side in (True, False)
            ]
            assert lira_scores(of(x), shadows, True, fixed)[i] == pytest.approx(part[0] - part[1])
            z = (x[i] - models[~inside[:, i], i].mean(0)) / np.sqrt(spread[False][fixed][i])
            assert lira_scores(of(x), shadows, False, fixed)[i] == pytest.approx(z.sum() / np.sqrt(2))


@pytest.mark.parametrize("fixed", [True, False])
def test_with_many_models_the_score_is_the_closed_form_likelihood_ratio(fixed: bool) -> None:
    inside = np.arange(20_000)[:, None] % 2 == 0
    draw = np.random.default_rng(1)
    mean, spread = np.where(inside, [IN], [OUT]), np.where(inside, [SPREAD_IN], [SPREAD_OUT])
    shadows = ShadowSignals(of((mean + spread * draw.standard_normal((20_000, 2)))[:, None]), inside)
    for x in ([0.0, 0.0], [2.5, -1.0], [4.0, 3.0]):
        exact = norm.logpdf(x, IN, SPREAD_IN).sum() - norm.logpdf(x, OUT, SPREAD_OUT).sum()
        assert lira_scores(of(np.array([x])), shadows, True, fixed)[0] == pytest.approx(exact, rel=0.05, abs=0.1)


def test_difficulty_of_utterances_cancels_where_it_defeats_the_loss() -> None:
    target, shadows = synthetic(models=16, utterances=4000)
    areas = {}
    for name, found in (
        ("loss", -target.loss),
        ("online", lira_scores(target, shadows)),
        ("offline", lira_scores(target, shadows, online=False)),
    ):
        areas[name] = auc(found[:2000], found[2000:])
    draw = np.random.default_rng(2)  # without difficulty, and with means and spreads known
    x = np.concatenate([draw.normal(IN, SPREAD_IN, (2000, 2)), draw.normal(OUT, SPREAD_OUT, (2000, 2))])
    exact = (norm.logpdf(x, IN, SPREAD_IN) - norm.logpdf(x, OUT, SPREAD_OUT)).sum(1)
    assert areas["loss"] < 0.7 < 0.9 < areas["offline"] < areas["online"]
    assert areas["online"] == pytest.approx(auc(exact[:2000], exact[2000:]), abs=0.02)


def test_a_target_that_is_surer_of_everything_is_attacked_as_well_once_it_is_aligned() -> None:
    target, shadows = synthetic(models=16, utterances=4000)

    def area(target: Signals) -> float:
        found = lira_scores(target, shadows)
        return auc(found[:2000], found[2000:])

    surer = of(target.logits + np.array([4.0, 7.0]))
    assert area(surer) < 0.7 < 0.9 < area(target)
    assert area(aligned(surer, shadows)) == pytest.approx(area(target), abs=0.01)
    np.testing.assert_allclose(aligned(surer, shadows).logits, aligned(target, shadows).logits)
    untagged = ShadowSignals(of(shadows.signals.logits[..., :1]), shadows.inside)
    assert aligned(of(surer.logits[:, :1]), untagged).logits.shape == (4000, 1)


def test_offline_score_is_standard_normal_for_non_members_and_rises_with_the_logits_only() -> None:
    target, shadows = synthetic(models=200, utterances=4000)
    found = lira_scores(target, shadows, online=False)
    assert found[2000:].mean() == pytest.approx(0, abs=0.06)
    assert found[2000:].std() == pytest.approx(1, abs=0.06)
    assert (lira_scores(of(target.logits + 100), shadows, online=False) > found).all()
    scrambled = shadows.signals.logits.copy()
    scrambled[shadows.inside] = 1e3
    np.testing.assert_allclose(lira_scores(target, ShadowSignals(of(scrambled), shadows.inside), online=False), found)


def test_few_models_share_one_variance_and_many_have_their_own() -> None:
    for models, fixed in ((16, True), (64, False)):
        target, shadows = synthetic(models, utterances=50)
        np.testing.assert_array_equal(lira_scores(target, shadows), lira_scores(target, shadows, fixed_variance=fixed))
        assert not np.allclose(lira_scores(target, shadows), lira_scores(target, shadows, fixed_variance=not fixed))


def test_models_that_agree_to_the_last_bit_give_finite_scores() -> None:
    inside = half_samples(load_corpus("smart-home").utterances[:5], 4, seed=0)
    shadows = ShadowSignals(of(np.full((4, 5, 2), 27.6)), inside)
    for online in (True, False):
        for fixed in (True, False):
            assert np.isfinite(lira_scores(of(np.zeros((5, 2))), shadows, online, fixed)).all()


def test_signals_that_do_not_fit_and_too_few_models_are_refused() -> None:
    target, shadows = synthetic(models=8, utterances=6)
    for other in (of(target.logits[:5]), of(target.logits[:, :1])):
        with pytest.raises(UsageError, match="the same utterances and heads"):
            lira_scores(other, shadows)
    for side in (True, False):
        inside = shadows.inside.copy()
        inside[1:, 2] = side
        with pytest.raises(UsageError, match="fewer than two shadow models"):
            lira_scores(target, ShadowSignals(shadows.signals, inside))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    """Settings under which a few hundred utterances are known by heart in a second."""
    monkeypatch.setitem(SIZES["small"], "clc", TINY)
    return TrainConfig("smart-home", method="sgd", size="small", epochs=15, batch_size=32, lr=0.05, dropout=0.0)


def shadowed(config: TrainConfig, pool: int, models: int, cache: Path) -> ShadowSignals:
    """As `shadow_signals`, in this process."""
    corpus = load_corpus("smart-home")
    utterances = corpus.utterances[:pool]
    inside = half_samples(utterances, models, seed=0)
    found = []
    for k, row in enumerate(inside):
        train = [u for u, used in zip(utterances, row, strict=True) if used]
        found.append(signals(train_shadow(config, corpus, train, 1000 + k, cache), utterances))
    return ShadowSignals(of(np.stack([one.logits for one in found])), inside)


def test_an_untrained_model_gives_nobody_away(tiny: TrainConfig, tmp_path: Path) -> None:
    """The 95 % interval of the AUC misses 0.5 in about 5 of 100 draws of the members, in 11 by bad luck."""
    corpus = load_corpus("smart-home")
    pool = corpus.utterances[:120]
    shadows = shadowed(replace(tiny, epochs=2), len(pool), 4, tmp_path)
    hits = {"loss": 0, "online": 0, "offline": 0}
    for seed in range(100):
        untrained = build_model(
            "clc", Labels.of(corpus), seed=seed, training=pool, private=False, size={**TINY, "dropout": 0.0}
        )
        target = signals(untrained, pool)
        members = np.random.default_rng(seed).permutation(len(pool)) < len(pool) // 2
        found = {
            "loss": -target.loss,
            "online": lira_scores(target, shadows),
            "offline": lira_scores(target, shadows, online=False),
        }
        for name, scores in found.items():
            low, high = auc_interval(scores[members], scores[~members])
            hits[name] += low <= 0.5 <= high
    assert min(hits.values()) >= 89, hits


def test_lira_beats_the_loss_threshold_at_low_fpr_on_an_overfitted_model(tiny: TrainConfig, tmp_path: Path) -> None:
    corpus = load_corpus("smart-home")
    pool = corpus.utterances[:300]
    shadows = shadowed(tiny, len(pool), 8, tmp_path)
    members = half_samples(pool, 4, seed=7)[0]
    train = [u for u, used in zip(pool, members, strict=True) if used]
    target = signals(train_shadow(tiny, corpus, train, 1, tmp_path), pool)

    def rate(found: Floats) -> float:
        at = tpr_at_fpr(found[members], found[~members], 0.02)
        assert at is not None
        return at.value

    online, floor = lira_scores(target, shadows), -target.loss
    assert rate(online) > rate(floor) + 0.15
    assert auc(online[members], online[~members]) > auc(floor[members], floor[~members])
