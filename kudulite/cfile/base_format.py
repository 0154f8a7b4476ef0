"""What kudulite asks of a Parquet file beyond being one: encodings, metadata, footer checksum.

    file       := parquet pages (each with a CRC-32 of its own)  footer  length:u32le  "PAR1"
    footer     := thrift FileMetaData whose key-value metadata hold
                    kudulite.format_version = "1"
                    kudulite.footer_crc32   = 8 lower-case hex digits

Parquet guards pages with checksums but not its footer, where row counts, offsets and statistics
are. `kudulite.footer_crc32` is the CRC-32 of the footer with its own 8 digits replaced by
"00000000"; in the thrift compact protocol the value follows the key after two bytes (field header
0x18, length 0x08), e.g. for CRC 0x1234abcd:

    6b 75 64 75 … 63 72 63 33 32  18 08  31 32 33 34 61 62 63 64      kudulite.footer_crc32 1234abcd

The key is looked for from the end, as statistics (user bytes) come before the metadata.

Row groups have exactly ROW_GROUP_ROWS rows but the last, so a rowid names its row group. Columns
bear their names and, as Parquet field ids, their column ids. Nothing here is needed to read the
file: any Parquet reader can.
"""

from __future__ import annotations

import zlib

import pyarrow as pa

from kudulite.model.schema import Column

FORMAT_VERSION = 1  # on disk: a change of meaning raises it
ROW_GROUP_ROWS = 131072  # on disk: rowid // ROW_GROUP_ROWS is the row group
FORMAT_VERSION_KEY = b"kudulite.format_version"
FOOTER_CRC_KEY = b"kudulite.footer_crc32"
FOOTER_CRC_BLANK = b"00000000"
PARQUET_MAGIC = b"PAR1"
TRAILER_BYTES = 8  # length and magic
_THRIFT_STRING_HEADER = b"\x18\x08"

DICTIONARY = "DICTIONARY"  # not a Parquet encoding id: dictionary pages, PLAIN once they are full
DECIMAL_INT64_PRECISION_MAX = 18  # decimals up to this are stored as INT32 or INT64

PARQUET_CODECS = {  # Column.compression → pyarrow's name
    "default": "zstd",
    "none": "none",
    "lz4": "lz4",
    "snappy": "snappy",
    "zstd": "zstd",
    "gzip": "gzip",
}


def is_integer_in_parquet(arrow_type: pa.DataType) -> bool:
    """Whether Parquet stores the type as INT32 or INT64."""
    if pa.types.is_decimal(arrow_type):
        return arrow_type.precision <= DECIMAL_INT64_PRECISION_MAX
    return (
        pa.types.is_integer(arrow_type)
        or pa.types.is_date32(arrow_type)
        or pa.types.is_timestamp(arrow_type)
    )


def parquet_path(column: Column) -> str:
    """What Parquet calls the values of a column: those of an array are two levels down."""
    return f"{column.name}.list.element" if column.type.is_array else column.name


def parquet_encoding(column: Column, *, has_repeats: bool) -> str:
    """The Parquet encoding, or DICTIONARY, for a column's ENCODING attribute.

    `has_repeats` decides for "auto" whether a dictionary pays; integers take DELTA_BINARY_PACKED
    anyway, which writes 3 to 8 times faster than a dictionary and reads no slower. Other numbers
    are PLAIN then: BYTE_STREAM_SPLIT is as fast and 6 % smaller on random doubles, but Spark's
    vectorised reader has it only since SPARK-56894 (2026), so who wants it says "bitshuffle".
    """
    arrow_type = (column.type.element or column.type).arrow
    if column.encoding == "plain":
        return "PLAIN"
    if column.encoding == "prefix":
        return "DELTA_BYTE_ARRAY"
    if pa.types.is_boolean(arrow_type):
        return "RLE"
    if column.encoding in ("dict", "rle"):
        return DICTIONARY
    assert column.encoding in ("auto", "bitshuffle"), column.encoding
    if is_integer_in_parquet(arrow_type):
        return "DELTA_BINARY_PACKED"
    if column.encoding == "auto" and has_repeats:
        return DICTIONARY
    return "PLAIN" if column.encoding == "auto" else "BYTE_STREAM_SPLIT"


def sealed_footer(tail: bytes) -> bytes:
    """Return the end of a Parquet file with the footer's checksum filled in."""
    start, stop = footer_bounds(tail, len(tail))
    position = _crc_position(tail, start, stop)
    assert tail[position : position + 8] == FOOTER_CRC_BLANK
    digits = b"%08x" % zlib.crc32(tail[start:stop])
    return tail[:position] + digits + tail[position + 8 :]


def is_footer_intact(footer: bytes) -> bool:
    """Whether a footer's bytes are those that `sealed_footer` made."""
    position = _crc_position(footer, 0, len(footer))
    if position < 0:
        return False
    blank = footer[:position] + FOOTER_CRC_BLANK + footer[position + 8 :]
    return footer[position : position + 8] == b"%08x" % zlib.crc32(blank)


def footer_bounds(tail: bytes, file_length: int) -> tuple[int, int]:
    """(start, stop) of the footer in a file of `file_length` bytes that ends with `tail`.

    Raises ValueError, saying what is wrong, when the trailer is not Parquet's or points outside.
    """
    if len(tail) < TRAILER_BYTES or tail[-4:] != PARQUET_MAGIC:
        raise ValueError(f"it ends with {tail[-4:]!r}, expected {PARQUET_MAGIC!r}")
    stop = file_length - TRAILER_BYTES
    footer_length = int.from_bytes(tail[-8:-4], "little")
    if footer_length > stop:
        raise ValueError(f"the footer's length is {footer_length}, the file's {file_length}")
    return stop - footer_length, stop


def _crc_position(data: bytes, start: int, stop: int) -> int:
    """Offset of the checksum's digits in data[start:stop], or -1."""
    key_position = data.rfind(FOOTER_CRC_KEY + _THRIFT_STRING_HEADER, start, stop)
    if key_position < 0:
        return -1
    position = key_position + len(FOOTER_CRC_KEY) + len(_THRIFT_STRING_HEADER)
    return position if position + 8 <= stop else -1
