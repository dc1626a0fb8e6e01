"""Statistics of attacks: agreement with peers, coverage of intervals, valid bounds, detection of non-random splits."""

import json
import math

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score, roc_curve

from edp_lab.attacks.loss import check_split
from edp_lab.attacks.statistics import (
    LEAST_MEMBERS,
    advantage,
    auc,
    auc_interval,
    clopper_pearson,
    dp_bound,
    gaussian_bound,
    roc,
    summarise,
    tpr_at_fpr,
)
from edp_lab.corpora.corpus import Corpus, Utterance, split
from edp_lab.corpora.smart_home import generate
from edp_lab.errors import UsageError

# Few distinct values, to produce many ties.
SCORES = st.lists(st.integers(0, 12).map(float), min_size=1, max_size=40)
ANY_SCORES = st.lists(st.sampled_from([-math.inf, -1.5, 0.0, 1e-300, 2.0, math.inf]), min_size=1, max_size=12)
EPSILONS = st.one_of(st.floats(1e-300, 50), st.sampled_from([0.0, 700.0, 800.0, 1e24, math.inf]))
DELTAS = st.sampled_from([0.0, 1e-9, 1e-5, 0.1, 1.0])
RATES = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(1e-300, 1))


def labelled(members, non_members):
    return [1] * len(members) + [0] * len(non_members), [*members, *non_members]


@given(SCORES, SCORES)
def test_roc_auc_and_advantage_are_those_of_scikit_learn_and_scipy(members, non_members):
    curve = roc(members, non_members)
    fpr, tpr, _ = roc_curve(*labelled(members, non_members), drop_intermediate=False)
    np.testing.assert_allclose(curve.fpr, fpr)
    np.testing.assert_allclose(curve.tpr, tpr)
    assert auc(members, non_members) == pytest.approx(roc_auc_score(*labelled(members, non_members)))
    best = stats.ks_2samp(members, non_members, alternative="less").statistic
    assert advantage(members, non_members) == pytest.approx(best)


@given(SCORES, SCORES)
def test_auc_interval_is_delongs_by_definition(members, non_members):
    """The reference is computed from all pairs (DeLong et al. 1988, equations 4 and 5)."""
    x, y = np.array(members)[:, None], np.array(non_members)[None]
    wins = (x > y) + (x == y) / 2
    assume(min(wins.shape) > 1)
    area, error = wins.mean(), math.sqrt(sum(side.var(ddof=1) / len(side) for side in (wins.mean(1), wins.mean(0))))
    assume(error > 1e-9)
    reach = 1.959964 * error / (area * (1 - area))
    expected = [1 / (1 + math.exp(-math.log(area / (1 - area)) - sign * reach)) for sign in (-1, 1)]
    assert auc_interval(members, non_members) == pytest.approx(expected, abs=1e-6)


@given(ANY_SCORES, ANY_SCORES, st.sampled_from([0.5, 0.95, 0.999]))
def test_auc_interval_has_a_width_and_stays_between_0_and_1(members, non_members, confidence):
    low, high = auc_interval(members, non_members, confidence)
    assert 0 <= low <= auc(members, non_members) <= high <= 1
    assert high - low > 0.01
    assert auc_interval(non_members, members, confidence) == pytest.approx((1 - high, 1 - low))


def test_auc_interval_without_variance_is_exact_for_disjoint_pairs():
    members, non_members = [1.0] * 60, [0.0] * 100
    assert auc_interval(members, non_members) == pytest.approx((0.025 ** (1 / 60), 1))
    assert auc_interval(non_members, members) == pytest.approx((0, 1 - 0.025 ** (1 / 60)))
    assert auc_interval([0.3] * 50, [0.3] * 70) == pytest.approx(clopper_pearson(25, 50))


@pytest.mark.parametrize("successes", [0, 1, 30, 59, 60])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
def test_clopper_pearson_is_scipys(successes, confidence):
    expected = stats.binomtest(successes, 60).proportion_ci(confidence, method="exact")
    assert clopper_pearson(successes, 60, confidence) == pytest.approx(tuple(expected))


