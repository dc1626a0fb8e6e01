"""What label names say: how near they are to each other, and how much of them an utterance says."""

import pytest
import torch

from edp_lab.corpora.encoding import WordFeatures, hashed
from edp_lab.models.label_names import OTHER_WORD, SHARPNESS, Names, SaidWords, label_words

KNOWN = WordFeatures(("the", "book", "flight", "plane", "stop"), buckets=16)


def test_a_name_is_cut_into_words():
    known = {"from", "loc", "city", "name", "play", "music"}
    assert label_words("fromloc.city_name", known) == ["from", "loc", "city", "name"]
    assert label_words("home/PlayMusic", known) == ["play", "music"]
    assert label_words("snips/zzyzx", known) == ["zzyzx"]
    assert label_words("Straßen_Größe2", known) == ["straßen", "größe"]


def test_the_same_name_is_nearest_and_from_is_not_to():
    words = ["from", "to", "city", "name", "rain"]
    vectors = torch.eye(5) + 0.1
    vectors[0] = vectors[1] + 0.3 * torch.randn(5, generator=torch.Generator().manual_seed(0))  # alike in use
    near = Names(words, vectors).nearness(["fromcity", "rain"], ["x/from_city", "x/to_city", "x/weather.rain"])
    assert near.sum(1).tolist() == pytest.approx([1, 1])
    assert near.argmax(1).tolist() == [0, 2]


def said(text: str, labels: tuple[str, ...], vectors: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Which words there are, and how much of each name: of one utterance, which stands between two others."""
    model = SaidWords(KNOWN, labels)
    sentences = [["the"], text.split(), ["stop"]]
    numbers = torch.from_numpy(KNOWN.rows(sentences)["words"].values)
    table = torch.eye(len(KNOWN.words) + KNOWN.buckets) if vectors is None else vectors
    read = model(numbers, torch.tensor([len(words) for words in sentences]), table)[1]
    assert model.size == len(read)
    return read[: KNOWN.buckets], read[KNOWN.buckets :]


def test_which_words_there_are_counts_not_how_often_or_in_which_order():
    first, again = said("book the Flight", ())[0], said("flight flight the book book", ())[0]
    assert torch.equal(first, again)
    assert first.count_nonzero() == 3
    assert first.norm() == pytest.approx(SaidWords.LENGTH)
    assert not torch.equal(first, said("book the plane", ())[0])
    assert not torch.equal(said("zyx", ())[0], said("yxz", ())[0])  # words without a vector are told apart, too


def test_common_words_count_less_and_the_rarest_of_those_that_share_a_place_counts():
    alone, both = said("book", ())[0], said("the flight", ())[0]
    assert alone.max() == pytest.approx(SaidWords.LENGTH)
    the, flight = both[both > 0].sort().values.tolist()
    assert the / flight == pytest.approx((1 / 11) / (3 / 13))
    words = next(f"x{k}" for k in range(99) if hashed(f"x{k}", 16) == hashed("the", 16)), "flight"
    shared = (said(" ".join(order), ())[0] for order in (("the", *words), (*words, "the")))
    for read in shared:
        the, flight = (read[hashed(word, 16)].item() for word in ("the", "flight"))
        assert flight / the == pytest.approx(3 / 13)  # an unknown word is the rarest


def test_a_name_is_said_by_its_words_of_which_the_rare_count_more():
    labels = ("book_flight", "cancelFlight", "123")
    booked, cancelled, nothing = said("book the flight", labels)[1].tolist()
    assert booked == pytest.approx(1)
    assert 0 < cancelled < 0.5  # both names have a flight
    assert nothing == 0
    assert said("cancel flight", labels)[1][1] == pytest.approx(1)  # nobody gave "cancel" a vector
    assert said("cancel flight", ("1", "2"))[1].tolist() == [0, 0]


def test_a_word_that_is_used_alike_stands_in_for_one_of_the_name():
    vectors = torch.eye(len(KNOWN.words) + KNOWN.buckets)
    vectors[3, 2] = 1  # plane, at 45 degrees to flight
    assert said("the plane", ("flight",), vectors)[1].item() == pytest.approx(OTHER_WORD * 0.5 ** (SHARPNESS / 2))


def test_a_slot_hears_a_word_and_its_neighbours_of_the_same_utterance():
    model, words = SaidWords(KNOWN, ()), torch.tensor([0, 1, 2, 3])
    place = model.place[words]
    third = model.places + 1
    assert model.near(words, torch.tensor([3, 1])).tolist() == [
        [place[0] + 1, third, 2 * third + place[1] + 1],
        [place[1] + 1, third + place[0] + 1, 2 * third + place[2] + 1],
        [place[2] + 1, third + place[1] + 1, 2 * third],
        [place[3] + 1, third, 2 * third],
    ]
    assert model.rows == 3 * third
