"""Restoring a table: a chain of backups into a hidden table, which gets its name at the end.

    <root>/.restore-<name>/lock           one restore of this table at a time
                           table/         the hidden table
                           restore.json   the id of the hidden table, and the chain
    <root>/<name>                         the name that table/ gets by the last step

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

**Invariants**: (1) restore.json exists only if the hidden table does; (2) the table's name is free
or names a finished table at every moment; with `overwrite` it is free between two renames.

**Threads**: one thread uses a job; a step's tasks may be staged in any thread or process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from os import PathLike, cpu_count
from os.path import abspath
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
    readable_body,
)
from kudulite.chain.partition import RangeBounds
from kudulite.client.bulk_write import BulkWrite
from kudulite.client.client import open_table
from kudulite.client.table import Table, store_of
from kudulite.client.table_names import (
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
from kudulite.model.aliases import Moment
from kudulite.shown.progress import Progress
from kudulite.storage.address import path_of
from kudulite.storage.checked_json import encode_checked_json
from kudulite.storage.names import new_trash_name
from kudulite.storage.storage import FileRef, is_taken
from kudulite.storage.storage_error import arrow_errors
from kudulite.table.background_work import in_threads
from kudulite.table.environment import Environment, default_environment
from kudulite.table.present import listing
from kudulite.table.row_ids import reserve_ids
from kudulite.table.table_store import TableStore
from kudulite.table.write_state import StagedTask
from kudulite.upkeep.alter import TableDraft, alter_table
from kudulite.upkeep.garbage_collection import collect_garbage, end_writes

# Each thread stages up to 256 MiB.
THREAD_COUNT = min(2, cpu_count() or 1)
_STATE_NAME, _TABLE_NAME = "restore.json", "table"

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
        place = Path(abspath(path))
        self._chain = chain
        self._place = table_folder(place.parent, place.name)
        self._folder = place.with_name(f".restore-{place.name}")
        self._hidden = TableStore(self._folder / _TABLE_NAME, environment)
        self._overwrite = overwrite
        self.is_resumed = False
        self._check_target(self._read_state())
        super().__init__(self._folder, environment.storage, "restore")

    def __repr__(self) -> str:
        return f"<kudulite restore of backup {self.backup.id} to {self._target.folder}>"

    @property
    def _target(self) -> TableStore:
        """A store of the table at the place, whichever it is: an old one, or the restored one."""
        return TableStore(self._place, self._hidden.environment)

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
        if not self._hidden.chain.exists():
            return  # the table has its name already
        for place, backup in enumerate(self._chain):
            done = listing(self._hidden).applications.get(APPLICATION_ID, -1)
            if done < step_numbers(place)[0]:
                self._alter_to(place)
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
        if self.backup.content is None or not self._hidden.chain.exists():
            return []
        return [ContentPiece(token) for token in Table(self._hidden).scan_tokens()]

    def finish(self, sums: Iterable[ContentSum] | None = None) -> Table:
        """Check the table, give it its name, and return it.

        `sums` are the results of `content_pieces`; with None the pieces are run here. Raises
        CorruptionError if the rows differ from the backup's, TableExistsError.
        """
        if self._hidden.chain.exists():
            with Progress(f"check of the restored table {self._place.name!r}"):
                self._check(sums)
            self._lift_ids()
            collect_garbage(self._hidden, 0, 0)  # files of interrupted attempts
        self._give_name()
        return Table(self._target)

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
        if not self._target.storage.exists(self._folder / LOCK_NAME):
            raise LockTimeoutError(
                f"{self._folder}: another restore has just ended; look at its table"
            )
        state = self._read_state()
        self._check_target(state)
        if state is not None and state["chain"] == self._chain_state():
            self.is_resumed = True
            if self._hidden.chain.exists():
                end_writes(self._hidden, 0)
            return
        storage = self._target.storage
        storage.delete(self._folder / _STATE_NAME)
        storage.delete_below(self._hidden.folder)
        first = self._chain[0]
        self._hidden.create(first.schema, first.partition)
        state = {
            "format_version": FORMAT_VERSION,
            "table_id": self._hidden.newest().table_id,
            "chain": self._chain_state(),
        }
        storage.put_if_absent(self._folder / _STATE_NAME, encode_checked_json(state))

    def _chain_state(self) -> list[list[Any]]:
        return [[backup.id, backup.crc32] for backup in self._chain]

    def _read_state(self) -> dict[str, Any] | None:
        path = self._folder / _STATE_NAME
        try:
            content = self._target.storage.read(path)
            with readable_body(content, str(path), "the state of a restore") as state:
                return {name: state[name] for name in ("table_id", "chain")}
        except FormatVersionError:
            raise
        except (StorageError, CorruptionError):
            return None

    def _check_target(self, state: dict[str, Any] | None) -> None:
        """Raise TableExistsError unless the name is free, or may be taken."""
        folder = self._target.folder
        if not is_taken(self._target.storage, folder) or self._is_named(state):
            return
        if not self._target.chain.exists():
            raise TableExistsError(f"cannot restore to {folder}: it exists and is not a table")
        if not self._overwrite:
            raise TableExistsError(
                f"cannot restore to {folder}: the table exists; choose another name, or"
                " overwrite=True"
            )

    def _is_named(self, state: dict[str, Any] | None) -> bool:
        """Whether the last run ended just after it gave this chain's table its name."""
        if state is None or state["chain"] != self._chain_state() or self._hidden.chain.exists():
            return False
        return self._target.chain.exists() and self._target.newest().table_id == state["table_id"]

    def _alter_to(self, place: int) -> None:
        """Give the hidden table the schema, partitioning and retention of a backup."""
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

        alter_table(self._hidden, [altered])

    def _give_name(self) -> None:
        storage, root = self._target.storage, self._target.folder.parent
        if self._hidden.chain.exists():
            if self._overwrite and self._target.chain.exists():
                set_table_aside(self._target, f"restore of {self._target.name!r}")
            move_table(self._hidden, self._target)
        trash = root / new_trash_name(f"{self._folder.name}-{self.backup.id}")
        storage.delete_below(trash)
        storage.move(self._folder, trash)
        storage.sync([root])
        remove_trash(root, self._hidden.environment)


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
) -> Table:
    """Restore the table at `path` from the backups in `target`; see `begin_restore`."""
    with begin_restore(target, path, at=at, overwrite=overwrite) as job:
        job.run()
        return job.finish()


