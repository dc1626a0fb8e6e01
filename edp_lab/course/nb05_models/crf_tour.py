"""The CRF panel of ``05_data_and_models.ipynb``: five words, five tags, and every path through them. No widgets.

    view = crf_view("B-date", "I-name", -4.0, "april", "B-date", 0.0)    # Viterbi path, marginals, likeliest paths

Decoding and both recursions are `edp_lab.models.crf`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edp_lab.errors import UsageError
from edp_lab.models.crf import CRF, forward_backward, path_score

WORDS = ("call", "april", "smith", "on", "sunday")
TAGS = ("O", "B-name", "I-name", "B-date", "I-date")
TRUE_TAGS = ("O", "B-name", "I-name", "O", "B-date")
EMISSIONS = (  # what a tagger that sees one word at a time might say; one row per word, in the order of TAGS
    (4.0, -1.0, -2.0, -1.0, -2.0),
    (-2.0, 1.5, 0.0, 2.3, -1.0),
    (-1.0, 1.0, 2.0, -2.0, -1.5),
    (4.0, -2.0, -2.0, 0.0, 0.0),
    (-1.0, 0.0, 0.5, 3.0, 1.0),
)
LEARNT = {("B-name", "I-name"): 1.0, ("B-date", "I-date"): 0.5}  # added to the CRF's initial transitions


@dataclass(frozen=True, eq=False)
class CrfView:
    """Five words under a CRF of five tags, one transition and one emission of which may be changed.

    Attributes:
        emissions: (T, K) scores of each tag for each word.
        transitions: (K, K) from row to column; start: (K).
        path: the best one (Viterbi); alone: the best tag of each word by itself.
        marginals: (T, K) p(tag at t), by forward-backward.
        log_partition: log of the summed exp(score) of all K^T paths.
        best: the five likeliest paths and their probabilities.
        loss: -log p(true path), what training makes small.
    """

    emissions: NDArray[np.float64]
    transitions: NDArray[np.float64]
    start: NDArray[np.float64]
    path: tuple[str, ...]
    alone: tuple[str, ...]
    marginals: NDArray[np.float64]
    log_partition: float
    best: tuple[tuple[tuple[str, ...], float], ...]
    loss: float


def toy_crf() -> CRF:
    """The CRF of the panel: BIO's forbidden transitions, and two that it has learnt."""
    crf = CRF(TAGS)
    with torch.no_grad():
        for (before, after), score in LEARNT.items():
            crf.transitions[TAGS.index(before), TAGS.index(after)] += score
    return crf


def crf_view(before: str, after: str, transition: float, word: str, tag: str, emission: float) -> CrfView:
    """The CRF with one transition *set* to a score, and something *added* to one emission.

    Raises:
        UsageError: an unknown tag or word; scores beyond +-100.
    """
    places = [_place(name, TAGS, "tag") for name in (before, after, tag)]
    for score in (transition, emission):
        if not -100 <= score <= 100:
            raise UsageError(f"a score of {score}: take one from -100 to 100")
    crf, emissions = toy_crf(), torch.tensor([EMISSIONS], dtype=torch.float64)
    emissions[0, _place(word, WORDS, "word"), places[2]] += emission
    with torch.no_grad():
        crf.transitions[places[0], places[1]] = transition
    mask = torch.ones(1, len(WORDS), dtype=torch.bool)
    found = forward_backward(emissions, mask, crf.start, crf.transitions, crf.end)
    probabilities = (_scores(crf, emissions, _all_paths()) - found.log_partition).exp()
    order = probabilities.argsort(descending=True)[:5].tolist()
    true = torch.tensor([[TAGS.index(name) for name in TRUE_TAGS]])
    return CrfView(
        emissions[0].numpy(),
        crf.transitions.detach().double().numpy(),
        crf.start.detach().double().numpy(),
        _named(crf.decode(emissions, mask)[0]),
        _named(emissions[0].argmax(1).tolist()),
        found.marginals[0].numpy(),
        float(found.log_partition),
        tuple((_named(_all_paths()[k].tolist()), float(probabilities[k])) for k in order),
        float(found.log_partition - _scores(crf, emissions, true)),
    )


def _scores(crf: CRF, emissions: Tensor, paths: Tensor) -> Tensor:
    """Of many paths (P, T) of one sequence: (P)."""
    every = emissions.expand(len(paths), -1, -1)
    mask = torch.ones_like(paths, dtype=torch.bool)
    with torch.no_grad():
        return path_score(every, paths, mask, crf.start, crf.transitions, crf.end)


@lru_cache(maxsize=1)
def _all_paths() -> Tensor:
    """(K^T, T)."""
    return torch.tensor(list(product(range(len(TAGS)), repeat=len(WORDS))))


def _named(path: Sequence[int]) -> tuple[str, ...]:
    return tuple(TAGS[tag] for tag in path)


def _place(name: str, known: Sequence[str], what: str) -> int:
    if name not in known:
        raise UsageError(f"unknown {what} {name!r}: choose {', '.join(known)}")
    return known.index(name)
