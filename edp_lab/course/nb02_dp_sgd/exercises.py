"""Exercises of notebook 02: DP-SGD in four parts (clip, batch, step, and training loop with accountant)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edp_lab.course.kit.controls import DELTA, Array
from edp_lab.course.kit.exercises import Differences, close, exercises_of, given
from edp_lab.course.kit.text import count
from edp_lab.course.nb02_dp_sgd.panels import gradients, people
from edp_lab.privacy import Mechanism, judge, releases_by_epoch
from edp_lab.privacy.pld import ORDERS, log_moments, rdp_epsilon
from edp_lab.three_phase.classifier import by_norm

CLOSE = 1e-6


def _clip(answer: Callable[..., Tensor], rng: np.random.Generator) -> Differences:
    for _ in range(4):
        weights, c = torch.from_numpy(rng.standard_normal(2)), float(rng.uniform(0.5, 1.5))
        x = torch.from_numpy(rng.standard_normal((8, 2)) * np.array([0, 0.1, 0.3, 20, 40, 1, 5, 5])[:, None])
        y = torch.from_numpy(np.array([0.0, 1, 0, 1, 0, 1, 0, 1]))
        long = gradients(x, y, weights)
        slips = {
            "Your gradients have the wrong sign: the error is prediction minus label.": by_norm(-long, c),
            "A prediction is a probability: apply the sigmoid to x · w.": by_norm((x @ weights - y)[:, None] * x, c),
            "Divide by B later, after adding noise: clip full gradients.": by_norm(long / len(x), c),
        }
        got, wanted = answer(weights.clone(), x.clone(), y.clone(), c), by_norm(long, c)
        wrong = close(got, wanted, f"clipped_gradients(..., C={c:.2f})", slips=slips)
        if wrong is not None:
            mine = np.asarray(got, dtype=float)
            unnamed = mine.shape == wanted.shape and wrong not in slips
            yield (_clipped_wrong(mine, long.numpy(), c) if unnamed else None) or wrong
    yield close(answer(weights, x[:0], y[:0], c), np.zeros((0, 2)), "An empty batch")


def _clipped_wrong(mine: Array, long: Array, c: float) -> str | None:
    """Describe the first error in gradients that should be clipped; None if there is no error."""
    rows = list(enumerate(zip(np.linalg.norm(long, axis=1), np.linalg.norm(mine, axis=1), strict=True)))
    at = f"With C = {c:.2f}, row"
    for row, (old, new) in rows:
        if not math.isfinite(new):
            return f"{at} {row} (norm {old:.3g}) becomes {new}: do not divide by a norm that may be 0."
        if not new <= c * (1 + CLOSE):
            return f"{at} {row} of your result has norm {new:.3g}, which exceeds C."
    for row, (old, new) in rows:
        if old <= c and abs(new - old) > CLOSE:
            return f"{at} {row} has norm {old:.3g} and needs no clipping, but your result has norm {new:.3g}."
        if abs(float(mine[row] @ long[row]) - old * new) > CLOSE * old * max(new, 1e-9):
            return f"{at} {row} has changed direction: clipping must keep the direction of a gradient."
    return None


def _sample(answer: Callable[..., Any], rng: np.random.Generator) -> Differences:
    n, q, draws = 40, float(rng.uniform(0.2, 0.4)), 400
    seed = int(rng.integers(2**32))
    one, again = (np.asarray(given(answer(n, q, np.random.default_rng(seed)))) for _ in range(2))
    if one.dtype == bool or (one.shape == (n,) and set(one.tolist()) <= {0, 1}):
        yield f"Your function returns a mask of n = {n} entries: return the indices of its true entries."
    if not np.array_equal(one, again):
        yield "Two generators with the same seed produce different batches: draw all random numbers from `rng`."
    batches = [np.asarray(answer(n, q, rng)).astype(int) for _ in range(draws)]
    counts, drawn = np.array([len(batch) for batch in batches]), np.concatenate(batches)
    if len(drawn) and (drawn.min() < 0 or drawn.max() >= n):
        yield f"Your batches have indices from {drawn.min()} to {drawn.max()}, but n = {n} people are numbered from 0."
    if any(len(np.unique(batch)) < len(batch) for batch in batches):
        yield "A person occurs twice in one batch, as if you drew with replacement."
    if np.ptp(counts) == 0 and len({tuple(batch) for batch in batches}) > 1:
        yield f"All your batches have {counts[0]} people, but the size of a Poisson batch is random."
    if abs(counts.mean() - q * n) > 6 * math.sqrt(n * q * (1 - q) / draws):
        yield f"Your batches have {counts.mean():.3g} people on average, but the mean should be q n = {q * n:.3g}."
    if not 0.5 < counts.var() / (n * q * (1 - q)) < 2:
        yield f"Batch sizes have variance {counts.var():.3g}, not n q (1 - q): everyone needs an independent draw."
    member = np.array([np.isin(np.arange(n), batch) for batch in batches])
    share = member.mean(0)
    far = int(np.argmax(abs(share - q)))
    if abs(share[far] - q) > 6 * math.sqrt(q * (1 - q) / draws):
        yield f"Person {far} is in {share[far]:.0%} of the batches, but the probability should be q = {q:.0%}."
    if np.abs(np.corrcoef(member.T) - np.eye(n)).max() > 0.4:  # 8 standard deviations
        yield "Some people are often drawn together, or never: everyone needs an independent draw."


def _step(answer: Callable[..., Tensor], rng: np.random.Generator) -> Differences:
    for drawn in (4, 7, 0):
        c, z, lr, batch = (*(float(rng.uniform(*ends)) for ends in ((1.5, 3), (4, 9), (0.1, 0.9))), 5)
        weights, noise = (torch.from_numpy(rng.uniform(1, 2, 2)) for _ in range(2))
        rows = by_norm(torch.from_numpy(rng.standard_normal((drawn, 2))), c)
        total, due = rows.sum(0), z * c * noise
        downs = {
            "Your step adds no noise: even a step with an empty batch needs noise.": total / batch,
            "Your step divides by the actual batch size, which reveals who takes part: divide by the fixed B.": (
                (total + due) / max(drawn, 1)
            ),
            "Your step adds noise for each example: add noise only once, to the sum.": (total + drawn * due) / batch,
            "Your step adds noise to the mean: add it to the sum, before the division by B.": total / batch + due,
            "Your step does not divide by B.": total + due,
            "Your noise ignores C: noise must grow with the effect of one example.": (total + z * noise) / batch,
            "Your step increases the loss: subtract the gradient.": -(total + due) / batch,
            "Your step does not use the learning rate.": (total + due) / batch / lr,
        }
        got = answer(given_weights := weights.clone(), rows.clone(), c, z, batch, lr, noise.clone())
        if not torch.equal(given_weights, weights):
            yield "Your step changes the given weights: return new ones instead of using -=."
        slips, wanted = {s: weights - lr * down for s, down in downs.items()}, weights - lr * (total + due) / batch
        yield close(got, wanted, f"The weights after a step on {drawn} people", slips=slips)


def _loop(answer: Callable[..., Any], rng: np.random.Generator) -> Differences:
    x, y = people()
    sample = getattr(answer, "__globals__", {}).get("poisson_batch")
    if sample is None or sample(4, 0.5, rng) is None:  # not solved, but `train` may draw its batches itself
        sample = lambda n, q, rng: np.flatnonzero(rng.random(n) < q)  # noqa: E731
    yield from (f"poisson_batch: {wrong}" for wrong in _sample(sample, rng) if wrong)
    for steps, batch in ((1, 40), (12, int(rng.integers(20, 60))), (30, 1)):
        c, z, lr = (float(rng.uniform(*ends)) for ends in ((0.75, 0.9), (1.25, 2), (0.5, 1.5)))
        seed = int(rng.integers(2**32))
        start = torch.from_numpy(rng.standard_normal(2))
        run = c, z, batch, lr, steps
        got = given(answer(x, y, start.clone(), *run, DELTA, np.random.default_rng(seed)))
        if not isinstance(got, tuple) or len(got) != 2:
            yield "Return two values: the weights and ε."
        wanted, skipped = (_trained(start, run, seed, sample, skips) for skips in (False, True))
        slips = {"Your loop skips empty batches: they need noise, too.": skipped}
        yield close(got[0], wanted, f"The weights after {count(steps, 'step')}", slips=slips)
        yield _billed(float(given(got[1])), c, z, batch / len(x), steps)


def _trained(start: Tensor, run: tuple[Any, ...], seed: int, sample: Any, skips: bool) -> Tensor:
    (x, y), weights, rng = people(), start, np.random.default_rng(seed)
    c, z, batch, lr, steps = run
    for _ in range(steps):
        part = np.asarray(sample(len(x), batch / len(x), rng), dtype=int)
        if skips and not len(part):
            continue
        noise = torch.from_numpy(rng.standard_normal(2))
        weights = weights - lr * (by_norm(gradients(x[part], y[part], weights), c).sum(0) + z * c * noise) / batch
    return weights


def _billed(mine: float, c: float, z: float, q: float, steps: int) -> str | None:
    """Describe a wrong epsilon; None if it is from the loss distributions' to 1.03 times that of the orders 2 to 32."""
    mechanism = Mechanism.sound(c, z, 1, 1, sampling_rate=q)
    least = judge(mechanism, releases_by_epoch(mechanism, steps=steps), DELTA).conditional_epsilon or math.inf
    due = _epsilon(z, q, steps)
    if least * (1 - 1e-4) <= mine <= 1.03 * due:
        return None
    slips = {
        "ignores that batches are sampled": _epsilon(z, 1.0, steps),
        "is that of a single step": _epsilon(z, q, 1),
        "is the sum of the steps' ε: add up the log moments, then convert them to ε once": steps * _epsilon(z, q, 1),
        "uses z C as the noise multiplier": _epsilon(z * c, q, steps),
    }
    named = [f" Your ε {slip}." for slip, value in slips.items() if math.isclose(mine, value, rel_tol=0.03)]
    return f"ε of {steps} steps: yours is {mine:.4g}, it should be {due:.4g}.{''.join(named[:1])}"


def _epsilon(z: float, q: float, steps: int) -> float:
    rdp = steps * log_moments(np.array([z]), q)[:, 0] / (ORDERS - 1)
    return rdp_epsilon(np.where(np.isin(ORDERS, range(2, 33)), rdp, np.inf), DELTA)


EXERCISES = exercises_of(__file__, clip=_clip, sample=_sample, step=_step, loop=_loop)
