"""One training loop for every method, which saves its state once a minute. `Trainer.step` takes one step.

    batches.devices       which utterances, in which micro-batches    `edp_lab.training.batches`
    ledger.begin          starts recording the release                `edp_lab.training.ledger`
    gradients             of this rank's micro-batches                `edp_lab.training.gradients`
    clip                  clips each to norm C and averages them      `edp_lab.training.dp_step`
    sum over ranks, once the release is recorded                      `edp_lab.training.gradients`
    add_noise             drawn by `edp_lab.training.noise`           `edp_lab.training.dp_step`
    optimizer.step        sees only the released gradient             `edp_lab.training.build`

The loop does not depend on terminals or notebooks; it reports `StepDone` and `EpochDone` events to a listener.
`edp_lab.training.session` starts it, with `edp_lab.training.launch` for several processes.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from accelerate import Accelerator

from edp_lab.corpora.corpus import Corpus, Split
from edp_lab.corpora.encoding import Dataset
from edp_lab.errors import UsageError
from edp_lab.models.factory import model_checksum, save_model
from edp_lab.models.ghost_clipping.bookkeeping import Memory, row_norms
from edp_lab.models.intent_slot import IntentSlotModel
from edp_lab.models.public_start import made_of
from edp_lab.privacy import Alpha, Variant, csprng
from edp_lab.training import checkpoint, run_files
from edp_lab.training.batches import shard
from edp_lab.training.build import make_optimizer, model_for, reads_words, set_learning_rate
from edp_lab.training.config import TrainConfig
from edp_lab.training.dp_step import add_noise, clip
from edp_lab.training.evaluate import evaluate_model
from edp_lab.training.gradients import (
    FlatGradient,
    MicroGradients,
    check_finite,
    model_gradients,
    plain_gradient,
    trainable,
)
from edp_lab.training.ledger import PrivacyLedger
from edp_lab.training.private_step import PrivateStep, mean_scales
from edp_lab.training.run_files import EpochDone, Listener, StepDone

SAVE_EVERY = 60.0  # seconds between checkpoints within an epoch


class StepSums(NamedTuple):
    """Sums over all ranks: loss of a step's utterances, number of utterances, number of ranks asked to stop."""

    loss: float
    examples: float
    stopped: float


Key = int | Callable[[str], tuple[int, int]] | None


# ---- The loop --------------------------------------------------------------------------------------------------------


