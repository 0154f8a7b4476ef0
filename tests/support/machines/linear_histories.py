"""Processes that use a few keys at once, and the search for an order that explains what they saw.

Each process reads, inserts, upserts, updates and deletes rows of one table, in a session of its
own, and notes when each call began and ended and what it returned. A history is linearizable if
each call can be put at one moment between the two, so that a dictionary gives the same results.
Keys are independent, so each has a search of its own. A call that a store has not answered may have
had its effect, may have it at any later moment, or never.

**Source**: Wing and Gong, "Testing and Verifying Concurrent Objects" (1993), with Lowe's memory of
states that were tried.
"""

from __future__ import annotations

import itertools
import multiprocessing
import random
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

import kudulite
from kudulite.client.client import Client
from kudulite.client.session import Session
from kudulite.client.table import Table
from kudulite.errors import KuduliteError, RowError
from tests.support.doubles.base_storage import LIBRARY
from tests.support.doubles.faulty_library import RandomFaults
from tests.support.machines.unanswered import again, is_unanswered
from tests.support.tables.core_tables import environment

T = TypeVar("T")
PROCESSES, KEYS = 8, 6
WAIT_SECONDS_MAX = 120.0
PRELOADED = ["kudulite", "pandas", "tests.support.machines.linear_histories"]
OPERATIONS = ("read", "read", "insert", "upsert", "update", "delete", "bulk upsert")
REFUSED, UNANSWERED = "refused", "unanswered"
NO_END = 1 << 62
# Of the requests to a store, for processes whose storage is FAULTY.
HIDDEN_FAULTS, ERRORS = 0.1, 0.01


@dataclass(frozen=True)
class Call:
    """One call: its key, what it wrote, what it returned, and when it began and ended."""

    operation: str
    key: int
    value: int
    result: int | str | None
    begin: int
    end: int


def create(folder: Path) -> None:
    """An empty table of two tablets."""
    columns = [kudulite.column("k", kudulite.int32), kudulite.column("v", kudulite.int64)]
    Client(folder, environment()).create_table(
        "t", kudulite.schema(columns, "k"), hash_partitions=[(["k"], 2)]
    )


def make_calls(folder: Path, process: int, seed: int, count: int) -> list[Call]:
    """Make calls on random keys; values are different in all processes."""
    chance = random.Random(f"{seed}-{process}")
    LIBRARY.plan = RandomFaults(f"{seed}-{process}", HIDDEN_FAULTS, ERRORS)
    client = Client(folder, environment())
    table, session = again(lambda: client.table("t")), client.new_session()
    calls = []
    for number in range(count):
        operation, key = chance.choice(OPERATIONS), chance.randrange(KEYS)
        value = process * 1_000_000 + number
        row = {"k": key, "v": value}
        begin = time.monotonic_ns()
        result: int | str | None = None
        try:
            result = _call(table, session, operation, row)
        except KuduliteError as error:
            if not is_unanswered(error):
                raise
            result = UNANSWERED
        end = NO_END if result == UNANSWERED else time.monotonic_ns()
        if result != UNANSWERED or operation != "read":
            calls.append(Call(operation, key, value, result, begin, end))
    again(client.close)
    return calls


def _call(table: Table, session: Session, operation: str, row: dict[str, int]) -> int | str | None:
    """Make one call; returns what it has found."""
    if operation == "read":
        found = table.get(row["k"])
        return None if found is None else found["v"]
    if operation == "bulk upsert":
        table.upsert([row])
        return None
    made = table.new_delete({"k": row["k"]}) if operation == "delete" else None
    session.apply(made or getattr(table, f"new_{operation}")(row))
    try:
        session.flush()
    except RowError:
        return REFUSED
    finally:
        session.get_pending_errors()
    return None


def _child(
    work: Callable[[int, int, int], list[T]], process: int, seed: int, count: int, pipe: Connection
) -> None:
    pipe.send("ready")
    pipe.recv()
    pipe.send(work(process, seed, count))


def record_history(folder: Path, seed: int, count: int) -> list[Call]:
    """Let all processes make so many calls each, beginning together; returns all calls."""
    create(folder)
    return together(PROCESSES, partial(make_calls, folder), seed, count)


