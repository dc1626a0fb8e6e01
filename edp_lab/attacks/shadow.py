"""The paper's membership attack (section 4.2, after Shokri et al. 2017): a shadow model teaches a classifier.

The shadow model is trained on another, public corpus, whose members the attacker knows. A classifier learns to tell
members from non-members by the shadow's sorted output scores, and is then applied to the target's. Sorting makes
corpora with different labels comparable. It is an average-case attack.

Shadow models are trained as the target was, on training sets that the attacker knows. What attacks read from a model is
kept in ``CACHE/<key>.json``, by a digest of everything that it is a function of: settings, labels, training set, seed
and pretrained weights (see `edp_lab.jobs`). Unknown corpora and a cache that cannot be written are refused by
`UsageError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from edp_lab.attacks.loss import BATCH, Attacked, Floats, Target, equal_sides, judged, load_target, scored_batches
from edp_lab.corpora.catalog import find, load_corpus
from edp_lab.corpora.corpus import Corpus, Split, Utterance, split
from edp_lab.corpora.smart_home import DOMAINS, EMBEDDED_SEED, EMBEDDED_UTTERANCES, generate
from edp_lab.errors import UsageError
from edp_lab.files import user_cache, writable
from edp_lab.jobs import content_key, content_of, read_result, write_result
from edp_lab.models.intent_slot import IntentSlotModel
from edp_lab.training.config import TrainConfig
from edp_lab.training.trainer import Trainer

INTENT_WIDTH, SLOT_WIDTH = 8, 16  # sorted scores used: more are zero, or as good as zero, in most utterances
GENERATED = "generated"  # a fresh corpus from the grammar: public text like the embedded one
MOST_SHARED = 0.2  # of a shadow corpus' texts, or the target's: short commands coincide
OF_PRIVACY = (  # settings that SGD has not
    "clip_norm", "z0", "decay", "tau", "num_devices", "micro_batch_size", "sampling", "as_printed", "alpha", "delta",
    "noise",
)  # fmt: skip
PUBLIC = ("snips", "atis", "nlu-eval")


def attack_shadow(
    run: str | Path | Target,
    shadow: str | None = None,
    seed: int = 0,
    cache: Path | None = None,
    plain: bool = False,
    progress: Callable[[str], None] = lambda what: None,
) -> Attacked:
    """The paper's attack: how much each utterance looks like a member to a random forest taught by a shadow model.

    Of four classifiers, the forest found most between ATIS and SNIPS, in both directions.

    Args:
        shadow: public corpus, by name or path, or "generated"; None: the first other corpus that is downloaded.
        cache: where scores of shadow models are kept; None is `user_cache`.
        plain: train it by SGD, whatever the target's method.
    """
    from sklearn.ensemble import RandomForestClassifier

    target = load_target(run)
    name = shadow or default_shadow(target.config.corpus)
    corpus = shadow_corpus(name, target)
    if corpus.has_tags != target.corpus.has_tags:
        raise UsageError("target and shadow corpus must both have slot annotation, or both none: choose another shadow")
    shadow_seed = int(np.random.default_rng([seed, 2]).integers(2**40, 2**48))  # never the target's weights and noise
    data = split(corpus, shadow_seed)
    # Split as the target's, its training set no larger: how far a model overfits depends on it.
    data = replace(data, train=data.train[: len(target.members)])
    members, non_members = equal_sides(data, seed)
    config = settled(shadow_config(target.config, corpus, plain), shadow_seed)
    progress(f"shadow model on {'a newly generated corpus' if name == GENERATED else corpus.name}")
    taught = shadow_scores(config, corpus, data.train, members + non_members, cache)
    progress("attack")
    attacker = RandomForestClassifier(200, min_samples_leaf=20, random_state=seed % 2**32)
    attacker.fit(taught, np.arange(2 * len(members)) < len(members))
    scores = np.asarray(attacker.predict_proba(sorted_scores(target.model, target.pool))[:, 1])
    about = {"shadow_corpora": [name], "classifier": "forest", "seed": seed, "plain_shadows": plain}
    return judged(target, "shadow", scores, about)


@torch.no_grad()
def sorted_scores(model: IntentSlotModel, utterances: Sequence[Utterance]) -> Floats:
    """The paper's features (section 4.2: "sorted IC and NER output scores"): (n, `INTENT_WIDTH` + `SLOT_WIDTH`).

    First p(intent), largest first. Then the same for slots: at each token the CRF's marginals p(tag), largest first,
    and over the tokens of the utterance their mean. So no number depends on what labels mean, on how many there are
    (those beyond the width are cut, those that do not exist are 0, as their probability is) or on how long the
    utterance is. The true labels are not used. Without slots, the slot features are 0.
    """
    features = np.zeros((len(utterances), INTENT_WIDTH + SLOT_WIDTH))
    for batch, log_intent, emissions, mask in scored_batches(model, utterances, BATCH):
        rows = batch.examples.numpy()
        best = log_intent.double().exp().sort(-1, descending=True).values[:, :INTENT_WIDTH]
        features[rows, : best.shape[1]] = best.cpu()
        if emissions is not None:
            marginals = model.crf.marginals(emissions, mask).double().sort(-1, descending=True).values  # (B, T, K)
            best = (marginals.sum(1) / batch.lengths[:, None])[:, :SLOT_WIDTH]
            features[rows, INTENT_WIDTH : INTENT_WIDTH + best.shape[1]] = best.cpu()
    return features


# ---- Shadow models ---------------------------------------------------------------------------------------------------


def default_shadow(target_corpus: str, at_hand: Callable[[str], bool] = lambda name: find(name) is not None) -> str:
    """The first downloaded public corpus that is not the target's; without any, or for smart-home, a generated one."""
    if target_corpus.startswith("smart-home"):
        return GENERATED
    return next((name for name in PUBLIC if name != target_corpus and at_hand(name)), GENERATED)


