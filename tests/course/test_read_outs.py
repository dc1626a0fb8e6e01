"""Numbers in the read-outs of panels, what is refused, and command lines that give the epsilon that is shown.

The wording is a snapshot of `test_contract`; here are numbers.
"""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from edp_lab.course.kit.inputs import SOUND
from edp_lab.course.kit.panel import PANELS
from edp_lab.course.nb01_coins.compute import GAUSSIAN
from edp_lab.course.nb03_edp_sgd.compute import CLAIMED, PRINTED
from edp_lab.course.nb03_edp_sgd.compute import SOUND as SOUND_VARIANT
from edp_lab.course.nb05_models.compute import architecture
from edp_lab.course.nb08_audit.compute import StepNoise
from edp_lab.course.nb11_claims.compute import rows_of
from edp_lab.errors import UsageError
from tests.course.examples import THESIS, claims_table, panel_of, phases_sketch, report_of

LN3 = math.log(3)
ALONE = {"as_printed": False, "num_devices": 1}
SWALLOWED = {"z0": 1e-6, "decay": "exponential", "tau": 0.5}

SAID: dict[str, list[tuple[dict[str, Any], list[str]]]] = {
    "00 step": [
        ({"epochs": 30}, ["<b>As printed</b>, z0 = 0.03 on 8 GPUs adds noise of 0.0013 C", "After 30 epochs"]),
        ({}, ["C, is 0.03; an accountant's, noise over sensitivity of what is released, is 0.0053."]),
        ({}, ["8 GPUs: 1 process, 7 simulated.", "zero-out"]),
        (ALONE, ["<b>Sound</b>, z0 = 0.03 on 1 GPU adds noise of 0.06 C", "what is released, is 0.03."]),
        (ALONE, ["1 GPU: 1 process, 0 simulated.", "seed of the noise is published"]),
        ({"z0": 0.0}, ["<b>No guarantee</b>: z0 is 0"]),
        (
            {"as_printed": False, "z0": 1e-6, "decay": "exponential", "tau": 12.0, "epochs": 40},
            ["<b>No guarantee</b>: epsilon exceeds"],
        ),
    ],
    "01 coin": [
        ({"epsilon": LN3}, ["truth with probability 75 %. A yes is e<sup>ε</sup> = <b>3 times</b>"]),
        ({"epsilon": LN3}, ["After a no, a belief of 30 % becomes 12.5 %"]),
        ({"epsilon": 800.0, "people": 10}, ["beyond 10³⁰⁸ times"]),
    ],
    "01 averaging": [
        ({}, ["0.7 per answer: pure, for one person added or removed", "After 45 answers, at ε = 31.5"]),
        ({"budget": 0.5}, ["does not pay for a single answer"]),
        ({"sensitivity": 10, "queries": 1}, ["one person with up to 10 records"]),
    ],
    "01 delta": [
        ({"epsilon": LN3, "sigma": 2**0.5}, ["ε = 1.1 holds with δ = 0.0304 and no smaller (Gaussian DP, exact)"]),
        ({"epsilon": 0.5, "sigma": 1.0}, ["theorem (2.12) would ask for σ"]),
    ],
    "01 composition": [
        ({}, ["ε = 100 by the plain sum, 25.7 by advanced composition, 20.2 by zCDP"]),
        ({}, ["costs 11.5 (Gaussian DP, exact)"]),
        ({"epsilon": 1.0}, ["never pays at this ε"]),
        ({"epsilon": 1e-6, "budget": 1e3}, ["a billion or more"]),
    ],
    "02 cloud": [
        ({}, ["deviation <b>0.2</b> on each coordinate"]),
        ({}, ["<b>ε = 2</b> at δ = 10⁻⁵ (Gaussian DP, exact; zero-out: one"]),
        ({"z": 0.0}, ["No guarantee"]),
        ({"rule": "as printed"}, ["no guarantee"]),
    ],
    "02 training": [
        ({}, ["q = B / 400 = 0.05", "<b>ε = 0.617</b> at δ = 10⁻⁵ (privacy loss distributions; add or remove"]),
        ({}, ["Shuffled batches would have ε = 2.95", "Its seed is published"]),
        ({"z": 0.1}, ["Who does is secret. Shuffled"]),
        ({"sampling": "shuffle"}, ["<b>ε = 2.95</b> at δ = 10⁻⁵ (Gaussian DP, exact; zero-out)"]),
        ({"sampling": "shuffle"}, ["Poisson samples of this size would have ε = 0.617; shuffled batches do not"]),
        ({"z": 0.0}, ["No guarantee"]),
    ],
    "02 denominators": [
        ({}, ["no guarantee"]),
    ],
    "04 bill": [
        ({"decay": "none"}, ["after 30 epochs at δ = 10⁻⁵: <b>ε = 41.3</b> (zCDP, z0 at face value, one utterance)"]),
        ({"decay": "none"}, ["<b>no guarantee</b>, because α is read off private gradients"]),
        ({"decay": "none"}, ["<b>ε = 612</b> for one utterance (Gaussian DP, exact; zero-out neighbours, disjoint"]),
        ({"decay": "none"}, ["0.177 in the first epoch, 0.177 in the last, where the setting says 1 and 1"]),
        ({"variant": SOUND, "z0": 0.0}, ["<b>no guarantee</b>, because z0 is 0"]),
        ({"variant": SOUND, **SWALLOWED}, ["because float32 arithmetic swallows noise this small"]),
        ({"variant": SOUND, **SWALLOWED}, ["On paper, with a public α: ε = "]),
        ({"variant": SOUND, "utterances": 3, "epochs": 1}, ["for all 3 utterances of one person"]),
    ],
    "04 needed": [
        ({"decay": "none"}, ["z0 = <b>18.6</b> meets ε = 8 for 30 epochs at δ = 10⁻⁵, with a public α (Gaussian"]),
        ({"decay": "none"}, ["The last 15 epochs spend half", "asks for z0 = 3.78"]),
        ({"variant": SOUND, "tau": 2.0, "target": 0.1, "epochs": 20}, ["No z0 up to a billion meets"]),
        ({"variant": SOUND, "utterances": 3}, ["all 3 utterances of one person"]),
    ],
    "04 loss": [
        ({}, ["10 epochs of μ = 0.5 each are together <b>μ = 1.58</b>"]),
        ({}, ["<b>ε = 7.52</b> at δ = 10⁻⁵ (Gaussian DP, exact; one utterance, zero-out, disjoint batches)"]),
    ],
    "04 sampling": [
        ({}, ["<b>ε = 2.11</b> (Rényi DP, an upper bound)", "10 passes: <b>ε = 17.9</b> (Gaussian DP"]),
        ({}, ["<b>no ε below 4.06</b> can hold"]),
        ({"rate": 0.8, "steps": 1}, ["1 pass: <b>ε"]),
    ],
    "09 noise": [
        ({}, ["the sum carries √N times that, <b>0.354</b>, and the mean 0.0442 on every coordinate"]),
        ({}, ["0.354 / 2 = <b>0.177</b>, where z0 says 1"]),
        ({"z0": 0.0}, ["<b>No guarantee</b>: z0 is 0"]),
    ],
    "09 scaling": [
        ({}, ["The paper's Table 2 says 1.04 times for CLC on ATIS with 8 GPUs"]),
    ],
    "04 table1": [
        ({}, ["the paper prints <b>log₁₀ ε = 24.4</b> at δ = 0.0005 (zCDP at face value)"]),
        ({}, ["τ = 0.5 with z0 1.05 × 10⁻⁶ to 1.18 × 10⁻⁶", "<b>log₁₀ ε = 26</b> (Gaussian DP, exact; one utterance"]),
        ({}, ["float32 swallows its noise"]),
        ({"epochs": 5}, ["no z0 from 10⁻⁶ to 1"]),
    ],
}


