"""Procedures of the catalog: CALL with positions and with names."""

import pytest
from pyspark.errors import AnalysisException

import kudulite
from tests.spark.conftest import FRONT
from tests.spark.test_catalog import made, rows, stored, warehouse
from tests.support.spark.spark_tables import configured

pytestmark = FRONT

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
    table.flush()
    spark.sql(f"INSERT INTO {c}.t VALUES (20, 'x', 1D)")
    table.flush()
    ((operations,),) = rows(spark, f"CALL {c}.compact('t')")
    assert operations > 0 and table.statistics.rowset_height <= 1
    assert rows(spark, f"CALL {c}.maintain('{table.path}')") == [(0, 0, 0)]
    assert rows(spark, f"CALL {c}.optimize('t')") == [(0,)]
    assert rows(spark, f"CALL {c}.vacuum(table => 't')") == [(0, 0, 0)]
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


def test_a_table_is_brought_back_to_a_version(spark, warehouse, tmp_path):
    """By its number or a moment, without a target; VERSION AS OF reads it by the same number."""
    c = warehouse
    model = made(spark, f"{c}.t")
    table = kudulite.connect(tmp_path / "warehouse").table("t")
    table.flush()
    version = table.version
    spark.sql(f"DELETE FROM {c}.t WHERE id < 3")
    assert stored(spark, f"{c}.t VERSION AS OF {version}") == model
    deleted = len(model) - len(stored(spark, f"{c}.t"))
    undone = rows(spark, f"CALL {c}.restore(table => 't', version => {version})")
    assert undone == [(table.version, deleted, 0, 0)] and deleted > 0
    assert stored(spark, f"{c}.t") == model
    spark.sql(f"TRUNCATE TABLE {c}.t")
    at = kudulite.connect(tmp_path / "warehouse").table("t").versions()[1].timestamp
    assert rows(spark, f"CALL {c}.restore('t', at => '{int(at)}')")[0][1] == len(model)
    assert stored(spark, f"{c}.t") == model


