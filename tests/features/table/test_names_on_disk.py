"""Tampered ids and file names: nothing outside a table's folder is opened, moved or deleted.

Checksums are right throughout: whoever can write a file can write its checksum.
"""

import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kudulite
from kudulite.chain.manifest import Manifest
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import CorruptionError, UsageError
from kudulite.reads.tokens import RowSetToken
from kudulite.storage.checked_json import encode_checked_json
from kudulite.table.read_request import ReadRequest, RowPlan
from kudulite.table.table_store import TableStore
from kudulite.tablet.superblock import Superblock
from kudulite.tablet.tablet_scan import ChosenRows
from tests.support.tables.core_tables import altered, environment

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), ("v", pa.int64())])
ROWS = {"k": list(range(100)), "v": [1] * 100}
HOSTILE = [
    "../../b",
    "..",
    ".",
    "",
    ".x",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "a\0",
    "é",
    "x\n",
    "x" * 201,
]
NO_TEXT = [None, 5, True, ["a"], {"name": "a"}]
JsonPath = tuple[str | int, ...]


@pytest.fixture
def client(tmp_path: Path) -> Client:
    """A client of tables that are not checked when the test ends, because they are damaged."""
    return Client(tmp_path, environment())


def make_table(client: Client, name: str) -> Table:
    """A table of one tablet with one rowset."""
    table = client.create_table(name, SCHEMA, primary_key="k")
    table.upsert(pa.table(ROWS))
    return table


def files_of(table: Table) -> dict[Path, bytes]:
    """All files of a table."""
    return {path: path.read_bytes() for path in table.path.rglob("*") if path.is_file()}


def tamper(
    table: Table,
    change_superblock: Callable[[dict], None] = lambda body: None,
    change_entry: Callable[[dict], None] = lambda entry: None,
) -> Path:
    """Change the first tablet's superblock and manifest entry on disk; returns the manifest."""
    store = TableStore(table.path, environment())
    path = (
        store.folder / "manifest" / max(p.name for p in (store.folder / "manifest").glob("*.json"))
    )
    body = json.loads(path.read_bytes().partition(b"\n")[0])
    entry = body["tablets"][0]
    superblock = store.tablet_folder(entry["id"]) / entry["superblock"]["name"]
    value = json.loads(superblock.read_bytes())
    change_superblock(value)
    content = json.dumps(value).encode()
    superblock.write_bytes(content)
    entry["superblock"].update(length=len(content), crc32=zlib.crc32(content))
    change_entry(entry)
    path.write_bytes(encode_checked_json(body))
    return path


# -- what a tampered table may not do


def test_maintenance_deletes_nothing_of_another_table(client: Client):
    """A tablet id that leads to the folder of another table's tablet is refused."""
    table, other = make_table(client, "a"), make_table(client, "b")
    other.upsert(pa.table(ROWS))
    before = files_of(other)
    entry = table._store.newest().tablets[0]
    hostile_id = f"../../b/tablet/{other.tablet_ids[0]}"
    name = f"../../../a/tablet/{entry.id}/{entry.superblock.name}"

    def of_another_table(value: dict) -> None:
        value["id"] = hostile_id
        value["superblock"]["name"] = name

    manifest = tamper(
        table, lambda body: body.update(tablet_id=hostile_id, rowsets=[]), of_another_table
    )
    for path in sorted(manifest.parent.glob("*.json"))[:-1]:
        path.unlink()
    damaged = Table(TableStore(table.path, environment()))
    for use in (
        lambda: damaged.maintain(grace_seconds=0),
        damaged.check,
        lambda: damaged.upsert(pa.table(ROWS)),
        lambda: damaged.scan().count(),
    ):
        with pytest.raises(CorruptionError, match=f"{manifest}: .*tablet id '../../b/tablet/"):
            use()
    assert files_of(other) == before
    assert kudulite.open_table(other.path).check().is_good


@pytest.mark.parametrize("is_absolute", [True, False])
def test_a_scan_serves_no_bytes_of_another_table(client: Client, is_absolute: bool):
    """A file name that leads to another table's base data is refused, and named by the check."""
    table, other = make_table(client, "t"), make_table(client, "secret")
    base = next(other.path.rglob("base-*.parquet"))
    name = str(base) if is_absolute else f"../../../../../{base.relative_to(other.path.parent)}"
    ref = {"name": name, "length": base.stat().st_size, "crc32": zlib.crc32(base.read_bytes())}

    def with_foreign_base(body: dict) -> None:
        body["rowsets"][0]["base"][0]["file"] = ref

    tamper(table, with_foreign_base)
    damaged = kudulite.open_table(table.path)
    with pytest.raises(
        CorruptionError, match=r"superblock-.*\.json: not a superblock.*file name '"
    ):
        damaged.scan(limit=2).to_arrow()
    (problem,) = damaged.check().problems
    assert "file name" in problem and "superblock-" in problem


# -- every field


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """A table with every kind of file, and a range that was dropped with its rows."""
    client = Client(tmp_path_factory.mktemp("rich"), environment())
    bounds = {"columns": ["k"], "bounds": [[0, 1000], [1000, 2000]]}
    table = client.create_table("t", SCHEMA, primary_key="k", range_partitions=bounds)
    with client.new_session() as session:
        for operation in (
            table.new_insert({"k": 1, "v": 1}),
            table.new_insert({"k": 1500, "v": 1}),
            table.new_update({"k": 1, "v": 2}),
        ):
            session.apply(operation)
            session.flush()
    table.flush()
    table.apply([{"op": "D", "k": 2, "v": 5}], ordering_column="v")
    table.upsert(pa.table({"k": [1], "v": [9]}))
    altered(client, "t", lambda alterer: alterer.drop_range_partition({"k": 1000}, {"k": 2000}))
    return client.table("t")


