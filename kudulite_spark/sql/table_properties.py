"""The properties of a table in Spark SQL, and its partitions as SHOW PARTITIONS lists them.

    SHOW TBLPROPERTIES    primaryKey, hashPartitions, rangePartitions, historyRetention, comment
    CREATE TABLE          any of these
    SET, UNSET            historyRetention, comment; the others are made with the table
    SHOW PARTITIONS       a row for each tablet: its range, and its bucket of each hash dimension

A duration is a number and a unit, "30 days". Spark's `interval 30 days`, the short units of the
command line (30d) and a number of seconds are accepted as well. UNSET of a property that a table
does not have changes nothing, as in Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from kudulite.errors import NotSupportedError, OptionError

if TYPE_CHECKING:
    from kudulite import Table, TableAlterer

LOCATION, COMMENT, RETENTION = "location", "comment", "historyRetention"
_OWNER = "owner"
_KEY, _HASHED, _RANGES = "primaryKey", "hashPartitions", "rangePartitions"
# They are given for a new table; the first three are options of a write as well.
TABLE_PROPERTIES = (_KEY, _HASHED, _RANGES, RETENTION, COMMENT)
# Spark adds these by itself.
SPARK_PROPERTIES = (_OWNER, "provider", "external", "is_managed_location")

HISTORY_SECONDS_DEFAULT = 7 * 24 * 3600
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 24 * 3600, "week": 7 * 24 * 3600}
_UNIT = r"(seconds?|minutes?|hours?|days?|weeks?|[smhdw])?"
_DURATION = re.compile(rf"(?:interval\s+)?'?(\d+)'?\s*{_UNIT}", re.IGNORECASE)

# Words of Delta, Iceberg and Kudu for the retention.
_OTHER_WORDS = (
    "delta.deletedfileretentionduration",
    "delta.logretentionduration",
    "history.expire.max-snapshot-age-ms",
    "kudu.table.history_max_age_sec",
)


def shown_properties(table: Table) -> dict[str, str]:
    """Return what DESCRIBE TABLE EXTENDED and SHOW TBLPROPERTIES show."""
    partition = table.partition_schema
    found = {
        "provider": "kudulite",
        LOCATION: str(table.path),
        _OWNER: table.owner,
        COMMENT: table.comment,
        _KEY: ", ".join(table.schema.key_names),
        _HASHED: "; ".join(
            f"{', '.join(part.columns)}:{part.bucket_count}" for part in partition.hash_dimensions
        ),
        _RANGES: _range_option(partition) if partition.range_columns else "",
        RETENTION: _duration_text(table.history_retention),
        # So SHOW CREATE TABLE leaves out LOCATION, which CREATE TABLE refuses.
        "is_managed_location": "true",
    }
    return {name: value for name, value in found.items() if value}


def _range_option(partition: Any) -> str:
    """Return the ranges as the option rangePartitions has them."""
    bounds = []
    for bound in partition.ranges:
        own = [[list(d.columns), d.bucket_count] for d in bound.hash_dimensions or ()]
        bounds.append([bound.lower, bound.upper, *([own] if own else [])])
    return json.dumps({"columns": partition.range_columns, "bounds": bounds}, default=str)


def check_names(subject: str, names: Iterable[str]) -> None:
    """Raise OptionError for a property that no new table has; `subject` begins its text.

    Options of CREATE TABLE are properties as well, and checked with the options of a write."""
    known = (*TABLE_PROPERTIES, *SPARK_PROPERTIES)
    if unknown := sorted(n for n in names if n not in known and not n.startswith("option.")):
        raise OptionError(
            f"{subject}: unknown table property {', '.join(map(repr, unknown))}{_advice(unknown)};"
            f" known: {', '.join(sorted(TABLE_PROPERTIES))}"
        )


def _advice(unknown: list[str]) -> str:
    return f", write {RETENTION!r}" if unknown[0].lower() in _OTHER_WORDS else ""


def set_property(alterer: TableAlterer, step: Mapping[str, Any]) -> None:
    """Add a step of SET TBLPROPERTIES, or of UNSET if `step` has no value, to an alteration."""
    name, value = step["property"], step.get("value")
    if name == COMMENT:
        alterer.set_comment(value or "")
    elif name == RETENTION:
        seconds = HISTORY_SECONDS_DEFAULT if value is None else duration(value, RETENTION)
        alterer.set_history_retention(seconds)
    else:
        how = "; the procedures add_range_partition and drop_range_partition change ranges"
        raise NotSupportedError(
            f"property {name!r} cannot be changed{_advice([name])}: of a table that exists, only"
            f" {COMMENT!r} and {RETENTION!r} can{how if name == _RANGES else ''}"
        )


def changes_nothing(step: Mapping[str, Any]) -> bool:
    """Whether a step of an alteration is UNSET of a property that no table has."""
    return step["step"] == "RemoveProperty" and step["property"] not in TABLE_PROPERTIES


def duration(text: str, name: str) -> int:
    """Return the seconds in the text of a duration. Raises OptionError, which names the property.

    The largest is checked where it is used."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise OptionError(
            f"property {name!r} is {text!r}, expected a number and a unit, as in '30 days', or"
            " seconds"
        )
    unit = (found[2] or "second").lower()
    return int(found[1]) * next(n for name, n in _SECONDS.items() if name.startswith(unit[:1]))


