"""Word vectors: fastText's text files as gensim reads them, our own folder, and clear messages about damaged files."""

import pickle
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

from edp_lab.errors import UsageError
from edp_lab.models.bert import BertSize, load_bert
from edp_lab.models.vectors import WordVectors, load_vectors, train_vectors
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
    model.wv.save_word2vec_format(str(folder / "v.vec"))
    model.save(str(folder / "v.model"))
    return folder


def test_a_file_is_read_as_gensim_reads_it(fasttext_files):
    path = str(fasttext_files / "v.vec")
    reference, ours, first = KeyedVectors.load_word2vec_format(path), load_vectors(path), load_vectors(path, most=3)
    assert list(ours.words) == reference.index_to_key
    assert ours.matrix.dtype is torch.float32
    np.testing.assert_allclose(ours.matrix, reference.vectors, rtol=1e-5, atol=1e-7)
    assert (first.words, len(first.matrix)) == (ours.words[:3], 3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=words, data=st.data())
def test_a_text_file_gives_back_what_was_written(tmp_path, words, data):
    words = list(dict.fromkeys(words)) or ["x"]
    matrix = data.draw(arrays.arrays(np.float32, (len(words), 3), elements=finite))
    lines = [f"{w} {' '.join(repr(float(x)) for x in row)} " for w, row in zip(words, matrix, strict=True)]
    lines.insert(0, f"{len(words)} 3")
    (tmp_path / "v.vec").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    read = load_vectors(tmp_path / "v.vec")
    assert read.words == tuple(words)
    np.testing.assert_array_equal(read.matrix, matrix)


def test_repeated_words_line_ends_and_lower_case(tmp_path):
    (tmp_path / "v.vec").write_bytes(b"4 2\r\nthe 3 4\r\n. 1 2\r\nthe 5 6\r\nb\xff 7 8\r\n")
    read = load_vectors(tmp_path / "v.vec")
    assert read.words == ("the", ".", "b\ufffd")
    assert read.matrix.tolist() == [[3, 4], [1, 2], [7, 8]]
    lower = WordVectors(("the", "Paris", "The", "paris"), torch.arange(4.0)[:, None]).lower_cased()
    assert (lower.words, lower.matrix.tolist()) == (("the", "paris"), [[0.0], [1.0]])


BAD_TEXT = {
    "the 0.1 0.2\nof 0.1\n": "is not a complete .vec file",
    "2 2\nthe 0.1 0.2\nof 0.1 zwei\n": "'zwei'",
    "2 2\nthe 0.1 0.2\nof nan 0.3\n": "the vector of 'of' is not finite",
    "5 2\nthe 0.1 0.2\n": "unexpected end",
    "": "is not a complete .vec file",
    "0 2\n": "0 words",
}


@pytest.mark.parametrize("text", BAD_TEXT)
def test_a_malformed_text_file_is_refused(tmp_path, text):
    path = tmp_path / "bad.vec"
    path.write_text(text)
    with pytest.raises(UsageError, match=BAD_TEXT[text]):
        load_vectors(path)


def test_pickles_are_refused_unopened(fasttext_files, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    (tmp_path / "v.model").write_bytes(pickle.dumps(Bomb()))
    for path in (fasttext_files / "v.model", tmp_path / "v.model"):
        with pytest.raises(UsageError, match=r"not a \.vec file"):
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


# ---- Fewer layers of a published encoder -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("encoder") / "bert"
    size = BertSize(layers=3, heads=2, hidden=8, intermediate=12, positions=24)
    pretrain_bert([("turn", "on", "the", "lights", "!")] * 3, folder, epochs=1, size=size)
    return folder


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
