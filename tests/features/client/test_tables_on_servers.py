"""Tables on a server that speaks S3: the calls of a directory, with only the address changed."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kudulite
from tests.support.command_line import output, value
from tests.support.object_server import ObjectServer
from tests.support.tables.core_tables import stored

pytestmark = pytest.mark.full

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
WRITERS, COMMITS = 6, 12
BACKUPS = 4
BACKUP = """
import json, sys, kudulite
address, target, options, full = json.loads(sys.argv[1])
table = kudulite.open_table(address, storage_options=options)
try:
    print(kudulite.backup(table, target, full=full, storage_options=options).id)
except kudulite.errors.ConflictError as error:
    print(type(error).__name__, error)
"""
# Each process inserts keys of its own and one that all of them want.
WRITER = """
import json, sys, kudulite
address, options, number, commits = json.loads(sys.argv[1])
table = kudulite.connect(address, storage_options=options).table("crowd")
won = 0
for turn in range(commits):
    key = 1000 * turn
    table.insert([{"k": key + 1 + number, "v": number}])
    won += table.insert_ignore([{"k": key, "v": number}]).inserted
print(won)
"""


def rows(*keys: int, v: int = 0) -> pa.Table:
    """Rows of these keys."""
    return pa.table({"k": keys, "v": [v] * len(keys)}, schema=SCHEMA)


@pytest.fixture
def options(object_server: ObjectServer) -> dict[str, str]:
    """The options that reach the server, as users type them."""
    return object_server.options


@pytest.fixture
def client(
    object_server: ObjectServer, options: dict[str, str], request: pytest.FixtureRequest
) -> kudulite.Client:
    """A directory of tables of this test."""
    address = f"{object_server.address}/{request.node.name}"
    return kudulite.connect(address, storage_options=options)


def new_table(client: kudulite.Client, name: str = "t") -> kudulite.Table:
    """An empty table of three tablets."""
    return client.create_table(name, SCHEMA, primary_key=["k"], hash_partitions=[(["k"], 3)])


def test_random_writes_equal_a_dictionary(client: kudulite.Client, options: dict[str, str]):
    """Read by the writer and by one that opens the table anew, now and at each moment before."""
    chance, table, model = random.Random(3), new_table(client), dict[int, int]()
    moments = []
    for turn in range(30):
        keys = chance.sample(range(200), chance.choice((1, 20, 80)))
        if chance.random() < 0.3:
            table.delete_ignore(pa.table({"k": keys}))
            for key in keys:
                model.pop(key, None)
        else:
            table.upsert(rows(*keys, v=turn))
            model.update(dict.fromkeys(keys, turn))
        moments.append((table.current_timestamp(), sorted(model.items())))
        if turn % 7 == 6:
            chance.choice((table.flush, table.compact, table.maintain))()
    other = kudulite.open_table(f"{client.root}/t", storage_options=options)
    assert stored(table) == stored(other) == sorted(model.items())
    for moment, expected in moments:
        assert stored(other, moment) == expected
    assert table.get({"k": 500}) is None and len(other) == len(model)
    assert table.check().problems == ()


def test_what_others_open_is_the_same_table(client: kudulite.Client, tmp_path: Path):
    """Tokens, writes and clients that are pickled; exports and backups go to directories."""
    table = new_table(client)
    table.upsert(rows(*range(1000)))
    tokens = pickle.loads(pickle.dumps(table.scan_tokens()))
    assert sum(batch.num_rows for token in tokens for batch in token.open()) == 1000
    write = pickle.loads(pickle.dumps(table.new_bulk_write("upsert")))
    task = write.stage(rows(*range(1000, 3000)).to_batches())
    assert write.commit([task]).inserted == 2000
    assert len(table) == 3000
    assert table.scan(where="k < 10").to_parquet(tmp_path / "x.parquet") == 10
    assert pq.read_metadata(tmp_path / "x.parquet").num_rows == 10
    kudulite.backup(table, tmp_path / "set")
    restored = kudulite.restore(tmp_path / "set", tmp_path / "tables" / "t")
    assert len(restored) == 3000


@pytest.mark.parametrize("is_full", [None, True])
def test_processes_that_back_up_at_once_make_whole_backups(
    client: kudulite.Client, options: dict[str, str], is_full: bool | None
):
    """Each ends with a backup or with the error that says who was first; all restore."""
    table = new_table(client)
    table.upsert(rows(*range(1000)))
    target, place = f"{client.root}/backups/t", f"{client.root}/again"
    kudulite.backup(table, target, storage_options=options)
    for turn in range(3):
        table.upsert(rows(*range(turn, 1000, 7), v=turn))
        work = [
            json.dumps([f"{client.root}/t", target, options, is_full if number % 2 else None])
            for number in range(BACKUPS)
        ]
        started = [
            subprocess.Popen(
                [sys.executable, "-c", BACKUP, each], stdout=subprocess.PIPE, text=True
            )
            for each in work
        ]
        ended = [process.communicate(timeout=300)[0].strip() for process in started]
        listed = {made.id for made in kudulite.list_backups(target, storage_options=options)}
        made = {each for each in ended if not each.startswith("ConflictError")}
        assert made and made <= listed, (ended, listed)
        assert kudulite.verify_backups(target, storage_options=options) == {}
        restored = kudulite.restore(
            target,
            place,
            at=max(made),
            overwrite=True,
            storage_options=options,
            table_storage_options=options,
        )
        assert stored(restored) == stored(table)


def test_copies_go_both_ways_with_their_past(
    client: kudulite.Client, options: dict[str, str], tmp_path: Path
):
    """From a directory to the server and back."""
    local = new_table(kudulite.connect(tmp_path))
    local.upsert(rows(1, 2, 3))
    moment = local.current_timestamp()
    local.delete(pa.table({"k": [1]}))
    local.copy_to(f"{client.root}/copy", storage_options=options)
    copy = client.table("copy")
    assert stored(copy) == [(2, 0), (3, 0)] and len(stored(copy, moment)) == 3
    copy.upsert(rows(4))
    copy.copy_to(tmp_path / "back")
    back = kudulite.open_table(tmp_path / "back")
    assert stored(back) == [(2, 0), (3, 0), (4, 0)] and len(stored(back, moment)) == 3
    assert back.check().problems == () and copy.check().problems == ()
    with pytest.raises(kudulite.errors.TableExistsError):
        local.copy_to(f"{client.root}/copy", storage_options=options)


def test_names_change_in_one_step(client: kudulite.Client):
    """Renamed, deleted, recalled, replaced."""
    table = new_table(client)
    table.upsert(rows(1))
    client.rename_table("t", "u")
    assert client.list_tables() == ["u"] and not client.table_exists("t")
    deleted = client.soft_delete_table("u", 1000)
    assert client.list_tables() == []
    assert len(client.recall_table(deleted.id)) == 1
    staged = new_table(client.new_staging(), "u")
    staged.upsert(rows(1, 2))
    assert len(client.publish_table(staged, overwrite=True)) == 2
    client.delete_table("u")
    assert client.list_tables() == []
    with pytest.raises(kudulite.errors.TableNotFoundError):
        table.upsert(rows(3))


def test_the_command_line_takes_addresses(
    client: kudulite.Client,
    options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
):
    """With the options of the environment."""
    new_table(client).upsert(rows(1, 2, 3))
    service = "AZURE" if str(client.root).startswith("az:") else "AWS"
    for name, given in options.items():
        monkeypatch.setenv(name.upper().replace("ALLOW", f"{service}_ALLOW"), given)
    assert [each["name"] for each in value("list", str(client.root))] == ["t"]
    assert value("describe", f"{client.root}/t")["name"] == "t"
    assert value("check", f"{client.root}/t")["row_count"] == 3
    output("copy", f"{client.root}/t", tmp_path / "copy")
    assert len(kudulite.open_table(tmp_path / "copy")) == 3


def test_processes_that_write_at_once_lose_nothing(
    client: kudulite.Client, options: dict[str, str]
):
    """Each key that all of them want is inserted by one."""
    table = new_table(client, "crowd")
    work = [json.dumps([str(client.root), options, number, COMMITS]) for number in range(WRITERS)]
    started = [
        subprocess.Popen([sys.executable, "-c", WRITER, each], stdout=subprocess.PIPE, text=True)
        for each in work
    ]
    won = [int(process.communicate(timeout=300)[0]) for process in started]
    assert sum(won) == COMMITS
    found = dict(stored(table))
    assert len(found) == COMMITS * (WRITERS + 1)
    for number in range(WRITERS):
        assert all(found[1000 * turn + 1 + number] == number for turn in range(COMMITS))
    assert table.check().problems == ()
