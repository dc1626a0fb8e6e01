"""Training of image classifiers: releases, guarantees, accuracy and refusals."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from edp_lab.corpora.images import Images, load_images
from edp_lab.errors import UsageError
from edp_lab.models.image import ImageBatch, build_classifier
from edp_lab.privacy.csprng import key_from_seed
from edp_lab.three_phase import classifier
from edp_lab.three_phase.classifier import (
    RULES,
    Trained,
    as_printed,
    by_norm,
    by_value,
    calibrated_noise,
    normalising,
    train_classifier,
)
from edp_lab.three_phase.settings import DEFAULTS, PRIVATE_METHODS, ClassifierSettings
from edp_lab.training.batches import Batches


@cache
def digits() -> Images:
    return load_images("digits")


def train(settings: ClassifierSettings, examples: int | None = None) -> Trained:
    data = digits()
    return train_classifier(settings, data.train[:examples], data.train_labels[:examples], data.test, data.test_labels)


@pytest.fixture
def noise_multiplier(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A function that sets the noise multiplier of later networks, regardless of their epsilon."""
    return lambda z0: monkeypatch.setattr(classifier, "calibrated_noise", lambda *_: z0)


def flat(trained: Trained) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trained.model.parameters()])


DP_SGD = ClassifierSettings(method="dp-sgd", lr=1.0, epochs=1)


def one_step(**changes: float) -> Trained:
    """One step on all examples; the change of the weights is the released gradient."""
    return train(replace(DP_SGD, batch_size=200, **changes), examples=200)


@pytest.mark.parametrize("changes", [{"clip_norm": 0.3}, {"epsilon": 5.0}])
def test_the_noise_that_is_added_has_the_standard_deviation_that_is_judged(changes, noise_multiplier):
    noised = one_step(**changes)
    noise_multiplier(0.0)
    silent = one_step(**changes)
    noise = (flat(silent) - flat(noised)).double().numpy()
    mechanism = noised.record["mechanism"]
    judged = mechanism["z0"] * mechanism["clip_norm"] / 200
    assert noised.record["noise_std"] == pytest.approx(judged)
    assert np.std(noise) == pytest.approx(judged, rel=0.03)
    assert stats.kstest(noise / judged, "norm").pvalue > 1e-3


def test_a_step_is_the_sum_of_clipped_gradients_over_the_expected_batch(noise_multiplier):
    """The key draws the examples, which plain autograd processes singly; other examples' labels have no effect."""
    noise_multiplier(0.0)
    settings = replace(DP_SGD, batch_size=100, clip_norm=0.7, weight_decay=0.2, seed=5)
    data = digits()
    x, y = data.train[:150], data.train_labels[:150]
    after = train(settings, 150).model
    model = build_classifier("cnn", x.shape[1:], 10, seed=5, activation="tanh")
    batches = Batches(key_from_seed(5), 150, 100, 1, 100, "poisson", per_example=True)
    for step in range(batches.steps_per_epoch):
        drawn = np.concatenate(batches.devices(0, step, step)[0])
        assert len(drawn) != 100
        total = [torch.zeros_like(p) for p in model.parameters()]
        for k in drawn:
            example = ImageBatch(torch.from_numpy(x[[k]]), torch.from_numpy(y[[k]]))
            gradients = torch.autograd.grad(model.losses(example).sum(), list(model.parameters()))
            norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
            for own, g in zip(total, gradients, strict=True):
                own += g * min(1.0, 0.7 / norm)
        with torch.no_grad():
            for p, own in zip(model.parameters(), total, strict=True):
                rate = 1 - step / batches.steps_per_epoch
                p -= rate * (0.2 * p + own / 100)
    for p, expected in zip(after.parameters(), model.parameters(), strict=True):
        assert torch.allclose(p, expected, atol=1e-4)


def test_steps_that_draw_nobody_or_one_add_noise_all_the_same(noise_multiplier):
    noise_multiplier(1.0)
    trained = train(replace(DP_SGD, epochs=10, batch_size=1), 4)
    batches = Batches(key_from_seed(0), 4, 1, 1, 1, "poisson", per_example=True)
    assert {0, 1} < {len(batches.devices(0, 0, step)[0]) for step in range(40)}
    assert trained.record["steps"] == 40
    start = build_classifier("cnn", (1, 8, 8), 10, activation="tanh")
    moved = flat(trained) - torch.cat([p.detach().flatten() for p in start.parameters()])
    rates = torch.tensor([1 - step / 40 for step in range(40)])
    assert float(moved.std()) == pytest.approx(trained.record["noise_std"] * float(rates.norm()), rel=0.1)


