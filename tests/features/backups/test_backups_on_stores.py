"""Backups, restores and exports at addresses; on a store nothing keeps two jobs apart."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kudulite
from kudulite import Backup, Client, Table
from kudulite.backups.backup_job import BackupJob
from kudulite.backups.format import GIVEN_UP, MANIFEST_NAME
from kudulite.errors import (
    ConflictError,
    CorruptionError,
    KuduliteError,
    NotFoundError,
    OptionError,
    StorageError,
    TableExistsError,
    UsageError,
)
from kudulite.storage import object_storage
from kudulite.storage.address import parse_address
from kudulite.storage.object_storage import object_storage_of
from tests.support.command_line import error, output, value
from tests.support.doubles.faulty_library import MODULES, FaultyLibrary, RandomFaults
from tests.support.machines.backup_chain import CHANGES, NAME, make_chain, make_table, state_of
from tests.support.tables.core_tables import stored
from tests.support.tables.memory_buckets import MemoryBuckets
from tests.support.tiers import tiered

Place = tuple[str, dict[str, str]]
KINDS = ["directory", "store"]
SEED_COUNT = 12
RACES = [(None, 3), (True, 2)]
RESTORES = [(True, True, 61), (False, True, 61)]


@pytest.fixture
def buckets(monkeypatch: pytest.MonkeyPatch) -> MemoryBuckets:
    """Buckets in memory."""
    return MemoryBuckets(monkeypatch)


@pytest.fixture
def new_place(buckets: MemoryBuckets, tmp_path: Path) -> Callable[[str, str], Place]:
    """A place of a kind for something: an address, and its options."""

    def made(kind: str, name: str) -> Place:
        if kind == "directory":
            return str(tmp_path / name), {}
        root, options = buckets.new()
        return f"{root}/of/{name}", options

    return made


def connected(place: Place) -> Client:
    """A client without background work."""
    root, options = place
    return kudulite.connect(root, background_maintenance=False, storage_options=options)


@pytest.fixture
def client(new_place: Callable[[str, str], Place]) -> Client:
    """A directory of tables in a bucket."""
    return connected(new_place("store", "tables"))


@pytest.fixture
def target(new_place: Callable[[str, str], Place]) -> Place:
    """A place for backups in another bucket."""
    return new_place("store", "set")


@pytest.mark.parametrize("of_restored", KINDS)
@pytest.mark.parametrize("of_set", KINDS)
@pytest.mark.parametrize("of_table", KINDS)
def test_backups_go_from_any_store_to_any_other(
    new_place: Callable[[str, str], Place], of_table: str, of_set: str, of_restored: str
):
    """A full one and its increments, each with options of its own; each restores exactly."""
    client = connected(new_place(of_table, "tables"))
    target, options = new_place(of_set, "set")
    root, root_options = new_place(of_restored, "restored")
    made = make_chain(client, target, storage_options=options, content_hash=True)
    assert [backup.kind for backup, _ in made] == ["full"] + ["incremental"] * 3
    assert kudulite.list_backups(target, storage_options=options) == [each for each, _ in made]
    assert kudulite.verify_backups(target, storage_options=options) == {}
    for number, (backup, state) in enumerate(made):
        assert str(backup.path) == f"{target}/{backup.id}"
        backup.verify()
        table = kudulite.restore(
            target,
            f"{root}/r{number}",
            at=backup.id if number % 2 else backup.moment,
            storage_options=options,
            table_storage_options=root_options,
        )
        assert state_of(table) == state
        table.check().raise_if_bad()
    assert connected((root, root_options)).list_tables() == [f"r{n}" for n in range(4)]


def test_options_are_of_one_address_each(client: Client, target: Place):
    """Those of the table do not reach the backups; no secret is shown."""
    table, (address, options) = make_table(client), target
    with pytest.raises((OptionError, StorageError)) as found:
        kudulite.backup(table, address)
    assert "SECRET" not in str(found.value)
    with kudulite.begin_backup(table, address, storage_options=options) as job:
        pieces = pickle.loads(pickle.dumps(job.pieces))
        for piece in pieces:
            piece.run()
        backup = job.finish()
        assert "SECRET" not in f"{job!r} {pieces!r} {backup!r}"
    for call in (kudulite.list_backups, kudulite.verify_backups):
        with pytest.raises((OptionError, StorageError)):
            call(address)
    with pytest.raises(OptionError, match="is a directory, which has no storage options"):
        kudulite.backup(table, "/tmp/somewhere", storage_options=options)


def test_the_folder_of_a_table_is_no_place_for_backups(tmp_path: Path):
    """Its lock would be the lock of the set."""
    table = make_table(connected((str(tmp_path), {})))
    with pytest.raises(UsageError, match="is a table; give a place for its backups outside it"):
        kudulite.backup(table, table.path)


def test_a_backup_that_was_interrupted_goes_on(client: Client, target: Place):
    """At its own moment with the files that it has; one that was damaged is written again."""
    table, (address, options) = make_table(client), target
    with kudulite.begin_backup(table, address, storage_options=options) as job:
        before = stored(table)
        for piece in job.pieces[:-1]:
            piece.run()
        files = [piece.result().file for piece in job.pieces[:-1]]
    place = parse_address(address, options)
    storage = object_storage_of(place.storage)
    damaged = place.path / str(job.pieces[0].result_path.parent.name) / files[0].ref.name
    storage.put_hint(damaged, storage.read(damaged)[:-1] + b"?")
    table.delete([{"k": 0, "h": "h0"}])
    with kudulite.begin_backup(table, address, storage_options=options) as again:
        assert again.is_resumed and again.moment == job.moment
        again.run()
        backup = again.finish()
    kept = {file.ref.name for file in backup.files}
    assert {file.ref.name for file in files[1:]} <= kept and files[0].ref.name not in kept
    assert names_of_set(target) == {MANIFEST_NAME, *kept}
    restored = kudulite.restore(
        address,
        f"{client.root}/r",
        storage_options=options,
        table_storage_options=options_of(client),
    )
    assert stored(restored) == before


def options_of(client: Client) -> dict[str, str]:
    """The options of a client's storage, as a user types them."""
    found = dict(client._environment.storage.address.options.items)
    return {f"aws_{name}": text for name, text in found.items()}


