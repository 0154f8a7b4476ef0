"""Options of object stores in Spark: where they are taken from, and what Spark would show."""

from __future__ import annotations

import re

import pytest

import kudulite
from kudulite.errors import OptionError
from kudulite.storage.address import parse_address
from kudulite_spark.options import ReadOptions, WriteOptions, absolute_path, catalog_of
from kudulite_spark.storage_settings import (
    SECRET_PREFIX,
    front_settings,
    hadoop_options,
    session_options,
    storage_name,
    storage_options,
    with_hidden_key,
    without_keys,
)

S3A = "spark.hadoop.fs.s3a."
OWN = "spark.kudulite.storage."
# What Spark hides by default in settings.
REDACTED = re.compile("(?i)secret|password|token|access[.]?key")
SECRETS = (
    "aws_secret_access_key",
    "aws_session_token",
    "aws_sse_customer_key_base64",
    "azure_storage_account_key",
    "azure_storage_client_secret",
    "azure_storage_encryption_key",
    "azure_storage_sas_key",
    "google_bearer_token",
    "google_service_account_key",
    "proxy_url",
)


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_taken_only_under_a_name_that_spark_hides(name: str):
    """Under its own, or else with a prefix that the error names."""
    assert kudulite.is_secret_storage_option(name)
    hidden = SECRET_PREFIX + name
    assert REDACTED.search(hidden) and storage_name(hidden) == name
    if REDACTED.search(name):
        assert storage_name(name.upper()) == name
        return
    for refused in (lambda: storage_name(name), lambda: session_options({OWN + name: "VALUE"})):
        with pytest.raises(OptionError, match=f"write 'secret.{name}', whose value") as found:
            refused()
        assert "VALUE" not in str(found.value)


def test_names_of_settings():
    """Of the session; an unknown one is an error, others are not looked at."""
    settings = {f"{OWN}AWS_REGION": "a", f"{OWN}timeout": "3s", "spark.kudulite.front": "true"}
    assert session_options(settings) == {"aws_region": "a", "timeout": "3s"}
    with pytest.raises(OptionError, match="'spark.kudulite.storage.regoin' names no storage opt"):
        session_options({f"{OWN}regoin": "x"})


HADOOP = {
    "all": (
        {
            "endpoint": "https://host:9",
            "endpoint.region": "eu",
            "access.key": "id",
            "secret.key": "S",
            "session.token": "t",
            "path.style.access": "true",
            "connection.maximum": "9",
        },
        {
            "aws_endpoint_url": "https://host:9",
            "aws_region": "eu",
            "aws_access_key_id": "id",
            "aws_secret_access_key": "S",
            "aws_session_token": "t",
            "aws_virtual_hosted_style_request": "false",
        },
    ),
    "no scheme": ({"endpoint": "host:9"}, {"aws_endpoint_url": "https://host:9"}),
    "no TLS": (
        {"endpoint": "host:9", "connection.ssl.enabled": "false"},
        {"aws_endpoint_url": "http://host:9", "allow_http": "true"},
    ),
    "http": ({"endpoint": "http://h"}, {"aws_endpoint_url": "http://h", "allow_http": "true"}),
    "central": ({"endpoint": "s3.amazonaws.com", "endpoint.region": " "}, {}),
    "bucket in the host": (
        {"path.style.access": "false"},
        {"aws_virtual_hosted_style_request": "true"},
    ),
    "its own endpoint": (
        {"path.style.access": "false", "endpoint": "https://h"},
        {"aws_endpoint_url": "https://h"},
    ),
    "anonymous": (
        {"aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"},
        {"aws_skip_signature": "true"},
    ),
    "of a bucket": (
        {"bucket.b.endpoint.region": "own", "endpoint.region": "eu", "bucket.c.access.key": "id"},
        {"aws_region": "own"},
    ),
}


@pytest.mark.parametrize("name", HADOOP)
def test_settings_of_hadoop(name: str):
    """For addresses of S3 alone; the result are options that kudulite takes."""
    given, expected = HADOOP[name]
    settings = {S3A + key: value for key, value in given.items()}
    for path in ("s3a://b/t", "S3://B/t", "s3:/b"):
        assert hadoop_options(settings, path) == expected
    for path in ("gs://b/t", "/data/t", "file:///s3a/b"):
        assert hadoop_options(settings, path) == {}
    assert len(parse_address("s3a://b/t", expected).storage.options.items) == len(expected)


