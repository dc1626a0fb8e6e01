"""Norms and sums from one backward pass, against a loop with one run of the model per micro-batch and plain autograd;
division of rows into blocks; squared norms of products and of table rows, against explicit gradients."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from edp_lab.corpora.corpus import Utterance
from edp_lab.corpora.encoding import SPECIAL, WORD_BYTES, Labels, PieceFeatures, WordFeatures, wordpiece_tokenizer
from edp_lab.models import image
from edp_lab.models.bert import BertIntentSlot, BertSize, new_bert
from edp_lab.models.clc import CLC, CLCSize
from edp_lab.models.ghost_clipping import bookkeeping
from edp_lab.models.ghost_clipping.bookkeeping import (
    LARGEST,
    SIMILAR,
    LinearRecord,
    LookupRecord,
    LSTMRecord,
    Memory,
    MicroBatches,
)
from edp_lab.models.ghost_clipping.ops import PLAIN, MicroBatchOps, PlainOps, column_slices
from edp_lab.models.lstm import Packing, bilstm
from edp_lab.models.private_heads import PrivateHeads

CPU = torch.device("cpu")
TAGS = ("O", "B-a", "I-a", "B-b", "I-b")
INTENTS = ("x", "y", "z")
# Short and long neighbours, at and above the byte limit (also within a character), with ties for the maximum.
WORDS = ("a", "play", "música", "antidisestablishmentarianism", "日本語" * 3, "aaaa", "ß", "🎵")
WORDS += ("x" * (WORD_BYTES - 1), "x" * WORD_BYTES, "x" * (WORD_BYTES + 1))
PIECES = [*SPECIAL, *"aplytox", *(f"##{c}" for c in "aplytox")]
LENGTHS = (4, 1, 7, 2, 1, 1, 5, 3)
ORDER = [5, 0, 1, 2, 3, 4, 7, 6]
KEY = 2**100 + 12345
SIZES = [[8], [4, 4], [5, 1, 0, 2], [0, 0, 8], [1] * 8, [1, 0, 0, 7]]
TEXT = [f"{kind}{variant}" for kind in ("clc", "bert") for variant in ("", " intents only", " frozen")]
TEXT += ["clc heads", "clc heads intents only"]
IMAGES = {"cnn": (2, 20, 25), "small cnn": (1, 8, 8), "alexnet": (1, 28, 28), "vgg": (1, 8, 8), "mlp": (2,)}
EXACT = {"rtol": 1e-9, "atol": 1e-9}
NO_GRADIENT = torch.zeros(0)


def utterance(length: int, seed: int, tagged: bool) -> Utterance:
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(len(WORDS), (length,), generator=generator).tolist()
    tags = torch.randint(len(TAGS), (length,), generator=generator).tolist()
    own = tuple(TAGS[t] for t in tags) if tagged else None
    return Utterance(tuple(WORDS[w] for w in words), own, INTENTS[seed % 3])


def build(kind: str):
    """A float64 model, with float32 weights that are not symmetric, and its eight examples."""
    torch.manual_seed(0)
    if kind in IMAGES:
        model = image.build_classifier(kind.split()[-1], IMAGES[kind], 3, seed=1, activation="tanh").double()
        data = image.ImageData(torch.rand(8, *IMAGES[kind]).numpy(), torch.randint(3, (8,)).numpy())
        data.images = data.images.double()
        return model, data
    frozen, tagged = "frozen" in kind, "intents" not in kind
    labels = Labels(INTENTS, TAGS if tagged else ())
    if kind.startswith("clc"):
        size = CLCSize(hidden=5, layers=2, word=4, character=3, filters=4, dropout=0.5)
        model = CLC(labels, WordFeatures(WORDS[:5], buckets=3), size, torch.randn(5, 6) if frozen else None)
        if "heads" in kind:
            model = PrivateHeads(labels, WordFeatures(WORDS[:5], 7), size, torch.randn(5, 4))
    else:
        size = BertSize(layers=3, heads=2, hidden=8, intermediate=12, positions=40)
        encoder = new_bert(size.architecture(len(PIECES)))
        for part in (encoder.embeddings, encoder.encoder.layer[0], encoder.encoder.layer[2].intermediate):
            part.requires_grad_(not frozen)
        model = BertIntentSlot(labels, PieceFeatures(wordpiece_tokenizer(PIECES), size.positions), encoder, dropout=0.4)
    for parameter in trainable(model):
        parameter.data += 0.3 * torch.randn_like(parameter)
    return model.double(), model.dataset([utterance(n, k, tagged) for k, n in enumerate(LENGTHS)])


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def total_loss(losses: Tensor, examples) -> Tensor:
    """Total loss with a separate weight for each example, as in the mean over a micro-batch."""
    return losses @ (0.5 + torch.tensor(examples) % 3).to(losses.dtype)


def by_loop(model, data, sizes, examples=ORDER, key=KEY) -> Tensor:
    """Gradients of all micro-batches, shape (M, P), from one plain run of the model per micro-batch."""
    parameters, found, stop = trainable(model), [], 0
    for size in sizes:
        own, stop = examples[stop : stop + size], stop + size
        gradients = [torch.zeros_like(p) for p in parameters]
        if own:
            loss = total_loss(model.losses(data.batch(own), PLAIN, key), own)
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        found.append(torch.cat([g.flatten() for g in gradients]))
    return torch.stack(found)


def in_one_pass(model, data, sizes, examples=ORDER, key=KEY, memory=None) -> MicroBatchOps:
    ops = MicroBatchOps(trainable(model), sizes, memory)
    losses = model.losses(data.batch(examples), ops, key)
    total_loss(losses, examples).backward()
    assert all(p.grad is None for p in model.parameters()), "a gradient also went the ordinary way"
    ops.losses = losses.detach()
    return ops


def weighted_sum(ops: MicroBatchOps, factors: Tensor | None, start: float = 0.0) -> Tensor:
    out = ops.parameters[0].new_full((sum(p.numel() for p in ops.parameters),), start)
    ops.add_weighted_sum(out, factors)
    return out


def norms_of(gradients: Tensor, parameters: list[nn.Parameter]) -> Tensor:
    """Norms per parameter: (M, P) -> (M, K)."""
    return torch.stack([gradients[:, own].double().norm(dim=1) for own in column_slices(parameters)], dim=1)


def check(model, data, sizes, examples=ORDER, key=KEY, memory=None) -> None:
    """Check norms, sums added to existing values, repeated norms, and each example's loss as if it were alone."""
    gradients, ops = by_loop(model, data, sizes, examples, key), in_one_pass(model, data, sizes, examples, key, memory)
    norms = ops.norms()
    torch.testing.assert_close(norms, norms_of(gradients, ops.parameters), **EXACT)
    factors = torch.rand(len(sizes), dtype=torch.float64, generator=torch.Generator().manual_seed(1)) - 0.5
    torch.testing.assert_close(weighted_sum(ops, factors), factors @ gradients, **EXACT)
    torch.testing.assert_close(weighted_sum(ops, None, start=1.0), 1 + gradients.sum(0), **EXACT)
    assert torch.equal(ops.norms(), norms)
    alone = torch.cat([model.losses(data.batch([k]), PLAIN, key) for k in examples])
    torch.testing.assert_close(ops.losses, alone, rtol=0, atol=1e-11)


