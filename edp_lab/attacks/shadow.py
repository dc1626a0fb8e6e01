"""The paper's membership attack (section 4.2, after Shokri et al. 2017): a classifier trained on a shadow model.

The shadow model is trained on a different, public corpus, so the attacker knows its members. A classifier learns to
distinguish members from non-members by the shadow model's sorted output scores, and is then applied to the target's
scores. Sorting makes corpora with different labels comparable. This is an average-case attack.

Shadow models are trained like the target, on training sets that the attacker knows. Their outputs are cached in
``CACHE/<key>.json``. The key is a digest of everything that the outputs depend on: settings, labels, training set, seed
and pretrained weights (see `edp_lab.jobs`). Raises UsageError if a corpus is unknown or the cache cannot be written.
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

INTENT_WIDTH, SLOT_WIDTH = 8, 16  # number of sorted scores used; the others are almost zero for most utterances
GENERATED = "generated"  # a newly generated corpus: public text from the same grammar as the built-in corpus
MOST_SHARED = 0.2  # largest share of the smaller corpus that the other may contain: short commands often coincide
OF_PRIVACY = (  # settings that SGD lacks
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
    """Run the paper's attack: score each utterance with a random forest trained on a shadow model's outputs.

    Of four classifiers, the random forest worked best, both for ATIS with a shadow model on SNIPS and vice versa.

    Args:
        shadow: name or path of a public corpus, or "generated"; None for `default_shadow`.
        cache: folder for scores of shadow models; None for `user_cache`.
        plain: train the shadow model with SGD, whatever the target's method.
    """
    from sklearn.ensemble import RandomForestClassifier

    target = load_target(run)
    name = shadow or default_shadow(target.config.corpus)
    corpus = shadow_corpus(name, target)
    if corpus.has_tags != target.corpus.has_tags:
        raise UsageError("only one of target and shadow corpus has slot annotation: choose another shadow corpus")
    shadow_seed = int(np.random.default_rng([seed, 2]).integers(2**40, 2**48))  # differs from the target's seeds
    data = split(corpus, shadow_seed)
    # Split like the target's corpus, with a training set that is no larger, because overfitting depends on its size.
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

    The intent features are the probabilities p(intent) in descending order. The slot features are the CRF's marginals
    p(tag), sorted in descending order at each token and averaged over the tokens. Scores beyond the width are dropped,
    and missing scores are 0. So features do not depend on the meaning of the labels, on their number or on the length
    of the utterance. The true labels are not used. Without slots, the slot features are 0.
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
    """First available public corpus other than the target's; "generated" if there is none, or for smart-home."""
    if target_corpus.startswith("smart-home"):
        return GENERATED
    return next((name for name in PUBLIC if name != target_corpus and at_hand(name)), GENERATED)


def shadow_corpus(name: str, target: Target) -> Corpus:
    """Load a corpus by name or path, or generate it; UsageError if it shares many texts with the target's."""
    if name == GENERATED:
        domain = target.config.corpus.removeprefix("smart-home-")
        return generate(EMBEDDED_UTTERANCES, EMBEDDED_SEED + 1, domain if domain in DOMAINS else None)
    corpus = load_corpus(name, target.config.tokens)
    known, given = ({u.text.lower() for u in source.utterances} for source in (target.corpus, corpus))
    if len(known & given) > MOST_SHARED * min(len(known), len(given)):
        raise UsageError(
            f"{name!r} shares {len(known & given)} texts with the target's corpus, so its shadow model would know the "
            "answers: choose another shadow corpus"
        )
    return corpus


def shadow_config(target: TrainConfig, corpus: Corpus, plain: bool = False) -> TrainConfig:
    """The target's settings, which the attacker is assumed to know, with the shadow's corpus and vocabulary.

    `plain`: replace the method with SGD.
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
    """Sorted scores of a pool, from the cache or from a `shadow_model` of the training set."""
    folder = shadow_cache(cache)
    key = content_key(["membership"], "sorted scores", training_key(config, corpus, train), [u.tokens for u in pool])
    kept = read_result(folder, key)
    if kept is None:
        scores = sorted_scores(shadow_model(config, corpus, train), pool)
        kept = write_result(folder, key, {"scores": scores.tolist()})
    return np.array(kept["scores"])


def settled(config: TrainConfig, seed: int) -> TrainConfig:
    """Settings that produce the same distribution of models with the fastest training and reproducible noise."""
    method = "dp-sgd" if config.method == "dp-sgd-naive" else config.method
    return replace(config, seed=seed, method=method, processes=1, private_seed=False, noise="aggregate")


def shadow_model(config: TrainConfig, corpus: Corpus, train: Sequence[Utterance]) -> IntentSlotModel:
    """Train the model that `edp_lab.training.train` would train on these utterances, without a run folder.

    `corpus` supplies the label sets; the seed of `config` shuffles `train`.
    """
    run = Trainer(config, corpus, Split(tuple(train), validation=tuple(train[:1]), test=()))
    for _ in range(config.epochs):
        run.epoch()
    return run.model.cpu().eval()


def shadow_cache(folder: Path | None) -> Path:
    """Folder for results of shadow models, in the user's cache if `folder` is None."""
    return writable(user_cache() / "shadows" if folder is None else folder, "choose another --cache")


def training_key(config: TrainConfig, corpus: Corpus, utterances: Sequence[Utterance]) -> str:
    """Digest of the settings and data shared by shadow models that are trained on parts of these utterances."""
    settings = replace(config, corpus="", alpha=None, pretrained=None)
    weights = None if config.pretrained is None else content_of(config.pretrained)
    content = [[u.tokens, u.tags, u.intent] for u in utterances]
    return content_key(
        ["training", "membership"], settings, config.alpha, weights, corpus.intents, corpus.tags, content
    )
