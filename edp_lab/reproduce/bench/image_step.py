"""How long a training step of an image classifier takes: Adam, our DP-Adam, and Opacus' in two of its modes.

All start from the same weights and see the same examples of MNIST's shape. A round gives one step to each in turn, so
that whatever else the machine does falls on all of them; ratios are formed within a round.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edp_lab.errors import UsageError
from edp_lab.models.image import ImageClassifier
from edp_lab.reproduce.bench.train_step import KEEP_PAGES
from edp_lab.three_phase.classifier import ClassifierSettings, ClassifierTraining
from edp_lab.training.processes import Ranks, run_rank

METHODS = ("adam", "dp-adam", "opacus", "opacus-ghost")
SHAPE, CLASSES, MNIST = (1, 28, 28), 10, 60_000
CLIP_NORM, NOISE_MULTIPLIER = 0.2, 1.5


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

    Raises:
        UsageError: an unknown method, no "adam", fewer than 2 rounds, an unknown model, or Opacus is not installed.
    """
    for method in methods:
        if method not in METHODS:
            raise UsageError(f"unknown method {method!r}: choose {', '.join(METHODS)}")
    if "adam" not in methods:
        raise UsageError("ratios are to Adam: add adam to the methods")
    if min(rounds - 1, batch_size) < 1:
        raise UsageError(f"{rounds} rounds of {batch_size} examples: give at least 2 rounds and 1 example")
    ordered = sorted(methods, key=METHODS.index)
    job = json.dumps({"model": model, "batch_size": batch_size, "rounds": rounds, "methods": ordered})
    seconds: dict[str, list[float]] = {method: [] for method in ordered}
    used = 0
    with Ranks(1, ["edp_lab.reproduce.bench.image_step", job], threads, KEEP_PAGES) as ranks:
        for line in ranks.lines():
            told = json.loads(line)
            progress(f"{told['method']}, round {len(seconds[told['method']]) + 1}")
            seconds[told["method"]].append(told["seconds"])
            used = told["threads"]
    return [
        {
            "model": model,
            "method": method,
            "seconds": statistics.median(own),
            **_ratio(own, seconds["adam"]),
            "seconds_per_epoch": statistics.median(own) * MNIST / batch_size,
            "batch_size": batch_size,
            "rounds": rounds,
            "threads": used,
        }
        for method, own in seconds.items()
    ]


def _ratio(own: list[float], adam: list[float]) -> dict[str, Any]:
    ratios = [a / b for a, b in zip(own, adam, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {"ratio_to_adam": middle, "ratio_spread": [low, high]}


class OpacusPeer:
    """One of our networks, from modules whose gradients Opacus knows, under its optimizer.

    Args:
        run: of DP-Adam; its model is copied, never changed.
        ghost: whether to keep the norms of the examples' gradients alone and go backward twice.
    """

    def __init__(self, run: ClassifierTraining, ghost: bool) -> None:
        try:
            from opacus.grad_sample.utils import wrap_model
            from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
        except ImportError as missing:
            raise UsageError(
                "method 'opacus' needs Opacus 1.6 or newer: pip install opacus, or edp-lab[test]"
            ) from missing
        mechanism, size = run.mechanism, run.settings.batch_size
        assert mechanism is not None
        self.data, self.ghost = run.data, ghost
        clip = {"max_grad_norm": mechanism.clip_norm} if ghost else {}
        self.module: Any = wrap_model(plain_copy(run.model), "ghost" if ghost else "hooks", **clip)
        kind = DPOptimizerFastGradientClipping if ghost else DPOptimizer
        self.optimizer: Any = kind(
            torch.optim.Adam(self.module.parameters(), lr=run.lr, fused=True),
            noise_multiplier=mechanism.z0,
            max_grad_norm=mechanism.clip_norm,
            expected_batch_size=size,
        )

    def take(self, numbers: NDArray[np.int64]) -> None:
        """One step on these examples; afterwards ``.grad`` is what the optimizer was given."""
        from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

        batch = self.data.batch(numbers)
        self.optimizer.zero_grad(set_to_none=True)
        losses = nn.functional.cross_entropy(self.module(batch.images), batch.labels, reduction="none")
        if self.ghost:
            DPTensorFastGradientClipping(self.module, self.optimizer, losses).backward()
        else:
            losses.mean().backward()
        self.optimizer.step()


class _Centred(nn.Module):
    """What `ImageClassifier` does to an image before its first convolution."""

    def forward(self, x: Tensor) -> Tensor:
        return (2 * x - 1).contiguous(memory_format=torch.channels_last)


def plain_copy(model: ImageClassifier) -> nn.Sequential:
    """The same network and weights as a row of torch's modules."""
    act = nn.ReLU if model.activation == "relu" else nn.Tanh
    modules: list[nn.Module] = [_Centred()] if model.stages else []
    for stage, layer in zip(model.stages, model.convolutions, strict=True):
        pool = [nn.MaxPool2d(stage.pool, stage.pool_stride)] if stage.pool else []
        modules += [deepcopy(layer), *pool, act()]
    modules.append(nn.Flatten())
    for layer in model.dense:
        modules += [deepcopy(layer), act()]
    return nn.Sequential(*modules[:-1])


def contestant(method: str, model: str, batch_size: int, examples: int) -> Callable[[NDArray[np.int64]], object]:
    """What takes a step of a method on given numbers out of so many random examples."""
    rng = np.random.default_rng(0)
    x = rng.random((examples, *SHAPE), dtype=np.float32)
    y = rng.integers(CLASSES, size=examples)
    settings = ClassifierSettings(model=model, batch_size=batch_size, epochs=1000)
    if method == "adam":
        plain = ClassifierTraining(settings.resolved(examples), x, y)
        return lambda numbers: plain.take(0, [numbers])
    private = ClassifierSettings(
        model=model,
        batch_size=batch_size,
        epochs=1000,
        method="dp-adam",
        clip_norm=CLIP_NORM,
        noise_multiplier=NOISE_MULTIPLIER,
    )
    run = ClassifierTraining(private.resolved(examples), x, y)
    if method == "dp-adam":
        return lambda numbers: run.take(0, list(numbers[:, None]))
    return OpacusPeer(run, ghost=method == "opacus-ghost").take


def main(job: str) -> None:
    """Print a line of JSON for each step."""
    told = json.loads(job)
    size = told["batch_size"]
    examples = 4 * size
    takers = {method: contestant(method, told["model"], size, examples) for method in told["methods"]}
    rng = np.random.default_rng(1)
    for number in range(told["rounds"] + 1):
        numbers = rng.permutation(examples)[:size]
        for method, take in takers.items():
            start = time.perf_counter()
            take(numbers)
            seconds = time.perf_counter() - start
            if number:  # the first step allocates memory
                row = {"method": method, "seconds": seconds, "threads": torch.get_num_threads()}
                sys.stdout.write(json.dumps(row) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    run_rank(lambda job, _: main(job))
