"""Contests: the accountants, and DP-Adam on images, beside their peers in one run; how long each attack takes; and how
long until a command has answered, or training has taken its first step, beside importing torch.

A round gives one turn to each in turn, so that whatever else the machine does falls on all of them; medians count, and
ratios are formed within a round where there are many.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edp_lab.attacks.membership.attacks import Attacked, attack_lira, attack_loss, attack_shadow, load_target
from edp_lab.attacks.membership.signals import check_shadows
from edp_lab.errors import UsageError
from edp_lab.models.image import build_classifier
from edp_lab.privacy import Mechanism, PrivacyLossDistribution, RenyiDP, Schedule, true_epsilon
from edp_lab.privacy.csprng import key_from_seed
from edp_lab.reproduce.bench.train_step import KEEP_PAGES
from edp_lab.three_phase.classifier import ClassifierTraining
from edp_lab.three_phase.settings import ClassifierSettings
from edp_lab.training import TrainConfig
from edp_lab.training.ledger import LEDGER
from edp_lab.training.result_cache import Say, run_apart
from edp_lab.training.run_folder import run_ledger

DELTA = 1e-5
SUITE = "all but LiRA"
METHODS = ("adam", "dp-adam", "opacus", "opacus-ghost")
SHAPE, CLASSES, MNIST = (1, 28, 28), 10, 60_000
CLIP_NORM, NOISE_MULTIPLIER = 0.2, 1.5


def race(
    contestants: Mapping[str, Callable[[int], Any]],
    rounds: int,
    told: Callable[[str, int], None] = lambda name, number: None,
    slow: float = np.inf,
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Seconds of each contestant's turns, and what its last came to: one a round, of the slow ones in two rounds only.

    An ImportError takes its contestant out of the race, and is what it came to.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    found: dict[str, Any] = {}
    for number in range(rounds):
        for name, turn in contestants.items():
            late = number >= 2 and min(seconds[name], default=0.0) > slow
            if late or isinstance(found.get(name), ImportError):
                continue
            told(name, number)
            start = time.perf_counter()
            try:
                found[name] = turn(number)
            except ImportError as absent:
                found[name] = absent
            else:
                seconds[name].append(time.perf_counter() - start)
    return seconds, found


# ---- Accountants -----------------------------------------------------------------------------------------------------


def bench_accounting(
    repeats: int = 7, epochs: int = 1000, distinct: int = 200, progress: Callable[[str], None] = lambda name: None
) -> dict[str, Any]:
    """Seconds and epsilon of each accountant on two tasks.

    closed_form: so many epochs of disjoint batches with linear decay, each with its own noise multiplier.
    sampled: so many distinct noise multipliers under Poisson sampling, as with decaying noise.
    """
    disjoint = Mechanism.sound(1.0, 100.0, 8, 8, "linear", 0.01)
    schedule = Schedule(np.linspace(2.0, 1.0, distinct), np.full(distinct, 10), 0.01)
    tasks: dict[str, dict[str, Callable[[int], float]]] = {
        "closed_form": {
            "edp_lab": lambda turn: true_epsilon(disjoint, epochs, DELTA),
            "dp_accounting PLD": lambda turn: _peer_pld(disjoint.schedule(disjoint.bill(epochs))),
        },
        "sampled": {
            "edp_lab": lambda turn: PrivacyLossDistribution(schedule).epsilon(DELTA),
            "edp_lab RDP": lambda turn: RenyiDP(schedule).epsilon(DELTA),
            "dp_accounting RDP": lambda turn: _peer_rdp(schedule),
            "dp_accounting PLD": lambda turn: _peer_pld(schedule),
            "prv_accountant": lambda turn: _peer_prv(schedule),
        },
    }
    result: dict[str, Any] = {}
    for task, contestants in tasks.items():
        taken, found = race(contestants, repeats, lambda name, turn: progress(name), slow=1.0)
        ours, result[task] = statistics.median(taken["edp_lab"]), {}
        for name, own in taken.items():
            row: dict[str, Any] = {"seconds": None, "times_ours": None, "rounds": len(own), "epsilon": None}
            if isinstance(found[name], ImportError):
                row["absent"] = "not installed: pip install prv-accountant"
            else:
                seconds = statistics.median(own)
                row |= {"seconds": seconds, "times_ours": seconds / ours, "epsilon": found[name]}
            result[task][name] = row
    of = {name: row["epsilon"] for name, row in result["sampled"].items()}
    distances = {"renyi_distance": abs(of["edp_lab RDP"] / of["dp_accounting RDP"] - 1)}
    return {**result, **distances, "distribution_distance": of["edp_lab"] / of["dp_accounting PLD"] - 1}


def _peer_rdp(schedule: Schedule) -> float:
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    accountant.compose(schedule.events())
    return float(accountant.get_epsilon(DELTA))


def _peer_pld(schedule: Schedule) -> float:
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(value_discretization_interval=1e-3)
    return float(accountant.compose(schedule.events()).get_epsilon(DELTA))


def _peer_prv(schedule: Schedule) -> float:
    from prv_accountant import PRVAccountant
    from prv_accountant.privacy_random_variables import PoissonSubsampledGaussianMechanism

    releases = [
        PoissonSubsampledGaussianMechanism(noise_multiplier=z, sampling_probability=schedule.sampling_rate)
        for z in schedule.noise_multipliers.tolist()
    ]
    counts = schedule.counts.tolist()
    accountant = PRVAccountant(prvs=releases, max_self_compositions=counts, eps_error=0.05, delta_error=DELTA / 100)
    return float(accountant.compute_epsilon(DELTA, counts)[2])


# ---- Steps on images -------------------------------------------------------------------------------------------------


def bench_image(
    model: str = "cnn",
    batch_size: int = 512,
    rounds: int = 15,
    threads: int | None = None,
    methods: tuple[str, ...] = METHODS,
    progress: Callable[[str], None] = lambda name: None,
) -> list[dict[str, Any]]:
    """Per method: seconds of a step (median), ratio to Adam in the same round (median, quartiles), seconds per epoch.

    Args:
        methods: of `METHODS`, with "adam", to which the ratios are. "opacus" keeps every example's gradient (hooks),
            "opacus-ghost" goes backward twice.
        threads: None: all cores.

    UsageError for an unknown method or model, no "adam", fewer than 2 rounds, or where Opacus is not installed.
    """
    for method in methods:
        if method not in METHODS:
            raise UsageError(f"unknown method {method!r}: choose {', '.join(METHODS)}")
    if "adam" not in methods:
        raise UsageError("ratios are to Adam: add adam to the methods")
    if min(rounds - 1, batch_size) < 1:
        raise UsageError(f"{rounds} rounds of {batch_size} examples: give at least 2 rounds and 1 example")
    build_classifier(model, SHAPE, CLASSES, 0)  # refused before a process begins
    job = model, batch_size, rounds, tuple(sorted(methods, key=METHODS.index))
    seconds, used = run_apart(_image_steps, job, progress, threads, KEEP_PAGES)
    rows = []
    for method, own in seconds.items():
        low, middle, high = statistics.quantiles([a / b for a, b in zip(own, seconds["adam"], strict=True)], n=4)
        row = {"model": model, "method": method, "seconds": statistics.median(own), "ratio_to_adam": middle}
        row |= {"ratio_spread": [low, high], "seconds_per_epoch": statistics.median(own) * MNIST / batch_size}
        rows.append({**row, "batch_size": batch_size, "rounds": rounds, "threads": used})
    return rows


def _image_steps(job: tuple[str, int, int, tuple[str, ...]], say: Say) -> tuple[dict[str, list[float]], int]:
    """In a process of its own: seconds of each method's steps, and how many threads it has."""
    model, batch_size, rounds, methods = job
    examples, rng = 4 * batch_size, np.random.default_rng(1)
    batches = [rng.permutation(examples)[:batch_size] for _ in range(rounds)]
    takers = {method: _taker(method, model, batch_size, examples) for method in methods}
    turns = {method: lambda number, take=take: take(batches[number]) for method, take in takers.items()}
    race(turns, 1)  # allocates memory
    seconds, _ = race(turns, rounds, lambda method, number: say(f"{method}, round {number + 1}"))
    return seconds, torch.get_num_threads()


