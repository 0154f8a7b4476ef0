"""Page ranges: some pages of a row group, cut out of base data and read as a small Parquet file.

Arrow reads whole row groups. A short read needs few of their rows, so the pages that hold them are
copied behind one another, under a footer that describes a file with one row group:

    base data    "PAR1" │ dictionary of a, pages of a, dictionary of b, … │ offset indexes │ footer
                          ▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔  ▔▔▔        ▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔
    cut          "PAR1" │ dictionary of a, pages of a, dictionary of b, … │ footer

The footer of base data says where the chunk of a column is, and where its offset index is, which
lists the offset, the size and the first row of each page. Both are in thrift's compact protocol: a
field is one byte (its id minus the id before, and its type), then its value; a number is a zigzag
integer of variable length. The cut's footer repeats the bytes that describe a column, and has
offsets of its own. Plain pages, which follow a dictionary that was full, are cut without it.

**Invariants**: (1) an offset index is used only if its pages fill the column chunk without a gap
and their rows ascend; a page is used only if its header has the number of values that the index
gives it, because no checksum covers the index.

**Threads**: any; nothing is changed after it is made.

**Source**: parquet-format: parquet.thrift and PageIndex.md; thrift-compact-protocol.md.
"""

from __future__ import annotations

import itertools
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PAGE_ROWS = 8192
PARQUET_MAGIC = b"PAR1"

# Types of thrift's compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_STOP = b"\0"
# The metadata of a file nest four deep.
_DEPTH_MAX = 16
_VARINT_BITS_MAX = 63

# The head of a data page: its type, its two sizes, maybe its checksum, its number of values, its
# encoding. Every short read checks some, and a walk through the fields takes ten times as long.
_PAGE_HEADER = re.compile(
    rb"\x15\x00(?:\x15[\x80-\xff]*[\x00-\x7f]){2,3}[\x1c\x2c]\x15([\x80-\xff]*[\x00-\x7f])"
    rb"\x15([\x00-\x7f])"
)
_PLAIN = b"\0"

# The fields of a page in an offset index: its offset, its size and its first row. A short read of a
# row group parses those of all columns, and a walk through the fields takes twice as long.
_PAGE_LOCATION = re.compile(
    rb"\x16([\x80-\xff]{0,9}[\x00-\x7f])\x15([\x80-\xff]{0,9}[\x00-\x7f])"
    rb"\x16([\x80-\xff]{0,9}[\x00-\x7f])\x00"
)

# Of one value, by physical type, where all values have as many.
_VALUE_BYTES = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}

# Returns the bytes of each (start, stop) of the file.
ReadRanges = Callable[[Sequence[tuple[int, int]]], Sequence[pa.Buffer]]
# Ascending (first, after the last) of page numbers, or of rows.
Runs = tuple[tuple[int, int], ...]


class PageIndexError(ValueError):
    """A footer, an offset index or a page header is not one that a writer of base data makes."""


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """The values of one column in one row group; offsets are those of the file."""

    description: bytes  # type, encodings, path and codec, as the footer has them
    uncompressed_bytes: int
    start: int  # that of the dictionary page, if there is one
    data_start: int
    stop: int
    index_start: int
    index_stop: int


@dataclass(frozen=True, slots=True)
class Pages:
    """The n pages of a chunk: n + 1 offsets in the file, and n + 1 first rows, int64."""

    offsets: array[int]
    first_rows: array[int]

    def covering(self, start: int, stop: int) -> Runs:
        """Return the pages with rows start..stop."""
        first = bisect_right(self.first_rows, start) - 1
        return ((first, bisect_right(self.first_rows, stop - 1)),)

    def holding(self, rows: np.ndarray) -> Runs:
        """Return the pages with int64[m] rows in any order, m ≥ 1."""
        pages = np.searchsorted(np.frombuffer(self.first_rows, np.int64), rows, "right") - 1
        numbers = np.flatnonzero(np.bincount(pages))
        breaks = np.flatnonzero(np.diff(numbers) != 1)
        firsts = numbers[np.concatenate([[0], breaks + 1])].tolist()
        lasts = numbers[np.concatenate([breaks, [len(numbers) - 1]])].tolist()
        return tuple((first, last + 1) for first, last in zip(firsts, lasts, strict=True))


