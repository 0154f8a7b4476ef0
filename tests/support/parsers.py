"""Parsers of bytes, each with contents that it accepts: for random and for coverage-guided tests.

    for name, parser in parsers(folder).items():
        parser.parse(changed(parser.samples[0]))       something, or a KuduliteError

Where a file or its reference has a checksum, it is made right for whatever the content is, so that
the content reaches the parser. The samples are from a table with every kind of file, and from a
backup of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kudulite.backups.backup_job import begin_backup
from kudulite.backups.backup_set import Backup
from kudulite.backups.format import MANIFEST_NAME, PLAN_NAME, BackupPlan, PieceResult
from kudulite.basefile.base_data import BaseDataFile
from kudulite.basefile.bloom import BloomFilter
from kudulite.basefile.footer import footer_bounds
from kudulite.basefile.key_index import KeyIndex
from kudulite.basefile.page_range import PARQUET_MAGIC, PageDirectory
from kudulite.chain.folder import hinted_version
from kudulite.chain.manifest import Manifest
from kudulite.client.table import Table
from kudulite.delta.delta_file import DeltaFile
from kudulite.errors import KuduliteError
from kudulite.model.condition_text import parse_condition
from kudulite.model.encoded_key import encode_keys
from kudulite.model.hybrid_time import parse_timestamp
from kudulite.model.types import int64
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.storage.local_storage import LocalSource, LocalStorage
from kudulite.storage.storage import FileRef
from kudulite.storage.storage_error import arrow_errors
from kudulite.storage.table_lock import read_lock_file
from kudulite.table.table_store import TableStore
from kudulite.tablet.superblock import Superblock
from kudulite.tablet.tombstones import read_tombstones
from kudulite.wal.commit_format import CommitInfo, LoggedCommit, decode_commits, encode_commit
from kudulite.wal.frame_format import FRAME_HEADER_BYTES, decode_frame
from kudulite.wal.record_format import RecordDecoder
from kudulite.wal.segment import SEGMENT_HEADER_BYTES, LogPosition, decode_segment_header
from kudulite.wal.tablet_log import decode_tablet_records
from tests.support.machines.file_mutations import FileMutations, checked_bloom, checked_footer
from tests.support.tables.core_tables import environment

CONDITIONS = (
    b"v > 1.5 AND s = 'text' OR NOT k IN (1, 2)",
    b"s LIKE 'ab%' AND d IS NOT NULL",
    b"t >= TIMESTAMP '2026-11-21 10:00:00' AND k BETWEEN -5 AND 9",
)
MOMENTS = (b"2026-11-21T10:00:00Z", b"2026-11-21 10:00:00.123456+02:00", b"7", b"2026-11-21")


@dataclass(frozen=True)
class Parser:
    """A parser, and contents that it accepts."""

    parse: Callable[[bytes], object]
    samples: list[bytes]

    def survive(self, content: bytes) -> None:
        """Parse it, whether it is refused or not; raises errors that are not kudulite's."""
        with contextlib.suppress(KuduliteError):
            self.parse(content)


def parsers(folder: Path) -> dict[str, Parser]:
    """Make a table and a backup in an empty folder; return all parsers by their names."""
    made = _Parsers(folder)
    return {**made.of_metadata(), **made.of_log(), **made.of_rowsets(), **made.of_texts()}


