"""The smart-home corpus: utterances in the paper's three domains, generated from a frozen grammar.

The paper's Communication, Health and Video corpora (section 4.1) are internal; these stand in for them. A
text is drawn first and annotated second: where it has several readings, one is drawn with odds that the
grammar states, so that the best possible error is known (`best_ser`). Then a share `NOISE` of the
utterances gets one annotation error.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import NamedTuple

from edp_lab.corpora.corpus import Corpus, Utterance
from edp_lab.corpora.metrics import edit_distance, spans
from edp_lab.corpora.packed import write_packed
from edp_lab.corpora.smart_home_grammar import GRAMMAR_VERSION, INTENTS, SLOTS, Tags, Uniform, draw_sentence
from edp_lab.errors import UsageError

DOMAINS = tuple(INTENTS)
NOISE = 0.03  # share of utterances with one annotation error
MISSPELT = 0.04  # share of utterances with a misspelt word, if one of their words is long enough
LENGTHS = range(3, 16)  # tokens in an utterance; a longer or shorter one is drawn again
EMBEDDED_UTTERANCES, EMBEDDED_SEED = 4500, 0
EMBEDDED = Path(__file__).resolve().parents[2] / "data" / "smart_home" / "utterances.jsonl.gz"


def generate(utterances: int, seed: int, domain: str | None = None) -> Corpus:
    """Generate a corpus: the same on every platform for the same arguments and `GRAMMAR_VERSION`.

    Args:
        utterances: how many, at least 1.
        seed: any integer; different seeds give independent draws from the same grammar.
        domain: "communication", "health" or "video"; None mixes the three in equal parts.

    Returns:
        A corpus with declared labels. `generate(n, seed, domain)` is the first n utterances of
        `generate(m, seed, domain)` for every m > n. One domain alone is not a subset of the mix of that seed.

    Raises:
        UsageError: fewer than 1 utterance, or an unknown domain.
    """
    samples = islice(_samples(seed, domain), _at_least_one(utterances))
    return _corpus((Utterance(s.tokens, s.tags, s.intent) for s in samples), domain)


def pack(
    utterances: int,
    seed: int,
    folder: Path | str,
    domain: str | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Write `generate(utterances, seed, domain)` as a packed corpus (see `edp_lab.corpora.packed`), without holding it.

    Raises:
        UsageError: as `generate` and `write_packed`.
    """
    samples = islice(_samples(seed, domain), _at_least_one(utterances))
    declared = _corpus(iter(()), domain)
    made = (Utterance(s.tokens, s.tags, s.intent) for s in samples)
    write_packed(made, declared.intents, declared.slots, folder, progress)


def load(domain: str | None = None) -> Corpus:
    """The embedded corpus, `generate(EMBEDDED_UTTERANCES, EMBEDDED_SEED)`, or its utterances of one domain.

    Raises:
        UsageError: the file is missing or unreadable, or the domain is unknown.
    """
    intents = {intent for name in _domains(domain) for intent in INTENTS[name]}
    try:
        with gzip.open(EMBEDDED, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        utterances = [Utterance(tuple(row["tokens"]), tuple(row["tags"]), row["intent"]) for row in rows]
        if len(utterances) != EMBEDDED_UTTERANCES:
            raise ValueError(f"{len(utterances)} utterances instead of {EMBEDDED_UTTERANCES}")
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"cannot read the embedded smart-home corpus {EMBEDDED} ({error}); restore it from the repository"
        ) from error
    return _corpus((u for u in utterances if u.intent in intents), domain)


