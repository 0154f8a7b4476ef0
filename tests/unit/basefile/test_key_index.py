"""Key index: equal to a sorted list of keys, in every state of loading, and damage is found."""

import json
import random
import threading
import zlib
from bisect import bisect_left, bisect_right

import numpy as np
import pyarrow as pa
import pytest

from kudulite.basefile import key_index
from kudulite.basefile.key_index import KeyIndex, write_key_index
from kudulite.errors import CorruptionError, FormatVersionError, StorageError
from kudulite.model.key_array import KeyArray
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.storage import FileRef

WIDTHS = [2, 8, 12, None]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """Batches of 64 keys, so that small indexes have many."""
    monkeypatch.setattr(key_index, "BATCH_ROWS", 64)


def some_keys(width, count, seed):
    """Sorted distinct random keys, with NULs and shared prefixes among them."""
    rng = random.Random(seed)
    keys = set()
    while len(keys) < count:
        length = rng.randrange(14) if width is None else width
        keys.add(
            bytes(
                rng.choice(b"\x00\x01\x7f\x80\xff" + bytes([rng.randrange(256)]))
                for _ in range(length)
            )
        )
    return sorted(keys)


def write(folder, keys, width, name="key.arrow"):
    path = folder / name
    with LocalStorage().open_sink(path) as sink:
        write_key_index(sink, KeyArray.from_bytes(keys, width))
        return path, sink.finish()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", [0, 1, 64, 65, 1000])
def test_an_index_is_its_list_of_keys(tmp_path, width, count):
    """Every operation, each on a fresh index and then on one that is loaded in part or whole."""
    keys = some_keys(width, count, 1)
    strangers = [key for key in some_keys(width, 300, 2) if key not in set(keys)]
    file = write(tmp_path, keys, width)
    rowid_of = {key: rowid for rowid, key in enumerate(keys)}
    rng, used = random.Random(3), KeyIndex(LocalStorage(), *file)
    assert (used.row_count, used.width) == (count, width)
    if count:
        header = used._opened.header
        assert (header.first_keys[0], header.last_key) == (keys[0], keys[-1])
    for _ in range(60):
        for index in (used, KeyIndex(LocalStorage(), *file)):
            probes = rng.sample(keys + strangers, rng.randrange(1, rng.choice([4, count + 4])))
            if rng.random() < 0.5:
                probes.sort()
            found = index.find(KeyArray.from_bytes(probes, width))
            assert found.dtype == np.int64
            assert found.tolist() == [rowid_of.get(key, -1) for key in probes]
            probe = rng.choice(probes)
            assert index.find_loaded(probe) in (None, rowid_of.get(probe, -1))
            assert index.find_one(probe) == rowid_of.get(probe, -1)
            assert index.find_loaded(probe) == rowid_of.get(probe, -1)
            start, stop = sorted(rng.randrange(count + 5) for _ in range(2))
            assert list(index.slice(start, stop)) == keys[start:stop]
            if count:
                rowids = np.array([rng.randrange(count) for _ in range(rng.choice([1, 3, 90]))])
                assert list(index.keys(rowids)) == [keys[rowid] for rowid in rowids]


@pytest.mark.parametrize("width", WIDTHS)
def test_batches_are_all_keys_in_every_state_of_loading(tmp_path, width):
    """Nothing loaded, one batch, all of them; reading by batches keeps nothing."""
    keys = some_keys(width, 200, 4)
    index = KeyIndex(LocalStorage(), *write(tmp_path, keys, width))
    for load in (lambda: None, lambda: index.find_one(keys[70]), lambda: index.slice(0, 200)):
        load()
        held = [index._opened.loaded.has(batch) for batch in range(4)]
        found = list(index.batches())
        assert [key for batch in found for key in batch] == keys
        assert [len(batch) for batch in found] == [64, 64, 64, 8]
        assert [index._opened.loaded.has(batch) for batch in range(4)] == held
    assert all(held)
    assert not list(KeyIndex(LocalStorage(), *write(tmp_path, [], width, "empty.arrow")).batches())


@pytest.mark.parametrize("width", WIDTHS)
def test_locate_takes_any_bytes_as_a_bound(tmp_path, width):
    """Shorter and longer ones too: a prefix is smaller than what it begins."""
    keys = some_keys(width, 500, 1)
    bounds = [b"", b"\x00", b"\xff" * 20, *keys[::40], *(key + b"\0" for key in keys[::40])]
    bounds += [key[:-1] for key in keys[::40]] + some_keys(None, 100, 2)
    index = KeyIndex(LocalStorage(), *write(tmp_path, keys, width))
    for bound in bounds:
        assert index.locate(bound, "left") == bisect_left(keys, bound), bound
        assert index.locate(bound, "right") == bisect_right(keys, bound), bound


