"""Objects of a server, reached by an address and the options that a user types."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kudulite
from kudulite.errors import OptionError, StorageError
from kudulite.storage.address import parse_address
from kudulite.storage.object_storage import ObjectStorage, object_storage_of
from tests.support.object_server import ObjectServer

pytestmark = pytest.mark.full


def options_of(server: ObjectServer) -> dict[str, str]:
    """The options of a test in which requests are refused: they are tried again only once."""
    return server.options | {"max_retries": "1"}


def opened(server: ObjectServer, name: str, **more: str) -> tuple[ObjectStorage, Path]:
    """The storage of an address, and the path in it."""
    storage, path = parse_address(f"s3://{server.bucket}/{name}", options_of(server) | more)
    return object_storage_of(storage), path


NAMES = ["", "a b", "a%20b", "ü 日本", "a+b&c=d", "x~y", "#", "?", "'{}\"<>|^`*,;:@!$()", "é" * 60]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_taken_letter_by_letter(object_server: ObjectServer, name: str):
    """An object that was put is found by reading, by listing, and by its address."""
    storage, root = opened(object_server, name)
    path = root / "table ü" / "1.json"
    storage.make_root(root)
    assert storage.put_if_absent(path, b"x") and not storage.put_if_absent(path, b"y")
    assert (storage.read(path), storage.entries(path.parent)) == (b"x", [path])
    assert path in [found.path for found in storage.files_below(root)]
    assert storage.names_below(path.parent) == {path.parent: ["1.json"]}
    assert path.parent in storage.entries(root) and str(path).startswith(f"s3://tests/{name}")
    again = parse_address(path.parent, options_of(object_server))
    assert object_storage_of(again.storage).read(again.path / "1.json") == b"x"
    storage.delete_below(path.parent)
    assert storage.names_below(path.parent) == {}


def test_another_process_reads_by_the_pickle(object_server: ObjectServer):
    """It has the options that were given."""
    storage, root = opened(object_server, "pickled")
    storage.put(root / "a", b"content")
    program = (
        "import pickle, sys; storage, path = pickle.loads(sys.stdin.buffer.read());"
        " print(storage.read(path))"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps((storage, root / "a")),
        capture_output=True,
        env=environment,
        check=True,
    )
    assert done.stdout == b"b'content'\n"


def test_processes_keep_objects_in_a_folder(object_server: ObjectServer, tmp_path: Path):
    """A process uses the files that another one has left; without the folder it asks the store."""
    root, folder = f"s3://{object_server.bucket}/kept", tmp_path / "cache"
    options = options_of(object_server) | {"cache_dir": str(folder), "cache_bytes": "100000000"}
    rows = pa.table({"id": range(5_000), "n": [7] * 5_000})
    client = kudulite.connect(root, storage_options=options)
    client.create_table("t", rows.schema, primary_key="id").insert(rows)

    def read(process: str) -> int:
        """The sum of a column, with a storage of its own."""
        own = options | {"user_agent": process}
        table = kudulite.open_table(f"{root}/t", storage_options=own)
        return pc.sum(table.scan().to_arrow()["n"]).as_py() + table.get(1)["n"]

    assert read("first") == 35_007
    kept = [path for path in folder.iterdir() if not path.name.startswith(".")]
    assert kept
    for path in kept:
        os.utime(path, (1, 1))
    assert read("second") == 35_007
    assert any(path.stat().st_mtime > 1 for path in kept)
    for process, damage in (
        ("third", lambda old: old[:-1]),
        ("fourth", lambda old: b"x" * len(old)),
    ):
        for path in [path for path in folder.iterdir() if not path.name.startswith(".")]:
            path.write_bytes(damage(path.read_bytes()))
        assert read(process) == 35_007
    shutil.rmtree(folder)
    assert read("fifth") == 35_007
    with pytest.raises(OptionError, match="is a directory, which has no storage options"):
        kudulite.connect(tmp_path / "d", storage_options={"cache_dir": str(folder)})


def test_the_environment_completes_the_options(
    object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch
):
    """Also beside an option of the connection, which the library would prefer to all of them."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", object_server.endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "TRUE")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    for options in ({}, {"timeout": "7s"}):
        storage, root = parse_address("s3://tests/environment", options)
        object_storage_of(storage).put_hint(root / "a", b"x")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    given = {"aws_endpoint_url": object_server.endpoint}
    storage, root = parse_address("s3://tests/environment", given)
    assert object_storage_of(storage).read(root / "a") == b"x"


FAULTS = {
    "no such bucket": ("nowhere", {}, errno.ENXIO, "there is no such bucket"),
    "nothing listens": (
        "tests",
        {"aws_endpoint_url": "http://127.0.0.1:9"},
        errno.EIO,
        "nothing answers at this address",
    ),
    "no such host": (
        "tests",
        {"aws_endpoint_url": "http://no-such-host.invalid"},
        errno.EIO,
        "the name of the host is not known",
    ),
    "no TLS": ("tests", {"aws_endpoint_url": "https://"}, errno.EIO, "the server speaks no TLS"),
    "bucket in the host": (
        "tests",
        {"aws_virtual_hosted_style_request": "true"},
        errno.ENXIO,
        "there is no such bucket",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_with_a_server_is_said(object_server: ObjectServer, name: str):
    """By every verb that reads or lists; the answer about one object's head has no text."""
    bucket, wrong, number, text = FAULTS[name]
    if wrong.get("aws_endpoint_url") == "https://":
        wrong = {"aws_endpoint_url": object_server.endpoint.replace("http:", "https:")}
    options = options_of(object_server) | {"max_retries": "0"} | wrong
    address, root = parse_address(f"s3://{bucket}/x", options)
    storage = object_storage_of(address)
    # With its bucket in the host, a list is one of all buckets.
    calls = (storage.read, storage.is_folder, storage.entries)
    for call in calls[: 1 if name == "bucket in the host" else None]:
        with pytest.raises(StorageError, match=text) as found:
            call(root / "a")
        assert found.value.errno == number and str(root) in str(found.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.list_tables(),
        lambda client: client.table("t"),
        lambda client: client.create_table("t", {"id": [1]}, primary_key="id"),
    ],
)
def test_a_client_of_a_bucket_that_is_not_there_says_so(object_server: ObjectServer, call: Any):
    """It is neither an empty directory nor a missing table."""
    client = kudulite.connect("s3://nowhere/x", storage_options=options_of(object_server))
    with pytest.raises(StorageError, match="s3://nowhere.*(no such bucket|AccessDenied)"):
        call(client)
