"""A certificate: what a private run promises, to whom, under which assumptions, and how to check it.

DIR/certificate.json    every number; DIR/certificate.html says the same on one page that can be printed

It is made once, when a run ends whose guarantee holds and means something (delta below 1/n). `check_certificate`
recomputes every number from the run's ledger, record and model: nothing in a certificate has to be believed.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from edp_lab.errors import UsageError
from edp_lab.files import read_json, write_whole
from edp_lab.models.factory import load_model, model_checksum
from edp_lab.models.public_start import MOST_SEEN
from edp_lab.privacy import accountant_for, judge
from edp_lab.privacy.guarantee import EXACT_NOISE, HOLDS, NEIGHBOURS, PUBLIC, upward
from edp_lab.privacy.mechanism import Alpha, Mechanism
from edp_lab.training.run_files import MODEL, go_on, read_record, run_ledger

CERTIFICATE, PAGE = "certificate.json", "certificate.html"
OTHER_RUNS = "other runs on the same corpus: their epsilons add up"
SEVERAL = (
    "several utterances of one person together (edp-lab account --run DIR --utterances-per-person K says how much)"
)
MADE = ("written", "versions")  # all else is computed


def certificate(folder: Path) -> dict[str, Any]:
    """All numbers of the certificate of the run in `folder`, computed from its ledger and its record.

    Epsilon is that of every release in the ledger, for one utterance, by the tightest accountant (under
    Poisson sampling privacy loss distributions, rounded up).

    It has no checksum of the corpus: an attacker who knows all others could try each candidate on that.

    Raises:
        UsageError: the run has no ledger, the ledger does not fit the record, or no epsilon holds or means anything.
    """
    ledger, record = run_ledger(folder), read_record(folder)
    mechanism, releases, config = ledger.mechanism, ledger.releases_by_epoch(), record["config"]
    held = judge(mechanism, releases, config["delta"], config["private_seed"] is not True)
    if held.status != HOLDS:
        raise UsageError(f"{folder} gets no certificate, as no epsilon holds: {held.reason}")
    attack, splits = accountant_for(mechanism, releases), record["corpus"]["splits"]
    protected, copies = splits["train"], record["corpus"].get("copies")  # older ones lack it
    together = held if not copies or copies == 1 else judge(mechanism, releases, held.delta, False, None, copies)
    if not meaningful(held.delta, protected):
        raise UsageError(f"{folder} gets no certificate: delta {held.delta:g} is not below 1/n = {1 / protected:.3g}")
    return {
        "guaranteed_epsilon": held.guaranteed_epsilon,
        "delta": held.delta,
        "unit": "one utterance",
        "neighbours": NEIGHBOURS[held.adjacency],
        "batches": held.sampling,
        "accountant": held.method,
        "best_attack_auc": attack.best_auc(),
        "protected": protected,
        **({} if copies is None else {"copies": copies, "copies_epsilon": together.guaranteed_epsilon}),
        "releases": sum(releases.values()),
        "clip_norm": mechanism.clip_norm,
        "noise_multipliers": sorted({mechanism.noise_multiplier(epoch) for epoch in releases}),
        "noise": EXACT_NOISE,
        "public_by_assumption": [*_public(mechanism, record), *_start(record)],
        "not_covered": [
            OTHER_RUNS,
            SEVERAL,
            "gradient norms",
            *record["not_private"],
        ],
        "corpus": Path(config["corpus"]).name,
        "model_sha256": record["model_sha256"],
        "ledger": ledger.chain,
    }


def meaningful(delta: float, protected: int) -> bool:
    """Below 1/n; from there on, to publish one of them whole would meet it, whatever epsilon is."""
    return delta * protected < 1


def write_certificate(folder: Path) -> None:
    """Both files; UsageError as `certificate`, or the disk is full."""
    made = {"written": datetime.now(UTC).isoformat(timespec="seconds"), "versions": read_record(folder)["versions"]}
    content = {**certificate(folder), **made}
    write_whole(folder / CERTIFICATE, f"{json.dumps(content, indent=2)}\n".encode(), go_on(folder))
    write_whole(folder / PAGE, _page(content), go_on(folder))


def _page(content: dict[str, Any]) -> bytes:
    beside = Environment(loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, autoescape=True)
    return beside.get_template("certificate.html.j2").render(c=content, up=upward).encode()


def check_certificate(folder: Path) -> dict[str, Any] | None:
    """The certificate in `folder`, with every number recomputed; None if there is none.

    Raises:
        UsageError: a number differs from what ledger and record say, the page says something else, or the model beside
            it is another one.
    """
    path = folder / CERTIFICATE
    if not path.exists():
        return None
    stated, computed = read_json(path), certificate(folder)
    stated = stated if isinstance(stated, dict) else {}
    for name, value in computed.items():
        if not _same(name, stated.get(name), value):
            raise UsageError(f"{path} says {name} {stated.get(name)!r}, but the run's ledger and record say {value!r}")
    if more := sorted(stated.keys() - computed.keys() - {*MADE}):
        raise UsageError(f"{path} says {more[0]}, which no certificate does: restore it from a copy")
    if (folder / PAGE).exists() and (folder / PAGE).read_bytes() != _page(stated):
        raise UsageError(
            f"{folder / PAGE} differs from {CERTIFICATE}: remove both, and edp-lab train --resume {folder}"
        )
    if model_checksum(load_model(folder / MODEL)) != computed["model_sha256"]:
        raise UsageError(f"the model in {folder / MODEL} is not the one that was trained: restore it from a copy")
    return {**computed, **{name: stated.get(name) for name in MADE}}


def _same(name: str, stated: Any, value: Any) -> bool:
    """Equal; of bounds, up to a thousandth: each is rounded up, but on the grid of its version and its processor."""
    if name in ("guaranteed_epsilon", "copies_epsilon", "best_attack_auc") and type(stated) is type(value) is float:
        return abs(stated - value) <= 1e-3 * abs(value)
    return bool(stated == value)


def _public(mechanism: Mechanism, record: dict[str, Any]) -> list[str]:
    """Data of the run that the guarantee assumes to be public."""
    absent = [] if mechanism.alpha is Alpha.PUBLIC else ["the text behind a public alpha"]
    if any(flag.startswith("label sets") for flag in record["not_private"]):
        absent.append("the label sets")
    return [item for item in PUBLIC if item not in absent]


def _start(record: dict[str, Any]) -> list[str]:
    start, texts = record["config"]["pretrained"], record.get("started_from", [])  # older ones lack it
    fits = (
        [f"that this start has read at most {MOST_SEEN:.0%} of the different utterances, which epsilon does not cover"]
        if texts
        else []
    )
    return [f"what the model started from: {start}", *texts, *fits] if start else []
