"""Runs side by side: what was changed, what it cost in errors and time, and what each epsilon means.

    python -m edp_lab compare runs/plain runs/noised --csv runs.csv --latex runs.tex --plot runs.html

`compare` reads run records, and of a run that has not ended its ledger, too. The CSV has every column; tables for
people leave out columns that are empty, and say once what is the same in all runs.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from edp_lab.errors import UsageError
from edp_lab.privacy import Adjacency
from edp_lab.training.run_folder import RECORD, read_record

SCORES = {
    "test\nSER": "test_ser",
    "intent\naccuracy": "intent_accuracy",
    "slot\nF1": "slot_f1",
    "exact\nmatch": "exact_match",
}
NOTHING = "-"
IN_OWN_COLUMN = ("corpus", "model", "method", "epochs", "delta")
PER_EXAMPLE = ("dp-sgd", "dp-sgd-naive")
NOT_FOR_SGD = (
    "clip_norm", "z0", "decay", "tau", "num_devices", "micro_batch_size", "as_printed", "alpha", "noise",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One run's row. None stands for what a run does not have: no slots annotated, not scored, no epsilon.

    Attributes:
        name: its folder's name, with as much of the path as tells it from the other runs.
        status: "finished", "interrupted", "failed" or "running", which a run is called, too, that was killed.
        settings: those that differ between the runs, unless this one does without, as SGD does without noise; None as
            configured is "none".
        epochs: trained in full, of `epochs_planned`.
        test_ser, intent_accuracy, slot_f1, exact_match: on the test set, as fractions.
        seconds: of training, summed over the epochs trained; validation is not in it.
        times_reference: seconds per epoch over those of `Comparison.reference`.
        epsilon_claimed: by the paper's accounting, z_t taken at face value.
        epsilon_that_holds: at `delta`; None unless `guarantee` is "holds".
        epsilon_if_seed_secret: what would hold had the seed not been published; None where one holds.
        epsilon_if_alpha_public: what would hold had layer scales and words come from public text, and the seed been
            secret; None where one of the other two is there.
        neighbours, batches: what the epsilons are about; empty for plain training.
        hardware: device and threads.
        validation_ser: by epoch.
    """

    name: str
    folder: Path
    status: str
    corpus: str
    corpus_sha256: str
    model: str
    method: str
    settings: dict[str, Any]
    epochs: int
    epochs_planned: int
    test_ser: float | None
    intent_accuracy: float | None
    slot_f1: float | None
    exact_match: float | None
    seconds: float | None
    times_reference: float | None
    epsilon_claimed: float | None
    epsilon_that_holds: float | None
    epsilon_if_seed_secret: float | None
    epsilon_if_alpha_public: float | None
    guarantee: str
    delta: float | None
    neighbours: str
    batches: str
    hardware: str
    validation_ser: tuple[float | None, ...]

    @property
    def seconds_per_epoch(self) -> float:
        return math.inf if self.seconds is None else self.seconds / self.epochs

    @property
    def epsilon_that_would_hold(self) -> float | None:
        """The one of the three that there is."""
        found = (self.epsilon_that_holds, self.epsilon_if_seed_secret, self.epsilon_if_alpha_public)
        return next((epsilon for epsilon in found if epsilon is not None), None)


@dataclass(frozen=True)
class Comparison:
    """Runs, in the order given, and the names of the settings in which they differ.

    Attributes:
        reference: the run whose time is 1: the fastest SGD run per epoch, or the fastest where none is SGD.
        notes: why some numbers do not compare, a sentence each.
    """

    runs: tuple[Run, ...]
    settings: tuple[str, ...]
    reference: Run | None
    notes: tuple[str, ...]


def compare(folders: Sequence[str | Path]) -> Comparison:
    """Read the runs in these folders.

    Raises:
        UsageError: no folder, the same run twice, a folder that holds no run, a damaged record.
    """
    if not folders:
        raise UsageError("no run was given: name at least one --out folder of edp-lab train")
    runs = [_read(Path(folder)) for folder in folders]
    paths = [run.folder.resolve() for run in runs]
    for place, path in enumerate(paths):
        if path in paths[:place]:
            raise UsageError(f"run {folders[place]} is given twice: name each run once")
    reference, differing = _reference(runs), _differing(runs)
    rows = []
    for run, name in zip(runs, _names(paths), strict=True):
        settings = {key: value for key, value in _counting(run).items() if key in differing}
        row = replace(run, name=name, settings=settings)
        if reference is not None and run.seconds is not None:
            row = replace(row, times_reference=run.seconds_per_epoch / reference.seconds_per_epoch)
        rows.append(row)
    return Comparison(tuple(rows), differing, reference and rows[runs.index(reference)], _notes(runs))


