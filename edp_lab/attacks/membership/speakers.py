"""Which speakers was a model trained on? An attack on people, whom the epsilon of an utterance does not cover.

Whoever knows several utterances of a person averages over them what a single one gives away. They need not be those
that the model was trained on: one that has learnt a person's habits, and the names of their friends, is surer of
whatever they say next (Kandpal et al. 2024, "User Inference Attacks on Large Language Models"). The score is minus the
mean loss, as in the loss attack.

What a run promises is asked of one speaker in another's place: where its unit is the speaker, by the epsilon of its
ledger; where it is the utterance, by that of all utterances of the speaker who says most, which soon promises nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edp_lab.attacks.membership.attacks import Attacked, Target, load_attacked
from edp_lab.attacks.membership.signals import Floats, signals
from edp_lab.attacks.statistics import FPRS, LEAST_MEMBERS, summarise
from edp_lab.corpora import Utterance, load_corpus, split
from edp_lab.corpora.corpus import cap_speakers
from edp_lab.errors import UsageError
from edp_lab.models import IntentSlotModel
from edp_lab.training.config import CAP, MOST

GUARDS = {
    "leaks": False,
    "duplicates": 0,
    "said": "Speakers were dealt to both sides at random, each with all of their utterances.",
}


@dataclass(frozen=True)
class Crowd(Target):
    """As many speakers whom a model was trained on as others; of each, some of what they say."""

    owners: NDArray[np.int64]  # (n) whose each utterance of the pool is: members have the lower half of the numbers
    most: int  # utterances of the member who was trained on most of them

    @property
    def copies(self) -> int:
        """Of what the guarantee's unit is, how much is one speaker's."""
        return 1 if self.config.speakers else self.most

    @property
    def one(self) -> str:
        return "one speaker" if self.config.speakers else f"one speaker with up to {self.most} utterances"

    def sides(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores of speakers, of members and of others."""
        return scores[: len(scores) // 2], scores[len(scores) // 2 :]


def attack_speakers(
    run: str | Path, fresh: str | None = None, fprs: tuple[float, ...] = FPRS, confidence: float = 0.95
) -> Attacked:
    """Call those speakers members whose utterances have a low loss on average.

    Args:
        run: one whose split keeps speakers together.
        fresh: a corpus with further utterances of the same speakers, to be scored instead of those that the run split;
            what both hold is left out.
    """
    crowd = load_crowd(run, fresh)
    scores, guarantee = speaker_scores(crowd.model, crowd.pool, crowd.owners), crowd.guarantee
    epsilon, status = (None, "none") if guarantee is None else (guarantee.epsilon, guarantee.status)
    sides = crowd.sides(scores)
    result = summarise("speakers", *sides, epsilon, crowd.config.delta, GUARDS, fprs, confidence)
    about = {"run": str(crowd.folder), "guarantee": status, "fresh": fresh, "utterances": len(crowd.pool)}
    return Attacked(crowd, result, scores, about)


def speaker_scores(model: IntentSlotModel, utterances: Sequence[Utterance], owners: NDArray[np.int64]) -> Floats:
    """Minus the mean loss of each speaker's utterances: (n), (n) -> (S)."""
    return -np.bincount(owners, signals(model, utterances).loss) / np.bincount(owners)


def load_crowd(run: str | Path, fresh: str | None = None) -> Crowd:
    """The model of a run, with as many speakers of its training set as of its test set.

    Raises:
        UsageError: as `load_target`; speakers on both sides of the split; fewer than 50 of them on one.
    """
    folder, config, corpus, model = load_attacked(run)
    if not config.split["keep_speakers_together"]:
        raise UsageError(
            f"the run in {run} has the same speakers on both sides of its split: train one with --unit speaker or "
            "--keep-speakers-together"
        )
    data = split(corpus, config.seed, **config.split)
    cap = (config.cap or CAP) if config.speakers else MOST
    inside, outside = ([*_by_speaker(side, cap, config.seed, corpus.name).values()] for side in (data.train, data.test))
    most = max(map(len, inside))
    if fresh is not None:
        known = {u.line for u in corpus.utterances}
        more = tuple(u for u in load_corpus(fresh).utterances if u.line not in known and model.labels.covers(u))
        later = _by_speaker(more, MOST, config.seed, fresh) if more else {}
        inside, outside = ([later[o[0].speaker] for o in side if o[0].speaker in later] for side in (inside, outside))
    count = min(len(inside), len(outside))
    if count < LEAST_MEMBERS:
        raise UsageError(
            f"{count} speakers on a side are too few to say anything about an attack: it takes {LEAST_MEMBERS}, so "
            "train on a corpus of more speakers"
        )
    draw = np.random.default_rng(config.seed)
    people = [side[k] for side in (inside, outside) for k in np.sort(draw.permutation(len(side))[:count])]
    members, others = (tuple(u for own in side for u in own) for side in (people[:count], people[count:]))
    owners = np.repeat(np.arange(2 * count), [len(own) for own in people])
    return Crowd(folder, config, corpus, model, members, others, owners, most)


def _by_speaker(utterances: Sequence[Utterance], cap: int, seed: int, name: str) -> dict[str | None, list[Utterance]]:
    """At most so many of each, as in training."""
    kept, members = cap_speakers(utterances, cap, seed, name)
    return {kept[own[0]].speaker: [kept[k] for k in own] for own in members}
