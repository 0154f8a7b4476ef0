"""A column compaction rewrites its columns and nothing else, and leaves the past readable."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kudulite.delta.delta_file import OP_DELETE, OP_UPDATE
from kudulite.model.schema import Column
from kudulite.model.types import parse_type
from kudulite.rowset.delta_compaction import compact_columns, merge_undo_files
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.new_files import NewFiles
from tests.support.doubles.killing_storage import KilledError, KillingStorage
from tests.support.tables.small_rowsets import SmallRowSet, schema_of

MOMENTS = (9, 10, 19, 20, 29, 30, 39, 40, 41, 49, 50, 54, 55)
K, A, B, S = range(4)  # column ids


@pytest.fixture
def rowset(tmp_path: Path) -> SmallRowSet:
    """Four rows; updates of a and b, some together, and a deleted row."""
    small = SmallRowSet.write(
        tmp_path,
        schema_of(a="int64", b="bool", s="string"),
        {"a": [1, 2, 3, 4], "b": [True, None, False, True], "s": ["w", "x", None, "z"]},
    )
    small.add_redo((1, 20, {"a": 20, "b": True}), (3, 20, {"b": None}))
    small.add_redo((0, 30, {"b": False}), (2, 30, {"b": True}))
    small.add_redo((1, 40, {"a": None}), (1, 40, {"a": 21}), (1, 41, None))
    return small


def compacted(small: SmallRowSet, ids: Iterable[int], mark: int = 0) -> SmallRowSet:
    """The rowset with some columns compacted."""
    meta = compact_columns(NewFiles(LocalStorage()), small.opened(), small.schema, ids, mark)
    return replace(small, meta=meta)


def all_reads(small: SmallRowSet, start: int = MOMENTS[0]) -> list[list[dict]]:
    """The rows of scans at each moment from `start` on."""
    return [small.rows(timestamp) for timestamp in MOMENTS if timestamp >= start]


def columns_of(small: SmallRowSet) -> list[tuple[int, ...]]:
    """Which base file has which columns."""
    return [base.column_ids for base in small.meta.base]


@pytest.mark.parametrize("ids", [[A], [B], [A, B], [S], [A, B, S], []])
def test_every_moment_reads_as_before(rowset: SmallRowSet, ids: list[int]):
    """Whatever columns are chosen; deletes and other columns' updates stay REDO."""
    new = compacted(rowset, ids)
    assert all_reads(new) == all_reads(rowset)
    assert new.meta.live_row_count == 3
    assert not any(set(ids) & set(delta.update_counts) for delta in new.meta.redo)


def test_one_column_gets_one_file_with_just_that_column(rowset: SmallRowSet):
    """Key index, bloom filter and the old base file are those that were there."""
    old, new = rowset.meta, compacted(rowset, [B]).meta
    assert [base.column_ids for base in new.base] == [(K, A, S), (B,)]
    assert new.base[0].ref == old.base[0].ref
    assert (new.key_index, new.bloom, new.id) == (old.key_index, old.bloom, old.id)
    assert pq.read_schema(rowset.set_folder / new.base[1].ref.name).names == ["b"]


def test_what_base_and_undo_hold_after(rowset: SmallRowSet):
    """The newest image, of the dead row too; the values before, newest first; the rest as REDO."""
    new = compacted(rowset, [A])
    assert new.opened().base.read(block_of(new), [rowset.schema.column("a")])[0].to_pylist() == [
        *(1, 21, 3, 4)
    ]
    (undo,) = new.meta.undo
    assert new.delta(undo) == [
        (1, 40, OP_UPDATE, {A: None}),
        (1, 40, OP_UPDATE, {A: 20}),
        (1, 20, OP_UPDATE, {A: 2}),
    ]
    first, second, third = new.meta.redo
    assert [cells for *_, cells in new.delta(first)] == [{B: True}, {B: None}]
    assert second == rowset.meta.redo[1]
    assert new.delta(third) == [(1, 41, OP_DELETE, {})]


def block_of(small: SmallRowSet):
    """All rows of a small rowset."""
    (block,) = small.opened().base.row_groups()
    return block


def test_redo_files_that_do_not_set_the_column_are_not_touched(rowset: SmallRowSet):
    """They are not even opened; what is rewritten next to each other becomes one file."""
    (rowset.set_folder / rowset.meta.redo[1].ref.name).rename(rowset.set_folder / "away")
    new = compacted(rowset, [A])
    assert new.meta.redo[1] == rowset.meta.redo[1]
    (rowset.set_folder / "away").rename(rowset.set_folder / rowset.meta.redo[1].ref.name)
    assert len(compacted(rowset, [B]).meta.redo) == 2
    assert len(compacted(rowset, [A, B]).meta.redo) == 1


