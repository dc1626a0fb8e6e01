"""Notebook 05: what its panels draw and say is what corpora, networks, the CRF and the scores give."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from edp_lab.corpora import Utterance, load_corpus, split
from edp_lab.corpora.encoding import Labels
from edp_lab.corpora.metrics import edit_distance, evaluate
from edp_lab.course.kit.exercises import WrongAnswerError, exercises, mark
from edp_lab.course.nb05_models import compute, panels
from edp_lab.course.nb05_models.compute import (
    EMISSIONS,
    TAGS,
    TRUE_TAGS,
    WORDS,
    Architecture,
    CrfView,
    available,
    browse,
    crf_view,
    look_at,
    score_errors,
    toy_crf,
)
from edp_lab.course.publish.build import student
from edp_lab.errors import UsageError
from edp_lab.models import Prediction, build_model
from edp_lab.models.intent_slot import to_padded
from tests.course.conftest import source

BEFORE, AFTER = "B-date", "I-name"


def start_view() -> CrfView:
    return crf_view(BEFORE, AFTER, -4.0, "april", "B-date", 0.0)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small corpus of two patterns; each name is called twice, each song played once."""
    call, play = (["O", "B-name"], ["O", "B-song", "O"])
    lines = [{"tokens": ["call", f"name{k // 2}"], "tags": call, "intent": "call"} for k in range(80)]
    lines += [{"tokens": ["play", f"song{k}", "now"], "tags": play, "intent": "play"} for k in range(40)]
    path = tmp_path_factory.mktemp("corpus") / "home.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


# ---- Corpora -------------------------------------------------------------------------------------------------------


def test_a_look_counts_what_is_there(home: str) -> None:
    look, corpus = look_at(home, seed=3), load_corpus(home)
    texts = [u.text for u in corpus.utterances]
    assert sum(look.parts.values()) == len(texts) == len(look.lengths) == 120
    assert look.repeated == sum(texts.count(text) > 1 for text in texts) == 80
    assert look.leaked == len(split(corpus, 3, keep_duplicates_together=False).duplicates) > 0
    assert dict(look.intents) == {"call": 80, "play": 40}
    assert dict(look.slots) == {"name": 80, "song": 40}
    assert look.delta == look.parts["train"] ** -1.1 < 1 / look.train


def test_patterns_strike_out_slots_and_find_the_same_sentence_with_another_value(home: str) -> None:
    anna = Utterance(("call", "anna", "smith", "at", "home"), ("O", "B-name", "I-name", "O", "B-place"), "call")
    assert compute.pattern(anna) == ("call", "<name>", "at", "<place>")
    assert compute.pattern(Utterance(("hello",), None, "greet")) == ("hello",)
    assert look_at(home, 3).patterns == 1.0  # every song is new, "play <song> now" is not


def test_majority_is_the_training_sets_and_misses_every_slot() -> None:
    train = [Utterance(("a",), ("B-x",), "often")] * 3 + [Utterance(("b",), ("O",), "rare")]
    test = [Utterance(("c", "d"), ("B-x", "B-x"), "rare"), Utterance(("e",), ("O",), "often")]
    scores = compute.majority_scores(train, test)
    assert scores.ser == pytest.approx((1 + 2) / (2 + 2))
    assert (scores.intent_accuracy, scores.slot_f1) == (0.5, 0.0)


def test_a_corpus_without_tags_can_be_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "plain.jsonl"
    rows = [{"tokens": [f"word{k}"], "intent": "ab"[k % 2]} for k in range(40)]
    path.write_text("\n".join(map(json.dumps, rows)))
    result = browse(str(path), 1, "slots", 0)
    assert (result.counts, result.own, result.look.majority.slot_f1) == ((), (), None)
    assert panels.draw_labels(result)["data"][0]["x"] == panels.draw_ranks(result)["data"][0]["x"] == []
    assert "no tags" in panels.words.browse(result)


