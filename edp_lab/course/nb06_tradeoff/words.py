"""What ``06_train_and_trade_off.ipynb`` says in words: read-outs beside sliders and tables (HTML), commands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from html import escape

from edp_lab.course.kit.text import at_most, digits, html_table, train_command
from edp_lab.course.nb06_tradeoff.compute import Explored, Ladder, Tuning
from edp_lab.course.nb06_tradeoff.grid import METHODS, Grid, Point, method_of
from edp_lab.privacy import Adjacency
from edp_lab.training import TrainConfig

NEIGHBOURS = {Adjacency.ZERO_OUT: "one utterance zeroed out", Adjacency.REPLACE_ONE: "one utterance replaced"}


# ---- Runs ----------------------------------------------------------------------------------------------------------


def told(point: Point) -> str:
    """The setting of a run, in short."""
    config = point.config
    epochs = _count(config.epochs, "epoch")
    if point.method == "sgd":
        return f"SGD, {epochs}"
    size = f", m = {point.micro_batch}" if point.method == "sound" else ""
    decay = "" if config.decay == "none" else f", {config.decay} decay τ = {config.tau:g}"
    return f"{METHODS[point.method]}{size}, z0 = {config.z0:g}{decay}, {epochs}"


def epsilon_in_words(point: Point) -> str:
    """What a run guarantees, with all that qualifies it one click away."""
    found = point.guarantee
    if point.epsilon is None:
        return f"<b>No guarantee</b>: {escape(found.reason)}."
    sampling = "Poisson sampling" if point.config.poisson else "disjoint batches"
    unit = "one utterance added or removed" if point.config.poisson else NEIGHBOURS[Adjacency.ZERO_OUT]
    qualified = f"{found.method}; {unit}; {sampling}; δ = {digits(found.delta)}"
    value = f"<b>ε = {at_most(point.epsilon)}</b>"
    if point.method == "printed":
        claim = (
            "" if found.epsilon_claimed is None else f" The paper's accounting says {digits(found.epsilon_claimed)}."
        )
        text = (
            f"<b>No guarantee</b>: α comes from private gradients. Were α public and the seed secret, {value} would "
            f"hold ({qualified}).{claim}"
        )
    else:
        text = f"With a secret seed {value} would hold ({qualified}); here it is void, for the seed is published."
    return f"{text}<details><summary>what this ε covers</summary>{escape(found.scope)}</details>"


def explored_in_words(result: Explored) -> str:
    """The read-out beside the sliders, as HTML."""
    point = result.point
    pairs = "; ".join(f"{name} = {_value(asked)}: measured {_value(had)}" for name, (asked, had) in _named(result))
    nearest = f"Nearest measured run ({pairs})" if pairs else "Measured run, just as the sliders say"
    spread = ", ".join(f"{ser:.3f}" for ser in result.seeds)
    seeds = f" With seeds 0, 1, 2 its SER is {spread}." if len(result.seeds) > 1 else ""
    return _paragraphs(
        f"{nearest}: <b>{told(point)}</b>.",
        f"<b>SER {point.ser:.3f}</b> on the test set, {point.intent_accuracy:.0%} of the intents right, slot F1 "
        f"{point.slot_f1:.2f}; about {point.seconds:.0f} s of training on one thread.{seeds}",
        epsilon_in_words(point),
        _cheaper(result),
    )


def _named(result: Explored) -> list[tuple[str, tuple[object, object]]]:
    return list(result.differs.items())


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cheaper(result: Explored) -> str:
    cheaper, point = result.cheaper, result.point
    if cheaper is None or cheaper.epsilon is None or point.epsilon is None:
        return (
            "Without noise nothing is promised, and nothing is lost: the dashed line is what noise is measured against."
        )
    if cheaper == point:
        return "No other measured run with at most this SER has a smaller ε."
    return (
        f"Of all measured runs with at most this SER, {told(cheaper)} has the smallest ε: {at_most(cheaper.epsilon)}, "
        f"{digits(point.epsilon / cheaper.epsilon)} times less (SER {cheaper.ser:.3f}). Finding it among "
        "many by its test score is tuning, and not free."
    )


def live_in_words(point: Point, number: int, stopped: bool) -> str:
    """The read-out of a run that was made here, as HTML."""
    begun = f"Run {number}, stopped early" if stopped else f"Run {number}"
    config = point.config
    where = f"{config.corpus}, N = {config.num_devices}, C = {config.clip_norm:g}, seed {config.seed}"
    return _paragraphs(
        f"{begun}: <b>{told(point)}</b> ({where}). <b>SER {point.ser:.3f}</b> on the test set, {point.seconds:.1f} s "
        "of training by the clock.",
        epsilon_in_words(point),
    )


def points_table(points: Sequence[Point]) -> str:
    """Runs side by side."""
    head = ["", "SER", "ε, α public, seed secret", "ε claimed", "seconds"]
    rows = [
        [told(p), f"{p.ser:.3f}", _or_none(p.epsilon), _or_none(p.guarantee.epsilon_claimed), f"{p.seconds:.1f}"]
        for p in points
    ]
    return _table([head, *rows])


def seeds_table(grid: Grid, points: Sequence[Point]) -> str:
    """SER of the same setting with other seeds, which also deal other splits."""
    rows = []
    for point in points:
        found = [p.ser for p in grid.seeds(point)]
        rows.append([told(point), ", ".join(f"{ser:.3f}" for ser in found), f"{max(found) - min(found):.3f}"])
    return _table([["", "SER with seed 0, 1, 2", "from best to worst"], *rows])


def pace_table(grid: Grid) -> str:
    """Seconds of an epoch, the fastest first."""
    seconds = {_work(p): p.seconds / p.config.epochs for p in grid.points}
    rows = [[name, f"{each:.2f}", f"{each / seconds[METHODS['sgd']]:.1f}"] for name, each in seconds.items()]
    rows.sort(key=lambda row: float(row[1]))
    return _table([["", "seconds for an epoch", "times SGD"], *rows])


def _work(point: Point) -> str:
    name = METHODS[point.method]
    return f"{name}, m = {point.micro_batch}" if point.method in ("sound", "printed") else name


def _or_none(epsilon: float | None) -> str:
    return "none" if epsilon is None else at_most(epsilon)


# ---- The ladder ----------------------------------------------------------------------------------------------------


def ladder_in_words(result: Ladder) -> str:
    """The read-out beside the sliders, as HTML."""
    chosen, config = result.chosen, result.config
    single, largest = result.rungs[0], result.rungs[-1]
    about = f"Gaussian DP; {NEIGHBOURS[result.adjacency]}; disjoint batches; δ = {digits(result.delta)}"
    head = ["m", "moves the sum by", "noise on the mean", "ε at this z", "ε at this noise"]
    rows = [
        [str(r.micro_batch), digits(r.sensitivity), digits(r.noise), _or_none(r.epsilon), _or_none(r.equal_epsilon)]
        for r in result.rungs
    ]
    printed = (
        f"its own accounting says {_or_none(result.printed_claim)}, what holds is {_or_none(result.printed_epsilon)}"
    )
    return _paragraphs(
        f"A batch of {config.batch_size} in {_count(chosen.micro_batches, 'micro-batch')} of {chosen.micro_batch} at "
        f"most: one utterance moves the sum of clipped gradients by {digits(chosen.sensitivity)}, and the mean has "
        f"noise of <b>{digits(chosen.noise)}</b> per weight.",
        f"After {_count(config.epochs, 'epoch')} that is <b>ε = {_or_none(chosen.epsilon)}</b> ({about}; if the seed "
        f"is secret). With the same noise on the mean, m = 1 has ε = {_or_none(single.equal_epsilon)} and m = "
        f"{largest.micro_batch} has {_or_none(largest.equal_epsilon)}.",
        _table([head, *rows]),
        f"Algorithm 1 as printed, z0 = {config.z0:g}: noise {digits(result.printed_noise)}; {printed} (α taken to be "
        "public).",
    )


def ladder_command(result: Ladder) -> str:
    """The calls of `edp-lab account` for the chosen rung, and for m = 1 with as much noise on the mean."""
    rungs = {result.chosen.micro_batch: result.chosen, 1: result.rungs[0]}
    return "\n".join(_account(result, m, rung.equal_z) for m, rung in rungs.items())


def _account(result: Ladder, micro_batch: int, z: float) -> str:
    config = result.config
    options = {
        "clip": f"{config.clip_norm:g}",
        "z0": f"{z:.6g}",
        "gpus": config.num_devices,
        "micro-batch-size": micro_batch,
        "epochs": config.epochs,
        "delta": f"{result.delta:g}",
        "adjacency": result.adjacency.name.lower(),
    }
    return shlex.join(["edp-lab", "account", *(str(part) for o, v in options.items() for part in (f"--{o}", v))])


# ---- Tuning --------------------------------------------------------------------------------------------------------


def tuning_in_words(result: Tuning) -> str:
    """The read-out beside the sliders, as HTML."""
    trials, random = result.trials[result.chosen], result.random[result.chosen]
    published = result.published[result.chosen]
    about = f"one utterance zeroed out; disjoint batches; δ = {digits(result.delta)}; if the seeds are secret"
    secret = (
        "A single run needs no such thing."
        if random is None
        else f"If the number of trials is itself drawn at random (mean {trials}) and stays secret, and nothing but the "
        f"winner is ever looked at: <b>ε = {at_most(random)}</b> (Rényi DP, Papernot and Steinke 2022)."
    )
    return _paragraphs(
        f"One run of {_count(result.epochs, 'epoch')} with z0 = {result.z0:g}: ε = {at_most(result.free)} (Gaussian "
        f"DP; {about}). That is what is usually quoted for the best of {trials}.",
        f"Whoever looks at the scores of {_count(trials, 'run')} pays for all: <b>ε = {at_most(published)}</b> "
        f"(Gaussian DP, exact: μ grows with the root of their number).",
        secret,
    )


def tuning_command(result: Tuning) -> str:
    """The call that prints the price of one run, of all and of a secret number, and `edp-lab account` for one run."""
    z0, epochs, trials, delta = result.z0, result.epochs, result.trials[result.chosen], result.delta
    return (
        'python -c "from edp_lab.course.nb06_tradeoff.compute import tuning; '
        f"paid = tuning(z0={z0!r}, epochs={epochs}, trials={trials}, delta={delta!r}); "
        'print(paid.free, paid.published[paid.chosen], paid.random[paid.chosen])"\n'
        f"edp-lab account --z0 {z0:.6g} --gpus 1 --micro-batch-size 1 --epochs {epochs} --delta {delta:g}"
    )


# ---- Small parts ---------------------------------------------------------------------------------------------------


def command(config: TrainConfig) -> str:
    """The call of `edp-lab train` that makes this very run, into a folder that is named after the setting."""
    kind = method_of(config)
    parts = [kind, f"m{config.largest_micro_batch}"] if kind == "sound" else [kind]
    parts += [] if kind == "sgd" else [f"z{config.z0:g}"]
    parts += [] if config.decay == "none" or kind == "sgd" else [str(config.decay)]
    return train_command(config, f"runs/{'-'.join(parts)}-{config.epochs}epochs-seed{config.seed}")


def _count(number: int, what: str) -> str:
    ending = "" if number == 1 else "es" if what.endswith("batch") else "s"
    return f"{number:,} {what}{ending}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    """With room between the columns, which a panel's narrow place would close."""
    return html_table([[f"{cell}&emsp;" for cell in row] for row in rows])


def _paragraphs(*texts: str) -> str:
    return "".join(text if text.startswith("<table") else f"<p>{text}</p>" for text in texts)
