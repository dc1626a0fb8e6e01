"""A claim made with another library: does its epsilon hold for the sampler that was used?

The most common mistake is to account shuffled batches as Poisson sampling. A setting that decides is never filled in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_ndtr

from edp_lab.errors import UsageError
from edp_lab.privacy.gdp import check_delta, gdp_epsilon
from edp_lab.privacy.mechanism import SMALLEST_RATE
from edp_lab.privacy.pld import PrivacyLossDistribution
from edp_lab.privacy.schedule import MOST_RELEASES, Schedule

ALIASES = {  # what Opacus, jax_privacy, TensorFlow Privacy and fastDP call a setting
    "n": ("n", "dataset_size", "num_examples", "number_of_examples", "num_samples", "train_size", "sample_size"),
    "batch_size": ("batch_size", "expected_batch_size", "logical_batch_size"),
    "sampling_rate": ("sampling_rate", "sample_rate", "sampling_prob", "sampling_probability"),
    "steps": ("steps", "iterations", "train_steps", "num_steps"),
    "epochs": ("epochs", "num_epochs"),
    "noise_multiplier": ("noise_multiplier",),
    "delta": ("delta", "target_delta"),
    "claimed": ("claimed", "epsilon", "target_epsilon"),
    "micro_batch_size": ("micro_batch_size",),
    "clip": ("clip", "clip_norm", "max_grad_norm", "l2_norm_clip", "l2_clip_norm", "clipping_norm"),  # cancels
    "sampler": ("sampler",),
    "poisson_sampling": ("poisson_sampling", "poisson_sampling_in_fit"),
}
FIELDS = {name: field for field, names in ALIASES.items() for name in names}
NEIGHBOURS = {"shuffle": "zero-out", "poisson": "add or remove one", "fixed": "replace one"}  # by sampler
WHOLE = ("n", "steps", "epochs", "micro_batch_size")
HARMLESS = {  # names that change neither sampling, clipping nor noise; any other unknown name is refused
    "lr", "learning_rate", "lr_schedule", "weight_decay", "momentum", "betas", "dropout", "optimizer", "model",
    "dataset", "architecture", "hidden_size", "device", "precision", "dtype", "num_workers", "log_dir", "output_dir",
    "name", "comment",
}  # fmt: skip
DECISIVE = (  # what `check_claim` needs
    "claimed", "sampler", "n", "batch_size or sampling_rate", "steps or epochs", "noise_multiplier", "delta",
    "micro_batch_size",
)  # fmt: skip
SMALLEST_TAIL = 1e-290  # of a probability: smaller floats lose digits
LOOSE, LONG = 30.0, 10**6  # epsilon and steps from which the lower bound for Poisson sampling would take too long


class Verdict(NamedTuple):
    """What became of a claim; `measured` is 0 where no attack is known here."""

    status: str  # "holds", "not proven" (`guaranteed` is larger, or None) or "false" (`measured` exceeds the claim)
    claimed: float
    guaranteed: float | None  # the smallest epsilon that is proven here for the sampler that was used
    measured: float  # at least: an attack shows that no smaller epsilon holds, whoever proves it
    method: str  # the accountant behind `guaranteed`, or why there is none
    neighbours: str


def read_settings(content: Any) -> dict[str, Any]:
    """Settings by the names of the options; UsageError for a wrong type, and for an unknown name."""
    if not isinstance(content, Mapping):
        raise UsageError('the settings are no JSON object: give one such as {"noise_multiplier": 1.1}')
    read: dict[str, Any] = {}
    for name, value in content.items():
        field = FIELDS.get(name.lower())
        if isinstance(value, Mapping | list):
            raise UsageError(f"{name} is nested: give names and single values side by side")
        if field is None and name.lower() not in HARMLESS:
            raise UsageError(
                f"{name} is not understood, and may decide what holds: rename it, or drop it if it changes neither "
                "sampling, clipping nor noise"
            )
        if field is None or value is None:
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MOST_RELEASES
        if field == "poisson_sampling" and not isinstance(value, bool):
            raise UsageError(f"{name} is {value!r}: it must be true or false, without quotes")
        if field == "sampler" and value not in list(NEIGHBOURS):
            raise UsageError(f"{name} is {value!r}: choose one of {', '.join(NEIGHBOURS)}")
        if field not in ("poisson_sampling", "sampler") and not number:
            raise UsageError(f"{name} is {value!r}: it must be a number above 0, without quotes")
        if field in WHOLE and value != int(value):
            raise UsageError(f"{name} is {value}: it must be a whole number")
        value = int(value) if field in WHOLE else value
        if field == "poisson_sampling":
            field, value = "sampler", "poisson" if value else "shuffle"
        if read.setdefault(field, value) != value:
            raise UsageError(f"{field} is given twice, as {read[field]} and as {value}: keep one")
    return read


def check_claim(settings: Mapping[str, Any]) -> Verdict:
    """Judge a run of DP-SGD, given what `read_settings` returns.

    Each step releases the sum of gradients clipped to C plus fresh secret noise of `noise_multiplier` times C, and
    nothing else. At a micro-batch size above 1, means of so many gradients are clipped, each of which moves by 2C.

    Raises:
        UsageError: a setting that decides is missing, or two of them contradict each other.
    """
    if missing := [names for names in DECISIVE if not settings.keys() & set(names.split(" or "))]:
        options = ", ".join(re.sub(r"\b(?!or\b)(\w+)", r"--\1", names).replace("_", "-") for names in missing)
        raise UsageError(f"not given: {', '.join(missing)}, which decides what holds: add {options}")
    check_delta(settings["delta"])
    sampler, n, z, delta, claimed = (settings[k] for k in ("sampler", "n", "noise_multiplier", "delta", "claimed"))
    alone, run, measured = settings["micro_batch_size"] == 1, _batches(**settings), 0.0
    guaranteed, method = None, "with Poisson sampling one example more moves others to other micro-batches"
    if sampler == "shuffle":
        method = "Gaussian DP, one release an epoch"
        guaranteed = gdp_epsilon(math.sqrt(run.epochs) / z * (1 if alone else 2), delta)
        measured = _shuffled_at_least(z, n, run, delta) if alone else 0.0
    elif sampler == "fixed":
        method = "Gaussian DP of all steps, or if smaller Rényi DP without replacement (Wang et al. 2019)"
        guaranteed = gdp_epsilon(2 * math.sqrt(run.most_steps) / z, delta)
        guaranteed = min(guaranteed, _without_replacement(n, run, z, delta)) if alone else guaranteed
    elif alone:
        sampled = Schedule(np.array([z]), np.array([run.most_steps]), max(run.largest / n, SMALLEST_RATE))
        guaranteed, method = PrivacyLossDistribution(sampled).bound(delta)
        if claimed < guaranteed < LOOSE and run.most_steps <= LONG:
            measured = _sampled_at_least(z, n, run, delta, guaranteed)
    if n * delta >= 1:
        guaranteed, method = None, "delta is not below 1/n, so publishing one example whole would meet it"
    if guaranteed is not None and not math.isfinite(guaranteed):
        guaranteed, method = None, "epsilon exceeds the largest float"
    proven = guaranteed is not None and guaranteed <= claimed * (1 + 1e-9)
    status = "holds" if proven else "false" if claimed < measured else "not proven"
    return Verdict(status, claimed, guaranteed, measured, method, NEIGHBOURS[sampler])


class _Run(NamedTuple):
    """Batches as they were given: bounds, where the settings leave something open."""

    smallest: float  # batch size, by one of the two settings that give it
    largest: float
    fewest_steps: int  # if the last batch of each epoch was dropped
    most_steps: int
    epochs: int


def _batches(n: int, micro_batch_size: int, **given: Any) -> _Run:
    sizes = [given[name] * unit for name, unit in (("batch_size", 1), ("sampling_rate", n)) if name in given]
    batch, steps, epochs = max(sizes), given.get("steps"), given.get("epochs")
    if not (micro_batch_size <= batch <= n and batch <= 1.02 * min(sizes)):
        raise UsageError(
            f"batches of {batch:g} do not fit n {n:,}, the sampling rate or micro-batches of {micro_batch_size}: "
            "correct one of them"
        )
    least, most = math.floor(n / batch), math.ceil(n / min(sizes))  # steps of an epoch
    epochs = epochs or math.ceil(steps / least)
    fewest_steps, most_steps = steps or epochs * least, steps or epochs * most
    if not (epochs - 1) * least < most_steps <= epochs * most:
        raise UsageError(f"{steps:,} steps of {batch:g} of {n:,} are not {epochs:,} epochs: give one of the two")
    return _Run(min(sizes), batch, fewest_steps, most_steps, epochs)


def _without_replacement(n: int, run: _Run, z: float, delta: float) -> float:
    """The theorem's neighbours differ in one member of the batch, which moves its sum by 2C."""
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    step = dp.SampledWithoutReplacementDpEvent(n, math.ceil(run.largest), dp.GaussianDpEvent(z / 2))
    accountant = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    return float(accountant.compose(step, run.most_steps).get_epsilon(delta))


