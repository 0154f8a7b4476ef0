"""In each gap of a compaction something else happens: writes, reads, alterations, compactions.

The operation is built beside all of it, and published with what has arrived, or given up. After it
the table must equal the model now and at every legal moment, and check as good.
"""

from tests.support.machines.history_looks import LOOKS
from tests.support.machines.history_machine import GAPS
from tests.support.machines.history_setup import Setup
from tests.support.machines.history_steps import Step, replay
from tests.support.tables.core_tables import CoreTables
from tests.support.tiers import tiered

KEYS = range(12)
ALL = 0xFFFF  # the bits of all rowsets, or of all columns
WRITES: list[Step] = [
    ("rows", 0, [("upsert", k, {"a": k, "b": k}) for k in KEYS[::2]]),
    ("rows", 1, [("delete_ignore", k, {}) for k in KEYS[1::4]]),
    ("flush", 0),
    ("batch", 0, "upsert", [(k, {"c": k, "f": 1}) for k in KEYS[::3]], False),
    ("batch", 0, "update_ignore", [(k, {"a": 7}) for k in KEYS[::2]], False),
    ("mixed", 0, [("delete_ignore", 4, {}), ("upsert", 9, {"m": 5}), ("upsert", 4, {"m": 6})]),
]
MERGE: Step = ("compact", 1, "merge", (0, 0, ALL, 0), {})
MAJOR: Step = ("compact", 1, "major", (0, 0, ALL, 0), {})
ACTIONS: dict[str, list[Step]] = {
    "a session": [("rows", 1, [("upsert", k, {"a": 3}) for k in KEYS[:5]])],
    "deletes": [("rows", 1, [("delete_ignore", k, {}) for k in KEYS]), ("flush", 1)],
    "a batch": [("batch", 1, "upsert", [(k, {"a": 2}) for k in KEYS[3:9]], False)],
    "several commits": [
        *(("batch", 1, "update_ignore", [(k, {"a": k, "c": 2})], False) for k in KEYS[::3]),
        ("mixed", 0, [("delete_ignore", 0, {}), ("delete_ignore", 6, {}), ("upsert", 6, {})]),
    ],
    "an overwrite": [("overwrite", 1, [(k, {"a": 1}) for k in KEYS[2:7]])],
    "another merge": [MERGE],
    "another compaction of columns": [MAJOR],
    "a column more": [("add", 1, "x", 3, False, 4), ("rows", 0, [("upsert", 2, {"x": 5})])],
    "a column less": [("drop", 1, "f"), ("add", 1, "f", 6, True, 2)],
    "a wider column": [("widen", 1, "a", 0), ("rows", 0, [("upsert", 1, {"a": 11})])],
    "a range less": [("drop_range", 1, 1), ("add_range", 1, 1)],
    "a purge": [("purge", 1, [0, 3])],
    "a tag": [("tag", 1, "monday", 1), ("advance", 4000), ("rows", 0, [("upsert", 1, {"a": 1})])],
    "collected history": [("untag", 1, "monday"), ("compact", 1, "collect", (0, 0, 0, 0), {})],
    "upkeep": [("maintain", 1)],
    "all upkeep": [("compact_all", 1)],
    "reads": [("past", 1), ("changes", 1, "changes", 0, None, "both"), ("history", 1, 4)],
}  # fmt: skip
READS: list[Step] = [("peek", 1, how, at) for how in LOOKS for at in (None, 0, 3, 9)]
READS += [("changes", 1, how, 0, None, "both") for how in ("changes", "tokens")]


CASES = [("merge", gap, "one") for gap in GAPS]
CASES += [("merge", "built", "ranges"), ("minor", "built", "one")]
CASES += [("major", gap, "one") for gap in ("read", "built", "carried")]
# The quick tier takes some of the actions.
QUICK = [
    ("merge", "built", "one", slice(0, None, 4)),
    ("major", "carried", "one", slice(2, None, 4)),
]


@tiered(("kind", "gap", "layout", "some"), [*QUICK, *((*case, slice(None)) for case in CASES)])
def test_what_happens_in_a_gap_is_neither_lost_nor_doubled(
    core: CoreTables, kind: str, gap: str, layout: str, some: slice
):
    """One thing after the other, each in the gap of a new operation."""
    setup = Setup(layout=layout, key_count=len(KEYS), retention=2, tick=0, group_rows=4)
    steps: list[Step] = []
    actions = [READS] if gap == "locked" else list(ACTIONS.values())
    for number, action in enumerate(actions[some]):
        picks = (number, number, ALL, number)
        steps += [*WRITES, ("advance", 300), ("compact", 0, kind, picks, {gap: action})]
        # Moments stay legal for six actions: what is wrong at one is seen by a later look, too.
        steps += [("look", 0, "scan", None), ("check", 1), ("past", 0)][: 2 if number % 4 else 3]
    error = replay(core.root / "gaps", setup, steps)
    if error is not None:
        raise error


def test_mixed_tasks_with_immutable_cells_are_judged_at_their_commit(core: CoreTables):
    """A row that would be refused now may be deleted before the commit, or may be there still."""
    fixed: list[Step] = [("fix", 1, "c", False), ("rows", 1, [("upsert_ignore", 3, {})])]
    staged: Step = ("stage", 1, 2, None, [[("upsert", 3, {"c": None})]])
    deleted: Step = ("rows", 0, [("delete", 3, {})])
    for between in ([], [deleted]):
        steps = [*fixed, staged, *between, ("commit", 2), ("look", 0, "scan", None)]
        error = replay(core.root / "staged", Setup(key_count=12, retention=10), steps)
        if error is not None:
            raise error
