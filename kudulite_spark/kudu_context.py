"""`KuduContext`: kudu-spark's helper, over a directory of tables instead of a cluster.

    kudu-spark                                        here
    new KuduContext(master, sc)                       KuduContext(spark, root)
    upsertRows(df, "t", new KuduWriteOptions(…))      upsertRows(df, "t", KuduWriteOptions(…))

Names and arguments are kudu-spark's, in its spelling. Each write is one `df.write` and one commit,
so it is all or nothing. In kudu-spark the rows of a failed job stay.

These are left out: accumulators (each read sees every acknowledged write, so no timestamp has to be
passed on), `asyncClient`, and credentials, because there are no servers.

**Source**: Kudu's kudu-spark, KuduContext.scala; kudu-client, CreateTableOptions.java.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike

from pyspark import RDD
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from kudulite import Client, Key, Partitioning, RangePartition, Schema, Table
from kudulite.errors import OptionError
from kudulite_spark.admin import repartition_for
from kudulite_spark.kudu_options import PREFIX, table_path
from kudulite_spark.options import (
    absolute_path,
    catalog_of,
    session_source_options,
    session_storage_options,
    table_in_session,
)
from kudulite_spark.session import activate, start_directory
from kudulite_spark.types import table_schema

logger = logging.getLogger("kudulite.spark")

_RETENTION = "kudu.table.history_max_age_sec"


@dataclass(frozen=True)
class KuduReadOptions:
    """How `kuduRDD` reads; options for servers are checked and have no effect."""

    batchSize: int | None = None
    scanLocality: str | None = None
    faultTolerantScanner: bool = False
    keepAlivePeriodMs: int | None = None
    scanRequestTimeoutMs: int | None = None
    socketReadTimeoutMs: int | None = None
    splitSizeBytes: int | None = None
    snapshotTimestampMs: int | None = None


@dataclass(frozen=True)
class KuduWriteOptions:
    """How rows are written; `repartitionSort` has no effect, rows are always sorted by key."""

    ignoreDuplicateRowErrors: bool = False
    ignoreNull: bool = False
    repartition: bool = False
    repartitionSort: bool = True
    handleSchemaDrift: bool = False


# Options of the source whose names differ from the fields'.
_SOURCE_NAMES = {"faultTolerantScanner": "faultTolerantScan", "repartitionSort": "repartition.sort"}


class CreateTableOptions:
    """The partitions, retention, owner and comment of a new table.

    Every method returns the options and has a second name in Python's spelling. A bound is a
    value, a tuple, or a dict by column; None is unbounded.
    """

    def __init__(self) -> None:
        self._partitioning = Partitioning()
        self._retention_seconds: int | None = None
        self._owner: str | None = None
        self._comment: str | None = None

    def addHashPartitions(
        self, columns: str | Sequence[str], buckets: int, seed: int = 0
    ) -> CreateTableOptions:
        """Add a hash dimension over key columns, with at least two buckets."""
        self._partitioning.add_hash_partitions(columns, buckets, seed)
        return self

    def setRangePartitionColumns(self, columns: str | Sequence[str]) -> CreateTableOptions:
        """Set the key columns that range partitions are over."""
        self._partitioning.set_range_partition_columns(columns)
        return self

    def addRangePartition(
        self,
        lower: Key | RangePartition | None = None,
        upper: Key | None = None,
        lowerBoundType: str = "inclusive",
        upperBoundType: str = "exclusive",
    ) -> CreateTableOptions:
        """Add a range from `lower` to `upper`, or a `RangePartition` with its own hash partitions.

        kudu-client calls the latter RangePartitionWithCustomHashSchema.
        """
        if isinstance(lower, RangePartition):
            self._partitioning.add_custom_range_partition(lower)
            return self
        kinds = [kind.lower().removesuffix("_bound") for kind in (lowerBoundType, upperBoundType)]
        self._partitioning.add_range_partition(lower, upper, *kinds)
        return self

    def addSplitRow(self, row: Key) -> CreateTableOptions:
        """Cut the range that `row` lies in at it."""
        self._partitioning.add_range_partition_split(row)
        return self

    def setNumReplicas(self, numReplicas: int) -> CreateTableOptions:
        """Accept a number of replicas; it has no effect, the file system keeps the files."""
        if isinstance(numReplicas, bool) or not isinstance(numReplicas, int) or numReplicas < 1:
            raise OptionError(f"setNumReplicas: a positive number is needed, found {numReplicas!r}")
        if numReplicas > 1:
            logger.info("%d replicas are asked for; the file system keeps the files", numReplicas)
        return self

    def setOwner(self, owner: str) -> CreateTableOptions:
        """Name the table's owner, in at most 128 bytes; nothing is enforced by it."""
        self._owner = owner
        return self

    def setComment(self, comment: str) -> CreateTableOptions:
        """Set the table's comment, at most 256 bytes."""
        self._comment = comment
        return self

    def setExtraConfigs(self, extraConfigs: Mapping[str, str]) -> CreateTableOptions:
        """Set `kudu.table.history_max_age_sec`, the retention. OptionError for anything else."""
        unknown = sorted(set(extraConfigs) - {_RETENTION})
        if unknown:
            raise OptionError(f"setExtraConfigs: {unknown[0]!r} is unknown; known: {_RETENTION}")
        if _RETENTION in extraConfigs:
            text = str(extraConfigs[_RETENTION]).strip()
            if not text.isdigit():
                raise OptionError(f"setExtraConfigs: {_RETENTION} is in seconds, found {text!r}")
            self._retention_seconds = int(text)
        return self

    add_hash_partitions = addHashPartitions
    set_range_partition_columns = setRangePartitionColumns
    add_range_partition = addRangePartition
    add_split_row = addSplitRow
    set_num_replicas = setNumReplicas
    set_owner = setOwner
    set_comment = setComment
    set_extra_configs = setExtraConfigs

    def make(self, client: Client, name: str, schema: Schema) -> Table:
        """Make the table."""
        table = client.create_table(
            name, schema, self._partitioning, owner=self._owner, comment=self._comment
        )
        if self._retention_seconds is None:
            return table
        alterer = client.new_table_alterer(table)
        return alterer.set_history_retention(self._retention_seconds).alter()


