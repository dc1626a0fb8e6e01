"""Training runs and attacks behind a table: each done once, kept by content, shared out over processes.

    OUT/cells/<key>.json    what one run, and the attack on it, came to (see `edp_lab.jobs`)
    OUT/runs/<key>/         the run itself: its record, its model, and while it is going on its state
    OUT/shadows, public     shadow models of the attacks; what the networks start from

Whoever kills the work and starts it again repeats no finished run, and goes on within the one that was cut off. The
runs behind the tables that come with a checkout, in data/results/cells, count as finished, too, but not in a folder
that was begun as `fresh`. Their index says from which corpora and encoders they were made, so that they are found
where these are not at hand; where another corpus bears the name, they are not.

What networks start from has nothing to do with the corpus at hand. The paper's CLC reads published fastText vectors,
its BERT was pretrained on Wikipedia (section 4.2). None of it is private, and all methods start alike: else a sound
run, which may not read words off its training set, would differ from SGD in more than its noise. In a table's settings
a start is a name, of `layers_of`, `words_of` or `VECTORS`; it becomes a folder (`made`) only when something is trained,
so that a finished run is found without.

UsageError: what must be done and takes a corpus or an encoder that is not at hand, a worker that was killed, a folder
that cannot be written, and what `train` and `attack_shadow` refuse.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from edp_lab.attacks.loss import attack_loss
from edp_lab.attacks.shadow import GENERATED, attack_shadow, default_shadow
from edp_lab.corpora import Corpus, load_corpus, split
from edp_lab.corpora.catalog import list_corpora
from edp_lab.corpora.smart_home import generate
from edp_lab.errors import UsageError
from edp_lab.files import given_path, new_folder, read_json, writable
from edp_lab.jobs import content_key, content_of, kept_results, read_result
from edp_lab.models.vectors import WordVectors
from edp_lab.reproduce.results_io import RESULTS, machine
from edp_lab.training import TrainConfig, resume, train
from edp_lab.training.checkpoint import digest
from edp_lab.training.run_folder import RECORD

COMMITTED = RESULTS / "cells"
INDEX = "index.json"  # there: {"corpora": {name: {"sha256", "train": {seed: count}}}, "encoders": {...}}


@dataclass(frozen=True)
class Job:
    """One run, and whether the paper's attack is made on it."""

    config: TrainConfig
    attack: bool = False


class Work(NamedTuple):
    """A job, where its run goes, under its key without the attack, and where the shadow models do."""

    config: TrainConfig
    attack: bool
    folder: Path
    shadows: Path


