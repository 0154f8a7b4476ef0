"""Bloom filters: no false negative, few false positives, bytes that stay what they are."""

import threading
import zlib

import numpy as np
import pytest

from kudulite.basefile.bloom import BloomFilter, build_bloom, write_bloom
from kudulite.errors import CorruptionError, FormatVersionError
from kudulite.model.key_array import KeyArray
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.storage import read_verified

WIDTHS = [1, 4, 8, 12, None]


def keys_of(width, count, seed):
    """Ascending distinct random keys; fewer than `count` when the width holds no more."""
    rng = np.random.default_rng(seed)
    if width is None:
        keys = {rng.bytes(int(n)) for n in rng.integers(0, 20, count)}
    else:
        keys = {rng.bytes(width) for _ in range(count)}
    return KeyArray.from_bytes(sorted(keys), width)


def write(folder, keys):
    path = folder / "bloom.bin"
    with LocalStorage().open_sink(path) as sink:
        write_bloom(sink, keys)
        return path, sink.finish()


def written(folder, keys):
    """The filter of a file that was written and read."""
    path, ref = write(folder, keys)
    return BloomFilter(path, read_verified(LocalStorage(), path, ref))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", [0, 1, 17, 3000])
def test_no_key_of_the_filter_is_denied(tmp_path, width, count):
    """Neither by the whole-array probe nor by the single one; and the two agree on strangers."""
    keys, strangers = keys_of(width, count, 1), keys_of(width, 300, 2)
    bloom = written(tmp_path, keys)
    assert bloom.key_count == len(keys)
    assert bloom.may_contain(keys).all()
    assert all(bloom.may_contain_one(key, width) for key in list(keys)[:200])
    answers = bloom.may_contain(strangers)
    assert answers.tolist() == [bloom.may_contain_one(key) for key in strangers]
    if count == 0:
        assert not answers.any()


@pytest.mark.parametrize("width", [8, 12, None])
def test_false_positives_stay_near_one_in_750(width):
    """16 bits per key; consecutive keys are no worse than random ones."""
    numbers = np.arange(200_000)
    everything = [int(n).to_bytes(width or 9, "big") for n in numbers]
    bloom = BloomFilter("x", build_bloom(KeyArray.from_bytes(everything[:100_000], width)))
    strangers = KeyArray.from_bytes(everything[100_000:], width)
    assert 0.0005 < bloom.may_contain(strangers).mean() < 0.002
    assert bloom.nbytes == 200_000


def test_the_bytes_of_the_format_are_those_in_its_docstring():
    """The worked example: int64 1, encoded."""
    content = build_bloom(KeyArray.from_bytes([bytes.fromhex("8000000000000001")], 8))
    assert content[:24].hex() == "6b7564626c6f6f6d01000000010000000100000000000000"
    assert content[32:].hex(" ", 4) == (
        "01000000 02000000 00000040 00080000 00020000 00000001 00002000 00000001"
    )


def test_every_truncation_and_flipped_bit_is_corruption():
    """The content checks itself; readers compare it with the reference before that."""
    whole = build_bloom(keys_of(4, 100, 1))
    damaged = [whole[:length] for length in (0, 7, 31, 32, len(whole) - 1)]
    for position in range(len(whole)):
        damaged.append(bytearray(whole))
        damaged[-1][position] ^= 1 << position % 8
    for content in damaged:
        with pytest.raises(CorruptionError, match=r"b\.bin"):
            BloomFilter("b.bin", bytes(content))


def test_blocks_that_a_reader_has_verified_are_not_read():
    """A probe touches one cache line of a map; the header and the length are still checked."""
    keys = keys_of(8, 3000, 1)
    content = bytearray(build_bloom(keys))
    content[-1] ^= 1
    assert BloomFilter("b.bin", bytes(content), is_verified=True).key_count == len(keys)
    with pytest.raises(CorruptionError, match=r"b\.bin: header CRC"):
        BloomFilter("b.bin", b"%s\1%s" % (content[:20], content[21:]), is_verified=True)


def test_a_newer_format_version_is_refused():
    content = bytearray(build_bloom(keys_of(4, 10, 1)))
    content[8] = 2
    content[28:32] = zlib.crc32(content[:28]).to_bytes(4, "little")
    with pytest.raises(FormatVersionError, match=r"b\.bin.*version 2.*upgrade"):
        BloomFilter("b.bin", bytes(content))


def test_threads_share_one_filter(tmp_path):
    keys = keys_of(8, 50_000, 1)
    bloom, answers = written(tmp_path, keys), []

    def work():
        answers.append(bool(bloom.may_contain(keys).all()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [True] * 4