@pytest.fixture(params=["as it is", "gradients formed", "some formed", "none formed", "small blocks"])
def room(request, monkeypatch) -> None:
    """Piece sizes and memory limits for explicit gradients of micro-batches."""
    if request.param == "small blocks":
        monkeypatch.setattr(bookkeeping, "LARGEST", 60)
    elif request.param != "as it is":
        monkeypatch.setattr(bookkeeping, "LONG", 0)
        monkeypatch.setattr(bookkeeping, "ROOM", {"g": 2**26, "s": 3000, "n": 0}[request.param[0]])
        monkeypatch.setattr(image, "PATCHES", image.PATCHES if request.param[0] == "g" else 1)


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize("sizes", [SIZES[2], *SIZES[4:]], ids=str)
@pytest.mark.parametrize("kind", [*TEXT, *IMAGES])
def test_norms_and_sums_equal_a_loop_over_micro_batches(kind, sizes):
    check(*build(kind), sizes)


@pytest.mark.parametrize("kind", TEXT)
@settings(max_examples=15)
@given(data=st.data(), key=st.none() | st.integers(0, 2**128 - 1))
def test_any_cut_of_any_batch_equals_a_loop(kind, data, key):
    """Batches include examples in several micro-batches, and single words only."""
    examples = data.draw(
        st.lists(st.integers(0, 7), min_size=1, max_size=7) | st.lists(st.sampled_from([1, 4, 5]), min_size=1)
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(examples)), max_size=4)))
    check(*build(kind), [b - a for a, b in pairwise([0, *cuts, len(examples)])], examples, key)


@pytest.mark.parametrize("kind", ["clc", "bert", "small cnn"])
def test_memory_of_an_earlier_pass_leaves_no_trace(kind, monkeypatch):
    """The earlier pass has more or fewer micro-batches, or one that is empty now."""
    monkeypatch.setattr(bookkeeping, "LONG", 0)
    memory = Memory()
    for sizes in (*SIZES, *SIZES[::-1]):
        check(*build(kind), sizes, memory=memory)


