"""Base data of one DiskRowSet: a Parquet file with its rows in key order.

    rowid r  →  row group r // group_rows, row r % group_rows of it

Written once, in order, from sorted rows; read by row group and column, or by the pages of a row
group that have the rows of a short read (`page_range`). `column_storage` chooses how each column
is encoded and compressed. A major delta compaction of some columns writes a file with only those
columns, so a file's columns are a subset of the rowset's, known by id. Any Parquet reader can read
the file; kudulite adds metadata and a checksum:

    file       := parquet pages (each with a CRC-32 of its own)  footer  length:u32le  "PAR1"
    footer     := thrift FileMetaData with the key-value metadata of footer.py

All row groups but the last have the same number of rows, so a rowid determines its row group. They
have ROW_GROUP_ROWS rows, or, in format version 2, a half, a quarter, an eighth and so on, because
wide rows would fill more than ROW_GROUP_BYTES of memory. Columns have their names and, as Parquet
field ids, their column ids.

Statistics leave NaN out. A reader that compares with NaN, as DuckDB and Spark do, may use those of
a FLOAT or DOUBLE column only if the file has no NaN in it (`may_have_nan`).

**Damage**: The footer's checksum and the file's name in it are verified when the file is opened, a
page's checksum when a process reads the page first. Together they cover all of the file except page
headers, whose damage Parquet notices in most cases. The file's own CRC in its FileRef covers every
byte; `kudulite check` compares it. Decoded values are validated at their first read, because a file
may be made to fit its checksums.

**Threads**: Writers on different sinks, and all of `BaseDataFile`, from any thread; pyarrow encodes
and decodes without the GIL. The parsed footer and the opened file are shared. Each read makes its
own Parquet reader (60 µs), because pyarrow does not promise that a reader can be shared, and gives
the memory of a map back. It names all the bytes that it needs in one call, so a store fetches them
side by side: one round for a footer, one for the columns of row groups, one for the pages of some
rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kudulite.basefile.block_cache import PageParts, VerifiedParts, taken
from kudulite.basefile.column_storage import chosen_storage
from kudulite.basefile.footer import (
    TRAILER_BYTES,
    check_chunks,
    checked_version,
    footer_bounds,
    footer_stamps,
    is_footer_intact,
    nan_names,
    parsed_footer,
    sealed_footer,
)
from kudulite.basefile.page_range import (
    PAGE_ROWS,
    PageDirectory,
    PageIndexError,
    PageRanges,
    Runs,
)
from kudulite.errors import CorruptionError, StorageError
from kudulite.model.schema import FIELD_ID_KEY, Column
from kudulite.model.types import check_values, has_nan, is_float, joined
from kudulite.storage.storage import MAPPED_BYTES_MIN, FileRef, Range, Sink, Source, Storage
from kudulite.storage.storage_error import arrow_errors

ROW_GROUP_ROWS = 131072  # on disk: the rows of a row group in version 1, the most in version 2
ROW_GROUP_BYTES = 32 << 20  # of Arrow memory; a scan holds a few row groups for each thread
# A read of more rows decodes the whole row group, which costs less than cutting its pages out.
CUT_ROWS_MAX = ROW_GROUP_ROWS // 4
# Scattered rows are cut out by pages if the others have so many bytes; cutting takes 1 ms, too.
_CUT_BYTES_MIN = 1 << 20
# A footer of 10 KB takes 97 KB when Parquet has parsed it, and the places of all pages 78 KB.
_PARSED_FACTOR = 16
# A dictionary with fewer compressed bytes was hardly full.
_SURE_DICTIONARY_BYTES = 64 << 10


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
        self._float_columns = [column for column in columns if is_float(column.type.arrow)]
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
            if column.id not in self._nan_ids and has_nan(table.column(column.name)):
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


# Returns pages of a column, by its index in the file; None where they are not known.
_Choose = Callable[[PageDirectory, int], PageRanges | None]


@dataclass(frozen=True)
class _OpenedFile:
    """The parsed parts of a file, made at its first use; immutable, shared by all threads."""

    source: Source
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
        return PageDirectory(self.footer, self.metadata, self.source.read)

    @cached_property
    def parts(self) -> PageParts:
        """The numbers of the parts of the file that are verified."""
        return PageParts(len(self.index_by_name), self.group_rows, self.metadata.num_rows)

    def bounds(self, row_groups: Sequence[int], columns: Sequence[int]) -> list[Range]:
        """Return (start, stop) of column chunks in the file."""
        found = []
        for group in map(self.metadata.row_group, row_groups):
            for chunk in map(group.column, columns):
                start = chunk.dictionary_page_offset or chunk.data_page_offset
                found.append((start, start + chunk.total_compressed_size))
        return found


class BaseDataFile:
    """One base data file, opened at its first use.

    Names are those of the columns when the file was written. `name_by_id` finds a column that was
    renamed since.
    """

    def __init__(
        self, storage: Storage, path: Path, ref: FileRef, verified: VerifiedParts | None = None
    ) -> None:
        """Pages of `verified` are not verified again."""
        self._storage = storage
        self.path, self.path_text = path, str(path)
        self.ref = ref
        self._opened_file: _OpenedFile | None = None
        self._verified = VerifiedParts() if verified is None else verified

    @property
    def kept_bytes(self) -> int:
        """About the memory of the parsed footer, the page directory, and the opened file.

        A file of a directory is mapped, and of an object the end is kept.
        """
        parsed = _PARSED_FACTOR * len(self._opened.footer)
        return parsed + min(self.ref.length, MAPPED_BYTES_MIN)

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

        Those of the columns `coded` are returned as dictionary arrays.

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
        # Verifying checksums at each scan would take a tenth of the scan's time.
        indexes = [opened.index_by_name[name] for name in columns]
        chunks = opened.parts.of_chunks(row_groups, indexes)
        is_verified = self._verified.has(self.path_text, self.ref, chunks)
        with self._reading(f"row groups {list(row_groups)}, columns {list(columns)}"):
            reader = pq.ParquetFile(
                opened.source.file(opened.bounds(row_groups, indexes)),
                metadata=opened.metadata,
                pre_buffer=False,  # it reads ranges that are near each other as one
                page_checksum_verification=not is_verified,
                read_dictionary=list(coded),
            )
            table = reader.read_row_groups(
                list(row_groups), columns=list(columns), use_threads=use_threads
            )
            if not is_verified:
                check_values(table)
        opened.source.release()
        expected_rows = sum(stop - start for start, stop in map(self.row_group_rows, row_groups))
        if table.num_rows != expected_rows:
            raise CorruptionError(f"{self.path}: read {table.num_rows} rows, not {expected_rows}")
        if not is_verified:
            self._verified.add(self.path_text, self.ref, chunks)
        # The reader gives file order, adds "a.b" when asked for "a", and puts ids on the fields.
        arrays = [table.column(name) for name in columns]
        fields = [f.with_type(a.type) for f, a in zip(schema, arrays, strict=True)]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    def read_rows(
        self, start: int, stop: int, columns: Sequence[str], *, is_coded: bool = False
    ) -> list[pa.Array]:
        """Return the values of each column in rows start..stop, which are in one row group.

        With `is_coded`, text with few values is returned as dictionary arrays, which takes less
        time and memory.

        Raises CorruptionError when a page is damaged, KeyError for a column that the file does not
        have.
        """
        group, offset = divmod(start, self.group_rows)
        first, last = self.row_group_rows(group)
        count = stop - start
        coded = [name for name in columns if is_coded and self._is_coded(group, name)]
        is_short = count <= min(CUT_ROWS_MAX, (last - first) // 2)
        found = self._cut(group, offset, offset + count, columns, coded) if is_short else {}
        rest = [name for name in columns if name not in found]
        if rest:
            table = self.read([group], rest, coded=coded).slice(offset, count)
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
        described = self._opened.metadata.row_group(group)
        row_bytes = described.total_byte_size / described.num_rows / described.num_columns
        other_rows = described.num_rows - PAGE_ROWS * np.count_nonzero(np.bincount(at // PAGE_ROWS))
        is_cut = other_rows * row_bytes * len(columns) >= _CUT_BYTES_MIN
        found = self._cut_some(group, at, columns, coded, use_threads) if is_cut else {}
        rest = [name for name in columns if name not in found]
        if rest:
            table = self.read([group], rest, use_threads, coded)
            found |= zip(rest, taken(list(map(joined, table.columns)), at), strict=True)
        return [
            found[name].dictionary_decode() if name in coded else found[name] for name in columns
        ]

    def _is_coded(self, group: int, name: str) -> bool:
        """Whether a column is text of which the pages have only codes of a dictionary.

        Plain pages follow a dictionary that was full; these are slow to turn into codes.
        """
        opened = self._opened
        if not pa.types.is_string(opened.schema.field(name).type):
            return False
        chunk = opened.metadata.row_group(group).column(opened.index_by_name[name])
        start = chunk.dictionary_page_offset
        return start is not None and bool(chunk.data_page_offset - start < _SURE_DICTIONARY_BYTES)

    def _cut(
        self, group: int, start: int, stop: int, columns: Sequence[str], coded: Sequence[str]
    ) -> dict[str, pa.Array]:
        """Return rows start..stop of a row group, of those columns whose pages are known."""
        found = dict[str, pa.Array]()
        chosen = self._chosen(
            group, columns, lambda pages, index: pages.covering(group, index, start, stop)
        )
        for ((first, last),), pages in chosen.items():
            count = min(stop, last) - first
            for name, values in self._decoded(group, pages, count, coded).items():
                found[name] = values.slice(start - first, stop - start)
        return found

    def _cut_some(
        self,
        group: int,
        at: np.ndarray,
        columns: Sequence[str],
        coded: Sequence[str],
        use_threads: bool,
    ) -> dict[str, pa.Array]:
        """Return a row group's values at int64[m], m ≥ 1, of those columns whose pages are known.

        Only the pages with these values are decoded.
        """
        found = dict[str, pa.Array]()
        chosen = self._chosen(group, columns, lambda pages, index: pages.holding(group, index, at))
        for rows, pages in chosen.items():
            starts, stops = np.array(rows).T
            ends = np.cumsum(stops - starts)
            values = self._decoded(group, pages, int(ends[-1]), coded, use_threads)
            run = np.searchsorted(starts, at, "right") - 1
            places = at - stops[run] + ends[run]
            found |= zip(values, taken(list(values.values()), places), strict=True)
        return found

    def _chosen(
        self, group: int, columns: Sequence[str], choose: _Choose
    ) -> dict[Runs, dict[str, PageRanges]]:
        """Return chosen pages by their rows and by column: a cut has columns of the same rows."""
        found: dict[Runs, dict[str, PageRanges]] = {}
        with self._reading(f"page indexes of row group {group}, columns {list(columns)}"):
            directory = self._opened.pages
            indexes = [self._opened.index_by_name[name] for name in columns]
            directory.load(group, indexes)
            for name, index in zip(columns, indexes, strict=True):
                pages = choose(directory, index)
                if pages is not None:
                    found.setdefault(pages.rows, {})[name] = pages
        return found

    def _decoded(
        self,
        group: int,
        chosen: Mapping[str, PageRanges],
        count: int,
        coded: Sequence[str] = (),
        use_threads: bool = False,
    ) -> dict[str, pa.Array]:
        """Return the first `count` values in chosen pages of columns that all have the same rows.

        The columns `coded` are returned as dictionary arrays.
        """
        opened, verified = self._opened, self._verified
        rows = next(iter(chosen.values())).rows
        with self._reading(f"pages of row group {group}, columns {list(chosen)}"):
            indexes = [opened.index_by_name[name] for name in chosen]
            overlapped, filled = opened.parts.of_pages(group, indexes, rows)
            chunks = opened.parts.of_chunks([group], indexes)
            is_verified = verified.has(self.path_text, self.ref, chunks)
            has_checksums = is_verified or verified.has(self.path_text, self.ref, overlapped)
            content = opened.pages.cut(list(chosen.values()), count)
            reader = pq.ParquetFile(
                pa.BufferReader(content),
                page_checksum_verification=not has_checksums,
                read_dictionary=[name for name in chosen if name in coded],
            )
            table = reader.read_row_group(0, use_threads=use_threads)
            if not is_verified:
                check_values(table)
            if table.num_rows != count:
                raise PageIndexError(f"read {table.num_rows} rows, not {count}")
        if not has_checksums:
            verified.add(self.path_text, self.ref, filled)
        opened.source.release()
        return {name: joined(c) for name, c in zip(chosen, table.columns, strict=True)}

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
        source = self._storage.open_ranges(self.path, self.ref)
        end = self.ref.length
        (tail,) = source.read([(max(0, end - TRAILER_BYTES), end)])
        try:
            start, stop = footer_bounds(tail.to_pybytes(), end)
        except ValueError as error:
            raise CorruptionError(f"{self.path}: not base data: {error}") from error
        footer = source.read([(start, stop)])[0].to_pybytes()
        if not is_footer_intact(footer):
            raise CorruptionError(f"{self.path}: the checksum of the footer differs")
        with self._reading("the footer"):
            metadata = parsed_footer(footer)
            check_chunks(metadata, source.file([]))
            file_schema = metadata.schema.to_arrow_schema()
            if len(set(file_schema.names)) < len(file_schema):
                raise ValueError(f"columns of equal names in {file_schema.names}")
            version = checked_version(self.path, metadata)
            schema = pa.schema([field.remove_metadata() for field in file_schema])
            name_by_id = {int(field.metadata[FIELD_ID_KEY]): field.name for field in file_schema}
            return _OpenedFile(
                source=source,
                metadata=metadata,
                schema=schema,
                index_by_name={name: i for i, name in enumerate(file_schema.names)},
                name_by_id=name_by_id,
                nan_names=nan_names(metadata, schema, name_by_id),
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
