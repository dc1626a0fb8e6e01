"""One training loop for every method: cut batches, get a gradient, let Adam take the step, write it all down.

    python -m edp_lab train --corpus smart-home --out runs/first

The loop knows nothing of terminals or notebooks; it reports `StepDone` and `EpochDone` events to a callback.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from edp_lab.corpora import Corpus, Split, Utterance, load_corpus, split
from edp_lab.corpora.encoding import Labels
from edp_lab.corpora.metrics import Scores, evaluate
from edp_lab.errors import UsageError
from edp_lab.models import build_model, save_model
from edp_lab.models.intent_slot import IntentSlotModel
from edp_lab.privacy import Alpha, Mechanism, judge
from edp_lab.privacy.noise import Purpose, key_from_seed, stream
from edp_lab.training.config import TrainConfig
from edp_lab.training.gradients import device_gradients, micro_batches, trainable
from edp_lab.training.ledger import LEDGER, Ledger
from edp_lab.training.record import (
    MODEL,
    NOT_PRIVATE,
    RECORD,
    SECRET,
    new_run_folder,
    versions,
    write_record,
    write_secret,
)
from edp_lab.training.step import Layout, layer_norms, layer_scales, release, standard_noise

MOST_SHARED = 0.1  # of "public" utterances that may also be in the training set: short commands coincide


@dataclass(frozen=True)
class StepDone:
    """After each step: `step` of `steps` in this epoch, mean loss of its batch (not private)."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float


@dataclass(frozen=True)
class EpochDone:
    """After each epoch: its row of the run record, and the status of the guarantee so far."""

    epoch: int
    epochs: int
    row: dict[str, Any]
    status: str


Event = StepDone | EpochDone
Listener = Callable[[Event], None]


def train(config: TrainConfig, out: str | Path, listener: Listener = lambda event: None) -> dict[str, Any]:
    """Train one model and return its run record, which also lies in ``out/record.json``.

    A KeyboardInterrupt (Ctrl-C) ends the run early with a usable model and record, ``status`` "interrupted".

    Raises:
        UsageError: bad configuration or corpus, `out` already holds a run (nothing is written then), or a gradient
            that is not finite (what was learnt up to the previous epoch stays).
    """
    folder = new_run_folder(out)
    corpus = load_corpus(config.corpus)
    data = split(corpus, config.seed, keep_duplicates_together=config.keep_duplicates_together)
    run = Run(config, corpus, data)
    with run.recorded_in(folder):
        _train(run, config, folder, listener)
    return run.record


def _train(run: Run, config: TrainConfig, folder: Path, listener: Listener) -> None:
    try:
        for epoch in range(config.epochs):
            run.epoch(epoch, listener)
            run.save(folder, "running")
        run.finish()
        run.save(folder, "finished")
    except KeyboardInterrupt:
        run.bill()
        run.save(folder, "interrupted")
        run.finish()
        run.save(folder, "interrupted")
    except UsageError as error:
        if run.record["epochs"]:
            unknown = dict.fromkeys(("loss", "seconds", *(field.name for field in fields(Scores))))
            run.record["final"] = {**unknown, **run.bill()}
            write_record(folder, {**run.record, "status": "failed", "error": str(error)})
        raise


