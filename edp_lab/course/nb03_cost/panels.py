"""Panels of ``03_what_does_it_cost.ipynb`` and their data: the epsilon of a run, privacy losses, sampling, Table 1.

result = run_bill(noise_multiplier=1.0, epochs=30, target=8.0, delta=1e-5)    # no side effects
print(result.guarantee.claimed_epsilon, result.guarantee.conditional_epsilon)
behind("CLC", "ATIS", epochs=30).fits    # noise that may explain one printed epsilon
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edp_lab.attacks.statistics import dp_bound, gaussian_bound
from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import Array, choice, decades, delta_of, number, require, whole_decades
from edp_lab.course.kit.figure import Figure, axis, line, log_axis, logs, positive
from edp_lab.course.kit.panel import Panel, panel
from edp_lab.course.kit.text import (
    Tile,
    Words,
    account_of,
    at_least,
    at_most,
    claimed,
    command,
    count,
    digits,
    epsilons,
    holds,
    percent,
    short,
)
from edp_lab.course.kit.theme import CLAIMED, HOLDS, INK, NOISE, OTHER, PLAIN, PRINTED
from edp_lab.errors import check_whole
from edp_lab.privacy import Decay
from edp_lab.privacy.calibration import Budget, calibrate_z0
from edp_lab.privacy.foreign_claim import shuffled_at_least
from edp_lab.privacy.foundations import gaussian_loss_density
from edp_lab.privacy.gdp import GaussianDP, check_delta
from edp_lab.privacy.guarantee import Guarantee, judge
from edp_lab.privacy.mechanism import Mechanism
from edp_lab.privacy.pld import PrivacyLossDistribution
from edp_lab.privacy.schedule import Schedule
from edp_lab.reproduce.printed import MAX_EPOCHS, TABLE_1, Z0_RANGE, Table1Row, log_rho, search

EPOCHS = [*range(1, 41), 50, 60, 80, 100, 120]  # stops of a slider
words = Words(__file__, z0_range=Z0_RANGE)
figure = partial(fig.figure, height=360)
_exact = lru_cache(maxsize=5000)(lambda z, count, delta: GaussianDP(releases_of(z, count)).epsilon(delta))
_poisson = lru_cache(maxsize=32)(lambda z, count, rate: PrivacyLossDistribution(releases_of(z, count, rate)))
_account = partial(command, "account")


# ---- The epsilon of a run, and noise for a target --------------------------------------------------------------------

JUDGED = 16  # maximum number of verdicts: each takes a millisecond


class RunBill(NamedTuple):
    """Guarantees of a run after some of its epochs, and the noise that meets a target epsilon.

    All values are for one utterance that is clipped individually, with disjoint batches and secret randomness.
    """

    mechanism: Mechanism
    target: float  # target epsilon
    after: list[int]  # numbers of epochs, up to the whole run
    verdicts: list[Guarantee]  # guarantee after each number of epochs
    claimed_z: float  # noise multiplier that meets the target by zCDP
    needed_z: float  # noise multiplier that meets the target by Gaussian DP

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee of the whole run."""
        return self.verdicts[-1]


def run_bill(noise_multiplier: float, epochs: int, target: float, delta: float) -> RunBill:
    """Compute the guarantees of `epochs` epochs of DP-SGD. UsageError: see `Mechanism`, `judge` and `Budget`."""
    check_whole("the number of epochs", epochs, 1, 10**6)
    mechanism, budget = Mechanism.sound(1.0, noise_multiplier, 1, 1), Budget(target, delta)
    after = np.unique(np.linspace(1, epochs, JUDGED).round().astype(int)).tolist()
    verdicts = [judge(mechanism, t, delta, seed_published=False) for t in after]
    claimed = math.sqrt(epochs / 2) * math.exp(-log_rho(math.log10(target), delta) / 2)
    return RunBill(mechanism, target, after, verdicts, claimed, calibrate_z0(mechanism, epochs, budget))


def releases_of(noise_multiplier: float, count: int, rate: float = 1.0) -> Schedule:
    """Schedule of `count` releases with the same noise multiplier."""
    return Schedule(np.array([noise_multiplier]), np.array([count]), rate)


