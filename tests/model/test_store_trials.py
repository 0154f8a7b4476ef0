"""One seed of each trial on an object store that delays, refuses, and loses answers."""

from pathlib import Path

import pytest

from tests.support.machines.store_trials import TRIALS, run_on_store
from tests.support.tiers import tiered


@tiered("seed", [1, 2], quick=1)
@pytest.mark.parametrize("name", TRIALS)
def test_a_trial_on_a_store_finds_nothing(tmp_path: Path, name: str, seed: int):
    """Nothing is lost, nothing is there twice; the count is that of the faults or of the runs."""
    assert run_on_store(name, tmp_path, seed) > 0
