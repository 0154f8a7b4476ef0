"""Which modules a new process has imported, by name: a count does not depend on the machine."""

import os
import subprocess
import sys
from pathlib import Path

import kudulite

ROOT = Path(kudulite.__file__).parents[1]

# Packages that a process should import only if its work needs them.
HEAVY = ("duckdb", "numpy", "obstore", "pandas", "polars", "pyarrow", "rich", "sqlglot", "typer")


def imported_by(code: str, folder: Path = ROOT) -> list[str]:
    """The modules that a new process has imported after it ran the code."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    show = "import sys; print(*sorted(sys.modules))"
    command = [sys.executable, "-c", f"{code}\n{show}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()


def packages(modules: list[str]) -> set[str]:
    """The packages of these modules that take long to import, and the layers of kudulite."""
    names = {module.partition(".")[0] for module in modules} & {*HEAVY}
    return names | {".".join(m.split(".")[:2]) for m in modules if m.startswith("kudulite.")}
