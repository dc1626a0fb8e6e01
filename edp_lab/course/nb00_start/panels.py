"""Panels of ``00_start.ipynb``: extract a number, take a noisy step, test a claim, and train a private model.

model = SmallModel(config, epochs=4)               # trained once, without noise
read = model.secrets[16]                           # attack on a number that occurs 16 times in the training set
result = model.step(config)                        # no side effects
tested = challenge(as_printed=True, z0=1.0, num_devices=8)
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from edp_lab.attacks.canaries import AROUND, DIGITS, draw_canaries, filling_losses
from edp_lab.attacks.step_audit import StepAudit, StepNoise
from edp_lab.corpora.catalog import load_corpus
from edp_lab.corpora.corpus import split
from edp_lab.corpora.smart_home import generate, write_jsonl
from edp_lab.course.kit import audits, theme
from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import DELTA, attacked_mechanism, choice, decades, devices, number, variant
from edp_lab.course.kit.figure import Figure, axis, bar, line, log_range, logs, points, positive
from edp_lab.course.kit.panel import Panel, panel
from edp_lab.course.kit.runs import RunPanel, Runs
from edp_lab.course.kit.text import Html, Tile, Words, at_most, command, epsilons, holds, plain, short, train_command
from edp_lab.course.kit.theme import NOISE, OTHER, PLAIN, PRINTED
from edp_lab.errors import UsageError
from edp_lab.jobs import RESULTS, read_kept
from edp_lab.privacy import Guarantee, Mechanism, judge
from edp_lab.privacy.csprng import Purpose, dropout_key, stream
from edp_lab.training.certificate import check_certificate
from edp_lab.training.config import TrainConfig
from edp_lab.training.dp_step import noise_stds, release
from edp_lab.training.gradients import StackedGradients, stacked_gradients
from edp_lab.training.noise import float_noise
from edp_lab.training.recipe import Plan, plan
from edp_lab.training.run_files import EpochDone, Event
from edp_lab.training.session import train
from edp_lab.training.trainer import Trainer

words = Words(__file__)
figure = partial(fig.figure, height=430)

TIMES = (0, 1, 4, 16)  # copies of a number in the training set
NUMBERS = 10_000  # candidates: the hidden numbers and others


class Secret(NamedTuple):
    """A personal number, and its rank by the model's loss among all candidates."""

    times: int  # occurrences in the training set
    number: str  # seven digits
    loss: float  # the model's loss on this number
    losses: np.ndarray  # shape (F,): the losses on all candidates, including this number
    rank: int  # rank of `loss` among `losses`; 1 is the smallest loss


class StepResult(NamedTuple):
    """One step on one batch: L2 norms by layer, and the guarantee of the whole run."""

    config: TrainConfig
    mechanism: Mechanism
    layers: tuple[str, ...]  # names of the parameter tensors
    signal: tuple[float, ...]  # norm of the mean clipped gradient
    noise: tuple[float, ...]  # expected norm of the noise: standard deviation times the square root of the layer's size
    draw: tuple[float, ...]  # norm of one noise sample
    guarantee: Guarantee  # for the whole run and one sentence
    together: float | None  # guaranteed epsilon for all sentences with the most frequent hidden number

    @property
    def ratio(self) -> float:
        """Expected norm of the noise divided by the norm of the signal, over all layers."""
        return math.hypot(*self.noise) / math.hypot(*self.signal)


