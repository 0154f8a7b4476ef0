"""Random sequences of writes against the dictionary model, read in every way after each.

Few keys, so that each is inserted, changed, deleted and inserted again many times. A failure prints
the seed and every write before it.
"""

import pytest

from tests.support.machines.random_tables import RandomTable, Write
from tests.support.oracle.table_model import ModelTable
from tests.support.tables.core_tables import CoreTables
from tests.support.tiers import tiered

SEEDS = range(50)
WRITES_EACH = 9


def overwrite(table: RandomTable) -> Write:
    """A write that replaces all rows, at times by nothing (truncate)."""
    write = table.random_write(["upsert"])
    rows = write.rows if table.random.random() < 0.7 else []
    return Write("upsert", write.names, rows, {**write.options, "overwrite": True})


@tiered("seed", SEEDS)
def test_any_sequence_of_writes_equals_the_model(core: CoreTables, seed: int):
    """Now and at every commit timestamp, by scan, tokens, predicates, lookups and counts."""
    table = RandomTable(core, seed)
    for number in range(WRITES_EACH):
        is_overwrite = table.random.random() < 0.08
        write = overwrite(table) if is_overwrite else table.random_write()
        table.apply(write)
        if table.random.random() < 0.2:
            table.reopen()
        if number % 3 == 2:
            table.compare_now()
            table.compare_lookups()
            table.compare_predicates()
    table.compare_past()
    if table.model.versions:
        table.compare_predicates(table.random.choice(table.model.versions))
    table.reopen()
    table.compare_now()


@tiered("seed", range(20))
def test_ordered_mixed_writes_equal_the_model(core: CoreTables, seed: int):
    """With an ordering column the highest value of each key wins, also against the table."""
    table = RandomTable(core, seed, has_required=False, has_immutable=False)
    for _ in range(5):
        write = table.random_write([None])
        names = tuple(dict.fromkeys((*write.names, "c")))
        names = tuple(name for name in table.model.value_names if name in names)
        rows = [
            (operation, {**row, "c": row.get("c", table.random.randint(0, 9))})
            for operation, row in write.rows
        ]
        write = Write(None, names, rows)
        table.log.append(repr(write))
        if table.random.random() < 0.2:
            write.options["overwrite"] = True
        before, options = table.model.rows, dict(write.options)
        if table.random.random() < 0.5:
            write.options["unchanged"] = "skip"
        counts = table.model.write_ordered(rows, "c", **options)
        result = table.table.apply(table.arrow(write), ordering_column="c", **write.options)
        table.compare_counts(result, counts, write, before)
        table.model.committed(result.timestamp)
        table.compare_now()
    table.compare_past()


def test_the_model_refuses_and_changes_nothing():
    """The model itself: one bad row refuses all rows."""
    model = ModelTable(["k"], ["a"])
    model.write([("insert", {"k": 1, "a": 1})])
    with pytest.raises(ValueError, match="present"):
        model.write([("upsert", {"k": 2, "a": 2}), ("insert", {"k": 1, "a": 3})])
    assert model.tuples() == [(1, 1)]
