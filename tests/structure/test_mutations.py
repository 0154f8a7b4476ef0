"""The list of faults in the code is up to date: each can be made, and a test has caught it."""

import ast

import pytest

from tests.support.mutations import ROOT, Mutation, known_catchers, listed_mutations


@pytest.mark.parametrize("mutation", listed_mutations(), ids=lambda mutation: mutation.name)
def test_a_listed_fault_can_be_made_and_was_caught(mutation: Mutation):
    """Its text is in the file, which stays a program; `reliability.py --mutations` notes the test.

    The test that caught it is still there.
    """
    text = (ROOT / mutation.path).read_text()
    changed = mutation.applied(text)
    assert changed != text
    ast.parse(changed)
    for test in mutation.tests:
        assert (ROOT / test.partition("::")[0]).exists()
    path, _, name = known_catchers()[mutation.name].partition("::")
    assert not name or f"def {name.partition('[')[0]}(" in (ROOT / path).read_text()
