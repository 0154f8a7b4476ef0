"""Entry point of the command `kudulite`: says what to install where its libraries are missing."""

from __future__ import annotations

import sys

try:
    from kudulite.tools.cli import run
except ModuleNotFoundError as error:
    if error.name not in ("typer", "rich"):
        raise
    sys.exit(f"kudulite: the command line needs {error.name}; pip install 'kudulite[cli]'")


def main() -> None:
    """Run the command that the process was started with; exits with its status."""
    sys.exit(run())
