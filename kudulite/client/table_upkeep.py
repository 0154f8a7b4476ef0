"""TableUpkeep: looking after a table: flushing, compacting, cleaning up, checking, its figures."""

from __future__ import annotations

from collections.abc import Sequence

from kudulite.catalog.check import CheckReport, check_table
from kudulite.catalog.flush import flush_table
from kudulite.catalog.maintenance import (
    MaintenanceResult,
    compact_table,
    maintain_table,
    maintain_tablets,
)
from kudulite.catalog.statistics import TableStatistics, live_row_count, table_statistics
from kudulite.catalog.sweep import GRACE_SECONDS, STAGING_GRACE_SECONDS
from kudulite.catalog.table_store import TableStore


class TableUpkeep:
    """The part of `Table` that keeps it in good shape."""

    _store: TableStore

    @property
    def statistics(self) -> TableStatistics:
        """Figures of the newest version, and what reads pay for until the table is maintained."""
        return table_statistics(self._store)

    @property
    def live_row_count(self) -> int:
        """The number of rows now, from metadata; what `statistics` says, without its other work."""
        return live_row_count(self._store)

    @property
    def tablet_ids(self) -> list[str]:
        """The ids of the tablets, as `maintain` takes them."""
        return [entry.id for entry in self._store.newest().tablets]

    def flush(self) -> int:
        """Write what the logs hold to DiskRowSets; returns how many tablets had something.

        Rows are durable and visible without it; it keeps memory and logs short.
        """
        return flush_table(self._store)

    def compact(self) -> MaintenanceResult:
        """Bring the table to its best shape, whatever that rewrites; the past stays readable.

        After it the rowsets of a tablet do not overlap and base data holds every update. Readers
        and writers go on meanwhile. `maintain` does what is worth its cost instead, and removes
        the files that both leave behind. Raises LockTimeoutError where another maintainer does not
        end, StorageError, CorruptionError.
        """
        return compact_table(self._store)

    def maintain(
        self,
        grace_seconds: float = GRACE_SECONDS,
        staging_grace_seconds: float = STAGING_GRACE_SECONDS,
        *,
        budget_bytes: int | None = None,
        tablet_ids: Sequence[str] | None = None,
    ) -> MaintenanceResult:
        """Flush, compact what is worth it, drop history behind the retention, and sweep.

        Safe beside all readers, writers and other maintainers; it may be run at any time, and ends
        when nothing is worth its cost, or when files of `budget_bytes` were rewritten. Versions of
        the last `grace_seconds` keep their files, so that readers that are under way, on any
        machine, can end. What a write has staged stays until nothing was added to it for
        `staging_grace_seconds`.

        With `tablet_ids` only those are looked after, and nothing is swept: a piece of the work for
        who spreads it over machines. Raises UsageError for an unknown id, LockTimeoutError,
        StorageError, CorruptionError.
        """
        if tablet_ids is not None:
            return maintain_tablets(self._store, tablet_ids, budget_bytes=budget_bytes)
        return maintain_table(
            self._store,
            grace_seconds=grace_seconds,
            staging_grace_seconds=staging_grace_seconds,
            budget_bytes=budget_bytes,
        )

    def check(self) -> CheckReport:
        """Read the newest version whole and compare what its files say with each other.

        Problems are in the report: `table.check().problems`, or `.raise_if_bad()` to get them as a
        CorruptionError. Nothing is changed; memory is bounded by a row group.
        """
        return check_table(self._store)
