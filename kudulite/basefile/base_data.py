"""Base data of one DiskRowSet: a Parquet file with its rows in key order.

    rowid r  →  row group r // group_rows, row r % group_rows of it

Written once, in order, from sorted rows; read by row group and column, or by the pages of a row
group that have the rows of a short read (`page_range`). `column_storage` chooses how each column
is encoded and compressed. A major delta compaction of some columns writes a file with only those
columns, so a file's columns are a subset of the rowset's, known by id. Any Parquet reader can read
the file; kudulite adds metadata and a checksum:

    file       := parquet pages (each with a CRC-32 of its own)  footer  length:u32le  "PAR1"
    footer     := thrift FileMetaData whose key-value metadata hold
                    kudulite.format_version = "1", or "2" with row groups of fewer rows
                    kudulite.file_name      = the name of the file; older files do not have it
                    kudulite.nan_columns    = ids of the columns with a NaN, such as "3,7", if the
                                              file has a FLOAT or DOUBLE; older files do not have it
                    kudulite.footer_crc32   = 8 lower-case hex digits

Parquet guards pages with checksums but not its footer, where row counts, offsets and statistics
are. `kudulite.footer_crc32` is the CRC-32 of the footer with its own 8 digits replaced by
"00000000"; in the thrift compact protocol the value follows the key after two bytes (field header
0x18, length 0x08), e.g. for CRC 0x1234abcd:

    6b 75 64 75 … 63 72 63 33 32  18 08  31 32 33 34 61 62 63 64      kudulite.footer_crc32 1234abcd

The key is searched from the end, because statistics (user bytes) precede the metadata. The name has
a UUID, so a file in the place of another one of equal length is found when its footer is read.

All row groups but the last have the same number of rows, so a rowid determines its row group. They
have ROW_GROUP_ROWS rows, or, in format version 2, a half, a quarter, an eighth and so on, because
wide rows would fill more than ROW_GROUP_BYTES of memory. Columns have their names and, as Parquet
field ids, their column ids.

Statistics leave NaN out. A reader that compares with NaN, as DuckDB and Spark do, may use those of
a FLOAT or DOUBLE column only if the file has no NaN in it (`may_have_nan`).

**Damage**: The footer's checksum and the file's name in it are verified at the first use, a page's
checksum when it is read. Together they cover all of the file except page headers, whose damage
Parquet notices in most cases. The file's own CRC in its FileRef covers every byte; `kudulite check`
compares it. Decoded values are validated at their first read, because a file may be made to fit its
checksums.

**Threads**: Writers on different sinks, and all of `BaseDataFile`, from any thread; pyarrow encodes
and decodes without the GIL. The parsed footer and the memory map are shared. Each read makes its
own Parquet reader (60 µs), because pyarrow does not promise that a reader can be shared, and gives
the memory of the map back.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kudulite.basefile.block_cache import open_mapped, release_pages
from kudulite.basefile.column_storage import chosen_storage
from kudulite.basefile.page_range import (
    PAGE_ROWS,
    PARQUET_MAGIC,
    PageDirectory,
    PageIndexError,
    PageRange,
)
from kudulite.errors import CorruptionError, StorageError
from kudulite.model.schema import FIELD_ID_KEY, Column
from kudulite.model.types import check_values, joined
from kudulite.storage.checked_json import check_format_version
from kudulite.storage.file_system import FileRef, Sink
from kudulite.storage.storage_error import arrow_errors

FORMAT_VERSION = 2  # on disk: a change of meaning raises it
ROW_GROUP_ROWS = 131072  # on disk: the rows of a row group in version 1, the most in version 2
ROW_GROUP_BYTES = 32 << 20  # of Arrow memory; a scan holds a few row groups for each thread
# A read of more rows decodes the whole row group, which costs less than cutting its pages out.
CUT_ROWS_MAX = ROW_GROUP_ROWS // 4
# A dictionary with fewer compressed bytes was hardly full.
_SURE_DICTIONARY_BYTES = 64 << 10
FORMAT_VERSION_KEY = b"kudulite.format_version"
FILE_NAME_KEY = b"kudulite.file_name"
NAN_COLUMNS_KEY = b"kudulite.nan_columns"
FOOTER_CRC_KEY = b"kudulite.footer_crc32"
FOOTER_CRC_BLANK = b"00000000"
TRAILER_BYTES = 8  # length and magic
_THRIFT_STRING_HEADER = b"\x18\x08"


class _SealingSink:
    """Passes writes on to a sink, but keeps those of the file's end until the footer is sealed."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._tail: list[bytes] | None = None
        self._tail_bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        if self._tail is None:
            return self._sink.write(data)
        # A copy: pyarrow owns the bytes only during the call.
        self._tail.append(bytes(data))
        self._tail_bytes += len(data)
        return len(data)

    def tell(self) -> int:
        return self._sink.tell() + self._tail_bytes

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def hold_tail(self) -> None:
        self._tail = []

    def release_tail(self) -> None:
        assert self._tail is not None
        self._sink.write(sealed_footer(b"".join(self._tail)))