@pytest.mark.parametrize(("name", "values", "says"), [(name, *row) for name, rows in SAID.items() for row in rows])
def test_read_outs_have_the_numbers_of_the_result(name: str, values: dict[str, Any], says: list[str]) -> None:
    panel = panel_of(name, **values)
    assert panel.errors == []
    text = panel.words.value
    assert [words for words in says if words not in text] == []
    if says[0].lower() == "no guarantee":  # nothing is promised where nothing holds
        assert "ε = " not in text
        assert "account" not in panel.command.value


TILES: dict[str, list[tuple[dict[str, Any], tuple[str, ...], str]]] = {  # values of the tiles, part of the sentence
    "00 refute": [
        ({"z0": 0.1}, (), "so few draws could not refute the claim"),
        ({"z0": 10.0, "num_devices": 1}, (), "these draws do not refute the claim"),  # though it is false
    ],
    "01 coin": [
        ({"epsilon": LN3}, ("30 % → 56.2 %", "36 % ± 9.4"), "31 lie; nobody can see who, and the estimate"),
        ({"epsilon": 12.0, "people": 50}, ("30 % → 100 %",), "Of the first 50 people 0 lie;"),
        ({"epsilon": 10.0, "share": 0.0}, ("0 % → 0 %", "-0.00454 %"), "0.0045 percentage points"),
    ],
    "01 averaging": [
        ({}, ("ε = 35", "7 answers"), "of 50 answers is 3.05 ± 0.47 people: at 90 % confidence only 3 fits; 3 is true"),
        (
            {"queries": 1, "budget": 0.5},
            ("ε = 0.7", "0 answers"),
            "One answer is 3.46 ± 3.3 people: at 90 % confidence",
        ),
        ({"queries": 1}, (), "confidence 1 to 6 fit; 3 is true"),
        ({"queries": 500}, ("ε = 350",), "confidence no whole number fits; 3 is true"),
    ],
    "01 delta": [
        ({}, ("0.12", "0.0307"), "a loss beyond ε is 3.8 times as large"),
        ({"epsilon": 100.0, "sigma": 1.0}, ("below 10⁻³⁰⁷", "below 10⁻³⁰⁷"), "no float can hold δ"),
    ],
    "01 composition": [
        ({}, ("ε = 100", "ε = 20.2"), "1,000 releases cost 5 times less by zCDP"),
        ({"releases": 1}, ("ε = 0.1", "ε = 0.1"), "For 1 release neither advanced"),
    ],
    "02 cloud": [
        ({}, ("0.37", "ε = 2"), "shortens 6 of 10 gradients, and the noise outweighs the clip"),
        ({"examples": 2000}, ("0.78", "ε = 2"), "the clip bends the mean more than the noise"),
        ({"z": 0.0}, ("0.23", "no guarantee"), "the clip bends the mean more"),
        ({"z": 0.0, "clip_norm": 20.0, "examples": 1}, ("0", "no guarantee"), "0 of 1 gradient, and neither"),
        ({"rule": "as printed"}, ("0.28", "no guarantee"), "bounds no gradient"),
    ],
    "02 training": [
        ({}, ("ε = 0.617", "ε = 0.617"), "ends at a loss of 0.493, right for 77 % of the people"),
        ({"sampling": "shuffle"}, ("ε = 0.617", "ε = 2.95"), "without privacy it is 0.458"),
        ({"z": 0.0}, ("nothing", "no guarantee"), "without privacy it is 0.471"),
    ],
    "02 denominators": [
        ({}, ("0.0095", "0.031"), "80 of 120 gradients are smaller than the noise"),
        ({"noise_std": 0.0}, ("1", "0.1"), "The noise is smaller than all 120 gradients"),
        ({"noise_std": 0.00105}, ("0.64", "0.1"), "1 of 120 gradients is smaller than the noise"),
    ],
    "03 promise": [({}, ("5.3", "no guarantee"), "An attacker who sees one step can be right in ")],
    "03 stages": [
        ({}, ("1", "0.176"), "One sentence can move the mean by ")
    ],  # 1/(2 √8) = 0.17678: no more than there is
    "04 needed": [
        ({"epochs": 1}, (), "The one epoch costs the whole bill."),
        ({"tau": 2.0, "epochs": 20}, (), "The last epoch of 20 costs"),
    ],
    "04 sampling": [
        ({"rate": 0.8, "steps": 1}, (), "no whole pass before 2 steps"),
        ({"rate": 0.01, "noise_multiplier": 10.0, "delta": 0.1}, (), "refutes no ε at this δ"),
    ],
    "06 Explorer": [({"method": "poisson", "z0": 0.1, "epochs": 8}, ("nothing",), "This run has SER 0.46")],
    "06 ladder": [
        ({"z": 1.0}, (), "puts 16 times as much noise on the mean as m = 1, for the same ε"),
        (
            {"z": 1.0, "micro_batch": 2, "adjacency": "REPLACE_ONE"},
            (),
            "puts 4 times as much noise on the mean as m = 1, for a smaller ε",
        ),
        ({"z": 1.0, "micro_batch": 1}, (), "m = 1 is the lowest rung"),
    ],
    "10 pixels": [
        ({"sigma": 0.0}, ("2.5", "no guarantee"), "the images leave as they are"),
        ({"sigma": 0.6}, ("2.5", "145"), "must not differ by more than 0.367"),
        ({"sigma": 30.0}, (), "hides even that"),
    ],
    "10 votes": [
        ({}, (), "0 and 6 have the most votes, 4 of 10 each; in this draw of the noise "),
        ({"sigma": 0.0, "instructors": 30}, (), "6 has the most votes, 30 of 30; in"),
    ],
    "10 parts": [
        ({"instructors": 1}, (), "nothing to split"),
        ({"instructors": 10}, ("0.091", "3.56"), "10 times as often"),
    ],
}


