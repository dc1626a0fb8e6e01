"""Readers: quirks of each format in small files, errors with file and line, and counts in the real corpora."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edp_lab.corpora import formats, readers
from edp_lab.corpora.corpus import Utterance
from edp_lab.corpora.metrics import spans
from edp_lab.corpora.readers import Reading, repair_bio
from edp_lab.errors import UsageError


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def write_seq(folder: Path, tokens: str | bytes, label: str, tags: str | None = None) -> Path:
    write(folder / "seq.in", tokens)
    write(folder / "label", label)
    if tags is not None:
        write(folder / "seq.out", tags)
    return folder


def only(reading: Reading) -> Utterance:
    (utterance,) = reading.utterances
    return utterance


# --- seq.in, seq.out, label ---


def test_seq_folder_splits_at_any_white_space_and_keeps_line_order(tmp_path):
    write_seq(tmp_path, "play  jazz \nstop\r\n", "play\nhalt\r\n", "O B-genre \nO \r\n")
    reading = readers.read_seq_folder(tmp_path)
    stop = Utterance(("stop",), ("O",), "halt")
    assert reading.utterances == [Utterance(("play", "jazz"), ("O", "B-genre"), "play"), stop]
    assert reading.warnings == []


def test_seq_folder_pools_sub_folders_in_official_order(tmp_path):
    for name in ("test", "train", "valid"):
        write_seq(tmp_path / name, f"{name}\n", "x\n", "O\n")
    assert [u.text for u in readers.read_seq_folder(tmp_path).utterances] == ["train", "valid", "test"]


def test_seq_folder_without_tags_with_a_byte_order_mark_and_a_line_that_str_splitlines_would_break(tmp_path):
    write_seq(tmp_path, b"\xef\xbb\xbfhello a\xc2\x85b\nc\n", "x\nx\n")
    found = readers.read_seq_folder(tmp_path).utterances
    assert [(u.tokens[0], u.tags) for u in found] == [("hello", None), ("c", None)]


@pytest.mark.parametrize(
    ("tokens", "label", "tags", "message"),
    [
        ("a b\nc d\n", "x\nx\n", "O O\nO\n", r"line 2: 1 tags for 2 tokens"),
        ("a\n\nb\n", "x\nx\nx\n", "O\n\nO\n", r"without text or intent: 1 \(.*, line 2\)"),
        ("a\nb\n", "x\n", "O\nO\n", r"label, line 2: the file has 1 lines but seq.in has 2"),
        ("a\nb\n", "x\nx\n", "O\n", r"seq.out, line 2: the file has 1 lines but seq.in has 2"),
        ("a\nb\n", "x\n \nx\n", "O\nO\n", r"label, line 3: the file has 3 lines"),
        ("a\nb\nc\n", "x\n \nx\n", "O\nO\nO\n", r"without text or intent: 1 \(.*, line 2\)"),
        ("a\n", "x\n", "city\n", r"line 1: tag 'city' is neither O nor B-<slot> nor I-<slot>"),
        ("a\n", "x\n", "B-\n", r"line 1: tag 'B-' is neither"),
        (b"a\nb\xff\n", "x\nx\n", None, r"seq.in, line 2: not UTF-8"),
        ("", "", None, r"contains no utterances"),
    ],
)
def test_malformed_seq_folder_is_named_by_file_and_line(tmp_path, tokens, label, tags, message):
    write_seq(tmp_path, tokens, label, tags)
    with pytest.raises(UsageError, match=message) as error:
        readers.read_seq_folder(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_seq_folders_that_do_not_fit_together(tmp_path):
    def refuse(message: str) -> None:
        with pytest.raises(UsageError, match=message):
            readers.read_seq_folder(tmp_path)

    refuse(r"contains no seq\.in")
    write_seq(tmp_path / "train", "a\n", "x\n", "O\n")
    write_seq(tmp_path / "test", "a\n", "x\n")
    refuse(r"test/.*line 1 has no tags, unlike the first")
    (tmp_path / "test" / "label").unlink()
    refuse(r"has no file label: add one")
    write_seq(tmp_path, "a\n", "x\n")
    refuse("keep one of the two")


# --- BIO repair ---


def test_loose_inside_tags_become_begin_tags_with_one_warning(tmp_path):
    write_seq(tmp_path, "a b c\nd e f\n", "x\nx\n", "O B-p I-p\nI-p I-q I-q\n")
    reading = readers.read_seq_folder(tmp_path)
    assert reading.utterances[1].tags == ("B-p", "B-q", "I-q")
    place = tmp_path / "{seq.in,seq.out,label}"
    assert reading.warnings == [f"slots that begin with I-, as in IOB1, read as B-: 2 (the first: {place}, line 2)"]


TAGS = st.lists(st.sampled_from(["O", "B-p", "I-p", "B-q", "I-q"]))


@given(TAGS)
def test_repair_keeps_the_slots_and_leaves_valid_bio(tags):
    repaired, count = repair_bio(tags)
    assert spans(repaired) == spans(tags)
    assert repair_bio(repaired) == (repaired, 0)
    assert count == sum(a != b for a, b in zip(tags, repaired, strict=True))


# --- JSONL ---


def test_jsonl(tmp_path):
    rows = [
        {"tokens": ["höre", "jazz"], "tags": ["O", "B-genre"], "intent": "play", "id": 7},
        {"tokens": ["halt"], "tags": ["O"], "intent": "stop"},
    ]
    file = write(tmp_path / "a.jsonl", "\n\n".join(json.dumps(row) for row in rows))
    reading = formats.read_json(file)
    assert reading.utterances[0] == Utterance(("höre", "jazz"), ("O", "B-genre"), "play")
    assert reading.places[1] == f"{file}, line 3"
    untagged = write(tmp_path / "b.jsonl", '{"tokens": ["hi"], "intent": "greet"}\n')
    assert only(formats.read_json(untagged)).tags is None
    text = write(tmp_path / "d.jsonl", '{"text": "new  york", "tags": ["B-city", "I-city"], "intent": "go"}\n')
    assert formats.read_json(text).utterances[0].tokens == ("new", "york")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "not an object"),
        ('{"tokens": "hi", "intent": "x"}', '"tokens" must be a list of strings'),
        ('{"tokens": ["hi"], "tags": "", "intent": "x"}', '"tags" must be a list of strings'),
        ('{"tags": ["O"], "intent": "x"}', '"tokens" is missing'),
        ('{"text": ["hi"], "intent": "x"}', '"text" must be a string'),
        ('{"text": "new york", "tags": ["O"], "intent": "x"}', "1 tags for 2 tokens"),
        ('{"text": "hi"}', '"intent" is missing (found: text)'),
        ('{"tokens": ["new york"], "tags": ["O"], "intent": "x"}', "token 'new york' is empty or contains white"),
        ('{"tokens": ["hi"], "intent": "x"}', "has no tags, unlike the first utterance"),
        (r'{"tokens": ["\ud83c"], "tags": ["O"], "intent": "x"}', "half of a surrogate pair"),
        ("play,jazz", "not JSON (Expecting value at column 1): write each utterance as a line such as {"),
    ],
)
def test_malformed_jsonl_is_named_by_file_and_line(tmp_path, line, message):
    good = '{"tokens": ["a"], "tags": ["O"], "intent": "x"}'
    file = write(tmp_path / "a.jsonl", f"{good}\n{line}\n{good}\n")
    with pytest.raises(UsageError) as error:
        formats.read_json(file)
    assert f"{file}, line 2" in str(error.value)
    assert message in str(error.value)


# --- NLU-EVAL ---


def unislu(folder: Path, *lines: str) -> Path:
    for name in ("train", "dev", "test"):
        write(folder / f"{name}.tsv", "utterance\toutput\n" + ("\n".join(lines) if name == "train" else ""))
    return folder


ALIGNED, LOST = "aligned to their utterance: 1", "they could not be aligned to their utterance: 1"


@pytest.mark.parametrize(
    ("line", "text", "slots", "warning"),
    [
        ("buy milk\t[IN:ADD buy [SL:ITEM_NAME: milk]]", "buy milk", [(1, 2, "item_name")], None),
        ("go to rome.\t[IN:ADD go to [SL:PLACE: rome].]", "go to rome .", [(2, 3, "place")], None),
        ("see the sea\t[IN:ADD see [SL:PLACE:  the sea]]", "see the sea", [(1, 3, "place")], None),
        ("one] two\t[IN:ADD one] two]", "one] two", [], None),
        # a careless replacement that can be undone
        (
            "what time is it in oslo\t[IN:ADD what SL:TIMEis it in [SL:PLACE: oslo]]",
            *("what time is it in oslo", [(5, 6, "place")], ALIGNED),
        ),
        ("the date today\t[IN:ADD the SL:DATE[SL:DATE: today]]", "the date today", [(2, 3, "date")], ALIGNED),
        (
            "an update on my date night\t[IN:ADD an upSL:DATEon my [SL:EVENT: SL:DATEnight]]",
            *("an update on my date night", [(4, 6, "event")], ALIGNED),
        ),
        (
            "the dutch rate\t[IN:ADD the [currency_name: dutch] rate]",
            *("the dutch rate", [(1, 2, "currency_name")], ALIGNED),
        ),
        ("b c\t[IN:ADD b SL:TIMEx]", None, [], LOST),
    ],
)
def test_unislu_rows_are_read_aligned_or_left_out(tmp_path, line, text, slots, warning):
    first, *found = (reading := readers.read_unislu(unislu(tmp_path, "a\t[IN:ADD a]", line))).utterances
    assert (first.text, first.intent) == ("a", "add")
    assert [(u.text, spans(u.tags or ())) for u in found] == ([(text, slots)] if text else [])
    assert len(reading.warnings) == bool(warning)
    assert not warning or (warning in reading.warnings[0] and "line 3" in reading.warnings[0])


def test_malformed_unislu(tmp_path):
    with pytest.raises(UsageError, match=r"train\.tsv, line 2: expected an utterance, a tab"):
        readers.read_unislu(unislu(tmp_path, "a [IN:ADD a]"))


# --- the real corpora, against the counts in their SOURCE.md ---


def counts(reading: Reading) -> tuple[int, int, int, int, int]:
    """Number of utterances, distinct token strings, intents, slot types and entities."""
    slots = [slot for u in reading.utterances for slot in spans(u.tags or ())]
    return (
        len(reading.utterances),
        len({u.tokens for u in reading.utterances}),
        len({u.intent for u in reading.utterances}),
        len({label for _, _, label in slots}),
        len(slots),
    )


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("atis", (5_871, 5_473, 26, 83, 14_851 + 1_709 + 2_837)),
        ("atis/train", (4_478, 4_189, 21, 79, 14_851)),
        ("snips/slotgated", (14_484, 14_213, 7, 39, 33_958 + 1_794 + 1_790)),
        ("snips/slotgated/train", (13_084, 12_859, 7, 39, 33_958)),
    ],
)
def test_seq_folders_have_their_published_counts(real_data, folder, expected):
    reading = readers.read_seq_folder(real_data / folder)
    assert (counts(reading), reading.warnings) == (expected, [])


def test_unislu_counts(real_data):
    reading = readers.read_unislu(real_data / "nlu_eval/unislu_full")
    # SOURCE.md counts 20,595 entities. One more is recovered from a row whose bracket had lost its prefix.
    assert counts(reading) == (25_715, 25_672, 54, 56, 20_596)
    (warning,) = reading.warnings
    assert "rows with a damaged output, aligned to their utterance: 130" in warning