def test_undo_up_to_the_mark_is_not_written(rowset: SmallRowSet):
    """A change at the mark is ancient; reads at the mark and later are as before."""
    for mark, count in ((19, 3), (20, 2), (39, 2), (40, 0)):
        new = compacted(rowset, [A], mark)
        assert sum(delta.row_count for delta in new.meta.undo) == count
        assert all_reads(new, mark) == all_reads(rowset, mark)


@pytest.mark.parametrize("order", [[A, B], [B, A]])
def test_a_subset_in_any_order_keeps_every_later_cut_right(rowset: SmallRowSet, order: list[int]):
    """The ordering hole of compactions by column: x@24, y@25, compact y, then x, then cut at 25."""
    first = compacted(rowset, order[:1])
    both = compacted(first, order[1:])
    assert all_reads(both) == all_reads(rowset)
    assert len(both.meta.undo) == 2
    for mark in MOMENTS:
        meta = merge_undo_files(
            NewFiles(LocalStorage()), both.set_folder, both.meta, 0, 2, mark=mark
        )
        assert all_reads(replace(both, meta=meta), mark) == all_reads(rowset, mark)


def test_changes_that_arrive_later_lie_on_top(rowset: SmallRowSet):
    """Row ids are the same; a compaction that was built before takes REDO from after."""
    new = compacted(rowset, [A, B])
    entry = rowset.add_redo((0, 50, {"a": 5, "b": None}), (3, 55, None))
    new.meta = new.meta.with_redo((entry,))
    assert all_reads(new) == all_reads(rowset)
    assert all_reads(compacted(new, [A, B, S])) == all_reads(rowset)


def test_a_base_file_of_nothing_but_keys_is_given_up(rowset: SmallRowSet):
    """The key columns are rewritten with the last column that leaves it."""
    one = compacted(rowset, [A, S])
    assert columns_of(one) == [(K, B), (A, S)]
    two = compacted(one, [B])
    assert columns_of(two) == [(A, S), (K, B)]
    assert all_reads(two) == all_reads(rowset)
    three = compacted(two, [A])
    assert columns_of(three) == [(S,), (K, B), (A,)]
    assert columns_of(compacted(rowset, [A, B, S])) == [(K, A, B, S)]


def test_key_columns_alone_are_not_rewritten(rowset: SmallRowSet):
    """They never change."""
    assert compacted(rowset, [K]).meta == rowset.meta


def test_an_added_column_gets_its_read_default(rowset: SmallRowSet):
    """With the updates since; base data says from then on what old rows show."""
    column = Column(0, "n", parse_type("int32"), nullable=False, read_default=7)
    rowset.schema = rowset.schema.with_column(column)
    rowset.add_redo((2, 50, {"n": 8}))
    new = compacted(rowset, [4])
    assert columns_of(new) == [(K, A, B, S), (4,)]
    assert all_reads(new) == all_reads(rowset)
    assert pq.read_table(new.set_folder / new.meta.base[1].ref.name).to_pydict() == {
        "n": [7, 7, 8, 7]
    }


def test_a_dropped_column_leaves_with_the_next_compaction(rowset: SmallRowSet):
    """From base entries, and from REDO; an update of nothing else vanishes."""
    rowset.schema = rowset.schema.without_column("b")
    reads = all_reads(rowset)
    new = compacted(rowset, [S])
    assert columns_of(new) == [(K, A), (S,)]
    assert [cells for delta in new.meta.redo for *_, cells in new.delta(delta)] == [
        *({A: 20}, {A: None}, {A: 21}, {})
    ]
    assert all_reads(new) == reads
    last = compacted(new, [A])
    assert columns_of(last) == [(S,), (K, A)]
    assert all_reads(last) == reads


def test_a_renamed_column_has_its_new_name_in_the_new_file(rowset: SmallRowSet):
    """Ids say what a column is; names in files are for other Parquet readers."""
    rowset.schema = rowset.schema.with_changed("b", {"name": "flag"})
    new = compacted(rowset, [B])
    assert all_reads(new) == all_reads(rowset)
    assert pq.read_schema(new.set_folder / new.meta.base[1].ref.name).names == ["flag"]


def test_a_crash_before_any_step_leaves_what_was_there(rowset: SmallRowSet):
    """New files under new names, each fsynced, then their folder; nothing is changed in place."""
    files = {path.name: path.read_bytes() for path in rowset.set_folder.iterdir()}
    operations: list[tuple[str, str]] = []

    class Recording(KillingStorage):
        def before(self, operation: str, path: Path) -> None:
            super().before(operation, path)
            operations.append((operation, path.name.split("-")[0]))

    for step in range(100):
        operations.clear()
        try:
            files_made = NewFiles(Recording(step))
            compact_columns(files_made, rowset.opened(), rowset.schema, [A], 0)
            files_made.sync()
            break
        except KilledError:
            now = {path.name: path.read_bytes() for path in rowset.set_folder.iterdir()}
            assert files.items() <= now.items()
    assert [name for operation, name in operations if operation == "fsync"] == [
        *("redo", "redo", "base", "undo", rowset.meta.id)
    ]
