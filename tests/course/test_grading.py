"""Grading: each submission in a process of its own, so that one that loops, crashes or lies stops no other."""

import csv
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from click.testing import Result
from nbformat.v4 import new_code_cell, new_notebook

import edp_lab
from edp_lab.course.publish import confined as confined_module
from edp_lab.course.publish.build import build
from edp_lab.course.publish.confined import _READERS, SAID, Ended, check_sandbox, confined
from edp_lab.course.publish.grading import Grade, Grader, read_seeds, student_seed, total
from edp_lab.course.publish.submission import decode
from edp_lab.errors import UsageError
from tests.course.conftest import invoked

TOTAL = """def total(epsilon, releases, delta):
    root = math.sqrt(2 * releases * math.log(1 / delta))
    return min(releases * epsilon, epsilon * root + releases * epsilon * (math.exp(epsilon) - 1))"""
QUESTIONS = ("σ doubles", "Δ and σ both double", "twice as many people", "ε is halved")
DELTA = f"prediction = {dict(zip(QUESTIONS, ('falls', 'stays', 'stays', 'rises'), strict=True))!r}"
CRASH = "import os\nos._exit(3)"
NAME = "01_mini"


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A course of one short notebook, with two of the real exercises."""
    folder = tmp_path_factory.mktemp("course")
    cells = [
        "import math, sys\nprint('a panel would stand here')\n1 / 0",
        "seed = 0",
        f"# EXERCISE delta\nprediction = {dict.fromkeys(QUESTIONS)!r}\n# SOLUTION\n{DELTA}",
        'check("delta", prediction)',
        f"# EXERCISE total\ndef total(epsilon, releases, delta):\n    return epsilon\n# SOLUTION\n{TOTAL}",
        'check("total", total)',
    ]
    notebook = new_notebook(cells=[new_code_cell(text, id=f"c{i}") for i, text in enumerate(cells)])
    notebook.cells[1].metadata.tags = ["parameters"]
    (folder / "source").mkdir()
    nbformat.write(notebook, folder / "source" / f"{NAME}.ipynb")
    build(folder)
    return folder


def submit(course: Path, folder: Path, name: str = NAME, **answers: str) -> Path:
    """A student's copy, with new texts below the first lines of exercises."""
    notebook = nbformat.read(course / f"{NAME}.ipynb", as_version=4)
    for cell in notebook.cells:
        for exercise, text in answers.items():
            if cell.source.startswith(f"# EXERCISE {exercise}"):
                cell.source = f"# EXERCISE {exercise}\n{text}"
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, folder / f"{name}.ipynb")
    return folder


def graded(course: Path, folder: Path) -> dict[str, tuple[str, str]]:
    return {row.exercise: (row.status, row.message) for row in Grader(course).grade(folder, 7)}


def run(course: Path, *arguments: object) -> Result:
    return invoked("course", "grade", *arguments, "--notebooks", course)