class SmallModel:
    """A small model that the library trained without noise, and its next batch.

    All slider settings use the same model and batch: only the mechanism differs. All layer scales are 1.

    Args:
        config: initial values of the panels; `plain` turns them into the settings of non-private training.
        epochs: number of training epochs.

    Attributes:
        trainer: creates a run on the same corpus and hidden numbers; `Trainer.epoch` trains it for one epoch.
        secrets: maps each number of copies in the training set to the `Secret` of a number with that many copies.
        on: cached function of the number of devices N: mean gradients of the devices' micro-batches, shape (N, P).
        signal: cached function of the mechanism: norms of the mean clipped gradient by layer.
        noise: standard normal noise of the step, shape (P,); `lengths` are its norms by layer.
        epochs: rows of the model's run record, one per epoch.
    """

    def __init__(self, config: TrainConfig, epochs: int) -> None:
        self.config, corpus = plain(config, epochs), load_corpus(config.corpus)
        data = split(corpus, config.seed)
        self.numbers = draw_canaries(corpus, data.train, TIMES, 2, NUMBERS - 2 * len(TIMES), config.seed)
        data = replace(data, train=(*data.train, *self.numbers.inserted))
        self.trainer = partial(Trainer, corpus=corpus, data=data)
        self._run = self.trainer(self.config)
        self.layout, self.delta = self._run.layout, self._run.delta
        for _ in range(epochs):
            self._run.epoch()
        self.epochs: list[dict[str, Any]] = self._run.record["epochs"]
        self.secrets = self.read(self._run)
        self.noise = float_noise(self._run.key, self._run.progress.step, self.layout.size)
        self.lengths = self._norms(self.noise)
        self.on, self.signal = cache(self._on), cache(self._signal)

    def read(self, run: Trainer) -> dict[int, Secret]:
        """Attack the first hidden number of each number of copies; return the `Secret` by number of copies."""
        hidden = [group[0] for group in self.numbers.utterances.values()]
        texts = [u.tokens for group in self.numbers.utterances.values() for u in group] + [*self.numbers.references]
        losses = filling_losses(run.model, texts, hidden)
        secrets = {}
        for times, utterance, loss in zip(self.numbers.utterances, hidden, losses, strict=True):
            true_loss = loss[texts.index(utterance.tokens)]
            rank = int((loss < true_loss).sum()) + 1
            secrets[times] = Secret(times, _digits(utterance.tokens), float(true_loss), loss, rank)
        return secrets

    def _on(self, num_devices: int) -> Tensor:
        run, data = self._run, self._run.train_data
        examples = stream(run.key, Purpose.SHUFFLE, self.config.epochs).permutation(len(data))[: self.config.batch_size]
        masks = dropout_key(run.key, run.progress.step, False)
        parts = np.array_split(examples, num_devices)
        return stacked_gradients(run.model, data, parts, masks, self.layout).gradients.cpu()

    def step(self, config: TrainConfig) -> StepResult:
        """Compute this model's next step, with the noise of the first epoch of `config`, and the run's guarantee.

        The step releases signal plus noise; only the noise depends on z0. UsageError: plain SGD.
        """
        mechanism = config.mechanism()
        if mechanism is None:
            raise UsageError("plain SGD adds no noise: choose method 'edp-sgd'")
        layout = self.layout
        signal = self.signal(replace(mechanism, z0=1.0))
        stds = noise_stds(mechanism, 0, None, mechanism.num_devices, len(layout.names))
        noise = tuple(
            std * math.sqrt(columns.stop - columns.start) for std, columns in zip(stds, layout.columns, strict=True)
        )
        draw = tuple(std * norm for std, norm in zip(stds, self.lengths, strict=True))
        bill = partial(judge, mechanism, config.epochs, self.delta)
        together = bill(utterances_per_person=max(TIMES)).conditional_epsilon
        return StepResult(config, mechanism, layout.names, signal, noise, draw, bill(), together)

    def _signal(self, mechanism: Mechanism) -> tuple[float, ...]:
        """Norms by layer of the mean clipped gradient: what `release` returns for zero noise."""
        rows = [StackedGradients(self.on(mechanism.num_devices), self.layout)]
        return self._norms(release(mechanism, 0, rows, self.layout, None, torch.zeros_like(self.noise)).gradient)

    def _norms(self, gradient: Tensor) -> tuple[float, ...]:
        each = (torch.linalg.vector_norm(gradient[columns], dtype=torch.float64) for columns in self.layout.columns)
        return tuple(norm.item() for norm in each)


def _digits(tokens: Sequence[str]) -> str:
    """Convert "call my doctor at nine one six two zero four seven" to "916 2047"."""
    number = "".join(str(DIGITS.index(token)) for token in tokens[len(AROUND) :])
    return f"{number[:3]} {number[3:]}"


# ---- One step, and training with its noise -------------------------------------------------------------------------


