"""Every option of every command with what is given by mistake: refused at once, or named in ``edges.txt`` as taken.

If an option takes other values on purpose, RENEW=1 python -m pytest tests/cli/test_edges.py writes that file anew: look at
what git says has changed.
"""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import pytest
import typer

import edp_lab.cli
from edp_lab.training import TrainConfig, train

from .conftest import write_rows

TAKEN = Path(__file__).with_name("edges.txt")
# Each with what a command needs besides.
COMMANDS = {
    "train": "--corpus own.jsonl --out new --size small --epochs 1 --batch-size 16 --gpus 4",
    "evaluate": "--run noised",
    "predict": "--run noised 'call 7'",
    "compare": "noised",
    "account": "",
    "table1-epsilon": "",
    "pretrain": "--out new --model clc --utterances 50 --size small",
    "verify": "",
    "claims": "--run --only P2",
    "data list": "",
    "data fetch": "mnist --to new",
    "data make": "smart-home --out new.jsonl --utterances 10",
    "attack loss": "--run noised",
    "attack shadow": "--run noised --shadow own.jsonl",
    "attack lira": "--run noised --shadows 4",
    "attack canaries": "--corpus own.jsonl",
    "attack extraction": "",
    "attack inversion": "",
    "audit mechanism": "--draws 100",
    "audit one-run": "--model linear",
    "bench accounting": "",
    "bench step": "--corpus own.jsonl",
    "bench epoch": "--corpus own.jsonl",
    "bench attacks": "--run noised",
    "bench images": "",
    "bench panels": "",
    "bench scale": "",
    "three-phase run": "",
    "reproduce table1": "--out new --quick",
    "reproduce table2": "--out new --quick",
    "reproduce pareto": "--out new --quick",
    "reproduce thesis": "--out new --quick",
    "course grade": "submissions",
    "course run": "00_start --out new",
    "course list": "",
    "course build": "--check",
    "course lab": "",
    "course html": "--out new --executed executed",
    "course slides": "--out new --executed executed",
    "course api": "--out new",
    "course dashboard": "",
}
VALUES = {
    "int": ("0", "-1", "999999999", "1" + 20 * "0"),
    "float": ("0", "-1", "nan", "inf", "1e308"),
    "text": ("", " ", "-", "a\0b", "\x1b[31m", "pipe", "/dev/zero"),
}
WORK = (
    "torch.Tensor.backward",
    "torch.autograd.grad",
    "subprocess.Popen.__init__",
    "multiprocessing.process.BaseProcess.start",
    "urllib.request.OpenerDirector.open",
    "gensim.models.FastText.__init__",
    "edp_lab.corpora.smart_home.generate",
    "edp_lab.corpora.smart_home.pack",
    "edp_lab.attacks.audit.step_audit.draw_statistics",
    "edp_lab.attacks.membership.attacks._judged",
    "edp_lab.course.publish.pages.write_api",
    "edp_lab.reproduce.bench.contests.bench_accounting",
    "edp_lab.reproduce.claims.compute",
)


class Reached(BaseException):
    """The work that was asked for would begin."""


def leaves(command: typer.core.TyperCommand, name: str = "") -> dict[str, typer.core.TyperCommand]:
    below = getattr(command, "commands", {})
    return {key: one for child in below for key, one in leaves(below[child], f"{name} {child}").items()} or {
        name.strip(): command
    }


GROUP = typer.main.get_command(edp_lab.cli.app)
LEAVES = leaves(GROUP)


def kind(option: typer.core.TyperOption) -> str:
    declared = str(option.bare_type())
    return next((name for name in ("int", "float") if name in declared), "text")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    write_rows(folder / "own.jsonl", 120)
    os.mkfifo(folder / "pipe")
    (folder / "submissions" / "ada").mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train(TrainConfig("own.jsonl", size="small", epochs=1, batch_size=16, num_devices=4, z0=0.5), Path("noised"))
    return folder


def made(folder: Path) -> dict[Path, int]:
    return {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}


def outcome(cli, arguments: list[str], before: dict[Path, int], folder: Path) -> str:
    """``taken``, ``refused``, or what is wrong with the refusal."""
    try:
        status, out, err = cli(*arguments)
    except Reached:
        status = 0
    except BaseException as error:
        return f"{type(error).__name__}: {error!s:.120}"
    if status == 0:
        return "taken"
    if (status, out) != (2, "") or "Traceback" in err:
        return f"status {status}, {out!r:.80}, {err!r:.200}"
    return "refused" if made(folder) == before else f"refused late: {err}"


def test_all_commands_are_tried():
    assert set(LEAVES) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_given_by_mistake_is_refused_at_once(cli, work, monkeypatch, name):
    monkeypatch.chdir(work)
    monkeypatch.setenv("XDG_CACHE_HOME", str(work / "cache"))
    monkeypatch.setattr(edp_lab.cli, "app", GROUP)

    def reach(*_, **__):
        raise Reached

    for place in WORK:
        monkeypatch.setattr(place, reach)
    before = made(work)
    usual = [*name.split(), *shlex.split(COMMANDS[name])]
    print("USUAL", name, outcome(cli, usual, before, work))
    found = {}
    for option in LEAVES[name].params:
        if option.name == "help" or getattr(option, "is_flag", False):
            continue
        flag = f"{option.opts[-1]}=" if option.param_type_name == "option" else ""
        for value in VALUES[kind(option)]:
            found[flag + value] = outcome(cli, [*usual, flag + value], before, work)
            for path in sorted(set(made(work)) - set(before)):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    wrong = {given: what for given, what in found.items() if what not in ("taken", "refused")}
    print(f"{name}: {' '.join(repr(given)[1:-1] for given, what in found.items() if what == 'taken')}")
    for given, what in wrong.items():
        print(f"WRONG {name} {given!r:.60}: {what}")
    assert not wrong
