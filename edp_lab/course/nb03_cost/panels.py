"""The panels of ``03_what_does_it_cost.ipynb``, and what they draw: bills, privacy losses, sampling, Table 1.

result = run_bill(SOUND, z0, decay, tau, num_devices, target, epochs=30, delta=1e-5)    # pure
print(result.guarantee.claimed_epsilon, result.guarantee.conditional_epsilon)
behind("CLC", "ATIS", "exponential", epochs=30).fits    # what may lie behind one printed epsilon
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edp_lab.attacks.statistics import dp_bound, gaussian_bound
from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import (
    AS_PRINTED,
    VARIANTS,
    Array,
    choice,
    decades,
    decay_of,
    delta_of,
    devices,
    mechanism_of,
    number,
    require,
)
from edp_lab.course.kit.figure import Figure, Trace, axis, line, log_axis, logs, positive
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
from edp_lab.errors import UsageError, check_whole
from edp_lab.privacy import Alpha, Decay
from edp_lab.privacy.calibration import Budget, calibrate_z0
from edp_lab.privacy.foreign_claim import shuffled_at_least
from edp_lab.privacy.foundations import gaussian_loss_density
from edp_lab.privacy.gdp import GaussianDP, check_delta
from edp_lab.privacy.guarantee import Guarantee, judge
from edp_lab.privacy.mechanism import Mechanism
from edp_lab.privacy.pld import PrivacyLossDistribution
from edp_lab.privacy.schedule import Schedule
from edp_lab.reproduce.printed import (
    MAX_EPOCHS,
    TABLE_1,
    TAUS,
    Z0_RANGE,
    ExplainedEpsilon,
    explain_table1,
    log_rho,
    search,
)

explained = cache(explain_table1)  # the search behind Table 1, made once
words = Words(__file__, z0_range=Z0_RANGE, table1=explained)
figure = partial(fig.figure, height=360)
_account = partial(command, "account")


# ---- The bill of a run, and noise for a target -----------------------------------------------------------------------

JUDGED = 16  # numbers of epochs: a verdict takes a millisecond


class RunBill(NamedTuple):
    """What a run costs after some of its epochs, and the noise with which it would meet a target.

    For one utterance, disjoint batches and secret randomness.
    """

    mechanism: Mechanism
    target: float  # epsilon
    after: list[int]  # numbers of epochs; the last is that of the whole run
    verdicts: list[Guarantee]  # after so many
    claimed_z0: float  # that meets the target by the paper's accounting
    needed_z0: float | None  # that meets it with a public alpha; None if none up to a billion does

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee of the whole run."""
        return self.verdicts[-1]


def run_bill(
    variant: str, z0: float, decay: str, tau: float, num_devices: int, target: float, epochs: int, delta: float
) -> RunBill:
    """The bill of `epochs` epochs. UsageError: as `mechanism_of`, `judge` and `Budget`."""
    mechanism, budget = mechanism_of(variant, 1.0, z0, decay, tau, num_devices), Budget(target, delta)
    after = np.unique(np.linspace(1, epochs, JUDGED).round().astype(int)).tolist()
    verdicts = [judge(mechanism, t, delta, seed_published=False) for t in after]
    with np.errstate(divide="ignore", over="ignore"):
        spent = np.sum(mechanism.decay.factors(np.arange(epochs), mechanism.tau) ** -2.0)  # 2 rho at z0 = 1
    claimed = math.sqrt(spent / 2) * math.exp(-log_rho(math.log10(target), delta) / 2)
    needed = None
    with suppress(UsageError):
        needed = calibrate_z0(mechanism.with_public_alpha(), epochs, budget)
    return RunBill(mechanism, target, after, verdicts, claimed, needed)


def releases_of(noise_multiplier: float, count: int, rate: float = 1.0) -> Schedule:
    """So many with the same noise over sensitivity."""
    return Schedule(np.array([noise_multiplier]), np.array([count]), rate)