@given(SCORES, SCORES, st.sampled_from([0.01, 0.05, 0.1, 0.29, 1 / 3, 0.5, 0.99]))
def test_tpr_at_fpr_is_the_best_of_all_thresholds(members, non_members, fpr):
    curve = roc(members, non_members)
    rate = tpr_at_fpr(members, non_members, fpr)
    if fpr * len(non_members) < 1 - 1e-9:
        assert rate is None
    else:
        assert rate.value == curve.tpr[curve.fpr <= fpr].max()
        assert rate.interval == clopper_pearson(round(rate.value * len(members)), len(members))


@pytest.mark.parametrize("allowed", [7, 29])
def test_no_allowed_non_member_is_lost_to_rounding(allowed):
    non_members = np.arange(100.0)  # in floats, 0.29 * 100 < 29 and 0.07 * 100 > 7
    assert tpr_at_fpr([100 - allowed - 0.5], non_members, allowed / 100).value == 1
    assert tpr_at_fpr([100 - allowed - 1.5], non_members, allowed / 100).value == 0


def exact_dp(epsilon, delta, fpr):
    """The bounds, computed with 400 digits: (auc, advantage, tpr)."""
    with mpmath.workdps(400):
        shrink, d, x = mpmath.exp(-mpmath.mpf(epsilon)), mpmath.mpf(delta), mpmath.mpf(fpr)
        area = 1 - (1 - d) ** 2 * shrink / (1 + shrink)
        gap = (1 - shrink + 2 * d * shrink) / (1 + shrink)
        steep = x / shrink + d if shrink else mpmath.inf
        return area, min(1, gap), min(1, steep, 1 - shrink * (1 - d - x))


@pytest.mark.filterwarnings("error")  # for example about an overflow
@given(EPSILONS, DELTAS, RATES)
def test_dp_bound_is_never_below_the_truth_and_close_to_it(epsilon, delta, fpr):
    bound = dp_bound(epsilon, delta)
    found = (bound.auc, bound.advantage, float(bound.tpr(fpr)))
    for ours, exact in zip(found, exact_dp(epsilon, delta, fpr), strict=True):
        assert exact <= ours <= min(1.0, exact * (1 + 1e-10))


def scores_of_a_leak(epsilon, delta, n=40_000):
    """With probability delta, scores reveal membership (-1 and 2); otherwise they are randomised response (0 and 1)."""
    rng, truth = np.random.default_rng(5), math.exp(epsilon) / (1 + math.exp(epsilon))
    exposed, honest = rng.random((2, n)) < delta, rng.random((2, n)) < truth
    return np.where(exposed[0], 2, honest[0]), np.where(exposed[1], -1, ~honest[1])


@pytest.mark.parametrize(
    ("bound", "sides"),
    [(dp_bound(*leak), scores_of_a_leak(*leak)) for leak in ((1.0, 0.0), (2.0, 0.05), (0.0, 0.3))]
    + [(gaussian_bound(mu), np.random.default_rng(6).normal([[mu], [0.0]], 1, (2, 40_000))) for mu in (0.3, 1.0, 2.5)],
    ids=["pure", "both", "delta alone", "mu 0.3", "mu 1", "mu 2.5"],
)
def test_there_is_a_mechanism_that_reaches_the_bound(bound, sides):
    low, high = auc_interval(*sides, 0.999)
    assert low <= bound.auc <= high
    assert advantage(*sides) == pytest.approx(bound.advantage, abs=0.015)
    curve = roc(*sides)
    seen = slice(1, None) if len(curve.fpr) < 9 else curve.fpr >= 0.01  # the first of many thresholds prove little
    np.testing.assert_allclose(curve.tpr[seen], bound.tpr(curve.fpr)[seen], atol=0.02)


@given(st.floats(0, 60), st.floats(1e-300, 1, exclude_max=True))
def test_gaussian_bound_is_never_below_the_truth_and_close_to_it(mu, fpr):
    with mpmath.workdps(60):
        quantile = mpmath.mpf(float(stats.norm.ppf(fpr)))
        quantile += (mpmath.mpf(fpr) - mpmath.ncdf(quantile)) / mpmath.npdf(quantile)  # Newton doubles the digits
        exact = mpmath.ncdf(quantile + mu)
    assert exact <= float(gaussian_bound(mu).tpr(fpr)) <= exact * (1 + 1e-10)


