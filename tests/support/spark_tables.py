"""What the tests of the Spark connector share: short reads and writes, and the state of a table."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import kudulite


def save(frame: DataFrame, path: Any, mode: str = "append", **options: Any) -> None:
    """Write a DataFrame with the source's options."""
    frame.write.format("kudulite").mode(mode).options(**options).save(str(path))


def load(spark: SparkSession, path: Any, **options: Any) -> DataFrame:
    """A new DataFrame of the table at `path`."""
    return spark.read.format("kudulite").options(**options).load(str(path))


def make_table(path: Any, content: Any, types: dict[str, pa.DataType], **layout: Any) -> str:
    """Make a table with these rows, without Spark; returns its path."""
    data = pa.Table.from_pylist(
        [dict(zip(types, row, strict=True)) for row in content], schema=pa.schema(types.items())
    )
    place = Path(path)
    client = kudulite.connect(place.parent, background_maintenance=False)
    client.create_table(place.name, data.schema, **layout).upsert(data)
    return str(place)


def rows(frame: DataFrame) -> list[tuple]:
    """The rows of a DataFrame in order, NULL first."""
    return in_order(tuple(row) for row in frame.collect())


def in_order(found: Any) -> list[tuple]:
    """Rows as sorted tuples, NULL first."""
    return sorted((tuple(r) for r in found), key=lambda r: [(v is not None, v) for v in r])


def stored(path: Any, at: Any = None) -> list[tuple]:
    """The rows of the table at `path`, read without Spark, in order."""
    found = kudulite.open_table(str(path)).scan(at=at).to_arrow()
    return in_order(zip(*(column.to_pylist() for column in found.columns), strict=True))


def staged_files(path: Any) -> list[str]:
    """What uncommitted writes have left in the table's staging folder."""
    return sorted(str(place) for place in Path(path, "staging").rglob("*"))
