"""Panels of ``06_audit.ipynb``: an audit of one step, and audits of training runs.

    noise = StepNoise(seed=0)                               # drawn once, as in training
    result = audit_step(noise, True, 1.0, 1.0, 8, draws=1000)      # same result as `edp-lab audit mechanism`

`edp_lab.attacks` and `edp_lab.privacy` compute the confidence limits, the lower bounds and the claimed and guaranteed
epsilons. Invalid values raise `UsageError`, and so does a step without a finite claimed epsilon.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import partial

from edp_lab.attacks.one_run import OneRunAudit, audit_one_run
from edp_lab.attacks.statistics import Tally, one_run_bounds
from edp_lab.attacks.step_audit import Finding, StepAudit, StepNoise
from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.audits import CONFIDENCE, SURE, draw_step, on_trial, step_command, tell_step, trial
from edp_lab.course.kit.controls import DELTA, DEVICES, attacked_mechanism, decades, devices, number, variant
from edp_lab.course.kit.figure import Figure, Trace, line, points
from edp_lab.course.kit.panel import Panel, panel
from edp_lab.course.kit.runs import RunPanel
from edp_lab.course.kit.text import Tile, Words, at_least, at_most, columns, command, count, short
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import CLAIMED, HOLDS, INK, OTHER, PLAIN
from edp_lab.errors import check_whole
from edp_lab.training.config import TrainConfig

MOST_DRAWS = 10_000  # per side
words = Words(__file__)
figure = partial(fig.figure, height=390)


# ---- One step ------------------------------------------------------------------------------------------------------


def audit_step(
    noise: StepNoise, as_printed: bool, clip_norm: float, z0: float, num_devices: int, draws: int
) -> StepAudit:
    """Test the claimed epsilon of one step without layer scales, with `draws` draws per side.

    With 95 % confidence, epsilon is at least `measured_epsilon` if the noise is as good as random; see
    `StepNoise.audit`.
    """
    check_whole("the number of draws", draws, 1, MOST_DRAWS)
    mechanism = attacked_mechanism(as_printed, clip_norm, z0, num_devices)
    return noise.audit(mechanism, DELTA, draws, CONFIDENCE)


@panel("06")
def step(noise: StepNoise, as_printed: bool, clip_norm: float, z0: float, num_devices: int, draws: int) -> Panel:
    """Panel that audits one step; `result` is a `StepAudit`."""
    counts = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000]
    return Panel(
        "Audit one step",
        "The release of one step without and with one utterance, and the values of ε that remain possible.",
        partial(audit_step, noise),
        [draw_step, draw_scale],
        lambda result: words.step(result, SURE),
        step_command,
        tiles=tell_step,
        joint=("as_printed", "num_devices", "z0"),
        as_printed=variant(as_printed),
        num_devices=devices(num_devices, [*DEVICES, 64]),
        z0=number("noise multiplier z0", z0, decades(-2, 1)),
        draws=number("draws per side", draws, counts),
        clip_norm=number("clip norm C", clip_norm, decades(-2, 2), unit="gradient norm"),
    )


ROWS = ("tested", "guaranteed", "measured:\nGaussian", "measured: any\nmechanism", "at most\nmeasurable")
FLOOR = 0.05  # a log axis cannot show a lower bound of 0


def draw_scale(result: StepAudit) -> Figure:
    """Plot the tested epsilon, the guaranteed epsilon, and the values that remain possible after the draws."""
    claim, true, gaussian, free, most = ROWS
    audit, bounds = result.audit, result.audit.bounds
    assert audit.epsilon_if_seed_secret is not None  # see `StepNoise.audit`
    ranges = ((gaussian, PLAIN, "solid", bounds.gaussian), (free, OTHER, "dot", bounds.distribution_free))
    numbers = (
        (claim, CLAIMED, "square", audit.claimed_epsilon),
        (true, HOLDS, "circle", audit.epsilon_if_seed_secret),
        (most, INK, "line-ns-open", audit.ceiling),
    )
    last = max(2.0, math.ceil(math.log10(max(value for *_, value in (*ranges, *numbers))) + 0.4))
    traces = []
    for name, color, dash, bound in ranges:
        side = "top left" if bound > 10 ** (last - 1) else "top right"
        label: Trace = {"mode": "lines+markers+text", "text": [f"≥ {at_least(bound)}", ""], "textposition": side}
        ends = {"symbol": ["line-ns-open", "triangle-right"], "marker": {"line": {"width": 3, "color": color}}}
        on = {"x": [max(bound, FLOOR), 0.9 * 10**last], "y": [name] * 2}
        traces.append(line(name, color, dash, width=7, size=15, **ends, **label, **on))
    for name, color, symbol, value in numbers:
        # The dashed line at the tested epsilon must not cross its number.
        side = "middle right" if name == claim else "top center"
        text = {claim: on_trial(audit), true: at_most(value), most: at_least(value)}[name]
        label = {"mode": "markers+text", "text": [text], "textposition": side}
        traces.append(points(name, color, symbol, 14, edge=3, x=[max(value, FLOOR)], y=[name], **label))
    return figure(
        "Possible values of ε",
        *traces,
        fig.vline(audit.claimed_epsilon, line={"color": CLAIMED, "dash": "dash", "width": 1.5}, layer="below"),
        top=44,
        hover="%{text}" + fig.ALONE,
        showlegend=False,
        xaxis=fig.logs(f"ε of one step, at δ = {short(audit.delta)}", [math.log10(FLOOR) - 0.1, last]),
        yaxis=fig.axis("kind of ε", [-0.6, 4.8], categoryorder="array", categoryarray=ROWS[::-1]),
    )


def table(results: Mapping[str, StepAudit]) -> str:
    """Plain-text table of step audits, one per line, below a heading."""
    rows: list[tuple[str, ...]] = [("", "tested", "guaranteed", "measured", "any mechanism", "verdict")]
    for label, audit in ((label, result.audit) for label, result in results.items()):
        bounds = audit.bounds.gaussian, audit.bounds.distribution_free
        rows.append(
            (label, on_trial(audit), at_most(audit.epsilon_if_seed_secret), *map(at_least, bounds), str(audit.verdict))
        )
    return columns(rows)


# ---- One run -------------------------------------------------------------------------------------------------------


def one_run_config(as_printed: bool, z0: float, num_devices: int, epochs: int, seed: int) -> TrainConfig:
    """Configuration of `edp-lab audit one-run --model linear` with these options and delta 1e-5."""
    settings = {"alpha": "none", "dropout": 0.0, "delta": DELTA, "seed": seed}
    return TrainConfig("", as_printed=as_printed, z0=z0, num_devices=num_devices, epochs=epochs, **settings)  # type: ignore[arg-type]


def needed(audit: OneRunAudit, guesses: int) -> int | None:
    """Smallest number of correct guesses that refutes the claim; None if even `guesses` are too few."""
    confidence = 1 - (1 - audit.confidence) / len(audit.tallies)  # the error probability is split over the tallies

    def refutes(right: int) -> bool:
        tally = [Tally(guesses, right)]
        bounds = one_run_bounds(audit.canaries, tally, audit.delta, confidence, gaussian=True)
        return bounds.best > audit.claimed_epsilon

    least = bisect_left(range(guesses + 1), True, key=refutes)
    return least if least <= guesses else None


@panel("06")
class OneRun(RunPanel):
    """Panel that trains and audits one-layer models with canaries when Run is pressed."""

    def __init__(self, as_printed: bool, z0: float, num_devices: int, canaries: int, runs: int, seed: int) -> None:
        self.audits: dict[int, OneRunAudit] = {}  # by seed, for the last setting that was run
        self._seed = seed
        super().__init__(
            "Audit a run",
            "Run trains models with canaries and guesses which were included. The figures show the results.",
            [draw_tallies({}), draw_runs({})],
            as_printed=variant(as_printed),
            z0=number("z0", float(z0)),
            num_devices=number("GPUs N", num_devices),
            epochs=number("epochs", 1),
            canaries=number("canaries m", canaries),
            runs=number("runs", runs),
        )

    def prepare(self) -> tuple[list[TrainConfig], int]:
        settings = self.values
        canaries, runs = settings.pop("canaries"), settings.pop("runs")
        check_whole("the number of runs", runs, 1, 100)
        seeds = range(self._seed, self._seed + runs)
        return [one_run_config(**settings, seed=seed) for seed in seeds], canaries

    def work(self, task: tuple[list[TrainConfig], int]) -> None:
        """Run the audits one after another, each with a different seed."""
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

        audit = self.audits[config.seed] = audit_one_run(config, canaries, linear=True, progress=progress)
        for live, draw in zip(self.figures, (draw_tallies, draw_runs), strict=True):
            live.show(draw(self.audits))
        self.tiles.show(*tell_runs(list(self.audits.values())))
        self.words.value = words.run(audit)
        self.command.value = one_run_command(config, canaries)


def tell_runs(audits: Sequence[OneRunAudit]) -> tuple[Tile, Tile, str]:
    """Tiles with the tested epsilon and the number of audits that refute it, and a sentence on the guarantee."""
    last, of = audits[-1], count(len(audits), "audit")
    refuted = sum(audit.verdict is Finding.REFUTED for audit in audits)
    if last.epsilon_if_seed_secret is None:
        sentence = "No ε is guaranteed: float32 rounding loses noise this small."
    elif last.claimed_epsilon < last.epsilon_if_seed_secret:
        held, claim = at_most(last.epsilon_if_seed_secret), d(last.claimed_epsilon)
        sentence = f"The guaranteed ε is {held} and the claimed ε is {claim}. {refuted} of {of} refuted the claim."
    elif refuted:
        sentence = "An audit refuted the guaranteed ε, which happens in at most 5 % of audits."
    else:
        sentence = f"The ε is guaranteed, and the {'audit does' if len(audits) == 1 else 'audits do'} not refute it."
    refutations = Tile("audits that refute ε", f"{refuted} of {len(audits)}", f"each at {SURE} confidence")
    return trial(last, "the run"), refutations, sentence


def draw_tallies(audits: Mapping[int, OneRunAudit]) -> Figure:
    """Plot the share of correct guesses in the last run, and the share that would refute the claim."""
    last = [(audit, tally) for audit in list(audits.values())[-1:] for tally in audit.tallies]
    names, texts = [f"{t.guesses:,} of {a.canaries:,}" for a, t in last], [f"{t.correct:,} right" for _, t in last]
    right, least = [100 * t.correct / t.guesses for _, t in last], [needed(a, t.guesses) for a, t in last]
    asked = [None if n is None else 100 * n / t.guesses for n, (_, t) in zip(least, last, strict=True)]
    inside = {"text": texts, "textposition": "inside", "insidetextanchor": "start", "textfont": {"color": INK}}
    wanted: Trace = {"x": names, "y": asked, "hover": "%{y:.1f} % would refute the claim"}
    return figure(
        "Guesses about the last run",
        fig.bar("right", OTHER, width=0.55, x=names, y=right, hover="%{y:.1f} % right", **inside),
        points("would refute the claim", CLAIMED, "line-ew-open", 60, edge=4, **wanted),
        fig.hline(50),
        fig.over("coin", 50),
        xaxis=fig.axis("guesses made, most certain first", [-0.5, (len(names) or 3) - 0.5], type="category"),
        yaxis=fig.axis("right guesses (%)", [0, 104]),
    )


def draw_runs(audits: Mapping[int, OneRunAudit]) -> Figure:
    """Plot the measured epsilon of each audit of one setting, with the claimed and the guaranteed epsilon."""
    rows = list(audits.values())
    numbers, ends = list(range(1, len(rows) + 1)), [0.5, len(rows) + 0.5] if rows else []
    gaussian, free = [audit.measured_epsilon for audit in rows], [audit.bounds.distribution_free for audit in rows]
    as_claimed, true = (
        [getattr(audit, name) for audit in rows[:1]] * 2 for name in ("claimed_epsilon", "epsilon_if_seed_secret")
    )
    return figure(
        "Measured ε of each audit",
        points("measured", PLAIN, "triangle-up", 11, edge=None, x=numbers, y=gaussian),
        points("measured, any", OTHER, "triangle-up-open", 11, edge=None, x=numbers, y=free),
        line("tested", CLAIMED, "dash", width=2.5, x=ends, y=as_claimed),
        line("guaranteed", HOLDS, width=2.5, x=ends, y=true),
        hover="audit %{x}: ε ≈ %{y:.3g}",
        xaxis=fig.axis("audit (one training run each)", ends or None, tickformat="d"),
        yaxis=fig.axis("ε of the run", rangemode="tozero"),
    )


def one_run_command(config: TrainConfig, canaries: int) -> str:
    """The `edp-lab audit one-run` command for exactly this audit."""
    settings = {"z0": config.z0, "gpus": config.num_devices, "epochs": config.epochs, "canaries": canaries}
    options = {**settings, "delta": config.delta, "seed": config.seed}
    return command("audit one-run --model linear", options, *(["--as-printed"] if config.as_printed else []))
