"""The paper's claims on which gradients and trained models have a say: P7, P12 to P14, P16, P18, P20, P21, P30 and P31.

Evidence is drawn from `runs`: from Table 1 made anew as it has been committed, and from a small CLC that trains in
seconds. Every row says which. A run that several claims rest on is trained once in a process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from edp_lab.privacy import Decay
from edp_lab.reproduce.claims import CONDITIONAL, FAILS, HOLDS, UNTESTABLE, Claim, Measured, Told, Verdict
from edp_lab.reproduce.paper.claims_printed import TRAINING
from edp_lab.reproduce.paper.printed import PUBLIC_CORPORA, TABLE_1, Table1Row
from edp_lab.reproduce.paper.runs import (
    FEW,
    PRINTED,
    SCHEMES,
    SEEDS,
    SMALL,
    Anew,
    Change,
    Outcome,
    beyond_chance,
    first_gradient_norms,
    gradient_norms,
    mean_of,
    relative,
    runs_of,
    small_config,
    small_runs,
    spread,
    table1_anew,
)

ROUGH = 2.0  # times its first value: a norm that gets no longer is roughly bounded by it
SIMILAR = 10.0  # percent: two schemes are alike if the 95 % interval of their difference lies within
COMPETITIVE = 15.0  # percent more error than SGD's: what the noise of Table 1 anew was chosen by
LOOSE = 0.5  # a rank correlation is loose if its 95 % interval lies between -0.5 and 0.5
GRID = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # of z0, for P18
LONG, LITTLE = 16, 1e-4  # epochs, in which a network begins to overfit, and z0, for P20
ANEW = "data/results/table1.json"
LOSSY = ("Comm.", "Video")
claim = partial(Claim, cell="11_claims#paper-measured", trains=True)


# ---- Gradients -------------------------------------------------------------------------------------------------------


def _norms_by_step(told: Told) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """From random and from trained weights, by seed."""
    found = []
    for seed in SEEDS:
        told(f"training: norms of gradients, seed {seed}")
        found.append(gradient_norms(seed))
    return found


def _p7_rule(m: Any) -> Verdict:
    """By the ends of the intervals. Scales are by layer, so where a layer grows further it holds of the whole gradient
    at most; and if the interval of that includes `rough`, not even so much is decided."""
    found = (m.whole, m.whole_half_width), (m.layer, m.layer_half_width), (m.tuned, m.tuned_half_width)
    whole, *layers = (times + half <= m.rough for times, half in found)
    if whole:
        return Verdict.of(all(layers), True)
    return FAILS if m.whole - m.whole_half_width > m.rough else UNTESTABLE


@claim(
    "P7",
    "The gradient norm of the first iteration is a rough upper bound of those throughout training.",
    source='section 3, "Scaling"',
    quote="a rough estimation of the upper bound of the gradient magnitude throughout training",
    inputs=lambda told: {"norms": _norms_by_step(told)},
    rule=_p7_rule,
    said="From random weights, the norm of the whole gradient reaches {whole:.2f} times its first value in {steps} "
    "steps (±{whole_half_width:.2f}); by layer, as the scales have it, one reaches {layer:.1f} times "
    "(±{layer_half_width:.1f}). Where training goes on from trained weights, as in fine-tuning, a layer reaches "
    "{tuned:.1f} times its first norm (±{tuned_half_width:.1f}; small CLC, measured now). Up to {rough:g} times is "
    '"rough" for us; the whole gradient decides, and an interval that includes {rough:g} leaves the claim open.',
    strength="measured ({seeds} seeds, {whole:.2f} ±{whole_half_width:.2f} times)",
    counter={
        "norms that only fall": (
            HOLDS,
            {"whole": 1.0, "layer": 1.0, "layer_half_width": 0.1, "tuned": 1.0, "tuned_half_width": 0.1},
        ),
        "a whole gradient that stays within": (CONDITIONAL, {"whole_half_width": 0.2}),
        "a whole gradient three times as long": (FAILS, {"whole": 3.0}),
    },
)
def p7_first_norm(norms: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> Measured:
    """Later gradient norms over the first one: means over seeds, with 95 % half-widths.

    `norms`: by seed, by step and layer (S, K), from random and from trained weights; see `gradient_norms`.
    """

    def largest(later: NDArray[np.float64]) -> float:
        return float((later[1:].max(axis=0) / later[0]).max())

    totals = [np.linalg.norm(random, axis=1) for random, _ in norms]
    ratios = {
        "whole": [float(total[1:].max() / total[0]) for total in totals],
        "layer": [largest(random) for random, _ in norms],
        "tuned": [largest(later) for _, later in norms],
    }
    return {"seeds": len(norms), "steps": len(totals[0]), "rough": ROUGH, **spread(**ratios)}


@claim(
    "P30",
    "The magnitude of the gradient differs between layers.",
    source='section 3, "Scaling", first sentences',
    quote="the magnitude of the gradient varies across parameters in the model",
    inputs=lambda told: {"norms": [first_gradient_norms(seed=seed) for seed in SEEDS]},
    trains=False,
    rule=lambda m: (
        UNTESTABLE
        if m.times - m.half_width <= m.hardly_different < m.times + m.half_width
        else Verdict.of(m.times - m.half_width >= m.different, m.times > m.hardly_different)
    ),
    said="On the first batch the norms of {layers} layers differ by a factor of {times:.0f} (±{half_width:.0f}; small "
    "CLC, measured now). What follows from it is another matter (P3).",
    strength="measured ({seeds} seeds, {times:.0f} ±{half_width:.0f} times)",
    counter={
        "layers alike": (FAILS, {"times": 1.1, "half_width": 0.2}),
        "layers a little apart": (CONDITIONAL, {"times": 2.0, "half_width": 0.2}),
        "layers alike or apart": (UNTESTABLE, {"times": 2.0, "half_width": 1.0}),
    },
)
def p30_layers_differ(norms: Sequence[Mapping[str, float]]) -> Measured:
    """The largest norm of a layer over the smallest, in the first gradient; by seed, see `first_gradient_norms`."""
    times, half_width = mean_of([max(one.values()) / min(one.values()) for one in norms])
    return {
        "seeds": len(norms), "layers": len(norms[0]), "times": times, "half_width": half_width,
        "different": 3.0, "hardly_different": 1.5,
    }  # fmt: skip


@claim(
    "P31",
    "Gradients get smaller towards convergence.",
    source='section 3, "Noise Decay", second sentence',
    quote="the magnitude of the gradients is likely to decrease when approaching convergence",
    inputs=lambda told: {"norms": _norms_by_step(told)},
    rule=lambda m: (
        UNTESTABLE
        if abs(m.left_percent - 100) <= m.half_width
        else Verdict.of(m.left_percent + m.half_width <= m.small_percent, m.left_percent < 100)
    ),
    said="In {steps} steps the norm of the gradient falls to {left_percent:.0f} % (±{half_width:.0f}; small CLC, "
    "measured now). Whether decaying the noise, too, is worth its price is another matter (P12).",
    strength="measured ({seeds} seeds, {left_percent:.0f} ±{half_width:.0f} %)",
    counter={
        "gradients that grow": (FAILS, {"left_percent": 120.0}),
        "gradients that hardly shrink": (CONDITIONAL, {"left_percent": 90.0}),
        "gradients that grow or shrink": (UNTESTABLE, {"left_percent": 98.0}),
    },
)
def p31_gradients_shrink(norms: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> Measured:
    """Mean norm of the whole gradient in the last tenth of a training from random weights over that in the first, by
    seed; see `gradient_norms`."""
    totals = [np.linalg.norm(random, axis=1) for random, _ in norms]
    tenth = max(1, len(totals[0]) // 10)
    left, half = mean_of([100 * float(total[-tenth:].mean() / total[:tenth].mean()) for total in totals])
    return {
        "seeds": len(norms), "steps": len(totals[0]), "left_percent": left, "half_width": half, "small_percent": 50.0,
    }  # fmt: skip


# ---- Trained models --------------------------------------------------------------------------------------------------


def _change(what: str, before: Sequence[Outcome], after: Sequence[Outcome]) -> list[float]:
    """Of `ser` or `auc`, seed by seed, in percent."""
    return relative(*([getattr(run, what) for run in runs] for runs in (before, after)))


def _anew_said(anew: Sequence[Anew], text: str) -> str:
    """The text where Table 1 has been made anew, else nothing."""
    return f"{text} ({ANEW})" if anew else ""


def _dominates(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Not worse in error and attack, and better in one of them."""
    return one != other and one[0] <= other[0] and one[1] <= other[1]


