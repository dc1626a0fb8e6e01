"""Training configuration, validated before anything is written.

Importing this module loads neither torch nor scipy, because ``edp-lab --help`` reads the fields of `TrainConfig`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from edp_lab.errors import UsageError, check_types, check_whole

if TYPE_CHECKING:
    from edp_lab.privacy import Alpha, Mechanism
    from edp_lab.training.batches import Batches


class Bounds(TypedDict):
    """Inclusive bounds of a number."""

    min: float
    max: float


SEED: Bounds = {"min": 0, "max": 2**63 - 1}
MOST, MOST_PROCESSES = 1_000_000, 1024
COUNT: Bounds = {"min": 1, "max": MOST}  # bounds for counts such as epochs and models: more would never finish
CORES: Bounds = {"min": 1, "max": MOST_PROCESSES}  # bounds for threads and processes
METHODS = ("sgd", "edp-sgd", "dp-sgd", "dp-sgd-naive")
SAMPLINGS = ("shuffle", "poisson")
NOISES = ("aggregate", "per-device")
OPTIMIZERS = ("adam", "dp-adam")
PRECISIONS = ("float32", "float64")
TOKENS = ("words", "characters")
OPTIONS = {"clip_norm": "clip", "num_devices": "gpus", "tokens": "split", "understudy_method": "understudy"}
LEARNING_RATES = {
    "paper": {"clc": 2e-3, "bert": 5e-4},
    "medium": {"clc": 5e-3, "bert": 1e-3},
    "small": {"clc": 2e-2, "bert": 2e-3},
}
# Layer sizes that differ from the paper's, by model.
SIZES: dict[str, dict[str, dict[str, int]]] = {
    "paper": {"clc": {}, "bert": {}},
    "medium": {
        "clc": {"hidden": 128, "layers": 1},
        "bert": {"layers": 2, "heads": 4, "hidden": 128, "intermediate": 512},
    },
    "small": {
        "clc": {"hidden": 64, "layers": 1, "word": 50, "filters": 25},
        "bert": {"layers": 2, "heads": 4, "hidden": 64, "intermediate": 256},
    },
}


def option_name(field: str) -> str:
    """Command-line name of a settings field, such as "gpus"."""
    return OPTIONS.get(field, field)


def flag_of(field: str) -> str:
    """Command-line flag of a settings field, such as "--gpus"."""
    return f"--{option_name(field).replace('_', '-')}"


@dataclass(frozen=True)
class TrainConfig:
    """Configuration of one training run, built by the command line, the notebook panels and the tests.

    The annotation of each field is also its help text in ``edp-lab train``. See also `edp_lab.privacy.Mechanism` (on
    z0), `edp_lab.training.trainer` (on sampling) and `edp_lab.training.build`. The constructor raises UsageError if
    a setting is out of range or incompatible with another setting.

    If the micro-batch size is below the paper's, which is ceil(batch / N), a device processes several micro-batches.
    The intent weight matters because the largest term of the loss dominates the direction of a clipped gradient.
    Dropout drops the same units for all words of an utterance. The secret key comes from the operating system.
    """

    corpus: str
    model: Annotated[str, "Model: clc (character CNN, bi-LSTM, CRF) or bert."] = "clc"
    method: Annotated[
        str,
        "Method: sgd (no privacy), edp-sgd, dp-sgd (every utterance clipped individually) or dp-sgd-naive (dp-sgd with "
        "one backward pass per utterance).",
    ] = "edp-sgd"
    clip_norm: Annotated[float, "Clip norm C: maximum norm of a micro-batch's gradient."] = 1.0
    z0: Annotated[
        float,
        "Noise multiplier in the first epoch: std(noise)/sensitivity; with --as-printed, std(y)/C for one device, "
        "where the noise is 2 sqrt(N) times smaller for the same z0.",
    ] = 0.03
    decay: Annotated[str, "Decay of the noise over the epochs t: none, linear or exponential."] = "none"
    tau: Annotated[float, "Decay rate tau: noise falls as 1/(1 + tau t) (linear) or e^(-tau t) (exponential)."] = 0.1
    num_devices: Annotated[int, "Number N of devices, below --batch-size. Absent devices are simulated exactly."] = 8
    processes: Annotated[int, "Number of real processes that share the devices; torchrun starts them."] = 1
    micro_batch_size: Annotated[
        int | None, "Number of utterances clipped together (default: batch size / devices; 1 for dp-sgd)."
    ] = None
    sampling: Annotated[
        str | None,
        "Sampling: shuffle (disjoint batches) or poisson (default: poisson for dp-sgd and dp-sgd-naive, else shuffle).",
    ] = None
    optimizer: Annotated[
        str,
        "Optimizer: adam or dp-adam (the thesis' name for the same optimizer).",
    ] = "adam"
    precision: Annotated[str, "Floating-point precision: float32 or float64."] = "float32"
    as_printed: Annotated[
        bool, "Use the step of Algorithm 1 as printed in the paper, but with our learning rate schedule and dropout."
    ] = False
    alpha: Annotated[
        str | None,
        "Source of the layer scales alpha: none, or private, which needs --as-printed and is then the default.",
    ] = None
    delta: Annotated[
        float | None,
        "Delta in (epsilon, delta), well below 1/n for n training utterances (default: n^-1.1).",
    ] = None
    batch_size: Annotated[int, "Number of utterances per step, across all devices."] = 64
    lr: Annotated[
        float | None,
        "Adam's learning rate (default: 0.002 for clc and 0.0005 for bert; higher for smaller models).",
    ] = None
    lr_schedule: Annotated[str, "Learning rate schedule: linear (decreases to 0 over the run) or constant."] = "linear"
    epochs: Annotated[int, "Number of passes over the training set."] = 12
    seed: Annotated[int, "Seed of the split, initial weights, batches and noise.", SEED] = 0
    private_seed: Annotated[
        bool,
        "Draw the batches, dropout and noise from a secret key; without a secret key, no epsilon is guaranteed.",
    ] = False
    size: Annotated[str, "Model size: paper (the paper's layers), medium (a third as wide) or small (quick)."] = "paper"
    dropout: Annotated[float, "Dropout probability."] = 0.3
    intent_weight: Annotated[float, "Weight of the intent loss; the slot loss, if any, has weight 1."] = 1.0
    pretrained: Annotated[
        str | None,
        "Weights: a fastText .vec file, a folder from edp-lab pretrain, or the name of a BERT model on the hub.",
    ] = None
    frozen: Annotated[bool, "Train only the heads and the CRF of the model given by --pretrained."] = False
    noise: Annotated[
        str,
        "How noise is drawn: aggregate (one draw for all devices) or per-device (N draws, as on N real devices).",
    ] = "aggregate"
    keep_duplicates_together: Annotated[
        bool, "Keep utterances with the same text (ignoring case and Unicode form) in the same part of the split."
    ] = True
    tokens: Annotated[
        str, "Tokens: words (split at white space), or characters (for text without spaces, such as Chinese)."
    ] = "words"

    def __post_init__(self) -> None:
        check_types(self)
        for name, value, known in (
            ("model", self.model, ("clc", "bert")),
            ("method", self.method, METHODS),
            ("size", self.size, tuple(SIZES)),
            ("learning rate schedule", self.lr_schedule, ("linear", "constant")),
            ("noise", self.noise, NOISES),
            ("sampling", self.sampling or "shuffle", SAMPLINGS),
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("precision", self.precision, PRECISIONS),
            ("split", self.tokens, TOKENS),
        ):
            if value not in known:
                raise UsageError(f"unknown {name} {value!r}: choose {' or '.join(known)}")
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout is {self.dropout}: it must be at least 0 and below 1")
        for name, number in (("learning rate", self.learning_rate), ("intent weight", self.intent_weight)):
            if not 0 < number < math.inf:
                raise UsageError(f"{name} is {number}: it must be a finite number greater than 0")
        for name, count, least, most in (
            ("batch size", self.batch_size, 1, MOST),
            ("number of epochs", self.epochs, 1, MOST),
            ("number of devices (--gpus)", self.num_devices, 1, MOST),
            ("number of processes", self.processes, 1, MOST_PROCESSES),
            ("micro-batch size", 1 if self.micro_batch_size is None else self.micro_batch_size, 1, MOST),
            ("seed", self.seed, SEED["min"], SEED["max"]),
        ):
            check_whole(name, count, least, most)
        if self.delta is not None and not 0 < self.delta < 1:
            raise UsageError(f"delta is {self.delta}: it must be between 0 and 1 (well below 1/n)")
        if self.method == "edp-sgd" and self.num_devices >= self.batch_size:
            raise UsageError(
                f"{self.num_devices} devices for a batch of {self.batch_size}: Algorithm 1 requires fewer "
                "devices than utterances in a batch; lower --gpus or raise --batch-size"
            )
        if self.method != "sgd" and self.processes > self.num_devices:
            raise UsageError(
                f"{self.processes} processes for {self.num_devices} device{'s' if self.num_devices > 1 else ''}: some "
                "would be idle; lower --processes or raise --gpus"
            )
        if self.per_example and (self.as_printed or (self.micro_batch_size or 1) > 1):
            raise UsageError(
                f"{self.method} clips every utterance individually: drop --as-printed and --micro-batch-size, or use "
                "--method edp-sgd"
            )
        if self.method == "edp-sgd" and self.micro_batches < self.num_devices:
            raise UsageError(
                f"{self.num_devices} micro-batches of {self.micro_batch_size} do not fit into a batch of "
                f"{self.batch_size}: lower --micro-batch-size or raise --batch-size"
            )
        self._mechanism(1.0 if self.poisson else None)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> TrainConfig:
        """Configuration of a recorded run; raises UsageError if another version of edp_lab wrote the record."""
        try:
            return cls(**record["config"])
        except TypeError as error:
            raise UsageError(f"the run was made by another version of edp_lab ({error}): start a new run") from None

    @property
    def per_example(self) -> bool:
        return self.method in ("dp-sgd", "dp-sgd-naive")

    @property
    def poisson(self) -> bool:
        default = "poisson" if self.per_example else "shuffle"
        return (self.sampling or default) == "poisson"

    @property
    def largest_micro_batch(self) -> int:
        """Maximum number of utterances clipped together (with Poisson sampling, the expected number)."""
        if self.per_example:
            return 1
        return self.micro_batch_size or math.ceil(self.batch_size / self.num_devices)

    @property
    def micro_batches(self) -> int:
        """Number M of micro-batches, the divisor of the gradient sum; with Poisson sampling, the expected number."""
        if self.method == "edp-sgd" and self.micro_batch_size is None:
            return self.num_devices
        return math.ceil(self.batch_size / self.largest_micro_batch)

    @property
    def learning_rate(self) -> float:
        return LEARNING_RATES[self.size][self.model] if self.lr is None else self.lr

    @property
    def alpha_source(self) -> Alpha:
        from edp_lab.privacy import Alpha

        if self.alpha is None:
            return Alpha.PRIVATE if self.as_printed else Alpha.NONE
        if self.alpha not in ("none", "private"):
            raise UsageError(f"unknown alpha {self.alpha!r}: choose none or private")
        return Alpha(self.alpha)

    def model_size(self) -> dict[str, float]:
        """Layer sizes and dropout for building the model; a pretrained BERT keeps its own layer sizes."""
        brings_own = self.model == "bert" and self.pretrained is not None
        return {**({} if brings_own else SIZES[self.size][self.model]), "dropout": self.dropout}

    def mechanism(self, examples: int | None = None) -> Mechanism | None:
        """Mechanism of one step, None for sgd; Poisson sampling needs the number n of training `examples`."""
        if self.method == "sgd":
            return None
        if self.poisson and not examples:
            raise UsageError("Poisson sampling needs the number n of training utterances: the rate is batch size / n")
        return self._mechanism(min(1.0, self.batch_size / examples) if self.poisson and examples else None)

    def batches(self, key: int, examples: int) -> Batches:
        """Batches of a run on n `examples`; sgd only distributes each batch among the processes."""
        from edp_lab.training.batches import Batches

        plain, sampling = self.method == "sgd", "poisson" if self.poisson else "shuffle"
        devices, micro_batches = (self.processes,) * 2 if plain else (self.num_devices, self.micro_batches)
        per_example = not plain and self.largest_micro_batch == 1
        shape = (devices, micro_batches, sampling, per_example)
        return Batches(key, examples, self.batch_size, *shape, secret=self.private_seed)

    def _mechanism(self, sampling_rate: float | None) -> Mechanism:
        from edp_lab.privacy import Mechanism

        build = Mechanism.as_printed if self.as_printed else Mechanism.sound
        size = min(self.largest_micro_batch, self.batch_size)
        mechanism = build(self.clip_norm, self.z0, self.num_devices, size, self.decay, self.tau, self.alpha_source)
        exact = mechanism.exact_noise and self.noise != "per-device"
        return replace(mechanism, exact_noise=exact, sampling_rate=sampling_rate)
