"""Notebook 07: what its panels draw and say of an attack is what the library's attacks and accountants give."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import torch
from typer.testing import CliRunner

from edp_lab.attacks.membership.attacks import Attacked, aligned, attack_loss, equal_sides, lira_scores
from edp_lab.attacks.membership.shadow_models import ShadowSignals, half_samples
from edp_lab.attacks.membership.signals import Signals, signals
from edp_lab.attacks.statistics import dp_bound, gaussian_bound
from edp_lab.cli import app
from edp_lab.corpora import load_corpus, split
from edp_lab.course.kit.panel_driver import move
from edp_lab.course.nb07_membership import compute as membership
from edp_lab.course.nb07_membership import figures as membership_figures
from edp_lab.course.nb07_membership import measured as membership_measured
from edp_lab.course.nb07_membership import panels as membership_panels
from edp_lab.course.nb07_membership import words as membership_words
from edp_lab.course.nb07_membership.compute import Shown, show_canaries, show_roc
from edp_lab.course.nb07_membership.measured import Moments, kept_lira, measured, target_config
from edp_lab.course.publish.build import instructor, read_source
from edp_lab.errors import UsageError
from edp_lab.training import train

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "source" / "07_membership_inference.ipynb"
CORPUS, EPOCHS = "smart-home-health", 3
LINES = {"as_printed": True, "z0": 4.0, "num_devices": 8, "epochs": 8}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs") / "target"
    train(target_config(CORPUS, 0, EPOCHS), folder)
    return folder


@pytest.fixture(scope="module")
def loss(run: Path) -> Attacked:
    return attack_loss(run)


@pytest.fixture(scope="module")
def attacks(loss: Attacked) -> dict[str, Attacked]:
    """The loss, and an attack that is right about everybody."""
    sure = np.repeat([1.0, 0.0], len(loss.target.members))
    perfect = replace(loss, result=replace(loss.result, attack="lira-online"), scores=sure)
    return {"loss": loss, "lira-online": perfect}


def shown(attacks: Mapping[str, Attacked], attack: str = "loss", **change: Any) -> Shown:
    most = len(attacks["loss"].target.members)
    return show_roc(attacks, attack, **{"called": 10.0, "people": most, **LINES, **change})


# ---- Kept shadow models --------------------------------------------------------------------------------------------


def drawn_shadows(loss: Attacked, models: int, seed: int = 0) -> ShadowSignals:
    """Shadow models that were never trained, on the target's pool."""
    pool, rng = loss.target.pool, np.random.default_rng(seed)
    inside = half_samples(pool, models, seed)
    logits = rng.normal(0, 1.5, (models, len(pool), 2)) + rng.normal(0, 2, (1, len(pool), 2)) + inside[..., None]
    return ShadowSignals(Signals(-logits[..., 0], logits[..., 0], logits[..., 1]), inside)


def test_moments_of_shadow_models_give_the_very_scores_of_the_models(loss: Attacked) -> None:
    shadows, own = drawn_shadows(loss, 10), signals(loss.target.model, loss.target.pool)
    kept = Moments.of(shadows).shadows()
    for online in (True, False):
        from_all = lira_scores(aligned(own, shadows), shadows, online)
        from_kept = lira_scores(aligned(own, kept), kept, online)
        assert from_kept == pytest.approx(from_all, rel=1e-9, abs=1e-9)


def test_kept_lira_attacks_its_own_pool_and_no_other(loss: Attacked, tmp_path: Path) -> None:
    target, moments = loss.target, Moments.of(drawn_shadows(loss, 6))
    item = {
        "corpus": CORPUS, "corpus_sha256": target.corpus.sha256, "seed": 0, "models": 6, "pool": len(target.pool),
        "v_in": moments.v_in.tolist(), "v_out": moments.v_out.tolist(),
        "inside": membership_measured._packed(moments.inside), "outside": membership_measured._packed(moments.outside),
    }  # fmt: skip
    path = tmp_path / "kept.json"
    membership_measured._write(path, {"shadows": [item], "defended": [], "canaries": []})
    lira = kept_lira(loss, path)
    assert lira is not None
    wanted = lira_scores(aligned(signals(target.model, target.pool), moments.shadows()), moments.shadows())
    assert lira.scores == pytest.approx(wanted, rel=0.02, abs=0.05)  # stored in half precision
    assert (lira.result.attack, lira.about["shadows"]) == ("lira-online", 6)
    other = replace(loss, target=replace(target, config=replace(target.config, seed=1)))
    assert kept_lira(other, path) is None
    assert kept_lira(loss) is None  # the course keeps none for a single domain