def test_a_class_is_graded_whatever_each_one_submits(course: Path, tmp_path: Path) -> None:
    submit(course, tmp_path / "ada", delta=DELTA, total=TOTAL)
    submit(course, tmp_path / "bo" / "week 1", total="total = lambda epsilon, releases, delta: epsilon * releases")
    submit(course, tmp_path / "cy", delta=CRASH, total=TOTAL)
    (tmp_path / "dee").mkdir()
    (tmp_path / "dee" / "01_essay.ipynb").write_text("I could not open it")
    os.mkfifo(tmp_path / "dee" / "01_pipe.ipynb")
    (tmp_path / "eli\x1b[2J").mkdir()
    (tmp_path / "flo").symlink_to("/")
    submit(course, tmp_path, "01_nobody")
    result = run(course, tmp_path, "--csv")
    assert result.exit_code == 0, result.stderr
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [(row["student"], row["notebook"], row["exercise"], row["status"]) for row in rows] == [
        ("ada", NAME, "delta", "solved"),
        ("ada", NAME, "total", "solved"),
        ("bo", NAME, "delta", "open"),
        ("bo", NAME, "total", "wrong"),
        ("cy", NAME, "delta", "crashed"),
        ("cy", NAME, "total", "solved"),
        ("dee", "01_essay", "", "unreadable"),
        ("dee", "01_pipe", "", "unreadable"),
        ("eli\\u001b[2J", "", "", "unreadable"),
        ("flo", "", "", "unreadable"),
        ("", "01_nobody", "", "unreadable"),
    ]
    assert {row["student"]: row["seed"] for row in rows}["ada"] == str(student_seed("ada"))
    assert "ended with status 3" in rows[4]["message"]
    assert not any("\n" in row["message"] for row in rows)
    terms, *lines = result.stderr.splitlines()
    assert "memory (files that are kept in memory are not counted)" in terms
    assert terms.startswith("The submissions' code is executed as ")
    assert lines == [
        "ada: 2 of 2 exercises solved",
        "bo: 0 of 2 exercises solved; wrong: 01 total; open: 01 delta",
        "cy: 1 of 2 exercises solved; crashed: 01 delta",
        "dee: 0 of 0 exercises solved; unreadable: 01_essay, 01_pipe",
        "eli\\u001b[2J: 0 of 0 exercises solved; unreadable: no notebook",
        "flo: 0 of 0 exercises solved; unreadable: no notebook",
        "in no student's folder: 0 of 0 exercises solved; unreadable: 01_nobody",
    ]


def test_only_exercise_cells_run_and_a_name_from_elsewhere_is_explained(course: Path, tmp_path: Path) -> None:
    folder = submit(course, tmp_path, delta="prediction = helper()", total=TOTAL)
    status, message = graded(course, folder)["delta"]
    assert status == "wrong"
    assert message.startswith("your code stops with NameError: name 'helper' is not defined, in line 2 of the cell")
    assert message.endswith("(of a submission, only the cells of exercises are run)")


def test_a_cell_without_its_first_line_is_found_by_its_id_and_a_lost_one_is_named(course: Path, tmp_path: Path) -> None:
    folder = submit(course, tmp_path, total=TOTAL)
    stored = json.loads((folder / f"{NAME}.ipynb").read_text())
    stored["cells"][4]["source"] = TOTAL
    del stored["cells"][2]
    (folder / f"{NAME}.ipynb").write_text(json.dumps(stored))
    found = graded(course, folder)
    assert found["total"][0] == "solved"
    assert found["delta"] == ("missing", "no cell begins with `# EXERCISE delta`")


def test_an_answer_may_use_an_earlier_one_and_the_students_seed(course: Path, tmp_path: Path) -> None:
    uses = f"assert seed == 7 and prediction\n{TOTAL}"
    assert graded(course, submit(course, tmp_path, delta=DELTA, total=uses))["total"][0] == "solved"


def test_what_was_judged_before_a_crash_stays_and_its_names_are_there_after_it(course: Path, tmp_path: Path) -> None:
    once = f"{DELTA}\nimport os\nopen({str(tmp_path / 'runs')!r}, 'a').write('+')"
    crash = f"assert prediction\nos._exit(3)\n{TOTAL}"
    found = graded(course, submit(course, tmp_path, delta=once, total=crash))
    assert {name: status for name, (status, _) in found.items()} == {"delta": "solved", "total": "crashed"}
    assert (tmp_path / "runs").read_text() == "+"


# ---- Submissions that mean harm --------------------------------------------------------------------------------------


def missing() -> str:
    """Why there is no sandbox, if so."""
    try:
        check_sandbox()
    except UsageError as error:
        return str(error)
    return ""


