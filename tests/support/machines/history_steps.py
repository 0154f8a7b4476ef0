"""Random steps for a HistoryMachine, and what becomes of a list of them: nothing, or a short list.

The kinds of steps have weights, so that a setup's rows are written, compacted and looked at in a
proportion that keeps a run fast. `operation_count` is the number of rows in the steps so far and of
the steps that work on the table's files.
"""

from __future__ import annotations

import pprint
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from kudulite.errors import KuduliteError
from tests.support.doubles.base_storage import LIBRARY
from tests.support.doubles.faulty_library import RandomFaults
from tests.support.doubles.pausing_storage import GAPS as PAUSES
from tests.support.machines.history_looks import LOOKS, PLANS, READS
from tests.support.machines.history_machine import GAPS, KINDS, HistoryMachine, Step
from tests.support.machines.history_setup import (
    ADDED_TYPES,
    CLIENTS,
    COLUMN_NAMES,
    RANGE_COUNT,
    Setup,
)
from tests.support.machines.shrinking import shrink
from tests.support.oracle.table_model import DELETES, OPERATIONS, UPDATES, Row
from tests.support.tables.core_tables import group_rows_of

SLOTS = 3
# Of the requests to a store.
HIDDEN_FAULTS, ERRORS = 0.05, 0.004
TAGS = ("monday", "tuesday")
SAFE = tuple(name for name in OPERATIONS if name not in ("insert", "update", "delete"))
# Rows of one write: few, so that a commit touches a part of the keys, or many, several on a key.
SIZES = (1, 1, 2, 3, 5, 8, 13, 20, 30)
RETENTIONS = (0, 1, 2, 4)
WEIGHTS: dict[str, float] = {
    "rows": 60,
    "batch": 10,
    "mixed": 6,
    "overwrite": 0.6,
    "stage": 3,
    "commit": 4,
    "look": 12,
    "where": 4,
    "past": 0.5,
    "refused": 1.5,
    "plan": 2,
    "read": 2,
    "flush": 8,
    "reopen": 1,
    "advance": 9,
    "check": 1,
    "copy": 0.15,
    "add": 0.9,
    "drop": 0.7,
    "rename": 0.7,
    "renew": 0.5,
    "swap": 0.7,
    "fix": 1,
    "default": 0.4,
    "retain": 0.3,
    "describe": 0.5,
    "drop_range": 0.8,
    "add_range": 1.2,
    "forget": 0.6,
    "tag": 0.8,
    "untag": 0.8,
    "bad_tag": 0.3,
    "widen": 0.8,
    "changes": 8,
    "history": 3,
    "minor": 3,
    "minor_undo": 2,
    "major": 5,
    "merge": 6,
    "collect": 3,
    "compact_all": 0.7,
    "purge": 0.5,
    "maintain": 1,
    "sweep": 1,
    "paused": 15,
    "recall": 0.5,
}
HOOKED = 0.2  # of the operations have steps in their gaps
INSIDE = ("rows", "batch", "mixed", "commit", "look", "past", "flush", "add", "drop", "overwrite")
INSIDE += ("swap", "renew")
INSIDE += ("major", "merge", "collect", "purge", "drop_range", "tag", "retain", "widen", "fix")
INSIDE += ("sweep",)
PAUSED = ("flush", "major", "merge", "collect", "compact_all", "maintain", "purge", "commit")
PAUSED += ("batch", "mixed", "overwrite", "tag", "untag", "add", "drop", "widen", "retain")
PAUSED += ("drop_range", "add_range", "forget", "describe")
WORK = (*KINDS, "compact_all", "purge", "flush", "maintain", "add", "drop", "rename", "default")
WORK += ("renew", "swap")
WORK += ("widen", "fix", "drop_range", "add_range")


