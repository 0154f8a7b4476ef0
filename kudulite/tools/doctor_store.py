"""Whether an object store is safe for tables: tries the promises that the engine relies on.

    permissions     list, get (404 for what is not there), put, delete
    one of many     a conditional put is refused where there is an object; of several, one wins
    seen at once    content after a put, the list after a put and a delete
    exact           ranges, ends, uploads in parts

All objects are below one new name in the prefix, and are removed at the end. Credentials that may
only read get a report of what they may. A store that cannot be reached, and a wrong key, is an
error.

The rules of a bucket cannot be read here. That it keeps old versions is seen where a put is
answered with a version, but on Google each put is.

**Source**: object_storage.py for what is relied on; Amazon S3, "Conditional writes" and
"GetObject" on 403 in place of 404.
"""

from __future__ import annotations

import contextlib
import errno
import io
import statistics
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kudulite.errors import KuduliteError, StorageError
from kudulite.storage.storage import FileRef
from kudulite.storage.storage_options import GOOGLE
from kudulite.tools.doctor import Diagnosis, Finding, FoundWrongError, expect

if TYPE_CHECKING:
    from kudulite.storage.object_storage import ObjectStorage

# Objects are uploaded in parts of 5 MiB.
_PARTS_BYTES = (5 << 20) + 1000
_RACES, _PUTTERS = 4, 8
_TIMED = 8
_CLOCK_SECONDS_MAX = 60.0
_UNSEEN = (
    "rules that expire or move objects, Object Lock, replication, and what other credentials may;"
    " docs/object_stores.md says what they must not do"
)


class _WarningFound(Exception):
    """A test has ended with a result to know about, which is no reason against tables."""


class _Objects:
    """The objects of one diagnosis, in a folder of their own below `root`."""

    def __init__(self, storage: ObjectStorage, root: Path) -> None:
        self.storage, self.root = storage, root
        self.folder = root / f".kudulite-doctor-{uuid.uuid4().hex}"
        self._used: set[Path] = set()

    def path(self, name: str) -> Path:
        """Return the path of an object, which is deleted at the end."""
        path = self.folder / name
        self._used.add(path)
        return path

    def remove(self) -> None:
        """Delete all objects. Raises StorageError if one cannot be deleted."""
        self.storage.side_by_side(self.storage.delete, sorted(self._used))


def diagnose_store(storage: ObjectStorage, root: Path) -> Diagnosis:
    """Try the store of a directory of tables; the objects made for it are removed.

    Raises StorageError where there is no store or no bucket, and for a wrong key.
    """
    service = storage.address.service
    kind = "object store" if service is None else service.title
    objects = _Objects(storage, root)
    try:
        findings = list(_findings(objects))
    except BaseException:  # also Ctrl-C
        with contextlib.suppress(StorageError):
            objects.remove()
        raise
    has_put = any(found.name == "put" and found.is_ok for found in findings)
    with _finding("clean up", findings) if has_put else contextlib.suppress(StorageError):
        objects.remove()
    findings.append(Finding("not seen", True, _UNSEEN))
    return Diagnosis(str(root), kind, True, ()).joined(findings)


def _findings(objects: _Objects) -> Iterator[Finding]:
    for name, check in READ_CHECKS.items():
        yield _found(name, check, objects)
    put = _found("put", _put, objects)
    yield put
    if not put.is_ok:
        yield Finding("writes", False, "not tested, because nothing can be put", is_warning=True)
        return
    for name, check in WRITE_CHECKS.items():
        yield _found(name, check, objects)


def _found(name: str, check: Callable[[_Objects], str], objects: _Objects) -> Finding:
    found: list[Finding] = []
    with _finding(name, found):
        found.append(Finding(name, True, check(objects)))
    return found[0]


@contextlib.contextmanager
def _finding(name: str, findings: list[Finding]) -> Iterator[None]:
    """Add a finding for what a test raises."""
    try:
        yield
    except _WarningFound as warning:
        findings.append(Finding(name, False, str(warning), is_warning=True))
    except (KuduliteError, FoundWrongError) as error:
        if name == "list" and not _is_of_permissions(error):
            raise  # the first request: no server, no bucket, or a wrong key
        text = str((isinstance(error, StorageError) and error.strerror) or error)
        if _number(error) == errno.EACCES and name in _ADVICE:
            text = f"{text.rstrip('.')}; {_ADVICE[name]}"
        findings.append(Finding(name, False, text))


