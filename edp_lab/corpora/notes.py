"""Notes on a corpus: what its owner should know before training on it, one note for each kind of slip.

They are computed from private utterances without noise, for their owner: a run's record, which holds them, lists them
as not private. They name labels, numbers and lines of the corpus, never a text of it.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from edp_lab.corpora.corpus import Corpus, Split, Utterance, fold, group_ids

LONG, SHORT = 13, 3  # letters: a mean word that is longer is none; a single word that is no longer is a command
# Scripts that put no spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, Japanese, Chinese.
UNSPACED = re.compile(
    r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)


def notes_on(corpus: Corpus, places: Sequence[str]) -> Iterator[str]:
    """Notes on a corpus as its files give it; `places`: file and line of each utterance."""
    utterances = corpus.utterances
    intents = Counter(u.intent for u in utterances)
    slots = Counter(slot for u in utterances for slot in {tag[2:] for tag in u.tags or () if tag != "O"})
    for kind, names, count in (("intent", corpus.intents, intents), ("slot", corpus.slots, slots)):
        yield from _alike(kind, names)
        once = [name for name in names if count[name] == 1]
        if once and not corpus.labels_declared:
            yield f"{_named(kind, once)} a single utterance: a slip? The model will hold that name"
    texts = group_ids(utterances)
    first = np.unique(texts, return_index=True)[1][texts]
    if others := [k for k, j in enumerate(first) if utterances[k].intent != utterances[j].intent]:
        which = f"{len({*texts[others]}):,} texts have" if len({*texts[others]}) > 1 else "a text has"
        where = f"{places[first[others[0]]]}, and {places[others[0]]}"
        yield f"{which} several intents (the first: {where}): keep the right one"
    long = [u.text for u in utterances if len(u.text) > (SHORT if len(u.tokens) == 1 else LONG * len(u.tokens))]
    script = sum(UNSPACED.search(text) is not None for text in long)
    if 2 * len(long) > len(utterances) or 10 * script > len(utterances):
        yield (
            f"{len(long):,} of {len(utterances):,} utterances are text without spaces, which counts as one word, and "
            "of words that it has not seen a model knows little: give --split characters"
        )


def notes_on_split(corpus: Corpus, data: Split) -> Iterator[str]:
    """Notes on what the training set lacks."""
    seen = {utterance.intent for utterance in data.train}
    if unseen := [intent for intent in corpus.intents if intent not in seen]:
        yield f"{_named('intent', unseen)} no training utterance: no model learns what occurs nowhere"


def most_copies(utterances: Sequence[Utterance]) -> int:
    """How often the most frequent text occurs, near-copies included; 0 of no utterances."""
    return int(np.bincount(group_ids(utterances)).max(initial=0))


def _alike(kind: str, names: Sequence[str]) -> Iterator[str]:
    """Labels that one takes for the same."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(fold(name), []).append(name)
    if same := [group for group in groups.values() if len(group) > 1]:
        composed = {unicodedata.normalize("NFC", name) for name in same[0]}
        show = repr if len(composed) == len(same[0]) else ascii  # else they would look alike in the note as well
        more = f", and {len(same) - 1} more such groups" if len(same) > 1 else ""
        yield (
            f"{kind}s {' and '.join(map(show, same[0]))} differ by capitals, invisible characters or Unicode form alone"
            f"{more}: spell them alike, or they are learnt as different ones"
        )


def _named(kind: str, names: Sequence[str]) -> str:
    return f"{kind} {names[0]!r} has" if len(names) == 1 else f"{len(names):,} {kind}s, such as {names[0]!r}, have"
