"""CLC: character CNN + word vectors -> two-layer bidirectional LSTM -> intent head and CRF slot head.

The paper's LSTM model (section 4.2, after Ma and Hovy 2016): hidden size 384 in each of two layers.

Why not nn.LSTM: the gradient of a recurrent weight is a product of *gate gradients* and inputs, one row per token.
Keeping these rows lets a run on N simulated devices (or per-example clipping) form any partial sum of them without a
second backward pass. So the backward pass is written out. Both directions run in one batched product per time step, and
no padding is ever computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from edp_lab.corpora.corpus import Ragged, Utterance
from edp_lab.corpora.encoding import Batch, Dataset, Labels, WordFeatures
from edp_lab.errors import UsageError
from edp_lab.models.ghost_clipping.bookkeeping import LSTMUse
from edp_lab.models.ghost_clipping.ops import PLAIN, MicroBatchOps, PlainOps
from edp_lab.models.intent_slot import IntentSlotModel, dropout, mean, strongest
from edp_lab.models.label_names import SaidWords
from edp_lab.models.wordpiece import ContextFeatures

BYTES = 257  # 256 byte values and padding
HEADS = ("intent", "slots", "slot_words", "slot_intents", "crf")


@dataclass(frozen=True)
class CLCSize:
    """The paper's sizes where it gives them (hidden, layers); the rest are ours."""

    hidden: int = 384
    layers: int = 2
    word: int = 100
    character: int = 25
    filters: int = 50
    dropout: float = 0.5


