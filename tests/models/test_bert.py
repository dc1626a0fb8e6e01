"""BERT: alignment of word pieces with words, independence of examples, and loading of pretrained weights, or the reason
for its failure."""

import json
import os
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from transformers import AutoModel, AutoTokenizer, BertForMaskedLM, BertModel

from edp_lab.corpora import encoding
from edp_lab.corpora.encoding import SPECIAL, Labels, PieceFeatures, train_wordpieces, wordpiece_tokenizer
from edp_lab.errors import UsageError
from edp_lab.models import bert as bert_module
from edp_lab.models.bert import BertIntentSlot, BertSize, bert_config, encode_pieces, load_bert, load_tokenizer
from edp_lab.models.ghost_clipping.ops import MicroBatchOps

VOCABULARY = [*SPECIAL, "a", "b", "c", "##a", "##b", "##c", "turn", "on", "light", "##s", "!", "x", "##x"]
TINY = BertSize(layers=2, heads=2, hidden=8, intermediate=16, positions=24)
LABELS = Labels(("off", "on"), ("O", "B-room", "I-room"))
CLS, SEP, UNK = (VOCABULARY.index(p) for p in ("[CLS]", "[SEP]", "[UNK]"))

words = st.text("abcxq!", min_size=1, max_size=12) | st.sampled_from(
    ["turn", "Lights", "\u200b", "\x00", "naïve", "北京"]
)
sentences = st.lists(words, min_size=1, max_size=22)


def features(positions: int = TINY.positions) -> PieceFeatures:
    return PieceFeatures(wordpiece_tokenizer(VOCABULARY), positions)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(bert_module, "CHUNK", 2)


def random_bert(scale: float = 0.5, size: BertSize = TINY, **changes: object) -> BertModel:
    """A BERT with weights large enough for attention, shifts and scales to matter."""
    torch.manual_seed(3)
    bert = BertModel(bert_config({**size.architecture(len(VOCABULARY)), **changes}), add_pooling_layer=False)
    for parameter in bert.parameters():
        parameter.data += scale * torch.randn_like(parameter)
    return bert


def model() -> BertIntentSlot:
    return BertIntentSlot(LABELS, features(), random_bert(0)).double()


def split(ragged, example: int) -> np.ndarray:
    return ragged.values[ragged.offsets[example] : ragged.offsets[example + 1]]


def save_pretrained(folder: Path, **changes: object) -> None:
    torch.manual_seed(1)
    config = bert_config({**TINY.architecture(len(VOCABULARY)), **changes})
    BertForMaskedLM(config).save_pretrained(folder)
    wordpiece_tokenizer(VOCABULARY).save(str(folder / "tokenizer.json"))


@given(st.lists(sentences, min_size=1, max_size=4))
def test_every_word_points_at_its_own_first_piece_and_short_utterances_are_cut_as_bert_cuts_running_text(tokens):
    rows, tokenizer = features().rows(tokens), wordpiece_tokenizer(VOCABULARY)
    for k, sentence in enumerate(tokens):
        pieces, first = split(rows["pieces"], k), split(rows["words"], k)
        assert len(first) == len(sentence)
        assert (pieces[0], pieces[-1]) == (CLS, SEP)
        assert len(pieces) <= TINY.positions
        for place, word in zip(first, sentence, strict=True):
            assert pieces[place] == (tokenizer.encode(word, add_special_tokens=False).ids or [UNK])[0]
        whole = tokenizer.encode(sentence, is_pretokenized=True).ids
        if len(whole) <= TINY.positions and UNK not in whole and all(w.isascii() and w.isprintable() for w in sentence):
            assert pieces.tolist() == whole


