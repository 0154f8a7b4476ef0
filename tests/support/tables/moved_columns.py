"""A table whose columns change their names, or are dropped and added again."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import kudulite
from kudulite import Client, Table
from tests.support.tables.core_tables import altered

ROWS = [{"k": k, "a": k, "b": 10 * k} for k in range(6)]
SCHEMA = pa.schema(
    [pa.field("k", pa.int64(), False), pa.field("a", pa.int32(), False), ("b", pa.int32())]
)


def rows_table(client: Client) -> Table:
    """A table of two tablets with ROWS, in memory."""
    made = client.create_table("t", SCHEMA, primary_key="k", hash_partitions=[(["k"], 2)])
    made.insert(ROWS)
    return made


def renewed(client: Client) -> Table:
    """The table after `a` was dropped and added again, of another type."""
    altered(client, "t", lambda alterer: alterer.drop_column("a"))
    return altered(client, "t", lambda a: a.add_column("a", kudulite.string, default="new"))


def swapped(client: Client) -> Table:
    """The table after `a` and `b` have changed names."""

    def swap(alterer: Any) -> None:
        for old, new in (("a", "x"), ("b", "a"), ("x", "b")):
            alterer.alter_column(old, rename_to=new)

    return altered(client, "t", swap)
