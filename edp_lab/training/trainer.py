"""One training loop for every method. Its step (`Trainer.step`):

    gradients          of this process's micro-batches              `edp_lab.training.gradients`
    clip               each to norm C, and average them             `edp_lab.training.dp_step`
    ledger             records the step before noise is drawn       `edp_lab.training.ledger`
    release            sum over processes, and add the noise        `edp_lab.training.dp_step`
    optimizer.step     sees nothing but what was released           `edp_lab.training.optimizers`

The loop knows nothing of terminals or notebooks; it reports `StepDone` and `EpochDone` events to a listener. What
starts it, on one process or on several, is `edp_lab.training.run_session`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from edp_lab.corpora import Corpus, Split, list_corpora, load_corpus
from edp_lab.corpora.encoding import Dataset, Labels
from edp_lab.errors import UsageError
from edp_lab.models import build_model, save_model
from edp_lab.models.factory import model_checksum
from edp_lab.models.ghost_clipping.bookkeeping import Memory, row_norms
from edp_lab.models.intent_slot import IntentSlotModel
from edp_lab.models.public_start import check_unseen, made_of
from edp_lab.privacy import Alpha, Variant
from edp_lab.privacy.csprng import Purpose, SecretStream, key_from_seed, stream, uniform_hash
from edp_lab.privacy.mechanism import SCALES
from edp_lab.training import checkpoint, run_folder
from edp_lab.training.config import TrainConfig
from edp_lab.training.dp_step import PlainStep, PrivateStep, check_finite
from edp_lab.training.gradients import MicroGradients, model_gradients, plain_gradient, trainable
from edp_lab.training.inference import evaluate_model
from edp_lab.training.ledger import PrivacyLedger
from edp_lab.training.noise import part
from edp_lab.training.optimizers import make_optimizer

MOST_SHARED = 0.1  # of "public" utterances that may also be in the training set: short commands coincide
SCALES_SAMPLE = 2**32 - 1  # the "step" whose Poisson sample noised layer scales come from: no run has so many
SAVE_EVERY = 60.0  # seconds between two states within an epoch
TAIL = 3  # numbers that ranks sum up beside the gradient
Devices = list[list[np.ndarray]]  # of each device, its micro-batches


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


@dataclass(frozen=True)
class Batches:
    """Which utterances take part in which step, on which device, in which micro-batch.

    A function of the key alone, the same on every rank. If the key is `secret`, all of it comes from the cipher.

    With "shuffle", each epoch is one pass in a new order, cut into disjoint batches; micro-batches are slices whose
    sizes differ by at most one. With "poisson", each utterance takes part with chance `sampling_rate`, independently;
    its micro-batch is a keyed hash of its number, so that one utterance more moves no other.
    """

    key: int
    examples: int  # n, numbered from 0
    batch_size: int  # utterances in a step; with Poisson sampling, expected
    num_devices: int  # N
    micro_batches: int  # M in a step, at least N; device i holds the i-th part of them
    sampling: str
    alone: bool  # every utterance is a micro-batch of its own. Then a Poisson step has as many as it happens to draw
    secret: bool = False

    @property
    def sampling_rate(self) -> float:
        """q, under Poisson sampling."""
        return min(1.0, self.batch_size / self.examples)

    @property
    def steps_per_epoch(self) -> int:
        if self.sampling == "poisson":
            return math.ceil(1 / self.sampling_rate)
        return math.ceil(self.examples / self.batch_size)

    def devices(self, epoch: int, step_in_epoch: int, step: int) -> Devices:
        """The micro-batches of every device in one step; `step` counts through all epochs."""
        if self.sampling == "shuffle":
            start = step_in_epoch * self.batch_size
            batch = _order(self.key, epoch, self.examples, self.secret)[start : start + self.batch_size]
            micro_batches = np.array_split(batch, self.micro_batches)
        else:
            drawn, chance = self._sampled(step)
            if self.alone:
                device = (chance * self.num_devices).astype(np.int64)
                return [[drawn[k : k + 1] for k in np.flatnonzero(device == i)] for i in range(self.num_devices)]
            place = (chance * self.micro_batches).astype(np.int64)
            micro_batches = [drawn[place == m] for m in range(self.micro_batches)]
        local = (part(self.micro_batches, i, self.num_devices) for i in range(self.num_devices))
        return [micro_batches[numbers.start : numbers.stop] for numbers in local]

    def _sampled(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Who takes part (r), and of each a number below 1 that says where (r): both of its own draws alone."""
        if not self.secret:
            drawn = np.flatnonzero(stream(self.key, Purpose.SAMPLE, step).random(self.examples) < self.sampling_rate)
            return drawn, uniform_hash(self.key, step, drawn, 1)[:, 0].astype(np.float64)
        words = SecretStream(self.key, Purpose.SAMPLE, step).words(2 * self.examples).reshape(-1, 2) >> np.uint64(11)
        drawn = np.flatnonzero(words[:, 0] < np.uint64(math.floor(self.sampling_rate * 2.0**53)))  # rather too few
        return drawn, words[drawn, 1] * 2.0**-53


