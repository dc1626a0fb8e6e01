"""The panels of ``08_audit_it.ipynb``: an audit of one step, what guesses prove, audits of training runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from scipy.stats import norm

from edp_lab.attacks.audit.bounds import Finding
from edp_lab.attacks.audit.one_run import OneRunAudit, audit_one_run
from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import DEVICES, choice, decades, devices, number
from edp_lab.course.kit.figure import Figure, Trace, line, points
from edp_lab.course.kit.inputs import check_whole
from edp_lab.course.kit.panel import Panel, RunPanel, panel
from edp_lab.course.kit.text import Words, columns, command, count
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION
from edp_lab.course.nb08_audit import compute
from edp_lab.course.nb08_audit.compute import CONFIDENCE, Guesses, StepAudit, StepNoise, needed
from edp_lab.privacy import Mechanism, Variant
from edp_lab.training import TrainConfig

words = Words(__file__)
figure = partial(fig.figure, height=500)
VARIANTS = {"as printed": True, "sound": False}
SURE = f"{100 * CONFIDENCE:g} %"
MEANINGS = {
    Finding.REFUTED: "the proven bound lies above the claim",
    Finding.CONSISTENT: "the proven bound lies below the claim, which proves nothing: another attack might do better",
    Finding.NO_POWER: "even draws without a single error could not have refuted this claim: draw more",
}
SOURCES = {Variant.AS_PRINTED: "the paper's zCDP", Variant.SOUND: "the true one"}  # of the claim under test


def _name(mechanism: Mechanism) -> str:
    return mechanism.variant.replace("-", " ")


# ---- One step ------------------------------------------------------------------------------------------------------


@panel("08")
def step(noise: StepNoise, as_printed: bool, clip_norm: float, z0: float, num_devices: int, draws: int) -> Panel:
    """The audit of one step; `result` is a `StepAudit`."""
    counts = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000]
    return Panel(
        "Audit one step",
        "First, what a step releases along one utterance's direction, without that utterance and with it; then, which "
        "ε this leaves possible, beside the claim.",
        partial(compute.audit_step, noise),
        [draw_step, draw_scale],
        lambda result: words.step(result, SURE, MEANINGS[result.audit.verdict]),
        step_command,
        idle=lambda result: ("alpha_max",) if result.audit.mechanism.variant is Variant.SOUND else (),
        as_printed=choice("variant", as_printed, VARIANTS),
        clip_norm=number("clip norm C", clip_norm, decades(-2, 2), unit="gradient norm"),
        z0=number("noise multiplier z0", z0, decades(-2, 1)),
        num_devices=devices(num_devices, [*DEVICES, 64]),
        alpha_max=number("largest α, as printed", 1.0, decades(-1, 1), unit="of a layer"),
        draws=number("draws", draws, counts, unit="a side"),
    )


def draw_step(result: StepAudit) -> Figure:
    """Both histograms of what a step releases along the canary's direction, and the threshold between them."""
    looks = (("without the canary", BLUE, ""), ("with it", ORANGE, "/"))
    bars, bells = fig.histograms(result.edges, result.shares, looks, "the draws "), []
    for color, dash, side in ((BLUE, "solid", -1), (ORANGE, "dash", 1)):
        density = norm.pdf(result.edges, side * result.distance / 2, result.std)
        on = {"x": result.edges, "y": 100 * (result.edges[1] - result.edges[0]) * density}
        bells.append(line("", color, dash, width=2, showlegend=False, hoverinfo="skip", **on))
    top = 1.15 * max(float(trace["y"].max()) for trace in (*bars, bells[0]))
    mechanism = result.audit.mechanism
    alpha = f", largest α = {mechanism.alpha_max:g}" if mechanism.variant is Variant.AS_PRINTED else ""
    setting = f"N = {mechanism.num_devices}, C = {mechanism.clip_norm:g}, z0 = {mechanism.z0:g}{alpha}"
    return figure(
        "What one step gives away",
        f"{_name(mechanism)}: {setting},\n{result.audit.draws:,} draws a side, seed {result.seed}",
        *bars,
        *bells,
        fig.vline(0),
        fig.beside("guess: absent", 0, left=True),
        fig.beside("guess: present", 0, left=False),
        barmode="overlay",
        bargap=0,
        xaxis=fig.axis("released along the canary (gradient norm)", result.edges[[0, -1]].tolist()),
        yaxis=fig.axis("share of the draws (%)", [0, top]),
    )


ROWS = ("claimed", "true", "proven:\nGaussian", "proven: any\nmechanism", "at most\nprovable")
FLOOR = 0.05  # a lower bound of 0 has no place on a log axis


