"""Format of a bloom filter file: a header of 32 bytes, then the blocks.

    file   := header block[block_count]
    header := magic[8]="kudbloom"  format_version:u32le  block_count:u32le  key_count:u64le
              blocks_crc32:u32le  header_crc32:u32le (of the 28 bytes before it)
    block  := word:u32le[8]

A key with the 64-bit hash h = high:u32 low:u32 (`model.key_hash`, seed 0) belongs to the block
(high * block_count) >> 32 and sets there, in each word i, the bit (low * SALTS[i] mod 2^32) >> 27.
A filter of no keys has one block of zeros. Worked example, one key of int64 1, encoded
8000000000000001, h = 1579e09ce504374d, block 0 of 1:

    6b7564626c6f6f6d 01000000 01000000 0100000000000000 <crc> <crc>
    01000000 02000000 00000040 00080000 00020000 00000001 00002000 00000001

Source: the split block bloom filter of the Parquet format ("BloomFilter.md") and of Kudu's
block_bloom_filter.cc (Putze, Sanders, Singler: Cache-, Hash- and Space-Efficient Bloom Filters),
whose salts these are.
"""

from __future__ import annotations

import struct
import zlib

from kudulite.errors import CorruptionError, FormatVersionError

FORMAT_VERSION = 1  # on disk: a change of meaning raises it
MAGIC = b"kudbloom"
HEADER_BYTES = 32
BLOCK_BYTES = 32
WORDS_PER_BLOCK = 8
BITS_PER_KEY = 16  # not part of the format: about 1 false positive in 750
SALTS = (  # on disk: do not change
    0x47B6137B,
    0x44974D91,
    0x8824AD5B,
    0xA2B7289D,
    0x705495C7,
    0x2DF1424B,
    0x9EFC4947,
    0x5C6BFB31,
)
_HEADER = struct.Struct("<8sIIQI")


def block_count_for(key_count: int) -> int:
    """Blocks that give `key_count` keys BITS_PER_KEY bits each."""
    return max(1, -(-key_count * BITS_PER_KEY // (BLOCK_BYTES * 8)))


def encode_file(blocks: bytes, key_count: int) -> bytes:
    """The file of these blocks."""
    count = len(blocks) // BLOCK_BYTES
    header = _HEADER.pack(MAGIC, FORMAT_VERSION, count, key_count, zlib.crc32(blocks))
    return b"".join((header, zlib.crc32(header).to_bytes(4, "little"), blocks))


def decode_file(content: bytes, path: object) -> tuple[int, int]:
    """(block count, key count) of a file's content, everything checked.

    Raises FormatVersionError, or CorruptionError that names `path` and what differs.
    """
    if len(content) < HEADER_BYTES or content[:8] != MAGIC:
        raise CorruptionError(f"{path}: not a bloom filter: it starts with {content[:8]!r}")
    _, version, block_count, key_count, blocks_crc = _HEADER.unpack_from(content)
    found = zlib.crc32(content[: _HEADER.size])
    stored = int.from_bytes(content[_HEADER.size : HEADER_BYTES], "little")
    if found != stored:
        raise CorruptionError(f"{path}: header CRC {found:#010x}, expected {stored:#010x}")
    if version != FORMAT_VERSION:
        raise FormatVersionError(
            f"{path}: bloom filter of format version {version}, this kudulite reads"
            f" {FORMAT_VERSION}; upgrade to read it"
        )
    if block_count < 1 or len(content) != HEADER_BYTES + block_count * BLOCK_BYTES:
        raise CorruptionError(f"{path}: {len(content)} bytes for {block_count} blocks")
    found = zlib.crc32(memoryview(content)[HEADER_BYTES:])
    if found != blocks_crc:
        raise CorruptionError(f"{path}: blocks CRC {found:#010x}, expected {blocks_crc:#010x}")
    return block_count, key_count
