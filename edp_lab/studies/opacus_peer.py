"""Opacus (Yousefpour et al. 2021, arXiv 2109.12298; version 1.6) as a peer for per-example DP-SGD.

The peer has the architecture, sizes and first weights of one of our models, from modules whose gradients Opacus knows,
and as many trainable numbers: our LSTM has one bias for each direction, so DPLSTM's second one is taken out.

What differs from our own step: dropout masks come from torch's generator (rate, places and one mask for all words of
an utterance are ours), noise too; the clip is C / (norm + 1e-6); examples are in the order of their lengths, because
DPLSTM leaves the gradients of packed sequences in that order.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from edp_lab.corpora.encoding import Batch
from edp_lab.errors import UsageError
from edp_lab.models.bert import BertIntentSlot
from edp_lab.models.clc import CLC
from edp_lab.models.crf import CRF, forward_backward
from edp_lab.models.intent_slot import IntentSlotModel, to_padded
from edp_lab.models.lstm import BiLSTM
from edp_lab.models.ops import PLAIN
from edp_lab.training.optimizers import make_optimizer
from edp_lab.training.run import Run

GATES = (0, 1, 3, 2)  # DPLSTM: input, forget, candidate, output; ours has the last two the other way round
Mode = Literal["ghost", "hooks"]


class OpacusPeer:
    """The same architecture and sizes as one of our models, trained by Opacus' modules and optimizers.

    Args:
        run: its model (which is copied, never changed), data, clip norm C, z0, batch size and optimizer.
        mode: "ghost"

    Raises:
        UsageError: Opacus is not installed.
    """

    def __init__(self, run: Run, mode: Mode = "ghost") -> None:
        try:
            from opacus.grad_sample.utils import register_grad_sampler, wrap_model
            from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
        except ImportError as error:
            raise UsageError("Opacus is not installed: pip install 'edp-lab[test]'") from error
        config = run.config
        register_grad_sampler(_CRFLoss)(crf_gradients)
        self.data, self.mode, self.device = run.train_data, mode, run.accelerator.device
        self.model = peer_model(run.model).to(self.device).train()
        clip = {"max_grad_norm": config.clip_norm} if mode == "ghost" else {}
        self.module: Any = wrap_model(self.model, mode, strict=False, **clip)
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        kind = DPOptimizerFastGradientClipping if mode == "ghost" else DPOptimizer
        self.optimizer: Any = kind(
            make_optimizer(config.optimizer, parameters, config.learning_rate),
            noise_multiplier=config.z0,
            max_grad_norm=config.clip_norm,
            expected_batch_size=config.batch_size,
        )

    def step(self, examples: np.ndarray) -> float:
        """One optimizer step on these examples: each clipped at C, noise z0 C, mean over the batch size; summed loss.

        Afterwards ``.grad`` of the peer's parameters holds what the optimizer was given.
        """
        from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

        lengths = np.array([len(self.data.utterances[k].tokens) for k in examples])
        batch = self.data.batch(np.asarray(examples)[np.argsort(-lengths, kind="stable")]).to(self.device)
        self.optimizer.zero_grad()
        losses = self.module(batch)
        if self.mode == "ghost":
            DPTensorFastGradientClipping(self.module, self.optimizer, losses).backward()
        else:
            losses.mean().backward()
        self.optimizer.step()
        return float(losses.detach().sum())


def peer_model(model: IntentSlotModel) -> _Peer:
    """A copy of one of our models, from modules that Opacus supports."""
    if isinstance(model, CLC):
        return _PeerCLC(model)
    assert isinstance(model, BertIntentSlot)
    return _PeerBert(model)


class _Peer(nn.Module):
    """Heads and loss; everything is padded, (B, T, ...), because Opacus wants one example for each first index."""

    def __init__(self, model: IntentSlotModel, dropout: float) -> None:
        super().__init__()
        self.intent = deepcopy(model.intent)
        if model.labels.tags:
            self.slots = deepcopy(model.slots)
            self.crf = _CRFLoss(model.labels.tags).to(model.crf.start.dtype)
            self.crf.load_state_dict(model.crf.state_dict())
        self.dropout = nn.Dropout(dropout)

    def encode(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Pooled (B, P) and per-token (B, T, D) representations."""
        raise NotImplementedError

    def forward(self, batch: Batch) -> Tensor:
        """One loss per utterance, (B)."""
        pooled, tokens = self.encode(batch)
        loss = F.cross_entropy(self.intent(pooled), batch.intents, reduction="none")
        if batch.tags is None:
            return loss
        tags, mask = to_padded(batch.tags, batch.lengths)
        return loss + self.crf(self.slots(tokens), tags, mask).to(loss.dtype)

    def shared_dropout(self, x: Tensor) -> Tensor:
        """(B, T, D), with one mask for all words of an utterance."""
        dropped: Tensor = x * self.dropout(x.new_ones(len(x), 1, x.shape[2]))
        return dropped


