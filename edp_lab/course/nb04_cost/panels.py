"""The panels of ``04_what_does_it_cost.ipynb``: a run's bill, privacy losses, sampling (one is slow), Table 1; tables.

What a result holds is in `compute`; nothing is computed here but axes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import (
    AS_PRINTED,
    VARIANTS,
    choice,
    decades,
    decay_of,
    delta_of,
    devices,
    number,
    seed_of,
)
from edp_lab.course.kit.figure import ABOVE, BELOW, Figure, Trace, figure, line, points, positive
from edp_lab.course.kit.panel import COPY, Panel, RunPanel, panel
from edp_lab.course.kit.text import Words, account_command, at_most, columns, duration, python
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION
from edp_lab.course.nb04_cost import compute
from edp_lab.course.nb04_cost.compute import Account, Behind, Loss, RunBill, Sampled
from edp_lab.privacy import Decay, Mechanism, NoGuarantee, Variant, true_epsilon
from edp_lab.reproduce.paper.printed import TABLE_1, Z0_RANGE

words = Words(__file__)
EPOCHS = [*range(1, 41), 45, 50, 60, 80, 100, 120]
DECAYS = {Decay.NONE: "no decay", Decay.LINEAR: "linear decay", Decay.EXPONENTIAL: "exponential decay"}
RING = {"width": 2, "color": BLACK}
THIN = {"width": 1.5}
HERE = {"color": "#666", "dash": "dot", "width": 1.5}
XY = {"hovertemplate": "%{x:.3g}: %{y:.3g}"}


# ---- The bill of a run ---------------------------------------------------------------------------------------------


@panel("04")
def bill(
    C: float, z0: float, decay: str, tau: float, num_devices: int, epochs: int, delta: float, target: float
) -> Panel:
    """What a run costs by three accounts: `result` is a `RunBill`."""
    tooltips = [
        "Algorithm 1 of the paper, verbatim: α from private gradients",
        "the same, with α from public text",
        "noise in proportion to the true sensitivity",
    ]
    return Panel(
        "The bill of a run",
        "First, the privacy loss after each epoch: claimed, bounded and exact; then, the noise of each epoch, and its "
        "share of the bill.",
        {
            "variant": choice("variant", AS_PRINTED, {name: name for name in VARIANTS}, tooltips=tooltips),
            "clip_norm": number("clip norm C", C, decades(-2, 2), unit="gradient norm"),
            "z0": number("noise multiplier z0", z0, decades(-6, 2), unit="no unit"),
            "decay": decay_of(decay),
            "tau": number("decay rate τ", tau, [k / 100 for k in range(101)], unit="per epoch"),
            "num_devices": devices(num_devices),
            "epochs": number("length T of the run", epochs, EPOCHS, unit="epochs"),
            "delta": delta_of(delta, -12, -1),
            "utterances": number("utterances of a person", 1, [1, 2, 3, 5, 10, 20, 50, 100], unit="utterances"),
            "target": number("target ε", target, decades(-1, 3), unit="nats"),
        },
        compute.run_bill,
        [draw_bill, draw_spend],
        words.bill,
        bill_command,
        idle=lambda result: ["tau"] if result.mechanism.decay is Decay.NONE else [],
    )


def draw_bill(result: RunBill) -> Figure:
    """Epsilon by epochs trained, claimed and true; log scale."""
    void = result.guarantee.epsilon is None
    held, dash = ("exact, if α were public", "dot") if void else ("exact: what holds", "solid")
    mark: dict[str, Any] = {"symbol": "circle-open" if void else "circle", "size": 7}
    on: dict[str, Any] = {"x": result.after, "hovertemplate": "after %{x} epochs: ε = %{y:.3g}"}
    zcdp: dict[str, Any] = {"mode": "lines" if result.after.size > 1 else "markers", "y": positive(result.zcdp)}
    claimed, target = positive(result.claimed), result.budget.epsilon
    curves = [
        line("claimed (zCDP, z0 at face value)", ORANGE, "dash", symbol="square-open", y=claimed, **on),
        line("zCDP, true noise", PURPLE, "dashdot", **zcdp, **on),
        line(held, GREEN, dash, **mark, y=positive(result.exact), **on),
        line(
            "target", BLACK, "dot", line=THIN, x=[0, result.epochs + 1], y=[result.budget.epsilon] * 2, hoverinfo="skip"
        ),
    ]
    return figure(
        curves,
        "Privacy spent, by epoch",
        _bill_caption(result),
        margin={"t": 164},
        xaxis={"title": "epochs trained", "range": [0.5, result.epochs + 0.5]},
        yaxis=fig.decade_axis("ε (nats)", [*result.claimed, *result.exact, target], 6),
    )


def draw_spend(result: RunBill) -> Figure:
    """Above: the noise multiplier by epoch, as set and over true sensitivity. Below: each epoch's share of the bill."""
    on: dict[str, Any] = {"x": np.arange(result.epochs), "hovertemplate": "t = %{x}: %{y:.3g}"}
    noise: dict[str, Any] = {"mode": "lines+markers" if result.epochs <= 40 else "lines", **ABOVE, **on}
    set_, true = positive(result.z_set), positive(result.z_true)
    traces = [
        line("z as set", ORANGE, "dash", symbol="square-open", y=set_, **noise),
        line("noise over true sensitivity", GREEN, symbol="circle", size=7, y=true, **noise),
        {"type": "bar", "marker": {"color": SKY}, "showlegend": False, "y": 100 * result.share, **BELOW, **on},
    ]
    epochs = {"title": "epoch t (the first is 0)", "range": [-0.6, result.epochs - 0.4]}
    axes = {
        "xaxis": epochs,
        "yaxis": fig.decade_axis("noise multiplier", [*set_, *true], 4),
        "xaxis2": epochs,
        "yaxis2": {"title": "share of Σ 1/z² (%)", "rangemode": "tozero"},
    }
    return figure(traces, "Noise, and who pays", _bill_caption(result), **fig.merged(_two_rows(), axes))


