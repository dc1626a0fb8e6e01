"""An audit by one run (Steinke, Nasr and Jagielski 2023): many canaries at once, each in or out by a fair coin.

Whoever sees what the run released scores every canary, guesses "in" for the highest and "out" for the lowest, and is
right more often than a false claim allows. A canary that is out keeps its slot and contributes no gradient, so that in
and out are zero-out neighbours, the ones that the judge bills with disjoint batches; with Poisson sampling and
micro-batch size 1 the very same is add/remove. Canaries of one step lie in different micro-batches. Two kinds:

* gradient (white box): canary i pushes its micro-batch along a direction e_i of its own, orthogonal to the others', as
  hard as the clip allows: to +C e_i where it is in. Where it is out, to 0 if it was alone, else to -C e_i, because a
  further utterance, which is always there, pushes the other way. So the two are as far apart as the sensitivity (up to
  the rest of the micro-batch, which keeps a tenth of C): C or 2C. The score adds up the inner product of e_i with what
  is released over the steps in which the canary could take part (under Poisson sampling its likelihood ratio).
* mislabelled (black box): utterances from outside the training set with a wrong intent are put into it. The score is
  minus their loss under the trained model. This proves less than the guarantee may give away, and never more.

alpha is 1 on every layer: what leaks through private layer scales comes on top. Order and places of the canaries are
public, as they may be where no sampling amplifies privacy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral

import numpy as np

from edp_lab.attacks.audit.one_run_bound import OneRunBounds, Tally, lower_bounds, make_guesses
from edp_lab.attacks.audit.one_run_canaries import (
    Kind,
    OneLayer,
    Plan,
    Progress,
    RealModel,
    gradient_scores,
    mislabelled_scores,
)
from edp_lab.attacks.audit.step_audit import Verdict
from edp_lab.corpora import Corpus, Split, load_corpus, split
from edp_lab.errors import UsageError
from edp_lab.privacy import Alpha, Guarantee, Mechanism, Variant, judge
from edp_lab.privacy.calibration import Budget, calibrate_z0
from edp_lab.privacy.csprng import key_from_seed
from edp_lab.training import TrainConfig

MOST_CANARIES = 10**6
DELTA = 1e-5


@dataclass(frozen=True)
class OneRunAudit:
    """What was claimed for a run, what holds, and what the guesses prove.

    Attributes:
        model: "clc", "bert", or "linear", the one-layer audit model.
        epsilon_claimed: the claim under test: as printed, the paper's zCDP; sound, the epsilon that holds.
        epsilon_holds: the judge's answer.
        epsilon_lower_bound: epsilon is at least this, at `confidence`: the Gaussian bound with disjoint batches, where
            the mechanism is Gaussian; the distribution-free one with Poisson sampling.
        bounds: both.
        ceiling: the lower bound that guesses without a single error would give.
        guesses, correct: those behind the lower bound; `tallies` are all that were tried, and paid for.
        canaries: m, of which `included` were in.
        steps: optimizer steps of the run.
        noise_multiplier: true noise over true sensitivity.
    """

    verdict: Verdict
    explanation: str
    kind: Kind
    model: str
    epsilon_claimed: float
    epsilon_holds: float | None
    epsilon_lower_bound: float
    bounds: OneRunBounds
    ceiling: float
    confidence: float
    delta: float
    canaries: int
    included: int
    guesses: int
    correct: int
    tallies: tuple[Tally, ...]
    epochs: int
    steps: int
    adjacency: str
    noise_multiplier: float
    mechanism: Mechanism


def audit_one_run(
    config: TrainConfig,
    canaries: int = 1000,
    kind: Kind | str = Kind.GRADIENT,
    linear: bool = False,
    confidence: float = 0.95,
    target_epsilon: float | None = None,
    progress: Progress | None = None,
) -> OneRunAudit:
    """Train once with canaries, as `config` says, and bound epsilon from below by what the run gives away.

    Args:
        config: its seed decides noise, canaries and order; `delta` None is 1e-5. Batches are cut so that no two
            canaries share a micro-batch, which may take more steps than plain training.
        linear: not the model and corpus of `config` but one layer of as many weights as canaries, with no other data.
        target_epsilon: choose z0 so that this epsilon holds for the run.

    Guarantee: if the noise is as good as random, epsilon is at least `epsilon_lower_bound` with probability
    `confidence`, so a true claim is refuted in at most 1 - `confidence` of audits: see
    `edp_lab.attacks.audit.one_run_bound`.

    Raises:
        UsageError: no noise, no finite claim, a corpus that does not load, more canaries than the model or the corpus
            can carry, or a number out of range.
    """
    kind = _kind(kind)
    _check(config, canaries, kind, linear, confidence)
    corpus, data = (None, None) if linear else _load(config, canaries, kind)
    utterances = 0 if data is None else len(data.train)
    config, mechanism = _settle(config, utterances + canaries, target_epsilon)
    guarantee = judge(mechanism, config.epochs, config.delta or DELTA, seed_published=False)
    claimed = _claimed(guarantee, mechanism)
    plan = Plan.draw(config, canaries, utterances, kind)
    scores = _scores(config, mechanism, corpus, data, plan, kind, progress or (lambda done, steps: None))
    tallies = make_guesses(scores, plan.included)
    perfect = [Tally(tally.guesses, tally.guesses) for tally in tallies]
    bounds, most = (
        lower_bounds(canaries, own, guarantee.delta, confidence, gaussian=plan.disjoint) for own in (tallies, perfect)
    )
    verdict = _verdict(bounds.best, claimed, most.best)
    return OneRunAudit(
        verdict=verdict,
        explanation=_explanation(verdict, canaries, bounds, claimed, most.best, confidence),
        kind=kind,
        model="linear" if linear else config.model,
        epsilon_claimed=claimed,
        epsilon_holds=guarantee.epsilon,
        epsilon_lower_bound=bounds.best,
        bounds=bounds,
        ceiling=most.best,
        confidence=confidence,
        delta=guarantee.delta,
        canaries=canaries,
        included=int(plan.included.sum()),
        guesses=bounds.tally.guesses,
        correct=bounds.tally.correct,
        tallies=tallies,
        epochs=config.epochs,
        steps=config.epochs * plan.batches.steps_per_epoch,
        adjacency=guarantee.adjacency,
        noise_multiplier=mechanism.noise_multiplier(0),
        mechanism=mechanism,
    )


def _scores(
    config: TrainConfig,
    mechanism: Mechanism,
    corpus: Corpus | None,
    data: Split | None,
    plan: Plan,
    kind: Kind,
    progress: Progress,
) -> np.ndarray:
    m = len(plan.included)
    if corpus is None or data is None:
        one_layer = OneLayer(mechanism, key_from_seed(config.seed), m, config.micro_batches)
        return gradient_scores(one_layer, mechanism, config, plan, progress)
    if kind is Kind.GRADIENT:
        return gradient_scores(RealModel(config, corpus, data, m), mechanism, config, plan, progress)
    return mislabelled_scores(config, corpus, data, plan, progress)


# ---- Verdict -------------------------------------------------------------------------------------------------------


def _verdict(lower_bound: float, claimed: float, ceiling: float) -> Verdict:
    if lower_bound > claimed:
        return Verdict.REFUTED
    return Verdict.NO_POWER if ceiling <= claimed else Verdict.CONSISTENT


def _explanation(
    verdict: Verdict, m: int, bounds: OneRunBounds, claimed: float, ceiling: float, confidence: float
) -> str:
    tally = bounds.tally
    shown = (
        f"{tally.correct:,} of {tally.guesses:,} guesses are right, so at {100 * confidence:.6g} % confidence epsilon "
        f"is at least {bounds.best:.4g}"
    )
    if verdict is Verdict.REFUTED:
        return f"{m:,} canaries in one run refute the claim: {shown}, but {claimed:.4g} is claimed."
    if verdict is Verdict.NO_POWER:
        return (
            f"{m:,} canaries in one run cannot test the claim: even without a wrong guess they would show no more than "
            f"epsilon {ceiling:.4g}, and {claimed:.4g} is claimed."
        )
    return (
        f"{m:,} canaries in one run do not contradict the claim, which proves nothing: {shown}, and {claimed:.4g} is "
        "claimed."
    )


# ---- What is asked for ---------------------------------------------------------------------------------------------


def _load(config: TrainConfig, canaries: int, kind: Kind) -> tuple[Corpus, Split]:
    corpus = load_corpus(config.corpus)
    data = split(corpus, config.seed, keep_duplicates_together=config.keep_duplicates_together)
    if kind is Kind.MISLABELLED and len(corpus.intents) < 2:
        raise UsageError(f"corpus {corpus.name!r} has one intent only, so none can be wrong: use --kind gradient")
    if kind is Kind.MISLABELLED and canaries > len(data.test):
        raise UsageError(
            f"{canaries:,} canaries, but only {len(data.test):,} utterances of {corpus.name!r} are left to mislabel: "
            "lower --canaries"
        )
    return corpus, data


def _settle(config: TrainConfig, examples: int, target_epsilon: float | None) -> tuple[TrainConfig, Mechanism]:
    """The configuration with the z0 that the target asks for, and what a step of it releases."""
    mechanism = config.mechanism(examples)
    assert mechanism is not None
    if target_epsilon is None:
        return config, mechanism
    if config.as_printed:
        raise UsageError("a target epsilon needs the sound mechanism: with Algorithm 1 as printed, choose z0")
    budget = Budget(target_epsilon, config.delta or DELTA)
    z0 = calibrate_z0(replace(mechanism, z0=1.0), config.epochs, budget)
    return replace(config, z0=z0), replace(mechanism, z0=z0)


def _claimed(guarantee: Guarantee, mechanism: Mechanism) -> float:
    sound = mechanism.variant is Variant.SOUND
    claimed = guarantee.epsilon if sound else guarantee.epsilon_claimed
    if claimed is None:
        why = guarantee.reason if sound or mechanism.z0 == 0 else "the claimed epsilon exceeds the largest float"
        raise UsageError(f"there is no claim to audit ({why}): choose a larger z0")
    return claimed


def _kind(name: str) -> Kind:
    try:
        return Kind(name)
    except ValueError:
        raise UsageError(f"unknown kind of canary {name!r}: choose {' or '.join(Kind)}") from None


def _check(config: TrainConfig, canaries: int, kind: Kind, linear: bool, confidence: float) -> None:
    if config.method == "sgd":
        raise UsageError("plain training claims no epsilon: audit edp-sgd or dp-sgd")
    if config.alpha_source is not Alpha.NONE:
        raise UsageError("this audit takes every layer scale alpha to be 1: choose alpha 'none'")
    if config.poisson and config.largest_micro_batch > 1:
        raise UsageError(
            "with Poisson sampling a canary must be alone in its micro-batch, or its empty slot would change the mean "
            "of the others: take disjoint batches (--sampling shuffle), or --method dp-sgd"
        )
    if linear and kind is Kind.MISLABELLED:
        raise UsageError("the linear model reads no utterances: use --kind gradient, or another --model")
    if not (isinstance(canaries, Integral) and 1 <= canaries <= MOST_CANARIES):
        raise UsageError(f"the number of canaries is {canaries}: it must be a whole number from 1 to {MOST_CANARIES:,}")
    if not 0 < confidence < 1:
        raise UsageError(f"confidence is {confidence}: it must lie between 0 and 1, such as 0.95")
