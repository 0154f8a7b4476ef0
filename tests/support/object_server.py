"""A server that speaks S3, on loopback, one for each process of tests that needs it.

Where the variable KUDULITE_TEST_STORE has the address and the options of another store, as JSON,
tests use that (.ci/object_stores).
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

GIVEN = "KUDULITE_TEST_STORE"
_START_SECONDS = 60.0
_STOP_SECONDS = 10.0
# Requests without a signature may do everything, and so may a writer; a reader may not write.
READER = ("reader", "secret-of-the-reader")
WRITER = ("writer", "k9SecretOfTheWriter")
_ALL = ["Admin", "Read", "List", "Tagging", "Write"]
_IDENTITIES = {
    "identities": [
        {"name": "anonymous", "actions": _ALL},
        {
            "name": "writer",
            "credentials": [{"accessKey": WRITER[0], "secretKey": WRITER[1]}],
            "actions": _ALL,
        },
        {
            "name": "reader",
            "credentials": [{"accessKey": READER[0], "secretKey": READER[1]}],
            "actions": ["Read", "List"],
        },
    ]
}
_PORTS = ("master.port", "volume.port", "filer.port", "s3.port")


@dataclass(frozen=True)
class ObjectServer:
    """A bucket or container for tests at an address, and its storage options as a user types them.

    `endpoint` and `bucket` are those of a server that speaks S3.
    """

    address: str
    options: dict[str, str]

    @staticmethod
    def at(endpoint: str) -> ObjectServer:
        """Return the bucket `tests` of a server that speaks S3 and asks for no signature."""
        options = {
            "aws_endpoint_url": endpoint,
            "allow_http": "true",
            "aws_region": "us-east-1",
            "aws_skip_signature": "true",
        }
        return ObjectServer("s3://tests", options)

    @property
    def signed_options(self) -> dict[str, str]:
        """The options of a server that speaks S3 with the keys of a writer."""
        given = {name: value for name, value in self.options.items() if "skip" not in name}
        return given | {"aws_access_key_id": WRITER[0], "aws_secret_access_key": WRITER[1]}

    @property
    def endpoint(self) -> str:
        """The server's URL."""
        return self.options["aws_endpoint_url"]

    @property
    def bucket(self) -> str:
        """The name of the bucket or container."""
        return self.address.partition("://")[2]

    def store(self, prefix: str) -> Any:
        """Return the objects below a prefix."""
        config: dict[str, Any] = dict(self.options)
        client: Any = {"allow_http": config.pop("allow_http") == "true"}
        return from_url(f"{self.address}/{prefix}", config=config, client_options=client)


@contextmanager
def object_server(folder: Path) -> Iterator[ObjectServer]:
    """Run a server with its files in an empty folder, which is removed at the end."""
    with ExitStack() as ports:
        sockets = [ports.enter_context(socket.socket()) for _ in range(2 * len(_PORTS))]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        numbers = [each.getsockname()[1] for each in sockets]
    names = [*_PORTS, *(f"{name}.grpc" for name in _PORTS)]
    options = [f"-{name}={number}" for name, number in zip(names, numbers, strict=True)]
    options += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
    command = shutil.which("weed", path=str(Path(sys.executable).parent)) or "weed"
    server = ObjectServer.at(f"http://127.0.0.1:{numbers[len(_PORTS) - 1]}")
    folder.mkdir(parents=True)
    identities = folder / "identities.json"
    identities.write_text(json.dumps(_IDENTITIES))
    options.append(f"-s3.config={identities}")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [command, "server", "-s3", "-ip=127.0.0.1", f"-dir={folder}", *options],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        _make_bucket(server, process, folder / "log")
        yield server
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _make_bucket(server: ObjectServer, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the server has a bucket that takes objects."""
    request = urllib.request.Request(f"{server.endpoint}/{server.bucket}", method="PUT")
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            urllib.request.urlopen(request, timeout=_START_SECONDS).close()
            obstore.put(server.store("ready"), "ready", b"")
            return
        except (OSError, BaseError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                text = log.read_text(errors="replace")[-2_000:]
                raise AssertionError(f"the server did not start: {error}\n{text}") from error
        time.sleep(0.2)
