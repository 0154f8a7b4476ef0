"""A superblock's entry of a rowset: it is read back equal, old forms too, and lists every file."""

from dataclasses import replace

from kudulite.delta.delta_file import DeltaFileMeta
from kudulite.rowset.rowset_meta import BaseFileMeta, RowSetMeta
from kudulite.storage.storage import FileRef


def delta(name: str, oldest: int, newest: int, deletes: int = 0) -> DeltaFileMeta:
    """An entry of a delta file with changes at moments of their own."""
    return DeltaFileMeta(
        FileRef(name, 10, 1), None, oldest, newest, 3, deletes, 0, {2: 3 - deletes}
    )


META = RowSetMeta(
    id="r",
    row_count=9,
    key_min=b"\0a",
    key_max=b"\xff",
    base=(BaseFileMeta(FileRef("base", 100, 2), (0, 1, 2)),),
    key_index=FileRef("key", 20, 3),
    bloom=FileRef("bloom", 5, 4),
    insert_timestamp=50,
    redo=(delta("redo-1", 70, 80, deletes=2),),
    undo=(delta("undo-1", 60, 65), delta("undo-2", 51, 55, deletes=1)),
)


def test_an_entry_is_read_back_equal():
    """JSON loses nothing, the order of UNDO files included."""
    assert RowSetMeta.from_json(META.to_json()) == META


def test_an_entry_written_before_there_were_undo_files_has_none():
    """Superblocks of older versions do not name them."""
    stored = META.to_json()
    del stored["undo"]
    assert RowSetMeta.from_json(stored) == replace(META, undo=())


def test_all_files_are_listed():
    """The list includes UNDO files, because a file that is not listed is removed."""
    assert META.file_names == ["base", "key", "bloom", "redo-1", "undo-1", "undo-2"]
    assert META.bytes_on_disk == 100 + 20 + 5 + 3 * 10


def test_only_redo_deletes_rows():
    """An UNDO DELETE says that a row was not there before: it is there now."""
    assert META.live_row_count == 9 - 2


def test_the_newest_moment_counts_every_file_and_the_rowset_itself():
    """Nothing in a rowset is newer than its `timestamp_max`."""
    assert META.timestamp_max == 80
    assert replace(META, redo=()).timestamp_max == 65
    assert replace(META, redo=(), undo=()).timestamp_max == 50
    assert replace(META, delete_timestamp=90).timestamp_max == 90
