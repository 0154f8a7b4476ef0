"""Restoring a table: a chain of backups into a hidden table, which gets its name when it is whole.

    <root>/.restore-<name>/lock           one restore of this table at a time
                           table/         the table that is being made
                           restore.json   its id, and the chain that goes into it
    <root>/<name>                         what table/ is renamed to, at the very end

The full backup is loaded under its own schema and partitioning; before each increment the table is
altered to the schema and partitioning of that one. Column ids are those of the table that was
backed up, so columns that were renamed, added, dropped, or dropped and added again in between are
what they were. A range that was dropped takes its rows with it; one that was dropped and added
again, which its tablets' ids tell, is emptied first.

Whoever is killed leaves the hidden folder. The next restore of the same chain goes on after the
last step that was committed; any other starts over.

Invariants: (1) restore.json is there only when the hidden table is; (2) the table's name is free
or holds a whole table at every moment; with `overwrite` it is free for the moment between two
renames.

One step of a restore: the rows, or the deletes, of one backup, as one bulk write.

    staged = [step.stage(index) for index in range(step.task_count)]     anywhere, in any order
    step.commit(staged)                                                  once

A step is picklable. Staging twice does no harm: only what is handed to `commit` counts, and a step
that was committed before is skipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
    decode_body,
)
from kudulite.client.bulk_write import BulkWrite
from kudulite.client.client import open_table
from kudulite.client.table import Table
from kudulite.client.table_copy import (
    TRASH_PREFIX,
    move_table,
    remove_trash,
    set_table_aside,
    table_folder,
)
from kudulite.client.tokens import ScanToken
from kudulite.errors import (
    CorruptionError,
    FormatVersionError,
    LockTimeoutError,
    StorageError,
    TableExistsError,
)
from kudulite.fs.file_system import encode_checked_json, read_file
from kudulite.fs.lock import TabletLock, create_lock_file
from kudulite.table.alter import TableDraft, alter_table
from kudulite.table.garbage_collection import collect_garbage, collect_staging_garbage
from kudulite.table.partition import RangePartition
from kudulite.table.stage import StagedTask
from kudulite.table.table_store import Environment, TableStore, default_environment

# Each stages up to 256 MiB.
THREAD_COUNT = min(2, os.cpu_count() or 1)
_STATE_NAME, _TABLE_NAME = "restore.json", "table"

# In the applications of the restored table: the highest step that was committed.
APPLICATION_ID = "kudulite.restore"
_BATCH_ROWS = 1 << 17


@dataclass(frozen=True)
class ContentPiece:
    """A picklable part of the check of a restored table: hashes the rows of one token."""

    token: ScanToken

    def run(self) -> ContentSum:
        """Return the count and the sum of the rows' hashes."""
        return content_sum(self.token.open())


