"""Membership attacks: the target run, the result compared with the run's guarantee, and the loss-threshold attack.

An attack assigns scores to an equal number of members and non-members; a higher score means "member". The baseline
attack classifies utterances with a low loss as members (Yeom et al. 2018). LiRA uses logits, because over models they
are close to normally distributed, unlike losses and probabilities (Carlini et al. 2022):

    p = the model's probability of the true intent, or of the whole true tag sequence
    logit p = log p - log(1 - p)

Logits are computed in float64 without the difference 1 - p, which rounds to 0 for a confident model.

An attack is valid if the texts alone do not distinguish members from non-members (`check_split`). If they do, an attack
needs no model, and its success shows how the split was made, not how much the model remembers.

Raises UsageError for a run that cannot be attacked, too few members, utterances that do not match the model, or a
diverged model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from torch import Tensor

from edp_lab.attacks.statistics import LEAST_MEMBERS, AttackResult, Interval, auc, auc_interval, summarise
from edp_lab.corpora.catalog import load_corpus
from edp_lab.corpora.corpus import Corpus, Split, Utterance, group_ids, split
from edp_lab.corpora.encoding import Batch, Labels
from edp_lab.errors import UsageError
from edp_lab.models.crf import forward_backward, path_score
from edp_lab.models.factory import load_model, model_checksum
from edp_lab.models.intent_slot import IntentSlotModel, to_padded
from edp_lab.privacy import Adjacency, Guarantee, judge
from edp_lab.privacy.guarantee import upward
from edp_lab.training.config import TrainConfig
from edp_lab.training.run_files import MODEL, check_same_split, read_record, run_ledger

Floats = NDArray[np.float64]
FOLDS = 5
SPLIT_CONFIDENCE = 0.99  # `check_split` raises a false alarm for about one in a hundred splits
BATCH = 256
LEAST_NLL = 1e-12  # smallest loss of a tag sequence, limited by the precision of float64 sums over a sentence
MOST = 500.0  # largest magnitude of a logit; only a diverged model or a single intent comes near this limit
TITLES = {
    "loss": "loss threshold (baseline)",
    "shadow": "shadow model and classifier (the paper's attack)",
    "lira-online": "LiRA",
}


@dataclass(frozen=True)
class Target:
    """A trained model, with an equal number of members and non-members for an attack to distinguish."""

    folder: Path
    config: TrainConfig
    corpus: Corpus
    model: IntentSlotModel
    members: tuple[Utterance, ...]  # the training set, or a random sample of it if it is larger than the test set
    non_members: tuple[Utterance, ...]  # the same number of utterances from the test set

    @property
    def pool(self) -> tuple[Utterance, ...]:
        """Members, followed by non-members."""
        return self.members + self.non_members

    @cached_property
    def texts(self) -> NDArray[np.int64]:
        """Index of each utterance's text among the pool's distinct texts: (n)."""
        return group_ids(self.pool)

    @property
    def copies(self) -> int:
        """Number of copies of the most frequent text."""
        return int(np.bincount(self.texts).max())

    def sides(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Split the pool's scores, one row per utterance, into the scores of members and of non-members."""
        return scores[: len(self.members)], scores[len(self.members) :]

    @property
    def unit(self) -> str:
        """The privacy unit of the guarantee."""
        return "one utterance" if self.copies == 1 else f"one utterance whose text occurs up to {self.copies} times"

    @cached_property
    def guards(self) -> Guards:
        return check_split(self.members, self.non_members)

    @cached_property
    def guarantee(self) -> Guarantee | None:
        """The run's guarantee against distinguishing an utterance from a replacement; None without noise.

        A random split of fixed sizes exchanges members for non-members, so neighbours differ by replacing an utterance.
        Under Poisson sampling, this means removing one utterance and adding another. All copies of a text are on one
        side, so the guarantee is for all copies of the most frequent text.
        """
        if self.config.method == "sgd":
            return None
        ledger, delta = run_ledger(self.folder), self.config.delta
        assert delta is not None, "records contain the delta that was used"
        swap: dict[str, Any] = (
            {"utterances_per_person": 2 * self.copies}
            if self.config.poisson
            else {"utterances_per_person": self.copies, "adjacency": Adjacency.REPLACE_ONE}
        )
        return judge(ledger.mechanism, ledger.releases_by_epoch(), delta, not self.config.private_seed, **swap)


