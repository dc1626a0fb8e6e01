"""Word vectors: fastText's two formats as gensim reads them, our own folder, and plain words about what is
damaged."""

import pickle
import struct
from contextlib import suppress
from pathlib import Path

import gensim.models.fasttext as gensim_fasttext
import numpy as np
import pytest
import safetensors.torch
import torch
from gensim.models import KeyedVectors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from transformers import BertModel

from edp_lab.corpora import Utterance
from edp_lab.corpora.encoding import Labels
from edp_lab.errors import UsageError
from edp_lab.models import build_model, frozen_encoder
from edp_lab.models.bert import BertSize, load_bert
from edp_lab.models.clc import CLC
from edp_lab.models.frozen_encoder import ContextFeatures
from edp_lab.models.ghost_clipping.ops import PLAIN
from edp_lab.models.vectors import WordVectors, load_vectors, train_vectors
from edp_lab.training.gradients import trainable
from edp_lab.training.pretraining import pretrain_bert, shorten_bert

SENTENCES = [
    ["Turn", "on", "the", "lights"],
    ["turn", "off", "the", "café", "lamp"],
    ["play", "北京", "radio"],
] * 5

words = st.lists(
    st.text(st.characters(exclude_characters=" \n\r\0", exclude_categories=["Cs"]), min_size=1, max_size=6)
)
finite = st.floats(-1e3, 1e3, width=32)


@pytest.fixture(scope="module")
def fasttext_files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fasttext")
    model = gensim_fasttext.FastText(SENTENCES, vector_size=6, min_count=1, epochs=2, bucket=50, workers=1, seed=1)
    gensim_fasttext.save_facebook_model(model, str(folder / "v.bin"))
    model.wv.save_word2vec_format(str(folder / "v.vec"))
    model.save(str(folder / "v.model"))
    model = gensim_fasttext.FastText(SENTENCES, vector_size=4, min_count=1, epochs=1, max_n=0, workers=1)
    gensim_fasttext.save_facebook_model(model, str(folder / "no subwords.bin"))
    return folder


@pytest.mark.parametrize("file", ["v.bin", "no subwords.bin", "v.vec"])
def test_both_formats_are_read_as_gensim_reads_them(fasttext_files, file):
    path = str(fasttext_files / file)
    read = gensim_fasttext.load_facebook_vectors if file.endswith("bin") else KeyedVectors.load_word2vec_format
    reference, ours, first = read(path), load_vectors(path), load_vectors(path, most=3)
    assert list(ours.words) == reference.index_to_key
    assert ours.matrix.dtype is torch.float32
    np.testing.assert_allclose(ours.matrix, reference.vectors, rtol=1e-5, atol=1e-7)
    assert (first.words, len(first.matrix)) == (ours.words[:3], 3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=words, data=st.data(), header=st.booleans())
def test_a_text_file_gives_back_what_was_written(tmp_path, words, data, header):
    words = list(dict.fromkeys(words)) or ["x"]
    matrix = data.draw(arrays.arrays(np.float32, (len(words), 3), elements=finite))
    lines = [f"{w} {' '.join(repr(float(x)) for x in row)} " for w, row in zip(words, matrix, strict=True)]
    if header:
        lines.insert(0, f"{len(words)} 3")
    (tmp_path / "v.vec").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    read = load_vectors(tmp_path / "v.vec")
    assert read.words == tuple(words)
    np.testing.assert_array_equal(read.matrix, matrix)


def test_spaces_repeated_words_line_ends_and_lower_case(tmp_path):
    (tmp_path / "v.vec").write_bytes(b"the 3 4\r\n. . . 1 2\r\nthe 5 6\r\nb\xff 7 8\r\n")
    read = load_vectors(tmp_path / "v.vec")
    assert read.words == ("the", ". . .", "b\ufffd")
    assert read.matrix.tolist() == [[3, 4], [1, 2], [7, 8]]
    lower = WordVectors(("the", "Paris", "The", "paris"), torch.arange(4.0)[:, None]).lower_cased()
    assert (lower.words, lower.matrix.tolist()) == (("the", "paris"), [[0.0], [1.0]])


BAD_TEXT = {
    "the 0.1 0.2\nof 0.1\n": "line 2: expected a word and 2",
    "2 2\nthe 0.1 0.2\nof 0.1 zwei\n": "line 3: expected a word and 2 numbers",
    "2 2\nthe 0.1 0.2\nof nan 0.3\n": "line 3: expected a word and 2 finite numbers",
    "the 0.1 0.2\n\nof 0.1 0.2\n": "line 2",
    "0.1 0.2\n0.3\n": "line 2",
    "5 2\nthe 0.1 0.2\n": "ends after 1 words, too early",
    "": "ends after 0 words",
    "3 2\n": "ends after 0 words",
    "word\n": "line 1",
    f"{'9' * 5_000} 2\nthe 0.1 0.2\n": "line 1",
}


