"""Addresses: where tables are, as a user types it.

    /data/warehouse, ~/warehouse, file:///data/a%20b         a directory of this machine
    s3://bucket/prefix, s3a://bucket/prefix                  S3, and what speaks it
    gs://bucket/prefix                                       Google Cloud Storage
    az://container/prefix                                    Azure; the account is an option
    abfss://container@account.dfs.core.windows.net/prefix    Azure, with the account

An address has two parts: the storage (all directories of the machine, or a bucket with the options
that reach it) and a path in it. The text of the path is the address. Equal storages have one object
in a process, with its connections and caches; see `environment_at` in table/environment.py.

The part after the bucket is the name of an object, letter by letter, as the command line of AWS,
Spark and Polars take it: `%20` is three characters. In a file: URL it is a space.

**Invariants**: (1) an error shows nothing of an address that may be a secret: a user, a password, a
query; (2) a StorageAddress shows no option but its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike, fspath
from os.path import abspath, expanduser
from pathlib import Path
from typing import NamedTuple, cast
from urllib.parse import unquote, urlparse

from kudulite.errors import NotSupportedError, OptionError, UsageError
from kudulite.storage.object_path import ObjectPath
from kudulite.storage.storage_options import (
    AZURE,
    CREDENTIALS,
    GOOGLE,
    S3,
    Service,
    StorageOptions,
    is_storage_option,
)

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/*)")
_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]*")
# The scheme of each service's addresses, by those that are accepted.
_SERVICES: dict[str, tuple[Service, str]] = {
    "s3": (S3, "s3"),
    "s3a": (S3, "s3"),
    "gs": (GOOGLE, "gs"),
    "gcs": (GOOGLE, "gs"),
    "az": (AZURE, "az"),
    "azure": (AZURE, "az"),
    "abfs": (AZURE, "abfss"),
    "abfss": (AZURE, "abfss"),
}
_FORMS = {
    S3: "s3://bucket/prefix",
    GOOGLE: "gs://bucket/prefix",
    AZURE: "az://container/prefix or abfss://container@account.dfs.core.windows.net/prefix",
}
_KNOWN = "a path, file:///path, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
# Other schemes, and what to type.
_ADVICE = {
    "adl": "type abfss://container@account.dfs.core.windows.net/prefix",
    "http": "type s3://bucket/prefix, and the server as storage option aws_endpoint_url",
    "https": "type s3://bucket/prefix, gs://bucket/prefix or az://container/prefix, and a server"
    " of your own as storage option aws_endpoint_url",
    "minio": "type s3://bucket/prefix, and the server as storage option aws_endpoint_url",
    "r2": "type s3://bucket/prefix, and the server as storage option aws_endpoint_url",
    "s3n": "type s3://bucket/prefix",
    "wasb": "type abfss://container@account.dfs.core.windows.net/prefix",
    "wasbs": "type abfss://container@account.dfs.core.windows.net/prefix",
}
_FABRIC = "dfs.fabric.microsoft.com"
_AZURE_HOSTS = ("dfs.core.windows.net", "blob.core.windows.net", _FABRIC)


@dataclass(frozen=True)
class StorageAddress:
    """All directories of this machine, or a bucket and the options that reach it; picklable."""

    root: Path  # of a bucket, without a prefix
    bucket: str
    options: StorageOptions

    @property
    def service(self) -> Service | None:
        """The kind of object store; None for directories."""
        return self.options.service

    def __str__(self) -> str:
        return str(self.root)


DIRECTORIES = StorageAddress(Path("/"), "", StorageOptions())


class Address(NamedTuple):
    """A storage and an absolute path in it."""

    storage: StorageAddress
    path: Path


def parse_address(given: object, options: Mapping[str, str] | None = None) -> Address:
    """Return the address that a user gave as text or path, with the options of its storage.

    Raises UsageError for an address that is none, and OptionError for an option.
    """
    try:
        text = fspath(given)  # type: ignore[call-overload]
    except TypeError:
        text = None
    if not isinstance(text, str) or not text:
        raise UsageError(
            f"{given!r} is no path; give the path of a directory as text, or an address as in"
            " s3://bucket/prefix"
        )
    match = _SCHEME.match(text)
    scheme = match[1].lower() if match else ""
    if match and scheme in _SERVICES:
        return _object_address(text, scheme, match, options)
    if match and match[2] and scheme != "file":
        raise _unknown_scheme(text, scheme)
    if options:
        raise OptionError(
            f"{_shown(text)} is a directory, which has no storage options; leave out"
            f" {', '.join(map(repr, options))}, or give an address as in s3://bucket/prefix"
        )
    return Address(DIRECTORIES, _directory(text, is_url=bool(match and match[2])))


def merged_storage_options(
    address: str | PathLike[str], *layers: Mapping[str, str]
) -> dict[str, str]:
    """Return storage options for an address: of each, the value in the first layer that has it.

    The first layer are options that a user gave for this address, and the others defaults: of them
    those of other services are left out, and all of them for a directory. Keys and a token that
    belong together are taken from one layer. Nothing else is checked.
    """
    match = _SCHEME.match(fspath(address))
    known = _SERVICES.get(match[1].lower()) if match else None
    found: dict[str, tuple[str, str]] = {}
    for number, layer in enumerate(layers):
        has_credentials = not found.keys().isdisjoint(CREDENTIALS)
        for word, value in layer.items():
            name = known[0].name_of(word) if known else None
            if number and name is None and (known is None or is_storage_option(word)):
                continue
            if name in CREDENTIALS and has_credentials:
                continue
            found.setdefault(name or word, (word, value))
    return dict(found.values())


def path_of(given: object) -> Path:
    """Return the absolute path of a directory that a user gave.

    Raises UsageError, and NotSupportedError for a bucket.
    """
    address = parse_address(given)
    if address.storage.service is not None:
        raise NotSupportedError(
            f"{_shown(str(given))}: this call works with directories, and {address.storage} is on"
            f" {address.storage.service.title}; tables there are opened with kudulite.connect and"
            " kudulite.open_table"
        )
    return address.path


def _directory(text: str, *, is_url: bool) -> Path:
    if is_url:
        parsed = urlparse(text)
        if parsed.netloc not in ("", "localhost"):
            raise UsageError(
                f"{_shown(text)}: a file: URL has three slashes, as in file:///{parsed.netloc}/…;"
                f" {parsed.netloc!r} is taken for the name of a machine"
            )
        text = unquote(parsed.path)
    expanded = expanduser(text)
    if expanded.startswith("~"):
        raise UsageError(f"{text!r}: there is no such user; a folder of this name is './{text}'")
    _check_unicode(expanded)
    return Path(abspath(expanded))


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{text!r}: the path is not UTF-8, and readers of Arrow and Parquet cannot open"
            " such files; rename the directory"
        ) from error


def _object_address(
    text: str, scheme: str, match: re.Match[str], options: Mapping[str, str] | None
) -> Address:
    service, own = _SERVICES[scheme]
    form = f"type {_FORMS[service]}"
    if not match[2]:
        raise UsageError(
            f"{text!r} has no slashes after {match[1]}:; {form}, or './{text}' for a directory of"
            " this name"
        )
    if len(match[2]) > 2:
        raise UsageError(f"{text!r} has no bucket; {form}")
    bucket, _, name = text[match.end() :].partition("/")
    host = None
    if own == "abfss" and bucket.count("@") == 1 and ":" not in bucket:
        bucket, _, host = bucket.partition("@")
    if "@" in bucket:
        raise UsageError(
            f"{match[1]}://…@{bucket.rpartition('@')[2]}: an address with credentials in it would"
            f" be shown in errors and logs; give them as storage_options, and {form}"
        )
    if ":" in bucket:
        raise UsageError(
            f"{text!r}: a bucket has no port; {form}, and the server as storage option"
            " aws_endpoint_url='https://host:port'"
        )
    if not _BUCKET.fullmatch(bucket):
        raise UsageError(f"{_shown(text)}: {bucket!r} is no name of a bucket; {form}")
    _check_name(text, name)
    if host is None:
        root = f"{'az' if own == 'abfss' else own}://{bucket}"
    else:
        root = f"{own}://{bucket}@{host}"
    given = StorageOptions.parse(service, {} if options is None else options, root)
    if host is not None:
        given = _with_account(given, host, root)
    path = cast(Path, ObjectPath(root, *name.split("/")))
    return Address(StorageAddress(cast(Path, ObjectPath(root)), bucket, given), path)


def _check_name(text: str, name: str) -> None:
    """Raise UsageError unless a path in a bucket can be the beginning of objects' names."""
    _check_unicode(text)
    parts = name.split("/")
    if any(part in (".", "..") for part in parts):
        raise UsageError(f"{text!r}: an object's name has no part '.' or '..'; leave it out")
    if any(ord(character) < 32 or character in "\\\x7f" for character in name):
        raise UsageError(f"{text!r}: an object's name has no backslash and no control character")
    if re.search(r"\?\w[\w.-]*=", name):
        raise UsageError(
            f"{_shown(text)}: an address has no query; give its parts as storage_options, as in"
            ' {"aws_region": "eu-west-1"}'
        )


