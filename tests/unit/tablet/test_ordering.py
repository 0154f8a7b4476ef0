"""Ordering columns of any type: the order of the batch and against the table is the same."""

import datetime
from decimal import Decimal

import pytest

import kudulite
from tests.support.tables.core_tables import CoreTables

NAN = float("nan")
LOW_AND_HIGH = {
    "int64": (kudulite.int64, -5, 1 << 62),
    "double": (kudulite.double, -0.5, 1e300),
    "NaN is the greatest": (kudulite.double, 1e300, NAN),
    "string": (kudulite.string, "Z", "a"),
    "binary": (kudulite.binary, b"\x7f", b"\xff"),
    "decimal": ("decimal(9, 3)", Decimal("-1.5"), Decimal("1.125")),
    "date": (kudulite.date, datetime.date(1969, 1, 1), datetime.date(2020, 1, 1)),
    "bool": (kudulite.bool_, False, True),
    "timestamp": (
        kudulite.unixtime_micros,
        datetime.datetime(1969, 1, 1, tzinfo=datetime.UTC),
        datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
    ),
}


@pytest.mark.parametrize("name", LOW_AND_HIGH)
def test_the_higher_value_wins_in_a_batch_and_against_the_table(core: CoreTables, name: str):
    """Whatever comes first; of equal values the greater cells, or a delete."""
    column_type, low, high = LOW_AND_HIGH[name]
    columns = [
        kudulite.column("k", kudulite.int32),
        kudulite.column("v", kudulite.string),
        kudulite.column("o", column_type),
    ]
    table = core.client().create_table("t", kudulite.schema(columns, "k"))

    def apply(*rows) -> list[str]:
        data = [{"op": "U", "k": k, "v": v, "o": o} for k, v, o in rows]
        table.apply(data, ordering_column="o")
        return table.scan(["v"], ordered=True).to_arrow()["v"].to_pylist()

    first = apply((1, "high", high), (1, "low", low), (2, "low", low), (2, "high", high))
    assert first == ["high", "high"]
    assert apply((1, "later low", low), (2, "less", high)) == ["high", "less"]
    assert apply((1, "equal", high), (1, "equal, less", high)) == ["high", "less"]
    assert apply((1, "more", high), (1, "a", high), (2, "HIGH", high)) == ["more", "less"]
    assert table.apply([{"op": "D", "k": 1, "o": low}], ordering_column="o").ignored == 1
    assert table.apply([{"op": "D", "k": 1, "o": high}], ordering_column="o").deleted == 1
    assert apply((1, "zzz", high), (1, "later low", low)) == ["less"]
