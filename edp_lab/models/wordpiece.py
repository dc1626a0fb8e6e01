"""Word pieces for BERT: their vocabulary, which piece stands for which word, and words as a frozen encoder reads them.

BERT reads word pieces, slots are tagged by word. A word is represented by its first piece (Devlin et al.
2019, arXiv 1810.04805, section 5.3); the other pieces are read but carry no tag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from edp_lab.corpora.corpus import Ragged, Words
from edp_lab.corpora.encoding import WordFeatures
from edp_lab.errors import UsageError

if TYPE_CHECKING:  # slow to import
    from transformers import BertModel

AT_ONCE = 256  # utterances that are encoded together
KEPT = 20_000  # different utterances that are remembered: a validation split is read after every epoch
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True)
class PieceFeatures:
    """Word pieces of each utterance, [CLS] and [SEP] included, and where each word begins among them.

    An utterance with more pieces than `positions` keeps the first k pieces of every word, with the largest k
    that fits, so that no word, and no tag, is ever lost. This depends on the utterance alone.

    Attributes:
        tokenizer: a BERT tokenizer, see `edp_lab.models.bert.load_tokenizer`.
        positions: pieces that the model can read at most.
    """

    tokenizer: Tokenizer
    positions: int = 512

    def rows(self, sentences: Sequence[Sequence[str]] | Words) -> dict[str, Ragged]:
        """The piece numbers of each utterance ("pieces"), and for each of its words the place of the first of
        its pieces among them ("words").

        Raises:
            UsageError: an utterance has more words than pieces can be read.
        """
        numbers = self.tokenizer.get_vocab()
        unknown, start, stop = (numbers[piece] for piece in ("[UNK]", "[CLS]", "[SEP]"))
        indexed = sentences if isinstance(sentences, Words) else Words.of(sentences)
        encoded = self.tokenizer.encode_batch(list(indexed.types), add_special_tokens=False)
        pieces_of = [e.ids or [unknown] for e in encoded]
        pieces, words, room = [], [], self.positions - 2
        for k in range(len(indexed.numbers)):
            codes = indexed.numbers.gather(np.array([k]))[0].tolist()
            if len(codes) > room:
                start_of_it = " ".join(indexed.types[w] for w in codes[:5])
                raise UsageError(
                    f"the utterance '{start_of_it} ...' has {len(codes)} words, but this BERT reads at most {room}: "
                    "leave it out or split it"
                )
            split = [pieces_of[w] for w in codes]
            longest = max(map(len, split))
            while sum(min(len(word), longest) for word in split) > room:
                longest -= 1
            split = [word[:longest] for word in split]
            pieces.append(np.array([start, *chain(*split), stop], dtype=np.int64))
            words.append(1 + np.cumsum([0, *map(len, split[:-1])], dtype=np.int64))
        return {"pieces": Ragged.of(pieces), "words": Ragged.of(words)}


def wordpiece_tokenizer(vocabulary: Sequence[str], lower_case: bool = True) -> Tokenizer:
    """BERT's tokenizer for a vocabulary in the order of its numbers, which contains the five special pieces.

    Raises:
        UsageError: a special piece is missing.
    """
    numbers = {piece: k for k, piece in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower_case)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    check_special(tokenizer)
    ends = [(piece, numbers[piece]) for piece in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    return tokenizer


def parse_tokenizer(text: str) -> Tokenizer:
    """A tokenizer from its JSON, with truncation and padding, which would misplace words, turned off."""
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    check_special(tokenizer)
    return tokenizer


def check_special(tokenizer: Tokenizer) -> None:
    """UsageError if a special piece is missing from the tokenizer's vocabulary."""
    for piece in SPECIAL:
        if tokenizer.token_to_id(piece) is None:
            raise UsageError(f"the tokenizer has no {piece} piece: give one that was made for BERT")


