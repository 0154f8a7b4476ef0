"""A client of kudulite.kudu for the tests of kudu-python's behaviours."""

import pytest

import kudulite.kudu as kudu
from tests.support.tables.core_tables import CoreTables


@pytest.fixture
def client(core: CoreTables) -> kudu.Client:
    """A client of an empty directory."""
    return kudu.connect(core.root / "root")
