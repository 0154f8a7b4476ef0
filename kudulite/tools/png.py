"""PNG: an image of 8-bit colours as a file, with nothing but the standard library.

    file  := signature  chunk IHDR  chunk IDAT  chunk IEND
    chunk := length:u32be  type[4]  payload[length]  crc:u32be     (of type and payload)
    IHDR  := width:u32be height:u32be  8 bits, colour type 2 (RGB), deflate, no filter, no interlace
    IDAT  := zlib of rows, each with a leading filter byte 0

Source: W3C, "Portable Network Graphics (PNG) Specification", sections 5 and 11.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def encode_png(pixels: np.ndarray) -> bytes:
    """Return the file of an image, uint8[height, width, 3]: red, green, blue."""
    height, width, channels = pixels.shape
    assert channels == 3
    assert pixels.dtype == np.uint8
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = np.zeros((height, 1 + 3 * width), dtype=np.uint8)
    rows[:, 1:] = pixels.reshape(height, 3 * width)
    body = zlib.compress(rows.tobytes(), level=9)
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, payload: bytes) -> bytes:
    crc = zlib.crc32(kind + payload)
    return struct.pack(">I", len(payload)) + kind + payload + struct.pack(">I", crc)