@pytest.mark.parametrize(
    ("name", "values", "numbers", "says"), [(name, *r) for name, rows in TILES.items() for r in rows]
)
def test_tiles_and_their_sentence(name: str, values: dict[str, Any], numbers: tuple[str, ...], says: str) -> None:
    tiles = panel_of(name, **values).tiles
    assert tuple(value for _, value, *_ in tiles.tiles)[: len(numbers)] == numbers
    assert says in tiles.sentence


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("00 step", {"num_devices": 64}, "64 devices for a batch of 64"),
    ("00 step", {"epoch": 12, "epochs": 12}, "epoch t = 12 lies outside a run of 12 epochs"),
    ("01 coin", {"people": 1}, "the number of people is 1: it must be a whole number from 2 to 100,000"),
    ("01 coin", {"people": 10**9}, "the number of people is 1000000000"),
    ("01 coin", {"share": 1.2}, "the share of yes is 1.2: it must lie between 0 and 1"),
    ("02 cloud", {"outliers": 1.5}, "the share of outliers is 1.5: it must lie between 0 and 1"),
    ("02 training", {"batch_size": 401}, "the batch size is 401: it must be a whole number from 1 to 400"),
    ("03 stages", {"num_devices": 65}, "65 devices for a batch of 64: some would have no sentence"),
    ("03 decay", {"num_devices": 5}, "this batch was cut for 1, 2, 4, 8, 16, 32 devices, not for 5"),
    ("03 promise", {"delta": 1.0}, "delta is 1.0"),
    ("04 bill", {"num_devices": 64}, "64 devices for a batch of 64"),
    ("04 needed", {"target": 0.0}, "target epsilon is 0.0"),
    ("04 needed", {"utterances": 0}, "number of utterances of a person is 0"),
    ("04 loss", {"draws": 1}, "the number of draws is 1"),
    ("04 sampling", {"rate": 2.0}, "sampling rate q is 2.0"),
    ("04 sampling", {"delta": 2.0}, "delta is 2.0"),
    ("04 table1", {"epochs": 121}, "the number of epochs T is 121"),
    ("05 browse", {"utterance": 4500}, "utterance 4500 is not in smart-home: it has 4,500, counted from 0"),
    ("05 crf", {"transition": 1000.0}, "a score of 1000.0: take one from -100 to 100"),
    ("06 Explorer", {"micro_batch": 16}, "8 micro-batches of 16 do not fit"),
    ("06 ladder", {"micro_batch": 16}, "micro-batches of 16: a batch of 64 on 8 devices has at most 8 utterances"),
    ("06 ladder", {"num_devices": 64}, "64 devices for a batch of 64"),
    ("06 tuning", {"trials": 10**6}, "from 1 to 1000"),
    ("07 roc", {"people": 49}, "number of members is 49"),
    ("07 roc", {"people": 10_000}, "from 50 to "),
    ("07 canaries", {"z0": 0.02}, "z0 = 0.02 was not measured"),
    ("07 canaries", {"repetitions": 3}, "3 repetitions"),
    ("08 step", {"draws": 10_001}, "from 1 to 10,000"),
    ("08 step", {"z0": 1e-6}, "there is no claim to audit"),  # no guarantee: float32 swallows such noise
    ("08 step", {"clip_norm": 1e-35}, "there is no claim to audit"),
    ("08 guesses", {"canaries": 5}, "number of canaries is 5"),
    ("08 guesses", {"made": 101}, "share of guesses made is 101"),
    ("09 noise", {"num_devices": 64}, "64 devices for a batch of 64"),
    ("09 scaling", {"devices": 33}, "the number of devices is 33"),
    ("09 scaling", {"devices": 1, "batch": 2}, "the batch is 2"),
    ("10 votes", {"instructors": 200}, "200 instructors cannot all see the rarest digit"),
    ("10 votes", {"image": 540}, "there is no public image 540: choose 0 to 539"),
    ("10 labels", {"labels": 541}, "541 labels, but there are 540 public images"),
    ("10 parts", {"instructors": 1000}, "parts no smaller than a batch"),
    ("06 ladder", {"adjacency": "ADD_OR_REMOVE_ONE"}, "there is no number for add/remove"),
    ("10 votes", {"vote": "hard"}, "a hard vote has no noise"),
]


