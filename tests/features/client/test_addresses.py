"""Addresses in place of paths: of a directory they work everywhere, of a bucket they are refused.

So are options of a storage that has none, and what is refused shows no secret.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kudulite
from kudulite import kudu
from kudulite.errors import OptionError, UsageError
from kudulite.reads import tokens
from kudulite.storage.address import parse_address
from kudulite.table.read_request import ReadRequest, RowPlan
from tests.support.command_line import error, output, value

SECRET = {"aws_access_key_id": "id", "aws_secret_access_key": "SECRET"}


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The address of a directory whose name has a space and a percent sign."""
    return f"{tmp_path.as_uri()}/a%20b%25c"


def test_a_directory_is_opened_by_its_url(tmp_path: Path, url: str):
    """And everything that is made of it is found again by path or pickle."""
    client = kudulite.connect(url)
    assert client.root == tmp_path / "a b%c"
    table = client.create_table("t", {"id": [1]}, primary_key="id")
    table.insert([{"id": 1}, {"id": 2}])
    assert kudulite.open_table(f"{url}/t", storage_options={}).path == table.path
    again = pickle.loads(pickle.dumps(table))
    assert (again.path, len(again)) == (table.path, 2)
    (token,) = table.scan_tokens()
    assert pa.Table.from_batches(tokens.ScanToken.from_bytes(token.to_bytes()).open()).num_rows == 2
    write = pickle.loads(pickle.dumps(table.new_bulk_write("upsert", columns=["id"])))
    write.commit([write.stage([pa.table({"id": [3]})])])
    assert kudu.connect(url).table("t").num_replicas == 1 and len(table) == 3
    table.copy_to(f"{url}/copy")
    backup = kudulite.backup(table, f"{url}/set")
    assert [made.id for made in kudulite.list_backups(f"{url}/set")] == [backup.id]
    table.scan().to_parquet(f"{url}/rows.parquet")
    assert client.list_tables() == ["copy", "t"] and (client.root / "rows.parquet").is_file()


def test_the_command_line_takes_urls(tmp_path: Path, url: str):
    """Of tables and of directories."""
    (tmp_path / "a b%c").mkdir()
    output("create", f"{url}/t", "id:int64", "--primary-key", "id")
    (tmp_path / "rows.csv").write_text("id\n1\n2\n")
    output("load", f"{url}/t", tmp_path / "rows.csv")
    assert [each["name"] for each in value("list", url)] == ["t"]
    assert value("describe", f"{url}/t")["name"] == "t"
    assert value("doctor", url)["is_safe"]
    manifest = next((tmp_path / "a b%c" / "t" / "manifest").glob("0*.json"))
    assert value("dump", manifest.as_uri())["about"]
    assert "is a table, not a directory of tables" in error("list", f"{url}/t")


REFUSED: dict[str, tuple[str, Any, type[UsageError], str]] = {
    "an option": ("s3://b/x", SECRET | {"regoin": "x"}, OptionError, "unknown .*'aws_region'"),
    "a value": (
        "s3://b/x",
        SECRET | {"region": 1},
        OptionError,
        "'region' has a value of type",
    ),
    "a path": ("/data/x", SECRET, OptionError, "which has no storage options; leave out 'aws_acc"),
    "a URL": ("hdfs://h/x", None, UsageError, "no client for hdfs:"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("call", [kudulite.connect, kudulite.open_table])
def test_what_is_refused_says_why_and_shows_no_secret(call: Any, name: str):
    """Before anything is made."""
    given, options, kind, text = REFUSED[name]
    with pytest.raises(kind, match=text) as found:
        call(given, storage_options=options)
    assert "SECRET" not in str(found.value) and not Path("/data/x").exists()


def test_a_plan_has_its_storage_and_shows_no_secret():
    """Tokens of it open the table with the options that were given, in any process."""
    address = parse_address("s3://b/x/t", SECRET)
    plan = RowPlan(str(address.path), "id", ReadRequest(), storage=address.storage)
    assert "SECRET" not in repr(plan) and "s3://b/x/t" in repr(plan)
    again = pickle.loads(pickle.dumps(plan))
    assert again == plan and again.storage.options.items == address.storage.options.items
