"""The paper's claims about what its epsilons mean: rows P10, P11, P15, P23, P26 and P29 of the claims ledger."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from edp_lab.attacks.statistics import dp_bound
from edp_lab.corpora import load_corpus, split
from edp_lab.corpora.catalog import find
from edp_lab.errors import UsageError
from edp_lab.privacy import Alpha, Decay, Mechanism, zcdp_epsilon
from edp_lab.privacy.tuning import composed
from edp_lab.reproduce.evidence import Evidence, Measured, Verdict
from edp_lab.reproduce.paper.printed import NUM_GPUS, TABLE_1, TAUS, Table1Row
from edp_lab.reproduce.paper.table1_epsilon import Table1Epsilon, explain_table1

# Training utterances: 45 % of what the public corpora hold, and of "roughly 1 million utterances" (section 4.1).
TRAINING = {"ATIS": 2641, "SNIPS": 6517, "NLU-eval": 11571, "Health": 450_000, "Comm.": 450_000, "Video": 450_000}
DELTAS = {row.corpus: row.delta for row in TABLE_1}
CLIP_NORMS = 6  # values of C that section 4.2 lists
TELLS = 0.99  # an epsilon that lets an attack reach this AUC says nothing about it
PUBLIC = ("atis", "snips", "nlu-eval")


def p10_delta(training: Mapping[str, int] | None = None, deltas: Mapping[str, float] | None = None) -> Evidence:
    """Delta beside 1/n. Whoever publishes each utterance with chance delta is (0, delta)-DP."""
    n, delta = dict(training or TRAINING), dict(deltas or DELTAS)
    expected = {corpus: size * delta[corpus] for corpus, size in n.items()}
    if min(n.values()) < 1 or not all(0 < delta[corpus] < 1 for corpus in n):
        raise UsageError("delta must lie between 0 and 1, and a training set holds at least one utterance")
    worst, best = (pick(expected, key=lambda corpus: expected[corpus]) for pick in (max, min))
    return Evidence(
        "P10",
        "Implied: delta 5e-4 for the public corpora, 5e-5 for the internal ones makes a meaningful guarantee.",
        "Table 1, caption; section 4.1 for the sizes",
        {
            "corpora": len(n),
            "smallest_corpus": best,
            "smallest": expected[best],
            "largest_corpus": worst,
            "largest": expected[worst],
            "largest_allowed": 0.1,
            "sizes": ", ".join(f"{value:.2g} on {corpus}" for corpus, value in expected.items()),
            "chance_of_a_leak_percent": 100 * -math.expm1(n[best] * math.log1p(-delta[best])),
        },
        lambda m: Verdict.of(m["largest"] <= m["largest_allowed"], m["smallest"] < 1),
        "n times delta is {sizes}; it should be well below 1. To publish every utterance with chance delta is "
        "(0, delta)-DP: on {smallest_corpus} somebody's is published with chance {chance_of_a_leak_percent:.0f} %.",
    )


def p11_vacuous(table: Sequence[Table1Row] = TABLE_1) -> Evidence:
    """What the printed epsilons, taken for true, let a membership attack reach (Kairouz, Oh and Viswanath 2015)."""
    printed = [(10**change.log10_epsilon, row.delta) for row in table for change in row.changes.values()]
    areas = [dp_bound(min(epsilon, 1e6), delta).auc for epsilon, delta in printed]
    smallest, delta = min(printed)
    return Evidence(
        "P11",
        "Implied: the epsilons of Table 1, as theoretical privacy guarantees, rule attacks out.",
        "abstract; Table 1",
        {
            "guarantees": len(printed),
            "guarantees_that_bind": sum(area < TELLS for area in areas),
            "smallest_epsilon": smallest,
            "epsilon_that_binds": math.log((1 - delta) ** 2 / (1 - TELLS) - 1),
            "delta": delta,
            "largest_log10_epsilon": max(math.log10(epsilon) for epsilon, _ in printed),
        },
        lambda m: Verdict.of(m["guarantees_that_bind"] == m["guarantees"], m["guarantees_that_bind"] > 0),
        "The smallest of {guarantees} printed epsilons is {smallest_epsilon:.0f} (zCDP, at delta {delta:g}), the "
        "largest 10 to the power {largest_log10_epsilon:.1f}. An attack with an AUC of 0.99 is excluded from epsilon "
        "{epsilon_that_binds:.1f} down: {guarantees_that_bind} of them do so.",
    )


def p15_price_of_tuning(
    log10_epsilon: float = 1.7, delta: float = 5e-4, z0_values: int = 2, epochs: int = 30, billed: bool = False
) -> Evidence:
    """What the grid of section 4.2 costs if every trial is a release, for the smallest epsilon of Table 1.

    Args:
        log10_epsilon: of one run, by the paper's own accounting.
        z0_values: how many z0 were tried; "values ranging from 10^-6 to 1" are at least two.
        billed: whether the printed epsilon contains the trials.
    """
    taus = len(TAUS[Decay.LINEAR])
    trials = CLIP_NORMS + taus + z0_values - 2  # each on its own, from where the one before has ended
    all_trials = CLIP_NORMS * taus * z0_values
    epsilon = 10**log10_epsilon
    root = math.sqrt(math.log(1 / delta) + epsilon) - math.sqrt(math.log(1 / delta))
    z0 = math.sqrt(epochs / 2) / root  # of constant noise with this claim
    one = Mechanism.sound(1.0, z0, NUM_GPUS, 1, alpha=Alpha.NONE)
    trial = one.schedule(one.bill(epochs))
    measured: Measured = {
        "trials": trials,
        "claimed_epsilon": epsilon,
        "epsilon": zcdp_epsilon(trials * trial.mu**2 / 2, delta),
        "all_trials": all_trials,
        "epsilon_of_all": zcdp_epsilon(all_trials * trial.mu**2 / 2, delta),
        "epsilon_exact": composed(trial, trials, delta),
        "epsilon_exact_of_one": composed(trial, 1, delta),
        "delta": delta,
        "billed": billed,
    }
    return Evidence(
        "P15",
        "Implied: C, z0 and tau are tuned at no cost, and epsilon is that of the run that was chosen.",
        "section 4.2, third paragraph",
        measured,
        lambda m: Verdict.of(
            m["billed"] or m["epsilon"] <= 1.01 * m["claimed_epsilon"], m["epsilon"] <= 2 * m["claimed_epsilon"]
        ),
        "{trials} trials, one value after the other, cost epsilon {epsilon:,.0f} by the paper's own zCDP where "
        "{claimed_epsilon:.0f} is stated for one (exactly, as Gaussian DP: {epsilon_exact:,.0f} instead of "
        "{epsilon_exact_of_one:.0f}; at delta {delta:g}, if each is released); all {all_trials} combinations cost "
        "{epsilon_of_all:,.0f}. The paper does not mention the trials.",
    )


def copied_texts(names: Sequence[str] | None = None, seed: int = 0) -> dict[str, float]:
    """Of the test utterances of a random split 45:5:50, those whose text is in the training set: percent by corpus.

    Args:
        names: None: the paper's public corpora that are at hand.
    """
    shares = {}
    for name in [name for name in PUBLIC if find(name) is not None] if names is None else names:
        parts = split(load_corpus(name), seed, keep_duplicates_together=False)
        shares[name] = 100 * len(parts.duplicates) / len(parts.test)
    return shares


def p23_members_among_non_members(shares: Mapping[str, float], most: float = 1.0) -> Evidence:
    """How many corpora have hardly any non-member whose text was trained on.

    Args:
        shares: in percent, see `copied_texts`.
    """
    return Evidence(
        "P23",
        "Non-members for the membership attack come from the test set, which was not used in training.",
        "section 4.1, second paragraph",
        {
            "corpora": len(shares),
            "corpora_within": sum(share <= most for share in shares.values()),
            "most_percent": most,
            "shares": ", ".join(f"{name} {share:.1f}" for name, share in shares.items()),
        },
        lambda m: (
            Verdict.of(m["corpora_within"] == m["corpora"], m["corpora_within"] > 0)
            if m["corpora"]
            else Verdict.UNTESTABLE
        ),
        "After a random split so many percent of the test utterances have a text that was trained on: {shares} (of "
        "{corpora} public corpora at hand, {corpora_within} with at most {most_percent:g} %). Such a non-member is one "
        "in name only, and pulls an AUC towards 0.5.",
    )


def p26_accounting(explained: Table1Epsilon | None = None, epochs_printed: bool = False) -> Evidence:
    """Which numbers of epochs explain the printed epsilons, within the grids of z0 and tau."""
    found = explained or explain_table1()
    return Evidence(
        "P26",
        "The epsilons of Table 1 are computed by zCDP as in Yu et al. 2019.",
        "Table 1, caption",
        {
            "values": len(found.rows),
            "explained": sum(row.epochs_range is not None for row in found.rows),
            "common_epochs": " or ".join(map(str, found.common_epochs)),
            "epochs_printed": epochs_printed,
        },
        lambda m: (
            Verdict.FAILS
            if m["explained"] < m["values"]
            else Verdict.of(bool(m["common_epochs"]) and m["epochs_printed"], bool(m["common_epochs"]))
        ),
        "{explained} of {values} values follow from its formula for random reshuffling with some z0 and tau of the "
        "grids; all with one number of epochs only if that is {common_epochs}, which is not printed. This is "
        "consistency, not proof.",
    )


def p29_noise_that_vanishes(explained: Table1Epsilon | None = None) -> Evidence:
    """Values of Table 1 all of whose settings have noise that float32 cannot add to a gradient in the last epoch."""
    rows = (explained or explain_table1()).rows
    lost = [row for row in rows if row.settings and not row.some_survive_float32]
    return Evidence(
        "P29",
        "Implied: all runs of Table 1 but SGD's are trained with noise.",
        "Table 1; section 4.2 (z0 from 1e-6)",
        {
            "runs": len(rows),
            "runs_without": len(lost),
            "with_exponential_decay": sum(row.decay is Decay.EXPONENTIAL for row in lost),
            "log10_epsilons": ", ".join(str(row.log10_epsilon) for row in lost),
        },
        lambda m: Verdict.of(m["runs_without"] == 0, m["runs_without"] < m["runs"] / 2),
        "In {runs_without} of {runs} runs (log10 epsilon {log10_epsilons}; {with_exponential_decay} with exponential "
        "decay) whatever noise of the grid explains the printed epsilon is, by the last epoch, below what float32 can "
        "add to a gradient: in that format they would end with clipping only.",
    )
