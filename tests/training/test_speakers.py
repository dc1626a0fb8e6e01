"""The unit is the speaker: one clipped gradient each, whatever they said, and an account that says so."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from hypothesis import given
from hypothesis import strategies as st

from edp_lab.corpora import Utterance, load_corpus, split
from edp_lab.corpora.corpus import cap_speakers
from edp_lab.errors import UsageError
from edp_lab.privacy import Adjacency, Mechanism, NoGuarantee, Unit, accountant_for
from edp_lab.training import TrainConfig, run_ledger, train
from edp_lab.training.dp_step import HEADROOM, clip
from edp_lab.training.gradients import model_gradients
from edp_lab.training.trainer import Trainer
from tests.training.own_corpus import config

SPEAKERS, CAP = 40, 4


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """40 speakers with 1, 2, ... utterances of 2 to 7 words, the last one with most of them."""
    path, rng = tmp_path_factory.mktemp("corpus") / "own.jsonl", np.random.default_rng(0)
    said = [*(1 + s % 8 for s in range(SPEAKERS - 1)), 200]
    rows = []
    for speaker, count in enumerate(said):
        for k in range(count):
            words = [*rng.choice(["play", "the", "song", "again", "now"], rng.integers(1, 7)).tolist(), str(k)]
            tags = ["O"] * (len(words) - 1) + ["B-number"]
            rows.append({"tokens": words, "tags": tags, "intent": words[0], "speaker": f"s{speaker}"})
    path.write_text("\n".join(json.dumps(rows[k]) for k in rng.permutation(len(rows))))
    return str(path)


def trainer(corpus: str, **changes: object) -> Trainer:
    loaded = load_corpus(corpus)
    chosen = config(corpus, **{"unit": "speaker", "cap": CAP, "batch_size": 9, "precision": "float64", **changes})
    return Trainer(chosen, loaded, split(loaded, 0, **chosen.split))


def test_the_step_is_a_loop_over_speakers(corpus):
    """Without noise: the mean gradient of each drawn speaker, clipped, over the expected number of them."""
    run = trainer(corpus, method="dp-sgd", z0=0.0, clip_norm=2.0, dropout=0.0, batch_size=12)
    drawn = [part for device in run.batches.devices(0, 0, 0) for part in device]
    parameters = [p for _, p in run.parameters]
    wanted, shortened = torch.zeros(run.layout.size, dtype=torch.float64), 0
    for part in drawn:
        said = [run.train_data.utterances[k] for k in part]
        assert len({u.speaker for u in said}) == 1
        assert len(said) <= CAP
        loss = torch.stack([run.model.losses(run.train_data.batch([k]))[0] for k in part]).mean()
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
        shortened += bool(gradient.norm() > 2)
        wanted += gradient * min(1.0, 2.0 * (1 - HEADROOM) / float(gradient.norm())) / 12
    assert len(drawn) > 3
    assert shortened  # some
    released = run.private.clip_and_noise(0, 0, run._gradients(drawn, 0))
    torch.testing.assert_close(released.gradient, wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("method", ["dp-sgd", "edp-sgd"])
def test_with_noise_and_dropout_the_fast_step_is_the_naive_one(corpus, method):
    def after(**changes: object) -> torch.Tensor:
        run = trainer(corpus, z0=0.01, clip_norm=2.0, lr=1e-3, **changes)
        for _ in range(4):
            run.step()
        return torch.cat([p.detach().flatten() for _, p in run.parameters])

    alone = {"micro_batch_size": 1} if method == "edp-sgd" else {}
    difference = after(method=method, **alone) - after(method="dp-sgd-naive")
    assert difference.abs().max() < 1e-9


@pytest.mark.parametrize(("size", "most"), [(1, 1.0), (3, 2.0)])
def test_one_speaker_less_moves_the_sum_by_the_sensitivity_and_no_other_speaker(corpus, size, most):
    """Everyone else stays in their micro-batch, so that add/remove is what the accountant takes it to be."""
    run = trainer(corpus, micro_batch_size=size, num_devices=2, dropout=0.0, z0=1.0, clip_norm=0.5)
    assert run.mechanism.sensitivity() == most * 0.5
    out = torch.zeros(run.layout.size, dtype=torch.float64)

    def clipped(parts: list[np.ndarray]) -> torch.Tensor:
        gradients = model_gradients(run.model, run.train_data, parts, None, run.layout)
        done = clip(run.mechanism, gradients, run.layout, None, run.config.micro_batches, out.clone())
        return done.total.spans[0].numbers * done.total.spans[0].scale * run.config.micro_batches

    for step in range(6):
        everyone = [part for device in run.batches.devices(0, 0, step) for part in device]
        for gone in range(0, run.batches.examples, 4):
            members = tuple(own[:0] if s == gone else own for s, own in enumerate(run.batches.members))
            rest = [p for device in replace(run.batches, members=members).devices(0, 0, step) for p in device]
            assert [sorted({*part} - {*run.batches.members[gone]}) for part in everyone] == [sorted(p) for p in rest]
            assert (clipped(everyone) - clipped(rest)).norm() <= most * 0.5 * (1 + 1e-9)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=40),
    st.integers(1, 5),
    st.integers(0, 9),
)
def test_what_is_kept_of_a_speaker_depends_on_them_alone(said, cap, seed):
    utterances = [Utterance(("word", str(word)), None, "intent", f"s{speaker}") for speaker, word in said]
    utterances += [Utterance(("a",), None, "intent", name) for name in ("x", "y")]
    kept, members = cap_speakers(utterances, cap, seed, "own")
    assert sorted(k for own in members for k in own) == list(range(len(kept)))
    for own in members:
        [speaker] = {kept[k].speaker for k in own}
        theirs = [u for u in utterances if u.speaker == speaker]
        assert len(own) == min(cap, len(theirs))
        other = Utterance(("b",), None, "intent", f"not {speaker}")
        alone = cap_speakers([other, *theirs[::-1]], cap, seed, "own")
        assert sorted(kept[k].line for k in own) == sorted(alone[0][k].line for k in alone[1][1])


def test_no_speaker_is_on_two_sides_and_how_much_one_says_moves_no_other(corpus):
    loaded = load_corpus(corpus)
    data = split(loaded, 3, keep_speakers_together=True)
    sides = [{u.speaker for u in side} for side in (data.train, data.validation, data.test)]
    assert [len(side) for side in sides] == [18, 2, 20]
    assert len(set.union(*sides)) == SPEAKERS
    assert {u.tokens for u in data.duplicates} == {u.tokens for u in data.test} & {u.tokens for u in data.train}
    once = tuple({u.speaker: u for u in loaded.utterances}.values())  # in the same order of speakers
    fewer = split(replace(loaded, utterances=once), 3, keep_speakers_together=True)
    assert [{u.speaker for u in side} for side in (fewer.train, fewer.validation, fewer.test)] == sides


@pytest.mark.parametrize(
    ("speakers", "batch", "z0", "steps", "micro_batch"),
    [(200, 20, 1.0, 50, 1), (1000, 64, 0.7, 300, 1), (5000, 64, 2.0, 1000, 8), (60, 30, 3.0, 12, 4)],
)
def test_epsilon_is_that_of_poisson_sampled_speakers(speakers, batch, z0, steps, micro_batch):
    """Between dp_accounting's optimistic and pessimistic estimates; the sensitivity is in z0 already."""
    chosen = TrainConfig(
        "x", unit="speaker", z0=z0, batch_size=batch, num_devices=2, micro_batch_size=micro_batch, clip_norm=0.3
    )
    mechanism, delta = chosen.mechanism(speakers), speakers**-1.1
    assert mechanism.unit is Unit.SPEAKER
    assert mechanism.adjacency is Adjacency.ADD_OR_REMOVE_ONE
    assert mechanism.noise_std(0) == pytest.approx(z0 * 0.3 * (1 if micro_batch == 1 else 2))
    found = accountant_for(mechanism, mechanism.bill(steps=steps)).epsilon(delta)
    low, high = (
        from_gaussian_mechanism(
            z0, pessimistic_estimate=pessimistic, sampling_prob=batch / speakers, value_discretization_interval=1e-3
        )
        .self_compose(steps)
        .get_epsilon_for_delta(delta)
        for pessimistic in (False, True)
    )
    assert low <= found * (1 + 1e-9)
    assert found <= high * (1 + 1e-3)


