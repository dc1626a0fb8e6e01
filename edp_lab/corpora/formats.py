"""Files that people have: JSON, tables, CoNLL, Rasa's YAML. `read_file` chooses the reader by a file's suffix.

Every reader says by notes what it made of the file, and of how many utterances.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from edp_lab.corpora.readers import SLOT, Chunk, Notes, Reading, Row, chunks_of, reader, text_lines, tokenise
from edp_lab.errors import UsageError
from edp_lab.files import read_bytes

TEXTS = ("tokens", "text", "utterance", "query", "utt", "sentence")  # names of what is read; the first there is counts
INTENTS = ("intent", "label", "category")
HINTS = {  # why a key is not read, by how a word in it begins
    "tag|slot|entit|ner|bio|iob": 'slots come from "tags", a BIO tag for each word; of a "text" also from "entities"',
    "speaker|user|customer|client|person|author|worker": "epsilon is for one utterance, not all that one person said",
}
LINE = '{"tokens": ["play", "jazz"], "tags": ["O", "B-genre"], "intent": "play"}'
TAG = re.compile(r"O|[BILUESMW]-\S+")
INTENT_LINE = re.compile(r"#\s*intent\s*[:=]\s*(.+)")
RASA_SLOT = re.compile(r"\[(?P<value>[^\[\]]+)\](?P<slot>\([^()]+\)|\{[^{}]*\})")  # [oslo](city), [oslo]{"entity": ...}
SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers")


@reader
def read_json(path: Path, notes: Notes) -> Iterator[Row]:
    """Read an object a line (see `_row`), or a document: lists of objects, of [text, intent], of Snips' "data"."""
    lines = text_lines(path)
    document = _document(path, "\n".join(lines).strip())
    for number, line in enumerate(lines if document is None else (), start=1):
        if line.strip():
            place = f"{path}, line {number}"
            yield _row(_object(line, place), place, notes)
    for keys, items in _lists(document):
        name = ".".join(keys) or "list"
        if not any(map(_is_utterance, items)):
            notes[f'items of "{name}" that are no utterances, not read'] += [str(path)] * len(items)
            continue
        for number, item in enumerate(items, start=1):
            place = f"{path}, {name} {number}"
            if not _is_utterance(item):
                raise UsageError(f"{place}: no utterance: give it a text and an intent, or take it out")
            notes[f'utterances of "{name}"'].append(place)
            if isinstance(item, list):
                yield Row(item[0].split(), None, item[1], place)
            elif item.keys().isdisjoint(TEXTS):
                pieces = [(piece["text"], piece.get("slot_name") or piece.get("entity")) for piece in item["data"]]
                yield Row(*tokenise(pieces), next((key for key in keys[::-1] if key != "utterances"), ""), place)
            else:
                yield _row(item, place, notes)


def _document(path: Path, text: str) -> Any:
    """The document that the text is, or None if each of its lines should be one object."""
    try:
        document, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError) as error:
        if path.suffix == ".json":
            raise UsageError(f"{path} is not JSON ({error}): give one document, or an object a line") from None
        return None
    return None if end < len(text) or (path.suffix == ".jsonl" and "\n" not in text) else document


