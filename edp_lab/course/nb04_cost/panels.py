"""The panels of ``04_what_does_it_cost.ipynb``: a run's bill, privacy losses, sampling (one is slow), Table 1."""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets

from edp_lab.course.kit import theme
from edp_lab.course.kit.controls import Control, choice, decades, number
from edp_lab.course.kit.old_panel import FigurePanel, Picture
from edp_lab.course.kit.panel import COPY, command_box
from edp_lab.course.kit.run_panel import RunPanel
from edp_lab.course.nb04_cost import compute as cost
from edp_lab.course.nb04_cost import figures as cost_figures
from edp_lab.course.nb04_cost import table1_cells as cost_table1
from edp_lab.course.nb04_cost import words as cost_words
from edp_lab.course.nb04_cost.compute import Account, Sampled
from edp_lab.privacy import Decay
from edp_lab.reproduce.paper.printed import TABLE_1

NATS, EPOCHS = "nats", [*range(1, 41), 45, 50, 60, 80, 100, 120]
WHOLE_DECADES = [int(stop) for stop in decades(0, 5) if stop.is_integer()]


def bill_panel(
    C: float, z0: float, decay: str, tau: float, num_devices: int, epochs: int, delta: float, target: float
) -> FigurePanel:
    """What a run costs by three accounts: `result` is a `cost.RunBill`."""
    controls = {
        "variant": choice(
            "variant",
            cost.AS_PRINTED,
            {name: name for name in cost.VARIANTS},
            tooltips=[
                "Algorithm 1 of the paper, verbatim: α from private gradients",
                "the same, with α from public text",
                "noise in proportion to the true sensitivity",
            ],
        ),
        "clip_norm": number("clip norm C", C, decades(-2, 2), unit="gradient norm"),
        "z0": number("noise multiplier z0", z0, decades(-6, 2), unit="no unit"),
        "decay": choice("decay of the noise", decay, {str(kind): str(kind) for kind in Decay}),
        "tau": number("decay rate τ", tau, [k / 100 for k in range(101)], unit="per epoch"),
        "num_devices": number("GPUs N", num_devices, [1, 2, 4, 8, 16, 32], unit="devices"),
        "epochs": number("length T of the run", epochs, EPOCHS, unit="epochs"),
        "delta": number("δ", delta, decades(-12, -1), unit="probability"),
        "utterances": number("utterances of a person", 1, [1, 2, 3, 5, 10, 20, 50, 100], unit="utterances"),
        "target": number("target ε", target, decades(-1, 3), unit=NATS),
    }

    def show_tau(result: cost.RunBill, **_: Any) -> str:
        controls["tau"].disable(result.mechanism.decay is Decay.NONE)
        return cost_words.bill_command(result)

    return FigurePanel(
        "<h3>The bill of a run</h3>What am I looking at? First, the privacy loss after each epoch: claimed, bounded "
        "and exact; then, the noise of each epoch, and its share of the bill.",
        controls,
        cost.run_bill,
        cost_words.bill_in_words,
        show_tau,
        [
            Picture(cost_figures.bill_figure, cost_figures.update_bill),
            Picture(cost_figures.spend_figure, cost_figures.update_spend),
        ],
    )


def loss_panel(mu: float, epochs: int, delta: float, draws: int, seed: int) -> FigurePanel:
    """Privacy losses, and what an attacker makes of them: `result` is a `cost.Loss`."""
    controls = {
        "mu": number("μ of one epoch", mu, decades(-2, 1), unit="no unit"),
        "releases": number("epochs", epochs, EPOCHS, unit="epochs"),
        "delta": number("δ", delta, decades(-12, -1), unit="probability"),
        "draws": number("simulated runs", draws, [50, 100, 200, 500, 1000, 2000, 5000], unit="with, without"),
        "seed": number("seed", seed, range(21), unit="another draw"),
    }
    return FigurePanel(
        "<h3>Privacy losses and attacks</h3>What am I looking at? First, how much all releases together betray of one "
        "utterance, and δ for each ε; then, the errors that this forces upon any attacker.",
        controls,
        cost.privacy_loss,
        cost_words.loss_in_words,
        lambda result, **_: cost_words.loss_command(result),
        [
            Picture(cost_figures.loss_figure, cost_figures.update_loss),
            Picture(cost_figures.tradeoff_figure, cost_figures.update_tradeoff),
        ],
    )