def test_a_long_utterance_loses_the_ends_of_its_long_words_and_no_word():
    rows = features(positions=10).rows([["aaaaaaaaaa", "b", "ccccc", "x"]])
    pieces = [VOCABULARY[p] for p in split(rows["pieces"], 0)]
    assert pieces == ["[CLS]", "a", "##a", "##a", "b", "c", "##c", "##c", "x", "[SEP]"]
    assert split(rows["words"], 0).tolist() == [1, 4, 5, 8]
    with pytest.raises(UsageError, match=r"'a a a a a \.\.\.' has 23 words, but this BERT model reads at most 22"):
        features().rows([["a"] * 23])


def test_wordpieces_are_a_function_of_the_text_and_cover_it():
    text = [[f"w{a}{b}x{(a * b) % 7}", "Play", "é", "b" * (a + 1)] for a in range(9) for b in range(9)]
    assert len({train_wordpieces(text, 120).to_str() for _ in range(5)}) == 1  # 5 results with the trainer alone
    text = [["Turn", "the", "café", "lights", "on!"], ["turn", "up"]] * 2
    tokenizer = train_wordpieces(text)
    rows = PieceFeatures(tokenizer).rows(text)
    assert tokenizer.token_to_id("[UNK]") not in rows["pieces"].values
    assert tokenizer.token_to_id("turn") in rows["pieces"].values
    assert [tokenizer.token_to_id(p) for p in SPECIAL] == list(range(5))


each_batch = pytest.mark.parametrize("counts", [[1], [5], [3, 24, 1, 7, 7], [24, 24, 2, 9, 1, 1, 16], [4] * 5], ids=str)


def random_pieces(counts: list[int]) -> torch.Tensor:
    """Random flat word pieces without [PAD]."""
    return torch.randint(1, len(VOCABULARY), (sum(counts),), generator=torch.Generator().manual_seed(len(counts)))


def by_transformers(bert: BertModel, pieces: torch.Tensor, counts: list[int]) -> torch.Tensor:
    """BertModel's own output for a padded batch with its attention mask, without the padding."""
    ids = torch.nn.utils.rnn.pad_sequence(list(pieces.split(counts)), batch_first=True)
    mask = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
    return bert(input_ids=ids, attention_mask=mask.long()).last_hidden_state[mask]


@each_batch
@pytest.mark.parametrize(
    ("bert", "rounding"),
    [
        (lambda: random_bert().double(), 1e-12),
        (lambda: random_bert(hidden_act="relu").double(), 1e-12),
        (lambda: random_bert(layer_norm_eps=0.1).double(), 1e-12),
        (lambda: random_bert(0), 1e-6),
        (lambda: random_bert(0, BertSize(positions=24)), 4e-6),
    ],
    ids=["float64", "relu", "layer norm", "float32", "the paper's size"],
)
def test_the_forward_pass_is_that_of_transformers_on_a_padded_batch(counts, bert, rounding):
    pieces, bert = random_pieces(counts), bert()
    ours, theirs = encode_pieces(bert, pieces, torch.tensor(counts)), by_transformers(bert, pieces, counts)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=rounding)  # and of the same dtype


@each_batch
def test_parameter_gradients_are_those_of_transformers(counts):
    """Compared with plain autograd, which reaches every parameter in transformers, and with the stored factors."""
    pieces, bert = random_pieces(counts), random_bert().double()
    parameters = list(bert.parameters())
    direction = torch.randn(len(pieces), TINY.hidden, dtype=torch.float64)
    theirs = torch.autograd.grad((by_transformers(bert, pieces, counts) * direction).sum(), parameters)
    ours = torch.autograd.grad((encode_pieces(bert, pieces, torch.tensor(counts)) * direction).sum(), parameters)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    ops = MicroBatchOps(parameters, [len(counts)])
    (encode_pieces(bert, pieces, torch.tensor(counts), ops) * direction).sum().backward()
    summed = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    ops.add_weighted_sum(summed)
    torch.testing.assert_close(summed, torch.cat([g.flatten() for g in theirs]), rtol=1e-9, atol=1e-9)


