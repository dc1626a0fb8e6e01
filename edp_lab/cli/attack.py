"""``edp-lab attack``: who was in the training set, what a model remembers, and what its answers give away."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from edp_lab.cli.options import (
    App,
    Clip,
    Corpus,
    Epochs,
    Gpus,
    Json,
    RunFolder,
    Size,
    check_file,
    chosen,
    commas,
    numbers,
    options_of,
    write_text,
)
from edp_lab.cli.output import print_json, table, telling
from edp_lab.cli.train import listening, one_thread_if_small
from edp_lab.errors import UsageError
from edp_lab.training.config import TrainConfig

if TYPE_CHECKING:
    from edp_lab.attacks.extraction import ExtractionRow, InversionRow
    from edp_lab.attacks.membership.attacks import Attacked
    from edp_lab.attacks.memorisation import Memorisation
    from edp_lab.training.trainer import Event

attack_app = App(
    no_args_is_help=True,
    help="Attack a trained model: who was in its training set, what it remembers, how it is stolen.",
)
PACKED: dict[str, Any] = {"padding": (0, 0, 0, 1)}  # of tables with many columns

# ---- What a model remembers ------------------------------------------------------------------------------------------

SETTINGS = ("corpus", "model", "size", "epochs", "batch_size", "seed", "clip_norm", "z0", "num_devices")


@attack_app.command()
def canaries(
    ctx: typer.Context,
    corpus: Corpus = "smart-home",
    methods: Annotated[
        str, "Of sgd, edp-sgd-as-printed, edp-sgd and dp-sgd, with commas between."
    ] = "sgd,edp-sgd-as-printed,edp-sgd,dp-sgd",
    repetitions: Annotated[str, "How often a canary is inserted, with commas between; 0 is the control."] = "0,1,4,16",
    each: Annotated[int, typer.Option("--canaries", help="Canaries for each repetition count.")] = 8,
    references: Annotated[
        int, "Other numbers among which a canary is ranked; log2 of one more caps the exposure."
    ] = 9_999,
    epochs: Epochs = 6,
    size: Size = "small",
    z0: Annotated[float, "Noise multiplier, with the meaning that each method gives it."] = 0.03,
    clip: Clip = 1.0,
    gpus: Gpus = 8,
    seed: Annotated[int, "Split, canaries, initial weights, order, noise."] = 0,
    as_json: Json = False,
) -> None:
    """Hide utterances with a personal number in the training set, and ask each trained model for the number.

    Exposure in bits says how far down the true number's loss ranks among other numbers. A canary that was inserted k
    times is protected by the epsilon of k utterances together.
    """
    from edp_lab.attacks.memorisation import measure_memorisation

    counts = numbers("--repetitions", repetitions, "0,1,4,16")
    config = chosen(ctx, TrainConfig)
    one_thread_if_small(size)
    with _training() as progress:
        rows = measure_memorisation(config, commas(methods), counts, each, references, progress)
    if as_json:
        settings = {name: getattr(config, name) for name in SETTINGS}
        found = {"settings": settings, "fillings": references + 1, "rows": [asdict(row) for row in rows]}
        print_json(found, allow_nan=False)
    else:
        _show_canaries(config, rows, references + 1)


@contextmanager
def _training() -> Iterator[Callable[[str, Event], None]]:
    """A bar on a terminal and a line per epoch, under the name of each method."""
    now = ""
    with listening() as listen:

        def progress(method: str, event: Event) -> None:
            nonlocal now
            if method != now:
                sys.stderr.write(f"{method}\n")
                now = method
            listen(event)

        yield progress


def _show_canaries(config: TrainConfig, rows: list[Memorisation], fillings: int) -> None:
    lines = [["method", "copies", "exposure", "95 %", "extracted", "95 %", "epsilon"]]
    for row in rows:
        (low, high), (few, many) = row.interval, row.extracted_interval
        lines.append(
            [
                row.method,
                str(row.repetitions),
                f"{row.exposure:.2f}",
                f"{low:.1f}-{high:.1f}",
                f"{row.extracted}/{len(row.exposures)}",
                f"{few:.2f}-{many:.2f}",
                "-" if not row.repetitions else "none" if row.epsilon is None else f"{row.epsilon:.3g}",
            ]
        )
    Console(highlight=False, markup=False).print(table(lines, groups=1, **PACKED))
    print(
        f"\n{config.corpus}, {config.size} {config.model}, {config.epochs} epochs, z0 {config.z0:g}, seed {config.seed}"
    )
    print("\n".join(_notes(rows, fillings)))


def _notes(rows: list[Memorisation], fillings: int) -> list[str]:
    expected = "about 1.44 without memorisation"
    sers = {row.method: row.test_ser for row in rows}
    lines = [
        f"exposure: mean in bits, {expected}; {rows[0].cap:.2f} at most, for rank 1 of {fillings:,}",
        "extracted: canaries with rank 1; copies 0: the control, never inserted",
        f"test SER: {', '.join(f'{method} {ser:.3f}' for method, ser in sers.items())}",
    ]
    deltas = [row.delta for row in rows if row.epsilon is not None]
    if deltas:
        lines.append(f"epsilon: of all copies together, at delta {deltas[0]:.2g}, had the seed been secret")
    for row in {row.method: row for row in rows if row.repetitions and row.epsilon is None}.values():
        claimed = (
            "" if row.epsilon_claimed is None else f"; the paper's accounting says epsilon {row.epsilon_claimed:.3g}"
        )
        lines.append(f"no guarantee for {row.method}: {row.reason}{claimed}")
    for row in rows:
        if row.extraction_limit is not None and row.extraction_limit < 0.995:
            share = f"at most {100 * row.extraction_limit:.2g} % of canaries are extracted on average"
            copies = "1 copy" if row.repetitions == 1 else f"{row.repetitions} copies"
            lines.append(f"{row.method}, {copies}: by the guarantee {share}")
    return lines


# ---- What its answers give away --------------------------------------------------------------------------------------

WIDTH = 100
OF_BOTH = (
    "By guessing: the same attack without an answer of the victim. Epsilon: of one private training example, had the "
    "seed been secret; none: no guarantee. Strangers: a model that learnt other people's images."
)
NOTES = {
    "extraction": "Agreement: share of test images on which copy and victim give the same class. Own labels: that of a "
    f"copy by someone who labels the same images himself. Right: of the copy's answers. {OF_BOTH}",
    "inversion": "Like class, like others: mean correlation with the private images' average of the class, and of the "
    f"others. Judged: share that another model, which saw no private image, takes for the class. {OF_BOTH}",
}


@dataclass(frozen=True)
class Victims:
    """What both attacks are told of the models that they attack."""

    labels_only: Annotated[bool, "The API tells the class, and no probabilities."] = False
    victims: Annotated[str, "Some of plain, instructor, understudy, dp-adam and strangers, with commas between."] = (
        "plain,instructor,understudy,dp-adam,strangers"
    )
    instructors: Annotated[int, "On disjoint parts of the private images; they teach the understudy."] = 10
    sigma: Annotated[float, "Noise on the pixels of instructors and understudy; the thesis has 0.6."] = 0.0
    vote_epsilon: Annotated[float, "Of one label of the understudy; the thesis has 0.2."] = 1.0
    train_epsilon: Annotated[float, "Of the network trained with DP-Adam."] = 7.0
    epochs: Annotated[int | None, "Of every victim. (default: as its examples need)"] = None
    seed: Annotated[int, "Published, so that the attack can be repeated."] = 0


Data = Annotated[str, "digits (embedded) or mnist (takes many minutes)."]


@attack_app.command()
@options_of(Victims)
def extraction(
    ctx: typer.Context,
    data: Data = "digits",
    queries: Annotated[str, "Numbers of images to query with, with commas between."] = "25,100,400",
    inputs: Annotated[str, "public images of other people, or noise of someone with none."] = "public",
    *,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Copy a model by its answers (Tramer et al. 2016), by number of queries."""
    _attack_answers(ctx, _extraction_lines)


