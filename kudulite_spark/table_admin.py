"""Tables made from Spark without writing a row: `create_table`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from kudulite import Schema, Table
from kudulite_spark.session import start_directory
from kudulite_spark.table_path import absolute_path, catalog_of
from kudulite_spark.types import table_schema


def create_table(
    spark: SparkSession,
    path: str | PathLike[str],
    schema: StructType | str | pa.Schema | Schema,
    primary_key: str | Sequence[str] | None = None,
    hash_partitions: Sequence[tuple[Sequence[str], int]] | None = None,
    range_partitions: Mapping[str, Any] | None = None,
) -> Table:
    """Make an empty table in the directory `path` and return it.

    `schema` is a Spark schema or its DDL text (`"id BIGINT, name VARCHAR(20)"`), or one of Arrow or
    kudulite; only the last names its primary key itself. A relative path starts where a load() of
    the same path would look. TableExistsError if there is a table already."""
    place = absolute_path(path, start_directory(spark))
    client, name = catalog_of(place)
    if isinstance(schema, str):
        schema = StructType.fromDDL(schema)
    if isinstance(schema, StructType):
        schema, primary_key = table_schema(schema, primary_key or (), place), None
    return client.create_table(
        name,
        schema,
        primary_key=primary_key,
        hash_partitions=hash_partitions,
        range_partitions=range_partitions,
    )
