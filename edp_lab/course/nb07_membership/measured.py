"""What notebook 07 shows but does not compute while you wait: ``data/results/course_membership.json``.

    shadows = kept_shadows(target)          # LiRA's, for a target that was trained a moment ago
    grid = measured()                       # runs with noise under attack, and canaries
    measure(Path("mine.json"))              # again, in a quarter of an hour on one core; what the file has is kept

Attacks, training and canaries are the library's.
"""

from __future__ import annotations

import base64
import json
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edp_lab.attacks.membership.attacks import Attacked, Target, aligned, attack_loss, equal_sides, lira_scores
from edp_lab.attacks.membership.signals import ShadowSignals, Signals, shadow_signals, signals
from edp_lab.attacks.memorisation import Memorisation, Traced, measure_memorisation
from edp_lab.attacks.statistics import summarise
from edp_lab.corpora import load_corpus, split
from edp_lab.errors import UsageError
from edp_lab.models.files import read_json, write_whole
from edp_lab.privacy import Guarantee
from edp_lab.reproduce import results_io as results
from edp_lab.reproduce.results_io import machine
from edp_lab.training import TrainConfig, train
from edp_lab.training.run_folder import versions
from edp_lab.training.trainer import Event

RESULTS = results.RESULTS / "course_membership.json"
EPOCHS = 8  # enough for a small model to learn its training set by heart
Z0S = (0.001, 0.003, 0.01, 0.03, 0.1)
REPETITIONS = (0, 1, 2, 4, 8, 16)
SHADOWS = {"smart-home": 32, "atis": 16}  # models, by corpus
CANARIES = TrainConfig("smart-home", size="small", epochs=EPOCHS)
METHODS = ("sgd", "edp-sgd-as-printed", "edp-sgd")
ATTACKS = ("loss", "lira-online")
Told = Callable[[str], None]


def target_config(corpus: str, seed: int, epochs: int = EPOCHS) -> TrainConfig:
    """A small model that overfits: no noise, no dropout."""
    return TrainConfig(corpus, method="sgd", size="small", epochs=epochs, dropout=0.0, seed=seed)


# ---- Shadow models, as far as LiRA needs them ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Moments:
    """What LiRA with one variance for all utterances needs of many shadow models, on a pool of n; d logits each.

    Attributes:
        models: how many there were.
        inside, outside: (n, d), mean logits of the models with and without each utterance.
        v_in, v_out: (d), their variances over models, the mean over utterances.
    """

    models: int
    inside: NDArray[np.float64]
    outside: NDArray[np.float64]
    v_in: NDArray[np.float64]
    v_out: NDArray[np.float64]

    @classmethod
    def of(cls, shadows: ShadowSignals) -> Moments:
        logits, half = shadows.signals.logits, len(shadows.inside) // 2  # each utterance is in half of the models
        sides = []
        for used in (shadows.inside, ~shadows.inside):
            mean = (logits * used[..., None]).sum(0) / half
            sides.append((mean, (((logits - mean) * used[..., None]) ** 2).sum((0, 1)) / (half - 1) / len(mean)))
        (inside, v_in), (outside, v_out) = sides
        return cls(len(shadows.inside), inside, outside, v_in, v_out)

    def shadows(self) -> ShadowSignals:
        """Four models, two with every utterance and two without, that have these moments; they carry no losses."""
        apart = [sign * np.sqrt(v / 2) for v in (self.v_in, self.v_out) for sign in (-1, 1)]
        means = (self.inside, self.inside, self.outside, self.outside)
        logits = np.stack([mean + shift for mean, shift in zip(means, apart, strict=True)])
        tags = logits[..., 1] if logits.shape[-1] > 1 else None
        known = np.repeat([[True], [True], [False], [False]], logits.shape[1], axis=1)
        return ShadowSignals(Signals(np.full(known.shape, np.nan), logits[..., 0], tags), known)


def kept_shadows(target: Target, path: Path = RESULTS) -> Moments | None:
    """The kept shadow models of a target's pool; None where its corpus or seed is another.

    Raises:
        UsageError: the file is missing or damaged.
    """
    config = target.config
    for told in _read(path)["shadows"]:
        whose = (told["corpus_sha256"], told["seed"], told["pool"])
        if whose == (target.corpus.sha256, config.seed, len(target.pool)) and config.keep_duplicates_together:
            inside, outside = (_unpacked(told[side], len(target.pool)) for side in ("inside", "outside"))
            return Moments(told["models"], inside, outside, np.array(told["v_in"]), np.array(told["v_out"]))
    return None


