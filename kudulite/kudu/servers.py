"""Tablet servers of kudu-python's programs: the directory of tables stands for the only one.

There are no servers. A program that asks where a tablet is best read gets this machine, which leads
all tablets. It stands alone so that clients, scanners and tokens can name it.

**Source**: Kudu python/kudu/client.pyx.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TabletServer:
    """The place of all tablets: the directory of tables on this machine."""

    folder: Path

    def uuid(self) -> str:
        """Return the directory."""
        return str(self.folder)

    def hostname(self) -> str:
        """Return the name of this machine."""
        return socket.gethostname()

    def port(self) -> int:
        """Return 0: nothing listens."""
        return 0


@dataclass(frozen=True)
class Replica:
    """The one replica of a tablet: its files."""

    _server: TabletServer

    def is_leader(self) -> bool:
        """Return True."""
        return True

    def ts(self) -> TabletServer:
        """Return the place of the files."""
        return self._server


@dataclass(frozen=True)
class Tablet:
    """A tablet that a scan token reads."""

    _id: str
    _server: TabletServer

    def id(self) -> str:
        """Return the tablet's id."""
        return self._id

    def replicas(self) -> list[Replica]:
        """Return the one replica."""
        return [Replica(self._server)]
