"""Counts the bytes that are read of base data, key indexes and delta files, by file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pyarrow as pa

from kudulite.cfile import base_data, key_index
from kudulite.cfile.mapped_file import open_mapped
from kudulite.delta.delta_file import DeltaFile
from kudulite.fs.file_system import FileRef


@contextmanager
def counted_reads() -> Iterator[Counter[str]]:
    """Count, for files that are opened from here on, how many bytes are asked of them, by name.

    Delta files count whole: their checksum is, whatever columns are wanted.
    """
    counts: Counter[str] = Counter()

    def opened(path: Path, ref: FileRef) -> pa.NativeFile:
        return pa.PythonFile(_CountedFile(open_mapped(path, ref), path.name, counts), mode="r")

    load = DeltaFile._open

    def loaded(file: DeltaFile) -> pa.Buffer:
        if not file._is_checked:
            counts[file.path.name] += file.meta.ref.length
        return load(file)

    with (
        mock.patch.object(base_data, "open_mapped", opened),
        mock.patch.object(key_index, "open_mapped", opened),
        mock.patch.object(DeltaFile, "_open", loaded),
    ):
        yield counts


class _CountedFile:
    """A file object as pyarrow wants it, which counts what is read."""

    def __init__(self, source: pa.NativeFile, name: str, counts: Counter[str]) -> None:
        self._source = source
        self._name = name
        self._counts = counts

    @property
    def closed(self) -> bool:
        return self._source.closed

    def read(self, size: int = -1) -> bytes:
        found = self._source.read(None if size < 0 else size)
        self._counts[self._name] += len(found)
        return found

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._source.seek(offset, whence)

    def tell(self) -> int:
        return self._source.tell()

    def size(self) -> int:
        return self._source.size()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._source.close()