class PageDirectory:
    """Where the pages of a file are, column chunk by column chunk, each parsed when it is needed.

    Also the lengths of the bounds in the statistics: Parquet ends the process if it is asked for
    bounds that are too short for their type.
    """

    def __init__(self, footer: bytes, metadata: pq.FileMetaData, read: ReadRanges) -> None:
        """`metadata` are those that Parquet has parsed from the footer; `read` reads the file.

        Raises PageIndexError.
        """
        self._footer = footer
        self._metadata = metadata
        self._read = read
        self._elements = _column_elements(footer)
        self._chunks: dict[tuple[int, int], _FoundChunk] = {}
        self._pages: dict[tuple[int, int], Pages] = {}
        self._first_rows: dict[bytes, array[int]] = {}  # most chunks have the same
        if len(self._elements) != metadata.num_columns:
            raise PageIndexError(f"{len(self._elements)} columns, not {metadata.num_columns}")

    def covering(self, row_group: int, column: int, start: int, stop: int) -> PageRanges | None:
        """Return the pages of a column chunk with rows start..stop of the row group.

        None if the chunk has no offset index, or holds arrays, whose values are more than its rows.
        Raises PageIndexError.
        """
        return self._chosen(row_group, column, lambda pages: pages.covering(start, stop))

    def holding(self, row_group: int, column: int, rows: np.ndarray) -> PageRanges | None:
        """Return the pages of a column chunk with int64[m] rows of the row group, m ≥ 1.

        None and errors as of `covering`.
        """
        return self._chosen(row_group, column, lambda pages: pages.holding(rows))

    def _chosen(
        self, row_group: int, column: int, choose: Callable[[Pages], Runs]
    ) -> PageRanges | None:
        element = self._elements[column]
        chunk = self._found(row_group, column).chunk if element is not None else None
        if chunk is None or element is None:
            return None
        if (row_group, column) not in self._pages:
            self.load(row_group, [column])
        pages = self._pages[row_group, column]
        return PageRanges(element, chunk, pages, choose(pages))

    def load(self, row_group: int, columns: Iterable[int]) -> None:
        """Read the offset indexes of column chunks, those that there are, in one read.

        Raises PageIndexError.
        """
        missing = [c for c in columns if (row_group, c) not in self._pages and self._elements[c]]
        found = [(column, self._found(row_group, column).chunk) for column in missing]
        chunks = [(column, chunk) for column, chunk in found if chunk is not None]
        if not chunks:
            return
        row_count = self._metadata.row_group(row_group).num_rows
        indexes = self._read([(chunk.index_start, chunk.index_stop) for _, chunk in chunks])
        for (column, chunk), index in zip(chunks, indexes, strict=True):
            pages = read_pages(chunk, index.to_pybytes(), row_count)
            first_rows = self._first_rows.setdefault(pages.first_rows.tobytes(), pages.first_rows)
            self._pages[row_group, column] = Pages(pages.offsets, first_rows)

    def check_bounds(self, row_group: int, column: int, described: pq.ColumnSchema) -> None:
        """Raise PageIndexError if a bound in the statistics of a chunk has a wrong length."""
        is_fixed = described.physical_type == "FIXED_LEN_BYTE_ARRAY"
        length = described.length if is_fixed else _VALUE_BYTES.get(described.physical_type)
        found = self._found(row_group, column).bound_lengths
        if length is not None and found not in ((), (length,)):
            raise PageIndexError(f"bounds of {[*found]} bytes, expected {length}")

    def cut(self, ranges: Sequence[PageRanges], row_count: int) -> bytes:
        """Return a Parquet file with the first rows of the given pages; see `cut_file`."""
        return cut_file(ranges, row_count, self._read)

    def _found(self, row_group: int, column: int) -> _FoundChunk:
        found = self._chunks.get((row_group, column))
        if found is None:
            described = self._metadata.row_group(row_group).column(column)
            found = self._chunks[row_group, column] = _found_chunk(self._footer, described)
        return found


class _FoundChunk(NamedTuple):
    """A column chunk, None without an offset index, and the lengths of its bounds."""

    chunk: ColumnChunk | None
    bound_lengths: tuple[int, ...]  # ascending


