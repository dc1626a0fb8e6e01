"""Notebook 02: panels agree with clipping, noise and accountants, and common mistakes are recognised. The contract of
all panels is in `test_contract`."""

import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from edp_lab.course.kit.text import at_most, short
from edp_lab.course.nb02_dp_sgd import panels
from edp_lab.course.nb02_dp_sgd.panels import CLIPS, DELTA, clip_batch, per_example, train
from edp_lab.privacy import Mechanism, gdp_epsilon, judge, releases_by_epoch
from edp_lab.privacy.csprng import Purpose, key_from_seed, stream
from edp_lab.three_phase.classifier import as_printed, by_norm, by_value, normalising
from edp_lab.training.batches import Batches
from edp_lab.training.config import TrainConfig
from edp_lab.training.dp_step import release
from edp_lab.training.gradients import Layout, StackedGradients, headroom
from edp_lab.training.noise import float_noise
from tests.course.conftest import answer, prose
from tests.course.examples import Wrong

pytestmark = pytest.mark.usefixtures("one_thread")
PLAIN = TrainConfig("smart-home", method="sgd", size="small", lr=0.02)
BASE: dict[str, Any] = {
    "clip_norm": 1.0, "z": 2.0, "batch_size": 20, "lr": 1.0, "sampling": "poisson", "seed": 0
}  # fmt: skip


def trained(**change: Any) -> panels.Training:
    return train(**{**BASE, **change})


def test_book_keeping_gives_the_norms_of_a_loop_and_of_every_cut_of_the_batch() -> None:
    found = per_example(PLAIN, epochs=0)
    assert found.disagreement < 1e-5
    assert {size: len(norms) for size, norms in found.norms.items()} == {1: 64, 4: 16, 16: 4, 64: 1}
    longest = [norms.max() for norms in found.norms.values()]
    assert longest == sorted(longest, reverse=True)  # a mean is at most as long as its longest part
    assert found.seconds[panels.LOOP] > found.seconds[panels.BOOKS]


def test_a_cloud_clipped_by_norm_is_what_the_private_step_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edp_lab.training.dp_step.headroom", lambda *steps: 0.0)  # headroom clips by 2^-11 more
    result = clip_batch(0.7, 1.3, 40, 0.2, "by norm", seed=3)
    layout = Layout(("w",), (slice(0, 2),))
    noise = float_noise(key_from_seed(3), 0, 2, dtype=torch.float64)
    rows, mechanism = [StackedGradients(torch.from_numpy(result.gradients), layout)], Mechanism.sound(0.7, 1.3, 1, 1)
    released = release(mechanism, 0, rows, layout, None, noise, divisor=40)
    assert result.released == pytest.approx(released.gradient.numpy(), rel=1e-4)
    assert result.noise_std == pytest.approx(mechanism.noise_std(0) / 40)


@pytest.mark.parametrize("rule", ["by norm", "by value", "normalising"])
def test_curves_are_the_clouds_of_other_thresholds(rule: str) -> None:
    result = clip_batch(1.0, 2.0, 60, 0.1, rule, seed=0)
    for place in (0, 20, 39):
        other = clip_batch(float(CLIPS[place]), 2.0, 60, 0.1, rule, seed=0)
        assert result.biases[place] == pytest.approx(other.bias)
        assert result.noises[place] == pytest.approx(math.sqrt(2) * other.noise_std)


def test_numbers_that_the_notebook_states_are_what_its_panels_show() -> None:
    few, many = (clip_batch(1.0, 2.0, size, 0.1, "by norm", seed=0) for size in (10, 1000))
    best = [short(CLIPS[np.hypot(cloud.biases, cloud.noises).argmin()]) for cloud in (few, many)]
    off = [panels.tell_cloud(cloud)[0].value for cloud in (many, few)]
    ends = [trained(**to).losses[of][-1] for to, of in ((TIGHT, "clipped"), (TIGHT, "private"), (LOUD, "private"))]
    large = trained(**LOUD, batch_size=400)
    epsilons = [at_most(run.guarantee.conditional_epsilon) for run in (trained(**LOUD), large)]
    for says in (
        "from {} to {}".format(*best),
        "{} instead of {}".format(*off),
        "a loss of {:.3f} ({:.3f} with noise). At z = 20, the noise dominates (loss {:.2f})".format(*ends),
        f"(loss {large.losses['private'][-1]:.3f})",
        "from {} to {}".format(*epsilons),
    ):
        assert says in " ".join(prose("02").split())


