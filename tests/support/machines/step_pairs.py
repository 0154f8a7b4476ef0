"""Orders of steps in which each kind of step comes once after each kind, after itself too.

Steps drawn at random repeat the common pairs and miss the rare ones. An Euler circuit through all
pairs has each one once; it is cut into parts, so that each part can be a test with a seed.
"""

import random
from collections.abc import Sequence


def part_of_circuit(kinds: Sequence[str], seed: int, part: int, part_count: int) -> list[str]:
    """Return one of the parts of a random circuit; each begins with the last step of another."""
    chance = random.Random(seed)
    left = {kind: chance.sample(kinds, len(kinds)) for kind in kinds}
    circuit, pending = [], [kinds[0]]
    while pending:
        following = left[pending[-1]]
        if following:
            pending.append(following.pop())
        else:
            circuit.append(pending.pop())
    length = -(-(len(kinds) ** 2) // part_count)
    return circuit[part * length : (part + 1) * length + 1]
