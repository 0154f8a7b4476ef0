"""A proxy before an object server: adds a delay to each request, and notes each one.

    client ──► ClientSide ── delay ──► ServerSide ──► server
           ◄──────────────────────────            ◄──

The proxy is a process with one event loop. Each connection of a client has one to the server, and
the bytes of a message are passed on as they are and as soon as they are there; the memory of a
connection is bounded, because a side is not read while the other is not drained. A request is held
back for the delay when its head is there, and the rest of its connection with it; others are not.

A request begins when its head has been read, and ends when the last byte of its answer has been
passed on, or when the connection has been cut. So a request that begins after the end of
another may have waited for its answer, and one that begins before has not. The bytes that are
counted are those of bodies. `python benchmarks/object_store.py proxy` checks the proxy and measures
its own cost.

The process ends when its starter closes the control connection or ends itself.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

from remote.http_framing import (
    Head,
    MessageReader,
    Part,
    answer_body_length,
    request_body_length,
)

_BUFFER_BYTES = 1 << 20
_START_SECONDS = 60.0
_HOST = "127.0.0.1"


@dataclass
class Request:
    """A request that the proxy has passed on; moments are seconds of one monotonic clock."""

    method: str
    target: str
    begin: float
    end: float | None = None  # None: not answered yet
    status: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


class Proxy:
    """The state that all connections share: the server's address, the delay, the requests."""

    def __init__(self, host: str, port: int) -> None:
        self.server = (host, port)
        self.delay_seconds = 0.0
        self.requests: list[Request] = []

    async def control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the commands of one `ProxyControl`."""
        while line := await reader.readline():
            command = json.loads(line)
            found: list[Any]
            if "delay_seconds" in command:
                found = [self.delay_seconds]
                self.delay_seconds = command["delay_seconds"]
            else:
                found = [asdict(request) for request in self.requests]
                self.requests = []
            writer.write(json.dumps(found).encode() + b"\n")
            await writer.drain()
        writer.close()


class ServerSide(asyncio.Protocol):
    """The connection to the server, whose answers are passed on to the client."""

    def __init__(self, client: ClientSide) -> None:
        self._client = client
        self._reader = MessageReader(self._length_of)
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(_BUFFER_BYTES)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Pass the bytes on, and end the requests whose answers are complete."""
        asked = self._client.asked
        for part, piece, head in self._reader.parts(data):
            if part is Part.HEAD:
                assert head is not None
                self._status = head.status
                asked[0].status = head.status
            elif part is Part.BODY:
                asked[0].bytes_down += len(piece)
            if piece:
                self._client.write(piece)
            # "100 Continue" is not the answer yet.
            if part is Part.END and self._status >= 200:
                asked.popleft().end = time.monotonic()

    def _length_of(self, head: Head) -> int:
        return answer_body_length(head, self._client.asked[0].method)

    def connection_lost(self, _error: Exception | None) -> None:
        """Close the client's connection when all has been passed on."""
        self._client.close()

    def pause_writing(self) -> None:
        """Stop reading from the client: the server is slower."""
        self._client.hold("server", is_held=True)

    def resume_writing(self) -> None:
        """Read from the client again."""
        self._client.hold("server", is_held=False)


