"""The pipeline on few digits: who learns from what, what it costs, and the same result in any number of processes."""

import json
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

from edp_lab.corpora.images import Images, load_images
from edp_lab.errors import UsageError
from edp_lab.privacy import gdp_epsilon
from edp_lab.three_phase.classifier import score_labels
from edp_lab.three_phase.perturbation import RESIZED, compare, image_guarantee, perturb
from edp_lab.three_phase.phases import Event, Job, ThreePhaseRecord, _Run, run_three_phase
from edp_lab.three_phase.settings import HARD, ONE, PLAIN, UNDERSTUDY, ThreePhaseSettings

DIGITS = load_images("digits")
FEW = Images("digits", DIGITS.train[:300], DIGITS.train_labels[:300], DIGITS.test[:100], DIGITS.test_labels[:100], 10)
QUICK = ThreePhaseSettings(instructors=3, epochs=2)


@pytest.fixture
def jobs(monkeypatch) -> dict[str, Job]:
    """Jobs of later runs, by name."""
    seen: dict[str, Job] = {}
    train = Job.train

    def spy(self: Job, listener=lambda event: None):
        seen[self.name] = self
        return train(self, listener)

    monkeypatch.setattr(Job, "train", spy)
    return seen


@pytest.fixture(scope="module")
def record() -> ThreePhaseRecord:
    """The record of the default run for tests."""
    return run_three_phase(QUICK, FEW)


def test_all_parts_are_scored_on_the_last_tenth_and_privacy_is_that_of_the_labels_by_hand(record):
    instructors = [f"instructor {i}" for i in (1, 2, 3)]
    assert [part.name for part in record.parts] == [PLAIN, ONE, *instructors, HARD, UNDERSTUDY]
    assert [part.examples for part in record.parts] == [300, 300, 100, 100, 100, 300, 90]
    assert {sum(map(sum, part.scores.confusion)) for part in record.parts} == {10}
    assert (record.data["public"], record.data["test"]) == (90, 10)
    # 90 labels with 0.2 each: plain sum 18; rho = 90 * 0.02 = 1.8, rho + 2 sqrt(rho ln 1e5) = 10.90.
    assert record.privacy.queries == record.labels.queries == 90
    assert record.privacy.query_epsilon == pytest.approx(0.2)
    assert record.privacy.composed["plain sum"] == pytest.approx(18)
    assert record.privacy.composed["zCDP"] == pytest.approx(1.8 + 2 * math.sqrt(1.8 * math.log(1e5)))
    assert record.part(UNDERSTUDY).conditional_epsilon == record.privacy.epsilon < 10.91
    assert record.part(PLAIN).conditional_epsilon is record.part(HARD).conditional_epsilon is None
    assert record.part(ONE).image_epsilon == record.image_guarantee.epsilon == pytest.approx(144.89, abs=0.01)
    assert record.part(UNDERSTUDY).image_epsilon == record.privacy.epsilon
    assert record.part(PLAIN).image_epsilon is None
    assert record.status == "void: seed published"
    found = json.loads(json.dumps(record.as_json(), allow_nan=False))
    assert found["image_guarantee"]["label_epsilon"] is None
    assert found["settings"]["phases"] == [1, 2, 3]
    assert len(found["parts"][0]["rows"]) == 2
    assert len(found["data"]["sha256"]) == 64


def test_each_network_learns_from_what_the_phases_say_with_weights_and_order_of_its_own(jobs):
    found = run_three_phase(QUICK, FEW)
    assert len({job.settings.seed for job in jobs.values()}) == len(jobs)
    assert np.array_equal(jobs[PLAIN].x, FEW.train)
    noise = jobs[ONE].x - FEW.train
    assert noise.std() == pytest.approx(0.6, rel=0.05)
    parts = [jobs[f"instructor {i}"] for i in (1, 2, 3)]
    rows = np.concatenate([part.x for part in parts]).reshape(300, -1)
    assert sorted(map(tuple, rows)) == sorted(map(tuple, jobs[ONE].x.reshape(300, -1)))
    own = {tuple(row): label for row, label in zip(jobs[ONE].x.reshape(300, -1), FEW.train_labels, strict=True)}
    assert all(own[tuple(x.ravel())] == y for part in parts for x, y in zip(part.x, part.y, strict=True))
    understudy = jobs[UNDERSTUDY]
    assert (understudy.x - FEW.test[:90]).std() == pytest.approx(0.6, rel=0.05)
    assert (understudy.y == FEW.test_labels[:90]).mean() == found.labels.right < 0.6
    assert np.array_equal(understudy.test_y, FEW.test_labels[90:])


def test_noise_on_the_test_set_is_not_that_on_the_training_set(jobs):
    twins = replace(FEW, test=FEW.train[:100], test_labels=FEW.train_labels[:100])
    run_three_phase(QUICK, twins)
    noises = [(x - FEW.train[:90]).ravel() for x in (jobs[UNDERSTUDY].x, jobs[ONE].x[:90])]
    assert abs(np.corrcoef(*noises)[0, 1]) < 0.06


