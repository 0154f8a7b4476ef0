"""A write in pieces, for those who spread it over processes: stage on workers, commit once.

    write = table.new_bulk_write(operation="upsert", columns=["id", "name"])
    parts = [write.stage(batches, task_index=i) for i, batches in enumerate(tasks)]
    result = write.commit(parts)

Every object here is picklable. Any number of attempts of a task may stage; only those handed to
`commit` count. `abort` leaves nothing behind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from kudulite.catalog.bulk_write import (
    StagedTask,
    WriteState,
    base_of,
    end_write,
    is_committed,
)
from kudulite.catalog.commit import Commit
from kudulite.catalog.environment import default_environment
from kudulite.catalog.maintenance_schedule import maintain_soon
from kudulite.catalog.stage import Stager
from kudulite.catalog.table_store import Environment, TableStore
from kudulite.errors import StorageError
from kudulite.model.schema import Schema
from kudulite.tablet.collapse import WriteCounts


@dataclass(frozen=True, kw_only=True)
class WriteResult(WriteCounts):
    """The outcome of a write: its row counts, and the HybridTime `timestamp` to read it at.

    `skipped` is true for a write whose application version was committed before.
    """

    timestamp: int
    version: int
    skipped: bool = False


class BulkWrite:
    """One write to one table, all or nothing; made by `Table.new_bulk_write`."""

    def __init__(self, folder: Path, state: WriteState, environment: Environment) -> None:
        self._folder = folder
        self._state = state
        self._environment = environment

    def __getstate__(self) -> dict[str, Any]:
        timeout = self._environment.lock_timeout_seconds
        return {"folder": self._folder, "state": self._state, "lock_timeout_seconds": timeout}

    def __setstate__(self, stored: dict[str, Any]) -> None:
        self._folder, self._state = stored["folder"], stored["state"]
        timeout = stored["lock_timeout_seconds"]
        self._environment = replace(default_environment(), lock_timeout_seconds=timeout)

    def __repr__(self) -> str:
        return f"<kudulite bulk write {self._state.write_id} to table {self._folder.name!r}>"

    def _stager(self) -> Stager:
        store = TableStore(self._folder, self._environment)
        return Stager(store, self._state, base_of(store, self._state))

    @property
    def schema(self) -> Schema:
        """The table's schema."""
        return self._stager().manifest.schema

    def stage(
        self, batches: Iterable[pa.RecordBatch | pa.Table], task_index: int = 0
    ) -> StagedTask:
        """Prepare the rows of one task; nothing is visible.

        Rows of a lower `task_index` count as earlier. Of a write whose application version was
        committed before they are read and left. Raises RowError for rows that the table
        cannot take, SchemaError for columns that do not fit, ConflictError after an abort.
        """
        stager = self._stager()
        if is_committed(self._state, stager.manifest):
            # Its rows may be refused now: what an insert has put there is there.
            for _ in batches:
                pass
            return StagedTask(self._state.write_id, task_index)
        return stager.stage(batches, task_index)

    def for_application(self, application_id: str, application_version: int) -> BulkWrite:
        """Return the write as that of an application's version, which is committed once only.

        For those who learn both when it has begun; see `Table.new_bulk_write`.
        """
        state = replace(
            self._state, application_id=application_id, application_version=application_version
        )
        return BulkWrite(self._folder, state, self._environment)

    @property
    def is_committed(self) -> bool:
        """Whether the write's application version, or a later one, is in the table by now."""
        return is_committed(self._state, TableStore(self._folder, self._environment).newest())

    def commit(self, tasks: Sequence[StagedTask]) -> WriteResult:
        """Publish all tasks at one timestamp. On any error the table is as it was."""
        stager = self._stager()
        result = Commit(stager.store, self._state, stager.manifest, tasks).run()
        with contextlib.suppress(StorageError):  # it is committed, whatever is left in staging
            self.abort()
        maintain_soon(stager.store, {tablet_id for task in tasks for tablet_id in task.tablet_ids})
        return WriteResult(
            **vars(result.counts),
            timestamp=result.timestamp,
            version=result.version,
            skipped=result.is_skipped,
        )

    def abort(self) -> None:
        """Remove everything that was staged; safe to call at any time, by any process."""
        end_write(TableStore(self._folder, self._environment), self._state)
