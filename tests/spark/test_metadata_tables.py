"""Tables about a table, and its changes, in Spark SQL."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import kudulite
from tests.spark.conftest import FRONT
from tests.spark.test_catalog import made, rows, warehouse

pytestmark = FRONT

__all__ = ["warehouse"]


def table_of(tmp_path: Path) -> kudulite.Table:
    """The table t of the warehouse."""
    return kudulite.connect(tmp_path / "warehouse").table("t")


def test_metadata_tables_show_what_python_shows(spark, warehouse, tmp_path):
    """Versions, tags, tablets and rowsets; Spark filters and counts them."""
    t = f"{warehouse}.t"
    made(spark, t)
    spark.sql(f"DELETE FROM {t} WHERE id = 3")
    table = table_of(tmp_path)
    table.tag("now")
    assert None in {one.version for one in table.versions()}
    found = rows(spark, f"SELECT version, operation, inserted, hybrid_time FROM {t}.versions")
    wanted = table.versions()
    assert found == [(v.version, v.operation, v.inserted, int(v.timestamp)) for v in wanted]
    assert rows(spark, f"SELECT count(*) FROM {t}.versions WHERE deleted = 1") == [(1,)]
    assert rows(spark, f"SELECT name, hybrid_time FROM {t}.tags") == [
        ("now", int(table.tags["now"]))
    ]
    assert rows(spark, f"SELECT tablet_id, partition FROM {t}.tablets ORDER BY 2") == list(
        zip(table.tablet_ids, [f"hash(id) bucket {n} of 2" for n in range(2)], strict=True)
    )
    counted = f"SELECT sum(live_row_count) FROM {warehouse}.`{table.path}`.tablets"
    assert rows(spark, counted) == [(9,)]
    table.flush()
    assert rows(spark, counted) == [(9,)]
    counted = f"SELECT count(*), sum(live_row_count), sum(bytes_on_disk) > 0 FROM {t}.rowsets"
    assert rows(spark, counted) == [(table.statistics.rowset_count, 9, True)]


def expected(table: kudulite.Table, start: int, end: int) -> list[tuple[Any, ...]]:
    """The changes in (start, end] as Spark's clause has them, of (id, v)."""
    found = []
    for change in table.changes(start, end, images="both").to_arrow().to_pylist():
        own = (change["id"], change["v"], change["_change_type"], change["_commit_version"])
        found.append(own)
    return sorted(found)


def changed(spark: SparkSession, warehouse: str, table: kudulite.Table) -> list[int]:
    """Change the table t three times; return the moments between."""
    moments = [int(table.current_timestamp())]
    for text in (
        f"UPDATE {warehouse}.t SET v = 100 WHERE id IN (1, 2)",
        f"DELETE FROM {warehouse}.t WHERE id IN (2, 3)",
        f"INSERT INTO {warehouse}.t VALUES (77, NULL, 7D), (78, 'x', NULL)",
    ):
        spark.sql(text)
        moments.append(int(table.current_timestamp()))
    return moments


def test_changes_of_a_window_are_a_table(spark, warehouse, tmp_path):
    """On every version of Spark, with two rows for an update."""
    t = f"{warehouse}.t"
    made(spark, t)
    table = table_of(tmp_path)
    moments = changed(spark, warehouse, table)
    columns = "id, v, _change_type, _commit_version"
    for start, end in ((0, 3), (0, 1), (1, 2), (2, 3)):
        window = f"startTimestamp = '{moments[start]}', endTimestamp = '{moments[end]}'"
        wanted = expected(table, moments[start], moments[end])
        after = f"SELECT {columns} FROM {t}.changes WITH ({window})"
        assert sorted(rows(spark, after)) == [r for r in wanted if r[2] != "update_preimage"]
        source = f"{t}.changes WITH ({window}, changeImages = 'both')"
        assert sorted(rows(spark, f"SELECT {columns} FROM {source}")) == wanted
        assert rows(spark, f"SELECT count(*) FROM {source}") == [(len(wanted),)]
        assert sorted(rows(spark, f"SELECT _change_type, host FROM {source} WHERE id = 1")) == (
            [("update_postimage", "h1"), ("update_preimage", "h1")] if start == 0 else []
        )
    timed = "CAST(_commit_version DIV 4096 AS BIGINT) = unix_micros(_commit_timestamp)"
    assert rows(spark, f"SELECT DISTINCT {timed} FROM {source}") == [(True,)]


@pytest.mark.spark_since("4.2", "the clause CHANGES")
def test_the_clause_changes_has_inclusive_bounds(spark, warehouse, tmp_path):
    """Of tags, HybridTimes and times; EXCLUSIVE leaves a bound out."""
    t = f"{warehouse}.t"
    made(spark, t)
    table = table_of(tmp_path)
    moments = changed(spark, warehouse, table)
    table.tag("middle", moments[1])
    commits = sorted({row[3] for row in expected(table, moments[0], moments[-1])})
    first, middle, last = commits
    columns = "id, v, _change_type, _commit_version"

    def read(window: str) -> list[tuple[Any, ...]]:
        return sorted(rows(spark, f"SELECT {columns} FROM {t} CHANGES {window}"))

    assert read(f"FROM VERSION '{middle}' TO VERSION '{last}'") == expected(table, middle - 1, last)
    assert read(f"FROM VERSION '{middle}' EXCLUSIVE TO VERSION '{last}'") == expected(
        table, middle, last
    )
    assert read(f"FROM VERSION '{middle}' TO VERSION '{last}' EXCLUSIVE") == expected(
        table, middle - 1, last - 1
    )
    # The moment of the tag is that of the newest change then.
    assert read("FROM VERSION 'middle'") == expected(table, moments[1] - 1, moments[-1])
    time = kudulite.Timestamp(first).to_datetime().replace(tzinfo=None).isoformat(" ")
    assert read(f"FROM TIMESTAMP '{time}Z' TO TIMESTAMP '{time}Z'") == expected(
        table, moments[0], moments[1]
    )


REFUSED = {
    "changes without a start": ("SELECT * FROM {t}.changes", "need a start"),
    "metadata of the past": (
        "SELECT * FROM {t}.versions TIMESTAMP AS OF '2026-01-01'",
        "shows the newest version",
    ),
    "an insert": ("INSERT INTO {t}.tags VALUES ('a', now(), 3)", "cannot be written to"),
    "a delete": ("DELETE FROM {t}.tags WHERE name = 'a'", "cannot be written to"),
    "another name": ("SELECT * FROM {t}.nix", "TABLE_OR_VIEW_NOT_FOUND"),
    "no tag": ("SELECT * FROM {t} VERSION AS OF 'nix'", "no tag of this name, its tags: none"),
}


def test_what_a_metadata_table_cannot_do_is_refused(spark, warehouse):
    """Without a trace of Python or Java, but for Spark 4.1."""
    made(spark, f"{warehouse}.t")
    for case, (text, message) in REFUSED.items():
        with pytest.raises(PySparkException) as refused:
            spark.sql(text.format(t=f"{warehouse}.t")).collect()
        shown = str(refused.value)
        assert message in shown, case
        # Spark 4.1 shows the trace of an error of a reader or a writer.
        has_trace = spark.version < "4.2"
        assert has_trace or ("Traceback" not in shown and "\tat " not in shown), case
