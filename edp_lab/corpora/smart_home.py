"""Generated corpora: smart-home commands in the paper's three domains, and everyday requests.

The paper's Communication, Health and Video corpora (section 4.1) are not public; the smart-home corpus replaces them.
A text is drawn first and then annotated. If a text has several readings, one is drawn with odds from the grammar.
Then a share `NOISE` of the utterances gets one annotation error.

The grammar is in `smart_home.json`. Notation of its lines:
    word           itself
    (a|b c|)       one of the alternatives, all equally likely
    <phrase>       a draw from the phrase (or word list) of that name, not annotated
    {slot}         a draw from the phrase of that name, annotated with the slot
    {slot=phrase}  a draw from `phrase`, annotated with `slot`
    {reading}      a draw of a text with several readings, one of which is annotated: "readings" lists its
                   phrases and the odds of their labels; adjacent phrases with equal labels form one value
    @macro         one of the macro's lines
    3 * ...        a line that is three times as likely as a line without a number

A sentence is drawn from a template of its domain. It begins with <polite> unless the template begins with <hey>, and
ends with <end>. A rule with several intents states their odds. From lists named under "squared", entries are drawn by
squaring a uniform number, which makes the first entries frequent and most others rare. People have a common first name
and an invented last name. Telephone numbers are either 555-01xx, which is reserved for fiction, or four-digit
extensions. All streets, shops, titles and medicines are invented, except for a few generic medicines. The file is
frozen: any change to the draws needs a new "version".

Everyday requests come from `everyday.txt`, which explains its notation. They are public text for pretraining models
from which private training starts (`edp_lab.models.public_start`). They contain slots and cover about six hundred
intents that people may have for an assistant or a service desk. They are neither protected nor used for evaluation.

Raises UsageError for an unknown domain, fewer than one utterance, or a file that cannot be read or written.
"""

from __future__ import annotations

import gzip
import json
import re
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate, chain, product
from pathlib import Path
from random import Random
from typing import NamedTuple

from edp_lab.corpora.corpus import Corpus, Utterance, labels_of
from edp_lab.corpora.formats import read_json
from edp_lab.corpora.metrics import spans
from edp_lab.errors import UsageError
from edp_lab.files import comes_with, write_whole

_FOLDER = Path(__file__).parent
_DATA = json.loads((_FOLDER / "smart_home.json").read_text(encoding="utf-8"))
GRAMMAR_VERSION: int = _DATA["version"]
INTENTS: dict[str, tuple[str, ...]] = {domain: tuple(of["intents"]) for domain, of in _DATA["labels"].items()}
SLOTS: dict[str, tuple[str, ...]] = {domain: tuple(of["slots"]) for domain, of in _DATA["labels"].items()}
HESITATION = 0.015  # probability of a filler word before a slot
DOMAINS = tuple(INTENTS)
NOISE = 0.03  # share of utterances with one annotation error
MISSPELT = 0.04  # share of utterances that get a misspelt word, if they contain a long enough word
LENGTHS = range(3, 16)  # number of tokens in an utterance; longer or shorter utterances are drawn again
EMBEDDED_UTTERANCES, EMBEDDED_SEED = 4500, 0
EMBEDDED = comes_with("data") / "smart_home" / "utterances.jsonl.gz"

Uniform = Callable[[], float]  # draws from [0, 1)
Tags = tuple[str, ...]


def generate(utterances: int, seed: int, domain: str | None = None) -> Corpus:
    """Generate a corpus. The same arguments and `GRAMMAR_VERSION` yield the same corpus on every platform.

    Args:
        utterances: number of utterances, at least 1.
        seed: any integer; different seeds give independent draws from the same grammar.
        domain: "communication", "health" or "video"; None mixes the three in equal parts.

    Returns:
        A corpus with declared labels. `generate(n, seed, domain)` is the first n utterances of
        `generate(m, seed, domain)` for every m > n. A single domain is not a subset of the mix with the same seed.
    """
    return _corpus((utterance for utterance, _ in _samples(utterances, seed, domain)), domain)


def load(domain: str | None = None) -> Corpus:
    """Load the embedded corpus, `generate(EMBEDDED_UTTERANCES, EMBEDDED_SEED)`, or its utterances of one domain."""
    corpus = _corpus((), domain)
    try:
        utterances = read_json(EMBEDDED).utterances
        if len(utterances) != EMBEDDED_UTTERANCES:
            raise UsageError(f"{EMBEDDED} contains {len(utterances)} utterances instead of {EMBEDDED_UTTERANCES}")
    except UsageError as error:
        raise UsageError(
            f"the embedded smart-home corpus is damaged: {error}; restore it from the repository"
        ) from None
    return replace(corpus, utterances=tuple(u for u in utterances if u.intent in corpus.intents))


