"""Restoring a table: a chain of backups into a hidden table, which gets its name at the end.

    <root>/.restore-<name>/lock           one restore of this table at a time, in a directory
                           table-<uuid>/  the hidden table
                           restore.json   the name and id of the hidden table, and the backup
    <root>/<name>                         the name that the hidden table gets by the last step

The full backup is loaded under its own schema and partitioning. Before each increment the table is
altered to the schema and partitioning of that increment. Column ids are those of the original
table, so columns that were renamed, added, dropped, or dropped and added again are restored as
such. The rows of a dropped range are dropped, too. A range that was dropped and added again, which
its new tablet ids show, is emptied first.

A step of a restore is one bulk write: the rows, or the deletes, of one backup.

    staged = [step.stage(index) for index in range(step.task_count)]     anywhere, in any order
    step.commit(staged)                                                  once

A step is picklable. Staging a task twice does no harm, because only the tasks given to `commit`
count. An interrupted restore leaves the hidden folder. The next restore of the same chain continues
after the last committed step; a restore of another chain starts over.

An object store has no locks: two restores of a table may be at work. Each step is committed once,
under its number. The hidden table is only altered while the number is that of the step before, and
the last number, of a commit without rows, ends that. A restore that starts over makes a table of
another name, and the first rename of that name counts. The other restore ends with an error, or
finds the table that it wanted.

**Invariants**: (1) restore.json exists only if the hidden table does; (2) the table's name is free
or names a finished table at every moment; with `overwrite` it is free between two renames only
where the file system cannot exchange names.

**Threads**: one thread uses a job; a step's tasks may be staged in any thread or process.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from os import PathLike, cpu_count
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kudulite.backups.backup_job import CHANGE_TYPE
from kudulite.backups.backup_set import Backup, BackupSet, LockedJob, check_data_file
from kudulite.backups.format import (
    FORMAT_VERSION,
    LOCK_NAME,
    ContentSum,
    DataFile,
    content_sum,
    readable_body,
)
from kudulite.chain.manifest import Manifest
from kudulite.chain.partition import RangeBounds
from kudulite.client.bulk_write import BulkWrite
from kudulite.client.table import Table
from kudulite.errors import (
    ConflictError,
    CorruptionError,
    FormatVersionError,
    LockTimeoutError,
    StorageError,
    TableExistsError,
    TableNotFoundError,
)
from kudulite.model.aliases import Moment
from kudulite.reads.tokens import ScanToken
from kudulite.shown.progress import Progress
from kudulite.storage.address import parse_address
from kudulite.storage.checked_json import encode_checked_json
from kudulite.storage.json_form import JsonForm, Stored
from kudulite.storage.storage import FileRef, Storage, is_taken
from kudulite.storage.storage_error import arrow_errors
from kudulite.table.background_work import in_threads
from kudulite.table.environment import Environment, environment_at
from kudulite.table.present import listing
from kudulite.table.removal import discard_folder, remove_trash
from kudulite.table.row_ids import reserve_ids
from kudulite.table.table_names import (
    move_table,
    replace_table,
    table_folder,
)
from kudulite.table.table_store import TableStore
from kudulite.table.write_state import StagedTask
from kudulite.upkeep.alter import TableDraft, alter_table
from kudulite.upkeep.garbage_collection import collect_garbage, end_writes

# Each thread stages up to 256 MiB.
THREAD_COUNT = min(2, cpu_count() or 1)
_STATE_NAME = "restore.json"


@dataclass(frozen=True)
class _State(JsonForm):
    """The content of restore.json: the hidden table, and the newest backup of the chain."""

    table_id: str
    folder: Annotated[str, Stored(name="folder of a hidden table")]
    backup: Annotated[str, Stored(name="backup id")]
    backup_crc32: int

    def encode(self) -> bytes:
        return encode_checked_json({"format_version": FORMAT_VERSION, **self.to_json()})

    @staticmethod
    def decode(content: bytes, source: str) -> _State:
        with readable_body(content, source, "the state of a restore") as body:
            return _State.from_json(body)


# Under this id the restored table has the number of the last committed step.
APPLICATION_ID = "kudulite.restore"
_BATCH_ROWS = 1 << 17


@dataclass(frozen=True)
class ContentPiece:
    """A picklable part of the check of a restored table: the hash of one token's rows."""

    token: ScanToken

    def run(self) -> ContentSum:
        """Return the number of rows and the sum of their hashes."""
        return content_sum(self.token.open())


