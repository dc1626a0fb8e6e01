"""A linear-chain conditional random field over BIO tags: likelihood, best path and marginals.

The forward recursion runs in log space with one matrix product per step, log(exp(a - max a) exp(T)) + max a,
which is faster to differentiate than a broadcast logsumexp and works under ``torch.func.vmap``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from edp_lab.models.ops import PLAIN, PlainOps

# Initial score of transitions that BIO forbids: public knowledge that private training need not learn.
ILLEGAL = -4.0
TINY = 1e-37  # smallest mass of a state; keeps the logarithm finite in float32


class CRF(nn.Module):
    """Scores of K tags: start (K), transitions (K, K) from row to column, end (K).

    In float32 the likelihood holds for emissions of any size, as long as transition scores lie within 80 of
    each other (exp underflows beyond); gradients stay finite even then.

    Args:
        tags: the K tag names, from which transitions into I-x that follow neither B-x nor I-x start at
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

    def negative_log_likelihood(self, emissions: Tensor, tags: Tensor, mask: Tensor, ops: PlainOps = PLAIN) -> Tensor:
        """-log p(tags | emissions) per sequence.

        Args:
            emissions: (G, m, T, K), G groups of m sequences; `ops` gives each group its own copy of the
                scores.
            tags: (G, m, T) integers; whatever stands outside the mask is ignored.
            mask: (G, m, T) booleans, True for the first tokens of each sequence; the first step is taken as
                True.

        Returns:
            (G, m).
        """
        start, transitions, end = (ops.copies(p) for p in (self.start, self.transitions, self.end))
        total = _log_partition(emissions, mask, start, transitions, end)
        return total - _path_score(emissions, tags, mask, start, transitions, end)

    def marginals(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """p(tag at t | emissions): (B, T, K) -> (B, T, K); zero outside the mask."""
        with torch.enable_grad():
            emissions = emissions.detach().requires_grad_()
            scores = [p.detach()[None] for p in (self.start, self.transitions, self.end)]
            total = _log_partition(emissions[None], mask[None], *scores).sum()
            marginals = torch.autograd.grad(total, emissions)[0] * mask[..., None]
            return marginals.clamp(0, 1)  # float32 may exceed 1 by 1e-4 where scores are in the hundreds

    @torch.no_grad()
    def decode(self, emissions: Tensor, mask: Tensor) -> list[list[int]]:
        """The most likely tag sequence of each of B sequences (Viterbi): (B, T, K), (B, T) -> B lists."""
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


def _log_partition(e: Tensor, mask: Tensor, start: Tensor, transitions: Tensor, end: Tensor) -> Tensor:
    """Log of the summed exp(score) of all paths, (G, m)."""
    highest = transitions.detach().amax(dim=(1, 2), keepdim=True)
    weights = (transitions - highest).exp()  # (G, K, K)
    emitted = e.unbind(2)  # one backward pass for all steps, where e[:, :, t] would cost a full tensor each
    a = start[:, None] + emitted[0]
    for t in range(1, len(emitted)):
        peak = a.detach().amax(-1, keepdim=True)
        mass = torch.bmm((a - peak).exp(), weights).clamp_min(TINY)
        a = torch.where(mask[:, :, t, None], mass.log() + peak + highest + emitted[t], a)
    return torch.logsumexp(a + end[:, None], dim=-1)


def _path_score(e: Tensor, tags: Tensor, mask: Tensor, start: Tensor, transitions: Tensor, end: Tensor) -> Tensor:
    """Score of the given paths, (G, m)."""
    group = torch.arange(e.shape[0], device=e.device)[:, None]
    tags = tags.masked_fill(~mask, 0)
    emitted = (e.gather(3, tags[..., None])[..., 0] * mask).sum(-1)
    moved = (transitions[group[..., None], tags[..., :-1], tags[..., 1:]] * mask[..., 1:]).sum(-1)
    last = tags.gather(2, (mask.sum(-1, keepdim=True) - 1).clamp_min(0))[..., 0]
    return start[group, tags[..., 0]] + emitted + moved + end[group, last]