def _names(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths:
        tails = (["/".join(other.parts[-parts:]) for other in [path, *paths]] for parts in count(1))
        name = next(own for own, *every in tails if every.count(own) == 1)
        yield "".join(char if char.isprintable() else "?" for char in name)


def _reference(runs: Sequence[Run]) -> Run | None:
    timed = [run for run in runs if run.seconds]
    plain = [run for run in timed if run.method == "sgd"]
    return min(plain or timed, key=lambda run: run.seconds_per_epoch, default=None)


def _counting(run: Run) -> dict[str, Any]:
    unused = NOT_FOR_SGD if run.method == "sgd" else ()
    return {name: value for name, value in run.settings.items() if name not in unused}


def _differing(runs: Sequence[Run]) -> tuple[str, ...]:
    """Names of settings with two values or more, unless they count in no run; a record that lacks one has no say."""

    def differs(name: str) -> bool:
        given = [run.settings[name] for run in runs if name in run.settings]
        counting = [_counting(run).get(name) for run in runs]
        return all(any(value != values[0] for value in values) for values in (given, counting))

    return tuple(filter(differs, dict.fromkeys(name for run in runs for name in run.settings)))


# ---- Reading a record ----------------------------------------------------------------------------------------------


def _read(folder: Path) -> Run:
    path = folder / RECORD
    try:
        record = read_record(folder)
        return _row(folder, record, _billed(folder, record))
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): leave it out, or mend that") from error
    except UsageError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError):
        raise UsageError(f"{path} is damaged: train again, or restore it from a copy") from None


def _billed(folder: Path, record: dict[str, Any]) -> dict[str, float | None] | None:
    """Epsilons of what a private run has released that has not ended: more than its record knows."""
    if record["status"] != "running" or record.get("ledger") is None:
        return None
    from edp_lab.training.inference import run_ledger
    from edp_lab.training.run_folder import bill

    ledger = run_ledger(folder)
    return bill(record, ledger.mechanism, ledger, max(1, len(record["epochs"])))


def _row(folder: Path, record: Mapping[str, Any], billed: Mapping[str, Any] | None = None) -> Run:
    config, corpus, guarantee = record["config"], record["corpus"], record["guarantee"]
    epochs, final = record["epochs"], record.get("final") or {}
    bill = billed or final or (epochs[-1] if epochs else {})
    method, status = _text(config, "method"), _text(guarantee, "status", "none")
    epsilon, if_public = _number(bill, "epsilon"), _number(bill, "epsilon_if_alpha_public")
    seconds = [_number(row, "seconds") or 0.0 for row in epochs]
    neighbours = _text(guarantee, "adjacency", "")
    return Run(
        name=folder.name,
        folder=folder,
        status=_text(record, "status"),
        corpus=Path(_text(corpus, "name")).name,
        corpus_sha256=_text(corpus, "sha256"),
        model=_text(config, "model"),
        method=method,
        settings=_settings(config),
        epochs=len(epochs),
        epochs_planned=int(config["epochs"]),
        test_ser=_number(final, "ser"),
        intent_accuracy=_number(final, "intent_accuracy"),
        slot_f1=_number(final, "slot_f1"),
        exact_match=_number(final, "exact_match"),
        seconds=sum(seconds) if seconds else None,
        times_reference=None,
        epsilon_claimed=_number(bill, "epsilon_claimed"),
        epsilon_that_holds=epsilon if status == "holds" else None,
        epsilon_if_seed_secret=None if status == "holds" else epsilon,
        epsilon_if_alpha_public=if_public if epsilon is None else None,
        guarantee=status,
        delta=None if method == "sgd" else _number(guarantee, "delta"),
        neighbours={one.value: one.name.lower().replace("_", "-") for one in Adjacency}.get(neighbours, neighbours),
        batches=_text(guarantee, "sampling", ""),
        hardware=_hardware(record),
        validation_ser=tuple(_number(row, "ser") for row in epochs),
    )


