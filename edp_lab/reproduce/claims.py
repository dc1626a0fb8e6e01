"""The claims table: every claim of the two sources with its evidence, its verdict, its notebook cell and its test.

    entry = compute(find(["P2"])[0])
    print(entry.verdict, entry.said)

A claim is written beside the function that measures it, in the modules imported here; nothing is decided here. The
table of the last run is committed as data/results/claims.json.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edp_lab.errors import UsageError
from edp_lab.reproduce.evidence import DOCUMENTS, REGISTERED, Claim, Measured, Told, Verdict
from edp_lab.reproduce.paper import claims_measured, claims_mechanism, claims_printed
from edp_lab.reproduce.results_io import RESULTS
from edp_lab.reproduce.thesis import claims_composition, claims_networks, claims_noise

TABLE = RESULTS / "claims.json"
MODULES = claims_mechanism, claims_printed, claims_measured, claims_noise, claims_composition, claims_networks
REGISTRY = dict(sorted(REGISTERED.items(), key=lambda item: (item[0][0], int(item[0][1:]))))


@dataclass(frozen=True)
class Entry:
    """What the table says of a claim.

    Attributes:
        source: the place in the document, with a few words of it.
        said: what was found, in words.
        function: by which the evidence was computed.
        seconds: that it took; networks that an earlier row has trained are not counted again.
    """

    id: str
    claim: str
    source: str
    verdict: Verdict
    measured: Measured
    said: str
    function: str
    seconds: float
    cell: str
    test: str

    @property
    def document(self) -> str:
        return DOCUMENTS[self.id[0]]

    def as_json(self) -> dict[str, Any]:
        names = ("function", "said", "measured", "seconds")
        return {
            "id": self.id,
            "claim": self.claim,
            "source": self.source,
            "verdict": str(self.verdict),
            "evidence": {name: getattr(self, name) for name in names},
            "cell": self.cell,
            "test": self.test,
        }

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> Entry:
        own = {name: row[name] for name in ("id", "claim", "source", "cell", "test")}
        return cls(**own, verdict=Verdict(row["verdict"]), **row["evidence"])


@dataclass(frozen=True)
class ClaimsTable:
    """Entries, and by which command, when, where and with what they were computed."""

    entries: tuple[Entry, ...]
    command: str
    date: str
    machine: str
    versions: dict[str, str]

    def as_json(self) -> str:
        told = {**asdict(self), "entries": [entry.as_json() for entry in self.entries]}
        return json.dumps(told, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def compute(claim: Claim, told: Told = lambda what: None) -> Entry:
    """Compute a claim's evidence now. `told` hears what takes long; what it raises ends the work."""
    start = time.perf_counter()
    evidence = claim.evidence(**claim.inputs(told))
    return Entry(
        id=claim.id,
        claim=claim.says,
        source=f"{claim.source}: “{claim.quote}”",
        verdict=evidence.verdict,
        measured=dict(evidence.measured),
        said=evidence.said,
        function=claim.function,
        seconds=round(time.perf_counter() - start, 2),
        cell=claim.cell,
        test=claim.test,
    )


def find(ids: Sequence[str] = ()) -> list[Claim]:
    """The claims of these ids, in the table's order; without ids all of them.

    Raises:
        UsageError: an unknown id.
    """
    for one in ids:
        if one not in REGISTRY:
            known = [[i for i in REGISTRY if i[0] == letter] for letter in DOCUMENTS]
            raise UsageError(
                f"there is no claim {one!r}: choose {' or '.join(f'{own[0]} to {own[-1]}' for own in known)}"
            )
    return [claim for claim in REGISTRY.values() if not ids or claim.id in ids]


def read_table(path: Path = TABLE) -> ClaimsTable:
    """The committed table.

    Raises:
        UsageError: it is not there, or damaged.
    """
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        return ClaimsTable(**{**told, "entries": tuple(Entry.of_json(row) for row in told["entries"])})
    except OSError:
        raise UsageError(f"{path} is not there: run this in a clone of the project, or add --run") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is damaged ({type(error).__name__}): restore it, or add --run") from None
