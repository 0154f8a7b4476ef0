"""Frames: the worked example, that a frame belongs to its place, and where whole frames end."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudulite.errors import CorruptionError
from kudulite.wal import frame_format
from kudulite.wal.frame_format import (
    FRAME_HEADER_BYTES,
    decode_frame,
    decode_frames,
    encode_frame,
    find_frame_header,
)

SALT = bytes.fromhex("00010203a6760f75")


def test_the_worked_example_is_the_format():
    """The bytes of the module docstring."""
    content = encode_frame([b"pay", b"load."], salt=SALT, offset=40)
    example = re.search(r"\n    4b4c57.*?\n\n", frame_format.__doc__, re.DOTALL)[0]
    assert content.hex() == "".join(example.split())
    end = decode_frame(memoryview(content), 0, salt=SALT, offset=40)
    assert content[FRAME_HEADER_BYTES:end] == b"payload."


def frames_one_by_one(content: bytes, base: int) -> tuple[list[tuple[int, int]], str]:
    """The payloads and the error that `decode_frame` finds from frame to frame."""
    payloads, position = [], 0
    while position < len(content):
        try:
            end = decode_frame(memoryview(content), position, salt=SALT, offset=base + position)
        except CorruptionError as error:
            return payloads, str(error)
        payloads.append((position + FRAME_HEADER_BYTES, end))
        position = end
    return payloads, ""


def frames_at_once(content: bytes, base: int) -> tuple[list[tuple[int, int]], str]:
    """The same of `decode_frames`."""
    payloads, error = decode_frames(memoryview(content), salt=SALT, base=base)
    return payloads, "" if error is None else str(error)


def frames_from(base: int, lengths: list[int]) -> bytes:
    """Frames of payloads of so many bytes, end to end."""
    content = b""
    for length in lengths:
        content += encode_frame([bytes([7] * length)], salt=SALT, offset=base + len(content))
    return content


@given(
    st.lists(st.integers(1, 40).map(lambda words: 8 * words), max_size=5),
    st.integers(40, 1 << 40),
    st.integers(0, 10**6),
    st.integers(1, 255),
)
def test_frames_are_found_at_once_as_they_are_one_by_one(
    lengths: list[int], base: int, place: int, flip: int
):
    """Whole, with any byte flipped, or cut anywhere: the same payloads, the same error."""
    content = frames_from(base, lengths)
    payloads, error = frames_at_once(content, base)
    assert [end - begin for begin, end in payloads] == lengths
    assert error == ""
    if not content:
        return
    place %= len(content)
    flipped = bytearray(content)
    flipped[place] ^= flip
    for damaged in (bytes(flipped), content[:place], content + bytes(place)):
        found = frames_at_once(damaged, base)
        assert found == frames_one_by_one(damaged, base)
        assert all(damaged[begin:end] == bytes([7] * (end - begin)) for begin, end in found[0])
    assert frames_at_once(bytes(flipped), base)[1] != ""


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
    crc = frame_format._frame_header_crc(bytes(frame[:12]), salt=SALT, offset=40)
    frame[12:16] = crc.to_bytes(4, "little")
    with pytest.raises(
        CorruptionError, match=rf"payload of {length} bytes, expected a multiple of 8"
    ):
        decode_frame(memoryview(frame), 0, salt=SALT, offset=40)
