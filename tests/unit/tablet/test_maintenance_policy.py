"""The maintenance policy: what is worth doing, what first, and that it comes to an end."""

import random
from dataclasses import replace

import pytest

from kudulite.basefile.base_data import ROW_GROUP_ROWS
from kudulite.rowset.rowset_meta import BaseFileMeta
from kudulite.tablet.compaction_policy import average_height
from kudulite.tablet.maintenance_policy import (
    CollectHistory,
    CompactColumns,
    CompactDeltas,
    CompactRowSets,
    extents_of,
    full_compaction,
    scored_operations,
)
from tests.support.doubles.simulated_upkeep import (
    COLUMN_IDS,
    delta_file,
    file_ref,
    performed,
    random_tablet,
    rowset,
    tablet,
)
from tests.support.tiers import by_tier

MARK = 1000
MEGABYTE = 1 << 20
OPERATIONS_MAX = 200


def scored(*metas, budget_bytes=512 * MEGABYTE):
    """The maintenance operations of a tablet of these rowsets, with their scores."""
    return scored_operations(tablet(*metas), MARK, COLUMN_IDS, budget_bytes)


def operations(*metas):
    """The same without the scores, the best first."""
    return [found.operation for found in scored(*metas)]


def test_a_clean_tablet_needs_nothing():
    """No rowset; one, whatever its size; full ones side by side."""
    assert operations() == []
    assert operations(rowset(0, 9, 100, 5)) == []
    assert operations(rowset(0, 9, rows=ROW_GROUP_ROWS), rowset(10, 19, rows=ROW_GROUP_ROWS)) == []


def test_overlapping_rowsets_are_merged():
    """Two large rowsets over the same keys, by the compaction policy's quality."""
    a, b = rowset(0, 9, 20 * MEGABYTE), rowset(0, 9, 20 * MEGABYTE)
    (found,) = scored(a, b)
    assert set(found.operation.rowset_ids) == {a.id, b.id}
    assert isinstance(found.operation, CompactRowSets)
    assert found.score == pytest.approx(1.0, abs=0.02)
    assert found.byte_count == 40 * MEGABYTE


def test_a_large_rowset_is_not_rewritten_for_a_small_one():
    """Until the small ones over it, merged among themselves, make up an eighth of it."""
    large = rowset(0, 999, 80 * MEGABYTE, 900_000)
    small = [rowset(0, 999, 100_000) for _ in range(3)]
    assert operations(large, *small[:2]) == []
    (found,) = operations(large, *small)
    assert set(found.rowset_ids) == {meta.id for meta in small}
    (found,) = operations(large, rowset(0, 999, 10 * MEGABYTE))
    assert len(found.rowset_ids) == 2


def test_small_rowsets_over_many_large_ones_are_merged_among_themselves():
    """The best set within the budget would rewrite large ones for them: those are left out."""
    large = [rowset(10 * at, 10 * at + 9, 40 * MEGABYTE, 900_000) for at in range(60)]
    small = [rowset(0, 599, 200_000) for _ in range(4)]
    (found,) = operations(*large, *small)
    assert set(found.rowset_ids) == {meta.id for meta in small}


def test_two_tiny_rowsets_are_left_until_a_third_comes():
    """A tiny table is not rewritten with every write."""
    tiny = [rowset(0, 9, 1000, 10) for _ in range(3)]
    assert operations(*tiny[:2]) == []
    assert [len(found.rowset_ids) for found in operations(*tiny)] == [3]


def test_ended_rowsets_are_never_compacted():
    """They are there for the past as they are; behind the mark they are dropped."""
    past = [rowset(0, 9, delete_timestamp=MARK + 1) for _ in range(5)]
    assert operations(*past) == []
    assert full_compaction(tablet(*past), MARK, COLUMN_IDS) == []
    gone = rowset(0, 9, 12_345, delete_timestamp=MARK)
    (found,) = scored(*past, gone)
    assert found.operation == CollectHistory() and found.freed_bytes == 12_345


def test_history_behind_the_mark_is_collected_first():
    """Whole UNDO files whose newest change is at the mark or before it."""
    behind, across = delta_file(300, first=1, last=MARK), delta_file(500, first=1, last=MARK + 1)
    overlapping = [rowset(0, 9, 20 * MEGABYTE, undo=[across, behind]) for _ in range(2)]
    found = scored(*overlapping)
    assert found[0].operation == CollectHistory()
    assert (found[0].freed_bytes, found[0].byte_count) == (600, 0)
    assert isinstance(found[1].operation, CompactRowSets)


