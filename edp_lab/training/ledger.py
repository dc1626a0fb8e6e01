"""Ledger of a private run: every release is recorded before its noise is drawn, and no entry is ever removed.

Each line is a JSON object: the first line describes the mechanism, and each later line is the entry of one step. A
line includes a chain value, a digest of this line and all lines before it, which reveals damage and careless edits.
The chain is not a signature: anyone who rewrites the whole file can forge it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edp_lab.errors import UsageError, writing
from edp_lab.files import regular
from edp_lab.privacy import Mechanism

LEDGER = "ledger.jsonl"


class PrivacyLedger:
    """Append-only ledger. An entry is on disk when `write` returns; only then may the step draw its noise.

    The file is reopened for every entry, which reveals that it was removed or that another process appended to it.

    Attributes:
        mechanism: the mechanism of every release of this run.
        releases: the epoch of each release, by (step, fingerprint of its key).
        chain: digest of everything written so far; the run record repeats this digest to detect truncation.
        size: bytes up to the end of the last entry, excluding its line break.
    """

    def __init__(self, path: Path, mechanism: Mechanism) -> None:
        self._begin_at(path, 0)
        with writing(f"ledger {path}", "choose another --out"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("xb").close()
        try:
            self._append({"mechanism": asdict(mechanism)})
        except UsageError:
            path.unlink(missing_ok=True)
            raise

    def _begin_at(self, path: Path, size: int) -> None:
        self.path, self.size, self.chain = path, size, ""
        self.releases: dict[tuple[int, str], int] = {}
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._begun: Future[None] | None = None

    @classmethod
    def open(cls, path: Path, *remembered: str | None) -> PrivacyLedger:
        """Read a ledger, to judge it or to resume the run; `remembered`: chain values in the record and the state.

        An incomplete last line, for which no noise was drawn, does not count, and the next `write` removes it. Until
        then, nothing on disk is changed, so a run that is still in progress can be judged.

        Raises:
            UsageError: the ledger is missing, damaged, edited, or lacks an entry with a remembered chain.
        """
        hint = "its releases can no longer be counted, so restore it from a copy"
        try:
            lines = regular(path).read_bytes().split(b"\n")
        except OSError as error:
            raise UsageError(f"ledger {path} cannot be read ({error.strerror}): {hint}") from None
        ledger = cls.__new__(cls)
        ledger._begin_at(path, -1)
        seen = set()
        for number, line in enumerate(lines, 1):
            if number == len(lines) and b"}" not in line:
                break  # empty or incomplete
            try:
                entry = dict(json.loads(line))
                if line != _sealed({name: value for name, value in entry.items() if name != "chain"}, ledger.chain):
                    raise ValueError("it does not continue the chain")
                ledger._take(entry)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise UsageError(f"ledger {path}, line {number}, is damaged, edited or too old: {hint}") from None
            seen.add(ledger.chain)
            ledger.size += len(line) + 1
        if not seen:
            raise UsageError(f"ledger {path} has no entry: {hint}")
        if not seen.issuperset({*remembered} - {None}):
            raise UsageError(f"ledger {path} lacks entries that the run remembers: {hint}")
        return ledger

    def write(self, epoch: int, step: int, key: int) -> None:
        """Record the release of `step` in `epoch`, whose randomness comes from `key`.

        A release repeated with the same key is counted once, because it must be bit-identical: it requires the same
        parameters, data, threads and machine. If it may differ, draw a fresh key; the step then counts as another
        release.

        Raises:
            UsageError: this key's noise for `step` was already used in another epoch, the disk is full, or the ledger
                was removed or continued by another process. The step must not be taken.
        """
        place = step, fingerprint(key)
        earlier = self.releases.get(place, epoch)
        if min(epoch, step) < 0 or earlier != epoch:
            raise UsageError(
                f"ledger {self.path}: step {step} of epoch {epoch} would reuse the noise of epoch {earlier}, which "
                "could then be subtracted; number the steps of a run consecutively, from 0"
            )
        if place not in self.releases:
            self._append({"epoch": epoch, "step": step, "key": place[1]})

    def begin(self, epoch: int, step: int, key: int) -> Future[None]:
        """Run `write` in the background while gradients are computed; `releases_by_epoch` already counts the entry."""
        self._begun = self._writer.submit(self.write, epoch, step, key)
        return self._begun

    def releases_by_epoch(self) -> dict[int, int]:
        """Count, for each epoch, the releases in which one utterance may have taken part, for `edp_lab.privacy.judge`.

        With disjoint batches, this is one release per epoch and key: a pass with one key contains every utterance at
        most once, and an unfinished pass counts in full. With Poisson sampling, it is one release per step and key.
        """
        wait([self._begun] if self._begun else [])
        epochs = list(self.releases.values())
        if self.mechanism.sampling_rate is None:
            epochs = [epoch for epoch, _ in {(epoch, key) for (_, key), epoch in self.releases.items()}]
        return dict(sorted(Counter(epochs).items()))

    def _append(self, entry: dict[str, Any]) -> None:
        line = _sealed(entry, self.chain)
        text = b"\n" + line if self.size else line
        hint = f"then run edp-lab train --resume {self.path.parent}" if self.chain else "or choose another --out"
        with writing(f"ledger {self.path}", f"fix the disk, {hint}"), self.path.open("r+b") as file:
            file.seek(self.size)
            if b"}" in file.read(4096):
                raise UsageError(f"ledger {self.path} has entries of another process: let only one process continue it")
            file.seek(self.size)
            file.truncate()  # drop an incomplete line
            file.write(text + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.size += len(text)
        self._take(json.loads(line))

    def _take(self, entry: dict[str, Any]) -> None:
        if not self.chain:
            entry["mechanism"].pop("shared_noise", None)  # earlier versions wrote it; the epsilon is the same
            self.mechanism = Mechanism(**entry["mechanism"])
        else:
            place = entry["step"], entry["key"]
            if not (type(entry["epoch"]) is type(place[0]) is int and type(place[1]) is str):
                raise TypeError("epoch and step must be integers, the key text")
            if self.releases.setdefault(place, entry["epoch"]) != entry["epoch"]:
                raise ValueError("one release in two epochs")
        self.chain = entry["chain"]


def fingerprint(key: int) -> str:
    """Hash that distinguishes keys without revealing them, provided that each key is 128 secret bits."""
    return hashlib.sha256(b"edp_lab ledger" + key.to_bytes(16, "big")).hexdigest()[:16]


def _sealed(entry: dict[str, Any], chain: str) -> bytes:
    """Return the line for an entry that follows `chain`, in a canonical form that reveals every changed byte."""
    text = json.dumps(entry, sort_keys=True)
    value = hashlib.sha256((chain + text).encode()).hexdigest()[:16]
    return json.dumps({**entry, "chain": value}, sort_keys=True).encode()
