"""The grammar of the smart-home corpus: reads `smart_home.json` and draws annotated sentences from it.

Notation of the lines in that file:
    word           itself
    (a|b c|)       one of the alternatives, equally likely
    <phrase>       a draw from the phrase (or word list) of that name, not annotated
    {slot}         a draw from the phrase of that name, annotated with the slot
    {slot=phrase}  a draw from `phrase`, annotated with `slot`
    {reading}      a draw of a text with several readings, of which one is annotated: "readings" gives its
                   phrases and the odds of their labels; neighbours with equal labels are one value
    @macro         one of the macro's lines
    3 * ...        this line is three times as likely as one without a number

A sentence is a template of its domain. One that does not begin with <hey> begins with <polite>; all end
with <end>. A rule with several intents gives their odds. Names under "squared" are drawn with the square of
a uniform number, so that the first entries are frequent and most are rare. People have a common first name
and an invented last name; telephone numbers are 555-01xx, kept for fiction, or four-digit extensions;
streets, shops, titles and all but a few generic medicines are invented. The file is frozen: whatever
changes the draws needs a new "version".
"""

from __future__ import annotations

import json
import re
from bisect import bisect
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import accumulate, product
from pathlib import Path
from random import Random
from typing import NamedTuple

_DATA = json.loads(Path(__file__).with_name("smart_home.json").read_text(encoding="utf-8"))
GRAMMAR_VERSION: int = _DATA["version"]
INTENTS: dict[str, tuple[str, ...]] = {domain: tuple(of["intents"]) for domain, of in _DATA["labels"].items()}
SLOTS: dict[str, tuple[str, ...]] = {domain: tuple(of["slots"]) for domain, of in _DATA["labels"].items()}
HESITATION = 0.015  # chance of a filler word before a slot

Uniform = Callable[[], float]  # draws from [0, 1)
Tags = tuple[str, ...]


class Draft(NamedTuple):
    """A text with one draw of its readings (`tags`, `intent`) and with its likeliest reading (`best_*`)."""

    tokens: list[str]
    tags: Tags
    intent: str
    best_tags: Tags
    best_intent: str


def draw_sentence(domain: str, uniform: Uniform) -> Draft:
    """Draw a text, then one of its readings. `uniform` is the only source of randomness."""
    cumulative, rules = _rules(domain)
    intents, lines = rules[bisect(cumulative, uniform() * cumulative[-1])]
    tokens: list[str] = []
    tags: list[str] = []
    best: list[str] = []
    for part in _draw_variant(lines, uniform):
        if isinstance(part, str):
            tokens.append(part)
            tags.append("O")
            best.append("O")
        else:
            part.draw(uniform, tokens, tags, best)
    return Draft(tokens, tuple(tags), intents.draw(uniform), tuple(best), intents.likeliest)


# ---- The compiled grammar ----------------------------------------------------------------------------------

Lines = Sequence[Sequence[tuple]]  # alternative lines, each of equally likely variants, each a tuple of parts


def _draw_variant(lines: Lines, uniform: Uniform, squared: bool = False) -> tuple:
    u = uniform()
    variants = lines[int((u * u if squared else u) * len(lines))]
    return variants[0] if len(variants) == 1 else variants[int(uniform() * len(variants))]


class _Phrase:
    def __init__(self, lines: Lines, squared: bool) -> None:
        self.lines, self.squared = lines, squared

    def draw(self, uniform: Uniform, tokens: list[str]) -> None:
        for part in _draw_variant(self.lines, uniform, self.squared):
            if isinstance(part, str):
                tokens.append(part)
            else:
                part.draw(uniform, tokens)


class _Odds:
    def __init__(self, odds: dict[str, float]) -> None:
        self.values = sorted(odds, key=lambda value: -odds[value])
        self.cumulative = list(accumulate(odds[value] for value in self.values))
        self.likeliest = self.values[0]

    def draw(self, uniform: Uniform) -> str:
        if len(self.values) == 1:
            return self.likeliest
        return self.values[bisect(self.cumulative, uniform() * self.cumulative[-1])]


class _Slot:
    """Phrases in a sentence, with the odds of their labels: one label per phrase, "O" for no slot."""

    def __init__(self, phrases: Sequence[str], odds: dict[str, float]) -> None:
        self.phrases = [_phrase(name) for name in phrases]
        self.odds = _Odds(odds)
        self.hesitation = 0.0 if "O" in odds else HESITATION

    def draw(self, uniform: Uniform, tokens: list[str], tags: list[str], best: list[str]) -> None:
        if uniform() < self.hesitation:
            _phrase("filler").draw(uniform, tokens)
            tags.append("O")
            best.append("O")
        lengths: list[int] = []
        for phrase in self.phrases:
            before = len(tokens)
            phrase.draw(uniform, tokens)
            lengths.append(len(tokens) - before)
        tags.extend(_bio(self.odds.draw(uniform), tuple(lengths)))
        best.extend(_bio(self.odds.likeliest, tuple(lengths)))


