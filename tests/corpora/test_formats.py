"""Common file formats: what is read, which notes mention ignored content, and what is refused with a hint."""

import gzip
import json
import re
from pathlib import Path

import pytest

from edp_lab.corpora import readers
from edp_lab.corpora.catalog import load_corpus, note_on_words
from edp_lab.corpora.corpus import Corpus
from edp_lab.errors import UsageError
from edp_lab.training.config import TrainConfig
from edp_lab.training.recipe import plan
from edp_lab.training.run_files import settled

TAGS_NOTE = 'is not read (slots are read from "tags", a BIO tag per word; with "text", also from "entities"): 1'
PEOPLE_NOTE = "is not read (epsilon is for one utterance, not for all that a person said): 1"


def load(folder: Path, name: str, content: str | bytes) -> Corpus:
    """Load the content as a file of this name, which can be followed by column names."""
    file = folder / re.sub(r"(?<=\.csv)\[.*", "", name)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_corpus(f"{folder / name}")


def frames(corpus: Corpus) -> list[tuple[str, str, str]]:
    return [(u.intent, u.text, " ".join(u.tags or ())) for u in corpus.utterances]


def notes(corpus: Corpus) -> str:
    return "\n".join(corpus.warnings)


# --- Keys that are not read ---


@pytest.mark.parametrize(
    ("key", "value", "note"),
    [
        ("ner_tags", ["O"], TAGS_NOTE),
        ("slots", {"city": "rome"}, TAGS_NOTE),
        ("tag", ["O"], TAGS_NOTE),
        ("entities", [], TAGS_NOTE),  # next to tokens
        ("Speaker", "ada", PEOPLE_NOTE),
        ("user", 7, PEOPLE_NOTE),
        ("id", 7, "is not read: 1"),
        ("owner_stage", 7, "is not read: 1"),
    ],
)
def test_a_key_that_is_not_read_is_named_with_the_one_that_is_wanted(tmp_path, key, value, note):
    corpus = load(tmp_path, "a.jsonl", json.dumps({"tokens": ["hi"], "intent": "greet", key: value}))
    assert f'"{key}" {note} (the first: {tmp_path / "a.jsonl"}, line 1)' in corpus.warnings
    assert frames(corpus) == [("greet", "hi", "")]


# --- Tables ---

JAZZ = [("play", "play jazz, now", ""), ("stop", "stop", "")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("comma.csv", '\ufefftext,intent\r\n"play jazz, now",play\r\nstop,stop\r\n'),
        ("semicolon.csv", "\ufeffText;Intent\nplay jazz, now;play\nstop;stop\n"),
        ("tabs.tsv", "query\tlabel\nplay jazz, now\tplay\nstop\tstop\n"),
        ("bars.csv", "category|utterance\nplay|play jazz, now\nstop|stop\n"),
        ("unicode.csv", "text\tintent\nplay jazz, now\tplay\nstop\tstop\n".encode("utf-16")),
        ("empty_rows.csv", '\n,\ntext,intent\n\n"play jazz, now",play\n , \nstop,stop\n,\n'),
        ("excel.csv", "\ufeffsep=;\r\ntext;intent\r\nplay jazz, now;play\r\nstop;stop\r\n"),
        ("excel_tabs.csv", "SEP=\t\ntext\tintent\nplay jazz, now\tplay\nstop\tstop\n"),
        ("excel_quoted.csv", '"sep=,"\ntext,intent\n"play jazz, now",play\nstop,stop\n'),
        ("excel_colon.csv", "sep=:;;\ntext:intent\nplay jazz, now:play\nstop:stop\n"),
        ("old_mac.csv", "text;intent\rplay jazz, now;play\rstop;stop\r"),
        ("more_cells.csv", "text;intent;;\nplay jazz, now;play;;\nstop;stop;;;\n"),
        ("tokens.csv", "tokens;intent\nplay jazz, now;play\nstop;stop\n"),
    ],
)
def test_tables_are_read_whatever_their_delimiter_headings_and_encoding(tmp_path, name, content):
    corpus = load(tmp_path, name, content)
    assert frames(corpus) == JAZZ
    assert "rows of a table with" in notes(corpus)
    assert "not read" not in notes(corpus)


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1252", "Können Sie die Öffnungszeiten nennen?"),
        ("cp1252", "quel temps fera-t-il demain à Genève"),
        ("cp1251", "какая завтра погода на улице"),
        ("gbk", "今天广州天气怎么样"),
        ("shift_jis", "明日の天気を教えてください"),
    ],
)
def test_an_encoding_that_is_not_utf8_is_guessed_and_said(tmp_path, encoding, text):
    corpus = load(tmp_path, "a.csv", f"text,intent\n{text},x\n".encode(encoding))
    assert corpus.utterances[0].text == text
    assert "not UTF-8, read as" in notes(corpus)


