"""RowSetMeta: a DiskRowSet in the superblock, with its key bounds, timestamps and files.

Rows of one bulk commit share the insert timestamp of the entry. In a flushed MemRowSet the entry
has the oldest one, and a row inserted later has an UNDO DELETE. Truncate and overwrite give a
rowset one delete timestamp; the rowset stays readable for the past.

The entry alone shows which history is ancient: no read needs an UNDO at or before the ancient
history mark, or a row whose DELETE is at or before it. Garbage collection removes the files once no
superblock lists them.

**Invariants**: key bounds are inclusive encoded keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from kudulite.basefile.base_data import ROW_GROUP_ROWS
from kudulite.delta.delta_file import TIMESTAMP_UNASSIGNED, DeltaFileMeta
from kudulite.storage.json_form import JsonForm, Stored
from kudulite.storage.storage import FileRef


@dataclass(frozen=True)
class BaseFileMeta(JsonForm):
    """One Parquet file of base data and the ids of the columns that it holds."""

    ref: Annotated[FileRef, Stored("file")]
    column_ids: tuple[int, ...]


@dataclass(frozen=True)
class RowSetMeta(JsonForm):
    """One DiskRowSet. `key_min` and `key_max` are inclusive encoded keys.

    REDO files are oldest first, UNDO files newest first. Superblocks of the first format have no
    UNDO files and do not name them. `group_rows` are the rows of the row groups of wide base data.
    """

    id: Annotated[str, Stored(name="rowset id")]
    row_count: int
    key_min: bytes
    key_max: bytes
    base: tuple[BaseFileMeta, ...]
    key_index: FileRef
    bloom: FileRef
    insert_timestamp: int = TIMESTAMP_UNASSIGNED
    delete_timestamp: int | None = None
    redo: tuple[DeltaFileMeta, ...] = ()
    undo: Annotated[tuple[DeltaFileMeta, ...], Stored(may_be_absent=True)] = ()
    group_rows: Annotated[int | None, Stored(may_be_none=True)] = None

    @property
    def rows_per_group(self) -> int:
        """The rows of each row group of base data but the last."""
        return self.group_rows or ROW_GROUP_ROWS

    def rows_in_group(self, number: int) -> int:
        """Return the rows of one row group."""
        return min(self.row_count - number * self.rows_per_group, self.rows_per_group)

    @property
    def live_row_count(self) -> int:
        """Rows that are not deleted, after all deltas; a rowset never reinserts a deleted row."""
        if self.delete_timestamp is not None:
            return 0
        return self.row_count - sum(delta.delete_count for delta in self.redo)

    @property
    def bytes_on_disk(self) -> int:
        """Size of all files of the rowset."""
        return sum(ref.length for ref in self.file_refs)

    @property
    def base_bytes(self) -> int:
        """Size of the base data."""
        return sum(base.ref.length for base in self.base)

    @property
    def file_refs(self) -> list[FileRef]:
        """All files of the rowset, in its folder."""
        base = [file.ref for file in self.base]
        deltas = [delta.ref for delta in (*self.redo, *self.undo)]
        return [*base, self.key_index, self.bloom, *deltas]

    @property
    def file_names(self) -> list[str]:
        """Names of all files of the rowset."""
        return [ref.name for ref in self.file_refs]

    @property
    def timestamp_max(self) -> int:
        """The newest timestamp of any change of the rowset."""
        deltas = (delta.timestamp_max for delta in (*self.redo, *self.undo))
        return max(self.insert_timestamp, self.delete_timestamp or 0, *deltas)

    def is_visible(self, timestamp: int) -> bool:
        """Whether a snapshot at `timestamp` (inclusive) sees the rowset at all."""
        if self.insert_timestamp > timestamp:
            return False
        return self.delete_timestamp is None or self.delete_timestamp > timestamp

    def with_redo(self, deltas: tuple[DeltaFileMeta, ...]) -> RowSetMeta:
        """Return the rowset with newer REDO files appended."""
        return replace(self, redo=self.redo + deltas)


def without_ancient_undo(meta: RowSetMeta, mark: int) -> RowSetMeta:
    """Return the rowset without the UNDO files that have only ancient changes; opens no file."""
    undo = tuple(delta for delta in meta.undo if delta.timestamp_max > mark)
    return meta if len(undo) == len(meta.undo) else replace(meta, undo=undo)


def is_fully_ancient(meta: RowSetMeta, mark: int) -> bool:
    """Whether no snapshot at `mark` or later sees a row of the rowset.

    Either the rowset or each of its rows was deleted by then. In the second case no REDO is newer
    than the newest DELETE, because a deleted row has no later change. The newest timestamps of the
    files therefore show exactly whether all DELETEs are ancient.
    """
    if meta.delete_timestamp is not None and meta.delete_timestamp <= mark:
        return True
    deleted = sum(delta.delete_count for delta in meta.redo)
    return deleted == meta.row_count and all(delta.timestamp_max <= mark for delta in meta.redo)
