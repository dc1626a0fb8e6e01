"""Build the initial model and the optimizer, and set the learning rate of each step.

Guarantee: the optimizer sees only released gradients, so the choice of optimizer does not change epsilon.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import unwrap

import torch
from torch import nn

from edp_lab.corpora.corpus import Corpus, Split
from edp_lab.corpora.encoding import Labels
from edp_lab.errors import UsageError
from edp_lab.models.factory import build_model
from edp_lab.models.intent_slot import IntentSlotModel
from edp_lab.models.public_start import check_unseen
from edp_lab.privacy import Alpha, Mechanism
from edp_lab.training.config import OPTIMIZERS, TrainConfig

BETAS = (0.9, 0.999)
EPSILON = 1e-8  # added to the square root, not inside it


def reads_words(config: TrainConfig, mechanism: Mechanism | None) -> bool:
    """Whether the vocabulary is built from the training set.

    This is done only if the run has no guarantee anyway; otherwise, words come from public text or stable hash buckets.
    """
    without_guarantee = mechanism is None or mechanism.alpha is Alpha.PRIVATE
    return config.pretrained is None and without_guarantee


def model_for(config: TrainConfig, corpus: Corpus, data: Split, mechanism: Mechanism | None) -> IntentSlotModel:
    """Build the initial model; raise UsageError if its starting model was trained on the text to be protected."""
    if mechanism is not None and config.pretrained is not None:
        check_unseen(config.pretrained, (utterance.text for utterance in data.train))
    model = build_model(
        config.model,
        Labels.of(corpus),
        seed=config.seed,
        training=data.train,
        private=not reads_words(config, mechanism),
        pretrained=config.pretrained,
        size=config.model_size(),
        frozen=config.frozen,
    )
    model.intent_weight = config.intent_weight
    return model


def make_optimizer(name: str, parameters: Sequence[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Return the optimizer with this name, one of `OPTIMIZERS`; all of them are Adam.

    "dp-adam" is "Differentially Private Adam", Algorithm 7 of the thesis. It is Adam on the released gradient, and so
    bit-identical to "adam": its two changes to Adam (the thesis' Algorithm 6), clipping and Gaussian noise, come before
    the optimizer. Epsilon is added to the square root, as printed in the thesis, which states no constants: we use
    those of Kingma and Ba, which it cites. We correct three misprints: the m of the weights in the update of the
    biases, a correction of S_W that is meant for S_b, and the position of the formulas after both loops. The thesis
    corrects the bias with 1 - beta^i, where i counts the outer loop, called "training steps". If these were passes over
    the data, the correction would not change during the first pass, so we count updates, as Kingma and Ba do.
    """
    if name in OPTIMIZERS:
        return Adam(parameters, lr=lr, betas=BETAS, eps=EPSILON, fused=True)
    raise UsageError(f"there is no optimizer {name!r}: choose one of {', '.join(OPTIMIZERS)}")


def set_learning_rate(optimizer: torch.optim.Optimizer, config: TrainConfig, done: float) -> None:
    """Set the learning rate of the next step by `TrainConfig.lr_schedule`; `done`: share of all steps taken so far."""
    rate = config.learning_rate
    if config.lr_schedule == "linear":
        rate *= 1 - done
    for group in optimizer.param_groups:
        group["lr"] = rate


class Adam(torch.optim.Adam):
    """torch's Adam, with bit-identical results, without loading torch's compiler, which takes a second.

    torch loads the compiler only to mark methods that must not be compiled.
    """

    add_param_group = unwrap(torch.optim.Adam.add_param_group)
    state_dict = unwrap(torch.optim.Adam.state_dict)
    load_state_dict = unwrap(torch.optim.Adam.load_state_dict)
    step = torch.no_grad()(unwrap(torch.optim.Adam.step))


class SGD(torch.optim.SGD):
    """torch's SGD; see `Adam`."""

    add_param_group = Adam.add_param_group
    step = torch.no_grad()(unwrap(torch.optim.SGD.step))
