"""Steps that write rows; the list of all steps is in history_machine.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from history_state import HistoryState
from model_table import UPDATES, Counts, Key, Row

import kudulite
from kudulite.errors import ConflictError, KuduliteError, RowError

Given = Sequence[tuple[str, int, Row]]
Rows = list[tuple[str, Row]]


@dataclass
class StagedWrite:
    """A bulk write that waits for its commit; `rows` are those that it has to apply then.

    `planned` is what it was staged for.
    """

    write: kudulite.BulkWrite
    parts: list[Any]
    planned: tuple
    is_overwrite: bool
    rows: Rows = field(default_factory=list)


class WriteSteps(HistoryState):
    """Sessions and batches."""

    # -- sessions

    def _rows(self, client: int, given: Given) -> None:
        """Rows through a session and its flush, each by itself."""
        table = self.tables[client]
        if client not in self.sessions:
            self.sessions[client] = self.clients[client].new_session()
        session = self.sessions[client]
        made, rows = [], []
        for name, number, values in given:
            named, numbered = self.row(name, number, values)
            operation = getattr(table, f"new_{name}")(named)
            session.apply(operation)
            made.append(operation)
            rows.append((name, numbered))
        _, failures = self.model.write_each(rows)
        is_refused = False
        try:
            session.flush()
        except KuduliteError:
            is_refused = True
        errors, _ = session.get_pending_errors()
        places = {id(operation): place for place, operation in enumerate(made)}
        found = {places.get(id(error.operation), error): error.reason for error in errors}
        self.same(found, failures, "row errors")
        self.same(is_refused, bool(failures), "flush raises")
        stamps: dict[Any, int] = {}
        for key in self.model.changed_keys():
            tablet = self.tablet_of[key]
            if tablet not in stamps:
                stamps[tablet] = self.store.last_timestamp(tablet)
        self.model.commit(lambda key: stamps[self.tablet_of[key]])
        if stamps:
            # The highest of the session so far.
            is_seen = session.last_timestamp >= max(stamps.values())
            self.same(is_seen, True, "the session's timestamp")

    # -- batches

    def _batch(self, client: int, operation: str, given: Sequence, ignore_null: bool) -> None:
        """Rows of one operation, all or none."""
        named, rows = self._both([(operation, *row) for row in given])
        options = {"ignore_null": True} if ignore_null else {}
        write = getattr(self.tables[client], operation)
        self._write(rows, lambda: write(self._arrow(named), **options), **options)

    def _mixed(self, client: int, given: Given) -> None:
        """Rows of any operations, all or none."""
        named, rows = self._both(given)
        data = self._with_operations(named)
        self._write(rows, lambda: self.tables[client].apply(data))

    def _overwrite(self, client: int, given: Sequence) -> None:
        """Rows in the place of all that are there."""
        named, rows = self._both([("upsert", *row) for row in given])
        data = self._arrow(named)
        self._write(rows, lambda: self.tables[client].overwrite(data), overwrite=True)

    def _both(self, given: Given) -> tuple[Rows, Rows]:
        """Rows for the table and for the model; all with the columns of all."""
        names = {name for _, _, values in given for name in values}
        if not any(column.name in names for column in self.model.columns):
            names = {self.model.columns[0].name} if any(o in UPDATES for o, *_ in given) else set()
        named, numbered = [], []
        for operation, number, values in given:
            filled = values if operation.startswith("delete") else dict.fromkeys(names) | values
            row, model_row = self.row(operation, number, filled)
            named.append((operation, row))
            numbered.append((operation, model_row))
        return named, numbered

    def _arrow(self, rows: Rows) -> pa.Table:
        names = list(dict.fromkeys(name for _, row in rows for name in row))
        schema = self.tables[0].arrow_schema
        fields = [schema.field(name) for name in names or self.setup.key_names]
        return pa.table(
            {f.name: pa.array([row.get(f.name) for _, row in rows], f.type) for f in fields}
        )

    def _with_operations(self, rows: Rows) -> pa.Table:
        # A delete leaves its cells null, which is no value for a NOT NULL column to check.
        full = next((row for name, row in rows if not name.startswith("delete")), {})
        filled = [(name, full | row if name.startswith("delete") else row) for name, row in rows]
        return self._arrow(filled).append_column("op", pa.array([name for name, _ in rows]))

    def _write(self, rows: Rows, write: Callable[[], Any], **options: Any) -> None:
        """Give a batch to model and table: both refuse it, or apply it with the same counts."""
        try:
            counts = self.model.write(rows, **options)
        except RowError as expected:
            try:
                result = write()
            except RowError:
                return
            raise AssertionError(f"accepted: {result}; expected: {expected}") from None
        result = write()
        self.same(_counts(result), _counts(counts), "counts")
        self.model.commit(lambda key: result.timestamp)

    # -- staged and committed apart

    def _stage(self, client: int, slot: int, operation: str | None, parts: Sequence[Given]) -> None:
        """Stage a bulk write in tasks; None is rows of any operations, "overwrite" replaces all."""
        self._abort(slot)
        pairs = [self._both(part) for part in self._with_same_columns(operation, parts)]
        names = list(dict.fromkeys(name for named, _ in pairs for _, row in named for name in row))
        options: dict[str, Any] = {"columns": names or self.setup.key_names}
        if operation is None:
            options["operation_column"] = "op"
        elif operation == "overwrite":
            options |= {"operation": "upsert", "overwrite": True}
        else:
            options["operation"] = operation
        write = self.tables[client].new_bulk_write(**options)
        staged = StagedWrite(write, [], self._plan_of_writes(), operation == "overwrite")
        for named, rows in pairs:
            left, refused = rows, None
            try:
                alone = self._not_ignored(staged, rows)
                # A mixed write is judged at its commit, but for keys that no tablet owns.
                left = rows if operation is None else alone
            except RowError as error:
                refused = error
            data = self._with_operations(named) if operation is None else self._arrow(named)
            data = data.select([*options["columns"], *(["op"] if operation is None else [])])
            try:
                staged.parts.append(write.stage(data.to_batches(), len(staged.parts)))
            except RowError:
                if refused is None:
                    raise
                write.abort()
                return
            self.same(refused, None, "a task was accepted")
            staged.rows += left
        self.slots[slot] = staged

    def _with_same_columns(self, operation: str | None, parts: Sequence[Given]) -> list[Given]:
        """The rows of all tasks with the columns of all."""
        names = {name for part in parts for _, _, values in part for name in values}
        if not any(column.name in names for column in self.model.columns):
            names = {self.model.columns[0].name}
        kind = "upsert" if operation == "overwrite" else operation
        return [
            [(kind or name, number, dict.fromkeys(names) | values) for name, number, values in part]
            for part in parts
            if part
        ]

    def _not_ignored(self, staged: StagedWrite, rows: Rows) -> Rows:
        """The rows that a task, alone at this version, does not ignore."""
        alone = deepcopy(self.model)
        if staged.is_overwrite:
            alone.rows = {}
        left: Rows = []
        for row in rows:
            if not alone.write([row]).ignored:
                left.append(row)
        return left

    def _plan_of_writes(self) -> tuple:
        """What must not change between the staging and the commit of a write."""
        return tuple(self.model.columns), sorted(entry.id for entry in self.manifest.tablets)

    def _may_commit(self, staged: StagedWrite) -> bool:
        """Whether the table is as it was, but for more columns that have no default."""
        (columns, tablets), (now, tablets_now) = staged.planned, self._plan_of_writes()
        added = now[len(columns) :]
        return (
            (columns, tablets) == (now[: len(columns)], tablets_now)
            and all(column.nullable for column in added)
            and all((c.read_default, c.write_default) == (None, None) for c in added)
        )

    def _commit(self, slot: int) -> None:
        """Commit what was staged, if anything was."""
        staged = self.slots.pop(slot, None)
        if not isinstance(staged, StagedWrite):
            return
        refused: Exception | None = None
        if not self._may_commit(staged):
            refused = ConflictError("the table was altered")
        else:
            try:
                options = {"overwrite": True} if staged.is_overwrite else {}
                self.model.write(staged.rows, **options)
            except RowError as error:
                refused = error
        try:
            result = staged.write.commit(staged.parts)
        except (RowError, ConflictError) as error:
            staged.write.abort()
            if refused is None or isinstance(error, ConflictError) != isinstance(
                refused, ConflictError
            ):
                raise
            return
        self.same(None, refused, "a commit was accepted")
        self.model.commit(lambda key: result.timestamp)

    def _abort(self, slot: int) -> None:
        """Give up what was staged, if anything was."""
        staged = self.slots.pop(slot, None)
        if isinstance(staged, StagedWrite):
            staged.write.abort()

    def key_of(self, number: int) -> Key:
        """One of the keys."""
        return self.setup.key(number)


def _counts(counts: Counts | kudulite.WriteResult) -> tuple[int, int, int, int]:
    return counts.inserted, counts.updated, counts.deleted, counts.ignored