def _lists(value: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    """The lists of a document, with the keys that lead there."""
    if isinstance(value, list):
        yield keys, value
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield from _lists(inner, (*keys, key))


def _is_utterance(item: Any) -> bool:
    if isinstance(item, list):
        return [*map(type, item)] == [str, str]
    if not isinstance(item, dict) or not item.keys().isdisjoint(TEXTS):
        return isinstance(item, dict)
    pieces = item.get("data")
    return isinstance(pieces, list) and all(isinstance(one, dict) and type(one.get("text")) is str for one in pieces)


def _row(item: Mapping[str, Any], place: str, notes: Notes) -> Row:
    """The utterance in an object, and a note for every key that is not read."""
    words, intent, marks, others = _keys(tuple(item))
    for note in others:
        notes[note].append(place)
    string, strings = "a string", "a list of strings"
    for key, kind in ((words, strings if words == "tokens" else string), (intent, string), ("tags", strings)):
        value = item.get(key)
        if value is None and key == "tags":
            continue
        if key not in item:
            raise UsageError(f'{place}: no "{key}" (found: {", ".join(item) or "nothing"}); give {kind}')
        if type(value) is not str if kind is string else type(value) is not list or {*map(type, value)} - {str}:
            raise UsageError(f'{place}: "{key}" must be {kind}')
    tokens, tags = item[words], item.get("tags")
    if marks == "annot_utt":
        tokens, tags = tokenise(chunks_of(SLOT, str(item[marks])))
    elif marks == "entities":
        tokens, tags = tokenise(_entity_chunks(tokens, item[marks], place, notes))
    elif words != "tokens":
        tokens = tokens.split()
    return Row(tokens, tags, item[intent].strip(), place)


@cache
def _keys(keys: tuple[str, ...]) -> tuple[str, str, str, list[str]]:
    """Those of an object's keys that hold text, intent and slots ("annot_utt" in MASSIVE), and notes on the others."""
    words, intent = (next((name for name in names if name in keys), names[0]) for names in (TEXTS, INTENTS))
    ways = ["tags"] if words == "tokens" else ["tags", "annot_utt", "entities"]
    marks = next((way for way in ways if way in keys), "tags")
    return words, intent, marks, [_unread(key) for key in keys if key not in (words, intent, marks)]


def _entity_chunks(text: str, entities: Any, place: str, notes: Notes) -> list[Chunk]:
    chunks: list[Chunk] = []
    end = 0
    try:
        for entity in sorted(entities, key=lambda entity: entity["start"]):
            start, stop = entity["start"], entity["end"]
            if end <= start < stop <= len(text) and text[start:stop].strip():
                chunks += [(text[end:start], None), (text[start:stop], _slot_name(entity))]
                end = stop
            else:
                notes["entities that are blank, beyond their text or over another one, not read"].append(place)
    except (KeyError, TypeError):
        raise UsageError(f'{place}: "entities" must be a list of objects with start, end and entity') from None
    return _note_cuts([*chunks, (text[end:], None)], place, notes)


def _note_cuts(chunks: list[Chunk], place: str, notes: Notes) -> list[Chunk]:
    """The pieces of an utterance, with a note if a word lies in two of them: a comma after an entity counts, too."""
    texts = [text for text, _ in chunks if text]
    if any(not a[-1].isspace() and not b[0].isspace() for a, b in pairwise(texts)):
        notes["utterances with an entity that ends within a word, which is cut there"].append(place)
    return chunks


def _slot_name(entity: Mapping[str, Any]) -> str:
    """With its role and group, if it has them: "city.departure"."""
    return ".".join(str(entity[key]) for key in ("entity", "role", "group") if key == "entity" or entity.get(key))


def _unread(key: str) -> str:
    """A note on a key or a column that is not read."""
    hint = next(
        (f" ({hint})" for like, hint in HINTS.items() if re.search(f"(?:^|[^a-z])(?:{like})", key.casefold())), ""
    )
    return f'"{key}" is not read{hint}'


def _object(text: str, place: str) -> dict[str, Any]:
    try:
        if isinstance(item := json.loads(text), dict):
            return item
        why = "not an object"
    except (ValueError, RecursionError) as error:
        why = "not JSON (" + re.sub(r"( at)?: line 1 (column \d+).*", r" at \2", str(error)) + ")"
    raise UsageError(f"{place}: {why}: give each utterance a line such as {LINE}")


@reader
def read_table(path: Path, notes: Notes, columns: str = "") -> Iterator[Row]:
    """Read CSV or TSV; `columns`: the headings of text, intent and maybe tags, with commas between."""
    lines = text_lines(path, notes)

    def fit(delimiter: str) -> int:
        """How many rows have as many cells as the first, if it has several."""
        sizes = [
            len(cells)
            for cells in csv.reader([line[:1000].replace("\r", "") for line in lines[:100]], delimiter=delimiter)
        ]
        return sum(size == sizes[0] > 1 for size in sizes)

    delimiter = max(",;\t|", key=fit)
    table = csv.reader((f"{line}\n" for line in lines), delimiter=delimiter, strict=True)
    try:
        names = _names(path, next(table, []), columns)
        for cells in table:
            place = f"{path}, line {table.line_num}"
            if not any(map(str.strip, cells)):
                notes["rows without a word, not read"].append(place)
                continue
            if any(cells[len(names) :]):
                raise UsageError(f"{place}: more cells than columns: put quotes around a text with {delimiter!r}")
            if any("\n" in cell.strip() for cell in cells):
                notes["rows of several lines, each read as one utterance"].append(place)
            notes[f"utterances of a table split at {delimiter!r}"].append(place)
            item: dict[str, Any] = dict(zip(names, cells, strict=False))
            yield _row(item | ({"tags": item["tags"].split()} if "tags" in item else {}), place, notes)
    except csv.Error as error:
        hint = "put quotes around the whole cell, and double those inside"
        raise UsageError(f"{path}, line {table.line_num}: the quotes do not match ({error}): {hint}") from None


def _names(path: Path, headings: list[str], columns: str) -> list[str]:
    """The headings in lower case; those that `columns` chooses as the keys that `_row` reads."""
    names = [heading.strip().casefold() for heading in headings]
    wanted = [name.strip().casefold() for name in columns.split(",")] if columns else []
    if not {*wanted} <= {*names} or (not wanted and not all({*names} & {*known} for known in (TEXTS, INTENTS))):
        hint = "give --columns TEXT,INTENT with two headings, or write a line of headings"
        raise UsageError(f"{path} has no column {columns or 'text or intent'} (found: {', '.join(headings)}): {hint}")
    chosen = dict(zip(wanted, ("text", "intent", "tags"), strict=False))
    return [chosen.get(name, f"other {name}" if name in chosen.values() else name) for name in names]


@reader
def read_conll(path: Path, notes: Notes) -> Iterator[Row]:
    """Read a line for each word, its tag last, and a blank line after each utterance.

    The intent is in a comment ``# intent: NAME``, or alone on a line.
    """
    rows: list[tuple[int, list[str]]] = []
    intent = ""
    for number, line in enumerate([*text_lines(path, notes), ""], start=1):
        cells = line.split()
        if comment := INTENT_LINE.match(line):
            if rows and intent:
                raise UsageError(f"{path}, line {number}: an intent within an utterance: put a blank line before it")
            intent = comment[1].strip()
        elif len(cells) > 1 and TAG.fullmatch(cells[-1]) and not (line[0] == "#" and "=" in cells):
            if cells[0] != "-DOCSTART-":
                rows.append((number, cells))
        elif len(cells) == 1 and not intent:
            intent = cells[0]
        elif cells and line[0] != "#":
            raise UsageError(f"{path}, line {number}: no tag such as B-city at its end (read are {', '.join(READERS)})")
        if not cells and rows:
            place = f"{path}, line {rows[0][0]}"
            if not intent:
                raise UsageError(f'{place}: no intent: put a line "# intent: NAME" above each utterance')
            notes["utterances of CoNLL lines, the word first and the tag last"].append(place)
            words = [row[0] for _, row in rows]
            if len(rows) > 1 and words == [*map(str, range(1, len(rows) + 1))]:
                notes["utterances whose words are 1, 2, ...: if that column numbers the words, take it out"].append(
                    place
                )
            yield Row(words, [row[-1] for _, row in rows], intent, place)
            rows, intent = [], ""


@reader
def read_rasa(path: Path, notes: Notes) -> Iterator[Row]:
    """Read the intents of Rasa's ``nlu.yml``; what else is there gets a note."""
    import yaml

    try:
        # To the base loader "yes" and "on" are words.
        whole = "\n".join(text_lines(path, notes))
        document = yaml.load(whole, Loader=yaml.BaseLoader)
        if len(yaml.compose(whole).value) > len(document):
            raise UsageError(f'{path} has a key twice, such as two lists "nlu": make one list of them')
        sections = [dict(section) for section in document["nlu"]]
        blocks = [section.get("examples", "") for section in sections]
        texts = [block if isinstance(block, str) else "\n".join(one["text"] for one in block) for block in blocks]
    except (yaml.YAMLError, RecursionError, KeyError, TypeError, ValueError, AttributeError) as error:
        why = " ".join(str(error).split())
        raise UsageError(f'{path} has no YAML list "nlu" ({why}): give the nlu.yml of a Rasa assistant') from None
    for key in [*document, *(next(iter(section), "") for section in sections if "intent" not in section)]:
        if key not in ("nlu", "version"):
            notes[_unread(key)].append(str(path))
    for section, text in zip(sections, texts, strict=True):
        intent = str(section.get("intent", ""))
        if intent and not text.strip():
            notes["intents without examples"].append(f"{path}, intent {intent}")
        for number, line in enumerate(filter(None, map(str.strip, text.split("\n") if intent else ())), start=1):
            place = f"{path}, intent {intent}, example {number}"
            notes["utterances of Rasa's YAML"].append(place)
            chunks = _note_cuts([*chunks_of(RASA_SLOT, line.removeprefix("-"))], place, notes)
            if any(mark is None and set("[]") & set(words) for words, mark in chunks):
                notes["examples with a bracket that marks no entity, read as a word"].append(place)
            yield Row(*tokenise((text, mark and _rasa_name(mark, place)) for text, mark in chunks), intent, place)


def _rasa_name(mark: str, place: str) -> str:
    try:
        return mark[1:-1].partition(":")[0] if mark[0] == "(" else _slot_name(json.loads(mark))
    except (ValueError, KeyError):
        raise UsageError(f"{place}: write entities as [oslo](city) or [oslo]{{...}}, as Rasa does") from None


READERS: dict[str, Callable[..., Reading]] = {
    **dict.fromkeys((".jsonl", ".json"), read_json),
    **dict.fromkeys((".csv", ".tsv"), read_table),
    **dict.fromkeys((".conll", ".iob", ".bio"), read_conll),
    **dict.fromkeys((".yml", ".yaml"), read_rasa),
}


def read_file(path: Path, columns: str = "") -> Reading:
    """Read a file by its suffix; one with another suffix as JSON if it begins like that, else as CoNLL."""
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in SPREADSHEETS:
        raise UsageError(f"{path} is a workbook: save its sheet as CSV (UTF-8) from the spreadsheet program")
    read = READERS.get(suffix) or (read_json if read_bytes(path).lstrip()[:1] in (b"{", b"[") else read_conll)
    if columns and read is not read_table:
        raise UsageError(f"{path} is not a table: drop --columns, or give a .csv or .tsv file")
    return read(path, *filter(None, [columns]))
