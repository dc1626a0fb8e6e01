"""Training runs behind Table 1 and the attacks on them, each done once.

    data/results/table1_cells.jsonl    results that come with a checkout, a line each
    OUT/cells.jsonl                    results made here, written as soon as each is done
    OUT/runs, shadows, public          runs, shadow models of the attacks, what the networks start from

A result is identified by its settings and by digests of the corpora and the encoder that it was made from. If one of
these is at hand here, its digest must agree; if it is not, we believe the committed line. So a work that was killed
resumes, and the committed table is made again without corpora, encoder or network.

All methods start from the same public weights: else a sound run, which may not read words off its training set, would
differ from SGD in more than its noise. The paper's CLC reads published fastText vectors, its BERT was pretrained on
Wikipedia (section 4.2). In a run's settings the start is a name, which becomes a folder only if something is trained.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from edp_lab.attacks.loss import attack_loss
from edp_lab.attacks.shadow import GENERATED, attack_shadow, default_shadow
from edp_lab.corpora import load_corpus, split
from edp_lab.corpora.catalog import list_corpora
from edp_lab.corpora.smart_home import generate
from edp_lab.errors import UsageError
from edp_lab.files import given_path, new_folder, writable, write_whole
from edp_lab.jobs import NUMERICS, content_key, parallel
from edp_lab.models.vectors import WordVectors
from edp_lab.reproduce.results_io import RESULTS, machine
from edp_lab.training import TrainConfig, resume, train
from edp_lab.training.checkpoint import digest
from edp_lab.training.run_folder import RECORD

COMMITTED = RESULTS / "table1_cells.jsonl"
ENCODER = "sentence-transformers/all-MiniLM-L6-v2"  # 384 wide; pretrained on Wikipedia, among others
PUBLIC = ("atis", "snips", "nlu-eval")  # each is public text for a run on another one
WORDS, VECTORS = "words", "vectors"  # starts of the CLC: an encoder's words, or fastText vectors of unrelated text
LAYERS = "layers:"  # starts of BERT: an encoder's first layers, their number after the colon
TEXT_SEED, TEXT = 14586, 20_000  # of generated utterances
LOUDER = 8.0  # scales the encoder's vectors, .06 in size, to that of learned embeddings; a power of 2 is exact
AREAS = ("training", "pretraining", "membership")  # of `NUMERICS`

Result = dict[str, Any]


class Work(NamedTuple):
    """A run whose start is a folder, where it goes, the shadow model's corpus, where shadow models go."""

    config: TrainConfig
    folder: Path
    shadow: str
    shadows: Path


class TableRuns:
    """Results of runs and of the attacks on them; missing ones are made.

    Args:
        out: see above; created.
        workers: runs at a time, a thread each.
        tell: called with a line of progress, and whether it is worth keeping.
        fresh: ignore results that come with the checkout.
        encoder: hub name or folder of the encoder that starts are made from.

    Raises:
        UsageError: a missing result takes a corpus or an encoder that is not at hand; a worker was killed; a folder
            that cannot be written; and as `train` and `attack_shadow`.
    """

    def __init__(
        self,
        out: Path,
        workers: int = 1,
        tell: Callable[[str, bool], None] = lambda line, kept: None,
        fresh: bool = False,
        encoder: str = ENCODER,
    ) -> None:
        self.out, self.workers, self.tell, self.encoder = writable(out, "choose another --out"), workers, tell, encoder
        committed = [] if fresh else read_lines(COMMITTED)
        self._made = read_lines(out / "cells.jsonl")
        self._numerics = {area: NUMERICS[area] for area in AREAS}
        self._examples = {line["config"]["corpus"]: line["result"]["examples"] for line in committed}
        self._known = {name: found for line in committed for name, found in line["contents"].items()}
        if encoder != ENCODER:
            self._known.pop("encoder", None)
        self._results: dict[str, list[Result]] = {}
        for line in [*committed, *self._made]:
            self._results.setdefault(_text(line["config"]), []).append(line)

    def examples(self, corpus: str) -> int:
        """Size of the training set of seed 0."""
        if not corpus_at_hand(corpus) and corpus in self._examples:
            return int(self._examples[corpus])
        return len(split(load_corpus(corpus), 0).train)

    def results(self, configs: Sequence[TrainConfig], what: str) -> list[Result]:
        """The result of each run, in order; missing ones are made now."""
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
        """The result of a run that has been done with these settings, data and numerics."""
        for line in self._results.get(_text(settings(config)), []):
            agree = all(self._content(name) == found for name, found in line["contents"].items())
            if agree and line["numerics"] == self._numerics:
                return dict(line["result"])
        return None

    def prepare(self, configs: Sequence[TrainConfig]) -> None:
        """Make what missing runs start from: a corpus or an encoder that is not at hand shows before hours of work."""
        for config in configs:
            if self.known(config) is None:
                self._start(config)

    def _keep(self, config: TrainConfig, result: Result) -> None:
        line = {"config": settings(config), "contents": self._contents(config), "numerics": self._numerics}
        self._made.append({**line, "result": result})
        self._results.setdefault(_text(line["config"]), []).append(self._made[-1])
        write_whole(self.out / "cells.jsonl", "".join(f"{json.dumps(each)}\n" for each in self._made).encode())

    def _work(self, config: TrainConfig) -> Work:
        key = content_key(AREAS, settings(config), self._contents(config))[:24]
        made_of = replace(config, pretrained=str(self._start(config)))
        return Work(made_of, self.out / "runs" / key, self._shadow(config.corpus), self.out / "shadows")

    def _start(self, config: TrainConfig) -> Path:
        """The folder of what a run starts from, made if it is missing."""
        assert config.pretrained is not None
        sources = self._sources(config)
        key = content_key(["pretraining"], config.pretrained, sources)[:16]
        folder = self.out / "public" / f"{config.pretrained.replace(':', '-')}-{key}"
        if not folder.is_dir():
            make_start(config.pretrained, self.encoder, [name for name in sources if name != "encoder"], folder)
        return folder

    def _contents(self, config: TrainConfig) -> dict[str, str]:
        """Digests of all that a run and the attack on it are made from, by name."""
        shadow = self._shadow(config.corpus)
        corpora = [config.corpus, *([] if shadow == GENERATED else [shadow])]
        return {**{name: self._content(name) for name in corpora}, **self._sources(config)}

    def _sources(self, config: TrainConfig) -> dict[str, str]:
        """Digests of what the start is made from, by name."""
        others = [name for name in PUBLIC if name != config.corpus and self._has(name)]
        return {name: self._content(name) for name in (others if config.pretrained == VECTORS else ["encoder"])}

    def _content(self, name: str) -> str:
        """Digest of a corpus or of the encoder: as it is at hand, else as the committed results know it."""
        at_hand = encoder_at_hand(self.encoder) if name == "encoder" else corpus_at_hand(name)
        if not at_hand and name in self._known:
            return str(self._known[name])
        return encoder_content(self.encoder) if name == "encoder" else corpus_content(name)

    def _has(self, corpus: str) -> bool:
        return corpus_at_hand(corpus) or corpus in self._known

    def _shadow(self, corpus: str) -> str:
        return default_shadow(corpus, self._has)