@pytest.mark.parametrize("sizes", [[3, 4], [4, 5], [0, 0]], ids=str)
@pytest.mark.parametrize("kind", TEXT)
def test_sizes_that_do_not_fit_the_batch_are_refused(kind, sizes):
    """Sizes with too small a sum would silently drop utterances."""
    ops = in_one_pass(*build(kind), sizes)
    with pytest.raises((ValueError, RuntimeError, IndexError)):
        ops.norms()
    with pytest.raises(ValueError, match=f"hold {sum(sizes)} examples, but the batch has 8"):
        ops.partition.row_counts(torch.ones(8, dtype=torch.long))


@pytest.mark.parametrize("kind", ["clc", "bert"])
def test_losses_repeat_with_a_key_and_change_with_it(kind):
    model, data = build(kind)
    batch, before = data.batch(ORDER), torch.get_rng_state()
    one, again, other, none = (model.losses(batch, dropout_key=key) for key in (KEY, KEY, KEY + 1, None))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert not torch.equal(one, none)
    assert torch.equal(torch.get_rng_state(), before), "torch's own generator must not be used"


@pytest.mark.parametrize("sizes", [[1] * 8, [3, 0, 1, 4]], ids=str)
@pytest.mark.parametrize("kind", TEXT)
def test_in_float32_the_clipped_sum_is_that_of_float64_and_no_norm_is_too_small(kind, sizes):
    """No norm is too small, compared with plain autograd in float32 or with a clipped micro-batch's contribution."""
    model, data = build(kind)
    exact = by_loop(model, data, sizes)
    model = model.float()
    plain, ops = by_loop(model, data, sizes).double(), in_one_pass(model, data, sizes)
    each, whole = ops.norms(), ops.norms().norm(dim=1)
    assert (whole >= (1 - 1e-6) * plain.norm(dim=1)).all()
    # The gradient of the bias of BERT's keys is only rounding error, which differs between two computations.
    assert (each >= (1 - 1e-6) * norms_of(plain, ops.parameters) - 1e-7 * whole[:, None]).all()
    norms = exact.norm(dim=1)
    clip = norms[norms > 0].median()
    expected = (clip / norms.clamp_min(clip)) @ exact
    assert (weighted_sum(ops, clip / whole.clamp_min(clip)) - expected).norm() < 1e-5 * expected.norm()
    clip = 0.5 * whole[whole > 0].min()
    for own in torch.eye(len(sizes)):
        assert weighted_sum(ops, clip / whole.clamp_min(clip) * own).double().norm() <= (1 + 1e-6) * clip


