"""Runs a list of steps against a small table and its model; a step that disagrees is an error.

    ("apply", session, operation, key, values)       session.apply, seen by nobody
    ("flush", session)                               all rows applied since, each by itself
    ("auto", client, operation, key, values)         one row through a session of that mode
    ("background", client, [(operation, key, values), …])       the same, and its flush
    ("batch", client, operation, [(key, values), …], ignore_null)     a bulk write, whole or not
    ("mixed", client, [(operation, key, values), …])            Table.apply
    ("overwrite", client, [(key, values), …])
    ("flush_table", client)      Table.flush
    ("reopen", client)           go on with a client that sees only the disk; nothing is closed
    ("close", client)            the same after Client.close
    ("look", client, how, at)    how: one of LOOKS; at: None, or the number of a remembered version
    ("where", client, [(column, comparison, value), …], at)
    ("check", client)            Table.check

Keys are numbers of the five keys; session s belongs to client s modulo CLIENTS. Any part of a list
is a list that can be run, which is what shrinking needs. A clock that moves by one microsecond with
each look at it gives every run of a list the same distances of time.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import kudulite
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import KuduliteError, RowError
from kudulite.model.encoded_key import encode_key
from kudulite.model.hybrid_time import LOGICAL_BITS
from tests.support.machines.unanswered import Done, again, flush_once, once, take
from tests.support.oracle.table_model import (
    Key,
    Row,
    RowModel,
    holds,
    predicate_of,
)
from tests.support.tables.core_tables import ManualClock, environment, in_order, stored, tuples

KEY_COUNT = 5
UNCOVERED = 2  # the key that no tablet owns in a table of the layout "gap"

# Key columns, and the five keys. Strings share prefixes and hold what the encoding escapes.
KEYS: dict[str, tuple[tuple[tuple[str, Any], ...], tuple[Key, ...]]] = {
    "int": ((("k", kudulite.int32),), ((-7,), (0,), (1,), (2,), (1 << 30,))),
    "composite": (
        (("s", kudulite.string), ("n", kudulite.int64)),
        (("", 1), ("a", -1), ("a\0", -1), ("a\0b", 0), ("ÿ", 1 << 40)),
    ),
}
VALUES: tuple[tuple[str, Any, dict[str, Any]], ...] = (
    ("a", kudulite.int64, {}),
    ("b", kudulite.string, {"default": "none"}),
    ("c", kudulite.int32, {"nullable": False, "default": 3}),
    ("l", kudulite.array(kudulite.unixtime_micros), {}),
)
REQUIRED = ("r", kudulite.double, {"nullable": False})
DEFAULTS = {"b": "none", "c": 3}
LAYOUTS = ("one", "three", "gap")


@dataclass(frozen=True)
class Setup:
    """A small table: `keys` of KEYS, `layout` of LAYOUTS; `required`: with a column to be given."""

    keys: str = "int"
    layout: str = "one"
    required: bool = False

    @property
    def key_names(self) -> list[str]:
        """Names of the key columns."""
        return [name for name, _ in KEYS[self.keys][0]]

    @property
    def value_names(self) -> list[str]:
        """Names of the other columns."""
        return [name for name, _, _ in VALUES] + (["r"] if self.required else [])

    def key(self, index: int) -> Key:
        """One of the five keys."""
        return KEYS[self.keys][1][index]

    def row(self, index: int, values: Row) -> Row:
        """A row of a key and values."""
        return dict(zip(self.key_names, self.key(index), strict=True)) | values

    def create(self, client: Client) -> Table:
        """The empty table, named `t`."""
        columns = [
            kudulite.column(name, column_type, nullable=False)
            for name, column_type in KEYS[self.keys][0]
        ]
        for name, column_type, options in (*VALUES, *([REQUIRED] if self.required else [])):
            columns.append(kudulite.column(name, column_type, **options))
        layout: dict[str, Any] = {}
        if self.layout == "three":
            layout["hash_partitions"] = [(self.key_names, 3)]
        elif self.layout == "gap":
            edges = [self.key(UNCOVERED), self.key(UNCOVERED + 1)]
            bounds = [[None, list(edges[0])], [list(edges[1]), None]]
            layout["range_partitions"] = {"columns": self.key_names, "bounds": bounds}
        return client.create_table("t", kudulite.schema(columns, self.key_names), **layout)

    def model(self) -> RowModel:
        """The model of the table."""
        return RowModel(
            self.key_names,
            self.value_names,
            DEFAULTS,
            frozenset({"r"} if self.required else ()),
            uncovered=frozenset({self.key(UNCOVERED)} if self.layout == "gap" else ()),
        )


Step = tuple
Rows = list[tuple[str, Row]]
CLIENTS = 2
SESSIONS = 3
WHOLE_VERSIONS = 5  # of those that are looked at whole at the end
LOOKS = ("scan", "ordered", "tokens", "count", "get", "get_many")
# Steps that find out themselves what a store has done that gives no answer; and one of which the
# parts that are written cannot be told from the others then, and one that asks very often.
DECIDED = ("apply", "flush", "auto", "batch", "mixed", "overwrite", "close")
FAULTLESS = ("background", "check")


class SteppingClock(ManualClock):
    """A clock that moves by one microsecond whenever somebody looks.

    It starts at the present, because tokens are opened by the clock of the machine.
    """

    def __init__(self) -> None:
        super().__init__(time.time_ns() // 1000)
        self._ticks = itertools.count(self.microseconds)

    def now(self) -> int:
        """The next microsecond as a HybridTime."""
        return next(self._ticks) << LOGICAL_BITS


class RowMachine:
    """A table, clients and sessions that steps work on, and the model that they must equal."""

    def __init__(self, folder: Path, setup: Setup) -> None:
        self.setup = setup
        self.model = setup.model()
        self._folder = folder
        self._clock = SteppingClock()
        self._clients = [self._client() for _ in range(CLIENTS)]
        self._tables = [setup.create(self._clients[0])]
        self._tables += [client.table("t") for client in self._clients[1:]]
        self._sessions: dict[Any, Any] = {}
        self._pending: dict[int, list[tuple[Any, str, Row]]] = {}
        self.model.committed(self._tables[0].current_timestamp())

    def run(self, steps: Iterable[Step]) -> None:
        """Take all steps; AssertionError or KuduliteError at the first that disagrees."""
        for number, (name, *arguments) in enumerate(steps):
            step = partial(getattr(self, f"_{name}"), *arguments)
            try:
                take(name, step, faultless=FAULTLESS, decided=DECIDED)
            except (AssertionError, KuduliteError) as error:
                error.add_note(f"in step {number}: {(name, *arguments)}")
                raise

    def finish(self) -> None:
        """Every remembered version is still what it was, also for a client that knows nothing."""
        self._reopen(0)
        versions = self.model.versions
        for number, (timestamp, rows) in enumerate(versions):
            # One key of each, or the run would look back for longer than it runs.
            key = self.setup.key(number % KEY_COUNT)
            wanted = self._whole(key, rows) if key in rows else None
            found = self._tables[0].get(key, timestamp)
            self._same(found, wanted, f"key {key} at version {number}")
        for number in range(0, len(versions), max(1, len(versions) // WHOLE_VERSIONS)):
            self._look(1, LOOKS[number % len(LOOKS)], number)
        for look in LOOKS:
            self._look(0, look, None)
        self._check(0)

    # -- sessions

    def _apply(self, session: int, operation: str, key: int, values: Row) -> None:
        made = self._operation(session % CLIENTS, operation, key, values)
        self._session(session, session % CLIENTS, "manual").apply(made)
        pending = self._pending.setdefault(session, [])
        pending.append((made, operation, self.setup.row(key, values)))

    def _flush(self, session: int) -> None:
        used = self._session(session, session % CLIENTS, "manual")
        self._flush_session(used, self._pending.pop(session, []))

    def _background(self, client: int, rows: Sequence[tuple[str, int, Row]]) -> None:
        session = self._session(("background", client), client, "background")
        pending = []
        for operation, key, values in rows:
            made = self._operation(client, operation, key, values)
            session.apply(made)
            pending.append((made, operation, self.setup.row(key, values)))
        self._flush_session(session, pending)

    def _flush_session(self, session: Any, pending: list[tuple[Any, str, Row]]) -> None:
        counts, failures = self.model.write_each([(name, row) for _, name, row in pending])
        made = [operation for operation, _, _ in pending]
        flushed = flush_once(self._tables[0]._store, session, made)
        self._same(flushed.reasons, flushed.known(failures), "row errors")
        timestamp = max(flushed.timestamps.values(), default=None)
        self._written(timestamp, counts.inserted + counts.updated + counts.deleted)

    def _auto(self, client: int, operation: str, key: int, values: Row) -> None:
        session = self._session(("auto", client), client, "auto")
        counts, failures = self.model.write_each([(operation, self.setup.row(key, values))])
        made, reason, done = self._operation(client, operation, key, values), None, None
        try:
            done = once(self._tables[client]._store, lambda: session.apply(made))
        except RowError as error:
            reason = error.reason
        timestamp = session.last_timestamp
        if isinstance(done, Done):
            timestamp = done.timestamp
        else:
            self._same(reason, failures.get(0), "row error")
        self._written(timestamp, counts.inserted + counts.updated + counts.deleted)

    def _session(self, name: Any, client: int, mode: str) -> Any:
        if name not in self._sessions:
            self._sessions[name] = self._clients[client].new_session(flush_mode=mode)
        return self._sessions[name]

    def _operation(self, client: int, operation: str, key: int, values: Row) -> Any:
        new = getattr(self._tables[client], f"new_{operation}")
        return again(partial(new, self.setup.row(key, values)))

    # -- batches

    def _batch(
        self, client: int, operation: str, rows: Sequence[tuple[int, Row]], ignore_null: bool
    ) -> None:
        each = [(operation, self.setup.row(key, values)) for key, values in rows]
        write = getattr(self._tables[client], operation)
        options = {"ignore_null": True} if ignore_null else {}
        data = self._arrow(each)
        self._write(client, each, lambda: write(data, **options), **options)

    def _mixed(self, client: int, rows: Sequence[tuple[str, int, Row]]) -> None:
        each = [(operation, self.setup.row(key, values)) for operation, key, values in rows]
        names = pa.array([operation for operation, _ in each], pa.string())
        data = self._arrow(each).append_column("op", names)
        self._write(client, each, lambda: self._tables[client].apply(data))

    def _overwrite(self, client: int, rows: Sequence[tuple[int, Row]]) -> None:
        each = [("upsert", self.setup.row(key, values)) for key, values in rows]
        data = self._arrow(each)
        write = self._tables[client].overwrite
        self._write(client, each, lambda: write(data), overwrite=True)

    def _write(self, client: int, rows: Rows, write: Any, **options: Any) -> None:
        """Give a batch to model and table: both refuse it, or apply it with the same counts."""
        counts, store = None, self._tables[client]._store
        try:
            counts = self.model.write(rows, **options)
        except RowError as expected:
            try:
                result = once(store, write)
            except RowError:
                return
            raise AssertionError(f"accepted: {result}; expected: {expected}") from None
        result = once(store, write)
        expected = counts.inserted, counts.updated, counts.deleted, counts.ignored
        if not isinstance(result, Done):
            found = result.inserted, result.updated, result.deleted, result.ignored
            self._same(found, expected, "counts")
        self._written(result.timestamp, sum(expected[:3]))

    def _arrow(self, rows: Rows) -> pa.Table:
        names = list(dict.fromkeys(name for _, row in rows for name in row))
        names = names or self.setup.key_names
        schema = again(lambda: self._tables[0].arrow_schema)
        return pa.table(
            {n: pa.array([row.get(n) for _, row in rows], schema.field(n).type) for n in names}
        )

    def _written(self, timestamp: int | None, effects: int) -> None:
        """Remember the version of a write; rows that did not change need no new timestamp."""
        newest, rows = self.model.versions[-1]
        self.model.expect_complete()
        if timestamp is not None and timestamp > newest:
            self.model.committed(timestamp)
        elif effects:
            self._same(rows, self.model.rows, f"rows of a write at {timestamp}, after {newest}")

    # -- the table

    def _flush_table(self, client: int) -> None:
        self._tables[client].flush()

    def _reopen(self, client: int) -> None:
        """Drop all that a client remembers; what its sessions have not flushed is lost."""
        for name in [n for n in self._sessions if self._client_of(n) == client]:
            del self._sessions[name]
            self._pending.pop(name, None)
        self._clients[client] = self._client()
        self._tables[client] = self._clients[client].table("t")

    def _close(self, client: int) -> None:
        for session in range(SESSIONS):
            if session % CLIENTS == client and session in self._pending:
                self._flush(session)
        again(self._clients[client].close)
        again(lambda: self._reopen(client))

    def _check(self, client: int) -> None:
        self._tables[client].check().raise_if_bad()

    def _client(self) -> Client:
        return Client(self._folder, environment(clock=self._clock))

    @staticmethod
    def _client_of(session: Any) -> int:
        return session % CLIENTS if isinstance(session, int) else session[1]

    # -- looking

    def _look(self, client: int, how: str, at: int | None) -> None:
        timestamp, rows = self._version(at)
        table, expected = self._tables[client], self.model.tuples(rows)
        what = f"{how} at version {at} of {len(self.model.versions)}"
        if how == "scan":
            self._same(stored(table, timestamp), expected, what)
        elif how == "count":
            self._same(table.scan(at=timestamp).count(), len(expected), what)
        elif how == "ordered":
            types, count = table.schema.key_types, len(self.setup.key_names)
            expected.sort(key=lambda row: encode_key(row[:count], types))
            found = tuples(table.scan(at=timestamp, ordered=True).to_arrow())
            self._same(found, expected, what)
        elif how == "tokens":
            tokens = table.scan_tokens(at=timestamp, split_size_bytes=1)
            batches = [batch for token in tokens for batch in token.open()]
            found = in_order(row for batch in batches for row in tuples(batch))
            self._same(found, expected, what)
        elif how == "get":
            for key in map(self.setup.key, range(KEY_COUNT)):
                whole = rows.get(key)
                wanted = self._whole(key, rows) if whole is not None else None
                self._same(table.get(key, timestamp), wanted, f"{what}, key {key}")
        else:
            order = (3, 0, 4, 1, 2)
            found = tuples(table.get_many(self._keys(order), timestamp))
            there = [key for key in map(self.setup.key, order) if key in rows]
            wanted = [tuple(self._whole(key, rows).values()) for key in there]
            self._same(found, wanted, what)

    def _where(
        self, client: int, conditions: Sequence[tuple[str, str, Any]], at: int | None
    ) -> None:
        timestamp, rows = self._version(at)
        table = self._tables[client]
        names = [*self.setup.key_names, *self.setup.value_names]
        expected = [
            row
            for row in self.model.tuples(rows)
            if all(holds(row[names.index(name)], how, value) for name, how, value in conditions)
        ]
        where = [predicate_of(table[name], how, value) for name, how, value in conditions]
        scan = table.scan(where=where, at=timestamp)
        self._same(in_order(tuples(scan.to_arrow())), expected, f"{conditions} at version {at}")
        self._same(scan.count(), len(expected), f"count {conditions} at version {at}")

    def _version(self, at: int | None) -> tuple[int | None, dict[Key, Row]]:
        if at is None:
            return None, self.model.rows
        return self.model.versions[at % len(self.model.versions)]

    def _whole(self, key: Key, rows: dict[Key, Row]) -> Row:
        values = {name: rows[key][name] for name in self.setup.value_names}
        return dict(zip(self.setup.key_names, key, strict=True)) | values

    def _keys(self, order: Iterable[int]) -> pa.Table:
        rows = [self.setup.row(key, {}) for key in order]
        schema = self._tables[0].arrow_schema
        fields = [schema.field(name) for name in self.setup.key_names]
        return pa.Table.from_pylist(rows, pa.schema(fields))

    def _same(self, found: Any, expected: Any, what: str) -> None:
        if found != expected:
            raise AssertionError(f"{what}:\nfound    {found}\nexpected {expected}")