def test_a_run_is_a_function_of_its_seed_and_a_private_one_is_not():
    short = ClassifierSettings(method="dp-adam", epochs=1, batch_size=50)
    first, again, other = (flat(train(replace(short, seed=seed), 100)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    hidden = [train(replace(short, private_seed=True), 100) for _ in range(2)]
    assert not torch.equal(flat(hidden[0]), flat(hidden[1]))
    assert hidden[0].guarantee.status == "holds"
    assert "key" not in json.dumps(hidden[0].record)


@pytest.mark.parametrize(("rate", "epochs", "epsilon"), [(0.25, 10, 1.0), (0.05, 3, 7.0), (1.0, 5, 0.1)])
def test_calibrated_noise_spends_epsilon_and_no_more_by_another_accountant(rate: float, epochs: int, epsilon: float):
    z0 = calibrated_noise(1.0, rate, epochs, epsilon, 1e-5)
    steps = epochs * math.ceil(1 / rate)

    def spent(noise: float) -> float:
        event = PoissonSampledDpEvent(rate, GaussianDpEvent(noise))
        peer = PLDAccountant(value_discretization_interval=1e-4 * epsilon)
        return float(peer.compose(SelfComposedDpEvent(event, steps)).get_epsilon(1e-5))

    assert spent(z0) <= epsilon * 1.001
    assert spent(z0 * 0.99) > epsilon


def test_the_guarantee_is_of_the_steps_that_were_taken_and_void_with_a_published_seed_or_without_noise(
    noise_multiplier,
):
    trained = train(ClassifierSettings(method="dp-adam", epsilon=3.0, epochs=2))
    guarantee, record = trained.guarantee, trained.record
    assert guarantee.status == "void: seed published"
    assert 2.98 < guarantee.conditional_epsilon <= 3.0
    assert record["steps"] == 2 * math.ceil(1 / record["sampling_rate"])
    event = PoissonSampledDpEvent(record["sampling_rate"], GaussianDpEvent(record["mechanism"]["z0"]))
    peer = PLDAccountant().compose(SelfComposedDpEvent(event, record["steps"]))
    assert float(peer.get_epsilon(1e-5)) <= 3.0 * 1.0001
    assert train(ClassifierSettings(epochs=1), 50).guarantee.status == "none"
    noise_multiplier(0.0)
    silent = train(ClassifierSettings(method="dp-adam", epochs=1), 50)
    assert (silent.guarantee.status, silent.guarantee.conditional_epsilon) == ("none", None)


def test_the_record_can_be_written_and_holds_what_the_thesis_leaves_out():
    record = json.loads(json.dumps(train(ClassifierSettings(method="dp-adam", epochs=1)).record))
    assert record["epsilon"] == 7.0
    needed = ("delta", "clip_norm", "sampling_rate", "steps", "epochs", "lr", "seed", "batch_size", "noise_std")
    assert all(record[name] is not None for name in needed)
    assert record["guarantee"]["method"]
    assert record["versions"]["torch"]
    assert record["rows"][0].keys() == {"epoch", "loss", "test_loss", "accuracy", "seconds"}


@pytest.mark.parametrize("method", DEFAULTS)
def test_every_method_learns_the_digits(method: str):
    trained = train(
        ClassifierSettings(method=method, **({"epsilon": 8.0, "epochs": 30} if method in PRIVATE_METHODS else {}))
    )
    assert trained.rows[-1]["accuracy"] > (0.8 if method in PRIVATE_METHODS else 0.92), trained.rows[-1]


@pytest.mark.parametrize("model", ["mlp", *(pytest.param(name, marks=pytest.mark.long) for name in ("alexnet", "vgg"))])
def test_the_other_networks_learn_the_digits(model: str):
    trained = train(ClassifierSettings(model=model, activation="relu"))
    assert trained.rows[-1]["accuracy"] > 0.85, trained.rows[-1]


def test_rows_are_told_epoch_by_epoch_and_score_the_test_examples():
    data, told = digits(), []
    settings = ClassifierSettings(epochs=3)
    trained = train_classifier(settings, data.train, data.train_labels, data.test, data.test_labels, told.append)
    assert told == trained.rows
    assert [row["epoch"] for row in told] == [1, 2, 3]
    assert told[-1]["loss"] < told[0]["loss"]
    assert trained.rows[-1]["accuracy"] == (trained.model.predict(data.test) == data.test_labels).mean()
    p = np.exp(trained.model.log_probabilities(data.test))[range(len(data.test)), data.test_labels]
    assert told[-1]["test_loss"] == pytest.approx(-np.log(p).mean(), rel=1e-4)


def test_defaults_take_smaller_batches_of_small_data_and_what_is_given_stays():
    private = ClassifierSettings(method="dp-adam").resolved(100)
    assert private.batch_size == 25
    assert ClassifierSettings(method="dp-adam").resolved(60_000).batch_size == DEFAULTS["dp-adam"]["batch_size"]
    given = ClassifierSettings(method="dp-adam", batch_size=90, lr=7.0).resolved(100)
    assert (given.batch_size, given.lr) == (90, 7.0)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"method": "adam", "epsilon": 1.0}, "adds no noise"),
        ({"method": "adam", "clip_norm": 1.0}, "adds no noise"),
        ({"method": "dp-adam", "epsilon": 0.0}, "target epsilon is 0.0"),
        ({"method": "dp-adam", "delta": 0.0}, "delta"),
        ({"batch_size": 2.5}, "batch_size is 2.5"),
        ({"method": "dp-adam", "clip_norm": 0.0, "epsilon": 2.0}, "clip norm C is 0.0: it must be greater than 0"),
        ({"batch_size": 1198}, r"batch size 1198 exceeds the number of training examples \(1197\)"),
        ({"method": "sgd", "lr": 1e38, "activation": "relu"}, "the loss is not finite: lower the learning rate"),
    ],
)
def test_impossible_settings_are_refused(changes, problem: str):
    with pytest.raises(UsageError, match=problem):
        train(ClassifierSettings(**changes))