@cache
def _bio(labels: str, lengths: tuple[int, ...]) -> Tags:
    tags: list[str] = []
    before = "O"
    for label, length in zip(labels.split(), lengths, strict=True):
        if label == "O":
            tags += ["O"] * length
        else:
            tags += ["I-" + label if label == before else "B-" + label] + ["I-" + label] * (length - 1)
        before = label
    return tuple(tags)


# ---- From the file to the compiled grammar -----------------------------------------------------------------

_INNERMOST_ALTERNATIVES = re.compile(r"\(([^()]*)\)")
_WEIGHT = re.compile(r"(?:(\d+) \*)?(.*)")


@cache
def _rules(domain: str) -> tuple[list[float], list[tuple[_Odds, Lines]]]:
    """The cumulative weights of a domain's rules; for each, the odds of its intents and its templates."""
    rules = _DATA["rules"][domain]
    compiled = [(_Odds(r["intents"]), _compile(map(_framed, r["templates"]), _sentence_part)) for r in rules]
    return list(accumulate(r["weight"] for r in rules)), compiled


@cache
def _phrase(name: str) -> _Phrase:
    lines = _titles()[name] if name in _DATA["titles"] else _words().get(name) or _DATA["phrases"][name]
    return _Phrase(_compile(lines, _phrase_part), name in _DATA["squared"])


def _compile(lines: Iterable[str], part: Callable[[str], object]) -> Lines:
    compiled: list[list[tuple]] = []
    for line in lines:
        weight, text = _weighted(line)
        variants = [tuple(part(item) for item in variant.split()) for variant in _variants(text)]
        compiled += [variants] * weight
    return compiled


def _framed(template: str) -> str:
    weight, text = _weighted(template)
    return f"{weight} * {text} <end>" if text.startswith("<hey>") else f"{weight} * <polite> {text} <end>"


def _weighted(line: str) -> tuple[int, str]:
    match = _WEIGHT.fullmatch(line)
    assert match is not None
    return int(match[1] or 1), match[2].strip()


def _variants(text: str) -> list[str]:
    """Every way through the alternatives, innermost first, so that nested alternatives keep their odds."""
    text = re.sub(r"@(\w+)", lambda macro: _macro(macro[1]), text)
    match = _INNERMOST_ALTERNATIVES.search(text)
    if match is None:
        return [text]
    return [
        variant
        for choice in match[1].split("|")
        for variant in _variants(f"{text[: match.start()]}{choice}{text[match.end() :]}")
    ]


@cache
def _macro(name: str) -> str:
    weighted = [_weighted(line) for line in _DATA["macros"][name]]
    return "(" + "|".join(text for weight, text in weighted for _ in range(weight)) + ")"


def _phrase_part(item: str) -> str | _Phrase:
    return _phrase(item[1:-1]) if item.startswith("<") else item


@cache
def _sentence_part(item: str) -> str | _Slot:
    name = item[1:-1]
    if item.startswith("<"):
        return _Slot([name], {"O": 1})
    if not item.startswith("{"):
        return item
    if name in _DATA["readings"]:
        return _Slot(_DATA["readings"][name]["phrases"], _DATA["readings"][name]["odds"])
    slot, _, phrase = name.partition("=")
    return _Slot([phrase or slot], {slot: 1})


@cache
def _words() -> dict[str, list[str]]:
    """The word lists: given, counted, joined. The invented names are shared out between shops and people."""
    words = {name: " ".join(lines).split() for name, lines in _DATA["words"].items()}
    for name, (first, stop, digits) in _DATA["ranges"].items():
        words[name] = [f"{n:0{digits}d}" for n in range(first, stop)]
    for name, pieces in _DATA["joined"].items():
        words[name] = ["".join(word) for word in product(*(words[piece] for piece in pieces))]
    uniform = Random(f"smart-home words {GRAMMAR_VERSION}").random
    for name in ("invented_name", "medicine"):
        words[name].sort(key=lambda _: uniform())
    names, shops = words["invented_name"], _DATA["shops"]
    words["shop"], words["last_name"] = names[:shops], names[shops:]
    # the commonest nouns of movies are the rarest of shows: a hint at the kind of title
    words["movie_noun"], words["show_noun"] = words["noun"], words["noun"][::-1]
    return words


@cache
def _titles() -> dict[str, list[str]]:
    """Distinct titles of each kind: what a title is must be known, its words give no more than a hint."""
    uniform = Random(f"smart-home titles {GRAMMAR_VERSION}").random
    taken: dict[str, str] = {}
    for kind, (phrase, count) in _DATA["titles"].items():
        target = len(taken) + count
        while len(taken) < target:
            tokens: list[str] = []
            _phrase(phrase).draw(uniform, tokens)
            taken.setdefault(" ".join(tokens), kind)
    return {kind: [title for title, of in taken.items() if of == kind] for kind in _DATA["titles"]}
