"""What CONTRIBUTING.md and the README say works as it stands there, and is as short as it promises."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import edp_lab
from edp_lab.cli import app
from edp_lab.cli.course import course_app
from edp_lab.course.kit.panel import PANELS
from edp_lab.privacy import Accountant, Schedule, gdp_epsilon
from edp_lab.reproduce.claims import REGISTERED, Evidence
from edp_lab.training.processes import Ranks
from tests.course import test_contract as contract
from tests.privacy.test_accountants import FULL, AccountantContract

ROOT = Path(edp_lab.__file__).parents[1]
PAGE, README = ((ROOT / name).read_text(encoding="utf-8") for name in ("CONTRIBUTING.md", "README.md"))
TEXTS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
OWN_MODEL = next(block for block in BLOCKS if "PrivateStep" in block)


def code(section: str, kind: str = "python") -> str:
    [text] = re.findall(rf"```{kind}\n(.*?)```", TEXTS[section], re.DOTALL)
    return text


def run(section: str) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "edp_lab.example"}
    exec(compile(code(section), f"<{section}>", "exec"), space)
    return space


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package, to be patched by git."""
    if shutil.which("git") is None:
        pytest.skip("applies a patch with git")
    shutil.copytree(Path(edp_lab.__file__).parent, tmp_path / "edp_lab", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def patched(copy: Path, section: str, python: str, **environment: str) -> str:
    """What some Python prints with a section's patch."""
    subprocess.run(["git", "apply", "-"], cwd=copy, input=code(section, "diff"), text=True, check=True)
    environment = {**os.environ, "PYTHONPATH": str(copy), **environment}
    return subprocess.run(
        [sys.executable, "-c", python], cwd=copy, env=environment, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("section", [name for name, text in TEXTS.items() if "```python" in text])
def test_the_examples_are_in_the_style_that_ci_asks_for(section: str) -> None:
    command = [sys.executable, "-m", "ruff", "check", "--stdin-filename", "edp_lab/example.py", "-"]
    checked = subprocess.run(command, cwd=ROOT, input=code(section), text=True, capture_output=True)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("section", TEXTS)
def test_each_addition_takes_at_most_15_lines_beside_imports(section: str) -> None:
    for kind, text in re.findall(r"```(diff|python)\n(.*?)```", TEXTS[section], re.DOTALL):
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith(("import", "from"))]
        assert sum(line.startswith("+") for line in lines) - 1 <= 15 if kind == "diff" else len(lines) <= 15


def test_a_new_panel_passes_the_contract_of_all_panels(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        panel = run("A panel")["one_release"]()
        assert PANELS["04 one_release"]().result == gdp_epsilon(1.0, 1e-5)
    finally:
        PANELS.pop("04 one_release", None)
    contract.test_each_control_moves_to_its_ends_and_patched_is_drawn_anew(panel)
    contract.test_a_bad_value_is_one_sentence_and_the_last_result_stays(panel)
    contract.test_headings_sliders_and_axes_say_what_they_are_and_need_no_colour(panel)
    contract.test_the_command_says_what_is_shown(panel, capsys)


class TestOneOrder(AccountantContract):
    """The accountant of the page, under the contract of all accountants."""

    def build(self, schedule: Schedule) -> Accountant:
        return run("An accountant")["OneOrder"](schedule)

    def schedules(self) -> list[Schedule]:
        return FULL


def test_a_new_corpus_is_found_complete_and_read(copy: Path) -> None:
    with (copy / "edp_lab" / "corpora" / "sources.tsv").open("a") as sources:
        sources.write(code("A corpus", "tsv"))
    folder = copy / "data" / "lights"
    folder.mkdir(parents=True)
    for name, text in {"seq.in": "lamp on", "seq.out": "B-thing O", "label": "switch"}.items():
        (folder / name).write_text(f"{text}\n" * 4)
    told = "from edp_lab.corpora import load_corpus; print(load_corpus('lights').utterances[-1].text)"
    assert patched(copy, "A corpus", told, EDP_LAB_DATA=str(copy / "data")) == "lamp on\n"


def test_a_new_claim_is_registered_and_its_verdict_turns() -> None:
    try:
        evidence = run("A claim")["p99_price_of_noise"]()
        claim = REGISTERED["P99"]
    finally:
        REGISTERED.pop("P99", None)
    assert (evidence.verdict, evidence.said) == ("does not hold", "It costs 2.")
    for verdict, measured in claim.counter.values():
        assert Evidence(claim, {**evidence.measured, **measured}).verdict is verdict


def test_a_new_decay_is_accounted_like_the_others(copy: Path) -> None:
    ask = (
        "from edp_lab.privacy import Mechanism, judge\n"
        "mechanism = Mechanism.sound(1.0, 1.0, 8, 8, decay='square-root', tau=3.0)\n"
        "print(mechanism.noise_multiplier(1), judge(mechanism, 5, 1e-5).epsilon)"
    )
    multiplier, epsilon = map(float, patched(copy, "A noise decay", ask).split())
    assert multiplier == pytest.approx(0.5)
    assert epsilon == pytest.approx(gdp_epsilon(sum(1 + 3 * t for t in range(5)) ** 0.5, 1e-5))


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
    program = f"{OWN_MODEL}\nprint(repr([p.tolist() for p in model.parameters()]), flush=True)\n"
    program += "from edp_lab.training.processes import end_rank; end_rank(0)\n"
    (tmp_path / "own_model.py").write_text(program)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "own_model"]
    alone = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    accuracy, epsilon = map(float, re.findall(r"\d+\.\d+", alone[0]))
    assert accuracy > 0.9
    assert 1 < epsilon < 30
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        with Ranks(2, ["own_model"], threads=1) as ranks:
            together = list(ranks.lines())
    assert together[0] == alone[0]
    numbers = [eval(said[1]) for said in (alone, together)]
    flat = [[x for p in model for row in p for x in (row if isinstance(row, list) else [row])] for model in numbers]
    assert flat[0] == pytest.approx(flat[1], abs=1e-4)


def code_of(text: str) -> list[str]:
    """The lines of blocks, fenced or indented, and the inline code of a Markdown text."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    rest = re.sub(r"^```[^\n]*\n.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    blocks += re.findall(r"^    (.*\n)", rest, re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", " ").splitlines() + re.findall(r"`([^`]+)`", rest)
    return [line.split(" #")[0].strip() for line in lines]


def test_readme_mentions_only_make_targets_and_commands_that_exist() -> None:
    results = (ROOT / "data" / "results" / "README.md").read_text(encoding="utf-8")
    lines = [line for text in (README, results) for line in code_of(text)]
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
        assert name in command.commands, f"README: `{trail} {name}` does not exist"
        command, trail = command.commands[name], f"{trail} {name}"
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        if word.startswith("--"):
            assert word.split("=")[0] in options | {"--help"}, f"README: `{trail}` has no option {word}"


def test_readme_check_notices_what_does_not_exist() -> None:
    command = get_command(course_app)
    check_command(command, ["run", "00_start", "--mode", "full"])
    for words in (["walk"], ["run", "--speed", "2"]):
        with pytest.raises(AssertionError, match="README"):
            check_command(command, words)
