"""The paper's claims on which trained models have a say: rows P12 to P14, P16, P18, P20 and P21.

Evidence is drawn from `paper_runs`: from Table 1 made anew where that has been committed, and from small runs that take
seconds. Every row says which.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from scipy.stats import spearmanr

from edp_lab.privacy import Decay
from edp_lab.reproduce.evidence import Evidence, Verdict
from edp_lab.reproduce.paper.printed import PUBLIC_CORPORA, TABLE_1, Table1Row
from edp_lab.reproduce.paper.printed import Change as Printed
from edp_lab.reproduce.paper.privacy import TRAINING
from edp_lab.reproduce.paper.runs import SMALL, Anew, Change, Outcome

SIMILAR = 10.0  # percent: two schemes are alike if the 95 % interval of their difference lies within
COMPETITIVE = 15.0  # percent more error than SGD's: what the noise of Table 1 anew was chosen by
LOOSE = 0.5  # of a rank correlation
ANEW = "data/results/table1.json"
LOSSY = ("Comm.", "Video")


def p12_decay(
    decayed: Sequence[Outcome],
    equal: Sequence[Outcome],
    anew: Sequence[Anew] = (),
    table: Sequence[Table1Row] = TABLE_1,
) -> Evidence:
    """The rows of Table 1 that the sentence names, and decay against none at the same claimed epsilon.

    Args:
        decayed, equal: small runs with decay, and without it at a z0 that gives the same epsilon, seed by seed.
        anew: Table 1 made anew, where decays have the epsilon of none.
    """
    named = [row for row in table if row.corpus in LOSSY]
    better = [
        [one for one in (row.linear, row.exponential) if _dominates(_point(one), _point(row.none))] for row in named
    ]
    decays = [(row.none, change) for row in table for change in (row.linear, row.exponential)]
    change = Change.of("", [run.ser for run in equal], [run.ser for run in decayed])
    still = {(cell.model, cell.corpus): cell for cell in anew if cell.decay is Decay.NONE}
    falling = [(cell, still[cell.model, cell.corpus]) for cell in anew if cell.decay is not Decay.NONE]
    dominating = sum(_dominates((d.ser.mean, d.auc.mean), (n.ser.mean, n.auc.mean)) for d, n in falling)
    return Evidence(
        "P12",
        "Where a loss of utility is expected, on the larger corpora (communication and video), linear or exponential "
        "decay gives a better trade-off of privacy and utility than none.",
        "section 5, first paragraph; Table 1",
        {
            "rows": len(named),
            "rows_with_a_better_decay": sum(map(bool, better)),
            "rows_with_no_larger_epsilon": sum(
                any(one.log10_epsilon <= row.none.log10_epsilon for one in found)
                for row, found in zip(named, better, strict=True)
            ),
            "columns_with_a_smaller_epsilon": sum(one.log10_epsilon < none.log10_epsilon for none, one in decays),
            "error_at_equal_epsilon": change.mean,
            "half_width": change.half_width,
            "seeds": len(equal),
            "cells_anew": len(falling),
            "cells_anew_that_dominate": dominating,
            "anew": _anew_said(
                anew,
                f"; {dominating} of {len(falling)} decays are no worse in error and attack, on {_corpora(anew)}",
            ),
        },
        _judge_p12,
        "As printed, in {rows_with_a_better_decay} of {rows} rows a decay has no larger error and a weaker attack than "
        "none, and in {rows_with_no_larger_epsilon} no larger epsilon, too. But decay costs epsilon: at one z0 and "
        "number of epochs it cannot be smaller than without, as in {columns_with_a_smaller_epsilon} columns, so that "
        "columns differ in more than decay. At one claimed epsilon exponential decay changes the error by "
        "{error_at_equal_epsilon:+.1f} % (+-{half_width:.1f}; small CLC and corpus, {seeds} seeds, measured now)"
        "{anew}.",
    )


def _judge_p12(m: Mapping[str, Any]) -> Verdict:
    """The print alone, of corpora that nobody else has, carries the claim no further than measurements let it."""
    better, worse = (sign * m["error_at_equal_epsilon"] < -m["half_width"] for sign in (1, -1))
    anew = 2 * m["cells_anew_that_dominate"] > m["cells_anew"]
    return Verdict.of(
        better and m["rows_with_no_larger_epsilon"] == m["rows"],
        better or anew or (not worse and 2 * m["rows_with_a_better_decay"] > m["rows"]),
    )


def _point(printed: Printed) -> tuple[float, float]:
    return printed.ser, printed.mia_auc


def _dominates(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Not worse in error and attack, and better in one of them."""
    return one != other and one[0] <= other[0] and one[1] <= other[1]


def _corpora(anew: Sequence[Anew]) -> str:
    return ", ".join(dict.fromkeys(cell.corpus for cell in anew))


