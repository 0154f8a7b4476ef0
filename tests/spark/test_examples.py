"""Each script in examples/ runs to its end; what it shows it asserts itself."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_the_example_runs(script, tmp_path):
    """As a person starts it, in another folder than the project's."""
    completed = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=590
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