def names_of_set(target: Place) -> set[str]:
    """The last parts of all names in a set, but for manifests of backups that were given up."""
    place = parse_address(*target)
    storage = object_storage_of(place.storage)
    return {
        name
        for folder, names in storage.names_below(place.path).items()
        for name in names
        if name != MANIFEST_NAME or storage.read(folder / name) != GIVEN_UP
    }


def test_two_jobs_of_one_kind_make_one_backup(client: Client, target: Place):
    """The second job continues the first one, and both return the same backup."""
    table, (address, options) = make_table(client), target
    with kudulite.begin_backup(table, address, storage_options=options) as first:
        first.pieces[0].run()
        with kudulite.begin_backup(table, address, storage_options=options) as second:
            assert second.is_resumed
            second.run()
            made = second.finish()
        first.run()
        assert first.finish() == made
        first.pieces[0].run()
    assert kudulite.list_backups(address, storage_options=options) == [made]
    assert names_of_set(target) == {MANIFEST_NAME, *(file.ref.name for file in made.files)}


def test_a_set_may_be_above_other_sets(client: Client, target: Place):
    """Their folders are not looked into."""
    table, (address, options) = make_table(client), target
    inner = kudulite.backup(table, f"{address}/inner", storage_options=options)
    stray = inner.path / "piece-00000.json"
    storage = object_storage_of(parse_address(address, options).storage)
    storage.put(stray, b"of a job that was late")
    outer = kudulite.backup(table, address, storage_options=options)
    assert kudulite.list_backups(address, storage_options=options) == [outer]
    assert storage.exists(stray)
    kudulite.backup(table, f"{address}/inner", storage_options=options)
    assert not storage.exists(stray)


