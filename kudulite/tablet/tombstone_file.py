"""Tombstones: the keys that ordered writes have deleted, and as of which ordering value.

    file := an Arrow IPC file, sorted by key, each key once; schema metadata as below
        key        binary, or fixed_size_binary of the keys' width
        value      the ordering column's type
        timestamp  uint64: when the delete was committed; 0: by the commit that wrote this file
    metadata "kudulite.tombstones" := {"format_version": 1, "width": bytes of each key or null}

They are no rows: nothing reads them but the next ordered write, which drops changes that are older
than a delete (ordering.py). A file is in its tablet's folder, `tombstone-<uuid>.arrow`; its entry
in the superblock names the ordering column by id.

Invariants: (1) a file has at least one key; (2) it never changes; who joins files lists the new one
in their place.

Threads: any number may read.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kudulite.errors import CorruptionError, FormatVersionError
from kudulite.fs.file_system import FileRef, FileSystem, check_content, read_file
from kudulite.model.key_array import KeyArray

FORMAT_VERSION = 1
TIMESTAMP_OF_COMMIT = 0
_METADATA_KEY = b"kudulite.tombstones"
_NAMES = ["key", "value", "timestamp"]


@dataclass(frozen=True)
class TombstoneRows:
    """n deletes by ascending, distinct key: the ordering `values` and uint64[n] `timestamps`."""

    keys: KeyArray
    values: pa.Array
    timestamps: np.ndarray

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return int(self.keys.nbytes + self.values.nbytes + self.timestamps.nbytes)

    def take(self, at: np.ndarray) -> TombstoneRows:
        """Return the deletes at int64[m] positions, in that order."""
        return TombstoneRows(
            self.keys.take(at), self.values.take(pa.array(at)), self.timestamps[at]
        )


@dataclass(frozen=True)
class TombstoneFileMeta:
    """What a superblock says of a file: its ordering column, its rows, their moments."""

    ref: FileRef
    column_id: int
    row_count: int
    timestamp_min: int = TIMESTAMP_OF_COMMIT
    timestamp_max: int = TIMESTAMP_OF_COMMIT

    def stamped(self, timestamp: int) -> TombstoneFileMeta:
        """Return the entry of a staged file, now that its commit has a timestamp."""
        first = self.timestamp_min or timestamp
        return replace(self, timestamp_min=first, timestamp_max=timestamp)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that the superblock keeps."""
        return {
            "file": self.ref.to_json(),
            "column_id": self.column_id,
            "row_count": self.row_count,
            "timestamps": [self.timestamp_min, self.timestamp_max],
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> TombstoneFileMeta:
        """Build an entry from `to_json`'s form."""
        first, last = value["timestamps"]
        ref = FileRef.from_json(value["file"])
        return TombstoneFileMeta(ref, value["column_id"], value["row_count"], first, last)


def write_tombstones(
    file_system: FileSystem, folder: Path, column_id: int, rows: TombstoneRows
) -> TombstoneFileMeta:
    """Write `rows` (at least one) to a new file, durable but for its name. Raises StorageError."""
    assert len(rows)
    assert rows.keys.is_sorted(strict=True)
    header = {"format_version": FORMAT_VERSION, "width": rows.keys.width}
    arrays = [rows.keys.to_arrow(), rows.values, pa.array(rows.timestamps, pa.uint64())]
    batch = pa.RecordBatch.from_arrays(arrays, names=_NAMES)
    batch = batch.replace_schema_metadata({_METADATA_KEY: json.dumps(header).encode()})
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with file_system.open_sink(folder / f"tombstone-{uuid.uuid4().hex}.arrow") as sink:
        file = pa.PythonFile(sink, mode="w")
        with pa.ipc.new_file(file, batch.schema, options=options) as writer:
            writer.write_batch(batch)
        ref = sink.finish()
    known = rows.timestamps[rows.timestamps != TIMESTAMP_OF_COMMIT]
    first = int(known.min()) if len(known) else TIMESTAMP_OF_COMMIT
    last = int(known.max()) if len(known) else TIMESTAMP_OF_COMMIT
    return TombstoneFileMeta(ref, column_id, len(rows), first, last)


def read_tombstones(path: Path, meta: TombstoneFileMeta) -> TombstoneRows:
    """Return the deletes of a file, all with timestamps. Raises StorageError, CorruptionError."""
    content = read_file(path)
    check_content(path, content, meta.ref)
    try:
        reader = pa.ipc.open_file(content)
        table = reader.read_all().combine_chunks()
        table.validate(full=True)
        header = json.loads((table.schema.metadata or {})[_METADATA_KEY])
        version, width = header["format_version"], header["width"]
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        raise CorruptionError(f"{path}: not a file of tombstones: {error!r}") from error
    if version != FORMAT_VERSION:
        raise FormatVersionError(
            f"{path}: tombstones of format version {version}, known: {FORMAT_VERSION}; upgrade"
            " kudulite to read it"
        )
    if table.column_names != _NAMES or table.num_rows != meta.row_count:
        raise CorruptionError(
            f"{path}: columns {', '.join(table.column_names)} with {table.num_rows} rows, expected"
            f" {', '.join(_NAMES)} with {meta.row_count}"
        )
    keys, values, stamps = (column.combine_chunks() for column in table.columns)
    key_array = KeyArray.from_arrow(keys, width)
    if not key_array.is_sorted(strict=True) or values.null_count:
        raise CorruptionError(f"{path}: keys do not ascend, or a value is null")
    timestamps = stamps.to_numpy().astype(np.uint64)
    timestamps[timestamps == TIMESTAMP_OF_COMMIT] = meta.timestamp_max
    return TombstoneRows(key_array, values, timestamps)
