"""The content of a table's files, for debugging; a file's name decides how it is read.

A file is named below the table's folder, or where it is: on an object store these are two names.

    a table's folder       the newest manifest            redo-….arrow, undo-….arrow   its changes
    0…7.json               a version, or a record         key-….arrow                  encoded keys
    superblock-….json      a tablet's rowsets             bloom-….bin                  its size
    rowset/<id>/           its entry in the superblock    wal/  wal/0…3.log     its records
    base-….parquet         columns, row groups, rows      lock                     safe timestamp
    tombstone-….arrow      keys deleted by ordered writes

If a superblock of the newest version names the file, its checksum is compared. The dump of a data
file that cannot be read has the reason as its `problem`. Nothing is changed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from kudulite.basefile.bloom import BloomFilter
from kudulite.basefile.footer import check_chunks
from kudulite.chain.manifest import Manifest
from kudulite.chain.record_entry import RecordEntry
from kudulite.delta.delta_file import OP_DELETE, OP_REINSERT, OP_UPDATE
from kudulite.errors import KuduliteError, OptionError
from kudulite.model.hybrid_time import format_timestamp
from kudulite.model.values import python_rows, python_values
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.storage.checked_json import decode_checked_json
from kudulite.storage.names import (
    LOCK_NAME,
    LOG_FOLDER,
    MANIFEST_FOLDER,
    ROWSET_FOLDER,
    kind_of,
    version_of,
)
from kudulite.storage.storage import FileRef, Storage, verify_file
from kudulite.storage.storage_error import arrow_errors
from kudulite.storage.table_lock import read_lock_file
from kudulite.table.environment import Environment
from kudulite.table.table_store import TableStore
from kudulite.wal.commit_format import CommitInfo, LoggedCommit
from kudulite.wal.log_reader import read_log
from kudulite.wal.record_format import Record, RecordDecoder
from kudulite.wal.row_codec import CHANGE_DELETE, CHANGE_INSERT, CHANGE_UPDATE
from kudulite.wal.segment import SEGMENT_HEADER_BYTES, LogPosition, list_segments, segment_path

_DELTA_OPS = {OP_UPDATE: "UPDATE", OP_DELETE: "DELETE", OP_REINSERT: "REINSERT"}


@dataclass(frozen=True)
class Dump:
    """A file: facts about the whole file, and its first rows."""

    about: dict[str, Any]
    rows: list[dict[str, Any]]


def dump(store: TableStore, path: Path, limit: int) -> Dump:
    """Return the content of `path`, which is the table's place or below it.

    At most `limit` rows. Raises OptionError if the path is not one of a table's files,
    CorruptionError for a damaged metadata file.
    """
    name = path.name
    if path == store.place:
        return Dump(decode_checked_json(store.newest().encode(), str(path), "a manifest"), [])
    if path.parent.name == MANIFEST_FOLDER and version_of(name) is not None:
        return _entry(store, path, limit)
    if kind_of(name) == "superblock":
        return Dump(json.loads(store.storage.read(path)), [])
    if name == LOCK_NAME:
        return Dump(_lock(store.storage, path), [])
    if path.parent.name == LOG_FOLDER:
        return _log(store, path, limit)
    if name == LOG_FOLDER and store.storage.is_folder(path):
        return _segments(store, path)
    if store.storage.is_folder(path) and path.parent.name == ROWSET_FOLDER:
        meta = _meta_of(store, path)
        return Dump({} if meta is None else meta.to_json(), [])
    kind = kind_of(name)
    if kind in _READERS:
        about = {"kind": kind, **_checked(store.storage, path, _known_ref(store, path))}
        try:
            with arrow_errors(path, "cannot be read"):
                found = _READERS[kind](store.storage, path, limit)
        except KuduliteError as error:
            return Dump({**about, "problem": str(error)}, [])
        return Dump({**about, **found.about}, found.rows)
    raise OptionError(
        f"{path}: not one of a table's files; known are the table's folder, versions in manifest/,"
        " lock, log/<n>.log, superblocks, rowset/<id> and the files in it, tombstone- files"
    )


def found_file(environment: Environment, path: Path) -> tuple[TableStore, Path]:
    """Return the table that `path` belongs to, and where the file is. Raises OptionError."""
    storage, top = environment.storage, environment.storage.address.root
    for folder in (path, *path.parents):
        if not folder.is_relative_to(top):
            break
        for name in storage.table_names(folder) or ():
            store = TableStore(folder / name, environment)
            if path.is_relative_to(store.place):
                return store, path
        store = TableStore(folder, environment)
        if folder != top and storage.is_folder(store.place / MANIFEST_FOLDER):
            return store, store.place / path.relative_to(folder)
    raise OptionError(f"{path}: neither a kudulite table nor inside one")


def _entry(store: TableStore, path: Path, limit: int) -> Dump:
    """Return a version; or, of a chain that has the rows of the log as well, a record of them."""
    content, source = store.storage.read(path), str(path)
    record = RecordEntry.decode(content, source)
    if record is None:
        return Dump(decode_checked_json(content, source, "a manifest"), [])
    about, rows = _commits(store.newest(), record.decode_commits(source), limit)
    facts = {name: value for name, value in record.to_json().items() if name != "commits"}
    return Dump({"kind": "record", "length": len(content), **facts, **about}, rows)


def _lock(storage: Storage, path: Path) -> dict[str, Any]:
    content = storage.read(path)
    state = read_lock_file(path)
    safe, end = state.safe_timestamp, state.log_end
    holder = content[20:220].decode(errors="replace").strip(" \0")
    return {
        "safe_timestamp": safe,
        "safe_moment": format_timestamp(safe) if safe else None,
        "log_end": None if end is None else list(end),
        "announced": holder,
    }


def _meta_of(store: TableStore, folder: Path) -> RowSetMeta | None:
    """Return the rowset in a folder, None if it is not in the newest version."""
    for entry in store.newest().readable_tablets:
        if store.tablet_folder(entry.id) in folder.parents:
            for meta in store.tablet(entry).superblock.rowsets:
                if meta.id == folder.name:
                    return meta
    return None


def _known_ref(store: TableStore, path: Path) -> FileRef | None:
    meta = _meta_of(store, path.parent)
    refs = [] if meta is None else meta.file_refs
    for entry in store.newest().readable_tablets:
        if store.tablet_folder(entry.id) == path.parent:
            refs = store.tablet(entry).superblock.tablet_file_refs
    return next((ref for ref in refs if ref.name == path.name), None)


def _checked(storage: Storage, path: Path, known: FileRef | None) -> dict[str, Any]:
    """Return whether the file matches its entry in the newest version."""
    if known is None:
        return {"length": storage.length(path), "checked": "not in the newest version"}
    try:
        verify_file(storage, path, known)
    except KuduliteError as error:
        return {"length": storage.length(path), "checked": f"WRONG: {error}"}
    return {"length": known.length, "checked": f"as it was written, CRC {known.crc32:#010x}"}


def _base(storage: Storage, path: Path, limit: int) -> Dump:
    content = _content(storage, path)
    with pq.ParquetFile(content) as file:
        metadata = file.metadata
        check_chunks(metadata, pa.BufferReader(content))
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        about = {
            "row_count": metadata.num_rows,
            "row_groups": [
                {"rows": group.num_rows, "bytes": group.total_byte_size} for group in groups
            ],
            "columns": [
                {
                    "name": field.name,
                    "type": str(field.type),
                    "id": int((field.metadata or {}).get(b"PARQUET:field_id", b"-1")),
                    "encodings": list(groups[0].column(place).encodings) if groups else [],
                    "compression": groups[0].column(place).compression if groups else None,
                }
                for place, field in enumerate(file.schema_arrow)
            ],
        }
        rows: list[dict[str, Any]] = []
        for batch in file.iter_batches(max(1, limit)):
            rows += python_rows(batch.slice(0, limit))
            break
        return Dump(about, [{"rowid": rowid, **row} for rowid, row in enumerate(rows)])


def _content(storage: Storage, path: Path) -> pa.Buffer:
    ref = FileRef(path.name, storage.length(path), crc32=0)
    return storage.open(path, ref).read_buffer()


def _arrow_rows(storage: Storage, path: Path) -> pa.Table:
    with pa.ipc.open_file(_content(storage, path)) as file:
        return file.read_all()


def _deltas(storage: Storage, path: Path, limit: int) -> Dump:
    """Return changes in the order of the file, with the cells that they set."""
    batch = _arrow_rows(storage, path)
    names, ops = batch.schema.names, batch.column("op").to_numpy()
    counts = {name: int(np.count_nonzero(ops == op)) for op, name in _DELTA_OPS.items()}
    about = {
        "row_count": batch.num_rows,
        "operations": counts,
        "columns": [int(name[1:]) for name in names if name.startswith("v")],
        "has_timestamps": "timestamp" in names,
    }
    rows = []
    for row in python_rows(batch.slice(0, limit)):
        cells = {
            f"column {name[1:]}": value
            for name, value in row.items()
            if name.startswith("v") and row.get(f"s{name[1:]}", True) and row["op"] != OP_DELETE
        }
        stamp = {"timestamp": row["timestamp"]} if "timestamp" in row else {}
        op = _DELTA_OPS.get(row["op"], f"unknown {row['op']}")
        rows.append({"rowid": row["rowid"], "op": op, **stamp, **cells})
    return Dump(about, rows)


def _keys(storage: Storage, path: Path, limit: int) -> Dump:
    found = _arrow_rows(storage, path)
    header = json.loads((found.schema.metadata or {})[b"kudulite.key_index"])
    keys = found.column(0).slice(0, limit).to_pylist()
    return Dump(header, [{"rowid": rowid, "key": key.hex()} for rowid, key in enumerate(keys)])


def _bloom(storage: Storage, path: Path, _limit: int) -> Dump:
    bloom = BloomFilter(path, storage.read(path))
    return Dump({"block_count": bloom.block_count, "key_count": bloom.key_count}, [])


def _tombstones(storage: Storage, path: Path, limit: int) -> Dump:
    found = _arrow_rows(storage, path)
    rows = [{**row, "key": row["key"].hex()} for row in python_rows(found.slice(0, limit))]
    return Dump({"row_count": found.num_rows, "value": str(found.schema.field("value").type)}, rows)


def _log(store: TableStore, path: Path, limit: int) -> Dump:
    """Return the commits of one segment, without a torn end, as a reader sees them."""
    segment = int(path.stem)
    newest, folder, storage = store.newest(), path.parent, store.storage
    start = LogPosition(segment, SEGMENT_HEADER_BYTES)
    is_last = segment == list_segments(storage, folder)[-1]
    end = None if is_last else LogPosition(segment, storage.length(path))
    tail = read_log(storage, folder, newest.table_id, start, end)
    about, rows = _commits(newest, tail.commits, limit)
    facts = {"kind": "log", "length": storage.length(path), "end": tail.end.to_json()}
    return Dump({**facts, **about}, rows)


def _commits(
    newest: Manifest, commits: Sequence[LoggedCommit], limit: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return facts about commits, and the first rows of them."""
    decoder = RecordDecoder(newest.schema)
    records = [
        (commit.info, tablet_id, decoder.decode_rows(commit.timestamp, content))
        for commit in commits
        for tablet_id, content in commit.parts.items()
    ]
    names = {column.id: column.name for column in newest.schema.columns}
    rows: list[dict[str, Any]] = []
    for info, tablet_id, record in records:
        if len(rows) >= limit:
            break
        columns = {
            i: (python_values(array), record.is_set.get(i)) for i, array in record.columns.items()
        }
        for number, op in enumerate(record.ops.tolist()[: limit - len(rows)]):
            cells = {
                names[i]: values[number]
                for i, (values, is_set) in columns.items()
                if is_set is None or is_set[number]
            }
            facts = {"timestamp": record.timestamp, "tablet": tablet_id, "op": _CHANGES[op]}
            rows.append({**facts, **_write_facts(info), **cells})
    about = {
        "commit_count": len(commits),
        "row_count": sum(record.row_count for *_, record in records),
        "operations": _operation_counts([record for *_, record in records]),
        "timestamps": [c.timestamp for c in (*commits[:1], *commits[-1:])],
    }
    return about, rows


