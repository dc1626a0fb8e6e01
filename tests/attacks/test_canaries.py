"""Canaries: their ranks are uniform until a model has memorised them, and the guarantee covers all copies together."""

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from edp_lab.attacks import canaries
from edp_lab.attacks.canaries import (
    AROUND,
    DIGITS,
    canary_ranks,
    draw_canaries,
    filling_losses,
    mean_interval,
    measure_memorisation,
)
from edp_lab.corpora import smart_home
from edp_lab.corpora.catalog import load_corpus
from edp_lab.corpora.corpus import split
from edp_lab.corpora.encoding import Labels, WordFeatures
from edp_lab.errors import UsageError
from edp_lab.models.factory import build_model
from edp_lab.privacy import gdp_epsilon
from edp_lab.training.config import TrainConfig
from edp_lab.training.trainer import Trainer

REFERENCES = 999
EPOCHS, Z0 = 3, 8.0


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> TrainConfig:
    """Settings of a run with a tiny corpus and model, and overwhelming noise."""
    path = tmp_path_factory.mktemp("corpus") / "tiny.jsonl"
    smart_home.write_jsonl(smart_home.generate(450, 5), path)
    return TrainConfig(str(path), size="small", batch_size=16, epochs=EPOCHS, z0=Z0)


@pytest.fixture(scope="module")
def measured(config):
    """Results by method and number of repetitions."""
    events = []
    rows = measure_memorisation(
        config, ["sgd", "edp-sgd"], (0, 1, 16), 6, REFERENCES, lambda *told: events.append(told)
    )
    assert {method for method, _ in events} == {"sgd", "edp-sgd"}
    return {(row.method, row.repetitions): row for row in rows}


@pytest.fixture(scope="module")
def text(config):
    """The corpus and its training set."""
    corpus = load_corpus(config.corpus)
    return corpus, split(corpus, 0).train


@pytest.fixture(scope="module")
def trained(config, text):
    """A model trained with SGD on canaries that were inserted 16 times, and the canaries."""
    corpus, data = text[0], split(text[0], 0)
    drawn = draw_canaries(corpus, data.train, (16,), 6, REFERENCES, seed=0)
    run = Trainer(replace(config, method="sgd"), corpus, replace(data, train=(*data.train, *drawn.inserted)))
    while run.progress.epoch < EPOCHS:
        run.epoch()
    return run.model, drawn


@pytest.fixture(scope="module")
def untrained(config, text):
    """Two untrained models, one with the words of its training set and one with hash buckets."""
    labels, size = Labels.of(text[0]), config.model_size()
    return [
        build_model("clc", labels, seed=1, training=text[1], private=private, size=size) for private in (False, True)
    ]


def never_inserted(text, seed: int, each: int = 300):
    drawn = draw_canaries(*text, (0,), each, REFERENCES, seed)
    return drawn.utterances[0], drawn.references


def test_rank_is_the_mean_over_all_orders_of_equal_losses(monkeypatch):
    """A model that assigns the same loss to all fillings therefore extracts nothing."""
    generator = np.random.default_rng(0)
    for _ in range(50):
        losses = generator.integers(0, 4, 6).astype(float)
        monkeypatch.setattr(canaries, "filling_losses", lambda *_, losses=losses: losses[None])
        assert canary_ranks(None, [SimpleNamespace(tokens=())], [()] * 5)[0] == stats.rankdata(losses)[0]


