"""Options of `spark.read` and `df.write` as typed, checked values, and paths as open tables.

Spark passes text under lower-cased names. `ReadOptions.parse` and `WriteOptions.parse` turn it into
the values that docs/spark_read.md and docs/spark_write.md document, or raise OptionError: for an
unknown name it lists the known ones, for a bad value the legal ones. Both directions share one set
of names, because a temporary view (`CREATE TEMPORARY VIEW v USING kudulite OPTIONS (…)`) is read
and written under the same options. An option that makes no sense in the other direction (writing
into a view of the past) is refused. The tables `_READ_PARSERS` and `_WRITE_PARSERS` are the
options; the field of an option has its name in Python's spelling.

A table is addressed by its own directory, `<root>/<table>`. Spark passes a path as it was typed,
and each of its Python processes has its own working directory. The processes of the driver
(planning, commit) have that of the JVM, so a relative path is made absolute there, before it is
sent to tasks.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlparse

from pyspark.sql.utils import is_remote

import kudulite
from kudulite.errors import OptionError, TableNotFoundError, UsageError
from kudulite_spark.kudu_options import kudu_names_replaced, parse_boolean
from kudulite_spark.storage_settings import (
    FRONT_PREFIX,
    HADOOP_PREFIX,
    SESSION_PREFIX,
    front_settings,
    source_options,
    storage_name,
    storage_options,
    with_hidden_key,
    without_keys,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kudulite import Client, Table

CHANGE_IMAGES = ("after", "both")
# A value of `snapshotTimestamp`: the moment at which Spark plans a query.
QUERY = "query"
# Values of `startTimestamp` that only a stream has.
STREAM_STARTS = ("now", "snapshot")

# Spark's catalog adds these for a CREATE TABLE that names the source; they are no user's options.
_CATALOG_NAMES = frozenset(
    {"comment", "external", "is_managed_location", "location", "owner", "provider"}
)

# Spark's stream options. The first shows that a stream writes.
CHECKPOINT = "checkpointlocation"
_STREAM_NAMES = frozenset({CHECKPOINT, "queryname"})

# Options between parts of the connector; not for users.
SCAN_TOKENS = "kuduliteScanTokens"  # read only these pieces of a plan
FRONT = "kuduliteFront"  # the caller is the JVM extension, which needs the table's row count
COUNT = "kuduliteCount"  # the JVM extension needs the exact number of rows at this snapshot
CATALOG = "kuduliteCatalog"  # a question of the catalog
READ_AT = "kuduliteReadAt"  # the snapshot that the rows of a write were computed from
# The settings of the session that a statement of SQL was run in, by the options that they replace.
_OF_SESSION = {
    "applicationId": "kuduliteApplicationId",
    "applicationVersion": "kuduliteApplicationVersion",
}
_INTERNAL_NAMES = frozenset(
    name.lower() for name in (SCAN_TOKENS, FRONT, COUNT, CATALOG, READ_AT, *_OF_SESSION.values())
)

_SPARK_NAMES = _CATALOG_NAMES | _INTERNAL_NAMES | _STREAM_NAMES

_SIZE = re.compile(r"(\d+)\s*(k|m|g)?(?:i?b)?", re.IGNORECASE)
_SIZE_FACTOR = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

T = TypeVar("T")
# Of Spark's partitionOverwriteMode; the second is refused for a table with partitions.
OVERWRITE_MODES = ("static", "dynamic")
# Returns the value of an option from its name and text. Raises OptionError.
Parser = Callable[[str, str], Any]


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


def parse_hash(option: str, text: str) -> tuple[tuple[tuple[str, ...], int], ...]:
    """Parse `a:4; b,c:8`: two hash dimensions, of a in 4 and of (b, c) in 8 buckets."""
    dimensions = []
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        names, colon, count = part.rpartition(":")
        if not colon or not count.strip().isdigit() or int(count) < 2:
            raise OptionError(
                f"option {option!r}: {part!r} is not 'columns:buckets' with at least 2 buckets;"
                " give for example 'a:4; b,c:8'"
            )
        dimensions.append((parse_names(option, names), int(count)))
    return tuple(dimensions)


def parse_range(option: str, text: str) -> dict[str, Any]:
    """Parse the JSON of range partitions: the columns and the [lower, upper) bounds.

    >>> text = '{"columns": ["day"], "bounds": [[null, 10], [10, 20]]}'
    >>> parse_range("rangePartitions", text)["bounds"]
    [[None, 10], [10, 20]]

    A range with hash partitions of its own has them as a third value: `[10, 20, [["id", 8]]]`.
    """
    ranges = _parse_json(option, text, dict)
    bounds = ranges.get("bounds", [])
    are_ranges = isinstance(bounds, list) and all(map(_is_range, bounds))
    if not {"columns"} <= set(ranges) <= {"columns", "bounds"} or not are_ranges:
        raise OptionError(
            f"option {option!r} is JSON with 'columns' and 'bounds', as in"
            f' {{"columns": ["day"], "bounds": [[null, 10], [10, 20]]}}, where a range with hash'
            f' partitions of its own is [10, 20, [["id", 8]]]; found {text}'
        )
    return ranges


def _is_range(given: object) -> bool:
    """Whether it is [lower, upper] or [lower, upper, [[columns, buckets], …]]."""
    if not isinstance(given, list) or len(given) not in (2, 3):
        return False
    own = given[2] if len(given) == 3 else []
    return isinstance(own, list) and all(
        isinstance(each, list)
        and len(each) == 2
        and isinstance(each[0], str | list)
        and isinstance(each[1], int)
        for each in own
    )


def _parse_json(option: str, text: str, kind: type[T]) -> T:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise OptionError(f"option {option!r} is not JSON ({error}): {text}") from error
    if not isinstance(value, kind):
        raise OptionError(f"option {option!r}: expected a JSON {kind.__name__}, found {text}")
    return value


def _parse_text(option: str, text: str) -> str:
    return text


def _parse_operation(option: str, text: str) -> str:
    return kudulite.parse_operation(text).label


def _one_of(known: Sequence[str]) -> Parser:
    """Return the parser of an option that has one of a few words, in any case."""

    def parse(option: str, text: str) -> str:
        word = text.strip().lower()
        if word not in known:
            raise OptionError(f"option {option!r}: {text!r} is unknown; known: {', '.join(known)}")
        return word

    return parse


def _parse_size(option: str, text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    size = int(match.group(1)) * _SIZE_FACTOR[(match.group(2) or "").lower()] if match else 0
    if size < 1:
        raise OptionError(
            f"option {option!r} is a positive number of bytes, as in 33554432 or 32m; found"
            f" {text!r}"
        )
    return size


def _parse_count(option: str, text: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise OptionError(f"option {option!r} is a number above 0, found {text!r}")
    return int(text)


def _parse_integer(option: str, text: str) -> int:
    if not re.fullmatch(r"-?\d+", text.strip()):
        raise OptionError(f"option {option!r} is an integer, found {text!r}")
    return int(text)


def _parse_unchanged(option: str, text: str) -> str:
    if text.strip().lower() != "skip":
        raise OptionError(f"option {option!r} is 'skip' or left out, found {text!r}")
    return "skip"


_READ_PARSERS: dict[str, Parser] = {
    "changeImages": _one_of(CHANGE_IMAGES),
    "columns": parse_names,
    "endTimestamp": _parse_text,
    "faultTolerantScan": parse_boolean,
    "filter": _parse_text,
    "maxRowsPerTrigger": _parse_count,
    "pushdown": parse_boolean,
    "snapshotTimestamp": _parse_text,
    "splitSizeBytes": _parse_size,
    "startTimestamp": _parse_text,
}
_WRITE_PARSERS: dict[str, Parser] = {
    "applicationId": _parse_text,
    "applicationVersion": _parse_integer,
    "hashPartitions": parse_hash,
    "ignoreNull": parse_boolean,
    "operation": _parse_operation,
    "operationColumn": _parse_text,
    "orderingColumn": _parse_text,
    "partitionOverwriteMode": _one_of(OVERWRITE_MODES),
    "primaryKey": parse_names,
    "rangePartitions": parse_range,
    "repartition": parse_boolean,
    "schemaEvolution": parse_boolean,
    "unchanged": _parse_unchanged,
}
KNOWN_NAMES = tuple(sorted(("path", *_READ_PARSERS, *_WRITE_PARSERS)))
_CANONICAL = {name.lower(): name for name in KNOWN_NAMES}
_A_MOMENT = "with a moment: a version's number is none"
# Words of Delta Lake, Iceberg, Lance and Parquet, as Spark passes them, without hyphens.
_OTHER_WORDS = {
    "asoftimestamp": "write 'snapshotTimestamp', with ISO time or microseconds",
    "clusterby": "write 'hashPartitions' or 'rangePartitions'",
    "dataseturi": "write 'path'",
    "endingtimestamp": "write 'endTimestamp'",
    "endingversion": f"write 'endTimestamp' {_A_MOMENT}",
    "endversion": f"write 'endTimestamp' {_A_MOMENT}",
    "maxbytespertrigger": "write 'maxRowsPerTrigger'",
    "maxfilespertrigger": "write 'maxRowsPerTrigger'",
    "mergeschema": "write 'schemaEvolution'",
    "overwriteschema": "write 'schemaEvolution' to add columns; a TableAlterer drops and renames",
    "partitionby": "write 'hashPartitions' or 'rangePartitions'",
    "partitioncolumns": "write 'hashPartitions' or 'rangePartitions'",
    "readchangedata": "write 'startTimestamp', the moment after which the changes begin",
    "readchangefeed": "write 'startTimestamp', the moment after which the changes begin",
    "replacewhere": "delete the rows with Table.delete(where=…), then append the new ones",
    "snapshotid": f"write 'snapshotTimestamp' {_A_MOMENT}",
    "startingtimestamp": "write 'startTimestamp'",
    "startingversion": f"write 'startTimestamp' {_A_MOMENT}",
    "startversion": f"write 'startTimestamp' {_A_MOMENT}",
    "table": "write 'path', the table's folder; or 'kudu.master' and 'kudu.table'",
    "timestampasof": "write 'snapshotTimestamp'",
    "txnappid": "write 'applicationId'",
    "txnversion": "write 'applicationVersion'",
    "uri": "write 'path'",
    "version": f"write 'snapshotTimestamp' {_A_MOMENT}",
    "versionasof": f"write 'snapshotTimestamp' {_A_MOMENT}",
}
# Read options of a view that can also be written to; all others select rows or a time.
_VIEW_NAMES = ("columns", "faultTolerantScan", "pushdown", "splitSizeBytes")
# Options that a stream cannot have: it has no end and no order.
_BATCH_NAMES = ("endTimestamp", "faultTolerantScan", "pushdown", "snapshotTimestamp")


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
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

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
        _write_options(values)
        read = replace(_read_options(values), scan_tokens=options.get(SCAN_TOKENS))
        if (read.snapshot_timestamp or "").strip().lower() != QUERY:
            return read
        if FRONT not in options:
            raise OptionError(
                f"option 'snapshotTimestamp' ({QUERY!r}) needs the JVM extension, without which"
                " Spark plans a DataFrame once: call kudulite_spark.register(spark) and load it"
                " again, or give a moment"
            )
        return replace(read, snapshot_timestamp=None)


@dataclass(frozen=True)
class WriteOptions:
    """The options of a write. Those of a key and of partitions are for a table that it makes.

    `read_at` is the HybridTime of the snapshot that the rows were computed from, if it is known.
    """

    path: str
    operation: str = "upsert"
    operation_column: str | None = None
    ordering_column: str | None = None
    ignore_null: bool = False
    repartition: bool = False
    schema_evolution: bool = False
    application_id: str | None = None
    application_version: int | None = None
    partition_overwrite_mode: str | None = None
    primary_key: tuple[str, ...] | None = None
    hash_partitions: tuple[tuple[tuple[str, ...], int], ...] | None = None
    range_partitions: dict[str, Any] | None = None
    read_at: int | None = None
    unchanged: str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @staticmethod
    def parse(options: Mapping[str, str]) -> WriteOptions:
        """Check all options, including those of reads, and return those of a write."""
        values = named_options(options)
        for name in values:
            if name in _READ_PARSERS and name not in _VIEW_NAMES:
                raise OptionError(
                    f"option {name!r} belongs to a read: a filtered view or a view of the past"
                    " cannot be written to"
                )
        _read_options(values)
        if _OF_SESSION.keys().isdisjoint(values):
            values |= {own: options[key] for own, key in _OF_SESSION.items() if key in options}
        read_at = int(options[READ_AT]) if READ_AT in options else None
        return replace(_write_options(values), read_at=read_at)

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
        application_id = values.pop("applicationId", None)
        return replace(WriteOptions.parse(values), application_id=application_id)


def _read_options(values: Mapping[str, str]) -> ReadOptions:
    _check_window(values)
    return ReadOptions(**_parsed(values, _READ_PARSERS))


def _write_options(values: Mapping[str, str]) -> WriteOptions:
    if ("applicationId" in values) != ("applicationVersion" in values):
        raise OptionError(
            "options 'applicationId' and 'applicationVersion' need each other, and so do the"
            " settings spark.kudulite.applicationId and spark.kudulite.applicationVersion"
        )
    if "operationColumn" in values and "operation" in values:
        raise OptionError(
            f"option 'operation' ({values['operation']!r}) and option 'operationColumn'"
            f" ({values['operationColumn']!r}) exclude each other: the column names each row's"
            " operation"
        )
    return WriteOptions(**_parsed(values, _WRITE_PARSERS))


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
        elif lowered.startswith(FRONT_PREFIX) or storage_name(lowered) is not None:
            values[lowered] = value
        elif lowered not in _SPARK_NAMES and not lowered.startswith("option."):
            unknown.append(key)
    if unknown:
        names = ", ".join(repr(name) for name in sorted(unknown))
        noun = "option" if len(unknown) == 1 else "options"
        advice = "".join(f"; {_advice(name)}" for name in sorted(unknown) if _advice(name))
        known = ", ".join(KNOWN_NAMES)
        if is_address(values.get("path", "")):
            known += ", and the storage options of the address, as in 'aws_region'"
        raise OptionError(f"unknown {noun} {names}{advice}; known: {known}")
    return values


def _advice(unknown: str) -> str:
    """Return the option to write for another store's word or spelling; empty if there is none."""
    word = re.sub("[-_.]", "", unknown.lower())
    own = _CANONICAL.get(word)
    return f"write {own!r}" if own is not None else _OTHER_WORDS.get(word, "")


