"""What ``03_edp_sgd.ipynb`` says in words: read-outs beside sliders (HTML) and commands."""

from __future__ import annotations

import math
import shlex
from html import escape
from typing import Any

import numpy as np

from edp_lab.course.nb00_start.compute import privacy_in_words
from edp_lab.course.nb01_coins.words import at_most
from edp_lab.course.nb01_coins.words import digits as d
from edp_lab.course.nb03_edp_sgd.compute import CLAIMED, DELTA, PRINTED, SENTENCES, SOUND, Decayed, Promise, Stages
from edp_lab.privacy import Decay, Guarantee, Variant

# ---- Beside the sliders --------------------------------------------------------------------------------------------


def stages_in_words(result: Stages) -> str:
    """The read-out beside the sliders, as HTML."""
    mechanism, printed = result.mechanism, result.mechanism.variant is Variant.AS_PRINTED
    devices, move = mechanism.num_devices, 2 * result.clip_norm * float(result.alpha.max())
    sensitivity = (
        "<b>What one sentence can do:</b> turn its device around, by 2 C in units of α. Scaled back, that is 2 C max α "
        f"= <b>{d(move)}</b> of the sum, and {d(move / devices)} of the mean: the long axis of the ellipse."
    )
    large, small = (d(float(std)) for std in result.noise)
    noise = (
        f"C z / N<sup>1.5</sup> = <b>{large}</b> on every weight, whatever its α."
        if printed
        else f"2 C α z / N = <b>{large}</b> on the large layer, {small} on the small one: it is scaled back, too."
    )
    ratio = (
        f"which is z / (2 √N max α). The paper's accountant takes it for z = {d(mechanism.z0)}."
        if printed
        else "which is z, as an accountant expects. α and N drop out."
    )
    multiplier = f"<b>{d(mechanism.noise_multiplier(0))}</b>, {ratio}"
    return _paragraphs(
        _devices_in_words(result), sensitivity, f"<b>Noise on the mean:</b> {noise} Over the sensitivity: {multiplier}"
    ) + _one_epoch(result.guarantee, printed)


def _devices_in_words(result: Stages) -> str:
    devices, kept = result.mechanism.num_devices, result.kept
    pulls = f", and sentence 1 pulls {d(result.pull)} times backwards" if result.pull else ""
    others = f", of the others' {d(float(kept[1:].min()))} at least" if devices > 1 else ""
    return (
        f"{_count(devices, 'device')}: 1 process, {devices - 1} simulated. Each averages {SENTENCES // devices} of "
        f"{SENTENCES} sentences{pulls}. The clip keeps {d(float(kept[0]))} of device 1's gradient{others}."
    )


def _one_epoch(held: Guarantee, printed: bool) -> str:
    """What one epoch costs, with what it covers one click away."""
    if held.epsilon is None:
        return f"<p><b>No guarantee</b>: {held.reason}.</p>"
    claimed = (
        f"the paper's accounting says ε = {_epsilon(held.epsilon_claimed)} (zCDP); what holds is " if printed else ""
    )
    text = (
        f"One epoch at δ = {DELTA:g}: {claimed}<b>ε = {at_most(held.epsilon)}</b> (Gaussian DP, exact; zero-out, "
        "disjoint batches), if α is public and the seed secret; here it is published."
    )
    return text + _scope(held)


def decay_in_words(result: Decayed) -> str:
    """The read-out beside the sliders, as HTML."""
    config, noise, ratio = result.config, result.chosen, result.chosen / np.maximum(result.signal, 1e-300)
    first, last = ([d(float(v[k])) for v in (result.gradient, result.signal, noise, ratio)] for k in (0, -1))
    gradient = (
        f"<b>Gradient</b> of the batch: {first[0]} in the first epoch, {last[0]} in the last. The clip leaves "
        f"{first[1]} and {last[1]} of it: the signal."
    )
    flat = config.decay == Decay.NONE
    falls = "It stays." if flat else f"It falls to {last[2]} ({config.decay} decay, τ = {d(config.tau)})."
    decay = (
        f"<b>Noise</b> on the mean, all weights together: {first[2]} at first. {falls} Noise over signal: "
        f"<b>{first[3]}</b> at first, <b>{last[3]}</b> at last."
    )
    same = (
        "Choose a decay and see what it does to ε: at the same z0 it can only rise."
        if flat or result.same_cost is None
        else f"Without decay, noise of {d(result.same_cost)} in every epoch would cost the same ε."
    )
    return _paragraphs(gradient, decay, same) + privacy_in_words(result.guarantee, len(result.gradient))