class TableRuns:
    """Does jobs, each once.

    Args:
        out: see above; created.
        workers: processes that work at the same time, one thread each.
        tell: called with a line, and whether it is worth keeping.
        fresh: forget what is finished, for good in this folder.
    """

    def __init__(
        self,
        out: Path,
        workers: int = 1,
        tell: Callable[[str, bool], None] = lambda line, kept: None,
        fresh: bool = False,
    ) -> None:
        self.out, self.workers, self.tell, self.fresh = writable(out, "choose another --out"), workers, tell, fresh
        index = COMMITTED / INDEX
        self._committed = index.is_file() and not (fresh or (out / "fresh").exists())
        self.at_hand, self.inputs = Inputs(), Inputs(read_json(index) if self._committed else None)
        self._joined: set[str] = set()

    @cached_property
    def cells(self) -> Path:
        """What is finished; only now, as no call that is refused should take it away, an older one makes room."""
        if self.fresh:
            for folder in ("cells", "runs", "shadows", "public"):
                shutil.rmtree(self.out / folder, ignore_errors=True)
            self.out.mkdir(parents=True, exist_ok=True)
            (self.out / "fresh").touch()
        return writable(self.out / "cells", "choose another --out")

    def key(self, job: Job, inputs: Inputs) -> str:
        """Of what the job comes to, if it is made from these."""
        config, areas = job.config, ["training", *(["membership"] if job.attack else [])]
        told: list[Any] = [
            replace(config, corpus=Path(config.corpus).name, pretrained=None),
            inputs.corpus(config.corpus),
            inputs.corpus(config.alpha_corpus) if config.alpha_corpus else None,
            content(config.pretrained, config.corpus, inputs),
            inputs.shadow(config.corpus) if job.attack else None,
        ]
        return content_key(areas, *told)[:24]

    def committed(self, key: str) -> dict[str, Any] | None:
        """What came with the checkout under that key, of `inputs`."""
        return read_result(COMMITTED, key) if self._committed else None

    def known(self, job: Job) -> dict[str, Any] | None:
        """What the job came to, if it has been done."""
        return self.committed(self.key(job, self.inputs)) or read_result(self.cells, self.key(job, self.at_hand))

    def results(self, jobs: Sequence[Job], what: str) -> list[dict[str, Any]]:
        """What each job comes to, in order; those that are missing are done now."""
        unique = list(dict.fromkeys(jobs))
        found = {job: one for job in unique if (one := self.committed(self.key(job, self.inputs))) is not None}
        self._joined |= {job.config.corpus for job in found}
        came = f", {len(found)} of them came with the checkout" if found else ""
        keys = {job: self.key(job, self.at_hand) for job in unique if job not in found}
        found |= {job: one for job, key in keys.items() if (one := read_result(self.cells, key)) is not None}
        todo = {job: self._work(job) for job in unique if job not in found}
        if todo or came:
            self.tell(f"{what}: {len(found)} of {len(unique)} runs are done{came}", True)
        start, already = time.perf_counter(), len(found)

        def gone(share: float = 1.0) -> str:
            seconds = (time.perf_counter() - start) * share
            return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"

        def progress(done: int) -> None:
            if 0 < done < len(todo):
                left = gone((len(todo) - done) / done)
                self.tell(f"{what}: {already + done} of {len(unique)} runs after {gone()}, about {left} left", True)

        made_of = [keys[job] for job in todo], list(todo.values())
        done = kept_results(self.cells, *made_of, do, self.workers, progress)
        if todo:
            self.tell(f"{what}: all {len(unique)} runs are done, after {gone()}", True)
        found |= dict(zip(todo, done, strict=True))
        return [found[job] for job in jobs]

    def prepare(self, jobs: Sequence[Job]) -> None:
        """What those of these jobs start from that must be done: a corpus or an encoder that is not at hand should show
        before hours of work on others.
        """
        for job in jobs:
            if self.known(job) is None:
                self.start_of(job.config)

    def start_of(self, config: TrainConfig) -> str | None:
        """What the run starts from, as `TrainConfig.pretrained` has it: made now, if it must be."""
        return made(config.pretrained, config.corpus, self.out / "public", self.at_hand)

    def _work(self, job: Job) -> Work:
        """UsageError also where what is at hand is not what joined runs on the same corpus were made from."""
        config = job.config
        if config.corpus in self._joined and self.key(job, self.at_hand) != self.key(job, self.inputs):
            raise UsageError(
                f"the finished runs on {config.corpus} that came with the checkout were made from corpora or an "
                "encoder that are not at hand here, and others must be run beside them: bring those, or give --fresh"
            )
        key = self.key(Job(config), self.at_hand)
        made_of = replace(config, pretrained=self.start_of(config))
        return Work(made_of, job.attack, self.out / "runs" / key, self.out / "shadows")


# ---- In a process that does a share of the jobs --------------------------------------------------------------------