def settings(config: TrainConfig) -> dict[str, Any]:
    """Settings that are not None or False, as JSON has them."""
    given = {name: value for name, value in asdict(config).items() if value is not None and value is not False}
    return dict(json.loads(json.dumps(given)))


def _text(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON Lines file; none if there is no such file."""
    if not path.is_file():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except ValueError:
        raise UsageError(f"{path} is damaged: restore it, or remove it and its runs are done again") from None


@cache
def corpus_content(name: str) -> str:
    return load_corpus(name).sha256


@cache
def corpus_at_hand(name: str) -> bool:
    return any(info.name == name and info.where is not None for info in list_corpora())


@cache
def encoder_at_hand(name: str) -> bool:
    """Whether a published encoder can be read without a network."""
    try:
        return given_path(name).exists() or isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError:
        return False


@cache
def encoder_content(name: str) -> str:
    """Digest of an encoder's weights, word pieces and shape, not of the files that hold them."""
    from edp_lab.models.bert import load_bert  # transformers is slow to import

    with _blamed(name):
        bert, tokenizer = load_bert(name)
    shape = [bert.config.num_attention_heads, bert.config.hidden_act, bert.config.layer_norm_eps]
    return digest(dict(bert.named_parameters()), json.dumps([shape, sorted(tokenizer.get_vocab().items())]).encode())


@contextmanager
def _blamed(name: str) -> Iterator[None]:
    """Errors inside are the encoder's fault."""
    try:
        yield
    except UsageError as error:
        raise UsageError(
            f"the public encoder {name!r} cannot be used: give --encoder a folder that holds a BERT, or a hub name and "
            f"a network ({error})"
        ) from error


def make_start(start: str, encoder: str, texts: Sequence[str], folder: Path) -> None:
    """Write the weights that a start names: an encoder's first layers or words, or vectors of `texts` (corpora)."""
    from edp_lab.models.bert import load_bert  # transformers is slow to import
    from edp_lab.training.pretraining import pretrain_vectors, shorten_bert

    if start.startswith(LAYERS):
        with _blamed(encoder):
            shorten_bert(encoder, int(start.removeprefix(LAYERS)), folder)
    elif start == WORDS:
        with _blamed(encoder):
            bert, tokenizer = load_bert(encoder)
        pieces = {piece: number for piece, number in tokenizer.get_vocab().items() if _is_word(piece)}
        words = sorted(pieces, key=pieces.__getitem__)
        matrix = LOUDER * bert.embeddings.word_embeddings.weight.detach()
        with new_folder(folder) as inside:
            WordVectors(tuple(words), matrix[[pieces[word] for word in words]]).save(inside)
    else:
        corpora = [generate(TEXT, TEXT_SEED), *map(load_corpus, texts)]
        pretrain_vectors([u.tokens for one in corpora for u in one.utterances], folder)


def _is_word(piece: str) -> bool:
    """Neither the rest of a word nor a sign of the encoder, such as [CLS]."""
    return not piece.startswith("##") and not (len(piece) > 1 and piece.startswith("[") and piece.endswith("]"))


# ---- In a worker -----------------------------------------------------------------------------------------------------


def do(work: Work) -> Result:
    """Train and attack; a run that was cut off is resumed."""
    import sklearn  # noqa: F401 - it sets environment variables, which `resume` compares with those of the first part

    config, folder = work.config, work.folder
    if (folder / RECORD).is_file():
        record = resume(folder)
    else:
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed before it began
        record = train(config, folder)
    if record["status"] != "finished":  # Ctrl-C in this process
        raise KeyboardInterrupt
    final = record["final"]
    scores = ("ser", "intent_accuracy", "slot_f1", "epsilon_claimed", "epsilon", "epsilon_if_alpha_public", "seconds")
    # The paper's attack, its shadow model trained by SGD with a seed of the target's, and one by the loss alone.
    by_shadow = attack_shadow(folder, (work.shadow,), seed=config.seed, cache=work.shadows, plain=True).to_json()
    by_loss = attack_loss(folder).to_json()
    rates = ("auc", "auc_interval", "tpr_at_fpr")
    return {
        "validation_ser": record["epochs"][-1]["ser"],
        **{score: final[score] for score in scores},
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
