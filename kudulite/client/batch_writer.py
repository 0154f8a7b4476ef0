"""BatchWriter: one write of batches, through the log where it has few rows, else staged as files.

    batches ─ few rows ──── write_few        a commit in the table's log (writes/batch_commit.py)
            └ more, or an overwrite ──────── a bulk write: staged, then committed (bulk_write.py)

A write of few rows that was computed from rows of the table comes with a `Reread`, and computes
rows that have changed again in its turn.

**Threads**: any; a writer is immutable.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kudulite.client.bulk_write import Batches, BulkWrite, WriteResult, write_few
from kudulite.client.write_plan import WritePlan
from kudulite.errors import ConflictError
from kudulite.shown.progress import Progress
from kudulite.storage.new_files import NewFiles
from kudulite.table.memory_flush import flush_table
from kudulite.table.open_writes import begin_write
from kudulite.table.table_store import TableStore
from kudulite.table.write_state import WriteState
from kudulite.upkeep.garbage_collection import end_writes
from kudulite.writes.batch_pieces import few_rows, without_preimages
from kudulite.writes.commit import Reread
from kudulite.writes.stager import Stager


@dataclass(frozen=True)
class BatchWriter:
    """Writes batches to one table; `options` are those of `Table.new_bulk_write`."""

    store: TableStore

    def run(
        self,
        batches: Batches,
        total: int | None = None,
        change: Callable[[WriteState], WriteState] | None = None,
        reread: Reread | None = None,
        **options: Any,
    ) -> WriteResult:
        """Write batches, of `total` rows where that is known.

        `change` is made of the state of the write. With `reread`, a write of few rows has no
        conflicts with writes of rows.
        """
        planned = WritePlan.of(self.store, **options)
        rows_max = 0 if planned.overwrite else self.store.environment.small_write_rows_max
        batches = without_preimages(batches, planned.operation_column)
        few, batches = few_rows(batches, rows_max)
        if few is not None:
            result = self._write_few(few, planned, change, reread)
            if result is not None:
                return result
            batches = [few]
        write = self.begin(planned, is_large=True)
        return self.run_bulk(write if change is None else write.changed(change), batches, total)

    def _write_few(
        self,
        few: pa.Table,
        planned: WritePlan,
        change: Callable[[WriteState], WriteState] | None,
        reread: Reread | None,
    ) -> WriteResult | None:
        """Write few rows through the log; None where they need a bulk write.

        If the table was altered meanwhile, the rows are checked once more.
        """
        write_id = uuid.uuid4().hex
        for is_last in (False, True):
            base = self.store.chain.last_seen()
            if is_last or base.has_tablet_logs:
                base = self.store.upgraded()
            state = planned.state(self.store, base, write_id)
            state = state if change is None else change(state)
            stager = Stager(self.store, state, base, NewFiles(self.store.storage))
            try:
                return write_few(self.store, state, base, stager.checked(few), reread=reread)
            except ConflictError:
                if is_last or self.store.newest().schema == base.schema:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def begin(
        self, planned: WritePlan, owner: str | None = None, *, is_large: bool = False
    ) -> BulkWrite:
        """Begin a bulk write; if it `is_large`, on a version that has all rows of the log.

        Others would end the log for a write that may be small.
        """
        end_writes(self.store, owner=owner)
        if is_large:
            flush_table(self.store, has_looked=True)
        opened = begin_write(self.store, planned.name, owner)
        with ExitStack() as on_error:
            on_error.callback(opened.end)
            state = planned.state(self.store, self.store.newest(), opened.id, owner)
            on_error.pop_all()
        return BulkWrite(self.store, state, opened)

    def run_bulk(self, write: BulkWrite, batches: Batches, total: int | None = None) -> WriteResult:
        """Stage and commit the batches of a bulk write, which is aborted on an error."""
        try:
            with Progress(f"write to table {self.store.name!r}", total):
                return write.run(batches)
        except BaseException:
            write.abort()
            raise
