"""Commands for corpora and models: ``edp-lab data``, ``train``, ``evaluate``, ``predict`` and ``pretrain``."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

from edp_lab.cli.terminal import (
    UTTERANCES,
    App,
    Facts,
    Json,
    Report,
    RunFolder,
    Screen,
    answer,
    bar,
    chosen,
    commas,
    echo,
    given,
    number,
    options_of,
    output_folder,
    telling,
    up,
)
from edp_lab.errors import UsageError
from edp_lab.files import check_new, given_path
from edp_lab.training.config import COUNT, SEED, SIZES, TrainConfig, flag_of, option_name
from edp_lab.training.launch import end_rank, launched, rank

if TYPE_CHECKING:
    from edp_lab.training.pretraining import PretrainingEpoch
    from edp_lab.training.recipe import Plan
    from edp_lab.training.run_files import Event

Columns = Annotated[str | None, "Headings of the text and intent columns in a CSV or TSV file: TEXT,INTENT."]
EXAMPLES = 5  # number of utterances that ``edp-lab data show`` prints
LINES = 20  # maximum number of progress lines per run
TEXT_SEED = 14586  # seed of the default pretraining text; the embedded corpus has another seed


# ---- Corpora ---------------------------------------------------------------------------------------------------------

data_app = App(no_args_is_help=True, help="List, show, download or generate corpora.")


@data_app.command("list")
def list_(as_json: Json = False) -> None:
    """List every corpus, its licence, and its folder on this machine."""
    from edp_lab.corpora.catalog import list_corpora

    rows = [row._asdict() | {"where": row.where and str(row.where)} for row in list_corpora()]
    facts = []
    for row in rows:
        size = "" if row["utterances"] is None else f"{row['utterances']:,} utterances; "
        facts.append((row["name"], f"{size}{row['description']}"))
        facts.append(("", f"{row['licence']}; {row['where'] or 'to download: edp-lab data fetch ' + row['name']}"))
    answer(as_json, rows, Report(facts=facts))


@data_app.command()
def show(
    corpus: Annotated[str, typer.Argument(help="A path to your own corpus, or a name from `edp-lab data list`.")],
    columns: Columns = None,
    as_json: Json = False,
) -> None:
    """Show the contents of a corpus: counts, labels, five utterances and notes."""
    from edp_lab.corpora.catalog import load_corpus, note_on_words

    found = load_corpus(f"{corpus}[{columns}]" if columns else corpus)
    utterances, slots = found.utterances, (tag[2:] for u in found.utterances for tag in u.tags or () if tag[0] == "B")
    counts = {"intents": Counter(u.intent for u in utterances), "slots": Counter(slots)}
    facts = [("utterances", f"{len(utterances):,}")]
    for what, count in counts.items():
        facts.append((f"{len(count)} {what}", ", ".join(f"{name} {times:,}" for name, times in count.most_common())))
    some = utterances[:: math.ceil(len(utterances) / EXAMPLES)]
    for u in some:
        facts += [(u.intent, u.text), *([("", " ".join(u.tags))] if u.tags else [])]
    result = {"corpus": found.name, "utterances": len(utterances), **counts, "examples": [*map(asdict, some)]}
    notes = [*found.warnings, *note_on_words(found)]
    answer(as_json, result | {"warnings": notes}, Report(facts=facts, notes=[f"note: {note}" for note in notes]))


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="Name of the corpus: atis, snips, nlu-eval or mnist.")],
    to: Annotated[Path | None, "Data folder. (default: data/ of a checkout, otherwise the cache)"] = None,
) -> None:
    """Download a corpus and verify every file's checksum."""
    from edp_lab.corpora.catalog import fetch as run

    with bar(name, TextColumn("{task.description}"), DownloadColumn()) as (update, _):
        folder = run(name, to, lambda done, size, what: update(done, size, description=what))
    echo(folder)