@pytest.mark.parametrize(("name", "values", "says"), REFUSED)
def test_what_is_beyond_a_panel_is_refused_in_one_sentence(name: str, values: dict[str, Any], says: str) -> None:
    """What is 0, negative or infinite, and what a panel makes of it: test_contract."""
    panel = panel_of(name)
    with pytest.raises(UsageError, match=f"^[^\n]*{re.escape(says)}[^\n]*$"):
        panel._compute(**{**panel.values, **values})


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: architecture("gpt", None), "unknown model 'gpt': choose clc or bert"),  # type: ignore[arg-type]
        (lambda: StepNoise(-1), "seed is -1"),
        (lambda: PANELS["10 votes"](phases_sketch(), replace(THESIS, vote="hard")), "a hard vote has no noise to look"),
        (lambda: rows_of(claims_table(), "nowhere"), "no claim is shown by the cell '11_claims#nowhere'"),
    ],
)
def test_what_only_code_can_ask_for_is_refused(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        call()


# Of a panel: values, which of its command's lines, where in its JSON the epsilon stands, and which one it is.
Epsilon = Callable[[Any], Any]
LADDER = {"micro_batch": 2, "num_devices": 4, "z": 1.0, "adjacency": "REPLACE_ONE"}
COMMANDS: list[tuple[str, list[dict[str, Any]], int, str, Epsilon]] = [
    ("01 delta", [{}, {"epsilon": 0.5}], 1, "holds", lambda r: r.epsilon),
    ("01 composition", [{}, {"epsilon": 0.5}], 1, "holds", lambda r: r.last[GAUSSIAN]),
    ("02 cloud", [{}, {"rule": "by value"}, {"z": 5.0}], 1, "holds", lambda r: r.guarantee.epsilon),
    ("02 training", [{}, {"sampling": "shuffle"}, {"z": 5.0}], 1, "holds", lambda r: r.guarantee.epsilon),
    ("03 promise", [{}, {"micro_batch_size": 1, "epochs": 5}], 0, "holds", lambda r: r.epsilon[PRINTED]),
    ("03 promise", [{}, {"alpha_max": 3.0, "delta": 1e-7}], 0, "claimed", lambda r: r.epsilon[CLAIMED]),
    ("03 promise", [{}, {"alpha_max": 3.0, "delta": 1e-7}], 1, "holds", lambda r: r.epsilon[SOUND_VARIANT]),
    ("09 noise", [{}, {"variant": SOUND}], 0, "claimed", lambda r: r.guarantee.epsilon_claimed),
    ("09 noise", [{"variant": SOUND}], 0, "holds", lambda r: r.guarantee.epsilon),
    ("06 ladder", [{}, LADDER], 0, "holds", lambda r: r.chosen.epsilon),
    ("06 ladder", [{}, LADDER], 1, "holds", lambda r: r.rungs[0].equal_epsilon),
    ("04 bill", [{}, {"variant": SOUND, "utterances": 2}], 0, "claimed", lambda r: r.claimed[-1]),
    ("04 bill", [{"variant": SOUND, "utterances": 2}], 0, "holds", lambda r: r.exact[-1]),
    ("04 bill", [{}], 1, "holds", lambda r: r.exact[-1]),  # with a public alpha
    ("06 tuning", [{}], 1, "holds", lambda r: r.free),
    ("11 turn", [{}, {"num_devices": 4, "z0": 2.0}], 1, "holds", lambda r: r.epsilon),
    ("04 loss", [{}], 0, "holds", lambda r: r.epsilon),
    ("04 sampling", [{}], 1, "holds", lambda r: r.shuffled[-1]),
    (
        "03 stages",
        [{}, {"as_printed": False, "alpha_large": 5.0}, {"num_devices": 2, "z": 3.0}],
        1,
        "holds",
        lambda r: r.guarantee.epsilon,
    ),
    ("10 parts", [{}], 0, "holds", lambda r: r.cost.each),
]


def test_what_is_shown_by_renyi_dp_is_no_less_than_the_command_line_says() -> None:
    panel = panel_of("04 sampling")
    told = report_of(panel.command.value.splitlines()[0])["holds"]["epsilon"]
    assert 0.8 * panel.result.sampled[-1] < told <= panel.result.sampled[-1]


@pytest.mark.parametrize(("name", "settings", "line", "what", "epsilon"), COMMANDS)
def test_command_line_gives_the_epsilon_that_is_shown(
    name: str, settings: list[dict[str, Any]], line: int, what: str, epsilon: Epsilon
) -> None:
    for values in settings:
        panel = panel_of(name, **values)
        report = report_of(panel.command.value.splitlines()[line])
        shown = report[what]["epsilon" if what == "claimed" else "epsilon_in_real_numbers"]
        assert shown == pytest.approx(epsilon(panel.result), rel=1e-4 if name[:2] in ("01", "06") else 1e-6)
        held = getattr(panel.result, "guarantee", None)
        assert held is None or report["holds"]["adjacency"] == held.adjacency