def test_missing_corpora_come_with_the_command_that_fetches_them(monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    monkeypatch.setattr("edp_lab.corpora.catalog.data_folders", list)
    there = available(home)
    assert there == {"smart-home": True, "atis": False, "snips": False, "nlu-eval": False, home: True}
    assert "edp-lab data fetch atis" in panels.missing_corpora(there)


def test_published_corpora_are_in_the_table_where_they_are_there(real_data: Path) -> None:
    there = [name for name, found in available("smart-home").items() if found]
    table = panels.corpora_table([look_at(name, 0) for name in there])
    assert "atis" in there
    assert look_at("atis", 0).leaked == 182
    assert re.search(r"5,871.*5,?0?|atis_flight, 73%", table)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"corpus": "atsi"}, "unknown corpus 'atsi'"),
        ({"utterance": 4500}, "utterance 4500 is not in smart-home: it has 4,500, counted from 0"),
        ({"utterance": -1}, "utterance -1"),
        ({"labels": "tags"}, "unknown labels 'tags': choose intents or slots"),
    ],
)
def test_browsing_refuses_in_one_sentence(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        browse(**{"corpus": "smart-home", "utterance": 0, "labels": "intents", "seed": 0, **change})


# ---- Networks ------------------------------------------------------------------------------------------------------


def count(network: Architecture, *names: str) -> int:
    return sum(layer.parameters for layer in (*network.encoder, *network.heads) if layer.name in names)


def test_every_parameter_of_the_clc_is_in_one_layer_of_its_picture() -> None:
    corpus = load_corpus("smart-home")
    model = build_model("clc", Labels.of(corpus), seed=0, private=True)
    drawn = compute.architecture("clc", corpus)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert drawn.parameters == sum(sizes.values())
    assert count(drawn, "CRF") == 55 * 55 + 2 * 55
    assert count(drawn, "bi-LSTM 2") == sum(size for name, size in sizes.items() if name.startswith("lstm.1"))


def test_bert_has_the_paper_s_size_and_most_of_it_is_word_pieces() -> None:
    drawn = compute.architecture("bert", load_corpus("smart-home"))
    assert drawn.parameters == pytest.approx(14.28e6, rel=1e-3)
    assert count(drawn, "word pieces") == 30_522 * 312
    assert [layer.name for layer in drawn.encoder][-4:] == [f"layer {k}" for k in range(1, 5)]
    with pytest.raises(UsageError, match="unknown model 'gpt': choose clc or bert"):
        compute.architecture("gpt", load_corpus("smart-home"))


def test_a_drawing_names_every_layer_and_loads_nothing_from_elsewhere() -> None:
    network = compute.architecture("clc", load_corpus("smart-home"))
    drawing = panels.network_drawing(network)
    for layer in (*network.encoder, *network.heads):
        assert layer.name in drawing
        assert f"{layer.parameters:,}" in drawing
    assert "http" not in drawing
    assert "<style" not in drawing


# ---- The CRF -------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(TAGS), st.sampled_from(TAGS), st.floats(-6, 6), st.sampled_from(WORDS), st.sampled_from(TAGS),
    st.floats(-6, 6),
)  # fmt: skip
def test_path_marginals_and_sum_are_those_of_listing_all_paths(
    before: str, after: str, transition: float, word: str, tag: str, emission: float
) -> None:
    view = crf_view(before, after, transition, word, tag, emission)
    start, between, emissions = view.start, view.transitions, view.emissions
    assert between[TAGS.index(before), TAGS.index(after)] == pytest.approx(transition, abs=1e-6)
    changed = emissions[WORDS.index(word), TAGS.index(tag)]
    assert changed == pytest.approx(EMISSIONS[WORDS.index(word)][TAGS.index(tag)] + emission)
    paths = np.array(list(product(range(len(TAGS)), repeat=len(WORDS))))
    scores = start[paths[:, 0]] + emissions[np.arange(len(WORDS)), paths].sum(1)
    scores += between[paths[:, :-1], paths[:, 1:]].sum(1)
    weights = np.exp(scores - scores.max())
    p = weights / weights.sum()
    assert view.log_partition == pytest.approx(scores.max() + np.log(weights.sum()))
    assert view.best[0][1] == pytest.approx(p.max())
    best = [TAGS[k] for k in paths[p.argmax()]]
    assert list(view.path) == best or p.max() == pytest.approx(view.best[1][1])
    for k in range(len(TAGS)):
        assert view.marginals[:, k] == pytest.approx([p[paths[:, t] == k].sum() for t in range(len(WORDS))])
    true = [TAGS.index(name) for name in TRUE_TAGS]
    assert view.loss == pytest.approx(-np.log(p[(paths == true).all(1)][0]))


def test_neighbours_make_april_a_name_until_the_forbidden_transition_pays() -> None:
    view = start_view()
    assert view.path == TRUE_TAGS
    assert view.alone == ("O", "B-date", "I-name", "O", "B-date")
    assert "Neighbours change april." in panels.crf_in_words(view)
    assert "forbids" not in panels.crf_in_words(view)
    bent = crf_view(BEFORE, AFTER, 0.4, "april", "B-date", 0.0)
    assert bent.path == bent.alone
    assert "BIO forbids B-date I-name." in panels.crf_in_words(bent)
    pushed = crf_view(BEFORE, AFTER, -4.0, "april", "B-date", 2.0)
    assert pushed.path == ("O", "B-date", "B-name", "O", "B-date")


