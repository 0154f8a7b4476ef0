"""The trials on an object store, each by seed, in a process whose storage is objects.

    python -m tests.support.machines.store_trials NAME FOLDER SEED     prints a count

A process chooses its storage when it starts (base_storage.py), so `run_on_store` starts one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.support.doubles.base_storage import FAULTY, OBJECTS, STORAGE
from tests.support.machines.history_steps import Steps, expect_equal, setup_of
from tests.support.machines.killed_writer import kill_again_and_again
from tests.support.machines.linear_histories import check_commits, check_history
from tests.support.machines.lost_answers import lose_answers
from tests.support.tables.table_operations import OPERATIONS

ROOT = Path(__file__).parents[3]
HISTORY_OPERATIONS = 150
KILLS, REQUESTS_EVERY, BATCHES = 5, 3, 5
_SECONDS_MAX = 800


def histories(folder: Path, seed: int) -> int:
    """Random writes, maintenance, alterations and reads of the past equal a dictionary."""
    setup = replace(setup_of(seed), faults=seed)
    expect_equal(folder / "table", setup, Steps(setup, seed).make(HISTORY_OPERATIONS))
    return 1


def requests(folder: Path, seed: int, *, is_killed: bool) -> int:
    """The requests of one operation are not answered, or it is killed before them."""
    operation = sorted(OPERATIONS)[seed % len(OPERATIONS)]
    return lose_answers(folder, operation, seed, every=REQUESTS_EVERY, is_killed=is_killed)


def kills(folder: Path, seed: int) -> int:
    """A writer is killed by the system at random moments."""
    return kill_again_and_again(folder, KILLS, seed).kills


def linear(folder: Path, seed: int) -> int:
    """Eight processes on six keys."""
    check_history(folder / "db", seed)
    return 1


def commits(folder: Path, seed: int) -> int:
    """Sixteen processes that insert small batches; returns how many batches there were."""
    return check_commits(folder / "db", seed, BATCHES)


TRIALS: dict[str, tuple[str, Callable[[Path, int], int]]] = {
    "histories": (FAULTY, histories),
    "lost answers": (FAULTY, partial(requests, is_killed=False)),
    "killed requests": (FAULTY, partial(requests, is_killed=True)),
    "kills": (OBJECTS, kills),
    "linear": (FAULTY, linear),
    "commits": (FAULTY, commits),
}


def run_on_store(name: str, folder: Path, seed: int) -> int:
    """Run a trial in a process of its own; returns its count."""
    done = subprocess.run(
        [sys.executable, "-m", __spec__.name, name, str(folder), str(seed)],
        cwd=ROOT,
        env={**os.environ, STORAGE: TRIALS[name][0], "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=_SECONDS_MAX,
    )
    assert done.returncode == 0, f"{name}, seed {seed}: {done.stdout[-2000:]}{done.stderr[-8000:]}"
    return int(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    _, _work = TRIALS[sys.argv[1]]
    sys.stdout.write(f"{_work(Path(sys.argv[2]), int(sys.argv[3]))}\n")