def _write_facts(info: CommitInfo | None) -> dict[str, str]:
    """Return the name and the message of a write as versions() lists them; a session has none."""
    facts = {} if info is None else {"write": info.operation, "message": info.message}
    return {name: value for name, value in facts.items() if value}


def _operation_counts(records: Sequence[Record]) -> dict[str, int]:
    counts = sum((np.bincount(record.ops, minlength=8) for record in records), np.zeros(8, int))
    return {name: int(counts[op]) for op, name in _CHANGES.items()}


def _segments(store: TableStore, folder: Path) -> Dump:
    """Return the counts of each segment of a log, and of all together."""
    rows = []
    for segment in list_segments(store.storage, folder):
        found = _log(store, segment_path(folder, segment), 0).about
        counts = {name: found[name] for name in ("length", "commit_count", "row_count")}
        times = [*found["timestamps"], None, None]
        ends = {"first": times[0], "last": times[1] or times[0]}
        rows.append({"segment": segment, **counts, **found["operations"], **ends})
    names = ("length", "commit_count", "row_count", *_CHANGES.values())
    totals = {name: sum(row[name] for row in rows) for name in names}
    return Dump({"kind": "log", "segments": len(rows), **totals}, rows)


_CHANGES = {CHANGE_INSERT: "INSERT", CHANGE_UPDATE: "UPDATE", CHANGE_DELETE: "DELETE"}
_READERS = {
    "base": _base,
    "redo": _deltas,
    "undo": _deltas,
    "key": _keys,
    "bloom": _bloom,
    "tombstone": _tombstones,
}
