"""The panels of ``08_audit_it.ipynb``: an audit of one step, what guesses prove, audits of training runs.

What a result holds is in `compute`; nothing is computed here but axis ranges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from scipy.stats import norm

from edp_lab.attacks.audit.bounds import Finding
from edp_lab.attacks.audit.one_run import OneRunAudit, audit_one_run
from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import DEVICES, choice, decades, devices, number, number_box
from edp_lab.course.kit.figure import Figure, figure, line
from edp_lab.course.kit.panel import Panel, RunPanel, StoppedError, panel
from edp_lab.course.kit.text import Words, columns
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION
from edp_lab.course.nb08_audit import compute
from edp_lab.course.nb08_audit.compute import CONFIDENCE, Guesses, StepAudit, StepNoise, needed
from edp_lab.errors import UsageError
from edp_lab.privacy import Mechanism, Variant
from edp_lab.training import TrainConfig

words = Words(__file__)
HEIGHT = 500
HATCH = {"fillmode": "overlay", "fgcolor": "white", "size": 6}
VARIANTS = {"as printed": True, "sound": False}
SURE = f"{100 * CONFIDENCE:g} %"
MEANINGS = {
    Finding.REFUTED: "the proven bound lies above the claim",
    Finding.CONSISTENT: "the proven bound lies below the claim, which proves nothing: another attack might do better",
    Finding.NO_POWER: "even draws without a single error could not have refuted this claim: draw more",
}


def _name(mechanism: Mechanism) -> str:
    return "as printed" if mechanism.variant is Variant.AS_PRINTED else "sound"


def _source(mechanism: Mechanism) -> str:
    """Where the claim under test comes from."""
    return "the paper's zCDP" if mechanism.variant is Variant.AS_PRINTED else "the true one"


# ---- One step ------------------------------------------------------------------------------------------------------


@panel("08")
def step(noise: StepNoise, as_printed: bool, clip_norm: float, z0: float, num_devices: int, draws: int) -> Panel:
    """The audit of one step; `result` is a `StepAudit`."""
    counts = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000]
    return Panel(
        "Audit one step",
        "First, what a step releases along one utterance's direction, without that utterance and with it; then, which "
        "ε this leaves possible, beside the claim.",
        {
            "as_printed": choice("variant", as_printed, VARIANTS),
            "clip_norm": number("clip norm C", clip_norm, decades(-2, 2), unit="gradient norm"),
            "z0": number("noise multiplier z0", z0, decades(-2, 1), unit="no unit"),
            "num_devices": devices(num_devices, [*DEVICES, 64]),
            "alpha_max": number("largest α, as printed", 1.0, decades(-1, 1), unit="of a layer"),
            "draws": number("draws", draws, counts, unit="a side"),
        },
        partial(compute.audit_step, noise),
        [draw_step, draw_scale],
        lambda result: words.step(result, SURE, MEANINGS[result.verdict]),
        lambda result, **_: step_command(result),
        idle=lambda result: ("alpha_max",) if result.mechanism.variant is Variant.SOUND else (),
    )


def draw_step(result: StepAudit) -> Figure:
    """Both histograms of what a step releases along the canary's direction, and the threshold between them."""
    middles, width = (result.edges[1:] + result.edges[:-1]) / 2, result.edges[1] - result.edges[0]
    bars, bells = [], []
    looks = (("without the canary", BLUE, "", "solid", -1), ("with it", ORANGE, "/", "dash", 1))
    for (name, color, shape, dash, side), shares in zip(looks, result.shares, strict=True):
        marker = {"color": color, "opacity": 0.6, "pattern": {**HATCH, "shape": shape}, "line": {"width": 0}}
        hover = f"%{{x:.3g}}: %{{y:.2f}} % of the draws {name}"
        bar = {"type": "bar", "name": name, "marker": marker, "hovertemplate": hover, "width": width}
        bars.append({**bar, "x": middles, "y": 100 * shares})
        density = 100 * width * norm.pdf(result.edges, side * result.distance / 2, result.std)
        look = {"line": {"width": 2}, "showlegend": False, "hoverinfo": "skip"}
        bells.append(fig.merged(line("", color, dash, x=result.edges, y=density), look))
    top = 1.15 * max(float(trace["y"].max()) for trace in (*bars, bells[0]))
    guesses = [
        {"text": text, "xanchor": anchor, "xshift": shift, "x": 0, "yref": "paper", "y": 1, "yanchor": "top"}
        for text, anchor, shift in (("guess: absent", "right", -6), ("guess: present", "left", 6))
    ]
    return figure(
        [*bars, *bells],
        "What one step gives away",
        f"{_step_settings(result)},<br>{result.draws:,} draws a side, seed {result.seed}",
        HEIGHT,
        barmode="overlay",
        bargap=0,
        shapes=[fig.vline(0)],
        annotations=[{**guess, "showarrow": False} for guess in guesses],
        xaxis={"title": "released along the canary (gradient norm)", "range": result.edges[[0, -1]].tolist()},
        yaxis={"title": "share of the draws (%)", "range": [0, top]},
    )


