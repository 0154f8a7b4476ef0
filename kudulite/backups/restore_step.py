"""One step of a restore: the rows, or the deletes, of one backup, as one bulk write.

    staged = [step.stage(index) for index in range(step.task_count)]     anywhere, in any order
    step.commit(staged)                                                  once

A step is picklable. Staging twice does no harm: only what is handed to `commit` counts, and a step
that was committed before is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kudulite.backups.backup_set import Backup, check_data_file
from kudulite.backups.format import DataFile
from kudulite.backups.piece import CHANGE_TYPE
from kudulite.catalog.bulk_write import StagedTask
from kudulite.client.bulk_write import BulkWrite
from kudulite.client.client import open_table
from kudulite.client.table import Table
from kudulite.errors import CorruptionError

# In the applications of the restored table: the highest step that was committed.
APPLICATION_ID = "kudulite.restore"
_BATCH_ROWS = 1 << 17


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
