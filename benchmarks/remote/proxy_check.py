"""A check of the proxy against a server that echoes, and its own cost before an object server."""

from __future__ import annotations

import http.client
import random
import statistics
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from remote.http_framing import MessageReader, Part, request_body_length
from remote.proxy import ProxyControl, running_proxy
from remote.traffic import kind_of, round_count

_LARGE_BYTES = 64 << 20
_CONNECTIONS = 64
_REQUESTS = 20  # of each connection
_CHUNK_BYTES = 70_001
_SMALL_GETS = 500


class _Echo(BaseHTTPRequestHandler):
    """Returns the body of a request, in the framing that its target names."""

    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        body = self._body()
        self.send_response(204 if self.path == "/none" else 200)
        if self.path == "/chunked":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            if self.command == "HEAD":
                return
            for begin in range(0, len(body), _CHUNK_BYTES):
                piece = body[begin : begin + _CHUNK_BYTES]
                self.wfile.write(f"{len(piece):x};note=1\r\n".encode() + piece + b"\r\n")
            self.wfile.write(b"0\r\nTrailer: yes\r\n\r\n")
            return
        if self.path == "/closed":
            self.close_connection = True
            self.send_header("Connection", "close")
        elif self.path != "/none":
            self.send_header("Content-Length", str(len(body) or 5))
        self.end_headers()
        if self.command != "HEAD" and self.path != "/none":
            self.wfile.write(body or b"empty")

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        pieces = []
        while length := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(length))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def log_message(self, *_arguments: object) -> None:
        """Print nothing."""


class _EchoServer(ThreadingHTTPServer):
    request_queue_size = 2 * _CONNECTIONS


def check_proxy() -> list[str]:
    """Compare bodies in all framings, by many connections at once; return what was checked."""
    _check_reader()
    server = _EchoServer(("127.0.0.1", 0), _Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    host, port = server.server_address[:2]
    try:
        with running_proxy(str(host), port) as proxy:
            control = ProxyControl(proxy.control_port)
            address = urlsplit(proxy.endpoint).netloc
            notes = [_check_bodies(address, control), _check_rounds(address, control)]
            control.close()
    finally:
        server.shutdown()
        server.server_close()
    return notes


def _check_reader() -> None:
    """Cut three messages at each byte: the parts are always the same."""
    first = b"PUT /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"
    chunked = b"PUT /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nT: 1\r\n\r\n"
    last = b"GET /c HTTP/1.1\r\n\r\n"
    data = first + chunked + last
    for cut in range(len(data) + 1):
        reader = MessageReader(request_body_length)
        parts = [*reader.parts(data[:cut]), *reader.parts(data[cut:])]
        heads = [head.first[1] for _, _, head in parts if head is not None]
        ends = sum(part is Part.END for part, _, _ in parts)
        assert heads == ["/a", "/b", "/c"] and ends == 3, f"cut at {cut}: {parts}"
        assert b"".join(piece for _, piece, _ in parts) == data, f"cut at {cut}"


def _check_bodies(address: str, control: ProxyControl) -> str:
    """Send and receive bodies of all sizes and framings by connections that are kept."""
    control.take()
    problems: list[str] = []
    totals = [0, 0]
    lock = threading.Lock()

    def run(seed: int) -> None:
        source = random.Random(seed)
        connection = http.client.HTTPConnection(address)
        for number in range(_REQUESTS):
            length = _LARGE_BYTES if (seed, number) == (0, 0) else source.choice((0, 1, 300_000))
            target = source.choice(("/length", "/chunked", "/closed", "/none"))
            method = source.choice(("PUT", "POST", "GET", "HEAD"))
            body = source.randbytes(length) if method in ("PUT", "POST") else b""
            sent = _pieces(body) if source.random() < 0.5 and body else body
            connection.request(method, target, sent, encode_chunked=sent is not body)
            found = connection.getresponse().read()
            expected = b"" if method == "HEAD" or target == "/none" else body
            if expected == b"" and method != "HEAD" and target in ("/length", "/closed"):
                expected = b"empty"
            with lock:
                totals[0] += 1
                totals[1] += len(body) + len(found)
                if found != expected:
                    problems.append(f"{method} {target}: {len(found):,} bytes")
        connection.close()

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(_CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    noted = control.take()
    assert not problems, problems[:5]
    assert len(noted) == totals[0], f"{len(noted)} requests noted, {totals[0]} made"
    assert all(request.end is not None and request.status in (200, 204) for request in noted)
    size = sum(request.bytes_up + request.bytes_down for request in noted)
    # Chunks have their lengths beside them.
    assert totals[1] <= size < totals[1] * 1.01 + 100_000, f"{size:,} bytes, {totals[1]:,} sent"
    return f"{len(noted):,} requests by {_CONNECTIONS} connections, {size / 1e6:,.0f} MB: all right"


def _pieces(body: bytes) -> Iterator[bytes]:
    for begin in range(0, len(body), _CHUNK_BYTES):
        yield body[begin : begin + _CHUNK_BYTES]


def _check_rounds(address: str, control: ProxyControl) -> str:
    """Two rounds of four requests beside each other, and three more one after the other."""
    delay = 0.05
    control.set_delay(delay)
    control.take()

    def get(count: int) -> None:
        connection = http.client.HTTPConnection(address)
        for _ in range(count):
            connection.request("GET", "/bucket/object")
            connection.getresponse().read()
        connection.close()

    begin = time.perf_counter()
    for _ in range(2):
        threads = [threading.Thread(target=get, args=(1,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    get(3)
    seconds = time.perf_counter() - begin
    noted = control.take()
    assert (len(noted), round_count(noted)) == (11, 5), (len(noted), round_count(noted))
    assert delay * 5 <= seconds < delay * 10, f"{seconds:.3f} s for 5 rounds of {delay} s"
    assert {kind_of("GET", "/bucket?list-type=2"), kind_of("GET", "/bucket/a")} == {"LIST", "GET"}
    control.set_delay(0.0)
    return f"11 requests in 5 rounds of {delay * 1e3:g} ms: {seconds * 1e3:.0f} ms"


def measure_cost(endpoint: str, through: str, bucket: str) -> list[str]:
    """Return what a small GET and a large PUT and GET take directly and by the proxy."""
    notes = []
    large = random.Random(1).randbytes(_LARGE_BYTES)
    figures: dict[str, list[float]] = {}
    for title, address in (("direct", endpoint), ("by the proxy", through)) * 3:
        connection = http.client.HTTPConnection(urlsplit(address).netloc)
        small = [_seconds(connection, "PUT", f"/{bucket}/small", b"x" * 1_000)]
        small = [_seconds(connection, "GET", f"/{bucket}/small") for _ in range(_SMALL_GETS)]
        figures.setdefault(f"GET of 1 KB, {title}", []).append(statistics.median(small))
        for method in ("PUT", "GET"):
            body = large if method == "PUT" else None
            taken = _seconds(connection, method, f"/{bucket}/large", body)
            figures.setdefault(f"{method} of 64 MiB, {title}", []).append(taken)
        connection.close()
    for title, seconds in sorted(figures.items()):
        notes.append(f"{title:<32}{min(seconds) * 1e3:>10.2f} ms")
    return notes


def _seconds(
    connection: http.client.HTTPConnection, method: str, target: str, body: bytes | None = None
) -> float:
    begin = time.perf_counter()
    connection.request(method, target, body)
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200, f"{method} {target}: status {answer.status}"
    return time.perf_counter() - begin
