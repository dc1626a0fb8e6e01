"""Per-example gradients of our models against those computed by Opacus (Yousefpour et al. 2021, arXiv 2109.12298).

A peer has the weights of one of our models, in modules whose gradients Opacus computes. The CRF, which Opacus does not
support, is removed: utterances have no slots here, and `tests/models` compares the CRF with another library's.
"""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from opacus import GradSampleModule
from opacus.layers import DPLSTM
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from edp_lab.corpora.corpus import Utterance
from edp_lab.corpora.encoding import Batch, Labels, PieceFeatures, train_wordpieces
from edp_lab.models.bert import BertIntentSlot, BertSize, new_bert
from edp_lab.models.factory import build_model, seeded
from edp_lab.models.intent_slot import IntentSlotModel, to_padded
from edp_lab.training.gradients import Layout, layer_norms, model_gradients, trainable

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")  # from Opacus, for a first layer

LABELS = Labels(("on", "off", "dim"), ())
SIZE = {"word": 6, "character": 5, "filters": 7, "hidden": 8, "layers": 2, "dropout": 0.0}


def utterances() -> list[Utterance]:
    """Utterances of 11 words to 1, longest first: DPLSTM returns gradients of packed sequences in that order."""
    rng = np.random.default_rng(0)
    texts = [tuple(f"w{'s' * rng.integers(9)}{rng.integers(20)}" for _ in range(length)) for length in range(11, 0, -1)]
    return [Utterance(words, None, LABELS.intents[k % 3]) for k, words in enumerate(texts)]


def our_model(kind: str) -> IntentSlotModel:
    if kind == "clc":
        return build_model("clc", LABELS, seed=0, private=True, size=SIZE).double()
    tokenizer = train_wordpieces([u.tokens for u in utterances()])
    size = BertSize(layers=2, heads=2, hidden=16, intermediate=24, positions=96)
    with seeded(0):
        encoder = new_bert(size.architecture(tokenizer.get_vocab_size()))
        return BertIntentSlot(LABELS, PieceFeatures(tokenizer), encoder, dropout=0.0).double()


class CLCPeer(nn.Module):
    """A peer of the CLC; like the next class, it returns one loss per utterance (B)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.words, self.characters = deepcopy(model.words), deepcopy(model.characters)
        self.convolution, self.intent = deepcopy(model.convolution), deepcopy(model.intent)
        self.lstm = nn.ModuleList(map(dp_lstm, model.lstm))

    def forward(self, batch: Batch) -> Tensor:
        words, mask = to_padded(batch.inputs["words"], batch.lengths)
        x = torch.cat([self.words(words), self.spelling(batch)], dim=2)
        for layer in self.lstm:
            packed = pack_padded_sequence(x, batch.lengths, batch_first=True)
            x = pad_packed_sequence(layer(packed)[0], batch_first=True)[0]
        pooled = x.masked_fill(~mask[..., None], -torch.inf).amax(1)
        return F.cross_entropy(self.intent(pooled), batch.intents, reduction="none")

    def spelling(self, batch: Batch) -> Tensor:
        characters = to_padded(batch.inputs["characters"], batch.lengths)[0]  # (B, T, L)
        inside = (characters > 0)[..., None]
        x = F.pad(self.characters(characters) * inside, (0, 0, 1, 1))  # (B, T, L + 2, character)
        windows = torch.cat([x[:, :, :-2], x[:, :, 1:-1], x[:, :, 2:]], dim=3)
        return torch.tanh(self.convolution(windows).masked_fill(~inside, -torch.inf).amax(2))


def reordered(weight: Tensor) -> Tensor:
    """Reorder rows (4H, ...) from our order of gates to DPLSTM's, which swaps candidate and output, or back."""
    return weight.detach().unflatten(0, (4, -1))[[0, 1, 3, 2]].flatten(0, 1)


def dp_lstm(layer: Any) -> nn.Module:
    """One layer of Opacus's LSTM with our weights and without its second bias."""
    lstm = DPLSTM(layer.w_ih.shape[2], layer.w_hh.shape[2], bidirectional=True).double()
    for direction, cell in enumerate((lstm.l0, lstm.l0_reverse)):
        for ours, theirs in ((layer.w_ih, cell.ih.weight), (layer.w_hh, cell.hh.weight), (layer.bias, cell.ih.bias)):
            theirs.data.copy_(reordered(ours[direction]))
        nn.init.zeros_(cell.hh.bias).requires_grad_(False)
    return lstm


class BertPeer(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.bert, self.intent = deepcopy(model.bert), deepcopy(model.intent)

    def forward(self, batch: Batch) -> Tensor:
        pieces, mask = to_padded(batch.inputs["pieces"], batch.inputs["pieces_rows"])
        # By default, both have a single row, which Opacus treats as a single example.
        given = {"position_ids": torch.arange(pieces.shape[1]).expand_as(pieces), "token_type_ids": pieces * 0}
        hidden = self.bert(pieces, mask, **given).last_hidden_state
        return F.cross_entropy(self.intent(hidden[:, 0].clone()), batch.intents, reduction="none")


def as_ours(peer: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of a peer's weights, (B, ...) each, with our names and shapes."""
    rows = dict(peer)
    for layer in sorted({name.rpartition(".")[0] for name in rows if name.startswith("lstm.")}):
        for ours, theirs in (("w_ih", "weight_ih"), ("w_hh", "weight_hh"), ("bias", "bias_ih")):
            both = [rows.pop(f"{layer}.{theirs}_l0{end}") for end in ("", "_reverse")]
            rows[f"{layer}.{ours}"] = torch.stack([torch.stack(list(map(reordered, way))) for way in both], dim=1)
    return rows


@pytest.mark.parametrize(("kind", "make_peer"), [("clc", CLCPeer), ("bert", BertPeer)])
def test_every_example_has_the_gradient_that_opacus_computes(kind, make_peer):
    model = our_model(kind)
    data, layout = model.dataset(utterances()), Layout.of(trainable(model))
    peer = make_peer(model)
    wrapped = GradSampleModule(peer, loss_reduction="sum", strict=False)  # BERT's position numbers are buffers
    wrapped(data.batch(np.arange(len(data)))).sum().backward()
    theirs = as_ours({name: p.grad_sample for name, p in trainable(peer)})
    assert set(theirs) == set(layout.names)
    rows = torch.cat([theirs[name].flatten(1) for name in layout.names], dim=1)  # (B, P)
    [ours] = model_gradients(model, data, list(np.arange(len(data))[:, None]), None, layout)
    assert torch.allclose(ours.norms(), layer_norms(rows, layout), rtol=1e-6, atol=1e-9)
    factors, total = torch.linspace(0.1, 2.0, len(data)).double(), torch.zeros(layout.size).double()
    ours.add_weighted_sum(factors, total)
    assert torch.allclose(total, factors @ rows, rtol=1e-6, atol=1e-9)
