"""Sessions: order, flush modes, settings, and their end."""

import threading
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudulite.client.mutation_buffer import FlushMode
from kudulite.client.session import Session, SessionCounters
from kudulite.errors import OptionError, RowError, SchemaError, UsageError
from kudulite.tablet.operation import OPERATION_NAMES
from kudulite.tablet.row_effects import WriteCounts
from tests.support.doubles.memory_table import WAIT_SECONDS, MemoryRows, MemoryTable

# -- manual


def test_nothing_is_written_before_the_flush_and_then_in_one_batch():
    """In the order of apply, also of one row's operations by two handles of the table."""
    table = MemoryTable()
    handle = MemoryTable(rows=table.rows)
    session = Session()
    session.apply(table.new_insert({"k": 1, "v": 1}))
    session.apply(handle.new_delete({"k": 1}))
    session.apply(table.new_insert({"k": 1, "v": 2}))
    assert (session.has_pending_operations(), session.count_buffered_operations()) == (True, 3)
    assert table.rows.batches == []
    session.flush()
    assert (session.has_pending_operations(), session.count_buffered_operations()) == (False, 0)
    assert len(table.rows.batches) == 1
    assert table.values() == {1: 2}
    session.flush()
    assert len(table.rows.batches) == 1
    assert session.counters == SessionCounters(inserted=2, deleted=1, flushes=1)


def test_what_is_wrong_with_an_operation_is_told_when_it_is_applied():
    """It is not buffered then."""
    session, table = Session(), MemoryTable()
    for operation in (table.new_insert({"v": 1}), table.new_update({"k": 1})):
        with pytest.raises(SchemaError):
            session.apply(operation)
    with pytest.raises(UsageError, match=r"apply takes table.new_insert\(…\) and the like, not {"):
        session.apply({"k": 1})
    assert not session.has_pending_operations()


# -- settings


def test_flush_modes_have_names_and_numbers():
    """kudu-python's, and auto for sync."""
    for mode, names in {
        FlushMode.MANUAL: ("manual", "MANUAL", 2),
        FlushMode.AUTO_SYNC: ("auto", "sync", 0, FlushMode.AUTO_SYNC),
        FlushMode.AUTO_BACKGROUND: ("background", 1),
    }.items():
        for name in names:
            assert mode.name.lower() in repr(Session(name))
    for name in ("foo", 3, None):
        with pytest.raises(OptionError, match="Invalid flush mode: .*; known: manual, auto, sync"):
            Session(name)


def test_settings_are_checked():
    """Unknown ones too."""
    session = Session(
        mutation_buffer_sz=10 << 20,
        mutation_buffer_watermark=0.5,
        mutation_buffer_flush_interval=2000,
        mutation_buffer_max_num=3,
    )
    for wrong in (
        lambda: session.set_mutation_buffer_space(-1),
        lambda: session.set_mutation_buffer_flush_watermark(1.2),
        lambda: session.set_mutation_buffer_flush_interval(-1),
        lambda: session.set_mutation_buffer_max_num(-1),
        lambda: session.set_timeout_ms("5"),
        lambda: Session(buffer=1),
    ):
        with pytest.raises(OptionError):
            wrong()
    session.apply(MemoryTable().new_insert({"k": 1}))
    for setter in (session.set_mutation_buffer_space, session.set_mutation_buffer_max_num):
        with pytest.raises(UsageError, match="when writes are buffered"):
            setter(1)
    session.flush()


def test_the_timeout_is_that_of_each_flush():
    """None leaves it to the table."""
    session, table = Session(timeout_ms=1500), MemoryTable()
    for timeout in (1500, None, 0):
        session.set_timeout_ms(timeout)
        session.apply(table.new_upsert({"k": 1}))
        session.flush()
    assert table.rows.timeouts == [1.5, None, 0.0]


def test_the_last_timestamp_shows_all_that_was_flushed():
    """It is the highest of all tables, and a flush that applied nothing leaves it."""
    session, first, second = Session(), MemoryTable("a"), MemoryTable("b")
    assert session.last_timestamp is None
    for key in (1, 2):
        session.apply(first.new_insert({"k": key}))
        session.flush()
    session.apply(second.new_insert({"k": 1}))
    session.flush()
    session.apply(first.new_insert({"k": 1}))
    with pytest.raises(RowError):
        session.flush()
    assert session.last_timestamp == 2


# -- auto


