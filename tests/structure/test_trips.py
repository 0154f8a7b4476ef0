"""A call of the engine enters few files: the length of the walk through the code has a budget."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.structure.trips import TRIPS, files_entered

pytestmark = pytest.mark.xdist_group("structure")

FILES_MAX = {
    "bulk_upsert": 66,
    "scan": 44,
    "session_row": 28,
    "get": 24,
    "flush": 50,
    "flush_deltas": 38,
    "changes": 47,
}


@pytest.fixture(scope="module")
def trips() -> Mapping[str, list[str]]:
    """The files of each trip, from a process without the threads that other tests have left."""
    command = [sys.executable, "-m", "tests.structure.trips"]
    root = Path(__file__).parents[2]
    text = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    blocks = [block.splitlines() for block in text.strip().split("\n\n")]
    return {head.split(":")[0]: [line.strip() for line in files] for head, *files in blocks}


@pytest.mark.parametrize("name", TRIPS)
def test_a_trip_enters_few_files(trips, name):
    """One file more must be worth the walk; else move the function to its caller."""
    assert 0 < len(trips[name]) <= FILES_MAX[name], trips[name]


def test_files_of_other_threads_count_and_those_of_others_do_not(trips, tmp_path):
    """The script sees the engine's own threads, and neither `__init__.py` nor other libraries."""
    assert "writes/stager.py" in trips["bulk_upsert"]
    assert files_entered(lambda: tmp_path.exists()) == []
