"""Soft-deleted and staged tables: hidden until they are recalled, or published."""

import datetime
import errno
import itertools
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import kudulite
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import (
    ConflictError,
    LockTimeoutError,
    StorageError,
    TableExistsError,
    TableNotFoundError,
    UsageError,
)
from kudulite.storage.local_storage import LocalStorage
from kudulite.table import table_names
from kudulite.table.table_names import _replace_table, move_table
from kudulite.table.table_store import TableStore
from tests.support.doubles.forgetful_disk import recorded_states
from tests.support.doubles.killing_storage import KillingStorage, ran_to_its_end
from tests.support.tables.core_tables import (
    CoreTables,
    ManualClock,
    environment,
    in_order,
    stored,
    tuples,
)
from tests.support.tiers import tiered

SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.int32())])
ROWS = [(1, 10), (2, 20)]


def filled(client: Client, name: str = "t") -> kudulite.Table:
    """A table of two tablets with two rows on disk, the newer value of one in a log only."""
    table = client.create_table(name, SCHEMA, primary_key="k", hash_partitions=[(["k"], 2)])
    table.insert([{"k": 1, "v": 10}, {"k": 2, "v": 19}])
    session = client.new_session()
    session.apply(table.new_update({"k": 2, "v": 20}))
    session.flush()
    return table


def names(client: Client) -> list[str]:
    """The names of the soft-deleted tables."""
    return [table.name for table in client.list_soft_deleted_tables()]


def test_a_recalled_table_is_as_it_was(core: CoreTables):
    """With rows of its log, its past, its tags, its id and its tokens."""
    client = core.client()
    table = filled(client)
    before = table.current_timestamp()
    table.tag("then", before)
    tokens = table.scan_tokens(at=before)
    table.delete([{"k": 1}])
    deleted = client.soft_delete_table("t", 60)
    assert (deleted.id, deleted.name) == (core.client().list_soft_deleted_tables()[0].id, "t")
    assert deleted.expires - deleted.deleted == datetime.timedelta(seconds=60)
    assert client.list_tables() == [] and not client.table_exists("t")
    again = core.client().recall_table(deleted.id)
    assert (again.id, again.name, stored(again)) == (deleted.id, "t", [(2, 20)])
    assert stored(again, again.tags["then"]) == ROWS
    assert sum(batch.num_rows for token in tokens for batch in token.open()) == 2
    assert [path.name for path in client.root.iterdir()] == ["t"]
    for each in (again, table):  # the object that stood for the table stands for it again
        each.upsert([{"k": 3, "v": 30}])
        assert stored(each) == [(2, 20), (3, 30)]


def test_a_soft_deleted_table_cannot_be_used(core: CoreTables):
    """By any object, old or new; the message has the call that brings it back."""
    client = core.client()
    table = filled(client)
    token, session = table.scan_tokens()[0], client.new_session()
    deleted = core.client().soft_delete_table("t", 60)
    advice = rf"'t' was soft-deleted at 20.*Z: client.recall_table\('{deleted.id}'\) brings it back"
    for use in (
        table.scan,
        lambda: table.get(1),
        lambda: table.upsert([{"k": 1, "v": 0}]),
        lambda: (session.apply(table.new_upsert({"k": 1, "v": 0})), session.flush()),
        lambda: client.new_table_alterer(table).rename("u").alter(),
        lambda: table.maintain(),
        lambda: list(token.open()),
        lambda: client.table("t"),
        lambda: client.soft_delete_table("t", 60),
        lambda: client.delete_table("t"),
        lambda: kudulite.open_table(client.root / "t"),
    ):
        with pytest.raises(TableNotFoundError, match=advice):
            use()
    assert stored(client.recall_table(deleted.id)) == ROWS


