"""What the steps of a machine with a history share: clients, model, clock, and the mark."""

from __future__ import annotations

import itertools
import time
from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from core_tables import ManualClock, environment
from history_model import ModelColumn
from history_setup import COLUMN_NAMES, Setup, value_of
from model_table import UPDATES, Key, Row

from kudulite.catalog.history import ancient_history_mark
from kudulite.catalog.manifest import Manifest
from kudulite.catalog.table_store import TableStore
from kudulite.client.client import Client
from kudulite.mvcc.hybrid_time import LOGICAL_BITS

CLIENTS = 2
SMALL_ROWS_MAX = 4  # batches of the second client that go through the log
# Tokens are opened by the clock of the machine, which must not overtake ours.
AHEAD_SECONDS = 3600
# A moment that a ticking clock does not reach while it is looked at.
SLACK = 5_000 << LOGICAL_BITS


class MovingClock(ManualClock):
    """A clock that steps move, and that moves by `tick` microseconds whenever somebody looks."""

    def __init__(self, tick: int) -> None:
        super().__init__(time.time_ns() // 1000 + AHEAD_SECONDS * 1_000_000)
        self._ticks = itertools.count(0, tick)

    def now(self) -> int:
        """The present as a HybridTime."""
        return self.microseconds + next(self._ticks) << LOGICAL_BITS


class HistoryState:
    """A table, its clients, and the model that it must equal."""

    def __init__(self, folder: Path, setup: Setup) -> None:
        self.setup = setup
        self.model = setup.model()
        self.folder = folder
        self.clock = MovingClock(setup.tick)
        self.clients = [self.new_client(number) for number in range(CLIENTS)]
        self.tables = [setup.create(self.clients[0])]
        self.tables += [client.table("t") for client in self.clients[1:]]
        self.sessions: dict[int, Any] = {}
        self.slots: dict[int, Any] = {}
        self.tags: dict[str, int] = {}
        self.keys = [setup.key(number) for number in range(setup.key_count)]
        self.retention = setup.retention
        self.next_column_id = itertools.count(len(self.model.columns))
        self.tablet_of: dict[Key, str | None] = {}
        self.mark = 0
        self.find_tablets()

    def new_client(self, number: int) -> Client:
        """A client that has seen nothing; the second writes small batches through the log."""
        small = SMALL_ROWS_MAX if number else 0
        return Client(self.folder, environment(clock=self.clock, small_write_rows_max=small))

    def find_tablets(self) -> None:
        """Ask which tablet owns each key, after a change of the partitioning."""
        ids = [entry.id for entry in self.manifest.tablets]
        rows = [dict(zip(self.setup.key_names, key, strict=True)) for key in self.keys]
        found = self.tables[0].tablet_index(rows).to_pylist()
        self.tablet_of = {
            key: ids[place] if place >= 0 else None
            for key, place in zip(self.keys, found, strict=True)
        }
        uncovered = {key for key, tablet in self.tablet_of.items() if tablet is None}
        self.same(uncovered, set(self.model.uncovered), "keys that no tablet owns")

    # -- names and values

    @property
    def store(self) -> TableStore:
        """The table's folder, as the first client sees it."""
        return self.tables[0]._store

    @property
    def manifest(self) -> Manifest:
        """The newest version."""
        return self.store.newest()

    def column(self, name: str) -> ModelColumn | None:
        """The column that has a name of COLUMN_NAMES now, if any."""
        assert name in COLUMN_NAMES
        return next((column for column in self.model.columns if column.name == name), None)

    def row(self, operation: str, number: int, values: Row) -> tuple[Row, Row]:
        """A row for the table, by name, and for the model, by column id; unknown names left out.

        An update sets at least one column, or it would be an error.
        """
        if operation in UPDATES and not any(c.name in values for c in self.model.columns):
            values = {self.model.columns[0].name: next(iter(values.values()), 0)}
        key = dict(zip(self.setup.key_names, self.setup.key(number), strict=True))
        named, numbered = dict(key), dict(key)
        for column in self.model.columns:
            if column.name in values:
                value = value_of(column, values[column.name])
                named[column.name] = numbered[column.id] = value
        return named, numbered

    # -- moments

    def settle_mark(self) -> int:
        """The ancient history mark, checked against the rule; the model forgets what is before."""
        manifest = self.manifest
        mark = ancient_history_mark(self.store, manifest)
        age = self.retention * 1_000_000 << LOGICAL_BITS
        rule = min([self.clock.now() - age, manifest.timestamp, *self.tags.values()])
        expected = max(0, manifest.history_start, rule)
        if not mark <= expected <= mark + SLACK:
            raise AssertionError(f"mark {mark}, expected {expected}")
        if mark < self.mark:
            raise AssertionError(f"the mark went back from {self.mark} to {mark}")
        self.mark = mark
        self.model.prune(mark)
        return mark

    def legal_moments(self) -> list[int]:
        """Commit timestamps and tags from the mark on, ascending; with it where it stands still."""
        self.settle_mark()
        first, stamps = self.first_legal, self.model.timestamps
        found = set(stamps[bisect_left(stamps, first) :])
        found |= {tag for tag in self.tags.values() if tag >= first}
        if not self.setup.tick:
            found.add(first)
        return sorted(found)

    @property
    def first_legal(self) -> int:
        """The first moment that the mark found last does not pass while it is looked at."""
        return self.mark + SLACK if self.setup.tick else self.mark

    def moment(self, at: int | None) -> int | None:
        """A legal moment that a number stands for, or one right before it; None is now."""
        if at is None:
            return None
        moments = self.legal_moments()
        if not moments:
            return None
        place, is_before = divmod(at, 2)
        chosen = moments[place % len(moments)]
        return chosen - 1 if is_before and chosen > self.first_legal else chosen

    def same(self, found: Any, expected: Any, what: str) -> None:
        """Fail where two things differ."""
        if found != expected:
            raise AssertionError(f"{what}:\nfound    {found}\nexpected {expected}")


def by_key(rows: Iterable[tuple], key_count: int) -> dict[Key, tuple]:
    """Rows by key. Raises AssertionError for a key that is there twice."""
    listed = list(rows)
    found = {row[:key_count]: row for row in listed}
    if len(found) != len(listed):
        raise AssertionError(f"a key twice: {sorted(listed, key=repr)}")
    return found