def shadow_corpus(name: str, target: Target) -> Corpus:
    """Load a corpus by name or path, or generate it; refuse it if it shares much of its text with the target's."""
    if name == GENERATED:
        domain = target.config.corpus.removeprefix("smart-home-")
        return generate(EMBEDDED_UTTERANCES, EMBEDDED_SEED + 1, domain if domain in DOMAINS else None)
    corpus = load_corpus(name, target.config.tokens)
    known, given = ({u.text.lower() for u in source.utterances} for source in (target.corpus, corpus))
    if len(known & given) > MOST_SHARED * min(len(known), len(given)):
        raise UsageError(
            f"{name!r} shares {len(known & given)} texts with the target's own corpus, so its shadow model would give "
            "the attack the answers: choose another shadow"
        )
    return corpus


def shadow_config(target: TrainConfig, corpus: Corpus, plain: bool = False) -> TrainConfig:
    """The target's settings: the attacker is assumed to know them. Words, like the corpus, are the shadow's own.

    `plain`: the same training by SGD.
    """
    config = replace(target, corpus=corpus.name, processes=1, private_seed=False)
    usual = TrainConfig(corpus.name)
    return replace(config, method="sgd", **{name: getattr(usual, name) for name in OF_PRIVACY}) if plain else config


def shadow_scores(
    config: TrainConfig,
    corpus: Corpus,
    train: Sequence[Utterance],
    pool: Sequence[Utterance],
    cache: Path | None = None,
) -> Floats:
    """Sorted scores of a pool by the `shadow_model` of a training set, which is trained unless they are kept."""
    folder = shadow_cache(cache)
    key = content_key(["membership"], "sorted scores", training_key(config, corpus, train), [u.tokens for u in pool])
    kept = read_result(folder, key)
    if kept is None:
        scores = sorted_scores(shadow_model(config, corpus, train), pool)
        kept = write_result(folder, key, {"scores": scores.tolist()})
    return np.array(kept["scores"])


def settled(config: TrainConfig, seed: int) -> TrainConfig:
    """Settings of the same model in distribution, trained the fastest way and with repeatable noise."""
    method = "dp-sgd" if config.method == "dp-sgd-naive" else config.method
    return replace(config, seed=seed, method=method, processes=1, private_seed=False, noise="aggregate")


def shadow_model(config: TrainConfig, corpus: Corpus, train: Sequence[Utterance]) -> IntentSlotModel:
    """Train a model as `edp_lab.training.train` does on these utterances and settings, without a folder.

    `corpus` brings the label sets; the seed of `config` shuffles `train`.
    """
    run = Trainer(config, corpus, Split(tuple(train), validation=tuple(train[:1]), test=()))
    for _ in range(config.epochs):
        run.epoch()
    return run.model.cpu().eval()


def shadow_cache(folder: Path | None) -> Path:
    """The folder for results of shadow models; None is the user's cache."""
    return writable(user_cache() / "shadows" if folder is None else folder, "choose another --cache")


def training_key(config: TrainConfig, corpus: Corpus, utterances: Sequence[Utterance]) -> str:
    """Digest of what shadow models trained on some of these utterances have in common, and of their order."""
    settings = replace(config, corpus="", alpha=None, pretrained=None)
    weights = None if config.pretrained is None else content_of(config.pretrained)
    content = [[u.tokens, u.tags, u.intent] for u in utterances]
    return content_key(
        ["training", "membership"], settings, config.alpha, weights, corpus.intents, corpus.tags, content
    )
