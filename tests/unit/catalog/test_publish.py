"""Publishing the next version: put-if-absent, tried again after each lost race."""

from dataclasses import replace

import pyarrow as pa
import pytest
from core_tables import CoreTables, environment

from kudulite.catalog import publish
from kudulite.catalog.manifest import Manifest
from kudulite.catalog.publish import publish_next
from kudulite.catalog.table_store import TableStore
from kudulite.errors import ConflictError

SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.int32())])


@pytest.fixture
def store(core: CoreTables) -> TableStore:
    """A table without rows, version 1."""
    table = core.client().create_table("t", SCHEMA, primary_key="k")
    return TableStore(table.path, environment())


def named(commit_id: str):
    """Build the next version under a name."""
    return lambda m: replace(m, version=m.version + 1, commit_id=commit_id)


def other(store: TableStore, commit_id: str) -> Manifest | None:
    """Publish a version as another process would."""
    elsewhere = TableStore(store.folder, environment())
    return publish_next(elsewhere, elsewhere.newest(), named(commit_id))


def test_a_version_is_published_after_the_one_it_was_built_on(store):
    """And is what everybody finds."""
    made = publish_next(store, store.newest(), named("mine"))
    assert (made.version, made.commit_id) == (2, "mine")
    assert TableStore(store.folder, environment()).newest() == made


def test_a_lost_race_is_built_again_on_the_winner(store):
    """What others published meanwhile stays, below it."""
    newest = store.newest()
    for name in ("a", "b"):
        other(store, name)
    made = publish_next(store, newest, named("mine"))
    assert [store.at_version(v).commit_id for v in (2, 3, 4)] == ["a", "b", "mine"]
    assert made == store.newest()


def test_who_builds_may_give_up_after_a_lost_race(store):
    """Nothing is published then."""
    newest = store.newest()
    other(store, "a")
    seen = []

    def build(manifest: Manifest) -> Manifest | None:
        seen.append(manifest.version)
        return named("mine")(manifest) if manifest.version == 1 else None

    assert publish_next(store, newest, build) is None
    assert (seen, store.newest().version) == ([1, 2], 2)


def test_a_table_that_was_made_again_takes_no_version_of_the_old_one(core, store):
    """Its tablets are others, though its number is the same."""
    newest = store.newest()
    client = core.client()
    client.delete_table("t")
    made = client.create_table("t", SCHEMA, primary_key="k")
    made.insert([{"k": 1, "v": 1}])
    with pytest.raises(ConflictError, match="deleted and created again"):
        publish_next(store, newest, named("mine"))
    assert made.version == 2


def test_races_that_are_lost_for_ever_end_in_an_error(store, monkeypatch: pytest.MonkeyPatch):
    """Something else is wrong then, and the message says how often it was tried."""
    monkeypatch.setattr(publish, "PUBLISH_ATTEMPTS_MAX", 3)

    def build(manifest: Manifest) -> Manifest:
        other(store, "faster")
        return named("mine")(manifest)

    with pytest.raises(ConflictError, match="3 other versions were published meanwhile"):
        publish_next(store, store.newest(), build)
    assert {store.at_version(v).commit_id for v in (2, 3, 4)} == {"faster"}