@pytest.mark.parametrize("text", BAD_TEXT)
def test_a_malformed_text_file_names_file_and_line(tmp_path, text):
    path = tmp_path / "bad.vec"
    path.write_text(text)
    with pytest.raises(UsageError, match=BAD_TEXT[text]) as caught:
        load_vectors(path)
    assert "bad.vec" in str(caught.value)


def test_every_truncation_of_a_binary_file_is_noticed(fasttext_files, tmp_path):
    whole = (fasttext_files / "v.bin").read_bytes()
    output_matrix = len(whole) - (17 + 4 * 6 * len(load_vectors(fasttext_files / "v.bin").words))
    path = tmp_path / "short.bin"
    for length in [*range(0, 700, 7), output_matrix - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(UsageError, match=r"short\.bin"):
            load_vectors(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(4, 500), byte=st.integers(0, 255))
def test_a_damaged_binary_file_never_crashes(fasttext_files, tmp_path, place, byte):
    content = bytearray((fasttext_files / "v.bin").read_bytes())
    content[place] = byte
    (tmp_path / "v.bin").write_bytes(content)
    with suppress(UsageError):
        assert load_vectors(tmp_path / "v.bin").matrix.isfinite().all()


def test_supervised_and_foreign_binary_files_are_refused(fasttext_files, tmp_path):
    content = bytearray((fasttext_files / "v.bin").read_bytes())
    content[72:76] = struct.pack("<i", 2)  # labels
    (tmp_path / "labels.bin").write_bytes(content)
    with pytest.raises(UsageError, match="supervised"):
        load_vectors(tmp_path / "labels.bin")
    (tmp_path / "word2vec.bin").write_bytes(b"3 2\nthe " + bytes(200))
    with pytest.raises(UsageError, match=r"not a fastText \.bin file"):
        load_vectors(tmp_path / "word2vec.bin")


def test_pickles_are_refused_unopened(fasttext_files, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    (tmp_path / "v.model").write_bytes(pickle.dumps(Bomb()))
    for path in (fasttext_files / "v.model", tmp_path / "v.model"):
        with pytest.raises(UsageError, match=r"Python pickle.*save_word2vec_format"):
            load_vectors(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["none.vec", "none", "notes.txt"])
def test_what_is_no_vector_file_is_refused(tmp_path, name):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(UsageError, match=name):
        load_vectors(tmp_path / name)


@pytest.mark.parametrize("file", ["words.json", "vectors.safetensors"])
@pytest.mark.parametrize(
    "content",
    [None, b"", b"{}", b"[1, 2]", b'["a"]', bytes(300), safetensors.torch.save({"vectors": torch.tensor(4.0)})],
)
def test_a_saved_folder_gives_back_the_same_vectors_and_a_damaged_one_one_sentence(tmp_path, file, content):
    vectors = train_vectors(SENTENCES, size=5, epochs=1)
    vectors.save(tmp_path)
    read = load_vectors(tmp_path)
    assert read.words == vectors.words
    assert torch.equal(read.matrix, vectors.matrix)
    assert load_vectors(tmp_path, most=2).words == vectors.words[:2]
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(UsageError) as caught:
        load_vectors(tmp_path)
    assert "\n" not in str(caught.value)


def test_training_is_a_function_of_its_arguments():
    one, two = (train_vectors(SENTENCES, size=5, epochs=2, seed=3) for _ in range(2))
    assert one.words == two.words
    assert torch.equal(one.matrix, two.matrix)
    assert not torch.equal(one.matrix, train_vectors(SENTENCES, size=5, epochs=2, seed=4).matrix)
    assert set(one.words) == {w.lower() for s in SENTENCES for w in s}
    with pytest.raises(UsageError, match="empty"):
        train_vectors([[]])


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (torch.zeros(3, 2), "one row per word"),
        (torch.zeros(2, 0), "one row per word"),
        ([[1.0], [torch.nan]], "'b' is not finite"),
    ],
)
def test_vectors_that_do_not_fit_their_words_are_refused(matrix, message):
    with pytest.raises(UsageError, match=message):
        WordVectors(("a", "b"), torch.as_tensor(matrix))


# ---- A CLC on a frozen encoder: what it reads is transformers' own, utterance by utterance; none of it is trained ----


