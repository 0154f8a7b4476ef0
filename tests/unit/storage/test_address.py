"""Addresses of users: directories, buckets, and texts that are neither."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from kudulite.errors import NotSupportedError, OptionError, UsageError
from kudulite.storage.address import (
    DIRECTORIES,
    merged_storage_options,
    parse_address,
    path_of,
)

AZURE_HOST = "dfs.core.windows.net"


def test_paths_of_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """`~` is the home directory, file: URLs are unquoted, and everything else is refused."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for given in (
        "~/a b",
        Path("~/a b"),
        "a b/",
        f"file://{tmp_path}/a%20b",
        f"FILE:{tmp_path}/a%20b",
        f"file://localhost{tmp_path}/a%20b",
    ):
        assert path_of(given) == tmp_path / "a b"
        assert parse_address(given) == (DIRECTORIES, tmp_path / "a b")
        assert type(path_of(given)) is type(tmp_path)
    for name in ("~", "a:b", "file:a", "C:\\a", "s3", "s3:"[:2]):
        assert path_of(f"./{name}") == tmp_path / name
    assert path_of("a:b") == tmp_path / "a:b"
    for wrong in ("hdfs:/wh", "~nobody-here/wh", "", None, 5, b"wh", "/a\udc80", "file://host/a"):
        with pytest.raises(UsageError):
            path_of(wrong)
    assert list(tmp_path.iterdir()) == []


BUCKETS = {
    "s3://bucket/prefix": ("s3://bucket", "s3://bucket/prefix"),
    "s3a://bucket/prefix/": ("s3://bucket", "s3://bucket/prefix"),
    "S3://bucket": ("s3://bucket", "s3://bucket"),
    "s3://bucket/": ("s3://bucket", "s3://bucket"),
    "s3://bucket//a//b": ("s3://bucket", "s3://bucket/a/b"),
    "s3:/bucket/a": ("s3://bucket", "s3://bucket/a"),  # as pathlib writes it
    "s3://bucket/a%20b ü+~#?&=*": ("s3://bucket", "s3://bucket/a%20b ü+~#?&=*"),
    "gs://my_bucket.eu/a": ("gs://my_bucket.eu", "gs://my_bucket.eu/a"),
    "gcs://bucket/a": ("gs://bucket", "gs://bucket/a"),
    "az://container/a": ("az://container", "az://container/a"),
    "abfs://container/a": ("az://container", "az://container/a"),
    f"abfs://c@acc.{AZURE_HOST}/a": (
        f"abfss://c@acc.{AZURE_HOST}",
        f"abfss://c@acc.{AZURE_HOST}/a",
    ),
}


@pytest.mark.parametrize("given", BUCKETS)
def test_an_address_of_a_bucket(given: str):
    """Its path has the address as its text, with the name as it was typed; it can be pickled."""
    storage, path = parse_address(given)
    assert (str(storage), str(path)) == BUCKETS[given]
    assert str(path / "t") == f"{path}/t"
    again = pickle.loads(pickle.dumps((storage, path)))
    assert again == (storage, path) and hash(again) == hash((storage, path))
    assert parse_address(path, {"timeout": "5s"}).path == path


def test_the_account_of_an_azure_address_is_an_option():
    """Given twice, it must be the same; the host of Fabric sets another option."""
    found = parse_address(f"abfss://c@acc.{AZURE_HOST}/a").storage
    assert (found.bucket, found.options.items) == ("c", (("account_name", "acc"),))
    same = {"AZURE_STORAGE_ACCOUNT_NAME": "acc"}
    assert parse_address(f"abfss://c@acc.{AZURE_HOST}/a", same).storage == found
    with pytest.raises(OptionError, match="account is 'other', and the address names 'acc'"):
        parse_address(f"abfss://c@acc.{AZURE_HOST}/a", {"account_name": "other"})
    fabric = parse_address("abfss://c@onelake.dfs.fabric.microsoft.com/a").storage.options.items
    assert fabric == (("account_name", "onelake"), ("use_fabric_endpoint", "true"))


