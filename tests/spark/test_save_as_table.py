"""saveAsTable of a new table in the catalog, and types of columns that it refuses."""

import pytest
from pyspark.errors import AnalysisException, PySparkException

import kudulite
from tests.spark.conftest import FRONT
from tests.spark.test_named_columns import catalog

pytestmark = FRONT

__all__ = ["catalog"]


def test_save_as_table_of_a_new_table_names_what_to_write(spark, catalog, tmp_path):
    """Spark gives it no key, and its default format; what the error names makes the table."""
    df = spark.range(3)
    for writer in (df.write.option("primaryKey", "id"), df.write.format("kudulite")):
        with pytest.raises(
            AnalysisException, match=r"Make the table of a DataFrame with df\.writeTo"
        ):
            writer.saveAsTable(f"{catalog}.n")
    df.writeTo(f"{catalog}.n").tableProperty("primaryKey", "id").create()
    assert kudulite.open_table(tmp_path / "n").live_row_count == 3


def test_a_char_is_refused_by_every_way_to_make_a_column(spark, catalog, tmp_path):
    """CREATE, AS SELECT of a CHAR, ALTER and a write by path; VARCHAR is cut as in Spark."""
    spark.sql(f"CREATE TABLE s{catalog} (id BIGINT, c CHAR(3)) USING parquet")
    spark.sql(f"INSERT INTO s{catalog} VALUES (1, 'ab')")
    chars = spark.table(f"s{catalog}")
    for make in (
        lambda: spark.sql(f"CREATE TABLE {catalog}.x (id CHAR(3), PRIMARY KEY (id))"),
        lambda: spark.sql(
            f"CREATE TABLE {catalog}.x TBLPROPERTIES ('primaryKey'='id') AS TABLE s{catalog}"
        ),
        lambda: spark.sql(f"ALTER TABLE {catalog}.t ADD COLUMN d CHAR(3)"),
        lambda: (
            chars.write.format("kudulite")
            .mode("append")
            .option("primaryKey", "id")
            .save(str(tmp_path / "x"))
        ),
    ):
        with pytest.raises(AnalysisException, match=r"CHAR\(3\) is not supported.*VARCHAR\(3\)"):
            make()
    trimmed = chars.selectExpr("id", "rtrim(c) AS c").write.format("kudulite").mode("append")
    trimmed.option("primaryKey", "id").save(str(tmp_path / "x"))
    assert kudulite.open_table(tmp_path / "x").scan().to_pylist() == [{"id": 1, "c": "ab"}]
    spark.sql(f"DROP TABLE s{catalog}")
    spark.sql(f"CREATE TABLE {catalog}.v (id VARCHAR(3), PRIMARY KEY (id))")
    spark.sql(f"INSERT INTO {catalog}.v VALUES ('abc  '), ('ab ')")
    assert sorted(row["id"] for row in kudulite.open_table(tmp_path / "v").scan()) == ["ab ", "abc"]
    with pytest.raises(PySparkException, match="EXCEED_LIMIT_LENGTH"):
        spark.sql(f"INSERT INTO {catalog}.v VALUES ('abcd')")
