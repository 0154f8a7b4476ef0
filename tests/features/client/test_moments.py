"""A moment as people say it: a version, the result of a write, or so long ago."""

import datetime

import pyarrow as pa
import pytest

import kudulite


@pytest.fixture
def table(core):
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    return core.client().create_table("t", schema, primary_key="id")


def test_a_version_and_a_result_stand_for_their_moments(table):
    first = table.insert([{"id": 1, "n": 1}])
    table.flush()
    table.insert([{"id": 2, "n": 2}])
    inserts = [version for version in table.versions() if version.operation == "insert"]
    for moment in (first, inserts[1]):
        assert table.scan("id", at=moment).to_pylist() == [{"id": 1}]
        assert table.get(2, at=moment) is None
        assert [row["id"] for row in table.changes(moment).to_pylist()] == [2]
    table.tag("then", first)
    assert table.tags["then"] == first.timestamp
    table.restore(first)
    assert table.scan("id").to_pylist() == [{"id": 1}]


def test_a_moment_before_the_table_is_refused_however_it_is_said(table):
    for moment in ("1 hour ago", datetime.timedelta(hours=-1)):
        with pytest.raises(kudulite.errors.TimestampError, match="before the table was created"):
            table.scan(at=moment).to_arrow()
    assert table.scan(at=datetime.timedelta(0)).to_pylist() == []
