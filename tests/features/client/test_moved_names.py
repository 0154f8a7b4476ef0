"""Writes that were made before an alteration never set a column that has taken a name of theirs."""

from __future__ import annotations

import pytest

import kudulite
from kudulite import Client, Table
from kudulite.errors import ColumnNotFoundError, ConflictError, SchemaError
from tests.support.tables.core_tables import CoreTables, altered
from tests.support.tables.moved_columns import renewed, rows_table, swapped


@pytest.fixture
def client(core: CoreTables) -> Client:
    """A client."""
    return core.client()


@pytest.fixture
def table(client: Client) -> Table:
    """A table of two tablets, with its rows in memory."""
    return rows_table(client)


@pytest.mark.parametrize("alter", [renewed, swapped])
@pytest.mark.parametrize("is_applied", [False, True])
def test_an_operation_that_was_made_before_never_writes_another_column(
    core, table, alter, is_applied
):
    """It fails, with the reason, whether it waited in a session or was applied later."""
    session, here = core.client().new_session(), core.client().table("t")
    operation = here.new_update({"k": 1, "a": 5})
    other = here.new_delete({"k": 2})
    if is_applied:
        session.apply(operation)
    alter(core.client())
    if not is_applied:
        session.apply(operation)
    session.apply(other)
    with pytest.raises(SchemaError, match="column 'a' of a row (was dropped|is named 'b' now)"):
        session.flush()
    errors, _ = session.get_pending_errors()
    assert [(error.operation, error.was_possibly_successful()) for error in errors] == [
        (operation, False)
    ]
    found = core.client().table("t")
    assert found.get(1) in ({"k": 1, "b": 10, "a": "new"}, {"k": 1, "b": 1, "a": 10})
    assert found.get(2) is None
    # The handle has learned of the alteration.
    again = here.new_update({"k": 1, "a": found.get(1)["a"]})
    session.apply(again)
    session.flush()


def test_an_operation_takes_a_new_column_unless_a_name_in_it_has_moved(core, table):
    """Cells that are set already would mean other columns."""
    here = core.client().table("t")
    plain, moved = here.new_upsert({"k": 7, "b": 1}), here.new_update({"k": 1, "a": 5})
    renewed(core.client())
    altered(core.client(), "t", lambda alterer: alterer.add_column("c", kudulite.int8))
    plain["c"] = 3
    with pytest.raises(ColumnNotFoundError, match="no column 'c'"):
        moved["c"] = 3
    session = core.client().new_session()
    session.apply(plain)
    session.flush()
    assert core.client().table("t").get(7) == {"k": 7, "b": 1, "a": "new", "c": 3}


@pytest.mark.parametrize("alter", [renewed, swapped])
def test_rows_that_were_read_under_other_columns_are_not_written(client, table, alter):
    """A computed write names the moment of its rows; a bulk write that was staged is refused."""
    moment = table.current_timestamp()
    rows = table.scan(at=moment).to_arrow()
    staged = table.new_bulk_write("upsert")
    part = staged.stage(rows.to_batches())
    table = alter(client)
    with pytest.raises(ConflictError, match="were read at .*, and their column '[ab]' (is|was)"):
        table.upsert(rows, read_at=moment)
    with pytest.raises(ConflictError, match="the schema was altered during a write"):
        staged.commit([part])
    table.upsert(rows.select(["k"]), read_at=moment)
