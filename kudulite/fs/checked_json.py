"""One JSON object with its checksum: what metadata files are made of.

file := body line, then {"crc32": CRC-32 of the body line} line
"""

from __future__ import annotations

import json
import re
import zlib
from typing import Any

from kudulite.errors import CorruptionError

TRAILER_BYTES_MAX = 32
_TRAILER = re.compile(rb'\n\{"crc32":(\d+)\}\n\Z')


def encode_checked_json(body: dict[str, Any]) -> bytes:
    """Return the file's content."""
    line = json.dumps(body, separators=(",", ":")).encode()
    return line + b'\n{"crc32":%d}\n' % zlib.crc32(line)


def stored_crc32(content: bytes) -> int | None:
    """Return the CRC that a file's content, or its last `TRAILER_BYTES_MAX` bytes, ends with.

    None where it ends otherwise.
    """
    found = _TRAILER.search(content)
    return int(found[1]) if found else None


def decode_checked_json(content: bytes, source: str, what: str) -> dict[str, Any]:
    """Return the object in the content of the file `source`, which should be `what`.

    Raises CorruptionError where it is not one, or is not as it was written.
    """
    line, _, trailer = content.partition(b"\n")
    try:
        stored = json.loads(trailer)["crc32"]
        found = zlib.crc32(line)
        if found != stored:
            raise CorruptionError(f"{source}: CRC {found:#010x}, expected {stored:#010x}")
        body = json.loads(line)
        if not isinstance(body, dict):
            raise TypeError(f"a {type(body).__name__}")
        return body
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"{source}: not {what}: {error!r}") from error
