"""The panels of ``04_what_does_it_cost.ipynb``: a run's bill, privacy losses, sampling (one is slow), Table 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import choice, decades, decay_of, delta_of, devices, number, seed_of
from edp_lab.course.kit.figure import ABOVE, BELOW, Figure, Trace, axis, figure, line, log_axis, logs, points, positive
from edp_lab.course.kit.inputs import AS_PRINTED, VARIANTS
from edp_lab.course.kit.panel import Panel, RunPanel, panel
from edp_lab.course.kit.text import Words, account_command, account_of, at_most, columns, duration, python
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION
from edp_lab.course.nb04_cost import compute
from edp_lab.course.nb04_cost.compute import Account, Behind, Loss, RunBill, Sampled
from edp_lab.privacy import Decay, Mechanism, NoGuarantee, true_epsilon
from edp_lab.reproduce.paper.printed import NUM_GPUS, TABLE_1, Z0_RANGE

EPOCHS = [*range(1, 41), 45, 50, 60, 80, 100, 120]
DECAYS = {Decay.NONE: "no decay", Decay.LINEAR: "linear decay", Decay.EXPONENTIAL: "exponential decay"}
words = Words(__file__, decays=DECAYS, z0_range=Z0_RANGE, table1=compute.table1)
two_plots = partial(fig.two_plots, legend_at=0.4, spacing=0.27)
_account = partial(account_command, precision=12)


# ---- The bill of a run ---------------------------------------------------------------------------------------------


@panel("04")
def bill(
    C: float, z0: float, decay: str, tau: float, num_devices: int, epochs: int, delta: float, target: float
) -> Panel:
    """What a run costs by three accounts: `result` is a `RunBill`."""

    def command(result: RunBill, **_: Any) -> str:
        """The call of `edp-lab account` that says the same; with a private alpha also that with a public one."""
        m, budget, held = result.mechanism, result.budget, result.guarantee
        private = held.epsilon is None and held.epsilon_if_alpha_public is not None
        run = {"epochs": result.epochs, "delta": budget.delta, "utterances-per-person": budget.utterances_per_person}
        both = [m, m.with_public_alpha()] if private else [m]
        return "\n".join(account_of(one, **run, **{"target-epsilon": budget.epsilon}) for one in both)

    tooltips = [
        "Algorithm 1 of the paper, verbatim: α from private gradients",
        "the same, with α from public text",
        "noise in proportion to the true sensitivity",
    ]
    return Panel(
        "The bill of a run",
        "First, the privacy loss after each epoch: claimed, bounded and exact; then, the noise of each epoch, and its "
        "share of the bill.",
        compute.run_bill,
        [draw_bill, draw_spend],
        words.bill,
        command,
        idle=lambda result: ["tau"] if result.mechanism.decay is Decay.NONE else [],
        variant=choice("variant", AS_PRINTED, VARIANTS, tooltips=tooltips),
        clip_norm=number("clip norm C", C, decades(-2, 2), unit="gradient norm"),
        z0=number("noise multiplier z0", z0, decades(-6, 2)),
        decay=decay_of(decay),
        tau=number("decay rate τ", tau, [k / 100 for k in range(101)], unit="per epoch"),
        num_devices=devices(num_devices),
        epochs=number("length T of the run", epochs, EPOCHS, unit="epochs"),
        delta=delta_of(delta, -12, -1),
        utterances=number("utterances of a person", 1, [1, 2, 3, 5, 10, 20, 50, 100], unit="utterances"),
        target=number("target ε", target, decades(-1, 3), unit="nats"),
    )


def draw_bill(result: RunBill) -> Figure:
    """Epsilon by epochs trained, claimed and true; log scale."""
    void = result.guarantee.epsilon is None
    held, dash = ("exact, if α were public", "dot") if void else ("exact: what holds", "solid")
    mark: dict[str, Any] = {"symbol": "circle-open" if void else "circle", "size": 7}
    after, target, mode = result.after, result.budget.epsilon, "lines" if result.after.size > 1 else "markers"
    claimed, zcdp, exact = map(positive, (result.claimed, result.zcdp, result.exact))
    limit: dict[str, Any] = {"x": [0, result.epochs + 1], "y": [target] * 2, "hoverinfo": "skip"}
    return figure(
        "Privacy spent, by epoch",
        words.bill_caption(result),
        line("claimed (zCDP, z0 at face value)", ORANGE, "dash", symbol="square-open", x=after, y=claimed),
        line("zCDP, true noise", PURPLE, "dashdot", mode=mode, x=after, y=zcdp),
        line(held, GREEN, dash, **mark, x=after, y=exact),
        line("target", BLACK, "dot", width=1.5, **limit),
        top=164,
        hover="after %{x} epochs: ε = %{y:.3g}",
        xaxis=axis("epochs trained", [0.5, result.epochs + 0.5]),
        yaxis=log_axis("ε (nats)", [*claimed, *exact, target], margin=0.05, labels=6),
    )


def draw_spend(result: RunBill) -> Figure:
    """Above: the noise multiplier by epoch, as set and over true sensitivity. Below: each epoch's share of the bill."""
    set_, true = positive(result.z_set), positive(result.z_true)
    on: dict[str, Any] = {"x": np.arange(result.epochs)}
    noise: dict[str, Any] = {"mode": "lines+markers" if result.epochs <= 40 else "lines", **ABOVE, **on}
    t = axis("epoch t (the first is 0)", [-0.6, result.epochs - 0.4])
    return two_plots(
        "Noise, and who pays",
        words.bill_caption(result),
        line("z as set", ORANGE, "dash", symbol="square-open", y=set_, **noise),
        line("noise over true sensitivity", GREEN, symbol="circle", size=7, y=true, **noise),
        {"type": "bar", "marker": {"color": SKY}, "showlegend": False, "y": 100 * result.share, **BELOW, **on},
        hover="t = %{x}: %{y:.3g}",
        axes=(
            (t, log_axis("noise multiplier", [*set_, *true], margin=0.05, labels=4)),
            (t, axis("share of Σ 1/z² (%)", rangemode="tozero")),
        ),
    )


