"""Settings of the three phases and of each network, validated.

Importing this module loads neither torch nor numpy, because ``edp-lab three-phase --help`` reads `ThreePhaseSettings`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from edp_lab.errors import UsageError, check_types
from edp_lab.training.config import COUNT, SEED

if TYPE_CHECKING:
    from edp_lab.three_phase.votes import Aggregator

PUBLIC_SHARE = 0.9  # share of the test set that the vote may label
PLAIN, ONE, HARD, UNDERSTUDY = "plain model", "one instructor", "hard vote", "understudy"
# Accuracy as printed in tables 4.4 (no privacy), 4.5 (phase I alone) and 4.7 (all three phases).
THESIS_ACCURACY = {
    "cnn": {PLAIN: 0.98, ONE: 0.97, UNDERSTUDY: 0.95},
    "alexnet": {PLAIN: 0.99, ONE: 0.98, UNDERSTUDY: 0.96},
    "vgg": {PLAIN: 0.99, ONE: 0.98, UNDERSTUDY: 0.97},
}
FEWEST_STEPS = 300  # minimum number of steps of a network trained without privacy, even on few examples
SMALL, SMALL_BATCH, BATCH = 5000, 32, 64  # up to SMALL examples, batches are smaller
NOT_PRIVATE = (
    "scores and losses of all parts but the understudy, the votes and their statistics, statistics of the pixels, "
    "checksum and size of the data, and whether and where a run failed"
)

DELTA = 1e-5
SPENT = {"epsilon": 7.0, "clip_norm": 0.2}  # for private methods; 7 is the thesis' main setting (chapter 6)
LARGEST_RATE = 0.25  # maximum Poisson sampling rate by default, which gives small data sets smaller batches
LEAST_STEPS = 300  # minimum number of steps by default, which gives small data sets more epochs
PRIVATE_METHODS = ("dp-sgd", "dp-adam")
# Defaults by method, chosen on the last 5,000 training images of MNIST (private methods: epsilon 2.93, delta 1e-5).
DEFAULTS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.3, "batch_size": 64, "epochs": 10, "weight_decay": 0.0},
    "adam": {"lr": 2e-3, "batch_size": 64, "epochs": 10, "weight_decay": 0.0},
    "dp-sgd": {"lr": 8.0, "batch_size": 2048, "epochs": 20, "weight_decay": 0.0, **SPENT},
    "dp-adam": {"lr": 1e-2, "batch_size": 2048, "epochs": 20, "weight_decay": 0.1, **SPENT},
}


@dataclass(frozen=True)
class ClassifierSettings:
    """Settings of one training run. None means the method's default in `DEFAULTS`."""

    model: str = "cnn"  # see `edp_lab.models.image.build_classifier`
    activation: str = "tanh"
    method: str = "adam"  # a key of `DEFAULTS`; "dp-adam" is the thesis' Algorithm 7
    epsilon: float | None = None  # budget of a private method at `delta`, to which its noise is calibrated
    delta: float = DELTA
    clip_norm: float | None = None  # C, the L2 bound on each example's gradient
    # Number of examples per step; for a private method, the expected number under Poisson sampling. The default of a
    # private method is at most a quarter of the examples.
    batch_size: int | None = None
    epochs: int | None = None  # passes, or the equivalent in Poisson steps; None: on small data, enough for 300 steps
    lr: float | None = None  # learning rate of the first step, from which it falls linearly to 0
    # lambda of decoupled weight decay (Loshchilov and Hutter 2019, arXiv 1711.05101): a step first shrinks each weight
    # by the factor 1 - lr lambda. Without it, noise makes weights grow until tanh saturates. Epsilon stays the same.
    weight_decay: float | None = None
    classes: int = 10  # number of classes; labels are from 0 to classes - 1
    # Seed of the weights, and without `private_seed` of order and noise. Runs on different data need different seeds,
    # because subtracting two runs with the same noise would remove it.
    seed: int = 0
    private_seed: bool = False  # draw the key of order and noise from the operating system, and discard it

    def __post_init__(self) -> None:
        check_types(self)
        if self.method not in DEFAULTS:
            raise UsageError(f"unknown method {self.method!r}: choose {', '.join(DEFAULTS)}")
        if not self.private and (self.epsilon, self.clip_norm) != (None, None):
            raise UsageError(
                f"method {self.method!r} adds no noise: omit epsilon and clip norm, or use dp-{self.method}"
            )
        if self.private:
            from edp_lab.privacy.calibration import Budget

            Budget(SPENT["epsilon"] if self.epsilon is None else self.epsilon, self.delta)

    @property
    def private(self) -> bool:
        return self.method in PRIVATE_METHODS

    def resolved(self, examples: int) -> ClassifierSettings:
        """These settings, with None replaced by the defaults for this number of training examples."""
        defaults = DEFAULTS[self.method]
        most = max(1, int(LARGEST_RATE * examples)) if self.private else examples
        given = {name: value for name, value in asdict(self).items() if value is not None}
        size = given.get("batch_size", min(defaults["batch_size"], most))
        if size > examples:
            raise UsageError(f"batch size {size} exceeds the number of training examples ({examples}): lower it")
        epochs = max(defaults["epochs"], math.ceil(LEAST_STEPS * size / examples))
        return replace(self, **{**defaults, "batch_size": size, "epochs": epochs, **given})


