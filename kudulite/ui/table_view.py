"""The content of the pages of one table: columns, tablets, figures, versions, upkeep, checks.

Each part is read by itself: a part that cannot be read is its error, and the others are shown.

**Threads**: any.
"""

from __future__ import annotations

from dataclasses import dataclass

from kudulite.backups.backup_set import Backup, list_backups, verify_backups
from kudulite.chain.manifest import TableVersion
from kudulite.client.table import Table, store_of
from kudulite.errors import CorruptionError, KuduliteError
from kudulite.model.encoded_key import decode_key
from kudulite.model.hybrid_time import Timestamp
from kudulite.model.schema import Column, Schema
from kudulite.table.metrics import TableMetrics
from kudulite.table.present import read_tablets
from kudulite.tablet.maintenance_policy import ScoredOperation
from kudulite.ui.directory_view import BackupPlace
from kudulite.ui.open_directory import read_or_error
from kudulite.upkeep.assessment import Finding, assess
from kudulite.upkeep.check import CheckReport
from kudulite.upkeep.layout import TabletLayout, tablet_layout
from kudulite.upkeep.maintenance import next_operations
from kudulite.upkeep.statistics import TableStatistics

# Why maintenance does an operation, by its name in the list of versions.
REASONS = {
    "history collection": "removes files that only moments older than the retention need",
    "merging compaction": "merges rowsets that overlap or are small, so that reads look into fewer",
    "major delta compaction": "makes updates base data, so that scans need not apply them",
    "minor delta compaction": "joins delta files, so that scans open fewer",
}


@dataclass(frozen=True)
class TabletView:
    """One tablet: its partition, its counts, and its rowsets over its keys.

    `share` is its part of the table's rows, from 0 to 1. `key_texts` has the first and the last key
    of each rowset as people read it, by the rowset's id.
    """

    number: int
    id: str
    partition: str
    row_count: int
    share: float
    unflushed_row_count: int
    byte_count: int
    layout: TabletLayout
    key_texts: dict[str, tuple[str, str]]


@dataclass(frozen=True)
class TabletsView:
    """The tablets of a table, and the ranges that were dropped and whose past is readable."""

    tablets: tuple[TabletView, ...]
    dropped: tuple[str, ...]

    @property
    def skew(self) -> float:
        """How many times the rows of an average tablet the largest one has; 1 is even."""
        counts = [tablet.row_count for tablet in self.tablets]
        total = sum(counts)
        return max(counts) * len(counts) / total if total else 1.0


@dataclass(frozen=True)
class TableView:
    """One table. A part that cannot be read is the error that says why."""

    name: str
    path: str
    id: str
    owner: str
    comment: str
    version: int
    columns: tuple[Column, ...]
    key_names: tuple[str, ...]
    partitions: tuple[str, ...]
    retention_seconds: int
    statistics: TableStatistics | KuduliteError
    findings: tuple[Finding, ...]
    tablets: TabletsView | KuduliteError
    versions: list[TableVersion] | KuduliteError
    tags: dict[str, Timestamp] | KuduliteError


def table_view(table: Table) -> TableView:
    """Return the view of a table. Raises CorruptionError, StorageError, TableNotFoundError."""
    schema = table.schema
    statistics = read_or_error(lambda: table.statistics)
    return TableView(
        name=table.name,
        path=str(table.path),
        id=table.id,
        owner=table.owner,
        comment=table.comment,
        version=table.version,
        columns=tuple(schema.columns),
        key_names=tuple(schema.key_names),
        partitions=tuple(table.partition_schema.describe_all()),
        retention_seconds=table.history_retention,
        statistics=statistics,
        findings=findings_of(table, statistics),
        tablets=read_or_error(lambda: tablets_view(table)),
        versions=read_or_error(table.versions),
        tags=read_or_error(lambda: table.tags),
    )


def findings_of(table: Table, statistics: TableStatistics | KuduliteError) -> tuple[Finding, ...]:
    """Return how the figures of a table are; none if they cannot be read."""
    if isinstance(statistics, KuduliteError):
        return ()
    return tuple(assess(statistics, str(table.path)))


