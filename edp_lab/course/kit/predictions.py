"""Predictions: a notebook asks, keeps what the reader says, and settles it against the library.

    predict = Predictions("03")                     # the questions of this notebook's room.toml
    predict                                         # buttons and boxes
    predict.settle(claimed="stays", ratio=2.8)      # the truth, by question, computed where it is given

A question has ``ask``, ``why`` (one sentence once it is settled), and ``options`` or, for a number,
``unit`` and ``within``, the factor by which a guess may miss. ``wrong`` may have a sentence for an option.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from edp_lab.course.kit.controls import Control
from edp_lab.course.kit.exercises import room, texts
from edp_lab.course.kit.panel import Told
from edp_lab.course.kit.text import Html, digits, html_table
from edp_lab.course.kit.theme import Fit
from edp_lab.errors import UsageError
from edp_lab.files import write_whole

KEPT = "predictions.json"  # beside the notebook, once something is answered


class Predictions(widgets.VBox):
    """The questions of a notebook ("03"), with what was answered before.

    Attributes:
        answers: by question, the option that is chosen or the number that is typed; none where nothing is said yet.

    UsageError: there is no such notebook, or what was kept cannot be read.
    """

    def __init__(self, notebook: str) -> None:
        self._notebook, self.questions = notebook, texts(room(notebook), "predictions")
        kept = _kept().get(notebook, {})
        self.answers: dict[str, Any] = {name: kept[name] for name in self.questions if name in kept}
        rows: list[widgets.Widget] = [Fit()]
        for name, question in self.questions.items():
            rows += [Told(question["ask"]), self._control(name, question)]
        super().__init__(rows)
        self.add_class("edp-panel").add_class("edp-predictions")

    def _control(self, name: str, question: dict[str, Any]) -> Control:
        before = self.answers.get(name)
        if options := question.get("options"):
            control = Control("choice", "I say", before, options=[(one, one) for one in options])
        else:
            label = f"I say ({question['unit']})" if "unit" in question else "I say"
            control = Control("number", label, "" if before is None else before)
        control.observe(lambda _: self._keep(name, control), "entered")
        return control

    def _keep(self, name: str, control: Control) -> None:
        try:
            self.answers[name] = control.value if control.options else float(control.entered)
            control.error = ""
        except ValueError:
            control.error = f"{control.entered!r} is no number"
            return
        everything = _kept()
        everything[self._notebook] = self.answers
        write_whole(Path(KEPT), json.dumps(everything, indent=1).encode())

    def settle(self, **truths: Any) -> Html:
        """A table: what was asked, what the reader said, what is so, and why.

        Args:
            truths: by question, the right option or number.

        UsageError: a question is left out, or one that nobody asked is settled.
        """
        if truths.keys() != self.questions.keys():
            raise UsageError(f"settle {', '.join(self.questions)}, not {', '.join(truths) or 'nothing'}")
        rows = [("", "you said", "it is", "")]
        for name, question in self.questions.items():
            said, truth = self.answers.get(name), truths[name]
            right = said is not None and _right(said, truth, question.get("within", 1.0))
            told = question["why"] if right else question.get("wrong", {}).get(str(said), question["why"])
            mark = "" if said is None else "✓ " if right else "✗ "
            unit = f" {question['unit']}" if "unit" in question else ""
            shown = "not said" if said is None else said
            answer, fact = (one if isinstance(one, str) else digits(one) + unit for one in (shown, truth))
            rows.append((question["ask"], mark + answer, fact, told))
        return html_table(rows)


def _right(said: Any, truth: Any, within: float) -> bool:
    if isinstance(truth, str) or not (truth and said) or (said < 0) != (truth < 0):
        return bool(said == truth)
    return bool(1 / within <= said / truth <= within)


def _kept() -> dict[str, Any]:
    """What was answered, by notebook."""
    try:
        found = json.loads(Path(KEPT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError(f"{KEPT} is damaged: delete it, and answer again")
    return found