REFUSED = {
    "s3:bucket/x": "no slashes after s3:; type s3://bucket/prefix, or './s3:bucket/x'",
    "s3://": "'' is no name of a bucket; type s3://bucket/prefix",
    "s3:///x": "has no bucket; type s3://bucket/prefix",
    "s3://-b/x": "'-b' is no name of a bucket",
    "s3://b c/x": "'b c' is no name of a bucket",
    "s3://b:9000/x": "a bucket has no port; .*aws_endpoint_url='https://host:port'",
    "s3://b/a/../x": "no part '.' or '..'",
    "s3://b/a\nb": "no backslash and no control character",
    "s3://b/a\\b": "no backslash and no control character",
    "s3://b/\udc80": "not UTF-8",
    "s3://b/x?region=eu": "an address has no query; give its parts as storage_options",
    "s3://id:SECRET@b/x": "s3://…@b: an address with credentials",
    "s3://id:SECRET@b@c/x": "s3://…@c: an address with credentials",
    "abfss://id:SECRET@b/x": "abfss://…@b: an address with credentials",
    "abfss://c@acc.example.org/x": "account.dfs.core.windows.net, found 'acc.example.org'",
    "abfss://c@/x": "the host is account.dfs.core.windows.net, found ''",
    "s3n://b/x": "no client for s3n:; type s3://bucket/prefix",
    "wasbs://c@acc/x": "no client for wasbs:; type abfss://container@account",
    "hdfs://host/x": "no client for hdfs:; give a path, file:///path, s3://bucket/prefix, gs:",
    "https://id:SECRET@h/x?sig=SECRET": "'https://…@h/x.…': kudulite has no client for https:",
    "minio://b/x": "type s3://bucket/prefix, and the server as storage option aws_endpoint_url",
}


@pytest.mark.parametrize("given", REFUSED)
def test_a_wrong_address_says_what_to_type(given: str):
    """And shows no credentials."""
    with pytest.raises(UsageError, match=REFUSED[given]) as found:
        parse_address(given)
    assert "SECRET" not in str(found.value)


@pytest.mark.parametrize("given", ["/data", "file:///data"])
def test_a_directory_has_no_storage_options(given: str):
    """They would have no effect."""
    assert parse_address(given, {}).storage == DIRECTORIES
    with pytest.raises(
        OptionError, match="directory, which has no storage options; leave out 'aws_r"
    ):
        parse_address(given, {"aws_region": "eu"})


def test_equal_storages_are_equal_however_they_are_spelled():
    """Their bucket and options count, and not the prefix; so they share connections and caches."""

    def storage(address: str, **options: str) -> Any:
        return parse_address(address, options).storage

    one = storage("s3://b/x", aws_region="eu", allow_http="True")
    assert one == storage("s3a://b/y", REGION="eu", AWS_ALLOW_HTTP="1")
    others = (
        storage("s3://b/x"),
        storage("s3://c/x", aws_region="eu", allow_http="true"),
        storage("s3://b/x", aws_region="us", allow_http="true"),
    )
    assert one not in others and len({one, *others, DIRECTORIES}) == 5


@pytest.mark.parametrize("given", ["s3://b/wh", Path("gs://b/wh"), "az://b"])
def test_a_call_that_needs_a_directory_says_so(given: str | Path):
    """With the address, and the calls that take it."""
    with pytest.raises(NotSupportedError, match="this call works with directories, and .*connect"):
        path_of(given)


def test_options_are_merged_by_what_they_mean():
    """The first layer precedes; of defaults, those of other services are left out."""

    def merged(address: str, *layers: dict[str, str]) -> dict[str, str]:
        return merged_storage_options(address, *layers)

    defaults = {"aws_region": "b", "timeout": "3s", "google_base_url": "x", "unknown": "y"}
    found = merged("s3://b", {"REGION": "a"}, defaults)
    assert found == {"REGION": "a", "timeout": "3s", "unknown": "y"}
    assert merged("/data", {"REGION": "a"}, defaults) == {"REGION": "a"}
    assert merged("gs://b", {}, defaults) == {"timeout": "3s", "google_base_url": "x"} | {
        "unknown": "y"
    }
    token = {"aws_access_key_id": "2", "aws_secret_access_key": "2", "session_token": "2"}
    pair = {"access_key_id": "1", "secret_access_key": "1"}
    assert merged("s3://b", pair, token, {"region": "c"}) == {**pair, "region": "c"}
    assert merged("s3://b", {}, token, pair) == token
