"""Every command works on an object store, and says in a line what is wrong with one."""

from __future__ import annotations

import contextlib
import json
import sys
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from obstore.store import MemoryStore

import kudulite
from kudulite.storage import object_storage
from kudulite.storage.address import parse_address
from kudulite.storage.storage_options import S3
from kudulite.table.environment import environment_at
from kudulite.tools.cli import app, run
from tests.support.command_line import error, output, value
from tests.support.object_server import READER, ObjectServer
from tests.support.tables.kudu_export import export

ROWS = [{"k": key, "v": f"v{key}"} for key in range(4)]
SECRET = "SECRET-KEY-OF-A-TEST"


@pytest.fixture(params=["memory", pytest.param("server", marks=pytest.mark.full)])
def root(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a directory of tables, of a store in memory or of a server."""
    if request.param == "server":
        server: ObjectServer = request.getfixturevalue("object_server")
        for name, given in server.options.items():
            monkeypatch.setenv(name.upper().replace("ALLOW", "AWS_ALLOW"), given)
        return f"s3://{server.bucket}/{uuid.uuid4().hex}"
    stores: dict[str, MemoryStore] = {}

    def store(bucket: str, **_: object) -> MemoryStore:
        return stores.setdefault(bucket, MemoryStore())

    # A process keeps the store of an address, so each test has a bucket of its own.
    monkeypatch.setitem(object_storage._STORES, S3, store)
    return f"s3://b{uuid.uuid4().hex}/warehouse"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A file of rows."""
    path = tmp_path / "rows.json"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    return path


class Story:
    """Commands that are run one after the other, and their names."""

    def __init__(self, *options: str) -> None:
        self.options = options
        self.names: set[str] = set()

    def text(self, *arguments: object, status: int = 0) -> str:
        """The output of a command."""
        self.names.add(str(arguments[0]))
        return output(*arguments, *self.options, status=status)

    def value(self, *arguments: object) -> object:
        """The JSON output of a command, decoded."""
        return json.loads(self.text(*arguments, "--json"))

    def lines(self, *arguments: object) -> list[dict[str, object]]:
        """The rows that a command prints as JSON."""
        return [json.loads(line) for line in self.text(*arguments, "--json").splitlines()]


def test_every_command_works_on_a_store(root: str, rows: Path, tmp_path: Path):
    """A table's life, from its creation to its end; no command is left out."""
    run, table = Story(), f"{root}/t"
    run.text("create", table, "k:int64", "v:string", "--primary-key", "k", "--hash", "k:2")
    assert run.value("load", table, rows)["inserted"] == 4
    run.text("load", f"{root}/loaded", rows, "--primary-key", "k")
    assert [each["name"] for each in run.value("list", root)] == ["loaded", "t"]
    before = run.value("tag", table, "start")[0]["timestamp"]
    _look(run, table)
    _write(run, table, rows)
    assert [row["k"] for row in run.lines("changes", table, before)] == [0]
    assert len(run.lines("scan", table, "--at", before)) == 4
    _measure(run, table)
    _maintain(run, table)
    assert run.value("check", table)["problems"] == []
    run.text("untag", table, "start")
    assert run.value("tags", table) == []
    assert run.value("loadgen", f"{root}/generated", "--rows", 100)["row_count"] == 100
    run.text("doctor", root)
    _copy(run, root, tmp_path)
    _end(run, root)
    assert run.names == {each.name or each.callback.__name__ for each in app.registered_commands}


def _look(run: Story, table: str) -> None:
    assert run.value("describe", table)["path"] == table
    assert sum(each["rows"] for each in run.value("partitions", table)) == 4
    assert run.value("get", table, 3) == ROWS[3]
    assert run.value("locate", table, 3)
    assert sorted(row["k"] for row in run.lines("scan", table)) == [0, 1, 2, 3]
    query = "SELECT count(*) AS n, max(v) AS v FROM t WHERE k > 1"
    found = run.text("sql", table.rpartition("/")[0], query, "--format", "json")
    assert json.loads(found) == {"n": 2, "v": "v3"}
    assert json.loads(run.text("schema", table))["table_name"] == "t"
    assert run.value("tags", table)[0]["tag"] == "start"


def _write(run: Story, table: str, rows: Path) -> None:
    assert run.value("upsert", table, rows, "--unchanged", "skip")["unchanged"] == 4
    key = rows.with_name("key.json")
    key.write_text('{"k": 0}\n')
    assert run.value("delete", table, key)["deleted"] == 1
    assert len(run.lines("history", table, 0)) == 2
    operations = [each["operation"] for each in run.value("versions", table)]
    assert operations == ["delete", "tag", "insert", "create"]
    assert run.value("flush", table)["flushed_tablet_count"] == 2
    assert run.value("retention", table, "2d")["history_seconds"] == 2 * 86_400


def _measure(run: Story, table: str) -> None:
    assert "table_live_row_count" in run.text("metrics", table)
    run.text("watch", table, "--count", 1)
    assert run.value("perf", table)
    root = table.rpartition("/")[0]
    run.text("ui", root, "--host", "0.0.0.0", status=1)
    run.text("report", root, "--output", f"{root}/report.html")


def _maintain(run: Story, table: str) -> None:
    assert run.value("sizes", table)
    assert len(run.value("layout", table)) == 2
    run.text("alter", table, "--add-column", "w:double")
    run.text("compact", table)
    run.text("maintain", table, "--grace-seconds", 0)
    assert run.value("dump", table)["about"]["format_version"] == 8


def _copy(run: Story, root: str, folder: Path) -> None:
    run.text("copy", f"{root}/t", f"{root}/copy")
    run.text("copy", f"{root}/t", folder / "copy")
    assert run.value("copy", folder / "copy", f"{root}/copy", "--write", "upsert")["updated"] == 3
    run.text("backup", f"{root}/t", folder / "set")
    assert len(run.value("backups", folder / "set")) == 1
    run.text("restore", folder / "set", folder / "restored")
    exported = export(folder / "export", "kudu", [1, 2])
    (planned,) = run.value("import-kudu", exported, root, "--dry-run")
    assert planned["result"]["action"] == "would be made"


def _end(run: Story, root: str) -> None:
    run.text("rename", f"{root}/copy", "renamed")
    dropped = run.value("drop", f"{root}/renamed", "--yes", "--reserve", "1d")
    assert [each["id"] for each in run.value("list", root, "--soft-deleted")] == [dropped["id"]]
    assert run.value("recall", root, dropped["id"])["rows"] == 3
    for name in ("renamed", "loaded", "generated", "t"):
        run.text("drop", f"{root}/{name}", "--yes")
    assert run.value("list", root) == []


def test_a_file_is_dumped_by_the_name_in_its_table_and_by_its_own(root: str, rows: Path):
    """As an error, or the list of a bucket, has it; a record shows its rows."""
    output("load", f"{root}/t", rows, "--primary-key", "k")
    output("flush", f"{root}/t")
    address = parse_address(root)
    storage = environment_at(address.storage).storage
    place = storage.place_of(address.path / "t")
    paths = [file.path for file in storage.files_below(place) if file.path.name != "hint"]
    kinds = {path.name.split("-")[0] for path in paths if "-" in path.name}
    assert kinds == {"superblock", "base", "key", "bloom"}
    shown = {}
    for path in paths:
        shown[path.name] = value("dump", path)
        assert value("dump", f"{root}/t/{path.relative_to(place)}") == shown[path.name]
        checked = shown[path.name]["about"].get("checked", "as it was written")
        assert checked.startswith("as it was written"), path
    (base,) = (found for name, found in shown.items() if name.startswith("base-"))
    assert [(row["k"], row["v"]) for row in base["rows"]] == [(row["k"], row["v"]) for row in ROWS]
    (record,) = (found for found in shown.values() if found["about"].get("kind") == "record")
    assert record["about"]["row_count"] == 4
    assert [(row["op"], row["k"]) for row in record["rows"]] == [("INSERT", k) for k in range(4)]
    assert "not one of a table's files" in error("dump", place / "manifest" / "hint")
    assert "it does not exist" in error("dump", f"{root}/t/lock")
    for stranger in (root, f"{root}/u/manifest", str(address.storage.root)):
        assert "neither a kudulite table nor inside one" in error("dump", stranger)


def test_what_is_no_table_or_directory_of_a_store_is_said(root: str, rows: Path):
    """Nothing is made at an address with a typing error."""
    output("load", f"{root}/t", rows, "--primary-key", "k")
    bucket = str(parse_address(root).storage.root)
    for arguments in (["list", f"{root}/none"], ["recall", f"{root}/none", "id"]):
        said = "".join(output(*arguments, status=2).replace("│", "").split())
        assert f"{root}/noneisnotadirectoryoftables" in said
    assert f"{bucket} has no name of a table" in error(
        "create", bucket, "k:int64", "--primary-key", "k"
    )
    for command in ("describe", "check"):
        assert f"{bucket} is a bucket" in error(command, bucket)
    assert f"{bucket} is a bucket" in error("copy", f"{root}/t", bucket)
    assert "--hosts tests locks and caches" in error("doctor", root, "--hosts", 2)


def test_options_of_a_store_are_given_to_every_command(
    monkeypatch: pytest.MonkeyPatch, rows: Path, tmp_path: Path
):
    """To each address of a store in it, and to no directory."""
    stores: dict[str, MemoryStore] = {}
    seen: set[str] = set()

    def store(bucket: str, *, config: dict[str, str], **_: object) -> MemoryStore:
        seen.add(config.get("region", "none"))
        return stores.setdefault(bucket, MemoryStore())

    monkeypatch.setitem(object_storage._STORES, S3, store)
    root = f"s3://b{uuid.uuid4().hex}/warehouse"
    run = Story("--storage-option", "aws_region=mars-1", "--storage-option", "max_retries=2")
    run.text("create", f"{root}/t", "k:int64", "v:string", "--primary-key", "k")
    run.text("load", f"{root}/t", rows)
    run.text("load", f"{root}/u", rows, "--primary-key", "k")
    run.text("alter", f"{root}/t", "--comment", "x")
    run.text("retention", f"{root}/t", "2d")
    run.text("metrics", f"{root}/t", f"{root}/u")
    run.text("sizes", f"{root}/t")
    run.text("schema", f"{root}/t")
    run.text("dump", f"{root}/t")
    run.text("doctor", root)
    run.text("copy", f"{root}/t", tmp_path / "local" / "t")
    run.text("copy", tmp_path / "local" / "t", f"{root}/back")
    run.text("rename", f"{root}/back", "renamed")
    dropped = run.value("drop", f"{root}/renamed", "--yes", "--reserve", "1d")
    run.text("recall", root, dropped["id"])
    assert len(run.value("list", root)) == 3
    assert seen == {"mars-1"}


WRONG = {
    "no value": (["s3://b/w"], [SECRET], "--storage-option is KEY=VALUE"),
    "no name": (["s3://b/w"], [f"={SECRET}"], "--storage-option is KEY=VALUE"),
    "twice": (["s3://b/w"], [f"a={SECRET}", "a=2"], "--storage-option a is given twice"),
    "two names": (
        ["s3://b/w"],
        [f"aws_secret_access_key={SECRET}", f"secret_access_key={SECRET}"],
        "are the same one",
    ),
    "unknown": (["s3://b/w"], [f"colour={SECRET}"], "unknown storage option 'colour'; known: "),
    "of another store": (
        ["s3://b/w"],
        [f"azure_storage_account_key={SECRET}"],
        "'azure_storage_account_key' is one of Azure Blob Storage, and the address is of S3",
    ),
    "a directory": (["/tmp"], [f"aws_region={SECRET}"], "a directory has no options"),
    "no address": (["s3://"], [f"aws_region={SECRET}"], "an address of an object store"),
}


@pytest.mark.parametrize("name", WRONG)
def test_options_that_are_none_are_refused(name: str):
    """With what was expected, and without their values."""
    arguments, options, text = WRONG[name]
    given = [part for option in options for part in ("--storage-option", option)]
    found = error("list", *arguments, *given)
    assert text in found and SECRET not in found


def said(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """The one line that a failing command writes to standard error."""
    monkeypatch.setattr(sys, "argv", ["kudulite", *map(str, arguments)])
    with contextlib.suppress(SystemExit):
        assert run() == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1, captured
    assert captured.err.startswith("kudulite: ") and SECRET not in captured.err
    return captured.err


OF_TABLES = ("describe", "check", "flush", "dump", "partitions", "versions", "drop", "sizes")
NO_SERVER = {
    "refused": ("http://127.0.0.1:1", "nothing answers at this address"),
    "unknown": ("http://no-such-host.invalid", "the name of the host is not known"),
}


@pytest.mark.parametrize("name", NO_SERVER)
def test_a_server_that_is_not_there_is_a_line(
    name: str,
    rows: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """Of every kind of command, after as many tries as the options say."""
    endpoint, text = NO_SERVER[name]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    options = {"aws_endpoint_url": endpoint, "allow_http": "true", "max_retries": "1"}
    given = [part for option in options.items() for part in ("--storage-option", "=".join(option))]
    table = "s3://bucket/warehouse/t"
    commands = [[command, table] for command in OF_TABLES]
    commands += [["list", "s3://bucket/warehouse"], ["doctor", "s3://bucket/warehouse"]]
    commands += [["create", table, "k:int64", "--primary-key", "k"], ["load", table, rows]]
    commands += [["loadgen", table, "--rows", "1"], ["recall", "s3://bucket/warehouse", "id"]]
    for command in commands:
        assert text in said([*command, *given], monkeypatch, capsys), command


@pytest.mark.full
def test_a_bucket_or_a_key_that_is_wrong_is_a_line(
    object_server: ObjectServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """Of a real server."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, SECRET)
    options = ["--storage-option", f"aws_endpoint_url={object_server.endpoint}"]
    options += ["--storage-option", "allow_http=true"]
    unsigned = [*options, "--storage-option", "aws_skip_signature=true"]
    for command in (*OF_TABLES, "doctor"):
        found = said([command, "s3://no-bucket/w/t", *unsigned], monkeypatch, capsys)
        assert "there is no such bucket; check its name" in found, command
        found = said([command, f"s3://{object_server.bucket}/w/t", *options], monkeypatch, capsys)
        assert "403 Forbidden: InvalidAccessKeyId" in found, command


@pytest.mark.full
def test_a_reader_of_a_server_reads_and_is_told_that_it_may_not_write(
    object_server: ObjectServer, rows: Path, monkeypatch: pytest.MonkeyPatch
):
    """With keys that may read and list."""
    root = f"s3://{object_server.bucket}/{uuid.uuid4().hex}"
    table = kudulite.connect(root, storage_options=object_server.options).create_table(
        "t", pa.schema([("k", pa.int64())]), primary_key="k"
    )
    table.insert([{"k": 1}])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", READER[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", READER[1])
    monkeypatch.setenv("AWS_ENDPOINT_URL", object_server.endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    options = ["--storage-option", "aws_region=us-east-1"]
    assert value("list", root, *options)[0]["rows"] == 1
    found = value("doctor", root, *options, status=1)
    assert found["verdict"] == "NOT SAFE for tables: put"
    assert [each["is_ok"] for each in found["findings"][:3]] == [True, True, False]
    assert READER[1] not in json.dumps(found)
    key = rows.with_name("key.json")
    key.write_text('{"k": 2}\n')
    assert "403 Forbidden" in error("load", f"{root}/t", key, *options)
