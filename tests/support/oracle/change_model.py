"""The dictionary model of a table's changes: rows after each commit, and which keys it touched.

A commit touches a key when an operation had an effect on it, even if the values are the same as
before. The changes of a window follow from the rows at both ends and the touches between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kudulite import Timestamp

Key = tuple
Row = dict[str, Any]
Rows = dict[Key, Row]


@dataclass
class Commit:
    """The rows after a commit that lies in (`after`, `timestamp`], and the keys it touched."""

    after: int
    timestamp: int
    rows: Rows
    touched: set[Key]
    is_exact: bool = True  # whether the timestamp is the commit's own, or a later moment


@dataclass(frozen=True)
class Change:
    """The change of one key in a window; the commit's moment lies in (`after`, `up_to`]."""

    kind: str
    row: Row
    before: Row | None
    after: int
    up_to: int

    def preimage(self) -> Change:
        """The row before an update, as a change of its own."""
        assert self.before is not None, "of an update"
        return replace(self, kind="update_preimage", row=self.before)


@dataclass
class ChangeModel:
    """All commits of a table, the first of them its creation."""

    defaults: Row
    commits: list[Commit] = field(default_factory=list)
    rows: Rows = field(default_factory=dict)
    touched: set[Key] = field(default_factory=set)

    # -- writing

    def apply(self, operation: str, key: Key, values: Row) -> None:
        """Apply an operation that the table accepts; `_ignore` or not is the same here."""
        kind = operation.removesuffix("_ignore")
        held = self.rows.get(key)
        if kind == "delete" and held is not None:
            del self.rows[key]
            self.touched.add(key)
        elif kind in ("update", "upsert") and held is not None:
            if values:
                self.rows[key] = held | values
                self.touched.add(key)
        elif kind in ("insert", "upsert") and held is None:
            self.rows[key] = self.defaults | values
            self.touched.add(key)

    def clear(self) -> None:
        """Delete all rows."""
        self.touched |= set(self.rows)
        self.rows.clear()

    def commit(self, timestamp: int, *, is_exact: bool) -> None:
        """Make a commit of the operations since the last one.

        It has no moment if it has no effect. Rows both inserted and deleted within it have none.
        """
        after, held = 0, set[Key]()
        if self.commits:
            after, held = self.commits[-1].timestamp, set(self.commits[-1].rows)
        self.touched &= held | set(self.rows)
        assert timestamp > after or not self.touched
        timestamp = max(after, timestamp)
        copy = {key: dict(row) for key, row in self.rows.items()}
        self.commits.append(Commit(after, timestamp, copy, self.touched, is_exact))
        self.touched = set()

    # -- what is to be found

    def changes(
        self, first: int, last: int, accepts: Callable[[Row], bool] = lambda row: True
    ) -> dict[Key, Change]:
        """Return what changed after commit `first` up to commit `last`, by key."""
        old, new = self.commits[first].rows, self.commits[last].rows
        found: dict[Key, Change] = {}
        for commit in self.commits[first + 1 : last + 1]:
            for key in commit.touched:
                change = self._change(old.get(key), new.get(key), commit)
                if change is not None and any(
                    row is not None and accepts(row) for row in (old.get(key), new.get(key))
                ):
                    found[key] = change
        return found

    def versions(self, key: Key, first: int = 0) -> list[Change]:
        """Return every change of a key after commit `first`."""
        found = []
        for number in range(first + 1, len(self.commits)):
            if key in self.commits[number].touched:
                old, new = self.commits[number - 1].rows, self.commits[number].rows
                change = self._change(old.get(key), new.get(key), self.commits[number])
                if change is not None:
                    found.append(change)
        return found

    def _change(self, old: Row | None, new: Row | None, commit: Commit) -> Change | None:
        kind = {
            (False, True): "insert",
            (True, True): "update_postimage",
            (True, False): "delete",
        }.get((old is not None, new is not None))
        if kind is None:
            return None
        row = new if new is not None else old
        assert row is not None
        after = commit.timestamp - 1 if commit.is_exact else commit.after
        return Change(kind, row, old, after, commit.timestamp)


def difference(
    found: list[Row],
    expected: Mapping[Key, Change],
    keys: list[str],
    names: list[str],
    both: bool = False,
) -> str | None:
    """Return what is wrong with rows of changes, None when they are the expected ones.

    The rows bear `names` and the columns of changes. With `both` images a preimage stands before
    each postimage.
    """
    seen: set[Key] = set()
    rows = iter(found)
    for row in rows:
        key = tuple(row[name] for name in keys)
        if both and key in expected and expected[key].kind == "update_postimage":
            wrong = version_difference(row, key, expected[key].preimage(), keys, names)
            if wrong is not None:
                return wrong
            row = next(rows, row)
            key = tuple(row[name] for name in keys)
        if key in seen or key not in expected:
            return f"{'repeated' if key in seen else 'unexpected'}: {row}"
        seen.add(key)
        wrong = version_difference(row, key, expected[key], keys, names)
        if wrong is not None:
            return wrong
    missing = set(expected) - seen
    return f"missing: { {key: expected[key] for key in missing} }" if missing else None


def version_difference(
    row: Row, key: Key, change: Change, keys: list[str], names: list[str]
) -> str | None:
    """Return what is wrong with one row of changes or of a history."""

    def shown(values: Row) -> Row:
        whole = dict(zip(keys, key, strict=True)) | values
        return {name: whole[name] for name in names}

    cells = {name: row[name] for name in names}
    if row["_change_type"] != change.kind or cells != shown(change.row):
        return f"found {row}, expected {change}"
    if not change.after < row["_commit_version"] <= change.up_to:
        return f"found {row}, expected a moment in ({change.after}, {change.up_to}]: {change}"
    if row["_commit_timestamp"] != Timestamp(row["_commit_version"]).to_datetime():
        return f"found {row}, whose two times differ"
    return None