def test_a_backup_of_another_kind_gives_one_up(client: Client, target: Place):
    """Its job, which may still be at work, cannot publish a manifest without files."""
    table, (address, options) = make_table(client), target
    backup = partial(kudulite.backup, table, address, storage_options=options)
    backup()
    CHANGES[0](client)
    table = client.table(NAME)
    with kudulite.begin_backup(table, address, storage_options=options) as late:
        late.pieces[0].run()
        made = backup(full=True)
        with pytest.raises(ConflictError, match="given this one up; take another backup"):
            late.finish()
        late.run()
        with pytest.raises(ConflictError, match="given this one up"):
            late.finish()
    listed = kudulite.list_backups(address, storage_options=options)
    assert [each.kind for each in listed] == ["full", "full"] and listed[1] == made
    assert names_of_set(target) == {
        MANIFEST_NAME,
        *(file.ref.name for each in listed for file in each.files),
    }
    gone = late.pieces[0].result_path.parent.name
    with pytest.raises(NotFoundError, match=rf"has no backup '{gone}'; backups: .*{made.id}"):
        kudulite.begin_restore(address, f"{client.root}/r", at=gone, storage_options=options)
    assert backup(full=False).parent == made.id


def test_a_backup_is_given_up_while_it_is_finished(
    client: Client, target: Place, monkeypatch: pytest.MonkeyPatch
):
    """The files that are missing then are no damage."""
    table, (address, options) = make_table(client), target
    backup = partial(kudulite.backup, table, address, storage_options=options)
    backup()
    CHANGES[0](client)
    publish = BackupJob._publish

    def late(job: BackupJob) -> None:
        monkeypatch.setattr(BackupJob, "_publish", publish)
        backup(full=True)
        publish(job)

    monkeypatch.setattr(BackupJob, "_publish", late)
    with pytest.raises(ConflictError, match="given this one up; take another backup"):
        backup()
    assert kudulite.verify_backups(address, storage_options=options) == {}


def raced(
    buckets: MemoryBuckets,
    work: Callable[[], object],
    other: Callable[[], object],
    each: int,
) -> Iterator[tuple[int, object]]:
    """Do work with another one before one of its steps; yield the step and what it ended with."""
    number, is_over = 0, False
    while not is_over:
        steps = buckets.before_step(number, other)
        try:
            found = work()
        except KuduliteError as error:
            found = error
        is_over = not steps.end()
        if not is_over:
            yield number, found
        number += each


@tiered(("full", "each"), [(None, 1), (False, 1), (True, 1), *RACES], quick=RACES)
def test_two_jobs_at_any_two_steps_lose_nothing(
    buckets: MemoryBuckets, client: Client, target: Place, full: bool | None, each: int
):
    """Each ends with a whole backup or with one clear error; all that is listed restores."""
    table, (address, options) = make_table(client), target
    backup = partial(kudulite.backup, storage_options=options)
    backup(table, address)
    made: list[Backup] = []
    ended = set()

    def other() -> None:
        table.upsert([{"k": 299, "h": "x", "b": len(made)}])
        made.append(backup(table, address, full=full))

    def work() -> Backup:
        table.upsert([{"k": 298, "h": "y", "b": len(made)}])
        return backup(table, address)

    for number, found in raced(buckets, work, other, each):
        if isinstance(found, ConflictError):
            ended.add("error")
            assert "given this one up" in str(found) or "just finished" in str(found), number
        else:
            ended.add("backup")
            assert isinstance(found, Backup), (number, found)
        listed = kudulite.list_backups(address, storage_options=options)
        assert made[-1] in listed, number
        assert isinstance(found, KuduliteError) or found in listed, number
        assert kudulite.verify_backups(address, storage_options=options) == {}, number
        buckets.before_step(-1, lambda: None)
        newest = backup(table, address, full=False)
        restored = kudulite.restore(
            address,
            f"{client.root}/r",
            at=newest.id,
            overwrite=True,
            storage_options=options,
            table_storage_options=options_of(client),
        )
        assert stored(restored) == stored(table), number
    assert ended == ({"error", "backup"} if full else {"backup"})
    listed = kudulite.list_backups(address, storage_options=options)
    files = {file.ref.name for backup in listed for file in backup.files}
    assert names_of_set(target) == {MANIFEST_NAME, *files}


