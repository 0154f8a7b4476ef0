"""Every parser of bytes returns something or raises a KuduliteError, whatever the bytes are.

benchmarks/fuzz.py runs the same parsers under a coverage-guided fuzzer.
"""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.machines.file_mutations import mutated
from tests.support.parsers import Parser, parsers
from tests.support.tiers import by_tier

NAMES = (
    "manifest superblock lock hint backup backup-plan backup-piece segment-header frame commit"
    " record tablet-log footer pages page-directory tombstones key-index bloom-filter redo undo"
    " condition moment"
)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Parser]:
    """All parsers, over one table and one backup."""
    return parsers(tmp_path_factory.mktemp("parsers"))


def test_each_parser_accepts_its_samples(known: dict[str, Parser]):
    """So that what is changed in them is looked at."""
    assert list(known) == NAMES.split()
    for parser in known.values():
        assert parser.samples
        for sample in parser.samples:
            parser.parse(sample)


@pytest.mark.parametrize("name", NAMES.split())
@given(content=st.binary(max_size=80))
def test_any_bytes(known: dict[str, Parser], name: str, content: bytes):
    """Alone, and behind the beginning of a real content."""
    known[name].survive(content)
    known[name].survive(known[name].samples[0][: len(content)] + content)


@pytest.mark.both
@pytest.mark.parametrize("name", NAMES.split())
def test_changed_contents(known: dict[str, Parser], name: str):
    """A few changes of a content that is accepted; some are accepted, some are refused."""
    chance = random.Random(name)
    for _ in range(by_tier(100, 3000)):
        known[name].survive(mutated(chance.choice(known[name].samples), chance))
