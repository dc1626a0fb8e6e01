"""What turns the released gradient into a change of the weights: Adam, and DP-AdamBC, which knows of the noise.

    Adam       m_hat / (sqrt(v_hat) + 1e-8)                 Kingma and Ba 2015, Algorithm 1
    DP-AdamBC  m_hat / sqrt(max(v_hat - Phi, gamma'))       Tang, Shpilevskiy and Lecuyer 2023, arXiv 2312.14334

Adam takes noise for gradient: v_hat is larger by the noise variance Phi, which is the same for all the coordinates of a
layer, so where noise prevails all are divided by the same number, as in SGD with momentum. DP-AdamBC takes Phi off.

Guarantee: an optimizer sees nothing but released gradients and the standard deviation of their noise. Where that is
public, so is every update (post-processing), and the choice of optimizer costs no epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from inspect import unwrap

import torch
from torch import nn

from edp_lab.errors import UsageError
from edp_lab.training.config import OPTIMIZERS

BETAS = (0.9, 0.999)
EPSILON = 1e-8  # Adam's, beside the square root
GAMMA = 1e-8  # DP-AdamBC's gamma', under the square root; the default of its authors' code


def make_optimizer(name: str, parameters: Sequence[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """The optimizer of one of the names in `OPTIMIZERS`: Adam, `DPAdamBC`, or

    * "dp-adam": "Differentially Private Adam", Algorithm 7 of the thesis. It is Adam on the released gradient, so the
      same as "adam" to the last bit. Of its two printed changes to Adam (the thesis' Algorithm 6), clipping and
      Gaussian noise come before the optimizer; epsilon stands beside the root; it gives no constants, so they are
      those of Kingma and Ba, which it cites. Not followed, as misprints: the weights' m in the biases' update, a
      correction of S_W that is meant for S_b, and the formulas' place after both loops. It corrects the bias with
      1 - beta^i where i counts the outer loop, called "training steps"; read as passes over the data, the correction
      would stay that of a first step for a whole pass, so we count updates as Kingma and Ba do.
    """
    if name in ("adam", "dp-adam"):
        return Adam(parameters, lr=lr, betas=BETAS, eps=EPSILON, fused=True)
    if name == "dp-adambc":
        return DPAdamBC(parameters, lr)
    raise UsageError(f"there is no optimizer {name!r}: choose one of {', '.join(OPTIMIZERS)}")


class Uncompiled(torch.optim.Optimizer):
    """An optimizer that does not load torch's compiler, which takes a second, only to say what it must not compile."""

    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    state_dict = unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = unwrap(torch.optim.Optimizer.load_state_dict)


class Adam(Uncompiled, torch.optim.Adam):
    """The same as torch's, to the last bit."""

    step = torch.no_grad()(unwrap(torch.optim.Adam.step))


class DPAdamBC(Uncompiled):
    """DP-AdamBC (Tang, Shpilevskiy and Lecuyer 2023), for noise that may differ by step and by parameter tensor.

        m <- beta1 m + (1 - beta1) g          m_hat = m / (1 - beta1^t)
        v <- beta2 v + (1 - beta2) g^2        v_hat = v / (1 - beta2^t)
        n <- beta2 n + (1 - beta2) std^2      Phi   = n / (1 - beta2^t)
        w <- w - lr m_hat / sqrt(max(v_hat - Phi, gamma'))

    The paper has one Phi = std^2 for the whole run; with constant std so have we. Averaging std^2 with v's own weights
    keeps v_hat - Phi an unbiased estimate of the same average of the squared gradient without noise, if the noise has
    mean 0 and is independent of that gradient. Root and floor are not unbiased.

    There is no epsilon beside the root. A coordinate on the floor moves by lr |m_hat| / sqrt(gamma'): of noise alone
    that is up to lr std / sqrt(gamma') at the first step and about 0.23 of it in the long run. So gamma' and lr belong
    to the noise: the authors' published commands take gamma' 1e-9 or 7e-9, and lr 200 and 3 times below DP-Adam's.

    Per parameter the state holds tensors only: "exp_avg" m and "exp_avg_sq" v of its shape, "noise_sq" n and "step" t
    of shape (). Between steps it is all there is, so a loaded `state_dict()` goes on bit for bit.

    Each parameter has the released gradient in ``.grad`` at every step. `gamma`: gamma', in its squared units.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], lr: float, gamma: float = GAMMA) -> None:
        super().__init__(parameters, {"lr": lr, "gamma": gamma})
        self._stds: list[float] | None = None
        if len(self.param_groups) > 1:
            raise UsageError("DP-AdamBC takes one group of parameters: give a list of tensors")
        for p in self.param_groups[0]["params"]:
            self.state[p] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(p),
                "exp_avg_sq": torch.zeros_like(p),
                "noise_sq": p.new_zeros(()),
            }

    def noise_std(self, stds: Sequence[float]) -> None:
        """Say, before every step, how much noise is in its gradients.

        For each parameter tensor, in order, the standard deviation of the noise on each coordinate of its released mean
        gradient: s / N, and alpha_k s / N in the sound step with layer scales, where s is `Mechanism.noise_std(epoch)`
        and N what `release` divides by (see `edp_lab.training.dp_step.noise_stds`). Must be public.
        """
        wanted = len(self.param_groups[0]["params"])
        if len(stds) != wanted:
            raise UsageError(
                f"{len(stds)} noise deviations for {wanted} parameter tensors: give one for each, in order"
            )
        for std in stds:
            if not (math.isfinite(std) and std >= 0):
                raise UsageError(f"a noise deviation of {std}: give a finite number from 0 up")
        self._stds = [float(std) for std in stds]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update, after `noise_std`. No closure: evaluating the loss again would be another release."""
        if self._stds is None:
            raise UsageError("DP-AdamBC does not know the noise of this step: call noise_std(...) before every step()")
        stds, self._stds = self._stds, None
        (group,), (beta1, beta2) = self.param_groups, BETAS
        parameters = group["params"]
        gradients = [p.grad for p in parameters]
        m, v, n, steps = ([self.state[p][k] for p in parameters] for k in ("exp_avg", "exp_avg_sq", "noise_sq", "step"))
        torch._foreach_add_(steps, 1)
        torch._foreach_lerp_(m, gradients, 1 - beta1)
        torch._foreach_mul_(v, beta2)
        torch._foreach_addcmul_(v, gradients, gradients, 1 - beta2)
        torch._foreach_mul_(n, beta2)
        torch._foreach_add_(n, [(1 - beta2) * std**2 for std in stds])
        # The corrections 1 - beta^t go into the floor and the step size, which are single numbers.
        corrections = [(1 - beta1 ** float(t), 1 - beta2 ** float(t)) for t in steps]
        roots = torch._foreach_sub(v, n)
        torch._foreach_maximum_(roots, [group["gamma"] * c2 for _, c2 in corrections])
        torch._foreach_sqrt_(roots)
        torch._foreach_addcdiv_(parameters, m, roots, [-group["lr"] * math.sqrt(c2) / c1 for c1, c2 in corrections])
