"""DeltaFiles on disk: what is read is what was written, and damage is named."""

import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from kudulite.delta import delta_file
from kudulite.delta.delta_applier import DeltaApplier
from kudulite.delta.delta_file import (
    OP_DELETE,
    OP_UPDATE,
    DeltaColumn,
    DeltaFile,
    DeltaFileMeta,
    DeltaRows,
    create_delta_file,
    create_delta_files,
    slice_rows,
)
from kudulite.errors import CorruptionError, FormatVersionError, StorageError
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.new_files import NewFiles
from kudulite.storage.storage import FileRef
from tests.support.doubles.killing_storage import FailingStorage

ROWS = DeltaRows(
    rowids=np.array([1, 4, 9]),
    ops=np.array([OP_UPDATE, OP_DELETE, OP_UPDATE], np.uint8),
    columns={
        7: DeltaColumn(pa.array(["a", None, "c"]), np.array([True, False, False])),
        8: DeltaColumn(pa.array([1, None, None]), np.array([True, False, True])),
    },
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file goes."""
    return tmp_path / "redo-1.arrow"


def written(path: Path, rows: DeltaRows = ROWS) -> DeltaFileMeta:
    """Write rows and return the stamped entry."""
    meta = create_delta_file(NewFiles(LocalStorage()), path.parent, "redo", rows).stamped(5)
    (path.parent / meta.ref.name).rename(path)
    return meta


def test_the_entry_counts_what_is_in_the_file(path: Path):
    """Deletes, and updates by column id: enough to skip the file unopened."""
    meta = written(path)
    assert (meta.row_count, meta.delete_count, meta.reinsert_count) == (3, 1, 0)
    assert meta.update_counts == {7: 1, 8: 2}
    assert (meta.timestamp, meta.timestamp_min, meta.timestamp_max) == (5, 5, 5)
    assert DeltaFileMeta.from_json(meta.to_json()) == meta


def test_columns_are_read_as_written(path: Path):
    """With which rows set them; a column that the file does not set is None."""
    file = DeltaFile(LocalStorage(), path, written(path), 10)
    assert file.rowids.tolist() == [1, 4, 9]
    assert file.ops.tolist() == ROWS.ops.tolist()
    assert file.timestamps() is None
    assert file.column(6) is None
    column = file.column(7)
    assert column is not None
    assert column.is_set is not None
    assert (column.values.to_pylist(), column.is_set.tolist()) == (
        ["a", None, "c"],
        [True, False, False],
    )


def test_a_row_id_outside_the_rowset_is_corruption(path: Path):
    """The message names the file, what was found, and the bound."""
    file = DeltaFile(LocalStorage(), path, written(path), 9)
    with pytest.raises(CorruptionError, match=r"redo-1.arrow: 3 rows up to row id 9, .*below.* 9"):
        _ = file.rowids


def test_a_wrong_row_count_is_corruption(path: Path):
    """The superblock's count is compared with the file's."""
    file = DeltaFile(LocalStorage(), path, replace(written(path), row_count=4), 10)
    with pytest.raises(CorruptionError, match=r"redo-1.arrow: 3 rows .* expected 4 rows"):
        _ = file.rowids


@pytest.mark.parametrize(
    ("rowids", "timestamps", "common"),
    [([1, 4], [7, 7], 7), ([1, 4], [7, 8], None), ([4, 4], [7, 7], None)],
)
def test_one_timestamp_for_all_rows_is_kept_once(tmp_path: Path, rowids, timestamps, common):
    """Unless a row has several changes, whose file must have timestamps."""
    ops = np.array([OP_UPDATE] * 2, np.uint8)
    columns = {7: DeltaColumn(pa.array(["a", "b"]))}
    rows = DeltaRows(np.array(rowids), ops, columns, np.array(timestamps, np.uint64))
    meta = create_delta_file(NewFiles(LocalStorage()), tmp_path, "undo", rows)
    assert (meta.timestamp, meta.timestamp_min, meta.timestamp_max) == (
        common,
        timestamps[0],
        timestamps[1],
    )
    stored = DeltaFile(LocalStorage(), tmp_path / meta.ref.name, meta, 5).timestamps()
    assert (None if stored is None else stored.tolist()) == (None if common else timestamps)


def test_files_that_are_synced_together_have_their_own_rows(tmp_path: Path, monkeypatch):
    """Also where a part is a slice of all rows, and where there are more than may be open."""
    monkeypatch.setattr(delta_file, "_OPEN_FILES_MAX", 2)
    parts = [slice_rows(ROWS, number, number + 1) for number in range(3)]
    metas = create_delta_files(
        NewFiles(LocalStorage()), "redo", [(tmp_path, part) for part in parts]
    )
    assert sorted(meta.ref.name for meta in metas) == sorted(p.name for p in tmp_path.iterdir())
    for part, meta in zip(parts, metas, strict=True):
        found = DeltaFile(LocalStorage(), tmp_path / meta.ref.name, meta.stamped(5), 10).read()
        assert (found.rowids.tolist(), found.ops.tolist()) == (
            part.rowids.tolist(),
            part.ops.tolist(),
        )
        for column_id, column in part.columns.items():
            assert found.columns[column_id].values.equals(column.values)
            assert found.columns[column_id].is_set.tolist() == column.is_set.tolist()


def test_a_sync_that_fails_leaves_no_file_that_is_not_synced(tmp_path: Path):
    """The files before it are complete, and garbage."""
    parts = [(tmp_path, slice_rows(ROWS, number, number + 1)) for number in range(3)]
    with pytest.raises(StorageError, match="cannot fsync"):
        create_delta_files(NewFiles(FailingStorage(4)), "redo", parts)  # after 3 are created
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("damage", [lambda c: c[:-3], lambda c: c[:50] + b"\xff" + c[51:]])
def test_a_damaged_file_is_refused_with_its_path(path: Path, damage):
    """Truncation and a flipped byte are found before anything is decoded."""
    meta = written(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CorruptionError, match=r"redo-1.arrow: (\d+ bytes|CRC)"):
        DeltaFile(LocalStorage(), path, meta, 10).read()


def test_a_column_whose_name_is_not_utf_8_is_corruption(path: Path):
    """Arrow decodes a name when it is asked for, and then raises an error of Python."""
    meta = written(path)
    content = path.read_bytes().replace(b"v8\0", b"\xeb8\0")
    path.write_bytes(content)
    ref = replace(meta.ref, length=len(content), crc32=zlib.crc32(content))
    with pytest.raises(CorruptionError, match=r"redo-1.arrow: no column v8"):
        DeltaFile(LocalStorage(), path, replace(meta, ref=ref), 10).read()


def test_a_missing_file_is_a_storage_error(path: Path):
    """With its path."""
    meta = written(path)
    path.unlink()
    with pytest.raises(StorageError, match=r"redo-1.arrow: it does not exist"):
        DeltaFile(LocalStorage(), path, meta, 10).read()


def test_a_newer_format_is_refused(path: Path):
    """The message names both versions and what to do."""
    batch = pa.record_batch({"rowid": pa.array([1], pa.uint32()), "op": pa.array([0], pa.uint8())})
    schema = batch.schema.with_metadata({"format_version": "2"})
    with LocalStorage().open_sink(path) as sink:
        with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema) as writer:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
        ref = sink.finish()
    meta = DeltaFileMeta(ref, 5, 5, 5, 1, 0, 0, {})
    with pytest.raises(FormatVersionError, match=r"version 2, known: 1; upgrade"):
        DeltaFile(LocalStorage(), path, meta, 10).read()


def test_offsets_outside_of_the_values_are_damage():
    """Arrow alone would end the process when it looks at the values."""
    path = Path(__file__).parent / "golden" / "offsets-out-of-bounds.arrow"
    content = path.read_bytes()
    ref = FileRef(path.name, len(content), zlib.crc32(content))
    counts = {2: 1, 3: 1, 4: 1, 5: 1, 6: 1}
    file = DeltaFile(LocalStorage(), path, DeltaFileMeta(ref, 5, 1, 9, 60, 0, 0, counts), 177)
    with pytest.raises(CorruptionError, match=r"offsets-out-of-bounds\.arrow: cannot read"):
        file.read()


def text_of(offsets: list[int], letters: bytes) -> pa.Array:
    """Three texts whose parts are not checked."""
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(letters)]
    return pa.Array.from_buffers(pa.string(), 3, buffers)


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        (text_of([0, 1, 2, 3], b"abc"), True),
        (text_of([0, 2, 2, 3], "éc".encode()), True),
        (text_of([0, 2, 1, 3], b"abc"), False),
        (text_of([0, 1, 2, 3], b"a\xffc"), False),
        (text_of([0, 1, 2, 3], "éc".encode()), False),
    ],
)
def test_text_is_validated_whatever_its_letters_are(path: Path, text: pa.Array, is_valid: bool):
    """A file may have the checksum of its content and still have text that is none."""
    meta = written(path, DeltaRows(ROWS.rowids, ROWS.ops * 0, {7: DeltaColumn(text)}))
    file = DeltaFile(LocalStorage(), path, meta, 10)
    if is_valid:
        column = file.column(7)
        assert column is not None and column.values.equals(text)
    else:
        with pytest.raises(CorruptionError, match=r"redo-1\.arrow: cannot read v7"):
            file.column(7)


def test_a_file_is_opened_once_for_the_columns_that_are_wanted(path: Path, monkeypatch):
    """Not once for each; and no others are decoded."""
    count, width = 6, 8
    is_set = np.arange(count) % 2 == 0
    columns = {
        n: DeltaColumn(pa.array(np.arange(count) * n), is_set if n % 3 == 0 else None)
        for n in range(1, width + 1)
    }
    rows = DeltaRows(np.arange(count), np.zeros(count, np.uint8), columns)
    meta = written(path, rows)
    opened: list[list[int] | None] = []
    open_file = pa.ipc.open_file

    def noted(source, *, options=None):
        opened.append(None if options is None else options.included_fields)
        return open_file(source, options=options)

    monkeypatch.setattr(pa.ipc, "open_file", noted)
    file = DeltaFile(LocalStorage(), path, meta, count)
    found = file.columns([7, 3, 99, 2])
    assert list(found) == [7, 3, 2] and found[3].is_set.tolist() == is_set.tolist()
    assert all(found[n].values.equals(columns[n].values) for n in found)
    assert opened[0] is None and [len(fields) for fields in opened[1:]] == [4]
    opened.clear()
    merged = DeltaApplier([file], 1 << 62)
    merged.merge_columns(range(1, width + 1))
    assert len(opened) == 2, "row ids with operations, and all columns"
    alone = DeltaApplier([DeltaFile(LocalStorage(), path, meta, count)], 1 << 62)
    for n in columns:
        one, several = alone.column(n, pa.int64()), merged.column(n, pa.int64())
        assert one.rowids.tolist() == several.rowids.tolist()
        assert one.values.equals(several.values)
    opened.clear()
    assert DeltaFile(LocalStorage(), path, meta, count).read().columns.keys() == set(columns)
    assert len(opened) == 3
