"""A web service that counts, in several processes over one table; and what it costs beside SQLite.

    pip install 'kudulite[examples]'
    uvicorn --app-dir examples --factory counter_service:app --workers 3
    curl -X POST localhost:8000/counters/visits

    python examples/counter_service.py [--requests 600] [--workers 3] [--threads 8]

The second command starts the service twice, with each of the stores, sends it requests from several
threads, checks that no count was lost, and prints how long requests took.

The update is computed where the row is changed (`set={"n": "n + 1"}`), so no two processes count
from the same value. Functions without `async` run in threads of the server; in an `async` function,
`await asyncio.to_thread(increment, name)` does the same.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import kudulite

START_SECONDS = 60.0


class KuduliteCounters:
    """Counters as rows (name | n) of a table that all processes share."""

    def __init__(self, directory: str) -> None:
        columns = [kudulite.column("name", "string"), kudulite.column("n", "int64")]
        self._table = kudulite.connect(directory).create_table(
            "counters", kudulite.schema(columns, primary_key="name"), exist_ok=True
        )

    def increment(self, name: str) -> None:
        """Add one to a counter, which begins at 0."""
        where = ("name = ?", [name])
        if not self._table.update(where=where, set={"n": "n + 1"}).updated:
            self._table.insert_ignore([{"name": name, "n": 0}])
            self._table.update(where=where, set={"n": "n + 1"})

    def value(self, name: str) -> int:
        """Return the value of a counter."""
        row = self._table.get(name)
        return 0 if row is None else row["n"]


class SqliteCounters:
    """The same in a SQLite file, with a write-ahead log that is synced at each commit."""

    def __init__(self, directory: str) -> None:
        Path(directory).mkdir(parents=True, exist_ok=True)
        self._path = Path(directory) / "counters.sqlite"
        with self._connection() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, n INT)")

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self._path, timeout=30)
        try:
            connection.execute("PRAGMA synchronous = FULL")
            with connection:
                yield connection
        finally:
            connection.close()

    def increment(self, name: str) -> None:
        """Add one to a counter, which begins at 0."""
        with self._connection() as connection:
            connection.execute(
                "INSERT INTO counters VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET n = n + 1",
                [name],
            )

    def value(self, name: str) -> int:
        """Return the value of a counter."""
        with self._connection() as connection:
            found = connection.execute("SELECT n FROM counters WHERE name = ?", [name]).fetchone()
        return 0 if found is None else found[0]


STORES: dict[str, Callable[[str], KuduliteCounters | SqliteCounters]] = {
    "kudulite": KuduliteCounters,
    "SQLite": SqliteCounters,
}


@cache
def counters() -> KuduliteCounters | SqliteCounters:
    """The counters of this process."""
    store = STORES[os.environ.get("COUNTERS_STORE", "kudulite")]
    return store(os.environ.get("COUNTERS_DIRECTORY", "counters"))


def app() -> object:
    """Return the service, as uvicorn calls it with --factory."""
    from fastapi import FastAPI

    service = FastAPI(title="counters")

    @service.post("/counters/{name}")
    def increment(name: str) -> dict[str, int]:
        counters().increment(name)
        return {name: counters().value(name)}

    @service.get("/counters/{name}")
    def value(name: str) -> dict[str, int]:
        return {name: counters().value(name)}

    return service


# -- the measurement


@contextmanager
def running(store: str, directory: str, workers: int) -> Iterator[int]:
    """Run the service on loopback; yields its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "--factory", "counter_service:app"]
    command += ["--app-dir", str(Path(__file__).parent), "--log-level", "warning"]
    command += ["--workers", str(workers), "--port", str(port)]
    environment = {**os.environ, "COUNTERS_STORE": store, "COUNTERS_DIRECTORY": directory}
    process = subprocess.Popen(command, env=environment)
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                request(port, "GET", "visits")
                break
            except OSError:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise
                time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait()


def request(port: int, method: str, name: str) -> int:
    """Send one request; return the value of the counter. Raises RuntimeError for a refusal."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, f"/counters/{name}")
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise RuntimeError(f"{method} {name}: {answer.status} {content.decode(errors='replace')}")
    return int(json.loads(content)[name])


def measure(store: str, request_count: int, workers: int, threads: int) -> str:
    """Return a line with what the requests took. Raises RuntimeError where a count was lost."""
    names = [f"counter-{number % 4}" for number in range(request_count)]
    with tempfile.TemporaryDirectory() as directory, running(store, directory, workers) as port:

        def timed(name: str) -> float:
            begin = time.perf_counter()
            request(port, "POST", name)
            return 1000 * (time.perf_counter() - begin)

        for name in set(names):  # each worker makes its connection to the store
            for _ in range(2 * workers):
                request(port, "GET", name)
        begin = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            taken = sorted(pool.map(timed, names))
        seconds = time.perf_counter() - begin
        for name, expected in Counter(names).items():
            if (found := request(port, "GET", name)) != expected:
                raise RuntimeError(f"{store}: {name} is {found} after {expected} requests")
    median, late = statistics.median(taken), taken[int(0.99 * len(taken))]
    return (
        f"{store:10} {request_count} counted, none lost: {request_count / seconds:6.0f} a second,"
        f" median {median:.1f} ms, 99 % within {late:.0f} ms"
    )


def main() -> None:
    """Measure the service over each of the stores."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--workers", type=int, default=3, help="processes of the service")
    parser.add_argument("--threads", type=int, default=8, help="clients at the same time")
    args = parser.parse_args()
    for store in STORES:
        print(measure(store, args.requests, args.workers, args.threads), flush=True)


if __name__ == "__main__":
    main()
