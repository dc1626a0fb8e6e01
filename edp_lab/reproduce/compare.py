"""Runs side by side, from their records: what was changed, what it cost in errors and time, what each epsilon means."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from edp_lab.errors import UsageError
from edp_lab.privacy import Adjacency
from edp_lab.privacy.guarantee import HOLDS, IDEAL, VOID
from edp_lab.training.run_folder import RECORD, bill, read_record, run_ledger

IN_OWN_COLUMN = ("corpus", "model", "method", "epochs", "delta")
PER_EXAMPLE = ("dp-sgd", "dp-sgd-naive")
NOT_FOR_SGD = (
    "clip_norm", "z0", "decay", "tau", "num_devices", "micro_batch_size", "as_printed", "alpha", "noise",
)  # fmt: skip
NEIGHBOURS = {one.value: one.name.lower().replace("_", "-") for one in Adjacency}
Row = dict[str, Any]  # what a run came to, by the names in `_row`; None for what it does not have


class Comparison(NamedTuple):
    """A row for each run, in the order given, and the names of the settings in which they differ."""

    runs: list[Row]
    settings: tuple[str, ...]
    reference: Row | None  # the run whose time is 1: the fastest SGD run per epoch, or the fastest where none is SGD
    notes: list[str]  # why some numbers do not compare, a sentence each


def compare(folders: Sequence[str | Path]) -> Comparison:
    """Read the runs in these folders; UsageError for none, one given twice, no run in it, a damaged record."""
    if not folders:
        raise UsageError("no run was given: name at least one --out folder of edp-lab train")
    runs = [_read(Path(folder)) for folder in folders]
    paths = [Path(folder).resolve() for folder in folders]
    for place, path in enumerate(paths):
        if path in paths[:place]:
            raise UsageError(f"run {folders[place]} is given twice: name each run once")
    notes, differing = _notes(runs), _differing(runs)
    timed = [run for run in runs if run["seconds"]]
    plain = [run for run in timed if run["method"] == "sgd"]
    reference = min(plain or timed, key=lambda run: run["seconds"] / run["epochs"], default=None)
    for run, name in zip(runs, _names(paths), strict=True):
        run |= {"name": name, "settings": {key: one for key, one in _counting(run).items() if key in differing}}
        if reference is not None and run["seconds"] is not None:
            pace = reference["seconds"] / reference["epochs"]
            run["times_reference"] = run["seconds"] / run["epochs"] / pace
    return Comparison(runs, differing, reference, notes)


def _names(paths: Sequence[Path]) -> Iterator[str]:
    """Of each folder's path as much from its end as tells it from the others."""
    for path in paths:
        tails = (["/".join(other.parts[-parts:]) for other in [path, *paths]] for parts in count(1))
        name = next(own for own, *every in tails if every.count(own) == 1)
        yield "".join(char if char.isprintable() else "?" for char in name)


def _counting(run: Row) -> dict[str, Any]:
    unused = NOT_FOR_SGD if run["method"] == "sgd" else ()
    return {name: value for name, value in run["settings"].items() if name not in unused}


def _differing(runs: Sequence[Row]) -> tuple[str, ...]:
    """Names of settings with two values or more, unless they count in no run; a record that lacks one has no say."""

    def differs(name: str) -> bool:
        given = [run["settings"][name] for run in runs if name in run["settings"]]
        counting = [_counting(run).get(name) for run in runs]
        return all(any(value != values[0] for value in values) for values in (given, counting))

    return tuple(filter(differs, dict.fromkeys(name for run in runs for name in run["settings"])))


def _notes(runs: Sequence[Row]) -> list[str]:
    def several(values: Iterable[Any], spec: str = "") -> str:
        """The different values with "and" between; nothing where there is but one."""
        *most, last = [format(value, spec) for value in dict.fromkeys(values) if value is not None] or [""]
        return f"{', '.join(most)} and {last}" if most else ""

    def setting(name: str, among: Sequence[Row] = runs) -> str:
        return several(run["settings"].get(name) for run in among)

    private, notes = [run for run in runs if run["delta"] is not None], []
    if unfinished := [run["folder"] for run in runs if run["status"] == "running"]:
        cure = "edp-lab train --resume goes on with one that was broken off"
        notes.append(f"not ended, so its epsilon is of what its ledger holds now: {', '.join(unfinished)}; {cure}")
    if several(run["corpus_sha256"] for run in runs):
        names = several(run["corpus"] for run in runs)
        corpora = f"are {names}" if names else f"are all named {runs[0]['corpus']}, but their checksums differ"
        notes.append(f"the corpora {corpora}: neither scores nor times compare")
    if seeds := setting("seed"):
        notes.append(f"seeds {seeds} make different splits: scores are on different test sets")
    if setting("keep_duplicates_together"):
        notes.append("duplicates are kept together in some splits only: scores may be on different test sets")
    if setting("keep_speakers_together") or setting("unit"):
        notes.append("speakers are kept together in some splits only: scores may be on different test sets")
    if deltas := several((run["delta"] for run in private), ".3g"):
        notes.append(f"epsilons are at different deltas ({deltas})")
    if neighbours := several(run["neighbours"] for run in private):
        notes.append(f"epsilons are about different neighbours ({neighbours})")
    if setting("as_printed", private):
        notes.append("z0 is noise over sensitivity in a sound run, std over C of one device in one as printed")
    if hardware := several(run["hardware"] for run in runs):
        notes.append(f"the runs had different hardware ({hardware}): times do not compare")
    return notes