def _p12_rule(m: Any) -> Verdict:
    """Its own table can refute it; what supports it takes corpora as large as those that it names."""
    if 2 * m.rows_with_a_better_decay < m.rows:
        return FAILS
    if m.utterances_anew < m.utterances_named:
        return UNTESTABLE
    return Verdict.of(m.cells_anew_that_dominate == m.cells_anew, m.cells_anew_that_dominate > 0)


@claim(
    "P12",
    "On the larger corpora, where a loss of utility is expected (communication and video), linear or exponential "
    "decay gives a better trade-off of privacy and utility than none.",
    source="section 5, first paragraph; Table 1",
    quote="either linear or exponential decay offer a better privacy-utility trade-off than no decay on larger",
    inputs=lambda told: {"anew": table1_anew()},
    trains=False,
    rule=_p12_rule,
    said="As printed, in {rows_with_a_better_decay} of {rows} rows a decay has no larger error and a weaker attack "
    "than none, in {rows_with_no_larger_epsilon} at no larger epsilon. At one z0 and number of epochs a decay can only "
    "raise epsilon; {columns_with_a_smaller_epsilon} columns have a smaller one, so columns differ in more than decay. "
    "Corpora of {utterances_named:,} training utterances are not at hand. On ours, of up to {utterances_anew:,}, "
    "{cells_anew_that_dominate} of {cells_anew} decays are no worse in both at equal epsilon ({origin}).",
    strength="argued",
    counter={
        "its own table against it": (FAILS, {"rows_with_a_better_decay": 1}),
        "made anew at that size, to no avail": (FAILS, {"utterances_anew": 450_000}),
        "made anew at that size": (HOLDS, {"utterances_anew": 450_000, "cells_anew_that_dominate": 12}),
    },
)
def p12_decay(anew: Sequence[Anew] = (), table: Sequence[Table1Row] = TABLE_1) -> Measured:
    """The rows of Table 1 that the sentence names, and its public corpora made anew, where decays have the epsilon of
    none."""
    named = [row for row in table if row.corpus in LOSSY]
    better = [
        (row, one)
        for row in named
        for one in (row.linear, row.exponential)
        if _dominates((one.ser, one.mia_auc), (row.none.ser, row.none.mia_auc))
    ]
    decays = [(row.none, change) for row in table for change in (row.linear, row.exponential)]
    still = {(cell.model, cell.corpus): cell for cell in anew if cell.decay is Decay.NONE}
    falling = [(cell, still[cell.model, cell.corpus]) for cell in anew if cell.decay is not Decay.NONE]
    return {
        "rows": len(named), "rows_with_a_better_decay": len({row for row, _ in better}),
        "rows_with_no_larger_epsilon": len({r for r, one in better if one.log10_epsilon <= r.none.log10_epsilon}),
        "columns_with_a_smaller_epsilon": sum(one.log10_epsilon < none.log10_epsilon for none, one in decays),
        "utterances_named": min(TRAINING[name] for name in LOSSY),
        "utterances_anew": max((cell.examples for cell in anew), default=0), "cells_anew": len(falling),
        "cells_anew_that_dominate": sum(
            _dominates((d.ser.mean, d.auc.mean), (n.ser.mean, n.auc.mean)) for d, n in falling
        ),
        "origin": ANEW,
    }  # fmt: skip


