"""Superblock: one tablet's list of rowsets and files, as one JSON file.

    {"format_version": 5, "tablet_id": "…", "log_start": [segment, offset],
     "rowsets": [rowset, …],                                         rowset: see rowset_meta.py
     "tombstones": [file, …]}                                        file: see tombstones.py

`log_start` is a position in the table's log. The tablet's rows before it have been flushed to
rowsets. Those at or after it have not, unless they are before the `log_start` of the manifest. A
manifest names the superblock of each tablet with its length and checksum. A commit or a memory
flush writes a new superblock for each tablet that it changes; the old one stays for readers of the
past.

A tablet with many rowsets would write all of them again in each commit. Its superblocks therefore
name an earlier one as their `base`, and list what differs:

    {"format_version": 5, "tablet_id": …, "log_start": …, "base": file, "tombstones": …,
     "rowsets": [[start, stop], rowset, {"of": index, "redo": [delta, …], "end": timestamp}, …]}

Rowsets `start` to `stop` - 1 of the base are the same; rowset `of` has more REDO files than in the
base, or was ended. A file is less than half as long as its base. So a chain of n commits has at
most log n files, and all its superblocks together have O(n log n) entries instead of n².

Up to version 4 the tablet had a log of its own, in which its rows began at `wal_start`. Version 1
had no log, version 2 no tombstones, version 3 no base, which those of version 4 always have.

**Invariants**: (1) a superblock file never changes; (2) a base was durable before the file that
names it; (3) a base lists only rowsets that the superblock has, so what a compaction or a purge has
removed, key bounds included, is in no base of a newer superblock; (4) the numbers of a superblock
that was read are bounded by what its files can hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import index
from pathlib import Path
from typing import Any

from kudulite.basefile.base_data import ROW_GROUP_ROWS
from kudulite.basefile.block_cache import BlockCache
from kudulite.basefile.key_index import KEY_COUNT_MAX
from kudulite.delta.delta_file import DeltaFileMeta
from kudulite.errors import CorruptionError, FormatVersionError
from kudulite.model.hybrid_time import TIMESTAMP_MAX
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.storage.json_form import checked_name, readable
from kudulite.storage.names import ROWSET_FOLDER, WAL_FOLDER
from kudulite.storage.storage import FileRef, Storage, read_verified
from kudulite.tablet.tombstones import TombstoneFileMeta
from kudulite.wal.segment import LOG_BEGIN, LogPosition

FORMAT_VERSION = 5
_VERSION_WITHOUT_TOMBSTONES, _VERSION_OF_TABLET_LOGS = 2, 4
# Shorter superblocks are written whole: a file takes a block of the disk anyway.
BASE_BYTES_MIN = 16 << 10
_LZ4_RATIO_MAX = 255  # no LZ4 block holds more


@dataclass(frozen=True)
class Superblock:
    """The rowsets of one tablet at one version of the table, and the start of its unflushed log.

    `tombstones` are the files of keys that ordered writes have deleted, oldest first. `file` is the
    file that it was read from, and `base` the superblock that this file names; changed copies keep
    both. `wal_start` is where the log of the tablet itself begins, in a table of an older format.
    """

    tablet_id: str
    rowsets: tuple[RowSetMeta, ...] = ()
    log_start: LogPosition = LOG_BEGIN
    tombstones: tuple[TombstoneFileMeta, ...] = ()
    wal_start: LogPosition = LOG_BEGIN
    file: FileRef | None = field(default=None, compare=False, repr=False)
    base: Superblock | None = field(default=None, compare=False, repr=False)

    @property
    def tablet_file_refs(self) -> list[FileRef]:
        """The files of rows in the tablet's own folder, not in the folder of a rowset."""
        return [file.ref for file in self.tombstones]

    @property
    def base_refs(self) -> list[FileRef]:
        """The superblock files that the file of this one needs, nearest first."""
        if self.base is None or self.base.file is None:
            return []
        return [self.base.file, *self.base.base_refs]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {rowset.id: place for place, rowset in enumerate(self.rowsets)}

    def encode(self, before: Superblock | None = None) -> tuple[bytes, Superblock | None]:
        """Return the content of a new file and its base; `before` is of the file that it replaces.

        The base is the nearest of `before` and its bases that makes a file of less than its half.
        """
        base = before
        while base is not None and base.file is not None:
            if base.base is None and base.file.length < BASE_BYTES_MIN:
                break
            content = self._encode_changes(base, base.file)
            if content is not None and 2 * len(content) < base.file.length:
                return content, base
            base = base.base
        return self._encoded([rowset.to_json() for rowset in self.rowsets]), None

    def _encoded(self, rowsets: list[Any], base: FileRef | None = None) -> bytes:
        form: dict[str, object] = {
            "format_version": FORMAT_VERSION,
            "tablet_id": self.tablet_id,
            "log_start": self.log_start.to_json(),
            "rowsets": rowsets,
        }
        if base is not None:
            form["base"] = base.to_json()
        if self.tombstones:
            form["tombstones"] = [file.to_json() for file in self.tombstones]
        return json.dumps(form, separators=(",", ":")).encode()

    def _encode_changes(self, base: Superblock, ref: FileRef) -> bytes | None:
        """Return the content of a file with this base, or None.

        Each rowset of the base must be there, with nothing but more REDO files, or an end.
        """
        entries: list[Any] = []
        run = [-1, -1]  # of unchanged rowsets, in `entries` once it has begun
        known_count = 0
        for meta in self.rowsets:
            place = base._places.get(meta.id)
            if place is None:
                entries.append(meta.to_json())
                continue
            known_count += 1
            known = base.rowsets[place]
            if known is not meta and known != meta:
                growth = _growth(known, meta)
                if growth is None:
                    return None
                entries.append({"of": place, **growth})
            elif entries and entries[-1] is run and run[1] == place:
                run[1] += 1
            else:
                run = [place, place + 1]
                entries.append(run)
        if known_count < len(base.rowsets):
            return None
        return self._encoded(entries, ref)

    @staticmethod
    def decode(
        content: bytes, source: str, base_of: Callable[[FileRef], Superblock] | None = None
    ) -> Superblock:
        """Build a superblock from the content of the file `source`; `base_of` reads its base.

        Raises FormatVersionError for a newer format, CorruptionError for anything unreadable.
        """
        with readable(source, "a superblock"):
            value = json.loads(content)
            version = value["format_version"]
            if 1 <= version <= FORMAT_VERSION:
                base, has_base = None, "base" in value
                if has_base:
                    base = _read_base(FileRef.from_json(value["base"]), len(content), base_of)
                rowsets = _rowsets_of(value["rowsets"], base)
                is_old = version <= _VERSION_OF_TABLET_LOGS
                start, of_tablet = LOG_BEGIN, LOG_BEGIN
                if not is_old:
                    start = LogPosition.from_json(value["log_start"])
                elif version > 1:
                    of_tablet = LogPosition.from_json(value["wal_start"])
                files = value.get("tombstones", ())
                tombstones = tuple(TombstoneFileMeta.from_json(file) for file in files)
                tablet_id = checked_name(value["tablet_id"], "tablet id")
                return Superblock(tablet_id, rowsets, start, tombstones, of_tablet, base=base)
        raise FormatVersionError(
            f"{source}: superblock of format version {version}, known: 1 to {FORMAT_VERSION};"
            " upgrade kudulite to read it"
        )


