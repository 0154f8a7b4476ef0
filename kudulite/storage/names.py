"""Every name on disk of a table and of a directory of tables: made here, and read back here.

    <directory>/
      <table>/
        lock
        manifest/<version>.json    manifest/hint            20 digits each
        log/<segment>.log                                   20 digits
        tablet/<tablet id>/
            maintenance-lock    superblock-<id>.json    tombstone-<id>.arrow
            operations-<id>.arrow                           rows that a commit resolves
            rowset/<rowset id>/    base-<id>.parquet  key-<id>.arrow  bloom-<id>.bin
                                   redo-<id>.arrow    undo-<id>.arrow
        writes/<write id>.json                              32 digits
      .soft-deleted-<deleted>-<expires>-<table id>/<name>   a table that can be recalled
      .staged-<created>-<expires>-<id>/<name>               a table that is not published yet
      .deleted-<id>                                         to be removed

An <id> that a write with a record gives is 16 digits of the write's own id, a hyphen, and 16 random
digits. All others are 32 random digits. Times are in microseconds since 1970. A name that does not
parse is nobody's: the file or folder is neither read nor counted. Tables of formats before 8 have a
`lock` and a folder wal/ of segments in each tablet instead of the table's, and those before 7 a
folder staging/ in the place of writes/.

**Invariants**: for each name that is made, the parser of its kind returns what it was made of.
"""

import re
import uuid
from typing import NamedTuple

from kudulite.storage.json_form import checked_name

MANIFEST_FOLDER, TABLET_FOLDER, WRITES_FOLDER = "manifest", "tablet", "writes"
STAGING_FOLDER = "staging"
LOG_FOLDER = "log"
HINT_NAME = "hint"
ROWSET_FOLDER, WAL_FOLDER = "rowset", "wal"
LOCK_NAME = "lock"
# Held by the process that maintains a tablet; readers and writers never take it.
MAINTENANCE_LOCK_NAME = "maintenance-lock"

_NUMBER_DIGITS = 20
_VERSION = re.compile(rf"([0-9]{{{_NUMBER_DIGITS}}})\.json")
_SEGMENT = re.compile(rf"([0-9]{{{_NUMBER_DIGITS}}})\.log")

# The kinds of a tablet's files with an id in their names.
_SUFFIXES = {
    "superblock": "json",
    "tombstone": "arrow",
    "operations": "arrow",
    "base": "parquet",
    "key": "arrow",
    "bloom": "bin",
    "redo": "arrow",
    "undo": "arrow",
}
_FILE = re.compile(rf"({'|'.join(_SUFFIXES)})-.+")
# As long as an id that is random as a whole, but for the hyphen.
_WRITE_DIGITS = 16
# Of a file that is linked or renamed when it is whole.
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}")
_WRITE = re.compile(r"([0-9a-f]{32})\.json")
_ID = re.compile(r"[0-9a-f]{32}")
_DIGITS = rf"[0-9a-f]{{{_WRITE_DIGITS}}}"
_OF_WRITE = re.compile(rf"(?:(?:{'|'.join(_SUFFIXES)})-)?({_DIGITS})-{_DIGITS}(?:\.[a-z]+)?")

_TIMES = "([0-9]{1,17})-([0-9]{1,17})"
_SOFT_DELETED = re.compile(rf"\.soft-deleted-{_TIMES}-(.+)")
_STAGED = re.compile(rf"\.staged-{_TIMES}-([0-9a-f]{{32}})")
_TRASH_PREFIX = ".deleted-"


def version_name(version: int) -> str:
    """Return the file name of a version."""
    return f"{version:0{_NUMBER_DIGITS}d}.json"


def version_of(name: str) -> int | None:
    """Return the version of a file name in manifest/, None for any other name."""
    found = _VERSION.fullmatch(name)
    return None if found is None else int(found[1])


def segment_name(segment: int) -> str:
    """Return the file name of a segment of a log."""
    return f"{segment:0{_NUMBER_DIGITS}d}.log"


