"""The catalogue: locations of corpora, a user's own corpora, declared labels, and errors with hints. Downloads from a
local server: wrong content and refusals; a file is complete or absent."""

import contextlib
import hashlib
import json
import os
import random
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import Mock

import pytest

from edp_lab.corpora import catalog
from edp_lab.corpora.catalog import Source, data_folders, fetch, list_corpora, load_corpus, sources
from edp_lab.corpora.corpus import Corpus, Utterance, by_character, notes_on_split, split
from edp_lab.errors import UsageError

FILES = {"seq.in": "fly home\nstop\n", "seq.out": "O B-place\nO\n", "label": "fly\nhalt\n"}


@pytest.fixture
def folders(tmp_path, monkeypatch) -> list[Path]:
    """Three empty data folders, one for each of the search rules; the second folder need not exist."""
    monkeypatch.setenv("EDP_LAB_DATA", str(tmp_path / "given"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(catalog, "comes_with", (tmp_path / "repo").joinpath)
    return [tmp_path / "given", tmp_path / "repo/data", tmp_path / "cache/edp_lab"]


@pytest.fixture
def small_atis(monkeypatch) -> None:
    """Make "atis" consist of three small files."""
    files = tuple(Source(f"atis/train/{name}", len(text), "", "") for name, text in FILES.items())
    monkeypatch.setattr(catalog, "_sources", lambda: {"atis": files})


def write_own(folder: Path, **more: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (FILES | more).items():
        (folder / name).write_text(text)
    return folder


def test_folders_are_searched_in_order_and_a_published_corpus_declares_its_labels(folders, small_atis):
    assert data_folders() == folders
    for folder in reversed(folders):
        write_own(folder / "atis/train")
        assert catalog.find("atis") == folder / "atis"
    corpus = load_corpus("atis")
    assert (corpus.name, corpus.labels_declared, corpus.utterances[0].text) == ("atis", True, "fly home")
    assert (corpus.intents, corpus.slots) == (("fly", "halt"), ("place",))
    assert corpus.tags == ("O", "B-place", "I-place")


def test_cache_is_the_only_folder_without_checkout_and_variable(folders, monkeypatch):
    monkeypatch.setattr(catalog, "comes_with", catalog.CARRIED.joinpath)
    monkeypatch.delenv("EDP_LAB_DATA")
    assert data_folders() == folders[2:]
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_folders() == [Path.home() / ".cache" / "edp_lab"]


def test_missing_and_incomplete_corpora_name_the_folders_or_the_file_and_the_cure(folders, small_atis):
    with pytest.raises(UsageError, match="edp-lab data fetch atis") as error:
        load_corpus("atis")
    assert all(str(folder) in str(error.value) for folder in folders)
    folder = write_own(folders[1] / "atis/train")
    (folder / "seq.out").unlink()
    with pytest.raises(UsageError, match=r"seq\.out is missing .*edp-lab data fetch atis"):
        load_corpus("atis")
    (folder / "seq.out").write_text("cut off")
    with pytest.raises(UsageError, match=r"seq\.out .*has the wrong size"):
        load_corpus("atis")
    write_own(folders[2] / "atis/train")  # a complete copy in a later folder is used
    assert len(load_corpus("atis").utterances) == 2


def test_every_listed_corpus_is_embedded_or_has_sources_that_are_pinned_and_hashed():
    paths, names = [], [info.name for info in list_corpora()]
    assert names[:2] == ["atis", "snips"]
    for name in (*names, "mnist"):
        if name.startswith("smart-home"):
            with pytest.raises(UsageError, match="comes with edp_lab"):
                sources(name)
            continue
        for source in sources(name):
            paths.append(source.path)
            assert source.url.startswith("https://raw.githubusercontent.com/")
            assert len(source.url.split("/")[5]) == 40  # a commit hash
            assert len(source.digest) == 64
    assert len(paths) == len(set(paths)) == 9 + 9 + 3 + 4


# --- a user's own corpus ---


def test_own_folder_reads_its_label_sets_off_the_utterances(tmp_path, monkeypatch):
    path = write_own(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    for name in (str(path), "mine"):  # in the working directory, the name needs no separator
        corpus = load_corpus(name)
        assert (corpus.name, corpus.labels_declared) == (name, False)
        assert (corpus.intents, corpus.slots) == (("fly", "halt"), ("place",))


def own_corpus(folder: Path, *rows: tuple[str, ...], tokens: str = "words", **files: str) -> Corpus:
    """A corpus with these texts, intents and, if given, tags, and with more files in its folder."""
    lines = [
        {"text": text, "intent": intent, **({"tags": tags[0].split()} if tags else {})} for text, intent, *tags in rows
    ]
    (folder / "own.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    return load_corpus(folder / "own.jsonl", tokens)


PLAIN = [(f"{word} number {k}", word) for k in range(12) for word in ("play", "stop")]
CHINESE = ["打开客厅的灯", "今天天气怎么样", "明天早上叫我起床"]
SLIPS = {  # rows, and the only note about them
    "a few utterances": ([("go on", "go"), ("go off", "go"), ("do", "d0")], "intent 'd0' has only one utterance"),
    "one example a class": ([(f"do it {k}", f"i{k}") for k in range(40)], "40 intents, such as 'i0', have only one"),
    "capitals": ([*PLAIN, ("a b", "Play"), ("c d", "Play")], "intents 'Play' and 'play' differ"),
    "zero width": ([*PLAIN, ("a b", "play\u200b"), ("c d", "play\u200b")], r"intents 'play' and 'play\u200b' differ"),
    "full width": ([*PLAIN, ("a b", "ｐｌａｙ"), ("c d", "ｐｌａｙ")], "intents 'play' and 'ｐｌａｙ' differ"),
    "composed": (
        [("a b", "caf\xe9"), ("b c", "caf\xe9"), ("c d", "cafe\u0301"), ("d e", "cafe\u0301")],
        r"intents 'cafe\u0301' and 'caf\xe9' differ",
    ),
    "two pairs": (
        [*PLAIN, ("a b", "Play"), ("c d", "Play"), ("e f", "STOP"), ("g h", "STOP")],
        "form, and 1 more such groups:",
    ),
    "a text of two": (
        [*PLAIN, ("stop number 3", "play")],
        "a text has several intents (the first: FILE, line 8, and FILE, line 25)",
    ),
    "by capitals": ([*PLAIN, ("Stop number 3", "play"), ("STOP number 4", "play")], "2 texts have several intents"),
    "chinese": (
        [(text + str(k), "abc"[k % 3]) for k in range(9) for text in CHINESE[k % 3 : k % 3 + 1]],
        "9 of 9 utterances are text",
    ),
    "thai, with spaces between clauses": (
        [(f"ช่วยเปิดไฟในห้องนั่งเล่น หน่อยนะครับตอนนี้{k}", "ab"[k % 2]) for k in range(8)],
        "8 of 8",
    ),
    "underscores": ([(f"turn_on_the_light_{k}", "ab"[k % 2]) for k in range(8)], "8 of 8"),
    "chinese among english": ([*PLAIN, *[(f"打开客厅的灯{k}", "play") for k in range(4)]], "4 of 28"),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_in_a_users_corpus_is_one_note(tmp_path, slip):
    rows, note = SLIPS[slip]
    _, *notes = own_corpus(tmp_path, *rows).warnings  # the first one says that there are no tags
    assert [note in one.replace(str(tmp_path / "own.jsonl"), "FILE") for one in notes] == [True]
    assert rows[-1][0] not in notes[0]  # notes contain no text of a private corpus


@pytest.mark.parametrize(
    "rows",
    [
        PLAIN,
        [*PLAIN, *PLAIN],
        [(f"打 开 灯 {k}", "ab"[k % 2]) for k in range(8)],  # already split into words
        [(f"เปิด ไฟ ห้องนั่งเล่น {k}", "ab"[k % 2]) for k in range(8)],
        [(word, word) for word in ("on", "off", "up") for _ in range(2)],  # short commands
        [*PLAIN, ("weather", "play"), ("打开客厅的灯", "play")],
        [(f"Donaudampfschifffahrt heute um {k} Uhr", "ab"[k % 2]) for k in range(8)],
    ],
)
def test_a_corpus_without_slips_gets_no_note(tmp_path, rows):
    assert len(own_corpus(tmp_path, *rows).warnings) == 1


def test_a_slot_of_one_utterance_is_named_unless_it_is_declared(tmp_path):
    rows = [(f"call {name}", "call", "O B-name") for name in ("ann", "bob", "eve")] * 3
    odd = [*rows, ("call 5 and 6", "call", "O B-jane_doe O B-jane_doe")]
    assert own_corpus(tmp_path, *rows).warnings == ()
    (note,) = own_corpus(tmp_path, *odd).warnings
    assert note == "slot 'jane_doe' has only one utterance: is this a mistake? The model will contain such names"
    (note,) = own_corpus(tmp_path, *rows, ("a b", "call", "B-x I-x"), ("a c", "call", "B-y B-z")).warnings
    assert note.startswith("3 slots, such as ")
    assert own_corpus(tmp_path, *odd, intents="call", slots="name\njane_doe\n").warnings == ()
    (note,) = own_corpus(tmp_path, *rows, intents="call", slots="name\nName\n").warnings
    assert note.startswith("slots 'Name' and 'name' differ only in capitals")


def test_intents_without_a_training_utterance_are_noted_after_the_split(tmp_path):
    corpus = own_corpus(tmp_path, *PLAIN, intents="play\nstop\npause\n", slots="")
    (note,) = notes_on_split(corpus, split(corpus, 0))
    assert note == "intent 'pause' has no training utterances and cannot be learnt: add utterances"
    corpus = own_corpus(tmp_path, *PLAIN, intents="play\nstop\npause\nskip\n", slots="")
    assert next(iter(notes_on_split(corpus, split(corpus, 0)))).startswith(
        "2 intents, such as 'pause', have no training"
    )
    (tmp_path / "intents.txt").unlink(), (tmp_path / "slots.txt").unlink()
    corpus = own_corpus(tmp_path, *SLIPS["one example a class"][0])
    assert next(iter(notes_on_split(corpus, split(corpus, 0)))).startswith("22 intents, such as ")
    corpus = own_corpus(tmp_path, *PLAIN)
    assert [*notes_on_split(corpus, split(corpus, 0))] == []


def test_characters_cut_text_without_spaces_and_keep_marks_and_slots_whole(tmp_path):
    rows = (
        [(f"打开灯{k}", "on", "B-device") for k in range(3)],
        [(f"cafe\u0301 à {k}", "on", "O B-x B-x") for k in range(3)],
    )
    corpus = own_corpus(tmp_path, *rows[0], *rows[1], tokens="characters")
    assert corpus.warnings == ()
    assert corpus.utterances[0].tokens == ("打", "开", "灯", "0")
    assert corpus.utterances[0].tags == ("B-device", "I-device", "I-device", "I-device")
    assert corpus.utterances[3].tokens == ("c", "a", "f", "e\u0301", "à", "0")
    assert corpus.utterances[3].tags == ("O", "O", "O", "O", "B-x", "B-x")
    assert by_character(Utterance(("ที่", "👩\u200d🔧"), None, "x")).tokens == ("ที่", "👩\u200d", "🔧")


@pytest.mark.parametrize(
    ("text", "tokens", "message"),
    [
        ("a " * 20_000, "words", "line 25: the utterance has 20,000 words, but at most 1,000 are allowed: split it"),
        ("a " * 1001, "words", "line 25: the utterance has 1,001 words"),
        ("灯" * 1001, "characters", "line 25: the utterance has 1,001 characters, but at most 1,000"),
        ("abc " * 400, "characters", "line 25: the utterance has 1,200 characters"),
        ("\u200b\u200b", "words", "line 25: the utterance has no visible characters: give at least one word"),
        ("\u2800 \u3164 \xad", "words", "line 25: the utterance has no visible character"),
    ],
)
def test_an_utterance_that_is_too_long_or_shows_nothing_is_refused_by_its_line(tmp_path, text, tokens, message):
    with pytest.raises(UsageError, match=message):
        own_corpus(tmp_path, *PLAIN, (text, "play"), tokens=tokens)
    assert own_corpus(tmp_path, *PLAIN, ("a " * 1000, "play")).utterances[-1].text


def test_declared_label_sets_of_which_intents_suffice_without_tags(tmp_path):
    path = write_own(tmp_path, **{"intents.txt": "halt\nfly\nwait\n\n", "slots.txt": "place\ndate\n"})
    corpus = load_corpus(path)
    assert corpus.labels_declared
    assert (corpus.intents, corpus.slots) == (("fly", "halt", "wait"), ("date", "place"))
    for name in ("slots.txt", "seq.out"):
        (path / name).unlink()
    assert load_corpus(path).labels_declared


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"intents.txt": "fly\n", "slots.txt": "place\n"}, r"line 2: intent 'halt' is not listed in .*intents\.txt"),
        ({"intents.txt": "fly\nhalt\n", "slots.txt": "x\n"}, r"line 1: slot 'place' is not listed in .*slots\.txt"),
        ({"intents.txt": "fly\nhalt\n"}, r"slots\.txt is missing"),
        ({"slots.txt": "place\n"}, r"intents\.txt is missing"),
    ],
)
def test_undeclared_labels_are_named_by_file_and_line(tmp_path, declared, message):
    with pytest.raises(UsageError, match=message):
        load_corpus(write_own(tmp_path, **declared))


@pytest.mark.parametrize("name", ["seq.out", "intents.txt", "slots.txt"])
def test_a_link_to_nothing_is_no_missing_file(tmp_path, name):
    path = write_own(tmp_path)
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(name)
    with pytest.raises(UsageError, match=name):
        load_corpus(path)


# --- fetching ---


CONTENT = {"c/big": random.Random(0).randbytes(300_000), "c/sub/small": b"hello\n", "c/empty": b""}


class Site:
    """Content of the local server; `requests` lists the requested paths."""

    def __init__(self) -> None:
        self.content = dict(CONTENT)
        self.requests: list[str] = []


class Handler(BaseHTTPRequestHandler):
    def __init__(self, site: Site, *args: object) -> None:
        self.site = site
        super().__init__(*args)  # type: ignore[arg-type]

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path.lstrip("/")
        self.site.requests.append(path)
        if path not in self.site.content:
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT[path])))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the client may have closed the connection
            self.wfile.write(self.site.content[path])


