"""Utility, privacy and time: every private run meets its target, settings are chosen on the validation split."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest

from edp_lab.cli.reproduce import _pareto_page as _page
from edp_lab.cli.reproduce import _pareto_parts as _parts
from edp_lab.corpora import load_corpus, split
from edp_lab.course.nb06_tradeoff.panels import pareto_figure, pareto_points
from edp_lab.models.bert import BertSize
from edp_lab.privacy.guarantee import true_epsilon
from edp_lab.reproduce import pareto as study
from edp_lab.reproduce.pareto import FIRST_SEED, LADDER, METHODS, Scale, pareto
from edp_lab.reproduce.run_cache import Inputs, Job, TableRuns, layers_of
from edp_lab.training import TrainConfig
from edp_lab.training.pretraining import pretrain_bert

CORPUS = "smart-home-health"
SCALE = Scale((8.0, 1.0), ((1e-2, 0.5), (3e-2, 1.0)), 2, 30, 4, 10, 1, "small", "small", 64, layers=1)
SHORT = replace(SCALE, epsilons=(8.0,), tried=SCALE.tried[:1], seeds=1)

epsilon_of, judged = lru_cache(None)(true_epsilon), lru_cache(None)(study.judge)  # the tight ones take seconds


class Runs:
    """Stands for `TableRuns`: the larger learning rate does better on the validation split, and worse on the test."""

    def __init__(self) -> None:
        self.jobs, self.inputs = [], Inputs()

    def results(self, jobs: Sequence[Job], what: str) -> list[dict[str, Any]]:
        self.jobs += jobs
        return [self.result(job) for job in jobs]

    def result(self, job: Job) -> dict[str, Any]:
        config = job.config
        examples = self.inputs.examples(config.corpus, config.seed)
        mechanism = config.mechanism(examples)
        delta = examples**-1.1
        return {
            "validation_ser": 0.5 - config.learning_rate,
            "ser": 0.2 + config.learning_rate + 0.01 * config.seed,
            "intent_accuracy": 0.9,
            "slot_f1": 0.8,
            "epsilon": None if mechanism is None else epsilon_of(mechanism, config.epochs, delta),
            "delta": delta,
            "examples": examples,
            "run": f"{config.method}-{config.z0:.3g}-{config.seed}",
            **dict.fromkeys(("device", "machine", "threads", "versions"), "1"),
        }


def of_times(*seconds: float) -> dict[str, Any]:
    return {"seconds": list(seconds), "machine": "another"}


@pytest.fixture(scope="module")
def runs() -> Runs:
    """Of the points below."""
    return Runs()


@pytest.fixture(scope="module")
def points(runs: Runs) -> list[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "judge", judged)
        patch.setattr(study, "_timing", lambda *_: of_times(10.0, 4.0, 5.0, 5.0))
        [made] = pareto(runs, [SCALE], [CORPUS], "it")  # type: ignore[arg-type]
    return made


def test_each_method_meets_each_target_only_just_and_tuning_costs_no_more_than_the_plain_sum(points: list[Any]) -> None:
    ours, marked = METHODS
    targets = [*((ours, epsilon) for epsilon in SCALE.epsilons), (marked, max(SCALE.epsilons))]
    private = ((method, 2) for method, _ in targets)
    assert [(p["method"], p["trials"]) for p in points] == [("SGD", 0), (study.SGD_HERE, 0), *private]
    for point, (_, target) in zip(points[2:], targets, strict=True):
        assert point["epsilon"] is not None
        assert point["epsilon"] <= target
        assert point["epsilon"] == pytest.approx(target, rel=5e-3)
    for point in points[2:]:
        assert point["epsilon"] is not None
        assert point["epsilon_of_tuning"] is not None
        assert point["epsilon"] < point["epsilon_of_tuning"] < 4 * point["epsilon"]


def test_every_seed_has_a_noise_of_its_own_split(runs, points, monkeypatch):
    monkeypatch.setattr(study, "judge", judged)
    for point in points[2:]:
        assert len(set(point["runs"])) == SCALE.seeds
    private = [job.config for job in runs.jobs if job.config.method != "sgd"]
    assert {config.seed for config in private[: 2 * len(points[2:])]} == {FIRST_SEED}  # the trials
    for config in private:
        planned = runs.result(Job(config))
        assert study._held(config, planned) <= max(SCALE.epsilons)
        assert study._held(config, {**planned, "epsilon": 99.0}) == 99.0  # some steps were done twice


def test_settings_are_chosen_on_the_validation_split_and_words_read_by_encoder(points: list[Any], runs: Runs) -> None:
    assert {p["settings"]["learning_rate"] for p in points[2:]} == {3e-2}  # the test split would have chosen 1e-2
    assert points[2]["ser"]["mean"] == pytest.approx(100 * (0.2 + 3e-2 + 0.01 * (FIRST_SEED + 0.5)))
    assert {(p["seconds"], p["time_ratio"], p["about"]["timed_on"]) for p in points[2:]} == {(5.0, 0.5, "another")}
    assert {job.config.pretrained for job in runs.jobs} == {None, layers_of("it", SCALE.layers)}
    assert {job.config.method for job in runs.jobs if job.config.pretrained is None} == {"sgd"}


def test_bert_is_trained_on_from_the_published_one_with_and_without_privacy(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs()
    monkeypatch.setattr(study, "_timing", lambda *_: of_times(10.0, 10.0, 12.0, 12.0))
    [made] = pareto(runs, [replace(SHORT, model="bert")], [CORPUS], "it")  # type: ignore[arg-type]
    assert [(point["model"], point["method"]) for point in made] == [("bert", name) for name in ("SGD", *METHODS)]
    assert {(job.config.model, job.config.pretrained) for job in runs.jobs} == {("bert", layers_of("it", SCALE.layers))}
    assert f"BERT on {CORPUS}" in _page([made])


def test_rungs_of_the_ladder_have_noise_of_dp_sgd_and_are_timed_beside_an_sgd_of_their_own(monkeypatch):
    runs = Runs()
    monkeypatch.setattr(study, "judge", judged)
    monkeypatch.setattr(study, "_timing", lambda _, of: of_times(10.0 * len(of), *range(1, len(of))))
    [plain] = pareto(runs, [SHORT], [CORPUS], "it")  # type: ignore[arg-type]
    [made] = pareto(runs, [replace(SHORT, ladder=True)], [CORPUS], "it")  # type: ignore[arg-type]
    rungs = made[len(plain) :]
    assert made[: len(plain)] == plain
    assert [point["method"] for point in rungs] == list(LADDER)
    assert {point["settings"]["z0"] for point in rungs} == {plain[2]["settings"]["z0"]}  # DP-SGD's
    assert [point["time_ratio"] for point in rungs] == [seconds / 50 for seconds in (2, 3, 4)]
    sampled = {job.config for job in runs.jobs if job.config.method == "edp-sgd" and job.config.poisson}
    mechanisms = {config.mechanism(100) for config in sampled}
    assert {(m.micro_batch_size, m.sensitivity() / m.clip_norm) for m in mechanisms if m} == {(2, 2), (4, 2), (8, 2)}
    assert [trace.name for trace in pareto_figure(made).data] == [*METHODS, *LADDER]


def test_methods_are_timed_once_in_proportion_to_their_steps_and_with_what_reading_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "TIMED", 3)
    encoder, size = str(tmp_path / "bert"), BertSize(layers=2, heads=2, hidden=8, intermediate=12, positions=64)
    pretrain_bert([("turn", "on", "the", "lights")] * 3, encoder, epochs=1, size=size)
    short = TrainConfig(CORPUS, method="sgd", size="small", batch_size=10**6, epochs=1)
    private = TrainConfig(CORPUS, method="dp-sgd", size="small", batch_size=200, epochs=3, z0=1.0)
    configs = [short, replace(short, epochs=100), private, replace(private, pretrained=encoder)]
    timed = study._timing(TableRuns(tmp_path), configs)
    seconds = timed["seconds"]
    assert 40 * seconds[0] < seconds[1] < 250 * seconds[0]
    assert seconds[2] > 0
    with monkeypatch.context() as patch:
        patch.setattr(study, "Trainer", None)
        assert study._timing(TableRuns(tmp_path), configs) == timed
        with pytest.raises(TypeError):
            study._timing(TableRuns(tmp_path), configs[:2])
    corpus = load_corpus(CORPUS)
    read = study.Trainer(configs[3], corpus, split(corpus, 0))
    texts = [("turn", "on", "the", "lights", str(k)) for k in range(10 * study.AT_ONCE)]

    def quickest(among: list[tuple[str, ...]]) -> float:
        return min(study._seconds_of_reading(read, among, number) for number in range(7))

    assert 4 < quickest(texts) / quickest(texts[: study.AT_ONCE]) < 25
    assert study._seconds_of_reading(study.Trainer(short, corpus, split(corpus, 0)), texts, 0) == 0


def test_table_and_page_show_every_point_also_those_of_a_checkout(points: list[Any]) -> None:
    [(_, lines)] = _parts([points])
    assert [line[0] for line in lines[1:]] == [p["method"] for p in points]
    assert lines[1][1] == "none"
    assert lines[3][1] == "8"
    figure = pareto_figure(points)
    assert [trace.name for trace in figure.data] == list(METHODS)
    assert list(figure.data[0].x) == ["1", "8"]
    assert figure.data[0].text == ("x0.5", "x0.5")
    assert {level.y0 for level in figure.layout.shapes} == {point["ser"]["mean"] for point in points[:2]}
    page = _page([points, points])
    assert page.count("<table>") == 2
    assert "src=" not in page.split("</script>")[-1]
    titles = {note.text for note in pareto_figure(pareto_points()).layout.annotations}
    assert {"CLC on atis", "CLC on snips"} <= titles
