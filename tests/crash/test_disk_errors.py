"""A disk error at any durable step: the write is refused or visible, never half; nothing is lost.

The process goes on, unlike in test_kill_points.py, so what cleans up after an error runs and must
not take away what a published version refers to; also when another writer publishes meanwhile.
"""

import errno
import shutil
from pathlib import Path

import pytest

import kudulite
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import LockTimeoutError, StorageError
from kudulite.storage.local_storage import LocalStorage
from kudulite.upkeep.garbage_collection import collect_garbage
from tests.support.doubles.killing_storage import FailingStorage, KillingStorage
from tests.support.tables.core_tables import CoreTables, environment, stored
from tests.support.tiers import tiered

RANGES = {"columns": ["k"], "bounds": [[0, 10], [10, 20]]}
CHANGES = [
    {"op": "delete", "k": 0, "v": None},
    {"op": "update", "k": 1, "v": 100},
    {"op": "insert", "k": 9, "v": 9},
]


@pytest.fixture
def base(core: CoreTables) -> Path:
    """A table of two ranges with rows in both; the tests write to the lower one."""
    root = core.root / "base"
    columns = [kudulite.column("k", kudulite.int32), kudulite.column("v", kudulite.int32)]
    table = Client(root, environment()).create_table(
        "t", kudulite.schema(columns, "k"), range_partitions=RANGES
    )
    table.insert([{"k": k, "v": k} for k in (0, 1, 2, 10, 11)])
    return root


def opened(root: Path, storage=None, **options: object) -> Table:
    """The table by a client that has seen nothing."""
    return Client(root, environment(storage, **options)).table("t")


def other_write(root: Path) -> bool:
    """Whether another process has written to the other tablet; the table's lock may be held."""
    try:
        opened(root, lock_timeout_seconds=0.0).upsert([{"k": 10, "v": 77}])
    except LockTimeoutError:
        return False
    return True


@tiered("every", [3, 1], quick=1)
@pytest.mark.parametrize("is_alone", [True, False])
def test_a_disk_error_at_any_step_leaves_old_or_new(
    core: CoreTables, base: Path, is_alone: bool, every: int
):
    """The table passes its check, and the same write again gives the new rows."""
    counting = KillingStorage()
    new = core.root / "new"
    shutil.copytree(base, new)
    opened(new, counting).apply(CHANGES)
    rows = dict(stored(opened(base))), dict(stored(opened(new)))
    refused, written = 0, []
    steps = range(0, counting.count, every)
    for step in steps:
        root = core.root / str(step)
        shutil.copytree(base, root)
        others: list[bool] = []

        def meanwhile(root: Path = root, others: list[bool] = others) -> None:
            if not is_alone:
                others.append(other_write(root))

        table = opened(root, FailingStorage(step, meanwhile))
        try:
            table.apply(CHANGES)
            is_done = True
        except StorageError as error:
            assert "the disk has a bad day" in str(error)
            is_done = False
            refused += 1
        written += others
        old_rows, new_rows = (each | ({10: 77} if any(others) else {}) for each in rows)
        found = dict(stored(opened(root)))
        assert found in ([new_rows] if is_done else [old_rows, new_rows]), step
        opened(root).check().raise_if_bad()
        if found == old_rows:
            table.apply(CHANGES)
            assert dict(stored(opened(root))) == new_rows
        collect_garbage(opened(root)._store, 0, 0)
        opened(root).check().raise_if_bad()
        shutil.rmtree(root)
    assert refused > len(steps) // 2
    assert is_alone or (True in written and False in written)


class NoRoomForNames(LocalStorage):
    """Refuses the fsyncs of folders that follow the step `last`, a move or an exchange."""

    last = "rename"
    is_moved = False

    def before(self, operation: str, path: Path) -> None:
        """Raise for such an fsync."""
        self.is_moved |= operation == self.last
        if self.is_moved and operation == "fsync" and path.is_dir():
            raise StorageError(errno.EIO, f"cannot fsync folder {path}: Input/output error")


@pytest.mark.parametrize("name", ["rename", "delete", "soft-delete", "replace"])
def test_an_error_after_a_table_was_moved_says_that_it_was(core: CoreTables, base: Path, name: str):
    """A caller who thinks that nothing was done would do it again, to another table perhaps."""
    storage = NoRoomForNames()
    client = Client(base, environment(storage))
    table = client.table("t")
    if name == "replace":
        staged = client.new_staging().create_table("t", table.schema, range_partitions=RANGES)
        staged.insert([{"k": 5, "v": 5}])
        storage.last = "exchange"
    calls = {
        "rename": (lambda: client.rename_table("t", "u"), "table 't' is 'u' now", ["u"]),
        "delete": (lambda: client.delete_table("t"), "table 't' is deleted", []),
        "soft-delete": (lambda: client.soft_delete_table("t", 60), "table 't' is deleted", []),
        "replace": (
            lambda: client.publish_table(staged, overwrite=True),
            "table 't' is replaced",
            ["t"],
        ),
    }
    call, done, left = calls[name]
    storage.is_moved = False
    with pytest.raises(StorageError, match=f"Input/output error; {done} all the same"):
        call()
    assert Client(base, environment()).list_tables() == left
    if left:
        found = [row[0] for row in stored(Client(base, environment()).table(left[0]))]
        assert found == ([5] if name == "replace" else [0, 1, 2, 10, 11])