def draw_scale(result: StepAudit) -> Figure:
    """The epsilon that is claimed, the one that holds, and those that the draws leave possible."""
    claimed, true, gaussian, free, most = ROWS
    audit, bounds = result.audit, result.audit.bounds
    assert audit.epsilon_holds is not None  # see `audit_step`
    ranges = ((gaussian, BLUE, "solid", bounds.gaussian), (free, PURPLE, "dot", bounds.distribution_free))
    numbers = (
        (claimed, ORANGE, "square", audit.epsilon_claimed),
        (true, GREEN, "circle", audit.epsilon_holds),
        (most, BLACK, "line-ns-open", audit.ceiling),
    )
    last = max(2.0, math.ceil(math.log10(max(value for *_, value in (*ranges, *numbers))) + 0.4))
    traces = []
    for name, color, dash, bound in ranges:
        ends: Trace = {"symbol": ["line-ns-open", "triangle-right"], "size": 15}
        ends["marker"] = {"line": {"width": 3, "color": color}}
        side = "top left" if bound > 10 ** (last - 1) else "top right"
        beside = {"textposition": side, "text": [f"≥ {d(bound)}", ""], "mode": "lines+markers+text"}
        on = {"x": [max(bound, FLOOR), 0.9 * 10**last], "y": [name] * 2}
        traces.append(line(name, color, dash, width=7, **ends, **beside, **on))
    for name, color, symbol, value in numbers:
        # The claim has a line of its own, which its number must not stand on.
        side = "middle right" if name == claimed else "top center"
        told: Trace = {"mode": "markers+text", "text": [d(value)], "textposition": side}
        traces.append(points(name, color, symbol, 14, edge=3, x=[max(value, FLOOR)], y=[name], **told))
    return figure(
        "Which ε can it be?",
        f"δ = {audit.delta:.2g}, zero-out, disjoint batches; true: Gaussian DP;\n"
        f"claimed: {SOURCES[audit.mechanism.variant]}; proven at {SURE}, seed {result.seed}",
        *traces,
        fig.vline(audit.epsilon_claimed, line={"color": ORANGE, "dash": "dash", "width": 1.5}, layer="below"),
        top=90,
        hover="%{text}" + fig.ALONE,
        showlegend=False,
        xaxis=fig.logs(f"ε of one step (at δ = {audit.delta:.2g})", [math.log10(FLOOR) - 0.1, last]),
        yaxis=fig.axis("epsilon", [-0.6, 4.8], categoryorder="array", categoryarray=ROWS[::-1]),
    )


def table(results: Mapping[str, StepAudit]) -> str:
    """Audits of steps side by side in plain text, one a line, under a heading."""
    rows: list[tuple[str, ...]] = [("", "claimed", "true", "proven", "any mechanism", "verdict")]
    for label, audit in ((label, result.audit) for label, result in results.items()):
        bounds = audit.bounds.gaussian, audit.bounds.distribution_free
        rows.append((label, *map(d, (audit.epsilon_claimed, audit.epsilon_holds, *bounds)), str(audit.verdict)))
    return columns(rows)


def step_command(result: StepAudit, **_: Any) -> str:
    """The call of `edp-lab audit mechanism` that draws the same."""
    audit, m = result.audit, result.audit.mechanism
    printed = m.variant is Variant.AS_PRINTED
    alpha = f"{m.alpha_max:g}" if printed else None
    options: dict[str, Any] = {"gpus": m.num_devices, "z0": m.z0, "clip": m.clip_norm, "alpha-max": alpha}
    options |= {"delta": audit.delta, "draws": audit.draws, "seed": result.seed}
    return command("audit mechanism", options, *(["--as-printed"] if printed else []))


# ---- Guesses -------------------------------------------------------------------------------------------------------


@panel("08")
def guesses(canaries: int = 1000, made: float = 30.0, right: float = 90.0, tested: float = 1.0) -> Panel:
    """What right guesses prove; `result` is a `Guesses`."""
    shares = [float(k) for k in range(1, 101)]
    deltas = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3]
    return Panel(
        "What do right guesses prove?",
        "First, how many guesses would be right if the tested ε held, and how many were; then, the largest ε that so "
        "many guesses can prove.",
        compute.guess,
        [draw_luck, draw_ceiling],
        lambda result: words.guesses(result, SURE),
        lambda result, **_: guesses_command(result),
        canaries=number("canaries m", canaries, [20, 50, 100, 200, 500, 1000, 2000, 5000], unit="in one run"),
        made=number("guesses made (% of m)", made, [1.0, 2.0, 5.0, *shares[9::10]]),
        right=number("of these right (%)", right, shares[39:]),
        tested=number("ε put to the test", tested, [k / 10 for k in range(81)], unit="nats"),
        delta=number("δ", compute.DELTA, deltas, unit="probability"),
    )