class KuduContext:
    """Makes, reads and writes the tables in the directory `root`, by their names."""

    def __init__(self, spark: SparkSession, root: str | PathLike[str]) -> None:
        """`root` holds a folder for each table; the first table creates it."""
        self.spark = spark
        self.root = absolute_path(root, start_directory(spark))

    @property
    def syncClient(self) -> Client:
        """The client of the directory, for everything that needs no Spark."""
        storage_options = session_storage_options(self.spark, self.root)
        return catalog_of(table_path(self.root, "any"), storage_options)[0]

    def tableExists(self, tableName: str) -> bool:
        """Whether there is a table of that name."""
        return self.syncClient.table_exists(tableName)

    def deleteTable(self, tableName: str) -> None:
        """Delete a table with all its history. Raises TableNotFoundError."""
        self.syncClient.delete_table(tableName)

    def createSchema(self, schema: StructType | str, keys: str | Sequence[str]) -> Schema:
        """Return a table's schema for rows of a Spark schema: key columns first and NOT NULL."""
        struct = StructType.fromDDL(schema) if isinstance(schema, str) else schema
        assert isinstance(struct, StructType)
        return table_schema(struct, keys, self.root)

    def createTable(
        self,
        tableName: str,
        schema: StructType | str | Schema,
        keys: str | Sequence[str] | CreateTableOptions | None = None,
        options: CreateTableOptions | None = None,
    ) -> Table:
        """Make an empty table. A Spark schema (or its DDL text) needs `keys`, the primary key.

        A kudulite schema has its own key; as in kudu-spark, `options` are the third argument then.
        Raises TableExistsError, SchemaError, OptionError."""
        if isinstance(keys, CreateTableOptions):
            keys, options = None, keys
        if not isinstance(schema, Schema):
            if keys is None:
                raise OptionError(f"table {tableName!r}: a Spark schema needs keys=[…]")
            schema = self.createSchema(schema, keys)
        elif keys is not None:
            raise OptionError(f"table {tableName!r}: this schema has its primary key already")
        return (options or CreateTableOptions()).make(self.syncClient, tableName, schema)

    # -- reading

    def kuduRDD(
        self,
        tableName: str,
        columnProjection: Sequence[str] = (),
        options: KuduReadOptions | None = None,
    ) -> RDD[Row]:
        """Return the rows of a table as of now, in the columns `columnProjection`, as an RDD.

        As in kudu-spark, no column and `*` mean all. Classic Spark only: Connect has no RDDs.
        """
        activate(self.spark)
        reader = self.spark.read.format("kudulite").options(**self._source_options(options))
        frame = reader.load(self._path(tableName))
        columns = list(columnProjection)
        if columns and columns != ["*"]:
            frame = frame.select(*[f"`{name}`" for name in columns])
        return frame.rdd

    # -- writing

    def insertRows(
        self, data: DataFrame, tableName: str, writeOptions: KuduWriteOptions | None = None
    ) -> None:
        """Insert rows; a key that is present fails the job, which leaves the table unchanged."""
        self._write("insert", data, tableName, writeOptions)

    def insertIgnoreRows(
        self, data: DataFrame, tableName: str, writeOptions: KuduWriteOptions | None = None
    ) -> None:
        """Insert rows; rows with a key that is present are ignored."""
        self._write("insert_ignore", data, tableName, writeOptions)

    def upsertRows(
        self, data: DataFrame, tableName: str, writeOptions: KuduWriteOptions | None = None
    ) -> None:
        """Insert rows, or update the rows whose key is present."""
        self._write("upsert", data, tableName, writeOptions)

    def upsertIgnoreRows(
        self, data: DataFrame, tableName: str, writeOptions: KuduWriteOptions | None = None
    ) -> None:
        """Do as `upsertRows`."""
        self._write("upsert_ignore", data, tableName, writeOptions)

    def updateRows(
        self, data: DataFrame, tableName: str, writeOptions: KuduWriteOptions | None = None
    ) -> None:
        """Update rows; a key that is absent fails the job."""
        self._write("update", data, tableName, writeOptions)

    def updateIgnoreRows(
        self, data: DataFrame, tableName: str, writeOptions: KuduWriteOptions | None = None
    ) -> None:
        """Update rows; rows with a key that is absent are ignored."""
        self._write("update_ignore", data, tableName, writeOptions)

    def deleteRows(
        self, data: DataFrame, tableName: str, writeOptions: KuduWriteOptions | None = None
    ) -> None:
        """Delete by key columns; a key that is absent fails the job."""
        self._write("delete", data, tableName, writeOptions)

    def deleteIgnoreRows(
        self, data: DataFrame, tableName: str, writeOptions: KuduWriteOptions | None = None
    ) -> None:
        """Delete by key columns; a key that is absent is ignored."""
        self._write("delete_ignore", data, tableName, writeOptions)

    def _path(self, name: str) -> str:
        """Return the path of an existing table. Raises TableNotFoundError."""
        return str(table_in_session(self.spark, table_path(self.root, name)).path)

    def _source_options(self, options: KuduReadOptions | KuduWriteOptions | None) -> dict[str, str]:
        return _source_options(options) | session_source_options(self.spark, self.root)

    def _write(
        self, operation: str, data: DataFrame, name: str, options: KuduWriteOptions | None
    ) -> None:
        path = self._path(name)
        activate(data.sparkSession)
        if options is not None and options.repartition:
            data = repartition_for(data, path)
        writer = data.write.format("kudulite").mode("append")
        writer = writer.options(**self._source_options(options))
        writer.option("operation", operation).save(path)


def _source_options(options: KuduReadOptions | KuduWriteOptions | None) -> dict[str, str]:
    """Return the options that are set, under the source's names."""
    values = {} if options is None else vars(options)
    return {
        PREFIX + _SOURCE_NAMES.get(name, name): str(value).lower()
        for name, value in values.items()
        if value is not None
    }
