"""The scope of a guarantee in words: unit, neighbours, sampling, noise, and what is not covered."""

from __future__ import annotations

from edp_lab.privacy.mechanism import Adjacency, Mechanism

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
    "an ideal normal, rounded together with the clipped sum, from AES-128 in counter mode; rounding within the clipped "
    "sum is charged, as gradients are clipped to C less 2^-11 of it, in large batches a little shorter: proven for "
    "micro-batches whose gradients are formed one by one (one on each rank, or dp-sgd-naive), and where one pass forms "
    "several or a frozen network has read many utterances at once, under the assumption that floats move two "
    "neighbours' sums apart by less than C / 2,200; order and sampling: from the same cipher, where the seed is secret"
)
FLOAT_NOISE = "a float of a generator that is not cryptographic: its bits may tell more than epsilon says"
SCOPE = (
    "accountant: {method}; unit: {who}; neighbours: {neighbours}; batches: {sampling}; the adversary sees every "
    "aggregate and model but not the devices' messages; public by assumption: "
    f"{', '.join(PUBLIC)}; not covered: {', '.join(NOT_COVERED[:-1])} and {NOT_COVERED[-1]}; noise: {{noise}}"
)


def scope_of(mechanism: Mechanism | None, adjacency: str, people: int, method: str) -> str:
    """The scope of what `method` guarantees for anyone with up to `people` utterances."""
    one_utterance = "one utterance (someone with several loses more: see utterances per person)"
    return SCOPE.format(
        method=method,
        who=one_utterance if people == 1 else f"anyone with up to {people} utterances",
        neighbours=NEIGHBOURS.get(adjacency, adjacency),
        sampling="" if mechanism is None else sampling_of(mechanism),
        noise=EXACT_NOISE if mechanism is None or mechanism.exact_noise else FLOAT_NOISE,
    )


def sampling_of(mechanism: Mechanism) -> str:
    """How utterances get into batches."""
    if mechanism.sampling_rate is None:
        return "disjoint, one shuffled pass per epoch"
    sampled = f"Poisson, each utterance in each step with chance {mechanism.sampling_rate:.4g}"
    return sampled if mechanism.micro_batch_size == 1 else f"{sampled}, in a micro-batch that a keyed hash of it gives"
