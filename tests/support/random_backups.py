"""Random chains of backups of a table with a column of every type, each restored and compared."""

from __future__ import annotations

from pathlib import Path

from typed_tables import TypedTable

import kudulite
from kudulite.backups.content_hash import content_sum


def check_random_chain(folder: Path, seed: int, step_count: int = 3) -> int:
    """Back up after each few changes, restore each; returns how many backups there were.

    The newest is compared with the model, all with the table as it was, as bits.
    """
    made = TypedTable(folder / "db" / "t", seed)
    target, states = folder / "set", []
    turns = [made.bulk, made.reinsert, made.alter, made.overwrite, made.compact, made.update]
    made.random.shuffle(turns)
    for turn in turns:
        for _ in range(made.random.randrange(step_count + 1)):
            made.step()
        turn()
        full = made.random.choice([None, None, None, True])
        content_hash = made.random.random() < 0.5
        backup = kudulite.backup(made.table, target, full=full, content_hash=content_hash)
        states.append((backup, made.table.scan(ordered=True).to_arrow()))
    made.stand_still()
    expected = made.expected(made.moments[-1])
    assert str(states[-1][1].to_pylist()) == str(expected.to_pylist()), seed
    for backup, then in states:
        table = kudulite.restore(target, folder / "db" / "r", at=backup.id, overwrite=True)
        found = table.scan(ordered=True).to_arrow()
        assert found.schema == then.schema, seed
        assert content_sum(found.to_batches()) == content_sum(then.to_batches()), seed
        assert str(found.to_pylist()) == str(then.to_pylist()), seed
        table.check().raise_if_bad()
    return len(states)
