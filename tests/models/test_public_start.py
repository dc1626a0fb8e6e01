"""Public starting models: which labels are similar by name, which weights are taken over, and what is unknown."""

import re
import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from edp_lab.corpora.corpus import Corpus, Utterance
from edp_lab.corpora.encoding import Labels, WordFeatures, hashed
from edp_lab.corpora.smart_home import everyday, related
from edp_lab.errors import UsageError
from edp_lab.models import public_start
from edp_lab.models.clc import CLC, CLCSize
from edp_lab.models.factory import build_model, load_model, save_model, seeded
from edp_lab.models.ghost_clipping.ops import PLAIN
from edp_lab.models.private_heads import OTHER_WORD, SHARPNESS, LabelNameFeatures, Names, Whitening, label_words
from edp_lab.models.public_start import load_start, start_for, warm_start, whitened
from edp_lab.training.pretraining import Neighbours, _prefixed, pretrain_start

SIZE = CLCSize(hidden=8, layers=1, word=16, filters=4, character=4, dropout=0.0)
DISGUISES = (
    lambda text: text.replace(" ", "").replace("i", "\u0130").replace("ss", "\xdf"),
    lambda text: " ".join(text.upper().replace("I", "\u0131")),  # one token per character
    lambda text: "\u200b-".join(unicodedata.normalize("NFC", re.sub("([aeiou])", "\\1\u0301", text))),
    lambda text: "\u02bc ".join(re.sub(r"\W", " ", text).split()).translate({c: c + 0xFEE0 for c in range(33, 127)}),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("starts") / "own"
    pretrain_start({"everyday": everyday(400)}, out, epochs=2, size=SIZE)
    return out


def test_everyday_commands_are_the_same_everywhere_and_hold_nothing_of_the_notation():
    corpus = everyday(3000)
    assert corpus.sha256 == everyday(3000).sha256 != everyday(3000, seed=1).sha256
    assert everyday(3000).sha256.startswith("64cf21a10c9907fd"), (
        "the draws have changed: the starts that come with edp_lab would, too"
    )
    assert not {c for one in corpus.utterances for c in one.text} & set("<>{}()|[]=")
    for one in corpus.utterances:
        tags = ("O", *(one.tags or ()))
        assert all(tag[0] != "I" or before[1:] == tag[1:] for before, tag in pairwise(tags))
    with pytest.raises(UsageError, match="at least 1"):
        everyday(0)


def test_labels_that_the_start_knows_are_taken_over_but_for_their_strength(folder):
    """With its own labels, a starting model reads sentences as before and predicts the same labels less surely."""
    start = load_start(str(folder))
    data = start.dataset([_prefixed(one, "everyday") for one in everyday(400).utterances[:20]])
    batch = data.batch(range(20))
    model = warm_start(start, start.labels)
    for own, other in zip(start.encode(batch, PLAIN, None), model.encode(batch, PLAIN, None), strict=True):
        torch.testing.assert_close(own, other)
    for own, other in ((start.intent, model.intent), (start.slots, model.slots)):
        assert torch.corrcoef(torch.stack([own.weight.flatten(), other.weight.flatten()]))[0, 1] > 0.9
        assert float((other.weight.norm() / own.weight.norm()).detach()) == pytest.approx(
            public_start.HEAD_SCALE, rel=0.2
        )
    near = Names(start.features.words, start.words.weight[:-1]).nearness(*[start.labels.intents] * 2)
    assert near.argmax(1).tolist() == list(range(len(near)))


def test_heads_read_what_public_text_has_whitened_and_say_the_same():
    spoken = everyday(400)
    words = WordFeatures(tuple(sorted({word for one in spoken.utterances for word in one.tokens})), 1)
    with seeded(0):
        plain = CLC(Labels.of(spoken), words, SIZE, torch.randn(len(words.words), SIZE.word))
    batch = plain.dataset(spoken.utterances).batch(range(400))
    model = whitened(plain, plain.dataset(spoken.utterances))
    for old, new in zip(plain.scores(batch)[:2], model.scores(batch)[:2], strict=True):
        torch.testing.assert_close(old, new, atol=1e-3, rtol=1e-3)
    features, stretched = model.encode(batch, PLAIN, None), (model.pooled_view, model.token_view)
    for read, view in zip(features, stretched, strict=True):
        assert read.mean(0).abs().max() < 1e-4 * read.std()
        even = Whitening(read.shape[1])
        even.fit(read.detach() @ torch.linalg.inv(view.map))
        variances = torch.linalg.eigvalsh(torch.cov(even(read.detach() @ torch.linalg.inv(view.map)).T))
        assert variances[-1] < 4 * variances.median()  # before: about 50 times


def test_what_tells_public_labels_apart_is_favoured():
    view = Whitening(4)
    view.favour(torch.tensor([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]]))
    stretched = torch.tensor([4 + Whitening.EVEN, *[Whitening.EVEN] * 3]) / (1 + Whitening.EVEN)
    torch.testing.assert_close(view.map, stretched.sqrt().diag())  # the same mean length as before