def _step_settings(result: StepAudit) -> str:
    mechanism = result.mechanism
    alpha = f", largest α = {mechanism.alpha_max:g}" if mechanism.variant is Variant.AS_PRINTED else ""
    numbers = f"N = {mechanism.num_devices}, C = {mechanism.clip_norm:g}, z0 = {mechanism.z0:g}{alpha}"
    return f"{_name(mechanism)}: {numbers}"


ROWS = ("claimed", "true", "proven:<br>Gaussian", "proven: any<br>mechanism", "at most<br>provable")
FLOOR = 0.05  # a lower bound of 0 has no place on a log axis


def draw_scale(result: StepAudit) -> Figure:
    """The epsilon that is claimed, the one that holds, and those that the draws leave possible."""
    claimed, true, gaussian, free, most = ROWS
    ranges = ((gaussian, BLUE, "solid", result.bounds.gaussian), (free, PURPLE, "dot", result.bounds.distribution_free))
    points = (
        (claimed, ORANGE, "square", result.claimed),
        (true, GREEN, "circle", result.holds),
        (most, BLACK, "line-ns-open", result.ceiling),
    )
    last = max(2.0, math.ceil(math.log10(max(value for *_, value in (*ranges, *points))) + 0.4))
    told: fig.Trace = {"type": "scatter", "hovertemplate": "%{text}<extra></extra>"}
    traces = []
    for name, color, dash, bound in ranges:
        ends = {"symbol": ["line-ns-open", "triangle-right"], "size": 15, "line": {"width": 3, "color": color}}
        traces.append(
            {
                **told,
                "name": name,
                "mode": "lines+markers+text",
                "x": [max(bound, FLOOR), 0.9 * 10**last],
                "y": [name] * 2,
                "text": [f"≥ {d(bound)}", ""],
                "textposition": "top left" if bound > 10 ** (last - 1) else "top right",
                "line": {"color": color, "width": 7, "dash": dash},
                "marker": {**ends, "color": color},
            }
        )
    for name, color, symbol, value in points:
        beside = "middle right" if name == claimed else "top center"  # of the line of the claim
        marker = {"symbol": symbol, "size": 14, "color": color, "line": {"width": 3, "color": color}}
        place = {"x": [max(value, FLOOR)], "y": [name], "text": [d(value)], "textposition": beside}
        traces.append({**told, **place, "name": name, "mode": "markers+text", "marker": marker})
    return figure(
        traces,
        "Which ε can it be?",
        f"δ = {result.delta:.2g}, zero-out, disjoint batches; true: Gaussian DP;<br>"
        f"claimed: {_source(result.mechanism)}; proven at {SURE}, seed {result.seed}",
        HEIGHT,
        showlegend=False,
        margin={"t": 90},
        shapes=[fig.vline(result.claimed, line={"color": ORANGE, "dash": "dash", "width": 1.5}, layer="below")],
        xaxis={
            "title": f"ε of one step (at δ = {result.delta:.2g})",
            **fig.LOG,
            "range": [math.log10(FLOOR) - 0.1, last],
        },
        yaxis={"title": "epsilon", "categoryorder": "array", "categoryarray": ROWS[::-1], "range": [-0.6, 4.8]},
    )


