"""An utterance's loss and gradient are its own: nothing of its batch leaks in; predictions are well formed; and the
hand-written bidirectional LSTM is torch.nn.LSTM on packed sequences."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from edp_lab.corpora.corpus import Utterance
from edp_lab.corpora.encoding import WORD_BYTES, Labels, WordFeatures
from edp_lab.errors import UsageError
from edp_lab.models.clc import CLC, BiLSTM, CLCSize, Packing, bilstm
from edp_lab.models.ghost_clipping.ops import PLAIN
from edp_lab.models.intent_slot import dropout

TAGS = ("O", "B-a", "I-a", "B-b", "I-b")
INTENTS = ("x", "y", "z")
KEY = 2**120 + 99

# Short and long neighbours, in tokens and in bytes: alone, next to a long word, cut at the byte limit,
# non-ASCII (also cut in the middle of a character), repeated words (ties of the maximum), one letter.
TOKENS = (
    ("i",),
    ("play", "música", "now"),
    ("antidisestablishmentarianism",),
    ("日本語日本語日本語", "ß", "a"),
    ("a", "a", "a", "a", "a"),
    ("go",),
    ("x" * WORD_BYTES, "x" * (WORD_BYTES + 1), "x" * (WORD_BYTES - 1)),
    ("🎵", "to", "the", "home", "of", "Ærøskøbing", "and", "back", "again", "by", "noon"),
    ("aaaa", "aaaaaaaa"),
)
SIZE = CLCSize(hidden=5, layers=2, word=4, character=3, filters=6, dropout=0.5)


def utterances(tagged: bool = True) -> list[Utterance]:
    generator = torch.Generator().manual_seed(0)
    result = []
    for k, tokens in enumerate(TOKENS):
        tags = tuple(TAGS[t] for t in torch.randint(len(TAGS), (len(tokens),), generator=generator).tolist())
        result.append(Utterance(tokens, tags if tagged else None, INTENTS[k % 3]))
    return result


def build(tagged: bool = True, dtype=torch.float64, vectors: Tensor | None = None):
    torch.manual_seed(1)
    labels = Labels(INTENTS, TAGS if tagged else ())
    model = CLC(labels, WordFeatures(("a", "play", "to"), buckets=4), SIZE, vectors).to(dtype)
    for name, parameter in model.named_parameters():  # leave the symmetric start behind
        if not name.startswith("words"):
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model, model.dataset(utterances(tagged))


def loss_and_gradient(model, data, batch: list[int], position: int, key: int | None) -> tuple[Tensor, Tensor]:
    """Loss of the example at `position` of a batch and its gradient in all parameters, flat."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    loss = model.losses(data.batch(batch), dropout_key=key)[position]
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    pairs = zip(gradients, parameters, strict=True)
    return loss.detach(), torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "dropout"])
