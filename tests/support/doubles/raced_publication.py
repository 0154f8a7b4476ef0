"""A publication that another one may come before."""

from collections.abc import Callable

import pytest

from kudulite.chain.manifest import Manifest
from kudulite.table.table_store import TableStore


def before_publication(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Run an action once, when the next version is about to be created."""
    original = TableStore.publish

    def paused(store: TableStore, manifest: Manifest) -> Manifest | None:
        monkeypatch.setattr(TableStore, "publish", original)
        action()
        return original(store, manifest)

    monkeypatch.setattr(TableStore, "publish", paused)
