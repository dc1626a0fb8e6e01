"""Runs side by side, from their records: what was changed, what it cost in errors and time, what each epsilon means."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from edp_lab.errors import UsageError
from edp_lab.privacy import Adjacency
from edp_lab.privacy.guarantee import HOLDS, IDEAL, VOID, upward
from edp_lab.training.config import TrainConfig
from edp_lab.training.run_files import bill, read_record, run_ledger

IN_OWN_COLUMN = ("corpus", "model", "method", "epochs", "delta")
NOT_FOR_SGD = (
    "clip_norm", "z0", "decay", "tau", "num_devices", "micro_batch_size", "as_printed", "alpha", "noise",
)  # fmt: skip
NEIGHBOURS = {adjacency.value: adjacency.name.lower().replace("_", "-") for adjacency in Adjacency}
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
        run |= {"name": name, "settings": {key: value for key, value in _counting(run).items() if key in differing}}
        if reference is not None and run["seconds"] is not None:
            pace = reference["seconds"] / reference["epochs"]
            run["times_reference"] = run["seconds"] / run["epochs"] / pace
    return Comparison(runs, differing, reference, notes)


def _names(paths: Sequence[Path]) -> Iterator[str]:
    """Of each folder's path as much from its end as tells it from the others."""
    for path in paths:
        tails = (["/".join(other.parts[-parts:]) for other in [path, *paths]] for parts in count(1))
        name = next(tail for tail, *every in tails if every.count(tail) == 1)
        yield "".join(char if char.isprintable() else "?" for char in name)


def _counting(run: Row) -> dict[str, Any]:
    unused = NOT_FOR_SGD if run["method"] == "sgd" else ()
    return {name: value for name, value in run["settings"].items() if name not in unused}


def _differing(runs: Sequence[Row]) -> tuple[str, ...]:
    """Names of settings with two values or more, unless they count in no run."""

    def differs(name: str) -> bool:
        given = [run["settings"][name] for run in runs]
        counting = [_counting(run).get(name) for run in runs]
        return all(any(value != values[0] for value in values) for values in (given, counting))

    return tuple(filter(differs, runs[0]["settings"]))


def _notes(runs: Sequence[Row]) -> list[str]:
    def several(values: Iterable[Any], spec: str = "") -> str:
        """The different values with "and" between; nothing where there is but one."""
        *most, last = [format(value, spec) for value in dict.fromkeys(values) if value is not None] or [""]
        return f"{', '.join(most)} and {last}" if most else ""

    def setting(name: str, among: Sequence[Row] = runs) -> str:
        return several(run["settings"][name] for run in among)

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
    if deltas := several((float(upward(run["delta"])) for run in private), ".3g"):
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
    record, billed = read_record(folder), None
    if record["status"] == "running" and record["ledger"] is not None:
        # A private run that has not ended has released more than its record knows.
        ledger = run_ledger(folder)
        billed = bill(record, ledger.mechanism, ledger, max(1, len(record["epochs"])))
    try:
        return _row(folder, record, billed)
    except (KeyError, TypeError, AttributeError):  # it was edited and sealed again, or another version wrote it
        raise UsageError(f"{folder} has a record of another version of edp_lab: leave it out, or train again") from None


def _row(folder: Path, record: dict[str, Any], billed: Mapping[str, Any] | None) -> Row:
    config, guarantee, epochs = TrainConfig.from_record(record), record["guarantee"], record["epochs"]
    final = record["final"] or {}
    bill = billed or final or (epochs[-1] if epochs else {})
    status, epsilon, if_public = guarantee["status"], bill.get("epsilon"), bill.get("epsilon_if_alpha_public")
    threads, neighbours = record["threads"], guarantee["adjacency"]
    return {
        "name": "",  # filled in by `compare`, as are the time beside others and the choice of settings
        "folder": str(folder),
        "status": record["status"],  # of a run that was killed "running", too
        "corpus": Path(config.corpus).name,
        "corpus_sha256": record["corpus"]["sha256"],
        "model": config.model,
        "method": config.method,
        "settings": _settings(config),
        "epochs": len(epochs),  # trained in full
        "epochs_planned": config.epochs,
        "test_ser": final.get("ser"),  # scores are on the test set, as fractions
        **{name: final.get(name) for name in ("intent_accuracy", "slot_f1", "exact_match")},
        "seconds": sum(row["seconds"] for row in epochs) if epochs else None,  # of training; validation is not in it
        "times_reference": None,  # seconds per epoch over those of `Comparison.reference`
        "epsilon_claimed": bill.get("epsilon_claimed"),  # by the paper's accounting, z_t taken at face value
        "epsilon_that_holds": epsilon if status == HOLDS else None,
        "epsilon_if_seed_secret": epsilon if status == VOID else None,
        "epsilon_in_real_numbers": epsilon if status == IDEAL else None,  # its noise is a float
        "epsilon_if_alpha_public": if_public if epsilon is None else None,  # and words, and the seed secret
        "guarantee": status,
        "delta": None if config.method == "sgd" else guarantee["delta"],
        "neighbours": NEIGHBOURS.get(neighbours, neighbours),
        "batches": guarantee["sampling"],
        "hardware": f"{record['device'].partition(':')[0]} with {threads} thread{'' if threads == 1 else 's'}",
    }


def _settings(config: TrainConfig) -> dict[str, Any]:
    """All settings, those left to a default filled in; None is "none"."""
    settings = asdict(config) | {
        "alpha": config.alpha or str(config.alpha_source),
        "sampling": "poisson" if config.poisson else "shuffle",
        "micro_batch_size": config.largest_micro_batch,
    }
    if config.decay == "none":
        settings["tau"] = None
    return {name: "none" if value is None else value for name, value in settings.items() if name not in IN_OWN_COLUMN}
