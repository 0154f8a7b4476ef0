"""The files of a backup set, their JSON forms, and the content hash of a table.

    <set>/lock                           one backup at a time, in a directory
    <set>/<backup id>/plan.json          in progress: the moment, the parent, the pieces
                      piece-00007.json   in progress: the result of piece 7, with its file's name
                      piece-00007-<uuid>.parquet
                      manifest.json      last, put if absent: the backup and all its files

A backup id is its moment, so ids sort as moments do: `20261121T101112.000345Z-0001` is the wall
time in microseconds and the logical part of the HybridTime in hexadecimal.

A data file of a full backup has the table's columns. A data file of an incremental backup also has
those of `Table.changes`, of which a restore reads `_change_type` alone. In files of older software
an update is called `update`, and `_commit_timestamp` is a HybridTime. The columns have their ids as
Parquet field ids, but a restore uses the manifest's schema.

The content hash has 64 bits and does not depend on where the rows are stored or in which order
they are read:

    cell = mix of its bytes, 8 at a time      row = mix of its cells, in the order of columns
    content = the sum of all rows, modulo 2**64

Sums over tablets or key ranges add up, so that several processes can share the work. Equal tables
have equal sums; different tables have equal sums with a probability of 2**-64. The hash is no
protection against rows that are forged on purpose. Floats count by their bits: NaN equals itself,
and -0.0 differs from 0.0.

Where no lock keeps two jobs apart, an unfinished backup is *given up* before its files are removed:
its manifest.json is then an object without a backup, and stays, so that a job that is still at work
cannot publish it.

Format version 2 of a plan and a backup has optional members that older software does not know. It
is written only for a table that uses one of them, as in a table's manifest.

**Invariants**: (1) manifest.json never changes: a folder with one is a finished backup, or one that
was given up; (2) `start` of an incremental backup is `moment` of its parent, and `parent_crc32` is
the checksum of the parent's manifest; a full backup starts at 0 and has no parent.

**Source**: the mixing is splitmix64's (Steele, Lea, Flood: Fast splittable pseudorandom number
generators, 2014).
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import index
from typing import Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudulite.chain.partition import PartitionSchema, placed_schema
from kudulite.errors import FormatVersionError
from kudulite.model.hybrid_time import (
    LOGICAL_BITS,
    LOGICAL_MASK,
    Timestamp,
    physical_microseconds,
)
from kudulite.model.key_hash import RaggedBytes
from kudulite.model.schema import Schema
from kudulite.storage.checked_json import decode_checked_json, encode_checked_json
from kudulite.storage.json_form import JsonForm, Stored, readable
from kudulite.storage.storage import FileRef

FORMAT_VERSION, FORMAT_VERSION_WITHOUT_OPTIONS = 2, 1
MANIFEST_NAME, PLAN_NAME, LOCK_NAME = "manifest.json", "plan.json", "lock"

# On disk: the content of a manifest for a backup that nobody may finish.
GIVEN_UP = encode_checked_json({"format_version": 1, "is_given_up": True})

_EPOCH = datetime.datetime(1970, 1, 1)
_ID = re.compile(r"(\d{8}T\d{6}\.\d{6})Z-([0-9a-f]{4})")
_ID_TIME = "%Y%m%dT%H%M%S.%f"

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_NULL = np.uint64(0x5851F42D4C957F2D)


def backup_id(moment: int) -> str:
    """Return the id of a backup of this HybridTime."""
    wall = _EPOCH + datetime.timedelta(microseconds=physical_microseconds(moment))
    return f"{wall.strftime(_ID_TIME)}Z-{moment & LOGICAL_MASK:04x}"


def moment_of_id(text: str) -> int | None:
    """Return the HybridTime of a backup id, None if the text is not a backup id."""
    found = _ID.fullmatch(text)
    if found is None:
        return None
    try:
        wall = datetime.datetime.strptime(found[1], _ID_TIME) - _EPOCH
    except ValueError:
        return None
    return wall // datetime.timedelta(microseconds=1) << LOGICAL_BITS | int(found[2], 16)


class ContentSum(NamedTuple):
    """The number of rows and the sum of their hashes, in any order."""

    row_count: int
    hash: int

    def __add__(self, other: object) -> ContentSum:
        """Return the sum over both sets of rows."""
        if not isinstance(other, ContentSum):
            return NotImplemented
        return ContentSum(
            self.row_count + other.row_count, (self.hash + other.hash) & 0xFFFF_FFFF_FFFF_FFFF
        )

    def to_json(self) -> list[int]:
        """Return the JSON form: row count, hash."""
        return list(self)

    @staticmethod
    def from_json(value: Sequence[int]) -> ContentSum:
        """Build a sum from `to_json`'s form. Raises ValueError, TypeError."""
        row_count, content = map(index, value)
        if min(row_count, content) < 0 or max(row_count, content) >= 1 << 64:
            raise ValueError(f"{value} as the number of rows and their hash")
        return ContentSum(row_count, content)


