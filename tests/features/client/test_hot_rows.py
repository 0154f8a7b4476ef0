"""Writes of many rows beside writers of a few: only what changed is read and staged again."""

import random
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

import kudulite
from kudulite.client import batch_writer, computed_writes
from kudulite.client.batch_writer import BatchWriter
from kudulite.client.bulk_write import BulkWrite
from kudulite.errors import ConflictError
from kudulite.table.table_store import TableStore
from kudulite.writes.stager import Stager
from tests.support.tables.core_tables import CoreTables, altered, stored
from tests.support.tiers import tiered

SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.int64()), ("s", pa.string())])
COUNT = 1000
Beside = Callable[[Callable[[], object]], None]


def rows(keys, value: int = 0) -> pa.Table:
    """Rows of one value."""
    return pa.table({"k": [*keys], "v": [value] * len(keys), "s": ["x"] * len(keys)}, SCHEMA)


@pytest.fixture
def table(core: CoreTables) -> kudulite.Table:
    """Rows of value 0 in two tablets."""
    client = core.client()
    table = client.create_table("t", SCHEMA, primary_key="k", hash_partitions=[(["k"], 2)])
    table.upsert(rows(range(COUNT)))
    return table


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Iterator[Beside]:
    """Run an action of another writer before each step of every write: between all of its reads."""
    is_busy = False

    def install(action: Callable[[], object]) -> None:
        def hook(owner: type, name: str) -> None:
            plain = getattr(owner, name)

            def run(*args, **options):
                nonlocal is_busy
                if not is_busy:
                    is_busy = True
                    action()
                    is_busy = False
                return plain(*args, **options)

            monkeypatch.setattr(owner, name, run)

        hook(BatchWriter, "run")
        hook(BulkWrite, "settled")
        hook(BulkWrite, "_staged")
        hook(BulkWrite, "commit")
        hook(TableStore, "locked")

    yield install
    monkeypatch.undo()


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each call that stages rows."""
    counts: list[int] = []
    plain = Stager._stage_pieces

    def counted(self, pieces, *rest):
        counts.append(sum(piece.num_rows for piece in pieces))
        return plain(self, pieces, *rest)

    monkeypatch.setattr(Stager, "_stage_pieces", counted)
    return counts


def hot_row(core: CoreTables, key: int = 7) -> Callable[[], None]:
    """A session of another process that counts one row up."""
    client = core.client()
    table = client.table("t")
    number = 0

    def write() -> None:
        nonlocal number
        number += 1
        with client.new_session() as session:
            session.apply(table.new_update({"k": key, "s": f"hot {number}"}))

    return write


def test_an_update_of_all_rows_beside_a_hot_row_is_written(core, table, beside, staged):
    """The cells of the other writer stay; all rows are staged once again at most."""
    beside(hot_row(core))
    result = table.update(where=(), set={"v": 5})
    assert (result.updated, result.ignored) == (COUNT, 0)
    assert {row[1] for row in stored(table)} == {5}
    assert table.get(7)["s"].startswith("hot ")
    assert sum(count >= COUNT for count in staged) <= 2
    assert sum(count for count in staged if count < COUNT) <= 20


def test_a_delete_beside_a_hot_row_is_written(core, table, beside):
    """The row is deleted with all others; its writer then changes nothing."""
    client = core.client()
    other = client.table("t")

    def touch() -> None:
        with client.new_session() as session:
            session.apply(other.new_upsert({"k": 7, "v": 1}))

    beside(touch)
    assert table.delete(where="k < 500").deleted == 500
    assert [row[0] for row in stored(table)] == [*range(500, COUNT)]


def test_a_restore_beside_a_hot_row_is_written(core, table, beside, staged):
    """The row is as it was then, whatever was written meanwhile."""
    before, moment = stored(table), table.current_timestamp()
    table.upsert(rows(range(500, 1500), 3))
    table.delete(where="k < 100")
    staged.clear()
    beside(hot_row(core, 700))
    result = table.restore(moment)
    assert (result.inserted, result.deleted) == (100, 500) and result.updated in (500, 501)
    assert stored(table) == before
    assert sum(count >= COUNT for count in staged) <= 2
    assert table.versions()[0].operation == "restore"


def test_rows_that_begin_or_cease_to_match_are_seen(core, table, beside):
    """All rows are those of one moment: inserts, deletes and updates of others count as before."""
    other = core.client().table("t")
    steps = iter(
        [
            lambda: other.upsert(rows([1], 9)),
            lambda: other.delete(rows([2]).select(["k"])),
            lambda: other.insert(rows([2000])),
            lambda: other.insert(rows([2001], 9)),
            lambda: other.upsert(rows([3], 9)),
            lambda: other.upsert(rows([1])),
        ]
    )
    beside(lambda: next(steps, lambda: None)())
    table.update(where="v = 0", set={"v": 1})
    found = {row[0]: row[1] for row in stored(table)}
    assert (found[1], found.get(2), found[2000], found[2001], found[3]) == (1, None, 1, 9, 9)
    assert sum(value == 1 for value in found.values()) == COUNT - 1


def test_an_alteration_in_the_way_is_a_conflict(core, table, beside):
    """The columns of the write may not be what they were."""
    numbers = iter(range(1000))
    beside(
        lambda: altered(
            core.client(), "t", lambda a: a.add_column(f"w{next(numbers)}", "int32", default=1)
        )
    )
    with pytest.raises(ConflictError, match="update was tried 10 times, and the table was altered"):
        table.update(where=(), set={"v": 5})


@tiered("seed", range(20))
def test_a_write_beside_random_writers_is_that_of_one_moment(core, seed, beside, monkeypatch):
    """It equals the write applied to the rows right before its version, if it reads rows again.

    A first attempt without a conflict is that of the moment of its scan.
    """
    again = computed_writes.until_unchanged
    monkeypatch.setattr(
        computed_writes,
        "until_unchanged",
        lambda store, what, attempt: again(store, what, lambda _: attempt(True)),
    )
    choose = random.Random(seed)
    client = core.client(small_write_rows_max=choose.choice([0, 1000]))
    table = client.create_table("t", SCHEMA, primary_key="k", hash_partitions=[(["k"], 3)])
    table.upsert(rows(range(60)))
    moment = table.current_timestamp()
    then = stored(table)
    table.upsert(rows(range(30, 90), 3))
    other = core.client(small_write_rows_max=0).table("t")

    def act() -> None:
        keys = choose.sample(range(120), choose.randint(1, 3))
        match choose.choice(["upsert", "delete", "session", "flush", "compact"]):
            case "upsert":
                other.upsert(rows(keys, choose.choice([0, 3, 4])))
            case "delete":
                other.delete_ignore(rows(keys).select(["k"]))
            case "session":
                with client.new_session() as session:
                    session.apply(table.new_upsert({"k": keys[0], "v": choose.choice([0, 3])}))
            case "flush":
                other.flush()
            case "compact":
                other.compact()

    beside(act)
    kind = choose.choice(["update", "delete", "restore"])
    if kind == "update":
        result = table.update(where="v = 3", set={"v": 5})
    elif kind == "delete":
        result = table.delete(where="v = 3")
    else:
        result = table.restore(moment)
    before, after = stored(table, result.timestamp - 1), stored(table, result.timestamp)
    expected = {
        "update": [(k, 5 if v == 3 else v, s) for k, v, s in before],
        "delete": [row for row in before if row[1] != 3],
        "restore": then,
    }
    assert after == expected[kind], (seed, kind)


# -- writes of few rows, which compute changed rows again in their turn


@pytest.fixture
def before_its_turn(monkeypatch: pytest.MonkeyPatch) -> Beside:
    """Run an action of another writer between the scan of a small write and its turn."""
    plain = batch_writer.write_few

    def install(action: Callable[[], object]) -> None:
        actions = [action]

        def run(*args, **options):
            while actions:
                actions.pop()()
            return plain(*args, **options)

        monkeypatch.setattr(batch_writer, "write_few", run)

    return install


def small_table(core: CoreTables, count: int = 20) -> kudulite.Table:
    """Rows whose value is their key, in three tablets."""
    client = core.client(small_write_rows_max=1000)
    table = client.create_table("few", SCHEMA, primary_key="k", hash_partitions=[(["k"], 3)])
    table.insert(pa.table({"k": [*range(count)], "v": [*range(count)], "s": ["x"] * count}, SCHEMA))
    return table


def test_a_small_update_counts_on_from_what_others_have_counted(core, before_its_turn):
    """It is one commit of the log: the rows are computed again, and no version is published."""
    table = small_table(core)
    other = core.client(small_write_rows_max=1000).table("few")
    version = table.version
    before_its_turn(lambda: other.update(where="k = 7", set={"v": "v + 100"}))
    assert table.update(where="k <= 7", set={"v": "v + 1"}).updated == 8
    assert [row[1] for row in stored(table)][:8] == [1, 2, 3, 4, 5, 6, 7, 108]
    assert table.version == version


def test_a_small_write_sees_rows_that_begin_and_cease_to_match(core, before_its_turn):
    """Deleted ones are left, inserted ones are changed; the condition is that of its turn."""
    table = small_table(core)
    other = core.client().table("few")

    def act() -> None:
        other.delete(rows([1]).select(["k"]))
        other.upsert(rows([2], 900))
        other.upsert(rows([15, 40], 3))

    before_its_turn(act)
    assert table.update(where="v < 5", set={"v": "v * 10"}).updated == 5
    found = {row[0]: row[1] for row in stored(table)}
    assert (found.get(1), found[2], found[15], found[40]) == (None, 900, 30, 30)
    assert (found[0], found[3], found[4], found[5]) == (0, 30, 40, 5)


@pytest.mark.parametrize("has_label", [False, True])
def test_a_small_write_whose_rows_are_all_gone_writes_nothing(core, before_its_turn, has_label):
    """Its application version is committed all the same."""
    table = small_table(core)
    other = core.client().table("few")
    labels = {"application_id": "job", "application_version": 1} if has_label else {}
    before_its_turn(lambda: other.delete(where="v < 5"))
    assert table.delete(where="v < 5", **labels).deleted == 0
    assert [row[0] for row in stored(table)] == [*range(5, 20)]
    assert table.delete(where="v < 6", **labels).skipped is has_label


def test_a_small_restore_undoes_what_others_write_before_its_turn(core, before_its_turn):
    """Rows are as they were; also those that others inserted, deleted and changed."""
    table = small_table(core)
    before, moment = stored(table), table.current_timestamp()
    other = core.client().table("few")
    table.upsert(rows([1, 2, 30], 900))

    def act() -> None:
        other.delete(rows([1, 3]).select(["k"]))
        other.upsert(rows([2, 30, 31], 901))

    before_its_turn(act)
    table.restore(moment)
    assert stored(table) == before


@tiered("seed", range(20))
def test_a_small_write_beside_random_writers_is_that_of_its_turn(core, seed, before_its_turn):
    """It equals the write applied to the rows right before it, as one row that it reads changes."""
    choose = random.Random(seed)
    table = small_table(core, 60)
    moment, then = table.current_timestamp(), stored(table)
    table.upsert(rows(range(30, 90), 3))
    other = core.client(small_write_rows_max=choose.choice([0, 1000])).table("few")

    def act() -> None:
        other.upsert(rows([40], 3))
        for _ in range(choose.randint(1, 6)):
            keys = choose.sample(range(120), choose.randint(1, 9))
            match choose.choice(["upsert", "delete", "flush", "compact", "add"]):
                case "upsert":
                    other.upsert(rows(keys, choose.choice([0, 3, 4])))
                case "delete":
                    other.delete_ignore(rows(keys).select(["k"]))
                case "flush":
                    other.flush()
                case "compact":
                    other.compact()
                case "add":
                    other.update(where="v = 3", set={"v": "v + 0", "s": "y"})

    before_its_turn(act)
    kind = choose.choice(["update", "delete", "restore"])
    if kind == "update":
        result = table.update(where="v = 3 OR s = 'y'", set={"v": "v + k"})
    elif kind == "delete":
        result = table.delete(where="v = 3")
    else:
        result = table.restore(moment)
    before, after = stored(table, result.timestamp - 1), stored(table, result.timestamp)
    expected = {
        "update": [(k, v + k if v == 3 or s == "y" else v, s) for k, v, s in before],
        "delete": [row for row in before if row[1] != 3],
        "restore": then,
    }
    assert after == expected[kind], (seed, kind)
