"""The entry point of the command `kudulite`; it names the package to install if one is missing."""

from __future__ import annotations

import sys

try:
    import rich  # noqa: F401  # by the commands, which are imported later

    from kudulite.tools.cli import run
except ModuleNotFoundError as error:
    if error.name not in ("typer", "rich"):
        raise
    sys.exit(
        f"kudulite: the command line needs {error.name}; install the packages of its extra `cli`:"
        " pip install typer rich, or, in a checkout of kudulite, pip install '.[cli]'"
    )


def main() -> None:
    """Run the command of this process, and exit with its status."""
    sys.exit(run())
