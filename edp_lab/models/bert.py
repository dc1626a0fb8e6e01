"""BERT with an intent head on [CLS] and a CRF slot head on the first piece of each word.

The paper's second model (section 4.2): 4 layers, 12 heads, hidden size 312, the shape of TinyBERT (Jiao et
al. 2020, arXiv 1909.10351). The encoder is transformers' `BertModel`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from torch import Tensor
from transformers import BertConfig, BertModel
from transformers.utils import cached_file

from edp_lab.corpora.encoding import Batch, Labels
from edp_lab.errors import UsageError
from edp_lab.models.files import read_json
from edp_lab.models.intent_slot import IntentSlotModel, dropout
from edp_lab.models.ops import PlainOps
from edp_lab.models.pieces import PieceFeatures, parse_tokenizer, wordpiece_tokenizer

# What distinguishes one BertModel's arithmetic and shapes from another's.
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
CHUNK = 32  # utterances that are encoded together


@dataclass(frozen=True)
class BertSize:
    """The paper's sizes; `dropout` on the encoder's output is ours."""

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
    """transformers' configuration without its dropout, whose masks are not keyed by example: simulated
    devices and real ones would differ."""
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertConfig(**{**architecture, **no_dropout, "attn_implementation": "sdpa"})


def new_bert(architecture: Mapping[str, Any]) -> BertModel:
    """An encoder without pooling layer, its weights drawn from torch's generator."""
    return BertModel(bert_config(architecture), add_pooling_layer=False)


def encode_pieces(bert: BertModel, pieces: Tensor, rows: Tensor) -> Tensor:
    """BERT's output (P, H) for flat pieces (P), utterance after utterance, of which each has `rows` (B).

    Padding is masked in every layer, so an utterance's output and gradient do not depend on its neighbours.
    There is little of it: utterances of similar length go through together.
    """
    first = rows.cumsum(0) - rows
    outputs, places = [], []
    for chunk in rows.argsort(stable=True).split(CHUNK):
        column = torch.arange(int(rows[chunk].max()), device=rows.device)
        mask = column < rows[chunk, None]  # (b, T)
        place = (first[chunk, None] + column).where(mask, first[chunk, None])
        # An additive 4-D mask is taken as it is. (It is also the one with which torch.func.vmap works.)
        bias = torch.zeros(mask.shape, dtype=bert.dtype, device=mask.device).masked_fill(~mask, -torch.inf)
        hidden = bert(input_ids=pieces[place], attention_mask=bias[:, None, None]).last_hidden_state
        outputs.append(hidden[mask])
        places.append(place[mask])
    return torch.cat(outputs)[torch.cat(places).argsort()]


class BertIntentSlot(IntentSlotModel):
    """Args: `features` cut words into pieces; `bert` comes from `load_bert` or `new_bert`."""

    features: PieceFeatures

    def __init__(self, labels: Labels, features: PieceFeatures, bert: BertModel, dropout: float = 0.1) -> None:
        width = bert.config.hidden_size
        super().__init__(labels, pooled_size=width, token_size=width)
        self.features, self.bert, self.dropout = features, bert, dropout

    def encode(self, batch: Batch, ops: PlainOps, dropout_key: int | None) -> tuple[Tensor, Tensor]:
        """Pooled (B, H), the vector of [CLS], and tokens (R, H), that of each word's first piece.

        The encoder's parameters get plain gradients, whatever `ops`: the trainer runs BERT once per device.
        """
        rows = batch.inputs["pieces_rows"]
        hidden = encode_pieces(self.bert, batch.inputs["pieces"], rows)
        first = rows.cumsum(0) - rows
        tokens = hidden[torch.repeat_interleave(first, batch.lengths) + batch.inputs["words"]]
        pooled = dropout(hidden[first], batch, self.dropout, dropout_key, 0)
        return pooled, dropout(tokens, batch, self.dropout, dropout_key, 1)

    def config(self) -> dict[str, object]:
        return {
            "bert": {name: getattr(self.bert.config, name) for name in ARCHITECTURE},
            "tokenizer": self.features.tokenizer.to_str(),
            "dropout": self.dropout,
        }


def load_bert(name: str) -> tuple[BertModel, Tokenizer]:
    """A pretrained encoder (float32, without dropout and pooling layer) and its tokenizer.

    Args:
        name: a local folder with ``config.json``, ``model.safetensors`` and ``tokenizer.json`` or
            ``vocab.txt``, or a model on the Hugging Face hub. Only safetensors are read: nothing is
            unpickled.

    Raises:
        UsageError: nothing can be loaded, or what was loaded is no BERT.
    """
    name = os.path.expanduser(name)
    in_a_folder = "/" in name and Path(name).parent.is_dir()
    if not Path(name).is_dir() and (in_a_folder or not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", name)):
        raise UsageError(f"{name!r} is neither a folder nor a hub name: give a folder that `edp-lab pretrain` made")
    if Path(name).is_dir() and not Path(name, "config.json").exists():
        raise UsageError(f"{name!r} holds no config.json: give a folder or hub name of a BERT model")
    try:
        with quiet():
            bert, loading = _from_pretrained(name)
            tokenizer = load_tokenizer(name)
    except UsageError:
        raise
    except Exception as error:  # transformers and tokenizers raise a dozen kinds, bare Exception among them
        raise UsageError(
            f"no pretrained BERT can be loaded from {name!r} ({_first_line(error)}): give a hub name or a "
            "folder with config.json, model.safetensors and tokenizer.json, such as `edp-lab pretrain` makes"
        ) from error
    if bad := {*loading["missing_keys"], *(key for key, *_ in loading["mismatched_keys"])}:
        raise UsageError(
            f"the weights in {name!r} lack BERT's {min(bad)}, or hold it in another shape than its "
            "config.json says: give the folder or hub name of a BERT model"
        )
    if tokenizer.get_vocab_size() > bert.config.vocab_size:
        raise UsageError(
            f"the tokenizer of {name!r} has {tokenizer.get_vocab_size()} pieces, but its weights only "
            f"{bert.config.vocab_size}: give a folder where both belong together"
        )
    return bert, tokenizer


def _from_pretrained(name: str) -> tuple[BertModel, dict[str, Any]]:
    """The encoder, and which weights were missing or of another shape."""
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
    return loaded  # a pair, because of output_loading_info


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a local folder or hub name: ``tokenizer.json``, else ``vocab.txt``, which is taken to
    be lower-cased unless ``tokenizer_config.json`` says otherwise."""
    if path := _file(name, "tokenizer.json"):
        return parse_tokenizer(path.read_text(encoding="utf-8"))
    if path := _file(name, "vocab.txt"):
        pieces = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
        settings = _file(name, "tokenizer_config.json")
        lower_case = settings is None or read_json(settings).get("do_lower_case", True)
        return wordpiece_tokenizer([piece.rstrip("\r") for piece in pieces], lower_case)
    raise UsageError(f"{name!r} holds neither tokenizer.json nor vocab.txt: add one of them")


def _file(name: str, file: str) -> Path | None:
    found = cached_file(name, file, _raise_exceptions_for_missing_entries=False)
    return None if found is None else Path(found)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")


@contextmanager
def quiet() -> Iterator[None]:
    """Within the block, transformers shows no progress bar and no report on the language-model head, which we
    drop."""
    log = transformers.utils.logging
    verbosity, bar = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bar:
            log.enable_progress_bar()