@tiered(
    ("is_same", "overwrite", "each"),
    [*((same, over, 41) for same in (True, False) for over in (True, False)), *RESTORES],
    quick=RESTORES,
)
def test_two_restores_at_any_two_steps_end_with_a_whole_table(
    buckets: MemoryBuckets,
    client: Client,
    target: Place,
    is_same: bool,
    overwrite: bool,
    each: int,
):
    """That of one of them; the other one has the same, or an error."""
    address, options = target
    made = make_chain(client, address, storage_options=options)
    states = [state for _, state in made]
    first, second = made[-1][0], made[-1 if is_same else -2][0]
    expected, path = (states[-1], states[-1 if is_same else -2]), f"{client.root}/r"
    restore = partial(
        kudulite.restore,
        address,
        path,
        overwrite=overwrite,
        storage_options=options,
        table_storage_options=options_of(client),
    )
    others: list[object] = []

    def other() -> None:
        try:
            others.append(restore(at=second.id))
        except KuduliteError as error:
            others.append(error)

    for number, found in raced(buckets, lambda: restore(at=first.id), other, each):
        buckets.before_step(-1, lambda: None)
        has_ended = [isinstance(one, Table) for one in (found, others[-1])]
        assert any(has_ended), (number, found, others[-1])
        table = client.table("r")
        state = state_of(table)
        wanted = [state for state, has in zip(expected, has_ended, strict=True) if has]
        assert state in wanted, (number, found, others[-1])
        table.check().raise_if_bad()
        left = [path.name for path in client._environment.storage.entries(client.root)]
        assert ".restore-r" not in left, (number, left)
        client.delete_table("r")
    assert others


def test_a_restore_takes_the_place_of_a_table(client: Client, target: Place):
    """Only with overwrite; moments of the old table are gone with it."""
    table, (address, options) = make_table(client), target
    kudulite.backup(table, address, storage_options=options)
    before = stored(table)
    table.truncate()
    restore = partial(
        kudulite.restore,
        address,
        table.path,
        storage_options=options,
        table_storage_options=options_of(client),
    )
    with pytest.raises(TableExistsError, match="overwrite=True"):
        restore()
    assert stored(restore(overwrite=True)) == before == stored(client.table(NAME))
    assert client.list_tables() == [NAME]
    with pytest.raises(KuduliteError):
        table.upsert([{"k": 1, "h": "h1"}])
    storage = client._environment.storage
    storage.put(parse_address(client.root / "other" / "x").path, b"of somebody else")
    with pytest.raises(TableExistsError, match="it exists and is not a table"):
        kudulite.restore(
            address,
            f"{client.root}/other",
            overwrite=True,
            storage_options=options,
            table_storage_options=options_of(client),
        )


def test_damage_on_a_store_is_found(client: Client, target: Place):
    """A file that changed, one that is gone, a parent that is gone; all by their addresses."""
    address, options = target
    made = [backup for backup, _ in make_chain(client, address, storage_options=options)]
    storage = object_storage_of(parse_address(address, options).storage)
    file = made[1].path / made[1].files[0].ref.name
    content = storage.read(file)
    for damage in (content[:9] + bytes([content[9] ^ 1]) + content[10:], content[:-1], None):
        storage.delete(file) if damage is None else storage.put_hint(file, damage)
        with pytest.raises((CorruptionError, StorageError), match=str(file)):
            made[1].verify()
        problems = kudulite.verify_backups(address, storage_options=options)
        assert list(problems) == [made[1].id] and str(file) in problems[made[1].id][0]
        with pytest.raises((CorruptionError, StorageError), match=str(file)):
            kudulite.restore(
                address,
                f"{client.root}/r",
                storage_options=options,
                table_storage_options=options_of(client),
            )
        assert client.list_tables() == [NAME]
    storage.put_hint(file, content)
    storage.delete_below(made[0].path)
    with pytest.raises(StorageError, match=f"needs backup {made[0].id}"):
        kudulite.restore(address, f"{client.root}/r", storage_options=options)


