"""``edp-lab check``: another library's run, from options or from its own settings, and what holds for it."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edp_lab.cli.options import Json, given, neighbours_named
from edp_lab.cli.output import answer
from edp_lab.errors import UsageError
from edp_lab.files import read_json

if TYPE_CHECKING:
    from edp_lab.privacy.check import Checked, Setting

# What Opacus, jax_privacy, TensorFlow Privacy and plain scripts call a field.
NAMES = {
    "n": ("n", "dataset_size", "num_examples", "train_size", "number_of_examples", "num_samples"),
    "batch_size": ("batch_size", "expected_batch_size"),
    "sampling_rate": ("sampling_rate", "sample_rate", "sampling_prob", "sampling_probability"),
    "steps": ("steps", "iterations", "train_steps", "num_steps"),
    "epochs": ("epochs", "num_epochs", "total_participations"),
    "noise_multiplier": ("noise_multiplier",),
    "clip": ("clip", "clip_norm", "max_grad_norm", "l2_clip_norm", "l2_norm_clip", "clipping_norm"),
    "delta": ("delta", "target_delta"),
    "epsilon": ("epsilon", "target_epsilon"),
    "sampler": ("sampler",),
    "adjacency": ("adjacency", "neighboring_relation"),
    "micro_batch_size": ("micro_batch_size",),
    "truncated_batch_size": ("truncated_batch_size",),
}
FIELDS = {name: field for field, names in NAMES.items() for name in names}
SAMPLERS = {
    "cyclicpoissonsampling": "poisson",
    "uniformwithreplacementsampler": "poisson",  # Opacus' name for it
    "distributeduniformwithreplacementsampler": "poisson",
    "ballsinbinssampling": "balls-in-bins",
    "randomallocationsampling": "random-allocation",
    "fixedbatchsampling": "fixed-size",
}
SPECIAL = {
    "poisson_sampling", "poisson_sampling_in_fit", "shuffle", "replace", "drop_last", "num_microbatches", "clipping",
    "gradient_accumulation_steps", "expected_participations", "strategy", "cycle_length", "partition_type", "num_bands",
    "microbatch_size",  # of jax_privacy, whose microbatches share no clip
}  # fmt: skip


def check(
    ctx: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="JSON with settings by the names of Opacus, jax_privacy, TensorFlow Privacy or these options."
        ),
    ] = None,
    sampler: Annotated[
        str | None,
        "As used: poisson, shuffle, fixed-order, fixed-size, with-replacement, balls-in-bins (one step of each epoch, "
        "the same in all) or random-allocation (drawn anew).",
    ] = None,
    n: Annotated[int | None, "Examples in the training set."] = None,
    batch_size: Annotated[float | None, "Examples in a step, as expected under Poisson sampling."] = None,
    sampling_rate: Annotated[float | None, "Instead of the batch size: its share of n."] = None,
    steps: Annotated[int | None, "Noised updates in all."] = None,
    epochs: Annotated[int | None, "Passes, instead of or beside --steps."] = None,
    noise_multiplier: Annotated[
        float | None,
        "Deviation of the noise on the sum over the clip norm (default: what Poisson sampling needs for --epsilon).",
    ] = None,
    clip: Annotated[float, "Clip norm C, which cancels."] = 1.0,
    delta: Annotated[float | None, "Of the claim."] = None,
    epsilon: Annotated[float | None, "What is claimed."] = None,
    adjacency: Annotated[str | None, "Neighbours of the claim: zero_out, replace_one or add_or_remove_one."] = None,
    micro_batch_size: Annotated[int, "Examples whose mean is clipped (jax_privacy's microbatch_size is not that)."] = 1,
    truncated_batch_size: Annotated[int | None, "Larger Poisson batches are cut to this size."] = None,
    as_json: Json = False,
) -> None:
    """What another library's run guarantees for the sampler it used. Exit status 1 if its claim does not hold.

    The commonest fault is to account shuffled batches as Poisson sampling. No model and no data are read.

    Try: edp-lab check --sampler shuffle --n 60000 --batch-size 256 --epochs 10 --noise-multiplier 1 --delta 1e-5
    --epsilon 1.1
    """
    from edp_lab.privacy.check import Status
    from edp_lab.privacy.check import check as judge

    content = read_json(file) if file else {}
    if sampler is not None and isinstance(content, Mapping):  # what the rest means depends on it
        content = {**content, "sampler": sampler}
    named = {name: ctx.params[name] for name in given(ctx) & set(NAMES)}
    read = {**settings_of(content, str(file)), **named}
    found = judge(setting_of(read))
    told = report(found, unread(content))
    if read.get("noise_multiplier") is None:
        chosen = "the noise multiplier was not given: it is what Poisson sampling needs for epsilon"
        told["notes"] = [f"{chosen} {found.setting.epsilon:g}", *told["notes"]]
    if "max_grad_norm" in (flat := _flat(content, "")) and not {"sampler", "poisson_sampling"} & flat.keys():
        told["notes"] = ["Poisson sampling is assumed, as Opacus does it: the file does not say so", *told["notes"]]
    answer(as_json, told, "checked", told)
    if found.setting.epsilon is not None and found.status is not Status.HOLDS:
        raise typer.Exit(1)


def report(found: Checked, ignored: list[str]) -> dict[str, Any]:
    """As JSON."""
    setting = {**asdict(found.setting), "sampling_rate": found.setting.rate}
    holds = {one.name.lower(): bound._asdict() for one, bound in found.holds.items()}
    own = found.setting.neighbours.name.lower()
    rest = {"setting": setting, "holds": holds, "neighbours": own, "not_read": ignored}
    return {**found._asdict(), **rest}


# ---- Settings as others name them ------------------------------------------------------------------------------------


def settings_of(content: Any, where: str = "the settings") -> dict[str, Any]:
    """By the names of the options, from those of a library, nested or not.

    Opacus' `make_private` samples by Poisson unless told otherwise, at one over the number of batches; the Keras API of
    jax_privacy shuffles unless told otherwise. UsageError for no such settings, a thing given twice, and clipping or
    noise that is not judged here.
    """
    flat = _flat(content, where)
    known = sorted(FIELDS.keys() | SPECIAL)
    for name in sorted(flat.keys() - {*known}):  # what is overlooked may decide the verdict
        if close := difflib.get_close_matches(name, known, n=1, cutoff=0.9):
            raise UsageError(f"{where} has {name}, which nothing reads: did you mean {close[0]}? Mend it, or drop it")
    read: dict[str, Any] = {}
    for name, value in flat.items():
        field = FIELDS.get(name)
        if field is None or value is None:
            continue
        if field in read and read[field] != value:
            raise UsageError(f"{where} gives {field} twice, {read[field]} and {value}: keep one")
        read[field] = value
    _refuse_unjudged(flat, where)
    if isinstance(read.get("clip"), list):  # of each layer
        read["clip"] = math.hypot(*(_number("clip", one) for one in read["clip"]))
    for name in ("batch_size", "n", "steps", "epochs"):
        if name in read:
            _number(name, read[name])
    _read_sampler(flat, read, where)
    _read_batches(flat, read)
    return read


def unread(content: Any) -> list[str]:
    """Names in it that say nothing here."""
    return sorted(name for name in _flat(content, "") if name not in FIELDS and name not in SPECIAL)


def _flat(content: Any, where: str) -> dict[str, Any]:
    if not isinstance(content, Mapping):
        raise UsageError(f'{where} holds no settings: give a JSON object such as {{"noise_multiplier": 1.1}}')
    found: dict[str, Any] = {}
    for name, value in content.items():
        more = _flat(value, where) if isinstance(value, Mapping) else {str(name).lower(): value}
        for same in found.keys() & more.keys() & (FIELDS.keys() | SPECIAL):
            if found[same] != more[same]:
                raise UsageError(f"{where} gives {same} twice, {found[same]} and {more[same]}: keep one")
        found |= more
    return found


def _refuse_unjudged(flat: Mapping[str, Any], where: str) -> None:
    if flat.get("clipping") == "adaptive":
        raise UsageError(f"{where} has adaptive clipping, which spends privacy of its own: it is not judged here")
    strategy, bands = flat.get("strategy") or [], flat.get("num_bands") or 1
    if bands != 1 or len(strategy if isinstance(strategy, list) else []) > 1:
        named = "num_bands" if bands != 1 else "strategy"
        raise UsageError(f"{where} has noise that is correlated between steps ({named}): it is not judged here")


def _read_sampler(flat: Mapping[str, Any], read: dict[str, Any], where: str) -> None:
    if "sampler" in read:
        named = str(read["sampler"])
        read["sampler"] = SAMPLERS.get(named.lower(), named)
        if read["sampler"] == "fixed-size" and flat.get("replace"):
            read["sampler"] = "with-replacement"
    elif {"max_grad_norm", "shuffle"} <= set(flat) and "poisson_sampling" not in flat:
        raise UsageError(
            f"{where} has shuffle and max_grad_norm: Opacus would sample all the same, another loop would not; add "
            '"poisson_sampling": true or false'
        )
    elif {"poisson_sampling", "max_grad_norm"} & set(flat):
        read["sampler"] = _passes(flat, bool(flat.get("poisson_sampling", True)))
    elif {"poisson_sampling_in_fit", "clipping_norm"} & set(flat):
        read["sampler"] = _passes(flat, bool(flat.get("poisson_sampling_in_fit", False)))
    elif {"sampling_prob", "expected_participations"} & set(flat):
        read["sampler"] = "poisson"
    elif "replace" in flat:
        read["sampler"] = "with-replacement" if flat["replace"] else "fixed-size"
    elif "shuffle" in flat:
        read["sampler"] = _passes(flat, False)
    if (flat.get("cycle_length") or 1) > 1 and read.get("sampler") == "poisson":
        if read.pop("sampling_rate", None) != 1:
            raise UsageError(
                "Poisson sampling within a cycle of groups (cycle_length) is not judged here: give cycle_length 1"
            )
        alone = "independent" in str(flat.get("partition_type")).lower()
        read["sampler"] = "balls-in-bins" if alone else "fixed-order"  # each group as a whole


def _passes(flat: Mapping[str, Any], poisson: bool) -> str:
    return "poisson" if poisson else "shuffle" if flat.get("shuffle", True) else "fixed-order"


def _read_batches(flat: Mapping[str, Any], read: dict[str, Any]) -> None:
    if "num_microbatches" in flat and "batch_size" in read:
        read["micro_batch_size"] = math.ceil(
            read["batch_size"] / max(1.0, _number("num_microbatches", flat["num_microbatches"]))
        )
    summed = _number("gradient_accumulation_steps", flat.get("gradient_accumulation_steps") or 1)
    if summed > 1 and read.get("sampler") == "poisson":
        raise UsageError(
            f"gradient_accumulation_steps {summed} sums up Poisson batches that are drawn one by one, so an example "
            "may count several times: it is not judged here; draw one larger batch, which a loader may cut up "
            "(Opacus: BatchMemoryManager)"
        )
    if "batch_size" in read:
        read["batch_size"] *= summed
    if "expected_participations" in flat and "steps" in read:
        read["sampling_rate"] = _number("expected_participations", flat["expected_participations"]) / read["steps"]
    if "cycle_length" in flat and "n" in read and "batch_size" not in read:
        read["batch_size"] = read["n"] / _number("cycle_length", flat["cycle_length"])
    if (
        read.get("sampler") == "random-allocation"
        and "batch_size" not in read
        and {"n", "steps", "epochs"} <= set(read)
    ):
        read["batch_size"] = read["n"] * read["epochs"] / read["steps"]
    if {"poisson_sampling", "max_grad_norm"} & set(flat) and {"n", "batch_size"} <= set(read):
        batches = read["n"] / max(1.0, read["batch_size"])
        length = max(1, math.floor(batches) if flat.get("drop_last") else math.ceil(batches))  # of the data loader
        if read.get("sampler") == "poisson":
            read["batch_size"] = read["n"] / length
        if "epochs" in read and "steps" not in read:
            read["steps"] = read["epochs"] * length


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UsageError(f"{name} is {value!r}: it must be a number greater than 0")
    return value


# ---- A setting -------------------------------------------------------------------------------------------------------


def setting_of(read: Mapping[str, Any]) -> Setting:
    """What is not given follows from the rest: the batch from the rate, steps and epochs from each other.

    UsageError where something is missing, of the wrong kind or impossible.
    """
    from edp_lab.privacy.check import Sampler, Setting, poisson_noise

    if read.get("sampler") is None:
        raise UsageError(
            "the sampler is not given: add --sampler with poisson, shuffle or however batches were really drawn"
        )
    for name in ("n", "delta"):
        if read.get(name) is None:
            raise UsageError(f"{name} is not given: add --{name}, or write it into the file")
    if read["sampler"] not in list(Sampler):
        raise UsageError(f"unknown sampler {read['sampler']!r}: choose {', '.join(Sampler)}")
    number = {name: _number(name, value) for name, value in read.items() if name not in ("sampler", "adjacency")}
    n = _whole("n", number["n"])
    batch = _batch(number, n)
    if "steps" not in number and "epochs" not in number:
        raise UsageError("the length is not given: add --steps, or --epochs")
    steps = number.get("steps") or number["epochs"] * math.ceil(n / batch)
    epochs = number.get("epochs") or math.ceil(steps / math.floor(n / batch))
    if not (epochs - 1) * math.floor(n / batch) <= steps <= epochs * math.ceil(n / batch):
        raise UsageError(f"{steps:,.0f} steps of {batch:g} of {n:,} are not {epochs:g} epochs: give one of the two")
    z, claimed = number.get("noise_multiplier"), number.get("epsilon")
    if z is None and claimed is None:
        raise UsageError("neither a noise multiplier nor an epsilon is given: add --noise-multiplier")
    steps = _whole("steps", steps)
    truncated = number.get("truncated_batch_size")
    return Setting(
        Sampler(read["sampler"]),
        n,
        batch,
        steps,
        _whole("epochs", epochs),
        poisson_noise(batch / n, steps, claimed, number["delta"]) if z is None and claimed else z or 0.0,
        number["delta"],
        claimed,
        neighbours_named(read.get("adjacency")),
        _whole("micro_batch_size", number.get("micro_batch_size", 1)),
        None if truncated is None else _whole("truncated_batch_size", truncated),
        number.get("clip", 1.0),
    )


def _batch(number: Mapping[str, float], n: int) -> float:
    batch, rate = number.get("batch_size"), number.get("sampling_rate")
    if batch is None and rate is None:
        raise UsageError("the batch size is not given: add --batch-size, or --sampling-rate")
    if batch is not None and rate is not None and abs(rate * n / batch - 1) > 0.02:
        raise UsageError(f"batches of {batch:g} are not a share of {rate:g} of {n:,}: give one of the two")
    batch = max(batch or 0.0, (rate or 0.0) * n)  # of two that hardly differ the one that costs more
    if batch > n:
        raise UsageError(f"the batch size is {batch:g}: it must lie above 0, up to n = {n:,}")
    return batch


def _whole(name: str, value: float) -> int:
    if value != int(value):
        raise UsageError(f"{name} is {value}: it must be a whole number, at least 1")
    return int(value)
