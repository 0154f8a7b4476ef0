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

One piece of a backup: reads a key range at the backup's moment, writes one Parquet file.

    token ─ batches ─ piece-00007-<uuid>.parquet (fsync) ─ piece-00007.json, put if absent

Any number of processes may run a piece, at once or one after the other: each writes a file of its
own, and whose piece-….json is first counts. Where a result is there and its file is as it says,
nothing is done: that is how a backup that was interrupted goes on.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kudulite.backups.backup_plan import new_plan, plan_to_go_on_with, why_not_incremental
from kudulite.backups.backup_set import Backup, BackupSet, LockedJob, check_data_file
from kudulite.backups.format import (
    MANIFEST_NAME,
    PLAN_NAME,
    BackupHead,
    BackupPlan,
    ContentSum,
    DataFile,
    PieceResult,
    PlannedPiece,
    batch_sum,
    content_sum,
)
from kudulite.basefile.base_data import has_repeats
from kudulite.client.client import open_table
from kudulite.client.table import Table
from kudulite.client.tokens import ChangeToken, ScanToken
from kudulite.errors import ConflictError, CorruptionError, StorageError
from kudulite.fs.file_system import FileSystem, check_length, read_file
from kudulite.table.read_request import ChangePlan, ReadRequest, RowPlan
from kudulite.table.scan_plan import planned_columns
from kudulite.table.table_store import default_environment

THREAD_COUNT = min(4, os.cpu_count() or 1)

CHANGE_TYPE, COMMIT_TIMESTAMP = "_change_type", "_commit_timestamp"
# Groups of 128 Ki rows take twice the time and a quarter more bytes: a dictionary for each of them.
_ROW_GROUP_ROWS = 1 << 20
_ROW_GROUP_BYTES = 128 << 20
_FIELD_ID = b"PARQUET:field_id"


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


@dataclass(frozen=True)
class BackupPiece:
    """A picklable piece of a backup: `run` it anywhere, as often as you like.

    `column_ids` are of the columns in the file, in order.
    """

    folder: str
    index: int
    kind: str
    token: ScanToken | ChangeToken
    column_ids: tuple[int, ...]
    with_content: bool
    file_system: FileSystem = field(
        default_factory=lambda: default_environment().file_system, repr=False
    )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "file_system"}

    def __setstate__(self, stored: dict[str, Any]) -> None:
        for name, value in stored.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "file_system", default_environment().file_system)

    @property
    def size_bytes(self) -> int:
        """What it reads, an estimate."""
        return self.token.size_bytes

    @property
    def result_path(self) -> Path:
        """Where its result is once it was run."""
        return Path(self.folder) / f"piece-{self.index:05d}.json"

    def run(self) -> None:
        """Do the work, unless it was done.

        Raises TimestampError when the ancient history mark has passed the backup's moment,
        ConflictError when the table or a column is gone, StorageError.
        """
        if self._is_done():
            return
        if self.kind == "content":
            result, path = PieceResult(None, content_sum(self.token.open())), None
        else:
            result, path = self._write()
        if not self.file_system.publish(self.result_path, result.encode()) and path is not None:
            self.file_system.remove(path)  # somebody else was first

    def result(self) -> PieceResult:
        """Return the result of a piece that was run. Raises StorageError, CorruptionError."""
        return PieceResult.decode(read_file(self.result_path), str(self.result_path))

    def _is_done(self) -> bool:
        if not self.result_path.exists():
            return False
        try:
            result = self.result()
            if result.file is not None:
                check_data_file(Path(self.folder), result.file)
            return True
        except (CorruptionError, StorageError):
            self.file_system.remove(self.result_path)
            return False

    def _write(self) -> tuple[PieceResult, Path | None]:
        path = Path(self.folder) / f"piece-{self.index:05d}-{uuid.uuid4().hex}.parquet"
        batches = iter(self.token.open())
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return PieceResult(None, ContentSum(0, 0) if self.with_content else None), None
        content, counts = ContentSum(0, 0), DataFileCounts()
        schema = self._file_schema(first.schema)
        with self.file_system.open_sink(path) as sink:
            with pq.ParquetWriter(
                pa.PythonFile(sink, "w"),
                schema,
                compression="zstd",
                use_dictionary=_with_dictionary(first),
                write_page_checksum=True,
                store_decimal_as_integer=True,
            ) as writer:
                for batch in _larger(first, batches):
                    counts = counts.plus(batch, self.kind)
                    if self.with_content:
                        content += batch_sum(batch)
                    writer.write_batch(batch.cast(schema), row_group_size=batch.num_rows)
            ref = sink.finish()
        file = DataFile(ref, counts.rows, counts.inserts, counts.deletes)
        return PieceResult(file, content if self.with_content else None), path

    def _file_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema with column ids as Parquet field ids."""
        fields = list(schema)
        for place, column_id in enumerate(self.column_ids):
            ids = {_FIELD_ID: str(column_id).encode()}
            fields[place] = fields[place].with_metadata(ids)
        return pa.schema(fields)


@dataclass(frozen=True)
class DataFileCounts:
    """Rows written so far; of changes also how many are inserts and deletes."""

    rows: int = 0
    inserts: int = 0
    deletes: int = 0

    def plus(self, batch: pa.RecordBatch, kind: str) -> DataFileCounts:
        """Return the counts with those of a batch."""
        counted = replace(self, rows=self.rows + batch.num_rows)
        if kind != "changes":
            return counted
        types = batch.column(CHANGE_TYPE)
        return replace(
            counted,
            inserts=self.inserts + _count(types, "insert"),
            deletes=self.deletes + _count(types, "delete"),
        )


def _with_dictionary(sample: pa.RecordBatch) -> list[str]:
    """Return the columns for which a dictionary pays; for others it is built and thrown away."""
    return [
        name
        for name, column in zip(sample.schema.names, sample.columns, strict=True)
        if not pa.types.is_nested(column.type) and has_repeats(pa.chunked_array([column]))
    ]


def _count(types: pa.Array, name: str) -> int:
    return pc.sum(pc.equal(types, name)).as_py() or 0


def _larger(first: pa.RecordBatch, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches of a row group's size, joined where they are small, so that groups are few."""
    held, count, size = [first], first.num_rows, first.nbytes
    for batch in batches:
        if count >= _ROW_GROUP_ROWS or size >= _ROW_GROUP_BYTES:
            yield pa.concat_batches(held)
            held, count, size = [], 0, 0
        held.append(batch)
        count, size = count + batch.num_rows, size + batch.nbytes
    yield pa.concat_batches(held)