def test_vectors_read_related_words_in_several_orders():
    lines = related(3)
    count = len(lines) // 3
    orders = [lines[k * count : (k + 1) * count] for k in range(3)]
    assert all(sorted(one) == sorted(other) for same in zip(*orders, strict=True) for one, other in pairwise(same))
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert related(3) == lines != related(3, seed=1)
    assert all(len(line) > 3 and " ".join(line).islower() for line in lines)


def test_nothing_of_the_private_text_is_read(folder):
    labels = Labels(("book_flight", "zzz"), ("O", "B-from_city", "I-from_city", "B-qqq", "I-qqq"))
    made = [
        build_model(
            "clc", labels, seed=0, training=text, private=True, pretrained=str(folder), frozen=True
        ).state_dict()
        for text in ((), [Utterance(("secret",), ("O",), "zzz")])
    ]
    assert all(torch.equal(made[0][name], made[1][name]) for name in made[0])
    assert all(tensor.isfinite().all() for tensor in made[0].values())


def test_a_damaged_start_is_refused(folder, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in folder.iterdir():
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        (broken / file.name).write_bytes(content if file.suffix != ".json" else file.read_bytes())
    with pytest.raises(UsageError, match="damaged"):
        load_start(str(broken))
    about, sealed = broken / public_start.ABOUT, (folder / public_start.ABOUT).read_text()
    for wrong in ("[]", sealed.replace('"seen"', '"heard"')):
        about.write_text(wrong)
        with pytest.raises(UsageError, match=r"no intact seen_letters.u4"):
            public_start.check_unseen(str(broken), ["hello"])
    about.write_text(sealed)
    for _ in ("damaged", "missing"):
        with pytest.raises(UsageError, match=r"no intact seen_letters.u4, .*: restore it, or make .* again"):
            public_start.check_unseen(str(broken), ["hello"])
        (broken / public_start.SEEN).unlink(missing_ok=True)
    public_start.save_start(load_start(str(folder)), broken, (), ())
    public_start.check_unseen(str(broken), ["an empty list is one"])


def test_the_start_is_chosen_by_the_name_alone_and_refused_for_what_it_has_seen(folder):
    chosen = {"snips": 1, "/data/nlu-eval": 2, "atis": 0, "snips.jsonl": 0, "own": 0}
    assert {corpus: public_start.NAMES.index(start_for(corpus)) for corpus in chosen} == chosen
    seen = [*dict.fromkeys(one.text for one in everyday(400).utterances)]
    public_start.check_unseen(str(folder), [*(f"unheard {k}" for k in range(95)), *seen[:5]])
    heard = [seen[0].upper(), seen[0], *(f"{one.upper()} ?" for one in seen[1:6])]
    refused = f"has read 6% .* such as {seen[0]!r}, .* give --pretrained public-start or public-.*out"
    with pytest.raises(UsageError, match=refused):
        public_start.check_unseen(str(folder), [*(f"unheard {k}" for k in range(94)), *heard])
    for disguise in (*DISGUISES, "17. {}".format, "{} [EOS]\u0345".format):
        with pytest.raises(UsageError, match="has read 100%"):
            public_start.check_unseen(str(folder), map(disguise, seen))
    assert len({*public_start.utterance_keys(["?!", "\u2665 \u2665", "\u2665\u2665", "..", "7", "a7"])}) == 5


@pytest.mark.parametrize("name", public_start.NAMES)
def test_the_starts_that_come_with_edp_lab(name):
    start = load_start(name)
    labels = Labels(("book_flight", "play_music"), ("O", "B-fromloc.city_name", "I-fromloc.city_name"))
    assert warm_start(start, labels).intent.weight.isfinite().all()
    without = name.removeprefix("public-start-without-")
    assert all(not line.startswith(f"{without}:") for line in public_start.made_of(name))
    assert sum(file.stat().st_size for file in public_start.start_folder(name).iterdir()) < 8 * 2**20


def test_no_start_has_seen_the_corpus_that_it_is_named_without(real_data):
    from edp_lab.corpora.catalog import load_corpus

    for corpus in ("atis", "snips", "nlu-eval"):
        texts = [one.text for one in load_corpus(corpus).utterances]
        public_start.check_unseen(start_for(corpus), texts)
        for disguise in (str, *DISGUISES):
            keys = public_start.utterance_keys(map(disguise, texts))
            shares = [public_start.seen(name, keys).mean() for name in public_start.NAMES]
            assert max(shares) < 0.01 if corpus == "atis" else max(shares) == 1, shares


def test_text_without_labels_is_read_and_told_of(tmp_path):
    text = Corpus("text", tuple(Utterance((a, b), None, "any") for a in "abc" for b in "def"), ("any",), ())
    pretrain_start({"everyday": everyday(100)}, tmp_path / "read", {"text": text}, epochs=1, size=SIZE)
    start = str(tmp_path / "read")
    assert public_start.made_of(start)[1] == "text: 9 utterances without labels"
    assert public_start.seen(start, public_start.utterance_keys(["A f"])).all()
    assert all(label.startswith("everyday/") for label in load_start(start).labels.intents)


def test_neighbours_are_the_next_word_and_the_one_before_of_the_same_sentence(folder):
    model = load_start(str(folder))
    neighbours = Neighbours(model)
    neighbours.common = 30 * torch.eye(SIZE.hidden)  # word k is represented by its k-th number
    for way in neighbours.ways:
        way.weight, way.bias = nn.Parameter(torch.eye(SIZE.hidden)), nn.Parameter(torch.zeros(SIZE.hidden))
    words, lengths = torch.tensor([0, 1, 2, 3, 4]), torch.tensor([3, 2])
    after, before = torch.tensor([1, 2, 5, 4, 5]), torch.tensor([5, 0, 1, 5, 3])  # 5: no neighbour is predicted
    read = torch.cat([torch.eye(SIZE.hidden)[after], torch.eye(SIZE.hidden)[before]], 1)
    assert neighbours(read, words, lengths) < 1e-6
    assert neighbours(read.roll(SIZE.hidden, 1), words, lengths) > 100  # directions swapped


def test_a_model_whose_heads_read_other_words_is_refused(folder, tmp_path, monkeypatch):
    labels = Labels(("a", "b"), ())  # with slots, the tensors would differ, too
    save_model(build_model("clc", labels, seed=0, private=True, pretrained=str(folder), frozen=True), tmp_path)
    load_model(tmp_path)
    for older in (1, 3):
        monkeypatch.setattr(LabelNameFeatures, "FORM", older)
        with pytest.raises(UsageError, match="train it again"):
            load_model(tmp_path)


def test_corpora_without_slots_make_no_start(tmp_path):
    bare = Corpus("bare", (Utterance(("hi",), None, "greet"),), ("greet",), ())
    with pytest.raises(UsageError, match="no slots"):
        pretrain_start({"bare": bare}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_frozen_start_learns_by_its_heads_alone_and_reads_an_utterance_once(folder, tmp_path, monkeypatch):
    spoken = everyday(40)
    labels = Labels.of(spoken)
    free, kept = (
        build_model("clc", labels, seed=0, private=True, pretrained=str(folder), frozen=frozen, size={"dropout": 0.0})
        for frozen in (False, True)
    )
    for model in (free, kept):
        data = model.dataset(spoken.utterances)
        model.losses(data.batch(range(40)), PLAIN).sum().backward()
    before = dict(free.named_parameters())
    for name, other in kept.named_parameters():
        assert (other.grad is not None) == name.startswith(("intent", "slot", "crf")), name
        if name.startswith(("slots", "crf")):  # words contribute nothing to slots initially
            assert torch.allclose(before[name].grad, other.grad, atol=1e-4)
    known, places, named = kept.intent.weight.split(
        [free.intent.in_features, public_start.PLACES, len(labels.intents)], 1
    )
    assert torch.equal(known, free.intent.weight)
    assert not places.any()
    assert torch.equal(named, public_start.NAME_LOGIT * torch.eye(len(labels.intents)))
    assert not kept.slot_words.weight.any()
    assert not kept.slot_intents.weight.any()
    with torch.no_grad():
        for head in (kept.intent, kept.slot_words, kept.slot_intents):  # make the heads use all inputs
            head.weight.normal_()
    save_model(kept, tmp_path / "saved")
    predictions, saved = kept.predict(data), load_model(tmp_path / "saved")
    for prediction, other in zip(saved.predict(saved.dataset(spoken.utterances)), predictions, strict=True):
        assert (prediction.intent, prediction.tags) == (other.intent, other.tags)
        assert prediction.intent_probability == pytest.approx(other.intent_probability, rel=1e-3)
    assert len(saved.predict(saved.dataset(spoken.utterances[:1]))) == 1
    kept.intent_weight = 0.0
    kept.zero_grad()
    kept.losses(data.batch(range(40))).sum().backward()
    assert kept.slot_intents.weight.grad.any()  # the slot loss uses the predicted intent
    assert not kept.intent.weight.grad.any()  # but does not train the intent head
    monkeypatch.setattr(kept, "_spelling", None)  # no features are computed again
    assert kept.predict(data) == predictions
    with pytest.raises(UsageError, match="--pretrained"):
        build_model("clc", labels, seed=0, private=True, frozen=True)


# ---- Label names: their similarity, and how much of them an utterance contains ---------------------------------------


KNOWN = WordFeatures(("the", "book", "flight", "plane", "stop"), buckets=16)


def test_a_name_is_cut_into_words():
    known = {"from", "loc", "city", "name", "play", "music"}
    assert label_words("fromloc.city_name", known) == ["from", "loc", "city", "name"]
    assert label_words("home/PlayMusic", known) == ["play", "music"]
    assert label_words("snips/zzyzx", known) == ["zzyzx"]
    assert label_words("Straßen_Größe2", known) == ["straßen", "größe"]


def test_the_same_name_is_nearest_and_from_is_not_to():
    words = ["from", "to", "city", "name", "rain"]
    vectors = torch.eye(5) + 0.1
    vectors[0] = vectors[1] + 0.3 * torch.randn(5, generator=torch.Generator().manual_seed(0))  # used similarly
    near = Names(words, vectors).nearness(["fromcity", "rain"], ["x/from_city", "x/to_city", "x/weather.rain"])
    assert near.sum(1).tolist() == pytest.approx([1, 1])
    assert near.argmax(1).tolist() == [0, 2]


def said(text: str, labels: tuple[str, ...], vectors: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of an utterance between two others: its words, and how much of each label name it contains."""
    model = LabelNameFeatures(KNOWN, labels)
    sentences = [["the"], text.split(), ["stop"]]
    numbers = torch.from_numpy(KNOWN.rows(sentences)["words"].values)
    table = torch.eye(len(KNOWN.words) + KNOWN.buckets) if vectors is None else vectors
    read = model(numbers, torch.tensor([len(words) for words in sentences]), table)[1]
    assert model.size == len(read)
    return read[: KNOWN.buckets], read[KNOWN.buckets :]


def test_which_words_there_are_counts_not_how_often_or_in_which_order():
    first, again = said("book the Flight", ())[0], said("flight flight the book book", ())[0]
    assert torch.equal(first, again)
    assert first.count_nonzero() == 3
    assert first.norm() == pytest.approx(LabelNameFeatures.LENGTH)
    assert not torch.equal(first, said("book the plane", ())[0])
    assert not torch.equal(said("zyx", ())[0], said("yxz", ())[0])  # words without a vector are also distinguished


def test_common_words_count_less_and_the_rarest_of_those_that_share_a_place_counts():
    alone, both = said("book", ())[0], said("the flight", ())[0]
    assert alone.max() == pytest.approx(LabelNameFeatures.LENGTH)
    the, flight = both[both > 0].sort().values.tolist()
    assert the / flight == pytest.approx((1 / 11) / (3 / 13))
    words = next(f"x{k}" for k in range(99) if hashed(f"x{k}", 16) == hashed("the", 16)), "flight"
    shared = (said(" ".join(order), ())[0] for order in (("the", *words), (*words, "the")))
    for read in shared:
        the, flight = (read[hashed(word, 16)].item() for word in ("the", "flight"))
        assert flight / the == pytest.approx(3 / 13)  # an unknown word counts as the rarest


def test_a_name_is_said_by_its_words_of_which_the_rare_count_more():
    labels = ("book_flight", "cancelFlight", "123")
    booked, cancelled, nothing = said("book the flight", labels)[1].tolist()
    assert booked == pytest.approx(1)
    assert 0 < cancelled < 0.5  # both names contain "flight"
    assert nothing == 0
    assert said("cancel flight", labels)[1][1] == pytest.approx(1)  # "cancel" has no vector
    assert said("cancel flight", ("1", "2"))[1].tolist() == [0, 0]


def test_a_word_that_is_used_alike_stands_in_for_one_of_the_name():
    vectors = torch.eye(len(KNOWN.words) + KNOWN.buckets)
    vectors[3, 2] = 1  # "plane", at 45 degrees to "flight"
    assert said("the plane", ("flight",), vectors)[1].item() == pytest.approx(OTHER_WORD * 0.5 ** (SHARPNESS / 2))


def test_a_slot_hears_a_word_and_its_neighbours_of_the_same_utterance():
    model, words = LabelNameFeatures(KNOWN, ()), torch.tensor([0, 1, 2, 3])
    place = model.place[words]
    third = model.places + 1
    assert model.near(words, torch.tensor([3, 1])).tolist() == [
        [place[0] + 1, third, 2 * third + place[1] + 1],
        [place[1] + 1, third + place[0] + 1, 2 * third + place[2] + 1],
        [place[2] + 1, third + place[1] + 1, 2 * third],
        [place[3] + 1, third, 2 * third],
    ]
    assert model.rows == 3 * third
