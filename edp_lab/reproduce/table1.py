"""Re-measure Table 1: error, membership inference and epsilon of SGD and eDP-SGD under three decays.

Choice of z0, which section 4.2 does not specify: without decay, we use the most noise that keeps the error on the first
seed's validation split within `TOLERANCE` times SGD's error. We find it by bisection, assuming that the error increases
with noise. With a decay, the noise of the first epoch is higher, to keep epsilon the same. tau and C are fixed. Each
row states its number of trials. No epsilon covers these choices. data/results/README.md lists other choices that were
made with known test scores.

"SGD for half the epochs" is a control: it shows how much a method gains merely by learning less.

Every seed has its own split, weights, order and noise. Relative changes are computed per seed, then averaged. Their
intervals are Student's t intervals over the seeds. They cover the split and the training, but not the choice of
settings. They do not cover a different sample either, because the seeds' test splits (half of the corpus) overlap. The
attack's shadow model is trained with SGD for as many epochs as the target, separately for each seed.

    data/results/table1_cells.jsonl    committed results, one per line
    OUT/cells.jsonl                    results computed here, each written as soon as it is available
    OUT/runs, shadows, public          runs, shadow models of the attacks, starting weights

A result is identified by its settings and by digests of its corpora and encoder. If a corpus or the encoder is
available, its digest must match; otherwise we trust the committed line. So a killed run can resume, and the committed
table can be printed without corpora, encoder or network.

All methods start from the same public weights. Otherwise a sound run, which may not take its vocabulary from the
training set, would differ from SGD in more than its noise. The paper's CLC reads published fastText vectors, and its
BERT was pretrained on Wikipedia (section 4.2). Settings name the start; its folder is created on first use.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from edp_lab.attacks.loss import attack_loss
from edp_lab.attacks.shadow import GENERATED, attack_shadow, default_shadow
from edp_lab.corpora.catalog import list_corpora, load_corpus
from edp_lab.corpora.corpus import split
from edp_lab.errors import UsageError
from edp_lab.files import given_path, new_folder, writable, write_whole
from edp_lab.jobs import NUMERICS, RESULTS, content_key, machine, parallel
from edp_lab.models.vectors import WordVectors
from edp_lab.privacy import Decay, judge
from edp_lab.reproduce.printed import NUM_GPUS, TABLE_1
from edp_lab.training.checkpoint import digest
from edp_lab.training.config import TrainConfig
from edp_lab.training.run_files import RECORD
from edp_lab.training.session import resume, train

TOLERANCE = 1.15  # largest allowed ratio to SGD's error on the validation split
SGD, HALF, PRINTED, SOUND = "sgd", "sgd, half the epochs", "as printed", "sound"
VARIANTS = (PRINTED, SOUND)
FINE_TUNING = 2e-4  # BERT's learning rate
TAU = {Decay.LINEAR: 0.3, Decay.EXPONENTIAL: 0.2}  # from the middle of the paper's grids
# Corpora by our names. Domains of the synthetic smart-home corpus replace the paper's internal corpora.
CORPORA = {
    "atis": "ATIS",
    "snips": "SNIPS",
    "nlu-eval": "NLU-eval",
    "smart-home-health": "Health",
    "smart-home-communication": "Comm.",
    "smart-home-video": "Video",
}
MODELS = ("clc", "bert")
SCORES = ("ser", "auc", "loss_auc")  # semantic error rate, and the AUC of two attacks

COMMITTED = RESULTS / "table1_cells.jsonl"
ENCODER = "sentence-transformers/all-MiniLM-L6-v2"  # width 384; pretrained on Wikipedia, among others
WORDS = "words"  # start of the CLC: the encoder's word vectors
LAYERS = "layers:"  # start of BERT: the encoder's first layers; their number follows the colon
LOUDER = 8.0  # scales the encoder's vectors from about 0.06 to the size of learned embeddings; exact, a power of 2
AREAS = ("training", "pretraining", "membership")  # keys of `NUMERICS`

Cell = dict[str, Any]  # one cell of the table, with the keys of `_cell`
Result = dict[str, Any]  # scores of one run, with the keys of `do`


@dataclass(frozen=True)
class Scale:
    """Amount of training."""

    size: str  # size of the models, see `TrainConfig`
    layers: int  # number of the published encoder's layers from which BERT starts
    steps: Mapping[str, int]  # approximate steps per run and model; BERT starts from the encoder and needs fewer
    most_epochs: Mapping[str, int]  # maximum number of epochs, which limits the steps on small corpora
    z0: tuple[float, ...]  # values to try, in increasing order
    batch_size: int = 32  # small, because epsilon of disjoint batches depends on epochs, not on steps
    seeds: int = 3  # number of seeds, which start at 0


FULL = Scale(
    size="paper",
    layers=4,
    steps={"clc": 1600, "bert": 600},
    most_epochs={"clc": 8, "bert": 4},
    z0=(3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
)


def estimate(values: Sequence[float]) -> dict[str, float | None]:
    """Mean over the seeds, with the ends of Student's 95 % interval; the ends are None for a single seed."""
    from scipy.stats import t

    mean = statistics.fmean(values)
    if len(values) == 1:
        return {"mean": mean, "low": None, "high": None}
    half = float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return {"mean": mean, "low": mean - half, "high": mean + half}


