"""What ``08_audit_it.ipynb`` computes: an audit of one step, and of training runs. No widgets.

    noise = StepNoise(seed=0)                               # drawn once, by the generator of training
    result = audit_step(noise, True, 1.0, 1.0, 8, 1.0, draws=1000)      # pure; `edp-lab audit mechanism` says the same

Limits of error rates, lower bounds, claims and guarantees come from `edp_lab.attacks` and `edp_lab.privacy`. Values
that make no sense are refused by `UsageError`, and so is a step without a finite claim.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from edp_lab.attacks.bounds import Tally, one_run_bounds
from edp_lab.attacks.one_run import OneRunAudit
from edp_lab.attacks.step_audit import StepAudit, StepNoise
from edp_lab.course.kit.inputs import DELTA, attacked_mechanism, check_whole
from edp_lab.reproduce.results_io import RESULTS, read_kept
from edp_lab.training import TrainConfig

CONFIDENCE = 0.95
MOST_DRAWS = 10_000  # a side


# ---- One step, drawn again and again -------------------------------------------------------------------------------


def audit_step(
    noise: StepNoise, as_printed: bool, clip_norm: float, z0: float, num_devices: int, alpha_max: float, draws: int
) -> StepAudit:
    """Test the claimed epsilon of one step; layer scales alpha are public (as printed) or 1 (sound).

    Args:
        alpha_max: largest layer scale; matters only as printed, where noise comes after scaling back.
        draws: a side.

    Guarantee: as `StepNoise.audit`, epsilon is at least `epsilon_lower_bound` with probability 95 % if the noise is as
    good as random.
    """
    check_whole("number of draws", draws, 1, MOST_DRAWS)
    mechanism = attacked_mechanism(as_printed, clip_norm, z0, num_devices, alpha_max)
    return noise.audit(mechanism, DELTA, draws, CONFIDENCE)


# ---- One run, audited ----------------------------------------------------------------------------------------------


def one_run_config(as_printed: bool, z0: float, num_devices: int, epochs: int, seed: int) -> TrainConfig:
    """What `edp-lab audit one-run --model linear` makes of these options, with delta 1e-5."""
    settings = {"alpha": "none", "dropout": 0.0, "delta": DELTA, "seed": seed}
    return TrainConfig("", as_printed=as_printed, z0=z0, num_devices=num_devices, epochs=epochs, **settings)  # type: ignore[arg-type]


def last_model() -> list[dict[str, Any]]:
    """Audited runs, see data/results/last_model.json. UsageError: as `read_kept`."""
    rows: list[dict[str, Any]] = read_kept(RESULTS / "last_model.json", "rows")["rows"]
    return rows


def needed(audit: OneRunAudit, guesses: int) -> int | None:
    """How many of so many guesses would have to be right for the audit to refute its claim; None: all are too few."""
    confidence = 1 - (1 - audit.confidence) / len(audit.tallies)  # each of the tallies gets its share of the error

    def refutes(right: int) -> bool:
        tally = [Tally(guesses, right)]
        found = one_run_bounds(audit.canaries, tally, audit.delta, confidence, gaussian=True)
        return found.best > audit.epsilon_claimed

    found = bisect_left(range(guesses + 1), True, key=refutes)
    return found if found <= guesses else None
