"""Session: rows written one by one, durable when a flush returns.

    manual       apply only buffers; `flush` writes; a full buffer is an error
    auto         each apply writes its row, and raises what went wrong with it (also: sync)
    background   a thread writes the buffer at a watermark or an interval; apply waits for room in
                 a full buffer; `flush`, `close` and `get_pending_errors` report failures

A flush writes each tablet at one timestamp, with one fsync. Operations that fail leave the others
of their flush applied; each becomes a pending error, and the flush raises. They are not tried again
unless the caller applies them again.

A manual session loses its buffered operations if it is garbage-collected, if its `with` block
raises, or if the process exits. A background session still writes its buffer when its `with` block
raises and when the interpreter exits.

**Invariants**: (1) in manual and background mode the operations of a table are applied in the order
in which `apply` took them, whichever handles of the table made them; (2) an operation that was
applied is in the buffer, written, or a pending error; (3) unwritten operations never exceed the
buffer space.

**Threads**: any number may use one session. `_write_lock` puts flushes one after the other and is
held while files are written, `_report_lock` protects the results of past flushes and is taken last;
the buffer has its own lock. In auto mode no lock is held while a row is written. After a fork the
child must make its own session: the parent writes the buffer.

**Source**: Kudu client/client.h, KuduSession. More than two mutation buffers make no difference
here, because one flush writes at a time.
"""

from __future__ import annotations

import atexit
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import chain
from os import getpid
from typing import Never

from kudulite.client.mutation_buffer import (
    BufferSettings,
    ErrorBuffer,
    FailureSummary,
    FlushMode,
    FlushOutcome,
    MutationBuffer,
    PendingError,
)
from kudulite.client.row_operations import RowTarget, WriteOperation
from kudulite.errors import KuduliteError, OptionError, UsageError
from kudulite.model.hybrid_time import Timestamp
from kudulite.tablet.row_effects import NO_COUNTS, RowWriteResult, WriteCounts

FLUSH_MODES = {
    "manual": FlushMode.MANUAL,
    "auto": FlushMode.AUTO_SYNC,
    "sync": FlushMode.AUTO_SYNC,
    "background": FlushMode.AUTO_BACKGROUND,
}


@dataclass(frozen=True)
class SessionCounters(WriteCounts):
    """How many operations of a session had which outcome so far, and how many flushes it made."""

    failed: int = 0
    flushes: int = 0


class Session:
    """Buffered writing of single rows, to any tables; made by `Client.new_session`."""

    def __init__(
        self,
        flush_mode: str | int = "manual",
        timeout_ms: float | None = None,
        *,
        mutation_buffer_sz: int = BufferSettings.bytes_max,
        mutation_buffer_watermark: float = BufferSettings.watermark,
        mutation_buffer_flush_interval: float = 1000 * BufferSettings.interval_seconds,
        mutation_buffer_max_num: int = BufferSettings.buffer_count_max,
        **unknown: Never,
    ) -> None:
        """Make a session; it belongs to no table, and to this process.

        Each option has a setter, which explains it in full:

        flush_mode                      "manual", "auto" (or "sync"), "background", or a FLUSH_
                                        constant; see `set_flush_mode`
        timeout_ms                      how long a flush waits for another writer of a tablet; None
                                        is the lock timeout of `connect`; see `set_timeout_ms`
        mutation_buffer_sz              bytes of operations that may wait to be written; see
                                        `set_mutation_buffer_space`
        mutation_buffer_watermark       the part of these bytes, 0 to 1, at which a background
                                        session writes; see `set_mutation_buffer_flush_watermark`
        mutation_buffer_flush_interval  milliseconds that an operation may wait in a background
                                        session; see `set_mutation_buffer_flush_interval`
        mutation_buffer_max_num         buffers of a background session; 0 is no limit; see
                                        `set_mutation_buffer_max_num`

        Raises OptionError for an unknown option or an illegal value.
        """
        self._process = getpid()
        self._write_lock = threading.Lock()
        self._report_lock = threading.Lock()
        self._buffer = MutationBuffer()
        self._target: RowTarget | None = None  # of the last operation, which knows the session
        self._flusher: threading.Thread | None = None
        self._timeout_seconds: float | None = None
        self._errors = ErrorBuffer()
        self._unraised = FailureSummary()  # failures of the flusher that no call has raised
        self._counts = NO_COUNTS
        self._failed_count = 0
        self._flush_count = 0
        self._last_timestamp: int | None = None
        self.set_flush_mode(flush_mode)
        self.set_timeout_ms(timeout_ms)
        self.set_mutation_buffer_space(mutation_buffer_sz)
        self.set_mutation_buffer_flush_watermark(mutation_buffer_watermark)
        self.set_mutation_buffer_flush_interval(mutation_buffer_flush_interval)
        self.set_mutation_buffer_max_num(mutation_buffer_max_num)
        for name in unknown:
            known = ", ".join(sorted(signature(Session).parameters.keys() - {"unknown"}))
            raise OptionError(f"unknown option {name!r} of a session; known: {known}")

    def __repr__(self) -> str:
        count = len(self._buffer)
        state = "closed" if self._buffer.is_closed else f"{count} operations buffered"
        return f"<kudulite session, {self._buffer.settings.mode.name.lower()}, {state}>"

    # -- settings

    def set_flush_mode(self, flush_mode: str | int = "manual") -> None:
        """Set when the session writes, by a name or one of the FLUSH_ constants."""
        if isinstance(flush_mode, str):
            mode = FLUSH_MODES.get(flush_mode.lower())
        else:
            mode = FlushMode(flush_mode) if flush_mode in set(FlushMode) else None
        if mode is None:
            known = ", ".join(FLUSH_MODES)
            raise OptionError(f"Invalid flush mode: {flush_mode!r}; known: {known}")
        self._buffer.change("flush mode", mode=mode)

    def set_timeout_ms(self, ms: float | None) -> None:
        """Set how long a flush waits for another writer of a tablet; None: as in `connect`.

        It may be set at any time, and applies to flushes that begin later.
        """
        self._timeout_seconds = None if ms is None else _number("timeout_ms", ms) / 1000

    def set_mutation_buffer_space(self, size_bytes: int) -> None:
        """Set how many bytes of operations may wait to be written; 7 MiB unless set.

        A row counts with the width of all its columns and the bytes of its text and binary cells;
        in memory it takes several times as much. In auto mode nothing is buffered.
        """
        size = int(_number("mutation buffer space", size_bytes))
        self._buffer.change("buffer size limit", bytes_max=size)

    def set_mutation_buffer_flush_watermark(self, watermark_pct: float) -> None:
        """Set which part of the space, 0 to 1, makes a background session write; 0.5 unless set."""
        part = _number("mutation buffer watermark", watermark_pct, 1.0)
        self._buffer.change("buffer flush watermark", watermark=part)

    def set_mutation_buffer_flush_interval(self, millis: float) -> None:
        """Set how long an operation may wait in a background session; 1000 ms unless set."""
        seconds = _number("mutation buffer flush interval", millis) / 1000
        self._buffer.change("buffer flush interval", interval_seconds=seconds)

    def set_mutation_buffer_max_num(self, max_num: int) -> None:
        """Set how many buffers a background session has: with 1, apply waits while one is written.

        Two unless set; 0 is no limit.
        """
        count = int(_number("number of mutation buffers", max_num))
        self._buffer.change("limit on mutation buffers", buffer_count_max=count)

    # -- writing

    def apply(self, op: WriteOperation) -> None:
        """Take an operation; the flush mode decides when it is written.

        Raises SchemaError for an operation without its whole key or an update of nothing,
        UsageError for one that was applied before, a full buffer, or a closed session; in auto
        mode also what `flush` raises.
        """
        if not isinstance(op, WriteOperation):
            raise UsageError(f"apply takes table.new_insert(…) and the like, not {op!r}")
        self._check_process()
        size = op.complete()
        if self._buffer.settings.mode is not FlushMode.AUTO_SYNC:
            if op.target is not self._target:
                self._target = op.target
                self._target.sessions[id(self)] = self
            if self._buffer.add(op, size):
                self._start_flusher()
            return
        self._buffer.claim(op)
        outcome = self._write([op])
        if outcome.errors:
            summary = FailureSummary()
            summary.add(outcome)
            summary.raise_if_any()

    def flush(self) -> None:
        """Write the buffer, and wait until all operations applied before are durable.

        Raises RowError when rows failed, or the error that kept a tablet from being written (as
        LockTimeoutError, StorageError, TableNotFoundError), after all other operations are applied.
        In background mode this includes failures of the thread that no call has raised yet.
        """
        self._check_process()
        if self._buffer.is_closed:
            raise UsageError("the session is closed: it has written all; make another one")
        self._raise_failures(self._flush_buffered())

    def close(self) -> None:
        """Flush, and take no more operations; raises as `flush`, and is closed even then."""
        if getpid() != self._process or self._buffer.is_closed:
            return
        self._buffer.close()
        try:
            self._raise_failures(self._flush_buffered())
        finally:
            if self._flusher is not None:
                self._flusher.join()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is None:
            self.close()
            return
        if self._buffer.settings.mode is FlushMode.MANUAL:
            dropped, size = self._buffer.take()
            self._buffer.written(size)
            if dropped:
                error.add_note(f"the session drops {len(dropped)} operations: not flushed yet")
        try:
            self.close()
        except KuduliteError as failure:
            error.add_note(f"the session's last flush failed, too: {failure}")

    def __del__(self) -> None:
        # A session that could not be set up has no buffer; a forked child's is its parent's.
        count = len(self._buffer) if hasattr(self, "_buffer") else 0
        if count and getpid() == self._process:
            text = f"a session is dropped with {count} operations that were never flushed"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    # -- results

    @property
    def counters(self) -> SessionCounters:
        """Outcomes of the operations that were written so far."""
        with self._report_lock:
            return SessionCounters(
                **vars(self._counts), failed=self._failed_count, flushes=self._flush_count
            )

    @property
    def last_timestamp(self) -> Timestamp | None:
        """The highest timestamp of this session's writes; None before the first.

        A scan at this time shows all flushed operations.
        """
        return None if self._last_timestamp is None else Timestamp(self._last_timestamp)

    def has_pending_operations(self) -> bool:
        """Whether operations were applied that are not written yet."""
        return self._buffer.has_pending

    def count_buffered_operations(self) -> int:
        """Return the number of operations that no flush has begun to write."""
        return len(self._buffer)

    def unflushed_tables(self) -> Counter[str]:
        """Return the number of operations that only this process can flush, by a table's folder.

        None of a session that flushes in the background.
        """
        if getpid() != self._process or self._buffer.settings.mode is not FlushMode.MANUAL:
            return Counter()
        return self._buffer.tables()

    def count_pending_errors(self) -> int:
        """Return the number of errors that `get_pending_errors` would return."""
        return len(self._errors)

    def get_pending_errors(self) -> tuple[list[PendingError], bool]:
        """Return the errors since the last call, oldest first; also of a closed session.

        The second value is whether there were more than the session keeps; the oldest are dropped.
        """
        with self._report_lock:
            self._unraised = FailureSummary()
            return self._errors.take()

    # -- inside

    def _check_process(self) -> None:
        if getpid() != self._process:
            raise UsageError(
                f"the session belongs to process {self._process}; this is a forked child, which"
                " must make its own"
            )

    def _raise_failures(self, outcome: FlushOutcome) -> None:
        """Raise the failures of a flush, with those of the flusher before it."""
        if not outcome.errors and not self._unraised:
            return
        with self._report_lock:
            summary, self._unraised = self._unraised, FailureSummary()
        summary.add(outcome)
        summary.raise_if_any()

    def _flush_buffered(self, *, is_raised: bool = True) -> FlushOutcome:
        """Write the buffer as it is now, after any flush that is under way."""
        with self._write_lock:
            operations, size = self._buffer.take()
            try:
                if not operations:
                    return FlushOutcome()
                return self._write(operations, is_raised=is_raised)
            finally:
                self._buffer.written(size)

    def _write(
        self, operations: Sequence[WriteOperation], *, is_raised: bool = True
    ) -> FlushOutcome:
        """Write operations of any tables, those of one table in their order, in one call.

        A table that cannot be written does not keep the others from being written. However this
        ends, each operation that was not applied is a pending error. `is_raised`: the caller raises
        the failures; else a later flush does.
        """
        outcome = FlushOutcome(len(operations))
        left = _by_table(operations)
        try:
            while left:
                group = left[0]
                writer = group[0].target.writer
                try:
                    result = writer.write(group, timeout_seconds=self._timeout_seconds)
                    outcome.add(group, result)
                    self._note_written(group, result)
                except Exception as error:  # recorded for each operation, raised by the caller
                    outcome.add_failed(group, error)
                left.pop(0)
        except BaseException as error:
            outcome.add_failed(chain.from_iterable(left), error)
            raise
        finally:
            with self._report_lock:
                self._counts += outcome.counts
                self._failed_count += len(outcome.errors)
                self._flush_count += 1
                if outcome.timestamp:
                    self._last_timestamp = max(self._last_timestamp or 0, outcome.timestamp)
                bytes_max = self._buffer.settings.bytes_max
                for failed in outcome.errors:
                    self._errors.add(failed, bytes_max)
                if not is_raised:
                    self._unraised.add(outcome)
        return outcome

    def _note_written(self, operations: Sequence[WriteOperation], result: RowWriteResult) -> None:
        """Do nothing; a subclass may count operations by outcome. Called by one thread at a time,
        except in auto mode.
        """

    # -- the thread of a background session

    def _start_flusher(self) -> None:
        """Start the thread that writes in the background; it ends when it is idle.

        It is a daemon, because a waiting write must not keep the process alive. The buffer is
        therefore written by a function registered for the exit of the interpreter.
        """

        def flush_at_exit() -> None:  # one of its own for each thread, to unregister that one
            if getpid() == self._process:
                self.close()

        flusher = threading.Thread(
            target=self._run_flusher, args=(flush_at_exit,), name="kudulite-session", daemon=True
        )
        atexit.register(flush_at_exit)
        try:
            flusher.start()
        except RuntimeError:  # no more threads can be started, or the interpreter exits
            atexit.unregister(flush_at_exit)
            self._buffer.flusher_failed()
            self._flush_buffered(is_raised=False)
        else:
            self._flusher = flusher

    def _run_flusher(self, flush_at_exit: Callable[[], None]) -> None:
        try:
            while self._buffer.wait_for_work():
                self._flush_buffered(is_raised=False)
        except BaseException:
            self._buffer.flusher_failed()  # the next operation starts another
            raise
        finally:
            atexit.unregister(flush_at_exit)


def _by_table(operations: Sequence[WriteOperation]) -> list[list[WriteOperation]]:
    """Two handles of a table are one table: operations on one row stay in order."""
    groups: dict[str, list[WriteOperation]] = {}
    for operation in operations:
        groups.setdefault(operation.target.path, []).append(operation)
    return list(groups.values())


def _number(what: str, value: object, maximum: float = float("inf")) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= maximum:
        limits = "0 or more" if maximum == float("inf") else f"between 0 and {maximum:g} inclusive"
        raise OptionError(f"invalid {what}: {value!r}; it must be {limits}")
    return value
