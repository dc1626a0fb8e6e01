"""Files that people have: what is read, what a note says of the rest, and what is refused with a cure."""

import json
from pathlib import Path

import pytest

from edp_lab.corpora.catalog import load_corpus
from edp_lab.corpora.corpus import Corpus
from edp_lab.errors import UsageError
from edp_lab.training.config import TrainConfig
from edp_lab.training.run_files import settled

TAGS_NOTE = 'is not read (slots come from "tags", a BIO tag for each word; of a "text" also from "entities"): 1'
PEOPLE_NOTE = "is not read (epsilon is for one utterance, not all that one person said): 1"


def load(folder: Path, name: str, content: str | bytes, columns: str = "") -> Corpus:
    """Load the content as a file of that name."""
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_corpus(f"{folder / name}{f'[{columns}]' if columns else ''}")


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
        ("entities", [], TAGS_NOTE),  # beside tokens
        ("bio_labels", ["O"], TAGS_NOTE),
        ("Speaker", "ada", PEOPLE_NOTE),
        ("user", 7, PEOPLE_NOTE),
        ("customer_id", 7, PEOPLE_NOTE),
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
        ("empty_rows.csv", 'text,intent\n\n"play jazz, now",play\n,\nstop,stop\n'),
    ],
)
def test_tables_are_read_whatever_their_delimiter_headings_and_encoding(tmp_path, name, content):
    corpus = load(tmp_path, name, content)
    assert frames(corpus) == JAZZ
    assert "utterances of a table split at" in notes(corpus)
    assert ("rows without a word, not read: 2" in notes(corpus)) == (name == "empty_rows.csv")


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
    corpus = load(tmp_path, "a.csv", table, "frage,Thema")
    assert frames(corpus) == [("play", "play jazz", "")]
    assert f'"kunde" {TAGS_NOTE}' not in notes(corpus)
    assert '"kunde" is not read' in notes(corpus)
    assert '"other text" is not read' in notes(corpus)
    tagged = load(tmp_path, "c.csv", "text,intent,tags\nplay jazz,play,O B-genre\n")
    assert frames(tagged) == [("play", "play jazz", "O B-genre")]


def test_a_cell_of_several_lines_is_one_utterance_and_said(tmp_path):
    corpus = load(tmp_path, "a.csv", 'text,intent\n"play\njazz",play\n')
    assert frames(corpus) == [("play", "play jazz", "")]
    assert "rows of several lines, each read as one utterance: 1" in notes(corpus)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,intent\nhi, there,greet\n", r"a\.csv, line 2: more cells than columns: put quotes"),
        ('text,intent\n"hi" there,greet\n', r"a\.csv, line 2: the quotes do not match"),
        ('text,intent\n"hi,greet\nbye,leave\n', r"the quotes do not match"),
        ("text,intent\nhi\n", r'a\.csv, line 2: no "intent"'),
        ("text,intent\n,greet\n", r"a\.csv, line 2: the utterance is empty"),
        ("frage,thema\nhi,greet\n", r"no column text or intent \(found: frage, thema\): give --columns"),
        ("", "has no column"),
    ],
)
def test_a_table_that_would_lose_words_is_refused(tmp_path, content, message):
    with pytest.raises(UsageError, match=message):
        load(tmp_path, "a.csv", content)


# --- CoNLL ---


@pytest.mark.parametrize(
    ("name", "content", "note"),
    [
        (
            "iob2.conll",
            "# intent: fly\nnew B-city\nyork I-city\nrome B-city\n\n\n# intent: stop\nstop O\n",
            "CoNLL lines",
        ),
        (
            "iob1.iob",
            "# intent = fly\nnew I-city\nyork I-city\nrome B-city\n\n# intent = stop\nstop O\n",
            "read as B-: 1",
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
            "CoNLL lines, the word first and the tag last: 2",
        ),
    ],
)
def test_conll(tmp_path, name, content, note):
    corpus = load(tmp_path, name, content)
    assert frames(corpus) == [("fly", "new york rome", "B-city I-city B-city"), ("stop", "stop", "O")]
    assert note in notes(corpus)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("rome B-city\n", r'line 1: no intent: put a line "# intent: NAME"'),
        ("# intent: fly\nto O\nrome\n", r"line 3: no tag"),
        ("to O\nrome city\n", r"line 2: no tag such as B-city"),
        ("# intent: a\nto O\n# intent: b\nrome O\n", r"line 3: an intent within an utterance: put a blank line"),
    ],
)
def test_conll_without_an_intent_or_a_tag_is_refused(tmp_path, content, message):
    with pytest.raises(UsageError, match=message):
        load(tmp_path, "a.conll", content)


def test_a_column_that_numbers_the_words_gets_a_note(tmp_path):
    assert "whose words are 1, 2" in notes(load(tmp_path, "a.conll", "# intent: fly\n1 to O\n2 rome B-city\n"))


def test_files_joined_to_one_lose_their_byte_order_marks(tmp_path):
    corpus = load(tmp_path, "a.conll", "\ufeff# intent: fly\nto O\n\n\ufeff# intent: stop\nstop O\n")
    assert frames(corpus) == [("fly", "to", "O"), ("stop", "stop", "O")]


# --- Rasa ---