def test_a_rowset_dead_behind_the_mark_is_collected():
    """All rows deleted, the last of them at the mark."""
    dead = rowset(0, 9, 5000, rows=10, redo=[delta_file(100, deletes=10, last=MARK)])
    assert operations(dead)[0] == CollectHistory()
    younger = replace(dead, redo=(delta_file(100, deletes=10, first=MARK, last=MARK + 1),))
    assert CollectHistory() not in operations(younger)


def test_rows_dead_behind_the_mark_are_dropped_by_merging_one_rowset():
    """Where they are a tenth of it; younger deletes are no reason."""

    def dying(deletes, last):
        redo = [delta_file(9000, deletes=deletes, first=last, last=last)]
        return rowset(0, 9, MEGABYTE, 20_000, redo)

    worth = dying(2000, MARK)
    (found,) = scored(worth)
    assert (found.operation, found.score) == (CompactRowSets((worth.id,)), 0.1)
    assert operations(dying(1999, MARK)) == []
    assert operations(dying(15_000, MARK + 1)) == []


def test_updates_become_base_data_by_column():
    """Only columns with updates for a tenth of the rows, or a tenth of their bytes."""
    redo = [delta_file(900_000, updates={2: 50_000, 3: 1000})]
    meta = rowset(0, 9, 40 * MEGABYTE, 400_000, redo)
    (found,) = scored(meta)
    assert found.operation == CompactColumns((meta.id,), (2,))
    assert found.score == pytest.approx(50_000 / 400_000)
    assert found.byte_count == 900_000 + 10 * MEGABYTE
    assert operations(replace(meta, row_count=600_000)) == []


def test_the_score_of_a_column_compaction_is_capped():
    """Updates may outweigh base data many times."""
    meta = rowset(0, 9, 1000, 10, [delta_file(MEGABYTE, updates={2: 1000})])
    assert scored(meta)[0].score == 1.0


def test_few_bytes_of_updates_wait():
    """A tiny rowset whose rows are all updated is not rewritten each time."""
    meta = rowset(0, 9, 1000, 10, [delta_file(1000, updates={2: 10})])
    assert operations(meta) == []


def test_deletes_are_no_reason_to_compact_columns():
    """They stay REDO, so the same compaction would score again and again."""
    redo = [delta_file(MEGABYTE, deletes=90_000, updates={2: 10}, first=MARK + 1, last=MARK + 2)]
    assert operations(rowset(0, 9, 2 * MEGABYTE, 100_000, redo)) == []


def test_updates_of_dropped_columns_count_for_nothing():
    """Column 9 is not in the schema any more."""
    meta = rowset(0, 9, 1000, 10, [delta_file(MEGABYTE, updates={9: 1000})])
    assert operations(meta) == []
    assert full_compaction(tablet(meta), MARK, COLUMN_IDS) == []


def test_columns_with_a_file_of_their_own_are_weighed_by_it():
    """After a first column compaction the column's base data is one small file."""
    redo = [delta_file(300_000, updates={2: 9000})]
    meta = rowset(0, 9, 90 * MEGABYTE, 100_000, redo)
    assert operations(meta) == []
    own = BaseFileMeta(file_ref(MEGABYTE), (2,))
    (found,) = scored(replace(meta, base=(BaseFileMeta(file_ref(90 * MEGABYTE), (1, 3, 4)), own)))
    assert found.operation.column_ids == (2,)
    assert found.byte_count == 300_000 + MEGABYTE


@pytest.mark.parametrize(
    ("sizes", "joined"),
    [
        ([], None),
        ([1, 1], None),
        ([1, 1, 1], (0, 3)),
        ([4000, 1, 1], None),
        ([4000, 1, 1, 1], (1, 4)),
        ([4000, 400, 300, 1], None),
        ([2000, 400, 300, 1], (0, 3)),
        ([4000, 600, 1, 1], None),
        ([300, 300, 1000, 1, 1], (0, 3)),
        ([1, 1, 1, 4000, 1, 1], (0, 4)),
    ],
)
def test_redo_files_of_about_one_size_are_joined(sizes, joined):
    """Sizes in KiB, oldest first: a file is at most four times the newer ones that it joins."""
    redo = [delta_file(size << 10) for size in sizes]
    meta = rowset(0, 9, 100 * MEGABYTE, redo=redo)
    expected = [] if joined is None else [CompactDeltas((meta.id,), *joined)]
    assert operations(meta) == expected
    if joined is not None:
        assert scored(meta)[0].score == (joined[1] - joined[0]) / 1000