def test_columns_can_be_named_and_the_others_are_noted(tmp_path):
    table = "Frage;Kunde;Thema;text\nplay jazz;7;play;x\n"
    corpus = load(tmp_path, "a.csv[frage,Thema]", table)
    assert frames(corpus) == [("play", "play jazz", "")]
    assert f'"kunde" {TAGS_NOTE}' not in notes(corpus)
    assert '"kunde" is not read' in notes(corpus)
    assert '"other text" is not read' in notes(corpus)
    counted = load(tmp_path, "a.csv", "text,intent,tokens\nplay jazz,play,2\n")
    assert frames(counted) == [("play", "play jazz", "")]
    tagged = load(tmp_path, "my [c].csv[text,intent,tags]", 'text,intent,tags\n"play\njazz",play,O B-genre\n')
    assert frames(tagged) == [("play", "play jazz", "O B-genre")]
    assert "rows with several lines, each read as one utterance: 1" in notes(tagged)


# --- CoNLL ---


@pytest.mark.parametrize(
    ("name", "content", "note"),
    [
        (
            "iob2.conll",
            "\ufeff# intent: fly\nnew B-city\nyork I-city\nrome B-city\n\n\n\ufeff# intent: stop\nstop O\n",
            "CoNLL lines",
        ),
        (
            "iob1.iob",
            "# intent = fly\nnew I-city\nyork I-city\nrome B-city\n\n# intent = stop\nstop O\n",
            "slots that begin with I-, as in IOB1, read as B-: 1",
        ),
        (
            "bilou.bio",
            "new B-city\nyork L-city\nrome U-city\nfly\n\nstop O\nstop\n",
            "BILOU, IOBES or BMEWO, read as BIO: 1",
        ),
        ("iobes.txt", "new B-city\nyork E-city\nrome S-city\nfly\n\nstop O\nstop\n", "BILOU, IOBES or BMEWO"),
        (
            "train",
            "-DOCSTART- -X- -X- O\n\n# intent: fly\nnew NN x B-city\nyork NN x I-city\nrome NN x B-city\n\n"
            "# id 7\n# intent: stop\nstop VB x O\n",
            "utterances with ignored columns between the first and the last: 2",
        ),
    ],
)
def test_conll(tmp_path, name, content, note):
    corpus = load(tmp_path, name, content)
    assert frames(corpus) == [("fly", "new york rome", "B-city I-city B-city"), ("stop", "stop", "O")]
    assert note in notes(corpus)


# --- Rasa ---


@pytest.mark.parametrize(
    ("text", "entity", "note"),
    [
        ("an apple, please", (3, 8), "ends within a word, which is split there: 1"),
        ("eat the apples", (8, 13), "ends within a word, which is split there: 1"),
        ("go to   ", (5, 8), "entities, which are blank"),
    ],
)
def test_an_entity_that_cuts_a_word_or_has_none_gets_a_note(tmp_path, text, entity, note):
    mark = {"start": entity[0], "end": entity[1], "entity": "fruit"}
    assert note in notes(load(tmp_path, "a.jsonl", json.dumps({"text": text, "intent": "eat", "entities": [mark]})))
    marked = f"{text[: entity[0]]}[{text[slice(*entity)]}](fruit){text[entity[1] :]}"
    if text.split()[-1] != "to":
        assert note in notes(load(tmp_path, "nlu.yml", f"nlu:\n- intent: eat\n  examples: |\n    - {marked}\n"))


NLU = """
version: "3.1"
nlu:
- intent: fly
  examples: |
    - from [london](city) to [New York]{"entity": "city", "role": "to"}
    - at [7]{"entity": "time", "group": "1", "value": "seven"} to [oslo](city:Oslo)
- intent: no
  examples: |
    - no
    nope
    * no no
- intent: on
  examples:
  - text: |
      turn it on
  - on
- intent: stop
- intent: ask
  examples: |
    - fly [oslo](city
- synonym: nyc
  examples: |
    - new york
rules: []
"""


