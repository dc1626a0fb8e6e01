"""Notebook 05: its figures and texts agree with the library's attacks and accountants."""

import json
import math
import shlex
import warnings
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from scipy.stats import beta, norm

from edp_lab.attacks.lira import ShadowLogits, aligned, half_samples, lira_scores
from edp_lab.attacks.loss import Attacked, equal_sides, signals
from edp_lab.attacks.statistics import clopper_pearson, dp_bound, gaussian_bound
from edp_lab.corpora.catalog import load_corpus
from edp_lab.corpora.corpus import split
from edp_lab.course.nb05_membership import panels
from edp_lab.course.nb05_membership.panels import Moments, Shown, kept_lira, measured, show_canaries
from tests.course.conftest import prediction, prose
from tests.course.examples import Wrong, attacked_target, report_of
from tests.course.test_contract import assert_readable

CORPUS = "smart-home-health"
LINES = {"as_printed": True, "z0": 4.0, "num_devices": 8, "epochs": 8}


@pytest.fixture(scope="module")
def attacks() -> dict[str, Attacked]:
    """The loss attack, and an attack that is always right."""
    return attacked_target()


@pytest.fixture(scope="module")
def loss(attacks: dict[str, Attacked]) -> Attacked:
    return attacks["loss"]


def shown(attacks: Mapping[str, Attacked], attack: str = "loss", **change: Any) -> Shown:
    most = len(attacks["loss"].target.members)
    return panels.show_roc(attacks, **{"attack": attack, "called": 10.0, "people": most, **LINES, **change})


def drawn_shadows(loss: Attacked, models: int, seed: int = 0) -> ShadowLogits:
    """Untrained shadow models for the target's pool."""
    pool, rng = loss.target.pool, np.random.default_rng(seed)
    inside = half_samples(pool, models, seed)
    logits = rng.normal(0, 1.5, (models, len(pool), 2)) + rng.normal(0, 2, (1, len(pool), 2)) + inside[..., None]
    return ShadowLogits(logits, inside)


def test_kept_lira_attacks_its_own_pool_and_no_other(loss: Attacked, tmp_path: Path) -> None:
    target, moments = loss.target, Moments.of(drawn_shadows(loss, 6))
    item = {
        "corpus": CORPUS, "corpus_sha256": target.corpus.sha256, "seed": 0, "models": 6, "pool": len(target.pool),
        "v_in": moments.v_in.tolist(), "v_out": moments.v_out.tolist(),
        **{side: b64encode(getattr(moments, side).astype("<f2").tobytes()).decode() for side in ("inside", "outside")},
    }  # fmt: skip
    path = tmp_path / "kept.json"
    path.write_text(json.dumps({"shadows": [item], "defended": [], "canaries": []}))
    lira = kept_lira(loss, path)
    assert lira is not None
    wanted = lira_scores(aligned(signals(target.model, target.pool).logits, moments.shadows()), moments.shadows())
    assert lira.scores == pytest.approx(wanted, rel=0.02, abs=0.05)  # scores are stored in half precision
    assert (lira.result.attack, lira.about["shadows"]) == ("lira-online", 6)
    other = replace(loss, target=replace(target, config=replace(target.config, seed=1)))
    assert kept_lira(other, path) is None
    assert kept_lira(loss) is None  # the course has no stored result for a single domain


def test_what_is_kept_belongs_to_the_embedded_corpus() -> None:
    corpus = load_corpus("smart-home")
    members, non_members = equal_sides(split(corpus, 0), 0)
    told = json.loads(panels.KEPT.read_text())
    kept = next(item for item in told["shadows"] if item["corpus"] == "smart-home")
    assert (kept["corpus_sha256"], kept["pool"]) == (corpus.sha256, len(members + non_members))
    assert {"command", "machine", "versions"} <= told.keys()
    assert_readable(panels.defence_figure(measured().defended))


