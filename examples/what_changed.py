"""A price list, a copy that follows its changes, and the history of one row.

1. A table holds a price list: prices change, articles are added and removed.
2. Every evening, the changes since the evening before are read and applied to a copy. There is one
   row per article, with the price before, however often the price changed in between.
3. All versions of one article are read.

Each step asserts its result. Run it with

    python examples/what_changed.py            the tables live in a temporary folder
    python examples/what_changed.py FOLDER     the tables stay in FOLDER
"""

import sys
import tempfile
from pathlib import Path

import pyarrow as pa

import kudulite

PRICES = pa.schema([("article", pa.string()), ("price", pa.int64())])


def main(folder: Path) -> None:
    """Run the story in `folder`."""
    client = kudulite.connect(folder)
    layout = {"primary_key": ["article"], "hash_partitions": [(["article"], 2)]}
    prices = client.create_table("prices", PRICES, **layout)
    copy = client.create_table("copy", PRICES, **layout)
    evening = prices.current_timestamp()

    print("Monday: the price list is loaded")
    prices.insert(table({"apple": 100, "pear": 120, "plum": 90}))
    evening = follow(prices, copy, evening)

    print("Tuesday: one price changes twice, one article is removed, one is added and removed")
    session = client.new_session()
    session.apply(prices.new_update({"article": "apple", "price": 105}))
    session.apply(prices.new_delete({"article": "plum"}))
    session.apply(prices.new_insert({"article": "quince", "price": 300}))
    session.flush()
    session.apply(prices.new_delete({"article": "quince"}))
    session.apply(prices.new_update({"article": "apple", "price": 110}))
    session.flush()
    assert changed(prices, evening) == {
        "apple": [("update_preimage", 100), ("update_postimage", 110)],
        "plum": [("delete", 90)],
    }
    evening = follow(prices, copy, evening)

    print("Wednesday: plums are added again; a compaction is no change")
    prices.upsert(table({"plum": 95}))
    prices.compact()
    rising = prices.changes(evening, where=prices["price"] >= 95).to_pylist()
    assert [row["article"] for row in rising] == ["plum"]
    evening = follow(prices, copy, evening)
    assert changed(prices, evening) == {}

    print("All versions of the plum:")
    versions = prices.history("plum").to_pylist()
    for version in versions:
        print(f"   {version['_change_type']:7} {version['price']}")
    kinds = [(version["_change_type"], version["price"]) for version in versions]
    assert kinds == [("insert", 90), ("delete", 90), ("insert", 95)]
    client.close()


def table(prices: dict[str, int]) -> pa.Table:
    """Return articles with their prices as Arrow."""
    return pa.table({"article": list(prices), "price": list(prices.values())}, PRICES)


def changed(prices: kudulite.Table, since: int) -> dict[str, list[tuple]]:
    """Return the changes since a moment: article -> [(type, price), …]; of updates both images."""
    found: dict[str, list[tuple]] = {}
    for row in prices.changes(since, images="both").to_pylist():
        found.setdefault(row["article"], []).append((row["_change_type"], row["price"]))
    return found


def follow(prices: kudulite.Table, copy: kudulite.Table, since: int) -> int:
    """Apply the changes since one evening to the copy, and return the next evening."""
    changes = prices.changes(since)
    rows = changes.to_arrow()
    operations = rows.drop_columns(["_commit_version", "_commit_timestamp"])
    copy.apply(operations, operation_column="_change_type")
    assert contents(copy) == contents(prices)
    print(f"   {rows.num_rows} changes")
    return changes.end


def contents(prices: kudulite.Table) -> dict[str, int]:
    """Return the whole list."""
    return {row["article"]: row["price"] for row in prices.scan().to_pylist()}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory(prefix="prices-") as temporary:
            main(Path(temporary))
