"""Names on disk: each that is made is read back as what it was made of, and no other name is."""

import ast
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudulite.storage import names
from tests.support.source_tree import project_tree

NUMBERS = st.integers(0, 10**20 - 1)
TIMES = st.integers(0, 10**17 - 1)
IDS = st.from_regex(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,100}", fullmatch=True)
KINDS = ("superblock", "tombstone", "base", "key", "bloom", "redo", "undo")
PARSERS = (
    *(names.version_of, names.segment_of, names.kind_of, names.write_id_of),
    *(names.soft_deleted_of, names.staged_of),
)


def readings(name: str) -> list[object]:
    """All that the parsers find in a name."""
    found = (parse(name) for parse in PARSERS)
    return [reading for reading in found if reading is not None] + [True] * names.is_trash(name)


@given(NUMBERS, TIMES, TIMES, IDS)
def test_names_are_read_back(number: int, since: int, expires: int, given_id: str):
    """By the parser of their kind, and by no other."""
    write_id = uuid.uuid4().hex
    prefix = names.write_prefix(write_id)
    assert readings(names.version_name(number)) == [number]
    assert readings(names.segment_name(number)) == [number]
    assert readings(names.write_name(write_id)) == [write_id]
    deleted = names.soft_deleted_name(since, expires, given_id)
    assert readings(deleted) == [(since, expires, given_id)]
    (staged,) = readings(names.new_staged_name(since, expires))
    assert staged[:2] == (since, expires)
    assert readings(names.new_trash_name()) == [True]
    assert readings(names.new_trash_name(given_id)) == [True]
    for kind in KINDS:
        assert readings(names.new_file_name(kind)) == [kind]
        assert names.write_of(names.new_file_name(kind)) is None
        of_write = names.new_file_name(kind, write_id)
        assert (readings(of_write), names.write_of(of_write)) == ([kind], prefix)
    assert names.write_of(names.new_rowset_id(write_id)) == prefix
    assert names.write_of(names.new_rowset_id()) is None


@given(st.lists(NUMBERS, min_size=2, max_size=2))
def test_names_of_numbers_sort_as_the_numbers(numbers: list[int]):
    """So that a listing of the folder is in the order of versions or segments."""
    for name in (names.version_name, names.segment_name):
        assert (name(numbers[0]) < name(numbers[1])) == (numbers[0] < numbers[1])


@given(st.text(max_size=60))
def test_any_text_is_read_without_an_error(text: str):
    """A stranger's file in a table's folder has any name; it is one of ours at most once."""
    assert len(readings(text)) <= 1


@pytest.mark.parametrize(
    "name",
    [
        *("7.json", "0" * 21 + ".json", "0" * 20 + ".json~", "." + "0" * 20 + ".json", "x.log"),
        *("." + "0" * 32 + ".json", "0" * 31 + ".json"),
        *("base", ".soft-deleted-1-x", ".staged-1-2-x", ".deleted", "hint", "lock"),
        "\u0661" * 20 + ".json",
    ],
)
def test_other_names_are_nobodys(name: str):
    """Temporary files, other numbers of digits, digits that are not ASCII."""
    assert readings(name) == []


def test_a_table_id_that_leads_elsewhere_is_refused():
    """It comes from metadata."""
    with pytest.raises(ValueError, match="table id"):
        names.soft_deleted_name(1, 2, "../t")


FOLDERS_AND_FILES = (
    *(names.MANIFEST_FOLDER, names.TABLET_FOLDER, names.WRITES_FOLDER, names.ROWSET_FOLDER),
    *(names.WAL_FOLDER, names.HINT_NAME, names.LOCK_NAME, names.MAINTENANCE_LOCK_NAME),
    names.STAGING_FOLDER,
)
PREFIXES = (*(f"{kind}-" for kind in KINDS), ".soft-deleted-", ".staged-", ".deleted-")
# Not of a table: a lock of its own, which it tries out.
OTHERS = {"kudulite.tools.doctor"}


def names_in(tree: ast.Module) -> list[int]:
    """The lines in which a path is joined with a name of a table, or a name is put together."""
    lines = []
    for node in ast.walk(tree):
        match node:
            case ast.BinOp(op=ast.Div(), right=ast.Constant(value=str(text))):
                known = text in FOLDERS_AND_FILES
            case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
                known = text in PREFIXES
            case ast.Assign(value=ast.Constant(value=str(text))):
                known = text in PREFIXES
            case _:
                continue
        if known:
            lines.append(node.lineno)
    return lines


def test_no_other_file_knows_a_name():
    """All paths of tables are made with this module."""
    strangers = {
        source.name: names_in(source.tree)
        for source in project_tree().packaged
        if source.name not in {"kudulite.storage.names", *OTHERS}
    }
    assert {name: lines for name, lines in strangers.items() if lines} == {}
    assert names_in(ast.parse('folder / "rowset"; f"base-{uuid}.parquet"; f"bases {x}"')) == [1, 1]
