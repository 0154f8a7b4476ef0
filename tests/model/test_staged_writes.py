"""Writes staged in several tasks, with other writes in between, committed one after the other.

What a commit must give is what the same rows, task after task, would have given when written in
the order of the commits. The one difference is stated in tablet/conflict_check.py: rows that an
IGNORE operation ignored at the version which its task read stay ignored.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import kudulite
from kudulite.errors import RowError
from tests.support.machines.random_tables import RandomTable, Write
from tests.support.oracle.table_model import OPERATIONS, Counts, ModelTable, Row
from tests.support.tables.core_tables import CoreTables
from tests.support.tiers import tiered

Rows = list[tuple[str, Row]]


@dataclass
class Staged:
    """A write that is staged; `left` are the rows that its commit has to apply."""

    write: Write
    bulk: kudulite.BulkWrite
    parts: list[kudulite.StagedTask] = field(default_factory=list)
    left: Rows = field(default_factory=list)
    ignored: int = 0


def split(table: RandomTable, rows: Rows) -> list[Rows]:
    """The rows of 1 to 4 tasks, some empty, keys at random in several."""
    cuts = sorted(table.random.randint(0, len(rows)) for _ in range(table.random.randint(0, 3)))
    edges = [0, *cuts, len(rows)]
    return [rows[low:high] for low, high in pairwise(edges)]


def is_resolved_at_commit(table: RandomTable, write: Write) -> bool:
    """Whether all rows are judged at the commit: mixed writes, and nulls that hide a default."""
    nulls = write.options.get("ignore_null", False)
    hidden = set(write.names) & set(table.model.defaults)
    return write.operation is None or (nulls and bool(hidden or "unchanged" in write.options))


def stage(table: RandomTable, write: Write) -> Staged | None:
    """Stage a write in tasks; None when a task is refused, as the model says when it begins."""
    options: dict[str, Any] = dict(write.options)
    if write.operation is None:
        options["operation_column"] = "op"
    else:
        options["operation"] = write.operation
    bulk = table.table.new_bulk_write(columns=[*table.key_names, *write.names], **options)
    staged = Staged(write, bulk)
    for index, rows in enumerate(split(table, write.rows)):
        if index and table.random.random() < 0.3:
            table.apply(random_write(table, ["upsert", "insert", "delete", "update", None]))
        table.log.append(f"  task {index}: {len(rows)} rows")
        batches = [table.arrow(write, part) for part in split(table, rows)]
        refused = None
        if not is_resolved_at_commit(table, write):
            try:
                rows, ignored = without_ignored(table.model, write, rows)
                staged.ignored += ignored
            except RowError as error:
                refused = error
        try:
            staged.parts.append(bulk.stage(batches, index))
            table.same(refused, None, "task accepted")
        except RowError as error:
            if refused is None:
                table.same(str(error), None, "task refused")
            bulk.abort()
            return None
        staged.left += rows
    return staged


def without_ignored(base: ModelTable, write: Write, rows: Rows) -> tuple[Rows, int]:
    """The rows that the task, alone at the base, would not ignore, and how many it would."""
    alone = deepcopy(base)
    if write.options.get("overwrite"):
        alone.rows = {}
    options = {"ignore_null": write.options.get("ignore_null", False)}
    left: Rows = []
    ignored = 0
    for row in rows:
        count = alone.write([row], **options).ignored
        ignored += count
        if not count:
            left.append(row)
    return left, ignored


def commit(table: RandomTable, staged: Staged, order: str) -> None:
    """Commit in random order of parts; table and model agree on effect, counts and refusal."""
    table.log.append(f"commit {order}")
    model = table.model
    refused: RowError | None = None
    counts, before = Counts(), model.rows
    try:
        counts = model.write(staged.left, **staged.write.options)
    except RowError as error:
        refused = error
    parts = table.random.sample(staged.parts, len(staged.parts))
    version = table.table.version
    try:
        result = staged.bulk.commit(parts)
    except RowError as error:
        if refused is None:
            table.same(str(error), None, f"commit {order} refused")
        staged.bulk.abort()
        table.same(table.table.version, version, "version after a refusal")
        return
    table.same(None, refused, f"commit {order} accepted")
    counts.ignored += staged.ignored
    if staged.write.operation == "update_ignore":
        # Rows of one key in one task are staged as one: of those that were updates and find their
        # row gone at the commit, only one is counted as ignored (tablet/conflict_check.py).
        table.same(
            result.updated + result.unchanged + result.ignored,
            counts.updated + counts.ignored,
            "counts",
        )
    else:
        table.compare_counts(result, counts, staged.write, before)
    model.committed(result.timestamp)


def overwrite_of(table: RandomTable) -> Write:
    """A write that replaces all rows."""
    write = table.random_write(["upsert", "insert"])
    return Write(write.operation, write.names, write.rows, {**write.options, "overwrite": True})


def random_write(table: RandomTable, operations: Sequence[str | None]) -> Write:
    """Any write, at times one that replaces all rows."""
    if table.random.random() < 0.1:
        return overwrite_of(table)
    return table.random_write(operations)


@tiered("seed", range(50))
def test_writes_staged_together_equal_their_serial_order(core: CoreTables, seed: int):
    """Two or three writes staged at one version, whole writes between their commits."""
    table = RandomTable(core, seed, has_required=False)
    table.apply(table.random_write(["upsert"]))
    for _ in range(3):
        count = table.random.choice([1, 2, 2, 3])
        writes = [random_write(table, (*OPERATIONS, None)) for _ in range(count)]
        staged = []
        for write in writes:
            table.log.append(f"stage {write!r}")
            found = stage(table, write)
            if found is not None:
                staged.append(found)
        for number, each in enumerate(table.random.sample(staged, len(staged))):
            if table.random.random() < 0.5:
                table.apply(random_write(table, ["upsert", "insert", "delete", "update", None]))
            if table.random.random() < 0.2:
                table.reopen()
            commit(table, each, f"{number + 1} of {len(staged)}")
            table.compare_now()
    table.compare_lookups()
    table.compare_predicates()
    table.compare_past()
    table.same([p.name for p in (table.table._store.place / "writes").iterdir()], [], "staging")
