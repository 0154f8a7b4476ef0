"""DELETE, UPDATE and MERGE of Spark SQL: no update is lost, and other tablets are not read."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import kudulite
import kudulite_spark
from tests.spark.conftest import FRONT

pytestmark = FRONT


@pytest.fixture
def warehouse(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A catalog of its own for each test; Spark keeps one for a name."""
    yield registered(spark, tmp_path)


def registered(spark: SparkSession, tmp_path: Path) -> str:
    """The name of a new catalog of a session."""
    catalog = f"c{uuid.uuid4().hex}"
    kudulite_spark.register(spark, warehouse=tmp_path, catalog=catalog)
    return catalog


def rows_of(path: Path) -> list[tuple]:
    """All rows in the order of their keys, without Spark."""
    found = kudulite.open_table(path).scan(ordered=True).to_pylist()
    return [tuple(row.values()) for row in found]


# -- No lost update

STATEMENTS = {
    "update": "UPDATE {t} SET v = meet(v, {turn}) WHERE id < 5",
    "merge": "MERGE INTO {t} t USING (SELECT explode(sequence(0, 6)) AS id) s ON t.id = s.id"
    " WHEN MATCHED AND t.id < 5 THEN UPDATE SET v = meet(t.v, {turn})"
    " WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 1)",
}


@pytest.mark.parametrize("kinds", [("update", "update"), ("update", "merge"), ("merge", "merge")])
def test_no_increment_of_two_sessions_is_lost(spark, warehouse, tmp_path, kinds):
    """Two sessions add one to the same rows and try again after a conflict; the sum is exact.

    In their first turn each waits in its task for the other one, so both read the same snapshot.
    """
    spark.sql(f"CREATE TABLE {warehouse}.t (id BIGINT, v BIGINT, PRIMARY KEY (id))")
    spark.sql(f"INSERT INTO {warehouse}.t SELECT id, 0 FROM range(6)")
    barrier = threading.Barrier(2, timeout=60)
    conflicts, errors = [], []

    def run(number: int, session: SparkSession, catalog: str) -> None:
        session.udf.register("meet", meeting(tmp_path / "met", number), "long")
        barrier.wait()
        for turn in range(3):
            attempt = 0
            while True:
                first = 0 if (turn, attempt) == (0, 0) else 1
                try:
                    session.sql(STATEMENTS[kinds[number]].format(t=f"{catalog}.t", turn=first))
                    break
                except PySparkException as error:
                    assert "ConflictError" in str(error), error
                    conflicts.append(str(error))
                    attempt += 1

    def guarded(*arguments) -> None:
        try:
            run(*arguments)
        except BaseException as error:
            errors.append(error)

    sessions = [spark.newSession() for _ in kinds]
    (tmp_path / "met").mkdir()
    threads = [
        threading.Thread(target=guarded, args=(number, session, registered(session, tmp_path)))
        for number, session in enumerate(sessions)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, str(errors[0])
    assert conflicts, "the first turns read the same snapshot"
    expected = dict.fromkeys(range(5), 6) | {5: 0}
    expected |= {6: 1} if "merge" in kinds else {}
    assert dict(rows_of(tmp_path / "t")) == expected


def meeting(folder: Path, number: int) -> Callable[[int | None, int], int | None]:
    """A function of SQL that adds one, in turn 0 when the other session's has begun as well."""

    def meet(value: int | None, turn: int) -> int | None:
        (folder / str(number)).touch()
        deadline = time.monotonic() + 60
        while turn == 0 and not (folder / str(1 - number)).exists():
            assert time.monotonic() < deadline, "the other session did not begin"
            time.sleep(0.01)
        return None if value is None else value + 1  # MERGE computes it for other rows, too

    return meet


# -- Other tablets are not read

PRUNED = {
    "one key": ("DELETE FROM {t} WHERE id = 17", "id = 17"),
    "keys": ("UPDATE {t} SET v = v + 1 WHERE id IN (3, 4)", "id IN (3, 4)"),
    "bounds": ("UPDATE {t} SET v = v + 1 WHERE id >= 20 AND id < 30", "id >= 20 AND id < 30"),
    "a range": ("DELETE FROM {t} WHERE id < 10 AND v > 15", "id < 10"),
    "merge": (
        "MERGE INTO {t} t USING (SELECT 25L AS id, 7L AS v) s ON t.id = s.id AND t.id >= 20"
        " AND t.id < 30 WHEN MATCHED THEN UPDATE SET v = s.v",
        "id >= 20 AND id < 30",
    ),
}


@pytest.mark.parametrize("case", PRUNED)
def test_a_statement_by_key_reads_only_the_tablets_of_the_key(spark, warehouse, tmp_path, case):
    """The base data of all other tablets is away while it runs."""
    text, where = PRUNED[case]
    t, path = f"{warehouse}.t", tmp_path / "t"
    spark.sql(
        f"CREATE TABLE {t} (id BIGINT, v BIGINT, PRIMARY KEY (id)) PARTITIONED BY (bucket(2, id))"
        """ TBLPROPERTIES ('rangePartitions'='{"columns": ["id"], "bounds":"""
        """ [[null, 10], [10, 20], [20, 30], [30, null]]}')"""
    )
    spark.sql(f"INSERT INTO {t} SELECT id, 2 * id FROM range(40)")
    table = kudulite.open_table(path)
    table.flush()
    needed = {token.tablet_id for token in table.scan_tokens(where=where)}
    assert 1 <= len(needed) <= 2 < len(table.tablet_ids) == 8
    before = dict(rows_of(path))
    moved = []
    for tablet_id in set(table.tablet_ids) - needed:
        for base in (path / "tablet" / tablet_id).rglob("base-*"):
            moved.append((base, base.rename(tmp_path / uuid.uuid4().hex)))
    assert len(moved) == 8 - len(needed)
    spark.sql(text.format(t=t))
    for base, away in moved:
        away.rename(base)
    after = {
        "one key": {k: v for k, v in before.items() if k != 17},
        "keys": before | {3: 7, 4: 9},
        "bounds": before | {k: 2 * k + 1 for k in range(20, 30)},
        "a range": {k: v for k, v in before.items() if not 7 < k < 10},
        "merge": before | {25: 7},
    }
    assert dict(rows_of(path)) == after[case]


def test_a_count_is_written_to_a_column_that_is_not_nullable(spark, warehouse):
    """The count that the front knows is as little nullable as one that Spark counts."""
    sql = spark.sql
    sql(f"CREATE TABLE {warehouse}.t TBLPROPERTIES (primaryKey='id') AS SELECT id FROM range(7)")
    counted = f"SELECT count(*) AS n FROM {warehouse}.t"
    sql(f"CREATE TABLE {warehouse}.u TBLPROPERTIES (primaryKey='n') AS {counted}")
    sql(f"INSERT INTO {warehouse}.u SELECT n + 1 FROM ({counted})")
    sql(f"DELETE FROM {warehouse}.t WHERE id > 2")
    sql(f"INSERT INTO {warehouse}.u {counted}")
    assert sorted(row.n for row in spark.table(f"{warehouse}.u").collect()) == [3, 7, 8]
