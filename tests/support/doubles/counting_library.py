"""A double of obstore that counts requests, and the rounds in which they wait for each other."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import obstore

_COUNTED = ("get", "get_ranges", "head", "put", "delete", "list", "list_with_delimiter")


class CountingLibrary:
    """The functions of obstore.

    `requests` are (the function, the object's name) in the order in which they began. With
    `settle_seconds` a request is answered when none has begun for so long, together with all others
    that wait: a round.
    """

    def __init__(self, settle_seconds: float = 0.0) -> None:
        self.settle_seconds = settle_seconds
        self.requests: list[tuple[str, str]] = []
        self.byte_count = 0
        self.round_count = 0
        self._began = 0.0
        self._answered = threading.Condition()

    @property
    def counts(self) -> Counter[str]:
        """How many requests there were of each function."""
        return Counter(function for function, _ in self.requests)

    def clear(self) -> None:
        """Begin to count anew."""
        self.requests.clear()
        self.byte_count = self.round_count = 0

    def __getattr__(self, name: str) -> Any:
        function = getattr(obstore, name)
        if name not in _COUNTED:
            return function

        def counted(store: Any, target: str = "", *more: Any, **options: Any) -> Any:
            with self._answered:
                self.requests.append((name, target))
                self._wait()
            given = () if name.startswith("list") else (target,)
            found = function(store, *given, *more, **options)
            if name == "get":
                self.byte_count += found.range[1] - found.range[0]
            if name == "get_ranges":
                self.byte_count += sum(map(len, found))
            return found

        return counted

    def _wait(self) -> None:
        if not self.settle_seconds:
            return
        self._began, number = time.monotonic(), self.round_count
        while self.round_count == number:
            left = self._began + self.settle_seconds - time.monotonic()
            if left > 0:
                self._answered.wait(left)
            else:
                self.round_count += 1
                self._answered.notify_all()
