"""Ctrl-C while pyarrow writes a file: the interrupt reaches the caller, and the table is as before.

pyarrow calls the file objects that it is given, and Python's signal handlers run in these calls.
"""

import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import kudulite
from kudulite.basefile.base_data import _SealingSink
from kudulite.client.table import Table
from kudulite.storage.local_storage import LocalSink, ReplacingSink
from tests.support.tiers import by_tier

CALLS_MAX = 30  # of a file object, that are interrupted
CALLS_EACH = by_tier(4, 1)


def rows(first: int, count: int) -> pa.Table:
    """Rows of keys from `first` on."""
    keys = range(first, first + count)
    return pa.table({"k": keys, "v": [float(k) for k in keys], "s": [f"text {k}" for k in keys]})


def made(core) -> Table:
    """A table of one tablet with base data, deltas and rows in memory."""
    client = core.client()
    name = f"t{len(client.list_tables())}"
    table = client.create_table(name, rows(0, 1), primary_key="k")
    for first in (0, 150):
        table.upsert(rows(first, 200))
    table.update(rows(100, 50))
    session = client.new_session()
    session.apply(table.new_upsert({"k": 5, "v": 1.0, "s": "in memory"}))
    session.flush()
    return table


class Interrupt:
    """Sends SIGINT at the n-th call of a method of one of the engine's file objects.

    A process that a shell starts in the background ignores SIGINT, so the handler is set here.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self.count = 0

    def __enter__(self) -> "Interrupt":
        self._handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.setprofile(self._see)
        return self

    def _see(self, frame, event: str, _argument: object) -> None:
        owner = frame.f_locals.get("self")
        if event == "call" and type(owner) in (LocalSink, ReplacingSink, _SealingSink):
            self.count += 1
            if self.count == self._number:
                signal.raise_signal(signal.SIGINT)

    def __exit__(self, *_error: object) -> None:
        sys.setprofile(None)
        signal.signal(signal.SIGINT, self._handler)


def changes() -> pa.Table:
    """Ordered changes: deletes are remembered in a file of their own."""
    return pa.table({"k": [1, 2], "v": [1e9, 1e9], "s": ["", ""], "op": ["D", "U"]})


OPERATIONS: dict[str, Callable[[Table, Path], object]] = {
    "bulk write": lambda table, folder: table.upsert(rows(100, 300)),
    "ordered write": lambda table, folder: table.apply(
        changes(), operation_column="op", ordering_column="v"
    ),
    "flush": lambda table, folder: table.flush(),
    "compact": lambda table, folder: table.compact(),
    "backup": lambda table, folder: kudulite.backup(table, folder / "set"),
    "export": lambda table, folder: table.scan().to_parquet(folder / "rows.parquet"),
}


@pytest.mark.both
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_interrupt_in_a_file_object_is_not_lost(core, tmp_path, monkeypatch, operation):
    """Whichever call it meets, the caller gets KeyboardInterrupt and can do the work again."""
    assert threading.current_thread() is threading.main_thread()
    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda problem: lost.append(problem.exc_value))
    for number in range(1, CALLS_MAX, CALLS_EACH):
        table = made(core)
        folder = tmp_path / str(number)
        folder.mkdir()
        before = table.scan().to_arrow().sort_by("k")
        with Interrupt(number) as interrupt:
            try:
                OPERATIONS[operation](table, folder)
            except KeyboardInterrupt:
                assert interrupt.count >= number
            else:
                assert interrupt.count < number
        assert lost == []
        if interrupt.count < number:
            assert number > 3, "the operation calls no file object"
            return
        if operation not in ("bulk write", "ordered write"):
            assert table.scan().to_arrow().sort_by("k") == before
        OPERATIONS[operation](table, folder)