def segment_of(name: str) -> int | None:
    """Return the number of a segment's file name, None for any other name."""
    found = _SEGMENT.fullmatch(name)
    return None if found is None else int(found[1])


def new_file_name(kind: str, write_id: str | None = None) -> str:
    """Return a new name for a file of a tablet; `kind` is one of those in the head.

    A file of a write with a record bears its id, by which a garbage collection knows whose it is.
    """
    return f"{kind}-{_new_id(write_id)}.{_SUFFIXES[kind]}"


def new_rowset_id(write_id: str | None = None) -> str:
    """Return a new id for a rowset, which is the name of its folder."""
    return _new_id(write_id)


def _new_id(write_id: str | None) -> str:
    unique = uuid.uuid4().hex
    if write_id is None:
        return unique
    return f"{write_prefix(write_id)}-{unique[:_WRITE_DIGITS]}"


def is_id(name: str) -> bool:
    """Whether a name may be that of a tablet's folder, or of the place of a table on a store."""
    return _ID.fullmatch(name) is not None


def write_name(write_id: str) -> str:
    """Return the file name of a write's record."""
    return f"{write_id}.json"


def write_id_of(name: str) -> str | None:
    """Return the id in the name of a write's record, None for any other name."""
    found = _WRITE.fullmatch(name)
    return None if found is None else found[1]


def write_prefix(write_id: str) -> str:
    """Return the part of a write's id that the names of its files bear."""
    return write_id[:_WRITE_DIGITS]


def write_of(name: str) -> str | None:
    """Return the `write_prefix` of the write that made a file or a rowset's folder.

    None for files that were made under the lock of their tablet, and for all other names.
    """
    found = _OF_WRITE.fullmatch(name)
    return None if found is None else found[1]


def is_of_tablet(name: str) -> bool:
    """Whether the engine may have made a file of this name in a tablet, but for a maintainer."""
    return name == LOCK_NAME or kind_of(name) is not None or segment_of(name) is not None


def is_temporary(name: str) -> bool:
    """Whether a file of this name has content for another one, before that has its name."""
    return _TEMPORARY.fullmatch(name) is not None


def kind_of(name: str) -> str | None:
    """Return the kind of a tablet's file by its name, None for any other name."""
    found = _FILE.fullmatch(name)
    return None if found is None else found[1]


class HiddenName(NamedTuple):
    """A folder's name in a directory of tables: an id, and two times in microseconds.

    `since` is when the table in it was deleted or staged, `expires` when its files may be removed.
    """

    since: int
    expires: int
    id: str


def soft_deleted_name(deleted: int, expires: int, table_id: str) -> str:
    """Return the name of the folder of a soft-deleted table; times in microseconds."""
    return f".soft-deleted-{deleted}-{expires}-{checked_name(table_id, 'table id')}"


def soft_deleted_of(name: str) -> HiddenName | None:
    """Parse the folder's name of a soft-deleted table, None for any other name."""
    return _hidden(_SOFT_DELETED, name)


def new_staged_name(created: int, expires: int) -> str:
    """Return a new name of a folder for staged tables; times in microseconds."""
    return f".staged-{created}-{expires}-{uuid.uuid4().hex}"


def staged_of(name: str) -> HiddenName | None:
    """Parse the name of a folder of staged tables, None for any other name."""
    return _hidden(_STAGED, name)


def _hidden(pattern: re.Pattern[str], name: str) -> HiddenName | None:
    found = pattern.fullmatch(name)
    return None if found is None else HiddenName(int(found[1]), int(found[2]), found[3])


def new_trash_name(of: str | None = None) -> str:
    """Return a name for a folder to be removed: new, or that of the trash `of` something."""
    return f"{_TRASH_PREFIX}{uuid.uuid4().hex if of is None else of}"


def is_trash(name: str) -> bool:
    """Whether a folder of this name is to be removed."""
    return name.startswith(_TRASH_PREFIX)
