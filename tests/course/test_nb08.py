"""Notebook 08: its figures and texts agree with corpora, networks, the CRF and the scores."""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from edp_lab.corpora.catalog import load_corpus
from edp_lab.corpora.corpus import Utterance, split
from edp_lab.corpora.encoding import Labels
from edp_lab.corpora.metrics import edit_distance
from edp_lab.course.nb08_models import panels
from edp_lab.course.nb08_models.panels import crf_view, look_at
from edp_lab.errors import UsageError
from edp_lab.models.factory import build_model
from edp_lab.models.intent_slot import Prediction, to_padded
from tests.course.examples import Wrong


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small corpus with two patterns, in which each name is called twice and each song is played once."""
    call, play = (["O", "B-name"], ["O", "B-song", "O"])
    lines = [{"tokens": ["call", f"name{k // 2}"], "tags": call, "intent": "call"} for k in range(80)]
    lines += [{"tokens": ["play", f"song{k}", "now"], "tags": play, "intent": "play"} for k in range(40)]
    path = tmp_path_factory.mktemp("corpus") / "home.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


def test_a_look_counts_what_is_there_and_the_majority_misses_every_slot(home: str) -> None:
    look, corpus = look_at(home, seed=3), load_corpus(home)
    texts = [u.text for u in corpus.utterances]
    assert sum(look.parts.values()) == len(texts) == len(look.lengths) == 120
    assert look.repeated == sum(texts.count(text) > 1 for text in texts) == 80
    assert look.leaked == len(split(corpus, 3, keep_duplicates_together=False).duplicates) > 0
    assert (look.intents, look.slots) == ({"call": 80, "play": 40}, {"name": 80, "song": 40})
    assert look.delta == look.parts["train"] ** -1.1 < 1 / look.parts["train"]
    anna = Utterance(("call", "anna", "smith", "at", "home"), ("O", "B-name", "I-name", "O", "B-place"), "call")
    assert panels.pattern(anna) == ("call", "<name>", "at", "<place>")
    assert panels.pattern(Utterance(("hello",), None, "greet")) == ("hello",)
    assert look.patterns == 1.0  # every song is new, but "play <song> now" is not
    train = [Utterance(("a",), ("B-x",), "often")] * 3 + [Utterance(("b",), ("O",), "rare")]
    test = [Utterance(("c", "d"), ("B-x", "B-x"), "rare"), Utterance(("e",), ("O",), "often")]
    scores = panels.majority_scores(train, test)
    assert scores.ser == pytest.approx((1 + 2) / (2 + 2))
    assert (scores.intent_accuracy, scores.slot_f1) == (0.5, 0.0)


def test_a_corpus_without_tags_can_be_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "plain.jsonl"
    rows = [{"tokens": [f"word{k}"], "intent": "ab"[k % 2]} for k in range(40)]
    path.write_text("\n".join(map(json.dumps, rows)))
    look = look_at(str(path), 0)
    assert (look.slots, look.majority.slot_f1) == ({}, None)
    assert re.search(r">a, 50\s%<", panels.corpora_table([look]))


def test_corpora_without_data_are_marked_as_missing(monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    monkeypatch.setattr("edp_lab.corpora.catalog.data_folders", list)
    there = panels.available(home)
    assert there == {"smart-home": True, "atis": False, "snips": False, "nlu-eval": False, home: True}


def test_published_corpora_are_in_the_table_where_they_are_there(real_data: Path) -> None:
    there = [name for name, found in panels.available("smart-home").items() if found]
    table = panels.corpora_table([look_at(name, 0) for name in there])
    assert "atis" in there
    assert look_at("atis", 0).leaked == 182
    assert re.search(r"5,871.*5,?0?|atis_flight, 73%", table)


def test_every_parameter_is_in_one_layer_of_the_picture_and_bert_has_the_papers_size() -> None:
    corpus = load_corpus("smart-home")
    model = build_model("clc", Labels.of(corpus), seed=0, private=True)
    sizes = panels.layers("clc", corpus)
    assert sum(sizes.values()) == sum(parameter.numel() for parameter in model.parameters())
    assert sizes["crf"] == 55 * 55 + 2 * 55
    second = [parameter.numel() for name, parameter in model.named_parameters() if name.startswith("lstm.1")]
    assert sizes["lstm.1"] == sum(second)
    table = panels.network_table("CLC", sizes).replace("\u200b", "")
    assert all(name in table and f"{size:,}" in table for name, size in sizes.items())
    sizes = panels.layers("bert", corpus)
    assert sum(sizes.values()) == pytest.approx(14.28e6, rel=1e-3)
    assert sizes["bert.embeddings.word_embeddings"] == 30_522 * 312


def test_predictions_show_what_is_wrong_and_escape_what_was_said() -> None:
    truth = Utterance(("play", "<b>"), ("O", "B-song"), "play")
    text = panels.predicted([(truth, Prediction("stop", 0.5, ("O", "O"), ()))])
    assert [part in text for part in ("O (B-song)", "(true: play)", "&lt;b&gt;")] == [True] * 3


def test_only_careless_pooling_lets_a_neighbour_change_a_loss() -> None:
    corpus = load_corpus("smart-home")
    size = {"hidden": 16, "layers": 1, "word": 8, "filters": 8}
    model = build_model("clc", Labels.of(corpus), seed=0, private=True, size=size)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 2  # an untrained network barely distinguishes words
    leak = panels.padding_leak(model, corpus.utterances[:200])
    assert leak.neighbours[0] == len(leak.utterance.tokens) == min(leak.neighbours)
    spread = {name: max(losses) - min(losses) for name, losses in leak.losses.items()}
    assert spread.pop("masked maximum") < 1e-5
    assert min(spread.values()) > 1e-3
    alone = {round(losses[0], 5) for name, losses in leak.losses.items() if "mean" not in name}
    assert len(alone) == 1  # without a neighbour, there is no padding to read
    with pytest.raises(UsageError, match="all utterances have the same length"):
        panels.padding_leak(model, corpus.utterances[:1])


def test_what_was_moved_is_not_remembered() -> None:
    start = {"before": "B-date", "after": "I-name", "transition": -4.0, "word": "april", "tag": "B-date"}
    crf_view(**{**start, "transition": 0.4}, emission=2.0)
    view = crf_view(**start, emission=0.0)
    assert (view.path, view.alone) == (
        ("O", "B-name", "I-name", "O", "B-date"),
        ("O", "B-date", "I-name", "O", "B-date"),
    )
    assert (view.transitions == panels.toy_crf().transitions.detach().double().numpy()).all()


Slots = list[tuple[str, str]]
Meanings = Sequence[tuple[str, Slots]]


def rate(
    items: Callable[[Slots, Slots], int] = lambda slots, found: 1 + len(slots),
    errors: Callable[[Slots, Slots], int] = edit_distance,
    intents: int = 1,
    most: float = np.inf,
) -> Callable[[Meanings, Meanings], float]:
    """An answer that computes the SER, or counts something else."""

    def ser(references: Meanings, predictions: Meanings) -> float:
        pairs = list(zip(references, predictions, strict=True))
        wrong = sum(intents * (a != b) + errors(slots, found) for (a, slots), (b, found) in pairs)
        return min(most, wrong / max(1, sum(items(slots, found) for (_, slots), (_, found) in pairs)))

    return ser


def average(references: Meanings, predictions: Meanings) -> float:
    return float(np.mean([rate()([one], [other]) for one, other in zip(references, predictions, strict=True)]))


def as_bags(slots: Slots, found: Slots) -> int:
    a, b = Counter(slots), Counter(found)
    return max((a - b).total(), (b - a).total())


def by_place(slots: Slots, found: Slots) -> int:
    return sum(a != b for a, b in zip(slots, found, strict=False))


def masked(value: float, words: bool = False) -> Callable[[Tensor, Tensor], Tensor]:
    def pool(tokens: Tensor, lengths: Tensor) -> Tensor:
        padded, mask = to_padded(tokens, lengths)
        return padded.masked_fill((mask if words else ~mask)[..., None], value).amax(1)

    return pool


def multiplied(tokens: Tensor, lengths: Tensor) -> Tensor:
    padded, mask = to_padded(tokens, lengths)
    return (padded * mask[..., None]).amax(1)


def mean(tokens: Tensor, lengths: Tensor) -> Tensor:
    return to_padded(tokens, lengths)[0].sum(1) / lengths[:, None]


def words_first(tokens: Tensor, lengths: Tensor) -> Tensor:
    return torch.stack([part.amax(1) for part in tokens.split(lengths.tolist())])


WRONG: dict[str, dict[str, Any]] = {
    "majority": {
        "one in ten intents right, one in ten wrong": "below 0.3",
        "half of what there is are intents": "0.3 to 0.7",
        "a number instead of a range": 0.93,
    },
    "ser": {
        "averages the rates of utterances": Wrong(average, "it should be"),
        "forgets the intents in the denominator": rate(lambda slots, found: len(slots)),
        "divides by the slots that were found": rate(lambda slots, found: 1 + len(found)),
        "does not count wrong intents": Wrong(rate(intents=0), "SER of"),
        "compares slots place by place": rate(errors=by_place),
        "takes a rate to end at 1": rate(most=1.0),
        "ignores the order of slots": rate(errors=as_bags),
    },
    "pool": {
        "a small number instead of the smallest": masked(-1.0),
        "a large number": masked(10.0),
        "multiplies by the mask": Wrong(multiplied, "multiplying by the mask sets padding to 0"),
        "fills the padding with what it has": masked(0.0),
        "masks the words instead of the padding": masked(-torch.inf, words=True),
        "the mean instead of the maximum": mean,
        "the maximum over features (crash)": words_first,
    },
}