def serve(handler: object) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)  # type: ignore[arg-type]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def source(path: str, url: str) -> Source:
    body = CONTENT[path]
    return Source(path, len(body), hashlib.sha256(body).hexdigest(), f"{url}/{path}")


@pytest.fixture
def site(monkeypatch) -> Iterator[Site]:
    """A server for the corpus "c", whose correct content is listed in the catalogue."""
    site = Site()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for url in serve(partial(Handler, site)):
        files = {"c": tuple(source(path, url) for path in CONTENT)}
        monkeypatch.setattr(catalog, "_sources", Mock(return_value=files))
        yield site


def files_below(folder: Path) -> dict[str, bytes]:
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def test_fetch_brings_every_file_once_and_reports_progress(site, tmp_path):
    seen: list[tuple[int, int, str]] = []
    assert fetch("c", tmp_path, lambda *progress: seen.append(progress)) == tmp_path
    assert files_below(tmp_path) == CONTENT
    big = [done for done, _, what in seen if what == "file 1/3 c/big"]
    assert big == sorted(set(big))
    assert seen[len(big) - 1] == (300_000, 300_000, "file 1/3 c/big")
    (tmp_path / "c/sub/small").write_bytes(b"spoilt")
    site.requests.clear()
    fetch("c", tmp_path)
    assert files_below(tmp_path) == CONTENT
    assert site.requests == ["c/sub/small"]


