"""Options of `spark.read` and `df.write` as typed, checked values, and paths as open tables.

Spark passes text under lower-cased names. `ReadOptions.parse` and `WriteOptions.parse` turn it into
the values that docs/spark.md documents, or raise OptionError: for an unknown name it lists the
known ones, for a bad value the legal ones. Both directions share one set of names, because a
temporary view (`CREATE TEMPORARY VIEW v USING kudulite OPTIONS (…)`) is read and written under the
same options. An option that makes no sense in the other direction (writing into a view of the past)
is refused.

A table is addressed by its own directory, `<root>/<table>`. Spark passes a path as it was typed,
and each of its Python processes has its own working directory. The processes of the driver
(planning, commit) have that of the JVM, so a relative path is made absolute there, before it is
sent to tasks.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlparse

import kudulite
from kudulite import Client, Table
from kudulite.errors import OptionError, TableNotFoundError, UsageError
from kudulite_spark.kudu_options import kudu_names_replaced

OPERATIONS = (
    "insert",
    "insert_ignore",
    "upsert",
    "upsert_ignore",
    "update",
    "update_ignore",
    "delete",
    "delete_ignore",
)
CHANGE_IMAGES = ("after", "both")
READ_NAMES = (
    "changeImages",
    "columns",
    "endTimestamp",
    "faultTolerantScan",
    "filter",
    "maxRowsPerTrigger",
    "pushdown",
    "snapshotTimestamp",
    "splitSizeBytes",
    "startTimestamp",
)
# Options that a view must not have to be written to.
_PAST_NAMES = (
    "changeImages",
    "endTimestamp",
    "filter",
    "maxRowsPerTrigger",
    "snapshotTimestamp",
    "startTimestamp",
)
# Options that a stream cannot have: it has no end and no order.
_BATCH_NAMES = ("endTimestamp", "faultTolerantScan", "pushdown", "snapshotTimestamp")
# Values of `startTimestamp` that only a stream has.
STREAM_STARTS = ("now", "snapshot")
WRITE_NAMES = (
    "applicationId",
    "applicationVersion",
    "hashPartitions",
    "ignoreNull",
    "operation",
    "operationColumn",
    "orderingColumn",
    "primaryKey",
    "rangePartitions",
    "repartition",
    "schemaEvolution",
)
KNOWN_NAMES = tuple(sorted(("path", *READ_NAMES, *WRITE_NAMES)))

# Spark's catalog adds these for a CREATE TABLE that names the source; they are no user's options.
_CATALOG_NAMES = frozenset(
    {"comment", "external", "is_managed_location", "location", "owner", "provider"}
)

# Spark's stream options. The first shows that a stream writes.
CHECKPOINT = "checkpointlocation"
_STREAM_NAMES = frozenset({CHECKPOINT, "queryname"})

# Options between parts of the connector; not for users.
SCAN_TOKENS = "kuduliteScanTokens"  # read only these pieces of a plan
FRONT = "kuduliteFront"  # the caller is the front, which needs the table's row count
_INTERNAL_NAMES = frozenset({SCAN_TOKENS.lower(), FRONT.lower()})

_SPARK_NAMES = _CATALOG_NAMES | _INTERNAL_NAMES | _STREAM_NAMES


_CANONICAL = {name.lower(): name for name in KNOWN_NAMES}
_SIZE = re.compile(r"(\d+)\s*(k|m|g)?(?:i?b)?", re.IGNORECASE)
_SIZE_FACTOR = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

T = TypeVar("T")


@dataclass(frozen=True)
class ReadOptions:
    """The options of a `load()`; `columns` None means all.

    With a `start_timestamp` the changes after it, up to `end_timestamp`, are read. The
    `start_timestamp` of a stream may also be one of STREAM_STARTS.
    """

    path: str
    columns: tuple[str, ...] | None = None
    filter: str | None = None
    snapshot_timestamp: str | None = None
    pushdown: bool = False
    split_size_bytes: int | None = None  # the reader fits it to table and cores
    fault_tolerant_scan: bool = False
    start_timestamp: str | None = None
    end_timestamp: str | None = None
    change_images: str = "after"
    max_rows_per_trigger: int | None = None
    scan_tokens: str | None = None

    @property
    def is_of_changes(self) -> bool:
        """Whether changes are read, not a snapshot."""
        return self.start_timestamp is not None

    @property
    def is_of_stream(self) -> bool:
        """Whether only a stream can have these options."""
        start = (self.start_timestamp or "").strip().lower()
        return start in STREAM_STARTS or self.max_rows_per_trigger is not None

    @staticmethod
    def check_stream(options: Mapping[str, str]) -> None:
        """Refuse options that a stream cannot have."""
        values = named_options(options)
        for name in _BATCH_NAMES:
            if name in values:
                raise OptionError(
                    f"option {name!r} ({values[name]!r}) belongs to a batch read; a stream takes"
                    " 'startTimestamp' (a moment, now, or snapshot), 'changeImages', 'columns',"
                    " 'filter', 'maxRowsPerTrigger' and 'splitSizeBytes'"
                )

    @staticmethod
    def parse(options: Mapping[str, str]) -> ReadOptions:
        """Check all options, including those of writes, and return those of a read."""
        values = named_options(options)
        _parse_write_values(values)
        return replace(_parse_read_values(values), scan_tokens=options.get(SCAN_TOKENS))


@dataclass(frozen=True)
class WriteOptions:
    """The options of a write; the last three describe a table that does not exist yet."""

    path: str
    operation: str = "upsert"
    operation_column: str | None = None
    ordering_column: str | None = None
    ignore_null: bool = False
    repartition: bool = False
    schema_evolution: bool = False
    application_id: str | None = None
    application_version: int | None = None
    primary_key: tuple[str, ...] | None = None
    hash_partitions: tuple[tuple[tuple[str, ...], int], ...] | None = None
    range_partitions: dict[str, Any] | None = None

    @staticmethod
    def parse(options: Mapping[str, str]) -> WriteOptions:
        """Check all options, including those of reads, and return those of a write."""
        values = named_options(options)
        for name in _PAST_NAMES:
            if name in values:
                raise OptionError(
                    f"option {name!r} belongs to a read: a filtered view or a view of the past"
                    " cannot be written to"
                )
        _parse_read_values(values)
        return _parse_write_values(values)

    @staticmethod
    def parse_stream(options: Mapping[str, str]) -> WriteOptions:
        """Do as `parse`; the application's version is the number of the batch, not an option."""
        values = named_options(options)
        if "applicationVersion" in values:
            raise OptionError(
                f"option 'applicationVersion' ({values['applicationVersion']!r}) belongs to a batch"
                " write; in a stream the version is the number of the batch, and 'applicationId' is"
                " by default the id of the query"
            )
        rest = {k: v for k, v in options.items() if k.lower() != "applicationid"}
        return replace(WriteOptions.parse(rest), application_id=values.get("applicationId"))


