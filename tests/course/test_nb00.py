"""Notebook 00: panels agree with the mechanism and the accountant, and training runs are real. The contract of all
panels is in `test_contract`."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from edp_lab.course.kit import theme
from edp_lab.course.kit.text import at_most, plain
from edp_lab.course.nb00_start import panels
from edp_lab.course.nb00_start.panels import SmallModel
from edp_lab.errors import UsageError
from edp_lab.privacy import claimed_epsilon, guaranteed_epsilon
from edp_lab.training.config import TrainConfig
from edp_lab.training.dp_step import release
from edp_lab.training.gradients import StackedGradients
from tests.course.examples import SMALL, Wrong, drawn, panel_of, small_model

OTHER = replace(SMALL, clip_norm=0.5, z0=0.2, num_devices=4, as_printed=False, epochs=5)


@pytest.fixture
def model() -> SmallModel:
    return small_model()


@pytest.mark.parametrize("config", [SMALL, OTHER], ids=["as printed", "sound"])
def test_signal_and_noise_add_up_to_what_the_step_releases(model: SmallModel, config: TrainConfig) -> None:
    result = model.step(config)
    mechanism = result.mechanism
    std = mechanism.noise_std(0) / config.num_devices
    rows = [StackedGradients(model.on(config.num_devices), model.layout)]
    silent, loud = torch.zeros_like(model.noise), model.noise
    signal, whole = (release(mechanism, 0, rows, model.layout, None, y).gradient for y in (silent, loud))
    shown = zip(model.layout.columns, result.signal, result.noise, result.draw, strict=True)
    for columns, signal_norm, noise_norm, draw_norm in shown:
        size = columns.stop - columns.start
        assert signal[columns].norm() == pytest.approx(signal_norm, rel=1e-5)
        assert (whole - signal)[columns].norm() == pytest.approx(draw_norm, rel=1e-3)
        assert noise_norm == pytest.approx(std * math.sqrt(size), rel=1e-5)
        assert draw_norm == pytest.approx(noise_norm, rel=4 / math.sqrt(size))


def test_noise_is_said_in_both_meanings_of_z() -> None:
    words = panel_of("00 Step").words.value
    assert "z0 = 0.03 on 8 GPUs adds noise of 0.0013 C" in words
    assert (
        "divided by C: 0.03. For an accountant it is the noise of the release divided by its sensitivity: 0.0053."
        in words
    )


def test_epsilons_are_the_accountants(model: SmallModel) -> None:
    result = model.step(OTHER)
    run = result.mechanism, OTHER.epochs, model.delta
    assert result.guarantee.claimed_epsilon == claimed_epsilon(*run)
    assert result.guarantee.conditional_epsilon == guaranteed_epsilon(*run)


def test_the_batch_is_the_same_for_all_numbers_of_devices_and_a_step_needs_noise(model: SmallModel) -> None:
    one, many = model.on(1), model.on(16)
    torch.testing.assert_close(one[0], many.mean(0), rtol=1e-3, atol=1e-5)
    with pytest.raises(UsageError, match="plain SGD adds no noise"):
        model.step(plain(SMALL, 3))


def test_every_layer_has_a_readable_name(model: SmallModel) -> None:
    names = [theme.layer_name(name) for name in theme.reading_order(model.layout.names)]
    assert (names[0], names[-1]) == ("word vectors", "CRF end")
    assert {"LSTM 1 recurrent", "CRF transitions", "character CNN bias"} <= set(names)
    assert not [name for name in names if "_" in name or "." in name]
    assert theme.layer_name("bert.encoder.weight") == "bert encoder"


def test_a_run_trains_with_the_sliders_values_and_reads_the_number_again(model: SmallModel) -> None:
    panel = panels.Step(model, SMALL)
    assert "Press Run" in panel.tiles.sentence
    panel.set(num_devices=4, z0=3.0, as_printed=False)
    panel.run(wait=True)
    panel.check()
    assert panel.errors == []
    assert panel.rows["sgd"] == model.epochs
    assert len(panel.rows["edp-sgd"]) == 1
    assert (panel.secret.number, panel.secret.times) == (model.secrets[16].number, 16)
    assert panel.secret.rank > 100, "noise of three sensitivities hides it"
    assert panel.trained == panel.result.config
    assert "--gpus 4" in panel.command.value
    assert drawn(panel)[1].data[1].y[0] == panel.rows["edp-sgd"][0]["ser"]
    assert f"Last run (sound, C = 1, z0 = 3, N = 4): SER {panel.rows['edp-sgd'][0]['ser']:.2f}" in panel.tiles.sentence
    assert f"rank of the number {panel.secret.rank:,}" in panel.tiles.sentence
    held, together = panel.result.guarantee.conditional_epsilon, panel.result.together
    assert together > 10 * held, "16 sentences have the number"
    assert f"the guaranteed ε is {at_most(together)}" in panel.words.value


WRONG: dict[str, dict[str, Any]] = {
    "clip": {
        "clips every number": Wrong(lambda gradient, limit: np.clip(gradient, -limit, limit), "clips each number"),
        "makes every gradient as long as C": Wrong(
            lambda gradient, limit: gradient * limit / np.linalg.norm(gradient), "must stay unchanged"
        ),
        "does nothing": Wrong(lambda gradient, limit: gradient, "one that is longer than C must shrink"),
        "gives the length": Wrong(lambda gradient, limit: min(limit, np.linalg.norm(gradient)), "a single number"),
        "turns it round": Wrong(
            lambda gradient, limit: -gradient * min(1, limit / np.linalg.norm(gradient)), "direction has changed"
        ),
    },
    "refuted": {
        "one GPU": Wrong(1, "does not exceed"),
        "eight, where fewer do": Wrong(8, "a smaller N does, too"),
        "three, which the panel lacks": Wrong(3, "is none of them"),
        "in words": Wrong("two", "as a whole number"),
    },
}