def sampling_panel(rate: float, noise_multiplier: float, steps: int, delta: float) -> FigurePanel:
    """Poisson sampling beside shuffled batches: `result` is a `cost.Sampled`."""
    controls = {
        "rate": number("sampling rate q", rate, decades(-4, 0), unit="of the corpus"),
        "noise_multiplier": number("noise multiplier z", noise_multiplier, decades(-1, 1), unit="no unit"),
        "steps": number("steps", steps, WHOLE_DECADES, unit="steps"),
        "delta": number("δ", delta, decades(-12, -1), unit="probability"),
    }
    return FigurePanel(
        "<h3>Sampling</h3>What am I looking at? First, what the same noise costs, step by step, under three ways to "
        "make batches; then, why a secret sample hides an utterance.",
        controls,
        cost.sampling,
        cost_words.sampled_in_words,
        lambda result, **_: cost_words.sampled_command(result),
        [
            Picture(cost_figures.sampled_figure, cost_figures.update_sampled),
            Picture(cost_figures.output_figure, cost_figures.update_output),
        ],
    )


class TightPanel(RunPanel):
    """The sampling panel's run by slow accounts, too; only Run starts any work.

    Attributes:
        accounts: of the last run.
    """

    def __init__(self, settings: FigurePanel) -> None:
        self._settings = settings
        self.accounts: list[Account] = []
        self.words, self.command = widgets.HTML(), command_box(2)
        self.figure = theme.live(cost_figures.accounts_figure())
        super().__init__(
            "<h3>Sharper, but slower</h3>What am I looking at? The run of the panel above by four accounts, and how "
            "long each of them thought about it.",
            [],
            [theme.framed(self.figure, "1 1 auto"), self.words, widgets.HTML(COPY), self.command],
        )

    def prepare(self) -> Sampled:
        return cost.sampling(**self._settings.values)

    def work(self, task: Sampled) -> None:
        self.accounts, self.words.value = [], ""
        self.progress(0, 4, "counting")
        for account in cost.tight_accounts(task):
            self.accounts.append(account)
            self.progress(len(self.accounts), 4, account.name)
            cost_figures.update_accounts(self.figure, self.accounts, task)
            if self.stopping:
                return
        self.words.value = cost_words.accounts_in_words(self.accounts)
        self.command.value = cost_words.sampled_command(task, tight=True)


def table1_panel(epochs: int) -> FigurePanel:
    """What may lie behind the printed epsilons: `result` is a `cost_table1.Behind`."""
    models, corpora = (list(dict.fromkeys(getattr(row, what) for row in TABLE_1)) for what in ("model", "corpus"))
    for kind in Decay:  # searched once, so that no slider waits
        cost_table1.behind(models[0], corpora[0], kind, epochs)
    controls: dict[str, Control] = {
        "model": choice("model", models[0], {name: name for name in models}),
        "corpus": choice("corpus", corpora[0], {name: name for name in corpora}),
        "decay": choice("decay", Decay.EXPONENTIAL, {str(kind): kind for kind in Decay}),
        "epochs": number("number of epochs T", epochs, range(1, 121), unit="epochs"),
    }
    return FigurePanel(
        "<h3>Table 1, decoded</h3>What am I looking at? First, how many printed ε some z0 and τ of the paper's grid "
        "explain with T epochs; then, for one cell, which z0; last, what all cells really are.",
        controls,
        cost_table1.behind,
        cost_words.behind_in_words,
        lambda result, **_: cost_words.behind_command(result),
        [
            Picture(cost_figures.reach_figure, cost_figures.update_reach),
            Picture(cost_figures.settings_figure, cost_figures.update_settings),
            Picture(cost_figures.cells_figure, cost_figures.update_cells, "1 1 100%"),
        ],
    )