def test_rasa(tmp_path):
    corpus = load(tmp_path, "nlu.yml", NLU)
    assert frames(corpus) == [
        ("fly", "from london to New York", "O B-city O B-city.to I-city.to"),
        ("fly", "at 7 to oslo", "O B-time.1 O B-city"),
        ("no", "no", "O"),
        ("on", "turn it on", "O O O"),
        ("on", "on", "O"),
        ("ask", "fly [oslo](city", "O O"),
    ]
    for note in (
        "utterances read from Rasa's YAML: 6",
        "intents without examples: 1",
        "a bracket that does not mark an entity, read as a word: 1",
        '"synonym" is not read: 1',
        '"rules" is not read: 1',
        'ignored lines of "examples", which do not begin with "-": 2',
        "entities with a value that differs from their text, such as a synonym; the text is read: 2",
    ):
        assert note in notes(corpus)


# --- JSON ---

ROME = {"text": "to rome now", "intent": "fly", "entities": [{"start": 3, "end": 7, "entity": "city"}]}
HI = {"text": "hi", "intent": "greet", "entities": []}
FLY = [("fly", "to rome now", "O B-city O"), ("greet", "hi", "O")]


@pytest.mark.parametrize(
    ("document", "note"),
    [
        ([ROME, HI], 'utterances of "list": 2'),
        ({"utterances": [ROME | {"traits": []}, HI]}, '"traits" is not read: 1'),
        (
            {"rasa_nlu_data": {"common_examples": [ROME, HI], "entity_synonyms": [{"value": "rome", "synonyms": []}]}},
            'ignored items of "rasa_nlu_data.entity_synonyms", which are not utterances: 1',
        ),
        (
            {
                "fly": [{"data": [{"text": "to "}, {"text": "rome", "entity": "city"}, {"text": " now"}]}],
                "greet": [{"data": [{"text": "hi"}]}],
            },
            'utterances of "greet": 1',
        ),
        (
            {
                "intents": {
                    "fly": {
                        "utterances": [
                            {"data": [{"text": "to "}, {"text": "rome", "slot_name": "city"}, {"text": " now"}]}
                        ]
                    },
                    "greet": {"utterances": [{"data": [{"text": "hi"}]}]},
                },
                "entities": {"city": {"data": [{"value": "rome"}]}},
            },
            'ignored items of "entities.city.data", which are not utterances: 1',
        ),
        ([ROME | {"entities": [*ROME["entities"], {"start": 5, "end": 99, "entity": "x"}]}, HI], "overlapping: 1"),
        ([ROME | {"entities": [ROME["entities"][0] | {"value": "FCO"}]}, HI], "value that differs from their text"),
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_documents(tmp_path, document, note, indent):
    corpus = load(tmp_path, "a.json", json.dumps(document, indent=indent))
    assert frames(corpus) == FLY
    assert note in notes(corpus)


def test_entities_have_roles_in_json_too(tmp_path):
    named = [{"start": 3, "end": 7, "entity": "city", "role": "to", "group": "2"}]
    assert load(tmp_path, "a.json", json.dumps([ROME | {"entities": named}])).slots == ("city.to.2",)


def test_clinc_and_massive(tmp_path):
    clinc = load(tmp_path, "data_full.json", json.dumps({"train": [["hi there", "greet"]], "oos_val": [["so", "oos"]]}))
    assert frames(clinc) == [("greet", "hi there", ""), ("oos", "so", "")]
    assert 'utterances of "oos_val": 1' in notes(clinc)
    row = {"id": "0", "utt": "wake me at nine am", "annot_utt": "wake me at [time : nine am]", "intent": "alarm_set"}
    for utt in (row["utt"], "wake me at ten am", "wake me at nine", "wake me at nine am !"):
        massive = load(tmp_path, "en-US.jsonl", json.dumps(row | {"utt": utt}))
        assert frames(massive) == [("alarm_set", "wake me at nine am", "O O O B-time I-time")]
        assert ('"annot_utt", which differs from "utt"' in notes(massive)) == (utt != row["utt"])


# --- What is refused ---

TABLE = "Frage,Thema,Frage,x\nhi,greet,yo,O\n"
LACKING = "utterances without text or intent: "
EXAMPLES = "nlu:\n- intent: fly\n  examples: |\n"
ZIP = b"PK\x03\x04\x14\0\x06\0"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,intent\nhi, there,greet\n", r"a\.csv, line 2: more cells than columns: put texts"),
        ("a.csv", 'text,intent\n"hi" there,greet\n', r"a\.csv, line 2: the quotes do not match"),
        ("a.csv", 'text,intent\n"hi,greet\nbye,leave\n', r"the quotes do not match"),
        ("a.csv", "text,intent,Text\nhi,greet,x\n", r"a\.csv: column 'text' is given twice: give each once"),
        ("a.csv", "label;utterance;LABEL \nx;hi;y\n", r"a\.csv: column 'label' is given twice"),
        ("a.csv", "text,intent,tags,tags\nhi,greet,O,O\n", r"a\.csv: column 'tags' is given twice"),
        ("a.csv", TABLE, r"no column text or intent \(found: Frage, Thema, .*\): give --columns"),
        ("a.csv", "hi,greet\nbye,leave\n", r"no column text or intent \(found: hi, greet\): .* a line of headings"),
        ("a.csv", "text,intent\n", "contains no utterances: each needs a text and an intent"),
        ("a.csv[frage,thema", TABLE, r"there is no .*a\.csv\[frage,thema: give .* own\.csv\[TEXT,INTENT\]"),
        ("a.csv[]", TABLE, r"there is no .*a\.csv\[\]: give"),
        ("a.csv[frage,thema]x", TABLE, r"there is no .*a\.csv\[frage,thema\]x: give"),
        ("a.csv[thema,thema]", TABLE, r"no column thema,thema \(found: Frage, Thema, Frage, x\)"),
        ("a.csv[thema]", TABLE, "no column thema "),
        ("a.csv[thema,x,y,z]", TABLE, "no column thema,x,y,z "),
        ("a.csv[frage,thema]", TABLE, "column 'frage' is given twice"),
        ("a.csv", 'text,intent\nhi,x\nhi,\n,x\nyo\n"", x\n', LACKING + r"4 \(line 3, line 4, line 5, \.\.\.\)"),
        ("a.tsv", "text\tintent\tid\nhi\tx\t1\n\t\t2\nhi\t \t3\n", LACKING + r"2 \(line 3, line 4\): complete or"),
        ("a.jsonl", '{"text": "a", "intent": null}\n{"text": "", "intent": "x"}', LACKING + r"2 \(line 1, line 2\)"),
        ("a.json", '[{"text": null, "intent": "x"}, {"tokens": [], "intent": "x"}]', LACKING + r"2 \(list 1, list 2\)"),
        ("nlu.yml", EXAMPLES + "    - hi\n    -\n", LACKING + r"1 \(intent fly, example 2\)"),
        ("a.conll", "rome B-city\n", r'line 1: no intent: put a line "# intent: NAME"'),
        ("a.conll", "# intent: fly\nto O\nrome\n", "line 3: 'rome' does not end in a tag: write"),
        ("a.conll", "to O\nrome city\n", "line 2: 'rome city' does not end in a tag"),
        ("a.conll", "to O\nrome B-\n", "line 2: 'rome B-' does not end in a tag"),
        ("a.conll", "O to\nB-city rome\n", "line 1: 'O to' does not end in a tag"),
        ("a.conll", "to O\nnew\nyork I-city\nfly\n", "line 2: 'new' does not end in a tag"),
        ("a.txt", "text\tintent\nhi\tx\n", r"line 1: 'text intent' does not end in a tag: .* formats end in \.jsonl"),
        ("a.conll", "# intent: a\nto O\n# intent: b\nrome O\n", "line 3: intent within an utterance: put a blank"),
        ("nlu.yml", "intents:\n- fly\n", "is not a Rasa nlu.yml"),
        ("nlu.yml", "nlu:\n- intent: fly\n  examples:\n    text: hi\n", "is not a Rasa nlu.yml"),
        ("nlu.yml", "nlu: []\nversion: 3\nnlu: []\n", "line 1: 'nlu' is given twice"),
        ("nlu.yml", EXAMPLES + "    - a\n  intent: y\n", "line 2: 'intent' is given twice: give each once"),
        ("nlu.yml", EXAMPLES + "    a\n    b\n", 'no utterances: .*, which do not begin with "-": 2'),
        ("nlu.yml", EXAMPLES + '    - to [rome]{"entity": city}\n', "intent fly, example 1: write entities as"),
        ("nlu.yml", EXAMPLES + '    - to [oslo]{"entity": "x", "entity": "y"}\n', "example 1: write entities as"),
        ("nlu.yml", "nlu:\n- intent: fly\n", "contains no utterances"),
        ("a.json", '[{"text": "a", "intent": "b"},]', "is not JSON"),
        ("a.json", '[{"text": "a", "intent": "b"}, {"intent": "b"}]', r"list 2: not an utterance: add a text"),
        ("a.json", '[{"text": "a", "intent": "b", "entities": [{"startPos": 0}]}]', '"entities" must be a list'),
        ("a.json", '[{"text": "a", "intent": 3}]', '"intent" must be a string, not 3'),
        ("a.json", '[{"text": "a", "text": "b", "intent": "c"}]', "'text' is given twice: give each once"),
        ("a.json", '{"train": [["a", "b"]], "train": [["c", "d"]]}', "'train' is given twice"),
        ("a.jsonl", '{"text": "a", "intent": "b"}\n{"id": 1, "id": 2}', "line 2: not JSON .'id' is given twice"),
        ("a.xlsx", ZIP, "is not a text file: save a spreadsheet as CSV"),
        ("a.csv", "text,intent\nhi,x\n".encode("utf-16-le"), "is not a text file"),
        ("a.csv", "", "is empty: give a file of utterances"),
        ("a.conll", b"\n \n", "is empty"),
    ],
)
def test_what_would_lose_words_or_is_no_corpus_is_refused(tmp_path, name, content, message):
    with pytest.raises(UsageError, match=message):
        load(tmp_path, name, content)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "notes", "seq.in", "a.csv.gz"])
