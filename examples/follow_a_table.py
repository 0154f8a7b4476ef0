"""One stream keeps a copy of a table up to date, and another one counts its rows.

1. A table holds an order book: orders are added, change their state, and are cancelled.
2. A stream writes the changes to a copy: first a snapshot, then the changes since the last run. The
   query is started again for each run, like a nightly job, and continues from its checkpoint.
3. A second stream counts the orders by state and replaces its table by each result.

Each step asserts its result. Run it with

    python examples/follow_a_table.py            the tables live in a temporary folder
    python examples/follow_a_table.py FOLDER     the tables stay in FOLDER
"""

import sys
import tempfile
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import kudulite
import kudulite_spark

ORDERS = pa.schema([("id", pa.int64()), ("state", pa.string())])


def main(folder: Path) -> None:
    """Run the story in `folder`."""
    client = kudulite.connect(folder)
    orders = client.create_table("orders", ORDERS, primary_key="id", hash_partitions=[(["id"], 2)])
    spark = kudulite_spark.local_session("follow a table")

    print("The order book begins with ten orders")
    orders.insert(table(dict.fromkeys(range(10), "new")))
    follow(spark, folder)
    assert contents(client, "copy") == contents(client, "orders")

    print("Orders are paid and cancelled, in a batch and one by one")
    orders.update(table(dict.fromkeys(range(6), "paid")))
    session = client.new_session()
    session.apply(orders.new_delete({"id": 9}))
    session.apply(orders.new_insert({"id": 10, "state": "new"}))
    session.flush()
    follow(spark, folder)
    assert contents(client, "copy") == contents(client, "orders")

    print("A night without changes makes no version of the copy")
    version = client.table("copy").version
    orders.compact()
    follow(spark, folder)
    assert client.table("copy").version == version

    print("Orders are counted by state")
    count(spark, folder)
    counted = client.table("counts").scan().to_pylist()
    assert {row["state"]: row["count"] for row in counted} == {"new": 4, "paid": 6}
    client.close()


def follow(spark: SparkSession, folder: Path) -> None:
    """Bring the copy up to date, and end."""
    changes = (
        spark.readStream.format("kudulite")
        .option("startTimestamp", "snapshot")
        .load(str(folder / "orders"))
    )
    run(
        changes,
        folder / "copy",
        mode="append",
        primaryKey="id",
        operationColumn="_change_type",
        checkpointLocation=str(folder / "checkpoints" / "copy"),
    )


def count(spark: SparkSession, folder: Path) -> None:
    """Count the orders by state."""
    orders = spark.readStream.format("kudulite").load(str(folder / "orders"))
    run(
        orders.groupBy("state").count(),
        folder / "counts",
        mode="complete",
        primaryKey="state",
        checkpointLocation=str(folder / "checkpoints" / "counts"),
    )


def run(frame: DataFrame, target: Path, mode: str, **options: str) -> None:
    """Write all changes up to now into a table."""
    writer = frame.writeStream.format("kudulite").outputMode(mode).options(**options)
    query = writer.trigger(availableNow=True).start(str(target))
    query.awaitTermination()
    print(f"   {target.name}: {sum(p['numInputRows'] for p in query.recentProgress)} rows")


def table(states: dict[int, str]) -> pa.Table:
    """Return orders as Arrow."""
    return pa.table({"id": list(states), "state": list(states.values())}, ORDERS)


def contents(client: kudulite.Client, name: str) -> dict[int, str]:
    """Return all rows of a table."""
    return {row["id"]: row["state"] for row in client.table(name).scan().to_pylist()}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory(prefix="orders-") as temporary:
            main(Path(temporary))
