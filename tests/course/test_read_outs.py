"""Command lines give the epsilon that a panel shows."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from edp_lab.course.kit.inputs import SOUND
from edp_lab.course.kit.panel import PANELS
from edp_lab.course.nb01_coins.compute import GAUSSIAN
from edp_lab.course.nb03_edp_sgd.compute import CLAIMED, PRINTED
from edp_lab.course.nb03_edp_sgd.compute import SOUND as SOUND_VARIANT
from edp_lab.course.nb05_models.panels import layers
from edp_lab.course.nb08_audit.compute import StepNoise
from edp_lab.errors import UsageError
from tests.course.examples import THESIS, panel_of, phases_sketch, report_of


def compute_of(name: str, **values: Any) -> Any:
    """What a panel computes for values that its controls do not offer."""
    panel = panel_of(name)
    return panel._compute(**{**panel.values, **values})


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: compute_of("06 ladder", adjacency="ADD_OR_REMOVE_ONE"), "there is no number for add/remove"),
        (lambda: layers("gpt", None), "unknown model 'gpt': choose clc, bert"),  # type: ignore[arg-type]
        (lambda: StepNoise(-1), "seed is -1"),
        (lambda: PANELS["10 votes"](phases_sketch(), replace(THESIS, vote="hard")), "a hard vote has no noise to look"),
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
    ("03 promise", [{}, {"micro_batch_size": 1}], 0, "holds", lambda r: r.epsilon[PRINTED]),
    ("03 promise", [{}, {"alpha_max": 3.0}], 0, "claimed", lambda r: r.epsilon[CLAIMED]),
    ("03 promise", [{}, {"alpha_max": 3.0}], 1, "holds", lambda r: r.epsilon[SOUND_VARIANT]),
    ("09 noise", [{}, {"variant": SOUND}], 0, "claimed", lambda r: r.guarantee.epsilon_claimed),
    ("09 noise", [{"variant": SOUND}], 0, "holds", lambda r: r.guarantee.epsilon),
    ("06 ladder", [{}, LADDER], 0, "holds", lambda r: r.chosen.epsilon),
    ("06 ladder", [{}, LADDER], 1, "holds", lambda r: r.rungs[0].equal_epsilon),
    ("04 bill", [{}, {"variant": SOUND}], 0, "claimed", lambda r: r.guarantee.epsilon_claimed),
    ("04 bill", [{"variant": SOUND}], 0, "holds", lambda r: r.guarantee.epsilon),
    ("04 loss", [{}], 0, "holds", lambda r: r.epsilon),
    ("04 sampling", [{}], 0, "holds", lambda r: r.sampled[-1]),
    ("04 sampling", [{}], 1, "holds", lambda r: r.shuffled[-1]),
    (
        "03 stages",
        [{}, {"as_printed": False, "alpha_large": 5.0}, {"num_devices": 2, "z": 3.0}],
        0,
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
        shown = report[what]["epsilon" if what == "claimed" else "epsilon_in_real_numbers"]
        assert shown == pytest.approx(epsilon(panel.result), rel=1e-4 if name[:2] in ("01", "06") else 1e-6)
        held = getattr(panel.result, "guarantee", None)
        assert held is None or report["holds"]["adjacency"] == held.adjacency
