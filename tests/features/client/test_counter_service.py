"""The example of a service: several processes count, and none loses a count."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "counter_service.py"


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("uvicorn") is None, reason="uvicorn is not installed")
def test_the_service_counts_over_each_store(tmp_path):
    command = [sys.executable, str(EXAMPLE), "--requests", "80", "--workers", "2", "--threads", "4"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["kudulite", "SQLite"]
    assert all(re.search(r"80 counted, none lost: +\d+ a second", line) for line in lines)
