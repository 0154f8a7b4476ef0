"""Runs a list of steps against a small table with a history, and the model of every version.

    ("rows", client, [(operation, key, values), …])        a session and its flush
    ("batch", client, operation, [(key, values), …], ignore_null)
    ("mixed", client, [(operation, key, values), …]), ("overwrite", client, [(key, values), …])
    ("stage", client, slot, operation, [[(operation, key, values), …], …])    tasks of a bulk write
    ("commit", slot), ("abort", slot)
    ("look", client, how, at), ("peek", client, how, at)   peek: reads that take no lock
    ("where", client, [(column, comparison, value), …], at), ("past", client)
    ("changes", client, how, start, end, images), ("history", client, key)
    ("refused", client, how, distance)         a moment before the mark
    ("plan", client, slot, how, at), ("read", slot)        a scan that is read later
    ("compact", client, kind, picks, {gap: [step, …]})     minor, minor_undo, major, merge, collect
    ("compact_all", client), ("purge", client, [key, …])
    ("flush", client), ("maintain", client), ("sweep", client), ("reopen", client)
    ("check", client), ("copy",)
    ("advance", milliseconds), ("add", client, name, type, nullable, default)
    ("rename", client, name, name), ("widen", client, name, choice), ("fix", client, name, mutable)
    ("default", client, name, value), ("retain", client, seconds), ("drop", client, name)
    ("renew", client, name, type, nullable, default)      drop, and add another of the name
    ("swap", client, name, name)               two columns change their names
    ("drop_range", client, place), ("add_range", client, place), ("forget", client)
    ("describe", client, number)               another owner and comment
    ("tag", client, name, at), ("untag", client, name), ("bad_tag", client), ("recall", client)
    ("paused", client, step, gap, [number, …], key)        a step that stands still in a gap

Keys are numbers of the setup's keys, values small integers (history_setup.py); `at` is None or
stands for one of the moments that are legal then. Steps whose column, range, tag or slot is not
there do nothing, so any part of a list is a list that can be run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import kudulite
from kudulite.chain.manifest import TabletEntry
from kudulite.client.table import Table
from kudulite.errors import ConflictError, KuduliteError, RowError, TimestampError
from kudulite.model.hybrid_time import LOGICAL_BITS
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.table.table_store import TableStore
from kudulite.tablet.maintenance_policy import (
    CollectHistory,
    CompactColumns,
    CompactDeltas,
    CompactRowSets,
    MaintenanceOperation,
)
from kudulite.upkeep.compaction import run_operation
from kudulite.upkeep.garbage_collection import collect_garbage
from tests.support.doubles.base_storage import LIBRARY
from tests.support.machines.history_alterations import AlterationSteps
from tests.support.machines.history_looks import LOOKS, ChangeSteps, LookSteps, PlannedScan
from tests.support.machines.history_pauses import PauseSteps, Rows, StagedWrite
from tests.support.machines.history_setup import SMALL_ROWS_MAX, HistoryState, Setup
from tests.support.machines.unanswered import Done, again, flush_once, once, take
from tests.support.oracle.table_model import UPDATES, Counts, Key, Row

Given = Sequence[tuple[str, int, Row]]
SECONDS_IN_A_GAP = 0.1


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
            operation = again(partial(getattr(table, f"new_{name}"), named))
            session.apply(operation)
            made.append(operation)
            rows.append((name, numbered))
        _, reasons = self.model.write_each(rows)
        flushed = flush_once(table._store, session, made)
        self.same(flushed.reasons, flushed.known(reasons), "row errors")
        if self.model.changed_keys():
            stamps = {
                self.model.key(row): flushed.timestamps[place]
                for place, (_, row) in enumerate(rows)
                if place in flushed.timestamps
            }
            self.model.commit(stamps.__getitem__)
            if not flushed.unanswered:
                newest = again(table.current_timestamp)
                self.same(max(stamps.values()), newest, "the session's timestamp")

    # -- batches

    def _batch(self, client: int, operation: str, given: Sequence, ignore_null: bool) -> None:
        """Rows of one operation, all or none."""
        named, rows = self._both([(operation, *row) for row in given])
        options = {"ignore_null": True} if ignore_null else {}
        write, data = getattr(self.tables[client], operation), self._arrow(named)
        self._write(client, rows, lambda: write(data, **options), **options)

    def _mixed(self, client: int, given: Given) -> None:
        """Rows of any operations, all or none."""
        named, rows = self._both(given)
        data = self._with_operations(named)
        self._write(client, rows, lambda: self.tables[client].apply(data))

    def _overwrite(self, client: int, given: Sequence) -> None:
        """Rows in the place of all that are there."""
        named, rows = self._both([("upsert", *row) for row in given])
        data = self._arrow(named)
        write = self.tables[client].overwrite
        self._write(client, rows, lambda: write(data), overwrite=True)

    def _both(self, given: Given) -> tuple[Rows, Rows]:
        """Rows for the table and for the model; all with the columns of all."""
        names = {name for _, _, values in given for name in values}
        if self.mutable_names.isdisjoint(names) and any(o in UPDATES for o, *_ in given):
            names = {*names, min(self.mutable_names)}
        named, numbered = [], []
        for operation, number, values in given:
            filled = values if operation.startswith("delete") else dict.fromkeys(names) | values
            row, model_row = self.row(operation, number, filled)
            named.append((operation, row))
            numbered.append((operation, model_row))
        return named, numbered

    def _arrow(self, rows: Rows) -> pa.Table:
        names = list(dict.fromkeys(name for _, row in rows for name in row))
        schema = again(lambda: self.tables[0].arrow_schema)
        fields = [schema.field(name) for name in names or self.setup.key_names]
        return pa.table(
            {f.name: pa.array([row.get(f.name) for _, row in rows], f.type) for f in fields}
        )

    def _with_operations(self, rows: Rows) -> pa.Table:
        # A delete leaves its cells null, which is no value for a NOT NULL column to check.
        full = next((row for name, row in rows if not name.startswith("delete")), {})
        filled = [(name, full | row if name.startswith("delete") else row) for name, row in rows]
        return self._arrow(filled).append_column("op", pa.array([name for name, _ in rows]))

    def _write(self, client: int, rows: Rows, write: Callable[[], Any], **options: Any) -> None:
        """Give a batch to model and table: both refuse it, or apply it with the same counts."""
        store = self.tables[client]._store
        try:
            counts = self.model.write(rows, **options)
        except RowError as expected:
            try:
                result = once(store, write)
            except RowError:
                return
            raise AssertionError(f"accepted: {result}; expected: {expected}") from None
        result = once(store, write)
        if not isinstance(result, Done):
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
                self.model.expect_covered(rows)
                if operation is not None:  # a mixed write is judged at its commit
                    left = self._not_ignored(staged, rows)
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
            if staged.parts[-1].rows is None:
                self.same(refused, None, "a task was accepted")
                staged.few = None
            if staged.few is not None:
                staged.few += rows
            staged.refused = staged.refused or refused
            staged.rows += left
        if staged.few is not None and len(staged.few) > SMALL_ROWS_MAX:
            staged.few = None
        self.slots[slot] = staged

    def _with_same_columns(self, operation: str | None, parts: Sequence[Given]) -> list[Given]:
        """The rows of all tasks with the columns of all."""
        names = {name for part in parts for _, _, values in part for name in values}
        if self.mutable_names.isdisjoint(names):
            names = {*names, min(self.mutable_names)}
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
        """The schema and tablets, which stay the same until a staged write is committed."""
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
                if staged.few is not None:
                    self.model.expect_covered(staged.few)
                elif staged.refused is not None:
                    raise staged.refused
                self.model.write(staged.rows if staged.few is None else staged.few, **options)
            except RowError as error:
                refused = error
        try:
            result = once(staged.write._store, lambda: staged.write.commit(staged.parts))
        except (RowError, ConflictError) as error:
            again(staged.write.abort)
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
            again(staged.write.abort)

    def key_of(self, number: int) -> Key:
        """One of the keys."""
        return self.setup.key(number)


def _counts(counts: Counts | kudulite.WriteResult) -> tuple[int, int, int, int]:
    return counts.inserted, counts.updated, counts.deleted, counts.ignored


STAGING_GRACE_SECONDS = 3600.0


class UpkeepSteps(HistoryState):
    """Steps without effect on any legal read."""

    def _flush(self, client: int) -> None:
        self.tables[client].flush()

    def _maintain(self, client: int) -> None:
        """All maintenance that is due, and a collection without grace; staged writes stay."""
        self.tables[client].maintain(0, STAGING_GRACE_SECONDS)

    def _sweep(self, client: int) -> None:
        """A collection without grace; staged writes stay."""
        collect_garbage(self.tables[client]._store, 0.0)

    def _advance(self, milliseconds: int) -> None:
        """Time passes."""
        self.clock.microseconds += milliseconds * 1000

    def _reopen(self, client: int) -> None:
        """Go on with a client that sees only the disk."""
        self.sessions.pop(client, None)
        self.clients[client] = self.new_client(client)
        self.tables[client] = self.clients[client].table("t")

    # -- tags

    def _tag(self, client: int, name: str, at: int | None) -> None:
        """Hold a moment past the retention."""
        if name in self.tags:
            return
        table, moment = self.tables[client], again(lambda: self.moment(at))
        tagged = once(table._store, lambda: table.tag(name, moment))
        timestamp = again(lambda: table.tags[name]) if isinstance(tagged, Done) else tagged
        self.tags[name] = timestamp
        if moment is not None:
            self.same(timestamp, moment, "moment of a tag")

    def _untag(self, client: int, name: str) -> None:
        """Let a moment go."""
        table = self.tables[client]
        if name in self.tags:
            once(table._store, lambda: table.delete_tag(name))
            del self.tags[name]
        self.same(again(lambda: dict(table.tags)), self.tags, "tags")

    def _bad_tag(self, client: int) -> None:
        """A moment before the mark cannot be held."""
        mark = self.settle_mark()
        try:
            self.tables[client].tag("bad", mark - 1 - (1 << LOGICAL_BITS))
        except TimestampError:
            return
        raise AssertionError(f"a tag before the mark {mark} was taken")


GAPS = ("read", "built", "carried", "locked", "published")
KINDS = ("minor", "minor_undo", "major", "merge", "collect")


@dataclass(frozen=True)
class Picks:
    """Which tablet, rowsets and files an operation is for, as numbers that fit any table."""

    tablet: int
    rowset: int
    first: int
    second: int


Step = tuple


class CompactionSteps(HistoryState):
    """Operations of upkeep on files, picked at random."""

    counted: Counter[str]
    gaps_open = 0  # of operations around the step

    def _compact(
        self, client: int, kind: str, picked: Sequence[int], hooks: Mapping[str, Sequence]
    ) -> None:
        """One operation; the steps of `hooks` are taken in its gaps, by name."""
        picks = Picks(*picked)
        entries = self.manifest.tablets
        entry = entries[picks.tablet % len(entries)]
        operation = self._operation(entry, kind, picks)
        if operation is None:
            return

        def hook(gap: str) -> None:
            # The operation would be done again with the steps.
            with LIBRARY.without_faults():
                self.gaps_open += 1
                self.run(hooks.get(gap, ()))
                self.gaps_open -= 1

        result = run_operation(self.tables[client]._store, entry.id, operation, hook)
        self.counted[f"{kind} published"] += result is not None

    def run(self, steps: Sequence) -> None:
        """Take steps; the machine's."""
        raise NotImplementedError

    def _operation(
        self, entry: TabletEntry, kind: str, picks: Picks
    ) -> MaintenanceOperation | None:
        """The operation of a kind that numbers stand for; None where the tablet has none."""
        superblock = self.store.tablet(entry).superblock
        metas = [meta for meta in superblock.rowsets if meta.delete_timestamp is None]
        if kind == "collect":
            return CollectHistory()
        if not metas:
            return None
        meta = metas[picks.rowset % len(metas)]
        if kind == "merge":
            # A bit for each rowset; all of them now and then.
            chosen = [m for place, m in enumerate(metas) if picks.first >> place % 16 & 1]
            return CompactRowSets(tuple(m.id for m in (chosen or metas)))
        if kind == "major":
            ids = [column.id for column in self.manifest.schema.value_columns]
            some = [i for place, i in enumerate(ids) if picks.first >> place % 16 & 1]
            return CompactColumns((meta.id,), tuple(some or ids))
        return self._joined_files(metas, picks, is_undo=kind == "minor_undo")

    def _joined_files(
        self, metas: Sequence[RowSetMeta], picks: Picks, *, is_undo: bool
    ) -> CompactDeltas | None:
        """Adjacent delta files of a rowset that has several."""
        counts = [(meta, len(meta.undo if is_undo else meta.redo)) for meta in metas]
        several = [(meta, count) for meta, count in counts if count > 1]
        if not several:
            return None
        meta, count = several[picks.rowset % len(several)]
        start = picks.first % (count - 1)
        stop = start + 2 + picks.second % (count - start - 1)
        return CompactDeltas((meta.id,), start, stop, is_undo)

    def _compact_all(self, client: int) -> None:
        """Table.compact."""
        self.tables[client].compact()

    def _purge(self, client: int, numbers: Sequence[int]) -> None:
        """Erase keys, now and in the past; of other keys nothing changes."""
        keys = {self.setup.key(number) for number in numbers}
        rows = [dict(zip(self.setup.key_names, key, strict=True)) for key in sorted(keys)]
        table = self.tables[client]
        if self.gaps_open:
            # The operation pins older files, and goes on when the purge has ceased to wait for it.
            hasty = replace(table._store.environment, lock_timeout_seconds=SECONDS_IN_A_GAP)
            table = Table(TableStore(table._store.folder, hasty))
        table.purge(rows)
        self.forget_purged(keys)

    def forget_purged(self, keys: set[Key]) -> None:
        """Let the model, and the scans that are planned, forget keys."""
        self.model.purge(keys)
        for planned in self.slots.values():
            if isinstance(planned, PlannedScan):
                planned.expected = {k: r for k, r in planned.expected.items() if k not in keys}


