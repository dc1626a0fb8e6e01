"""Predictions are asked, kept between starts of a notebook, and settled against what the library says."""

from pathlib import Path

import pytest

import edp_lab
from edp_lab.course.kit import predictions
from edp_lab.course.kit.controls import Control
from edp_lab.errors import UsageError

TOML = """
[predictions.claimed]
ask = "From 8 GPUs to 2: what happens to the claimed ε?"
options = ["falls", "stays", "rises"]
why = "The claim does not know N."
wrong = { falls = "That is what holds." }

[predictions.ratio]
ask = "How many times longer is the noise?"
unit = "times"
within = 1.5
why = "N to the power of 1.5."
"""


@pytest.fixture(autouse=True)
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "course" / "nb77_test"
    package.mkdir(parents=True)
    (package / "room.toml").write_text(TOML)
    monkeypatch.setattr(edp_lab, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.chdir(tmp_path)


def controls(predict: predictions.Predictions) -> list[Control]:
    return [child for child in predict.children if isinstance(child, Control)]


def test_what_was_said_is_kept_and_settled_with_a_sentence_for_the_wrong_answer() -> None:
    predict = predictions.Predictions("77")
    assert "not said" in predict.settle(claimed="stays", ratio=8)
    assert not Path(predictions.KEPT).exists()
    claimed, ratio = controls(predict)
    claimed.entered = 0
    ratio.entered = "many"
    assert ratio.error == "'many' is no number"
    ratio.entered = 6
    again = predictions.Predictions("77")
    assert again.answers == {"claimed": "falls", "ratio": 6.0}
    assert [control.entered for control in controls(again)] == [0, 6]
    told = again.settle(claimed="stays", ratio=8)
    assert "✗ falls" in told
    assert "That is what holds." in told
    assert "✓ 6 times" in told  # within a factor of 1.5
    assert "✗ 6 times" in again.settle(claimed="stays", ratio=9.1)


def test_bad_use_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="there is no notebook"):
        predictions.Predictions("78")
    with pytest.raises(UsageError, match="settle claimed, ratio, not claimed"):
        predictions.Predictions("77").settle(claimed="stays")
    Path(predictions.KEPT).write_text("[")
    with pytest.raises(UsageError, match=r"predictions\.json is damaged: delete it"):
        predictions.Predictions("77")
