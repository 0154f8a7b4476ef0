"""The models once more, with tables on objects: another storage, another log, the same answers.

Other tests run in a process of their own, whose tables are objects that are files
(tests/support/doubles/base_storage.py). They pass without knowing it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.doubles.base_storage import OBJECTS, STORAGE
from tests.support.tiers import tiered

ROOT = Path(__file__).parents[2]
_SECONDS_MAX = 1500
QUICK = [
    ("tests/model/test_row_by_row.py", "not full"),
    ("tests/model/test_history_and_upkeep.py", "not full"),
    ("tests/crash/test_backup_kills.py", "not full"),
]
# With the quick tier each setup has a part of the pairs of steps, and each part two setups or more:
# what setups differ in is above the storage.
SEEDS = (3, 7, 10, 14, 17)
ROW_BY_ROW = [
    f"tests/model/test_row_by_row.py::test_any_steps_equal_the_model[{seed}]" for seed in SEEDS
]
FULL = [
    (" ".join(ROW_BY_ROW), "full"),
    ("tests/model/test_random_writes.py", "not full"),
    ("tests/features/backups/test_backups.py", "not full"),
    ("tests/features/backups/test_content_hash.py", "not full"),
    ("tests/model/test_changes.py", "not full"),
    ("tests/model/test_change_capture.py", "not full"),
    ("tests/model/test_staged_writes.py", "not full"),
    ("tests/model/test_gaps.py", "not full"),
    ("tests/model/test_sqlite.py", "not full"),
    ("tests/concurrency/test_row_crowd.py", "not full"),
    ("tests/concurrency/test_linear_histories.py", "not full"),
]


NAMES = [f"{paths.partition('::')[0]}-{markers}" for paths, markers in (*QUICK, *FULL)]


@tiered(("paths", "markers"), [*QUICK, *FULL], quick=QUICK, ids=NAMES)
def test_tables_on_objects_equal_the_model(paths: str, markers: str):
    """With the seeds of the quick tier, and in the full one with more of row-by-row writes."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-m", markers, *paths.split()],
        cwd=ROOT,
        env={**os.environ, STORAGE: OBJECTS, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=_SECONDS_MAX,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