def auc_change_half_width(area: float, percent: float, side: int) -> float:
    """Of the relative change, in percent, of an AUC between two models, each attacked on `side` members and as many
    non-members: 95 %, from the variance of Hanley and McNeil 1982; takes the two areas for independent."""

    def relative(a: float) -> float:
        """Variance of an area, over its square."""
        q1, q2 = a / (2 - a), 2 * a**2 / (1 + a)
        return (a * (1 - a) + (side - 1) * (q1 + q2 - 2 * a**2)) / side**2 / a**2

    errors = relative(area) + relative(area * (1 + percent / 100))
    return 1.96 * 100 * (1 + percent / 100) * math.sqrt(errors)


def _p13_rule(m: Any) -> Verdict:
    """One gain that is no chance is enough for "one can"; where there are some only if each is tested alone, more seeds
    must tell."""
    if m.gains:
        return Verdict.of(m.gains == m.changes and m.printed_that_rise == 0, True)
    return UNTESTABLE if m.gains_one_by_one else FAILS


@claim(
    "P13",
    "With DP-SGD in fine-tuning, one can obtain models of competitive utility with significantly better protection "
    "against membership inference.",
    source="section 1, contribution (ii); abstract; Table 1",
    quote="while achieving significant gains in protection against privacy attacks",
    inputs=lambda told: {"anew": table1_anew(variants=("as printed", "sound"))},
    trains=False,
    rule=_p13_rule,
    said="Of {printed} printed changes {printed_that_rise} rise, and of {printed_with_a_size} on public corpora "
    "{within_sampling_error} lie within the 95 % sampling error of an AUC (±{half_width_on_atis:.1f} % on ATIS); "
    "there are no seeds and one average-case attack. Made anew with {seeds} seeds, as printed and sound, there are "
    "{changes} changes of two attacks, the paper's and one by the loss ({origin}). {falls_one_by_one} fall beyond "
    "chance if each is tested alone, {gains_one_by_one} of them at no more than {competitive_percent:.0f} % more "
    "error. Holm's correction for {changes} tests leaves {falls}, and {gains} of these; for the {changes_as_printed} "
    "as printed by themselves it leaves {gains_as_printed} such gains. So the answer turns on what is tested "
    "together: {seeds} seeds are too few. Learning less weakens attacks, too, and needs no noise.",
    strength="measured ({seeds} seeds, 95 % half-widths of {smallest_half_width:.1f} to {largest_half_width:.1f} %)",
    counter={
        "every change beyond chance": (HOLDS, {"printed_that_rise": 0, "gains": 72}),
        "one beyond chance at a competitive error": (CONDITIONAL, {"gains": 1}),
        "none at a competitive error": (FAILS, {"gains_one_by_one": 0}),
    },
)
def p13_membership(anew: Sequence[Anew]) -> Measured:
    """The printed changes of the AUC beside the sampling error of an AUC, and changes made anew by both attacks, which
    have intervals; a gain is a fall at a competitive error."""
    printed = [(row, change) for row in TABLE_1 for change in row.changes.values()]
    within = [
        abs(change.mia_auc) <= auc_change_half_width(row.sgd_mia_auc / 100, change.mia_auc, TRAINING[row.corpus])
        for row, change in printed
        if row.sgd_mia_auc is not None
    ]
    tests = [(cell, change) for cell in anew for change in (cell.auc, cell.loss_auc)]
    as_printed = [test for test in tests if test[0].variant == "as printed"]
    alone = [test for test in tests if test[1].falls]
    widths = [change.half_width for _, change in tests]

    def together(tests: Sequence[tuple[Anew, Change]]) -> list[tuple[Anew, Change]]:
        surely = beyond_chance([change for _, change in tests])
        return [test for test, sure in zip(tests, surely, strict=True) if sure and test[1].mean < 0]

    def gains(tests: Sequence[tuple[Anew, Change]]) -> int:
        return sum(cell.ser.mean <= COMPETITIVE for cell, _ in tests)

    return {
        "printed": len(printed), "printed_that_rise": sum(change.mia_auc > 0 for _, change in printed),
        "printed_with_a_size": len(within), "within_sampling_error": sum(within),
        "half_width_on_atis": auc_change_half_width(0.675, -8.26, TRAINING["ATIS"]),
        "changes": len(tests), "seeds": min(cell.auc.seeds for cell in anew), "competitive_percent": COMPETITIVE,
        "falls_one_by_one": len(alone), "gains_one_by_one": gains(alone),
        "falls": len(together(tests)), "gains": gains(together(tests)),
        "changes_as_printed": len(as_printed), "gains_as_printed": gains(together(as_printed)),
        "smallest_half_width": min(widths), "largest_half_width": max(widths), "origin": ANEW,
    }  # fmt: skip