def test_which_instructor_gets_an_example_does_not_depend_on_the_data(jobs):
    """Otherwise replacing an example would move others, and more than one vote could change."""
    settings = replace(QUICK, phases=(2,))
    run_three_phase(settings, FEW)
    before = {name: job.x for name, job in jobs.items()}
    train, labels = FEW.train.copy(), FEW.train_labels.copy()
    train[7], labels[7] = 1.0, (labels[7] + 1) % 10
    run_three_phase(settings, replace(FEW, train=train, train_labels=labels))
    changed = {name: int((before[name] != jobs[name].x).any(axis=(1, 2, 3)).sum()) for name in jobs}
    assert sorted(changed[f"instructor {i}"] for i in (1, 2, 3)) == [0, 0, 1]


def test_fewer_labels_cost_less_and_a_vote_without_noise_guarantees_nothing(jobs):
    found = run_three_phase(replace(QUICK, labels=20, vote="gaussian", vote_epsilon=1.0), FEW)
    assert len(jobs[UNDERSTUDY].x) == found.labels.queries == 20
    sigma = found.settings.aggregator().noise
    assert found.part(UNDERSTUDY).conditional_epsilon == pytest.approx(
        gdp_epsilon(math.sqrt(40) / sigma, 1e-5), rel=1e-9
    )
    found = run_three_phase(replace(QUICK, vote="hard"), FEW)
    assert found.part(UNDERSTUDY).conditional_epsilon is None
    assert found.labels.right == found.labels.right_without_noise
    assert found.status == "none"


@pytest.mark.parametrize(
    ("chosen", "parts", "voters"),
    [
        ((1,), [PLAIN, ONE], None),
        ((2,), [PLAIN, "instructor 1", "instructor 2", "instructor 3", HARD], 3),
        ((3,), [PLAIN, UNDERSTUDY], 1),
        ((1, 3), [PLAIN, ONE, UNDERSTUDY], 1),
    ],
)
def test_phases_can_be_left_out(chosen, parts, voters, monkeypatch):
    models = {}
    keep = _Run._keep
    monkeypatch.setattr(
        _Run,
        "_keep",
        lambda run, job, done, epsilon: models.update({job.name: done.model}) or keep(run, job, done, epsilon),
    )
    found = run_three_phase(replace(QUICK, phases=chosen), FEW)
    assert [part.name for part in found.parts] == parts
    assert (found.image_guarantee is not None) == (1 in chosen)
    assert (found.labels is None) == (voters is None)
    if voters is not None:
        names = [name for name in models if name.startswith("instructor")] or [ONE if 1 in chosen else PLAIN]
        assert len(names) == voters
        if 1 not in chosen:
            votes = np.array([models[name].predict(FEW.test[:90]) for name in names])
            exact = [np.bincount(column).argmax() for column in votes.T]
            assert found.labels.right_without_noise == np.mean(exact == FEW.test_labels[:90])
    assert json.loads(json.dumps(found.as_json(), allow_nan=False))


def test_processes_seeds_and_secret_ones_give_the_same_networks_or_others(record, monkeypatch):
    events: list[Event] = []
    with monkeypatch.context() as patch:
        patch.setattr("edp_lab.three_phase.phases.usable_workers", lambda examples: 2)
        other = run_three_phase(QUICK, FEW, events.append)
    assert [part.scores for part in other.parts] == [part.scores for part in record.parts]
    told = {event.part for event in events if event.epoch == event.epochs == 2}
    assert {PLAIN, ONE, "instructor 1", "instructor 3", UNDERSTUDY} <= told
    assert [part.scores for part in run_three_phase(QUICK, FEW).parts] == [part.scores for part in record.parts]
    assert run_three_phase(replace(QUICK, seed=1), FEW).pixels != record.pixels
    secret = [run_three_phase(replace(QUICK, phases=(1, 3), private_seed=True), FEW) for _ in range(2)]
    assert secret[0].pixels["train"].after.mean != secret[1].pixels["train"].after.mean
    assert secret[0].status == "for real numbers only"


def test_private_instructors_are_as_private_as_the_worst_and_a_private_understudy_gains_nothing():
    """T9: parallel composition gives the maximum, not a tenth. T15: the epsilon is that of the labels in both cases."""
    private = {"epochs": 1, "train_epsilon": 5.0}
    found = run_three_phase(ThreePhaseSettings(instructors=2, phases=(1, 2), method="dp-adam", **private), FEW)
    each = [found.part(f"instructor {i}").conditional_epsilon for i in (1, 2)]
    assert found.part(HARD).conditional_epsilon == max(each) == pytest.approx(5, rel=0.02)
    found = run_three_phase(replace(QUICK, understudy_method="dp-adam", **private), FEW)
    assert found.part(UNDERSTUDY).conditional_epsilon == found.privacy.epsilon


