"""Everyday commands to an assistant, generated from a grammar (``everyday.txt``, which explains its notation).

Public text for what private models start from (`edp_lab.models.public_start`): some six hundred intents that anybody
might have for an assistant or a service desk, with slots. Nothing is trained on it to be protected, and it is no
measure of anything.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from random import Random

from edp_lab.corpora.corpus import Corpus, Utterance
from edp_lab.errors import UsageError

GRAMMAR = Path(__file__).with_name("everyday.txt")
RELATED = GRAMMAR.with_name("related.txt")
_ALTERNATIVES = re.compile(r"\(([^()]*)\)")
_INTENT = re.compile(r"\[(\w+)(?: (\d+))?\]")
_LIST = re.compile(r"(\w+): (.*)")


def everyday(utterances: int, seed: int = 0) -> Corpus:
    """So many commands, the same on every platform for the same arguments; UsageError for fewer than one."""
    if utterances < 1:
        raise UsageError(f"cannot generate {utterances} utterances: ask for at least 1")
    lists, rules = _grammar()
    random = Random(f"everyday {seed}")
    weights = [weight for _, weight, _ in rules]
    made = []
    for intent, _, templates in random.choices(rules, weights, k=utterances):
        tokens: list[str] = []
        tags: list[str] = []
        for item in _chosen(random.choice(templates), random).split():
            slot, _, name = item[1:-1].partition("=")
            if item.startswith("{"):
                words = _words(f"<{name or slot}>", lists, random)
                tags += [f"B-{slot}"] + [f"I-{slot}"] * (len(words) - 1)
            else:
                words = _words(item, lists, random)
                tags += ["O"] * len(words)
            tokens += words
        made.append(Utterance(tuple(tokens), tuple(tags), intent))
    slots = {tag[2:] for utterance in made for tag in utterance.tags or () if tag != "O"}
    return Corpus(
        "everyday", tuple(made), tuple(sorted({utterance.intent for utterance in made})), tuple(sorted(slots))
    )


def related(orders: int, seed: int = 0) -> list[list[str]]:
    """Lines of words that are near in meaning (``related.txt``), each in so many random orders: text for vectors."""
    random = Random(f"related {seed}")
    lines = [line.split() for line in RELATED.read_text(encoding="utf-8").split("\n") if line[:1] not in ("", "#")]
    return [random.sample(line, len(line)) for _ in range(orders) for line in lines]


def _words(item: str, lists: dict[str, list[str]], random: Random) -> list[str]:
    """What an item of a template stands for: itself, or a draw from a list."""
    if not item.startswith("<"):
        return [item]
    name, _, ending = item[1:].partition(">")
    words = [w for part in _chosen(random.choice(lists[name]), random).split() for w in _words(part, lists, random)]
    return [*words[:-1], words[-1] + ending]


def _chosen(text: str, random: Random) -> str:
    """The text with one of each group of alternatives."""
    while match := _ALTERNATIVES.search(text):
        text = text[: match.start()] + random.choice(match[1].split("|")) + text[match.end() :]
    return text


@cache
def _grammar() -> tuple[dict[str, list[str]], list[tuple[str, int, list[str]]]]:
    """The lists by name, and of each intent its weight and templates."""
    lists: dict[str, list[str]] = {}
    rules: list[tuple[str, int, list[str]]] = []
    lines = re.sub(r"\n  +", " ", GRAMMAR.read_text(encoding="utf-8")).split("\n")
    for line in lines:
        if not line or line.startswith("#"):
            continue
        if match := _INTENT.fullmatch(line):
            rules.append((match[1], int(match[2] or 1), []))
        elif match := _LIST.fullmatch(line):
            lists[match[1]] = match[2].split(", ")
        else:
            rules[-1][2].append(line)
    return lists, rules