def _growth(before: RowSetMeta, now: RowSetMeta) -> dict[str, Any] | None:
    """Return the REDO files that a rowset has got, and its end; None for any other change."""
    count, end = len(before.redo), now.delete_timestamp
    if now.redo[:count] != before.redo or before.delete_timestamp not in (None, end):
        return None
    if replace(before, redo=now.redo, delete_timestamp=end) != now:
        return None
    form: dict[str, Any] = {"redo": [delta.to_json() for delta in now.redo[count:]]}
    return form if end == before.delete_timestamp else {**form, "end": end}


def _read_base(
    ref: FileRef, length: int, read: Callable[[FileRef], Superblock] | None
) -> Superblock:
    """Return the base of a file of `length` bytes. Raises ValueError for one that is no longer."""
    if read is None or ref.length <= length:  # a file cannot be its own base
        raise ValueError(f"base {ref.name} of {ref.length} bytes, expected more than {length}")
    return read(ref)


def _rowsets_of(entries: Sequence[Any], base: Superblock | None) -> tuple[RowSetMeta, ...]:
    """Return the rowsets of a file; those of its base were checked when that was read."""
    known, rowsets = () if base is None else base.rowsets, list[RowSetMeta]()
    for entry in entries:
        if isinstance(entry, list):
            start, stop = map(index, entry)
            if not 0 <= start < stop <= len(known):
                raise ValueError(f"rowsets {start} to {stop} of a base with {len(known)}")
            rowsets += known[start:stop]
        elif "of" in entry:
            place, redo = index(entry["of"]), map(DeltaFileMeta.from_json, entry["redo"])
            if not 0 <= place < len(known):
                raise ValueError(f"rowset {place} of a base with {len(known)}")
            end = index(entry["end"]) if "end" in entry else known[place].delete_timestamp
            rowset = replace(known[place].with_redo(tuple(redo)), delete_timestamp=end)
            _check_numbers(rowset, len(known[place].redo))
            rowsets.append(rowset)
        else:
            rowset = RowSetMeta.from_json(entry)
            _check_numbers(rowset)
            rowsets.append(rowset)
        if len(rowsets) > len(known) + len(entries):
            raise ValueError(f"{len(rowsets)} rowsets of a base with {len(known)}")
    return tuple(rowsets)


