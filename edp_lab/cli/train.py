"""``edp-lab train``, ``evaluate``, ``predict`` and ``pretrain``."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from edp_lab.cli.options import Json, RunFolder, chosen, given, options_of
from edp_lab.cli.output import bar, number, print_json
from edp_lab.errors import UsageError
from edp_lab.training.config import SIZES, TrainConfig

if TYPE_CHECKING:
    from edp_lab.training.pretraining import Progress
    from edp_lab.training.trainer import Event

_number = partial(number, digits=4, absent="-")
TEXT_SEED = 14586  # of the default text to pretrain on; the embedded corpus has another


# ---- Training --------------------------------------------------------------------------------------------------------


@options_of(TrainConfig)
def train(
    ctx: typer.Context,
    corpus: Annotated[str | None, "A name from `edp-lab data list`, or a path to your own corpus."] = None,
    out: Annotated[Path | None, "New folder for the run: record.json and the model."] = None,
    resume: Annotated[
        Path | None, "Instead of --corpus and --out: go on with the run in this folder, bit for bit."
    ] = None,
    *,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Train an intent-and-slot model and write its run record.

    The record states the epsilon that holds beside the one that the paper's accounting claims.

    Ctrl-C ends the run after the step in hand, with a usable model and record; --resume goes on with it.
    """
    from edp_lab.training import read_record
    from edp_lab.training import resume as take_up
    from edp_lab.training import train as run
    from edp_lab.training.run_session import rank

    if resume is not None:
        superfluous = [name for name in ctx.params if name in given(ctx) - {"resume", "as_json"}]
        if superfluous:
            option = superfluous[0].replace("_", "-")
            raise UsageError(f"--{option} is read from the run's record: drop it, or drop --resume")
        record = read_record(resume)
        one_thread_if_small(record["config"]["size"])
        if record["status"] == "finished" and rank() == 0:
            print("this run has finished: nothing is left to do", file=sys.stderr)
        with on_interrupt() as stop, listening(quiet=rank() > 0) as listener:
            record = take_up(resume, listener, stop)
        return _finish(record, resume, as_json)
    if corpus is None or out is None:
        raise UsageError("a run needs --corpus and --out (or --resume DIR to go on with one): give both")
    one_thread_if_small(options["size"])
    config = chosen(ctx, TrainConfig)
    with on_interrupt() as stop, listening(quiet=rank() > 0) as listener:
        record = run(config, out, listener, stop)
    _finish(record, out, as_json)


def one_thread_if_small(size: str) -> None:
    if size == "small":
        import torch

        torch.set_num_threads(1)  # small products gain nothing from a second thread, and lose much on a busy machine


def epoch_line(event: Event) -> str:
    """``epoch  3/12  loss 4.21  SER 0.112  intent 0.951  slot F1 0.902  epsilon 1.2e+04  9.1 s``."""
    row = event.row  # type: ignore[union-attr]
    parts = [f"epoch {event.epoch + 1:>3}/{event.epochs}", f"loss {row['loss']:.3f}", f"SER {row['ser']:.4f}"]
    parts.append(f"intent {row['intent_accuracy']:.3f}")
    if row["slot_f1"] is not None:
        parts.append(f"slot F1 {row['slot_f1']:.3f}")
    if row["z_t"] is not None:
        parts.append(f"z {row['z_t']:.3g}")
        secret = "" if event.status == "holds" else " if the seed were secret"  # type: ignore[union-attr]
        parts.append("no guarantee" if row["epsilon"] is None else f"epsilon {row['epsilon']:.3g}{secret}")
    return "  ".join([*parts, f"{row['seconds']:.1f} s"])


