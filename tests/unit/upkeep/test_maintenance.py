"""The maintenance manager: which tablet it takes, when it ends, and that it is alone there.

Operations are played on paper; that they do what they should is tested with each of them.
"""

import random
import threading

import pytest

from kudulite.errors import LockTimeoutError, UsageError
from kudulite.shown.progress import Screen
from kudulite.tablet.maintenance_policy import (
    CollectHistory,
    CompactColumns,
    CompactDeltas,
    CompactRowSets,
    scored_operations,
)
from kudulite.upkeep.maintenance import (
    OPERATIONS_PER_TABLET_MAX,
    compact_table,
    maintain_tablets,
    maintenance_lock,
)
from tests.support.doubles.simulated_upkeep import PaperTable, delta_file, random_tablet, rowset

MEGABYTE = 1 << 20


def overlapping():
    """Two rowsets over one another."""
    return [rowset(0, 9, 20 * MEGABYTE), rowset(0, 9, 20 * MEGABYTE)]


def many_redo():
    """A rowset with three small REDO files."""
    return [rowset(0, 9, 90 * MEGABYTE, redo=[delta_file() for _ in range(3)])]


def maintained(table, tablet_ids=("tablet-0", "tablet-1"), **options):
    """A pass without a flush: there is no log on paper."""
    return maintain_tablets(table, tablet_ids, is_flushing=False, run=table.run, **options)


def test_the_best_operation_of_all_tablets_goes_first(tmp_path):
    """Operations that free disk space are first, then the others by score, in all tablets."""
    dead = rowset(0, 9, delete_timestamp=5)
    table = PaperTable(tmp_path, many_redo(), [*overlapping(), dead])
    done = maintained(table)
    assert [(p.tablet_id, type(p.operation)) for p in done.operations] == [
        ("tablet-1", CollectHistory),
        ("tablet-1", CompactRowSets),
        ("tablet-0", CompactDeltas),
    ]
    assert table.performed == [(p.tablet_id, p.operation) for p in done.operations]
    assert done.bytes_written == 21
    assert maintained(table).operations == ()


def test_only_the_tablets_that_were_asked_for_are_touched(tmp_path):
    """A piece of the work for one machine; an id that is not known is an error."""
    table = PaperTable(tmp_path, overlapping(), overlapping())
    done = maintained(table, ["tablet-1"])
    assert {p.tablet_id for p in done.operations} == {"tablet-1"}
    with pytest.raises(UsageError, match=r"no tablet 'tablet-7'; its tablets: tablet-0, tablet-1"):
        maintained(table, ["tablet-7"])


@pytest.mark.parametrize("seed", range(20))
def test_a_pass_leaves_nothing_worth_doing(seed, tmp_path):
    """On any layout, over several tablets."""
    rng = random.Random(seed)
    tablets = [list(random_tablet(rng, 1000).rowsets) for _ in range(2)]
    table = PaperTable(tmp_path, *tablets)
    maintained(table)
    for tablet_id in ("tablet-0", "tablet-1"):
        assert scored_operations(table.superblock(tablet_id), 1000, {2, 3, 4}) == []


def test_a_pass_ends_with_its_budget(tmp_path):
    """Operations that exceed the rest of the budget are left for the next pass."""
    table = PaperTable(tmp_path, overlapping(), overlapping())
    assert len(maintained(table, budget_bytes=50 * MEGABYTE).operations) == 1
    assert len(maintained(table, budget_bytes=39 * MEGABYTE).operations) == 0
    assert len(maintained(table, budget_bytes=40 * MEGABYTE).operations) == 1


def test_a_tablet_that_somebody_maintains_is_left_to_him(tmp_path):
    """The others are done."""
    table = PaperTable(tmp_path, overlapping(), overlapping())
    with maintenance_lock(table, "tablet-0") as is_had:
        assert is_had
        done = maintained(table)
    assert [p.tablet_id for p in done.operations] == ["tablet-1"]
    assert done.busy_tablet_ids == ("tablet-0",)
    assert [p.tablet_id for p in maintained(table).operations] == ["tablet-0"]


def test_no_two_passes_are_in_one_tablet_at_once(tmp_path):
    """While one runs an operation there, the other finds the tablet busy."""
    table = PaperTable(tmp_path, overlapping())
    other = []

    def meanwhile(tablet_id, operation):
        table.before_run = lambda *_: None
        thread = threading.Thread(target=lambda: other.append(maintained(table, ["tablet-0"])))
        thread.start()
        thread.join()

    table.before_run = meanwhile
    assert len(maintained(table, ["tablet-0"]).operations) == 1
    assert other[0].operations == () and other[0].busy_tablet_ids == ("tablet-0",)