def kept_lira(loss: Attacked, path: Path = RESULTS) -> Attacked | None:
    """LiRA (online) with kept shadow models on the target of a loss attack; None where none are kept for it.

    Raises:
        UsageError: as `kept_shadows`.
    """
    target, moments = loss.target, kept_shadows(loss.target, path)
    if moments is None:
        return None
    shadows = moments.shadows()
    scores = lira_scores(aligned(signals(target.model, target.pool), shadows), shadows)
    bound, texts = loss.result.bound or {}, target.sides(target.texts)
    result = summarise(
        "lira-online", *target.sides(scores), bound.get("epsilon"), bound.get("delta"), loss.result.guards, texts=texts
    )
    about = {"run": str(target.folder), "shadows": moments.models, "shadow_size": "small", "shadow_epochs": EPOCHS}
    return replace(loss, result=result, scores=scores, about=about)


# ---- Runs with noise, attacked -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What one attack found: AUC and TPR at 1 % FPR, each with its interval."""

    auc: float
    auc_interval: tuple[float, float]
    tpr: float
    tpr_interval: tuple[float, float]


@dataclass(frozen=True)
class Defended:
    """A run under attack: how well it does its work, what it promises, and what attacks find.

    Attributes:
        ser: on the validation set.
        epsilon_claimed, epsilon: the paper's, and the true one were seed secret and alpha public; None without noise.
        found: by attack; "lira-online" is missing where no shadow models are kept.
    """

    config: TrainConfig
    ser: float
    delta: float
    epsilon_claimed: float | None
    epsilon: float | None
    found: Mapping[str, Found]


def defend(
    config: TrainConfig,
    folder: Path,
    listener: Callable[[Event], None] = lambda event: None,
    stop: threading.Event | None = None,
    shadows: Path = RESULTS,
) -> Defended | None:
    """Train a run and attack it, by LiRA with the shadow models of a file; None if it was stopped before its end.

    Raises:
        UsageError: as `edp_lab.training.train` and `attack_loss`.
    """
    record = train(config, folder, listener, stop)
    if record["status"] != "finished":
        return None
    loss = attack_loss(folder)
    attacks = [attacked for attacked in (loss, kept_lira(loss, shadows)) if attacked is not None]
    judged: Guarantee | None = loss.target.guarantee
    delta = len(loss.target.members) ** -1.1 if judged is None else judged.delta
    claimed, public = (None, None) if judged is None else (judged.epsilon_claimed, judged.epsilon_if_alpha_public)
    found = {attacked.result.attack: found_by(attacked) for attacked in attacks}
    return Defended(config, record["epochs"][-1]["ser"], delta, claimed, public, found)


def found_by(attacked: Attacked) -> Found:
    """What an attack found, in short; no TPR is 0, with an interval that says nothing."""
    result, rate = attacked.result, attacked.result.tpr_at_fpr["0.01"]
    low, high = rate.get("interval", (0.0, 1.0))
    return Found(result.auc, result.auc_interval, rate["value"] or 0.0, (low, high))


# ---- All that is kept ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """What `measure` wrote, shadow models aside.

    Attributes:
        about: "command", "machine", "versions".
        defended: SGD first, then runs with noise.
        canaries: by method and z0 (None for SGD), a row for each of `REPETITIONS`.
    """

    about: Mapping[str, Any]
    defended: tuple[Defended, ...]
    canaries: Mapping[tuple[str, float | None], tuple[Memorisation, ...]]


def measured(path: Path = RESULTS) -> Measured:
    """
    Raises:
        UsageError: the file is missing or damaged.
    """
    told = _read(path)
    about = {name: told[name] for name in ("command", "machine", "versions")}
    canaries = {(item["method"], item["z0"]): tuple(map(_memorisation, item["rows"])) for item in told["canaries"]}
    return Measured(about, tuple(map(_defended, told["defended"])), canaries)


def measure(path: Path, corpora: tuple[str, ...] = tuple(SHADOWS), told: Told = print, most: int | None = None) -> None:
    """Measure what `path` lacks and write it after each item.

    Args:
        corpora: of kept shadow models; the rest is measured on the embedded smart-home corpus.
        most: items to be measured at most.

    Raises:
        UsageError: a corpus that is not at hand; the file is damaged or cannot be written.
    """
    torch.set_num_threads(1)
    content = _load(path) if path.exists() else {"shadows": [], "defended": [], "canaries": []}
    for number, (part, has, item) in enumerate(_missing(content, corpora, path)):
        if number == most:
            break
        told(has)
        content[part].append(item())
        _write(path, content)


def _missing(
    content: Mapping[str, Any], corpora: tuple[str, ...], path: Path
) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Part, name and maker of each item that is not there."""
    for corpus in corpora:
        if corpus not in [item["corpus"] for item in content["shadows"]]:
            yield "shadows", f"shadow models on {corpus}", partial(_measure_shadows, corpus)
    plain = target_config("smart-home", 0)
    noised = [replace(plain, method="edp-sgd", as_printed=printed, z0=z0) for printed in (True, False) for z0 in Z0S]
    for config in [plain, *noised]:
        if _settings(config) not in [item["config"] for item in content["defended"]]:
            yield "defended", f"attack on {_settings(config)}", partial(_measure_defended, config, path)
    for method in METHODS:
        for z0 in (None,) if method == "sgd" else Z0S:
            if (method, z0) not in [(item["method"], item["z0"]) for item in content["canaries"]]:
                yield "canaries", f"canaries, {method}, z0 = {z0}", partial(_measure_canaries, method, z0)