def _hardware(record: Mapping[str, Any]) -> str:
    device, threads = _text(record, "device", "unknown device").partition(":")[0], _number(record, "threads")
    return device if threads is None else f"{device} with {threads:g} thread{'' if threads == 1 else 's'}"


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


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """All settings, those left to a default that depends on others filled in as `TrainConfig` does."""
    method = config["method"]
    config = {"intent_weight": 1.0, **config}  # which older records lack
    settings = {name: value for name, value in config.items() if name not in IN_OWN_COLUMN}
    settings["alpha"] = config.get("alpha") or ("private" if config.get("as_printed") else "none")
    settings["sampling"] = config.get("sampling") or ("poisson" if method in PER_EXAMPLE else "shuffle")
    shared = 1 if method in PER_EXAMPLE else math.ceil(config["batch_size"] / config["num_devices"])
    settings["micro_batch_size"] = config.get("micro_batch_size") or shared
    if config.get("decay") == "none":
        settings["tau"] = None
    settings = {name: "none" if value is None else value for name, value in settings.items()}
    return {name: _setting_in(settings, name) for name in settings}


def _setting_in(settings: Mapping[str, Any], name: str) -> str | int | float | None:
    value = settings[name]
    if isinstance(value, bool | int):
        return value
    if isinstance(value, list | dict):
        return json.dumps(value)
    return _number(settings, name) if isinstance(value, float) else _text(settings, name)


# ---- What does not compare -----------------------------------------------------------------------------------------


def _notes(runs: Sequence[Run]) -> tuple[str, ...]:
    private = [run for run in runs if run.delta is not None]
    notes = []
    if unfinished := [str(run.folder) for run in runs if run.status == "running"]:
        cure = "edp-lab train --resume goes on with one that was broken off"
        notes.append(f"not ended, so its epsilon is of what its ledger holds now: {', '.join(unfinished)}; {cure}")
    if _values(runs, lambda run: run.corpus_sha256):
        names = _values(runs, lambda run: run.corpus)
        corpora = f"are {_listed(names)}" if names else f"are all named {runs[0].corpus}, but their checksums differ"
        notes.append(f"the corpora {corpora}: neither scores nor times compare")
    if seeds := _values(runs, lambda run: run.settings.get("seed")):
        notes.append(f"seeds {_listed(seeds)} make different splits: scores are on different test sets")
    if _values(runs, lambda run: run.settings.get("keep_duplicates_together")):
        notes.append("duplicates are kept together in some splits only: scores may be on different test sets")
    if deltas := _values(private, lambda run: run.delta):
        notes.append(f"epsilons are at different deltas ({_listed(f'{delta:.3g}' for delta in deltas)})")
    if neighbours := _values(private, lambda run: run.neighbours):
        notes.append(f"epsilons are about different neighbours ({_listed(neighbours)})")
    if _values(private, lambda run: run.settings.get("as_printed")):
        notes.append("z0 is noise over sensitivity in a sound run, std over C of one device in one as printed")
    if hardware := _values(runs, lambda run: run.hardware):
        notes.append(f"the runs had different hardware ({_listed(hardware)}): times do not compare")
    return tuple(notes)


def _values(runs: Sequence[Run], key: Callable[[Run], Any]) -> list[Any]:
    """The different values, in order; none where there is but one."""
    values = list(dict.fromkeys(value for value in map(key, runs) if value is not None))
    return values if len(values) > 1 else []


def _listed(values: Iterable[Any]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} and {last}"


# ---- Tables --------------------------------------------------------------------------------------------------------


class Column(NamedTuple):
    """One property of the runs for people: heading (a new line where it may break), and its value as text.

    Attributes:
        group: neighbours in a table that has to be cut.
        folds: said once where it is the same in all runs.
        number: flushed right.
    """

    title: str
    group: str
    text: Callable[[Run], str]
    folds: bool = False
    number: bool = True


def _value(name: str, spec: str) -> Callable[[Run], str]:
    def text(run: Run) -> str:
        value = getattr(run, name)
        return NOTHING if value is None else format(value, spec)

    return text


def _setting(name: str, number: bool) -> Column:
    def text(run: Run) -> str:
        value = run.settings.get(name)
        if isinstance(value, bool):
            return "yes" if value else "no"
        return NOTHING if value is None else format(value, ".6g" if isinstance(value, float) else "")

    return Column(name.replace("_", "\n"), "run", text, number=number)


def _epochs(run: Run) -> str:
    return str(run.epochs) if run.epochs == run.epochs_planned else f"{run.epochs} of {run.epochs_planned}"


def _holds(run: Run) -> str:
    return "none" if run.epsilon_that_holds is None else f"{run.epsilon_that_holds:.4g}"


