"""schemaEvolution and names in any case, through format("kudulite") and read_table."""

import pyarrow as pa
import pytest

import kudulite
import kudulite_spark
from tests.support.spark.spark_tables import load, make_table, rows, save, stored


@pytest.fixture
def path(spark, tmp_path) -> str:
    """A table (Id | v, n) of two rows in two tablets."""
    types = {"Id": pa.int32(), "v": pa.string(), "n": pa.int32()}
    layout = {"primary_key": ["Id"], "hash_partitions": [(["Id"], 2)]}
    return make_table(tmp_path / "t", [(1, "a", 1), (2, "b", 2)], types, **layout)


def test_a_write_adds_the_columns_that_the_table_lacks(spark, path):
    """Old rows show NULL; without the option the write is refused and says how."""
    frame = spark.sql("SELECT 2 AS id, 9000000000 AS n, 'x' AS note, array_size(array(1)) AS c")
    with pytest.raises(Exception, match="no column 'note'.*option schemaEvolution adds"):
        save(frame, path)
    save(frame, path, schemaEvolution="true")
    schema = kudulite.open_table(path).schema
    assert [str(c.type) for c in schema] == ["int32", "string", "int64", "string", "int32"]
    assert stored(path) == [(1, "a", 1, None, None), (2, "b", 9_000_000_000, "x", 1)]
    assert rows(load(spark, path)) == stored(path)
    assert rows(kudulite_spark.read_table(spark, path)) == stored(path)
    deleted = spark.sql("SELECT 1 AS ID, 'ignored' AS more")
    save(deleted, path, schemaEvolution="true", operation="delete")
    assert len(kudulite.open_table(path).schema) == 5


def test_columns_stay_when_the_write_fails(spark, path):
    """The alteration is a version of its own; the rows are all or nothing as ever."""
    frame = spark.sql("SELECT 1 AS id, 'x' AS note")
    with pytest.raises(Exception, match="already present"):
        save(frame, path, schemaEvolution="true", operation="insert")
    assert stored(path) == [(1, "a", 1, None), (2, "b", 2, None)]


def test_a_mixed_batch_adds_all_but_the_column_of_operations(spark, path):
    """Names of options in any case."""
    frame = spark.sql(
        "SELECT 1 AS ID, 'D' AS Op, CAST(NULL AS double) AS x UNION ALL SELECT 3, 'I', 1.5D"
    )
    save(frame, path, schemaEvolution="true", operationColumn="OP")
    assert stored(path) == [(2, "b", 2, None), (3, None, None, 1.5)]


def test_names_are_found_in_any_case(spark, path, tmp_path):
    """In writes, options, filters and schemas that the user gives."""
    save(
        spark.sql("SELECT 3 AS iD, 'c' AS V, 3 AS N"), path, primaryKey="ID", hashPartitions="id:2"
    )
    assert rows(load(spark, path, columns="V,ID", filter="iD >= 2")) == [("b", 2), ("c", 3)]
    frame = spark.read.format("kudulite").schema("V string, ID bigint").load(path)
    assert frame.columns == ["V", "ID"]
    assert rows(frame.where("id = 3")) == [("c", 3)]
    reading = spark.read.format("kudulite").schema("ID int").option("pushdown", "true")
    assert rows(reading.load(path).where("id > 2")) == [(3,)]
    read = kudulite_spark.read_table(spark, path, columns=["V"], where="ID = 1")
    assert rows(read) == [("a",)]
    assert rows(kudulite_spark.repartition_for(spark.sql("SELECT 9 AS ID"), path)) == [(9,)]
    start = kudulite.open_table(path).current_timestamp()
    save(spark.sql("SELECT 1 AS ID, 'z' AS v"), path)
    changes = (
        spark.read.format("kudulite")
        .schema("ID int, V string, _change_type string")
        .options(startTimestamp=start, changeImages="both")
        .load(path)
    )
    assert rows(changes) == [(1, "a", "update_preimage"), (1, "z", "update_postimage")]
    made = tmp_path / "made"
    save(spark.sql("SELECT 1 AS Host, 2 AS v"), made, primaryKey="host", hashPartitions="HOST:2")
    assert kudulite.open_table(str(made)).schema.key_names == ["Host"]


def test_names_that_differ_in_case_only(spark, tmp_path):
    """An exact match wins; what may be either is refused with both names."""
    types = {"k": pa.int32(), "ab": pa.int32(), "AB": pa.int32()}
    path = make_table(tmp_path / "t", [(1, 2, 3)], types, primary_key=["k"])
    save(spark.sql("SELECT 1 AS k, 20 AS ab"), path)
    save(spark.sql("SELECT 1 AS K, 30 AS AB"), path)
    assert stored(path) == [(1, 20, 30)]
    for action in (
        lambda: save(spark.sql("SELECT 1 AS k, 0 AS Ab"), path),
        lambda: load(spark, path, columns="Ab"),
        lambda: load(spark, path, filter="Ab = 1"),
        lambda: kudulite_spark.read_table(spark, path, columns=["aB"]),
    ):
        with pytest.raises(Exception, match="ambiguous.*'ab' or 'AB'"):
            action()
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        save(spark.sql("SELECT 1 AS k, 7 AS ab, 8 AS AB"), path)
        assert rows(load(spark, path)) == [(1, 7, 8)]
        with pytest.raises(Exception, match="'k' and 'K' both mean column 'k'"):
            save(spark.sql("SELECT 1 AS k, 2 AS K"), path)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