def _column_elements(footer: bytes) -> list[bytes | None]:
    """Return the schema element of each column of the table, None for one that is not flat."""
    thrift, elements = _Thrift(footer), list[tuple[bytes, int]]()
    for field, kind in thrift.fields():
        if field == 2:
            break
        thrift.skip(kind)
    for _ in range(thrift.list_length()):
        start, children = thrift.at, 0
        for field, kind in thrift.fields():
            if field == 5:
                children = thrift.number()
            else:
                thrift.skip(kind)
        elements.append((thrift.data[start : thrift.at], children))
    columns: list[bytes | None] = []
    rest = iter(elements[1:])  # without the root; depth first
    for element, children in rest:
        columns.append(None if children else element)
        while children > 0:
            inner = next(rest, None)
            if inner is None:
                raise PageIndexError(f"a schema element lacks {children} of its children")
            children += inner[1] - 1
    return columns


def _found_chunk(footer: bytes, described: pq.ColumnChunkMetaData) -> _FoundChunk:
    """Find a column chunk in the footer by its numbers. Raises PageIndexError.

    Parquet has parsed the numbers, but it does not tell where the offset index is. A walk through
    the footer to the chunk would take hundreds of times as long where it has many row groups.
    """
    data_start, dictionary_start = described.data_page_offset, described.dictionary_page_offset
    numbers = [
        b"\x16" + _zigzag(described.num_values),  # 5
        b"\x16" + _zigzag(described.total_uncompressed_size),  # 6
        b"\x16" + _zigzag(described.total_compressed_size),  # 7
        b"\x26" + _zigzag(data_start),  # 9
        b"" if dictionary_start is None else b"\x26" + _zigzag(dictionary_start),  # 11
    ]
    at, start = _only_place(footer, b"".join(numbers)), dictionary_start or data_start
    thrift = _Thrift(footer, at + sum(map(len, numbers)))
    lengths = set[int]()
    for field, kind in thrift.fields(after=9 if dictionary_start is None else 11):
        if field == 12 and kind == _STRUCT:
            lengths.update(_bound_lengths(thrift))
        else:
            thrift.skip(kind)
    index: dict[int, int] = {}
    for field, kind in thrift.fields(after=3):  # the metadata
        if field in (4, 5):
            index[field] = thrift.number()
        else:
            thrift.skip(kind)
    if len(index) < 2:
        return _FoundChunk(None, tuple(sorted(lengths)))
    chunk = ColumnChunk(
        _description(footer, at, described),
        uncompressed_bytes=described.total_uncompressed_size,
        start=start,
        data_start=data_start,
        stop=start + described.total_compressed_size,
        index_start=index[4],
        index_stop=index[4] + index[5],
    )
    if not 0 <= start <= chunk.data_start <= chunk.stop <= chunk.index_start < chunk.index_stop:
        raise PageIndexError(f"a column chunk at {start} to {chunk.stop}, its index at {index[4]}")
    return _FoundChunk(chunk, tuple(sorted(lengths)))


def _only_place(footer: bytes, numbers: bytes) -> int:
    at = footer.find(numbers)
    if at < 0 or footer.find(numbers, at + 1) >= 0:
        raise PageIndexError("the footer does not describe each column chunk once")
    return at


def _description(footer: bytes, stop: int, described: pq.ColumnChunkMetaData) -> bytes:
    """Return the type, encodings, path and codec of a flat column, which end at `stop`."""
    path, encodings = described.path_in_schema.encode(), len(described.encodings)
    path_field = b"\x19\x18" + _varint(len(path)) + path
    description = footer[max(stop - encodings - len(path_field) - 6, 0) : stop]
    expected = b"\x15", b"\x19" + bytes([encodings << 4 | _I32]), path_field + b"\x15"
    found = description[:1], description[2:4], description[4 + encodings : -1]
    if encodings > 14 or found != expected:
        raise PageIndexError(f"the description of column {described.path_in_schema} differs")
    return description


def _bound_lengths(thrift: _Thrift) -> Iterator[int]:
    """Yield the lengths of the greatest and least values in statistics, of both kinds."""
    for field, kind in thrift.fields():
        if field in (1, 2, 5, 6) and kind == _BINARY:
            yield thrift.skip_bytes()
        else:
            thrift.skip(kind)