def _single_path(text: str) -> str:
    paths = json.loads(text)
    if len(paths) != 1:
        raise OptionError(f"a kudulite table is one path, {len(paths)} given: {text}")
    return str(paths[0])


def _parsed(values: Mapping[str, str], parsers: Mapping[str, Parser]) -> dict[str, Any]:
    """Return the path and the options given that have one of `parsers`, by the field's name."""
    given = {name: parse(name, values[name]) for name, parse in parsers.items() if name in values}
    fields = {re.sub("([A-Z])", r"_\1", name).lower(): value for name, value in given.items()}
    path = _parse_path(values)
    return {
        "path": path,
        "storage_options": storage_options(path, values, front_settings(values)),
        **fields,
    }


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


def local_path(text: str) -> str:
    """Return the path of a table as typed, without `file:`, or the address of an object store.

    OptionError for a text that is neither.
    """
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):(/?)", text)
    if not match or is_address(text):
        return text
    if match.group(1).lower() != "file":
        raise OptionError(
            f"path {text!r}: kudulite tables live in a directory that every Spark process mounts;"
            " give a plain path or file:/…"
        )
    return unquote(urlparse(text).path)


def is_address(path: str) -> bool:
    """Whether a path is the URL of something else than a directory."""
    return re.match("(?!file:)[a-z][a-z0-9+.-]+:/", path, re.IGNORECASE) is not None


