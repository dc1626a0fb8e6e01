"""What the panels of ``10_three_phases.ipynb`` say, as HTML; and the commands that reproduce what they show.

Every epsilon names its accountant, or says that there is no guarantee.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from html import escape

from edp_lab.course.nb10_phases.compute import DRAWS, Ballot, LabelBill, NoisedImages, Partition
from edp_lab.reproduce.evidence import Evidence
from edp_lab.three_phase.pate import Vote
from edp_lab.three_phase.perturbation import CLAIMED_EPSILON, CLAIMED_SIGMA
from edp_lab.three_phase.phases import NOT_PRIVATE, UNDERSTUDY, ThreePhaseRecord, ThreePhaseSettings

CELL = 'style="text-align:left; vertical-align:top; white-space:normal"'


# ---- Read-outs -----------------------------------------------------------------------------------------------------


def pixels_in_words(result: NoisedImages) -> str:
    """The read-out of phase I, as HTML."""
    settings, pixels, kept = result.settings, result.pixels, result.pixels.image_correlation
    if settings.sigma:
        image = (
            f"One image replaced by any other: <b>ε = {result.guarantee.epsilon:.4g}</b> at δ = {settings.delta:.2g} "
            f"(exact Gaussian accountant, sensitivity {result.guarantee.sensitivity:g}); {result.mnist.epsilon:.4g} "
            f"for MNIST's 28 x 28 pixels. The thesis says {CLAIMED_EPSILON:g} (for σ = {CLAIMED_SIGMA:g}): that "
            f"needs images that differ by {result.sensitivity_needed:.2g} at most."
        )
    else:
        image = "Without noise on its pixels an image has <b>no guarantee</b>."
    label = "Its label is passed on as it is: <b>no guarantee</b>, whatever σ."
    larger = f"ε would be {result.resized.epsilon:.3g}: a" if settings.sigma else "a"
    resized = (
        f"Resized to 3 x 256 x 256 before the noise, {larger}veraging the {result.copies:,} copies of a pixel takes "
        "the noise off again. Noise first, then resize."
    )
    before, after = pixels.before, pixels.after
    rows = {
        "mean": (before.mean, after.mean),
        "variance": (before.variance, after.variance),
        "standard deviation": (before.standard_deviation, after.standard_deviation),
        "distance from a normal distribution": (before.normal_distance, after.normal_distance),
        "covariance with the original": (before.variance, pixels.covariance),
        "correlation with the original": (1.0, pixels.correlation),
        "the same, mean over images": (1.0, kept),
        "variance of signal over noise": (None, pixels.signal_noise_ratio),
    }
    cells = "".join(
        f"<tr><td>{name}</td><td style='text-align:right; padding-left:1em'>{_three(one)}</td>"
        f"<td style='text-align:right; padding-left:1em'>{_three(two)}</td></tr>"
        for name, (one, two) in rows.items()
    )
    about = "<p>None of these measures privacy; the thesis' mean over images is 0.8125.</p>"
    statistics = (
        f"<details open><summary>statistics of the pixels, before and after</summary><table>{cells}</table>{about}"
        "</details>"
    )
    return _paragraphs(image, label, resized) + statistics + _scope(PIXEL_SCOPE)


PIXEL_SCOPE = (
    "one image replaced by any other with pixels in [0, 1], its label untouched and unprotected; noise of a secret "
    "key. Here the seed is published, so whoever knows it can take the noise off: ε is void, and would hold with "
    "--private-seed. Each of N instructors' images is covered by the same ε, not by an N-th of it"
)


def votes_in_words(result: Ballot) -> str:
    """The read-out of phase II, as HTML."""
    settings, voters = result.settings, result.settings.instructors
    said = ", ".join(f"{votes} for {digit}" for digit, votes in enumerate(result.counts.tolist()) if votes)
    confident = settings.vote == Vote.CONFIDENT
    image = (
        f"Public image {result.image}, a {result.truth}: {said}. {_winner(result)}"
        + (f", if any comes out at all (probability {result.answer:.2f})." if confident else ".")
        + f" The most votes in this draw: {int(result.noisy.argmax())}."
    )
    agree = "Where the only one votes" if voters == 1 else f"Where all {voters} agree"
    kept = f"{agree}, their label survives with probability <b>{result.unanimous:.2f}</b>."
    everybody = (
        f"All {result.queries} public images, this draw: {result.answered} labels, {result.majority:.0%} of them the "
        f"majority's and <b>{result.right:.0%} true</b> (this draw). Counted without noise "
        f"{result.right_without_noise:.0%} are true; each of {voters} alone is right on {result.alone:.0%} (mean)."
    )
    kind, at = (
        ("Laplace noise of scale", "")
        if settings.vote == Vote.LAPLACE
        else ("Gaussian noise of deviation", f" at δ = {settings.delta:.2g}")
    )
    price = (
        f"<b>ε = {result.query_epsilon:.3g}</b>{at} is what <b>one</b> label costs: {kind} "
        f"{result.aggregator.noise:.3g} on each count. Votes counted without noise: <b>no guarantee</b>."
    )
    return _paragraphs(image, kept, everybody, price) + LINEAR + _scope(LABEL_SCOPE)


def _winner(result: Ballot) -> str:
    """The label with the most votes, or those that tie, and how likely it comes out."""
    best = [digit for digit, votes in enumerate(result.counts) if votes == result.counts.max()]
    if len(best) == 1:
        return f"After noise the label is {best[0]} with probability <b>{result.chances[best[0]]:.2f}</b>"
    tied = f"{', '.join(map(str, best[:-1]))} and {best[-1]} tie"
    return f"{tied}; after noise each of them comes out with probability <b>{result.chances[best[0]]:.2f}</b>"


LINEAR = (
    "<p>Instructors here are linear models, fitted while you slide, on the images, noise and parts of the command's "
    "run, which trains networks.</p>"
)
LABEL_SCOPE = (
    "one training example, image and label, replaced by any other, its place in the parts unchanged; it reaches one "
    "instructor, so one vote moves from one class to another. The public images must not depend on it, and the noise "
    "must be secret. Here the seed is published: ε is void, and would hold with --private-seed. Not covered: "
    f"{NOT_PRIVATE}"
)


def partition_in_words(result: Partition) -> str:
    """The read-out on parts, as HTML."""
    parts, cost = result.instructors, result.cost
    one = f"One model on all 60,000 images: <b>ε = {cost.one:.3g}</b> (δ = {result.delta:.2g}, Rényi DP)."
    many = (
        f"{parts} on a part each: an example is in a batch with chance {result.rate(parts):.2%} instead of "
        f"{result.rate(1):.2%}, so each has <b>ε = {cost.each:.3g}</b>."
    )
    together = (
        f"All together: <b>{cost.together:.3g}</b>, the largest of them (parallel composition), because an example is "
        f"in one part only. Not {cost.claimed:.2g}, the {parts}-th part of one model's. Splitting buys a vote, no ε."
    )
    scope = (
        "one example added or removed, Poisson sampling of each part with the same batch size, noise and epochs; the "
        "parts must not depend on the examples, and the noise must be secret. Without private training of the "
        "instructors there is no ε here at all"
    )
    return _paragraphs(one, many, together) + _scope(scope)


def labels_in_words(result: LabelBill) -> str:
    """The read-out of phase III, as HTML."""
    settings, account, here = result.settings, result.account, result.here
    ways = {spelt(way): epsilon for way, epsilon in account.composed.items()}
    others = ", ".join(f"{way} {epsilon:.4g}" for way, epsilon in ways.items() if epsilon > account.epsilon)
    cost = (
        f"{result.spent} label{'' if result.spent == 1 else 's'} at ε = {account.query_epsilon:.3g} each: together "
        f"<b>ε = {account.epsilon:.4g}</b> at δ = {account.delta:.2g} ({spelt(result.accountant)}"
        + (f"; {others}" if others else "")
        + f"). The thesis calls all of them {settings.vote_epsilon:g}-DP."
    )
    own = (
        f"For these very votes {account.data_dependent_epsilon:.4g} would do (data-dependent), but that number is "
        "computed from private votes: <b>not releasable</b>."
    )
    learnt = (
        f"The understudy is right on <b>{result.accuracy[here]:.0%}</b> (95 %: {result.low[here]:.0%} to "
        f"{result.high[here]:.0%}, {result.tested} images), from labels of which {result.right[here]:.0%} are true "
        f"(both: mean of {DRAWS} draws). From the same votes without noise, and with <b>no guarantee</b>: "
        f"{result.silent[here]:.0%}."
    )
    same = "σ does not enter this ε: the understudy's guarantee is that of its labels, whatever came before."
    return _paragraphs(cost, own, learnt, same) + LINEAR + _scope(LABEL_SCOPE)


def run_in_words(record: ThreePhaseRecord, number: int) -> str:
    """The read-out of a run, as HTML: what was bought, and the thesis' sentences beside it."""
    understudy, account = record.part(UNDERSTUDY), record.privacy
    assert account is not None
    low, high = understudy.scores.interval
    bought = (
        f"Run {number}: the understudy is right on <b>{understudy.scores.accuracy:.0%}</b> (95 %: {low:.0%} to "
        f"{high:.0%}) for <b>ε = {account.epsilon:.4g}</b> at δ = {account.delta:.2g}, by the least of "
        f"{spelt(', '.join(account.composed))}; {record.status}."
    )
    rows = [(f"<b>{row.row}</b>", escape(row.thesis), escape(row.here)) for row in record.comparisons]
    table = html_table([("", "the thesis says", "here"), *rows])
    return f"{_paragraphs(bought)}{table}{_scope(LABEL_SCOPE)}"


