"""The CLC's parts against torch's own, dropout keyed by example, and well-formed predictions. For the independence of
an utterance's loss and gradient from the rest of its batch, see test_bookkeeping.py."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torchcrf import CRF as PeerCRF  # noqa: N811

from edp_lab.corpora.corpus import Utterance
from edp_lab.corpora.encoding import WORD_BYTES, Labels, WordFeatures
from edp_lab.errors import UsageError
from edp_lab.models.clc import CLC, CLCSize
from edp_lab.models.crf import CRF, ILLEGAL, forward_backward
from edp_lab.models.ghost_clipping.ops import PLAIN
from edp_lab.models.intent_slot import dropout
from edp_lab.models.lstm import BiLSTM, Packing, bilstm

TAGS = ("O", "B-a", "I-a", "B-b", "I-b")
INTENTS = ("x", "y", "z")
KEY = 2**120 + 99
TOKENS = (
    ("i",),
    ("play", "música", "now"),
    ("日本語日本語日本語", "ß", "a"),
    ("a", "a", "a", "a", "a"),
    ("x" * WORD_BYTES, "x" * (WORD_BYTES + 1), "x" * (WORD_BYTES - 1)),
    ("🎵", "to", "the", "home", "of", "Ærøskøbing", "and", "back", "again", "by", "noon"),
)
SIZE = CLCSize(hidden=5, layers=2, word=4, character=3, filters=6, dropout=0.5)
EVERY = range(len(TOKENS))


def build(tagged: bool = True, dtype=torch.float64, vectors: Tensor | None = None):
    torch.manual_seed(1)
    labels = Labels(INTENTS, TAGS if tagged else ())
    model = CLC(labels, WordFeatures(("a", "play", "to"), buckets=4), SIZE, vectors).to(dtype)
    for name, parameter in model.named_parameters():  # leave the symmetric initialisation
        if not name.startswith("words"):
            parameter.data += 0.3 * torch.randn_like(parameter)
    rng = np.random.default_rng(0)
    tags = [tuple(rng.choice(TAGS, len(tokens)).tolist()) if tagged else None for tokens in TOKENS]
    return model, model.dataset([Utterance(TOKENS[k], tags[k], INTENTS[k % 3]) for k in EVERY])


def test_a_word_is_spelled_by_its_first_bytes_only_and_padding_has_no_gradient():
    model, data = build()
    gradient = torch.autograd.grad(model.losses(data.batch(EVERY)).sum(), model.characters.weight)[0]
    assert not gradient[0].any(), "row 0 is padding: every word would move it"
    used = {b + 1 for tokens in TOKENS for t in tokens for b in t.encode()[:WORD_BYTES]}
    assert set(gradient.abs().sum(1).nonzero().flatten().tolist()) <= used
    long = [("z" * WORD_BYTES,), ("z" * WORD_BYTES + "q",)]
    features = model.features.rows(long)["characters"].values
    assert (features[0] == features[1]).all()


def test_convolution_equals_torch_conv1d_word_by_word():
    model, data = build()
    batch = data.batch(EVERY)
    ours = model._spelling(batch.inputs["characters"], batch.lengths, PLAIN)
    weight = model.convolution.weight.view(SIZE.filters, 3, SIZE.character).transpose(1, 2)
    for row, word in zip(ours, [t for tokens in TOKENS for t in tokens], strict=True):
        spelled = torch.tensor([b + 1 for b in word.encode()[:WORD_BYTES]])
        x = model.characters.weight[spelled].T[None]
        alone = torch.nn.functional.conv1d(x, weight, model.convolution.bias, padding=1)[0]
        torch.testing.assert_close(row, alone.amax(1).tanh(), rtol=0, atol=1e-12)


def test_the_intent_sees_the_maximum_over_the_utterance_and_the_loss_is_the_papers():
    for tagged in (True, False):
        model, data = build(tagged)
        batch = data.batch([5])
        pooled, tokens = model.encode(batch, PLAIN, None)
        assert torch.equal(pooled[0], tokens.amax(0))
        intent = torch.nn.functional.cross_entropy(model.intent(pooled), batch.intents)
        slots = torch.zeros(())
        if tagged:
            mask = torch.ones(1, len(tokens), dtype=torch.bool)
            slots = PLAIN.crf(model.slots(tokens)[None], batch.tags[None], mask, model.crf)[0]
        for weight in (1.0, 0.25):
            model.intent_weight = weight  # without tags, the intent loss is not weighted
            expected = (weight if tagged else 1) * intent + slots
            torch.testing.assert_close(model.losses(batch)[0], expected, check_dtype=False)


def test_dropout_masks_are_shared_by_tokens_differ_by_example_key_and_place_and_are_unbiased():
    _, data = build()
    batch = data.batch([5, 3, 4])
    rows = int(batch.lengths.sum())
    ones = torch.ones(rows, 400, dtype=torch.float64)
    assert dropout(ones, batch, 0.5, None, 0) is dropout(ones, batch, 0.0, KEY, 0) is ones
    out = dropout(ones, batch, 0.25, KEY, 0)
    assert set(out.unique().tolist()) == {0.0, 1 / 0.75}
    per_example = out.split(batch.lengths.tolist())
    for own in per_example:
        assert (own == own[0]).all()
        assert abs((own[0] > 0).double().mean() - 0.75) < 0.1
    masks = [own[0] for own in per_example]
    masks += [dropout(ones, batch, 0.25, KEY, place)[0] for place in (1, 2)]
    masks += [dropout(ones, batch, 0.25, other, 0)[0] for other in (KEY + 1, KEY ^ 2**64, 0)]
    for a in range(len(masks)):
        for b in range(a):
            assert 0.5 < (masks[a] == masks[b]).double().mean() < 0.75  # 0.625 expected by chance
    pooled = dropout(torch.ones(3, 400, dtype=torch.float64), batch, 0.25, KEY, 0)
    assert torch.equal(pooled, torch.stack([own[0] for own in per_example]))
    assert abs(torch.stack([dropout(ones, batch, 0.5, key, 0) for key in range(100)]).mean() - 1) < 0.02


@pytest.mark.parametrize("tagged", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch_size", [1, 2, 128])
def test_predictions_come_in_order_with_valid_tags_and_probabilities(batch_size, dtype, tagged):
    model, data = build(tagged, dtype)
    assert hasattr(model, "slots") == hasattr(model, "crf") == tagged
    predictions, without = model.predict(data, batch_size), model.predict(data, batch_size, probabilities=False)
    assert all(p.grad is None for p in model.parameters())
    assert not any(x is not None and x.requires_grad for x in model.scores(data.batch([0, 1])))
    assert len(predictions) == len(data)
    for k, (p, u) in enumerate(zip(predictions, data.utterances, strict=True)):
        assert p.intent in INTENTS
        assert len(p.tags) == len(p.tag_probabilities) == (len(u.tokens) if tagged else 0)
        assert set(p.tags) <= set(TAGS)
        assert all(0 <= q <= 1 for q in (p.intent_probability, *p.tag_probabilities))
        alone = model.predict(model.dataset([u]))[0]
        assert (alone.intent, alone.tags) == (p.intent, p.tags), f"utterance {k} got another's prediction"
        assert alone.intent_probability == pytest.approx(p.intent_probability, abs=1e-5)
        assert alone.tag_probabilities == pytest.approx(p.tag_probabilities, abs=1e-5)
        assert without[k] == dataclasses.replace(p, tag_probabilities=())


def test_certain_predictions_have_probability_at_most_1():
    """Float32 rounding of a marginal near 1 must not raise it above 1."""
    model, _ = build(dtype=torch.float32)
    rng = np.random.default_rng(0)
    many = [Utterance(tuple(rng.choice(["a", "play", "q"], 12)), ("O",) * 12, "x") for _ in range(200)]
    for scale in (1.0, 5.0, 50.0):
        model.slots.weight.data *= scale
        for p in model.predict(model.dataset(many)):
            assert all(0 <= q <= 1 for q in (p.intent_probability, *p.tag_probabilities))


def test_vectors_are_frozen_and_other_words_start_at_zero():
    vectors = torch.arange(18, dtype=torch.float64).view(3, 6)
    model, data = build(vectors=vectors)
    assert torch.equal(model.words.weight[:3], vectors)
    assert not model.words.weight[3:].any()
    assert not model.words.weight.requires_grad
    assert torch.isfinite(model.losses(data.batch([1]))).all()
    for count in (2, 4):  # one word too many would shift all hashed words by one row
        with pytest.raises(UsageError, match="one vector per word"):
            build(vectors=torch.zeros(count, 6))


LENGTHS = [[5], [1], [1, 1, 1], [3, 7, 1, 7, 2], [2, 2, 2], [1, 9], [9, 1], [4, 1, 1, 6, 3, 8, 8, 2]]


def to_torch_gates(weight: Tensor) -> Tensor:
    """Our gates are in the order i, f, o, g along dimension 0; torch's are in the order i, f, g, o."""
    i, f, o, g = weight.chunk(4)
    return torch.cat([i, f, g, o])


