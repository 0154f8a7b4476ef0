"""Merging compactions show at every moment what their inputs showed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kudulite.delta.delta_file import OP_DELETE, OP_REINSERT, OP_UPDATE, DeltaFile, DeltaRows
from kudulite.delta.delta_history import merge_undo, stamped
from kudulite.model.key_array import KeyArray
from kudulite.model.schema import Column
from kudulite.rowset import merge_compaction, rowset_writer
from kudulite.rowset.merge_compaction import MergedRowSets, merge_rowsets
from kudulite.rowset.row_versions import RowVersions, read_row_versions
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.new_files import NewFiles
from tests.support.machines.merge_machine import MergeMachine, RandomRowSets
from tests.support.tables.core_tables import patch_group_rows
from tests.support.tiers import tiered

NAMES = {OP_UPDATE: "set", OP_DELETE: "delete", OP_REINSERT: "reinsert"}


def small_limits(patch: pytest.MonkeyPatch, group: int, rowset: int, window: int) -> None:
    """Row groups, rowsets and windows of a few rows each."""
    patch_group_rows(patch, group)
    patch.setattr(rowset_writer, "ROWSET_ROWS_MAX", rowset)
    patch.setattr(merge_compaction, "_WINDOW_ROWS", window)


class IntRows(RandomRowSets):
    """Rowsets of rows with int64 keys, made one by one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 0, "int64")

    def insert(self, timestamp: int, *keys: int, masked: tuple[int, ...] = ()) -> RowSetMeta:
        """A commit's new rowset."""
        self.now = timestamp
        known = set(self.rowsets)
        self.commit({(key,) for key in keys}, {(key,) for key in masked}, timestamp)
        (meta,) = [meta for meta in self.rowsets.values() if meta.id not in known]
        return meta

    def change(self, timestamp: int, key: int, names: str = "") -> None:
        """An update of the columns with these ids, or a delete, where the key is live."""
        self.now = timestamp
        row = {column.id: self.cell(column) for column in self.schema.value_columns}
        cells = {c: value for c, value in row.items() if str(c) in names} if names else None
        self.redo(self.place[(key,)], [[(timestamp, (key,), cells)]], one_moment=False)

    def merged(self, *ids: str, without: KeyArray | None = None) -> MergedRowSets:
        """Merge rowsets, all without `ids`, and put the outputs in their place."""
        chosen = [m for m in self.rowsets.values() if not ids or m.id in ids]
        found = merge_rowsets(
            NewFiles(self.storage),
            self.folder,
            self.schema,
            self.opened(chosen),
            self.mark,
            without,
        )
        for meta in chosen:
            del self.rowsets[meta.id]
        self.install(found.rowsets, set(self.live))
        return found

    def undo(self, meta: RowSetMeta) -> DeltaRows:
        """All UNDO of a rowset, newest first."""
        files = [
            DeltaFile(LocalStorage(), self.folder / meta.id / d.ref.name, d, 99) for d in meta.undo
        ]
        return merge_undo([stamped(file) for file in files])


@tiered("seed", range(12))
def test_merged_rowsets_read_the_same_at_every_moment(seed, tmp_path, monkeypatch):
    """Random histories, merged again and again: each legal past and the present stay the same."""
    small_limits(monkeypatch, *[(1, 1, 1), (2, 4, 3), (3, 3, 5), (100, 100, 100)][seed % 4])
    machine = MergeMachine(tmp_path, seed)
    machine.run(40)


