"""Random statements of Spark SQL on a table of a catalog, beside a dictionary."""

import random
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import kudulite

Model = dict[int, tuple[str | None, float | None]]


def rows(spark: SparkSession, text: str) -> list[tuple[Any, ...]]:
    """The rows of a statement."""
    return [tuple(row) for row in spark.sql(text).collect()]


def stored(spark: SparkSession, table: str) -> Model:
    """The rows of a table (id, host, v)."""
    return {key: (host, v) for key, host, v in rows(spark, f"SELECT id, host, v FROM {table}")}


def made(spark: SparkSession, table: str) -> Model:
    """Make a table (id, host, v) with ten rows, and return them."""
    spark.sql(
        f"CREATE TABLE {table} (id BIGINT, host STRING, v DOUBLE, PRIMARY KEY (id))"
        " PARTITIONED BY (bucket(2, id))"
    )
    model: Model = {k: (f"h{k % 3}", k / 2) for k in range(10)}
    values = ", ".join(f"({k}, '{host}', {v}D)" for k, (host, v) in model.items())
    spark.sql(f"INSERT INTO {table} VALUES {values}")
    return model


def random_statement(rng: random.Random, table: str, model: Model) -> tuple[str, Model]:
    """A statement, and the rows after it."""
    low, high = sorted(rng.sample(range(14), 2))
    kind = rng.choice(["update", "delete", "merge", "merge", "upsert", "overwrite"])
    inside = {k for k in model if low <= k < high}
    if kind == "update":
        text = f"UPDATE {table} SET v = v + 1, host = 'u' WHERE id >= {low} AND id < {high}"
        new = {k: ("u", None if v is None else v + 1) for k, (_, v) in model.items() if k in inside}
        return text, {**model, **new}
    if kind == "delete":
        text = f"DELETE FROM {table} WHERE id >= {low} AND id < {high}"
        return text, {k: row for k, row in model.items() if k not in inside}
    source = {k: (f"s{k}", float(rng.randrange(100))) for k in rng.sample(range(14), 5)}
    values = ", ".join(f"({k}, '{host}', {v}D)" for k, (host, v) in source.items())
    if kind == "upsert":
        text = f"INSERT INTO {table} WITH (operation='upsert') VALUES {values}"
        return text, {**model, **source}
    if kind == "overwrite":
        return f"INSERT OVERWRITE {table} VALUES {values}", dict(source)
    text = (
        f"MERGE INTO {table} t USING (SELECT * FROM VALUES {values} AS s(id, host, v)) s"
        f" ON t.id = s.id WHEN MATCHED AND t.id < {low} THEN DELETE"
        " WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED AND s.v < 80 THEN INSERT *"
        f" WHEN NOT MATCHED BY SOURCE AND t.id >= {high} THEN UPDATE SET host = NULL"
        f" WHEN NOT MATCHED BY SOURCE AND t.id = {low} THEN DELETE"
    )
    after = dict(model)
    for k, (host, v) in model.items():
        if k in source:
            if k < low:
                del after[k]
            else:
                after[k] = (host, source[k][1])
        elif k >= high:
            after[k] = (None, v)
        elif k == low:
            del after[k]
    for k, row in source.items():
        if k not in model and row[1] < 80:
            after[k] = row
    return text, after


def run_random_statements(
    spark: SparkSession, catalog: str, folder: Path, seed: int, count: int
) -> None:
    """Run statements on a new table `t` of the catalog over `folder`; each equals the model."""
    rng = random.Random(seed)
    t = f"{catalog}.t{seed}"
    model = made(spark, t)
    table = kudulite.connect(folder).table(f"t{seed}")
    past: list[tuple[int, Model]] = []
    for _ in range(count):
        past.append((int(table.current_timestamp()), model))
        text, model = random_statement(rng, t, model)
        spark.sql(text)
        assert stored(spark, t) == model, text
        if rng.random() < 0.2:
            table.maintain()
    for moment, then in past:
        assert stored(spark, f"{t} VERSION AS OF '{moment}'") == then
    table.check().raise_if_bad()