@panel("00")
class Step(Panel, Runs):
    """Panel on one step; Run trains with the slider values (initially those of `start`) and repeats the attack.

    Attributes:
        result: a `StepResult`.
        rows: rows of the run record so far, by method.
        trained: configuration of the last finished run, or None.
        secret: what the last trained model reveals about the number with the most copies.
    """

    def __init__(self, model: SmallModel, start: TrainConfig) -> None:
        self._model, self._start = model, start
        self.rows: dict[str, list[dict[str, Any]]] = {"sgd": list(model.epochs), "edp-sgd": []}
        self.trained: TrainConfig | None = None
        self.secret = model.secrets[max(TIMES)]
        super().__init__(
            "One step, and training with the same noise",
            "Signal (the clipped mean) and noise of one eDP-SGD step. Run trains with this noise, then attacks again.",
            lambda **values: model.step(replace(start, **values)),
            [draw_layers, lambda _: draw_errors(self.rows)],
            words.step,
            lambda result, **_: train_command(result.config),
            tiles=self._tell,
            joint=("as_printed", "z0", "num_devices"),
            as_printed=variant(start.as_printed),
            clip_norm=number("clip norm C", start.clip_norm, decades(-2, 2), unit="gradient norm"),
            z0=number("noise multiplier z0", start.z0, decades(-3, 1)),
            num_devices=devices(start.num_devices),
        )

    def _tell(self, result: StepResult) -> tuple[Tile, Tile, str]:
        """Return tiles with both epsilons of the run, and a sentence on the step's noise and the last run."""
        before, run = self._model.secrets[max(TIMES)].rank, "Press Run to train with these values."
        if self.trained is not None:
            c, kind = self.trained, "as printed" if self.trained.as_printed else "sound"
            run = (
                f"Last run ({kind}, C = {short(c.clip_norm)}, z0 = {short(c.z0)}, N = {c.num_devices}): "
                f"SER {self.rows['edp-sgd'][-1]['ser']:.2f}, rank of the number {self.secret.rank:,}. "
                f"Without noise: SER {self.rows['sgd'][-1]['ser']:.2f}, rank {before:,}."
            )
        return *epsilons(result.guarantee), f"The noise has {short(result.ratio)} times the norm of the signal. {run}"

    def prepare(self) -> TrainConfig:
        return replace(self._start, **self.values)

    def work(self, config: TrainConfig) -> None:
        run = self._model.trainer(config)
        self.trained, self.rows["edp-sgd"] = None, run.record["epochs"]

        def listen(event: Event) -> None:
            self.heed_stop()
            self.progress_of(event)

        while run.progress.epoch < config.epochs:
            run.epoch(listen)
            self.figures[1].show(draw_errors(self.rows))
        self.secret, self.trained = self._model.read(run)[self.secret.times], config
        self.set()


TOTAL = Html("<b>all layers</b>")


def draw_layers(result: StepResult) -> Figure:
    """Plot the norms of the mean clipped gradient, the expected noise and one noise sample, by layer on a log axis."""
    rows = [*map(theme.layer_name, result.layers), TOTAL]
    lengths = (result.signal, result.noise, result.draw)
    signal, noise, draw = (positive([*norms, math.hypot(*norms)]) for norms in lengths)
    gaps: dict[str, Any] = {**fig.gaps(signal, noise, rows), "hoverinfo": "skip", "showlegend": False}
    order = [theme.layer_name(name) for name in theme.reading_order(result.layers)]
    rising = {"categoryorder": "array", "categoryarray": [TOTAL, *order[::-1]], "tickfont": {"size": 12}}
    return figure(
        "Signal and noise of one step, by layer",
        line("", "#bbb", width=2, **gaps),
        points("signal", PLAIN, "circle", 11, edge=2, x=signal, y=rows),
        points("noise", NOISE, "diamond-open", 13, edge=2, x=noise, y=rows),
        points("one sample of the noise", NOISE, "x-thin-open", 7, edge=2, x=draw, y=rows),
        fig.hline(0.5, line={"color": "#888", "width": 1}),
        hover="%{y}: %{x:.3g}",
        xaxis=logs("norm of the gradient or the noise", log_range([*signal, *noise, *draw], 0.1)),
        yaxis=axis("layer", **rising, showgrid=False, ticks=""),
    )