class RestoreJob(LockedJob):
    """A restore in progress; made by `begin_restore`, closed by leaving its `with` block.

    `is_resumed` says whether it continues an interrupted restore.
    """

    def __init__(
        self, chain: Sequence[Backup], path: Path, environment: Environment, *, overwrite: bool
    ) -> None:
        self._chain = chain
        self._environment = environment
        self._place = table_folder(path.parent, path.name)
        self._folder = path.with_name(f".restore-{path.name}")
        self._overwrite = overwrite
        self.is_resumed = False
        environment.storage.make_root(path.parent)
        self._check_target(self._read_state())
        super().__init__(self._folder, environment.storage, "restore")

    def __repr__(self) -> str:
        return f"<kudulite restore of backup {self.backup.id} to {self._target.folder}>"

    @property
    def _target(self) -> TableStore:
        """A store of the table at the place, whichever it is: an old one, or the restored one."""
        return TableStore(self._place, self._environment)

    @property
    def backup(self) -> Backup:
        """Return the backup to restore."""
        return self._chain[-1]

    @property
    def chain(self) -> list[Backup]:
        """Return the backups to apply: a full one, then its increments."""
        return list(self._chain)

    def steps(self) -> Iterator[RestoreStep]:
        """Yield the remaining steps; commit each step before taking the next."""
        if self._is_named:
            return
        for place, backup in enumerate(self._chain):
            done = _done(listing(self._hidden))
            if done < step_numbers(place)[0]:
                self._alter_to(place, done)
            yield from restore_steps(backup, Table(self._hidden), place, done)

    def run(self, report: Callable[[int, int], None] = lambda done, count: None) -> None:
        """Do all steps in a few threads; `report` gets the number of finished files and of all."""
        count = sum(len(backup.files) for backup in self._chain)

        with Progress(f"restore of table {self._place.name!r}", count, "files") as progress:

            def finished(step: RestoreStep, _staged_count: int) -> None:
                progress.add(not step.is_deletes)
                report(progress.done, count)

            for step in self.steps():
                tasks, report_one = range(step.task_count), partial(finished, step)
                step.commit(in_threads("restore", step.stage, tasks, THREAD_COUNT, report_one))

    def content_pieces(self) -> list[ContentPiece]:
        """Return the parts of the check of all rows, none if the backup has no content hash."""
        if self.backup.content is None or self._is_named:
            return []
        return [ContentPiece(token) for token in Table(self._hidden).scan_tokens()]

    def finish(self, sums: Iterable[ContentSum] | None = None) -> Table:
        """Check the table, give it its name, and return it.

        `sums` are the results of `content_pieces`; with None the pieces are run here. Raises
        CorruptionError if the rows differ from the backup's, TableExistsError.
        """
        if not self._is_named:
            with Progress(f"check of the restored table {self._place.name!r}"):
                self._check(sums)
            self._lift_ids()
            self._end_steps()
            collect_garbage(self._hidden, 0, 0)  # files of interrupted attempts
            self._give_name()
        self._remove(self._folder)
        remove_trash(self._folder.parent, self._environment)
        return Table(self._target)

    def _discard(self, folder: Path) -> None:
        discard_folder(folder, self._folder.parent, self._environment)

    def _remove(self, folder: Path) -> None:
        """Remove a folder, and the state, which is in no folder of an object store."""
        self._discard(folder)
        self._environment.storage.delete(self._folder / _STATE_NAME)

    def _end_steps(self) -> None:
        """Commit the last number, so that a restore that is behind alters the table no more."""
        number = step_numbers(len(self._chain))[0]
        write = Table(self._hidden).new_bulk_write(
            "insert", application_id=APPLICATION_ID, application_version=number
        )
        write.commit([])

    def _lift_ids(self) -> None:
        """Let new rows get ids above all that the table had given, also to rows that are gone."""
        manifest = self._hidden.newest()
        lasts = zip(manifest.placed_tablets, self.backup.last_ids or (), strict=False)
        wanted = {entry.id: (0, last) for entry, last in lasts}
        reserve_ids(self._hidden, manifest.table_id, wanted)

    def _check(self, sums: Iterable[ContentSum] | None) -> None:
        backup, what = self.backup, f"restore of backup {self.backup.id} from {self.backup.path}"
        count = Table(self._hidden).scan().count()
        if count != backup.row_count:
            raise CorruptionError(f"{what}: {count} rows, expected {backup.row_count}")
        if backup.content is None:
            return
        found = ContentSum(0, 0)
        for part in (piece.run() for piece in self.content_pieces()) if sums is None else sums:
            found += part
        if found != backup.content:
            raise CorruptionError(
                f"{what}: the rows' content hash is {found.hash:#018x}, expected"
                f" {backup.content.hash:#018x}"
            )

    # -- the hidden table

    def _begin(self) -> None:
        """Find the hidden table of this chain, or make it anew."""
        storage = self._environment.storage
        if self._is_alone and not storage.exists(self._folder / LOCK_NAME):
            raise LockTimeoutError(
                f"{self._folder}: another restore has just ended; look at its table"
            )
        state = self._read_state()
        self._check_target(state)
        if state is not None and self._is_of_chain(state):
            self._state, self._hidden = state, self._hidden_at(state.folder)
            self.is_resumed = self._is_named or self._has_hidden()
            if self.is_resumed:
                if not self._is_named:
                    end_writes(self._hidden, 0)
                return
        self._start_over()

    def _start_over(self) -> None:
        """Make a hidden table, and remove all others."""
        storage = self._environment.storage
        storage.delete(self._folder / _STATE_NAME)
        for path in storage.entries(self._folder):
            if storage.is_folder(path):
                self._discard(path)
        folder = f"table-{uuid.uuid4().hex}"
        self._hidden = self._hidden_at(folder)
        first = self._chain[0]
        self._hidden.create(first.schema, first.partition)
        self._state = _State(
            self._hidden.newest().table_id, folder, self.backup.id, self.backup.crc32
        )
        storage.put_if_absent(self._folder / _STATE_NAME, self._state.encode())

    def _hidden_at(self, folder: str) -> TableStore:
        return TableStore(self._folder / folder, self._environment)

    def _has_hidden(self) -> bool:
        exists = self._hidden.chain.exists()
        return exists and self._hidden.newest().table_id == self._state.table_id

    @property
    def _is_named(self) -> bool:
        """Whether the hidden table has the table's name: the last run ended just after that."""
        return self._names(self._state)

    def _is_of_chain(self, state: _State) -> bool:
        """Whether a state is of the same chain: each manifest has the checksum of its parent's."""
        return (state.backup, state.backup_crc32) == (self.backup.id, self.backup.crc32)

    def _names(self, state: _State) -> bool:
        target = self._target
        return target.chain.exists() and target.newest().table_id == state.table_id

    def _read_state(self) -> _State | None:
        path = self._folder / _STATE_NAME
        try:
            return _State.decode(self._environment.storage.read(path), str(path))
        except FormatVersionError:
            raise
        except (StorageError, CorruptionError):
            return None

    def _check_target(self, state: _State | None) -> None:
        """Raise TableExistsError unless the name is free, or may be taken."""
        folder = self._target.folder
        if not is_taken(self._environment.storage, folder):
            return
        if state is not None and self._is_of_chain(state) and self._names(state):
            return
        if not self._target.chain.exists():
            raise TableExistsError(f"cannot restore to {folder}: it exists and is not a table")
        if not self._overwrite:
            raise TableExistsError(
                f"cannot restore to {folder}: the table exists; choose another name, or"
                " overwrite=True"
            )

    def _alter_to(self, place: int, done: int) -> None:
        """Give the hidden table the schema, partitioning and retention of a backup.

        `done` is the number of the last step. Raises ConflictError if it is not any more.
        """
        backup, manifest = self._chain[place], self._hidden.newest()
        stale = stale_ranges(self._chain[place - 1], backup) if place else frozenset()
        now, then = (
            (of.schema, of.partition, of.history_seconds, of.owner, of.comment)
            for of in (manifest, backup)
        )
        if not stale and now == then:
            return

        def altered(draft: TableDraft) -> TableDraft:
            return replace(
                draft,
                schema=backup.schema,
                hash_dimensions=backup.partition.hash_dimensions,
                range_columns=backup.partition.range_columns,
                ranges=backup.partition.ranges,
                history_seconds=backup.history_seconds,
                owner=backup.owner,
                comment=backup.comment,
                dropped=stale & {given.bounds for given in draft.ranges},
            )

        def check(newest: Manifest) -> None:
            if _done(newest) != done:
                raise self._overtaken()

        alter_table(self._hidden, [altered], check)

    def _overtaken(self) -> ConflictError:
        return ConflictError(
            f"{self._place}: another restore of this table is at work; look at its table when it"
            " has ended, or restore again"
        )

    def _give_name(self) -> None:
        """Rename the hidden table; of several restores that do so the first one counts."""
        try:
            target = self._target
            if self._overwrite and target.chain.exists():
                replace_table(self._hidden, target, lambda: self._folder)
            else:
                move_table(self._hidden, target)
        except (StorageError, TableExistsError, TableNotFoundError) as error:
            if self._is_named:
                return
            if self._is_alone:
                raise
            if isinstance(error, TableExistsError):
                self._remove(self._hidden.folder)  # no restore can give it the name
            elif not self._hidden_at(self._hidden.name).chain.exists():
                raise self._overtaken() from error
            raise