def _bill_caption(result: RunBill) -> str:
    m, people = result.mechanism, result.budget.utterances_per_person
    decay = DECAYS[m.decay] if m.decay is Decay.NONE else f"{DECAYS[m.decay]} τ = {m.tau:g}"
    person = f"{people} a person" if people > 1 else "one utterance"
    return (
        f"{m.variant}, N = {m.num_devices}, z0 = {d(m.z0)}, {decay}<br>"
        f"δ = {d(result.budget.delta)}, {person}, zero-out, disjoint batches"
    )


def _two_rows() -> dict[str, Any]:
    return fig.two_rows(0.4, vertical_spacing=0.27)


def bill_command(result: RunBill, **_: Any) -> str:
    """The call of `edp-lab account` that says the same; with a private alpha also that with a public one."""
    m, budget = result.mechanism, result.budget
    decays, printed = m.decay is not Decay.NONE, m.variant is Variant.AS_PRINTED
    options = {
        "clip": m.clip_norm, "z0": m.z0, "gpus": m.num_devices, "micro-batch-size": m.micro_batch_size,
        "epochs": result.epochs, "delta": budget.delta, "utterances-per-person": budget.utterances_per_person,
        "target-epsilon": budget.epsilon, "decay": m.decay if decays else None, "tau": m.tau if decays else None,
    }  # fmt: skip
    sources: list[str | None] = [m.alpha if printed else None]
    if result.guarantee.epsilon is None and result.guarantee.epsilon_if_alpha_public is not None:
        sources.append("public" if printed else None)
    return "\n".join(_account({**options, "alpha-source": source}, printed) for source in sources)


def _account(options: Mapping[str, Any], as_printed: bool = False) -> str:
    return account_command(options, *(["--as-printed"] if as_printed else []), precision=12)


# ---- Privacy losses ------------------------------------------------------------------------------------------------


@panel("04")
def loss(mu: float, epochs: int, delta: float, draws: int, seed: int) -> Panel:
    """Privacy losses, and what an attacker makes of them: `result` is a `Loss`."""
    return Panel(
        "Privacy losses and attacks",
        "First, how much all releases together betray of one utterance, and δ for each ε; then, the errors that this "
        "forces upon any attacker.",
        {
            "mu": number("μ of one epoch", mu, decades(-2, 1), unit="no unit"),
            "releases": number("epochs", epochs, EPOCHS, unit="epochs"),
            "delta": delta_of(delta, -12, -1),
            "draws": number("simulated runs", draws, [50, 100, 200, 500, 1000, 2000, 5000], unit="with, without"),
            "seed": seed_of(seed),
        },
        compute.privacy_loss,
        [draw_loss, draw_tradeoff],
        words.loss,
        loss_command,
    )


