"""Steps that read, now and at every legal moment; all steps are listed in history_machine.py."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import kudulite
from kudulite import ColumnExpression
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import ConflictError, TimestampError
from kudulite.tablet.tablet_scan import CHANGE_COLUMNS
from tests.support.machines.history_setup import HistoryState, by_key, value_of
from tests.support.oracle.table_model import Key, Shown, holds, predicate_of
from tests.support.tables.core_tables import environment, tuples

LOOKS = ("scan", "ordered", "tokens", "count", "get", "get_many", "projected")
PLANS = ("scan", "tokens")


@dataclass
class PlannedScan:
    """A scan that was planned and is read later."""

    read: Callable[[], list[tuple]]
    timestamp: int
    expected: Shown


class LookSteps(HistoryState):
    """Scans, lookups, predicates, the whole past, and reads that must be refused."""

    def _look(self, client: int, how: str, at: int | None) -> None:
        """One way of reading, at one moment."""
        moment = self.moment(at)
        self.look(self.tables[client], how, moment)

    def _peek(self, client: int, how: str, at: int | None) -> None:
        """One way of reading the present or a moment before it, which takes no lock."""
        moment = self.moment(at)
        if moment is None or moment <= self.tables[client].current_timestamp():
            self.look(self.tables[client], how, moment)

    def look(self, table: Table, how: str, moment: int | None) -> None:
        """Compare a table with the model in one way, at a moment."""
        expected = self.model.at(moment)
        count = len(self.setup.key_names)
        what = f"{how} at {moment}"
        if how == "scan":
            self.same(self.rows_of(table, moment), expected, what)
        elif how == "count":
            self.same(table.scan(at=moment).count(), len(expected), what)
        elif how == "ordered":
            found = tuples(table.scan(at=moment, ordered=True).to_arrow())
            self.same(found, [expected[key] for key in sorted(expected, key=_encoded)], what)
        elif how == "tokens":
            tokens = table.scan_tokens(at=moment, split_size_bytes=1)
            rows = [row for token in tokens for batch in token.open() for row in tuples(batch)]
            self.same(by_key(rows, count), expected, what)
        elif how == "projected":
            names = [*self.names_at(moment)[-1:], *self.setup.key_names]
            found = in_any_order(tuples(table.scan(names, at=moment).to_arrow()))
            wanted = in_any_order((row[-1], *row[:count]) for row in expected.values())
            self.same(found, wanted, what)
        elif how == "get":
            for key in self.keys:
                row = table.get(key, moment)
                found = None if row is None else tuple(row.values())
                self.same(found, expected.get(key), f"{what}, key {key}")
        else:
            order = self.keys[::2] + self.keys[1::2]
            rows = [dict(zip(self.setup.key_names, key, strict=True)) for key in order]
            found = tuples(table.get_many(rows, moment))
            self.same(found, [expected[key] for key in order if key in expected], what)

    def rows_of(self, table: Table, moment: int | None) -> Shown:
        """The rows of a scan, by key."""
        found = table.scan(at=moment).to_arrow()
        self.same(found.column_names, self.names_at(moment), f"columns at {moment}")
        return by_key(tuples(found), len(self.setup.key_names))

    def names_at(self, moment: int | None) -> list[str]:
        """The names of the columns at a moment."""
        return [*self.setup.key_names, *(c.name for c in self.model.columns_at(moment))]

    def _where(
        self, client: int, conditions: Sequence[tuple[str, str, int | None]], at: int | None
    ) -> None:
        """A scan with a conjunction on columns, by name or "key"."""
        moment, table = self.moment(at), self.tables[client]
        names = self.names_at(moment)
        columns = {column.name: column for column in self.model.columns_at(moment)}
        where, tests = [], []
        for name, how, number in conditions:
            column = columns.get(name)
            if name == "key":
                place = (number or 0) % len(self.setup.key_names)
                value = self.setup.key(number or 0)[place]
            elif column is None:
                continue
            else:
                place, value = names.index(name), value_of(column, number or 0)
                if column.type.is_array and how != "null":
                    how = "not null"
            value = [value] if how == "in" else value
            where.append(predicate_of(ColumnExpression(names[place]), how, value))
            tests.append((place, how, value))
        rows = self.model.at(moment)
        expected = {
            key: row
            for key, row in rows.items()
            if all(holds(row[place], how, value) for place, how, value in tests)
        }
        scan = table.scan(where=where, at=moment)
        found = by_key(tuples(scan.to_arrow()), len(self.setup.key_names))
        self.same(found, expected, f"{tests} at {moment}")
        self.same(scan.count(), len(expected), f"count of {tests} at {moment}")

    # -- the past

    def _past(self, client: int) -> None:
        """Every legal moment, and the moment right before some."""
        self.past(self.tables[client])

    def past(self, table: Table) -> None:
        """Compare a table with the model at every legal moment."""
        moments = self.legal_moments()
        for place, moment in enumerate(moments):
            self.look(table, LOOKS[place % len(LOOKS)] if place % 5 == 4 else "scan", moment)
            if place % 4 == 1:
                self.look(table, "scan", moment - 1)

    def _refused(self, client: int, how: str, distance: int) -> None:
        """A moment before the mark cannot be read."""
        mark = self.settle_mark()
        moment = mark - 1 - distance
        if moment <= 0:
            return
        table = self.tables[client]
        reads: dict[str, Callable[[], object]] = {
            "scan": lambda: table.scan(at=moment).to_arrow(),
            "count": lambda: table.scan(at=moment).count(),
            "tokens": lambda: table.scan_tokens(at=moment),
            "get": lambda: table.get(self.keys[0], moment),
            "changes": lambda: table.changes(moment, mark),
        }
        try:
            reads[how]()
        except TimestampError:
            return
        raise AssertionError(f"{how} at {moment}, before the mark {mark}, is not refused")

    # -- planned now, read later

    def _plan(self, client: int, slot: int, how: str, at: int | None) -> None:
        """Plan a scan, for a later step "read"."""
        moment, table = self.moment(at), self.tables[client]
        if how == "tokens":
            tokens = table.scan_tokens(at=moment, split_size_bytes=1)
            timestamp = tokens[0].timestamp if tokens else moment

            def read() -> list[tuple]:
                return [row for token in tokens for batch in token.open() for row in tuples(batch)]
        else:
            scan = table.scan(at=moment)
            timestamp = scan.timestamp

            def read() -> list[tuple]:
                return tuples(scan.to_arrow())

        if timestamp is not None:
            self.slots[slot] = PlannedScan(read, timestamp, self.model.at(moment))

    def _read(self, slot: int) -> None:
        """Read what was planned: the same rows as then, unless the mark is past it."""
        planned = self.slots.get(slot)
        if not isinstance(planned, PlannedScan):
            return
        self.settle_mark()
        try:
            found = by_key(planned.read(), len(self.setup.key_names))
        except (TimestampError, ConflictError):  # the cells of a dropped column may be gone, too
            if planned.timestamp >= self.first_legal:
                raise
            del self.slots[slot]
            return
        self.same(found, planned.expected, f"scan at {planned.timestamp}, planned before")

    # -- the files

    def _check(self, client: int) -> None:
        """Table.check, and figures that metadata gives."""
        table = self.tables[client]
        table.check().raise_if_bad()
        self.same(table.live_row_count, len(self.model.rows), "live rows")
        self.same(table.statistics.live_row_count, len(self.model.rows), "live rows")

    def _recall(self, client: int) -> None:
        """Soft-delete the table and recall it; processes that have it open can continue."""
        store, other = self.tables[client]._store, self.clients[client - 1]
        table_id = store.newest().table_id
        self.clients[client].soft_delete_table("t", 3600)
        self.same(other.table_exists("t"), False, "a soft-deleted table is there")
        self.same([table.id for table in other.list_soft_deleted_tables()], [table_id], "deleted")
        other.recall_table(table_id)
        self.same(other.list_soft_deleted_tables(), [], "deleted after the recall")

    def _copy(self) -> None:
        """A copy of the directory with new file times answers every read as the table does."""
        folder = self.folder.with_name(f"{self.folder.name}-copy")
        shutil.copytree(self.folder, folder, copy_function=shutil.copyfile)
        try:
            table = Client(folder, environment(clock=self.clock)).table("t")
            self.look(table, "scan", None)
            self.past(table)
            table.check().raise_if_bad()
        finally:
            shutil.rmtree(folder)


def in_any_order(rows: Any) -> list[tuple]:
    """Rows in one order, whatever is in them; equal numbers may have different forms."""
    return sorted(rows, key=lambda row: [_form(value) for value in row])


def _form(value: Any) -> str:
    return repr(value.normalize() if isinstance(value, Decimal) else value)


def _encoded(key: tuple) -> tuple:
    """A key in the order of its encoding: texts as bytes."""
    return tuple(part.encode() if isinstance(part, str) else part for part in key)


READS = ("changes", "tokens")
_END = 1 << 64


class ChangeSteps(HistoryState):
    """Changes of windows between legal moments, and whole histories of keys."""

    def _changes(self, client: int, how: str, start: int, end: int | None, images: str) -> None:
        """A window between two moments, or from one to now."""
        low, high = self.moment(start), self.moment(end)
        if low is None:
            return
        if high is not None and high < low:
            low, high = high, low
        self.compare_changes(self.tables[client], how, low, high, images)

    def compare_changes(
        self, table: Table, how: str, start: int, end: int | None, images: str
    ) -> None:
        """Compare the changes of a window with the difference of the model's versions."""
        if how == "tokens":
            tokens = table.change_tokens(start, end, images=images, split_size_bytes=1)
            listed = [
                row for token in tokens for batch in token.open() for row in batch.to_pylist()
            ]
        else:
            listed = table.changes(start, end, images=images).to_arrow().to_pylist()
        found: dict[Key, list[tuple]] = {}
        for row in listed:
            version = change_of(row)
            key = tuple(row[name] for name in self.setup.key_names)
            found.setdefault(key, []).append((*version, tuple(row.values())))
        expected = {}
        changes = self.model.changes(start, _END if end is None else end)
        for key, (change, timestamp, before, after) in changes.items():
            expected[key] = [(change, timestamp, before if after is None else after)]
            if change == "update_postimage" and images == "both":
                expected[key].insert(0, ("update_preimage", timestamp, before))
        self.same(found, expected, f"{how} of ({start}, {end}]")

    def _history(self, client: int, number: int) -> None:
        """All versions of a key that can still be read."""
        key = self.setup.key(number)
        before = self.expected_history(key)
        table = self.tables[client].history(key)
        rows = table.to_pylist()
        after = self.expected_history(key)
        found = []
        for place, row in enumerate(rows):
            writer, (change, timestamp) = row.pop("_commit_writer"), change_of(row)
            assert writer is None or "@" in writer
            # Of what was current at the mark nobody needs to know when it came.
            is_known = place > 0 or (timestamp is not None and timestamp > self.mark)
            found.append((change, timestamp, tuple(row.values())) if is_known else row_only(row))
        if found not in (before, after):
            raise AssertionError(f"history of {key}:\nfound    {found}\nexpected {after}")

    def expected_history(self, key: Key) -> list[tuple]:
        """(change type, timestamp, row) of each version, of a delete the row before it."""
        mark = self.settle_mark()
        current = self.model.histories.row(key, mark)
        found: list[tuple[Any, ...]] = [] if current is None else [(None, None, current)]
        for version in self.model.history(key, mark):
            name = "insert" if current is None else "update_postimage"
            shown = version.row
            if version.row is None:
                name, shown = "delete", current
            found.append((name, version.timestamp, shown))
            current = version.row
        ends = [*(timestamp for _, timestamp, _ in found[1:]), _END]
        return [
            (name, at, self.model.shown_until(key, row, at if name == "delete" else end))
            for (name, at, row), end in zip(found, ends[: len(found)], strict=True)
        ]


def change_of(row: dict[str, Any]) -> tuple:
    """Take the type and the HybridTime of a change out of its row, where the wall time agrees."""
    change, version, moment = (row.pop(name) for name in CHANGE_COLUMNS)
    assert moment == (None if version is None else kudulite.Timestamp(version).to_datetime())
    return change, version


def row_only(row: dict[str, Any]) -> tuple:
    """A version whose moment does not count."""
    return None, None, tuple(row.values())
