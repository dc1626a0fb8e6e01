"""``edp-lab explain``: why is my model bad, and what to try first."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edp_lab.cli.options import Json
from edp_lab.cli.output import answer, telling
from edp_lab.cli.train import one_thread_if_small

if TYPE_CHECKING:
    from edp_lab.training.explain import Cause, Explained

OUT = "runs/next"


def explain(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run: the --out of edp-lab train.")],
    beside: Annotated[Path | None, "A run of --method sgd on the same corpus: what can be had without privacy."] = None,
    look: Annotated[
        bool,
        "Also compute what only the training set tells (share of clipped gradients, bias of the clip): not private, "
        "and not to be published.",
    ] = False,
    as_json: Json = False,
) -> None:
    """Where a run's error comes from, the worst cause first, each with a number and one change to try.

    It spends no privacy: it reads the record, the configuration and the model, and makes up its own sentences.
    Training loss and validation scores in the record were never private.
    """
    from edp_lab.training import read_record
    from edp_lab.training.explain import explain as find

    one_thread_if_small(read_record(run)["config"]["size"])
    with telling("reading the run", lines=False):
        found = find(run, beside, look)
    told = report(found)
    answer(as_json, told, "explained", told)


def report(found: Explained) -> dict[str, Any]:
    """As JSON; each cause with the call that follows the advice, and the epsilon it would have."""
    from edp_lab.course.kit.text import command, train_command
    from edp_lab.training.explain import FELT_NOISE

    causes = [
        cause._asdict() | dict(zip(("commands", "epsilon"), advice(found, cause), strict=True))
        for cause in found.causes
    ]
    layers = [layer._asdict() for layer in found.layers]
    rest = {"config": asdict(found.config), "causes": causes, "layers": layers, "felt_noise": FELT_NOISE}
    plain = replace(
        found.config, method="sgd", micro_batch_size=None, sampling=None, noise="aggregate", unit=None, cap=None
    )
    own = train_command(plain, "runs/plain")
    by_default = command("train", _told(found, method="sgd", out="runs/plain"))
    rest["without_privacy"] = by_default if found.config.private_seed else own
    return found._asdict() | rest | {"looked": found.looked and found.looked._asdict()}


def advice(found: Explained, cause: Cause) -> tuple[list[str], float | None]:
    """What to type, and the epsilon of that.

    Who has a promise to keep is not told to drop it for less noise: that costs twice the epsilon, or more utterances.
    """
    from edp_lab.course.kit.text import command, train_command
    from edp_lab.privacy.guarantee import upward
    from edp_lab.training.explain import followed
    from edp_lab.training.recipe import MOST_EPSILON

    units = f"{found.config.unit or 'utterance'}s"
    twice = float(upward(2 * found.epsilon, 2)) if found.config.private_seed and found.epsilon else math.inf
    if cause.name == "too much noise" and twice <= MOST_EPSILON:
        first = f"annotate more ({2 * found.utterances:,} {units} to train on halve it at this epsilon), or"
        return [first, command("train", _told(found, epsilon=f"{twice:g}", out=OUT))], twice
    config, epsilon = followed(found, cause)
    if cause.utterances is None:
        return [train_command(config, OUT)], epsilon
    if not config.corpus.startswith("smart-home"):
        first = f"annotate more: {cause.utterances:,} {units} to train on instead of {found.utterances:,}, then"
        return [first, train_command(config, OUT)], epsilon
    pooled = -(-cause.utterances * 100 // 45)  # of which 45 % are to train on
    made = command(f"data make {config.corpus}", {"utterances": pooled, "out": "more.jsonl"})
    return [made, train_command(replace(config, corpus="more.jsonl"), OUT)], epsilon


def _told(found: Explained, **more: str) -> dict[str, Any]:
    """What the recipe, or a run without privacy, has to be told of a run; all else is theirs."""
    config, sgd = found.config, more.get("method") == "sgd"
    own = {} if config.model == "clc" else {"model": config.model, "pretrained": config.pretrained}
    return {"corpus": config.corpus, **own, **({} if sgd else {"unit": config.unit, "cap": config.cap}), **more}