def draw_loss(result: Loss) -> Figure:
    """Above: the privacy loss with and without the utterance, and delta. Below: delta for every epsilon."""
    beyond = result.loss >= result.epsilon
    x, top = result.loss[beyond], result.excess[beyond]
    outline = {"x": np.concatenate([x, x[::-1]]), "y": np.concatenate([np.zeros_like(top), top[::-1]])}
    ring = {"x": [result.epsilon, result.zcdp], "y": [result.delta] * 2, "marker": {"line": RING}, "showlegend": False}
    traces = [
        fig.area("δ", VERMILLION, 0.7, **outline, **ABOVE, **XY),
        line("with", BLUE, x=result.loss, y=result.with_it, **ABOVE, **XY),
        line("without", ORANGE, "dash", x=result.loss, y=result.without, **ABOVE, **XY),
        line("Gaussian DP, exact", GREEN, x=result.epsilons, y=positive(result.deltas), **BELOW, **XY),
        line("zCDP", PURPLE, "dashdot", x=result.epsilons, y=positive(result.zcdp_deltas), **BELOW, **XY),
        points("", BLACK, "circle-open", 12, **ring, **BELOW, **XY),
    ]
    lowest = math.floor(math.log10(result.delta)) - 1
    axes = {
        "xaxis": {"title": "privacy loss (nats); dotted: ε", "range": result.loss[[0, -1]]},
        "yaxis": {"title": "density (per nat)", "rangemode": "tozero"},
        "xaxis2": {"title": "ε (nats)"},
        "yaxis2": {"title": "δ", **fig.LOG, "range": [lowest, 0.1], "dtick": math.ceil(-lowest / 5)},
        "shapes": [fig.vline(result.epsilon, line=HERE)],
    }
    caption = f"{_releases(result)}<br>Gaussian DP, exact; one utterance, zero-out"
    return figure(traces, "Privacy loss", caption, **fig.merged(_two_rows(), axes))


def draw_tradeoff(result: Loss) -> Figure:
    """False negatives against false positives: what privacy allows, and what an attack reaches."""
    on = {"hovertemplate": "%{x:.3g} % against %{y:.3g} %"}
    fpr = 100 * result.fpr
    shown = np.unique(np.linspace(0, result.attack.fpr.size - 1, 400).round().astype(int))
    attack = {"x": 100 * result.attack.fpr[shown], "y": 100 * (1 - result.attack.tpr[shown]), "line": {"shape": "hv"}}
    curves = [
        line("all epochs: least possible", GREEN, line={"width": 3}, x=fpr, y=100 * result.fnr, **on),
        line("one epoch", SKY, "dashdot", x=fpr, y=100 * result.fnr_each, **on),
        line("(ε, δ) alone promises", PURPLE, "dash", x=fpr, y=100 * result.fnr_pair, **on),
        line("simulated attack", VERMILLION, "longdash", **attack, **on),
        line("guessing", BLACK, "dot", line=THIN, x=[0, 100], y=[100, 0], hoverinfo="skip", **on),
    ]
    played = f"{result.draws:,} runs a side, seed {result.seed}"
    return figure(
        curves,
        "What attackers can do",
        f"{_releases(result)}, Gaussian DP<br>one utterance, zero-out; {played}",
        margin={"t": 90},
        legend={"orientation": "v", "x": 1, "xanchor": "right", "y": 1, "yanchor": "top"},  # above guessing is nothing
        xaxis={"title": "false positives (% of non-members)", "range": [-1, 101]},
        yaxis={"title": "false negatives (% of members)", "range": [-1, 101]},
    )


def _releases(result: Loss) -> str:
    return f"{result.releases} epochs: μ = {d(result.mu)}; ε = {at_most(result.epsilon)} at δ = {d(result.delta)}"


def loss_command(result: Loss, **values: Any) -> str:
    """The call of `edp-lab account` that says the same, and the Python that attacks."""
    account = _account({"z0": 1 / result.mu_each, "epochs": result.releases, "delta": result.delta})
    return f"{account}\n{python(compute.privacy_loss, *values.values())}"


