"""The CRF against enumeration of all paths and pytorch-crf, at scores so large that exp underflows, and its factors.
Gradients of micro-batches: test_bookkeeping.py."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor
from torchcrf import CRF as PeerCRF  # noqa: N811

from edp_lab.models.crf import CRF, ILLEGAL, forward_backward
from edp_lab.models.ghost_clipping.ops import PLAIN

TAGS = ("O", "B-a", "I-a", "B-b", "I-b")


def random_crf(seed: int, tags=TAGS, scale: float = 1.0, dtype=torch.float64) -> CRF:
    generator = torch.Generator().manual_seed(seed)
    crf = CRF(tags).to(dtype)
    for parameter in crf.parameters():
        values = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data = (scale * (2 * values - 1)).to(dtype)
    return crf


def random_batch(seed: int, sequences: int, steps: int, tags: int, scale: float = 2.0):
    """Emissions, tags and mask; the first sequence is the longest, the last has one step."""
    generator = torch.Generator().manual_seed(seed)
    emissions = scale * (2 * torch.rand(sequences, steps, tags, generator=generator, dtype=torch.float64) - 1)
    gold = torch.randint(tags, (sequences, steps), generator=generator)
    lengths = torch.randint(1, steps + 1, (sequences,), generator=generator)
    lengths[0], lengths[-1] = steps, 1
    return emissions, gold, torch.arange(steps) < lengths[:, None]


def nll(crf: CRF, emissions, gold, mask) -> Tensor:
    return PLAIN.crf(emissions, gold, mask, crf)


def peer_of(crf: CRF) -> PeerCRF:
    peer = PeerCRF(len(crf.start), batch_first=True).double()
    peer.start_transitions.data, peer.end_transitions.data = crf.start.data.double(), crf.end.data.double()
    peer.transitions.data = crf.transitions.data.double()
    return peer


def enumerate_paths(crf: CRF, emissions):
    """All paths of one unpadded sequence (T, K), and their scores."""
    steps, tags = emissions.shape
    paths = torch.tensor(list(itertools.product(range(tags), repeat=steps)))
    scores = crf.start[paths[:, 0]] + crf.end[paths[:, -1]] + emissions[torch.arange(steps), paths].sum(1)
    return paths, scores + crf.transitions[paths[:, :-1], paths[:, 1:]].sum(1)


def enumerated_marginals(paths, scores, tags: int = len(TAGS)) -> Tensor:
    found = torch.zeros(paths.shape[1], tags, dtype=torch.float64)
    for t in range(paths.shape[1]):
        found[t].index_add_(0, paths[:, t], scores.softmax(0).detach())
    return found


@pytest.mark.parametrize("seed", range(4))
def test_likelihood_path_and_marginals_equal_enumeration(seed):
    crf = random_crf(seed, scale=3.0)
    emissions, gold, mask = random_batch(seed, 5, 4, len(TAGS))
    loss, marginals = nll(crf, emissions, gold, mask), crf.marginals(emissions, mask)
    decoded = crf.decode(emissions, mask)
    for k, length in enumerate(mask.sum(1).tolist()):
        paths, scores = enumerate_paths(crf, emissions[k, :length])
        chosen = (paths == gold[k, :length]).all(1)
        assert loss[k].item() == pytest.approx(-scores.log_softmax(0)[chosen].item(), abs=1e-10)
        assert decoded[k] == paths[scores.argmax()].tolist()
        torch.testing.assert_close(marginals[k, :length], enumerated_marginals(paths, scores), rtol=0, atol=1e-10)
        assert not marginals[k, length:].any()


def compare_with_peer(crf: CRF, emissions, gold, mask, tolerance: dict[str, float], of_gradients: dict[str, float]):
    """Losses, gradients and paths of pytorch-crf in float64, for the inputs as they are rounded."""
    peer = peer_of(crf)
    ours_at = emissions.to(crf.start.dtype).clone().requires_grad_()
    theirs_at = ours_at.detach().double().requires_grad_()
    ours, theirs = nll(crf, ours_at, gold, mask), -peer(theirs_at, gold, mask=mask, reduction="none")
    torch.testing.assert_close(ours, theirs, **tolerance)
    assert ours.min() >= -1e-8
    weights = torch.rand(len(gold), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    pairs = [(ours_at, theirs_at), (crf.start, peer.start_transitions), (crf.transitions, peer.transitions)]
    for a, b in [*pairs, (crf.end, peer.end_transitions)]:
        torch.testing.assert_close(a.grad.double(), b.grad, **of_gradients)
    exact = theirs_at.detach()
    assert crf.decode(exact, mask) == peer.decode(exact, mask=mask)


@pytest.mark.parametrize("seed", range(6))
def test_agrees_with_pytorch_crf(seed):
    tags = ("O", *(f"{p}-{k}" for k in range(9) for p in "BI"))
    batch = random_batch(seed, 7, 15, len(tags))
    compare_with_peer(random_crf(seed, tags), *batch, {"rtol": 1e-12, "atol": 1e-10}, {"rtol": 0, "atol": 1e-10})


@pytest.mark.parametrize(("emission_scale", "transition_scale"), [(50, 4), (1e4, 4), (50, 175), (1e4, 175)])
def test_float32_survives_large_scores(emission_scale, transition_scale):
    """Scores of tokens may have any size; transitions here lie up to 350 apart. Only the inputs are rounded."""
    single = random_crf(1, scale=transition_scale, dtype=torch.float32)
    batch = random_batch(2, 64, 30, len(TAGS), emission_scale)
    compare_with_peer(single, *batch, {"rtol": 1e-11, "atol": 1e-8}, {"rtol": 1e-6, "atol": 1e-7})


def test_what_stands_outside_the_mask_changes_nothing_and_gets_no_gradient():
    crf = random_crf(0)
    emissions, gold, mask = random_batch(0, 6, 8, len(TAGS))
    junk = torch.where(mask[..., None], emissions, torch.full_like(emissions, 1e6))
    other = torch.where(mask, gold, torch.full_like(gold, -100))  # no tag at all
    assert crf.decode(emissions, mask) == crf.decode(junk, mask)
    assert torch.equal(crf.marginals(emissions, mask), crf.marginals(junk, mask))
    found = []
    for e, tags in ((emissions, gold), (junk, other)):
        losses = nll(crf, e.requires_grad_(), tags, mask)
        found.append([losses, *torch.autograd.grad(losses.sum(), [e, *crf.parameters()])])
        assert not found[-1][1][~mask].any()
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)
    pad = torch.nn.functional.pad
    wider = nll(crf, pad(emissions, (0, 0, 0, 5)), pad(gold, (0, 5)), pad(mask, (0, 5)))
    torch.testing.assert_close(wider, found[0][0], rtol=0, atol=1e-12)


FAR = 350.0
scores = st.floats(-FAR, 0) | st.sampled_from([-FAR, 0.0])
sizes_of_tokens = st.sampled_from([0.0, -5e3, 1e4, -2 * FAR, -2 * FAR + 5, -FAR]) | st.floats(-2 * FAR, 2 * FAR)


@settings(max_examples=200)
@given(
    transitions=arrays.arrays(float, (3, 3), elements=scores),
    emissions=arrays.arrays(float, (4, 3), elements=sizes_of_tokens),
)
def test_transitions_350_apart_lose_no_path(transitions, emissions):
    """A tag may be favoured by the transitions before and after it and hindered by its own score: 2 x 350 at most."""
    crf = CRF(("a", "b", "c")).double()
    crf.transitions.data = torch.from_numpy(transitions)
    e = torch.from_numpy(emissions)
    paths, path_scores = enumerate_paths(crf, e)
    found = forward_backward(e[None], torch.ones(1, 4, dtype=torch.bool), crf.start, crf.transitions, crf.end)
    assert found.log_partition.item() == pytest.approx(path_scores.logsumexp(0).item(), rel=1e-11, abs=1e-9)
    expected = enumerated_marginals(paths, path_scores, 3)
    torch.testing.assert_close(found.marginals[0], expected, rtol=0, atol=1e-9)


@settings(max_examples=50)
@given(st.integers(0, 2**31), st.sampled_from([0.1, 5.0, 100.0]), st.integers(1, 9), st.booleans())
def test_marginals_are_probabilities_and_gradients_finite(seed, scale, steps, single):
    dtype = torch.float32 if single else torch.float64
    crf = random_crf(seed, scale=scale, dtype=dtype)
    emissions, gold, mask = random_batch(seed, 5, steps, len(TAGS), 10 * scale)
    at = emissions.to(dtype).requires_grad_()
    nll(crf, at, gold, mask).sum().backward()
    assert all(torch.isfinite(tensor.grad).all() for tensor in (at, *crf.parameters()))
    marginals = crf.marginals(at, mask)
    assert marginals.dtype is dtype
    assert marginals.min() >= 0
    torch.testing.assert_close(marginals.sum(-1), mask.to(dtype), rtol=0, atol=1e-6 if single else 1e-12)


def test_gradients_stay_finite_beyond_the_supported_range():
    crf = random_crf(1, scale=340, dtype=torch.float32)
    emissions, gold, mask = random_batch(2, 64, 30, len(TAGS), 200)
    at = emissions.float().requires_grad_()
    nll(crf, at, gold, mask).sum().backward()
    assert all(torch.isfinite(tensor.grad).all() for tensor in (at, *crf.parameters()))


def test_initial_scores_forbid_exactly_what_bio_forbids():
    names = ("O", "B-city", "I-city", "B-city.name", "I-city.name", "I-lonely")
    crf = CRF(names)
    for row, before in enumerate(names):
        for column, tag in enumerate(names):
            allowed = tag[0] != "I" or before[2:] == tag[2:]
            assert crf.transitions[row, column].item() == (0.0 if allowed else ILLEGAL)
    assert crf.start.tolist() == [0, 0, ILLEGAL, 0, ILLEGAL, ILLEGAL]
    assert not crf.end.any()


def test_one_tag_and_one_step_work():
    tags, mask = torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.bool)
    assert nll(CRF(("O",)), torch.randn(2, 3, 1), tags, mask).abs().max() < 1e-5
    crf = random_crf(6)
    emissions, gold, mask = random_batch(6, 4, 1, len(TAGS))
    expected = -(crf.start + crf.end + emissions[:, 0]).log_softmax(-1).gather(1, gold)[:, 0]
    torch.testing.assert_close(nll(crf, emissions, gold, mask), expected, rtol=0, atol=1e-12)