def begin_restore(
    target: str | PathLike[str],
    path: str | PathLike[str],
    *,
    at: Moment | None = None,
    overwrite: bool = False,
) -> RestoreJob:
    """Begin to restore the table at `path` from the backups in `target`, or continue to.

    `at` is a backup's id, or a moment, which means the newest backup at or before it; None is the
    newest of all. With `overwrite` an existing table is replaced at the end, with its history.

    Raises NotFoundError listing the backups, TableExistsError, CorruptionError or StorageError for
    a damaged or missing manifest, FormatVersionError for one of a newer version, LockTimeoutError
    while another restore of the same table is in progress.
    """
    environment = default_environment()
    chain = BackupSet(path_of(target), environment.storage).chain(at)
    return RestoreJob(chain, path_of(path), environment, overwrite=overwrite)


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
    table_folder: Path

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
            check_data_file(self.backup_folder, file)
        return self.write.stage(self._batches(file.ref), index)

    def commit(self, staged: Sequence[StagedTask]) -> None:
        """Commit all tasks at once."""
        self.write.commit(staged)

    def _batches(self, ref: FileRef) -> Iterator[pa.RecordBatch]:
        table, path = open_table(self.table_folder), self.backup_folder / ref.name
        source = store_of(table).storage.open(path, ref)
        columns = [*self.names, *([] if self.is_full else [CHANGE_TYPE])]
        with (
            arrow_errors(path, "cannot be read as Parquet"),
            pq.ParquetFile(source, page_checksum_verification=True) as file,
        ):
            for batch in file.iter_batches(_BATCH_ROWS, columns=columns):
                batch.validate(full=True)
                yield self._chosen(batch, table)

    def _chosen(self, batch: pa.RecordBatch, table: Table) -> pa.RecordBatch:
        if self.is_full:
            return batch
        is_delete = pc.equal(batch.column(CHANGE_TYPE), "delete")
        chosen = batch.select(list(self.names))
        if not self.is_deletes:
            return chosen.filter(pc.invert(is_delete))
        chosen = chosen.filter(is_delete)
        # A row of a dropped range has no tablet, and was dropped with the range here, too.
        index = table.tablet_index(pa.Table.from_batches([chosen]))
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
            table_folder=table.path,
        )
