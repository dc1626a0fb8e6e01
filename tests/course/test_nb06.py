"""Notebook 06: its panels draw and report the results of the library's audits."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from edp_lab.attacks.one_run import audit_one_run
from edp_lab.attacks.statistics import error_rate, lower_bounds, mu_lower_bound, one_run_epsilon
from edp_lab.attacks.step_audit import Finding, audit_mechanism, draw_statistics
from edp_lab.course.kit.audits import draw_step
from edp_lab.course.kit.text import at_least
from edp_lab.course.nb06_audit import panels
from edp_lab.course.nb06_audit.panels import StepNoise, audit_step
from edp_lab.jobs import RESULTS, read_kept
from edp_lab.privacy.csprng import key_from_seed
from tests.course.conftest import prediction, prose
from tests.course.examples import Wrong, drawn, report_of, step_noise

PRINTED = (True, 1.0, 1.0, 8, 300)
SOUND = (False, 2.0, 0.7, 4, 300)


@pytest.mark.parametrize(
    "settings",
    [PRINTED, SOUND, (True, 0.3, 0.5, 16, 40), (True, 1.0, 0.3, 8, 10), (False, 1.0, 8.0, 1, 200)],
)
def test_step_audit_is_the_librarys_own_for_the_same_seed(settings: Any) -> None:
    ours = audit_step(step_noise(), *settings).audit
    assert ours == audit_mechanism(ours.mechanism, 1e-5, key_from_seed(3), settings[-1])
    assert ours.epsilon_if_seed_secret == ours.epsilon_if_alpha_public


def test_draws_lie_where_the_real_steps_draws_lie_and_c_only_stretches_them() -> None:
    for settings in (PRINTED, SOUND):
        ours = audit_step(step_noise(), *settings)
        absent, present = draw_statistics(ours.audit.mechanism, settings[-1], key_from_seed(3))
        room = 1e-4 * ours.std + 2**-11 * ours.distance  # the sound clip's margin for rounding
        assert ours.absent == pytest.approx(absent, abs=room)
        assert ours.present == pytest.approx(present, abs=room)
    one, tenfold = audit_step(step_noise(), *PRINTED), audit_step(step_noise(), True, 10.0, *PRINTED[2:])
    assert [sum(bars.y) for bars in go.Figure(draw_step(one)).data[:2]] == pytest.approx([100, 100])
    assert (tenfold.distance, tenfold.std) == pytest.approx((10 * one.distance, 10 * one.std))
    assert tenfold.audit.bounds == one.audit.bounds


def test_needed_guesses_are_the_fewest_that_refute() -> None:
    audit = audit_one_run(panels.one_run_config(True, 4.0, 8, 1, 0), 200, linear=True)
    assert audit.verdict is Finding.REFUTED
    least = panels.needed(audit, audit.guesses)
    assert least is not None
    assert least <= audit.correct
    false_at_one = audit_one_run(panels.one_run_config(False, 0.3, 8, 1, 0), 50, linear=True)
    assert panels.needed(false_at_one, 5) is None


def test_commands_make_the_same_audit() -> None:
    panel = panels.step(step_noise(), True, 1.0, 1.0, 8, 1000)
    panel.set(draws=200, z0=2.5, clip_norm=0.3, num_devices=16)
    assert report_of(panel.command.value)["bounds"]["gaussian"] == panel.result.audit.bounds.gaussian
    panel.set(as_printed=False)
    told, audit = report_of(panel.command.value), panel.result.audit
    assert (told["verdict"], told["claimed_epsilon"]) == (audit.verdict, audit.claimed_epsilon)


def test_run_panel_audits_several_seeds_as_the_command_does() -> None:
    panel = panels.OneRun(True, 4.0, 8, 200, 3, seed=5)
    panel.run(wait=True)
    panel.check()
    assert (list(panel.audits), panel.state.value) == ([5, 6, 7], "done")
    told, last = report_of(panel.command.value), panel.audits[7]
    assert told["measured_epsilon"] == last.measured_epsilon
    assert [tally["correct"] for tally in told["tallies"]] == [tally.correct for tally in last.tallies]
    bounds, _, claims, *_ = drawn(panel)[1].data
    assert bounds.y == tuple(audit.measured_epsilon for audit in panel.audits.values())
    assert claims.y[0] == pytest.approx(panel.audits[5].claimed_epsilon)
    assert panel.tiles.tiles[1][1] == "3 of 3"
    assert "3 of 3 audits refuted the claim" in panel.tiles.sentence
    assert f"the run would show ε ≥ {at_least(last.ceiling)} for Gaussian noise." in panel.words.value


def test_run_panel_says_that_noise_too_small_for_float32_protects_nobody() -> None:
    panel = panels.OneRun(True, 1e-6, 8, 200, 1, seed=5)
    panel.run(wait=True)
    assert panel.state.value == "done"
    assert "No ε is guaranteed" in panel.tiles.sentence


def test_numbers_that_the_notebook_states_are_computed() -> None:
    noise, text = StepNoise(0), prose("06")
    twenty, ten = (audit_step(noise, True, 1.0, z0, 8, draws).audit for z0, draws in ((1.0, 20), (0.3, 10)))
    thousand, single = (audit_step(noise, True, 1.0, 1.0, n, 1000).audit for n in (8, 1))
    assert {twenty.verdict, thousand.verdict} == {Finding.REFUTED}
    assert thousand.bounds.distribution_free < thousand.claimed_epsilon
    flawless = twenty.ceiling, twenty.bounds.distribution_free
    for says, numbers, values in (
        ("at least 9.51 if the noise is known to be Gaussian, and at least 1.59 if not", flawless, (9.51, 1.59)),
        ("Ten draws per side cannot show an ε above 4.4", ten.ceiling, 4.4),
        ("500 right guesses of 500 show at most ε = 0.62", one_run_epsilon(5000, 500, 500, 1e-3, 0.05), 0.62),
        ("1,000 draws show only 4.72, which would not refute 5.3", thousand.bounds.distribution_free, 4.72),
        ("Even for one GPU, ε is 10, not 5.3", single.epsilon_if_seed_secret, 10.0),
        ("About 6 (5.78 with δ)", one_run_epsilon(1000, 1000, 1000, 1e-5, 0.05), 5.78),
    ):
        assert says in text
        assert numbers == pytest.approx(values, abs=0.05)


def test_what_is_said_of_the_last_model_is_what_was_measured() -> None:
    rows = read_kept(RESULTS / "last_model.json", "rows")["rows"]
    results = (Path(__file__).parents[2] / "data/results/README.md").read_text("utf-8")
    for kind, seen in (("gradient", "every step"), ("gradient", "last model"), ("mislabelled", "last model")):
        proven: dict[int, list[float]] = {2: [], 4: [], 8: []}
        for row in rows:
            if row["kind"] == kind:
                proven[round(row["epsilon"])].append(row[seen][1])
        assert all(target > bound >= 0 for target, bounds in proven.items() for bound in bounds)
        ends = [(at_least(min(bounds)), at_least(max(bounds))) for bounds in proven.values()]
        assert f"| {' | '.join(low if low == high else f'{low} to {high}' for low, high in ends)} |" in results, ends
    for seen, says in (
        ("every step", "every step measures {} to {}"),
        ("last model", "the final model {} to {}"),
    ):
        own = [row[seen][1] for row in rows if row["kind"] == "gradient" and row["epsilon"] > 7]
        assert says.format(*(at_least(end(own)) for end in (min, max))) in prose("06")


def odds(fpr: float, fnr: float, delta: float) -> float:
    return max((1 - fnr - delta) / fpr, (1 - fpr - delta) / fnr)


def halves(draws: Any) -> Any:
    """The draws that choose the threshold and the draws that are counted, as two pairs of arrays."""
    return tuple(tuple(side[start::2] for side in draws) for start in (0, 1))


def limits(draws: Any, t: float, confidence: float = 0.95) -> Any:
    return [error_rate(wrong, confidence).upper_limit for wrong in (draws[0] > t, draws[1] <= t)]


def limited(draws: Any, t: float, delta: float, confidence: float = 0.95) -> float:
    return lower_bounds(*limits(draws, t, confidence), delta).gaussian


def counted(draws: Any, t: float, delta: float) -> float:
    fpr, fnr = float(np.mean(draws[0] > t)), float(np.mean(draws[1] <= t))
    return lower_bounds(max(fpr, 1e-9), max(fnr, 1e-9), delta).gaussian


def best(draws: Any, confidence: float = 0.95) -> float:
    """The threshold at which the limits give the largest lower bound."""
    return max(np.concatenate(draws)[::-1], key=lambda t: mu_lower_bound(*limits(draws, t, confidence)))


def honest(
    bound: Any, chosen_by: Any = lambda draws: halves(draws)[0], judged_by: Any = lambda draws: halves(draws)[1]
) -> Any:
    """An answer that chooses the threshold on some draws and evaluates it on others."""

    def answer(absent: Any, present: Any, delta: float) -> Any:
        draws = absent, present
        threshold = best(chosen_by(draws))
        return threshold, bound(judged_by(draws), threshold, delta)

    return answer


def as_it_was(absent: Any, present: Any, delta: float) -> float:
    """The best result of all thresholds, by counted rates."""
    return max(counted((absent, present), t, delta) for t in [*absent, *present])


def at_the_middle(absent: Any, present: Any, delta: float) -> Any:
    """A threshold that would be right if the midpoint were 0."""
    return 0.0, limited(halves((absent, present))[1], 0.0, delta)


predict = partial(prediction, "06", "verdicts")
NUMBERS = "but ε = 21.6 is claimed, 4.37 is measured and at most 4.37 is measurable, so the verdict is 'no power'"
FLATTERED = "Your ε is too large in "
WRONG: dict[str, dict[str, Any]] = {
    "at_least": {
        "forgets delta": lambda fpr, fnr, delta: max(0.0, math.log(odds(fpr, fnr, 0.0))),
        "asks one inequality only": lambda fpr, fnr, delta: math.log(max(1.0, (1 - fnr - delta) / fpr)),
        "takes the smaller one": lambda fpr, fnr, delta: math.log(
            max(1.0, min((1 - fnr - delta) / fpr, (1 - fpr - delta) / fnr))
        ),
        "goes below 0": lambda fpr, fnr, delta: math.log(max(1e-9, odds(fpr, fnr, delta))),
        "another logarithm": lambda fpr, fnr, delta: math.log10(max(1.0, odds(fpr, fnr, delta))),
    },
    "verdicts": {
        "one device keeps the promise": predict("refuted", "consistent", "no power", "consistent"),
        "false claims are always refuted": Wrong(predict("refuted", "refuted", "refuted", "consistent"), NUMBERS),
        "few draws say nothing": predict("no power", "refuted", "no power", "consistent"),
        "what is not refuted holds": predict("refuted", "refuted", "holds", "holds"),
    },
    "honest": {
        "as it was": Wrong(as_it_was, "return two numbers"),
        "all draws choose, all are counted": Wrong(
            honest(limited, lambda draws: draws, lambda draws: draws), FLATTERED
        ),
        "all draws choose": Wrong(honest(limited, lambda draws: draws), "only `[::2]` may choose it"),
        "the threshold of those who know the midpoint": Wrong(at_the_middle, "your threshold"),
        "the draws that choose are counted": Wrong(
            honest(limited, judged_by=lambda draws: halves(draws)[0]), "cannot judge it"
        ),
        "all draws are counted": Wrong(honest(limited, judged_by=lambda draws: draws), "only the errors of the other"),
        "counted rates": Wrong(honest(counted), FLATTERED),
        "each limit at 95 %": Wrong(
            honest(lambda draws, t, delta: limited(draws, t, delta, 0.9)), "both are correct in only 90 %"
        ),
        "any mechanism": Wrong(
            honest(lambda draws, t, delta: lower_bounds(*limits(draws, t), delta).distribution_free),
            "the bound for any mechanism",
        ),
        "stops at μ": Wrong(honest(lambda draws, t, delta: mu_lower_bound(*limits(draws, t))), "this is μ"),
        "proves nothing, to be safe": honest(lambda draws, t, delta: 0.0),
    },
}
RIGHT = {"honest": (honest(limited),)}  # chooses another of the equally good thresholds
