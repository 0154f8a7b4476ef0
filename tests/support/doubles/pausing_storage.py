"""File systems that stand still at a publication, or at new files, while others go on."""

import random
import time
from collections.abc import Callable
from pathlib import Path

from kudulite.storage.names import ROWSET_FOLDER
from tests.support.doubles.base_storage import BaseStorage

# Right before a version's file is created, and right after, ahead of the writer's next look; before
# a file of a rowset is made, and when it is durable.
GAPS = ("before", "after", "building", "built")
PAUSES_MAX = 2
_MANIFEST = "manifest"


def gap_of(operation: str, path: Path) -> str:
    """The gap that a durable step is in, empty for any other step."""
    if operation == "link" and path.parent.name == _MANIFEST:
        return "before"
    if operation == "fsync" and path.name == _MANIFEST:
        return "after"
    if operation == "create" and path.parent.parent.name == ROWSET_FOLDER:
        return "building"
    return "built" if operation == "fsync" and path.name == ROWSET_FOLDER else ""


class StallingStorage(BaseStorage):
    """Stands still for a moment, now and then, in one of the gaps."""

    def __init__(self, seed: int, *, chance: float = 0.3, seconds: float = 0.2) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._chance, self._seconds = chance, seconds

    def before(self, operation: str, path: Path) -> None:
        """Let others go on meanwhile."""
        if gap_of(operation, path) and self._random.random() < self._chance:
            time.sleep(self._random.uniform(0, self._seconds))


class PausingStorage(BaseStorage):
    """Calls an action in the gap that `pause_at` names."""

    def __init__(self) -> None:
        super().__init__()
        self._gap = ""
        self._action: Callable[[], None] | None = None
        self.pause_count = 0

    def pause_at(self, gap: str, action: Callable[[], None] | None) -> None:
        """Call `action` in the next of these gaps; None lets them pass."""
        self._gap, self._action, self._left = gap, action, PAUSES_MAX

    def before(self, operation: str, path: Path) -> None:
        """Stand still where it was asked for; not again while the action itself publishes."""
        action = self._action
        if action is None or gap_of(operation, path) != self._gap:
            return
        if not self._left:
            return
        self._left -= 1
        self._action = None
        try:
            self.pause_count += 1
            action()
        finally:
            self._action = action