def write_jsonl(corpus: Corpus, path: Path | str) -> None:
    """Write one {"tokens", "tags", "intent"} per line, compressed if the name ends in ".gz".

    The file appears whole or not at all.

    Raises:
        UsageError: the folder does not exist.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {path.parent}; create it first")
    rows = ({"tokens": u.tokens, "tags": u.tags, "intent": u.intent} for u in corpus.utterances)
    content = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows).encode()
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def best_ser(utterances: int, seed: int, domain: str | None = None) -> float:
    """The semantic error rate, on `generate(utterances, seed, domain)`, of an oracle that knows the grammar.

    The oracle annotates every text with its likeliest intent and, at each ambiguous place, the likeliest
    labels; what it gets wrong are the rarer readings and the annotation noise. This is a Monte-Carlo
    estimate of the best possible SER, assuming that texts are ambiguous only where the grammar says so;
    among repeated texts, fewer than one in a thousand has two oracle annotations.

    Returns:
        sum of (wrong intents + edits between the slot sequences) / sum of (1 + annotated slots).
    """
    errors = reference = 0
    for s in islice(_samples(seed, domain), _at_least_one(utterances)):
        slots = _slots(s.tokens, s.tags)
        errors += (s.intent != s.best_intent) + edit_distance(_slots(s.tokens, s.best_tags), slots)
        reference += 1 + len(slots)
    return errors / reference


# ---- Samples -----------------------------------------------------------------------------------------------


class _Sample(NamedTuple):
    """One utterance: as annotated, as meant (before annotation noise), and as the oracle annotates it."""

    tokens: tuple[str, ...]
    tags: Tags
    intent: str
    meant_tags: Tags
    meant_intent: str
    best_tags: Tags
    best_intent: str


def _samples(seed: int, domain: str | None) -> Iterator[_Sample]:
    """Samples without end; Python keeps the sequence of `Random.random` for a seed on all its versions."""
    domains = _domains(domain)
    uniform = Random(f"smart-home {GRAMMAR_VERSION} {seed} {domain}").random
    shared: dict[Tags, Tags] = {}  # equal tag sequences are one object, which halves the memory
    while True:
        drawn = domains[int(uniform() * len(domains))]
        draft = draw_sentence(drawn, uniform)
        if len(draft.tokens) not in LENGTHS:
            continue
        if uniform() < MISSPELT:
            _misspell(draft.tokens, uniform)
        tags, intent = draft.tags, draft.intent
        if uniform() < NOISE:
            tags, intent = _mistake(tags, intent, drawn, uniform)
        yield _Sample(tuple(draft.tokens), shared.setdefault(tags, tags), intent, *draft[1:])


def _misspell(tokens: list[str], uniform: Uniform) -> None:
    """Drop, double or swap letters inside one word of four letters or more."""
    long = [i for i, token in enumerate(tokens) if len(token) >= 4 and token.isalpha()]
    if long:
        i = long[int(uniform() * len(long))]
        word = tokens[i]
        at = 1 + int(uniform() * (len(word) - 2))
        slips = ("", word[at] * 2, word[at + 1] + word[at])
        kind = int(uniform() * 3)
        tokens[i] = word[:at] + slips[kind] + word[at + 1 + (kind == 2) :]


def _mistake(tags: Tags, intent: str, domain: str, uniform: Uniform) -> tuple[Tags, str]:
    """One annotation error: a wrong intent, or a slot dropped, mislabelled, a token too short or too long."""
    found = spans(tags)
    kind = int(uniform() * 4)
    if kind == 0 or not found:
        others = [name for name in INTENTS[domain] if name != intent]
        return tags, others[int(uniform() * len(others))]
    start, end, slot = found[int(uniform() * len(found))]
    wrong = list(tags)
    if kind == 1:
        others = [name for name in SLOTS[domain] if name != slot]
        other = others[int(uniform() * len(others))]
        wrong[start:end] = [f"B-{other}"] + [f"I-{other}"] * (end - start - 1)
    elif kind == 2 and end - start > 1:
        wrong[end - 1] = "O"
    elif kind == 2 and end < len(tags) and tags[end] == "O":
        wrong[end] = f"I-{slot}"
    else:
        wrong[start:end] = ["O"] * (end - start)
    return tuple(wrong), intent


def _slots(tokens: tuple[str, ...], tags: Tags) -> list[tuple[str, tuple[str, ...]]]:
    return [(slot, tokens[start:end]) for start, end, slot in spans(tags)]


# ---- Arguments and labels ----------------------------------------------------------------------------------


def _domains(domain: str | None) -> tuple[str, ...]:
    if domain is not None and domain not in DOMAINS:
        raise UsageError(f"unknown smart-home domain {domain!r}: use one of {', '.join(DOMAINS)}")
    return (domain,) if domain else DOMAINS


def _at_least_one(utterances: int) -> int:
    if utterances < 1:
        raise UsageError(f"cannot generate {utterances} utterances: ask for at least 1")
    return utterances


def _corpus(utterances: Iterator[Utterance], domain: str | None) -> Corpus:
    domains = _domains(domain)
    return Corpus(
        name=f"smart-home-{domain}" if domain else "smart-home",
        utterances=tuple(utterances),
        intents=tuple(sorted(intent for name in domains for intent in INTENTS[name])),
        slots=tuple(sorted({slot for name in domains for slot in SLOTS[name]})),
    )
