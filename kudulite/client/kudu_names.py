"""kudu-python's constants, so that its programs run after a change of the import.

Each is the text that the same call takes: `set_read_mode(READ_AT_SNAPSHOT)` and
`set_read_mode("snapshot")` are one. In kudu-python they are numbers, which no program should see.
"""

from __future__ import annotations

from collections.abc import Sequence

from kudulite.errors import OptionError

FLUSH_AUTO_SYNC, FLUSH_AUTO_BACKGROUND, FLUSH_MANUAL = "sync", "background", "manual"

READ_LATEST, READ_AT_SNAPSHOT, READ_YOUR_WRITES = "latest", "snapshot", "read_your_writes"
READ_MODES = (READ_LATEST, READ_AT_SNAPSHOT, READ_YOUR_WRITES)

LEADER_ONLY, CLOSEST_REPLICA, FIRST_REPLICA = "leader", "closest", "first"
REPLICA_SELECTIONS = (LEADER_ONLY, CLOSEST_REPLICA, FIRST_REPLICA)

EXCLUSIVE_BOUND, INCLUSIVE_BOUND = "exclusive", "inclusive"
BOUND_TYPES = (EXCLUSIVE_BOUND, INCLUSIVE_BOUND)

COMPRESSION_DEFAULT, COMPRESSION_NONE = "default", "none"
COMPRESSION_SNAPPY, COMPRESSION_LZ4, COMPRESSION_ZLIB = "snappy", "lz4", "zlib"

ENCODING_AUTO, ENCODING_PLAIN, ENCODING_PREFIX = "auto", "plain", "prefix"
ENCODING_BIT_SHUFFLE, ENCODING_RLE, ENCODING_DICT = "bitshuffle", "rle", "dict"


def checked_choice(what: str, given: object, known: Sequence[str]) -> str:
    """Return `given` in lower case if it is known. Raises OptionError listing the known ones."""
    name = given.lower() if isinstance(given, str) else given
    if name not in known:
        raise OptionError(f"{what} {given!r}; known: {', '.join(known)}")
    return str(name)
