"""Steps that read what changed in a window, and what became of one key; see history_machine.py."""

from __future__ import annotations

from typing import Any

from history_state import HistoryState
from model_table import Key

from kudulite.client.table import Table

READS = ("changes", "tokens")
_END = 1 << 64


class ChangeSteps(HistoryState):
    """Changes of windows between legal moments, and whole histories of keys."""

    def _changes(self, client: int, how: str, start: int, end: int | None, images: str) -> None:
        """A window between two moments, or from one to now."""
        low, high = self.moment(start), self.moment(end)
        if low is None:
            return
        if high is not None and high < low:
            low, high = high, low
        self.compare_changes(self.tables[client], how, low, high, images)

    def compare_changes(
        self, table: Table, how: str, start: int, end: int | None, images: str
    ) -> None:
        """Compare the changes of a window with the difference of the model's versions."""
        if how == "tokens":
            tokens = table.change_tokens(start, end, images=images, split_size_bytes=1)
            listed = [
                row for token in tokens for batch in token.open() for row in batch.to_pylist()
            ]
        else:
            listed = table.changes(start, end, images=images).to_arrow().to_pylist()
        found: dict[Key, tuple] = {}
        for row in listed:
            change, timestamp = row.pop("_change_type"), row.pop("_commit_timestamp")
            before = row.pop("_before") if images == "both" else None
            before = None if before is None else tuple(before.values())
            key = tuple(row[name] for name in self.setup.key_names)
            self.same(key in found, False, f"key {key} twice in the changes")
            found[key] = change, timestamp, tuple(row.values()), before
        expected = {
            key: (
                change,
                timestamp,
                before if after is None else after,
                before if images == "both" else None,
            )
            for key, (change, timestamp, before, after) in self.model.changes(
                start, _END if end is None else end
            ).items()
        }
        self.same(found, expected, f"{how} of ({start}, {end}]")

    def _history(self, client: int, number: int) -> None:
        """All versions of a key that can still be read."""
        key = self.setup.key(number)
        before = self.expected_history(key)
        table = self.tables[client].history(key)
        rows = table.to_pylist()
        after = self.expected_history(key)
        found = []
        for place, row in enumerate(rows):
            change, timestamp = row.pop("_change_type"), row.pop("_commit_timestamp")
            # Of what was current at the mark nobody needs to know when it came.
            is_known = place > 0 or (timestamp is not None and timestamp > self.mark)
            found.append((change, timestamp, tuple(row.values())) if is_known else row_only(row))
        if found not in (before, after):
            raise AssertionError(f"history of {key}:\nfound    {found}\nexpected {after}")

    def expected_history(self, key: Key) -> list[tuple]:
        """(change type, timestamp, row) of each version, of a delete the row before it."""
        mark = self.settle_mark()
        current = self.model.at(mark).get(key)
        found: list[tuple[Any, ...]] = [] if current is None else [(None, None, current)]
        for timestamp, row in self.model.history(key, mark):
            if row is None:
                found.append(("delete", timestamp, current))
            else:
                found.append(("insert" if current is None else "update", timestamp, row))
            current = row
        return found


def row_only(row: dict[str, Any]) -> tuple:
    """A version whose moment does not count."""
    return None, None, tuple(row.values())