def train_wordpieces(sentences: Sequence[Sequence[str]], size: int = 8000) -> Tokenizer:
    """A lower-casing tokenizer whose vocabulary of at most about `size` pieces is learnt from the sentences.

    The same sentences give the same vocabulary. (The trainer numbers the pieces "##c" of single characters in
    the order of a hash map, and breaks ties by number; naming these pieces beforehand takes the chance out.)
    Not private: the vocabulary reveals words of the text.
    """
    lower = normalizers.BertNormalizer(lowercase=True)
    text = [" ".join(sentence) for sentence in sentences]
    characters = sorted(set(lower.normalize_str("".join(text))) - {" "})
    alphabet = [*characters, *(f"##{c}" for c in characters)]
    learner = wordpiece_tokenizer(SPECIAL)
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, min_frequency=2, special_tokens=[*SPECIAL, *alphabet], show_progress=False
    )
    learner.train_from_iterator(text, trainer)
    numbers = learner.get_vocab()
    return wordpiece_tokenizer(sorted(numbers, key=numbers.__getitem__))


# ---- Words as a frozen encoder reads them ----------------------------------------------------------------------------


class ContextFeatures:
    """A vector (D) for each word in its sentence, and the word's UTF-8 bytes: for the CLC, in place of word vectors.

    A published encoder knows what a word means in its sentence. Frozen, it is no parameter: nothing of it is clipped or
    noised, and an utterance is encoded once for a whole run. What is left to be trained privately is small.
    The vector is the mean over the word's pieces and over the encoder's layers, its embeddings among them. It depends
    on the utterance alone and on the encoder, which is assumed public.
    """

    def __init__(self, bert: BertModel, tokenizer: Tokenizer) -> None:
        self.bert = bert.requires_grad_(False)
        self.pieces = PieceFeatures(tokenizer, bert.config.max_position_embeddings)
        self._spelling = WordFeatures((), 1)
        self._known: dict[tuple[str, ...], np.ndarray] = {}

    @property
    def width(self) -> int:
        return int(self.bert.config.hidden_size)

    def rows(self, sentences: Sequence[Sequence[str]] | Words) -> dict[str, Ragged]:
        """Vectors ("words"), (R, D) in float32, and bytes ("characters") of R words.

        Raises:
            UsageError: see `PieceFeatures.rows`.
        """
        indexed = sentences if isinstance(sentences, Words) else Words.of(sentences)
        numbers = (indexed.numbers.gather(np.array([k]))[0] for k in range(len(indexed.numbers)))
        read = [tuple(indexed.types[w] for w in utterance.tolist()) for utterance in numbers]
        if len(self._known.keys() | set(read)) > KEPT:
            self._known = {}
        missing = sorted(set(read) - self._known.keys(), key=lambda words: (len(words), words))
        for start in range(0, len(missing), AT_ONCE):
            some = missing[start : start + AT_ONCE]
            self._known |= zip(some, self._encoded(some), strict=True)
        vectors = Ragged.of([self._known[words] for words in read])
        return {"words": vectors, "characters": self._spelling.rows(indexed)["characters"]}

    @torch.no_grad()
    def _encoded(self, sentences: Sequence[tuple[str, ...]]) -> list[np.ndarray]:
        from edp_lab.models.bert import encode_layers

        encoded, every, device = self.pieces.rows(sentences), np.arange(len(sentences)), self.bert.device
        pieces, rows = (part.to(device) for part in encoded["pieces"].take(every))
        words, lengths = (part.to(device) for part in encoded["words"].take(every))
        hidden = torch.stack(list(encode_layers(self.bert, pieces, rows))).mean(0)  # (P, D)
        stop = rows.cumsum(0)  # behind each utterance's [SEP]
        start = stop - rows  # its [CLS]
        first = start.repeat_interleave(lengths) + words  # piece of each word
        inside = torch.ones_like(pieces, dtype=torch.bool)
        inside[start] = inside[stop - 1] = False
        word = torch.zeros_like(pieces).index_fill_(0, first, 1).cumsum(0)[inside] - 1
        sums = hidden.new_zeros(len(words), hidden.shape[1]).index_add_(0, word, hidden[inside])
        means = sums / word.bincount(minlength=len(words))[:, None]
        return [part.float().cpu().numpy() for part in means.split(lengths.tolist())]