# ---- A number, read out of a model -----------------------------------------------------------------------------------


@panel("00")
def read(model: SmallModel) -> Panel:
    """Panel on an attack that reads a number out of the model: `result` is a `Secret`."""
    times = {str(times): times for times in TIMES}
    return Panel(
        "Read a number out of a model",
        "Loss on 10,000 numbers in “call my doctor at …”. A memorised number has a small loss.",
        lambda times: model.secrets[times],
        [draw_secret],
        words.secret,
        lambda result, **_: "edp-lab attack canaries --methods sgd --repetitions 0,1,4,16 --canaries 2",
        tiles=tell_secret,
        times=choice("times in the data", 16, times),
    )


def tell_secret(result: Secret) -> tuple[Tile, Tile, str]:
    """Return tiles with the number and its rank by loss, and a sentence on the attack."""
    of = f"of {len(result.losses):,}; rank 1 has the smallest loss"
    truth = Tile("true number", result.number, "known only to its owner")
    place = Tile("rank by loss", f"{result.rank:,}", of)
    if result.rank == 1:
        return truth, place._replace(role="printed"), "The model reveals the number: no other has a smaller loss."
    if 20 * result.rank <= len(result.losses):
        by_chance = len(result.losses) // 2
        sentence = f"An attacker with this list needs {result.rank:,} guesses, compared with {by_chance:,} by chance."
        return truth, place._replace(role="printed"), sentence
    return truth, place, "This attack does not find the number."


def draw_secret(result: Secret) -> Figure:
    """Plot a histogram of the losses on all numbers, and mark the loss on the true number."""
    shares, edges = np.histogram(result.losses, 60)
    middle, width = (edges[1:] + edges[:-1]) / 2, float(edges[1] - edges[0])
    left = result.loss > (edges[0] + edges[-1]) / 2
    return figure(
        "Loss of the true number and of other numbers",
        bar("other numbers", PLAIN, x=middle, y=shares, width=width, hover="loss %{x:.2f}: %{y} numbers"),
        fig.vline(result.loss, line={"color": PRINTED, "width": 3}),
        fig.beside(f"the true number: {result.number}", result.loss, left=left),
        height=330,
        top=40,
        bargap=0,
        showlegend=False,
        xaxis=axis("loss (small if the model has memorised the number)"),
        yaxis=axis("number of candidates", [0, 1.2 * float(shares.max())]),
    )


# ---- A private model by the recipe -----------------------------------------------------------------------------------

SEED, FILE = 45, "commands.jsonl"  # of the generated commands
KEPT = RESULTS / "course_private.json"