def _p14_rule(m: Any) -> Verdict:
    """Alike at the same settings, it holds; where they differ there, other settings may still have made them alike."""
    intervals = (abs(m.error), m.error_half_width), (abs(m.attack), m.attack_half_width)
    if all(size + half <= m.similar_percent for size, half in intervals):
        return HOLDS
    return CONDITIONAL if all(size <= half for size, half in intervals) else UNTESTABLE


def _each_alone_and_printed(told: Told) -> Mapping[str, Any]:
    each, printed = "DP-SGD", "no decay"
    found = small_runs(told, {name: SCHEMES[name] for name in (each, printed)})
    return {"per_example": found[each], "printed": found[printed]}


@claim(
    "P14",
    "Results of DP-SGD are similar to those of eDP-SGD without decay.",
    source="section 5, first paragraph",
    quote="we do not report DP-SGD results separately as they are similar to the no decay scheme",
    inputs=_each_alone_and_printed,
    rule=_p14_rule,
    said="The paper prints no numbers of DP-SGD and not at which settings, so whether the two were alike as tuned "
    "there cannot be known. At the same C and z0, eDP-SGD without decay has an error {error:+.0f} % "
    "(±{error_half_width:.0f}) and an AUC {attack:+.1f} % (±{attack_half_width:.1f}) against DP-SGD's ({seeds} "
    "seeds; {origin}): what is clipped, how it is scaled and how much noise there is are not the same.",
    strength="measured ({seeds} seeds, error ±{error_half_width:.0f} %, AUC ±{attack_half_width:.1f} %)",
    counter={
        "a few percent apart": (
            HOLDS,
            {"error": 2.0, "error_half_width": 3.0, "attack": 0.5, "attack_half_width": 1.0},
        ),
        "cannot tell": (
            CONDITIONAL,
            {"error": 20.0, "error_half_width": 30.0, "attack": 0.5, "attack_half_width": 1.0},
        ),
    },
)
def p14_like_dp_sgd(per_example: Sequence[Outcome], printed: Sequence[Outcome]) -> Measured:
    """Per-example DP-SGD against Algorithm 1 without decay, at the same C and z0, seed by seed."""
    found = {"error": _change("ser", per_example, printed), "attack": _change("auc", per_example, printed)}
    return {**spread(**found), "similar_percent": SIMILAR, "seeds": len(printed), "origin": SMALL}