class CLC(IntentSlotModel):
    """Args: `features` number the words, `vectors` (V, D) are frozen vectors for its vocabulary, else learnt; or they
    bring the words' vectors from a frozen encoder. What an encoder says the heads read themselves too, beside the LSTM:
    it knows the sentence already, and under noise the short way is learnt first.

    `whitened`: the heads read the words' vectors, too, and the intent head means beside the largest; all of it through
    a `Whitening`. The noise on a head is alike in all directions: so should be what the head has to learn from.

    `use_said_words`: the heads of a whitened one read `SaidWords`, too, and slots what the intent head says
    ("slot-gated", Goo et al. 2018). They and the CRF alone learn; data sets are read once.
    """

    features: WordFeatures | ContextFeatures
    keeps_books = True

    def __init__(
        self,
        labels: Labels,
        features: WordFeatures | ContextFeatures,
        size: CLCSize | None = None,
        vectors: Tensor | None = None,
        whitened: bool = False,
        use_said_words: bool = False,
    ) -> None:
        size = size or CLCSize()
        read = features.width if isinstance(features, ContextFeatures) else 0
        pooled, token = 2 * size.hidden + read, 2 * size.hidden + read
        if whitened:
            pooled += 2 * size.hidden + size.word
            token += size.word
        said_words = None
        if use_said_words:
            assert isinstance(features, WordFeatures)
            said_words = SaidWords(features, labels.intents)
        super().__init__(labels, pooled_size=pooled + (said_words.size if said_words else 0), token_size=token)
        self.said_words = said_words
        self.features, self.size, self.whitened = features, size, whitened
        if whitened:
            self.pooled_view, self.token_view = Whitening(pooled), Whitening(token)
        if isinstance(features, ContextFeatures):
            self.encoder, word_size = features.bert, read
        else:
            count, unknown = len(features.words), features.buckets
            if vectors is None:
                self.words = nn.Embedding(count + unknown, size.word)
                nn.init.normal_(self.words.weight, std=0.5)
            elif len(vectors) == count:
                rows = torch.cat([vectors, torch.zeros(unknown, vectors.shape[1])])
                self.words = nn.Embedding.from_pretrained(rows, freeze=True)
            else:
                raise UsageError(f"{len(vectors)} word vectors for {count} words: give one vector per word")
            word_size = self.words.embedding_dim
        self.characters = nn.Embedding(BYTES, size.character)
        self.convolution = nn.Linear(3 * size.character, size.filters)
        inputs = [word_size + size.filters, *[2 * size.hidden] * (size.layers - 1)]
        self.lstm = nn.ModuleList(BiLSTM(n, size.hidden) for n in inputs)
        if said_words is not None:
            if labels.tags:
                self.slot_words = nn.Embedding(said_words.rows, len(labels.tags))
                self.slot_intents = nn.Linear(len(labels.intents), len(labels.tags), bias=False)
                nn.init.zeros_(self.slot_words.weight)
                nn.init.zeros_(self.slot_intents.weight)
            for name, parameter in self.named_parameters():
                parameter.requires_grad_(name.partition(".")[0] in HEADS)

    def dataset(self, utterances: Sequence[Utterance]) -> Dataset:
        """Where only the heads learn, as they read it: some 7 kB an utterance, 1.5 kB a word."""
        data = super().dataset(utterances)
        if self.said_words is not None:
            data.features = self._read(data, self.said_words)
        return data

    @torch.no_grad()
    def _read(self, data: Dataset, said_words: SaidWords) -> dict[str, Ragged]:
        ends = np.cumsum(data.lengths)
        words = np.zeros((ends[-1], len(self.token_view.mean)), np.float32)
        sentences = np.zeros((len(data), self.intent.in_features), np.float32)
        near = np.zeros((ends[-1], 3), np.int64)
        for batch in self.inference_batches(data, 256):
            sentence, tokens = (read.float().cpu().numpy() for read in self.encode(batch, PLAIN, None))
            examples = batch.examples.numpy()
            sentences[examples] = sentence
            spans = zip(ends[examples].tolist(), batch.lengths.tolist(), strict=True)
            rows = np.concatenate([np.arange(end - length, end) for end, length in spans])
            words[rows] = tokens
            near[rows] = said_words.near(batch.inputs["words"], batch.lengths).cpu()
        of_words, of_sentences = np.append(0, ends), np.arange(len(data) + 1)
        read = {"words": Ragged(words, of_words), "near": Ragged(near, of_words)}
        return {**read, "sentence": Ragged(sentences, of_sentences)}

    def encode(self, batch: Batch, ops: PlainOps, dropout_key: int | None) -> tuple[Tensor, Tensor]:
        if "sentence" in batch.inputs:
            both = (batch.inputs[name].to(self.intent.weight.dtype) for name in ("sentence", "words"))
            sentence, tokens = (dropout(x, batch, self.size.dropout, dropout_key, k) for k, x in enumerate(both))
            return sentence, tokens
        words = batch.inputs["words"]
        if isinstance(self.features, ContextFeatures):
            words = words.to(self.convolution.weight.dtype)
        else:
            words = ops.embedding(words, self.words.weight, batch.lengths)
        tokens = self._tokens(words, batch, ops, dropout_key)
        tokens = dropout(tokens, batch, self.size.dropout, dropout_key, len(self.lstm))
        sentence, tokens = self._read_by_heads(tokens, words, batch.lengths)
        if self.said_words is not None:
            from_words = self.said_words(batch.inputs["words"], batch.lengths, self.words.weight)
            sentence = torch.cat([sentence, from_words], dim=1)
        return sentence, tokens

    def emissions(self, tokens: Tensor, intents: Tensor, batch: Batch, ops: PlainOps) -> Tensor:
        emissions = super().emissions(tokens, intents, batch, ops)
        if self.said_words is None:
            return emissions
        near = batch.inputs.get("near")
        if near is None:  # not read yet: see `dataset`
            near = self.said_words.near(batch.inputs["words"], batch.lengths)
        looked_up = ops.embedding(near, self.slot_words.weight, batch.lengths)  # (R, 3, K)
        emissions = emissions + (looked_up * looked_up.new_tensor(self.said_words.WEIGHTS)[:, None]).sum(1)
        meant = ops.linear(self.said_words.MEANT * intents.softmax(-1), self.slot_intents.weight, None)  # (B, K)
        return emissions + meant.repeat_interleave(batch.lengths, 0)

    def _tokens(self, words: Tensor, batch: Batch, ops: PlainOps, dropout_key: int | None) -> Tensor:
        """What the LSTM makes of each word: (R, 2H)."""
        x = torch.cat([words, self._spelling(batch.inputs["characters"], batch.lengths, ops)], dim=1)
        packing = Packing.of(batch.lengths)
        for place, layer in enumerate(self.lstm):
            assert isinstance(layer, BiLSTM)
            x = dropout(x, batch, self.size.dropout, dropout_key, place)
            x = bilstm(x, packing, layer.w_ih, layer.w_hh, layer.bias, ops)
        return x

    def _read_by_heads(self, tokens: Tensor, words: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """What the intent head reads (B, P), and the slot head (R, D)."""
        pooled = strongest(tokens, lengths)
        if isinstance(self.features, ContextFeatures):
            return torch.cat([pooled, mean(words, lengths)], dim=1), torch.cat([tokens, words], dim=1)
        if not self.whitened:
            return pooled, tokens
        both = torch.cat([tokens, words], dim=1)
        sentence = self.pooled_view(torch.cat([pooled, mean(both, lengths)], dim=1))
        return sentence, self.token_view(both)

    def _spelling(self, characters: Tensor, lengths: Tensor, ops: PlainOps) -> Tensor:
        """Width-3 convolution over a word's bytes, then the maximum over its positions: (R, L) -> (R, filters)."""
        characters = characters[:, : int((characters > 0).sum(1).max())]
        inside = characters > 0
        at = inside.nonzero(as_tuple=True)
        x = ops.embedding(characters, self.characters.weight, lengths) * inside[..., None]  # (R, L, character)
        x = nn.functional.pad(x, (0, 0, 1, 1))
        windows = torch.cat([x[:, :-2], x[:, 1:-1], x[:, 2:]], dim=2)
        kept = windows[at]  # only windows centred on a byte of the word
        word = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
        rows = lengths.new_zeros(len(lengths)).index_add_(0, word, inside.sum(1))
        filtered = ops.linear(kept, self.convolution.weight, self.convolution.bias, rows)
        padded = filtered.new_full((*characters.shape, filtered.shape[1]), -torch.inf)
        return torch.tanh(padded.index_put(at, filtered).amax(1))

    def config(self) -> dict[str, object]:
        if isinstance(self.features, ContextFeatures):
            from edp_lab.models.bert import described

            return {**described(self.features.bert, self.features.pieces.tokenizer), "size": vars(self.size)}
        return {
            "words": list(self.features.words),
            "buckets": self.features.buckets,
            "size": vars(self.size),
            "vector_size": None if self.words.weight.requires_grad else self.words.weight.shape[1],
            **({"whitened": True} if self.whitened else {}),
            **({} if self.said_words is None else {"said": SaidWords.FORM}),
        }


class Whitening(nn.Module):
    """x (n, D) -> (x - mean) @ map (D, D). Without a `fit` x stays as it is.

    After it public text, so read, varies around zero, about equally in all directions, and the mean distance from the
    mean is what it was. A direction in which it hardly varies is not stretched in full: a `FLOOR` is added to its
    variance. `favour` then stretches what tells public labels apart: other labels will differ there, too.
    """

    mean: Tensor
    map: Tensor
    FLOOR = 0.03  # of the mean variance
    EVEN = 3.0  # times the mean variance of heads, added in each direction

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("map", torch.eye(size))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) @ self.map

    def fit(self, x: Tensor) -> None:
        """Set it from public rows (n, D), n >= 2."""
        self.mean.copy_(x.mean(0))
        variances, axes = torch.linalg.eigh(torch.cov(x.T).double())
        scales = (variances.clamp_min(0) + self.FLOOR * variances.mean()).rsqrt()
        matrix = (axes * scales @ axes.T).to(x.dtype)
        centred = x - self.mean
        self.map.copy_(matrix * (centred.norm(dim=1).mean() / (centred @ matrix).norm(dim=1).mean()))

    def favour(self, heads: Tensor) -> None:
        """Stretch the directions in which these heads of public labels differ (K, D), and shrink the others: those of
        the starts that come with edp_lab by 0.9 to 5.5. With fewer than two different heads nothing changes.

        Under noise, to learn from x @ map is to expect of new heads the covariance map @ map.T: here a quarter that of
        known heads, three quarters alike in all directions.
        """
        if len(heads) < 2:
            return
        variances, axes = torch.linalg.eigh(torch.cov(heads.T).double())
        variances = variances.clamp_min(torch.finfo(variances.dtype).tiny)
        scales = (variances / variances.mean() + self.EVEN).sqrt()
        self.map.copy_(self.map.double() @ (axes * (scales / scales.square().mean().sqrt()) @ axes.T))


