"""Notebook 10, three phases: its sketch matches the real pipeline, and its panels agree with the library."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from edp_lab.course.kit.controls import rng_of
from edp_lab.course.kit.text import at_most
from edp_lab.course.nb10_phases import panels
from edp_lab.course.nb10_phases.panels import Sketch, noise_images, spend_labels
from edp_lab.three_phase import phases as pipeline
from edp_lab.three_phase.perturbation import image_guarantee
from edp_lab.three_phase.phases import run_three_phase
from edp_lab.three_phase.settings import ThreePhaseSettings
from edp_lab.training.build import BETAS, make_optimizer
from tests.course.conftest import prediction
from tests.course.examples import Wrong, drawn, phases_sketch

THESIS = ThreePhaseSettings(epochs=1)
CLEAR = replace(THESIS, sigma=0.0, instructors=30)


@pytest.fixture(scope="module")
def sketch() -> Sketch:
    return phases_sketch()


def test_sketch_has_the_images_noise_and_parts_of_a_real_run(sketch: Sketch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "parallel", run := Mock(side_effect=EOFError))
    with pytest.raises(EOFError):
        run_three_phase(replace(THESIS, instructors=3), sketch.images)
    train, test = sketch.noised(0.6)
    for job, part in zip(run.call_args.args[1].values(), np.array_split(sketch.order, 3), strict=True):
        assert (job.x == train[part]).all()
        assert (job.y == sketch.images.train_labels[part]).all()
        assert (job.test_x == test[sketch.public :]).all()


def test_labels_are_noised_as_in_a_real_run(sketch: Sketch, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    real = pipeline.stream
    monkeypatch.setattr(pipeline, "stream", lambda *place: drawn.append(place) or real(*place))
    run_three_phase(replace(THESIS, phases=(2,), instructors=2), sketch.images)
    settings = replace(THESIS, sigma=0.0, instructors=2)
    assert (settings.aggregator().labels(sketch.counts(settings), real(*drawn[-1])) == sketch.labels(settings)).all()
    assert (sketch.labels(settings, draw=1) != sketch.labels(settings)).any()


def test_phase_one_is_that_of_a_real_run_and_promises_nothing_without_noise(sketch: Sketch) -> None:
    record = run_three_phase(replace(THESIS, phases=(1,)), sketch.images)
    result = noise_images(sketch, THESIS)
    assert result.pixels == record.pixels["train"]
    assert result.guarantee == record.image_guarantee
    silent = replace(THESIS, sigma=0.0)
    shown = panels.words.architecture(noise_images(sketch, silent), spend_labels(sketch, silent))
    assert "Image: no guarantee" in shown


def test_linear_model_is_scikit_learns_ridge(sketch: Sketch) -> None:
    from sklearn.linear_model import Ridge

    x, y = sketch.images.train[:200], sketch.images.train_labels[:200]
    features = np.c_[x.reshape(200, -1), np.ones(200)].astype(np.float64)
    peer = Ridge(alpha=panels.RIDGE, fit_intercept=False).fit(features, np.eye(10)[y])
    assert (panels.linear_features(x) == features).all()
    assert panels.fit_linear(features, y, 10) == pytest.approx(peer.coef_.T, abs=1e-8)


def test_many_instructors_are_better_than_one_and_one_label_gives_an_understudy(sketch: Sketch) -> None:
    bill = spend_labels(sketch, replace(CLEAR, instructors=100))
    assert bill.alone < 0.6 < 0.8 < bill.silent
    assert bill.accuracy > 0.8
    bill = spend_labels(sketch, replace(THESIS, vote="gaussian", vote_epsilon=100.0, labels=1))
    assert bill.account.queries == 1
    assert 0 <= bill.accuracy <= 1


def test_phase_one_has_the_known_epsilon(sketch: Sketch) -> None:
    result = noise_images(sketch, THESIS)
    assert result.mnist.epsilon == pytest.approx(1287, abs=0.5)
    assert result.sensitivity_needed == pytest.approx(0.3672, abs=1e-4)
    assert result.guarantee.epsilon == image_guarantee((1, 8, 8), 0.6, 1e-5).epsilon
    assert math.isinf(result.guarantee.label_epsilon)
    at = panels.SIGMAS.index(1.0)
    assert result.curves["28 × 28 (MNIST)"][at] == image_guarantee((1, 28, 28), 1.0, 1e-5).epsilon


def test_unanimous_label_survives_as_often_as_in_the_thesis(sketch: Sketch) -> None:
    assert spend_labels(sketch, THESIS).unanimous == pytest.approx(0.2573, abs=1e-4)


def test_labels_cost_their_composed_epsilon_whatever_the_votes(sketch: Sketch) -> None:
    noised, clear = spend_labels(sketch, THESIS), spend_labels(sketch, replace(THESIS, sigma=0.0))
    assert noised.account.epsilon == clear.account.epsilon == pytest.approx(31.73, abs=0.01)
    assert noised.accountant == "Renyi DP"
    place = panels.LABEL_COUNTS.index(9000)
    assert noised.composed["plain sum"][place] == pytest.approx(1800)
    assert noised.composed["zCDP"][place] == pytest.approx(271, abs=1)
    assert clear.accuracy > noised.accuracy + 0.1
    settings = replace(CLEAR, labels=100)
    bill, truth = spend_labels(sketch, settings), sketch.images.test_labels[:100]
    drawn = [(sketch.labels(settings, draw)[:100] == truth).mean() for draw in range(panels.DRAWS)]
    assert bill.right == pytest.approx(np.mean(drawn))
    assert bill.interval[0] < bill.accuracy < bill.interval[1]


@pytest.mark.parametrize(
    "settings", [THESIS, replace(CLEAR, vote="gaussian", labels=100, delta=1e-6, seed=3, understudy_method="dp-adam")]
)
def test_command_makes_this_very_run(settings: ThreePhaseSettings, given_to: Any) -> None:
    given, images, _ = given_to("three_phase.phases.run_three_phase", panels.command(settings, (1, 2)))
    assert (given, images.name) == (replace(settings, phases=(1, 2)), "digits")


def test_sliders_move_the_bill_and_a_run_is_paid_for(sketch: Sketch) -> None:
    start = replace(THESIS, instructors=2, labels=100)
    panel = panels.Pipeline(sketch, start)
    panel.set(vote_epsilon=5.0)
    assert panel.result.settings == panel.prepare() == replace(start, vote_epsilon=5.0)
    panel.reset()
    panel.run(wait=True)
    panel.check()
    [record] = panel.runs
    again = run_three_phase(start, sketch.images)
    assert [part.scores for part in record.parts] == [part.scores for part in again.parts]
    _, runs = drawn(panel)
    assert (list(runs.data[1].x), panel.command.value) == ([record.privacy.epsilon], panels.command(start))
    assert panel.tiles.tiles[1][1] == at_most(record.privacy.epsilon)


def test_adam_divides_by_the_noise_where_it_is_larger_than_the_gradient() -> None:
    silent, noisy = (panels.adam_divisors(sigma, 30) for sigma in (0.0, 0.1))
    assert silent.divisors == pytest.approx(silent.sizes)
    assert noisy.divisors[noisy.sizes < 0.01] == pytest.approx(0.1, rel=0.5)
    assert noisy.divisors[-1] == pytest.approx(1.0, rel=0.1)
    weight = torch.nn.Parameter(torch.zeros(120, dtype=torch.float64))
    adam = make_optimizer("adam", [weight], 1e-3)
    for draw in rng_of(0, 2).standard_normal((30, 120)):
        weight.grad = torch.from_numpy(noisy.sizes + 0.1 * draw)
        adam.step()
    divisor = (adam.state[weight]["exp_avg_sq"] / (1 - BETAS[1] ** 30)).sqrt()
    assert divisor.numpy() == pytest.approx(noisy.divisors)


def noisy(noise: Callable[[np.random.Generator, float, int], Any]) -> Callable[..., Any]:
    """An answer that returns the winner after adding `noise` with standard deviation sigma."""
    return lambda counts, sigma, rng: np.argmax(counts + noise(rng, sigma, len(counts)))


guess = partial(prediction, "10", "parts")
WRONG: dict[str, dict[str, Any]] = {
    "gnmax": {
        "one noise for all counts": Wrong(
            noisy(lambda rng, sigma, labels: rng.normal(0, sigma)), "of all draws, but wins in"
        ),
        "the noisy count instead of its label": lambda counts, sigma, rng: (
            counts + rng.normal(0, sigma, len(counts))
        ).max(),
        "takes sigma for the variance": noisy(lambda rng, sigma, labels: rng.normal(0, math.sqrt(sigma), labels)),
        "Laplace noise": noisy(lambda rng, sigma, labels: rng.laplace(0, 2 * sigma, labels)),
    },
    "parts": {
        "ten times more private": guess("falls", "falls", "stays"),
        "the costs of ten add up": guess("rises", "stays", "rises"),
        "forgets how often an image is drawn": guess("stays", "stays", "stays"),
        "less data, less privacy": guess("rises", "rises", "stays"),
    },
    "budget": {
        "shares it out, but one vote moves one count": Wrong(lambda total, labels: labels / total, " labels cost ε = "),
        "two counts, but every label has all of it": lambda total, labels: 2 / total,
        "adds up by the root": lambda total, labels: 2 * math.sqrt(labels) / total,
        "upside down": lambda total, labels: total / (2 * labels),
        "rounds, and the budget is overdrawn": lambda total, labels: 2 * labels // total,
    },
}
