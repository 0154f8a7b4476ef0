"""Random operations on five keys: sessions, batches, flushes, reopening, time travel.

Two clients that share nothing but the folder take turns, as two processes would; several sessions
of each hold rows back while others write. A failure prints the few steps that are needed for it, as
a call of `replay` to paste into a test.
"""

import datetime
import itertools
import pprint
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from kudulite.errors import KuduliteError
from tests.support.machines.row_machine import (
    CLIENTS,
    KEY_COUNT,
    LAYOUTS,
    LOOKS,
    SESSIONS,
    RowMachine,
    Setup,
    Step,
)
from tests.support.machines.shrinking import shrink
from tests.support.machines.step_pairs import part_of_circuit
from tests.support.oracle.table_model import DELETES, OPERATIONS, UPDATES, Row
from tests.support.tables.core_tables import CoreTables
from tests.support.tiers import tiered

SETUPS = [
    Setup(keys, layout, required)
    for (keys, layout), required in zip(
        itertools.product(("int", "composite"), LAYOUTS), itertools.cycle((False, True, False))
    )
]
PARTS = 3  # of a circuit through all pairs of kinds of steps, for each setup
SEEDS = range(PARTS * len(SETUPS))
TEXTS = ("", "a", "a\0", "ÿ", "\U0001f600")
MOMENT = datetime.datetime(2013, 1, 1, microsecond=7, tzinfo=datetime.UTC)
SAFE = tuple(name for name in OPERATIONS if name not in ("insert", "update", "delete"))
KINDS = (
    *("sessions", "auto", "background", "mixed", "overwrite", *OPERATIONS),
    *("flush_table", "reopen", "close", "check", "look", "where"),
)


class Steps:
    """Makes random steps of given kinds, and of sessions between them."""

    def __init__(self, setup: Setup, seed: int) -> None:
        self.setup = setup
        self.random = random.Random(seed)

    def make(self, kinds: Sequence[str]) -> list[Step]:
        """Return steps of these kinds in their order, with sessions before most of them."""
        steps: list[Step] = []
        for kind in kinds:
            for _ in range(self.random.choice([0, 1, 3])):
                steps += self._session_steps()
            steps += self._session_steps() if kind == "sessions" else [self._step(kind)]
        return steps

    def _step(self, kind: str) -> Step:
        client = self.random.randrange(CLIENTS)
        if kind == "auto":
            return kind, client, *self._row(OPERATIONS)
        if kind == "background":
            return kind, client, self._rows(OPERATIONS)
        if kind == "mixed":
            return kind, client, self._uniform(self._rows(SAFE))
        if kind == "overwrite":
            rows = self._uniform(self._rows(["upsert"]))
            return kind, client, [(key, values) for _, key, values in rows]
        if kind in OPERATIONS:
            return self._batch(client, kind)
        if kind == "look":
            return kind, client, self.random.choice(LOOKS), self._version()
        if kind == "where":
            conditions = [self._condition() for _ in range(self.random.choice([1, 2]))]
            return kind, client, conditions, self._version()
        return kind, client

    def _session_steps(self) -> list[Step]:
        """Rows of one or two sessions in turn, then at times a flush of one of them, and a look."""
        sessions = self.random.choices(range(SESSIONS), k=2)
        steps: list[Step] = []
        for _ in range(self.random.choice([1, 1, 2, 3, 5, 8, 25])):
            steps.append(("apply", self.random.choice(sessions), *self._row(OPERATIONS)))
        if self.random.random() < 0.8:
            steps.append(("flush", sessions[0]))
        if self.random.random() < 0.5:
            look = self.random.choice(("get", "get", "get", "scan"))
            steps.append(("look", sessions[0] % CLIENTS, look, None))
        return steps

    def _rows(self, operations: Sequence[str]) -> list[tuple[str, int, Row]]:
        count = self.random.choice([1, 2, 3, 5, 8, 20])
        return [self._row(operations) for _ in range(count)]

    def _row(self, operations: Sequence[str]) -> tuple[str, int, Row]:
        """An operation, a key and values; rarely one that lacks what it needs."""
        operation = self.random.choice(operations)
        names = [] if operation in DELETES else self._names(operation)
        return operation, self.random.randrange(KEY_COUNT), self._values(names)

    def _names(self, operation: str) -> list[str]:
        names = self.setup.value_names
        size = self.random.choice([len(names), self.random.randint(0, len(names))])
        chosen = set(self.random.sample(names, size))
        if operation in UPDATES and not chosen:
            chosen = {"a"}
        if self.setup.required and operation not in UPDATES and self.random.random() < 0.95:
            chosen.add("r")
        return [name for name in names if name in chosen]

    def _values(self, names: Sequence[str]) -> Row:
        values = {
            "a": self.random.choice([None, *range(-3, 6)]),
            "b": self.random.choice([None, *TEXTS]),
            "c": self.random.randint(0, 9),
            "l": self.random.choice([None, [], [None], [MOMENT], [None, MOMENT, MOMENT]]),
            "r": self.random.choice([-0.5, 0.0, 1.5]),
        }
        return {name: values[name] for name in names}

    def _uniform(self, rows: list[tuple[str, int, Row]]) -> list[tuple[str, int, Row]]:
        """The rows with the same columns in all, as a batch has them."""
        names = self._names("update")
        if self.setup.required and "r" not in names:
            names.append("r")
        return [(operation, key, self._values(names)) for operation, key, _ in rows]

    def _batch(self, client: int, operation: str) -> Step:
        rows = self._uniform(self._rows([operation]))
        if operation in DELETES:
            rows = [(operation, key, {}) for _, key, _ in rows]
        given = [(key, values) for _, key, values in rows]
        return "batch", client, operation, given, self.random.random() < 0.25

    def _version(self) -> int | None:
        return self.random.choice([None, self.random.randrange(1 << 16)])

    def _condition(self) -> tuple:
        key = self.setup.key(self.random.randrange(KEY_COUNT))
        values = dict(zip(self.setup.key_names, key, strict=True)) | {"a": 2, "b": "a", "c": 4}
        name = self.random.choice(sorted(values))
        how = self.random.choice(["=", "!=", "<", ">=", "in", "null", "not null"])
        return name, how, [values[name]] if how == "in" else values[name]


