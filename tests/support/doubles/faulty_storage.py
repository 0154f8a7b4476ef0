"""A storage above another one that refuses calls, loses their answers, delays them, or lists late.

A network between a process and its files does the same: a call may have acted although its answer
is an error, and a listing may be older than the last write.
"""

import errno
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from kudulite.errors import StorageError
from kudulite.storage.storage import Listed, Storage

Fault = Literal["refuse", "lose", ""]
# The verbs that change something, in which a fault may happen.
ACTS = ("put", "put_if_absent", "put_hint", "make_folder", "sync", "delete", "delete_below")


class FaultyStorage:
    """Passes each verb on to `inner`, but for faults.

    `plan` says for each act (the name of its verb, its first argument) whether it is refused before
    it is done, or done and its answer lost; it may wait as well. `listed_until` is the
    name of a folder and a moment, in nanoseconds since 1970: listings of the folder lack what was
    put later, unless they must be fresh.
    """

    def __init__(
        self, inner: Storage, plan: Callable[[str, Any], Fault] = lambda verb, target: ""
    ) -> None:
        self._inner, self.plan = inner, plan
        self.listed_until: tuple[str, int] | None = None
        self._lock = threading.Lock()
        self.counts = Counter[str]()

    def entries(self, folder: Path) -> list[Path]:
        """List a folder, perhaps late."""
        return [path for path in self._inner.entries(folder) if not self._is_hidden(path)]

    def files_below(self, folder: Path, *, is_fresh: bool = False) -> Iterator[Listed]:
        """List a tree, perhaps late."""
        for file in self._inner.files_below(folder, is_fresh=is_fresh):
            if is_fresh or not self._is_hidden(file.path):
                yield file

    def names_below(self, folder: Path) -> dict[Path, list[str]]:
        """List the names of a tree, perhaps late."""
        return {
            place: [name for name in names if not self._is_hidden(place / name)]
            for place, names in self._inner.names_below(folder).items()
        }

    def _is_hidden(self, path: Path) -> bool:
        if self.listed_until is None or path.parent.name != self.listed_until[0]:
            return False
        identity = self._inner.identity(path)
        return isinstance(identity, tuple) and identity[1] > self.listed_until[1]

    def __getattr__(self, name: str) -> Any:
        """Return a verb of the inner storage; one that acts has the faults of the plan."""
        verb = getattr(self._inner, name)
        if name not in ACTS:
            return verb

        def act(target: Any, *more: Any) -> Any:
            with self._lock:
                self.counts[name] += 1
            fault = self.plan(name, target)
            if fault == "refuse":
                raise _no_answer(name, target)
            answer = verb(target, *more)
            if fault == "lose":
                raise _no_answer(name, target)
            return answer

        return act


def at_act(number: int, fault: Fault) -> Callable[[str, Any], Fault]:
    """Return the plan that has a fault in one act, counted from 0, and no other."""
    count = itertools.count()
    return lambda verb, target: fault if next(count) == number else ""


def _no_answer(verb: str, target: Any) -> StorageError:
    return StorageError(errno.ETIMEDOUT, f"cannot {verb} {target}: no answer in time")