@pytest.mark.parametrize("tagged", [True, False], ids=["tags", "intents only"])
@pytest.mark.parametrize("example", range(len(TOKENS)))
def test_an_utterance_is_the_same_alone_and_in_any_company(example, tagged, key):
    model, data = build(tagged)
    loss, gradient = loss_and_gradient(model, data, [example], 0, key)
    assert torch.isfinite(gradient).all()
    assert gradient.norm() > 1e-3
    others = [k for k in range(len(TOKENS)) if k != example]
    short, long = (
        [k for k in others if len(TOKENS[k]) == 1],
        [7 if example != 7 else 6, 2 if example != 2 else 3],
    )
    companies = [short, long, others, [example], [example, *others]]  # even next to itself
    for company in companies:
        for position in {0, len(company) // 2, len(company)}:
            batch = [*company[:position], example, *company[position:]]
            other_loss, other_gradient = loss_and_gradient(model, data, batch, position, key)
            torch.testing.assert_close(other_loss, loss, rtol=0, atol=1e-10)
            torch.testing.assert_close(other_gradient, gradient, rtol=0, atol=1e-10)


def test_a_word_is_spelled_by_its_first_bytes_only_and_padding_has_no_gradient():
    model, data = build()
    gradient = torch.autograd.grad(model.losses(data.batch(range(len(TOKENS)))).sum(), model.characters.weight)[0]
    assert not gradient[0].any(), "row 0 is padding: every word would move it"
    used = {b + 1 for tokens in TOKENS for t in tokens for b in t.encode()[:WORD_BYTES]}
    assert set(gradient.abs().sum(1).nonzero().flatten().tolist()) <= used
    long = [("z" * WORD_BYTES,), ("z" * WORD_BYTES + "q",)]
    features = model.features.rows(long)["characters"].values
    assert (features[0] == features[1]).all()


def test_convolution_equals_torch_conv1d_word_by_word():
    model, data = build()
    batch = data.batch(range(len(TOKENS)))
    ours = model._spelling(batch.inputs["characters"], batch.lengths, PLAIN)
    weight = model.convolution.weight.view(SIZE.filters, 3, SIZE.character).transpose(1, 2)
    words = [t for tokens in TOKENS for t in tokens]
    for row, word in zip(ours, words, strict=True):
        spelled = torch.tensor([b + 1 for b in word.encode()[:WORD_BYTES]])
        x = model.characters.weight[spelled].T[None]
        alone = torch.nn.functional.conv1d(x, weight, model.convolution.bias, padding=1)[0]
        torch.testing.assert_close(row, alone.amax(1).tanh(), rtol=0, atol=1e-12)


def test_the_intent_sees_the_maximum_over_the_utterance_and_the_loss_is_the_papers():
    model, data = build()
    batch = data.batch([7])
    pooled, tokens = model.encode(batch, PLAIN, None)
    assert torch.equal(pooled[0], tokens.amax(0))
    intent = torch.nn.functional.cross_entropy(model.intent(pooled), batch.intents)
    mask = torch.ones(1, len(tokens), dtype=torch.bool)
    slots = PLAIN.crf(model.slots(tokens)[None], batch.tags[None], mask, model.crf)[0]
    torch.testing.assert_close(model.losses(batch)[0], intent + slots)
    model.intent_weight = 0.25
    torch.testing.assert_close(model.losses(batch)[0], 0.25 * intent + slots)
    untagged, same = build(tagged=False)
    untagged.intent_weight = 0.25  # beside what it would count less, there is nothing
    pooled, _ = untagged.encode(same.batch([7]), PLAIN, None)
    torch.testing.assert_close(
        untagged.losses(same.batch([7]))[0],
        torch.nn.functional.cross_entropy(untagged.intent(pooled), batch.intents),
    )


def test_gradcheck_of_the_whole_model():
    model, data = build()
    names = [name for name, _ in model.named_parameters()]
    batch = data.batch([0, 1, 3, 5])

    def losses(*parameters):
        return torch.func.functional_call(
            _Losses(model), {f"model.{n}": p for n, p in zip(names, parameters, strict=True)}, (batch,)
        )

    inputs = [p.detach().clone().requires_grad_() for p in model.parameters()]
    assert torch.autograd.gradcheck(losses, inputs, fast_mode=True)


class _Losses(torch.nn.Module):
    def __init__(self, model) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch):
        return self.model.losses(batch, dropout_key=KEY)


# Dropout


def test_dropout_masks_are_shared_by_tokens_and_differ_by_example_key_and_place():
    _, data = build()
    batch = data.batch([7, 3, 4])
    rows = int(batch.lengths.sum())
    ones = torch.ones(rows, 400, dtype=torch.float64)
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
            assert 0.5 < (masks[a] == masks[b]).double().mean() < 0.75  # 0.625 by chance
    pooled = dropout(torch.ones(3, 400, dtype=torch.float64), batch, 0.25, KEY, 0)
    assert torch.equal(pooled, torch.stack([own[0] for own in per_example]))


def test_places_and_examples_cannot_stand_in_for_each_other():
    """One sum and one xor of key, place and row gave example 0 at place 1 the mask of 1 at 0."""
    _, data = build()
    for key in (0, 0x9E3779B97F4A7C15, KEY):
        masks = set()
        for place in range(3):
            out = dropout(torch.ones(len(TOKENS), 64), data.batch(range(len(TOKENS))), 0.5, key, place)
            masks |= {tuple(row) for row in (out > 0).tolist()}
        assert len(masks) == 3 * len(TOKENS)


def test_dropout_is_unbiased_and_off_without_key_or_rate():
    _, data = build()
    batch = data.batch(range(len(TOKENS)))
    x = torch.ones(len(TOKENS), 64, dtype=torch.float64)
    assert dropout(x, batch, 0.5, None, 0) is x
    assert dropout(x, batch, 0.0, KEY, 0) is x
    mean = torch.stack([dropout(x, batch, 0.5, key, 0) for key in range(300)]).mean()
    assert abs(mean - 1) < 0.02