@panel("03")
def bill(noise_multiplier: float = 1.0, epochs: int = 30, target: float = 8.0, delta: float = 1e-5) -> Panel:
    """Panel on the claimed and guaranteed epsilon of a run, and the noise for a target: `result` is a `RunBill`."""

    def command(result: RunBill, **_: Any) -> str:
        """Return the `edp-lab account` commands for this noise and for the noise that meets the target."""
        run = {"epochs": result.after[-1], "delta": delta}
        return "\n".join(
            account_of(replace(result.mechanism, z0=z), **run) for z in (result.mechanism.z0, result.needed_z)
        )

    return Panel(
        "The ε of a run",
        "Claimed and guaranteed ε after each epoch, and the noise for a target ε.",
        partial(run_bill, delta=delta),
        [draw_bill],
        words.bill,
        command,
        tiles=tell_bill,
        noise_multiplier=number("noise multiplier z", noise_multiplier, decades(-3, 2)),
        epochs=number("epochs", epochs, EPOCHS, unit="epochs"),
        target=number("target ε", target, decades(-1, 3), unit="nats", within=(1e-9, 1e9)),
    )


def tell_bill(result: RunBill) -> tuple[Tile, Tile, str]:
    """Return tiles with both epsilons, and a sentence on the noise that meets the target."""
    asked = f"by the claimed ε, z = {digits(result.claimed_z)} would be needed"
    target = f"The target ε = {digits(result.target)} needs z = {at_most(result.needed_z)}; {asked}."
    return *epsilons(result.guarantee), target


def draw_bill(result: RunBill) -> Figure:
    """Plot claimed and guaranteed epsilon against the number of epochs, on a log scale."""
    as_claimed = positive(verdict.claimed_epsilon for verdict in result.verdicts)
    guaranteed = positive(verdict.conditional_epsilon for verdict in result.verdicts)
    return figure(
        "ε by epoch",
        line("claimed", CLAIMED, "dash", symbol="square-open", x=result.after, y=as_claimed),
        line("guaranteed", HOLDS, symbol="circle", size=7, x=result.after, y=guaranteed),
        line("target", INK, "longdash", width=1.5, x=[1, result.after[-1]], y=[result.target] * 2),
        hover="after %{x} epochs: ε ≈ %{y:.3g}",
        xaxis=axis("epochs trained", [0.5, result.after[-1] + 0.5]),
        yaxis=log_axis("ε (nats)", [*as_claimed, *guaranteed, result.target], margin=0.05, labels=6),
    )


# ---- Privacy losses --------------------------------------------------------------------------------------------------


class Loss(NamedTuple):
    """Privacy loss of Gaussian releases with the same mu, and the success of the best attack."""

    releases: int
    delta: float
    mu: float  # of all releases together
    epsilon: float  # at delta, exact
    loss: Array  # (P), in nats, symmetric about 0
    with_it: Array  # (P), density of the loss if the utterance took part
    without: Array  # (P), density if it did not
    excess: Array  # (P), (1 - e^(epsilon - loss)) times `with_it`, 0 below epsilon; its area is delta
    best_found: float  # largest expected true positive rate of any attack at 1 % false positives


def privacy_loss(mu: float, releases: int, delta: float) -> Loss:
    """Compute the privacy loss of `releases` releases of mu each, which all use the utterance.

    UsageError: `releases` is not an integer from 1 to 1000, or delta is outside (0, 1).
    """
    check_whole("the number of epochs", releases, 1, 1000)
    every = GaussianDP(releases_of(1 / mu, releases))
    epsilon = every.epsilon(delta)
    loss = np.linspace(-(every.mu**2) / 2 - 4.5 * every.mu, every.mu**2 / 2 + 4.5 * every.mu, 301)
    density = gaussian_loss_density(loss, every.mu)
    return Loss(
        releases,
        delta,
        every.mu,
        epsilon,
        loss,
        with_it=density,
        without=density[::-1],
        excess=density * -np.expm1(np.minimum(epsilon - loss, 0)),
        best_found=float(gaussian_bound(every.mu).tpr(0.01)),
    )