def test_a_run_says_whom_it_protects(corpus, tmp_path: Path):
    chosen = config(corpus, unit="speaker", method="dp-sgd", batch_size=6, num_devices=1, z0=2.0, private_seed=True)
    record = train(replace(chosen, epochs=1), tmp_path / "run")
    ledger, scope = run_ledger(tmp_path / "run"), record["guarantee"]["scope"]
    assert ledger.mechanism.unit is Unit.SPEAKER
    assert ledger.mechanism.sampling_rate == 6 / 18
    assert record["config"]["delta"] == 18**-1.1
    assert record["guarantee"]["status"] == "holds"
    assert "unit: one speaker" in scope
    assert "add or remove one speaker" in scope
    assert record["corpus"]["splits"]["speakers"] == 18
    json.dumps(record)


def test_what_has_no_guarantee_is_refused():
    shuffled = TrainConfig("x", unit="speaker", sampling="shuffle").mechanism()
    assert shuffled.adjacency is Adjacency.ZERO_OUT
    with pytest.raises(NoGuarantee, match="one speaker shifts every later batch"):
        shuffled.sensitivity(Adjacency.ADD_OR_REMOVE_ONE)
    with pytest.raises(UsageError, match="unknown unit 'household'"):
        Mechanism.sound(1.0, 1.0, 1, 1, unit="household")
