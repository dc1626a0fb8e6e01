"""Tiles, summary sentence and figure for the audit of a single step (notebooks 00 and 06)."""

from __future__ import annotations

from typing import Any

import numpy as np

from edp_lab.attacks.step_audit import Audit, Finding, StepAudit
from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.text import Tile, at_least, at_most, claimed, command, digits, holds, short
from edp_lab.course.kit.theme import NOISE, PLAIN
from edp_lab.privacy import Variant

CONFIDENCE = 0.95
SURE = f"{100 * CONFIDENCE:g} %"
BINS = 48
REACH = 4.5  # a histogram extends this many standard deviations beyond the means


def on_trial(audit: Audit) -> str:
    """Format the epsilon under test, rounded as a claimed or as a guaranteed epsilon."""
    return (digits if audit.mechanism.variant is Variant.AS_PRINTED else at_most)(audit.claimed_epsilon)


def trial(audit: Audit, what: str) -> Tile:
    """Tile for the epsilon under test: claimed for the mechanism as printed, guaranteed for the sound one."""
    at = f"ε of {what} at δ = {short(audit.delta)}"
    if audit.mechanism.variant is Variant.AS_PRINTED:
        return claimed(on_trial(audit), at)
    return holds(on_trial(audit), f"{at}, with a secret seed")


def tell_step(result: StepAudit) -> tuple[Tile, Tile, str]:
    """Tiles for the epsilon under test and the measured epsilon, and a sentence on the number of wrong guesses."""
    audit = result.audit
    wrong = audit.false_positive_rate.errors + audit.false_negative_rate.errors
    tested = f"ε = {on_trial(audit)}"
    verdict = {
        Finding.REFUTED: f"so few errors refute {tested}",
        Finding.CONSISTENT: f"this is consistent with {tested}",
        Finding.NO_POWER: f"with so few draws, no result could refute {tested}",
    }[audit.verdict]
    role = "printed" if audit.verdict is Finding.REFUTED else "plain"
    proven = Tile("measured", f"≥ {at_least(audit.bounds.gaussian)}", f"{SURE} confidence, Gaussian noise", role)
    missed = {0: "none is", 1: "one is"}.get(wrong, f"{wrong:,} are")
    sentence = f"Of {2 * audit.draws:,} guesses, {missed} wrong: {verdict}."
    return trial(audit, "one step"), proven, sentence


def draw_step(result: StepAudit) -> fig.Figure:
    """Histograms of one step's release along a sentence's gradient, with and without the sentence."""
    edges = np.linspace(-1, 1, BINS + 1) * (result.distance / 2 + REACH * result.std)
    looks = (("without the sentence", PLAIN, ""), ("with the sentence", NOISE, "/"))
    bars, bells = fig.histograms(edges, (result.absent, result.present), looks, "the draws "), []
    for color, dash, side in ((PLAIN, "solid", -1), (NOISE, "dash", 1)):
        z = (edges - side * result.distance / 2) / result.std
        density = np.exp(-z * z / 2) / (result.std * np.sqrt(2 * np.pi))  # scipy.stats is slow to import
        on = {"x": edges, "y": 100 * (edges[1] - edges[0]) * density}
        bells.append(fig.line("", color, dash, width=2, showlegend=False, hoverinfo="skip", **on))
    top = 1.15 * max(float(trace["y"].max()) for trace in (*bars, bells[0]))
    return fig.figure(
        "The release of one step",
        *bars,
        *bells,
        fig.vline(0),
        fig.beside("guess: without", 0, left=True),
        fig.beside("guess: with", 0, left=False),
        height=390,
        **fig.OVERLAID,
        xaxis=fig.axis("release along the sentence's gradient, from the midpoint", edges[[0, -1]].tolist()),
        yaxis=fig.axis("share of draws (%)", [0, top]),
    )


def step_command(result: StepAudit, **_: Any) -> str:
    """The `edp-lab audit mechanism` command that reproduces the same draws."""
    audit, m = result.audit, result.audit.mechanism
    options: dict[str, Any] = {"gpus": m.num_devices, "z0": m.z0, "clip": m.clip_norm}
    options |= {"delta": audit.delta, "draws": audit.draws, "seed": result.seed}
    printed = ["--as-printed"] if m.variant is Variant.AS_PRINTED else []
    return command("audit mechanism", options, *printed)
