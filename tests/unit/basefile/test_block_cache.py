"""The block cache against a model, and its limits."""

import os
import random
import signal
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from kudulite.basefile import block_cache
from kudulite.basefile.block_cache import (
    BlockCache,
    VerifiedParts,
    block_cache_bytes,
    compacted,
    plain,
)
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.storage import FileRef


def test_the_least_recently_used_value_leaves_first():
    """A get makes a value young; the capacity is never passed."""
    cache = BlockCache(LocalStorage(), 400)
    for key in "abcd":
        cache.put(key, key.upper(), 100)
    assert cache.get("a") == "A"
    cache.put("e", "E", 100)
    assert cache.get("b") is None
    assert [cache.get(key) for key in "acde"] == ["A", "C", "D", "E"]
    assert cache.statistics.size_bytes == 400
    assert cache.statistics.eviction_count == 1


def test_a_value_above_a_quarter_of_the_capacity_is_not_kept():
    """It is handed out by get_or_load, and an older value of that key is gone."""
    cache = BlockCache(LocalStorage(), 400)
    cache.put("a", "old", 10)
    cache.put("a", "big", 101)
    assert cache.get("a") is None
    assert cache.get_or_load("a", lambda: ("big", 101)) == "big"
    assert len(cache) == 0
    cache.put("a", "fits", 100)
    assert cache.get("a") == "fits"


def test_an_operation_leaves_what_it_has_used_itself():
    """Values of earlier operations make room; an operation larger than the cache finds a part."""
    cache = BlockCache(LocalStorage(), 1000)
    for key in "abcd":
        cache.put(key, key, 100)
    found = []
    for _ in range(3):
        has_room = cache.begin_turn()
        assert cache.get("d") == "d"
        for number in range(20):
            if cache.get(number) is not None:
                found.append(number)
            elif has_room(100):
                cache.put(number, str(number), 100)
    assert found == [*range(9)] * 2
    assert [cache.get(key) for key in "abc"] == [None] * 3 and cache.get("d") == "d"
    assert not has_room(100) and cache.begin_turn()(1000)
    assert not cache.begin_turn()(1001)


def test_a_cache_of_no_capacity_keeps_nothing_that_has_a_size():
    cache = BlockCache(LocalStorage(), 0)
    assert cache.get_or_load("a", lambda: (1, 1)) == 1
    assert cache.get("a") is None


def test_get_or_load_loads_once_and_forgets_a_failed_load():
    """An error of the loader reaches the caller and the next call loads again."""
    cache = BlockCache(LocalStorage(), 1000)
    calls = []

    def load():
        calls.append(1)
        if len(calls) == 1:
            raise OSError("disk")
        return "value", 10

    with pytest.raises(OSError, match="disk"):
        cache.get_or_load("k", load)
    assert cache.get_or_load("k", load) == "value"
    assert cache.get_or_load("k", load) == "value"
    assert len(calls) == 2


def test_values_that_cannot_be_counted_are_refused():
    cache = BlockCache(LocalStorage(), 10)
    with pytest.raises(ValueError, match="None"):
        cache.put("k", None, 1)
    with pytest.raises(ValueError, match="-1"):
        cache.put("k", 1, -1)
    with pytest.raises(ValueError, match="negative"):
        BlockCache(LocalStorage(), -1)


def as_tuple(key: object) -> tuple:
    """A key that begins with its path."""
    return key if isinstance(key, tuple) else (key,)


@pytest.mark.parametrize("seed", range(5))
def test_random_operations_equal_a_list_model(seed):
    """The model is a list in order of use."""
    rng = random.Random(seed)
    cache, model = BlockCache(LocalStorage(), 1000), []
    for step in range(2000):
        path = f"f{rng.randrange(10)}"
        key = rng.choice([path, (path, rng.randrange(3)), rng.randrange(10)])
        old = next((entry for entry in model if entry[0] == key), None)
        if rng.random() < 0.5:
            assert cache.get(key) == (old[1] if old else None), f"seed {seed} step {step}"
            if old:
                model.remove(old)
                model.append(old)
        elif rng.random() < 0.1:
            cache.remove(key)
            model = [entry for entry in model if entry[0] != key]
        elif rng.random() < 0.05:
            cache.remove_files([path, "f"])
            model = [entry for entry in model if as_tuple(entry[0])[0] != path]
        elif rng.random() < 0.02:
            cache.remove_below("f1")
            model = [entry for entry in model if as_tuple(entry[0])[0] != "f1"]
        else:
            nbytes = rng.randrange(0, 300)
            cache.put(key, step, nbytes)
            model = [entry for entry in model if entry[0] != key]
            if nbytes <= 250:
                while sum(entry[2] for entry in model) + nbytes > 1000:
                    model.pop(0)
                model.append((key, step, nbytes))
        assert cache.statistics.size_bytes == sum(entry[2] for entry in model)
        assert len(cache) == len(model)
        assert set().union(*cache._keys_of.values()) == {entry[0] for entry in model}


