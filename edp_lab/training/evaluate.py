"""Score a model on annotated utterances, and predict new sentences with the model of a run.

The functions raise UsageError if the run does not exist, or if its model, corpus or record is damaged or has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import gather_object

from edp_lab.corpora.catalog import load_corpus
from edp_lab.corpora.corpus import Utterance, by_character, check_readable, split
from edp_lab.corpora.encoding import Dataset
from edp_lab.corpora.metrics import Scores, Tally, spans
from edp_lab.errors import UsageError
from edp_lab.models.factory import load_model
from edp_lab.models.intent_slot import IntentSlotModel
from edp_lab.training.batches import shard
from edp_lab.training.config import TrainConfig
from edp_lab.training.run_files import MODEL, check_same_split, read_record

AT_ONCE = 10_000  # utterances scored per pass


def evaluate_model(
    model: IntentSlotModel,
    utterances: Sequence[Utterance],
    accelerator: Accelerator | None = None,
    read: dict[int, Dataset] | None = None,
) -> Scores:
    """Compute SER, intent accuracy, slot F1 and exact match on annotated utterances; the processes share the work.

    To limit memory, `AT_ONCE` utterances are scored at a time. `read`: a dict that caches the encoded utterances for
    the next call with the same utterances.
    """
    model.eval()
    world, rank = (1, 0) if accelerator is None else (accelerator.num_processes, accelerator.process_index)
    local = shard(len(utterances), rank, world)
    tally = Tally()
    for start in range(local.start, local.stop, AT_ONCE):
        some = utterances[start : min(start + AT_ONCE, local.stop)]
        data = (read or {}).get(start) or model.dataset(some)
        if read is not None:
            read[start] = data
        pairs = list(zip(some, model.predict(data, probabilities=False), strict=True))
        tally += Tally.of(
            [(u.intent, u.tokens, u.tags) for u, _ in pairs], [(p.intent, u.tokens, p.tags or None) for u, p in pairs]
        )
    return (sum(gather_object([tally]), Tally()) if world > 1 else tally).scores()


def evaluate_run(run: str | Path) -> dict[str, float | None]:
    """Compute SER, intent accuracy, slot F1 and exact match on the run's test split."""
    record = read_record(run)
    config = TrainConfig.from_record(record)
    corpus = load_corpus(config.corpus, config.tokens)
    if corpus.sha256 != record["corpus"]["sha256"]:
        raise UsageError(f"corpus {config.corpus!r} has changed since {run} was trained: restore it, or train again")
    data = split(corpus, config.seed, config.keep_duplicates_together)
    check_same_split(run, record, data)
    return asdict(evaluate_model(load_model(Path(run) / MODEL), data.test))


def predict_texts(run: str | Path, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Predict one dict per sentence: the intent, its probability, and slots with their values and probabilities."""
    characters = read_record(run)["config"].get("tokens") == "characters"  # missing in older records
    model = load_model(Path(run) / MODEL)
    utterances = []
    for text in texts:
        u = Utterance(tuple(text.split()), None, model.labels.intents[0])
        u = by_character(u) if characters else u
        check_readable(u, f"the sentence {text[:20]!r}")
        utterances.append(replace(u, tags=("O",) * len(u.tokens)))
    answers, between = [], "" if characters else " "
    for u, prediction in zip(utterances, model.predict(model.dataset(utterances)), strict=True):
        sentence, slots = list(u.tokens), []
        for start, end, label in spans(prediction.tags):
            value, probability = between.join(sentence[start:end]), min(prediction.tag_probabilities[start:end])
            slots.append({"slot": label, "value": value, "start": start, "end": end, "probability": probability})
        about = {
            "text": u.text,
            "intent": prediction.intent,
            "intent_probability": prediction.intent_probability,
        }
        answers.append({**about, "tokens": sentence, "tags": list(prediction.tags), "slots": slots})
    return answers
