"""Rights of the file system, as docs/security.md lists them: a reader reads and changes nothing."""

import fcntl
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kudulite
from kudulite.client.table import Table
from kudulite.errors import LockTimeoutError, StorageError, TableNotFoundError
from tests.support.other_user import READER, as_reader
from tests.support.tables.core_tables import environment


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
    (lock,) = path.rglob("lock")
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


def error_of(kind: type[Exception], client: kudulite.Client, name: str) -> Exception | None:
    """The error of opening a table."""
    try:
        client.table(name)
    except kind as error:
        return error
    return None


FOLDERS = ["lost+found", ".soft-deleted-1-99999999999999999-of-another-user"]
LISTS: dict[str, Callable[[kudulite.Client], Any]] = {
    "list": lambda client: client.list_tables() == ["t"],
    "look for one": lambda client: "tables: t" in str(error_of(TableNotFoundError, client, "u")),
    "newest moment": lambda client: client.latest_observed_timestamp().year > 2000,
    "soft-deleted": lambda client: client.list_soft_deleted_tables() == [],
}


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("operation", LISTS)
@pytest.mark.filterwarnings("ignore:left out of the list of tables")
def test_a_folder_without_rights_hides_no_other_table(path, operation, folder):
    """As the lost+found of a disk, or what another user has soft-deleted: it is left out."""
    closed = path.parent / folder
    path.parent.chmod(0o755)
    closed.mkdir()
    closed.chmod(0o000)
    try:
        assert as_reader(lambda: LISTS[operation](kudulite.connect(path.parent))) is True
    finally:
        closed.chmod(0o755)


def test_a_folder_without_rights_is_left_out_with_a_warning(path):
    """A table in it would be missed; to look for that one is an error."""
    closed = path.parent / "closed"
    path.parent.chmod(0o755)
    closed.mkdir()
    closed.chmod(0o000)

    def warned() -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            kudulite.connect(path.parent).list_tables()
        return [str(each.message) for each in caught]

    try:
        (text,) = as_reader(warned)
        assert "left out of the list of tables: " in text and f"{closed}" in text
        error = as_reader(lambda: kudulite.connect(path.parent).table_exists("closed"))
        assert isinstance(error, StorageError)
    finally:
        closed.chmod(0o755)
