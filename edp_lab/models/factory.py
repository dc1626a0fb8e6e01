"""Build a model from a seed, save it to a folder, and load it again.

A saved model is a folder with two files, ``model.json`` (kind, labels, configuration) and
``weights-<checksum>.safetensors``. ``model.json`` names the other file, and one checksum covers both. To save a model,
we write the weights to a new file and then replace ``model.json``. So readers find either the old pair of files or the
new pair, even if the writer is killed. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from edp_lab.corpora.corpus import Utterance
from edp_lab.corpora.encoding import Labels, PieceFeatures, WordFeatures, parse_tokenizer, train_wordpieces
from edp_lab.errors import UsageError, writing
from edp_lab.files import parse_tensors, read_bytes, read_json, write_whole
from edp_lab.models.clc import CLC, CLCSize
from edp_lab.models.intent_slot import IntentSlotModel
from edp_lab.models.private_heads import LabelNameFeatures, PrivateHeads, WhitenedCLC
from edp_lab.models.public_start import is_start, load_start, warm_start
from edp_lab.models.vectors import load_vectors
from edp_lab.privacy.csprng import Purpose, key_from_seed, stream

KINDS = ("clc", "bert")


def build_model(
    kind: str,
    labels: Labels,
    *,
    seed: int,
    training: Sequence[Utterance] = (),
    private: bool,
    pretrained: str | None = None,
    size: Mapping[str, Any] | None = None,
    frozen: bool = False,
) -> IntentSlotModel:
    """Build a new model. Its weights depend only on the seed, the shapes and `pretrained`.

    A guarantee requires that the vocabulary is not taken from `training`; with `private`, it never is.

    Args:
        kind: "clc" or "bert".
        training: the training utterances; their words are used only if `private` is false and `pretrained` is None.
        pretrained: for the CLC, either word vectors (see `load_vectors`), which stay frozen, or a CLC to start from
            (see `edp_lab.models.public_start`), which determines the size. For BERT, a folder or hub name (see
            `load_bert`). We assume that it is public or was trained on separate text.
        size: fields of `CLCSize` or `BertSize` that differ from the paper's. Pretrained BERT weights determine the
            sizes, and only the dropout is used.
        frozen: for a CLC that starts from another CLC, train only the heads and the CRF.

    Raises:
        UsageError: the kind is unknown, pretrained weights cannot be loaded, or a private BERT has no pretrained
            weights (its word pieces would be learnt from the private text).
    """
    if kind not in KINDS:
        raise UsageError(f"unknown model {kind!r}: choose one of {', '.join(KINDS)}")
    from_start = kind == "clc" and pretrained is not None and is_start(pretrained)
    if frozen and not from_start:
        raise UsageError("--frozen needs a public starting model: give one with --pretrained, or omit --frozen")
    with seeded(seed):
        if kind == "bert":
            return _build_bert(labels, training, private, pretrained, size)
        if pretrained is not None and from_start:
            return _from_start(pretrained, labels, size, frozen)
        shape = CLCSize(**size or {})
        if pretrained is None:
            return CLC(labels, WordFeatures() if private else WordFeatures.from_training_words(training), shape)
        if Path(pretrained, "config.json").exists():
            raise UsageError(f"{pretrained} contains a BERT: choose --model bert, or give word vectors or a start")
        vectors = load_vectors(pretrained).lower_cased()
        return CLC(labels, WordFeatures(vectors.words), shape, vectors.matrix)


def save_model(model: IntentSlotModel, folder: Path | str, hint: str = "choose another folder") -> None:
    """Write a model to a folder, which is created if needed; an older model in it is replaced.

    Raises:
        UsageError: the folder cannot be written; the message ends in `hint`.
    """
    folder = Path(folder)
    about, weights = _content(model)
    checksum = _checksum(about, weights)
    with writing(folder, hint):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(_weights_file(folder, checksum), weights, hint)
        write_whole(folder / "model.json", json.dumps({**about, "sha256": checksum}).encode(), hint)
        for old in set(folder.glob("weights-*")) - {_weights_file(folder, checksum)}:
            old.unlink(missing_ok=True)


def model_checksum(model: IntentSlotModel) -> str:
    """Checksum of the model, as stored in ``model.json`` when the model is saved."""
    return _checksum(*_content(model))


def _content(model: IntentSlotModel) -> tuple[dict[str, Any], bytes]:
    about: dict[str, Any] = {
        "kind": "clc" if isinstance(model, CLC) else "bert",
        "labels": {"intents": model.labels.intents, "tags": model.labels.tags},
        "config": model.config(),
    }
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    return about, safetensors.torch.save(state)


def load_model(folder: Path | str) -> IntentSlotModel:
    """Load a model written by `save_model` onto the CPU, without changing the random state.

    Raises:
        UsageError: the folder contains no model, or the model is damaged.
    """
    folder = Path(folder)
    if not (folder / "model.json").exists():
        raise UsageError(f"{folder} contains no saved model (no model.json): give the folder of a finished run")
    about = read_json(folder / "model.json")
    checksum = about.pop("sha256", None) if isinstance(about, dict) else None
    if not isinstance(checksum, str) or not re.fullmatch("[0-9a-f]{64}", checksum):
        raise UsageError(f"{folder / 'model.json'} does not describe a model: restore the folder or train again")
    file = _weights_file(folder, checksum)
    weights = read_bytes(file)
    if _checksum(about, weights) != checksum:
        raise UsageError(f"the model in {folder} is damaged (its checksum differs): restore the folder or train again")
    state = parse_tensors(weights, file)
    try:
        labels = Labels(tuple(about["labels"]["intents"]), tuple(about["labels"]["tags"]))
        dtype, sizes = next(iter(state.values())).dtype, about["config"]
        layers = sizes.get("size", {}).get("layers", 0), sizes.get("bert", {}).get("num_hidden_layers", 0)
        if max(layers) > len(state):
            raise ValueError("more layers than tensors")  # which would take hours to build
        with torch.device("meta"), SkipInit():  # shapes only: allocates no memory for weights that the file lacks
            blank = _rebuild(about["kind"], labels, about["config"]).to(dtype)
        if shapes(blank.state_dict()) != shapes(state):
            raise ValueError("the tensors do not match this version")
    except Exception as error:  # torch, transformers and tokenizers raise many types, including plain Exception
        raise UsageError(f"the model in {folder} is from another version of edp_lab: train it again") from error
    with seeded(0):
        model = _rebuild(about["kind"], labels, about["config"]).to(dtype)
    model.load_state_dict(state)
    return model


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and type of each tensor. Compare these before copying, which would broadcast or convert silently."""
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