def read_pages(chunk: ColumnChunk, index: bytes, row_count: int) -> Pages:
    """Parse the offset index of a chunk with `row_count` rows. Raises PageIndexError."""
    thrift = _Thrift(index)
    offsets, first_rows, end = array("q"), array("q"), chunk.data_start
    for field, kind in thrift.fields():
        if field != 1:
            thrift.skip(kind)
            continue
        for _ in range(thrift.list_length()):
            location = _PAGE_LOCATION.match(index, thrift.at)
            if location is None:
                raise PageIndexError(f"the location of page {len(offsets)} has other fields")
            thrift.at = location.end()
            offset, size, first_row = map(_number_of, location.groups())
            if offset != end or size <= 0:
                raise PageIndexError(f"a page at {offset} of {size} bytes, expected at {end}")
            offsets.append(offset)
            first_rows.append(first_row)
            end = offset + size
    offsets.append(end)
    first_rows.append(row_count)
    rising = all(a < b for a, b in itertools.pairwise(first_rows))
    if end != chunk.stop or not rising or first_rows[0] != 0:
        raise PageIndexError(f"its pages end at {end} with the first rows {first_rows.tolist()}")
    return Pages(offsets, first_rows)


@dataclass(frozen=True)
class PageRanges:
    """Runs of pages of a column chunk, and the column's schema element."""

    element: bytes
    chunk: ColumnChunk
    pages: Pages
    runs: Runs

    @property
    def rows(self) -> Runs:
        """The rows of the row group that the runs have."""
        first_rows = self.pages.first_rows
        return tuple((first_rows[first], first_rows[last]) for first, last in self.runs)

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """(Start, stop) in the file of the dictionary, which may be empty, and of each run."""
        offsets = self.pages.offsets
        runs = [(offsets[first], offsets[last]) for first, last in self.runs]
        return [(self.chunk.start, self.chunk.data_start), *runs]


def cut_file(columns: Sequence[PageRanges], row_count: int, read: ReadRanges) -> bytes:
    """Return a Parquet file with the pages of columns that all have the same rows.

    Its footer names only the first `row_count` rows, because a reader decodes no page further than
    that. The columns are in the order given. Raises PageIndexError.

    All is read at once, each dictionary too: whether it is needed is seen in the pages.
    """
    parts = iter(read([bounds for column in columns for bounds in column.bounds]))
    body, described = [PARQUET_MAGIC], []
    position = len(PARQUET_MAGIC)
    for column in columns:
        dictionary, data = next(parts), [next(parts) for _ in column.runs]
        is_plain = True
        for (first, last), part in zip(column.runs, data, strict=True):
            is_plain = _are_plain(column.pages, first, last, part) and is_plain
        if not is_plain:
            data.insert(0, dictionary)
        dictionary_bytes = 0 if is_plain else len(dictionary)
        nbytes = sum(map(len, data))
        described.append(_described(column, position, dictionary_bytes, nbytes))
        body += data
        position += nbytes
    footer = _footer([column.element for column in columns], described, row_count)
    return b"".join([*body, footer, len(footer).to_bytes(4, "little"), PARQUET_MAGIC])


def _are_plain(pages: Pages, first: int, last: int, data: pa.Buffer) -> bool:
    """Return whether no page in `data` needs the dictionary.

    Raises PageIndexError unless each page's header has as many values as the index says.
    """
    offsets, first_rows, encodings = pages.offsets, pages.first_rows, set[bytes]()
    for page in range(first, last):
        header = _PAGE_HEADER.match(data, offsets[page] - offsets[first])
        expected = first_rows[page + 1] - first_rows[page]
        if header is None or header[1] != _zigzag(expected):
            raise PageIndexError(f"the page at {offsets[page]} has not {expected} rows")
        encodings.add(header[2])
    return encodings == {_PLAIN}