def test_losses_are_those_of_training(untrained, text):
    canaries, references = never_inserted(text, 0, each=4)
    for model in untrained:
        losses = filling_losses(model, references[:7], canaries)
        for canary, row in zip(canaries, losses, strict=True):
            alone = model.dataset([replace(canary, tokens=text) for text in references[:7]])
            expected = model.losses(alone.batch(range(7))).detach()
            torch.testing.assert_close(torch.from_numpy(row).float(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("model", "seed"), [("words", 0), ("buckets", 1), ("trained", 7)])
def test_numbers_that_were_never_inserted_have_every_rank_alike(untrained, trained, text, model, seed):
    """For an untrained and a trained model, the mean exposure is within 3.5 standard errors."""
    asked = {"words": untrained[0], "buckets": untrained[1], "trained": trained[0]}[model]
    rank, fillings = canary_ranks(asked, *never_inserted(text, seed)), REFERENCES + 1
    every = math.log2(fillings) - np.log2(np.arange(1, fillings + 1))
    assert every.mean() == pytest.approx(math.log2(math.e), abs=0.01)
    error = every.std() / math.sqrt(len(rank))
    assert (math.log2(fillings) - np.log2(rank)).mean() == pytest.approx(every.mean(), abs=3.5 * error)
    assert stats.kstest((rank - 0.5) / fillings, "uniform").pvalue > 0.001


def test_canaries_and_references_are_draws_from_one_set(text):
    corpus, train = text
    counts = Counter(token for u in train for token in u.tokens)
    drawn = draw_canaries(corpus, train, (0,), 1000, 3000, seed=3)
    canaries = [u.tokens for u in drawn.utterances[0]]
    texts = [*canaries, *drawn.references]
    assert len(set(texts)) == 4000
    assert all(text[: len(AROUND)] == AROUND for text in texts)
    numbers = np.array([[DIGITS.index(word) for word in text[len(AROUND) :]] for text in texts])
    known = [k for k, word in enumerate(DIGITS) if counts[word] > 1]
    assert np.unique(numbers).tolist() == known
    table = [[(side == k).sum() for k in known] for side in (numbers[:1000], numbers[1000:])]
    assert stats.chi2_contingency(table).pvalue > 1e-4


def test_canaries_bring_no_unknown_digit_and_their_labels_are_arbitrary_and_known(text):
    corpus, train = text
    drawn = draw_canaries(corpus, train, (1, 16), 6, REFERENCES, seed=0)
    before, after = (WordFeatures.from_training_words(words).words for words in (train, (*train, *drawn.inserted)))
    assert set(after) - set(before) <= set(AROUND)
    assert {word for text in drawn.references for word in text[len(AROUND) :]} <= set(before)
    canaries, _ = never_inserted(text, 0)
    assert all(u.intent in corpus.intents and set(u.tags) <= set(corpus.tags) for u in canaries)
    assert len({(u.intent, u.tags) for u in canaries}) > 200  # of 300 canaries
    for u in canaries:
        assert [tag[0] for tag in u.tags] == ["O"] * len(AROUND) + ["B"] + ["I"] * 6


def test_each_canary_is_inserted_as_often_as_its_group_says_and_the_seed_draws_all(text):
    drawn, again, other = (draw_canaries(*text, (0, 2, 5), 3, 9, seed) for seed in (0, 0, 1))
    copies = Counter(drawn.inserted)
    found = {times: [copies[u] for u in group] for times, group in drawn.utterances.items()}
    assert found == {times: [times] * 3 for times in (0, 2, 5)}
    assert drawn == again
    assert drawn.utterances != other.utterances


def test_plain_training_remembers_a_number_the_better_the_more_often_it_occurs_and_noise_prevents_it(measured):
    never, once, often = (measured["sgd", times] for times in (0, 1, 16))
    assert never.exposure < 3
    assert never.extracted == 0
    assert often.exposure > once.exposure + 2
    assert often.extracted >= 5
    assert often.exposure <= often.cap == pytest.approx(math.log2(REFERENCES + 1))
    for times in (0, 1, 16):
        row = measured["edp-sgd", times]
        assert row.exposure < 4
        assert row.extracted == 0
        assert row.interval[0] < 1.44
    assert often.interval[0] > measured["edp-sgd", 16].interval[1]


def test_summary_is_that_of_the_canaries_and_epsilon_that_of_all_copies_together(measured):
    for row in measured.values():
        assert len(row.exposures) == 6
        assert row.exposure == pytest.approx(np.mean(row.exposures))
        assert row.extracted == sum(bits == row.cap for bits in row.exposures)
        assert 0 <= row.interval[0] <= row.exposure <= row.interval[1] <= row.cap
        assert row.extracted_interval[0] <= row.extracted / 6 <= row.extracted_interval[1]
    for times in (1, 16):
        row, mu = measured["edp-sgd", times], math.sqrt(EPOCHS) / Z0
        assert row.epsilon_if_seed_secret == pytest.approx(gdp_epsilon(times * mu, row.delta), rel=1e-9)
        assert row.guarantee == "void: seed published"


def test_interval_of_the_mean_is_student_s_cut_to_what_is_possible_and_of_equal_values_no_point():
    values = np.array([4.0, 5.0, 7.0, 8.0])
    expected = stats.t.interval(0.95, 3, values.mean(), stats.sem(values))
    assert mean_interval(values, 0.0, 10.0) == pytest.approx(expected)
    assert mean_interval(values, 5.0, 7.0) == (5.0, 7.0)
    assert mean_interval(np.full(8, 10.0), 0.0, 10.0) == (pytest.approx(10 * 0.025 ** (1 / 8)), 10.0)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"methods": []}, "no method"),
        ({"repetitions": (1.5,)}, "1.5"),
        ({"references": 0}, "references is 0"),
        ({"references": 30_000}, "the limit is 20,000"),
        ({"repetitions": (0, 100)}, "outnumber"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(config, told, message):
    """Invalid command-line input is covered by test_refusals.py."""
    with pytest.raises(UsageError, match=f"^[^\n]*{message}[^\n]*$"):
        measure_memorisation(config, **told)


def test_corpora_that_do_not_suit_are_refused(text):
    corpus, train = text
    wordless = [u for u in train if not set(u.tokens) & set(DIGITS)]
    with pytest.raises(UsageError, match="too few digits"):
        draw_canaries(corpus, wordless, (1,), 2, 9, 0)
    untagged = replace(corpus, utterances=tuple(replace(u, tags=None) for u in corpus.utterances))
    with pytest.raises(UsageError, match="no slot annotation"):
        draw_canaries(untagged, train, (1,), 2, 9, 0)
