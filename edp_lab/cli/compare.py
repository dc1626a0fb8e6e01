"""``edp-lab compare``: a table of the settings, errors, times and epsilons of several runs, from their records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from edp_lab.cli.terminal import Json, Screen, number, print_json, up
from edp_lab.errors import UsageError, check_once
from edp_lab.training.config import TrainConfig

SHOWN_ANYWAY = ("corpus", "model", "method", "epochs", "delta")  # even if the runs do not differ in them
NOT_FOR_SGD = (
    "clip_norm", "z0", "decay", "tau", "num_devices", "micro_batch_size", "as_printed", "alpha", "noise",
)  # fmt: skip
JSON_ONLY = ("corpus_sha256", "epochs_planned")
TITLES = {"name": "run", "test_ser": "test SER", "slot_f1": "slot F1"}
DOUBTS = {  # properties in which runs may differ, with the note to print
    "corpus_sha256": "the runs used different corpora: their scores are not comparable",
    "seed": "the runs used different seeds, and so different splits: their scores are on different test sets",
    "delta": "the epsilons are at different deltas",
    "neighbours": "the epsilons are for different neighbours",
}
NOTHING = "-"
Row = dict[str, Any]  # results of one run, with the keys set in `_row`; a missing result is None


class Comparison(NamedTuple):
    """Results of runs in the order given, and the names of the settings in which the runs differ."""

    runs: list[Row]
    settings: tuple[str, ...]
    notes: list[str]  # reasons why some numbers are not comparable


def compare(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN...", help="Run folders (--out of edp-lab train).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare the settings, scores, training time and epsilons of runs."""
    comparison = compare_runs(runs or [])
    if as_json:
        print_json(comparison._asdict())
        return
    console = Screen()
    console.table(table_lines(comparison))
    for note in comparison.notes:
        console.print(f"note: {note}")


def compare_runs(folders: Sequence[Path]) -> Comparison:
    """Compare the runs in these folders; raise UsageError if there is no run, or a run is repeated or unreadable."""
    if not folders:
        raise UsageError("no run was given: name at least one run folder (--out of edp-lab train)")
    runs = [_row(folder) for folder in folders]
    check_once([str(folder.resolve()) for folder in folders], "run ")
    notes, settings = _notes(runs), [run["settings"] for run in runs]
    names = dict.fromkeys(name for counting in settings for name in counting)
    differing = tuple(name for name in names if len({counting.get(name) for counting in settings} - {None}) > 1)
    for run in runs:
        run["settings"] = {name: value for name, value in run["settings"].items() if name in differing}
    return Comparison(runs, differing, notes)


def _notes(runs: Sequence[Row]) -> list[str]:
    everything = [{**run["settings"], **run} for run in runs]
    notes = [note for name, note in DOUBTS.items() if len({run[name] for run in everything} - {None}) > 1]
    if running := ", ".join(run["name"] for run in runs if run["status"] == "running"):
        notes.insert(
            0, f"not finished, with an epsilon for the steps so far (to resume, use train --resume): {running}"
        )
    return notes


# ---- Reading a record ----------------------------------------------------------------------------------------------


def _row(folder: Path) -> Row:
    from edp_lab.privacy import Adjacency
    from edp_lab.privacy.guarantee import HOLDS, IDEAL, VOID
    from edp_lab.training.run_files import read_record, record_guarantee, run_ledger

    record, ledger = read_record(folder), None
    if record["status"] == "running" and record["ledger"] is not None:
        ledger = run_ledger(folder)  # the ledger of an unfinished private run is ahead of its record
    try:
        config, epochs, final = TrainConfig.from_record(record), record["epochs"], record["final"] or {}
        spent = final or (epochs[-1] if epochs else {})
        if ledger is not None:
            spent = record_guarantee(record, ledger.mechanism, ledger, max(1, len(epochs)))
        guarantee, epsilon = record["guarantee"], spent["conditional_epsilon"] if spent else None
        if_public = spent["epsilon_if_alpha_public"] if spent else None
        status, neighbours = guarantee["status"], guarantee["adjacency"] or None
        return {
            "name": str(folder),
            "status": record["status"],  # remains "running" if the run was killed
            "corpus": Path(config.corpus).name,
            "corpus_sha256": record["corpus"]["sha256"],
            "model": config.model,
            "method": config.method,
            "settings": _settings(config),  # `compare_runs` keeps only those that differ
            "epochs": len(epochs),  # completed epochs
            "epochs_planned": config.epochs,
            "test_ser": final.get("ser"),  # scores are fractions, on the test set
            **{name: final.get(name) for name in ("intent_accuracy", "slot_f1", "exact_match")},
            "seconds_per_epoch": sum(row["seconds"] for row in epochs) / len(epochs) if epochs else None,
            "claimed_epsilon": spent.get("claimed_epsilon"),  # by the paper's accounting, with z_t taken at face value
            "guaranteed_epsilon": epsilon if status == HOLDS else None,
            "epsilon_if_seed_secret": epsilon if status == VOID else None,
            "epsilon_in_real_numbers": epsilon if status == IDEAL else None,  # the noise is floating-point
            "epsilon_if_alpha_public": if_public if epsilon is None else None,  # with public words and a secret seed
            "guarantee": status,
            "delta": None if config.method == "sgd" else guarantee["delta"],
            "neighbours": neighbours and Adjacency(neighbours).name.lower().replace("_", "-"),
        }
    except (KeyError, TypeError, AttributeError):  # the record was edited and sealed again, or is of another version
        raise UsageError(f"the run in {folder} is from another version of edp_lab: omit it, or train again") from None


def _settings(config: TrainConfig) -> dict[str, Any]:
    """Settings that are relevant to the run's method, with defaults filled in; None becomes "none"."""
    settings = asdict(config) | {
        "alpha": config.alpha or str(config.alpha_source),
        "sampling": "poisson" if config.poisson else "shuffle",
        "micro_batch_size": config.largest_micro_batch,
    }
    if config.decay == "none":
        settings["tau"] = None
    left_out = {*SHOWN_ANYWAY, *(NOT_FOR_SGD if config.method == "sgd" else ())}
    return {name: "none" if value is None else value for name, value in settings.items() if name not in left_out}


# ---- The table -------------------------------------------------------------------------------------------------------


def table_lines(comparison: Comparison) -> list[list[str]]:
    """Lines of the table: the title of a property that any run has, followed by one value per run."""

    def text(name: str, value: Any) -> str:
        if name == "guarantee" and value == "holds":
            return "yes"
        if name in ("guaranteed_epsilon", "delta") or name.startswith("epsilon_"):
            return NOTHING if value is None else up(value, 4)
        return number(value, 4, NOTHING) if value is None or isinstance(value, float) else str(value)

    names = [name for name in comparison.runs[0] if name not in JSON_ONLY]
    place = names.index("settings")
    names[place : place + 1] = comparison.settings
    lines = []
    for name in names:
        texts = [text(name, {**run["settings"], **run}.get(name)) for run in comparison.runs]
        if {*texts} != {NOTHING}:
            lines.append([TITLES.get(name, name.replace("_", " ")), *texts])
    return lines