def table(results: Mapping[str, StepAudit]) -> str:
    """Audits of steps side by side in plain text, one a line, under a heading."""
    rows: list[tuple[str, ...]] = [("", "claimed", "true", "proven", "any mechanism", "verdict")]
    for label, r in results.items():
        numbers = map(d, (r.claimed, r.holds, r.bounds.gaussian, r.bounds.distribution_free))
        rows.append((label, *numbers, str(r.verdict)))
    return columns(rows)


def step_command(result: StepAudit) -> str:
    """The call of `edp-lab audit mechanism` that draws the same."""
    mechanism = result.mechanism
    printed = mechanism.variant is Variant.AS_PRINTED
    alpha = f" --alpha-max {mechanism.alpha_max:g}" if printed else ""
    return (
        f"edp-lab audit mechanism{' --as-printed' if printed else ''} --gpus {mechanism.num_devices} "
        f"--z0 {mechanism.z0!r} --clip {mechanism.clip_norm!r}{alpha} --delta {result.delta!r} --draws {result.draws} "
        f"--seed {result.seed}"
    )


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
        {
            "canaries": number("canaries m", canaries, [20, 50, 100, 200, 500, 1000, 2000, 5000], unit="in one run"),
            "made": number("guesses made (% of m)", made, [1.0, 2.0, 5.0, *shares[9::10]]),
            "right": number("of these right (%)", right, shares[39:]),
            "tested": number("ε put to the test", tested, [k / 10 for k in range(81)], unit="nats"),
            "delta": number("δ", compute.DELTA, deltas, unit="probability"),
        },
        compute.guess,
        [draw_luck, draw_ceiling],
        lambda result: words.guesses(result, SURE),
        lambda result, **_: guesses_command(result),
    )


def draw_luck(result: Guesses) -> Figure:
    """How many guesses are right under the tested epsilon, and how many were."""
    beyond, bars = result.counts >= result.right, []
    looks = (("fewer", SKY, "", ~beyond), ("as many, or more", VERMILLION, "/", beyond))
    for name, color, shape, these in looks:
        marker = {"color": color, "pattern": {**HATCH, "shape": shape}, "line": {"width": 0}}
        bar = {"type": "bar", "name": name, "marker": marker, "hovertemplate": "%{x} right: %{y:.3g} %"}
        bars.append({**bar, "x": result.counts[these], "y": 100 * result.chances[these]})
    low, high = int(result.counts[0]), int(result.counts[-1])
    left = result.right > (low + high) / 2
    side = {"xanchor": "right", "xshift": -6} if left else {"xanchor": "left", "xshift": 6}
    here = {"x": result.right, "yref": "paper", "y": 1, "yanchor": "top", "text": f"you: {result.right:,}", **side}
    return figure(
        bars,
        "Could it have been luck?",
        f"{result.made:,} guesses, each right with chance {result.chance:.1%} at most<br>"
        f"if ε = {d(result.tested)} (δ = 0; one canary added, removed or zeroed out)",
        HEIGHT,
        barmode="overlay",
        bargap=0,
        shapes=[fig.vline(result.right)],
        annotations=[{**here, "showarrow": False}],
        xaxis={"title": "right guesses", "range": [low - 1, high + 1]},
        yaxis={"title": "chance at the tested ε (%)", "range": [0, 118 * float(result.chances.max())]},
    )


