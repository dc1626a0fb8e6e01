"""``edp-lab train``, ``evaluate`` and ``predict``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

Run = Annotated[Path, typer.Option(help="Folder of a run: the --out of edp-lab train.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")]


def train(
    ctx: typer.Context,
    corpus: Annotated[
        str | None, typer.Option(help="A name from `edp-lab data list`, or a path to your own corpus.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="New folder for the run: record.json and the model.")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Instead of --corpus and --out: go on with the run in this folder, bit for bit."),
    ] = None,
    model: Annotated[str, typer.Option(help="clc (character CNN, bi-LSTM, CRF) or bert.")] = "clc",
    method: Annotated[
        str,
        typer.Option(
            help="sgd (no privacy), edp-sgd, dp-sgd (every utterance clipped alone) or dp-sgd-naive (the same in a "
            "loop, as slow as the paper timed it)."
        ),
    ] = "edp-sgd",
    clip: Annotated[float, typer.Option(help="Clip norm C of a device's gradient.")] = 1.0,
    z0: Annotated[
        float,
        typer.Option(
            help="Noise multiplier of the first epoch (t = 0). Sound: noise over sensitivity; as printed: std(y)/C "
            "of one device, 2 sqrt(N) times less noise at the same number."
        ),
    ] = 0.03,
    decay: Annotated[str, typer.Option(help="Of the noise by epoch: none, linear or exponential.")] = "none",
    tau: Annotated[float, typer.Option(help="Decay rate: linear 1/(1 + tau t), exponential e^(-tau t).")] = 0.1,
    gpus: Annotated[
        int, typer.Option(help="Devices N, fewer than --batch-size; those that are not there are simulated exactly.")
    ] = 8,
    processes: Annotated[
        int, typer.Option(help="Real processes that share the devices; more than one are started by Accelerate.")
    ] = 1,
    micro_batch_size: Annotated[
        int | None,
        typer.Option(help="Utterances that share a clip (default: batch size over devices; 1 for dp-sgd)."),
    ] = None,
    sampling: Annotated[
        str | None,
        typer.Option(help="shuffle (disjoint batches) or poisson (default: shuffle; poisson for dp-sgd)."),
    ] = None,
    optimizer: Annotated[
        str, typer.Option(help="adam, dp-adam or dp-adambc (which takes the noise out of Adam's second moment).")
    ] = "adam",
    precision: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    as_printed: Annotated[
        bool,
        typer.Option(
            "--as-printed",
            help="The step of Algorithm 1 verbatim, not the sound one; schedule and dropout stay ours.",
        ),
    ] = False,
    alpha: Annotated[
        str | None,
        typer.Option(help="Layer scales: none, public:CORPUS or private (default: none; private if --as-printed)."),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            help="Delta of (epsilon, delta): a slack, well below 1/n for n training utterances (default: n^-1.1)."
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Utterances per step, over all devices.")] = 64,
    lr: Annotated[
        float | None,
        typer.Option(help="Adam's learning rate (default: 0.002 for clc, 0.0005 for bert, larger if small)."),
    ] = None,
    lr_schedule: Annotated[str, typer.Option(help="linear (falls to 0 over the run) or constant.")] = "linear",
    epochs: Annotated[int, typer.Option(help="Passes over the training set.")] = 12,
    seed: Annotated[int, typer.Option(help="Split, initial weights, order, noise.")] = 0,
    private_seed: Annotated[
        bool,
        typer.Option(
            "--private-seed", help="Draw order, dropout and noise from a secret key, so that epsilon really holds."
        ),
    ] = False,
    size: Annotated[
        str, typer.Option(help="paper (its layers and widths), medium (a third as wide) or small (a quick look).")
    ] = "paper",
    dropout: Annotated[float, typer.Option(help="Share of each representation dropped.")] = 0.3,
    intent_weight: Annotated[
        float, typer.Option(help="Of the intent in the loss, where slots, if any, count 1.")
    ] = 1.0,
    pretrained: Annotated[
        str | None,
        typer.Option(
            help="FastText .vec/.bin, a folder of edp-lab pretrain (the CLC keeps a BERT frozen), or a BERT hub name."
        ),
    ] = None,
    noise: Annotated[
        str,
        typer.Option(
            help="aggregate: one draw for all devices; per-device: N draws, as real ranks do; shared: one secret draw "
            "that every device adds."
        ),
    ] = "aggregate",
    keep_duplicates_together: Annotated[
        bool, typer.Option(help="Keep verbatim duplicates on one side of the split.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Train an intent-and-slot model and write its run record.

    The record states the epsilon that holds beside the one that the paper's accounting claims.

    Ctrl-C ends the run after the step in hand, with a usable model and record; --resume goes on with it.
    """
    from edp_lab.cli.progress import listening, on_interrupt
    from edp_lab.errors import UsageError
    from edp_lab.training import TrainConfig, read_record
    from edp_lab.training import resume as take_up
    from edp_lab.training import train as run
    from edp_lab.training.run_session import rank

    given = [name for name in ctx.params if _given(ctx, name) and name not in ("resume", "as_json")]
    if resume is not None:
        if given:
            raise UsageError(f"--{given[0].replace('_', '-')} is read from the run's record: drop it, or drop --resume")
        _set_threads(read_record(resume)["config"]["size"])
        if read_record(resume)["status"] == "finished" and rank() == 0:
            print("this run has finished: nothing is left to do", file=sys.stderr)
        with on_interrupt() as stop, listening(quiet=rank() > 0) as listener:
            record = take_up(resume, listener, stop)
        _finish(record, resume, as_json)
        return
    if corpus is None or out is None:
        raise UsageError("a run needs --corpus and --out (or --resume DIR to go on with one): give both")
    _set_threads(size)
    config = TrainConfig(
        corpus=corpus,
        model=model,
        method=method,
        clip_norm=clip,
        z0=z0,
        decay=decay,
        tau=tau,
        num_devices=gpus,
        processes=processes,
        micro_batch_size=micro_batch_size,
        sampling=sampling,
        optimizer=optimizer,
        precision=precision,
        as_printed=as_printed,
        alpha=alpha,
        delta=delta,
        batch_size=batch_size,
        lr=lr,
        lr_schedule=lr_schedule,
        epochs=epochs,
        seed=seed,
        private_seed=private_seed,
        size=size,
        dropout=dropout,
        intent_weight=intent_weight,
        pretrained=pretrained,
        noise=noise,
        keep_duplicates_together=keep_duplicates_together,
    )
    with on_interrupt() as stop, listening(quiet=rank() > 0) as listener:
        record = run(config, out, listener, stop)
    _finish(record, out, as_json)


