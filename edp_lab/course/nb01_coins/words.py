"""What ``01_coins_to_composition.ipynb`` says in words: read-outs beside sliders (HTML), tables, commands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from edp_lab.course.nb01_coins.compute import (
    ADVANCED,
    COUNTABLE,
    GAUSSIAN,
    HALF,
    SUM,
    ZCDP,
    Averaging,
    Composed,
    GaussianCount,
    Poll,
    belief,
)
from edp_lab.privacy.foundations import classic_gaussian_sigma
from edp_lab.privacy.guarantee import upward
from edp_lab.reproduce.evidence import Evidence
from edp_lab.reproduce.thesis.thesis_foundations import LinkageTable

# ---- Beside the sliders --------------------------------------------------------------------------------------------


def poll_in_words(result: Poll) -> str:
    """The read-out beside the sliders, as HTML."""
    epsilon, share = result.epsilon, result.share
    after_yes, after_no = (float(belief(share, loss)) for loss in (epsilon, -epsilon))
    return _paragraphs(
        f"A coin of <b>ε = {digits(epsilon)} per answer</b> (pure, local DP: against everyone, the collector included) "
        f"lets a person tell the truth with probability {_percent(result.truth_probability)}. A yes is e<sup>ε</sup> = "
        f"<b>{digits(result.odds)} times</b> as likely from someone whose truth is yes as from someone else.",
        f"Who believed {_percent(share)} of a person beforehand believes <b>{_percent(after_yes)}</b> after a yes and "
        f"{_percent(after_no)} after a no. Asked twice, the person pays ε = {digits(2 * epsilon)}.",
        f"From {result.responses.size:,} responses the collector estimates <b>{_percent(result.estimate[-1])} "
        f"± {digits(100 * HALF * result.standard_error[-1])} points</b> (90 % interval); the truth in the population "
        f"is {_percent(share)}. Of the responses as they stand, {_percent(result.yes[-1])} are yes.",
    )


def averaging_in_words(result: Averaging) -> str:
    """The read-out beside the sliders, as HTML."""
    queries, epsilon, half = result.answers.size, result.epsilon, float(result.average.half_width[-1])
    person = "a person" if result.sensitivity == 1 else f"a person with up to {result.sensitivity} records"
    budget = (
        f"A budget of ε = {digits(result.budget)} pays for <b>{_count(result.allowed, 'answer')}</b>, then refuses. "
        f"With a cache the question is asked once, costs ε = {digits(epsilon)} and averaging teaches nothing."
        if result.allowed
        else f"A budget of ε = {digits(result.budget)} does not pay for a single answer."
    )
    return _paragraphs(
        f"Each answer has Laplace noise of scale Δ/ε = {digits(result.scale)} (standard deviation "
        f"{digits(math.sqrt(2) * result.scale)} people) and costs {person} <b>ε = {digits(epsilon)}</b> (pure DP, "
        f"add or remove that person).",
        f"Without a limit, {_count(queries, 'answer')} cost <b>ε = {digits(queries * epsilon)}</b> by the plain sum, "
        f"and their average is {digits(float(result.average.estimate[-1]))} ± {digits(half)}; the truth is "
        f"{result.true_count}. After {result.decisive:,} answers, at ε = {digits(result.decisive * epsilon)}, the 90 % "
        f"interval is narrower than ±½: the count is known.",
        budget,
    )


def gaussian_in_words(result: GaussianCount) -> str:
    """The read-out beside the sliders, as HTML."""
    epsilon, delta = result.epsilon, result.delta
    classic = ""
    if 0 < epsilon < 1 and 0 < delta < 1:
        wanted = classic_gaussian_sigma(result.sensitivity, epsilon, delta)
        classic = f" For the same pair the classic theorem (2.12) would ask for σ = {digits(wanted)}."
    elif epsilon >= 1:
        classic = " The classic theorem (2.12) says nothing here: it ends at ε = 1."
    laplace = math.sqrt(2) * result.mu
    return _paragraphs(
        f"Noise of σ = {digits(result.sigma)} on a count that one person moves by {digits(result.sensitivity)}: "
        f"<b>ε = {digits(epsilon)} holds with δ = {at_most(delta)}</b> and no smaller (Gaussian DP, exact; one "
        f"release, add or remove one person).{classic}",
        f"The loss exceeds ε with probability {digits(result.tail)}. That is a valid δ, "
        f"{_times(result.tail, delta)} too large: an outcome just beyond ε counts only for what exceeds it.",
        f"Laplace noise of the same standard deviation is pure: ε = {digits(laplace)} at δ = 0 for one count.",
    )


def composed_in_words(result: Composed) -> str:
    """The read-out beside the sliders, as HTML."""
    epsilon, last = result.epsilon, {name: at_most(float(total[-1])) for name, total in result.total.items()}
    first = result.advanced_pays_from
    pays = f"pays from {_count(first, 'release')} on" if first else "never pays at this ε"
    k, allowed = int(result.releases[-1]), result.allowed
    return _paragraphs(
        f"{_count(k, 'release')} about the same data, each <b>ε = {digits(epsilon)}</b> (pure; Laplace noise of "
        f"standard deviation {digits(math.sqrt(2) / epsilon)} Δ), cost together ε = <b>{last[SUM]}</b> by the plain "
        f"sum (δ = 0). At δ = {digits(result.delta)} they cost {last[ADVANCED]} by advanced composition and "
        f"<b>{last[ZCDP]}</b> by zCDP. All three hold: quote the smallest.",
        f"Gaussian noise of the same standard deviation: ε = {last[GAUSSIAN]} (Gaussian DP, exact). Advanced "
        f"composition {pays}.",
        f"A total of ε = {digits(result.budget)} pays for {releases(allowed[SUM])} releases by the sum, "
        f"{releases(allowed[ADVANCED])} by advanced composition, {releases(allowed[ZCDP])} by zCDP, "
        f"{releases(allowed[GAUSSIAN])} with Gaussian noise.",
    )


# ---- Tables ---------------------------------------------------------------------------------------------------------


def side_by_side(table: LinkageTable, rows: int = 5) -> str:
    """The first rows of the patients' table, as it is and anonymised, in plain text."""
    pairs = zip(table.shown[:rows], table.shown_k[:rows], strict=True)
    lines = [f"{'  '.join(before):<16}{'  '.join(after)}" for before, after in pairs]
    return "\n".join([f"{'as it is':<16}{table.rows[-1].k}-anonymous", *lines])