def _taker(method: str, model: str, batch_size: int, examples: int) -> Callable[[NDArray[np.int64]], object]:
    """Takes a step of a method on given numbers out of so many random examples."""
    rng = np.random.default_rng(0)
    x = rng.random((examples, *SHAPE), dtype=np.float32)
    y = rng.integers(CLASSES, size=examples)
    settings = ClassifierSettings(model=model, batch_size=batch_size, epochs=1000)
    if method != "adam":
        settings = replace(settings, method="dp-adam", clip_norm=CLIP_NORM, noise_multiplier=NOISE_MULTIPLIER)
    run = ClassifierTraining(settings.resolved(examples), x, y)
    if method == "adam":
        return lambda numbers: run.take(0, [numbers])
    if method == "dp-adam":
        return lambda numbers: run.take(0, list(numbers[:, None]))
    from edp_lab.reproduce.bench.opacus_peer import image_peer

    return image_peer(run, ghost=method == "opacus-ghost").step


# ---- Attacks ---------------------------------------------------------------------------------------------------------


def bench_attacks(
    run: str | Path,
    shadows: int = 16,
    size: str | None = "medium",
    epochs: int | None = 8,
    told: Callable[[str], None] = lambda what: None,
) -> Iterator[dict[str, Any]]:
    """A row per attack {attack, seconds, found, config}: membership, an audit by one run, of its mechanism; then LiRA.

    `config`: the run's settings. `shadows`, `size`, `epochs`: of LiRA's shadow models; 0 shadows leave it out.
    """
    config = asdict(load_target(run).config)  # refused before anything takes long, and so are the shadow models
    if shadows:
        check_shadows(shadows)
        TrainConfig("", size=size or "small", epochs=epochs or 1)
    with tempfile.TemporaryDirectory() as folder:
        cache, total = Path(folder), 0.0
        suite: dict[str, Callable[[], dict[str, Any]]] = {
            "loss": lambda: _found(attack_loss(run)),
            "shadow": lambda: _found(attack_shadow(run, cache=cache, told=told)),
            "audit one-run": lambda: _audited(run),
            "audit mechanism": lambda: _drawn(run),
            f"lira, {shadows} shadow models": lambda: _found(
                attack_lira(run, shadows, size=size, epochs=epochs, cache=cache, told=told)
            ),
        }
        *quick, lira = suite
        for name in (*quick, lira) if shadows else quick:
            if name != lira:
                told(name)
            start = time.perf_counter()
            try:
                found = suite[name]()
            except UsageError as error:  # an audit for which this run's mechanism is not made
                found = {"refused": str(error)}
            seconds = time.perf_counter() - start
            total += seconds
            yield {"attack": name, "seconds": seconds, "found": found, "config": config}
            if name == quick[-1]:
                yield {"attack": SUITE, "seconds": total, "found": {}, "config": config}


