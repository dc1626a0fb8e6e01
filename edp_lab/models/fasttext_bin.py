"""Reads the word vectors of a fastText ``.bin`` file.

The format is a dump of C++ structs (fastText's ``Dictionary::save`` and ``DenseMatrix::save``): numbers and
zero-terminated words, no pickle. A word's vector is the mean of its own row and those of its character
n-grams. gensim's reader agrees (a test says so), but loads the whole file, several gigabytes for the
published models, and never returns where the file ends inside the vocabulary; this one maps the file and
touches only the rows it needs.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import numpy as np

from edp_lab.errors import UsageError

MAGIC = 793712314
HEADER = struct.Struct("<14id")  # magic, version, dim, ws, epoch, min_count, neg, word_ngrams, loss, model, bucket, ...
COUNTS = struct.Struct("<3iqq")  # entries, words, labels, tokens, pruned n-grams (-1: none)
ENTRY = struct.Struct("<qb")  # after each word: its count, and whether it is a word or a label
MATRIX = struct.Struct("<?qq")  # quantised, rows, columns


def read_fasttext_bin(path: Path, most: int) -> tuple[list[str], np.ndarray]:
    """The `most` first words, which are the most frequent ones, and their vectors (V, D), float32.

    Raises:
        UsageError: not a fastText file, a supervised or quantised model, or a file that ends too early.
    """
    try:
        with open(path, "rb") as file:  # the map closes with its last view, also where an error holds one
            return _read(path, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), most)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})") from error
    except (struct.error, ValueError, OverflowError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{path} is no whole fastText .bin file: download it again") from error


def _read(path: Path, data: mmap.mmap, most: int) -> tuple[list[str], np.ndarray]:
    from gensim.models.fasttext import ft_ngram_hashes  # slow to import

    header = HEADER.unpack_from(data)
    magic, columns, buckets, shortest, longest = (header[k] for k in (0, 2, 10, 11, 12))
    if magic != MAGIC:
        raise UsageError(f"{path} is not a fastText .bin file: give one, or a .vec text file")
    entries, words_stored, labels, _, pruned = COUNTS.unpack_from(data, HEADER.size)
    words, at = _words(data, HEADER.size + COUNTS.size, entries, most)
    quantised, rows, matrix_columns = MATRIX.unpack_from(data, at)
    if labels or quantised or pruned > 0:
        raise UsageError(f"{path} is a supervised or quantised fastText model: give one of unsupervised word vectors")
    if (rows, matrix_columns) != (words_stored + buckets, columns):
        raise ValueError("the matrix does not fit the vocabulary")
    table = np.frombuffer(data, "<f4", rows * columns, at + MATRIX.size).reshape(rows, columns)
    vectors = np.empty((len(words), columns), dtype=np.float32)
    for k, word in enumerate(words):
        hashes = ft_ngram_hashes(word, shortest, longest, buckets) if buckets else []
        vectors[k] = table[[k, *(words_stored + h for h in hashes)]].mean(0)
    return words, vectors


def _words(data: mmap.mmap, at: int, entries: int, most: int) -> tuple[list[str], int]:
    """The first words, and where the vocabulary ends."""
    words = []
    for k in range(entries):
        end = data.find(b"\0", at)
        if end < 0:
            raise ValueError("the file ends inside the vocabulary")
        if k < most:
            words.append(data[at:end].decode(errors="replace"))
        at = end + 1 + ENTRY.size
    return words, at
