"""Readers of common file formats: JSON, tables, CoNLL, Rasa's YAML. `read_file` chooses the reader by a file's suffix.

Every reader notes how it interpreted the file, and for how many utterances.
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

from edp_lab.corpora import readers
from edp_lab.corpora.readers import SLOT, Chunk, Notes, Reading, Row, chunks_of, reader, text_lines, tokenise
from edp_lab.errors import UsageError, check_once
from edp_lab.files import once, read_bytes

TEXTS = ("tokens", "text", "utterance", "query", "utt", "sentence")  # keys of the text; the first key found is read
INTENTS = ("intent", "label", "category")
READ = (*TEXTS, *INTENTS, "tags", "annot_utt", "entities")
HINTS = {  # reasons why a key is not read, by the beginning of a word in it
    "tag|slot|entit|ner|bio|iob": 'slots are read from "tags", a BIO tag per word; with "text", also from "entities"',
    "speaker|user|customer|client|person|author|worker": "epsilon is for one utterance, not for all that a person said",
}
TEXT, LIST = "a string", "a list of strings"
LINE = '{"tokens": ["play", "jazz"], "tags": ["O", "B-genre"], "intent": "play"}'
TAG = re.compile(r"O|[BILUESMW]-\S+")
INTENT_LINE = re.compile(r"#\s*intent\s*[:=]\s*(.+)")
RASA_SLOT = re.compile(r"\[(?P<value>[^\[\]]+)\](?P<slot>\([^()]+\)|\{[^{}]*\})")  # [oslo](city), [oslo]{"entity": ...}


@reader
def read_json(path: Path, notes: Notes) -> Iterator[Row]:
    """Read one object per line (see `_row`), or a document with lists of objects, of pairs or of Snips' "data"."""
    lines = text_lines(path)
    document = _document(path, "\n".join(lines).strip())
    for number, line in enumerate(lines if document is None else (), start=1):
        if line.strip():
            place = f"{path}, line {number}"
            yield _row(_object(line, place), place, notes)
    for keys, items in _lists(document):
        name = ".".join(keys) or "list"
        if not any(map(_is_utterance, items)):
            notes[f'ignored items of "{name}", which are not utterances'] += [str(path)] * len(items)
            continue
        for number, item in enumerate(items, start=1):
            place = f"{path}, {name} {number}"
            if not _is_utterance(item):
                raise UsageError(f"{place}: not an utterance: add a text and an intent, or remove it")
            notes[f'utterances of "{name}"'].append(place)
            if isinstance(item, list):
                yield Row(item[0].split(), None, item[1], place)
            elif item.keys().isdisjoint(TEXTS):
                pieces = [(piece["text"], piece.get("slot_name") or piece.get("entity")) for piece in item["data"]]
                yield Row(*tokenise(pieces), next((key for key in keys[::-1] if key != "utterances"), ""), place)
            else:
                yield _row(item, place, notes)


def _document(path: Path, text: str) -> Any:
    """Parse the text as one document; None if each line should be an object of its own."""
    try:
        document, end = json.JSONDecoder(object_pairs_hook=once).raw_decode(text)
    except (ValueError, RecursionError) as error:
        if path.suffix == ".json":
            raise UsageError(f"{path} is not JSON ({error}): use one document, or one object per line") from None
        return None
    return None if end < len(text) or (path.suffix == ".jsonl" and "\n" not in text) else document


