"""An overwrite with Spark's dynamic mode never removes rows of other partitions."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import kudulite
from tests.spark.conftest import FRONT
from tests.spark.test_named_columns import catalog

pytestmark = FRONT

__all__ = ["catalog"]

SETTING = "spark.sql.sources.partitionOverwriteMode"
DYNAMIC = "is dynamic, and an overwrite that replaces only the partitions"
# Of a statement of SQL, whether the table has partitions or not.
OF_SPARK = "does not support dynamic overwrite"
RANGES = """'rangePartitions'='{"columns": ["id"], "bounds": [[null, 10], [10, null]]}'"""


def parted(spark: SparkSession, catalog: str, folder: Path) -> kudulite.Table:
    """Make a table p of two ranges with a row in each."""
    spark.sql(f"CREATE TABLE {catalog}.p (id BIGINT, PRIMARY KEY (id)) TBLPROPERTIES ({RANGES})")
    table = kudulite.open_table(folder / "p")
    table.insert([{"id": 1}, {"id": 11}])
    return table


def ids(table: kudulite.Table) -> list[int]:
    """All keys, in order."""
    return table.scan(ordered=True).to_arrow()["id"].to_pylist()


def test_an_overwrite_in_the_dynamic_mode_is_refused(spark, catalog, tmp_path):
    """By the setting and by the option, in SQL, by name and by path; static replaces all rows."""
    table, p, df = parted(spark, catalog, tmp_path), f"{catalog}.p", spark.range(2, 3)
    path = str(table.path)

    def by_path(**options):
        df.write.format("kudulite").mode("overwrite").options(**options).save(path)

    ways = {
        "path": by_path,
        "insertInto": lambda: df.write.insertInto(p, overwrite=True),
        "mode": lambda: df.write.mode("overwrite").insertInto(p),
        "sql": lambda: spark.sql(f"INSERT OVERWRITE {p} SELECT 2L"),
        "writeTo": lambda: df.writeTo(p).overwrite(sf.lit(True)),
    }
    with pytest.raises(PySparkException, match="option 'partitionOverwriteMode' " + DYNAMIC):
        by_path(partitionOverwriteMode="DYNAMIC")
    for front in ("true", "false"):
        spark.conf.set("spark.kudulite.front", front)
        spark.conf.set(SETTING, "dynamic")
        try:
            for write in ways.values():
                with pytest.raises(PySparkException, match=f"{SETTING} {DYNAMIC}|{OF_SPARK}"):
                    write()
            assert ids(table) == [1, 11]
            by_path(partitionOverwriteMode="static")
        finally:
            spark.conf.unset(SETTING)
        assert ids(table) == [2]
        table.upsert([{"id": 1}, {"id": 11}])
        table.delete([{"id": 2}])
    ways["insertInto"]()
    assert ids(table) == [2]


def test_a_table_without_partitions_and_a_replaced_table_are_overwritten(spark, catalog, tmp_path):
    """As in Spark: the mode is about partitions, and REPLACE about the table."""
    table = parted(spark, catalog, tmp_path)
    spark.conf.set(SETTING, "dynamic")
    try:
        df = spark.sql("SELECT 5L AS id, 5 AS a, 5 AS b, 'y' AS c")
        df.write.insertInto(f"{catalog}.t", overwrite=True)
        spark.sql(
            f"REPLACE TABLE {catalog}.p TBLPROPERTIES ('primaryKey'='id', {RANGES}) AS SELECT 3L id"
        )
    finally:
        spark.conf.unset(SETTING)
    assert (ids(kudulite.open_table(tmp_path / "t")), ids(kudulite.open_table(table.path))) == (
        [5],
        [3],
    )


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("INSERT OVERWRITE {p} PARTITION (id = 1) SELECT 2L", "PARTITION"),
        ("INSERT INTO {p} REPLACE WHERE id < 10 SELECT 2L", "overwrite by filter"),
        ("INSERT INTO {p} WITH (replaceWhere = 'id < 10') SELECT 2L", "Table.delete"),
    ],
)
def test_other_overwrites_of_a_part_are_refused(spark, catalog, tmp_path, statement, message):
    """Nothing is removed."""
    table = parted(spark, catalog, tmp_path)
    with pytest.raises(PySparkException, match=message):
        spark.sql(statement.format(p=f"{catalog}.p"))
    assert ids(table) == [1, 11]
