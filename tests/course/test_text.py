"""Numbers and commands as people write them: what read-outs, captions and tables of all notebooks share."""

import math
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edp_lab.course.kit.text import at_least, at_most, digits, plain, short, train_command
from edp_lab.training import TrainConfig

SOUND = TrainConfig("smart-home", clip_norm=0.5, z0=0.2, decay="linear", tau=0.3, num_devices=4, epochs=5)


def test_numbers_as_people_write_them() -> None:
    three = {0.02964: "0.0296", 16.44: "16.4", 1234.5: "1,234", 3e-8: "3 × 10⁻⁸", 0.0: "0", 1.0: "1"}
    three |= {2.5e9: "2.5 billion", 999.99: "1,000", 4.4e12: "4.4 × 10¹²"}
    assert {value: digits(value) for value in three} == three
    two = {0.0013258: "0.0013", 17.6: "18", 590_000: "590,000", 215: "220", 0.0: "0", 2.0: "2", None: "beyond 10³⁰⁸"}
    assert {value: short(value) for value in two} == two


def read(written: str) -> float:
    """The number that people read."""
    number, _, power = re.sub("^10(?=[⁻⁰¹²³⁴⁵⁶⁷⁸⁹])", "1 × 10", written.replace(",", "")).partition(" × 10")
    number, _, name = number.partition(" ")
    exponent = int(power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")) or 0)
    return float(number) * {"": 1, "million": 1e6, "billion": 1e9}[name] * 10.0**exponent


@given(st.floats(1e-9, 1e15))
def test_what_holds_is_never_written_smaller_than_it_is(epsilon: float) -> None:
    written = at_most(epsilon)
    assert epsilon * (1 - 1e-11) <= read(written) <= epsilon * 1.0101
    assert at_most(math.inf) == at_most(None) == digits(math.inf)
    proven = at_least(epsilon)
    assert epsilon / 1.0101 <= read(proven) <= epsilon * (1 + 1e-11)
    assert [at_least(3 * 1.1), at_least(9.999), at_least(1234.9), at_least(0.0)] == ["3.3", "9.99", "1,234", "0"]
    assert at_least(math.inf) == at_least(None) == digits(math.inf)
    assert [at_most(1000 * 0.1), at_most(7.501), at_most(1234.1)] == ["100", "7.51", "1,235"]


@pytest.mark.parametrize(
    "config",
    [
        replace(SOUND, as_printed=True, size="small", lr=0.02),
        SOUND,
        plain(SOUND, 3),
        replace(SOUND, keep_duplicates_together=False),
    ],
)
def test_train_command_makes_this_very_run(config: TrainConfig, trained: Callable[[str], Any]) -> None:
    line = train_command(config, "runs/my run")
    assert shlex.split(line)[:2] == ["edp-lab", "train"]
    assert shlex.split(line)[-2:] == ["--out", "runs/my run"]
    assert trained(line) == config