# ---- Privacy losses ------------------------------------------------------------------------------------------------


@panel("04")
def loss(mu: float, epochs: int, delta: float, draws: int, seed: int) -> Panel:
    """Privacy losses, and what an attacker makes of them: `result` is a `Loss`."""

    def command(result: Loss, **values: Any) -> str:
        """The call of `edp-lab account` that says the same, and the Python that attacks."""
        account = _account({"z0": 1 / result.mu_each, "epochs": result.releases, "delta": result.delta})
        return f"{account}\n{python(compute.privacy_loss, *values.values())}"

    return Panel(
        "Privacy losses and attacks",
        "First, how much all releases together betray of one utterance, and δ for each ε; then, the errors that this "
        "forces upon any attacker.",
        compute.privacy_loss,
        [draw_loss, draw_tradeoff],
        words.loss,
        command,
        mu=number("μ of one epoch", mu, decades(-2, 1)),
        releases=number("epochs", epochs, EPOCHS, unit="epochs"),
        delta=delta_of(delta, -12, -1),
        draws=number("simulated runs", draws, [50, 100, 200, 500, 1000, 2000, 5000], unit="with, without"),
        seed=seed_of(seed),
    )


def draw_loss(result: Loss) -> Figure:
    """Above: the privacy loss with and without the utterance, and delta. Below: delta for every epsilon."""
    beyond = result.loss >= result.epsilon
    x, top = result.loss[beyond], result.excess[beyond]
    lowest = math.floor(math.log10(result.delta)) - 1
    loss = axis("privacy loss (nats); dotted: ε", result.loss[[0, -1]])
    return two_plots(
        "Privacy loss",
        words.releases(result) + "\nGaussian DP, exact; one utterance, zero-out",
        fig.area("δ", VERMILLION, 0.7, **fig.between(x, np.zeros_like(top), top), **ABOVE),
        line("with", BLUE, x=result.loss, y=result.with_it, **ABOVE),
        line("without", ORANGE, "dash", x=result.loss, y=result.without, **ABOVE),
        line("Gaussian DP, exact", GREEN, x=result.epsilons, y=positive(result.deltas), **BELOW),
        line("zCDP", PURPLE, "dashdot", x=result.epsilons, y=positive(result.zcdp_deltas), **BELOW),
        fig.ring(x=[result.epsilon, result.zcdp], y=[result.delta] * 2, **BELOW),
        fig.vline(result.epsilon, line=fig.DOTTED),
        hover="%{x:.3g}: %{y:.3g}",
        axes=(
            (loss, axis("density (per nat)", rangemode="tozero")),
            (axis("ε (nats)"), logs("δ", [lowest, 0.1], dtick=math.ceil(-lowest / 5))),
        ),
    )