def load_target(run: str | Path | Target) -> Target:
    """Load a run's model, with members from its training set and an equal number of non-members from its test set.

    A loaded target is returned unchanged.
    """
    if isinstance(run, Target):
        return run
    folder, record = Path(run), read_record(run)
    if record["status"] not in ("finished", "interrupted"):
        raise UsageError(f"the run in {folder} is {record['status']}: finish it with edp-lab train --resume {folder}")
    config = TrainConfig.from_record(record)
    corpus = load_corpus(config.corpus, config.tokens)
    if corpus.sha256 != record["corpus"]["sha256"]:
        raise UsageError(
            f"corpus {config.corpus!r} has changed since {run} was trained: restore the corpus, or train again"
        )
    model = load_model(folder / MODEL)
    if model.labels != Labels.of(corpus) or model_checksum(model) != record.get("model_sha256"):
        raise UsageError(f"the model in {folder / MODEL} does not match the run's record: restore it from a backup")
    data = split(corpus, config.seed, config.keep_duplicates_together)
    check_same_split(run, record, data)
    target = Target(folder, config, corpus, model.eval(), *equal_sides(data, config.seed))
    _ = target.guarantee, target.guards  # raise errors before long work
    return target


def equal_sides(data: Split, seed: int) -> tuple[tuple[Utterance, ...], tuple[Utterance, ...]]:
    """Draw the same number of utterances from the training set and the test set."""
    count = min(len(data.train), len(data.test))
    if count < LEAST_MEMBERS:
        raise UsageError(
            f"{count} members are too few to evaluate an attack, which needs {LEAST_MEMBERS}: train on a larger corpus"
        )
    draw, sides = np.random.default_rng(seed), (data.train, data.test)
    members, others = (tuple(side[k] for k in np.sort(draw.permutation(len(side))[:count])) for side in sides)
    return members, others


# ---- The result ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attacked:
    """Result of an attack, with its scores for the target's pool and the guarantee of the attacked run."""

    target: Target
    result: AttackResult
    scores: np.ndarray
    about: dict[str, Any]

    @property
    def title(self) -> str:
        return TITLES[self.result.attack]

    @property
    def bound_said(self) -> str:
        """The guarantee and the bound that it implies for any attack, in words."""
        guarantee = self.target.guarantee
        if guarantee is None or guarantee.conditional_epsilon is None:
            why = "plain training" if guarantee is None else guarantee.reason
            return f"none ({why}), so nothing bounds this attack"
        assert self.result.bound is not None
        unless = f"{guarantee.condition}, " if guarantee.condition else ""
        of = f"if {self.target.unit} is replaced by another; delta {guarantee.delta:.2g}, {guarantee.method}"
        auc = self.result.bound["auc"]
        limit = f"bounds the AUC of any attack by {upward(auc, 4)}" if auc < 0.9995 else "is too large to limit attacks"
        return f"{unless}epsilon {upward(guarantee.conditional_epsilon)} ({of}) {limit}"

    @property
    def verdict(self) -> str:
        """The result in words; a failed attack does not prove privacy."""
        (low, high), guards, bound = self.result.auc_interval, self.target.guards, self.result.bound
        sure = f"{100 * self.result.confidence:g} %"
        if guards.leaks:
            return "invalid: the split leaks, so the attack may recognise texts rather than members"
        if guards.duplicates:
            return "invalid: some texts are both members and non-members; train with duplicates kept together"
        if bound is not None and low > bound["auc"]:
            return f"leaks more than epsilon allows, at {sure} confidence: the guarantee is wrong, or the seed was used"
        if low > 0.5:
            return f"membership leaks: the {sure} interval of the AUC lies above 0.5"
        if high < 0.5:
            return "worse than guessing: the attack was misled, which does not prove privacy"
        return "this attack finds no leak, which does not prove privacy: a better attack might find one"

    def to_json(self) -> dict[str, Any]:
        said = {"guards": self.target.guards._asdict(), "bound_said": self.bound_said, "verdict": self.verdict}
        return {**self.result.to_json(), **self.about, **said}