class RestoreJob(LockedJob):
    """A restore under way; made by `begin_restore`, closed by leaving its `with`."""

    def __init__(
        self, chain: Sequence[Backup], store: TableStore, folder: Path, *, overwrite: bool
    ) -> None:
        super().__init__(ExitStack())
        self._chain = chain
        self._target = store
        self._folder = folder
        self._hidden = TableStore(folder / _TABLE_NAME, store.environment)
        self._overwrite = overwrite
        self.is_resumed = False

    def __repr__(self) -> str:
        return f"<kudulite restore of backup {self.backup.id} to {self._target.folder}>"

    @property
    def backup(self) -> Backup:
        """The backup that the table will be as."""
        return self._chain[-1]

    @property
    def chain(self) -> list[Backup]:
        """The backups that go into the table: a full one, then increments."""
        return list(self._chain)

    def steps(self) -> Iterator[RestoreStep]:
        """Yield what is left to do; each step must be committed before the next is asked for."""
        if not self._hidden.exists():
            return  # it has its name already
        for place, backup in enumerate(self._chain):
            done = self._hidden.newest().applications.get(APPLICATION_ID, -1)
            if done < step_numbers(place)[0]:
                self._alter_to(place)
            yield from restore_steps(backup, Table(self._hidden), place, done)

    def run(self, report: Callable[[int, int], None] = lambda done, count: None) -> None:
        """Do all steps, files in a few threads; `report` is told how many are done, of how many."""
        count, done = sum(len(backup.files) for backup in self._chain), 0
        with ThreadPoolExecutor(THREAD_COUNT, thread_name_prefix="kudulite-restore") as pool:
            for step in self.steps():
                futures = [pool.submit(step.stage, index) for index in range(step.task_count)]
                try:
                    staged = []
                    for future in futures:
                        staged.append(future.result())
                        done += not step.is_deletes
                        report(done, count)
                except BaseException:
                    for future in futures:
                        future.cancel()
                    raise
                step.commit(staged)

    def content_pieces(self) -> list[ContentPiece]:
        """Return the parts of the check of all rows; none where the backup has no content hash."""
        if self.backup.content is None or not self._hidden.exists():
            return []
        return [ContentPiece(token) for token in Table(self._hidden).scan_tokens()]

    def finish(self, sums: Iterable[ContentSum] | None = None) -> Table:
        """Check the table, and give it its name; returns it.

        `sums` are those of `content_pieces`, which are run here when None. Raises CorruptionError
        where rows are not those of the backup, TableExistsError.
        """
        if self._hidden.exists():
            self._check(sums)
            collect_garbage(self._hidden, 0, 0)  # what killed attempts have left
        self._give_name()
        return Table(self._target)

    def _check(self, sums: Iterable[ContentSum] | None) -> None:
        backup, what = self.backup, f"restore of backup {self.backup.id} from {self.backup.path}"
        count = Table(self._hidden).scan().count()
        if count != backup.row_count:
            raise CorruptionError(f"{what}: {count} rows came out, expected {backup.row_count}")
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

    @staticmethod
    def begin(
        chain: Sequence[Backup], path: Path, environment: Environment, *, overwrite: bool
    ) -> RestoreJob:
        """Lock the table's name, and find the hidden table of this chain, or make it anew."""
        place = Path(os.path.abspath(path))
        store = TableStore(table_folder(place.parent, place.name), environment)
        folder = place.with_name(f".restore-{place.name}")
        job = RestoreJob(chain, store, folder, overwrite=overwrite)
        job._check_target(job._read_state())
        with _locked(folder, environment) as held:
            job._find_hidden()
            job._held = held.pop_all()
        return job

    def _find_hidden(self) -> None:
        state = self._read_state()
        self._check_target(state)
        if state is not None and state["chain"] == self._chain_state():
            self.is_resumed = True
            if self._hidden.exists():
                collect_staging_garbage(self._hidden, 0)
            return
        file_system = self._target.environment.file_system
        file_system.remove(self._folder / _STATE_NAME)
        file_system.remove_tree(self._hidden.folder)
        first = self._chain[0]
        self._hidden.create(first.schema, first.partition)
        state = {
            "format_version": FORMAT_VERSION,
            "table_id": self._hidden.newest().table_id,
            "chain": self._chain_state(),
        }
        file_system.publish(self._folder / _STATE_NAME, encode_checked_json(state))

    def _chain_state(self) -> list[list[Any]]:
        return [[backup.id, backup.crc32] for backup in self._chain]

    def _read_state(self) -> dict[str, Any] | None:
        path = self._folder / _STATE_NAME
        try:
            return decode_body(read_file(path), str(path), "the state of a restore")
        except FormatVersionError:
            raise
        except (StorageError, CorruptionError):
            return None

    def _check_target(self, state: dict[str, Any] | None) -> None:
        """Raise TableExistsError unless the name is free, or may be taken."""
        folder = self._target.folder
        if not folder.exists() or self._is_named(state):
            return
        if not self._target.exists():
            raise TableExistsError(f"cannot restore to {folder}: it is there, and is no table")
        if not self._overwrite:
            raise TableExistsError(
                f"cannot restore to {folder}: there is a table; choose another name, or"
                " overwrite=True"
            )

    def _is_named(self, state: dict[str, Any] | None) -> bool:
        """Whether this chain's table has its name already: the last run ended just after that."""
        if state is None or state["chain"] != self._chain_state() or self._hidden.exists():
            return False
        return self._target.exists() and self._target.newest().table_id == state["table_id"]

    def _alter_to(self, place: int) -> None:
        """Give the hidden table the schema, partitioning and retention of a backup."""
        backup, manifest = self._chain[place], self._hidden.newest()
        stale = stale_ranges(self._chain[place - 1], backup) if place else frozenset()
        now = (manifest.schema, manifest.partition, manifest.history_seconds)
        if not stale and now == (backup.schema, backup.partition, backup.history_seconds):
            return

        def altered(draft: TableDraft) -> TableDraft:
            return replace(
                draft,
                schema=backup.schema,
                range_columns=backup.partition.range_columns,
                ranges=backup.partition.ranges,
                history_seconds=backup.history_seconds,
                dropped=stale & frozenset(draft.ranges),
            )

        alter_table(self._hidden, [altered])

    def _give_name(self) -> None:
        file_system, root = self._target.environment.file_system, self._target.folder.parent
        if self._hidden.exists():
            if self._overwrite and self._target.exists():
                set_table_aside(self._target, f"restore of {self._target.name!r}")
            move_table(self._hidden, self._target)
        trash = root / f"{TRASH_PREFIX}{self._folder.name}-{self.backup.id}"
        file_system.remove_tree(trash)
        file_system.rename(self._folder, trash)
        file_system.sync_directory(root)
        remove_trash(root, file_system)


