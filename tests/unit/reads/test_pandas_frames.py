"""pandas frames: a result keeps every cell, and a frame that cannot have kept them is refused."""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from kudulite.client.table import Table
from kudulite.errors import OptionError, RowError, SchemaError
from kudulite.kudu.scanner import Scanner
from kudulite.reads.pandas_frames import BACKENDS
from tests.support.tables.core_tables import CoreTables

BIG = 2**53 + 1
NAN = float("nan")
UTC = datetime.UTC
LATE, DAY = datetime.datetime(9999, 12, 31, 23, 59), datetime.date(1, 1, 1)
TINY = pa.scalar(-(2**63), pa.int64()).cast(pa.timestamp("us"))  # NaT in numpy

# name: (type, cells)
COLUMNS = {
    "int8": (pa.int8(), [-128, None, 127]),
    "int64": (pa.int64(), [BIG, None, -(2**63)]),
    "plain": (pa.int64(), [BIG, 1, 2]),
    "bool": (pa.bool_(), [True, None, False]),
    "float": (pa.float32(), [NAN, None, 0.5]),
    "double": (pa.float64(), [NAN, None, 1e300]),
    "half": (pa.float64(), [0.5, None, -0.0]),
    "decimal": (pa.decimal128(38, 2), [Decimal(10**35) / 100, None, Decimal("-0.01")]),
    "date": (pa.date32(), [DAY, None, DAY]),
    "moment": (pa.timestamp("us", "UTC"), [LATE.replace(tzinfo=UTC), None, None]),
    "local": (pa.timestamp("us"), [LATE, None, TINY]),
    "text": (pa.string(), ["", None, "NaN"]),
    "bytes": (pa.binary(), [b"\0", None, b""]),
    "int64s": (pa.list_(pa.int64()), [[BIG, None], None, []]),
    "doubles": (pa.list_(pa.float64()), [[NAN, None], None, [1.5]]),
    "halves": (pa.list_(pa.float64()), [[0.5, None], None, [1.5]]),
    "bools": (pa.list_(pa.bool_()), [[True, None], None, []]),
    "texts": (pa.list_(pa.string()), [["x", None], None, []]),
    "dates": (pa.list_(pa.date32()), [[DAY, None], None, []]),
    "moments": (pa.list_(pa.timestamp("us", "UTC")), [[LATE.replace(tzinfo=UTC)], None, []]),
}


@pytest.fixture
def table(core: CoreTables) -> Table:
    """A table with a column of each type."""
    arrays = {name: pa.array(cells, kind) for name, (kind, cells) in COLUMNS.items()}
    rows = pa.table({"id": pa.array([1, 2, 3]), **arrays})
    made = core.client().create_table("t", rows.schema, primary_key="id")
    made.insert(rows)
    return made


def shown(rows: pa.Table) -> list[str]:
    """Rows as text, in order of the id: NaN is not equal to itself."""
    rows = rows.sort_by("id")
    return [repr(column) + str(rows.column(column)) for column in rows.column_names]


@pytest.mark.parametrize("backend", [None, "numpy_nullable", "pyarrow"])
def test_a_frame_that_is_written_back_gives_the_same_rows(table: Table, backend: str | None):
    """All types, with NULL, in columns and in lists; NaN stays NaN."""
    before = shown(table.scan().to_arrow())
    frame = table.to_pandas(dtype_backend=backend)
    assert list(frame.columns) == table.schema.names
    table.overwrite(frame)
    assert shown(table.scan().to_arrow()) == before


def test_a_column_has_numpys_type_if_that_keeps_its_cells(table: Table):
    """The others have nullable types, and lists Arrow's."""
    types = {name: str(kind) for name, kind in table.to_pandas().dtypes.items()}
    assert types == {
        "id": "int64", "plain": "int64", "half": "float64", "bool": "boolean", "int8": "Int8",
        "int64": "Int64", "float": "Float32", "double": "Float64", "decimal": "object",
        "date": "object", "moment": "datetime64[us, UTC]", "local": "timestamp[us][pyarrow]",
        "text": "object", "bytes": "object", "int64s": "list<element: int64>[pyarrow]",
        "doubles": "list<element: double>[pyarrow]", "halves": "object", "bools": "object",
        "texts": "object", "dates": "object",
        "moments": "list<element: timestamp[us, tz=UTC]>[pyarrow]",
    }  # fmt: skip
    numpy_types = table.to_pandas(dtype_backend="numpy").dtypes
    assert (str(numpy_types["int64"]), str(numpy_types["bool"])) == ("float64", "object")
    assert table.scan(["id", "int64"]).to_pandas(types_mapper=pd.ArrowDtype).dtypes.map(
        str
    ).tolist() == ["int64[pyarrow]", "int64[pyarrow]"]


def test_every_result_has_such_a_frame(table: Table):
    """Scans, changes with the row before, scanners, and none or all of the columns in question."""
    scan = table.scan(["int64", "int64s"], ordered=True)
    assert scan.to_pandas()["int64"].tolist() == [BIG, pd.NA, -(2**63)]
    assert Scanner(table).to_pandas()["int64"].dtype == "Int64"
    assert table.scan(()).to_pandas().shape == (3, 0)
    assert table.scan(where="id > 9").to_pandas().shape == (0, len(COLUMNS) + 1)
    start = table.current_timestamp()
    table.update([{"id": 1, "int64": BIG + 2}, {"id": 2, "plain": 1}])
    frame = table.changes(start, images="both", where="id = 1").to_pandas()
    assert frame["int64"].tolist() == [BIG, BIG + 2]
    assert frame["_change_type"].tolist() == ["update_preimage", "update_postimage"]
    rows = table.get_many([1, 2]).to_pandas(types_mapper=pd.ArrowDtype)
    assert rows["int64"].tolist() == [BIG + 2, pd.NA]


