"""A file system that stands still at a publication while something else happens."""

from collections.abc import Callable
from pathlib import Path

from kudulite.fs.file_system import FileSystem

# Right before a version's file is created, and right after, ahead of the writer's next look.
GAPS = ("before", "after")
PAUSES_MAX = 2
_MANIFEST = "manifest"


class PausingFileSystem(FileSystem):
    """Calls an action at publications of versions, in the gap that `pause_at` names."""

    def __init__(self) -> None:
        self._gap = ""
        self._action: Callable[[], None] | None = None
        self.pause_count = 0

    def pause_at(self, gap: str, action: Callable[[], None] | None) -> None:
        """Call `action` in a gap of the next publications; None lets them pass."""
        self._gap, self._action, self._left = gap, action, PAUSES_MAX

    def before(self, operation: str, path: Path) -> None:
        """Stand still where it was asked for; not again while the action itself publishes."""
        is_before = operation == "link" and path.parent.name == _MANIFEST
        is_after = operation == "fsync" and path.name == _MANIFEST
        action = self._action
        if action is None or not (is_before if self._gap == GAPS[0] else is_after):
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