def test_no_privacy_bounds_nothing():
    bound = gaussian_bound(math.inf)
    assert (bound.auc, bound.advantage, bound.tpr(0.0)) == (1, 1, 1)
    assert summarise("loss", [1.0], [0.0], math.inf, 1e-5).bound is None


def test_summary_as_json_has_what_is_promised():
    rng = np.random.default_rng(7)
    members, non_members = rng.normal(1, 1, 300), rng.normal(0, 1, 200)
    result = summarise("loss", members, non_members, 2.0, 1e-5)
    content = json.loads(json.dumps(result.to_json(), allow_nan=False))
    names = {"attack", "auc", "auc_interval", "tpr_at_fpr", "advantage", "bound", "members", "non_members"}
    assert set(content) == {*names, "confidence"}
    assert (content["attack"], content["members"], content["non_members"]) == ("loss", 300, 200)
    assert content["auc_interval"] == list(auc_interval(members, non_members))
    there = "but there are 200"
    rate, told, bound = tpr_at_fpr(members, non_members, 0.01), content["tpr_at_fpr"], dp_bound(2.0, 1e-5)
    assert (told["0.01"]["value"], told["0.01"]["interval"]) == (rate.value, list(rate.interval))
    assert told["0.01"]["guessing"]["value"] == 3 / 201
    assert told["0.001"] == {"value": None, "why": f"an FPR of 0.001 needs at least 1,000 non-members, {there}"}
    rates = {"0.01": bound.tpr(0.01), "0.001": bound.tpr(0.001)}
    limits = {"auc": bound.auc, "tpr_at_fpr": rates, "advantage": bound.advantage}
    assert content["bound"] == {"epsilon": 2.0, "delta": 1e-5, **limits}


@pytest.mark.parametrize(
    ("call", "culprit"),
    [
        (lambda: auc([], [1.0]), r"scores of the members have shape \(0,\)"),
        (lambda: roc([1.0], []), "scores of the non-members"),
        (lambda: auc_interval([[1.0]], [1.0]), r"\(1, 1\)"),
        (lambda: advantage([math.nan, 1.0, math.nan], [1.0]), "2 of the members' scores are NaN"),
        (lambda: tpr_at_fpr([1.0], [math.nan], 0.5), "non-members' scores are NaN"),
        (lambda: tpr_at_fpr([1.0], [0.0], 0.0), "false-positive rate is 0.0"),
        (lambda: auc_interval([1.0], [0.0], 1.0), "confidence is 1.0"),
        (lambda: tpr_at_fpr([1.0], [0.0], 0.5, 95), "confidence is 95"),
        (lambda: dp_bound(-1, 1e-5), "epsilon is -1"),
        (lambda: dp_bound(1, math.nan), "delta is nan"),
        (lambda: gaussian_bound(-0.1), "mu is -0.1"),
        (lambda: dp_bound(1, 0).tpr(1.1), "false-positive rate"),
        (lambda: gaussian_bound(1).tpr([0.5, -0.1]), "false-positive rate"),
        (lambda: summarise("loss", [1.0], [0.0], 2.0), "epsilon 2 has no delta"),
    ],
)
def test_bad_input_names_the_culprit(call, culprit):
    with pytest.raises(UsageError, match=culprit):
        call()


UTTERANCES = generate(600, seed=1).utterances
Sides = tuple[tuple[Utterance, ...], tuple[Utterance, ...]]


def of_texts(texts: list[str]) -> list[Utterance]:
    return [Utterance(tuple(text.split()), None, "i") for text in texts]


def sides(corpus: Corpus, seed: int) -> Sides:
    parts = split(corpus, seed)
    size = min(len(parts.train), len(parts.test))
    return parts.train[:size], parts.test[:size]


