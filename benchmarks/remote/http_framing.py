"""Heads and bodies of HTTP/1.1: where one message of a connection ends and the next begins.

A body has a length in its head, or is chunked, or ends with the connection; an answer to HEAD and
one with status 1xx, 204 or 304 has none. The bytes are passed on as they are: chunks keep their
lengths and trailers. Nothing is held back but an incomplete head.

**Source**: RFC 9112, parts 6 and 7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

HEAD_BYTES_MAX = 1 << 20
_LINE_BYTES_MAX = 1 << 12
_UNTIL_CLOSED = -1
_CHUNKED = -2


class Part(Enum):
    """A piece of a message. The end has no bytes."""

    HEAD = "head"
    BODY = "body"
    END = "end"


@dataclass(frozen=True)
class Head:
    """The first line of a message, and its headers in lower case."""

    first: tuple[str, ...]
    headers: dict[str, str]

    @classmethod
    def parsed(cls, data: bytes) -> Head:
        """Parse the bytes of a head, with its empty line."""
        first, *lines = data.decode("latin-1").rstrip("\r\n").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        return cls(tuple(first.split(" ", 2)), headers)

    @property
    def status(self) -> int:
        """The status of an answer."""
        return int(self.first[1])

    def body_length(self, default: int) -> int:
        """Return the length of the body, or one of the two negative numbers."""
        if self.headers.get("transfer-encoding", "identity").lower() != "identity":
            return _CHUNKED
        return int(self.headers.get("content-length", default))


def request_body_length(head: Head) -> int:
    """Return the length of a request's body: none if the head has none."""
    return head.body_length(0)


def answer_body_length(head: Head, method: str) -> int:
    """Return the length of an answer's body: up to the end of the connection by default."""
    if method == "HEAD" or head.status < 200 or head.status in (204, 304):
        return 0
    return head.body_length(_UNTIL_CLOSED)


class MessageReader:
    """Cuts the bytes of one direction of a connection into parts.

    `length_of` returns the length of the body of a head.
    """

    def __init__(self, length_of: Callable[[Head], int]) -> None:
        self._length_of = length_of
        self._buffer = b""  # an incomplete head, or an incomplete line of a chunked body
        self._left: int | None = None  # bytes of the body; None before a head
        self._chunk = _Chunks()

    def parts(self, data: bytes) -> Iterator[tuple[Part, bytes, Head | None]]:
        """Yield the parts of more bytes. Raises ValueError for bytes that are not HTTP."""
        data, self._buffer = self._buffer + data, b""
        while data:
            if self._left is None:
                end = data.find(b"\r\n\r\n") + 4
                if end < 4:
                    if len(data) > HEAD_BYTES_MAX:
                        raise ValueError(f"a head of more than {HEAD_BYTES_MAX:,} bytes")
                    self._buffer = data
                    return
                head = Head.parsed(data[:end])
                self._left = self._length_of(head)
                yield Part.HEAD, data[:end], head
                data = data[end:]
            if self._left == _CHUNKED:
                used, is_end = self._chunk.used(data)
                self._left = 0 if is_end else _CHUNKED
            else:
                used = len(data) if self._left == _UNTIL_CLOSED else min(len(data), self._left)
                self._left -= used if self._left > 0 else 0
            if used:
                yield Part.BODY, data[:used], None
            data = data[used:]
            if self._left == 0:
                self._left = None
                yield Part.END, b"", None


class _Chunks:
    """Finds the end of a chunked body: lengths in lines, chunks, a last one of 0, and trailers."""

    def __init__(self) -> None:
        self._line = b""
        self._left = 0  # of the chunk and the line break behind it
        self._is_last = False  # the chunk of length 0 has been read; trailers follow

    def used(self, data: bytes) -> tuple[int, bool]:
        """Return how many of the bytes belong to the body, and whether it has ended."""
        place = 0
        while place < len(data):
            if self._left:
                step = min(self._left, len(data) - place)
                self._left -= step
                place += step
                continue
            end = data.find(b"\n", place) + 1
            if not end:
                self._line += data[place:]
                if len(self._line) > _LINE_BYTES_MAX:
                    raise ValueError("a chunk without a length")
                return len(data), False
            line, self._line = (self._line + data[place:end]).strip(), b""
            place = end
            if self._is_last:
                if not line:
                    self._is_last = False
                    return place, True
            elif length := int(line.partition(b";")[0], 16):
                self._left = length + 2
            else:
                self._is_last = True
        return place, False