def _with_account(options: StorageOptions, host: str, root: str) -> StorageOptions:
    """Add the account of an address to the options of Azure."""
    account, _, domain = host.lower().partition(".")
    if domain not in _AZURE_HOSTS or not account:
        raise UsageError(
            f"{root}: the host is account.dfs.core.windows.net, found {host!r}; for another one"
            " type az://container/prefix with the storage options azure_storage_account_name and"
            " azure_storage_endpoint"
        )
    found = dict(options.items)
    if found.setdefault("account_name", account) != account:
        raise OptionError(
            f"{root}: the storage option for the account is {found['account_name']!r}, and the"
            f" address names {account!r}; leave one of them out"
        )
    if domain == _FABRIC:
        found.setdefault("use_fabric_endpoint", "true")
    return replace(options, items=tuple(sorted(found.items())))


def _unknown_scheme(text: str, scheme: str) -> UsageError:
    advice = _ADVICE.get(scheme, f"give {_KNOWN}, or mount the storage as a directory")
    return UsageError(f"{_shown(text)}: kudulite has no client for {scheme}:; {advice}")


def _shown(text: str) -> str:
    """Return an address for an error, without a user, a password and a query."""
    text = re.sub(r"(?<=//)[^/@\s]*@", "…@", text)
    return repr(re.sub(r"\?.*", "?…", text, flags=re.DOTALL))
