"""Public starting models ("starts") for private runs: a CLC trained without privacy on labelled public commands.

Its word vectors stay frozen; the character CNN and the LSTM are trained further. The heads' inputs are whitened with
public text, because noise is isotropic, and stretched in directions that separate public labels. The known heads belong
to other labels. So the head of a new label is initialised from those of labels with similar names, such as "from_city"
for "fromloc.city_name". Label sets are public, and nothing else of the private corpus is used.

    data/public_start/NAME/about.json             labels, words, sizes, sources
                          /weights.safetensors    vectors in 8 bits, other weights in 16, without the CRF
                          /seen_letters.u4        keys of the training utterances, except generated everyday requests

If you train on a corpus that a start was made from, its weights contain your utterances, and no epsilon covers that.
So each start lists its training utterances, and a private run is refused if its corpus has more than a few of them.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edp_lab.corpora.corpus import fold
from edp_lab.corpora.encoding import Dataset, Labels, WordFeatures
from edp_lab.errors import UsageError
from edp_lab.files import comes_with, parse_tensors, read_bytes, read_json, sealed, unsealed, write_whole
from edp_lab.models.clc import CLC, CLCSize
from edp_lab.models.ghost_clipping.ops import PLAIN
from edp_lab.models.private_heads import Names, PrivateHeads, WhitenedCLC

STARTS = comes_with("data") / "public_start"
NAMES = ("public-start", "public-start-without-snips", "public-start-without-nlu-eval")
ABOUT, WEIGHTS, SEEN = "about.json", "weights.safetensors", "seen_letters.u4"
WORDS, VECTORS = "words.weight", torch.float8_e4m3fn
UNKNOWN_WORDS = 1  # number of rows, all zero, shared by the words without a vector
PLACES = 1024  # number of hashed places for words in the features of a frozen start (see `LabelNameFeatures`)
NAME_LOGIT = 6.0  # increase of an intent's logit if all words of its name occur
HEAD_SCALE = 0.4  # factor for known heads that initialise a new head, because training must correct these guesses
MOST_SEEN = 0.05  # largest share of distinct private utterances that a start may know: short commands coincide
NO_LETTERS = re.compile(r"[\W_\u02b0-\u02ff\u0345\u07f4\u07f5\ua78b\ua78c]+")  # also signs that are letters in Unicode


def start_folder(name: str) -> Path:
    """Folder of a start, given by name if it comes with edp_lab, or by path if it is the user's own."""
    return STARTS / name if name in NAMES else Path(name)


def start_for(corpus: str) -> str:
    """Choose the start for a corpus only by the corpus' name: if texts mattered, one text could change the choice."""
    without = f"{NAMES[0]}-without-{Path(corpus).name}"
    return without if without in NAMES else NAMES[0]


def seen(name: str, keys: np.ndarray) -> np.ndarray:
    """Whether the start was trained on the utterances with these keys: (n) bool. UsageError if its list is damaged."""
    folder = start_folder(name)
    try:
        listed = read_bytes(folder / SEEN)
        if hashlib.sha256(listed).hexdigest() != unsealed(read_json(folder / ABOUT))["seen"]:
            raise ValueError("another list")
        return np.isin(keys, np.frombuffer(listed, "<u4"))
    except (UsageError, ValueError, KeyError, TypeError, AttributeError):
        hint = f"its list of utterances: restore it, or make {name} again"
        raise UsageError(f"{name} has no intact {SEEN}, {hint}") from None


def check_unseen(name: str, texts: Iterable[str]) -> None:
    """Raise UsageError if a start was trained on utterances that a run is to protect, because no epsilon covers that.

    Copies count once, because common phrases may be a large part of a corpus. Other pretrained weights are not checked.
    """
    if not is_start(name):
        return
    heard = list(texts)
    keys, first, copies = np.unique(utterance_keys(heard), return_index=True, return_counts=True)
    words = [heard[place].split() for place in first]
    # Also check texts without the first or last word, which may be a row number, a speaker or a mark.
    forms = [keys, *(utterance_keys(" ".join(text[cut]) for text in words) for cut in (slice(1, None), slice(-1)))]

    def read(start: str) -> np.ndarray:
        return np.any([seen(start, form) for form in forms], axis=0)

    known = read(name)
    if known.sum() > MOST_SEEN * len(known):
        example = fold(heard[first[known][copies[known].argmax()]])
        others = [other for other in NAMES if other != name and read(other).mean() <= MOST_SEEN]
        hint = f"give --pretrained {' or '.join(others)}" if others else "give a --pretrained made without them"
        raise UsageError(
            f"{name} has read {known.mean():.0%} of the different utterances, such as {example!r}, so no epsilon would "
            f"hold: {hint}, or leave them out"
        )


def utterance_keys(texts: Iterable[str]) -> np.ndarray:
    """32-bit hash of each text's letters and digits: (n), uint32. 1 text in 61,000 has one of 70,000 keys by chance."""
    shown = [fold(text).replace(" ", "").upper() for text in texts]  # i with and without a dot have the same capital
    letters = (NO_LETTERS.sub("", unicodedata.normalize("NFKD", text)) or text for text in shown)  # or symbols
    return np.array([zlib.crc32(each.encode(errors="surrogatepass")) for each in letters], "<u4")


def made_of(name: str | None) -> list[str]:
    """Training corpora of a start, one line each with the licence; empty if `name` is not a start."""
    if name is None or not is_start(name):
        return []
    return [str(line) for line in read_json(start_folder(name) / ABOUT)["made_of"]]


def is_start(name: str | None) -> bool:
    """Whether a run's `pretrained` names a public start."""
    return name is not None and (start_folder(name) / ABOUT).exists()


