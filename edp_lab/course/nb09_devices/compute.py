"""What ``09_many_gpus.ipynb`` computes: noise of N devices, runs on real processes, step times. No widgets.

    noise = device_noise(AS_PRINTED, num_devices=8, clip_norm=1.0, z0=1.0, epochs=1, parameters=300_000, seed=0)
    run = little_run(config)                              # trains; starts `config.processes` real processes
    scaled = scaling("clc", 8, 64, 100.0, 10.0, 1.0)      # measured steps, and what they would be on 8 devices

Noise, training and benchmark are those of `edp_lab.training` and `edp_lab.reproduce.table2`, bills are
`edp_lab.privacy`'s. Rows of the benchmark stay as ``edp-lab reproduce table2 --json`` writes them. Values that make no
sense are refused by `UsageError`.
"""

from __future__ import annotations

import math
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from edp_lab.corpora.smart_home import generate, write_jsonl
from edp_lab.course.kit.inputs import DEVICES, Array, check_whole, mechanism_of, require
from edp_lab.models import load_model
from edp_lab.privacy import Guarantee, Mechanism, judge
from edp_lab.privacy.csprng import key_from_seed
from edp_lab.reproduce.printed import TABLE_2, Table2Row
from edp_lab.reproduce.results_io import RESULTS, rows
from edp_lab.training import StepDone, TrainConfig, train
from edp_lab.training.noise import Share, standard_noise
from edp_lab.training.run_folder import MODEL
from edp_lab.training.trainer import Event

Row = dict[str, Any]  # of the benchmark of steps

DRAWS = 4000  # coordinates of which noise is drawn
FLOAT32 = 4  # bytes
LITTLE = 600  # utterances of the corpus for real processes: five steps an epoch


# ---- The noise of N devices ----------------------------------------------------------------------------------------


class DeviceNoise(NamedTuple):
    """One step's noise on the mean over N devices, and what the run costs."""

    mechanism: Mechanism
    parameters: int
    seed: int
    aggregate: Array  # (4000,), drawn once for the sum
    per_device: Array  # (4000,), as the mean of N devices' own draws
    same: Array  # (4000,), where all devices draw the same numbers, each at the deviation that is meant for its own
    counts: NDArray[np.int64]  # (K,), numbers of devices
    here: int  # where N is among them
    on_mean: Array  # (K,), deviation of the noise on the mean
    wanted: Array  # (K,), z0 times what an utterance moves the mean by
    guarantee: Guarantee  # of the run on N devices


def device_noise(
    variant: str, num_devices: int, clip_norm: float, z0: float, epochs: int, parameters: int, delta: float, seed: int
) -> DeviceNoise:
    """Draw the noise of the first step, as the library's trainer would, and bill `epochs` epochs without decay."""
    check_whole("number of epochs", epochs, 1, 1000)
    check_whole("number of parameters", parameters, 1, 10**12)
    check_whole("seed", seed, 0, 2**31)
    mechanism = mechanism_of(variant, clip_norm, z0, "none", 0.0, num_devices)
    counts = np.unique([*DEVICES, num_devices])
    settings = [mechanism_of(variant, clip_norm, z0, "none", 0.0, int(count)) for count in counts]
    on_mean, key = mechanism.noise_std(0) / num_devices, key_from_seed(seed)
    kinds = ("aggregate", "per-device", "shared")
    once, own, same = (standard_noise(key, 0, DRAWS, Share(kind, num_devices)).numpy() for kind in kinds)

    drawn = on_mean * once, on_mean * own, mechanism.device_noise_std(0) * same
    return DeviceNoise(
        *(mechanism, parameters, seed, *drawn, counts, counts.tolist().index(num_devices)),
        on_mean=np.array([one.noise_std(0) / one.num_devices for one in settings]),
        wanted=np.array([one.z0 * one.sensitivity() / one.num_devices for one in settings]),
        guarantee=judge(mechanism, epochs, delta, seed_published=False),
    )


def ring_bytes(parameters: int, devices: int | NDArray[np.int64]) -> Any:
    """What each device sends in one ring all-reduce of a float32 gradient, 2 (N - 1) / N of it; for one N or many."""
    return 2 * (devices - 1) / devices * FLOAT32 * parameters


# ---- Runs on real processes ----------------------------------------------------------------------------------------


class LittleRun(NamedTuple):
    """One training run on a little corpus."""

    config: TrainConfig
    record: dict[str, Any]  # "devices" says how many processes were real and how many devices simulated
    losses: list[float]  # mean over the batch, of each step (not private)
    parameters: Array  # (P,), of the trained model
    seconds: float  # with starting the processes, scoring and saving


def little_run(
    config: TrainConfig, listener: Callable[[Event], None] = lambda event: None, stop: threading.Event | None = None
) -> LittleRun:
    """Train on 600 generated commands, on as many processes as `config` says; its corpus counts for nothing."""
    losses: list[float] = []

    def listen(event: Event) -> None:
        if isinstance(event, StepDone):
            losses.append(event.loss)
        listener(event)

    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="edp-lab-") as name:
        corpus, out = Path(name) / "little.jsonl", Path(name) / "run"
        write_jsonl(generate(LITTLE, 0), corpus)
        record = train(replace(config, corpus=str(corpus)), out, listen, stop)
        model = load_model(out / MODEL)
    parameters = torch.cat([p.detach().flatten() for p in model.parameters()]).double().numpy()
    return LittleRun(config, record, losses, parameters, time.perf_counter() - start)


