"""Tables whose key is not unique, under random writes: no id of a tablet is ever used twice."""

from tests.support.machines.id_machine import SEEDS, IdMachine, steps_of
from tests.support.tables.core_tables import CoreTables
from tests.support.tiers import tiered


@tiered("seed", range(SEEDS), quick=2)
def test_ids_are_unique_and_rise_whatever_happens(core: CoreTables, seed: int):
    """Over sessions, batches, deletes, restores, flushes, compactions and backups, now and then.

    In each layout each step comes after each one."""
    IdMachine(core.root, seed).run(steps_of(seed))