# ---- Reading a record ----------------------------------------------------------------------------------------------


def _read(folder: Path) -> Row:
    path = folder / RECORD
    try:
        record = read_record(folder)
        billed = None
        if record["status"] == "running" and record.get("ledger") is not None:
            # A private run that has not ended has released more than its record knows.
            ledger = run_ledger(folder)
            billed = bill(record, ledger.mechanism, ledger, max(1, len(record["epochs"])))
        return _row(folder, record, billed)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): leave it out, or mend that") from error
    except UsageError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError):
        raise UsageError(f"{path} is damaged: train again, or restore it from a copy") from None


def _row(folder: Path, record: Mapping[str, Any], billed: Mapping[str, Any] | None) -> Row:
    config, corpus, guarantee = record["config"], record["corpus"], record["guarantee"]
    epochs, final = record["epochs"], record.get("final") or {}
    bill = billed or final or (epochs[-1] if epochs else {})
    method, status = _text(config, "method"), _text(guarantee, "status", "none")
    epsilon, if_public = _number(bill, "epsilon"), _number(bill, "epsilon_if_alpha_public")
    seconds = [_number(row, "seconds") or 0.0 for row in epochs]
    device, threads = _text(record, "device", "unknown device").partition(":")[0], _number(record, "threads")
    counted = "" if threads is None else f" with {threads:g} thread{'' if threads == 1 else 's'}"
    neighbours = _text(guarantee, "adjacency", "")
    return {
        "name": "",  # filled in by `compare`, as are the time beside others and the choice of settings
        "folder": str(folder),
        "status": _text(record, "status"),  # of a run that was killed "running", too
        "corpus": Path(_text(config, "corpus")).name,
        "corpus_sha256": _text(corpus, "sha256"),
        "model": _text(config, "model"),
        "method": method,
        "settings": _settings(config),
        "epochs": len(epochs),  # trained in full
        "epochs_planned": int(config["epochs"]),
        "test_ser": _number(final, "ser"),  # scores are on the test set, as fractions
        **{name: _number(final, name) for name in ("intent_accuracy", "slot_f1", "exact_match")},
        "seconds": sum(seconds) if seconds else None,  # of training; validation is not in it
        "times_reference": None,  # seconds per epoch over those of `Comparison.reference`
        "epsilon_claimed": _number(bill, "epsilon_claimed"),  # by the paper's accounting, z_t taken at face value
        "epsilon_that_holds": epsilon if status == HOLDS else None,
        "epsilon_if_seed_secret": epsilon if status == VOID else None,
        "epsilon_in_real_numbers": epsilon if status == IDEAL else None,  # its noise is a float
        "epsilon_if_alpha_public": if_public if epsilon is None else None,  # and words, and the seed secret
        "guarantee": status,
        "delta": None if method == "sgd" else _number(guarantee, "delta"),
        "neighbours": NEIGHBOURS.get(neighbours, neighbours) + (" speaker" if config.get("unit") == "speaker" else ""),
        "batches": _text(guarantee, "sampling", ""),
        "hardware": device + counted,
        "validation_ser": [_number(row, "ser") for row in epochs],
    }


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """All settings, those left to a default that depends on others filled in as `TrainConfig` does; None is "none"."""
    method = config["method"]
    older: dict[str, Any] = {
        "intent_weight": 1.0,
        "unit": None,
        "cap": None,
        "keep_speakers_together": False,
    }  # what records lacked
    config = {**older, **config}
    settings = {name: value for name, value in config.items() if name not in IN_OWN_COLUMN}
    settings["alpha"] = config.get("alpha") or ("private" if config.get("as_printed") else "none")
    sampled = method in PER_EXAMPLE or (config["unit"] == "speaker" and method != "sgd")
    settings["sampling"] = config.get("sampling") or ("poisson" if sampled else "shuffle")
    shared = 1 if method in PER_EXAMPLE else math.ceil(config["batch_size"] / config["num_devices"])
    settings["micro_batch_size"] = config.get("micro_batch_size") or shared
    if config.get("decay") == "none":
        settings["tau"] = None
    for name, value in settings.items():
        if value is None:
            settings[name] = "none"
        elif isinstance(value, list | dict):
            settings[name] = json.dumps(value)
        elif not isinstance(value, int):  # nor a bool
            settings[name] = _number(settings, name) if isinstance(value, float) else _text(settings, name)
    return settings


def _number(part: Mapping[str, Any], name: str) -> float | None:
    value = part.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} is {value!r}")
    return float(value)


def _text(part: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = part[name] if default is None else part.get(name, default)
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(f"{name} is {value!r}")
    return value