def nearly_cancelling(rows: int, inputs: int, outputs: int, left: float) -> tuple[Tensor, Tensor]:
    """x (R, D) and d (R, O), float32, whose products cancel except for a share `left`."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows // 2, inputs, generator=generator).repeat(2, 1)
    d = torch.randn(rows // 2, outputs, generator=generator)
    return x, torch.cat([d, -d * (1 + left)])


@pytest.mark.parametrize("left", [1e-1, 1e-2, 1e-3, 1e-4, 0.0])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(2, 40, 40), (8, 100, 80), (40, 12, 12), (64, 20, 16)])
def test_norms_of_gradients_that_nearly_cancel(rows, inputs, outputs, left):
    """Gram matrices are exact; in float32, their terms would cancel to rounding errors or negative values. If the sum
    is computed explicitly in float32, its norm is too small by at most the rounding error of the cancelling terms."""
    x, d = nearly_cancelling(rows, inputs, outputs, left)
    weight, added = nn.Parameter(torch.zeros(outputs, inputs)), torch.zeros(outputs, inputs)
    ops = MicroBatchOps([weight], [1])
    ops.keep(LinearRecord((weight,), x, d, torch.tensor([rows])))
    norm = ops.norms()[0, 0]
    ops.add_weighted_sum(added.view(-1), torch.ones(1))
    true, rounding = (d.double().T @ x.double()).norm(), 1e-7 * (d.norm(dim=1) * x.norm(dim=1)).double().sum()
    assert norm >= (1 - 1e-6) * torch.maximum(true, added.double().norm()) - rounding
    if rows < 40:
        torch.testing.assert_close(norm, true, rtol=1e-6, atol=1e-5 if left == 0 else 0)


def test_the_lstms_norms_are_exact_where_gradients_nearly_cancel():
    x, d = nearly_cancelling(4, 60, 2 * 4 * 30, 1e-3)
    h, _ = nearly_cancelling(4, 2 * 30, 1, 1e-3)
    h, d = h.view(4, 2, 30), d.view(4, 2, 120)
    found = LSTMRecord((), x, h, d, torch.tensor([4])).squared_norms(MicroBatches([1], CPU))
    w_ih = d.double().flatten(1).T @ x.double()
    w_hh = torch.einsum("tko,tkh->koh", d.double(), h.double())
    for squares, true in zip(found, (w_ih, w_hh, d.double().sum(0)), strict=True):
        torch.testing.assert_close(squares.sqrt()[0], true.norm(), rtol=1e-6, atol=0)


SINGLE = ["bias", "w_hh", "weight", "start", "transitions"]
FROZEN = {
    "clc": ["characters", "convolution", "lstm.0", "lstm.1", "slots", "crf", "intent", "words", *SINGLE],
    "bert": ["embeddings", "word_", "LayerNorm", "layer.1", "2.attention.self", "encoder", "bert", "crf", *SINGLE],
    "small cnn": ["convolutions.0", "dense", *SINGLE[::2]],
}


@pytest.mark.parametrize(("kind", "frozen"), [(kind, part) for kind, parts in FROZEN.items() for part in parts])
def test_any_part_may_be_frozen(kind, frozen, monkeypatch):
    """A frozen part has no columns, receives no gradient and adds nothing to norms; other parts are unaffected."""
    asked: list[tuple[Tensor, ...]] = []
    for use in (
        bookkeeping.LinearRecord,
        LSTMRecord,
        LookupRecord,
        bookkeeping.SumRecord,
        bookkeeping.TransitionRecord,
    ):

        def spied(self, partition, original=use.squared_norms):
            asked.append(self.parameters)
            return original(self, partition)

        monkeypatch.setattr(use, "squared_norms", spied)
    model, data = build(kind)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(frozen not in name)
    check(model, data, [2, 5, 1])
    assert asked or kind == "small cnn"
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
    ops = MicroBatchOps([nn.Parameter(torch.zeros(1))], [3])  # frozen parameters may be used any number of times
    scale, shift = weight.detach()[0], weight.detach()[1]
    y = ops.layer_norm(ops.linear(x, weight, None), scale, shift, 1e-5)
    ops.layer_norm(ops.linear(y, weight, None), scale, shift, 1e-5).sum().backward()
    for kind in ("clc", "bert"):
        model, data = build(kind)
        ops = in_one_pass(model, data, [8])
        with pytest.raises(ValueError, match="used twice"):  # in a second pass
            model.losses(data.batch(ORDER), ops, KEY).sum().backward()


def operations(ops: PlainOps, x: Tensor, rows: Tensor, parameters: list[Tensor]) -> dict[str, Tensor]:
    weight, bias, scale, shift, *lstm = parameters
    normal = ops.layer_norm(x.tanh(), scale, shift, 1e-5, rows)
    mixed = bilstm(normal, Packing.of(rows), *lstm, ops)
    return {"layer_norm": normal, "lstm": mixed, "linear": ops.linear(mixed, weight, bias, rows)}


@pytest.mark.parametrize("frozen", [False, True])
def test_gradients_are_passed_on_to_the_inputs_and_second_ones_refused_rather_than_wrong(frozen):
    torch.manual_seed(1)
    rows = torch.tensor([1, 3, 2])
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    shapes = ((3, 4), (3,), (4,), (4,), (2, 8, 4), (2, 8, 2), (2, 8))
    parameters = [nn.Parameter(torch.randn(*s, dtype=torch.float64)) for s in shapes]
    trained = [nn.Parameter(torch.zeros(1))] if frozen else parameters
    for name in ("layer_norm", "lstm", "linear"):
        ours, plain = (
            torch.autograd.grad(operations(ops, x, rows, parameters)[name].square().sum(), x, create_graph=True)[0]
            for ops in (MicroBatchOps(trained, [1, 2]), PLAIN)
        )
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            ours.square().sum().backward()


@st.composite
def cuts(draw) -> tuple[MicroBatches, Tensor | None, list[int]]:
    """Micro-batches, the number of rows per example (None: one row each), and the number of rows per micro-batch."""
    sizes = draw(st.lists(st.integers(0, 5), min_size=1, max_size=8))
    each = draw(st.none() | st.lists(st.integers(0, 30), min_size=sum(sizes), max_size=sum(sizes)))
    bounds = [0, *torch.tensor(sizes).cumsum(0).tolist()]
    counts = [b - a if each is None else sum(each[a:b]) for a, b in pairwise(bounds)]
    return MicroBatches(sizes, CPU), None if each is None else torch.tensor(each, dtype=torch.long), counts


@given(cuts(), st.sampled_from([1, 7, LARGEST // 20, LARGEST, 2 * LARGEST]))
def test_blocks_hold_every_row_of_every_micro_batch_once(parts, width):
    partition, rows, counts = parts
    assert partition.numbers(rows).tolist() == [m for m, count in enumerate(counts) for _ in range(count)]
    first = [sum(counts[:m]) for m in range(len(counts))]
    seen = []
    for block in partition.blocks(rows, width):
        own = [counts[m] for m in block.numbers.tolist()]
        assert block.rows.shape[1] <= SIMILAR * min(own) + 1
        assert len(own) == 1 or block.rows.numel() * width <= LARGEST
        for m, row in zip(block.numbers.tolist(), block.rows.tolist(), strict=True):
            seen.append(m)
            assert row[: counts[m]] == list(range(first[m], first[m] + counts[m]))
            assert set(row[counts[m] :]) <= {sum(counts)}, "padding must point at the row of zeros"
    assert sorted(seen) == [m for m, count in enumerate(counts) if count]


def test_blocks_of_two_row_counts_are_not_confused():
    """Blocks are cached per tensor of row counts, whose memory address can be reused by another tensor."""
    partition = MicroBatches([1, 1], CPU)
    for counts in ([2, 3], [4, 1], [1, 1], [3, 2]) * 5:
        places = torch.cat([block.rows.flatten() for block in partition.blocks(torch.tensor(counts), 1)])
        assert set(places.tolist()) - {sum(counts)} == set(range(sum(counts)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gram_matrices_are_the_same_by_the_compiled_loop_and_by_a_product(dtype):
    """The loop on the CPU reads rows of one of several parts in place; a GPU gathers them."""
    x = torch.randn(13, 3, 50, dtype=dtype, generator=torch.Generator().manual_seed(0))
    [block] = MicroBatches([1, 1, 1], CPU).blocks(torch.tensor([4, 4, 5]), 1)
    for part in range(3):
        own = block.gather(x[:, part])
        torch.testing.assert_close(block.gram(x, part), own @ own.mT, rtol=1e-13, atol=1e-13)
    assert block.gram(x, 1)[:2, -1].count_nonzero() == 0, "padding has products of zero"


@pytest.mark.parametrize("counts", [[3, 3], [2, 1], [1, 2, 2]])
def test_micro_batches_of_other_rows_than_there_are_are_refused(counts):
    """A compiled loop would read past the end of the rows."""
    block = MicroBatches([1] * len(counts), CPU).blocks(torch.tensor(counts), 1)[0]
    for use in (block.gram, block.gather, block.squares_of_sums):
        with pytest.raises(ValueError, match=f"hold {sum(counts)} rows, but 4 are given"):
            use(torch.zeros(4, 200))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_biass_norm_keeps_what_is_left_where_rows_cancel(dtype):
    """The Gram matrix's terms are 2^54 times as large as their sum, which float64 would lose."""
    d = torch.tensor([[2.0**27], [-(2.0**27)], [0.0]], dtype=dtype).repeat(1, 100)
    d[2, 0] = 8
    use = LinearRecord((NO_GRADIENT, NO_GRADIENT), torch.ones(3, 100, dtype=dtype), d, torch.tensor([3]))
    assert float(use.squared_norms(MicroBatches([1], CPU))[1][0]) == 64


@pytest.mark.parametrize("name", ["linear", "layer_norm", "convolution"])
@pytest.mark.parametrize("changed", ["x", "weight"])
def test_what_is_changed_in_place_before_the_backward_pass_is_refused(name: str, changed: str) -> None:
    """Otherwise norms, and therefore clipping, would use different numbers from the forward pass."""
    x, bias = torch.randn(2, 3, 4, 4), nn.Parameter(torch.zeros(3))
    shape = {"linear": (3, 4), "layer_norm": (3,), "convolution": (3, 3, 2, 2)}[name]
    weight = nn.Parameter(torch.ones(shape))
    ops = MicroBatchOps([weight, bias], [1, 1])
    x = x.clone().requires_grad_() * 1
    flat = x.flatten(1)[:, : shape[-1]]
    if name == "convolution":
        layer = nn.Conv2d(3, 3, 2)
        layer.weight, layer.bias = weight, bias
        y = image.convolve(x, layer, ops)
    else:
        y = ops.linear(flat, weight, bias) if name == "linear" else ops.layer_norm(flat, weight, bias, 1e-5)
    with torch.no_grad():
        {"x": x if name == "convolution" else flat, "weight": weight}[changed].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
