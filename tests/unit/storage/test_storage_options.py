"""Options of object stores: all names of the library, checked values, and no secret in any text."""

from __future__ import annotations

import ast
import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from kudulite.errors import OptionError
from kudulite.storage import storage_options
from kudulite.storage.storage_options import (
    AZURE,
    GOOGLE,
    S3,
    SERVICES,
    Service,
    StorageOptions,
    is_secret_storage_option,
    is_storage_option,
)

STORES: dict[Service, Any] = {S3: S3Store, GOOGLE: GCSStore, AZURE: AzureStore}
CONFIGS = {
    S3: ("_aws", "S3Config"),
    GOOGLE: ("_gcs", "GCSConfig"),
    AZURE: ("_azure", "AzureConfig"),
}
# Not for users: the address names the bucket, and headers are no text.
LEFT_OUT = {"bucket", "container_name", "default_headers", "backoff"}


def names_of_library(module: str, name: str) -> set[str]:
    """The keys of a typed dict, which the library has for type checkers only."""
    source = Path(obstore.__file__).parent / "_store" / f"{module}.pyi"
    found = next(
        node
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    return {
        node.target.id
        for node in found.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    } - LEFT_OUT


def own_names(service: Service) -> set[str]:
    """The library's names of the options that a service has alone."""
    return {service.spelled.get(n, n) for n in map(service.name_of, service.shown) if n}


def items(service: Service, **options: Any) -> dict[str, str]:
    """The checked options."""
    return dict(StorageOptions.parse(service, options, "x://b").items)


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.title)
def test_the_options_are_those_of_the_library(service: Service):
    """All that it has can be given, and nothing else."""
    own = {service.name_of(name) for name in service.shown}
    assert own == {service.name_of(name) for name in names_of_library(*CONFIGS[service])}
    connection = names_of_library("_client", "ClientConfig")
    retry = names_of_library("_retry", "RetryConfig") | names_of_library("_retry", "BackoffConfig")
    assert set(storage_options._CLIENT) == connection
    assert {name.rpartition(".")[2] for name in storage_options._RETRY} == retry


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.title)
def test_the_library_takes_every_name(service: Service):
    """Those that are shown, and those that they become."""
    for name in own_names(service) | set(service.shown):
        try:
            STORES[service]("b", config={name: "x"})
        except exceptions.UnknownConfigurationKeyError:
            pytest.fail(f"{name} is unknown")
        except exceptions.BaseError:
            pass  # of its value


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.title)
def test_names_may_be_written_in_any_case_and_without_prefix(service: Service):
    """And with the prefix also where the library has none."""
    for shown in service.known:
        name = service.name_of(shown)
        assert name is not None and is_storage_option(shown)
        assert service.name_of(shown.upper()) == service.name_of(name) == name
        for prefix in service.prefixes:
            assert service.name_of(f"{prefix}{name}") == name
        others = [each for each in SERVICES if each is not service]
        assert (
            "_" not in shown
            or not shown.startswith(service.prefixes)
            or not any(each.name_of(shown) for each in others)
        )
    assert service.name_of("path") is None and not is_storage_option("snapshotTimestamp")


def test_words_of_delta_polars_and_lance():
    """As their documents have them."""
    given = {
        "AWS_ACCESS_KEY_ID": "access_key_id",
        "AWS_SECRET_ACCESS_KEY": "secret_access_key",
        "AWS_SESSION_TOKEN": "token",
        "AWS_REGION": "region",
        "AWS_ENDPOINT_URL": "endpoint",
        "endpoint_url": "endpoint",
        "aws_endpoint": "endpoint",
        "aws_endpoint_url_s3": "endpoint_url_s3",
        "AWS_ALLOW_HTTP": "allow_http",
        "aws_virtual_hosted_style_request": "virtual_hosted_style_request",
        "skip_signature": "skip_signature",
        "max_retries": "max_retries",
        "backoff_config.init_backoff": "init_backoff",
        "connect_timeout": "connect_timeout",
    }
    assert {word: S3.name_of(word) for word in given} == given
    for word in (
        "account_key",
        "azure_storage_account_key",
        "access_key",
        "azure_storage_master_key",
    ):
        assert AZURE.name_of(word) == "account_key"
    assert AZURE.name_of("azure_storage_sas_token") == "sas_key"
    assert GOOGLE.name_of("google_service_account_path") == "service_account"