def stale_ranges(before: Backup, after: Backup) -> frozenset[RangePartition]:
    """Return the ranges of `before` that are gone in `after`, or are there with other tablets."""
    kept = dict(_tablets_of_ranges(after))
    return frozenset(
        given for given, tablets in _tablets_of_ranges(before) if kept.get(given) != tablets
    )


def _tablets_of_ranges(backup: Backup) -> Iterator[tuple[RangePartition, tuple[str, ...]]]:
    each = backup.partition.bucket_combinations
    for number, given in enumerate(backup.partition.ranges):
        yield given, backup.tablet_ids[number * each : (number + 1) * each]


def restore(
    target: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    at: Any = None,
    overwrite: bool = False,
) -> Table:
    """Make the table at `path` from the backups in the directory `target`; see `begin_restore`."""
    with begin_restore(target, path, at=at, overwrite=overwrite) as job:
        job.run()
        return job.finish()


def begin_restore(
    target: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    at: Any = None,
    overwrite: bool = False,
) -> RestoreJob:
    """Begin to make the table at `path` from the backups in `target`, or go on with it.

    `at` is a backup's id, or a moment, for the newest backup at or before it; None is the newest
    of all. With `overwrite` a table that is at `path` is replaced at the end, with its history.

    Raises NotFoundError listing the backups, TableExistsError, CorruptionError or StorageError for
    a damaged or missing manifest, FormatVersionError for a newer one, LockTimeoutError while
    another restore of the same table is under way.
    """
    environment = default_environment()
    chain = BackupSet(Path(target), environment.file_system).chain(at)
    return RestoreJob.begin(chain, Path(path), environment, overwrite=overwrite)


def _locked(folder: Path, environment: Environment) -> ExitStack:
    """Return the lock of a restore, taken; its folder is there."""
    environment.file_system.make_directory(folder, parents=True)
    create_lock_file(folder / LOCK_NAME)
    with ExitStack() as stack:
        lock = stack.enter_context(TabletLock(folder / LOCK_NAME, 0.0))
        lock.announce("restore")
        if not (folder / LOCK_NAME).exists():
            raise LockTimeoutError(f"{folder}: another restore has just ended; look at its table")
        return stack.pop_all()


def step_numbers(place: int) -> tuple[int, int]:
    """Return the numbers of the steps of a chain's backup: its rows', and its deletes'."""
    return 2 * place, 2 * place + 1


@dataclass(frozen=True)
class RestoreStep:
    """Rows or deletes of one backup on their way into the table; made by `RestoreJob.steps`."""

    backup_folder: Path
    backup_id: str
    is_deletes: bool
    files: tuple[DataFile, ...]
    names: tuple[str, ...]
    is_full: bool
    write: BulkWrite
    table_folder: Path

    @property
    def task_count(self) -> int:
        """How many tasks there are to stage, one per file."""
        return len(self.files)

    def stage(self, index: int) -> StagedTask:
        """Check a file and prepare its rows; nothing is visible.

        Raises CorruptionError or StorageError naming the file, ConflictError after the restore was
        given up.
        """
        file = self.files[index]
        # A file with other rows than deletes was checked when those were staged.
        if not self.is_deletes or file.delete_count == file.row_count:
            check_data_file(self.backup_folder, file)
        return self.write.stage(self._batches(self.backup_folder / file.ref.name), index)

    def commit(self, staged: Sequence[StagedTask]) -> None:
        """Commit all tasks at once."""
        self.write.commit(staged)

    def _batches(self, path: Path) -> Iterator[pa.RecordBatch]:
        table = open_table(self.table_folder)
        columns = [*self.names, *([] if self.is_full else [CHANGE_TYPE])]
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                for batch in file.iter_batches(_BATCH_ROWS, columns=columns):
                    yield self._chosen(batch, table)
        except (pa.ArrowException, OSError) as error:
            raise CorruptionError(f"{path}: cannot be read as Parquet: {error}") from error

    def _chosen(self, batch: pa.RecordBatch, table: Table) -> pa.RecordBatch:
        if self.is_full:
            return batch
        is_delete = pc.equal(batch.column(CHANGE_TYPE), "delete")
        chosen = batch.select(list(self.names))
        if not self.is_deletes:
            return chosen.filter(pc.invert(is_delete))
        chosen = chosen.filter(is_delete)
        # What was deleted with its range has no place any more, and is gone with it here, too.
        index = table.tablet_index(pa.Table.from_batches([chosen]))
        return chosen.filter(pc.greater_equal(index, 0))


def restore_steps(backup: Backup, table: Table, place: int, done: int) -> Iterator[RestoreStep]:
    """Yield the steps of one backup of a chain that are not committed (`done` is the highest).

    Each must be committed before the next is asked for.
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
        )
        yield RestoreStep(
            backup_folder=backup.path,
            backup_id=backup.id,
            is_deletes=operation == "delete_ignore",
            files=files,
            names=tuple(names),
            is_full=backup.is_full,
            write=write,
            table_folder=table.path,
        )