READ = [("turn", "on", "the", "lights"), ("on",), ("thethelights", "turnon", "!"), ("on", "turn", "xyz")]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("encoder") / "bert"
    size = BertSize(layers=3, heads=2, hidden=8, intermediate=12, positions=24)
    pretrain_bert([("turn", "on", "the", "lights", "!")] * 3, folder, epochs=1, size=size)
    return folder


@pytest.fixture
def features(encoder) -> ContextFeatures:
    return ContextFeatures(*load_bert(str(encoder)))


def vectors(features: ContextFeatures, sentences) -> list[np.ndarray]:
    found = features.rows(sentences)["words"]
    return [found.gather(np.array([k]))[0] for k in range(len(sentences))]


def test_a_words_vector_is_the_mean_over_its_pieces_and_over_transformers_layers(encoder, features):
    peer = BertModel.from_pretrained(encoder, add_pooling_layer=False).eval()
    for sentence, found in zip(READ, vectors(features, READ), strict=True):
        read = features.pieces.rows([sentence])
        pieces, first = read["pieces"].values, read["words"].values
        with torch.no_grad():
            states = peer(torch.from_numpy(pieces)[None], output_hidden_states=True).hidden_states
        mixed = torch.stack(states).mean(0)[0].numpy()
        ends = [*first[1:], len(pieces) - 1]
        expected = [mixed[a:b].mean(0) for a, b in zip(first, ends, strict=True)]
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert len(features.pieces.rows([("thethelights",)])["pieces"].values) > 3  # some pieces


def test_an_utterance_is_encoded_once_while_it_is_remembered_and_as_if_it_were_alone(features, monkeypatch):
    encoded, encode = [], features._encoded
    monkeypatch.setattr(features, "_encoded", lambda sentences: encoded.extend(sentences) or encode(sentences))
    together = vectors(features, [*READ, READ[0]])
    features.rows(READ)
    assert sorted(encoded) == sorted(READ)
    monkeypatch.setattr(frozen_encoder, "KEPT", 4)
    features.rows([("lights",)])
    features.rows([("lights",), READ[1]])
    assert encoded[len(READ) :] == [("lights",), READ[1]]
    monkeypatch.setattr(frozen_encoder, "KEPT", 0)
    for sentence, expected in zip(READ, together, strict=False):
        np.testing.assert_allclose(vectors(features, [sentence])[0], expected, atol=1e-6)


def test_nothing_of_the_encoder_is_trained_and_the_heads_read_it_beside_the_lstm(encoder):
    size, labels = {"hidden": 4, "layers": 1, "character": 2, "filters": 2}, Labels(("lights", "music"), ("O",))
    model = build_model("clc", labels, seed=0, private=True, pretrained=str(encoder), size=size)
    assert isinstance(model, CLC)
    names = [name for name, _ in trainable(model)]
    assert names
    assert not any(name.startswith(("encoder", "words")) for name in names)
    batch = model.dataset([Utterance(s, ("O",) * len(s), "lights") for s in READ]).batch([0, 1, 2, 3])
    model.losses(batch).sum().backward()
    assert all(parameter.grad is not None for _, parameter in trainable(model))
    for parameter in model.lstm.parameters():
        parameter.data.zero_()  # now it says nothing
    pooled, tokens = model.encode(batch, PLAIN, None)
    read = [torch.from_numpy(own) for own in vectors(model.features, READ)]
    assert torch.equal(tokens, torch.cat([torch.zeros(len(tokens), 8), torch.cat(read)], dim=1))
    torch.testing.assert_close(pooled[:, 8:], torch.stack([own.mean(0) for own in read]))
    assert model.double().losses(batch).dtype == torch.float64


def test_the_first_layers_of_an_encoder_give_what_they_gave_within_it(encoder, tmp_path):
    shorten_bert(str(encoder), 2, tmp_path / "short")
    peer = BertModel.from_pretrained(encoder, add_pooling_layer=False).eval()
    short, tokenizer = load_bert(str(tmp_path / "short"))
    assert tokenizer.to_str() == load_bert(str(encoder))[1].to_str()
    pieces = torch.tensor([[2, 7, 9, 3]])
    with torch.no_grad():
        states = peer(pieces, output_hidden_states=True).hidden_states
        assert torch.allclose(short(pieces).last_hidden_state, states[2], atol=1e-6)
    for layers in (0, 4):
        with pytest.raises(UsageError, match="has 3 layers"):
            shorten_bert(str(encoder), layers, tmp_path / "out")
        assert not (tmp_path / "out").exists()