@tiered("seed", range(SEED_COUNT))
def test_lost_answers_lose_nothing(
    buckets: MemoryBuckets, client: Client, monkeypatch: pytest.MonkeyPatch, seed: int
):
    """Puts whose answers are lost, and that are refused out of turn or late."""
    address, options = buckets.new()
    library = FaultyLibrary()
    for module in MODULES:
        monkeypatch.setattr(module, "obstore", library)
    monkeypatch.setattr(object_storage, "_TRY_PAUSE_SECONDS", 0.0)
    make_table(client)
    library.plan = RandomFaults(seed, hidden=0.75, errors=0.0)
    for change in (lambda _: None, *CHANGES):
        change(client)
        table = client.table(NAME)
        kudulite.backup(table, address, storage_options=options)
    restored = kudulite.restore(
        address,
        f"{client.root}/r",
        storage_options=options,
        table_storage_options=options_of(client),
    )
    assert library.fault_count > 20
    assert state_of(restored) == state_of(table)
    assert len(kudulite.list_backups(address, storage_options=options)) == 4
    assert kudulite.verify_backups(address, storage_options=options) == {}


def test_an_export_replaces_an_object_at_its_end(
    buckets: MemoryBuckets, client: Client, monkeypatch: pytest.MonkeyPatch
):
    """A read that fails leaves the object that was there, and nothing else."""
    table, (address, options) = make_table(client), buckets.new()
    path = f"{address}/exports/rows.parquet"
    for columns in (["k"], ["k", "h"]):
        assert table.scan(columns).to_parquet(path, storage_options=options) == 98
    place = parse_address(path, options)
    storage = object_storage_of(place.storage)
    content = storage.read(place.path)
    assert pq.read_table(pa.BufferReader(content)).column_names == ["k", "h"]

    scan = table.scan()
    batches = list(scan.to_batches())

    def fails() -> Iterator[pa.RecordBatch]:
        yield from batches
        raise StorageError(5, "the disk has a bad day")

    monkeypatch.setattr(scan, "to_batches", fails)
    with pytest.raises(StorageError, match="bad day"):
        scan.to_parquet(path, storage_options=options)
    assert storage.read(place.path) == content
    assert buckets.names(address) == ["exports/rows.parquet"]
    with pytest.raises(OptionError, match="is a folder; give the path of a file"):
        table.scan().to_parquet(f"{address}/exports", storage_options=options)


def test_commands_take_addresses(
    buckets: MemoryBuckets, client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """With the options of the environment."""
    table = make_table(client)
    for name, given in options_of(client).items():
        monkeypatch.setenv(name.upper(), given)
    target = f"{client.root}/backups"
    assert f"{target} does not exist" in error("backups", target)
    assert output("backup", table.path, target).startswith("full backup ")
    table.delete([{"k": 0, "h": "h0"}])
    found = value("backup", table.path, target)
    assert (found["kind"], found["path"]) == ("incremental", f"{target}/{found['id']}")
    assert [row["kind"] for row in value("backups", target, "--verify")] == ["full", "incremental"]
    assert "97 rows, as of " in output("restore", target, f"{client.root}/again")
    assert stored(client.table("again")) == stored(table)
    assert "overwrite" in error("restore", target, f"{client.root}/again")
    output("restore", target, tmp_path / "again")
    assert stored(kudulite.open_table(tmp_path / "again")) == stored(table)
    file = f"{client.root}/rows.csv"
    output("scan", table.path, "--columns", "k", "--format", "csv", "--output", file)
    lines = client._environment.storage.read(parse_address(file).path).splitlines()
    assert len(lines) == 98 and lines[0] == b'"k"'


def test_a_restore_that_is_behind_alters_nothing(client: Client, target: Place):
    """Also where the last backups have no rows, and so no step; the table may be in use by then."""
    table, (address, options) = make_table(client), target
    kudulite.backup(table, address, storage_options=options)
    client.new_table_alterer(table).set_comment("of the backup").alter()
    kudulite.backup(table, address, storage_options=options)
    places = {"storage_options": options, "table_storage_options": options_of(client)}
    with kudulite.begin_restore(address, f"{client.root}/r", **places) as late:
        for step in late.steps():
            step.commit([step.stage(index) for index in range(step.task_count)])
        done = 0
        restored = kudulite.restore(address, f"{client.root}/r", **places)
        client.new_table_alterer(restored).set_comment("of its user").alter()
        with pytest.raises(ConflictError, match="another restore of this table is at work"):
            late._alter_to(1, done)
        assert late.finish().comment == client.table("r").comment == "of its user"
