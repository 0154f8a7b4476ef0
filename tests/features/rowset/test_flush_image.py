"""A flushed MemRowSet reads on disk as it did in memory, at every moment, by every way."""

import itertools
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kudulite.delta.delta_file import (
    OP_DELETE,
    OP_REINSERT,
    OP_UPDATE,
    DeltaColumn,
    DeltaFile,
    DeltaRows,
    create_delta_file,
    take_rows,
    without_unset,
)
from kudulite.delta.delta_history import merge_undo, stamped
from kudulite.delta.delta_mem_store import DeltaMemStore
from kudulite.model.encoded_key import key_width
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.memrowset import MemRowSet
from kudulite.rowset.row_versions import flush_image
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.rowset.rowset_writer import write_rowsets
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.new_files import NewFiles
from kudulite.wal.row_codec import CHANGE_DELETE, CHANGE_INSERT, CHANGE_UPDATE
from tests.support.machines.row_histories import (
    Change,
    Versions,
    check_reads,
    columns_of,
    extend,
    flushed,
    in_batches,
    in_memory,
    make_schema,
    new_versions,
    opened,
)
from tests.support.tiers import examples

_OP_OF_CHANGE = {CHANGE_UPDATE: OP_UPDATE, CHANGE_DELETE: OP_DELETE}


@settings(max_examples=examples(30))
@given(new_versions(), st.sampled_from([1, 2, 100]))
def test_a_flushed_memrowset_reads_the_same_at_every_moment(versions: Versions, rows_max: int):
    """Base, UNDO and REDO show what memory showed, cut into rowsets anywhere."""
    memory = in_memory(versions)
    with tempfile.TemporaryDirectory() as name:
        metas = flushed(memory, Path(name), rows_max)
        assert sum(meta.live_row_count for meta in metas) == len(versions.at(1 << 60))
        assert max(meta.timestamp_max for meta in metas) == memory.timestamp_max
        rowsets = opened(metas, Path(name))
        for moment in versions.moments():
            check_reads(rowsets, versions, moment)


@settings(max_examples=examples(30))
@given(new_versions(max_size=15), st.data())
def test_changes_in_memory_and_in_redo_files_lie_on_top_of_flushed_rows(versions: Versions, data):
    """A DeltaMemStore, flushed to a REDO file at any time and followed by another, reads alike."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        metas = flushed(in_memory(versions), folder, data.draw(st.sampled_from([1, 2, 100])))
        rowsets = opened(metas, folder)
        on_disk = {change.key for change in versions.changes}
        stores = [DeltaMemStore() for _ in rowsets]
        for _ in range(data.draw(st.integers(1, 2))):
            changes = extend(data.draw, versions, 0, 8, live_only=on_disk)
            for batch in in_batches(data.draw, changes):
                for rowset, store in zip(rowsets, stores, strict=True):
                    store.append(delta_rows(rowset, versions, batch))
            on_top = [r.with_dms(s.snapshot()) for r, s in zip(rowsets, stores, strict=True)]
            for moment in versions.moments():
                check_reads(on_top, versions, moment)
            if data.draw(st.booleans()):
                metas = [
                    redo_flushed(meta, store, folder)
                    for meta, store in zip(metas, stores, strict=True)
                ]
                rowsets, stores = opened(metas, folder), [DeltaMemStore() for _ in metas]
                for moment in versions.moments():
                    check_reads(rowsets, versions, moment)


def delta_rows(rowset: DiskRowSet, versions: Versions, changes: list[Change]) -> DeltaRows:
    """Those of the changes whose keys are in the rowset, by row id."""
    placed = [
        (rowid, change)
        for change in changes
        if (rowid := rowset.key_index.find_one(versions.encoded(change.key))) >= 0
    ]
    own = [change for _, change in placed]
    columns, is_set = columns_of(versions.schema, own, with_keys=False)
    return DeltaRows(
        rowids=np.array([rowid for rowid, _ in placed], np.int64),
        ops=np.array([_OP_OF_CHANGE[change.op] for change in own], np.uint8),
        columns={c: DeltaColumn(values, is_set.get(c)) for c, values in columns.items()},
        timestamps=np.array([change.timestamp for change in own], np.uint64),
    )


def redo_flushed(meta: RowSetMeta, store: DeltaMemStore, folder: Path) -> RowSetMeta:
    """The rowset with its changes in memory as one more REDO file."""
    if not store.row_count:
        return meta
    rows = store.snapshot().to_rows()
    return meta.with_redo(
        (create_delta_file(NewFiles(LocalStorage()), folder / meta.id, "redo", rows),)
    )


def test_three_lives_leave_the_undo_that_kudu_leaves():
    """UNDO is newest first: SET, DELETE, REINSERT, SET, DELETE, REINSERT; then the first insert."""
    schema = make_schema("int64")
    lives = [
        Change(1, (7,), CHANGE_INSERT, {"a": 1, "s": "x", "b": True}),
        Change(11, (7,), CHANGE_DELETE, {}),
        Change(21, (7,), CHANGE_INSERT, {"a": 2, "s": None, "b": None}),
        Change(31, (7,), CHANGE_UPDATE, {"a": 3}),
        Change(41, (7,), CHANGE_DELETE, {}),
        Change(51, (7,), CHANGE_INSERT, {"a": 4, "s": "y", "b": False}),
        Change(61, (7,), CHANGE_UPDATE, {"s": "z"}),
    ]
    image = flush_image(in_memory(Versions(schema, [(7,)], lives)).snapshot())
    assert image.rows.to_pylist() == [{"k0": 7, "a": 4, "s": "z", "b": False, "l": None}]
    assert image.redo is None
    undo = image.undo
    assert undo is not None
    assert image.insert_timestamps.tolist() == [1]
    assert undo.timestamps.tolist() == [61, 51, 41, 31, 21, 11]
    names = {OP_UPDATE: "set", OP_DELETE: "delete", OP_REINSERT: "reinsert"}
    assert [names[op] for op in undo.ops.tolist()] == [
        *("set", "delete", "reinsert", "set", "delete", "reinsert")
    ]
    a, s = (undo.columns[schema.column(name).id] for name in ("a", "s"))
    assert a.values.to_pylist() == [None, None, 3, 2, None, 1]
    assert a.is_set.tolist() == [False, False, True, True, False, True]
    assert s.values.to_pylist() == ["y", None, None, None, None, "x"]
    assert s.is_set.tolist() == [True, False, True, False, False, True]


def test_a_row_that_is_dead_at_the_end_keeps_its_last_image_and_one_redo_delete(tmp_path):
    """The DELETE stays REDO; a rowset of one commit's inserts needs no UNDO for them."""
    versions = Versions(make_schema("string"), [("a",), ("b",)])
    values = {"a": 1, "s": "x", "b": None}
    versions.changes = [
        Change(5, ("a",), CHANGE_INSERT, values),
        Change(5, ("b",), CHANGE_INSERT, values),
        Change(8, ("a",), CHANGE_DELETE, {}),
    ]
    (meta,) = flushed(in_memory(versions), tmp_path, 100)
    assert (meta.row_count, meta.live_row_count, meta.insert_timestamp) == (2, 1, 5)
    assert meta.undo == ()
    assert [(delta.row_count, delta.delete_count) for delta in meta.redo] == [(1, 1)]


