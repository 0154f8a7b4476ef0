"""A double of obstore that loses answers, refuses out of turn, and fails as a test asks."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import obstore
from obstore import exceptions

# Of a put at random: done but answered as if somebody else had done it, refused though nobody had,
# done late, done.
_FAULTS = ("lost", "refused", "late", "")


class FaultyLibrary:
    """The functions of obstore.

    `next_puts` are what the next puts do: "lost", "refused", "late", "replaced" (whatever is
    there), "", or the error they raise; with `random` all later ones choose. `next_gets` are the
    errors that the next gets raise. Every call raises `error` if there is one. With `is_cut`, the
    last byte of each answer is missing. `names` are those that were put.
    """

    def __init__(self) -> None:
        self.next_puts: list[str | Exception] = []
        self.next_gets: list[Exception] = []
        self.is_cut = False
        self.random: random.Random | None = None
        self.error: Exception | None = None
        self.fault_count = 0
        self.names: list[str] = []
        self._mutex = threading.Lock()

    def put(self, store: Any, name: str, content: Any, **options: Any) -> Any:
        """Put an object, or not."""
        with self._mutex:
            self.names.append(name)
            fault = self.next_puts.pop(0) if self.next_puts else ""
            if not fault and self.random is not None:
                fault = self.random.choice(_FAULTS)
                if fault == "refused" and "mode" not in options:
                    fault = ""  # a store refuses only a put with a condition
            self.fault_count += bool(fault)
        self._fail()
        if isinstance(fault, Exception):
            raise fault
        if fault == "refused":
            raise exceptions.AlreadyExistsError("a conflicting operation")
        if fault == "replaced":
            options.pop("mode", None)
        if fault == "late":
            time.sleep(0.001)
        done = obstore.put(store, name, content, **options)
        if fault == "lost":  # the library tries again by itself
            return obstore.put(store, name, content, **options)
        return done

    def get(self, store: Any, name: str, **options: Any) -> Any:
        """Get an object, or not."""
        self._fail()
        if self.next_gets:
            raise self.next_gets.pop(0)
        found = obstore.get(store, name, **options)
        return _CutAnswer(found) if self.is_cut else found

    def get_ranges(self, store: Any, name: str, **options: Any) -> Any:
        """Get parts of an object."""
        self._fail()
        found = obstore.get_ranges(store, name, **options)
        return [bytes(part)[:-1] for part in found] if self.is_cut else found

    def __getattr__(self, name: str) -> Any:
        self._fail()
        return getattr(obstore, name)

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error


class _CutAnswer:
    """The answer to a get, without its last byte."""

    def __init__(self, found: Any) -> None:
        self.meta, self.range = found.meta, found.range
        self._content = bytes(found.bytes())[:-1]

    def bytes(self) -> bytes:
        return self._content
