"""The footer of base data: what kudulite adds to that of Parquet, and its checksum.

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

**Damage**: a footer of other bytes is found when a file is opened, and so is a file with the name
of another one.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kudulite.basefile.page_range import PARQUET_MAGIC
from kudulite.errors import CorruptionError
from kudulite.model.types import is_float
from kudulite.storage.checked_json import check_format_version

FORMAT_VERSION = 2  # on disk: a change of meaning raises it
FORMAT_VERSION_KEY = b"kudulite.format_version"
FILE_NAME_KEY = b"kudulite.file_name"
NAN_COLUMNS_KEY = b"kudulite.nan_columns"
FOOTER_CRC_KEY = b"kudulite.footer_crc32"
FOOTER_CRC_BLANK = b"00000000"
TRAILER_BYTES = 8  # length and magic
_THRIFT_STRING_HEADER = b"\x18\x08"


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


def nan_names(
    metadata: pq.FileMetaData, schema: pa.Schema, name_by_id: Mapping[int, str]
) -> frozenset[str]:
    """Return the columns that have a NaN or, if the file does not say, could have one."""
    stored = (metadata.metadata or {}).get(NAN_COLUMNS_KEY)
    if stored is None:
        return frozenset(field.name for field in schema if is_float(field.type))
    ids = [int(text) for text in stored.decode().split(",") if text]
    if unknown := [column_id for column_id in ids if column_id not in name_by_id]:
        raise ValueError(f"NaN in columns of the ids {unknown}, which the file does not have")
    return frozenset(name_by_id[column_id] for column_id in ids)


def parsed_footer(footer: bytes) -> pq.FileMetaData:
    """Return a footer as Parquet parses it; errors are Arrow's."""
    length = len(footer).to_bytes(4, "little")
    return pq.read_metadata(pa.BufferReader(b"".join([footer, length, PARQUET_MAGIC])))


def check_chunks(metadata: pq.FileMetaData, file: pa.NativeFile) -> None:
    """Raise Arrow's error for a footer with a column chunk that Arrow cannot describe.

    Asked for the metadata of such a chunk, pyarrow ends the process, because Python does not expect
    what its C++ part throws. A read that buffers first looks at all chunks, where errors are
    expected, and then reads, which `file`, the one of the footer, refuses because it is closed.
    """
    reader = pq.ParquetFile(file, metadata=metadata, pre_buffer=True)
    file.close()
    with contextlib.suppress(ValueError):  # a closed file
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
