"""The CRF against enumeration of all paths and pytorch-crf, in float32 at large scores, and under vmap."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.func import functional_call, grad, vmap
from torchcrf import CRF as PeerCRF  # noqa: N811

from edp_lab.models.crf import CRF, ILLEGAL
from edp_lab.models.ops import PLAIN, DeviceOps

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


def nll(crf: CRF, emissions, gold, mask):
    return crf.negative_log_likelihood(emissions[None], gold[None], mask[None])[0]


def enumerate_paths(crf: CRF, emissions):
    """All paths of one unpadded sequence (T, K), and their scores."""
    steps, tags = emissions.shape
    paths = torch.tensor(list(itertools.product(range(tags), repeat=steps)))
    scores = crf.start[paths[:, 0]] + crf.end[paths[:, -1]] + emissions[torch.arange(steps), paths].sum(1)
    return paths, scores + crf.transitions[paths[:, :-1], paths[:, 1:]].sum(1)


@pytest.mark.parametrize("seed", range(4))
def test_likelihood_path_and_marginals_equal_enumeration(seed):
    crf = random_crf(seed, scale=3.0)
    emissions, gold, mask = random_batch(seed, 5, 4, len(TAGS))
    loss, decoded, marginals = (
        nll(crf, emissions, gold, mask),
        crf.decode(emissions, mask),
        crf.marginals(emissions, mask),
    )
    for k, length in enumerate(mask.sum(1).tolist()):
        paths, scores = enumerate_paths(crf, emissions[k, :length])
        chosen = (paths == gold[k, :length]).all(1)
        assert loss[k].item() == pytest.approx(-scores.log_softmax(0)[chosen].item(), abs=1e-10)
        assert decoded[k] == paths[scores.argmax()].tolist()
        expected = torch.zeros(length, len(TAGS), dtype=torch.float64)
        for t in range(length):
            expected[t].index_add_(0, paths[:, t], scores.softmax(0).detach())
        torch.testing.assert_close(marginals[k, :length], expected, rtol=0, atol=1e-10)
        assert not marginals[k, length:].any()


@pytest.mark.parametrize("seed", range(6))
def test_agrees_with_pytorch_crf(seed):
    tags = ("O", *(f"{p}-{k}" for k in range(9) for p in "BI"))
    crf, peer = random_crf(seed, tags), PeerCRF(len(tags), batch_first=True).double()
    peer.start_transitions.data, peer.end_transitions.data = crf.start.data.clone(), crf.end.data.clone()
    peer.transitions.data = crf.transitions.data.clone()
    emissions, gold, mask = random_batch(seed, 7, 15, len(tags))
    ours_at, theirs_at = emissions.clone().requires_grad_(), emissions.clone().requires_grad_()
    ours, theirs = nll(crf, ours_at, gold, mask), -peer(theirs_at, gold, mask=mask, reduction="none")
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-10)
    weights = torch.rand(7, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    torch.testing.assert_close(ours_at.grad, theirs_at.grad, rtol=0, atol=1e-10)
    for a, b in (
        (crf.start, peer.start_transitions),
        (crf.transitions, peer.transitions),
        (crf.end, peer.end_transitions),
    ):
        torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=1e-10)
    assert crf.decode(emissions, mask) == peer.decode(emissions, mask=mask)


def test_what_stands_outside_the_mask_changes_nothing():
    crf = random_crf(0)
    emissions, gold, mask = random_batch(0, 6, 8, len(TAGS))
    junk = torch.where(mask[..., None], emissions, torch.full_like(emissions, 1e6))
    other = torch.where(mask, gold, torch.full_like(gold, 4))
    assert torch.equal(nll(crf, emissions, gold, mask), nll(crf, junk, other, mask))
    assert crf.decode(emissions, mask) == crf.decode(junk, mask)
    assert torch.equal(crf.marginals(emissions, mask), crf.marginals(junk, mask))
    wider = (
        torch.nn.functional.pad(emissions, (0, 0, 0, 5)),
        torch.nn.functional.pad(gold, (0, 5)),
        torch.nn.functional.pad(mask, (0, 5)),
    )
    torch.testing.assert_close(nll(crf, *wider), nll(crf, emissions, gold, mask), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("emission_scale", "transition_scale"), [(50, 4), (200, 4), (50, 40), (200, 40)])
def test_float32_survives_large_scores(emission_scale, transition_scale):
    """Transitions stay within 80 of each other; see the CRF's docstring."""
    single = random_crf(1, scale=transition_scale, dtype=torch.float32)
    peer = PeerCRF(len(TAGS), batch_first=True).double()
    peer.start_transitions.data, peer.end_transitions.data = (
        single.start.data.double(),
        single.end.data.double(),
    )
    peer.transitions.data = single.transitions.data.double()
    emissions, gold, mask = random_batch(2, 64, 30, len(TAGS), emission_scale)
    ours_at, theirs_at = emissions.float().requires_grad_(), emissions.float().double().requires_grad_()
    ours, theirs = nll(single, ours_at, gold, mask), -peer(theirs_at, gold, mask=mask, reduction="none")
    assert ours.min() >= -2e-2  # a path's score is a difference of numbers near 30 x 200
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=2e-2)
    ours.sum().backward()
    theirs.sum().backward()
    torch.testing.assert_close(ours_at.grad.double(), theirs_at.grad, rtol=0, atol=5e-3)
    torch.testing.assert_close(single.transitions.grad.double(), peer.transitions.grad, rtol=0, atol=5e-2)
    marginals = single.marginals(emissions.float(), mask)
    assert marginals.min() >= 0
    torch.testing.assert_close(marginals.sum(-1), mask.float(), rtol=0, atol=1e-3)