def absolute_path(path: str | os.PathLike[str], base: str | None = None) -> str:
    """Return the absolute form of a path or file: URL, seen from `base` (default: this process)."""
    local = local_path(os.fspath(path))
    if is_address(local):
        return local.rstrip("/")
    given = os.path.expanduser(local)
    return os.path.abspath(os.path.join(base or os.getcwd(), given))


def session_storage_options(spark: SparkSession, path: str) -> dict[str, str]:
    """Return the storage options that a session's settings have for a path, none for a directory.

    Raises OptionError."""
    if not is_address(path):
        return {}
    prefixes = (SESSION_PREFIX, HADOOP_PREFIX)
    settings = spark.conf.getAll
    found = storage_options(
        path, {}, {name: settings[name] for name in settings if name.lower().startswith(prefixes)}
    )
    return with_hidden_key(path, found, os.environ) if is_remote() else found


def session_source_options(spark: SparkSession, path: str) -> dict[str, str]:
    """Return the same as options of a read or write of the path. Raises OptionError.

    Without keys for a server of Spark Connect: it has the settings, and logs all options.
    """
    found = session_storage_options(spark, path)
    return source_options(without_keys(found) if is_remote() else found)


def table_in_session(spark: SparkSession, path: str) -> Table:
    """Open the table at an absolute path, with the settings of a session."""
    return kudulite.open_table(path, storage_options=session_storage_options(spark, path))


