"""BERT with an intent head on [CLS] and a CRF slot head on the first piece of each word.

This is the paper's second model (section 4.2). It has 4 layers, 12 heads and hidden size 312, like TinyBERT (Jiao et
al. 2020, arXiv 1909.10351). The encoder is transformers' `BertModel`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import huggingface_hub.utils
import torch
import transformers
from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F
from transformers import BertConfig, BertModel
from transformers.utils import cached_file

from edp_lab.corpora.encoding import Batch, Labels, PieceFeatures, parse_tokenizer, wordpiece_tokenizer
from edp_lab.errors import UsageError
from edp_lab.files import read_json
from edp_lab.models.ghost_clipping.ops import PLAIN, PlainOps
from edp_lab.models.intent_slot import IntentSlotModel, dropout

# Settings that determine the arithmetic and the shapes of a BertModel.
ARCHITECTURE = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "max_position_embeddings",
    "type_vocab_size",
    "layer_norm_eps",
    "pad_token_id",
)
CHUNK = 32  # number of utterances per attention block


@dataclass(frozen=True)
class BertSize:
    """Sizes from the paper; `dropout` on the encoder's output is our choice."""

    layers: int = 4
    heads: int = 12
    hidden: int = 312
    intermediate: int = 1200
    positions: int = 512
    dropout: float = 0.1

    def architecture(self, vocabulary: int) -> dict[str, Any]:
        return {
            "vocab_size": vocabulary,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.intermediate,
            "max_position_embeddings": self.positions,
        }


def bert_config(architecture: Mapping[str, Any]) -> BertConfig:
    """Configuration of a BertModel without dropout, which would differ between simulated and real devices."""
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertConfig(**{**architecture, **no_dropout, "attn_implementation": "sdpa"})


def new_bert(architecture: Mapping[str, Any]) -> BertModel:
    """Create an encoder without a pooling layer, with weights drawn from torch's random generator."""
    return BertModel(bert_config(architecture), add_pooling_layer=False)


def encode_pieces(bert: BertModel, pieces: Tensor, rows: Tensor, ops: PlainOps = PLAIN) -> Tensor:
    """BERT's output (P, H) for flat pieces (P), utterance after utterance; `rows` (B): pieces per utterance.

    The weights are in transformers' `BertModel`, but its forward pass is reimplemented here for flat pieces: only
    attention is padded, and every parameter is used through `ops`.
    """
    parts: Any = bert.embeddings
    position = torch.arange(len(pieces), device=rows.device) - (rows.cumsum(0) - rows).repeat_interleave(rows)
    x = ops.embedding(pieces, parts.word_embeddings.weight, rows)
    x = x + ops.embedding(position, parts.position_embeddings.weight, rows)
    x = x + ops.embedding(torch.zeros_like(pieces), parts.token_type_embeddings.weight, rows)
    x = _normal(parts.LayerNorm, x, rows, ops)
    blocks = _attention_blocks(rows, x.dtype)
    for layer in bert.encoder.layer:
        x = _layer(layer, x, rows, blocks, ops)
    return x


def _layer(layer: Any, x: Tensor, rows: Tensor, blocks: list[_Block], ops: PlainOps) -> Tensor:
    attention, output = layer.attention.self, layer.attention.output
    projected = torch.cat(
        [_linear(part, x, rows, ops) for part in (attention.query, attention.key, attention.value)], dim=1
    )
    mixed = torch.cat([block.attend(projected, attention.num_attention_heads) for block in blocks])
    mixed = mixed.index_select(0, torch.cat([block.place for block in blocks]).argsort())
    x = _normal(output.LayerNorm, x + _linear(output.dense, mixed, rows, ops), rows, ops)
    between = layer.intermediate.intermediate_act_fn(_linear(layer.intermediate.dense, x, rows, ops))
    return _normal(layer.output.LayerNorm, x + _linear(layer.output.dense, between, rows, ops), rows, ops)


def _linear(part: Any, x: Tensor, rows: Tensor, ops: PlainOps) -> Tensor:
    return ops.linear(x, part.weight, part.bias, rows)


def _normal(part: Any, x: Tensor, rows: Tensor, ops: PlainOps) -> Tensor:
    return ops.layer_norm(x, part.weight, part.bias, part.eps, rows)


class _Block(NamedTuple):
    """Attention block: b utterances of similar length, padded to T pieces.

    Attributes:
        place: (R) flat piece indices; `slot`: their positions on the padded (b * T) grid.
        bias: (b, 1, 1, T) 0 for pieces, and minus infinity for padding, which is masked out.
    """

    place: Tensor
    slot: Tensor
    bias: Tensor

    def attend(self, projected: Tensor, heads: int) -> Tensor:
        """Concatenated queries, keys and values (P, 3H) -> attention output (R, H)."""
        b, steps = len(self.bias), self.bias.shape[3]
        gathered = projected.index_select(0, self.place)
        grid = gathered.new_zeros(b * steps, gathered.shape[1]).index_copy(0, self.slot, gathered)
        query, key, value = grid.view(b, steps, 3, heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=self.bias)
        return mixed.transpose(1, 2).reshape(b * steps, -1).index_select(0, self.slot)


