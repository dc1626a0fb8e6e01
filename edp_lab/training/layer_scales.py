"""Layer scales alpha_k, by which eDP-SGD divides each layer before it clips: where they come from.

    public    gradients on public text (`public_scales`): cost nothing
    noised    norms of a clipped mean gradient, with noise (`noised_scales`): a release of its own, which is billed
    private   the first private gradient, as the paper has it (`mean_scales`): no guarantee is left

The paper only says "proportional to the norm of gradient calculated on the first iteration". The constant is no further
knob: step(s alpha, C, z) = step(alpha, s C, z / s). So the largest scale is 1 here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from edp_lab.corpora import load_corpus
from edp_lab.errors import UsageError
from edp_lab.models.ghost_clipping.bookkeeping import row_norms
from edp_lab.models.intent_slot import IntentSlotModel
from edp_lab.privacy import Mechanism
from edp_lab.privacy.csprng import Purpose
from edp_lab.privacy.exact_noise import Piece, release
from edp_lab.training.batches import shard
from edp_lab.training.config import TrainConfig
from edp_lab.training.dp_step import SMALLEST_ALPHA, check_finite, clip
from edp_lab.training.gradients import FlatGradient, Layout, MicroGradients, layer_norms, model_gradients

MOST_SHARED = 0.1  # share of "public" utterances that may also be in the training set: short commands coincide


def layer_scales(gradient: Tensor, layout: Layout) -> Tensor:
    """alpha_k (K): norm of the devices' mean gradient (P) per layer, largest 1; a layer without gradient gets 1."""
    norms = layer_norms(gradient[None], layout)
    check_finite(norms, layout)
    if norms.max() == 0:
        return torch.ones_like(norms[0])
    scales = norms[0] / norms.max()
    return torch.where(scales > 0, scales.clamp_min(SMALLEST_ALPHA), torch.ones_like(scales))


def mean_scales(flat: FlatGradient, divisor: int, gradients: Sequence[MicroGradients]) -> Tensor:
    """alpha (K) from the mean of these gradients of all ranks, without clipping or noise.

    `divisor`: the fixed number of micro-batches over which the mean is taken.
    """
    flat.gradient.zero_()
    for some in gradients:
        some.add_weighted_sum(torch.ones(len(some.norms()), device=flat.gradient.device), flat.gradient)
    flat.sum_over_ranks()
    return layer_scales(flat.gradient.div_(divisor), flat.layout)


def noised_scales(
    flat: FlatGradient, divisor: int, gradients: Sequence[MicroGradients], mechanism: Mechanism, key: int
) -> Tensor:
    """alpha (K): layer norms of the mean of these gradients, clipped as a step's are, with noise; largest 1.

    Formal guarantee: a Gaussian release of noise multiplier `SCALES_NOISE` z0, see `Mechanism.scales_noise_std`; to be
    in the ledger before. A norm that cannot be told from noise counts as one standard deviation of it.
    """
    clipped = clip(gradients, mechanism, flat.layout, None, divisor, flat.gradient, flat.world)
    flat.sum_over_ranks()
    dense = (layer.to_dense() if layer.is_sparse else layer for layer in clipped.layers)
    norms = clipped.scale * torch.cat([row_norms(layer[None].double()) for layer in dense])
    std, noised = mechanism.scales_noise_std() / divisor, norms.cpu()
    release([Piece(noised.numpy(), 1.0, std)], key, Purpose.SCALES)
    noised = noised.to(norms.device).clamp_min(std)
    return (noised / noised.max()).to(flat.gradient.dtype)


def public_scales(
    flat: FlatGradient, divisor: int, model: IntentSlotModel, config: TrainConfig, training: Sequence[tuple[str, ...]]
) -> Tensor:
    """alpha (K) from the first utterances of a public corpus that carry labels the model knows.

    `training`: the tokens of each utterance to be protected, which a public corpus does not contain.
    """
    corpus = load_corpus(config.alpha_corpus)
    usable = [u for u in corpus.utterances if model.labels.covers(u)][: config.batch_size]
    if len(usable) < config.num_devices:
        raise UsageError(
            f"alpha corpus {config.alpha_corpus!r} has only {len(usable)} utterances with labels of "
            f"{config.corpus!r}: give public text annotated with the same labels"
        )
    protected = set(training)
    if sum(u.tokens in protected for u in usable) > MOST_SHARED * len(usable):
        raise UsageError(
            f"alpha corpus {config.alpha_corpus!r} shares utterances with the training set, so it is not "
            "public: give separate text"
        )
    micro_batches = np.array_split(np.arange(len(usable)), config.num_devices)
    local = shard(config.num_devices, flat.rank, flat.world)
    data, micro_batches = model.dataset(usable), micro_batches[local.start : local.stop]
    return mean_scales(flat, divisor, model_gradients(model, data, micro_batches, None, flat.layout))
