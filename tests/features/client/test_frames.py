"""Frames of other libraries as they are: tables made from them, and rows written from them."""

import datetime

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import kudulite
from kudulite.errors import RowError
from tests.support.tables.core_tables import CoreTables

UTC = datetime.UTC
MOMENTS = pd.to_datetime(["2026-11-21 10:00:00.123456", "2026-11-22"], format="ISO8601")
FRAME = pd.DataFrame(
    {
        "name": ["a", "b"],
        "id": np.array([1, 2], np.int32),
        "seen": MOMENTS.tz_localize("UTC"),
        "local": MOMENTS,
        "kind": pd.Categorical(["x", "y"]),
    },
    index=[7, 8],
)
ARROW = pa.Table.from_pandas(FRAME, preserve_index=False)
COLUMNS = [
    ("id", kudulite.int32),
    ("name", kudulite.string),
    ("seen", kudulite.unixtime_micros),
    ("local", kudulite.timestamp_ntz),
    ("kind", kudulite.string),
]
FRAMES = {
    "pandas": FRAME,
    "pandas schema": pa.Schema.from_pandas(FRAME, preserve_index=False),
    "arrow": ARROW,
    "batch": ARROW.to_batches()[0],
    "reader": ARROW.to_reader(),
    "polars": pl.from_arrow(ARROW),
    "duckdb": "duckdb",  # made in the test, because DuckDB complains of what lives to the exit
    "columns": {name: ARROW.column(name) for name in ARROW.column_names},
    "lists": {
        "name": ["a", "b"],
        "id": np.array([1, 2], np.int32),
        "seen": list(MOMENTS.tz_localize("UTC")),
        "local": MOMENTS,
        "kind": ["x", None],
    },
}


@pytest.mark.parametrize("kind", FRAMES)
def test_a_table_is_made_from_a_frame_and_takes_its_rows(core: CoreTables, kind):
    """Timestamps of any unit become microseconds; the rows are written by the user."""
    frame = duckdb.connect().from_arrow(ARROW) if kind == "duckdb" else FRAMES[kind]
    table = core.client().create_table("t", frame, primary_key="id")
    assert [(column.name, column.type) for column in table.schema] == COLUMNS
    assert table.scan().count() == 0
    if kind not in ("pandas schema", "reader"):
        table.insert(frame)
        row = table.get(1)
        assert row["seen"] == datetime.datetime(2026, 11, 21, 10, 0, 0, 123456, UTC)
        assert row["local"] == datetime.datetime(2026, 11, 21, 10, 0, 0, 123456)


def test_a_table_is_made_from_rows_as_dicts(core: CoreTables):
    """A column that the first row lacks is one, too."""
    rows = [{"id": 1}, {"id": 2, "city": "Rome"}]
    table = core.client().create_table("t", rows, primary_key="id")
    table.insert(rows)
    assert table.get(2) == {"id": 2, "city": "Rome"}


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_moments_of_every_unit_are_taken_where_they_are_exact(core: CoreTables, unit):
    """The row that is not exact is named."""
    moments = pa.array([1, 2], pa.timestamp(unit, "UTC"))
    rows = pa.table({"id": [1, 2], "seen": moments})
    table = core.client().create_table("t", rows, primary_key="id")
    if unit == "ns":
        with pytest.raises(RowError, match="row 0: .*dt.floor"):
            table.insert(rows)
        rows = rows.set_column(1, "seen", pa.array([1000, 2000], moments.type))
    table.insert(rows)
    expected = rows.column("seen").cast(pa.timestamp("us", "UTC")).to_pylist()
    assert table.scan(["seen"], ordered=True).to_arrow().column(0).to_pylist() == expected


def test_a_column_without_values_goes_into_every_nullable_column(core: CoreTables):
    """Pandas gives it doubles or nothing; other columns of the batch are checked as ever."""
    columns = {"id": pa.int64(), "s": pa.string(), "t": pa.timestamp("us", "UTC"), "b": pa.bool_()}
    table = core.client().create_table("t", pa.schema(columns), primary_key="id")
    table.insert(pd.DataFrame({"id": [1], "s": [np.nan], "t": [pd.NaT], "b": [None]}))
    assert table.get(1) == {"id": 1, "s": None, "t": None, "b": None}
