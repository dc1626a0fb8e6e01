"""Pretraining on a *separate* set of utterances: BERT as a masked language model, fastText word vectors, and the CLC
from which a private run starts (`edp_lab.models.public_start`).

Use this if no published weights are available. A private run may start from the result, because the text comes from
other people or is synthetic. Pretraining is not private: if it uses the text that a run should protect, the run has no
guarantee.

The functions raise UsageError if sentences or epochs are missing, a sentence is too long, or the folder is not empty.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertForMaskedLM, BertTokenizer

from edp_lab.corpora.catalog import list_corpora
from edp_lab.corpora.corpus import Corpus, Ragged, Utterance, tag_set
from edp_lab.corpora.encoding import SPECIAL, Labels, PieceFeatures, WordFeatures, train_wordpieces
from edp_lab.corpora.smart_home import everyday, related
from edp_lab.errors import UsageError
from edp_lab.files import new_folder
from edp_lab.models.bert import BertSize, bert_config, encode_pieces, load_bert, quiet
from edp_lab.models.clc import CLC, CLCSize
from edp_lab.models.factory import seeded
from edp_lab.models.ghost_clipping.ops import PLAIN
from edp_lab.models.public_start import UNKNOWN_WORDS, rounded, save_start, whitened
from edp_lab.models.vectors import DIMENSIONS, WordVectors, train_vectors
from edp_lab.privacy.csprng import Purpose, key_from_seed, stream

VOCABULARY = 8000  # maximum number of word pieces
BATCH = 64  # sentences per batch
LEARNING_RATE = 5e-4  # peak; the rate rises over the first tenth of the steps, then falls linearly to zero
MASKED = 0.15  # share of pieces to predict; 80 % of these are hidden, 10 % replaced, 10 % unchanged
START_SIZE = CLCSize(hidden=128, layers=1, dropout=0.2)  # the medium size, because each parameter gets noise
START_RATE = 3e-3  # initial learning rate, which falls linearly to zero
GUESSED = 1500  # number of most common words, which are predicted in unlabelled text
UNKNOWN = 0.1  # share of words replaced by the unknown word
WHITENED_BY = 8000  # number of utterances for estimating the whitening covariance
ORDERS = 10  # number of random orders of each line of related words, for training the vectors
POOL = 50  # batches per pool within which sentences of similar length are grouped


class PretrainingEpoch(NamedTuple):
    """A completed epoch: its number (from 1), the number of epochs, and its mean loss in nats per predicted piece."""

    epoch: int
    epochs: int
    loss: float


def pretrain_bert(
    sentences: Sequence[Sequence[str]],
    folder: Path | str,
    *,
    epochs: int = 10,
    seed: int = 0,
    size: BertSize | None = None,
    progress: Callable[[PretrainingEpoch], None] = lambda _: None,
) -> list[float]:
    """Learn word pieces from the sentences, then train BERT to predict masked pieces (Devlin et al. 2019, 3.1).

    Training is deterministic: all randomness comes from the seed. Returns the mean loss of each epoch.

    Args:
        sentences: tokens of each sentence; they are lower-cased.
        folder: receives ``config.json``, ``model.safetensors`` and ``tokenizer.json``, which `load_bert` and
            transformers' ``from_pretrained`` read; it is created only when training is complete.
        size: model size (default: the paper's); its dropout is not used.
    """
    _check(sentences)
    size = size or BertSize()
    with new_folder(Path(folder)) as inside, seeded(seed):
        tokenizer = train_wordpieces(sentences, VOCABULARY)
        if tokenizer.get_vocab_size() <= len(SPECIAL):
            raise UsageError("the text for pretraining has no letter or digit: give sentences of words")
        pieces = PieceFeatures(tokenizer, size.positions).rows(sentences)["pieces"]
        model = BertForMaskedLM(bert_config(size.architecture(tokenizer.get_vocab_size())))
        losses = _train(model, pieces, epochs, key_from_seed(seed), progress)
        with quiet():
            model.save_pretrained(inside)
        BertTokenizer(vocab=tokenizer.get_vocab(), model_max_length=size.positions).save_pretrained(inside)
    return losses


def pretrain_vectors(
    sentences: Sequence[Sequence[str]], folder: Path | str, *, size: int = DIMENSIONS, epochs: int = 10, seed: int = 0
) -> WordVectors:
    """Train fastText vectors (see `train_vectors`) and save them to a folder that `load_vectors` reads."""
    _check(sentences)
    with new_folder(Path(folder)) as inside:
        vectors = train_vectors(sentences, size, epochs, seed)
        vectors.save(inside)
    return vectors


def shorten_bert(name: str, layers: int, folder: Path | str) -> None:
    """Save the first `layers` layers of a published encoder to a folder that `load_bert` reads.

    This reduces a published BERT to the paper's four layers (section 4.2), deterministically.
    """
    bert, tokenizer = load_bert(name)
    if not 1 <= layers <= len(bert.encoder.layer):
        raise UsageError(f"{name!r} has {len(bert.encoder.layer)} layers: choose from 1 to that many, not {layers}")
    bert.encoder.layer = bert.encoder.layer[:layers]
    bert.config.num_hidden_layers = layers
    with new_folder(Path(folder)) as inside, quiet():
        bert.save_pretrained(inside)
        tokenizer.save(str(inside / "tokenizer.json"))


def pretrain_start(
    corpora: Mapping[str, Corpus],
    folder: Path | str,
    unlabelled: Mapping[str, Corpus] = MappingProxyType({}),
    *,
    generated: int = 0,
    epochs: int = 6,
    seed: int = 0,
    size: CLCSize | None = None,
    progress: Callable[[PretrainingEpoch], None] = lambda _: None,
) -> list[float]:
    """Train the public starting model of private runs, a CLC, on several corpora that keep their own labels.

    Words have frozen fastText vectors, trained on the same text and on lines of `related` words. A tenth of the words
    are replaced with the unknown word, so the model learns to rely on spelling and context. Tags are predicted
    independently, because a CRF over all corpora's tags would take most of the time. Training is deterministic.
    Returns the mean loss of each epoch.

    Args:
        corpora: labelled corpora by name; all must have slots.
        folder: see `edp_lab.models.public_start`; it is created only when training is complete.
        unlabelled: further corpora, of which only the words are used (see `Neighbours`).
        generated: number of synthetic everyday requests to add, which any run may use; they also train the vectors.
    """
    labelled = {**corpora, **({"everyday": everyday(generated, seed)} if generated else {})}
    utterances = [_prefixed(utterance, name) for name, corpus in labelled.items() for utterance in corpus.utterances]
    more = [_bare(utterance, utterances[0].intent) for corpus in unlabelled.values() for utterance in corpus.utterances]
    sentences: list[Sequence[str]] = [utterance.tokens for utterance in (*utterances, *more)]
    _check(sentences)
    lines = related(ORDERS, seed) if generated else []
    sentences += lines
    size = size or START_SIZE
    slots = sorted({tag[2:] for utterance in utterances for tag in utterance.tags or () if tag != "O"})
    labels = Labels(tuple(sorted({utterance.intent for utterance in utterances})), tag_set(slots))
    with new_folder(Path(folder)) as inside, seeded(seed):
        vectors = train_vectors(sentences, size.word, epochs=10, seed=seed)
        count = Counter(word.lower() for utterance in sentences for word in utterance)
        known = sum(count[word] > 1 for word in vectors.words)  # words are sorted by count
        features = WordFeatures(vectors.words[:known], UNKNOWN_WORDS)
        model = CLC(labels, features, size, rounded(vectors.matrix[:known]))
        losses = _train_start(model, len(features.words), utterances, more, epochs, key_from_seed(seed), progress)
        model = whitened(model, model.dataset(_some([*utterances, *more], seed)))
        made_of = [*_described(labelled), *_described(unlabelled, " without labels")]
        made_of += [f"{len(lines) // ORDERS:,} lines of related words, made up"] if lines else []
        sources = [*corpora.values(), *unlabelled.values()]
        save_start(model, inside, made_of, (utterance.text for corpus in sources for utterance in corpus.utterances))
    return losses


def _some(utterances: Sequence[Utterance], seed: int) -> list[Utterance]:
    """Sample of utterances, large enough to estimate the whitening covariance."""
    chosen = stream(key_from_seed(seed), Purpose.SHUFFLE, WHITENED_BY).permutation(len(utterances))[:WHITENED_BY]
    return [utterances[k] for k in sorted(chosen)]


def _described(corpora: Mapping[str, Corpus], how: str = "") -> list[str]:
    """One line per corpus: name, number of utterances, and licence if it is in the catalogue."""
    licences = {row.name: f", {row.licence}" for row in list_corpora()}
    return [
        f"{name}: {len(corpus.utterances):,} utterances{how}{licences.get(name, '')}"
        for name, corpus in corpora.items()
    ]


def _bare(utterance: Utterance, intent: str) -> Utterance:
    """Return the utterance's tokens with placeholder labels, which are not used."""
    return Utterance(utterance.tokens, ("O",) * len(utterance.tokens), intent)


def _prefixed(utterance: Utterance, corpus: str) -> Utterance:
    if utterance.tags is None:
        raise UsageError(f"corpus {corpus!r} has no slots: give only corpora with slots")
    tags = tuple(tag if tag == "O" else f"{tag[:2]}{corpus}/{tag[2:]}" for tag in utterance.tags)
    return Utterance(utterance.tokens, tags, f"{corpus}/{utterance.intent}")


class Neighbours(nn.Module):
    """Bidirectional language-model head for unlabelled text: it predicts the next and the previous word, if these are
    common words, from the CLC's LSTM states. The head is discarded after pretraining.
    """

    def __init__(self, model: CLC) -> None:
        super().__init__()
        self.ways = nn.ModuleList(nn.Linear(model.size.hidden, model.size.word) for _ in range(2))
        self.common = model.words.weight[:GUESSED].detach()  # words are sorted by frequency

    def forward(self, read: Tensor, words: Tensor, lengths: Tensor) -> Tensor:
        """Return the summed loss in nats; `read`: states (R, 2 hidden) of `words` (R) in sentences of these lengths."""
        follows = torch.ones(len(words), dtype=torch.bool)
        follows[lengths.cumsum(0) - 1] = False  # the last word of each sentence
        here = follows.nonzero()[:, 0]
        total = torch.zeros(())
        for way, half, at, other in zip(self.ways, read.chunk(2, 1), (here, here + 1), (here + 1, here), strict=True):
            common = words[other] < len(self.common)
            guesses = way(half[at[common]]) @ self.common.T
            total = total + F.cross_entropy(guesses, words[other[common]], reduction="sum")
        return total


def _train_start(
    model: CLC,
    unknown: int,
    labelled: Sequence[Utterance],
    more: Sequence[Utterance],
    epochs: int,
    key: int,
    progress: Callable[[PretrainingEpoch], None],
) -> list[float]:
    """Train the model; return each epoch's mean loss. `unknown`: index of the unknown word; `more`: unlabelled text."""
    neighbours, text = Neighbours(model), [model.dataset(group) for group in (labelled, more) if group]
    learnt = [*(p for p in model.parameters() if p.requires_grad), *neighbours.parameters()]
    optimizer = torch.optim.Adam(learnt)
    steps, step = epochs * sum(math.ceil(len(data) / BATCH) for data in text), 0
    losses = []
    for epoch in range(epochs):
        random, total = stream(key, Purpose.SHUFFLE, epoch), 0.0
        batches = [(data, numbers) for data in text for numbers in _batches(data.lengths, random)]
        for place in random.permutation(len(batches)):
            data, numbers = batches[place]
            batch = data.batch(numbers)
            words = batch.inputs["words"]
            hidden = torch.from_numpy(random.random(len(words)) < UNKNOWN)
            batch.inputs["words"] = words.masked_fill(hidden, unknown)
            assert batch.tags is not None
            pooled, tokens = model.encode(batch, PLAIN, dropout_key=step)
            if data is text[0]:
                loss = F.cross_entropy(model.intent(pooled), batch.intents, reduction="sum")
                loss = loss + F.cross_entropy(model.slots(tokens), batch.tags, reduction="sum")
            else:
                loss = neighbours(tokens, words, torch.from_numpy(data.lengths[numbers]))
            optimizer.param_groups[0]["lr"] = START_RATE * (1 - step / steps)
            optimizer.zero_grad()
            (loss / len(numbers)).backward()
            optimizer.step()
            total, step = total + loss.item(), step + 1
        losses.append(total / sum(map(len, text)))
        progress(PretrainingEpoch(epoch + 1, epochs, losses[-1]))
    return losses


def _check(sentences: Sequence[Sequence[str]]) -> None:
    if not any(sentences):
        raise UsageError("the text for pretraining is empty: give at least one sentence")


def _train(
    model: BertForMaskedLM, pieces: Ragged, epochs: int, key: int, progress: Callable[[PretrainingEpoch], None]
) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    steps = epochs * math.ceil((len(pieces.offsets) - 1) / BATCH)
    rise = 0.2 if steps == 10 else 0.1  # torch divides by rise * steps - 1
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, steps, pct_start=rise, anneal_strategy="linear", cycle_momentum=False
    )
    losses = []
    for epoch in range(epochs):
        random = stream(key, Purpose.SHUFFLE, epoch)
        total, guessed = 0.0, 0
        for batch in _batches(np.diff(pieces.offsets), random):
            truth, rows = pieces.take(batch)
            masked, chosen = mask_pieces(truth, model.config.vocab_size, random)
            hidden = encode_pieces(model.bert, masked, rows)
            loss = F.cross_entropy(model.cls(hidden[chosen]), truth[chosen], reduction="sum")
            optimizer.zero_grad()
            (loss / chosen.sum().clamp_min(1)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total, guessed = total + loss.item(), guessed + int(chosen.sum())
        losses.append(total / max(guessed, 1))
        progress(PretrainingEpoch(epoch + 1, epochs, losses[-1]))
    return losses


def mask_pieces(truth: Tensor, vocabulary: int, random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return BERT's masked input (P) and a mask (P) of the positions to predict, which are never [CLS] or [SEP]."""
    ordinary = (truth != SPECIAL.index("[CLS]")) & (truth != SPECIAL.index("[SEP]"))
    chosen = ordinary & torch.from_numpy(random.random(len(truth)) < MASKED)
    fate = torch.from_numpy(random.random(len(truth)))
    other = torch.from_numpy(random.integers(len(SPECIAL), vocabulary, len(truth)))
    shown = torch.where(chosen & (fate < 0.8), SPECIAL.index("[MASK]"), truth)
    return torch.where(chosen & (fate >= 0.9), other, shown), chosen


def _batches(lengths: np.ndarray, random: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield batches of one shuffled pass; within each pool, batch sentences of similar length, for speed."""
    order = random.permutation(len(lengths))
    pools = [order[start : start + POOL * BATCH] for start in range(0, len(order), POOL * BATCH)]
    grouped = np.concatenate([pool[np.argsort(lengths[pool], kind="stable")] for pool in pools])
    starts = np.arange(0, len(grouped), BATCH)
    random.shuffle(starts)
    for start in starts:
        yield grouped[start : start + BATCH]
