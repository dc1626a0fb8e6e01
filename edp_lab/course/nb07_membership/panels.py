"""The panels of ``07_membership_inference.ipynb``: two that follow their sliders, and one that trains with noise."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import ipywidgets as widgets

from edp_lab.attacks.membership.attacks import Attacked
from edp_lab.attacks.membership.guards import LEAST_MEMBERS
from edp_lab.course.kit import theme
from edp_lab.course.kit.controls import WHOLE_LABEL, choice, decades, number
from edp_lab.course.kit.old_panel import FigurePanel, Picture
from edp_lab.course.kit.panel import command_box, side_by_side
from edp_lab.course.kit.run_panel import RunPanel, last_command
from edp_lab.course.nb07_membership import compute as membership
from edp_lab.course.nb07_membership import figures as membership_figures
from edp_lab.course.nb07_membership import words as membership_words
from edp_lab.course.nb07_membership.compute import CanaryGrid
from edp_lab.course.nb07_membership.measured import METHODS, REPETITIONS, Z0S, Defended, defend
from edp_lab.course.nb07_membership.words import ATTACKS, METHOD_NAMES
from edp_lab.training import StepDone, TrainConfig
from edp_lab.training.trainer import Event

VARIANTS = {"as printed": True, "sound": False}
CALLED = [0.05, 0.1, 0.2, 0.5, *map(float, range(1, 10)), *map(float, range(10, 101, 5))]
DEVICES = [1, 2, 4, 8, 16, 32]


def roc_panel(
    attacks: Mapping[str, Attacked], as_printed: bool, z0: float, num_devices: int, epochs: int
) -> FigurePanel:
    """Attacks as curves, beside the bounds of a mechanism; `result` is a `membership.Shown`."""
    most = len(next(iter(attacks.values())).target.members)
    sizes = [*(n for n in (LEAST_MEMBERS, 100, 200, 500, 1000, 2000) if n < most), most]
    controls = {
        "attack": choice("attack", list(attacks)[-1], {ATTACKS[name]: name for name in attacks}),
        "called": number("call as members", 10.0, CALLED, unit="top % of all"),
        "people": number("members", most, sizes, unit="a side"),
        "as_printed": choice("line of", as_printed, VARIANTS),
        "z0": number("noise multiplier z0", z0, decades(-1, 2), unit="no unit"),
        "num_devices": number("GPUs N", num_devices, DEVICES, unit="devices"),
        "epochs": number("epochs T", epochs, range(1, 41), unit="passes"),
    }
    return FigurePanel(
        "<h3>Who was in the training set?</h3>What am I looking at? First, how many members an attack finds for every "
        "share of strangers it accuses, and what two epsilons would allow; then, the scores behind it.",
        controls,
        partial(membership.show_roc, attacks),
        membership_words.roc_in_words,
        lambda result, **_: membership_words.roc_command(result, attacks[result.attack]),
        [
            Picture(membership_figures.roc_figure, membership_figures.update_roc),
            Picture(membership_figures.scores_figure, membership_figures.update_scores),
        ],
    )


def canary_panel(grid: CanaryGrid, method: str, z0: float, repetitions: int) -> FigurePanel:
    """What models have stored of canaries; `result` is a `membership.Remembered`."""
    controls = {
        "method": choice("method", method, {METHOD_NAMES[name]: name for name in METHODS}),
        "z0": number("noise multiplier z0", z0, Z0S, unit="measured"),
        "repetitions": number("copies of a canary", repetitions, REPETITIONS, unit="times"),
    }
    return FigurePanel(
        "<h3>What does it remember?</h3>What am I looking at? First, how far up a hidden number ranks among ten "
        "thousand others; then, for one canary a row, by how much each token gives it away.",
        controls,
        partial(membership.show_canaries, grid),
        membership_words.canaries_in_words,
        lambda result, **_: membership_words.canaries_command(result),
        [
            Picture(membership_figures.exposure_figure, membership_figures.update_exposure, "2 1 22rem"),
            Picture(membership_figures.tokens_figure, membership_figures.update_tokens, "3 1 30rem"),
        ],
    )


class DefencePanel(RunPanel):
    """Trains with noise and attacks the run; only Run starts any work.

    Args:
        plain: the target without noise: its settings are those of the runs.
        measured: runs that are drawn from the start, `plain`'s own first.

    Attributes:
        runs: what was trained here.
    """

    def __init__(
        self,
        plain: TrainConfig,
        measured: Sequence[Defended],
        as_printed: bool,
        z0: float,
        num_devices: int,
        clip: float,
    ) -> None:
        self._plain = replace(plain, method="edp-sgd", num_devices=num_devices, clip_norm=clip)
        self._measured, self.runs = tuple(measured), list[Defended]()
        self.variant = choice("variant", as_printed, VARIANTS)
        self.z0 = widgets.FloatText(z0, description="z0", style=WHOLE_LABEL, layout={"width": "8rem"})
        self.epochs = widgets.IntText(plain.epochs, description="epochs", style=WHOLE_LABEL, layout={"width": "7rem"})
        self.words, self.command = widgets.HTML(), command_box(3)
        drawn = (membership_figures.epsilon_figure, membership_figures.price_figure)
        self.figures = [theme.live(draw(self._measured)) for draw in drawn]
        super().__init__(
            "<h3>Train it with noise, attack it again</h3>What am I looking at? What the attacks find on runs with "
            "less and more noise, against the ε that holds and against its errors. Run adds yours.",
            [self.variant.row, self.z0, self.epochs],
            [
                side_by_side(*(theme.framed(figure) for figure in self.figures)),
                self.words,
                last_command(self.command),
            ],
        )

    def prepare(self) -> TrainConfig:
        return replace(self._plain, as_printed=self.variant.value, z0=self.z0.value, epochs=self.epochs.value)

    def work(self, config: TrainConfig) -> None:
        """Train, attack, and add the run to the pictures."""
        self.words.value = ""
        with tempfile.TemporaryDirectory(prefix="edp-lab-") as folder:
            run = defend(config, Path(folder) / "run", self._listen, self.stop_event)
        if run is None:
            self.words.value = "<p>Stopped before the model was ready: nothing to attack.</p>"
            return
        self.runs.append(run)
        membership_figures.update_epsilon(self.figures[0], self._measured, self.runs)
        membership_figures.update_price(self.figures[1], self._measured, self.runs)
        self.words.value = membership_words.defended_in_words(run, self._measured[0])
        self.command.value = membership_words.defended_command(config)

    def _listen(self, event: Event) -> None:
        if isinstance(event, StepDone):
            done, of = event.epoch * event.steps + event.step, event.epochs * event.steps
            self.progress(done, of, f"epoch {event.epoch + 1} of {event.epochs}" if done < of else "attacking")
