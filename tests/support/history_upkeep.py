"""Steps that change no row: flush, upkeep, time, alterations; the list is in history_machine.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from history_model import ModelColumn
from history_setup import ADDED_TYPES, RANGE_COUNT, value_of, widened
from history_state import HistoryState

from kudulite.catalog.range_drop import forget_dropped_ranges
from kudulite.client.table_alterer import TableAlterer
from kudulite.errors import TimestampError
from kudulite.mvcc.hybrid_time import LOGICAL_BITS

STAGING_GRACE_SECONDS = 3600.0


class UpkeepSteps(HistoryState):
    """What has no effect on any legal read, and what alters the table."""

    def _flush(self, client: int) -> None:
        self.tables[client].flush()

    def _maintain(self, client: int) -> None:
        """All upkeep that is due, and a sweep without grace; staged writes stay."""
        self.tables[client].maintain(0, STAGING_GRACE_SECONDS)

    def _advance(self, milliseconds: int) -> None:
        """Time passes."""
        self.clock.microseconds += milliseconds * 1000

    def _reopen(self, client: int) -> None:
        """Go on with a client that sees only the disk."""
        self.sessions.pop(client, None)
        self.clients[client] = self.new_client(client)
        self.tables[client] = self.clients[client].table("t")

    # -- alterations

    def _alterer(self, client: int) -> TableAlterer:
        return self.clients[client].new_table_alterer(self.tables[client])

    def _altered(self, columns: Sequence[ModelColumn]) -> None:
        """Go on with other columns, by handles that know them: others may have rows refused."""
        self.model.set_columns(columns)
        self.tables = [client.table("t") for client in self.clients]
        names = [*self.setup.key_names, *(column.name for column in columns)]
        self.same(self.tables[0].schema.names, names, "names of the columns")

    def _add(self, client: int, name: str, kind: int, nullable: bool, default: int | None) -> None:
        """Add a column, unless there is one of this name."""
        if self.column(name) is not None:
            return
        column_type = ADDED_TYPES[kind % len(ADDED_TYPES)]
        if column_type.is_array:  # they have no defaults
            nullable, default = True, None
        column = ModelColumn(next(self.next_column_id), name, column_type, nullable)
        value = None if default is None and nullable else value_of(column, default)
        column = replace(column, read_default=value, write_default=value)
        alterer = self._alterer(client)
        alterer.add_column(name, column_type, nullable=nullable, default=value)
        alterer.alter()
        self._altered([*self.model.columns, column])

    def _drop(self, client: int, name: str) -> None:
        """Drop a column, unless it is the last one."""
        column = self.column(name)
        if column is None or len(self.model.columns) == 1:
            return
        self._alterer(client).drop_column(name).alter()
        self._altered([other for other in self.model.columns if other != column])

    def _rename(self, client: int, name: str, new_name: str) -> None:
        """Rename a column, unless the new name is taken."""
        column = self.column(name)
        if column is None or self.column(new_name) is not None:
            return
        alterer = self._alterer(client)
        alterer.alter_column(name, rename_to=new_name)
        alterer.alter()
        self._replace(column, replace(column, name=new_name))

    def _widen(self, client: int, name: str, choice: int) -> None:
        """Give a column a wider type, if there is one."""
        column = self.column(name)
        wider = None if column is None else widened(column, choice)
        if column is None or wider is None:
            return
        alterer = self._alterer(client)
        alterer.alter_column(name).type(wider.type)
        alterer.alter()
        self._replace(column, wider)

    def _default(self, client: int, name: str, default: int | None) -> None:
        """Change what inserts store that leave a column unset; what is there stays."""
        column = self.column(name)
        if column is None or column.type.is_array:
            return
        value = value_of(column, default)
        alterer = self._alterer(client)
        spec = alterer.alter_column(name)
        _ = spec.remove_default() if value is None else spec.default(value)
        alterer.alter()
        self._replace(column, replace(column, write_default=value))

    def _replace(self, column: ModelColumn, new: ModelColumn) -> None:
        self._altered([new if other == column else other for other in self.model.columns])

    def _retain(self, client: int, seconds: int) -> None:
        """Another retention; what a shorter one gave up stays given up."""
        self._alterer(client).set_history_retention(seconds).alter()
        self.retention = seconds

    def _drop_range(self, client: int, place: int) -> None:
        """Drop one of the ranges with its rows, unless it is the last one; the past stays."""
        dropped = self._keys_of(place)
        if self.setup.layout != "ranges" or dropped <= self.model.uncovered:
            return
        if len(self.model.uncovered | dropped) == len(self.keys):
            return
        self._alterer(client).drop_range_partition(*self.setup.bounds(place)).alter()
        self.model.uncovered = self.model.uncovered | dropped
        self.find_tablets()
        self.model.delete_all(dropped)
        newest = self.manifest.dropped
        if self.model.changed_keys():
            timestamp = max(each.timestamp for each in newest)
            self.model.commit(lambda key: timestamp)

    def _add_range(self, client: int, place: int) -> None:
        """Add a range that was dropped, empty."""
        added = self._keys_of(place)
        if self.setup.layout != "ranges" or not added <= self.model.uncovered:
            return
        self._alterer(client).add_range_partition(*self.setup.bounds(place)).alter()
        self.model.uncovered = self.model.uncovered - added
        self.find_tablets()

    def _forget(self, client: int) -> None:
        """Give up the dropped ranges that no legal read can show."""
        forget_dropped_ranges(self.tables[client]._store)
        mark = self.settle_mark()
        stamps = [each.timestamp for each in self.manifest.dropped]
        if self.setup.tick == 0 and any(stamp <= mark for stamp in stamps):
            raise AssertionError(f"ranges dropped at {stamps} are not forgotten, mark {mark}")

    def _keys_of(self, place: int) -> frozenset:
        numbers = range(self.setup.key_count)
        wanted = place % RANGE_COUNT
        return frozenset(self.setup.key(n) for n in numbers if self.setup.range_of(n) == wanted)

    # -- tags

    def _tag(self, client: int, name: str, at: int | None) -> None:
        """Hold a moment past the retention."""
        if name in self.tags:
            return
        moment = self.moment(at)
        timestamp = self.tables[client].tag(name, moment)
        self.tags[name] = timestamp
        if moment is not None:
            self.same(timestamp, moment, "moment of a tag")

    def _untag(self, client: int, name: str) -> None:
        """Let a moment go."""
        if name in self.tags:
            self.tables[client].delete_tag(name)
            del self.tags[name]
        self.same(dict(self.tables[client].tags), self.tags, "tags")

    def _bad_tag(self, client: int) -> None:
        """A moment before the mark cannot be held."""
        mark = self.settle_mark()
        try:
            self.tables[client].tag("bad", mark - 1 - (1 << LOGICAL_BITS))
        except TimestampError:
            return
        raise AssertionError(f"a tag before the mark {mark} was taken")