class _Parsers:
    def __init__(self, folder: Path) -> None:
        self.files = FileMutations(folder / "tables")
        self.manifest = Manifest.decode(self.files.manifest.read_bytes(), "m")
        self.schema = self.manifest.schema
        self.superblock = Superblock.decode(self.files.superblock.read_bytes(), "s")
        self.tablet_folder = self.files.superblock.parent
        self.place = folder / "changed"

    def ref_of(self, content: bytes, path: Path | None = None) -> FileRef:
        """Write the content; return the reference that fits it."""
        path = path or self.place
        path.write_bytes(content)
        return FileRef(path.name, len(content), zlib.crc32(content))

    def of_metadata(self) -> dict[str, Parser]:
        """Manifest, superblock, lock, hint, and the files of a backup."""
        lock = (self.files.path / "lock").read_bytes()
        hint = self.place.parent / "hinted" / "manifest" / "hint"
        hint.parent.mkdir(parents=True)

        def parse_hint(content: bytes) -> object:
            hint.write_bytes(content)
            return hinted_version(LocalStorage(), hint.parent.parent)

        def parse_lock(content: bytes) -> object:
            self.ref_of(content)
            return read_lock_file(self.place)

        table = Table(TableStore(self.files.path, environment()))
        with begin_backup(
            table, self.place.parent / "backups", full=True, content_hash=True
        ) as job:
            (plan,) = self.place.parent.glob(f"backups/*/{PLAN_NAME}")
            plan_line = _line(plan)
            job.run()
            pieces = [_line(path) for path in plan.parent.glob("piece-*.json")]
            backup = job.finish()
        return {
            "manifest": Parser(
                lambda c: Manifest.decode(_checked(c), "x"), [_line(self.files.manifest)]
            ),
            "superblock": Parser(
                lambda c: Superblock.decode(c, "x"), [self.files.superblock.read_bytes()]
            ),
            "lock": Parser(parse_lock, [lock]),
            "hint": Parser(parse_hint, [b"7", b"12345\n"]),
            "backup": Parser(
                lambda c: Backup.decode(_checked(c), backup.path, backup.storage),
                [_line(backup.path / MANIFEST_NAME)],
            ),
            "backup-plan": Parser(lambda c: BackupPlan.decode(_checked(c), "x"), [plan_line]),
            "backup-piece": Parser(lambda c: PieceResult.decode(_checked(c), "x"), pieces),
        }

    def of_log(self) -> dict[str, Parser]:
        """The header of a segment, frames, commits, and records of now and of older tables."""
        segment = max(self.files.path.glob("log/*")).read_bytes()
        number, table_id = int.from_bytes(segment[12:20], "little"), self.manifest.table_id
        header = decode_segment_header(segment, number, table_id)

        def parse_header(content: bytes) -> object:
            whole = content[: SEGMENT_HEADER_BYTES - 4].ljust(SEGMENT_HEADER_BYTES - 4, b"\0")
            sealed = whole + struct.pack("<I", zlib.crc32(whole))
            return decode_segment_header(sealed, number, table_id)

        def parse_frame(content: bytes) -> object:
            return decode_frame(memoryview(content), 0, salt=header.salt, offset=position)

        def decode_record(content: bytes) -> object:
            return RecordDecoder(self.schema).decode_rows(5, pa.py_buffer(content))

        def decode_records(content: bytes) -> object:
            return decode_tablet_records(pa.py_buffer(content), RecordDecoder(self.schema))

        position = SEGMENT_HEADER_BYTES
        end = decode_frame(memoryview(segment), position, salt=header.salt, offset=position)
        payload = segment[position + FRAME_HEADER_BYTES : end]
        (commit,) = decoded_commits(payload)
        records = [bytes(rows) for rows in commit.parts.values()]
        info = CommitInfo("c1", "MERGE", "a message", "stream", 7, 1, 2, 3, 4)
        rows = dict(zip(("0" * 32, "f" * 32), 2 * records, strict=False))
        timestamp = struct.pack("<Q", commit.timestamp)
        return {
            "segment-header": Parser(parse_header, [segment[:SEGMENT_HEADER_BYTES]]),
            "frame": Parser(parse_frame, [segment[position:end]]),
            "commit": Parser(
                decoded_commits,
                [payload, encode_commit(7, rows, info), encode_commit(7, {}, info) + payload],
            ),
            "record": Parser(decode_record, records),
            "tablet-log": Parser(decode_records, [timestamp + record for record in records]),
        }

    def of_rowsets(self) -> dict[str, Parser]:
        """Base data, its pages, key index, bloom filter, deltas, tombstones."""
        rowset = max(self.superblock.rowsets, key=lambda rowset: rowset.row_count)
        folder = self.tablet_folder / "rowset" / rowset.id
        name = rowset.base[0].ref.name
        base = (folder / name).read_bytes()
        start, stop = footer_bounds(base, len(base))
        tombstones = self.superblock.tombstones[0]

        def parse_base(content: bytes) -> object:
            return self._read_base(name, base[:start] + checked_footer(content) + PARQUET_MAGIC)

        def parse_pages(content: bytes) -> object:
            return self._read_base(name, content + base[start:])

        def parse_directory(content: bytes) -> object:
            with arrow_errors("x", "as in base data"):
                read = LocalSource(pa.py_buffer(base), is_map=False).read
                pages = PageDirectory(content, pq.read_metadata(pa.BufferReader(base)), read)
                return [pages.covering(0, number, 0, 5) for number in range(4)]

        def parse_tombstones(content: bytes) -> object:
            meta = dataclasses.replace(tombstones, ref=self.ref_of(content))
            return read_tombstones(LocalStorage(), self.place, meta)

        found = {
            "footer": Parser(parse_base, [base[start:stop]]),
            "pages": Parser(parse_pages, [base[:start]]),
            "page-directory": Parser(parse_directory, [base[start:stop]]),
            "tombstones": Parser(
                parse_tombstones, [(self.tablet_folder / tombstones.ref.name).read_bytes()]
            ),
            "key-index": Parser(
                lambda c: self._read_key_index(c, rowset),
                [(folder / rowset.key_index.name).read_bytes()],
            ),
            "bloom-filter": Parser(
                self._ask_bloom_filter, [(folder / rowset.bloom.name).read_bytes()]
            ),
        }
        return found | {kind: self._of_delta(kind) for kind in ("redo", "undo")}

    def _of_delta(self, kind: str) -> Parser:
        files = [(rowset, e) for rowset in self.superblock.rowsets for e in getattr(rowset, kind)]
        rowset, entry = max(files, key=lambda file: file[1].row_count)
        path = self.tablet_folder / "rowset" / rowset.id / entry.ref.name

        def parse(content: bytes) -> object:
            meta = dataclasses.replace(entry, ref=self.ref_of(content))
            return DeltaFile(LocalStorage(), self.place, meta, rowset.row_count).read()

        return Parser(parse, [path.read_bytes()])

    def _read_base(self, name: str, content: bytes) -> object:
        path = self.place.with_name(name)  # which the footer has, too
        file = BaseDataFile(LocalStorage(), path, self.ref_of(content, path))
        names = file.schema.names
        for name in names:
            file.statistics(0, name)
        file.read([0], names)
        return file.read_rows(0, min(5, file.row_count), names)

    def _read_key_index(self, content: bytes, rowset: RowSetMeta) -> object:
        index = KeyIndex(LocalStorage(), self.place, self.ref_of(content), rowset.row_count)
        index.locate(b"\x80")
        return list(index.batches())

    def _ask_bloom_filter(self, content: bytes) -> object:
        bloom = BloomFilter(self.place, checked_bloom(content))
        return bloom.may_contain(encode_keys([pa.array([1, 2, 99], pa.int64())], [int64]))

    def of_texts(self) -> dict[str, Parser]:
        """The texts of users: conditions and moments."""

        def text(content: bytes) -> str:
            return content.decode(errors="replace")

        return {
            "condition": Parser(lambda c: parse_condition(text(c), self.schema), [*CONDITIONS]),
            "moment": Parser(lambda c: parse_timestamp(text(c)), [*MOMENTS]),
        }


def decoded_commits(payload: bytes) -> list[LoggedCommit]:
    """The commits of a frame's payload."""
    commits: list[LoggedCommit] = []
    content = pa.py_buffer(payload)
    view, end = memoryview(content).cast("B"), LogPosition(1, 40)
    decode_commits(commits, content, view, 0, len(payload), end)
    return commits


def _line(path: Path) -> bytes:
    """The line of a metadata file, without its checksum."""
    return path.read_bytes().partition(b"\n")[0]


def _checked(line: bytes) -> bytes:
    """A metadata file with this line and its right checksum."""
    return line + b'\n{"crc32":%d}\n' % zlib.crc32(line.partition(b"\n")[0])
