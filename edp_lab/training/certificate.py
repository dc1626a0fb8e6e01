"""Privacy certificate: the guarantee of a private run, the protected unit, the assumptions, and how to check it.

DIR/certificate.json    every number; DIR/certificate.html shows the same numbers on one printable page

The certificate is written once, when a run finishes with a guarantee that holds and is meaningful (delta below 1/n).
`check_certificate` recomputes every number from ledger, record and model. It is no signature: all can be forged.
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
    "several utterances of one person (for their epsilon, run edp-lab account --run DIR --utterances-per-person K)"
)
MADE = ("written", "versions")  # every other field is recomputed


def certificate(folder: Path) -> dict[str, Any]:
    """Return the fields of the certificate for the run in `folder`, computed from its ledger and its record.

    Epsilon is for one utterance and covers every release in the ledger, by the tightest accountant (privacy loss
    distributions for Poisson sampling), rounded up.

    There is no checksum of the corpus: an attacker who knows all other utterances could test candidates against it.

    Raises:
        UsageError: the run has no ledger, the ledger does not match the record, or no meaningful epsilon is guaranteed.
    """
    ledger, record = run_ledger(folder), read_record(folder)
    mechanism, releases, config = ledger.mechanism, ledger.releases_by_epoch(), record["config"]
    held = judge(mechanism, releases, config["delta"], config["private_seed"] is not True)
    if held.status != HOLDS:
        raise UsageError(f"{folder} gets no certificate, because no epsilon is guaranteed: {held.reason}")
    attack, splits = accountant_for(mechanism, releases), record["corpus"]["splits"]
    protected, copies = splits["train"], record["corpus"].get("copies")  # missing in older records
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
        "not_covered": [OTHER_RUNS, SEVERAL, "gradient norms", *record["not_private"]],
        "corpus": Path(config["corpus"]).name,
        "model_sha256": record["model_sha256"],
        "ledger": ledger.chain,
    }


def meaningful(delta: float, protected: int) -> bool:
    """Whether delta is below 1/n; otherwise, publishing one whole utterance would satisfy any epsilon."""
    return delta * protected < 1


def write_certificate(folder: Path) -> None:
    """Write both files; raise UsageError like `certificate`, or if the disk is full."""
    made = {"written": datetime.now(UTC).isoformat(timespec="seconds"), "versions": read_record(folder)["versions"]}
    content = {**certificate(folder), **made}
    write_whole(folder / CERTIFICATE, f"{json.dumps(content, indent=2)}\n".encode(), go_on(folder))
    write_whole(folder / PAGE, _page(content), go_on(folder))


def _page(content: dict[str, Any]) -> bytes:
    beside = Environment(loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, autoescape=True)
    return beside.get_template("certificate.html.j2").render(c=content, up=upward).encode()


def check_certificate(folder: Path) -> dict[str, Any] | None:
    """Return the certificate in `folder`, with every number recomputed, or None if there is no certificate.

    Raises:
        UsageError: a number differs from the ledger and the record, the HTML page differs from the JSON file, or the
            model in the folder is not the one that was trained.
    """
    path = folder / CERTIFICATE
    if not path.exists():
        return None
    stated, computed = read_json(path), certificate(folder)
    again = f"if another version wrote it, remove both files and run edp-lab train --resume {folder} to restore them"
    stated = stated if isinstance(stated, dict) else {}
    for name, value in computed.items():
        if not _same(name, stated.get(name), value):
            raise UsageError(f"{path} says {name} {stated.get(name)!r}, but ledger and record say {value!r}; {again}")
    if more := sorted(stated.keys() - computed.keys() - {*MADE}):
        raise UsageError(f"{path} has the unknown field {more[0]}; {again}")
    if (folder / PAGE).exists() and (folder / PAGE).read_bytes() != _page(stated):
        raise UsageError(f"{folder / PAGE} differs from the page of {CERTIFICATE}; {again}")
    if model_checksum(load_model(folder / MODEL)) != computed["model_sha256"]:
        raise UsageError(f"the model in {folder / MODEL} is not the one that was trained: restore it from a copy")
    return {**computed, **{name: stated.get(name) for name in MADE}}


def _same(name: str, stated: Any, value: Any) -> bool:
    """Whether two values agree; bounds may differ by 0.1 %, because rounding depends on version and processor."""
    if name in ("guaranteed_epsilon", "copies_epsilon", "best_attack_auc") and type(stated) is type(value) is float:
        return abs(stated - value) <= 1e-3 * abs(value)
    return bool(stated == value)


def _public(mechanism: Mechanism, record: dict[str, Any]) -> list[str]:
    """List the information of this run that the guarantee assumes to be public."""
    absent = [] if mechanism.alpha is Alpha.PUBLIC else ["the text behind a public alpha"]
    if any(flag.startswith("label sets") for flag in record["not_private"]):
        absent.append("the label sets")
    return [item for item in PUBLIC if item not in absent]


def _start(record: dict[str, Any]) -> list[str]:
    start, texts = record["config"]["pretrained"], record.get("started_from", [])  # missing in older records
    fits = (
        [f"that the starting model read at most {MOST_SEEN:.0%} of the different utterances (not covered by epsilon)"]
        if texts
        else []
    )
    return [f"the starting model: {start}", *texts, *fits] if start else []
