"""What a claim of a source document is judged by: values that were measured, and a rule that looks at nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Measured = Mapping[str, float | str | bool]


class Verdict(StrEnum):
    HOLDS = "holds"
    CONDITIONAL = "holds under conditions"
    FAILS = "does not hold"
    UNTESTABLE = "not testable here"

    @classmethod
    def of(cls, holds: bool, partly: bool = False) -> Verdict:
        """HOLDS if it does, else CONDITIONAL if it does in part, else FAILS."""
        return cls.HOLDS if holds else cls.CONDITIONAL if partly else cls.FAILS


@dataclass(frozen=True)
class Evidence:
    """One claim and what was measured about it.

    Attributes:
        id: row of the claims ledger, such as "T1".
        claim: what the document says, in our words.
        source: where it says so.
        measured: by name; whatever the verdict rests on is here.
        judge: the rule, a pure function of `measured`.
        sentence: what was found, with `{names}` of measured values.
    """

    id: str
    claim: str
    source: str
    measured: Measured
    judge: Callable[[Mapping[str, Any]], Verdict] = field(repr=False)
    sentence: str = field(repr=False)

    @property
    def verdict(self) -> Verdict:
        return self.judge(self.measured)

    @property
    def said(self) -> str:
        return self.sentence.format_map(self.measured)

    def record(self) -> dict[str, Any]:
        """All of it as JSON can hold it."""
        return {
            "id": self.id,
            "claim": self.claim,
            "source": self.source,
            "measured": dict(self.measured),
            "verdict": str(self.verdict),
            "said": self.said,
        }