def test_a_key_of_another_width_is_not_found(tmp_path):
    index = KeyIndex(LocalStorage(), *write(tmp_path, [b"\0\0", b"\0\1"], 2))
    assert [index.find_one(key) for key in (b"", b"\0", b"\0\1", b"\0\1\0")] == [-1, -1, 1, -1]


@pytest.mark.parametrize("step", [1, 1 << 30], ids=["narrow", "wide"])
def test_only_the_batches_of_probes_are_loaded(tmp_path, monkeypatch, step):
    """Each once; nothing is loaded to learn the bounds, or to be sure that a key is loaded."""
    keys = [(number * step).to_bytes(8, "big") for number in range(6400)]
    read, real = [], KeyIndex._read_batch

    def counted(index, opened, batch):
        read.append(batch)
        return real(index, opened, batch)

    monkeypatch.setattr(KeyIndex, "_read_batch", counted)
    index = KeyIndex(LocalStorage(), *write(tmp_path, keys, 8))
    assert (index._opened.header.last_key, index.find_loaded(keys[70])) == (keys[-1], None)
    assert read == []
    index.find_one(keys[70])
    assert (index.find_loaded(keys[71]), index.find_loaded(keys[5000])) == (71, None)
    index.find(KeyArray.from_bytes([keys[70], keys[5000]], 8))
    index.keys(np.array([5001, 71]))
    assert read == [1, 78]
    assert not index.is_whole
    index.find(KeyArray.from_bytes(keys, 8))
    assert sorted(read) == list(range(100))
    assert index.is_whole