def draw_luck(result: Guesses) -> Figure:
    """How many guesses are right under the tested epsilon, and how many were."""
    beyond, bars = result.counts >= result.right, []
    for name, color, hatch, these in (("fewer", SKY, "", ~beyond), ("as many, or more", VERMILLION, "/", beyond)):
        on = {"x": result.counts[these], "y": 100 * result.chances[these], "hover": "%{x} right: %{y:.3g} %"}
        bars.append(fig.bar(name, color, hatch, marker={"pattern": {"size": 6}, "line": {"width": 0}}, **on))
    low, high = int(result.counts[0]), int(result.counts[-1])
    return figure(
        "Could it have been luck?",
        f"{result.made:,} guesses, each right with chance {result.chance:.1%} at most\n"
        f"if ε = {d(result.tested)} (δ = 0; one canary added, removed or zeroed out)",
        *bars,
        fig.vline(result.right),
        fig.beside(f"you: {result.right:,}", result.right, left=result.right > (low + high) / 2),
        barmode="overlay",
        bargap=0,
        xaxis=fig.axis("right guesses", [low - 1, high + 1]),
        yaxis=fig.axis("chance at the tested ε (%)", [0, 118 * float(result.chances.max())]),
    )


def draw_ceiling(result: Guesses) -> Figure:
    """What r guesses prove if all are right, or as many as were; the ring is what these guesses prove."""
    sizes, perfect, shares = list(result.ceiling), result.ceiling.values(), result.same_share
    gaussian, free = [best.gaussian for best in perfect], [best.distribution_free for best in perfect]
    highest = result.ceiling[compute.SIZES[-1]].gaussian or 0
    place = {"xref": "paper", "x": 1, "xanchor": "right", "y": result.tested, "yanchor": "bottom"}
    ring: Trace = {"color": BLACK, "size": 15, "edge": 2.5, "x": [result.made]}
    return figure(
        "What guesses can prove",
        f"δ = {result.delta:.2g}, confidence {SURE}, m = {result.canaries:,} canaries;\n"
        "Steinke et al. (any mechanism), Mahloujifar et al. (Gaussian)",
        line("best, Gaussian", BLUE, symbol="diamond", size=6, x=sizes, y=gaussian),
        line("best, any", PURPLE, "dash", symbol="square", size=6, x=sizes, y=free),
        line("your share, any", ORANGE, "dot", symbol="circle", size=6, x=list(shares), y=list(shares.values())),
        points("you, Gaussian", symbol="diamond-open", y=[result.bounds.gaussian], **ring),
        points("you, any", symbol="square-open", y=[result.bounds.distribution_free], **ring),
        fig.hline(result.tested, line={"color": VERMILLION, "dash": "dashdot", "width": 1.5}),
        fig.note("the tested ε", **place),
        top=146,
        hover="%{x:,} guesses: ε at least %{y:.3g}",
        xaxis=fig.axis("guesses r", [min(0.9, math.log10(result.made) - 0.1), 4.1], type="log", dtick=1),
        yaxis=fig.axis(f"ε is at least (δ = {result.delta:.2g})", [-0.4, 1.06 * max(result.tested, highest)]),
    )


def guesses_command(result: Guesses) -> str:
    """The call that prints the same bounds."""
    return (
        'python -c "from edp_lab.attacks.audit.bounds import Tally, one_run_bounds; '
        f"print(one_run_bounds({result.canaries}, [Tally({result.made}, {result.right})], delta={result.delta!r}, "
        f'confidence={CONFIDENCE!r}, gaussian=True))"'
    )


# ---- One run -------------------------------------------------------------------------------------------------------


@panel("08")
class OneRun(RunPanel):
    """Training runs of the one-layer model with canaries, each audited; only Run starts any work.

    Attributes:
        audits: by seed, of the last setting that was run.
    """

    def __init__(self, as_printed: bool, z0: float, num_devices: int, canaries: int, runs: int, seed: int) -> None:
        self.audits: dict[int, OneRunAudit] = {}
        self._seed = seed
        self.variant = choice("variant", as_printed, VARIANTS)
        self.z0, self.num_devices = number("z0", float(z0)), number("GPUs N", num_devices)
        self.epochs, self.runs = number("epochs", 1), number("runs", runs)
        self.canaries = number("canaries m", canaries)
        super().__init__(
            "Audit a run",
            "Real training runs of a model with one layer, full of canaries: how many guesses about the last run were "
            "right, and what each run proves about ε.",
            [self.variant, self.z0, self.num_devices, self.epochs, self.canaries, self.runs],
            [draw_tallies({}), draw_runs({})],
        )

    def prepare(self) -> tuple[list[TrainConfig], int]:
        check_whole("number of runs", self.runs.value, 1, 100)
        settings = self.variant.value, self.z0.value, self.num_devices.value, self.epochs.value
        seeds = range(self._seed, self._seed + self.runs.value)
        return [compute.one_run_config(*settings, seed) for seed in seeds], self.canaries.value

    def work(self, task: tuple[list[TrainConfig], int]) -> None:
        """One audit after the other, each with a seed of its own."""
        configs, canaries = task
        self.audits = {}
        for done, config in enumerate(configs):
            if self.stopping:
                break
            self._one(config, canaries, done, len(configs))

    def _one(self, config: TrainConfig, canaries: int, done: int, of: int) -> None:
        def progress(step: int, steps: int) -> None:
            self.heed_stop()
            self.progress(done * steps + step, of * steps, f"run {done + 1} of {of}: step {step} of {steps}")

        self.audits[config.seed] = audit_one_run(config, canaries, linear=True, progress=progress)
        for live, draw in zip(self.figures, (draw_tallies, draw_runs), strict=True):
            live.show(draw(self.audits))
        rows = list(self.audits.values())
        refuted = sum(audit.verdict is Finding.REFUTED for audit in rows)
        self.words.value = words.runs(rows, refuted, SOURCES[rows[-1].mechanism.variant])
        self.command.value = one_run_command(config, canaries)