def test_an_unknown_backend_is_refused(table: Table):
    """With those that there are."""
    with pytest.raises(OptionError, match=", ".join(BACKENDS)):
        table.to_pandas(dtype_backend="arrow")


# -- frames that have lost something before


@pytest.fixture
def numbers(core: CoreTables) -> Table:
    """A table of whole numbers, and lists of them."""
    fields = [("id", pa.int64()), ("n", pa.int64()), ("s", pa.int32()), ("l", pa.list_(pa.int64()))]
    made = core.client().create_table("n", pa.schema(fields), primary_key="id")
    made.insert([{"id": 1, "n": BIG, "l": [BIG, None]}, {"id": 2, "l": [1]}])
    return made


def test_a_float_that_may_stand_for_several_integers_is_refused(numbers: Table):
    """Of a frame of numpy's types, in columns, in lists and as single values; nothing is written.

    2^53 itself is what 2^53 + 1 becomes.
    """
    frame = numbers.to_pandas(dtype_backend="numpy")
    message = r"from 2\^53 on"
    with pytest.raises(RowError, match=f"column 'n': row 0: value 9007199254740992.0.*{message}"):
        numbers.upsert(frame[["id", "n"]])
    with pytest.raises(RowError, match=f"column 'l'.*{message}.*Int64"):
        numbers.upsert(frame[["id", "l"]])
    for value in (2.0**53, -(2.0**53), 2.0**62, np.float64(2.0**53), np.float32(2.0**24)):
        with pytest.raises(SchemaError, match="does not tell integers apart; give an int"):
            numbers.new_update({"id": 1, "n": value})
    for array in (pa.array([2.0**24], pa.float32()), pa.array([2.0**63]), pa.array([-(2.0**53)])):
        with pytest.raises(RowError, match="give the column as integers"):
            numbers.upsert(pa.table({"id": [1], "n": array}))
    assert numbers.get(1) == {"id": 1, "n": BIG, "s": None, "l": [BIG, None]}


def test_a_float_that_is_one_integer_is_taken(numbers: Table):
    """As pandas has small numbers beside a missing one; others than whole numbers are refused."""
    frame = pd.DataFrame({"id": [1, 2, 3], "n": [2.0**53 - 1, None, -(2.0**53) + 1]})
    numbers.upsert(frame)
    stored = numbers.scan(["n"], ordered=True).to_arrow()["n"].to_pylist()
    assert stored == [2**53 - 1, None, 1 - 2**53]
    numbers.upsert([{"id": 1, "n": 5.0, "s": np.float32(2**24 - 1)}])
    assert (numbers.get(1)["n"], numbers.get(1)["s"]) == (5, 2**24 - 1)
    with pytest.raises(RowError, match=r"1\.5 does not fit"):
        numbers.upsert(pd.DataFrame({"id": [1], "n": [1.5]}))


def test_types_of_pandas_for_whole_numbers_are_exact(numbers: Table):
    """Nullable, Arrow's, unsigned, categories, objects, and records of a frame."""
    for values in (
        pd.array([BIG, None], "Int64"),
        pd.array([BIG, None], "UInt64"),
        pd.array([BIG, None], "int64[pyarrow]"),
        pd.Categorical([BIG, None], categories=[BIG]),
        pd.Series([BIG, None], dtype=object),
    ):
        numbers.upsert(pd.DataFrame({"id": [1, 2], "n": values}))
        assert numbers.scan(["n"], ordered=True).to_arrow()["n"].to_pylist() == [BIG, None]
    records = pd.DataFrame({"id": [1, 2], "n": pd.Series([BIG, 7])}).to_dict("records")
    numbers.upsert(records)
    assert numbers.get(1)["n"] == BIG
    with pytest.raises(RowError, match="does not fit int64"):
        numbers.upsert(pd.DataFrame({"id": [1], "n": np.array([2**64 - 1], np.uint64)}))


def test_nanoseconds_of_a_frame_are_refused_and_a_missing_time_is_null(core: CoreTables):
    """Whole microseconds are taken from any unit."""
    times = pd.to_datetime(["2026-01-01 00:00:00.000001", None]).astype("datetime64[ns]")
    frame = pd.DataFrame({"id": [1, 2], "at": times})
    table = core.client().create_table("t", frame, primary_key="id")
    table.upsert(frame)
    assert table.get(2)["at"] is None
    frame["at"] += pd.Timedelta(1, "ns")
    with pytest.raises(RowError, match="dt.floor"):
        table.upsert(frame)


def test_an_index_with_names_is_written(core: CoreTables):
    """As columns, of a new table too; without a name, or with that of a column, it is left out."""
    frame = pd.DataFrame({"id": [1, 2], "day": [5, 6], "n": [BIG, BIG + 2]})
    table = core.client().create_table("t", frame.set_index(["id", "day"]), primary_key="id")
    table.insert(frame.set_index(["id", "day"]))
    assert table.scan(["id", "day", "n"], ordered=True).to_arrow().to_pydict() == {
        "id": [1, 2], "day": [5, 6], "n": [BIG, BIG + 2],
    }  # fmt: skip
    table.upsert(frame.set_index("id", drop=False))
    table.upsert(frame[frame["id"] > 1])
    table.delete(frame.set_index("id")[["n"]])
    assert table.scan().count() == 0
    with pytest.raises(SchemaError, match="no column 'other'"):
        table.upsert(frame.set_index(pd.Index([1, 2], name="other")))
