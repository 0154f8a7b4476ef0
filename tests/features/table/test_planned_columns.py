"""The columns of a plan after the table was altered."""

import pyarrow as pa
import pytest

from kudulite.chain.manifest import Manifest
from kudulite.chain.partition import PartitionSchema
from kudulite.chain.schema_history import SchemaChange
from kudulite.errors import ConflictError
from kudulite.model import types as t
from kudulite.model.condition import Predicate
from kudulite.model.schema import Column, Schema
from kudulite.table.scan_plan import (
    in_schema,
    planned_columns,
    schema_as_planned,
    with_planned_types,
)

SCHEMA = Schema.build(
    [Column(-1, "k", t.int32, nullable=False), *(Column(-1, n, t.string) for n in "abc")], ["k"]
)


def version(schema: Schema, *before: tuple[int, Schema]) -> Manifest:
    """Return a version of a table with earlier schemas, each with the moment at which it ended."""
    partition = PartitionSchema.build(schema, (), (), ())
    schemas = [*(earlier for _, earlier in before), schema]
    found = [
        SchemaChange.of(old, new, until)
        for (until, old), new in zip(before, schemas[1:], strict=True)
    ]
    changes = tuple(change for change in found if change is not None)
    return Manifest(
        table_id="t",
        version=1,
        created=1,
        commit_id="c",
        schema=schema,
        partition=partition,
        tablets=(),
        schema_changes=changes,
    )


def test_a_plan_knows_the_ids_of_its_columns():
    """Of the key always, of what it projects, and of what it compares."""
    columns = planned_columns(SCHEMA, ["b"], [Predicate("c", "is_null")])
    assert columns == (("k", 0, t.int32), ("b", 2, t.string), ("c", 3, t.string))


def test_without_a_change_the_schema_is_the_tables():
    """Also when other columns changed."""
    columns = planned_columns(SCHEMA, ["b"], [])
    now = SCHEMA.without_column("a").with_changed("c", {"name": "d"})
    assert schema_as_planned("t", columns, 5, version(now, (9, SCHEMA))) is now


def test_renamed_columns_have_their_old_names():
    """Even where another column has taken one of them."""
    columns = planned_columns(SCHEMA, ["b"], [])
    now = SCHEMA
    for name, new_name in (("b", "x"), ("k", "b"), ("a", "k")):
        now = now.with_changed(name, {"name": new_name})
    planned = schema_as_planned("t", columns, 5, version(now, (9, SCHEMA)))
    assert [(c.name, c.id) for c in planned] == [("k", 0), ("b", 2)]
    assert planned.key_names == ["k"]


def test_columns_that_were_widened_are_given_in_the_types_of_the_plan():
    """They are read in those that they have; what was not planned stays as it is."""
    schema = Schema.build([Column(-1, "k", t.int32, nullable=False), Column(-1, "v", t.int8)], "k")
    columns = planned_columns(schema, ["v"], [])
    now = schema.with_changed("v", {"type": t.int64})
    assert schema_as_planned("t", columns, 5, version(now, (9, schema)))["v"].type == t.int64
    planned = with_planned_types(now, columns)
    assert planned == schema
    assert with_planned_types(now, planned_columns(now, ["v"], [])) is now
    batch = pa.RecordBatch.from_pylist([{"k": 1, "v": -128}], now.arrow_schema())
    assert in_schema(batch, planned.arrow_schema()).to_pylist() == [{"k": 1, "v": -128}]
    assert in_schema(batch, planned.arrow_schema()).schema.types == [pa.int32(), pa.int8()]
    assert in_schema(batch, now.arrow_schema()) is batch


def test_a_widened_column_may_have_a_default_that_its_planned_type_cannot_hold():
    """A default of what is written means nothing to a read."""
    schema = Schema.build([Column(-1, "k", t.int32, nullable=False), Column(-1, "v", t.int8)], "k")
    columns = planned_columns(schema, ["v"], [])
    now = schema.with_changed("v", {"type": t.int64}).with_changed("v", {"write_default": 1 << 40})
    assert with_planned_types(now, columns)["v"].type == t.int8


def test_a_dropped_column_is_read_at_moments_before_the_drop():
    """With its values, also when another one of its name was added; later it is an error."""
    columns = planned_columns(SCHEMA, ["b"], [])
    without = SCHEMA.without_column("b")
    now = without.with_column(SCHEMA["b"])
    found = version(now, (9, SCHEMA), (12, without))
    planned = schema_as_planned("t", columns, 8, found)
    assert [(c.name, c.id) for c in planned] == [("k", 0), ("b", 2)]
    for moment in (9, 12):
        with pytest.raises(ConflictError, match="table 't': a read at .* 'b' of id 2, .* dropped"):
            schema_as_planned("t", columns, moment, found)
    with pytest.raises(ConflictError, match="dropped since then"):  # its cells may be gone
        schema_as_planned("t", columns, 8, version(now))


def test_a_given_column_that_was_added_after_the_moment_has_its_default():
    """As all rows of then show it now."""
    now = SCHEMA.with_column(Column(-1, "d", t.int32, read_default=4))
    found = version(now.with_changed("d", {"name": "e"}), (9, SCHEMA), (12, now))
    planned = schema_as_planned("t", planned_columns(now, ["d"], []), 5, found)
    assert (planned["d"].id, planned["d"].read_default) == (4, 4)