@dataclass(frozen=True)
class DataFile(JsonForm):
    """A Parquet file of a backup; both counts are 0 for a file of a full backup."""

    ref: Annotated[FileRef, Stored(inline=True)]
    row_count: int
    insert_count: int = 0
    delete_count: int = 0


@dataclass(frozen=True)
class BackupHead(JsonForm):
    """The part of a backup that is known before its first row is read.

    `start` and `moment` are HybridTimes. An incremental backup has the changes in (start, moment];
    a full one, whose start is 0, has the table at `moment`. `tablet_ids` are in the order of the
    partition schema's tablets, and so are `last_ids`, the last auto-incrementing ids; None if the
    key is unique. `row_count` is of the table at `moment`.
    """

    id: Annotated[str, Stored(name="backup id")]
    table_name: str
    table_id: str
    schema: Schema
    partition: PartitionSchema
    tablet_ids: tuple[str, ...]
    history_seconds: int
    tags: Mapping[str, int]
    start: Timestamp
    moment: Timestamp
    row_count: int
    parent: Annotated[str | None, Stored(name="parent's backup id")] = None
    parent_crc32: int | None = None
    last_ids: Annotated[tuple[int, ...] | None, Stored(may_be_none=True)] = None
    owner: Annotated[str | None, Stored(may_be_none=True)] = None
    comment: Annotated[str | None, Stored(may_be_none=True)] = None

    def __post_init__(self) -> None:
        if self.last_ids is not None and len(self.last_ids) != len(self.tablet_ids):
            raise ValueError(f"{len(self.last_ids)} last ids of {len(self.tablet_ids)} tablets")

    @property
    def is_full(self) -> bool:
        """Whether the backup has the whole table and needs no other backup."""
        return self.parent is None

    @property
    def kind(self) -> str:
        """Return `full` or `incremental`."""
        return "full" if self.is_full else "incremental"

    def encode_head(self, form: dict[str, Any]) -> bytes:
        """Return the content of a file that begins with this head and holds `form`."""
        has_texts = self.owner is not None or self.comment is not None
        is_newest = has_texts or self.schema.has_later_attributes
        is_newest = is_newest or self.partition.has_custom_hash_schemas
        version = FORMAT_VERSION if is_newest else FORMAT_VERSION_WITHOUT_OPTIONS
        head = {"format_version": version, "id": self.id, "kind": self.kind}
        return encode_checked_json({**head, **form})


@dataclass(frozen=True)
class PlannedPiece(JsonForm):
    """A part of a backup's work: a key range of some tablets, at one moment or over a window.

    `kind` is `rows` for a full backup, `changes`, or `content`, which only hashes the rows at the
    moment of an incremental backup.
    """

    kind: str
    tablet_ids: tuple[str, ...]
    lower: bytes | None
    upper: bytes | None
    size_bytes: int
    row_count: int


@dataclass(frozen=True)
class BackupPlan(JsonForm):
    """The plan of a backup in progress."""

    head: Annotated[BackupHead, Stored(inline=True)]
    has_content_hash: bool
    pieces: tuple[PlannedPiece, ...]

    def encode(self) -> bytes:
        """Return the content of plan.json."""
        return self.head.encode_head(self.to_json())

    @staticmethod
    def decode(content: bytes, source: str) -> BackupPlan:
        """Build a plan from the content of `source`. Raises CorruptionError."""
        with readable_body(content, source, "a backup's plan") as body:
            head = BackupHead.from_json(body, **placed_schema(body))
            return BackupPlan.from_json(body, head=head)


