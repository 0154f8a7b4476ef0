"""Sending each tablet's rows to one task before a write: `repartition_for`.

A Python source cannot ask Spark for a distribution of the rows it is given. Without one, every task
stages a little for every tablet, and a write of m tasks leaves up to m rowsets per tablet, which
overlap in key. Routed rows leave one rowset per tablet, for the price of a shuffle. The content of
the table is the same either way, and compaction brings the rowsets together later.
"""

from collections.abc import Callable, Sequence
from os import PathLike

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import IntegerType

from kudulite.errors import SchemaError
from kudulite_spark.column_names import find_name
from kudulite_spark.session import start_directory
from kudulite_spark.table_path import absolute_path, open_table
from kudulite_spark.types import spark_type


def repartition_for(
    df: DataFrame, path: str | PathLike[str], task_count: int | None = None
) -> DataFrame:
    """Return the same rows, those of one tablet of the table at `path` in one partition.

    There are as many partitions as tablets by default; with fewer, each holds whole tablets.
    Rows that no tablet takes (a NULL in the key, a key outside every range) go anywhere, for the
    write to name them. Raises SchemaError where a key column is missing."""
    table = open_table(absolute_path(path, start_directory(df.sparkSession)))
    schema = table.schema
    where = f"table {str(table.path)!r}: the DataFrame"
    own_names = {find_name(name, schema.names, where): name for name in df.columns}
    missing = [name for name in schema.key_names if name not in own_names]
    if missing:
        raise SchemaError(
            f"table {str(table.path)!r}: the DataFrame lacks key column {missing[0]!r}; the primary"
            f" key is ({', '.join(schema.key_names)})"
        )
    keys = [
        df[own_names[name]].try_cast(spark_type(column.type))
        for name, column in zip(schema.key_names, schema.key_columns, strict=True)
    ]
    number = _tablet_number(str(table.path), schema.key_names)(*keys)
    return df.repartitionById(task_count or table.tablet_count, number)


def _tablet_number(path: str, names: Sequence[str]) -> Callable[..., Column]:
    """Return a column function: key columns to the number of the row's tablet, 0 where none is."""

    def tablet_number(*keys: pa.Array) -> pa.Array:
        is_whole = np.logical_and.reduce([key.is_valid().to_numpy(False) for key in keys])
        rows = pa.table(list(keys), names=list(names)).filter(pa.array(is_whole))
        number = np.zeros(len(is_whole), dtype=np.int32)
        number[is_whole] = open_table(path).tablet_index(rows).to_numpy().clip(0)
        return pa.array(number)

    # PySpark reads the annotations, so this module must not turn them into text.
    return sf.arrow_udf(tablet_number, IntegerType())  # type: ignore[call-overload]
