"""A disk error at any durable step: the write is refused or visible, never half; nothing is lost.

The process goes on, unlike in test_kill_points.py, so what cleans up after an error runs and must
not take away what a published version refers to; also when another writer publishes meanwhile.
"""

import shutil
from pathlib import Path

import pytest

import kudulite
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import StorageError
from kudulite.upkeep.garbage_collection import collect_garbage
from tests.support.doubles.killing_file_system import FailingFileSystem, KillingFileSystem
from tests.support.tables.core_tables import CoreTables, environment, stored
from tests.support.tiers import tiered

CHANGES = [
    {"op": "delete", "k": 0, "v": None},
    {"op": "update", "k": 1, "v": 100},
    {"op": "insert", "k": 9, "v": 9},
]


@pytest.fixture
def base(core: CoreTables) -> Path:
    """A table of two ranges with rows in both; the tests write to the lower one."""
    root = core.root / "base"
    builder = kudulite.schema_builder()
    builder.add_column("k", kudulite.int32, nullable=False)
    builder.add_column("v", kudulite.int32)
    builder.set_primary_keys(["k"])
    table = Client(root, environment()).create_table(
        "t", builder.build(), range_partitions={"columns": ["k"], "bounds": [[0, 10], [10, 20]]}
    )
    table.insert([{"k": k, "v": k} for k in (0, 1, 2, 10, 11)])
    return root


def opened(root: Path, file_system=None) -> Table:
    """The table by a client that has seen nothing."""
    return Client(root, environment(file_system)).table("t")


def other_write(root: Path) -> None:
    """Another process writes to the other tablet."""
    opened(root).upsert([{"k": 10, "v": 77}])


@tiered("every", [3, 1], quick=1)
@pytest.mark.parametrize("is_alone", [True, False])
def test_a_disk_error_at_any_step_leaves_old_or_new(
    core: CoreTables, base: Path, is_alone: bool, every: int
):
    """The table passes its check, and the same write again gives the new rows."""
    counting = KillingFileSystem()
    new = core.root / "new"
    shutil.copytree(base, new)
    opened(new, counting).apply(CHANGES)
    others = {} if is_alone else {10: 77}
    old_rows = dict(stored(opened(base))) | others
    new_rows = dict(stored(opened(new))) | others
    refused = 0
    steps = range(0, counting.count, every)
    for step in steps:
        root = core.root / str(step)
        shutil.copytree(base, root)
        meanwhile = (lambda: None) if is_alone else (lambda root=root: other_write(root))
        table = opened(root, FailingFileSystem(step, meanwhile))
        try:
            table.apply(CHANGES)
            is_done = True
        except StorageError as error:
            assert "the disk has a bad day" in str(error)
            is_done = False
            refused += 1
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