@data_app.command()
def make(
    name: Annotated[str, typer.Argument(help="Name: smart-home, or smart-home-communication, -health or -video.")],
    out: Annotated[Path, "JSONL file to write (.jsonl or .jsonl.gz)."],
    utterances: Annotated[int, "Number of utterances.", UTTERANCES] = 4500,
    seed: Annotated[int, "Seed; the same seed produces the same corpus.", SEED] = 0,
) -> None:
    """Generate a synthetic smart-home corpus of any size."""
    from edp_lab.corpora.smart_home import DOMAINS, generate, write_jsonl

    domain = name.removeprefix("smart-home").removeprefix("-")
    if name not in ("smart-home", *(f"smart-home-{known_domain}" for known_domain in DOMAINS)):
        raise UsageError(f"cannot make {name!r}: choose smart-home, or smart-home- followed by {' or '.join(DOMAINS)}")
    if out.exists():
        raise UsageError(f"{out} exists: choose another --out")
    if not out.name.endswith((".jsonl", ".jsonl.gz")):
        raise UsageError(f"{out} is not the name of a JSONL file: call it {out.name}.jsonl")
    output_folder(out.parent).mkdir(parents=True, exist_ok=True)
    write_jsonl(generate(utterances, seed, domain or None), out)
    echo(out)


# ---- Training --------------------------------------------------------------------------------------------------------


