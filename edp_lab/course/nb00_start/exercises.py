"""The exercises of notebook 00: the noise of a step, and what it hides."""

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
            yield f"clip gave {got.shape[0] if got.ndim else 'a single'} number(s) for a gradient of three."
        each = float(np.linalg.norm(np.clip(gradient, -limit, limit)))
        slips = {
            "That clips each number alone: the direction changes, and the length may still exceed C.": each,
            "That makes every gradient as long as C: a shorter one must stay unchanged.": limit,
            "That returns the gradient unchanged: one that is longer than C must shrink.": length,
        }
        slips = {text: norm for text, norm in slips.items() if not math.isclose(norm, min(limit, length))}
        quantity = f"the length of clip(a gradient of length {length:.3g}, {limit:.3g})"
        yield close(float(np.linalg.norm(got)), min(limit, length), quantity, slips=slips)
        if not np.allclose(got, gradient * min(1, limit / length)):
            yield "The length is right, but the direction has changed: multiply the whole gradient by one factor."


def _refuted(answer: Any, rng: np.random.Generator) -> Differences:
    if not isinstance(answer, int):
        yield "Give the smallest number of GPUs as a whole number: 1, 2, 4, 8, 16 or 32."
    audits = {n: challenge(True, 10.0, n).audit for n in DEVICES}
    if answer not in audits:
        yield f"The panel has 1, 2, 4, 8, 16 and 32 GPUs; {answer} is none of them."
    proven, claimed = audits[answer].bounds.gaussian, audits[answer].claimed_epsilon
    if proven <= claimed:
        yield f"With N = {answer} the measured ε is {proven:.3g}, which does not exceed the claimed {claimed:.3g}."
    if any(audit.bounds.gaussian > audit.claimed_epsilon for n, audit in audits.items() if n < answer):
        yield f"N = {answer} refutes the claim, but a smaller N does, too."


EXERCISES = exercises_of(__file__, clip=_clip, refuted=_refuted)
