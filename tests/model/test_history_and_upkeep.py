"""Random operations and upkeep on 5 to 50 keys: now, every legal moment, and what changed between.

Two clients that share nothing but the folder take turns; the clock and a short retention move the
ancient history mark. A failure prints the few steps that are needed for it, as a call of `replay`
to paste into a test. benchmarks/trials.py runs many more seeds of the same steps.
"""

from tests.support.machines.history_steps import Steps, expect_equal, setup_of
from tests.support.tables.core_tables import CoreTables
from tests.support.tiers import tiered

SEEDS = range(10)
OPERATIONS_EACH = 1_000


@tiered("seed", SEEDS)
def test_any_operations_and_upkeep_equal_the_model(core: CoreTables, seed: int):
    """After every kind of step some reads, at the end every way now and every legal moment."""
    setup = setup_of(seed)
    expect_equal(core.root / "random", setup, Steps(setup, seed).make(OPERATIONS_EACH))
