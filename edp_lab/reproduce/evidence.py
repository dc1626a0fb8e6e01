"""A claim of a source document in one place: what it says, what is measured about it, and the rule that judges it.

    @Claim(
        "P99",
        "Noise costs nothing.",
        source="section 3",
        quote="at no cost",
        cell="11_claims#paper-mechanism",
        rule=lambda m: Verdict.of(m.price == 0),
        said="It costs {price:g}.",
        counter={"it is given away": (HOLDS, {"price": 0.0})},
    )
    def p99_price_of_noise() -> Measured:
        return {"price": 2.0}

    p99_price_of_noise().verdict  # "does not hold"; beside it .said and .measured

Nothing else has to be written: `edp_lab.reproduce.claims` has the claim in its table, the notebook cell shows it, and a
test feeds the rule what was measured and the counter-evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import wraps
from types import SimpleNamespace
from typing import Any, NamedTuple, ParamSpec

Measured = Mapping[str, float | str | bool]
Told = Callable[[str], None]
Given = ParamSpec("Given")
DOCUMENTS = {"P": "paper", "T": "thesis"}
TEST = "tests/reproduce/test_claims.py::test_the_verdict_turns_with_the_evidence"


class Verdict(StrEnum):
    HOLDS = "holds"
    CONDITIONAL = "holds under conditions"
    FAILS = "does not hold"
    UNTESTABLE = "not testable here"

    @classmethod
    def of(cls, holds: bool, partly: bool = False) -> Verdict:
        """HOLDS if it does, else CONDITIONAL if it does in part, else FAILS."""
        return cls.HOLDS if holds else cls.CONDITIONAL if partly else cls.FAILS


HOLDS, CONDITIONAL, FAILS, UNTESTABLE = Verdict


class Pair(NamedTuple):
    """Names of two measured values: what is claimed (or allowed), and what was found; and what they are."""

    claimed: str
    found: str
    what: str


@dataclass(eq=False)
class Claim:
    """What a document says and what it is judged by; as a decorator it registers the function that measures it.

    Attributes:
        id: "P1", ... of the paper, "T1", ... of the thesis.
        says: what the document says, in our words.
        source, quote: where it says so, and a few words as they stand there.
        cell: the notebook cell that shows it.
        rule: from the measured values, by name, to the verdict; it sees nothing else.
        said: what was found, with `{names}` of measured values.
        counter: by name, another verdict and what would have to be measured for it.
        inputs: what the function is given, by name; may train for seconds or minutes, and tells what it does.
        trains: whether it takes networks, and so more than a moment.
        pair: for a picture of what is claimed and what was found.
        evidence: the decorated function, which returns `Evidence`.
    """

    id: str
    says: str
    source: str
    quote: str
    cell: str
    rule: Callable[[Any], Verdict]
    said: str
    counter: Mapping[str, tuple[Verdict, Measured]]
    inputs: Callable[[Told], Mapping[str, Any]] = lambda told: {}
    trains: bool = False
    pair: Pair | None = None
    evidence: Callable[..., Evidence] = field(init=False)

    def __call__(self, measure: Callable[Given, Measured]) -> Callable[Given, Evidence]:
        @wraps(measure)
        def evidence(*args: Given.args, **kwargs: Given.kwargs) -> Evidence:
            return Evidence(self, measure(*args, **kwargs))

        REGISTERED[self.id], self.evidence = self, evidence
        return evidence

    @property
    def document(self) -> str:
        return DOCUMENTS[self.id[0]]

    @property
    def function(self) -> str:
        return f"{self.evidence.__module__}.{self.evidence.__name__}"

    @property
    def test(self) -> str:
        """In which the verdict turns with the counter-evidence."""
        return f"{TEST}[{self.id}]"


REGISTERED: dict[str, Claim] = {}


@dataclass(frozen=True)
class Evidence:
    """What was measured about a claim, by name; whatever the verdict rests on is there."""

    about: Claim
    measured: Measured

    @property
    def id(self) -> str:
        return self.about.id

    @property
    def verdict(self) -> Verdict:
        return self.about.rule(SimpleNamespace(**self.measured))

    @property
    def said(self) -> str:
        return self.about.said.format_map(self.measured)
