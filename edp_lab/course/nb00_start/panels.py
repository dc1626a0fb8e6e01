"""The panels of ``00_start.ipynb``: extracting a number from a model, one step and training with its noise, testing
a claim, and a private model.

    model = SmallModel(config, epochs=4)               # trained once, by the course's own loop
    read = model.secrets[16]                           # a number that occurs 16 times in its data
    result = model.step(config)                        # pure
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


TIMES = (0, 1, 4, 16)  # numbers of copies in the training set
NUMBERS = 10_000  # hidden numbers and others


class Secret(NamedTuple):
    """A personal number in the training set and other numbers, with the model's loss on each."""

    times: int  # occurrences in the training set
    number: str  # seven digits
    loss: float  # of this number
    losses: np.ndarray  # (F), of this number and all others
    rank: int  # rank of its loss among them; 1 is the smallest


class StepResult(NamedTuple):
    """One step on one batch: L2 norms by layer, and the guarantee of the whole run."""

    config: TrainConfig
    mechanism: Mechanism
    layers: tuple[str, ...]  # names of the parameter tensors
    signal: tuple[float, ...]  # of the mean clipped gradient
    noise: tuple[float, ...]  # expected norm of its noise: standard deviation times square root of the layer's size
    draw: tuple[float, ...]  # norm of one draw of that noise
    guarantee: Guarantee  # of the whole run, for one sentence
    together: float | None  # guaranteed epsilon for all sentences with the number that is hidden most often

    @property
    def ratio(self) -> float:
        """Expected noise divided by signal, over all layers together."""
        return math.hypot(*self.noise) / math.hypot(*self.signal)


class SmallModel:
    """A small model, trained without noise by the library's loop, and its next batch.

    All settings of the sliders use the same model and batch, so that only the mechanism differs. All layer
    scales are 1.

    Args:
        config: the panels' initial values; `plain` derives the model's own run from it.
        epochs: number of training epochs.

    Attributes:
        secrets: what the model reveals of a number, by its copies in the training set.
        on: for N devices, the mean gradient of each device's micro-batch (N, P); computed once per N.
        noise: (P) standard normal draws of the step.
        epochs: the rows of its run record.
    """

    def __init__(self, config: TrainConfig, epochs: int) -> None:
        self.config = plain(config, epochs)
        self._run = self.trainer(self.config)
        self.layout, self.delta = self._run.layout, self._run.delta
        for _ in range(epochs):
            self._run.epoch()
        self.epochs: list[dict[str, Any]] = self._run.record["epochs"]
        self.secrets = self.read(self._run)
        self.noise = float_noise(self._run.key, self._run.progress.step, self.layout.size)
        self.on = cache(self._on)

    def trainer(self, config: TrainConfig) -> Trainer:
        """A run on the same corpus, with the same hidden numbers; `Trainer.epoch` trains it."""
        corpus = load_corpus(config.corpus)
        data = split(corpus, config.seed)
        self.numbers = draw_canaries(corpus, data.train, TIMES, 2, NUMBERS - 2 * len(TIMES), config.seed)
        return Trainer(config, corpus, replace(data, train=(*data.train, *self.numbers.inserted)))

    def read(self, run: Trainer) -> dict[int, Secret]:
        """What a trained model reveals of the first number of each kind."""
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
        """The next step of this model, by the first epoch of `config`, and the guarantee of the whole run.

        The step releases signal + noise; `release` without noise gives the signal. UsageError: plain SGD.
        """
        mechanism = config.mechanism()
        if mechanism is None:
            raise UsageError("plain SGD adds no noise: choose method 'edp-sgd'")
        layout = self.layout
        rows = [StackedGradients(self.on(mechanism.num_devices), layout)]
        signal = release(mechanism, 0, rows, layout, None, torch.zeros_like(self.noise)).gradient
        stds = noise_stds(mechanism, 0, None, mechanism.num_devices, len(layout.names))
        sizes = torch.tensor([columns.stop - columns.start for columns in layout.columns])
        spread = torch.tensor(stds).repeat_interleave(sizes)  # (P), of the noise on every weight

        def norms(gradient: Tensor) -> tuple[float, ...]:
            each = (torch.linalg.vector_norm(gradient[columns], dtype=torch.float64) for columns in layout.columns)
            return tuple(norm.item() for norm in each)

        lengths = norms(signal), norms(spread), norms(spread * self.noise)
        bill = partial(judge, mechanism, config.epochs, self.delta)
        together = bill(utterances_per_person=max(TIMES)).conditional_epsilon
        return StepResult(config, mechanism, layout.names, *lengths, bill(), together)


def _digits(tokens: Sequence[str]) -> str:
    """``call my doctor at nine one six two zero four seven`` -> "916 2047"."""
    number = "".join(str(DIGITS.index(token)) for token in tokens[len(AROUND) :])
    return f"{number[:3]} {number[3:]}"