# ---- Lower bounds ----------------------------------------------------------------------------------------------------


def _shuffled_at_least(z: float, n: int, run: _Run, delta: float) -> float:
    """The smaller of two bounds: a last batch that is not full may have been used or dropped, and nobody says which."""
    used, full = math.ceil(n / run.smallest), math.floor(n / run.largest)
    kept = shuffled_at_least(z, used, run.fewest_steps // used, delta)
    return min(kept, shuffled_at_least(z, full, run.fewest_steps // full, delta, max(0.0, 1 - full * run.largest / n)))


def shuffled_at_least(noise_multiplier: float, batches: int, passes: int, delta: float, dropped: float = 0.0) -> float:
    """An epsilon that `passes` shuffled passes exceed: no smaller one holds at `delta`, whoever proves it (zero-out).

    `dropped`: the share of the corpus that each pass leaves out.

    Take a corpus in which every other utterance pulls by -C and ours by +C. Each batch's sum, less what it would be
    with -C throughout, then is noise, but for our batch: 2C with the utterance, C where its slot contributes nothing.
    An attacker who only asks whether the largest of these sums exceeds c is right with probabilities P and Q, so
    epsilon >= ln((P - delta) / Q) for every c; the best of a grid is taken.
    Source: the lower bound of Chua, Ghazi, Kamath, Kumar, Manurangsi, Sinha and Zhang 2024 (arXiv 2403.17673), section
    3, for one pass.
    """
    c = np.linspace(0, 2 + 12 * noise_multiplier, 400)
    other = log_ndtr(c / noise_multiplier)
    with np.errstate(divide="ignore"):  # the logarithm of 0 where nothing is dropped
        here, absent = np.log1p(-dropped), np.log(dropped) + other
    ours = (np.logaddexp(here + log_ndtr((c - pull) / noise_multiplier), absent) for pull in (2.0, 1.0))
    p, q = (-np.expm1(passes * ((batches - 1) * other + log_probability)) for log_probability in ours)
    seen = (p > delta) & (q > SMALLEST_TAIL)
    return float((np.log(p[seen] - delta) - np.log(q[seen])).max(initial=0.0))


def _sampled_at_least(z: float, n: int, run: _Run, delta: float, guaranteed: float) -> float:
    """Privacy losses of Poisson sampling, every rounding downward; at Opacus' rate, 1 over whole steps, if smaller."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    steps, rate = run.fewest_steps, min(run.smallest / n, 1 / math.ceil(n / run.smallest))
    how = {"sampling_prob": rate, "pessimistic_estimate": False, "use_connect_dots": False}
    width = max(2e-5, guaranteed / (5 * steps))  # which each step may lose
    single_step = pld.from_gaussian_mechanism(z, value_discretization_interval=width, **how)
    return max(0.0, float(single_step.self_compose(steps).get_epsilon_for_delta(delta)))
