"""Long studies in short: rows are kept as soon as they are there, and runs that compare decays cost the same."""

from contextlib import nullcontext

import pytest

from edp_lab.privacy import judge
from edp_lab.reproduce.decay import ARMS, changes, config
from edp_lab.reproduce.results_io import grow, read_kept


def test_rows_are_kept_as_soon_as_they_are_there_and_none_is_measured_again(tmp_path) -> None:
    asked: list[int] = []

    def once(seed: int) -> dict[str, int]:
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append(seed)
        return {"seed": seed}

    for last in (3, 1):  # another call may ask for fewer
        with pytest.raises(KeyboardInterrupt) if last == 3 else nullcontext():
            grow(tmp_path / "rows.json", "it", [(k,) for k in range(last)], once, lambda row: (row["seed"],), about={})
    assert [row["seed"] for row in read_kept(tmp_path / "rows.json", "rows", "about")["rows"]] == asked == [0, 1]


@pytest.mark.parametrize("arm", ARMS)
def test_every_decay_has_the_epsilon_of_constant_noise(arm) -> None:
    steady, falling = (config("atis", 0, *one) for one in (ARMS[0], arm))
    assert falling.lr_schedule == "constant"
    assert (falling.decay, falling.tau) == (arm if arm[1] else (steady.decay, steady.tau))
    both = [judge(one.mechanism(), one.epochs, 1e-4, seed_published=False).epsilon for one in (steady, falling)]
    assert both[1] == pytest.approx(both[0], rel=1e-9)


def test_changes_are_paired_by_seed() -> None:
    sers = {"none": (0.1, 0.2), "linear": (0.11, 0.22)}
    rows = [
        {"corpus": "atis", "seed": seed, "decay": decay, "tau": tau, "ser": sers[decay][seed]}
        for seed in (0, 1)
        for decay, tau in (("none", 0.0), ("linear", 0.3))
    ]
    [change] = changes(rows).values()
    assert (change.mean, change.half_width) == (pytest.approx(10), pytest.approx(0, abs=1e-9))
