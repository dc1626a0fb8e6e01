"""Opacus (Yousefpour et al. 2021, arXiv 2109.12298) as a peer for per-example DP-SGD, in the faster of its two modes.

A peer has the architecture, sizes and first weights of one of our models, from modules whose gradients Opacus knows,
and as many trainable numbers: our LSTM has one bias for each direction, so DPLSTM's second one stays at zero.

What differs from our own step: dropout masks and noise come from torch's generator; the clip is C / (norm + 1e-6); the
learning rate does not fall; and a batch is padded to its longest utterance, so that each first index is an example.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from edp_lab.corpora.encoding import Batch
from edp_lab.errors import UsageError
from edp_lab.models.bert import BertIntentSlot
from edp_lab.models.clc import CLC, BiLSTM
from edp_lab.models.crf import CRF, forward_backward, path_score
from edp_lab.models.intent_slot import IntentSlotModel, to_padded
from edp_lab.training.gradients import trainable
from edp_lab.training.optimizers import make_optimizer
from edp_lab.training.trainer import Trainer

try:
    from opacus.grad_sample.utils import wrap_model
    from opacus.layers import DPLSTM
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping
except ImportError as missing:
    raise UsageError("method 'opacus' needs Opacus 1.6 or newer: pip install opacus, or edp-lab[test]") from missing


class OpacusPeer:
    """A model of Opacus' modules under its optimizer.

    Args:
        model: from a batch to a loss for each example, (B).
        batch_of: the batch of examples with these numbers.
        ghost: whether to keep only the norms of the examples' gradients and go backward twice (Li et al. 2022, arXiv
            2110.05679, section 4), rather than keep the gradients.
    """

    def __init__(
        self,
        model: nn.Module,
        batch_of: Callable[[np.ndarray], Any],
        optimizer: torch.optim.Optimizer,
        clip_norm: float,
        noise_multiplier: float,
        batch_size: int,
        ghost: bool,
    ) -> None:
        self.model, self.batch_of, self.ghost = model, batch_of, ghost
        clip = {"max_grad_norm": clip_norm} if ghost else {}
        # Not strict, because BertModel has buffers: position numbers, which no example changes.
        self.module: Any = wrap_model(model, "ghost" if ghost else "hooks", strict=False, **clip)
        kind = DPOptimizerFastGradientClipping if ghost else DPOptimizer
        noised = {"noise_multiplier": noise_multiplier, "max_grad_norm": clip_norm}
        self.optimizer: Any = kind(optimizer, expected_batch_size=batch_size, **noised)

    def step(self, examples: np.ndarray) -> float:
        """One optimizer step on these examples: each clipped at C, their sum noised, mean over the batch size.

        Afterwards ``.grad`` of the model's parameters holds what the optimizer was given. Returns the summed loss.
        """
        batch = self.batch_of(examples)
        self.optimizer.zero_grad(set_to_none=True)
        losses = self.module(batch)
        if self.ghost:
            DPTensorFastGradientClipping(self.module, self.optimizer, losses).backward()
        else:
            losses.mean().backward()
        self.optimizer.step()
        return float(losses.detach().sum())


def text_peer(run: Trainer, ghost: bool | None = None) -> OpacusPeer:
    """The same architecture and sizes as one of our intent and slot models.

    Args:
        run: of DP-SGD with Adam; its model (which is copied, never changed), data, C, noise, batch size, learning rate.
        ghost: None: what is faster on a CPU: True for BERT, False for the CLC, but there by a tenth only, as DPLSTM
            forms its gradients anyway, and that is most of the step.
    """
    config, mechanism, data = run.config, run.mechanism, run.train_data
    assert mechanism is not None
    model = _Peer(run.model).to(run.accelerator.device).train()

    def batch_of(examples: np.ndarray) -> Batch:
        # DPLSTM leaves the gradients of packed sequences in the order of falling length; other layers must agree.
        order = np.argsort(-data.lengths[examples], kind="stable")
        return data.batch(examples[order]).to(run.accelerator.device)

    return OpacusPeer(
        model,
        batch_of,
        make_optimizer(config.optimizer, [p for _, p in trainable(model)], config.learning_rate),
        mechanism.clip_norm,
        mechanism.noise_std(0) / mechanism.clip_norm,
        config.batch_size,
        isinstance(run.model, BertIntentSlot) if ghost is None else ghost,
    )


class _Peer(nn.Module):
    """A copy of one of our models, from modules that Opacus supports."""

    def __init__(self, model: IntentSlotModel) -> None:
        super().__init__()
        self.encoder = _CLCEncoder(model) if isinstance(model, CLC) else _BertEncoder(model)
        self.intent = deepcopy(model.intent)
        if model.labels.tags:
            self.slots, self.crf = deepcopy(model.slots), _CRFLoss(model.crf)

    def forward(self, batch: Batch) -> Tensor:
        """One loss per utterance, (B)."""
        pooled, tokens = self.encoder(batch)
        loss = F.cross_entropy(self.intent(pooled), batch.intents, reduction="none")
        if batch.tags is None:
            return loss
        return loss + self.crf(self.slots(tokens), *to_padded(batch.tags, batch.lengths))


class _CLCEncoder(nn.Module):
    def __init__(self, model: CLC) -> None:
        super().__init__()
        self.dropout = nn.Dropout1d(model.size.dropout)  # one mask for all words of an utterance
        self.words, self.characters = deepcopy(model.words), deepcopy(model.characters)
        filters = model.convolution.weight.unflatten(1, (3, -1)).transpose(1, 2)  # (filters, character, 3)
        self.convolution = nn.Conv2d(filters.shape[1], filters.shape[0], (1, 3), padding=(0, 1))
        self.convolution.weight = nn.Parameter(filters.detach()[:, :, None].contiguous())
        self.convolution.bias = deepcopy(model.convolution.bias)
        self.lstm = nn.ModuleList(_dp_lstm(layer) for layer in model.lstm if isinstance(layer, BiLSTM))

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Pooled (B, P) and per-token (B, T, D) representations."""
        words, mask = to_padded(batch.inputs["words"], batch.lengths)
        x = torch.cat([self.words(words), self._spelling(batch)], dim=2)  # (B, T, word + filters)
        for layer in self.lstm:
            packed = pack_padded_sequence(self.dropout(x.mT).mT, batch.lengths.cpu(), batch_first=True)
            x = pad_packed_sequence(layer(packed)[0], batch_first=True)[0]
        x = self.dropout(x.mT).mT
        return x.masked_fill(~mask[..., None], -torch.inf).amax(1), x

    def _spelling(self, batch: Batch) -> Tensor:
        """Width-3 convolution over a word's bytes, then the maximum over its positions: (B, T, filters)."""
        characters = to_padded(batch.inputs["characters"], batch.lengths)[0]  # (B, T, L)
        characters = characters[..., : int((characters > 0).sum(2).max())]
        inside = characters > 0
        # Opacus' gradients of a convolution are only right if its input is contiguous.
        x = (self.characters(characters) * inside[..., None]).permute(0, 3, 1, 2).contiguous()  # (B, character, T, L)
        return torch.tanh(self.convolution(x).masked_fill(~inside[:, None], -torch.inf).amax(3)).transpose(1, 2)


