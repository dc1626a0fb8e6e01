"""Readers of folders, and the rules for all readers; `formats` contains the readers of single files.

Tokens. Formats that are already tokenised (``seq.in``, JSONL) keep their tokens; JSONL's ``text`` is split at white
space. If slots are marked inside running text (NLU-EVAL), tokens are split only at white space and at the edges of
slots: "[place : rome]'s weather" becomes ``rome 's weather``. Punctuation stays on its word, and case is kept.

Tags. Every reader yields BIO tags. As in conlleval, an ``I-x`` that does not continue a slot x is read as ``B-x``. The
letters of BILOU, IOBES and BMEWO are read as those of BIO, and a warning counts these cases and names the first.

If utterances are left out, a warning counts them. One error lists all utterances without text or intent.

All readers raise `UsageError`, with file and line, if a file cannot be read, is malformed or contains no utterances.
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
MOST_BYTES = 2**30  # maximum size of a file; its utterances need up to twenty times as much memory
LETTERS = {"L-": "I-", "E-": "I-", "M-": "I-", "U-": "B-", "S-": "B-", "W-": "B-"}
SPLIT_FOLDERS = ("train", "valid", "dev", "test")

Chunk = tuple[str, str | None]  # a piece of running text, and the slot that it fills, if any
Notes = defaultdict[str, list[str]]  # the places of each kind of repair


class Row(NamedTuple):
    """One utterance as found in its file, not yet checked; `place` contains the file and line."""

    tokens: Sequence[str]
    tags: Sequence[str] | None
    intent: str
    place: str


class Reading(NamedTuple):
    """Utterances in file order, the place of each utterance, and warnings about repairs."""

    utterances: list[Utterance]
    places: list[str]
    warnings: list[str]


def reader(rows: Callable[..., Iterator[Row]]) -> Callable[..., Reading]:
    """Make a reader from a generator of rows, with the checks that all formats share. Notes become warnings."""

    @wraps(rows)
    def read(path: Path, *more: Any) -> Reading:
        notes: Notes = defaultdict(list)
        utterances: list[Utterance] = []
        places: list[str] = []
        seen: dict[tuple[str, ...], tuple[tuple[str, ...], int, bool]] = {}  # tag sequences repeat often
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
                f"{path}: utterances without text or intent: {len(lacking):,} ({where}): complete or remove them"
            )
        warnings = [f"{what}: {len(where)} (the first: {where[0]})" for what, where in notes.items() if where]
        if not utterances:
            raise UsageError("; ".join([f"{path} contains no utterances: each needs a text and an intent", *warnings]))
        return Reading(utterances, places, warnings)

    return read


def _check(row: Row) -> None:
    if " ".join(row.tokens).split() != [*row.tokens]:
        token = next(token for token in row.tokens if token.split() != [token])
        raise UsageError(f"{row.place}: token {token!r} is empty or contains white space")
    try:
        " ".join((*row.tokens, *(row.tags or ()), row.intent)).encode()
    except UnicodeEncodeError:
        raise UsageError(f"{row.place}: the text contains half of a surrogate pair: remove it") from None
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
    """Turn each ``I-x`` that follows neither ``B-x`` nor ``I-x`` into ``B-x``; also return the number of changes."""
    repaired = list(tags)
    for i, tag in enumerate(tags):
        if tag.startswith("I-") and (i == 0 or tags[i - 1] not in (tag, f"B-{tag[2:]}")):
            repaired[i] = f"B-{tag[2:]}"
    return tuple(repaired), sum(old != new for old, new in zip(tags, repaired, strict=True))


# --- The formats ---


@reader
def read_seq_folder(path: Path, notes: Notes) -> Iterator[Row]:
    """Read a folder with ``seq.in``, ``seq.out`` and ``label``, one utterance per line.

    If these are in sub-folders train, valid, dev and test, the sub-folders are pooled in this order. Any white space
    separates tokens and tags (the SNIPS files contain double spaces). Without ``seq.out``, utterances have no tags.
    """
    if not (folders := seq_folders(path)):
        raise UsageError(
            f"the folder {path} contains no seq.in, nor does a sub-folder {', '.join(SPLIT_FOLDERS)}: "
            "add seq.in, seq.out and label, with one utterance per line, or give a file"
        )
    if path in folders[:-1]:
        raise UsageError(f"{path} contains seq.in, and so does {folders[1].name}/: keep one of the two")
    for folder in folders:
        if not (folder / "label").exists():
            raise UsageError(f"{folder} has no file label: add one with the intent of each line of seq.in")
        tokens, intents = text_lines(folder / "seq.in"), text_lines(folder / "label")
        tagged = os.path.lexists(folder / "seq.out")  # a broken link should raise an error
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
    """The folder and its sub-folders train, valid, dev and test, if they contain a ``seq.in``."""
    return [folder for folder in (path, *(path / name for name in SPLIT_FOLDERS)) if (folder / "seq.in").exists()]


@reader
def read_unislu(path: Path, notes: Notes) -> Iterator[Row]:
    """Read UniSLU's reformatted copy of the whole NLU-EVAL CSV: ``{train,dev,test}.tsv`` in a folder.

    A line consists of the utterance, a tab and ``[IN:INTENT ... [SL:SLOT: value] ...]``. Intents and slots are
    returned in lower case, as in the CSV, but intents lack their scenario.

    In some rows, a careless string replacement damaged the output (``what SL:TIMEis it``). We undo it, and accept the
    row only if its words then equal the intact utterance; otherwise we leave it out. Warnings count both kinds of rows.
    """
    damaged = notes["rows with a damaged output, aligned to their utterance"]
    lost = notes["rows left out, because they could not be aligned to their utterance"]
    for file in (path / f"{name}.tsv" for name in ("train", "dev", "test")):
        for number, line in enumerate(text_lines(file)[1:], start=2):
            place = f"{file}, line {number}"
            if not (match := _UNISLU_LINE.fullmatch(line)):
                raise UsageError(f"{place}: expected an utterance, a tab and [IN:INTENT ...], found {line!r}")
            utterance, intent, output = match.groups()
            chunks = chunks_of(_UNISLU_SLOT, output)
            if _joined(chunks).split() != utterance.split():
                # Every slot name was replaced, together with the space after it: "time is" became "SL:TIMEis".
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
    """The lines of a file without line endings (LF, CRLF or CR), and without blank lines at the end of the file.

    We avoid str.splitlines, which also splits at characters that occur inside utterances. If a file is not UTF-8, an
    error is raised, or with `notes`, the file is read in the encoding that fits best.
    """
    content = read_bytes(path, MOST_BYTES)
    if b"\0" in content and content[:2] not in (b"\xff\xfe", b"\xfe\xff"):  # the beginning of UTF-16
        raise UsageError(f"{path} is not a text file: save a spreadsheet as CSV (UTF-8), or give a text file in UTF-8")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        from charset_normalizer import from_bytes

        if notes is None or not (guesses := [*from_bytes(content)]):
            line = content[: error.start].count(b"\n") + 1
            raise UsageError(f"{path}, line {line}: not UTF-8; save the file as UTF-8") from None
        # The best guess is first, but a few bytes cannot distinguish Western from Central European encodings.
        guess = next((guess for guess in guesses if "cp1252" in guess.could_be_from_charset), guesses[0])
        notes[f"not UTF-8, read as {guess.encoding} (save the file as UTF-8 if words look wrong)"].append(str(path))
        text = str(guess)
    # Concatenated files have a byte order mark at the beginning of each part.
    lines = [line.removesuffix("\r").removeprefix("\ufeff") for line in text.split("\n" if "\n" in text else "\r")]
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


# --- Slots inside running text ---

SLOT = re.compile(r"\[(?:SL:)?\s*(?P<slot>\w+)\s*:(?P<value>[^\[\]]*)\]")  # [date : today] as well as [SL:DATE: today]
_UNISLU_SLOT = re.compile(r"\[SL:(?P<slot>[A-Z_]+):(?P<value>[^\[\]]*)\]")
_UNISLU_LINE = re.compile(r"([^\t]*)\t\[IN:([A-Z_]+) (.*)\]")


def chunks_of(slot: re.Pattern[str], annotated: str) -> list[Chunk]:
    """Split a bracket annotation into pieces, for example ("wake me ", None), ("today", "date")."""
    chunks: list[Chunk] = []
    end = 0
    for match in slot.finditer(annotated):
        chunks += [(annotated[end : match.start()], None), (match["value"].strip(), match["slot"])]
        end = match.end()
    return [*chunks, (annotated[end:], None)]


def _joined(chunks: Iterable[Chunk]) -> str:
    return "".join(text for text, _ in chunks)


def tokenise(chunks: Iterable[Chunk]) -> tuple[list[str], list[str]]:
    """Split pieces of text into tokens with BIO tags; a token ends at white space or at the edge of a slot."""
    tokens: list[str] = []
    tags: list[str] = []
    for text, slot in chunks:
        words = text.split()
        tokens += words
        tags += [f"{'I' if i else 'B'}-{slot}" if slot else "O" for i in range(len(words))]
    return tokens, tags