def replay(folder: Path, setup: Setup, steps: Sequence[Step]) -> Exception | None:
    """Run steps on a fresh table; returns how they failed, if they did."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        machine = RowMachine(folder, setup)
        machine.run(steps)
        machine.finish()
    except (AssertionError, KuduliteError, ValueError, LookupError, TypeError) as error:
        return error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return None


def simpler(step: Step) -> list[Step]:
    """The same step with fewer rows or values."""
    forms = []
    for place, part in enumerate(step):
        if isinstance(part, list) and len(part) > 1:
            shorter = [part[:i] + part[i + 1 :] for i in range(len(part))]
        elif isinstance(part, dict) and part:
            shorter = [{k: v for k, v in part.items() if k != name} for name in part]
        else:
            continue
        forms += [(*step[:place], form, *step[place + 1 :]) for form in shorter]
    return forms


def expect_equal(folder: Path, setup: Setup, steps: Sequence[Step]) -> None:
    """Fail with a shrunk list when the table does not equal the model."""
    first = replay(folder, setup, steps)
    if first is None:
        return

    def is_same_failure(fewer: Sequence[Step]) -> bool:
        return type(replay(folder, setup, fewer)) is type(first)

    few = shrink(steps, is_same_failure, simpler=simpler)
    error = replay(folder, setup, few) or first
    listed = pprint.pformat(few, width=96, sort_dicts=False)
    notes = "\n".join(getattr(error, "__notes__", []))
    raise AssertionError(
        f"{type(error).__name__}: {error}\n{notes}\nreplay(core.root / 'again', {setup}, {listed})"
    ) from error


@tiered("seed", SEEDS)
def test_any_steps_equal_the_model(core: CoreTables, seed: int):
    """Looked at after every other flush, and at the end in every way and at every version.

    In each setup each kind of step comes after each kind."""
    part, place = divmod(seed, len(SETUPS))
    kinds = part_of_circuit(KINDS, place, part, PARTS)
    expect_equal(core.root / "random", SETUPS[place], Steps(SETUPS[place], seed).make(kinds))


def test_a_failure_is_shrunk_to_the_steps_that_matter(core: CoreTables, monkeypatch):
    """With a model that forgets to delete, a failing list is a few steps long."""
    apply = RowMachine._apply

    def forgetful(self: RowMachine, session: int, operation: str, key: int, values: Row) -> None:
        apply(self, session, operation, key, values)
        if operation in DELETES:
            made, _, row = self._pending[session].pop()
            self._pending[session].append((made, "update_ignore", row))

    monkeypatch.setattr(RowMachine, "_apply", forgetful)
    setup = Setup("int", "one")
    with pytest.raises(AssertionError, match="replay") as failure:
        kinds = ["sessions", "look"] * 30
        expect_equal(core.root / "shrunk", setup, Steps(setup, 5).make(kinds))
    names = [line for line in str(failure.value).splitlines() if line.lstrip(" [").startswith("(")]
    assert len(names) <= 8, str(failure.value)


def test_several_operations_on_one_key_in_one_flush(core: CoreTables):
    """They apply in their order and leave one effect at one timestamp."""
    steps = [
        ("apply", 0, "insert", 0, {"a": 1}),
        ("apply", 0, "insert", 0, {"a": 2}),
        ("apply", 0, "delete", 0, {}),
        ("apply", 0, "update", 0, {"a": 3}),
        ("apply", 0, "upsert", 0, {"b": "b"}),
        ("flush", 0),
        ("look", 1, "scan", None),
        ("apply", 0, "delete", 0, {}),
        ("apply", 0, "insert", 0, {"a": 4}),
        ("apply", 0, "delete", 0, {}),
        ("flush", 0),
        ("flush_table", 0),
    ]
    error = replay(core.root / "one key", Setup(), steps)
    if error is not None:
        raise error
