"""Parts of a run, beside its mechanism: the model before its first step, and the optimizer.

Guarantee: an optimizer sees nothing but released gradients, so its choice costs no epsilon (post-processing).
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
EPSILON = 1e-8  # beside the square root


def reads_words(config: TrainConfig, mechanism: Mechanism | None) -> bool:
    """Whether the vocabulary comes from the training set.

    Only where there is no guarantee anyway; elsewhere words come from public text or stable hash buckets.
    """
    without_guarantee = mechanism is None or mechanism.alpha is Alpha.PRIVATE
    return config.pretrained is None and without_guarantee


def model_for(config: TrainConfig, corpus: Corpus, data: Split, mechanism: Mechanism | None) -> IntentSlotModel:
    """The model before its first step; UsageError if a public start has seen the text that is to be protected."""
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
    """The optimizer of one of the names in `OPTIMIZERS`: Adam, or

    * "dp-adam": "Differentially Private Adam", Algorithm 7 of the thesis. It is Adam on the released gradient, so the
      same as "adam" to the last bit. Of its two printed changes to Adam (the thesis' Algorithm 6), clipping and
      Gaussian noise come before the optimizer; epsilon is added after the root; it gives no constants, so they are
      those of Kingma and Ba, which it cites. Not followed, as misprints: the weights' m in the biases' update, a
      correction of S_W that is meant for S_b, and the formulas' place after both loops. It corrects the bias with
      1 - beta^i where i counts the outer loop, called "training steps"; read as passes over the data, the correction
      would stay that of a first step for a whole pass, so we count updates as Kingma and Ba do.
    """
    if name in OPTIMIZERS:
        return Adam(parameters, lr=lr, betas=BETAS, eps=EPSILON, fused=True)
    raise UsageError(f"there is no optimizer {name!r}: choose one of {', '.join(OPTIMIZERS)}")


def set_learning_rate(optimizer: torch.optim.Optimizer, config: TrainConfig, done: float) -> None:
    """The rate of the next step, after this share of all steps; see `TrainConfig.lr_schedule`."""
    rate = config.learning_rate
    if config.lr_schedule == "linear":
        rate *= 1 - done
    for group in optimizer.param_groups:
        group["lr"] = rate


class Adam(torch.optim.Adam):
    """The same as torch's, to the last bit, but it does not load torch's compiler, which takes a second.

    Torch loads it only to say what it must not compile.
    """

    add_param_group = unwrap(torch.optim.Adam.add_param_group)
    state_dict = unwrap(torch.optim.Adam.state_dict)
    load_state_dict = unwrap(torch.optim.Adam.load_state_dict)
    step = torch.no_grad()(unwrap(torch.optim.Adam.step))
