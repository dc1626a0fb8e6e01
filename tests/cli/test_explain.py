"""``edp-lab explain``: causes in order, each with a number and a command, and what is not private marked as such."""

from __future__ import annotations

import json
import shlex


def test_a_person_reads_causes_and_a_command_that_can_be_typed(cli, noised):
    status, out, err = cli("explain", str(noised))
    assert (status, err) == (0, "")
    for said in ("SER", "1. too ", "edp-lab train", "noise a step", "no privacy was spent", "--method sgd"):
        assert said in out
    assert "NOT PRIVATE" not in out
    found = json.loads(cli("explain", str(noised), "--json")[1])
    factors = [cause["factor"] for cause in found["causes"]]
    assert factors == sorted(factors, reverse=True)
    for cause in found["causes"]:
        command = cause["commands"][-1]
        assert shlex.split(command)[:2] == ["edp-lab", "train"]
        assert "--delta" not in command
        assert "--lr " not in command


def test_a_look_at_the_training_set_is_marked(cli, noised):
    status, out, _ = cli("explain", str(noised), "--look")
    assert status == 0
    assert "NOT PRIVATE, not to be published" in out
    assert "no privacy was spent" not in out
