"""k-anonymity: counted by hand, kept by every release, and broken by whoever knows one thing more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edp_lab.errors import UsageError
from edp_lab.privacy.foundations import (
    Hierarchy,
    anonymise,
    anonymity,
    class_sizes,
    generalise_code,
    generalise_number,
    link,
    star,
)

CODE = Hierarchy("postal code", generalise_code(3))
AGE = Hierarchy("age", generalise_number(10, 20))
SEX = Hierarchy("sex", (str, star))
COLUMNS = (CODE, AGE, SEX)
TABLE = np.array(
    [
        ["420", "31", "f"],
        ["421", "35", "f"],
        ["420", "38", "m"],
        ["423", "34", "m"],
        ["510", "62", "f"],
        ["511", "66", "f"],
    ]
)
SECRETS = np.array(["asthma", "asthma", "fracture", "migraine", "diabetes", "asthma"])
ROLL = np.vstack([TABLE, [["420", "33", "f"], ["515", "69", "f"], ["510", "21", "m"]]])  # three who are no patients

tables = st.lists(
    st.tuples(st.sampled_from(["420", "421", "430", "511"]), st.integers(20, 60).map(str), st.sampled_from("fm")),
    min_size=1,
    max_size=20,
)


def test_levels_get_broader_until_nothing_is_left():
    def shown(hierarchy: Hierarchy, value: str) -> list[str]:
        return [str(hierarchy.at(level, np.array([value]))[0]) for level in range(len(hierarchy.widen))]

    assert shown(CODE, "421") == ["421", "42*", "4**", "*"]
    assert shown(AGE, "39") == ["39", "30-39", "20-39", "*"]
    assert shown(AGE, "40") == ["40", "40-49", "40-59", "*"]
    assert shown(SEX, "f") == ["f", "*"]


def test_classes_are_counted_by_hand():
    rows = [["4**", "f"], ["4**", "m"], ["4**", "f"], ["5**", "f"]]
    assert class_sizes(rows).tolist() == [2, 1, 2, 1]
    assert anonymity(rows) == 1
    assert anonymity(rows[::2]) == 2


def test_two_of_each_by_the_least_generalisation():
    """42*, ten years, sex: classes {1, 2}, {3, 4}, {5, 6}; no single step less does it."""
    release = anonymise(TABLE, COLUMNS, 2, most_suppressed=0)
    assert release.levels == (1, 1, 0)
    assert release.anonymity == 2
    assert release.rows[[0, 2, 4]].tolist() == [["42*", "30-39", "f"], ["42*", "30-39", "m"], ["51*", "60-69", "f"]]
    assert not release.suppressed.any()


def test_suppression_saves_generalisation_and_its_records_hide_among_k_too():
    odd = np.array([["420", "30", "f"]] * 3 + [["511", "61", "m"]])
    assert anonymise(odd, COLUMNS, 3, most_suppressed=0).rows.tolist() == [["*", "*", "*"]] * 4
    # One starred record would be alone among three others: it takes their whole class with it, or nothing is starred.
    whole = anonymise(np.vstack([odd, odd[:1], [["421", "44", "f"]] * 3]), COLUMNS, 3, most_suppressed=0.5)
    assert whole.levels == (0, 0, 0)
    assert whole.suppressed.tolist() == [False] * 3 + [True, False] + [True] * 3
    assert whole.anonymity == 4


@settings(deadline=None, max_examples=50)
@given(tables, st.integers(1, 6), st.sampled_from([0.0, 0.1, 0.5]))
def test_every_release_is_k_anonymous_and_says_nothing_untrue(rows, k, most):
    table, k = np.array(rows), min(k, len(rows))
    release = anonymise(table, COLUMNS, k, most)
    assert release.anonymity >= k
    assert release.suppressed.mean() <= most
    generalised = [
        column.at(level, table[:, j]) for j, (column, level) in enumerate(zip(COLUMNS, release.levels, strict=True))
    ]
    shown = np.where(release.suppressed[:, None], "*", np.stack(generalised, axis=1))
    assert (release.rows == shown).all()
    linkage = link(release, table, np.arange(len(table)))
    assert (linkage.people_per_row >= k).all()
    assert (linkage.rows_per_person >= k).all()
    assert linkage.identified.any() == (k == 1 and (linkage.people_per_row == 1).any())


def test_the_roll_identifies_patients_in_the_plain_table_and_none_among_two():
    plain = link(anonymise(TABLE, COLUMNS, 1), ROLL, SECRETS)
    assert plain.identified.all()
    assert plain.rows_per_person.tolist() == [1] * 6 + [0] * 3
    assert plain.disclosed.tolist() == [True] * 6 + [False] * 3
    linked = link(anonymise(TABLE, COLUMNS, 2, 0), ROLL, SECRETS)
    assert linked.people_per_row.tolist() == [3, 3, 2, 2, 3, 3]  # two of the roll might be patients as well
    assert linked.rows_per_person.tolist() == [2] * 8 + [0]
    assert not linked.identified.any()


def test_who_share_a_secret_are_betrayed_without_being_identified():
    linked = link(anonymise(TABLE, COLUMNS, 2, 0), TABLE, SECRETS)
    assert linked.disclosed.tolist() == [True, True, False, False, False, False]  # both have asthma


def test_one_thing_more_singles_a_person_out_of_a_k_anonymous_table():
    release = anonymise(TABLE, COLUMNS, 2, 0)
    month = np.array(["1", "2", "3", "3", "4", "5"])
    beside = replace(
        release,
        rows=np.column_stack([release.rows, month]),
        levels=(*release.levels, 0),
        hierarchies=(*COLUMNS, Hierarchy("month", (str, star))),
    )
    assert (
        link(beside, np.column_stack([TABLE, month]), SECRETS).identified.tolist()
        == [True] * 2 + [False] * 2 + [True] * 2
    )


def test_a_starred_row_can_be_anybodys():
    odd = np.array([["420", "30", "f"]] * 2 + [["511", "61", "m"], ["530", "25", "f"]])
    release = anonymise(odd, COLUMNS, 2, 0.5)
    linkage = link(release, odd, ["a", "a", "b", "b"])
    assert linkage.people_per_row.tolist() == [2, 2, 4, 4]
    assert linkage.rows_per_person.tolist() == [4, 4, 2, 2]
    assert linkage.disclosed.tolist() == [False, False, True, True]  # only the starred rows fit the last two


@pytest.mark.parametrize(
    ("sentence", "call"),
    [
        ("k is 7: .*from 1 to the number of records, 6", lambda: anonymise(TABLE, COLUMNS, 7)),
        ("k is 0:", lambda: anonymise(TABLE, COLUMNS, 0)),
        ("k is 2.5:", lambda: anonymise(TABLE, COLUMNS, 2.5)),
        ("share of suppressed records is 1.5", lambda: anonymise(TABLE, COLUMNS, 2, 1.5)),
        ("2 hierarchies for 3 columns", lambda: anonymise(TABLE, COLUMNS[:2], 2)),
        ("no levels make the table 2-anonymous", lambda: anonymise(TABLE, [Hierarchy("x", (str,))] * 3, 2, 0)),
        ("column 'age' holds a value.*'old'", lambda: anonymise([["420", "old", "f"]], COLUMNS, 1)),
        ("table of shape .0,. is empty", lambda: anonymity([])),
        ("people have 2 columns and the release 3", lambda: link(anonymise(TABLE, COLUMNS, 1), TABLE[:, :2], SECRETS)),
        ("5 secrets for 6 released rows", lambda: link(anonymise(TABLE, COLUMNS, 1), TABLE, SECRETS[:5])),
    ],
)
def test_bad_input_is_named(sentence, call):
    with pytest.raises(UsageError, match=sentence):
        call()