@contextmanager
def on_interrupt() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C (or SIGTERM) sets; the second Ctrl-C is a KeyboardInterrupt as always.

    A launcher's SIGTERM ends a rank at once: one that waits for another would not come to run a handler.
    """
    stop, rank = threading.Event(), os.environ.get("RANK")

    def ask(signal_number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        if rank in (None, "0"):
            sys.stderr.write("ending after this step; Ctrl-C again to end at once\n")

    handled = (signal.SIGINT, signal.SIGTERM) if rank is None else (signal.SIGINT,)
    earlier = {one: signal.signal(one, ask) for one in handled}
    try:
        yield stop
    finally:
        for one, handler in earlier.items():
            signal.signal(one, handler)


@contextmanager
def listening(quiet: bool = False) -> Iterator[Callable[[Event], None]]:
    """A listener for `edp_lab.training.train` that shows a bar on a terminal and prints a line per epoch.

    `quiet`: nothing, because another rank speaks.
    """
    from edp_lab.training.trainer import StepDone

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[loss]}"), TimeRemainingColumn())
    with bar("training", *columns, quiet=quiet, loss="") as (update, say):

        def listen(event: Event) -> None:
            if isinstance(event, StepDone):
                update(
                    description=f"epoch {event.epoch + 1}/{event.epochs}",
                    total=event.epochs * event.steps,
                    completed=event.epoch * event.steps + event.step,
                    loss=f"loss {event.loss:.3f}",
                )
            else:
                say(epoch_line(event))

        yield listen


def _finish(record: dict[str, Any], out: Path, as_json: bool) -> None:
    """Rank 0 speaks for all."""
    from edp_lab.training.processes import end_rank
    from edp_lab.training.run_session import rank

    if rank() == 0:
        _report(record, out, as_json)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # a launcher such as torchrun has started this process
        end_rank(0)


def _report(record: dict[str, Any], out: Path, as_json: bool) -> None:
    if as_json:
        print_json(record)
    else:
        _summary(record, out)
    if record["status"] == "interrupted":
        print(f"interrupted: go on with edp-lab train --resume {out}", file=sys.stderr)
        if record["config"]["private_seed"]:
            print("until then secret.key stays there: delete it before you share the folder", file=sys.stderr)
        raise typer.Exit(130)


def _holds(final: dict[str, Any], status: str) -> str:
    if status == "holds":
        return f"epsilon {_number(final['epsilon'])} holds"
    if final["epsilon"] is not None:
        return f"with a secret seed, epsilon {_number(final['epsilon'])} would hold"
    if final["epsilon_if_alpha_public"] is not None:
        return f"had alpha and words come from public text, {_number(final['epsilon_if_alpha_public'])}"
    return "no epsilon holds"


def _summary(record: dict[str, Any], out: Path) -> None:
    final, guarantee = record["final"], record["guarantee"]
    splits = record["corpus"]["splits"]
    slots = "no slot annotation: intent head only" if final["slot_f1"] is None else f"slot F1 {final['slot_f1']:.4f}"
    print("\nsplit: {train} utterances to train, {validation} to validate, {test} to test".format(**splits))
    if splits["validation"] < 30:
        print("note: so few validation utterances say little about how good the model is")
    if record["config"]["batch_size"] > splits["train"]:
        print(f"note: a batch of {record['config']['batch_size']} takes all of them, so an epoch is a single step")
    print(f"test: SER {final['ser']:.4f}, intent accuracy {final['intent_accuracy']:.4f}, {slots}")
    for warning in record["corpus"]["warnings"]:
        print(f"note: {warning}")
    if record["config"]["method"] == "sgd":
        print("privacy: none (plain training)")
    else:
        claimed = f"at delta {guarantee['delta']:.2g} the paper's accounting " + (
            "has no epsilon for this sampling"
            if final["epsilon_claimed"] is None
            else f"says epsilon {_number(final['epsilon_claimed'])}"
        )
        holds = _holds(final, guarantee["status"])
        print(f"privacy: {claimed}; {holds}\n  guarantee: {guarantee['status']} ({guarantee['reason']})")
    if final["noise_multiplier"] is not None:
        over = f"{_number(final['noise_multiplier'])} over the sensitivity of what is released"
        print(f"noise in the last epoch: z = {_number(final['z_t'])} as set, {over}; {record['devices']}")
    print(f"not private: {', '.join(record['not_private'])}\nrun: {out}")


# ---- Using a run -----------------------------------------------------------------------------------------------------


def evaluate(run: RunFolder, as_json: Json = False) -> None:
    """Score a run's model again on the test split it was never trained on."""
    from edp_lab.training import evaluate_run

    scores = evaluate_run(run)
    if as_json:
        print_json(scores)
    else:
        print("\n".join(f"{name:<16} {_number(value)}" for name, value in scores.items()))