@panel("00")
class Private(RunPanel):
    """Train on generated commands for a target epsilon, by the recipe with a secret key, and write a certificate.

    Attributes:
        rows: rows of the current run's record so far; empty before the first Run.
        outcome: SER, epsilon and delta of the last run; initially of the run stored by ``data/results/course.py``.
    """

    def __init__(self, epsilon: float = 3.0, commands: int = 45_000) -> None:
        kept = read_kept(KEPT, "settings", "outcome", "rows")
        self.settings = {"epsilon": epsilon, "commands": commands}
        known = kept["settings"] == self.settings
        self._kept = {"kept": kept["rows"]} if known else {}
        self.rows: list[dict[str, Any]] = []
        super().__init__(
            "A private model by the recipe",
            "Run computes the noise for this epsilon, trains a model, and writes a certificate.",
            [draw_errors(self._kept or {"edp-sgd": []})],
            epsilon=number("guaranteed ε", epsilon, (1.0, 2.0, 3.0, 5.0, 8.0)),
        )
        self.command.value = self._command(epsilon)
        if known:
            self._tell(**kept["outcome"])
            self.tiles.sentence = "This is an earlier run. Press Run to train your own model with a new secret key."

    def _tell(self, ser: float, guaranteed_epsilon: float, delta: float) -> None:
        self.outcome = {"ser": ser, "guaranteed_epsilon": guaranteed_epsilon, "delta": delta}
        source = "Every number in the certificate is computed from the run's ledger."
        held = holds(at_most(guaranteed_epsilon), f"ε at δ = {short(delta)}")
        self.tiles.show(held, Tile("error rate (SER)", f"{ser:.2f}", "on the test set"), source)

    def _command(self, epsilon: float) -> str:
        make = command("data make smart-home", {"utterances": self.settings["commands"], "seed": SEED, "out": FILE})
        return f"{make}\n{command('train', {'corpus': FILE, 'epsilon': epsilon, 'out': 'runs/mine'})}"

    def prepare(self) -> float:
        return float(self.values["epsilon"])

    def work(self, epsilon: float) -> None:
        self.rows.clear()
        commands = self.settings["commands"]
        with tempfile.TemporaryDirectory(prefix="edp-lab-") as folder:
            self.progress(0, 1, f"generating {commands:,} commands")
            write_jsonl(generate(int(commands), SEED), Path(folder) / FILE)
            self.progress(0, 1, "computing the noise")
            made = plan(f"{folder}/{FILE}", epsilon)
            self.words.value = words.planned(made)
            self.command.value = self._command(epsilon)
            self._train(made, Path(folder) / "run")

    def _train(self, made: Plan, folder: Path) -> None:
        def listen(event: Event) -> None:
            self.progress_of(event)
            if isinstance(event, EpochDone):
                self.rows.append(event.row)
                self.figures[0].show(draw_errors(self._kept | {"edp-sgd": self.rows}))

        record = train(made.config, folder, listen, self.stop_event)
        if record["status"] == "interrupted":
            self.words.value = "Stopped: no certificate was written, but the completed steps count toward ε."
            return
        self._tell(record["final"]["ser"], record["final"]["guaranteed_epsilon"], made.delta)
        self.words.value = words.certified(check_certificate(folder), made)


METHODS = {
    "sgd": ("without privacy", PLAIN, "solid", "circle"),
    "edp-sgd": ("with noise", NOISE, "dash", "diamond"),
    "kept": ("earlier run with noise", OTHER, "dot", "diamond-open"),
}


def draw_errors(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Plot the validation SER by epoch for each method, from the rows of its run record."""
    lines = []
    for method, done in rows.items():
        name, color, dash, symbol = METHODS[method]
        values = [row["ser"] for row in done]
        on = {"x": list(range(1, len(values) + 1)), "y": values, "hover": "epoch %{x}: SER %{y:.3f}"}
        lines.append(line(name, color, dash, symbol=symbol, size=9, **on))
    worst = max((row["ser"] for done in rows.values() for row in done), default=1.0)
    return figure(
        "Error rate by epoch",
        *lines,
        height=330,
        top=56,
        xaxis=axis("epochs trained", tickformat="d", rangemode="tozero"),
        yaxis=axis("SER on the validation set", [0, 1.05 * max(worst, 1.0)]),
    )


# ---- A test of the claimed epsilon -----------------------------------------------------------------------------------

ROUNDS = 5_000  # draws of a step without the sentence, and as many with it
step_noise = cache(partial(StepNoise, 0, ROUNDS))  # slow, so drawn once


def challenge(as_printed: bool, z0: float, num_devices: int) -> StepAudit:
    """Test the claimed epsilon of one step at clip norm 1 and delta 1e-5, as `edp-lab audit mechanism` does.

    Guarantee: the lower bound on epsilon is correct with probability 95 % if the noise is as good as random.
    UsageError: the claimed epsilon is not finite; see also `Mechanism`.
    """
    return step_noise().audit(attacked_mechanism(as_printed, 1.0, z0, num_devices), DELTA, ROUNDS)


@panel("00")
def refute(as_printed: bool = True, z0: float = 1.0, num_devices: int = 8) -> Panel:
    """Panel that tests the claimed epsilon of one step: `result` is a `StepAudit`."""
    return Panel(
        "Test the claim",
        "The release of one step, drawn 5,000 times without a sentence and 5,000 times with it.",
        challenge,
        [audits.draw_step],
        words.refute,
        audits.step_command,
        tiles=audits.tell_step,
        joint=("as_printed", "z0", "num_devices"),
        as_printed=variant(as_printed),
        z0=number("noise multiplier z0", z0, decades(-1, 1)),
        num_devices=devices(num_devices),
    )
