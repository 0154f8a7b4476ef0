"""Each script in examples/ runs to its end; what it shows it asserts itself."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
MAIN_JOB = "flights.py"


def test_the_main_job_runs_as_a_person_starts_it(tmp_path):
    """In a process of its own, in another folder than the project's, which it leaves empty."""
    completed = subprocess.run(
        [sys.executable, ROOT / "examples" / MAIN_JOB],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=590,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "script", [path for path in SCRIPTS if path.name != MAIN_JOB], ids=lambda path: path.name
)
def test_the_example_runs(script, spark, monkeypatch, capsys):
    """In this process and its Spark session, with a temporary folder of its own."""
    monkeypatch.setattr(sys, "argv", [str(script)])
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out
