"""The ledger: written before the noise, never missing an entry, with one sentence about every kind of damage."""

import errno
import json
import os
import resource
import tempfile
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock, patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edp_lab.errors import UsageError
from edp_lab.privacy import Mechanism, judge
from edp_lab.training.ledger import PrivacyLedger, _sealed, fingerprint

DISJOINT = Mechanism.sound(1.0, 0.7, 4, 4, "linear", 0.5)
POISSON = Mechanism.sound(1.0, 1.5, 4, 4, "exponential", 0.1, sampling_rate=0.25)
KEY, OTHER_KEY = 2**127 + 11, 5

# Steps are numbered across epochs: step s belongs to epoch s // 10.
steps = st.integers(0, 39).map(lambda step: (step // 10, step))
entries = st.lists(st.tuples(steps, st.sampled_from([KEY, OTHER_KEY])).map(lambda x: (*x[0], x[1])), max_size=25)
mechanisms = st.sampled_from([DISJOINT, POISSON])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


@contextmanager
def quick():
    """A folder for one example, without waiting for the disk."""
    with tempfile.TemporaryDirectory() as folder, patch("os.fsync"):
        yield Path(folder, "ledger.jsonl")


def written(path: Path, releases, mechanism: Mechanism = DISJOINT) -> PrivacyLedger:
    ledger = PrivacyLedger(path, mechanism)
    for release in releases:
        ledger.write(*release)
    return ledger


def three(path: Path) -> tuple[PrivacyLedger, bytes]:
    ledger = written(path, [(0, 0, KEY), (0, 1, KEY), (1, 2, KEY)])
    return ledger, path.read_bytes()


def refused(path: Path, saying: str = "^ledger", chain: str | None = None) -> None:
    with pytest.raises(UsageError, match=saying) as caught:
        PrivacyLedger.open(path, chain)
    assert str(path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


# Content and order of writes


def test_an_entry_is_synced_to_the_disk_before_write_returns_and_does_not_tell_the_key(path, monkeypatch):
    synced = []

    def sync(descriptor: int) -> None:
        assert os.path.samestat(os.fstat(descriptor), path.stat())
        synced.append(json.loads(path.read_bytes().splitlines()[-1]))

    monkeypatch.setattr(os, "fsync", sync)
    ledger = PrivacyLedger(path, DISJOINT)
    assert set(synced[0]) == {"chain", "mechanism"}
    assert set(synced[0]["mechanism"]) == set(vars(DISJOINT))
    ledger.write(2, 7, KEY)
    assert synced[1:] == [{"epoch": 2, "step": 7, "key": fingerprint(KEY), "chain": ledger.chain}]
    assert not any(spelled in path.read_text() for spelled in (str(KEY), f"{KEY:x}"))


# Number of releases


@settings(max_examples=25)
@given(mechanisms, entries, entries, st.randoms(use_true_random=False))
def test_the_order_of_entries_does_not_matter_and_another_never_makes_it_cheaper(mechanism, releases, more, random):
    bills = []
    for some in (releases, random.sample(releases, len(releases)), releases * 2, releases + more):
        with quick() as path:
            bills.append(written(path, some, mechanism).releases_by_epoch())
    before, *same, after = bills
    assert [list(bill.items()) for bill in same] == [sorted(before.items())] * 2
    assert all(after[epoch] >= count for epoch, count in before.items())
    prices = [judge(mechanism, bill, 1e-5, False).conditional_epsilon for bill in bills]
    assert prices[0] == prices[1] == prices[2] <= prices[3]


@pytest.mark.parametrize(
    ("mechanism", "bill"),
    [(DISJOINT, {0: 2, 1: 1}), (POISSON, {0: 4, 1: 1})],  # once per epoch and key; once per step and key
)
def test_a_step_is_billed_once_per_key(path, mechanism, bill):
    ledger = written(path, [(0, 0, KEY), (0, 1, KEY), (0, 0, KEY), (1, 2, KEY)], mechanism)
    assert ledger.releases_by_epoch() == ({0: 1, 1: 1} if mechanism is DISJOINT else {0: 2, 1: 1})
    size = path.stat().st_size
    ledger.write(0, 1, KEY)
    assert path.stat().st_size == size
    ledger.write(0, 0, OTHER_KEY)
    ledger.write(0, 1, OTHER_KEY)
    assert ledger.releases_by_epoch() == bill


def test_nothing_taken_costs_nothing(path):
    assert PrivacyLedger(path, DISJOINT).releases_by_epoch() == {}
    assert judge(DISJOINT, {}, 1e-5, False).conditional_epsilon == 0


# Resuming


@settings(max_examples=25)
@given(mechanisms, entries, entries)
def test_reopening_forgets_nothing_and_goes_on(mechanism, before, after):
    with quick() as path, quick() as at_once:
        chain = written(path, before, mechanism).chain
        again = PrivacyLedger.open(path, chain)
        assert (again.mechanism, again.chain) == (mechanism, chain)
        for release in after:
            again.write(*release)
        whole = written(at_once, before + after, mechanism)
        assert path.read_bytes() == at_once.read_bytes()
        assert PrivacyLedger.open(path, chain).releases_by_epoch() == whole.releases_by_epoch()


def test_a_last_line_torn_at_any_byte_is_replaced_and_writing_goes_on(path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    _, raw = three(path)
    last = raw.splitlines(keepends=True)[-1]
    for kept in range(len(last)):
        torn = raw[: len(raw) - len(last) + kept]
        path.write_bytes(torn)
        ledger = PrivacyLedger.open(path)
        assert path.read_bytes() == torn  # judging an active run must not modify the ledger
        whole = kept == len(last) - 1  # only the line break is missing
        assert len(ledger.releases) == (3 if whole else 2)
        ledger.write(1, 2, KEY)
        ledger.write(1, 3, OTHER_KEY)
        assert path.read_bytes().startswith(raw)
        assert PrivacyLedger.open(path, ledger.chain).releases == ledger.releases
        assert len(ledger.releases) == 4


@pytest.mark.parametrize("torn", [b'{"chain": "' + b"0" * 500, b"\x00" * 500])
def test_a_torn_line_longer_than_the_next_entry_leaves_no_rest(path, torn):
    """Some file systems leave zeros if a write was lost."""
    ledger, raw = three(path)
    path.write_bytes(raw + torn)
    again = PrivacyLedger.open(path, ledger.chain)
    again.write(1, 3, KEY)
    assert path.read_bytes().startswith(raw)
    assert path.read_bytes().endswith(b"}\n")
    assert PrivacyLedger.open(path, again.chain).releases == again.releases


def test_a_ledger_that_exists_is_gone_or_was_continued_elsewhere_takes_no_entry(path):
    ledger, before = three(path)
    with pytest.raises(UsageError, match="--out"):
        PrivacyLedger(path, DISJOINT)
    assert path.read_bytes() == before
    PrivacyLedger.open(path).write(1, 3, OTHER_KEY)
    with pytest.raises(UsageError, match="another process"):
        ledger.write(1, 4, KEY)
    assert len(PrivacyLedger.open(path).releases) == 4
    path.unlink()
    with pytest.raises(UsageError, match="cannot be written"):
        ledger.write(1, 4, KEY)
    assert not path.exists()


# Damage


def test_every_changed_byte_is_noticed(path):
    _, raw = three(path)
    for place in range(len(raw)):
        for byte in {raw[place] ^ 1, b"\n}\t"[place % 3]} - {raw[place]}:  # a tab means the same as a space
            path.write_bytes(raw[:place] + bytes([byte]) + raw[place + 1 :])
            refused(path)


def test_lines_cut_off_that_the_record_remembers_are_missed(path):
    ledger, raw = three(path)
    lines = raw.splitlines(keepends=True)
    middle = json.loads(lines[2])["chain"]
    for left in (b"".join(lines[:3]), raw[:-2]):
        path.write_bytes(left)
        PrivacyLedger.open(path, middle)
        refused(path, "lacks entries", chain=ledger.chain)
    path.write_bytes(raw)
    PrivacyLedger.open(path, middle)  # a record can be older than its ledger


def test_an_unreadable_ledger_is_one_sentence(path):
    refused(path, "cannot be read")
    path.mkdir()
    refused(path, "is a folder: give a file")
    path.rmdir()
    for rubbish in (b"", b"\n", b"[" * 100_000 + b"\n", b"{}\n", b"null\n", b"\xff\xfe}\n", b'{"chain": NaN}\n'):
        path.write_bytes(rubbish)
        refused(path)


@pytest.mark.parametrize(
    "entry",
    [
        {"mechanism": {**vars(DISJOINT), "colour": "red"}},  # from a later version
        {"mechanism": {**vars(DISJOINT), "clip_norm": -1}},
        {"mechanism": {"variant": "sound"}},
        {"mechanism": None},
        {"epoch": 0, "step": 0, "key": "0"},
    ],
)
def test_a_first_line_that_is_no_mechanism_is_refused(path, entry):
    path.write_bytes(_sealed(entry, "") + b"\n")
    refused(path, "line 1")


@settings(max_examples=150)
@given(st.data())
def test_a_spliced_or_random_file_is_refused_or_has_lost_its_last_lines_only(data):
    with quick() as path:
        ledger, raw = three(path)
        start = data.draw(st.integers(0, len(raw)))
        end = data.draw(st.integers(start, len(raw)))
        foreign = _sealed({"epoch": 9, "step": 9, "key": "0"}, "") + b"\n"
        piece = data.draw(st.binary(max_size=40) | st.sampled_from([raw[:end], raw[start:], foreign]))
        path.write_bytes(data.draw(st.just(raw[:start] + piece + raw[end:]) | st.binary(max_size=300)))
        try:
            found = PrivacyLedger.open(path)
        except UsageError:
            return
        assert found.releases.items() <= ledger.releases.items()
        assert found.chain in raw.decode()


# Disk and process faults


@contextmanager
def room_for(size: int):
    """A disk on which no file grows beyond `size` bytes: a write stops midway, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 1, 40])
def test_a_disk_that_fills_up_half_way_through_a_line(path, room):
    ledger, raw = three(path)
    with room_for(len(raw) + room):
        for _ in range(2):
            with pytest.raises(UsageError, match=r"cannot be written .*: fix the disk"):
                ledger.write(1, 3, KEY)
    assert len(path.read_bytes()) == len(raw) + room
    assert len(ledger.releases) == len(PrivacyLedger.open(path).releases) == 3
    ledger.write(1, 3, KEY)
    assert PrivacyLedger.open(path, ledger.chain).releases == ledger.releases


def test_a_sync_that_fails_is_no_entry(path, monkeypatch):
    ledger, _ = three(path)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(UsageError, match="No space left"):
            ledger.write(1, 3, KEY)
    assert (3, fingerprint(KEY)) not in ledger.releases
    assert len(PrivacyLedger.open(path).releases) >= 3


def test_a_new_ledger_without_room_leaves_no_file(path):
    with room_for(10), pytest.raises(UsageError, match="fix the disk"):
        PrivacyLedger(path, DISJOINT)
    assert not path.exists()


def test_noise_that_would_be_used_twice_is_refused(path):
    """Equal noise in two epochs could be subtracted away; counted as two releases, it would protect neither."""
    ledger = PrivacyLedger(path, Mechanism.sound(1.0, 0.7, 4, 4))
    ledger.write(0, 5, KEY)
    for epoch, step in ((1, 5), (-1, 6), (0, -1)):
        with pytest.raises(UsageError, match="number the steps"):
            ledger.write(epoch, step, KEY)
    ledger.write(1, 5, OTHER_KEY)
    assert ledger.releases_by_epoch() == {0: 1, 1: 1}