def test_what_is_kept_belongs_to_the_embedded_corpus() -> None:
    corpus = load_corpus("smart-home")
    members, non_members = equal_sides(split(corpus, 0), 0)
    told = json.loads(membership_measured.RESULTS.read_text())
    kept = next(item for item in told["shadows"] if item["corpus"] == "smart-home")
    assert (kept["corpus_sha256"], kept["pool"]) == (corpus.sha256, len(members + non_members))
    assert {"command", "machine", "versions"} <= told.keys()


def test_measuring_again_lacks_nothing_that_is_kept(tmp_path: Path) -> None:
    said: list[str] = []
    copy = tmp_path / "copy.json"
    copy.write_bytes(membership_measured.RESULTS.read_bytes())
    membership_measured.measure(copy, told=said.append)
    assert said == []


@pytest.mark.parametrize("content", ["{}", "[]", "no JSON"])
def test_damaged_results_are_one_sentence(tmp_path: Path, content: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(UsageError, match="damaged"):
        measured(path)
    with pytest.raises(UsageError, match="is missing"):
        measured(tmp_path / "none.json")


# ---- The curve -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("called", "people"), [(1.0, 500), (10.0, 500), (50.0, 60), (100.0, 200)])
def test_threshold_calls_the_share_that_is_asked_for(
    attacks: Mapping[str, Attacked], called: float, people: int
) -> None:
    result = shown(attacks, called=called, people=people)
    inside, outside = (side[:people] for side in attacks["loss"].target.sides(attacks["loss"].scores))
    assert result.hits.value == np.mean(inside >= result.threshold)
    assert result.alarms.value == np.mean(outside >= result.threshold)
    assert result.hits.value + result.alarms.value == pytest.approx(called / 50, abs=1.5 / people)
    corners = list(zip(result.result.roc.fpr, result.result.roc.tpr, strict=True))
    assert (result.alarms.value, result.hits.value) in corners
    assert result.hits.interval[0] <= result.hits.value <= result.hits.interval[1]


def test_thinned_curve_is_made_of_corners_of_the_whole_one_in_their_band(attacks: Mapping[str, Attacked]) -> None:
    result = shown(attacks)
    whole = set(zip(result.result.roc.fpr, result.result.roc.tpr, strict=True))
    assert set(zip(result.fpr, result.tpr, strict=True)) <= whole
    assert (result.low <= result.tpr).all()
    assert (result.tpr <= result.high).all()
    narrow, wide = (np.max(r.high - r.low) for r in (result, shown(attacks, people=50)))
    assert wide > 2 * narrow


def test_lines_are_the_bounds_of_the_guarantee_that_is_told(attacks: Mapping[str, Attacked]) -> None:
    result = shown(attacks)
    guarantee, rates = result.guarantee, np.array([0.001, 0.01, 0.3])
    assert guarantee.epsilon_claimed is not None
    assert guarantee.mu is not None
    assert (result.claimed.tpr(rates) == dp_bound(guarantee.epsilon_claimed, guarantee.delta).tpr(rates)).all()
    assert (result.true.tpr(rates) == gaussian_bound(guarantee.mu).tpr(rates)).all()
    assert (guarantee.adjacency, guarantee.epochs) == ("REPLACE_ONE", 8)
    assert guarantee.mu == pytest.approx(8**0.5 * 2 * 8**0.5 / 4)  # as printed: z is too large by 2 sqrt N


def test_perfect_attack_is_beyond_what_small_epsilons_allow(attacks: Mapping[str, Attacked]) -> None:
    assert shown(attacks, "lira-online", z0=50.0).beyond == (True, True)
    assert "more than either line allows" in membership_words.roc_in_words(shown(attacks, "lira-online", z0=50.0))
    assert shown(attacks, "lira-online", z0=2.5).beyond == (True, False)
    assert shown(attacks, "lira-online", z0=0.01).beyond == (False, False)
    assert shown(attacks, "loss", z0=1.0).beyond == (False, False)


def test_histograms_hold_everybody(attacks: Mapping[str, Attacked]) -> None:
    for attack in attacks:
        result = shown(attacks, attack)
        assert [shares.sum() for shares in result.shares] == pytest.approx([1, 1])
        assert result.edges[0] <= result.mark <= result.edges[-1]


@pytest.mark.parametrize("attack", ["loss", "shadow", "lira-online"])
def test_scores_keep_their_order_in_the_histogram(attack: str) -> None:
    scores = -np.geomspace(1e-5, 20, 50) if attack == "loss" else np.linspace(-30, 30, 50)[::-1]
    assert (np.diff(membership.view(attack, scores)) <= 0).all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"people": 49}, "number of members is 49"),
        ({"people": 10_000}, "from 50 to "),
        ({"called": 0.0}, "share called members is 0.0"),
        ({"attack": "shadow"}, "no attack 'shadow' was made: choose loss or lira-online"),
        ({"num_devices": 0}, "devices"),
        ({"epochs": -1}, "epochs"),
    ],
)
def test_bad_settings_are_one_sentence(attacks: Mapping[str, Attacked], change: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as told:
        shown(attacks, **change)
    assert "\n" not in str(told.value)


def test_without_noise_no_line_promises_anything(attacks: Mapping[str, Attacked]) -> None:
    result = shown(attacks, z0=0.0)
    assert (result.claimed.auc, result.true.auc) == (1, 1)
    assert "no guarantee" in membership_words.roc_in_words(result)


def test_guards_find_both_careless_splits(loss: Attacked) -> None:
    random, ordered, copied = membership.guard(loss).values()
    assert not random.leaks
    assert random.duplicates == 0
    assert ordered.text_auc > 0.8
    assert copied.duplicates == 100
    table = membership_words.guards_table(membership.guard(loss))
    assert [line.split()[-1] for line in table.splitlines()[1:]] == ["yes", "no", "no"]


# ---- Canaries ------------------------------------------------------------------------------------------------------


def test_canaries_are_the_measured_ones() -> None:
    grid = measured().canaries
    result = show_canaries(grid, "edp-sgd", 0.03, 4)
    assert result.chosen is grid["edp-sgd", 0.03][3]
    assert (result.chosen.method, result.chosen.repetitions) == ("edp-sgd", 4)
    assert result.others["sgd"] == grid["sgd", None]
    often, never = (show_canaries(grid, "sgd", 0.03, times).chosen for times in (16, 0))
    assert often.exposure > 12 > 4 > never.exposure
    assert often.extracted == 8


@pytest.mark.parametrize(
    ("method", "z0", "times", "says"),
    [("dp-sgd", 0.01, 4, "dp-sgd"), ("sgd", 0.02, 4, "z0 = 0.02 was not measured"), ("sgd", 0.01, 3, "3 repetitions")],
)
def test_what_was_not_measured_is_one_sentence(method: str, z0: float, times: int, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        show_canaries(measured().canaries, method, z0, times)


def test_token_picture_shows_what_each_token_gives_away() -> None:
    result = show_canaries(measured().canaries, "sgd", 0.01, 16)
    heat = membership_figures.tokens_figure(result).data[0]
    trace = result.chosen.trace
    assert heat.z[-1][-1] == pytest.approx(np.log10(trace[-1].probability / trace[-1].elsewhere))
    assert "".join(heat.text[-1]) == "".join(str(membership_figures.DIGITS.index(t.token)) for t in trace[5:])
    assert max(heat.z[-1][1:5]) < 0.1 < 1 < min(heat.z[-1][5:])  # words around the number against its digits


def test_words_of_canaries_say_what_is_promised() -> None:
    grid = measured().canaries
    assert "No guarantee" in membership_words.canaries_in_words(show_canaries(grid, "sgd", 0.01, 4))
    printed = membership_words.canaries_in_words(show_canaries(grid, "edp-sgd-as-printed", 0.01, 4))
    assert "No guarantee" in printed
    assert "zCDP says" in printed
    sound = membership_words.canaries_in_words(show_canaries(grid, "edp-sgd", 0.01, 4))
    assert "all 4 copies together" in sound
    assert "Gaussian DP" in sound


def test_the_sharp_attack_wins_where_few_are_accused() -> None:
    from edp_lab.attacks.statistics import auc, tpr_at_fpr

    two = membership.sharp_and_blunt(20_000, 0)
    areas = {name: auc(*sides) for name, sides in two.items()}
    tails = {name: tpr_at_fpr(*sides, 0.01) for name, sides in two.items()}
    assert areas["blunt"] > areas["sharp"] + 0.05
    assert tails["sharp"] is not None
    assert tails["blunt"] is not None
    assert tails["sharp"].value > tails["blunt"].value + 0.02


# ---- Panels --------------------------------------------------------------------------------------------------------


@pytest.fixture
def roc(attacks: dict[str, Attacked]) -> Any:
    return membership_panels.roc_panel(attacks, True, 4.0, 8, 8)


@pytest.fixture
def canaries() -> Any:
    return membership_panels.canary_panel(measured().canaries, "edp-sgd", 0.01, 4)


FIGURES = {"roc": ("roc", "scores"), "canaries": ("exposure", "tokens")}
each_panel = pytest.mark.parametrize("name", list(FIGURES))


@each_panel
def test_every_control_changes_figures_and_reset_undoes_it(name: str, request: pytest.FixtureRequest) -> None:
    panel = request.getfixturevalue(name)
    words, command = panel.words.value, panel.command.value
    pictures = [figure.to_json() for figure in panel.figures]
    for control in panel.controls.values():
        options = control.slider.options if control.slider else [value for _, value in control.source.options]
        control.source.value = next(stop for stop in options[len(options) // 3 :] if stop != control.value)
        assert panel.errors == []
        assert [figure.to_json() for figure in panel.figures] != pictures
        panel.reset()
    assert (panel.words.value, panel.command.value) == (words, command)
    assert [figure.to_json() for figure in panel.figures] == pictures


@each_panel
def test_updated_figure_is_the_one_drawn_anew(name: str, request: pytest.FixtureRequest) -> None:
    panel = request.getfixturevalue(name)
    for control_name, control in panel.controls.items():
        options = control.slider.options if control.slider else [value for _, value in control.source.options]
        panel.set(**{control_name: options[len(options) // 3]})
    for figure_name, figure in zip(FIGURES[name], panel.figures, strict=True):
        drawn = getattr(membership_figures, f"{figure_name}_figure")(panel.result)
        assert json.loads(figure.to_json())["layout"] == json.loads(drawn.to_json())["layout"]
        for ours, anew in zip(figure.data, drawn.data, strict=True):
            ours, anew = (json.loads(go.Figure(trace).to_json())["data"][0] for trace in (ours, anew))
            assert {**ours, "uid": None} == {**anew, "uid": None}


@each_panel
def test_every_slider_moves_without_a_fault(name: str, request: pytest.FixtureRequest) -> None:
    panel = request.getfixturevalue(name)
    assert len(move(panel, 100)) == 100
    panel.check()


def test_bad_value_is_one_sentence_and_the_last_result_stays(roc: Any) -> None:
    before = roc.result
    roc.set(called=-3.0)
    assert "share called members is -3.0" in roc.error_box.value
    assert roc.result is before
    roc.check()


def test_commands_of_the_curve_attack_the_run_and_account_for_the_lines(roc: Any, run: Path) -> None:
    roc.set(attack="loss")
    training, attacking, accounting = roc.command.value.splitlines()
    assert training.startswith(f"edp-lab train --corpus {CORPUS} --method sgd")
    told = invoked(attacking.replace("runs/target", shlex.quote(str(run))))
    assert told["auc"] == roc.result.result.auc
    report = invoked(accounting)
    assert report["holds"]["epsilon"] == pytest.approx(roc.result.guarantee.epsilon, rel=1e-4)
    assert report["claimed"]["epsilon"] == pytest.approx(roc.result.guarantee.epsilon_claimed, rel=1e-4)


def invoked(command: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*shlex.split(command)[1:], "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_command_of_canaries_measures_this_method(canaries: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from edp_lab.attacks import memorisation

    asked: list[Any] = []

    def measure(*told: Any) -> None:
        asked.extend(told)
        raise UsageError("enough")

    monkeypatch.setattr(memorisation, "measure_memorisation", measure)
    CliRunner().invoke(app, shlex.split(canaries.command.value)[1:])
    config, methods, repetitions, *_ = asked
    assert config == replace(membership_measured.CANARIES, z0=0.01)
    assert (list(methods), tuple(repetitions)) == (["edp-sgd"], membership_measured.REPETITIONS)


def test_defence_trains_attacks_and_draws_a_run(loss: Attacked) -> None:
    runs = membership.defended({"loss": loss}, measured())
    assert len(runs) == 1  # none of the measured runs is of this corpus
    panel = membership_panels.DefencePanel(target_config(CORPUS, 0, 1), runs, True, 0.05, 4, 2.0)
    assert panel.children[-1].children == ()  # no command before the first run
    panel.run(wait=True)
    panel.check()
    assert panel.children[-1].children[-1] is panel.command
    [mine] = panel.runs
    assert (mine.config.z0, mine.config.num_devices, mine.config.clip_norm, mine.config.as_printed) == (
        0.05,
        4,
        2.0,
        True,
    )
    assert panel.figures[0].data[0].x == (mine.epsilon,)
    assert panel.figures[0].data[0].y == (mine.found["loss"].auc,)
    assert panel.figures[1].data[0].x == (mine.ser,)
    assert "zCDP" in panel.words.value
    assert "--z0 0.05" in panel.command.value
    assert "--as-printed" in panel.command.value


def test_stopped_defence_attacks_nothing(loss: Attacked) -> None:
    plain = membership.defended({"loss": loss}, measured())
    panel = membership_panels.DefencePanel(target_config(CORPUS, 0, 30), plain, False, 0.05, 8, 1.0)
    listen = panel._listen

    def stop_soon(event: Any) -> None:
        listen(event)
        panel.stop()

    panel._listen = stop_soon  # type: ignore[method-assign]
    panel.run(wait=True)
    panel.check()
    assert panel.runs == []
    assert "Stopped" in panel.words.value


# ---- Figures and notebook ------------------------------------------------------------------------------------------


def test_every_figure_names_its_axes_and_its_promise_and_needs_no_colour(
    roc: Any, canaries: Any, loss: Attacked
) -> None:
    defence = membership_panels.DefencePanel(target_config("smart-home", 0), measured().defended, True, 0.01, 8, 1.0)
    two = membership_figures.two_attacks(membership.sharp_and_blunt(100, 0))
    for figure in [*roc.figures, *canaries.figures, *defence.figures, two]:
        assert all(axis.title.text for axis in [*figure.select_xaxes(), *figure.select_yaxes()])
        caption = figure.layout.title.subtitle.text
        assert re.search("guarantee|Gaussian DP|a side", caption)
        assert max(len(line) for line in caption.split("<br>")) <= 70
        kinds = [t for t in figure.data if t.showlegend is not False and t.type == "scatter"]
        looks = [(t.line.dash, t.marker.symbol, t.mode, t.fillcolor) for t in kinds]
        assert len(set(looks)) == len(looks), caption


def cells(kind: str) -> list[Any]:
    return [cell for cell in instructor(read_source(NOTEBOOK)).cells if cell.cell_type == kind]


def test_notebook_follows_its_parameters_and_solves_its_exercises(capsys: pytest.CaptureFixture[str]) -> None:
    values = {
        "corpus": CORPUS, "C": 0.5, "z0": 20.0, "z0_trained": 0.03, "num_devices": 4, "epochs": 1, "seed": 1,
        "STRICT": True,
    }  # fmt: skip
    space: dict[str, Any] = {}
    for cell in cells("code"):
        exec(cell.source, space)
        if "parameters" in cell.metadata.get("tags", ()):
            assert set(values) < set(space)
            space.update(values)
    assert list(space["attacks"]) == ["loss", "shadow"]  # no shadow models are kept for this corpus
    told = space["roc"].values
    assert (told["z0"], told["num_devices"], told["epochs"], told["as_printed"]) == (20.0, 4, 1, True)
    assert space["roc"].result.seed == 1
    assert space["canaries"].values["z0"] == 0.03
    assert space["defence"].prepare() == replace(
        target_config(CORPUS, 1, 1), method="edp-sgd", as_printed=True, z0=0.03, num_devices=4, clip_norm=0.5
    )
    assert "3 of 3 exercises solved" in capsys.readouterr().out


def test_numbers_that_the_notebook_states_were_measured() -> None:
    text = "\n".join(cell.source for cell in cells("markdown"))
    kept = measured()
    plain, *noised = kept.defended
    assert plain.found["loss"].auc == pytest.approx(0.79, abs=0.005)
    assert plain.found["loss"].tpr == pytest.approx(0.04, abs=0.005)
    assert (plain.found["lira-online"].auc, plain.found["lira-online"].tpr) == pytest.approx((0.91, 0.22), abs=0.005)
    assert "with an AUC of 0.91, finds 22 %" in text
    counts = {row.repetitions: row.extracted for row in kept.canaries["sgd", None]}
    assert (counts[1], counts[4], counts[16]) == (1, 5, 8)
    assert "One, five and eight of eight" in text
    by = {(run.config.as_printed, run.config.z0): run for run in noised}
    for printed, sound in (((True, 0.003), (False, 0.01)), ((True, 0.001), (False, 0.003))):
        assert by[printed].ser == pytest.approx(by[sound].ser, abs=0.01)
        assert 250 < (by[printed].epsilon or 0) / (by[sound].epsilon or 1) < 400
    assert "some 300" in text