def test_in_auto_mode_each_row_is_written_when_apply_returns():
    """And its error is raised there; it is a pending error as well. Nothing is buffered."""
    session, table = Session("auto", mutation_buffer_sz=0), MemoryTable()
    session.apply(table.new_insert({"k": 1, "v": 1}))
    assert table.values() == {1: 1}
    again = table.new_insert({"k": 1, "v": 2})
    with pytest.raises(RowError, match="Already present"):
        session.apply(again)
    session.flush()
    assert session.counters == SessionCounters(inserted=1, failed=1, flushes=2)
    assert [error.operation for error in session.get_pending_errors()[0]] == [again]


def test_in_auto_mode_threads_write_beside_each_other():
    """So that the writer can give them one fsync."""
    session, table = Session("auto"), MemoryTable()
    both = threading.Barrier(2, timeout=WAIT_SECONDS)
    table.rows.before_write = lambda _: both.wait()
    threads = [
        threading.Thread(target=session.apply, args=(table.new_insert({"k": key}),))
        for key in (1, 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert set(table.values()) == {1, 2}
    assert session.counters.flushes == 2


# -- the end


@pytest.mark.parametrize("mode", ["manual", "auto", "background"])
def test_a_closed_session_has_written_all_and_takes_no_more(mode):
    """Closing again does nothing."""
    table = MemoryTable()
    with Session(mode) as session:
        session.apply(table.new_insert({"k": 1}))
    assert set(table.values()) == {1}
    session.close()
    with pytest.raises(UsageError, match="closed"):
        session.apply(table.new_insert({"k": 2}))
    with pytest.raises(UsageError, match="closed"):
        session.flush()
    assert "closed" in repr(session)


def test_a_session_that_closes_with_errors_is_closed():
    """And still tells them."""
    session, table = Session(), MemoryTable()
    session.apply(table.new_delete({"k": 1}))
    with pytest.raises(RowError):
        session.close()
    session.close()
    assert len(session.get_pending_errors()[0]) == 1


def test_an_exception_drops_what_a_manual_session_has_not_flushed():
    """The exception says so; a background session writes it, as it would have done anyway."""
    for mode, rows in (("manual", {}), ("background", {1: 1})):
        table = MemoryTable()
        with pytest.raises(LookupError) as caught, Session(mode) as session:
            session.apply(table.new_insert({"k": 1, "v": 1}))
            raise LookupError("mine")
        assert table.values() == rows
        notes = getattr(caught.value, "__notes__", [])
        assert notes == (["the session drops 1 operations: not flushed yet"] if not rows else [])


def test_an_exception_is_not_hidden_by_what_the_last_flush_raises():
    """That is a note on it."""
    table = MemoryTable()
    with pytest.raises(LookupError) as caught, Session("background") as session:
        session.apply(table.new_delete({"k": 1}))
        raise LookupError("mine")
    (note,) = caught.value.__notes__
    assert note.startswith("the session's last flush failed, too: Some errors occurred: table 't'")


def test_a_session_that_is_dropped_unflushed_warns():
    """In manual mode its rows are gone."""
    session = Session()
    session.apply(MemoryTable().new_insert({"k": 1}))
    with pytest.warns(ResourceWarning, match="dropped with 1 operations that were never flushed"):
        del session


# -- all of it


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.sampled_from(OPERATION_NAMES), st.integers(0, 3), st.integers(0, 99)),
            st.just("flush"),
            st.just("errors"),
        ),
        max_size=40,
    ),
    mode=st.sampled_from(["manual", "auto", "background"]),
    watermark=st.sampled_from([0.0, 0.001, 0.5]),
)
def test_flushes_make_no_difference_to_what_is_written(steps, mode, watermark):
    """Rows, counters and failed operations are those of the operations one after the other."""
    plain, table = MemoryRows(MemoryTable().schema), MemoryTable()
    refused, failed, counts = [], [], WriteCounts()
    session = Session(mode, mutation_buffer_watermark=watermark)

    def collect(action) -> None:
        try:
            action()
        except RowError:
            pass

    for step in steps:
        if step == "flush":
            collect(session.flush)
        elif step == "errors":
            failed += session.get_pending_errors()[0]
        else:
            name, key, value = step
            operation = getattr(table, f"new_{name}")({"k": key, "v": value})
            operation.complete()
            result = plain.write([operation])
            refused += [operation] * len(result.failures)
            counts += result.counts
            collect(lambda operation=operation: session.apply(operation))
    collect(session.close)
    failed += session.get_pending_errors()[0]
    assert table.rows.rows == plain.rows
    assert [error.operation for error in failed] == refused
    told = session.counters
    assert (told.inserted, told.updated, told.deleted, told.ignored, 0) == astuple(counts)
    assert told.failed == len(refused)
