"""How long the attacks on a run take, each with nothing cached, and what they find."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from edp_lab.attacks.membership.attacks import Attacked, attack_lira, attack_loss, attack_shadow, load_target
from edp_lab.errors import UsageError
from edp_lab.training.inference import run_ledger

SUITE = "all but LiRA"


def bench_attacks(
    run: str | Path,
    shadows: int = 16,
    size: str | None = "medium",
    epochs: int | None = 8,
    told: Callable[[str], None] = lambda what: None,
) -> Iterator[dict[str, Any]]:
    """A row per attack {attack, seconds, found}: membership, an audit by one run, of its mechanism; then LiRA.

    Args:
        shadows, size, epochs: of LiRA's shadow models; 0 shadows leave it out.

    Raises:
        UsageError: as `load_target`.
    """
    load_target(run)  # refused before anything takes long
    total = 0.0
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        suite: list[tuple[str, Callable[[], dict[str, Any]]]] = [
            ("loss", lambda: _found(attack_loss(run))),
            ("shadow", lambda: _found(attack_shadow(run, cache=cache, told=told))),
            ("audit one-run", lambda: _audited(run)),
            ("audit mechanism", lambda: _drawn(run)),
        ]
        for name, attack in suite:
            told(name)
            row = _timed(name, attack)
            total += row["seconds"]
            yield row
        yield {"attack": SUITE, "seconds": total, "found": {}}
        if shadows:
            yield _timed(
                f"lira, {shadows} shadow models",
                lambda: _found(attack_lira(run, shadows, size=size, epochs=epochs, cache=cache, told=told)),
            )


def _timed(name: str, attack: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        found = attack()
    except UsageError as error:  # an audit for which this run's mechanism is not made
        found = {"refused": str(error)}
    return {"attack": name, "seconds": time.perf_counter() - start, "found": found}


def _found(attacked: Attacked) -> dict[str, Any]:
    return {"auc": attacked.result.auc, "auc_interval": list(attacked.result.auc_interval)}


def _audited(run: str | Path) -> dict[str, Any]:
    """Of the run's settings on the one-layer model; a run without noise has no claim, and a standard one is audited."""
    from edp_lab.attacks.audit.one_run import audit_one_run
    from edp_lab.training import TrainConfig

    config = load_target(run).config
    if config.method == "sgd":
        config = TrainConfig(corpus=config.corpus, z0=1.0)
    audit = audit_one_run(replace(config, processes=1, epochs=1, alpha="none"), linear=True)
    return {"epsilon_lower_bound": audit.epsilon_lower_bound, "verdict": audit.verdict}


def _drawn(run: str | Path) -> dict[str, Any]:
    from edp_lab.attacks.audit.step_audit import audit_mechanism
    from edp_lab.privacy import Mechanism
    from edp_lab.privacy.csprng import key_from_seed

    config = load_target(run).config
    private = config.method != "sgd" and not config.poisson
    mechanism = run_ledger(run).mechanism if private else Mechanism.sound(1.0, 1.0, 8, 8)
    audit = audit_mechanism(mechanism, 1e-5, key_from_seed(config.seed))
    return {"epsilon_lower_bound": audit.epsilon_lower_bound, "verdict": audit.verdict}