def test_the_name_is_free_at_once(core: CoreTables):
    """Two tables of one name are kept, and each is recalled by its id, one under another name."""
    client = core.client()
    first = filled(client)
    gone = [client.soft_delete_table("t", 60)]
    second = client.create_table("t", SCHEMA, primary_key="k")
    second.insert([{"k": 7, "v": 7}])
    with pytest.raises(TableNotFoundError, match="was created again"):
        first.scan()
    with pytest.raises(TableExistsError, match=r"'t' is in .*; give another name, as in client"):
        client.recall_table(gone[0].id)
    gone.append(client.soft_delete_table("t", 60))
    assert names(client) == ["t", "t"]
    assert stored(client.recall_table(gone[0].id, "u")) == ROWS
    assert stored(client.recall_table(gone[1].id)) == [(7, 7)]
    assert client.list_tables() == ["t", "u"] and names(client) == []


@pytest.mark.parametrize("collect", ["create", "delete", "soft-delete", "maintain"])
def test_files_go_when_the_reserve_has_passed(core: CoreTables, collect: str):
    """With the next creation, deletion or maintenance of a table in the directory, not before."""
    clock = ManualClock()
    client = core.client(clock=clock)
    other = client.create_table("other", SCHEMA, primary_key="k")
    filled(client)
    deleted = client.soft_delete_table("t", 60)
    act = {
        "create": lambda number: client.create_table(f"n{number}", SCHEMA, primary_key="k"),
        "delete": lambda number: client.delete_table(
            client.create_table(f"n{number}", SCHEMA, primary_key="k").name
        ),
        "soft-delete": lambda number: client.soft_delete_table(
            client.create_table(f"n{number}", SCHEMA, primary_key="k").name, 600
        ),
        "maintain": lambda number: other.maintain(),
    }[collect]
    clock.microseconds += 59_999_999
    act(0)
    assert "t" in names(client)
    clock.microseconds += 1
    assert "t" in names(client)  # listing removes nothing
    act(1)
    assert "t" not in names(client)
    assert not list(client.root.glob(f"*{deleted.id}*")) and not list(client.root.glob(".deleted*"))
    with pytest.raises(TableNotFoundError, match=f"no soft-deleted table with id '{deleted.id}'"):
        client.recall_table(deleted.id)


def test_a_table_is_recalled_after_its_reserve_while_it_is_there(core: CoreTables):
    """Files that nobody has removed are not lost."""
    clock = ManualClock()
    client = core.client(clock=clock)
    filled(client)
    deleted = client.soft_delete_table("t", 1)
    clock.microseconds += 10**12
    assert stored(client.recall_table(deleted.id)) == ROWS


@pytest.mark.parametrize("seconds", [0, -1, 1.5, True, None, "60", 1 << 32])
def test_a_reserve_is_a_number_of_seconds(core: CoreTables, seconds):
    """From one on; the table stays."""
    client = core.client()
    filled(client)
    with pytest.raises(
        UsageError, match=r"expected a whole number from 1 to 4294967295; delete_ta"
    ):
        client.soft_delete_table("t", seconds)
    assert client.list_tables() == ["t"]


def test_what_is_not_there_is_listed(core: CoreTables):
    """By id and name."""
    client = core.client()
    with pytest.raises(TableNotFoundError, match="id 'x' in .*; soft-deleted tables: none"):
        client.recall_table("x")
    filled(client)
    deleted = client.soft_delete_table("t", 60)
    with pytest.raises(TableNotFoundError, match=rf"tables: {deleted.id} \('t'\)"):
        client.recall_table("x")
    assert [t.name for t in client.list_soft_deleted_tables("t")] == ["t"]
    assert client.list_soft_deleted_tables("u") == []


def test_a_soft_deletion_waits_for_commits_and_may_ask_for_a_version(core: CoreTables):
    """As a deletion does; nothing is left of a refused one."""
    client = core.client(lock_timeout_seconds=0.02)
    table = filled(client)
    table.flush()
    with pytest.raises(ConflictError, match="'t' is at version 3, not 1; not deleted"):
        client.soft_delete_table("t", 60, if_version=1)
    with table._store.turn() as lock:
        lock.announce("commit of write 9")
        with pytest.raises(LockTimeoutError, match="held by commit of write 9"):
            client.soft_delete_table("t", 60)
    assert [path.name for path in client.root.iterdir()] == ["t"]
    client.soft_delete_table("t", 60, if_version=3)


