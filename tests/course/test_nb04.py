"""Notebook 04: what its panels draw, say and command is what the accountants give, no attack is better than they allow,
and what students get wrong is found. What holds for all panels is in `test_contract`."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid

from edp_lab.course.kit.inputs import AS_PRINTED, PUBLIC_ALPHA, SOUND
from edp_lab.course.nb04_cost import compute, panels
from edp_lab.course.nb04_cost.compute import Needed, RunBill, behind, needed, privacy_loss, run_bill, sampling
from edp_lab.privacy import (
    GaussianDP,
    Mechanism,
    PrivacyLossDistribution,
    ReshufflingZCDP,
    Schedule,
    claimed_epsilon,
    gdp_epsilon,
    judge,
    true_epsilon,
)
from edp_lab.reproduce.printed import TABLE_1
from tests.course.conftest import prediction
from tests.course.examples import Wrong, panel_of, report_of

RUN: dict[str, Any] = {
    "variant": SOUND, "decay": "linear", "tau": 0.1, "num_devices": 8, "epochs": 20, "delta": 1e-5, "utterances": 1
}  # fmt: skip


def bill(**change: Any) -> RunBill:
    return run_bill(**{**RUN, "clip_norm": 1.0, "z0": 2.0, **change})


def target(**change: Any) -> Needed:
    return needed(**{**RUN, "target": 8.0, **change})


@pytest.mark.parametrize("variant", [AS_PRINTED, PUBLIC_ALPHA, SOUND])
@pytest.mark.parametrize("decay", ["none", "linear", "exponential"])
def test_bills_are_the_librarys_at_every_epoch(variant: str, decay: str) -> None:
    result = bill(variant=variant, decay=decay)
    private = variant == AS_PRINTED  # then the curve is that of a public alpha, and nothing is guaranteed
    mechanism = replace(result.mechanism, alpha="public") if private else result.mechanism
    for place, epochs in enumerate(result.after.tolist()):
        assert result.claimed[place] == claimed_epsilon(mechanism, epochs, 1e-5)
        assert result.exact[place] == true_epsilon(mechanism, epochs, 1e-5)
        assert result.zcdp[place] > result.exact[place]
    assert result.epochs == result.after[-1] == 20
    held = result.guarantee
    assert result.exact[-1] == (held.epsilon_if_alpha_public if private else held.epsilon)
    assert (held.epsilon is None) == private
    assert result.z_set[5] == result.mechanism.noise_multiplier_setting(5)
    assert result.z_true[5] == pytest.approx(mechanism.noise_multiplier(5))


def test_shares_are_those_of_the_squared_mu_and_a_person_with_k_utterances_pays_for_k() -> None:
    share = target(decay="exponential", tau=0.2).share
    assert share.sum() == pytest.approx(1)
    first = bill(decay="exponential", tau=0.2, epochs=5).mechanism
    mu = [judge(first, t, 1e-5, False).mu for t in (5, 20)]
    assert share[:5].sum() == pytest.approx((mu[0] / mu[1]) ** 2)
    one, ten = bill(), bill(utterances=10)
    assert ten.exact[-1] == pytest.approx(gdp_epsilon(10 * one.guarantee.mu, 1e-5))
    assert ten.claimed[-1] == one.claimed[-1]
    assert ten.zcdp[-1] > ten.exact[-1]


@pytest.mark.parametrize("variant", [AS_PRINTED, PUBLIC_ALPHA, SOUND])
def test_z0_that_is_needed_meets_the_target_and_little_less_does_not(variant: str) -> None:
    result = target(variant=variant)
    for epochs in (1, 7, 20):
        met = bill(variant=variant, z0=result.z0[epochs - 1], epochs=epochs)
        assert met.exact[-1] == pytest.approx(8, rel=1e-5)
        assert bill(variant=variant, z0=result.claimed[epochs - 1], epochs=epochs).claimed[-1] == pytest.approx(8)
    assert bill(variant=variant, z0=result.z0[-1]).exact[-1] <= 8
    assert bill(variant=variant, z0=0.99 * result.z0[-1]).exact[-1] > 8
    assert target(variant=variant, utterances=10).z0[-1] == pytest.approx(10 * result.z0[-1])


def test_without_noise_or_with_all_of_it_decayed_there_is_no_number() -> None:
    nothing = bill(z0=0.0)
    assert np.isnan([*nothing.claimed, *nothing.exact, *nothing.zcdp]).all()
    assert nothing.guarantee.epsilon is None
    gone = bill(decay="exponential", tau=100.0)
    assert math.isfinite(gone.exact[0])
    assert math.isnan(gone.exact[-1])
    never = target(decay="exponential", tau=100.0)
    assert never.share[:5].sum() == 0
    assert (math.isfinite(never.z0[0]), math.isnan(never.z0[-1])) == (True, True)
    assert "no z0" in str(panels.tell_needed(never))


@settings(max_examples=25)
@given(st.floats(0.05, 3), st.integers(1, 40), st.sampled_from([0.1, 0.01, 1e-5]))
def test_area_of_delta_is_delta_and_both_bells_are_whole(mu: float, releases: int, delta: float) -> None:
    result = privacy_loss(mu, releases, delta, 20, 0)
    assert trapezoid(result.with_it, result.loss) == pytest.approx(1, abs=1e-3)
    assert trapezoid(result.loss * result.without, result.loss) == pytest.approx(-(result.mu**2) / 2, rel=1e-3)
    if result.epsilon == 0:  # delta alone covers it
        return
    if delta > 1e-3:
        beyond = result.loss >= result.epsilon
        assert trapezoid(result.excess[beyond], result.loss[beyond]) == pytest.approx(delta, rel=0.2)  # of a drawing


def test_trade_off_curves_are_ordered_and_the_simulated_attack_reaches_the_bound() -> None:
    result = privacy_loss(0.5, 10, 0.01, 20, 0)
    assert (result.fnr_pair <= result.fnr + 1e-9).all()
    assert (result.fnr <= result.fnr_each + 1e-9).all()
    assert (result.fnr_each <= 1 - result.fpr + 1e-9).all()
    assert (result.fnr[0], result.fnr[-1]) == (1, 0)
    # The pair's lines touch the curve where the loss is epsilon.
    assert (result.fnr - result.fnr_pair).min() == pytest.approx(0, abs=5e-3)
    results = [privacy_loss(0.4, 10, 1e-5, 500, seed) for seed in range(40)]
    found = np.mean([result.found.value for result in results])
    assert found == pytest.approx(results[0].best_found, abs=0.01)
    assert np.mean([result.attack_auc for result in results]) == pytest.approx(results[0].best_auc, abs=0.005)
    covered = [result.found.interval[0] <= result.best_found <= result.found.interval[1] for result in results]
    assert np.mean(covered) > 0.85


def test_three_ways_to_batch_are_billed_by_the_library() -> None:
    result = sampling(0.02, 0.8, 130, 1e-6)
    assert result.passes == 3
    mechanism = Mechanism.sound(1.0, 0.8, 8, 1, sampling_rate=0.02)
    assert result.sampled[-1] == pytest.approx(
        PrivacyLossDistribution(mechanism.schedule(mechanism.bill(steps=130))).epsilon(1e-6), rel=1e-9
    )
    assert result.everyone[-1] == gdp_epsilon(math.sqrt(130) / 0.8 * (1 + 1e-14), 1e-6)
    assert result.shuffled[-1] == pytest.approx(gdp_epsilon(math.sqrt(3) / 0.8, 1e-6))
    assert result.shuffled[0] == result.everyone[0]
    for density in (result.without, result.with_it, result.sampled_with):
        assert trapezoid(density, result.output) == pytest.approx(1, abs=1e-3)


def test_a_shuffled_pass_billed_as_a_sample_is_refuted() -> None:
    result = sampling(0.01, 1.0, 100, 1e-5)
    assert result.sampled[-1] == pytest.approx(0.72, abs=0.01)
    assert result.sampled[-1] < result.at_least < result.shuffled[-1]
    assert sampling(0.01, 1.0, 99, 1e-5).at_least == 0  # no whole pass yet
    assert sampling(0.8, 1.0, 1, 1e-5).at_least == 0  # one batch misses a fifth of the corpus


CELLS = [(row.model, row.corpus, str(decay)) for row in TABLE_1 for decay in row.changes]


@pytest.mark.parametrize("cell", CELLS[::5])
@pytest.mark.parametrize("epochs", [3, 31, 90])
def test_setting_of_the_command_gives_the_printed_value(cell: tuple[str, str, str], epochs: int) -> None:
    result = behind(*cell, epochs)
    mechanism = Mechanism.as_printed(1.0, result.setting.z0, 8, 2, cell[2], result.setting.tau or 0.0, "public")
    assert math.log10(claimed_epsilon(mechanism, result.setting.epochs, result.cell.delta)) == pytest.approx(
        result.cell.log10_epsilon, abs=0.0501
    )
    true = math.log10(true_epsilon(mechanism, result.setting.epochs, result.cell.delta))
    assert true == pytest.approx(result.cell.true_log10_epsilon, abs=0.11)


def test_three_cells_fell_by_decay_and_commands_of_table_1_search_it() -> None:
    fell = [(row.model, row.corpus) for row, _ in compute.fallen_by_decay()]
    assert fell == [("BERT", "SNIPS"), ("BERT", "NLU-eval"), ("BERT", "Video")]
    assert bill(decay="linear", tau=0.02).claimed[-1] > bill(decay="none").claimed[-1]
    study, account = panel_of("04 table1").command.value.splitlines()
    assert report_of(study)["common_epochs"] == [30, 31]
    assert math.log10(report_of(account)["claimed"]["epsilon"]) == pytest.approx(24.4, abs=0.05)


@pytest.mark.parametrize("change", [{}, {"variant": SOUND, "utterances": 2}, {"decay": "none", "target": 0.5}])
def test_command_of_the_target_finds_the_same_noise(change: dict[str, Any]) -> None:
    panel = panel_of("04 needed", **change)
    assert report_of(panel.command.value)["calibration"]["z0"] == pytest.approx(panel.result.z0[-1])


def billed(z: Callable[[float, int], float], kind: Any = GaussianDP, sampled: bool = False, steps: bool = False) -> Any:
    """Epsilon for this noise multiplier of z0 and N, for epochs or, sampled or not, for their steps."""

    def epsilon(z0: float, num_devices: int, epochs: int, batch_size: int, utterances: int, delta: float) -> float:
        count = epochs * utterances // batch_size if steps else epochs
        return kind(Schedule(z(z0, num_devices), count, batch_size / utterances if sampled else 1.0)).epsilon(delta)

    return epsilon


def right(z0: float, num_devices: int) -> float:
    return z0 / (2 * math.sqrt(num_devices))


guess = partial(prediction, "04", "decay")
WRONG: dict[str, dict[str, Any]] = {
    "compose": {
        "adds mu up": Wrong(lambda z: np.sum(1 / z), "That adds up μ itself"),
        "bills every epoch like the first": Wrong(lambda z: np.sqrt(len(z)) / z[0], "as much noise as the first"),
        "forgets the root": Wrong(lambda z: np.sum(1 / z**2), "That is the square of the run's μ"),
        "takes the mean noise for all epochs": lambda z: np.sqrt(len(z)) / np.mean(z),
        "adds up the noise": lambda z: np.sqrt(np.sum(z**2)),
        "asks the array (crash)": lambda z: z.mu(),
    },
    "decay": {
        "decay is a better trade-off": guess("stays", "falls", "falls", "falls"),
        "the claim does not see the decay": guess("stays", "stays", "rises", "rises"),
        "all noise is less, the first too": guess("falls", "rises", "rises", "rises"),
        "less z0 will do": guess("stays", "rises", "rises", "falls"),
    },
    "bill": {
        "mends the batches, takes z0 at face value": Wrong(billed(lambda z0, N: z0), "that takes z0 at face value."),
        "mends the noise, bills a sample": Wrong(
            billed(right, PrivacyLossDistribution, sampled=True, steps=True), "but the batches were shuffled."
        ),
        "forgets that one utterance turns a clip around": billed(lambda z0, N: z0 / math.sqrt(N)),
        "bills every step of an epoch": Wrong(
            billed(right, steps=True), "but an utterance is in one step of an epoch only."
        ),
        "takes the batch for the epochs (crash)": lambda *given: GaussianDP(Schedule(given[0], -1)).epsilon(given[-1]),
    },
}


RIGHT = {"bill": (billed(right, ReshufflingZCDP),)}  # a bound that holds