def _lists(value: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    """Yield all lists of a document, each with the keys that lead to it."""
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
    """Read the utterance in an object, and note every key that is not read."""
    words, intent, marks, kinds, others = _keys(tuple(item))
    for note in others:
        notes[note].append(place)
    for key, kind in kinds.items():
        if key not in item:
            raise UsageError(f'{place}: "{key}" is missing (found: {", ".join(item) or "nothing"}); add {kind}')
        value = item[key]
        wrong = type(value) is not str if kind == TEXT else type(value) is not list or {*map(type, value)} - {str}
        if wrong and value is not None:
            raise UsageError(f'{place}: "{key}" must be {kind}, not {value!r:.40}')
    tokens, tags = item[words] or "", item.get("tags")
    if marks == "annot_utt" and item[marks]:
        chunks = chunks_of(SLOT, item[marks])
        if "".join("".join(text for text, _ in chunks).split()) != "".join(tokens.split()):
            notes[f'utterances read from "annot_utt", which differs from "{words}"'].append(place)
        tokens, tags = tokenise(chunks)
    elif marks == "entities":
        tokens, tags = tokenise(_entity_chunks(tokens, item[marks], place, notes))
    elif words != "tokens":
        tokens = tokens.split()
    return Row(tokens, tags, (item[intent] or "").strip(), place)


@cache
def _keys(keys: tuple[str, ...]) -> tuple[str, str, str, dict[str, str], list[str]]:
    """Keys of the text, intent and slots in an object ("annot_utt" in MASSIVE); their types; notes on other keys."""
    words, intent = (next((name for name in names if name in keys), names[0]) for names in (TEXTS, INTENTS))
    ways = ["tags"] if words == "tokens" else ["tags", "annot_utt", "entities"]
    marks = next((way for way in ways if way in keys), "tags")
    kinds = {words: LIST if words == "tokens" else TEXT, intent: TEXT}
    kinds |= {key: LIST if key == "tags" else TEXT for key in ("tags", "annot_utt") if key in keys}
    return words, intent, marks, kinds, [_unread(key) for key in keys if key not in (words, intent, marks)]


def _entity_chunks(text: str, entities: Any, place: str, notes: Notes) -> list[Chunk]:
    chunks: list[Chunk] = []
    end = 0
    try:
        for entity in sorted(entities, key=lambda entity: entity["start"]):
            start, stop = entity["start"], entity["end"]
            if end <= start < stop <= len(text) and (words := text[start:stop]).strip():
                chunks += [(text[end:start], None), (words, _slot_name(entity, words, place, notes))]
                end = stop
            else:
                notes["ignored entities, which are blank, outside the text or overlapping"].append(place)
    except (KeyError, TypeError):
        raise UsageError(f'{place}: "entities" must be a list of objects with start, end and entity') from None
    return _note_cuts([*chunks, (text[end:], None)], place, notes)


def _note_cuts(chunks: list[Chunk], place: str, notes: Notes) -> list[Chunk]:
    """Return the pieces of an utterance, and note if a word, or a word and its comma, are split."""
    texts = [text for text, _ in chunks if text]
    if any(not a[-1].isspace() and not b[0].isspace() for a, b in pairwise(texts)):
        notes["utterances with an entity that ends within a word, which is split there"].append(place)
    return chunks


def _slot_name(entity: Mapping[str, Any], text: str, place: str, notes: Notes) -> str:
    """Slot name of an entity, with role and group if it has any ("city.departure"); note if its value is a synonym."""
    if str(entity.get("value") or text) != text:
        notes["entities with a value that differs from their text, such as a synonym; the text is read"].append(place)
    return ".".join(str(entity[key]) for key in ("entity", "role", "group") if key == "entity" or entity.get(key))


def _unread(key: str) -> str:
    """Note on a key or column that is not read."""
    hints = [f" ({hint})" for like, hint in HINTS.items() if re.search(f"(?:^|[^a-z])(?:{like})", key.casefold())]
    return f'"{key}" is not read{"".join(hints[:1])}'


def _object(text: str, place: str) -> dict[str, Any]:
    try:
        if isinstance(item := json.loads(text, object_pairs_hook=once), dict):
            return item
        why = "not an object"
    except (ValueError, RecursionError) as error:
        why = "not JSON (" + re.sub(r"( at)?: line 1 (column \d+).*", r" at \2", str(error)) + ")"
    raise UsageError(f"{place}: {why}: write each utterance as a line such as {LINE}")


@reader
def read_table(path: Path, notes: Notes, columns: str = "") -> Iterator[Row]:
    """Read CSV or TSV. `columns`: headings of the text, the intent and optionally the tags, separated by commas."""
    lines = text_lines(path, notes) or [""]
    if said := re.fullmatch(r'(?i)"?sep=([^\w\s"]|\t)"?\W*', lines[0]):  # as Excel writes it
        lines[0] = ""

    def fit(delimiter: str) -> int:
        """Number of rows with as many cells as the first row, if that has several."""
        some = [line[:1000].replace("\r", "") for line in lines[:100] if line]
        sizes = [len(cells) for cells in csv.reader(some, delimiter=delimiter)]
        return sum(size == sizes[0] > 1 for size in sizes)

    delimiter = said[1] if said else max(",;\t|", key=fit)
    table = csv.reader((f"{line}\n" for line in lines), delimiter=delimiter, strict=True)
    rows = (cells for cells in table if any(map(str.strip, cells)))
    try:
        names = _names(path, next(rows, []), columns)
        for cells in rows:
            place = f"{path}, line {table.line_num}"
            if any(cells[len(names) :]):
                raise UsageError(f"{place}: more cells than columns: put texts that contain {delimiter!r} in quotes")
            notes[f"rows of a table with {delimiter!r} between columns"].append(place)
            several = any("\n" in cell.strip() for cell in cells)
            notes["rows with several lines, each read as one utterance"] += [place] * several
            cells += [""] * (len(names) - len(cells))
            item = {name or "no heading": cell for name, cell in zip(names, cells, strict=False) if name or cell}
            lists = {key: item[key].split() for key in ("tokens", "tags") if key in item}
            yield _row(item | lists, place, notes)
    except csv.Error as error:
        hint = "put quotes around the whole cell, and double the quotes inside it"
        raise UsageError(f"{path}, line {table.line_num}: the quotes do not match ({error}): {hint}") from None


def _names(path: Path, headings: list[str], columns: str) -> list[str]:
    """Headings in lower case; those chosen by `columns` are replaced by the keys that `_row` reads."""
    names = [heading.strip().casefold() for heading in headings]
    if not columns and {*names} & {*TEXTS[1:]}:  # next to a text, "tokens" is usually the number of tokens
        names = [f"other {name}" if name == "tokens" else name for name in names]
    wanted = [name.strip().casefold() for name in columns.split(",")] if columns else []
    known = all({*names} & {*some} for some in (TEXTS, INTENTS))
    if not (len({*wanted} & {*names}) == len(wanted) in (2, 3) if wanted else known):
        hint = "give --columns TEXT,INTENT with two headings, or add a line of headings"
        raise UsageError(f"{path} has no column {columns or 'text or intent'} (found: {', '.join(headings)}): {hint}")
    check_once([name for name in names if name in (wanted or READ)], f"{path}: column ")
    chosen = dict(zip(wanted, ("text", "intent", "tags"), strict=False))
    return [chosen.get(name, f"other {name}" if chosen and name in READ else name) for name in names]


@reader
def read_conll(path: Path, notes: Notes) -> Iterator[Row]:
    """Read one line per word, with the tag at its end, and a blank line after each utterance.

    The intent is in a comment ``# intent: NAME``, or alone on a line.
    """
    rows: list[tuple[int, list[str]]] = []
    intent = ""
    lines = [*text_lines(path, notes), ""]
    for number, line in enumerate(lines, start=1):
        cells = line.split()
        if comment := INTENT_LINE.match(line):
            if rows and intent:
                raise UsageError(f"{path}, line {number}: intent within an utterance: put a blank line before it")
            intent = comment[1].strip()
        elif len(cells) > 1 and TAG.fullmatch(cells[-1]) and not (line[0] == "#" and "=" in cells):
            if cells[0] != "-DOCSTART-":
                rows.append((number, cells))
        elif len(cells) == 1 and not intent and not (rows and lines[number].strip()):
            intent = cells[0]
        elif cells and line[0] != "#":
            hint = f'write "rome B-city" or "to O" (read as CoNLL; names of other formats end in {", ".join(READERS)})'
            raise UsageError(f"{path}, line {number}: {' '.join(cells)[:60]!r} does not end in a tag: {hint}")
        if not cells and rows:
            place = f"{path}, line {rows[0][0]}"
            if not intent:
                raise UsageError(f'{place}: no intent: put a line "# intent: NAME" above each utterance')
            notes["utterances read from CoNLL lines, with the word first and the tag last"].append(place)
            more = any(row[2:] for _, row in rows)
            notes["utterances with ignored columns between the first and the last"] += [place] * more
            yield Row([row[0] for _, row in rows], [row[-1] for _, row in rows], intent, place)
            rows, intent = [], ""


@reader
def read_rasa(path: Path, notes: Notes) -> Iterator[Row]:
    """Read the intents of Rasa's ``nlu.yml``, and note any other content."""
    import yaml

    class Once(yaml.BaseLoader):  # the base loader reads "yes" and "on" as words
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
            check_once([str(key.value) for key, _ in node.value], f"line {node.start_mark.line + 1}: ")
            return super().construct_mapping(node, deep)

    whole = "\n".join(text_lines(path, notes))
    try:
        document = yaml.load(whole, Loader=Once)
        sections = [(dict(section), _lines(section.get("examples", ""))) for section in document["nlu"]]
    except (yaml.YAMLError, RecursionError, KeyError, TypeError, ValueError, AttributeError) as error:
        why = " ".join(str(error).split())
        raise UsageError(f'{path} is not a Rasa nlu.yml (YAML with a list "nlu" of intents): {why}') from None
    for key in [*document, *(next(iter(section), "") for section, _ in sections if "intent" not in section)]:
        if key not in ("nlu", "version"):
            notes[_unread(key)].append(str(path))
    for section, lines in sections:
        intent = str(section.get("intent", ""))
        notes["intents without examples"] += [f"{path}, intent {intent}"] * (bool(intent) and not lines)
        for number, line in enumerate(lines if intent else (), start=1):
            place = f"{path}, intent {intent}, example {number}"
            if line[0] != "-":
                notes['ignored lines of "examples", which do not begin with "-"'].append(place)
                continue
            notes["utterances read from Rasa's YAML"].append(place)
            chunks = _note_cuts([*chunks_of(RASA_SLOT, line.removeprefix("-"))], place, notes)
            loose = any(mark is None and set("[]") & set(words) for words, mark in chunks)
            notes["examples with a bracket that does not mark an entity, read as a word"] += [place] * loose
            named = [(text, mark and _rasa_name(mark, text, place, notes)) for text, mark in chunks]
            yield Row(*tokenise(named), intent, place)


def _lines(examples: str | list[Any]) -> list[str]:
    """Non-blank lines of a block; the items of a list are written like lines of a block."""
    if isinstance(examples, str):
        return [*filter(None, map(str.strip, examples.split("\n")))]
    return [f"- {one if isinstance(one, str) else one['text']}" for one in examples[:]]  # a mapping raises an error


def _rasa_name(mark: str, text: str, place: str, notes: Notes) -> str:
    name, _, value = mark[1:-1].partition(":")
    try:
        entity = {"entity": name, "value": value} if mark[0] == "(" else json.loads(mark, object_pairs_hook=once)
        return _slot_name(entity, text, place, notes)
    except (ValueError, KeyError):
        raise UsageError(f"{place}: write entities as [oslo](city) or [oslo]{{...}}, as Rasa does") from None


READERS: dict[str, Callable[..., Reading]] = {
    **dict.fromkeys((".jsonl", ".json"), read_json),
    **dict.fromkeys((".csv", ".tsv"), read_table),
    **dict.fromkeys((".conll", ".iob", ".bio"), read_conll),
    **dict.fromkeys((".yml", ".yaml"), read_rasa),
}


def read_file(path: Path, columns: str = "") -> Reading:
    """Read a file by its suffix. If that is unknown, read it as JSON if it begins like JSON, else as CoNLL."""
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    head = read_bytes(path, readers.MOST_BYTES).lstrip()[:1]
    if not head:
        raise UsageError(f"{path} is empty: give a file of utterances, each with a text and an intent")
    read = READERS.get(suffix) or (read_json if head in (b"{", b"[") else read_conll)
    if columns and read is not read_table:
        raise UsageError(f"{path} is not a table: omit --columns, or give a .csv or .tsv file")
    return read(path, *filter(None, [columns]))
