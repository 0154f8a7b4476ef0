"""Any sequence of delta compactions, alterations and collections leaves every read the same."""

from pathlib import Path
from random import Random

from tests.support.machines.delta_machine import DeltaMachine
from tests.support.tables.core_tables import group_rows_of
from tests.support.tiers import tiered


@tiered("seed", range(25))
def test_compactions_change_no_read(seed: int, tmp_path: Path):
    """After each step a few moments, at the end all, from the mark on; by every way to read."""
    with group_rows_of(Random(seed).choice([1, 3, 100])):
        machine = DeltaMachine(seed, tmp_path)
        machine.check(machine.model.moments())
        for _ in range(10):
            machine.step()
            moments = machine.model.moments()
            machine.check(machine.random.sample(moments, min(4, len(moments))))
        machine.check(machine.model.moments())
