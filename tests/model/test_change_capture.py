"""Change capture: any order, any batches and any replays of the same changes leave the same table.

A failure prints the seed and what was done. benchmarks/trials.py runs more of it.
"""

from concurrent.futures import ThreadPoolExecutor

from tests.support.machines.change_capture import Capture
from tests.support.tables.core_tables import CoreTables
from tests.support.tiers import tiered

SEEDS = range(30)


@tiered("seed", SEEDS)
def test_any_delivery_of_the_same_changes_leaves_the_same_table(core: CoreTables, seed: int):
    """As the model says, and as any other delivery does."""
    capture = Capture(core, seed)
    expected = capture.expected()
    for name in ("a", "b"):
        found = capture.deliver(name)
        assert found == expected, "\n".join(capture.log)


@tiered("seed", range(3))
def test_several_writers_at_once_leave_the_same_table(core: CoreTables, seed: int):
    """Each commits against what the others have committed since it read."""
    capture = Capture(core, 1000 + seed)
    table = capture.create("t")
    batches = capture.batches()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda batch: capture.apply(core.client().table("t"), batch), batches))
    assert capture.rows_of(table) == capture.expected(), "\n".join(capture.log)
