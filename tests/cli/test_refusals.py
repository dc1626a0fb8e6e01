"""Refused commands exit with status 2 and one sentence, before anything is computed or written.

``refusals.txt`` lists invocations, some after environment variables, each with its sentence on the next line. OWN
stands for the options of a small run, LONG for a name of 300 letters. If you change sentences on purpose, or add an
invocation with a line below it, update the file with RENEW=1 python -m pytest tests/cli/test_refusals.py, and review
git diff.
"""

import os
import shlex
import shutil
from pathlib import Path

import pytest

from edp_lab.training.config import TrainConfig
from edp_lab.training.session import train

SENTENCES = Path(__file__).with_name("refusals.txt")
LINES = SENTENCES.read_text(encoding="utf-8").splitlines()
REFUSED = dict(zip(LINES[::2], (line.strip() for line in LINES[1::2]), strict=True))
OWN = "--corpus own.jsonl --out new --method edp-sgd --size small --epochs 1 --batch-size 16 --gpus 4"
LONG = 300 * "x"
ROOT = Path(__file__).parents[2]
BROKEN_LINES = {
    "breaks": '{"tokens": ["call"], "tags": ["O"], "intent": "a\\nb"}',
    "notjson": '{"tokens": ["call"',
    "lengths": '{"tokens": ["call", "me"], "tags": ["O"], "intent": "call"}',
    "nointent": '{"tokens": ["call"], "tags": ["O"]}',
    "notbio": '{"tokens": ["call"], "tags": ["number"], "intent": "call"}',
}
BROKEN_LEDGERS = {
    "editedledger": lambda good: good.replace(b'"step": 1', b'"step": 7', 1),
    "otherledger": lambda good: good.replace(b'"z0": 0.5', b'"z0": 9.9'),
    "cutledger": lambda good: b"".join(good.splitlines(keepends=True)[:-1]),
    "gapledger": lambda good: b"".join(line for k, line in enumerate(good.splitlines(keepends=True)) if k != 2),
    "emptyledger": lambda good: b"",
    "rubbishledger": lambda good: b"\x00rubbish",
}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, corpus: str) -> Path:
    """A folder with runs, damaged runs, corpora with an error in line 7, and other unusable files."""
    folder = tmp_path_factory.mktemp("work")
    good = Path(corpus).read_text().splitlines()
    (folder / "own.jsonl").write_text("\n".join(good) + "\n")
    (folder / "two.jsonl").write_text("\n".join(good[:2]) + "\n")
    for name, line in BROKEN_LINES.items():
        (folder / f"{name}.jsonl").write_text("\n".join([*good[:6], line, *good[7:]]) + "\n")
    (folder / "equal.jsonl").write_text("\n".join(40 * [good[0]]))
    (folder / "latin.txt").write_bytes(b"caf\xe9 open\n")
    (folder / "file").write_text("")
    (folder / "empty").mkdir()
    (folder / "submissions" / "ada").mkdir(parents=True)
    (folder / "sheet.xlsx").write_bytes(b"PK\x03\x04\0")
    (folder / "seeds.csv").write_text("name,number\nada,1\n")
    for name, settings in {"plain": {"method": "sgd"}, "noised": {"z0": 0.5}}.items():
        config = TrainConfig("own.jsonl", size="small", epochs=2, batch_size=16, num_devices=4, **settings)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            train(config, Path(name))
    shutil.copytree(folder / "plain", folder / "cutmodel")
    weights = next((folder / "cutmodel" / "model").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-9])
    for name, record in {"damaged": '{"config"', "halfrecord": '{"config": {"corpus": "x"}, "guarantee": {}}'}.items():
        (folder / name).mkdir()
        (folder / name / "record.json").write_text(record)
    for name, damage in BROKEN_LEDGERS.items():
        ledger = shutil.copytree(folder / "noised", folder / name) / "ledger.jsonl"
        whole = ledger.read_bytes()
        ledger.write_bytes(damage(whole))
        assert ledger.read_bytes() != whole
    (shutil.copytree(folder / "noised", folder / "noledger") / "ledger.jsonl").unlink()
    return folder


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("invocation", REFUSED)
def test_bad_input_is_one_sentence_and_writes_nothing(cli, work, monkeypatch, invocation):
    monkeypatch.chdir(work)
    monkeypatch.setenv("EDP_LAB_DATA", str(work / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(work / "empty"))
    before = files(work)
    words = shlex.split(invocation.replace("OWN", OWN).replace("LONG", LONG))
    while words[0].partition("=")[0].isupper():
        monkeypatch.setenv(*words.pop(0).split("="))
    status, out, err = cli(*words)
    assert (status, out) == (2, ""), err
    assert files(work) == before
    sentence = err.removesuffix("\n").replace(str(work), "FOLDER").replace(str(ROOT), "CHECKOUT").replace(LONG, "LONG")
    if "RENEW" in os.environ:
        REFUSED[invocation] = sentence
    assert sentence == REFUSED[invocation]


@pytest.fixture(scope="module", autouse=True)
def _renewed():
    yield
    if "RENEW" in os.environ:
        SENTENCES.write_text("".join(f"{one}\n    {said}\n" for one, said in REFUSED.items()), encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ("account --epochs=2.5", "--epochs"),
        ("account --clipp=1", "--clipp"),
        ("train --clip one", "--clip"),
        ("train extra words", "extra"),
        ("predict --run plain", "text"),
        ("data make smart-home", "--out"),
        ("course run --mode slow", "--mode"),
        ("nothing", "nothing"),
    ],
)
def test_what_the_parser_refuses_ends_with_status_2_too(cli, arguments, option):
    status, out, err = cli(*arguments.split())
    assert (status, out) == (2, "")
    assert option in err.lower()
    assert "Traceback" not in err