def difference(one: LittleRun, other: LittleRun) -> float:
    """The largest difference of any parameter."""
    return float(np.abs(one.parameters - other.parameters).max())


# ---- Table 2 -------------------------------------------------------------------------------------------------------


def where(row: Row) -> str:
    """Machine, device, versions and date of a committed row, in words."""
    kind = "" if row["device"] == "cpu" else f", {row['device']}"
    return f"{row['machine']}{kind}, {row['date']}, torch {row['versions']['torch']}"


@cache
def committed() -> list[Row]:
    """``data/results/bench_step.json``: steps of all methods on ATIS."""
    return rows(RESULTS / "bench_step.json", "edp-lab reproduce table2 --json")


def table2(model: str) -> list[Row]:
    """The committed rows on one process, batches of 64."""
    return [row for row in committed() if (row["model"], row["processes"], row["batch_size"]) == (model, 1, 64)]


def two_processes() -> dict[str, tuple[Row, Row]]:
    """The committed rows of the same work on one process and on two, by method."""
    of = {(row["method"], row["processes"]): row for row in committed() if row["batch_size"] == 256}
    return {method: (of[method, 1], of[method, 2]) for method in ("sgd", "edp-sgd")}


def printed(model: str) -> Table2Row:
    """The paper's row, ATIS."""
    return next(row for row in TABLE_2 if (row.model.lower(), row.corpus) == (model, "ATIS"))


# ---- What N devices would give -------------------------------------------------------------------------------------


class Shares(NamedTuple):
    """Seconds of a step by batch size, one process on one core: `data/results/bench_shares.json`."""

    model: str
    batches: tuple[int, ...]  # rising
    sgd: tuple[float, ...]  # seconds of such a step
    edp_sgd: tuple[float, ...]
    parameters: int  # of the private model, P
    where: str
    command: str

    def seconds(self, method: str, batch: float) -> float:
        """Measured, or on the straight line between or beyond what was."""
        x, y = self.batches, self.sgd if method == "sgd" else self.edp_sgd
        k = min(max(int(np.searchsorted(x, batch)), 1), len(x) - 1)
        return y[k - 1] + (y[k] - y[k - 1]) * (batch - x[k - 1]) / (x[k] - x[k - 1])


@cache
def shares(model: str) -> Shares:
    """What was measured for a model of the paper's size."""
    measured = rows(RESULTS / "bench_shares.json", "edp-lab reproduce table2 --json")
    of = {(row["method"], row["batch_size"]): row for row in measured if row["model"] == model}
    require(of, f"no steps of {model!r} were measured: choose clc or bert")
    batches = sorted({batch for _, batch in of})
    sgd, edp_sgd = (tuple(of[method, batch]["seconds"] for batch in batches) for method in ("sgd", "edp-sgd"))
    last = of["edp-sgd", batches[-1]]
    return Shares(model, tuple(batches), sgd, edp_sgd, last["parameters"], where(last), last["command"])


class Scaling(NamedTuple):
    """Seconds of a step on N devices, a share of the batch each, then one ring all-reduce of the gradient."""

    shares: Shares  # what was measured, on one core
    batch: int  # utterances of a step, over all devices
    counts: NDArray[np.int64]  # (K,), numbers of devices, at least two utterances each
    devices: int  # N
    here: int  # where N is among them
    measured: NDArray[np.bool_]  # (K,), whether a step on one device with such a share was measured, and no line drawn
    sgd: Array  # (K,), seconds of a step: SGD's share
    extra: Array  # (K,), what eDP-SGD adds by clipping and noise
    message: Array  # (K,), the all-reduce
    step: Array  # (K,), all three
    speed_up: Array  # (K,), over eDP-SGD on one device
    ratio: Array  # (K,), of eDP-SGD's step to SGD's on as many devices


def scaling(model: str, devices: int, batch: int, bandwidth: float, latency: float, speed: float) -> Scaling:
    """Steps on 1, 2, 4, ... devices, from measured shares and assumed links (GB/s; microseconds for each of the ring's
    2 (N - 1) messages) and devices (times as fast as the measured core). Nothing of it was run on GPUs.
    """
    check_whole("batch", batch, 4, 4096)
    check_whole("number of devices", devices, 1, batch // 2)
    for name, value in (("bandwidth", bandwidth), ("speed of a device", speed)):
        require(0 < value < math.inf, f"the {name} is {value}: it must be greater than 0")
    require(0 <= latency < math.inf, f"the latency is {latency}: it must be 0 or more")
    known, counts = shares(model), np.unique([*(n for n in (*DEVICES, 64) if 2 * n <= batch), devices])
    sgd, edp_sgd = (np.array([known.seconds(m, batch / n) for n in counts]) / speed for m in ("sgd", "edp-sgd"))
    message = ring_bytes(known.parameters, counts) / (1e9 * bandwidth) + 2 * (counts - 1) * 1e-6 * latency
    extra = edp_sgd - sgd
    step = sgd + extra + message
    here, measured = counts.tolist().index(devices), np.isin(batch / counts, known.batches)
    of = known, batch, counts, devices, here, measured
    return Scaling(*of, sgd, extra, message, step, step[0] / step, step / (sgd + message))
