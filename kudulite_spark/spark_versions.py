"""Differences between the versions of Spark that the connector supports, 4.0 to 4.3.

A class of PySpark that a version lacks has a stand-in here, so that all other modules are the same
for every version. Each version has what the older ones have, and

    4.1    Arrow writers of streams, functions on Arrow arrays, filters for a Python source, and the
           classes of Spark that the JVM extension calls
    4.2    limits of a stream's batches, and worker modules that the JVM extension can run in one
           process (java/Planner.java)
    4.3    one more encoding in Spark's Parquet reader (`native_read`)

docs/spark.md says what this means for users. Readers, writers and the session need this module,
so it imports only what PySpark's own module of data sources imports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter
from pyspark.sql.types import IntegerType, StructField, StructType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.streaming.datasource import ReadLimit

# The JVM extension calls internal classes of Spark, which are the same in these versions.
EXTENSION_VERSIONS = ("4.1", "4.2", "4.3")

# PySpark 4.0 loses the number of rows of a batch without columns, so that count() would be 0.
HAS_ROWS_WITHOUT_COLUMNS = pyspark.__version__ >= "4.1"

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # before PySpark 4.1

    class DataSourceStreamArrowWriter(  # type: ignore[no-redef, misc]
        DataSourceStreamWriter, DataSourceArrowWriter
    ):
        """PySpark 4.0 hands Arrow batches to every writer of the second class."""


try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

    HAS_READ_LIMITS = True
except ImportError:  # before PySpark 4.2
    HAS_READ_LIMITS = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Empty: this PySpark has no such interface."""


def register_source(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a data source of this package with a session, classic or Connect."""
    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        # Spark 4.0 keeps a source that its workers have found by themselves, which is the same one.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS" or spark.version >= "4.1":
            raise


def read_limit(row_count_max: int | None) -> ReadLimit:
    """Return the limit of a stream's batches, which PySpark asks for since 4.2."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

    return ReadAllAvailable() if row_count_max is None else ReadMaxRows(row_count_max)


def repartition_by(
    df: DataFrame, partition_count: int, function: Callable[..., pa.Array], keys: Sequence[Column]
) -> DataFrame:
    """Return the same rows, with all rows of one number in the same partition.

    `function` gets the Arrow arrays of `keys` and returns as many numbers, an array of int32 that
    are not negative. Number n belongs to partition n modulo the count; PySpark 4.0 hashes the
    numbers, so that a partition may have several of them, or none."""
    try:
        from pyspark.sql.pandas.functions import arrow_udf
    except ImportError:  # before PySpark 4.1
        return _repartition_by_hash(df, partition_count, function, keys)
    # PySpark warns about a function type where it can be inferred; its types ask for one.
    numbers: Callable[..., Column]
    numbers = arrow_udf(function, IntegerType())  # type: ignore[call-overload]
    return df.repartitionById(partition_count, numbers(*keys))


def _repartition_by_hash(
    df: DataFrame, partition_count: int, function: Callable[..., pa.Array], keys: Sequence[Column]
) -> DataFrame:
    """Number whole rows in Python, which takes longer than to number the keys alone."""
    fields, name = df.schema.fields, "__kudulite_number"
    column_count = len(fields)

    def numbered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows, given = batch.columns[:column_count], batch.columns[column_count:]
            names = [*batch.schema.names[:column_count], name]
            yield pa.record_batch([*rows, function(*given)], names)

    found = df.select("*", *(key.alias(f"{name}{place}") for place, key in enumerate(keys)))
    schema = StructType([*fields, StructField(name, IntegerType())])
    return found.mapInArrow(numbered, schema).repartition(partition_count, name).drop(name)


__all__ = [
    "EXTENSION_VERSIONS",
    "HAS_READ_LIMITS",
    "HAS_ROWS_WITHOUT_COLUMNS",
    "DataSourceStreamArrowWriter",
    "SupportsTriggerAvailableNow",
    "read_limit",
    "register_source",
    "repartition_by",
]
