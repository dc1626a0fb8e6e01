"""Notes on a corpus: what its owner should know before training on it, one note for each kind of slip.

They are computed from private utterances without noise, for their owner: a run's record, which holds them, lists them
as not private. They name labels, numbers and lines of the corpus, never a text of it.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from edp_lab.corpora.corpus import Corpus, Split, Utterance, fold, group_ids

LONG, SHORT = 12, 3  # letters: a longer mean word is no word; a single token that is no longer is a short command
# Scripts that put no spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, Japanese, Chinese.
UNSPACED = re.compile(
    r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)


def notes_on(corpus: Corpus, places: Sequence[str]) -> list[str]:
    """Notes on a corpus as its files give it; `places`: file and line of each utterance."""
    utterances, kinds = corpus.utterances, (("intent", corpus.intents), ("slot", corpus.slots))
    found = [
        *(_alike(kind, names) for kind, names in kinds),
        *(() if corpus.labels_declared else _once(utterances)),
        _contradictions(utterances, places),
        _unspaced(utterances),
    ]
    return [note for note in found if note]


def notes_on_split(corpus: Corpus, data: Split) -> list[str]:
    """Notes on what the training set lacks."""
    seen = {utterance.intent for utterance in data.train}
    unseen = [intent for intent in corpus.intents if intent not in seen]
    if not unseen:
        return []
    return [f"{_named('intent', unseen, ('has', 'have'))} no training utterance: no model learns what occurs nowhere"]


def most_copies(utterances: Sequence[Utterance]) -> int:
    """How often the most frequent text occurs, near-copies included; 0 of no utterances."""
    return int(np.bincount(group_ids(utterances)).max(initial=0))


def _once(utterances: Sequence[Utterance]) -> Iterable[str]:
    """Labels of one utterance alone: often slips, and their names go into the model."""
    intents = Counter(utterance.intent for utterance in utterances)
    slots = Counter(
        name
        for tags, times in Counter(utterance.tags or () for utterance in utterances).items()
        for name in {tag[2:] for tag in tags if tag != "O"}
        for _ in range(min(times, 2))
    )
    for kind, count in (("intent", intents), ("slot", slots)):
        if once := [name for name, times in count.items() if times == 1]:
            yield f"{_named(kind, once, ('has', 'have'))} a single utterance: a slip? The model will hold that name"


def _alike(kind: str, names: Sequence[str]) -> str:
    """Labels that one takes for the same."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(fold(name), []).append(name)
    same = [group for group in groups.values() if len(group) > 1]
    if not same:
        return ""
    composed = {unicodedata.normalize("NFC", name) for name in same[0]}
    show = repr if len(composed) == len(same[0]) else ascii  # else the two would look alike in the note as well
    more = f", and {len(same) - 1} more such groups" if len(same) > 1 else ""
    return (
        f"{kind}s {' and '.join(map(show, same[0]))} differ by capitals, invisible characters or Unicode form alone"
        f"{more}: spell them alike, or they are learnt as different ones"
    )


def _contradictions(utterances: Sequence[Utterance], places: Sequence[str]) -> str:
    """One text under several intents."""
    texts = group_ids(utterances)
    first = np.unique(texts, return_index=True)[1]
    others = [k for k, text in enumerate(texts) if utterances[k].intent != utterances[first[text]].intent]
    if not others:
        return ""
    count, k = len({int(texts[k]) for k in others}), others[0]
    which = "a text has" if count == 1 else f"{count:,} texts have"
    return f"{which} several intents (the first: {places[first[texts[k]]]}, and {places[k]}): keep the right one"


def _unspaced(utterances: Sequence[Utterance]) -> str:
    """Text without spaces, of which each utterance would be a word of its own."""
    texts = [u.text for u in utterances if len(u.text) > (SHORT if len(u.tokens) == 1 else (LONG + 1) * len(u.tokens))]
    script = sum(UNSPACED.search(text) is not None for text in texts)
    if 2 * len(texts) <= len(utterances) and 10 * script <= len(utterances):
        return ""
    return (
        f"{len(texts):,} of {len(utterances):,} utterances are text without spaces, which counts as one word, and of "
        "words that it has not seen a model knows little: give --split characters"
    )


def _named(kind: str, names: Sequence[str], verbs: tuple[str, str]) -> str:
    if len(names) == 1:
        return f"{kind} {names[0]!r} {verbs[0]}"
    return f"{len(names):,} {kind}s, such as {names[0]!r}, {verbs[1]}"