def test_undo_files_are_joined_from_the_newest_on():
    """They are listed newest first."""
    undo = [delta_file(size << 10, first=MARK, last=2 * MARK) for size in (1, 1, 1, 4000)]
    meta = rowset(0, 9, 100 * MEGABYTE, undo=undo)
    assert operations(meta) == [CompactDeltas((meta.id,), 0, 3, is_undo=True)]


def test_undo_of_inserts_stays_apart():
    """It is the oldest file, and the only one that says nothing but that rows were not there."""
    undo = [delta_file(updates={2: 5}, first=MARK, last=2 * MARK) for _ in range(2)]
    inserts = delta_file(deletes=5, first=MARK, last=2 * MARK)
    meta = rowset(0, 9, 100 * MEGABYTE, undo=[*undo, inserts])
    assert operations(meta) == []
    assert full_compaction(tablet(meta), MARK, COLUMN_IDS) == [
        CompactDeltas((meta.id,), 0, 2, is_undo=True)
    ]
    meta = replace(meta, undo=(undo[0], inserts))
    assert full_compaction(tablet(meta), MARK, COLUMN_IDS) == []


def test_nothing_is_done_that_the_budget_does_not_hold():
    """A pass with a small budget does what is small."""
    overlapping = [rowset(0, 9, 20 * MEGABYTE) for _ in range(2)]
    small = rowset(50, 60, 100, redo=[delta_file(MEGABYTE) for _ in range(3)])
    found = scored(*overlapping, small, budget_bytes=10 * MEGABYTE)
    assert [type(s.operation) for s in found] == [CompactDeltas]
    assert sum(s.byte_count for s in found) <= 10 * MEGABYTE


@pytest.mark.parametrize("seed", range(150))
def test_a_pass_comes_to_an_end(seed):
    """The best operation again and again, on any layout: what it leaves does not qualify."""
    rng = random.Random(seed)
    superblock = random_tablet(rng, MARK)
    for _ in range(OPERATIONS_MAX):
        found = scored_operations(superblock, MARK, COLUMN_IDS)
        if not found:
            return
        superblock = performed(superblock, found[0].operation, MARK, rng)
    pytest.fail(f"seed {seed}: still {found[0]} after {OPERATIONS_MAX} operations")


@pytest.mark.parametrize("seed", range(60))
def test_a_full_compaction_leaves_nothing_to_do(seed):
    """Heights of 1, no updates in REDO, one file of each kind; a second one finds nothing."""
    rng = random.Random(seed)
    superblock = random_tablet(rng, MARK)
    for _ in range(6):
        plan = full_compaction(superblock, MARK, COLUMN_IDS)
        if not plan:
            break
        ids = [rowset_id for operation in plan for rowset_id in operation.rowset_ids]
        assert len(ids) == len(set(ids)), "operations of different rowsets"
        for operation in plan:
            superblock = performed(superblock, operation, MARK, rng)
    else:
        pytest.fail(f"seed {seed}: still {plan}")
    current = [meta for meta in superblock.rowsets if meta.delete_timestamp is None]
    assert average_height(extents_of(current)) <= 1.0 + 1e-9
    assert all(len(meta.redo) <= 1 and len(meta.undo) <= 2 for meta in current)
    assert not any(delta.update_counts for meta in current for delta in meta.redo)


@pytest.mark.both
def test_upkeep_of_many_small_writes_costs_a_bounded_multiple():
    """A commit of 20 KB, half new rows, half updates, 400 times into 40 MB, upkeep after each.

    The bytes rewritten stay a small multiple of those written, and files stay few.
    """
    rng = random.Random(3)
    superblock = tablet(rowset(0, 10**6, 40 * MEGABYTE, 1_000_000))
    rewritten = operation_count = file_count_max = 0
    count = by_tier(100, 400)
    for commit in range(count):
        (first, *_) = sorted(superblock.rowsets, key=lambda m: -m.row_count)
        moment = MARK + 1 + commit
        redo = delta_file(10_000, updates={2: 500, 3: 500}, first=moment, last=moment)
        metas = [m.with_redo((redo,)) if m is first else m for m in superblock.rowsets]
        superblock = tablet(*metas, rowset(rng.randrange(1000), 10**6 - commit, 10_000, 500))
        while found := scored_operations(superblock, MARK, COLUMN_IDS):
            rewritten += found[0].byte_count
            operation_count += 1
            superblock = performed(superblock, found[0].operation, MARK)
        files = sum(3 + len(m.redo) + len(m.undo) for m in superblock.rowsets)
        file_count_max = max(file_count_max, files)
    factor = rewritten / (count * 20_000)
    found = f"{operation_count} operations, factor {factor:.1f}, {file_count_max} files at most"
    assert factor < 30, found
    assert operation_count < count, found
    assert file_count_max <= 25, found
