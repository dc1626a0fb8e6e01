"""The paper's attack (section 4.3, after Shokri et al. 2017): a shadow model teaches what members look like.

A shadow model is trained on another, public corpus, where the attacker knows who was a member. A classifier learns to
tell members from non-members by the shadow's sorted output scores, and is then applied to the target's. Sorting makes
corpora with different labels comparable. It is an average-case attack;
`edp_lab.attacks.membership.lira` is a stronger one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edp_lab.attacks.membership.shadow_models import train_shadow
from edp_lab.attacks.membership.signals import sorted_scores
from edp_lab.attacks.membership.target import Target, equal_sides
from edp_lab.corpora import Corpus, Split, load_corpus, split
from edp_lab.corpora.catalog import find
from edp_lab.corpora.smart_home import DOMAINS, EMBEDDED_SEED, EMBEDDED_UTTERANCES, generate
from edp_lab.errors import UsageError
from edp_lab.training import TrainConfig

INTENT_WIDTH, SLOT_WIDTH = 8, 16  # scores used: more are zero, or as good as zero, in most utterances
CLASSIFIERS = ("forest", "boosting", "logistic", "mlp")
GENERATED = "generated"  # a fresh corpus from the grammar: public text like the embedded one
MOST_SHARED = 0.2  # of a shadow corpus' texts, or the target's: short commands coincide
OF_PRIVACY = (  # settings that SGD has not
    "clip_norm", "z0", "decay", "tau", "num_devices", "micro_batch_size", "sampling", "as_printed", "alpha", "delta",
    "noise",
)  # fmt: skip
PUBLIC = ("snips", "atis", "nlu-eval")


def shadow_scores(
    target: Target,
    shadows: Sequence[str] = (),
    classifier: str = "forest",
    seed: int = 0,
    cache: Path | None = None,
    plain: bool = False,
    progress: Callable[[str], None] = lambda what: None,
) -> np.ndarray:
    """How much each utterance of the target's pool looks like a member: (n), larger is more.

    Args:
        shadows: public corpora, by name or path, or "generated"; none: the first that is at hand and another one.
        classifier: of `CLASSIFIERS`.
        cache: where trained shadow models are kept.
        plain: train them by SGD, whatever the target's method.

    Raises:
        UsageError: a negative seed, an unknown classifier or corpus, or the target's own corpus as its shadow.
    """
    if seed < 0:
        raise UsageError(f"seed {seed} is negative: use 0 or more")
    attacker = attack_model(classifier, seed % 2**32)
    names = shadows or [default_shadow(target.config.corpus)]
    corpora = [shadow_corpus(name, target) for name in names]
    own_seed = int(np.random.default_rng([seed, 2]).integers(2**40, 2**48))  # never the target's weights and noise
    if corpora[0].has_tags != target.corpus.has_tags or len({corpus.has_tags for corpus in corpora}) > 1:
        raise UsageError("target and shadow corpus must both have slot annotation, or both none: choose another shadow")
    examples, labels = [], []
    for name, corpus in zip(names, corpora, strict=True):
        data = shadow_split(corpus, own_seed, len(target.members))
        progress(f"shadow model on {'a newly generated corpus' if name == GENERATED else corpus.name}")
        config = shadow_config(without_privacy(target.config) if plain else target.config, corpus)
        model = train_shadow(config, corpus, data.train, own_seed, cache)
        members, non_members = equal_sides(data, seed)
        examples.append(sorted_scores(model, members + non_members, INTENT_WIDTH, SLOT_WIDTH))
        labels.append(np.arange(2 * len(members)) < len(members))
    progress("attack")
    attacker.fit(np.concatenate(examples), np.concatenate(labels))
    found = sorted_scores(target.model, target.pool, INTENT_WIDTH, SLOT_WIDTH)
    return np.asarray(attacker.predict_proba(found)[:, 1])


def attack_model(name: str, seed: int) -> Any:
    """A scikit-learn classifier with ``predict_proba``.

    The default is the one that found most between ATIS and SNIPS, in both directions, which flatters it a little there.

    Raises:
        UsageError: an unknown name.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if name == "boosting":
        return HistGradientBoostingClassifier(max_iter=100, learning_rate=0.05, max_leaf_nodes=8, random_state=seed)
    if name == "logistic":
        return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    if name == "forest":
        return RandomForestClassifier(200, min_samples_leaf=20, random_state=seed)
    if name == "mlp":
        network = MLPClassifier((64,), early_stopping=True, max_iter=200, random_state=seed)
        return make_pipeline(StandardScaler(), network)
    raise UsageError(f"unknown attack model {name!r}: choose one of {', '.join(CLASSIFIERS)}")


def default_shadow(own: str) -> str:
    """The first public corpus at hand that is not the target's; without any, or for smart-home, a generated one."""
    if own.startswith("smart-home"):
        return GENERATED
    others = (name for name in PUBLIC if not own.startswith(name))  # snips-original holds what snips does
    return next((name for name in others if find(name) is not None), GENERATED)


def shadow_corpus(name: str, target: Target) -> Corpus:
    """
    Raises:
        UsageError: an unknown corpus, or one that shares much of its text with the target's.
    """
    if name == GENERATED:
        domain = target.config.corpus.removeprefix("smart-home-")
        return generate(EMBEDDED_UTTERANCES, EMBEDDED_SEED + 1, domain if domain in DOMAINS else None)
    corpus = load_corpus(name)
    known, given = (_texts(one) for one in (target.corpus, corpus))
    if len(known & given) > MOST_SHARED * min(len(known), len(given)):
        raise UsageError(
            f"{name!r} shares {len(known & given)} texts with the target's own corpus, so its shadow model would give "
            "the attack the answers: choose another shadow"
        )
    return corpus


def _texts(corpus: Corpus) -> set[str]:
    return {" ".join(u.tokens).lower() for u in corpus.utterances}


def shadow_split(corpus: Corpus, seed: int, members: int) -> Split:
    """The shadow corpus split as the target's, its training set no larger: how far a model overfits depends on it."""
    data = split(corpus, seed)
    return replace(data, train=data.train[:members])


def shadow_config(target: TrainConfig, corpus: Corpus) -> TrainConfig:
    """The target's settings: the attacker is assumed to know them. Words, like the corpus, are the shadow's own.

    So are layer scales: public ones come from a corpus with the target's labels, which the shadow lacks.
    """
    public = (target.alpha or "").startswith("public")
    alpha = None if public else target.alpha
    return replace(target, corpus=corpus.name, processes=1, private_seed=False, alpha=alpha)


def without_privacy(config: TrainConfig) -> TrainConfig:
    """The same training by SGD."""
    usual = TrainConfig(config.corpus)
    return replace(config, method="sgd", **{name: getattr(usual, name) for name in OF_PRIVACY})
