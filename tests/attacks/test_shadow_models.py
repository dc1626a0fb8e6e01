"""Shadow models by real workers: what is kept, what is trained again, and what is left when something dies."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edp_lab.attacks.membership import signals as shadow_models
from edp_lab.attacks.membership.signals import (
    ShadowSignals,
    default_cache,
    half_samples,
    shadow_signals,
    signals,
    train_shadow,
)
from edp_lab.corpora import Corpus, Utterance, split
from edp_lab.corpora.smart_home import generate, write_jsonl
from edp_lab.errors import UsageError
from edp_lab.models import load_model
from edp_lab.training import TrainConfig, result_cache, train
from edp_lab.training.result_cache import NUMERICS
from tests.training.own_corpus import runs, wait_for

ROOT = Path(__file__).parents[2]
CORPUS = generate(60, seed=1, domain="health")
POOL = CORPUS.utterances
CONFIG = TrainConfig(CORPUS.name, method="sgd", size="small", epochs=1, batch_size=16)
# A parent of two workers, in a process of its own, which says how many shadow models are done.
PARENT = """
import sys
from dataclasses import replace
from pathlib import Path
from test_shadow_models import CONFIG, CORPUS, POOL, shadow_signals
config = replace(CONFIG, epochs=25)
say = lambda done, total: print(done, total, flush=True)
shadow_signals(config, CORPUS, POOL, 4, cache=Path(sys.argv[1]), progress=say, workers=2)
"""


def no_training(*arguments: object, **options: object) -> None:
    raise AssertionError("something is trained")


def found_at_once(config: TrainConfig, shadows: int, cache: Path) -> int:
    """How many shadow models need no training; what the callback raises ends the work."""

    def note(done: int, total: int) -> None:
        raise StopIteration(done)

    with pytest.raises(StopIteration) as ended:
        shadow_signals(config, CORPUS, POOL, shadows, cache=cache, progress=note)
    return int(ended.value.value)


def children(pid: int) -> list[int]:
    """The processes that train shadow models for this one, whatever else it has started."""
    listed = Path(f"/proc/{pid}/task").glob("*/children")
    started = [child for file in listed for child in file.read_text().split()]
    return [int(child) for child in started if "training.result_cache" in Path(f"/proc/{child}/cmdline").read_text()]


@pytest.mark.parametrize("method", ["sgd", "edp-sgd", "dp-sgd"])
def test_a_shadow_model_is_bit_for_bit_the_model_that_training_makes(method: str, tmp_path: Path) -> None:
    own = tmp_path / "own.jsonl"
    write_jsonl(CORPUS, own)
    config = replace(CONFIG, corpus=str(own), method=method, num_devices=4, epochs=2, seed=5)
    train(config, tmp_path / "run")
    trained = load_model(tmp_path / "run" / "model")
    corpus = shadow_models.load_corpus(str(own))
    shadow = train_shadow(replace(config, seed=0), corpus, split(corpus, 5).train, seed=5, cache=tmp_path / "cache")
    assert shadow.state_dict().keys() == trained.state_dict().keys()
    assert all(torch.equal(tensor, trained.state_dict()[name]) for name, tensor in shadow.state_dict().items())


def test_a_shadow_model_is_trained_once_and_again_only_if_its_file_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = train_shadow(CONFIG, CORPUS, POOL[:20], 1, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shadow_models, "_train", no_training)
        again = train_shadow(replace(CONFIG, seed=9), CORPUS, POOL[:20], 1, tmp_path)
        np.testing.assert_array_equal(signals(again, POOL).logits, signals(first, POOL).logits)
        weights = next(tmp_path.glob("*/weights-*"))
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
        with pytest.raises(AssertionError, match="is trained"):
            train_shadow(CONFIG, CORPUS, POOL[:20], 1, tmp_path)
    mended = train_shadow(CONFIG, CORPUS, POOL[:20], 1, tmp_path)
    np.testing.assert_array_equal(signals(mended, POOL).logits, signals(first, POOL).logits)


def test_whatever_a_shadow_model_depends_on_is_in_its_key_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[TrainConfig] = []

    def trains(config: TrainConfig, corpus: Corpus = CORPUS, train: Any = POOL[:20], seed: int = 1) -> bool:
        before = len(asked)
        train_shadow(config, corpus, train, seed, tmp_path)
        return len(asked) > before

    trained = train_shadow(CONFIG, CORPUS, POOL[:20], 1, tmp_path)
    monkeypatch.setattr(shadow_models, "_train", lambda config, *_: asked.append(config) or trained)
    vectors = tmp_path / "words.vec"
    vectors.write_text("1 2\nnurse 0.5 0.5\n")
    pretrained = replace(CONFIG, pretrained=str(vectors))
    changed = Utterance(POOL[3].tokens, POOL[3].tags, CORPUS.intents[0])
    assert changed != POOL[3]
    assert all(trains(other) for other in (replace(CONFIG, lr=0.5), replace(CONFIG, method="edp-sgd"), pretrained))
    assert trains(CONFIG, replace(CORPUS, intents=(*CORPUS.intents, "other")))
    for members in (POOL[:21], POOL[19::-1], (*POOL[:3], changed, *POOL[4:20])):
        assert trains(CONFIG, train=members)
    assert trains(CONFIG, seed=2)
    vectors.write_text("1 2\nnurse 0.5 0.6\n")
    assert trains(pretrained)
    for area in ("training", "membership"):
        with monkeypatch.context() as patch:
            patch.setitem(NUMERICS, area, 99)
            assert trains(CONFIG)
    same = replace(CONFIG, corpus="elsewhere", seed=7, processes=2, private_seed=True)
    assert not trains(same, replace(CORPUS, name="elsewhere", utterances=POOL[:30]))


@pytest.mark.parametrize("shadows", [4, 16])
def test_each_utterance_is_in_half_of_the_training_sets_beside_its_duplicates(shadows: int) -> None:
    pool = (*generate(300, seed=2).utterances, *POOL, *POOL[:30])
    inside = half_samples(pool, shadows, seed=0)
    assert inside.shape == (shadows, len(pool))
    assert (inside.sum(0) == shadows // 2).all()
    np.testing.assert_array_equal(inside[:, -30:], inside[:, 300:330])
    assert abs(inside.mean(1) - 0.5).max() < 0.12
    first = inside[:, :300].mean(1) - inside[:, 300:].mean(1)
    assert abs(first).max() < 0.25
    np.testing.assert_array_equal(inside, half_samples(pool, shadows, seed=0))
    assert (inside != half_samples(pool, shadows, seed=1)).any()


@pytest.mark.parametrize(
    ("pool", "shadows", "seed", "said"),
    [(POOL, 5, 0, "even"), (POOL, 2, 0, "at least 4"), (POOL, 4, -1, "negative"), (POOL[:1] * 3, 4, 0, "two texts")],
)
def test_a_design_that_cannot_be_is_refused(pool: tuple[Utterance, ...], shadows: int, seed: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        shadow_signals(CONFIG, CORPUS, pool, shadows, seed)


def test_signals_are_kept_and_are_those_of_models_of_the_rows_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing or damaged is trained: see the tests of kept results."""
    told: list[tuple[int, int]] = []
    untagged = replace(CORPUS, utterances=tuple(replace(u, tags=None) for u in POOL), slots=())

    def attack(corpus: Corpus) -> ShadowSignals:
        told.clear()
        return shadow_signals(
            CONFIG, corpus, corpus.utterances, 4, 3, tmp_path, lambda *state: told.append(state), workers=2
        )

    first, found = attack(CORPUS), attack(untagged)
    assert told == [(done, 4) for done in range(5)]
    assert first.signals.logits.shape == (4, len(POOL), 2)
    assert sum(entry.stat().st_size for entry in tmp_path.iterdir()) < 8 * (1000 + 80 * len(POOL))
    monkeypatch.setattr(result_cache, "Ranks", no_training)
    again = attack(CORPUS)
    assert told == [(4, 4)]
    for one, other in zip(first.signals, again.signals, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(first.inside, half_samples(POOL, 4, 3))
    with pytest.raises(AssertionError, match="is trained"):
        attack(replace(CORPUS, utterances=POOL[:-1]))
    assert found.signals.tags_logit is None
    seeds = np.random.default_rng([3, 1]).integers(2**40, 2**48, 4).tolist()
    assert len(set(seeds)) == 4
    for row, inside, seed in zip(found.signals.logits, found.inside, seeds, strict=True):
        mine = [u for u, used in zip(untagged.utterances, inside, strict=True) if used]
        model = train_shadow(CONFIG, untagged, mine, seed, tmp_path)
        np.testing.assert_allclose(row, signals(model, POOL).logits, atol=1e-3)


def test_a_worker_that_dies_is_named_in_one_sentence_and_what_is_finished_stays(tmp_path: Path) -> None:
    def kill(done: int, total: int) -> None:
        if done == 1:
            workers.extend(children(os.getpid()))
            os.kill(workers[0], signal.SIGKILL)

    workers: list[int] = []
    config = replace(CONFIG, epochs=40)  # no worker is through before it is killed
    with pytest.raises(UsageError) as refusal:
        shadow_signals(config, CORPUS, POOL, 8, cache=tmp_path, progress=kill, workers=2)
    said = str(refusal.value)
    assert said.startswith("a process that trains shadow models was killed by signal SIGKILL")
    assert str(tmp_path) in said
    assert "\n" not in said
    assert not any(map(runs, workers))
    kept = len(list(tmp_path.glob("*.json")))
    assert kept >= 1
    assert found_at_once(config, 8, tmp_path) == kept


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_parent_that_is_killed_leaves_no_worker_no_corpus_and_what_was_finished(
    how: signal.Signals, tmp_path: Path
) -> None:
    cache, scratch = tmp_path / "cache", tmp_path / "scratch"
    scratch.mkdir()
    path = os.pathsep.join([str(Path(__file__).parent), str(ROOT)])
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(cache)],
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "0 4\n"
    assert parent.stdout.readline() == "1 4\n"
    workers = children(parent.pid)
    assert len(workers) == 2
    parent.send_signal(how)
    _, errors = parent.communicate(timeout=20)
    assert wait_for(lambda: not any(map(runs, workers)), 10)
    if how == signal.SIGINT:
        assert errors.strip().splitlines()[-1].startswith("KeyboardInterrupt: interrupted; finished shadow models are")
        assert not list(scratch.iterdir())
    assert not [file for file in scratch.rglob("*") if file.is_file()]
    assert 1 <= len(list(cache.glob("*.json"))) < 4
    assert found_at_once(replace(CONFIG, epochs=25), 4, cache) == len(list(cache.glob("*.json")))


def test_the_cache_lies_in_the_users_folder_or_in_one_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "edp_lab" / "shadows"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == Path.home() / ".cache" / "edp_lab" / "shadows"
    (tmp_path / "file").write_text("")
    for use in (shadow_signals, lambda *rest, cache: train_shadow(*rest, 0, cache)):
        with pytest.raises(UsageError, match="cannot be written"):
            use(CONFIG, CORPUS, POOL, cache=tmp_path / "file")