def named_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options under their documented names, without those that Spark adds.

    kudu-spark's names are accepted as well (`kudu_options`)."""
    values: dict[str, str] = {}
    unknown: list[str] = []
    for key, value in kudu_names_replaced(options).items():
        lowered = key.lower()
        if lowered == "paths":
            values.setdefault("path", _single_path(value))
        elif lowered in _CANONICAL:
            values[_CANONICAL[lowered]] = value
        elif lowered not in _SPARK_NAMES and not lowered.startswith("option."):
            unknown.append(key)
    if unknown:
        names = ", ".join(repr(name) for name in sorted(unknown))
        noun = "option" if len(unknown) == 1 else "options"
        raise OptionError(f"unknown {noun} {names}; known: {', '.join(KNOWN_NAMES)}")
    return values


def local_path(text: str) -> str:
    """Return the path of a table as typed, without `file:`. OptionError for other schemes."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", text)
    if not match:
        return text
    if match.group(1).lower() != "file":
        raise OptionError(
            f"path {text!r}: kudulite tables live in a directory that every Spark process mounts;"
            " give a plain path or file:/…"
        )
    return unquote(urlparse(text).path)


def _single_path(text: str) -> str:
    paths = json.loads(text)
    if len(paths) != 1:
        raise OptionError(f"a kudulite table is one path, {len(paths)} given: {text}")
    return str(paths[0])


def _parse_path(values: Mapping[str, str]) -> str:
    path = values.get("path", "").strip()
    if not path:
        raise OptionError(
            "option 'path' is missing: give the directory of the table, as in load('/data/t') or"
            " option('path', '/data/t'). Spark hands no options to a table made by CREATE TABLE;"
            " use CREATE TEMPORARY VIEW v USING kudulite OPTIONS (path '/data/t'), or"
            " SELECT * FROM t WITH (path = '/data/t')"
        )
    return local_path(path)


def _parse_read_values(values: Mapping[str, str]) -> ReadOptions:
    columns = values.get("columns")
    _check_window(values)
    return ReadOptions(
        path=_parse_path(values),
        columns=None if columns is None else parse_names("columns", columns),
        filter=values.get("filter"),
        snapshot_timestamp=values.get("snapshotTimestamp"),
        pushdown=_parse_boolean(values, "pushdown"),
        split_size_bytes=_parse_size(values, "splitSizeBytes"),
        fault_tolerant_scan=_parse_boolean(values, "faultTolerantScan"),
        start_timestamp=values.get("startTimestamp"),
        end_timestamp=values.get("endTimestamp"),
        change_images=_parse_images(values),
        max_rows_per_trigger=_parse_count(values, "maxRowsPerTrigger"),
    )


def _check_window(values: Mapping[str, str]) -> None:
    """Refuse a read of changes with a snapshot's options, or without a start."""
    if "startTimestamp" in values:
        if "snapshotTimestamp" in values:
            raise OptionError(
                f"option 'snapshotTimestamp' ({values['snapshotTimestamp']!r}) and option"
                f" 'startTimestamp' ({values['startTimestamp']!r}) exclude each other: the first"
                " reads the rows at a moment, the second the changes after one"
            )
        return
    for name in ("endTimestamp", "changeImages"):
        if name in values:
            raise OptionError(
                f"option {name!r} ({values[name]!r}) belongs to a read of changes; give the moment"
                " after which the changes begin as option 'startTimestamp', or read a snapshot with"
                " option 'snapshotTimestamp'"
            )


