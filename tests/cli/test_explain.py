"""``edp-lab explain``: causes in order, each with a number and a command, and what is not private marked as such."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

from edp_lab.cli.explain import advice, report
from edp_lab.training.explain import Cause, explain


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


def test_who_has_promised_an_epsilon_is_not_told_to_drop_it(noised):
    found = explain(noised)
    found = found._replace(config=replace(found.config, private_seed=True), epsilon=3.0, causes=[])
    (more, call), epsilon = advice(found, Cause("too much noise", 9.0, "", {"z0": 0.01}))
    assert f"{2 * found.utterances:,} utterances" in more
    assert shlex.split(call)[2:] == ["--corpus", found.config.corpus, "--epsilon", "6", "--out", "runs/next"]
    assert epsilon == 6
    plain = shlex.split(report(found)["without_privacy"])
    assert plain[4:] == ["--method", "sgd", "--out", "runs/plain"]
