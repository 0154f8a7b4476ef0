"""Tables about a table in Spark SQL: `kudulite.db.t.versions` and the like, and its changes.

    versions   the newest versions, as `Table.versions`        tags      `Table.tags`
    tablets    each tablet, its place and its figures          rowsets   each with its figures
    changes    the changes of a window, as a DataFrame has them; see `types`

A name of these after the name of a table is such a table, unless there is a directory of that name.
They are computed when they are read, and show the newest version. Only the catalog of Spark SQL has
them (`java/Catalog.java`), because they have names and no options of their own.

The window of changes is that of a read of changes: the options startTimestamp, exclusive, and
endTimestamp, inclusive. Spark's clause CHANGES, which some versions lack, reads the same table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import kudulite
from kudulite.errors import TableNotFoundError
from kudulite_spark.options import Place
from kudulite_spark.reader import fitted_batches
from kudulite_spark.types import arrow_schema, change_schema

if TYPE_CHECKING:
    from kudulite import Schema, Table

CHANGES = "changes"

_KINDS: dict[str, DataType] = {
    "BIGINT": LongType(),
    "BOOLEAN": BooleanType(),
    "DOUBLE": DoubleType(),
    "STRING": StringType(),
    "TIMESTAMP": TimestampType(),
}

Rows = list[dict[str, Any]]


def _versions(table: Table) -> Rows:
    return [
        {
            **{name: getattr(found, name) for name in _VERSION_FIELDS},
            "hybrid_time": int(found.timestamp),
            "timestamp": found.timestamp.to_datetime(),
        }
        for found in table.versions()
    ]


_VERSION_FIELDS = (
    "version",
    "operation",
    "inserted",
    "updated",
    "deleted",
    "ignored",
    "writer",
    "message",
)


def _tags(table: Table) -> Rows:
    return [
        {"name": name, "hybrid_time": int(at), "timestamp": at.to_datetime()}
        for name, at in table.tags.items()
    ]


def _tablets(table: Table) -> Rows:
    partition = table.partition_schema
    places = dict(zip(table.tablet_ids, partition.tablets(), strict=True))
    return [
        {
            "tablet_id": tablet.tablet_id,
            "partition": partition.describe(places[tablet.tablet_id]),
            "live_row_count": tablet.live_row_count,
            "unflushed_row_count": tablet.memory_row_count,
            "rowset_count": sum(not bar.is_ended for bar in tablet.rowsets),
            "rowset_height": tablet.height,
            "bytes_on_disk": sum(bar.byte_count for bar in tablet.rowsets),
        }
        for tablet in table.plot_layout().tablets
    ]


def _rowsets(table: Table) -> Rows:
    return [
        {
            "tablet_id": tablet.tablet_id,
            "rowset_id": bar.id,
            "key_min": bar.key_min,
            "key_max": bar.key_max,
            "row_count": bar.row_count,
            "live_row_count": bar.live_row_count,
            "bytes_on_disk": bar.byte_count,
            "redo_file_count": bar.redo_file_count,
            "undo_file_count": bar.undo_file_count,
            "is_only_for_the_past": bar.is_ended,
        }
        for tablet in table.plot_layout().tablets
        for bar in tablet.rowsets
    ]


_TABLES: dict[str, tuple[str, Callable[[Table], Rows]]] = {
    "versions": (
        "version BIGINT, timestamp TIMESTAMP NOT NULL, operation STRING, inserted BIGINT,"
        " updated BIGINT, deleted BIGINT, ignored BIGINT, writer STRING, message STRING,"
        " hybrid_time BIGINT NOT NULL",
        _versions,
    ),
    "tags": (
        "name STRING NOT NULL, timestamp TIMESTAMP NOT NULL, hybrid_time BIGINT NOT NULL",
        _tags,
    ),
    "tablets": (
        "tablet_id STRING NOT NULL, partition STRING, live_row_count BIGINT,"
        " unflushed_row_count BIGINT, rowset_count BIGINT, rowset_height DOUBLE,"
        " bytes_on_disk BIGINT",
        _tablets,
    ),
    "rowsets": (
        "tablet_id STRING NOT NULL, rowset_id STRING NOT NULL, key_min STRING, key_max STRING,"
        " row_count BIGINT, live_row_count BIGINT, bytes_on_disk BIGINT, redo_file_count BIGINT,"
        " undo_file_count BIGINT, is_only_for_the_past BOOLEAN",
        _rowsets,
    ),
}


def metadata_name(place: Place) -> str | None:
    """Return the name of the metadata table that a path ends with; None for any other path."""
    if place.name not in (*_TABLES, CHANGES) or os.path.isdir(place.path):
        return None
    try:
        place.parent.table()
    except TableNotFoundError:
        return None
    return place.name


def metadata_schema(name: str, schema: Schema) -> StructType:
    """Return the columns of a metadata table, of a table of this schema."""
    if name == CHANGES:
        return change_schema(schema)
    # PySpark's own parser of this text needs a running session.
    fields = []
    for part in _TABLES[name][0].split(", "):
        column, kind, *not_null = part.split(" ", 2)
        fields.append(StructField(column, _KINDS[kind], not not_null))
    return StructType(fields)


class MetadataReader(DataSourceReader):
    """Reads a metadata table, in one task."""

    def __init__(
        self, path: str, name: str, asked: StructType, storage_options: Mapping[str, str]
    ) -> None:
        self._path = path
        self._storage_options = storage_options
        self._name = name
        self._asked = arrow_schema(asked)

    def partitions(self) -> list[InputPartition]:
        """Return the one partition."""
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        table = kudulite.open_table(self._path, storage_options=self._storage_options)
        schema = arrow_schema(metadata_schema(self._name, table.schema))
        rows = _TABLES[self._name][1](table)
        batch = pa.RecordBatch.from_pylist(rows, schema=schema)
        yield from fitted_batches(iter([batch]), self._asked)