# ---- One step, and training with its noise -------------------------------------------------------------------------


@panel("00")
class Step(Panel, Runs):
    """One step, with sliders that start at the values of `start`; Run trains with them and repeats the attack.

    Attributes:
        result: a `StepResult`.
        rows: by method, the rows of the run record so far.
        trained: the configuration of the last finished run.
        secret: what the last trained model reveals of the number with most copies.
    """

    def __init__(self, model: SmallModel, start: TrainConfig) -> None:
        self._model, self._start = model, start
        self.rows: dict[str, list[dict[str, Any]]] = {"sgd": list(model.epochs), "edp-sgd": []}
        self.trained: TrainConfig | None = None
        self.secret = model.secrets[max(TIMES)]
        super().__init__(
            "One step, and training with its noise",
            "Signal and noise of one step of eDP-SGD, by layer. Run trains with these values and repeats the attack.",
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
        """Both epsilons of the run, the noise of the step, and the result of the last run."""
        before, run = self._model.secrets[max(TIMES)].rank, "Press Run to train with these values."
        if self.trained is not None:
            c, kind = self.trained, "as printed" if self.trained.as_printed else "sound"
            run = (
                f"Last run ({kind}, C = {short(c.clip_norm)}, z0 = {short(c.z0)}, N = {c.num_devices}): "
                f"SER {self.rows['edp-sgd'][-1]['ser']:.2f}, rank of the number {self.secret.rank:,}; "
                f"without noise {self.rows['sgd'][-1]['ser']:.2f} and {before:,}."
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
    """Per layer, on a log axis: the mean clipped gradient, the expected noise on it, and one draw of the noise."""
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
        points("one draw of it", NOISE, "x-thin-open", 7, edge=2, x=draw, y=rows),
        fig.hline(0.5, line={"color": "#888", "width": 1}),
        hover="%{y}: %{x:.3g}",
        xaxis=logs("norm of the gradient, or noise", log_range([*signal, *noise, *draw], 0.1)),
        yaxis=axis("layer", **rising, showgrid=False, ticks=""),
    )


# ---- A number, read out of a model -----------------------------------------------------------------------------------


@panel("00")
def read(model: SmallModel) -> Panel:
    """What the model reveals about a number in its training data: `result` is a `Secret`."""
    times = {str(times): times for times in TIMES}
    return Panel(
        "Read a number out of a model",
        "Ten thousand numbers in “call my doctor at …”. The smaller a number's loss, the likelier the model finds it.",
        lambda times: model.secrets[times],
        [draw_secret],
        words.secret,
        lambda result, **_: "edp-lab attack canaries --methods sgd --repetitions 0,1,4,16 --canaries 2",
        tiles=tell_secret,
        times=choice("times in the data", 16, times),
    )


def tell_secret(result: Secret) -> tuple[Tile, Tile, str]:
    """The number, and its rank among ten thousand."""
    of = f"of {len(result.losses):,}; 1 has the smallest loss"
    truth = Tile("true number", result.number, "only its owner knows it")
    place = Tile("its rank", f"{result.rank:,}", of)
    if result.rank == 1:
        return truth, place._replace(role="printed"), "The model reveals the number: it prefers it to all others."
    if 20 * result.rank <= len(result.losses):
        sentence = f"An attacker with this list needs {result.rank:,} guesses; by chance, {len(result.losses) // 2:,}."
        return truth, place._replace(role="printed"), sentence
    return truth, place, "This attack does not find the number."


def draw_secret(result: Secret) -> Figure:
    """A histogram of the losses of all numbers, and the true number's loss."""
    shares, edges = np.histogram(result.losses, 60)
    middle, width = (edges[1:] + edges[:-1]) / 2, float(edges[1] - edges[0])
    left = result.loss > (edges[0] + edges[-1]) / 2
    return figure(
        "Loss of the true number, and of others",
        bar("other numbers", PLAIN, x=middle, y=shares, width=width, hover="loss %{x:.2f}: %{y} numbers"),
        fig.vline(result.loss, line={"color": PRINTED, "width": 3}),
        fig.beside(f"the true number: {result.number}", result.loss, left=left),
        height=330,
        top=40,
        bargap=0,
        showlegend=False,
        xaxis=axis("loss (small: the model knows the number)"),
        yaxis=axis("how many numbers", [0, 1.2 * float(shares.max())]),
    )


# ---- A private model by the recipe -----------------------------------------------------------------------------------

SEED, FILE = 45, "commands.jsonl"  # of the commands
KEPT = RESULTS / "course_private.json"


@panel("00")
class Private(RunPanel):
    """Trains on generated commands for an epsilon, by the recipe with a secret key; finishes with a certificate.

    Attributes:
        rows: the run's record so far; before the first Run, that of the run from ``data/results/course.py``.
        outcome: error, epsilon and delta of the last finished run.
    """

    def __init__(self, epsilon: float = 3.0, commands: int = 45_000) -> None:
        kept = read_kept(KEPT, "settings", "outcome", "rows")
        self.settings = {"epsilon": epsilon, "commands": commands}
        known = kept["settings"] == self.settings
        self._kept = {"kept": kept["rows"]} if known else {}
        self.rows: list[dict[str, Any]] = []
        super().__init__(
            "A private model by the recipe",
            "Run computes the noise for this epsilon, trains by the recipe, and writes a certificate.",
            [draw_errors(self._kept or {"edp-sgd": []})],
            epsilon=number("guaranteed ε", epsilon, (1.0, 2.0, 3.0, 5.0, 8.0)),
        )
        self.command.value = self._command(epsilon)
        if known:
            self._tell(**kept["outcome"])
            self.tiles.sentence = "This is an earlier run. Press Run to train your own, with a new secret key."

    def _tell(self, ser: float, guaranteed_epsilon: float, delta: float) -> None:
        self.outcome = {"ser": ser, "guaranteed_epsilon": guaranteed_epsilon, "delta": delta}
        source = "Every number of the certificate is computed from the run's ledger."
        held = holds(at_most(guaranteed_epsilon), f"ε at δ = {short(delta)}")
        self.tiles.show(held, Tile("errors (SER)", f"{ser:.2f}", "on the test set"), source)

    def _command(self, epsilon: float) -> str:
        make = command("data make smart-home", {"utterances": self.settings["commands"], "seed": SEED, "out": FILE})
        return f"{make}\n{command('train', {'corpus': FILE, 'epsilon': epsilon, 'out': 'runs/private'})}"

    def prepare(self) -> float:
        return float(self.values["epsilon"])

    def work(self, epsilon: float) -> None:
        self.rows.clear()
        commands = self.settings["commands"]
        with tempfile.TemporaryDirectory(prefix="edp-lab-") as folder:
            self.progress(0, 1, f"generates {commands:,} commands")
            write_jsonl(generate(int(commands), SEED), Path(folder) / FILE)
            self.progress(0, 1, "computes the noise")
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
            self.words.value = "Stopped: there is no certificate, but the steps so far count toward ε."
            return
        self._tell(record["final"]["ser"], record["final"]["guaranteed_epsilon"], made.delta)
        self.words.value = words.certified(check_certificate(folder), made)


METHODS = {
    "sgd": ("without privacy", PLAIN, "solid", "circle"),
    "edp-sgd": ("with noise", NOISE, "dash", "diamond"),
    "kept": ("an earlier run, with noise", OTHER, "dot", "diamond-open"),
}


def draw_errors(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """SER on the validation set by epoch, without privacy and with noise; the rows of a run record by method."""
    lines = []
    for method, done in rows.items():
        name, color, dash, symbol = METHODS[method]
        values = [row["ser"] for row in done]
        on = {"x": list(range(1, len(values) + 1)), "y": values, "hover": "epoch %{x}: SER %{y:.3f}"}
        lines.append(line(name, color, dash, symbol=symbol, size=9, **on))
    worst = max((row["ser"] for done in rows.values() for row in done), default=1.0)
    return figure(
        "Errors by epoch",
        *lines,
        height=330,
        top=56,
        xaxis=axis("epochs trained", tickformat="d", rangemode="tozero"),
        yaxis=axis("SER on the validation set", [0, 1.05 * max(worst, 1.0)]),
    )


# ---- A test of the claimed epsilon -----------------------------------------------------------------------------------

ROUNDS = 5_000  # draws of a step without the sentence, and the same number with it


def challenge(as_printed: bool, z0: float, num_devices: int) -> StepAudit:
    """Test the claimed epsilon of one step at clip norm 1 and delta 1e-5, as `edp-lab audit mechanism` does.

    Guarantee: the lower bound on epsilon holds with probability 95 % if the noise is as good as random. UsageError: no
    finite claim; see also `Mechanism`.
    """
    return _step_noise().audit(attacked_mechanism(as_printed, 1.0, z0, num_devices), DELTA, ROUNDS)


@cache
def _step_noise() -> StepNoise:
    return StepNoise(0, ROUNDS)


@panel("00")
def refute(as_printed: bool = True, z0: float = 1.0, num_devices: int = 8) -> Panel:
    """One step, drawn without a sentence and with it: `result` is a `StepAudit`."""
    return Panel(
        "Test the claim",
        "The release of one step, drawn 5,000 times without one sentence and 5,000 times with it.",
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
