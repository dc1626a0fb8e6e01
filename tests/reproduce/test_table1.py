"""Table 1: settings are chosen on the validation split, changes are computed per seed, and intervals are Student's."""

import json
import math
import shutil
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn  # noqa: F401 - as in a worker: it sets environment variables, which `resume` compares
import torch

from edp_lab.errors import UsageError
from edp_lab.jobs import NUMERICS, RESULTS
from edp_lab.models.bert import BertSize, load_bert
from edp_lab.models.vectors import load_vectors
from edp_lab.privacy import Decay, judge
from edp_lab.reproduce import table1 as study
from edp_lab.reproduce.printed import TABLE_1
from edp_lab.reproduce.table1 import (
    COMMITTED,
    LAYERS,
    WORDS,
    Scale,
    TableRuns,
    Work,
    do,
    encoder_at_hand,
    encoder_content,
    estimate,
    make_start,
    read_lines,
    settings,
    table1,
    under,
)
from edp_lab.training.config import TrainConfig
from edp_lab.training.pretraining import pretrain_bert
from edp_lab.training.session import train

CORPUS = "smart-home-health"
Z0 = (1e-3, 1e-2, 1e-1)
STEPS, MOST = {"clc": 100, "bert": 100}, {"clc": 4, "bert": 2}
SCALE = Scale("small", 1, STEPS, MOST, Z0, batch_size=64)


class Runs:
    """Replacement for `TableRuns`: errors by z0, a different split per seed, and a list of the requested runs."""

    def __init__(self, validation: dict[float, float]) -> None:
        self.validation, self.jobs, self.prepared = validation, [], []

    def examples(self, corpus: str) -> int:
        return 667

    def prepare(self, jobs: Sequence[TrainConfig]) -> None:
        assert not self.jobs
        self.prepared += jobs

    def results(self, jobs: Sequence[TrainConfig], what: str) -> list[dict[str, Any]]:
        self.jobs += jobs
        return [self.result(job) for job in jobs]

    def result(self, config: TrainConfig) -> dict[str, Any]:
        plain = config.method == "sgd"
        auc = (0.6 if plain else 0.57) + 0.01 * config.seed
        half = plain and config.epochs < 4
        return {
            "auc": auc,
            "loss_auc": auc - 0.01,
            "validation_ser": 0.10 if plain else self.validation.get(config.z0, 0.13),
            "ser": (0.15 if half else 0.1 if plain else 0.2) * (1 + config.seed),
            "epsilon_if_seed_secret": None if plain or config.as_printed else 7.0,
            "epsilon_if_alpha_public": None if plain else 9.0,
            "run": f"{config.method}-{config.z0}-{config.seed}",
            **dict.fromkeys(("delta", "threads", "versions", "examples", "seconds"), 1),
            "device": "cuda" if config.seed == 1 else "cpu",
            "machine": "two cores",
            "shadow_corpora": ["generated"],
        }


def tolerable() -> Runs:
    """Runs whose error is SGD's at any noise."""
    return Runs(dict.fromkeys(Z0, 0.1))


def cells(runs: Any, **changes: Any) -> list[dict[str, Any]]:
    [row] = table1(runs, replace(SCALE, **changes), ["clc"], [CORPUS])
    return row


def test_students_interval_covers_the_mean_as_often_as_it_says():
    assert estimate([1.0, 2.0, 3.0])["high"] == pytest.approx(2 + 4.302653 / math.sqrt(3))  # t for 2 degrees
    assert estimate([4.0]) == {"mean": 4.0, "low": None, "high": None}


def test_chosen_is_the_most_noise_that_keeps_the_error_on_the_validation_split():
    runs = Runs({1e-3: 0.10, 1e-2: 0.114, 1e-1: 0.2})
    row = {(cell["variant"], cell["decay"]): cell for cell in cells(runs)}
    assert len(row) == 8
    for variant in study.VARIANTS:
        assert row[variant, "none"]["z0"] == 1e-2
        assert row[variant, "none"]["trials"] == row[variant, "linear"]["trials"] == 2
    assert (row[study.SGD, None]["trials"], row[study.HALF, None]["trials"]) == (1, 1)


@pytest.mark.parametrize("most", range(6))
def test_halving_finds_what_trying_all_levels_would(most):
    """The error grows with noise; the first `most` of five levels are within the tolerance, otherwise use the least."""
    levels = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    errors = {z0: 0.1 + 0.001 * k if k < most else 0.2 + 0.1 * k for k, z0 in enumerate(levels)}
    row = cells(Runs(errors), z0=levels)
    assert {cell["z0"] for cell in row if cell["decay"] == "none"} == {levels[max(0, most - 1)]}
    assert max(cell["trials"] for cell in row) <= 3


