"""The paper's tables as typed in, and the settings behind Table 1's epsilons, which reproduce the printed values; no
setting was missed."""

import math
from dataclasses import astuple, replace

import numpy as np
import pytest

from edp_lab.cli.reproduce import epsilons
from edp_lab.privacy import Decay, Mechanism, claimed_epsilon, gdp_epsilon, guaranteed_epsilon, judge, zcdp_epsilon
from edp_lab.reproduce.printed import TABLE_1, TABLE_2, TAUS, Change, explain_table1

CORPORA = ["ATIS", "SNIPS", "NLU-eval", "Health", "Comm.", "Video"]
RESULT = explain_table1()
SETTINGS = [(row, setting) for row in RESULT.rows for setting in row.settings]
ROUND = [m * 10.0**k for k in range(-7, 2) for m in (1, 2, 5)]
FALLS = {  # 1 / d(t), by tau
    "none": lambda tau, t: 1.0,
    "linear": lambda tau, t: 1 + tau * t,
    "exponential": lambda tau, t: math.exp(tau * t),
}


@pytest.mark.parametrize("table", [TABLE_1, TABLE_2])
def test_rows_stand_in_the_papers_order(table):
    assert [(row.model, row.corpus) for row in table] == [(m, c) for m in ("CLC", "BERT") for c in CORPORA]


def test_sums_of_all_columns_and_grids():
    changes = {decay: [astuple(row.changes[decay]) for row in TABLE_1] for decay in Decay}
    sums = {decay: list(map(sum, zip(*own, strict=True))) for decay, own in changes.items()}
    assert sums["none"] == pytest.approx([-26.7, -57.86, 40.8])
    assert sums["linear"] == pytest.approx([-34.9, -72.3, 50.1])
    assert sums["exponential"] == pytest.approx([-22.0, -64.9, 131.8])
    assert sum(row.sgd_ser or 0 for row in TABLE_1) == pytest.approx(88.2)
    assert sum(row.sgd_mia_auc or 0 for row in TABLE_1) == pytest.approx(388.4)
    numbers = [astuple(row)[2:] for row in TABLE_2]
    assert list(map(sum, zip(*numbers, strict=True))) == pytest.approx([984.6, 765.4, 17.28])
    assert [(len(taus), sum(taus)) for taus in TAUS.values()] == [(8, pytest.approx(2.64)), (8, pytest.approx(1.31))]


def rho(row, setting, z0):
    falls = [FALLS[row.decay](setting.tau, t) for t in range(setting.epochs)]
    return sum(fall**2 for fall in falls) / (2 * z0**2)


def log10_epsilon(row, setting, z0):
    return math.log10(zcdp_epsilon(rho(row, setting, z0), row.delta))


def as_printed(row, setting, alpha="public"):
    return Mechanism.as_printed(0.5, setting.z0, 8, 8, row.decay, setting.tau or 0.0, alpha)


def test_every_setting_gives_the_printed_value_exactly_or_at_a_bound_within_rounding_and_the_closest_is_the_roundest():
    for row, setting in SETTINGS:
        value = log10_epsilon(row, setting, setting.z0)
        assert value == pytest.approx(setting.log10_epsilon, abs=1e-9)
        claim = claimed_epsilon(as_printed(row, setting), setting.epochs, row.delta)
        assert value == pytest.approx(math.log10(claim), abs=1e-9)
        inside = 1.001e-6 < setting.z0 < 0.999
        assert abs(value - row.log10_epsilon) <= (1e-9 if inside else 0.05 + 1e-9)
        low, high = setting.z0_range
        assert 1e-6 * (1 - 1e-12) <= low <= setting.z0 * (1 + 1e-12)
        assert setting.z0 <= high * (1 + 1e-12) <= 1 + 1e-11
        at_low, at_high = (log10_epsilon(row, setting, z0) - row.log10_epsilon for z0 in (low, high))
        assert at_low == pytest.approx(0.05) or (low == pytest.approx(1e-6) and at_low < 0.05)
        assert at_high == pytest.approx(-0.05) or (high == pytest.approx(1) and at_high > -0.05)
    for bound in (1e-6, 1):
        assert any(setting.z0 == pytest.approx(bound) for _, setting in SETTINGS)
    for row in RESULT.rows:
        distance = [min(abs(math.log(setting.z0 / r)) for r in ROUND) for setting in row.settings]
        assert row.settings[int(np.argmin(distance))].z0 == pytest.approx(row.closest.z0)
        assert row.closest in row.settings


