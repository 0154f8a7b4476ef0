"""What this process has open of the files in a folder."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def maps_below(folder: Path) -> int:
    """How many memory maps there are of files in a tree, also of files that are removed."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(f" {folder}/" in line for line in lines)


def descriptors_below(folder: Path) -> int:
    """How many descriptors are open of files in a tree, also of files that are removed."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            count += os.readlink(f"/proc/self/fd/{name}").startswith(f"{folder}/")
    return count