@panel("03")
def bill(z0: float, decay: str, tau: float, num_devices: int, target: float, epochs: int, delta: float) -> Panel:
    """What a run costs, claimed and true, and the noise for a target: `result` is a `RunBill`."""

    def command(result: RunBill, **_: Any) -> str:
        """The calls of `edp-lab account` for the bill, and at the z0 that meets the target with a public alpha."""
        m, run = result.mechanism, {"epochs": epochs, "delta": delta}
        calls = [account_of(m, **run)]
        if result.needed_z0 is not None:
            calls.append(account_of(replace(m.with_public_alpha(), z0=result.needed_z0), **run))
        return "\n".join(calls)

    return Panel(
        "The bill of a run",
        "The ε of a run after each epoch, claimed and true, and the z0 that would meet a target.",
        partial(run_bill, epochs=epochs, delta=delta),
        [draw_bill],
        words.bill,
        command,
        tiles=tell_bill,
        idle=lambda result: ["tau"] if result.mechanism.decay is Decay.NONE else [],
        variant=choice("variant", AS_PRINTED, VARIANTS),
        z0=number("noise multiplier z0", z0, decades(-6, 2)),
        num_devices=devices(num_devices),
        decay=decay_of(decay),
        tau=number("decay rate τ", tau, [k / 100 for k in range(101)], unit="per epoch"),
        target=number("target ε", target, decades(-1, 3), unit="nats"),
    )


def tell_bill(result: RunBill) -> tuple[Tile, Tile, str]:
    """Both epsilons, and the z0 that meets the target."""
    target = f"ε = {digits(result.target)}"
    if result.needed_z0 is None:
        return *epsilons(result.guarantee), f"No z0 up to a billion meets the target {target}."
    if_public = ", if α were public" if result.mechanism.alpha is Alpha.PRIVATE else ""
    claim = f"The claim asks for {digits(result.claimed_z0)}."
    return *epsilons(
        result.guarantee
    ), f"The target {target} needs z0 = {at_most(result.needed_z0)}{if_public}. {claim}"


def draw_bill(result: RunBill) -> Figure:
    """Epsilon by epochs trained, claimed and true; log scale."""
    as_claimed = positive(verdict.claimed_epsilon for verdict in result.verdicts)
    true = positive(verdict.epsilon_if_alpha_public for verdict in result.verdicts)
    name, dash = ("if α were public", "dot") if result.mechanism.alpha is Alpha.PRIVATE else ("holds", "solid")
    return figure(
        "Privacy spent, by epoch",
        line("claimed", CLAIMED, "dash", symbol="square-open", x=result.after, y=as_claimed),
        line(name, HOLDS, dash, symbol="circle", size=7, x=result.after, y=true),
        line("target", INK, "longdash", width=1.5, x=[1, result.after[-1]], y=[result.target] * 2),
        hover="after %{x} epochs: ε ≈ %{y:.3g}",
        xaxis=axis("epochs trained", [0.5, result.after[-1] + 0.5]),
        yaxis=log_axis("ε (nats)", [*as_claimed, *true, result.target], margin=0.05, labels=6),
    )


# ---- Privacy losses --------------------------------------------------------------------------------------------------


class Loss(NamedTuple):
    """Gaussian releases of one mu each: their privacy loss, and what the best attack makes of them."""

    releases: int
    delta: float
    mu: float  # of all releases together
    epsilon: float  # at delta, exact
    loss: Array  # (P), in nats, as far below 0 as above
    with_it: Array  # (P), density of the loss if the utterance took part
    without: Array  # (P), and if it did not
    excess: Array  # (P), (1 - e^(epsilon - loss)) of the first beyond epsilon: its area is delta
    best_found: float  # true positives at 1 % false positives: the most that any attack can expect


def privacy_loss(mu: float, releases: int, delta: float) -> Loss:
    """`releases` of mu each, everyone in each of them.

    UsageError: mu not from 0.001 to 1000, releases no whole number from 1 to 1000, delta outside (0, 1).
    """
    require(1e-3 <= mu <= 1e3, f"mu is {mu}: it must lie between 0.001 and 1000")
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
    """Privacy losses, and what they allow an attacker: `result` is a `Loss`."""

    def command(result: Loss, *, mu: float, **_: Any) -> str:
        """The call of `edp-lab account` with the same epsilon."""
        return _account({"z0": 1 / mu, "epochs": result.releases, "delta": result.delta})

    return Panel(
        "Privacy losses and attacks",
        "How much all epochs together reveal of one utterance. Second figure: the errors that attackers must make.",
        privacy_loss,
        [draw_loss, draw_tradeoff],
        words.loss,
        command,
        tiles=tell_loss,
        mu=number("μ of one epoch", mu, decades(-2, 1)),
        releases=number("epochs", epochs, [*range(1, 41), 50, 60, 80, 100, 120], unit="epochs"),
        delta=number("δ", delta, decades(-12, -1), unit="probability"),
    )