# ---- Pieces --------------------------------------------------------------------------------------------------------


def told(settings: ThreePhaseSettings) -> str:
    """What a caption says of the settings."""
    vote = f"{settings.vote} vote, ε = {settings.vote_epsilon:g} per label"
    return f"σ = {settings.sigma:g}, N = {settings.instructors}, {vote}, seed {settings.seed}"


def spelt(accountant: str) -> str:
    return accountant.replace("Renyi", "Rényi")


def ledger(rows: Sequence[Evidence]) -> str:
    """Claims beside what holds, as an HTML table."""
    heads = ("", "the thesis", "verdict", "what holds")
    return html_table(
        [
            heads,
            *((row.id, f"{row.about.says} ({row.about.source})", f"<b>{row.verdict}</b>", row.said) for row in rows),
        ]
    )


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """Headings and rows of cells, which are HTML."""
    cells = [
        "".join(f"<{tag} {CELL}>{cell}</{tag}>" for cell in row)
        for row, tag in zip(rows, ["th", *["td"] * len(rows)], strict=False)
    ]
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def _paragraphs(*texts: str) -> str:
    return "".join(f"<p>{text}</p>" for text in texts)


def _scope(text: str) -> str:
    return f"<details><summary>what this ε covers</summary>{escape(text)}.</details>"


