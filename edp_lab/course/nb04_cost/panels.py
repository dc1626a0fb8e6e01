"""The panels of ``04_what_does_it_cost.ipynb``: a bill, noise for a target, losses, sampling, Table 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from edp_lab.course.kit import figure as fig
from edp_lab.course.kit import text
from edp_lab.course.kit.controls import Control, choice, decades, decay_of, delta_of, devices, number, seed_of
from edp_lab.course.kit.figure import Figure, Trace, axis, line, log_axis, logs, points, positive
from edp_lab.course.kit.inputs import AS_PRINTED, VARIANTS
from edp_lab.course.kit.panel import Panel, Tile, claimed, epsilons, holds, panel
from edp_lab.course.kit.text import Words, account_command, at_most, count, percent, short
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import CLAIMED, HOLDS, INK, NOISE, OTHER, PLAIN, PRINTED
from edp_lab.course.nb04_cost import compute
from edp_lab.course.nb04_cost.compute import Account, Behind, Loss, Needed, RunBill, Sampled
from edp_lab.privacy import Alpha, Decay, Mechanism, NoGuarantee, true_epsilon
from edp_lab.reproduce.printed import NUM_GPUS, TABLE_1, Z0_RANGE

EPOCHS = [*range(1, 41), 45, 50, 60, 80, 100, 120]
DECAYS = {Decay.NONE: "no decay", Decay.LINEAR: "linear decay", Decay.EXPONENTIAL: "exponential decay"}
words = Words(__file__, decays=DECAYS, z0_range=Z0_RANGE, table1=compute.table1)
figure = partial(fig.figure, height=360)
_account = partial(account_command, precision=12)


# ---- The bill of a run, and noise for a target ---------------------------------------------------------------------


def _run(num_devices: int, epochs: int, decay: str, tau: float) -> dict[str, Control]:
    return {
        "num_devices": devices(num_devices),
        "epochs": number("epochs T", epochs, EPOCHS, unit="epochs"),
        "decay": decay_of(decay),
        "tau": number("decay rate τ", tau, [k / 100 for k in range(101)], unit="per epoch"),
    }


def _variant() -> Control:
    tips = [
        "Algorithm 1 of the paper, verbatim: α from private gradients",
        "the same, with α from public text",
        "noise in proportion to the true sensitivity",
    ]
    return choice("variant", AS_PRINTED, VARIANTS, tooltips=tips)


def _for_whom(delta: float) -> dict[str, Control]:
    stops = [1, 2, 3, 5, 10, 20, 50, 100]
    utterances = number("a person's share", 1, stops, unit="utterances", rare=True)
    return {"utterances": utterances, "delta": delta_of(delta, -12, -1)}


@panel("04")
def bill(C: float, z0: float, decay: str, tau: float, num_devices: int, epochs: int, delta: float) -> Panel:
    """What a run costs by three accounts: `result` is a `RunBill`."""

    def command(result: RunBill, **_: Any) -> str:
        """The call of `edp-lab account` that says the same; with a private alpha also that with a public one."""
        m, held = result.mechanism, result.guarantee
        private = held.epsilon is None and held.epsilon_if_alpha_public is not None
        run = {"epochs": result.epochs, "delta": result.delta, "utterances-per-person": result.utterances}
        return "\n".join(text.account_of(one, **run) for one in ([m, m.with_public_alpha()] if private else [m]))

    return Panel(
        "The bill of a run",
        "The ε of a run after each epoch, claimed and true. Second figure: the noise behind it.",
        compute.run_bill,
        [draw_bill, draw_noise],
        words.bill,
        command,
        tiles=tell_bill,
        idle=lambda result: ["tau"] if result.mechanism.decay is Decay.NONE else [],
        variant=_variant(),
        z0=number("noise multiplier z0", z0, decades(-6, 2)),
        **_run(num_devices, epochs, decay, tau),
        clip_norm=number("clip norm C", C, decades(-2, 2), unit="gradient norm", rare=True),
        **_for_whom(delta),
    )


def tell_bill(result: RunBill) -> tuple[Tile, Tile, str]:
    """Both epsilons, and the noise in its two meanings."""
    tiles, set_, true = epsilons(result.guarantee), result.z_set[0], result.z_true[0]
    if not set_:
        return *tiles, "Without noise nothing is promised."
    says = "as z0 says" if math.isclose(set_, true) else f"where z0 says {d(set_)}"
    return *tiles, f"In the first epoch, noise over sensitivity is {d(true)}, {says}."


def draw_bill(result: RunBill) -> Figure:
    """Epsilon by epochs trained, claimed and true; log scale."""
    void = result.guarantee.epsilon is None
    held, dash = ("exact, α public", "dot") if void else ("exact", "solid")
    mark: dict[str, Any] = {"symbol": "circle-open" if void else "circle", "size": 7}
    after, mode = result.after, "lines" if result.after.size > 1 else "markers"
    said, zcdp, exact = map(positive, (result.claimed, result.zcdp, result.exact))
    return figure(
        "Privacy spent, by epoch",
        line("claimed", CLAIMED, "dash", symbol="square-open", x=after, y=said),
        line(held, HOLDS, dash, **mark, x=after, y=exact),
        line("zCDP, true noise", OTHER, "dashdot", mode=mode, x=after, y=zcdp),
        hover="after %{x} epochs: ε ≈ %{y:.3g}",
        xaxis=axis("epochs trained", [0.5, result.epochs + 0.5]),
        yaxis=log_axis("ε (nats)", [*said, *exact, *zcdp], margin=0.05, labels=6),
    )


def draw_noise(result: RunBill) -> Figure:
    """The noise multiplier by epoch, as set and over true sensitivity; log scale."""
    set_, true = positive(result.z_set), positive(result.z_true)
    on: dict[str, Any] = {"x": np.arange(result.epochs), "mode": "lines+markers" if result.epochs <= 40 else "lines"}
    return figure(
        "Noise over sensitivity",
        line("as z0 says", CLAIMED, "dash", symbol="square-open", y=set_, **on),
        line("in truth", HOLDS, symbol="circle", size=7, y=true, **on),
        hover="t = %{x}: %{y:.3g}",
        xaxis=axis("epoch t (first is 0)", [-0.6, result.epochs - 0.4]),
        yaxis=log_axis("noise multiplier", [*set_, *true], margin=0.05, labels=4),
    )


@panel("04")
def needed(target: float, decay: str, tau: float, num_devices: int, epochs: int, delta: float) -> Panel:
    """The noise that a target takes, and who pays: `result` is a `Needed`."""

    def command(result: Needed, **_: Any) -> str:
        """The call of `edp-lab account` that looks for z0, with a public alpha."""
        budget, run = result.budget, {"epochs": result.epochs, "delta": result.budget.delta}
        people = {"utterances-per-person": budget.utterances_per_person, "target-epsilon": budget.epsilon}
        return text.account_of(result.mechanism.with_public_alpha(), **run, **people)

    return Panel(
        "Noise for a target",
        "The z0 with which a run meets a target ε, claimed and true. Second figure: which epochs pay.",
        compute.needed,
        [draw_needed, draw_share],
        words.needed,
        command,
        tiles=tell_needed,
        idle=lambda result: ["tau"] if result.mechanism.decay is Decay.NONE else [],
        variant=_variant(),
        target=number("target ε", target, decades(-1, 3), unit="nats"),
        **_run(num_devices, epochs, decay, tau),
        **_for_whom(delta),
    )


def tell_needed(result: Needed) -> tuple[Tile, Tile, str]:
    """z0 by the claim and in truth, and the epochs that pay."""
    of, z0, at = f"for ε = {short(result.budget.epsilon)}", result.z0[-1], f"δ = {short(result.budget.delta)}"
    said = claimed(f"z0 = {d(result.claimed[-1])}", f"{of}, by the claim")
    found = f"z0 = {at_most(z0)}" if z0 > 0 else "no z0"
    if result.mechanism.alpha is Alpha.PRIVATE:
        held = Tile("holds", "no guarantee", f"with a public α, {at}: {found}", "printed")
    else:
        held = holds(found, f"{of} in truth, {at}")
    if result.epochs == 1:
        return said, held, "The one epoch costs the whole bill."
    last = "epoch" if result.last_half == 1 else f"{result.last_half} epochs"
    costs = "costs" if result.last_half == 1 else "cost"
    return said, held, f"The last {last} of {result.epochs} {costs} at least half of the bill."


def draw_needed(result: Needed) -> Figure:
    """The z0 that meets the target, by the length of the run; log scales."""
    said, true, after = positive(result.claimed), positive(result.z0), np.arange(1, result.epochs + 1)
    mode = "lines" if result.epochs > 1 else "lines+markers"
    held, dash = ("in truth, α public", "dot") if result.mechanism.alpha is Alpha.PRIVATE else ("in truth", "solid")
    return figure(
        "The z0 it takes",
        line("claimed", CLAIMED, "dash", mode=mode, x=after, y=said),
        line(held, HOLDS, dash, width=3, mode=mode, x=after, y=true),
        hover="%{x} epochs: z0 = %{y:.3g}",
        xaxis=axis("epochs of the run", [0.5, result.epochs + 0.5]),
        yaxis=log_axis("z0", [*said, *true], margin=0.05, labels=6),
    )


def draw_share(result: Needed) -> Figure:
    """Each epoch's share of the bill; darker those that together are half of it."""
    half = result.epochs - result.last_half
    parts = [("the first", OTHER, "", slice(0, half)), ("the last, half of all", PLAIN, "/", slice(half, None))]
    t = np.arange(result.epochs)
    return figure(
        "Who pays",
        *(fig.bar(name, color, hatch, x=t[of], y=100 * result.share[of]) for name, color, hatch, of in parts),
        hover="t = %{x}: %{y:.3g} %",
        xaxis=axis("epoch t (first is 0)", [-0.6, result.epochs - 0.4]),
        yaxis=axis("share of Σ 1/z² (%)", rangemode="tozero"),
    )


