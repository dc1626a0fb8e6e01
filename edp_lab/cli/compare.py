"""``edp-lab compare``: runs side by side, from their records: settings, errors, time and epsilons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from edp_lab.cli.terminal import Json, Screen, number, print_json, up
from edp_lab.errors import UsageError, check_once
from edp_lab.training.config import TrainConfig

SHOWN_ANYWAY = ("corpus", "model", "method", "epochs", "delta")  # even if they are all equal
NOT_FOR_SGD = (
    "clip_norm", "z0", "decay", "tau", "num_devices", "micro_batch_size", "as_printed", "alpha", "noise",
)  # fmt: skip
JSON_ONLY = ("corpus_sha256", "epochs_planned")
TITLES = {"name": "run", "test_ser": "test SER", "slot_f1": "slot F1"}
DOUBTS = {  # properties that may differ between runs, with the consequence
    "corpus_sha256": "the runs had different corpora: scores are not comparable",
    "seed": "the runs had different seeds, so different splits: scores are on different test sets",
    "delta": "epsilons are at different deltas",
    "neighbours": "epsilons are about different neighbours",
}
NOTHING = "-"
Row = dict[str, Any]  # results of a run, by the names in `_row`; None for a missing result


class Comparison(NamedTuple):
    """One row per run, in the order given, and the names of the settings in which the runs differ."""

    runs: list[Row]
    settings: tuple[str, ...]
    notes: list[str]  # one sentence each: why some numbers are not comparable


def compare(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN...", help="Folders of runs (the --out of edp-lab train).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare runs: settings that differ, scores, time, and epsilons."""
    comparison = compare_runs(runs or [])
    if as_json:
        print_json(comparison._asdict())
        return
    console = Screen()
    console.table(table_lines(comparison))
    for note in comparison.notes:
        console.print(f"note: {note}")


def compare_runs(folders: Sequence[Path]) -> Comparison:
    """Read the runs in these folders; UsageError if none, given twice, without a run, or with a damaged record."""
    if not folders:
        raise UsageError("no run was given: name at least one --out folder of edp-lab train")
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
            0, f"not ended, so its epsilon is for the steps in its ledger so far: {running}; see train --resume"
        )
    return notes


# ---- Reading a record ----------------------------------------------------------------------------------------------


def _row(folder: Path) -> Row:
    from edp_lab.privacy import Adjacency
    from edp_lab.privacy.guarantee import HOLDS, IDEAL, VOID
    from edp_lab.training.run_files import read_record, record_guarantee, run_ledger

    record, ledger = read_record(folder), None
    if record["status"] == "running" and record["ledger"] is not None:
        ledger = run_ledger(folder)  # a private run that has not ended has released more than its record knows
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
            "status": record["status"],  # still "running" for a run that was killed
            "corpus": Path(config.corpus).name,
            "corpus_sha256": record["corpus"]["sha256"],
            "model": config.model,
            "method": config.method,
            "settings": _settings(config),  # `compare_runs` keeps those that differ
            "epochs": len(epochs),  # trained in full
            "epochs_planned": config.epochs,
            "test_ser": final.get("ser"),  # scores are on the test set, as fractions
            **{name: final.get(name) for name in ("intent_accuracy", "slot_f1", "exact_match")},
            "seconds_per_epoch": sum(row["seconds"] for row in epochs) / len(epochs) if epochs else None,
            "claimed_epsilon": spent.get("claimed_epsilon"),  # by the paper's accounting, z_t taken at face value
            "guaranteed_epsilon": epsilon if status == HOLDS else None,
            "epsilon_if_seed_secret": epsilon if status == VOID else None,
            "epsilon_in_real_numbers": epsilon if status == IDEAL else None,  # its noise is floating-point
            "epsilon_if_alpha_public": if_public if epsilon is None else None,  # and words, and the seed secret
            "guarantee": status,
            "delta": None if config.method == "sgd" else guarantee["delta"],
            "neighbours": neighbours and Adjacency(neighbours).name.lower().replace("_", "-"),
        }
    except (KeyError, TypeError, AttributeError):  # it was edited and sealed again, or another version wrote it
        raise UsageError(f"{folder} has a record of another version of edp_lab: leave it out, or train again") from None


def _settings(config: TrainConfig) -> dict[str, Any]:
    """Settings that matter for the run's method, with defaults filled in; None becomes "none"."""
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
    """One line per property that any run has: its title, then one text per run."""

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