def draw_tradeoff(result: Loss) -> Figure:
    """False negatives against false positives: what privacy allows, and what an attack reaches."""
    shown = np.unique(np.linspace(0, result.attack.fpr.size - 1, 400).round().astype(int))
    attack = {"x": 100 * result.attack.fpr[shown], "y": 100 * (1 - result.attack.tpr[shown]), "line": {"shape": "hv"}}
    fpr, guessing = 100 * result.fpr, {"x": [0, 100], "y": [100, 0], "hoverinfo": "skip"}
    return figure(
        "What attackers can do",
        words.releases(result)
        + f", Gaussian DP\none utterance, zero-out; {result.draws:,} runs a side, seed {result.seed}",
        line("all epochs: least possible", GREEN, width=3, x=fpr, y=100 * result.fnr),
        line("one epoch", SKY, "dashdot", x=fpr, y=100 * result.fnr_each),
        line("(ε, δ) alone promises", PURPLE, "dash", x=fpr, y=100 * result.fnr_pair),
        line("simulated attack", VERMILLION, "longdash", **attack),
        line("guessing", BLACK, "dot", width=1.5, **guessing),
        top=90,
        hover="%{x:.3g} % against %{y:.3g} %",
        legend={"orientation": "v", "x": 1, "xanchor": "right", "y": 1, "yanchor": "top"},  # above guessing is nothing
        xaxis=axis("false positives (% of non-members)", [-1, 101]),
        yaxis=axis("false negatives (% of members)", [-1, 101]),
    )


# ---- Sampling ------------------------------------------------------------------------------------------------------


@panel("04")
def sampling(rate: float, noise_multiplier: float, steps: int, delta: float) -> Panel:
    """Poisson sampling beside shuffled batches: `result` is a `Sampled`."""

    def command(result: Sampled, **_: Any) -> str:
        """Two calls of `edp-lab account`: Poisson sampling, and disjoint batches."""
        return f"{_sampled_account(result)}\n{_account({**_each_alone(result), 'epochs': result.passes})}"

    whole = [int(stop) for stop in decades(0, 5) if stop.is_integer()]
    return Panel(
        "Sampling",
        "First, what the same noise costs, step by step, under three ways to make batches; then, why a secret sample "
        "hides an utterance.",
        compute.sampling,
        [draw_sampled, draw_output],
        words.sampling,
        command,
        rate=number("sampling rate q", rate, decades(-4, 0), unit="of the corpus"),
        noise_multiplier=number("noise multiplier z", noise_multiplier, decades(-1, 1)),
        steps=number("steps", steps, whole, unit="steps"),
        delta=delta_of(delta, -12, -1),
    )


def draw_sampled(result: Sampled) -> Figure:
    """Epsilon by steps under three ways to make batches; log scales."""
    on: dict[str, Any] = {"x": result.after, "mode": "lines" if result.after.size > 1 else "lines+markers"}
    whole = [round(1 / result.rate), 2 * result.steps] if result.at_least else []
    everyone, shuffled, sampled = map(positive, (result.everyone, result.shuffled, result.sampled))
    return figure(
        "Three ways to batch",
        words.sampled_settings(result) + "\nGaussian DP; with Poisson sampling Rényi DP",
        line("all in every step", VERMILLION, y=everyone, **on),
        line("shuffled, disjoint", BLUE, "dash", line={"shape": "hv"}, y=shuffled, **on),
        line("shuffled: at least", BLACK, "dot", **{**on, "x": whole}, y=[result.at_least] * len(whole)),
        line("Poisson (Rényi DP)", GREEN, "dashdot", width=3, y=sampled, **on),
        top=152,
        hover="%{x:,} steps: ε = %{y:.3g}",
        xaxis=logs("steps", [-0.03, max(0.5, math.log10(result.steps) + 0.03)]),
        yaxis=log_axis("ε (nats)", [*everyone, *shuffled, *sampled], margin=0.05, labels=6),
    )


def draw_output(result: Sampled) -> Figure:
    """One step's noisy sum without the utterance, with it, and with it in the batch by chance."""
    return figure(
        "One step",
        words.sampled_settings(result) + "\nGaussian DP; with Poisson sampling Rényi DP",
        line("without", ORANGE, "dash", x=result.output, y=result.without),
        line("with, in the batch for sure", VERMILLION, x=result.output, y=result.with_it),
        line("with, in the batch with chance q", GREEN, "dashdot", x=result.output, y=result.sampled_with),
        top=140,
        hover="%{x:.3g}: %{y:.3g}",
        xaxis=axis("noisy sum along its gradient (in C)"),
        yaxis=axis("density (per C)", rangemode="tozero"),
    )


def _sampled_account(result: Sampled) -> str:
    return _account({**_each_alone(result), "sampling-rate": result.rate, "steps": result.steps})


def _each_alone(result: Sampled) -> dict[str, Any]:
    return {"z0": result.noise_multiplier, "micro-batch-size": 1, "delta": result.delta}