@panel("03")
def loss(mu: float = 0.5, epochs: int = 10, delta: float = 1e-5) -> Panel:
    """Panel on privacy losses and an attacker's success: `result` is a `Loss`."""

    def command(result: Loss, *, mu: float, **_: Any) -> str:
        """Return the `edp-lab account` command for the same epsilon."""
        return _account({"z0": 1 / mu, "epochs": result.releases, "delta": result.delta})

    return Panel(
        "Privacy losses and attacks",
        "Privacy loss of one utterance over all epochs. The second figure shows the errors of attackers.",
        privacy_loss,
        [draw_loss, draw_tradeoff],
        words.loss,
        command,
        tiles=tell_loss,
        mu=number("μ of one epoch", mu, decades(-2, 1), within=(1e-3, 1e3)),
        releases=number("epochs", epochs, EPOCHS, unit="epochs"),
        delta=number("δ", delta, decades(-12, -1), unit="probability"),
    )


def tell_loss(result: Loss) -> tuple[Tile, Tile, str]:
    """Return tiles with epsilon and the share of members that the best attack finds, and a sentence with mu."""
    return (
        holds(f"ε = {at_most(result.epsilon)}", f"at δ = {short(result.delta)}, all epochs"),
        Tile("best attack, on average", percent(result.best_found), "of members, at 1 % false positives", "printed"),
        f"The whole run has μ = {short(result.mu)}.",
    )


def draw_loss(result: Loss) -> Figure:
    """Plot the density of the privacy loss with and without the utterance, and delta as an area."""
    beyond = result.loss >= result.epsilon
    x, top = result.loss[beyond], result.excess[beyond]
    return figure(
        "Privacy loss (dash-dotted line: ε)",
        fig.area("δ", PRINTED, 0.7, **fig.between(x, np.zeros_like(top), top)),
        line("without", PLAIN, x=result.loss, y=result.without),
        line("with the utterance", NOISE, "dash", x=result.loss, y=result.with_it),
        fig.vline(result.epsilon),
        hover="%{x:.3g}: %{y:.3g}",
        xaxis=axis("privacy loss (nats)", result.loss[[0, -1]]),
        yaxis=axis("density (per nat)", rangemode="tozero"),
    )


def draw_tradeoff(result: Loss) -> Figure:
    """Plot the smallest possible false negative rate against the false positive rate."""
    fpr = np.concatenate([[0.0], np.logspace(-6, -2, 40), np.linspace(0.01, 1, 100)[1:]])
    least, pair = (
        100 * (1 - bound.tpr(fpr)) for bound in (gaussian_bound(result.mu), dp_bound(result.epsilon, result.delta))
    )
    return figure(
        "Errors of attackers",
        line("least possible", HOLDS, width=3, x=100 * fpr, y=least),
        line("(ε, δ) alone", CLAIMED, "dash", x=100 * fpr, y=pair),
        line("guessing", INK, "dot", width=1.5, x=[0, 100], y=[100, 0], hoverinfo="skip"),
        top=48,
        hover="%{x:.3g} % against %{y:.3g} %",
        legend={"orientation": "v", "x": 1, "xanchor": "right", "y": 1, "yanchor": "top"},  # no curve is above guessing
        xaxis=axis("false positives (% of non-members)", [-1, 101]),
        yaxis=axis("false negatives (% of members)", [-1, 101]),
    )


# ---- Sampling --------------------------------------------------------------------------------------------------------


class Sampled(NamedTuple):
    """Epsilon of per-example DP-SGD with the same noise multiplier, for three ways to make batches.

    Each utterance is clipped individually and moves the sum by at most C, so noise divided by sensitivity is z.
    """

    rate: float  # q, the share of the corpus used in a step
    noise_multiplier: float
    delta: float
    passes: int  # passes over the corpus with disjoint batches, including an incomplete one
    after: NDArray[np.int64]  # (P), numbers of steps, up to the whole run
    everyone: Array  # (P), epsilon if every utterance is in every step (exact)
    shuffled: Array  # (P), epsilon of successive shuffled passes; exact if the attacker knows the batches (Gaussian DP)
    now_and_then: NDArray[np.int64]  # (P''), some of `after`, including the last
    sampled: Array  # (P''), epsilon after these steps with Poisson sampling, by privacy loss distributions
    at_least: float  # lower bound on the epsilon of a shuffled pass: `shuffled_at_least`; 0 before a pass is complete


