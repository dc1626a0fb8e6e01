"""Word pieces for BERT: their vocabulary, and which piece stands for which word.

BERT reads word pieces, slots are tagged by word. A word is represented by its first piece (Devlin et al.
2019, arXiv 1810.04805, section 5.3); the other pieces are read but carry no tag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from edp_lab.corpora.corpus import Ragged, Words
from edp_lab.errors import UsageError

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