@claim(
    "P16",
    "Our reading: Adam serves SGD, eDP-SGD and DP-SGD alike, so that their columns differ in privacy only.",
    source="section 4.2, last sentence; Table 1",
    quote="ADAM optimizer is use for all",
    inputs=lambda told: {"runs": small_runs(told, SCHEMES)},
    rule=lambda m: Verdict.of(m.largest_share_percent <= m.most_percent, m.smallest_share_percent <= m.most_percent),
    said="None of the three is SGD. In the median weight, of what Adam divides by so much is noise: {shares}; small "
    "CLC, measured now. So private runs take other steps than plain ones for a reason that is not privacy. "
    "DP-AdamBC (Tang et al. 2023) takes this noise off again. The paper itself does not say that Adam does the same "
    "under noise.",
    strength="argued",
    counter={
        "gradients outweigh noise": (HOLDS, {"largest_share_percent": 5.0, "smallest_share_percent": 2.0}),
        "in one scheme only": (CONDITIONAL, {"smallest_share_percent": 5.0}),
    },
)
def p16_one_optimizer(runs: Mapping[str, Sequence[Outcome]], most: float = 0.1) -> Measured:
    """How much of Adam's second moment is noise, by scheme."""
    shares = {
        scheme: mean(run.noise_share for run in found if run.noise_share is not None) for scheme, found in runs.items()
    }
    largest, smallest = (100 * pick(shares.values()) for pick in (max, min))
    return {
        "largest_share_percent": largest, "smallest_share_percent": smallest, "most_percent": 100 * most,
        "shares": ", ".join(f"{share:.0%} ({scheme})" for scheme, share in shares.items()),
    }  # fmt: skip


def _ranks(one: Sequence[float], other: Sequence[float]) -> float:
    return float(spearmanr(one, other).statistic)