def fields_with_text(value: Any, path: JsonPath = ()) -> Iterator[tuple[JsonPath, str]]:
    """Every string in a JSON value, with the way to it."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from fields_with_text(item, (*path, key))


def with_value(body: dict, path: JsonPath, value: Any) -> dict:
    """A copy of `body` with another value at the end of `path`."""
    copy = json.loads(json.dumps(body))
    target = copy
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    return copy


def path_components(table: Table, body: dict) -> dict[str, JsonPath]:
    """The fields of `body` that are names below the table's folder, by their keys."""
    names = {path.name for path in table.path.rglob("*")}
    return {
        ".".join(step for step in path if isinstance(step, str)): path
        for path, text in fields_with_text(body)
        if text in names
    }


def refuse_all(body: dict, path: JsonPath, field: str, decode: Callable[[dict], object]) -> None:
    """Every hostile value at `path` is a CorruptionError that says where and what."""
    for value in [*HOSTILE, *NO_TEXT]:
        with pytest.raises(CorruptionError) as caught:
            decode(with_value(body, path, value))
        message = str(caught.value)
        assert message.startswith("source.json: not a ")
        assert f"{field} " in message and "expected 1 to 200 ASCII letters" in message
        assert len(message) < 300


MANIFEST_FIELDS = {
    "tablets.id": "tablet id",
    "tablets.superblock.name": "file name",
    "dropped.tablets.id": "tablet id",
    "dropped.tablets.superblock.name": "file name",
}
SUPERBLOCK_FIELDS = {
    "tablet_id": "tablet id",
    "rowsets.id": "rowset id",
    "rowsets.base.file.name": "file name",
    "rowsets.key_index.name": "file name",
    "rowsets.bloom.name": "file name",
    "rowsets.redo.file.name": "file name",
    "rowsets.undo.file.name": "file name",
    "tombstones.file.name": "file name",
}


def test_every_name_in_a_manifest_is_checked(rich: Table):
    """The fields are those whose values are names of files or folders of the table."""
    body = json.loads(rich._store.newest().encode().partition(b"\n")[0])
    found = path_components(rich, body)
    assert found.keys() == MANIFEST_FIELDS.keys()
    for keys, path in found.items():
        refuse_all(
            body,
            path,
            MANIFEST_FIELDS[keys],
            lambda changed: Manifest.decode(encode_checked_json(changed), "source.json"),
        )


def test_every_name_in_a_superblock_is_checked(rich: Table):
    """Likewise."""
    store = rich._store
    bodies = [
        json.loads((store.tablet_folder(entry.id) / entry.superblock.name).read_bytes())
        for entry in store.newest().readable_tablets
    ]
    seen = set()
    for body in bodies:
        for keys, path in path_components(rich, body).items():
            seen.add(keys)
            refuse_all(
                body,
                path,
                SUPERBLOCK_FIELDS[keys],
                lambda changed: Superblock.decode(json.dumps(changed).encode(), "source.json"),
            )
    assert seen == SUPERBLOCK_FIELDS.keys()


def test_everything_that_is_written_is_read(rich: Table):
    """Manifests and superblocks of every version, with the names that the engine gives."""
    store = TableStore(rich.path, environment())
    for version in store.chain.numbers():
        manifest = store.chain.at(version)
        assert Manifest.decode(manifest.encode(), "x") == manifest
    for path in rich.path.glob("tablet/*/superblock-*.json"):
        superblock = Superblock.decode(path.read_bytes(), str(path))
        assert superblock.tablet_id == path.parent.name
    assert rich.check().is_good


@pytest.mark.parametrize("value", [*HOSTILE, *NO_TEXT])
@pytest.mark.parametrize("path", [("tablet", "id"), ("tablet", "superblock", "name")])
def test_a_token_that_travels_as_json_is_checked(rich: Table, path: JsonPath, value: Any):
    """Its reader does not trust its sender."""
    manifest = rich._store.newest()
    plan = RowPlan(str(rich.path), manifest.table_id, ReadRequest(("k",), at=0), ())
    token = RowSetToken(plan, 0, 0, manifest.tablets[0], ())
    body = token.to_json()
    assert RowSetToken.of_table(plan.folder, body) == token
    with pytest.raises(ValueError, match="expected 1 to 200 ASCII letters"):
        RowSetToken.of_table(plan.folder, with_value(body, path, value))


def test_a_token_of_another_rowset_is_refused(rich: Table):
    """Its version of the tablet does not have the rowset; row ids are in order."""
    manifest = rich._store.newest()
    request = ReadRequest(("k",), at=int(rich.current_timestamp()))
    plan = RowPlan(str(rich.path), manifest.table_id, request, ())
    known = rich._store.tablet(manifest.tablets[0]).superblock.rowsets[0].id
    for rows in (ChosenRows("x", False), ChosenRows(known, False, bytes(16))):
        token = RowSetToken(plan, 0, 0, manifest.tablets[0], (rows,))
        with pytest.raises(UsageError, match="token"):
            list(token.open())
