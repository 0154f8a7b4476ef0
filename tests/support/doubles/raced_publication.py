"""A publication that another one may come before."""

from collections.abc import Callable
from typing import Any

import pytest

from kudulite.chain.manifest import Manifest
from kudulite.chain.version_chain import VersionChain


def before_publication(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Run an action once, when the next version is about to be created."""
    original = VersionChain._publish

    def paused(chain: VersionChain, *arguments: Any) -> Manifest | None:
        monkeypatch.setattr(VersionChain, "_publish", original)
        action()
        return original(chain, *arguments)

    monkeypatch.setattr(VersionChain, "_publish", paused)
