"""An utterance's loss and gradient are its own: nothing of its batch leaks in.

And predictions are well formed.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from edp_lab.corpora.corpus import Utterance
from edp_lab.corpora.encoding import WORD_BYTES, Labels, WordFeatures
from edp_lab.errors import UsageError
from edp_lab.models.clc import CLC, CLCSize
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


def test_sum_over_the_batch_is_the_sum_of_the_parts():
    model, data = build()
    everything = list(range(len(TOKENS)))
    parameters = list(model.parameters())
    total = torch.autograd.grad(model.losses(data.batch(everything), dropout_key=KEY).sum(), parameters)
    parts = sum(loss_and_gradient(model, data, [k], 0, KEY)[1] for k in everything)
    torch.testing.assert_close(torch.cat([g.flatten() for g in total]), parts, rtol=0, atol=1e-10)


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
