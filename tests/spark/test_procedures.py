"""Procedures of the catalog: CALL with positions and with names."""

import pytest
from pyspark.errors import AnalysisException

import kudulite
from tests.spark.test_catalog import made, rows, stored, warehouse

__all__ = ["warehouse"]


def test_a_table_is_tagged_maintained_backed_up_and_restored(spark, warehouse, tmp_path):
    """A table is named as in SQL, with or without the catalog, or by its path."""
    c = warehouse
    model = made(spark, f"{c}.t")
    table = kudulite.connect(tmp_path / "warehouse").table("t")
    tagged = rows(spark, f"CALL {c}.tag(name => 'first', table => '{c}.t')")
    assert tagged == [(int(table.tags["first"]),)]
    at = int(table.tags["first"])
    assert rows(spark, f"CALL {c}.tag('t', 'same', '{at}')") == [(at,)]
    spark.sql(f"DELETE FROM {c}.t WHERE id = 1")
    spark.sql(f"INSERT INTO {c}.t VALUES (20, 'x', 1D)")
    ((operations,),) = rows(spark, f"CALL {c}.compact('t')")
    assert operations > 0 and table.statistics.rowset_height <= 1
    assert rows(spark, f"CALL {c}.maintain('{table.path}')") == [(0, 0, 0)]
    target = tmp_path / "backups"
    ((backup_id, byte_count),) = rows(spark, f"CALL {c}.backup('t', '{target}')")
    assert [b.id for b in kudulite.list_backups(target)] == [backup_id] and byte_count > 0
    ((path, row_count),) = rows(spark, f"CALL {c}.restore('r', '{target}')")
    assert (path, row_count) == (str(tmp_path / "warehouse" / "r"), 10)
    assert stored(spark, f"{c}.r") == stored(spark, f"{c}.t")
    spark.sql(f"TRUNCATE TABLE {c}.r")
    spark.sql(f"CALL {c}.restore(table => 'r', target => '{target}', overwrite => 'true')")
    assert stored(spark, f"{c}.r") == stored(spark, f"{c}.t")
    assert stored(spark, f"{c}.t VERSION AS OF 'same'") == model
    assert rows(spark, f"CALL {c}.delete_tag('t', 'same')") == [(1,)]


def test_ranges_are_added_and_dropped(spark, warehouse, tmp_path):
    """Of one column or of several, with and without a bound."""
    c = warehouse
    bounds = '{"columns": ["n"], "bounds": [[0, 10]]}'
    spark.sql(
        f"CREATE TABLE {c}.t (id BIGINT, n INT, PRIMARY KEY (id, n))"
        f" TBLPROPERTIES ('rangePartitions'='{bounds}')"
    )
    table = kudulite.connect(tmp_path / "warehouse").table("t")
    assert rows(spark, f"CALL {c}.add_range_partition('t', '10', '20')") == [(2,)]
    assert rows(spark, f"CALL {c}.add_range_partition(table => 't', lower => 20)") == [(3,)]
    assert rows(spark, f"CALL {c}.drop_range_partition('t', '0', '10')") == [(2,)]
    assert table.partition_schema.describe_all() == ["n: [10, 20)", "n: [20, +∞)"]
    bounds = '{"columns": ["day", "host"], "bounds": [[["2026-01-01", "a"], ["2026-01-01", "m"]]]}'
    spark.sql(
        f"CREATE TABLE {c}.u (day DATE, host STRING, PRIMARY KEY (day, host))"
        f" TBLPROPERTIES ('rangePartitions'='{bounds}')"
    )
    given = """'["2026-01-01", "m"]', '["2026-02-01", "a"]'"""
    assert rows(spark, f"CALL {c}.add_range_partition('u', {given})") == [(2,)]


REFUSED = {
    "no procedure": ("CALL {c}.nix('t')", "there is no procedure 'nix'; there are: add_range"),
    "no table": ("CALL {c}.compact('nix')", "is not a kudulite table"),
    "a missing argument": ("CALL {c}.tag('t')", "REQUIRED_PARAMETER_NOT_FOUND"),
    "a table that is NULL": ("CALL {c}.compact(NULL)", "table is NULL"),
    "an existing target": ("CALL {c}.restore('t', '{b}')", "no backup"),
    "a tag that is there": ("CALL {c}.delete_tag('t', 'x')", "'x'"),
    "no range": ("CALL {c}.drop_range_partition('t', '1', '2')", "range"),
    "a word for a number": ("CALL {c}.add_range_partition('r', 'x')", "'x' is no bound"),
    "an unclosed list": ("CALL {c}.add_range_partition('r', '[1')", "'[1' is no bound"),
}


def test_a_refused_call_says_why(spark, warehouse, tmp_path):
    """As an AnalysisException without a trace."""
    made(spark, f"{warehouse}.t")
    spark.sql(
        f"CREATE TABLE {warehouse}.r (id BIGINT, PRIMARY KEY (id))"
        """ TBLPROPERTIES ('rangePartitions'='{"columns": ["id"], "bounds": [[0, 10]]}')"""
    )
    for case, (text, message) in REFUSED.items():
        with pytest.raises(AnalysisException) as refused:
            spark.sql(text.format(c=warehouse, b=tmp_path / "none"))
        shown = str(refused.value)
        assert message in shown, (case, shown)
        assert "Traceback" not in shown and "\tat " not in shown, (case, shown)


def test_procedures_are_listed(spark, warehouse):
    """SHOW PROCEDURES names them."""
    listed = [row[-1] for row in rows(spark, f"SHOW PROCEDURES IN {warehouse}")]
    assert {"backup", "compact", "maintain", "restore", "tag"} <= set(listed)
