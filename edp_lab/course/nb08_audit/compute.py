"""What ``08_audit_it.ipynb`` computes: an audit of one step, what guesses can prove, audits of one run. No widgets.

    noise = StepNoise(seed=0)                               # drawn once, by the generator of training
    result = audit_step(noise, True, 1.0, 1.0, 8, 1.0, draws=1000)      # pure; `edp-lab audit mechanism` says the same
    proven = guess(canaries=1000, made=30, right=90)                    # percent

Limits of error rates, lower bounds, claims and guarantees come from `edp_lab.attacks` and `edp_lab.privacy`. Values
that make no sense are refused by `UsageError`, and so is a step without a finite claim.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import binom

from edp_lab.attacks.audit.bits import BitsAudit, audit_bits
from edp_lab.attacks.audit.bounds import OneRunBounds, Tally, one_run_bounds, one_run_epsilon
from edp_lab.attacks.audit.one_run import OneRunAudit
from edp_lab.attacks.audit.step_audit import StepAudit, StepNoise
from edp_lab.course.kit.inputs import DELTA, Array, attacked_mechanism, check_seed, check_whole, require
from edp_lab.privacy.accountants import check_delta
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


# ---- What guesses can prove ----------------------------------------------------------------------------------------

FEWEST, MOST = 10, 10_000  # canaries
SIZES = (10, 30, 100, 300, 1000, 3000, 10_000)  # guesses, of the curves that are drawn


class Guesses(NamedTuple):
    """What so many right guesses about canaries of one run prove."""

    canaries: int  # m
    made: int  # r
    right: int  # v
    delta: float
    tested: float  # an epsilon put to the test
    bounds: OneRunBounds  # lower bounds on epsilon at `CONFIDENCE`
    best: OneRunBounds  # the same, had all guesses been right
    chance: float  # most that (tested, 0)-DP allows for one guess
    counts: NDArray[np.int64]  # (K) numbers of right guesses
    chances: Array  # (K) how likely each is if every guess is right with `chance`
    tail: float  # P[v or more right] at this chance
    most: float  # that (tested, delta)-DP allows for v or more right
    ceiling: dict[int, OneRunBounds]  # guesses -> bounds if m = r = v
    same_share: dict[int, float]  # guesses -> the distribution-free bound, with the same share of them right


def guess(canaries: int, made: float, right: float, tested: float = 1.0, delta: float = DELTA) -> Guesses:
    """Bounds from guesses that were fixed in number beforehand.

    Args:
        made: guesses, in percent of the canaries.
        right: of these, in percent.

    Source: `edp_lab.attacks.audit.bounds`.
    """
    check_whole("number of canaries", canaries, FEWEST, MOST)
    for what, share in (("guesses made", made), ("right guesses", right)):
        require(0 <= share <= 100, f"the share of {what} is {share} %: it must lie between 0 and 100")
    require(0 <= tested <= 700, f"epsilon is {tested}: it must lie between 0 and 700")
    check_delta(delta)
    r = max(1, round(canaries * made / 100))
    v, chance = round(r * right / 100), float(expit(tested))
    bounds, best = (_proven(canaries, r, correct, delta) for correct in (v, r))
    low, high = sorted((v, int(binom.median(r, chance))))
    counts = np.arange(max(0, low - 4 * round(r**0.5) - 2), min(r, high + 4 * round(r**0.5) + 2) + 1)
    sizes = sorted({n for n in SIZES if n <= canaries} | {r})
    free = partial(one_run_epsilon, canaries, delta=delta, beta=1 - CONFIDENCE)
    return Guesses(
        *(canaries, r, v, delta, tested, bounds, best, chance, counts),
        chances=binom.pmf(counts, r, chance),
        tail=float(binom.sf(v - 1, r, chance)),
        most=_allowed(canaries, r, v, chance, delta),
        ceiling={n: _proven(n, n, n, delta) for n in SIZES},
        same_share={n: free(n, round(n * right / 100)) for n in sizes},
    )


def _allowed(canaries: int, guesses: int, right: int, chance: float, delta: float) -> float:
    """The most that differential privacy allows for so many right guesses or more: see `one_run_epsilon`."""
    tail, reach = binom.sf(right - 1, guesses, chance), np.arange(1, right + 1)
    below = binom.sf(right - reach - 1, guesses, chance) - tail
    return min(1.0, float(tail + 2 * canaries * delta * (below / reach).max(initial=0)))


@cache
def _proven(canaries: int, guesses: int, right: int, delta: float) -> OneRunBounds:
    return one_run_bounds(canaries, [Tally(guesses, right)], delta, CONFIDENCE, gaussian=True)


# ---- The bits of noise ---------------------------------------------------------------------------------------------

RELEASES = 120  # a side


def see_bits(seed: int, noise: str, z0: float, numbers: int) -> BitsAudit:
    """`edp-lab audit bits --attack sum`. UsageError: as `audit_bits`."""
    check_seed(seed)
    return audit_bits(noise, z0, size=numbers, trials=RELEASES, confidence=CONFIDENCE, delta=DELTA, seed=seed)


# ---- One run, audited ----------------------------------------------------------------------------------------------


def one_run_config(as_printed: bool, z0: float, num_devices: int, epochs: int, seed: int) -> TrainConfig:
    """What `edp-lab audit one-run --model linear` makes of these options, with delta 1e-5."""
    settings = {"alpha": "none", "dropout": 0.0, "delta": DELTA, "seed": seed}
    return TrainConfig("", as_printed=as_printed, z0=z0, num_devices=num_devices, epochs=epochs, **settings)  # type: ignore[arg-type]


def last_model() -> list[dict[str, Any]]:
    """What `edp_lab.reproduce.last_model` measured: a run a row. UsageError: as `read_kept`."""
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