@pytest.mark.parametrize(
    ("text", "entity", "note"),
    [
        ("an apple, please", (3, 8), "ends within a word, which is cut there: 1"),
        ("eat the apples", (8, 13), "ends within a word, which is cut there: 1"),
        ("go to   ", (5, 8), "entities that are blank"),
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
- intent: on
  examples:
  - text: |
      turn it on
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
    ]
    for note in ("utterances of Rasa's YAML: 4", '"synonym" is not read: 1', '"rules" is not read: 1'):
        assert note in notes(corpus)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("intents:\n- fly\n", 'has no YAML list "nlu"'),
        ("nlu: [\n", 'has no YAML list "nlu"'),
        (
            'nlu:\n- intent: fly\n  examples: |\n    - to [rome]{"entity": city}\n',
            r"intent fly, example 1: write entities as",
        ),
        ("nlu:\n- intent: fly\n", "holds no utterances"),
    ],
)
def test_other_yaml_is_refused(tmp_path, content, message):
    with pytest.raises(UsageError, match=message):
        load(tmp_path, "nlu.yml", content)


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
            'items of "rasa_nlu_data.entity_synonyms" that are no utterances, not read: 1',
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
            'items of "entities.city.data" that are no utterances, not read: 1',
        ),
        ([ROME | {"entities": [*ROME["entities"], {"start": 5, "end": 99, "entity": "x"}]}, HI], "not read: 1"),
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
    assert frames(load(tmp_path, "en-US.jsonl", json.dumps(row))) == [
        ("alarm_set", "wake me at nine am", "O O O B-time I-time")
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", '[{"text": "a", "intent": "b"},]', "is not JSON"),
        ("a.json", '[{"text": "a", "intent": "b"}, {"intent": "b"}]', r"list 2: no utterance: give it a text"),
        ("a.json", "{}", "holds no utterances"),
        ("a.json", '[{"text": "a", "intent": "b", "entities": [{"startPos": 0}]}]', '"entities" must be a list'),
        ("a.json", '[{"text": "a", "intent": 3}]', '"intent" must be a string'),
        ("a.xlsx", b"PK", "is a workbook: save its sheet as CSV"),
        ("a.ods", b"PK", "is a workbook"),
    ],
)
def test_what_is_no_corpus_is_refused(tmp_path, name, content, message):
    with pytest.raises(UsageError, match=message):
        load(tmp_path, name, content)


# --- Slots, names of the catalogue, data show ---


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"tokens": ["hi"], "tags": ["O"], "intent": "greet"}'),
        ("a.json", json.dumps([HI])),
    ],
)
def test_a_corpus_without_a_slot_is_said(tmp_path, name, content):
    assert "every tag of the corpus is O: there is no slot to learn, and slot F1 is none" in notes(
        load(tmp_path, name, content)
    )


@pytest.mark.parametrize("name", ["atis", "snips", "nlu-eval", "smart-home"])
def test_a_folder_with_a_corpus_wins_over_a_name_of_the_catalogue(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name / "train").mkdir(parents=True)
    for file in ("seq.in", "label"):
        (tmp_path / name / "train" / file).write_text("hi\n")
    corpus = load_corpus(name)
    assert frames(corpus) == [("hi", "hi", "")]
    assert not corpus.labels_declared
    assert corpus.warnings[0] == f"the folder {name} was read, not the corpus of that name"
    (tmp_path / name / "train" / "seq.in").unlink()  # such as the folder of a run
    if name == "smart-home":
        assert load_corpus(name).labels_declared


def test_data_show_prints_what_would_be_read(cli, tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("frage;thema;kunde\n" + "".join(f"spiel lied {k};play;7\nhalt {k};stop;7\n" for k in range(10)))
    status, out, _ = cli("data", "show", str(file), "--columns", "frage,thema")
    assert status == 0
    for shown in ("utterances", "20", "2 intents", "play 10, stop 10", "spiel lied 0", '"kunde" is not read'):
        assert shown in out
    answer = json.loads(cli("data", "show", str(file), "--columns", "frage,thema", "--json")[1])
    assert (answer["utterances"], answer["intents"], len(answer["examples"])) == (20, {"play": 10, "stop": 10}, 5)
    assert "utterances of a table split at ';': 20" in answer["warnings"][0]


def test_the_record_of_a_run_has_the_whole_path_and_the_columns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    load(tmp_path, "a.csv", "frage,thema\nhi,greet\n", "frage,thema")
    for name in ("a.csv", "a.csv[frage,thema]"):
        assert settled(TrainConfig(name), 1e-5)["corpus"] == str(tmp_path / name)
    assert settled(TrainConfig("atis"), 1e-5)["corpus"] == "atis"
    (tmp_path / "atis").mkdir()
    (tmp_path / "atis" / "seq.in").write_text("hi\n")
    assert settled(TrainConfig("atis"), 1e-5)["corpus"] == str(tmp_path / "atis")


def test_no_utterance_is_lost_to_a_missing_blank_line_or_a_second_list(tmp_path):
    (tmp_path / "a.conll").write_text("# intent: go\nfly O\n# intent: stop\nhalt O\n\n")
    with pytest.raises(UsageError, match="line 3: an intent within an utterance: put a blank line before it"):
        load_corpus(tmp_path / "a.conll")
    one = "nlu:\n- intent: go\n  examples: |\n    - fly [oslo](city\n- intent: stop\n"
    (tmp_path / "nlu.yml").write_text(one)
    notes = load_corpus(tmp_path / "nlu.yml").warnings
    assert any("a bracket that marks no entity" in note for note in notes)
    assert any("intents without examples" in note for note in notes)
    (tmp_path / "nlu.yml").write_text(one + one)
    with pytest.raises(UsageError, match="has a key twice"):
        load_corpus(tmp_path / "nlu.yml")
