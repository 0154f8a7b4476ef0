"""ObjectPath: the name of an object, or of what is above it, with the address of its bucket.

    >>> table = ObjectPath("s3://bucket/warehouse") / "metrics"
    >>> print(table, table.parent, table.relative_to("s3://bucket"))
    s3://bucket/warehouse/metrics s3://bucket/warehouse warehouse/metrics

The layers above `storage` join and compare paths, and keep some of them as text. `pathlib` makes
one slash of two, so a `Path` of such a text would be shown, and read again, as `s3:/bucket`. An
ObjectPath is a path with the two slashes in its text. It has no methods that look at files: a
storage does that.

**Invariants**: a path made of the text of another one equals it; see `as_path` of storage.py.
"""

from __future__ import annotations

from pathlib import PurePosixPath


class ObjectPath(PurePosixPath):
    """A path below a bucket; parts of it, and what is joined to it, are ObjectPaths as well."""

    __slots__ = ()

    def __str__(self) -> str:
        """Return the address."""
        text = super().__str__()
        scheme, _, rest = text.partition(":/")
        # A relative path has no scheme, and may have a colon in any part.
        return f"{scheme}://{rest}" if rest and scheme.isalnum() else text

    def __fspath__(self) -> str:
        """Return the address."""
        return str(self)
