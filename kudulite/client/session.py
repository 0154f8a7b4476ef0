"""Session: rows written one by one, durable when a flush returns.

    manual       apply only buffers; `flush` writes; a full buffer is an error
    auto         each apply writes its row, and raises what went wrong with it (also: sync)
    background   a thread writes what is buffered at a watermark or an interval; apply waits for
                 room in a full buffer; `flush`, `close` and `get_pending_errors` tell what failed

A flush writes each tablet at one timestamp, with one fsync. Operations that fail leave the others
of their flush applied; each becomes a pending error, and the flush raises. They are not tried again
unless the caller applies them again.

Invariants: (1) in manual and background mode the operations of a table are applied in the order in
which `apply` took them, by whichever handles of the table they were made; (2) an operation that was
applied is in the buffer, written, or a pending error; (3) what is not written yet is never more
than the buffer space.

Not written is what a manual session holds when it is dropped, when its `with` block ends by an
exception, or when the process ends. A background session writes its rest at an exception and at
the end of the interpreter, too.

Threads: any number may use one session. `_write_lock` puts flushes one after the other and is held
while files are written, `_report_lock` protects what is known of past flushes, and is taken last;
the buffer has its own lock. In auto mode no lock is held while a row is written. After a fork the
child must make its own session: what is buffered, the parent writes.

Source: Kudu client/client.h, KuduSession. More than two mutation buffers make no difference here,
because one flush writes at a time.
"""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from kudulite.client.mutation_buffer import FlushMode, MutationBuffer
from kudulite.client.pending_errors import ErrorBuffer, FailureSummary, PendingError
from kudulite.client.row_flush import FlushOutcome, write_operations
from kudulite.client.row_operations import WriteOperation
from kudulite.errors import KuduliteError, OptionError, UsageError

FLUSH_MODES = {
    "manual": FlushMode.MANUAL,
    "auto": FlushMode.AUTO_SYNC,
    "sync": FlushMode.AUTO_SYNC,
    "background": FlushMode.AUTO_BACKGROUND,
}


