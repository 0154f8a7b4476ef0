"""Differences between versions of Spark are hidden from the rest of the connector."""

from types import SimpleNamespace
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as sf
from pyspark.sql.datasource import DataSource

from kudulite_spark import spark_versions
from tests.support.spark.spark_tables import rows


def third_of(keys: pa.Array) -> pa.Array:
    """The number of a key."""
    return pc.cast(pc.divide(keys, 20), pa.int32())


@pytest.mark.parametrize(
    "repartition", [spark_versions.repartition_by, spark_versions._repartition_by_hash]
)
def test_rows_of_one_number_are_in_one_partition(spark, repartition):
    """By the functions on Arrow arrays, and as PySpark 4.0 does it; the rows stay as they are."""
    columns = "id AS k", "CAST(id AS STRING) AS `a b`", "IF(id % 2 = 0, NULL, array(id)) AS list"
    frame = spark.range(0, 60, 1, 5).selectExpr(*columns)
    found = repartition(frame, 7, third_of, [frame["k"]])
    assert found.rdd.getNumPartitions() == 7
    assert (found.schema, rows(found)) == (frame.schema, rows(frame))
    places = found.select((sf.col("k") / 20).cast("int"), sf.spark_partition_id()).distinct()
    assert [number for number, _ in rows(places)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("version", "condition", "is_refused"),
    [
        ("4.0.1", "DATA_SOURCE_ALREADY_EXISTS", False),
        ("4.0.1", "ANOTHER", True),
        ("4.1.0", "DATA_SOURCE_ALREADY_EXISTS", True),
    ],
)
def test_a_source_that_the_workers_have_found_is_registered(version, condition, is_refused):
    """Spark 4.0 refuses to register it again; any other error is raised."""
    error = AnalysisException("refused")
    register = mock.Mock(side_effect=error)
    spark = SimpleNamespace(version=version, dataSource=SimpleNamespace(register=register))
    with mock.patch.object(AnalysisException, "getCondition", lambda self: condition):
        if is_refused:
            with pytest.raises(AnalysisException):
                spark_versions.register_source(spark, DataSource)
        else:
            spark_versions.register_source(spark, DataSource)
    register.assert_called_once_with(DataSource)