# ---- Sampling ------------------------------------------------------------------------------------------------------


@panel("04")
def sampling(rate: float, noise_multiplier: float, steps: int, delta: float) -> Panel:
    """Poisson sampling beside shuffled batches: `result` is a `Sampled`."""
    whole = [int(stop) for stop in decades(0, 5) if stop.is_integer()]
    return Panel(
        "Sampling",
        "First, what the same noise costs, step by step, under three ways to make batches; then, why a secret sample "
        "hides an utterance.",
        {
            "rate": number("sampling rate q", rate, decades(-4, 0), unit="of the corpus"),
            "noise_multiplier": number("noise multiplier z", noise_multiplier, decades(-1, 1), unit="no unit"),
            "steps": number("steps", steps, whole, unit="steps"),
            "delta": delta_of(delta, -12, -1),
        },
        compute.sampling,
        [draw_sampled, draw_output],
        words.sampling,
        sampling_command,
    )


def draw_sampled(result: Sampled) -> Figure:
    """Epsilon by steps under three ways to make batches; log scales."""
    mode = "lines" if result.after.size > 1 else "lines+markers"
    on: dict[str, Any] = {"x": result.after, "mode": mode, "hovertemplate": "%{x:,} steps: ε = %{y:.3g}"}
    whole = [round(1 / result.rate), 2 * result.steps] if result.at_least else []
    everyone, shuffled, sampled = map(positive, (result.everyone, result.shuffled, result.sampled))
    curves = [
        line("all in every step", VERMILLION, y=everyone, **on),
        line("shuffled, disjoint", BLUE, "dash", line={"shape": "hv"}, y=shuffled, **on),
        line("shuffled: at least", BLACK, "dot", **{**on, "x": whole, "y": [result.at_least] * len(whole)}),
        line("Poisson (Rényi DP)", GREEN, "dashdot", line={"width": 3}, y=sampled, **on),
    ]
    return figure(
        curves,
        "Three ways to batch",
        _sampled_caption(result),
        margin={"t": 152},
        xaxis={"title": "steps", **fig.LOG, "range": [-0.03, max(0.5, math.log10(result.steps) + 0.03)]},
        yaxis=fig.decade_axis("ε (nats)", [*everyone, *shuffled, *sampled], 6),
    )


def draw_output(result: Sampled) -> Figure:
    """One step's noisy sum without the utterance, with it, and with it in the batch by chance."""
    curves = [
        line("without", ORANGE, "dash", x=result.output, y=result.without, **XY),
        line("with, in the batch for sure", VERMILLION, x=result.output, y=result.with_it, **XY),
        line("with, in the batch with chance q", GREEN, "dashdot", x=result.output, y=result.sampled_with, **XY),
    ]
    return figure(
        curves,
        "One step",
        _sampled_caption(result),
        margin={"t": 140},
        xaxis={"title": "noisy sum along its gradient (in C)"},
        yaxis={"title": "density (per C)", "rangemode": "tozero"},
    )


def _sampled_caption(result: Sampled) -> str:
    return f"{_sampled_settings(result)}<br>Gaussian DP; with Poisson sampling Rényi DP"


def _sampled_settings(result: Sampled) -> str:
    z, q, delta = d(result.noise_multiplier), d(result.rate), d(result.delta)
    return f"z = {z}, q = {q}, δ = {delta}, one utterance, zero-out"


def sampling_command(result: Sampled, **_: Any) -> str:
    """Two calls of `edp-lab account`: Poisson sampling, and disjoint batches."""
    shuffled = _account({**_each_alone(result), "epochs": result.passes})
    return f"{_sampled_account(result)}\n{shuffled}"


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
            rows=2,
            copy=COPY,
        )

    def prepare(self) -> Sampled:
        return compute.sampling(**self._settings.values)

    def work(self, task: Sampled) -> None:
        self.accounts, self.words.value = [], ""
        self.progress(0, 4, "counting")
        for account in compute.tight_accounts(task):
            self.accounts.append(account)
            self.progress(len(self.accounts), 4, account.name)
            self.figures[0].show(draw_accounts(self.accounts, f"{task.steps:,} steps; {_sampled_settings(task)}"))
            if self.stopping:
                return
        self.words.value = words.tight(self.accounts)
        self.command.value = f"{_sampled_account(task)} --tight"


