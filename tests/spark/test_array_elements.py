"""Arrays with NULL elements, of every type, under expressions compiled and interpreted."""

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

import kudulite
import kudulite_spark
from tests.support.spark.spark_tables import configured, load

ELEMENTS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False]),
    "int8": (pa.int8(), [1, -2]),
    "int16": (pa.int16(), [1, -300]),
    "int32": (pa.int32(), [1, -70_000]),
    "int64": (pa.int64(), [1, -(2**40)]),
    "float": (pa.float32(), [1.5, -0.25]),
    "double": (pa.float64(), [1.5, -1e300]),
    "small": (pa.decimal128(9, 2), [Decimal("1.50"), Decimal("-2.25")]),
    "large": (pa.decimal128(38, 3), [Decimal("1.500"), Decimal("-12345678901234567890.125")]),
    "date": (pa.date32(), [datetime.date(2026, 1, 1), datetime.date(1, 1, 1)]),
    "time": (pa.timestamp("us", "UTC"), [datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)] * 2),
    "ntz": (pa.timestamp("us"), [datetime.datetime(2026, 1, 1), datetime.datetime(1582, 10, 10)]),
    "text": (pa.string(), ["a", ""]),
    "bytes": (pa.binary(), [b"a", b""]),
}
# {} is the column. Spark generates code for whole stages of at most 100 columns.
EXPRESSIONS = [
    {
        "text": "transform({}, x -> cast(x AS string))",
        "itself": "transform({}, x -> x)",
        "absent": "filter({}, x -> x IS NULL)",
        "known": "exists({}, x -> x IS NULL)",
        "sorted": "array_sort({})",
        "distinct": "array_distinct(concat({0}, {0}))",
        "first": "get({}, 0)",
    },
    {
        "cut": "slice({}, 1, 2)",
        "joined": "flatten(array({0}, {0}))",
        "chosen": "IF(k > 0, {}, NULL)",
        "packed": "named_struct('a', {}).a",
        "counted": "aggregate({}, 0, (n, x) -> n + IF(x IS NULL, 1, 0))",
        "shown": "to_json(array({}))",
        "hash": "xxhash64({})",
    },
]
KINDS = {
    "compiled": {},
    "compiled row by row": {"spark.sql.codegen.wholeStage": "false"},
    "interpreted": {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    },
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[kudulite.Table, int]:
    """A column of arrays for each type, and a moment after which all rows are deleted."""
    fields = [("k", pa.int64()), *((n, pa.list_(t)) for n, (t, _) in ELEMENTS.items())]
    client = kudulite.connect(tmp_path_factory.mktemp("arrays"), background_maintenance=False)
    table = client.create_table("t", pa.schema(fields), primary_key="k")
    rows: list[dict[str, Any]] = [{"k": k} for k in range(6)]
    for name, (_, values) in ELEMENTS.items():
        arrays = ([None, *values], [*values, None], [None], [], None, values)
        for row, array in zip(rows, arrays, strict=True):
            row[name] = array
    table.upsert(pa.Table.from_pylist(rows, pa.schema(fields)))
    table.flush()
    moment = int(table.current_timestamp())
    table.delete(pa.table({"k": range(6)}))
    return table, moment


def results(frame: DataFrame) -> list[str]:
    """Every expression of every column."""
    found = []
    for some in EXPRESSIONS:
        columns = [
            f"{text.format(name)} AS {name}_{label}"
            for name in ELEMENTS
            for label, text in some.items()
        ]
        result = frame.orderBy("k").selectExpr("k", *columns).toArrow()
        found += [f"{n}: {result[n].to_pylist()!r}" for n in result.column_names]
    return found


@pytest.fixture(scope="module")
def expected(spark, table: tuple[kudulite.Table, int]) -> list[str]:
    """The results over rows that Spark has itself; no code is generated."""
    own, moment = table
    schema = load(spark, own.path, snapshotTimestamp=moment).schema
    with configured(spark, KINDS["interpreted"]):
        return results(spark.createDataFrame(own.scan(at=moment).to_arrow(), schema))


@pytest.mark.parametrize("kind", KINDS)
def test_null_elements_are_null_in_every_expression(spark, table, expected, kind):
    """As in rows that Spark has itself: from Python, from files, and in the image of before."""
    own, moment = table
    frame = load(spark, own.path, snapshotTimestamp=moment)
    changes = load(spark, own.path, startTimestamp=moment, changeImages="both")
    before = changes.filter("_change_type = 'delete'")  # which has the row as it was
    with configured(spark, KINDS[kind]):
        assert results(frame) == expected
        assert results(before.select(frame.columns)) == expected
        assert results(kudulite_spark.read_table(spark, str(own.path), moment)) == expected
