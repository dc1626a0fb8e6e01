"""Attacks by the API: who may learn from what, what an attack may ask, and what it gets; references by hand."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edp_lab.attacks import extraction as api
from edp_lab.attacks.extraction import (
    SETTINGS,
    PredictionApi,
    correlations,
    draw_by_queries,
    extract,
    invert,
    share_out,
    train_victims,
)
from edp_lab.corpora.images import load_images
from edp_lab.models.image import ImageClassifier, build_classifier
from edp_lab.three_phase.phases import Job

DIGITS = load_images("digits")
SHARES = share_out(DIGITS)


@pytest.fixture(scope="module")
def strangers() -> api.Victim:
    [victim] = train_victims(SHARES, ["strangers"])
    return victim


@pytest.fixture
def brief_study(monkeypatch) -> None:
    """Copies, and the judge, learn for a third of the time."""
    monkeypatch.setattr(api, "STUDENT_STEPS", 100)


def of_images(part: api.Part) -> set[bytes]:
    return {image.tobytes() for image in part.images}


def test_every_image_has_one_owner():
    parts = [SHARES.private, SHARES.public, SHARES.pool, SHARES.test]
    assert [len(part.labels) for part in parts] == [798, 399, 400, 200]
    for k, whole in enumerate(([*DIGITS.train, *DIGITS.test], [*DIGITS.train_labels, *DIGITS.test_labels])):
        np.testing.assert_array_equal(np.concatenate([part[k] for part in parts]), whole)


def test_victims_learn_from_their_owners_images_alone(monkeypatch):
    seen: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    job = Job.train

    def spy(settings, x, y):
        seen[settings.method if settings.private else "strangers"] = x, y
        return SimpleNamespace(model=build_classifier("cnn", (1, 8, 8), 10), guarantee=SimpleNamespace(epsilon=7.0))

    def spy_job(self, listener):
        seen[self.name] = self.x, self.y
        return job(self, listener)

    monkeypatch.setattr(api, "train_classifier", spy)
    monkeypatch.setattr(Job, "train", spy_job)
    told: list[str] = []
    quick = replace(SETTINGS, instructors=2, epochs=1)
    victims = {victim.name: victim for victim in train_victims(SHARES, api.VICTIMS, quick, told.append)}
    assert list(victims) == list(api.VICTIMS)
    np.testing.assert_array_equal(seen["plain model"][0], SHARES.private.images)
    np.testing.assert_array_equal(seen["dp-adam"][0], SHARES.private.images)
    halves = np.concatenate([seen["instructor 1"][0], seen["instructor 2"][0]])
    assert of_images(api.Part(halves, seen["instructor 1"][1])) == of_images(SHARES.private)
    for name in ("understudy", "strangers"):
        np.testing.assert_array_equal(seen[name][0], SHARES.public.images)
    np.testing.assert_array_equal(seen["strangers"][1], SHARES.public.labels)
    assert (seen["understudy"][1] != SHARES.public.labels).any()
    epsilons = [victims[name].epsilon for name in ("plain", "instructor", "dp-adam", "strangers")]
    assert epsilons == [None, None, 7.0, 0.0]
    assert 50 < victims["understudy"].epsilon <= 399
    assert told[-2:] == ["victim: dp-adam", "victim: strangers"]


def test_an_api_bills_every_image_and_can_keep_probabilities_to_itself():
    model = build_classifier("cnn", (1, 8, 8), 10)
    all_told, label_told = PredictionApi(model), PredictionApi(model, labels_only=True)
    images = SHARES.pool.images[:7]
    answers = all_told.query(images)
    all_told.query(images[:2])
    assert (all_told.queries, label_told.queries) == (9, 0)
    labels = label_told.query(images)
    assert set(np.unique(labels)) == {0.0, 1.0}
    np.testing.assert_array_equal(labels.argmax(axis=1), answers.argmax(axis=1))
    np.testing.assert_allclose(answers.sum(axis=1), 1, rtol=1e-5)


def test_a_model_of_epsilon_0_is_copied_and_its_classes_are_drawn_and_better_by_more_queries(strangers, brief_study):
    few, many = extract([strangers], SHARES, [300, 20], labels_only=True)
    assert (few.queries, many.queries, many.epsilon) == (20, 300, 0.0)
    assert few.agreement + 0.1 < many.agreement
    assert many.agreement_interval[0] > 0.8
    assert many.guess_agreement_interval[1] < 0.5
    assert few.own_labels_agreement is not None
    few, many, white_box = invert([strangers], SHARES, [400, 20])
    assert [few.queries, many.queries, white_box.queries] == [20, 400, None]
    for row in (many, white_box):
        assert row.judged_interval[0] > row.guess_judged_interval[1]
        assert row.correlation > row.others + 0.1
        assert row.matched > row.guess_matched + 0.3
    assert few.judged < many.judged
    assert many.images == 30


def test_without_images_and_by_labels_alone_an_attacker_still_learns_something(strangers, brief_study, monkeypatch):
    [row] = extract([strangers], SHARES, [1000], inputs="noise")
    assert row.agreement_interval[0] > row.guess_agreement_interval[1]
    assert row.own_labels_agreement is None
    answers, query = [], PredictionApi.query
    monkeypatch.setattr(PredictionApi, "query", lambda self, x: answers.append(query(self, x)) or answers[-1])
    [row] = invert([strangers], SHARES, [600], labels_only=True)
    assert row.judged > row.guess_judged_interval[1]
    assert set(np.unique(np.concatenate(answers))) == {0.0, 1.0}


def test_a_copy_is_asked_for_with_the_pool_alone_and_never_scored_on_it_and_the_judge_saw_no_victims_images(
    strangers, monkeypatch
):
    learnt, asked, scored = [], [], []
    monkeypatch.setattr(api, "STUDENT_STEPS", 1)
    train, query, predict = api.train_student, PredictionApi.query, ImageClassifier.predict
    monkeypatch.setattr(ImageClassifier, "predict", lambda self, x: scored.append(x) or predict(self, x))
    monkeypatch.setattr(api, "train_student", lambda x, y, seed: learnt.append(x) or train(x, y, seed))
    monkeypatch.setattr(PredictionApi, "query", lambda self, x: asked.append(x) or query(self, x))
    extract([strangers, strangers], SHARES, [30])
    assert [len(images) for images in asked] == [30, 30]
    assert len(learnt) == 4  # by guesses, by own labels, and each victim's copy
    for images in (*learnt, *asked):
        np.testing.assert_array_equal(images, SHARES.pool.images[:30])
    assert len(scored) >= 6
    for images in scored:
        np.testing.assert_array_equal(images, SHARES.test.images)
    learnt.clear()
    invert([strangers], SHARES, [2])
    seen = of_images(api.Part(learnt[0], SHARES.pool.labels))
    assert seen == of_images(SHARES.pool) | of_images(SHARES.test)
    assert not seen & (of_images(SHARES.private) | of_images(SHARES.public))


def test_an_attack_can_be_repeated(strangers, monkeypatch):
    monkeypatch.setattr(api, "STUDENT_STEPS", 5)
    first, again = (extract([strangers], SHARES, [20], inputs="noise", seed=3) for _ in range(2))
    assert first == again
    drawn, redrawn = (invert([strangers], SHARES, [20], labels_only=True) for _ in range(2))
    assert drawn == redrawn


class TemplateApi(PredictionApi):
    """Its classes are templates: probabilities are the softmax of how much of each there is in the image."""

    def __init__(self) -> None:
        self.queries = 0
        self.templates = np.random.default_rng(5).standard_normal((4, 64))

    def query(self, images):
        self.queries += len(images)
        scores = np.exp(images.reshape(len(images), -1) @ self.templates.T)
        return (scores / scores.sum(axis=1, keepdims=True)).astype(np.float32)


def test_templates_are_drawn_by_answers_alone():
    target, wanted = TemplateApi(), np.arange(4)
    drawn = draw_by_queries(target, wanted, (1, 8, 8), 2000, np.random.default_rng(0))
    found = correlations(drawn, target.templates)
    assert (found.argmax(axis=1) == wanted).all()
    assert found[wanted, wanted].min() > 0.5
    assert drawn.min() >= 0
    assert drawn.max() <= 1


@settings(max_examples=30)
@given(queries=st.integers(2, 200), images=st.integers(1, 4))
def test_drawing_asks_for_no_more_than_its_queries(queries, images):
    target = TemplateApi()
    drawn = draw_by_queries(target, np.zeros(images, dtype=np.int64), (1, 8, 8), queries, np.random.default_rng(0))
    assert drawn.shape == (images, 1, 8, 8)
    assert images * queries / 2 < target.queries <= images * queries


def test_perfect_drawings_are_like_their_own_class_and_as_like_others_as_classes_are(strangers, monkeypatch):
    averages = np.stack([SHARES.private.images[SHARES.private.labels == label].mean(axis=0) for label in range(10)])
    monkeypatch.setattr(api, "draw_by_queries", lambda target, wanted, *_: averages[wanted])
    monkeypatch.setattr(api, "STUDENT_STEPS", 1)
    [row] = invert([strangers], SHARES, [2], labels_only=True)
    between = np.corrcoef(averages.reshape(10, 64))
    assert (row.correlation, row.matched) == pytest.approx((1, 1))
    assert row.others == pytest.approx(between[~np.eye(10, dtype=bool)].mean())


def test_correlations_are_pearsons_and_0_for_one_shade():
    rng = np.random.default_rng(2)
    images, averages = rng.random((3, 1, 2, 4)).astype(np.float32), rng.random((2, 8))
    expected = np.corrcoef(images.reshape(3, 8), averages)[:3, 3:]
    np.testing.assert_allclose(correlations(images, averages), expected, rtol=1e-6)
    assert (correlations(np.ones_like(images), averages) == 0).all()
