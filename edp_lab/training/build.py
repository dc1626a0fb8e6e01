"""Build the model before its first step, and the optimizer.

Guarantee: the optimizer sees only released gradients, so choosing one costs no epsilon (post-processing).
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

    It is only if the run has no guarantee anyway; otherwise words come from public text or stable hash buckets.
    """
    without_guarantee = mechanism is None or mechanism.alpha is Alpha.PRIVATE
    return config.pretrained is None and without_guarantee


def model_for(config: TrainConfig, corpus: Corpus, data: Split, mechanism: Mechanism | None) -> IntentSlotModel:
    """The model before its first step; UsageError if its public start was trained on the text to be protected."""
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
    """The optimizer with this name, one of `OPTIMIZERS`. All of them are Adam.

    "dp-adam" is "Differentially Private Adam", Algorithm 7 of the thesis: Adam on the released gradient, so identical
    to "adam" to the last bit. Its two changes to Adam (the thesis' Algorithm 6), clipping and Gaussian noise, are made
    before the optimizer. Epsilon is added to the root, as printed. The thesis states no constants, so we use those of
    Kingma and Ba, whom it cites. We do not follow three misprints: the weights' m in the biases' update, a correction
    of S_W that is meant for S_b, and the formulas' position after both loops. The thesis corrects the bias with
    1 - beta^i, where i counts the outer loop, called "training steps". If that meant passes over the data, the
    correction would stay at its first-step value for a whole pass, so we count updates, as Kingma and Ba do.
    """
    if name in OPTIMIZERS:
        return Adam(parameters, lr=lr, betas=BETAS, eps=EPSILON, fused=True)
    raise UsageError(f"there is no optimizer {name!r}: choose one of {', '.join(OPTIMIZERS)}")


def set_learning_rate(optimizer: torch.optim.Optimizer, config: TrainConfig, done: float) -> None:
    """Set the learning rate of the next step; `done`: share of all steps taken. See `TrainConfig.lr_schedule`."""
    rate = config.learning_rate
    if config.lr_schedule == "linear":
        rate *= 1 - done
    for group in optimizer.param_groups:
        group["lr"] = rate


class Adam(torch.optim.Adam):
    """torch's Adam, identical to the last bit, without loading torch's compiler, which takes a second.

    Torch loads it only to mark methods that it must not compile.
    """

    add_param_group = unwrap(torch.optim.Adam.add_param_group)
    state_dict = unwrap(torch.optim.Adam.state_dict)
    load_state_dict = unwrap(torch.optim.Adam.load_state_dict)
    step = torch.no_grad()(unwrap(torch.optim.Adam.step))
