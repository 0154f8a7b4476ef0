"""Paths: absolute, without `file:`, and never a table made amid other things."""

from pathlib import Path

import pyarrow as pa
import pytest

import kudulite
from kudulite.errors import CorruptionError, UsageError
from kudulite_spark.options import absolute_path, catalog_of, find_table


def test_paths_become_absolute_and_lose_the_scheme():
    """Relative to the directory given, which is the driver's."""
    assert absolute_path("a/../t/", "/data") == "/data/t"
    assert absolute_path("file:///x/t%20u") == "/x/t u"
    assert absolute_path("/x/t", "/data") == "/x/t"
    assert absolute_path(Path("a/t"), "/data") == "/data/a/t"


def test_a_table_is_found_or_may_be_made(tmp_path):
    """Nothing and an empty folder are free; a table is opened; anything else is refused."""
    assert find_table(str(tmp_path / "nothing")) is None
    (tmp_path / "empty").mkdir()
    assert find_table(str(tmp_path / "empty")) is None
    schema = pa.schema([("k", pa.int64())])
    made = kudulite.connect(tmp_path).create_table("t", schema, primary_key=["k"])
    assert find_table(str(tmp_path / "t")).name == "t"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x.csv").write_text("")
    with pytest.raises(UsageError, match=r"no table is made here.*x\.csv"):
        find_table(str(tmp_path / "full"))
    (manifest,) = (made.path / "manifest").glob("*.json")
    manifest.write_text("{}")
    with pytest.raises(CorruptionError):
        find_table(str(tmp_path / "t"))


def test_the_root_directory_is_no_table():
    """A table is a directory in a catalog."""
    with pytest.raises(UsageError, match="root directory"):
        catalog_of("/")