def _anew_said(anew: Sequence[Anew], text: str) -> str:
    """The text where Table 1 has been made anew, else nothing."""
    return f"{text} ({ANEW})" if anew else ""


def p13_membership(
    attacks: Sequence[Change],
    errors: Sequence[Change],
    origin: str = SMALL,
    table: Sequence[Table1Row] = TABLE_1,
) -> Evidence:
    """The printed changes of the AUC beside the sampling error of an AUC, and changes that have intervals.

    Args:
        attacks, errors: changes of the AUC and of the error against SGD, run by run.
        origin: where they come from.
    """
    printed = [(row, change) for row in table for change in row.changes.values()]
    within = [
        abs(change.mia_auc) <= auc_change_half_width(row.sgd_mia_auc / 100, change.mia_auc, TRAINING[row.corpus])
        for row, change in printed
        if row.sgd_mia_auc is not None
    ]
    fallen = [(attack, error) for attack, error in zip(attacks, errors, strict=True) if attack.falls]
    return Evidence(
        "P13",
        "At a competitive error, eDP-SGD significantly reduces the success of membership inference.",
        "abstract; section 1, contribution (ii); Table 1",
        {
            "printed": len(printed),
            "printed_that_rise": sum(change.mia_auc > 0 for _, change in printed),
            "printed_with_a_size": len(within),
            "within_sampling_error": sum(within),
            "half_width_on_atis": auc_change_half_width(0.675, -8.26, TRAINING["ATIS"]),
            "changes": len(attacks),
            "falls_beyond_chance": len(fallen),
            "competitive_percent": COMPETITIVE,
            "falls_at_competitive_error": sum(error.mean <= COMPETITIVE for _, error in fallen),
            "falls_at_no_more_error": sum(not error.rises for _, error in fallen),
            "fallen": "".join(
                f"; {attack} at {error.mean:+.0f} % (+-{error.half_width:.0f}) error" for attack, error in fallen
            ),
            "origin": origin,
        },
        lambda m: Verdict.of(
            m["printed_that_rise"] == 0
            and m["within_sampling_error"] == 0
            and 0 < m["changes"] == m["falls_at_competitive_error"],
            m["falls_at_competitive_error"] > 0,
        ),
        "Of {printed} printed changes {printed_that_rise} rise, and of {printed_with_a_size} whose corpus is public "
        "{within_sampling_error} lie within the 95 % sampling error of an AUC (+-{half_width_on_atis:.1f} % on ATIS); "
        "there are no seeds and one average-case attack. Of ours, with 95 % intervals over seeds, "
        "{falls_beyond_chance} of {changes} fall beyond chance, {falls_at_competitive_error} of them at no more than "
        "{competitive_percent:.0f} % more error, {falls_at_no_more_error} without more error beyond chance{fallen} "
        "({origin}). Learning less weakens attacks, too, and needs no noise.",
    )


def auc_change_half_width(area: float, percent: float, side: int) -> float:
    """Of the relative change, in percent, of an AUC between two models, each attacked on `side` members and as many
    non-members: 95 %, from the variance of Hanley and McNeil 1982; takes the two areas for independent."""
    errors = [_auc_variance(a, side) / a**2 for a in (area, area * (1 + percent / 100))]
    return 1.96 * 100 * (1 + percent / 100) * math.sqrt(sum(errors))


def _auc_variance(area: float, side: int) -> float:
    q1, q2 = area / (2 - area), 2 * area**2 / (1 + area)
    return (area * (1 - area) + (side - 1) * (q1 + q2 - 2 * area**2)) / side**2


def p14_like_dp_sgd(per_example: Sequence[Outcome], printed: Sequence[Outcome]) -> Evidence:
    """Per-example DP-SGD against Algorithm 1 without decay, at the same C and z0, seed by seed."""
    error = Change.of("error", [run.ser for run in per_example], [run.ser for run in printed])
    attack = Change.of("attack's AUC", [run.auc for run in per_example], [run.auc for run in printed])
    return Evidence(
        "P14",
        "Results of DP-SGD are similar to those of eDP-SGD without decay.",
        "section 5, first paragraph",
        {
            "error": error.mean,
            "error_half_width": error.half_width,
            "attack": attack.mean,
            "attack_half_width": attack.half_width,
            "similar_percent": SIMILAR,
            "seeds": len(printed),
            "origin": SMALL,
        },
        _judge_p14,
        "The paper prints no numbers of DP-SGD and not at which settings, so whether the two were alike as tuned there "
        "cannot be known. At the same C and z0, eDP-SGD without decay has an error {error:+.0f} % "
        "(+-{error_half_width:.0f}) and an AUC {attack:+.1f} % (+-{attack_half_width:.1f}) against DP-SGD's ({seeds} "
        "seeds; {origin}): what is clipped, how it is scaled and how much noise there is are not the same.",
    )


