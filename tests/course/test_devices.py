"""Notebook 09: noise of N devices is the trainer's, real processes are started, and what was not measured says so."""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import plotly.graph_objects as go
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import edp_lab.reproduce.bench.train_step
import edp_lab.training
from edp_lab.cli import app
from edp_lab.corpora import load_corpus, split
from edp_lab.course.kit.old_panel import FigurePanel
from edp_lab.course.kit.panel_driver import move
from edp_lab.course.nb04_cost.compute import AS_PRINTED, SOUND
from edp_lab.course.nb09_devices import compute as devices
from edp_lab.course.nb09_devices import figures as devices_figures
from edp_lab.course.nb09_devices import panels as devices_panels
from edp_lab.course.nb09_devices import words as devices_words
from edp_lab.course.nb09_devices.compute import DeviceNoise, Timed, device_noise, ring_bytes, scaling, shares
from edp_lab.course.publish.runner import notebook_parameters
from edp_lab.errors import UsageError
from edp_lab.privacy import claimed_epsilon, true_epsilon
from edp_lab.reproduce.bench.scale import DEVICES, NETWORKS, extrapolated
from edp_lab.reproduce.bench.train_step import Task
from edp_lab.reproduce.paper.printed import TABLE_2
from edp_lab.training import TrainConfig
from edp_lab.training.trainer import Trainer

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "source" / "09_many_gpus.ipynb"
NOISE: dict[str, Any] = {
    "variant": AS_PRINTED, "num_devices": 8, "clip_norm": 1.0, "z0": 1.0, "epochs": 10, "parameters": 300_000,
    "delta": 1e-5, "seed": 0,
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def noise(**change: Any) -> DeviceNoise:
    return device_noise(**{**NOISE, **change})


# ---- The noise of N devices ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", [AS_PRINTED, SOUND])
@pytest.mark.parametrize("num_devices", [1, 8, 32])
def test_drawn_noise_has_the_deviation_that_is_said(variant: str, num_devices: int) -> None:
    result = noise(variant=variant, num_devices=num_devices, clip_norm=0.5, z0=2.0)
    on_mean, near = result.on_mean[result.here], pytest.approx(1, abs=0.06)
    assert on_mean == result.mechanism.noise_std(0) / num_devices
    assert result.aggregate.std() / on_mean == near
    assert result.per_device.std() / on_mean == near
    assert result.same.std() / (on_mean * math.sqrt(num_devices)) == near  # nothing cancels
    assert abs(np.corrcoef(result.aggregate, result.per_device)[0, 1]) < 0.1


def test_printed_noise_falls_short_by_the_root_and_a_factor_of_two_and_sound_noise_does_not() -> None:
    printed, sound = noise(), noise(variant=SOUND)
    assert printed.wanted / printed.on_mean == pytest.approx(2 * np.sqrt(printed.counts))
    assert sound.wanted == pytest.approx(sound.on_mean)
    assert (np.diff(printed.true) > 0).all()
    assert sound.true == pytest.approx(sound.true[0])
    assert (printed.claimed == printed.claimed[0]).all()


def test_epsilons_are_the_librarys() -> None:
    result = noise(variant=SOUND, num_devices=4, z0=2.0)
    assert result.true[result.here] == true_epsilon(result.mechanism, 10, 1e-5) == result.guarantee.epsilon
    assert result.claimed[result.here] == claimed_epsilon(result.mechanism, 10, 1e-5)
    assert noise().guarantee.epsilon is None  # alpha is private
    assert np.isnan(noise(z0=0.0).true).all()


@given(st.integers(1, 10**9), st.integers(1, 1000))
def test_ring_sends_less_than_twice_the_gradient(parameters: int, count: int) -> None:
    sent = ring_bytes(parameters, count)
    assert 0 <= sent < 8 * parameters
    assert (sent == 0) == (count == 1)


def test_small_model_has_the_parameters_that_are_said() -> None:
    corpus = load_corpus("smart-home")
    run = Trainer(TrainConfig("smart-home", size="small"), corpus, split(corpus, 0))
    assert run.layout.size == devices_panels.SMALL


# ---- Runs on real processes ----------------------------------------------------------------------------------------


def test_runs_are_alike_if_only_the_processes_differ() -> None:
    config = TrainConfig("smart-home")
    assert devices.alike(config, replace(config, processes=2))
    assert not devices.alike(config, replace(config, z0=2.0, processes=2))


def test_command_makes_this_very_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class CallError(Exception):
        pass

    def train(config: TrainConfig, *_: Any) -> None:
        raise CallError(config)

    monkeypatch.setattr(edp_lab.training, "train", train)
    panel = devices_panels.ProcessesPanel(make_noise(), TrainConfig("smart-home", size="small", processes=2))
    make, run = devices_words.run_command(panel.prepare()).splitlines()
    assert make == "edp-lab data make smart-home --utterances 600 --out little.jsonl"
    result = CliRunner().invoke(app, shlex.split(run)[1:])
    assert isinstance(result.exception, CallError), result.output
    assert result.exception.args == (replace(panel.prepare(), corpus="little.jsonl"),)
    other = devices_words.run_command(replace(panel.prepare(), processes=1)).splitlines()[1]
    assert shlex.split(run)[-1] != shlex.split(other)[-1]  # another setting, another folder


def test_panel_takes_the_sliders_values_and_refuses_more_processes_than_devices() -> None:
    above = make_noise()
    panel = devices_panels.ProcessesPanel(above, TrainConfig("smart-home", size="small", noise="per-device"))
    above.set(variant=SOUND, num_devices=4, z0=0.3, clip_norm=2.0, seed=5)
    config = panel.prepare()
    assert (config.as_printed, config.num_devices, config.z0, config.clip_norm) == (False, 4, 0.3, 2.0)
    assert (config.noise, config.seed, config.processes) == ("per-device", 5, 1)
    panel.processes.value = 16
    panel.run(wait=True)
    assert "16 processes for 4 devices: some would idle" in panel.error_box.value
    assert panel.runs == []
    panel.check()


def test_a_run_that_is_stopped_says_so() -> None:
    panel = devices_panels.ProcessesPanel(make_noise(), TrainConfig("smart-home", size="small", epochs=50))
    draw = panel._draw

    def stop_at_once(*given: Any) -> None:
        draw(*given)
        panel.stop()

    panel._draw = stop_at_once  # type: ignore[method-assign]
    panel.run(wait=True)
    panel.check()
    assert panel.runs[0].record["status"] == "interrupted"
    assert len(panel.runs[0].losses) < 20
    assert "Stopped early. <b>8 devices: 1 process, 7 simulated</b>" in panel.words.value


# ---- Table 2 -------------------------------------------------------------------------------------------------------


def test_committed_rows_say_when_and_where_and_stand_beside_the_papers() -> None:
    for model in ("clc", "bert"):
        rows = devices.table2(model)
        assert {row.method for row in rows} == set(devices_words.METHODS)
        for row in rows:
            assert re.search(r"\d cores, \w+, \w+, \d{4}-\d\d-\d\d, torch \d", row.where)
            assert row.command.startswith("edp-lab bench step")
        text = devices_words.table2_table(rows)
        lines = [re.findall("<td[^>]*>(.*?)</td>", line) for line in text.split("</tr>")]
        paper = next(row for row in TABLE_2 if (row.model.lower(), row.corpus) == (model, "ATIS"))
        printed = {line[0]: line[-1] for line in lines if line and line[-1]}
        assert printed == {
            "eDP-SGD, 8 devices: 1 real, 7 sim.": f"{paper.edp_sgd_factor:g}",
            "DP-SGD, utterance by utterance": f"{paper.dp_sgd_factor:g}",
        }


def test_date_of_a_row_counts_where_there_is_one() -> None:
    row = {"machine": "2 cores", "device": "cuda", "versions": {"torch": "9"}, "date": "1 May 2027"}
    assert devices._where(row) == "2 cores, cuda, 1 May 2027, torch 9"


def test_benchmark_runs_on_demand_and_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    told = json.loads((devices.RESULTS / "bench_step.json").read_text())[:8]
    kept = [row for row in told if row["method"] != "opacus" and row["gpus"] in (1, 8)]

    def bench(task: Task, progress: Any) -> list[dict[str, Any]]:
        for row in kept:
            progress(row["method"])
        return kept

    panel = devices_panels.MeasurePanel("smart-home")
    monkeypatch.setattr(devices, "bench_steps", bench)
    assert panel.rows == []
    assert panel.copy.children == ()  # no command yet
    panel.run(wait=True)
    panel.check()
    assert panel.command in panel.copy.children
    assert [row.method for row in panel.rows] == [row["method"] for row in kept]
    assert list(panel.figure.data[0].x) == [row["ratio_to_sgd"] for row in kept[1:]]
    assert "Measured here, a moment ago, 1 process" in panel.words.value
    assert "0.0 × SGD" not in panel.words.value
    monkeypatch.setattr(devices, "bench_steps", lambda task, progress: (panel.stop(), progress("sgd")))
    panel.run(wait=True)
    panel.check()
    assert panel.rows == []


def test_command_of_the_benchmark_is_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    panel, seen = devices_panels.MeasurePanel("smart-home"), []
    task = panel.prepare()
    monkeypatch.setattr(
        edp_lab.reproduce.bench.train_step, "bench_steps", lambda task, progress: seen.append(task) or []
    )
    CliRunner().invoke(app, [*shlex.split(devices_words.measure_command(task))[1:], "--json"])
    assert seen == [task]


# ---- What N devices would give -------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["clc", "bert"])
def test_what_was_measured_is_given_back_and_the_rest_lies_between(model: str) -> None:
    known = shares(model)
    for batch, seconds in zip(known.batches, known.edp_sgd, strict=True):
        assert known.seconds("edp-sgd", batch) == pytest.approx(seconds)
    between = known.seconds("sgd", 48)
    assert min(known.sgd[-2:]) < between < max(known.sgd[-2:])
    assert known.seconds("sgd", 128) > known.sgd[-1]
    assert all(private > plain for plain, private in zip(known.sgd, known.edp_sgd, strict=True))


def test_one_device_at_a_measured_batch_is_the_measurement_and_only_that_is_called_so() -> None:
    result = scaling("clc", 8, 64, 10.0, 10.0, 1.0)
    assert result.step[0] == shares("clc").edp_sgd[-1]
    assert result.message[0] == 0
    assert result.measured.all()
    assert not scaling("clc", 5, 64, 10.0, 10.0, 1.0).measured[list(result.counts).index(4) + 1]
    assert not scaling("clc", 8, 128, 10.0, 10.0, 1.0).measured[0]


def test_message_is_that_of_the_study_of_scale() -> None:
    """`edp-lab bench scale` extrapolates to 8 devices on two networks by the same arithmetic."""
    known = shares("clc")
    row = {"allreduce_bytes": 4 * known.parameters, "share_seconds": known.seconds("edp-sgd", 8), "steps_per_epoch": 1}
    for told, bandwidth in zip(extrapolated(row), NETWORKS.values(), strict=True):
        ours = scaling("clc", DEVICES, 64, bandwidth / 1e9, 0.0, 1.0)
        assert ours.step[ours.here] == pytest.approx(told["step_seconds"])
        assert told["measured"] is False


def test_more_bandwidth_and_faster_devices_help_as_far_as_they_can() -> None:
    slow, fast, free = (scaling("bert", 8, 64, width, 10.0, 1.0) for width in (0.1, 10.0, 1e6))
    assert slow.speed_up[slow.here] < fast.speed_up[fast.here] <= free.speed_up[free.here] < 8
    assert slow.speed_up[slow.here] < 1  # not worth it
    quick = scaling("bert", 8, 64, 10.0, 10.0, 100.0)
    assert quick.speed_up[quick.here] < fast.speed_up[fast.here]  # the message does not get faster
    both = fast.sgd + fast.message  # SGD's gradients travel, too
    assert fast.ratio == pytest.approx(1 + fast.extra / both)
    assert fast.ratio[-1] > fast.ratio[0]  # noise is for all parameters, however small the share


def test_measured_pair_of_processes_is_that_of_the_file() -> None:
    one, two = devices.two_processes()["edp-sgd"]
    assert (one.processes, two.processes, one.batch_size, two.model) == (1, 2, 256, "bert")
    assert 1 < one.seconds / two.seconds < 2
    figure = devices_figures.speed_figure(scaling("bert", 2, 256, 1.0, 10.0, 1.0))
    assert list(figure.data[2].y) == [one.seconds / two.seconds]
    assert list(devices_figures.speed_figure(scaling("bert", 2, 64, 1.0, 10.0, 1.0)).data[2].y) == []


def test_shares_have_the_parameters_of_the_papers_models(real_data: Path) -> None:
    corpus = load_corpus("atis")
    run = Trainer(TrainConfig("atis", num_devices=1), corpus, split(corpus, 0))
    assert run.layout.size == shares("clc").parameters


# ---- Bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: noise(num_devices=64), "64 devices for a batch of 64"),
        (lambda: noise(num_devices=0), "number of devices"),
        (lambda: noise(z0=-1.0), "noise multiplier z0 is -1.0"),
        (lambda: noise(clip_norm=0.0), "clip norm C is 0.0"),
        (lambda: noise(epochs=0), "the number of epochs is 0"),
        (lambda: noise(parameters=0), "the number of parameters is 0"),
        (lambda: noise(delta=0.0), "delta is 0.0"),
        (lambda: noise(seed=-1), "the seed is -1"),
        (lambda: scaling("gru", 8, 64, 10.0, 10.0, 1.0), "no steps of 'gru' were measured"),
        (lambda: scaling("clc", 33, 64, 10.0, 10.0, 1.0), "the number of devices is 33"),
        (lambda: scaling("clc", 1, 2, 10.0, 10.0, 1.0), "the batch is 2"),
        (lambda: scaling("clc", 8, 64, 0.0, 10.0, 1.0), "the bandwidth is 0.0"),
        (lambda: scaling("clc", 8, 64, 1.0, -1.0, 1.0), "the latency is -1.0"),
        (lambda: scaling("clc", 8, 64, 1.0, 1.0, math.inf), "the speed of a device is inf"),
    ],
)
def test_bad_values_are_one_sentence(call: Any, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)) as error:
        call()
    assert "\n" not in str(error.value)


