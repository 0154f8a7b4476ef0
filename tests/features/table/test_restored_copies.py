"""An older copy of a table, put in the table's place while processes have the table open.

An operator restores a folder from a copy, or a link is made to lead to another one.
"""

import os
import shutil
import signal
from pathlib import Path

import pytest

from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import CorruptionError, KuduliteError
from tests.support.tables.core_tables import CoreTables, stored
from tests.support.tables.row_writes import new_table, op, put, store_of, write

WAYS = ["moved", "linked", "written over"]


class Restored:
    """A table of a folder `data`, and a copy of it from before its last rows."""

    def __init__(self, core: CoreTables, way: str, *, is_flushed: bool) -> None:
        self.core, self.way = core, way
        self.data = core.root / "data"
        (core.root / "first").mkdir()
        if way == "linked":
            self.data.symlink_to("first")
        else:
            (core.root / "first").rename(self.data)
        self.client = Client(self.data, core.client()._environment)
        self.table = new_table(self.client, 2)
        put(self.table, 1, 101)
        if is_flushed:
            self.table.flush()
        shutil.copytree(self.data, core.root / "copy")
        put(self.table, 2, 102)
        if is_flushed:
            self.table.flush()
            put(self.table, 3, 103)

    def restore(self) -> None:
        """Put the copy in the place of the table."""
        copy, place = self.core.root / "copy", self.data
        if self.way == "moved":
            place.rename(self.core.root / "second")
            copy.rename(place)
        elif self.way == "linked":
            (self.core.root / "link").symlink_to("copy")
            os.replace(self.core.root / "link", place)
        else:
            for path in place.rglob("*"):
                if path.is_file() and not (copy / path.relative_to(place)).exists():
                    path.unlink()
            for path in copy.rglob("*"):
                if path.is_file():
                    (place / path.relative_to(copy)).write_bytes(path.read_bytes())

    def keys(self, table: Table | None = None) -> list[int]:
        """The keys that a table has, that of another client unless one is given."""
        return [row[0] for row in stored(table or self.core.client("data").table("t"))]


def refusal(table: Table) -> str:
    """The text of the error of a row that cannot be written."""
    (failure,) = write(table, op("upsert", 2)).failures
    assert isinstance(failure.error, KuduliteError)
    return str(failure.error)


@pytest.fixture(autouse=True)
def _ends(request: pytest.FixtureRequest):
    """A call that never ends is killed with its test."""
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_written_after_a_restore_is_in_the_copy(core: CoreTables, way: str):
    """The process forgets what it has of the log that was there, and writes to it no more."""
    restored = Restored(core, way, is_flushed=False)
    restored.restore()
    put(restored.table, 4, 104)
    assert restored.keys() == restored.keys(restored.table) == [1, 4, 101, 104]
    restored.table.flush()
    put(restored.table, 5)
    assert restored.keys() == restored.keys(restored.table) == [1, 4, 5, 101, 104]
    restored.table.check().raise_if_bad()


@pytest.mark.parametrize("way", WAYS)
def test_readers_read_the_copy(core: CoreTables, way: str):
    """A process that has the rows in memory, and writes no more, reads those of the copy."""
    restored = Restored(core, way, is_flushed=False)
    reader = core.client("data").table("t")
    assert restored.keys(reader) == [1, 2, 101, 102]
    restored.restore()
    assert restored.keys(reader) == restored.keys(restored.table) == [1, 101]
    assert reader.get({"k": 2}) is None
    put(core.client("data").table("t"), 4)
    assert restored.keys(reader) == restored.keys(restored.table) == [1, 4, 101]


@pytest.mark.parametrize("way", ["moved", "linked"])
def test_a_copy_that_has_gone_its_own_way_is_read(core: CoreTables, way: str):
    """Its log is as long as the one that was there, so its length tells nothing."""
    restored = Restored(core, way, is_flushed=False)
    put(core.client("copy").table("t"), 7, 107)
    reader = core.client("data").table("t")
    assert restored.keys(reader) == [1, 2, 101, 102]
    restored.restore()
    assert restored.keys(reader) == restored.keys(restored.table) == [1, 7, 101, 107]
    put(restored.table, 4)
    assert restored.keys() == restored.keys(reader) == [1, 4, 7, 101, 107]


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_of_an_older_version_is_read_when_the_table_is_opened_again(
    core: CoreTables, way: str
):
    """An object that has seen a newer version says so; a new one of the same process is right."""
    restored = Restored(core, way, is_flushed=True)
    restored.restore()
    with pytest.raises(CorruptionError, match="on purpose, open the table again"):
        stored(restored.table)
    assert "on purpose, open the table again" in refusal(restored.table)
    again = restored.client.table("t")
    assert restored.keys(again) == [1, 101]
    put(again, 4)
    again.flush()
    put(again, 5)
    assert restored.keys(again) == restored.keys() == [1, 4, 5, 101]


@pytest.mark.parametrize("lost", ["folder", "file", "moved folder"])
def test_nothing_is_written_to_a_log_that_is_not_there_any_more(core: CoreTables, lost: str):
    """A writer has the file open, which its name does not lead to: the write is refused."""
    table = new_table(core.client())
    put(table, 1)
    log = Path(table.path) / "log"
    kept = core.root / "kept"
    shutil.copytree(log, kept)
    if lost == "file":
        (log / "00000000000000000001.log").unlink()
    elif lost == "folder":
        shutil.rmtree(log)
    else:
        log.rename(core.root / "aside")
    assert "0001.log: it does not exist" in refusal(table)
    shutil.copytree(kept, log, dirs_exist_ok=True)
    put(table, 3)
    assert [row[0] for row in stored(table)] == [1, 3]
    assert [row[0] for row in stored(core.client().table("t"))] == [1, 3]


@pytest.mark.parametrize("is_flushed", [False, True])
def test_a_lock_file_that_was_lost_is_made_again_as_the_error_says(
    core: CoreTables, is_flushed: bool
):
    """Some tools leave files named `lock` out of copies."""
    table = new_table(core.client())
    put(table, 1)
    if is_flushed:
        table.flush()
    path = Path(store_of(table).log.lock_path)
    path.unlink()
    assert "if it was lost, make an empty file of this name" in refusal(table)
    path.touch()
    assert [row[0] for row in stored(core.client().table("t"))] == [1]
    put(table, 3)
    assert [row[0] for row in stored(core.client().table("t"))] == [1, 3]
