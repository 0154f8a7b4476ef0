"""The storage of tests, which doubles change: directories, or objects if one asks for them."""

import os
from pathlib import Path

from obstore.store import LocalStore

from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.object_storage import ObjectStorage


class ObjectFiles(ObjectStorage):
    """Objects that are files, so that tests may look at them, and other processes see them."""

    def __init__(self) -> None:
        super().__init__(LocalStore(), Path("/"))


OBJECTS = "KUDULITE_TEST_STORAGE"
BaseStorage: type = ObjectFiles if os.environ.get(OBJECTS) == "objects" else LocalStorage
