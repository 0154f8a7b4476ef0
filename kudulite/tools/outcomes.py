"""The outcomes of one command on many tables, side by side, and one table that shows them.

    table  state    seconds  version   rows  …
    tab_1  ok          0.21       12  1,000
    tab_2  damaged     0.03
    tab_3  ok          0.19        4    200

    kudulite: wh/tab_2: a table without its manifest: …

A process works on one table at a time. The error of a table is its own outcome, and so is the end
of a process that the system has killed, as where no memory is left: all other tables are done. The
command ends with status 1 if a table is damaged or the work on it failed. A table of a directory
that another process has deleted meanwhile is neither. If the command is killed, its processes end.

Work that only reads metadata is done in this process, since the start of another one takes longer.
Where it waits for a network, it is done in threads.

**Threads**: each process has a thread here that gives it tables and waits for it.
"""

from __future__ import annotations

import enum
import errno
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextvars import copy_context
from dataclasses import dataclass, replace
from os import _exit, cpu_count
from queue import SimpleQueue
from typing import Annotated, Any

import typer

from kudulite.errors import CorruptionError, KuduliteError, StorageError, TableNotFoundError
from kudulite.shown.progress import Progress
from kudulite.tools.addresses import (
    address_of,
    environment_of,
    given_storage_options,
    use_storage_options,
)
from kudulite.tools.choice import Choice
from kudulite.tools.output import print_json, print_rows

Processes = Annotated[
    int | None,
    typer.Option(
        help="Of many tables: how many at once; one for each processor by default.", min=1
    ),
]
FigureProcesses = Annotated[
    int | None, typer.Option(help="Of many tables: read them in so many other processes.", min=1)
]

Work = Callable[[str], Any]


class State(enum.StrEnum):
    """How the work on a table has ended."""

    OK = "ok"
    DAMAGED = "damaged"
    FAILED = "failed"
    DELETED = "deleted"  # by another process, since its directory was listed


@dataclass(frozen=True)
class Outcome:
    """The end of the work on one table: its result, or the error that it ended with."""

    address: str
    state: State
    seconds: float
    result: Any = None
    error: str | None = None

    @property
    def is_bad(self) -> bool:
        """Whether the command has to end with status 1 for the table."""
        return self.state in (State.DAMAGED, State.FAILED)

    def damaged(self, problems: Sequence[str]) -> Outcome:
        """Return the outcome of a table in which the work has found problems, if there are any."""
        if not problems:
            return self
        count = f"{len(problems)} problem{'' if len(problems) == 1 else 's'}"
        return replace(self, state=State.DAMAGED, error="\n  ".join([f"{count}:", *problems]))


def outcomes_in_processes(
    work: Work, choice: Choice, about: str, processes: int | None
) -> list[Outcome]:
    """Return the outcomes of work on tables in other processes, in the order of the tables.

    `work` is a function of a module, or a `partial` of one.
    """
    count = min(processes or cpu_count() or 1, len(choice.addresses))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "kudulite.tools.cli"])
    idle: SimpleQueue[_Worker] = SimpleQueue()
    for _ in range(count):
        idle.put(_Worker(context))

    def run(address: str) -> Outcome:
        worker = idle.get()
        try:
            return worker.run(work, address)
        finally:
            idle.put(worker)

    try:
        return _in_threads(run, choice, about, count)
    finally:
        for _ in range(count):
            idle.get().close()


def figure_outcomes(work: Work, choice: Choice, about: str, processes: int | None) -> list[Outcome]:
    """Return the outcomes of work on metadata: in this process, unless others are asked for."""
    if processes is None:
        return outcomes_here(work, choice, about)
    return outcomes_in_processes(work, choice, about, processes)


def outcomes_here(work: Work, choice: Choice, about: str) -> list[Outcome]:
    """Return the outcomes of work on tables in this process, in the order of the tables."""
    storage = environment_of(address_of(choice.addresses[0])).storage

    def run(address: str) -> Outcome:
        return _run(work, address)

    return _in_threads(run, choice, about, storage.requests_at_once)


def _in_threads(
    run: Callable[[str], Outcome], choice: Choice, about: str, count: int
) -> list[Outcome]:
    threads = ThreadPoolExecutor(count, "kudulite-table")
    try:
        # A thread begins without the storage options of the command.
        futures = [threads.submit(copy_context().run, run, address) for address in choice.addresses]
        with Progress(about, len(futures), "tables") as progress:
            for _ in progress.counted(as_completed(futures), lambda _: 1):
                pass
    finally:
        threads.shutdown(cancel_futures=True)
    pairs = zip(futures, choice.addresses, strict=True)
    return [_outcome(future, address, address in choice.named) for future, address in pairs]


