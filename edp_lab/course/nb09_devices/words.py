"""What ``09_many_gpus.ipynb`` says: read-outs beside sliders and tables (HTML), commands."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict

from edp_lab.course.kit.text import at_most, digits, privacy_in_words, train_command
from edp_lab.course.kit.text import short as two_digits
from edp_lab.course.nb09_devices.compute import (
    LITTLE,
    DeviceNoise,
    LittleRun,
    Scaling,
    Timed,
    difference,
    printed,
    ring_bytes,
    two_processes,
)
from edp_lab.course.nb10_phases.words import html_table
from edp_lab.privacy import Alpha, Guarantee, Mechanism, Variant
from edp_lab.reproduce.bench.train_step import Task
from edp_lab.training import TrainConfig

METHODS = {
    "sgd": "SGD",
    "edp-sgd": "eDP-SGD",
    "dp-sgd": "DP-SGD, by book-keeping",
    "dp-sgd-naive": "DP-SGD, utterance by utterance",
    "opacus": "DP-SGD, by Opacus",
}

COVERED = "one utterance, zero-out, disjoint batches"

# ---- Beside the sliders --------------------------------------------------------------------------------------------


def noise_in_words(result: DeviceNoise) -> str:
    """The read-out beside the sliders, as HTML."""
    m, n, here = result.mechanism, result.devices, result.here
    own, total = m.device_noise_std(0), m.noise_std(0)
    moves = m.sensitivity()
    what = "As printed" if m.variant is Variant.AS_PRINTED else "Sound"
    return _paragraphs(
        f"<b>{what}, {_count(n, 'device')}</b> (1 process, {n - 1} simulated). Each adds noise of deviation "
        f"{digits(own)} to its share of the sum; the sum carries √N times that, <b>{digits(total)}</b>, and the mean "
        f"{digits(total / n)} on every coordinate.",
        f"One utterance moves the sum by up to {digits(moves)}, so the noise multiplier is {digits(total)} / "
        f"{digits(moves)} = <b>{digits(total / moves)}</b>, where z0 says {digits(m.z0)}. "
        + ("They agree." if math.isclose(total / moves, m.z0) else "")
        + f" Drawn: deviation {digits(float(result.per_device.std()))} from {_count(n, 'draw')}, "
        f"{digits(float(result.aggregate.std()))} from one for all; had all devices drawn the same numbers, "
        f"{digits(float(result.same.std()))}.",
        _bill(result.guarantee, result.claimed[here], result.epochs),
        f"A gradient of {result.parameters:,} float32 numbers is {_megabytes(4 * result.parameters)}; in one ring "
        f"all-reduce each device sends {_megabytes(ring_bytes(result.parameters, n))}. The noise travels for free.",
    )


def _bill(guarantee: Guarantee, claimed: float, epochs: int) -> str:
    """Claimed and true epsilon, in a sentence each."""
    said = (
        f"After {_count(epochs, 'epoch')} at δ = {digits(guarantee.delta)} the paper's accounting says ε = "
        f"{digits(claimed)} (zCDP, z0 at face value). "
    )
    account = f"(Gaussian DP, exact; {COVERED})"
    if guarantee.epsilon is not None:
        return f"{said}What holds, with a secret seed: <b>ε = {at_most(guarantee.epsilon)}</b> {account}."
    if guarantee.epsilon_if_alpha_public is not None:
        public = at_most(guarantee.epsilon_if_alpha_public)
        return f"{said}What holds: <b>no guarantee</b>, as α is private; with a public α <b>ε = {public}</b> {account}."
    return f"What holds: <b>no guarantee</b>, because {guarantee.reason}."


def run_in_words(run: LittleRun, others: Sequence[LittleRun]) -> str:
    """The read-out of a run on real processes, beside earlier ones that differ in the number of processes only."""
    record, done = run.record, len(run.record["epochs"])
    stopped = "Stopped early. " if record["status"] == "interrupted" else ""
    what = (
        f"{stopped}<b>{record['devices']}</b>: {_count(len(run.losses), 'step')} in "
        f"{digits(record['final']['seconds'])} s, {digits(run.seconds)} s with starting, scoring and saving; SER "
        f"{record['final']['ser']:.2f} on the test set."
    )
    same = [
        f"Beside the run on “{other.record['devices']}”, the largest difference among all {run.parameters.size:,} "
        f"parameters is <b>{difference(run, other):.1e}</b>"
        + (": the same model, up to the order of sums." if difference(run, other) < 1e-6 else ".")
        for other in others
    ]
    final = {name: record["final"][name] for name in ("epsilon", "epsilon_claimed", "epsilon_if_alpha_public")}
    privacy = privacy_in_words(Guarantee(**record["guarantee"], **final), done + bool(stopped))
    return _paragraphs(what, *same, privacy, f"(Each ε: {COVERED}.)" if "ε =" in privacy else "")


def measured_in_words(rows: Sequence[Timed]) -> str:
    """The read-out of steps timed a moment ago."""
    told = [
        f"{_who(row)}: {digits(1000 * row.seconds)} ms a step, <b>{row.ratio:.2f} × SGD</b> (quartiles "
        f"{row.spread[0]:.2f} to {row.spread[1]:.2f})"
        for row in rows
    ]
    return _paragraphs("Measured here, a moment ago, 1 process: " + "; ".join(told) + ". Speed has no ε.")


def scaling_in_words(result: Scaling) -> str:
    """The read-out beside the sliders, as HTML."""
    at, one = result.here, result.shares
    step, before = result.step[at], result.step[0]
    share = result.batch / result.devices
    kind = "measured" if result.measured[at] else "on a line between measured ones"
    sends = ring_bytes(one.parameters, result.devices)
    return _paragraphs(
        f"<b>Measured</b> on one core ({one.where}): a step of the paper's {one.model.upper()} on ATIS at batches of "
        f"{', '.join(map(str, one.batches))}.",
        f"<b>Extrapolated</b> to {_count(result.devices, 'device')} (none of them run: 0 processes, "
        f"{result.devices} imagined), each {digits(result.speed)} times as fast as that core: {digits(share)} "
        f"utterances each take {_seconds(result.sgd[at] + result.extra[at])} ({kind}), of which clipping and noise "
        f"{_seconds(result.extra[at])}; the all-reduce sends {_megabytes(sends)} per device in "
        f"{_seconds(result.message[at])} ({digits(100 * result.message[at] / step)} % of the step).",
        f"A step takes <b>{_seconds(step)}</b> instead of {_seconds(before)}: <b>{digits(result.speed_up[at])} times"
        f"</b> as fast on {_count(result.devices, 'device')}, and {digits(result.ratio[at])} times SGD's step on as "
        f"many. The paper's Table 2 says {printed(one.model).edp_sgd_factor:g} times for {one.model.upper()} on ATIS "
        "with 8 GPUs. Speed has no ε.",
    )


# ---- Tables --------------------------------------------------------------------------------------------------------


def table2_table(rows: Sequence[Timed]) -> str:
    """Ours beside the paper's factors, one method a row, as HTML."""
    paper = {"edp-sgd": printed(rows[0].model).edp_sgd_factor, "dp-sgd-naive": printed(rows[0].model).dp_sgd_factor}
    table = [("", "s a step", "s an epoch", "× SGD", "quartiles", "paper ×")]
    for row in rows:
        factor = paper.get(row.method) if row.gpus in (1, 8) and (row.method, row.gpus) != ("edp-sgd", 1) else None
        spread = f"{row.spread[0]:.2f} to {row.spread[1]:.2f}" if row.method != "sgd" else ""
        numbers = f"{row.seconds:.3f}", f"{row.seconds * row.steps_per_epoch:.1f}", f"{row.ratio:.2f}"
        table.append((_who(row), *numbers, spread, f"{factor:g}" if factor else ""))
    what = f"<b>{rows[0].model.upper()} on ATIS</b>, batches of {rows[0].batch_size} ({rows[0].where})"
    return f"<p>{what}</p>{html_table(table)}<p>With <code>{rows[0].command}</code></p>"