def test_integers_in_a_small_span_take_four_bytes(tmp_path):
    """Probes below, between, behind and far from the keys are not found."""
    for first, step in ((0, 1), (1 << 63, 3), ((1 << 64) - 700, 2), (5, (1 << 32) // 320)):
        numbers = [first + step * number for number in range(320)]
        keys = [number.to_bytes(8, "big") for number in numbers]
        file = write(tmp_path, keys, 8, f"{first}.arrow")
        near = {*numbers, *(number + 1 for number in numbers), numbers[0] - 1}
        far = {0, numbers[0] + (1 << 32), numbers[-1] - (1 << 32), (1 << 64) - 1}
        probes = sorted(n for n in near | far if 0 <= n < 1 << 64)
        expected = [numbers.index(n) if n in numbers else -1 for n in probes]
        array = KeyArray.from_bytes([n.to_bytes(8, "big") for n in probes], 8)
        for index in (KeyIndex(LocalStorage(), *file), KeyIndex(LocalStorage(), *file)):
            found = index.find(array).tolist()
            assert found == index.find(array).tolist() == expected
            assert [index.find_one(key) for key in array] == expected
            assert list(index.slice(3, 200)) == keys[3:200]
            assert index.nbytes == 4 * 320
            for key in array:
                for bound in (key, key[:7], key + b"x"):
                    assert index.locate(bound, "left") == bisect_left(keys, bound)
                    assert index.locate(bound, "right") == bisect_right(keys, bound)


def test_a_rowid_that_is_not_there_is_an_index_error(tmp_path):
    index = KeyIndex(LocalStorage(), *write(tmp_path, [b"a", b"b"], None))
    for rowid in (-1, 2):
        with pytest.raises(IndexError, match=r"key\.arrow"):
            index.keys(np.array([0, rowid]))


@pytest.mark.parametrize("keys", [[b"b", b"a"], [b"a", b"a"]])
def test_keys_that_do_not_ascend_strictly_are_never_written(tmp_path, keys):
    with pytest.raises(AssertionError, match="ascend"):
        write(tmp_path, keys, None)


def test_a_missing_file_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match=r"gone\.arrow: it does not exist"):
        KeyIndex(LocalStorage(), tmp_path / "gone.arrow", FileRef("gone.arrow", 64, 0)).find_one(
            b"k"
        )


def test_every_truncation_and_flipped_bit_is_corruption(tmp_path):
    path, ref = write(tmp_path, some_keys(4, 100, 1), 4)
    whole = path.read_bytes()
    damaged = [whole[:length] for length in (0, 5, 100, len(whole) - 1)]
    for position in range(0, len(whole), 3):
        damaged.append(bytearray(whole))
        damaged[-1][position] ^= 1 << position % 8
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(CorruptionError, match=r"key\.arrow"):
            KeyIndex(LocalStorage(), path, ref).find_one(b"k")


def rewritten(folder, *, column=None, **changes):
    """An index of the keys a, b whose metadata lie, with a right checksum."""
    header = {"format_version": 1, "width": 1, "key_count": 2, "first_keys": ["61"]}
    header = {**header, "last_key": "62", **changes}
    column = pa.array([b"a", b"b"], pa.binary(1)) if column is None else column
    schema = pa.schema([("key", column.type)])
    schema = schema.with_metadata({key_index.METADATA_KEY: json.dumps(header)})
    path = folder / "key.arrow"
    path.unlink(missing_ok=True)
    with LocalStorage().open_sink(path) as sink:
        with pa.ipc.new_file(pa.PythonFile(sink, "w"), schema) as writer:
            writer.write_batch(pa.record_batch([column], schema=schema))
        return KeyIndex(LocalStorage(), path, sink.finish())


@pytest.mark.parametrize(
    "changes",
    [
        {"key_count": 3},
        {"key_count": -1},
        {"key_count": 65},
        {"key_count": 1 << 40},
        {"key_count": "x"},
        {"width": 2},
        {"width": None},
        {"first_keys": []},
        {"first_keys": ["zz"]},
        {"first_keys": ["60"]},
        {"last_key": None},
        {"column": pa.array([b"a", None], pa.binary(1))},
        {"column": pa.array([b"aa", b"bb"], pa.binary(2))},
        {"column": pa.array([1, 2])},
    ],
)
def test_metadata_that_contradict_the_keys_are_corruption(tmp_path, changes):
    assert rewritten(tmp_path).find_one(b"b") == 1
    with pytest.raises(CorruptionError, match=r"key\.arrow"):
        rewritten(tmp_path, **changes).find(KeyArray.from_bytes([b"a"], 1))


def test_a_newer_format_version_is_refused(tmp_path):
    with pytest.raises(FormatVersionError, match=r"key\.arrow.*version 2.*upgrade"):
        rewritten(tmp_path, format_version=2).find_one(b"a")


def test_an_arrow_file_of_somebody_else_is_refused(tmp_path):
    path = tmp_path / "other.arrow"
    with LocalStorage().open_sink(path) as sink:
        with pa.ipc.new_file(pa.PythonFile(sink, "w"), pa.schema([("x", pa.int8())])):
            pass
        ref = sink.finish()
    with pytest.raises(CorruptionError, match=r"other\.arrow: an Arrow file, but not a key index"):
        KeyIndex(LocalStorage(), path, ref).find_one(b"k")


def test_a_column_whose_name_is_not_utf_8_is_corruption(tmp_path):
    """Arrow decodes a name when it is asked for, and then raises an error of Python."""
    path, _ = write(tmp_path, [b"a", b"b"], 1)
    content = path.read_bytes().replace(b"key\0", b"\xebey\0")
    path.write_bytes(content)
    with pytest.raises(CorruptionError, match=r"key\.arrow: an Arrow file, but not a key index"):
        KeyIndex(
            LocalStorage(), path, FileRef(path.name, len(content), zlib.crc32(content))
        ).find_one(b"a")


def test_threads_share_one_index_while_it_loads(tmp_path):
    keys = [rowid.to_bytes(8, "big") for rowid in range(5000)]
    file = write(tmp_path, keys, 8)
    array, wrong = KeyArray.from_bytes(keys, 8), []

    def work(index, seed):
        rng = random.Random(seed)
        for _ in range(50):
            rowid = rng.randrange(5000)
            if index.find_one(keys[rowid]) != rowid:
                wrong.append(rowid)
            start = rng.randrange(5000)
            stop = min(start + rng.randrange(3000), 5000)
            if index.find(array.slice(start, stop)).tolist() != list(range(start, stop)):
                wrong.append((start, stop))

    for _ in range(5):
        index = KeyIndex(LocalStorage(), *file)
        threads = [threading.Thread(target=work, args=(index, seed)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_the_first_key_of_a_batch_is_known_without_its_batch(tmp_path, monkeypatch):
    """Plans ask for the first keys of all row groups: that must not load the whole index."""
    keys = some_keys(8, 300, 1)
    index = KeyIndex(LocalStorage(), *write(tmp_path, keys, 8))
    monkeypatch.setattr(KeyIndex, "_read_batch", None)
    for start in range(0, 300, 64):
        assert index.slice(start, start + 1)[0] == keys[start]
