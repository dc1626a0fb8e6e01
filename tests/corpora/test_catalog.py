"""The catalogue: where corpora are found, a user's own corpora, declared labels, errors with their cure."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edp_lab.corpora import catalog, data_folders, list_corpora, load_corpus, smart_home
from edp_lab.corpora.catalog import Source, sources
from edp_lab.errors import UsageError

FILES = {"seq.in": "fly home\nstop\n", "seq.out": "O B-place\nO\n", "label": "fly\nhalt\n"}


@pytest.fixture
def folders(tmp_path, monkeypatch) -> list[Path]:
    """Three empty data folders, as found by the three rules, of which the second need not exist."""
    monkeypatch.setenv("EDP_LAB_DATA", str(tmp_path / "given"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(catalog.edp_lab, "__file__", str(tmp_path / "repo/edp_lab/__init__.py"))
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo/pyproject.toml").touch()
    return [tmp_path / "given", tmp_path / "repo/data", tmp_path / "cache/edp_lab"]


@pytest.fixture
def small_atis(monkeypatch) -> None:
    """Let "atis" be made of three small files."""
    files = tuple(Source(f"atis/train/{name}", len(text), "", "") for name, text in FILES.items())
    monkeypatch.setattr(catalog, "_sources", lambda: {"atis": files})


def write_own(folder: Path, **more: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (FILES | more).items():
        (folder / name).write_text(text)
    return folder


def test_folders_are_searched_in_order(folders, small_atis):
    assert data_folders() == folders
    for folder in reversed(folders):
        write_own(folder / "atis/train")
        assert catalog.find("atis") == folder / "atis"
        assert load_corpus("atis").utterances[0].text == "fly home"


def test_cache_is_the_only_folder_without_checkout_and_variable(folders, tmp_path, monkeypatch):
    (tmp_path / "repo/pyproject.toml").unlink()
    monkeypatch.delenv("EDP_LAB_DATA")
    assert data_folders() == folders[2:]
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_folders() == [Path.home() / ".cache" / "edp_lab"]


def test_published_corpus_declares_its_labels(folders, small_atis):
    write_own(folders[0] / "atis/train")
    corpus = load_corpus("atis")
    assert (corpus.name, corpus.labels_declared) == ("atis", True)
    assert (corpus.intents, corpus.slots) == (("fly", "halt"), ("place",))
    assert corpus.tags == ("O", "B-place", "I-place")


def test_missing_corpus_names_the_folders_and_the_cure(folders, small_atis):
    with pytest.raises(UsageError, match="edp-lab data fetch atis") as error:
        load_corpus("atis")
    assert all(str(folder) in str(error.value) for folder in folders)


def test_incomplete_corpus_names_the_first_missing_file(folders, small_atis):
    folder = write_own(folders[1] / "atis/train")
    (folder / "seq.out").unlink()
    with pytest.raises(UsageError, match=r"seq\.out is missing .*edp-lab data fetch atis"):
        load_corpus("atis")
    (folder / "seq.out").write_text("cut off")
    with pytest.raises(UsageError, match=r"seq\.out .*has the wrong size"):
        load_corpus("atis")
    write_own(folders[2] / "atis/train")  # a complete copy further down is used
    assert len(load_corpus("atis").utterances) == 2


@pytest.mark.parametrize("name", ["atsi", "smart_home", "nlu-evalfolds"])
def test_unknown_name_lists_the_known_and_suggests_a_close_one(name):
    with pytest.raises(UsageError, match=r"did you mean (atis|smart-home|nlu-eval-folds)\?") as error:
        load_corpus(name)
    assert all(info.name in str(error.value) for info in list_corpora())


def test_every_listed_corpus_can_be_fetched_or_is_embedded():
    names = [info.name for info in list_corpora()]
    assert names[:2] == ["atis", "snips"]
    for name in names:
        if name.startswith("smart-home"):
            with pytest.raises(UsageError, match="comes with edp_lab"):
                sources(name)
        else:
            assert sources(name)


def test_sources_are_pinned_and_hashed():
    paths = []
    for name in ("atis", "snips", "snips-original", "nlu-eval", "nlu-eval-folds", "nlu-eval-full", "mnist"):
        for source in sources(name):
            paths.append(source.path)
            assert source.url.startswith("https://raw.githubusercontent.com/")
            assert len(source.url.split("/")[5]) == 40  # a commit
            assert len(source.digest) == (40 if name == "nlu-eval-full" else 64)
    assert len(paths) == len(set(paths)) == 9 + 9 + 14 + 3 + 640 + 1 + 4


def test_annotated_csv_of_unknown_size_loads_by_name(folders, monkeypatch):
    path = folders[0] / "nlu_eval/AnnotatedData/NLU-Data-Home-Domain-Annotated-All.csv"
    assert catalog.find("nlu-eval-full") is None
    path.parent.mkdir(parents=True)
    path.write_text("scenario;intent;status;answer_annotation\nalarm;set;;wake me [time : now]\n")
    assert load_corpus("nlu-eval-full").intents == ("alarm_set",)


@pytest.mark.parametrize(("name", "domain"), [("smart-home", None), ("smart-home-video", "video")])
def test_embedded_corpora_come_from_their_own_module(monkeypatch, name, domain):
    monkeypatch.setattr(smart_home, "load", lambda asked: (asked, "loaded"))
    assert load_corpus(name) == (domain, "loaded")


# --- a user's own corpus ---


def test_own_folder_reads_its_label_sets_off_the_utterances(tmp_path):
    path = write_own(tmp_path / "mine")
    corpus = load_corpus(str(path))
    assert (corpus.name, corpus.labels_declared) == (str(path), False)
    assert (corpus.intents, corpus.slots, corpus.warnings) == (("fly", "halt"), ("place",), ())


def test_own_folder_in_the_working_directory_needs_no_separator(tmp_path, monkeypatch):
    write_own(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    assert load_corpus("mine").name == "mine"


def test_own_jsonl_without_tags_says_what_that_means(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps({"tokens": ["hi"], "intent": "greet"}))
    corpus = load_corpus(file)
    assert not corpus.has_tags
    assert (corpus.slots, corpus.tags) == ((), ())
    assert "only the intent head is trained" in corpus.warnings[0]


def test_declared_label_sets(tmp_path):
    path = write_own(tmp_path, **{"intents.txt": "halt\nfly\nwait\n\n", "slots.txt": "place\ndate\n"})
    corpus = load_corpus(path)
    assert corpus.labels_declared
    assert (corpus.intents, corpus.slots) == (("fly", "halt", "wait"), ("date", "place"))


def test_declared_intents_suffice_without_tags(tmp_path):
    path = write_own(tmp_path, **{"intents.txt": "halt\nfly\n"})
    (path / "seq.out").unlink()
    assert load_corpus(path).labels_declared


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (
            {"intents.txt": "fly\n", "slots.txt": "place\n"},
            r"line 2: intent 'halt' is not listed in .*intents\.txt",
        ),
        (
            {"intents.txt": "fly\nhalt\n", "slots.txt": "x\n"},
            r"line 1: slot 'place' is not listed in .*slots\.txt",
        ),
        ({"intents.txt": "fly\nhalt\n"}, r"slots\.txt is missing"),
        ({"slots.txt": "place\n"}, r"intents\.txt is missing"),
    ],
)
def test_undeclared_labels_are_named_by_file_and_line(tmp_path, declared, message):
    with pytest.raises(UsageError, match=message):
        load_corpus(write_own(tmp_path, **declared))


def test_own_path_that_does_not_exist():
    with pytest.raises(UsageError, match=r"no corpus at \./nowhere"):
        load_corpus("./nowhere")


def test_importing_corpora_does_not_import_torch():
    code = "import sys, edp_lab.corpora; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- the real corpora ---


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("atis", (26, 83)),
        ("snips", (7, 39)),
        ("snips-original", (7, 39)),
        ("nlu-eval", (54, 56)),
        ("nlu-eval-folds", (64, 54)),
    ],
)
def test_real_corpora_load_with_the_catalogued_counts(real_data, monkeypatch, name, labels):
    monkeypatch.setenv("EDP_LAB_DATA", str(real_data))
    corpus = load_corpus(name)
    info = next(info for info in list_corpora() if info.name == name)
    assert (info.utterances, info.where is not None) == (len(corpus.utterances), True)
    assert (len(corpus.intents), len(corpus.slots)) == labels


def test_real_corpus_read_as_a_users_own_is_the_same(real_data, tmp_path, monkeypatch):
    monkeypatch.setenv("EDP_LAB_DATA", str(real_data))
    shutil.copytree(real_data / "atis", tmp_path / "atis")
    assert load_corpus(tmp_path / "atis").sha256 == load_corpus("atis").sha256
