"""The claims ledger: every claim of the two sources with its evidence, its verdict, its notebook cell and its test.

    entry = compute(find(["P2"])[0])
    print(entry.verdict, entry.said)

`REGISTRY` says by which function a claim's evidence is computed; nothing is decided here. The ledger of the last run is
committed as data/results/claims.json.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from edp_lab.errors import UsageError
from edp_lab.reproduce import claim_inputs as inputs
from edp_lab.reproduce.claim_inputs import Inputs
from edp_lab.reproduce.claim_quotes import QUOTES
from edp_lab.reproduce.evidence import Evidence, Measured, Verdict
from edp_lab.reproduce.paper import algorithm_1 as paper_mechanism
from edp_lab.reproduce.paper import gradients as paper_gradients
from edp_lab.reproduce.paper import in_print as paper_print
from edp_lab.reproduce.paper import measured as paper_measured
from edp_lab.reproduce.paper import privacy as paper_privacy
from edp_lab.reproduce.paper.runs import RESULTS, Told
from edp_lab.reproduce.thesis import thesis_attacks, thesis_claims, thesis_composition, thesis_text, thesis_trained

LEDGER = RESULTS / "claims.json"
DOCUMENTS = {"P": "paper", "T": "thesis"}


class Pair(NamedTuple):
    """Names of two measured values: what is claimed (or allowed), and what was found; and what they are."""

    claimed: str
    found: str
    what: str


@dataclass(frozen=True)
class Claim:
    """One row of the registry.

    Attributes:
        id: "P1", ... of the paper, "T1", ... of the thesis.
        evidence: the function that computes its `Evidence`.
        cell: the notebook cell that shows it, "11_claims#paper-mechanism".
        test: the node id of the test in which the verdict turns with counter-evidence.
        inputs: what is handed to `evidence`, by name; may train for seconds and tells what it does.
        pair: for a picture of what is claimed and what was found.
    """

    id: str
    evidence: Callable[..., Evidence]
    cell: str
    test: str
    inputs: Inputs = inputs.nothing
    pair: Pair | None = None

    @property
    def document(self) -> str:
        return DOCUMENTS[self.id[0]]

    @property
    def trains(self) -> bool:
        """Whether its evidence takes networks, and so more than a moment."""
        return self.inputs in inputs.TRAINING

    @property
    def quote(self) -> str:
        return QUOTES[self.id]

    @property
    def function(self) -> str:
        return f"{self.evidence.__module__}.{self.evidence.__name__}"


@dataclass(frozen=True)
class Entry:
    """What the ledger says of a claim.

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
class Ledger:
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
        claim=evidence.claim,
        source=f"{evidence.source}: “{claim.quote}”",
        verdict=evidence.verdict,
        measured=dict(evidence.measured),
        said=evidence.said,
        function=claim.function,
        seconds=round(time.perf_counter() - start, 2),
        cell=claim.cell,
        test=claim.test,
    )