def write_jsonl(corpus: Corpus, path: Path | str) -> None:
    """Write one object {"tokens", "tags", "intent"} per line, compressed if the name ends in ".gz".

    The file is written atomically.
    """
    path = Path(path)
    rows = ({name: getattr(u, name) for name in ("tokens", "tags", "intent")} for u in corpus.utterances)
    content = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows).encode()
    write_whole(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def _corpus(utterances: Iterable[Utterance], domain: str | None) -> Corpus:
    """Build a corpus with declared labels; UsageError for an unknown domain."""
    domains = _domains(domain)
    return Corpus(
        name=f"smart-home-{domain}" if domain else "smart-home",
        utterances=tuple(utterances),
        intents=tuple(sorted(intent for name in domains for intent in INTENTS[name])),
        slots=tuple(sorted({slot for name in domains for slot in SLOTS[name]})),
    )


def _domains(domain: str | None) -> tuple[str, ...]:
    if domain is not None and domain not in DOMAINS:
        raise UsageError(f"unknown smart-home domain {domain!r}: use one of {', '.join(DOMAINS)}")
    return (domain,) if domain else DOMAINS


# ---- Samples ---------------------------------------------------------------------------------------------------------


_Reading = tuple[Tags, str]  # tags and intent


def _samples(utterances: int, seed: int, domain: str | None) -> Iterator[tuple[Utterance, _Reading]]:
    """Yield each utterance as annotated, and its true annotation before noise."""
    domains = _domains(domain)
    _check_count(utterances)
    # In all versions of Python, a seed yields the same sequence of `Random.random`.
    uniform = Random(f"smart-home {GRAMMAR_VERSION} {seed} {domain}").random
    shared: dict[Tags, Tags] = {}  # equal tag sequences are one object, which halves the memory
    while utterances:
        drawn = domains[int(uniform() * len(domains))]
        words, meant = _draw_sentence(drawn, uniform)
        if len(words) in LENGTHS:
            if uniform() < MISSPELT:
                _misspell(words, uniform)
            tags, intent = _mistake(*meant, drawn, uniform) if uniform() < NOISE else meant
            yield Utterance(tuple(words), shared.setdefault(tags, tags), intent), meant
            utterances -= 1


def _check_count(utterances: int) -> None:
    if utterances < 1:
        raise UsageError(f"cannot generate {utterances} utterances: ask for at least 1")


def _misspell(tokens: list[str], uniform: Uniform) -> None:
    """Drop, double or swap letters inside one word of four letters or more."""
    long = [i for i, token in enumerate(tokens) if len(token) >= 4 and token.isalpha()]
    if long:
        i = long[int(uniform() * len(long))]
        word = tokens[i]
        at = 1 + int(uniform() * (len(word) - 2))
        slips = ("", word[at] * 2, word[at + 1] + word[at])
        kind = int(uniform() * 3)
        tokens[i] = word[:at] + slips[kind] + word[at + 1 + (kind == 2) :]


def _mistake(tags: Tags, intent: str, domain: str, uniform: Uniform) -> _Reading:
    """Make one annotation error: a wrong intent, or a slot dropped, mislabelled, or one token too short or long."""
    slots = spans(tags)
    kind = int(uniform() * 4)
    if kind == 0 or not slots:
        others = [name for name in INTENTS[domain] if name != intent]
        return tags, others[int(uniform() * len(others))]
    start, end, slot = slots[int(uniform() * len(slots))]
    wrong = list(tags)
    if kind == 1:
        others = [name for name in SLOTS[domain] if name != slot]
        other = others[int(uniform() * len(others))]
        wrong[start:end] = [f"B-{other}"] + [f"I-{other}"] * (end - start - 1)
    elif kind == 2 and end - start > 1:
        wrong[end - 1] = "O"
    elif kind == 2 and end < len(tags) and tags[end] == "O":
        wrong[end] = f"I-{slot}"
    else:
        wrong[start:end] = ["O"] * (end - start)
    return tuple(wrong), intent


# ---- The grammar, compiled -------------------------------------------------------------------------------------------


class _Phrase(NamedTuple):
    """Alternative lines, each with equally likely variants."""

    lines: Sequence[str]
    squared: bool = False

    def draw(self, uniform: Uniform) -> list[str]:
        """Draw a variant, and return its items: words, phrases and slots."""
        u = uniform()
        variants = _variants(self.lines[int((u * u if self.squared else u) * len(self.lines))])
        return variants[0 if len(variants) == 1 else int(uniform() * len(variants))].split()


class _Odds:
    def __init__(self, odds: dict[str, float]) -> None:
        self.values = sorted(odds, key=lambda value: -odds[value])
        self.cumulative = list(accumulate(odds[value] for value in self.values))

    def draw(self, uniform: Uniform) -> str:
        if len(self.values) == 1:
            return self.values[0]
        return self.values[bisect(self.cumulative, uniform() * self.cumulative[-1])]


class _Slot(NamedTuple):
    """Phrases of a slot or reading, with the odds of their labels: one label per phrase, "O" for no slot."""

    phrases: Sequence[str]
    odds: _Odds
    hesitation: float


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


def _draw_sentence(domain: str, uniform: Uniform) -> tuple[list[str], _Reading]:
    """Draw a text and one of its readings. `uniform` is the only source of randomness."""
    cumulative, rules = _rules(domain)
    intents, templates = rules[bisect(cumulative, uniform() * cumulative[-1])]
    tokens: list[str] = []
    tags: list[str] = []
    for item in templates.draw(uniform):
        slot = _slot(item)
        if slot is None or uniform() < slot.hesitation:
            tokens += [item] if slot is None else _drawn("filler", uniform)
            tags.append("O")
        if slot is not None:
            phrases = [_drawn(name, uniform) for name in slot.phrases]
            lengths = tuple(map(len, phrases))
            tokens += chain(*phrases)
            tags += _bio(slot.odds.draw(uniform), lengths)
    return tokens, (tuple(tags), intents.draw(uniform))


def _drawn(name: str, uniform: Uniform) -> list[str]:
    """Words drawn from the phrase or word list with this name."""
    items = _phrase(name).draw(uniform)
    return [word for item in items for word in (_drawn(item[1:-1], uniform) if item[0] == "<" else (item,))]


# ---- From the file to the compiled grammar ---------------------------------------------------------------------------

_INNERMOST_ALTERNATIVES = re.compile(r"\(([^()]*)\)")
_WEIGHT = re.compile(r"(?:(\d+) \*)?(.*)")


@cache
def _rules(domain: str) -> tuple[list[float], list[tuple[_Odds, _Phrase]]]:
    """Cumulative weights of a domain's rules; for each rule, the odds of its intents, and its templates."""
    rules = []
    for rule in _DATA["rules"][domain]:
        lines = _weighted(rule["templates"])
        framed = [f"{'' if text.startswith('<hey>') else '<polite> '}{text} <end>" for text in lines]
        rules.append((_Odds(rule["intents"]), _Phrase(framed)))
    return list(accumulate(rule["weight"] for rule in _DATA["rules"][domain])), rules


@cache
def _phrase(name: str) -> _Phrase:
    lines = _titles()[name] if name in _DATA["titles"] else _words().get(name) or _DATA["phrases"][name]
    return _Phrase(_weighted(lines), name in _DATA["squared"])


@cache
def _slot(item: str) -> _Slot | None:
    """The slot or phrase for an item of a template; None for a word."""
    name = item[1:-1]
    if item.startswith("<"):
        phrases, odds = [name], {"O": 1.0}
    elif not item.startswith("{"):
        return None
    elif name in _DATA["readings"]:
        phrases, odds = _DATA["readings"][name]["phrases"], _DATA["readings"][name]["odds"]
    else:
        slot, _, phrase = name.partition("=")
        phrases, odds = [phrase or slot], {slot: 1.0}
    return _Slot(phrases, _Odds(odds), 0.0 if "O" in odds else HESITATION)


def _weighted(lines: Iterable[str]) -> list[str]:
    """Repeat each line according to its weight."""
    matches = [match for line in lines if (match := _WEIGHT.fullmatch(line))]
    return [text for match in matches for text in [match[2].strip()] * int(match[1] or 1)]


@cache
def _variants(line: str) -> list[str]:
    """Every expansion of a line's alternatives, innermost first, so that nested alternatives keep their odds."""
    return _ways(re.sub(r"@(\w+)", lambda name: f"({'|'.join(_weighted(_DATA['macros'][name[1]]))})", line))


def _ways(text: str) -> list[str]:
    match = _INNERMOST_ALTERNATIVES.search(text)
    if match is None:
        return [text]
    before, after = text[: match.start()], text[match.end() :]
    return [way for choice in match[1].split("|") for way in _ways(f"{before}{choice}{after}")]


@cache
def _words() -> dict[str, list[str]]:
    """Word lists, which are listed, counted or joined. Invented names are divided between shops and people."""
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
    # the most common nouns in movie titles are the rarest in show titles, which hints at the kind of title
    words["movie_noun"], words["show_noun"] = words["noun"], words["noun"][::-1]
    return words


@cache
def _titles() -> dict[str, list[str]]:
    """Distinct titles of each kind. The kind of a title must be learnt by heart; its words are only a hint."""
    uniform = Random(f"smart-home titles {GRAMMAR_VERSION}").random
    taken: dict[str, str] = {}
    for kind, (phrase, count) in _DATA["titles"].items():
        target = len(taken) + count
        while len(taken) < target:
            taken.setdefault(" ".join(_drawn(phrase, uniform)), kind)
    return {kind: [title for title, of in taken.items() if of == kind] for kind in _DATA["titles"]}


# ---- Everyday requests -----------------------------------------------------------------------------------------------

_INTENT = re.compile(r"\[(\w+)(?: (\d+))?\]")
_LIST = re.compile(r"(\w+): (.*)")


def everyday(utterances: int, seed: int = 0) -> Corpus:
    """Generate everyday requests. The same arguments yield the same requests on every platform."""
    _check_count(utterances)
    lists, rules = _everyday_grammar()
    random = Random(f"everyday {seed}")
    weights = [weight for _, weight, _ in rules]
    made = []
    for intent, _, templates in random.choices(rules, weights, k=utterances):
        tokens: list[str] = []
        tags: list[str] = []
        for item in _chosen(random.choice(templates), random).split():
            slot, _, name = item[1:-1].partition("=")
            if item.startswith("{"):
                words = _expanded(f"<{name or slot}>", lists, random)
                tags += [f"B-{slot}"] + [f"I-{slot}"] * (len(words) - 1)
            else:
                words = _expanded(item, lists, random)
                tags += ["O"] * len(words)
            tokens += words
        made.append(Utterance(tuple(tokens), tuple(tags), intent))
    return Corpus("everyday", tuple(made), *labels_of(made))


def related(orders: int, seed: int = 0) -> list[list[str]]:
    """Lines of words with related meanings (``related.txt``), each in `orders` random orders, to train vectors."""
    random = Random(f"related {seed}")
    text = (_FOLDER / "related.txt").read_text(encoding="utf-8")
    lines = [line.split() for line in text.split("\n") if line[:1] not in ("", "#")]
    return [random.sample(line, len(line)) for _ in range(orders) for line in lines]


def _expanded(item: str, lists: dict[str, list[str]], random: Random) -> list[str]:
    """Words of an item of a template: the item itself, or a draw from a list."""
    if not item.startswith("<"):
        return [item]
    name, _, ending = item[1:].partition(">")
    words = [w for part in _chosen(random.choice(lists[name]), random).split() for w in _expanded(part, lists, random)]
    return [*words[:-1], words[-1] + ending]


def _chosen(text: str, random: Random) -> str:
    """The text with one alternative chosen from each group."""
    while match := _INNERMOST_ALTERNATIVES.search(text):
        text = text[: match.start()] + random.choice(match[1].split("|")) + text[match.end() :]
    return text


@cache
def _everyday_grammar() -> tuple[dict[str, list[str]], list[tuple[str, int, list[str]]]]:
    """Return the word lists by name, and the name, weight and templates of each intent."""
    lists: dict[str, list[str]] = {}
    rules: list[tuple[str, int, list[str]]] = []
    text = (_FOLDER / "everyday.txt").read_text(encoding="utf-8")
    for line in re.sub(r"\n  +", " ", text).split("\n"):
        if not line or line.startswith("#"):
            continue
        if match := _INTENT.fullmatch(line):
            rules.append((match[1], int(match[2] or 1), []))
        elif match := _LIST.fullmatch(line):
            lists[match[1]] = match[2].split(", ")
        else:
            rules[-1][2].append(line)
    return lists, rules