# ---- The bidirectional LSTM ------------------------------------------------------------------------------------------
# Shapes: R tokens in all, D inputs, H hidden units, 2 directions; gates in the order input, forget, output, candidate.


class BiLSTM(nn.Module):
    """One bidirectional layer: w_ih (2, 4H, D), w_hh (2, 4H, H), bias (2, 4H); forget bias starts at 1."""

    def __init__(self, inputs: int, hidden_size: int) -> None:
        super().__init__()
        self.w_ih = nn.Parameter(torch.empty(2, 4 * hidden_size, inputs))
        self.w_hh = nn.Parameter(torch.empty(2, 4 * hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.zeros(2, 4 * hidden_size))
        for direction in (0, 1):
            nn.init.xavier_uniform_(self.w_ih.data[direction])
            for gate in self.w_hh.data[direction].chunk(4):
                nn.init.orthogonal_(gate)
        self.bias.data[:, hidden_size : 2 * hidden_size] = 1.0


@dataclass(frozen=True)
class Packing:
    """How flat tokens (example after example) are visited, time step after time step.

    Attributes:
        lengths: (B) tokens per example.
        index: (2, R) flat row visited at each packed position, for the forward and the backward direction.
        batch_sizes: examples that are still running at each time step, never increasing.
    """

    lengths: Tensor
    index: Tensor
    batch_sizes: list[int]

    @classmethod
    def of(cls, lengths: Tensor) -> Packing:
        ordered, order = torch.sort(lengths, descending=True, stable=True)
        start = torch.cumsum(lengths, 0) - lengths
        running = torch.arange(int(ordered[0]), device=lengths.device)[:, None] < ordered  # (T, B)
        time, example = running.nonzero(as_tuple=True)
        first = start[order][example]
        index = torch.stack([first + time, first + ordered[example] - 1 - time])
        return cls(lengths, index, running.sum(1).tolist())


def bilstm(x: Tensor, packing: Packing, w_ih: Tensor, w_hh: Tensor, bias: Tensor, ops: PlainOps) -> Tensor:
    """One layer over flat tokens: (R, D) -> (R, 2H). By plain autograd, or with the factors of the gradients kept."""

    def keep(h: Tensor, d: Tensor) -> None:
        assert isinstance(ops, MicroBatchOps)
        ops.keep(LSTMUse((w_ih, w_hh, bias), x.detach(), h, d, packing.lengths))

    kept = keep if isinstance(ops, MicroBatchOps) else None
    return _LSTM.apply(x, packing, w_ih, w_hh, bias, kept)  # type: ignore[no-any-return]


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, packing: Any, w_ih: Tensor, w_hh: Tensor, bias: Tensor, keep: Any) -> Tensor:
        out, ctx.trace = _forward(x, packing, w_ih, w_hh, bias)
        ctx.packing, ctx.keep = packing, keep
        ctx.save_for_backward(x, w_ih, w_hh)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> Any:
        x, w_ih, w_hh = ctx.saved_tensors
        d, h = _backward(dout, ctx.packing, ctx.trace, w_hh)
        dx = d.flatten(1) @ w_ih.flatten(0, 1) if ctx.needs_input_grad[0] else None
        if ctx.keep is not None:
            ctx.keep(h, d)
            return dx, None, None, None, None, None
        d_w_ih = (d.flatten(1).T @ x).view_as(w_ih)
        d_w_hh = torch.stack([d[:, k].T @ h[:, k] for k in (0, 1)])
        return dx, None, d_w_ih, d_w_hh, d.sum(0), None


