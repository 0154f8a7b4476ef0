"""One piece of a backup: reads a key range at the backup's moment, writes one Parquet file.

    token ─ batches ─ piece-00007-<uuid>.parquet (fsync) ─ piece-00007.json, put if absent

Any number of processes may run a piece, at once or one after the other: each writes a file of its
own, and whose piece-….json is first counts. Where a result is there and its file is as it says,
nothing is done: that is how a backup that was interrupted goes on.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kudulite.backups.backup_set import check_data_file
from kudulite.backups.content_hash import batch_sum, content_sum
from kudulite.backups.format import ContentSum, DataFile, PieceResult
from kudulite.catalog.environment import default_environment
from kudulite.cfile.base_data import has_repeats
from kudulite.client.scan_token import ChangeToken, ScanToken
from kudulite.errors import CorruptionError, StorageError
from kudulite.fs.file_system import FileSystem, read_file

CHANGE_TYPE, COMMIT_TIMESTAMP = "_change_type", "_commit_timestamp"
# Groups of 128 Ki rows take twice the time and a quarter more bytes: a dictionary for each of them.
_ROW_GROUP_ROWS = 1 << 20
_ROW_GROUP_BYTES = 128 << 20
_FIELD_ID = b"PARQUET:field_id"


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