@attack_app.command()
@options_of(Victims)
def inversion(
    ctx: typer.Context,
    data: Data = "digits",
    queries: Annotated[str, "Of each image, with commas between."] = "25,100,400,1000",
    *,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Draw what a model takes for each class (Fredrikson et al. 2015), by number of queries and by the white box."""
    _attack_answers(ctx, _inversion_lines)


def _attack_answers(ctx: typer.Context, lines: Callable[[Any], list[list[str]]]) -> None:
    """Once all that can be wrong has been checked: train the victims, attack them, print. Inversion has no inputs."""
    from edp_lab.attacks.extraction import check_inputs, check_queries, extract, invert, share_out, train_victims
    from edp_lab.corpora.images import load_images
    from edp_lab.reproduce.thesis.claims_networks import said
    from edp_lab.three_phase.phases import ThreePhaseSettings

    data, queries, inputs, asked = (
        ctx.params["data"],
        ctx.params["queries"],
        ctx.params.get("inputs"),
        chosen(ctx, Victims),
    )
    counts = check_queries([*numbers("--queries", str(queries), "25,100")], 2 if inputs is None else 1)
    settings = chosen(ctx, ThreePhaseSettings, phases=(1, 2, 3) if asked.sigma else (2, 3))
    shares = share_out(load_images(str(data), asked.seed))
    if inputs is not None:
        check_inputs(inputs, counts, shares)
    with telling() as told:
        victims = train_victims(shares, commas(asked.victims), settings, told)
        if inputs is None:
            rows: Any = invert(victims, shares, counts, asked.labels_only, asked.seed, told)
        else:
            rows = extract(victims, shares, counts, asked.labels_only, inputs, asked.seed, told)
    attack = str(ctx.info_name)
    conclusion = said(attack, rows)
    if ctx.params["as_json"]:
        every = {"data": data, "queries": queries, **asdict(asked), "inputs": inputs}
        settings_given = {name: value for name, value in every.items() if value is not None}
        print_json(
            {"attack": attack, "settings": settings_given, "rows": [asdict(row) for row in rows], "said": conclusion},
            allow_nan=False,
        )
    else:
        Console(highlight=False, markup=False, width=WIDTH).print(table(lines(rows), groups=3, **PACKED))
        print("\n".join(["", *textwrap.wrap(NOTES[attack], WIDTH), "", *textwrap.wrap(conclusion, WIDTH)]))


def _extraction_lines(rows: Sequence[ExtractionRow]) -> list[list[str]]:
    heading = [
        "victim",
        "epsilon",
        "accuracy",
        "queries",
        "agreement %",
        "(95 %)",
        "by guessing",
        "own labels",
        "right",
    ]
    return [heading] + [
        [
            *_victim(row),
            f"{row.queries:,}",
            f"{100 * row.agreement:.1f}",
            _range(row.agreement_interval),
            f"{100 * row.guess_agreement:.1f}",
            "-" if row.own_labels_agreement is None else f"{100 * row.own_labels_agreement:.1f}",
            f"{100 * row.accuracy:.1f}",
        ]
        for row in rows
    ]


def _inversion_lines(rows: Sequence[InversionRow]) -> list[list[str]]:
    heading = ["victim", "epsilon", "accuracy", "queries", "like class", "like others", "judged %", "(95 %)"]
    return [[*heading, "by guessing"]] + [
        [
            *_victim(row),
            "white box" if row.queries is None else f"{row.queries:,}",
            f"{row.correlation:.2f}",
            f"{row.others:.2f}",
            f"{100 * row.judged:.0f}",
            _range(row.judged_interval),
            f"{100 * row.guess_judged:.0f}",
        ]
        for row in rows
    ]


def _victim(row: ExtractionRow | InversionRow) -> list[str]:
    epsilon = "none" if row.epsilon is None else f"{row.epsilon:.3g}"
    return [row.victim, epsilon, f"{100 * row.victim_accuracy:.1f}"]


def _range(interval: tuple[float, float]) -> str:
    low, high = (100 * end for end in interval)
    return f"{low:.0f}-{high:.0f}"


# ---- Who was in the training set -------------------------------------------------------------------------------------

Fpr = Annotated[str, "False positive rates at which to give the true one, with commas between."]
Confidence = Annotated[float, typer.Option(help="Of the intervals.", min=0.5, max=0.9999)]
Cache = Annotated[
    Path | None, typer.Option(help="Where trained shadow models are kept. (default: the user's cache)", hidden=False)
]
Seed = Annotated[int, "Of the shadow models and the classifier."]
Against = Annotated[Path | None, "Also attack this run of the same corpus and seed, and show how the AUC changes."]
Out = Annotated[Path | None, "Also write the JSON to this file."]


@attack_app.command()
def loss(
    run: RunFolder,
    fpr: Fpr = "0.01,0.001",
    confidence: Confidence = 0.95,
    against: Against = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """The floor: call those members whose loss is low. No training."""
    from edp_lab.attacks.membership.attacks import attack_loss

    rates = _rates(fpr)
    _finish(lambda run, told: attack_loss(run, rates, confidence), run, against, out, as_json)


@attack_app.command()
def shadow(
    run: RunFolder,
    shadow: Annotated[
        list[str] | None,
        "Public corpus of a shadow model; may be repeated; 'generated' is a fresh smart-home corpus. "
        "(default: another corpus at hand)",
    ] = None,
    classifier: Annotated[str, "forest, boosting, logistic or mlp."] = "forest",
    fpr: Fpr = "0.01,0.001",
    confidence: Confidence = 0.95,
    seed: Seed = 0,
    cache: Cache = None,
    plain: Annotated[bool, "Train shadow models by SGD, not by the target's method."] = False,
    against: Against = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """The paper's attack: a shadow model on a public corpus teaches a classifier what members look like."""
    from edp_lab.attacks.membership.attacks import attack_shadow

    corpora, rates = tuple(shadow or ()), _rates(fpr)
    attack = partial(
        attack_shadow, shadows=corpora, classifier=classifier, fprs=rates, confidence=confidence, plain=plain
    )
    _finish(partial(attack, seed=seed, cache=cache), run, against, out, as_json)


@attack_app.command()
def lira(
    run: RunFolder,
    shadows: Annotated[int, "Shadow models, an even number; each is trained on half of the pool."] = 16,
    offline: Annotated[bool, "Use only the shadow models that were not trained on an utterance."] = False,
    size: Annotated[str | None, "Of the shadow models. (default: the target's)"] = None,
    epochs: Annotated[int | None, "Of the shadow models. (default: the target's)"] = None,
    fpr: Fpr = "0.01,0.001",
    confidence: Confidence = 0.95,
    seed: Seed = 0,
    cache: Cache = None,
    against: Against = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """The strong attack (Carlini et al. 2022): how likely is this confidence with, and without, the utterance?"""
    from edp_lab.attacks.membership.attacks import attack_lira

    models: dict[str, Any] = {
        "shadows": shadows,
        "online": not offline,
        "size": size,
        "epochs": epochs,
        "seed": seed,
        "cache": cache,
    }
    _finish(partial(attack_lira, fprs=_rates(fpr), confidence=confidence, **models), run, against, out, as_json)


def _rates(text: str) -> tuple[float, ...]:
    try:
        rates = tuple(float(number) for number in text.split(","))
    except ValueError:
        rates = ()
    if not rates or not all(0 < rate < 1 for rate in rates):
        raise UsageError(f"--fpr is {text!r}: give rates between 0 and 1 with commas between, such as 0.01,0.001")
    return rates


def _finish(attack: Callable[..., Attacked], run: Path, against: Path | None, out: Path | None, as_json: bool) -> None:
    from edp_lab.attacks.membership.attacks import change, same_pool

    check_file(out)
    if against is not None:
        same_pool(against, run)
    with telling() as told:
        before = None if against is None else attack(against, told=told)
        attacked = attack(run, told=told)
    changed = None if before is None else change(before, attacked)
    result = json.dumps({**attacked.to_json(), "change": changed}, indent=2, allow_nan=False)
    print(result if as_json else "\n".join([*_lines(attacked), *_change_line(changed)]))
    if out is not None:
        write_text(out, f"{result}\n", "give another --out")


def _lines(attacked: Attacked) -> list[str]:
    result: dict[str, Any] = attacked.to_json()
    percent = f"{100 * result['confidence']:g} %"
    low, high = result["auc_interval"]
    lines = [
        f"{attacked.title}: {result['members']} members, {result['non_members']} non-members",
        f"  AUC            {result['auc']:.4f}  ({percent}: {low:.4f} to {high:.4f})   0.5 is guessing",
    ]
    for rate, found in result["tpr_at_fpr"].items():
        name = f"TPR at {100 * float(rate):g} %"
        if found["value"] is None:
            lines.append(f"  {name:<14} no number: {found['why']}")
        else:
            lines.append(f"  {name:<14} {_rate(found, percent)}   guessing there: {_rate(found['guessing'])}")
    lines += [f"  advantage      {result['advantage']:.4f}", f"guarantee: {attacked.bound_said}"]
    if (bound := result["bound"]) is not None:
        rates = ", ".join(f"{value:.4f} at {100 * float(fpr):g} %" for fpr, value in bound["tpr_at_fpr"].items())
        lines.append(f"  and the TPR by {rates} FPR, the advantage by {bound['advantage']:.4f}")
    return [*lines, f"guards: {result['guards']['said']}", f"verdict: {attacked.verdict}"]


def _rate(found: dict[str, Any], before: str = "") -> str:
    low, high = found["interval"]
    return f"{found['value']:.4f}  ({before + ': ' if before else ''}{low:.4f} to {high:.4f})"


def _change_line(changed: dict[str, Any] | None) -> list[str]:
    if changed is None:
        return []
    relative, low, high = (100 * number for number in (changed["relative"], *changed["interval"]))
    return [f"AUC against {changed['against']}: {relative:+.1f} % ({low:+.1f} to {high:+.1f} %)"]
