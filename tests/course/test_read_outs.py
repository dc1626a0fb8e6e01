"""Notebooks 00 to 04: numbers in the read-outs, what is refused, and command lines that give the epsilon that is shown.

The wording is a snapshot of `test_contract`; here are numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from edp_lab.course.kit.inputs import SOUND
from edp_lab.course.nb01_coins.compute import GAUSSIAN
from edp_lab.course.nb03_edp_sgd.compute import CLAIMED, PRINTED
from edp_lab.course.nb03_edp_sgd.compute import SOUND as SOUND_VARIANT
from edp_lab.errors import UsageError
from tests.course.examples import panel_of, report_of

LN3 = math.log(3)
ALONE = {"as_printed": False, "num_devices": 1}
SWALLOWED = {"z0": 1e-6, "decay": "exponential", "tau": 0.5}

SAID: dict[str, list[tuple[dict[str, Any], list[str]]]] = {
    "00 step": [
        (
            {"epochs": 30},
            ["<b>As printed</b>, z0 = 0.03 on 8 devices adds noise of 0.0013 C", "After 30 epochs"],
        ),
        ({}, ["C, is 0.03; an accountant's, noise over sensitivity of what is released, is 0.0053."]),
        ({}, ["8 devices: 1 process, 7 simulated.", "zero-out"]),
        (ALONE, ["<b>Sound</b>, z0 = 0.03 on 1 device adds noise of 0.06 C", "what is released, is 0.03."]),
        (ALONE, ["1 device: 1 process, 0 simulated.", "seed of the noise is published"]),
        ({"z0": 0.0}, ["<b>No guarantee</b>: z0 is 0"]),
        (
            {"as_printed": False, "z0": 1e-6, "decay": "exponential", "tau": 12.0, "epochs": 40},
            ["<b>No guarantee</b>: epsilon exceeds"],
        ),
    ],
    "01 coin": [
        ({"epsilon": LN3}, ["truth with probability 75 %. A yes is e<sup>ε</sup> = <b>3 times</b>"]),
        ({"epsilon": LN3}, ["believes <b>56.2 %</b> after a yes and 12.5 % after a no"]),
        ({"epsilon": 800.0, "people": 10}, ["beyond 1e308 times"]),
    ],
    "01 averaging": [
        ({}, ["costs a person <b>ε = 0.7</b> (pure DP, add or remove that person)", "pays for <b>7 answers</b>"]),
        ({}, ["50 answers cost <b>ε = 35</b> by the plain sum"]),
        ({"budget": 0.5}, ["does not pay for a single answer"]),
        ({"sensitivity": 10, "queries": 1}, ["1 answer cost <b>ε = 0.7</b>", "a person with up to 10 records"]),
    ],
    "01 delta": [
        (
            {"epsilon": LN3, "sigma": 2**0.5},
            ["<b>ε = 1.1 holds with δ = 0.0304</b> and no", "probability 0.115"],
        ),
        ({"epsilon": 100.0, "sigma": 1.0}, ["endlessly too large"]),
        ({"epsilon": 0.5, "sigma": 1.0}, ["theorem (2.12) would ask for σ"]),
    ],
    "01 composition": [
        ({}, ["ε = <b>100</b> by the plain sum (δ = 0)", "25.7 by advanced composition and <b>20.2</b> by zCDP"]),
        ({}, ["ε = 11.5 (Gaussian DP, exact)"]),
        ({"epsilon": 1.0}, ["never pays at this ε"]),
        ({"epsilon": 1e-6, "budget": 1e3}, ["a billion or more"]),
    ],
    "02 cloud": [
        (
            {},
            [
                "deviation <b>0.02</b> on each coordinate",
                "<b>ε = 2</b> at δ = 1e-05 (Gaussian DP, exact; zero-out: one",
            ],
        ),
        ({"z": 0.0}, ["no guarantee"]),
        ({"rule": "as printed"}, ["no guarantee"]),
    ],
    "02 training": [
        ({}, ["q = B / 400 = 0.05", "<b>ε = 0.707</b> at δ = 1e-05 (Rényi DP; add or remove one person)"]),
        ({}, ["Shuffled batches would have ε = 2.95", "its seed is published"]),
        ({"sampling": "shuffle"}, ["<b>ε = 2.95</b> at δ = 1e-05 (Gaussian DP, exact; zero-out)"]),
        ({"sampling": "shuffle"}, ["as if they were Poisson samples they would seem to cost ε = 0.707: not"]),
        ({"z": 0.0}, ["no guarantee"]),
    ],
    "02 denominators": [({}, ["no guarantee"])],
    "04 bill": [
        ({"decay": "none"}, ["<b>ε = 41.3</b> at δ = 1e-5 (zCDP, z0 at face value, one utterance"]),
        ({"decay": "none"}, ["<b>no guarantee</b>, because α is read off private gradients"]),
        ({"decay": "none"}, ["<b>ε = 612</b> for one utterance (Gaussian DP, exact; zero-out neighbours, disjoint"]),
        ({"decay": "none"}, ["0.177 in the first epoch, 0.177 in the last, where the setting says 1 and 1"]),
        ({"decay": "none"}, ["in the last 15 epochs", "z0 = <b>18.6</b> for as many epochs; at this z0, not even one"]),
        ({"variant": SOUND, "z0": 0.0}, ["<b>no guarantee</b>, because z0 is 0"]),
        ({"variant": SOUND, **SWALLOWED}, ["because float32 arithmetic swallows noise this small"]),
        ({"variant": SOUND, **SWALLOWED}, ["On paper, with a public α: ε = "]),
        ({"variant": SOUND, "tau": 2.0, "target": 0.1, "epochs": 20}, ["No z0 up to a billion meets"]),
        ({"variant": SOUND, "utterances": 3, "epochs": 1}, ["for all 3 utterances of one person"]),
    ],
    "04 loss": [
        ({}, ["10 epochs of μ = 0.5 each are together <b>μ = 1.58</b>"]),
        ({}, ["<b>ε = 7.52</b> at δ = 1e-5 (Gaussian DP, exact; one utterance, zero-out, disjoint batches)"]),
    ],
    "04 sampling": [
        ({}, ["<b>ε = 2.1</b> (Rényi DP, an upper bound)", "10 passes: <b>ε = 17.9</b> (Gaussian DP"]),
        ({}, ["<b>no ε below 4.06</b> can hold for shuffled batches"]),
    ],
    "04 table1": [
        ({}, ["the paper prints <b>log₁₀ ε = 24.4</b> at δ = 0.0005 (zCDP at face value)"]),
        ({}, ["τ = 0.5 with z0 1.05e-6 to 1.18e-6", "<b>log₁₀ ε = 26</b> (Gaussian DP, exact; one utterance"]),
        ({}, ["float32 swallows its noise"]),
        ({"epochs": 5}, ["no z0 from 1e-6 to 1"]),
    ],
}


@pytest.mark.parametrize(("name", "values", "says"), [(name, *row) for name, rows in SAID.items() for row in rows])
def test_read_outs_have_the_numbers_of_the_result(name: str, values: dict[str, Any], says: list[str]) -> None:
    panel = panel_of(name, **values)
    assert panel.errors == []
    text = panel.words.value
    assert [words for words in says if words not in text] == []
    if says == ["no guarantee"]:  # nothing is promised where nothing holds
        assert "ε = " not in text
        assert "account" not in panel.command.value
    elif name.startswith("02"):
        for live in panel.figures:
            assert re.search(r"ε = .* at δ = 1e-05 \((Gaussian|Rényi)[ -]DP", live.layout.title.subtitle.text)


REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "00 step": [
        ({"num_devices": 64}, "64 devices for a batch of 64"),
        ({"num_devices": -8}, "number of devices"),
        ({"clip_norm": 0.0}, "clip norm C is 0.0"),
        ({"z0": -1.0}, "noise multiplier z0 is -1.0"),
        ({"tau": -0.1}, "decay rate tau is -0.1"),
        ({"epoch": 12, "epochs": 12}, "epoch t = 12 lies outside a run of 12 epochs"),
        ({"epoch": -1}, "epoch t = -1 lies outside"),
        ({"epochs": 0}, "number of epochs is 0"),
    ],
    "01 coin": [
        ({"epsilon": 0.0}, "epsilon is 0.0: it must be a finite number greater than 0"),
        ({"people": 1}, "the number of people is 1: it must be a whole number from 2 to 100,000"),
        ({"people": 10**9}, "the number of people is 1000000000"),
        ({"share": 1.2}, "the share of yes is 1.2: it must lie between 0 and 1"),
        ({"seed": -1}, "seed is -1: it must be 0 or more"),
    ],
    "01 averaging": [
        ({"epsilon": math.inf}, "epsilon is inf"),
        ({"sensitivity": 0}, "the sensitivity is 0: it must be a whole number from 1"),
        ({"queries": 0}, "the number of queries is 0"),
        ({"budget": 0.0}, "budget is 0.0: it must be a finite number greater than 0"),
    ],
    "01 delta": [
        ({"epsilon": -0.1}, "epsilon is -0.1"),
        ({"sigma": 0.0}, "the standard deviation sigma is 0.0"),
        ({"sensitivity": math.inf}, "the sensitivity is inf"),
    ],
    "01 composition": [
        ({"epsilon": -1.0}, "the epsilon of one release is -1.0"),
        ({"releases": 0}, "the number of releases is 0"),
        ({"delta": 0.0}, "delta"),
        ({"budget": -5.0}, "the budget is -5.0"),
    ],
    "02 cloud": [
        ({"clip_norm": 0.0}, "clip norm C is 0.0"),
        ({"z": -1.0}, "noise multiplier z0 is -1.0: it must be 0 or more"),
        ({"examples": 0}, "the number of examples is 0: it must be a whole number from 1 to 2,000"),
        ({"outliers": 1.5}, "the share of outliers is 1.5: it must lie between 0 and 1"),
        ({"seed": -1}, "seed is -1: it must be 0 or more"),
    ],
    "02 training": [
        ({"batch_size": 401}, "the batch size is 401: it must be a whole number from 1 to 400"),
        ({"lr": 0.0}, "the learning rate is 0.0: it must be a finite number greater than 0"),
        ({"gamma": math.inf}, "the floor gamma' is inf"),
        ({"seed": -3}, "seed is -3"),
    ],
    "02 denominators": [
        ({"steps": 0}, "the number of steps is 0"),
        ({"gamma": 0.0}, "the floor gamma' is 0.0"),
        ({"noise_std": -0.1}, "-0.1: give a finite number from 0 up"),
    ],
    "03 stages": [
        ({"alpha_small": 0.0}, "alpha of the small layer is 0.0: it must be a finite number"),
        ({"z": math.inf}, "noise multiplier z0 is inf"),
        ({"num_devices": 65}, "65 devices for a batch of 64: some would have no sentence"),
        ({"pull": -1.0}, "the pull of the first sentence is -1.0"),
    ],
    "03 decay": [({"num_devices": 5}, "this batch was cut for 1, 2, 4, 8, 16, 32 devices, not for 5")],
    "03 promise": [({"delta": 1.0}, "delta is 1.0"), ({"alpha_max": 0.0}, "largest layer scale alpha is 0.0")],
    "04 bill": [
        ({"num_devices": 64}, "64 devices for a batch of 64"),
        ({"num_devices": 0}, "number of devices"),
        ({"z0": -1.0}, "noise multiplier z0 is -1.0"),
        ({"clip_norm": 0.0}, "clip norm C is 0.0"),
        ({"epochs": 0}, "the number of epochs is 0"),
        ({"delta": 1.0}, "delta is 1.0"),
        ({"utterances": 0}, "utterances per person is 0"),
        ({"target": 0.0}, "target epsilon is 0.0"),
    ],
    "04 loss": [
        ({"mu": 0.0}, "mu is 0.0"),
        ({"releases": 0}, "the number of epochs is 0"),
        ({"draws": 1}, "the number of draws is 1"),
        ({"delta": 0.0}, "delta is 0.0"),
        ({"seed": -1}, "the seed is -1"),
    ],
    "04 sampling": [
        ({"rate": 0.0}, "sampling rate q is 0.0"),
        ({"rate": 2.0}, "sampling rate q is 2.0"),
        ({"noise_multiplier": -1.0}, "a noise multiplier z must be a number above 0"),
        ({"noise_multiplier": 0.0}, "a noise multiplier z must be a number above 0"),
        ({"steps": 0}, "the number of steps is 0"),
        ({"delta": 2.0}, "delta is 2.0"),
    ],
    "04 table1": [({"epochs": 121}, "the number of epochs T is 121")],
}


@pytest.mark.parametrize(("name", "values", "says"), [(name, *row) for name, rows in REFUSED.items() for row in rows])
def test_what_is_refused_is_one_sentence(name: str, values: dict[str, Any], says: str) -> None:
    panel = panel_of(name)
    before = panel.result
    panel.set(**values)
    error = panel.errors[-1]
    assert {type(one) for one in panel.errors} == {UsageError}
    assert says in str(error)
    assert "\n" not in str(error)
    assert panel.result is before


# Of a panel: values, which of its command's lines, where in its JSON the epsilon stands, and which one it is.
Epsilon = Callable[[Any], Any]
COMMANDS: list[tuple[str, list[dict[str, Any]], int, str, Epsilon]] = [
    ("01 delta", [{}, {"epsilon": 0.5}], 1, "holds", lambda r: r.epsilon),
    ("01 composition", [{}, {"epsilon": 0.5}], 1, "holds", lambda r: r.last[GAUSSIAN]),
    ("02 cloud", [{}, {"rule": "by value"}, {"z": 5.0}], 1, "holds", lambda r: r.guarantee.epsilon),
    ("02 training", [{}, {"sampling": "shuffle"}, {"z": 5.0}], 1, "holds", lambda r: r.guarantee.epsilon),
    ("03 promise", [{}, {"micro_batch_size": 1, "epochs": 5}], 0, "holds", lambda r: r.epsilon[PRINTED]),
    ("03 promise", [{}, {"alpha_max": 3.0, "delta": 1e-7}], 0, "claimed", lambda r: r.epsilon[CLAIMED]),
    ("03 promise", [{}, {"alpha_max": 3.0, "delta": 1e-7}], 1, "holds", lambda r: r.epsilon[SOUND_VARIANT]),
    ("04 loss", [{}], 0, "holds", lambda r: r.epsilon),
    ("04 sampling", [{}], 0, "holds", lambda r: r.sampled[-1]),
    ("04 sampling", [{}], 1, "holds", lambda r: r.shuffled[-1]),
    (
        "03 stages",
        [{}, {"as_printed": False, "alpha_large": 5.0}, {"num_devices": 2, "z": 3.0}],
        1,
        "holds",
        lambda r: r.guarantee.epsilon,
    ),
]


@pytest.mark.parametrize(("name", "settings", "line", "what", "epsilon"), COMMANDS)
def test_command_line_gives_the_epsilon_that_is_shown(
    name: str, settings: list[dict[str, Any]], line: int, what: str, epsilon: Epsilon
) -> None:
    for values in settings:
        panel = panel_of(name, **values)
        report = report_of(panel.command.value.splitlines()[line])
        assert report[what]["epsilon"] == pytest.approx(epsilon(panel.result), rel=1e-4 if name[:2] == "01" else 1e-6)
        held = getattr(panel.result, "guarantee", None)
        assert held is None or report["holds"]["adjacency"] == held.adjacency
