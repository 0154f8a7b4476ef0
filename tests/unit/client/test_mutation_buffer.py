"""The buffer of a session: bytes, order, room, and when the flusher has work."""

import threading

import pytest

from kudulite.client import mutation_buffer
from kudulite.client.mutation_buffer import FlushMode, MutationBuffer
from kudulite.errors import UsageError
from tests.support.doubles.memory_table import WAIT_SECONDS, MemoryTable

TABLE = MemoryTable()


def buffer_of(**settings) -> MutationBuffer:
    """A buffer in background mode, of 100 bytes, that flushes at 50."""
    buffer = MutationBuffer()
    chosen = {"mode": FlushMode.AUTO_BACKGROUND, "bytes_max": 100, "interval_seconds": 3600.0}
    buffer.change("all", **{**chosen, **settings})
    return buffer


def add(buffer: MutationBuffer, size: int, key: int = 0) -> bool:
    """Add an operation that counts as `size` bytes."""
    return buffer.add(TABLE.new_insert({"k": key}), size)


def test_taken_operations_count_until_they_are_written():
    """They are taken in the order in which they came."""
    buffer = buffer_of()
    add(buffer, 10, key=1)
    add(buffer, 20, key=2)
    assert len(buffer) == 2
    operations, size = buffer.take()
    assert [operation.key for operation in operations] == [(1,), (2,)]
    assert (size, len(buffer), buffer.has_pending) == (30, 0, True)
    buffer.written(size)
    assert not buffer.has_pending


def test_settings_do_not_change_under_what_is_pending():
    """Not even while it is being written."""
    buffer = buffer_of()
    add(buffer, 10)
    _, size = buffer.take()
    with pytest.raises(UsageError, match="Cannot change flush mode when writes are buffered"):
        buffer.change("flush mode", mode=FlushMode.MANUAL)
    buffer.written(size)
    buffer.change("flush mode", mode=FlushMode.MANUAL)


def test_a_full_manual_buffer_is_an_error_and_stays_as_it_is():
    """The message says how much is needed and how much is there."""
    buffer = buffer_of(mode=FlushMode.MANUAL)
    add(buffer, 60)
    refused = TABLE.new_insert({"k": 1})
    with pytest.raises(UsageError, match="required additional 41 when 60 of 100 already used"):
        buffer.add(refused, 41)
    assert not refused.is_applied
    assert not add(buffer, 40)


@pytest.mark.parametrize("mode", [FlushMode.MANUAL, FlushMode.AUTO_BACKGROUND])
def test_what_can_never_fit_is_refused(mode):
    """An operation larger than the space would wait for ever."""
    with pytest.raises(UsageError, match="too small to fit operation: required 101, size limit"):
        add(buffer_of(mode=mode), 101)


def test_a_flusher_is_asked_for_once_and_again_when_it_has_ended(monkeypatch):
    """It ends when nothing comes for a while."""
    monkeypatch.setattr(mutation_buffer, "IDLE_SECONDS", 0)
    buffer = buffer_of()
    assert add(buffer, 1)
    assert not add(buffer, 1)
    buffer.written(buffer.take()[1])
    assert not buffer.wait_for_work()
    assert add(buffer, 1)
    buffer.flusher_failed()
    assert add(buffer, 1)


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [({}, [50]), ({}, [25, 25]), ({"interval_seconds": 0.0}, [1]), ({"watermark": 0.0}, [1])],
    ids=["watermark", "sum", "interval", "no watermark"],
)
def test_there_is_work_at_the_watermark_and_after_the_interval(settings, sizes):
    """The interval counts from the first operation that waits."""
    buffer = buffer_of(**settings)
    for size in sizes:
        add(buffer, size)
    assert buffer.wait_for_work()


def test_closing_is_work_for_what_waits_and_the_end_of_the_flusher():
    """Below watermark and interval too."""
    buffer = buffer_of()
    add(buffer, 1)
    buffer.close()
    assert buffer.wait_for_work()
    buffer.written(buffer.take()[1])
    assert not buffer.wait_for_work()
    with pytest.raises(UsageError, match="the session is closed"):
        add(buffer, 1)
    with pytest.raises(UsageError, match="the session is closed"):
        buffer.claim(TABLE.new_insert({"k": 1}))


def in_thread(function) -> tuple[threading.Thread, list]:
    """Start `function` in a thread; the list will have its outcome."""
    results: list = []

    def run() -> None:
        try:
            results.append(function())
        except UsageError as error:
            results.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def test_whoever_waits_for_room_makes_work_and_gets_the_room():
    """The operations that fill the buffer may be below the watermark."""
    buffer = buffer_of(watermark=1.0)
    add(buffer, 60)
    thread, results = in_thread(lambda: add(buffer, 50, key=7))
    assert buffer.wait_for_work()
    buffer.written(buffer.take()[1])
    thread.join(WAIT_SECONDS)
    assert results == [False]
    assert [operation.key for operation in buffer.take()[0]] == [(7,)]


def test_closing_wakes_whoever_waits_for_room():
    """With the error that a closed session gives."""
    buffer = buffer_of(watermark=1.0)
    add(buffer, 60)
    thread, results = in_thread(lambda: add(buffer, 50))
    assert buffer.wait_for_work()  # the thread waits for room now
    buffer.close()
    thread.join(WAIT_SECONDS)
    assert "closed" in results[0]


def test_with_one_buffer_apply_waits_while_it_is_written():
    """With two there is room beside the one that is written."""
    for count, is_waiting in ((1, True), (2, False)):
        buffer = buffer_of(buffer_count_max=count)
        add(buffer, 1)
        _, size = buffer.take()
        thread, results = in_thread(lambda buffer=buffer: add(buffer, 1))
        if not is_waiting:
            thread.join(WAIT_SECONDS)
        else:
            assert results == []
            buffer.written(size)
            thread.join(WAIT_SECONDS)
        assert results == [False]


def test_an_operation_is_applied_once():
    """Also when nothing is kept of it."""
    buffer = buffer_of()
    operation = TABLE.new_insert({"k": 1})
    buffer.claim(operation)
    for again in (lambda: buffer.claim(operation), lambda: buffer.add(operation, 1)):
        with pytest.raises(UsageError, match="was applied already"):
            again()