@options_of(TrainConfig)
def train(
    ctx: typer.Context,
    corpus: Annotated[str | None, "Corpus: a name from `edp-lab data list`, or a path to your own corpus."] = None,
    columns: Columns = None,
    out: Annotated[Path | None, "New folder for the run's record and model."] = None,
    epsilon: Annotated[
        float | None,
        "Guarantee this epsilon: use the recipe's settings and a secret key, and write a certificate. Other options "
        "override the recipe's settings.",
    ] = None,
    dry_run: Annotated[bool, "With --epsilon: print the plan and stop."] = False,
    resume: Annotated[Path | None, "Resume the run in this folder, bit for bit (replaces --corpus and --out)."] = None,
    *,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Train an intent-and-slot model: privately with --epsilon 3, or without privacy with --method sgd.

    The run's record states the claimed and the guaranteed epsilon. Without --epsilon, you choose all settings by hand,
    starting from the defaults below, and the seed is published unless you add --private-seed. With --epsilon, the
    defaults are different: --dry-run prints them.

    Ctrl-C ends the run after the current step and leaves a usable model and record; --resume continues the run.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads would be slow on a busy machine
    from edp_lab.training.run_files import new_run_folder, read_record
    from edp_lab.training.session import resume as take_up
    from edp_lab.training.session import train as run

    start: Callable[..., dict[str, Any]]
    if corpus and columns:
        corpus = ctx.params["corpus"] = f"{corpus}[{columns}]"
    if resume is not None:
        superfluous = [name for name in ctx.params if name in given(ctx) - {"resume", "as_json"}]
        if superfluous:
            raise UsageError(f"{flag_of(superfluous[0])} is read from the run's record: drop it, or drop --resume")
        before = read_record(resume)
        folder, size, start = resume, before["config"]["size"], partial(take_up, resume)
    elif dry_run and corpus is not None and epsilon is not None:
        made = _planned(ctx, corpus, epsilon)
        answer(as_json, asdict(made), _plan_to_read(made))
        return
    elif dry_run and corpus is None:
        raise UsageError("--dry-run plans the training on a corpus: give --corpus")
    elif dry_run and epsilon is None:
        raise UsageError("--dry-run prints the plan for an epsilon: give --epsilon, or drop --dry-run")
    elif corpus is None or out is None:
        missing = " and ".join(name for name, value in (("--corpus", corpus), ("--out", out)) if value is None)
        raise UsageError(f"a new run needs --corpus and --out (--resume DIR continues an old run): give {missing}")
    elif epsilon is not None:
        if rank() == 0:
            new_run_folder(out)  # fails before the noise is computed
        made = _planned(ctx, corpus, epsilon)
        if rank() == 0:
            Screen(stderr=True).report(_plan_to_read(made))
        folder, size, start = out, made.config.size, partial(run, made.config, out)
    elif not given(ctx) & {"z0", "method", "as_printed"}:
        raise UsageError(
            "private training needs an epsilon, such as 3: give --epsilon, or --method sgd to train without privacy"
        )
    elif options["method"] == "sgd" and "noise" in given(ctx):
        raise UsageError("--noise has no effect because sgd adds no noise: drop --noise, or choose another --method")
    else:
        folder, size, start = out, options["size"], partial(run, chosen(ctx, TrainConfig), out)
    one_thread_if_small(size)
    try:
        with on_interrupt() as stop, listening(quiet=rank() > 0) as listener:
            record = start(listener, stop)
    except UsageError:
        _tell_of_secret(folder)
        raise
    if resume is not None and before["status"] == "finished" and rank() == 0:
        echo("this run is finished: there is nothing to resume", error=True)
    _finish(record, folder, as_json)


def _planned(ctx: typer.Context, corpus: str, epsilon: float) -> Plan:
    """The recipe's plan for the given options."""
    from edp_lab.training.recipe import plan

    named, names = given(ctx), {field.name: option_name(field.name) for field in fields(TrainConfig)}
    for name, why in (("z0", "computes the noise itself"), ("as_printed", "needs the sound mechanism")):
        if name in named:
            raise UsageError(f"--epsilon {why}: drop --epsilon or {flag_of(name)}")
    overrides = {field: ctx.params[name] for field, name in names.items() if name in named and field != "corpus"}
    with telling(f"reading {corpus} and computing the noise", lines=False):
        return plan(corpus, epsilon, **overrides)


def one_thread_if_small(size: str) -> None:
    if size == "small":
        import torch

        torch.set_num_threads(1)  # a second thread does not speed up small matrix products, and may slow them down


@contextmanager
def on_interrupt() -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C or SIGTERM sets; a second signal raises KeyboardInterrupt.

    A rank does not handle SIGTERM, which ends it immediately: a rank that waits for another never runs a handler.
    """
    stop, rank = threading.Event(), os.environ.get("RANK")

    def ask(signal_number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        if rank in (None, "0"):
            sys.stderr.write("ending after this step; press Ctrl-C again to end immediately\n")

    handled = (signal.SIGINT, signal.SIGTERM) if rank is None else (signal.SIGINT,)
    earlier = {handled_signal: signal.signal(handled_signal, ask) for handled_signal in handled}
    try:
        yield stop
    finally:
        for handled_signal, handler in earlier.items():
            signal.signal(handled_signal, handler)


@contextmanager
def listening(quiet: bool = False) -> Iterator[Callable[[Event], None]]:
    """Yield a listener for training that shows a bar on a terminal, and prints about `LINES` lines on epochs.

    `quiet`: print nothing, because another rank reports progress.
    """
    from edp_lab.privacy.guarantee import CONDITIONS, upward
    from edp_lab.training.run_files import StepDone

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[loss]}"), TimeRemainingColumn())
    noises: list[float] = []
    with bar("reading the corpus", *columns, quiet=quiet, loss="") as (update, say):

        def listen(event: Event) -> None:
            if isinstance(event, StepDone):
                update(
                    description=f"epoch {event.epoch + 1}/{event.epochs}",
                    total=event.epochs * event.steps,
                    completed=event.epoch * event.steps + event.step,
                    loss=f"loss {event.loss:.3f}",
                )
                return
            if event.epoch + 1 < event.epochs and (event.epoch + 1) % math.ceil(event.epochs / LINES):
                return
            row = event.row  # type: ignore[union-attr]
            parts = [f"epoch {event.epoch + 1:>3}/{event.epochs}", f"loss {row['loss']:.3f}", f"SER {row['ser']:.4f}"]
            parts.append(f"intent {row['intent_accuracy']:.3f}")
            if row["slot_f1"] is not None:
                parts.append(f"slot F1 {row['slot_f1']:.3f}")
            if row["z_t"] is not None:
                noises.append(row["z_t"])
                parts += [f"z {row['z_t']:.3g}"] if row["z_t"] != noises[0] else []
                unless = f" {CONDITIONS.get(event.status, '')}".rstrip()  # type: ignore[union-attr]
                epsilon = row["conditional_epsilon"]
                parts.append("no guarantee" if epsilon is None else f"epsilon {upward(epsilon)}{unless}")
            say("  ".join([*parts, f"{row['seconds']:.1f} s"]))

        yield listen


def _finish(record: dict[str, Any], out: Path, as_json: bool) -> None:
    """Print the result on rank 0; end a process that torchrun started."""
    if rank() == 0:
        try:
            answer(as_json, record, _record_to_read(record, out))
        except BrokenPipeError:  # not an error: the reader has closed the pipe
            raise
        except OSError as error:
            whole = f"the run is saved in {out}, and edp-lab compare {out} prints its results"
            raise UsageError(f"standard output cannot be written ({error.strerror}): {whole}") from None
        if record["status"] == "interrupted":
            echo(f"interrupted: to continue, run edp-lab train --resume {out}", error=True)
            if record["final"]["conditional_epsilon"] is not None:
                echo("the epsilon covers the steps so far, unless you stopped because of a score you saw", error=True)
            _tell_of_secret(out)
            raise typer.Exit(130)
    if launched()[1] > 1:  # a launcher such as torchrun started this process
        end_rank(0)


def _tell_of_secret(folder: Path) -> None:
    from edp_lab.training.run_files import SECRET

    if (folder / SECRET).exists():
        echo(f"until the run is finished, {folder} contains secret.key: delete this file before sharing", error=True)


# ---- Plans and results of runs ---------------------------------------------------------------------------------------


def _plan_to_read(made: Plan) -> Report:
    """Format the plan of ``edp-lab train --epsilon`` for reading."""
    config = made.config
    unit, together = f"each of n = {made.protected:,} utterances", f"epsilon {up(made.copies_epsilon, 4)} together"
    facts = [
        ("delta times n", up(made.delta * made.protected, 2)),
        ("training", f"{made.steps} steps; noise multiplier {number(config.z0, 4)}"),
        *([("equal utterances", f"up to {made.copies:,}, with {together}")] if made.copies > 1 else []),
        *(("assumed public", f"starting model, trained without privacy on {corpus}") for corpus in made.public),
        *((line.setting, f"{line.value}: {line.why}") for line in made.lines),
    ]
    notes = [f"note: {warning}" for warning in made.warnings]
    if made.delta >= 0.01:
        notes.append(f"note: delta is large: publishing all data with probability {up(made.delta, 3)} would satisfy it")
    return Report(f"epsilon {number(made.epsilon)} for {unit}, at delta {up(made.delta, 3)}", facts, notes)


def _record_to_read(record: Mapping[str, Any], out: Path) -> Report:
    """Format a run's record for reading."""
    final, held, config, corpus = (record[name] for name in ("final", "guarantee", "config", "corpus"))
    sizes = "{train} training, {validation} validation and {test} test utterances".format_map(corpus["splits"])
    slots = "no slots" if final["slot_f1"] is None else f"slot F1 {final['slot_f1']:.4f}"
    facts = [
        ("split", sizes),
        ("test", f"SER {final['ser']:.4f}, intent accuracy {final['intent_accuracy']:.4f}, {slots}"),
    ]
    if config["method"] == "sgd":
        facts.append(("guaranteed epsilon", "none (training without privacy)"))
    else:
        facts += _promised(final, held)
        if held["status"] == "holds" and record["status"] == "finished":
            facts.append(("certificate", f"{out}/certificate.html; edp-lab account --run {out} recomputes it"))
    if final["noise_multiplier"] is not None:
        z = f"{number(final['noise_multiplier'], 4)} times the sensitivity"
        devices = f"; {record['devices']}" if config["method"] == "edp-sgd" else ""
        facts.append(("noise, last epoch", f"{z}{devices}"))
    facts += [("not private", ", ".join(record["not_private"])), ("run", str(out))]
    return Report(facts=facts, notes=[f"note: {warning}" for warning in corpus["warnings"]])


def _promised(final: Mapping[str, Any], held: Mapping[str, Any]) -> Facts:
    from edp_lab.privacy.guarantee import CONDITIONS

    at, reason = f"for an utterance, at delta {up(held['delta'], 3)}", held["reason"]
    facts = []
    if final["claimed_epsilon"] is not None:
        facts.append(("claimed epsilon", f"{number(final['claimed_epsilon'], 4)} (the paper's accounting)"))
    if held["status"] == "holds":
        return [*facts, ("guaranteed epsilon", f"{up(final['guaranteed_epsilon'], 4)} {at} ({reason})")]
    facts.append(("guaranteed epsilon", f"none: {held['status']} ({reason})"))
    if final["conditional_epsilon"] is not None:
        facts.append(("", f"{up(final['conditional_epsilon'], 4)} {CONDITIONS[held['status']]}, {at}"))
    elif final["epsilon_if_alpha_public"] is not None:
        facts.append(("", f"{up(final['epsilon_if_alpha_public'], 4)} if alpha and words were public, {at}"))
    return facts


# ---- Using a run -----------------------------------------------------------------------------------------------------


def evaluate(run: RunFolder, as_json: Json = False) -> None:
    """Evaluate a run's model again on its test split, which was not used for training."""
    from edp_lab.training.evaluate import evaluate_run

    scores = evaluate_run(run)
    answer(as_json, scores, Report(facts=[(name, number(score, 4, "-")) for name, score in scores.items()]))


def predict(
    run: RunFolder,
    text: Annotated[
        list[str], typer.Argument(help="Sentences, spelled as in the corpus (usually lower case, without punctuation).")
    ],
    as_json: Json = False,
) -> None:
    """Predict the intent and slots of sentences, with the model's probabilities."""
    from edp_lab.training.evaluate import predict_texts

    answers = predict_texts(run, text)
    if len(text) > 1 and not any(" " in sentence for sentence in text):
        echo("each word was read as a separate sentence: put quotes around a sentence of several words", error=True)
    facts = []
    for each in answers:
        slots = [f"{slot['slot']} = {slot['value']} ({slot['probability']:.2f})" for slot in each["slots"]]
        facts += [("", each["text"]), ("intent", f"{each['intent']} ({each['intent_probability']:.2f})")]
        facts.append(("slots", ", ".join(slots) or "none"))
    answer(as_json, answers, Report(facts=facts))


# ---- Pretraining -----------------------------------------------------------------------------------------------------


def pretrain(
    out: Annotated[Path, "New folder for the result, to pass to edp-lab train --pretrained."],
    model: Annotated[
        str, "What to train: clc (fastText word vectors), bert (masked language model) or start (public starting CLC)."
    ] = "bert",
    text: Annotated[
        str | None,
        "A corpus (name or path) or a .txt file with one sentence per line. With --model start: corpora, separated by "
        "commas, to use in addition to generated requests. Do not use the text of a private run. (default: generated "
        "commands)",
    ] = None,
    unlabelled: Annotated[
        str | None, "With --model start: corpora, separated by commas, to read without their labels."
    ] = None,
    utterances: Annotated[int, "Number of utterances to generate without --text.", UTTERANCES] = 20_000,
    epochs: Annotated[int, "Number of passes over the text.", COUNT] = 10,
    size: Annotated[
        str, "Size: paper (BERT with 4 layers of width 312, or vectors of length 100), medium or small."
    ] = "paper",
    seed: Annotated[int, "Seed of the initial weights, batches and masks.", SEED] = 0,
) -> None:
    """Pretrain on separate text if no published word vectors or BERT weights are available.

    BERT learns to predict masked word pieces (Devlin et al. 2019). At the paper's size, an epoch on 20,000 short
    utterances takes about a minute on two cores. Word vectors take seconds. This training is not private.
    """
    from edp_lab.corpora.catalog import load_corpus
    from edp_lab.models.bert import BertSize
    from edp_lab.models.vectors import DIMENSIONS
    from edp_lab.training.pretraining import pretrain_bert, pretrain_start, pretrain_vectors

    if model not in ("clc", "bert", "start"):
        raise UsageError(f"unknown model {model!r}: choose clc, bert or start")
    if unlabelled is not None and model != "start":
        raise UsageError("--unlabelled needs --model start: for other models, use --text")
    if size not in SIZES:
        raise UsageError(f"unknown size {size!r}: choose one of {', '.join(SIZES)}")
    check_new(out)
    begun = time.monotonic()

    def show(p: PretrainingEpoch) -> None:
        echo(f"epoch {p.epoch:>3}/{p.epochs}  loss {p.loss:.3f}  after {time.monotonic() - begun:.1f} s", error=True)

    if model == "start":
        named, more = (
            {Path(name).stem: load_corpus(name) for name in commas(some)} if some else {} for some in (text, unlabelled)
        )
        pretrain_start(named, out, more, generated=utterances, epochs=epochs, seed=seed, progress=show)
    elif model == "bert":
        shape = BertSize(**SIZES[size]["bert"])
        pretrain_bert(read_sentences(text, utterances), out, epochs=epochs, seed=seed, size=shape, progress=show)
    else:
        columns = SIZES[size]["clc"].get("word", DIMENSIONS)
        pretrain_vectors(read_sentences(text, utterances), out, size=columns, epochs=epochs, seed=seed)
    echo(out)


def read_sentences(text: str | None, utterances: int) -> list[tuple[str, ...]]:
    """Return the tokens of each sentence in a ``.txt`` file or corpus (default: generated utterances)."""
    if text is None:
        from edp_lab.corpora.smart_home import generate

        return [u.tokens for u in generate(utterances, TEXT_SEED).utterances]
    if not text.endswith(".txt"):
        from edp_lab.corpora.catalog import load_corpus

        return [u.tokens for u in load_corpus(text).utterances]
    from edp_lab.corpora.readers import text_lines

    return [tuple(words) for line in text_lines(given_path(text)) if (words := line.split())]