def stale_ranges(before: Backup, after: Backup) -> frozenset[RangeBounds]:
    """Return the bounds of ranges of `before` that `after` has not, or has with other tablets."""
    kept = dict(_tablets_of_ranges(after))
    return frozenset(
        bounds for bounds, tablets in _tablets_of_ranges(before) if kept.get(bounds) != tablets
    )


def _tablets_of_ranges(backup: Backup) -> Iterator[tuple[RangeBounds, tuple[str, ...]]]:
    places = pairwise(backup.partition.first_tablets)
    for given, (first, end) in zip(backup.partition.ranges, places, strict=True):
        yield given.bounds, backup.tablet_ids[first:end]


def restore(
    target: str | PathLike[str],
    path: str | PathLike[str],
    *,
    at: Moment | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, str] | None = None,
    table_storage_options: Mapping[str, str] | None = None,
) -> Table:
    """Restore the table at `path` from the backups in `target`; see `begin_restore`."""
    with begin_restore(
        target,
        path,
        at=at,
        overwrite=overwrite,
        storage_options=storage_options,
        table_storage_options=table_storage_options,
    ) as job:
        job.run()
        return job.finish()


def begin_restore(
    target: str | PathLike[str],
    path: str | PathLike[str],
    *,
    at: Moment | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, str] | None = None,
    table_storage_options: Mapping[str, str] | None = None,
) -> RestoreJob:
    """Begin to restore the table at `path` from the backups in `target`, or continue to.

    `at` is a backup's id, or a moment, which means the newest backup at or before it; None is the
    newest of all. With `overwrite` an existing table is replaced at the end, with its history.
    `target` and `path` are addresses as in `connect`, of any two stores: `storage_options` reach
    the backups, and `table_storage_options` the table.

    Raises NotFoundError listing the backups, TableExistsError, CorruptionError or StorageError for
    a damaged or missing manifest, FormatVersionError for one of a newer version, LockTimeoutError
    while another restore of the same table in a directory is in progress, and ConflictError on an
    object store if one has overtaken this one.
    """
    chain = BackupSet.at(target, storage_options).chain(at)
    address = parse_address(path, table_storage_options)
    environment = environment_at(address.storage)
    return RestoreJob(chain, address.path, environment, overwrite=overwrite)


