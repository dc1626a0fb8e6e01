"""Norms and sums from one backward pass, against a loop that runs the model once per micro-batch by plain autograd; how
rows are cut into blocks; squared norms of products and of table rows against the explicit gradients."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from edp_lab.corpora.corpus import Utterance
from edp_lab.corpora.encoding import Labels, WordFeatures
from edp_lab.models.bert import BertIntentSlot, BertSize, new_bert
from edp_lab.models.clc import CLC, CLCSize, Packing, bilstm
from edp_lab.models.ghost_clipping import bookkeeping
from edp_lab.models.ghost_clipping.bookkeeping import (
    LARGEST,
    SIMILAR,
    LinearUse,
    LookupUse,
    LSTMUse,
    Memory,
    MicroBatches,
    row_norms,
)
from edp_lab.models.ghost_clipping.ops import PLAIN, MicroBatchOps, PlainOps, column_slices
from edp_lab.models.intent_slot import IntentSlotModel
from edp_lab.models.wordpiece import SPECIAL, PieceFeatures, wordpiece_tokenizer

CPU = torch.device("cpu")
TAGS = ("O", "B-a", "I-a", "B-b", "I-b")
INTENTS = ("x", "y", "z")
WORDS = ("a", "play", "música", "antidisestablishmentarianism", "日本語", "aaaa", "to", "x")
PIECES = [*SPECIAL, *"aplytox", *(f"##{c}" for c in "aplytox")]
LENGTHS = (4, 1, 7, 2, 1, 1, 5, 3)
ORDER = [5, 0, 1, 2, 3, 4, 7, 6]
KEY = 2**100 + 12345
SIZES = [[8], [4, 4], [5, 1, 0, 2], [0, 0, 8], [1] * 8, [1, 0, 0, 7]]
KINDS = [f"{kind}{variant}" for kind in ("clc", "bert") for variant in ("", " intents only", " frozen")]


def utterance(length: int, seed: int, tagged: bool = True) -> Utterance:
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(len(WORDS), (length,), generator=generator).tolist()
    tags = torch.randint(len(TAGS), (length,), generator=generator).tolist()
    return Utterance(
        tuple(WORDS[w] for w in words), tuple(TAGS[t] for t in tags) if tagged else None, INTENTS[seed % 3]
    )


def clc(labels: Labels, frozen: bool) -> CLC:
    size = CLCSize(hidden=5, layers=2, word=4, character=3, filters=4, dropout=0.5)
    return CLC(labels, WordFeatures(WORDS[:5], buckets=3), size, torch.randn(5, 6) if frozen else None)


def bert(labels: Labels, frozen: bool) -> BertIntentSlot:
    size = BertSize(layers=3, heads=2, hidden=8, intermediate=12, positions=40)
    encoder = new_bert(size.architecture(len(PIECES)))
    if frozen:
        for part in (encoder.embeddings, encoder.encoder.layer[0], encoder.encoder.layer[2].intermediate):
            part.requires_grad_(False)
    return BertIntentSlot(labels, PieceFeatures(wordpiece_tokenizer(PIECES), size.positions), encoder, dropout=0.4)


def build(kind: str, lengths=LENGTHS):
    """A float64 model whose weights are float32 numbers, and its data."""
    torch.manual_seed(0)
    tagged = "intents" not in kind
    model = (clc if kind.startswith("clc") else bert)(Labels(INTENTS, TAGS if tagged else ()), "frozen" in kind)
    for parameter in trainable(model):  # leave the symmetric start behind
        parameter.data += 0.3 * torch.randn_like(parameter)
    return model.double(), model.dataset([utterance(n, k, tagged) for k, n in enumerate(lengths)])


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def by_loop(model: IntentSlotModel, data, sizes, examples=ORDER, key=KEY) -> Tensor:
    """Gradient of each micro-batch, (M, P): one plain run of the model each."""
    parameters, found, stop = trainable(model), [], 0
    for size in sizes:
        own, stop = examples[stop : stop + size], stop + size
        gradients = [torch.zeros_like(p) for p in parameters]
        if own:
            loss = model.losses(data.batch(own), PLAIN, key).sum()
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        found.append(torch.cat([g.flatten() for g in gradients]))
    return torch.stack(found)


def in_one_pass(model: IntentSlotModel, data, sizes, examples=ORDER, key=KEY) -> MicroBatchOps:
    ops = MicroBatchOps(trainable(model), sizes)
    model.losses(data.batch(examples), ops, key).sum().backward()
    assert all(p.grad is None for p in model.parameters()), "a gradient also went the ordinary way"
    return ops


def weighted_sum(ops: MicroBatchOps, factors: Tensor | None) -> Tensor:
    out = ops.parameters[0].new_zeros(sum(p.numel() for p in ops.parameters))
    ops.add_weighted_sum(out, factors)
    return out


def norms_of(gradients: Tensor, parameters: list[nn.Parameter]) -> Tensor:
    """(M, P) -> (M, K)."""
    return torch.stack([gradients[:, own].double().norm(dim=1) for own in column_slices(parameters)], dim=1)


def check(model, data, sizes, examples=ORDER, key=KEY) -> None:
    ops, gradients = in_one_pass(model, data, sizes, examples, key), by_loop(model, data, sizes, examples, key)
    torch.testing.assert_close(ops.norms(), norms_of(gradients, ops.parameters), rtol=1e-9, atol=1e-9)
    factors = torch.rand(len(sizes), dtype=torch.float64, generator=torch.Generator().manual_seed(1)) - 0.5
    torch.testing.assert_close(weighted_sum(ops, factors), factors @ gradients, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(weighted_sum(ops, None), gradients.sum(0), rtol=1e-9, atol=1e-9)


# Both models, whole


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_norms_and_sums_equal_a_loop_over_micro_batches(kind, sizes):
    check(*build(kind), sizes)


@pytest.mark.parametrize("kind", ["clc", "bert"])
def test_norms_and_sums_equal_a_loop_without_dropout(kind):
    check(*build(kind), [3, 0, 5], key=None)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_any_cut_of_any_batch_equals_a_loop(kind, data):
    """Among them batches with the same example in several micro-batches, and of single words only."""
    examples = data.draw(
        st.lists(st.integers(0, 7), min_size=1, max_size=7) | st.lists(st.sampled_from([1, 4, 5]), min_size=1)
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(examples)), max_size=4)))
    check(*build(kind), [b - a for a, b in pairwise([0, *cuts, len(examples)])], examples)


@pytest.mark.parametrize("kind", ["clc", "bert"])
def test_blocks_cut_small_change_nothing(kind, monkeypatch):
    monkeypatch.setattr(bookkeeping, "LARGEST", 60)
    check(*build(kind), [1] * 8)
    check(*build(kind), [2, 3, 3])


@pytest.mark.parametrize("room", [0, 3000, 10**6])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_formed_for_their_norms_change_nothing(kind, sizes, room, monkeypatch):
    """As of long micro-batches: of none, of some, or of all weights."""
    monkeypatch.setattr(bookkeeping, "LONG", 0)
    monkeypatch.setattr(bookkeeping, "ROOM", room)
    check(*build(kind), sizes)


@pytest.mark.parametrize("kind", ["clc", "bert"])
def test_memory_of_an_earlier_pass_leaves_no_trace(kind, monkeypatch):
    """Neither of more micro-batches nor of fewer, nor of one that is empty now."""
    monkeypatch.setattr(bookkeeping, "LONG", 0)
    model, data = build(kind)
    memory, plain = Memory(), {str(sizes): by_loop(model, data, sizes) for sizes in SIZES}
    for sizes in (*SIZES, *SIZES[::-1]):
        ops = MicroBatchOps(trainable(model), sizes, memory)
        model.losses(data.batch(ORDER), ops, KEY).sum().backward()
        torch.testing.assert_close(ops.norms(), norms_of(plain[str(sizes)], ops.parameters), rtol=1e-9, atol=1e-9)
        factors = torch.rand(len(sizes), dtype=torch.float64)
        torch.testing.assert_close(weighted_sum(ops, factors), factors @ plain[str(sizes)], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["clc", "bert"])
def test_sums_are_added_to_what_is_there_and_norms_can_be_asked_again(kind):
    model, data = build(kind)
    ops = in_one_pass(model, data, [3, 5])
    once, first = weighted_sum(ops, None), ops.norms()
    out = torch.ones_like(once)
    ops.add_weighted_sum(out)
    torch.testing.assert_close(out, 1 + once, rtol=0, atol=1e-12)
    assert torch.equal(ops.norms(), first)


@pytest.mark.parametrize("kind", ["clc", "bert"])
def test_losses_do_not_depend_on_the_cut(kind):
    model, data = build(kind)
    plain = model.losses(data.batch(ORDER), PLAIN, KEY)
    for sizes in SIZES:
        ours = model.losses(data.batch(ORDER), MicroBatchOps(trainable(model), sizes), KEY)
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["clc", "clc intents only", "bert", "bert intents only"])
@settings(max_examples=15, deadline=None)
@given(order=st.permutations(range(8)), count=st.integers(1, 8), key=st.none() | st.integers(0, 2**128 - 1))
def test_an_example_does_not_depend_on_its_neighbours(kind, order, count, key):
    model, data = build(kind)
    batch = order[:count]
    together = model.losses(data.batch(batch), dropout_key=key)
    ops = in_one_pass(model, data, [1] * count, batch, key)
    norms = ops.norms()
    for k, example in enumerate(batch):
        alone = in_one_pass(model, data, [1], [example], key)
        loss = model.losses(data.batch([example]), dropout_key=key)[0]
        torch.testing.assert_close(together[k], loss, rtol=0, atol=1e-11)
        torch.testing.assert_close(norms[k], alone.norms()[0], rtol=1e-9, atol=1e-9)
        own = torch.eye(count, dtype=torch.float64)[k]
        torch.testing.assert_close(weighted_sum(ops, own), weighted_sum(alone, None), rtol=0, atol=1e-11)


@pytest.mark.parametrize("sizes", [[3, 4], [4, 5], [0, 0]], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_sizes_that_do_not_fit_the_batch_are_refused(kind, sizes):
    """Too small a sum would drop utterances silently."""
    ops = in_one_pass(*build(kind), sizes)
    with pytest.raises((ValueError, RuntimeError, IndexError)):
        ops.norms()


@pytest.mark.parametrize("count", [3, 9])
def test_a_batch_of_another_size_is_refused_in_words(count):
    with pytest.raises(ValueError, match=f"hold 7 examples, the batch has {count}"):
        MicroBatches.of([3, 4], CPU).row_counts(torch.ones(count, dtype=torch.long))


# Float32


@pytest.mark.parametrize("sizes", [[1] * 8, [3, 0, 1, 4]], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_clipped_sum_in_float32_is_that_of_float64(kind, sizes):
    model, data = build(kind)
    exact = by_loop(model, data, sizes)
    norms = exact.norm(dim=1)
    clip = norms[norms > 0].median()
    expected = (clip / norms.clamp_min(clip)) @ exact
    ops = in_one_pass(model.float(), data, sizes)
    ours = weighted_sum(ops, clip / ops.norms().norm(dim=1).clamp_min(clip))
    assert (ours - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.parametrize("sizes", [[1] * 8, [3, 0, 1, 4]], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_norms_in_float32_are_never_too_small(kind, sizes):
    """Neither against plain autograd in float32 nor against what a micro-batch puts into the sum, once clipped."""
    model, data = build(kind)
    model = model.float()
    plain = by_loop(model, data, sizes).double()
    ops = in_one_pass(model, data, sizes)
    each, whole = ops.norms(), ops.norms().norm(dim=1)
    assert (whole >= (1 - 1e-6) * plain.norm(dim=1)).all()
    # The bias of BERT's keys has no gradient but rounding, which no two computations share.
    assert (each >= (1 - 1e-6) * norms_of(plain, ops.parameters) - 1e-7 * whole[:, None]).all()
    clip = 0.5 * whole[whole > 0].min()
    for k in range(len(sizes)):
        own = weighted_sum(ops, clip / whole.clamp_min(clip) * torch.eye(len(sizes))[k])
        assert own.double().norm() <= (1 + 1e-6) * clip


def nearly_cancelling(rows: int, inputs: int, outputs: int, left: float) -> tuple[Tensor, Tensor]:
    """x (R, D) and d (R, O) whose products cancel but for a share `left`; float32."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows // 2, inputs, generator=generator).repeat(2, 1)
    d = torch.randn(rows // 2, outputs, generator=generator)
    return x, torch.cat([d, -d * (1 + left)])


@pytest.mark.parametrize("left", [1e-1, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(2, 40, 40), (8, 100, 80)])
def test_norms_by_gram_matrices_are_exact_where_gradients_nearly_cancel(rows, inputs, outputs, left):
    """In float32 the terms of ||sum_t d_t x_t^T||^2 would cancel to nothing but rounding, or below zero."""
    x, d = nearly_cancelling(rows, inputs, outputs, left)
    true = (d.double().T @ x.double()).norm()
    use = LinearUse(nn.Parameter(torch.zeros(outputs, inputs)), None, x, d, torch.tensor([rows]))
    (squares,) = use.squared_norms(MicroBatches.of([1], CPU))
    torch.testing.assert_close(squares.sqrt()[0], true, rtol=1e-6, atol=0)


@pytest.mark.parametrize("left", [1e-1, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(2, 40, 40), (8, 100, 80), (40, 12, 12), (64, 20, 16)])
def test_a_norm_is_short_by_no_more_than_float32_rounds_the_terms_of_the_gradient(rows, inputs, outputs, left):
    """The sum itself is formed in float32: it keeps a gradient only up to rounding of what cancels within it."""
    x, d = nearly_cancelling(rows, inputs, outputs, left)
    weight = nn.Parameter(torch.zeros(outputs, inputs))
    use, cut = LinearUse(weight, None, x, d, torch.tensor([rows])), MicroBatches.of([1], CPU)
    norm = use.squared_norms(cut)[0].sqrt()[0]
    added = torch.zeros(outputs, inputs)
    use.add_sum(lambda _: added, cut, torch.ones(1))
    rounding = 1e-7 * (d.norm(dim=1) * x.norm(dim=1)).double().sum()
    for true in ((d.double().T @ x.double()).norm(), added.double().norm()):
        assert norm >= (1 - 1e-6) * true - rounding


def test_the_lstms_norms_are_exact_where_gradients_nearly_cancel():
    x, d = nearly_cancelling(4, 60, 2 * 4 * 30, 1e-3)
    h, _ = nearly_cancelling(4, 2 * 30, 1, 1e-3)
    h, d = h.view(4, 2, 30), d.view(4, 2, 120)
    weights = (torch.zeros(2, 120, 60), torch.zeros(2, 120, 30), torch.zeros(2, 120))
    found = LSTMUse(*weights, x, h, d, torch.tensor([4])).squared_norms(MicroBatches.of([1], CPU))
    w_ih = d.double().flatten(1).T @ x.double()
    w_hh = torch.einsum("tko,tkh->koh", d.double(), h.double())
    for squares, true in zip(found, (w_ih, w_hh, d.double().sum(0)), strict=True):
        torch.testing.assert_close(squares.sqrt()[0], true.norm(), rtol=1e-6, atol=0)


def test_a_vanishing_gradient_has_norm_zero_and_no_nan():
    """Rounding may leave the sum of a Gram product below zero."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.zeros(60, 60))
    for _ in range(20):
        x, d = nearly_cancelling(8, 60, 60, 0.0)
        ops = MicroBatchOps([weight], [1])
        ops.keep(LinearUse(weight, None, x, d * torch.randn(()), torch.tensor([8])))
        assert 0 <= ops.norms().item() < 1e-5


@pytest.mark.parametrize("count", [1, 1023, 1024, 1025, 3_000_000])
def test_row_norms_of_many_equal_numbers_in_float32(count):
    x = torch.tensor([[0.1], [3.0]]).expand(2, count).contiguous()
    torch.testing.assert_close(row_norms(x), x.double().norm(dim=1), rtol=1e-6, atol=0)


# Frozen parameters, and parameters used twice


@pytest.fixture
def asked(monkeypatch) -> list[tuple[Tensor, ...]]:
    """The parameters of every use whose norms are computed."""
    found: list[tuple[Tensor, ...]] = []
    for name in ("LinearUse", "LSTMUse", "LookupUse", "SumUse", "TransitionUse"):
        kind = getattr(bookkeeping, name)

        def spied(self, cut, original=kind.squared_norms):
            found.append(self.parameters)
            return original(self, cut)

        monkeypatch.setattr(kind, "squared_norms", spied)
    return found


@pytest.mark.parametrize("kind", ["clc frozen", "bert frozen"])
def test_frozen_parameters_get_no_gradient_and_cost_no_norm(kind, asked):
    model, data = build(kind)
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    expected = "words.weight" if kind.startswith("clc") else "bert.encoder.layer.0.output.LayerNorm.weight"
    assert expected in frozen
    ops = in_one_pass(model, data, [2, 5, 1])
    assert ops.norms().shape == (3, len(trainable(model)))
    assert (ops.norms() > 0).any(dim=0).all()
    assert asked
    assert all(any(p.requires_grad for p in parameters) for parameters in asked)


@pytest.mark.parametrize("frozen", ["characters", "convolution", "lstm.0", "lstm.1", "slots", "crf", "intent", "words"])
def test_any_part_of_the_clc_may_be_frozen(frozen, asked):
    """A frozen part has no columns and receives nothing; the others are not disturbed."""
    check_frozen("clc", lambda name: name.startswith(frozen), asked)


BERT_PARTS = [
    "embeddings",
    "embeddings.word",
    "LayerNorm",
    "layer.1",
    "layer.2.attention.self",
    "encoder",
    "bert",
    "crf",
]


@pytest.mark.parametrize("frozen", BERT_PARTS)
def test_any_part_of_bert_may_be_frozen(frozen, asked):
    check_frozen("bert", lambda name: frozen in name, asked)


@pytest.mark.parametrize("frozen", ["bias", "w_hh", "weight", "start", "transitions"])
@pytest.mark.parametrize("kind", ["clc", "bert"])
def test_single_tensors_may_be_frozen(kind, frozen, asked):
    check_frozen(kind, lambda name: name.endswith(frozen), asked)


def check_frozen(kind: str, frozen, asked) -> None:
    model, data = build(kind)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not frozen(name))
    check(model, data, [2, 5, 1])
    assert all(any(p.requires_grad for p in parameters) for parameters in asked)


def test_a_parameter_used_twice_is_refused():
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    weight = nn.Parameter(torch.randn(4, 4, dtype=torch.float64))
    ops = MicroBatchOps([weight], [3])
    with pytest.raises(ValueError, match="used twice"):
        ops.linear(ops.linear(x, weight, None), weight, None).sum().backward()
    ops = MicroBatchOps([weight], [3])
    with pytest.raises(ValueError, match="used twice"):  # as a table and as a layer: tied weights
        ops.linear(ops.embedding(torch.tensor([0, 1, 1]), weight), weight, None).sum().backward()
    ops = MicroBatchOps([nn.Parameter(torch.zeros(1))], [3])  # the others are frozen: as often as one likes
    scale, shift = weight.detach()[0], weight.detach()[1]
    y = ops.layer_norm(ops.linear(x, weight, None), scale, shift, 1e-5)
    ops.layer_norm(ops.linear(y, weight, None), scale, shift, 1e-5).sum().backward()


@pytest.mark.parametrize("kind", ["clc", "bert"])
def test_a_second_pass_is_refused(kind):
    model, data = build(kind)
    ops = in_one_pass(model, data, [8])
    with pytest.raises(ValueError, match="used twice"):
        model.losses(data.batch(ORDER), ops, KEY).sum().backward()


# Operations one by one


@pytest.mark.parametrize("frozen", [False, True])
def test_gradients_are_passed_on_to_the_inputs(frozen):
    torch.manual_seed(1)
    rows = torch.tensor([1, 3, 2])
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    shapes = ((3, 4), (3,), (4,), (4,), (2, 8, 4), (2, 8, 2), (2, 8))
    weight, bias, scale, shift, *lstm = [nn.Parameter(torch.randn(*s, dtype=torch.float64)) for s in shapes]
    trained = [nn.Parameter(torch.zeros(1))] if frozen else [weight, bias, scale, shift, *lstm]

    def gradient(ops: PlainOps) -> Tensor:
        y = ops.layer_norm(x.tanh(), scale, shift, 1e-5, rows)
        y = bilstm(y, Packing.of(rows), *lstm, ops)
        return torch.autograd.grad(ops.linear(y, weight, bias, rows).square().sum(), x)[0]

    torch.testing.assert_close(gradient(MicroBatchOps(trained, [1, 2])), gradient(PLAIN), rtol=0, atol=1e-12)


@pytest.mark.parametrize("op", ["linear", "layer_norm"])
def test_a_second_derivative_is_refused_rather_than_wrong(op):
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    weight, bias = (nn.Parameter(torch.randn(*s, dtype=torch.float64)) for s in ((4,), (4,)))
    matrix = nn.Parameter(torch.randn(3, 4, dtype=torch.float64))
    ops = MicroBatchOps([matrix, weight, bias], [6])
    y = ops.linear(x, matrix, None) if op == "linear" else ops.layer_norm(x, weight, bias, 1e-5)
    first = torch.autograd.grad(y.square().sum(), x, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.square().sum().backward()


def test_columns_stand_in_the_order_of_the_parameters():
    model, data = build("clc")
    ops = in_one_pass(model, data, [8])
    ours = weighted_sum(ops, None)
    model.losses(data.batch(ORDER), PLAIN, KEY).sum().backward()
    slices = column_slices(ops.parameters)
    for parameter, own in zip(ops.parameters, slices, strict=True):
        torch.testing.assert_close(ours[own].view_as(parameter), parameter.grad, rtol=0, atol=1e-11)
    assert slices[-1].stop == len(ours)


# How rows are cut into blocks


@st.composite
def cuts(draw) -> tuple[list[int], list[int] | None]:
    """Sizes of micro-batches, and the rows of each of their examples, or None: one each."""
    sizes = draw(st.lists(st.integers(0, 5), min_size=1, max_size=8))
    if draw(st.booleans()):
        return sizes, None
    return sizes, draw(st.lists(st.integers(0, 30), min_size=sum(sizes), max_size=sum(sizes)))


@given(cuts(), st.sampled_from([1, 7, LARGEST // 20, LARGEST, 2 * LARGEST]))
def test_blocks_hold_every_row_of_every_micro_batch_once(cut_and_rows, width):
    sizes, each = cut_and_rows
    rows = None if each is None else torch.tensor(each, dtype=torch.long)
    cut = MicroBatches.of(sizes, CPU)
    bounds = [0, *torch.tensor(sizes).cumsum(0).tolist()]
    counts = [sum([1] * (b - a) if each is None else each[a:b]) for a, b in pairwise(bounds)]
    first = [sum(counts[:m]) for m in range(len(counts))]
    seen = []
    for block in cut.blocks(rows, width):
        own = [counts[m] for m in block.numbers.tolist()]
        assert block.rows.shape[1] <= SIMILAR * min(own) + 1
        assert len(own) == 1 or block.rows.numel() * width <= LARGEST
        for m, row in zip(block.numbers.tolist(), block.rows.tolist(), strict=True):
            seen.append(m)
            assert row[: counts[m]] == list(range(first[m], first[m] + counts[m]))
            assert set(row[counts[m] :]) <= {sum(counts)}, "padding must point at the row of zeros"
    assert sorted(seen) == [m for m, count in enumerate(counts) if count]


@given(cuts())
def test_spread_gives_each_row_the_value_of_its_micro_batch(cut_and_rows):
    sizes, each = cut_and_rows
    rows = None if each is None else torch.tensor(each, dtype=torch.long)
    owner = [m for m, size in enumerate(sizes) for _ in range(size)]
    expected = [m for k, m in enumerate(owner) for _ in range(1 if each is None else each[k])]
    assert MicroBatches.of(sizes, CPU).numbers(rows).tolist() == expected


def test_blocks_of_two_row_counts_are_not_confused():
    """They are remembered per tensor of row counts, whose place in memory another may take over."""
    cut = MicroBatches.of([1, 1], CPU)
    for counts in ([2, 3], [4, 1], [1, 1], [3, 2]) * 5:
        blocks = cut.blocks(torch.tensor(counts), 1)
        assert sorted(set(torch.cat([b.rows.flatten() for b in blocks]).tolist()) - {sum(counts)}) == list(
            range(sum(counts))
        )


# Norms of products and of table rows


@settings(deadline=None)
@given(cuts(), st.integers(1, 40), st.integers(1, 40), st.booleans(), st.integers(0, 2**32))
def test_squared_norms_of_products_equal_the_explicit_product(cut_and_rows, inputs, outputs, single, seed):
    """Few rows and many numbers: by Gram matrices; many rows: by the product; bias and weight, empty micro-batches."""
    sizes, each = cut_and_rows
    rows, cut = None if each is None else torch.tensor(each, dtype=torch.long), MicroBatches.of(sizes, CPU)
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.float32 if single else torch.float64
    count = sum(sizes) if each is None else sum(each)
    d, x = (torch.randn(count, n, dtype=dtype, generator=generator) for n in (outputs, inputs))
    weight, bias = nn.Parameter(torch.zeros(outputs, inputs)), nn.Parameter(torch.zeros(outputs))
    found = LinearUse(weight, bias, x, d, rows).squared_norms(cut)
    for m, own in enumerate(cut.slices(rows)):
        own_d, own_x = d[own].double(), x[own].double()
        tolerance = {"rtol": 1e-5 if single else 1e-11, "atol": 1e-3 if single else 1e-9}
        torch.testing.assert_close(found[0][m], (own_d.T @ own_x).square().sum(), **tolerance)
        torch.testing.assert_close(found[1][m], own_d.sum(0).square().sum(), **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gram_matrices_are_the_same_by_the_compiled_loop_and_by_a_product(dtype):
    """The loop for a CPU reads rows where they lie, of one of several parts; a GPU gathers them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(13, 3, 50, dtype=dtype, generator=generator)
    [block] = MicroBatches.of([1, 1, 1], CPU).blocks(torch.tensor([4, 4, 5]), 1)
    for part in range(3):
        own = block.gather(x[:, part])
        torch.testing.assert_close(block.gram(x, part), own @ own.mT, rtol=1e-13, atol=1e-13)
    assert block.gram(x, 1)[:2, -1].count_nonzero() == 0, "padding has products of zero"


@pytest.mark.parametrize("counts", [[3, 3], [2, 1], [1, 2, 2]])
def test_micro_batches_of_other_rows_than_there_are_are_refused(counts):
    """A compiled loop would read whatever lies behind them."""
    block = MicroBatches.of([1] * len(counts), CPU).blocks(torch.tensor(counts), 1)[0]
    for use in (block.gram, block.gather, block.squares_of_sums):
        with pytest.raises(ValueError, match=f"hold {sum(counts)} rows, but 4 are given"):
            use(torch.zeros(4, 200))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_biass_norm_keeps_what_is_left_where_rows_cancel(dtype):
    """The Gram matrix's terms are 2^54 times as large as their sum, which float64 would lose."""
    big = torch.full((1, 100), 2.0**27, dtype=dtype)
    d = torch.cat([big, -big, torch.zeros(1, 100, dtype=dtype)])
    d[2, 0] = 8
    weight, bias = (nn.Parameter(torch.zeros(*shape)) for shape in ((100, 100), (100,)))
    squares = LinearUse(weight, bias, torch.ones(3, 100, dtype=dtype), d, torch.tensor([3])).squared_norms(
        MicroBatches.of([1], CPU)
    )
    assert float(squares[1][0]) == 64


@pytest.mark.parametrize(("steps", "short"), [(2, True), (4, True), (5, False), (30, False)])
def test_gram_matrices_are_used_where_they_are_less_work(steps, short):
    [block] = MicroBatches.of([1], CPU).blocks(torch.tensor([steps]), 1)
    assert block.short(20, 20) == short


@settings(deadline=None)
@given(cuts(), st.integers(1, 5), st.sampled_from([(), (1,), (3,)]), st.integers(0, 2**32))
def test_lookups_of_repeated_ids_equal_the_explicit_table(cut_and_rows, height, shape, seed):
    sizes, each = cut_and_rows
    count = sum(sizes) if each is None else sum(each)
    if not count:
        return
    generator = torch.Generator().manual_seed(seed)
    table = nn.Parameter(torch.zeros(height, 2, dtype=torch.float64))
    ids = torch.randint(height, (count, *shape), generator=generator)
    d = torch.randn(count, *shape, 2, dtype=torch.float64, generator=generator)
    rows, cut = None if each is None else torch.tensor(each), MicroBatches.of(sizes, CPU)
    use = LookupUse(table, ids, d, rows)
    expected = torch.zeros(len(sizes), height, 2, dtype=torch.float64)
    for row, m in enumerate(cut.numbers(rows).tolist()):
        expected[m].index_add_(0, ids[row].flatten(), d[row].reshape(-1, 2))
    torch.testing.assert_close(use.squared_norms(cut)[0], expected.square().sum((1, 2)), rtol=1e-12, atol=1e-12)
    factors = torch.rand(len(sizes), dtype=torch.float64, generator=generator)
    for weight in (factors, None):
        out = torch.zeros_like(table)
        use.add_sum(lambda _, out=out: out, cut, weight)
        whole = expected if weight is None else expected * weight[:, None, None]
        torch.testing.assert_close(out, whole.sum(0), rtol=0, atol=1e-12)