TIGHT, LOUD = {"clip_norm": 0.1}, {"z": 20.0}


def test_without_noise_and_with_a_loose_clip_all_walkers_go_the_same_way() -> None:
    silent = trained(z=0.0)
    assert (silent.paths["private"] == silent.paths["clipped"]).all()
    assert silent.guarantee.conditional_epsilon is silent.billed.conditional_epsilon is None
    loose = trained(clip_norm=1000.0)
    assert loose.paths["clipped"] == pytest.approx(loose.paths["plain"], abs=1e-3)


def test_first_step_of_sgd_is_the_learning_rate_times_what_is_released() -> None:
    result = trained(lr=0.5, seed=4)
    draw = float_noise(key_from_seed(4), 0, 2, dtype=torch.float64).numpy()
    assert result.paths["private"][1] - result.paths["clipped"][1] == pytest.approx(-0.5 * 2.0 / 20 * draw)
    assert (result.paths["private"][0] == panels.START).all()


def test_loss_is_the_cross_entropy_of_all_people() -> None:
    weights = np.array([[0.3, -1.0], [1.0, 2.0]])
    people, labels = panels.people()
    for row, loss in zip(weights, panels.loss(weights), strict=True):
        assert loss == pytest.approx(F.binary_cross_entropy_with_logits(people @ torch.from_numpy(row), labels).item())
    assert panels.loss(panels.TRUTH) < 0.5 < panels.loss(panels.START)


def test_shuffled_batches_cost_one_release_for_each_pass() -> None:
    for batch_size, passes in ((10, 1), (40, 3), (400, 30)):
        result = trained(sampling="shuffle", batch_size=batch_size)
        assert result.passes == passes
        assert result.guarantee.conditional_epsilon == pytest.approx(gdp_epsilon(math.sqrt(passes) / 2.0, DELTA))
    sampled = trained(batch_size=40)
    assert (
        sampled.guarantee.conditional_epsilon
        == sampled.billed.conditional_epsilon
        < result.guarantee.conditional_epsilon
    )
    assert trained(sampling="shuffle", batch_size=40).billed == sampled.billed


SEEDS = pytest.mark.parametrize("seed", range(3))


def solution(name: str) -> Any:
    return answer("02", name, "solution")


@SEEDS
def test_the_solutions_step_is_the_librarys_on_the_same_noise(seed: int) -> None:
    """The library clips by `headroom` more, so it gets a correspondingly larger C, and the same noise."""
    drawn, c, z, lr, start = (
        Batches(seed, panels.PEOPLE, 20, 1, 1, "poisson", False),
        0.7,
        1.3,
        0.5,
        torch.ones(2).double(),
    )
    part = solution("sample")(panels.PEOPLE, 20 / panels.PEOPLE, stream(seed, Purpose.SAMPLE, 0))
    assert part.tolist() == drawn.devices(0, 0, 0)[0][0].tolist()
    features, labels = (column[part] for column in panels.people())
    noise = float_noise(key_from_seed(seed), 0, 2, dtype=torch.float64)
    clipped = solution("clip")(start, features, labels, c)
    mine = solution("step")(start, clipped, c, z, 20, lr, noise)

    score = features @ start.requires_grad_()
    losses = F.binary_cross_entropy_with_logits(score, labels, reduction="none")
    rows = [torch.autograd.grad(one, start, retain_graph=True)[0] for one in losses]
    room, layout = headroom(20), Layout(("w",), (slice(0, 2),))
    longer = Mechanism.sound(c / (1 - room), z * (1 - room), 1, 1)
    released = release(longer, 0, [StackedGradients(torch.stack(rows), layout)], layout, None, noise, divisor=20)
    assert mine.numpy() == pytest.approx((start - lr * released.gradient).detach().numpy(), abs=1e-6)


@SEEDS
def test_the_solutions_loop_follows_its_parts_and_its_account_is_no_less_than_the_librarys(seed: int) -> None:
    people, start = panels.people(), torch.from_numpy(panels.START)
    run = (1.0, 2.0, 20, 1.0, panels.STEPS, DELTA, np.random.default_rng(seed))
    weights, epsilon = solution("loop")(*people, start, *run)
    assert panels.loss(weights.numpy()) < 0.8 * panels.loss(panels.START)
    tight = trained(seed=seed).guarantee.conditional_epsilon
    assert tight is not None
    assert tight < epsilon < 1.3 * tight