class _PeerCLC(_Peer):
    def __init__(self, model: CLC) -> None:
        super().__init__(model, model.size.dropout)
        self.words, self.characters = deepcopy(model.words), deepcopy(model.characters)
        self.convolution = _convolution(model.convolution, model.size.character)
        self.lstm = nn.ModuleList(_dp_lstm(layer) for layer in model.lstm if isinstance(layer, BiLSTM))

    def encode(self, batch: Batch) -> tuple[Tensor, Tensor]:
        words, mask = to_padded(batch.inputs["words"], batch.lengths)
        x = torch.cat([self.words(words), self._spelling(batch)], dim=2)  # (B, T, word + filters)
        lengths = batch.lengths.cpu()
        for layer in self.lstm:
            packed = pack_padded_sequence(self.shared_dropout(x), lengths, batch_first=True)
            x = pad_packed_sequence(layer(packed)[0], batch_first=True)[0]
        x = self.shared_dropout(x)
        return x.masked_fill(~mask[..., None], -torch.inf).amax(1), x

    def _spelling(self, batch: Batch) -> Tensor:
        """Width-3 convolution over a word's bytes, then the maximum over its positions: (B, T, filters)."""
        characters = to_padded(batch.inputs["characters"], batch.lengths)[0]  # (B, T, L)
        characters = characters[..., : int((characters > 0).sum(2).max())]
        inside = characters > 0
        x = self.characters(characters) * inside[..., None]
        filtered = self.convolution(x.permute(0, 3, 1, 2))  # (B, filters, T, L)
        return torch.tanh(filtered.masked_fill(~inside[:, None], -torch.inf).amax(3)).transpose(1, 2)


class _PeerBert(_Peer):
    def __init__(self, model: BertIntentSlot) -> None:
        super().__init__(model, model.dropout)
        self.bert = deepcopy(model.bert)

    def encode(self, batch: Batch) -> tuple[Tensor, Tensor]:
        pieces, mask = to_padded(batch.inputs["pieces"], batch.inputs["pieces_rows"])
        hidden = self.bert(
            input_ids=pieces,
            attention_mask=mask,
            # By default both have a first dimension of 1, for which Opacus sees one example.
            position_ids=torch.arange(pieces.shape[1], device=pieces.device).repeat(len(pieces), 1),
            token_type_ids=torch.zeros_like(pieces),
        ).last_hidden_state
        first = to_padded(batch.inputs["words"], batch.lengths)[0]  # (B, T)
        tokens = hidden.gather(1, first[..., None].expand(*first.shape, hidden.shape[2]))
        return self.dropout(hidden[:, 0]), self.shared_dropout(tokens)


class _CRFLoss(CRF):
    """A module of its own, whose inputs and output gradient Opacus records for `crf_gradients`."""

    def forward(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        return PLAIN.crf(emissions, tags, mask, self)


def crf_gradients(crf: CRF, inputs: list[Tensor], weight: Tensor) -> dict[nn.Parameter, Tensor]:
    """Opacus' grad sampler of `_CRFLoss`: each example's gradient, given that of its loss (B)."""
    emissions, tags, mask = inputs
    tag_count = len(crf.start)
    found = forward_backward(emissions, mask, crf.start, crf.transitions, crf.end)
    gold = F.one_hot(tags, tag_count) * mask[..., None]
    at_token = found.marginals - gold  # (B, T, K)
    last = at_token[torch.arange(len(tags), device=tags.device), mask.sum(1) - 1]
    moves = (crf.transitions.detach() - found.highest).exp() * (found.before.transpose(1, 2) @ found.after)
    gold_moves = tags[:, :-1] * tag_count + tags[:, 1:]
    moves.flatten(1).scatter_add_(1, gold_moves, -mask[:, 1:].to(moves.dtype))
    parts = {crf.start: at_token[:, 0], crf.transitions: moves, crf.end: last}
    return {p: torch.einsum("n...,n->n...", g, weight.to(g.dtype)).to(p.dtype) for p, g in parts.items()}


def _convolution(linear: nn.Linear, channels: int) -> nn.Conv2d:
    """Our width-3 convolution over bytes as (B, channels, T, L) -> (B, filters, T, L)."""
    convolution = nn.Conv2d(channels, linear.out_features, (1, 3), padding=(0, 1)).to(linear.weight.dtype)
    convolution.weight.data.copy_(linear.weight.unflatten(1, (3, channels)).transpose(1, 2)[:, :, None])
    convolution.bias = deepcopy(linear.bias)
    return convolution


def _dp_lstm(layer: BiLSTM) -> nn.Module:
    """One bidirectional layer of Opacus' DPLSTM with our weights and a single bias for each direction."""
    from opacus.layers import DPLSTM

    _, gates, inputs = layer.w_ih.shape
    lstm = DPLSTM(inputs, gates // 4, bidirectional=True).to(layer.w_ih.dtype)
    for direction, cell in enumerate((lstm.l0, lstm.l0_reverse)):
        cell.ih.weight.data.copy_(reordered(layer.w_ih[direction]))
        cell.hh.weight.data.copy_(reordered(layer.w_hh[direction]))
        cell.ih.bias.data.copy_(reordered(layer.bias[direction]))
        nn.init.zeros_(cell.hh.bias).requires_grad_(False)
    return lstm


def reordered(weight: Tensor) -> Tensor:
    """Rows (4H, ...) from our order of gates to DPLSTM's, or back."""
    return weight.detach().unflatten(0, (4, -1))[list(GATES)].flatten(0, 1)