def test_losses_repeat_with_a_key_and_change_with_it():
    model, data = build()
    batch = data.batch(range(len(TOKENS)))
    assert torch.equal(model.losses(batch, dropout_key=KEY), model.losses(batch, dropout_key=KEY))
    assert not torch.equal(model.losses(batch, dropout_key=KEY), model.losses(batch, dropout_key=KEY + 1))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    model.losses(batch, dropout_key=KEY)
    assert torch.equal(torch.get_rng_state(), before), "torch's own generator must not be used"


# Predictions


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch_size", [1, 2, 128])
def test_predictions_come_in_order_with_valid_tags_and_probabilities(batch_size, dtype):
    model, data = build(dtype=dtype)
    predictions = model.predict(data, batch_size)
    assert len(predictions) == len(data)
    for k, (p, u) in enumerate(zip(predictions, data.utterances, strict=True)):
        assert p.intent in INTENTS
        assert len(p.tags) == len(p.tag_probabilities) == len(u.tokens)
        assert set(p.tags) <= set(TAGS)
        assert all(0 <= q <= 1 for q in (p.intent_probability, *p.tag_probabilities))
        alone = model.predict(model.dataset([u]))[0]
        assert (alone.intent, alone.tags) == (p.intent, p.tags), f"utterance {k} got another's prediction"
        assert alone.intent_probability == pytest.approx(p.intent_probability, abs=1e-5)
        assert alone.tag_probabilities == pytest.approx(p.tag_probabilities, abs=1e-5)
        without = model.predict(data, batch_size, probabilities=False)[k]
        assert without == dataclasses.replace(p, tag_probabilities=())


def test_certain_predictions_have_probability_at_most_1():
    """Float32 rounding of a marginal near 1 must not exceed it."""
    model, _ = build(dtype=torch.float32)
    rng = np.random.default_rng(0)
    many = [Utterance(tuple(rng.choice(["a", "play", "q"], 12)), ("O",) * 12, "x") for _ in range(200)]
    for scale in (1.0, 5.0, 50.0):
        model.slots.weight.data *= scale
        for p in model.predict(model.dataset(many)):
            assert all(0 <= q <= 1 for q in (p.intent_probability, *p.tag_probabilities))


def test_a_corpus_without_tags_has_no_slot_head_and_predicts_intents():
    model, data = build(tagged=False)
    assert not hasattr(model, "slots")
    assert not hasattr(model, "crf")
    for p in model.predict(data, 4):
        assert p.tags == p.tag_probabilities == ()
        assert p.intent in INTENTS


def test_prediction_leaves_no_gradient_and_no_graph():
    model, data = build()
    model.predict(data)
    assert all(p.grad is None for p in model.parameters())
    log_intent, emissions, _mask = model.scores(data.batch([0, 1]))
    assert not log_intent.requires_grad
    assert not emissions.requires_grad


def test_unseen_words_and_characters_predict_like_any_other():
    model, _ = build()
    strange = [Utterance(("\x00", "\U0010ffff", "İ", "ﬃ", "\ud83d"), None, "x")]
    untagged = build(tagged=False)[0]
    assert len(untagged.predict(untagged.dataset(strange))) == 1
    data = model.dataset([dataclasses.replace(strange[0], tags=("O",) * 5)])
    assert torch.isfinite(model.losses(data.batch([0]))).all()


def test_vectors_are_frozen_and_other_words_start_at_zero():
    vectors = torch.arange(18, dtype=torch.float64).view(3, 6)
    model, data = build(vectors=vectors)
    assert torch.equal(model.words.weight[:3], vectors)
    assert not model.words.weight[3:].any()
    assert "words.weight" not in {name for name, p in model.named_parameters() if p.requires_grad}
    loss, gradient = loss_and_gradient(model, data, [1], 0, None)
    assert torch.isfinite(loss)
    assert gradient.any()


@pytest.mark.parametrize("count", [2, 4])
def test_one_vector_per_word_or_none_at_all(count):
    """One too many would move all hashed words by one row."""
    with pytest.raises(UsageError, match="one vector per word"):
        CLC(Labels(INTENTS, TAGS), WordFeatures(("a", "play", "to"), buckets=4), SIZE, torch.zeros(count, 6))


