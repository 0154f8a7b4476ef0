"""A power failure at any step of writing, replacing or removing a view leaves one whole text."""

import kudulite
from tests.support.doubles.forgetful_disk import ForgetfulDisk, recorded_states
from tests.support.tables.core_tables import CoreTables

# By the number of acknowledged steps, what may be there: the state before the next one or after it.
ALLOWED = {1: (None, "one"), 2: ("one", "two"), 3: ("two", None), 4: (None, "three"), 5: ("three",)}


def test_a_power_failure_leaves_the_view_before_or_after(core: CoreTables):
    """An acknowledged text is there, and none is torn."""
    root = core.root / "disk"
    root.mkdir()

    def work(disk: ForgetfulDisk) -> None:
        client = kudulite.connect(root / "db", background_maintenance=False)
        disk.acknowledge()
        client.write_view("v", "one")
        disk.acknowledge()
        client.write_view("v", "two", replace=True)
        disk.acknowledge()
        client.delete_view("v")
        disk.acknowledge()
        client.write_view("v", "three")

    states, _ = recorded_states(root, work)
    seen = set()
    for number, state in enumerate(states):
        if state.acknowledged not in ALLOWED:
            continue
        left = core.root / f"left-{number}"
        state.write_to(left)
        client = kudulite.connect(left / "db", background_maintenance=False)
        found = client.read_view("v") if client.list_views() else None
        assert found in ALLOWED[state.acknowledged], state.acknowledged
        assert client.list_tables() == [] and client.list_directories() == []
        seen.add((state.acknowledged, found))
    assert seen == {(count, text) for count, texts in ALLOWED.items() for text in texts}