class BaseDataWriter:
    """Writes base data to a sink, row group after row group.

    Rows must be in key order. The file's columns are in the order of `columns`. The first rows that
    are written are the sample from which `column_storage` chooses encodings and compression.
    Leaving the `with` block before `close` drops the rows that are not in the sink yet.
    """

    def __init__(
        self, sink: Sink, columns: Sequence[Column], group_rows: int | None = None
    ) -> None:
        """Prepare a file in `sink`, which the caller finishes after `close`."""
        self._columns = columns
        self._group_rows = group_rows or ROW_GROUP_ROWS
        self._schema = pa.schema(column.arrow_field for column in columns)
        self._path = sink.path
        self._sink = _SealingSink(sink)
        self._writer: pq.ParquetWriter | None = None
        self._float_columns = [column for column in columns if _is_float(column.type.arrow)]
        self._nan_ids: set[int] = set()
        self._row_count = 0
        self._is_closed = False

    def write(self, rows: pa.Table) -> None:
        """Append rows with at least the columns, in their exact Arrow types.

        Every call but the last must pass whole row groups (of ROW_GROUP_ROWS if no other number was
        given). Raises pa.ArrowInvalid for a null in a NOT NULL column.
        """
        assert self._row_count % self._group_rows == 0, "a row group in the middle is not full"
        arrays = [rows.column(column.name) for column in self._columns]
        table = pa.Table.from_arrays(arrays, schema=self._schema)
        if self._writer is None:
            storage = chosen_storage(self._columns, table)
            self._writer = storage.writer(pa.PythonFile(self._sink, "w"), self._schema)
        self._writer.write_table(table, row_group_size=self._group_rows)
        for column in self._float_columns:
            if column.id not in self._nan_ids and _has_nan(table.column(column.name)):
                self._nan_ids.add(column.id)
        self._row_count += table.num_rows

    def close(self) -> int:
        """Write the footer, after at least one call of `write`; return the number of rows."""
        assert self._writer is not None, "nothing was written"
        is_first = self._row_count <= self._group_rows or self._group_rows == ROW_GROUP_ROWS
        nan_ids = self._nan_ids if self._float_columns else None
        stamps = footer_stamps(self._path, has_whole_groups=is_first, nan_ids=nan_ids)
        self._writer.add_key_value_metadata(stamps)
        self._sink.hold_tail()
        self._writer.close()
        self._sink.release_tail()
        self._is_closed = True
        return self._row_count

    def __enter__(self) -> BaseDataWriter:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._writer is not None and not self._is_closed:
            # Otherwise pyarrow writes its buffers to the sink when it drops the writer, any time.
            self._sink.hold_tail()
            with contextlib.suppress(StorageError, pa.ArrowException, OSError):
                self._writer.close()


def group_rows_of(row_bytes: int) -> int:
    """Return how many rows of so many bytes fill a row group."""
    rows = ROW_GROUP_ROWS
    while rows % 2 == 0 and rows * row_bytes > ROW_GROUP_BYTES:
        rows //= 2
    return rows


@dataclass(frozen=True)
class _OpenedFile:
    """The parsed parts of a file, made at its first use; immutable, shared by all threads."""

    source: pa.NativeFile
    content: pa.Buffer
    metadata: pq.FileMetaData
    schema: pa.Schema  # without field metadata
    index_by_name: dict[str, int]
    name_by_id: dict[int, str]
    nan_names: frozenset[str]  # of columns that have a NaN, or may have one
    group_rows: int
    footer: bytes

    @cached_property
    def pages(self) -> PageDirectory:
        """The places of the file's pages, found when a short read first needs them."""
        return PageDirectory(self.footer, self.metadata, self.source.read_at)


