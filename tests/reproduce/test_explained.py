"""The test that the advice of `edp-lab explain` can fail: runs with one deliberate fault each."""

from edp_lab.reproduce.explained import FAULTS, measure

SMALL = {"pooled": 800, "batch_size": 12, "epochs": 7, "lr_schedule": "constant", "z0": 0.01}


def test_first_advice_names_the_fault_and_following_it_lowers_the_error():
    """With few utterances and steps; docs/training.md has larger runs."""
    faults = FAULTS | {"one epoch of 48": ({"epochs": 1, "batch_size": 48}, "too few steps")}
    del faults["one epoch of 256"]
    _, *rows = measure("smart-home", faults, **SMALL)
    assert len(rows) == 6
    for row in rows:
        assert row["causes"][0]["name"] == row["expected"], row
        assert row["followed"] < row["ser"] - 0.02, row