def _duration_text(seconds: int) -> str:
    """Return a number of seconds in the largest unit that divides it."""
    unit, size = max(
        (pair for pair in _SECONDS.items() if seconds % pair[1] == 0 and pair[0] != "week"),
        key=lambda pair: pair[1] if seconds else -pair[1],
    )
    count = seconds // size
    return f"{count} {unit}{'' if count == 1 else 's'}"


# -- Partitions


def partition_names(table: Table) -> list[str]:
    """Return the columns of SHOW PARTITIONS; none for a table of one tablet.

    Ranges with hash partitions of their own share a column for their buckets."""
    partition = table.partition_schema
    if any(bound.hash_dimensions is not None for bound in partition.ranges):
        buckets = ["bucket"]
    else:
        buckets = [_bucket_text(dimension) for dimension in partition.hash_dimensions]
    return [", ".join(partition.range_columns), *buckets] if partition.range_columns else buckets


def partition_values(table: Table) -> list[str]:
    """Return the values of all rows of SHOW PARTITIONS, one row after the other."""
    partition, names = table.partition_schema, partition_names(table)
    found = []
    for place in partition.tablets():
        dimensions = partition.hash_dimensions_of(place.range_index)
        buckets = [str(bucket) for bucket in place.buckets]
        if names and names[-1] == "bucket":
            pairs = zip(buckets, dimensions, strict=True)
            buckets = [" and ".join(f"{b} of {_bucket_text(d)}" for b, d in pairs) or "none"]
        if partition.range_columns:
            buckets.insert(0, _range_text(partition.ranges[place.range_index]))
        found += buckets
    return found


def _bucket_text(dimension: Any) -> str:
    """Return a hash dimension as PARTITIONED BY has it."""
    return f"bucket({dimension.bucket_count}, {', '.join(dimension.columns)})"


def _range_text(bounds: Any) -> str:
    """Return a range in words: Spark would escape brackets and signs of equality."""
    lower, upper = _bound_text(bounds.lower), _bound_text(bounds.upper)
    if lower and upper:
        return f"{lower} to {upper}"
    return f"from {lower}" if lower else f"before {upper}" if upper else "all"


def _bound_text(bound: tuple[Any, ...] | None) -> str:
    return ", ".join(_value_text(value) for value in bound) if bound else ""


def _value_text(value: Any) -> str:
    """Return a value of a bound; of a moment at midnight in UTC, or without a zone, the day."""
    if isinstance(value, datetime):
        return value.isoformat(sep=" ").removesuffix("+00:00").removesuffix(" 00:00:00")
    return str(value)
