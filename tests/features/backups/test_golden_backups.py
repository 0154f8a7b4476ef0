"""The exact bytes of a backup set's files: what is written today is in files of `golden`."""

from pathlib import Path

import pytest

from kudulite.backups.backup_set import Backup
from kudulite.backups.format import (
    BackupHead,
    BackupPlan,
    ContentSum,
    DataFile,
    PieceResult,
    PlannedPiece,
)
from kudulite.chain.partition import PartitionSchema, RangeWithHashSchema
from kudulite.model.schema import Column, Schema
from kudulite.model.types import parse_type
from kudulite.storage.storage import FileRef

GOLDEN = Path(__file__).parent / "golden"

SCHEMA = Schema.build(
    [Column(0, "k", parse_type("int32"), nullable=False), Column(1, "v", parse_type("string"))],
    ["k"],
)
PARTITION = PartitionSchema.build(
    SCHEMA, (), ["k"], [RangeWithHashSchema(None, (5,)), RangeWithHashSchema((5,), None)]
)
FULL_ID, CHILD_ID = "20261121T101112.000345Z-0001", "20261122T101112.000345Z-0000"
FILE = DataFile(FileRef("piece-00000-x.parquet", 100, 5), 10, 7, 1)
TABLE = {
    "table_name": "wörter",
    "table_id": "id",
    "schema": SCHEMA,
    "partition": PARTITION,
    "tablet_ids": ("t-0", "t-1"),
    "history_seconds": 60,
    "tags": {"first": 3},
}
CHILD = {**TABLE, "start": 1, "moment": 2, "row_count": 10, "parent": FULL_ID, "parent_crc32": 9}

VALUES = {
    "manifest-full": Backup(FULL_ID, **TABLE, start=0, moment=1, row_count=0, path=Path(FULL_ID)),
    "manifest-incremental": Backup(
        CHILD_ID, **CHILD, path=Path(CHILD_ID), files=(FILE,), content_hash=1 << 63
    ),
    "manifest-owned": Backup(
        CHILD_ID, **CHILD, path=Path(CHILD_ID), owner="Ada", comment='a "table"'
    ),
    "plan": BackupPlan(
        head=BackupHead(CHILD_ID, **CHILD),
        pieces=(
            PlannedPiece("changes", ("t-0", "t-1"), None, b"\x80\xff", 1000, 20),
            PlannedPiece("content", ("t-1",), b"\x80\xff", None, 0, 0),
        ),
        has_content_hash=True,
    ),
    "piece": PieceResult(FILE, ContentSum(10, 1 << 63)),
    "piece-empty": PieceResult(None, None),
}


@pytest.mark.parametrize("name", VALUES)
def test_the_bytes_are_those_of_the_golden_file(name: str):
    """Order of keys, spelling of values, absent fields: nothing may differ."""
    assert VALUES[name].encode() == (GOLDEN / f"{name}.json").read_bytes()


@pytest.mark.parametrize("name", VALUES)
def test_the_golden_file_is_read(name: str):
    """To a value that is written with the same bytes."""
    value, content = VALUES[name], (GOLDEN / f"{name}.json").read_bytes()
    if isinstance(value, Backup):
        again = Backup.decode(content, value.path, value.storage)
        assert (again.files, again.content_hash) == (value.files, value.content_hash)
    else:
        again = type(value).decode(content, "x")
        assert again == value
    assert again.encode() == content
