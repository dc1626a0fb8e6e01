"""A claim of a source document in one place: what it says, what is measured about it, and the rule that judges it.

    @Claim("P99", "Noise costs nothing.", source="section 3", quote="at no cost", cell="11_claims#paper-mechanism",
           rule=lambda m: Verdict.of(m.price == 0), said="It costs {price:g}.", strength="proven",
           counter={"it is given away": (HOLDS, {"price": 0.0})})
    def p99_price_of_noise() -> Measured:
        return {"price": 2.0}

    p99_price_of_noise().verdict  # "does not hold"; beside it .said and .measured

Nothing else has to be written: the claims table has it, the notebook cell shows it, and a test feeds the rule what was
measured and the counter-evidence. The table of the last run is committed as data/results/claims.json.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from enum import StrEnum
from functools import cache, cached_property, wraps
from importlib import import_module
from pathlib import Path
from string import Formatter
from types import SimpleNamespace
from typing import Any, NamedTuple, ParamSpec

from edp_lab.errors import UsageError
from edp_lab.reproduce.results_io import RESULTS

Measured = Mapping[str, float | str | bool]
Told = Callable[[str], None]
Given = ParamSpec("Given")
DOCUMENTS = {"P": "paper", "T": "thesis"}
READING = "Our reading: "  # so begins a claim that the document does not make in so many words
TABLE = RESULTS / "claims.json"
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
STRENGTHS = ("proven", "measured", "argued")  # the first word of a claim's strength
AWAY = {"↑": ROUND_CEILING, "↓": ROUND_FLOOR}  # from what a bound bounds, such as an epsilon that holds


class Words(Formatter):
    """As `str.format`; `{name:.3g↑}` is rounded up, `{name:.3g↓}` down: a bound that is rounded must still be one."""

    def format_field(self, value: Any, format_spec: str) -> str:
        rounding = AWAY.get(format_spec[-1:])
        if rounding is None:
            return str(super().format_field(value, format_spec))
        with localcontext(rounding=rounding):
            return format(Decimal(str(float(value))), format_spec[:-1])


class Pair(NamedTuple):
    """Names of two measured values: what is claimed (or allowed), and what was found; and what they are."""

    claimed: str
    found: str
    what: str


@dataclass(eq=False)
class Claim:
    """What a document says and what it is judged by; as a decorator it registers the function that measures it."""

    id: str  # "P1", ... of the paper, "T1", ... of the thesis
    says: str  # what the document says, in our words
    source: str  # where it says so,
    quote: str  # and a few words as they stand there
    cell: str  # the notebook cell that shows it
    rule: Callable[[Any], Verdict]  # from the measured values, by name, to the verdict; it sees nothing else
    said: str  # what was found, with `{names}` of measured values, as `Words` writes them
    # What the verdict rests on: "proven", by calculation from what is printed or by a counterexample; "measured (...)",
    # with the `{names}` of a sample's size and an interval; or "argued", by a reading, or numbers without an interval.
    strength: str
    counter: Mapping[str, tuple[Verdict, Measured]]  # by name, another verdict, and what had to be measured for it
    # What the function is given, by name; may train for seconds or minutes, and tells what it does.
    inputs: Callable[[Told], Mapping[str, Any]] = lambda told: {}
    trains: bool = False  # whether it takes networks, and so more than a moment
    pair: Pair | None = None  # for a picture of what is claimed and what was found
    evidence: Callable[..., Evidence] = field(init=False)  # the decorated function

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
    def place(self) -> str:
        """In the document, with a few words of it."""
        return f"{self.source}: “{self.quote}”"

    @property
    def is_reading(self) -> bool:
        """Whether the verdict is on what we take the words to mean."""
        return self.says.startswith(READING)

    @property
    def function(self) -> str:
        return f"{self.evidence.__module__}.{self.evidence.__name__}"

    @property
    def test(self) -> str:
        """In which the verdict turns with the counter-evidence."""
        return f"{TEST}[{self.id}]"


REGISTERED: dict[str, Claim] = {}  # as modules are imported


@dataclass(frozen=True)
class Evidence:
    """What was measured about a claim, by name; whatever the verdict rests on is there. So it is a row of the table."""

    about: Claim
    measured: Measured
    seconds: float = 0.0  # that it took; networks that an earlier row has trained are not counted again

    @property
    def id(self) -> str:
        return self.about.id

    @cached_property
    def verdict(self) -> Verdict:
        return self.about.rule(SimpleNamespace(**self.measured))

    @cached_property
    def said(self) -> str:
        return Words().vformat(self.about.said, (), self.measured)

    @cached_property
    def strength(self) -> str:
        """One of STRENGTHS, and of what is measured the sample and the interval."""
        return Words().vformat(self.about.strength, (), self.measured)

    def as_json(self) -> dict[str, Any]:
        claim = self.about
        evidence = {"function": claim.function, "said": self.said, "measured": self.measured, "seconds": self.seconds}
        judged = {"source": claim.place, "verdict": str(self.verdict), "strength": self.strength, "evidence": evidence}
        return {"id": self.id, "claim": claim.says, **judged, "cell": claim.cell, "test": claim.test}


# ---- The table of all claims -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClaimsTable:
    """Entries, and by which command, when, where and with what they were computed."""

    entries: tuple[Evidence, ...]
    command: str
    date: str
    machine: str
    versions: dict[str, str]

    def as_json(self) -> str:
        told = {**vars(self), "entries": [entry.as_json() for entry in self.entries]}
        return json.dumps(told, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


@cache
def registry() -> dict[str, Claim]:
    """Every claim of the two sources by its id, in the table's order."""
    for file in Path(__file__).parent.glob("*/claims_*.py"):
        import_module(f"{__package__}.{file.parent.name}.{file.stem}")
    return dict(sorted(REGISTERED.items(), key=lambda item: (item[0][0], int(item[0][1:]))))


def find(ids: Sequence[str] = ()) -> list[Claim]:
    """The claims of these ids, in the table's order; without ids all of them. UsageError for an unknown id."""
    for one in ids:
        if one not in registry():
            known = [[i for i in registry() if i[0] == letter] for letter in DOCUMENTS]
            raise UsageError(
                f"there is no claim {one!r}: choose {' or '.join(f'{own[0]} to {own[-1]}' for own in known)}"
            )
    return [claim for claim in registry().values() if not ids or claim.id in ids]


def compute(claim: Claim, told: Told = lambda what: None) -> Evidence:
    """Compute a claim's evidence now. `told` hears what takes long; what it raises ends the work."""
    start = time.perf_counter()
    evidence = claim.evidence(**claim.inputs(told))
    return replace(evidence, seconds=round(time.perf_counter() - start, 2))


def read_table(path: Path = TABLE) -> ClaimsTable:
    """The committed table, judged by today's rules; UsageError where it is not there, or damaged."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        rows = [(registry()[row["id"]], row["evidence"]) for row in told["entries"]]
        entries = tuple(Evidence(claim, found["measured"], found["seconds"]) for claim, found in rows)
        for entry in entries:
            entry.as_json()  # whatever a rule or a sentence needs is there
        return ClaimsTable(**{**told, "entries": entries})
    except OSError:
        raise UsageError(f"{path} is not there: run this in a clone of the project, or add --run") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path} is damaged ({type(error).__name__}): restore it, or add --run") from None