def _found(attacked: Attacked) -> dict[str, Any]:
    return {"auc": attacked.result.auc, "auc_interval": list(attacked.result.auc_interval)}


def _audited(run: str | Path) -> dict[str, Any]:
    """Of the run's settings on the one-layer model; a run without noise has no claim, and a standard one is audited."""
    from edp_lab.attacks.audit.one_run import audit_one_run

    config = load_target(run).config
    if config.method == "sgd":
        config = TrainConfig(corpus=config.corpus, z0=1.0)
    audit = audit_one_run(replace(config, processes=1, epochs=1, alpha="none"), linear=True)
    return {"epsilon_lower_bound": audit.epsilon_lower_bound, "verdict": audit.verdict}


def _drawn(run: str | Path) -> dict[str, Any]:
    from edp_lab.attacks.audit.step_audit import audit_mechanism

    config = load_target(run).config
    private = config.method != "sgd" and not config.poisson
    mechanism = run_ledger(run).mechanism if private else Mechanism.sound(1.0, 1.0, 8, 8)
    audit = audit_mechanism(mechanism, 1e-5, key_from_seed(config.seed))
    return {"epsilon_lower_bound": audit.epsilon_lower_bound, "verdict": audit.verdict}


# ---- Starts ----------------------------------------------------------------------------------------------------------

TRAIN = "train, first step"
ARGUMENTS: Mapping[str, Sequence[str]] = {  # of Python
    "import torch": ("-c", "import torch"),
    "--help": ("-m", "edp_lab", "--help"),
    "train --help": ("-m", "edp_lab", "train", "--help"),
    "account": ("-m", "edp_lab", "account"),
    "account --sampling-rate": ("-m", "edp_lab", "account", "--sampling-rate", "0.01"),
    TRAIN: ("-m", "edp_lab", "train", "--corpus", "smart-home", "--out", "run"),
}


def bench_start(
    rounds: int = 5, names: Sequence[str] = tuple(ARGUMENTS), progress: Callable[[str], None] = lambda name: None
) -> list[dict[str, Any]]:
    """Of each: median seconds by the clock and of the processor, with all modules on disk and in its cache."""
    worked: dict[str, list[float]] = {name: [] for name in names}

    def turn(name: str, number: int) -> None:
        before = _processor_seconds()
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, *ARGUMENTS[name]]
            with subprocess.Popen(command, cwd=folder, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL) as process:
                while name == TRAIN and process.poll() is None and not _first_step(Path(folder, "run", LEDGER)):
                    time.sleep(0.005)
                if name == TRAIN:
                    process.kill()
        worked[name].append(_processor_seconds() - before)

    contestants = {name: partial(turn, name) for name in names}
    seconds, _ = race(contestants, rounds, lambda name, number: progress(f"{name}, round {number + 1}"))
    return [
        {"start": name, "seconds": statistics.median(seconds[name]), "processor_seconds": statistics.median(own)}
        for name, own in worked.items()
    ]


def _first_step(ledger: Path) -> bool:
    """Its entry follows the mechanism's, just before its noise is drawn."""
    return ledger.exists() and ledger.read_bytes().count(b"\n") > 1


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