def sampled(rate: float, noise_multiplier: float, steps: int, delta: float) -> Sampled:
    """Compute epsilon after up to `steps` steps, for three ways to make batches.

    UsageError: there is no noise, or the rate (0 to 1), `steps` (1 to 10^6) or delta (0 to 1) is out of range.
    """
    check_whole("the number of steps", steps, 1, 10**6)
    check_delta(delta)
    after = np.unique(np.geomspace(1, steps, 40).round().astype(np.int64))
    now_and_then = after[np.unique(np.linspace(0, len(after) - 1, 4).round().astype(int))]  # each takes milliseconds
    samples = [_poisson(noise_multiplier, k, rate) for k in now_and_then.tolist()]
    passes, whole = [math.ceil(k * rate * (1 - 1e-12)) for k in after.tolist()], steps_of_a_pass(rate)
    return Sampled(
        rate,
        noise_multiplier,
        delta,
        passes[-1],
        after,
        everyone=np.array([_exact(noise_multiplier, count, delta) for count in after.tolist()]),
        shuffled=np.array([_exact(noise_multiplier, count, delta) for count in passes]),
        now_and_then=now_and_then,
        sampled=np.array([account.epsilon(delta) for account in samples]),
        at_least=shuffled_at_least(noise_multiplier, whole, 1, delta) if steps >= whole else 0.0,
    )


def steps_of_a_pass(rate: float) -> int:
    """Number of disjoint batches in a whole pass over the corpus."""
    return math.ceil(1 / rate - 1e-9)


@panel("03")
def sampling(rate: float = 0.01, noise_multiplier: float = 1.0, steps: int = 1000, delta: float = 1e-5) -> Panel:
    """Panel that compares Poisson sampling and shuffled batches: `result` is a `Sampled`."""

    def command(result: Sampled, **_: Any) -> str:
        """Return two `edp-lab account` commands: for Poisson sampling, and for disjoint batches."""
        each_alone = {"z0": result.noise_multiplier, "micro-batch-size": 1, "delta": result.delta}
        sampled = _account({**each_alone, "sampling-rate": result.rate, "steps": result.after[-1]})
        return f"{sampled}\n{_account({**each_alone, 'epochs': result.passes})}"

    return Panel(
        "Sampling",
        "The ε of the same noise for three ways to make batches.",
        sampled,
        [draw_sampled],
        words.sampling,
        command,
        tiles=tell_sampling,
        rate=number("sampling rate q", rate, decades(-4, 0), unit="of the corpus"),
        noise_multiplier=number("noise multiplier z", noise_multiplier, decades(-1, 1), within=(1e-6, 1e9)),
        steps=number("steps", steps, whole_decades(0, 5), unit="steps"),
        delta=delta_of(delta, -8, -3),
    )


def tell_sampling(result: Sampled) -> tuple[Tile, Tile, str]:
    """Return tiles with epsilon for secret samples and for shuffled batches, and a sentence on an attack."""
    sampled, shuffled = result.sampled[-1], result.shuffled[-1]
    tiles = (
        holds(f"ε = {at_most(sampled)}", f"Poisson, δ = {short(result.delta)}", "secret sample"),
        Tile("shuffled", f"ε = {at_most(shuffled)}", count(result.passes, "pass", "passes")),
    )
    if not result.at_least:
        return *tiles, "Before a shuffled pass is complete, the attack refutes no ε."
    return *tiles, f"An attack on one shuffled pass refutes every ε below {at_least(result.at_least)}."


def draw_sampled(result: Sampled) -> Figure:
    """Plot epsilon against the number of steps for three ways to make batches, on log axes."""
    on: dict[str, Any] = {"x": result.after, "mode": "lines" if result.after.size > 1 else "lines+markers"}
    whole = [steps_of_a_pass(result.rate), 2 * result.after[-1]] if result.at_least else []
    everyone, shuffled, sampled = map(positive, (result.everyone, result.shuffled, result.sampled))
    return figure(
        "ε for three ways to make batches",
        line("all in every step", OTHER, y=everyone, **on),
        line("shuffled", PLAIN, "dash", line={"shape": "hv"}, y=shuffled, **on),
        line("shuffled, at least", INK, "dot", **{**on, "x": whole}, y=[result.at_least] * len(whole)),
        line("secret sample", HOLDS, "dashdot", width=3, y=sampled, **{**on, "x": result.now_and_then}),
        hover="%{x:,} steps: ε ≈ %{y:.3g}",
        xaxis=logs("steps", [-0.03, max(0.5, math.log10(result.after[-1]) + 0.03)]),
        yaxis=log_axis("ε (nats)", [*everyone, *shuffled, *sampled], margin=0.05, labels=6),
    )


