"""Privacy that holds and still works: the least error found at a target epsilon, its price in time, eDP-SGD's place.

Beyond the paper. Each method starts from what needs no privacy: frozen word vectors of text that is not protected (the
other corpora, and generated utterances), a CRF that knows the grammar of BIO tags, and a one-layer LSTM, since every
parameter that is trained is a parameter that is noised. z0 follows from epsilon before a run begins.

The learning rate is chosen on the validation split of the first seed; the scores are of test splits. Each point also
carries the epsilon of all that was looked at to choose it, as if every trial had been published.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from edp_lab.corpora import load_corpus, split
from edp_lab.corpora.smart_home import generate
from edp_lab.errors import UsageError
from edp_lab.privacy.calibration import Budget, calibrate_z0
from edp_lab.privacy.tuning import composed
from edp_lab.studies.table1 import Estimate
from edp_lab.studies.table_runs import Job, TableRuns
from edp_lab.training import TrainConfig
from edp_lab.training.pretraining import pretrain_vectors

NAMES = ("atis", "snips", "nlu-eval", "smart-home")
PUBLIC = NAMES[:3]  # each is text that is not to be protected, where another one is
TEXT_SEED, GENERATED = 14586, 20_000
DEVICES = 8
METHODS: dict[str, dict[str, Any]] = {
    "DP-SGD": {"method": "dp-sgd"},
    "eDP-SGD, 1 utterance a clip": {"method": "edp-sgd", "micro_batch_size": 1},
    "eDP-SGD, 8 utterances a clip": {"method": "edp-sgd", "micro_batch_size": 8},
}
SGD = "SGD"


@dataclass(frozen=True)
class Scale:
    """How much is trained.

    Attributes:
        epsilons: targets, at delta = n^-1.1.
        rates: learning rates that are tried for each method and target.
        steps: of a private run, about; it has at most `most_epochs`.
        plain_epochs: of SGD, at the paper's size.
    """

    epsilons: tuple[float, ...]
    rates: tuple[float, ...]
    seeds: int
    steps: int
    most_epochs: int
    plain_epochs: int
    plain_size: str
    size: str
    batch_size: int


QUICK = Scale((8.0,), (1e-2,), 1, 60, 8, 2, "medium", "medium", 256)
FULL = Scale((8.0, 3.0, 1.0), (5e-3, 1e-2, 2e-2), 3, 500, 50, 12, "paper", "medium", 512)


@dataclass(frozen=True)
class Point:
    """One method on one corpus at one target.

    Attributes:
        epsilon: that holds at `delta` for one utterance, were the seeds secret; None without privacy.
        epsilon_of_tuning: of all trials and the run itself, were all published; of training utterances, not of those on
            which the trials were compared.
        ser, intent_accuracy, slot_f1: on the test splits, in percent.
        seconds, time_ratio: of training on one thread; as a multiple of SGD's.
        settings: of the first seed's run.
        runs: keys of the runs behind this point, one for each seed.
    """

    corpus: str
    method: str
    epsilon: float | None
    epsilon_of_tuning: float | None
    delta: float | None
    examples: int
    ser: Estimate
    intent_accuracy: Estimate
    slot_f1: Estimate
    seconds: float
    time_ratio: float
    trials: int
    settings: dict[str, Any]
    runs: tuple[str, ...]
    about: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def pareto(runs: TableRuns, scale: Scale, corpora: Sequence[str]) -> Iterator[list[Point]]:
    """The points of one corpus after the other: SGD, then each method at each target.

    Raises:
        UsageError: a corpus that is not at hand, seeds or epsilons that are not positive; as `TableRuns.results`.
    """
    if scale.seeds < 1 or not scale.epsilons or min(scale.epsilons) <= 0:
        raise UsageError("give at least one seed and one epsilon, and epsilons greater than 0")
    for corpus in corpora:
        load_corpus(corpus)  # before hours of work
    for corpus in corpora:
        yield _points(runs, scale, corpus)


def _points(runs: TableRuns, scale: Scale, corpus: str) -> list[Point]:
    plain = [
        TrainConfig(corpus, method="sgd", epochs=scale.plain_epochs, size=scale.plain_size, seed=seed)
        for seed in range(scale.seeds)
    ]
    own = runs.results([Job(config) for config in plain], f"{corpus}: SGD")
    found = [_point(corpus, SGD, None, plain, own, own, 0)]
    vectors = public_vectors(corpus, runs.out / "public")
    grid = {
        (method, epsilon): [_private(corpus, method, epsilon, rate, 0, scale, vectors) for rate in scale.rates]
        for method in METHODS
        for epsilon in scale.epsilons
    }
    every = [config for trials in grid.values() for config in trials]
    tried = dict(zip(every, runs.results([Job(c) for c in every], f"{corpus}: tuning"), strict=True))
    chosen = {place: min(trials, key=lambda c: tried[c]["validation_ser"]) for place, trials in grid.items()}
    seeds = {
        (method, epsilon): [
            _private(corpus, method, epsilon, config.learning_rate, seed, scale, vectors) for seed in range(scale.seeds)
        ]
        for (method, epsilon), config in chosen.items()
    }
    every = [config for configs in seeds.values() for config in configs]
    done = dict(zip(every, runs.results([Job(c) for c in every], f"{corpus}: seeds"), strict=True))
    for (method, epsilon), configs in seeds.items():
        results = [done[config] for config in configs]
        found.append(_point(corpus, method, epsilon, configs, results, own, len(scale.rates)))
    return found


def _private(
    corpus: str, method: str, epsilon: float, rate: float, seed: int, scale: Scale, vectors: Path
) -> TrainConfig:
    """A run of this method that meets the target: z0 is the smallest that does."""
    examples = len(split(load_corpus(corpus), seed).train)
    batch = min(scale.batch_size, max(DEVICES + 1, examples // 4))
    epochs = max(1, min(scale.most_epochs, round(scale.steps * batch / examples)))
    config = TrainConfig(
        corpus,
        num_devices=DEVICES,
        batch_size=batch,
        epochs=epochs,
        clip_norm=0.1,
        lr=rate,
        dropout=0.0,
        size=scale.size,
        pretrained=str(vectors),
        seed=seed,
        **METHODS[method],
    )
    mechanism = config.mechanism(examples)
    assert mechanism is not None
    return replace(config, z0=calibrate_z0(mechanism, epochs, Budget(epsilon, examples**-1.1)))


def _point(
    corpus: str,
    method: str,
    epsilon: float | None,
    configs: Sequence[TrainConfig],
    results: Sequence[Mapping[str, Any]],
    plain: Sequence[Mapping[str, Any]],
    trials: int,
) -> Point:
    first, config = results[0], configs[0]
    mechanism, tuning = config.mechanism(first["examples"]), None
    if mechanism is not None:
        tuning = composed(mechanism.schedule(mechanism.bill(config.epochs)), trials + 1, first["delta"])
    seconds, of_sgd = (statistics.fmean(one["seconds"] for one in some) for some in (results, plain))
    return Point(
        corpus=corpus,
        method=method,
        epsilon=None if epsilon is None else max(one["epsilon"] for one in results),
        epsilon_of_tuning=tuning,
        delta=None if epsilon is None else first["delta"],
        examples=first["examples"],
        ser=_percent(results, "ser"),
        intent_accuracy=_percent(results, "intent_accuracy"),
        slot_f1=_percent(results, "slot_f1"),
        seconds=seconds,
        time_ratio=seconds / of_sgd,
        trials=trials,
        settings={
            name: getattr(config, name)
            for name in ("size", "batch_size", "epochs", "z0", "clip_norm", "learning_rate", "dropout")
        },
        runs=tuple(one["run"] for one in results),
        about={name: first[name] for name in ("device", "machine", "threads", "versions")},
    )


def _percent(results: Sequence[Mapping[str, Any]], name: str) -> Estimate:
    return Estimate.of([100 * one[name] for one in results])


def public_vectors(corpus: str, folder: Path) -> Path:
    """FastText vectors of text that has nothing to do with `corpus`, in a folder named by their content.

    The text: the other corpora as far as they are at hand, and utterances generated for this purpose.
    """
    text = [u.tokens for u in generate(GENERATED, TEXT_SEED).utterances]
    for name in PUBLIC:
        if name != corpus:
            try:
                text += [u.tokens for u in load_corpus(name).utterances]
            except UsageError:
                continue  # not at hand
    made = folder / hashlib.sha256(json.dumps(text).encode()).hexdigest()[:16]
    if not made.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        pretrain_vectors(text, made)
    return made
