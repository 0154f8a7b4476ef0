"""Taking a backup: choose the moment, plan pieces, run them anywhere, publish the manifest.

    with begin_backup(table, target) as job:     locks the set; plan.json
        for piece in job.pieces: piece.run()     in threads, or on the executors of a cluster
        backup = job.finish()                    manifest.json, put if absent

A backup that was interrupted goes on at its own moment, with the files that it has, when the next
one is begun; where that cannot be (its moment is behind the ancient history mark, another kind is
asked for, a newer backup is there) what is left of it is removed.

An incremental backup holds `Table.changes` since its parent. That is the whole difference unless
rows were purged, which no change tells: the rows at the parent's moment are counted first.

Invariants: (1) `moment` is settled, and the plan's partitioning covers every row at `moment`; (2)
the count of the rows at `moment` equals the parent's with its inserts and deletes, or nothing is
published.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from kudulite.backups.backup_plan import new_plan, plan_to_go_on_with, why_not_incremental
from kudulite.backups.backup_set import Backup, BackupSet
from kudulite.backups.format import (
    MANIFEST_NAME,
    PLAN_NAME,
    BackupHead,
    BackupPlan,
    ContentSum,
    PieceResult,
    PlannedPiece,
)
from kudulite.backups.locked_job import LockedJob
from kudulite.backups.piece import BackupPiece
from kudulite.catalog.planned_columns import planned_columns
from kudulite.catalog.read_request import ChangePlan, ReadRequest, RowPlan
from kudulite.client.client import open_table
from kudulite.client.scan_token import ChangeToken, ScanToken
from kudulite.client.table import Table
from kudulite.errors import (
    ConflictError,
    CorruptionError,
)
from kudulite.fs.file_system import check_length

THREAD_COUNT = min(4, os.cpu_count() or 1)


class BackupJob(LockedJob):
    """A backup that is being made; made by `begin_backup`, closed by leaving its `with`.

    `why_full` says why an automatic choice took a full backup, where there was one before it.
    """

    def __init__(
        self,
        backups: BackupSet,
        table: Table,
        plan: BackupPlan,
        held: ExitStack,
        *,
        is_resumed: bool,
        why: str,
    ) -> None:
        super().__init__(held)
        self._set = backups
        self._table = table
        self._plan = plan
        self.is_resumed = is_resumed
        self.why_full = why

    def __repr__(self) -> str:
        head = self._plan.head
        return f"<kudulite {head.kind} backup {head.id} of table {head.table_name!r}>"

    @property
    def kind(self) -> str:
        """`full` or `incremental`."""
        return self._plan.head.kind

    @property
    def moment(self) -> int:
        """The HybridTime that the backup shows."""
        return self._plan.head.moment

    @property
    def pieces(self) -> list[BackupPiece]:
        """The work: picklable pieces, each to be run at least once, by any process."""
        folder = str(self._set.folder / self._plan.head.id)
        return [self._piece(folder, *item) for item in enumerate(self._plan.pieces)]

    def run(self, report: Callable[[int, int], None] = lambda done, count: None) -> None:
        """Run all pieces in a few threads; `report` is told how many are done, of how many."""
        pieces = self.pieces
        with ThreadPoolExecutor(THREAD_COUNT, thread_name_prefix="kudulite-backup") as pool:
            futures = [pool.submit(piece.run) for piece in pieces]
            try:
                for done, future in enumerate(futures, 1):
                    future.result()
                    report(done, len(pieces))
            finally:
                for future in futures:
                    future.cancel()

    def finish(self) -> Backup:
        """Publish the manifest, after all pieces were run, and return the backup.

        Raises ConflictError when rows were purged meanwhile, StorageError, CorruptionError.
        """
        head, folder = self._plan.head, self._set.folder / self._plan.head.id
        results = [piece.result() for piece in self.pieces]
        files = tuple(result.file for result in results if result.file is not None)
        for file in files:
            check_length(folder / file.ref.name, file.ref)
        self._check_counts(results)
        backup = Backup(
            **vars(head),
            path=folder,
            files=files,
            content_hash=self._content_hash(results),
        )
        content = backup.encode()
        if not self._set.file_system.publish(folder / MANIFEST_NAME, content):
            raise ConflictError(f"{folder}: somebody else has just finished this backup")
        clean_folder(self._set, backup)
        return Backup.decode(content, folder)

    def _piece(self, folder: str, index: int, piece: PlannedPiece) -> BackupPiece:
        head, plan = self._plan.head, self._plan
        return BackupPiece(
            folder=folder,
            index=index,
            kind=piece.kind,
            token=_token(self._table, head, piece),
            column_ids=tuple(column.id for column in head.schema.columns),
            with_content=plan.has_content_hash and piece.kind == "rows",
            file_system=self._set.file_system,
        )

    def _check_counts(self, results: list[PieceResult]) -> None:
        head = self._plan.head
        files = [result.file for result in results if result.file is not None]
        if head.parent is None:
            found = sum(file.row_count for file in files)
        else:
            parent = self._set.read(head.parent)
            found = parent.row_count + sum(f.insert_count - f.delete_count for f in files)
        if found != head.row_count:
            raise ConflictError(
                f"backup {head.id} of table {head.table_name!r}: {found} rows were written or are"
                f" to be restored, and the table had {head.row_count}; rows were purged meanwhile:"
                " take another backup"
            )

    def _content_hash(self, results: list[PieceResult]) -> int | None:
        if not self._plan.has_content_hash:
            return None
        sums = [result.content for result in results if result.content is not None]
        total = sum(sums, ContentSum(0, 0))
        if total.row_count != self._plan.head.row_count:
            raise CorruptionError(
                f"backup {self._plan.head.id}: {total.row_count} rows were hashed, expected"
                f" {self._plan.head.row_count}"
            )
        return total.hash


def backup(
    table: Table | str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    full: bool | None = None,
    content_hash: bool = False,
) -> Backup:
    """Back a table up to the directory `target`, as it is now; see `begin_backup`."""
    with begin_backup(table, target, full=full, content_hash=content_hash) as job:
        job.run()
        return job.finish()


def begin_backup(
    table: Table | str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    full: bool | None = None,
    content_hash: bool = False,
) -> BackupJob:
    """Plan a backup of a table (or its folder) to the directory `target`, or go on with one.

    The first is full. With `full` None each later one is incremental where that can be, else full;
    False refuses what is not incremental. With `content_hash` the manifest has a hash of all rows,
    which an incremental backup reads the whole table for. An interrupted backup of the same kind
    goes on at its own moment.

    Raises UsageError where the newest backup is of another table (but with `full` True), and where
    an incremental one is asked for and cannot be: TimestampError when the ancient history mark has
    passed its parent. LockTimeoutError while another backup to `target` is under way.
    """
    if not isinstance(table, Table):
        table = open_table(table)
    backups = BackupSet(Path(target), table._store.environment.file_system)
    with ExitStack() as stack:
        lock = stack.enter_context(backups.lock())
        lock.announce(f"backup of {table.name!r}")
        parent = backups.newest()
        for path in backups.folders():
            if (path / MANIFEST_NAME).exists() and (path / PLAN_NAME).exists():
                clean_folder(backups, backups.read(path.name))
        why = why_not_incremental(table, backups, parent, full)
        if full or (parent is not None and why):
            parent = None
        plan = plan_to_go_on_with(table, backups, parent, content_hash)
        is_resumed = plan is not None
        if plan is None:
            plan = new_plan(table, parent, content_hash)
            _publish_plan(backups, plan)
        held = stack.pop_all()
        return BackupJob(backups, table, plan, held, is_resumed=is_resumed, why=why)


def _token(table: Table, head: BackupHead, piece: PlannedPiece) -> ScanToken | ChangeToken:
    """Return the token of a planned piece; it means the columns that the plan meant."""
    names, folder = tuple(head.schema.names), str(table.path)
    ids = planned_columns(head.schema, names, ())
    if piece.kind == "changes":
        changes = ReadRequest(names, start=head.start, at=head.moment)
        plan = ChangePlan(folder, head.table_id, changes, ids)
        return ChangeToken(
            plan, piece.size_bytes, piece.row_count, piece.tablet_ids, piece.lower, piece.upper
        )
    rows = RowPlan(folder, head.table_id, ReadRequest(names, at=head.moment), ids)
    return ScanToken(
        rows, piece.size_bytes, piece.row_count, piece.tablet_ids, piece.lower, piece.upper
    )


def _publish_plan(backups: BackupSet, plan: BackupPlan) -> None:
    folder = backups.folder / plan.head.id
    if (folder / MANIFEST_NAME).exists():
        raise ConflictError(
            f"{folder}: the table's newest moment is backed up already; nothing has changed since"
        )
    backups.file_system.make_directory(folder)
    backups.file_system.sync_directory(backups.folder)
    if not backups.file_system.publish(folder / PLAN_NAME, plan.encode()):
        raise ConflictError(f"{folder}: somebody else has just begun this backup")


def clean_folder(backups: BackupSet, backup: Backup) -> None:
    """Remove what a finished backup does not need: results, files of lost races, last the plan."""
    kept = {MANIFEST_NAME, *(file.ref.name for file in backup.files)}
    found = sorted(path for path in backup.path.iterdir() if path.name not in kept)
    for path in [*(p for p in found if p.name != PLAN_NAME), backup.path / PLAN_NAME]:
        backups.file_system.remove(path)