# ---- Table 1 ---------------------------------------------------------------------------------------------------------


class Behind(NamedTuple):
    """Settings that may explain one epsilon printed in Table 1 for training without decay."""

    row: Table1Row
    epochs: int  # T
    z0: Array  # (120,), z0 that gives exactly the printed value, for T = 1 to 120
    fits: tuple[float, float] | None  # smallest and largest z0 of the paper's range that round to the printed value

    @property
    def digits(self) -> int:
        """Number of digits of e^epsilon."""
        return math.floor(10**self.row.none.log10_epsilon / math.log(10)) + 1


def behind(model: str, corpus: str, epochs: int) -> Behind:
    """Find the noise that may explain a row of Table 1 with T = `epochs`.

    UsageError: Table 1 has no such row, or `epochs` is not an integer from 1 to 120.
    """
    check_whole("the number of epochs T", epochs, 1, MAX_EPOCHS)
    rows = [row for row in TABLE_1 if (row.model, row.corpus) == (model, corpus)]
    require(rows, f"Table 1 has no row for {model} and {corpus}")
    low, z0, high = (10 ** log[0] for log in search(rows[0], Decay.NONE))
    least, most = float(low[epochs - 1]), float(high[epochs - 1])
    return Behind(rows[0], epochs, z0, (least, most) if least <= most else None)


@panel("03")
def table1(epochs: int = 30) -> Panel:
    """Panel on settings that may explain the printed epsilons: `result` is a `Behind`."""
    models, corpora = (list(dict.fromkeys(getattr(row, what) for row in TABLE_1)) for what in ("model", "corpus"))
    return Panel(
        "Table 1, decoded",
        "The z that gives the printed ε, by the number of epochs T.",
        behind,
        [draw_settings],
        words.behind,
        lambda result, **_: "edp-lab reproduce epsilons",
        tiles=tell_behind,
        model=choice("model", models[0], models),
        corpus=choice("corpus", corpora[0], corpora),
        epochs=number("epochs T", epochs, range(1, MAX_EPOCHS + 1), unit="epochs"),
    )


def tell_behind(result: Behind) -> tuple[Tile, Tile, str]:
    """Return tiles with the printed epsilon and the digits of e^epsilon, and a sentence on the noise."""
    z0, printed = float(result.z0[result.epochs - 1]), result.row.none.log10_epsilon
    beyond = "" if Z0_RANGE[0] <= z0 <= Z0_RANGE[1] else " This z is outside the paper's range."
    return (
        claimed(f"log₁₀ ε = {printed:g}", f"printed, δ = {short(result.row.delta)}"),
        Tile("factor e^ε", f"about {short(result.digits)} digits", "limit on a ratio of probabilities", "printed"),
        f"Each pair (T, z) of the curve, such as ({result.epochs}, {digits(z0)}), gives the printed ε.{beyond}",
    )


def draw_settings(result: Behind) -> Figure:
    """Plot the noise multiplier that gives the printed epsilon, against T."""
    x, z0 = np.arange(1, MAX_EPOCHS + 1), positive(result.z0)
    band = {"y0": Z0_RANGE[0], "y1": Z0_RANGE[1], "fillcolor": OTHER, "opacity": 0.15, "line": {"width": 0}}
    return figure(
        "The z that gives the printed ε",
        line("z", PLAIN, x=x, y=z0, hovertemplate="T = %{x}: z = %{y:.3g}" + fig.ALONE),
        {**fig.hline(0), "type": "rect", **band},
        fig.vline(result.epochs),
        fig.ring(x=[result.epochs], y=[z0[result.epochs - 1]]),
        top=44,
        xaxis=axis("epochs T", [0, MAX_EPOCHS + 1]),
        yaxis=logs("z (band: the paper's range)", [-7, 1]),
    )