def draw_accounts(accounts: Sequence[Account], caption: str) -> Figure:
    """Epsilon of one run by several accounts, and their time."""
    colors, symbols = [VERMILLION, BLUE, GREEN, GREEN], ["circle", "square", "diamond", "diamond-open"]
    marks: Trace = {
        "type": "scatter",
        "mode": "markers+text",
        "x": positive(account.epsilon for account in accounts),
        "y": [account.name.replace(", ", ",<br>") for account in accounts],
        "text": [f"{at_most(account.epsilon)} in {d(1000 * account.seconds)} ms" for account in accounts],
        "textposition": "top center",
        "marker": {"color": colors, "symbol": symbols, "size": 15, "line": {"width": 2, "color": colors}},
        "cliponaxis": False,
        "hovertemplate": "%{y}: ε = %{x:.4g}",
    }
    low, high = fig.whole_decades(marks["x"])
    span = {"range": [low - 0.2, high + 0.4], "dtick": math.ceil((high - low) / 6)} if accounts else {"range": [-1, 3]}
    return figure(
        [marks],
        "The same run, by four accounts",
        caption,
        330,
        margin={"t": 90},
        xaxis={"title": "ε (nats)", **fig.LOG, **span},
        yaxis={"title": "account", "autorange": "reversed"},
    )


# ---- Table 1 -------------------------------------------------------------------------------------------------------


@panel("04")
def table1(epochs: int) -> Panel:
    """What may lie behind the printed epsilons: `result` is a `Behind`."""
    models, corpora = (list(dict.fromkeys(getattr(row, what) for row in TABLE_1)) for what in ("model", "corpus"))
    for kind in Decay:  # searched once, so that no slider waits
        compute.behind(models[0], corpora[0], kind, epochs)
    return Panel(
        "Table 1, decoded",
        "First, how many printed ε some z0 and τ of the paper's grid explain with T epochs; then, for one cell, which "
        "z0; last, what all cells really are.",
        {
            "model": choice("model", models[0], {name: name for name in models}),
            "corpus": choice("corpus", corpora[0], {name: name for name in corpora}),
            "decay": choice("decay", Decay.EXPONENTIAL, {str(kind): kind for kind in Decay}),
            "epochs": number("number of epochs T", epochs, range(1, 121), unit="epochs"),
        },
        compute.behind,
        [draw_reach, draw_settings, (draw_cells, "1 1 100%")],
        lambda result: words.behind(result, DECAYS[result.cell.decay], Z0_RANGE, compute.table1()),
        behind_command,
    )


def draw_reach(result: Behind) -> Figure:
    """How many of the printed epsilons some z0 and tau of the paper's grid give, by the number of epochs."""
    x, y = zip(*((reach.epochs, reach.reachable) for reach in compute.table1().epochs), strict=True)
    ring = {"x": [result.epochs], "y": [result.reachable], "marker": {"line": RING}, "hoverinfo": "skip"}
    steps = line("", BLUE, symbol="circle", size=4, line={"shape": "hvh"}, x=x, y=y)
    return figure(
        [{**steps, "hovertemplate": "T = %{x}: %{y} of 36"}, points("", BLACK, "circle-open", 12, **ring)],
        "Cells that T explains",
        f"T = {result.epochs}: {result.reachable} of 36 printed ε (zCDP, z0 at face value)<br>"
        f"δ = 5e-4 (public corpora) or 5e-5; z0 from {d(Z0_RANGE[0])} to {d(Z0_RANGE[1])}",
        420,
        showlegend=False,
        margin={"t": 90},
        xaxis={"title": "number of epochs T", "range": [0, 121]},
        yaxis={"title": "printed ε that are reachable (cells)", "range": [27.5, 37]},
    )


