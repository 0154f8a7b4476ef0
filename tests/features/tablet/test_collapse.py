"""Collapsing the operations of a write equals playing them one by one on a set of keys."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kudulite.tablet.operation import Operation
from kudulite.tablet.row_effects import (
    ACTION_DELETE,
    ACTION_INSERT,
    ACTION_NONE,
    ACTION_UPDATE,
    SOURCE_DEFAULT,
    SOURCE_KEEP,
    KeyedOperations,
    KeyEffects,
    collapse,
    collapse_rounds,
    collapse_uniform,
)


@st.composite
def writes(draw, *, uniform: bool):
    """Operations in key order, and which keys exist."""
    key_count = draw(st.integers(1, 5))
    chains = [draw(st.integers(1, 4)) for _ in range(key_count)]
    group = np.repeat(np.arange(key_count), chains)
    # Row numbers ascend within a key, and are spread over keys at random.
    numbers = draw(st.permutations(range(len(group))))
    rows = np.array(numbers, np.int64)
    for key in range(key_count):
        rows[group == key] = np.sort(rows[group == key])
    if uniform:
        operations = np.full(len(group), draw(st.sampled_from(Operation)), np.uint8)
    else:
        chosen = draw(
            st.lists(st.sampled_from(Operation), min_size=len(group), max_size=len(group))
        )
        operations = np.array(chosen, np.uint8)
    exists = np.array(draw(st.lists(st.booleans(), min_size=key_count, max_size=key_count)))
    return KeyedOperations(rows, group, operations, key_count), exists


def comparable(effects: KeyEffects) -> tuple:
    """All that counts: sources only where they are used, failures as sets."""
    uses = (effects.action == ACTION_INSERT) | (effects.action == ACTION_UPDATE)
    return (
        effects.action.tolist(),
        [np.where(uses, source, 0).tolist() for source in effects.sources],
        (effects.is_replaced & uses).tolist(),
        effects.counts,
        sorted((f.reason, sorted(f.rows.tolist())) for f in effects.failures),
    )


@given(writes(uniform=True), st.integers(0, 3))
def test_the_formulas_equal_the_rounds(write, column_count):
    """The fast path for one operation only skips work. Counts are compared where nothing fails."""
    keyed, exists = write
    operation = Operation(int(keyed.operations[0]))
    fast = collapse_uniform(operation, keyed, exists, column_count)
    slow = collapse_rounds(keyed, exists, column_count, None)
    assert comparable(fast) == comparable(slow)


def play(keyed, exists, is_set, column_count, immutable=()) -> tuple:
    """The effects by a loop: per key whether it exists, and the source of each column."""
    actions, sources, replaced = [], [], []
    for key in range(keyed.key_count):
        alive = bool(exists[key])
        source = [SOURCE_KEEP] * column_count
        is_changed = is_replaced = False
        at = np.flatnonzero(keyed.group == key)
        for row, operation in zip(keyed.rows[at], keyed.operations[at], strict=True):
            creates = not alive and operation <= Operation.UPSERT_IGNORE
            changes = alive and Operation.UPSERT <= operation <= Operation.UPDATE_IGNORE
            if operation in (Operation.UPSERT, Operation.UPDATE):
                changes &= not any(is_set[c][row] for c in immutable)  # else it is refused
            if creates:
                alive, source = True, [SOURCE_DEFAULT] * column_count
                is_replaced |= bool(exists[key])
            if creates or changes:
                is_changed |= changes
                kept = () if creates else immutable
                source = [
                    row if is_set[c][row] and c not in kept else s for c, s in enumerate(source)
                ]
            elif alive and operation >= Operation.DELETE:
                alive, source = False, [SOURCE_KEEP] * column_count
        if exists[key]:
            same = not is_changed and not is_replaced
            action = (ACTION_NONE if same else ACTION_UPDATE) if alive else ACTION_DELETE
        else:
            action = ACTION_INSERT if alive else ACTION_NONE
        is_used = action in (ACTION_INSERT, ACTION_UPDATE)
        actions.append(action)
        sources.append([s if is_used else 0 for s in source])
        replaced.append(is_replaced and is_used)
    return actions, [list(c) for c in zip(*sources, strict=True)], replaced


@given(st.one_of(writes(uniform=False), writes(uniform=True)), st.integers(1, 3), st.data())
def test_any_mixture_equals_a_loop(write, column_count, data):
    """With any choice of which row sets which column, and of the immutable columns."""
    keyed, exists = write
    count = len(keyed.rows)
    is_set = [
        np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
        for _ in range(column_count)
    ]
    immutable = data.draw(st.lists(st.integers(0, column_count - 1), unique=True))
    found = comparable(collapse(keyed, exists, column_count, is_set, immutable))
    assert found[:3] == play(keyed, exists, is_set, column_count, immutable)
    sets_all = [np.ones(count, bool)] * column_count
    found = comparable(collapse(keyed, exists, column_count, None, immutable))
    assert found[:3] == play(keyed, exists, sets_all, column_count, immutable)