@pytest.mark.parametrize("decay", list(Decay))
@pytest.mark.parametrize("as_printed", [False, True])
def test_decays_are_compared_at_equal_epsilon(decay, as_printed):
    """For the paper's accounting and for ours; noise that starts at the same level would have a larger epsilon."""
    still = TrainConfig(CORPUS, z0=0.5, as_printed=as_printed, epochs=12, num_devices=8, alpha="none")
    falling = under(decay, still)
    assert (falling.decay, falling.z0 > still.z0) == (decay, decay is not Decay.NONE)
    alike, same_start = ([judged(c), judged(replace(c, z0=still.z0))] for c in (still, falling))
    assert alike[0] == pytest.approx(same_start[0])
    assert (same_start[1] > alike[1]).all() == (decay is not Decay.NONE)


def judged(config: TrainConfig) -> np.ndarray:
    found = judge(config.mechanism(), config.epochs, 1e-5, seed_published=False)
    return np.array([found.claimed_epsilon, found.conditional_epsilon])


def test_a_control_trains_half_as_long_and_all_seeds_of_sgd_come_first():
    runs = tolerable()
    plain, half, *_ = cells(runs)
    assert (half["about"]["epochs"], plain["about"]["epochs"]) == (2, 4)
    assert half["ser_change"]["mean"] == pytest.approx(50)
    assert half["paper"] == {}
    assert [config.method for config in runs.jobs[:8]] == ["sgd"] * 6 + ["edp-sgd"] * 2
    assert {config.dropout for config in runs.jobs} == {0.0}


def test_a_corpus_is_read_an_even_number_of_times_about_as_often_as_the_steps_allow():
    for steps, most, epochs in ((1, 12, 2), (40, 12, 4), (1000, 12, 12)):  # 667 examples in batches of 64
        plain, *_ = cells(Runs({}), steps={"clc": steps}, most_epochs={"clc": most})
        assert plain["about"]["epochs"] == epochs


def test_where_all_noise_costs_too_much_the_smallest_error_is_chosen_and_the_row_says_so():
    row = cells(Runs({1e-3: 0.5, 1e-2: 0.4, 1e-1: 0.6}))
    assert {(cell["z0"], cell["within_tolerance"]) for cell in row if cell["decay"] == "none"} == {(1e-2, False)}
    found = {cell["decay"]: cell["within_tolerance"] for cell in cells(tolerable())}
    assert found == {None: None, "none": True, "linear": False, "exponential": False}  # 0.13 at other levels


def test_a_row_has_the_largest_epsilon_of_its_seeds_and_every_device_they_ran_on():
    """A run that was resumed elsewhere is charged for the steps that it took twice."""

    class Billed(Runs):
        def result(self, config: TrainConfig) -> dict[str, Any]:
            found = super().result(config)
            return (
                found
                if found["epsilon_if_seed_secret"] is None
                else {**found, "epsilon_if_seed_secret": 7.0 + config.seed}
            )

    row = cells(Billed(dict.fromkeys(Z0, 0.1)))
    found = {(cell["variant"], cell["epsilon_if_seed_secret"]) for cell in row if cell["decay"]}
    assert found == {("as printed", None), ("sound", 9.0)}
    assert (row[0]["about"]["device"], row[0]["about"]["machine"]) == ("cpu, cuda", "two cores")


def test_changes_are_formed_within_a_seed_beside_what_the_paper_prints_and_what_holds():
    """The error triples from seed to seed, and the relative change is the same for each seed."""
    plain, _, *others = cells(tolerable())
    assert plain["ser"]["mean"] == pytest.approx(20)
    assert plain["ser_change"] is plain["auc_change"] is plain["epsilon_if_seed_secret"] is None
    for cell in others:
        assert cell["ser_change"] == dict.fromkeys(("mean", "low", "high"), pytest.approx(100))
        for name, best in (("auc_change", 0.6), ("loss_auc_change", 0.59)):
            assert cell[name]["mean"] == pytest.approx(100 * sum(-0.03 / (best + 0.01 * k) for k in range(3)) / 3)
        assert len(set(cell["runs"])) == cell["seeds"] == 3
    printed = next(row for row in TABLE_1 if (row.model, row.corpus) == ("CLC", "Health"))
    assert (plain["stands_for"], plain["paper"]) == ("Health", {"ser": None, "auc": None})
    for cell in others:
        change = printed.changes[Decay(cell["decay"])]
        assert tuple(cell["paper"].values()) == (change.ser, change.mia_auc, change.log10_epsilon)
        assert cell["epsilon_if_seed_secret"] == (None if cell["variant"] == "as printed" else 7.0)
    assert len(others) == 6
    assert json.loads(json.dumps(others))