def _outcome(future: Future[Outcome], address: str, is_named: bool) -> Outcome:
    """Return the outcome of a table, also if the work has ended with an error of the program."""
    error = future.exception()
    if error is not None:
        return Outcome(address, State.FAILED, 0.0, error=f"{type(error).__name__}: {error}")
    outcome = future.result()
    if outcome.state != State.DELETED:
        return outcome
    return replace(outcome, state=State.FAILED) if is_named else replace(outcome, error=None)


def _run(work: Work, address: str) -> Outcome:
    begin, result, state, problem = time.perf_counter(), None, State.OK, None
    try:
        result = work(address)
    except KuduliteError as error:
        problem, state = str(error), State.FAILED
        is_missing = isinstance(error, StorageError) and error.errno == errno.ENOENT
        if is_missing or isinstance(error, CorruptionError):
            state = State.DAMAGED
        elif isinstance(error, TableNotFoundError):
            state = State.DELETED
    return Outcome(address, state, round(time.perf_counter() - begin, 3), result, problem)


def _begin(options: Mapping[str, str]) -> None:
    """Prepare a process for its work."""
    use_storage_options(options)
    threading.Thread(target=_end_with_command, daemon=True).start()


def _end_with_command() -> None:
    """End this process when that of the command has ended, also where it was killed."""
    command = multiprocessing.parent_process()
    assert command is not None
    command.join()
    _exit(1)


class _Worker:
    """A process that works on one table at a time. If it is killed, another one takes its place."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._options = given_storage_options()
        self._pool: ProcessPoolExecutor | None = None

    def run(self, work: Work, address: str) -> Outcome:
        """Return the outcome of work on a table."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                1, self._context, initializer=_begin, initargs=(self._options,)
            )
        begin = time.perf_counter()
        try:
            return self._pool.submit(_run, work, address).result()
        except BrokenProcessPool:
            self.close()
            seconds = round(time.perf_counter() - begin, 3)
            return Outcome(
                address,
                State.FAILED,
                seconds,
                error="the process that worked on it was killed, perhaps because no memory was"
                " left; run the command on this table alone, or with fewer --processes",
            )

    def close(self) -> None:
        """End the process, when it has done its work."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def print_outcomes(
    outcomes: Sequence[Outcome],
    choice: Choice,
    columns: Callable[[Any], Mapping[str, Any]],
    *,
    form: Callable[[Any], Any] = lambda result: result,
    noun: str = "table",
    as_json: bool,
) -> None:
    """Print one row for each table, with the columns of its result, then errors.

    As JSON, each has the whole result in the `form` that the command prints for one table. Ends the
    command with status 1 if one of them is bad.
    """
    pairs = list(zip(choice.names, outcomes, strict=True))
    if as_json:
        print_json([_form(noun, name, outcome, form) for name, outcome in pairs])
    else:
        print_outcome_rows(
            outcomes,
            [
                {noun: name, "state": str(outcome.state), "seconds": outcome.seconds}
                | ({} if outcome.result is None else dict(columns(outcome.result)))
                for name, outcome in pairs
            ],
        )
    end_with(outcomes)


def print_outcome_rows(outcomes: Sequence[Outcome], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a row for each outcome, with the columns that any row has; bad ones are red."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    marked = {number for number, outcome in enumerate(outcomes) if outcome.is_bad}
    print_rows(names, [[*map(row.get, names)] for row in rows], thousands=True, marked=marked)


def end_with(outcomes: Sequence[Outcome]) -> None:
    """Print the errors to standard error, and end with status 1 if a table is bad."""
    for outcome in outcomes:
        if outcome.error is not None:
            print(f"kudulite: {outcome.address}: {outcome.error}", file=sys.stderr)
    if any(outcome.is_bad for outcome in outcomes):
        raise typer.Exit(1)


def _form(noun: str, name: str, outcome: Outcome, form: Callable[[Any], Any]) -> dict[str, Any]:
    return {
        noun: name,
        "path": outcome.address,
        "state": str(outcome.state),
        "seconds": outcome.seconds,
        "error": outcome.error,
        "result": None if outcome.result is None else form(outcome.result),
    }
