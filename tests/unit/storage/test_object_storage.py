"""ObjectStorage where a store answers late, wrongly or not at all, and after a fork."""

from __future__ import annotations

import errno
import multiprocessing
import pickle
import random
import threading
import traceback
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from kudulite.errors import CorruptionError, NotSupportedError, OptionError, StorageError
from kudulite.storage import object_reader, object_storage
from kudulite.storage.address import parse_address
from kudulite.storage.object_storage import PUT_BYTES_MAX, ObjectStorage, object_storage_of
from kudulite.storage.storage import FileRef
from tests.support.doubles.counting_library import CountingLibrary
from tests.support.doubles.faulty_library import MODULES, FaultyLibrary, RandomFaults
from tests.support.tiers import tiered

ROOT = Path("memory:/bucket")


@pytest.fixture
def storage() -> ObjectStorage:
    """Objects in memory."""
    return ObjectStorage(MemoryStore(), ROOT)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyLibrary]:
    """The library, which fails as it is bidden."""
    double = FaultyLibrary()
    for module in MODULES:
        monkeypatch.setattr(module, "obstore", double)
    monkeypatch.setattr(object_storage, "_TRY_PAUSE_SECONDS", 0.0)
    yield double


def test_an_answer_that_is_lost_is_no_lost_race(storage: ObjectStorage, library: FaultyLibrary):
    """The library tries again and learns that the object exists."""
    library.next_puts = ["lost", "lost"]
    assert storage.put_if_absent(ROOT / "1", b"ours")
    assert storage.put(ROOT / "a", b"ours").length == 4
    assert library.next_puts == []
    assert not storage.put_if_absent(ROOT / "1", b"theirs")
    assert storage.read(ROOT / "1") == b"ours"


def test_a_refusal_of_an_object_that_is_not_there_is_tried_again(
    storage: ObjectStorage, library: FaultyLibrary
):
    """As S3's 409, for two requests at the same time; without an end it is an error."""
    library.next_puts = ["refused"] * 3
    assert storage.put_if_absent(ROOT / "1", b"ours")
    library.next_puts = ["refused"] * 100
    with pytest.raises(StorageError, match="refused it 20 times as existing, and does not have it"):
        storage.put_if_absent(ROOT / "2", b"ours")
    assert not storage.exists(ROOT / "2")


def test_a_store_that_replaces_what_exists_is_refused(
    storage: ObjectStorage, library: FaultyLibrary
):
    """Before anything is written; one that does not is asked once, and keeps nothing of it."""
    library.next_puts = ["", "replaced"]
    with pytest.raises(NotSupportedError, match="does not refuse to put an object that exists"):
        storage.new_place(ROOT / "tables" / "t")
    assert storage.entries(ROOT) == []
    storage.new_place(ROOT / "tables" / "t")
    library.next_puts = ["replaced"]
    storage.new_place(ROOT / "tables" / "t")
    assert (library.next_puts, storage.entries(ROOT)) == (["replaced"], [])


