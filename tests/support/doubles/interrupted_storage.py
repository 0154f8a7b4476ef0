"""A file system that lets something else happen once, ahead of one of its durable steps."""

from collections.abc import Callable
from pathlib import Path

from tests.support.doubles.base_storage import BaseStorage


class Interrupted(BaseStorage):
    """Calls an action once, ahead of the durable step number `steps_left`."""

    def __init__(self, steps_left: int) -> None:
        super().__init__()
        self.steps_left = steps_left
        self.action: Callable[[], None] = lambda: None

    def before(self, operation: str, path: Path) -> None:
        """Act, if this is the step."""
        self.steps_left -= 1
        if self.steps_left == -1:
            self.action()