@panel("04")
class TightAccounts(RunPanel):
    """The sampling panel's run by slow accounts, too; only Run starts any work.

    Attributes:
        accounts: of the last run.
    """

    def __init__(self, settings: Panel) -> None:
        self._settings = settings
        self.accounts: list[Account] = []
        super().__init__(
            "Sharper, but slower",
            "The run of the panel above by four accounts, and how long each of them thought about it.",
            figures=[draw_accounts([], "press Run")],
        )

    def prepare(self) -> Sampled:
        return compute.sampling(**self._settings.values)

    def work(self, task: Sampled) -> None:
        self.accounts, self.words.value = [], ""
        self.progress(0, 4, "counting")
        for account in compute.tight_accounts(task):
            self.accounts.append(account)
            self.progress(len(self.accounts), 4, account.name)
            caption = f"{task.steps:,} steps; " + words.sampled_settings(task)
            self.figures[0].show(draw_accounts(self.accounts, caption))
            if self.stopping:
                return
        self.words.value = words.tight(self.accounts)
        self.command.value = f"{_sampled_account(task)} --tight"


def draw_accounts(accounts: Sequence[Account], caption: str) -> Figure:
    """Epsilon of one run by several accounts, and their time."""
    colors, symbols = [VERMILLION, BLUE, GREEN, GREEN], ["circle", "square", "diamond", "diamond-open"]
    marks: Trace = {
        "type": "scatter", "mode": "markers+text", "x": positive(account.epsilon for account in accounts),
        "y": [account.name.replace(", ", ",\n") for account in accounts],
        "text": [f"{at_most(account.epsilon)} in {d(1000 * account.seconds)} ms" for account in accounts],
        "textposition": "top center", "cliponaxis": False, "hovertemplate": "%{y}: ε = %{x:.4g}",
        "marker": {"color": colors, "symbol": symbols, "size": 15, "line": {"width": 2, "color": colors}},
    }  # fmt: skip
    low, high = fig.log_range(marks["x"], 0.05)
    span, every = ([low - 0.2, high + 0.4], {"dtick": math.ceil((high - low) / 6)}) if accounts else ([-1, 3], {})
    return figure(
        "The same run, by four accounts",
        caption,
        marks,
        height=330,
        top=90,
        xaxis=logs("ε (nats)", span, **every),
        yaxis=axis("account", autorange="reversed"),
    )


# ---- Table 1 -------------------------------------------------------------------------------------------------------


@panel("04")
def table1(epochs: int) -> Panel:
    """What may lie behind the printed epsilons: `result` is a `Behind`."""

    def command(result: Behind, **_: Any) -> str:
        """The search over all cells, and a setting behind this one: with T epochs, if there is one."""
        cell, setting = result.cell, result.setting
        options = {
            "z0": setting.z0, "epochs": setting.epochs, "delta": cell.delta, "gpus": NUM_GPUS,
            "decay": None if setting.tau is None else cell.decay, "tau": setting.tau, "alpha-source": "public",
        }  # fmt: skip
        return f"edp-lab table1-epsilon\n{_account(options, '--as-printed')}"

    models, corpora = (list(dict.fromkeys(getattr(row, what) for row in TABLE_1)) for what in ("model", "corpus"))
    for kind in Decay:  # searched once, so that no slider waits
        compute.behind(models[0], corpora[0], kind, epochs)
    return Panel(
        "Table 1, decoded",
        "First, how many printed ε some z0 and τ of the paper's grid explain with T epochs; then, for one cell, which "
        "z0; last, what all cells really are.",
        compute.behind,
        [draw_reach, draw_settings, (draw_cells, "1 1 100%")],
        words.behind,
        command,
        model=choice("model", models[0], models),
        corpus=choice("corpus", corpora[0], corpora),
        decay=choice("decay", Decay.EXPONENTIAL, {str(kind): kind for kind in Decay}),
        epochs=number("number of epochs T", epochs, range(1, 121), unit="epochs"),
    )


def draw_reach(result: Behind) -> Figure:
    """How many of the printed epsilons some z0 and tau of the paper's grid give, by the number of epochs."""
    x, y = zip(*((reach.epochs, reach.reachable) for reach in compute.table1().epochs), strict=True)
    ring = points("", BLACK, "circle-open", 12, edge=2, x=[result.epochs], y=[result.reachable], hoverinfo="skip")
    return figure(
        "Cells that T explains",
        f"T = {result.epochs}: {result.reachable} of 36 printed ε (zCDP, z0 at face value)\n"
        f"δ = 5e-4 (public corpora) or 5e-5; z0 from {d(Z0_RANGE[0])} to {d(Z0_RANGE[1])}",
        line("", BLUE, symbol="circle", size=4, line={"shape": "hvh"}, x=x, y=y),
        ring,
        height=420,
        top=90,
        hover="T = %{x}: %{y} of 36",
        showlegend=False,
        xaxis=axis("number of epochs T", [0, 121]),
        yaxis=axis("printed ε that are reachable (cells)", [27.5, 37]),
    )