def test_threads_share_one_cache():
    """Every thread sees the right value of each key, and the size stays under the capacity."""
    cache, errors = BlockCache(LocalStorage(), 2000), []

    def work(seed):
        rng = random.Random(seed)
        for _ in range(3000):
            key = rng.randrange(40)
            if cache.get_or_load(key, lambda key=key: (key * 7, 100)) != key * 7:
                errors.append(key)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    statistics = cache.statistics
    assert statistics.size_bytes == 100 * statistics.entry_count <= 2000
    assert statistics.hit_count + statistics.miss_count == 12000


def test_clear_empties_and_keeps_the_counters():
    cache = BlockCache(LocalStorage(), 100)
    cache.put("a", 1, 10)
    cache.get("a")
    cache.clear()
    assert (len(cache), cache.statistics.size_bytes, cache.statistics.hit_count) == (0, 0, 1)


def test_a_forked_child_begins_with_an_empty_cache():
    """Whatever the threads of its parent were doing: nobody gives a lock of theirs back."""
    cache = BlockCache(LocalStorage(), 400)
    cache.put("a", "A", 10)
    with cache._lock:  # as of another thread
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            cache.put("b", "B", 10)
            os._exit(0 if (cache.get("a"), cache.get("b")) == (None, "B") else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cache.get("a") == "A"


COUNT = 20_000
EVERY_THIRD = np.arange(COUNT) % 3 == 0
ARRAYS = {
    "narrow": (pa.array(np.arange(COUNT) % 100 - 50), 1),
    "bounds": (pa.array([-(2**31), 2**31 - 1] * (COUNT // 2), pa.int64()), 4),
    "beyond": (pa.array([0, 2**31] * (COUNT // 2), pa.int64()), 8),
    "some null": (pa.array(np.arange(COUNT) % 5, pa.int32(), mask=EVERY_THIRD), 1.2),
    "all null": (pa.nulls(COUNT, pa.int64()), 8.2),
    "few texts": (pa.array(["", "a", None, "longer"] * (COUNT // 4)), 1.2),
    "few at first": (pa.array(["a"] * (COUNT - 200) + [str(i) for i in range(200)]), 5.1),
    "zeros": (pa.array([0.0, -0.0, np.nan, 1.5] * (COUNT // 4)), 1.1),
    "many": (pa.array(np.random.default_rng(1).random(COUNT)), 8),
    "lists": (pa.array([[1], []] * (COUNT // 2)), 8.1),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_compacted_values_take_less_memory_and_come_back(name):
    """Bit by bit, also those of a slice and those taken out."""
    array, bytes_max = ARRAYS[name]
    kept = compacted(array)
    assert kept.nbytes <= bytes_max * COUNT
    numbers = pa.array([7, 3, 9000, 19_999])
    for expected, found in (
        (array, kept),
        (array.slice(100, 9000), kept.slice(100, 9000)),
        (array.take(numbers), kept.take(numbers)),
    ):
        (back,) = plain([found], [array.type])
        assert back.type == array.type
        assert repr(back.to_pylist()) == repr(expected.to_pylist())


def test_a_page_is_kept_as_it_is_and_a_slice_as_a_copy():
    """Short reads are not slowed down; the rest of an array is freed."""
    page = pa.array(np.zeros(8192, np.int64))
    assert compacted(page) is page
    part = compacted(pa.array(np.arange(COUNT)).slice(10, 100))
    assert (part.nbytes, part.get_total_buffer_size()) == (800, 800)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("max\n", None), ("536870912\n", 32 << 20), (f"{1 << 62}\n", None), ("", None)],
)
def test_the_capacity_follows_the_limit_of_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, expected: int | None
):
    """A sixteenth of it where it is less than the machine's memory."""
    monkeypatch.setattr(block_cache, "_MEMORY_LIMITS", (tmp_path / "none", tmp_path / "limit"))
    usual = block_cache_bytes()
    (tmp_path / "limit").write_text(limit)
    assert block_cache_bytes() == (usual if expected is None else expected)


# -- verified parts


REF = FileRef("f", 10, 7)


def test_verified_parts_are_those_of_one_file():
    """Another path, length or checksum is another file."""
    verified = VerifiedParts()
    verified.add("a/f", REF)
    assert verified.has("a/f", REF)
    for path, ref in (
        ("b/f", REF),
        ("a/f", FileRef("f", 11, 7)),
        ("a/f", FileRef("f", 10, 8)),
    ):
        assert not verified.has(path, ref)


def test_verified_parts_equal_a_set():
    """All of the parts that are asked for must have been added, in one call or in several."""
    rng, verified, model = random.Random(1), VerifiedParts(), set()
    for _ in range(300):
        parts = {rng.randrange(60) for _ in range(rng.randrange(1, 4))}
        bits = sum(1 << part for part in parts)
        assert verified.has("f", REF, bits) == (parts <= model)
        if rng.random() < 0.2:
            verified.add("f", REF, bits)
            model |= parts


def test_the_memory_of_verified_parts_is_bounded(monkeypatch):
    """With too many files, all are verified anew."""
    monkeypatch.setattr(block_cache, "_VERIFIED_FILES_MAX", 3)
    verified = VerifiedParts()
    for path in "abcd":
        verified.add(path, REF)
    assert [path for path in "abcd" if verified.has(path, REF)] == ["d"]