def _judge_p14(m: Mapping[str, Any]) -> Verdict:
    """Alike at the same settings, it holds; where they differ there, other settings may still have made them alike."""
    if all(abs(m[what]) + m[f"{what}_half_width"] <= m["similar_percent"] for what in ("error", "attack")):
        return Verdict.HOLDS
    alike = all(abs(m[what]) <= m[f"{what}_half_width"] for what in ("error", "attack"))
    return Verdict.CONDITIONAL if alike else Verdict.UNTESTABLE


def p16_one_optimizer(runs: Mapping[str, Sequence[Outcome]], most: float = 0.1) -> Evidence:
    """How much of Adam's second moment is noise, by scheme."""
    shares = {
        scheme: mean(run.noise_share for run in found if run.noise_share is not None) for scheme, found in runs.items()
    }
    return Evidence(
        "P16",
        "Implied: Adam serves SGD, eDP-SGD and DP-SGD alike, so that their columns differ in privacy only.",
        "section 4.2, last sentence; Table 1",
        {
            "largest_share_percent": 100 * max(shares.values()),
            "smallest_share_percent": 100 * min(shares.values()),
            "most_percent": 100 * most,
            "shares": ", ".join(f"{share:.0%} ({scheme})" for scheme, share in shares.items()),
        },
        lambda m: Verdict.of(
            m["largest_share_percent"] <= m["most_percent"], m["smallest_share_percent"] <= m["most_percent"]
        ),
        "None of the three is SGD. In the median weight, of what Adam divides by so much is noise: {shares}; small "
        "CLC, measured now. So private runs take other steps than plain ones for a reason that is not privacy. "
        "DP-AdamBC (Tang et al. 2024) takes this noise off again.",
    )


def p18_loose_correlation(
    grid: Sequence[Outcome], anew: Sequence[Anew] = (), table: Sequence[Table1Row] = TABLE_1
) -> Evidence:
    """Rank correlation of epsilon with the attack: between Table 1's cells, and along z0 with all else equal.

    Args:
        grid: small runs that differ in z0 alone.
        anew: Table 1 made anew.
    """
    cells = [change for row in table for change in row.changes.values()]
    printed = _ranks([cell.log10_epsilon for cell in cells], [cell.mia_auc for cell in cells])
    reach = 1.96 / math.sqrt(len(cells) - 3)  # Fisher's z
    if len({cell.log10_epsilon for cell in anew}) < 3:  # decays share an epsilon there: it takes some corpora
        anew = ()
    ours = _ranks([cell.log10_epsilon for cell in anew], [cell.auc.mean for cell in anew]) if anew else 0.0
    return Evidence(
        "P18",
        "Epsilon correlates only loosely with the success of membership inference.",
        "section 5, first paragraph; section 6",
        {
            "cells": len(cells),
            "correlation": printed,
            "correlation_high": math.tanh(math.atanh(printed) + reach),
            "cells_anew": len(anew),
            "correlation_anew": ours,
            "anew": _anew_said(anew, f"; made anew, over {len(anew)} cells, it is {ours:.2f}"),
            "runs": len(grid),
            "correlation_all_else_equal": _ranks([run.log10_epsilon or 0.0 for run in grid], [run.auc for run in grid]),
            "loose": LOOSE,
            "highest_auc": max(run.auc for run in grid),
            "lowest_auc": min(run.auc for run in grid),
        },
        lambda m: Verdict.of(
            abs(m["correlation"]) < m["loose"] and abs(m["correlation_all_else_equal"]) < m["loose"],
            abs(m["correlation"]) < m["loose"],
        ),
        "Over the {cells} cells of Table 1 the rank correlation is {correlation:.2f} (95 % up to "
        "{correlation_high:.2f}, were they independent): loose{anew}. But they differ in corpus, model and tuning, "
        "and their epsilons bound nothing (P11). Along z0 alone it is {correlation_all_else_equal:.2f}: the AUC falls "
        "from {highest_auc:.2f} to {lowest_auc:.2f} with epsilon (small CLC, {runs} runs, measured now).",
    )


def _ranks(one: Sequence[float], other: Sequence[float]) -> float:
    return float(spearmanr(one, other).statistic)