def judged(target: Target, attack: str, scores: np.ndarray, about: dict[str, Any]) -> Attacked:
    """Summarise an attack from its scores for the target's pool, together with the guarantee of the run."""
    guarantee, sides, delta = target.guarantee, target.sides(scores), target.config.delta
    epsilon, status = (None, "none") if guarantee is None else (guarantee.conditional_epsilon, guarantee.status)
    result = summarise(attack, *sides, epsilon, delta, target.sides(target.texts))
    return Attacked(target, result, scores, {"run": str(target.folder), "guarantee": status, **about})


# ---- Sanity checks ---------------------------------------------------------------------------------------------------


class Guards(NamedTuple):
    """Results of the sanity checks of a split into members and non-members."""

    text_auc: float  # out-of-fold AUC of a bag-of-words classifier for membership; 0.5 is guessing
    text_auc_interval: Interval  # at `confidence`
    confidence: float
    duplicates: int  # number of texts that occur on both sides
    leaks: bool  # whether the interval excludes 0.5, above or below; if so, the split is not exchangeable
    message: str  # one sentence: "fine", or what is wrong and how to fix it


def check_split(members: Sequence[Utterance], non_members: Sequence[Utterance]) -> Guards:
    """Run all sanity checks on the members and non-members that an attack would have to distinguish."""
    texts = [{u.tokens for u in side} for side in (members, non_members)]
    sides = len(members), len(non_members)
    for name, size, distinct in zip(("members", "non-members"), sides, map(len, texts), strict=True):
        if size < LEAST_MEMBERS:
            raise UsageError(
                f"there are only {size} {name}: use a larger corpus, because an attack needs at least {LEAST_MEMBERS}"
            )
        if distinct < FOLDS:
            raise UsageError(f"the {name} have only {distinct} distinct texts: an attack needs at least {FOLDS}")
    scores = _text_scores(*texts)
    # Out-of-fold scores are not independent: text i helped to score text j, and j to score i, so chance similarity
    # counts twice. For scores linear in the labels, s_i = sum_j P_ij y_j with random signs y, the variance of
    # sum_i y_i s_i is sum_{i<j} (P_ij + P_ji)^2, at most twice the sum_{i,j} P_ij^2 that independence would give. So
    # we make DeLong's interval sqrt 2 times as wide on the logit scale. On random splits of ATIS and of the smart-home
    # corpus, DeLong's standard error is 1.4 to 1.5 times too small. The widened interval misses 0.5 in 0.8, 1 and 3 %
    # of 400, 200 and 100 splits.
    wider = 1 - 2 * float(ndtr(math.sqrt(2) * ndtri((1 - SPLIT_CONFIDENCE) / 2)))
    area, interval = auc(*scores), auc_interval(*scores, wider)
    duplicates = len(texts[0] & texts[1])
    leaks = not interval[0] <= 0.5 <= interval[1]
    evidence = f"AUC {area:.3f}, {100 * SPLIT_CONFIDENCE:g} % interval {interval[0]:.3f} to {interval[1]:.3f}"
    wrong = []
    if leaks:
        wrong.append(
            f"the split leaks: words alone distinguish members from non-members ({evidence}): pool and split at random"
        )
    if duplicates:
        both = "1 text is" if duplicates == 1 else f"{duplicates:,} texts are"
        wrong.append(f"{both} on both sides: keep duplicates together when splitting")
    if sides[0] != sides[1]:
        wrong.append(f"{sides[0]:,} members and {sides[1]:,} non-members are compared: draw equal numbers")
    alike = f"words alone do not distinguish the {sides[0]:,} members from as many non-members ({evidence})"
    message = "; ".join(wrong) or f"fine: {alike}, and no text is on both sides"
    message = f"{message[0].upper()}{message[1:]}."
    return Guards(area, interval, SPLIT_CONFIDENCE, duplicates, leaks, message)


