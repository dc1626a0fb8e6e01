"""Judge a run: the epsilon that its mechanism guarantees, and the epsilon that the paper's accounting claims."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context, Decimal

from edp_lab.errors import check_whole
from edp_lab.privacy.gdp import Accountant, GaussianDP, check_delta
from edp_lab.privacy.mechanism import Adjacency, Mechanism, NoGuarantee
from edp_lab.privacy.pld import GroupRenyiDP, PrivacyLossDistribution
from edp_lab.privacy.schedule import releases_by_epoch, schedule_of
from edp_lab.privacy.zcdp import claim

SMALLEST_NOISE = 2.0**-20  # relative to the sensitivity; smaller noise may not change a float32 gradient
SMALLEST_STD = 1e-30  # below this, float32 noise underflows
SMALLEST_CLIP = 1e-6  # below this, squares of float32 may underflow with small layer scales, and clipping may fail

HOLDS, VOID, IDEAL = "holds", "void: seed published", "for real numbers only"  # statuses with an epsilon
# The condition under which this epsilon holds.
CONDITIONS = {HOLDS: "", VOID: "with a secret seed", IDEAL: "with exact noise and a secret seed"}
PUBLISHED = "epsilon assumes secret randomness, and this run's noise can be redrawn from its published seed"
FLOATS = (
    "epsilon is valid for real numbers only: the noise here is a float, whose last bits can reveal what it was added "
    "to (Mironov 2012)"
)


@dataclass(frozen=True)
class Guarantee:
    """The guarantee of a run, and its limits.

    Attributes:
        status: `HOLDS`, `IDEAL` (the released noise is a float), `VOID` (the exact noise can be redrawn) or "none";
            `reason` explains it.
        scope: accountant, unit, neighbours, sampling, adversary, assumptions and exclusions.
        method: the accountant that proves `conditional_epsilon`, or would prove it; "none" without noise.
        adjacency: the neighbouring relation, named as in dp_accounting.
        epochs: the number of epochs, including a partial epoch.
        mu: the Gaussian-DP parameter if the accounting is exact, otherwise None.
        conditional_epsilon: the epsilon at `delta` under the `condition`; None if there is no guarantee.
        claimed_epsilon: the epsilon that the paper's accounting claims for the same z_t; None if it claims none.
        epsilon_if_alpha_public: the `conditional_epsilon` if a private alpha were public.
    """

    status: str
    scope: str
    reason: str
    delta: float
    method: str
    adjacency: str
    sampling: str
    epochs: int
    mu: float | None
    conditional_epsilon: float | None
    claimed_epsilon: float | None
    epsilon_if_alpha_public: float | None

    @property
    def guaranteed_epsilon(self) -> float | None:
        """The epsilon guaranteed for the run; None if it depends on a condition that is not met."""
        return self.conditional_epsilon if self.status == HOLDS else None

    @property
    def condition(self) -> str:
        """The condition of `conditional_epsilon`, such as "with a secret seed"; empty if the guarantee holds."""
        return CONDITIONS.get(self.status, "")


def judge(
    mechanism: Mechanism | None,
    releases: int | Mapping[int, int],
    delta: float,
    seed_published: bool = True,
    adjacency: Adjacency | str | None = None,
    utterances_per_person: int = 1,
) -> Guarantee:
    """Judge the releases of a run; `mechanism` is None for training without noise.

    The status is `HOLDS` only if the noise is secret and exact. Accountants assume real numbers, and floating-point
    noise lets an attacker distinguish the outputs of neighbours.

    Args:
        releases: number of epochs, or for each epoch the number of releases in which an utterance may have taken part
            (see `releases_by_epoch` and `PrivacyLedger.releases_by_epoch`).
        utterances_per_person: the guarantee covers anyone with up to this many utterances.

    Raises:
        UsageError: delta outside (0, 1), an unknown adjacency, or counts that are not whole numbers.
    """
    check_delta(delta)
    check_whole("utterances per person", utterances_per_person, 1)
    if mechanism is None:
        epochs = len(releases) if isinstance(releases, Mapping) else releases
        return replace(_blank(None, delta, int(epochs)), reason="trained without clipping and noise")
    releases, people = releases_by_epoch(mechanism, releases), utterances_per_person
    neighbours = mechanism.neighbours(adjacency)
    blank = _blank(mechanism, delta, len(releases), neighbours, people)
    if mechanism.z0 == 0:
        return replace(blank, reason=mechanism.why_no_guarantee())
    blank = replace(blank, claimed_epsilon=claim(mechanism, releases, delta).epsilon)
    try:
        accountant = accountant_for(mechanism.with_public_alpha(), releases, neighbours, people)
        bound = accountant.bound(delta)
        epsilon = representable(bound.epsilon, mechanism, releases)
    except NoGuarantee as none:
        return replace(blank, reason=mechanism.why_no_guarantee() or str(none))
    scope = scope_of(mechanism, neighbours, people, bound.method)
    blank = replace(blank, epsilon_if_alpha_public=epsilon, method=bound.method, scope=scope)
    if mechanism.why_no_guarantee():
        return replace(blank, reason=mechanism.why_no_guarantee())
    mu = accountant.mu if isinstance(accountant, GaussianDP) else None
    held = replace(blank, mu=mu, conditional_epsilon=epsilon)
    if not mechanism.exact_noise:
        return replace(held, status=IDEAL, reason=f"{FLOATS}; {PUBLISHED}" if seed_published is not False else FLOATS)
    if seed_published is not False:
        return replace(held, status=VOID, reason=PUBLISHED)
    return replace(held, status=HOLDS, reason="secret randomness and exact noise")


def accountant_for(
    mechanism: Mechanism,
    releases: Mapping[int, int],
    adjacency: Adjacency | str | None = None,
    utterances_per_person: int = 1,
) -> Accountant:
    """Return the accountant for this mechanism: the closed form, or privacy loss distributions for Poisson sampling.

    Group privacy covers a person with several sampled utterances. Raises NoGuarantee like `schedule_of`.
    """
    check_whole("utterances per person", utterances_per_person, 1)
    schedule = schedule_of(mechanism, releases, adjacency)
    if utterances_per_person == 1:
        return _kind(mechanism, 1)(schedule)
    if mechanism.sampling_rate is None:
        return GaussianDP(schedule).group(utterances_per_person)
    return GroupRenyiDP(schedule, utterances_per_person)


def _kind(mechanism: Mechanism, utterances_per_person: int) -> type[Accountant]:
    if mechanism.sampling_rate is None:
        return GaussianDP
    return GroupRenyiDP if utterances_per_person > 1 else PrivacyLossDistribution


def guaranteed_epsilon(
    mechanism: Mechanism, epochs: int, delta: float, adjacency: Adjacency | str | None = None
) -> float:
    """Return the epsilon guaranteed at `delta` after `epochs` epochs if the noise is secret and exact, rounded up.

    `judge` also checks this condition, and whether floats can represent the noise. Raises like `schedule_of`.
    """
    return accountant_for(mechanism, releases_by_epoch(mechanism, epochs), adjacency).epsilon(delta)


def _blank(mechanism: Mechanism | None, delta: float, epochs: int, adjacency: str = "", people: int = 1) -> Guarantee:
    """Build a guarantee with status "none", for `judge` to complete."""
    method, sampling = "none", ""
    if mechanism is not None:
        method, sampling = _kind(mechanism, people).method, sampling_of(mechanism)
    scope = scope_of(mechanism, adjacency, people, method)
    return Guarantee("none", scope, "", delta, method, str(adjacency), sampling, epochs, None, None, None, None)


def representable(epsilon: float, mechanism: Mechanism, releases: Mapping[int, int]) -> float:
    """Return the epsilon; raise NoGuarantee if floats cannot represent the noise or the clip norm."""
    last = max(releases, default=0)
    if mechanism.clip_norm < SMALLEST_CLIP:
        raise NoGuarantee("the clip norm is so small that float32 arithmetic may fail to clip a gradient")
    if not math.isfinite(epsilon):
        exact = mechanism.sampling_rate is None
        raise NoGuarantee("epsilon exceeds the largest float" if exact else "no epsilon can be given at this delta")
    if mechanism.noise_multiplier(last) < SMALLEST_NOISE or mechanism.noise_std(last) < SMALLEST_STD:
        raise NoGuarantee("noise this small is lost to rounding in float32 arithmetic")
    return epsilon


def upward(bound: float, digits: int = 3) -> str:
    """Format to `digits` significant digits, rounded up to stay an upper bound; 1e-05 stays as typed."""
    return f"{float(Context(digits, ROUND_CEILING).create_decimal(Decimal(repr(float(bound))))):.{digits}g}"


# ---- Description of the scope ---------------------------------------------------------------------------------------

NEIGHBOURS: dict[str, str] = {
    Adjacency.ZERO_OUT: "zero-out (the utterance's slot stays, its gradient is 0)",
    Adjacency.REPLACE_ONE: "replace-one",
    Adjacency.ADD_OR_REMOVE_ONE: "add or remove one utterance (n is public: zero-out under Poisson sampling)",
}
PUBLIC = (
    "the number of utterances", "the split", "the label sets", "the vocabulary", "pretrained weights and vectors",
    "the text behind a public alpha", "the hyper-parameters",
)  # fmt: skip
NOT_COVERED = (
    "losses", "gradient norms", "validation scores", "checksums", "times", "any choice made by looking at them",
)  # fmt: skip
EXACT_NOISE = (
    "an ideal normal from AES-128 in counter mode, rounded together with the clipped sum; gradients are clipped to C "
    "minus 2^-11 C (to a smaller norm in large batches) to account for rounding within the sum: this is proven if the "
    "gradients of micro-batches are computed one by one (one per rank, or dp-sgd-naive), and otherwise (one pass "
    "computes several, or a frozen network has read many utterances at once) assumes that rounding moves two "
    "neighbours' sums apart by less than C / 2,200; if the seed is secret, order and sampling come from the same cipher"
)
FLOAT_NOISE = "a float from a generator that is not cryptographic: its bits may reveal more than epsilon allows"
SCOPE = (
    "accountant: {method}; unit: {who}; neighbours: {neighbours}; batches: {sampling}; the adversary sees every "
    "aggregate and model but not the devices' messages; public by assumption: "
    f"{', '.join(PUBLIC)}; not covered: {', '.join(NOT_COVERED[:-1])} and {NOT_COVERED[-1]}; noise: {{noise}}"
)


def scope_of(mechanism: Mechanism | None, adjacency: str, people: int, method: str) -> str:
    """Describe the scope of a guarantee by `method` for anyone with up to `people` utterances."""
    one_utterance = "one utterance (someone with several loses more: see utterances per person)"
    return SCOPE.format(
        method=method,
        who=one_utterance if people == 1 else f"anyone with up to {people} utterances",
        neighbours=NEIGHBOURS.get(adjacency, adjacency),
        sampling="" if mechanism is None else sampling_of(mechanism),
        noise=EXACT_NOISE if mechanism is None or mechanism.exact_noise else FLOAT_NOISE,
    )


def sampling_of(mechanism: Mechanism) -> str:
    """Describe how utterances are sampled into batches."""
    if mechanism.sampling_rate is None:
        return "disjoint, one shuffled pass per epoch"
    sampled = f"Poisson, each utterance in each step with probability {mechanism.sampling_rate:.4g}"
    return sampled if mechanism.micro_batch_size == 1 else f"{sampled}, in a micro-batch chosen by a keyed hash"
