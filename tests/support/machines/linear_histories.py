"""Processes that use a few keys at once, and the search for an order that explains what they saw.

Each process reads, inserts, upserts, updates and deletes rows of one table, in a session of its
own, and notes when each call began and ended and what it returned. A history is linearizable if
each call can be put at one moment between the two, so that a dictionary gives the same results.
Keys are independent, so each has a search of its own.

**Source**: Wing and Gong, "Testing and Verifying Concurrent Objects" (1993), with Lowe's memory of
states that were tried.
"""

from __future__ import annotations

import itertools
import multiprocessing
import random
import time
from collections import defaultdict
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import kudulite
from kudulite.client.client import Client
from kudulite.errors import RowError
from tests.support.tables.core_tables import environment

PROCESSES, KEYS = 8, 6
WAIT_SECONDS_MAX = 120.0
PRELOADED = ["kudulite", "pandas", "tests.support.machines.linear_histories"]
OPERATIONS = ("read", "read", "insert", "upsert", "update", "delete", "bulk upsert")
REFUSED = "refused"


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
    builder = kudulite.schema_builder()
    builder.add_column("k", kudulite.int32, nullable=False)
    builder.add_column("v", kudulite.int64)
    builder.set_primary_keys(["k"])
    Client(folder, environment()).create_table("t", builder.build(), hash_partitions=[(["k"], 2)])


def make_calls(folder: Path, process: int, seed: int, count: int) -> list[Call]:
    """Make calls on random keys; values are different in all processes."""
    chance = random.Random(f"{seed}-{process}")
    client = Client(folder, environment())
    table, session = client.table("t"), client.new_session()
    calls = []
    for number in range(count):
        operation, key = chance.choice(OPERATIONS), chance.randrange(KEYS)
        value = process * 1_000_000 + number
        row = {"k": key, "v": value}
        begin = time.monotonic_ns()
        result: int | str | None = None
        if operation == "read":
            found = table.get(key)
            result = None if found is None else found["v"]
        elif operation == "bulk upsert":
            table.upsert([row])
        else:
            made = table.new_delete({"k": key}) if operation == "delete" else None
            session.apply(made or getattr(table, f"new_{operation}")(row))
            try:
                session.flush()
            except RowError:
                session.get_pending_errors()
                result = REFUSED
        calls.append(Call(operation, key, value, result, begin, time.monotonic_ns()))
    client.close()
    return calls


def _child(folder: Path, process: int, seed: int, count: int, pipe: Connection) -> None:
    pipe.send("ready")
    pipe.recv()
    pipe.send(make_calls(folder, process, seed, count))


def record_history(folder: Path, seed: int, count: int) -> list[Call]:
    """Let all processes make so many calls each, beginning together; returns all calls."""
    create(folder)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    pipes = []
    for process in range(PROCESSES):
        here, there = context.Pipe()
        arguments = (folder, process, seed, count, there)
        context.Process(target=_child, args=arguments, daemon=True).start()
        there.close()
        pipes.append(here)
    answers: list[list[Call]] = []
    for pipe in pipes:
        assert pipe.poll(WAIT_SECONDS_MAX) and pipe.recv() == "ready"
    for pipe in pipes:
        pipe.send("go")
    for pipe in pipes:
        assert pipe.poll(WAIT_SECONDS_MAX), "a process says nothing"
        answers.append(pipe.recv())
    return list(itertools.chain.from_iterable(answers))


def after(call: Call, value: int | None) -> tuple[bool, int | None]:
    """Whether a call can return what it did where a key has `value`, and what it has then."""
    is_there = value is not None
    if call.operation == "read":
        return call.result == value, value
    if call.operation in ("upsert", "bulk upsert"):
        return True, call.value
    is_refused = is_there if call.operation == "insert" else not is_there
    if (call.result == REFUSED) != is_refused:
        return False, value
    if is_refused:
        return True, value
    return True, None if call.operation == "delete" else call.value


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
            fits, then = after(calls[number], value)
            if fits:
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