def _dp_lstm(layer: BiLSTM) -> nn.Module:
    """One bidirectional layer of Opacus' DPLSTM with our weights and a single bias for each direction."""
    lstm = DPLSTM(layer.w_ih.shape[2], layer.w_hh.shape[2], bidirectional=True).to(layer.w_ih.dtype)
    for direction, cell in enumerate((lstm.l0, lstm.l0_reverse)):
        for ours, theirs in ((layer.w_ih, cell.ih.weight), (layer.w_hh, cell.hh.weight), (layer.bias, cell.ih.bias)):
            theirs.data.copy_(reordered(ours[direction]))
        nn.init.zeros_(cell.hh.bias).requires_grad_(False)
    return lstm


def reordered(weight: Tensor) -> Tensor:
    """Rows (4H, ...) from our order of gates to DPLSTM's, where the candidate stands before the output, or back."""
    return weight.detach().unflatten(0, (4, -1))[[0, 1, 3, 2]].flatten(0, 1)


class _BertEncoder(nn.Module):
    def __init__(self, model: IntentSlotModel) -> None:
        super().__init__()
        assert isinstance(model, BertIntentSlot)
        self.bert, self.dropout = deepcopy(model.bert), nn.Dropout1d(model.dropout)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Pooled (B, H), the vector of [CLS], and tokens (B, T, H), that of each word's first piece."""
        pieces, mask = to_padded(batch.inputs["pieces"], batch.inputs["pieces_rows"])
        hidden = self.bert(
            input_ids=pieces,
            attention_mask=mask,
            # By default both have a first dimension of 1, for which Opacus sees one example; it wants no view either.
            position_ids=torch.arange(pieces.shape[1], device=pieces.device).repeat(len(pieces), 1),
            token_type_ids=torch.zeros_like(pieces),
        ).last_hidden_state
        first = to_padded(batch.inputs["words"], batch.lengths)[0]  # (B, T)
        tokens = hidden.gather(1, first[..., None].expand(*first.shape, hidden.shape[2]))
        return self.dropout(hidden[:, :1].mT)[..., 0], self.dropout(tokens.mT).mT


class _CRFLoss(nn.Module):
    """The CRF's loss by way of a linear layer, whose gradients Opacus knows in every mode.

    A path's score is linear in start, transitions and end; its features are how often it uses each. So the gradient of
    -log p is their expectation less their number in the given path (Sutton and McCallum, arXiv 1011.4088, chapter 5).
    """

    def __init__(self, crf: CRF) -> None:
        super().__init__()
        weight = torch.cat([p.detach().flatten() for p in (crf.start, crf.transitions, crf.end)])
        self.score = nn.Linear(len(weight), 1, bias=False)
        self.score.weight = nn.Parameter(weight[None])

    def forward(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """(B, T, K), (B, T), (B, T) -> (B)."""
        k, kind = emissions.shape[2], emissions.dtype
        with torch.no_grad():
            start, transitions, end = self.score.weight[0].split([k, k * k, k])
            parameters = start, transitions.view(k, k), end
            found = forward_backward(emissions, mask, *parameters)
            loss = (found.log_partition - path_score(emissions, tags, mask, *parameters)).to(kind)
            at_token = found.marginals - F.one_hot(tags, k) * mask[..., None]  # (B, T, K)
            last = at_token[torch.arange(len(tags), device=tags.device), mask.sum(1) - 1]
            moves = (transitions.double() - found.highest).exp() * (found.before.mT @ found.after).flatten(1)
            moves.scatter_add_(1, tags[:, :-1] * k + tags[:, 1:], -mask[:, 1:].double())
            features = torch.cat([at_token[:, 0], moves, last], dim=1)
        linear = self.score(features.to(kind))[:, 0] + (emissions * at_token.to(kind)).sum((1, 2))
        return linear + (loss - linear).detach()  # the gradient of the one, the value of the other
