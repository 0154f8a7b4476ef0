"""Structs and maps as JSON text: from every source, and back."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest

from kudulite.errors import OptionError, SchemaError

ADDRESS = pa.struct([("street", pa.string()), ("no", pa.int64()), ("since", pa.date32())])
ITEM = pa.struct([("sku", pa.string()), ("price", pa.decimal128(9, 2))])
ROWS = pa.table(
    {
        "id": [1, 2, 3],
        "address": pa.array(
            [{"street": "Corso è", "no": 7, "since": date(2020, 1, 2)}, None, {}], ADDRESS
        ),
        "tags": pa.array([[("a", 1), ("b", None)], [], None], pa.map_(pa.string(), pa.int64())),
        "items": pa.array([[{"sku": "x", "price": Decimal("1.50")}], [], None], pa.list_(ITEM)),
        "plain": pa.array([[1, 2], [], None], pa.list_(pa.int64())),
    }
)
EXPECTED = {
    "address": [
        {"street": "Corso è", "no": 7, "since": "2020-01-02"},
        None,
        {"street": None, "no": None, "since": None},
    ],
    "tags": [{"a": 1, "b": None}, {}, None],
    "items": [[{"sku": "x", "price": "1.50"}], [], None],
}


def read_back(table) -> dict[str, list]:
    """The nested columns, in the order of the key."""
    rows = table.scan(ordered=True).to_arrow()
    assert rows["plain"].to_pylist() == ROWS["plain"].to_pylist()
    return {
        name: [None if cell is None else json.loads(cell) for cell in rows[name].to_pylist()]
        for name in EXPECTED
    }


@pytest.mark.parametrize(
    "source",
    [
        lambda: ROWS,
        lambda: ROWS.to_reader(),
        lambda: iter(ROWS.to_batches(max_chunksize=1)),
        lambda: ROWS.to_batches()[0],
        lambda: pytest.importorskip("polars").DataFrame(ROWS.drop_columns(["tags"])),
    ],
    ids=["table", "reader", "generator", "batch", "polars"],
)
def test_every_source_of_arrow_can_be_written_and_read_back(core, source):
    made = core.client().create_table("t", data=ROWS, nested="json", primary_key="id")
    assert read_back(made) == EXPECTED
    made.delete(where=())
    made.upsert(ROWS.select(["id", "tags"]), nested="json")
    made.upsert(source(), nested="json")
    assert read_back(made) == EXPECTED


def test_rows_and_frames_can_be_written(core):
    """A column with a nested value is text in all its rows, also where a list is empty."""
    client = core.client()
    rows = [{"id": 1, "a": {"x": [1, {"y": None}]}}, {"id": 2, "a": []}, {"id": 3}]
    table = client.create_table("t", data=rows, nested="json", primary_key="id")
    assert [table.get(n)["a"] for n in (1, 2, 3)] == ['{"x":[1,{"y":null}]}', "[]", None]
    frame = ROWS.drop_columns(["tags"]).to_pandas()
    found = client.create_table("f", data=frame, nested="json", primary_key="id")
    assert found.get(1)["items"] == '[{"sku":"x","price":"1.50"}]'
    assert found.get(1)["plain"] == [1, 2]


def test_values_that_json_does_not_have_keep_what_they_say(core):
    value = {
        "moment": datetime(2020, 1, 2, 3, 4, 5, 6),
        "bytes": b"\x00\xff",
        "id": UUID(int=7),
        "long": timedelta(seconds=1.5),
        7: Decimal("0.10"),
    }
    table = core.client().create_table(
        "t", data=[{"id": 1, "a": value}], nested="json", primary_key="id"
    )
    assert json.loads(table.get(1)["a"]) == {
        "moment": "2020-01-02T03:04:05.000006",
        "bytes": "AP8=",
        "id": "00000000-0000-0000-0000-000000000007",
        "long": "0:00:01.500000",
        "7": "0.10",
    }


def test_what_has_no_json_is_refused(core, tmp_path):
    table = core.client().create_table("t", data=[{"id": 1, "a": "x"}], primary_key="id")
    for value in (float("nan"), float("inf"), object()):
        with pytest.raises(SchemaError, match=r"table 't', column 'a': .* has no JSON"):
            table.upsert([{"id": 1, "a": {"v": value}}], nested="json")
    with pytest.raises(OptionError, match=r"nested is 'json' or left out, not 'struct'"):
        table.upsert([{"id": 1}], nested="struct")
    with pytest.raises(OptionError, match="these are in files"):
        table.upsert(tmp_path / "a.parquet", nested="json")
    assert list(table) == [{"id": 1, "a": "x"}]


def test_without_the_option_the_error_says_so(core):
    with pytest.raises(SchemaError, match=r'column \'address\'.* with nested="json" stores it'):
        core.client().create_table("t", data=ROWS, primary_key="id")
    table = core.client().create_table("t", data=[{"id": 1, "address": "x"}], primary_key="id")
    with pytest.raises(SchemaError, match=r'no exact meaning in string; .* nested="json"'):
        table.upsert(ROWS.select(["id", "address"]))
