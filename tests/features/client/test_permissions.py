"""Rights of the file system, as docs/security.md lists them: a reader reads and changes nothing."""

import fcntl
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kudulite
from kudulite.client.table import Table
from kudulite.errors import LockTimeoutError, StorageError
from tests.support.tables.core_tables import environment

READER = 65534  # a user who owns nothing


def made(folder: Path) -> Table:
    """A table whose files are readable by all, with rows in files and rows in a log."""
    folder.chmod(0o755)
    client = kudulite.Client(folder / "db", environment())
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    table = client.create_table("t", schema, primary_key="k")
    table.upsert({"k": list(range(2000)), "v": [0] * 2000})
    session = client.new_session()
    session.apply(table.new_upsert({"k": 5000, "v": 1}))
    session.flush()
    return table


def as_reader(work: Callable[[], Any]) -> Any:
    """Return the result of `work`, or the error that it raised, for a user without rights.

    A process that is not root's cannot become another user: it does the work on files that are
    read-only for itself.
    """
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(READER)
                os.setuid(READER)
            found = work()
        except BaseException as error:
            found = error
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(pickle.dumps(found))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        content = pipe.read()
    os.waitpid(process, 0)
    return pickle.loads(content)


@pytest.fixture
def path() -> Iterator[Path]:
    """The path of a table that its reader may not change; the reader owns the folder `own`."""
    # Not `tmp_path`, because the folders above it are closed to other users.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mask = os.umask(0o022)
        place = made(folder).path
        (folder / "own").mkdir()
        os.umask(mask)
        files = [place.parent, place, *place.rglob("*")]
        if os.geteuid() == 0:
            os.chown(folder / "own", READER, READER)
        else:
            for file in files:
                file.chmod(0o555 if file.is_dir() else 0o444)
        yield place
        for file in files:
            if file.exists():
                file.chmod(0o755 if file.is_dir() else 0o644)


READS: dict[str, Callable[[Table, Path], Any]] = {
    "scan": lambda table, own: table.scan().count() == 2001,
    "past": lambda table, own: table.scan(at=table.current_timestamp()).count() == 2001,
    "changes": lambda table, own: table.changes(0).to_arrow().num_rows == 2001,
    "history": lambda table, own: table.history(5000).num_rows == 1,
    "versions": lambda table, own: len(table.versions()) >= 2,
    "check": lambda table, own: table.check().row_count == 2001,
    "backup": lambda table, own: kudulite.backup(table, own / "set").row_count == 2001,
    "copy": lambda table, own: table.copy_to(own / "copy", with_past=False) > 0,
}
WRITES: dict[str, Callable[[Table, Path], Any]] = {
    "row": lambda table, own: table.upsert({"k": [1], "v": [1]}),
    "bulk": lambda table, own: table.upsert({"k": list(range(5000)), "v": [1] * 5000}),
    "flush": lambda table, own: table.flush(),
    "compact": lambda table, own: table.compact(),
    "maintain": lambda table, own: table.maintain(),
    "purge": lambda table, own: table.purge([{"k": 1}]),
    "tag": lambda table, own: table.tag("now"),
    "copy with the past": lambda table, own: table.copy_to(own / "copy"),
    "drop": lambda table, own: kudulite.connect(table.path.parent).delete_table("t"),
    "create": lambda table, own: kudulite.connect(table.path.parent).create_table(
        "u", pa.schema([("k", pa.int64())]), primary_key="k"
    ),
}


def contents(path: Path) -> dict[str, bytes]:
    """All files below the directory of tables."""
    return {str(p): p.read_bytes() for p in path.parent.rglob("*") if p.is_file()}


@pytest.mark.parametrize("operation", READS)
def test_the_right_to_read_is_enough_to_read(path, operation):
    """Also for rows that are in a log only, and for backups and copies of the present."""
    own = path.parent.parent / "own"
    assert as_reader(lambda: READS[operation](kudulite.open_table(path), own)) is True


@pytest.mark.parametrize("operation", WRITES)
def test_a_reader_cannot_change_anything(path, operation):
    """The error names the file and says what is missing; no file has changed."""
    before, own = contents(path), path.parent.parent / "own"
    error = as_reader(lambda: WRITES[operation](kudulite.open_table(path), own))
    assert isinstance(error, StorageError), error
    assert f"{path.parent}" in str(error) and "Permission denied" in str(error)
    assert contents(path) == before


def test_a_reader_can_delay_writers_by_holding_a_lock(path):
    """The right to read a lock file is the right to hold its lock; the writer's wait ends."""
    (lock,) = path.glob("tablet/*/lock")
    for file in [path.parent, path, *path.rglob("*")]:
        file.chmod(0o755 if file.is_dir() else 0o644)
    client = kudulite.Client(path.parent, environment(lock_timeout_seconds=0.2))
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        with pytest.raises(LockTimeoutError, match=r"waited 0\.2 s"):
            client.table("t").upsert({"k": [1], "v": [1]})
    assert client.table("t").upsert({"k": [1], "v": [1]}).updated == 1


def test_new_files_have_the_umask_of_their_process(tmp_path):
    """A group writes together with umask 002, and nobody else reads with umask 077."""
    for mask, expected in ((0o002, 0o775), (0o077, 0o700)):
        before = os.umask(mask)
        try:
            client = kudulite.Client(tmp_path / f"db{mask}", environment())
            table = client.create_table("t", pa.schema([("k", pa.int64())]), primary_key="k")
            table.upsert({"k": [1, 2]})
        finally:
            os.umask(before)
        modes = {p: p.stat().st_mode & 0o777 for p in [table.path, *table.path.rglob("*")]}
        for place, mode in modes.items():
            assert mode == (expected if place.is_dir() else expected & 0o666), place