VALUES = {
    ("allow_http", "TRUE"): "true",
    ("skip_signature", "0"): "false",
    ("timeout", "1m 30s"): "1m 30s",
    ("connect_timeout", "250ms"): "250ms",
    ("aws_region", " eu-west-1 "): "eu-west-1",
    ("aws_conditional_put", "etag"): "etag",
    ("max_retries", "0"): "0",
}


@pytest.mark.parametrize(("name", "given"), VALUES)
def test_values(name: str, given: str):
    """Equal ones are made equal."""
    assert list(items(S3, **{name: given}).values()) == [VALUES[name, given]]


WRONG: dict[str, tuple[Any, str]] = {
    "true": (
        {"allow_http": True},
        "'allow_http' has a value of type bool, expected text, as in 'true'",
    ),
    "a number": ({"max_retries": 3}, "of type int, expected text, as in '3'"),
    "a secret number": ({"aws_secret_access_key": 5}, "of type int, expected text$"),
    "none": ({"AWS_SESSION_TOKEN": None}, "NoneType, expected text; leave it out if there is none"),
    "empty": ({"AWS_SESSION_TOKEN": " "}, "'AWS_SESSION_TOKEN' is empty; leave it out"),
    "no boolean": ({"allow_http": "maybe"}, "is 'maybe', expected 'true' or 'false'"),
    "no unit": ({"timeout": "30"}, "is '30', expected a duration with its unit, as in '30s'"),
    "no duration": ({"timeout": "soon"}, "is 'soon', expected a duration"),
    "no whole number": ({"max_retries": "-1"}, "is '-1', expected a whole number"),
    "a lock": ({"conditional_put": "dynamo:t"}, "need conditional puts.*leave it out"),
    "twice": ({"aws_region": "a", "REGION": "a"}, "'aws_region' and 'REGION' are the same one"),
    "near": ({"aws_regoin": "a"}, "unknown storage option 'aws_regoin'; did you mean 'aws_region'"),
    "near, without prefix": ({"endpont": "a"}, "did you mean 'aws_endpoint_url'"),
    "nothing near": (
        {"zzz": "a"},
        "unknown storage option 'zzz'; known: allow_http, .*aws_region, ",
    ),
    "another's": (
        {"google_base_url": "a"},
        "one of Google Cloud Storage, and the address is of S3",
    ),
    "a bucket": ({"aws_bucket": "a"}, "the address names the bucket; leave the option out"),
    "of s3fs": ({"secret": "SECRET"}, "'secret'; write 'aws_secret_access_key'; known"),
    "a profile": ({"AWS_PROFILE": "SECRET"}, "aws configure export-credentials --profile NAME"),
    "of Delta": ({"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}, "leave it out: no lock and no rename"),
    "no text as a name": ({5: "a"}, "a name in storage_options is 5, expected a text"),
    "a cache nowhere": ({"cache_dir": "cache"}, "is 'cache', expected an absolute path on this"),
    "no cache": ({"cache_bytes": "5"}, "'cache_bytes' is of a folder, which 'cache_dir' names"),
    "a cache without a size": (
        {"cache_dir": "/c", "cache_bytes": "many"},
        "is 'many', expected a whole number",
    ),
    "no dict": ([("aws_region", "a")], "storage_options is a list, expected a dict of texts"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name: str):
    """With the address, the option, and what to write."""
    given, text = WRONG[name]
    with pytest.raises(OptionError, match=text) as found:
        StorageOptions.parse(S3, given, "s3://b")
    assert str(found.value).startswith("s3://b: ") and "SECRET" not in str(found.value)


def test_no_text_shows_a_value():
    """A repr has the names; a text of the library loses the secrets that it has."""
    given = {
        "aws_secret_access_key": "SECRET",
        "aws_region": "eu",
        "proxy_url": "http://u:SECRET@h",
    }
    options = StorageOptions.parse(S3, given, "s3://b")
    assert repr(options) == "<storage options: proxy_url, region, secret_access_key>"
    assert options.without_secrets("key SECRET via http://u:SECRET@h") == "key … via …"
    assert pickle.loads(pickle.dumps(options)) == options
    assert is_secret_storage_option("AZURE_STORAGE_ACCOUNT_KEY") and not is_secret_storage_option(
        "aws_region"
    )


def test_a_cache_is_of_any_service_and_no_option_of_the_library():
    """It has a size if none is given."""
    for service in SERVICES:
        given = {"CACHE_DIR": "/a/../c", "cache_bytes": "7000000"}
        options = StorageOptions.parse(service, given, "x://b")
        assert options.cache == (Path("/c"), 7_000_000)
        assert options.arguments("x://b", {}) == {"config": {}}
    home = StorageOptions.parse(S3, {"cache_dir": "~/c"}, "s3://b").cache
    assert home is not None and home[0] == Path.home() / "c" and home[1] >= 1 << 30
    assert StorageOptions.parse(S3, {}, "s3://b").cache is None


def arguments(environment: dict[str, str], **options: str) -> dict[str, Any]:
    """The arguments of the library's store of S3."""
    return StorageOptions.parse(S3, options, "s3://b").arguments("s3://b", environment)


def test_each_option_is_in_the_argument_that_has_it():
    """The store's, the connection's, and how often to try again."""
    found = arguments(
        {},
        aws_region="eu",
        timeout="3s",
        max_retries="2",
        retry_timeout="1m",
        **{"backoff_config.init_backoff": "250ms", "backoff_config.base": "3"},
    )
    assert found == {
        "config": {"region": "eu"},
        "client_options": {"timeout": "3s"},
        "retry_config": {
            "max_retries": 2,
            "retry_timeout": timedelta(minutes=1),
            "backoff": {"init_backoff": timedelta(seconds=0.25), "base": 3},
        },
    }
    assert isinstance(S3Store("b", **found), S3Store)


def test_an_option_goes_before_the_environment():
    """The library prefers AWS_ENDPOINT_URL_S3, and forgets AWS_ALLOW_HTTP beside a time-out."""
    found = arguments({"AWS_ALLOW_HTTP": "True"}, aws_endpoint="http://h:9", timeout="3s")
    assert found == {
        "config": {"endpoint": "http://h:9", "aws_endpoint_url_s3": "http://h:9"},
        "client_options": {"allow_http": "true", "timeout": "3s"},
    }
    with pytest.raises(OptionError, match="without TLS"):
        arguments({"AWS_ALLOW_HTTP": "true"}, aws_endpoint="http://h:9", allow_http="false")


ENDPOINTS = {
    "localhost:9000": "is 'localhost:9000', expected a URL with .* as in 'https://localhost:9000'",
    "host": "as in 'https://host'",
    "ftp://host": "as in 'https://host'",
    "https://": "expected a URL with its scheme",
    "https://[": "is no URL",
    "https://id:SECRET@host": "has a user or a password in it",
    "https://host/?key=SECRET": "has a query in it",
    "http://host": "sends all data without TLS; .*add the storage option allow_http='true'",
}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_an_endpoint_is_a_url(endpoint: str):
    """The library would end by a panic, or say `builder error`."""
    text = f"s3://b: storage option 'endpoint'.*{ENDPOINTS[endpoint]}"
    with pytest.raises(OptionError, match=text):
        arguments({}, aws_endpoint_url=endpoint)
    with pytest.raises(OptionError, match="s3://b: the environment's AWS_ENDPOINT_URL ") as found:
        arguments({"AWS_ENDPOINT_URL": endpoint})
    assert "SECRET" not in str(found.value)
    assert arguments({"AWS_ENDPOINT_URL": endpoint}, endpoint="https://h")["config"]["endpoint"]


@pytest.mark.parametrize("value", ["QUIET\n", "QUI\r\nET", "QUI\x7fET"])
def test_a_value_with_a_line_break_is_refused(value: str):
    """Copied with it, as from a file; in a header it would end the library by a panic."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION"):
        with pytest.raises(OptionError, match=f"environment's {name} has a line break") as found:
            arguments({name: value})
        assert "QUI" not in str(found.value)
    assert arguments({"AWS_OTHER": value, "REGION": value})["config"] == {}
    with pytest.raises(OptionError, match="'aws_region' has a line break") as given:
        arguments({}, aws_region=f"a{value}b")
    assert "QUI" not in str(given.value)
    assert arguments({}, aws_region="eu\n")["config"] == {"region": "eu"}
    key = '{"type":\n "x"}'
    assert StorageOptions.parse(GOOGLE, {"google_service_account_key": key}, "gs://b")


def test_keys_are_not_used_with_the_token_of_the_environment():
    """The library would send both, and the store refuse them."""
    pair = {"aws_access_key_id": "id", "aws_secret_access_key": "SECRET"}
    environment = {"AWS_SESSION_TOKEN": "other"}
    found = arguments(environment, **pair)
    assert found["config"] == {}
    assert found["credential_provider"]() == {
        "access_key_id": "id",
        "secret_access_key": "SECRET",
        "token": None,
        "expires_at": None,
    }
    assert isinstance(S3Store("b", **found), S3Store)
    for given, around in (({**pair, "token": "own"}, environment), (pair, {}), ({}, environment)):
        assert "credential_provider" not in arguments(around, **given)