def torch_lstm(layer: BiLSTM) -> nn.LSTM:
    _, four_hidden, inputs = layer.w_ih.shape
    peer = nn.LSTM(inputs, four_hidden // 4, batch_first=True, bidirectional=True).to(layer.w_ih.dtype)
    for d, suffix in enumerate(("", "_reverse")):
        getattr(peer, f"weight_ih_l0{suffix}").data = to_torch_gates(layer.w_ih.data[d])
        getattr(peer, f"weight_hh_l0{suffix}").data = to_torch_gates(layer.w_hh.data[d])
        getattr(peer, f"bias_ih_l0{suffix}").data = to_torch_gates(layer.bias.data[d])
        getattr(peer, f"bias_hh_l0{suffix}").data.zero_()
    return peer


def run_torch(peer: nn.LSTM, x: Tensor, lengths: Tensor) -> Tensor:
    padded = pad_sequence(list(x.split(lengths.tolist())), batch_first=True)
    packed = pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
    out, _ = pad_packed_sequence(peer(packed)[0], batch_first=True)
    return torch.cat([out[k, :n] for k, n in enumerate(lengths.tolist())])


def random_layer(inputs: int = 4, hidden: int = 3, seed: int = 0, dtype=torch.float64) -> BiLSTM:
    torch.manual_seed(seed)
    layer = BiLSTM(inputs, hidden).to(dtype)
    layer.bias.data.normal_()
    return layer


def apply(layer: BiLSTM, x: Tensor, lengths: Tensor) -> Tensor:
    return bilstm(x, Packing.of(lengths), layer.w_ih, layer.w_hh, layer.bias, PLAIN)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_forward_and_backward_equal_torch(lengths):
    """This includes a second backward pass on a retained graph."""
    lengths = torch.tensor(lengths)
    layer = random_layer(seed=len(lengths))
    peer, x = torch_lstm(layer), torch.randn(int(lengths.sum()), 4, dtype=torch.float64, requires_grad=True)
    ours, theirs = apply(layer, x, lengths), run_torch(peer, x, lengths)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    direction = torch.randn_like(ours)
    theirs.backward(direction)
    for keep in (True, False):
        dx, w_ih, w_hh, bias = torch.autograd.grad(ours, [x, *layer.parameters()], direction, retain_graph=keep)
        torch.testing.assert_close(dx, x.grad, rtol=0, atol=1e-12)
        for d, suffix in enumerate(("", "_reverse")):
            for own, name in ((w_ih, "weight_ih"), (w_hh, "weight_hh"), (bias, "bias_ih")):
                expected = getattr(peer, f"{name}_l0{suffix}").grad
                torch.testing.assert_close(to_torch_gates(own[d]), expected, rtol=0, atol=1e-11)


# The CRF against an enumeration of all paths and pytorch-crf, with scores for which exp underflows, and its factors.
# For gradients of micro-batches, see test_bookkeeping.py.


def random_crf(seed: int, tags=TAGS, scale: float = 1.0, dtype=torch.float64) -> CRF:
    generator = torch.Generator().manual_seed(seed)
    crf = CRF(tags).to(dtype)
    for parameter in crf.parameters():
        values = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data = (scale * (2 * values - 1)).to(dtype)
    return crf


def random_batch(seed: int, sequences: int, steps: int, tags: int, scale: float = 2.0):
    """Emissions, tags and mask; the first sequence has the maximum length, the last has one step."""
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
    """All paths of one unpadded sequence (T, K), and the paths' scores."""
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
    """Compare losses, gradients and paths with those of pytorch-crf in float64, for the same rounded inputs."""
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
    """Scores of tokens can have any size; transitions differ by up to 350 here. Only the inputs are rounded."""
    single = random_crf(1, scale=transition_scale, dtype=torch.float32)
    batch = random_batch(2, 64, 30, len(TAGS), emission_scale)
    compare_with_peer(single, *batch, {"rtol": 1e-11, "atol": 1e-8}, {"rtol": 1e-6, "atol": 1e-7})


def test_what_stands_outside_the_mask_changes_nothing_and_gets_no_gradient():
    crf = random_crf(0)
    emissions, gold, mask = random_batch(0, 6, 8, len(TAGS))
    junk = torch.where(mask[..., None], emissions, torch.full_like(emissions, 1e6))
    other = torch.where(mask, gold, torch.full_like(gold, -100))  # not a valid tag
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
    """The transitions before and after a tag can favour it while its own score opposes it: 2 x 350 at most."""
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
