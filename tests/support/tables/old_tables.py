"""Small tables that software of older formats has written: archives, and what they hold.

The archives in tests/features/table/golden/tables were written by the software of their time and
never change. They have base data, REDO, UNDO after a compaction, deletes and, by version, a log, a
tag and tombstones. A new format version needs a new archive, written before the version is raised.

That of version 7 has three tablets with rows in the log of each, a dropped range, and a bulk write
that has staged rows, and that others may go on with. It was written second after second:

    0  create   1  insert   2  upsert   3  delete   4  drop [200, 300)   5  upsert   6  compact
    7  tag   9, 10, 11  session flushes, which are in the logs
"""

import os
import tarfile
from pathlib import Path

import kudulite
from kudulite.client.client import Client
from kudulite.storage.storage import Storage
from tests.support.tables.core_tables import ManualClock, environment

GOLDEN = Path(__file__).parents[2] / "features" / "table" / "golden"
FOLDER = GOLDEN / "tables"
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in FOLDER.iterdir())
WITH_OPTIONS = "manifest-5-superblock-3"  # an owner, a comment, hash partitions of a range
ALTERED = "manifest-6-superblock-2"  # a bulk write has staged rows and not committed them
LOGGED = "manifest-7-superblock-2"
WITHOUT_LOG = "manifest-1-superblock-1"
WITHOUT_TAGS = (WITHOUT_LOG, "manifest-1-superblock-2")

LOGGED_BEGIN = 1_795_590_000_000_000
LOGGED_WRITE = "03b45db7ca5e4fe6b02a582208a3fe5a"  # the bulk write that is open

Rows = dict[int, tuple[int, str]]


def rows_of(name: str, *, is_tag: bool = False) -> Rows:
    """The rows of a table by key, now or at its tag."""
    rows = {k: (1, f"row {k}") for k in (*range(20), *range(100, 110))}
    rows |= {k: (2, f"row {k}") for k in (1, 2, 101)}
    del rows[3], rows[103]
    rows |= {k: (3, f"row {k}") for k in (4, 20)}
    if not is_tag and name != WITHOUT_LOG:
        rows |= dict.fromkeys((5, 21), (4, "session"))
        del rows[6]
    return rows


def logged_moments() -> dict[int, Rows]:
    """The rows of the table LOGGED at each moment at which they changed."""
    now = rows_of(LOGGED)
    at_tag = rows_of(LOGGED, is_tag=True)
    first = {k: (1, f"row {k}") for k in (*range(20), *range(100, 110), 200, 201)}
    second = first | {k: (2, f"row {k}") for k in (1, 2, 101)}
    third = {k: row for k, row in second.items() if k not in (3, 103)}
    fourth = {k: row for k, row in third.items() if k < 200}
    ninth = {k: row for k, row in at_tag.items() if k != 6} | {5: (3, "row 5"), 7: (9, "row 7")}
    tenth = ninth | {5: (4, "session"), 7: (1, "row 7")}
    seconds = {0: {}, 1: first, 2: second, 3: third, 4: fourth, 5: at_tag, 7: at_tag}
    seconds |= {8: at_tag, 9: ninth, 10: tenth, 11: now}
    return {moment(second): rows for second, rows in seconds.items()}


def moment(second: int) -> int:
    """The HybridTime of a second after the table LOGGED was begun."""
    return LOGGED_BEGIN + second * 1_000_000 << 12


def tuples_of(rows: Rows) -> list[tuple]:
    """Rows as a scan returns them."""
    return sorted((key, *cells) for key, cells in rows.items())


def unpacked(root: Path, name: str) -> kudulite.Table:
    """The table of an archive, below `root`."""
    return unpacked_archive(root, FOLDER / f"{name}.tar.xz")


def unpacked_archive(root: Path, path: Path) -> kudulite.Table:
    """The table of an archive, below `root`, with files of now."""
    with tarfile.open(path) as archive:
        archive.extractall(root / "t", filter="data")
    for file in (root / "t").rglob("*"):
        os.utime(file)  # a write has not fallen silent on any day
    return client_of(root).table("t")


def client_of(root: Path, storage: Storage | None = None) -> Client:
    """A client that has seen nothing, of a time when the retention of the tables had not passed."""
    return Client(root, environment(storage, ManualClock(1_795_600_000_000_000)))


def contents_of(folder: Path) -> dict[str, bytes | None]:
    """All folders and files of a tree, with their bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }
