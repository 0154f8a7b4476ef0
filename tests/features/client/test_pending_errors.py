"""Operations that fail: the others are applied, and each failure is told."""

from collections.abc import Sequence

import pytest

from kudulite.client import mutation_buffer
from kudulite.client.session import Session, SessionCounters
from kudulite.errors import (
    KuduliteError,
    LockTimeoutError,
    RowError,
    StorageError,
    TableNotFoundError,
    UsageError,
)
from tests.support.doubles.memory_table import MemoryTable


def test_failed_rows_leave_the_others_of_their_flush_applied():
    """The flush raises after that, once; each error has its operation and Kudu's words."""
    table = MemoryTable()
    session = Session()
    session.apply(table.new_insert({"k": 1, "v": 1}))
    session.flush()
    operations = [
        table.new_insert({"k": 1, "v": 9}),
        table.new_update({"k": 5, "v": 9}),
        table.new_insert_ignore({"k": 1, "v": 9}),
        table.new_insert({"k": 2, "v": 2}),
    ]
    for operation in operations:
        session.apply(operation)
    with pytest.raises(RowError, match="^2 of 4 operations failed ") as caught:
        session.flush()
    assert "1 × Already present: key already present" in str(caught.value)
    assert caught.value.reason == RowError.REASON_ALREADY_PRESENT
    assert (caught.value.row_count, caught.value.keys) == (2, ((1,), (5,)))
    assert table.values() == {1: 1, 2: 2}
    assert session.counters == SessionCounters(inserted=2, ignored=1, failed=2, flushes=2)
    session.flush()
    assert session.count_pending_errors() == 2
    errors, overflowed = session.get_pending_errors()
    assert not overflowed
    assert [error.operation for error in errors] == operations[:2]
    assert errors[0].row == {"k": 1, "v": 9}
    assert errors[0].failed_op() == "INSERT int32 k=1, int64 v=9"
    assert errors[0].status == "Already present: key already present"
    assert errors[1].status == "Not found: key not found"
    assert errors[1].reason == RowError.REASON_NOT_FOUND
    assert not errors[0].was_possibly_successful()
    assert repr(errors[0]).startswith("""PendingError("table 't': INSERT int32 k=1""")
    assert session.get_pending_errors() == ([], False)


def test_a_single_failure_is_told_whole():
    """Table, operation and reason stand in the message."""
    session, table = Session(), MemoryTable("metrics")
    session.apply(table.new_update({"k": 1, "v": 1}))
    message = "^Some errors occurred: table 'metrics': UPDATE int32 k=1, int64 v=1: Not found: key"
    with pytest.raises(RowError, match=message):
        session.flush()


def test_a_failed_operation_may_be_changed_and_applied_again():
    """Nothing is tried again by itself."""
    session, table = Session(), MemoryTable()
    operation = table.new_update({"k": 1, "v": 1})
    session.apply(operation)
    with pytest.raises(UsageError, match="was applied already"):
        session.apply(operation)
    with pytest.raises(RowError):
        session.flush()
    session.apply(table.new_insert({"k": 1, "v": 0}))
    operation["v"] = 2
    session.apply(operation)
    session.flush()
    assert table.values() == {1: 2}
    with pytest.raises(UsageError, match="was applied already"):
        session.apply(operation)


def test_a_tablet_that_cannot_be_written_is_an_error_of_its_own_class():
    """Raised after all others are applied; which operations it kept out is in the errors."""
    session, table, other = Session(), MemoryTable("a"), MemoryTable("b")
    shared = LockTimeoutError("tablet x is locked")
    table.rows.unwritable = {(1,): shared, (2,): shared}
    for key in (1, 2, 3):
        session.apply(table.new_upsert({"k": key}))
    session.apply(table.new_delete({"k": 4}))
    session.apply(other.new_upsert({"k": 5}))
    with pytest.raises(LockTimeoutError, match="tablet x is locked") as caught:
        session.flush()
    assert caught.value is not shared
    assert caught.value.__cause__ is shared
    assert not hasattr(shared, "__notes__")
    assert "3 of 5 operations failed (2 × Timed out: tablet x" in caught.value.__notes__[0]
    assert (set(table.values()), set(other.values())) == ({3}, {5})
    errors, _ = session.get_pending_errors()
    assert [(error.table, error.row["k"]) for error in errors] == [("a", 1), ("a", 2), ("a", 4)]
    assert errors[0].error is shared
    assert errors[0].reason == ""
    table.rows.unwritable = {}
    for error in errors[:2]:
        session.apply(error.operation)
    session.flush()
    assert set(table.values()) == {1, 2, 3}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (TableNotFoundError("no table"), "Not found: no table"),
        (StorageError("no space"), "IO error: no space"),
        (KuduliteError("later"), "Service unavailable: later"),
        (UsageError("wrong"), "Invalid argument: wrong"),
    ],
)
def test_a_table_that_cannot_be_written_keeps_no_other_from_it(error, status):
    """As one that was deleted; the session goes on."""
    session, bad, good = Session(), MemoryTable("bad"), MemoryTable("good")

    def fail(_: Sequence) -> None:
        raise error

    bad.rows.before_write = fail
    for table in (bad, good, bad):
        session.apply(table.new_upsert({"k": 1}))
    with pytest.raises(type(error), match=str(error)):
        session.flush()
    assert set(good.values()) == {1}
    errors, _ = session.get_pending_errors()
    assert [pending.status for pending in errors] == [status] * 2
    assert not errors[0].was_possibly_successful()


def test_something_unforeseen_may_have_been_successful():
    """The exception is raised as it is, and the operations are not lost."""
    session, table = Session(), MemoryTable()

    def fail(_: Sequence) -> None:
        raise ZeroDivisionError("a bug")

    table.rows.before_write = fail
    session.apply(table.new_upsert({"k": 1}))
    with pytest.raises(ZeroDivisionError, match="a bug"):
        session.flush()
    (error,), _ = session.get_pending_errors()
    assert error.was_possibly_successful()
    assert error.status == "Runtime error: ZeroDivisionError: a bug"


def test_an_interrupted_flush_accounts_for_every_operation():
    """Also for those of tables that it had not come to."""
    session, first, second = Session(), MemoryTable("a"), MemoryTable("b")

    def interrupt(_: Sequence) -> None:
        raise KeyboardInterrupt

    first.rows.before_write = interrupt
    session.apply(first.new_upsert({"k": 1}))
    session.apply(second.new_upsert({"k": 2}))
    with pytest.raises(KeyboardInterrupt):
        session.flush()
    assert not session.has_pending_operations()
    errors, _ = session.get_pending_errors()
    assert [error.row["k"] for error in errors] == [1, 2]
    assert all(error.was_possibly_successful() for error in errors)


def test_errors_beyond_their_buffer_leave_the_newest(monkeypatch):
    """But all errors of one full buffer fit."""
    monkeypatch.setattr(mutation_buffer, "ERROR_BYTES_MAX", 0)
    table = MemoryTable()
    size = table.new_delete({"k": 0}).complete()
    session = Session(mutation_buffer_sz=3 * size)
    for keys in ((1, 2, 3), (4,)):
        for key in keys:
            session.apply(table.new_delete({"k": key}))
        with pytest.raises(RowError):
            session.flush()
    errors, overflowed = session.get_pending_errors()
    assert [error.row["k"] for error in errors] == [2, 3, 4]
    assert overflowed
    assert session.get_pending_errors() == ([], False)
