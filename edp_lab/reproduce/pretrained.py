"""What networks start from in the tables: text and weights that have nothing to do with the corpus at hand.

The paper's CLC reads published fastText vectors, its BERT was pretrained on Wikipedia (section 4.2). Nothing here is
private, and all methods start alike: else a sound run, which may not read words off its training set, would differ from
SGD in more than its noise.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edp_lab.corpora import load_corpus
from edp_lab.corpora.smart_home import generate
from edp_lab.errors import UsageError
from edp_lab.models.bert import load_bert
from edp_lab.models.files import new_folder
from edp_lab.models.vectors import WordVectors
from edp_lab.reproduce.run_cache import content_of
from edp_lab.training.pretraining import pretrain_vectors, shorten_bert
from edp_lab.training.run_folder import digest

ENCODER = "sentence-transformers/all-MiniLM-L6-v2"  # 384 wide; pretrained on Wikipedia, among others
FINE_TUNING = 2e-4  # BERT's learning rate from there
PUBLIC = ("atis", "snips", "nlu-eval")  # each is text that is not to be protected, where another one is
TEXT_SEED, GENERATED = 14586, 20_000
LOUDER = 8.0  # brings the encoder's numbers, .06 in size, to that of embeddings that are learnt; a power of 2 is exact


def public_encoder(name: str, layers: int, folder: Path) -> str:
    """The first layers of a published encoder, in a folder named by what it was made of.

    Raises:
        UsageError: it cannot be loaded, or has fewer layers.
    """
    made = _named(folder, "encoder", name, str(layers))
    if not made.is_dir():
        with _named_encoder(name):
            shorten_bert(name, layers, made)
    return str(made)


def public_words(name: str, folder: Path) -> str:
    """A published encoder's vectors of whole words, before it reads them in context, as vectors for the CLC.

    Raises:
        UsageError: it cannot be loaded.
    """
    made = _named(folder, "words", name)
    if not made.is_dir():
        with _named_encoder(name):
            bert, tokenizer = load_bert(name)
        matrix = LOUDER * bert.embeddings.word_embeddings.weight.detach()
        pieces = sorted((number, piece) for piece, number in tokenizer.get_vocab().items())
        whole = [(n, piece) for n, piece in pieces if not piece.startswith("##") and not _special(piece)]
        with new_folder(made) as inside:
            WordVectors(tuple(piece for _, piece in whole), matrix[[n for n, _ in whole]]).save(inside)
    return str(made)


def public_vectors(corpus: str, folder: Path) -> str:
    """FastText vectors of text that has nothing to do with `corpus`, in a folder named by their content.

    The text: the other corpora as far as they are at hand, and utterances generated for this purpose.
    """
    text = [u.tokens for u in generate(GENERATED, TEXT_SEED).utterances]
    for name in PUBLIC:
        if name != corpus:
            try:
                text += [u.tokens for u in load_corpus(name).utterances]
            except UsageError:
                continue  # not at hand
    made = folder / hashlib.sha256(json.dumps(text).encode()).hexdigest()[:16]
    if not made.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        pretrain_vectors(text, made)
    return str(made)


@contextmanager
def _named_encoder(name: str) -> Iterator[None]:
    """What goes wrong inside is an encoder's fault."""
    try:
        yield
    except UsageError as error:
        raise UsageError(
            f"the public encoder {name!r} cannot be used: give --encoder a folder that holds a BERT, or a hub name and "
            f"a network ({error})"
        ) from error


def _named(folder: Path, kind: str, name: str, *more: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{kind}-{digest({}, content_of(name).encode(), *map(str.encode, more))[:16]}"


def _special(piece: str) -> bool:
    return len(piece) > 1 and piece.startswith("[") and piece.endswith("]")
