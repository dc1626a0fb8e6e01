"""Signals, compared with the model's own losses and with all tag sequences, also if p is almost 0 or 1. Shadow models
trained by real workers: which results are stored, and which are recomputed."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from edp_lab.attacks import lira as lira_module
from edp_lab.attacks import loss as loss_module
from edp_lab.attacks import shadow as module
from edp_lab.attacks.lira import ShadowLogits, half_samples, shadow_logits
from edp_lab.attacks.loss import MOST, signals
from edp_lab.attacks.shadow import settled, shadow_model, shadow_scores, sorted_scores
from edp_lab.corpora.corpus import Corpus, Utterance, split
from edp_lab.corpora.encoding import Labels, WordFeatures
from edp_lab.corpora.smart_home import generate, write_jsonl
from edp_lab.errors import UsageError
from edp_lab.jobs import NUMERICS
from edp_lab.models.clc import CLC, CLCSize
from edp_lab.models.factory import load_model
from edp_lab.training.config import TrainConfig
from edp_lab.training.session import train
from tests.models.test_clc import enumerate_paths

SIZE = CLCSize(hidden=5, layers=1, word=4, character=3, filters=3)
POOL = generate(40, seed=3).utterances
HOME = Labels(generate(1, seed=3).intents, generate(1, seed=3).tags)
TINY = Labels(("call", "play", "stop"), ("O", "B-name", "I-name"))
SENTENCES = (
    Utterance(("call", "anna", "lee", "now"), ("O", "B-name", "I-name", "O"), "call"),
    Utterance(("stop",), ("O",), "stop"),
    Utterance(("play", "anna"), ("O", "I-name"), "play"),
)


def model(labels: Labels, seed: int = 0, spread: float = 1.0) -> CLC:
    """A model with weights large enough for its scores to differ."""
    torch.manual_seed(seed)
    made = CLC(labels, WordFeatures(buckets=16), SIZE).double()
    with torch.no_grad():
        for p in made.parameters():
            p.copy_(spread * torch.randn_like(p))
    return made


def constant(intent: list[float], slots: list[float]) -> CLC:
    """A model whose scores are these biases for any words, and whose CRF has no scores."""
    made = model(TINY, spread=0.0).float()
    with torch.no_grad():
        made.intent.bias.copy_(torch.tensor(intent))
        made.slots.bias.copy_(torch.tensor(slots))
    return made


def logit(p: float) -> float:
    return float(np.log(p) - np.log1p(-p))


def paths(made: CLC, utterance: Utterance) -> dict[tuple[int, ...], float]:
    """The probability of every tag sequence, by enumeration."""
    _, emissions, _ = made.scores(made.dataset([utterance]).batch([0]))
    found, scores = enumerate_paths(made.crf, emissions[0])
    return dict(zip(map(tuple, found.tolist()), scores.softmax(0).tolist(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_is_the_models_own_without_dropout(dtype: torch.dtype) -> None:
    made = model(HOME).to(dtype)
    own = made.losses(made.dataset(POOL).batch(range(len(POOL)))).detach().numpy()
    found = signals(made.train(), POOL).loss
    np.testing.assert_allclose(found, own, rtol=1e-5 if dtype == torch.float32 else 1e-12)


def test_logits_are_those_of_all_tag_sequences_and_intents_counted_out() -> None:
    made = model(TINY)
    found = signals(made, SENTENCES)
    for k, utterance in enumerate(SENTENCES):
        p = paths(made, utterance)[tuple(TINY.tags.index(tag) for tag in utterance.tags or ())]
        log_p = made.scores(made.dataset([utterance]).batch([0]))[0][0].detach().exp().numpy()
        own = TINY.intents.index(utterance.intent)
        assert found.logits[k] == pytest.approx([logit(float(log_p[own])), logit(p)], rel=1e-9)
        assert found.loss[k] == pytest.approx(-np.log(log_p[own]) - np.log(p), rel=1e-9)


def test_rows_keep_the_order_of_the_utterances_whatever_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for own in (loss_module, module):
        monkeypatch.setattr(own, "BATCH", 7)
    made = model(HOME)
    found, one_by_one = signals(made, POOL), [signals(made, [u]) for u in POOL]
    np.testing.assert_allclose(found.loss, [one.loss[0] for one in one_by_one])
    np.testing.assert_allclose(found.logits, [one.logits[0] for one in one_by_one])
    assert found.loss.dtype == found.logits.dtype == np.float64
    scores = sorted_scores(made, POOL)
    np.testing.assert_allclose(scores, np.concatenate([sorted_scores(made, [u]) for u in POOL]))


@pytest.mark.parametrize(
    ("head", "gap", "rel"),
    [(head, gap, 1e-5) for head in ("intent", "other intents") for gap in (20.0, 60.0, 300.0)]
    + [("tags", 10.0, 1e-6), ("tags", 22.0, 1e-4), ("tags", -40.0, 1e-6)],
)
def test_a_logit_is_right_where_p_is_as_good_as_0_or_1(head: str, gap: float, rel: float) -> None:
    """Also if a float32 probability is 1. The only word of "stop" has the tag O, and all other scores are 0."""
    intents = {"intent": [0.0, 0.0, gap], "other intents": [gap, gap, 0.0], "tags": [0.0] * 3}[head]
    found = signals(constant(intents, [gap if head == "tags" else 0.0, 0.0, 0.0]), SENTENCES[1:2])
    expected = -gap - np.log(2) if head == "other intents" else gap - np.log(2)
    assert found.logits[0, int(head == "tags")] == pytest.approx(expected, rel=rel)


@pytest.mark.parametrize("gap", [1e3, 1e6, 1e9])
def test_logits_stay_finite_at_both_ends_and_in_order(gap: float) -> None:
    sure = signals(constant([gap, 0, 0], [gap, 0, 0]), SENTENCES[:2])
    assert np.isfinite(sure.loss).all()
    assert sure.logits[:, 0].tolist() == [MOST, -MOST]
    assert sure.logits[0, 1] == -MOST
    assert 27 < sure.logits[1, 1] < 28
    assert sure.loss[0] > gap / 2
    assert sure.loss[1] == pytest.approx(gap)


def test_a_single_intent_is_certain_and_without_slots_there_is_one_logit() -> None:
    found = signals(model(replace(TINY, intents=("call",))), SENTENCES[:1])
    assert found.logits[:, 0].tolist() == [MOST]
    assert found.loss[0] > 0
    untagged = [replace(u, tags=None) for u in SENTENCES]
    made = model(replace(TINY, tags=()))
    found = signals(made, untagged)
    assert found.logits.shape == (3, 1)
    np.testing.assert_allclose(found.loss, np.log1p(np.exp(-found.logits[:, 0])))
    assert (sorted_scores(made, untagged)[:, 3:] == 0).all()


def test_sorted_scores_are_probabilities_sorted_within_tokens_and_averaged_over_them(monkeypatch) -> None:
    monkeypatch.setattr(module, "INTENT_WIDTH", 2)
    monkeypatch.setattr(module, "SLOT_WIDTH", 5)
    made = model(TINY, seed=2)
    found = sorted_scores(made, SENTENCES)
    best: set[int] = set()
    for row, utterance in zip(found, SENTENCES, strict=True):
        log_intent = made.scores(made.dataset([utterance]).batch([0]))[0]
        np.testing.assert_allclose(row[:2], sorted(log_intent.detach().exp()[0].tolist(), reverse=True)[:2])
        marginal = np.zeros((len(utterance.tokens), len(TINY.tags)))
        for path, p in paths(made, utterance).items():
            marginal[range(len(path)), path] += p
        np.testing.assert_allclose(row[2:5], np.sort(marginal)[:, ::-1].mean(0))
        assert row[5:].tolist() == [0, 0]
        best |= set(marginal.argmax(1).tolist())
    assert len(best) > 1  # otherwise, averaging first would give the same result


def test_a_model_that_has_diverged_is_refused() -> None:
    for use in (signals, sorted_scores):
        for part in ("intent", "slots"):
            made = model(TINY)
            with torch.no_grad():
                getattr(made, part).bias[0] = torch.nan
            with pytest.raises(UsageError, match="diverged"):
                use(made, SENTENCES)


# ---- Shadow models, by real workers ----------------------------------------------------------------------------------

CORPUS = generate(60, seed=1, domain="health")
PEOPLE = CORPUS.utterances
CONFIG = TrainConfig(CORPUS.name, method="sgd", size="small", epochs=1, batch_size=16)


def no_training(*arguments: object, **options: object) -> None:
    raise AssertionError("something is trained")


@pytest.mark.parametrize("method", ["sgd", "edp-sgd", "dp-sgd"])
def test_a_shadow_model_is_bit_for_bit_the_model_that_training_makes(method: str, tmp_path: Path) -> None:
    own = tmp_path / "own.jsonl"
    write_jsonl(CORPUS, own)
    config = replace(CONFIG, corpus=str(own), method=method, num_devices=4, epochs=2, seed=5)
    train(config, tmp_path / "run")
    trained = load_model(tmp_path / "run" / "model")
    corpus = module.load_corpus(str(own))
    shadow = shadow_model(settled(config, 5), corpus, split(corpus, 5).train)
    assert shadow.state_dict().keys() == trained.state_dict().keys()
    assert all(torch.equal(tensor, trained.state_dict()[name]) for name, tensor in shadow.state_dict().items())


def test_whatever_scores_of_a_shadow_model_depend_on_is_in_their_key_and_nothing_else(tmp_path, monkeypatch):
    """It is trained only once. Damaged results count as missing: see the tests of stored results."""
    asked: list[TrainConfig] = []
    trained = shadow_model(CONFIG, CORPUS, PEOPLE[:20])
    monkeypatch.setattr(module, "shadow_model", lambda config, *_: asked.append(config) or trained)

    def trains(
        config: TrainConfig, corpus: Corpus = CORPUS, train: Any = PEOPLE[:20], seed: int = 1, pool: Any = PEOPLE
    ) -> bool:
        before = len(asked)
        scores = shadow_scores(settled(config, seed), corpus, train, pool, tmp_path)
        np.testing.assert_array_equal(scores, sorted_scores(trained, pool))
        return len(asked) > before

    assert trains(CONFIG)
    vectors = tmp_path / "words.vec"
    vectors.write_text("1 2\nnurse 0.5 0.5\n")
    pretrained = replace(CONFIG, pretrained=str(vectors))
    changed = Utterance(PEOPLE[3].tokens, PEOPLE[3].tags, CORPUS.intents[0])
    assert changed != PEOPLE[3]
    assert all(trains(other) for other in (replace(CONFIG, lr=0.5), replace(CONFIG, method="edp-sgd"), pretrained))
    assert trains(CONFIG, replace(CORPUS, intents=(*CORPUS.intents, "other")))
    for members in (PEOPLE[:21], PEOPLE[19::-1], (*PEOPLE[:3], changed, *PEOPLE[4:20])):
        assert trains(CONFIG, train=members)
    assert trains(CONFIG, seed=2)
    assert trains(CONFIG, pool=PEOPLE[::-1])
    vectors.write_text("1 2\nnurse 0.5 0.6\n")
    assert trains(pretrained)
    for area in ("training", "membership"):
        with monkeypatch.context() as patch:
            patch.setitem(NUMERICS, area, 99)
            assert trains(CONFIG)
    same = replace(CONFIG, corpus="elsewhere", seed=7, processes=2, private_seed=True)
    assert not trains(same, replace(CORPUS, name="elsewhere", utterances=PEOPLE[:30]))


@pytest.mark.parametrize("shadows", [4, 16])
def test_each_utterance_is_in_half_of_the_training_sets_beside_its_duplicates(shadows: int) -> None:
    pool = (*generate(300, seed=2).utterances, *PEOPLE, *PEOPLE[:30])
    inside = half_samples(pool, shadows, seed=0)
    assert inside.shape == (shadows, len(pool))
    assert (inside.sum(0) == shadows // 2).all()
    np.testing.assert_array_equal(inside[:, -30:], inside[:, 300:330])
    assert abs(inside.mean(1) - 0.5).max() < 0.12
    np.testing.assert_array_equal(inside, half_samples(pool, shadows, seed=0))
    assert (inside != half_samples(pool, shadows, seed=1)).any()


@pytest.mark.parametrize(("pool", "shadows", "seed", "said"), [(PEOPLE, 5, 0, "even"), (PEOPLE, 2, 0, "at least 4")])
def test_a_design_that_cannot_be_is_refused(pool: tuple[Utterance, ...], shadows: int, seed: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        shadow_logits(CONFIG, CORPUS, pool, shadows, seed)


def test_logits_are_kept_and_are_those_of_models_of_the_rows_halves(tmp_path, monkeypatch):
    """Missing or damaged results are recomputed: see the tests of stored results."""
    heard: list[str] = []
    untagged = replace(CORPUS, utterances=tuple(replace(u, tags=None) for u in PEOPLE), slots=())

    def attack(corpus: Corpus) -> ShadowLogits:
        heard.clear()
        return shadow_logits(CONFIG, corpus, corpus.utterances, 4, 3, tmp_path, heard.append, workers=2)

    first, found = attack(CORPUS), attack(untagged)
    assert heard == [f"shadow model {done} of 4" for done in range(5)]
    assert first.logits.shape == (4, len(PEOPLE), 2)
    assert sum(entry.stat().st_size for entry in tmp_path.iterdir()) < 8 * (1000 + 80 * len(PEOPLE))
    monkeypatch.setattr(lira_module, "_logits", no_training)
    again = attack(CORPUS)
    assert heard == ["shadow model 4 of 4"]
    np.testing.assert_array_equal(first.logits, again.logits)
    np.testing.assert_array_equal(first.inside, half_samples(PEOPLE, 4, 3))
    with pytest.raises(AssertionError, match="is trained"):
        attack(replace(CORPUS, utterances=PEOPLE[:-1]))
    assert found.logits.shape == (4, len(PEOPLE), 1)
    seeds = np.random.default_rng([3, 1]).integers(2**40, 2**48, 4).tolist()
    assert len(set(seeds)) == 4
    for row in (0, 3):
        mine = [u for u, used in zip(untagged.utterances, found.inside[row], strict=True) if used]
        model = shadow_model(settled(CONFIG, seeds[row]), untagged, mine)
        np.testing.assert_allclose(found.logits[row], signals(model, PEOPLE).logits, atol=1e-3)


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_whatever_ends_the_work_one_sentence_says_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = f"finished shadow models are kept in {tmp_path}: run the same attack again to resume$"
    with pytest.raises(KeyboardInterrupt, match=f"^interrupted; {kept}"):
        shadow_logits(CONFIG, CORPUS, PEOPLE, 4, cache=tmp_path, progress=Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr(lira_module, "_logits", die)
    with pytest.raises(UsageError, match=f"^a worker process was killed .*{kept}"):
        shadow_logits(CONFIG, CORPUS, PEOPLE, 4, cache=tmp_path, workers=2)


def test_the_cache_is_in_the_users_folder_or_in_one_that_can_be_written(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert module.shadow_cache(None) == tmp_path / "edp_lab" / "shadows"
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        shadow_logits(CONFIG, CORPUS, PEOPLE, cache=tmp_path / "file")