def tablets_view(table: Table) -> TabletsView:
    """Return the tablets of a table, all of one version. Raises CorruptionError, StorageError."""
    (manifest, _, _), tablets = read_tablets(store_of(table))
    total = sum(tablet.live_row_count for tablet in tablets)
    schema = manifest.schema
    views = []
    for number, (entry, tablet) in enumerate(zip(manifest.tablets, tablets, strict=True)):
        metas, row_count = tablet.superblock.rowsets, tablet.live_row_count
        views.append(
            TabletView(
                number=number,
                id=entry.id,
                partition=manifest.partition.describe(entry.partition),
                row_count=row_count,
                share=row_count / total if total else 0.0,
                unflushed_row_count=tablet.memory_row_count,
                byte_count=entry.bytes_on_disk,
                layout=tablet_layout(entry.id, metas, tablet.memory_row_count, row_count),
                key_texts={
                    meta.id: (key_text(meta.key_min, schema), key_text(meta.key_max, schema))
                    for meta in metas
                },
            )
        )
    dropped = tuple(
        f"{manifest.partition.of_range(each.range).describe_range(0)}, dropped at"
        f" {Timestamp(each.timestamp)}"
        for each in manifest.dropped
    )
    return TabletsView(tuple(views), dropped)


def key_text(key: bytes, schema: Schema) -> str:
    """Return an encoded key as people read it; as hexadecimal digits if it is damaged."""
    try:
        values = decode_key(key, [column.type for column in schema.key_columns])
    except (CorruptionError, ValueError, OverflowError):
        return key.hex()
    return ", ".join(str(value) for value in values)


@dataclass(frozen=True)
class UpkeepView:
    """Upkeep of a table: what would run next, and what has run, the newest first.

    `waiting` are pairs of a tablet's id and an operation. `metrics` are of this process.
    """

    statistics: TableStatistics | KuduliteError
    findings: tuple[Finding, ...]
    waiting: list[tuple[str, ScoredOperation]] | KuduliteError
    performed: list[TableVersion] | KuduliteError
    metrics: TableMetrics


def waiting_operations(table: Table) -> list[tuple[str, ScoredOperation]] | KuduliteError:
    """Return what maintenance would begin with in each tablet; nothing is run."""
    return read_or_error(lambda: next_operations(store_of(table)))


def upkeep_view(table: Table) -> UpkeepView:
    """Return the upkeep of a table; nothing is run.

    Raises CorruptionError, StorageError, TableNotFoundError if no part of it can be read.
    """
    store_of(table).newest()
    statistics = read_or_error(lambda: table.statistics)

    def performed() -> list[TableVersion]:
        operations = {*REASONS, "flush", "memory flush"}
        return [each for each in table.versions() if each.operation in operations]

    return UpkeepView(
        statistics,
        findings_of(table, statistics),
        waiting_operations(table),
        read_or_error(performed),
        table.metrics,
    )


@dataclass(frozen=True)
class ChecksView:
    """The backups of a table, and what a check of them and of the table has found, if asked for.

    `place` is None if no place of backups was given. `problems` has those of each damaged backup.
    """

    place: str | None
    backups: list[Backup] | KuduliteError
    report: CheckReport | KuduliteError | None = None
    problems: dict[str, list[str]] | KuduliteError | None = None


def checks_view(table: Table, backups: BackupPlace | None, *, run: str) -> ChecksView:
    """Return the backups of a table; with `run` "table" or "backups", read and check all files."""
    report = read_or_error(table.check) if run == "table" else None
    if backups is None:
        return ChecksView(None, [], report)
    place, options = backups.of(table.name), backups.storage_options
    found = read_or_error(lambda: list_backups(place, storage_options=options))
    problems = None
    if run == "backups":
        problems = read_or_error(lambda: verify_backups(place, storage_options=options))
    return ChecksView(place, found, report, problems)
