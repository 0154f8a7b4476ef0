"""Options of object stores: the words by which a user gives an endpoint, a region and credentials.

    {"aws_region": "eu-west-1", "aws_endpoint_url": "http://localhost:9000", "allow_http": "true"}

The words are those of obstore, the library of the stores, and so those of Delta, Polars and Lance.
Each may be written in any case, with or without the prefix of its service. An option of the
connection (`allow_http`, `timeout`) is of any service. Values are text, as in the environment,
where the library finds the options and credentials that are not given. Our own are `cache_dir` and
`cache_bytes`, of any service: a folder of this machine in which whole objects are kept.

Four habits of the library are corrected. An option that is given precedes the environment, also
`aws_endpoint_url` before `AWS_ENDPOINT_URL_S3`. One of the connection leaves the others of the
environment as they are. Keys that are given are not used with the environment's token. An endpoint
without a scheme is an error, not a panic of the library.

**Invariants**: (1) no text that is made here has the value of an option that may be a secret; (2)
options that mean the same are equal, however they are spelled.

**Source**: obstore's S3Config, GCSConfig, AzureConfig, ClientConfig and RetryConfig. A test
compares the names with those of the installed version.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kudulite.errors import OptionError

_BOOLEANS = {
    "allow_http",
    "allow_invalid_certificates",
    "disable_bulk_delete",
    "disable_tagging",
    "http1_only",
    "http2_only",
    "imdsv1_fallback",
    "randomize_addresses",
    "s3_express",
    "skip_signature",
    "sse_bucket_key_enabled",
    "unsigned_payload",
    "use_azure_cli",
    "use_emulator",
    "use_fabric_endpoint",
    "virtual_hosted_style_request",
}
_DURATIONS = {
    "connect_timeout",
    "http2_keep_alive_interval",
    "http2_keep_alive_timeout",
    "init_backoff",
    "max_backoff",
    "pool_idle_timeout",
    "read_timeout",
    "retry_timeout",
    "timeout",
}
_NUMBERS = {"base", "cache_bytes", "max_retries", "pool_max_idle_per_host"}
_ENDPOINTS = {"endpoint", "endpoint_url_s3", "base_url"}

# Of any service.
_CLIENT = (
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "default_content_type",
    "http1_only",
    "http2_keep_alive_interval",
    "http2_keep_alive_timeout",
    "http2_keep_alive_while_idle",
    "http2_only",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "randomize_addresses",
    "read_timeout",
    "root_certificate",
    "timeout",
    "user_agent",
)
_RETRY = (
    "backoff_config.base",
    "backoff_config.init_backoff",
    "backoff_config.max_backoff",
    "max_retries",
    "retry_timeout",
)
_BACKOFF = "backoff_config."
_CACHE = ("cache_bytes", "cache_dir")
_CACHE_BYTES = 16 << 30


@dataclass(frozen=True, eq=False)
class Service:
    """A kind of object store: its name, and the names of its own options as they are shown."""

    title: str
    prefixes: tuple[str, ...]  # a longer one before those it begins with
    shown: tuple[str, ...]
    aliases: Mapping[str, str]  # other names to those of the library, without a prefix
    spelled: Mapping[str, str]  # names that the library has only with a prefix

    def name_of(self, given: str) -> str | None:
        """Return the library's name of an option, without a prefix; None if it has none."""
        word = given.strip().lower()
        prefix = next((each for each in self.prefixes if word.startswith(each)), "")
        word = word.removeprefix(prefix).removeprefix(_BACKOFF)
        word = self.aliases.get(word, word)
        return word if word in self._names else None

    @property
    def _names(self) -> set[str]:
        bare = {self._bare(name) for name in self.shown}
        return bare | {name.removeprefix(_BACKOFF) for name in (*_CLIENT, *_RETRY, *_CACHE)}

    def _bare(self, shown: str) -> str:
        prefix = next(each for each in self.prefixes if shown.startswith(each))
        bare = shown.removeprefix(prefix)
        return self.aliases.get(bare, bare)

    @property
    def known(self) -> list[str]:
        """All names as they are shown."""
        return sorted((*self.shown, *_CLIENT, *_RETRY, *_CACHE))


