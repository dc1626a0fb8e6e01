"""What floats round within a clipped sum is less than what the clip leaves for it."""

import math

import numpy as np
import pytest
import torch

from edp_lab.corpora.encoding import Labels
from edp_lab.corpora.smart_home import generate
from edp_lab.errors import UsageError
from edp_lab.models import build_model
from edp_lab.privacy import Mechanism
from edp_lab.training.dp_step import U, clip, clip_factors, headroom
from edp_lab.training.gradients import Layout, LoopGradients, StackedGradients, model_gradients, trainable

SHORT = 515  # u, by which a clipped gradient may be too long
ASSUMED = 1 / 2200  # of C, where a pass forms many gradients


def room(count: int) -> float:
    """For two sums' rounding, in u C."""
    return headroom(count) / U - SHORT


def sum_of(gradients: torch.Tensor, kind: str, bound: float, count: int | None = None) -> torch.Tensor:
    """Of rows (M, P), clipped to `bound` and summed as computed, `count` (M) being expected: (P)."""
    layout = Layout(("all",), (slice(0, gradients.shape[1]),))
    given = StackedGradients(gradients, layout)
    if kind == "loop":
        weight = torch.nn.Parameter(torch.zeros(gradients.shape[1], dtype=gradients.dtype))
        given = LoopGradients([weight], [lambda row=row: (weight * row).sum()[None] for row in gradients], layout)
    mechanism = Mechanism.sound(bound, 1.0, len(gradients), 1)
    out = torch.empty(gradients.shape[1], dtype=gradients.dtype)
    count = count or len(gradients)
    return clip(mechanism, given, layout, None, count, out).total.spans[0].numbers.double() * count


def adversarial(count: int, width: int) -> torch.Tensor:
    """Numbers that a float32 sum, from 256 of them on, rounds all one way, by nearly half a unit."""
    return torch.full((count, width), 1 + 2.0**-16 + 2.0**-20)


@pytest.mark.parametrize("kind", ["stacked", "loop"])
@pytest.mark.parametrize("count", [1, 2, 512, 2048, 16384])
def test_sums_of_gradients_formed_one_by_one_are_as_near_the_exact_ones_as_is_charged(kind, count):
    rows = adversarial(count, 16)
    bound = 1.01 * float(rows[0].double().norm())  # nothing is shortened: the exact sum is known
    error = sum_of(rows, kind, bound) - count * rows[0].double()
    assert float(error.norm()) <= room(count) / 2 * U * bound
    if count > 256:  # a float32 accumulator would not have done
        naive = torch.from_numpy(np.cumsum(rows.numpy(), axis=0, dtype=np.float32)[-1]).double()
        assert float((naive - count * rows[0].double()).norm()) > room(count) / 2 * U * bound


def test_neighbours_sums_as_computed_are_no_further_apart_than_the_sensitivity():
    generator = torch.Generator().manual_seed(0)
    for count, width in ((1, 3), (16, 4000), (512, 100)):
        rows = 1 + torch.rand(count, width, generator=generator) * 2.0**-12
        for other in (0.0, -1.0, 1e-25, 1e15):
            moved = torch.cat([rows[:-1], other * rows[-1:]])
            apart = (sum_of(rows, "stacked", 1.0) - sum_of(moved, "stacked", 1.0)).norm()
            assert float(apart) <= (1 if other >= 0 else 2)


def test_in_a_large_batch_the_last_rounding_of_the_sum_is_charged(monkeypatch):
    rows = torch.ones(20_000, 16)
    without = torch.cat([rows[:-1], 0 * rows[-1:]])

    def furthest() -> float:
        """By how much of C one of many equal gradients moves the sum, over some C."""
        bounds = np.linspace(1, 2, 9)
        return max(float((sum_of(rows, "stacked", c) - sum_of(without, "stacked", c)).norm()) / c for c in bounds)

    assert furthest() <= 1
    monkeypatch.setattr("edp_lab.training.dp_step.headroom", lambda *steps: 2.0**-11)
    assert furthest() > 1


def test_more_than_floats_can_add_up_is_refused():
    with pytest.raises(UsageError, match="lower --batch-size or --processes"):
        headroom(10**6, ranks=8)
    with pytest.raises(UsageError, match="a step of 1 micro-batches got 103: it may have 102 at most"):
        sum_of(torch.ones(103, 1), "stacked", 1.0, count=1)


def test_a_norm_whose_squares_underflow_is_not_too_short():
    layout, mechanism = Layout(("all",), (slice(0, 10**6),)), Mechanism.sound(1e-6, 1.0, 1, 1, alpha="public")
    alpha, tiny = torch.tensor([2.0**-38], dtype=torch.float64), torch.full((1, 10**6), 1e-20)
    torch.set_flush_denormal(True)
    try:
        norms = StackedGradients(tiny, layout).clipped_sum(torch.empty(10**6), lambda n: n[:, 0] * 0).norms
    finally:
        torch.set_flush_denormal(False)
    exact = math.sqrt(10**6) * 1e-20 / float(alpha[0])
    assert float(clip_factors(mechanism, norms, layout, alpha)[0]) * exact <= mechanism.clip_norm


@pytest.mark.parametrize("size", [1, 4])
def test_what_one_pass_for_many_micro_batches_rounds_is_far_less_than_is_assumed(size):
    """Ghost clipping in float32, with an utterance and without, against float64, one by one."""
    corpus = generate(64, seed=3)
    widths = {"hidden": 32, "layers": 2, "word": 20, "character": 8, "filters": 8, "dropout": 0.0}
    model = build_model("clc", Labels.of(corpus), seed=1, private=True, size=widths)
    data, layout = model.dataset(corpus.utterances), Layout.of(trainable(model))
    mechanism = Mechanism.sound(0.1, 1.0, 1, size)

    def total(parts: list[np.ndarray], naive: bool) -> torch.Tensor:
        out = torch.empty(layout.size, dtype=next(model.parameters()).dtype)
        given = model_gradients(model, data, parts, None, layout, naive)
        return clip(mechanism, given, layout, None, 1, out).total.spans[0].numbers.double()

    parts = np.array_split(np.arange(64), 64 // size)
    floats = [total(given, naive=False) for given in (parts, parts[1:])]
    model.double()
    exact = [total(given, naive=True) for given in (parts, parts[1:])]
    error = float(((floats[0] - floats[1]) - (exact[0] - exact[1])).norm()) / mechanism.clip_norm
    assert error < ASSUMED / 50, f"{error / U:.1f} u"
