"""Taking a backup: choose the moment, plan pieces, run them anywhere, publish the manifest.

    with begin_backup(table, target) as job:     locks the set; plan.json
        for piece in job.pieces: piece.run()     in threads, or on the executors of a cluster
        backup = job.finish()                    manifest.json, put if absent

A piece reads a key range at the backup's moment and writes one Parquet file:

    token ─ batches ─ piece-00007-<uuid>.parquet (fsync) ─ piece-00007.json, put if absent

Several processes may run the same piece, at once or one after the other. Each writes a file of its
own, and the first piece-….json counts. So two jobs may run the same plan (backup_set.py). A piece
that has a result with an intact file does nothing, so an interrupted backup continues at its own
moment with the files that it has. The next backup continues it if it can. It cannot if the ancient
history mark has passed the moment, if another kind is asked for, or if there is a newer backup;
then the unfinished one is removed.

An incremental backup holds `Table.changes` since its parent. Changes do not include purged rows, so
the rows at the parent's moment are counted first.

**Invariants**: (1) the safe timestamp has reached `moment`, and the plan's partitioning covers
every row at `moment`; (2) a backup is published only if the number of rows at `moment` equals the
parent's number with the inserts and deletes of the increment; (3) a data file is only removed when
no manifest can name it any more: there is one without it, or the backup was given up.

**Threads**: one thread uses a job; pieces run in any thread or process.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kudulite.backups.backup_plan import new_plan, plan_to_continue, why_not_incremental
from kudulite.backups.backup_set import Backup, BackupSet, LockedJob, check_data_file
from kudulite.backups.format import (
    MANIFEST_NAME,
    PLAN_NAME,
    BackupHead,
    ContentSum,
    DataFile,
    PieceResult,
    PlannedPiece,
    batch_sum,
    content_sum,
)
from kudulite.basefile.column_storage import has_repeats
from kudulite.chain.folder import has_table_files
from kudulite.client.client import open_table
from kudulite.client.table import Table, store_of
from kudulite.errors import ConflictError, CorruptionError, NotFoundError, StorageError, UsageError
from kudulite.model.hybrid_time import Timestamp
from kudulite.reads.tokens import ChangeToken, ScanToken
from kudulite.shown.progress import Progress
from kudulite.storage.address import parse_address
from kudulite.storage.storage import Storage, as_path, check_length
from kudulite.table.background_work import in_threads
from kudulite.table.environment import environment_beside
from kudulite.table.read_request import ChangePlan, ReadRequest, RowPlan
from kudulite.table.scan_plan import planned_columns

CHANGE_TYPE = "_change_type"
# With groups of 128 Ki rows, each with its dictionaries, a backup takes twice the time and has a
# quarter more bytes.
_ROW_GROUP_ROWS = 1 << 20
_ROW_GROUP_BYTES = 128 << 20
_FIELD_ID = b"PARQUET:field_id"


class BackupJob(LockedJob):
    """A backup in progress; made by `begin_backup`, closed by leaving its `with` block.

    `is_resumed` says whether it continues an interrupted backup. `why_full` is the reason for an
    automatic full backup after an earlier one, else empty.
    """

    def __init__(
        self, table: Table, backups: BackupSet, *, full: bool | None, content_hash: bool
    ) -> None:
        self._table = table
        self._set = backups
        self._full, self._with_content = full, content_hash
        announcement = f"backup of {table.name!r}"
        super().__init__(self._set.folder, self._set.storage, announcement)

    def _begin(self) -> None:
        table, backups = self._table, self._set
        backups.clean()
        parent = backups.newest()
        self.why_full = why_not_incremental(table, backups, parent, self._full)
        if self._full or (parent is not None and self.why_full):
            parent = None
        resumed = plan_to_continue(
            table, backups, parent, content_hash=self._with_content, is_alone=self._is_alone
        )
        self.is_resumed = resumed is not None
        self._plan = resumed or new_plan(table, parent, self._with_content)
        if resumed is None:
            self._publish_plan()

    def _publish_plan(self) -> None:
        plan, storage = self._plan, self._set.storage
        folder = self._set.folder / plan.head.id
        if storage.exists(folder / MANIFEST_NAME):
            raise ConflictError(
                f"{folder}: this backup exists, and the table has not changed since then"
            )
        storage.make_folder(folder)
        storage.sync([self._set.folder])
        if not storage.put_if_absent(folder / PLAN_NAME, plan.encode()):
            raise ConflictError(f"{folder}: another process has just begun this backup")

    def __repr__(self) -> str:
        head = self._plan.head
        return f"<kudulite {head.kind} backup {head.id} of table {head.table_name!r}>"

    @property
    def kind(self) -> str:
        """Return `full` or `incremental`."""
        return self._plan.head.kind

    @property
    def moment(self) -> Timestamp:
        """Return the HybridTime of the rows in the backup."""
        return self._plan.head.moment

    @property
    def pieces(self) -> list[BackupPiece]:
        """Return the picklable pieces of the work. Run each at least once, in any process."""
        return [self._piece(*item) for item in enumerate(self._plan.pieces)]

    def run(self, report: Callable[[int, int], None] = lambda done, count: None) -> None:
        """Run all pieces in a few threads; `report` gets the number of finished and of all."""
        pieces = self.pieces
        text = f"backup of table {self._table.name!r}"
        with Progress(text, len(pieces), "pieces") as progress:

            def finished(done: int) -> None:
                progress.report(done, len(pieces))
                report(done, len(pieces))

            in_threads("backup", BackupPiece.run, pieces, report=finished)

    def finish(self) -> Backup:
        """Publish the manifest after all pieces were run, and return the backup.

        Without locks another process may have published it. Raises ConflictError if rows were
        purged meanwhile, and if another backup has given this one up; StorageError,
        CorruptionError.
        """
        name = self._plan.head.id
        if self._set.ended(name) is None:
            try:
                self._publish()
            except StorageError:  # perhaps of a file that was removed with its backup
                if self._set.ended(name) is None:
                    raise
        backup = self._set.ended(name)
        if backup is None:
            raise NotFoundError(f"{self._set.folder / name}: its manifest was just removed")
        self._set.clean_folder(backup.path)
        return backup

    def _publish(self) -> None:
        """Put the manifest if there is none."""
        head, folder = self._plan.head, self._set.folder / self._plan.head.id
        storage = self._set.storage
        results = storage.side_by_side(BackupPiece.result, self.pieces)
        files = tuple(result.file for result in results if result.file is not None)

        def check(file: DataFile) -> None:
            check_length(self._set.storage, folder / file.ref.name, file.ref)

        storage.side_by_side(check, files)
        self._check_counts(results)
        backup = Backup(
            **vars(head),
            path=folder,
            files=files,
            content_hash=self._content_hash(results),
        )
        storage.put_if_absent(folder / MANIFEST_NAME, backup.encode())

    def _piece(self, index: int, piece: PlannedPiece) -> BackupPiece:
        head = self._plan.head
        return BackupPiece(
            folder=str(self._set.folder / head.id),
            index=index,
            kind=piece.kind,
            token=_token(self._table, head, piece),
            column_ids=tuple(column.id for column in head.schema.columns),
            with_content=self._plan.has_content_hash and piece.kind == "rows",
            storage=self._set.storage,
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
                f"backup {head.id} of table {head.table_name!r}: a restore would give {found} rows,"
                f" expected {head.row_count}; rows were purged meanwhile: take another backup"
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
    table: Table | str | PathLike[str],
    target: str | PathLike[str],
    *,
    full: bool | None = None,
    content_hash: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> Backup:
    """Back up a table as it is now to `target`; see `begin_backup`."""
    with begin_backup(
        table, target, full=full, content_hash=content_hash, storage_options=storage_options
    ) as job:
        job.run()
        return job.finish()


def begin_backup(
    table: Table | str | PathLike[str],
    target: str | PathLike[str],
    *,
    full: bool | None = None,
    content_hash: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> BackupJob:
    """Plan a backup of a table (or its folder) to `target`, or continue one.

    `target` is an address as in `connect`, of any store, with the `storage_options` of that store.
    A table whose own address needs options is opened with `open_table` and given as a Table.

    The first backup is full. With `full` None each later one is incremental if possible, else full;
    with `full` False it is incremental or refused. With `content_hash` the manifest has a hash of
    all rows, for which an incremental backup reads the whole table. An interrupted backup of the
    same kind continues at its own moment.

    Raises UsageError if the newest backup is of another table (unless `full` is True). With `full`
    False, raises TimestampError if the ancient history mark has passed the parent, NotFoundError
    without a parent, ConflictError for other reasons. Raises LockTimeoutError while another backup
    to a directory is in progress. An object store has no locks: there, a backup of the same kind
    that is in progress is continued by both processes, and one of another kind is given up.
    """
    if not isinstance(table, Table):
        table = open_table(table)
    address = parse_address(target, storage_options)
    storage = environment_beside(store_of(table).environment, address.storage).storage
    backups = BackupSet(address.path, storage)
    if has_table_files(backups.storage, backups.folder):
        raise UsageError(f"{backups.folder} is a table; give a place for its backups outside it")
    return BackupJob(table, backups, full=full, content_hash=content_hash)


def _token(table: Table, head: BackupHead, piece: PlannedPiece) -> ScanToken | ChangeToken:
    """Return the token of a planned piece, with the columns of the planned schema."""
    names, folder = tuple(head.schema.names), str(table.path)
    address = store_of(table).storage.address
    ids = planned_columns(head.schema, names, ())
    place = (piece.size_bytes, piece.row_count, piece.tablet_ids, piece.lower, piece.upper)
    if piece.kind == "changes":
        window = ReadRequest(names, start=head.start, at=head.moment)
        return ChangeToken(ChangePlan(folder, head.table_id, window, ids, address), *place)
    rows = ReadRequest(names, at=head.moment)
    return ScanToken(RowPlan(folder, head.table_id, rows, ids, address), *place)


@dataclass(frozen=True)
class BackupPiece:
    """A picklable piece of a backup; `run` may be called in any process and repeatedly.

    `column_ids` are the ids of the file's columns, in order.
    """

    folder: str
    index: int
    kind: str
    token: ScanToken | ChangeToken
    column_ids: tuple[int, ...]
    with_content: bool
    storage: Storage = field(repr=False)

    @property
    def size_bytes(self) -> int:
        """Return an estimate of the bytes that the piece reads."""
        return self.token.size_bytes

    @property
    def result_path(self) -> Path:
        """Return the path of the result file, which `run` writes."""
        return as_path(self.folder) / f"piece-{self.index:05d}.json"

    def run(self) -> None:
        """Do the work, unless there is a result, or the backup has ended.

        Raises TimestampError if the ancient history mark has passed the backup's moment,
        ConflictError if the table or a column was deleted, StorageError.
        """
        if self._is_done():
            return
        if self.kind == "content":
            result = PieceResult(None, content_sum(self.token.open()))
        else:
            result = self._write()
        # If another process was first, `finish` removes the file.
        self.storage.put_if_absent(self.result_path, result.encode())

    def result(self) -> PieceResult:
        """Return the result, after `run`. Raises StorageError, CorruptionError."""
        return PieceResult.decode(self.storage.read(self.result_path), str(self.result_path))

    def _is_done(self) -> bool:
        if self.storage.exists(self.result_path.with_name(MANIFEST_NAME)):
            return True
        if not self.storage.exists(self.result_path):
            return False
        try:
            result = self.result()
            if result.file is not None:
                check_data_file(self.storage, as_path(self.folder), result.file)
            return True
        except (CorruptionError, StorageError):
            self.storage.delete(self.result_path)
            return False

    def _write(self) -> PieceResult:
        path = as_path(self.folder) / f"piece-{self.index:05d}-{uuid.uuid4().hex}.parquet"
        batches = iter(self.token.open())
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return PieceResult(None, ContentSum(0, 0) if self.with_content else None)
        content, kinds, row_count = ContentSum(0, 0), Counter[str](), 0
        schema = self._file_schema(first.schema)
        with self.storage.open_sink(path) as sink:
            with pq.ParquetWriter(
                pa.PythonFile(sink, "w"),
                schema,
                compression="zstd",
                use_dictionary=_with_dictionary(first),
                write_page_checksum=True,
                store_decimal_as_integer=True,
            ) as writer:
                for batch in _larger(first, batches):
                    row_count += batch.num_rows
                    if self.kind == "changes":
                        found = pc.value_counts(batch.column(CHANGE_TYPE)).to_pylist()
                        kinds.update({item["values"]: item["counts"] for item in found})
                    if self.with_content:
                        content += batch_sum(batch)
                    writer.write_batch(batch.cast(schema), row_group_size=batch.num_rows)
            ref = sink.finish()
        file = DataFile(ref, row_count, kinds["insert"], kinds["delete"])
        return PieceResult(file, content if self.with_content else None)

    def _file_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema with column ids as Parquet field ids."""
        fields = list(schema)
        for place, column_id in enumerate(self.column_ids):
            ids = {_FIELD_ID: str(column_id).encode()}
            fields[place] = fields[place].with_metadata(ids)
        return pa.schema(fields)


def _with_dictionary(sample: pa.RecordBatch) -> list[str]:
    """Return the columns with repeated values; a dictionary makes the others no smaller."""
    return [
        name
        for name, column in zip(sample.schema.names, sample.columns, strict=True)
        if not pa.types.is_nested(column.type) and has_repeats(pa.chunked_array([column]))
    ]


def _larger(first: pa.RecordBatch, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches of a row group's size; small batches are joined, so that groups are few."""
    held, count, size = [first], first.num_rows, first.nbytes
    for batch in batches:
        if count >= _ROW_GROUP_ROWS or size >= _ROW_GROUP_BYTES:
            yield pa.concat_batches(held)
            held, count, size = [], 0, 0
        held.append(batch)
        count, size = count + batch.num_rows, size + batch.nbytes
    yield pa.concat_batches(held)