def p20_regularizer(
    plain: Sequence[Outcome],
    private: Sequence[Outcome],
    dropout: Sequence[Outcome],
    anew: Sequence[Anew] = (),
    table: Sequence[Table1Row] = TABLE_1,
) -> Evidence:
    """What a regularizer does, a model fits its training set less closely, so that an attack on it gets weaker: by
    dropout, and by Algorithm 1 with little noise, where plain training goes on until it overfits.

    Args:
        plain, private, dropout: small runs, seed by seed, the first two without dropout.
        anew: Table 1 made anew.
    """
    public = [change.ser for row in table if row.corpus in PUBLIC_CORPORA for change in row.changes.values()]
    error, drop = (_changes("ser", plain, found) for found in (private, dropout))
    attack, drop_attack = (_changes("auc", plain, found) for found in (private, dropout))
    improved = sum(cell.ser.falls for cell in anew)
    return Evidence(
        "P20",
        "Where eDP-SGD lowers the error, it does so by acting as a regularizer.",
        "section 5, first paragraph",
        {
            "public_cells": len(public),
            "public_cells_that_improve": sum(change < 0 for change in public),
            "cells_anew": len(anew),
            "cells_anew_that_improve": improved,
            "anew": _anew_said(
                anew, f"; made anew, each at a z0 that may cost some error, {improved} of {len(anew)} do beyond chance"
            ),
            "error": error.mean,
            "error_half_width": error.half_width,
            "attack": attack.mean,
            "attack_half_width": attack.half_width,
            "error_with_dropout": drop.mean,
            "error_with_dropout_half_width": drop.half_width,
            "attack_with_dropout": drop_attack.mean,
            "attack_with_dropout_half_width": drop_attack.half_width,
            "seeds": len(plain),
        },
        _judge_p20,
        "{public_cells_that_improve} of {public_cells} cells on public corpora improve{anew}. A regularizer makes a "
        "model fit its training set less closely, and attacks weaker. Small CLC, trained until it overfits, {seeds} "
        "seeds, measured now: dropout changes the error by {error_with_dropout:+.1f} % "
        "(+-{error_with_dropout_half_width:.1f}) and the attack's AUC by {attack_with_dropout:+.1f} % "
        "(+-{attack_with_dropout_half_width:.1f}); Algorithm 1 with little noise the error by {error:+.1f} % "
        "(+-{error_half_width:.1f}) and the AUC by {attack:+.1f} % (+-{attack_half_width:.1f}). Only where its error "
        "falls beyond chance is there something to explain.",
    )


def _judge_p20(m: Mapping[str, Any]) -> Verdict:
    """Where the error falls, it holds if the attack does; where no error falls there is nothing to explain, and where
    dropout makes no attack weaker nothing to see."""
    if not _falls(m, "error") or not _falls(m, "attack_with_dropout"):
        return Verdict.UNTESTABLE
    return Verdict.of(_falls(m, "attack"))


def _falls(m: Mapping[str, Any], what: str) -> bool:
    return bool(m[what] < -m[f"{what}_half_width"])


def _changes(what: str, plain: Sequence[Outcome], found: Sequence[Outcome]) -> Change:
    return Change.of("", [getattr(run, what) for run in plain], [getattr(run, what) for run in found])


def p21_fewer_knobs(norms: Mapping[str, float], raw: Sequence[Outcome], normalised: Sequence[Outcome]) -> Evidence:
    """What scaling leaves to be chosen, and what its constant of proportionality does at one C and z0.

    Args:
        norms: of the first gradient by layer.
        raw, normalised: small runs with these as scales, and with the largest scale made 1, seed by seed.
    """
    change = Change.of("", [run.ser for run in raw], [run.ser for run in normalised])
    return Evidence(
        "P21",
        "Scaling reduces the number of hyper-parameters to tune for every new model or dataset.",
        'section 3, "Scaling", last sentence',
        {
            "knobs_with_a_clip_norm_for_each_layer": len(norms),
            "knobs_with_scaling": 1,
            "knobs_with_one_clip_norm": 1,
            "constant_given": False,
            "largest_norm": max(norms.values()),
            "error_raw": mean(run.ser for run in raw),
            "error_normalised": mean(run.ser for run in normalised),
            "change": change.mean,
            "half_width": change.half_width,
            "similar_percent": SIMILAR,
        },
        lambda m: Verdict.of(
            m["knobs_with_scaling"] < m["knobs_with_a_clip_norm_for_each_layer"]
            and (m["constant_given"] or abs(m["change"]) + m["half_width"] <= m["similar_percent"]),
            m["knobs_with_scaling"] < m["knobs_with_a_clip_norm_for_each_layer"],
        ),
        "Against a clip norm for each of {knobs_with_a_clip_norm_for_each_layer} layers, yes; against one for all, it "
        "saves none. The constant s is not given: it is no further knob, since (s α, C, z) does the same as "
        "(α, s C, z / s), but it decides what a given C and z mean. Scales as they are (up to {largest_norm:.1f}) "
        "have an error of {error_raw:.3f}, the same with a largest of 1 {error_normalised:.3f}: {change:+.0f} % "
        "(+-{half_width:.0f}; small CLC, measured now).",
    )