class Trace(NamedTuple):
    """What the forward pass keeps, packed: active gates (2, R, 4H), cell, tanh(cell) and hidden (2, R, H)."""

    gates: Tensor
    cell: Tensor
    tanh_cell: Tensor
    hidden: Tensor


def _forward(x: Tensor, packing: Packing, w_ih: Tensor, w_hh: Tensor, bias: Tensor) -> tuple[Tensor, Trace]:
    """x (R, D), w_ih (2, 4H, D), w_hh (2, 4H, H), bias (2, 4H) -> hidden states (R, 2H) in flat order."""
    rows, hidden_size = x.shape[0], w_hh.shape[-1]
    projected = torch.addmm(bias.flatten(), x, w_ih.flatten(0, 1).T).view(rows, 2, -1)
    gates = torch.stack([projected[packing.index[d], d] for d in (0, 1)])  # (2, R, 4H)
    cell, tanh_cell, hidden = (gates.new_empty(2, rows, hidden_size) for _ in range(3))
    recurrent = w_hh.transpose(1, 2)
    before, at = 0, 0
    for step, size in enumerate(packing.batch_sizes):
        now, last = slice(at, at + size), slice(before, before + size)
        g = gates[:, now]
        if step:
            g.baddbmm_(hidden[:, last], recurrent)
        i, f, o = g[..., : 3 * hidden_size].sigmoid_().chunk(3, dim=-1)
        candidate = g[..., 3 * hidden_size :].tanh_()
        c = torch.mul(i, candidate, out=cell[:, now])
        if step:
            c.addcmul_(f, cell[:, last])
        torch.mul(o, torch.tanh(c, out=tanh_cell[:, now]), out=hidden[:, now])
        before, at = at, at + size
    flat = x.new_empty(rows, 2, hidden_size)
    for d in (0, 1):
        flat[packing.index[d], d] = hidden[d]
    return flat.flatten(1), Trace(gates, cell, tanh_cell, hidden)