def _given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _set_threads(size: str) -> None:
    if size == "small":
        import torch

        torch.set_num_threads(1)  # small products gain nothing from a second thread, and lose much on a busy machine


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
        print(json.dumps(record, indent=2))
    else:
        _summary(record, out)
    if record["status"] == "interrupted":
        print(f"interrupted: go on with edp-lab train --resume {out}", file=sys.stderr)
        if record["config"]["private_seed"]:
            print("until then secret.key stays there: delete it before you share the folder", file=sys.stderr)
        raise typer.Exit(130)


def evaluate(run: Run, as_json: Json = False) -> None:
    """Score a run's model again on the test split it was never trained on."""
    from edp_lab.training import evaluate_run

    scores = evaluate_run(run)
    if as_json:
        print(json.dumps(scores, indent=2))
    else:
        print("\n".join(f"{name:<16} {_number(value)}" for name, value in scores.items()))


def predict(
    run: Run,
    text: Annotated[
        list[str], typer.Argument(help="Sentences, spelled as in the corpus: mostly lower case, no punctuation.")
    ],
    as_json: Json = False,
) -> None:
    """Intent and slots of a sentence, with the model's probabilities."""
    from edp_lab.training import predict_texts

    answers = predict_texts(run, text)
    if as_json:
        print(json.dumps(answers, indent=2, ensure_ascii=False))
        return
    for answer in answers:
        print(f"{answer['text']}\n  intent  {answer['intent']}  ({answer['intent_probability']:.2f})")
        for slot in answer["slots"]:
            print(f"  slot    {slot['slot']} = {slot['value']}  ({slot['probability']:.2f})")
        if not answer["slots"]:
            print("  no slots")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


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
    print(
        f"\nsplit: {splits['train']} utterances to train, {splits['validation']} to validate, {splits['test']} to test"
    )
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
        print(
            f"noise in the last epoch: z = {_number(final['z_t'])} as set, {_number(final['noise_multiplier'])} over "
            f"the sensitivity of what is released; {record['devices']}"
        )
    print(f"not private: {', '.join(record['not_private'])}\nrun: {out}")
