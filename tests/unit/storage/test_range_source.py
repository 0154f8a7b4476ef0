"""Parts of a file are those of its content, and are fetched in as few calls as possible."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pyarrow as pa
import pytest

from kudulite.storage.local_storage import LocalSource
from kudulite.storage.range_source import TAIL_BYTES, RangeSource
from kudulite.storage.storage import Range, Source

CONTENT = random.Random(1).randbytes(3 * TAIL_BYTES + 77)


class Fetches:
    """Fetches of CONTENT, all noted."""

    def __init__(self) -> None:
        self.calls: list[list[Range]] = []

    def source(self) -> RangeSource:
        return RangeSource(len(CONTENT), self._fetch, self._fetch_tail)

    def _fetch(self, ranges: Sequence[Range]) -> list[pa.Buffer]:
        self.calls.append(list(ranges))
        return [pa.py_buffer(CONTENT[start:stop]) for start, stop in ranges]

    def _fetch_tail(self, start: int) -> pa.Buffer:
        self.calls.append([(start, len(CONTENT))])
        return pa.py_buffer(CONTENT[start:])


SOURCES = {
    "whole": lambda: LocalSource(pa.py_buffer(CONTENT), is_map=False),
    "by ranges": lambda: Fetches().source(),
}


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest) -> Source:
    """Each kind."""
    return SOURCES[request.param]()


def test_parts_are_those_of_the_content(source: Source):
    """In any order, more than once, empty, and fewer bytes where the file ends."""
    end = len(CONTENT)
    picks = random.Random(2)
    for _ in range(50):
        starts = [picks.randrange(end + 9) for _ in range(picks.randrange(5))]
        ranges = [(start, start + picks.choice([0, 1, 999, TAIL_BYTES])) for start in starts]
        found = [part.to_pybytes() for part in source.read(ranges)]
        assert found == [CONTENT[start:stop] for start, stop in ranges]
    assert source.content().to_pybytes() == CONTENT


@pytest.mark.parametrize("ranges", [[], [(0, 100), (500, 900)], [(0, len(CONTENT))]])
def test_a_file_for_arrow_has_the_whole_content(source: Source, ranges: list[Range]):
    """Also where it is read elsewhere than was announced."""
    file = source.file(ranges)
    picks = random.Random(3)
    assert file.size() == len(CONTENT)
    for _ in range(50):
        start, count = picks.randrange(len(CONTENT) + 5), picks.randrange(2_000)
        assert file.read_at(count, start) == CONTENT[start : start + count]
    file.seek(600)
    assert file.read(50) == CONTENT[600:650]
    assert file.read_buffer().to_pybytes() == CONTENT[650:]
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.read()


def test_the_end_is_fetched_once_and_what_is_before_it_together():
    """A read is one call, of ascending ranges, each once; a file that is read as announced none."""
    fetches, end = Fetches(), len(CONTENT)
    source = fetches.source()
    source.read([(end - 8, end)])
    source.read([(end - 5_000, end - 8), (end - TAIL_BYTES, end)])
    assert fetches.calls == [[(end - TAIL_BYTES, end)]]
    source.read([(700, 800), (5, 10), (700, 800), (9, 9), (end - 3, end), (end + 5, end + 9)])
    assert fetches.calls[1:] == [[(5, 10), (700, 800)]]
    file = source.file([(1_000, 2_000), (3_000, 4_000)])
    assert fetches.calls[2:] == [[(1_000, 2_000), (3_000, 4_000)]]
    assert file.read_at(10, 1_500) == CONTENT[1_500:1_510]
    assert file.read_at(1_000, 3_000) == CONTENT[3_000:4_000]
    assert file.read_at(100, end - 100) == CONTENT[-100:]
    assert len(fetches.calls) == 3
    assert file.read_at(20, 1_990) == CONTENT[1_990:2_010]
    assert fetches.calls[3:] == [[(1_990, 2_010)]]