REFUSED = {
    "no procedure": ("CALL {c}.nix('t')", "there is no procedure 'nix'; there are: add_range"),
    "no table": ("CALL {c}.compact('nix')", "is not a kudulite table"),
    "a missing argument": ("CALL {c}.tag('t')", "REQUIRED_PARAMETER_NOT_FOUND"),
    "a table that is NULL": ("CALL {c}.compact(NULL)", "table is NULL"),
    "an existing target": ("CALL {c}.restore('t', '{b}')", "no backup"),
    "a version and a target": ("CALL {c}.restore('t', '{b}', version => 1)", "version is for"),
    "no such version": ("CALL {c}.restore('t', version => 99)", "lists no version 99"),
    "a version that is no number": (
        "CALL {c}.restore('t', version => 'x')",
        "expected a number",
    ),
    "neither moment nor version": ("CALL {c}.restore('t')", "restore takes a moment"),
    "overwrite without a target": (
        "CALL {c}.restore('t', overwrite => 'true')",
        "backups in a target",
    ),
    "a tag that is there": ("CALL {c}.delete_tag('t', 'x')", "'x'"),
    "no range": ("CALL {c}.drop_range_partition('t', '1', '2')", "range"),
    "a word for a number": ("CALL {c}.add_range_partition('r', 'x')", "'x' is no bound"),
    "a name that is NULL": ("CALL {c}.tag('t', NULL)", "name is NULL"),
    "a target that is NULL": ("CALL {c}.backup('t', NULL)", "target is NULL"),
    "too many values": ("CALL {c}.add_range_partition('r', '[1, 2]')", "'[1, 2]' is no bound"),
    "a value that is NULL": (
        "CALL {c}.add_range_partition('r', '[null]')",
        "key (None,) does not fit",
    ),
    "a fraction": ("CALL {c}.add_range_partition('r', 10.5)", "'10.5' is no bound"),
    "a truth": ("CALL {c}.add_range_partition('r', true)", "'true' is no bound"),
    "an interval": ("CALL {c}.tag('t', 'x', INTERVAL '1' DAY)", "is not a moment"),
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
    assert {"backup", "compact", "optimize", "restore", "tag", "vacuum"} <= set(listed)


@pytest.mark.parametrize("text", ["'TRUE'", "TRUE", "' True '", "'t'", "'Yes'", "'1'", "1"])
def test_booleans_are_taken_in_every_spelling_of_spark(spark, warehouse, tmp_path, text):
    """As its cast takes them; 'false' in each is the other value."""
    c = warehouse
    made(spark, f"{c}.t")
    target = tmp_path / "backups"
    for _ in range(2):
        spark.sql(f"CALL {c}.backup(table => 't', target => '{target}', full => {text})")
    assert [backup.is_full for backup in kudulite.list_backups(target)] == [True, True]
    spark.sql(f"CALL {c}.restore('t', '{target}', overwrite => {text})")
    no = {"TRUE": "FALSE", "1": "0"}.get(text, "' No '")
    with pytest.raises(AnalysisException, match="exists"):
        spark.sql(f"CALL {c}.restore('t', '{target}', overwrite => {no})")
    with pytest.raises(AnalysisException, match="full is 'maybe', expected true or false"):
        spark.sql(f"CALL {c}.backup(table => 't', target => '{target}', full => 'maybe')")


@pytest.mark.parametrize("kind", ["TIMESTAMP_LTZ", "TIMESTAMP_NTZ"])
def test_moments_are_in_the_zone_of_the_session(spark, warehouse, tmp_path, kind):
    """As TIMESTAMP AS OF takes them, whichever type TIMESTAMP is."""
    c = warehouse
    made(spark, f"{c}.t")
    zones = {"Europe/Berlin": "+02:00", "-03:30": "-03:30", "GMT+5": "+05:00", "PST": "-07:00"}
    table = kudulite.connect(tmp_path / "warehouse").table("t")
    for zone, offset in zones.items():
        settings = {"spark.sql.session.timeZone": zone, "spark.sql.timestampType": kind}
        with configured(spark, settings):
            wanted = int(kudulite.Timestamp(f"2001-07-01T10:00:00{offset}"))
            for n, at in enumerate(("'2001-07-01 10:00:00'", "TIMESTAMP '2001-07-01 10:00:00'")):
                with pytest.raises(AnalysisException, match=str(wanted)):
                    spark.sql(f"CALL {c}.tag('t', 'x{n}', {at})")
            with pytest.raises(AnalysisException, match=str(wanted)):
                spark.sql(f"SELECT * FROM {c}.t VERSION AS OF '2001-07-01 10:00:00'").collect()
    with configured(spark, {"spark.sql.session.timeZone": "Europe/Berlin"}):
        with pytest.raises(AnalysisException, match=r"twice.*as in '2026-10-25T02:30:00\+02:00'"):
            spark.sql(f"CALL {c}.tag('t', 'x', '2026-10-25 02:30:00')")
    assert list(table.tags) == []


def test_bounds_of_ranges_are_in_the_zone_of_the_session(spark, warehouse, tmp_path):
    """TIMESTAMP and text alike; a number is an integer, and a list has all columns."""
    c = warehouse
    bounds = '{"columns": ["at", "n"], "bounds": [[["2020-01-01T00:00:00Z", 0], null]]}'
    spark.sql(
        f"CREATE TABLE {c}.t (at TIMESTAMP, n INT, PRIMARY KEY (at, n))"
        f" TBLPROPERTIES ('rangePartitions'='{bounds}')"
    )
    lower, upper = """'["2019-01-01", 0]'""", """'["2019-07-01 02:00:00", 0]'"""
    with configured(spark, {"spark.sql.session.timeZone": "Europe/Berlin"}):
        spark.sql(f"CALL {c}.add_range_partition('t', {lower}, {upper})")
        for bound in (
            "[1]",
            '["2018-01-01", 1.5]',
            '["2018-01-01", "1.5"]',
            '["2018-01-01", null]',
        ):
            with pytest.raises(AnalysisException):
                spark.sql(f"CALL {c}.add_range_partition('t', '{bound}', {lower})")
    table = kudulite.connect(tmp_path / "warehouse").table("t")
    found = min(r.lower[0] for r in table.partition_schema.ranges), table.partition_schema.ranges
    assert str(found[0]) == "2018-12-31 23:00:00+00:00"
    assert [str(r.upper[0]) for r in found[1] if r.upper] == ["2019-07-01 00:00:00+00:00"]


def test_names_are_quoted_as_in_sql(spark, warehouse, tmp_path):
    """A dot in backticks belongs to the name, and two backticks are one."""
    c = warehouse
    spark.sql(f"CREATE NAMESPACE {c}.`a.b`")
    for name in ("`a.b`.`my.table`", "`a.b`.`it``s`", "`a.b`.t"):
        spark.sql(f"CREATE TABLE {c}.{name} (id INT, PRIMARY KEY (id))")
        for written in (name, f"{c}.{name}", f" `{c}` . {name} "):
            assert rows(spark, f"CALL {c}.compact('{written}')") == [(0,)]
    path = tmp_path / "warehouse" / "a.b" / "my.table"
    for written in (path, f"`{path}`", f"{c}.`{path}`"):
        assert rows(spark, f"CALL {c}.compact('{written}')") == [(0,)]
    for wrong in ("", "t.", ".t", "a..b", "`a.b", "`a`b", "../t", "`..`.`t`", "`a/b`"):
        with pytest.raises(AnalysisException, match="is the name of no table|not a kudulite table"):
            spark.sql(f"CALL {c}.compact('{wrong}')")