# ---- Words and panels ----------------------------------------------------------------------------------------------


def make_noise() -> FigurePanel:
    return devices_panels.noise_panel(1.0, 1.0, 8, 10, 1e-5, 0)


def make_scaling() -> FigurePanel:
    return devices_panels.scaling_panel(8)


FIGURES = {make_noise: ("drawn", "devices"), make_scaling: ("step", "speed")}
each_panel = pytest.mark.parametrize("make", FIGURES)


def moves(control: Any) -> list[Any]:
    """Where a slider stops, or which buttons there are."""
    return list(control.slider.options) if control.slider else [value for _, value in control.source.options]


def test_words_say_what_is_real_and_what_every_epsilon_is() -> None:
    text = make_noise().words.value
    assert "<b>As printed, 8 devices</b> (1 process, 7 simulated)" in text
    assert "the sum carries √N times that, <b>0.354</b>, and the mean 0.0442 on every coordinate" in text
    assert "0.354 / 2 = <b>0.177</b>, where z0 says 1" in text
    assert "(zCDP, z0 at face value)" in text
    assert "<b>no guarantee</b>, as α is private; with a public α <b>ε = " in text
    assert "(Gaussian DP, exact; one utterance, zero-out, disjoint batches)" in text
    assert "They agree" in devices_words.noise_in_words(noise(variant=SOUND))
    assert "<b>no guarantee</b>, because z0 is 0" in devices_words.noise_in_words(noise(z0=0.0))
    text = make_scaling().words.value
    assert "<b>Measured</b> on one core (2 cores, x86_64, 21 November 2026, torch" in text
    assert "<b>Extrapolated</b> to 8 devices (none of them run: 0 processes, 8 imagined)" in text
    assert "The paper's Table 2 says 1.04 times for CLC on ATIS with 8 GPUs" in text