def _p18_rule(m: Any) -> Verdict:
    """By the ends of the interval: where it is neither all loose nor all close, nothing is decided. A close correlation
    with all else equal leaves a loose one between cells true under a condition."""
    if max(-m.correlation_low, m.correlation_high) < m.loose:
        return Verdict.of(abs(m.correlation_all_else_equal) < m.loose, True)
    return FAILS if max(m.correlation_low, -m.correlation_high) >= m.loose else UNTESTABLE


@claim(
    "P18",
    "Our reading: also beyond the cells of Table 1, epsilon correlates only loosely with the success of membership "
    "inference.",
    source="section 5, first paragraph; section 6",
    quote="seem to have a loose correlation with MIA success rate",
    inputs=lambda told: {
        "grid": runs_of("values of z0", told, [small_config(FEW[0], **{**PRINTED, "z0": z0}) for z0 in GRID]),
        "anew": table1_anew(),
    },
    rule=_p18_rule,
    said="Over the {cells} cells of Table 1 the rank correlation is {correlation:.2f}{anew}. Below {loose:g} is "
    '"loose" for us, so of these cells the sentence is right. The 95 % interval is {correlation_low:.2f} to '
    "{correlation_high:.2f}, so beyond them nothing is decided. The cells differ in corpus, model and tuning, and "
    "their epsilons bound nothing (P11). In {runs} runs that differ in z0 alone the correlation is "
    "{correlation_all_else_equal:.2f}: the AUC falls from {highest_auc:.2f} to {lowest_auc:.2f} with epsilon (small "
    "CLC, measured now).",
    strength="measured ({cells} cells, 95 %: {correlation_low:.2f} to {correlation_high:.2f}, were they independent)",
    counter={
        "loose, and all else equal, too": (HOLDS, {"correlation_high": 0.4, "correlation_all_else_equal": 0.1}),
        "loose between cells only": (CONDITIONAL, {"correlation_high": 0.4}),
        "closely related": (FAILS, {"correlation_low": 0.8, "correlation_high": 0.95}),
    },
)
def p18_loose_correlation(grid: Sequence[Outcome], anew: Sequence[Anew] = ()) -> Measured:
    """Rank correlation of epsilon with the attack: between Table 1's cells, and along z0 with all else equal.

    Args:
        grid: small runs that differ in z0 alone.
        anew: Table 1 made anew.
    """
    cells = [change for row in TABLE_1 for change in row.changes.values()]
    printed = _ranks([cell.log10_epsilon for cell in cells], [cell.mia_auc for cell in cells])
    reach = 1.96 / math.sqrt(len(cells) - 3)  # Fisher's z
    if len({cell.log10_epsilon for cell in anew}) < 3:  # decays share an epsilon there: it takes some corpora
        anew = ()
    ours = _ranks([cell.log10_epsilon for cell in anew], [cell.auc.mean for cell in anew]) if anew else 0.0
    areas, claimed = [run.auc for run in grid], [run.log10_epsilon or 0.0 for run in grid]
    return {
        "cells": len(cells), "correlation": printed,
        "correlation_low": math.tanh(math.atanh(printed) - reach),
        "correlation_high": math.tanh(math.atanh(printed) + reach),
        "cells_anew": len(anew), "correlation_anew": ours,
        "anew": _anew_said(anew, f"; made anew, over {len(anew)} cells, it is {ours:.2f}"),
        "runs": len(grid), "correlation_all_else_equal": _ranks(claimed, areas), "loose": LOOSE,
        "highest_auc": max(areas), "lowest_auc": min(areas),
    }  # fmt: skip


def _p20_rule(m: Any) -> Verdict:
    """Where the error falls, it holds if the attack does; where no error falls there is nothing to explain, and where
    dropout makes no attack weaker nothing to see."""
    to_explain, to_see = m.error < -m.error_half_width, m.attack_with_dropout < -m.attack_with_dropout_half_width
    return Verdict.of(m.attack < -m.attack_half_width) if to_explain and to_see else UNTESTABLE


def _overfitted(told: Told) -> Mapping[str, Any]:
    long: dict[str, Any] = {"epochs": LONG, "dropout": 0.0}
    settings = {
        "plain": {"method": "sgd", **long},
        "private": {**PRINTED, **long, "z0": LITTLE},
        "dropout": {"method": "sgd", "epochs": LONG},
    }
    return {**small_runs(told, settings), "anew": table1_anew()}


