"""Sessions, bulk writers and scanners in processes of their own, on one table; see crowd.py."""

import pyarrow as pa
import pytest

from tests.support.machines.crowd import (
    LEVELS,
    RING,
    SESSION_ROWS,
    Crowd,
    batch_rows,
    create,
    problems_at_end,
    problems_of,
)
from tests.support.tables.core_tables import CoreTables
from tests.support.tiers import tiered

TURNS = 30
ROWS = SESSION_ROWS + RING + len(LEVELS)  # of a batch


@pytest.mark.full
def test_no_scan_sees_a_part_of_a_batch_and_every_batch_is_there(core: CoreTables):
    """Two sessions, a bulk writer and two scanners: all turns are taken, nothing is torn."""
    folder = core.root / "crowd"
    create(folder)
    crowd = Crowd(folder, sessions=2, bulks=1, scanners=2, turns=TURNS)
    crowd.start()
    results = crowd.join(timeout_seconds=120)
    assert problems_at_end(folder, results, crowd.sessions) == []
    assert [told.batches for told in results] == [TURNS] * 5


@tiered("turns", [5, TURNS // 2], quick=1)
def test_upkeep_beside_them_changes_nothing_that_anybody_sees(core: CoreTables, turns: int):
    """Two processes maintain the table beside sessions, a bulk writer and a scanner."""
    folder = core.root / "upkeep"
    create(folder)
    crowd = Crowd(folder, sessions=2, bulks=1, scanners=1, maintainers=2, turns=turns)
    crowd.start()
    results = crowd.join(timeout_seconds=240)
    assert problems_at_end(folder, results, crowd.sessions) == []
    assert [told.batches for told in results] == [turns] * 6


@pytest.mark.full
def test_publications_that_stand_still_beside_removals_without_grace_lose_nothing(
    core: CoreTables,
):
    """A number that was removed meanwhile is not taken again: each acknowledged batch is there."""
    folder = core.root / "stalls"
    create(folder)
    crowd = Crowd(folder, sessions=4, bulks=0, scanners=1, maintainers=1, collectors=1, turns=TURNS)
    crowd.start()
    results = crowd.join(timeout_seconds=240)
    assert problems_at_end(folder, results, crowd.sessions) == []
    assert [told.batches for told in results] == [TURNS] * 7


@pytest.mark.full
@pytest.mark.parametrize("collectors", [0, 1])
def test_purges_beside_each_other_and_beside_everything_else_lose_nothing(
    core: CoreTables, collectors: int
):
    """Two purgers remove the files of all others, also those that are in no version yet."""
    folder = core.root / "purges"
    create(folder)
    turns = TURNS // 3
    crowd = Crowd(
        folder,
        sessions=2,
        bulks=1,
        scanners=1,
        maintainers=1,
        collectors=collectors,
        purgers=2,
        turns=turns,
    )
    crowd.start()
    results = crowd.join(timeout_seconds=240)
    assert problems_at_end(folder, results, crowd.sessions) == []
    assert [told.batches for told in results] == [turns] * (7 + collectors)


@tiered("kills", [2, 20], quick=1)
def test_writers_that_are_killed_leave_whole_commits_and_nothing_else(core: CoreTables, kills: int):
    """Each continues behind the batch that it finds, in all tablets, beside a scanner."""
    folder = core.root / "mortals"
    create(folder)
    seconds = 2.0 * kills
    crowd = Crowd(
        folder, sessions=3, bulks=1, scanners=1, maintainers=1, mortals=2, kills=kills,
        seconds=seconds,
    )  # fmt: skip
    crowd.start()
    results = crowd.join(timeout_seconds=seconds + 120)
    assert problems_at_end(folder, results, crowd.sessions) == []
    assert crowd.kills >= kills / 2


@tiered("turns", [8, TURNS], quick=1)
def test_threads_that_share_a_client_see_and_lose_no_more_than_processes(
    core: CoreTables, turns: int
):
    """Four sessions, a bulk writer and two scanners of one client: flushes go out in groups."""
    folder = core.root / "threads"
    create(folder)
    crowd = Crowd(folder, sessions=4, bulks=1, scanners=2, turns=turns)
    results = crowd.run_in_threads()
    assert problems_at_end(folder, results, crowd.sessions) == []
    assert [told.batches for told in results] == [turns] * 7


def snapshot(*parts: dict[str, list]) -> pa.Table:
    """Rows as a scan gives them."""
    names = ["writer", "number", "batch"]
    return pa.concat_tables([pa.table({name: part[name] for name in names}) for part in parts])


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (snapshot(batch_rows(0, 1, SESSION_ROWS)), None),
        (snapshot(batch_rows(0, 1, SESSION_ROWS)).slice(1), "expected 8 at batch 1"),
        (snapshot(batch_rows(0, 2, SESSION_ROWS)), "expected 12 at batch 2"),
        (snapshot(batch_rows(0, 1, SESSION_ROWS), batch_rows(0, 2, SESSION_ROWS)), "ring rows"),
        (snapshot(batch_rows(0, 1, SESSION_ROWS)).slice(0, ROWS - 1), "levels [1, 1, 1]"),
        (snapshot(batch_rows(0, 1, SESSION_ROWS)).slice(0, ROWS - len(LEVELS)), "levels []"),
        (snapshot({**batch_rows(0, 1, SESSION_ROWS), "batch": [*[1] * (ROWS - 1), 2]}), "1, 2]"),
    ],
)
def test_the_check_of_a_snapshot_finds_what_is_wrong(rows: pa.Table, problem: str | None):
    """A whole batch passes; a lost row, a lost batch, two batches, uneven levels do not."""
    found = problems_of(rows, sessions=1)
    assert (problem is None and found == []) or any(problem in text for text in found)