def _is_of_permissions(error: Exception) -> bool:
    return _number(error) == errno.EACCES and not any(code in str(error) for code in _OF_KEYS)


def _number(error: Exception) -> int | None:
    return error.errno if isinstance(error, StorageError) else None


# Answers to every request of a key that is unknown, wrong, too old, or used at a wrong time.
_OF_KEYS = (
    "AuthenticationFailed",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "no credentials were found",
)
_LIST_POLICY = "ListBucket, whose condition s3:prefix has to match the prefix of the tables"
# Of a test that the store does not permit: what needs it.
_ADVICE = {
    "list": f"every process needs the permission {_LIST_POLICY}",
    "get": f"every process needs the permissions GetObject and {_LIST_POLICY}: without one of"
    " them, an object that is not there is answered by 403 in place of 404, and a reader cannot"
    " know which version is the newest",
    "put": "these credentials are good for a reader at most: a writer needs PutObject",
    "delete": "a writer needs the permission DeleteObject",
    "clean up": "objects of this test stay",
}


def _list(objects: _Objects) -> str:
    is_used = objects.storage.is_folder(objects.root)
    return "permitted" if is_used else "permitted; there are no objects at this address yet"


def _get(objects: _Objects) -> str:
    path = objects.path("missing")
    try:
        objects.storage.read(path)
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise
    else:
        raise FoundWrongError(f"{path} was never put, and is there; expected 404")
    expect(objects.storage.facts(path) is None, "HEAD finds an object that was never put")
    return "permitted; an object that is not there is answered by 404"


def _put(objects: _Objects) -> str:
    path = objects.path("put")
    expect(objects.storage.put_if_absent(path, b"first"), "a conditional put of a new name fails")
    return "permitted; a conditional put of a new name is accepted"


def _conditional(objects: _Objects) -> str:
    storage, path = objects.storage, objects.path("put")
    is_accepted = storage.put_if_absent(path, b"second")
    content = storage.read(path)
    expect(
        not is_accepted and content == b"first",
        "a put with If-None-Match: * replaced an object that is there, so of two commits at once"
        " one would be lost; expected a refusal (412); use another store",
    )
    return "refused where there is an object, which keeps its content"


def _one_of_many(objects: _Objects) -> str:
    """Let several threads put each name at once; each has a content of its own."""
    storage = objects.storage
    for race in range(_RACES):
        path = objects.path(f"race-{race}")
        contents = [b"%d" % putter for putter in range(_PUTTERS)]

        def is_won(content: bytes, path: Path = path) -> bool:
            return storage.put_if_absent(path, content)

        wins = storage.side_by_side(is_won, contents)
        winners = [content for content, is_won_by in zip(contents, wins, strict=True) if is_won_by]
        expect(
            winners == [storage.read(path)],
            f"{len(winners)} of {_PUTTERS} puts of one name at once were accepted; expected one,"
            " with its content; use another store",
        )
    return f"gave each of {_RACES} names to one of {_PUTTERS} that put it at once"


def _replaced(objects: _Objects) -> str:
    storage, path = objects.storage, objects.path("replaced")
    for number in range(4):
        content = b"%d" % number * (100 + number)
        storage.put_hint(path, content)
        expect(storage.read(path) == content, "a read after a put has other content")
    return "shows the new content at once"


def _lists(objects: _Objects) -> str:
    storage = objects.storage
    for number in range(4):
        path = objects.path(f"listed/{number}")
        storage.put_if_absent(path, b"%d" % number)
        expect(path in storage.entries(path.parent), "a list does not have an object after its put")
        storage.delete(path)
        expect(path not in storage.entries(path.parent), "a list has an object after its delete")
        expect(storage.facts(path) is None, "an object is there after its delete")
    return "have an object at once after its put, and not after its delete"


