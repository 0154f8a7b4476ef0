"""Offsets of streams: what Spark keeps in a checkpoint says all; others are not taken for one."""

import json

import pytest

from kudulite.errors import TimestampError, UsageError
from kudulite_spark.stream_bounds import StreamOffset, StreamStart, parse_offset

OFFSETS = [
    StreamStart("snapshot"),
    StreamStart("now"),
    StreamStart(1 << 60),
    StreamOffset("t1", 1 << 60),
    StreamOffset("t1", 1 << 60, ("tablet", b"")),
    StreamOffset("t1", 1 << 60, ("tablet", b"\x00\xff")),
    StreamOffset("t1", 1 << 60, None, {"k": 0, "ä": 7}),
]


@pytest.mark.parametrize("offset", OFFSETS, ids=str)
def test_an_offset_is_the_same_after_a_checkpoint(offset):
    """Spark keeps it as text, and takes equal texts for equal offsets."""
    text = json.dumps(offset.to_json())
    assert parse_offset(json.loads(text)) == offset
    assert json.dumps(parse_offset(json.loads(text)).to_json()) == text


def test_the_start_is_what_the_option_says():
    """Nothing is a snapshot, since a copy needs it; words are of any case."""
    assert StreamStart.of_option(None) == StreamStart("snapshot")
    assert StreamStart.of_option(" Snapshot ") == StreamStart("snapshot")
    assert StreamStart.of_option("NOW") == StreamStart("now")
    assert StreamStart.of_option(str(1 << 60)) == StreamStart(1 << 60)
    with pytest.raises(TimestampError, match="is snapshot, now or a moment: 'yesterday' is not"):
        StreamStart.of_option("yesterday")


@pytest.mark.parametrize(
    "value",
    [{}, {"table": "t"}, {"index": 3}, {"table": "t", "timestamp": 1, "tablet": "x", "key": "z"}]
    + [{"table": "t", "timestamp": 1, "columns": columns} for columns in (3, {"a": "b"}, ["a"])],
)
def test_an_offset_of_somebody_else_is_refused(value):
    """The error says what to do."""
    with pytest.raises(UsageError, match="give each stream a checkpoint of its own"):
        parse_offset(value)
