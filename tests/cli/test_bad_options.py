"""Every option of every command with what is given by mistake: refused at once, or taken as `bad_options.txt` says.

If an option takes other values on purpose, RENEW=1 python -m pytest tests/cli/test_bad_options.py writes that file
anew: look at what git says has changed.
"""

import os
import shlex
import shutil
from pathlib import Path

import pytest
import typer

import edp_lab.cli
from edp_lab.models.bert import BertSize
from edp_lab.training import TrainConfig, train
from edp_lab.training.config import SIZES
from edp_lab.training.pretraining import pretrain_bert

from .conftest import write_rows

FILE = Path(__file__).with_name("bad_options.txt")
KNOWN = dict(line.split(": ", 1) for line in FILE.read_text(encoding="utf-8").splitlines())
TAKEN, REFUSED = "taken", "refused"
# What a command needs besides.
NEEDS = {
    "train": "--corpus own.jsonl --out new --method edp-sgd --size small --epochs 1 --batch-size 16 --gpus 4",
    "evaluate": "--run noised",
    "predict": "--run noised 'call 7'",
    "compare": "noised",
    "pretrain": "--out new --model clc --utterances 50 --size small",
    "data fetch": "mnist --to new",
    "data make": "smart-home --out new.jsonl --utterances 10",
    "attack loss": "--run noised",
    "attack shadow": "--run noised --shadow other.jsonl",
    "attack lira": "--run noised --shadows 4",
    "audit mechanism": "--draws 100",
    "audit one-run": "--model linear",
    "reproduce table2": "--corpus own.jsonl",
    "reproduce table1": "--out new --quick --corpora smart-home-video",
    "reproduce thesis": "--out new --quick",
    "course run": "00_start --out new",
    "course solutions": "--out new",
}
LONG = 5000 * "x"
VALUES = {
    "int": ("0", "-1", "999999999", "1" + 20 * "0"),
    "float": ("0", "-1", "nan", "inf", "1e308"),
    "text": ("", " ", "-", "a\0b", "\x1b[31m", LONG, "pipe", "/dev/zero"),
}
WORK = (
    "jupyterlab.labapp.LabApp.launch_instance",
    "torch.Tensor.backward",
    "torch.autograd.grad",
    "subprocess.Popen.__init__",
    "multiprocessing.process.BaseProcess.start",
    "urllib.request.OpenerDirector.open",
    "gensim.models.FastText.__init__",
    "edp_lab.corpora.smart_home.generate",
    "edp_lab.attacks.step_audit.draw_statistics",
    "edp_lab.attacks.loss.judged",
    "edp_lab.attacks.shadow.judged",
    "edp_lab.attacks.lira.judged",
    "edp_lab.reproduce.run_cache.TableRuns.prepare",
)


class Reached(BaseException):
    """The work that was asked for would begin."""


def begin(*_, **__):
    raise Reached


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
    rows = [f'{{"tokens": ["go", "{k}"], "tags": ["O", "B-number"], "intent": "go"}}\n' for k in range(120)]
    (folder / "other.jsonl").write_text("".join(rows))
    os.mkfifo(folder / "pipe")
    (folder / "submissions" / "ada").mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        pretrain_bert(
            [("call", "me")] * 50, Path("encoder"), epochs=1, size=BertSize(**SIZES["small"]["bert"] | {"layers": 6})
        )
        quick = TrainConfig("own.jsonl", size="small", epochs=1, batch_size=16, num_devices=4, z0=0.5)
        train(quick, Path("noised"))
    return folder


def made(folder: Path) -> dict[Path, int]:
    return {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}


def outcome(cli, arguments: list[str], before: dict[Path, int], folder: Path) -> str:
    """`TAKEN`, `REFUSED`, or what is wrong with the refusal; what was made is removed."""
    try:
        status, out, err = cli(*arguments)
    except Reached:
        status, out, err = 0, "", ""
    except Exception as error:
        return f"{type(error).__name__}: {error!s:.120}"
    late = set(made(folder)) - set(before)
    for path in sorted(late):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if status == 0:
        return TAKEN
    said = (status, out) == (2, "") and "Traceback" not in err
    return REFUSED if said and not late else f"status {status}, made {late}, {out!r:.80}, {err!r:.300}"


@pytest.mark.parametrize("name", LEAVES)
def test_what_is_given_by_mistake_is_refused_at_once(cli, work, monkeypatch, name):
    monkeypatch.chdir(work)
    monkeypatch.setenv("XDG_CACHE_HOME", str(work / "cache"))
    monkeypatch.setattr(edp_lab.cli, "app", GROUP)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for place in WORK:
        monkeypatch.setattr(place, begin)
    usual, before = [*name.split(), *shlex.split(NEEDS.get(name, ""))], made(work)
    assert outcome(cli, usual, before, work) == TAKEN
    taken, wrong = [], {}
    for option in LEAVES[name].params:
        flag = f"{option.opts[-1]}=" if option.param_type_name == "option" else ""
        for value in () if getattr(option, "is_flag", False) else VALUES[kind(option)]:
            what = outcome(cli, [*usual, flag + value], before, work)
            if what == TAKEN:
                taken.append(flag + value.replace(LONG, "LONG"))
            elif what != REFUSED:
                wrong[flag + value[:40]] = what
    assert not wrong
    if "RENEW" in os.environ:
        KNOWN[name] = " ".join(taken)
    assert " ".join(taken) == KNOWN.get(name, "")


@pytest.fixture(scope="module", autouse=True)
def _renewed():
    yield
    if "RENEW" in os.environ:
        FILE.write_text("".join(f"{one}: {taken}\n" for one, taken in KNOWN.items() if taken), encoding="utf-8")