class SkipInit(TorchFunctionMode):
    """Context that skips `normal_`, because on the device "meta" its first use imports torch's compiler (2 s)."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        return (*args, *given.values())[0] if function is torch.nn.init.normal_ else function(*args, **given)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Context in which torch's CPU generator starts from `seed`; its previous state is restored afterwards."""
    with torch.random.fork_rng(devices=[]):
        start = stream(key_from_seed(seed), Purpose.INITIAL_WEIGHTS).integers(2**63)
        torch.default_generator.manual_seed(int(start))
        yield


def _from_start(name: str, labels: Labels, size: Mapping[str, Any] | None, frozen: bool) -> CLC:
    model = warm_start(load_start(name), labels, frozen)
    model.size = replace(model.size, dropout=CLCSize(**size or {}).dropout)
    return model


def _build_bert(
    labels: Labels,
    training: Sequence[Utterance],
    private: bool,
    pretrained: str | None,
    size: Mapping[str, Any] | None,
) -> IntentSlotModel:
    from edp_lab.models.bert import BertIntentSlot, BertSize, load_bert, new_bert  # transformers is slow to import

    chosen = BertSize(**size or {})
    if pretrained is not None:
        bert, tokenizer = load_bert(pretrained)
    elif private:
        raise UsageError(
            "a private BERT needs pretrained weights, or its word pieces would be learnt from private text: "
            "set --pretrained to a hub name or to a folder made by `edp-lab pretrain --model bert`"
        )
    else:
        tokenizer = train_wordpieces([u.tokens for u in training])
        bert = new_bert(chosen.architecture(tokenizer.get_vocab_size()))
    features = PieceFeatures(tokenizer, bert.config.max_position_embeddings)
    return BertIntentSlot(labels, features, bert, chosen.dropout)


def _rebuild(kind: str, labels: Labels, config: Mapping[str, Any]) -> IntentSlotModel:
    """Build the architecture that `IntentSlotModel.config` describes, with arbitrary weights."""
    if kind == "clc":
        words, columns = tuple(config["words"]), config["vector_size"]
        vectors = None if columns is None else torch.zeros(len(words), columns)
        numbered, size = WordFeatures(words, config["buckets"]), CLCSize(**config["size"])
        known = {"words", "buckets", "size", "vector_size", "whitened", "label_names"}
        if config.keys() - known or config.get("label_names", LabelNameFeatures.FORM) != LabelNameFeatures.FORM:
            raise ValueError("its heads have different inputs")
        if vectors is None or "whitened" not in config:
            return CLC(labels, numbered, size, vectors)
        return (PrivateHeads if "label_names" in config else WhitenedCLC)(labels, numbered, size, vectors)
    from edp_lab.models.bert import BertIntentSlot, new_bert

    bert, tokenizer = new_bert(config["bert"]), parse_tokenizer(config["tokenizer"])
    features = PieceFeatures(tokenizer, bert.config.max_position_embeddings)
    return BertIntentSlot(labels, features, bert, config["dropout"])


def _checksum(about: Mapping[str, Any], weights: bytes) -> str:
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    digest.update(weights)
    return digest.hexdigest()


def _weights_file(folder: Path, checksum: str) -> Path:
    return folder / f"weights-{checksum[:16]}.safetensors"