def _described(column: PageRanges, position: int, dictionary_bytes: int, nbytes: int) -> bytes:
    """Return a ColumnChunk of the cut; its pages, `nbytes` with the dictionary, begin there."""
    value_count = sum(stop - start for start, stop in column.rows)
    metadata = [
        column.chunk.description,
        b"\x16" + _zigzag(value_count),  # 5, number of values
        b"\x16" + _zigzag(column.chunk.uncompressed_bytes),  # 6
        b"\x16" + _zigzag(nbytes),  # 7, compressed size
        b"\x26" + _zigzag(position + dictionary_bytes),  # 9, offset of the data pages
        b"\x26" + _zigzag(position) if dictionary_bytes else b"",  # 11, that of the dictionary page
        _STOP,
    ]
    # 2, offset of the metadata, which is no longer used; 3, the metadata
    return b"".join([b"\x26\0\x1c", *metadata, _STOP])


def _footer(elements: Sequence[bytes], chunks: Sequence[bytes], row_count: int) -> bytes:
    root = b"\x48\x06schema\x15" + _zigzag(len(elements)) + _STOP
    rows = _zigzag(row_count)
    row_group = [b"\x19", _structs(len(chunks)), *chunks, b"\x16\0\x16", rows, _STOP]
    return b"".join(
        [
            b"\x15\x04",  # 1, version 2
            b"\x19",  # 2, the schema
            _structs(len(elements) + 1),
            root,
            *elements,
            b"\x16",  # 3, number of rows
            rows,
            b"\x19",  # 4, the row groups
            _structs(1),
            *row_group,
            _STOP,
        ]
    )


def _structs(count: int) -> bytes:
    """Return the head of a list of structs."""
    if count < 15:
        return bytes([count << 4 | _STRUCT])
    return bytes([0xF0 | _STRUCT]) + _varint(count)


def _zigzag(number: int) -> bytes:
    return _varint(number << 1)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _number_of(varint: bytes) -> int:
    value = 0
    for byte in reversed(varint):
        value = value << 7 | byte & 127
    return value >> 1 ^ -(value & 1)


class _Thrift:
    """Reads values of the compact protocol, one after the other, from `at` on."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def fields(self, after: int = 0) -> Iterator[tuple[int, int]]:
        """Yield the (id, type) of each field of a struct; the caller reads or skips its value.

        The fields up to the id `after` have been read.
        """
        field = after
        while True:
            head = self._byte()
            if head == 0:
                return
            field = field + (head >> 4) if head >> 4 else self.number()
            yield field, head & 15

    def number(self) -> int:
        """Return an integer."""
        value = self._unsigned()
        return value >> 1 ^ -(value & 1)

    def list_length(self) -> int:
        """Return the length of a list of structs; its elements follow."""
        count, kind = self._list_head()
        if kind != _STRUCT:
            raise PageIndexError(f"a list of type {kind}, expected structs")
        return count

    def skip(self, kind: int, depth: int = 0) -> None:
        """Pass over a value; `depth` is how many structs and lists it is in."""
        if depth > _DEPTH_MAX:
            raise PageIndexError(f"values inside of {depth} others")
        if kind in (_I16, _I32, _I64):
            self._unsigned()
        elif kind == _BINARY:
            self.skip_bytes()
        elif kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner, depth + 1)
        elif kind in (_LIST, _SET):
            count, inner = self._list_head()
            for _ in range(count):
                self.skip(_BYTE if inner in (_TRUE, _FALSE) else inner, depth + 1)
        elif kind == _BYTE:
            self.at += 1
        elif kind == _DOUBLE:
            self.at += 8
        elif kind not in (_TRUE, _FALSE):
            raise PageIndexError(f"a value of type {kind}")

    def skip_bytes(self) -> int:
        """Pass over bytes; return how many."""
        length = self._unsigned()
        self.at += length
        return length

    def _list_head(self) -> tuple[int, int]:
        head = self._byte()
        count = head >> 4
        count = self._unsigned() if count == 15 else count
        if count > len(self.data) - self.at:  # each element has a byte or more
            raise PageIndexError(f"a list of {count} in {len(self.data)} bytes")
        return count, head & 15

    def _byte(self) -> int:
        if self.at >= len(self.data):
            raise PageIndexError("it ends too early")
        self.at += 1
        return self.data[self.at - 1]

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > _VARINT_BITS_MAX:
                raise PageIndexError("an integer of more than 64 bits")
