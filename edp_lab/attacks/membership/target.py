"""The model under attack: its run, whom it was trained on, and what its guarantee says about finding that out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from edp_lab.attacks.membership.guards import LEAST_MEMBERS
from edp_lab.corpora import Corpus, Split, Utterance, load_corpus, split
from edp_lab.corpora.encoding import Labels
from edp_lab.errors import UsageError
from edp_lab.models import load_model
from edp_lab.models.factory import model_checksum
from edp_lab.models.intent_slot import IntentSlotModel
from edp_lab.privacy import Adjacency, Guarantee, judge
from edp_lab.training import TrainConfig
from edp_lab.training.inference import run_ledger
from edp_lab.training.run_folder import MODEL, read_record
from edp_lab.training.run_session import run_config


@dataclass(frozen=True)
class Target:
    """A trained model, and as many members as non-members for an attack to tell apart.

    Attributes:
        members: utterances of the training set, drawn at random if it is larger than the test set.
        non_members: as many of the test set.
    """

    folder: Path
    config: TrainConfig
    corpus: Corpus
    model: IntentSlotModel
    members: tuple[Utterance, ...]
    non_members: tuple[Utterance, ...]

    @property
    def copies(self) -> int:
        """How often the most frequent text occurs on its side."""
        return max(Counter(u.tokens for side in (self.members, self.non_members) for u in side).values())

    @property
    def pool(self) -> tuple[Utterance, ...]:
        """Members first."""
        return self.members + self.non_members

    @property
    def texts(self) -> np.ndarray:
        """The number of each utterance's text, of the pool: (n)."""
        numbers: dict[tuple[str, ...], int] = {}
        return np.array([numbers.setdefault(u.tokens, len(numbers)) for u in self.pool])

    def sides(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores of the pool, one row each, of members and of non-members."""
        return scores[: len(self.members)], scores[len(self.members) :]

    @cached_property
    def guarantee(self) -> Guarantee | None:
        """What the run guarantees against telling one utterance from another in its place; None without noise.

        A member and a non-member of a random split of fixed sizes have changed places, so what counts is replace-one:
        under Poisson sampling, one utterance less and another more. All copies of a text are on one side, so a text
        counts as often as the most frequent one.
        """
        if self.config.method == "sgd":
            return None
        ledger = run_ledger(self.folder)
        swap: dict[str, Any] = {"utterances_per_person": self.copies}
        if self.config.poisson:
            swap["utterances_per_person"] *= 2
        else:
            swap["adjacency"] = Adjacency.REPLACE_ONE
        delta = self.config.delta
        assert delta is not None, "records hold the delta that was used"
        return judge(ledger.mechanism, ledger.bill(), delta, not self.config.private_seed, **swap)


def load_target(run: str | Path) -> Target:
    """The model of a run with members from its training set and an equal number of non-members from its test set.

    Raises:
        UsageError: no run there, an unfinished one, its corpus is missing or has changed, the model is not the one of
            the record, or there are too few members.
    """
    folder, record = Path(run), read_record(run)
    if record["status"] not in ("finished", "interrupted"):
        raise UsageError(f"the run in {folder} is {record['status']}: finish it with edp-lab train --resume {folder}")
    config = run_config(record)
    corpus = load_corpus(config.corpus)
    if corpus.sha256 != record["corpus"]["sha256"]:
        raise UsageError(
            f"the content of corpus {config.corpus!r} has changed since {run} was trained: restore it, or train anew"
        )
    model = load_model(folder / MODEL)
    if model.labels != Labels.of(corpus) or model_checksum(model) != record.get("model_sha256"):
        raise UsageError(f"the model in {folder / MODEL} is not the one of the run's record: restore it from a copy")
    data = split(corpus, config.seed, keep_duplicates_together=config.keep_duplicates_together)
    members, non_members = equal_sides(data, config.seed)
    return Target(folder, config, corpus, model.eval(), members, non_members)


def equal_sides(data: Split, seed: int) -> tuple[tuple[Utterance, ...], tuple[Utterance, ...]]:
    """As many of the training set as of the test set, drawn at random.

    Raises:
        UsageError: fewer than `LEAST_MEMBERS`.
    """
    count = min(len(data.train), len(data.test))
    if count < LEAST_MEMBERS:
        raise UsageError(
            f"{count} members are too few to say anything about an attack: it takes {LEAST_MEMBERS}, so train on a "
            "larger corpus"
        )
    draw = np.random.default_rng(seed)
    return _some(data.train, count, draw), _some(data.test, count, draw)


def _some(utterances: Sequence[Utterance], count: int, draw: np.random.Generator) -> tuple[Utterance, ...]:
    return tuple(utterances[k] for k in np.sort(draw.permutation(len(utterances))[:count]))