def together(
    processes: int, work: Callable[[int, int, int], list[T]], seed: int, count: int
) -> list[T]:
    """Return what `work(process, seed, count)` gives in so many processes, beginning together."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    pipes = []
    for process in range(processes):
        here, there = context.Pipe()
        arguments = (work, process, seed, count, there)
        context.Process(target=_child, args=arguments, daemon=True).start()
        there.close()
        pipes.append(here)
    answers: list[list[T]] = []
    for pipe in pipes:
        assert pipe.poll(WAIT_SECONDS_MAX) and pipe.recv() == "ready"
    for pipe in pipes:
        pipe.send("go")
    for pipe in pipes:
        assert pipe.poll(WAIT_SECONDS_MAX), "a process says nothing"
        answers.append(pipe.recv())
    return list(itertools.chain.from_iterable(answers))


def after(call: Call, value: int | None) -> set[int | None]:
    """The values that a key may have after a call and its answer, where it has `value` before."""
    if call.operation == "read":
        return {value} if call.result == value else set()
    is_refused = {"insert": value is not None, "update": value is None, "delete": value is None}
    then = value if is_refused.get(call.operation) else call.value
    if call.operation == "delete":
        then = None
    if call.result == UNANSWERED:
        return {value, then}
    is_right = (call.result == REFUSED) == is_refused.get(call.operation, False)
    return {then} if is_right else set()


def is_linearizable(calls: list[Call]) -> bool:
    """Whether some order of one key's calls explains their results; the key is absent first."""
    calls = sorted(calls, key=lambda call: call.begin)
    tried: set[tuple[int, int | None]] = set()
    waiting: list[tuple[int, int | None]] = [(0, None)]  # the calls that are placed, as bits
    everything = (1 << len(calls)) - 1
    while waiting:
        placed, value = waiting.pop()
        if placed == everything:
            return True
        if (placed, value) in tried:
            continue
        tried.add((placed, value))
        left = [number for number in range(len(calls)) if not placed >> number & 1]
        first_end = min(calls[number].end for number in left)
        for number in left:
            if calls[number].begin > first_end:
                break
            for then in after(calls[number], value):
                waiting.append((placed | 1 << number, then))
    return False


def check_history(folder: Path, seed: int, count: int = 40) -> int:
    """Record a history and expect an order for each key; returns how many calls there were."""
    calls = record_history(folder, seed, count)
    by_key: dict[int, list[Call]] = defaultdict(list)
    for call in calls:
        by_key[call.key].append(call)
    for key, found in by_key.items():
        lines = "\n".join(map(str, sorted(found, key=lambda call: call.begin)))
        assert is_linearizable(found), f"seed {seed}, key {key}: no order explains\n{lines}"
    Client(folder, environment()).table("t").check().raise_if_bad()
    return len(calls)


# -- many processes that commit small batches

COMMITTERS = 16


def commit_all(folder: Path, process: int, seed: int, count: int) -> list[int]:
    """Insert batches of three rows, each until it is known to be there; returns the values."""
    LIBRARY.plan = RandomFaults(f"{seed}-{process}", HIDDEN_FAULTS, ERRORS)
    client = Client(folder, environment(lock_timeout_seconds=WAIT_SECONDS_MAX))
    table = again(lambda: client.table("t"))
    for number in range(count):
        key = 100 + 3 * (process * count + number)
        rows = [{"k": key + place, "v": number} for place in range(3)]
        is_unknown = False
        while True:
            try:
                table.insert(rows)
            except RowError:
                assert is_unknown, f"rows {rows} of nobody else are there"
            except KuduliteError as error:
                if not is_unanswered(error):
                    raise
                is_unknown = True
                continue
            break
    again(client.close)
    return [count]


def check_commits(folder: Path, seed: int, count: int = 10) -> int:
    """Let processes commit batches side by side; all are there, and no other rows."""
    create(folder)
    done = sum(together(COMMITTERS, partial(commit_all, folder), seed, count))
    table = Client(folder, environment()).table("t")
    found = table.scan().to_arrow().sort_by("k").to_pylist()
    expected = [{"k": 100 + n, "v": n // 3 % count} for n in range(3 * done)]
    assert found == expected, f"seed {seed}: {len(found)} rows of {len(expected)}"
    table.check().raise_if_bad()
    return done