# ---- Each way to bound a gradient has the stated sensitivity, and no smaller one -------------------------------------


PRIVATE = ("by norm", "by value", "normalising")
SIZE = 7


@st.composite
def gradients(draw: st.DrawFn) -> torch.Tensor:
    """Gradients (3, 7) with any norm from 0 to 1e300, whose squares underflow and overflow."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    lengths = draw(st.lists(st.sampled_from([0.0, 5e-324, 1e-300, 1e-9, 0.3, 1.0, 5.0, 1e300]), min_size=3, max_size=3))
    return (
        torch.randn(3, SIZE, dtype=torch.float64, generator=generator)
        * torch.tensor(lengths, dtype=torch.float64)[:, None]
    )


@pytest.mark.parametrize("name", PRIVATE)
@given(rows=gradients(), threshold=st.sampled_from([1e-3, 1.0, 40.0]))
def test_no_example_moves_the_sum_by_more_than_the_sensitivity(name: str, rows: torch.Tensor, threshold: float):
    rule = RULES[name]
    moved = rule.clip(rows, threshold).sum(0) - rule.clip(rows[1:], threshold).sum(0)
    assert float(moved.norm()) <= rule.sensitivity(threshold, SIZE) * (1 + 1e-9)


@pytest.mark.parametrize("name", PRIVATE)
def test_the_sensitivity_is_reached(name: str):
    clipped = RULES[name].clip(torch.full((1, SIZE), 100.0), 2.0)
    assert float(clipped.norm()) == pytest.approx(RULES[name].sensitivity(2.0, SIZE), rel=1e-6)


def test_rules_by_hand_of_which_the_printed_one_bounds_nothing_and_enlarges_the_small():
    rows = torch.tensor([[3.0, -4.0], [0.3, 0.4], [0.0, 0.0]])
    assert by_norm(rows, 1.0).tolist() == [pytest.approx([0.6, -0.8]), pytest.approx([0.3, 0.4]), [0.0, 0.0]]
    assert by_value(rows, 1.0).tolist() == [[1.0, -1.0], pytest.approx([0.3, 0.4]), [0.0, 0.0]]
    assert normalising(rows, 1.0).tolist() == [pytest.approx([0.6, -0.8]), pytest.approx([0.6, 0.8]), [0.0, 0.0]]
    assert by_norm(rows, 1.0).dtype == torch.float32
    rows = torch.tensor([[3e5, 4e5], [0.3, 0.4], [0.0, 0.0]])
    assert as_printed(rows, 1.0).tolist() == [[3e5, 4e5], pytest.approx([0.6, 0.8]), [0.0, 0.0]]
    assert RULES["as printed"].sensitivity(1.0, 2) == math.inf


@pytest.mark.parametrize("name", RULES)
def test_what_cannot_be_clipped_is_refused(name: str):
    for bad in (math.nan, math.inf):
        with pytest.raises(UsageError, match="a gradient is not finite"):
            RULES[name].clip(torch.tensor([[1.0, bad]]), 1.0)
    for threshold in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(UsageError, match="the clip threshold is"):
            RULES[name].clip(torch.ones(1, 2), threshold)
