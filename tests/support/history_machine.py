"""Runs a list of steps against a small table with a history, and the model of every version.

    ("rows", client, [(operation, key, values), …])        a session and its flush
    ("batch", client, operation, [(key, values), …], ignore_null)
    ("mixed", client, [(operation, key, values), …])       Table.apply
    ("overwrite", client, [(key, values), …])
    ("stage", client, slot, operation, [[(operation, key, values), …], …])    tasks of a bulk write
    ("commit", slot), ("abort", slot)
    ("look", client, how, at), ("peek", client, how, at)   peek: where no lock is to be had
    ("where", client, [(column, comparison, value), …], at)
    ("past", client)             every legal moment
    ("changes", client, how, start, end, images), ("history", client, key)
    ("refused", client, how, distance)         a moment before the mark
    ("plan", client, slot, how, at), ("read", slot)        a scan that is read later
    ("compact", client, kind, picks, {gap: [step, …]})     minor, minor_undo, major, merge, collect
    ("compact_all", client), ("purge", client, [key, …])
    ("flush", client), ("maintain", client), ("reopen", client), ("check", client), ("copy",)
    ("advance", milliseconds)    the clock
    ("add", client, name, type, nullable, default), ("drop", client, name)
    ("rename", client, name, name), ("widen", client, name, choice)
    ("default", client, name, value)
    ("retain", client, seconds)
    ("drop_range", client, place), ("add_range", client, place), ("forget", client)
    ("tag", client, name, at), ("untag", client, name), ("bad_tag", client)

Keys are numbers of the setup's keys, values small integers (history_setup.py); `at` is None or
stands for one of the moments that are legal then. Steps whose column, range, tag or slot is not
there do nothing, so any part of a list is a list that can be run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from history_changes import ChangeSteps
from history_compactions import CompactionSteps
from history_looks import LOOKS, LookSteps
from history_setup import Setup
from history_upkeep import UpkeepSteps
from history_writes import WriteSteps

from kudulite.errors import KuduliteError

Step = tuple


class HistoryMachine(CompactionSteps, WriteSteps, UpkeepSteps, LookSteps, ChangeSteps):
    """A table, two clients of it, and the model that they must equal.

    `counted` says how often each step was taken, and how often an operation on files published.
    """

    def __init__(self, folder: Path, setup: Setup) -> None:
        super().__init__(folder, setup)
        self.counted = Counter()

    def run(self, steps: Iterable[Step]) -> None:
        """Take all steps; an error at the first that disagrees says which."""
        for number, (name, *arguments) in enumerate(steps):
            self.counted[name] += 1
            try:
                getattr(self, f"_{name}")(*arguments)
            except Exception as error:
                error.add_note(f"in step {number}: {(name, *arguments)}")
                raise

    def finish(self) -> None:
        """Look in every way now, and at every legal moment, by a client that knows nothing."""
        for slot in list(self.slots):
            self._read(slot)
            self._abort(slot)
        self._reopen(0)
        for how in LOOKS:
            self.look(self.tables[0], how, None)
        self.past(self.tables[0])
        self._check(0)


__all__ = ["HistoryMachine", "KuduliteError", "Step"]
