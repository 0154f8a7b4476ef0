"""PickledToken: what all tokens have in common: they travel as bytes between processes."""

from __future__ import annotations

import pickle
from typing import Self


class PickledToken:
    """A frozen dataclass of plain values, as bytes for whoever cannot pickle it himself."""

    def to_bytes(self) -> bytes:
        """Return the token as bytes."""
        return pickle.dumps(self)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Return the token of `to_bytes`; only for bytes from a process that you trust.

        Raises TypeError for anything but a token of this kind."""
        token = pickle.loads(content)
        if not isinstance(token, cls):
            raise TypeError(f"expected a {cls.__name__}, found {type(token).__name__}")
        return token
