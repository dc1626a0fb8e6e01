"""The notebook on the three phases: its sketch is the real pipeline's, and what a slider shows is what holds."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import torch
from typer.testing import CliRunner

from edp_lab.cli import app
from edp_lab.course.nb10_phases import compute as phases
from edp_lab.course.nb10_phases import figures as phases_figures
from edp_lab.course.nb10_phases import panels as phases_panels
from edp_lab.course.nb10_phases import words as phases_words
from edp_lab.course.nb10_phases.compute import Sketch, noise_images, spend_labels, split_training, take_vote
from edp_lab.errors import UsageError
from edp_lab.privacy.composition import basic_composition
from edp_lab.reproduce.thesis.claims_composition import t9_ten_instructors
from edp_lab.reproduce.thesis.claims_noise import t1_pixel_noise, t13_noisy_votes
from edp_lab.three_phase import phases as pipeline
from edp_lab.three_phase.pate import Aggregator, label_probabilities
from edp_lab.three_phase.perturbation import image_guarantee
from edp_lab.three_phase.phases import ThreePhaseSettings, run_three_phase

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "10_three_phases.ipynb"
THESIS = ThreePhaseSettings(epochs=1)
CLEAR = replace(THESIS, sigma=0.0, instructors=30)


@pytest.fixture(scope="module")
def sketch() -> Sketch:
    torch.set_num_threads(1)
    return Sketch(0)


# ---- The sketch ----------------------------------------------------------------------------------------------------


def test_sketch_has_the_images_noise_and_parts_of_a_real_run(sketch: Sketch, monkeypatch: pytest.MonkeyPatch) -> None:
    class GotThemError(Exception):
        pass

    def train_all(jobs: Any, *_: Any) -> None:
        raise GotThemError(jobs)

    monkeypatch.setattr(pipeline, "train_all", train_all)
    with pytest.raises(GotThemError) as got:
        run_three_phase(replace(THESIS, instructors=3), sketch.images)
    [jobs] = got.value.args
    train, test = sketch.noised(0.6)
    parts = np.array_split(sketch.order, 3)
    for job, part in zip(jobs, parts, strict=True):
        assert (job.x == train[part]).all()
        assert (job.y == sketch.images.train_labels[part]).all()
        assert (job.test_x == test[sketch.public :]).all()


def test_labels_are_noised_as_in_a_real_run(sketch: Sketch, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    real = pipeline.stream
    monkeypatch.setattr(pipeline, "stream", lambda *place: drawn.append(place) or real(*place))
    run_three_phase(replace(THESIS, phases=(2,), instructors=2), sketch.images)
    settings = replace(THESIS, sigma=0.0, instructors=2)
    votes = np.eye(10)[sketch.predictions(0.0, 2)[:, : sketch.public]]
    assert (settings.aggregator().labels(votes, real(*drawn[-1])) == sketch.labels(settings)).all()
    assert (sketch.labels(settings, draw=1) != sketch.labels(settings)).any()


def test_phase_one_shows_the_statistics_and_guarantee_of_a_real_run(sketch: Sketch) -> None:
    record = run_three_phase(replace(THESIS, phases=(1,)), sketch.images)
    result = noise_images(sketch, THESIS)
    assert result.pixels == record.pixels["train"]
    assert result.guarantee == record.image_guarantee


def test_linear_model_is_scikit_learns_ridge(sketch: Sketch) -> None:
    from sklearn.linear_model import Ridge

    x, y = sketch.images.train[:200], sketch.images.train_labels[:200]
    features = np.c_[x.reshape(200, -1), np.ones(200)].astype(np.float64)
    peer = Ridge(alpha=phases.RIDGE, fit_intercept=False).fit(features, np.eye(10)[y])
    ours = phases.fit_linear(x, y, 10)
    assert ours == pytest.approx(peer.coef_.T, abs=1e-8)
    assert (phases.predict_linear(ours, x) == (features @ peer.coef_.T).argmax(axis=1)).all()


def test_votes_of_many_are_better_than_one_of_them_alone(sketch: Sketch) -> None:
    ballot = take_vote(sketch, replace(THESIS, sigma=0.0, instructors=100))
    assert ballot.alone < 0.6 < 0.8 < ballot.right_without_noise


# ---- Phase I -------------------------------------------------------------------------------------------------------


def test_phase_one_has_the_ledgers_epsilon(sketch: Sketch) -> None:
    result, ledger = noise_images(sketch, THESIS), t1_pixel_noise().measured
    assert result.mnist.epsilon == pytest.approx(ledger["epsilon"])
    assert result.sensitivity_needed == pytest.approx(ledger["sensitivity_needed"])
    assert result.guarantee.epsilon == image_guarantee((1, 8, 8), 0.6, 1e-5).epsilon
    assert math.isinf(result.guarantee.label_epsilon)
    assert result.resized.epsilon == image_guarantee((3, 256, 256), 0.6, 1e-5).epsilon
    at = phases.SIGMAS.index(1.0)
    assert result.curves["28 x 28 pixels, MNIST"][at] == image_guarantee((1, 28, 28), 1.0, 1e-5).epsilon


def test_averaging_copies_leaves_their_share_of_the_noise(sketch: Sketch) -> None:
    result = noise_images(sketch, THESIS)
    clean, noised, averaged = result.shown
    assert result.copies == 3 * 256 * 256 / 64
    assert (averaged - clean) * math.sqrt(result.copies) == pytest.approx(noised - clean, abs=1e-4)


def test_words_without_noise_promise_nothing(sketch: Sketch) -> None:
    words = phases_words.pixels_in_words(noise_images(sketch, replace(THESIS, sigma=0.0)))
    assert "no guarantee" in words
    assert "ε =" not in words
    assert "inf" not in re.sub("<[^>]+>", "", words).split("statistics")[0]


# ---- Phase II ------------------------------------------------------------------------------------------------------


def test_unanimous_label_survives_as_the_ledger_says(sketch: Sketch) -> None:
    ledger = t13_noisy_votes().measured["right_at_scale_2_over_epsilon"]
    assert take_vote(sketch, THESIS).unanimous == pytest.approx(ledger, abs=1e-6)


@pytest.mark.parametrize("vote", ["laplace", "gaussian", "confident"])
@pytest.mark.parametrize("voters", [1, 10, 100])
def test_curve_of_survival_is_the_exact_chance(sketch: Sketch, vote: str, voters: int) -> None:
    result = take_vote(sketch, replace(THESIS, vote=vote, instructors=voters))
    for place in (0, 13, 20, 27, 40):
        aggregator = Aggregator.for_epsilon(vote, phases.VOTE_EPSILONS[place], 1e-5, voters)
        exact = label_probabilities([voters] + [0] * 9, aggregator)[0]
        assert result.curves[voters][place] == pytest.approx(exact, abs=0.005)


@pytest.mark.parametrize("vote", ["laplace", "gaussian"])
def test_shares_of_a_draw_are_near_the_chances(sketch: Sketch, vote: str) -> None:
    settings = replace(CLEAR, vote=vote, vote_epsilon=0.5, instructors=5)
    counts = sketch.counts(settings)
    rows, times = np.unique(counts, axis=0, return_counts=True)
    chances = [label_probabilities(row, settings.aggregator())[row.argmax()] for row in rows]
    drawn = np.mean([take_vote(sketch, settings, draw=draw).majority for draw in range(20)])
    assert drawn == pytest.approx(np.average(chances, weights=times), abs=0.02)


@pytest.mark.parametrize(("vote", "spread"), [("laplace", math.sqrt(2)), ("gaussian", 1.0), ("confident", 1.0)])
def test_noise_that_is_shown_is_that_of_the_vote(sketch: Sketch, vote: str, spread: float) -> None:
    results = [take_vote(sketch, replace(THESIS, vote=vote), draw=draw) for draw in range(150)]
    noise = np.array([result.noisy - result.counts for result in results])
    assert noise.std() == pytest.approx(spread * results[0].aggregator.noise, rel=0.1)
    assert len({result.noisy[0] for result in results}) == len(results)


def test_confident_vote_answers_as_often_as_it_says(sketch: Sketch) -> None:
    settings = replace(CLEAR, vote="confident", vote_epsilon=2.0)
    chances = [take_vote(sketch, settings, image).answer for image in range(0, sketch.public, 5)]
    answered = [take_vote(sketch, settings, draw=draw).answered for draw in range(10)]
    assert np.mean(answered) / sketch.public == pytest.approx(np.mean(chances), abs=0.05)
    assert take_vote(sketch, replace(settings, vote="gaussian")).answer == 1


def test_parts_cost_what_the_ledger_says() -> None:
    cost, ledger = split_training(10, 250, 10, 1.1, 1e-5).cost, t9_ten_instructors().measured
    assert cost.together == pytest.approx(ledger["epsilon_with_many"])
    assert cost.one == pytest.approx(ledger["epsilon_with_one"])
    assert cost.claimed < cost.one < cost.together == cost.each


def test_more_parts_cost_more() -> None:
    partition = split_training(7, 250, 10, 1.1, 1e-5)
    together = [cost.together for cost in partition.costs.values()]
    assert 7 in partition.costs
    assert together == sorted(together)


# ---- Phase III -----------------------------------------------------------------------------------------------------


def test_labels_cost_their_composed_epsilon_whatever_the_pixels(sketch: Sketch) -> None:
    noised, clear = spend_labels(sketch, THESIS), spend_labels(sketch, replace(THESIS, sigma=0.0))
    assert noised.account.epsilon == clear.account.epsilon == pytest.approx(31.73, abs=0.01)
    assert noised.account.composed["plain sum"] == pytest.approx(basic_composition([(0.2, 0.0)] * 540).epsilon)
    assert noised.accountant == "Renyi DP"
    place = phases.LABEL_COUNTS.index(9000)
    assert noised.composed["plain sum"][place] == pytest.approx(1800)
    assert noised.composed["zCDP"][place] == pytest.approx(271, abs=1)
    assert clear.accuracy[clear.here] > noised.accuracy[noised.here] + 0.1


def test_data_dependent_epsilon_is_lower_where_voters_agree_and_never_released(sketch: Sketch) -> None:
    bill = spend_labels(sketch, replace(CLEAR, vote_epsilon=1.0))
    assert bill.account.data_dependent_epsilon < bill.account.epsilon
    assert f"{bill.account.data_dependent_epsilon:.4g} would do" in phases_words.labels_in_words(bill)
    assert "not releasable" in phases_words.labels_in_words(bill)


def test_share_of_true_labels_is_that_of_the_labels_drawn(sketch: Sketch) -> None:
    settings = replace(CLEAR, labels=100)
    bill, truth = spend_labels(sketch, settings), sketch.images.test_labels[:100]
    drawn = [(sketch.labels(settings, draw)[:100] == truth).mean() for draw in range(phases.DRAWS)]
    assert bill.right[bill.here] == pytest.approx(np.mean(drawn))
    assert bill.low[bill.here] < bill.accuracy[bill.here] < bill.high[bill.here]


def test_understudy_of_many_instructors_learns_through_the_noise(sketch: Sketch) -> None:
    bill = spend_labels(sketch, replace(CLEAR, instructors=100))
    assert bill.accuracy[-1] > 0.8
    assert bill.accuracy[-1] > bill.accuracy[0] + 0.3


def test_without_any_answer_there_is_an_understudy_all_the_same(sketch: Sketch) -> None:
    bill = spend_labels(sketch, replace(THESIS, vote="confident", vote_epsilon=100.0, labels=1))
    assert bill.spent == 1
    assert 0 <= bill.accuracy[0] <= 1


@pytest.mark.parametrize(
    ("compute", "says"),
    [
        (lambda s: take_vote(s, replace(THESIS, instructors=200)), "200 instructors cannot all see the rarest digit"),
        (lambda s: take_vote(s, THESIS, image=540), "there is no public image 540: choose 0 to 539"),
        (lambda s: take_vote(s, THESIS, draw=-1), "the number of the draw is -1"),
        (lambda s: take_vote(s, replace(THESIS, vote="hard")), "a hard vote has no noise"),
        (lambda s: spend_labels(s, replace(THESIS, labels=541)), "541 labels, but there are 540 public images"),
        (lambda s: split_training(1000, 250, 10, 1.1, 1e-5), "parts no smaller than a batch"),
        (lambda s: phases_panels.vote_panel(s, replace(THESIS, vote="hard")), "a hard vote has no noise to look at"),
    ],
)
def test_bad_input_is_one_sentence(sketch: Sketch, compute: Callable[[Sketch], Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        compute(sketch)


# ---- Commands ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [THESIS, replace(CLEAR, vote="gaussian", labels=100, delta=1e-6, seed=3, understudy_method="dp-adam")],
)
def test_command_makes_this_very_run(settings: ThreePhaseSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    class CallError(Exception):
        pass

    def run(settings: ThreePhaseSettings, images: Any, listener: Any) -> None:
        raise CallError(settings, images.name)

    monkeypatch.setattr(pipeline, "run_three_phase", run)
    words = shlex.split(phases_words.command(settings, phases=(1, 2)))
    assert words[0] == "edp-lab"
    result = CliRunner().invoke(app, words[1:])
    assert isinstance(result.exception, CallError), result.output
    assert result.exception.args == (replace(settings, phases=(1, 2)), "digits")


def test_command_for_parts_gives_the_epsilon_of_one_of_them() -> None:
    partition = split_training(20, 150, 5, 0.9, 1e-6)
    words = shlex.split(phases_words.account_command(partition))
    result = CliRunner().invoke(app, [*words[1:], "--json"])
    assert result.exit_code == 0, result.output
    assert f"{partition.cost.each:.4g}" in {f"{v:.4g}" for v in numbers(json.loads(result.output))}


def numbers(found: Any) -> Iterator[float]:
    """Every number in JSON."""
    if isinstance(found, dict | list):
        for value in found.values() if isinstance(found, dict) else found:
            yield from numbers(value)
    elif isinstance(found, float):
        yield found


# ---- Figures -------------------------------------------------------------------------------------------------------

OTHER = replace(CLEAR, vote="gaussian", vote_epsilon=3.0, instructors=100, labels=77, delta=1e-6)
Pair = tuple[Callable[..., go.Figure], Callable[..., None], Callable[[Sketch, ThreePhaseSettings], Any]]
PAIRS: list[Pair] = [
    (phases_figures.images_figure, phases_figures.update_images, noise_images),
    (phases_figures.epsilon_figure, phases_figures.update_epsilon, noise_images),
    (phases_figures.ballot_figure, phases_figures.update_ballot, take_vote),
    (phases_figures.survival_figure, phases_figures.update_survival, take_vote),
    (phases_figures.bill_figure, phases_figures.update_bill, spend_labels),
    (phases_figures.learnt_figure, phases_figures.update_learnt, spend_labels),
    (
        phases_figures.partition_figure,
        phases_figures.update_partition,
        lambda sketch, settings: split_training(settings.instructors, 250, 10, 1.1, settings.delta),
    ),
]
each_figure = pytest.mark.parametrize(("draw", "update", "compute"), PAIRS, ids=[pair[0].__name__ for pair in PAIRS])


@each_figure
@pytest.mark.parametrize(("before", "after"), [(THESIS, OTHER), (OTHER, THESIS)])
def test_updated_figure_is_the_one_drawn_anew(
    sketch: Sketch, draw: Any, update: Any, compute: Any, before: ThreePhaseSettings, after: ThreePhaseSettings
) -> None:
    figure = draw(compute(sketch, before))
    update(figure, compute(sketch, after))
    assert figure.to_json() == draw(compute(sketch, after)).to_json()


@each_figure
def test_figure_has_units_a_caption_and_lines_that_differ_without_colour(
    sketch: Sketch, draw: Any, update: Any, compute: Any
) -> None:
    figure = draw(compute(sketch, THESIS))
    shown = [t for t in figure.data if t.showlegend is not False and t.type == "scatter" and t.visible is not False]
    looks = {(t.line.dash, t.line.width, t.marker.symbol, t.mode) for t in shown}
    assert len(looks) == len(shown)
    axes = [axis for axis in [*figure.select_xaxes(), *figure.select_yaxes()] if axis.showticklabels is not False]
    assert sum(not axis.title.text for axis in axes) == (draw is phases_figures.images_figure)  # its rows have names
    assert "seed 0" in figure.layout.title.subtitle.text or "δ = 1e-05" in figure.layout.title.subtitle.text


def test_histogram_of_votes_counts_every_public_image(sketch: Sketch) -> None:
    ballot = take_vote(sketch, THESIS)
    bars = phases_figures.survival_figure(ballot).data[-1]
    strongest = sketch.counts(THESIS).max(axis=1)
    assert dict(zip(bars.x, bars.y, strict=True)) == {k: int((strongest == k).sum()) for k in range(11)}


def test_drawing_of_the_phases_says_what_each_guarantees(sketch: Sketch) -> None:
    drawing = phases_figures.architecture(noise_images(sketch, THESIS), spend_labels(sketch, THESIS))
    for text in ("ε = 144.9 (exact Gaussian)", "Label: no guarantee", "ε = 31.7", "Rényi DP", "instructors: 10"):
        assert text in drawing
    assert "<style" not in drawing  # it would reach the figures of the page
    silent = replace(THESIS, sigma=0.0)
    assert "Image: no guarantee" in phases_figures.architecture(
        noise_images(sketch, silent), spend_labels(sketch, silent)
    )
