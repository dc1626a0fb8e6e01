"""A linear-chain conditional random field over BIO tags: log Z, path scores, best path and marginals.

The forward and backward recursions run in probability space, normalised at each step (Rabiner 1989), in float64. They
need one matrix product per step, and a single exponential for all steps. They also yield the gradient explicitly, so
its sum over any group of examples needs no second pass. With forward factors A and backward factors Q, one row per
token, the gradient is d NLL / d transitions = exp(transitions) * (A^T Q) - counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

# Initial score of transitions that BIO forbids. The rule is public, so private training need not learn it.
ILLEGAL = -4.0
TINY = 1e-300  # smallest mass per step, to keep quotients finite


class CRF(nn.Module):
    """CRF parameters for K tags: start (K), transitions (K, K) from row to column, end (K).

    Emissions may have any magnitude. Transition scores must be within 350 of each other, because every token is
    between two transitions and exp underflows for differences above 700.

    Args:
        tags: the K tag names; transitions into I-x from a tag other than B-x and I-x are initialised to
            `ILLEGAL`.
    """

    def __init__(self, tags: Sequence[str]) -> None:
        super().__init__()
        start, transitions = torch.zeros(len(tags)), torch.zeros(len(tags), len(tags))
        for column, tag in enumerate(tags):
            if tag.startswith("I-"):
                allowed = [row for row, before in enumerate(tags) if before in (tag, f"B-{tag[2:]}")]
                start[column] = ILLEGAL
                transitions[:, column] = ILLEGAL
                transitions[allowed, column] = 0.0
        self.start = nn.Parameter(start)
        self.transitions = nn.Parameter(transitions)
        self.end = nn.Parameter(torch.zeros(len(tags)))

    def marginals(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """p(tag at t | emissions): (B, T, K) -> (B, T, K); zero outside the mask."""
        return forward_backward(emissions, mask, self.start, self.transitions, self.end).marginals.to(emissions.dtype)

    @torch.no_grad()
    def decode(self, emissions: Tensor, mask: Tensor) -> list[list[int]]:
        """Find the most likely tag sequence of each example (Viterbi): (B, T, K), (B, T) -> B lists."""
        best, back = self.start + emissions[:, 0], []
        for t in range(1, emissions.shape[1]):
            score, origin = (best[:, :, None] + self.transitions).max(dim=1)
            running = mask[:, t, None]
            best = torch.where(running, score + emissions[:, t], best)
            back.append(torch.where(running, origin, torch.arange(len(self.start), device=origin.device)))
        tag = (best + self.end).argmax(1)
        path = [tag]
        for origin in reversed(back):
            tag = origin.gather(1, tag[:, None])[:, 0]
            path.append(tag)
        rows = torch.stack(path[::-1], dim=1).tolist()
        return [row[:length] for row, length in zip(rows, mask.sum(1).tolist(), strict=True)]


class Recursion(NamedTuple):
    """Results of both recursions, float64.

    Attributes:
        log_partition: (B) log of the sum of exp(score) over all paths.
        marginals: (B, T, K) p(tag at t), zero outside the mask.
        before, after: (B, T - 1, K) A and Q: p(tag i at t, tag j at t + 1) = A_ti exp(transition_ij - highest) Q_tj;
            zero if t + 1 is outside the mask.
        highest: the largest transition score.
    """

    log_partition: Tensor
    marginals: Tensor
    before: Tensor
    after: Tensor
    highest: Tensor


@torch.no_grad()
def forward_backward(emissions: Tensor, mask: Tensor, start: Tensor, transitions: Tensor, end: Tensor) -> Recursion:
    """Forward and backward recursions: emissions (B, T, K); mask (B, T), a non-empty prefix of each sequence."""
    inside = mask.clone()
    inside[:, 0] = True
    running = inside.T[:, :, None]  # (T, B, 1)
    e = emissions.transpose(0, 1).double().masked_fill(~running, 0.0)
    e[0] += start
    last = inside.sum(1) - 1
    e[last, torch.arange(len(last), device=e.device)] += end
    peak = e.amax(-1, keepdim=True)
    e = (e - peak).exp_()  # (T, B, K)
    highest = transitions.detach().amax().double()
    weights = (transitions.double() - highest).exp()
    mass = torch.ones_like(peak)
    a = [_normalised(e[0], mass[0])]
    for t in range(1, len(e)):
        a.append(torch.where(running[t], _normalised((a[-1] @ weights) * e[t], mass[t]), a[-1]))
    forward = torch.stack(a)
    q = torch.zeros_like(e)  # e_t b_t / mass_t
    b = torch.ones_like(e[0])
    marginals = torch.empty_like(e)
    for t in range(len(e) - 1, -1, -1):
        torch.mul(forward[t], b, out=marginals[t])
        if t:
            torch.mul(e[t], b, out=q[t]).div_(mass[t])
            b = torch.where(running[t], q[t] @ weights.T, b)
    steps = running[1:]
    log_partition = (mass.log() + peak).mul_(running).sum((0, 2)) + highest * last
    return Recursion(
        log_partition,
        marginals.mul_(running).transpose(0, 1),
        (forward[:-1] * steps).transpose(0, 1),
        (q[1:] * steps).transpose(0, 1),
        highest,
    )


def _normalised(a: Tensor, mass: Tensor) -> Tensor:
    """Normalise the rows of `a` (B, K) to sums of 1, and write the original sums to `mass` (B, 1)."""
    torch.sum(a, -1, keepdim=True, out=mass).clamp_min_(TINY)
    return a / mass


def path_score(e: Tensor, tags: Tensor, mask: Tensor, start: Tensor, transitions: Tensor, end: Tensor) -> Tensor:
    """Score of the given paths, float64: emissions (B, T, K), tags (B, T) -> (B)."""
    emitted = (e.double().gather(2, tags[..., None])[..., 0] * mask).sum(-1)
    moved = (transitions.double()[tags[:, :-1], tags[:, 1:]] * mask[:, 1:]).sum(-1)
    last = tags.gather(1, (mask.sum(-1, keepdim=True) - 1).clamp_min(0))[:, 0]
    return start.double()[tags[:, 0]] + emitted + moved + end.double()[last]