def find(ids: Sequence[str] = ()) -> list[Claim]:
    """The claims of these ids, in the ledger's order; without ids all of them.

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


def read_ledger(path: Path = LEDGER) -> Ledger:
    """The committed ledger.

    Raises:
        UsageError: it is not there, or damaged.
    """
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        told["entries"] = tuple(Entry.of_json(row) for row in told["entries"])
        return Ledger(**told)
    except OSError:
        raise UsageError(f"{path} is not there: run this in a clone of the project, or add --run") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is damaged ({type(error).__name__}): restore it, or add --run") from None


# ---- The registry ----------------------------------------------------------------------------------------------------

_CELLS: dict[str, tuple[Callable[..., Evidence], ...]] = {
    "11_claims#paper-mechanism": (
        paper_mechanism.p1_noise_per_device,
        paper_mechanism.p2_noise_of_the_release,
        paper_mechanism.p3_rescaling,
        paper_mechanism.p4_private_scales,
        paper_mechanism.p5_micro_batches,
        paper_mechanism.p6_variance,
        paper_mechanism.p19_time_of_noise,
        paper_mechanism.p22_free_devices,
    ),
    "11_claims#paper-privacy": (
        paper_privacy.p10_delta,
        paper_privacy.p11_vacuous,
        paper_privacy.p15_price_of_tuning,
        paper_privacy.p23_members_among_non_members,
        paper_privacy.p26_accounting,
        paper_privacy.p29_noise_that_vanishes,
    ),
    "11_claims#paper-print": (
        paper_print.p8_factor_of_two,
        paper_print.p9_first_to_report_time,
        paper_print.p17_slow_dp_sgd,
        paper_print.p24_no_slowdown,
        paper_print.p25_except_video,
        paper_print.p27_a_million_each,
        paper_print.p28_time_is_training,
        paper_print.p32_sometimes,
    ),
    "11_claims#paper-measured": (
        paper_gradients.p7_first_norm,
        paper_measured.p12_decay,
        paper_measured.p13_membership,
        paper_measured.p14_like_dp_sgd,
        paper_measured.p16_one_optimizer,
        paper_measured.p18_loose_correlation,
        paper_measured.p20_regularizer,
        paper_measured.p21_fewer_knobs,
        paper_gradients.p30_layers_differ,
        paper_gradients.p31_gradients_shrink,
    ),
    "10_three_phases#ledger": (
        thesis_claims.t1_pixel_noise,
        thesis_composition.t9_ten_instructors,
        thesis_composition.t11_stacked_phases,
        thesis_composition.t12_labels,
        thesis_claims.t13_noisy_votes,
        thesis_composition.t15_private_understudy,
    ),
    "01_coins_to_composition#verdicts": (
        thesis_claims.t4_local_noise,
        thesis_claims.t21_loss_tail,
        thesis_composition.t22_printed_theorem,
        thesis_claims.t23_anonymity,
    ),
    "11_claims#thesis-mechanism": (
        thesis_claims.t3_correlation,
        thesis_claims.t5_outside_the_theorem,
        thesis_composition.t6_sampled_step,
        thesis_claims.t7_inverted_clipping,
        thesis_claims.t8_batch_clipping,
        thesis_composition.t10_composition,
        thesis_claims.t16_two_circles,
        thesis_composition.t26_moments,
    ),
    "11_claims#thesis-text": thesis_text.TEXT_CLAIMS,
    "11_claims#thesis-trained": (
        thesis_attacks.t24_api_attacks,
        thesis_trained.t25_convergence,
        thesis_trained.t28_understudy,
    ),
}
_INPUTS: dict[str, Inputs] = {
    "P3": inputs.first_norms,
    "P4": inputs.neighbouring_norms,
    "P7": inputs.norms_in_training,
    "P8": inputs.benchmark,
    "P12": inputs.decay_at_equal_epsilon,
    "P13": inputs.attacked,
    "P14": inputs.per_example,
    "P16": inputs.noised,
    "P17": inputs.benchmark,
    "P18": inputs.grid_of_z0,
    "P20": inputs.overfitted,
    "P21": inputs.raw_scales,
    "P23": inputs.copied_texts,
    "P30": inputs.first_norms,
    "P31": inputs.norms_from_random,
    "T3": inputs.images,
    "T23": inputs.chance,
    "T24": inputs.telling,
    "T25": inputs.lab,
    "T28": inputs.lab,
}
_PAIRS = {
    "P1": Pair("claimed_deviation", "deviation", "noise"),
    "P2": Pair("claimed_noise", "noise", "noise"),
    "P3": Pair("clip_norm", "longest", "norm"),
    "P5": Pair("claimed_epsilon", "epsilon", "ε"),
    "P6": Pair("claimed_variance", "variance", "variance"),
    "P8": Pair("claimed_factor", "factor", "× SGD"),
    "P10": Pair("largest_allowed", "largest", "n δ"),
    "P11": Pair("epsilon_that_binds", "smallest_epsilon", "ε"),
    "P15": Pair("claimed_epsilon", "epsilon", "ε"),
    "P17": Pair("claimed_most", "fast", "× SGD"),
    "P22": Pair("claimed_epsilon", "epsilon", "ε"),
    "P24": Pair("claimed_factor", "factor", "× SGD"),
    "T1": Pair("claimed_epsilon", "epsilon", "ε"),
    "T3": Pair("claimed_correlation", "correlation", "correlation"),
    "T6": Pair("claimed_epsilon", "bound_for_any_mechanism", "ε"),
    "T7": Pair("threshold", "largest_norm_after", "norm"),
    "T8": Pair("moved_by_example_clipping", "moved_by_batch_clipping", "norm"),
    "T9": Pair("epsilon_claimed", "epsilon_with_many", "ε"),
    "T10": Pair("smallest_part", "epsilon_together", "ε"),
    "T12": Pair("epsilon_per_query", "zcdp", "ε"),
    "T16": Pair("claimed_accuracy", "best_accuracy", "accuracy"),
    "T21": Pair("printed_delta", "tail", "δ"),
}
_PAPER = "tests/reproduce/test_paper_claims.py::test_the_verdict_turns_with_the_evidence[{id}]"
_TURNS = "test_the_verdict_follows_from_what_was_measured_and_turns_with_it"
_NETWORKS = "test_the_verdict_follows_from_the_networks_and_turns_with_them"
_TESTS = {
    "T24": f"tests/reproduce/test_thesis_attacks.py::{_TURNS}",
    **dict.fromkeys(("T25", "T28"), f"tests/reproduce/test_thesis_trained.py::{_NETWORKS}"),
}
_THESIS = f"tests/reproduce/test_thesis_claims.py::{_TURNS}"


def _claim(evidence: Callable[..., Evidence], cell: str) -> Claim:
    """The function's name says of which claim it is: `p2_noise_of_the_release` of P2."""
    name = evidence.__name__.partition("_")[0].upper()
    test = _PAPER.format(id=name) if name[0] == "P" else _TESTS.get(name, _THESIS)
    return Claim(name, evidence, cell, test, _INPUTS.get(name, inputs.nothing), _PAIRS.get(name))


def _order(claim: Claim) -> tuple[str, int]:
    return claim.id[0], int(claim.id[1:])


REGISTRY = {
    claim.id: claim for claim in sorted((_claim(one, cell) for cell, own in _CELLS.items() for one in own), key=_order)
}
