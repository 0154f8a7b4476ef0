"""Deltas follow their rows to where a compaction has put them."""

import numpy as np
import pyarrow as pa

from kudulite.delta.delta_file import OP_DELETE, OP_UPDATE, DeltaColumn, DeltaRows
from kudulite.rowset.merge_compaction import RowIdMap

ROW_MAP = RowIdMap({"a": np.array([0, 2, 3, -1]), "b": np.array([1, 4])}, [3, 2])


def test_a_row_is_found_in_its_output():
    """Numbers count over all outputs; row ids begin anew in each; rows that are gone are -1."""
    outputs, rowids = ROW_MAP.locate("a", np.array([3, 2, 1, 0]))
    assert (outputs.tolist(), rowids.tolist()) == ([-1, 1, 0, 0], [-1, 0, 2, 0])
    outputs, rowids = ROW_MAP.locate("b", np.array([1, 0]))
    assert (outputs.tolist(), rowids.tolist()) == ([1, 0], [1, 1])


def test_changes_go_to_outputs_by_row_and_keep_their_order():
    """Of one row an earlier change stays before a later one, also if they come in order of time."""
    values = pa.array([10, 20, 30, None, 50])
    rows = DeltaRows(
        rowids=np.array([1, 0, 2, 0, 1]),
        ops=np.array([OP_UPDATE, OP_UPDATE, OP_UPDATE, OP_DELETE, OP_UPDATE], np.uint8),
        columns={7: DeltaColumn(values, np.array([True, True, True, False, True]))},
        timestamps=np.array([1, 2, 3, 4, 5], np.uint64),
    )
    found = ROW_MAP.map_deltas("a", rows)
    assert list(found) == [0, 1]
    assert found[0].rowids.tolist() == [0, 0, 2, 2]
    assert found[0].ops.tolist() == [OP_UPDATE, OP_DELETE, OP_UPDATE, OP_UPDATE]
    assert found[0].timestamps.tolist() == [2, 4, 1, 5]
    assert found[0].columns[7].values.to_pylist() == [20, None, 10, 50]
    assert found[0].columns[7].is_set.tolist() == [True, False, True, True]
    assert (found[1].rowids.tolist(), found[1].timestamps.tolist()) == ([0], [3])


def test_changes_of_rows_that_are_gone_are_left_out():
    """Where a purge runs beside a writer, what the writer changed goes with the row."""
    ops = np.zeros(2, np.uint8)
    column = DeltaColumn(pa.array([1, 2]))
    found = ROW_MAP.map_deltas("a", DeltaRows(np.array([2, 3]), ops, {7: column}))
    assert list(found) == [1]
    assert (found[1].rowids.tolist(), found[1].timestamps) == ([0], None)
    assert found[1].columns[7].values.to_pylist() == [1]
    assert ROW_MAP.map_deltas("a", DeltaRows(np.array([3]), ops[:1], {})) == {}


def test_without_outputs_nothing_is_left():
    """All rows were dead for ever: whatever still comes for them is dropped."""
    row_map = RowIdMap({"a": np.array([-1, -1])}, [])
    assert row_map.map_deltas("a", DeltaRows(np.array([1]), np.zeros(1, np.uint8), {})) == {}
    assert row_map.locate("a", np.array([0]))[1].tolist() == [-1]