def test_brute_force_over_z0_reaches_the_same_cells_and_all_of_them_with_30_or_31_epochs_only():
    """Epsilon at every (tau, T, z0) of a fine grid that includes both bounds, without inversion."""
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
    assert RESULT.common_epochs == tuple(np.flatnonzero(reachable == 36) + 1) == (30, 31)


def test_guaranteed_epsilon_is_that_of_algorithm_1_as_printed_with_public_alpha_if_float32_can_carry_the_noise():
    for row in RESULT.rows:
        setting, public = row.closest, as_printed(row, row.closest)
        by_hand = gdp_epsilon(2 * math.sqrt(8) * math.sqrt(2 * rho(row, setting, setting.z0)), row.delta)
        assert row.log10_guaranteed_if_alpha_public == pytest.approx(math.log10(by_hand), abs=1e-9)
        assert row.log10_guaranteed_if_alpha_public == pytest.approx(
            math.log10(guaranteed_epsilon(public, setting.epochs, row.delta))
        )
        verdict = judge(public, setting.epochs, row.delta, seed_published=False)
        assert (verdict.conditional_epsilon is not None) == row.survives_float32
        if verdict.conditional_epsilon is not None:
            assert row.log10_guaranteed_if_alpha_public == pytest.approx(math.log10(verdict.conditional_epsilon))
        assert row.log10_guaranteed_if_alpha_public > row.log10_epsilon + 1.1
        assert judge(as_printed(row, setting, "private"), setting.epochs, row.delta).conditional_epsilon is None
    swallowed = sorted(row.log10_epsilon for row in RESULT.rows if not row.survives_float32)
    assert swallowed == [11.1, 17.4, 19.1, 19.5, 22.1, 24.4]


@pytest.mark.parametrize(("printed", "z0", "tau", "epochs"), [(70.0, 1e-6, 0.5, 31), (0.1, 1.0, 0.01, 1)])
def test_a_value_that_nothing_explains_gets_its_nearest_miss(printed, z0, tau, epochs):
    row = replace(TABLE_1[8], exponential=Change(0.0, 0.0, printed))  # its 1.7 with linear decay requires T <= 31
    result = explain_table1([row])
    assert result.common_epochs == ()
    *explained, missed = result.rows
    assert all(other.settings for other in explained)
    assert (missed.settings, missed.epochs_range) == ((), None)
    closest = missed.closest
    assert (closest.z0_range, closest.tau, closest.epochs) == (None, tau, epochs)
    assert closest.z0 == pytest.approx(z0)
    assert closest.log10_epsilon == pytest.approx(log10_epsilon(missed, closest, z0))


def test_command_prints_a_plain_table_where_it_is_piped_with_guaranteed_values_rounded_up(capsys, monkeypatch):
    for name in ("FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    epsilons()
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 120
    assert "T = 30 or 31" in out
    before, *after = out[out.index("CLC") :].split(" -> ")
    shown = [float(part.split()[-1]) for part in (before, *after[:-1])], [float(part.split()[0]) for part in after]
    for claimed, guaranteed, row in zip(*shown, RESULT.rows, strict=True):
        assert claimed == row.log10_epsilon
        assert 0 <= guaranteed - row.log10_guaranteed_if_alpha_public < 0.1