S3 = Service(
    "S3",
    ("aws_",),
    (
        "aws_access_key_id",
        "aws_checksum_algorithm",
        "aws_conditional_put",
        "aws_container_authorization_token_file",
        "aws_container_credentials_full_uri",
        "aws_container_credentials_relative_uri",
        "aws_copy_if_not_exists",
        "aws_default_region",
        "aws_disable_bulk_delete",
        "aws_disable_tagging",
        "aws_endpoint_url",
        "aws_endpoint_url_s3",
        "aws_endpoint_url_sts",
        "aws_imdsv1_fallback",
        "aws_metadata_endpoint",
        "aws_region",
        "aws_request_payer",
        "aws_role_arn",
        "aws_role_session_name",
        "aws_s3_express",
        "aws_secret_access_key",
        "aws_server_side_encryption",
        "aws_session_token",
        "aws_skip_signature",
        "aws_sse_bucket_key_enabled",
        "aws_sse_customer_key_base64",
        "aws_sse_kms_key_id",
        "aws_unsigned_payload",
        "aws_virtual_hosted_style_request",
        "aws_web_identity_token_file",
    ),
    {"endpoint_url": "endpoint", "sts_endpoint": "endpoint_url_sts", "session_token": "token"},
    {
        "endpoint_url_s3": "aws_endpoint_url_s3",
        "endpoint_url_sts": "aws_endpoint_url_sts",
    },
)
GOOGLE = Service(
    "Google Cloud Storage",
    ("google_",),
    (
        "google_application_credentials",
        "google_base_url",
        "google_bearer_token",
        "google_service_account",
        "google_service_account_key",
        "google_skip_signature",
    ),
    {"service_account_path": "service_account"},
    {},
)
AZURE = Service(
    "Azure Blob Storage",
    ("azure_storage_", "azure_"),
    (
        "azure_credential_type",
        "azure_disable_tagging",
        "azure_fabric_cluster_identifier",
        "azure_fabric_session_token",
        "azure_fabric_token_service_url",
        "azure_fabric_workload_host",
        "azure_federated_token_file",
        "azure_msi_endpoint",
        "azure_msi_resource_id",
        "azure_object_id",
        "azure_skip_signature",
        "azure_storage_account_key",
        "azure_storage_account_name",
        "azure_storage_authority_host",
        "azure_storage_client_id",
        "azure_storage_client_secret",
        "azure_storage_encryption_key",
        "azure_storage_endpoint",
        "azure_storage_sas_key",
        "azure_storage_tenant_id",
        "azure_storage_token",
        "azure_storage_use_emulator",
        "azure_use_azure_cli",
        "azure_use_fabric_endpoint",
    ),
    {
        "access_key": "account_key",
        "authority_id": "tenant_id",
        "identity_endpoint": "msi_endpoint",
        "master_key": "account_key",
        "sas_token": "sas_key",
    },
    {},
)
SERVICES = (S3, GOOGLE, AZURE)

