"""A double of obstore that loses answers, refuses out of turn, is late, and fails as a test asks.

Its faults are those of a store that keeps its promises, seen through a network and through the
library, which tries again by itself before it raises an error:

    lost         done, and refused when the library has tried again
    refused      not done, refused as if the object existed: a request at the same time (409)
    slow         done after a pause
    paged        a list whose second page is read after a pause
    unanswered   done, and an error: the library has given up
    undone       not done, and an error
    late         an error, and done later, when the caller has gone on

A list is sorted, and has all that was put before it began. An object that is put meanwhile is in it
if its name comes after the pages that were read.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import obstore
from obstore import exceptions

from kudulite.storage import object_lister, object_reader, object_storage

# Those that use the library.
MODULES: tuple[Any, ...] = (object_lister, object_reader, object_storage)
CREATE, PUT, DELETE, READ, LIST = "create", "put", "delete", "read", "list"
# Faults that a caller notices by the time, or by looking into an answer; then errors.
HIDDEN = {
    CREATE: ("lost", "refused", "slow"),
    PUT: ("slow",),
    DELETE: ("slow",),
    READ: ("slow",),
    LIST: ("slow", "paged"),
}
ERRORS = {
    CREATE: ("unanswered", "undone", "late"),
    PUT: ("unanswered", "undone", "late"),
    DELETE: ("unanswered", "undone", "late"),
    READ: ("undone",),
    LIST: ("undone",),
}
NO_ANSWER = "503 Service Unavailable: SlowDown: no answer in time"
# A late request is done before one of so many next ones.
_LATE_MAX = 12

Plan = Callable[[str, str], str]


def no_faults(kind: str, name: str) -> str:
    """The plan of a library that does as it should."""
    return ""


class RandomFaults:
    """Faults by seed: parts of all requests that are `hidden`, and that are `errors`."""

    def __init__(self, seed: object, hidden: float, errors: float) -> None:
        self._random = random.Random(str(seed))
        self.hidden, self.errors = hidden, errors

    def __call__(self, kind: str, name: str) -> str:
        """Choose the fault of a request, empty for none."""
        chance = self._random.random()
        if chance < self.errors:
            return self._random.choice(ERRORS[kind])
        return self._random.choice(HIDDEN[kind]) if chance < self.errors + self.hidden else ""


class FaultyLibrary:
    """The functions of obstore.

    `next_puts` are what the next puts do: one of the faults, "replaced" (whatever is there), "", or
    the error they raise; later ones do what `plan` says of (kind, name). `next_gets` are the errors
    that the next gets raise. Every call raises `error` if there is one. With `is_cut`, the last
    byte of each answer is missing. `names` are those that were put.
    """

    def __init__(self, plan: Plan = no_faults) -> None:
        self.plan = plan
        self.pause_seconds = 0.001
        self.next_puts: list[str | Exception] = []
        self.next_gets: list[Exception] = []
        self.is_cut = False
        self.error: Exception | None = None
        self.fault_count = 0
        self.names: list[str] = []
        self._late: list[tuple[int, Callable[[], object]]] = []
        self._random = random.Random(0)
        self._mutex = threading.Lock()
        self.is_used = False

    def install(self) -> None:
        """Take the place of the library in this process."""
        self.is_used = True
        for module in MODULES:
            module.obstore = self

    @contextmanager
    def planned(self, plan: Plan) -> Iterator[None]:
        """Have the faults of a plan until the end of the block, and then no late requests."""
        before, self.plan = self.plan, plan
        try:
            yield
        finally:
            self.plan, self._late = before, []

    @contextmanager
    def without_faults(self) -> Iterator[None]:
        """Do as the library does until the end of the block, in all threads."""
        plan, self.plan = self.plan, no_faults
        late, self._late = self._late, []
        try:
            yield
        finally:
            self.plan, self._late = plan, late

    @staticmethod
    def no_answer() -> Exception:
        """The error of a request that was not answered."""
        return exceptions.GenericError(NO_ANSWER)

    # -- the library's functions

    def put(self, store: Any, name: str, content: Any, **options: Any) -> Any:
        """Put an object, or not."""
        kind = CREATE if options.get("mode") == "create" else PUT
        with self._mutex:
            self.names.append(name)
            fault = self.next_puts.pop(0) if self.next_puts else None
        if fault == "replaced":
            options.pop("mode", None)
        act = lambda: obstore.put(store, name, content, **options)  # noqa: E731
        return self._request(kind, name, act, fault)

    def delete(self, store: Any, names: Any, **options: Any) -> Any:
        """Delete objects, or not."""
        act = lambda: obstore.delete(store, names, **options)  # noqa: E731
        return self._request(DELETE, str(names), act)

    def get(self, store: Any, name: str, **options: Any) -> Any:
        """Get an object, or not."""
        if self.next_gets:
            raise self.next_gets.pop(0)
        found = self._request(READ, name, lambda: obstore.get(store, name, **options))
        return _CutAnswer(found) if self.is_cut else found

    def get_ranges(self, store: Any, name: str, **options: Any) -> Any:
        """Get parts of an object."""
        found = self._request(READ, name, lambda: obstore.get_ranges(store, name, **options))
        return [bytes(part)[:-1] for part in found] if self.is_cut else found

    def head(self, store: Any, name: str) -> Any:
        """Get what the store knows of an object."""
        return self._request(READ, name, lambda: obstore.head(store, name))

    def list(self, store: Any, prefix: str | None = None, **options: Any) -> Any:
        """List objects, in one chunk."""

        def listed() -> list[Any]:
            return [each for some in obstore.list(store, prefix, **options) for each in some]

        return [self._request(LIST, str(prefix), listed)]

    def list_with_delimiter(self, store: Any, prefix: str | None = None) -> Any:
        """List the objects of one level, and the next parts of other names."""

        def listed() -> list[Any]:
            found = obstore.list_with_delimiter(store, prefix)
            return [*found["objects"], *({"path": path} for path in found["common_prefixes"])]

        found = self._request(LIST, str(prefix), listed)
        return {
            "objects": [each for each in found if len(each) > 1],
            "common_prefixes": [each["path"] for each in found if len(each) == 1],
        }

    # -- faults

    def _request(
        self, kind: str, name: str, act: Callable[[], Any], fault: str | Exception | None = None
    ) -> Any:
        if self.error is not None:
            raise self.error
        self._do_late_ones()
        with self._mutex:
            if fault is None:
                fault = self.plan(kind, name)
            self.fault_count += bool(fault)
        if isinstance(fault, Exception):
            raise fault
        if fault == "refused":
            raise exceptions.AlreadyExistsError("409 Conflict: a conflicting operation")
        if fault == "undone":
            raise self.no_answer()
        if fault == "late":
            with self._mutex:
                self._late.append((self._random.randrange(_LATE_MAX), act))
            raise self.no_answer()
        if fault == "slow":
            time.sleep(self.pause_seconds)
        if fault == "paged":
            return self._paged(act)
        done = act()
        if fault == "lost":  # the library tries again by itself
            return act()
        if fault == "unanswered":
            raise self.no_answer()
        return done

    def _paged(self, act: Callable[[], list[Any]]) -> list[Any]:
        """List in two pages, with a pause in between."""
        first = act()
        last = self._random.choice([each["path"] for each in first] or [""])
        time.sleep(self.pause_seconds)
        pages = [e for e in first if e["path"] <= last] + [e for e in act() if e["path"] > last]
        return sorted(pages, key=lambda each: str(each["path"]))

    def _do_late_ones(self) -> None:
        with self._mutex:
            due = [act for count, act in self._late if count <= 0]
            self._late = [(count - 1, act) for count, act in self._late if count > 0]
        for act in due:
            try:
                act()
            except (exceptions.BaseError, OSError):
                pass  # nobody waits for its answer

    def __getattr__(self, name: str) -> Any:
        if self.error is not None:
            raise self.error
        return getattr(obstore, name)


class _CutAnswer:
    """The answer to a get, without its last byte."""

    def __init__(self, found: Any) -> None:
        self.meta, self.range = found.meta, found.range
        self._content = bytes(found.bytes())[:-1]

    def bytes(self) -> bytes:
        return self._content
