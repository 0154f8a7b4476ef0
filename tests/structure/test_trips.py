"""A call of the engine enters few files: the length of the walk through the code has a budget."""

import pytest

from tests.structure.trips import TRIPS, files_entered, trip

# One worker measures: what else runs in this process does not count.
pytestmark = pytest.mark.xdist_group("structure")

FILES_MAX = {
    "bulk_upsert": 36,
    "scan": 28,
    "session_row": 19,
    "get": 17,
    "flush": 29,
    "flush_deltas": 21,
    "changes": 33,
}


@pytest.mark.parametrize("name", TRIPS)
def test_a_trip_enters_few_files(tmp_path, name):
    """One file more must be worth the walk; else move the function to its caller."""
    entered = trip(tmp_path, name)
    assert len(entered) <= FILES_MAX[name], entered


def test_files_of_other_threads_count_and_those_of_others_do_not(tmp_path):
    """The script sees the engine's own threads, and neither `__init__.py` nor other libraries."""
    assert "table/stage.py" in trip(tmp_path, "bulk_upsert")
    assert files_entered(lambda: tmp_path.exists()) == []