def test_random_splits_pass_and_the_interval_is_as_wide_as_chance():
    """Out-of-fold scores are dependent: with the unmodified DeLong interval, about 7 of these 120 splits would fail."""
    found = [check_split(*sides(generate(120, seed), seed)) for seed in range(120)]
    assert sum(guards.leaks for guards in found) <= 3
    widths = [guards.text_auc_interval[1] - guards.text_auc_interval[0] for guards in found]
    assert np.mean(widths) / (2 * 2.576) == pytest.approx(np.std([guards.text_auc for guards in found]), rel=0.2)
    assert abs(np.mean([guards.text_auc for guards in found]) - 0.5) < 0.03


def test_fine_split_is_called_fine_whatever_its_order():
    members, non_members = UTTERANCES[:300], UTTERANCES[300:]
    guards = check_split(members, non_members)
    assert (guards.leaks, guards.duplicates) == (False, 0)
    assert guards.message.startswith("Fine: words alone do not distinguish the 300 members from as many non-members")
    assert check_split(members[::-1], non_members[::-1]) == guards


PAIRS = [(f"play song s{i} by a{i} in r{i}", f"play song s{i} by a{i} on d{i}") for i in range(100)]
LEAKS = {
    "members of one domain": (generate(150, 2, "health").utterances, UTTERANCES[:150]),
    "another order of the same words": (
        of_texts([f"call n{i} now" for i in range(60)]),
        of_texts([f"now call n{i}" for i in range(60)]),
    ),
    # Each text reveals on which side the similar one is: an AUC far below 0.5 does not indicate a random split, either.
    "likenesses dealt to opposite sides": (
        of_texts([pair[i % 2] for i, pair in enumerate(PAIRS)]),
        of_texts([pair[1 - i % 2] for i, pair in enumerate(PAIRS)]),
    ),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_split_that_words_give_away_is_caught(leak):
    guards = check_split(*LEAKS[leak])
    assert guards.leaks
    assert guards.text_auc < 0.3 if "opposite" in leak else guards.text_auc > 0.5
    assert guards.message.startswith("The split leaks")
    assert guards.message.endswith("pool and split at random.")


def test_texts_on_both_sides_are_counted_copies_are_no_evidence_and_all_is_said_in_one_sentence():
    guards = check_split(UTTERANCES[:100], UTTERANCES[:100])
    assert (guards.duplicates, guards.text_auc, guards.leaks) == (100, 0.5, False)
    assert guards.message == "100 texts are on both sides: keep duplicates together when splitting."
    once, thrice = (check_split(UTTERANCES[:60] * k, UTTERANCES[60:120] * k) for k in (1, 3))
    assert (thrice.text_auc, thrice.text_auc_interval) == (once.text_auc, once.text_auc_interval)
    guards = check_split((*generate(100, 3, "video").utterances, UTTERANCES[0]), UTTERANCES[:120])
    assert guards.leaks
    assert "The split leaks" in guards.message
    assert "; 1 text is on both sides: keep" in guards.message
    assert guards.message.endswith("; 101 members and 120 non-members are compared: draw equal numbers.")
    assert guards.message.count(".") - guards.message.count("0.") == 1


@pytest.mark.parametrize(("shared", "own"), [(0, 5), (2, 3), (5, 0)])
def test_few_distinct_texts_are_enough_for_folds_that_leave_both_sides_to_learn_from(shared, own):
    common = [f"on both sides {i}" for i in range(shared)]
    inside, outside = [f"member {i}" for i in range(own)], [f"other {i}" for i in range(5 - shared)]
    assert check_split(*(of_texts(common + side) * LEAST_MEMBERS for side in (inside, outside))).duplicates == shared


@pytest.mark.parametrize(
    ("members", "non_members", "culprit"),
    [
        (UTTERANCES[:49], UTTERANCES[49:200], "there are only 49 members: use a larger corpus"),
        (UTTERANCES[:50], UTTERANCES[50:52], "there are only 2 non-members"),
        (UTTERANCES[:60], UTTERANCES[60:64] * 20, "the non-members have only 4 distinct texts"),
    ],
)
def test_too_few_utterances_are_refused(members, non_members, culprit):
    with pytest.raises(UsageError, match=culprit):
        check_split(members, non_members)
