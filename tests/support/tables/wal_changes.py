"""Changes for tests of the write-ahead log: a schema of every type, rows of all kinds."""

import datetime
import math
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kudulite.model.schema import NEW_COLUMN_ID, Column, Schema
from kudulite.model.types import parse_type
from kudulite.wal.commit_format import LoggedCommit, encode_commit
from kudulite.wal.record_format import Record, RecordDecoder, encode_rows
from kudulite.wal.row_codec import CHANGE_INSERT, RowChanges

UTC = datetime.UTC
# The ids of a table and of two of its tablets.
TABLE, TABLET, SECOND_TABLET = (digit * 32 for digit in "7ab")
# Type -> values of it, odd ones among them; None is added to each.
VALUES: dict[str, list[Any]] = {
    "int64": [0, -(1 << 63), (1 << 63) - 1, 1, 2, 3],
    "bool": [True, False, True, True, False, True],
    "int8": [-128, 127, 0, 1, 2, 3],
    "int16": [-32768, 32767, 0, 1, 2, 3],
    "int32": [-(1 << 31), (1 << 31) - 1, 0, 1, 2, 3],
    "float": [math.nan, -0.0, math.inf, 1.5, -math.inf, 0.0],
    "double": [math.nan, -0.0, -math.inf, 1e308, 5e-324, 0.0],
    "date": [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), *[datetime.date(1970, 1, 1)] * 4],
    "unixtime_micros": [datetime.datetime(2013, 1, 1, 0, 0, 0, 1, UTC)] * 6,
    "timestamp_ntz": [datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23)] * 3,
    "string": ["", "ÿ", "\U0001f600", "a\0b", "KLWF", "漢字"],
    "varchar(8)": ["", "ä", "12345678", "\0", "é\u0301", "ß"],
    "binary": [b"", b"\0", b"\xff\xfe", b"KLWF" * 3, bytes(range(256)), b"x"],
    "decimal(5, 2)": [Decimal("-999.99"), *map(Decimal, ["0.00", "1.25", "9", "8.1", "7"])],
    "array(bool)": [[], [None], [True, None, False], [True] * 9, [None] * 8, [False]],
    "array(varchar(8))": [[], ["", None, "ä"], ["12345678"], [None], ["\0"], ["a", "b"]],
    "array(unixtime_micros)": [[datetime.datetime(2013, 1, 1, 0, 0, 0, 1, UTC)], [], *[[None]] * 4],
    "array(decimal(5, 2))": [[Decimal("-999.99"), None], [], [None], *[[Decimal("1.25")] * 3] * 3],
    "array(double)": [[math.nan, None, -0.0], [], [None], [1.5], [2.5], [math.inf]],
    "decimal(38, 10)": [Decimal(10) ** 27, Decimal("-0.0000000001"), *map(Decimal, "1234")],
}
ALL_TYPES = Schema.build(
    [Column(NEW_COLUMN_ID, f"c {name}", parse_type(name), nullable=False) for name in ["int64"]]
    + [Column(NEW_COLUMN_ID, f"c {name}", parse_type(name)) for name in list(VALUES)[1:]],
    ["c int64"],
)
TWO_COLUMNS = Schema.build(
    [
        Column(NEW_COLUMN_ID, "k", parse_type("int64"), nullable=False),
        Column(NEW_COLUMN_ID, "s", parse_type("string")),
    ],
    ["k"],
)


def all_types(timestamp: int = 7) -> RowChanges:
    """Six inserts of every type; a null in each column that may have one."""
    columns = {}
    for column, values in zip(ALL_TYPES.columns, VALUES.values(), strict=True):
        cells = list(values)
        if column.nullable:
            cells[column.id % 6] = None
        columns[column.id] = pa.array(cells, column.type.arrow)
    return RowChanges(timestamp, np.full(6, CHANGE_INSERT, np.uint8), columns)


def inserts(timestamp: int, keys: Sequence[int], text: str = "x") -> RowChanges:
    """Rows of TWO_COLUMNS."""
    columns = {
        0: pa.array(keys, pa.int64()),
        1: pa.array([f"{text}{key}" for key in keys], pa.string()),
    }
    return RowChanges(timestamp, np.full(len(keys), CHANGE_INSERT, np.uint8), columns)


def same(left: RowChanges, right: RowChanges) -> bool:
    """Equal in every bit that counts: NaN equals NaN, -0.0 is not 0.0, absent is not set."""
    return (
        left.timestamp == right.timestamp
        and left.ops.dtype == right.ops.dtype
        and left.ops.tolist() == right.ops.tolist()
        and list(left.columns) == list(right.columns)
        and all(
            repr(a.to_pylist()) == repr(b.to_pylist()) and a.type == b.type
            for a, b in zip(left.columns.values(), right.columns.values(), strict=True)
        )
        and {key: mask.tolist() for key, mask in left.is_set.items()}
        == {key: mask.tolist() for key, mask in right.is_set.items()}
    )


def damage(path: Path, offset: int, flip: int = 0xFF) -> None:
    """Flip bits of one byte of a file."""
    content = bytearray(path.read_bytes())
    content[offset] ^= flip
    path.write_bytes(content)


def commit_of(record: Record, tablet_id: str = "") -> bytes:
    """A commit of one record, as a session writes it; of TABLET unless another is given."""
    return encode_commit(record.timestamp, {tablet_id or TABLET: encode_rows(record)})


def records_of(commits: Sequence[LoggedCommit], schema: Schema) -> list[Record]:
    """The records of commits, of all tablets."""
    decoder = RecordDecoder(schema)
    return [
        decoder.decode_rows(commit.timestamp, rows)
        for commit in commits
        for rows in commit.parts.values()
    ]


def decode_record(
    content: bytes | memoryview | pa.Buffer, schema: Schema, timestamp: int = 0
) -> Record:
    """The record whose rows are `content`, at this timestamp."""
    return RecordDecoder(schema).decode_rows(timestamp, pa.py_buffer(content))


def round_trip(record: Record, schema: Schema) -> Record:
    """The record encoded and decoded."""
    return decode_record(encode_rows(record), schema, record.timestamp)
