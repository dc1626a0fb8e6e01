"""The thesis' claim that its architecture prevents attacks by the API, row T24 of the claims ledger, on digits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from edp_lab.attacks.extraction import SETTINGS, ExtractionRow, InversionRow, extract, invert, share_out, train_victims
from edp_lab.corpora.images import load_images
from edp_lab.reproduce.evidence import Evidence, Verdict

PROTECTED = ("understudy", "dp-adam")
UNSEEING = "strangers"
VICTIMS = ("plain", *PROTECTED, UNSEEING)
EXTRACTION_QUERIES, INVERSION_QUERIES = 400, 1000
BOUNDED = "Differential privacy bounds what one training example can change in a model, so membership inference"
UNBOUNDED = {
    "extraction": "it does not bound how well its answers can be copied",
    "inversion": "it does not hide what a class looks like on average, which is a fact about the population; where a "
    "class is one person, the average is theirs, and epsilon counts all their images as a group",
}


def t24_api_attacks(seed: int = 0, told: Callable[[str], None] = lambda _: None) -> Evidence:
    """Train the plain model, the understudy, DP-Adam and the strangers' model on digits, and attack all four."""
    shares = share_out(load_images("digits", seed))
    victims = train_victims(shares, VICTIMS, replace(SETTINGS, seed=seed), told)
    copied = extract(victims, shares, [EXTRACTION_QUERIES], seed=seed, told=told)
    return t24_evidence(copied, invert(victims, shares, [INVERSION_QUERIES], seed=seed, told=told))


def t24_evidence(extraction: Sequence[ExtractionRow], inversion: Sequence[InversionRow]) -> Evidence:
    """From the attacks on all of `VICTIMS`, at the most queries that there are.

    An attack succeeds where its interval lies above all of those by guessing. The claim holds if none succeeds on a
    protected victim, in part if some do not. The strangers' model decides nothing: it shows that the success is none
    that an epsilon could prevent, since it has the epsilon 0 towards every private image.
    """
    copied, inverted = _at_most_queries(extraction), _at_most_queries(inversion)
    measured: dict[str, float | str | bool] = {
        "extraction_queries": copied[UNSEEING].queries,
        "inversion_queries": inverted[UNSEEING].queries or 0,
        "guess_agreement_high": max(copied[name].guess_agreement_interval[1] for name in VICTIMS),
        "guess_judged_high": max(inverted[name].guess_judged_interval[1] for name in VICTIMS),
    }
    for name in VICTIMS:
        copy, drawn, key = copied[name], inverted[name], name.replace("-", "_")
        measured[f"{key}_accuracy"] = copy.victim_accuracy
        measured[f"{key}_agreement"], measured[f"{key}_judged"] = copy.agreement, drawn.judged
        measured[f"{key}_agreement_low"], measured[f"{key}_judged_low"] = (
            copy.agreement_interval[0],
            drawn.judged_interval[0],
        )
        if copy.epsilon is not None:
            measured[f"{key}_epsilon"] = copy.epsilon
    return Evidence(
        "T24",
        "DP-Adam and the understudy prevent model inversion, model extraction and attacks by the API.",
        "sections 3.2.2 and 3.3",
        measured,
        _judge,
        "Copies made by {extraction_queries} queries agree with the plain model on {plain_agreement:.1%} of new "
        "images, with the understudy (epsilon {understudy_epsilon:.3g}) on {understudy_agreement:.1%}, with DP-Adam "
        "(epsilon {dp_adam_epsilon:.3g}) on {dp_adam_agreement:.1%}; guessing gives {guess_agreement_high:.1%} at "
        "most. Of images drawn by {inversion_queries} queries a judge takes {plain_judged:.0%}, "
        "{understudy_judged:.0%} and {dp_adam_judged:.0%} for their class; guessing gives {guess_judged_high:.0%} at "
        "most. Differential privacy bounds neither: a model that saw no private image, of epsilon "
        "{strangers_epsilon:g}, gives {strangers_agreement:.1%} and {strangers_judged:.0%}.",
    )


def said(attack: str, rows: Sequence[ExtractionRow] | Sequence[InversionRow]) -> str:
    """What differential privacy has to do with an "extraction" or "inversion", and what its `rows` show of it."""
    text = f"{BOUNDED}; {UNBOUNDED[attack]}."
    row = _at_most_queries(rows).get(UNSEEING)
    if row is None:
        return text
    shown = (
        f"is copied to an agreement of {row.agreement:.1%}"
        if isinstance(row, ExtractionRow)
        else f"gives images of which a judge takes {row.judged:.0%} for their class"
    )
    return f"{text} The strangers' model saw no private image (epsilon 0) and, at {row.queries:,} queries, {shown}."


def _at_most_queries(rows: Sequence[Any]) -> dict[str, Any]:
    """The row of each victim with the most queries; the white box has no queries."""
    asked = sorted((row for row in rows if row.queries is not None), key=lambda row: row.queries)
    return {row.victim: row for row in asked}


def _judge(m: Mapping[str, Any]) -> Verdict:
    keys = [name.replace("-", "_") for name in PROTECTED]
    succeeded = [m[f"{key}_agreement_low"] > m["guess_agreement_high"] for key in keys]
    succeeded += [m[f"{key}_judged_low"] > m["guess_judged_high"] for key in keys]
    return Verdict.of(not any(succeeded), not all(succeeded))
