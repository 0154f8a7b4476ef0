"""The content of the page of a directory: a summary of each table, those that need a person first.

A table that cannot be read is a summary with a problem, and no other table is missing for it. A
table that was deleted meanwhile is left out.

**Threads**: any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kudulite.backups.backup_set import newest_backup
from kudulite.chain.folder import SoftDeletedTable
from kudulite.client.table import Table
from kudulite.errors import KuduliteError, TableNotFoundError
from kudulite.model.hybrid_time import Timestamp
from kudulite.shown.openmetrics import openmetrics
from kudulite.ui.open_directory import OpenDirectory, read_or_error, what_to_do
from kudulite.upkeep.assessment import Finding, Level, assess, worst
from kudulite.upkeep.statistics import TableStatistics, statistics_families

# The states of a table, from the one that needs a person most.
DAMAGED = "damaged"
STATES = (DAMAGED, str(Level.ACT), str(Level.WATCH), str(Level.GOOD))


@dataclass(frozen=True)
class BackupPlace:
    """The directory of backup sets, `address`/TABLE for each table, and how it is reached."""

    address: str
    storage_options: Mapping[str, str] = field(default_factory=dict)

    def of(self, table_name: str) -> str:
        """Return the address of the backup set of a table."""
        return f"{self.address.rstrip('/')}/{table_name}"


@dataclass(frozen=True)
class TableSummary:
    """One table in short; `statistics` is None if it cannot be read.

    `problem` says what is wrong with it or with its backups, and `remedy` what to do about it.
    `backup` is the moment of its newest backup, None without one.
    """

    name: str
    state: str
    problem: str = ""
    statistics: TableStatistics | None = None
    findings: tuple[Finding, ...] = ()
    comment: str = ""
    backup: Timestamp | None = None
    remedy: str = ""

    @property
    def advice(self) -> list[Finding]:
        """The figures that are not good, the worst first."""
        found = [each for each in self.findings if each.level != Level.GOOD]
        return sorted(found, key=lambda each: STATES.index(each.level))


@dataclass(frozen=True)
class DirectoryView:
    """The tables of a directory; `has_backups` says whether their backups were looked for."""

    place: str
    tables: tuple[TableSummary, ...]
    soft_deleted: tuple[SoftDeletedTable, ...]
    has_backups: bool

    def total(self, figure: str) -> int:
        """Return the sum of a figure over all tables that can be read."""
        found = (each.statistics for each in self.tables)
        return sum(getattr(statistics, figure) for statistics in found if statistics is not None)

    def count(self, state: str) -> int:
        """Return how many tables are in a state."""
        return sum(each.state == state for each in self.tables)


def directory_view(directory: OpenDirectory, backups: BackupPlace | None) -> DirectoryView:
    """Return the view of a directory. Raises StorageError if it cannot be listed."""
    found = [
        summary
        for name, error in directory.listed().items()
        if (summary := _summary(directory, name, error, backups)) is not None
    ]
    found.sort(key=lambda each: (STATES.index(each.state), each.name))
    deleted = read_or_error(directory.client.list_soft_deleted_tables)
    return DirectoryView(
        str(directory.root),
        tuple(found),
        () if isinstance(deleted, KuduliteError) else tuple(deleted),
        backups is not None,
    )


def _summary(
    directory: OpenDirectory, name: str, error: KuduliteError | None, backups: BackupPlace | None
) -> TableSummary | None:
    """Return the summary of a table, None if it was deleted since the directory was listed."""
    if error is not None:
        return _damaged(name, error)
    try:
        found = read_or_error(lambda: _summary_of(directory.client.table(name), backups))
    except TableNotFoundError:
        return None
    if isinstance(found, KuduliteError):
        return _damaged(name, found)
    return found


def _damaged(name: str, error: KuduliteError) -> TableSummary:
    return TableSummary(name, DAMAGED, str(error), remedy=what_to_do(error))


def _summary_of(table: Table, backups: BackupPlace | None) -> TableSummary:
    statistics = table.statistics
    findings = assess(statistics, str(table.path))
    backup = None if backups is None else read_or_error(lambda: _newest_backup(table, backups))
    state, problem = str(worst(findings)), ""
    if isinstance(backup, KuduliteError):
        state, problem, backup = DAMAGED, f"its newest backup cannot be read: {backup}", None
    elif backups is not None and backup is None:
        state = min(state, str(Level.WATCH), key=STATES.index)
        problem = f"no backup in {backups.of(table.name)}"
    return TableSummary(
        table.name, state, problem, statistics, tuple(findings), table.comment, backup
    )


def _newest_backup(table: Table, backups: BackupPlace) -> Timestamp | None:
    place = backups.of(table.name)
    newest = newest_backup(place, storage_options=backups.storage_options)
    return newest.moment if newest is not None and newest.table_id == table.id else None


def directory_metrics(directory: OpenDirectory) -> str:
    """Return the statistics of all tables as OpenMetrics text. Raises StorageError."""
    tables = []
    for summary in directory_view(directory, None).tables:
        labels = {"table": summary.name, "path": str(directory.root / summary.name)}
        tables.append((labels, summary.statistics))
    return openmetrics(statistics_families(tables))
