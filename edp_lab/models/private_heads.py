"""Models for private training: a CLC with heads on whitened features, and heads that are trained without the CLC.

The noise on a head's gradient is isotropic, so the features that the head learns from should be isotropic, too. Label
names also provide features: "book_flight" is similar to "reserve_ticket", and matches a text with "book" and "flight".
Label sets are public, so these features do not weaken the guarantee.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Container, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edp_lab.corpora.corpus import Ragged, Utterance
from edp_lab.corpora.encoding import Batch, Dataset, Labels, WordFeatures, hashed
from edp_lab.models.clc import CLC, CLCSize
from edp_lab.models.ghost_clipping.ops import PLAIN, PlainOps
from edp_lab.models.intent_slot import dropout, max_pool, mean, to_padded

HEADS = ("intent", "slots", "slot_words", "slot_intents", "crf")
AT_ONCE = 256  # number of utterances to encode per batch


class Whitening(nn.Module):
    """Whitening map x (n, D) -> (x - mean) @ map (D, D); the identity until `fit` is called.

    It centres the features of public text and makes their variance about equal in all directions, preserving their mean
    distance from the mean. A `FLOOR` is added to the variance, so directions with hardly any variance are stretched
    less. `favour` then stretches directions that separate public labels, because other labels will differ there, too.
    """

    mean: Tensor
    map: Tensor
    FLOOR = 0.03  # share of the mean variance, added in each direction
    EVEN = 3.0  # multiple of the heads' mean variance, added in each direction

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("map", torch.eye(size))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) @ self.map

    def fit(self, x: Tensor) -> None:
        """Fit the map to public rows (n, D), n >= 2."""
        self.mean.copy_(x.mean(0))
        variances, axes = torch.linalg.eigh(torch.cov(x.T).double())
        scales = (variances.clamp_min(0) + self.FLOOR * variances.mean()).rsqrt()
        matrix = (axes * scales @ axes.T).to(x.dtype)
        centred = x - self.mean
        self.map.copy_(matrix * (centred.norm(dim=1).mean() / (centred @ matrix).norm(dim=1).mean()))

    def favour(self, heads: Tensor) -> None:
        """Stretch the directions in which these heads (K, D) of public labels differ, and shrink the others.

        The factors are 0.9 to 5.5 for edp_lab's starting models. With fewer than two heads, nothing changes. Under
        noise, learning from x @ map amounts to assuming a prior covariance map @ map.T for new heads. Here, one quarter
        of it is the covariance of known heads, and three quarters are isotropic.
        """
        if len(heads) < 2:
            return
        variances, axes = torch.linalg.eigh(torch.cov(heads.T).double())
        variances = variances.clamp_min(torch.finfo(variances.dtype).tiny)
        scales = (variances / variances.mean() + self.EVEN).sqrt()
        self.map.copy_(self.map.double() @ (axes * (scales / scales.square().mean().sqrt()) @ axes.T))


class WhitenedCLC(CLC):
    """CLC with heads that read word vectors and mean pooling in addition to max pooling, all whitened."""

    def __init__(
        self, labels: Labels, features: WordFeatures, size: CLCSize, vectors: Tensor, *, more_pooled: int = 0
    ) -> None:
        beside, token = 2 * size.hidden + size.word, size.word
        super().__init__(labels, features, size, vectors, more_pooled=beside + more_pooled, more_token=token)
        self.pooled_view, self.token_view = Whitening(2 * size.hidden + beside), Whitening(2 * size.hidden + token)

    def encode(self, batch: Batch, ops: PlainOps, dropout_key: int | None) -> tuple[Tensor, Tensor]:
        words = self._word_vectors(batch, ops)
        tokens = self._tokens(words, batch, ops, dropout_key)
        both = torch.cat([tokens, words], dim=1)
        pooled = torch.cat([max_pool(tokens, batch.lengths), mean(both, batch.lengths)], dim=1)
        return self.pooled_view(pooled), self.token_view(both)

    def config(self) -> dict[str, object]:
        return {**super().config(), "whitened": True}


class PrivateHeads(WhitenedCLC):
    """Intent head, slot head and CRF on a frozen `WhitenedCLC`; nothing else is trained.

    The heads also read which words occur and which labels these words name (`LabelNameFeatures`). The slot head reads
    the intent head's output ("slot-gated", Goo et al. 2018). Encoded data take 7 kB per utterance, 1.5 kB per word.
    """

    reads_once = True

    def __init__(self, labels: Labels, features: WordFeatures, size: CLCSize, vectors: Tensor) -> None:
        names = LabelNameFeatures(features, labels.intents)
        super().__init__(labels, features, size, vectors, more_pooled=names.size)
        self.label_names = names
        if labels.tags:
            self.slot_words = nn.Embedding(names.rows, len(labels.tags))
            self.slot_intents = nn.Linear(len(labels.intents), len(labels.tags), bias=False)
            nn.init.zeros_(self.slot_words.weight)
            nn.init.zeros_(self.slot_intents.weight)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name.partition(".")[0] in HEADS)

    @torch.no_grad()
    def dataset(self, utterances: Sequence[Utterance]) -> Dataset:
        """Encode the utterances as inputs of the heads: "sentence" (P), "words" (R, D) and "near" (R, 3)."""
        data = super().dataset(utterances)
        ends = np.cumsum(data.lengths)
        words = np.zeros((ends[-1], len(self.token_view.mean)), np.float32)
        sentences = np.zeros((len(data), self.intent.in_features), np.float32)
        near = np.zeros((ends[-1], 3), np.int64)
        for batch in self.inference_batches(data, AT_ONCE):
            pooled, tokens = super().encode(batch, PLAIN, None)
            numbers, examples = batch.inputs["words"], batch.examples.numpy()
            named = self.label_names(numbers, batch.lengths, self.words.weight)
            sentences[examples] = torch.cat([pooled, named], dim=1).float().cpu().numpy()
            spans = zip(ends[examples].tolist(), batch.lengths.tolist(), strict=True)
            rows = np.concatenate([np.arange(end - length, end) for end, length in spans])
            words[rows] = tokens.float().cpu().numpy()
            near[rows] = self.label_names.near(numbers, batch.lengths).cpu()
        of_words = np.append(0, ends)
        data.features = {
            "words": Ragged(words, of_words),
            "near": Ragged(near, of_words),
            "sentence": Ragged(sentences, np.arange(len(data) + 1)),
        }
        return data

    def encode(self, batch: Batch, ops: PlainOps, dropout_key: int | None) -> tuple[Tensor, Tensor]:
        both = (batch.inputs[name].to(self.intent.weight.dtype) for name in ("sentence", "words"))
        sentence, tokens = (dropout(x, batch, self.size.dropout, dropout_key, k) for k, x in enumerate(both))
        return sentence, tokens

    def emissions(self, tokens: Tensor, intents: Tensor, batch: Batch, ops: PlainOps) -> Tensor:
        emissions = super().emissions(tokens, intents, batch, ops)
        names = self.label_names
        looked_up = ops.embedding(batch.inputs["near"], self.slot_words.weight, batch.lengths)  # (R, 3, K)
        emissions = emissions + (looked_up * looked_up.new_tensor(names.WORD_WEIGHTS)[:, None]).sum(1)
        meant = ops.linear(names.INTENT_WEIGHT * intents.softmax(-1), self.slot_intents.weight, None)  # (B, K)
        return emissions + meant.repeat_interleave(batch.lengths, 0)

    def config(self) -> dict[str, object]:
        return {**super().config(), "label_names": LabelNameFeatures.FORM}


# ---- Label names -----------------------------------------------------------------------------------------------------

# Similarity of names. We chose these settings by the SER on ATIS' validation split before any private step. It is .21
# with these settings, but .83 with the cosine of mean vectors.
TEMPERATURE = 0.02  # temperature of the softmax
SHARPNESS = 8  # power of the cosine, because words such as "from" and "to" have similar vectors
OTHER_WORD = 0.9  # largest similarity of different words
LEAST_WEIGHT = 0.3  # weight of a word that is in all names


class Names:
    """Similarity of label names, computed from their words. The vocabulary is `words` (V) with `vectors` (V, D)."""

    def __init__(self, words: Sequence[str], vectors: Tensor) -> None:
        self.place, self.vectors = {word: k for k, word in enumerate(words)}, F.normalize(vectors)

    def nearness(self, new: Sequence[str], known: Sequence[str]) -> Tensor:
        """Matrix (new, known) with rows that sum to 1: the softmax of each new name's similarity to the known names.

        Each word is matched to its best counterpart in the other name: the same word (1), or one with a similar vector
        (a power of their cosine). Words in many known names count less. Both directions of matching are averaged.
        """
        cut_new, cut_known = ([label_words(name, self.place) for name in names] for names in (new, known))
        words = sorted({word for name in (*cut_new, *cut_known) for word in name})
        row = {word: k for k, word in enumerate(words)}
        alike, weights = self._alike(words), _rarity(words, cut_known)
        near = np.zeros((len(new), len(known)))
        has_words = np.array([len(name) > 0 for name in cut_known])
        flat = np.array([row[word] for name in cut_known for word in name], dtype=int)
        starts = np.cumsum([0, *(len(name) for name in cut_known if name)])[:-1]
        for i, name in enumerate(cut_new):
            if name and len(flat):
                rows = np.array([row[word] for word in name])
                pairs = alike[np.ix_(rows, flat)]
                there = weights[rows] @ np.maximum.reduceat(pairs, starts, axis=1) / weights[rows].sum()
                back = np.add.reduceat(weights[flat] * pairs.max(0), starts) / np.add.reduceat(weights[flat], starts)
                near[i, has_words] = (there + back) / 2
        return torch.from_numpy(near / TEMPERATURE).softmax(1).float()

    def _alike(self, words: Sequence[str]) -> np.ndarray:
        """Similarity matrix (words, words): 1 for the same word, less for others; 0 for a word without a vector."""
        rows = torch.stack([self.vectors[self.place[w]] if w in self.place else 0 * self.vectors[0] for w in words])
        alike = likeness(rows, rows).numpy()
        np.fill_diagonal(alike, 1.0)
        return np.asarray(alike)


def label_words(label: str, known: Container[str]) -> list[str]:
    """Words in a label's name: play, music in "home/PlayMusic"; from, loc, city, name in "fromloc.city_name".

    The part before a slash names a corpus and is ignored. An unknown word is split after a known word, if possible.
    """
    spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", label.rpartition("/")[2])
    words = [word.lower() for word in re.split(r"[\W\d_]+", spaced) if word]
    return [part for word in words for part in ([word] if word in known else _cut(word, known))]


def _cut(word: str, known: Container[str]) -> list[str]:
    for at in range(len(word) - 2, 1, -1):
        if word[:at] in known:
            return [word[:at], word[at:]]
    return [word]


def _rarity(words: Sequence[str], names: Sequence[Sequence[str]]) -> np.ndarray:
    """Weight of each word: higher for words in fewer names."""
    count = Counter(word for name in names for word in set(name))
    return np.array([math.log((len(names) + 1) / (count[word] + 1)) + LEAST_WEIGHT for word in words])


def likeness(first: Tensor, second: Tensor) -> Tensor:
    """Similarity of words with these vectors, (n, D) and (m, D) -> (n, m): 0 if a word has no vector."""
    cosines = F.normalize(first) @ F.normalize(second).T
    return OTHER_WORD * cosines.clamp_min(0) ** SHARPNESS


class LabelNameFeatures(nn.Module):
    """Untrained bag-of-words features of an utterance: (R) -> (B, places + K).

    The first part is a hashed bag of words of norm `LENGTH`, in which words with the same hash share a place
    (Weinberger et al. 2009, arXiv 0902.2206). Unlike a mean of vectors, it keeps words separate. Common words, which
    come first in `features`, count less. The second part is the share of each label's name that occurs, from 0 to 1.
    Each word of the name is matched to the most similar word of the utterance, and rare words count more.

    `near`: for slots, table rows of a word and its neighbours, (R) -> (R, 3), weighted by `WORD_WEIGHTS`.
    """

    FORM = 2  # version of these features; models saved with another version would give wrong results

    place: Tensor
    weight: Tensor
    names: Tensor
    shares: Tensor
    LENGTH = 7.5  # norm of the bag of words, about equal to the norm of the head's other inputs
    COMMON = 10  # number of most frequent words with a weight of at most one half
    WORD_WEIGHTS = (5.0, 3.0, 3.0)  # weights of a word, of the word before it and of the word after it
    INTENT_WEIGHT = 5.0  # weight of an intent's probability

    def __init__(self, features: WordFeatures, labels: Sequence[str]) -> None:
        super().__init__()
        known = set(features.words)
        cut = [label_words(label, known) for label in labels]
        words = sorted({word for name in cut for word in name})
        has = np.array([[word in name for name in cut] for word in words]).reshape(len(words), len(labels))
        shares = _rarity(words, cut)[:, None] * has
        shares /= shares.sum(0).clip(LEAST_WEIGHT)  # a name may have no words
        places = [hashed(word, features.buckets) for word in features.words] + list(range(features.buckets))
        names = features.rows([words])["words"].values
        ranks = np.arange(1, len(features.words) + 1)
        weight = np.append(ranks / (ranks + self.COMMON), np.ones(features.buckets))
        for name, values in (("place", places), ("names", names)):
            self.register_buffer(name, torch.as_tensor(values), persistent=False)
        for name, values in (("weight", weight), ("shares", shares)):
            self.register_buffer(name, torch.as_tensor(values, dtype=torch.float32), persistent=False)
        self.places, self.size = features.buckets, features.buckets + len(labels)
        self.rows = 3 * (self.places + 1)

    def forward(self, words: Tensor, lengths: Tensor, vectors: Tensor) -> Tensor:
        """Features (B, places + K); `words` (R) are row indices of `vectors` (V, D)."""
        utterance = torch.repeat_interleave(torch.arange(len(lengths), device=words.device), lengths)
        place, weight = utterance * self.places + self.place[words], self.weight[words].to(vectors.dtype)
        present = vectors.new_zeros(len(lengths) * self.places).scatter_reduce_(0, place, weight, "amax")
        alike = likeness(vectors[words], vectors[self.names]).masked_fill(words[:, None] == self.names, 1.0)
        named = max_pool(alike, lengths) @ self.shares
        return torch.cat([self.LENGTH * F.normalize(present.view(-1, self.places)), named], dim=1)

    def near(self, words: Tensor, lengths: Tensor) -> Tensor:
        """Table rows of each word and its neighbours: (R) -> (R, 3). The first row of each third is for "no word"."""
        here, mask = to_padded(self.place[words] + 1, lengths)
        around = (here, F.pad(here, (1, 0))[:, :-1], F.pad(here, (0, 1))[:, 1:])
        return torch.stack([third[mask] + k * (self.places + 1) for k, third in enumerate(around)], dim=1)
