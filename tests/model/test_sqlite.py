"""Random operations and queries give the same rows and counts in SQLite."""

from tests.support.machines.sqlite_machine import SqliteMachine
from tests.support.tables.core_tables import CoreTables
from tests.support.tiers import tiered


@tiered(("seed", "steps"), [(0, 15), *((seed, 150) for seed in range(1, 4))], quick=1)
def test_any_operations_and_queries_equal_sqlite(core: CoreTables, seed: int, steps: int):
    """Refused rows, conditions with NULL, orders and limits too."""
    assert SqliteMachine(core.root / "db", seed).run(steps) >= steps // 2
