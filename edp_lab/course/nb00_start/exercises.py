"""Exercises of notebook 00: clip a gradient, and find out when a claim is refuted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from edp_lab.course.kit.controls import DEVICES
from edp_lab.course.kit.exercises import Differences, close, exercises_of, given
from edp_lab.course.nb00_start.panels import challenge


def _clip(answer: Callable[[Any, float], Any], rng: np.random.Generator) -> Differences:
    for _ in range(4):
        limit, gradient = float(rng.uniform(0.5, 2)), rng.normal(size=3) * float(rng.choice([0.1, 3]))
        length = float(np.linalg.norm(gradient))
        got = np.asarray(given(answer(gradient.copy(), limit)), float)
        if got.shape != gradient.shape:
            yield f"clip returned {got.shape[0] if got.ndim else 'a single'} number(s) for a gradient of three numbers."
        each = float(np.linalg.norm(np.clip(gradient, -limit, limit)))
        slips = {
            "Your code clips each number separately: the direction changes, and the norm may still exceed C.": each,
            "Your code scales every gradient to norm C: a gradient with a smaller norm must stay unchanged.": limit,
            "Your code returns the gradient unchanged: if its norm exceeds C, it must shrink to C.": length,
        }
        slips = {text: norm for text, norm in slips.items() if not math.isclose(norm, min(limit, length))}
        quantity = f"the norm of clip(a gradient of norm {length:.3g}, {limit:.3g})"
        yield close(float(np.linalg.norm(got)), min(limit, length), quantity, slips=slips)
        if not np.allclose(got, gradient * min(1, limit / length)):
            yield "The norm is right, but the direction has changed: multiply the whole gradient by one factor."


def _refuted(answer: Any, rng: np.random.Generator) -> Differences:
    if not isinstance(answer, int | np.integer):
        yield "Enter the smallest number of GPUs: 1, 2, 4, 8, 16 or 32."
    audits = {n: challenge(True, 10.0, n).audit for n in DEVICES}
    if answer not in audits:
        yield f"The panel offers 1, 2, 4, 8, 16 or 32 GPUs, not {answer}."
    proven, claimed = audits[answer].bounds.gaussian, audits[answer].claimed_epsilon
    if proven <= claimed:
        yield f"With N = {answer} the measured ε is {proven:.3g}, which does not exceed the claimed ε, {claimed:.3g}."
    if any(audit.bounds.gaussian > audit.claimed_epsilon for n, audit in audits.items() if n < answer):
        yield f"The claim is refuted at N = {answer}, but also at a smaller N."


EXERCISES = exercises_of(__file__, clip=_clip, refuted=_refuted)
