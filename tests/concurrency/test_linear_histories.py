"""Calls of eight processes on six keys look as if each happened at one moment."""

import pytest

from tests.support.machines.linear_histories import (
    NO_END,
    REFUSED,
    UNANSWERED,
    Call,
    check_history,
    is_linearizable,
)
from tests.support.tables.core_tables import CoreTables
from tests.support.tiers import tiered


@tiered("seed", range(4), quick=0)
def test_histories_are_linearizable(core: CoreTables, seed: int):
    """Reads, inserts, upserts, updates, deletes and bulk writes of all processes have an order."""
    assert check_history(core.root / "db", seed) > 100


def call(operation: str, begin: int, end: int, value: int = 0, result=None) -> Call:
    """A call on one key."""
    return Call(operation, 0, value, result, begin, end)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([call("upsert", 0, 1, 5), call("read", 2, 3, result=5)], True),
        ([call("upsert", 0, 1, 5), call("read", 2, 3, result=None)], False),
        ([call("upsert", 0, 9, 5), call("read", 2, 3, result=None)], True),
        (
            [
                call("upsert", 0, 9, 5),
                call("read", 2, 3, result=5),
                call("read", 4, 5, result=None),
            ],
            False,
        ),
        ([call("insert", 0, 9, 5), call("insert", 0, 9, 6)], False),
        ([call("insert", 0, 9, 5), call("insert", 0, 9, 6, REFUSED)], True),
        ([call("insert", 0, 1, 5, REFUSED), call("insert", 2, 3, 6)], False),
        ([call("delete", 0, 1, result=REFUSED), call("insert", 0, 1, 5)], True),
        *(
            ([call("upsert", 0, NO_END, 5, UNANSWERED), *reads], expected)
            for reads, expected in [
                ([call("read", 2, 3, result=None), call("read", 4, 5, result=5)], True),
                ([call("read", 2, 3, result=None), call("read", 4, 5, result=None)], True),
                ([call("read", 2, 3, result=5), call("read", 4, 5, result=None)], False),
            ]
        ),
    ],
)
def test_the_search_finds_an_order_only_where_there_is_one(calls: list[Call], expected: bool):
    """A lost write, a stale read, two inserts, and a write that is there and then not have none."""
    assert is_linearizable(calls) == expected