class BaseDataFile:
    """One base data file, opened at its first use.

    Names are those of the columns when the file was written. `name_by_id` finds a column that was
    renamed since.
    """

    def __init__(self, path: Path, ref: FileRef) -> None:
        self.path, self.path_text = Path(path), str(path)
        self.ref = ref
        self._opened_file: _OpenedFile | None = None
        self._verified: set[tuple[int, str]] = set()

    @property
    def row_count(self) -> int:
        """The number of rows in the file."""
        return int(self._opened.metadata.num_rows)

    @property
    def row_group_count(self) -> int:
        """The number of row groups: row_count / group_rows rounded up, at least one."""
        return int(self._opened.metadata.num_row_groups)

    @property
    def group_rows(self) -> int:
        """The rows of each row group but the last; ROW_GROUP_ROWS where there is only one."""
        return self._opened.group_rows

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the file's columns, in file order, without metadata."""
        return self._opened.schema

    @property
    def name_by_id(self) -> dict[int, str]:
        """Column id → name in this file."""
        return self._opened.name_by_id

    def short_unit(self, column_id: int) -> int:
        """Return how many rows a short read of a column decodes: a page's, or a row group's.

        Older files have no offset index, and a page of arrays may begin within a row.
        """
        opened = self._opened
        name = opened.name_by_id[column_id]
        chunk = opened.metadata.row_group(0).column(opened.index_by_name[name])
        is_flat = not pa.types.is_list(opened.schema.field(name).type)
        unit = PAGE_ROWS if is_flat and chunk.has_offset_index else opened.group_rows
        return min(unit, opened.group_rows)

    def row_group_rows(self, row_group: int) -> tuple[int, int]:
        """Return (first rowid, rowid after the last) of a row group."""
        start = row_group * self.group_rows
        return start, min(start + self.group_rows, self.row_count)

    def read(
        self,
        row_groups: Sequence[int],
        columns: Sequence[str],
        use_threads: bool = False,
        coded: Sequence[str] = (),
    ) -> pa.Table:
        """Return the rows of `row_groups` with `columns`, both in the order given.

        The columns `coded` are returned as dictionary arrays.

        Raises CorruptionError when a page is damaged, IndexError for a row group and KeyError for
        a column that the file does not have.
        """
        opened = self._opened
        schema = pa.schema([opened.schema.field(name) for name in columns])
        for row_group in row_groups:
            if not 0 <= row_group < opened.metadata.num_row_groups:
                raise IndexError(f"{self.path}: no row group {row_group}")
        if not row_groups:
            return schema.empty_table()
        # This object verifies the page checksums of a column chunk at its first read only: a file
        # never changes, and verifying them at each scan would take a tenth of the scan's time.
        chunks = {(row_group, name) for row_group in row_groups for name in columns}
        is_verified = chunks <= self._verified
        with self._reading(f"row groups {list(row_groups)}, columns {list(columns)}"):
            reader = pq.ParquetFile(
                opened.source,
                metadata=opened.metadata,
                page_checksum_verification=not is_verified,
                read_dictionary=list(coded),
            )
            table = reader.read_row_groups(
                list(row_groups), columns=list(columns), use_threads=use_threads
            )
            if not is_verified:
                check_values(table)
        release_pages(opened.content, self.ref)
        expected_rows = sum(stop - start for start, stop in map(self.row_group_rows, row_groups))
        if table.num_rows != expected_rows:
            raise CorruptionError(f"{self.path}: read {table.num_rows} rows, not {expected_rows}")
        self._verified |= chunks
        # The reader gives file order, adds "a.b" when asked for "a", and puts ids on the fields.
        arrays = [table.column(name) for name in columns]
        fields = [f.with_type(a.type) for f, a in zip(schema, arrays, strict=True)]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    def read_rows(self, start: int, stop: int, columns: Sequence[str]) -> list[pa.Array]:
        """Return the values of each column in rows start..stop, which are in one row group.

        Raises CorruptionError when a page is damaged, KeyError for a column that the file does not
        have.
        """
        group, offset = divmod(start, self.group_rows)
        first, last = self.row_group_rows(group)
        count = stop - start
        is_short = count <= min(CUT_ROWS_MAX, (last - first) // 2)
        found = self._cut(group, offset, offset + count, columns) if is_short else {}
        rest = [name for name in columns if name not in found]
        if rest:
            table = self.read([group], rest).slice(offset, count)
            found |= zip(rest, map(joined, table.columns), strict=True)
        return [found[name] for name in columns]

    def read_some(
        self, group: int, columns: Sequence[str], at: np.ndarray, use_threads: bool = False
    ) -> list[pa.Array]:
        """Return the values of each column at int64[m] positions of a row group, m ≥ 1.

        Text with few values is chosen by its codes in Parquet's dictionary, so that only the rows
        at `at` become text, and not the whole row group. Raises as `read_rows` does.
        """
        coded = [name for name in columns if self._is_coded(group, name)]
        table = self.read([group], columns, use_threads, coded)
        found = taken(list(map(joined, table.columns)), at)
        return [
            values.dictionary_decode() if name in coded else values
            for name, values in zip(columns, found, strict=True)
        ]

    def _is_coded(self, group: int, name: str) -> bool:
        """Whether a column is text of which the pages have only codes of a dictionary.

        Plain pages follow a dictionary that was full; these are slow to turn into codes.
        """
        opened = self._opened
        value_type = opened.schema.field(name).type
        chunk = opened.metadata.row_group(group).column(opened.index_by_name[name])
        if not (pa.types.is_string(value_type) and chunk.has_dictionary_page):
            return False
        return bool(chunk.data_page_offset - chunk.dictionary_page_offset < _SURE_DICTIONARY_BYTES)

    def _cut(
        self, group: int, start: int, stop: int, columns: Sequence[str]
    ) -> dict[str, pa.Array]:
        """Return rows start..stop of a row group, of those columns whose pages are known."""
        opened = self._opened
        # Pages of most columns have the same rows; a cut has columns with the same rows only.
        cuts: dict[tuple[int, int], dict[str, PageRange]] = {}
        found: dict[str, pa.Array] = {}
        indexes = {name: opened.index_by_name[name] for name in columns}
        with self._reading(f"pages of row group {group}, columns {list(columns)}"):
            for name, index in indexes.items():
                pages = opened.pages.covering(group, index, start, stop)
                if pages is not None:
                    cuts.setdefault(pages.rows, {})[name] = pages
            for (first, last), pages_by_name in cuts.items():
                count = min(stop, last) - first
                content = opened.pages.cut(list(pages_by_name.values()), count)
                reader = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
                table = reader.read_row_group(0, use_threads=False)
                check_values(table)
                if table.num_rows != count:
                    raise PageIndexError(f"read {table.num_rows} rows, not {count}")
                for name, values in zip(pages_by_name, table.columns, strict=True):
                    found[name] = joined(values).slice(start - first, stop - start)
        if found:
            release_pages(opened.content, self.ref)
        return found

    def encodings(self, column: str) -> frozenset[str]:
        """Return Parquet's names of the encodings of a column's pages."""
        opened = self._opened
        index = opened.index_by_name[column]
        groups = (opened.metadata.row_group(i) for i in range(opened.metadata.num_row_groups))
        return frozenset(name for group in groups for name in group.column(index).encodings)

    def statistics(self, row_group: int, column: str) -> tuple[Any, Any, int] | None:
        """Return (minimum, maximum, null count) of a column in a row group, None when not known.

        Values are Python ones of the column's type. Minimum and maximum are both None when the
        rows are all null, all NaN, or too wide to store; a NaN is never one of them.
        """
        opened = self._opened
        if pa.types.is_list(opened.schema.field(column).type):
            return None  # Parquet's statistics are of the elements
        index = opened.index_by_name[column]
        chunk = opened.metadata.row_group(row_group).column(index)
        described = opened.metadata.schema.column(index)
        with self._reading(f"the statistics of column {column}"):
            # Parquet ends the process if it is asked for statistics of another type or length.
            if chunk.physical_type != described.physical_type:
                raise ValueError(f"they are of type {chunk.physical_type}")
            opened.pages.check_bounds(row_group, index, described)
            statistics = chunk.statistics
            if statistics is None or not statistics.has_null_count:
                return None
            # A timestamp may lie outside of datetime's years 1..9999, and has no Python value then.
            with contextlib.suppress(OverflowError, ValueError):
                if statistics.has_min_max:
                    return statistics.min, statistics.max, statistics.null_count
            return None, None, statistics.null_count

    def may_have_nan(self, column: str) -> bool:
        """Return whether a value of a column, or an element of an array in it, may be NaN.

        True for every FLOAT or DOUBLE of an older file, which does not say.
        """
        return column in self._opened.nan_names

    @property
    def _opened(self) -> _OpenedFile:
        # Two threads may both open it; the results are equal and one is dropped.
        opened = self._opened_file
        if opened is None:
            opened = self._opened_file = self._open()
        return opened

    def _open(self) -> _OpenedFile:
        source = open_mapped(self.path, self.ref)
        trailer_bytes = min(self.ref.length, TRAILER_BYTES)
        tail = source.read_at(trailer_bytes, self.ref.length - trailer_bytes)
        try:
            start, stop = footer_bounds(tail, self.ref.length)
        except ValueError as error:
            raise CorruptionError(f"{self.path}: not base data: {error}") from error
        footer = source.read_at(stop - start, start)
        if not is_footer_intact(footer):
            raise CorruptionError(f"{self.path}: the checksum of the footer differs")
        with self._reading("the footer"):
            content = source.read_buffer()
            metadata = pq.read_metadata(source)
            check_chunks(metadata, content)
            file_schema = metadata.schema.to_arrow_schema()
            if len(set(file_schema.names)) < len(file_schema):
                raise ValueError(f"columns of equal names in {file_schema.names}")
            version = checked_version(self.path, metadata)
            schema = pa.schema([field.remove_metadata() for field in file_schema])
            name_by_id = {int(field.metadata[FIELD_ID_KEY]): field.name for field in file_schema}
            return _OpenedFile(
                source=source,
                content=content,
                metadata=metadata,
                schema=schema,
                index_by_name={name: i for i, name in enumerate(file_schema.names)},
                name_by_id=name_by_id,
                nan_names=_nan_names(metadata, schema, name_by_id),
                group_rows=self._checked_group_rows(metadata, version),
                footer=footer,
            )

    def _checked_group_rows(self, metadata: pq.FileMetaData, version: str) -> int:
        found = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        group_rows = ROW_GROUP_ROWS
        if version != "1" and len(found) > 1 and 0 < found[0] < group_rows:
            group_rows = found[0]
        full, rest = divmod(metadata.num_rows, group_rows)
        expected = [group_rows] * min(full, len(found)) + ([rest] if rest or not full else [])
        if found != expected or ROW_GROUP_ROWS % group_rows or sum(found) != metadata.num_rows:
            raise CorruptionError(f"{self.path}: row groups of {found} rows, expected {expected}")
        return group_rows

    def _reading(self, what: str) -> arrow_errors:
        """Turn Parquet's errors about bytes into a CorruptionError of this file."""
        return arrow_errors(self.path, f"cannot read {what}")


def taken(arrays: Sequence[pa.Array], positions: np.ndarray) -> list[pa.Array]:
    """Return arrays at int64[n] positions; a run of positions is a slice, without a copy."""
    first, count = int(positions[0]), len(positions)
    if positions[-1] - first == count - 1 and (np.diff(positions) == 1).all():
        return [array.slice(first, count) for array in arrays]
    rows = pa.RecordBatch.from_arrays(arrays, list(map(str, range(len(arrays)))))
    return rows.take(pa.array(positions)).columns


def footer_stamps(
    path: Path, *, has_whole_groups: bool, nan_ids: Collection[int] | None
) -> Mapping[bytes, bytes | str]:
    """Return the pairs for the footer of `path`; `sealed_footer` fills in the CRC.

    `nan_ids` are the columns that have a NaN; None if no column could have one.
    """
    stamps: dict[bytes, bytes | str] = {
        FORMAT_VERSION_KEY: "1" if has_whole_groups else str(FORMAT_VERSION),
        FILE_NAME_KEY: path.name,
    }
    if nan_ids is not None:
        stamps[NAN_COLUMNS_KEY] = ",".join(map(str, sorted(nan_ids)))
    return {**stamps, FOOTER_CRC_KEY: FOOTER_CRC_BLANK}


def _nan_names(
    metadata: pq.FileMetaData, schema: pa.Schema, name_by_id: Mapping[int, str]
) -> frozenset[str]:
    """Return the columns that have a NaN or, if the file does not say, could have one."""
    stored = (metadata.metadata or {}).get(NAN_COLUMNS_KEY)
    if stored is None:
        return frozenset(field.name for field in schema if _is_float(field.type))
    ids = [int(text) for text in stored.decode().split(",") if text]
    if unknown := [column_id for column_id in ids if column_id not in name_by_id]:
        raise ValueError(f"NaN in columns of the ids {unknown}, which the file does not have")
    return frozenset(name_by_id[column_id] for column_id in ids)


def _has_nan(values: pa.ChunkedArray) -> bool:
    """Return whether a floating-point number, or one in an array of them, is NaN."""
    if pa.types.is_list(values.type):
        values = pc.list_flatten(values)
    return pc.any(pc.is_nan(values)).as_py() is True


def _is_float(arrow_type: pa.DataType) -> bool:
    """Return whether values of a type, or elements of its arrays, are floating-point numbers."""
    value_type = arrow_type.value_type if pa.types.is_list(arrow_type) else arrow_type
    return bool(pa.types.is_floating(value_type))


def check_chunks(metadata: pq.FileMetaData, content: pa.Buffer) -> None:
    """Raise Arrow's error for a footer with a column chunk that Arrow cannot describe.

    Asked for the metadata of such a chunk, pyarrow ends the process, because Python does not expect
    what its C++ part throws. A read that buffers first looks at all chunks, where errors are
    expected, and then reads, which the closed source of `content` refuses.
    """
    source = pa.BufferReader(content)
    reader = pq.ParquetFile(source, metadata=metadata, pre_buffer=True)
    source.close()
    with contextlib.suppress(ValueError):  # a closed source
        reader.read_row_groups(range(metadata.num_row_groups), use_threads=False)


def checked_version(path: Path, metadata: pq.FileMetaData) -> str:
    """Return the format version of the file at `path`.

    Raises FormatVersionError, and CorruptionError for a file that has the name of another one.
    """
    pairs = metadata.metadata or {}
    stored = pairs.get(FORMAT_VERSION_KEY, b"none").decode(errors="replace")
    if stored != "1":
        check_format_version(f"{path}: base data", stored, str(FORMAT_VERSION))
    name = pairs.get(FILE_NAME_KEY)
    if name is not None and name != path.name.encode():
        raise CorruptionError(
            f"{path}: holds the file {name.decode(errors='replace')}; files were swapped, or one"
            " was copied over another: restore the file from a copy of the table"
        )
    return stored


def sealed_footer(tail: bytes) -> bytes:
    """Return the end of a Parquet file with the footer's checksum filled in."""
    start, stop = footer_bounds(tail, len(tail))
    position = _crc_position(tail, start, stop)
    assert tail[position : position + 8] == FOOTER_CRC_BLANK
    digits = b"%08x" % zlib.crc32(tail[start:stop])
    return tail[:position] + digits + tail[position + 8 :]


def is_footer_intact(footer: bytes) -> bool:
    """Return whether a footer's bytes are those that `sealed_footer` made."""
    position = _crc_position(footer, 0, len(footer))
    if position < 0:
        return False
    blank = footer[:position] + FOOTER_CRC_BLANK + footer[position + 8 :]
    return footer[position : position + 8] == b"%08x" % zlib.crc32(blank)


def footer_bounds(tail: bytes, file_length: int) -> tuple[int, int]:
    """Return (start, stop) of the footer in a file of `file_length` bytes that ends with `tail`.

    Raises ValueError when the trailer is not Parquet's or points outside the file.
    """
    if len(tail) < TRAILER_BYTES or tail[-4:] != PARQUET_MAGIC:
        raise ValueError(f"it ends with {tail[-4:]!r}, expected {PARQUET_MAGIC!r}")
    stop = file_length - TRAILER_BYTES
    footer_length = int.from_bytes(tail[-8:-4], "little")
    if footer_length > stop:
        raise ValueError(f"the footer's length is {footer_length}, the file's {file_length}")
    return stop - footer_length, stop


def _crc_position(data: bytes, start: int, stop: int) -> int:
    """Return the offset of the checksum's digits in data[start:stop], or -1."""
    key_position = data.rfind(FOOTER_CRC_KEY + _THRIFT_STRING_HEADER, start, stop)
    if key_position < 0:
        return -1
    position = key_position + len(FOOTER_CRC_KEY) + len(_THRIFT_STRING_HEADER)
    return position if position + 8 <= stop else -1
