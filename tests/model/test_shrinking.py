"""The shrinker of failing lists: what it leaves still fails, and nothing of it can be left out."""

import random

import pytest

from tests.support.machines.shrinking import shrink


@pytest.mark.parametrize("seed", range(20))
def test_what_is_left_is_what_the_failure_needs(seed: int):
    """Of 200 steps the two or three that fail together are left, in their order."""
    chance = random.Random(seed)
    steps = chance.sample(range(1000), 200)
    needed = sorted(chance.sample(range(200), chance.choice([1, 2, 3])))
    culprits = [steps[place] for place in needed]

    def fails(fewer) -> bool:
        return [step for step in fewer if step in culprits] == culprits

    assert shrink(steps, fails) == culprits


def test_steps_are_replaced_by_simpler_ones():
    """A step keeps only what the failure needs."""

    def simpler(step: tuple) -> list[tuple]:
        return [step[:place] + step[place + 1 :] for place in range(len(step))]

    found = shrink([(1, 2, 3), (4, 5)], lambda few: 2 in sum(few, ()), simpler=simpler)
    assert found == [(2,)]
