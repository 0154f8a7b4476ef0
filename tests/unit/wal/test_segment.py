"""Segment headers: the worked example, and that a segment belongs to its table."""

import re
import struct
import zlib

import pytest

from kudulite.errors import CorruptionError, FormatVersionError
from kudulite.wal import segment
from kudulite.wal.segment import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
    new_salt,
)

TABLE_ID = "7f"
# The random part, and the CRC of the id.
SALT = bytes(range(4)) + bytes.fromhex("a6760f75")
HEADER = SegmentHeader(1, 0, SALT)


def sealed(content: bytes) -> bytes:
    """A header whose checksum is right."""
    unchecked = content[: SEGMENT_HEADER_BYTES - 4]
    return unchecked + zlib.crc32(unchecked).to_bytes(4, "little")


def test_the_worked_example_is_the_format():
    """The bytes of the module docstring."""
    content = encode_segment_header(HEADER)
    example = re.search(r"\n    6b7564.*?\n\n", segment.__doc__, re.DOTALL)[0]
    assert content.hex() == "".join(example.split())
    assert decode_segment_header(content, 1, TABLE_ID) == HEADER


def test_a_segment_belongs_to_its_table():
    """The salt has the checksum of the table's id."""
    assert new_salt(TABLE_ID)[4:] == SALT[4:]
    assert new_salt(TABLE_ID) != new_salt(TABLE_ID)
    content = encode_segment_header(HEADER)
    with pytest.raises(CorruptionError, match="belongs to another table, expected table 7e"):
        decode_segment_header(content, 1, "7e")
    with pytest.raises(CorruptionError, match="says it is segment 1, expected 2"):
        decode_segment_header(content, 2, TABLE_ID)


@pytest.mark.parametrize("version", [1, 2])
def test_a_segment_of_a_tablet_is_refused(version: int):
    """The log of a table does not continue that of a tablet."""
    content = bytearray(encode_segment_header(HEADER))
    struct.pack_into("<I", content, 8, version)
    with pytest.raises(CorruptionError, match="is of the log of a tablet, expected that of table"):
        decode_segment_header(sealed(content), 1, TABLE_ID)


def test_a_newer_format_is_refused():
    """With both versions; the checksum is right, so it is no damage."""
    content = bytearray(encode_segment_header(HEADER))
    struct.pack_into("<I", content, 8, 9)
    message = "log segment of format version 9, this kudulite reads 3"
    with pytest.raises(FormatVersionError, match=message):
        decode_segment_header(sealed(content), 1, TABLE_ID)


def test_every_flipped_byte_and_every_length_is_corruption():
    """Of the header; bytes behind it are not its own."""
    content = encode_segment_header(HEADER)
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 0x10
        for wrong in (bytes(damaged), content[:at]):
            with pytest.raises(CorruptionError):
                decode_segment_header(wrong, 1, TABLE_ID)
    assert decode_segment_header(content + b"x", 1, TABLE_ID) == HEADER