def test_all_methods_start_alike_from_a_published_encoder():
    """Otherwise a sound run, which must not use words of its training set, would differ from SGD not only in noise."""
    runs = tolerable()
    list(table1(runs, SCALE, ["clc", "bert"], [CORPUS]))  # type: ignore[arg-type]
    found = {(config.model, config.pretrained) for config in runs.jobs}
    assert found == {("clc", WORDS), ("bert", f"{LAYERS}{SCALE.layers}")}
    assert [config.method for config in runs.prepared] == ["sgd"] * 2  # detects missing inputs before hours of work


# Runs behind Table 1: each is done once, resumed after a kill, and found by settings and data; starts are public.


BASE: dict[str, Any] = {"size": "small", "batch_size": 64, "num_devices": 4, "pretrained": WORDS}
CONFIG = TrainConfig(CORPUS, epochs=1, **BASE)


@pytest.fixture
def stubs(monkeypatch, tmp_path):
    """No public corpus and no committed results; a run reaches its z0 immediately. Returns the completed runs."""
    done: list[TrainConfig] = []

    def stub(work: Work) -> dict[str, Any]:
        done.append(work.config)
        return {"ser": work.config.z0, "examples": 667}

    monkeypatch.setattr(study, "COMMITTED", tmp_path / "committed.jsonl")
    monkeypatch.setattr(study, "corpus_at_hand", lambda name: name.startswith("smart-home"))
    monkeypatch.setattr(study, "make_start", lambda start, encoder, folder: folder.mkdir(parents=True))
    monkeypatch.setattr(study, "encoder_content", lambda name: "its digest")
    monkeypatch.setattr(study, "do", stub)
    return done


def test_a_run_is_done_once_and_kept_as_soon_as_it_is_there(stubs, tmp_path):
    louder = replace(CONFIG, z0=1.0)
    lines: list[str] = []
    [first, again] = TableRuns(tmp_path / "out").results([CONFIG, CONFIG], "test")
    assert first is again
    assert len(stubs) == 1
    runs = TableRuns(tmp_path / "out", tell=lambda line, kept: lines.append(line))
    assert [result["ser"] for result in runs.results([louder, CONFIG], "test")] == [1.0, CONFIG.z0]
    assert stubs[1:] == [replace(louder, pretrained=stubs[1].pretrained)]
    assert lines[0] == "test: 1 of 2 runs are done"
    assert len(read_lines(tmp_path / "out" / "cells.jsonl")) == 2
    (tmp_path / "out" / "cells.jsonl").write_text("{")
    with pytest.raises(UsageError, match="is damaged"):
        TableRuns(tmp_path / "out")


def test_a_result_counts_for_its_settings_data_and_numerics_alone(stubs, tmp_path, monkeypatch):
    runs = TableRuns(tmp_path / "out")
    runs.results([CONFIG], "test")
    for changed in ({"z0": CONFIG.z0 * (1 + 1e-15)}, {"seed": 1}, {"pretrained": f"{LAYERS}2"}):
        assert runs.known(replace(CONFIG, **changed)) is None
    assert runs.known(CONFIG)
    with monkeypatch.context() as patch:
        patch.setitem(NUMERICS, "membership", 99)
        assert TableRuns(tmp_path / "out").known(CONFIG) is None
    with monkeypatch.context() as patch:
        patch.setattr(study, "corpus_content", lambda name: "changed")
        assert TableRuns(tmp_path / "out").known(CONFIG) is None
    monkeypatch.setattr(study, "default_shadow", lambda target_corpus, has: "smart-home-video")
    new = TableRuns(tmp_path / "new")
    new.results([CONFIG], "test")
    assert "smart-home-video" in read_lines(tmp_path / "new" / "cells.jsonl")[0]["contents"]


@pytest.fixture
def committed(stubs, tmp_path):
    """A checkout with one result, for a corpus and an encoder that are not available."""
    config = replace(CONFIG, corpus="atis", pretrained=f"{LAYERS}2")
    contents = {"atis": "its sha256", "encoder": "its digest"}
    line = {"config": settings(config), "contents": contents, "numerics": TableRuns(tmp_path)._numerics}
    line["result"] = {"ser": 1, "examples": 72}
    (tmp_path / "committed.jsonl").write_text(json.dumps(line) + "\n")
    return config


def test_committed_results_are_read_without_their_corpus_unless_fresh(committed, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "encoder_at_hand", lambda name: False)
    monkeypatch.setenv("EDP_LAB_DATA", str(tmp_path / "nothing"))
    study.corpus_content.cache_clear()
    runs = TableRuns(tmp_path / "out")
    assert runs.results([committed], "test") == [{"ser": 1, "examples": 72}]
    assert runs.examples("atis") == 72
    fresh = TableRuns(tmp_path / "out", fresh=True)
    with pytest.raises(UsageError, match="atis"):
        fresh.examples("atis")
    with pytest.raises(UsageError, match="atis"):
        fresh.results([committed], "test")
    with pytest.raises(UsageError, match="atis, snips are missing"):
        fresh.prepare([committed, replace(committed, corpus="snips")])


