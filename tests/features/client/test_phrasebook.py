"""docs/phrasebook.md: both sides of each line run, and mean the same rows.

A library that is not installed is left out, but the calls of kudulite in its table run.
"""

import ast
import importlib.util
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kudulite

PAGE = (Path(__file__).parents[3] / "docs" / "phrasebook.md").read_text()
SECTION = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`]+)`")
# Lines whose sides say the same in rows of another form, or choose rows themselves.
OTHER_FORM = re.compile(
    r"describe|SUMMARIZE|DESCRIBE|sample|SAMPLE|head|limit|changes|versions|get\(|ALTER"
)
OF_SPARK = "Delta on Spark"

BEFORE = pa.table(
    {
        "city": ["Lima", "Oslo", "Rome"],
        "people": [9_000_000, 710_000, 2_750_000],
        "area": [2672.0, 454.0, 1285.0],
    }
)
NOW = BEFORE.set_column(1, "people", pa.array([10_000_000, 710_000, 2_750_000]))
ROWS = pa.table({"city": ["Oslo", "Bern"], "people": [720_000, 134_000], "area": [454.0, 52.0]})


def lines(section: str) -> list[tuple[str, str]]:
    """The two cells of each line of the table of a section."""
    table = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [(left.removeprefix("| "), right.removesuffix(" |")) for left, right in table[1:]]


SECTIONS = {found[1]: found[2] for found in SECTION.finditer(PAGE)}
LINES = [
    pytest.param(name, left, right, id=f"{name} {number}")
    for name, section in SECTIONS.items()
    if name != OF_SPARK
    for number, (left, right) in enumerate(lines(section))
]


def run(cell: str, names: dict[str, Any]) -> list[Any]:
    """The values of the code in a cell, None for a statement; text that is no call is left out."""
    values = []
    for code in CODE.findall(cell):
        body = ast.parse(code).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), code, "exec"), names)
        values.append(last and eval(compile(ast.Expression(last.value), code, "eval"), names))
    return values


def rows_of(value: Any) -> list[dict[str, Any]] | None:
    """Return rows in the order of the cities, of any frame; None for what has no rows."""
    if hasattr(value, "collect"):  # a LazyFrame of Polars
        value = value.collect()
    if not hasattr(value, "__arrow_c_stream__"):
        return None
    if hasattr(value, "reset_index"):  # a DataFrame of pandas, whose index is no column
        value = value.reset_index(drop=True)
    found = pa.table(value).to_pylist()
    return sorted(found, key=lambda row: str(row.get("city")))


def table_of(folder: Path) -> dict[str, Any]:
    """The names of the page: a table, its directory, new rows, and the moment of `BEFORE`."""
    client = kudulite.connect(folder / "warehouse", background_maintenance=False)
    table = client.create_table("cities", BEFORE, primary_key="city")
    table.insert(BEFORE)
    moment = table.current_timestamp()
    table.upsert(NOW, unchanged="skip")
    return {"client": client, "t": table, "rows": ROWS, "moment": moment, "kudulite": kudulite}


def pandas_names(names: dict[str, Any]) -> Any:
    import pandas as pd

    names |= {"pd": pd, "df": NOW.to_pandas(), "old": BEFORE.to_pandas(), "rows": ROWS.to_pandas()}
    names["df"].to_parquet("cities.parquet")
    return lambda: names["df"]


def polars_names(names: dict[str, Any]) -> Any:
    import polars as pl

    frame = pl.DataFrame(NOW)
    names |= {"pl": pl, "df": frame, "lf": frame.lazy(), "rows": pl.DataFrame(ROWS)}
    frame.write_parquet("cities.parquet")
    return lambda: names["df"]


def deltalake_names(names: dict[str, Any]) -> Any:
    from deltalake import DeltaTable, QueryBuilder, write_deltalake

    feed = {"delta.enableChangeDataFeed": "true"}
    write_deltalake("delta", BEFORE, configuration=feed)
    write_deltalake("delta", NOW, mode="overwrite")
    names |= {"DeltaTable": DeltaTable, "QueryBuilder": QueryBuilder, "pa": pa}
    names |= {"write_deltalake": write_deltalake, "dt": DeltaTable("delta")}
    return lambda: DeltaTable("delta").to_pyarrow_table()


def lance_names(names: dict[str, Any]) -> Any:
    import lance

    lance.write_dataset(BEFORE, "lance")
    names |= {"lance": lance, "ds": lance.write_dataset(NOW, "lance", mode="overwrite")}
    return lambda: lance.dataset("lance").to_table()


def duckdb_names(names: dict[str, Any]) -> Any:
    import duckdb

    connection = names["con"] = duckdb.connect()
    connection.register("now", NOW)
    connection.register("rows", ROWS)
    connection.execute("CREATE TABLE cities (city TEXT PRIMARY KEY, people BIGINT, area DOUBLE)")
    connection.execute("INSERT INTO cities FROM now")
    connection.execute("COPY now TO 'cities.parquet'")
    return lambda: connection.sql("FROM cities")


SETUPS = {
    "pandas": pandas_names,
    "Polars": polars_names,
    "deltalake": deltalake_names,
    "Lance": lance_names,
    "DuckDB": duckdb_names,
}


def test_each_library_has_a_setup():
    """A new section is run as well."""
    assert [*SETUPS, OF_SPARK] == list(SECTIONS)


@pytest.mark.parametrize(("library", "left", "right"), LINES)
def test_both_sides_of_a_line_mean_the_same_rows(library, left, right, tmp_path, monkeypatch):
    """Results are compared where both sides return rows, and the tables after a write."""
    monkeypatch.chdir(tmp_path)
    names = table_of(tmp_path)
    is_there = importlib.util.find_spec(library.lower()) is not None
    state = SETUPS[library](names) if is_there else None
    here = run(right, dict(names))[-1]
    if state is None:
        return
    there = run(left, names)[-1]
    if OTHER_FORM.search(f"{left} {right}"):
        return
    found, expected = rows_of(here), rows_of(there)
    if isinstance(here, kudulite.WriteResult):
        is_table = expected is not None and [*expected[0]] == names["t"].columns
        assert rows_of(names["t"]) == (expected if is_table else rows_of(state()))
    elif found is not None and expected is not None:
        assert found == expected
    elif isinstance(here, int | list | tuple) and type(here) is type(there):
        assert here == there