class Trainer:
    """State of one training run in one of its processes: model, optimizer, noise key and record.

    Args:
        key: key for order, dropout and noise; or a function from the digest of the run's inputs to this key and the
            number of keys that the run used before; or None to derive the key from the seed.
    """

    def __init__(
        self, config: TrainConfig, corpus: Corpus, data: Split, accelerator: Accelerator | None = None, key: Key = None
    ) -> None:
        self.config, self.validation, self.test = config, data.validation, data.test
        self.accelerator = accelerator or Accelerator(cpu=not torch.cuda.is_available())
        self.main = self.accelerator.is_main_process  # writes files and reports events
        self.mechanism = config.mechanism(len(data.train))
        model = model_for(config, corpus, data, self.mechanism)
        dtype = torch.float64 if config.precision == "float64" else torch.float32
        self.model: IntentSlotModel = model.to(self.accelerator.device, dtype)
        self.delta = config.delta or max(len(data.train), 2) ** -1.1
        settings = run_files.settled(config, self.delta)
        self.inputs = checkpoint.inputs_digest(self.model, settings, corpus)
        keys = 0
        if callable(key):
            key, keys = key(self.inputs)
        self.key = csprng.key_from_seed(config.seed) if key is None else key
        self.train_data = self.model.dataset(data.train)
        self.validation_cache: dict[int, Dataset] | None = {} if self.model.reads_once else None
        self.parameters = trainable(self.model)
        self.optimizer = make_optimizer(config.optimizer, [p for _, p in self.parameters], config.learning_rate)
        self.batches = config.batches(self.key, len(data.train))
        self.progress, self.memory = checkpoint.RunPosition(), Memory()
        self.ledger: PrivacyLedger | None = None
        self.private: PrivateStep | None = None
        extra_sums = len(StepSums._fields)
        if self.mechanism is None:
            self.flat = FlatGradient(self.parameters, self.accelerator, extra_sums)
        else:
            about = self.accelerator, config.noise, config.micro_batches, extra_sums
            self.flat = self.private = PrivateStep(self.model, self.mechanism, self.key, config.epochs, *about)
        self.layout = self.flat.layout
        flags = run_files.not_private(config, corpus, data, self.mechanism, self.delta)
        if reads_words(config, self.mechanism):
            flags.append("vocabulary (taken from the training set)")
        self.record = {
            **run_files.initial_record(config, settings, corpus, data, self.flat.world),
            "device": str(self.accelerator.device),
            "threads": torch.get_num_threads(),
            "started_from": made_of(config.pretrained),
            "surroundings": checkpoint.surroundings(self.accelerator, self.inputs),
            "keys": keys,
            "parameters": self.layout.size,
            "not_private": flags,
            "epochs": self.progress.rows,
        }

    def train(self, folder: Path, listener: Listener, stop: threading.Event) -> str:
        """Train to the end ("finished"), or to the end of the step in which `stop` was set ("interrupted")."""
        while self.progress.epoch < self.config.epochs:
            go_on = self.epoch(listener, stop, folder)
            self.save_state(folder)  # saved first, because no model may exist before its epochs are counted
            if not go_on:
                return "interrupted"
            self.save_model(folder, "running")
        return "finished"

    def epoch(
        self, listener: Listener = lambda event: None, stop: threading.Event | None = None, folder: Path | None = None
    ) -> bool:
        """Train the rest of the current epoch, and score the validation set; return False if a stop was requested.

        If a `folder` is given, a checkpoint is saved there once a minute.
        """
        now, steps, before = self.progress, self.batches.steps_per_epoch, self.progress.seconds
        saved = start = time.perf_counter()
        stopped = 0.0
        while now.step_in_epoch < steps:
            loss, examples, stopped = self.step(stop.is_set if stop else lambda: False)
            now.count(loss, int(examples))
            now.seconds = before + time.perf_counter() - start
            if self.main:
                mean = loss / max(examples, 1)
                listener(StepDone(now.epoch, self.config.epochs, now.step_in_epoch, steps, mean))
            if stopped and now.step_in_epoch < steps:
                return False
            if folder is not None and time.perf_counter() - saved > SAVE_EVERY and now.step_in_epoch < steps:
                self.save_state(folder)
                saved = time.perf_counter()
        self._end_epoch(listener)
        return not stopped or now.epoch == self.config.epochs

    def step(self, stopped: Callable[[], bool] = lambda: False) -> StepSums:
        """Take one step of any method.

        Guarantee: a private step is recorded in the ledger before its noise is drawn. It is enough that the first rank
        records the step, because nothing is released without this rank.

        Raises:
            UsageError: the ledger cannot be written; or a loss is not finite, except with the sound mechanism, because
                no epsilon covers a stop that depends on the loss.
        """
        now, private = self.progress, self.private
        devices = self.batches.devices(now.epoch, now.step_in_epoch, now.step)
        local = shard(len(devices), self.flat.rank, self.flat.world)  # this rank's devices
        micro_batches = [part for device in devices[local.start : local.stop] for part in device]
        dropout_key = csprng.dropout_key(self.key, now.step, self.config.private_seed)
        examples = sum(map(len, micro_batches))
        if private is None:
            weight = examples / max(1, sum(len(part) for device in devices for part in device))
            local_loss = plain_gradient(self.model, self.train_data, micro_batches[0], dropout_key, weight)
            self.flat.take()
            sums = StepSums(*self.flat.sum_over_ranks(local_loss, examples, stopped()))
        else:
            if private.alpha is None and private.mechanism.alpha is Alpha.PRIVATE:
                private.alpha = mean_scales(private, private.divisor, self._gradients(micro_batches, dropout_key))
            # Recorded in the background while the gradients are computed; awaited below, before the sum.
            entry = None if self.ledger is None else self.ledger.begin(now.epoch, now.step, self.key)
            gradients = self._gradients(micro_batches, dropout_key)  # computed when `clip` asks for norms
            mechanism, alpha, divisor = private.mechanism, private.alpha, private.divisor
            clipped = clip(gradients, mechanism, self.layout, alpha, divisor, private.gradient, private.world)
            local_loss = sum((group.loss for group in gradients), torch.zeros(()))
            if entry is not None:
                entry.result()
            # With several ranks, this adds up the memory of `clipped`, which belongs to `private`.
            sums = StepSums(*private.sum_over_ranks(local_loss, examples, stopped()))
            private.use(add_noise(clipped, now.epoch, now.step, private.noise).layers)
        if not math.isfinite(sums.loss) and not (self.mechanism and self.mechanism.variant is Variant.SOUND):
            raise UsageError("the loss is not finite: lower --lr or check the corpus")
        steps = self.batches.steps_per_epoch * self.config.epochs
        set_learning_rate(self.optimizer, self.config, now.step / steps)
        self.optimizer.step()
        now.step += 1
        return sums

    def _end_epoch(self, listener: Listener) -> None:
        """Score the model, judge the releases so far, and add the epoch's row to the record."""
        now = self.progress
        # A sound run may end early only because of released values, so we check the parameters, not the gradients.
        norms = torch.stack([row_norms(p.detach().view(1, -1)) for _, p in self.parameters], dim=1)
        check_finite(norms, self.layout)
        scores = evaluate_model(self.model, self.validation, self.accelerator, self.validation_cache)
        row = {"loss": now.loss / max(now.examples, 1), "seconds": now.seconds}
        row |= asdict(scores) | self.record_guarantee()
        now.end_epoch(row)
        if self.main:
            listener(EpochDone(now.epoch - 1, self.config.epochs, row, self.record["guarantee"]["status"]))

    def _gradients(self, parts: Sequence[np.ndarray], dropout_key: int | None) -> Sequence[MicroGradients]:
        """Return lazy gradients of this rank's micro-batches."""
        naive = self.config.method == "dp-sgd-naive"
        return model_gradients(self.model, self.train_data, parts, dropout_key, self.layout, naive, self.memory)

    # ---- Files of the run --------------------------------------------------------------------------------------------

    def save_state(self, folder: Path) -> None:
        if self.main:
            self.progress.chain = None if self.ledger is None else self.ledger.chain
            self.progress.origin = checkpoint.origin(self.key, self.record["surroundings"])
            alpha = None if self.private is None else self.private.alpha
            checkpoint.save_state(folder, self.progress, self.parameters, self.optimizer, alpha)

    def save_model(self, folder: Path, status: str) -> None:
        """Write the record, then the model."""
        self.record["status"] = status
        if self.main:
            self.record["model_sha256"] = model_checksum(self.model)
            run_files.write_record(folder, self.record)
            save_model(self.model, folder / run_files.MODEL, run_files.go_on(folder))

    def record_guarantee(self) -> dict[str, float | None]:
        """Judge all epochs begun so far, an interrupted epoch in full, and add the verdict to the record."""
        begun = self.progress.epoch + (self.progress.step_in_epoch > 0)
        return run_files.record_guarantee(self.record, self.mechanism, self.ledger, max(begun, 1))