def test_a_file_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr(readers, "MOST_BYTES", 1999)
    (tmp_path / "label").touch()
    (tmp_path / name).write_bytes(gzip.compress(b"x" * 2000) if name[-2:] == "gz" else b"x" * 2000)
    with pytest.raises(UsageError, match="has more than 1,999 bytes, which is the limit: give a sample of its lines"):
        load_corpus(tmp_path if name == "seq.in" else tmp_path / name)


# --- Slots, names of the catalogue, data show ---


def test_a_corpus_without_a_slot_is_said(tmp_path):
    for row in (HI, {"tokens": ["hi"], "tags": ["O"], "intent": "greet"}):
        note = "every tag of the corpus is O: there are no slots to learn, and slot F1 is none"
        assert note in notes(load(tmp_path, "a.json", json.dumps([row])))


@pytest.mark.parametrize("name", ["atis", "snips", "nlu-eval", "smart-home"])
def test_a_folder_with_a_corpus_wins_over_a_name_of_the_catalogue(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name / "train").mkdir(parents=True)
    for file in ("seq.in", "label"):
        (tmp_path / name / "train" / file).write_text("hi\n")
    corpus = load_corpus(name)
    assert frames(corpus) == [("hi", "hi", "")]
    assert not corpus.labels_declared
    assert corpus.warnings[0] == f"the folder {name} was read instead of the built-in corpus of that name"
    (tmp_path / name / "train" / "seq.in").unlink()  # as in the folder of a run
    if name == "smart-home":
        assert load_corpus(name).labels_declared