def test_what_was_chosen_is_scored_again_under_the_lock(tmp_path, monkeypatch):
    """Another maintainer may have done it between the choice and the lock."""
    table = PaperTable(tmp_path, overlapping())

    def first(store, tablet_id, timeout_seconds=0.0):
        monkeypatch.undo()
        maintained(table, ["tablet-0"])
        return maintenance_lock(store, tablet_id, timeout_seconds)

    monkeypatch.setattr("kudulite.upkeep.maintenance.maintenance_lock", first)
    assert maintained(table, ["tablet-0"]).operations == ()
    assert len(table.performed) == 1


def test_an_operation_that_does_not_fit_is_not_tried_again(tmp_path):
    """A writer was faster; the other operations are done."""
    table = PaperTable(tmp_path, overlapping(), many_redo())
    tried = []

    def run(store, tablet_id, operation):
        tried.append(operation)
        return table.run(store, tablet_id, operation) if tablet_id == "tablet-1" else None

    done = maintain_tablets(table, ["tablet-0", "tablet-1"], is_flushing=False, run=run)
    assert [type(operation) for operation in tried] == [CompactRowSets, CompactDeltas]
    assert [p.tablet_id for p in done.operations] == ["tablet-1"]


def test_a_tablet_that_is_written_to_without_end_ends_the_pass(tmp_path):
    """A writer that is faster than compactions does not keep the pass from its end."""
    table = PaperTable(tmp_path, many_redo())

    def write(tablet_id, operation):
        (meta,) = table.superblock(tablet_id).rowsets
        more = meta.with_redo(tuple(delta_file() for _ in range(3)))
        table.replace_tablet(type(table.superblock(tablet_id))(tablet_id, (more,)))

    table.before_run = write
    assert len(maintained(table, ["tablet-0"]).operations) == OPERATIONS_PER_TABLET_MAX


def test_an_error_frees_the_tablet(tmp_path):
    """The next maintainer finds its lock free."""
    table = PaperTable(tmp_path, overlapping())

    def fail(*_):
        raise LockTimeoutError("held by another writer")

    with pytest.raises(LockTimeoutError):
        maintain_tablets(table, ["tablet-0"], is_flushing=False, run=fail)
    assert len(maintained(table, ["tablet-0"]).operations) == 1


def test_each_operation_is_reported_before_it_runs(tmp_path, monkeypatch):
    """As progress, inside that of the whole maintenance."""
    table = PaperTable(tmp_path, overlapping())
    seen = []
    monkeypatch.setattr(Screen, "enter", lambda _screen, call: seen.append(call.text))
    done = maintained(table, ["tablet-0"])
    expected = [f"{p.operation.label} in tablet {p.tablet_id}" for p in done.operations]
    assert seen == [f"maintenance of table {table.name!r}", *expected]


def test_compacting_leaves_every_tablet_in_its_best_shape(tmp_path, monkeypatch):
    """Also what is not worth it; and a second time there is nothing to do."""
    monkeypatch.setattr("kudulite.upkeep.maintenance.flush_table", lambda *_: [])
    tiny = [rowset(0, 9, 100, redo=[delta_file(updates={2: 1})]), rowset(20, 29, 100)]
    large = [rowset(0, 9, 90 * MEGABYTE, redo=[delta_file(updates={3: 1}), delta_file()])]
    table = PaperTable(tmp_path, tiny, large)
    assert maintained(table).operations == ()
    done = compact_table(table, run=table.run)
    assert [type(p.operation) for p in done.operations] == [CompactRowSets, CompactColumns]
    assert compact_table(table, run=table.run).operations == ()


def test_compacting_beside_another_maintainer_says_so(tmp_path, monkeypatch):
    """It does not leave a tablet out as a pass does."""
    monkeypatch.setattr("kudulite.upkeep.maintenance.flush_table", lambda *_: [])
    table = PaperTable(tmp_path, overlapping())
    object.__setattr__(table.environment, "lock_timeout_seconds", 0.0)
    with (
        maintenance_lock(table, "tablet-0"),
        pytest.raises(LockTimeoutError, match="tablet-0 is being maintained"),
    ):
        compact_table(table, run=table.run)
