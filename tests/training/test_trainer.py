"""Assignment of utterances to steps: none occurs twice, none is omitted, and none affects a neighbour's place."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from edp_lab.corpora.catalog import load_corpus
from edp_lab.corpora.corpus import split
from edp_lab.errors import UsageError
from edp_lab.training.batches import Batches, Devices
from edp_lab.training.build import make_optimizer
from edp_lab.training.config import TrainConfig
from edp_lab.training.trainer import Trainer
from tests.training.own_corpus import config, write_encoder

KEY = 2**90 + 7
SHUFFLED = Batches(KEY, 103, 20, 4, 4, "shuffle", per_example=False)
POISSON = Batches(KEY, 400, 32, 4, 8, "poisson", per_example=False)
ALONE = Batches(KEY, 400, 32, 4, 32, "poisson", per_example=True)
SECRET = [replace(one, secret=True) for one in (POISSON, ALONE)]


def everyone(devices: Devices) -> list[int]:
    return [int(k) for device in devices for part in device for k in part]


def places(devices: Devices) -> dict[int, tuple[int, int]]:
    """Device and micro-batch of each utterance."""
    return {int(k): (i, m) for i, device in enumerate(devices) for m, part in enumerate(device) for k in part}


@given(st.integers(1, 200), st.integers(1, 50), st.integers(1, 8), st.integers(1, 8))
def test_a_shuffled_epoch_meets_every_utterance_once_in_even_parts(examples, batch_size, devices, per_device):
    shape = (examples, batch_size, devices, devices * per_device, "shuffle")
    batches = Batches(KEY, *shape, per_example=False, secret=examples % 2 == 0)
    seen: list[int] = []
    for step in range(batches.steps_per_epoch):
        dealt = batches.devices(0, step, step)
        sizes = [len(part) for device in dealt for part in device]
        assert [len(device) for device in dealt] == [per_device] * devices
        assert max(sizes) - min(sizes) <= 1
        seen += everyone(dealt)
    assert sorted(seen) == list(range(examples))


def test_orders_differ_and_poisson_micro_batches_are_as_likely_as_one_another_or_alone():
    orders = [everyone(b.devices(e, 0, 0)) for b in (SHUFFLED, replace(SHUFFLED, key=KEY + 1)) for e in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    numbers = [i * 2 + m for step in range(1000) for i, m in places(POISSON.devices(0, 0, step)).values()]
    assert stats.chisquare(np.bincount(numbers, minlength=8)).pvalue > 1e-4
    assert {len(part) for step in range(200) for device in ALONE.devices(0, 0, step) for part in device} == {1}


@pytest.mark.parametrize("batches", [POISSON, ALONE, *SECRET])
def test_each_utterance_takes_part_with_the_chance_that_is_accounted_for(batches):
    steps, rate = 4000, 32 / 400
    counts, together = np.zeros(400), 0
    for step in range(steps):
        drawn = everyone(batches.devices(0, 0, step))
        assert len(set(drawn)) == len(drawn)
        counts[drawn] += 1
        together += {0, 399} <= set(drawn)
    squares = ((counts - steps * rate) ** 2).sum() / (steps * rate * (1 - rate))
    assert 1e-4 < stats.chi2.cdf(squares, 400) < 1 - 1e-4
    assert stats.binomtest(together, steps, rate**2).pvalue > 1e-4  # independently


@pytest.mark.parametrize("batches", [POISSON, ALONE, *SECRET])
def test_one_utterance_more_moves_no_other(batches):
    """This is required for add/remove adjacency under Poisson sampling."""
    larger = replace(batches, examples=401, batch_size=32 * 401 / 400)  # type: ignore[arg-type]  # the same rate
    for step in range(100):
        few, many = batches.devices(0, 0, step), larger.devices(0, 0, step)
        with_it = {k: place for k, place in places(many).items() if k != 400}
        if batches.per_example:  # the micro-batch number is then only a position
            assert {k: i for k, (i, _) in with_it.items()} == {k: i for k, (i, _) in places(few).items()}
        else:
            assert with_it == places(few)


def test_a_poisson_epoch_has_the_steps_that_are_accounted_for_in_which_nobody_may_be_drawn():
    assert POISSON.steps_per_epoch == math.ceil(400 / 32)
    assert replace(POISSON, examples=20).steps_per_epoch == 1
    for one in (POISSON, *SECRET):
        assert sorted(everyone(replace(one, examples=20).devices(0, 0, 3))) == list(range(20))  # q = 1
    rare = Batches(KEY, 10, 1, 2, 2, "poisson", per_example=False)
    assert min(len(everyone(rare.devices(0, 0, step))) for step in range(50)) == 0


# Every method takes the step that its mechanism describes; settings that cannot be judged are refused at the start.


WORDS = ("play", "the", "song", "again", "please", "now")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """60 utterances of 2 to 7 words."""
    path, rng = tmp_path_factory.mktemp("corpus") / "own.jsonl", np.random.default_rng(0)
    texts = [[*rng.choice(WORDS, rng.integers(1, 7)).tolist(), str(k)] for k in range(60)]
    rows = [{"tokens": text, "tags": ["O"] * (len(text) - 1) + ["B-number"], "intent": text[0]} for text in texts]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_encoder(tmp_path_factory.mktemp("encoder"), [WORDS, [str(k) for k in range(10)]], layers=2)


def after(corpus: str, steps: int, **changes: object) -> torch.Tensor:
    """All parameters after several steps, shape (P)."""
    loaded = load_corpus(corpus)
    run = Trainer(config(corpus, lr=1e-3, **changes), loaded, split(loaded, 0))
    for _ in range(steps):
        run.step()
    return torch.cat([p.detach().flatten() for _, p in run.parameters])


@pytest.mark.parametrize("model", ["clc", "bert"])
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_dp_sgd_is_the_naive_loop_made_fast(corpus, encoder, model, precision):
    """Five Poisson steps with dropout and noise, in which only some utterances are clipped."""
    shared = {"model": model, "precision": precision, "z0": 0.01, "clip_norm": 3.0}
    shared |= {"pretrained": encoder} if model == "bert" else {}
    fast, naive = (after(corpus, 5, method=method, **shared) for method in ("dp-sgd", "dp-sgd-naive"))
    torch.testing.assert_close(fast, naive, rtol=0, atol=1e-10 if precision == "float64" else 2e-5)


def test_the_ladder_ends_at_dp_sgd_and_its_noise_grows_only_through_the_divisor(corpus):
    """With micro-batches of one utterance, eDP-SGD takes the same steps as DP-SGD, for any number of devices."""
    shared = {"precision": "float64", "sampling": "shuffle"}
    per_example = after(corpus, 3, method="dp-sgd", **shared)
    for devices in (1, 4):
        ladder = after(corpus, 3, micro_batch_size=1, num_devices=devices, **shared)
        torch.testing.assert_close(ladder, per_example, rtol=0, atol=1e-10)
    assert not torch.allclose(after(corpus, 3, micro_batch_size=2, **shared), per_example, atol=1e-6)
    # Smaller micro-batches are more numerous, so the mean has less noise at the same z.
    loaded, stds = load_corpus(corpus), []
    for size in (None, 4, 2):
        run = Trainer(config(corpus, micro_batch_size=size, num_devices=2), loaded, split(loaded, 0))
        stds.append(run.private.noise_stds(0)[0])
    assert [larger / smaller for larger, smaller in pairwise(stds)] == pytest.approx([2, 2])


@given(
    n=st.integers(1, 80),
    batch_size=st.integers(1, 40),
    num_devices=st.integers(1, 9),
    micro_batch_size=st.none() | st.integers(1, 20),
    sampling=st.sampled_from(["shuffle", "poisson"]),
    method=st.sampled_from(["edp-sgd", "dp-sgd"]),
    step=st.integers(0, 5),
)
@settings(max_examples=300)
def test_no_clip_is_shared_by_more_utterances_than_are_accounted_for(n, sampling, step, **settings):
    """The sensitivity is C if no utterance shares a micro-batch and 2C otherwise, so the condition must be exact."""
    try:
        chosen = TrainConfig("x", sampling=sampling, **settings)
    except UsageError:
        assume(False)
    batches, mechanism = chosen.batches(1, n), chosen.mechanism(n)
    sizes = [len(part) for own in batches.devices(0, min(step, batches.steps_per_epoch - 1), step) for part in own]
    if sampling == "shuffle" or mechanism.micro_batch_size == 1:
        assert max(sizes, default=0) <= mechanism.micro_batch_size
    assert mechanism.sensitivity() == mechanism.clip_norm * (1 if mechanism.micro_batch_size == 1 else 2)
    assert mechanism.sampling_rate == (batches.sampling_rate if sampling == "poisson" else None)
    assert mechanism.releases_per_epoch >= (batches.steps_per_epoch if sampling == "poisson" else 1)


# ---- Adam and DP-Adam are the printed update on the released gradient ------------------------------------------------


LR = 0.01
SHAPES = ((40, 3), (7,))


def random_tensors(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


def weighted_mean(values: list[Tensor], beta: float) -> Tensor:
    """The bias-corrected exponential moving average is the mean with weights beta^age."""
    weights = [beta**age for age in reversed(range(len(values)))]
    return sum((w * x for w, x in zip(weights, values, strict=True)), torch.zeros(())) / sum(weights)


@pytest.mark.parametrize("name", ["adam", "dp-adam"])
def test_dp_adam_and_adam_are_the_printed_update_on_the_released_gradient(name: str) -> None:
    """Algorithm 7: V and S are averages of dW and dW^2, both corrected; W - a V / (sqrt(S) + epsilon)."""
    gradients, start = [random_tensors(step) for step in range(6)], random_tensors(99)
    parameters = [nn.Parameter(tensor.clone()) for tensor in start]
    optimizer = make_optimizer(name, parameters, LR)
    for gradient in gradients:
        for parameter, of_one in zip(parameters, gradient, strict=True):
            parameter.grad = of_one.clone()
        optimizer.step()
    for k, (initial, end) in enumerate(zip(start, parameters, strict=True)):
        expected = initial.clone()
        for t in range(1, len(gradients) + 1):
            past = [gradient[k] for gradient in gradients[:t]]
            root = weighted_mean([g**2 for g in past], 0.999).sqrt()
            expected -= LR * weighted_mean(past, 0.9) / (root + 1e-8)
        assert float((end.detach() - expected).abs().max()) < 1e-12
