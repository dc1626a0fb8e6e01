"""Turns the released gradient into a change of the weights: Adam (Kingma and Ba 2015, Algorithm 1).

Guarantee: an optimizer sees nothing but released gradients, so its choice costs no epsilon (post-processing).
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import unwrap

import torch
from torch import nn

from edp_lab.errors import UsageError
from edp_lab.training.config import OPTIMIZERS

BETAS = (0.9, 0.999)
EPSILON = 1e-8  # beside the square root


def make_optimizer(name: str, parameters: Sequence[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """The optimizer of one of the names in `OPTIMIZERS`: Adam, or

    * "dp-adam": "Differentially Private Adam", Algorithm 7 of the thesis. It is Adam on the released gradient, so the
      same as "adam" to the last bit. Of its two printed changes to Adam (the thesis' Algorithm 6), clipping and
      Gaussian noise come before the optimizer; epsilon stands beside the root; it gives no constants, so they are
      those of Kingma and Ba, which it cites. Not followed, as misprints: the weights' m in the biases' update, a
      correction of S_W that is meant for S_b, and the formulas' place after both loops. It corrects the bias with
      1 - beta^i where i counts the outer loop, called "training steps"; read as passes over the data, the correction
      would stay that of a first step for a whole pass, so we count updates as Kingma and Ba do.
    """
    if name in OPTIMIZERS:
        return Adam(parameters, lr=lr, betas=BETAS, eps=EPSILON, fused=True)
    raise UsageError(f"there is no optimizer {name!r}: choose one of {', '.join(OPTIMIZERS)}")


class Adam(torch.optim.Adam):
    """The same as torch's, to the last bit, but it does not load torch's compiler, which takes a second.

    Torch loads it only to say what it must not compile.
    """

    add_param_group = unwrap(torch.optim.Adam.add_param_group)
    state_dict = unwrap(torch.optim.Adam.state_dict)
    load_state_dict = unwrap(torch.optim.Adam.load_state_dict)
    step = torch.no_grad()(unwrap(torch.optim.Adam.step))