def promise_in_words(result: Promise) -> str:
    """The read-out beside the sliders, as HTML."""
    size, times = result.micro_batch_size, 1 if result.micro_batch_size == 1 else 2
    claimed, printed, sound = (result.multiplier[name] for name in (CLAIMED, PRINTED, SOUND))
    sensitivity = (
        f"Micro-batches of {_count(size, 'sentence')}: one sentence moves the sum over devices by "
        f"{'2 ' * (times == 2)}C max α = {d(times * result.alpha_max)} C. The printed noise on it is C z / √N = "
        f"{d(result.z / math.sqrt(result.num_devices))} C."
    )
    ratio = (
        f"Noise over sensitivity: claimed {d(claimed)}; as printed <b>{d(printed)}</b>, that is {d(claimed / printed)} "
        f"times less; sound {d(sound)}."
    )
    guess = (
        "Someone knows all sentences but one, sees one step, and guesses whether it was there (even odds). With the "
        f"claimed noise {result.right(CLAIMED):.1%} of guesses are right at best, with the printed noise "
        f"<b>{result.right(PRINTED):.1%}</b>."
    )
    cost = (
        f"{_count(result.epochs, 'epoch')}, δ = {d(result.delta)}: claimed ε = {_epsilon(result.epsilon[CLAIMED])} "
        f"(zCDP); as printed, were α public, <b>ε = {_epsilon(result.epsilon[PRINTED])}</b>; sound ε = "
        f"{_epsilon(result.epsilon[SOUND])} (both Gaussian DP, exact; zero-out, disjoint batches, secret seed): less "
        "than is claimed, at the same multiplier, only because zCDP is a looser bound than Gaussian DP. With α from "
        "private gradients, as printed: <b>no guarantee</b>."
    )
    return _paragraphs(sensitivity, ratio, guess, cost) + _scope(result.guarantee)


# ---- Commands ------------------------------------------------------------------------------------------------------


def stages_command(result: Stages) -> str:
    """The call of `edp-lab account` for one epoch of this step; "had alpha come from public text" is its epsilon."""
    mechanism, options = result.mechanism, []
    if mechanism.variant is Variant.AS_PRINTED:
        options = ["--as-printed", "--alpha-max", f"{float(result.alpha.max()):g}", "--alpha-source", "public"]
    return _account(mechanism.z0, mechanism.num_devices, mechanism.micro_batch_size, 1, DELTA, options)


def promise_command(result: Promise, **_: Any) -> str:
    """Two calls of `edp-lab account`: as printed, with what is claimed, and sound."""
    given = result.z, result.num_devices, result.micro_batch_size, result.epochs, result.delta
    printed = ["--as-printed", "--alpha-max", f"{result.alpha_max:g}", "--alpha-source", "public"]
    return f"{_account(*given, printed)}\n{_account(*given, [])}"


def _account(z: float, devices: int, size: int, epochs: int, delta: float, options: list[str]) -> str:
    numbers = {"--z0": z, "--gpus": devices, "--micro-batch-size": size, "--epochs": epochs, "--delta": delta}
    words = [word for flag, value in numbers.items() for word in (flag, f"{value:g}")]
    return shlex.join(["edp-lab", "account", *options, *words])


# ---- Small parts ---------------------------------------------------------------------------------------------------


def _epsilon(epsilon: float | None) -> str:
    return at_most(math.inf if epsilon is None else epsilon)


def _scope(held: Guarantee) -> str:
    return f"<details><summary>what this ε covers</summary>{escape(f'{held.scope}; {held.reason}')}</details>"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _paragraphs(*texts: str) -> str:
    return "".join(f"<p>{text}</p>" for text in texts)