def table1(runs: TableRuns, scale: Scale, models: Sequence[str], corpora: Sequence[str]) -> Iterator[list[Cell]]:
    """Yield the cells of each model on each corpus: SGD, its control, then each variant under each decay.

    Raises UsageError for an unknown model or corpus, or as `TableRuns` does.
    """
    for what, known, given in (("model", MODELS, models), ("corpus", tuple(CORPORA), corpora)):
        if unknown := [name for name in given if name not in known]:
            raise UsageError(f"unknown {what} {unknown[0]!r}: choose {', '.join(known)}")
    plains = [_plain(runs, scale, model, corpus) for model in models for corpus in corpora]
    runs.prepare(plains)
    return (_row(runs, scale, plain) for plain in plains)


def _plain(runs: TableRuns, scale: Scale, model: str, corpus: str) -> TrainConfig:
    about = scale.steps[model] // 2 * scale.batch_size / runs.examples(corpus)
    half = max(1, min(scale.most_epochs[model] // 2, round(about)))
    return TrainConfig(
        corpus,
        model,
        method="sgd",
        num_devices=NUM_GPUS,
        size=scale.size,
        batch_size=scale.batch_size,
        dropout=0.0,
        epochs=2 * half,  # an even number, for the control
        pretrained=f"{LAYERS}{scale.layers}" if model == "bert" else WORDS,
        lr=FINE_TUNING if model == "bert" else None,
    )


def _row(runs: TableRuns, scale: Scale, plain: TrainConfig) -> list[Cell]:
    what, half = f"{plain.model.upper()} on {plain.corpus}", replace(plain, epochs=plain.epochs // 2)
    # All seeds of SGD and of its control come first: they are needed anyway and keep all processes busy.
    first = [replace(config, seed=seed) for config in (plain, half) for seed in range(scale.seeds)]
    sgd, tried = _tune(runs, scale, plain, first, f"{what}: SGD and tuning")
    arms: dict[tuple[str, Decay | None], TrainConfig] = {(SGD, None): plain, (HALF, None): half}
    for variant, trials in tried.items():
        arms |= {(variant, decay): under(decay, _choose(trials, sgd)) for decay in Decay}
    every = [replace(config, seed=seed) for config in arms.values() for seed in range(scale.seeds)]
    done = runs.results(every, f"{what}: seeds")
    results = {arm: done[place * scale.seeds :][: scale.seeds] for place, arm in enumerate(arms)}
    return [
        _cell(*arm, config, results[arm], results[SGD, None], len(tried.get(arm[0], (plain,))))
        for arm, config in arms.items()
    ]


def _tune(
    runs: TableRuns, scale: Scale, plain: TrainConfig, first: Sequence[TrainConfig], what: str
) -> tuple[Result, dict[str, dict[TrainConfig, Result]]]:
    """Return SGD's result and the trials of each variant. Each trial halves the number of remaining noise levels."""
    noised = {name: replace(plain, method="edp-sgd", as_printed=name == PRINTED, clip_norm=1.0) for name in VARIANTS}
    left = {name: [replace(config, z0=z0) for z0 in scale.z0] for name, config in noised.items()}
    tried: dict[str, dict[TrainConfig, Result]] = {name: {} for name in VARIANTS}
    while any(left.values()):
        middle = {name: trials[len(trials) // 2] for name, trials in left.items() if trials}
        sgd, *done = runs.results([*first, *middle.values()], what)
        for (name, config), result in zip(middle.items(), done[len(first) - 1 :], strict=True):
            tried[name][config] = result
            at = left[name].index(config)
            left[name] = left[name][at + 1 :] if _usable(result, sgd) else left[name][:at]
    return sgd, tried


def under(decay: Decay, config: TrainConfig) -> TrainConfig:
    """Change `config` from no decay to `decay` at equal epsilon, which depends on the sum of 1 / z_t^2 over epochs."""
    if decay is Decay.NONE:
        return config
    factors = decay.factors(np.arange(config.epochs), TAU[decay])
    louder = math.sqrt(float(np.mean(factors**-2.0)))
    return replace(config, decay=decay, tau=TAU[decay], z0=config.z0 * louder)


def _usable(result: Result, plain: Result) -> bool:
    return bool(result["validation_ser"] <= TOLERANCE * plain["validation_ser"])


def _choose(tried: Mapping[TrainConfig, Result], plain: Result) -> TrainConfig:
    """Trial with the most noise within the tolerance, or the trial with the smallest error if none is within it."""
    if usable := [config for config, result in tried.items() if _usable(result, plain)]:
        return max(usable, key=lambda config: config.z0)
    return min(tried, key=lambda config: tried[config]["validation_ser"])


def _cell(
    variant: str,
    decay: Decay | None,
    config: TrainConfig,
    results: Sequence[Result],
    plain: Sequence[Result],
    trials: int,
) -> Cell:
    """Cell for one method, corpus and model, computed from its runs and those of SGD, seed by seed."""

    def change(name: str) -> dict[str, float | None] | None:
        """Change relative to SGD, in percent; negative is better. None for SGD."""
        if variant == SGD:
            return None
        return estimate([100 * (new[name] / old[name] - 1) for new, old in zip(results, plain, strict=True)])

    def largest(name: str) -> float | None:
        """Largest value over all seeds; None if a seed has no guarantee."""
        values = [result[name] for result in results]
        return None if None in values else max(values)

    first = results[0]
    printed = next(row for row in TABLE_1 if (row.model.lower(), row.corpus) == (config.model, CORPORA[config.corpus]))
    mechanism = config.mechanism(first["examples"])
    claimed = mechanism and judge(mechanism, config.epochs, printed.delta).claimed_epsilon
    paper = {"ser": printed.sgd_ser, "auc": printed.sgd_mia_auc} if variant == SGD else {}
    if decay is not None:
        theirs = printed.changes[decay]
        paper = {"ser_change": theirs.ser, "auc_change": theirs.mia_auc, "log10_claimed": theirs.log10_epsilon}
    return {
        "model": config.model,
        "corpus": config.corpus,
        "stands_for": printed.corpus,  # the paper's name of the corpus, for which ours may be a substitute
        "variant": variant,
        "decay": None if decay is None else str(decay),
        "seeds": len(results),
        # In percent. The loss attack needs no shadow model, which might suit some targets better than others.
        **{name: estimate([100 * result[name] for result in results]) for name in SCORES},
        **{f"{name}_change": change(name) for name in SCORES},
        "log10_claimed": math.log10(claimed) if claimed else None,  # by the paper's accounting, at its delta
        "epsilon_if_seed_secret": largest("epsilon_if_seed_secret"),  # at `delta`, as is the next value
        "epsilon_if_alpha_public": largest("epsilon_if_alpha_public"),
        "delta": first["delta"],
        "z0": None if decay is None else config.z0,  # chosen in `trials` runs, or to keep epsilon equal
        "tau": None if decay in (None, Decay.NONE) else config.tau,
        "trials": trials,
        "within_tolerance": None if decay is None else _usable(first, plain[0]),  # for the first seed
        "paper": paper,
        "runs": tuple(result["run"] for result in results),  # keys of the runs
        "about": {
            **{name: ", ".join(sorted({result[name] for result in results})) for name in ("device", "machine")},
            **{name: first[name] for name in ("threads", "versions", "examples", "shadow_corpora")},
            **{name: getattr(config, name) for name in ("size", "batch_size", "epochs")},
            "seconds": sum(result["seconds"] for result in results),  # training time
        },
    }


# ---- Runs, each of which is done only once ---------------------------------------------------------------------------


class Work(NamedTuple):
    """Run to compute: its settings (with a folder as start) and its folder; corpus and folder of its shadow model."""

    config: TrainConfig
    folder: Path
    shadow: str
    shadows: Path


class TableRuns:
    """Results of runs and of the attacks on them; missing results are computed.

    Args:
        out: folder described at the top of this file; created if needed.
        workers: number of concurrent runs, each with one thread.
        tell: called with a line of progress, and whether it is worth keeping.
        fresh: ignore the committed results.

    Raises:
        UsageError: a missing result needs a corpus or an encoder that is not available; a worker was killed; a folder
            cannot be written; or `train` or `attack_shadow` fails.
    """

    def __init__(
        self,
        out: Path,
        workers: int = 1,
        tell: Callable[[str, bool], None] = lambda line, kept: None,
        fresh: bool = False,
    ) -> None:
        self.out, self.workers, self.tell = writable(out, "choose another --out"), workers, tell
        committed = [] if fresh else read_lines(COMMITTED)
        self._made = read_lines(out / "cells.jsonl")
        self._lines = [*committed, *self._made]
        self._numerics = {area: NUMERICS[area] for area in AREAS}
        self._examples = {line["config"]["corpus"]: line["result"]["examples"] for line in committed}
        self._known = {name: content for line in committed for name, content in line["contents"].items()}

    def examples(self, corpus: str) -> int:
        """Size of the training set of seed 0."""
        if not corpus_at_hand(corpus) and corpus in self._examples:
            return int(self._examples[corpus])
        return len(split(load_corpus(corpus), 0).train)

    def results(self, configs: Sequence[TrainConfig], what: str) -> list[Result]:
        """Results of the runs, in order; missing results are computed now."""
        unique = list(dict.fromkeys(configs))
        done = {config: result for config in unique if (result := self.known(config)) is not None}
        todo = {config: self._work(config) for config in unique if config not in done}
        self.tell(f"{what}: {len(done)} of {len(unique)} runs are done", True)
        start = time.perf_counter()
        for config, result in parallel(do, todo, self.workers, "the same command resumes from here"):
            done[config] = result
            self._keep(config, result)
            minutes = (time.perf_counter() - start) / 60
            self.tell(f"{what}: {len(done)} of {len(unique)} runs are done, after {minutes:.0f} min", True)
        return [done[config] for config in configs]

    def known(self, config: TrainConfig) -> Result | None:
        """The result of a finished run with these settings, data and numerics."""
        given = {"config": settings(config), "numerics": self._numerics}
        for line in self._lines:
            same = given.items() <= line.items() and "epsilon" not in line["result"]  # a key of earlier versions
            if same and all(self._content(n) == c for n, c in line["contents"].items()):
                return dict(line["result"])
        return None

    def prepare(self, configs: Sequence[TrainConfig]) -> None:
        """Create the starting weights of missing runs; raise UsageError before long work if sources are missing."""
        todo = [config for config in configs if self.known(config) is None]
        needed = dict.fromkeys(name for config in todo for name in self._corpora(config))
        absent = [name for name in needed if not corpus_at_hand(name)]
        if absent[1:]:
            raise UsageError(
                f"{', '.join(absent)} are missing: run `edp-lab data fetch` for each, or set EDP_LAB_DATA to the "
                "folder that contains them"
            )
        for config in todo:
            self._start(config)

    def _keep(self, config: TrainConfig, result: Result) -> None:
        line = {"config": settings(config), "contents": self._contents(config), "numerics": self._numerics}
        for lines in (self._made, self._lines):
            lines.append({**line, "result": result})
        write_whole(self.out / "cells.jsonl", "".join(f"{json.dumps(each)}\n" for each in self._made).encode())

    def _work(self, config: TrainConfig) -> Work:
        key = content_key(AREAS, settings(config), self._contents(config))[:24]
        made_of = replace(config, pretrained=str(self._start(config)))
        return Work(made_of, self.out / "runs" / key, self._shadow(config.corpus), self.out / "shadows")

    def _start(self, config: TrainConfig) -> Path:
        """Folder of a run's starting weights, created if missing."""
        assert config.pretrained is not None
        key = content_key(["pretraining"], config.pretrained, {"encoder": self._content("encoder")})[:16]
        folder = self.out / "public" / f"{config.pretrained.replace(':', '-')}-{key}"
        if not folder.is_dir():
            make_start(config.pretrained, ENCODER, folder)
        return folder

    def _corpora(self, config: TrainConfig) -> list[str]:
        """Corpora of a run and of the attack on it."""
        shadow = self._shadow(config.corpus)
        return [config.corpus, *([] if shadow == GENERATED else [shadow])]

    def _contents(self, config: TrainConfig) -> dict[str, str]:
        """Digests, by name, of all data used by a run and the attack on it."""
        return {name: self._content(name) for name in (*self._corpora(config), "encoder")}

    def _content(self, name: str) -> str:
        """Digest of a corpus or of the encoder; if it is not available, the digest in the committed results."""
        encoder = name == "encoder"
        if name in self._known and not (encoder_at_hand(ENCODER) if encoder else corpus_at_hand(name)):
            return str(self._known[name])
        return encoder_content(ENCODER) if encoder else corpus_content(name)

    def _shadow(self, corpus: str) -> str:
        return default_shadow(corpus, lambda name: corpus_at_hand(name) or name in self._known)


def settings(config: TrainConfig) -> dict[str, Any]:
    """JSON form of the settings that are not None or False, without `tokens`, which older lines lack."""
    values = asdict(config) | {"tokens": None}
    given = {name: value for name, value in values.items() if value is not None and value is not False}
    return dict(json.loads(json.dumps(given)))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON Lines file; empty if the file does not exist."""
    if not path.is_file():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except ValueError:
        raise UsageError(f"{path} is damaged: restore it, or remove it to repeat its runs") from None


@cache
def corpus_content(name: str) -> str:
    return load_corpus(name).sha256


@cache
def corpus_at_hand(name: str) -> bool:
    return any(info.name == name and info.where is not None for info in list_corpora())


@cache
def encoder_at_hand(name: str) -> bool:
    """Whether a published encoder can be loaded without a network."""
    try:
        return given_path(name).exists() or isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError:
        return False


@cache
def encoder_content(name: str) -> str:
    """Digest of an encoder's weights, word pieces and shape, independent of the file format."""
    from edp_lab.models.bert import load_bert  # transformers is slow to import

    with _encoder_errors(name):
        bert, tokenizer = load_bert(name)
    shape = [bert.config.num_attention_heads, bert.config.hidden_act, bert.config.layer_norm_eps]
    return digest(dict(bert.named_parameters()), json.dumps([shape, sorted(tokenizer.get_vocab().items())]).encode())


@contextmanager
def _encoder_errors(name: str) -> Iterator[None]:
    """Context that names the encoder in errors raised inside it."""
    try:
        yield
    except UsageError as error:
        raise UsageError(
            f"the public encoder {name!r} cannot be used: connect to a network, or download it into the Hugging Face "
            f"cache ({error})"
        ) from error


def make_start(start: str, encoder: str, folder: Path) -> None:
    """Write the weights for a start: an encoder's first layers or its word vectors."""
    from edp_lab.models.bert import load_bert  # transformers is slow to import
    from edp_lab.training.pretraining import shorten_bert

    with _encoder_errors(encoder):
        if start.startswith(LAYERS):
            shorten_bert(encoder, int(start.removeprefix(LAYERS)), folder)
            return
        bert, tokenizer = load_bert(encoder)
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    # Skip word continuations and special pieces of the encoder, such as [CLS].
    words = {w: k for w, k in vocabulary if not w.startswith("##") and (len(w) < 2 or (w[0], w[-1]) != ("[", "]"))}
    matrix = LOUDER * bert.embeddings.word_embeddings.weight.detach()
    with new_folder(folder) as inside:
        WordVectors(tuple(words), matrix[[*words.values()]]).save(inside)


def do(work: Work) -> Result:
    """Train a model and attack it; an interrupted run is resumed."""
    import sklearn  # noqa: F401 - sets environment variables, which `resume` compares with those of the first part

    config, folder = work.config, work.folder
    if (folder / RECORD).is_file():
        record = resume(folder)
    else:
        shutil.rmtree(folder, ignore_errors=True)  # left by a run that was killed before training began
        record = train(config, folder)
    if record["status"] != "finished":  # Ctrl-C in this process
        raise KeyboardInterrupt
    final = record["final"]
    scores = ("ser", "intent_accuracy", "slot_f1", "claimed_epsilon", "epsilon_if_alpha_public", "seconds")
    # The paper's attack, with a shadow model trained by SGD with a seed derived from the target's, and the loss attack.
    by_shadow = attack_shadow(folder, work.shadow, seed=config.seed, cache=work.shadows, plain=True).to_json()
    by_loss = attack_loss(folder).to_json()
    rates = ("auc", "auc_interval", "tpr_at_fpr")
    return {
        "validation_ser": record["epochs"][-1]["ser"],
        **{score: final[score] for score in scores},
        "epsilon_if_seed_secret": final["conditional_epsilon"],
        "delta": record["config"]["delta"],
        "examples": record["corpus"]["splits"]["train"],
        **{rate: by_shadow[rate] for rate in (*rates, "members", "shadow_corpora", "classifier")},
        **{f"loss_{rate}": by_loss[rate] for rate in rates},
        "device": record["device"],
        "threads": record["threads"],
        "machine": machine(record["device"]),
        "date": datetime.now(UTC).date().isoformat(),
        "versions": record["versions"],
        "run": folder.name,
    }