@pytest.mark.parametrize(("called", "people"), [(1.0, 500), (10.0, 500), (50.0, 60), (100.0, 200)])
def test_threshold_calls_the_share_that_is_asked_for(
    attacks: Mapping[str, Attacked], called: float, people: int
) -> None:
    result = shown(attacks, called=called, people=people)
    inside, outside = (side[:people] for side in attacks["loss"].target.sides(attacks["loss"].scores))
    assert result.hits.value == np.mean(inside >= result.threshold)
    assert result.alarms.value == np.mean(outside >= result.threshold)
    assert result.hits.value + result.alarms.value == pytest.approx(called / 50, abs=1.5 / people)
    corners = list(zip(result.result.roc.fpr, result.result.roc.tpr, strict=True))
    assert (result.alarms.value, result.hits.value) in corners
    assert result.hits.interval[0] <= result.hits.value <= result.hits.interval[1]


def test_curve_lies_in_its_band_and_lines_are_bounds_of_the_guarantee(attacks: Mapping[str, Attacked]) -> None:
    result = shown(attacks)
    fpr, tpr, low, high = result.curve
    assert {*zip(fpr, tpr, strict=True)} <= {*zip(result.result.roc.fpr, result.result.roc.tpr, strict=True)}
    assert (low <= tpr).all()
    assert (tpr <= high).all()
    *_, fewer_low, fewer_high = shown(attacks, people=50).curve
    assert np.max(fewer_high - fewer_low) > 2 * np.max(high - low)
    result, rates = shown(attacks), np.array([0.001, 0.01, 0.3])
    held = result.guarantee
    assert held.claimed_epsilon is not None
    assert held.mu == pytest.approx(8**0.5 * 2 * 8**0.5 / 4)  # as printed, z is too large by a factor of 2 sqrt N
    assert (result.claimed.tpr(rates) == dp_bound(held.claimed_epsilon, held.delta).tpr(rates)).all()
    assert (result.guaranteed.tpr(rates) == gaussian_bound(held.mu or 0).tpr(rates)).all()
    assert (held.adjacency, held.epochs) == ("REPLACE_ONE", 8)


def test_histograms_hold_everybody_in_the_order_of_their_scores(attacks: Mapping[str, Attacked]) -> None:
    for attack in attacks:
        result = shown(attacks, attack)
        assert [sum(bars.y) for bars in go.Figure(panels.draw_scores(result)).data[:2]] == pytest.approx([100, 100])
    for attack in ("loss", "shadow", "lira-online"):
        scores = -np.geomspace(1e-5, 20, 50) if attack == "loss" else np.linspace(-30, 30, 50)[::-1]
        assert (np.diff(panels.view(attack, scores)) <= 0).all()


def test_canaries_are_the_measured_ones_and_words_name_the_guarantee() -> None:
    grid = measured().canaries
    result = show_canaries(grid, "edp-sgd", 0.03, 4)
    assert result.chosen is grid["edp-sgd", 0.03][3]
    assert (result.chosen.method, result.chosen.repetitions) == ("edp-sgd", 4)
    assert result.rows["sgd"] == grid["sgd", None]
    often, never = (show_canaries(grid, "sgd", 0.03, times) for times in (16, 0))
    assert often.chosen.exposure > 12 > 4 > never.chosen.exposure
    first, second, sentence = panels.tell_canaries(often)
    assert (first.value, second.value) == ("13.3 bits", "8 of 8")
    assert sentence == "A number that was seen 16 times typically has rank 1 of 10,000 by its loss."
    for method, says in (("sgd", "No guarantee"), ("edp-sgd-as-printed", "No guarantee"), ("edp-sgd", "all 4 copies")):
        assert says in panels.words.canaries(show_canaries(grid, method, 0.01, 4), method, panels.CANARIES)


def test_command_of_canaries_measures_this_method(given_to: Any) -> None:
    command = panels.canaries(measured().canaries, "edp-sgd", 0.01, 4).command.value
    config, methods, repetitions, *_ = given_to("attacks.canaries.measure_memorisation", command)
    assert config == replace(panels.CANARIES, z0=0.01)
    assert (list(methods), tuple(repetitions)) == (["edp-sgd"], panels.REPETITIONS)