def draw_settings(result: Behind) -> Figure:
    """The z0 that gives the cell's printed epsilon, by T, a line for each tau of the paper's grid."""
    cell, z0 = result.cell, np.where((result.z0 > 1e-9) & (result.z0 < 1e3), result.z0, np.nan)
    dashes, colors = ["solid", "dash", "dot", "dashdot"], [BLUE, VERMILLION, GREEN, ORANGE, SKY, PURPLE, BLACK, "#777"]
    lines: list[Trace] = []
    for k, color in enumerate(colors):
        name, on = "", {"x": [], "y": [], "visible": False}
        if k < len(result.taus):
            name = "no decay" if cell.decay is Decay.NONE else f"τ {result.taus[k]:g}"
            hover = f"{name}, T = %{{x}}: z0 = %{{y:.3g}}" + fig.ALONE
            on = {"x": np.arange(1, z0.shape[1] + 1), "y": positive(z0[k]), "hovertemplate": hover, "visible": True}
        lines.append(line(name, color, dashes[k % 4], line={"width": 2 if k < 4 else 3}, **on))
    band = {"y0": Z0_RANGE[0], "y1": Z0_RANGE[1], "fillcolor": SKY, "opacity": 0.15, "line": {"width": 0}}
    return figure(
        "Which z0 fits?",
        f"{cell.model}, {cell.corpus}, {DECAYS[cell.decay]}: log₁₀ ε = {cell.log10_epsilon}\n"
        f"claimed by zCDP, z0 at face value, δ = {d(cell.delta)}",
        *lines,
        {**fig.hline(0), "type": "rect", **band},
        fig.vline(result.epochs, line=fig.DOTTED),
        height=420,
        top=140,
        xaxis=axis("number of epochs T", [0, 121]),
        yaxis=logs("z0 (band: the paper's)", [-7, 1]),
    )


def draw_cells(result: Behind) -> Figure:
    """All cells of Table 1: printed, and what holds with a public alpha."""
    table, chosen = compute.table1(), f"{result.cell.model}, {result.cell.corpus}"
    held, traces = "with a public α (as printed: no guarantee)", []
    for plot, decay in enumerate(DECAYS, 1):
        cells = [cell for cell in table.rows if cell.decay is decay]
        names = [f"{cell.model}, {cell.corpus}" for cell in cells]
        printed, true = [cell.log10_epsilon for cell in cells], [cell.true_log10_epsilon for cell in cells]
        here = [result.cell.log10_epsilon, result.cell.true_log10_epsilon] if decay is result.cell.decay else []
        on, first = fig.at(plot), {"y": names, "showlegend": plot == 1}
        traces += [
            line("", "#bbb", **fig.gaps(printed, true, names), showlegend=False, **on),
            points("printed", ORANGE, "square-open", 9, edge=2, x=printed, **first, **on),
            points(held, GREEN, "circle", 9, edge=0, x=true, **first, **on),
            fig.ring(17, x=here, y=[chosen] * len(here), hoverinfo="skip", **on),
        ]
    x, y = axis("log₁₀ ε", rangemode="tozero"), axis("model, corpus", autorange="reversed")
    layout = fig.plots(
        1, 3, [*DECAYS.values()], axes=((x, y), (x, {}), (x, {})), shared_yaxes=True, horizontal_spacing=0.03
    )
    return figure(
        "What the cells of Table 1 really are",
        f"ring: {chosen}, {DECAYS[result.cell.decay]}; printed: zCDP; circles: Gaussian DP, N = {table.num_gpus}"
        "\nδ = 5e-4 (public corpora) or 5e-5; one utterance, zero-out, disjoint batches",
        *traces,
        height=500,
        top=150,
        **layout | {"legend": {"y": 1.09}},
    )


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
    return columns(rows)


def accounts_table(accounts: Sequence[Account], notes: Mapping[str, str]) -> str:
    """What each account says, how long it took, and a note."""
    rows = [("account", "ε", "time", "")]
    rows += [(a.name, at_most(a.epsilon), duration(a.seconds), notes.get(a.name, "")) for a in accounts]
    return columns(rows)
