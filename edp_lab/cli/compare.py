"""``edp-lab compare``: runs side by side, from their records: settings, errors, time, and what each epsilon means."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from edp_lab.cli.options import Json
from edp_lab.cli.output import Screen, print_json, shown, table
from edp_lab.errors import UsageError
from edp_lab.training.config import TrainConfig

IN_OWN_COLUMN = ("corpus", "model", "method", "epochs", "delta")
NOT_FOR_SGD = (
    "clip_norm", "z0", "decay", "tau", "num_devices", "micro_batch_size", "as_printed", "alpha", "noise",
)  # fmt: skip
SCORES = ("intent_accuracy", "slot_f1", "exact_match")
NOTHING = "-"
LONGEST = 22  # characters of a cell's line; longer texts wrap
Row = dict[str, Any]  # results of a run, by the names in `_row`; None for what it does not have


class Comparison(NamedTuple):
    """A row for each run, in the order given, and the names of the settings in which they differ."""

    runs: list[Row]
    settings: tuple[str, ...]
    reference: Row | None  # the run whose time is 1: the fastest SGD run per epoch, or the fastest if none is SGD
    notes: list[str]  # why some numbers do not compare, a sentence each


def compare(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN...", help="Folders of runs: the --out of edp-lab train.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Set runs side by side: what differs between them, their scores, their time, and what each epsilon means."""
    comparison = compare_runs(runs or [])
    if as_json:
        print_json(comparison._asdict() | {"reference": comparison.reference and comparison.reference["name"]})
    else:
        _show(comparison)


def compare_runs(folders: Sequence[Path]) -> Comparison:
    """Read the runs in these folders; UsageError for none, one given twice, no run in it, a damaged record."""
    if not folders:
        raise UsageError("no run was given: name at least one --out folder of edp-lab train")
    runs = [_read(folder) for folder in folders]
    paths = [folder.resolve() for folder in folders]
    for place, path in enumerate(paths):
        if path in paths[:place]:
            raise UsageError(f"run {folders[place]} is given twice: name each run once")
    notes, differing = _notes(runs), _differing(runs)
    timed = [run for run in runs if run["seconds"]]
    plain = [run for run in timed if run["method"] == "sgd"]
    reference = min(plain or timed, key=_pace, default=None)
    for run, name in zip(runs, _names(paths), strict=True):
        run |= {"name": name, "settings": {key: value for key, value in _counting(run).items() if key in differing}}
        if reference is not None and run["seconds"] is not None:
            run["times_reference"] = _pace(run) / _pace(reference)
    return Comparison(runs, differing, reference, notes)


def _pace(run: Row) -> float:
    return float(run["seconds"] / run["epochs"])


def _names(paths: Sequence[Path]) -> Iterator[str]:
    """The shortest end of each path that no other path has."""
    for path in paths:
        tails = (["/".join(other.parts[-parts:]) for other in [path, *paths]] for parts in count(1))
        name = next(tail for tail, *every in tails if every.count(tail) == 1)
        yield "".join(char if char.isprintable() else "?" for char in name)


def _counting(run: Row) -> dict[str, Any]:
    """Settings that matter for the run's method."""
    unused = NOT_FOR_SGD if run["method"] == "sgd" else ()
    return {name: value for name, value in run["settings"].items() if name not in unused}


def _differing(runs: Sequence[Row]) -> tuple[str, ...]:
    """Names of settings with two values or more, unless they matter in no run."""
    return tuple(
        name
        for name in runs[0]["settings"]
        if len({run["settings"][name] for run in runs}) > 1 and len({_counting(run).get(name) for run in runs}) > 1
    )


def _several(values: Iterable[object]) -> str:
    """The different values with "and" between; empty if there is only one."""
    *most, last = [str(value) for value in dict.fromkeys(values) if value is not None] or [""]
    return f"{', '.join(most)} and {last}" if most else ""


def _notes(runs: Sequence[Row]) -> list[str]:
    from edp_lab.privacy.guarantee import upward

    def setting(name: str, among: Sequence[Row] = runs) -> str:
        return _several(run["settings"][name] for run in among)

    private = [run for run in runs if run["delta"] is not None]
    names = _several(run["corpus"] for run in runs)
    corpora = f"are {names}" if names else f"are all named {runs[0]['corpus']}, but their checksums differ"
    deltas = _several(f"{float(upward(run['delta'])):.3g}" for run in private)
    neighbours, hardware = _several(run["neighbours"] for run in private), _several(run["hardware"] for run in runs)
    notes = {  # why, and the values that differ
        "not ended, so its epsilon is of what its ledger holds now: {}; edp-lab train --resume goes on with one that "
        "was broken off": ", ".join(run["folder"] for run in runs if run["status"] == "running"),
        "the corpora {}: neither scores nor times compare": _several(run["corpus_sha256"] for run in runs) and corpora,
        "seeds {} make different splits: scores are on different test sets": setting("seed"),
        "duplicates are kept together in some splits only: scores may be on different test sets": setting(
            "keep_duplicates_together"
        ),
        "epsilons are at different deltas ({})": deltas,
        "epsilons are about different neighbours ({})": neighbours,
        "z0 is noise over sensitivity in a sound run, std over C of one device in one as printed": setting(
            "as_printed", private
        ),
        "the runs had different hardware ({}): times do not compare": hardware,
    }
    return [note.format(values) for note, values in notes.items() if values]


# ---- Reading a record ----------------------------------------------------------------------------------------------


