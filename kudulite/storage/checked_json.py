"""Metadata files with a checksum, and the two checks that every file format shares.

A metadata file is one JSON object with its checksum, on two lines:

    file := body line, then {"crc32": CRC-32 of the body line} line
"""

import json
import re
import zlib
from typing import Any

from kudulite.errors import CorruptionError, FormatVersionError
from kudulite.storage.json_form import JsonText, readable

TRAILER_BYTES_MAX = 32
_TRAILER = re.compile(rb'\n\{"crc32":(\d+)\}\n\Z')


def check_crc32(subject: str, found: int, expected: int) -> None:
    """Raise CorruptionError, which begins with `subject`, unless the checksums are equal."""
    if found != expected:
        raise CorruptionError(f"{subject} {found:#010x}, expected {expected:#010x}")


def check_format_version(subject: str, found: int | str, known: int | str) -> None:
    """Raise FormatVersionError, which begins with `subject`, unless this kudulite reads `found`."""
    if found != known:
        raise FormatVersionError(
            f"{subject} of format version {found}, this kudulite reads {known}; upgrade to read it"
        )


def encode_checked_json(body: dict[str, Any]) -> bytes:
    """Return the content of a metadata file. Members that are `JsonText` are put in as they are."""
    members = []
    for key, value in body.items():
        text = value if isinstance(value, JsonText) else JsonText.of(value)
        members.append(f"{JsonText.of(key)}:{text}")
    line = f"{{{','.join(members)}}}".encode()
    return line + b'\n{"crc32":%d}\n' % zlib.crc32(line)


def stored_crc32(content: bytes) -> int | None:
    """Return the CRC at the end of a file's content, or of its last `TRAILER_BYTES_MAX` bytes.

    None where the end is not a CRC line.
    """
    found = _TRAILER.search(content)
    return int(found[1]) if found else None


def decode_checked_json(content: bytes, source: str, what: str) -> dict[str, Any]:
    """Return the object in the content of the file `source`, which should be `what`.

    Raises CorruptionError if the content is damaged or not an object.
    """
    line, _, trailer = content.partition(b"\n")
    with readable(source, what):
        stored = json.loads(trailer)["crc32"]
        check_crc32(f"{source}: CRC", zlib.crc32(line), stored)
        body = json.loads(line)
        if not isinstance(body, dict):
            raise TypeError(f"a {type(body).__name__}")
        return body
