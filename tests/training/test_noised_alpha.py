"""Noised layer scales: what is released moves by no more than its noise is made for, and every draw of it is billed."""

import json
import math
import threading

import numpy as np
import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution as pld
from torch import nn

from edp_lab.errors import UsageError
from edp_lab.privacy import GaussianDP, Mechanism, PrivacyLossDistribution, judge
from edp_lab.privacy.calibration import Budget, calibrate_z0
from edp_lab.privacy.mechanism import SCALES, SCALES_NOISE
from edp_lab.training import TrainConfig, resume, run_ledger, train
from edp_lab.training.dp_step import PrivateStep
from edp_lab.training.gradients import StackedGradients, layer_norms
from edp_lab.training.ledger import PrivacyLedger

LAYERS = nn.ParameterList([nn.Parameter(torch.zeros(n, dtype=torch.float64)) for n in (3, 1, 5)])


def step_of(micro_batch_size: int, z0: float = 1e-9) -> PrivateStep:
    mechanism = Mechanism.sound(0.5, z0, 4, micro_batch_size, alpha="noised")
    return PrivateStep(LAYERS, mechanism, key=7, epochs=1)


@pytest.mark.parametrize("micro_batch_size", [1, 2])
def test_one_utterance_moves_the_layer_norms_by_at_most_the_sensitivity(micro_batch_size: int) -> None:
    step, rng, moved = step_of(micro_batch_size), torch.Generator().manual_seed(0), []
    bound = step.mechanism.sensitivity() / 4
    for trial in range(200):
        rows = torch.randn(4, 9, generator=rng, dtype=torch.float64) * 10 ** (trial % 5 - 2)
        other = rows.clone()
        other[0] = 0.0 if micro_batch_size == 1 else -100 * rows[0] * torch.rand(9, generator=rng)
        norms = []
        for gradients in (rows, other):
            step.noised_scales(StackedGradients(gradients, step.layout), 7)
            norms.append(layer_norms(step.gradient[None], step.layout)[0])  # before their noise
        moved.append(float(torch.linalg.vector_norm(norms[0] - norms[1])))
    assert 0.2 * bound < max(moved) <= bound


def test_scales_are_the_norms_with_the_noise_of_their_bill_and_never_too_small() -> None:
    rows = torch.zeros(4, 9, dtype=torch.float64)
    rows[:, 0], rows[:, 3] = 0.3, 0.1  # the third layer has no gradient
    silent = step_of(1).noised_scales(StackedGradients(rows, step_of(1).layout), 7)
    assert silent[:2].tolist() == pytest.approx([1.0, 1 / 3])
    step = step_of(1, z0=0.02)
    drawn = torch.stack([step.noised_scales(StackedGradients(rows, step.layout), key) for key in range(2000)])
    std = SCALES_NOISE * 0.02 * 0.5 / 4
    assert float((drawn[:, 1] / drawn[:, 0]).std()) == pytest.approx(std / 0.3 * math.sqrt(1 + 1 / 9), rel=0.1)
    assert 0 < float(drawn[:, 2].min()) <= std / 0.25
    assert torch.equal(drawn[3], step.noised_scales(StackedGradients(rows, step.layout), 3))


def test_two_hundred_bills_are_those_of_a_peer() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        epochs, delta = int(rng.integers(1, 30)), 10 ** float(rng.uniform(-8, -3))
        z0 = float(np.exp(rng.uniform(0, 2))) * math.sqrt(epochs)
        mechanism = Mechanism.sound(1.0, z0, 8, 8, alpha="noised")
        account = GaussianDP(mechanism.schedule(mechanism.bill(epochs)))
        one = 1 / math.sqrt(epochs / z0**2 + 1 / (SCALES_NOISE * z0) ** 2)
        low, high = (
            pld.from_gaussian_mechanism(
                one, value_discretization_interval=1e-3, pessimistic_estimate=worst, use_connect_dots=worst
            ).get_epsilon_for_delta(delta)
            for worst in (False, True)
        )
        assert low - 1e-6 <= account.epsilon(delta) <= high + 1e-6


def test_sampled_scales_are_one_more_sampled_release() -> None:
    mechanism = Mechanism.sound(1.0, 1.5, 8, 1, sampling_rate=0.1, alpha="noised")
    bill = mechanism.bill(3)
    assert bill == {SCALES: 1, 0: 10, 1: 10, 2: 10}
    options = {"sampling_prob": 0.1, "value_discretization_interval": 1e-3}
    peer = pld.from_gaussian_mechanism(1.5, **options).self_compose(30)
    peer = peer.compose(pld.from_gaussian_mechanism(1.5 * SCALES_NOISE, **options))
    tight = PrivacyLossDistribution(mechanism.schedule(bill)).epsilon(1e-5)
    assert tight == pytest.approx(peer.get_epsilon_for_delta(1e-5), rel=1e-3)
    without = Mechanism.sound(1.0, 1.5, 8, 1, sampling_rate=0.1)
    assert judge(mechanism, bill, 1e-5).epsilon > judge(without, 3, 1e-5).epsilon  # type: ignore[operator]
    assert judge(mechanism, {0: 10, 1: 10, 2: 10}, 1e-5).epsilon == judge(mechanism, 3, 1e-5).epsilon
    assert judge(mechanism, {**bill, SCALES: 2}, 1e-5).epsilon > judge(mechanism, 3, 1e-5).epsilon  # type: ignore[operator]
    assert judge(mechanism, bill, 1e-5).epochs == 3
    assert calibrate_z0(mechanism, 3, Budget(3.0, 1e-5)) > calibrate_z0(without, 3, Budget(3.0, 1e-5))
    assert mechanism.bill(steps=15) == {SCALES: 1, 0: 10, 1: 5}


def test_every_key_is_billed_and_nothing_else_may_come_before_the_first_step(tmp_path) -> None:
    ledger = PrivacyLedger(tmp_path / "ledger.jsonl", Mechanism.sound(1.0, 1.0, 8, 8, alpha="noised"))
    for key in (1, 1, 2):  # the first twice: the same draw
        ledger.write(SCALES, SCALES, key)
    ledger.write(0, 0, 2)
    assert PrivacyLedger.open(ledger.path).bill() == {SCALES: 2, 0: 1}
    for epoch, step in ((SCALES, 0), (0, SCALES), (-2, -2)):
        with pytest.raises(UsageError, match="number the steps"):
            ledger.write(epoch, step, 3)
    with pytest.raises(UsageError, match="knows no noised alpha"):
        TrainConfig("smart-home", as_printed=True, alpha="noised")


def test_a_run_draws_them_once_also_if_it_is_resumed(tmp_path) -> None:
    config = TrainConfig("smart-home-health", size="small", batch_size=200, epochs=1, z0=1.0, alpha="noised", lr=0.01)
    whole, broken, stop = tmp_path / "whole", tmp_path / "broken", threading.Event()
    record = train(config, whole)
    stop.set()  # after the first step
    train(config, broken, stop=stop)
    resumed = resume(broken)
    lines = [json.loads(line) for line in (broken / "ledger.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines[1:3]] == [SCALES, 0]
    assert sum(line.get("epoch") == SCALES for line in lines) == 1
    assert run_ledger(broken).bill() == {SCALES: 1, 0: 1}
    assert resumed["model_sha256"] == record["model_sha256"]
    assert resumed["final"]["epsilon"] == record["final"]["epsilon"]
    mechanism = config.mechanism()
    assert mechanism is not None
    assert record["final"]["epsilon"] == judge(mechanism, 1, record["config"]["delta"]).epsilon