# -- several at once


class Interrupting(LocalStorage):
    """Calls `meanwhile` before its first rename."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._meanwhile: list[Callable[[], object]] = [meanwhile]

    def before(self, operation: str, path: Path) -> None:
        """Let another client act."""
        if operation == "rename" and self._meanwhile:
            self._meanwhile.pop()()


def test_of_two_recalls_one_fails(core: CoreTables, monkeypatch):
    """Also under two names, and of one that waits until the table is deleted again."""
    client = core.client()
    filled(client)
    deleted = client.soft_delete_table("t", 60)

    def fail_after(meanwhile: Callable[[], object]) -> None:
        def interrupted(*places: TableStore) -> TableStore:
            monkeypatch.undo()
            meanwhile()
            return move_table(*places)

        monkeypatch.setattr("kudulite.table.table_names.move_table", interrupted)
        with pytest.raises(
            TableNotFoundError, match="has just been recalled, or removed after its"
        ):
            core.client().recall_table(deleted.id, "u")

    fail_after(lambda: client.recall_table(deleted.id))
    assert client.list_tables() == ["t"] and stored(client.table("t")) == ROWS

    def recall_and_delete() -> None:
        client.recall_table(deleted.id)
        client.soft_delete_table("t", 60)

    client.soft_delete_table("t", 60)
    fail_after(recall_and_delete)
    assert stored(client.recall_table(deleted.id)) == ROWS


def test_of_a_recall_and_a_removal_one_fails(core: CoreTables):
    """The table is whole in its place, or it is gone; a new deletion of it is not removed."""
    client, clock = core.client(), ManualClock()

    def remove(meanwhile: Callable[[], object] | None = None) -> None:
        clock.microseconds = client._environment.clock.now() // 4096 + 60_000_000
        own = environment(clock=clock)
        if meanwhile is not None:
            own = environment(Interrupting(meanwhile), clock)
        Client(client.root, own).create_table("n", SCHEMA, primary_key="k")
        client.delete_table("n")

    filled(client)
    deleted = client.soft_delete_table("t", 30)
    remove(lambda: client.recall_table(deleted.id))
    assert stored(client.table("t")) == ROWS
    client.soft_delete_table("t", 30)

    def recall_and_delete() -> None:
        client.recall_table(deleted.id)
        client.soft_delete_table("t", 3600)

    remove(recall_and_delete)
    assert stored(client.recall_table(deleted.id)) == ROWS
    client.soft_delete_table("t", 30)
    slow = core.client(storage=Interrupting(remove))
    with pytest.raises(TableNotFoundError, match="has just been recalled, or removed after its"):
        slow.recall_table(deleted.id)
    assert [path.name for path in client.root.iterdir()] == []


# -- tables that are made out of sight


def test_a_staged_table_is_no_table_until_it_is_published(core: CoreTables):
    """Then it has its name, its rows and its past; nothing of the staging is left."""
    client = core.client()
    table = filled(client.new_staging())
    before = table.current_timestamp()
    table.delete([{"k": 1}])
    table_id = table.id
    assert (client.list_tables(), names(client)) == ([], [])
    published = client.publish_table(table)
    assert (published.id, published.path) == (table_id, client.root / "t")
    assert stored(published) == [(2, 20)]
    assert published.scan(at=before).count() == 2
    assert [path.name for path in client.root.iterdir()] == ["t"]
    with pytest.raises(UsageError, match=r"'t' at .* is not staged"):
        client.publish_table(published)


def test_a_published_table_replaces_another_only_if_asked(core: CoreTables):
    """The replaced one can be recalled; a refused one stays staged."""
    client = core.client()
    old_id = filled(client).id
    staged = client.new_staging().create_table("t", SCHEMA, primary_key="k")
    staged.insert([{"k": 7, "v": 70}])
    with pytest.raises(TableExistsError, match="'t' is in"):
        client.publish_table(staged)
    assert (stored(client.table("t")), stored(staged)) == (ROWS, [(7, 70)])
    assert stored(client.publish_table(staged, overwrite=True, reserve_seconds=60)) == [(7, 70)]
    (replaced,) = client.list_soft_deleted_tables()
    assert replaced.id == old_id
    assert replaced.expires - replaced.deleted == datetime.timedelta(seconds=60)
    assert stored(client.recall_table(old_id, "old")) == ROWS
    with pytest.raises(UsageError, match="expected 1 to"):
        client.new_staging(0)


class Watched(LocalStorage):
    """Calls an action ahead of each durable step."""

    def __init__(self, action: Callable[[], object], *, can_exchange: bool = True) -> None:
        self.action, self.can_exchange = action, can_exchange

    def before(self, operation: str, path: Path) -> None:
        """Act."""
        self.action()

    def exchange(self, one: Path, other: Path) -> bool:
        """Exchange the names, if this file system can."""
        return self.can_exchange and super().exchange(one, other)


def staged_with(client: Client, key: int) -> Table:
    """A staged table with one row."""
    table = client.new_staging().create_table("t", SCHEMA, primary_key="k")
    table.insert([{"k": key, "v": 0}])
    return table


def test_a_name_leads_to_one_of_the_tables_at_all_times(core: CoreTables):
    """Each step of a replacement leaves the old table there, or the new one."""
    seen, old_id = [], filled(core.client()).id
    client = core.client(storage=Watched(lambda: seen.append(core.client().table("t").id)))
    made = staged_with(core.client(), 7)
    made_id = made.id
    client.publish_table(Client(made.path.parent, client._environment).table("t"), overwrite=True)
    assert [table_id for table_id, _ in itertools.groupby(seen)] == [old_id, made_id]


def test_a_read_that_was_planned_reads_the_replaced_table(core: CoreTables):
    """Its tokens, and the table opened by its id, find it among those that can be recalled."""
    client = core.client()
    table = filled(client)
    tokens, old_id = table.scan_tokens(), table.id
    client.publish_table(staged_with(client, 7), overwrite=True)
    assert (
        in_order(row for token in tokens for batch in token.open() for row in tuples(batch)) == ROWS
    )
    assert stored(kudulite.open_table(client.root / "t", table_id=old_id)) == ROWS
    assert stored(kudulite.open_table(client.root / "t")) == [(7, 0)]
    client.delete_table("t")
    filled(client)
    (replaced,) = client.list_soft_deleted_tables()
    client.recall_table(replaced.id, "old")
    with pytest.raises(ConflictError, match="another table has taken its name"):
        kudulite.open_table(client.root / "t", table_id=old_id)
    with pytest.raises(ConflictError, match="read it again"):
        list(tokens[0].open())


@pytest.mark.parametrize("can_exchange", [True, False])
def test_of_two_publications_the_second_replaces_the_first(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
):
    """Also where the file system cannot exchange names; both replaced tables can be recalled."""
    client = core.client(storage=Watched(lambda: None, can_exchange=can_exchange))
    filled(client)
    first, second = staged_with(client, 2), staged_with(client, 3)

    def replace_late(store: TableStore, target: TableStore, reserve_seconds: int) -> None:
        monkeypatch.setattr(table_names, "_replace_table", _replace_table)
        client.publish_table(second, overwrite=True)
        _replace_table(store, target, reserve_seconds)

    monkeypatch.setattr(table_names, "_replace_table", replace_late)
    client.publish_table(first, overwrite=True)
    assert stored(client.table("t")) == [(2, 0)]
    recalled = [
        stored(client.recall_table(deleted.id, f"t{number}"))
        for number, deleted in enumerate(client.list_soft_deleted_tables())
    ]
    assert recalled == [[(3, 0)], ROWS]
    assert not [path for path in client.root.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("how", ["published", "created"])
def test_a_table_that_takes_the_free_name_meanwhile_is_replaced(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch, how: str
):
    """It is there when the publication has looked and found none."""
    client, other, move = core.client(), core.client(), table_names.move_table
    first, second = staged_with(client, 2), staged_with(other, 3)

    def move_late(store: TableStore, target: TableStore) -> TableStore:
        monkeypatch.setattr(table_names, "move_table", move)
        if how == "published":
            other.publish_table(second, overwrite=True)
        else:
            filled(other)
        return move(store, target)

    monkeypatch.setattr(table_names, "move_table", move_late)
    client.publish_table(first, overwrite=True)
    assert stored(client.table("t")) == [(2, 0)]
    assert len(client.list_soft_deleted_tables()) == 1


def test_a_publication_that_is_outrun_for_ever_says_so(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch
):
    """The staged table stays, and may be published again."""
    monkeypatch.setattr(table_names, "_WAIT_SECONDS", 0.0)
    client = core.client()
    filled(client)
    table = staged_with(client, 2)

    def outrun(store: TableStore, target: TableStore, reserve_seconds: int) -> None:
        raise TableNotFoundError("replaced")

    monkeypatch.setattr(table_names, "_replace_table", outrun)
    with pytest.raises(ConflictError, match="call again"):
        client.publish_table(table, overwrite=True)
    monkeypatch.setattr(table_names, "_replace_table", _replace_table)
    assert stored(client.publish_table(table, overwrite=True)) == [(2, 0)]


def test_a_folder_without_a_version_is_not_replaced(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch
):
    """It may be that of a creation under way, so the error is that of a table that exists."""
    monkeypatch.setattr(table_names, "_WAIT_SECONDS", 0.0)
    client = core.client()
    table = staged_with(client, 2)
    (client.root / "t" / "manifest").mkdir(parents=True)
    with pytest.raises(TableExistsError):
        client.publish_table(table, overwrite=True)
    assert stored(table) == [(2, 0)]


@pytest.mark.parametrize("step", range(6))
@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_full_disk_leaves_both_tables(core: CoreTables, step: int, can_exchange: bool):
    """Whichever step fails: the old table has its name, and the new one can be published."""
    client, left = core.client(), [step]
    filled(client)
    table = staged_with(client, 2)

    def fill_disk() -> None:
        left[0] -= 1
        if left[0] == -1:
            raise StorageError(errno.ENOSPC, "no space")

    full = core.client(storage=Watched(fill_disk, can_exchange=can_exchange))
    hidden = Client(table.path.parent, full._environment).table("t")
    with suppress(StorageError):
        full.publish_table(hidden, overwrite=True)
        return
    if table.path.exists():
        assert stored(core.client().table("t")) == ROWS
        assert stored(client.publish_table(table, overwrite=True)) == [(2, 0)]
    assert stored(core.client().table("t")) == [(2, 0)]


def test_a_staged_table_that_is_not_published_is_removed_after_its_reserve(core: CoreTables):
    """By the next creation of a table, as a soft-deleted one."""
    client = core.client()
    filled(client.new_staging(3600))
    client.create_table("other", SCHEMA, primary_key="k")
    assert len(list(client.root.iterdir())) == 2
    expire(client)
    assert sorted(path.name for path in client.root.iterdir()) == ["new", "other"]


# -- a process dies, or power is lost


def soft_delete(client: Client) -> None:
    """The table is set aside."""
    client.soft_delete_table("t", 3600)


def recall(client: Client) -> None:
    """The table is brought back under another name."""
    (deleted,) = client.list_soft_deleted_tables()
    client.recall_table(deleted.id, "u")


def prepared(client: Client) -> None:
    """A table that is set aside."""
    filled(client)
    soft_delete(client)


def expire(client: Client) -> None:
    """An hour later, another table is made, which removes the expired one."""
    clock = ManualClock(client._environment.clock.now() // 4096 + 3600 * 1_000_001)
    same = environment(client._environment.storage, clock)
    Client(client.root, same).create_table("new", SCHEMA, primary_key="k")


def staged(client: Client) -> None:
    """A table that is not published."""
    filled(client.new_staging())


def staged_beside(client: Client) -> None:
    """A table, and another of its name with other rows that is not published."""
    filled(client)
    other = client.new_staging().create_table("t", SCHEMA, primary_key="k")
    other.insert([{"k": 7, "v": 70}])


def publish(client: Client) -> None:
    """The staged table gets its name."""
    (folder,) = client.root.glob(".staged-*")
    hidden = Client(folder, client._environment)
    client.publish_table(hidden.table("t"), overwrite=True)


CASES: dict[str, tuple[Callable[[Client], object], Callable[[Client], object]]] = {
    "soft-delete": (filled, soft_delete),
    "recall": (prepared, recall),
    "expire": (prepared, expire),
    "publish": (staged, publish),
    "replace": (staged_beside, publish),
}


def state(root: Path) -> list[list]:
    """Return the tables, and those that can be recalled; each is read and checked."""
    client = Client(root, environment())
    here = [[name, stored(client.table(name))] for name in client.list_tables()]
    for deleted in client.list_soft_deleted_tables():
        table = client.recall_table(deleted.id, "recalled")
        table.check().raise_if_bad()
        here.append([f"soft-deleted {deleted.name}", stored(table)])
        client.delete_table(table.name)
    return here


def allowed(case: str, acknowledged: bool) -> list[list]:
    """The states that a crash may leave."""
    soft, old, new = ["soft-deleted t", ROWS], ["t", ROWS], ["u", ROWS]
    if case == "expire":
        # Removal after the new table is there may have come to any of its steps.
        return [[["new", []]]] if acknowledged else [[soft], [["new", []], soft], [["new", []]]]
    if case == "publish":
        return [[old]] if acknowledged else [[], [old]]
    if case == "replace":
        new = [(7, 70)]
        after, between = [["t", new], soft], [old, ["soft-deleted t", new]]
        return [after] if acknowledged else [[old], between, after]
    before, after = {"soft-delete": (old, soft), "recall": (soft, new)}[case]
    return [[after]] if acknowledged else [[before], [after]]


@pytest.mark.parametrize("how", ["exit", "error"])
@tiered("case", list(CASES), quick=1)
def test_a_process_killed_at_any_step_leaves_the_table_in_one_place(
    core: CoreTables, case: str, how: str
):
    """Whole, and the next deletion and creation work."""
    prepare, work = CASES[case]
    base, steps, is_done = core.root / "base", 0, False
    prepare(Client(base, environment()))
    while not is_done:
        root = core.root / f"{how}-{steps}"
        shutil.copytree(base, root)
        dying = KillingStorage(steps, exits=how == "exit")
        client = Client(root, environment(dying))
        is_done = ran_to_its_end(lambda c=client: work(c), in_child=how == "exit")
        assert state(root) in allowed(case, is_done), steps
        client = Client(root, environment())
        client.delete_table(filled(client, "again").name)
        for name in client.list_tables():
            client.delete_table(name)
        # An empty folder of a killed deletion stays until its reserve has passed, and so does a
        # table that was not published.
        hidden = [path for path in root.glob(".*") if not path.name.startswith(".staged-")]
        assert not [path for path in hidden if any(path.iterdir())]
        shutil.rmtree(root)
        steps += 1
    assert steps > {"soft-delete": 3, "recall": 2, "expire": 10, "publish": 3, "replace": 6}[case]


@tiered("case", list(CASES), quick=1)
def test_power_lost_at_any_step_leaves_the_table_in_one_place(core: CoreTables, case: str):
    """In every state that the disk may be in."""
    prepare, work = CASES[case]
    root = core.root / "disk"
    prepare(Client(root / "db", environment()))

    def acknowledged(disk) -> None:
        work(Client(root / "db", environment()))
        disk.acknowledge()

    states, _ = recorded_states(root, acknowledged)
    assert len(states) > 5
    for number, lost in enumerate(states):
        place = core.root / f"lost-{number}"
        lost.write_to(place)
        assert state(place / "db") in allowed(case, bool(lost.acknowledged)), lost.mode
        shutil.rmtree(place)