def _in_full(given: str | None) -> str | None:
    """A path so that it is found from another folder, too; the name of a corpus, or on a hub, as it is."""
    if given is None or given in {corpus.name for corpus in list_corpora()} or not Path(given).exists():
        return given
    return str(Path(given).resolve())


@lru_cache(maxsize=1)
def _order(key: int, epoch: int, examples: int, secret: bool) -> np.ndarray:
    """One epoch's order, which all its steps share; a secret one is that of random words, nearly all of them unlike."""
    if secret:
        return np.argsort(SecretStream(key, Purpose.SHUFFLE, epoch).words(examples), kind="stable")
    return stream(key, Purpose.SHUFFLE, epoch).permutation(examples)


class Trainer:
    """The state of one training run in one of its processes: model, optimizer, noise key, record.

    Args:
        key: of order, dropout and noise, or what gives it and how many keys the run has had before, from the digest
            of the run's inputs; None: the one that follows from the seed.
    """

    def __init__(
        self,
        config: TrainConfig,
        corpus: Corpus,
        data: Split,
        accelerator: Accelerator | None = None,
        key: int | Callable[[str], tuple[int, int]] | None = None,
    ) -> None:
        self.config = config
        self.accelerator = accelerator or Accelerator(cpu=not torch.cuda.is_available())
        units = len(data.train)
        self.mechanism = config.mechanism(units)
        if self.mechanism is not None and config.pretrained is not None:
            check_unseen(config.pretrained, (utterance.text for utterance in data.train))
        self.ledger: PrivacyLedger | None = None
        # Words are read off the training set only where there is no guarantee anyway; elsewhere they come from public
        # text or stable hash buckets.
        without_guarantee = self.mechanism is None or self.mechanism.alpha is Alpha.PRIVATE
        own_words = config.pretrained is None and without_guarantee
        self.model: IntentSlotModel = build_model(
            config.model,
            Labels.of(corpus),
            seed=config.seed,
            training=data.train,
            private=not own_words,
            pretrained=config.pretrained,
            size=config.model_size(),
            frozen=config.frozen,
        ).to(self.accelerator.device, torch.float64 if config.precision == "float64" else torch.float32)
        self.model.intent_weight = config.intent_weight
        self.delta = config.delta or max(units, 2) ** -1.1
        settled = {**asdict(config), "delta": self.delta, "lr": config.learning_rate}
        settled |= {"corpus": _in_full(config.corpus), "pretrained": _in_full(config.pretrained)}
        if config.alpha_corpus:
            settled["alpha"] = f"public:{_in_full(config.alpha_corpus)}"
        alpha = load_corpus(config.alpha_corpus).sha256 if config.alpha_corpus else config.alpha
        self.inputs = checkpoint.inputs_digest(self.model, {**settled, "corpus": corpus.sha256, "alpha": alpha})
        keys = 0
        if callable(key):
            key, keys = key(self.inputs)
        self.key = key_from_seed(config.seed) if key is None else key
        self.train_data = self.model.dataset(data.train)
        self.validation, self.test = data.validation, data.test
        self.read: dict[int, Dataset] | None = {} if config.frozen else None  # of the validation split
        self.parameters = trainable(self.model)
        self.optimizer = make_optimizer(config.optimizer, [p for _, p in self.parameters], config.learning_rate)
        self.progress, self.memory = checkpoint.RunPosition(), Memory()
        self.batches = config.batches(self.key, units)
        self.private: PrivateStep | None = None
        if self.mechanism is not None:
            shape = (config.noise, config.micro_batches, TAIL)
            self.private = PrivateStep(self.model, self.mechanism, self.key, config.epochs, self.accelerator, *shape)
        self.rule = self.private or PlainStep(self.parameters, self.accelerator, tail=TAIL)
        self.layout = self.rule.layout
        if self.private is not None and self.private.mechanism.alpha is Alpha.PUBLIC:
            self.private.alpha = self._public_alpha(self.private)
        description = self._described(corpus, data, own_words)
        self.record = {"status": "running", "config": settled, **description, "keys": keys}

    def _public_alpha(self, private: PrivateStep) -> Tensor:
        """alpha from the first utterances of a public corpus that carry labels this model knows."""
        corpus = load_corpus(self.config.alpha_corpus)
        usable = [u for u in corpus.utterances if self.model.labels.covers(u)][: self.config.batch_size]
        if len(usable) < self.config.num_devices:
            raise UsageError(
                f"alpha corpus {self.config.alpha_corpus!r} has only {len(usable)} utterances with labels of "
                f"{self.config.corpus!r}: give public text annotated with the same labels"
            )
        known = {u.tokens for u in self.train_data.utterances}
        if sum(u.tokens in known for u in usable) > MOST_SHARED * len(usable):
            raise UsageError(
                f"alpha corpus {self.config.alpha_corpus!r} shares utterances with the training set, so it is not "
                "public: give separate text"
            )
        mine = private.own(np.array_split(np.arange(len(usable)), self.config.num_devices))
        return private.scales(model_gradients(self.model, self.model.dataset(usable), mine, None, self.layout))

    def _described(self, corpus: Corpus, data: Split, own_words: bool) -> dict[str, Any]:
        """For the record of a run that begins."""
        flags = [*run_folder.NOT_PRIVATE]
        if not corpus.labels_declared:
            flags.append("label sets (read off the corpus; public if listed in intents.txt and slots.txt)")
        if own_words:
            flags.append("vocabulary (read off the training set)")
        if self.mechanism is not None and self.mechanism.alpha is Alpha.PRIVATE:
            flags.append("layer scales alpha (from private gradients)")
        if self.delta * self.batches.examples >= 1:
            flags.append("delta: not below 1/n, so epsilon promises nothing")
        world, devices = self.accelerator.num_processes, self.config.num_devices
        shared = f"{world} process" + ("es" if world > 1 else "")  # "8 devices: 2 processes, 6 simulated"
        if self.mechanism is not None:
            shared = f"{devices} device{'s' if devices > 1 else ''}: {shared}, {devices - world} simulated"
        return {
            "versions": run_folder.versions(),
            "device": str(self.accelerator.device),
            "threads": torch.get_num_threads(),
            "world_size": world,
            "devices": shared,
            "surroundings": checkpoint.surroundings(self.accelerator, self.inputs),
            "parameters": self.layout.size,
            "corpus": {
                "sha256": corpus.sha256,
                "splits": data.counts,
                "has_tags": corpus.has_tags,
                "warnings": list(corpus.warnings),
            },
            "started_from": made_of(self.config.pretrained),
            "not_private": flags,
            "epochs": self.progress.rows,
            "final": None,
            "guarantee": {},
        }

    @property
    def main(self) -> bool:
        """Whether this process writes files and reports events."""
        return self.accelerator.is_main_process

    def take_up(self, folder: Path) -> None:
        """Go on from the last state that was saved in `folder`, if there is one."""
        earlier = checkpoint.load_state(folder, self.parameters, self.optimizer, self.batches.steps_per_epoch)
        if earlier is not None:
            self.progress, alpha = earlier
            self.record["epochs"] = self.progress.rows
            if self.private is not None and alpha is not None:
                self.private.alpha = alpha.to(self.accelerator.device)

    def train(self, folder: Path, listener: Listener, stop: threading.Event) -> str:
        """Train to the end, or to the end of the step in which `stop` was set: "finished" or "interrupted"."""
        while self.progress.epoch < self.config.epochs:
            if not self.epoch(listener, stop, folder):
                self.save_state(folder)
                return "interrupted"
            self.save_state(folder)  # before record and model: no model is ever left whose epochs were not billed
            self.save_model(folder, "running")
        return "finished"

    def epoch(
        self, listener: Listener = lambda event: None, stop: threading.Event | None = None, folder: Path | None = None
    ) -> bool:
        """The rest of the current epoch, scored on the validation set; False if it was broken off.

        With a `folder`, a state is saved there once a minute.
        """
        now, epochs, steps = self.progress, self.config.epochs, self.batches.steps_per_epoch
        saved = start = time.perf_counter()
        before = now.seconds
        while now.step_in_epoch < steps:
            loss, examples, stopped = self.step(stop.is_set if stop else lambda: False)
            if math.isfinite(loss):
                now.loss += loss
                now.examples += examples
            now.step_in_epoch += 1
            now.seconds = before + time.perf_counter() - start
            if self.main:
                listener(StepDone(now.epoch, epochs, now.step_in_epoch, steps, loss / max(examples, 1)))
            if stopped and now.step_in_epoch < steps:
                return False
            if folder is not None and time.perf_counter() - saved > SAVE_EVERY and now.step_in_epoch < steps:
                self.save_state(folder)
                saved = time.perf_counter()
        # What was released decides whether a sound run goes on; steps without noise look at the loss only.
        check_finite(torch.stack([row_norms(p.detach().view(1, -1)) for _, p in self.parameters], dim=1), self.layout)
        scores = evaluate_model(self.model, self.validation, self.accelerator, self.read)
        done = now.epoch
        bill = self.bill()
        row = {"loss": now.loss / max(now.examples, 1), "seconds": now.seconds, **asdict(scores), **bill}
        now.rows.append(row)
        now.epoch, now.step_in_epoch, now.loss, now.examples, now.seconds = done + 1, 0, 0.0, 0, 0.0
        if self.main:
            listener(EpochDone(done, epochs, row, self.record["guarantee"]["status"]))
        return not stopped or now.epoch == epochs

    def step(self, stopped: Callable[[], bool] = lambda: False) -> tuple[float, int, bool]:
        """One step of any method: summed loss, utterances, and whether any process wants to stop.

        Guarantee: a private step stands in the ledger before its noise is drawn. Nothing is released without the first
        process, so it is enough that this one has written it down.

        Raises:
            UsageError: the ledger cannot be written; where nothing is promised, a gradient or the loss is not finite.
        """
        now = self.progress
        if self.private is not None and self.private.mechanism.alpha is Alpha.NOISED and self.private.alpha is None:
            self.private.alpha = self._noised_alpha(self.private)
        devices = self.batches.devices(now.epoch, now.step_in_epoch, now.step)
        parts, dropout_key = self._own(devices), self._dropout_key(now.step)
        examples = sum(map(len, parts))
        if isinstance(self.rule, PlainStep):
            share = examples / max(1, sum(len(part) for device in devices for part in device))
            local_loss = plain_gradient(self.model, self.train_data, parts[0], dropout_key, share)
            self.rule.average()
            sums = self.rule.reduce(local_loss, examples, stopped())
        else:
            entry = None if self.ledger is None else self.ledger.begin(now.epoch, now.step, self.key)
            gradients = self._gradients(parts, dropout_key)
            clipped = self.rule.clip(gradients)
            local_loss = sum((some.loss for some in gradients), torch.zeros(()))

            def numbers() -> tuple[Tensor, int, bool]:
                return local_loss, examples, stopped()

            sums = self.rule.release(clipped, now.epoch, now.step, entry, numbers).sums
        loss, everyone, stops = sums
        if not math.isfinite(loss) and not (self.mechanism and self.mechanism.variant is Variant.SOUND):
            raise UsageError("the loss is not finite: lower --lr or check the corpus")
        self._prepare_optimizer()
        self.optimizer.step()
        now.step += 1
        return loss, int(everyone), stops > 0

    def _own(self, devices: Devices) -> list[np.ndarray]:
        """This process's micro-batches."""
        local = part(len(devices), self.accelerator.process_index, self.accelerator.num_processes)
        return [micro_batch for device in devices[local.start : local.stop] for micro_batch in device]

    def _noised_alpha(self, private: PrivateStep) -> Tensor:
        """alpha from a batch of its own (the first, if batches are disjoint), once the ledger has the release."""
        if self.ledger is not None:
            self.ledger.write(SCALES, SCALES, self.key)
        parts = self._own(self.batches.devices(0, 0, SCALES_SAMPLE))
        return private.noised_scales(self._gradients(parts, None), self.key)

    def _gradients(self, parts: Sequence[np.ndarray], dropout_key: int | None) -> Sequence[MicroGradients]:
        """Those of this process's micro-batches, none of which is computed yet."""
        naive = self.config.method == "dp-sgd-naive"
        return model_gradients(self.model, self.train_data, parts, dropout_key, self.layout, naive, self.memory)

    def _dropout_key(self, step: int) -> int:
        """63 bits, from which masks follow; of a secret key they tell nothing."""
        if self.config.private_seed:
            return int(SecretStream(self.key, Purpose.DROPOUT, step).words(1)[0] >> np.uint64(1))
        return int(stream(self.key, Purpose.DROPOUT, step).integers(2**63))

    def _prepare_optimizer(self) -> None:
        lr = self.config.learning_rate
        if self.config.lr_schedule == "linear":
            lr *= 1 - self.progress.step / (self.batches.steps_per_epoch * self.config.epochs)
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def finish(self) -> None:
        """Score the model as it is on the test split, beside the guarantee of everything that was released."""
        rows = self.progress.rows
        training = {"loss": rows[-1]["loss"] if rows else None, "seconds": sum(row["seconds"] for row in rows)}
        scores = evaluate_model(self.model, self.test, self.accelerator)
        self.record["final"] = {**training, **asdict(scores), **self.bill()}

    def save_state(self, folder: Path) -> None:
        if self.main:
            self.progress.chain = None if self.ledger is None else self.ledger.chain
            alpha = None if self.private is None else self.private.alpha
            checkpoint.save_state(folder, self.progress, self.parameters, self.optimizer, alpha)

    def save_model(self, folder: Path, status: str) -> None:
        """Beside its record, which comes first."""
        self.record["status"] = status
        if self.main:
            self.record["model_sha256"] = model_checksum(self.model)
            run_folder.write_record(folder, self.record)
            save_model(self.model, folder / run_folder.MODEL, run_folder.go_on(folder))

    def bill(self) -> dict[str, float | None]:
        """Judge every epoch begun so far, a broken one as a whole, and put the verdict into the record."""
        begun = self.progress.epoch + (self.progress.step_in_epoch > 0)
        return run_folder.bill(self.record, self.mechanism, self.ledger, max(begun, 1))