def test_the_image_of_an_empty_memrowset_is_empty():
    """Nothing to flush is no special case."""
    image = flush_image(MemRowSet(make_schema("string")).snapshot())
    assert (len(image.keys), image.rows.num_rows, image.undo, image.redo) == (
        0,
        0,
        None,
        None,
    )
    assert image.keys.width == key_width(make_schema("string").key_types)


@settings(max_examples=examples(25))
@given(new_versions(), st.lists(st.integers(10, 40), max_size=2))
def test_undo_in_several_files_reads_as_in_one(versions: Versions, cuts: list[int]):
    """Files are newest first, and those that a moment does not need are not even opened."""
    with tempfile.TemporaryDirectory() as name:
        (meta,) = flushed(in_memory(versions), Path(name), 100)
        if not meta.undo:
            return
        folder = Path(name) / meta.id
        rows = merge_undo(
            [
                stamped(DeltaFile(LocalStorage(), folder / m.ref.name, m, meta.row_count))
                for m in meta.undo
            ]
        )
        bounds = [1 << 60, *sorted(cuts, reverse=True), 0]
        metas = []
        for high, low in itertools.pairwise(bounds):
            at = np.flatnonzero((rows.timestamps <= high) & (rows.timestamps > low))
            if len(at):
                part = without_unset(take_rows(rows, at))
                metas.append(create_delta_file(NewFiles(LocalStorage()), folder, "undo", part))
        split = replace(meta, undo=tuple(metas))
        for moment in versions.moments()[::-1]:
            for delta in metas:
                if delta.timestamp_max > moment:
                    continue
                (folder / delta.ref.name).rename(folder / "away")
                check_reads(opened([split], Path(name)), versions, moment)
                (folder / "away").rename(folder / delta.ref.name)
            check_reads(opened([split], Path(name)), versions, moment)


def test_files_are_durable_before_their_names_and_those_before_the_entry(tmp_path):
    """A rowset that is handed out has all its files after a crash, the deltas too."""
    versions = Versions(make_schema("string"), [("a",), ("b",)])
    values = {"a": 1, "s": "x", "b": None}
    versions.changes = [
        Change(5, ("a",), CHANGE_INSERT, values),
        Change(6, ("b",), CHANGE_INSERT, values),
        Change(8, ("a",), CHANGE_DELETE, {}),
    ]
    image = flush_image(in_memory(versions).snapshot())
    steps: list[tuple[str, str]] = []

    class Recording(LocalStorage):
        def before(self, operation: str, path: Path) -> None:
            steps.append((operation, path.name.split("-")[0]))

    files = NewFiles(Recording())
    (meta,) = write_rowsets(files, tmp_path, versions.schema, image)
    files.sync()
    fsyncs = [name for operation, name in steps if operation == "fsync"]
    assert fsyncs == ["base", "key", "bloom", "undo", "redo", tmp_path.name.split("-")[0], meta.id]
