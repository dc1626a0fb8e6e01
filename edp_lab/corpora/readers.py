"""Readers: one function per file format, each giving the utterances in file order; `formats` has more of them.

Tokens. Formats that are already tokenised (``seq.in``, JSONL) keep their tokens (JSONL's ``text`` is cut at white
space). If slots are marked inside running text (NLU-EVAL), a token ends at white space and at the edge of a slot,
nowhere else: "[place : rome]'s weather" gives ``rome 's weather``. Punctuation stays on its word, case is kept.

Tags. Every reader yields BIO: an ``I-x`` that does not continue an x is read as ``B-x``, as conlleval does, and the
letters of BILOU, IOBES and BMEWO as those of BIO, with one warning that counts them and names the first.

No utterance is left out without a warning that counts how many; those without text or intent are refused together.

All readers raise `UsageError` (file and line) for a file that cannot be read, is malformed or holds no utterance.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

from edp_lab.corpora.corpus import Utterance
from edp_lab.errors import UsageError
from edp_lab.files import read_bytes

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
MOST_BYTES = 2**30  # of a file; its utterances take up to twenty times as much memory
LETTERS = {"L-": "I-", "E-": "I-", "M-": "I-", "U-": "B-", "S-": "B-", "W-": "B-"}
SPLIT_FOLDERS = ("train", "valid", "dev", "test")

Chunk = tuple[str, str | None]  # a piece of running text, and the slot it fills if any
Notes = defaultdict[str, list[str]]  # kinds of repairs, and the places of each


class Row(NamedTuple):
    """One utterance as its file gives it, not yet checked; `place` is its file and line."""

    tokens: Sequence[str]
    tags: Sequence[str] | None
    intent: str
    place: str


class Reading(NamedTuple):
    """Utterances in file order, the place of each, and warnings of repairs."""

    utterances: list[Utterance]
    places: list[str]
    warnings: list[str]


def reader(rows: Callable[..., Iterator[Row]]) -> Callable[..., Reading]:
    """A reader from the rows of its format: checks that all formats share. Each note becomes a warning."""

    @wraps(rows)
    def read(path: Path, *more: Any) -> Reading:
        notes: Notes = defaultdict(list)
        utterances: list[Utterance] = []
        places: list[str] = []
        seen: dict[tuple[str, ...], tuple[tuple[str, ...], int, bool]] = {}  # a million have few tag sequences
        lacking: list[str] = []
        for row in rows(path, notes, *more):
            if not row.tokens or not row.intent.strip():
                lacking.append(row.place.removeprefix(f"{path}, "))
                continue
            _check(row)
            if utterances and (row.tags is None) != (utterances[0].tags is None):
                has = "has no tags" if row.tags is None else "has tags"
                raise UsageError(f"{row.place} {has}, unlike the first utterance: give tags to all or to none")
            tags = None
            if row.tags is not None:
                given = tuple(row.tags)
                if given not in seen:
                    bio = tuple(LETTERS.get(tag[:2], tag[:2]) + tag[2:] for tag in given)
                    for tag in bio:
                        _check_tag(tag, row.place)
                    seen[given] = (*repair_bio(bio), bio != given)
                tags, repairs, other_letters = seen[given]
                notes["utterances with tags in BILOU, IOBES or BMEWO, read as BIO"] += [row.place] * other_letters
                notes["slots that begin with I-, as in IOB1, read as B-"] += [row.place] * repairs
            utterances.append(Utterance(tuple(row.tokens), tags, row.intent))
            places.append(row.place)
        if lacking:
            where = ", ".join([*lacking[:3], *["..."][: len(lacking[3:])]])
            raise UsageError(
                f"{path}: utterances without text or intent: {len(lacking):,} ({where}): fill or drop them"
            )
        warnings = [f"{what}: {len(where)} (the first: {where[0]})" for what, where in notes.items() if where]
        if not utterances:
            raise UsageError("; ".join([f"{path} holds no utterances: give each a text and an intent", *warnings]))
        return Reading(utterances, places, warnings)

    return read


def _check(row: Row) -> None:
    if " ".join(row.tokens).split() != [*row.tokens]:
        token = next(token for token in row.tokens if token.split() != [token])
        raise UsageError(f"{row.place}: token {token!r} is empty or holds white space")
    try:
        " ".join((*row.tokens, *(row.tags or ()), row.intent)).encode()
    except UnicodeEncodeError:
        raise UsageError(f"{row.place}: the text holds half a surrogate pair, not a character") from None
    if row.tags is not None and len(row.tags) != len(row.tokens):
        raise UsageError(f"{row.place}: {len(row.tags)} tags for {len(row.tokens)} tokens")
    _check_label(row.intent, row.place)


def _check_tag(tag: str, place: str) -> None:
    _check_label(tag, place)
    if tag != "O" and (tag[:2] not in ("B-", "I-") or len(tag) == 2):
        raise UsageError(f"{place}: tag {tag!r} is neither O nor B-<slot> nor I-<slot>")


def _check_label(label: str, place: str) -> None:
    if CONTROL.search(label):
        raise UsageError(f"{place}: label {label!r} contains a control character or a line break: remove it")


def repair_bio(tags: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """The tags with each ``I-x`` after neither ``B-x`` nor ``I-x`` turned into ``B-x``, and how many were."""
    repaired = list(tags)
    for i, tag in enumerate(tags):
        if tag.startswith("I-") and (i == 0 or tags[i - 1] not in (tag, f"B-{tag[2:]}")):
            repaired[i] = f"B-{tag[2:]}"
    return tuple(repaired), sum(old != new for old, new in zip(tags, repaired, strict=True))


# --- The formats ---


@reader
def read_seq_folder(path: Path, notes: Notes) -> Iterator[Row]:
    """Read a folder of ``seq.in``, ``seq.out``, ``label``, one utterance a line.

    Or of train/valid/dev/test sub-folders of that form, which are pooled in this order. Tokens and tags are
    separated by any white space (the SNIPS files hold double spaces). Without ``seq.out`` there are no tags.
    """
    if not (folders := seq_folders(path)):
        raise UsageError(
            f"{path} holds no seq.in, neither at its top nor in {', '.join(SPLIT_FOLDERS)}: "
            "put seq.in, seq.out and label there, one utterance a line, or give a file in it"
        )
    if path in folders[:-1]:
        raise UsageError(f"{path} has a seq.in at its top and one in {folders[1].name}/: keep one of the two")
    for folder in folders:
        if not (folder / "label").exists():
            raise UsageError(f"{folder} has no file label: put one there with the intent of each line of seq.in")
        tokens, intents = text_lines(folder / "seq.in"), text_lines(folder / "label")
        tagged = os.path.lexists(folder / "seq.out")  # a link to nothing should show
        tags = text_lines(folder / "seq.out") if tagged else [""] * len(tokens)
        for name, lines in (("seq.out", tags), ("label", intents)):
            if len(lines) != len(tokens):
                raise UsageError(
                    f"{folder / name}, line {min(len(lines), len(tokens)) + 1}: the file has {len(lines)} lines "
                    f"but seq.in has {len(tokens)}; every utterance needs one line in each"
                )
        files = folder / ("{seq.in,seq.out,label}" if tagged else "{seq.in,label}")
        for number, (words, bio, intent) in enumerate(zip(tokens, tags, intents, strict=True), start=1):
            yield Row(words.split(), bio.split() if tagged else None, intent.strip(), f"{files}, line {number}")


def seq_folders(path: Path) -> list[Path]:
    """Those of the folder and its train/valid/dev/test that have a ``seq.in``."""
    return [folder for folder in (path, *(path / name for name in SPLIT_FOLDERS)) if (folder / "seq.in").exists()]


@reader
def read_unislu(path: Path, notes: Notes) -> Iterator[Row]:
    """Read UniSLU's reformatting of the whole NLU-EVAL CSV: ``{train,dev,test}.tsv`` below a folder.

    A line is the utterance, a tab, ``[IN:INTENT ... [SL:SLOT: value] ...]``. Intents and slots are given in
    lower case, as in the CSV; the intents lack their scenario.

    In some rows a careless string replacement damaged the output (``what SL:TIMEis it``). It is undone, and
    the row accepted only if its words then equal the intact utterance; otherwise it is left out. Warnings
    count both kinds.
    """
    damaged = notes["rows with a damaged output, aligned to their utterance"]
    lost = notes["rows that could not be aligned to their utterance, left out"]
    for file in (path / f"{name}.tsv" for name in ("train", "dev", "test")):
        for number, line in enumerate(text_lines(file)[1:], start=2):
            place = f"{file}, line {number}"
            if not (match := _UNISLU_LINE.fullmatch(line)):
                raise UsageError(f"{place}: expected an utterance, a tab and [IN:INTENT ...], found {line!r}")
            utterance, intent, output = match.groups()
            chunks = chunks_of(_UNISLU_SLOT, output)
            if _joined(chunks).split() != utterance.split():
                # A slot's name and the space after it were replaced everywhere: "time is" became "SL:TIMEis".
                chunks = [
                    (re.sub(r"SL:([A-Z_]+)", lambda name: f"{name[1].lower()} ", text), slot)
                    for text, slot in chunks_of(SLOT, output)
                ]
                aligned = _joined(chunks).split() == utterance.split()
                (damaged if aligned else lost).append(place)
                if not aligned:
                    continue
            lower = [(text, slot and slot.lower()) for text, slot in chunks]
            yield Row(*tokenise(lower), intent.lower(), place)


# --- Text files ---


def text_lines(path: Path, notes: Notes | None = None) -> list[str]:
    """A file's lines without their ends (LF, CRLF or CR) and without blank ones at the end of the file.

    Not str.splitlines: it also breaks at characters that occur inside utterances. A file that is not UTF-8 is refused,
    or with `notes` read in the encoding that fits it best.
    """
    content = read_bytes(path, MOST_BYTES)
    if b"\0" in content and content[:2] not in (b"\xff\xfe", b"\xfe\xff"):  # of UTF-16
        raise UsageError(f"{path} is no text: save a workbook's sheet as CSV (UTF-8), or give a text file in UTF-8")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        from charset_normalizer import from_bytes

        if notes is None or not (guesses := [*from_bytes(content)]):
            line = content[: error.start].count(b"\n") + 1
            raise UsageError(f"{path}, line {line}: not UTF-8; save the file as UTF-8") from None
        # The best is first, but a few bytes cannot tell Western from Central European.
        guess = next((guess for guess in guesses if "cp1252" in guess.could_be_from_charset), guesses[0])
        notes[f"not UTF-8, read as {guess.encoding} (save the file as UTF-8 if words look wrong)"].append(str(path))
        text = str(guess)
    # Files joined to one have a byte order mark at the head of each.
    lines = [line.removesuffix("\r").removeprefix("\ufeff") for line in text.split("\n" if "\n" in text else "\r")]
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


# --- Slots inside running text ---

SLOT = re.compile(r"\[(?:SL:)?\s*(?P<slot>\w+)\s*:(?P<value>[^\[\]]*)\]")  # [date : today] as well as [SL:DATE: today]
_UNISLU_SLOT = re.compile(r"\[SL:(?P<slot>[A-Z_]+):(?P<value>[^\[\]]*)\]")
_UNISLU_LINE = re.compile(r"([^\t]*)\t\[IN:([A-Z_]+) (.*)\]")


def chunks_of(slot: re.Pattern[str], annotated: str) -> list[Chunk]:
    """Cut a bracket annotation into pieces, for instance ("wake me ", None), ("today", "date")."""
    chunks: list[Chunk] = []
    end = 0
    for match in slot.finditer(annotated):
        chunks += [(annotated[end : match.start()], None), (match["value"].strip(), match["slot"])]
        end = match.end()
    return [*chunks, (annotated[end:], None)]


def _joined(chunks: Iterable[Chunk]) -> str:
    return "".join(text for text, _ in chunks)


def tokenise(chunks: Iterable[Chunk]) -> tuple[list[str], list[str]]:
    """Tokens and BIO tags; a token ends at white space and at the edge of a slot."""
    tokens: list[str] = []
    tags: list[str] = []
    for text, slot in chunks:
        words = text.split()
        tokens += words
        tags += [f"{'I' if i else 'B'}-{slot}" if slot else "O" for i in range(len(words))]
    return tokens, tags
