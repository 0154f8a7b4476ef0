"""The new files of one operation: where they are, how they are named, and when they are durable.

    files = NewFiles(storage, write_id)
    with files.sink(folder, "redo") as sink: …    a file of this kind, with a name of its own
    files.sync()                                  the names of all of them are durable

**Invariants**: a name begins with the id of the write that makes the file, if it has one, so a
garbage collection knows whose it is before any version names it.

**Threads**: several may make files of one operation; one of them calls `sync` when they are done.
"""

from pathlib import Path

from kudulite.storage.names import new_file_name, new_rowset_id
from kudulite.storage.storage import FileRef, Sink, Storage


class NewFiles:
    """Makes the files of one operation, which bear the id of its write.

    Without an id they are of an operation that holds the lock of their tablet all the time.
    """

    def __init__(self, storage: Storage, write_id: str | None = None) -> None:
        self.storage = storage
        self.write_id = write_id
        self._folders: set[Path] = set()  # whose names are not durable yet
        self.made: list[Path] = []
        self._rowsets: list[Path] = []  # folders of new ones

    def sink(self, folder: Path, kind: str) -> Sink:
        """Open a new file of a folder, which is made if it is missing; see names.py for kinds."""
        path = folder / new_file_name(kind, self.write_id)
        self._folders.add(folder)
        self.made.append(path)
        return self.storage.open_sink(path)

    def put(self, folder: Path, kind: str, content: bytes) -> FileRef:
        """Write a whole new file as `sink` does."""
        with self.sink(folder, kind) as sink:
            sink.write(content)
            return sink.finish()

    def new_rowset(self, folder: Path) -> Path:
        """Return a new folder for a rowset under `folder`; its first file makes it."""
        path = folder / new_rowset_id(self.write_id)
        self._folders.add(folder)
        self._rowsets.append(path)
        return path

    def sync(self) -> None:
        """Make the names of all files that were made durable."""
        folders, self._folders = self._folders, set()
        self.storage.sync(folders)

    def remove(self) -> None:
        """Remove all files that were made, of which none may be in a version."""
        for path in self._rowsets:
            self.storage.delete_below(path)
        for path in self.made:
            if path.parent not in self._rowsets:
                self.storage.delete(path)
        self._rowsets, self.made = [], []