@dataclass(frozen=True)
class PieceResult(JsonForm):
    """The result of a piece: its file, None if it had no row, and the sum of its rows."""

    file: DataFile | None
    content: ContentSum | None

    def encode(self) -> bytes:
        """Return the content of piece-….json."""
        form = {"format_version": FORMAT_VERSION_WITHOUT_OPTIONS, **self.to_json()}
        return encode_checked_json(form)

    @staticmethod
    def decode(content: bytes, source: str) -> PieceResult:
        """Build a result from the content of `source`. Raises CorruptionError."""
        with readable_body(content, source, "a piece of a backup") as body:
            return PieceResult.from_json(body)


@contextmanager
def readable_body(content: bytes, source: str, what: str) -> Iterator[dict[str, Any]]:
    """Give the JSON object in a file of a backup set, to build from it.

    Raises FormatVersionError for another format version, CorruptionError for a damaged file or an
    object of the wrong structure.
    """
    body = decode_checked_json(content, source, what)
    version = body.get("format_version")
    if version not in range(1, FORMAT_VERSION + 1):
        raise FormatVersionError(
            f"{source}: backup of format version {version}, known: 1 to {FORMAT_VERSION};"
            " upgrade kudulite to read it"
        )
    with readable(source, what):
        yield body


def content_sum(batches: Iterable[pa.RecordBatch]) -> ContentSum:
    """Return the sum over all rows of the batches, which have the same columns."""
    total = ContentSum(0, 0)
    for batch in batches:
        total += batch_sum(batch)
    return total


def batch_sum(batch: pa.RecordBatch) -> ContentSum:
    """Return the sum over the rows of one batch."""
    rows = np.zeros(batch.num_rows, np.uint64)
    for column in batch.columns:
        rows = _mixed(rows ^ _cells(column))
    return ContentSum(batch.num_rows, int(rows.sum(dtype=np.uint64)))


def _mixed(words: np.ndarray) -> np.ndarray:
    """Return splitmix64 of every word."""
    words = words + _STEP
    words ^= words >> np.uint64(30)
    words *= _FIRST
    words ^= words >> np.uint64(27)
    words *= _SECOND
    words ^= words >> np.uint64(31)
    return words


def _cells(array: pa.Array) -> np.ndarray:
    """Return uint64[n], one hash per cell; null has a hash of its own."""
    if pa.types.is_list(array.type):
        hashes = _lists(array)
    elif pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        hashes = _strings(RaggedBytes.from_arrow(array.cast(pa.binary())))
    else:
        hashes = np.zeros(len(array), np.uint64)
        for words in _words(array):
            hashes = _mixed(hashes ^ words)
    if array.null_count:
        hashes[pc.is_null(array).to_numpy(zero_copy_only=False)] = _NULL
    return hashes


def _words(array: pa.Array) -> list[np.ndarray]:
    """Return the cells of a fixed-width type as columns of uint64; nulls have any value."""
    kind, count = array.type, len(array)
    if pa.types.is_boolean(kind):
        return [array.fill_null(False).cast(pa.uint8()).to_numpy().astype(np.uint64)]
    width = kind.byte_width
    values = array.buffers()[1]
    if values is None or count == 0:
        return [np.zeros(count, np.uint64)]
    if width % 8 == 0:
        each = width // 8
        found = np.frombuffer(values, "<u8", count * each, array.offset * width)
        return [found[place::each] for place in range(each)]
    return [np.frombuffer(values, f"<u{width}", count, array.offset * width).astype(np.uint64)]


def _strings(strings: RaggedBytes) -> np.ndarray:
    hashes = _mixed(strings.lengths.astype(np.uint64))
    longest = int(strings.lengths.max(initial=0))
    for position in range(0, longest, 8):
        rows = np.flatnonzero(strings.lengths > position)
        hashes[rows] = _mixed(hashes[rows] ^ strings.words(position, rows))
    return hashes


def _lists(array: pa.Array) -> np.ndarray:
    """Return the hash of each list: its length, and its elements with their positions."""
    offsets = array.offsets.to_numpy().astype(np.int64)
    lengths = np.diff(offsets)
    elements = _cells(array.values.slice(offsets[0], offsets[-1] - offsets[0]))
    starts = offsets[:-1] - offsets[0]
    places = np.arange(len(elements)) - np.repeat(starts, lengths)
    elements = _mixed(elements ^ _mixed(places.astype(np.uint64)))
    # Differences of running sums are right for empty lists, too.
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(elements, dtype=np.uint64)])
    hashes = _mixed(lengths.astype(np.uint64))
    hashes ^= running[starts + lengths] - running[starts]
    return hashes