def tell_loss(result: Loss) -> tuple[Tile, Tile, str]:
    """Epsilon, what the best attack can find, and mu."""
    return (
        holds(f"ε = {at_most(result.epsilon)}", f"at δ = {short(result.delta)}, all epochs"),
        Tile("best attack, on average", percent(result.best_found), "of members, at 1 % false positives", "printed"),
        f"All epochs together have μ = {short(result.mu)}.",
    )


def draw_loss(result: Loss) -> Figure:
    """The privacy loss with and without the utterance, and delta."""
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
    """False negatives against false positives: what privacy allows."""
    fpr = np.concatenate([[0.0], np.logspace(-6, -2, 40), np.linspace(0.01, 1, 100)[1:]])
    least, pair = (
        100 * (1 - bound.tpr(fpr)) for bound in (gaussian_bound(result.mu), dp_bound(result.epsilon, result.delta))
    )
    return figure(
        "What attackers can do",
        line("least possible", HOLDS, width=3, x=100 * fpr, y=least),
        line("(ε, δ) alone", CLAIMED, "dash", x=100 * fpr, y=pair),
        line("guessing", INK, "dot", width=1.5, x=[0, 100], y=[100, 0], hoverinfo="skip"),
        top=48,
        hover="%{x:.3g} % against %{y:.3g} %",
        legend={"orientation": "v", "x": 1, "xanchor": "right", "y": 1, "yanchor": "top"},  # above guessing is nothing
        xaxis=axis("false positives (% of non-members)", [-1, 101]),
        yaxis=axis("false negatives (% of members)", [-1, 101]),
    )


# ---- Sampling --------------------------------------------------------------------------------------------------------


class Sampled(NamedTuple):
    """Per-example DP-SGD (each utterance clipped alone) with one noise multiplier, under three ways to make batches.

    Clipped alone, an utterance moves the sum by C, so that the noise over that is z itself.
    """

    rate: float  # q, the share of the corpus that a step sees
    noise_multiplier: float
    delta: float
    passes: int  # how often the steps begin the corpus, with disjoint batches
    after: NDArray[np.int64]  # (P), numbers of steps; the last is that of the run
    everyone: Array  # (P), epsilon if every utterance is in every step (exact)
    shuffled: Array  # (P), one shuffled pass after the other; exact for an attacker who knows the batches (Gaussian DP)
    now_and_then: NDArray[np.int64]  # (P''), some of `after`, with the last
    sampled: Array  # (P''), after as many, under Poisson sampling at rate q, by privacy loss distributions
    at_least: float  # no epsilon below that holds for a shuffled pass: `shuffled_at_least`; 0 before a pass is whole


def sampled(rate: float, noise_multiplier: float, steps: int, delta: float) -> Sampled:
    """`steps` steps at rate `rate`.

    UsageError: a rate outside (0, 1], no noise, steps no whole number from 1 to 10^6, delta outside (0, 1).
    """
    check_whole("the number of steps", steps, 1, 10**6)
    check_delta(delta)
    after = np.unique(np.geomspace(1, steps, 40).round().astype(np.int64))
    now_and_then = after[np.unique(np.linspace(0, len(after) - 1, 4).round().astype(int))]  # each takes milliseconds
    samples = [PrivacyLossDistribution(releases_of(noise_multiplier, k, rate)) for k in now_and_then.tolist()]
    passes, whole = [math.ceil(k * rate * (1 - 1e-12)) for k in after.tolist()], steps_of_a_pass(rate)
    exact = cache(lambda count: GaussianDP(releases_of(noise_multiplier, count)).epsilon(delta))
    return Sampled(
        rate,
        noise_multiplier,
        delta,
        passes[-1],
        after,
        everyone=np.array([exact(count) for count in after.tolist()]),
        shuffled=np.array([exact(count) for count in passes]),
        now_and_then=now_and_then,
        sampled=np.array([account.epsilon(delta) for account in samples]),
        at_least=shuffled_at_least(noise_multiplier, whole, 1, delta) if steps >= whole else 0.0,
    )