def _measure_shadows(name: str) -> dict[str, Any]:
    corpus, config = load_corpus(name), target_config(name, 0)
    members, non_members = equal_sides(split(corpus, 0), 0)
    moments = Moments.of(shadow_signals(config, corpus, members + non_members, SHADOWS[name]))
    about = {"corpus": name, "corpus_sha256": corpus.sha256, "seed": 0, "config": _settings(config)}
    sides = {"inside": _packed(moments.inside), "outside": _packed(moments.outside)}
    variances = {"v_in": moments.v_in.round(5).tolist(), "v_out": moments.v_out.round(5).tolist()}
    return {**about, "models": moments.models, "pool": len(moments.inside), **variances, **sides}


def _measure_defended(config: TrainConfig, path: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        defended = defend(config, Path(folder) / "run", shadows=path)
    assert defended is not None
    return {**asdict(defended), "config": _settings(config)}


def _measure_canaries(method: str, z0: float | None) -> dict[str, Any]:
    config = CANARIES if z0 is None else replace(CANARIES, z0=z0)
    rows = measure_memorisation(config, [method], REPETITIONS)
    return {"method": method, "z0": z0, "config": _settings(config), "rows": [asdict(row) for row in rows]}


# ---- On disk -------------------------------------------------------------------------------------------------------


def _settings(config: TrainConfig) -> dict[str, Any]:
    """What differs from the defaults."""
    defaults = asdict(TrainConfig(config.corpus))
    return {"corpus": config.corpus, **{k: v for k, v in asdict(config).items() if v != defaults[k]}}


def _defended(told: Mapping[str, Any]) -> Defended:
    found = {
        name: Found(one["auc"], tuple(one["auc_interval"]), one["tpr"], tuple(one["tpr_interval"]))
        for name, one in told["found"].items()
    }
    return Defended(**{**told, "config": TrainConfig(**told["config"]), "found": found})


def _memorisation(told: Mapping[str, Any]) -> Memorisation:
    pairs = {name: tuple(told[name]) for name in ("exposures", "interval", "extracted_interval")}
    return Memorisation(**{**told, **pairs, "trace": tuple(Traced(**token) for token in told["trace"])})


def _packed(values: NDArray[np.float64]) -> str:
    """As base64 of half-precision numbers: logits keep three digits."""
    return base64.b64encode(values.astype("<f2").tobytes()).decode()


def _unpacked(text: str, rows: int) -> NDArray[np.float64]:
    return np.frombuffer(base64.b64decode(text), "<f2").astype(np.float64).reshape(rows, -1)


@cache
def _read(path: Path) -> dict[str, Any]:
    return _load(path)


def _load(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise UsageError(f"{path} is missing: restore it from the repository, or measure it anew")
    told = read_json(path)
    if not isinstance(told, dict) or not {"shadows", "defended", "canaries"} <= told.keys():
        raise UsageError(f"{path} is damaged or of another version: restore it from the repository")
    return told


def _write(path: Path, content: Mapping[str, Any]) -> None:
    about = {
        "command": "edp_lab.course.nb07_membership.measured.measure(path)",
        "machine": f"{machine()}; one thread",
        "versions": versions(),
    }
    parts = []
    for name in ("shadows", "defended", "canaries"):
        lines = ",\n".join(json.dumps(_rounded(item), allow_nan=False) for item in content[name])
        parts.append(f' "{name}": [\n{lines}\n]')
    head = json.dumps(about, indent=1).removesuffix("\n}")
    write_whole(path, (",\n".join([head, *parts]) + "\n}\n").encode())


def _rounded(value: Any) -> Any:
    """Floats to five digits, however deep."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value
