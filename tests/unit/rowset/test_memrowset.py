"""A MemRowSet equals a dictionary of versions, by every way to read it, at every moment."""

import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudulite.delta import delta_mem_store
from kudulite.model.predicate import bind_predicates
from kudulite.rowset import memrowset
from kudulite.rowset.memrowset import MemRowSet
from kudulite.rowset.scan_spec import ScanSpec
from kudulite.wal.row_codec import CHANGE_DELETE, CHANGE_INSERT, CHANGE_UPDATE
from tests.support.machines.row_histories import (
    Change,
    Versions,
    apply_changes,
    check_reads,
    extend,
    in_batches,
    make_schema,
    new_versions,
)
from tests.support.tiers import examples


@settings(max_examples=examples(40))
@given(new_versions(), st.data())
def test_a_memrowset_equals_a_dictionary_at_every_moment(versions: Versions, data):
    """Changes may come one by one or many to a call, several of one key among them."""
    memory = MemRowSet(versions.schema)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memrowset, "ROW_GROUP_ROWS", 2)
        patch.setattr(delta_mem_store, "FAN_IN", 2)
        for batch in in_batches(data.draw, versions.changes):
            apply_changes(memory, versions, batch)
        rows = versions.at(1 << 60)
        for key in versions.keys:
            encoded = versions.encoded(key)
            assert (memory.find_one(encoded) >= 0) == (key in rows)
            was_here = any(change.key == key for change in versions.changes)
            assert (encoded in memory) == was_here
        snapshot = memory.snapshot()
        for moment in data.draw(st.permutations(versions.moments())):
            check_reads([snapshot], versions, moment)


@settings(max_examples=examples(40))
@given(new_versions(), st.data())
def test_a_snapshot_never_changes(versions: Versions, data):
    """A snapshot has no later change, though it shares keys, order and changes with newer ones."""
    memory = MemRowSet(versions.schema)
    taken = []
    count = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_mem_store, "FAN_IN", 2)
        for batch in in_batches(data.draw, versions.changes):
            apply_changes(memory, versions, batch)
            count += len(batch)
            past = Versions(versions.schema, versions.keys, versions.changes[:count])
            taken.append((memory.snapshot(), past))
            if data.draw(st.booleans()):
                check_reads([taken[-1][0]], past, 1 << 60)
        extend(data.draw, versions, 0, 5, live_only=None)
        apply_changes(memory, versions, versions.changes[count:])
    for snapshot, past in data.draw(st.permutations(taken)):
        for moment in (past.changes[-1].timestamp, 1 << 60, past.changes[0].timestamp):
            check_reads([snapshot], past, moment)


def test_an_empty_memrowset_shows_nothing():
    """It is not visible, at no moment."""
    memory = MemRowSet(make_schema("int64"))
    snapshot = memory.snapshot()
    assert not snapshot.is_visible(1 << 60)
    assert snapshot.live_row_count(1 << 60) == 0
    assert snapshot.find_one(b"12345678", 8, 1 << 60) == -1


@pytest.mark.parametrize(
    "ops", [[CHANGE_UPDATE], [CHANGE_DELETE], [CHANGE_INSERT, CHANGE_DELETE, CHANGE_UPDATE]]
)
def test_a_change_of_a_row_that_is_not_live_is_refused_and_leaves_no_trace(ops):
    """All changes of the call are left out, the ones before it too."""
    versions = Versions(make_schema("int64"), [(1,)])
    memory = MemRowSet(versions.schema)
    values = {"a": 1, "s": None, "b": None}
    changes = [Change(5 + i, (1,), op, values) for i, op in enumerate(ops)]
    with pytest.raises(ValueError, match="not live"):
        apply_changes(memory, versions, changes)
    assert (memory.row_count, memory.change_count) == (0, 0)
    apply_changes(memory, versions, [Change(5, (1,), CHANGE_INSERT, values)])
    with pytest.raises(ValueError, match="which is live"):
        apply_changes(memory, versions, [Change(6, (1,), CHANGE_INSERT, values)])
    assert memory.snapshot().live_row_count(6) == 1


def test_rows_older_than_a_column_show_its_read_default():
    """A row inserted without the column, as under an older schema, shows the default."""
    versions = Versions(make_schema("int64"), [(1,), (2,)])
    memory = MemRowSet(versions.schema)
    apply_changes(memory, versions, [Change(5, (1,), CHANGE_INSERT, {"a": 1})])
    apply_changes(memory, versions, [Change(6, (2,), CHANGE_INSERT, {"a": 2, "s": "x"})])
    snapshot = memory.snapshot()
    arrays = snapshot.read_rows(np.array([0, 1]), [versions.schema.column("s")], 9)
    assert arrays[0].to_pylist() == [None, "x"]
    assert snapshot.read_row(0, versions.schema.columns, 9) == [1, 1, None, None, None]


def test_readers_meanwhile_see_whole_calls_only():
    """A reader at any moment finds all rows of an `apply` or none, in key order."""
    versions = Versions(make_schema("int64"), [])
    schema = versions.schema
    memory = MemRowSet(schema)
    spec = ScanSpec(schema, ("k0", "a"), bind_predicates([], schema), 1 << 60, with_keys=True)
    problems: list[str] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            snapshot = memory.snapshot()
            rows = [
                row
                for block in snapshot.blocks(spec)
                if (found := snapshot.read_block(block, spec)) is not None
                for row in zip(*(c.to_pylist() for c in found.batch.columns), strict=True)
            ]
            keys = [row[0] for row in rows]
            if keys != sorted(keys) or len(rows) % 3:
                problems.append(f"{len(rows)} rows")
            if len({row[1] for row in rows}) > 1:
                problems.append("a torn update")
            if any(snapshot.find_one(versions.encoded((key,)), 8, 1 << 60) < 0 for key in keys):
                problems.append("a row without its key")

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    all_keys: list[int] = []
    for step in range(1, 150):
        new = [(step * 7919 + i * 104729) % 1_000_003 for i in range(3)]
        changes = [Change(step, (k,), CHANGE_UPDATE, {"a": step}) for k in all_keys]
        changes += [Change(step, (k,), CHANGE_INSERT, {"a": step, "s": "", "b": True}) for k in new]
        apply_changes(memory, versions, changes)
        all_keys += new
    done.set()
    for thread in threads:
        thread.join()
    assert not problems, problems[:3]


def test_nbytes_grows_with_keys_and_values():
    """A flush by size needs no exact number, but one that follows the rows."""
    versions = Versions(make_schema("string"), [])
    memory = MemRowSet(versions.schema)
    sizes = []
    for i in range(3):
        values = {"a": 1, "s": "x" * 10_000, "b": None}
        apply_changes(memory, versions, [Change(i + 1, (f"{i}",), CHANGE_INSERT, values)])
        sizes.append(memory.nbytes)
    assert 10_000 < sizes[0] < sizes[1] - 10_000 < sizes[2] - 20_000 < 40_000
    assert memory.snapshot().read_rows(np.array([2]), versions.schema.columns[:1], 9) == [
        pa.array(["2"])
    ]