@claim(
    "P20",
    "Where eDP-SGD lowers the error, it does so by acting as a regularizer.",
    source="section 5, first paragraph",
    quote="we attribute the improvement in performance to eDP-SGD acting as a regularizer",
    inputs=_overfitted,
    rule=_p20_rule,
    said="{public_cells_that_improve} of {public_cells} cells on public corpora improve{anew}. A regularizer makes a "
    "model fit its training set less closely, and attacks weaker. Small CLC, trained until it overfits, {seeds} "
    "seeds, measured now: dropout changes the error by {error_with_dropout:+.1f} % "
    "(±{error_with_dropout_half_width:.1f}) and the attack's AUC by {attack_with_dropout:+.1f} % "
    "(±{attack_with_dropout_half_width:.1f}); Algorithm 1 with little noise the error by {error:+.1f} % "
    "(±{error_half_width:.1f}) and the AUC by {attack:+.1f} % (±{attack_half_width:.1f}). Only where its error "
    "falls beyond chance is there something to explain.",
    strength="measured ({seeds} seeds, error ±{error_half_width:.1f} %, AUC ±{attack_half_width:.1f} %)",
    counter={
        "less error and a weaker attack": (
            HOLDS,
            {"error": -9.0, "error_half_width": 2.0, "attack": -5.0, "attack_half_width": 2.0},
        ),
        "less error only": (FAILS, {"error": -9.0, "error_half_width": 2.0, "attack": 5.0}),
    },
)
def p20_regularizer(
    plain: Sequence[Outcome], private: Sequence[Outcome], dropout: Sequence[Outcome], anew: Sequence[Anew] = ()
) -> Measured:
    """What a regularizer does, a model fits its training set less closely, so that an attack on it gets weaker: by
    dropout, and by Algorithm 1 with little noise, where plain training goes on until it overfits.

    Args:
        plain, private, dropout: small runs, seed by seed, the first two without dropout.
        anew: Table 1 made anew.
    """
    public = [change.ser for row in TABLE_1 if row.corpus in PUBLIC_CORPORA for change in row.changes.values()]
    improved = sum(cell.ser.falls for cell in anew)
    changes = {
        f"{name}{end}": _change(what, plain, runs)
        for end, runs in (("", private), ("_with_dropout", dropout))
        for name, what in (("error", "ser"), ("attack", "auc"))
    }
    told = f"; made anew, each at a z0 that may cost some error, {improved} of {len(anew)} do beyond chance"
    return {
        "public_cells": len(public), "public_cells_that_improve": sum(change < 0 for change in public),
        "cells_anew": len(anew), "cells_anew_that_improve": improved, "anew": _anew_said(anew, told),
        **spread(**changes), "seeds": len(plain),
    }  # fmt: skip


@claim(
    "P21",
    "Scaling reduces the number of hyper-parameters to tune for every new model or dataset.",
    source='section 3, "Scaling", last sentence',
    quote="also reduces the number of hyper-parameters to tune for every new model or dataset",
    inputs=lambda told: {"norms": first_gradient_norms()},
    trains=False,
    rule=lambda m: Verdict.of(
        m.knobs_with_scaling < m.knobs_with_one_clip_norm,
        m.knobs_with_scaling < m.knobs_with_a_clip_norm_for_each_layer,
    ),
    said="Against a clip norm for each layer it does: {knobs_with_scaling} instead of "
    "{knobs_with_a_clip_norm_for_each_layer} (small CLC). Against one for all layers, as in DP-SGD, nothing is saved. "
    "The constant s of the scales is not given. It is no further knob, since (s α, C, z) does the same as (α, s C, z / "
    "s), but it decides what a printed C and z mean.",
    strength="argued",
    counter={
        "no knob at all": (HOLDS, {"knobs_with_scaling": 0}),
        "as many knobs": (FAILS, {"knobs_with_scaling": 14}),
    },
)
def p21_fewer_knobs(norms: Mapping[str, float]) -> Measured:
    """What there is to be chosen with and without scaling; a norm of the first gradient for each layer."""
    return {
        "knobs_with_a_clip_norm_for_each_layer": len(norms), "knobs_with_one_clip_norm": 1, "knobs_with_scaling": 1,
    }  # fmt: skip