def steps_of_a_pass(rate: float) -> int:
    """After how many steps of disjoint batches everyone has been in one."""
    return math.ceil(1 / rate - 1e-9)


@panel("03")
def sampling(rate: float = 0.01, noise_multiplier: float = 1.0, steps: int = 1000, delta: float = 1e-5) -> Panel:
    """Poisson sampling beside shuffled batches: `result` is a `Sampled`."""

    def command(result: Sampled, **_: Any) -> str:
        """Two calls of `edp-lab account`: Poisson sampling, and disjoint batches."""
        each_alone = {"z0": result.noise_multiplier, "micro-batch-size": 1, "delta": result.delta}
        sampled = _account({**each_alone, "sampling-rate": result.rate, "steps": result.after[-1]})
        return f"{sampled}\n{_account({**each_alone, 'epochs': result.passes})}"

    return Panel(
        "Sampling",
        "What the same noise costs under three ways to make batches.",
        sampled,
        [draw_sampled],
        words.sampling,
        command,
        tiles=tell_sampling,
        rate=number("sampling rate q", rate, decades(-4, 0), unit="of the corpus"),
        noise_multiplier=number("noise multiplier z", noise_multiplier, decades(-1, 1)),
        steps=number("steps", steps, [int(stop) for stop in decades(0, 5) if stop.is_integer()], unit="steps"),
        delta=delta_of(delta, -12, -1),
    )


def tell_sampling(result: Sampled) -> tuple[Tile, Tile, str]:
    """Epsilon of a secret sample and of shuffled batches, and what an attack on the latter shows."""
    sampled, shuffled = result.sampled[-1], result.shuffled[-1]
    tiles = (
        holds(f"ε = {at_most(sampled)}", f"Poisson, δ = {short(result.delta)}", "secret sample"),
        Tile("shuffled", f"ε = {at_most(shuffled)}", count(result.passes, "pass", "passes")),
    )
    if not result.at_least:
        return *tiles, "The attack on shuffled batches refutes no ε here."
    return *tiles, f"An attack refutes every ε below {at_least(result.at_least)} for shuffled batches."


def draw_sampled(result: Sampled) -> Figure:
    """Epsilon by steps under three ways to make batches; log scales."""
    on: dict[str, Any] = {"x": result.after, "mode": "lines" if result.after.size > 1 else "lines+markers"}
    whole = [steps_of_a_pass(result.rate), 2 * result.after[-1]] if result.at_least else []
    everyone, shuffled, sampled = map(positive, (result.everyone, result.shuffled, result.sampled))
    return figure(
        "Three ways to batch",
        line("all in each step", OTHER, y=everyone, **on),
        line("shuffled", PLAIN, "dash", line={"shape": "hv"}, y=shuffled, **on),
        line("shuffled: at least", INK, "dot", **{**on, "x": whole}, y=[result.at_least] * len(whole)),
        line("secret sample", HOLDS, "dashdot", width=3, y=sampled, **{**on, "x": result.now_and_then}),
        hover="%{x:,} steps: ε ≈ %{y:.3g}",
        xaxis=logs("steps", [-0.03, max(0.5, math.log10(result.after[-1]) + 0.03)]),
        yaxis=log_axis("ε (nats)", [*everyone, *shuffled, *sampled], margin=0.05, labels=6),
    )


# ---- Table 1 ---------------------------------------------------------------------------------------------------------


class Behind(NamedTuple):
    """What may lie behind one printed epsilon of Table 1."""

    cell: ExplainedEpsilon  # the printed value, and the guaranteed one
    epochs: int  # T
    taus: tuple[float, ...]  # of the paper's grid; (0,) without decay
    z0: Array  # (taus, 120), the z0 that gives the printed value exactly, for T = 1 ... 120
    fits: list[tuple[float, float, float]]  # tau, least and largest z0 of the paper's that give it within rounding
    reachable: int  # how many of the 36 printed values T explains


