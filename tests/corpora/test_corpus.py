"""A packed corpus: what is read is what was written, splits and batches are those of the same corpus in memory. Splits:
nothing is lost, sizes follow the ratio, duplicates stay on one side, seeds decide."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edp_lab.corpora import Corpus, Split, Utterance, load_corpus, split
from edp_lab.corpora.corpus import META, SEAL, group_ids, load_packed, write_packed
from edp_lab.corpora.encoding import Dataset, Labels, WordFeatures
from edp_lab.corpora.smart_home import generate, pack
from edp_lab.errors import UsageError
from edp_lab.files import sealed
from edp_lab.training import TrainConfig
from edp_lab.training.inference import evaluate_model
from edp_lab.training.trainer import Trainer

N = 1_200  # more than are made at once


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpora") / "home"
    pack(N, 3, folder)
    return folder


@pytest.fixture(scope="module")
def both(folder: Path) -> tuple[Corpus, Corpus]:
    """Packed and in memory."""
    return load_corpus(str(folder)), generate(N, 3)


def test_what_is_read_is_what_was_written_and_unknown_labels_are_refused(both) -> None:
    packed, whole = both
    assert tuple(packed.utterances) == whole.utterances
    assert (packed.sha256, packed.intents, packed.tags) == (whole.sha256, whole.intents, whole.tags)
    assert packed.utterances[-1] == whole.utterances[-1]
    assert tuple(packed.utterances[5:9]) == whole.utterances[5:9]
    with pytest.raises(IndexError):
        packed.utterances[N]
    labels, first = Labels.of(packed), packed.utterances[0].intent
    fewer = replace(labels, intents=tuple(i for i in labels.intents if i != first))
    with pytest.raises(UsageError, match=f"intent '{first}'"):
        Dataset(packed.utterances, fewer, WordFeatures())
    tag = next(tag for u in packed.utterances for tag in u.tags if tag != "O")
    with pytest.raises(UsageError, match="labels that the model knows"):
        Dataset(packed.utterances, replace(labels, tags=tuple(t for t in labels.tags if t != tag)), WordFeatures())


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("seed", [0, 7])
def test_a_split_is_that_of_the_same_corpus_in_memory(both, seed, together) -> None:
    ours, theirs = (split(corpus, seed, keep_duplicates_together=together) for corpus in both)
    for name in ("train", "validation", "test", "duplicates"):
        assert tuple(getattr(ours, name)) == tuple(getattr(theirs, name))
    assert ours.counts == theirs.counts


WORDS = st.lists(st.sampled_from(["a", "b", "ab", "c"]), min_size=1, max_size=4).map(tuple)


@settings(max_examples=60)
@given(st.lists(WORDS, min_size=1, max_size=40))
def test_utterances_are_told_apart_by_their_words_and_the_order_of_these(tmp_path_factory, sentences) -> None:
    utterances = [Utterance(words, ("O",) * len(words), "x") for words in sentences]
    folder = tmp_path_factory.mktemp("packed") / "own"
    write_packed(utterances, ["x"], [], folder)
    packed = load_packed(folder).utterances
    assert group_ids(packed).tolist() == group_ids(utterances).tolist()


def test_batches_and_vocabulary_are_those_of_the_same_corpus_in_memory(both, monkeypatch) -> None:
    monkeypatch.setattr("edp_lab.corpora.corpus.CHUNK", 100)
    parts = [split(corpus, 0).train for corpus in both]
    features = [WordFeatures.from_training_words(part) for part in parts]
    assert features[0] == features[1]
    examples = np.array([5, 0, 17, 5])
    ours, theirs = (Dataset(part, Labels.of(both[1]), features[0]).batch(examples) for part in parts)
    pairs = [(ours.inputs[name], theirs.inputs[name]) for name in theirs.inputs]
    assert all(torch.equal(*pair) for pair in (*pairs, (ours.intents, theirs.intents), (ours.tags, theirs.tags)))


def test_training_and_scores_are_those_of_the_same_corpus_in_memory(both, monkeypatch) -> None:
    found = []
    for corpus in both:
        run = Trainer(TrainConfig(corpus.name, z0=0.01, size="small", num_devices=4), corpus, split(corpus, 0))
        for _ in range(2):
            run.step()
        found.append(
            (torch.cat([p.detach().flatten() for _, p in run.parameters]), evaluate_model(run.model, run.test))
        )
        monkeypatch.setattr("edp_lab.training.inference.AT_ONCE", 70)
        assert evaluate_model(run.model, run.test) == found[-1][1]
        monkeypatch.undo()
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


@pytest.mark.parametrize("name", ["words.npy", "offsets.npy", "words.txt", "meta.json"])
def test_a_damaged_file_is_one_sentence(folder, tmp_path, name) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes()[:-3] if file.name == name else file.read_bytes())
    with pytest.raises(UsageError, match=r"is damaged \(.*\): make it again"):
        load_packed(copy)


def resealed(meta: dict, changes: dict) -> dict:
    return sealed({**{name: value for name, value in meta.items() if name != SEAL}, **changes}, SEAL)


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: {**meta, "intents": meta["intents"][::-1]},
        lambda meta: {**meta, "tags": meta["tags"][::-1]},
        lambda meta: {**meta, "sha256": "0" * 64},
        lambda meta: resealed(meta, {"utterances": 200}),
        *(lambda meta, x=x: resealed(meta, {"intents": x}) for x in ([], {}, "x", 7, [7] * 999)),
        *(lambda meta, x=x: resealed(meta, {"tags": x}) for x in ([], None, ["O"] * 999)),
        *(lambda meta, x=x: resealed(meta, {"sha256": x}) for x in (None, "x")),
        *(lambda meta, x=x: resealed(meta, {"files": x}) for x in (None, [], 7, "x", {})),
    ],
)
def test_a_description_that_was_changed_or_does_not_fit_is_refused(folder, tmp_path, change) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / META).write_text(json.dumps(change(json.loads((copy / META).read_text()))))
    with pytest.raises(UsageError, match=r"is damaged \(.*\): make it again"):
        load_packed(copy)


def test_nothing_is_left_of_a_corpus_that_could_not_be_written(tmp_path) -> None:
    utterances = [Utterance(("a",), ("O",), "x"), Utterance(("b",), ("B-city",), "x")]
    for some, says in ((utterances, "undeclared label 'B-city'"), ([], "at least 1")):
        with pytest.raises(UsageError, match=says):
            write_packed(some, ["x"], [], tmp_path / "own")
        assert list(tmp_path.iterdir()) == []


# ---- Random splits ---------------------------------------------------------------------------------------------------

# Few distinct texts give many duplicates, up to a group that is most of the corpus.
TEXTS = st.lists(st.integers(0, 60).map(lambda i: f"text {i}"), min_size=1, max_size=200)
SEEDS = st.integers(0, 2**64)
MANY = [f"t{i}" for i in range(1000)]


def corpus(texts: list[str]) -> Corpus:
    """One utterance per text; the intent numbers them, so that each is told apart."""
    utterances = tuple(Utterance(tuple(text.split()), None, str(i)) for i, text in enumerate(texts))
    return Corpus("c", utterances, tuple(sorted(u.intent for u in utterances)), ())


def parts_of(found: Split) -> list[list[Utterance]]:
    return [list(part) for part in (found.train, found.validation, found.test)]


@given(TEXTS, SEEDS, st.booleans())
def test_split_is_a_partition_of_the_right_sizes_with_duplicates_on_one_side_or_counted(texts, seed, together):
    try:
        found = split(corpus(texts), seed, keep_duplicates_together=together)
    except UsageError:
        assume(False)
    parts = parts_of(found)
    assert sorted(u.intent for part in parts for u in part) == sorted(map(str, range(len(texts))))
    group = max(Counter(texts).values()) if together else 1
    for part, ratio in zip(parts, (45, 5, 50), strict=True):
        assert abs(len(part) - len(texts) * ratio / 100) < group + 1
    assert found == split(corpus(texts), seed, keep_duplicates_together=together)
    sides = [{u.text for u in part} for part in parts]
    if together:
        assert sum(map(len, sides)) == len(set.union(*sides))
    assert list(found.duplicates) == [u for u in found.test if u.text in sides[0]]
    assert found.counts == dict(
        zip(("train", "validation", "test", "duplicates"), map(len, (*parts, found.duplicates)), strict=True)
    )


def test_seeds_give_different_splits_and_each_utterance_a_fair_chance():
    one, other = split(corpus(MANY), 1), split(corpus(MANY), 2)
    assert one.counts == {"train": 450, "validation": 50, "test": 500, "duplicates": 0}
    assert 150 < len(set(one.train) & set(other.train)) < 255  # 202.5 expected, standard deviation 7.9
    assert [u.intent for u in one.train] != sorted((u.intent for u in one.train), key=int)
    c = corpus(["twice", "twice", *MANY[:98]])
    members = Counter(u.intent for seed in range(400) for u in split(c, seed).train)
    assert all(abs(members[str(i)] / 400 - 0.45) < 0.125 for i in range(100))  # 5 standard deviations


def test_a_negative_seed_is_refused():
    with pytest.raises(UsageError, match="seed -1 is negative"):
        split(corpus(["a", "b"]), -1)


@pytest.mark.usefixtures("real_data")
def test_atis_split():
    atis = load_corpus("atis")
    apart, together = split(atis, 0, keep_duplicates_together=False), split(atis, 0)
    assert (apart.counts["train"], apart.counts["duplicates"] > 100) == (2_641, True)  # 45 % of 5,871
    assert abs(together.counts["train"] - 2_641) < 10
    assert together.counts["duplicates"] == 0