@tiered("seed", range(20))
def test_one_of_many_wins_whatever_is_lost(
    storage: ObjectStorage, library: FaultyLibrary, seed: int
):
    """Eight threads put numbers in turn; each number is won once, by the one whose bytes it has."""
    library.plan, numbers = RandomFaults(seed, hidden=0.75, errors=0.0), 40
    won: dict[int, list[bytes]] = {number: [] for number in range(numbers)}

    def put_all(name: int) -> None:
        for number in range(numbers):
            content = f"{name} {number}".encode()
            if storage.put_if_absent(ROOT / str(number), content):
                won[number].append(content)

    threads = [threading.Thread(target=put_all, args=[name]) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert library.fault_count > numbers
    assert {n: [storage.read(ROOT / str(n))] for n in range(numbers)} == won


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> CountingLibrary:
    """The library, which counts."""
    return CountingLibrary.installed(monkeypatch)


REF = FileRef("a", 10, zlib.crc32(b"0123456789"))
READS: dict[str, tuple[Callable[[ObjectStorage], object], dict[str, int]]] = {
    "whole": (lambda s: s.read(ROOT / "a"), {"get": 1}),
    "opened": (lambda s: s.open_whole(ROOT / "a", REF), {"get": 1}),
    "there": (lambda s: s.exists(ROOT / "a"), {"head": 1}),
    "not there": (lambda s: s.exists(ROOT / "b"), {"head": 1}),
    "length": (lambda s: s.read_ranges(ROOT / "a", []), {"head": 1}),
    "a range": (lambda s: s.read_ranges(ROOT / "a", [(2, 3)]), {"get": 1}),
    "up to the end": (lambda s: s.read_ranges(ROOT / "a", [(2, None)]), {"get": 1}),
    "the end": (lambda s: s.read_ranges(ROOT / "a", [(-4, None)]), {"get": 1}),
    "two ranges": (lambda s: s.read_ranges(ROOT / "a", [(0, 1), (5, None)]), {"get": 2}),
    "behind the end": (lambda s: s.read_ranges(ROOT / "a", [(10, None)]), {"get": 1, "head": 1}),
    "by ranges": (lambda s: s.open_ranges(ROOT / "a", REF).read([(0, 1), (9, 10)]), {"get": 1}),
}


@pytest.mark.parametrize("name", READS)
def test_a_read_is_one_request(storage: ObjectStorage, counting: CountingLibrary, name: str):
    """The length of the object is in its answer."""
    storage.put(ROOT / "a", b"0123456789")
    counting.clear()
    read, counts = READS[name]
    read(storage)
    assert counting.counts == counts


def test_many_parts_of_an_object_are_one_request_unless_they_are_large(
    storage: ObjectStorage, counting: CountingLibrary, monkeypatch: pytest.MonkeyPatch
):
    """The library joins those that are near each other; large ones come side by side."""
    monkeypatch.setattr(object_reader, "_REQUEST_BYTES", 1 << 20)
    content = random.Random(4).randbytes(3 << 20)
    ref = storage.put(ROOT / "a", content)
    source = storage.open_ranges(ROOT / "a", ref)
    source.read([(0, 10)])
    counting.clear()
    parts = [(start, start + 1_000) for start in range(0, 2 << 20, 4_000)]
    assert source.read(parts) == [pa.py_buffer(content[start:stop]) for start, stop in parts]
    assert counting.counts == {"get_ranges": 1}
    counting.clear()
    assert source.read([(0, 1 << 20), (2 << 20, (2 << 20) + 5)])[0].size == 1 << 20
    assert counting.counts == {"get_ranges": 2}
    counting.clear()
    assert storage.open_whole(ROOT / "a", ref).content().to_pybytes() == content
    assert counting.counts == {"get": 3}


def test_a_store_without_ranges_at_the_end_is_asked_for_the_length(
    storage: ObjectStorage, library: FaultyLibrary
):
    """As Azure."""
    storage.put(ROOT / "a", b"0123456789")
    library.next_gets = [exceptions.NotSupportedError("no suffix")]
    assert storage.read_ranges(ROOT / "a", [(-3, None)]) == (10, [b"789"])
    library.next_gets = [exceptions.NotSupportedError("no suffix")]
    assert storage.read_ranges(ROOT / "a", [(-30, 2)]) == (10, [b"01"])


def test_an_answer_that_is_too_short_is_an_error(storage: ObjectStorage, library: FaultyLibrary):
    """The library does not compare the length with what it has received."""
    ref = storage.put(ROOT / "a", b"0123456789" * 20_000)
    source = storage.open_ranges(ROOT / "a", ref)
    source.read([(0, 1)])
    library.is_cut = True
    for read in (
        lambda: storage.read(ROOT / "a"),
        lambda: storage.read_ranges(ROOT / "a", [(0, 3)]),
        lambda: storage.open_whole(ROOT / "a", ref),
        lambda: source.read([(5, 25)]),
        lambda: storage.open_ranges(ROOT / "a", ref).read([(ref.length - 5, ref.length)]),
    ):
        with pytest.raises(StorageError, match="memory:/bucket/a: the store sent .* bytes where"):
            read()


def test_an_object_that_became_shorter_is_an_error(storage: ObjectStorage):
    """The library itself fails then, with what is no Exception."""
    ref = storage.put(ROOT / "a", b"x" * 300_000)
    source = storage.open_ranges(ROOT / "a", ref)
    source.read([(0, 1)])
    storage.put_hint(ROOT / "a", b"y" * 10)
    with pytest.raises(StorageError, match="cannot read memory:/bucket/a"):
        source.read([(5, 9), (100, 200)])
    with pytest.raises(StorageError, match="cannot read memory:/bucket/a"):
        source.read([(100, 200)])
    with pytest.raises(CorruptionError, match="10 bytes on disk, expected 300000"):
        storage.open_whole(ROOT / "a", ref)


def test_a_long_object_goes_in_parts(storage: ObjectStorage):
    """From a temporary file, not from memory; an error before its end leaves nothing."""
    block = b"x" * (1 << 20)
    count = PUT_BYTES_MAX // len(block) + 1
    with storage.open_sink(ROOT / "long") as sink:
        for _ in range(count):
            sink.write(block)
        ref = sink.finish()
    assert (ref.length, storage.length(ROOT / "long")) == (count << 20, count << 20)
    assert storage.read_ranges(ROOT / "long", [(ref.length - 1, None)])[1] == [b"x"]


def test_the_library_is_not_used_after_a_fork(storage: ObjectStorage):
    """A request would hang there. One that is spawned may use the store."""
    storage.put(ROOT / "a", b"x")
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_read, args=[storage, theirs])
    process.start()
    assert ours.poll(60)
    found = ours.recv()
    process.join()
    assert isinstance(found, StorageError) and found.errno == errno.EDEADLK
    assert "had used an object store when this one" in str(found)


