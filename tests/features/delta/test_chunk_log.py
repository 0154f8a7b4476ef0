"""A log of parts is the parts, in fewer pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudulite.delta import delta_mem_store
from kudulite.delta.delta_mem_store import ChunkLog


def joined(parts):
    """One tuple of all."""
    return tuple(item for part in parts for item in part)


@given(st.lists(st.integers(1, 40), max_size=200), st.sampled_from([2, 3, 5]))
def test_parts_keep_their_order_and_stay_few(sizes: list[int], fan_in: int):
    """Joins change neither what is there nor its order; of each level few parts are left."""
    log: ChunkLog[tuple] = ChunkLog(joined)
    items: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_mem_store, "FAN_IN", fan_in)
        for size in sizes:
            before = log.parts
            part = tuple(range(len(items), len(items) + size))
            log.append(part, size)
            items += part
            assert joined(before) == tuple(items[: len(items) - size])
        assert joined(log.parts) == tuple(items)
        # Parts below the last level: fewer than FAN_IN of each behind the last of a higher one.
        large = sum(len(part) >= fan_in**3 for part in log.parts)
        assert len(log.parts) - large < 3 * fan_in + len(items) / fan_in**3


def test_single_appends_are_copied_three_times_at_most():
    """The cost of an append does not grow with what is there."""
    copied = 0

    def join(parts):
        nonlocal copied
        copied += sum(map(len, parts))
        return joined(parts)

    log: ChunkLog[tuple] = ChunkLog(join)
    count = 20_000
    for i in range(count):
        log.append((i,), 1)
    assert copied <= 3 * count
    assert len(log.parts) <= 3 * 63 + 1