def test_a_life_between_two_lives_of_one_row_goes_between_them(tmp_path):
    """Deletes and inserts of one commit stand in the order of lives, not of rowsets."""
    rows = IntRows(tmp_path)
    first = rows.insert(10, 1)
    rows.change(20, 1)
    second = rows.insert(20, 1)
    rows.change(25, 1, "2")
    rows.change(30, 1)
    third = rows.insert(30, 1)
    rows.change(35, 1, "1")
    rows.check()
    rows.merged(first.id, third.id)
    rows.check()
    (meta,) = rows.merged().rowsets
    rows.check()
    assert second.id not in rows.rowsets
    undo = rows.undo(meta)
    assert [NAMES[op] for op in undo.ops.tolist()] == [
        *("set", "delete", "reinsert", "set", "delete", "reinsert")
    ]
    assert undo.timestamps.tolist() == [35, 30, 30, 25, 20, 20]
    assert (meta.insert_timestamp, meta.row_count, meta.redo) == (10, 1, ())


def test_a_dead_row_keeps_its_image_and_one_redo_until_its_delete_is_ancient(tmp_path):
    """A delete at the mark is seen by all reads, one after it is not by all."""
    rows = IntRows(tmp_path)
    rows.insert(10, 0, 1, 2)
    rows.change(20, 0)
    rows.change(21, 1)
    rows.mark = 20
    (meta,) = rows.merged().rowsets
    rows.check()
    assert (meta.row_count, meta.live_row_count) == (2, 1)
    assert [(redo.row_count, redo.delete_count) for redo in meta.redo] == [(1, 1)]


def test_history_up_to_the_mark_is_left_out(tmp_path):
    """Rows that the mark sees need no UNDO for their inserts, nor for updates until then."""
    rows = IntRows(tmp_path)
    rows.insert(10, 0, 1)
    rows.insert(12, 2)
    rows.change(20, 0, "1")
    rows.change(22, 2, "1")
    rows.insert(25, -1)
    rows.mark = 20
    (meta,) = rows.merged().rowsets
    rows.check()
    undo = rows.undo(meta)
    assert undo.rowids.tolist() == [0, 3]
    assert [NAMES[op] for op in undo.ops.tolist()] == ["delete", "set"]
    assert meta.insert_timestamp <= rows.mark
    rows.mark = 25
    assert [meta.undo for meta in rows.merged().rowsets] == [()]
    rows.check()


def test_inserts_stand_in_a_file_without_values(tmp_path):
    """A reader of old values does not read nulls for each row that was inserted later."""
    rows = IntRows(tmp_path)
    rows.insert(10, 0)
    rows.insert(12, 1, 2)
    rows.change(20, 0, "1")
    (meta,) = rows.merged().rowsets
    values, inserts = meta.undo
    assert (values.row_count, values.delete_count) == (1, 0)
    assert (inserts.row_count, inserts.delete_count, inserts.update_counts) == (2, 2, {})
    rows.check()


def test_rows_that_nobody_saw_leave(tmp_path):
    """A masked row has no moment at which it was there; its key may be live elsewhere."""
    rows = IntRows(tmp_path)
    rows.insert(10, 0)
    masked = rows.insert(20, 1, masked=(0, 2))
    found = rows.merged()
    rows.check()
    (meta,) = found.rowsets
    assert (meta.row_count, meta.live_row_count, meta.redo) == (2, 2, ())
    assert found.row_map.numbers[masked.id].tolist() == [-1, 1, -1]


def test_without_any_row_left_there_is_no_output(tmp_path):
    """Rows that were deleted before the mark leave no file and no folder."""
    rows = IntRows(tmp_path)
    rows.insert(10, 0, 1)
    rows.change(20, 0)
    rows.change(20, 1)
    rows.insert(30, masked=(1,))
    rows.mark = 20
    before = set(tmp_path.iterdir())
    found = rows.merged()
    assert (found.rowsets, found.row_map.row_counts) == ((), [])
    assert all((numbers == -1).all() for numbers in found.row_map.numbers.values())
    assert set(tmp_path.iterdir()) == before
    rows.check()


