"""A double of obstore that counts requests, and the rounds in which they wait for each other.

A request's round is one more than that of the last request whose answer its thread has: by itself,
from the thread that gave it its work, or from work that it has waited for. So the number of rounds
is a matter of the program, and not of time. Only the thread of the test counts, and those that work
for it: the background work of an earlier test may still be about.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import obstore
import pytest

from tests.support.doubles.faulty_library import MODULES

_COUNTED = ("get", "get_ranges", "head", "put", "delete", "list", "list_with_delimiter")


class _Thread(threading.local):
    """The round of the last request whose answer a thread has, and whether its requests count."""

    round = 0
    is_counted = False


class CountingLibrary:
    """The functions of obstore.

    `requests` are (the function, the object's name) in the order in which they began, `round_count`
    is the last round, and `byte_count` what was received, without the bytes between parts.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        self.byte_count = self.round_count = 0
        self._thread = _Thread()
        self._thread.is_counted = True
        self._mutex = threading.Lock()

    @staticmethod
    def installed(monkeypatch: pytest.MonkeyPatch) -> CountingLibrary:
        """Return the library that all storages use until the end of the test."""
        double = CountingLibrary()
        for module in MODULES:
            monkeypatch.setattr(module, "obstore", double)
        monkeypatch.setattr(ThreadPoolExecutor, "submit", double._submitting())
        monkeypatch.setattr(Future, "result", double._waiting())
        return double

    @property
    def counts(self) -> Counter[str]:
        """How many requests there were of each function."""
        return Counter(function for function, _ in self.requests)

    def clear(self) -> None:
        """Begin to count anew."""
        self.requests.clear()
        self.byte_count = self.round_count = self._thread.round = 0
        self._thread.is_counted = True

    def __getattr__(self, name: str) -> Any:
        function = getattr(obstore, name)
        if name not in _COUNTED or not self._thread.is_counted:
            return function

        def counted(store: Any, target: str = "", *more: Any, **options: Any) -> Any:
            self._thread.round += 1
            with self._mutex:
                self.requests.append((name, target))
                self.round_count = max(self.round_count, self._thread.round)
            given = () if name.startswith("list") else (target,)
            found = function(store, *given, *more, **options)
            received = 0
            if name == "get":
                received = found.range[1] - found.range[0]
            elif name == "get_ranges":
                received = sum(map(len, found))
            with self._mutex:
                self.byte_count += received
            return found

        return counted

    def _submitting(self) -> Callable[..., Future]:
        real = ThreadPoolExecutor.submit

        def submit(
            pool: ThreadPoolExecutor, work: Callable, /, *given: Any, **named: Any
        ) -> Future:
            known, is_counted = self._thread.round, self._thread.is_counted

            def run() -> tuple[Any, int]:
                self._thread.round, self._thread.is_counted = known, is_counted
                return work(*given, **named), self._thread.round

            return real(pool, run)

        return submit

    def _waiting(self) -> Callable[..., Any]:
        real = Future.result

        def result(future: Future, timeout: float | None = None) -> Any:
            found, known = real(future, timeout)
            self._thread.round = max(self._thread.round, known)
            return found

        return result
