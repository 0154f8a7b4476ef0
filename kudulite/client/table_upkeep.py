"""TableUpkeep: looking after a table: flushing, cleaning up, checking, and its figures."""

from __future__ import annotations

from dataclasses import dataclass

from kudulite.catalog.check import CheckReport, check_table
from kudulite.catalog.flush import flush_table
from kudulite.catalog.sweep import (
    GRACE_SECONDS,
    STAGING_GRACE_SECONDS,
    SweepResult,
    sweep,
)
from kudulite.catalog.table_store import TableStore
from kudulite.catalog.wal_tail import read_tablet


@dataclass(frozen=True)
class TableStatistics:
    """Figures of one version of a table, from metadata alone; bytes are on disk."""

    version: int
    tablet_count: int
    live_row_count: int
    rowset_count: int
    redo_file_count: int
    bytes_on_disk: int


class TableUpkeep:
    """The part of `Table` that keeps it in good shape."""

    _store: TableStore

    @property
    def statistics(self) -> TableStatistics:
        """Figures of the newest version."""
        manifest = self._store.newest()
        tablets = [read_tablet(self._store, entry) for entry in manifest.tablets]
        disk = [rowset.meta for tablet in tablets for rowset in tablet.disk_rowsets]
        rowsets = [meta for meta in disk if meta.delete_timestamp is None]
        return TableStatistics(
            version=manifest.version,
            tablet_count=len(tablets),
            live_row_count=sum(tablet.live_row_count for tablet in tablets),
            rowset_count=len(rowsets),
            redo_file_count=sum(len(meta.redo) for meta in rowsets),
            bytes_on_disk=sum(entry.bytes_on_disk for entry in manifest.tablets),
        )

    def flush(self) -> int:
        """Write what the logs hold to DiskRowSets; returns how many tablets had something.

        Rows are durable and visible without it; it keeps memory and logs short.
        """
        return flush_table(self._store)

    def maintain(
        self,
        grace_seconds: float = GRACE_SECONDS,
        staging_grace_seconds: float = STAGING_GRACE_SECONDS,
    ) -> SweepResult:
        """Remove files that were superseded or abandoned longer than the grace time ago.

        Safe beside all readers and writers. Versions of the last `grace_seconds` keep their files,
        so that readers that are under way, on any machine, can end. What a write has staged stays
        until nothing was added to it for `staging_grace_seconds`.
        """
        return sweep(self._store, grace_seconds, staging_grace_seconds)

    def check(self) -> CheckReport:
        """Read the newest version whole and compare what its files say with each other.

        Problems are in the report: `table.check().problems`, or `.raise_if_bad()` to get them as a
        CorruptionError. Nothing is changed; memory is bounded by a row group.
        """
        return check_table(self._store)