def test_data_show_prints_what_would_be_read(cli, tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("frage;thema;kunde\n" + "".join(f"spiel lieder {k};play;7\naus {k};stop;7\n" for k in range(10)))
    status, out, _ = cli("data", "show", str(file), "--columns", "frage,thema")
    assert status == 0
    for shown in ("utterances", "20", "2 intents", "play 10, stop 10", "spiel lieder 0", '"kunde" is not read'):
        assert shown in out
    answer = json.loads(cli("data", "show", str(file), "--columns", "frage,thema", "--json")[1])
    assert (answer["utterances"], answer["intents"], len(answer["examples"])) == (20, {"play": 10, "stop": 10}, 5)
    assert "rows of a table with ';' between columns: 20" in answer["warnings"][0]
    assert "of the words are unknown to the public start" in answer["warnings"][-1]
    assert answer["warnings"][-1] in plan(f"{file}[frage,thema]", 1000.0).warnings


def test_the_record_of_a_run_has_the_whole_path_and_the_columns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    load(tmp_path, "a.csv[frage,thema]", "frage,thema\nhi,greet\n")
    for name in ("a.csv", "a.csv[frage,thema]"):
        assert settled(TrainConfig(name), 1e-5)["corpus"] == str(tmp_path / name)
    assert settled(TrainConfig("atis"), 1e-5)["corpus"] == "atis"
    (tmp_path / "atis").mkdir()
    (tmp_path / "atis" / "seq.in").write_text("hi\n")
    assert settled(TrainConfig("atis"), 1e-5)["corpus"] == str(tmp_path / "atis")


def test_a_corpus_in_another_language_than_the_public_start_gets_a_note(tmp_path):
    for text, share in (
        ("stell bitte den wecker auf sieben uhr", "86%"),
        ("éteins la lumière du salon", "40%"),
        ("włącz muzykę w salonie", "75%"),
        ("打开客厅的灯", "100%"),
        ("please turn on the lights in the kitchen", ""),
        ("reset my okta password, the vpn is down", ""),
        ("7 30", ""),
    ):
        found = [*note_on_words(load(tmp_path, "a.json", json.dumps([{"text": text, "intent": "x"}])))]
        note = f"{share} of the words are unknown to the public starting model, so it will help less"
        assert found == ([note] if share else []), text
