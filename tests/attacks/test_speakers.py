"""The attack on speakers: it averages, finds those who were trained on, and says what the run promised them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edp_lab.attacks.membership.attacks import attack_speakers, load_crowd, load_target, speaker_scores
from edp_lab.attacks.membership.signals import signals
from edp_lab.corpora import load_corpus
from edp_lab.corpora.smart_home import generate, write_jsonl
from edp_lab.errors import UsageError
from edp_lab.training import TrainConfig, train

SETTINGS = {"size": "small", "dropout": 0.0, "epochs": 1, "num_devices": 1, "batch_size": 16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of 130 speakers, what they say later, and three runs on it."""
    folder = tmp_path_factory.mktemp("speakers")
    whole = generate(1400, 3, "health", speakers=130)
    write_jsonl(replace(whole, utterances=whole.utterances[:500]), folder / "own.jsonl")
    write_jsonl(whole, folder / "later.jsonl")
    chosen = TrainConfig(str(folder / "own.jsonl"), keep_speakers_together=True, **SETTINGS)
    train(replace(chosen, method="sgd", epochs=20), folder / "plain")
    train(replace(chosen, method="dp-sgd", z0=2.0), folder / "utterance")
    train(replace(chosen, method="dp-sgd", z0=2.0, unit="speaker", cap=5), folder / "speaker")
    return folder


def test_who_was_trained_on_is_found_by_all_they_say_and_others_are_not(folder):
    attacked = attack_speakers(folder / "plain")
    found = attacked.result
    assert found.members == found.non_members == 58
    assert 0.75 < found.auc_interval[0] < found.auc
    assert "nothing bounds this attack" in attacked.bound_said
    crowd = attacked.target
    for k in (0, 57, 115):
        own = [u for u, owner in zip(crowd.pool, crowd.owners, strict=True) if owner == k]
        assert len({u.speaker for u in own}) == 1
        assert attacked.scores[k] == pytest.approx(-signals(crowd.model, own).loss.mean())
    known = {u.line for u in load_corpus(folder / "own.jsonl").utterances}
    later = load_crowd(folder / "plain", str(folder / "later.jsonl"))
    assert not known & {u.line for u in later.pool}
    names = [{u.speaker for u in side} for side in (later.members, later.non_members)]
    assert not names[0] & names[1]
    assert len(speaker_scores(later.model, later.pool, later.owners)) == len(names[0]) + len(names[1])


def test_the_promise_to_a_speaker_is_that_of_the_unit(folder):
    one, several = (attack_speakers(folder / unit) for unit in ("speaker", "utterance"))
    assert {*load_target(folder / "speaker").members} <= {*one.target.members}  # no utterance that was not kept
    assert "for one speaker in another's place" in one.bound_said
    assert max(np.bincount(one.target.owners)) == 5  # what was kept of them
    most = several.target.most
    assert f"one speaker with up to {most} utterances" in several.bound_said
    assert several.result.bound is None or several.result.bound["epsilon"] > 20 * one.result.bound["epsilon"]
    assert one.result.bound["auc"] < 1
    assert one.result.auc_interval[0] < one.result.bound["auc"]


def test_a_run_with_speakers_on_both_sides_is_refused(folder, tmp_path):
    train(TrainConfig(str(folder / "own.jsonl"), method="sgd", **SETTINGS), tmp_path / "mixed")
    with pytest.raises(UsageError, match=r"train one with --unit speaker or --keep-speakers-together"):
        attack_speakers(tmp_path / "mixed")
    with pytest.raises(UsageError, match="0 speakers on a side are too few"):
        attack_speakers(folder / "plain", fresh=str(folder / "own.jsonl"))
