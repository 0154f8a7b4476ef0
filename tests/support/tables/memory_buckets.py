"""Buckets in memory, reached by addresses and options as those of S3, each with keys of its own."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from obstore.exceptions import PermissionDeniedError
from obstore.store import MemoryStore

from kudulite.storage import object_storage
from kudulite.storage.object_storage import ObjectStorage
from kudulite.storage.storage_options import S3


class MemoryBuckets:
    """Buckets that `new` makes; their names are new, because storages are kept by their address."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._stores: dict[str, tuple[MemoryStore, str]] = {}
        patch.setitem(object_storage._STORES, S3, self._opened)
        self._patch = patch
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            patch.delenv(name, raising=False)

    def _opened(self, bucket: str, **arguments: Any) -> MemoryStore:
        """Return a bucket. Raises PermissionDeniedError for the keys of another one."""
        store, secret = self._stores[bucket]
        given = arguments["config"].get("secret_access_key")
        if (given or os.environ.get("AWS_SECRET_ACCESS_KEY")) != secret:
            raise PermissionDeniedError(f"the keys are not those of {bucket}")
        return store

    def new(self) -> tuple[str, dict[str, str]]:
        """Make a bucket; return its address, and the options that reach it."""
        bucket, secret = f"b-{uuid.uuid4().hex}", f"SECRET-{uuid.uuid4().hex}"
        self._stores[bucket] = MemoryStore(), secret
        return f"s3://{bucket}", {"aws_access_key_id": "id", "aws_secret_access_key": secret}

    def names(self, address: str) -> list[str]:
        """Return the names of all objects below an address."""
        bucket, _, prefix = address.removeprefix("s3://").partition("/")
        store, _ = self._stores[bucket]
        found = [each["path"] for chunk in store.list(prefix=prefix or None) for each in chunk]
        return sorted(found)

    def before_step(self, number: int, action: Callable[[], object]) -> Steps:
        """Run an action once, before the step of that number from now on."""
        steps = Steps(number, action)
        self._patch.setattr(ObjectStorage, "before", steps.before)
        return steps


class Steps:
    """Counts durable steps of objects, and runs an action before one of them.

    The step may be one of background work, and the action goes on in its thread beside the test.
    """

    def __init__(self, number: int, action: Callable[[], object]) -> None:
        self._number, self._action = number, action
        self.count = 0
        self.has_acted = False
        self._lock, self._ended = threading.Lock(), threading.Event()

    def before(self, operation: str, path: Path) -> None:
        """Count a step."""
        with self._lock:
            acts = self.count == self._number and not self.has_acted
            self.has_acted |= acts
            self.count += 1
        if acts:
            try:
                self._action()
            finally:
                self._ended.set()

    def end(self) -> bool:
        """Wait for the action, which does not begin any more; return whether it has run."""
        with self._lock:
            self._number = -1
        return self.has_acted and self._ended.wait()