def _read(folder: Path) -> Row:
    from edp_lab.training.run_files import read_record, record_guarantee, run_ledger

    record, billed = read_record(folder), None
    if record["status"] == "running" and record["ledger"] is not None:
        # A private run that has not ended has released more than its record knows.
        ledger = run_ledger(folder)
        billed = record_guarantee(record, ledger.mechanism, ledger, max(1, len(record["epochs"])))
    try:
        return _row(folder, record, billed)
    except (KeyError, TypeError, AttributeError):  # it was edited and sealed again, or another version wrote it
        raise UsageError(f"{folder} has a record of another version of edp_lab: leave it out, or train again") from None


def _row(folder: Path, record: dict[str, Any], billed: Mapping[str, Any] | None) -> Row:
    from edp_lab.privacy import Adjacency
    from edp_lab.privacy.guarantee import HOLDS, IDEAL, VOID

    config, guarantee, epochs = TrainConfig.from_record(record), record["guarantee"], record["epochs"]
    final = record["final"] or {}
    bill = billed or final or (epochs[-1] if epochs else {})
    status, epsilon, if_public = guarantee["status"], bill.get("epsilon"), bill.get("epsilon_if_alpha_public")
    threads, neighbours = record["threads"], guarantee["adjacency"]
    named = {adjacency.value: adjacency.name.lower().replace("_", "-") for adjacency in Adjacency}
    return {
        "name": "",  # filled in by `compare_runs`, as are the time beside others and the choice of settings
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
        **{name: final.get(name) for name in SCORES},
        "seconds": sum(row["seconds"] for row in epochs) if epochs else None,  # of training; validation is not in it
        "times_reference": None,  # seconds per epoch over those of `Comparison.reference`
        "claimed_epsilon": bill.get("claimed_epsilon"),  # by the paper's accounting, z_t taken at face value
        "epsilon_that_holds": epsilon if status == HOLDS else None,
        "epsilon_if_seed_secret": epsilon if status == VOID else None,
        "epsilon_in_real_numbers": epsilon if status == IDEAL else None,  # its noise is a float
        "epsilon_if_alpha_public": if_public if epsilon is None else None,  # and words, and the seed secret
        "guarantee": status,
        "delta": None if config.method == "sgd" else guarantee["delta"],
        "neighbours": named.get(neighbours, neighbours),
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


# ---- The table -------------------------------------------------------------------------------------------------------


def table_lines(comparison: Comparison) -> list[list[str]]:
    """A line for each property that at least one run has: its title, then a text for each run."""
    from edp_lab.privacy.guarantee import upward

    def text(value: Any, spec: str) -> str:
        if isinstance(value, bool):
            return "yes" if value else "no"
        if value is None:
            return NOTHING
        return upward(value, 4) if spec == "up" else shown(format(value, spec if isinstance(value, float) else ""))

    runs = [
        {
            **run["settings"],
            **run,
            "epochs": " of ".join(map(str, dict.fromkeys((run["epochs"], run["epochs_planned"])))),
            "guaranteed": "none" if run["epsilon_that_holds"] is None else upward(run["epsilon_that_holds"], 4),
            "delta": run["delta"] and float(upward(run["delta"])),
        }
        for run in comparison.runs
    ]
    fastest = "SGD" if comparison.reference is not None and comparison.reference["method"] == "sgd" else "fastest"
    every = [
        ("run", "name", ""),
        *((name, name, "") for name in ("status", "corpus", "model", "method")),
        *((name.replace("_", " "), name, ".6g") for name in comparison.settings),
        ("epochs", "epochs", ""),
        ("test SER", "test_ser", ".4f"),
        *((name.replace("_", " ").replace("f1", "F1"), name, ".4f") for name in SCORES),
        ("training seconds", "seconds", ".1f"),
        (f"epoch time ({fastest} = 1)", "times_reference", ".2f"),
        ("claimed epsilon", "claimed_epsilon", ".4g"),
        ("guaranteed epsilon", "guaranteed", ""),
        ("guarantee", "guarantee", ""),
        *((name.replace("_", " "), name, "up") for name in runs[0] if name.startswith(("epsilon_if", "epsilon_in"))),
        ("delta", "delta", ".3g"),
    ]
    lines = [[title, *(text(run.get(name), spec) for run in runs)] for title, name, spec in every]
    return [line for line in lines if {*line[1:]} != {NOTHING}]


def _show(comparison: Comparison) -> None:
    """One column per run, as many beside each other as fit."""
    console, beside = Screen(shutil.get_terminal_size((80, 0)).columns), len(comparison.runs)
    lines = [[title, *(textwrap.fill(cell, LONGEST) for cell in cells)] for title, *cells in table_lines(comparison)]
    while beside > 1 and not console.fits(table([line[: 1 + beside] for line in lines])):
        beside -= 1
    for start in range(0, len(comparison.runs), beside):
        console.table([[title, *cells[start : start + beside]] for title, *cells in lines])
    reference = comparison.reference
    meanings = {
        "claimed_epsilon": "claimed epsilon: by the paper's accounting",
        "epsilon_if_alpha_public": "epsilon if alpha public: if alpha and words came from "
        "public text, and the seed were secret",
    }
    parts = ["scores are on the test set"]
    if reference is not None and len(comparison.runs) > 1:
        parts.append(f"time: seconds per epoch over those of {reference['name']}")
    parts += [text for name, text in meanings.items() if any(run[name] is not None for run in comparison.runs)]
    console.print(f"\n{'; '.join(parts)}", style="dim")
    for note in comparison.notes:
        console.print(f"note: {note}")
