"""Notebook 03: what its panels draw, say and command is what the accountants give, no attack is better than they allow,
and wrong answers are recognised. The contract of all panels is in `test_contract`."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.stats import norm

from edp_lab.course.kit.controls import AS_PRINTED, PUBLIC_ALPHA, SOUND
from edp_lab.course.nb03_cost import panels
from edp_lab.course.nb03_cost.panels import RunBill, behind, privacy_loss, run_bill, sampled
from edp_lab.privacy import (
    GaussianDP,
    Mechanism,
    PrivacyLossDistribution,
    ReshufflingZCDP,
    Schedule,
    claimed_epsilon,
    gdp_epsilon,
    guaranteed_epsilon,
    releases_by_epoch,
    schedule_of,
)
from tests.course.conftest import prediction
from tests.course.examples import Wrong, panel_of, report_of

RUN: dict[str, Any] = {
    "variant": SOUND, "z0": 2.0, "decay": "linear", "tau": 0.1, "num_devices": 8, "target": 8.0, "epochs": 20,
    "delta": 1e-5,
}  # fmt: skip


def bill(**change: Any) -> RunBill:
    return run_bill(**{**RUN, **change})


@pytest.mark.parametrize("variant", [AS_PRINTED, PUBLIC_ALPHA, SOUND])
@pytest.mark.parametrize("decay", ["none", "linear", "exponential"])
def test_bill_is_the_librarys_and_z0_meets_the_target(variant: str, decay: str) -> None:
    result = bill(variant=variant, decay=decay)
    public = result.mechanism.with_public_alpha()
    assert result.after[-1] == 20
    for epochs, verdict in zip(result.after, result.verdicts, strict=True):
        assert verdict.claimed_epsilon == claimed_epsilon(public, epochs, 1e-5)
        assert verdict.epsilon_if_alpha_public == guaranteed_epsilon(public, epochs, 1e-5)
    assert (result.guarantee.conditional_epsilon is None) == (variant == AS_PRINTED)
    needed = result.needed_z0
    assert needed is not None
    met, missed = (bill(variant=variant, decay=decay, z0=z0).guarantee for z0 in (needed, 0.99 * needed))
    assert met.epsilon_if_alpha_public == pytest.approx(8, rel=1e-5)
    assert met.epsilon_if_alpha_public <= 8 < missed.epsilon_if_alpha_public
    claimed = bill(variant=variant, decay=decay, z0=result.claimed_z0).guarantee
    assert claimed.claimed_epsilon == pytest.approx(8)


def test_without_noise_or_with_all_of_it_decayed_there_is_no_number() -> None:
    assert bill(z0=0.0).guarantee.epsilon_if_alpha_public is None
    gone = bill(decay="exponential", tau=100.0)
    assert gone.verdicts[0].conditional_epsilon is not None
    assert gone.guarantee.conditional_epsilon is gone.needed_z0 is None
    assert "No z0" in str(panels.tell_bill(gone))


@settings(max_examples=25)
@given(st.floats(0.05, 3), st.integers(1, 40), st.sampled_from([0.1, 0.01, 1e-5]))
def test_area_of_delta_is_delta_and_both_bells_are_whole(mu: float, releases: int, delta: float) -> None:
    result = privacy_loss(mu, releases, delta)
    assert trapezoid(result.with_it, result.loss) == pytest.approx(1, abs=1e-3)
    assert trapezoid(result.loss * result.without, result.loss) == pytest.approx(-(result.mu**2) / 2, rel=1e-3)
    if result.epsilon > 0 and delta > 1e-3:  # at epsilon 0 delta covers everything
        beyond = result.loss >= result.epsilon
        assert trapezoid(result.excess[beyond], result.loss[beyond]) == pytest.approx(delta, rel=0.2)  # of a drawing


def test_best_attack_is_as_good_as_simulated_runs_show() -> None:
    result = privacy_loss(0.4, 10, 1e-5)
    noise = np.random.default_rng(0).standard_normal(100_000)
    found = np.mean(noise + 0.4 * math.sqrt(10) > norm.ppf(0.99))  # 10 releases of 0.4, over their noise
    assert found == pytest.approx(result.best_found, abs=0.005)


def test_three_ways_to_batch_are_billed_by_the_library() -> None:
    result = sampled(0.02, 0.8, 130, 1e-6)
    assert result.passes == 3
    mechanism = Mechanism.sound(1.0, 0.8, 8, 1, sampling_rate=0.02)
    assert result.sampled[-1] == pytest.approx(
        PrivacyLossDistribution(schedule_of(mechanism, releases_by_epoch(mechanism, steps=130))).epsilon(1e-6), rel=1e-9
    )
    assert result.everyone[-1] == gdp_epsilon(math.sqrt(130) / 0.8 * (1 + 1e-14), 1e-6)
    assert result.shuffled[-1] == pytest.approx(gdp_epsilon(math.sqrt(3) / 0.8, 1e-6))
    assert result.shuffled[0] == result.everyone[0]


def test_a_shuffled_pass_billed_as_a_sample_is_refuted() -> None:
    result = sampled(0.01, 1.0, 100, 1e-5)
    assert result.sampled[-1] == pytest.approx(0.72, abs=0.01)
    assert result.sampled[-1] < result.at_least < result.shuffled[-1]
    assert sampled(0.01, 1.0, 99, 1e-5).at_least == 0  # no whole pass yet
    assert sampled(0.8, 1.0, 1, 1e-5).at_least == 0  # one batch misses a fifth of the corpus


@pytest.mark.parametrize(
    "cell", [("CLC", "ATIS", "exponential"), ("BERT", "Video", "linear"), ("CLC", "SNIPS", "none")]
)
def test_settings_that_fit_give_the_printed_value(cell: tuple[str, str, str]) -> None:
    result = behind(*cell, 30)
    for tau, *both in result.fits:
        for z0 in both:
            mechanism = Mechanism.as_printed(1.0, z0, 8, 2, cell[2], tau, "public")
            claim = math.log10(claimed_epsilon(mechanism, 30, result.cell.delta))
            assert claim == pytest.approx(result.cell.log10_epsilon, abs=0.0501)
    assert result.fits


@pytest.mark.parametrize("change", [{}, {"variant": SOUND}, {"decay": "none", "target": 0.5}])
def test_command_of_the_target_meets_it(change: dict[str, Any]) -> None:
    panel = panel_of("03 bill", **change)
    report = report_of(panel.command.value.splitlines()[1])
    assert report["guaranteed"]["epsilon_in_real_numbers"] == pytest.approx(panel.result.target)


def billed(z: Callable[[float, int], float], kind: Any = GaussianDP, sampled: bool = False, steps: bool = False) -> Any:
    """Epsilon for this noise multiplier of z0 and N, for epochs or, sampled or not, for their steps."""

    def epsilon(z0: float, num_devices: int, epochs: int, batch_size: int, utterances: int, delta: float) -> float:
        count = epochs * utterances // batch_size if steps else epochs
        return kind(Schedule(z(z0, num_devices), count, batch_size / utterances if sampled else 1.0)).epsilon(delta)

    return epsilon


def right(z0: float, num_devices: int) -> float:
    return z0 / (2 * math.sqrt(num_devices))


guess = partial(prediction, "03", "decay")
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
