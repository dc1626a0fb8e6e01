"""Privacy that holds and still works: the least error found at a target epsilon, its price in time, eDP-SGD's place.

Beyond the paper. Each private method starts from what needs no privacy: for the CLC, words as a frozen public encoder
reads them, a CRF that knows the grammar of BIO tags, and a one-layer LSTM (every parameter that is trained is noised),
beside which the heads read the encoder themselves. BERT is the first layers of that encoder, all of whose weights are
trained. z0 follows from epsilon before a run begins.

Learning rate and weight of the intent are chosen on the validation split of the first seed; the scores are of test
splits. Each point also carries the epsilon of all that was looked at to choose it, as if every trial had been published
and had drawn its noise by a secret key of its own; as they are run, those of one seed draw the same noise, and two of
them would give each other away. What that does not count: other points; the recipe itself (network, clip norm, batch,
what is tried) was found on ATIS and SNIPS, in some thirty runs with seeds below `FIRST_SEED`, whose test scores were
seen. Seeds from there on had not been run when it was settled; but a test split is half of the corpus, so nearly nine
in ten of their test utterances had been in a test split of the first three seeds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edp_lab.corpora import load_corpus, split
from edp_lab.files import read_json
from edp_lab.models.wordpiece import AT_ONCE, ContextFeatures
from edp_lab.privacy import RenyiDP, judge
from edp_lab.privacy.calibration import Budget, calibrate_z0
from edp_lab.privacy.composition import composed
from edp_lab.privacy.guarantee import upward
from edp_lab.reproduce.paper.table1 import estimate, whole_epochs
from edp_lab.reproduce.results_io import RESULTS, machine
from edp_lab.reproduce.run_cache import ENCODER, FINE_TUNING, Inputs, Job, TableRuns, layers_of, measured_on
from edp_lab.training import TrainConfig
from edp_lab.training.result_cache import Say, content_key
from edp_lab.training.run_folder import versions
from edp_lab.training.trainer import Trainer

DEVICES = 8
METHODS: dict[str, dict[str, Any]] = {
    "DP-SGD": {"method": "dp-sgd"},
    "eDP-SGD, 8 utterances a clip, shuffled": {"method": "edp-sgd", "micro_batch_size": 8},
}
# eDP-SGD under DP-SGD's own sampling has DP-SGD's z0, for a sensitivity of 2C. So with m utterances a clip the noise on
# the mean is 2 m times DP-SGD's at equal C. The rung of 1 is DP-SGD.
LADDER: dict[str, dict[str, Any]] = {
    f"eDP-SGD, {m} utterances a clip, Poisson": {"method": "edp-sgd", "micro_batch_size": m, "sampling": "poisson"}
    for m in (2, 4, 8)
}
SGD, SGD_HERE = "SGD", "SGD, the private model"
SETTINGS = ("size", "batch_size", "epochs", "learning_rate", "intent_weight", "dropout")
PRIVATE_SETTINGS = ("z0", "clip_norm")
TIMED = 10  # rounds
FIRST_SEED = 3  # those below served to find the recipe
HARDLY = 1.002  # a z0 that is larger by less than this
GRIDS = 1e-4  # what accounts on the grids of two versions differ by; a point's epsilon is that of today's


@dataclass(frozen=True)
class Scale:
    """How much is trained."""

    epsilons: tuple[float, ...]  # targets of DP-SGD, at delta = n^-1.1; eDP-SGD has the largest
    tried: tuple[tuple[float, float], ...]  # learning rate and weight of the intent, for each method and target
    seeds: int
    steps: int  # of a private run, about, but whole epochs, at most `most_epochs`
    most_epochs: int
    plain_steps: int  # of SGD, likewise
    plain_epochs: int
    plain_size: str
    size: str
    batch_size: int
    layers: int = 6  # of the encoder
    model: str = "clc"  # or "bert"
    ladder: bool = False  # eDP-SGD under Poisson sampling, too (`LADDER`); no run of it comes with a checkout


QUICK = {
    "clc": Scale((8.0,), ((2e-2, 1.0),), 1, 60, 8, 400, 2, "medium", "medium", 256),
    "bert": Scale((8.0,), ((1e-3, 1.0),), 1, 60, 4, 400, 2, "medium", "medium", 256, 2, "bert"),
}
FULL = {
    "clc": Scale((8.0, 3.0, 1.0), ((1e-2, 0.5), (2e-2, 1.0)), 3, 500, 50, 7000, 12, "paper", "medium", 512),
    "bert": Scale((8.0, 3.0, 1.0), ((5e-4, 1.0), (1e-3, 1.0)), 3, 500, 14, 7000, 12, "paper", "paper", 512, 4, "bert"),
}


Point = dict[str, Any]  # one method on one corpus at one target, by the names in `_point`
Result = Mapping[str, Any]  # of a run


def pareto(
    runs: TableRuns, scales: Sequence[Scale], corpora: Sequence[str], encoder: str = ENCODER
) -> Iterator[list[Point]]:
    """The points of one model on one corpus after the other: SGD at its size and with the private model, then DP-SGD at
    each target and eDP-SGD at the largest, with the ladder if asked for.

    `encoder`: hub name or folder of the published BERT that reads the CLC's words, and from which BERT starts.
    """
    for corpus in corpora:
        runs.inputs.corpus(corpus)  # before hours of work
    for scale in scales:
        for corpus in corpora:
            yield _points(runs, scale, corpus, encoder)


def _kept(needed: float) -> float:
    """The z0 of a committed point that is enough, or was by the account of then, and hardly larger: its run need not be
    made again."""
    points = read_json(RESULTS / "pareto.json")
    known = (point["settings"].get("z0", 0.0) * (1 - 1e-12) for point in points)  # nine digits stay as they are
    rounded = [float(upward(z0, 9)) for z0 in known]
    return min((z0 for z0 in rounded if needed <= z0 * (1 + GRIDS) and z0 <= HARDLY * needed), default=needed)


def _points(runs: TableRuns, scale: Scale, corpus: str, encoder: str) -> list[Point]:
    seeds = range(FIRST_SEED, FIRST_SEED + scale.seeds)
    examples = {seed: runs.inputs.examples(corpus, seed) for seed in seeds}
    start = layers_of(encoder, scale.layers)
    what = f"{scale.model.upper()} on {corpus}"
    settings = {**METHODS, **(LADDER if scale.ladder else {})}

    def private(place: tuple[str, float], one: tuple[float, float], seed: int) -> TrainConfig:
        """A run of this method that meets the target: z0 is the smallest that does, in nine digits.

        The digits beyond differ between processors (Fourier transforms), and a run is known by its settings.
        """
        (method, epsilon), (rate, weight), n = place, one, examples[seed]
        batch = min(scale.batch_size, max(DEVICES + 1, n // 4))
        epochs = whole_epochs(scale.steps, batch, n, scale.most_epochs)
        config = TrainConfig(
            corpus, scale.model, num_devices=DEVICES, batch_size=batch, epochs=epochs, clip_norm=0.1, lr=rate,
            intent_weight=weight, dropout=0.0, size=scale.size, pretrained=start, seed=seed, **settings[method],
        )  # fmt: skip
        mechanism, budget = config.mechanism(n), Budget(epsilon, n**-1.1)
        assert mechanism is not None
        return replace(config, z0=_kept(float(upward(calibrate_z0(mechanism, epochs, budget), 9))))

    def done(configs: Sequence[TrainConfig], part: str) -> dict[TrainConfig, Result]:
        return dict(zip(configs, runs.results([Job(config) for config in configs], f"{what}: {part}"), strict=True))

    plain = [_plain(corpus, seed, n, scale, start) for seed, n in examples.items()]
    here = [replace(config, size=scale.size, pretrained=start) for config in plain]  # of BERT, the same
    sgd = done([*plain, *here], "SGD")
    # eDP-SGD is placed at the largest epsilon alone: on ATIS, one seed, its SER was .31 at 8, .49 at 3, .73 at 1.
    (method, *others), most = settings, max(scale.epsilons)
    targets = [*((method, epsilon) for epsilon in scale.epsilons), *((other, most) for other in others)]
    tried = scale.tried
    trials = {(place, one): private(place, one, FIRST_SEED) for place in targets for one in tried}
    scored = done(list(trials.values()), "tuning")
    chosen = {place: min(tried, key=lambda one: scored[trials[place, one]]["validation_ser"]) for place in targets}
    repeated = {place: [private(place, one, seed) for seed in seeds] for place, one in chosen.items()}
    found = done([config for configs in repeated.values() for config in configs], "seeds")
    top = {method: own[0] for (method, epsilon), own in repeated.items() if epsilon == most}
    paces = _paces(runs, plain[0], here[0], {name: top[name] for name in METHODS})
    if scale.ladder:  # timed by itself, so that what came with a checkout stays as it is
        paces = _paces(runs, plain[0], here[0], {name: top[name] for name in LADDER}) | paces
    points = [_point(SGD, None, plain, sgd, 0, paces)]
    if here != plain:
        points.append(_point(SGD_HERE, None, here, sgd, 0, paces))
    return points + [_point(*place, own, found, len(tried), paces) for place, own in repeated.items()]


def _paces(
    runs: TableRuns, plain: TrainConfig, here: TrainConfig, others: Mapping[str, TrainConfig]
) -> dict[str, dict[str, Any]]:
    """What a run of each method takes: {name: {"seconds", "time_ratio" (to SGD's beside it), "timed_on"}}."""
    timing = _timing(runs, [plain, here, *others.values()])
    seconds, names = timing["seconds"], (SGD, SGD_HERE, *others)
    return {
        name: {"seconds": own, "time_ratio": own / seconds[0], "timed_on": timing["machine"]}
        for name, own in zip(names, seconds, strict=True)
    }


def _timing(runs: TableRuns, configs: Sequence[TrainConfig]) -> dict[str, Any]:
    """What runs of SGD, of SGD here and of private methods take on one thread: {"seconds": [...], "machine": ...}.

    That is steps times the median step, and reading by the encoder. All take their steps in turn, so that whatever else
    the machine does falls on all of them; measured once for a folder, these settings and data.
    """

    def key(inputs: Inputs) -> str:
        return content_key(["timing"], *(runs.key(Job(config), inputs) for config in configs))[:24]

    def timed(configs: Sequence[TrainConfig], say: Say) -> dict[str, Any]:
        made = [replace(config, pretrained=runs.start_of(config)) for config in configs]
        return {"seconds": _timed(made), "machine": machine(), "versions": versions()}

    found = runs.committed(key(runs.inputs))
    if found is None:
        [found] = runs.cells.results([key(runs.at_hand)], [configs], timed, 1)
    return found


def _timed(configs: Sequence[TrainConfig]) -> list[float]:
    whole = load_corpus(configs[0].corpus)
    data = split(whole, FIRST_SEED)
    runs = [Trainer(config, whole, data) for config in configs]
    texts = list(dict.fromkeys(utterance.tokens for utterance in data.train))
    rounds: list[list[float]] = []
    for number in range(1 + TIMED):
        rounds.append([])
        for run in runs:
            epoch = run.batches.steps_per_epoch
            for step in (2 * number, 2 * number + 1):  # the first finds the cache as another method left it
                run.progress.epoch, run.progress.step_in_epoch = divmod(step, epoch)
                start = time.perf_counter()
                run.step()
            rounds[-1].append((time.perf_counter() - start) * epoch * run.config.epochs)
        for place, run in enumerate(runs):
            rounds[-1][place] += _seconds_of_reading(run, texts, number)
    return [statistics.median(own) for own in zip(*rounds[1:], strict=True)]  # the first round allocates memory


def _seconds_of_reading(run: Trainer, texts: Sequence[tuple[str, ...]], number: int) -> float:
    """All different texts, by what some of them take."""
    features = run.model.features
    if not isinstance(features, ContextFeatures):
        return 0.0
    first = number * AT_ONCE % max(1, len(texts) - AT_ONCE)
    some = texts[first : first + AT_ONCE]
    start = time.perf_counter()
    ContextFeatures(features.bert, features.pieces.tokenizer).rows(some)
    return (time.perf_counter() - start) * len(texts) / len(some)


def _plain(corpus: str, seed: int, examples: int, scale: Scale, start: str) -> TrainConfig:
    config = TrainConfig(corpus, scale.model, method="sgd", size=scale.plain_size, seed=seed)
    if scale.model == "bert":
        config = replace(config, pretrained=start, lr=FINE_TUNING)
    return replace(config, epochs=whole_epochs(scale.plain_steps, config.batch_size, examples, scale.plain_epochs))


def _held(config: TrainConfig, result: Result) -> float:
    """epsilon that holds, were the seed secret: of the plan, or of the record where its ledger bills more than that (a
    run that went on elsewhere did some steps twice).

    One step done twice, of thousands, adds more than the millionth that is allowed here: the ninth digit of z0.
    """
    n, mechanism = result["examples"], config.mechanism(result["examples"])
    assert mechanism is not None
    planned = judge(mechanism, config.epochs, n**-1.1).epsilon
    assert planned is not None
    known, told = [planned], float(result["epsilon"])
    if mechanism.sampling_rate is not None:  # older results have it by Renyi DP
        known.append(RenyiDP(mechanism.schedule(mechanism.bill(config.epochs))).epsilon(n**-1.1))
    return planned if any(abs(told - one) <= 1e-6 * one for one in known) else max(planned, told)


def _point(
    method: str,
    epsilon: float | None,
    configs: Sequence[TrainConfig],
    done: Mapping[TrainConfig, Result],
    trials: int,
    paces: Mapping[str, Mapping[str, Any]],
) -> Point:
    results, config, tuning = [done[config] for config in configs], configs[0], None
    first = results[0]
    mechanism = config.mechanism(first["examples"])
    if mechanism is not None:
        every = trials + len(results) - 1  # the first seed's run is one of the trials
        tuning = composed(mechanism.schedule(mechanism.bill(config.epochs)), every, first["delta"])
    pace = paces[method]
    scores = ("ser", "intent_accuracy", "slot_f1")
    return {
        "model": config.model,
        "corpus": Path(config.corpus).name,  # the catalogue's, or that of the file or folder
        "method": method,
        # Of one utterance at `delta`, were the seeds secret, by privacy loss distributions under Poisson sampling, else
        # by Gaussian DP.
        "epsilon": None if epsilon is None else max(map(_held, configs, results)),
        # Of this point's trials and all its seeds' runs, were all published and each noised by a secret key of its own;
        # of training utterances, not of those on which the trials were compared.
        "epsilon_of_tuning": tuning,
        "delta": None if epsilon is None else first["delta"],
        "examples": first["examples"],
        **{name: estimate([100 * one[name] for one in results]) for name in scores},  # on the test splits, in percent
        "seconds": pace["seconds"],  # of training on one thread, reading the training set with the encoder included
        "time_ratio": pace["time_ratio"],
        "trials": trials,
        "settings": {name: getattr(config, name) for name in (*SETTINGS, *(PRIVATE_SETTINGS if mechanism else ()))},
        "runs": tuple(one["run"] for one in results),  # their keys, one for each seed
        "about": {**measured_on(results), "timed_on": pace["timed_on"]},
    }