# Steps that find out themselves what a store has done that gives no answer; and those of which two
# parts cannot be told from each other then.
DECIDED = ("rows", "batch", "mixed", "overwrite", "commit", "abort", "tag", "untag")
DECIDED += ("add", "drop", "rename", "renew", "swap", "fix", "widen", "default", "retain")
DECIDED += ("drop_range", "add_range", "describe")
FAULTLESS = ("paused", "recall", "copy", "check")


class HistoryMachine(
    CompactionSteps, PauseSteps, WriteSteps, UpkeepSteps, AlterationSteps, LookSteps, ChangeSteps
):
    """A table, two clients of it, and the model that they must equal.

    `counted` says how often each step was taken, and how often an operation on files published.
    """

    def __init__(self, folder: Path, setup: Setup) -> None:
        super().__init__(folder, setup)
        self.counted = Counter()

    def run(self, steps: Iterable[Step]) -> None:
        """Take all steps; an error at the first that disagrees says which."""
        for number, (name, *arguments) in enumerate(steps):
            self.counted[name] += 1
            try:
                step = partial(getattr(self, f"_{name}"), *arguments)
                take(name, step, faultless=FAULTLESS, decided=DECIDED)
            except Exception as error:
                error.add_note(f"in step {number}: {(name, *arguments)}")
                raise

    def finish(self) -> None:
        """Look in every way now, and at every legal moment, by a client that knows nothing."""
        for slot in list(self.slots):
            self._read(slot)
            self._abort(slot)
        self._reopen(0)
        for how in LOOKS:
            self.look(self.tables[0], how, None)
        self.past(self.tables[0])
        self.compare_description(self.tables[0])
        self._check(0)


__all__ = ["HistoryMachine", "KuduliteError", "Step"]