def test_commands_of_the_curve_attack_the_run_and_account_for_the_lines(attacks: dict[str, Attacked]) -> None:
    roc, run = panels.roc(attacks, True, 4.0, 8, 8), attacks["loss"].target.folder
    roc.set(attack="loss")
    training, attacking, accounting = roc.command.value.splitlines()
    assert training.startswith(f"edp-lab train --corpus {CORPUS} --method sgd")
    assert report_of(attacking.replace("runs/target", shlex.quote(str(run))))["auc"] == roc.result.result.auc
    told = report_of(accounting)
    assert told["guaranteed"]["epsilon_in_real_numbers"] == pytest.approx(
        roc.result.guarantee.conditional_epsilon, rel=1e-4
    )
    assert told["claimed"]["epsilon"] == pytest.approx(roc.result.guarantee.claimed_epsilon, rel=1e-4)


def test_numbers_that_the_notebook_states_were_measured() -> None:
    text, kept = prose("05"), measured()
    plain, *noised = kept.defended
    reached = [plain["found"][attack][of] for attack in ("loss", "lira-online") for of in ("auc", "tpr")]
    assert reached == pytest.approx([0.79, 0.04, 0.91, 0.22], abs=0.005)
    assert "With an AUC of 0.91, it finds 22 %" in text
    counts = {row.repetitions: row.extracted for row in kept.canaries["sgd", None]}
    assert (counts[1], counts[4], counts[16]) == (1, 5, 8)
    assert "one is extracted after one copy, five after four, and eight after sixteen" in text
    by = {(run["config"].as_printed, run["config"].z0): run for run in noised}
    for printed, sound in (((True, 0.003), (False, 0.01)), ((True, 0.001), (False, 0.003))):
        assert by[printed]["ser"] == pytest.approx(by[sound]["ser"], abs=0.01)
        assert 250 < by[printed]["epsilon_if_alpha_public"] / by[sound]["epsilon_if_alpha_public"] < 400
    assert "about 300" in text


def tpr_at(threshold: Any, interval: Any = clopper_pearson, closed: bool = False) -> Any:
    """An answer with a different threshold or interval; if `closed`, a score at the threshold counts as a member."""

    def answer(inside: Any, others: Any, fpr: float) -> Any:
        limit = threshold(inside, others, fpr)
        hits = int(np.sum(inside >= limit if closed else inside > limit))
        return hits / len(inside), *interval(hits, len(inside))

    return answer


def top(scores: Any, share: float, fewer: int = 0) -> Any:
    """The score that is exceeded by this share of all scores, or by `fewer` scores less."""
    return np.sort(scores)[::-1][int(share * len(scores) + 1e-9) - fewer]


def strangers(inside: Any, others: Any, fpr: float) -> Any:
    return top(others, fpr)


def normal(hits: int, members: int) -> Any:
    rate = hits / members
    reach = norm.isf(0.025) * math.sqrt(rate * (1 - rate) / members)
    return rate - reach, rate + reach


def by_scipy(hits: int, members: int) -> Any:
    return tuple(np.nan_to_num(beta.ppf([0.025, 0.975], *_ends(hits, members)), nan=float(hits == members)))


def _ends(hits: int, members: int) -> Any:
    return [hits, hits + 1], [members - hits + 1, members - hits]


def gap(scores: Any, member: Any, people: Any, t: float) -> Any:
    return np.mean(scores[people & member] >= t) - np.mean(scores[people & ~member] >= t)


def flattering(scores: Any, member: Any, texts: Any) -> Any:
    return max(gap(scores, member, member | True, t) for t in scores)


def at_the_median(scores: Any, member: Any, texts: Any) -> Any:
    return gap(scores, member, member | True, np.median(scores))


