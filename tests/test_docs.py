"""The README and the pages of docs/: what they show works, what they say is so, and the first page is short."""

import json
import math
import os
import re
import runpy
import shlex
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import edp_lab
from edp_lab.cli import app
from edp_lab.cli.course import course_app
from edp_lab.privacy import Mechanism, gdp_epsilon, judge
from edp_lab.privacy.guarantee import upward
from edp_lab.reproduce.chance import CHANGES, Change, beyond_chance
from edp_lab.reproduce.paper.table1 import estimate
from edp_lab.three_phase.votes import Aggregator, account_votes
from edp_lab.training.recipe import recipe
from tests.course.conftest import prose

ROOT = Path(edp_lab.__file__).parents[1]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), ROOT / "data/results/README.md")
}
README = PAGES["README.md"]
BLOCKS = re.findall(r"```python\n(.*?)```", "".join(PAGES.values()), re.DOTALL)
OWN_MODEL = next(block for block in BLOCKS if "PrivateStep" in block)
RESULTS = ROOT / "data" / "results"


# ---- Examples --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [b for b in BLOCKS if b != OWN_MODEL])
def test_short_examples_give_what_their_comments_say(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for line in block.strip().splitlines():
        if shown := re.search(r"  # ([\d.]+)$", line):
            assert f"{eval(line, namespace):.3g}" == f"{float(shown[1]):.3g}"
        else:
            exec(line, namespace)


def test_your_own_model_learns_and_two_processes_learn_the_same(tmp_path: Path) -> None:
    program = f"{OWN_MODEL}\nimport json, pathlib\nif accelerator.is_main_process:\n"
    program += "    pathlib.Path('weights.json').write_text(json.dumps([p.tolist() for p in model.parameters()]))\n"
    (tmp_path / "own_model.py").write_text(program)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options: dict[str, Any] = {"cwd": tmp_path, "env": {**os.environ, "OMP_NUM_THREADS": "1"}, "check": True}
    numbers = []
    for launcher in ([], torchrun):
        command = [sys.executable, *launcher, "own_model.py"]
        line = subprocess.run(command, capture_output=True, text=True, **options).stdout
        accuracy, epsilon = map(float, re.findall(r"\d+\.\d+", line)[:2])
        assert accuracy > 0.9
        assert 1 < epsilon < 30
        numbers.append(json.loads((tmp_path / "weights.json").read_text()))
    flat = [[x for p in model for row in p for x in (row if isinstance(row, list) else [row])] for model in numbers]
    assert flat[0] == pytest.approx(flat[1], abs=1e-4)


# ---- Commands and pages ----------------------------------------------------------------------------------------------


def code_of(text: str) -> list[str]:
    """The lines of blocks, fenced or indented, and the inline code of a Markdown text."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    rest = re.sub(r"^```[^\n]*\n.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    blocks += re.findall(r"^    (.*\n)", rest, re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", " ").splitlines() + re.findall(r"`([^`]+)`", rest)
    return [line.split(" #")[0].strip() for line in lines]


def test_pages_mention_only_make_targets_and_commands_that_exist() -> None:
    lines = [line for text in PAGES.values() for line in code_of(text)]
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    made = {match[1] for line in lines if (match := re.search(r"(?<!data )\bmake (?:[A-Z_]+=\S+ )*([a-z]+)", line))}
    assert {"course", "test", "lab"} <= made <= targets

    called = [shlex.split(line[line.index("edp-lab ") :])[1:] for line in lines if "edp-lab " in line]
    assert ["course", "run"] in called
    for words in called:
        check_command(get_command(app), words)


def check_command(command: Any, words: list[str]) -> None:
    """Fail where ``words`` name a sub-command or an option that ``command`` does not have."""
    trail = "edp-lab"
    while hasattr(command, "commands") and words and re.fullmatch(r"[a-z][a-z0-9-]*", words[0]):
        name, *words = words
        assert name in command.commands, f"docs: `{trail} {name}` does not exist"
        command, trail = command.commands[name], f"{trail} {name}"
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        if word.startswith("--"):
            assert word.split("=")[0] in options | {"--help"}, f"docs: `{trail}` has no option {word}"


def test_check_of_commands_notices_what_does_not_exist() -> None:
    command = get_command(course_app)
    check_command(command, ["run", "00_start", "--mode", "full"])
    for words in (["walk"], ["run", "--speed", "2"]):
        with pytest.raises(AssertionError, match="docs"):
            check_command(command, words)


def test_every_command_has_its_place_on_the_page_of_commands() -> None:
    told = [shlex.split(line)[1:] for line in code_of(PAGES["docs/commands.md"]) if line.startswith("edp-lab ")]
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        for sub in getattr(command, "commands", {None: None}):
            assert any(words[:2] == [name, sub] if sub else words[0] == name for words in told), f"{name} {sub}"


def test_accounts_are_printed_as_they_stand_here() -> None:
    """Every call of `edp-lab account` that needs no run; the first prints the epsilons beside it."""
    lines = [line for line in code_of(PAGES["docs/accounting.md"]) if line.startswith("edp-lab account --")]
    calls = [shlex.split(line)[1:] for line in lines if "--run" not in line]
    ended = [CliRunner().invoke(app, [*words, "--json"]) for words in calls]
    assert [result.exit_code for result in ended] == [0, 0, 0]
    said = json.loads(ended[0].stdout)
    told = "a claimed epsilon of {:.3g} and a true one of {:.3g}, in real numbers"
    found = told.format(said["claimed"]["epsilon"], said["holds"]["epsilon_in_real_numbers"])
    assert found in PAGES["docs/accounting.md"]


def test_every_page_of_docs_is_linked_from_the_readme() -> None:
    """That links lead somewhere: tests/course/test_build.py, for all pages."""
    assert [page for page in PAGES if page.startswith("docs/") and f"({page})" not in README] == []


# ---- What they say ---------------------------------------------------------------------------------------------------


def test_readme_can_be_read_in_three_minutes() -> None:
    assert len(README.split()) <= 700


def test_picture_is_drawn_from_the_epsilons_of_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = ROOT / "docs" / "images" / "promise.svg"
    monkeypatch.setattr(sys, "argv", ["promise.py", str(tmp_path / "promise.svg")])
    runpy.run_path(str(picture.with_suffix(".py")), run_name="__main__")
    drawn = (tmp_path / "promise.svg").read_text(encoding="utf-8")
    assert drawn == picture.read_text(encoding="utf-8"), "docs/images/promise.py draws another picture now"
    large = re.findall(r'class="large"[^>]*>([^<]+)<', drawn)  # N, claimed, holds in each frame
    assert list(dict.fromkeys(large[::3])) == [f"N = {n}" for n in range(1, 33)]
    assert set(large[1::3]) == {"5.3"}
    assert (large[2], large[-1]) == ("10", "112")
    assert "stays at 5.3. The epsilon that holds grows from 10 to 112." in README


def rows(name: str, **asked: Any) -> list[dict[str, Any]]:
    found = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return [row for row in found if all(row[key] == value for key, value in asked.items())]


def states(page: str, *sentences: str) -> None:
    """Fail where a page does not have a sentence, lines broken anyhow."""
    text = " ".join(PAGES[page].split())
    for sentence in sentences:
        assert sentence in text, f"{page} does not say: {sentence}"


def test_findings_on_table_1_are_those_of_its_file() -> None:
    private = [row for row in rows("table1") if row["log10_claimed"] is not None]
    claimed = [row["log10_claimed"] for row in private]
    missed = sum(not row["within_tolerance"] for row in private)
    low, high = (f"{10 ** (end(claimed) - 6):.0f}" for end in (min, max))
    found = f"epsilon of {low} million to {high} million, and {missed} of the {len(private)} rows miss that 1.15"
    states("docs/results.md", found)
    states("README.md", found)
    shielded = [row for row in private if row["loss_auc_change"]["high"] < 0]
    gain = [-row["loss_auc_change"]["mean"] for row in shielded]
    cost = [row["ser_change"]["mean"] for row in shielded]
    lower = f"an attack by the loss has an AUC that is {min(gain):.0f} to {max(gain):.0f} % lower than against SGD's"
    states("docs/results.md", f"Against {len(shielded)} of these {len(private)} models {lower}")
    states("docs/results.md", f"These models err {min(cost):.0f} to {max(cost):.0f} % more.")
    changes = [Change.read(row, name) for row in private for name in CHANGES]
    tests, together = len(changes), sum(beyond_chance(changes))
    alone = sum(abs(change.mean) > change.half_width for change in changes)
    told = f"changes in each of {len(private)} rows are {tests} tests", f"One by one, {alone} are beyond chance"
    states("docs/results.md", *told, f"for all of them, {together} are.")
    told = f"One by one, {alone} changes are beyond chance", f"{together} of the {tests} are left"
    states("data/results/README.md", *told)


def test_findings_on_decay_are_those_of_table_1s_runs_paired_by_seed() -> None:
    kept = [json.loads(path.read_text("utf-8")) for path in (ROOT / "data/results/cells").glob("[0-9a-f]*.json")]
    ser = {one["run"]: one["ser"] for one in kept if "run" in one}
    private = [row for row in rows("table1") if row["decay"]]
    own = {
        tuple(map(row.get, ("model", "corpus", "variant", "decay"))): [*map(ser.get, row["runs"])] for row in private
    }
    found = [Change.of(own[*key[:3], "none"], own[key]) for key in own if key[3] != "none"]
    least, most = (f"{end(change.mean for change in found):.0f}" for end in (min, max))
    assert all(change.mean > 0 for change in found)
    beyond = f"for {sum(change.mean > change.half_width for change in found)} of them beyond chance"
    for page in ("docs/results.md", "data/results/README.md"):
        states(page, f"larger under each of {len(found)} decays", f"by {least} to {most} %", beyond)


def test_findings_on_decay_at_a_constant_rate_are_those_of_its_runs() -> None:
    kept: dict[tuple[Any, ...], list[float]] = {}  # errors by corpus, decay and tau, in the order of their seeds
    for row in json.loads((RESULTS / "decay.json").read_text("utf-8"))["rows"]:
        kept.setdefault((row["corpus"], row["decay"], row["tau"]), []).append(row["ser"])
    assert {len(errors) for errors in kept.values()} == {5}
    found = {place: Change.of(kept[place[0], "none", 0.0], kept[place]) for place in kept if place[1] != "none"}
    sure = dict(zip(found, beyond_chance(list(found.values())), strict=True))

    def told(*place: Any) -> str:
        mark = "**" if sure[place] else ""
        return f"{mark}{found[place].mean:+.1f} ± {found[place].half_width:.1f}{mark}"

    for _, *arm in found:
        cells = " | ".join(told(corpus, *arm) for corpus in ("atis", "snips"))
        states("data/results/README.md", f"| {arm[0]}, {arm[1]:g} | {cells} |")
    slow, fast = ([place for place in found if (place[2] < 0.2) is slower] for slower in (True, False))
    assert not any(sure[place] for place in slow)
    assert all(sure[place] for place in fast)
    assert max(abs(found[place].mean) for place in slow) < 3
    assert max(abs(found[place].mean) + found[place].half_width for place in slow) < 7.5
    least, most = (f"{end(found[place].mean for place in fast):.0f}" for end in (min, max))
    states("docs/results.md", f"faster ones cost {least} to {most} %")
    assert f"the fast ones cost {least} to {most} % more" in " ".join(prose("06").split())


def test_findings_on_the_three_phases_are_those_of_their_runs() -> None:
    runs = json.loads((RESULTS / "three_phase.json").read_text("utf-8"))["rows"]

    def told(sigma: float, network: str = "", votes: str = "") -> str:
        own = [run for run in runs if run["settings"]["sigma"] == sigma]
        assert [run["settings"]["seed"] for run in own] == [*range(5)]
        shares = [run["accuracy"][network] if network else run["labels"][votes] for run in own]
        return f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %"

    plain = f"right on {told(0.6, 'understudy')} of 60 test images, and a plain network on {told(0.6, 'plain model')}"
    noise = f"leaves {told(0.6, votes='right_without_noise')} of the labels right"
    states("docs/results.md", plain, noise, f"as well, {told(0.6, votes='right')} are right")
    states("docs/results.md", f"its understudy is right on {told(0.0, 'understudy')}")


def test_findings_on_attacks_are_those_of_their_file() -> None:
    found = {row["attack"]: row["found"] for row in rows("bench_attacks")}
    told = {"by the loss": "loss", "the paper's": "shadow", "LiRA": "lira, 16 shadow models"}
    for name, attack in told.items():
        low, high = (f"{100 * bound:.1f}" for bound in found[attack]["auc_interval"])
        states("docs/attacks.md", f"| {name} | {100 * found[attack]['auc']:.1f} % | {low} to {high} |")
    paper, lira = (f"{100 * found[attack]['auc']:.1f} %" for attack in list(told.values())[1:])
    states("README.md", f"the paper's attack has an AUC of {paper}", f"LiRA has {lira} on the same model")


def test_findings_on_privacy_that_works_are_those_of_their_file() -> None:
    def errors(corpus: str) -> list[str]:
        """Of the private model without privacy, and by target epsilon."""
        plain = rows("pareto", model="clc", corpus=corpus, method="SGD, the private model")
        private = rows("pareto", model="clc", corpus=corpus, method="DP-SGD")
        kept = {math.ceil(row["epsilon"]): f"{row['ser']['mean']:.1f}" for row in private}
        return [f"{plain[0]['ser']['mean']:.1f}", kept.get(8, ""), kept[3]]

    for name, corpus in (("ATIS", "atis"), ("SNIPS", "snips"), ("NLU-EVAL", "nlu-eval")):
        states("docs/results.md", f"| {name} | {' | '.join(errors(corpus))} |")


def by_todays_recipe(row: dict[str, Any]) -> bool:
    """Whether the settings of a private run are those of the recipe; other rows have none to compare."""
    settings = row.get("settings", {})
    if not row["target"]:
        return True
    lines = recipe(row["protected"], settings["pretrained"])
    return settings == {**{line.setting: line.value for line in lines}, "z0": settings["z0"]}


def test_findings_on_the_recipe_are_those_of_its_runs() -> None:
    told = json.loads((RESULTS / "recipe.json").read_text(encoding="utf-8"))
    more, spread = {}, []
    for name, corpus in (("ATIS", "atis"), ("SNIPS", "snips"), ("NLU-EVAL", "nlu-eval")):
        here = [row for row in told["rows"] if row["corpus"] == corpus]
        kept = [[row for row in here if row["target"] == goal] for goal in (0.0, None, 8.0, 3.0, 1.0)]
        assert all(tuple(row["seed"] for row in seeds) == (227, 228, 229) for seeds in kept)
        assert all(row["epsilon"] <= row["target"] for seeds in kept[2:] for row in seeds)
        assert all(map(by_todays_recipe, here))
        found: list[Any] = [estimate([row["ser"] for row in seeds]) for seeds in kept]
        errors, seconds = [f"{100 * ser['mean']:.1f}" for ser in found], told["seconds"][corpus]
        times = [f"{seconds['private'] / other:.1f}" for other in (60, seconds["sgd"], seconds["sgd_paper_size"])]
        states("docs/results.md", f"| {name} | {' | '.join([*errors, *times])} |")
        more[corpus] = f"{found[2]['mean'] / found[1]['mean']:.1f}"
        spread += [100 * (ser["high"] - ser["mean"]) for ser in found]
        if corpus == "atis":
            reached = f"errs on {errors[2]} % of slots and intents, epsilon 3 on {errors[3]} %"
            states("README.md", reached, f"errs on {errors[0]} %, SGD from there on {errors[1]} %")
    states(
        "docs/results.md",
        "Epsilon 8 has {atis}, {snips} and {nlu-eval} times SGD's error".format_map(more),
        f"intervals reach {min(spread):.1f} to {max(spread):.1f} points to a side",
    )


def test_findings_in_class_are_those_of_their_runs() -> None:
    told = json.loads((RESULTS / "in_class.json").read_text(encoding="utf-8"))
    assert all(map(by_todays_recipe, told["rows"]))
    low, high = (f"{100 * end(row['ser'] for row in told['rows']):.1f}" for end in (min, max))
    found = f"an error of {100 * told['ser']:.1f} % at epsilon 3, {told['wall_seconds']:.0f} seconds after"
    states("docs/results.md", found, f"Three other seeds reach {low if low == high else f'{low} to {high}'} %")


def test_findings_on_many_commands_are_those_of_their_runs() -> None:
    told, name = json.loads((RESULTS / "large.json").read_text(encoding="utf-8")), "smart-home-million"
    floor, seconds = told["floor"][name], told["seconds"][name]
    assert all(map(by_todays_recipe, told["rows"]))
    plain, private = (
        {row["seed"]: row["ser"] for row in told["rows"] if row["target"] == goal} for goal in (None, 3.0)
    )
    assert plain.keys() == private.keys()
    both = [statistics.mean(runs.values()) for runs in (plain, private)]
    lines = [f"{100 * ser:.2f} | {100 * (ser - floor):.2f}" for ser in both]
    more: dict[str, Any] = estimate([(private[seed] - floor) / (plain[seed] - floor) for seed in plain])
    states(
        "docs/results.md",
        f"| the floor | {100 * floor:.2f} | |",
        f"| SGD, batches of 64 | {lines[0]} |",
        f"| DP-SGD, epsilon 3, batches of 8,385 | {lines[1]} |",
        f"{more['mean']:.2f} ± {more['high'] - more['mean']:.2f} times SGD's error",
        f"in {seconds['private'] / seconds['sgd']:.1f} times SGD's time",
    )


def test_times_are_those_of_their_files() -> None:
    def ratio(model: str, method: str, gpus: int = 1) -> str:
        [row] = rows("bench_step", model=model, method=method, gpus=gpus, batch_size=64)
        ratio = row["ratio_to_sgd"]
        return f"{ratio:.3g}" if ratio < 2 else f"{ratio:.2g}"

    for name, *setting in (
        ("eDP-SGD, one device", "edp-sgd"),
        ("eDP-SGD, eight devices, all simulated", "edp-sgd", 8),
        ("DP-SGD, every utterance clipped alone", "dp-sgd"),
        ("DP-SGD by Opacus", "opacus"),
    ):
        states("docs/results.md", f"| {name} | {ratio('clc', *setting)} | {ratio('bert', *setting)} |")
    clc, bert = ratio("clc", "dp-sgd"), ratio("bert", "dp-sgd")
    states("docs/training.md", f"takes {clc} times an SGD step with the CLC here, and {bert} times with BERT")
    [scale] = rows("bench_scale", utterances=1_000_000)
    states("docs/results.md", f"generated in {scale['generate_seconds']:.0f} s")
    images = {row["method"]: f"{row['ratio_to_adam']:.1f}" for row in rows("bench_images")}
    states("docs/results.md", f"takes {images['dp-adam']} times Adam's, and Opacus' takes {images['opacus']} times")


@pytest.mark.parametrize("z0", [1.0, 0.1])
def test_shuffled_and_sampled_epsilons_are_those_of_today(z0: float) -> None:
    def epsilon(rate: float | None) -> str:
        mechanism = Mechanism.sound(1.0, z0, 8, 1, sampling_rate=rate)
        judged = judge(mechanism, 8, 2025**-1.1, seed_published=False).epsilon
        assert judged is not None
        return f"{math.ceil(judged):,}" if judged >= 1000 else upward(judged)

    told = " | ".join([epsilon(None), epsilon(64 / 2025)])
    states("docs/accounting.md", f"| {z0:g} | {told} |")


def test_epsilons_of_the_thesis_are_those_of_today() -> None:
    digits, mnist = (f"{math.ceil(gdp_epsilon(side / 0.6, 1e-5)):,}" for side in (8, 28))
    states("docs/results.md", f"It has {digits} on digits and {mnist} on MNIST")
    labels = account_votes(Aggregator.for_epsilon("laplace", 0.2, 0.0, 10), 540, 1e-5)
    states("docs/results.md", f"540 labels of 0.2 each cost {math.ceil(labels.epsilon)} together", f"is {540 * 0.2:g}.")
