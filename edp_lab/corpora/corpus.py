"""What a corpus is: utterances with one intent each and, mostly, one BIO tag per token."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True, slots=True)
class Utterance:
    """One annotated sentence, the unit of privacy throughout the project.

    Attributes:
        tokens: the words, at least one.
        tags: one BIO tag per token ("O", "B-city", "I-city"), or None where a corpus has no slot annotation.
        intent: the intent's name.
    """

    tokens: tuple[str, ...]
    tags: tuple[str, ...] | None
    intent: str

    @property
    def text(self) -> str:
        return " ".join(self.tokens)

    @property
    def line(self) -> bytes:
        """All of it, as it counts for a corpus' checksum."""
        return f"{self.text}\t{' '.join(self.tags or ())}\t{self.intent}\n".encode()


@dataclass(frozen=True)
class Corpus:
    """A pooled corpus: every utterance of every official split, in file order.

    Attributes:
        name: the catalogue's name, or the path the user gave.
        utterances: all utterances; either all have tags or none has.
        labels_declared: True where the label sets below are public knowledge (a published corpus, a declared
            list) rather than read off the utterances, which a private run must flag.
        intents: all intents, sorted.
        slots: all slot names without their B-/I- prefix, sorted; empty for a corpus without tags.
    """

    name: str
    utterances: Sequence[Utterance]
    intents: tuple[str, ...]
    slots: tuple[str, ...]
    labels_declared: bool = True
    warnings: tuple[str, ...] = field(default=())

    @property
    def has_tags(self) -> bool:
        return bool(self.utterances) and self.utterances[0].tags is not None

    @property
    def tags(self) -> tuple[str, ...]:
        """The tag set: "O", then B- and I- of every slot; empty for a corpus without tags."""
        if not self.has_tags:
            return ()
        return ("O", *(f"{prefix}-{slot}" for slot in self.slots for prefix in "BI"))

    @cached_property
    def sha256(self) -> str:
        """Checksum of the content (tokens, tags, intents), independent of the file format."""
        known = getattr(self.utterances, "sha256", None)  # of packed ones
        if known is not None:
            return str(known)
        digest = hashlib.sha256()
        for u in self.utterances:
            digest.update(u.line)
        return digest.hexdigest()