def two_processes_text() -> str:
    """What was measured on one process and on two."""
    lines = []
    for method, (one, two) in two_processes().items():
        lines.append(
            f"{METHODS[method]:<8} 1 process {one.seconds:.2f} s, 2 processes {two.seconds:.2f} s a step: "
            f"{one.seconds / two.seconds:.2f} times as fast"
        )
    return "\n".join(lines)


def _who(row: Timed) -> str:
    if row.method != "edp-sgd":
        return METHODS[row.method]
    return f"{METHODS[row.method]}, {_count(row.gpus, 'device')}: {row.processes} real, {row.gpus - row.processes} sim."


# ---- As commands ---------------------------------------------------------------------------------------------------


def noise_command(result: DeviceNoise) -> str:
    """The call of `edp-lab account` that gives the same noise and epsilon."""
    m = result.mechanism
    words = ["edp-lab", "account", *(["--as-printed"] if m.variant is Variant.AS_PRINTED else [])]
    options = {
        "clip": m.clip_norm, "z0": m.z0, "gpus": m.num_devices, "micro-batch-size": m.micro_batch_size,
        "epochs": result.epochs, "delta": result.delta,
    }  # fmt: skip
    for name, value in options.items():
        words += [f"--{name}", f"{value:.12g}"]
    return shlex.join([*words, *(["--alpha-source", m.alpha] if m.alpha is not Alpha.NONE else [])])