def _read(storage: ObjectStorage, answer: Any) -> None:
    try:
        answer.send(storage.read(ROOT / "a"))
    except StorageError as error:
        answer.send(error)


ERRORS: dict[str, tuple[Exception, int, str]] = {
    "permission": (exceptions.PermissionDeniedError("no access to it\nmore"), errno.EACCES, "no"),
    "anything": (
        exceptions.GenericError("HTTP 500\nDebug: {...}"),
        errno.EIO,
        "HTTP 500(; it is not known .*)?$",
    ),
    "a signed address": (
        exceptions.GenericError("GET https://a.b/c?sig=SECRET&x=1 failed"),
        errno.EIO,
        r"https://a.b/c\?… failed(; it is not known .*)?$",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize(
    "call",
    [
        lambda storage: storage.read(ROOT / "a"),
        lambda storage: storage.put(ROOT / "a", b""),
        lambda storage: storage.put_hint(ROOT / "a", b""),
        lambda storage: storage.length(ROOT / "a"),
        lambda storage: storage.exists(ROOT / "a"),
        lambda storage: storage.entries(ROOT),
        lambda storage: list(storage.names_below(ROOT)),
        lambda storage: storage.delete(ROOT / "a"),
    ],
)
def test_errors_of_a_store_name_the_object_and_no_secret(
    storage: ObjectStorage,
    library: FaultyLibrary,
    name: str,
    call: Callable[[ObjectStorage], object],
):
    """The first line of the library's text, without the query of an address."""
    error, number, text = ERRORS[name]
    library.error = error
    with pytest.raises(StorageError, match=text) as found:
        call(storage)
    assert found.value.errno in (number, errno.EINPROGRESS) and str(ROOT) in str(found.value)
    assert "SECRET" not in str(found.value)


OPTIONS = {
    "aws_access_key_id": "id",
    "aws_secret_access_key": "SECRET",
    "aws_endpoint_url": "https://h",
    "timeout": "3s",
    "max_retries": "2",
}


def test_a_storage_shows_no_secret_and_is_one_in_each_process():
    """Its repr has the address; pickled, it is its address with the options that were given."""
    address = parse_address("s3://b/prefix", OPTIONS).storage
    storage = object_storage_of(address)
    assert (repr(storage), str(storage.root)) == ("<object storage s3://b>", "s3://b")
    assert storage.address == address and "SECRET" not in f"{address!r} {address}"
    assert pickle.loads(pickle.dumps(storage)) is storage
    assert storage is object_storage_of(parse_address("s3a://b/other", OPTIONS).storage)
    assert storage is not object_storage_of(parse_address("s3://b").storage)
    with pytest.raises(NotSupportedError, match="s3://b is on an object store"):
        _ = storage.directory


def test_a_storage_without_an_address_is_pickled_as_its_store():
    """One that a program has made of a store of its own."""
    storage = ObjectStorage(S3Store("b", region="eu"), ROOT)
    assert pickle.loads(pickle.dumps(storage)).root == ROOT
    assert storage.address.root == ROOT


STORES = {
    "s3": ("s3://b/x", {}, S3Store),
    "with connection options": ("s3://b/x", {"aws_region": "eu", **OPTIONS}, S3Store),
    "gs": ("gs://b/x", {"google_skip_signature": "true"}, GCSStore),
    "az": ("az://c/x", {"azure_storage_account_name": "a"}, AzureStore),
    "abfss": ("abfss://c@a.dfs.core.windows.net/x", {"account_key": "U0VDUkVU"}, AzureStore),
}


@pytest.mark.parametrize("name", STORES)
def test_each_service_has_its_store(name: str):
    """Made of an address and its options."""
    given, options, kind = STORES[name]
    storage = object_storage_of(parse_address(given, options).storage)
    assert type(storage._store) is kind
    assert storage._name(parse_address(given).path / "t" / "1.json") == "x/t/1.json"


REFUSED = {
    "no account": (
        "az://c",
        {},
        "az://c: .*Account must be specified; give the storage option azu",
    ),
    "no key": ("az://c", {"account_name": "a", "account_key": "SECRET"}, "Invalid Access Key"),
    "half a key": ("s3://b", {"aws_secret_access_key": "SECRET"}, "Missing AccessKeyId"),
    "no file": ("gs://b", {"google_service_account": "/no/such/file"}, "/no/such/file: No such"),
    "no JSON": ("gs://b", {"google_service_account_key": "SECRET"}, "decode service account"),
    "no algorithm": ("s3://b", {"aws_checksum_algorithm": "x"}, "not a valid checksum algorithm"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_the_library_refuses(name: str):
    """With its reason, the address, and no secret, also not in the traceback."""
    given, options, text = REFUSED[name]
    with pytest.raises(OptionError, match=text) as found:
        object_storage_of(parse_address(given, options).storage)
    shown = "".join(traceback.format_exception(found.value))
    assert str(found.value).startswith(f"{given}: ") and "SECRET" not in shown


def test_the_credentials_of_the_environment_are_found(monkeypatch: pytest.MonkeyPatch):
    """As the library finds them: half of a pair is an error of it."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
    with pytest.raises(OptionError, match="s3://found: .*Missing AccessKeyId"):
        object_storage_of(parse_address("s3://found").storage)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    assert object_storage_of(parse_address("s3://found").storage).address.options.items == ()


def test_probes_are_put_where_the_tables_are(storage: ObjectStorage, library: FaultyLibrary):
    """A process may have no right to put an object elsewhere in the bucket."""
    storage.new_place(ROOT / "tables" / "t")
    assert list(storage.files_below(ROOT / "tables" / "t")) == []  # no age to compare
    assert not storage.is_held(ROOT / "tables" / "t" / "none")
    assert library.names and {name.rpartition("/")[0] for name in library.names} == {"tables"}
    storage.put(ROOT / "tables" / "t" / "object", b"")
    library.names.clear()
    assert storage.is_held(ROOT / "tables" / "t" / "object")
    assert [name.rpartition("/")[0] for name in library.names] == ["tables/t"]


def test_ages_are_by_the_clock_of_the_store(
    storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch, library: FaultyLibrary
):
    """Ours may be wrong; a process that may not put anything takes its own."""
    storage.put(ROOT / "a", b"x")
    now = object_storage.time.time
    monkeypatch.setattr(object_storage.time, "time", lambda: now() + 10_000)
    (found,) = storage.files_below(ROOT)
    assert -5 < found.age_seconds < 60
    library.next_puts = [exceptions.PermissionDeniedError("no")]
    (found,) = ObjectStorage(storage._store, ROOT).files_below(ROOT)
    assert 9_000 < found.age_seconds < 11_000


def test_an_unanswered_put_is_looked_into(storage: ObjectStorage, library: FaultyLibrary):
    """Ours, somebody else's, or put once more where nothing is there."""
    silent = exceptions.GenericError("timed out")
    library.next_puts = [silent]
    assert storage.put_if_absent(ROOT / "1", b"ours")
    library.next_puts = [silent, silent]
    assert storage.put_if_absent(ROOT / "1", b"ours")
    assert not storage.put_if_absent(ROOT / "1", b"theirs")
    library.next_puts = ["late", "unanswered"]
    assert storage.put_if_absent(ROOT / "2", b"ours")


@pytest.mark.parametrize("faults", [["undone", "undone"], ["late", "late"], ["unanswered"]])
def test_an_error_says_that_an_outcome_is_not_known(
    storage: ObjectStorage, library: FaultyLibrary, faults: list[str]
):
    """Where the put and the look for it are not answered; the same call decides it."""
    library.next_puts = list[str | Exception](faults)
    if len(faults) == 1:
        library.next_gets = [exceptions.GenericError("timed out")]
    text = "memory:/bucket/1: 503 .* it is not known whether"
    with pytest.raises(StorageError, match=text) as found:
        storage.put_if_absent(ROOT / "1", b"ours")
    assert found.value.errno == errno.EINPROGRESS
    assert storage.put_if_absent(ROOT / "1", b"ours")
    for _ in range(20):
        storage.exists(ROOT / "1")  # the late ones are done meanwhile
    assert storage.read(ROOT / "1") == b"ours"
    assert not storage.put_if_absent(ROOT / "1", b"theirs")


def test_an_error_that_is_known_says_nothing_of_doubt(
    storage: ObjectStorage, library: FaultyLibrary
):
    """A store that refuses has not acted."""
    library.next_puts = [exceptions.GenericError("PUT: 403 Forbidden")] * 2
    with pytest.raises(StorageError, match="403 Forbidden$"):
        storage.put_if_absent(ROOT / "1", b"ours")


def test_a_writer_finds_a_store_that_replaces_by_an_object_that_is_there(
    storage: ObjectStorage, library: FaultyLibrary
):
    """Once in a process, and with the object's own content."""
    storage.put(ROOT / "1", b"first")
    storage.check_refuses(ROOT / "gone")
    library.names.clear()
    storage.check_refuses(ROOT / "1")
    storage.check_refuses(ROOT / "1")
    assert library.names == ["1"]
    other = ObjectStorage(storage._store, ROOT)
    library.next_puts = ["replaced"]
    with pytest.raises(NotSupportedError, match="does not refuse to put an object that exists"):
        other.check_refuses(ROOT / "1")
    assert storage.read(ROOT / "1") == b"first"
