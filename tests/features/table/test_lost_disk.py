"""A disk that fails every call: each use of a table is a StorageError, not one of Python's."""

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kudulite
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import StorageError
from tests.support.tables.core_tables import CoreTables

USES: dict[str, Callable[[Client, Table, int], object]] = {
    "scan": lambda c, t, x: t.scan().to_arrow(),
    "count": lambda c, t, x: t.scan().count(),
    "scan at": lambda c, t, x: t.scan(at=x).to_arrow(),
    "get": lambda c, t, x: t.get(1),
    "get_many": lambda c, t, x: t.get_many([1, 2]),
    "changes": lambda c, t, x: t.changes(0).to_arrow(),
    "history": lambda c, t, x: t.history(1),
    "tokens": lambda c, t, x: [token.open() for token in t.scan_tokens()],
    "native plan": lambda c, t, x: t.native_plan(),
    "upsert": lambda c, t, x: t.upsert([{"id": 1}]),
    "bulk write": lambda c, t, x: t.new_bulk_write().commit([]),
    "overwrite": lambda c, t, x: t.overwrite([{"id": 1}]),
    "session": lambda c, t, x: _flush(c, t),
    "tag": lambda c, t, x: t.tag("y"),
    "flush": lambda c, t, x: t.flush(),
    "compact": lambda c, t, x: t.compact(),
    "maintain": lambda c, t, x: t.maintain(),
    "purge": lambda c, t, x: t.purge([1]),
    "check": lambda c, t, x: t.check(),
    "statistics": lambda c, t, x: t.statistics,
    "schema": lambda c, t, x: t.schema,
    "alter": lambda c, t, x: c.new_table_alterer(t).set_history_retention(1).alter(),
    "copy": lambda c, t, x: t.copy_to(c.root / "copy"),
    "table": lambda c, t, x: c.table("t"),
    "open_table": lambda c, t, x: kudulite.open_table(t.path),
    "table_exists": lambda c, t, x: c.table_exists("t"),
    "list_tables": lambda c, t, x: c.list_tables(),
    "create_table": lambda c, t, x: c.create_table("u", {"id": [1]}, primary_key="id"),
    "rename_table": lambda c, t, x: c.rename_table("t", "u"),
    "delete_table": lambda c, t, x: c.delete_table("t"),
    "connect": lambda c, t, x: kudulite.connect(c.root),
    "backup": lambda c, t, x: kudulite.backup(t, c.root / "backups"),
}


def _flush(client: Client, table: Table) -> None:
    session = client.new_session()
    session.apply(table.new_upsert({"id": 3}))
    session.flush()


def people(client: Client) -> Table:
    """A table with rows in files and in the log, and a tag."""
    table = client.create_table("t", {"id": [1], "v": [1]}, primary_key="id")
    table.insert([{"id": n, "v": n} for n in range(5)])
    table.tag("x")
    session = client.new_session()
    session.apply(table.new_upsert({"id": 1, "v": 7}))
    session.flush()
    return table


class LostDisk:
    """Lets every call for a path below `root`, or for a file opened there, fail after some."""

    def __init__(self, patch: pytest.MonkeyPatch, root: Path, after: int = 0) -> None:
        self.root = str(root)
        self.left = after
        for name in ("stat", "lstat", "open", "listdir", "scandir", "pread", "mkdir", "rename"):
            patch.setattr(os, name, self._failing(getattr(os, name)))
        patch.setattr("io.open", self._failing(open))
        patch.setattr("builtins.open", self._failing(open))
        patch.setattr(pa, "memory_map", self._failing(pa.memory_map))
        patch.setattr(
            os,
            "access",
            lambda path, *args, **kw: self._is_there(path) and access(path, *args, **kw),
        )

    def _is_there(self, path: object) -> bool:
        if not str(path).startswith(self.root):
            return True
        self.left -= 1
        return self.left >= 0

    def _failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".", *args: Any, **options: Any) -> Any:
            is_open = isinstance(path, int) and path >= 0
            place = os.readlink(f"/proc/self/fd/{path}") if is_open else path
            if not self._is_there(place):
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(place))
            return real(path, *args, **options)

        return call


access = os.access


@pytest.mark.parametrize("is_seen", [True, False])
def test_every_call_on_a_lost_disk_is_a_storage_error(core: CoreTables, is_seen):
    """Also where nothing is known of the table yet."""
    client = core.client()
    table = people(client)
    x = table.tags["x"]
    with pytest.MonkeyPatch.context() as patch:
        LostDisk(patch, core.root)
        for name, use in USES.items():
            if not is_seen:
                table._store._seen = None
            with pytest.raises(StorageError):
                use(client, table, x)
                pytest.fail(name)


@pytest.mark.full
@pytest.mark.parametrize("use", USES)
def test_a_disk_that_is_lost_meanwhile_is_a_storage_error(core: CoreTables, use):
    """At every fifth call, until the work needs no more; some work is done again by itself."""
    for after in range(0, 200, 5):
        client = core.client(str(after))
        table = people(client)
        x = table.tags["x"]
        with pytest.MonkeyPatch.context() as patch:
            disk = LostDisk(patch, client.root, after)
            with suppress(StorageError):
                USES[use](client, table, x)
        shutil.rmtree(client.root)
        if disk.left >= 0:
            break
