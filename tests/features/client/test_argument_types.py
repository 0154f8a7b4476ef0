"""Arguments of a wrong type are refused, and the table stays readable by everybody."""

import datetime
from collections.abc import Callable

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import kudulite
from kudulite.errors import KuduliteError, OptionError, SchemaError, UsageError

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int32())])
ROW = {"id": 2, "v": 2}


@pytest.fixture
def client(tmp_path) -> kudulite.Client:
    """Of a folder with one table."""
    client = kudulite.connect(tmp_path, background_maintenance=False)
    table = client.create_table("t", SCHEMA, primary_key="id")
    table.insert([{"id": 1, "v": 1}])
    table.flush()
    return client


@pytest.fixture
def table(client) -> kudulite.Table:
    """Of one row."""
    return client.table("t")


def assert_readable(table: kudulite.Table) -> None:
    """By those who parse the newest manifest."""
    assert kudulite.open_table(table.path).scan().to_pylist() == [{"id": 1, "v": 1}]


@pytest.mark.parametrize(
    "version", ["2", 2.0, True, 1 << 63, -(1 << 63) - 1, float("nan"), np.int64(2), None]
)
def test_an_application_version_is_a_number_of_64_bits(table, version):
    """The manifest keeps it, and another number could not be read again."""
    with pytest.raises(OptionError, match="'t': a write has an application_id, a text, and an"):
        table.upsert([ROW], application_id="job", application_version=version)
    with pytest.raises(OptionError, match="whole number of 64 bits, or neither; found 'job' and"):
        table.new_bulk_write("upsert").for_application("job", version)
    assert_readable(table)


@pytest.mark.parametrize("name", [5, b"job", ("job",), None])
def test_an_application_is_a_text(table, name):
    """A number would be a text in the manifest, and not be found again."""
    with pytest.raises(OptionError, match="an application_id, a text, and"):
        table.upsert([ROW], application_id=name, application_version=1)
    assert_readable(table)


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ({"nullable": 1}, "nullable is True or False, not 1"),
        ({"nullable": "no"}, "nullable is True or False, not 'no'"),
        ({"mutable": "no"}, "mutable is True or False, not 'no'"),
        ({"encoding": 3}, "encoding is a text, not 3"),
        ({"compression": 3}, "compression is a text, not 3"),
    ],
)
def test_attributes_of_columns_have_their_types(client, table, attribute, expected):
    """Of a new table, and of a column that is added."""
    with pytest.raises(SchemaError, match=f"column 'n': {expected}"):
        kudulite.column("n", "int32", **attribute)
    alterer = client.new_table_alterer(table)
    with pytest.raises(SchemaError, match=f"column 'n': {expected}"):
        alterer.add_column("n", "int32", **attribute)
        alterer.alter()
    assert_readable(table)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: kudulite.decimal(9.0, 2), r"decimal precision 9\.0 is not within 1\.\.38"),
        (lambda: kudulite.decimal(9, True), "decimal scale True is not within 0..9"),
        (lambda: kudulite.decimal("9"), "decimal precision '9' is not within"),
        (lambda: kudulite.varchar(5.0), r"varchar length 5\.0 is not within 1\.\.65535"),
        (lambda: kudulite.varchar("5"), "varchar length '5' is not within"),
        (lambda: kudulite.array(5), "array elements are scalars, not 5"),
    ],
)
def test_parameters_of_types_are_whole_numbers(make: Callable[[], object], expected):
    """`decimal(9.0, 2)` would be a type that no other process knows."""
    with pytest.raises(SchemaError, match=expected):
        make()


@pytest.mark.parametrize(
    "seconds", [1 << 70, "7d", datetime.timedelta(1), float("inf"), float("nan"), True, -1]
)
def test_a_retention_is_a_number_of_seconds(client, table, seconds):
    """That the manifest can keep."""
    with pytest.raises(UsageError, match=r"a history of .* seconds: give a number from 0 to"):
        client.new_table_alterer(table).set_history_retention(seconds).alter()
    assert_readable(table)


@pytest.mark.parametrize("option", ["overwrite", "ignore_null"])
def test_flags_are_true_or_false(table, option):
    """`overwrite="false"` would remove all other rows."""
    with pytest.raises(OptionError, match=f"'t': {option} is True or False, not 'false'"):
        table.upsert([ROW], **{option: "false"})
    assert_readable(table)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (
            {"id": 2, "v": [1]},
            r"column 'id': a dict has the values of each column, found 2; give one row as a list",
        ),
        ({"id": [1], "v": "55"}, "column 'v': a dict has the values of each column, found '55'"),
        (pd.Series([1], name="id"), "cannot read rows from Series; give a pyarrow Table"),
        (pl.Series("id", [1]), "cannot read rows from Series: .*; give a pyarrow Table"),
        (pa.chunked_array([[1]]), "cannot read rows from ChunkedArray: .*; give a pyarrow Table"),
        (pl.DataFrame({"id": pl.Series([1], dtype=pl.Int128)}), "cannot read rows from DataFrame"),
        (pd.DataFrame({"id": pd.arrays.SparseArray([1])}), "column 'id': its values have no"),
    ],
)
def test_what_is_no_table_of_rows_is_a_schema_error(table, rows, expected):
    """With the table's name and what to give."""
    with pytest.raises(SchemaError, match=expected):
        table.upsert(rows)
    assert_readable(table)


@pytest.mark.parametrize(
    "operation", ["insert", "upsert", "update", "update_ignore", "delete", "delete_ignore"]
)
def test_no_rows_change_nothing(table, operation):
    """Also of an update, for which no row names a column."""
    version = table.version
    assert getattr(table, operation)([]).version == version
    assert_readable(table)


def test_a_table_is_staged_like_its_batches(table):
    """As `upsert` takes it."""
    write = table.new_bulk_write("upsert")
    rows = pa.table({"id": [2, 3], "v": [2, 3]})
    result = write.commit([write.stage(rows), write.stage(rows.to_batches()[0], 1)])
    assert (result.inserted, result.updated) == (2, 2)


def test_a_column_twice_cannot_go_to_an_engine(table):
    """Arrow has both; Polars and SQL would have to invent a name."""
    scan = table.scan(columns=["id", "id"])
    assert scan.to_arrow().num_columns == 2
    for convert in (scan.to_polars, scan.to_duckdb):
        with pytest.raises(KuduliteError, match=r"a scan of a column twice, \['id', 'id'\]"):
            convert()


def test_a_copy_without_its_past_keeps_the_numbers_of_its_rows(client, tmp_path):
    """And numbers new ones after them."""
    columns = [kudulite.column("h", "string"), kudulite.column("v", "int32")]
    table = client.create_table("numbered", kudulite.schema(columns, "h", is_unique=False))
    table.insert([{"h": "a", "v": 1}, {"h": "a", "v": 2}])
    table.delete(where="v = 1")
    table.copy_to(tmp_path / "copy", with_past=False)
    copy = client.table("copy")
    assert copy.scan().to_pylist() == table.scan().to_pylist()
    copy.insert([{"h": "a", "v": 3}])
    numbers = [(row["auto_incrementing_id"], row["v"]) for row in copy.scan().to_pylist()]
    assert sorted(numbers) == [(2, 2), (3, 3)]