def test_the_panel_s_crf_is_the_library_s_and_stays_as_it_was() -> None:
    first = start_view()
    crf_view("O", "O", 5.0, "call", "O", 5.0)
    assert (start_view().transitions == first.transitions).all()
    assert (first.transitions == toy_crf().transitions.detach().double().numpy()).all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"before": "B-x"}, "unknown tag 'B-x': choose O, B-name"),
        ({"word": "may"}, "unknown word 'may'"),
        ({"transition": 1000.0}, "a score of 1000.0: take one from -100 to 100"),
        ({"emission": float("nan")}, "a score of nan"),
    ],
)
def test_the_crf_refuses_in_one_sentence(change: dict[str, Any], says: str) -> None:
    good = {"before": "O", "after": "O", "transition": 0.0, "word": "call", "tag": "O", "emission": 0.0}
    with pytest.raises(UsageError, match=says):
        crf_view(**{**good, **change})


# ---- Padding -------------------------------------------------------------------------------------------------------


def test_only_careless_pooling_lets_a_neighbour_change_a_loss() -> None:
    corpus = load_corpus("smart-home")
    model = build_model(
        "clc", Labels.of(corpus), seed=0, private=True, size={"hidden": 16, "layers": 1, "word": 8, "filters": 8}
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 2  # an untrained network hardly tells words apart
    leak = compute.padding_leak(model, corpus.utterances[:200])
    assert leak.neighbours[0] == len(leak.utterance.tokens) == min(leak.neighbours)
    spread = {name: max(losses) - min(losses) for name, losses in leak.losses.items()}
    assert spread.pop("the library's") < 1e-5
    assert min(spread.values()) > 1e-3
    alone = {round(losses[0], 5) for name, losses in leak.losses.items() if "mean" not in name}
    assert len(alone) == 1  # without a neighbour there is no padding to read
    with pytest.raises(UsageError, match="all utterances are of one length"):
        compute.padding_leak(model, corpus.utterances[:1])


# ---- SER -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("errors", "wrong"),
    [
        (("right", "right", "right", "none"), 0),
        (("wrong", "right", "right", "none"), 1),
        (("right", "cut short", "right", "none"), 1),
        (("right", "wrong label", "right", "none"), 1),
        (("right", "split in two", "right", "none"), 2),
        (("right", "missed", "missed", "none"), 2),
        (("wrong", "split in two", "wrong label", "one slot invented"), 5),
    ],
)
def test_errors_are_counted_as_by_hand(errors: tuple[str, str, str, str], wrong: int) -> None:
    result = score_errors(*errors, others=0)
    assert (result.errors, result.items) == (wrong, 4)
    assert result.scores.ser == wrong / 4
    more = score_errors(*errors, others=4)
    assert more.scores.ser == wrong / 20
    assert (more.slot_errors, more.intent_wrong) == (result.slot_errors, result.intent_wrong)


def test_scores_beside_ser_are_the_library_s() -> None:
    result = score_errors("right", "split in two", "right", "none", others=1)
    truth = compute.REFERENCE
    right = (truth.intent, truth.tokens, truth.tags)
    assert result.scores == evaluate([right, right], [(result.intent, truth.tokens, result.predicted), right])
    assert result.scores.slot_f1 == pytest.approx(2 * 5 / (6 + 7))
    assert score_errors("wrong", "split in two", "missed", "one slot invented", 0).scores.ser > 1


@pytest.mark.parametrize(
    ("change", "says"),
    [({"name": "lost"}, "unknown name 'lost': choose right, wrong label"), ({"others": -1}, "-1 further utterances")],
)
def test_scoring_refuses_in_one_sentence(change: dict[str, Any], says: str) -> None:
    good: dict[str, Any] = {"intent": "right", "name": "right", "time": "right", "extra": "none", "others": 0}
    with pytest.raises(UsageError, match=says):
        score_errors(**{**good, **change})


# ---- Panels --------------------------------------------------------------------------------------------------------


def test_predictions_show_what_is_wrong_and_escape_what_was_said() -> None:
    truth = Utterance(("play", "<b>"), ("O", "B-song"), "play")
    said = Prediction("stop", 0.5, ("O", "O"), ())
    text = panels.predicted([truth], [said])
    assert "O (B-song)" in text
    assert "(in truth play)" in text
    assert "&lt;b&gt;" in text


# ---- The notebook --------------------------------------------------------------------------------------------------


def test_notebook_follows_its_parameters_and_fails_on_a_hidden_error(home: str, run_notebook: Any) -> None:
    space = run_notebook("05", corpus=home, seed=2)
    panel = space["corpus_panel"]
    assert panel.values == {"corpus": home, "utterance": 0, "labels": "intents", "seed": 2}
    assert panel.result.look is look_at(home, 2)
    assert space["config"].corpus == home
    assert [given.status for given in space["check"].verdicts.values()] == ["solved"] * 3


