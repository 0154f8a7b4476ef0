"""Environments: one of a process for each storage; object stores are imported only if used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kudulite.errors import NotSupportedError
from kudulite.storage.address import StorageAddress, parse_address
from kudulite.storage.object_storage import ObjectStorage
from kudulite.table import environment
from kudulite.table.environment import bucket_storage, default_environment, environment_at

OPTIONS = {"aws_region": "eu", "aws_access_key_id": "id", "aws_secret_access_key": "SECRET"}


def test_all_directories_have_one_environment():
    """However their addresses are written."""
    for given in ("/data", "file:///data"):
        assert environment_at(parse_address(given).storage) is default_environment()


def test_a_bucket_with_equal_options_has_one_environment():
    """So its tables share connections and caches; other options are another one's."""

    def found(given: str, **more: str) -> environment.Environment:
        return environment_at(parse_address(given, OPTIONS | more).storage)

    one = found("s3://b/x")
    assert isinstance(one.storage, ObjectStorage) and one.storage.address.bucket == "b"
    assert one.cache.storage is one.storage
    assert found("s3a://b/y/z") is one
    others = {id(found("s3://b/x", timeout="9s")), id(found("s3://c/x")), id(default_environment())}
    assert len(others | {id(one)}) == 4


def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch):
    """Where the library of object stores is missing."""
    monkeypatch.delitem(sys.modules, "kudulite.storage.object_storage", raising=False)
    monkeypatch.setitem(sys.modules, "obstore", None)
    address: StorageAddress = parse_address("s3://b/x").storage
    with pytest.raises(NotSupportedError, match=r"run: pip install 'kudulite\[object\]'"):
        bucket_storage(address)


def test_the_library_of_object_stores_is_imported_when_it_is_used():
    """Not by the package, by a table in a directory, or by an address."""
    script = """
import sys, tempfile, kudulite
with tempfile.TemporaryDirectory() as folder:
    client = kudulite.connect(f"file://{folder}/tables")
    client.create_table("t", {"id": [1]}, primary_key="id").insert([{"id": 1}])
    print([name for name in sys.modules if name.startswith("obstore")])
    kudulite.connect("s3://b/x", storage_options={"aws_region": "eu"})
    print("obstore" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\nTrue\n", "")