def do(work: Work) -> dict[str, Any]:
    """What a job comes to; a run that was cut off goes on."""
    config, folder = work.config, work.folder
    if (folder / RECORD).is_file():
        record = resume(folder)
    else:
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed before it began
        record = train(config, folder)
    if record["status"] != "finished":  # Ctrl-C, where the run is this process's
        raise KeyboardInterrupt
    final = record["final"]
    scores = ("ser", "intent_accuracy", "slot_f1", "epsilon_claimed", "epsilon", "epsilon_if_alpha_public")
    found = {
        # Wherever a user keeps them.
        "config": {**record["config"], "corpus": Path(config.corpus).name, "pretrained": config.pretrained},
        "validation_ser": record["epochs"][-1]["ser"],
        **{score: final[score] for score in scores},
        "delta": record["config"]["delta"],
        "examples": record["corpus"]["splits"]["train"],
        "seconds": final["seconds"],
        "device": record["device"],
        "threads": record["threads"],
        "machine": machine(record["device"]),
        "date": datetime.now(UTC).date().isoformat(),
        "versions": record["versions"],
        "run": work.folder.name,
    }
    if not work.attack:
        return found
    # The paper's attack, its shadow model trained by SGD with a seed of the target's, and one by the loss alone.
    start = time.perf_counter()
    by_shadow = attack_shadow(folder, seed=config.seed, cache=work.shadows, plain=True).to_json()
    by_loss = attack_loss(folder).to_json()
    rates = ("auc", "auc_interval", "tpr_at_fpr")
    return {
        **found,
        **{rate: by_shadow[rate] for rate in (*rates, "guards", "members", "shadow_corpora", "classifier")},
        **{f"loss_{rate}": by_loss[rate] for rate in rates},
        "attack_seconds": time.perf_counter() - start,
    }