def columns(comparison: Comparison) -> list[Column]:
    """Every column in which at least one run has something."""
    words = {name for run in comparison.runs for name, value in run.settings.items() if isinstance(value, str)}
    is_sgd = comparison.reference is not None and comparison.reference.method == "sgd"
    every = [
        Column("run", "name", lambda run: run.name, number=False),
        *(Column(name, "run", attrgetter(name), True, False) for name in ("status", "corpus", "model", "method")),
        *(_setting(name, name not in words) for name in comparison.settings),
        Column("epochs", "run", _epochs, folds=True),
        *(Column(title, "scores", _value(name, ".4f")) for title, name in SCORES.items()),
        Column("training\nseconds", "time", _value("seconds", ".1f")),
        Column("time\n(SGD = 1)" if is_sgd else "time\n(fastest = 1)", "time", _value("times_reference", ".2f")),
        Column("epsilon\nclaimed", "privacy", _value("epsilon_claimed", ".4g")),
        Column("epsilon\nthat holds", "privacy", _holds),
        Column("guarantee", "privacy", lambda run: run.guarantee, folds=True, number=False),
        Column("epsilon if\nseed secret", "privacy", _value("epsilon_if_seed_secret", ".4g")),
        Column("epsilon if\nalpha public", "privacy", _value("epsilon_if_alpha_public", ".4g")),
        Column("delta", "privacy", _value("delta", ".3g"), folds=True),
    ]
    return [column for column in every if any(column.text(run) != NOTHING for run in comparison.runs)]


def fold(comparison: Comparison) -> tuple[list[Column], str]:
    """The columns of a table with one row per run, and a sentence about those that are the same in all runs."""
    kept, same = [], []
    for column in columns(comparison):
        texts = {column.text(run) for run in comparison.runs} - {NOTHING}
        if column.folds and len(texts) == 1 and len(comparison.runs) > 1:
            same.append(f"{column.title} {texts.pop()}")
        else:
            kept.append(column)
    return kept, f"the same in all runs: {', '.join(same)}" if same else ""


def explanation(comparison: Comparison) -> str:
    """What the headings mean, as far as they say it too shortly."""
    said = ["scores are on the test set"]
    if comparison.reference is not None and len(comparison.runs) > 1:
        said.append(f"time: seconds per epoch over those of {comparison.reference.name}")
    if any(run.epsilon_claimed is not None for run in comparison.runs):
        said.append("epsilon claimed: by the paper's accounting")
    if any(run.epsilon_if_alpha_public is not None for run in comparison.runs):
        said.append("epsilon if alpha public: had alpha and words come from public text, and the seed been secret")
    return "; ".join(said)


def as_json(comparison: Comparison) -> dict[str, Any]:
    """For `json.dumps`; the reference by its name."""
    rows = [{**asdict(run), "folder": str(run.folder)} for run in comparison.runs]
    reference = None if comparison.reference is None else comparison.reference.name
    return {"runs": rows, "settings": comparison.settings, "reference": reference, "notes": comparison.notes}


def as_csv(comparison: Comparison) -> str:
    """One row per run, numbers in full, settings in columns of their own; what a run does not have is empty."""
    rows: list[dict[str, Any]] = []
    for run in as_json(comparison)["runs"]:
        del run["validation_ser"]
        rows.append({})
        for name, value in run.items():
            rows[-1] |= {key: value.get(key) for key in comparison.settings} if name == "settings" else {name: value}
    lines = io.StringIO()
    writer = csv.DictWriter(lines, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return lines.getvalue()


def as_latex(comparison: Comparison) -> str:
    """A tabular for the package booktabs; what is the same in all runs, and what does not compare, is in comments."""
    kept, same = fold(comparison)
    comments = ["\\usepackage{booktabs}", same, explanation(comparison), *map("note: {}".format, comparison.notes)]
    titles = [_escaped(column.title.replace("\n", " ")) for column in kept]
    titles = [title.replace("epsilon", r"$\varepsilon$").replace("delta", r"$\delta$") for title in titles]
    rows = [[_escaped(column.text(run)) for column in kept] for run in comparison.runs]
    head, *lines = (" & ".join(row) + r" \\" for row in (titles, *rows))
    places = "".join("r" if column.number else "l" for column in kept)
    said = "".join(f"% {comment}\n" for comment in comments if comment)
    return said + TABULAR % (places, head, "\n".join(lines))


LATEX = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}"},
}
TABULAR = r"""\begin{tabular}{%s}
\toprule
%s
\midrule
%s
\bottomrule
\end{tabular}
"""


def _escaped(text: str) -> str:
    if text == NOTHING:
        return "--"
    if power := re.fullmatch(r"(-?[\d.]+)e([+-]\d+)", text):
        return rf"${power[1]}\times10^{{{int(power[2])}}}$"
    return "".join(LATEX.get(char, char) for char in text)