def test_an_untouched_exercise_stops_a_strict_notebook_only() -> None:
    untouched = [cell for cell in student(source("05")).cells if cell.cell_type == "code"]
    place = next(k for k, cell in enumerate(untouched) if 'check("majority"' in cell.source)
    for strict in (False, True):
        space: dict[str, Any] = {}
        for cell in untouched[:place]:
            exec(cell.source.replace("STRICT = False", f"STRICT = {strict}"), space)
        if strict:
            with pytest.raises(WrongAnswerError, match=r"05\.majority"):
                exec(untouched[place].source, space)
        else:
            exec(untouched[place].source, space)


# ---- Exercises -----------------------------------------------------------------------------------------------------


Meanings = Sequence[tuple[str, list[tuple[str, str]]]]


def average(references: Meanings, predictions: Meanings) -> float:
    rates = [
        ((intent != said) + edit_distance(slots, found)) / (1 + len(slots))
        for (intent, slots), (said, found) in zip(references, predictions, strict=True)
    ]
    return sum(rates) / len(rates)


def counted(items: Callable[[Any, Any], int], intents: int = 1) -> Callable[[Meanings, Meanings], float]:
    """SER with another denominator, or without the intents in the numerator."""

    def ser(references: Meanings, predictions: Meanings) -> float:
        pairs = list(zip(references, predictions, strict=True))
        errors = sum(intents * (a != b) + edit_distance(slots, found) for (a, slots), (b, found) in pairs)
        return errors / max(1, sum(items(slots, found) for (_, slots), (_, found) in pairs))

    return ser


def by_place(references: Meanings, predictions: Meanings) -> float:
    errors = items = 0
    for (intent, slots), (said, found) in zip(references, predictions, strict=True):
        errors += (intent != said) + sum(a != b for a, b in zip(slots, found, strict=False))
        items += 1 + len(slots)
    return errors / items


def at_most_one(references: Meanings, predictions: Meanings) -> float:
    return min(1.0, counted(lambda slots, found: 1 + len(slots))(references, predictions))


def as_bags(references: Meanings, predictions: Meanings) -> float:
    errors = items = 0
    for (intent, slots), (said, found) in zip(references, predictions, strict=True):
        a, b = Counter(slots), Counter(found)
        errors += (intent != said) + max((a - b).total(), (b - a).total())
        items += 1 + len(slots)
    return errors / items


def multiplied(tokens: Tensor, lengths: Tensor) -> Tensor:
    padded, mask = to_padded(tokens, lengths)
    return (padded * mask[..., None]).amax(1)


def masked(value: float) -> Callable[[Tensor, Tensor], Tensor]:
    def pool(tokens: Tensor, lengths: Tensor) -> Tensor:
        padded, mask = to_padded(tokens, lengths)
        return padded.masked_fill(~mask[..., None], value).amax(1)

    return pool


def upside_down(tokens: Tensor, lengths: Tensor) -> Tensor:
    padded, mask = to_padded(tokens, lengths)
    return padded.masked_fill(mask[..., None], -torch.inf).amax(1)


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
        "averages the rates of utterances": average,
        "forgets the intents in the denominator": counted(lambda slots, found: len(slots)),
        "divides by the slots that were found": counted(lambda slots, found: 1 + len(found)),
        "does not count wrong intents": counted(lambda slots, found: 1 + len(slots), intents=0),
        "compares slots place by place": by_place,
        "takes a rate to end at 1": at_most_one,
        "ignores the order of slots": as_bags,
    },
    "pool": {
        "a small number instead of the smallest": masked(-1.0),
        "a large number": masked(10.0),
        "multiplies by the mask": multiplied,
        "fills the padding with what it has": masked(0.0),
        "masks the words instead of the padding": upside_down,
        "the mean instead of the maximum": mean,
        "the maximum over features (crash)": words_first,
    },
}


def test_a_maximum_that_still_reads_padding_is_open_and_says_so(stub: Callable[[str, str], Any]) -> None:
    verdict = mark(exercises("05")["pool"], stub("05", "pool"), 0)
    assert verdict.message == "still to do (the maximum still reads the zeros of the padding)"


def test_a_mask_that_makes_padding_zero_is_wrong_and_told_why() -> None:
    message = mark(exercises("05")["pool"], multiplied, 0).message
    assert "multiplying by the mask makes padding 0" in message


def test_limits_of_an_error_rate_are_found_whatever_the_seed() -> None:
    for seed in range(60):
        for wrong in (at_most_one, as_bags):
            assert mark(exercises("05")["ser"], wrong, seed).status == "wrong", seed


def test_a_wrong_error_rate_is_told_with_the_case() -> None:
    message = mark(exercises("05")["ser"], average, 1).message
    assert "SER of" in message
    assert "it should be" in message