def test_committed_results_of_other_data_do_not_count(committed, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "encoder_at_hand", lambda name: False)
    for at_hand, content, known in ((True, "its sha256", True), (True, "another", False), (False, "another", True)):
        monkeypatch.setattr(study, "corpus_at_hand", lambda name, at_hand=at_hand: at_hand)
        monkeypatch.setattr(study, "corpus_content", lambda name, content=content: content)
        monkeypatch.setattr(study, "default_shadow", lambda target_corpus, has: "generated")
        assert (TableRuns(tmp_path / "out").known(committed) is not None) == known
    monkeypatch.setattr(study, "encoder_at_hand", lambda name: True)
    monkeypatch.setattr(study, "encoder_content", lambda name: "another")
    assert TableRuns(tmp_path / "out").known(committed) is None


def test_the_committed_table_1_is_that_of_the_committed_results_without_corpora_or_encoder(tmp_path, monkeypatch):
    def none(*_: object) -> None:
        raise AssertionError("something is read or trained")

    for name, stub in {"corpus_at_hand": lambda name: False, "encoder_at_hand": lambda name: False}.items():
        monkeypatch.setattr(study, name, stub)
    for name in ("load_corpus", "encoder_content", "make_start", "do"):
        monkeypatch.setattr(study, name, none)
    rows = table1(TableRuns(tmp_path), study.FULL, study.MODELS, list(study.CORPORA)[:3])
    made_now = json.loads(json.dumps([cell for row in rows for cell in row]))
    stored = json.loads((RESULTS / "table1.json").read_text())
    for cell in (*made_now, *stored):
        del cell["about"]["machine"]  # one seed was re-run with the same result
    assert made_now == stored
    assert len(read_lines(COMMITTED)) == 163


def test_a_run_that_was_cut_off_is_resumed(tmp_path, monkeypatch):
    stop, folder = threading.Event(), tmp_path / "run"
    config = replace(CONFIG, pretrained=None, epochs=2)
    assert train(config, folder, lambda event: stop.set(), stop)["status"] == "interrupted"
    whole = do(Work(config, tmp_path / "whole", "generated", tmp_path / "shadows"))
    monkeypatch.setattr(study, "train", None)  # the run may only be resumed
    resumed = do(Work(config, folder, "generated", tmp_path / "shadows"))
    assert {**resumed, "seconds": 0, "run": ""} == {**whole, "seconds": 0, "run": ""}
    assert whole["shadow_corpora"] == ["generated"]
    assert 0 < whole["auc"] < 1


# ---- Starting models of runs -----------------------------------------------------------------------------------------

SENTENCES = [("turn", "on", "the", "lights"), ("turning", "lights", "off", "[", "now", "]")] * 30


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("published") / "bert"
    pretrain_bert(SENTENCES, folder, epochs=1, size=BertSize(2, 2, 4, 6, positions=32))
    return str(folder)


def test_networks_start_from_a_published_encoders_words_and_first_layers(published: str, tmp_path: Path) -> None:
    make_start(WORDS, published, tmp_path / "words")
    vectors = load_vectors(str(tmp_path / "words"))
    assert {"turn", "lights", "["} <= set(vectors.words)
    assert not any(word.startswith("##") or word in ("[CLS]", "[PAD]") for word in vectors.words)
    bert, tokenizer = load_bert(published)
    own = bert.embeddings.word_embeddings.weight[tokenizer.get_vocab()["lights"]].detach()
    assert torch.equal(vectors.matrix[vectors.words.index("lights")], 8 * own)
    make_start(f"{LAYERS}1", published, tmp_path / "layers")
    assert len(load_bert(str(tmp_path / "layers"))[0].encoder.layer) == 1
    with pytest.raises(UsageError, match=r"the public encoder .* cannot be used.* has 2 layers"):
        make_start(f"{LAYERS}3", published, tmp_path / "more")


def test_an_encoder_is_known_by_its_weights(published: str, tmp_path: Path) -> None:
    elsewhere = str(shutil.copytree(published, tmp_path / "elsewhere"))
    Path(elsewhere, "README.md").write_text("the same")
    assert encoder_content(published) == encoder_content(elsewhere)
    pretrain_bert(SENTENCES[1:], tmp_path / "other", epochs=1, size=BertSize(2, 2, 4, 6, positions=32))
    assert encoder_content(str(tmp_path / "other")) != encoder_content(published)
    assert not encoder_at_hand("far/away")
    assert not encoder_at_hand("no such: name")
