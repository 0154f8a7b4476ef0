"""Mutations of the files of a table: by seed, raw or sealed, each followed by a read of the table.

    raw      bytes change, as on a bad disk              equal rows, or a KuduliteError
    sealed   the content changes, and every checksum     some rows, or a KuduliteError: no other
             is made right again, as by an attacker      error, no hang, no end of the process

A sealed file may hold any rows, so its rows are not compared. Before a mutation is read, it is
written to `mutation.txt` beside the table: after a crash of the process the file says which it was.

    outcomes = FileMutations(folder).run(1000, seed=7, is_sealed=True)     # Counter by kind of file

tests/support/trials.py does this in processes of their own, where a crash or a hang is an error.
"""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from kudulite.basefile.footer import FOOTER_CRC_BLANK, FOOTER_CRC_KEY, footer_bounds
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import KuduliteError
from kudulite.storage.checked_json import encode_checked_json
from kudulite.table.table_store import TableStore
from kudulite.wal.frame_format import FRAME_HEADER_BYTES, decode_frame, encode_frame
from kudulite.wal.segment import SEGMENT_HEADER_BYTES, decode_segment_header
from tests.support.tables.core_tables import environment, in_order, tuples

ROW_COUNT = 200
FIELDS = [
    pa.field("k", pa.int64(), nullable=False),
    pa.field("s", pa.string()),
    pa.field("v", pa.float64()),
    pa.field("seq", pa.int64()),
    pa.field("d", pa.decimal128(20, 2)),
    pa.field("a", pa.list_(pa.int32())),
    pa.field("t", pa.timestamp("us", "UTC")),
]
# Numbers at the edges of what a parser may assume.
EDGES = [0, 1, 127, 128, 255, 1 << 15, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1]
HOSTILE_VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1 << 31,
    1 << 32,
    1 << 63,
    1 << 64,
    10**300,
    0.5,
    float("nan"),
    "",
    "x",
    "../x",
    "\ud800",
    "00" * 9,
    "9" * 400,
    [],
    {},
    [[]],
    [None],
    {"": None},
]


def rows_from(start: int, count: int) -> pa.Table:
    """Rows of the table with the keys from `start`."""
    rows = [
        {
            "k": key,
            "s": None if key % 9 == 0 else f"text {key % 40}",
            "v": key / 4,
            "seq": key,
            "d": Decimal(key) / 4,
            "a": [key, None][: key % 3],
            "t": key * 1_000_000,
        }
        for key in range(start, start + count)
    ]
    return pa.Table.from_pylist(rows, pa.schema(FIELDS))


