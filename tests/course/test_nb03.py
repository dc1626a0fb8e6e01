"""Notebook 03: figures, texts and commands agree with the accountants, no attack is better than they allow, and wrong
answers are recognised. The contract of all panels is in `test_contract`."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.optimize import brentq
from scipy.stats import norm

from edp_lab.course.nb03_cost.panels import behind, privacy_loss, releases_of, run_bill, sampled
from edp_lab.privacy import GaussianDP, PrivacyLossDistribution, ReshufflingZCDP, gdp_epsilon
from tests.course.conftest import prose
from tests.course.examples import Wrong


@pytest.mark.parametrize("z", [0.3, 2.0])
def test_bill_is_the_librarys_and_noise_meets_the_target(z: float) -> None:
    result = run_bill(z, 20, 8.0, 1e-5)
    assert result.after[-1] == 20
    for epochs, verdict in zip(result.after, result.verdicts, strict=True):
        assert verdict.claimed_epsilon == pytest.approx(ReshufflingZCDP(releases_of(z, epochs)).epsilon(1e-5))
        assert verdict.conditional_epsilon == pytest.approx(gdp_epsilon(math.sqrt(epochs) / z, 1e-5))
    met, missed = (run_bill(z, 20, 8.0, 1e-5).guarantee for z in (result.needed_z, 0.99 * result.needed_z))
    assert met.conditional_epsilon is not None
    assert missed.conditional_epsilon is not None
    assert met.conditional_epsilon <= 8 < missed.conditional_epsilon
    assert run_bill(result.claimed_z, 20, 8.0, 1e-5).guarantee.claimed_epsilon == pytest.approx(8)


def test_numbers_of_the_folded_answers() -> None:
    text = prose("03")
    for mu, said in ((math.sqrt(10), "17.9"), (2, "10.0")):
        assert f"{gdp_epsilon(mu, 1e-5):.1f}" == said
        assert said in text
    assert f"every ε below {sampled(0.01, 1.0, 100, 1e-5).at_least:.2f}" in text


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
    found = np.mean(noise + 0.4 * math.sqrt(10) > norm.ppf(0.99))  # 10 releases of 0.4, relative to their noise
    assert found == pytest.approx(result.best_found, abs=0.005)


def test_a_shuffled_pass_billed_as_a_sample_is_refuted() -> None:
    result = sampled(0.01, 1.0, 100, 1e-5)
    assert result.sampled[-1] == pytest.approx(0.72, abs=0.01)
    assert result.sampled[-1] < result.at_least < result.shuffled[-1]
    assert sampled(0.01, 1.0, 99, 1e-5).at_least == 0  # not a full pass over the corpus
    assert sampled(0.8, 1.0, 1, 1e-5).at_least == 0  # one batch omits a fifth of the corpus


@pytest.mark.parametrize(("row", "digits"), [(("CLC", "ATIS"), 10_909), (("BERT", "Video"), 35)])
def test_settings_that_fit_give_the_printed_value(row: tuple[str, str], digits: int) -> None:
    result = behind(*row, 30)
    assert result.fits
    for z in result.fits:
        claim = math.log10(ReshufflingZCDP(releases_of(z, 30)).epsilon(result.row.delta))
        assert claim == pytest.approx(result.row.none.log10_epsilon, abs=0.0501)
    assert result.digits == digits
    assert behind("BERT", "Video", 93).fits is None is not behind("BERT", "Video", 92).fits


def billed(factor: float, kind: Any = GaussianDP, sampled: bool = False, steps: bool = False) -> Any:
    """Epsilon for a sensitivity of `factor` times C, over epochs or over steps, with or without sampling."""

    def epsilon(noise: float, clip_norm: float, epochs: int, batch_size: int, utterances: int, delta: float) -> float:
        count = epochs * utterances // batch_size if steps else epochs
        rate = batch_size / utterances if sampled else 1.0
        return kind(releases_of(noise / (factor * clip_norm), count, rate)).epsilon(delta)

    return epsilon


def total(decay: Any) -> Any:
    return np.sqrt(np.sum(1 / decay**2))


def noise_for(mu_of: Any = total, rho_of: Any = lambda decay: total(decay) ** 2 / 2) -> Any:
    """An answer that computes μ and ρ of a run at z0 = 1 with these functions."""

    def answer(target: float, decay: Any, delta: float) -> Any:
        log = math.log(1 / delta)
        rho = (math.sqrt(log + target) - math.sqrt(log)) ** 2
        mu = brentq(lambda mu: gdp_epsilon(mu, delta) - target, 1e-3, 100)
        return np.sqrt(rho_of(decay) / rho), mu_of(decay) / mu

    return answer


WRONG: dict[str, dict[str, Any]] = {
    "noise": {
        "adds mu up": Wrong(noise_for(lambda decay: np.sum(1 / decay)), "That adds up μ"),
        "bills every epoch like the first": Wrong(
            noise_for(lambda decay: np.sqrt(len(decay)), lambda decay: len(decay) / 2), "noise of the first epoch"
        ),
        "forgets the root": Wrong(noise_for(lambda decay: np.sum(1 / decay**2)), "That is the square of the run's μ"),
        "divides by the decay": Wrong(
            noise_for(lambda decay: total(1 / decay), lambda decay: total(1 / decay) ** 2 / 2), "That divides by d"
        ),
        "forgets the 2": Wrong(noise_for(rho_of=lambda decay: total(decay) ** 2), "forgets the 2"),
        "the wrong way round": Wrong(lambda *case: noise_for()(*case)[::-1], "in the wrong order"),
        "the bound twice": Wrong(lambda *case: (noise_for()(*case)[0],) * 2, "the same z0 twice"),
        "the exact one alone": Wrong(lambda *case: noise_for()(*case)[1], "return two numbers"),
        "takes ε for ρ": lambda target, decay, delta: (np.sqrt(np.sum(1 / decay**2) / 2 / target), 1.0),
        "asks the array (crash)": lambda target, decay, delta: decay.mu(),
    },
    "bill": {
        "mends the batches, takes C for the sensitivity": Wrong(billed(1), "that uses C as the sensitivity."),
        "mends the noise, bills a sample": Wrong(
            billed(2, PrivacyLossDistribution, sampled=True, steps=True), "but the batches were shuffled."
        ),
        "forgets that noise has a unit": lambda *given: GaussianDP(releases_of(given[0], given[2])).epsilon(given[-1]),
        "bills every step of an epoch": Wrong(
            billed(2, steps=True), "but an utterance is in one step of an epoch only."
        ),
        "takes the batch for the epochs (crash)": lambda *given: GaussianDP(releases_of(given[0], -1)).epsilon(
            given[-1]
        ),
    },
}


RIGHT = {"noise": (noise_for(),), "bill": (billed(2, ReshufflingZCDP),)}  # another valid bound
