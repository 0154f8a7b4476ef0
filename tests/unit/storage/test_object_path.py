"""ObjectPath: a path whose text is an address, however it was made."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path, PurePath

import pytest

from kudulite.storage.object_path import ObjectPath
from kudulite.storage.storage import as_path

ROOT = ObjectPath("s3://bucket/pre fix")
PATHS = {
    "itself": (ROOT, "s3://bucket/pre fix"),
    "joined": (ROOT / "a" / "b.json", "s3://bucket/pre fix/a/b.json"),
    "joined with slashes": (ROOT / "a/b/", "s3://bucket/pre fix/a/b"),
    "joined at once": (ROOT.joinpath("a", "b"), "s3://bucket/pre fix/a/b"),
    "parent": ((ROOT / "a").parent, "s3://bucket/pre fix"),
    "bucket": (ROOT.parent, "s3://bucket"),
    "parents": ((ROOT / "a" / "b").parents[2], "s3://bucket"),
    "other name": (ROOT.with_name("other"), "s3://bucket/other"),
    "other suffix": ((ROOT / "a.json").with_suffix(".txt"), "s3://bucket/pre fix/a.txt"),
    "relative": ((ROOT / "a" / "b").relative_to(ROOT), "a/b"),
    "relative with a colon": (ObjectPath("a:b/c"), "a:b/c"),
    "relative to a text": ((ROOT / "a").relative_to("s3://bucket"), "pre fix/a"),
    "one slash": (ObjectPath("s3:/bucket/x"), "s3://bucket/x"),
    "more slashes": (ObjectPath("s3:////bucket//x"), "s3://bucket/x"),
    "with an account": (
        ObjectPath("abfss://c@a.dfs.core.windows.net") / "x",
        "abfss://c@a.dfs.core.windows.net/x",
    ),
}


@pytest.mark.parametrize(("path", "text"), PATHS.values(), ids=PATHS.keys())
def test_the_text_of_a_path_is_its_address(path: ObjectPath, text: str):
    """In all forms of it, and read back; equal paths have equal hashes."""
    assert type(path) is ObjectPath
    assert (str(path), path.__fspath__(), path.as_posix(), f"{path}") == (text,) * 4
    assert repr(path) == f"ObjectPath({text!r})"
    for again in (ObjectPath(text), pickle.loads(pickle.dumps(path)), copy.deepcopy(path)):
        assert (again, str(again), hash(again)) == (path, text, hash(path))


def test_paths_are_compared_by_their_parts():
    """A bucket is not above one whose name begins with its own."""
    assert (ROOT / "a").is_relative_to(ROOT) and not ROOT.is_relative_to(ROOT / "a")
    assert not ObjectPath("s3://bucket2/a").is_relative_to(ObjectPath("s3://bucket"))
    assert not ObjectPath("gs://bucket/a").is_relative_to(ObjectPath("s3://bucket"))
    assert sorted([ROOT / "b", ROOT / "a" / "z", ROOT / "a"]) == [
        ROOT / "a",
        ROOT / "a" / "z",
        ROOT / "b",
    ]
    assert (ROOT / "a").parts == ("s3:", "bucket", "pre fix", "a")


def test_a_path_of_a_bucket_never_looks_at_this_machine():
    """It is a name only; the storage looks."""
    assert not hasattr(ROOT, "open") and not hasattr(ROOT, "exists")


@pytest.mark.parametrize("path", [ROOT / "a", Path("/data/a"), Path("a:b"), Path("/s3:/bucket/a")])
def test_a_path_is_found_again_from_its_text(path: PurePath):
    """Of either kind."""
    again = as_path(str(path))
    assert (type(again), again) == (type(path), path)