def predict(
    run: RunFolder,
    text: Annotated[
        list[str], typer.Argument(help="Sentences, spelled as in the corpus: mostly lower case, no punctuation.")
    ],
    as_json: Json = False,
) -> None:
    """Intent and slots of a sentence, with the model's probabilities."""
    from edp_lab.training import predict_texts

    answers = predict_texts(run, text)
    if as_json:
        print_json(answers, ensure_ascii=False)
        return
    for answer in answers:
        print(f"{answer['text']}\n  intent  {answer['intent']}  ({answer['intent_probability']:.2f})")
        for slot in answer["slots"]:
            print(f"  slot    {slot['slot']} = {slot['value']}  ({slot['probability']:.2f})")
        if not answer["slots"]:
            print("  no slots")


# ---- Pretraining -----------------------------------------------------------------------------------------------------


def pretrain(
    out: Annotated[Path, "New folder, to be given to edp-lab train --pretrained."],
    model: Annotated[str, "clc (fastText word vectors) or bert (masked language model)."] = "bert",
    text: Annotated[
        str | None,
        "A corpus (name or path) or a .txt file with one sentence a line; never the text that a "
        "private run is to protect. (default: smart-home utterances generated for this purpose)",
    ] = None,
    utterances: Annotated[int, typer.Option(min=1, help="How many to generate without --text.")] = 20_000,
    published: Annotated[
        str | None,
        "Instead of training: the first --layers layers of this BERT, a hub name or folder, such as "
        "sentence-transformers/all-MiniLM-L6-v2.",
    ] = None,
    layers: Annotated[int, typer.Option(min=1, help="Of --published.")] = 4,
    epochs: Annotated[int, "Passes over the text."] = 10,
    size: Annotated[
        str, "paper (BERT 4 layers, 312 wide; vectors 100) or small (2 layers, 64 wide; vectors 50)."
    ] = "paper",
    seed: Annotated[int, "Initial weights, order, masks."] = 0,
) -> None:
    """Pretrain on separate text, where published word vectors or BERT weights cannot be had.

    BERT learns to guess masked word pieces (Devlin et al. 2019). At the paper's size, 20,000 short utterances
    take about a minute per epoch on two cores; word vectors take seconds. Nothing here is private. Where the hub can
    be reached, --published brings a published encoder down to the paper's four layers.
    """
    from edp_lab.models.bert import BertSize
    from edp_lab.models.vectors import DIMENSIONS
    from edp_lab.training.pretraining import pretrain_bert, pretrain_vectors, shorten_bert

    if model not in ("clc", "bert"):
        raise UsageError(f"unknown model {model!r}: choose clc or bert")
    if published is not None:
        if model != "bert":
            raise UsageError("--published takes a BERT: drop --model clc (published word vectors need no change)")
        shorten_bert(published, layers, out)
        print(out)
        return
    if size not in SIZES:
        raise UsageError(f"unknown size {size!r}: choose one of {', '.join(SIZES)}")
    sentences = read_sentences(text, utterances)
    if model == "bert":
        shape = BertSize(**SIZES[size]["bert"])
        pretrain_bert(sentences, out, epochs=epochs, seed=seed, size=shape, progress=_epoch_lines())
    else:
        columns = SIZES[size]["clc"].get("word", DIMENSIONS)
        pretrain_vectors(sentences, out, size=columns, epochs=epochs, seed=seed)
    print(out)


def read_sentences(text: str | None, utterances: int) -> list[tuple[str, ...]]:
    """The tokens of each sentence of a ``.txt`` file or a corpus; without `text`, of generated utterances.

    Raises:
        UsageError: the file cannot be read or is not UTF-8, or the corpus cannot be loaded.
    """
    if text is None:
        from edp_lab.corpora.smart_home import generate

        return [u.tokens for u in generate(utterances, TEXT_SEED).utterances]
    if not text.endswith(".txt"):
        from edp_lab.corpora import load_corpus

        return [u.tokens for u in load_corpus(text).utterances]
    try:
        lines = Path(text).expanduser().read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"{text} cannot be read ({error.strerror}): give a .txt file or a corpus") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{text} is not UTF-8 text (byte {error.start}): convert it") from error
    return [tuple(words) for line in lines if (words := line.split())]


def _epoch_lines() -> Callable[[Progress], None]:
    """One line per epoch on standard error."""
    before = time.monotonic()

    def show(p: Progress) -> None:
        nonlocal before
        now = time.monotonic()
        print(f"epoch {p.epoch:>3}/{p.epochs}  loss {p.loss:.3f}  {now - before:.1f} s", file=sys.stderr, flush=True)
        before = now

    return show