@dataclass(frozen=True)
class ThreePhaseSettings:
    """Settings of one run of the pipeline."""

    model: Annotated[str, "Network of instructors and understudy: cnn (two convolutions), alexnet, vgg or mlp."] = "cnn"
    # Phases to include; without phase 2 there is one instructor, trained on all training examples.
    phases: tuple[int, ...] = (1, 2, 3)
    sigma: Annotated[float, "Phase I: standard deviation of the noise on a pixel in [0, 1]."] = 0.6
    instructors: Annotated[int, "Phase II: number of networks; each gets its own part of the training set.", COUNT] = 10
    vote: Annotated[str, "Kind of vote: hard, laplace or gaussian."] = "laplace"
    vote_epsilon: Annotated[float, "Epsilon of one noisy label; the epsilon of all labels together is larger."] = 0.2
    labels: Annotated[int | None, "Number of public images to label, from the first (default: all).", COUNT] = None
    method: Annotated[str, "Training method of instructors: adam, sgd, dp-adam (as in the thesis) or dp-sgd."] = "adam"
    understudy_method: Annotated[str, "Phase III: training method of the understudy (same choices)."] = "adam"
    train_epsilon: Annotated[float, "Epsilon of each network trained with a private method, at --delta."] = 7.0
    delta: Annotated[float, "Delta of (epsilon, delta): a slack that should be well below 1/n."] = 1e-5
    epochs: Annotated[int | None, "Number of epochs of every network (default: depends on its data).", COUNT] = None
    seed: Annotated[int, "Seed, published so that the run can be repeated.", SEED] = 0
    private_seed: Annotated[bool, "Draw all noise from a secret key, so that an epsilon is guaranteed."] = False

    def __post_init__(self) -> None:
        from edp_lab.privacy.gdp import check_delta
        from edp_lab.three_phase.perturbation import check_sigma

        check_types(self)
        object.__setattr__(self, "phases", tuple(sorted(set(self.phases))))
        if not self.phases or not set(self.phases) <= {1, 2, 3}:
            raise UsageError(f"phases are {', '.join(map(str, self.phases)) or 'none'}: choose some of 1, 2 and 3")
        for of, epsilon in (("a vote", self.vote_epsilon), ("private training", self.train_epsilon)):
            if not 0 < epsilon < math.inf:  # checked even if unused
                raise UsageError(f"the epsilon of {of} is {epsilon}: it must be a finite number greater than 0")
        check_sigma(self.sigma)
        check_delta(self.delta)
        self.aggregator()
        for method in (self.method, self.understudy_method):
            self.training(method, 1000, 10, "")

    def aggregator(self) -> Aggregator:
        from edp_lab.three_phase.votes import Aggregator

        return Aggregator.for_epsilon(self.vote, self.vote_epsilon, self.delta)

    def training(self, method: str, examples: int, classes: int, name: str) -> ClassifierSettings:
        """Training settings of the network `name` on this number of examples."""
        from edp_lab.privacy.csprng import key_from_seed

        seed = key_from_seed(f"three phases {self.seed}: {name}") % 2**32
        given = ClassifierSettings(self.model, method=method, delta=self.delta, classes=classes, seed=seed)
        if given.private:
            return replace(given, epochs=self.epochs, epsilon=self.train_epsilon, private_seed=self.private_seed)
        batch = min(SMALL_BATCH if examples <= SMALL else BATCH, examples)
        epochs = self.epochs or max(5, math.ceil(FEWEST_STEPS / math.ceil(examples / batch)))
        return replace(given, batch_size=batch, epochs=epochs)