# The LSTM


LENGTHS = [[5], [1], [1, 1, 1], [3, 7, 1, 7, 2], [2, 2, 2], [1, 9], [9, 1], [4, 1, 1, 6, 3, 8, 8, 2]]


def to_torch_gates(weight: Tensor) -> Tensor:
    """Our gates stand in the order i, f, o, g along dimension 0; torch's in the order i, f, g, o."""
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
    lengths = torch.tensor(lengths)
    layer = random_layer(seed=len(lengths))
    peer = torch_lstm(layer)
    x = torch.randn(int(lengths.sum()), 4, dtype=torch.float64)
    ours_at, theirs_at = x.clone().requires_grad_(), x.clone().requires_grad_()
    ours, theirs = apply(layer, ours_at, lengths), run_torch(peer, theirs_at, lengths)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    direction = torch.randn_like(ours)
    ours.backward(direction)
    theirs.backward(direction)
    torch.testing.assert_close(ours_at.grad, theirs_at.grad, rtol=0, atol=1e-12)
    for d, suffix in enumerate(("", "_reverse")):
        for own, name in ((layer.w_ih, "weight_ih"), (layer.w_hh, "weight_hh"), (layer.bias, "bias_ih")):
            expected = getattr(peer, f"{name}_l0{suffix}").grad
            torch.testing.assert_close(to_torch_gates(own.grad[d]), expected, rtol=0, atol=1e-11)


def test_two_layers_equal_torch_in_float32():
    lengths = torch.tensor([3, 12, 1, 5])
    first, second = random_layer(6, 8, 1, torch.float32), random_layer(16, 8, 2, torch.float32)
    x = torch.randn(21, 6)
    ours = apply(second, apply(first, x, lengths), lengths)
    theirs = run_torch(torch_lstm(second), run_torch(torch_lstm(first), x, lengths), lengths)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_frozen_inputs_and_weights_are_passed_over():
    layer, lengths = random_layer(), torch.tensor([2, 3])
    x = torch.randn(5, 4, dtype=torch.float64)
    layer.w_hh.requires_grad_(False)
    apply(layer, x, lengths).sum().backward()
    assert layer.w_hh.grad is None
    assert layer.w_ih.grad is not None
    assert x.grad is None


def test_a_second_derivative_is_refused_rather_than_wrong():
    """The backward pass is written by hand and is not differentiable itself."""
    layer, lengths = random_layer(), torch.tensor([2, 3])
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    first = torch.autograd.grad(apply(layer, x, lengths).square().sum(), x, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.square().sum().backward()


def test_backward_may_run_twice_on_a_kept_graph():
    layer, lengths = random_layer(), torch.tensor([2, 3, 1])
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    total = apply(layer, x, lengths).square().sum()
    once = torch.autograd.grad(total, [x, *layer.parameters()], retain_graph=True)
    twice = torch.autograd.grad(total, [x, *layer.parameters()])
    for a, b in zip(once, twice, strict=True):
        assert torch.equal(a, b)


def test_packing_visits_every_token_once_in_each_direction():
    lengths = torch.tensor([2, 5, 1, 5])
    packing = Packing.of(lengths)
    assert packing.batch_sizes == [4, 3, 2, 2, 2]
    for direction in (0, 1):
        assert sorted(packing.index[direction].tolist()) == list(range(13))
    start = {0: 0, 1: 2, 2: 7, 3: 8}
    for t, rows in enumerate(packing.index[0].split(packing.batch_sizes)):
        assert {int(r) for r in rows} == {start[k] + t for k, n in enumerate([2, 5, 1, 5]) if n > t}
    for t, rows in enumerate(packing.index[1].split(packing.batch_sizes)):
        assert {int(r) for r in rows} == {start[k] + n - 1 - t for k, n in enumerate([2, 5, 1, 5]) if n > t}


def test_initialisation_is_what_the_docstring_says():
    layer = BiLSTM(5, 4)
    _i, f, _o, _g = layer.bias.chunk(4, dim=1)
    assert (f == 1).all()
    assert layer.bias.sum() == f.numel()
    for direction in (0, 1):
        for gate in layer.w_hh[direction].chunk(4):
            torch.testing.assert_close(gate @ gate.T, torch.eye(4), rtol=0, atol=1e-5)
