"""Segment headers and frames: the worked example, and that a frame belongs to its place."""

import re
import zlib

import pytest

from kudulite.errors import CorruptionError
from kudulite.wal import record_format, segment
from kudulite.wal.record_format import (
    FRAME_HEADER_BYTES,
    decode_frame,
    encode_frame,
    find_frame_header,
)
from kudulite.wal.segment import (
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
    new_salt,
)

TABLET_ID = "7f"
# The random part, and the CRC of the id.
SALT = bytes(range(4)) + bytes.fromhex("a6760f75")


def test_the_worked_example_is_the_format():
    """The bytes of the module docstring."""
    header = SegmentHeader(1, 0, SALT)
    content = encode_segment_header(header) + encode_frame([b"payload."], salt=SALT, offset=40)
    example = re.search(r"\n    6b7564.*?\n\n", segment.__doc__, re.DOTALL)[0]
    assert content.hex() == "".join(example.split())
    assert decode_segment_header(content, 1, TABLET_ID) == header
    end = decode_frame(memoryview(content), 40, salt=SALT, offset=40)
    assert content[40 + FRAME_HEADER_BYTES : end] == b"payload."


def test_a_segment_belongs_to_its_tablet():
    """The salt has the checksum of the tablet's id; that of format version 1 is random."""
    assert new_salt(TABLET_ID)[4:] == SALT[4:]
    assert new_salt(TABLET_ID) != new_salt(TABLET_ID)
    content = bytearray(encode_segment_header(SegmentHeader(1, 0, SALT)))
    with pytest.raises(CorruptionError, match="belongs to another tablet, expected tablet 7e"):
        decode_segment_header(content, 1, "7e")
    content[8] = 1
    content[36:] = zlib.crc32(content[:36]).to_bytes(4, "little")
    assert decode_segment_header(content, 1, "7e") == SegmentHeader(1, 0, SALT)


def test_a_frame_belongs_to_its_segment_and_its_byte():
    """Elsewhere it is refused and not found."""
    content = encode_frame([b"payload."], salt=SALT, offset=64)
    assert find_frame_header(bytes(24) + content, 0, salt=SALT, base=40) == 24
    assert find_frame_header(bytes(24) + content, 25, salt=SALT, base=40) is None
    for salt, offset in ((SALT, 40), (SALT[::-1], 64)):
        with pytest.raises(CorruptionError, match=rf"frame at byte {offset}: header CRC 0x"):
            decode_frame(memoryview(content), 0, salt=salt, offset=offset)
        assert find_frame_header(content, 0, salt=salt, base=offset) is None


@pytest.mark.parametrize("length", [0, 4, 1 << 31])
def test_an_impossible_length_is_refused(length: int):
    """Even with a right checksum: it is compared with what is there before it is used."""
    frame = bytearray(encode_frame([bytes(8)], salt=SALT, offset=40))
    frame[4:8] = length.to_bytes(4, "little")
    crc = record_format._frame_header_crc(bytes(frame[:12]), salt=SALT, offset=40)
    frame[12:16] = crc.to_bytes(4, "little")
    with pytest.raises(
        CorruptionError, match=rf"payload of {length} bytes, expected a multiple of 8"
    ):
        decode_frame(memoryview(frame), 0, salt=SALT, offset=40)