class SessionCounters(NamedTuple):
    """What became of a session's operations so far, and how many flushes wrote them."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    ignored: int = 0
    failed: int = 0
    flushes: int = 0

    def plus(self, outcome: FlushOutcome) -> SessionCounters:
        """Return the counters after one more flush."""
        counts = outcome.counts
        return SessionCounters(
            self.inserted + counts.inserted,
            self.updated + counts.updated,
            self.deleted + counts.deleted,
            self.ignored + counts.ignored,
            self.failed + len(outcome.errors),
            self.flushes + 1,
        )


class Session:
    """Buffered writing of single rows, to any tables; made by `Client.new_session`."""

    def __init__(
        self, flush_mode: str | int = "manual", timeout_ms: float | None = None, **options: Any
    ) -> None:
        self._process = os.getpid()
        self._write_lock = threading.Lock()
        self._report_lock = threading.Lock()
        self._buffer = MutationBuffer()
        self._flusher: threading.Thread | None = None
        self._timeout_seconds: float | None = None
        self._errors = ErrorBuffer()
        self._untold = FailureSummary()  # failures of the flusher that nobody was told of
        self._counters = SessionCounters()  # replaced, never changed
        self._last_timestamp: int | None = None
        self.set_flush_mode(flush_mode)
        self.set_timeout_ms(timeout_ms)
        self._set_options(options)

    def __repr__(self) -> str:
        count = len(self._buffer)
        state = "closed" if self._buffer.is_closed else f"{count} operations buffered"
        return f"<kudulite session, {self._buffer.settings.mode.name.lower()}, {state}>"

    # -- settings

    def _set_options(self, options: dict[str, Any]) -> None:
        setters = {
            "mutation_buffer_sz": self.set_mutation_buffer_space,
            "mutation_buffer_watermark": self.set_mutation_buffer_flush_watermark,
            "mutation_buffer_flush_interval": self.set_mutation_buffer_flush_interval,
            "mutation_buffer_max_num": self.set_mutation_buffer_max_num,
        }
        for name, value in options.items():
            if name not in setters:
                raise OptionError(
                    f"unknown option {name!r} of a session; known: flush_mode, timeout_ms,"
                    f" {', '.join(setters)}"
                )
            setters[name](value)

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
        """Set how long a flush waits for another writer of a tablet; None: as `connect` was told.

        It may be set at any time, and counts for flushes that begin later.
        """
        self._timeout_seconds = None if ms is None else _number("timeout_ms", ms) / 1000

    def set_mutation_buffer_space(self, size_bytes: int) -> None:
        """Set how many bytes of operations may wait to be written; 7 MiB unless set.

        A row counts with the width of all its columns and the bytes of its text and binary cells;
        in memory it takes several times as much. In auto mode nothing is buffered.
        """
        size = int(_number("mutation buffer space", size_bytes))
        self._buffer.change("buffer size limit", bytes_max=size)

    def set_mutation_buffer_flush_watermark(self, watermark: float) -> None:
        """Set which part of the space, 0 to 1, makes a background session write; 0.5 unless set."""
        part = _number("mutation buffer watermark", watermark, 1.0)
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

    def apply(self, operation: WriteOperation) -> None:
        """Take an operation; when it is written is the flush mode's matter.

        Raises SchemaError for an operation without its whole key or an update of nothing,
        UsageError for one that was applied before, a full buffer, or a closed session; in auto
        mode also what `flush` raises.
        """
        if not isinstance(operation, WriteOperation):
            raise UsageError(f"apply takes table.new_insert(…) and the like, not {operation!r}")
        self._check_process()
        size = operation.complete()
        if self._buffer.settings.mode is not FlushMode.AUTO_SYNC:
            if self._buffer.add(operation, size):
                self._start_flusher()
            return
        self._buffer.claim(operation)
        failures = self._write([operation])
        if failures:
            _summary(failures).raise_if_any()

    def flush(self) -> None:
        """Write what is buffered, and wait until all that was applied before is durable.

        Raises RowError when rows failed, or what kept a tablet from being written (as
        LockTimeoutError, StorageError, TableNotFoundError), after all other operations are applied.
        In background mode that is also for what the thread wrote since somebody was told.
        """
        self._check_process()
        if self._buffer.is_closed:
            raise UsageError("the session is closed: it has written all; make another one")
        self._flush_and_raise()

    def close(self) -> None:
        """Flush, and take no more operations; raises as `flush`, and is closed all the same."""
        if os.getpid() != self._process or self._buffer.is_closed:
            return
        self._buffer.close()
        try:
            self._flush_and_raise()
        finally:
            if self._flusher is not None:
                self._flusher.join()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
        if count and os.getpid() == self._process:
            text = f"a session is dropped with {count} operations that were never flushed"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    # -- what happened

    @property
    def counters(self) -> SessionCounters:
        """What became of the operations that were written so far."""
        return self._counters

    @property
    def last_timestamp(self) -> int | None:
        """The highest timestamp of what this session wrote; None while that is nothing.

        A scan at this time shows all that was flushed.
        """
        return self._last_timestamp

    def has_pending_operations(self) -> bool:
        """Whether operations were applied that are not written yet."""
        return self._buffer.has_pending

    def count_buffered_operations(self) -> int:
        """Return the number of operations that no flush has begun to write."""
        return len(self._buffer)

    def count_pending_errors(self) -> int:
        """Return the number of errors that `get_pending_errors` would return."""
        return len(self._errors)

    def get_pending_errors(self) -> tuple[list[PendingError], bool]:
        """Hand out the errors since the last call, oldest first; also of a closed session.

        The second value is whether there were more than the session keeps; the oldest are gone.
        """
        with self._report_lock:
            self._untold = FailureSummary()
            return self._errors.take()

    # -- inside

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise UsageError(
                f"the session belongs to process {self._process}; this is a forked child, which"
                " must make its own"
            )

    def _flush_and_raise(self) -> None:
        failures = self._flush_buffered()
        if not failures and not self._untold:
            return
        with self._report_lock:
            untold, self._untold = self._untold, FailureSummary()
        for error in failures:
            untold.add(error)
        untold.raise_if_any()

    def _flush_buffered(self, *, is_told: bool = True) -> list[PendingError]:
        """Write what is buffered now, after any flush that is under way; return the failures."""
        with self._write_lock:
            operations, size = self._buffer.take()
            try:
                return self._write(operations, is_told=is_told) if operations else []
            finally:
                self._buffer.written(size)

    def _write(
        self, operations: Sequence[WriteOperation], *, is_told: bool = True
    ) -> list[PendingError]:
        """Write operations; return the failures, which the caller raises if `is_told`."""
        outcome = FlushOutcome()
        try:
            write_operations(operations, self._timeout_seconds, outcome)
        finally:
            with self._report_lock:
                self._counters = self._counters.plus(outcome)
                if outcome.timestamp:
                    self._last_timestamp = max(self._last_timestamp or 0, outcome.timestamp)
                bytes_max = self._buffer.settings.bytes_max
                for error in outcome.errors:
                    self._errors.add(error, bytes_max)
                    if not is_told:
                        self._untold.add(error)
        return outcome.errors

    # -- the thread of a background session

    def _start_flusher(self) -> None:
        """Start the thread that writes in the background; it ends when it is idle.

        It is a daemon, because a write that waits must not keep the process: so the end of the
        interpreter is told to write what is buffered.
        """

        def flush_at_exit() -> None:  # one of its own for each thread, to unregister that one
            if os.getpid() == self._process:
                self.close()

        flusher = threading.Thread(
            target=self._run_flusher, args=(flush_at_exit,), name="kudulite-session", daemon=True
        )
        atexit.register(flush_at_exit)
        try:
            flusher.start()
        except RuntimeError:  # no more threads are to be had, or the interpreter ends
            atexit.unregister(flush_at_exit)
            self._buffer.flusher_failed()
            self._flush_buffered(is_told=False)
        else:
            self._flusher = flusher

    def _run_flusher(self, flush_at_exit: Callable[[], None]) -> None:
        try:
            while self._buffer.wait_for_work():
                self._flush_buffered(is_told=False)
        except BaseException:
            self._buffer.flusher_failed()  # the next operation starts another
            raise
        finally:
            atexit.unregister(flush_at_exit)


def _summary(errors: Sequence[PendingError]) -> FailureSummary:
    summary = FailureSummary()
    for error in errors:
        summary.add(error)
    return summary


def _number(what: str, value: Any, maximum: float = float("inf")) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= maximum:
        limits = "0 or more" if maximum == float("inf") else f"between 0 and {maximum:g} inclusive"
        raise OptionError(f"invalid {what}: {value!r}; it must be {limits}")
    return value