# ---- Privacy losses ------------------------------------------------------------------------------------------------


@panel("04")
def loss(mu: float = 0.5, epochs: int = 10, delta: float = 1e-5, draws: int = 1000, seed: int = 0) -> Panel:
    """Privacy losses, and what an attacker makes of them: `result` is a `Loss`."""

    def command(result: Loss, **values: Any) -> str:
        """The call of `edp-lab account` that says the same, and the Python that attacks."""
        account = _account({"z0": 1 / result.mu_each, "epochs": result.releases, "delta": result.delta})
        return f"{account}\n{text.python(compute.privacy_loss, *values.values())}"

    return Panel(
        "Privacy losses and attacks",
        "How much all epochs together betray of one utterance. Second figure: the errors that attackers must make.",
        compute.privacy_loss,
        [draw_loss, draw_tradeoff],
        words.loss,
        command,
        tiles=tell_loss,
        mu=number("μ of one epoch", mu, decades(-2, 1)),
        releases=number("epochs", epochs, EPOCHS, unit="epochs"),
        delta=number("δ", delta, decades(-12, -1), unit="probability"),
        draws=number("simulated runs", draws, [50, 100, 200, 500, 1000, 2000, 5000], unit="with, without"),
        seed=seed_of(seed),
    )


def tell_loss(result: Loss) -> tuple[Tile, Tile, str]:
    """Epsilon, what the best attack can find, and what one has found."""
    found = f"An attack on {result.draws:,} simulated runs found {percent(result.found.value)}"
    luck = ": by luck, more than the best attack finds on average." if result.found.value > result.best_found else "."
    return (
        holds(f"ε = {at_most(result.epsilon)}", f"at δ = {short(result.delta)}, all epochs"),
        Tile("best attack, on average", percent(result.best_found), "of members, at 1 % false positives", "printed"),
        found + luck,
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
    """False negatives against false positives: what privacy allows, and what an attack reaches."""
    shown = np.unique(np.linspace(0, result.attack.fpr.size - 1, 400).round().astype(int))
    attack = {"x": 100 * result.attack.fpr[shown], "y": 100 * (1 - result.attack.tpr[shown]), "line": {"shape": "hv"}}
    fpr, guessing = 100 * result.fpr, {"x": [0, 100], "y": [100, 0], "hoverinfo": "skip"}
    return figure(
        "What attackers can do",
        line("least possible", HOLDS, width=3, x=fpr, y=100 * result.fnr),
        line("after one epoch", OTHER, "dashdot", x=fpr, y=100 * result.fnr_each),
        line("(ε, δ) alone", CLAIMED, "dash", x=fpr, y=100 * result.fnr_pair),
        line("an attack", PRINTED, "longdash", **attack),
        line("guessing", INK, "dot", width=1.5, **guessing),
        top=48,
        hover="%{x:.3g} % against %{y:.3g} %",
        legend={"orientation": "v", "x": 1, "xanchor": "right", "y": 1, "yanchor": "top"},  # above guessing is nothing
        xaxis=axis("false positives (% of non-members)", [-1, 101]),
        yaxis=axis("false negatives (% of members)", [-1, 101]),
    )


# ---- Sampling ------------------------------------------------------------------------------------------------------


@panel("04")
def sampling(rate: float = 0.01, noise_multiplier: float = 1.0, steps: int = 1000, delta: float = 1e-5) -> Panel:
    """Poisson sampling beside shuffled batches: `result` is a `Sampled`."""

    def command(result: Sampled, **_: Any) -> str:
        """Two calls of `edp-lab account`: Poisson sampling, and disjoint batches."""
        each_alone = {"z0": result.noise_multiplier, "micro-batch-size": 1, "delta": result.delta}
        sampled = _account({**each_alone, "sampling-rate": result.rate, "steps": result.steps})
        return f"{sampled}\n{_account({**each_alone, 'epochs': result.passes})}"

    whole = [int(stop) for stop in decades(0, 5) if stop.is_integer()]
    return Panel(
        "Sampling",
        "What the same noise costs under three ways to make batches. Second figure: how a secret sample hides you.",
        compute.sampling,
        [draw_sampled, draw_output],
        words.sampling,
        command,
        tiles=tell_sampling,
        rate=number("sampling rate q", rate, decades(-4, 0), unit="of the corpus"),
        noise_multiplier=number("noise multiplier z", noise_multiplier, decades(-1, 1)),
        steps=number("steps", steps, whole, unit="steps"),
        delta=delta_of(delta, -12, -1),
    )


def tell_sampling(result: Sampled) -> tuple[Tile, Tile, str]:
    """Epsilon of a secret sample and of shuffled batches, and what an attack on the latter shows."""
    sampled, shuffled = result.sampled[-1], result.shuffled[-1]
    tiles = (
        holds(f"ε = {at_most(sampled)}", f"Poisson, δ = {short(result.delta)}", "secret sample"),
        Tile("shuffled", f"ε = {at_most(shuffled)}", count(result.passes, "pass", "passes")),
    )
    least = f"An attack refutes every ε below {text.at_least(result.at_least)} for shuffled batches"
    if result.at_least > sampled:
        return *tiles, f"{least}, so they must not be billed as a sample."
    if result.at_least:
        return *tiles, f"{least}."
    if result.steps < (whole := compute.steps_of_a_pass(result.rate)):
        return *tiles, f"Shuffled batches have no whole pass before {count(whole, 'step')}."
    return *tiles, "The attack on shuffled batches refutes no ε at this δ."


def draw_sampled(result: Sampled) -> Figure:
    """Epsilon by steps under three ways to make batches; log scales."""
    on: dict[str, Any] = {"x": result.after, "mode": "lines" if result.after.size > 1 else "lines+markers"}
    whole = [compute.steps_of_a_pass(result.rate), 2 * result.steps] if result.at_least else []
    everyone, shuffled, sampled = map(positive, (result.everyone, result.shuffled, result.sampled))
    return figure(
        "Three ways to batch",
        line("all in each step", OTHER, y=everyone, **on),
        line("shuffled", PLAIN, "dash", line={"shape": "hv"}, y=shuffled, **on),
        line("shuffled: at least", INK, "dot", **{**on, "x": whole}, y=[result.at_least] * len(whole)),
        line("secret sample", HOLDS, "dashdot", width=3, y=sampled, **{**on, "x": result.now_and_then}),
        hover="%{x:,} steps: ε ≈ %{y:.3g}",
        xaxis=logs("steps", [-0.03, max(0.5, math.log10(result.steps) + 0.03)]),
        yaxis=log_axis("ε (nats)", [*everyone, *shuffled, *sampled], margin=0.05, labels=6),
    )


def draw_output(result: Sampled) -> Figure:
    """One step's noisy sum without the utterance, with it, and with it in the batch by chance."""
    return figure(
        "One step",
        line("without", PLAIN, x=result.output, y=result.without),
        line("with, for sure", NOISE, "dash", x=result.output, y=result.with_it),
        line("with, by chance q", HOLDS, "dashdot", x=result.output, y=result.sampled_with),
        hover="%{x:.3g}: %{y:.3g}",
        xaxis=axis("noisy sum along its gradient (in C)"),
        yaxis=axis("density (per C)", rangemode="tozero"),
    )


# ---- Table 1 -------------------------------------------------------------------------------------------------------


@panel("04")
def table1(epochs: int = 30) -> Panel:
    """What may lie behind the printed epsilons: `result` is a `Behind`."""

    def command(result: Behind, **_: Any) -> str:
        """The search over all cells, and a setting behind this one: with T epochs, if there is one."""
        cell, setting = result.cell, result.setting
        options = {
            "z0": setting.z0, "epochs": setting.epochs, "delta": cell.delta, "gpus": NUM_GPUS,
            "decay": None if setting.tau is None else cell.decay, "tau": setting.tau, "alpha-source": "public",
        }  # fmt: skip
        return f"edp-lab reproduce epsilons\n{_account(options, '--as-printed')}"

    models, corpora = (list(dict.fromkeys(getattr(row, what) for row in TABLE_1)) for what in ("model", "corpus"))
    for kind in Decay:  # searched once, so that no slider waits
        compute.behind(models[0], corpora[0], kind, epochs)
    return Panel(
        "Table 1, decoded",
        "Which z0 gives the printed ε of a cell. Second figure: how many cells each T explains. Third: all cells.",
        compute.behind,
        [draw_settings, draw_reach, (draw_cells, "1 1 100%")],
        words.behind,
        command,
        tiles=tell_behind,
        model=choice("model", models[0], models),
        corpus=choice("corpus", corpora[0], corpora),
        decay=choice("decay", Decay.EXPONENTIAL, {str(kind): kind for kind in Decay}),
        epochs=number("epochs T", epochs, range(1, 121), unit="epochs"),
    )


def tell_behind(result: Behind) -> tuple[Tile, Tile, str]:
    """What is printed and what holds, in powers of ten, and how many cells T explains."""
    cell, epochs = result.cell, count(result.epochs, "epoch")
    here = "this one too" if result.fits else "but not this one"
    true = f"{math.ceil(10 * cell.true_log10_epsilon - 1e-9) / 10:g}"
    return (
        claimed(f"log₁₀ ε = {cell.log10_epsilon:g}", f"printed, δ = {short(cell.delta)}"),
        Tile("holds", "no guarantee", f"with a public α: log₁₀ ε = {true}", "printed"),
        f"{epochs[0].upper()}{epochs[1:]} can explain {result.reachable} of 36 printed ε, {here}.",
    )


def draw_settings(result: Behind) -> Figure:
    """The z0 that gives the cell's printed epsilon, by T, a line for each tau of the paper's grid."""
    cell, z0 = result.cell, np.where((result.z0 > 1e-9) & (result.z0 < 1e3), result.z0, np.nan)
    dashes, colors = ["solid", "dash", "dot", "dashdot"], [PLAIN] * 4 + ["#777"] * 4
    lines: list[Trace] = []
    for k, color in enumerate(colors):
        name, on = "", {"x": [], "y": [], "visible": False}
        if k < len(result.taus):
            name = "no decay" if cell.decay is Decay.NONE else f"{result.taus[k]:g}"
            hover = f"{name}, T = %{{x}}: z0 = %{{y:.3g}}" + fig.ALONE
            on = {"x": np.arange(1, z0.shape[1] + 1), "y": positive(z0[k]), "hovertemplate": hover, "visible": True}
        lines.append(line(name, color, dashes[k % 4], line={"width": 2 if k < 4 else 3}, **on))
    band = {"y0": Z0_RANGE[0], "y1": Z0_RANGE[1], "fillcolor": OTHER, "opacity": 0.15, "line": {"width": 0}}
    return figure(
        "Which z0 fits, for each τ?" if result.cell.decay is not Decay.NONE else "Which z0 fits?",
        *lines,
        {**fig.hline(0), "type": "rect", **band},
        fig.vline(result.epochs),
        xaxis=axis("epochs T", [0, 121]),
        yaxis=logs("z0 (band: the paper's range)", [-7, 1]),
    )


def draw_reach(result: Behind) -> Figure:
    """How many of the printed epsilons some z0 and tau of the paper's grid give, by the number of epochs."""
    x, y = zip(*((reach.epochs, reach.reachable) for reach in compute.table1().epochs), strict=True)
    return figure(
        "Cells that T explains",
        line("", PLAIN, symbol="circle", size=4, line={"shape": "hvh"}, x=x, y=y),
        fig.ring(x=[result.epochs], y=[result.reachable], hoverinfo="skip"),
        hover="T = %{x}: %{y} of 36",
        showlegend=False,
        xaxis=axis("epochs T", [0, 121]),
        yaxis=axis("cells explained, of 36", [27.5, 37]),
    )


def draw_cells(result: Behind) -> Figure:
    """All cells of Table 1: printed, and what holds with a public alpha."""
    table, chosen = compute.table1(), f"{result.cell.model}, {result.cell.corpus}"
    traces: list[Trace] = []
    for plot, decay in enumerate(DECAYS, 1):
        cells = [cell for cell in table.rows if cell.decay is decay]
        names = [f"{cell.model}, {cell.corpus}" for cell in cells]
        printed, true = [cell.log10_epsilon for cell in cells], [cell.true_log10_epsilon for cell in cells]
        here = [result.cell.log10_epsilon, result.cell.true_log10_epsilon] if decay is result.cell.decay else []
        on, first = fig.at(plot), {"y": names, "showlegend": plot == 1}
        traces += [
            line("", "#888", **fig.gaps(printed, true, names), showlegend=False, **on),
            points("printed", CLAIMED, "square-open", 9, edge=2, x=printed, **first, **on),
            points("with a public α", HOLDS, "circle", 9, edge=0, x=true, **first, **on),
            fig.ring(17, x=here, y=[chosen] * len(here), hoverinfo="skip", **on),
        ]
    x, y = axis("log₁₀ ε", rangemode="tozero"), axis("model, corpus", autorange="reversed")
    layout = fig.plots(
        1, 3, [*DECAYS.values()], axes=((x, y), (x, {}), (x, {})), shared_yaxes=True, horizontal_spacing=0.03
    )
    for heading in layout["annotations"]:
        heading["font"] = {"size": 13}
    return figure("All cells of Table 1", *traces, height=400, **layout)


# ---- Tables in plain text ------------------------------------------------------------------------------------------


def devices_table(mechanisms: Sequence[Mechanism], epochs: int, delta: float) -> str:
    """Noise, sensitivity and epsilon (of a public alpha), one mechanism a line."""
    rows = [("N", "noise on the sum", "one utterance moves it by", "noise over that", "ε that holds")]
    for mechanism in mechanisms:
        try:
            holds = at_most(true_epsilon(mechanism, epochs, delta))
        except NoGuarantee:
            holds = "none"
        noise, reach = mechanism.noise_std(0), mechanism.sensitivity()
        rows.append((str(mechanism.num_devices), d(noise), d(reach), d(mechanism.noise_multiplier(0)), holds))
    return text.columns(rows)


def accounts_table(accounts: Sequence[Account], notes: Mapping[str, str]) -> str:
    """What each account says, how long it took, and a note."""
    rows = [("account", "ε", "time", "")]
    rows += [(a.name, at_most(a.epsilon), text.duration(a.seconds), notes.get(a.name, "")) for a in accounts]
    return text.columns(rows)
