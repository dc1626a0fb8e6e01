"""The measured runs behind ``06_train_and_trade_off.ipynb``: what they are, how they are read and made. No widgets.

    grid = load_grid()                       # as they ship with the course
    measure(Path("runs/tradeoff.json"))      # anew, in minutes; a file that is there is gone on with

A run with a constant learning rate that is stopped after k epochs *is* the run of k epochs, so that one run gives a
point for each of `MARKS`. Launch: ``python -m edp_lab.course.nb06_tradeoff.grid runs/tradeoff.json``.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch

from edp_lab.corpora import Corpus, Split, load_corpus, split
from edp_lab.corpora.metrics import Scores
from edp_lab.course.kit.text import plain
from edp_lab.errors import UsageError
from edp_lab.models.files import read_json, write_whole
from edp_lab.privacy import Guarantee, judge
from edp_lab.reproduce.results_io import RESULTS, machine
from edp_lab.training import StepDone, TrainConfig
from edp_lab.training.inference import evaluate_model
from edp_lab.training.run_folder import versions
from edp_lab.training.trainer import Event, Trainer

BASE = TrainConfig("smart-home", size="small", lr_schedule="constant", epochs=8, tau=0.2)
SCORES = ("ser", "intent_accuracy", "slot_f1", "validation_ser")
MARKS = (1, 2, 4, 8)  # epochs after which a measured run is scored on the test set

METHODS = {
    "sgd": "SGD",
    "printed": "eDP-SGD as printed",
    "sound": "eDP-SGD, sound",
    "dp": "DP-SGD, disjoint batches",
    "poisson": "DP-SGD, Poisson sampling",
    "naive": "DP-SGD, one pass per utterance",
}


@dataclass(frozen=True)
class Point:
    """One run of `config.epochs` epochs, measured.

    Attributes:
        utterances: n, that it was trained on.
        ser, intent_accuracy, slot_f1: on the test set.
        validation_ser: on the validation set, a tenth as large.
        seconds: of training. In a grid, CPU seconds of one thread, the same for all runs of a method and micro-batch
            size; of a live run, seconds by the clock.
    """

    config: TrainConfig
    utterances: int
    ser: float
    intent_accuracy: float
    slot_f1: float
    validation_ser: float
    seconds: float

    @property
    def method(self) -> str:
        """A key of `METHODS`."""
        return method_of(self.config)

    @property
    def micro_batch(self) -> int:
        return self.config.largest_micro_batch

    @cached_property
    def guarantee(self) -> Guarantee:
        """Of this very run, whose seed is published; at delta = n^-1.1 unless the configuration has its own."""
        delta = self.config.delta or self.utterances**-1.1
        return judge(self.config.mechanism(self.utterances), self.config.epochs, delta)

    @property
    def epsilon(self) -> float | None:
        """Were the seed secret and alpha public; None without noise."""
        return self.guarantee.epsilon_if_alpha_public


@dataclass(frozen=True)
class Grid:
    """Measured points, and with what they were measured.

    Attributes:
        about: "command", "machine", "versions".
    """

    points: tuple[Point, ...]
    about: Mapping[str, Any]

    def after(self, epochs: int) -> list[Point]:
        """The points of the first seed after so many epochs."""
        return [p for p in self.points if (p.config.epochs, p.config.seed) == (epochs, BASE.seed)]

    def seeds(self, point: Point) -> list[Point]:
        """The same setting with every seed that was measured."""
        return [p for p in self.points if replace(p.config, seed=point.config.seed) == point.config]


def method_of(config: TrainConfig) -> str:
    """A key of `METHODS`."""
    if config.method == "dp-sgd":
        return "poisson" if config.poisson else "dp"
    if config.method == "edp-sgd":
        return "printed" if config.as_printed else "sound"
    return "sgd" if config.method == "sgd" else "naive"


def configured(base: TrainConfig, method: str, micro_batch: int, z0: float, decay: str, epochs: int) -> TrainConfig:
    """A run of `method` ("sgd", "printed", "sound", "poisson"): corpus, model, C, N, tau and seed as in `base`.

    Sound eDP-SGD with micro-batches of 1 is per-example DP-SGD.

    Raises:
        UsageError: as `TrainConfig`; an unknown method.
    """
    if method not in ("sgd", "printed", "sound", "poisson"):
        raise UsageError(f"unknown method {method!r}: choose sgd, printed, sound or poisson")
    if method == "sgd":
        return plain(base, epochs)
    shared = replace(base, z0=z0, decay=decay, epochs=epochs)
    if method == "printed":
        return replace(shared, as_printed=True)
    if method == "poisson":
        return replace(shared, method="dp-sgd")
    if micro_batch == 1:
        return replace(shared, method="dp-sgd", sampling="shuffle")
    return replace(shared, micro_batch_size=micro_batch)


def plan() -> list[TrainConfig]:
    """The runs of the grid that ships with the course, the ones most worth having first."""

    def runs(method: str, micro_batch: int, z0s: Sequence[float], decay: str = "none") -> list[TrainConfig]:
        return [configured(BASE, method, micro_batch, z0, decay, BASE.epochs) for z0 in z0s]

    ladder = [*runs("sound", 8, (0.003, 0.01, 0.03, 0.1, 0.3)), *runs("sound", 1, (0.01, 0.03, 0.1, 0.3, 1.0))]
    printed = runs("printed", 8, (0.001, 0.003, 0.01, 0.03, 0.1))
    between = [run for m in (2, 4) for run in runs("sound", m, (0.01, 0.03, 0.1))]
    sampled = runs("poisson", 1, (0.1, 0.3, 1.0))
    decayed = [
        *runs("sound", 1, (0.03, 0.1, 0.3), "exponential"),
        *runs("sound", 8, (0.01, 0.03, 0.1), "exponential"),
        *runs("printed", 8, (0.01, 0.03), "exponential"),
        *runs("sound", 1, (0.03, 0.1, 0.3), "linear"),
    ]
    repeated = [*runs("sgd", 1, (0.0,)), *runs("printed", 8, (0.01,)), *runs("sound", 1, (0.1,))]
    slow = replace(runs("sound", 1, (0.1,))[0], method="dp-sgd-naive", epochs=1)
    again = [replace(run, seed=seed) for seed in (1, 2) for run in repeated]
    return [repeated[0], *ladder, *printed, *between, *sampled, *decayed, *again, slow]


def load_grid(path: Path = RESULTS / "tradeoff.json") -> Grid:
    """The measured points of a file that `measure` wrote.

    Raises:
        UsageError: it is missing, damaged, or of another version.
    """
    if not path.exists():
        raise UsageError(f"{path} is missing: restore it from the repository, or measure it anew")
    told = read_json(path)
    try:
        points = tuple(point for run in told["runs"] for point in _points(run, told["seconds_per_epoch"]))
        return Grid(points, {name: told[name] for name in ("command", "machine", "versions")})
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path} is damaged or of another version: restore it from the repository") from error


def _points(run: Mapping[str, Any], pace: Mapping[str, float]) -> Iterator[Point]:
    whole = TrainConfig(**run["config"])
    for row in run["scores"]:
        config = replace(whole, epochs=row["epoch"])
        scores = {name: row[name] for name in SCORES}
        yield Point(config, run["utterances"], **scores, seconds=pace.get(_work(whole), math.nan) * row["epoch"])


def measure(
    path: Path,
    runs: Sequence[TrainConfig] | None = None,
    say: Callable[[str], None] = lambda text: None,
    stop: threading.Event | None = None,
) -> Grid:
    """Train what `path` lacks of `runs` (default: `plan()`), writing it after each one, and return all that it holds.

    Raises:
        UsageError: the file is damaged or cannot be written; as `train`.
    """
    wanted = plan() if runs is None else list(runs)
    stop = stop or threading.Event()
    told = read_json(path) if path.exists() else {"seconds_per_epoch": {}, "runs": []}
    torch.set_num_threads(1)
    for number, config in enumerate(wanted, 1):
        if _settings(config) not in [run["config"] for run in told["runs"]]:
            say(f"run {number} of {len(wanted)}: {METHODS[method_of(config)]}")
            if (run := _train(config, stop)) is None:
                break
            told["runs"].append(run)
            _write(path, told)
    missing = {_work(config): config for config in wanted if _work(config) not in told["seconds_per_epoch"]}
    if missing and not stop.is_set():
        say("timing")
        told["seconds_per_epoch"] |= _paces(list(missing.values()))
        _write(path, told)
    return load_grid(path)


def _write(path: Path, told: Mapping[str, Any]) -> None:
    about = {
        "command": "python -m edp_lab.course.nb06_tradeoff.grid PATH",
        "machine": f"{machine()}; one thread",
        "versions": versions(),
        "seconds_per_epoch": told["seconds_per_epoch"],
    }
    lines = ",\n".join(json.dumps(run) for run in told["runs"])
    head = json.dumps(about, indent=1).removesuffix("\n}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, f'{head},\n "runs": [\n{lines}\n]}}\n'.encode())


def _work(config: TrainConfig) -> str:
    """What decides how long an epoch takes."""
    return f"{method_of(config)}, m = {config.largest_micro_batch}"


def _paces(runs: Sequence[TrainConfig], rounds: int = 3) -> dict[str, float]:
    """CPU seconds of an epoch, by `_work`: in turn, so that whatever else the machine does falls on all; the median."""
    turns = {
        _work(config): Trainer(replace(config, epochs=rounds), *_split(config.corpus, config.seed)) for config in runs
    }
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds):
        for name, run in turns.items():
            if number == 0 or run.config.method != "dp-sgd-naive":  # it takes ten times as long
                seconds[name].append(_cpu_seconds(run))
    return {name: round(statistics.median(times), 3) for name, times in seconds.items()}


def _cpu_seconds(run: Trainer) -> float:
    """Of this process for an epoch, up to its last step, after which it is scored: other work hardly counts."""
    start = last = time.process_time()

    def tick(event: Event) -> None:
        nonlocal last
        if isinstance(event, StepDone):
            last = time.process_time()

    run.epoch(tick)
    return last - start


def _settings(config: TrainConfig) -> dict[str, Any]:
    """What differs from the defaults."""
    defaults = asdict(TrainConfig(config.corpus))
    chosen = {name: value for name, value in asdict(config).items() if value != defaults[name]}
    return {"corpus": config.corpus, **chosen}


def _train(config: TrainConfig, stop: threading.Event) -> dict[str, Any] | None:
    """One run with its scores after each of `MARKS`; None if it was stopped."""
    corpus, data = _split(config.corpus, config.seed)
    run, scores = Trainer(config, corpus, data), []
    for epoch in range(1, config.epochs + 1):
        if stop.is_set() or not run.epoch(stop=stop):
            return None
        if epoch in MARKS or epoch == config.epochs:
            validation = run.record["epochs"][-1]["ser"]
            scores.append(_row(epoch, evaluate_model(run.model, data.test), validation))
    return {"config": _settings(config), "utterances": len(data.train), "scores": scores}


def _row(epoch: int, scores: Scores, validation: float) -> dict[str, float | None]:
    found = [scores.ser, scores.intent_accuracy, scores.slot_f1, validation]
    rounded = [None if score is None else round(score, 4) for score in found]
    return {"epoch": epoch, **dict(zip(SCORES, rounded, strict=True))}


@cache
def _split(name: str, seed: int) -> tuple[Corpus, Split]:
    corpus = load_corpus(name)
    return corpus, split(corpus, seed)


def live_point(config: TrainConfig, record: Mapping[str, Any]) -> Point:
    """The point of a run that `edp_lab.training.train` has made."""
    final, last = record["final"], record["epochs"][-1]
    scores = {name: final[name] for name in ("ser", "intent_accuracy", "slot_f1", "seconds")}
    utterances = record["corpus"]["splits"]["train"]
    return Point(replace(config, epochs=len(record["epochs"])), utterances, validation_ser=last["ser"], **scores)


if __name__ == "__main__":
    measure(Path(sys.argv[1]), say=lambda text: print(text, flush=True))
