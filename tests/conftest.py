"""What tests of the core share: tables that are checked whole when a test ends."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from core_tables import CoreTables


@pytest.fixture
def core(tmp_path: Path) -> Iterator[CoreTables]:
    """Clients over folders of this test; after it every table in them passes its check."""
    tables = CoreTables(tmp_path)
    yield tables
    tables.check_all()
