"""TableTags: moments of a table with a name, which stay readable past its retention.

table.tag("end-of-month")
table.scan(at=table.tags["end-of-month"])
"""

from __future__ import annotations

from typing import Any

from kudulite.catalog.table_store import TableStore
from kudulite.catalog.tags import delete_tag, make_tag


class TableTags:
    """The part of `Table` that names moments."""

    _store: TableStore

    @property
    def tags(self) -> dict[str, int]:
        """HybridTime by name, the oldest first; each is what `at=` takes."""
        return dict(sorted(self._store.newest().tags.items(), key=lambda item: item[1]))

    def tag(self, name: str, at: Any = None) -> int:
        """Name a moment, now or `at`; it and all after it stay readable until `delete_tag`.

        Returns it, for `at=`. Raises UsageError where the name is another moment's, TimestampError
        for one before the ancient history mark or ahead of the clock.
        """
        return make_tag(self._store, name, at)

    def delete_tag(self, name: str) -> None:
        """Delete a tag: history older than the retention may go. Raises NotFoundError."""
        delete_tag(self._store, name)