def draw_tallies(audits: Mapping[int, OneRunAudit]) -> Figure:
    """Of the last run: the share of right guesses, and the share that would refute the claim."""
    names, right, told, asked, caption = [], [], [], [], ""
    for seed, audit in list(audits.items())[-1:]:
        caption = f"{_run_settings(audit)},\nseed {seed}; claimed ε = {d(audit.epsilon_claimed)}"
        for tally in audit.tallies:
            least = needed(audit, tally.guesses)
            names.append(f"{tally.guesses:,} of {audit.canaries:,}")
            right.append(100 * tally.correct / tally.guesses)
            told.append(f"{tally.correct:,} right")
            asked.append(None if least is None else 100 * least / tally.guesses)
    inside = {"text": told, "textposition": "inside", "insidetextanchor": "start", "textfont": {"color": BLACK}}
    wanted: Trace = {"x": names, "y": asked, "hover": "%{y:.1f} % would refute the claim"}
    return figure(
        "Guesses about the last run",
        caption,
        fig.bar("right", SKY, width=0.55, x=names, y=right, hover="%{y:.1f} % right", **inside),
        points("needed to refute the claim", VERMILLION, "line-ew-open", 60, edge=4, **wanted),
        fig.hline(50),
        fig.over("coin", 50),
        xaxis=fig.axis("guesses made: the surest ones first", [-0.5, (len(names) or 3) - 0.5], type="category"),
        yaxis=fig.axis("right guesses (%)", [0, 104]),
    )


def draw_runs(audits: Mapping[int, OneRunAudit]) -> Figure:
    """What each audit proves, beside the epsilon that is claimed and the one that holds; of one setting, by seed."""
    rows = list(audits.values())
    numbers, ends = list(range(1, len(rows) + 1)), [0.5, len(rows) + 0.5] if rows else []
    gaussian, free = [audit.epsilon_lower_bound for audit in rows], [audit.bounds.distribution_free for audit in rows]
    claimed, true = ([getattr(audit, name) for audit in rows[:1]] * 2 for name in ("epsilon_claimed", "epsilon_holds"))
    caption = rows and (
        f"{_run_settings(rows[0])}; δ = {rows[0].delta:.2g},\n"
        f"zero-out, disjoint batches; proven at {SURE}; true: Gaussian DP"
    )
    return figure(
        "What each audit proves",
        caption or "",
        points("proven, Gaussian", BLUE, "triangle-up", 11, edge=None, x=numbers, y=gaussian),
        points("proven, any mechanism", PURPLE, "triangle-up-open", 11, edge=None, x=numbers, y=free),
        line("claimed", ORANGE, "dash", width=2.5, x=ends, y=claimed),
        line("true", GREEN, width=2.5, x=ends, y=true),
        hover="audit %{x}: ε %{y:.3g}",
        xaxis=fig.axis("audit, a training run each", ends or None, tickformat="d"),
        yaxis=fig.axis("ε of the run", rangemode="tozero"),
    )


def _run_settings(audit: OneRunAudit) -> str:
    setting = f"N = {audit.mechanism.num_devices}, z0 = {audit.mechanism.z0:g}, {count(audit.epochs, 'epoch')}"
    return f"{_name(audit.mechanism)}: {setting}, m = {audit.canaries:,}"


def one_run_command(config: TrainConfig, canaries: int) -> str:
    """The call of `edp-lab audit one-run` that makes this very audit."""
    settings = {"z0": config.z0, "gpus": config.num_devices, "epochs": config.epochs, "canaries": canaries}
    options = {**settings, "delta": config.delta, "seed": config.seed}
    return command("audit one-run --model linear", options, *(["--as-printed"] if config.as_printed else []))