SOLUTIONS = {name: solution(name) for name in ("clip", "sample", "step", "loop")}


def clipping(by: Callable[[Tensor, float], Tensor]) -> Callable[..., Tensor]:
    """An answer to the first exercise with a different clip."""
    return lambda weights, features, labels, C: by(panels.gradients(features, labels, weights), C)


def stepping(down: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An answer to the third exercise that subtracts lr * down(clipped gradients, noise on their sum, B)."""
    return lambda weights, g, C, z, B, lr, noise: weights - lr * down(g, z * C * noise, B)


def billing(bill: Callable[..., float]) -> Callable[..., Any]:
    """An answer to the fourth exercise with different accounting."""

    def train(features: Tensor, labels: Tensor, weights: Tensor, *rest: Any) -> Any:
        C, z, B, _, steps, delta, _ = rest
        return SOLUTIONS["loop"](features, labels, weights, *rest)[0], bill(C, z, B / len(features), steps, delta)

    return train


def judged(C: float, z: float, q: float, steps: int) -> Any:
    mechanism = Mechanism.sound(C, z, 1, 1, sampling_rate=q)
    return judge(mechanism, releases_by_epoch(mechanism, steps=steps), DELTA).conditional_epsilon


def account(z: float, q: float, steps: int, delta: float) -> float:
    return float(SOLUTIONS["loop"].__globals__["account"](z, q, steps, delta))


def sampling(batch: Callable[..., Any]) -> Callable[..., Any]:
    """The solution of the fourth exercise, with a different `poisson_batch`."""
    loop = SOLUTIONS["loop"]
    return FunctionType(loop.__code__, loop.__globals__ | {"poisson_batch": batch})


def without(part: str) -> Callable[..., Any]:
    """An answer to the fourth exercise that draws noise or batch once for all steps, or for "" skips empty batches."""

    def train(features: Tensor, labels: Tensor, weights: Tensor, *rest: Any) -> Any:
        C, z, B, lr, steps, delta, rng = rest
        once: dict[str, Any] = {}
        for _ in range(steps):
            batch = SOLUTIONS["sample"](len(features), B / len(features), rng)
            if not part and not len(batch):
                continue
            now = {"": None, "batch": batch, "noise": rng.standard_normal(2)}
            now[part] = once.setdefault(part, now[part])
            clipped = SOLUTIONS["clip"](weights, features[now["batch"]], labels[now["batch"]], C)
            weights = SOLUTIONS["step"](weights, clipped, C, z, B, lr, torch.from_numpy(now["noise"]))
        return weights, account(z, B / len(features), steps, delta)

    return train


WRONG: dict[str, dict[str, Any]] = {
    "clip": {
        "clips every coordinate": Wrong(clipping(by_value), "With C = "),
        "clips the mean": Wrong(clipping(lambda g, C: by_norm(g.mean(0, keepdim=True), C)[0]), "yours has shape ("),
        "lengthens short gradients, as Algorithm 8 of the thesis": Wrong(clipping(as_printed), "which exceeds C"),
        "makes all gradients equally long": Wrong(clipping(normalising), "needs no clipping"),
        "one factor for the whole batch": Wrong(
            clipping(lambda g, C: g * min(1.0, C / max(g.norm().item(), 1e-9))), "needs no clipping"
        ),
        "divides a row of zeros by its length": Wrong(
            clipping(lambda g, C: C * g / g.norm(dim=1, keepdim=True)), "norm 0) becomes nan"
        ),
        "label minus prediction": Wrong(clipping(lambda g, C: by_norm(-g, C)), "wrong sign"),
        "divides by B": Wrong(clipping(lambda g, C: by_norm(g / max(len(g), 1), C)), "Divide by B later"),
        "forgets the sigmoid": Wrong(lambda w, x, y, C: by_norm((x @ w - y)[:, None] * x, C), "apply the sigmoid"),
        "stacks nothing (crash)": lambda w, x, y, C: by_norm(
            torch.stack([panels.gradients(x[i : i + 1], y[i : i + 1], w)[0] for i in range(len(x))]), C
        ),
    },
    "sample": {
        "a batch of fixed size": Wrong(lambda n, q, rng: rng.choice(n, int(q * n), replace=False), "Poisson batch"),
        "with replacement": Wrong(lambda n, q, rng: rng.integers(0, n, rng.binomial(n, q)), "with replacement"),
        "a mask": Wrong(lambda n, q, rng: rng.random(n) < q, "returns a mask"),
        "one draw for everybody": Wrong(lambda n, q, rng: np.arange(n if rng.random() < q else 0), "independent draw"),
        "the others": Wrong(lambda n, q, rng: np.flatnonzero(rng.random(n) > q), "on average"),
        "counts from 1": Wrong(lambda n, q, rng: 1 + np.flatnonzero(rng.random(n) < q), "numbered from 0"),
        "a generator of its own": Wrong(
            lambda n, q, rng: np.flatnonzero(np.random.default_rng().random(n) < q), "from `rng`"
        ),
        "in pairs": Wrong(lambda n, q, rng: np.flatnonzero(np.repeat(rng.random(n // 2) < q, 2)), "independent draw"),
        "the first ones": Wrong(lambda n, q, rng: np.arange(rng.binomial(n, q)), "of the batches"),
    },
    "step": {
        "divides by those drawn": Wrong(
            stepping(lambda g, y, B: (g.sum(0) + y) / max(len(g), 1)), "reveals who takes part"
        ),
        "noise for every example": Wrong(stepping(lambda g, y, B: (g + y).sum(0) / B), "noise for each example"),
        "noise on the mean": Wrong(stepping(lambda g, y, B: g.sum(0) / B + y), "before the division"),
        "never divides": Wrong(stepping(lambda g, y, B: g.sum(0) + y), "does not divide"),
        "goes uphill": Wrong(stepping(lambda g, y, B: -(g.sum(0) + y) / B), "increases the loss"),
        "no noise": Wrong(stepping(lambda g, y, B: g.sum(0) / B), "no noise"),
        "forgets C": Wrong(lambda w, g, C, z, B, lr, y: w - lr * (g.sum(0) + z * y) / B, "ignores C"),
        "forgets the learning rate": Wrong(
            lambda w, g, C, z, B, lr, y: w - (g.sum(0) + z * C * y) / B, "learning rate"
        ),
        "changes the given weights": Wrong(lambda w, g, C, z, B, lr, y: w.sub_(lr * (g.sum(0) + z * C * y) / B), "-="),
        "skips an empty batch": Wrong(
            lambda w, g, C, z, B, lr, y: w - lr * (g.sum(0) + z * C * y) / B if len(g) else w, "empty batch needs noise"
        ),
    },
    "loop": {
        "the same noise in every step": Wrong(without("noise"), "The weights after 12 steps"),
        "the same batch in every step": Wrong(without("batch"), "The weights after 12 steps"),
        "takes everyone": Wrong(sampling(lambda n, q, rng: np.arange(n)), "poisson_batch: "),
        "skips empty batches": Wrong(without(""), "skips empty batches"),
        "returns the weights alone": Wrong(lambda *all: SOLUTIONS["loop"](*all)[0], "two values"),
        "bills without sampling": Wrong(billing(lambda C, z, q, steps, d: account(z, 1.0, steps, d)), "are sampled"),
        "bills one step": Wrong(billing(lambda C, z, q, steps, d: account(z, q, 1, d)), "of a single step"),
        "adds up ε": Wrong(billing(lambda C, z, q, steps, d: steps * account(z, q, 1, d)), "add up the log moments"),
        "bills z C": Wrong(billing(lambda C, z, q, steps, d: account(z * C, q, steps, d)), "uses z C"),
    },
}


def in_numpy(weights: Tensor, features: Tensor, labels: Tensor, C: float) -> Any:
    rows = panels.gradients(features, labels, weights).numpy()
    return rows / ((rows**2).sum(1, keepdims=True) ** 0.5 / C).clip(1)


RIGHT = {
    "clip": (in_numpy,),
    "sample": (
        lambda n, q, rng: [person for person in range(n) if rng.random() < q],
        lambda n, q, rng: rng.permutation(n)[: rng.binomial(n, q)],
    ),
    "loop": (
        billing(lambda C, z, q, steps, d: judged(C, z, q, steps)),
        sampling(lambda n, q, rng: rng.permutation(n)[: rng.binomial(n, q)]),
    ),
}
