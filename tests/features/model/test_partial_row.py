"""Rows of which only some cells are set."""

import datetime

import pytest

from kudulite.errors import ColumnNotFoundError, SchemaError
from kudulite.model import types as t
from kudulite.model.schema import Column, PartialRow

COLUMNS = (
    Column(0, "k", t.int32, nullable=False),
    Column(1, "s", t.varchar(3)),
    Column(2, "t", t.unixtime_micros),
)


def test_cells_are_set_by_name_or_number():
    """From a tuple, a list, a dict of both; what is not set is not there."""
    row = PartialRow(COLUMNS)
    row["k"] = 1
    row[1] = None
    assert dict(row) == {"k": 1, "s": None}
    assert (row[0], row["s"], "t" in row, len(row)) == (1, None, False, 2)
    for record in ((1, None), [1, None], {"k": 1, 1: None}, {0: 1, "s": None}):
        assert PartialRow(COLUMNS, record) == row
    assert repr(row) == "PartialRow({'k': 1, 's': None})"
    with pytest.raises(KeyError):
        row["t"]


def test_cells_are_canonical():
    """Text without a zone is UTC; it may be (text, format) as in kudu-python."""
    expected = datetime.datetime(2017, 1, 2, tzinfo=datetime.UTC)
    for given in (expected, "2017-01-02", ("02.01.17", "%d.%m.%y")):
        assert PartialRow(COLUMNS, {"t": given})["t"] == expected


WRONG = [
    ({"x": 1}, ColumnNotFoundError, "no column 'x'; columns: k, s, t"),
    ({3: 1}, ColumnNotFoundError, "no column 3; columns: k, s, t"),
    ({-1: 1}, ColumnNotFoundError, "no column -1"),
    ((1, "a", None, 4), ColumnNotFoundError, "no column 3"),
    ({"k": None}, SchemaError, "column 'k' is NOT NULL and was given None"),
    ({"k": "1"}, SchemaError, "column 'k': '1' is no int32"),
    ({"s": "four"}, SchemaError, "longer than 3 characters"),
    ({"t": datetime.datetime(2017, 1, 2)}, SchemaError, "no time zone; .* value.astimezone"),
    ({"t": ("x", "%Y")}, SchemaError, "is no unixtime_micros"),
    (7, SchemaError, "7 is no row; give a tuple, a list, or a dict"),
]


@pytest.mark.parametrize(("record", "kind", "problem"), WRONG, ids=[p for *_, p in WRONG])
def test_a_cell_that_does_not_fit_is_refused(record, kind, problem):
    """At once, naming the column."""
    with pytest.raises(kind, match=problem):
        PartialRow(COLUMNS, record)