in_sandbox = pytest.mark.skipif(bool(missing()), reason=missing())
FORGED = '{"exercise": "delta", "status": "solved", "message": ""}\n{"value": "solved"}\n'
ATTACKS: dict[
    str, tuple[str, str | tuple[str, ...]]
] = {  # the cell, PROOF being a file that must never be; the status, and what its message says
    "writes verdicts into every file": (
        "for name in ('verdicts', 'job.json', *os.listdir()):\n"
        "    with open(name, 'a') as file: file.write(FORGED)\n"
        "os._exit(0)",
        "crashed, the process that ran it ended with status 0",
    ),
    "patches the judges": (
        "from edp_lab.course.kit import exercises\n"
        "from edp_lab.course.nb01_coins import exercises as judges\n"
        "exercises.mark = lambda exercise, *_: exercises.Mark(exercise.name, 'solved', '')\n"
        "judges.predicted = exercises.predicted = lambda *_: None\n"
        "sys.modules['__main__'].mark = exercises.mark\n"
        "object.__setattr__(judges.EXERCISES[1], 'check', lambda *_: None)",
        "wrong, a prediction is a dictionary",
    ),
    "equals everything": (
        "class Yes(str):\n    __hash__ = str.__hash__\n    __eq__ = lambda self, other: other is not None\n"
        "    __ne__ = lambda *_: False\n"
        f"prediction = dict.fromkeys({QUESTIONS!r}, Yes('maybe'))",
        "wrong, σ doubles: 'maybe' is not one of",
    ),
    "prints verdicts": ("print(FORGED, flush=True)\nsys.stderr.write(FORGED)", "wrong, a prediction"),
    "writes to every open file": (
        "for fd in range(1, 60):\n    try: os.write(fd, FORGED.encode())\n    except OSError: pass\nos._exit(0)",
        "crashed, its process said something that is no answer",
    ),
    "closes every open file": ("os.closerange(0, 60)", "crashed"),
    "exits": ("sys.exit(0)", "wrong, your code stops with SystemExit: 0"),
    "kills its parent": ("os.kill(os.getppid(), 9)\ntime.sleep(60)", "crashed, the process that ran it ended"),
    "forks": (
        "for _ in range(100):\n    if not os.fork():\n        time.sleep(60)\ntime.sleep(60)",
        ("crashed, it started more than 64 processes", "wrong, your code stops with BlockingIOError"),
    ),
    "leaves an orphan of an orphan": (
        "for _ in range(3):\n    if not os.fork(): os.setsid()\n    else: os._exit(0)\n"
        "time.sleep(1.5)\nopen(PROOF, 'w')",
        "crashed, the process that ran it ended with status 0",
    ),
    "leaves a session of its own": (
        "subprocess.Popen(['nohup', 'sh', '-c', f'sleep 1.5; touch {PROOF}'], start_new_session=True)",
        "wrong, a prediction",
    ),
    "leaves a thread and an exit handler": (
        "import atexit, threading\nleave = lambda: (time.sleep(1.5), open(PROOF, 'w'))\n"
        "threading.Thread(target=leave).start()\natexit.register(open, PROOF, 'w')",
        "wrong, a prediction",
    ),
    "will not end": (
        "for number in {*signal.Signals} - {9, 19}: signal.signal(number, signal.SIG_IGN)\nwhile True: pass\n",
        "timeout, it took longer than 2 s: is there an endless loop?",
    ),
    "looks for secrets": (
        "found = [open(f'/proc/{pid}/environ').read() for pid in (os.getpid(), os.getppid())]\n"
        "raise ValueError(f'{found} {dict(os.environ)}')",
        "wrong, your code stops with ValueError",
    ),
    "writes a large file": (
        "with open('large', 'wb') as file: file.truncate(10**9)",
        "wrong, your code stops with OSError: [Errno 27] File too large",
    ),
    "eats memory": ("bytearray(10**10)", "wrong, your code stops with MemoryError"),
    "eats memory with its children": (
        "held = b'x' * 3 * 10**8\nfor _ in range(20):\n    if not os.fork(): break\ntime.sleep(60)",
        "crashed, it took more than 4 GB of memory",
    ),
    "would become another user": (
        "assert 'NoNewPrivs:\\t1\\n' in open('/proc/self/status').read()",
        "wrong, a prediction",
    ),
    "digs": ("for _ in range(1200): os.mkdir('d'), os.chdir('d')", "wrong, a prediction"),
    "talks": ("prediction = 'x' * 10**8", "crashed, its answer has more than 1 MB"),
    "collides": (  # numbers of one hash: a dictionary of them takes quadratic time
        "sys.modules['__main__'].encode = lambda _: {'dict': [[i * (2**61 - 1), 0] for i in range(9000)]}",
        "crashed, its process said something that is no answer",
    ),
    "has keys that are numbers": (
        "prediction = {1: 'falls'}",
        "wrong, the check cannot use your answer (TypeError: a key of its dictionary has the type int, not str)",
    ),
    "nests": (
        "prediction = []\nfor _ in range(10**5): prediction = [prediction]",
        "wrong, the check cannot use your answer",
    ),
    "is an object": (
        "prediction = object()",
        "wrong, the check cannot use your answer (TypeError: its type is obj",
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("sandbox", [False, pytest.param(True, marks=in_sandbox)], ids=["bare", "sandbox"])
def test_harm_neither_forges_a_verdict_nor_outlives_its_grading(
    course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: str, sandbox: bool
) -> None:
    monkeypatch.setenv("TOKEN", "the grader's secret")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cell, wanted = ATTACKS[attack]
    begin = f"import os, signal, subprocess, sys, time\nPROOF, FORGED = {str(tmp_path / 'proof')!r}, {FORGED!r}\n"
    folder = submit(course, tmp_path / "eve", delta=f"prediction = 0\n{begin}{cell}", total=TOTAL)
    before = psutil.Process().children()
    seconds = 2 if "will not" in attack else 30
    found = {row.exercise: row for row in Grader(course, seconds, sandbox).grade(folder, 7)}
    assert f"{found['delta'].status}, {found['delta'].message}".startswith(wanted)
    assert "secret" not in found["delta"].message
    assert found["total"].status == "solved"
    assert psutil.Process().children() == before
    assert not any(tmp_path.glob("edp_lab-*"))
    if "PROOF" in cell:
        time.sleep(1.6)
        assert not (tmp_path / "proof").exists()


def test_a_grading_that_is_ended_ends_what_it_has_started(course: Path, tmp_path: Path) -> None:
    sleeps = "import subprocess, time\nsubprocess.Popen(['sleep', '99'], start_new_session=True)"
    submit(course, tmp_path / "eve", delta=f"{sleeps}\nopen({str(tmp_path / 'begun')!r}, 'w')\ntime.sleep(60)")
    command = [sys.executable, "-m", "edp_lab", "course", "grade", str(tmp_path), "--notebooks", str(course)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as grading:
        while not (tmp_path / "begun").exists() and grading.poll() is None:
            time.sleep(0.1)
        started = psutil.Process(grading.pid).children(recursive=True)
        grading.terminate()
        assert grading.wait(60) == 130
    assert len(started) == 3  # the submission, its parent and its child
    assert not any(process.is_running() for process in started)


@pytest.mark.parametrize(("there", "here"), [(0.15, 0), (0, 0.15)])
def test_the_time_of_many_calls_and_of_reading_them_adds_up(
    monkeypatch: pytest.MonkeyPatch, there: float, here: float
) -> None:
    with confined("import time", 0, 1) as submission:
        monkeypatch.setitem(_READERS, "value", lambda _: time.sleep(here))
        sleep = submission.ask({"cell": "", "name": "x", "answer": f"lambda: time.sleep({there})"})
        with pytest.raises(Ended, match="it took longer than 1 s"):
            [sleep() for _ in range(20)]


@pytest.mark.parametrize("item", ["[]", '{"tuple":[]}', '{"dict":{}}', '{"generator":1}', '{"array":["|b1",[0],""]}'])
def test_the_longest_reply_is_read_in_a_few_seconds(item: str) -> None:
    reply = json.loads(f"[{','.join([item] * (SAID // (len(item) + 1)))}]")
    begin = time.process_time()
    decode(reply)
    assert time.process_time() - begin < 5


BURGLARY = """
import edp_lab, os, socket
found = []

def tries(what, do, *arguments):
    try:
        found.extend([what, done] if (done := do(*arguments)) else [])
    except OSError:
        pass

def fill(folder):
    for name in "ab":
        with open(f"{folder}/{name}", "wb") as file:
            file.write(bytes(60 * 10**6))
    return True

for folder in given["SOLUTIONS"]:
    tries("reads the solutions", os.listdir, folder)
for folder in ("/", "/dev", "/usr", edp_lab.__path__[0], given["SOLUTIONS"][0]):
    tries("writes", lambda: open(f"{folder}/mine", "w").name)
for folder in ("/tmp", "/dev/shm"):
    tries("fills the memory", fill, folder)
tries("uses the network", lambda: bool(socket.create_connection(("127.0.0.1", given["PORT"]), 1)))
tries("finds the grader", lambda: os.kill(given["GRADER"], 0) is None)
"""


@in_sandbox
def test_a_sandbox_shows_nothing_and_lets_nothing_be_changed(
    course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = Path(edp_lab.__path__[0]) / "course" / "nb01_coins"  # as a wheel has its notebooks in the package
    carried, link, mine = tmp_path / "carried", tmp_path / "link", tmp_path / "mine"
    for folder in (carried / "source" / "01.ipynb", mine / "secret"):
        folder.mkdir(parents=True)
    link.symlink_to(carried)
    monkeypatch.setattr(confined_module, "comes_with", lambda _: link)
    monkeypatch.setenv("PYTHONPATH", str(mine), os.pathsep)
    unseen = [hidden, course / "source", link / "source", carried / "source", mine]
    given = {"SOLUTIONS": [*map(str, unseen)], "GRADER": os.getpid()}
    with socket.create_server(("127.0.0.1", 0)) as server:
        given["PORT"] = server.getsockname()[1]
        with confined(f"{given = }\n{BURGLARY}", 0, 20, [hidden, course / "source"]) as submission:
            answer = f"found + os.listdir({str(link)!r})"
            assert submission.ask({"cell": "", "name": "x", "answer": answer}) == ["source"]


def test_a_sandbox_that_is_not_there_or_fails_is_refused(
    course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="--sandbox needs bubblewrap: install"):
        Grader(course, sandbox=True)
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho no namespaces for you >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    with pytest.raises(UsageError, match="bubblewrap fails here \\(no namespaces for you\\): use a container"):
        Grader(course, sandbox=True)


def test_seeds_come_from_a_file_or_from_the_name(course: Path, tmp_path: Path) -> None:
    submit(course, tmp_path / "ada", "01_a")
    seeds = tmp_path / "seeds.csv"
    seeds.write_text("student,seed\nada,12\n")
    table = run(course, tmp_path, "--csv", "--seed-from", seeds).stdout
    assert [row["seed"] for row in csv.DictReader(io.StringIO(table))] == ["12", "12"]
    assert student_seed("ada") == 4260250381  # for good: a second grading must try the same cases
    assert student_seed("Zo\u00eb") == student_seed("Zoe\u0308")  # as two systems write one name
    assert len({student_seed(name) for name in ("ada", "bo", "cy")}) == 3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("student,seed\nada,-1\n", "gives 'ada' the seed '-1'"),
        ("student,seed\nada\n", "gives 'ada' the seed None"),
        (f"student,seed\nada,{'9' * 5000}\n", "gives 'ada' the seed '999"),
    ],
)
def test_a_file_of_seeds_that_does_not_fit_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "seeds.csv").write_text(text)
    with pytest.raises(UsageError, match=sentence):
        read_seeds(tmp_path / "seeds.csv")


def test_a_missing_seed_is_refused(course: Path, tmp_path: Path) -> None:
    (tmp_path / "ada").mkdir()
    (tmp_path / "seeds.csv").write_text("student,seed\nbo,1\n")
    refused = run(course, tmp_path, "--seed-from", tmp_path / "seeds.csv").exception
    assert str(refused) == "the file of seeds lacks ada: add a line for each"


def test_of_two_files_for_one_notebook_the_better_answer_counts() -> None:
    rows = [Grade("ada", f"01_{file}", "total", status, "", 0) for file, status in (("a", "solved"), ("b", "open"))]
    assert total(rows) == "1 of 1 exercises solved"
    assert total([*rows[1:], Grade("ada", "x", "", "unreadable", "", 0)]) == (
        "0 of 1 exercises solved; open: 01 total; unreadable: x"
    )
