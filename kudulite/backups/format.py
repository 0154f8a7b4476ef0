"""Files of a backup set: what its JSON files say.

    <set>/lock                           one backup at a time
    <set>/<backup id>/plan.json          while it is made: the moment, the parent, the pieces
                      piece-00007.json   while it is made: piece 7 is done, and in which file
                      piece-00007-<uuid>.parquet
                      manifest.json      last, put if absent: the backup, and all its files

A backup id is its moment, so ids sort as moments do: `20261121T101112.000345Z-0001` is the wall
time in microseconds and the logical part of the HybridTime in hexadecimal.

A data file of a full backup has the table's columns; one of an incremental backup has also
`_change_type` (insert, update, delete) and `_commit_timestamp`, as `Table.changes` gives them.
Columns bear their ids as Parquet field ids; whoever restores relies on the manifest's schema.

Invariants: (1) a folder with manifest.json is a whole backup and never changes; (2) `start` of an
incremental backup is `moment` of its parent, and `parent_crc32` is that of the parent's manifest;
a full one starts at 0 and has no parent.
"""

from __future__ import annotations

import datetime
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from kudulite.catalog.partition import PartitionSchema
from kudulite.errors import CorruptionError, FormatVersionError, KuduliteError
from kudulite.fs.checked_json import decode_checked_json, encode_checked_json
from kudulite.fs.file_system import FileRef, checked_name
from kudulite.model.schema import Schema
from kudulite.mvcc.hybrid_time import LOGICAL_BITS, LOGICAL_MASK, physical_microseconds

FORMAT_VERSION = 1
MANIFEST_NAME, PLAN_NAME, LOCK_NAME = "manifest.json", "plan.json", "lock"

_EPOCH = datetime.datetime(1970, 1, 1)
_ID = re.compile(r"(\d{8}T\d{6}\.\d{6})Z-([0-9a-f]{4})")
_ID_TIME = "%Y%m%dT%H%M%S.%f"
T = TypeVar("T")


def backup_id(moment: int) -> str:
    """Return the id of a backup of this HybridTime."""
    wall = _EPOCH + datetime.timedelta(microseconds=physical_microseconds(moment))
    return f"{wall.strftime(_ID_TIME)}Z-{moment & LOGICAL_MASK:04x}"


def moment_of_id(text: str) -> int | None:
    """Return the HybridTime that a backup id stands for, None where it is no backup id."""
    found = _ID.fullmatch(text)
    if found is None:
        return None
    try:
        wall = datetime.datetime.strptime(found[1], _ID_TIME) - _EPOCH
    except ValueError:
        return None
    return wall // datetime.timedelta(microseconds=1) << LOGICAL_BITS | int(found[2], 16)


class ContentSum(NamedTuple):
    """Rows and their hashes added up, in whatever order they were met (content_hash.py)."""

    row_count: int
    hash: int

    def __add__(self, other: object) -> ContentSum:
        """Return the sum over both sets of rows."""
        if not isinstance(other, ContentSum):
            return NotImplemented
        return ContentSum(
            self.row_count + other.row_count, (self.hash + other.hash) & 0xFFFF_FFFF_FFFF_FFFF
        )


@dataclass(frozen=True)
class DataFile:
    """A Parquet file of a backup; `insert_count` is 0 in one of a full backup."""

    ref: FileRef
    row_count: int
    insert_count: int = 0
    delete_count: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        counts = (self.row_count, self.insert_count, self.delete_count)
        names = ("row_count", "insert_count", "delete_count")
        return {**self.ref.to_json(), **dict(zip(names, counts, strict=True))}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> DataFile:
        """Build a file from `to_json`'s form."""
        counts = (value["row_count"], value["insert_count"], value["delete_count"])
        return DataFile(FileRef.from_json(dict(value)), *counts)


@dataclass(frozen=True)
class BackupHead:
    """What is known of a backup before its first row is read.

    `start` and `moment` are HybridTimes: an incremental backup holds what changed in
    (start, moment], a full one, whose start is 0, the table at `moment`. `tablet_ids` are in the
    order of the partition schema's tablets. `row_count` is of the table at `moment`.
    """

    id: str
    table_name: str
    table_id: str
    schema: Schema
    partition: PartitionSchema
    tablet_ids: tuple[str, ...]
    history_seconds: int
    tags: Mapping[str, int]
    start: int
    moment: int
    row_count: int
    parent: str | None = None
    parent_crc32: int | None = None

    @property
    def is_full(self) -> bool:
        """Whether it holds the whole table, and needs no other backup."""
        return self.parent is None

    @property
    def kind(self) -> str:
        """`full` or `incremental`."""
        return "full" if self.is_full else "incremental"

    def head_to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "format_version": FORMAT_VERSION,
            "id": self.id,
            "kind": self.kind,
            "table_name": self.table_name,
            "table_id": self.table_id,
            "schema": self.schema.to_json(),
            "partition": self.partition.to_json(),
            "tablet_ids": list(self.tablet_ids),
            "history_seconds": self.history_seconds,
            "tags": dict(self.tags),
            "start": self.start,
            "moment": self.moment,
            "row_count": self.row_count,
            "parent": self.parent,
            "parent_crc32": self.parent_crc32,
        }


