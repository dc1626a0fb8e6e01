"""Word vectors: read fastText's ``.vec`` files, train on separate text, save and load.

Vectors come with their vocabulary, and both must be public if a run is to be private. Use published vectors, or
train vectors on a *separate* set of utterances, as the paper did for its internal corpora (section 4.2).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from edp_lab.errors import UsageError
from edp_lab.files import given_path, parse_tensors, read_bytes, read_json, regular, write_whole

DIMENSIONS = 100  # number of dimensions of the vectors trained by `train_vectors`
SUBWORD_BUCKETS = 50_000  # rows for hashed character n-grams; gensim's default of 2 million is for web-sized text


@dataclass(frozen=True)
class WordVectors:
    """V different words, most frequent first, and their vectors: matrix (V, D), float32.

    Raises:
        UsageError: there are no words, or the matrix has another length or a non-finite entry.
    """

    words: tuple[str, ...]
    matrix: Tensor

    def __post_init__(self) -> None:
        shape = tuple(self.matrix.shape)
        if not self.words or len(shape) != 2 or shape[0] != len(self.words) or not shape[1]:
            raise UsageError(f"{len(self.words)} words do not match a matrix of shape {shape}: give one row per word")
        if not self.matrix.isfinite().all():
            row = int((~self.matrix.isfinite().all(1)).nonzero()[0])
            raise UsageError(f"the vector of {self.words[row]!r} is not finite: correct or remove it")

    def lower_cased(self) -> WordVectors:
        """Keep one vector per lower-cased word, the vector of its most frequent spelling."""
        first: dict[str, int] = {}
        for k, word in enumerate(self.words):
            first.setdefault(word.lower(), k)
        return WordVectors(tuple(first), self.matrix[list(first.values())])

    def save(self, folder: Path) -> None:
        """Write ``words.json`` and ``vectors.safetensors`` into an existing folder."""
        write_whole(folder / "vectors.safetensors", safetensors.torch.save({"vectors": self.matrix}))
        write_whole(folder / "words.json", json.dumps(self.words).encode())


def load_vectors(path: Path | str, most: int = 100_000) -> WordVectors:
    """Load the `most` most frequent words of a fastText ``.vec`` file, or of a folder that `save` wrote.

    Raises:
        UsageError: the file is missing, damaged or not a ``.vec`` file; pickles, such as gensim's, are not opened.
    """
    path = given_path(path)
    if path.is_dir():
        file = path / "vectors.safetensors"
        words, tensors = read_json(path / "words.json"), parse_tensors(read_bytes(file), file)
        matrix = tensors.get("vectors")
        whole = isinstance(words, list) and all(isinstance(word, str) for word in words)
        if not whole or matrix is None or not matrix.ndim:
            raise UsageError(f"{path} contains no word vectors: make them with `edp-lab pretrain --model clc`")
        return WordVectors(tuple(words[:most]), matrix.float()[:most])
    if not path.exists():
        raise UsageError(f"{path} does not exist: give a .vec file, or a folder made by `edp-lab pretrain`")
    if regular(path).suffix == ".vec":
        return _read_text(path, most)
    raise UsageError(
        f"{path} is not a .vec file: give fastText's vectors as text, which are published next to the .bin file"
    )


def train_vectors(
    sentences: Sequence[Sequence[str]], size: int = DIMENSIONS, epochs: int = 10, seed: int = 0
) -> WordVectors:
    """Use gensim to train fastText skip-gram vectors (Bojanowski et al. 2017) of all lower-cased words.

    Training uses one thread, so the same arguments yield the same vectors.

    Raises:
        UsageError: no sentence contains a word.
    """
    from gensim.models.fasttext import FastText  # slow to import

    text = [[token.lower() for token in sentence] for sentence in sentences]
    if not any(text):
        raise UsageError("the text for the word vectors is empty: give at least one sentence")
    model = FastText(
        text,
        sg=1,
        vector_size=size,
        epochs=epochs,
        seed=seed % 2**32,
        min_count=1,
        bucket=SUBWORD_BUCKETS,
        workers=1,
    )
    return WordVectors(tuple(model.wv.index_to_key), torch.from_numpy(model.wv.vectors.copy()))


def _read_text(path: Path, most: int) -> WordVectors:
    from gensim.models import KeyedVectors  # slow to import

    try:
        read = KeyedVectors.load_word2vec_format(str(path), limit=most, unicode_errors="replace")
    except (ValueError, EOFError) as error:
        raise UsageError(f"{path} is not a complete .vec file ({error}): download it again") from error
    words = tuple(read.key_to_index)  # each word once
    return WordVectors(words, torch.from_numpy(read.vectors[: len(words)]))