def test_keys_are_left_out_with_all_their_lives(tmp_path):
    """A purge leaves nothing of a key: image, UNDO, REDO; other rows keep theirs."""
    rows = IntRows(tmp_path)
    rows.insert(10, 0, 1)
    rows.change(20, 1)
    last = rows.insert(30, 1, 2)
    rows.change(40, 2, "1")
    found = rows.merged(without=KeyArray.from_bytes([rows.encoded((1,))], rows.width))
    (meta,) = found.rowsets
    assert found.row_map.numbers[last.id].tolist() == [-1, 1]
    assert rows.undo(meta).timestamps.tolist() == [40, 30]
    rows.versions.remove([(1,)])
    rows.note(50, (1,), None)
    rows.check()


def test_outputs_are_full_and_side_by_side(tmp_path, monkeypatch):
    """A rowset rolls at its limit, whatever the windows are; row groups are full but the last."""
    small_limits(monkeypatch, 2, 4, 3)
    rows = IntRows(tmp_path)
    rows.commit({(key,) for key in range(0, 20, 2)}, set(), 30)
    rows.commit({(key,) for key in range(1, 20, 4)}, set(), 31)
    found = rows.merged()
    assert [meta.row_count for meta in found.rowsets] == [4, 4, 4, 3]
    keys = [key for meta in found.rowsets for key in (meta.key_min, meta.key_max)]
    assert keys == sorted(keys)
    rows.check()


def test_rows_with_long_histories_fill_a_rowset_sooner(tmp_path, monkeypatch):
    """The memory for a rowset that is being written includes its UNDO."""
    small_limits(monkeypatch, 2, 100, 100)
    rows = IntRows(tmp_path)
    rows.insert(10, *range(6))
    monkeypatch.setattr(rowset_writer, "ROWSET_BYTES_MAX", 1000)
    assert len(rows.merged().rowsets) == 1
    for timestamp in range(20, 100):
        rows.change(timestamp, 1, "123")
    assert [meta.row_count for meta in rows.merged().rowsets] == [2, 4]
    rows.check()


def test_rowsets_side_by_side_are_read_one_after_the_other(tmp_path, monkeypatch):
    """An input is opened when a window reaches it, and never held longer than it is needed."""
    rows = IntRows(tmp_path)
    ids = {rows.insert(10 + low, low, low + 2).id: low for low in (6, 0, 3)}
    steps: list[tuple[str, int]] = []

    def recorded(rowset, **given) -> Iterator[RowVersions]:
        steps.append(("open", ids[rowset.meta.id]))
        yield from read_row_versions(rowset, **given)
        steps.append(("end", ids[rowset.meta.id]))

    monkeypatch.setattr(merge_compaction, "read_row_versions", recorded)
    rows.merged()
    assert steps == [(step, low) for low in (0, 3, 6) for step in ("open", "end")]


def test_a_column_that_was_not_there_shows_its_default_in_each_life(tmp_path):
    """Base data and former lives get the default of a younger column; a dropped one goes."""
    rows = IntRows(tmp_path)
    rows.insert(10, 0, 1)
    rows.change(20, 0)
    rows.insert(30, 0)
    rows.merged()
    old, *_ = rows.schema.value_columns
    rows.schema = rows.schema.without_column(old.name)
    new = Column(-1, "new", old.type, nullable=False, read_default=7)
    rows.schema = rows.schema.with_column(new)
    new = rows.schema.column("new")
    rows.change(40, 0, f"{new.id}")
    rows.change(50, 0)
    rows.insert(60, 0)
    (meta,) = rows.merged().rowsets
    rows.check()
    assert set(meta.base[0].column_ids) == {column.id for column in rows.schema}
    undo = rows.undo(meta)
    assert undo.timestamps.tolist() == [60, 50, 40, 30, 20]
    assert undo.columns[new.id].values.to_pylist()[2:] == [7, None, 7]
    assert old.id not in undo.columns
    revivals = undo.ops == OP_REINSERT
    for column in rows.schema.value_columns:
        is_set = undo.columns[column.id].is_set
        assert is_set is None or is_set[revivals].all()