def draw_ceiling(result: Guesses) -> Figure:
    """What r guesses prove if all are right, or as many as were; the ring is what these guesses prove."""
    sizes, best = list(result.ceiling), list(result.ceiling.values())
    share = list(zip(*result.same_share, strict=True))
    hover = {"hovertemplate": "%{x:,} guesses: ε at least %{y:.3g}"}
    traces: list[fig.Trace] = []
    for name, color, dash, symbol, x, y in (
        ("best, Gaussian", BLUE, "solid", "diamond", sizes, [bounds.gaussian for bounds in best]),
        ("best, any", PURPLE, "dash", "square", sizes, [bounds.distribution_free for bounds in best]),
        ("your share, any", ORANGE, "dot", "circle", *share),
    ):
        look = {"line": {"color": color, "dash": dash}, "marker": {"symbol": symbol}}
        traces.append({"type": "scatter", "name": name, "mode": "lines+markers", **look, "x": x, "y": y, **hover})
    bounds = result.bounds
    for name, symbol, bound in (
        ("you, Gaussian", "diamond-open", bounds.gaussian),
        ("you, any", "square-open", bounds.distribution_free),
    ):
        marker = {"symbol": symbol, "size": 15, "color": BLACK, "line": {"width": 2.5}}
        mark = {"type": "scatter", "name": name, "mode": "markers", "marker": marker, **hover}
        traces.append({**mark, "x": [result.made], "y": [bound]})
    tested = {"xref": "paper", "x": 1, "xanchor": "right", "y": result.tested, "yanchor": "bottom"}
    return figure(
        traces,
        "What guesses can prove",
        f"δ = {result.delta:.2g}, confidence {SURE}, m = {result.canaries:,} canaries;<br>"
        "Steinke et al. (any mechanism), Mahloujifar et al. (Gaussian)",
        HEIGHT,
        margin={"t": 146},
        shapes=[fig.hline(result.tested, line={"color": VERMILLION, "dash": "dashdot", "width": 1.5})],
        annotations=[{**tested, "text": "the tested ε", "showarrow": False}],
        xaxis={
            "title": "guesses r",
            "type": "log",
            "dtick": 1,
            "range": [min(0.9, math.log10(result.made) - 0.1), 4.1],
        },
        yaxis={
            "title": f"ε is at least (δ = {result.delta:.2g})",
            "range": [-0.4, 1.06 * max(result.tested, best[-1].gaussian or 0)],
        },
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
        self.z0, self.num_devices = number_box("z0", float(z0), "7rem"), number_box("GPUs N", num_devices, "7rem")
        self.epochs, self.runs = number_box("epochs", 1, "7rem"), number_box("runs", runs, "7rem")
        self.canaries = number_box("canaries m", canaries, "9.5rem")
        super().__init__(
            "Audit a run",
            "Real training runs of a model with one layer, full of canaries: how many guesses about the last run were "
            "right, and what each run proves about ε.",
            [self.variant.row, self.z0, self.num_devices, self.epochs, self.canaries, self.runs],
            [draw_tallies({}), draw_runs({})],
            rows=2,
        )

    def prepare(self) -> tuple[list[TrainConfig], int]:
        if not 1 <= self.runs.value <= 100:
            raise UsageError(f"the number of runs is {self.runs.value}: it must be a whole number from 1 to 100")
        settings = (self.variant.value, self.z0.value, self.num_devices.value, self.epochs.value, compute.DELTA)
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

        try:
            self.audits[config.seed] = audit_one_run(config, canaries, linear=True, progress=progress)
        except StoppedError:
            return
        for live, draw in zip(self.figures, (draw_tallies, draw_runs), strict=True):
            live.show(draw(self.audits))
        rows = list(self.audits.values())
        refuted = sum(audit.verdict is Finding.REFUTED for audit in rows)
        self.words.value = words.runs(rows, refuted, _source(rows[-1].mechanism))
        self.command.value = one_run_command(config, canaries)


def draw_tallies(audits: Mapping[int, OneRunAudit]) -> Figure:
    """Of the last run: the share of right guesses, and the share that would refute the claim."""
    seed, audit = list(audits.items())[-1] if audits else (0, None)
    tallies: Sequence[Any] = audit.tallies if audit else ()
    names = [f"{tally.guesses:,} of {audit.canaries:,}" for tally in tallies] if audit else []
    asked = [needed(audit, tally.guesses) for tally in tallies] if audit else []
    inside: dict[str, Any] = {"textposition": "inside", "insidetextanchor": "start", "textfont": {"color": BLACK}}
    right: fig.Trace = {
        "type": "bar",
        "name": "right",
        "marker": {"color": SKY},
        "width": 0.55,
        **inside,
        "x": names,
        "y": [100 * tally.correct / tally.guesses for tally in tallies],
        "text": [f"{tally.correct:,} right" for tally in tallies],
        "hovertemplate": "%{y:.1f} % right",
    }
    wanted = {
        "type": "scatter",
        "name": "needed to refute the claim",
        "mode": "markers",
        "marker": {"symbol": "line-ew-open", "size": 60, "color": VERMILLION, "line": {"width": 4}},
        "x": names,
        "y": [None if n is None else 100 * n / tally.guesses for n, tally in zip(asked, tallies, strict=True)],
        "hovertemplate": "%{y:.1f} % would refute the claim",
    }
    coin = {"text": "coin", "xref": "x domain", "x": 1, "xanchor": "right", "yref": "y", "y": 50, "yanchor": "bottom"}
    caption = f"{_run_settings(audit)},<br>seed {seed}; claimed ε = {d(audit.epsilon_claimed)}" if audit else ""
    return figure(
        [right, wanted],
        "Guesses about the last run",
        caption,
        HEIGHT,
        shapes=[fig.hline(50)],
        annotations=[{**coin, "showarrow": False}],
        xaxis={
            "title": "guesses made: the surest ones first",
            "type": "category",
            "range": [-0.5, (len(names) or 3) - 0.5],
        },
        yaxis={"title": "right guesses (%)", "range": [0, 104]},
    )


def draw_runs(audits: Mapping[int, OneRunAudit]) -> Figure:
    """What each audit proves, beside the epsilon that is claimed and the one that holds; of one setting, by seed."""
    rows = list(audits.values())
    numbers, ends = list(range(1, len(rows) + 1)), [0.5, len(rows) + 0.5] if rows else []
    hover = {"hovertemplate": "audit %{x}: ε %{y:.3g}"}
    traces = []
    for name, color, symbol, proven in (
        ("proven, Gaussian", BLUE, "triangle-up", [audit.epsilon_lower_bound for audit in rows]),
        ("proven, any mechanism", PURPLE, "triangle-up-open", [audit.bounds.distribution_free for audit in rows]),
    ):
        marker = {"symbol": symbol, "size": 11, "color": color}
        mark = {"type": "scatter", "name": name, "mode": "markers", "marker": marker, **hover}
        traces.append({**mark, "x": numbers, "y": proven})
    for name, color, dash, levels in (
        ("claimed", ORANGE, "dash", [audit.epsilon_claimed for audit in rows[:1]]),
        ("true", GREEN, "solid", [audit.epsilon_holds for audit in rows[:1]]),
    ):
        traces.append(fig.merged(line(name, color, dash, x=ends, y=levels * 2, **hover), {"line": {"width": 2.5}}))
    caption = rows and (
        f"{_run_settings(rows[0])}; δ = {rows[0].delta:.2g},<br>"
        f"zero-out, disjoint batches; proven at {SURE}; true: Gaussian DP"
    )
    axis = {"title": "audit, a training run each", "tickformat": "d"}
    return figure(
        traces,
        "What each audit proves",
        caption or "",
        HEIGHT,
        xaxis=axis | ({"range": ends} if rows else {}),
        yaxis={"title": "ε of the run", "rangemode": "tozero"},
    )


def _run_settings(audit: OneRunAudit) -> str:
    mechanism = audit.mechanism
    epochs = "1 epoch" if audit.epochs == 1 else f"{audit.epochs} epochs"
    return f"{_name(mechanism)}: N = {mechanism.num_devices}, z0 = {mechanism.z0:g}, {epochs}, m = {audit.canaries:,}"


def one_run_command(config: TrainConfig, canaries: int) -> str:
    """The call of `edp-lab audit one-run` that makes this very audit."""
    printed = " --as-printed" if config.as_printed else ""
    return (
        f"edp-lab audit one-run --model linear{printed} --z0 {config.z0!r} --gpus {config.num_devices} "
        f"--epochs {config.epochs} --canaries {canaries} --delta {config.delta!r} --seed {config.seed}"
    )
