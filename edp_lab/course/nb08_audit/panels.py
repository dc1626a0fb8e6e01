"""The panels of ``08_audit_it.ipynb``: two that follow their sliders, and one that audits training runs."""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets

from edp_lab.attacks.audit.one_run import OneRunAudit, audit_one_run
from edp_lab.course.kit import theme
from edp_lab.course.kit.controls import WHOLE_LABEL, choice, decades, number
from edp_lab.course.kit.old_panel import FigurePanel, Picture
from edp_lab.course.kit.panel import command_box, side_by_side
from edp_lab.course.kit.run_panel import RunPanel, last_command
from edp_lab.course.nb08_audit import compute as audits
from edp_lab.course.nb08_audit import figures as audits_figures
from edp_lab.course.nb08_audit import words as audits_words
from edp_lab.course.nb08_audit.compute import StepNoise
from edp_lab.errors import UsageError
from edp_lab.training import TrainConfig

VARIANTS = {"as printed": True, "sound": False}
DEVICES = [1, 2, 4, 8, 16, 32, 64]
DRAWS = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000]
CANARIES = [20, 50, 100, 200, 500, 1000, 2000, 5000]


class StepPanel(FigurePanel):
    """The audit of one step; `result` is an `audits.StepAudit`."""

    def __init__(
        self, noise: StepNoise, as_printed: bool, clip_norm: float, z0: float, num_devices: int, draws: int
    ) -> None:
        controls = {
            "as_printed": choice("variant", as_printed, VARIANTS),
            "clip_norm": number("clip norm C", clip_norm, decades(-2, 2), unit="gradient norm"),
            "z0": number("noise multiplier z0", z0, decades(-2, 1), unit="no unit"),
            "num_devices": number("GPUs N", num_devices, DEVICES, unit="devices"),
            "alpha_max": number("largest α, as printed", 1.0, decades(-1, 1), unit="of a layer"),
            "draws": number("draws", draws, DRAWS, unit="a side"),
        }
        super().__init__(
            "<h3>Audit one step</h3>What am I looking at? First, what a step releases along one utterance's direction, "
            "without that utterance and with it; then, which ε this leaves possible, beside the claim.",
            controls,
            lambda **values: audits.audit_step(noise, **values),
            audits_words.step_in_words,
            lambda result, **_: audits_words.step_command(result),
            [
                Picture(audits_figures.draws_figure, audits_figures.update_draws),
                Picture(audits_figures.scale_figure, audits_figures.update_scale),
            ],
        )

    def _draw(self, result: Any) -> None:
        super()._draw(result)
        self.controls["alpha_max"].disable(not self.controls["as_printed"].value)


def guess_panel(canaries: int, made: float, right: float, tested: float) -> FigurePanel:
    """What right guesses prove; `result` is an `audits.Guesses`."""
    shares = [float(k) for k in range(1, 101)]
    controls = {
        "canaries": number("canaries m", canaries, CANARIES, unit="in one run"),
        "made": number("guesses made (% of m)", made, [1.0, 2.0, 5.0, *shares[9::10]]),
        "right": number("of these right (%)", right, shares[39:]),
        "tested": number("ε put to the test", tested, [k / 10 for k in range(81)], unit="nats"),
        "delta": number("δ", audits.DELTA, [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3], unit="probability"),
    }
    return FigurePanel(
        "<h3>What do right guesses prove?</h3>What am I looking at? First, how many guesses would be right if "
        "the tested ε held, and how many were; then, the largest ε that so many guesses can prove.",
        controls,
        audits.guess,
        audits_words.guesses_in_words,
        lambda result, **_: audits_words.guesses_command(result),
        [
            Picture(audits_figures.luck_figure, audits_figures.update_luck),
            Picture(audits_figures.ceiling_figure, audits_figures.update_ceiling),
        ],
    )


class StoppedError(Exception):
    """Stop was pressed."""


class OneRunPanel(RunPanel):
    """Training runs of the one-layer model with canaries, each audited; only Run starts any work.

    Attributes:
        audits: by seed, of the last setting that was run.
    """

    def __init__(self, as_printed: bool, z0: float, num_devices: int, canaries: int, runs: int, seed: int) -> None:
        self.audits: dict[int, OneRunAudit] = {}
        self._seed = seed
        self.variant = choice("variant", as_printed, VARIANTS)
        self.z0 = widgets.FloatText(z0, description="z0", **_box("7rem"))
        self.num_devices = widgets.IntText(num_devices, description="GPUs N", **_box("7rem"))
        self.epochs = widgets.IntText(1, description="epochs", **_box("7rem"))
        self.canaries = widgets.IntText(canaries, description="canaries m", **_box("9.5rem"))
        self.runs = widgets.IntText(runs, description="runs", **_box("7rem"))
        self.words, self.command = widgets.HTML(), command_box(2)
        self.figures = [theme.live(draw()) for draw in (audits_figures.tallies_figure, audits_figures.runs_figure)]
        inputs = [self.variant.row, self.z0, self.num_devices, self.epochs, self.canaries, self.runs]
        super().__init__(
            "<h3>Audit a run</h3>What am I looking at? Real training runs of a model with one layer, full of canaries: "
            "how many guesses about the last run were right, and what each run proves about ε.",
            inputs,
            [
                side_by_side(*(theme.framed(figure) for figure in self.figures)),
                self.words,
                last_command(self.command),
            ],
        )

    def prepare(self) -> tuple[list[TrainConfig], int]:
        if not 1 <= self.runs.value <= 100:
            raise UsageError(f"the number of runs is {self.runs.value}: it must be a whole number from 1 to 100")
        settings = (self.variant.value, self.z0.value, self.num_devices.value, self.epochs.value, audits.DELTA)
        seeds = range(self._seed, self._seed + self.runs.value)
        return [audits.one_run_config(*settings, seed) for seed in seeds], self.canaries.value

    def work(self, task: tuple[list[TrainConfig], int]) -> None:
        """One audit after the other, each with a seed of its own."""
        configs, canaries = task
        self.audits = {}
        for number_, config in enumerate(configs):
            if self.stopping:
                break
            self._one(config, canaries, number_, len(configs))

    def _one(self, config: TrainConfig, canaries: int, done: int, of: int) -> None:
        def progress(step: int, steps: int) -> None:
            if self.stopping:
                raise StoppedError
            self.progress(done * steps + step, of * steps, f"run {done + 1} of {of}: step {step} of {steps}")

        try:
            audit = audit_one_run(config, canaries, linear=True, progress=progress)
        except StoppedError:
            return
        self.audits[config.seed] = audit
        audits_figures.update_tallies(self.figures[0], audit, config.seed)
        audits_figures.update_runs(self.figures[1], self.audits)
        self.words.value = audits_words.runs_in_words(self.audits)
        self.command.value = audits_words.one_run_command(config, canaries)


def _box(width: str) -> dict[str, Any]:
    return {"style": WHOLE_LABEL, "layout": {"width": width}}
