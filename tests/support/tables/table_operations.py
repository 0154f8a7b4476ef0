"""A small table with files of all kinds, and every operation that writes files of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence

import pyarrow as pa

import kudulite
from kudulite.client.client import Client
from kudulite.client.table import Table
from tests.support.tables.core_tables import CoreTables, altered

PURGED = 7
KEYS = [{"k": PURGED}]


def new_table(client: Client) -> Table:
    """Three rowsets of one tablet, with REDO, UNDO and tombstones, and rows in the log."""
    columns = [kudulite.column("k", kudulite.int32), kudulite.column("v", kudulite.int64)]
    table = client.create_table("t", kudulite.schema(columns, "k"))
    alterer = client.new_table_alterer(table).set_history_retention(3600)
    alterer.alter()
    for first in (0, 20, 40):
        table.insert(rows(range(first, first + 20), 0))
    table.update(rows(range(15, 30), 1))
    put(table, range(10, 18), 2)
    return table


def rows(keys: Sequence[int], value: int) -> pa.Table:
    """Rows of one value."""
    columns = {"k": pa.array(keys, pa.int32()), "v": pa.array([value] * len(keys), pa.int64())}
    return pa.table(columns)


def put(table: Table, keys: Sequence[int], value: int) -> None:
    """Upsert rows through the log."""
    session = kudulite.Session()
    for key in keys:
        session.apply(table.new_upsert({"k": key, "v": value}))
    session.flush()


OPERATIONS: dict[str, Callable[[Table], object]] = {
    "flush": lambda table: table.flush(),
    "upsert": lambda table: table.upsert(rows(range(50, 70), 3)),
    "apply": lambda table: table.apply(
        rows(range(50, 70), 3).append_column("op", pa.array(["upsert"] * 20))
    ),
    "update where": lambda table: table.update(where="k >= 50", set={"v": 3}),
    "overwrite": lambda table: table.overwrite(rows(range(50, 70), 3)),
    "overwrite of what differs": lambda table: table.overwrite(
        rows(range(50, 70), 3), unchanged="skip"
    ),
    "session": lambda table: put(table, range(50, 70), 3),
    "compact": lambda table: table.compact(),
    "maintain": lambda table: table.maintain(grace_seconds=0),
    "purge": lambda table: table.purge(KEYS),
    "alter": lambda table: altered(
        Client(table.path.parent, table._store.environment),
        "t",
        lambda a: a.add_column("w", "int8"),
    ),
    "tag": lambda table: table.tag("monday"),
    "restore": lambda table: table.restore(table.versions()[2].timestamp),
    "copy": lambda table: table.copy_to(table.path.with_name("copy")),
}


def copied(core: CoreTables, name: str, **options: object) -> Client:
    """A client of a copy of the folder `made`, in the place of any before."""
    shutil.rmtree(core.root / name, ignore_errors=True)
    shutil.copytree(core.root / "made", core.root / name)
    return core.client(name, **options)
