"""Superblock: one tablet's list of rowsets and files, as one JSON file that never changes.

    {"format_version": 3, "tablet_id": "…", "wal_start": [segment, offset],
     "rowsets": [rowset, …],                                         rowset: see rowset_meta.py
     "tombstones": [file, …]}                                        file: see tombstone_file.py

`wal_start` is a position in the write-ahead log. Records before it have been flushed to rowsets;
records at or after it have not. Version 1 had no log, version 2 no tombstones. A superblock without
tombstones is written as version 2.

A manifest names the superblock of each tablet with its length and checksum. A commit or a flush
writes a new superblock for each tablet that it touches; the old one stays for readers of the past.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from kudulite.errors import CorruptionError, FormatVersionError
from kudulite.fs.file_system import FileRef, checked_name
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.tablet.tombstone_file import TombstoneFileMeta
from kudulite.wal.wal_position import WAL_BEGIN, WalPosition

FORMAT_VERSION = 3
_VERSION_WITHOUT_TOMBSTONES = 2


@dataclass(frozen=True)
class Superblock:
    """The rowsets of one tablet at one version of the table, and the start of its unflushed log.

    `tombstones` are the files of keys that ordered writes have deleted, oldest first.
    """

    tablet_id: str
    rowsets: tuple[RowSetMeta, ...] = ()
    wal_start: WalPosition = WAL_BEGIN
    tombstones: tuple[TombstoneFileMeta, ...] = ()

    @property
    def tablet_file_refs(self) -> list[FileRef]:
        """The files that are in the tablet's own folder, not in that of a rowset."""
        return [file.ref for file in self.tombstones]

    def encode(self) -> bytes:
        """Return the file's content."""
        content: dict[str, object] = {
            "format_version": _VERSION_WITHOUT_TOMBSTONES,
            "tablet_id": self.tablet_id,
            "wal_start": self.wal_start.to_json(),
            "rowsets": [rowset.to_json() for rowset in self.rowsets],
        }
        if self.tombstones:
            content["format_version"] = FORMAT_VERSION
            content["tombstones"] = [file.to_json() for file in self.tombstones]
        return json.dumps(content, separators=(",", ":")).encode()

    @staticmethod
    def decode(content: bytes, source: str) -> Superblock:
        """Build a superblock from the content of the file `source`.

        Raises FormatVersionError for a newer format, CorruptionError for anything unreadable.
        """
        try:
            value = json.loads(content)
            version = value["format_version"]
            if 1 <= version <= FORMAT_VERSION:
                rowsets = tuple(RowSetMeta.from_json(rowset) for rowset in value["rowsets"])
                start = WalPosition.from_json(value["wal_start"]) if version > 1 else WAL_BEGIN
                files = value["tombstones"] if version > _VERSION_WITHOUT_TOMBSTONES else ()
                tombstones = tuple(TombstoneFileMeta.from_json(file) for file in files)
                tablet_id = checked_name(value["tablet_id"], "tablet id")
                return Superblock(tablet_id, rowsets, start, tombstones)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptionError(f"{source}: not a superblock: {error!r}") from error
        raise FormatVersionError(
            f"{source}: superblock of format version {version}, known: 1 to {FORMAT_VERSION};"
            " upgrade kudulite to read it"
        )