def test_gradients_stay_finite_beyond_the_supported_range():
    crf = random_crf(1, scale=200, dtype=torch.float32)
    emissions, gold, mask = random_batch(2, 64, 30, len(TAGS), 200)
    at = emissions.float().requires_grad_()
    nll(crf, at, gold, mask).sum().backward()
    for tensor in (at.grad, crf.start.grad, crf.transitions.grad, crf.end.grad):
        assert torch.isfinite(tensor).all()


def test_gradcheck():
    crf = random_crf(3)
    emissions, gold, mask = random_batch(3, 3, 5, len(TAGS))

    def loss(e, start, transitions, end):
        return functional_call(
            _Loss(crf), {"crf.start": start, "crf.transitions": transitions, "crf.end": end}, (e, gold, mask)
        )

    inputs = [p.detach().clone().requires_grad_() for p in (emissions, crf.start, crf.transitions, crf.end)]
    assert torch.autograd.gradcheck(loss, inputs)


class _Loss(torch.nn.Module):
    def __init__(self, crf: CRF) -> None:
        super().__init__()
        self.crf = crf

    def forward(self, emissions, gold, mask):
        return nll(self.crf, emissions, gold, mask)


def test_per_example_gradients_by_vmap_equal_a_loop():
    crf = random_crf(4)
    module, parameters = _Loss(crf), {f"crf.{k}": p.detach() for k, p in crf.named_parameters()}
    emissions, gold, mask = random_batch(4, 6, 7, len(TAGS))

    def loss(p, e, g, m):
        return functional_call(module, p, (e[None], g[None], m[None]))[0]

    together = vmap(grad(loss), in_dims=(None, 0, 0, 0))(parameters, emissions, gold, mask)
    for k in range(6):
        alone = grad(loss)(parameters, emissions[k], gold[k], mask[k])
        for name, value in alone.items():
            torch.testing.assert_close(together[name][k], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("groups", [2, 4])
def test_groups_equal_separate_calls_with_separate_gradients(groups):
    crf = random_crf(5)
    emissions, gold, mask = random_batch(5, 3 * groups, 6, len(TAGS))
    parameters = list(crf.parameters())
    buffer = torch.full((groups, sum(p.numel() for p in parameters)), torch.nan, dtype=torch.float64)
    ops = DeviceOps(parameters, [3] * groups, buffer)
    shape = (groups, 3, 6)
    grouped = crf.negative_log_likelihood(emissions.view(*shape, -1), gold.view(shape), mask.view(shape), ops)
    grouped.sum().backward()
    ops.finish()
    for g in range(groups):
        own = slice(3 * g, 3 * g + 3)
        alone = nll(crf, emissions[own], gold[own], mask[own])
        torch.testing.assert_close(grouped[g], alone, rtol=0, atol=1e-12)
        expected = torch.cat([x.flatten() for x in torch.autograd.grad(alone.sum(), parameters)])
        torch.testing.assert_close(buffer[g], expected, rtol=0, atol=1e-12)
    assert all(p.grad is None for p in parameters)


def test_initial_scores_forbid_exactly_what_bio_forbids():
    crf = CRF(("O", "B-city", "I-city", "B-city.name", "I-city.name", "I-lonely"))
    names = ("O", "B-city", "I-city", "B-city.name", "I-city.name", "I-lonely")
    legal_before = {
        "I-city": {"B-city", "I-city"},
        "I-city.name": {"B-city.name", "I-city.name"},
        "I-lonely": {"I-lonely"},
    }
    for row, before in enumerate(names):
        for column, tag in enumerate(names):
            allowed = tag not in legal_before or before in legal_before[tag]
            assert crf.transitions[row, column].item() == (0.0 if allowed else ILLEGAL)
    assert crf.start.tolist() == [0, 0, ILLEGAL, 0, ILLEGAL, ILLEGAL]
    assert not crf.end.any()
    assert all(p.requires_grad for p in crf.parameters())


def test_one_tag_and_one_step_work():
    crf = CRF(("O",))
    assert (
        nll(crf, torch.randn(2, 3, 1), torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.bool))
        .abs()
        .max()
        < 1e-5
    )
    crf = random_crf(6)
    emissions, gold, mask = random_batch(6, 4, 1, len(TAGS))
    expected = -(crf.start + crf.end + emissions[:, 0]).log_softmax(-1).gather(1, gold)[:, 0]
    torch.testing.assert_close(nll(crf, emissions, gold, mask), expected, rtol=0, atol=1e-12)


def test_plain_ops_leave_one_group_with_ordinary_gradients():
    crf = random_crf(7)
    emissions, gold, mask = random_batch(7, 4, 5, len(TAGS))
    crf.negative_log_likelihood(emissions[None], gold[None], mask[None], PLAIN).sum().backward()
    assert all(p.grad is not None for p in crf.parameters())
    # Expected counts minus observed counts: the scores of a step sum to zero, so do the start scores'
    # gradients.
    assert crf.start.grad.sum().abs() < 1e-10
    assert crf.end.grad.sum().abs() < 1e-10