def test_pretrained_weights_from_a_folder(tmp_path, capfd):
    save_pretrained(tmp_path)
    capfd.readouterr()
    bert, tokenizer = load_bert(str(tmp_path))
    assert capfd.readouterr() == ("", "")
    reference = AutoModel.from_pretrained(tmp_path, add_pooling_layer=False).eval()
    ids = torch.tensor([[CLS, 5, 8, 11, SEP]])
    ours, theirs = encode_pieces(bert, ids[0], torch.tensor([5])), reference(input_ids=ids).last_hidden_state[0]
    torch.testing.assert_close(ours, theirs)
    assert tokenizer.encode("turn on").ids == [CLS, 11, 12, SEP]
    assert bert.config.hidden_dropout_prob == bert.config.attention_probs_dropout_prob == 0
    BertForMaskedLM.from_pretrained(tmp_path).half().save_pretrained(tmp_path)
    assert load_bert(str(tmp_path))[0].dtype is bert.dtype is torch.float32


@pytest.mark.parametrize("setting", [None, True, False])
def test_a_vocabulary_file_is_lower_cased_unless_it_says_otherwise(tmp_path, setting):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, "turn", "Turn"]) + "\n")
    if setting is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": setting}))
    tokens = load_tokenizer(str(tmp_path)).encode("Turn", add_special_tokens=False).tokens
    assert tokens == ["Turn" if setting is False else "turn"]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    assert AutoTokenizer.from_pretrained(tmp_path).tokenize("Turn") == tokens


def test_padding_and_truncation_of_a_tokenizer_are_turned_off_and_missing_special_pieces_refused(tmp_path):
    tokenizer = wordpiece_tokenizer(VOCABULARY)
    tokenizer.enable_padding(length=9)
    tokenizer.enable_truncation(2)
    assert len(encoding.parse_tokenizer(tokenizer.to_str()).encode("turn on light a b").ids) == 7
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nturn\n")
    with pytest.raises(UsageError, match=r"no \[MASK\] piece"):
        load_tokenizer(str(tmp_path))


def pickle_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"x": torch.zeros(1)}, folder / "pytorch_model.bin")


def half_as_wide(folder: Path) -> None:
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"hidden_size": 8', '"hidden_size": 4'))


OTHER = {"distilbert.embeddings.weight": torch.zeros(3)}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: os.truncate(f / "model.safetensors", 2000), "no pretrained BERT can be loaded from"),
        (pickle_weights, "no file named model.safetensors"),
        (lambda f: (f / "config.json").unlink(), "contains no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "no pretrained BERT can be loaded"),
        (lambda f: (f / "tokenizer.json").unlink(), "neither tokenizer.json nor vocab.txt"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "no pretrained BERT can be loaded"),
        (lambda f: save_file(OTHER, f / "model.safetensors", {"format": "pt"}), "lack BERT's"),
        (lambda f: save_pretrained(f, vocab_size=7), "18 pieces, but its weights have only 7"),
        (half_as_wide, "in a shape that contradicts config.json"),
    ],
)
def test_a_damaged_folder_gives_one_sentence(tmp_path, damage, message):
    folder = tmp_path / "weights"
    save_pretrained(folder)
    damage(folder)
    with pytest.raises(UsageError, match=message) as caught:
        load_bert(str(folder))
    assert "\n" not in str(caught.value)


def test_a_hub_name_without_a_network_points_to_pretrain_and_what_cannot_be_one_is_not_asked_of_the_hub(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("time.sleep", between_trials := Mock())
    for offline in (False, True):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
        with pytest.raises(UsageError, match=r"'nobody/no-such-model'.*edp-lab pretrain`"):
            load_bert("nobody/no-such-model")
    assert not between_trials.called
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for name in ("no such", "/nowhere/x", "../x", "a/b/c", "runs/none"):
        with pytest.raises(UsageError, match="neither a folder nor a hub name"):
            load_bert(name)