def _ranges(objects: _Objects) -> str:
    storage, path = objects.storage, objects.path("ranges")
    content = bytes(range(256)) * 400
    storage.put_if_absent(path, content)
    length = len(content)
    wanted = [(0, 1), (1000, 5000), (length - 10, 100), (-300, None), (-300, 7), (length, 5)]
    found_length, found = storage.read_ranges(path, wanted)
    expect(found_length == length, f"a length of {found_length} bytes, expected {length}")
    for (offset, count), part in zip(wanted, found, strict=True):
        start = length + offset if offset < 0 else offset
        stop = length if count is None else start + count
        expect(part == content[start:stop], f"range {offset}, {count}: other bytes than were put")
    source = storage.open_ranges(path, FileRef(path.name, length, zlib.crc32(content)))
    parts = [(length - 8, length), (10, 20), (60_000, 60_100)]
    for (start, stop), buffer in zip(parts, source.read(parts), strict=True):
        expect(buffer.to_pybytes() == content[start:stop], f"bytes {start} to {stop} are others")
    return "and ends of objects are exact"


def _parts(objects: _Objects) -> str:
    storage, path = objects.storage, objects.path("parts")
    content = uuid.uuid4().bytes * (_PARTS_BYTES // 16)
    storage.put_parts(path, io.BytesIO(content))
    expect(storage.read(path) == content, "an object has other bytes than were uploaded")
    return f"of an object of {len(content) >> 20} MiB are put together"


def _delete(objects: _Objects) -> str:
    storage = objects.storage
    path = objects.path("deleted")
    storage.put_hint(path, b"")
    storage.delete(path)
    expect(storage.facts(path) is None, "an object is there after its delete")
    storage.delete(path)
    storage.delete(objects.path("never there"))
    folder = path.with_name("several")
    for number in range(4):
        storage.put_hint(objects.path(f"several/{number}"), b"")
    storage.delete_below(folder)
    is_gone = not any(storage.names_below(folder).values())
    expect(is_gone, "objects are there after they were deleted together")
    return "permitted, also of objects that are not there, and of several at once"


def _clock(objects: _Objects) -> str:
    path = objects.path("clock")
    before = time.time()
    objects.storage.put_hint(path, b"")
    ahead = objects.storage.facts(path)["last_modified"].timestamp() - before
    if abs(ahead) > _CLOCK_SECONDS_MAX:
        side = "ahead of" if ahead > 0 else "behind"
        raise _WarningFound(
            f"the store's is {abs(ahead):,.0f} s {side} this machine's: stores refuse requests of"
            " a clock that is some minutes wrong; synchronize it"
        )
    return "the store's and this machine's agree to within a few seconds"


def _latency(objects: _Objects) -> str:
    """Time what a commit waits for: a look for a newer entry, and a put."""
    storage = objects.storage

    def put(number: int) -> object:
        return storage.put_if_absent(objects.path(f"timed-{number}"), b"%d" % number * 1000)

    def look(number: int) -> object:
        return storage.facts(objects.path(f"missing-{number}"))

    puts, looks = (_median_seconds(work) for work in (put, look))
    return (
        f"{1000 * looks:.1f} ms for a look, {1000 * puts:.1f} ms for a put: at most about"
        f" {1 / (looks + puts):,.1f} commits of a table in a second, of all writers together"
    )


def _median_seconds(work: Callable[[int], object]) -> float:
    seconds = []
    for number in range(_TIMED):
        begin = time.perf_counter()
        work(number)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def _versions(objects: _Objects) -> str:
    if objects.storage.address.service is GOOGLE:
        return "not seen on this store: look whether the bucket keeps them, or deleted objects"
    version = objects.storage.facts(objects.path("put"))["version"]
    if version not in (None, "null"):
        raise _WarningFound(
            "the bucket keeps them: deleted and purged rows stay there until a rule removes old"
            " versions (NoncurrentVersionExpiration), and so do the objects of this test"
        )
    return "the store names none, so it keeps no deleted objects as such"


READ_CHECKS: dict[str, Callable[[_Objects], str]] = {"list": _list, "get": _get}
WRITE_CHECKS: dict[str, Callable[[_Objects], str]] = {
    "conditional put": _conditional,
    "puts at once": _one_of_many,
    "second put": _replaced,
    "delete": _delete,
    "lists": _lists,
    "ranges": _ranges,
    "parts": _parts,
    "clock": _clock,
    "latency": _latency,
    "versions": _versions,
}