def _parse_images(values: Mapping[str, str]) -> str:
    text = values.get("changeImages", "after").strip().lower()
    if text not in CHANGE_IMAGES:
        raise OptionError(
            f"option 'changeImages': {text!r} is unknown; known: {', '.join(CHANGE_IMAGES)}"
        )
    return text


def _parse_write_values(values: Mapping[str, str]) -> WriteOptions:
    application_id, application_version = _parse_application(values)
    primary_key = values.get("primaryKey")
    hash_partitions = values.get("hashPartitions")
    range_partitions = values.get("rangePartitions")
    operation_column = values.get("operationColumn")
    if operation_column is not None and "operation" in values:
        raise OptionError(
            f"option 'operation' ({values['operation']!r}) and option 'operationColumn'"
            f" ({operation_column!r}) exclude each other: the column names each row's operation"
        )
    return WriteOptions(
        path=_parse_path(values),
        operation=_parse_operation(values.get("operation", "upsert")),
        operation_column=operation_column,
        ordering_column=values.get("orderingColumn"),
        ignore_null=_parse_boolean(values, "ignoreNull"),
        repartition=_parse_boolean(values, "repartition"),
        schema_evolution=_parse_boolean(values, "schemaEvolution"),
        application_id=application_id,
        application_version=application_version,
        primary_key=None if primary_key is None else parse_names("primaryKey", primary_key),
        hash_partitions=None if hash_partitions is None else parse_hash(hash_partitions),
        range_partitions=None if range_partitions is None else parse_range(range_partitions),
    )


def parse_names(option: str, text: str) -> tuple[str, ...]:
    """Parse `a, b` or, for names with commas, the JSON form `["a", "b"]`.

    An empty `columns` means no column (a count); an empty `primaryKey` is an error.
    """
    if text.lstrip().startswith("["):
        names = _parse_json(option, text, list)
    else:
        names = [part.strip() for part in text.split(",")] if text.strip() else []
    if not all(isinstance(name, str) and name for name in names):
        raise OptionError(f"option {option!r}: an empty name in {text!r}; give names as in 'a, b'")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise OptionError(f"option {option!r}: {', '.join(repeated)} given more than once")
    if not names and option != "columns":
        raise OptionError(f"option {option!r} names no column; give names as in 'a, b'")
    return tuple(names)


def parse_hash(text: str) -> tuple[tuple[tuple[str, ...], int], ...]:
    """Parse `a:4; b,c:8`: two hash dimensions, of a in 4 and of (b, c) in 8 buckets."""
    dimensions = []
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        names, colon, count = part.rpartition(":")
        if not colon or not count.strip().isdigit() or int(count) < 2:
            raise OptionError(
                f"option 'hashPartitions': {part!r} is not 'columns:buckets' with at least 2"
                " buckets; give for example 'a:4; b,c:8'"
            )
        dimensions.append((parse_names("hashPartitions", names), int(count)))
    return tuple(dimensions)