def draw_settings(result: Behind) -> Figure:
    """The z0 that gives the cell's printed epsilon, by T, a line for each tau of the paper's grid."""
    cell, z0 = result.cell, np.where((result.z0 > 1e-9) & (result.z0 < 1e3), result.z0, np.nan)
    dashes, colors = ["solid", "dash", "dot", "dashdot"], [BLUE, VERMILLION, GREEN, ORANGE, SKY, PURPLE, BLACK, "#777"]
    lines: list[Trace] = []
    for k, color in enumerate(colors):
        width = {"width": 2 if k < 4 else 3}
        if k < len(result.taus):
            name = "no decay" if cell.decay is Decay.NONE else f"τ {result.taus[k]:g}"
            hover = f"{name}, T = %{{x}}: z0 = %{{y:.3g}}<extra></extra>"
            on = {"x": np.arange(1, z0.shape[1] + 1), "y": positive(z0[k]), "hovertemplate": hover, "visible": True}
            lines.append(line(name, color, dashes[k % 4], line=width, **on))
        else:
            lines.append(line("", color, dashes[k % 4], line=width, x=[], y=[], visible=False))
    band = {"y0": Z0_RANGE[0], "y1": Z0_RANGE[1], "fillcolor": SKY, "opacity": 0.15, "line": {"width": 0}}
    return figure(
        lines,
        "Which z0 fits?",
        f"{cell.model}, {cell.corpus}, {DECAYS[cell.decay]}: log₁₀ ε = {cell.log10_epsilon}<br>"
        f"claimed by zCDP, z0 at face value, δ = {d(cell.delta)}",
        420,
        margin={"t": 140},
        shapes=[{**fig.hline(0), "type": "rect", **band}, fig.vline(result.epochs, line=HERE)],
        xaxis={"title": "number of epochs T", "range": [0, 121]},
        yaxis={"title": "z0 (band: the paper's)", **fig.LOG, "range": [-7, 1]},
    )


def draw_cells(result: Behind) -> Figure:
    """All cells of Table 1: printed, and what holds with a public alpha."""
    table, chosen = compute.table1(), f"{result.cell.model}, {result.cell.corpus}"
    layout = fig.plots(1, 3, [*DECAYS.values()], shared_yaxes=True, horizontal_spacing=0.03)
    traces: list[Trace] = []
    for plot, decay in enumerate(DECAYS, 1):
        cells = [cell for cell in table.rows if cell.decay is decay]
        names = [f"{cell.model}, {cell.corpus}" for cell in cells]
        printed, true = [cell.log10_epsilon for cell in cells], [cell.true_log10_epsilon for cell in cells]
        gap_x = [x for pair in zip(printed, true, strict=True) for x in (*pair, None)]
        gap_y = [y for name in names for y in (name, name, None)]
        here = [result.cell.log10_epsilon, result.cell.true_log10_epsilon] if decay is result.cell.decay else []
        ring = {"marker": {"line": RING}, "showlegend": False, "hoverinfo": "skip"}
        first = {"y": names, "showlegend": plot == 1}
        held = "with a public α (as printed: no guarantee)"
        drawn = [
            line("", "#bbb", x=gap_x, y=gap_y, showlegend=False),
            points("printed", ORANGE, "square-open", 9, marker={"line": {"width": 2}}, x=printed, **first),
            points(held, GREEN, "circle", 9, marker={"line": {"width": 0}}, x=true, **first),
            points("", BLACK, "circle-open", 17, x=here, y=[chosen] * len(here), **ring),
        ]
        traces += [{**trace, **fig.at(plot)} for trace in drawn]
        layout[f"xaxis{plot if plot > 1 else ''}"] |= {"title": "log₁₀ ε", "rangemode": "tozero"}
    layout["yaxis"] |= {"title": "model, corpus", "autorange": "reversed"}
    caption = (
        f"ring: {chosen}, {DECAYS[result.cell.decay]}; printed: zCDP; circles: Gaussian DP, N = {table.num_gpus}"
        "<br>δ = 5e-4 (public corpora) or 5e-5; one utterance, zero-out, disjoint batches"
    )
    layout |= {"margin": {"t": 150}, "legend": {"y": 1.09}}
    return figure(traces, "What the cells of Table 1 really are", caption, 500, **layout)


def behind_command(result: Behind, **_: Any) -> str:
    """The search over all cells, and a setting behind this one: with T epochs, if there is one."""
    cell, setting = result.cell, result.setting
    options = {
        "z0": setting.z0, "epochs": setting.epochs, "delta": cell.delta, "gpus": compute.NUM_GPUS,
        "decay": None if setting.tau is None else cell.decay, "tau": setting.tau, "alpha-source": "public",
    }  # fmt: skip
    return f"edp-lab table1-epsilon\n{_account(options, as_printed=True)}"


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
