"""Membership inference on a run: scores of one attack, judged with intervals, guards and the run's own bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edp_lab.attacks.membership.guards import Guards, check_split
from edp_lab.attacks.membership.signals import signals
from edp_lab.attacks.membership.target import Target, load_target
from edp_lab.attacks.statistics import AttackResult, auc_change, summarise
from edp_lab.errors import UsageError

FPRS = (0.01, 0.001)
TITLES = {
    "loss": "loss threshold (the floor)",
    "shadow": "shadow model and classifier (the paper's attack)",
    "lira-online": "LiRA, online",
    "lira-offline": "LiRA, offline",
}
Told = Callable[[str], None]


@dataclass(frozen=True)
class Attacked:
    """An attack's result beside the promise of the run it was made on; scores of the target's pool."""

    target: Target
    result: AttackResult
    scores: np.ndarray
    about: dict[str, Any]
    bound_said: str

    @property
    def title(self) -> str:
        return TITLES[self.result.attack]

    @property
    def verdict(self) -> str:
        """In words; an attack that fails proves nothing."""
        low, high = self.result.auc_interval
        sure = f"{100 * self.result.confidence:g} %"
        if self.result.guards["leaks"]:
            return "worthless: the split leaks, so the attack may tell texts apart instead of members"
        if self.result.guards["duplicates"]:
            return "worthless: some texts are both members and non-members; train with duplicates kept together"
        if self.result.bound is not None and low > self.result.bound["auc"]:
            return f"more than epsilon allows, at {sure} confidence: the guarantee does not hold, or its seed was used"
        if low > 0.5:
            return f"membership leaks: the {sure} interval of the AUC lies above 0.5"
        if high < 0.5:
            return "worse than guessing: the attack was misled, which is no proof of privacy"
        return "this attack finds nothing, which is no proof of privacy: a better one may"

    def to_json(self) -> dict[str, Any]:
        return {**self.result.to_json(), **self.about, "bound_said": self.bound_said, "verdict": self.verdict}


def same_pool(before: str | Path, after: str | Path) -> None:
    """
    Raises:
        UsageError: the two runs were not trained on the same utterances; or as `load_target`.
    """
    if load_target(before).pool != load_target(after).pool:
        raise UsageError(f"{before} has other members than {after}: compare runs of one corpus and seed")


def change(before: Attacked, after: Attacked) -> dict[str, Any]:
    """How the AUC changes from one run to another on the same pool: {"against", "relative", "interval"}."""
    sides = [attacked.target.sides(attacked.scores) for attacked in (before, after)]
    texts = after.target.sides(after.target.texts)
    relative, interval = auc_change(sides[0], sides[1], after.result.confidence, texts)
    return {"against": str(before.target.folder), "relative": relative, "interval": list(interval)}


def attack_loss(run: str | Path, fprs: tuple[float, ...] = FPRS, confidence: float = 0.95) -> Attacked:
    """Call those members whose loss is low (Yeom et al. 2018).

    Raises:
        UsageError: as `load_target`.
    """
    target, guards = _prepared(run)
    return _judged(target, guards, "loss", -signals(target.model, target.pool).loss, fprs, confidence)


def attack_shadow(
    run: str | Path,
    shadows: tuple[str, ...] = (),
    classifier: str = "forest",
    fprs: tuple[float, ...] = FPRS,
    confidence: float = 0.95,
    seed: int = 0,
    cache: Path | None = None,
    plain: bool = False,
    told: Told = lambda what: None,
) -> Attacked:
    """The paper's attack, see `edp_lab.attacks.membership.shadow`; `plain`: with shadow models trained by SGD.

    Raises:
        UsageError: as `load_target` and `shadow_scores`.
    """
    from edp_lab.attacks.membership.shadow import default_shadow, shadow_scores

    target, guards = _prepared(run)
    names = shadows or (default_shadow(target.config.corpus),)
    scores = shadow_scores(target, names, classifier, seed, cache, plain, told)
    about = {"shadow_corpora": list(names), "classifier": classifier, "seed": seed, "plain_shadows": plain}
    return _judged(target, guards, "shadow", scores, fprs, confidence, about)


def attack_lira(
    run: str | Path,
    shadows: int = 16,
    online: bool = True,
    size: str | None = None,
    epochs: int | None = None,
    fprs: tuple[float, ...] = FPRS,
    confidence: float = 0.95,
    seed: int = 0,
    cache: Path | None = None,
    told: Told = lambda what: None,
) -> Attacked:
    """LiRA, see `edp_lab.attacks.membership.lira`; `size` and `epochs` of the shadow models, None: the target's.

    Raises:
        UsageError: as `load_target` and `shadow_signals`.
    """
    from edp_lab.attacks.membership.lira import aligned, lira_scores
    from edp_lab.attacks.membership.shadow_models import shadow_signals

    target, guards = _prepared(run)
    chosen = {name: value for name, value in (("size", size), ("epochs", epochs)) if value is not None}
    lr = target.config.lr if size in (None, target.config.size) else None
    config = replace(target.config, processes=1, private_seed=False, lr=lr, **chosen)  # type: ignore[arg-type]
    shadowed = shadow_signals(
        config, target.corpus, target.pool, shadows, seed, cache, lambda done, of: told(f"shadow model {done} of {of}")
    )
    own = aligned(signals(target.model, target.pool), shadowed)  # shadows of another size or length are as sure as it
    scores = lira_scores(own, shadowed, online)
    about = {"shadows": shadows, "shadow_size": config.size, "shadow_epochs": config.epochs, "seed": seed}
    return _judged(target, guards, "lira-online" if online else "lira-offline", scores, fprs, confidence, about)


def _prepared(run: str | Path) -> tuple[Target, Guards]:
    """Whatever can refuse a run, before anything takes long."""
    target = load_target(run)
    _ = target.guarantee
    return target, check_split(target.members, target.non_members)


def _judged(
    target: Target,
    guards: Guards,
    attack: str,
    scores: np.ndarray,
    fprs: tuple[float, ...],
    confidence: float,
    about: dict[str, Any] | None = None,
) -> Attacked:
    members, non_members = target.sides(scores)
    guarantee = target.guarantee
    epsilon = None if guarantee is None else guarantee.epsilon
    texts = target.sides(target.texts)
    result = summarise(
        attack, members, non_members, epsilon, target.config.delta, guards.to_json(), fprs, confidence, texts
    )
    status = "none" if target.guarantee is None else target.guarantee.status
    told = {"run": str(target.folder), "guarantee": status, **(about or {})}
    return Attacked(target, result, scores, told, _bound_said(target, result))


def _bound_said(target: Target, result: AttackResult) -> str:
    guarantee = target.guarantee
    if guarantee is None:
        return "none (plain training), so nothing bounds this attack"
    if guarantee.epsilon is None:
        return f"none ({guarantee.reason}), so nothing bounds this attack"
    assert result.bound is not None
    secret = "" if guarantee.status == "holds" else "were the seed secret, "
    copies = "" if target.copies == 1 else f" whose text occurs up to {target.copies} times"
    shown = (
        f"epsilon {guarantee.epsilon:.3g} (for one utterance{copies} in another's place; delta {guarantee.delta:.2g}, "
        f"{guarantee.method})"
    )
    return f"{secret}{shown} bounds the AUC of any attack by {result.bound['auc']:.4f}"
