"""Format of a key index: an Arrow IPC file of the encoded keys, with a sparse index in its schema.

    file      := Arrow IPC file, lz4, one column "key"
                   width w      → fixed_size_binary(w)
                   width "none" → binary, or large_binary over 2 GiB
    batch i   := keys with the rowids i * BATCH_ROWS .. (every batch but the last has BATCH_ROWS)
    metadata  := kudulite.key_index = JSON {format_version, width, key_count,
                   first_keys: [hex of the first key of each batch], last_key: hex or null}

Worked example, the int32 keys 1 and 2 (encoded 80000001, 80000002):

    {"format_version": 1, "width": 4, "key_count": 2, "first_keys": ["80000001"],
     "last_key": "80000002"}

An index of no keys has no batch, no first keys, and null as its last key.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from kudulite.errors import CorruptionError, FormatVersionError

FORMAT_VERSION = 1  # on disk: a change of meaning raises it
METADATA_KEY = b"kudulite.key_index"
BATCH_ROWS = 65536  # on disk: rowid // BATCH_ROWS is the batch
KEY_COUNT_MAX = 1 << 32  # a rowid is uint32


@dataclass(frozen=True)
class KeyIndexHeader:
    """What is known of an index without reading a batch."""

    width: int | None
    key_count: int
    first_keys: tuple[bytes, ...]
    last_key: bytes | None

    def encode(self) -> bytes:
        """The metadata value."""
        return json.dumps(
            {
                "format_version": FORMAT_VERSION,
                "width": self.width,
                "key_count": self.key_count,
                "first_keys": [key.hex() for key in self.first_keys],
                "last_key": None if self.last_key is None else self.last_key.hex(),
            }
        ).encode()


def decode_header(content: bytes, *, path: object, batch_count: int) -> KeyIndexHeader:
    """Check and take apart a metadata value of the file at `path`, which has `batch_count` batches.

    Raises FormatVersionError, or CorruptionError when it is malformed or contradicts the file.
    """
    try:
        fields = json.loads(content)
        version = fields["format_version"]
        if version != FORMAT_VERSION:
            raise FormatVersionError(
                f"{path}: key index of format version {version}, this kudulite reads"
                f" {FORMAT_VERSION}; upgrade to read it"
            )
        last_key = fields["last_key"]
        header = KeyIndexHeader(
            width=None if fields["width"] is None else int(fields["width"]),
            key_count=int(fields["key_count"]),
            first_keys=tuple(bytes.fromhex(key) for key in fields["first_keys"]),
            last_key=None if last_key is None else bytes.fromhex(last_key),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"{path}: malformed key index metadata: {error!r}") from error
    problem = _contradiction(header, batch_count)
    if problem:
        raise CorruptionError(f"{path}: key index metadata: {problem}")
    return header


def _contradiction(header: KeyIndexHeader, batch_count: int) -> str:
    """What is wrong with a header, or an empty text."""
    keys = [*header.first_keys, *([] if header.last_key is None else [header.last_key])]
    if not 0 <= header.key_count <= KEY_COUNT_MAX:
        return f"{header.key_count} keys"
    if batch_count != -(-header.key_count // BATCH_ROWS):
        return f"{batch_count} batches for {header.key_count} keys"
    if len(header.first_keys) != batch_count:
        return f"{len(header.first_keys)} first keys for {batch_count} batches"
    if (header.last_key is None) != (header.key_count == 0):
        return f"last key {header.last_key!r} for {header.key_count} keys"
    if header.width is not None and (
        header.width < 1 or any(len(key) != header.width for key in keys)
    ):
        return f"keys that are not of {header.width} bytes"
    return ""