@each_panel
def test_every_control_changes_words_or_figures_and_command_and_reset_undoes_it(make: Any) -> None:
    panel = make()
    words, command = panel.words.value, panel.command.value
    pictures = [figure.to_json() for figure in panel.figures]
    for name, control in panel.controls.items():
        options = moves(control)
        (control.slider or control.source).value = next(
            stop for stop in options[len(options) // 3 :] if stop != control.value
        )
        assert panel.errors == [], name
        assert panel.words.value != words, name
        assert panel.command.value != command or name in ("parameters", "seed"), name
        assert [figure.to_json() for figure in panel.figures] != pictures or name == "parameters", name
        panel.reset()
    assert (panel.words.value, panel.command.value) == (words, command)
    assert [figure.to_json() for figure in panel.figures] == pictures


def test_commands_say_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    panel = make_noise()
    for variant in (AS_PRINTED, SOUND):
        panel.set(variant=variant)
        words = shlex.split(panel.command.value)
        report = json.loads(CliRunner().invoke(app, [*words[1:], "--json"]).stdout)
        result = panel.result
        assert report["noise_std"][0] == pytest.approx(result.mechanism.noise_std(0))
        assert report["holds"]["epsilon_if_alpha_public"] == pytest.approx(result.true[result.here])
        assert report["claimed"]["epsilon"] == pytest.approx(result.claimed[result.here])
    panel = make_scaling()
    measured, extrapolated = panel.command.value.splitlines()
    assert measured.startswith(
        "edp-lab bench step --corpus atis --model clc --methods sgd,edp-sgd --gpus 1 --threads 1"
    )
    python, flag, text = shlex.split(extrapolated)
    assert (python, flag) == ("python", "-c")
    exec(text, {})
    told = re.findall(r"[\d.]+", capsys.readouterr().out)
    result = panel.result
    shown = [1000 * result.step[result.here], result.speed_up[result.here], result.ratio[result.here]]
    assert [float(number) for number in told] == pytest.approx(shown, rel=0.01)


@each_panel
def test_bad_value_is_one_sentence_and_the_last_result_stays(make: Any) -> None:
    panel = make()
    before = panel.result
    panel.set(**{"num_devices" if make is make_noise else "devices": 1000})
    assert "devices" in panel.error_box.value
    assert isinstance(panel.errors[-1], UsageError)
    assert panel.result is before
    panel.reset()
    assert panel.error_box.value == ""
    panel.check()


@each_panel
def test_every_slider_moves_without_a_fault(make: Any) -> None:
    panel = make()
    assert len(move(panel, 100)) == 100
    panel.check()


@each_panel
def test_updated_figure_is_the_one_drawn_anew(make: Any) -> None:
    panel = make()
    panel.set(**{name: moves(control)[len(moves(control)) // 3] for name, control in panel.controls.items()})
    assert panel.errors == []
    for name, figure in zip(FIGURES[make], panel.figures, strict=True):
        drawn = getattr(devices_figures, f"{name}_figure")(panel.result)
        assert json.loads(figure.to_json())["layout"] == json.loads(drawn.to_json())["layout"]
        for ours, anew in zip(figure.data, drawn.data, strict=True):
            ours, anew = (json.loads(go.Figure(trace).to_json())["data"][0] for trace in (ours, anew))
            assert {**ours, "uid": None} == {**anew, "uid": None}


def test_every_figure_names_its_axes_and_says_what_holds_or_that_speed_has_no_epsilon() -> None:
    table = devices_figures.table2_figure({model: devices.table2(model) for model in ("clc", "bert")})
    for figure in [table, *(figure for make in FIGURES for figure in make().figures)]:
        assert all(axis.title.text for axis in figure.select_xaxes())
        assert any(axis.title.text for axis in figure.select_yaxes())
        caption = figure.layout.title.subtitle.text
        assert re.search("no ε|zCDP, Gaussian DP|seed", caption)
        assert max(len(line) for line in caption.split("<br>")) <= (90 if figure is table else 56)
        shown = [trace for trace in figure.data if trace.showlegend is not False and trace.type == "scatter"]
        looks = [(t.legend, t.line.dash, t.marker.symbol, t.mode) for t in shown]
        assert len(set(map(str, looks))) == len(looks), caption


# ---- The notebook --------------------------------------------------------------------------------------------------


def cells(kind: str) -> list[nbformat.NotebookNode]:
    return [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == kind]


def test_executed_notebook_follows_its_parameters_and_starts_two_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    values = {
        "C": 0.5, "z0": 0.8, "num_devices": 4, "processes": 2, "delta": 1e-6, "seed": 3, "corpus": "smart-home",
        "STRICT": True,
    }  # fmt: skip
    assert set(notebook_parameters(NOTEBOOK)) == {"mode", *values}
    space: dict[str, Any] = {}
    for cell in cells("code"):
        exec(cell.source, space)
        if "parameters" in cell.metadata.get("tags", ()):
            space.update(values)
    panel, real = space["noise_panel"], space["real_panel"]
    assert panel.values == {
        "variant": AS_PRINTED, "num_devices": 4, "clip_norm": 0.5, "z0": 0.8, "epochs": 10,
        "parameters": devices_panels.SMALL, "delta": 1e-6, "seed": 3,
    }  # fmt: skip
    assert space["scaling_panel"].result.devices == 4
    assert [run.record["devices"] for run in real.runs] == [
        "4 devices: 1 process, 3 simulated",
        "4 devices: 2 processes, 2 simulated",
    ]
    assert [run.record["world_size"] for run in real.runs] == [1, 2]
    assert real.runs[1].config.z0 == 0.8
    assert devices.difference(*real.runs) < 1e-9
    assert real.runs[0].losses == pytest.approx(real.runs[1].losses, rel=1e-9)
    assert "<b>4 devices: 2 processes, 2 simulated</b>" in real.words.value
    assert "the same model, up to the order of sums" in real.words.value
    assert list(real.figure.data[1].y) == list(real.runs[1].losses)
    assert "3 of 3 exercises solved" in capsys.readouterr().out


def test_timed_rows_are_read_from_what_the_benchmark_writes() -> None:
    [row, *_] = json.loads((devices.RESULTS / "bench_shares.json").read_text())
    assert Timed.of(row).seconds == row["seconds"]
    assert {"machine", "versions", "command", "date", "parameters"} <= set(row)


def test_patterns_are_drawn_over_the_colour_of_a_bar() -> None:
    """In plotly's default a white pattern replaces the colour, and the bar cannot be seen."""
    for bar in devices_figures.step_figure(scaling("clc", 8, 64, 10.0, 10.0, 1.0)).data:
        assert bar.marker.color
        assert bar.marker.pattern.fillmode == "overlay"
