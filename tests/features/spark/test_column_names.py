"""Column names in any case: which one is meant, and which cannot be told."""

import pytest

from kudulite.errors import ColumnNotFoundError, SchemaError
from kudulite_spark.options import WriteOptions
from kudulite_spark.types import find_all, find_name, with_layout_names


def test_an_exact_match_wins_and_one_alike_is_found():
    """Where two are alike, only an exact name means one of them."""
    names = ["a", "A", "Host"]
    assert [find_name(name, names, "t") for name in ("a", "A", "HOST", "x")] == [
        "a",
        "A",
        "Host",
        None,
    ]
    with pytest.raises(SchemaError, match="table 't': column 'Ab' is ambiguous: .*'aB' or 'AB'"):
        find_name("Ab", ["aB", "AB"], "table 't'")


def test_a_list_of_names_is_found_whole_or_refused():
    """The message lists the columns."""
    assert find_all(["B", "a"], ["a", "b"], "t") == ["b", "a"]
    with pytest.raises(ColumnNotFoundError, match="t: no column 'c'; columns: a, b"):
        find_all(["a", "c"], ["a", "b"], "t")


def test_a_layout_is_named_as_the_columns_are():
    """Unknown names stay for the check of the layout."""
    options = WriteOptions(
        "/t",
        primary_key=("ID", "no"),
        hash_partitions=((("ID",), 4),),
        range_partitions={"columns": ["TS"], "bounds": [[0, 5], [5, None, [["ID", 8]]]]},
    )
    found = with_layout_names(options, ["id", "ts"])
    assert found.primary_key == ("id", "no")
    assert found.hash_partitions == ((("id",), 4),)
    bounds = [[0, 5], [5, None, [[["id"], 8]]]]
    assert found.range_partitions == {"columns": ["ts"], "bounds": bounds}
