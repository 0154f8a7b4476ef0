"""Tampered ids and file names in a backup set: no file of another folder is read or removed."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

import kudulite
from kudulite.backups.backup_job import begin_backup
from kudulite.backups.backup_set import Backup
from kudulite.backups.format import BackupPlan, PieceResult, backup_id
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import CorruptionError
from kudulite.storage.checked_json import encode_checked_json
from tests.support.tables.core_tables import environment

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), ("v", pa.int64())])
HOSTILE = ["../other", "..", "", ".x", "/etc/passwd", "a/b", "x" * 201, 5]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table with a row."""
    table = Client(tmp_path / "root", environment()).create_table("t", SCHEMA, primary_key="k")
    table.upsert([{"k": 1, "v": 1}])
    return table


def body_of(path: Path) -> dict:
    """The JSON object in a file of a backup set."""
    return json.loads(path.read_bytes().partition(b"\n")[0])


@pytest.mark.parametrize("name", HOSTILE)
def test_every_name_in_a_backup_is_checked(table: Table, tmp_path: Path, name: object):
    """File names, the id and the parent in the manifest; the id in the plan; a piece's file."""
    target = tmp_path / "backups"
    kudulite.backup(table, target)
    table.upsert([{"k": 2, "v": 2}])
    made = kudulite.backup(table, target)
    path = made.path / "manifest.json"
    body = body_of(path)
    (file,) = body["files"]
    changed = [{"files": [{**file, "name": name}]}, {"id": name}, {"parent": name}]
    for change in changed:
        path.write_bytes(encode_checked_json({**body, **change}))
        with pytest.raises(CorruptionError, match=f"{path}: not a backup's manifest: .*expected 1"):
            kudulite.restore(target, tmp_path / "root" / "r")
    for change in changed[1:]:
        content = encode_checked_json({**body, "pieces": [], "has_content_hash": False, **change})
        with pytest.raises(CorruptionError, match=r"plan\.json: not a backup's plan: .*expected 1"):
            BackupPlan.decode(content, "plan.json")
    content = encode_checked_json(
        {"format_version": 1, "file": {**file, "name": name}, "content": None}
    )
    with pytest.raises(CorruptionError, match=r"p\.json: not a piece of a backup: .*expected 1"):
        PieceResult.decode(content, "p.json")


def test_a_plan_of_another_folder_is_not_followed(table: Table, tmp_path: Path):
    """A plan whose id names another backup's folder would make its files there and clean it up."""
    target = tmp_path / "backups"
    first = kudulite.backup(table, target)
    before = {path: path.read_bytes() for path in first.path.iterdir()}
    table.upsert([{"k": 2, "v": 2}])
    with begin_backup(table, target) as job:
        folder = target / backup_id(job.moment)
    plan = folder / "plan.json"
    for hostile in (first.id, f"../{target.name}/{first.id}"):
        plan.write_bytes(encode_checked_json({**body_of(plan), "id": hostile}))
        with begin_backup(table, target) as job:
            assert not job.is_resumed
            assert backup_id(job.moment) != first.id
            plan = target / backup_id(job.moment) / "plan.json"
    assert {path: path.read_bytes() for path in first.path.iterdir()} == before


def test_everything_that_a_backup_writes_is_read(table: Table, tmp_path: Path):
    """Manifests, plans and pieces, with the names that the engine gives."""
    target = tmp_path / "backups"
    for value in range(2):
        table.upsert([{"k": 1, "v": value}])
        with begin_backup(table, target) as job:
            job.run()
            for piece in job.pieces:
                assert PieceResult.decode(piece.result_path.read_bytes(), "x") == piece.result()
            plan = (target / backup_id(job.moment) / "plan.json").read_bytes()
            assert BackupPlan.decode(plan, "x").encode() == plan
            made = job.finish()
        content = (made.path / "manifest.json").read_bytes()
        assert Backup.decode(content, made.path, made.storage) == made


@pytest.mark.parametrize("state", [{"format_version": 1}, {"format_version": 1, "chain": 5}])
def test_a_restore_begins_again_where_its_state_says_nothing(
    table: Table, tmp_path: Path, state: dict
):
    """The state is right as a file, but without its members."""
    kudulite.backup(table, tmp_path / "set")
    folder = tmp_path / ".restore-copy"
    folder.mkdir()
    (folder / "restore.json").write_bytes(encode_checked_json(state))
    restored = kudulite.restore(tmp_path / "set", tmp_path / "copy")
    assert restored.scan().count() == table.scan().count()