def head_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a BackupHead from `head_to_json`'s form.

    Raises ValueError for an id that cannot be the name of a folder of the backup set.
    """
    schema, parent = Schema.from_json(body["schema"]), body["parent"]
    names = ("table_name", "table_id", "history_seconds", "tags", "start", "moment", "row_count")
    return {
        **{name: body[name] for name in (*names, "parent_crc32")},
        "id": checked_name(body["id"], "backup id"),
        "parent": None if parent is None else checked_name(parent, "parent's backup id"),
        "schema": schema,
        "partition": PartitionSchema.from_json(body["partition"], schema),
        "tablet_ids": tuple(body["tablet_ids"]),
    }


@dataclass(frozen=True)
class PlannedPiece:
    """A part of a backup's work: a key range of some tablets, read at one moment or over a window.

    `kind` is `rows` (of a full backup), `changes`, or `content`, which only hashes the rows at the
    end of an incremental backup.
    """

    kind: str
    tablet_ids: tuple[str, ...]
    lower: bytes | None
    upper: bytes | None
    size_bytes: int
    row_count: int

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form; keys as hexadecimal digits."""
        return {
            "kind": self.kind,
            "tablet_ids": list(self.tablet_ids),
            "lower": None if self.lower is None else self.lower.hex(),
            "upper": None if self.upper is None else self.upper.hex(),
            "size_bytes": self.size_bytes,
            "row_count": self.row_count,
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> PlannedPiece:
        """Build a piece from `to_json`'s form."""
        lower, upper = value["lower"], value["upper"]
        return PlannedPiece(
            kind=value["kind"],
            tablet_ids=tuple(value["tablet_ids"]),
            lower=None if lower is None else bytes.fromhex(lower),
            upper=None if upper is None else bytes.fromhex(upper),
            size_bytes=value["size_bytes"],
            row_count=value["row_count"],
        )


@dataclass(frozen=True)
class BackupPlan:
    """A backup that is being made."""

    head: BackupHead
    pieces: tuple[PlannedPiece, ...]
    has_content_hash: bool

    def encode(self) -> bytes:
        """Return the content of plan.json."""
        pieces = [piece.to_json() for piece in self.pieces]
        more = {"has_content_hash": self.has_content_hash, "pieces": pieces}
        return encode_checked_json({**self.head.head_to_json(), **more})

    @staticmethod
    def decode(content: bytes, source: str) -> BackupPlan:
        """Build a plan from the content of `source`. Raises CorruptionError."""
        body = decode_body(content, source, "a backup's plan")
        with readable(source, "a backup's plan"):
            pieces = tuple(PlannedPiece.from_json(piece) for piece in body["pieces"])
            return BackupPlan(BackupHead(**head_fields(body)), pieces, body["has_content_hash"])


@dataclass(frozen=True)
class PieceResult:
    """What came of a piece: its file, None where it had no row, and the sum of its rows."""

    file: DataFile | None
    content: ContentSum | None

    def encode(self) -> bytes:
        """Return the content of piece-….json."""
        body = {
            "format_version": FORMAT_VERSION,
            "file": None if self.file is None else self.file.to_json(),
            "content": None if self.content is None else list(self.content),
        }
        return encode_checked_json(body)

    @staticmethod
    def decode(content: bytes, source: str) -> PieceResult:
        """Build a result from the content of `source`. Raises CorruptionError."""
        body = decode_body(content, source, "a piece of a backup")
        with readable(source, "a piece of a backup"):
            file, found = body["file"], body["content"]
            return PieceResult(
                None if file is None else DataFile.from_json(file),
                None if found is None else ContentSum(*found),
            )


def decode_body(content: bytes, source: str, what: str) -> dict[str, Any]:
    """Return the object in a file of a backup set.

    Raises FormatVersionError for a newer format, CorruptionError for anything unreadable.
    """
    body = decode_checked_json(content, source, what)
    version = body.get("format_version")
    if version != FORMAT_VERSION:
        raise FormatVersionError(
            f"{source}: backup of format version {version}, known: {FORMAT_VERSION};"
            " upgrade kudulite to read it"
        )
    return body


def content_crc32(content: bytes) -> int:
    """Return the checksum of a manifest's content, as a child names it."""
    return zlib.crc32(content)


class readable:
    """Turns what a wrong structure raises into a CorruptionError that names the file."""

    def __init__(self, source: str, what: str) -> None:
        self._source, self._what = source, what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type | None, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, KuduliteError):
            return
        if isinstance(error, ValueError | KeyError | TypeError):
            raise CorruptionError(f"{self._source}: not {self._what}: {error!r}") from error
