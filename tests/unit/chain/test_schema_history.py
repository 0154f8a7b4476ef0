"""Schemas of the past, found again from what each alteration keeps."""

import random

import pytest

from kudulite.chain.schema_history import (
    PlacedColumn,
    SchemaChange,
    check_changes,
    moved_names,
    schemas_before,
    with_dropped,
)
from kudulite.model import types as t
from kudulite.model.schema import Column, Schema

SCHEMA = Schema.build(
    [Column(-1, "k", t.int32, nullable=False), *(Column(-1, n, t.int8) for n in "abc")], ["k"]
)


def column(name: str) -> Column:
    """A column to add."""
    return Column(-1, name, t.int16, read_default=4)


def altered(schema: Schema, choose: random.Random) -> Schema:
    """A schema after some random steps, one alteration."""
    for number in range(choose.randrange(4)):
        names = schema.names[1:]
        kind = choose.choice(["add", "drop", "rename", "widen", "rename key", "comment"])
        if kind == "add":
            schema = schema.with_column(column(f"new {schema.next_column_id}"))
        elif kind == "rename key":
            schema = schema.with_changed(schema.names[0], {"name": f"key {choose.random()}"})
        elif names:
            name = choose.choice(names)
            if kind == "drop":
                schema = schema.without_column(name)
            elif kind == "rename":
                schema = schema.with_changed(name, {"name": f"{name[:9]} {number}"})
            elif kind == "widen":
                schema = schema.with_changed(name, {"type": t.int64})
            else:
                schema = schema.with_changed(name, {"comment": "x"})
    return schema


def seen(schema: Schema) -> list[tuple]:
    """The parts of a schema that reads use."""
    return [(c.id, c.name, c.type, c.nullable, c.read_default) for c in schema]


@pytest.mark.parametrize("seed", range(200))
def test_every_earlier_schema_is_found(seed):
    """Its columns in their order, with the names and types of then; also from the stored form."""
    choose = random.Random(seed)
    schema, moment, schemas, changes = SCHEMA, 10, [], []
    for _ in range(choose.randrange(1, 8)):
        new, moment = altered(schema, choose), moment + choose.randrange(1, 9)
        change = SchemaChange.of(schema, new, moment)
        assert (change is None) == (seen(schema) == seen(new))
        if change is not None:
            schemas.append((moment, schema))
            changes.append(SchemaChange.from_json(change.to_json()))
            assert changes[-1] == change
        schema = new
    check_changes(changes, schema)
    found = schemas_before(changes, schema)
    assert [(until, seen(old)) for until, old in found] == [
        (until, seen(old)) for until, old in reversed(schemas)
    ]
    stored = with_dropped(changes, schema)
    known = {c.id for _, old in schemas for c in old} | {c.id for c in schema}
    assert {c.id for c in stored} == known
    assert stored.columns[: len(schema)] == schema.columns
    for _, old in schemas:
        assert all(c.type.can_widen_to(stored.column_by_id(c.id).type) for c in old)


def test_a_dropped_column_is_stored_under_a_name_of_no_other_and_may_lack_in_rows():
    """Rows that are written after the drop have no value in it."""
    schema = Schema.build(
        [Column(-1, "k", t.int32, nullable=False), Column(-1, "a", t.int8, nullable=False)], ["k"]
    )
    now = schema.without_column("a").with_column(column("dropped 1"))
    stored = with_dropped([SchemaChange.of(schema, now, 5)], now)
    assert [(c.id, c.name, c.nullable) for c in stored] == [
        (0, "k", False),
        (2, "dropped 1", True),
        (1, "dropped 1'", True),
    ]
    assert with_dropped([], now) is now


def test_the_size_of_a_change_is_that_of_what_was_altered():
    """Not that of the schema."""
    wide = Schema.build(
        [Column(-1, "k", t.int32, nullable=False), *(column(f"c{n}") for n in range(500))], ["k"]
    )
    change = SchemaChange.of(wide, wide.with_column(column("more")).without_column("c7"), 9)
    assert change == SchemaChange(9, (PlacedColumn(8, wide["c7"]),), (501,))


def test_names_that_mean_another_column_are_moved():
    """With the reason; names of columns that stay, and of added ones, are not."""
    swapped = SCHEMA
    for name, new_name in (("a", "x"), ("b", "a"), ("x", "b")):
        swapped = swapped.with_changed(name, {"name": new_name})
    swapped = swapped.with_column(column("d"))
    other = ", and its name is that of another column"
    assert moved_names(SCHEMA, swapped) == {
        "a": f"is named 'b' now{other}",
        "b": f"is named 'a' now{other}",
    }
    assert moved_names(SCHEMA, SCHEMA.without_column("c")) == {"c": "was dropped"}
    again = SCHEMA.without_column("c").with_column(column("c"))
    assert moved_names(SCHEMA, again) == {"c": f"was dropped{other}"}
    assert moved_names(SCHEMA, SCHEMA) == moved_names(SCHEMA, SCHEMA.with_column(column("d"))) == {}
