"""Backups, restores, copies killed at some durable steps; benchmarks/trials.py: at all."""

import pytest

from kudulite.storage.local_storage import LocalStorage
from tests.support.doubles.base_storage import BaseStorage
from tests.support.machines.killed_backups import HOWS, kill_backups, kill_copies, kill_restores
from tests.support.tables.core_tables import CoreTables
from tests.support.tiers import tiered

# Both ways to die, at different steps. Objects have fewer: each is durable when it is put.
EACH = 18 if BaseStorage is LocalStorage else 6


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("full", [True, False], ids=["full", "incremental"])
def test_a_backup_killed_at_a_step_is_not_there_or_whole(core: CoreTables, full: bool, how: str):
    """Run again it is one backup, with nothing beside it."""
    first = 2 * HOWS.index(how) + full
    assert kill_backups(core.root, how, full=full, each=EACH // 2, first=first) > 2


@tiered(
    ("overwrite", "how"),
    [(overwrite, how) for overwrite in (False, True) for how in HOWS],
    quick=[(False, "exit"), (True, "error")],
)
def test_a_restore_killed_at_a_step_shows_no_half_a_table(
    core: CoreTables, overwrite: bool, how: str
):
    """Run again it is the table of the backup, and nothing hidden is left."""
    first = 4 * HOWS.index(how) + 2 * overwrite
    assert kill_restores(core.root, how, overwrite=overwrite, each=EACH, first=first) > 4


@pytest.mark.parametrize("with_past", [True, False], ids=["past", "present"])
def test_a_copy_killed_at_a_step_is_not_there_or_whole(core: CoreTables, with_past: bool):
    """Copied again it is whole; the table that is copied is as it was."""
    how = HOWS[with_past]
    assert kill_copies(core.root, how, with_past=with_past, each=EACH, first=EACH // 2) > 1