def behind(model: str, corpus: str, decay: str, epochs: int) -> Behind:
    """The settings that a cell of Table 1 may stand for with T = `epochs`.

    UsageError: no such cell, epochs no whole number from 1 to 120.
    """
    check_whole("the number of epochs T", epochs, 1, MAX_EPOCHS)
    cells = [c for c in explained().rows if (c.model, c.corpus, c.decay) == (model, corpus, decay)]
    require(cells, f"Table 1 has no cell for {model}, {corpus} and {decay} decay")
    [cell] = cells
    [row] = [row for row in TABLE_1 if (row.model, row.corpus) == (model, corpus)]
    taus, (low, z0, high) = TAUS.get(cell.decay, (0.0,)), (10**log for log in search(row, cell.decay))
    here = zip(taus, low[:, epochs - 1].tolist(), high[:, epochs - 1].tolist(), strict=True)
    fits = [(tau, least, most) for tau, least, most in here if least <= most]
    return Behind(cell, epochs, taus, z0, fits, explained().epochs[epochs - 1].reachable)


@panel("03")
def table1(epochs: int = 30) -> Panel:
    """What may lie behind the printed epsilons: `result` is a `Behind`."""
    models, corpora = (list(dict.fromkeys(getattr(row, what) for row in TABLE_1)) for what in ("model", "corpus"))
    return Panel(
        "Table 1, decoded",
        "Which z0 gives the printed ε of a cell, by the number of epochs T.",
        behind,
        [draw_settings],
        words.behind,
        lambda result, **_: "edp-lab reproduce epsilons",
        tiles=tell_behind,
        model=choice("model", models[0], models),
        corpus=choice("corpus", corpora[0], corpora),
        decay=choice("decay", Decay.EXPONENTIAL, {str(kind): kind for kind in Decay}),
        epochs=number("epochs T", epochs, range(1, 121), unit="epochs"),
    )


def tell_behind(result: Behind) -> tuple[Tile, Tile, str]:
    """What is printed and what is guaranteed, in powers of ten, and how many cells T explains."""
    cell, epochs = result.cell, count(result.epochs, "epoch")
    here = "this one too" if result.fits else "but not this one"
    bound = f"{math.ceil(10 * cell.log10_guaranteed_if_alpha_public - 1e-9) / 10:g}"
    return (
        claimed(f"log₁₀ ε = {cell.log10_epsilon:g}", f"printed, δ = {short(cell.delta)}"),
        Tile("guaranteed", "none", f"with a public α: log₁₀ ε = {bound}", "printed"),
        f"{epochs[0].upper()}{epochs[1:]} can explain {result.reachable} of 36 printed ε, {here}.",
    )


DASHES = ("solid", "dash", "dot", "dashdot")


def draw_settings(result: Behind) -> Figure:
    """The z0 that gives the cell's printed epsilon, by T, a line for each tau of the paper's grid."""
    decays = result.cell.decay is not Decay.NONE
    lines: list[Trace] = []
    for k, tau in enumerate(result.taus):
        name, color, dash = f"{tau:g}" if decays else "no decay", PLAIN if k < 4 else "#777", DASHES[k % 4]
        hover = f"{name}, T = %{{x}}: z0 = %{{y:.3g}}" + fig.ALONE
        on = {"x": np.arange(1, result.z0.shape[1] + 1), "y": positive(result.z0[k]), "hovertemplate": hover}
        lines.append(line(name, color, dash, width=2 if k < 4 else 3, **on))
    band = {"y0": Z0_RANGE[0], "y1": Z0_RANGE[1], "fillcolor": OTHER, "opacity": 0.15, "line": {"width": 0}}
    return figure(
        "Which z0 fits, for each τ?" if decays else "Which z0 fits?",
        *lines,
        {**fig.hline(0), "type": "rect", **band},
        fig.vline(result.epochs),
        xaxis=axis("epochs T", [0, 121]),
        yaxis=logs("z0 (band: the paper's range)", [-7, 1]),
    )
