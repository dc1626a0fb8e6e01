"""The thesis' claims about one noise, one vote or one table, each with evidence that needs no trained network.

Rows T1, T3, T4, T5, T7, T8, T13, T16, T21 and T23 of the claims ledger. What adds up over many releases is in
`thesis_composition`, what the thesis says of itself in `thesis_text`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import i0e

from edp_lab.errors import UsageError
from edp_lab.privacy.anonymity import anonymise, link
from edp_lab.privacy.composition import gaussian_loss_tail
from edp_lab.privacy.foundations import analytic_gaussian_sigma, gaussian_epsilon, gaussian_release
from edp_lab.privacy.gdp import gdp_delta
from edp_lab.reproduce.evidence import Evidence, Measured, Verdict
from edp_lab.reproduce.thesis.thesis_foundations import (
    QUASI_IDENTIFIERS,
    identified_with_month,
    loss_figures,
    printed_sigma,
    synthetic_voters,
)

DELTA = 1e-5
PIXEL_SIGMA, PIXEL_EPSILON = 0.6, 2.5  # section 3.1.1: said to belong together


def t1_pixel_noise(
    pixels: int = 784, sigma: float = PIXEL_SIGMA, delta: float = DELTA, labels_noised: bool = False
) -> Evidence:
    """Two images in [0, 1]^pixels are up to sqrt(pixels) apart; a guarantee must hold for any two."""
    sensitivity = math.sqrt(pixels)
    measured: Measured = {
        "claimed_epsilon": PIXEL_EPSILON,
        "delta": delta,
        "sigma": sigma,
        "sensitivity": sensitivity,
        "epsilon": gaussian_epsilon(sensitivity, sigma, delta),
        "epsilon_at_sensitivity_1": gaussian_epsilon(1.0, sigma, delta),
        "eq_3_1_at_sensitivity_1": printed_sigma(1.0, delta) / sigma,
        "sensitivity_needed": sigma / analytic_gaussian_sigma(1.0, PIXEL_EPSILON, delta),
        "sensitivity_needed_by_eq_3_1": sigma / printed_sigma(PIXEL_EPSILON, delta),
        "labels_noised": labels_noised,
    }
    return Evidence(
        "T1",
        "Gaussian noise of standard deviation 0.6 on every pixel makes the data set (2.5, 1e-5)-DP.",
        "section 3.1.1, eq 3.1; section 3.5, item 1",
        measured,
        lambda m: Verdict.of(
            m["epsilon"] <= m["claimed_epsilon"] and m["labels_noised"], m["epsilon"] <= m["claimed_epsilon"]
        ),
        "An image has L2 sensitivity {sensitivity:.3g}, so sigma {sigma:g} gives epsilon {epsilon:.4g}; "
        "{claimed_epsilon:g} needs a sensitivity of {sensitivity_needed:.2f}. "
        + ("The labels get noise as well." if labels_noised else "The labels get no noise."),
    )


def t3_correlation(
    images: ArrayLike, rng: np.random.Generator, name: str = "images", sigma: float = PIXEL_SIGMA
) -> Evidence:
    """Mean of eq 3.4 over images (n, ...) in [0, 1], each against itself with noise; `name` says whose they are.

    Raises:
        UsageError: fewer than one image, or one of a single shade, whose correlation is undefined.
    """
    clean = np.asarray(images, dtype=np.float64)
    clean = clean.reshape(len(clean), -1)
    spread = clean.std(axis=1)
    if not spread.size or not spread.min() > 0:
        raise UsageError("an image of one shade has no correlation with anything: leave out such images")
    noised = gaussian_release(clean, sigma, rng)
    claimed = 0.81254

    def expected(noise: float) -> float:
        return float((spread / np.hypot(spread, noise)).mean())

    measured: Measured = {
        "claimed_correlation": claimed,
        "images": name,
        "sigma": sigma,
        "correlation": _mean_correlation(clean, noised),
        "correlation_after_clipping_to_0_1": _mean_correlation(clean, noised.clip(0, 1)),
        "sigma_for_the_claim": float(brentq(lambda noise: expected(noise) - claimed, 1e-9, 1e9)),
        "correlation_of_the_negative": _mean_correlation(clean, 1 - clean),
    }
    return Evidence(
        "T3",
        "Noised and original images correlate with 0.8125 on average, which shows that the noise keeps the statistics.",
        "section 3.4.1, eq 3.4",
        measured,
        lambda m: Verdict.of(abs(m["correlation"] - m["claimed_correlation"]) <= 0.01),
        "At sigma {sigma:g} the mean correlation is {correlation:.3f} ({images}); {claimed_correlation:.4f} belongs to "
        "sigma {sigma_for_the_claim:.2f}. It is no measure of privacy: a photographic negative hides nothing and has "
        "{correlation_of_the_negative:.0f}.",
    )


def _mean_correlation(a: np.ndarray, b: np.ndarray) -> float:
    a, b = (x - x.mean(axis=1, keepdims=True) for x in (a, b))
    return float(((a * b).sum(axis=1) / np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))).mean())


def t4_local_noise(people: int = 60000, sigma: float = PIXEL_SIGMA) -> Evidence:
    """The mean of one pixel, from noised records and from noise on the mean, at the same privacy of each person."""
    local, central = sigma / math.sqrt(people), sigma / people
    return Evidence(
        "T4",
        "Noise on every training image is global differential privacy.",
        "sections 2.3.3 (last sentence) and 3.1",
        {
            "people": people,
            "records_released": people,
            "error_of_a_mean": local,
            "error_of_a_mean_global": central,
            "error_ratio": local / central,
        },
        lambda m: Verdict.of(m["records_released"] == 0 and m["error_ratio"] <= 1),
        "All {records_released} records are released, each with noise of its own: that is local DP (input "
        "perturbation), and a mean over them is {error_ratio:.0f} times as noisy as under global DP.",
    )


def t5_outside_the_theorem(
    used: Sequence[tuple[float, float]] = ((2.5, DELTA), (7.0, DELTA)), clip_norm: float = 4.0
) -> Evidence:
    """The true delta of the sigma that eqs 3.1 and 3.3 give, at the epsilons that the thesis puts in."""
    ratios = [_true_delta(epsilon, delta) / delta for epsilon, delta in used]
    last = float(brentq(lambda epsilon: _true_delta(epsilon, DELTA) / DELTA - 1, 1.0, 100.0))
    measured: Measured = {
        "largest_epsilon_used": max(epsilon for epsilon, _ in used),
        "theorem_ends_at": 1.0,
        "largest_true_delta_over_delta": max(ratios),
        "true_up_to_epsilon": last,
        "true_delta_over_delta_at_10": _true_delta(10.0, DELTA) / DELTA,
        "clip_norm": clip_norm,
        "epsilon_at_clip_norm": gaussian_epsilon(clip_norm, printed_sigma(7.0, DELTA), DELTA),
    }
    return Evidence(
        "T5",
        "The noise of eqs 3.1 and 3.3 gives (2.5, 1e-5)-DP and (7, 1e-5)-DP.",
        "sections 3.1.1 and 3.2.2, eqs 3.1 and 3.3; theorem 2 asks for epsilon in (0, 1)",
        measured,
        lambda m: Verdict.of(
            m["largest_epsilon_used"] < m["theorem_ends_at"] and m["largest_true_delta_over_delta"] <= 1,
            m["largest_true_delta_over_delta"] <= 1,
        ),
        "The theorem ends at epsilon 1; computed exactly, the formula stays true up to {true_up_to_epsilon:.2f} (at 10 "
        "its delta is {true_delta_over_delta_at_10:.1f} times too small), for sensitivity 1: eq 3.3 leaves out C, and "
        "with C = {clip_norm:g} its noise for epsilon 7 gives {epsilon_at_clip_norm:.0f}.",
    )


def _true_delta(epsilon: float, delta: float) -> float:
    return gdp_delta(1 / printed_sigma(epsilon, delta), epsilon)


def t7_inverted_clipping(norms: Sequence[float] = (0.1, 1.0, 10.0), threshold: float = 1.0) -> Evidence:
    """Gradients of these norms after Algorithm 8, which rescales those *below* the threshold, and by section 2.4.8."""
    before = np.asarray(norms, dtype=np.float64)
    printed = np.where(before <= threshold, threshold, before)
    return Evidence(
        "T7",
        "Algorithm 8 clips gradients to the threshold.",
        "section 3.2.2, Algorithm 8",
        {
            "threshold": threshold,
            "largest_norm_before": float(before.max()),
            "largest_norm_after": float(printed.max()),
            "smallest_norm_after": float(printed.min()),
            "largest_norm_after_section_2_4_8": float(np.minimum(before, threshold).max()),
        },
        lambda m: Verdict.of(m["largest_norm_after"] <= m["threshold"]),
        "A gradient of norm {largest_norm_before:g} keeps a norm of {largest_norm_after:g} at threshold {threshold:g}, "
        "while small ones are blown up to it: the condition is inverted; section 2.4.8 has it right.",
    )


def t8_batch_clipping(batch: int = 250, clip_norm: float = 1.0) -> Evidence:
    """How far one example, replaced by a huge opposite one, moves the clipped gradient of its batch."""
    gradients = np.full(batch, clip_norm)
    replaced = gradients.copy()
    replaced[0] = -10.0 * batch * clip_norm

    def clip(gradient: np.ndarray) -> np.ndarray:
        return gradient.clip(-clip_norm, clip_norm)  # by norm, in one dimension

    batch_moves = abs(clip(gradients.mean()) - clip(replaced.mean()))
    example_moves = abs(clip(gradients).mean() - clip(replaced).mean())
    return Evidence(
        "T8",
        "Clipping in DPAdam (Algorithm 7) bounds the effect of each example.",
        "section 3.2.2, Algorithm 7 and the paragraphs after it",
        {
            "batch": batch,
            "moved_by_batch_clipping": float(batch_moves),
            "moved_by_example_clipping": float(example_moves),
            "ratio": float(batch_moves / example_moves),
        },
        lambda m: Verdict.of(m["moved_by_batch_clipping"] <= m["moved_by_example_clipping"] * (1 + 1e-9)),
        "Clipping the batch's gradient, as Algorithm 7 does, lets one example move it {ratio:.0f} times as far as the "
        "clipping per example that the text describes.",
    )


def t13_noisy_votes(voters: int = 10, classes: int = 10, epsilon: float = 0.2) -> Evidence:
    """The chance that a unanimous vote survives Laplace noise of scale 1 / epsilon and of 2 / epsilon."""
    one, two = (_survives(voters, classes, scale / epsilon) for scale in (1, 2))
    return Evidence(
        "T13",
        "Where the instructors agree, noise on the votes changes nothing.",
        "section 3.2.1 (noisy-max)",
        {
            "voters": voters,
            "epsilon": epsilon,
            "right_at_scale_1_over_epsilon": one,
            "right_at_scale_2_over_epsilon": two,
        },
        lambda m: Verdict.of(m["right_at_scale_2_over_epsilon"] >= 0.99, m["right_at_scale_1_over_epsilon"] >= 0.99),
        "A unanimous vote of {voters} stays right with probability {right_at_scale_2_over_epsilon:.2f} under noise of "
        "scale 2 / epsilon, which an instructor that changes its vote takes, and {right_at_scale_1_over_epsilon:.2f} "
        "under 1 / epsilon.",
    )


def _survives(lead: int, classes: int, scale: float) -> float:
    """P[lead + first noise is above all the others'] = integral of f(x - lead) F(x)^(classes - 1)."""
    from scipy.stats import laplace  # slow to import

    def density(x: float) -> float:
        return laplace.pdf(x, loc=lead, scale=scale) * laplace.cdf(x, scale=scale) ** (classes - 1)

    return float(quad(density, -40 * scale, lead + 40 * scale, points=[0, lead], limit=500)[0])


def t16_two_circles(epsilon: float = 0.2, claimed: float = 0.84953, factor: float = 0.8) -> Evidence:
    """The accuracy of the best possible classifier of two noised circles of radius 1 and `factor`.

    The thesis does not say which factor; 0.8 is the default of the `make_circles` that it names.
    """
    sigma = PIXEL_SIGMA * PIXEL_EPSILON / epsilon
    fitting = float(brentq(lambda s: _best_accuracy(s, factor) - claimed, 0.01, 5.0))
    return Evidence(
        "T16",
        "A network still separates the two circles with 85 % accuracy when the data are 0.2-DP.",
        "section 4.1, table 4.2 (100000 points)",
        {
            "claimed_accuracy": claimed,
            "epsilon": epsilon,
            "factor": factor,
            "sigma": sigma,
            "sigma_of_eq_3_1": printed_sigma(epsilon, DELTA),
            "best_accuracy": _best_accuracy(sigma, factor),
            "sigma_for_the_claim": fitting,
            "epsilon_for_the_claim": PIXEL_SIGMA * PIXEL_EPSILON / fitting,
        },
        lambda m: Verdict.of(m["best_accuracy"] >= m["claimed_accuracy"]),
        "By the thesis' own pair (sigma 0.6 for epsilon 2.5), epsilon {epsilon:g} means sigma {sigma:.1f}, where no "
        "classifier exceeds {best_accuracy:.4f}; {claimed_accuracy:.0%} fits sigma {sigma_for_the_claim:.2f}, which "
        "the same pair calls epsilon {epsilon_for_the_claim:.0f}.",
    )


def _best_accuracy(sigma: float, factor: float) -> float:
    """1/2 + a quarter of the distance between the densities of the radius, which are Rice's."""

    def density(r: float, radius: float) -> float:
        return r / sigma**2 * math.exp(-((r - radius) ** 2) / (2 * sigma**2)) * float(i0e(r * radius / sigma**2))

    def gap(r: float) -> float:
        return abs(density(r, 1.0) - density(r, factor))

    return 0.5 + 0.25 * float(quad(gap, 0, 1 + 12 * sigma, points=[factor, 1.0], limit=2000)[0])


def t21_loss_tail(variance: float = 2.0, epsilon: float = math.log(3)) -> Evidence:
    """The width that figure 2.3 measures, the delta that is needed, and the one that is printed."""
    figures = loss_figures(variance, epsilon)
    return Evidence(
        "T21",
        "A count with Gaussian noise of variance 2 is (ln 3, 0.054)-DP, as the width of the bad events shows.",
        "section 2.2.2, figures 2.1 to 2.3",
        {
            "printed_delta": figures.printed_delta,
            "tail": figures.tail,
            "tight_delta": figures.delta,
            "variance_with_that_tail": float(
                brentq(lambda v: float(gaussian_loss_tail(epsilon, v**-0.5)) - figures.printed_delta, 0.1, 100.0)
            ),
        },
        lambda m: Verdict.of(
            m["tight_delta"] <= m["printed_delta"] and abs(m["tail"] - m["printed_delta"]) <= 0.0005,
            m["tight_delta"] <= m["printed_delta"],
        ),
        "The width of the bad events is {tail:.3f} and the smallest delta {tight_delta:.3f}: {printed_delta} is true "
        "as a guarantee, but it is neither; as a width it fits a variance of {variance_with_that_tail:.2f}.",
    )


def t23_anonymity(rng: np.random.Generator, k: int = 5, most_suppressed: float = 0.05) -> Evidence:
    """A k-anonymous table of synthetic patients against a roll, and against who knows the month of a visit as well."""
    roll = synthetic_voters(rng)
    patients = roll.rows[roll.patients]
    raw, release = (anonymise(patients, QUASI_IDENTIFIERS, size, most_suppressed) for size in (1, k))
    return Evidence(
        "T23",
        "Nobody in a k-anonymous table can be identified, no matter what additional information one holds.",
        "section 2.3",
        {
            "k": k,
            "anonymity": release.anonymity,
            "identified_before": float(link(raw, roll.rows, roll.description).identified.mean()),
            "identified": float(link(release, roll.rows, roll.description).identified.mean()),
            "identified_with_one_thing_more": identified_with_month(roll, release),
        },
        _judge_t23,
        "The roll identifies {identified_before:.0%} of the patients in the plain table and {identified:.0%} in the "
        "{anonymity}-anonymous one; knowing the month of a visit as well identifies "
        "{identified_with_one_thing_more:.0%}.",
    )


def _judge_t23(m: Mapping[str, Any]) -> Verdict:
    return Verdict.of(m["identified"] == 0 and m["identified_with_one_thing_more"] == 0)