@pytest.mark.parametrize("body", [b"other", b"x" * 300_000, b"x" * 10_000_000, CONTENT["c/big"][:-1]])
def test_wrong_content_is_refused_and_an_old_file_stays(site, tmp_path, body):
    site.content["c/big"] = body
    (tmp_path / "c").mkdir()
    (tmp_path / "c/big").write_bytes(b"old")
    with pytest.raises(UsageError, match="c/big is incomplete or has changed: it does not have the pinned checksum"):
        fetch("c", tmp_path)
    assert files_below(tmp_path) == {"c/big": b"old"}


def test_interrupted_fetch_leaves_nothing_and_goes_on(site, tmp_path):
    def interrupt(done: int, size: int, what: str) -> None:
        if what.endswith("c/sub/small"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("c", tmp_path, interrupt)
    assert list(files_below(tmp_path)) == ["c/big"]
    fetch("c", tmp_path)
    assert files_below(tmp_path) == CONTENT


def test_refusals_are_one_clear_sentence(site, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot fetch c/big: .*Not a directory"):
        fetch("c", tmp_path / "file")
    with pytest.raises(UsageError, match="unknown corpus 'd'"):
        fetch("d", tmp_path)
    del site.content["c/big"]
    with pytest.raises(UsageError, match=r"cannot fetch http.*/c/big: the server answered 404 Not Found"):
        fetch("c", tmp_path)
    monkeypatch.setattr(catalog, "_sources", lambda: {"c": (source("c/big", "http://127.0.0.1:1"),)})
    with pytest.raises(UsageError, match=r"c/big: 127.0.0.1 cannot be reached .*refused.; run the same command again"):
        fetch("c", tmp_path)


def test_silent_server_is_given_up(tmp_path, site, monkeypatch):
    monkeypatch.setattr(catalog, "TIMEOUT", 0.2)
    never = threading.Event()
    monkeypatch.setattr(Handler, "do_GET", lambda self: never.wait(2))
    with pytest.raises(UsageError, match="timed out"):
        fetch("c", tmp_path)


def test_default_target_is_the_first_writable_data_folder(site, folders, monkeypatch):
    assert fetch("c") == folders[0]
    monkeypatch.setattr(os, "access", lambda path, mode: "given" not in str(path))
    assert fetch("c") == folders[1]
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UsageError, match="is writable"):
        fetch("c")


# --- the real corpora ---


class Mirror(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


LABELS = {"atis": (26, 83), "snips": (7, 39), "nlu-eval": (54, 56), "mnist": None}


@pytest.mark.parametrize("name", LABELS)
def test_real_corpora_can_be_fetched_from_a_mirror_and_hold_what_is_catalogued(real_data, tmp_path, monkeypatch, name):
    """Every pinned size and checksum matches the real file, and the downloaded corpora can be loaded."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for url in serve(partial(Mirror, directory=str(real_data))):
        copies = tuple(file._replace(url=f"{url}/{file.path}") for file in sources(name))
        monkeypatch.setattr(catalog, "_sources", Mock(return_value={name: copies}))
        fetch(name, tmp_path)
    assert {p for p in files_below(tmp_path)} == {source.path for source in catalog.sources(name)}
    assert all((tmp_path / s.path).stat().st_size == s.size for s in catalog.sources(name))
    if name != "mnist":
        monkeypatch.undo()
        monkeypatch.setenv("EDP_LAB_DATA", str(tmp_path))
        corpus, info = load_corpus(name), next(info for info in list_corpora() if info.name == name)
        assert (info.utterances, info.where is not None) == (len(corpus.utterances), True)
        assert (len(corpus.intents), len(corpus.slots)) == LABELS[name]