def _three(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


# ---- On the command line -------------------------------------------------------------------------------------------

ALWAYS = ("phases", "sigma", "instructors", "vote", "vote_epsilon", "delta", "seed")
FLAGS = {"understudy_method": "understudy"}  # options that are not named like their field


def command(settings: ThreePhaseSettings, phases: Sequence[int] = (1, 2, 3)) -> str:
    """The call of `edp-lab three-phase run` that does these phases with networks."""
    chosen = replace(settings, phases=tuple(phases))
    words, defaults = ["edp-lab", "three-phase", "run", "--data", "digits"], asdict(ThreePhaseSettings())
    for name, value in asdict(chosen).items():
        if name in ALWAYS or value != defaults[name]:
            text = ",".join(map(str, value)) if name == "phases" else str(value)
            flag = f"--{FLAGS.get(name, name).replace('_', '-')}"
            words += [flag] if isinstance(value, bool) else [flag, text]
    return shlex.join(words)


def account_command(partition: Partition) -> str:
    """The call of `edp-lab account` that gives the epsilon of one of the instructors."""
    rate, clip, z0 = partition.rate(partition.instructors), "--clip 1", f"--z0 {partition.noise_multiplier:g}"
    poisson = f"--sampling-rate {rate!r} --epochs {partition.epochs} --delta {partition.delta:g}"
    return f"edp-lab account {clip} {z0} --gpus 1 --micro-batch-size 1 {poisson}"
