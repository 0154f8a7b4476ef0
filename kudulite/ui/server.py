"""The server of the pages: an address to listen at, and the end with Ctrl-C.

It stands alone because a service that mounts the pages has a server of its own.

**Threads**: runs in the main thread, which waits for requests.
"""

from __future__ import annotations

import contextlib
import socket

import uvicorn
from starlette.applications import Starlette

from kudulite.errors import UsageError
from kudulite.ui.access import is_loopback


def check_address(host: str, token: str | None) -> None:
    """Raise UsageError for an address that others can reach, unless there is a token."""
    if not is_loopback(host) and token is None:
        raise UsageError(
            f"{host} can be reached from other machines, so it needs a token: set one with"
            " KUDULITE_UI_TOKEN or --token, or listen at 127.0.0.1"
        )


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address; port 0 is a free one. Raises UsageError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family)
    except OSError as error:
        raise UsageError(
            f"cannot listen at {host} port {port}: {error.strerror or error}; give another --port,"
            " or 0 for a free one"
        ) from error


def serve(application: Starlette, listener: socket.socket) -> None:
    """Answer requests until Ctrl-C or a signal ends the process."""
    config = uvicorn.Config(
        application,
        log_level="warning",
        access_log=False,  # addresses have keys of rows in them
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=5,
    )
    # Uvicorn ends in good order, and raises the interrupt again then.
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