def save_start(model: WhitenedCLC, folder: Path, made_of: Sequence[str], texts: Iterable[str]) -> None:
    """Write a start into an existing folder, as the files listed at the top of this module."""
    words, size = model.features.words, asdict(model.size)
    state = {name: tensor.half().contiguous() for name, tensor in model.state_dict().items() if "crf" not in name}
    state[WORDS] = state[WORDS].to(VECTORS)
    content = safetensors.torch.save(state)
    about: dict[str, Any] = {"made_of": list(made_of), "intents": model.labels.intents, "tags": model.labels.tags}
    about |= {"size": size, "words": words, "weights": hashlib.sha256(content).hexdigest()}
    about["seen"] = hashlib.sha256(listed := np.unique(utterance_keys(texts)).tobytes()).hexdigest()
    write_whole(folder / WEIGHTS, content)
    write_whole(folder / SEEN, listed)
    write_whole(folder / ABOUT, json.dumps(sealed(about)).encode())


def load_start(name: str) -> WhitenedCLC:
    """Load a model written by `save_start`, with a new CRF; UsageError if the folder is damaged."""
    folder = start_folder(name)
    weights = read_bytes(folder / WEIGHTS)
    try:
        about = unsealed(read_json(folder / ABOUT))
        if hashlib.sha256(weights).hexdigest() != about["weights"]:
            raise ValueError("other weights")
        labels = Labels(tuple(about["intents"]), tuple(about["tags"]))
        features, size = WordFeatures(tuple(about["words"]), UNKNOWN_WORDS), CLCSize(**about["size"])
        model = WhitenedCLC(labels, features, size, torch.zeros(len(features.words), size.word))
        state = {name: tensor.float() for name, tensor in parse_tensors(weights, folder / WEIGHTS).items()}
        crf = {f"crf.{name}": tensor for name, tensor in model.crf.state_dict().items()}
        model.load_state_dict(state | crf)
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise UsageError(f"the start in {folder} is damaged or from another version ({error}): make it again") from None
    return model


def rounded(vectors: Tensor) -> Tensor:
    """Round vectors to the precision of a saved start, to train a model on the vectors that will be saved."""
    return vectors.to(VECTORS).float()


@torch.no_grad()
def whitened(plain: CLC, public: Dataset) -> WhitenedCLC:
    """Convert a model to one with heads on features that are whitened on these utterances' words and sentences.

    At epsilon 8, this lowers the tuning seed's error: ATIS .098 to .086, SNIPS .144 to .140, NLU-EVAL .355 to .320.
    """
    model = WhitenedCLC(plain.labels, plain.features, plain.size, plain.words.weight[:-UNKNOWN_WORDS])
    body = {name: tensor for name, tensor in plain.state_dict().items() if not name.startswith(("intent", "slots"))}
    model.load_state_dict(model.state_dict() | body)
    read = [model.encode(batch, PLAIN, None) for batch in model.inference_batches(public, 256)]
    model.pooled_view.fit(torch.cat([pooled for pooled, _ in read]))
    model.token_view.fit(torch.cat([tokens for _, tokens in read]))
    for name, view in (("intent", model.pooled_view), ("slots", model.token_view)):
        old, new = getattr(plain, name), getattr(model, name)
        weight = F.pad(old.weight, (0, new.in_features - old.in_features))
        view.favour(torch.linalg.solve(view.map.double(), weight.T.double()).T)
        new.weight.copy_(torch.linalg.solve(view.map.double(), weight.T.double()).T)
        new.bias.copy_(old.bias + weight @ view.mean)
    return model


def warm_start(start: WhitenedCLC, labels: Labels, frozen: bool = False) -> WhitenedCLC:
    """Create a model for these labels: `start` with new heads, initialised from those of labels with similar names.

    B- and I- tags are initialised separately, and O from O. A label without a similar name gets the mean of all heads.
    If `frozen`, the model is a `PrivateHeads`, and intents also read their own `LabelNameFeatures`, times `NAME_LOGIT`.
    """
    features = replace(start.features, buckets=PLACES if frozen else UNKNOWN_WORDS)
    vectors = start.words.weight[: len(features.words)].detach().clone()
    model = (PrivateHeads if frozen else WhitenedCLC)(labels, features, start.size, vectors)
    names = Names(features.words, vectors)
    with torch.no_grad():
        for part in ("characters", "convolution", "lstm", "pooled_view", "token_view"):
            getattr(model, part).load_state_dict(getattr(start, part).state_dict())
        _take(model.intent, start.intent, names.nearness(labels.intents, start.labels.intents))
        if frozen:
            model.intent.weight[:, -len(labels.intents) :].fill_diagonal_(NAME_LOGIT)
        if labels.tags:
            _take(model.slots, start.slots, _tag_nearness(names, labels.tags, start.labels.tags))
    return model


def _tag_nearness(names: Names, new: Sequence[str], known: Sequence[str]) -> Tensor:
    """Initialisation weights of tags (new, known): B- from B-, I- from I-, O from O."""
    weights = torch.zeros(len(new), len(known))
    for prefix in ("B-", "I-"):
        rows, columns = ([k for k, tag in enumerate(tags) if tag.startswith(prefix)] for tags in (new, known))
        if rows and columns:
            near = names.nearness([new[k][2:] for k in rows], [known[k][2:] for k in columns])
            weights[torch.tensor(rows)[:, None], torch.tensor(columns)] = near
    weights[new.index("O"), known.index("O")] = 1.0
    return weights


def _take(new: nn.Linear, known: nn.Linear, weights: Tensor) -> None:
    new.weight.zero_()[:, : known.in_features] = HEAD_SCALE * weights @ known.weight
    new.bias.copy_(HEAD_SCALE * weights @ known.bias)
