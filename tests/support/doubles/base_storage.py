"""The storage of tests, which doubles change: a directory, or objects if one asks for them.

KUDULITE_TEST_STORAGE=objects     objects that are files
KUDULITE_TEST_STORAGE=faulty      the same, by the library that fails (faulty_library.py)
"""

import os
from pathlib import Path

from obstore.store import LocalStore

from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.object_storage import ObjectStorage
from tests.support.doubles.faulty_library import FaultyLibrary


class ObjectFiles(ObjectStorage):
    """Objects that are files, so that tests may look at them, and other processes see them."""

    def __init__(self) -> None:
        super().__init__(LocalStore(), Path("/"))


STORAGE = "KUDULITE_TEST_STORAGE"
OBJECTS, FAULTY = "objects", "faulty"
_CHOSEN = os.environ.get(STORAGE)
BaseStorage: type = ObjectFiles if _CHOSEN in (OBJECTS, FAULTY) else LocalStorage
# The library of all storages of a process; it does as it should until a test gives it a plan.
LIBRARY = FaultyLibrary()
if _CHOSEN == FAULTY:
    LIBRARY.install()