def find_table(path: str, storage_options: Mapping[str, str] | None = None) -> Table | None:
    """Open the table at `path`; None if there is nothing or an empty folder, so one can be made.

    Raises UsageError if the path is occupied by something else."""
    try:
        return kudulite.open_table(path, storage_options=storage_options)
    except TableNotFoundError as error:
        if is_address(path):
            return None
        place = Path(path)
        if place.is_dir() and not any(place.iterdir()):
            return None
        if place.exists() or place.is_symlink():
            raise UsageError(f"{path}: no table is made here: {error}") from error
        return None


@dataclass(frozen=True)
class Place:
    """A table or a directory of tables: an absolute path, and the options that it came with."""

    path: str
    options: Mapping[str, str] = field(repr=False)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return os.path.basename(self.path)

    @property
    def parent(self) -> Place:
        """The directory that it is in."""
        return self.of(os.path.dirname(self.path))

    def of(self, path: str) -> Place:
        """Return another place, for the same options."""
        return Place(absolute_path(path), self.options)

    def table(self) -> Table:
        """Open the table. Raises TableNotFoundError."""
        return kudulite.open_table(self.path, storage_options=self._storage_options())

    def client(self, *, create: bool = True) -> Client:
        """Open the directory of tables, as `connect` does. Raises TableNotFoundError."""
        return kudulite.connect(
            self.path,
            background_maintenance=False,
            storage_options=self._storage_options(),
            create=create,
        )

    def _storage_options(self) -> dict[str, str]:
        return storage_options(self.path, self.options, front_settings(self.options))


def catalog_of(path: str, storage_options: Mapping[str, str] | None = None) -> tuple[Client, str]:
    """Return a client of the directory that holds the table at `path`, and the table's name."""
    root, name = os.path.split(path)
    if not name:
        raise UsageError(f"path {path!r} is the root directory; a table needs one of its own")
    if is_address(path) and not is_address(root):
        raise UsageError(f"path {path!r} is a bucket; a table needs a name in it")
    # Background work would be lost when Spark ends its process; `maintain` replaces it.
    client = kudulite.connect(root, background_maintenance=False, storage_options=storage_options)
    return client, name
