"""Alterations of the table of a HistoryMachine: columns, ranges, retention, owner and comment.

The model learns each of them. All clients then open the table again, because others may have rows
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from kudulite.chain.partitioning import RangePartition
from kudulite.client.table import Table
from kudulite.client.table_alterer import TableAlterer
from kudulite.upkeep.alter import forget_alterations
from tests.support.machines.history_setup import (
    ADDED_TYPES,
    RANGE_COUNT,
    HistoryState,
    value_of,
    widened,
)
from tests.support.machines.unanswered import again, once
from tests.support.oracle.table_model import ModelColumn

OWNERS = ("ann", "ü" * 64)
COMMENTS = ("", "of a test", "ü" * 128)


class AlterationSteps(HistoryState):
    """Steps that publish another definition of the table."""

    def _alter(self, client: int, change: Callable[[TableAlterer], object]) -> None:
        """Make one alteration, of what `change` asks of an alterer."""
        table = self.tables[client]

        def alter() -> None:
            alterer = self.clients[client].new_table_alterer(table)
            change(alterer)
            alterer.alter()

        once(table._store, alter)

    def _altered(self, columns: Sequence[ModelColumn]) -> None:
        """Go on with other columns, by handles that know them: others may have rows refused."""
        versions = again(self.tables[0].versions)  # while it stood still, others may have made some
        altered = next(version for version in versions if version.operation == "alter")
        self.model.set_columns(columns, altered.timestamp)
        self.tables = [again(partial(client.table, "t")) for client in self.clients]
        names = [*self.setup.key_names, *(column.name for column in columns)]
        found = again(lambda: self.tables[0].schema.names)
        self.same(found, names, "names of the columns")

    def _add(self, client: int, name: str, kind: int, nullable: bool, default: int | None) -> None:
        """Add a column, unless there is one of this name."""
        if self.column(name) is not None:
            return
        column = self._new_column(name, kind, nullable, default)
        options: dict[str, Any] = {"nullable": column.nullable, "default": column.read_default}
        self._alter(client, lambda a: a.add_column(name, column.type, **options))
        self._altered([*self.model.columns, column])

    def _new_column(self, name: str, kind: int, nullable: bool, default: int | None) -> ModelColumn:
        column_type = ADDED_TYPES[kind % len(ADDED_TYPES)]
        if column_type.is_array:  # they have no defaults
            nullable, default = True, None
        column = ModelColumn(next(self.next_column_id), name, column_type, nullable)
        value = None if default is None and nullable else value_of(column, default)
        return replace(column, read_default=value, write_default=value)

    def _drop(self, client: int, name: str) -> None:
        """Drop a column, unless it is the last mutable one."""
        column = self.column(name)
        if column is None or self.mutable_names <= {name}:
            return
        self._alter(client, lambda a: a.drop_column(name))
        self._altered([other for other in self.model.columns if other != column])

    def _renew(
        self, client: int, name: str, kind: int, nullable: bool, default: int | None
    ) -> None:
        """Drop a column and add another one of its name, in one version."""
        column = self.column(name)
        if column is None:
            return
        new = self._new_column(name, kind, nullable, default)
        options: dict[str, Any] = {"nullable": new.nullable, "default": new.read_default}
        self._alter(client, lambda a: a.drop_column(name).add_column(name, new.type, **options))
        self._altered([*(other for other in self.model.columns if other != column), new])

    def _fix(self, client: int, name: str, mutable: bool) -> None:
        """Make a column immutable, unless it is the last mutable one, or mutable."""
        column = self.column(name)
        if column is None or column.mutable == mutable or self.mutable_names <= {name}:
            return
        self._alter(client, lambda a: a.alter_column(name).mutable(mutable))
        self._replace(column, replace(column, mutable=mutable))

    def _rename(self, client: int, name: str, new_name: str) -> None:
        """Rename a column, unless the new name is taken."""
        column = self.column(name)
        if column is None or self.column(new_name) is not None:
            return
        self._alter(client, lambda a: a.alter_column(name, rename_to=new_name))
        self._replace(column, replace(column, name=new_name))

    def _swap(self, client: int, name: str, other_name: str) -> None:
        """Let two columns change their names in one version."""
        column, other = self.column(name), self.column(other_name)
        if column is None or other is None or column == other:
            return
        renamed = ((name, "between"), (other_name, name), ("between", other_name))
        self._alter(client, lambda a: [a.alter_column(old, rename_to=new) for old, new in renamed])
        names = {name: other_name, other_name: name}
        self._altered([replace(c, name=names.get(c.name, c.name)) for c in self.model.columns])

    def _widen(self, client: int, name: str, choice: int) -> None:
        """Give a column a wider type, if there is one."""
        column = self.column(name)
        wider = None if column is None else widened(column, choice)
        if column is None or wider is None:
            return
        self._alter(client, lambda a: a.alter_column(name).type(wider.type))
        self._replace(column, wider)

    def _default(self, client: int, name: str, default: int | None) -> None:
        """Change what inserts store that leave a column unset; what is there stays."""
        column = self.column(name)
        if column is None or column.type.is_array:
            return
        value = value_of(column, default)

        def change(alterer: TableAlterer) -> object:
            spec = alterer.alter_column(name)
            return spec.remove_default() if value is None else spec.default(value)

        self._alter(client, change)
        self._replace(column, replace(column, write_default=value))

    def _replace(self, column: ModelColumn, new: ModelColumn) -> None:
        self._altered([new if other == column else other for other in self.model.columns])

    def _retain(self, client: int, seconds: int) -> None:
        """Another retention; what a shorter one gave up stays given up."""
        self._alter(client, lambda a: a.set_history_retention(seconds))
        self.retention = seconds

    def _drop_range(self, client: int, place: int) -> None:
        """Drop one of the ranges with its rows, unless it is the last one; the past stays."""
        dropped = self._keys_of(place)
        if not self.setup.has_ranges or dropped <= self.model.uncovered:
            return
        if len(self.model.uncovered | dropped) == len(self.keys):
            return
        bounds = self.setup.bounds(place)
        self._alter(client, lambda a: a.drop_range_partition(*bounds))
        self.model.uncovered = self.model.uncovered | dropped
        self.find_tablets()
        self.model.delete_all(dropped)
        newest = self.manifest.dropped
        if self.model.changed_keys():
            timestamp = max(each.timestamp for each in newest)
            self.model.commit(lambda key: timestamp)

    def _add_range(self, client: int, place: int) -> None:
        """Add a range that was dropped, empty, maybe with other hash partitions than before."""
        added = self._keys_of(place)
        if not self.setup.has_ranges or not added <= self.model.uncovered:
            return
        bounds = self.setup.bounds(place)
        if self.setup.layout == "ranges":
            self._alter(client, lambda a: a.add_range_partition(*bounds))
        else:
            own = RangePartition(*bounds)
            own.add_hash_partitions(self.setup.key_names, 2 + self.manifest.version % 3)
            self._alter(client, lambda a: a.add_custom_range_partition(own))
        self.model.uncovered = self.model.uncovered - added
        self.find_tablets()

    def _forget(self, client: int) -> None:
        """Give up the dropped ranges and columns that no legal read can show."""
        forget_alterations(self.tables[client]._store)
        mark = self.settle_mark()
        stamps = [each.timestamp for each in self.manifest.dropped]
        stamps += [each.until for each in self.manifest.schema_changes]
        if self.setup.tick == 0 and any(stamp <= mark for stamp in stamps):
            raise AssertionError(f"alterations at {stamps} are not forgotten, mark {mark}")

    def _keys_of(self, place: int) -> frozenset:
        numbers = range(self.setup.key_count)
        wanted = place % RANGE_COUNT
        return frozenset(self.setup.key(n) for n in numbers if self.setup.range_of(n) == wanted)

    def _describe(self, client: int, number: int) -> None:
        """Another owner and comment; an empty comment removes it."""
        again(lambda: self.compare_description(self.clients[client].table("t")))
        owner, comment = OWNERS[number % len(OWNERS)], COMMENTS[number % len(COMMENTS)]
        self._alter(client, lambda a: a.set_owner(owner).set_comment(comment))
        self.description = owner, comment

    def compare_description(self, table: Table) -> None:
        """Compare owner and comment with those that were set last."""
        self.same((table.owner, table.comment), self.description, "owner and comment")