def in_halves(half: Callable[[int], Any]) -> Any:
    """A threshold chosen on one half of the people, and evaluated on the other half."""

    def advantage(scores: Any, member: Any, texts: Any) -> Any:
        these = half(len(scores))
        with np.errstate(invalid="ignore"), warnings.catch_warnings(action="ignore"):
            return gap(scores, member, ~these, max(scores[these], key=lambda t: gap(scores, member, these, t)))

    return advantage


def without_copies(answer: Any, members: bool = True, others: bool = True) -> Any:
    """The answer, without members and non-members that have the same text on the other side."""

    def advantage(scores: Any, member: Any, texts: Any) -> Any:
        copied = np.isin(texts, np.intersect1d(texts[member], texts[~member]))
        kept = ~copied | (member & (not members)) | (~member & (not others))
        return answer(scores[kept], member[kept], texts[kept])

    return advantage


halves, first_half = in_halves(lambda n: np.arange(n) % 2 == 0), in_halves(lambda n: np.arange(n) < n // 2)
NEITHER = "your result is not a number: one half has no strangers"
guess = partial(prediction, "05", "compare")
IN_NOISE = "scores that know nothing have no advantage, but over 100 groups of 120 sentences yours is 0.1"
WRONG: dict[str, dict[str, Any]] = {
    "tpr": {
        "lets a quantile interpolate": Wrong(
            tpr_at(lambda inside, others, fpr: np.quantile(others, 1 - fpr)), "interpolates between two strangers"
        ),
        "asks the members for the threshold": tpr_at(lambda inside, others, fpr: top(inside, fpr)),
        "accuses one stranger too many": Wrong(tpr_at(strangers, closed=True), "accuses one stranger too many"),
        "accuses one stranger too few": Wrong(
            tpr_at(lambda inside, others, fpr: top(others, fpr, 1)), "accuses one stranger too few"
        ),
        "a share of everybody": Wrong(
            tpr_at(lambda inside, others, fpr: top([*inside, *others], fpr)), "the members have no say"
        ),
        "a share without its interval": Wrong(
            lambda inside, others, fpr: np.mean(inside > top(others, fpr)), "return three numbers"
        ),
        "the normal approximation": Wrong(tpr_at(strangers, normal), "that is the normal approximation"),
        "5 % beyond each end": Wrong(
            tpr_at(strangers, lambda hits, members: clopper_pearson(hits, members, 0.9)), "leaves 5 % beyond each end"
        ),
        "takes h or more for more than h": Wrong(
            tpr_at(
                strangers,
                lambda hits, members: (
                    clopper_pearson(hits, members)[0],
                    clopper_pearson(max(0, hits - 1), members)[1],
                ),
            ),
            "your upper end is too low",
        ),
        "the ends the wrong way round": Wrong(
            tpr_at(strangers, lambda hits, members: clopper_pearson(hits, members)[::-1]), "the other way round"
        ),
        "has no end where nobody is found": tpr_at(
            strangers, lambda hits, members: beta.ppf([0.025, 0.975], *_ends(hits, members))
        ),
    },
    "compare": {
        "the average decides everything": Wrong(
            guess("blunt", "blunt", "blunt"), "FPR: you said 'blunt', but it is 0.02"
        ),
        "certainty decides everything": Wrong(guess("sharp", "sharp", "sharp"), "for the sharp one"),
        "the wrong way round": guess("sharp", "sharp", "blunt"),
    },
    "advantage": {
        "as it was": Wrong(flattering, IN_NOISE),
        "drops the copies, keeps the threshold": without_copies(flattering),
        "halves, but keeps the copies": halves,
        "drops the copies among members only": without_copies(halves, others=False),
        "drops the copies among non-members only": without_copies(halves, members=False),
        "halves that may lack one side": Wrong(without_copies(first_half), NEITHER),
        "splits nobody, takes the median": without_copies(at_the_median),
        "finds nothing, to be safe": lambda scores, member, texts: 0.0,
    },
}


RNG = np.random.default_rng(0)
RIGHT = {
    "tpr": (tpr_at(strangers, by_scipy),),
    "advantage": (without_copies(in_halves(lambda n: RNG.permutation(n) % 2 == 0)),),
}
