"""Table 2 re-measured: the time of a training step under each method as a ratio to SGD's, beside the paper's.

Every method starts from the same weights and reads the same batches, in one process. A round gives one step to each
method in turn, and just before or after it one to SGD; ratios compare such neighbours, because other load on the
machine slows both. Peak memory is measured in one more process for each method. With several processes these are ranks
started by torchrun, as in training.

Opacus (Yousefpour et al. 2021, arXiv 2109.12298) is a peer for per-example DP-SGD, in the faster of its two modes. A
peer has the architecture, sizes and first weights of one of our models, from modules whose gradients Opacus knows, and
as many trainable parameters: our LSTM has one bias for each direction, so DPLSTM's second one stays at zero. What
differs from our own step: dropout masks and noise come from torch's generator; the clip is C / (norm + 1e-6); the
learning rate does not fall; and a batch is padded to its longest utterance, so that each first index is an example.
"""

from __future__ import annotations

import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from edp_lab.corpora import load_corpus, split
from edp_lab.corpora.encoding import Batch
from edp_lab.errors import UsageError
from edp_lab.jobs import usable_cores
from edp_lab.models.clc import CLC
from edp_lab.models.crf import CRF, forward_backward, path_score
from edp_lab.models.intent_slot import IntentSlotModel, to_padded
from edp_lab.models.lstm import BiLSTM
from edp_lab.reproduce.printed import TABLE_2
from edp_lab.training.build import make_optimizer
from edp_lab.training.config import TrainConfig
from edp_lab.training.gradients import trainable
from edp_lab.training.launch import end_rank
from edp_lab.training.session import start_accelerator
from edp_lab.training.trainer import Trainer

METHODS = ("sgd", "edp-sgd", "dp-sgd-naive", "dp-sgd", "opacus")
SLOW, FEW = 10.0, 3  # a method whose steps take 10 times as long as SGD's gets only 3 rounds
# Else glibc returns large tensors to the system after each step, which would double the time of Opacus alone.
KEEP_PAGES = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
VOCABULARY = 30_522  # pieces of the BERT that the paper fine-tunes: 14.25 million parameters


def usable_methods() -> tuple[str, ...]:
    """All methods; Opacus only if it is installed."""
    return METHODS if find_spec("opacus") else METHODS[:-1]


class Contestant(NamedTuple):
    """A method with its number of devices, simulated by some processes."""

    method: str
    gpus: int
    processes: int


@dataclass(frozen=True)
class Task:
    """Settings of one benchmark, validated."""

    corpus: str
    model: str = "clc"
    methods: tuple[str, ...] = METHODS
    gpus: tuple[int, ...] = (1, 8)
    processes: tuple[int, ...] = (1,)
    batch_size: int = 64
    rounds: int = 30  # steps of each method; a slow one gets only three
    threads: int | None = None  # of each process; None: its share of the cores
    size: str = "paper"
    device: str | None = None  # "cpu" or "cuda"; None: cuda if there is one

    def __post_init__(self) -> None:
        for method in self.methods:
            if method not in METHODS:
                raise UsageError(f"unknown method {method!r}: choose from {', '.join(METHODS)}")
        if self.device not in (None, "cpu", "cuda"):
            raise UsageError(f"unknown device {self.device!r}: choose cpu or cuda")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UsageError("no CUDA device is usable here: drop --device, or choose cpu")
        if "sgd" not in self.methods:
            raise UsageError("ratios are to SGD: add sgd to --methods")
        if not set(self.methods) <= {*usable_methods()}:
            raise UsageError("method 'opacus' needs Opacus 1.6 or newer: pip install opacus, or edp-lab[test]")
        for processes in self.processes:
            for contestant in self.contestants(processes):
                self.config(contestant)

    def contestants(self, processes: int) -> list[Contestant]:
        """SGD first. Per-example methods do not know of devices; the slow ones run on one process only."""
        contestants = []
        for method in sorted(self.methods, key=METHODS.index):
            if method == "edp-sgd":
                contestants += [Contestant(method, gpus, processes) for gpus in self.gpus if gpus >= processes]
            elif processes == 1 or method in ("sgd", "dp-sgd"):
                contestants.append(Contestant(method, processes, processes))
        return contestants

    def config(self, contestant: Contestant, pretrained: str | None = None) -> TrainConfig:
        per_example = contestant.method in ("dp-sgd", "dp-sgd-naive", "opacus")
        return TrainConfig(
            corpus=self.corpus,
            model=self.model,
            method="dp-sgd" if contestant.method == "opacus" else contestant.method,
            num_devices=contestant.gpus,
            processes=contestant.processes,
            batch_size=self.batch_size,
            sampling="shuffle" if per_example else None,  # the same batches for all
            z0=1.0,
            epochs=1000,
            size=self.size,
            pretrained=pretrained,
        )


