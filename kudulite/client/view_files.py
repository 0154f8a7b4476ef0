"""Views in a directory of tables: each is one file, <root>/<name>.view, with a text in UTF-8.

The engine stores the texts and does not read them: they are of the catalog of Spark SQL
(kudulite_spark/sql/views.py). It stands alone because a view is no table: no version, no lock.

**Invariants**: a file holds one whole text, the old or the new one, at all times.

**Threads**: any, and any process; the last of several writers wins.
"""

from __future__ import annotations

from pathlib import Path

from kudulite.errors import CorruptionError, TableExistsError, TableNotFoundError
from kudulite.storage.storage import Storage, read_if_there
from kudulite.table.table_names import table_folder

_SUFFIX = ".view"


def list_views(storage: Storage, root: Path) -> list[str]:
    """Return the names of the views, sorted; none without the directory. Raises StorageError."""
    names = [place.name for place in storage.entries(root)]
    found = [n for n in names if n.endswith(_SUFFIX) and not n.startswith(".") and n != _SUFFIX]
    return sorted(n.removesuffix(_SUFFIX) for n in found if not storage.is_folder(root / n))


def read_view(storage: Storage, root: Path, name: str) -> str:
    """Return the text of a view. Raises TableNotFoundError, CorruptionError, StorageError."""
    content = read_if_there(storage, _file(root, name))
    if content is None:
        raise _not_found(storage, root, name)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise CorruptionError(
            f"view {name!r} in {root}: its file is no text in UTF-8 ({error}); write it again"
        ) from error


def write_view(storage: Storage, root: Path, name: str, text: str, *, replace: bool) -> None:
    """Store a text, durably and in one step. Raises TableExistsError, SchemaError, StorageError."""
    place, content = _file(root, name), text.encode()
    if not replace:
        if not storage.put_if_absent(place, content):
            raise TableExistsError(f"view {name!r} exists in {root}")
        return
    with storage.open_replacing_sink(place) as sink:
        sink.write(content)
        sink.finish()


def delete_view(storage: Storage, root: Path, name: str) -> None:
    """Remove a view durably. Raises TableNotFoundError, StorageError."""
    place = _file(root, name)
    if not storage.exists(place):
        raise _not_found(storage, root, name)
    storage.delete(place)
    storage.sync([root])


def _file(root: Path, name: str) -> Path:
    folder = table_folder(root, name)
    return folder.with_name(folder.name + _SUFFIX)


def _not_found(storage: Storage, root: Path, name: str) -> TableNotFoundError:
    listed = ", ".join(list_views(storage, root)) or "none"
    return TableNotFoundError(f"no view {name!r} in {root}; views: {listed}")