# They belong together. The library adds the environment's token to keys that are given.
CREDENTIALS = ("access_key_id", "secret_access_key", "token")
_TOKENS = {"AWS_SESSION_TOKEN", "AWS_TOKEN"}
# Names of options whose values are secrets, or may contain one.
_SECRETS = {
    "account_key",
    "bearer_token",
    "client_secret",
    "encryption_key",
    "fabric_session_token",
    "proxy_url",
    "sas_key",
    "secret_access_key",
    "service_account_key",
    "sse_customer_key_base64",
    "token",
}
# Names of options whose values have several lines. Elsewhere one ends the library in a panic.
_LINES = {"proxy_ca_certificate", "root_certificate", "service_account_key"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NO_LOCKS = "leave it out: no lock and no rename is needed on an object store"
_EXPORT = "credentials of a profile are found in the environment: run"
# Words of s3fs, adlfs, gcsfs, Delta, Lance and DuckDB, and the way here.
_OTHER_WORDS = {
    "allow_unsafe_rename": _NO_LOCKS,
    "anon": "write 'aws_skip_signature', with 'true'",
    "aws_profile": f"{_EXPORT} aws configure export-credentials --profile NAME --format env",
    "aws_s3_allow_unsafe_rename": _NO_LOCKS,
    "aws_s3_locking_provider": _NO_LOCKS,
    "client_kwargs": "write its parts, as in 'aws_endpoint_url'",
    "client_max_retries": "write 'max_retries'",
    "client_retry_timeout": "write 'retry_timeout'",
    "connection_string": "write 'azure_storage_account_name' and 'azure_storage_account_key'",
    "delta_dynamo_table_name": _NO_LOCKS,
    "endpoint_override": "write 'aws_endpoint_url'",
    "key": "write 'aws_access_key_id'",
    "key_id": "write 'aws_access_key_id'",
    "profile": f"{_EXPORT} aws configure export-credentials --profile NAME --format env",
    "project": "leave it out: a bucket's name is enough",
    "request_timeout": "write 'timeout'",
    "secret": "write 'aws_secret_access_key'",
    "url_style": "write 'aws_virtual_hosted_style_request', with 'true' for vhost",
    "use_ssl": "write 'allow_http', with 'true' where there is no TLS",
}
_BUCKETS = {"bucket", "bucket_name", "container", "container_name"}
_TRUE, _FALSE = ("true", "1", "yes", "y", "on"), ("false", "0", "no", "n", "off")
_SECONDS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0, "m": 60.0}
_SECONDS |= {"min": 60.0, "minute": 60.0, "minutes": 60.0, "h": 3600.0, "hour": 3600.0}
_DURATION = re.compile(rf"(\d+)\s*({'|'.join(sorted(_SECONDS, reverse=True))})(?![a-z])")