def _attention_blocks(rows: Tensor, dtype: torch.dtype) -> list[_Block]:
    first = rows.cumsum(0) - rows
    blocks = []
    for chunk in rows.argsort(stable=True).split(CHUNK):
        column = torch.arange(int(rows[chunk].max()), device=rows.device)
        mask = column < rows[chunk, None]  # (b, T)
        bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -torch.inf)
        place = (first[chunk, None] + column)[mask]
        blocks.append(_Block(place, mask.flatten().nonzero()[:, 0], bias[:, None, None]))
    return blocks


class BertIntentSlot(IntentSlotModel):
    """The paper's BERT model. `features` split words into pieces; `bert` comes from `load_bert` or `new_bert`."""

    features: PieceFeatures

    def __init__(self, labels: Labels, features: PieceFeatures, bert: BertModel, dropout: float = 0.1) -> None:
        width = bert.config.hidden_size
        super().__init__(labels, pooled_size=width, token_size=width)
        self.features, self.bert, self.dropout = features, bert, dropout

    def encode(self, batch: Batch, ops: PlainOps, dropout_key: int | None) -> tuple[Tensor, Tensor]:
        """Return the vectors of [CLS] (B, H), and the vector of the first piece of each word (R, H)."""
        rows = batch.inputs["pieces_rows"]
        hidden = encode_pieces(self.bert, batch.inputs["pieces"], rows, ops)
        first = rows.cumsum(0) - rows
        tokens = hidden.index_select(0, torch.repeat_interleave(first, batch.lengths) + batch.inputs["words"])
        pooled = dropout(hidden.index_select(0, first), batch, self.dropout, dropout_key, 0)
        return pooled, dropout(tokens, batch, self.dropout, dropout_key, 1)

    def config(self) -> dict[str, object]:
        architecture = {name: getattr(self.bert.config, name) for name in ARCHITECTURE}
        return {"bert": architecture, "tokenizer": self.features.tokenizer.to_str(), "dropout": self.dropout}


def load_bert(name: str) -> tuple[BertModel, Tokenizer]:
    """Load a pretrained encoder (float32, without dropout or pooling layer) and its tokenizer.

    Args:
        name: a local folder with ``config.json``, ``model.safetensors`` and ``tokenizer.json`` or
            ``vocab.txt``, or a model on the Hugging Face hub. Only safetensors are read, so nothing is
            unpickled.

    Raises:
        UsageError: the model cannot be loaded, or is not a BERT model.
    """
    name = os.path.expanduser(name)
    in_a_folder = "/" in name and Path(name).parent.is_dir()
    if not Path(name).is_dir() and (in_a_folder or not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", name)):
        raise UsageError(f"{name!r} is neither a folder nor a hub name: give a folder made by `edp-lab pretrain`")
    if Path(name).is_dir() and not Path(name, "config.json").exists():
        raise UsageError(f"{name!r} contains no config.json: give a folder or hub name of a BERT model")
    try:
        with quiet():
            if not Path(name).is_dir() and try_to_load_from_cache(name, "config.json") is None:
                get_hf_file_metadata(hf_hub_url(name, "config.json"))  # fails immediately without a network
            config = BertConfig.from_pretrained(name)
            loaded: Any = BertModel.from_pretrained(
                name,
                config=bert_config({field: getattr(config, field) for field in ARCHITECTURE}),
                add_pooling_layer=False,
                use_safetensors=True,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
            bert, loading = loaded  # `loading` lists the weights that were missing or had another shape
            tokenizer = load_tokenizer(name)
    except UsageError:
        raise
    except Exception as error:  # transformers and tokenizers raise many types, including plain Exception
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UsageError(
            f"no pretrained BERT can be loaded from {name!r} ({lines[0].rstrip('.')}): give a hub name, or a "
            "folder with config.json, model.safetensors and tokenizer.json, such as one from `edp-lab pretrain`"
        ) from error
    if bad := {*loading["missing_keys"], *(key for key, *_ in loading["mismatched_keys"])}:
        raise UsageError(
            f"the weights in {name!r} lack BERT's {min(bad)}, or have it in a shape that contradicts "
            "config.json: give the folder or hub name of a BERT model"
        )
    if tokenizer.get_vocab_size() > bert.config.vocab_size:
        raise UsageError(
            f"the tokenizer of {name!r} has {tokenizer.get_vocab_size()} pieces, but its weights have only "
            f"{bert.config.vocab_size}: give a folder with a matching tokenizer and weights"
        )
    return bert, tokenizer


def load_tokenizer(name: str) -> Tokenizer:
    """Load a tokenizer from ``tokenizer.json``, or from ``vocab.txt`` (lower-cased unless its settings differ)."""

    def find(file: str) -> Path | None:
        location = cached_file(name, file, _raise_exceptions_for_missing_entries=False)
        return None if location is None else Path(location)

    if path := find("tokenizer.json"):
        return parse_tokenizer(path.read_text(encoding="utf-8"))
    if path := find("vocab.txt"):
        pieces = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
        settings = find("tokenizer_config.json")
        lower_case = settings is None or read_json(settings).get("do_lower_case", True)
        return wordpiece_tokenizer([piece.rstrip("\r") for piece in pieces], lower_case)
    raise UsageError(f"{name!r} contains neither tokenizer.json nor vocab.txt: add one of them")


@contextmanager
def quiet() -> Iterator[None]:
    """Context that silences progress bars, connection messages and the report on the unused language-model head."""
    log, hub = transformers.utils.logging, huggingface_hub.utils.logging
    verbosity, of_hub, bar = log.get_verbosity(), hub.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    hub.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        hub.set_verbosity(of_hub)
        if bar:
            log.enable_progress_bar()