def test_options_precede_the_session_and_this_hadoop():
    """Whatever their spelling; keys and tokens are not mixed."""
    settings = {
        f"{OWN}aws_region": "session",
        f"{OWN}timeout": "3s",
        f"{OWN}azure_storage_account_name": "a",
        f"{S3A}endpoint": "http://hadoop",
        f"{S3A}endpoint.region": "hadoop",
        f"{S3A}session.token": "hadoop",
    }
    keys = {"AWS_ACCESS_KEY_ID": "id", "secret.aws_secret_access_key": "S"}
    assert storage_options("s3://b/t", {"REGION": "own", "path": "x", **keys}, settings) == {
        "region": "own",
        "aws_access_key_id": "id",
        "aws_secret_access_key": "S",
        "timeout": "3s",
        "aws_endpoint_url": "http://hadoop",
        "allow_http": "true",
    }
    own_server = storage_options("s3://b/t", {"endpoint_url": "https://own"}, settings)
    assert own_server["endpoint_url"] == "https://own" and "allow_http" not in own_server
    assert storage_options("az://c/t", {}, settings) == {
        "timeout": "3s",
        "azure_storage_account_name": "a",
    }
    assert storage_options("/data/t", {}, settings) == {}


def test_options_of_a_read_and_a_write():
    """Beside all others, in any case, with settings that the front handed on; none is shown."""
    options = {
        "path": "s3a://b/t",
        "AWS_Region": "eu",
        "secret.aws_secret_access_key": "VALUE",
        f"kudulitesetting.{OWN}timeout": "3s",
        f"kudulitesetting.{S3A}access.key": "id",
    }
    expected = {"aws_region": "eu", "aws_secret_access_key": "VALUE", "timeout": "3s"}
    for found in (
        ReadOptions.parse(options),
        WriteOptions.parse(options),
        WriteOptions.parse_stream(options),
    ):
        assert (found.path, found.storage_options) == ("s3a://b/t", expected)
        assert "VALUE" not in repr(found)
    assert ReadOptions.parse({"path": "/data"}).storage_options == {}
    assert front_settings(options) == {f"{OWN}timeout": "3s", f"{S3A}access.key": "id"}
    with pytest.raises(OptionError, match="unknown option 'aws_regoin'.* and the storage options"):
        ReadOptions.parse({"path": "s3://b/t", "aws_regoin": "eu"})


def test_a_client_takes_a_hidden_key_from_its_environment():
    """The id of a session's key is of no use without the secret, which Spark hides."""
    whole = {"aws_region": "eu", "AWS_ACCESS_KEY_ID": "id", "aws_secret_access_key": "VALUE"}
    hidden = {name: value for name, value in whole.items() if "secret" not in name}
    for options in (whole, {"aws_region": "eu"}):
        assert with_hidden_key("s3://b", options, {}) == options
        assert without_keys(options) == {"aws_region": "eu"}
    keys = {"AWS_ACCESS_KEY_ID": "other", "AWS_SECRET_ACCESS_KEY": "VALUE"}
    expected = {"aws_region": "eu", **{name.lower(): value for name, value in keys.items()}}
    assert with_hidden_key("s3://b", hidden, keys) == expected
    with pytest.raises(OptionError, match="s3://b: .* set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCES"):
        with_hidden_key("s3://b", hidden, {"AWS_SECRET_ACCESS_KEY": "VALUE"})


def test_addresses_are_absolute_paths():
    """Of object stores as they are, of directories without file:."""
    assert absolute_path("s3a://b/w/", "/base") == "s3a://b/w"
    assert absolute_path("file:///a%20b", "/base") == "/a b"
    assert absolute_path("w", "/base") == "/base/w"
    with pytest.raises(kudulite.errors.UsageError, match="is a bucket; a table needs a name in it"):
        catalog_of("s3://b")
