"""Days and instants are the same whatever the time zone of the machine, of Java and of Python."""

import datetime
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import kudulite
from kudulite_spark import read_table
from tests.spark.conftest import FRONT
from tests.spark.test_catalog import warehouse
from tests.support.spark.spark_tables import configured, load

__all__ = ["warehouse"]

JAVA_TIME = "spark.sql.datetime.java8API.enabled"
SESSION_ZONE = "spark.sql.session.timeZone"
ROOT = Path(__file__).parents[2]

# Zones with a day that they skipped, or with a gap at midnight.
DAYS = {
    "Pacific/Apia": datetime.date(2011, 12, 30),
    "Pacific/Kwajalein": datetime.date(1993, 8, 21),
    "Pacific/Kiritimati": datetime.date(1994, 12, 31),
    "America/Sao_Paulo": datetime.date(2018, 11, 4),
}
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@contextmanager
def java_zone(spark, zone: str) -> Iterator[None]:
    """The zone of the JVM for a block."""
    zones = spark._jvm.java.util.TimeZone
    before = zones.getDefault()
    zones.setDefault(zones.getTimeZone(zone))
    try:
        yield
    finally:
        zones.setDefault(before)


def make_days(folder: Path, day: datetime.date) -> kudulite.Table:
    """A table with 30 rows of each of five days around `day`, one file per day, and moments."""
    client = kudulite.connect(folder, background_maintenance=False)
    types = [("id", pa.int64()), ("d", pa.date32()), ("at", pa.timestamp("us", "UTC"))]
    table = client.create_table("days", pa.schema(types), primary_key="id")
    for shift in range(-2, 3):
        own = day + datetime.timedelta(shift)
        ids = range(30 * (shift + 2), 30 * (shift + 3))
        moments = [moment_of(own) + datetime.timedelta(minutes=30 * (k % 30)) for k in ids]
        table.insert([{"id": k, "d": own, "at": m} for k, m in zip(ids, moments, strict=True)])
        table.flush()
    return table


def moment_of(day: datetime.date) -> datetime.datetime:
    """The midnight in UTC."""
    return datetime.datetime(day.year, day.month, day.day, tzinfo=datetime.UTC)


COUNTS = {"=": 30, "<=": 90, ">=": 90}


@FRONT
@pytest.mark.parametrize("zone", DAYS)
def test_a_day_is_found_in_every_zone_of_java(spark, warehouse, tmp_path, zone):
    """By load, SQL and the option `pushdown`, though Spark passes a day as its local midnight."""
    day = DAYS[zone]
    make_days(tmp_path / "warehouse", day)
    path = tmp_path / "warehouse" / "days"
    settings = {JAVA_TIME: "false", SESSION_ZONE: "Pacific/Apia"}
    with configured(spark, settings), java_zone(spark, zone):
        frame = load(spark, path)
        for sign, expected in COUNTS.items():
            assert frame.filter(f"d {sign} DATE '{day}'").count() == expected, sign
        days = f"DATE '{day}', DATE '{day - datetime.timedelta(2)}'"
        assert frame.filter(f"d IN ({days})").count() == 60
        moment = moment_of(day) + datetime.timedelta(minutes=150)
        at = f"timestamp_micros({(moment - EPOCH) // datetime.timedelta(microseconds=1)})"
        assert [r.id for r in frame.filter(f"at = {at}").collect()] == [65]
        for frame in (load(spark, path, pushdown="true"), spark.table(f"{warehouse}.days")):
            assert frame.filter(f"d = DATE '{day}'").count() == 30
        assert load(spark, path, filter=f"d = DATE '{day}'").count() == 30
        spark.sql(f"UPDATE {warehouse}.days SET at = NULL WHERE d = DATE '{day}'")
        spark.sql(f"DELETE FROM {warehouse}.days WHERE d = DATE '{day}' AND id < 70")
    left = kudulite.open_table(path).scan().to_arrow()
    assert left.num_rows == 140 and left["at"].null_count == 20


def test_a_day_is_found_in_files_with_java_time(spark, tmp_path):
    """The setting of `local_session` makes Spark's own filters on Parquet exact."""
    zone, day = "Pacific/Apia", DAYS["Pacific/Apia"]
    path = make_days(tmp_path, day).path
    assert spark.conf.get(JAVA_TIME) == "true"
    with java_zone(spark, zone):
        found = read_table(spark, str(path)).filter(f"d = DATE '{day}'")
        assert found.count() == 30


PROGRAM = """
import datetime, sys, kudulite
import kudulite_spark
folder, day = sys.argv[1], sys.argv[2]
spark = kudulite_spark.local_session(warehouse=folder, options={
    "spark.local.dir": folder + "/.local", "spark.sql.datetime.java8API.enabled": "false"})
frame = spark.table("kudulite.days")
print(frame.filter(f"d = DATE '{day}'").count())
print(*sorted({row.d.isoformat() for row in frame.select("d").collect()}))
made = spark.createDataFrame([(1000, datetime.date.fromisoformat(day))], "id BIGINT, d DATE")
made.write.format("kudulite").mode("append").save(folder + "/days")
spark.sql(f"INSERT INTO kudulite.days (id, d) VALUES (1001, DATE '{day}')")
spark.stop()
print(kudulite.open_table(folder + "/days").scan(where=[("d", "=", day)]).count())
"""


def test_a_machine_in_a_zone_with_a_skipped_day(tmp_path):
    """With TZ set for Python and Java, days are found, read and written as they are."""
    day = DAYS["Pacific/Apia"]
    make_days(tmp_path, day)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), str(day)],
        env={**os.environ, "TZ": "Pacific/Apia"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    days = " ".join(str(day + datetime.timedelta(shift)) for shift in range(-2, 3))
    assert done.stdout.splitlines() == ["30", days, "32"], done.stderr[-2000:]
