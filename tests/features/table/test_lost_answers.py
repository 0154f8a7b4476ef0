"""A storage whose answers are lost: the call has acted, and its caller sees an error.

So does a network file system whose server stops between the act and the answer, and an object store
behind a proxy. The table is old or new then, whole, and can be written to.
"""

from typing import Any

import pytest

from kudulite.client.table import Table
from kudulite.errors import KuduliteError
from kudulite.storage.local_storage import LocalStorage
from tests.support.doubles.faulty_storage import Fault, FaultyStorage, at_act
from tests.support.tables.core_tables import CoreTables
from tests.support.tables.table_operations import OPERATIONS, copied, new_table, rows
from tests.support.tiers import tiered

# A purge and a collection remove files; the last act of each operation is far below this.
ACTS_MAX = 400


def state(table: Table) -> list[dict[str, Any]]:
    """All rows."""
    return table.scan().to_arrow().sort_by("k").to_pylist()


@tiered("every", [7, 1], quick=1)
@pytest.mark.parametrize("fault", ["lose", "refuse"])
@pytest.mark.parametrize(
    "operation", sorted(OPERATIONS.keys() - {"session"})
)  # it appends to a log
def test_a_table_is_old_or_new_when_an_answer_is_lost(
    core: CoreTables, operation: str, fault: Fault, every: int
):
    """Act by act; the rows of a call that returned are there. A session appends to a log."""
    new_table(core.client("made"))
    old = state(core.client("made").table("t"))
    whole = copied(core, "whole").table("t")
    OPERATIONS[operation](whole)
    new = state(whole)
    for number in range(0, ACTS_MAX, every):
        storage = FaultyStorage(LocalStorage(), at_act(number, fault))
        name = f"{operation} {number}"
        table = copied(core, name, storage=storage).table("t")
        try:
            OPERATIONS[operation](table)
            expected = [new]
        except KuduliteError:
            expected = [old, new]
        fresh = core.client(name).table("t")
        assert fresh.check().problems == ()
        found = state(fresh)
        assert found in expected
        fresh.upsert(rows(range(900, 905), 9))
        assert len(state(core.client(name).table("t"))) == len(found) + 5
        if storage.counts.total() <= number:
            break
    assert 0 < number < ACTS_MAX - every