def verdicts(evidence: Iterable[Evidence]) -> str:
    """Claims and what became of them, as a table in Markdown."""
    rows = [f"| {e.id} | {e.about.says} ({e.about.source}) | **{e.verdict}** | {e.said} |" for e in evidence]
    return "\n".join(["| | The thesis says | Verdict | Measured |", "|---|---|---|---|", *rows])


# ---- As commands ---------------------------------------------------------------------------------------------------


def python(module: str, function: Callable[..., object], *arguments: object, **values: object) -> str:
    """A command line for a function of a module of the course: it prints what the function returns."""
    given = ", ".join([*map(repr, arguments), *(f"{name}={value!r}" for name, value in values.items())])
    return f'python -c "from edp_lab.course import {module}; print({module}.{function.__name__}({given}))"'


def account(noise_multiplier: float, releases: int, delta: float) -> str:
    """The call of `edp-lab account` for so many Gaussian releases; "what holds" is their epsilon."""
    return f"edp-lab account --z0 {noise_multiplier:.6g} --epochs {releases} --delta {delta:.6g}"


# ---- Small parts ---------------------------------------------------------------------------------------------------


def digits(value: float) -> str:
    """Three digits, as people write them: 0.0296, 16.4, 1,234, 3e-8; inf in words."""
    if math.isinf(value):
        return "beyond 1e308"
    if 1000 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    mantissa, _, exponent = f"{value:.3g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


def at_most(value: float) -> str:
    """An epsilon that holds, or noise that suffices: written as `digits`, but rounded up, or it would not."""
    if not math.isfinite(value):
        return digits(value)
    value *= 1 - 1e-12  # the error of the arithmetic: a thousand times 0.1 is 100
    return f"{math.ceil(value):,}" if 1000 <= value < 1e6 else digits(float(upward(value)))


def releases(count: int) -> str:
    """A number of releases, as far as it is counted."""
    return f"{count:,}" if count < COUNTABLE else "a billion or more"


def _percent(share: float) -> str:
    return f"{digits(100 * share)} %"


def _times(larger: float, smaller: float) -> str:
    return f"{digits(larger / smaller)} times" if smaller else "endlessly"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _paragraphs(*texts: str) -> str:
    return "".join(f"<p>{text}</p>" for text in texts)