def _backward(dout: Tensor, packing: Packing, trace: Trace, w_hh: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of the gates before activation (R, 2, 4H) and hidden state before each token (R, 2, H), flat.

    From these, dW_ih = d_gates^T x, dW_hh = d_gates^T h_before and db = sum d_gates, over any set of rows.
    """
    rows, hidden_size = dout.shape[0], w_hh.shape[-1]
    dout = dout.view(rows, 2, hidden_size)
    d_hidden = torch.stack([dout[packing.index[d], d] for d in (0, 1)])
    i, f, o, candidate = trace.gates.unflatten(-1, (4, hidden_size)).unbind(2)
    h_before, cell_before = _before(trace.hidden, packing), _before(trace.cell, packing)
    # All that does not depend on later steps, for all steps at once: what d_hidden is to be multiplied by for the cell
    # and the output gate, and what d_cell is for the others.
    to_cell = o.addcmul(o * trace.tanh_cell, trace.tanh_cell, value=-1)
    d_gates = torch.empty_like(trace.gates)
    slope = d_gates.unflatten(-1, (4, hidden_size))
    torch.mul(candidate, i.addcmul(i, i, value=-1), out=slope[:, :, 0])
    torch.mul(cell_before, f.addcmul(f, f, value=-1), out=slope[:, :, 1])
    torch.mul(trace.tanh_cell, o.addcmul(o, o, value=-1), out=slope[:, :, 2])
    torch.mul(i, 1 - candidate * candidate, out=slope[:, :, 3])
    sizes = packing.batch_sizes
    ends = torch.tensor(sizes).cumsum(0).tolist()
    d_cell_next: Tensor | None = None
    for step in range(len(sizes) - 1, -1, -1):
        now = slice(ends[step] - sizes[step], ends[step])
        dh = d_hidden[:, now]
        dc = dh * to_cell[:, now]
        if d_cell_next is not None:
            dc[:, : d_cell_next.shape[1]] += d_cell_next
        gates = slope[:, now]
        gates[:, :, :2] *= dc[:, :, None]
        gates[:, :, 2] *= dh
        gates[:, :, 3] *= dc
        if step:
            last = slice(now.start - sizes[step - 1], now.start - sizes[step - 1] + sizes[step])
            d_hidden[:, last].baddbmm_(d_gates[:, now], w_hh)
            d_cell_next = dc * f[:, now]
    flat_gates = dout.new_empty(rows, 2, 4 * hidden_size)
    flat_hidden = dout.new_empty(rows, 2, hidden_size)
    for d in (0, 1):
        flat_gates[packing.index[d], d] = d_gates[d]
        flat_hidden[packing.index[d], d] = h_before[d]
    return flat_gates, flat_hidden


def _before(x: Tensor, packing: Packing) -> Tensor:
    """Of each packed position (2, R, H), what stood one time step before it; zeros at the first."""
    sizes = packing.batch_sizes
    shifted = torch.zeros_like(x)
    at = sizes[0]
    for last, size in pairwise(sizes):
        shifted[:, at : at + size] = x[:, at - last : at - last + size]
        at += size
    return shifted