def table2(task: Task, progress: Callable[[str], None] = lambda name: None) -> list[dict[str, Any]]:
    """Per contestant: seconds of a step (median), ratio to SGD's step beside it (median and quartiles), peak memory.

    `seconds_per_epoch` is the mean step times the steps of an epoch, beside the paper's ratio. UsageError: an unknown
    corpus, a process that died.
    """
    rows = []
    load_corpus(task.corpus)  # refused before processes begin
    with tempfile.TemporaryDirectory() as folder:
        pretrained = _encoder(task, Path(folder)) if task.model == "bert" else None
        for processes in task.processes:
            contestants = task.contestants(processes)
            turns = []
            for turn in _measured(task, contestants, pretrained):
                progress(f"{contestants[turn['number']].method}, round {turn['round'] + 1}")
                turns.append(turn)
            for number, contestant in enumerate(contestants):
                progress(f"memory of {contestant.method}")
                [last] = _measured(task, [contestant], pretrained, memory=True)
                rows.append(_row(task, contestant, number, turns, last["memory_mb"]))
    return rows


def _row(
    task: Task, contestant: Contestant, number: int, turns: Sequence[dict[str, Any]], memory_mb: float
) -> dict[str, Any]:
    """Result of the contestant with this number in `turns`; each of the others' steps has one of SGD beside it."""
    matching = [turn for turn in turns if number in (0, turn["number"])]
    seconds = [turn["seconds" if number else "sgd"] for turn in matching]
    ratios = [taken / turn["sgd"] for taken, turn in zip(seconds, matching, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    paper = [r for r in TABLE_2 if r.model.lower() == task.model and r.corpus.lower() == task.corpus.lower()]
    factors = {"sgd": 1.0, "edp-sgd": paper[0].edp_sgd_factor, "dp-sgd-naive": paper[0].dp_sgd_factor} if paper else {}
    return {
        "model": task.model,
        "corpus": task.corpus,
        **contestant._asdict(),
        "seconds": statistics.median(seconds),
        "ratio_to_sgd": statistics.median(ratios),
        "ratio_spread": [low, high],
        "peak_memory_mb": memory_mb,
        "paper_ratio": factors.get(contestant.method),
        "device": task.device or ("cuda" if torch.cuda.is_available() else "cpu"),
        "threads": turns[0]["threads"],
        "batch_size": task.batch_size,
        "rounds": len(seconds),
        "steps_per_epoch": turns[0]["steps"],
        "seconds_per_epoch": statistics.mean(seconds) * turns[0]["steps"],
    }


def _encoder(task: Task, folder: Path) -> str:
    """Save a BERT of the paper's shape with random weights and the corpus' word pieces, for timing only."""
    from edp_lab.models.bert import BertSize, new_bert, quiet
    from edp_lab.models.factory import seeded
    from edp_lab.models.wordpiece import train_wordpieces
    from edp_lab.training.config import SIZES

    tokenizer = train_wordpieces([u.tokens for u in load_corpus(task.corpus).utterances])
    with seeded(0), quiet():
        bert = new_bert(BertSize(**SIZES[task.size]["bert"]).architecture(VOCABULARY))
        bert.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


# ---- Processes that take the steps -----------------------------------------------------------------------------------


def _measured(
    task: Task, contestants: Sequence[Contestant], pretrained: str | None, memory: bool = False
) -> Iterator[dict[str, Any]]:
    """Reports of the first process, as they come: each turn, or only its peak memory after two steps."""
    processes = contestants[0].processes
    job = json.dumps([asdict(task), contestants, pretrained, memory])
    ranks = ["torch.distributed.run", "--standalone", f"--nproc_per_node={processes}", "-m"] if processes > 1 else []
    threads = task.threads or max(1, usable_cores() // processes)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **({} if memory else KEEP_PAGES)}
    command = [sys.executable, "-m", *ranks, __name__, job]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        try:
            yield from map(json.loads, child.stdout)
        except BaseException:  # the caller stops
            child.terminate()
            raise
    if child.returncode:
        raise UsageError(f"the process that takes the steps died with status {child.returncode}: see above")


def main(job: str) -> None:
    """One rank of the benchmark; the first prints a line of JSON after each turn."""
    task, contestants, pretrained, memory = json.loads(job)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    warnings.filterwarnings("ignore", "Full backward hook")  # Opacus', on a first layer
    for turn in turns(Task(**task), [Contestant(*each) for each in contestants], pretrained, memory):
        if int(os.environ.get("RANK", 0)) == 0:
            print(json.dumps(turn), flush=True)


def turns(
    task: Task, contestants: Sequence[Contestant], pretrained: str | None, memory: bool
) -> Iterator[dict[str, Any]]:
    """Take the steps in this process, and report each."""
    accelerator = start_accelerator(contestants[0].processes, task.device)
    corpus = load_corpus(task.corpus)
    data = split(corpus, 0)
    runs = [Trainer(task.config(contestant, pretrained), corpus, data, accelerator) for contestant in contestants]
    take = [_taker(run, contestant.method) for run, contestant in zip(runs, contestants, strict=True)]
    firsts = [step(0) for step in take]  # allocates memory; not counted
    if memory:
        take[0](1)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 2**10
        if accelerator.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated()
        yield {"memory_mb": peak / 2**20}
        return
    about = {"steps": runs[0].batches.steps_per_epoch, "threads": torch.get_num_threads()}
    for place in range(task.rounds):
        draw = random.Random(place)  # the same on all ranks
        # In random order: a method that always followed a heavy one would always find a cold cache.
        for number in draw.sample(range(1, len(runs)), len(runs) - 1) or [0]:
            if place < FEW or firsts[number] < SLOW * firsts[0]:
                pair = draw.sample([0, number], 2) if number else [0]
                seconds = {index: take[index](place) for index in pair}
                yield {"number": number, "round": place, "seconds": seconds[number], "sgd": seconds[0], **about}


def _taker(run: Trainer, method: str) -> Callable[[int], float]:
    """A function that takes the method's step on a batch of the epoch, by its number, and returns the seconds."""
    peer = OpacusPeer(run) if method == "opacus" else None

    def wait() -> None:
        if run.accelerator.device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(number: int) -> float:
        place = run.progress.step_in_epoch = number % max(1, run.batches.steps_per_epoch - 1)  # the last is shorter
        wait()
        start = time.perf_counter()
        if peer is None:
            run.step()
        else:
            peer.step(np.concatenate([part for parts in run.batches.devices(0, place, 0) for part in parts]))
        wait()
        return time.perf_counter() - start

    return seconds


# ---- Opacus' step ----------------------------------------------------------------------------------------------------


class OpacusPeer:
    """A copy of the model of a run by DP-SGD with Adam, from Opacus' modules, under Opacus' optimizer.

    For BERT it keeps only the norms of the examples' gradients and goes backward twice (ghost clipping: Li et al. 2022,
    arXiv 2110.05679, section 4); for the CLC it keeps the gradients. Each is the faster of the two ways on a CPU, for
    the CLC by a tenth, as DPLSTM forms its gradients anyway, and that is most of the step.
    """

    def __init__(self, run: Trainer) -> None:
        from opacus.grad_sample.utils import wrap_model
        from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping

        config, mechanism = run.config, run.mechanism
        assert mechanism is not None
        self.data, self.device, self.ghost = run.train_data, run.accelerator.device, config.model == "bert"
        self.model = _Peer(run.model, self.ghost).to(self.device).train()
        optimizer = make_optimizer(config.optimizer, [p for _, p in trainable(self.model)], config.learning_rate)
        clip = {"max_grad_norm": mechanism.clip_norm}
        # Not strict, because BertModel has buffers: position numbers, which no example changes.
        mode = ("ghost", clip) if self.ghost else ("hooks", {})
        self.module: Any = wrap_model(self.model, mode[0], strict=False, **mode[1])
        kind = DPOptimizerFastGradientClipping if self.ghost else DPOptimizer
        noise = mechanism.noise_std(0) / mechanism.clip_norm
        self.optimizer: Any = kind(optimizer, expected_batch_size=config.batch_size, noise_multiplier=noise, **clip)

    def step(self, examples: np.ndarray) -> float:
        """One optimizer step on these examples: each clipped at C, their sum noised, mean over the batch size.

        Afterwards ``.grad`` of the model's parameters holds what the optimizer was given. Returns the summed loss.
        """
        from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

        # DPLSTM leaves the gradients of packed sequences in the order of falling length; other layers must agree.
        order = np.argsort(-self.data.lengths[examples], kind="stable")
        self.optimizer.zero_grad(set_to_none=True)
        losses = self.module(self.data.batch(examples[order]).to(self.device))
        if self.ghost:
            DPTensorFastGradientClipping(self.module, self.optimizer, losses).backward()
        else:
            losses.mean().backward()
        self.optimizer.step()
        return float(losses.detach().sum())


class _Peer(nn.Module):
    """A copy of one of our models, from modules that Opacus supports."""

    def __init__(self, model: IntentSlotModel, bert: bool) -> None:
        super().__init__()
        ours: Any = model
        self.encoder = _BertEncoder(ours) if bert else _CLCEncoder(ours)
        self.intent = deepcopy(model.intent)
        if model.labels.tags:
            self.slots, self.crf = deepcopy(model.slots), _CRFLoss(model.crf)

    def forward(self, batch: Batch) -> Tensor:
        """One loss per utterance, (B)."""
        pooled, tokens = self.encoder(batch)
        loss = F.cross_entropy(self.intent(pooled), batch.intents, reduction="none")
        if batch.tags is None:
            return loss
        return loss + self.crf(self.slots(tokens), *to_padded(batch.tags, batch.lengths))


class _CLCEncoder(nn.Module):
    def __init__(self, model: CLC) -> None:
        super().__init__()
        self.dropout = nn.Dropout1d(model.size.dropout)  # one mask for all words of an utterance
        self.words, self.characters = deepcopy(model.words), deepcopy(model.characters)
        filters = model.convolution.weight.unflatten(1, (3, -1)).transpose(1, 2)  # (filters, character, 3)
        self.convolution = nn.Conv2d(filters.shape[1], filters.shape[0], (1, 3), padding=(0, 1))
        self.convolution.weight = nn.Parameter(filters.detach()[:, :, None].contiguous())
        self.convolution.bias = deepcopy(model.convolution.bias)
        self.lstm = nn.ModuleList(_dp_lstm(layer) for layer in model.lstm if isinstance(layer, BiLSTM))

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Pooled (B, P) and per-token (B, T, D) representations."""
        words, mask = to_padded(batch.inputs["words"], batch.lengths)
        x = torch.cat([self.words(words), self._spelling(batch)], dim=2)  # (B, T, word + filters)
        for layer in self.lstm:
            packed = pack_padded_sequence(self.dropout(x.mT).mT, batch.lengths.cpu(), batch_first=True)
            x = pad_packed_sequence(layer(packed)[0], batch_first=True)[0]
        x = self.dropout(x.mT).mT
        return x.masked_fill(~mask[..., None], -torch.inf).amax(1), x

    def _spelling(self, batch: Batch) -> Tensor:
        """Width-3 convolution over a word's bytes, then the maximum over its positions: (B, T, filters)."""
        characters = to_padded(batch.inputs["characters"], batch.lengths)[0]  # (B, T, L)
        characters = characters[..., : int((characters > 0).sum(2).max())]
        inside = characters > 0
        # Opacus' gradients of a convolution are only right if its input is contiguous.
        x = (self.characters(characters) * inside[..., None]).permute(0, 3, 1, 2).contiguous()  # (B, character, T, L)
        return torch.tanh(self.convolution(x).masked_fill(~inside[:, None], -torch.inf).amax(3)).transpose(1, 2)


def _dp_lstm(layer: BiLSTM) -> nn.Module:
    """One bidirectional layer of Opacus' DPLSTM with our weights and a single bias for each direction."""
    from opacus.layers import DPLSTM

    lstm = DPLSTM(layer.w_ih.shape[2], layer.w_hh.shape[2], bidirectional=True).to(layer.w_ih.dtype)
    for direction, cell in enumerate((lstm.l0, lstm.l0_reverse)):
        for ours, theirs in ((layer.w_ih, cell.ih.weight), (layer.w_hh, cell.hh.weight), (layer.bias, cell.ih.bias)):
            theirs.data.copy_(reordered(ours[direction]))
        nn.init.zeros_(cell.hh.bias).requires_grad_(False)
    return lstm


def reordered(weight: Tensor) -> Tensor:
    """Rows (4H, ...) from our order of gates to DPLSTM's, where the candidate stands before the output, or back."""
    return weight.detach().unflatten(0, (4, -1))[[0, 1, 3, 2]].flatten(0, 1)


class _BertEncoder(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.bert, self.dropout = deepcopy(model.bert), nn.Dropout1d(model.dropout)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Pooled (B, H), the vector of [CLS], and tokens (B, T, H), that of each word's first piece."""
        pieces, mask = to_padded(batch.inputs["pieces"], batch.inputs["pieces_rows"])
        hidden = self.bert(
            input_ids=pieces,
            attention_mask=mask,
            # By default both have a first dimension of 1, for which Opacus sees one example; it wants no view either.
            position_ids=torch.arange(pieces.shape[1], device=pieces.device).repeat(len(pieces), 1),
            token_type_ids=torch.zeros_like(pieces),
        ).last_hidden_state
        first = to_padded(batch.inputs["words"], batch.lengths)[0]  # (B, T)
        tokens = hidden.gather(1, first[..., None].expand(*first.shape, hidden.shape[2]))
        return self.dropout(hidden[:, :1].mT)[..., 0], self.dropout(tokens.mT).mT


class _CRFLoss(nn.Module):
    """The CRF's loss by way of a linear layer, whose gradients Opacus knows in every mode.

    A path's score is linear in start, transitions and end; its features are how often it uses each. So the gradient of
    -log p is their expectation less their number in the given path (Sutton and McCallum, arXiv 1011.4088, chapter 5).
    """

    def __init__(self, crf: CRF) -> None:
        super().__init__()
        weight = torch.cat([p.detach().flatten() for p in (crf.start, crf.transitions, crf.end)])
        self.score = nn.Linear(len(weight), 1, bias=False)
        self.score.weight = nn.Parameter(weight[None])

    def forward(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """(B, T, K), (B, T), (B, T) -> (B)."""
        k, kind = emissions.shape[2], emissions.dtype
        with torch.no_grad():
            start, transitions, end = self.score.weight[0].split([k, k * k, k])
            parameters = start, transitions.view(k, k), end
            recursion = forward_backward(emissions, mask, *parameters)
            loss = (recursion.log_partition - path_score(emissions, tags, mask, *parameters)).to(kind)
            at_token = recursion.marginals - F.one_hot(tags, k) * mask[..., None]  # (B, T, K)
            last = at_token[torch.arange(len(tags), device=tags.device), mask.sum(1) - 1]
            moves = (transitions.double() - recursion.highest).exp()
            moves = moves * (recursion.before.mT @ recursion.after).flatten(1)
            moves.scatter_add_(1, tags[:, :-1] * k + tags[:, 1:], -mask[:, 1:].double())
            features = torch.cat([at_token[:, 0], moves, last], dim=1)
        linear = self.score(features.to(kind))[:, 0] + (emissions * at_token.to(kind)).sum((1, 2))
        return linear + (loss - linear).detach()  # the gradient of the one, the value of the other


if __name__ == "__main__":
    main(sys.argv[1])
    end_rank(0)
