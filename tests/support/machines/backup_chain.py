"""A table that is changed and altered in every way between its backups, and what it was at each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

import kudulite
from kudulite import Backup, Client, Table
from kudulite.backups.format import content_sum
from kudulite.chain.partition import PartitionSchema
from kudulite.model.schema import Schema
from tests.support.tables.core_tables import altered, stored
from tests.support.tables.typed_tables import TypedTable

NAME = "measured"


@dataclass(frozen=True)
class State:
    """The schema, partitions, retention and rows of a table at a moment."""

    schema: Schema
    partition: PartitionSchema
    history_seconds: int
    rows: list[tuple]


def state_of(table: Table) -> State:
    """The present state of the table."""
    manifest = table._store.newest()
    return State(manifest.schema, manifest.partition, manifest.history_seconds, stored(table))


def make_table(client: Client) -> Table:
    """Three ranges of two buckets each, with rows in all of them."""
    columns = [
        kudulite.column("k", kudulite.int32),
        kudulite.column("h", kudulite.string),
        kudulite.column("a", kudulite.string, default="unset"),
        kudulite.column("b", kudulite.int16),
        kudulite.column("d", "decimal(9, 2)"),
    ]
    bounds = [[0, 100], [100, 200], [200, 300]]
    table = client.create_table(
        NAME,
        kudulite.schema(columns, ["k", "h"]),
        hash_partitions=[(["h"], 2)],
        range_partitions={"columns": ["k"], "bounds": bounds},
    )
    table.insert(rows(range(0, 300, 3), a="first", b=1))
    table.update(rows(range(0, 300, 30), b=None))
    table.delete(rows([3, 6]))
    return table


def rows(keys, **cells) -> pa.Table:
    """Rows of these keys, all with the same cells."""
    return pa.table(
        {
            "k": pa.array(keys, pa.int32()),
            "h": [f"h{key % 7}" for key in keys],
            **{name: pa.array([value] * len(keys), _TYPES[name]) for name, value in cells.items()},
        }
    )


_TYPES = {
    "a": pa.string(),
    "machine": pa.string(),
    "b": pa.int16(),
    "c": pa.int64(),
    "d": pa.decimal128(9, 2),
}


def change_rows(client: Client) -> None:
    """Insert, update, delete and insert again, by batches and by a session."""
    table = client.table(NAME)
    table.insert(rows(range(1, 300, 30), a=None, b=2))
    table.update(rows(range(9, 300, 30), a="changed"))
    table.delete(rows(range(12, 300, 30)))
    table.insert(rows([3, 12], a="again", b=3))  # one deleted before the backup, one after
    session = client.new_session()
    for key in (15, 115, 215, 2):
        session.apply(table.new_upsert({"k": key, "h": f"h{key % 7}", "b": 4}))
    session.apply(table.new_delete({"k": 45, "h": "h3"}))
    session.flush()


def drop_and_rename(client: Client) -> None:
    """Drop a range and add it again with a few of its rows, rename a column, add another."""
    bounds = ({"k": 100}, {"k": 200})
    altered(client, NAME, lambda a: a.drop_range_partition(*bounds))
    altered(client, NAME, lambda a: a.add_range_partition(*bounds))
    altered(client, NAME, lambda a: a.alter_column("a", rename_to="machine"))
    altered(client, NAME, lambda a: a.add_column("c", kudulite.int64, nullable=False, default=7))
    table = client.table(NAME)
    table.insert(rows([102, 103, 117], machine="new", b=5, c=1))
    table.update(rows([27, 30], machine=None))
    client.new_table_alterer(table).set_history_retention(100_000).alter()


def cut_and_replace(client: Client) -> None:
    """Ranges with other bounds, one that never comes back, a column that is another one now."""
    table = client.table(NAME)
    table.upsert(rows([201, 204, 210], machine="lost", b=6, c=2))
    altered(client, NAME, lambda a: a.drop_range_partition({"k": 200}, {"k": 300}))
    altered(client, NAME, lambda a: a.add_range_partition({"k": 210}, {"k": 400}))
    altered(client, NAME, lambda a: a.drop_range_partition({"k": 100}, {"k": 200}))
    altered(client, NAME, lambda a: a.drop_column("b"))
    altered(client, NAME, lambda a: a.add_column("b", kudulite.int16, default=9))
    altered(client, NAME, lambda a: a.alter_column("d").type("decimal(18, 2)"))
    altered(client, NAME, lambda a: a.alter_column("machine", rename_to="a"))
    table = client.table(NAME)
    table.insert(rows([210, 213, 399], a="cut", b=None, c=3))
    table.delete(rows([3, 27]))
    table.insert(rows([45], a="reborn"))
    table.compact()


CHANGES: tuple[Callable[[Client], None], ...] = (change_rows, drop_and_rename, cut_and_replace)


def make_chain(client: Client, target: Path, **options) -> list[tuple[Backup, State]]:
    """A full backup and one after each change, each with what the table was then."""
    table = make_table(client)
    made = [(kudulite.backup(table, target, full=True, **options), state_of(table))]
    for change in CHANGES:
        change(client)
        table = client.table(NAME)
        made.append((kudulite.backup(table, target, full=False, **options), state_of(table)))
    return made


def check_random_chain(folder: Path, seed: int, step_count: int = 3) -> int:
    """Back up after each few changes, restore each; returns how many backups there were.

    The newest is compared with the model, all with the table as it was, as bits.
    """
    made = TypedTable(folder / "db" / "t", seed)
    target, states = folder / "set", []
    turns = [made.bulk, made.reinsert, made.alter, made.overwrite, made.compact, made.update]
    made.random.shuffle(turns)
    for turn in turns:
        for _ in range(made.random.randrange(step_count + 1)):
            made.step()
        turn()
        full = made.random.choice([None, None, None, True])
        content_hash = made.random.random() < 0.5
        backup = kudulite.backup(made.table, target, full=full, content_hash=content_hash)
        states.append((backup, made.table.scan(ordered=True).to_arrow()))
    made.stand_still()
    expected = made.expected(made.moments[-1])
    assert str(states[-1][1].to_pylist()) == str(expected.to_pylist()), seed
    for backup, then in states:
        table = kudulite.restore(target, folder / "db" / "r", at=backup.id, overwrite=True)
        found = table.scan(ordered=True).to_arrow()
        assert found.schema == then.schema, seed
        assert content_sum(found.to_batches()) == content_sum(then.to_batches()), seed
        assert str(found.to_pylist()) == str(then.to_pylist()), seed
        table.check().raise_if_bad()
    return len(states)