def test_scores_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    truth, predicted = rng.integers(10, size=200), rng.integers(9, size=200)  # one class is never predicted
    found = score_labels(truth, predicted, 10)
    assert found.accuracy == metrics.accuracy_score(truth, predicted)
    wanted = metrics.precision_recall_fscore_support(truth, predicted, average="macro", zero_division=0)[:3]
    assert (found.precision, found.recall, found.f_score) == pytest.approx(wanted)
    assert found.confusion == metrics.confusion_matrix(truth, predicted).tolist()
    assert score_labels(truth[:1], truth[:1], 10).interval == pytest.approx((0.025, 1))


@pytest.mark.parametrize(
    ("change", "images", "message"),
    [
        ({"labels": 91}, FEW, "91 labels exceed the 90 public"),
        ({}, replace(FEW, test=FEW.test[:1], test_labels=FEW.test_labels[:1]), "test set of 1"),
    ],
)
def test_data_that_do_not_suffice_are_refused(change, images, message):
    with pytest.raises(UsageError, match=message):
        run_three_phase(replace(QUICK, **change), images)


# ---- Phase I: the noise is as requested, statistics match the thesis, and epsilon is that of a whole image -----------


IMAGES = load_images("digits").train


def noised(sigma: float = 0.6, seed: int = 0) -> np.ndarray:
    return perturb(IMAGES, sigma, np.random.default_rng(seed))


def test_noise_is_normal_independent_not_clipped_and_of_its_own_in_every_block():
    noise = (noised().astype(np.float64) - IMAGES).ravel()
    assert stats.kstest(noise / 0.6, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(noise[:-64], noise[64:])[0, 1]) < 0.02
    assert noised().min() < -0.5
    assert noised().max() > 1.5
    assert np.array_equal(noised(0.0), IMAGES)
    black = np.zeros((4001, 1, 8, 8), dtype=np.float32)
    found = perturb(black, 0.6, np.random.default_rng(0))
    assert not (found == 0).any()
    assert not np.array_equal(found[:2000], found[2000:4000])
    assert found.dtype == np.float32
    assert not black.any()


def test_the_printed_epsilon_goes_on_above_1():
    for epsilon in (0.5, 7):
        sigma = math.sqrt(2 * math.log(125000)) / epsilon
        assert image_guarantee((1, 8, 8), sigma, 1e-5).printed_epsilon == pytest.approx(epsilon)


def test_noise_after_the_resize_would_protect_sixteen_times_less():
    before, after = (image_guarantee(shape, 0.6, 1e-5) for shape in ((1, 28, 28), RESIZED))
    assert before.sensitivity == 28
    assert after.sensitivity == pytest.approx(443.4, abs=0.05)
    assert after.epsilon > 200 * before.epsilon


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_no_two_images_are_further_apart_than_the_sensitivity(shape, seed):
    rng = np.random.default_rng(seed)
    distance = np.linalg.norm((rng.random(shape) - rng.random(shape)).ravel())
    assert distance <= image_guarantee(shape, 1.0, 1e-5).sensitivity == np.linalg.norm(np.ones(shape).ravel())


def test_statistics_are_those_of_numpy_also_without_noise_or_contrast():
    found = compare(IMAGES, noised())
    x, y = IMAGES.ravel().astype(np.float64), noised().ravel().astype(np.float64)
    assert (found.before.mean, found.before.variance) == pytest.approx((x.mean(), x.var()))
    assert found.before.standard_deviation == pytest.approx(x.std())
    assert found.covariance == pytest.approx(np.cov(x, y, bias=True)[0, 1], rel=1e-5)
    assert found.correlation == pytest.approx(np.corrcoef(x, y)[0, 1], rel=1e-5)
    assert found.signal_noise_ratio == pytest.approx(x.var() / 0.36, rel=0.02)
    each = [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(IMAGES, noised(), strict=True)]
    assert found.image_correlation == pytest.approx(np.mean(each), rel=1e-5)
    same = compare(IMAGES, IMAGES)
    assert same.correlation == pytest.approx(1)
    assert same.image_correlation == pytest.approx(1)
    assert same.signal_noise_ratio == math.inf
    grey = np.full((3, 1, 2, 2), 0.5, dtype=np.float32)
    flat = compare(grey, grey)
    assert (flat.correlation, flat.image_correlation) == (0, None)


@pytest.mark.parametrize(
    ("call", "culprit"),
    [
        *((partial(noised, sigma), "sigma is") for sigma in (-1e-9, math.nan, math.inf)),
        *((partial(image_guarantee, (1, 8, 8), sigma, 1e-5), "sigma is") for sigma in (-1e-9, math.nan, math.inf)),
        *(
            (partial(perturb, wrong, 0.6, np.random.default_rng(0)), "between 0 and 1")
            for wrong in (255 * IMAGES, IMAGES - 0.01, np.where(IMAGES > 0.9, np.nan, IMAGES))
        ),
        *((partial(image_guarantee, shape, 0.6, 1e-5), "no pixels") for shape in ((), (1, 0, 8))),
        *((partial(compare, IMAGES[:0], other), "cannot compare") for other in (IMAGES[:5], IMAGES[:0])),
    ],
)
def test_what_makes_no_sense_is_refused(call, culprit):
    with pytest.raises(UsageError, match=culprit):
        call()
