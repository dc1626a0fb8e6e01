"""Everything a training run is told, checked before anything is written."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Integral

from edp_lab.errors import UsageError
from edp_lab.privacy import Alpha, Mechanism

METHODS = ("sgd", "edp-sgd")
LEARNING_RATES = {"paper": {"clc": 2e-3, "bert": 5e-4}, "small": {"clc": 2e-2, "bert": 2e-3}}
# What differs from the paper's sizes, by model.
SIZES: dict[str, dict[str, dict[str, int]]] = {
    "paper": {"clc": {}, "bert": {}},
    "small": {
        "clc": {"hidden": 64, "layers": 1, "word": 50, "filters": 25},
        "bert": {"layers": 2, "heads": 4, "hidden": 64, "intermediate": 256},
    },
}


@dataclass(frozen=True)
class TrainConfig:
    """One training run; the command line, a notebook panel and a test all build this same object.

    Attributes:
        corpus: a name of the catalogue or the path of a user's own corpus.
        model: "clc" or "bert".
        method: "sgd" (no privacy) or "edp-sgd". Both take their steps with Adam, as the paper does.
        clip_norm, z0, decay, tau: the paper's C, z0, d and tau; see `edp_lab.privacy.Mechanism` for what z0 means.
        num_devices: N, the micro-batches per step.
        as_printed: Algorithm 1 verbatim instead of the sound mechanism.
        alpha: "none", "public:CORPUS" or "private"; None is "private" as printed and "none" when sound.
        delta: None is n^-1.1 for n training utterances.
        size: "paper" (hidden 384 / BERT 4 layers) or "small" for demonstrations.
        dropout: share of each representation that is dropped, the same units for all words of an utterance.
        pretrained: word vectors for the CLC, an encoder for BERT (see `edp-lab pretrain`).
        lr: Adam's learning rate; None is that of `LEARNING_RATES` for size and model.
        lr_schedule: "linear" lets the learning rate fall to 0 over the run, "constant" does not.
        seed: of the split and the initial weights, and of order, dropout and noise unless `private_seed`.
        private_seed: draw the key of order, dropout and noise from the operating system, and never publish it.
        noise: "aggregate" draws the devices' noise as one Gaussian of the right variance; "per-device" draws N;
            "shared" lets all devices add one common draw, which on one process is the aggregate.
    """

    corpus: str
    model: str = "clc"
    method: str = "edp-sgd"
    clip_norm: float = 1.0
    z0: float = 0.03
    decay: str = "none"
    tau: float = 0.1
    num_devices: int = 8
    as_printed: bool = False
    alpha: str | None = None
    delta: float | None = None
    batch_size: int = 64
    lr: float | None = None
    lr_schedule: str = "linear"
    epochs: int = 12
    seed: int = 0
    private_seed: bool = False
    size: str = "paper"
    dropout: float = 0.3
    pretrained: str | None = None
    noise: str = "aggregate"
    keep_duplicates_together: bool = True

    def __post_init__(self) -> None:
        _choice("model", self.model, ("clc", "bert"))
        _choice("method", self.method, METHODS)
        _choice("size", self.size, tuple(SIZES))
        _choice("learning rate schedule", self.lr_schedule, ("linear", "constant"))
        _choice("noise", self.noise, ("aggregate", "per-device", "shared"))
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout is {self.dropout}: it must be at least 0 and below 1")
        _positive("learning rate", self.learning_rate)
        for name, count in (
            ("batch size", self.batch_size),
            ("number of epochs", self.epochs),
            ("number of devices", self.num_devices),
        ):
            if not isinstance(count, Integral) or count < 1:
                raise UsageError(f"{name} is {count}: it must be a whole number, at least 1")
        if self.delta is not None and not 0 < self.delta < 1:
            raise UsageError(f"delta is {self.delta}: it must lie between 0 and 1 (well below 1/n)")
        if self.alpha is not None and self.alpha_source is Alpha.PUBLIC and not self.alpha_corpus:
            raise UsageError("alpha 'public' needs a corpus: write public:NAME or public:PATH")
        if self.method == "edp-sgd" and self.num_devices >= self.batch_size:
            raise UsageError(
                f"{self.num_devices} devices for a batch of {self.batch_size}: Algorithm 1 asks for fewer "
                "devices than utterances in a batch; lower --gpus or raise --batch-size"
            )
        self._mechanism()

    @property
    def learning_rate(self) -> float:
        return LEARNING_RATES[self.size][self.model] if self.lr is None else self.lr

    @property
    def alpha_source(self) -> Alpha:
        if self.alpha is None:
            return Alpha.PRIVATE if self.as_printed else Alpha.NONE
        name = self.alpha.partition(":")[0]
        if name not in tuple(Alpha):
            raise UsageError(f"unknown alpha {self.alpha!r}: choose none, public:CORPUS or private")
        return Alpha(name)

    @property
    def alpha_corpus(self) -> str:
        return (self.alpha or "").partition(":")[2]

    def model_size(self) -> dict[str, float]:
        """The sizes to build the model with; a pretrained BERT brings its own."""
        brings_own = self.model == "bert" and self.pretrained is not None
        return {**({} if brings_own else SIZES[self.size][self.model]), "dropout": self.dropout}

    def mechanism(self) -> Mechanism | None:
        """What one step releases; None for plain training."""
        return None if self.method == "sgd" else self._mechanism()

    def _mechanism(self) -> Mechanism:
        build = Mechanism.as_printed if self.as_printed else Mechanism.sound
        mechanism = build(
            self.clip_norm,
            self.z0,
            self.num_devices,
            math.ceil(self.batch_size / self.num_devices),
            self.decay,
            self.tau,
            self.alpha_source,
        )
        return replace(mechanism, shared_noise=True) if self.noise == "shared" else mechanism


def _choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"unknown {name} {value!r}: choose {' or '.join(known)}")


def _positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise UsageError(f"{name} is {value}: it must be greater than 0")
