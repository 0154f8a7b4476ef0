"""A process that dies before any one of its durable steps leaves the table old or new, and whole.

Every case runs once for each step, in a forked child that ends at once (nothing cleans up), and for
each third step with an error (whatever handles errors runs, and fails too). After it: reopen,
compare, check, write again, collect garbage, and look for files that nobody refers to.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import kudulite
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.tablet import superblock
from kudulite.upkeep.garbage_collection import collect_garbage
from tests.support.doubles.killing_storage import KillingStorage, ran_to_its_end
from tests.support.tables.core_tables import CoreTables, environment, expect_clean, stored
from tests.support.tiers import tiered

Rows = list[tuple]

ERROR_EACH = 3
BASE = [{"k": k, "v": k} for k in range(12)]
FRESH = [{"k": k, "v": -k} for k in range(6, 18)]
CHANGES = [
    *({"op": "delete", "k": k, "v": None} for k in (0, 1, 2, 3)),
    *({"op": "update", "k": k, "v": 100 + k} for k in (4, 5, 6, 7)),
    *({"op": "insert", "k": k, "v": k} for k in (20, 21, 22, 23)),
]
ORDERED = [{"op": "D", "k": k, "v": 50} for k in (0, 9, 30, 40)] + [{"op": "U", "k": 1, "v": 50}]


def create(client: Client) -> Table:
    """A table of four tablets."""
    columns = [kudulite.column("k", kudulite.int32), kudulite.column("v", kudulite.int32)]
    return client.create_table(
        "t",
        kudulite.schema(columns, "k"),
        hash_partitions=[(["k"], 2)],
        range_partitions={"columns": ["k"], "bounds": [[None, 8], [8, None]]},
    )


def filled(client: Client) -> None:
    """The table with base data and REDO files in all tablets."""
    table = create(client)
    table.insert(BASE)
    table.update([{"k": k, "v": k + 1} for k in range(12)])


def remembering(client: Client) -> None:
    """The table, one tablet of which remembers deletes of keys that were never there."""
    filled(client)
    client.table("t").apply([{"op": "D", "k": 30, "v": 5}], ordering_column="v")


def grown(client: Client) -> None:
    """The table after so many commits that superblocks have bases."""
    table = create(client)
    for k in range(12):
        table.insert([{"k": k, "v": k}])


def bounded(client: Client) -> None:
    """A table of two tablets with rows, which takes no key of 100 or above."""
    schema = pa.schema([("k", pa.int32()), ("v", pa.int32())])
    ranges = {"columns": ["k"], "bounds": [[None, 100]]}
    table = client.create_table(
        "t", schema, primary_key="k", hash_partitions=[(["k"], 2)], range_partitions=ranges
    )
    table.insert(BASE)


def alter(client: Client) -> None:
    """Three more tablets, an immutable column with another default, an owner and a comment."""
    own = kudulite.RangePartition(100, None).add_hash_partitions("k", 3)
    alterer = client.new_table_alterer(client.table("t")).add_custom_range_partition(own)
    alterer.alter_column("v").default(7).mutable(False)
    alterer.set_owner("ann").set_comment("of twelve").alter()


def drop(client: Client) -> None:
    """The range with all rows is dropped, and another one is in its place."""
    alterer = client.new_table_alterer(client.table("t"))
    alterer.drop_range_partition(None, 100).add_range_partition(None, 200).alter()


def empty(client: Client) -> None:
    """No table."""


CASES: dict[str, tuple[Callable[[Client], None], Callable[[Client], object]]] = {
    "upsert": (filled, lambda client: client.table("t").upsert(FRESH)),
    "grown": (grown, lambda client: client.table("t").upsert(FRESH)),
    "mixed": (filled, lambda client: client.table("t").apply(CHANGES)),
    "ordered": (
        remembering,
        lambda client: client.table("t").apply(ORDERED, ordering_column="v"),
    ),
    "overwrite": (filled, lambda client: client.table("t").overwrite(FRESH)),
    "overwrite of what differs": (
        filled,
        lambda client: client.table("t").overwrite(FRESH, unchanged="skip"),
    ),
    "truncate": (filled, lambda client: client.table("t").truncate()),
    "collection": (filled, lambda client: collect_garbage(client.table("t")._store, 0, 0)),
    "create": (empty, create),
    "delete": (filled, lambda client: client.delete_table("t")),
    "rename": (filled, lambda client: client.rename_table("t", "u")),
    "alter": (bounded, alter),
    "drop": (bounded, drop),
}


def state(root: Path) -> dict[str, tuple[Rows, str]]:
    """All tables with their rows and definitions, by a client that has seen nothing."""
    client = Client(root, environment())
    tables = map(client.table, client.list_tables())
    return {table.name: (stored(table), definition(table)) for table in tables}


def definition(table: Table) -> str:
    """Columns, partitions, owner and comment."""
    ranges = table.partition_schema.describe_all()
    return f"{table.schema}\n{ranges}\n{table.owner}\n{table.comment}"


def run_killed(root: Path, write: Callable[[Client], object], steps: int, how: str) -> bool:
    """Run `write` with `steps` steps to live; returns whether it came to its end."""
    in_child = how == "exit"
    dying = KillingStorage(steps, exits=in_child)
    return ran_to_its_end(lambda: write(Client(root, environment(dying))), in_child=in_child)


# In the quick tier two cases die at every third step.
QUICK = [("truncate", 6), ("alter", 6)]


@pytest.mark.parametrize("how", ["exit", "error"])
@tiered(("case", "every"), [*QUICK, *((case, 1) for case in CASES)])
def test_a_process_killed_at_any_step_leaves_old_or_new(
    core: CoreTables, case: str, every: int, how: str, monkeypatch
):
    """Never anything between; the table passes its check and takes the next write."""
    monkeypatch.setattr(superblock, "BASE_BYTES_MIN", 0)
    prepare, write = CASES[case]
    base, new = core.root / "base", core.root / "new"
    prepare(Client(base, environment()))
    shutil.copytree(base, new)
    counting = KillingStorage()
    write(Client(new, environment(counting)))
    old_state, new_state = state(base), state(new)
    assert counting.count > {"delete": 1, "rename": 1, "collection": 5}.get(case, 10)
    places = range(counting.count)
    if how == "error":
        places = places[len(case) % ERROR_EACH :: ERROR_EACH]
    for steps in (*places[::every], counting.count):
        root = core.root / f"{case}-{steps}"
        shutil.copytree(base, root)
        is_done = run_killed(root, write, steps, how)
        found = state(root)
        assert found in ([new_state] if is_done else [old_state, new_state]), steps
        expect_whole_and_writable(root)
        expect_clean(root)
        shutil.rmtree(root)
    assert is_done


def expect_whole_and_writable(root: Path) -> None:
    """Check what is there; make the table if it is not; write to it and read it."""
    client = Client(root, environment())
    if not client.list_tables():
        create(client)
    for name in client.list_tables():
        table = client.table(name)
        table.check().raise_if_bad()
        expected = {row[0]: row[1] for row in stored(table)} | {5: 55, 99: 99}
        if not table.schema["v"].mutable:  # cells of new rows only can be set
            table.delete_ignore([{"k": 5}, {"k": 99}])
        table.upsert([{"k": 5, "v": 55}, {"k": 99, "v": 99}])
        assert stored(table) == sorted(expected.items())
        table.check().raise_if_bad()