@dataclass(frozen=True)
class StorageOptions:
    """Checked options of a service: (the library's name, text) of each, sorted by name."""

    service: Service | None = None
    items: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        """Return the names: a value may be a secret."""
        return f"<storage options: {', '.join(name for name, _ in self.items) or 'none'}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with all values: a process that is sent a table has to open it."""
        title = None if self.service is None else self.service.title
        return _unpickled, (title, self.items)

    @staticmethod
    def parse(service: Service, given: Mapping[str, str], address: str) -> StorageOptions:
        """Check what a user gave. Raises OptionError for a name, a type or a value."""
        if not isinstance(given, Mapping):
            raise OptionError(
                f"{address}: storage_options is a {type(given).__name__}, expected a dict of texts,"
                ' as in {"aws_region": "eu-west-1"}'
            )
        found: dict[str, str] = {}
        spelled: dict[str, str] = {}
        for word, value in given.items():
            name = service.name_of(word) if isinstance(word, str) else None
            if name is None:
                raise OptionError(f"{address}: {_unknown(service, word)}")
            if name in found:
                raise OptionError(
                    f"{address}: storage options {spelled[name]!r} and {word!r} are the same one;"
                    " give only one of them"
                )
            try:
                found[name], spelled[name] = _checked(name, value), word
            except OptionError as error:
                raise OptionError(f"{address}: storage option {word!r} {error}") from None
        if "cache_bytes" in found and "cache_dir" not in found:
            raise OptionError(
                f"{address}: storage option {spelled['cache_bytes']!r} is of a folder, which"
                " 'cache_dir' names: give it, too"
            )
        return StorageOptions(service, tuple(sorted(found.items())))

    @property
    def cache(self) -> tuple[Path, int] | None:
        """The folder in which objects are kept, and how many bytes of them; None without one."""
        given = dict(self.items)
        if "cache_dir" not in given:
            return None
        return Path(given["cache_dir"]), int(given.get("cache_bytes", _CACHE_BYTES))

    def arguments(self, address: str, environment: Mapping[str, str]) -> dict[str, Any]:
        """Return the arguments of the library's store. Raises OptionError for an endpoint."""
        assert self.service is not None
        given = dict(self.items)
        retry = {name.removeprefix(_BACKOFF): name for name in _RETRY}
        client = self._client_of(environment)
        client |= {name: value for name, value in given.items() if name in _CLIENT}
        others = {*_CLIENT, *retry, *_CACHE}
        own = {name: value for name, value in given.items() if name not in others}
        if "endpoint" in own and self.service is S3:
            own.setdefault("endpoint_url_s3", own["endpoint"])
        _check_environment(self.service, address, environment)
        self._check_endpoints(address, own, client.get("allow_http") == "true", environment)
        keys = self._keys_without_token(own, environment)
        own = {name: value for name, value in own.items() if name not in keys}
        config = {self.service.spelled.get(name, name): value for name, value in own.items()}
        return {
            "config": config,
            **({"client_options": client} if client else {}),
            **({"credential_provider": lambda: {**keys, "expires_at": None}} if keys else {}),
            **_retry_config({n: v for n, v in given.items() if n in retry}),
        }

    def _keys_without_token(
        self, own: Mapping[str, str], environment: Mapping[str, str]
    ) -> dict[str, str | None]:
        """Return the keys to which the library would add the environment's token."""
        keys = {name: own.get(name) for name in CREDENTIALS}
        has_pair = keys["access_key_id"] is not None and keys["secret_access_key"] is not None
        is_mixed = has_pair and keys["token"] is None and _TOKENS & environment.keys()
        return keys if self.service is S3 and is_mixed else {}

    def _client_of(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment's options of the connection."""
        assert self.service is not None
        prefix = self.service.prefixes[-1]
        names = {name: f"{prefix}{name}".upper() for name in _CLIENT}
        found = {name: environment[own] for name, own in names.items() if environment.get(own)}
        if "allow_http" in found:
            found["allow_http"] = _checked("allow_http", found["allow_http"])
        return found

    def _check_endpoints(
        self,
        address: str,
        own: Mapping[str, str],
        allows_http: bool,
        environment: Mapping[str, str],
    ) -> None:
        named = [(f"storage option {n!r}", v) for n, v in own.items() if n in _ENDPOINTS]
        if self.service is S3 and not named:
            for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
                if name in environment:
                    named.append((f"the environment's {name}", environment[name]))
        for name, value in named:
            if problem := _endpoint_problem(value):
                raise OptionError(f"{address}: {name} {problem}")
            if urlsplit(value).scheme == "http" and not allows_http:
                raise OptionError(
                    f"{address}: {name} is {value!r}, which sends all data without TLS; give an"
                    " https:// address, or add the storage option allow_http='true'"
                )

    def without_secrets(self, text: str) -> str:
        """Return a text of the library without the values of secret options."""
        for name, value in self.items:
            if name in _SECRETS:
                text = text.replace(value, "…")
        return text


def _unpickled(title: str | None, items: tuple[tuple[str, str], ...]) -> StorageOptions:
    return StorageOptions(next((each for each in SERVICES if each.title == title), None), items)


def is_storage_option(name: str) -> bool:
    """Whether a name is one of an option of some service."""
    return any(service.name_of(name) is not None for service in SERVICES)


def is_secret_storage_option(name: str) -> bool:
    """Whether the value of an option is a secret, or may contain one."""
    return any(service.name_of(name) in _SECRETS for service in SERVICES)


def _unknown(service: Service, word: object) -> str:
    """Return the text of an unknown option, with near names and all known ones."""
    if not isinstance(word, str):
        return f"a name in storage_options is {word!r}, expected a text"
    known = ", ".join(service.known)
    lowered = word.strip().lower()
    bare = lowered
    for other in SERVICES:
        for prefix in other.prefixes:
            bare = bare.removeprefix(prefix)
        if other is not service and lowered.startswith(other.prefixes):
            return (
                f"storage option {word!r} is one of {other.title}, and the address is of"
                f" {service.title}; known: {known}"
            )
    if bare in _BUCKETS:
        return f"storage option {word!r}: the address names the bucket; leave the option out"
    advice = _OTHER_WORDS.get(lowered, "")
    if not advice:
        words = {name.removeprefix(p): name for name in service.known for p in service.prefixes}
        words |= {service.name_of(name) or name: name for name in service.known}
        words |= {name: name for name in service.known}
        near = difflib.get_close_matches(lowered, words, n=2, cutoff=0.75)
        advice = " or ".join(f"{name!r}" for name in dict.fromkeys(words[each] for each in near))
        advice = f"did you mean {advice}?" if advice else ""
    return f"unknown storage option {word!r}; {advice}{'; ' if advice else ''}known: {known}"


def _checked(name: str, value: object) -> str:
    """Return the text of a value. Raises OptionError with the end of a sentence."""
    if not isinstance(value, str):
        advice = ""
        if isinstance(value, (bool, int, float)) and name not in _SECRETS:
            advice = f", as in {str(value).lower()!r}"
        elif value is None:
            advice = "; leave it out if there is none"
        raise OptionError(f"has a value of type {type(value).__name__}, expected text{advice}")
    text = value.strip()
    if not text:
        raise OptionError("is empty; leave it out if there is no value")
    if problem := _control_problem(name, text):
        raise OptionError(problem)
    lowered = text.lower()
    if name in _BOOLEANS:
        if lowered not in (*_TRUE, *_FALSE):
            raise OptionError(f"is {text!r}, expected 'true' or 'false'")
        return "true" if lowered in _TRUE else "false"
    if name in _DURATIONS:
        if _seconds(lowered) is None:
            raise OptionError(f"is {text!r}, expected a duration with its unit, as in '30s'")
        return lowered
    if name == "cache_dir":
        folder = os.path.expanduser(text)
        if not os.path.isabs(folder):
            raise OptionError(f"is {text!r}, expected an absolute path on this machine")
        return os.path.normpath(folder)
    if name in _NUMBERS and not text.isdigit():
        raise OptionError(f"is {text!r}, expected a whole number")
    if name == "conditional_put" and lowered != "etag":
        raise OptionError(
            f"is {text!r}; commits need conditional puts, which the default 'etag' is: leave it out"
        )
    return text


def _check_environment(service: Service, address: str, environment: Mapping[str, str]) -> None:
    """Raise OptionError for a value of the service that the library would take."""
    for word, value in environment.items():
        name = service.name_of(word) if word.lower().startswith(service.prefixes) else None
        if name is not None and (problem := _control_problem(name, value)):
            raise OptionError(f"{address}: the environment's {word} {problem}")


def _control_problem(name: str, text: str) -> str:
    """Return what is wrong with the characters of a value; empty if nothing is."""
    has_control = name not in _LINES and _CONTROL.search(text)
    return "has a line break or another control character; leave it out" if has_control else ""


def _seconds(text: str) -> float | None:
    """Return the seconds of a duration such as `1m 30s`; None for another text."""
    rest = _DURATION.sub("", text)
    parts = _DURATION.findall(text)
    if not parts or rest.strip():
        return None
    return sum(int(number) * _SECONDS[unit] for number, unit in parts)


def _retry_config(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the argument of the library for how often it tries again."""
    if not given:
        return {}

    def span(name: str) -> timedelta:
        return timedelta(seconds=_seconds(given[name]) or 0.0)

    retry: dict[str, Any] = {}
    if "max_retries" in given:
        retry["max_retries"] = int(given["max_retries"])
    if "retry_timeout" in given:
        retry["retry_timeout"] = span("retry_timeout")
    backoff: dict[str, Any] = {n: span(n) for n in ("init_backoff", "max_backoff") if n in given}
    if "base" in given:
        backoff["base"] = int(given["base"])
    return {"retry_config": retry | ({"backoff": backoff} if backoff else {})}


def _endpoint_problem(text: str) -> str:
    """Return what is wrong with the address of a server; empty if nothing is."""
    if not text.strip():
        return "is empty; leave it out for the service's own endpoint"
    try:
        parts = urlsplit(text)
    except ValueError:
        return "is no URL; give one as in 'https://host:9000'"
    if parts.username is not None or parts.password is not None:
        return "has a user or a password in it; give them as options of their own"
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
        return f"is {text!r}, expected a URL with its scheme, as in 'https://{_host(text)}'"
    if parts.query or parts.fragment:
        return "has a query in it; give its parts as options of their own"
    return ""


def _host(text: str) -> str:
    return re.sub(r"^[a-z]*:?//", "", text) or "host:9000"
