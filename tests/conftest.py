"""Tables for tests of the core, which are checked as a whole when a test ends."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.object_server import GIVEN, ObjectServer
from tests.support.object_server import object_server as running_server
from tests.support.tables.core_tables import CoreTables

# A file system in memory, where there is one: thousands of small commits pay for every fsync.
_MEMORY = "/dev/shm"


@pytest.fixture
def core() -> Iterator[CoreTables]:
    """Clients over folders of this test; after it every table in them passes its check."""
    parent = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="kudulite-test-", dir=parent) as folder:
        tables = CoreTables(Path(folder))
        yield tables
        tables.check_all()


@pytest.fixture(scope="session")
def object_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    """A server that speaks S3, of this process of tests, or the store that is given."""
    if given := os.environ.get(GIVEN):
        yield ObjectServer(**json.loads(given))
        return
    with running_server(tmp_path_factory.mktemp("objects") / "server") as server:
        yield server