def make_table(client: Client) -> Table:
    """A table with every kind of file: base data, REDO, UNDO, tombstones, and rows in the log."""
    table = client.create_table("t", pa.schema(FIELDS), primary_key="k")
    table.insert(rows_from(0, ROW_COUNT))
    table.upsert(rows_from(ROW_COUNT // 2, ROW_COUNT))
    with client.new_session() as session:
        session.apply(table.new_insert({"k": -1, "s": "one"}))
        session.flush()
        session.apply(table.new_update({"k": -1, "s": "two"}))
        session.apply(table.new_delete({"k": 3}))
    table.flush()
    table.apply([{"op": "D", "k": 5, "seq": 99}], ordering_column="seq")
    with client.new_session() as session:
        session.apply(table.new_upsert({"k": 7, "s": "in the log"}))
        session.apply(table.new_insert({"k": -5, "a": [1, None]}))
    return table


def cells_of(rows: pa.Table) -> list[tuple]:
    """Rows with timestamps as numbers: a file may hold some that Python has no datetime for."""
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in rows.columns]
    return tuples(pa.table(columns, rows.column_names))


READINGS: dict[str, Callable[[Table], Any]] = {
    "scan": lambda table: in_order(cells_of(table.scan().to_arrow())),
    "filter": lambda table: in_order(
        cells_of(table.scan(where="v > 20 AND s = 'text 1'").to_arrow())
    ),
    "count": lambda table: table.scan().count(),
    "get": lambda table: [table.get(key) for key in (-5, -1, 3, 7, 150)],
    "changes": lambda table: in_order(cells_of(table.changes(0).to_arrow())),
    "history": lambda table: cells_of(table.history(-1)),
    "past": lambda table: in_order(cells_of(table.scan(at=table.tags.get("begin", 0)).to_arrow())),
    "check": lambda table: table.check().problems and None,
    "versions": lambda table: [version.version for version in table.versions()],
    "ordered": lambda table: cells_of(table.scan(ordered=True, columns=["a", "k"]).to_arrow()),
}


@dataclass(frozen=True)
class Outcome:
    """A mutation that was survived: the kind of its file, and whether it was refused."""

    kind: str
    is_refused: bool


class FileMutations:
    """A table below `folder` whose files are changed, read, and put back, one by one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        table = make_table(Client(folder, environment()))
        table.tag("begin")
        self.path = table.path
        store = TableStore(self.path, environment())
        manifest = store.newest()
        self.manifest = self.path / "manifest" / f"{manifest.version:020d}.json"
        self.table_id = manifest.table_id
        (tablet,) = manifest.tablets
        self.superblock = store.tablet_folder(tablet.id) / tablet.superblock.name
        self.files = self._files_in_use()
        self.expected = {name: read(self._opened()) for name, read in READINGS.items()}

    def _opened(self) -> Table:
        """The table, of which nothing is in memory."""
        return Table(TableStore(self.path, environment()))

    def _files_in_use(self) -> list[Path]:
        superblock = json.loads(self.superblock.read_bytes())
        log = max(self.path.glob("log/*"))
        own = [self.manifest, self.superblock, log, self.path / "lock"]
        own.append(self.manifest.parent / "hint")
        # In the order of the superblock, because names are random.
        return own + [next(self.path.rglob(ref["name"])) for ref in file_refs(superblock)]

    def run(self, count: int, seed: int | str, *, is_sealed: bool) -> Counter[Outcome]:
        """Try `count` mutations; returns how many had which outcome.

        AssertionError, with the mutation, for wrong rows and for an error that is not ours.
        """
        outcomes: Counter[Outcome] = Counter()
        for number in range(count):
            outcomes[self.run_one(f"{seed}:{number}", is_sealed=is_sealed)] += 1
        return outcomes

    def run_one(self, seed: str, *, is_sealed: bool) -> Outcome:
        """Try the mutation of a seed."""
        chance = random.Random(seed)
        path, reading = chance.choice(self.files), chance.choice(list(READINGS))
        kind = path.name.split("-")[0] if "-" in path.name else path.parent.name
        (self.folder / "mutation.txt").write_text(f"{seed=} {is_sealed=} {path} {reading}")
        changed = (
            self._sealed(path, chance) if is_sealed else {path: mutated(path.read_bytes(), chance)}
        )
        before = {place: place.read_bytes() for place in changed}
        where = f"{seed=} {is_sealed=} {kind} {reading}"
        try:
            for place, content in changed.items():
                place.write_bytes(content)
            found = READINGS[reading](self._opened())
            assert is_sealed or reading == "check" or found == self.expected[reading], where
            return Outcome(kind, is_refused=False)
        except KuduliteError:
            return Outcome(kind, is_refused=True)
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"{where}: {error!r}") from error
        finally:
            for place, content in before.items():
                place.write_bytes(content)

    # -- sealed mutations

    def _sealed(self, path: Path, chance: random.Random) -> dict[Path, bytes]:
        """The files to write so that a mutation of `path` has right checksums everywhere."""
        content = path.read_bytes()
        if path == self.manifest:
            body = json.loads(content.partition(b"\n")[0])
            return {path: encode_checked_json(with_hostile_value(body, chance))}
        if path == self.superblock:
            return self._with_superblock(with_hostile_value(json.loads(content), chance))
        if path.suffix == ".log":
            return {path: sealed_segment(content, self.table_id, chance)}
        if path.name in ("lock", "hint"):
            return {
                path: sealed_lock(content, chance)
                if path.name == "lock"
                else b"%d" % chance.choice(EDGES)
            }
        if path.suffix == ".parquet":
            changed = sealed_base_data(content, chance)
        elif path.suffix == ".bin":
            changed = sealed_bloom(content, chance)
        else:
            changed = mutated(content, chance)
        superblock = json.loads(self.superblock.read_bytes())
        for ref in file_refs(superblock):
            if ref["name"] == path.name:
                ref.update(length=len(changed), crc32=zlib.crc32(changed))
        return {path: changed, **self._with_superblock(superblock)}

    def _with_superblock(self, superblock: Any) -> dict[Path, bytes]:
        content = json.dumps(superblock).encode()
        body = json.loads(self.manifest.read_bytes().partition(b"\n")[0])
        body["tablets"][0]["superblock"].update(length=len(content), crc32=zlib.crc32(content))
        return {self.superblock: content, self.manifest: encode_checked_json(body)}


def file_refs(value: Any) -> Iterator[dict[str, Any]]:
    """Every reference to a file in a JSON value."""
    if isinstance(value, dict) and value.keys() >= {"name", "length", "crc32"}:
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from file_refs(item)


def mutated(content: bytes, chance: random.Random) -> bytes:
    """The bytes with a few changes: flipped bits, numbers at edges, parts lost or repeated."""
    changed = bytearray(content)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        at = chance.randrange(len(changed) + 1)
        stop = min(len(changed), at + chance.choice([1, 2, 4, 8, 64]))
        kind = chance.randrange(8)
        if kind < 4 and at < len(changed):
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 4:
            number = struct.pack("<Q", chance.choice(EDGES))[: stop - at]
            changed[at : at + len(number)] = number
        elif kind == 5:
            changed[at:stop] = bytes(stop - at)
        elif kind == 6:
            del changed[at : chance.choice([stop, len(changed)])]
        else:
            changed[at:at] = changed[at:stop]
    return bytes(changed)


def with_hostile_value(body: Any, chance: random.Random) -> Any:
    """A JSON value with one member replaced, removed, or nested too deep."""
    holders = [(body, key) for key in body]
    for holder, key in holders:
        value = holder[key]
        if isinstance(value, dict | list):
            holders += [
                (value, k) for k in (value if isinstance(value, dict) else range(len(value)))
            ]
    holder, key = chance.choice(holders)
    kind = chance.randrange(12)
    if kind == 0 and isinstance(holder, dict):
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.append(holder[key])
    elif kind == 2 and isinstance(holder[key], int):
        holder[key] += chance.choice([-1, 1])
    else:
        holder[key] = chance.choice(HOSTILE_VALUES)
    return body


def sealed_segment(content: bytes, table_id: str, chance: random.Random) -> bytes:
    """A segment of the log with one frame's payload changed, and its CRCs right."""
    header = decode_segment_header(content, int.from_bytes(content[12:20], "little"), table_id)
    frames, position = [], SEGMENT_HEADER_BYTES
    while position < len(content) and any(content[position : position + 4]):
        end = decode_frame(memoryview(content), position, salt=header.salt, offset=position)
        frames.append((position, end))
        position = end
    start, end = chance.choice(frames)
    payload = mutated(content[start + FRAME_HEADER_BYTES : end], chance)
    payload = payload[: end - start - FRAME_HEADER_BYTES].ljust(end - start - FRAME_HEADER_BYTES)
    frame = encode_frame([payload], salt=header.salt, offset=start)
    return content[:start] + frame + content[end:]


def sealed_lock(content: bytes, chance: random.Random) -> bytes:
    """A lock file with another safe timestamp and another end of the log, their CRCs right."""
    timestamp = struct.pack("<Q", chance.choice(EDGES))
    segment, offset, boot = struct.unpack("<QQQ", content[220:244])
    end = struct.pack(
        "<QQQ",
        chance.choice([segment, *EDGES]),
        chance.choice([offset, *EDGES]),
        chance.choice([boot, *EDGES]),
    )
    cells = [content[:8], timestamp, struct.pack("<I", zlib.crc32(timestamp)), content[20:220]]
    return b"".join([*cells, end, struct.pack("<I", zlib.crc32(end))])


def sealed_bloom(content: bytes, chance: random.Random) -> bytes:
    """A bloom filter with other bytes, and the CRCs of its blocks and its header right."""
    return checked_bloom(mutated(content, chance))


def checked_bloom(content: bytes) -> bytes:
    """A bloom filter with the right CRCs of its blocks and its header."""
    content = content.ljust(32, b"\0")
    head = content[:24] + struct.pack("<I", zlib.crc32(content[32:]))
    return head + struct.pack("<I", zlib.crc32(head)) + content[32:]


def sealed_base_data(content: bytes, chance: random.Random) -> bytes:
    """Base data with other pages, or with another footer, whose checksum is right."""
    start, stop = footer_bounds(content, len(content))
    if chance.random() < 0.5:
        return mutated(content[:start], chance) + content[start:]
    return content[:start] + checked_footer(mutated(content[start:stop], chance)) + content[-4:]


def checked_footer(footer: bytes) -> bytes:
    """A footer whose checksum is right, if it has one, and its length."""
    at = footer.rfind(FOOTER_CRC_KEY) + len(FOOTER_CRC_KEY) + 2  # a header of two bytes
    if at > len(FOOTER_CRC_KEY):
        blank = footer[:at] + FOOTER_CRC_BLANK + footer[at + 8 :]
        footer = blank[:at] + b"%08x" % zlib.crc32(blank) + blank[at + 8 :]
    return footer + struct.pack("<I", len(footer))