def setup_of(seed: int) -> Setup:
    """A setup that a seed stands for: all layouts with both kinds of keys, few and many keys."""
    return Setup(
        keys=("int", "composite")[seed % 2],
        layout=("one", "ranges", "one", "hashed", "hashed ranges")[seed // 2 % 5],
        key_count=(5, 12, 8, 50, 5, 25)[seed // 3 % 6],
        retention=(3, 1, 0, 10)[seed // 5 % 4],
        tick=(1, 0, 1)[seed // 4 % 3],
        group_rows=(None, 3, 8)[seed // 7 % 3],
    )


class Steps:
    """Makes random steps for a setup."""

    def __init__(self, setup: Setup, seed: int) -> None:
        self.setup = setup
        self.random = random.Random(seed)
        self.operation_count = 0
        only_ranges = () if setup.has_ranges else ("drop_range", "add_range")
        weights = {name: w for name, w in WEIGHTS.items() if name not in only_ranges}
        self._weight, self._names = weights, list(weights)
        self._inside = [name for name in INSIDE if name in weights]
        self._paused_names = [name for name in PAUSED if name in weights]
        self._is_inside = False

    def make(self, operation_count: int) -> list[Step]:
        """Steps with at least so many operations."""
        steps: list[Step] = []
        while self.operation_count < operation_count:
            (name,) = self.random.choices(self._names, list(self._weight.values()))
            self.operation_count += name in WORK
            steps.append(getattr(self, f"_{name}")())
        return steps

    # -- writes

    def _rows(self) -> Step:
        return "rows", self._client(), self._some(OPERATIONS)

    def _batch(self) -> Step:
        operation = self.random.choice((*OPERATIONS, "upsert", "upsert", "update_ignore"))
        given = [(key, values) for _, key, values in self._uniform([operation])]
        return "batch", self._client(), operation, given, self.random.random() < 0.25

    def _mixed(self) -> Step:
        operations = OPERATIONS if self.random.random() < 0.3 else SAFE
        return "mixed", self._client(), self._uniform(operations)

    def _overwrite(self) -> Step:
        given = [(key, values) for _, key, values in self._uniform(["upsert"])]
        return "overwrite", self._client(), given if self.random.random() < 0.8 else []

    def _stage(self) -> Step:
        choice = self.random.random()
        kind = None if choice < 0.4 else "overwrite" if choice < 0.45 else None
        if choice >= 0.45:
            kind = self.random.choice((*SAFE, "upsert", "upsert", "insert", "update"))
        tasks = self.random.choice([1, 1, 2, 3])
        parts = [self._uniform(SAFE if kind is None else ["upsert"]) for _ in range(tasks)]
        return "stage", self._client(), self._slot(), kind, parts

    def _commit(self) -> Step:
        return "commit", self._slot()

    def _some(self, operations: Sequence[str]) -> list[tuple[str, int, Row]]:
        count = self.random.choice(SIZES)
        return [self._row(operations) for _ in range(count)]

    def _uniform(self, operations: Sequence[str]) -> list[tuple[str, int, Row]]:
        """Rows with the same columns in all, as a batch has them."""
        names = self._columns(operations[0])
        rows = self._some(operations)
        return [(operation, key, self._values(names)) for operation, key, _ in rows]

    def _row(self, operations: Sequence[str]) -> tuple[str, int, Row]:
        self.operation_count += 1
        operation = self.random.choice(operations)
        names = [] if operation in DELETES else self._columns(operation)
        return operation, self.random.randrange(self.setup.key_count), self._values(names)

    def _columns(self, operation: str) -> list[str]:
        size = self.random.choice([1, 1, 2, len(COLUMN_NAMES)])
        if operation not in UPDATES and self.random.random() < 0.1:
            size = 0
        chosen = set(self.random.sample(COLUMN_NAMES, size))
        return [name for name in COLUMN_NAMES if name in chosen]

    def _values(self, names: Sequence[str]) -> Row:
        return {name: self._value() for name in names}

    def _value(self) -> int | None:
        return None if self.random.random() < 0.12 else self.random.randrange(12)

    # -- looks

    def _look(self) -> Step:
        return "look", self._client(), self.random.choice(LOOKS), self._at()

    def _where(self) -> Step:
        conditions = [self._condition() for _ in range(self.random.choice([1, 1, 2]))]
        return "where", self._client(), conditions, self._at()

    def _condition(self) -> tuple[str, str, int | None]:
        name = self.random.choice(["key", *COLUMN_NAMES])
        how = self.random.choice(["=", "!=", "<", ">=", "in", "null", "not null"])
        number = self.random.randrange(self.setup.key_count if name == "key" else 12)
        return name, how, number

    def _past(self) -> Step:
        return "past", self._client()

    def _refused(self) -> Step:
        how = self.random.choice(("scan", "count", "tokens", "get", "changes"))
        return "refused", self._client(), how, self.random.choice([0, 1, 1 << 20])

    def _changes(self) -> Step:
        images = self.random.choice(("after", "both"))
        start, end = self.random.randrange(1 << 16), self._at()
        return "changes", self._client(), self.random.choice(READS), start, end, images

    def _history(self) -> Step:
        return "history", self._client(), self._number()

    def _plan(self) -> Step:
        return "plan", self._client(), self._slot(), self.random.choice(PLANS), self._at()

    def _read(self) -> Step:
        return "read", self._slot()

    def _at(self) -> int | None:
        return self.random.choice([None, self.random.randrange(1 << 16)])

    def _client(self) -> int:
        return self.random.randrange(CLIENTS)

    def _slot(self) -> int:
        return self.random.randrange(SLOTS)

    # -- upkeep

    def _flush(self) -> Step:
        return "flush", self._client()

    def _maintain(self) -> Step:
        return "maintain", self._client()

    def _sweep(self) -> Step:
        return "sweep", self._client()

    def _reopen(self) -> Step:
        return "reopen", self._client()

    def _check(self) -> Step:
        return "check", self._client()

    def _copy(self) -> Step:
        return ("copy",)

    def _recall(self) -> Step:
        return "recall", self._client()

    def _advance(self) -> Step:
        return "advance", self.random.choice([1, 100, 500, 1000, 3000, 8000])

    # -- alterations

    def _add(self) -> Step:
        kind = self.random.randrange(len(ADDED_TYPES))
        nullable = self.random.random() < 0.7
        return "add", self._client(), self._name(), kind, nullable, self._value()

    def _drop(self) -> Step:
        return "drop", self._client(), self._name()

    def _rename(self) -> Step:
        return "rename", self._client(), self._name(), self._name()

    def _renew(self) -> Step:
        return "renew", *self._add()[1:]

    def _swap(self) -> Step:
        return "swap", self._client(), self._name(), self._name()

    def _fix(self) -> Step:
        return "fix", self._client(), self._name(), self.random.random() < 0.6

    def _widen(self) -> Step:
        return "widen", self._client(), self._name(), self.random.randrange(3)

    def _default(self) -> Step:
        return "default", self._client(), self._name(), self._value()

    def _retain(self) -> Step:
        return "retain", self._client(), self.random.choice(RETENTIONS)

    def _describe(self) -> Step:
        return "describe", self._client(), self.random.randrange(6)

    def _drop_range(self) -> Step:
        return "drop_range", self._client(), self.random.randrange(RANGE_COUNT)

    def _add_range(self) -> Step:
        return "add_range", self._client(), self.random.randrange(RANGE_COUNT)

    def _forget(self) -> Step:
        return "forget", self._client()

    # -- compactions

    def _minor(self) -> Step:
        return self._compact("minor")

    def _minor_undo(self) -> Step:
        return self._compact("minor_undo")

    def _major(self) -> Step:
        return self._compact("major")

    def _merge(self) -> Step:
        return self._compact("merge")

    def _collect(self) -> Step:
        return self._compact("collect")

    def _compact(self, kind: str) -> Step:
        picks = tuple(self.random.randrange(1 << 16) for _ in range(4))
        hooks: dict[str, list[Step]] = {}
        if not self._is_inside and self.random.random() < HOOKED:
            self._is_inside = True
            for gap in self.random.sample(GAPS, self.random.choice([1, 1, 2])):
                hooks[gap] = [self._step_inside(gap) for _ in range(self.random.choice([1, 2, 4]))]
            self._is_inside = False
        return "compact", self._client(), kind, picks, hooks

    def _step_inside(self, gap: str) -> Step:
        """A step in a gap: in one where the tablet is locked only what takes no lock."""
        if gap == "locked":
            if self.random.random() < 0.2:
                return self._changes()
            return "peek", self._client(), self.random.choice(LOOKS), self._at()
        (name,) = self.random.choices(self._inside, [self._weight[n] for n in self._inside])
        self.operation_count += name in WORK
        return getattr(self, f"_{name}")()

    def _paused(self) -> Step:
        (name,) = self.random.choices(
            self._paused_names, [self._weight[n] for n in self._paused_names]
        )
        self.operation_count += name in WORK
        self._is_inside = True
        step = getattr(self, f"_{name}")()
        self._is_inside = False
        numbers = [self._number() for _ in range(self.random.choice([0, 1, 2, 5]))]
        client = step[1] if name != "commit" else self._client()
        purged = self._number() if self.random.random() < 0.5 else None
        return "paused", client, step, self.random.choice(PAUSES), numbers, purged

    def _compact_all(self) -> Step:
        return "compact_all", self._client()

    def _purge(self) -> Step:
        count = self.random.choice([1, 1, 2, 5])
        return "purge", self._client(), [self._number() for _ in range(count)]

    def _number(self) -> int:
        return self.random.randrange(self.setup.key_count)

    def _tag(self) -> Step:
        return "tag", self._client(), self.random.choice(TAGS), self._at()

    def _untag(self) -> Step:
        return "untag", self._client(), self.random.choice(TAGS)

    def _bad_tag(self) -> Step:
        return "bad_tag", self._client()

    def _name(self) -> str:
        return self.random.choice(COLUMN_NAMES)


def replay(folder: Path, setup: Setup, steps: Sequence[Step]) -> Exception | None:
    """Run steps on a fresh table; returns how they failed, if they did."""
    return take(folder, setup, steps, lambda machine: None)


def take(
    folder: Path,
    setup: Setup,
    steps: Sequence[Step],
    at_end: Callable[[HistoryMachine], object],
) -> Exception | None:
    """Do as `replay`, and call `at_end` with a machine that agreed to the end."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with group_rows_of(setup.group_rows):
            machine = HistoryMachine(folder, setup)
            if setup.faults is None:
                machine.run(steps)
            else:
                with LIBRARY.planned(RandomFaults(setup.faults, HIDDEN_FAULTS, ERRORS)):
                    machine.run(steps)
            machine.finish()
            at_end(machine)
    except Exception as error:
        return error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return None


def simpler(step: Step) -> list[Step]:
    """The same step with fewer rows or values."""
    forms: list[Step] = []
    for place, part in enumerate(step):
        forms += [(*step[:place], form, *step[place + 1 :]) for form in _simpler_part(part)]
    return forms


def _simpler_part(part: object) -> list:
    """Lists and dicts with one item less, or with one item simpler."""
    if isinstance(part, dict):
        return [{k: v for k, v in part.items() if k != name} for name in part]
    if not isinstance(part, list | tuple):
        return []
    forms = []
    if isinstance(part, list) and len(part) > 1:
        forms = [part[:i] + part[i + 1 :] for i in range(len(part))]
    for place, item in enumerate(part):
        for form in _simpler_part(item):
            forms.append(type(part)([*part[:place], form, *part[place + 1 :]]))
    return forms


def shrunk(
    folder: Path, setup: Setup, steps: Sequence[Step], first: Exception, seconds: float = 60.0
) -> AssertionError:
    """The failure of a list of steps, as few of them as still fail in the same way."""
    same_way: Callable[[Exception | None], bool] = lambda error: (  # noqa: E731
        type(error) is type(first) and _head(error) == _head(first)
    )
    few = shrink(
        steps, lambda fewer: same_way(replay(folder, setup, fewer)), simpler=simpler,
        seconds=seconds,
    )  # fmt: skip
    error = replay(folder, setup, few) or first
    listed = pprint.pformat(few, width=96, sort_dicts=False)
    notes = "\n".join(getattr(error, "__notes__", []))
    return AssertionError(
        f"{type(error).__name__}: {error}\n{notes}\nreplay(core.root / 'again', {setup}, {listed})"
    )


def _head(error: Exception | None) -> str:
    """The first words of an error, which say what kind of difference it is."""
    return "" if isinstance(error, KuduliteError) else str(error).split(" ")[0].split("\n")[0]


def expect_equal(folder: Path, setup: Setup, steps: Sequence[Step]) -> None:
    """Fail with a shrunk list when the table does not equal the model."""
    first = replay(folder, setup, steps)
    if first is not None:
        raise shrunk(folder, setup, steps, first) from first