class ClientSide(asyncio.Protocol):
    """A connection of a client, whose requests are held back for the delay and passed on."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._reader = MessageReader(request_body_length)
        self._waiting: deque[tuple[Part, bytes, Head | None]] = deque()
        self._holds: set[str] = set()
        self._server: ServerSide | None = None
        self.asked: deque[Request] = deque()  # requests without a complete answer, oldest first

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connect to the server."""
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(_BUFFER_BYTES)
        self._transport = transport
        self.hold("connecting", is_held=True)
        self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, server = await loop.create_connection(lambda: ServerSide(self), *self._proxy.server)
        except OSError:
            self._transport.close()
            return
        self._server = server
        self.hold("connecting", is_held=False)

    def data_received(self, data: bytes) -> None:
        """Note the requests and pass on all that is not held back."""
        self._waiting.extend(self._reader.parts(data))
        self._pass_on()

    def _pass_on(self) -> None:
        """Pass parts on, up to a request that is to be held back."""
        while self._waiting and not self._holds & {"connecting", "delay"}:
            part, piece, head = self._waiting[0]
            if head is not None and not self._is_delayed(head):
                return
            self._waiting.popleft()
            if piece:
                self._current.bytes_up += len(piece) if part is Part.BODY else 0
                assert self._server is not None and self._server.transport is not None
                self._server.transport.write(piece)

    def _is_delayed(self, head: Head) -> bool:
        """Begin a request whose head is first in line; returns whether it may be passed on."""
        if "delayed" in self._holds:
            self._holds.remove("delayed")
            return True
        self._current = Request(head.first[0], head.first[1], time.monotonic())
        self._proxy.requests.append(self._current)
        self.asked.append(self._current)
        if not self._proxy.delay_seconds:
            return True
        self.hold("delay", is_held=True)
        asyncio.get_running_loop().call_later(self._proxy.delay_seconds, self._end_delay)
        return False

    def _end_delay(self) -> None:
        self._holds.add("delayed")
        self.hold("delay", is_held=False)

    def hold(self, reason: str, *, is_held: bool) -> None:
        """Stop reading from the client for a reason, or read again if there is none left."""
        if is_held:
            self._holds.add(reason)
            self._transport.pause_reading()
            return
        self._holds.discard(reason)
        self._pass_on()
        if not self._holds and not self._transport.is_closing():
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Pass bytes of an answer on."""
        self._transport.write(data)

    def close(self) -> None:
        """End the connection and the requests that have no answer."""
        self._transport.close()
        while self.asked:
            self.asked.popleft().end = time.monotonic()

    def connection_lost(self, _error: Exception | None) -> None:
        """Close the connection to the server."""
        self._waiting.clear()
        self._connecting.cancel()
        if self._server is not None and self._server.transport is not None:
            self._server.transport.close()
        self.close()

    def pause_writing(self) -> None:
        """Stop reading from the server: the client is slower."""
        if self._server is not None and self._server.transport is not None:
            self._server.transport.pause_reading()

    def resume_writing(self) -> None:
        """Read from the server again."""
        if self._server is not None and self._server.transport is not None:
            self._server.transport.resume_reading()


# -- the process


def _run(host: str, port: int, pipe: Connection) -> None:
    """Run a proxy until the other end of the pipe is closed."""
    asyncio.run(_serve(Proxy(host, port), pipe))


async def _serve(proxy: Proxy, pipe: Connection) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    front = await loop.create_server(lambda: ClientSide(proxy), _HOST, 0, backlog=1024)
    control = await asyncio.start_server(proxy.control, _HOST, 0)
    pipe.send([server.sockets[0].getsockname()[1] for server in (front, control)])
    # Nothing is ever sent: the pipe can be read when its other end is closed.
    loop.add_reader(pipe.fileno(), ended.set)
    await ended.wait()
    os._exit(0)


class ProxyControl:
    """A connection to the control port of a proxy; a process that measures has one."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((_HOST, port))
        self._lines = self._socket.makefile("rb")

    def take(self) -> list[Request]:
        """Return the requests that began since the last call by anybody."""
        return [Request(**found) for found in self._command({"take": True})]

    def set_delay(self, seconds: float) -> float:
        """Hold each later request back for so long; returns the seconds until now."""
        return self._command({"delay_seconds": seconds})[0]

    def close(self) -> None:
        """Close the connection."""
        self._lines.close()
        self._socket.close()

    def _command(self, command: dict[str, Any]) -> Any:
        self._socket.sendall(json.dumps(command).encode() + b"\n")
        line = self._lines.readline()
        if not line:
            raise ConnectionError("the proxy has ended; no more requests can be counted")
        return json.loads(line)


@dataclass(frozen=True)
class RunningProxy:
    """A proxy in a process of its own: the address for clients, and its control port."""

    endpoint: str
    control_port: int


@contextmanager
def running_proxy(host: str, port: int) -> Iterator[RunningProxy]:
    """Run a proxy before a server in a process of its own."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_run, args=(host, port, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(_START_SECONDS):
            raise TimeoutError(f"the proxy has not started within {_START_SECONDS:g} seconds")
        front, control = ours.recv()
        yield RunningProxy(f"http://{_HOST}:{front}", control)
    finally:
        ours.close()
        process.join(_START_SECONDS)
