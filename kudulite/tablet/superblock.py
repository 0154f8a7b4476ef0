"""Superblock: one tablet's list of rowsets and files, as one JSON file that never changes.

    {"format_version": 1, "tablet_id": "…", "rowsets": [rowset, …]}      rowset: see rowset_meta.py

A manifest names the superblock of each tablet with its length and checksum. A commit writes a new
superblock for each tablet that it touches; the old one stays for readers of the past.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from kudulite.errors import CorruptionError, FormatVersionError
from kudulite.rowset.rowset_meta import RowSetMeta

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Superblock:
    """The rowsets of one tablet at one version of the table."""

    tablet_id: str
    rowsets: tuple[RowSetMeta, ...] = ()

    def encode(self) -> bytes:
        """Return the file's content."""
        content = {
            "format_version": FORMAT_VERSION,
            "tablet_id": self.tablet_id,
            "rowsets": [rowset.to_json() for rowset in self.rowsets],
        }
        return json.dumps(content, separators=(",", ":")).encode()

    @staticmethod
    def decode(content: bytes, source: str) -> Superblock:
        """Build a superblock from the content of the file `source`.

        Raises FormatVersionError for a newer format, CorruptionError for anything unreadable.
        """
        try:
            value = json.loads(content)
            version = value["format_version"]
            if version == FORMAT_VERSION:
                rowsets = tuple(RowSetMeta.from_json(rowset) for rowset in value["rowsets"])
                return Superblock(value["tablet_id"], rowsets)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptionError(f"{source}: not a superblock: {error!r}") from error
        raise FormatVersionError(
            f"{source}: superblock of format version {version}, known: {FORMAT_VERSION};"
            " upgrade kudulite to read it"
        )
