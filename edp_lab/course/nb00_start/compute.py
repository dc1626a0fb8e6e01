"""What ``00_start.ipynb`` computes: one eDP-SGD step on real gradients, and what it says in words. No widgets.

    model = SmallModel(config, epochs=4)               # trained once, by the course's own loop
    result = one_step(model.on(8), config, epoch=0)    # pure
    print(command(config))                             # the same settings on the command line

Noise, clipping and epsilon come from `edp_lab.training.dp_step` and `edp_lab.privacy`; nothing is repeated here.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import cache
from html import escape
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edp_lab.corpora import load_corpus, split
from edp_lab.course.kit.text import at_most
from edp_lab.errors import UsageError
from edp_lab.models.intent_slot import IntentSlotModel
from edp_lab.privacy import Alpha, Decay, Guarantee, Mechanism, Variant, judge
from edp_lab.privacy.csprng import Purpose, stream
from edp_lab.training import TrainConfig
from edp_lab.training.dp_step import layer_scales, release
from edp_lab.training.gradients import Layout, StackedGradients, stacked_gradients
from edp_lab.training.noise import Share, standard_noise
from edp_lab.training.trainer import Trainer

# ---- Compute -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Gradients:
    """What one step starts from.

    Attributes:
        per_device: (N, P) mean gradient of each device's micro-batch.
        alpha: (K) layer scales, from the first batch of training as in the paper.
        noise: (P) standard normal draws.
        delta: that of a run on this corpus.
    """

    layout: Layout
    per_device: Tensor
    alpha: Tensor
    noise: Tensor
    delta: float


@dataclass(frozen=True)
class StepResult:
    """One step on one batch, as its figures show it.

    Attributes:
        epoch: t, which sets the noise through the decay.
        layers: names of the parameter tensors.
        signal, noise, draw: L2 norm per layer of the mean clipped gradient, of the noise on it (expected: standard
            deviation times square root of the layer's size) and of one draw of that noise.
        clip_factors: per device, in (0, 1].
        claimed, true: epsilon after 1, 2, ... epochs; `true` takes alpha to be public. None where it overflows.
        guarantee: of the whole run.
    """

    config: TrainConfig
    epoch: int
    layers: tuple[str, ...]
    signal: tuple[float, ...]
    noise: tuple[float, ...]
    draw: tuple[float, ...]
    clip_factors: tuple[float, ...]
    claimed: tuple[float | None, ...]
    true: tuple[float | None, ...]
    guarantee: Guarantee

    @property
    def mechanism(self) -> Mechanism:
        mechanism = self.config.mechanism()
        assert mechanism is not None  # `one_step` refuses plain SGD
        return mechanism

    @property
    def ratio(self) -> float:
        """Expected noise over signal, all layers together."""
        return self.total_noise / self.total_signal

    @property
    def total_signal(self) -> float:
        return math.hypot(*self.signal)

    @property
    def total_noise(self) -> float:
        return math.hypot(*self.noise)

    @property
    def total_draw(self) -> float:
        return math.hypot(*self.draw)


def one_step(gradients: Gradients, config: TrainConfig, epoch: int) -> StepResult:
    """One step of `config` on these gradients, and the privacy loss of the whole run.

    The released gradient is signal + noise, and `release` is linear in the noise: without noise it gives the signal,
    without devices the noise alone.

    Raises:
        UsageError: plain SGD, an epoch outside the run, or other devices than the gradients'.
    """
    mechanism = config.mechanism()
    if mechanism is None:
        raise UsageError("plain SGD adds no noise: choose method 'edp-sgd'")
    if not 0 <= epoch < config.epochs:
        raise UsageError(
            f"epoch t = {epoch} lies outside a run of {config.epochs} epochs (t = 0 to {config.epochs - 1}): "
            "lower t or raise the number of epochs"
        )
    if len(gradients.per_device) != mechanism.num_devices:
        raise UsageError(f"{len(gradients.per_device)} gradients for {mechanism.num_devices} devices")
    alpha = None if mechanism.alpha is Alpha.NONE else gradients.alpha
    layout, noise = gradients.layout, gradients.noise
    nobody = StackedGradients(gradients.per_device[:0], layout)
    signal = release(
        mechanism, epoch, StackedGradients(gradients.per_device, layout), layout, alpha, torch.zeros_like(noise)
    )
    expected = release(mechanism, epoch, nobody, layout, alpha, torch.ones_like(noise))
    draw = release(mechanism, epoch, nobody, layout, alpha, noise)
    losses = [judge(mechanism, t, gradients.delta) for t in range(1, config.epochs + 1)]
    return StepResult(
        config,
        epoch,
        layout.names,
        signal=_norms(signal.gradient, layout),
        noise=_norms(expected.gradient, layout),
        draw=_norms(draw.gradient, layout),
        clip_factors=tuple(signal.clip_factors.tolist()),
        claimed=tuple(loss.epsilon_claimed for loss in losses),
        true=tuple(loss.epsilon_if_alpha_public for loss in losses),
        guarantee=losses[-1],
    )


def _norms(gradient: Tensor, layout: Layout) -> tuple[float, ...]:
    norms = (torch.linalg.vector_norm(gradient[columns], dtype=torch.float64) for columns in layout.columns)
    return tuple(norm.item() for norm in norms)


class SmallModel:
    """A small model, trained without noise by the course's own loop, and the batch that it would meet next.

    The same model and batch stand behind every setting of the sliders, so that only the mechanism differs.

    Args:
        config: what the panels start with; `plain` makes the model's own run of it.
        epochs: how long to train.

    Raises:
        UsageError: as `edp_lab.training.train`.
    """

    def __init__(self, config: TrainConfig, epochs: int) -> None:
        self.config = plain(config, epochs)
        corpus = load_corpus(config.corpus)
        self._run = Trainer(self.config, corpus, split(corpus, config.seed))
        self.layout, self.delta = self._run.layout, self._run.delta
        self._untrained = deepcopy(self._run.model)
        for _ in range(epochs):
            self._run.epoch()
        self.noise = standard_noise(self._run.key, self._run.progress.step, self.layout.size, Share())
        self.on = cache(self._on)

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """The rows of its run record."""
        return self._run.record["epochs"]

    def _on(self, num_devices: int) -> Gradients:
        """What a step on `num_devices` devices starts from; computed once for each number."""
        first = self._gradients(self._untrained, 0, 0, num_devices)
        following = self._gradients(self._run.model, self.config.epochs, self._run.progress.step, num_devices)
        return Gradients(self.layout, following, layer_scales(first.mean(0), self.layout), self.noise, self.delta)

    def _gradients(self, model: IntentSlotModel, epoch: int, step: int, num_devices: int) -> Tensor:
        """(N, P) gradients of the first batch of an epoch."""
        run, data = self._run, self._run.train_data
        examples = stream(run.key, Purpose.SHUFFLE, epoch).permutation(len(data))[: self.config.batch_size]
        dropout_key = int(stream(run.key, Purpose.DROPOUT, step).integers(2**63))
        parts = np.array_split(examples, num_devices)
        return stacked_gradients(model, data, parts, dropout_key, self.layout).gradients.cpu()


def plain(config: TrainConfig, epochs: int) -> TrainConfig:
    """The run without privacy with which an eDP-SGD run is compared: the same for every setting of the mechanism."""
    private = ("clip_norm", "z0", "decay", "tau", "num_devices", "as_printed", "alpha", "noise")
    defaults = TrainConfig(config.corpus)
    unset = {name: getattr(defaults, name) for name in private}
    return replace(config, method="sgd", epochs=epochs, **unset)


# ---- In words ------------------------------------------------------------------------------------------------------

# Options of `edp-lab train` that are not named like their field, and those that a reader wants to see in any case.
FLAGS = {"clip_norm": "clip", "num_devices": "gpus"}
ALWAYS = ("corpus", "method", "clip_norm", "z0", "decay", "tau", "num_devices", "epochs", "seed")


def command(config: TrainConfig, out: str = "runs/mine") -> str:
    """The call of `edp-lab train` that makes this very run."""
    words, defaults = ["edp-lab", "train"], asdict(TrainConfig(config.corpus))
    for name, value in asdict(config).items():
        if name in ALWAYS or value != defaults[name]:
            flag = FLAGS.get(name, name).replace("_", "-")
            words += [f"--no-{flag}"] if value is False else [f"--{flag}"]
            words += [] if isinstance(value, bool) else [str(value)]
    return shlex.join([*words, "--out", out])


def in_words(result: StepResult) -> str:
    """The read-out beside the sliders, as HTML; every number is the mechanism's or the accountant's own."""
    mechanism, t = result.mechanism, result.epoch
    devices, bound = mechanism.num_devices, mechanism.clip_norm
    name = "As printed" if mechanism.variant is Variant.AS_PRINTED else "Sound"
    noise = (
        f"<b>{name}</b>, z0 = {short(mechanism.z0)} on {_count(devices, 'device')} adds noise of "
        f"{short(mechanism.noise_std(t) / devices / bound)} C to every coordinate of the mean gradient at t = {t}: "
        f"over all layers <b>{short(result.ratio)} times the signal</b>."
    )
    meanings = (
        f"z at t = {t}, in its two meanings: the paper's, one device's noise over C, is "
        f"{short(mechanism.device_noise_std(t) * devices / bound)}; an accountant's, noise over sensitivity of what is "
        f"released, is {short(mechanism.noise_multiplier(t))}."
    )
    least, most = short(min(result.clip_factors)), short(max(result.clip_factors))
    kept = f"Clipping keeps {least if least == most else f'{least} to {most}'} of each device's gradient."
    where = f"{_count(devices, 'device')}: 1 process, {devices - 1} simulated."
    privacy = privacy_in_words(result.guarantee, result.config.epochs)
    return "".join(f"<p>{text}</p>" for text in (noise, privacy, meanings, f"{kept} {where}"))


def table(results: Mapping[str, StepResult]) -> str:
    """Steps of runs of one length and delta in plain text, one a line, under what their epsilons are."""
    rows: list[tuple[str, ...]] = [("", "noise per weight", "noise/signal", "ε claimed", "ε if α public")]
    for label, r in results.items():
        numbers = (r.mechanism.noise_std(r.epoch) / r.mechanism.num_devices, r.ratio, r.claimed[-1], r.true[-1])
        rows.append((label, *map(short, numbers)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"{row[0]:<{widths[0]}}  " + "  ".join(map(str.rjust, row[1:], widths[1:])) for row in rows]
    first = next(iter(results.values()))
    told = f"ε of all {_count(first.config.epochs, 'epoch')} at δ = {first.guarantee.delta:.2g}"
    accountants = "claimed: zCDP at face value; α public: Gaussian DP"
    return "\n".join([f"{told}; zero-out, disjoint batches", accountants, *lines])


def settings(config: TrainConfig) -> str:
    """What a figure's caption says of the mechanism."""
    decay = "no decay" if config.decay == Decay.NONE else f"{config.decay} decay τ = {config.tau:g}"
    variant = "as printed" if config.as_printed else "sound"
    return f"{variant}, N = {config.num_devices}, C = {config.clip_norm:g}, z0 = {config.z0:g}, {decay}"


def caption(config: TrainConfig, epochs: Sequence[Mapping[str, Any]], delta: float) -> str:
    """Under the title of a training figure: settings, seed, and the privacy after these `epochs` (rows of a record)."""
    told = f"{settings(config)}, seed {config.seed}"
    if not epochs:
        return f"{told}<br>"
    holds = (
        "no guarantee"
        if epochs[-1]["epsilon"] is None
        else f"ε = {at_most(epochs[-1]['epsilon'])} if the seed were secret"
    )
    claimed = short(epochs[-1]["epsilon_claimed"])
    return f"{told};<br>after {_count(len(epochs), 'epoch')} ε = {claimed} claimed (zCDP), {holds}, δ = {delta:.2g}"


def privacy_in_words(guarantee: Guarantee, epochs: int) -> str:
    """Claimed and true epsilon of `epochs` epochs, with all that qualifies them one click away."""
    public = "" if guarantee.epsilon_if_alpha_public is None else at_most(guarantee.epsilon_if_alpha_public)
    claimed = short(guarantee.epsilon_claimed)
    after = f"After {_count(epochs, 'epoch')} (δ = {guarantee.delta:.2g}) the paper's accounting (zCDP) says"
    account = guarantee.method.partition(",")[0].replace("-", " ")
    if guarantee.epsilon is not None:
        text = (
            f"{after} ε = {claimed}. With a secret seed <b>ε = {public}</b> ({account}) would hold (void here: the "
            "seed of the noise is published)."
        )
    elif guarantee.epsilon_if_alpha_public is not None:
        text = (
            f"{after} <b>ε = {claimed}</b>. What holds: <b>no guarantee</b>, for α comes from private gradients; with "
            f"a public α it would be <b>ε = {public}</b> ({account})."
        )
    else:
        text = f"<b>No guarantee</b>: {guarantee.reason}."
    scope = (
        f"{_count(epochs, 'epoch')}, δ = {guarantee.delta:.2g}; "
        f"{guarantee.scope}; status: {guarantee.status}, because {guarantee.reason}"
    )
    return f"{text}<details><summary>what this ε covers</summary>{escape(scope)}</details>"


def trained_in_words(config: TrainConfig, sgd: Sequence[Mapping[str, Any]], record: Mapping[str, Any] | None) -> str:
    """The read-out of a training run, as HTML. `sgd`: rows without privacy; `record`: of eDP-SGD, if that began."""
    baseline = f"SER {sgd[-1]['ser']:.2f} without privacy" if sgd else "no epoch without privacy was finished"
    if record is None:
        return f"<p>Stopped: {baseline}.</p>"
    done, stopped = record["epochs"], record["status"] == "interrupted"
    scores = f"SER {done[-1]['ser']:.2f} with eDP-SGD" if done else "no epoch of eDP-SGD was finished"
    final = {name: record["final"][name] for name in ("epsilon", "epsilon_claimed", "epsilon_if_alpha_public")}
    privacy = privacy_in_words(Guarantee(**record["guarantee"], **final), len(done) + stopped)
    begun = "Stopped early: " if stopped else f"Validation set after {_count(len(done), 'epoch')}: "
    told = f"{settings(config)}, seed {config.seed}"
    return f"<p>{begun}{baseline}, <b>{scores}</b> ({told}). {record['devices']}.</p><p>{privacy}</p>"


def short(value: float | None) -> str:
    """Two digits, as people write them: 0.0013, 32, 1.8e4; None is too large for a float."""
    if value is None:
        return "beyond 1e308"
    digits, _, exponent = f"{value:.2g}".partition("e")
    return f"{digits}e{int(exponent)}" if exponent else digits


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
