"""kudu-spark's option names: each is replaced by an option of kudulite, checked, or refused.

    kudu.master + kudu.table     path: the directory that holds the tables, and a name in it
    another name                 the same option here, see _RENAMED
    no effect                    options of a client of servers, which do not exist: checked, logged
    refused                      a promise that a directory cannot keep

`kudu_names_replaced` runs before all other parsing of options. A value that kudu-spark would refuse
is refused here as well, even if the option has no effect.

**Source**: Kudu's kudu-spark, DefaultSource.scala, KuduReadOptions.scala, KuduWriteOptions.scala.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from urllib.parse import quote

from kudulite.errors import OptionError

logger = logging.getLogger("kudulite.spark")

PREFIX = "kudu."
_RENAMED = {
    "kudu.faultTolerantScan": "faultTolerantScan",
    "kudu.handleSchemaDrift": "schemaEvolution",
    "kudu.ignoreNull": "ignoreNull",
    "kudu.operation": "operation",
    "kudu.repartition": "repartition",
    "kudu.splitSizeBytes": "splitSizeBytes",
}
_NUMBERS_WITHOUT_EFFECT = (
    "kudu.batchSize",
    "kudu.keepAlivePeriodMs",
    "kudu.scanRequestTimeoutMs",
    "kudu.socketReadTimeoutMs",
)
_BOOLEANS = ("kudu.ignoreDuplicateRowErrors", "kudu.repartition.sort", "kudu.requireAuthentication")
_CHOICES = {
    "kudu.encryptionPolicy": ("optional", "required_remote", "required"),
    "kudu.scanLocality": ("leader_only", "closest_replica"),
}
KUDU_NAMES = tuple(
    sorted(
        (
            "kudu.master",
            "kudu.saslProtocolName",
            "kudu.snapshotTimestampMs",
            "kudu.table",
            *_RENAMED,
            *_NUMBERS_WITHOUT_EFFECT,
            *_BOOLEANS,
            *_CHOICES,
        )
    )
)
_CANONICAL = {name.lower(): name for name in KUDU_NAMES}
# `host`, `host:7051` or several of them; a directory has a slash, or is a plain name.
_ADDRESSES = re.compile(r"[^/\\]*[^/\\:]:\d+(,.*)?|[^/\\]+,[^/\\]+")
_REFUSED = {
    "kudu.requireAuthentication": "a user with access to the directory can read the tables; set the"
    " permissions of the directory",
    "kudu.encryptionPolicy": "there is no network traffic, and kudulite does not encrypt files; use"
    " an encrypted file system",
}


def kudu_names_replaced(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with kudu-spark's names replaced by the documented ones.

    Raises OptionError for a name that kudu-spark does not have either, a value that it would
    refuse, a promise that cannot be kept, and an option that is given under both names.
    """
    given, rest = _split(options)
    if not given:
        return rest
    found = {own: given[name] for name, own in _RENAMED.items() if name in given}
    found |= _path(given)
    if "kudu.snapshotTimestampMs" in given:
        milliseconds = _number(given, "kudu.snapshotTimestampMs")
        found["snapshotTimestamp"] = str(milliseconds * 1000)
    known = {"path" if name.lower() == "paths" else name.lower(): name for name in rest}
    twice = [name for name in found if name.lower() in known]
    if twice:
        raise OptionError(
            f"option {known[twice[0].lower()]!r} is given, and kudu-spark's name for the same; give"
            " only one of them"
        )
    duplicates = "kudu.ignoreDuplicateRowErrors"
    ignores_duplicates = parse_boolean(duplicates, given.get(duplicates, "false"))
    operation = {name.lower(): value for name, value in {**rest, **found}.items()}.get("operation")
    if ignores_duplicates and operation is not None and operation.strip().lower() == "insert":
        # Under either name: kudu-spark ignores duplicates of inserts only.
        rest = {name: value for name, value in rest.items() if name.lower() != "operation"}
        found["operation"] = "insert_ignore"
    _check_the_others(given)
    return rest | found


def _split(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return kudu-spark's options under their exact names, and all others."""
    given, rest = {}, {}
    for name, value in options.items():
        if not name.lower().startswith(PREFIX):
            rest[name] = value
            continue
        exact = _CANONICAL.get(name.lower())
        if exact is None:
            raise OptionError(
                f"unknown option {name!r}; of kudu-spark's options these are known:"
                f" {', '.join(KUDU_NAMES)}"
            )
        given[exact] = value
    return given, rest


def _path(given: Mapping[str, str]) -> dict[str, str]:
    """Return the path that master and table name together."""
    master, table = given.get("kudu.master"), given.get("kudu.table")
    if master is None and table is None:
        return {}
    if not master or not table or not master.strip():
        lacking = "kudu.table" if master else "kudu.master"
        raise OptionError(
            f"option {lacking!r} is missing: 'kudu.master' is the directory that holds the tables,"
            " 'kudu.table' the name of one of them; or give the table's own directory as 'path'"
        )
    if _ADDRESSES.fullmatch(master.strip()):
        raise OptionError(
            f"option 'kudu.master' is the directory that holds the tables, as in '/data/warehouse';"
            f" found addresses of servers: {master!r}"
        )
    return {"path": table_path(master.strip(), table)}


def table_path(root: str, table: str) -> str:
    """Return the path of the table of a name in a directory; the name may be `impala::db.name`.

    Raises OptionError for text that is no name.
    """
    if not table or "/" in table or table.startswith("."):
        raise OptionError(
            f"table name {table!r}: a name is not empty, has no '/' and does not begin with a dot"
        )
    # A URL is unquoted when it becomes a path.
    return os.path.join(root, quote(table) if root.lower().startswith("file:") else table)


def _check_the_others(given: Mapping[str, str]) -> None:
    """Check the options without effect, and refuse promises that cannot be kept."""
    for name in _NUMBERS_WITHOUT_EFFECT:
        if name in given:
            _number(given, name)
    for name in _BOOLEANS:
        if parse_boolean(name, given.get(name, "false")) and name in _REFUSED:
            raise OptionError(f"option {name!r} cannot be kept: {_REFUSED[name]}")
    for name, choices in _CHOICES.items():
        choice = given.get(name, choices[0]).strip().lower()
        if choice not in choices:
            raise OptionError(f"option {name!r} is one of {', '.join(choices)}; found {choice!r}")
        if choice != choices[0] and name in _REFUSED:
            raise OptionError(f"option {name!r} ({choice}) cannot be kept: {_REFUSED[name]}")
    idle = sorted(
        set(given)
        & {*_NUMBERS_WITHOUT_EFFECT, *_BOOLEANS, *_CHOICES, "kudu.saslProtocolName"}
        - {"kudu.ignoreDuplicateRowErrors"}
    )
    if idle:
        logger.info("without effect, since there are no servers: %s", ", ".join(idle))


def _number(given: Mapping[str, str], name: str) -> int:
    text = given[name].strip()
    if not re.fullmatch(r"\d+", text):
        raise OptionError(f"option {name!r} is a whole number, found {given[name]!r}")
    return int(text)


def parse_boolean(option: str, text: str) -> bool:
    """Return the value of an option. Raises OptionError for a text other than true and false."""
    value = text.strip().lower()
    if value not in ("true", "false"):
        raise OptionError(f"option {option!r} is true or false, found {text!r}")
    return value == "true"
