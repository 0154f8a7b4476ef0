"""ObjectStorage: a Storage of objects, on S3, Google Cloud Storage, Azure, or what speaks S3.

    path              s3:/bucket/prefix/metrics/manifest/7.json
    root              s3:/bucket/prefix                            of the store, and of no object
    name              metrics/manifest/7.json                      of the object

There are no folders: a name may have parts, and a "folder" is there while objects have it in front
of their names. An object is durable when it is put, and so is its name.

An answer can be lost. The store has then acted, and the library, which tries again, learns that
the object exists. S3 also says so of a request that it refused because of another one at the same
time. Therefore each refusal is looked into: if the object is not there, it is put again; if it has
the bytes of this call, this call has put it. Where the library gives up without an answer, the
object is looked for, and put once more. If that is not answered, the error says that the outcome is
not known: a request may even be on its way, and act later.

**Invariants**: (1) those of storage.py; (2) two calls of `put_if_absent` never have the same
content: it names its commit. Otherwise both could win.

**Threads**: any. A process that is forked from one that has used a store must not use any: the
threads of the library are not there, and a request would never end. It gets an error.

**Source**: obstore, which is object_store of Apache Arrow's Rust project; conditional puts are its
`mode="create"`.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store

from kudulite.errors import NotSupportedError, OptionError, StorageError
from kudulite.storage.address import StorageAddress
from kudulite.storage.file_cache import FileCache
from kudulite.storage.names import version_of
from kudulite.storage.object_errors import (
    is_bucket,
    is_panic,
    not_conditional,
    reason,
    store_errors,
)
from kudulite.storage.object_lister import ObjectLister
from kudulite.storage.object_path import ObjectPath
from kudulite.storage.object_reader import REQUESTS_AT_ONCE, ObjectReader, side_by_side
from kudulite.storage.open_file import DurableSteps
from kudulite.storage.storage import Directory, FileRef, Listed, S, Source, T, as_path
from kudulite.storage.storage_error import storage_error
from kudulite.storage.storage_options import AZURE, GOOGLE, S3, Service, StorageOptions
from kudulite.storage.table_folders import FOLDERS_NAME, TableFolders

# Up to here a new object is put in one request, and refused if it exists. A longer one is put
# in parts, which cannot be refused; its name is new.
PUT_BYTES_MAX = 64 << 20
# A store that refuses the object and then does not have it is asked so often.
_TRIES_MAX = 20
_TRY_PAUSE_SECONDS = 0.05
_DELETED_AT_ONCE = 1_000
# An operation that has not touched its object for so long has died.
LAST_ENTRY_SECONDS = 3600.0
HELD_SECONDS = 24 * 3600.0
TOUCH_SECONDS = 600.0
_TOUCHED = ".touched"
# Where neither a put nor the look for it was answered.
_DOUBT = (
    "; it is not known whether the store has it, or will have it: look for the change before you"
    " make it again"
)

_STORES: dict[Service | None, Any] = {S3: S3Store, GOOGLE: GCSStore, AZURE: AzureStore}


def _touched(path: Path) -> Path:
    return path.with_name(f"{path.name}{_TOUCHED}")


class ObjectSink:
    """A new object that is being written, in a temporary file of this machine if it is long."""

    def __init__(self, storage: ObjectStorage, path: Path, *, replaces: bool = False) -> None:
        self._storage = storage
        self._replaces = replaces
        self.path = path
        self.closed = False
        self._file = tempfile.SpooledTemporaryFile(max_size=PUT_BYTES_MAX)
        self._length = self._crc32 = 0

    def write(self, data: Any) -> int:
        """Append bytes; return their number. Raises StorageError when this machine refuses."""
        view = memoryview(data).cast("B")
        try:
            self._file.write(view)
        except OSError as error:
            raise storage_error("write a temporary file for", self.path, error) from error
        self._crc32 = zlib.crc32(view, self._crc32)
        self._length += len(view)
        return len(view)

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._length

    def flush(self) -> None:
        """Do nothing: `finish` puts the object."""

    def close(self) -> None:
        """Do nothing: pyarrow closes what it wraps, but only `finish` or `abort` end a sink."""

    def finish(self) -> FileRef:
        """Put the object; return its reference. It is durable, and so is its name."""
        self._file.seek(0)
        if self._length <= PUT_BYTES_MAX and not self._replaces:
            self._storage._create(self.path, self._file.read())
        else:
            self._storage.put_parts(self.path, self._file)
        self.abort()
        return FileRef(self.path.name, self._length, self._crc32)

    def abort(self) -> None:
        """Forget what was written, if `finish` has not been reached."""
        self._file.close()
        self.closed = True

    def __enter__(self) -> ObjectSink:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.abort()


class ObjectHeld:
    """An object that stands for an operation under way."""

    def __init__(self, storage: ObjectStorage, path: Path) -> None:
        self._storage, self._path = storage, path

    def let_go(self, content: bytes) -> None:
        """Leave the object to nobody, with another content."""
        self._storage.put_hint(self._path, content)

    def close(self) -> None:
        """Do nothing: it counts as held until it is deleted, or was not touched for a day."""


class ObjectFolder:
    """A part of the names, to delete objects of it."""

    def __init__(self, storage: ObjectStorage, path: Path) -> None:
        self._storage, self._path = storage, path

    def is_at_its_path(self) -> bool:
        """Return True: no other folder gets its path."""
        return True

    def delete(self, name: str) -> None:
        """Delete an object of it, if it is there."""
        self._storage.delete(self._path / name)

    def __enter__(self) -> ObjectFolder:
        return self

    def __exit__(self, *_exc: object) -> None: ...


class ObjectStorage(DurableSteps):
    """The objects of `store`, each with a path below `root`.

    One with an `address` is pickled as that, and has one object in each process
    (`object_storage_of`). Any other one is pickled as its store is.
    """

    def __init__(
        self,
        store: ObjectStore,
        root: Path,
        address: StorageAddress | None = None,
        cache: FileCache | None = None,
    ) -> None:
        """`cache` keeps whole objects of files that are written once, in a local folder."""
        self._store = store
        self._cache = cache
        self._reader = ObjectReader(store, self._name, cache)
        self._lister = ObjectLister(store, self._name)
        self.root = root
        self._address = address
        self._is_conditional = False  # it has refused the second put of an object
        self._folders: dict[Path, TableFolders] = {}  # by the directory of the tables

    def __repr__(self) -> str:
        return f"<object storage {self.root}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the address, with the credentials that were given, or the store."""
        if self._address is None:
            return ObjectStorage, (self._store, self.root, None, self._cache)
        return object_storage_of, (self._address,)

    @property
    def address(self) -> StorageAddress:
        """The address of the bucket; one that no other process finds, if none was given."""
        return self._address or StorageAddress(self.root, "", StorageOptions())

    @property
    def is_directory(self) -> bool:
        """Return False."""
        return False

    @property
    def has_paths(self) -> bool:
        """Whether other programs open its files by their paths."""
        return False

    @property
    def directory(self) -> Directory:
        """Raise NotSupportedError: an object store has no files that grow, and no moves."""
        raise NotSupportedError(
            f"{self.root} is on an object store, which has no files that grow and no moves of"
            " folders"
        )

    def _name(self, path: str | Path) -> str:
        return ObjectPath(path).relative_to(ObjectPath(self.root)).as_posix()

    def _path(self, name: str) -> Path:
        return self.root / name

    def before(self, operation: str, path: Path) -> None:
        """Do nothing; see DurableSteps."""

    # -- putting

    def put(self, path: Path, content: bytes) -> FileRef:
        """Put a new object. Raises StorageError with EEXIST if there is another one of its name."""
        self._create(path, content)
        return FileRef(path.name, len(content), zlib.crc32(content))

    def _create(self, path: Path, content: bytes) -> None:
        if not self.put_if_absent(path, content):
            raise StorageError(errno.EEXIST, f"cannot create {path}: it exists")

    def put_parts(self, path: Path, file: Any) -> None:
        """Put what a binary file has, in parts if it is long; an object of the name is replaced."""
        self.before("create", path)
        with store_errors("create", path):
            obstore.put(self._store, self._name(path), file)

    def open_sink(self, path: Path) -> ObjectSink:
        """Open a new object for writing."""
        return ObjectSink(self, path)

    def open_replacing_sink(self, path: Path) -> ObjectSink:
        """Open an object for writing, which replaces any other one."""
        return ObjectSink(self, path, replaces=True)

    def put_if_absent(self, path: Path, content: bytes) -> bool:
        """Put an object of a name that none has; return False if there is another one."""
        name, is_unanswered = self._name(path), False
        with store_errors("create", path, doubt=_DOUBT):
            for _ in range(_TRIES_MAX):
                self.before("link", path)
                try:
                    obstore.put(self._store, name, content, mode="create")
                except exceptions.AlreadyExistsError:
                    found = self._content(name)
                    if found is not None:
                        return found == content
                except exceptions.GenericError as error:  # it may have been put, or will be
                    found = self._content_after(error, name)
                    if found is not None:
                        return found == content
                    if is_unanswered:
                        raise
                    is_unanswered = True  # to put the same again decides it
                else:
                    self.before("fsync", path.parent)
                    return True
                time.sleep(_TRY_PAUSE_SECONDS)
        raise StorageError(
            errno.EIO,
            f"cannot create {path}: the store refused it {_TRIES_MAX} times as existing, and does"
            " not have it",
        )

    def _content_after(self, error: Exception, name: str) -> bytes | None:
        """Return an object's content, None without one; raise `error` where it cannot be read."""
        try:
            return self._content(name)
        except exceptions.BaseError:
            raise error from None

    def _content(self, name: str) -> bytes | None:
        """Return an object's content, None without one."""
        try:
            return bytes(obstore.get(self._store, name).bytes())
        except FileNotFoundError:
            return None

    def check_refuses(self, path: Path) -> None:
        """Check, once, that the store refuses a put of the object at `path`, which is there.

        With its own content, so a store that replaces it changes nothing. Raises
        NotSupportedError, as `new_place`.
        """
        with store_errors("create", path):
            content = None if self._is_conditional else self._content(self._name(path))
        if content is not None:
            self._check_refuses_again(path, content)

    def _check_refuses_again(self, path: Path, content: bytes) -> None:
        """Put the object at `path`, which has this content, and check that it is refused."""
        with store_errors("create", path):
            try:
                obstore.put(self._store, self._name(path), content, mode="create")
            except exceptions.AlreadyExistsError:
                self._is_conditional = True
                return
        raise not_conditional(self.root)

    def put_hint(self, path: Path, content: bytes) -> None:
        """Put an object in the place of any other."""
        with store_errors("replace", path):
            obstore.put(self._store, self._name(path), content)

    def make_folder(self, path: Path) -> None:
        """Do nothing: there are no folders."""

    def make_folders(self, path: Path) -> None:
        """Do nothing: there are no folders."""

    def make_root(self, path: Path) -> None:
        """Know a directory of tables; a hidden folder in one has no list of its own."""
        if not path.name.startswith("."):
            self._directory(path)

    def _directory(self, path: Path) -> TableFolders:
        return self._folders.setdefault(path, TableFolders(self, path))

    def is_root(self, path: Path) -> bool:
        """Whether there is an object below `path`, and no directory of tables was removed there."""
        if path == self.root:
            return True
        return not self._directory(path).is_removed() and self.is_folder(path)

    def new_root(self, path: Path) -> None:
        """Put a list without tables, if there is no list."""
        self._check_is_conditional(path)
        self._directory(path).make()

    def delete_root(self, path: Path) -> None:
        """Put a list that says that the directory was removed."""
        self._directory(path).remove()

    def _check_is_conditional(self, path: Path) -> None:
        """Check, once, that the store refuses a put of an object that exists.

        Raises NotSupportedError where it does not: of two commits one would be lost.
        """
        if self._is_conditional:
            return
        probe = path / f".probe-{uuid.uuid4().hex}"
        try:
            self.put_hint(probe, b"")
            self._check_refuses_again(probe, b"")
        finally:
            with contextlib.suppress(StorageError):
                self.delete(probe)

    def sync(self, folders: Iterable[Path]) -> None:
        """Do nothing: objects are durable when they are put."""

    # -- reading

    def read(self, path: Path) -> bytes:
        """Return an object's content."""
        return self._reader.read(path)

    def read_ranges(
        self, path: Path, ranges: Sequence[tuple[int, int | None]]
    ) -> tuple[int, list[bytes]]:
        """Return (an object's length, the bytes of each (offset, length)), side by side."""
        return self._reader.read_ranges(path, ranges) if ranges else (self.length(path), [])

    def open(self, path: Path, ref: FileRef) -> pa.NativeFile:
        """Read a whole object, and return it as a file in memory."""
        return pa.BufferReader(self.open_whole(path, ref).content())

    def open_whole(self, path: Path, ref: FileRef) -> Source:
        """Read a whole object into memory, a large one by several requests."""
        return self._reader.open_whole(path, ref)

    def open_ranges(self, path: Path, ref: FileRef) -> Source:
        """Return what fetches parts of an object; nothing is read yet."""
        return self._reader.open_ranges(path, ref)

    def kept_bytes(self, ref: FileRef) -> int:
        """Return the size of an object, which is in memory."""
        return ref.length

    @property
    def requests_at_once(self) -> int:
        """How many requests are begun together: a store serves very many."""
        return REQUESTS_AT_ONCE

    def side_by_side(self, work: Callable[[S], T], items: Sequence[S]) -> list[T]:
        """Return `work` of each item, in threads that end with the call."""
        return side_by_side(work, items)

    def prefetch(self, loads: Iterable[Callable[[], object]]) -> None:
        """Run `loads` side by side; one alone is left to the reader."""
        begun = list(loads)
        if len(begun) > 1:
            side_by_side(lambda load: load(), begun)

    def length(self, path: str | Path) -> int:
        """Return an object's length."""
        with store_errors("find", path):
            return int(obstore.head(self._store, self._name(path))["size"])

    def exists(self, path: str | Path) -> bool:
        """Whether there is an object at `path`, or it is the folder of a table."""
        return self._is_table_folder(as_path(str(path))) or self.identity(path) is not None

    def identity(self, path: str | Path) -> object:
        """Return the identity of an object, which no later one of its name has, or None."""
        found = self.facts(path)
        return None if found is None else (found["e_tag"], found["version"], found["last_modified"])

    def facts(self, path: str | Path) -> Any:
        """Return an object's size, e_tag, version and last_modified; None without an object."""
        try:
            with store_errors("find", path):
                return obstore.head(self._store, self._name(path))
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            return None

    def is_folder(self, path: Path) -> bool:
        """Whether a path is the folder of a table, or in front of the name of an object."""
        if self._is_table_folder(path):
            return True
        return self._lister.is_above(path)

    def entries(self, folder: Path) -> list[Path]:
        """Return the objects in `folder`, and the next parts of other names below it, sorted.

        Folders of tables are among them, the places of tables are not.
        """
        found, prefixes = self._lister.inside(folder)
        paths = {self._path(name) for name in (*(each["path"] for each in found), *prefixes)}
        paths.discard(folder / FOLDERS_NAME)
        if (folders := self._folders.get(folder)) is not None:
            paths |= {folder / key.partition("/")[0] for key in folders.newest()}
        elif folder.name != FOLDERS_NAME and (folders := self._folders.get(folder.parent)):
            begin = f"{folder.name}/"
            paths |= {folders.root / key for key in folders.newest() if key.startswith(begin)}
        return sorted(paths)

    def listed(self, folder: Path) -> list[Listed]:
        """Return the objects in `folder`."""
        now = time.time()
        found, _ = self._lister.inside(folder)
        ages = self._lister.ages(folder, found, now)
        return [
            Listed(self._path(each["path"]), each["size"], age_seconds)
            for each, age_seconds in zip(found, ages, strict=True)
        ]

    def files_below(self, folder: Path, *, is_fresh: bool = False) -> Iterator[Listed]:
        """Yield the objects below a folder; ages are by the clock of the store.

        That of an object that was marked as used is the seconds since then.
        """
        now = time.time()
        found = self._lister.below(folder)
        names = [each["path"] for each in found]
        ages = dict(zip(names, self._lister.ages(folder, found, now), strict=True))
        for each, name in zip(found, names, strict=True):
            age_seconds = min(ages[name], ages.get(f"{name}{_TOUCHED}", ages[name]))
            yield Listed(self._path(name), each["size"], age_seconds)

    def names_below(self, folder: Path) -> dict[Path, list[str]]:
        """Return a folder and all below it, each with the names in it that are no folders."""
        found: dict[Path, list[str]] = {}
        for each in self._lister.below(folder):
            path = self._path(each["path"])
            found.setdefault(path.parent, []).append(path.name)
            for parent in path.parent.parents:
                if not parent.is_relative_to(folder):
                    break
                found.setdefault(parent, [])
        return found

    def check_folder(self, path: str | Path) -> None:
        """Do nothing: there are no links."""

    def free_bytes(self, folder: Path) -> int | None:
        """Return None: a store has no size."""
        return None

    # -- folders of tables

    def _folders_of(self, folder: Path) -> TableFolders:
        """Return the folders of the directory in which a table's folder is."""
        if folder == self.root:
            raise is_bucket(folder)
        root = folder.parent
        if root.name.startswith("."):  # of soft-deleted or staged tables
            root = root.parent
        return self._directory(root)

    def _is_table_folder(self, path: Path) -> bool:
        """Whether a path is the folder of a table, or of hidden tables, of a known directory."""
        for root in (path.parent, path.parent.parent):
            folders = self._folders.get(root)
            if folders is not None:
                return bool(folders.below(path))
        return False

    def table_names(self, root: Path) -> list[str] | None:
        """Return the names of the folders of tables, without hidden ones."""
        folders = self._folders_of(root / "any")
        if folders.root == root:
            return folders.table_names()
        return sorted(Path(key).name for key in folders.below(root))

    def place_of(self, folder: Path) -> Path:
        """Return the place of a table's folder, as it is now.

        Raises TableNotFoundError for a bucket.
        """
        return self._folders_of(folder).place(folder)

    def new_place(self, folder: Path) -> Path:
        """Return a new place. Raises NotSupportedError for a store that replaces objects."""
        folders = self._folders_of(folder)
        self._check_is_conditional(folders.root)
        return folders.new_place()

    def name_place(self, folder: Path, place: Path) -> bool:
        """Give a new table its folder; return False where another table has it."""
        return self._folders_of(folder).name(folder, place)

    def adopt_abandoned(self, root: Path) -> None:
        """Give places that have no name, and no object of the last day, a folder that is trash."""
        self._folders_of(root / "any").adopt_abandoned(HELD_SECONDS)

    def move(self, source: Path, target: Path, place: Path | None = None) -> None:
        """Give the folder of a table a name in the same directory that does not exist."""
        self._folders_of(source).move(source, target, place)

    def exchange(self, one: Path, other: Path) -> bool:
        """Let the folders of two tables change names in one step."""
        self._folders_of(one).exchange(one, other)
        return True

    def link_target(self, path: Path) -> Path | None:
        """Return None: there are no links."""
        return None

    # -- operations under way

    def hold(self, path: Path, content: bytes) -> ObjectHeld:
        """Put an object that counts as held while `mark_used` is called once a day."""
        self._create(path, content)
        return ObjectHeld(self, path)

    @contextlib.contextmanager
    def lease(self, path: Path, timeout_seconds: float, work: str) -> Iterator[bool]:
        """Give False: of two that do the same work, one loses it when it publishes."""
        yield False

    def is_held(self, path: Path) -> bool:
        """Whether an object was put or touched in the last day: no store knows more."""
        age_seconds = self._age_seconds(path)
        if age_seconds is None:
            return False
        touched = self._age_seconds(_touched(path))
        return min(age_seconds, touched or age_seconds) < HELD_SECONDS

    def mark_used(self, path: Path) -> bool:
        """Put another object beside one, whose age counts as well; return False without one."""
        age_seconds = self._age_seconds(path)
        if age_seconds is not None and age_seconds > TOUCH_SECONDS:
            self.put_hint(_touched(path), b"")
        return age_seconds is not None

    def _age_seconds(self, path: Path) -> float | None:
        """Return the seconds since an object was put, None without one."""
        found = self.facts(path)
        if found is None:
            return None
        [age_seconds] = self._lister.ages(path.parent, [found], time.time())
        return age_seconds

    def remove_hidden(self, folder: Path) -> None:
        """Delete what `mark_used` has put beside objects that were deleted since."""
        found = set(self.entries(folder))
        for path in found:
            if path.suffix == _TOUCHED and path.with_suffix("") not in found:
                self.delete(path)

    def open_folder(self, path: Path) -> ObjectFolder:
        """Return a folder, whose path no other one gets."""
        return ObjectFolder(self, path)

    # -- deleting

    def delete(self, path: Path) -> None:
        """Delete an object, if it exists."""
        self.before("remove", path)
        with store_errors("remove", path), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._store, self._name(path))

    def delete_folder(self, path: Path) -> None:
        """Do nothing: a folder without objects is not there."""

    def delete_below(self, folder: Path) -> None:
        """Delete all objects below a folder; another process may delete some meanwhile.

        The last entries of a deleted table stay for a while, so that nobody writes a next one.
        """
        self.before("remove", folder)
        if self._is_table_folder(folder):
            self._delete_tables(folder)
            return
        names = [found["path"] for found in self._lister.below(folder)]
        for start in range(0, len(names), _DELETED_AT_ONCE):
            some = names[start : start + _DELETED_AT_ONCE]
            try:
                with store_errors("remove", folder):
                    obstore.delete(self._store, some)
            except StorageError as error:
                if error.errno != errno.ENOENT:
                    raise
                for name in some:  # Azure stops at the first one that is gone
                    self.delete(self._path(name))

    def _delete_tables(self, folder: Path) -> None:
        """Delete the tables whose folders are `folder` or below it, and their names."""
        folders = self._folders_of(folder)
        gone = []
        for key in folders.below(folder):
            files = list(self.files_below(folders.place(folders.root / key)))
            # One that is behind must find its way to the end of the chain.
            young = [
                file
                for file in files
                if version_of(file.path.name) is not None and file.age_seconds < LAST_ENTRY_SECONDS
            ]
            for file in files:
                if file not in young:
                    self.delete(file.path)
            if not young:
                gone.append(key)
        if gone:
            folders.forget(gone)


@functools.cache
def object_storage_of(address: StorageAddress) -> ObjectStorage:
    """Return the storage of a bucket, one in each process. Raises OptionError."""
    arguments = address.options.arguments(str(address), os.environ)
    try:
        store = _STORES[address.service](address.bucket, **arguments)
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        text = address.options.without_secrets(reason(str(error)))
        advice = ""
        if "Account must be specified" in text:
            advice = (
                "; give the storage option azure_storage_account_name, or an address as in"
                " abfss://container@account.dfs.core.windows.net/prefix"
            )
        raise OptionError(f"{address}: {text}{advice}") from None
    kept = address.options.cache
    return ObjectStorage(store, address.root, address, None if kept is None else FileCache(*kept))