def read_superblock(storage: Storage, folder: Path, ref: FileRef, cache: BlockCache) -> Superblock:
    """Read a superblock of the tablet in `folder`, and its bases unless the cache has them.

    Raises StorageError, CorruptionError.
    """

    def base_of(ref: FileRef) -> Superblock:
        def load() -> tuple[Superblock, int]:
            return read_superblock(storage, folder, ref, cache), ref.length

        found: Superblock = cache.get_or_load(_key_of_base(folder, ref), load)
        return found

    for own in (folder, folder / ROWSET_FOLDER, folder / WAL_FOLDER):
        storage.check_folder(own)
    path = folder / ref.name
    superblock = Superblock.decode(read_verified(storage, path, ref), str(path), base_of)
    if superblock.tablet_id != folder.name:
        raise CorruptionError(f"{path}: of tablet {superblock.tablet_id}, not {folder.name}")
    return replace(superblock, file=ref)


def read_earlier_superblock(
    storage: Storage, folder: Path, ref: FileRef, cache: BlockCache
) -> Superblock:
    """Return a superblock that the cache has as the base of a later one; else read it."""
    found: Superblock | None = cache.get(_key_of_base(folder, ref))
    return read_superblock(storage, folder, ref, cache) if found is None else found


def _key_of_base(folder: Path, ref: FileRef) -> str:
    return str(folder / ref.name)


def _check_numbers(meta: RowSetMeta, known_count: int | None = None) -> None:
    """Raise ValueError for numbers that contradict each other, or that no file can hold.

    So that no loop or allocation of a reader depends on a number of a file that was tampered with.
    Of a rowset of the base, its first `known_count` REDO files and all UNDO files were checked.
    """
    counts = {
        "rows": (meta.row_count, 1, _most_rows(meta.key_index)),
        "rows in a row group": (meta.rows_per_group, 1, ROW_GROUP_ROWS),
        "as the time of its end": (meta.delete_timestamp or 0, 0, TIMESTAMP_MAX),
    }
    deltas = (*meta.redo, *meta.undo) if known_count is None else meta.redo[known_count:]
    for delta in deltas:
        counts[f"changes in {delta.ref.name}"] = (delta.row_count, 1, _most_rows(delta.ref))
        parts = max((delta.delete_count + delta.reinsert_count, *delta.update_counts.values()))
        counts[f"changes of one kind in {delta.ref.name}"] = (parts, 0, delta.row_count)
    for base in meta.base:
        if len(set(base.column_ids)) < len(base.column_ids):
            raise ValueError(f"rowset {meta.id}: {base.ref.name} has a column twice")
    for what, (found, least, most) in counts.items():
        if not least <= found <= most:
            raise ValueError(f"rowset {meta.id}: {found} {what}, expected {least} to {most}")
    if ROW_GROUP_ROWS % meta.rows_per_group or meta.key_min > meta.key_max:
        raise ValueError(
            f"rowset {meta.id}: {meta.rows_per_group} rows in a row group, keys from"
            f" {meta.key_min.hex()} to {meta.key_max.hex()}"
        )


def _most_rows(ref: FileRef) -> int:
    """Return how many rows a file can hold of which each takes a byte before compression."""
    return min(KEY_COUNT_MAX, ref.length * _LZ4_RATIO_MAX)
