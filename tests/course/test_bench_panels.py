"""`edp-lab bench panels`: finds the cheap panels of a notebook and times them, in the kernel and in a browser."""

import json
from pathlib import Path

from nbformat.v4 import new_code_cell

from edp_lab.course.kit.controls import choice, number
from edp_lab.course.kit.figure import Figure, figure, line
from edp_lab.course.kit.panel import Panel
from edp_lab.course.publish import browser as browsing
from edp_lab.course.publish import panel_driver as live
from tests.course.conftest import invoked, store

PANEL = """
import time
from edp_lab.course.kit import theme
from edp_lab.course.kit.controls import number
from edp_lab.course.kit.figure import figure, line
from edp_lab.course.kit.panel import Panel

def compute(C):
    time.sleep(0.03)
    return C

theme.activate()
draw = lambda C: figure("a line", line("c", "black", x=[0, 1], y=[C, 2 * C]), height=300)
controls = {"C": number("clip norm", 1.0, [0.5, 1.0, 2.0, 4.0])}
panel = Panel("Clip", "A line.", compute, [draw], str, lambda result, C: f"clip {C}", **controls)
panel
"""


def small_panel() -> tuple[Panel, list[float]]:
    seen: list[float] = []
    controls = {
        "C": number("C", 1.0, [0.5, 1.0, 2.0]),
        "way": choice("way", "up", {"up": "up", "down": "down"}),
        "N": number("N", 1, [1, 2]),
    }

    def words(result: float) -> str:
        seen.append(result)
        return ""

    return Panel("A <b>panel</b>", "It.", lambda C, way, N: C * N, [], words, lambda result, **_: "", **controls), seen


def test_moves_are_shared_among_sliders_turn_round_at_the_ends_and_are_undone() -> None:
    panel, seen = small_panel()
    seen.clear()
    assert len(live.move(panel, 7)) == 7
    assert seen[:4] == [2.0, 1.0, 0.5, 1.0]  # four of C, then back to its default, then three of N
    assert [value for value in seen[4:] if value != 1.0] == [2.0, 2.0]
    assert panel.values == {"C": 1.0, "way": "up", "N": 1}
    assert panel.title == "A <b>panel</b>"


def test_what_a_panel_shows_is_told_in_numbers() -> None:
    def draw(C: float) -> Figure:
        heat = {"type": "heatmap", "z": [[1, 2], [3, C]]}
        return figure("two traces", line("l", "black", x=["a", "b"], y=[C, None]), heat, height=300)

    panel = Panel("P", "It.", lambda C: C, [draw], str, lambda result, C: "", C=number("C", 4.0, [1.0, 4.0]))
    shown = live.shown(panel)
    assert shown["sliders"] == 1
    assert "4.0" in shown["words"]
    scatter, heatmap = shown["figures"][0]
    assert "x" not in scatter
    assert heatmap["z"] == [1.0, 2.0, 3.0, 4.0]


def test_bench_times_a_panel_in_the_kernel_and_in_the_browser(tmp_path: Path) -> None:
    store(tmp_path / "00_start.ipynb", new_code_cell(PANEL))
    for moves in [0] if browsing.missing() else [0, 8]:
        often = "--moves", 20, "--browser-moves", moves
        result = invoked("bench", "panels", "--notebooks", tmp_path, *often, "--json")
        assert result.exit_code == 0, result.output
        [row] = json.loads(result.stdout)
        assert (row["notebook"], row["panel"]) == ("00_start", "Clip")
        assert (row["moves"], row["browser_moves"]) == (20, moves)
        assert 30 < row["kernel_ms_p95"] < 1000  # compute alone sleeps for 30
        assert 30 < row["browser_ms_p95"] < 5000 if moves else row["browser_ms_p95"] is None
