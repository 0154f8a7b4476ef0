"""Expressions in update(set=…) give what Spark SQL gives of the same text."""

import pyarrow as pa

from kudulite import expr
from tests.support.oracle.expressions import COLUMNS, OF_NUMBERS, OF_TEXT, ROWS
from tests.support.spark.spark_tables import configured

TYPES = {"n": "BIGINT", "x": "DOUBLE", "price": "DECIMAL(10, 2)", "ok": "BOOLEAN", "day": "DATE"}
TYPES |= {"at": "TIMESTAMP", "city": "STRING"}


def test_expressions_are_those_of_spark(core, spark):
    schema = pa.schema(list(COLUMNS.items()))
    texts = [*OF_NUMBERS, *(("city", text, expected) for text, expected in OF_TEXT)]
    with configured(spark, {"spark.sql.ansi.enabled": "true", "spark.sql.session.timeZone": "UTC"}):
        rows = spark.createDataFrame(pa.Table.from_pylist(ROWS, schema)).orderBy("id")
        columns = [
            f"CAST(({text}) AS {TYPES[column]}) AS c{number}"
            for number, (column, text, _) in enumerate(texts)
        ]
        found = rows.selectExpr(*columns).toArrow()
    client = core.client()
    for number, (column, text, _) in enumerate(texts):
        table = client.create_table(f"t{number}", schema, primary_key="id")
        table.insert(ROWS)
        table.update(where=(), set={column: expr(text)})
        of_spark = found.column(number).cast(schema.field(column).type).to_pylist()
        assert table.scan(column, ordered=True).to_arrow()[column].to_pylist() == of_spark, text