def _text_scores(members: set[tuple[str, ...]], non_members: set[tuple[str, ...]]) -> tuple[Floats, Floats]:
    """Out-of-fold scores of each side's distinct texts, (M') and (N'); higher means "member".

    The classifier is a logistic regression on words and bigrams. A split keeps all copies of a text together, so they
    are not independent evidence and we drop them.
    """
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import PredefinedSplit, cross_val_predict

    def words_and_bigrams(text: tuple[str, ...]) -> list[str]:
        return [*text, *(" ".join(pair) for pair in pairwise(("<s>", *text, "</s>")))]

    # Texts of each kind are dealt to the folds in turn, which balances the folds. A text that is on both sides goes to
    # one fold; otherwise the classifier would be trained on a text that it scores.
    rng = np.random.Generator(np.random.PCG64(0))
    kinds = (sorted(members & non_members), sorted(members - non_members), sorted(non_members - members))
    shuffled = [kind[i] for kind in kinds for i in rng.permutation(len(kind))]
    fold = {text: turn % FOLDS for turn, text in enumerate(shuffled)}
    texts = sorted(members) + sorted(non_members)
    is_member = np.arange(len(texts)) < len(members)
    scores = cross_val_predict(
        LogisticRegression(solver="liblinear"),
        CountVectorizer(analyzer=words_and_bigrams, binary=True).fit_transform(texts),  # words, no labels
        is_member,
        cv=PredefinedSplit([fold[text] for text in texts]),
        method="decision_function",
    )
    return scores[is_member], scores[~is_member]


# ---- Loss and logits -------------------------------------------------------------------------------------------------


class Signals(NamedTuple):
    """Loss and logits of n utterances, in order; float64, finite."""

    loss: Floats  # (n) training loss (no dropout): cross entropy of the intent plus the CRF's negative log-likelihood
    # (n, 2): logit of the true intent, from -`MOST` to `MOST`, and logit of the true tag sequence, from -`MOST` to
    # 27.6, the logit of exp(-`LEAST_NLL`). (n, 1) without slots.
    logits: Floats


def scored_batches(
    model: IntentSlotModel, utterances: Sequence[Utterance], batch_size: int
) -> Iterator[tuple[Batch, Tensor, Tensor | None, Tensor]]:
    """Yield batches of the utterances, in any order, with the model's scores without dropout."""
    model.eval()
    for batch in model.inference_batches(model.dataset(utterances), batch_size):
        log_intent, emissions, mask = model.scores(batch)
        if not (log_intent.isfinite().all() and (emissions is None or emissions.isfinite().all())):
            raise UsageError("the model has diverged (its scores are not finite): train it again with a lower --lr")
        yield batch, log_intent, emissions, mask


@torch.no_grad()
def signals(model: IntentSlotModel, utterances: Sequence[Utterance]) -> Signals:
    """Compute the loss and the logits of each utterance."""
    intents, nll = np.empty(len(utterances)), np.empty(len(utterances))
    for batch, log_intent, emissions, mask in scored_batches(model, utterances, BATCH):
        rows, log_p, true_intents = batch.examples.numpy(), log_intent.double(), batch.intents[:, None]
        others = log_p.scatter(1, true_intents, -torch.inf)
        intents[rows] = (log_p.gather(1, true_intents)[:, 0] - others.logsumexp(1)).cpu()
        if emissions is not None:
            assert batch.tags is not None
            tags, crf = to_padded(batch.tags, batch.lengths)[0], (model.crf.start, model.crf.transitions, model.crf.end)
            of_all = forward_backward(emissions, mask, *crf).log_partition
            nll[rows] = (of_all - path_score(emissions, tags, mask, *crf)).cpu()
    loss, intent_logit = np.logaddexp(0, -intents), np.clip(intents, -MOST, MOST)
    if not model.labels.tags:
        return Signals(loss, intent_logit[:, None])
    least = np.maximum(nll, LEAST_NLL)
    tags_logit = np.clip(-least - np.log(-np.expm1(-least)), -MOST, MOST)
    return Signals(loss + nll, np.stack([intent_logit, tags_logit], axis=-1))


def attack_loss(run: str | Path | Target) -> Attacked:
    """Run the loss-threshold attack, which classifies utterances with a low loss as members."""
    target = load_target(run)
    return judged(target, "loss", -signals(target.model, target.pool).loss, {})