def run_command(config: TrainConfig) -> str:
    """Make the little corpus, then the run, into a folder that is named after its settings."""
    variant = "as-printed" if config.as_printed else "sound"
    out = (
        f"runs/{variant}-{config.noise}-n{config.num_devices}-p{config.processes}-c{config.clip_norm:g}"
        f"-z{config.z0:g}-e{config.epochs}-d{config.delta:g}-s{config.seed}"
    )
    return (
        f"edp-lab data make smart-home --utterances {LITTLE} --out little.jsonl\n"
        f"{train_command(TrainConfig(**{**asdict(config), 'corpus': 'little.jsonl'}), out)}"
    )


def measure_command(task: Task) -> str:
    """The benchmark on the command line."""
    words = [
        "edp-lab", "bench", "step", "--corpus", task.corpus, "--model", task.model, "--size", task.size, "--methods",
        ",".join(task.methods), "--gpus", ",".join(map(str, task.gpus)), "--batch-size", str(task.batch_size),
        "--rounds", str(task.rounds),
    ]  # fmt: skip
    return shlex.join([*words, *([] if task.threads is None else ["--threads", str(task.threads)])])


def scaling_command(result: Scaling) -> str:
    """How the steps were measured (once for each batch size), and the call that extrapolates and prints."""
    values = (
        result.shares.model, result.devices, result.batch, result.bandwidth, result.latency, result.speed
    )  # fmt: skip
    call = f"from edp_lab.course import devices; s = devices.scaling({', '.join(map(repr, values))})"
    printed = (
        "print(f'{1000 * s.step[s.here]:.4g} ms a step, {s.speed_up[s.here]:.3g} times as fast as on one device, "
        "{s.ratio[s.here]:.3g} times the step of SGD')"
    )
    return f'{result.shares.command}\npython -c "{call}; {printed}"'


# ---- Small parts ---------------------------------------------------------------------------------------------------


def settings(mechanism: Mechanism) -> str:
    """What a caption says of the noise."""
    return (
        f"{mechanism.variant}, N = {mechanism.num_devices}, C = {digits(mechanism.clip_norm)}, "
        f"z0 = {digits(mechanism.z0)}"
    )


def told(config: TrainConfig) -> str:
    """What a caption says of a run."""
    variant = "as printed" if config.as_printed else "sound"
    return (
        f"{variant}, N = {config.num_devices}, C = {config.clip_norm:g}, z0 = {two_digits(config.z0)}, "
        f"seed {config.seed}"
    )


def _megabytes(number: float) -> str:
    return f"{digits(number / 1e6)} MB"


def _seconds(number: float) -> str:
    return f"{digits(1000 * number)} ms" if number < 1 else f"{digits(number)} s"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _paragraphs(*texts: str) -> str:
    return "".join(f"<p>{text}</p>" for text in texts if text)