def _done(newest: Manifest) -> int:
    """Return the number of the last step that was committed, -1 before the first."""
    return newest.applications.get(APPLICATION_ID, -1)


def step_numbers(place: int) -> tuple[int, int]:
    """Return the numbers of the two steps of a chain's backup: its rows and its deletes."""
    return 2 * place, 2 * place + 1


@dataclass(frozen=True)
class RestoreStep:
    """One bulk write of a restore: the rows or deletes of a backup; made by `RestoreJob.steps`."""

    backup_folder: Path
    backup_id: str
    is_deletes: bool
    files: tuple[DataFile, ...]
    names: tuple[str, ...]
    is_full: bool
    write: BulkWrite
    table: Table
    storage: Storage = field(repr=False)  # of the backup

    @property
    def task_count(self) -> int:
        """Return the number of tasks to stage, one per file."""
        return len(self.files)

    def stage(self, index: int) -> StagedTask:
        """Check a file and prepare its rows; nothing becomes visible.

        Raises CorruptionError or StorageError naming the file, ConflictError if another restore has
        started over.
        """
        file = self.files[index]
        # A file that also has other rows was checked when those were staged.
        if not self.is_deletes or file.delete_count == file.row_count:
            check_data_file(self.storage, self.backup_folder, file)
        return self.write.stage(self._batches(file.ref), index)

    def commit(self, staged: Sequence[StagedTask]) -> None:
        """Commit all tasks at once."""
        self.write.commit(staged)

    def _batches(self, ref: FileRef) -> Iterator[pa.RecordBatch]:
        path = self.backup_folder / ref.name
        source = self.storage.open_ranges(path, ref).file([])
        columns = [*self.names, *([] if self.is_full else [CHANGE_TYPE])]
        with (
            arrow_errors(path, "cannot be read as Parquet"),
            pq.ParquetFile(source, page_checksum_verification=True) as file,
        ):
            for batch in file.iter_batches(_BATCH_ROWS, columns=columns):
                batch.validate(full=True)
                yield self._chosen(batch)

    def _chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.is_full:
            return batch
        is_delete = pc.equal(batch.column(CHANGE_TYPE), "delete")
        chosen = batch.select(list(self.names))
        if not self.is_deletes:
            return chosen.filter(pc.invert(is_delete))
        chosen = chosen.filter(is_delete)
        # A row of a dropped range has no tablet, and was dropped with the range here, too.
        index = self.table.tablet_index(pa.Table.from_batches([chosen]))
        return chosen.filter(pc.greater_equal(index, 0))


def restore_steps(backup: Backup, table: Table, place: int, done: int) -> Iterator[RestoreStep]:
    """Yield the steps of a backup with numbers above `done`, the last committed step.

    Commit each step before taking the next.
    """
    schema = backup.schema
    row_files = tuple(file for file in backup.files if file.row_count > file.delete_count)
    delete_files = tuple(file for file in backup.files if file.delete_count)
    parts = (
        (row_files, "insert" if backup.is_full else "upsert", schema.names),
        (delete_files, "delete_ignore", schema.key_names),
    )
    for number, (files, operation, names) in zip(step_numbers(place), parts, strict=True):
        if number <= done or not files:
            continue
        write = table.new_bulk_write(
            operation,
            columns=names,
            application_id=APPLICATION_ID,
            application_version=number,
        ).restoring()
        yield RestoreStep(
            backup_folder=backup.path,
            backup_id=backup.id,
            is_deletes=operation == "delete_ignore",
            files=files,
            names=tuple(names),
            is_full=backup.is_full,
            write=write,
            table=table,
            storage=backup.storage,
        )