def measured_on(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Where these runs were made: all devices and machines, threads and versions of the first."""
    every = {name: ", ".join(sorted({one[name] for one in results})) for name in ("device", "machine")}
    return {**every, "threads": results[0]["threads"], "versions": results[0]["versions"]}


# ---- What runs are made from -----------------------------------------------------------------------------------------

ENCODER = "sentence-transformers/all-MiniLM-L6-v2"  # 384 wide; pretrained on Wikipedia, among others
FINE_TUNING = 2e-4  # BERT's learning rate from there
PUBLIC = ("atis", "snips", "nlu-eval")  # each is text that is not to be protected, where another one is
TEXT_SEED, TEXT = 14586, 20_000  # of generated utterances
LOUDER = 8.0  # brings the encoder's numbers, .06 in size, to that of embeddings that are learnt; a power of 2 is exact
LAYERS, WORDS = "encoder", "words"  # kinds of starts, before a colon
VECTORS = "vectors:"  # fastText, of text that has nothing to do with the corpus at hand


class Inputs:
    """Corpora and encoders by their content: as they are at hand, else as an index of finished runs has them."""

    def __init__(self, index: Mapping[str, Any] | None = None) -> None:
        self.encoders: Mapping[str, str] = (index or {}).get("encoders", {})
        self.corpora: Mapping[str, Any] = (index or {}).get("corpora", {})
        self._loaded: Callable[[str], Corpus] = cache(load_corpus)
        self._at_hand: Callable[[str], bool] = cache(corpus_at_hand)

    def has(self, corpus: str) -> bool:
        return self._at_hand(corpus) or Path(corpus).name in self.corpora

    def corpus(self, name: str) -> str:
        """Its checksum."""
        indexed = self._indexed(name)
        return str(indexed["sha256"]) if indexed else self._loaded(name).sha256

    def examples(self, corpus: str, seed: int) -> int:
        """Of the training set."""
        indexed = (self._indexed(corpus) or {"train": {}})["train"].get(str(seed))
        return int(indexed) if indexed else len(split(self._loaded(corpus), seed).train)

    def encoder(self, name: str) -> str:
        indexed = None if encoder_at_hand(name) else self.encoders.get(name)
        return indexed or encoder_content(name)

    def shadow(self, corpus: str) -> list[str]:
        """Of the paper's attack: the corpus of its shadow model, and the content of that."""
        name = default_shadow(corpus, self.has)
        return [name, "" if name == GENERATED else self.corpus(name)]

    def _indexed(self, corpus: str) -> Mapping[str, Any] | None:
        return None if self._at_hand(corpus) else self.corpora.get(Path(corpus).name)


def corpus_at_hand(name: str) -> bool:
    known = {info.name: info.where is not None for info in list_corpora()}
    return known[name] if name in known else given_path(name).exists()


def encoder_at_hand(name: str) -> bool:
    """Whether a published encoder can be read without a network."""
    try:
        return given_path(name).exists() or isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError:
        return False


@cache
def encoder_content(name: str) -> str:
    """A digest of an encoder's weights, pieces and shape, not of the files in which they lie."""
    from edp_lab.models.bert import load_bert  # transformers is slow to import

    with _blamed(name):
        bert, tokenizer = load_bert(name)
    shape = [bert.config.num_attention_heads, bert.config.hidden_act, bert.config.layer_norm_eps]
    return digest(dict(bert.named_parameters()), json.dumps([shape, sorted(tokenizer.get_vocab().items())]).encode())


@contextmanager
def _blamed(name: str) -> Iterator[None]:
    """What goes wrong inside is an encoder's fault."""
    try:
        yield
    except UsageError as error:
        raise UsageError(
            f"the public encoder {name!r} cannot be used: give --encoder a folder that holds a BERT, or a hub name and "
            f"a network ({error})"
        ) from error


# ---- What networks start from ----------------------------------------------------------------------------------------


def layers_of(encoder: str, layers: int) -> str:
    """The start that is the first layers of a published encoder, a hub name or a folder."""
    return f"{LAYERS}:{layers}:{encoder}"


def words_of(encoder: str) -> str:
    """The start that is an encoder's vectors of whole words, before it reads them in context, for the CLC."""
    return f"{WORDS}:{encoder}"


def content(start: str | None, corpus: str, inputs: Inputs) -> str | None:
    """A digest of what a run on `corpus` starts from, the same wherever it lies and whoever made it."""
    kind, _, rest = (start or "").partition(":")
    if kind == LAYERS:
        layers, _, name = rest.partition(":")
        return content_key(["pretraining"], kind, layers, inputs.encoder(name))
    if kind == WORDS:
        return content_key(["pretraining"], kind, inputs.encoder(rest))
    if start == VECTORS:
        return content_key(["pretraining"], kind, [inputs.corpus(name) for name in _others(corpus, inputs)])
    return None if start is None else content_of(start)


def made(start: str | None, corpus: str, folder: Path, inputs: Inputs) -> str | None:
    """A start as `TrainConfig.pretrained` has it, of inputs at hand: made in `folder`, unless it is there."""
    kind, _, rest = (start or "").partition(":")
    if kind not in (LAYERS, WORDS) and start != VECTORS:
        return start
    path = folder / f"{kind}-{(content(start, corpus, inputs) or '')[:16]}"
    if path.is_dir():
        return str(path)
    from edp_lab.models.bert import load_bert  # transformers is slow to import
    from edp_lab.training.pretraining import pretrain_vectors, shorten_bert

    if kind == LAYERS:
        layers, _, name = rest.partition(":")
        with _blamed(name):
            shorten_bert(name, int(layers), path)
    elif kind == WORDS:
        with _blamed(rest):
            bert, tokenizer = load_bert(rest)
        pieces = {piece: number for piece, number in tokenizer.get_vocab().items() if _is_word(piece)}
        words = sorted(pieces, key=pieces.__getitem__)
        matrix = LOUDER * bert.embeddings.word_embeddings.weight.detach()
        with new_folder(path) as inside:
            WordVectors(tuple(words), matrix[[pieces[word] for word in words]]).save(inside)
    else:
        corpora = [generate(TEXT, TEXT_SEED), *map(load_corpus, _others(corpus, inputs))]
        pretrain_vectors([u.tokens for one in corpora for u in one.utterances], path)
    return str(path)


def _others(corpus: str, inputs: Inputs) -> list[str]:
    return [name for name in PUBLIC if name != corpus and inputs.has(name)]


def _is_word(piece: str) -> bool:
    """Neither the rest of a word nor a sign of the encoder's own, such as [CLS]."""
    return not piece.startswith("##") and not (len(piece) > 1 and piece.startswith("[") and piece.endswith("]"))
