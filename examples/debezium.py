"""Debezium's change events give the same table in any order, in any batches, and if repeated.

1. Debezium reports each change of a source database as an envelope: the row before, the row after,
   the operation (c create, r snapshot read, u update, d delete), and the position in the source's
   log, `source.lsn`.
2. A message queue delivers the envelopes in any order: partitions interleave, batches are delivered
   again after a crash, and a delete may arrive before the update that it followed.
3. The position orders the changes. `apply` with an operation column and an ordering column keeps
   the newest change of each key. A delete is remembered, so late changes bring no row back.
4. Spark does the same, from the JSON text.

Each step asserts its result. Run it with

    python examples/debezium.py            the tables live in a temporary folder
    python examples/debezium.py FOLDER     the tables stay in FOLDER
"""

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa

import kudulite
import kudulite_spark

OPERATIONS = {"c": "I", "r": "I", "u": "U", "d": "D"}
CUSTOMERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("email", pa.string()),
        pa.field("lsn", pa.int64()),  # stays in the table: later changes are compared with it
    ]
)
LAYOUT: dict[str, Any] = {"primary_key": ["id"], "hash_partitions": [(["id"], 2)]}
ENVELOPE = """
    before STRUCT<id: BIGINT, name: STRING, email: STRING>,
    after STRUCT<id: BIGINT, name: STRING, email: STRING>,
    op STRING, ts_ms BIGINT, source STRUCT<lsn: BIGINT>
"""


class Source:
    """A database of customers and the log of its changes, as Debezium's JSON."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.log: list[str] = []

    def write(self, customer: int, name: str | None) -> None:
        """Create, change or (without a name) delete a customer."""
        before = self.rows.pop(customer, None)
        after = None
        if name is not None:
            after = {"id": customer, "name": name, "email": f"{name.lower()}@example.org"}
            self.rows[customer] = after
        kind = "d" if after is None else "c" if before is None else "u"
        lsn = 1000 + len(self.log)
        envelope = {"before": before, "after": after, "op": kind, "source": {"lsn": lsn}}
        self.log.append(json.dumps({**envelope, "ts_ms": 1_700_000_000_000 + lsn // 7}))

    def expected(self) -> list[tuple]:
        """Return the rows that the table must have, without the positions."""
        return sorted(tuple(row.values()) for row in self.rows.values())


def main(folder: Path) -> None:
    """Run the story in `folder`."""
    client = kudulite.connect(folder)
    source = Source()
    print("The source writes: customer 3 is deleted, and 4 is deleted and created again")
    for number in range(1, 6):
        source.write(number, "New")
    for name in ("Anna", "Anne", "Annette"):
        source.write(1, name)
    source.write(3, "Carl")
    source.write(3, None)
    source.write(4, None)
    source.write(4, "Dora")

    print("The worst case: all changes arrive in reverse order")
    table = client.create_table("worst", CUSTOMERS, **LAYOUT)
    for envelope in reversed(source.log):
        table.apply(changes([envelope]), operation_column="op", ordering_column="lsn")
    assert shown(table) == source.expected()
    assert table.get(3) is None

    print("The usual case: batches in random order, one of them twice")
    for seed in range(3):
        table = client.create_table(f"shuffled_{seed}", CUSTOMERS, **LAYOUT)
        for batch in deliveries(source.log, random.Random(seed)):
            table.apply(changes(batch), operation_column="op", ordering_column="lsn")
        assert shown(table) == source.expected()

    print("The same changes in Spark")
    with_spark(source, folder / "spark")
    table = client.table("spark")
    assert shown(table) == source.expected()
    print(table.scan(ordered=True).to_pandas().to_string(index=False))


def changes(envelopes: list[str]) -> list[dict[str, Any]]:
    """Turn envelopes into change rows: the row after the change, or the key of a deleted row."""
    rows = []
    for envelope in map(json.loads, envelopes):
        row = envelope["after"] or {"id": envelope["before"]["id"], "name": None, "email": None}
        rows.append({**row, "op": OPERATIONS[envelope["op"]], "lsn": envelope["source"]["lsn"]})
    return rows


def deliveries(log: list[str], chance: random.Random) -> list[list[str]]:
    """Return a log as batches in random order, with one batch repeated."""
    shuffled = chance.sample(log, len(log))
    batches = [shuffled[start : start + 4] for start in range(0, len(log), 4)]
    return [*batches, batches[0]]


def with_spark(source: Source, path: Path) -> None:
    """Write the envelopes with the DataFrame writer; the first batch creates the table."""
    spark = kudulite_spark.local_session("debezium", cores=1)
    for batch in deliveries(source.log, random.Random(7)):
        events = spark.createDataFrame([(envelope,) for envelope in batch], "json STRING")
        rows = events.selectExpr(f"from_json(json, '{ENVELOPE}') AS e").selectExpr(
            "coalesce(e.after.id, e.before.id) AS id",
            "e.after.name AS name",
            "e.after.email AS email",
            "e.source.lsn AS lsn",
            "CASE e.op WHEN 'd' THEN 'D' WHEN 'u' THEN 'U' ELSE 'I' END AS op",
        )
        writer = rows.write.format("kudulite").mode("append")
        writer = writer.option("primaryKey", "id").option("hashPartitions", "id:2")
        writer = writer.option("operationColumn", "op").option("orderingColumn", "lsn")
        writer.save(str(path))


def shown(table: kudulite.Table) -> list[tuple]:
    """Return the rows of a table, without the positions."""
    rows = table.scan(columns=["id", "name", "email"], ordered=True).to_arrow()
    return [tuple(row.values()) for row in rows.to_pylist()]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