def parse_range(text: str) -> dict[str, Any]:
    """Parse the JSON of range partitions: the columns and the [lower, upper) bounds.

    >>> parse_range('{"columns": ["day"], "bounds": [[null, 10], [10, 20]]}')["bounds"]
    [[None, 10], [10, 20]]
    """
    ranges = _parse_json("rangePartitions", text, dict)
    bounds = ranges.get("bounds", [])
    is_paired = isinstance(bounds, list) and all(
        isinstance(pair, list) and len(pair) == 2 for pair in bounds
    )
    if not {"columns"} <= set(ranges) <= {"columns", "bounds"} or not is_paired:
        raise OptionError(
            "option 'rangePartitions' is JSON with 'columns' and 'bounds', as in"
            f' {{"columns": ["day"], "bounds": [[null, 10], [10, 20]]}}; found {text}'
        )
    return ranges


def _parse_json(option: str, text: str, kind: type[T]) -> T:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise OptionError(f"option {option!r} is not JSON ({error}): {text}") from error
    if not isinstance(value, kind):
        raise OptionError(f"option {option!r}: expected a JSON {kind.__name__}, found {text}")
    return value


def _parse_operation(text: str) -> str:
    name = text.strip().lower().replace("-", "_")
    if name not in OPERATIONS:
        raise OptionError(f"unknown operation {text!r}; known: {', '.join(OPERATIONS)}")
    return name


def _parse_boolean(values: Mapping[str, str], option: str) -> bool:
    text = values.get(option, "false").strip().lower()
    if text not in ("true", "false"):
        raise OptionError(f"option {option!r} is true or false, found {values[option]!r}")
    return text == "true"


def _parse_size(values: Mapping[str, str], option: str) -> int | None:
    if option not in values:
        return None
    match = _SIZE.fullmatch(values[option].strip())
    size = int(match.group(1)) * _SIZE_FACTOR[(match.group(2) or "").lower()] if match else 0
    if size < 1:
        raise OptionError(
            f"option {option!r} is a positive number of bytes, as in 33554432 or 32m; found"
            f" {values[option]!r}"
        )
    return size


def _parse_count(values: Mapping[str, str], option: str) -> int | None:
    if option not in values:
        return None
    text = values[option].strip()
    if not text.isdigit() or int(text) < 1:
        raise OptionError(f"option {option!r} is a number above 0, found {values[option]!r}")
    return int(text)


def _parse_application(values: Mapping[str, str]) -> tuple[str | None, int | None]:
    identity, version = values.get("applicationId"), values.get("applicationVersion")
    if (identity is None) != (version is None):
        raise OptionError("options 'applicationId' and 'applicationVersion' need each other")
    if version is None:
        return None, None
    if not re.fullmatch(r"-?\d+", version.strip()):
        raise OptionError(f"option 'applicationVersion' is an integer, found {version!r}")
    return identity, int(version)


def absolute_path(path: str | os.PathLike[str], base: str | None = None) -> str:
    """Return the absolute form of a path or file: URL, seen from `base` (default: this process)."""
    return os.path.abspath(os.path.join(base or os.getcwd(), local_path(os.fspath(path))))


def open_table(path: str) -> Table:
    """Open the table in the directory `path`. Raises TableNotFoundError."""
    return kudulite.open_table(path)


def find_table(path: str) -> Table | None:
    """Open the table at `path`; None if there is nothing or an empty folder, so one can be made.

    Raises UsageError if the path is occupied by something else."""
    try:
        return kudulite.open_table(path)
    except TableNotFoundError as error:
        place = Path(path)
        if place.is_dir() and not any(place.iterdir()):
            return None
        if place.exists() or place.is_symlink():
            raise UsageError(f"{path}: no table is made here: {error}") from error
        return None


def catalog_of(path: str) -> tuple[Client, str]:
    """Return a client of the directory that holds the table at `path`, and the table's name."""
    root, name = os.path.split(path)
    if not name:
        raise UsageError(f"path {path!r} is the root directory; a table needs one of its own")
    # Background work would be lost when Spark ends its process; `maintain` replaces it.
    return kudulite.connect(root, background_maintenance=False), name
