"""The changed rows of one rowset, in every window, in memory and after a flush."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kudulite.model.encoded_key import encode_key
from kudulite.model.predicate import bind_predicates
from kudulite.rowset.merge import in_turn
from kudulite.rowset.rowset import RowSet
from kudulite.rowset.rowset_diff import IMAGE_START, block_diffs, find_row, may_have_changed
from kudulite.rowset.scan_spec import DiffSpec
from kudulite.wal.row_codec import CHANGE_DELETE, CHANGE_INSERT
from tests.support.machines.row_histories import (
    VALUES,
    Change,
    Row,
    Versions,
    flushed,
    in_memory,
    make_schema,
    new_versions,
    opened,
)
from tests.support.tiers import examples

NAMES = tuple(VALUES)


def spec(versions: Versions, start: int, end: int) -> DiffSpec:
    """All rows, with the images at both ends."""
    schema = versions.schema
    ids = frozenset(column.id for column in schema.columns)
    bound = bind_predicates((), schema)
    return DiffSpec(schema, NAMES, bound, start, end, ids, with_before=True)


def told(rowsets: Sequence[RowSet], wanted: DiffSpec) -> dict[bytes, tuple]:
    """The difference by key: whether the row exists at either end, when it changed, its images."""
    found: dict[bytes, tuple] = {}
    for rowset in rowsets:
        blocks = list(in_turn(block_diffs(rowset, wanted)))
        assert may_have_changed(rowset, wanted) or not blocks
        for rows in blocks:
            assert rows.keys is not None
            for key, row in zip(rows.keys, rows.batch.to_pylist(), strict=True):
                cells = list(row.values())
                width = len(NAMES)
                after = dict(zip(NAMES, cells[IMAGE_START : IMAGE_START + width], strict=True))
                before = dict(zip(NAMES, cells[IMAGE_START + width :], strict=True))
                assert key not in found
                found[key] = (cells[0], cells[1], cells[2], after, before)
    return found


def expected(versions: Versions, start: int, end: int) -> dict[bytes, tuple]:
    """The same from the list of changes."""
    at_start, at_end = versions.at(start), versions.at(end)
    nothing: Row = dict.fromkeys(NAMES)
    newest = {c.key: c.timestamp for c in versions.changes if start < c.timestamp <= end}
    result: dict[bytes, tuple[Any, ...]] = {}
    for key, stamp in newest.items():
        old, new = at_start.get(key), at_end.get(key)
        shown = new or old or nothing
        code = encode_key(key, versions.schema.key_types)
        result[code] = (old is not None, new is not None, stamp, shown, old or nothing)
    return result


@settings(max_examples=examples(25))
@given(new_versions(), st.sampled_from([1, 2, 100]), st.data())
def test_the_changed_rows_of_any_window_are_told(versions: Versions, rows_max: int, data):
    """With their newest change and their images; memory and disk tell the same."""
    memory = in_memory(versions)
    with tempfile.TemporaryDirectory() as name:
        metas = flushed(memory, Path(name), rows_max)
        rowsets = opened(metas, Path(name))
        moments = st.sampled_from(versions.moments())
        for _ in range(5):
            start, end = sorted((data.draw(moments), data.draw(moments)))
            wanted, right = spec(versions, start, end), expected(versions, start, end)
            assert told([memory.snapshot()], wanted) == right
            assert told(rowsets, wanted) == right


@settings(max_examples=examples(15))
@given(new_versions(max_size=10), st.sampled_from([1, 2, 100]))
def test_one_row_changed_when_its_changes_say_and_was_what_they_made(versions, rows_max):
    """Moments after a start, whether it was there, and its cells at each of them."""
    ids = {column.id for column in versions.schema.columns}
    columns = [versions.schema.column(name) for name in NAMES]
    with tempfile.TemporaryDirectory() as name:
        memory = in_memory(versions)
        rowsets = [memory.snapshot(), *opened(flushed(memory, Path(name), rows_max), Path(name))]
        for key in versions.keys:
            code = versions.encoded(key)
            wanted = spec(versions, 0, 1 << 60)
            scan = DiffSpec(
                wanted.schema,
                (),
                wanted.predicates,
                0,
                1 << 60,
                wanted.column_ids,
                lower=code,
                upper=code + b"\0",
            ).key_scan
            lives = [life for rowset in rowsets if (life := find_row(rowset, scan)) is not None]
            own = [change for change in versions.changes if change.key == key]
            assert len(lives) == (2 if own else 0)
            for life in lives:
                assert life.moments(11, ids) == {c.timestamp for c in own if c.timestamp > 11}
                for moment in versions.moments():
                    row = versions.at(moment).get(key)
                    assert life.is_live(moment) == (row is not None)
                    if row is not None:
                        cells = life.images(columns, [moment])[moment]
                        assert {n: c[0].as_py() for n, c in zip(NAMES, cells, strict=True)} == row


def test_a_row_that_was_inserted_and_taken_back_at_one_moment_is_not_told(tmp_path):
    """A bulk write leaves such rows when another one was faster; nobody could ever see them."""
    values = {"a": 1, "s": "x", "b": None, "l": None}
    versions = Versions(make_schema("int64"), [(0,), (1,)])
    versions.changes = [
        Change(5, (0,), CHANGE_INSERT, values),
        Change(5, (1,), CHANGE_INSERT, values),
        Change(5, (1,), CHANGE_DELETE, {}),
        Change(9, (0,), CHANGE_DELETE, {}),
    ]
    (rowset,) = opened(flushed(in_memory(versions), tmp_path, 100), tmp_path)
    row = told([rowset], spec(versions, 1, 7))
    assert list(row.values()) == [(False, True, 5, values, dict.fromkeys(NAMES))]
    assert len(told([rowset], spec(versions, 1, 9))) == 1