class Run:
    """The state of one training run: model, optimizer, noise key, record."""

    def __init__(self, config: TrainConfig, corpus: Corpus, data: Split) -> None:
        self.config = config
        self.mechanism = config.mechanism()
        self.accelerator = Accelerator(cpu=not torch.cuda.is_available())
        if self.accelerator.num_processes != 1:
            raise UsageError(
                f"{self.accelerator.num_processes} processes were started: training runs in one and simulates the "
                "other devices; start it without a launcher"
            )
        self.key = secrets.randbits(128) if config.private_seed else key_from_seed(config.seed)
        self.ledger: Ledger | None = None
        self.model: IntentSlotModel = build_model(
            config.model,
            Labels.of(corpus),
            seed=config.seed,
            training=data.train,
            private=not self._reads_words_off_training_set(),
            pretrained=config.pretrained,
            size=config.model_size(),
        ).to(self.accelerator.device)
        self.train_data = self.model.dataset(data.train)
        self.validation, self.test = data.validation, data.test
        parameters = trainable(self.model)
        self.layout = Layout.of(parameters)
        self.gradient = torch.zeros(self.layout.size, device=self.accelerator.device)
        for (_, p), columns in zip(parameters, self.layout.columns, strict=True):
            p.grad = self.gradient[columns].view_as(p)
        self.optimizer = torch.optim.Adam([p for _, p in parameters], lr=config.learning_rate, fused=True)
        self.buffer = None
        if self.mechanism is not None:
            self.buffer = self.gradient.new_zeros(config.num_devices, self.layout.size)
        self.delta = config.delta or max(len(data.train), 2) ** -1.1
        self.epochs_started = 0
        self.step_number = 0
        self.alpha = self._public_alpha()
        self.record = self._new_record(corpus, data)

    @contextmanager
    def recorded_in(self, folder: Path) -> Iterator[None]:
        """Keep the run's ledger, and its secret key while the run lasts, in `folder`.

        A run that fails before it left a record leaves nothing: no release of it was seen by anyone.
        """
        if self.mechanism is not None:
            self.ledger = Ledger(folder / LEDGER, self.mechanism)
        try:
            if self.config.private_seed:
                write_secret(folder, self.key)
            yield
        finally:
            (folder / SECRET).unlink(missing_ok=True)
            if not (folder / RECORD).exists():
                (folder / LEDGER).unlink(missing_ok=True)
                with suppress(OSError):
                    folder.rmdir()

    def epoch(self, epoch: int, listener: Listener) -> None:
        """One shuffled pass over the training set, scored on the validation set."""
        start, losses = time.perf_counter(), 0.0
        order = stream(self.key, Purpose.SHUFFLE, epoch).permutation(len(self.train_data))
        steps = math.ceil(len(order) / self.config.batch_size)
        self.epochs_started = epoch + 1
        for step in range(steps):
            examples = order[step * self.config.batch_size : (step + 1) * self.config.batch_size]
            loss = self.step(epoch, examples)
            losses += loss
            listener(StepDone(epoch, self.config.epochs, step + 1, steps, loss / len(examples)))
        seconds = time.perf_counter() - start
        scores = evaluate_model(self.model, self.validation)
        row = {"loss": losses / len(order), "seconds": seconds, **asdict(scores), **self.bill()}
        self.record["epochs"].append(row)
        listener(EpochDone(epoch, self.config.epochs, row, self.record["guarantee"]["status"]))

    def step(self, epoch: int, examples: np.ndarray) -> float:
        """One optimizer step on these training examples; returns their summed loss."""
        if self.ledger is not None:
            self.ledger.write(epoch, self.step_number, self.key)
        dropout_key = int(stream(self.key, Purpose.DROPOUT, self.step_number).integers(2**63))
        if self.mechanism is None:
            total = self._plain_gradient(examples, dropout_key)
        else:
            total = self._private_gradient(self.mechanism, epoch, examples, dropout_key)
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate()
        self.optimizer.step()
        self.step_number += 1
        return float(total)

    def _learning_rate(self) -> float:
        if self.config.lr_schedule == "constant":
            return self.config.learning_rate
        steps = math.ceil(len(self.train_data) / self.config.batch_size) * self.config.epochs
        return self.config.learning_rate * (1 - self.step_number / steps)

    def _plain_gradient(self, examples: np.ndarray, dropout_key: int) -> Tensor:
        self.gradient.zero_()
        batch = self.train_data.batch(examples).to(self.accelerator.device)
        losses = self.model.losses(batch, dropout_key=dropout_key)
        losses.mean().backward()
        layer_norms(self.gradient[None], self.layout)  # refuses NaN
        return losses.detach().sum()

    def _private_gradient(self, mechanism: Mechanism, epoch: int, examples: np.ndarray, dropout_key: int) -> Tensor:
        assert self.buffer is not None
        parts = micro_batches(examples, mechanism.num_devices)
        total = device_gradients(self.model, self.train_data, parts, self.buffer, dropout_key)
        if self.alpha is None and mechanism.alpha is Alpha.PRIVATE:
            self.alpha = layer_scales(self.buffer, self.layout)
        per_device = self.config.noise == "per-device"
        noise = standard_noise(self.key, self.step_number, self.layout.size, mechanism.num_devices, per_device)
        noise = noise.to(self.gradient.device)
        released = release(mechanism, epoch, self.buffer, self.layout, self.alpha, noise)
        self.gradient.copy_(released.gradient)
        return total

    def _public_alpha(self) -> Tensor | None:
        """alpha from the first utterances of a public corpus that carry labels this model knows."""
        if self.mechanism is None or self.mechanism.alpha is not Alpha.PUBLIC:
            return None
        corpus = load_corpus(self.config.alpha_corpus)
        usable = [u for u in corpus.utterances if self.model.labels.covers(u)][: self.config.batch_size]
        if len(usable) < self.config.num_devices:
            raise UsageError(
                f"alpha corpus {self.config.alpha_corpus!r} has only {len(usable)} utterances with labels of "
                f"{self.config.corpus!r}: give public text annotated with the same labels"
            )
        private = {u.tokens for u in self.train_data.utterances}
        if sum(u.tokens in private for u in usable) > MOST_SHARED * len(usable):
            raise UsageError(
                f"alpha corpus {self.config.alpha_corpus!r} shares utterances with the training set, so it is not "
                "public: give separate text"
            )
        parts = micro_batches(np.arange(len(usable)), self.config.num_devices)
        assert self.buffer is not None
        device_gradients(self.model, self.model.dataset(usable), parts, self.buffer, None)
        return layer_scales(self.buffer, self.layout)

    def finish(self) -> None:
        """Score the model as it is on the test split, beside the guarantee of everything that was released."""
        row = self.record["epochs"][-1] if self.record["epochs"] else {}
        training = {"loss": row.get("loss"), "seconds": sum(r["seconds"] for r in self.record["epochs"])}
        self.record["final"] = {**training, **asdict(evaluate_model(self.model, self.test)), **self.bill()}

    def save(self, folder: Path, status: str) -> None:
        """The record first: whatever happens in between, no model is left whose epochs were not billed."""
        self.record["status"] = status
        write_record(folder, self.record)
        save_model(self.model, folder / MODEL)

    def bill(self) -> dict[str, float | None]:
        """Judge every epoch begun so far, a broken one as a whole, and put the verdict into the record."""
        epochs = max(self.epochs_started, 1)
        bill = epochs if self.ledger is None else self.ledger.bill()
        verdict = asdict(judge(self.mechanism, bill, self.delta, seed_published=not self.config.private_seed))
        self.record["ledger"] = None if self.ledger is None else self.ledger.chain
        names = ("epsilon_claimed", "epsilon", "epsilon_if_alpha_public")
        epsilons = {name: verdict.pop(name) for name in names}
        self.record["guarantee"] = verdict
        settings: dict[str, float | None] = {"z_t": None, "noise_multiplier": None}
        if self.mechanism is not None:
            settings["z_t"] = self.mechanism.noise_multiplier_setting(epochs - 1)
            settings["noise_multiplier"] = self.mechanism.noise_multiplier(epochs - 1)
        return {**settings, **epsilons}

    def _reads_words_off_training_set(self) -> bool:
        """Where there is no guarantee anyway; elsewhere words come from public text or stable hash buckets."""
        without_guarantee = self.mechanism is None or self.mechanism.alpha is Alpha.PRIVATE
        return self.config.pretrained is None and without_guarantee

    def _new_record(self, corpus: Corpus, data: Split) -> dict[str, Any]:
        flags = [*NOT_PRIVATE]
        if not corpus.labels_declared:
            flags.append("label sets (read off the corpus)")
        if self._reads_words_off_training_set():
            flags.append("vocabulary (read off the training set)")
        if self.mechanism is not None and self.mechanism.alpha is Alpha.PRIVATE:
            flags.append("layer scales alpha (from private gradients)")
        if self.delta * len(data.train) >= 1:
            flags.append("delta: not below 1/n, so epsilon promises nothing")
        own = Path(self.config.corpus)
        findable = str(own.resolve()) if own.exists() and self.config.corpus == corpus.name else self.config.corpus
        simulated = f"{self.config.num_devices} devices: 1 process, {self.config.num_devices - 1} simulated"
        return {
            "status": "running",
            "config": {**asdict(self.config), "corpus": findable, "delta": self.delta, "lr": self.config.learning_rate},
            "versions": versions(),
            "device": str(self.accelerator.device),
            "threads": torch.get_num_threads(),
            "world_size": self.accelerator.num_processes,
            "devices": "1 process" if self.mechanism is None else simulated,
            "parameters": self.layout.size,
            "corpus": {
                "name": corpus.name,
                "sha256": corpus.sha256,
                "splits": data.counts,
                "has_tags": corpus.has_tags,
                "warnings": list(corpus.warnings),
            },
            "not_private": flags,
            "epochs": [],
            "final": None,
            "guarantee": {},
        }


def evaluate_model(model: IntentSlotModel, utterances: tuple[Utterance, ...]) -> Scores:
    """SER, intent accuracy, slot F1 and exact match on annotated utterances."""
    model.eval()
    predictions = model.predict(model.dataset(utterances), probabilities=False)
    return evaluate(
        [(u.intent, u.tokens, u.tags) for u in utterances],
        [(p.intent, u.tokens, p.tags or None) for u, p in zip(utterances, predictions, strict=True)],
    )


__all__ = ["EpochDone", "Event", "Listener", "Run", "StepDone", "evaluate_model", "train"]
