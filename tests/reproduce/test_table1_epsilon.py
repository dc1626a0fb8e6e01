"""Settings behind the epsilons of Table 1: they give the printed values back, and none was missed."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from edp_lab.cli.account import table1_epsilon
from edp_lab.privacy import Mechanism, claimed_epsilon, gdp_epsilon, judge, true_epsilon, zcdp_epsilon
from edp_lab.reproduce.paper.printed import TABLE_1, TAUS, Change, explain_table1

RESULT = explain_table1()
ROUND = [m * 10.0**k for k in range(-7, 2) for m in (1, 2, 5)]


def multipliers(decay, setting, z0):
    d = {
        "none": lambda t: 1.0,
        "linear": lambda t: 1 / (1 + setting.tau * t),
        "exponential": lambda t: math.exp(-setting.tau * t),
    }[decay]
    return [z0 * d(t) for t in range(setting.epochs)]


def rho(z):
    return sum(1 / (2 * one**2) for one in z)


def log10_epsilon(row, setting, z0):
    return math.log10(zcdp_epsilon(rho(multipliers(row.decay, setting, z0)), row.delta))


def as_printed(row, setting, alpha="public"):
    return Mechanism.as_printed(0.5, setting.z0, 8, 8, row.decay, setting.tau or 0.0, alpha)


def find(model, corpus, decay):
    (row,) = [row for row in RESULT.rows if (row.model, row.corpus, row.decay) == (model, corpus, decay)]
    return row


def all_settings():
    return [(row, setting) for row in RESULT.rows for setting in row.settings]


def test_every_setting_gives_the_printed_value_within_rounding():
    for row, setting in all_settings():
        value = log10_epsilon(row, setting, setting.z0)
        assert abs(value - row.log10_epsilon) <= 0.05 + 1e-9
        assert value == pytest.approx(setting.log10_epsilon, abs=1e-9)
        claim = claimed_epsilon(as_printed(row, setting), setting.epochs, row.delta)
        assert value == pytest.approx(math.log10(claim), abs=1e-9)


def test_z0_gives_the_printed_value_exactly_unless_a_bound_is_nearer():
    for row, setting in all_settings():
        if 1.001e-6 < setting.z0 < 0.999:
            assert setting.log10_epsilon == pytest.approx(row.log10_epsilon, abs=1e-9)
    assert any(setting.z0 == pytest.approx(1) for _, setting in all_settings())
    assert any(setting.z0 == pytest.approx(1e-6) for _, setting in all_settings())


def test_ranges_of_z0_end_where_the_printed_value_or_the_search_ends():
    for row, setting in all_settings():
        low, high = setting.z0_range
        assert 1e-6 * (1 - 1e-12) <= low <= setting.z0 * (1 + 1e-12)
        assert setting.z0 <= high * (1 + 1e-12) <= 1 + 1e-11
        at_low, at_high = (log10_epsilon(row, setting, z0) - row.log10_epsilon for z0 in (low, high))
        assert at_low == pytest.approx(0.05) or (low == pytest.approx(1e-6) and at_low < 0.05)
        assert at_high == pytest.approx(-0.05) or (high == pytest.approx(1) and at_high > -0.05)


def test_settings_come_from_the_papers_grid_and_the_common_epochs():
    for row, setting in all_settings():
        assert setting.epochs in RESULT.common_epochs
        assert setting.tau is None if row.decay == "none" else setting.tau in TAUS[row.decay]


def test_only_30_or_31_epochs_explain_all_values_at_once():
    assert RESULT.common_epochs == (30, 31)
    reachable = {reach.epochs: reach.reachable for reach in RESULT.epochs}
    assert list(reachable) == list(range(1, 121))
    assert reachable[30] == reachable[31] == 36
    assert {epochs for epochs, count in reachable.items() if count == 35} == {*range(25, 30), *range(32, 37)}


def test_with_epochs_of_its_own_every_value_is_explained():
    assert all(row.epochs_range for row in RESULT.rows)
    assert find("CLC", "ATIS", "exponential").epochs_range == (30, 120)
    assert find("BERT", "NLU-eval", "linear").epochs_range == (1, 31)
    assert find("BERT", "Video", "linear").epochs_range == (1, 36)


def test_brute_force_over_z0_reaches_the_same_cells():
    """Epsilon at every (tau, T, z0) of a fine grid with both bounds in it, without any inversion."""
    z0, t = np.logspace(-6, 0, 1201), np.arange(120)
    squares = {
        "none": np.ones((1, 120)),
        "linear": (1 + np.array(TAUS["linear"])[:, None] * t) ** 2,
        "exponential": np.exp(2 * np.array(TAUS["exponential"])[:, None] * t),
    }
    reachable = np.zeros(120, dtype=int)
    for row in RESULT.rows:
        rho = np.cumsum(squares[row.decay], axis=1)[:, :, None] / (2 * z0**2)
        epsilon = rho + 2 * np.sqrt(rho * math.log(1 / row.delta))
        hit = (epsilon >= 10 ** (row.log10_epsilon - 0.05)) & (epsilon <= 10 ** (row.log10_epsilon + 0.05))
        epochs = np.flatnonzero(hit.any(axis=(0, 2))) + 1
        assert row.epochs_range == (epochs[0], epochs[-1])
        taus = TAUS.get(row.decay, (None,))
        found = {(taus[k], epochs) for epochs in (30, 31) for k in np.flatnonzero(hit[:, epochs - 1].any(axis=1))}
        assert {(setting.tau, setting.epochs) for setting in row.settings} == found
        reachable[epochs - 1] += 1
    assert [reach.reachable for reach in RESULT.epochs] == reachable.tolist()


def test_closest_is_the_setting_with_the_roundest_z0():
    for row in RESULT.rows:
        distance = [min(abs(math.log(setting.z0 / r)) for r in ROUND) for setting in row.settings]
        assert row.settings[int(np.argmin(distance))].z0 == pytest.approx(row.closest.z0)
        assert row.closest in row.settings


def test_true_epsilon_is_that_of_algorithm_1_as_printed_with_public_alpha():
    for row in RESULT.rows:
        setting = row.closest
        claimed = rho(multipliers(row.decay, setting, setting.z0))
        by_hand = gdp_epsilon(2 * math.sqrt(8) * math.sqrt(2 * claimed), row.delta)
        assert row.true_log10_epsilon == pytest.approx(math.log10(by_hand), abs=1e-9)
        public = as_printed(row, setting)
        assert row.true_log10_epsilon == pytest.approx(math.log10(true_epsilon(public, setting.epochs, row.delta)))
        verdict = judge(public, setting.epochs, row.delta, seed_published=False)
        assert (verdict.epsilon is not None) == row.survives_float32
        if verdict.epsilon is not None:
            assert row.true_log10_epsilon == pytest.approx(math.log10(verdict.epsilon))
        assert row.true_log10_epsilon > row.log10_epsilon + 1.1
        assert judge(as_printed(row, setting, "private"), setting.epochs, row.delta).epsilon is None


def test_noise_of_the_largest_epsilons_does_not_survive_float32():
    swallowed = sorted(row.log10_epsilon for row in RESULT.rows if not row.survives_float32)
    assert swallowed == [11.1, 17.4, 19.1, 19.5, 22.1, 24.4]


def test_true_epsilon_hangs_on_the_printed_value_alone():
    for row in RESULT.rows:
        exact = [s for s in row.settings if s.log10_epsilon == pytest.approx(row.log10_epsilon, abs=1e-9)]
        true = [true_epsilon(as_printed(row, setting), setting.epochs, row.delta) for setting in exact]
        assert true == pytest.approx(true[:1] * len(true), rel=1e-6)


@pytest.mark.parametrize(("printed", "z0", "tau", "epochs"), [(70.0, 1e-6, 0.5, 31), (0.1, 1.0, 0.01, 1)])
def test_a_value_that_nothing_explains_gets_its_nearest_miss(printed, z0, tau, epochs):
    row = replace(TABLE_1[8], exponential=Change(0.0, 0.0, printed))  # its 1.7 under linear decay needs T <= 31
    result = explain_table1([row])
    assert result.common_epochs == ()
    assert [reach.reachable for reach in result.epochs] == [2] * 31 + [1] * 89
    *explained, missed = result.rows
    assert all(other.settings for other in explained)
    assert (missed.settings, missed.epochs_range) == ((), None)
    closest = missed.closest
    assert (closest.z0_range, closest.tau, closest.epochs) == (None, tau, epochs)
    assert closest.z0 == pytest.approx(z0)
    assert closest.log10_epsilon == pytest.approx(log10_epsilon(missed, closest, z0))


def test_command_prints_json(capsys):
    table1_epsilon(as_json=True)
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["rows"]) == 36
    assert len(answer["epochs"]) == 120
    assert answer["common_epochs"] == [30, 31]
    assert answer["num_gpus"] == 8
    assert "not proof" in answer["note"]
    first = answer["rows"][0]
    assert (first["corpus"], first["model"], first["decay"], first["delta"]) == ("ATIS", "CLC", "none", 5e-4)
    assert first["closest"] in first["settings"]
    assert first["closest"]["tau"] is None
    assert len(first["closest"]["z0_range"]) == 2


def test_command_prints_a_plain_table_where_it_is_piped(capsys, monkeypatch):
    for name in ("FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    table1_epsilon()
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 120
    values = [row.log10_epsilon for row in RESULT.rows]
    assert [float(pair.split()[-1]) for pair in out[out.index("CLC") :].split(" ->")[:36]] == values
    assert "T = 30 or 31" in out


def test_true_values_are_rounded_up_in_the_table(capsys):
    table1_epsilon()
    shown = [float(part.split()[0]) for part in capsys.readouterr().out.split(" -> ")[-36:]]
    assert all(0 <= value - row.true_log10_epsilon < 0.1 for value, row in zip(shown, RESULT.rows, strict=True))


def test_command_brings_no_torch():
    code = "import sys; from edp_lab.cli.account import table1_epsilon as t; t(True); print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "False"
