"""Answers to the catalog: the window that the bounds of CHANGES FROM … TO … mean, and listings."""

import json
from pathlib import Path
from typing import Any

import pytest

import kudulite
from kudulite.chain.manifest import Manifest
from kudulite_spark import datasource
from kudulite_spark.datasource import CATALOG_LOAD, KuduliteDataSource
from kudulite_spark.options import FRONT, Place
from kudulite_spark.sql.catalog import answered
from kudulite_spark.types import with_row_count

PER_MICROSECOND = 4096
NOW = 1_700_000_000_000_000


def window(path, has_start: bool, has_end: bool, **bounds: int | str) -> dict[str, str]:
    """The options of the read."""
    question = {"call": "window", "zone": "UTC", "hasStart": has_start, "hasEnd": has_end}
    return answered(Place(str(path), {}), json.dumps(question | bounds))[0].metadata


def moments_of(start: range, end: range, has_start: bool, has_end: bool) -> tuple[int, int]:
    """The window (a, b] that holds the moments of the bounds that belong to the range."""
    inside = range(start[0] if has_start else start[-1] + 1, end[-1] + 1 if has_end else end[0])
    return inside[0] - 1, inside[-1]


@pytest.mark.parametrize("has_start", [True, False])
@pytest.mark.parametrize("has_end", [True, False])
def test_a_bound_belongs_to_the_range_or_not(has_start, has_end, tmp_path):
    """A timestamp of Spark is all HybridTimes of its microsecond, and a version is one."""
    table = kudulite.connect(tmp_path).create_table("t", {"k": [1]}, primary_key="k")
    microseconds = {"startMicroseconds": NOW, "endMicroseconds": NOW + 5}
    start, end = (
        range(moment * PER_MICROSECOND, (moment + 1) * PER_MICROSECOND)
        for moment in microseconds.values()
    )
    found = window(table.path, has_start, has_end, **microseconds)
    expected = moments_of(start, end, has_start, has_end)
    assert (int(found["startTimestamp"]), int(found["endTimestamp"])) == expected

    versions = {"startVersion": str(start[7]), "endVersion": str(end[9])}
    found = window(table.path, has_start, has_end, **versions)
    expected = moments_of(start[7:8], end[9:10], has_start, has_end)
    assert (int(found["startTimestamp"]), int(found["endTimestamp"])) == expected


def test_a_window_may_be_open_and_its_end_beyond_all_times(tmp_path):
    """Without an end there is no option for it; a late timestamp still fits into 63 bits.

    Spark's clause has both images of an update.
    """
    table = kudulite.connect(tmp_path).create_table("t", {"k": [1]}, primary_key="k")
    both = {"changeImages": "both"}
    found = window(table.path, True, True, startMicroseconds=0)
    assert found == {"startTimestamp": "-1", **both}
    late = window(table.path, True, True, startMicroseconds=NOW, endMicroseconds=(1 << 63) - 1)
    assert int(late["endTimestamp"]) == (1 << 63) - PER_MICROSECOND - 1
    assert window(table.path, True, True) == both


def loaded(path: Path) -> dict[str, Any]:
    """The note on a table, or the error, of a load of the catalog."""
    source = KuduliteDataSource({"path": str(path), FRONT: CATALOG_LOAD})
    return source.schema()[0].metadata["kudulite.table"]


def test_a_listing_reads_no_table_and_a_load_reads_each_once(tmp_path, monkeypatch):
    """SHOW TABLES reads names of files only; `spark.catalog.listTables` also loads each table."""
    client = kudulite.connect(tmp_path)
    names = [f"t{number}" for number in range(5)]
    for name in names:
        client.create_table(name, {"k": [1]}, primary_key="k", comment=f"of {name}")
    read: list[str] = []
    decode = Manifest.decode

    def noted(data: bytes, path: str) -> Manifest:
        """Decode a manifest, and note its path."""
        read.append(path)
        return decode(data, path)

    monkeypatch.setattr(Manifest, "decode", noted)
    question = json.dumps({"call": "tables", "zone": "UTC"})
    assert answered(Place(str(tmp_path), {}), question)[0].metadata == {"names": names}
    assert read == []
    for name in names:
        assert loaded(tmp_path / name)["properties"]["comment"] == f"of {name}"
    assert [Path(path).parts[-3] for path in read] == names


@pytest.mark.parametrize("change", ["drop", "recreate", "replace", "alter"])
def test_a_table_that_changes_while_it_is_loaded_is_not_mixed_with_another(
    change, tmp_path, monkeypatch
):
    """A dropped table is not found; a replaced one is loaded where it can be recalled."""
    client = kudulite.connect(tmp_path)
    table = client.create_table("t", {"k": [1]}, primary_key="k", comment="old")
    snapshots: list[int] = []

    def changed(*arguments: Any) -> Any:
        """Change the table after its snapshot is chosen and before it is described."""
        if not snapshots:
            snapshots.append(int(table.current_timestamp()))
            if change in ("drop", "recreate"):
                client.delete_table("t")
            if change == "recreate":
                client.create_table("t", {"id": ["x"]}, primary_key="id", comment="new")
            if change == "replace":
                staged = client.new_staging().create_table("t", {"id": ["x"]}, primary_key="id")
                client.publish_table(staged, overwrite=True)
            if change == "alter":
                client.new_table_alterer(table).set_comment("new").alter()
        return with_row_count(*arguments)

    monkeypatch.setattr(datasource, "with_row_count", changed)
    note = loaded(tmp_path / "t")
    assert len(snapshots) == 1
    if change in ("drop", "recreate"):
        assert note["error"] in ("TableNotFoundError", "ConflictError")
    else:
        assert note["primaryKey"] == ["k"]
        assert note["properties"]["comment"] == ("new" if change == "alter" else "old")
