"""Backups: each restores to exactly what the table was, and what cannot be is refused by name."""

import dataclasses
import json
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import kudulite
from kudulite.backups.backup_job import begin_backup
from kudulite.backups.format import backup_id, moment_of_id
from kudulite.backups.restore_job import stale_ranges
from kudulite.errors import (
    ConflictError,
    CorruptionError,
    FormatVersionError,
    LockTimeoutError,
    NotFoundError,
    StorageError,
    TableExistsError,
    TimestampError,
    UsageError,
)
from kudulite.storage.checked_json import decode_checked_json, encode_checked_json
from kudulite.storage.local_storage import LocalStorage
from tests.support.doubles.base_storage import BaseStorage
from tests.support.machines.backup_chain import (
    CHANGES,
    NAME,
    check_random_chain,
    make_chain,
    make_table,
    rows,
    state_of,
)
from tests.support.tables.core_tables import CoreTables, ManualClock, altered, files_below, stored

# test_backups_on_stores.py says what is different on objects.
in_directories = pytest.mark.skipif(BaseStorage is not LocalStorage, reason="locks, and folders")


def test_a_full_backup_and_three_increments_restore_exactly(core: CoreTables):
    """Rows, columns with their ids, and partitions, at each backup's moment."""
    client, target = core.client(), core.root / "backups"
    made = make_chain(client, target, content_hash=True)
    assert [backup.kind for backup, _ in made] == ["full"] + ["incremental"] * 3
    assert all(backup.content_hash for backup, _ in made)
    for number, (backup, state) in enumerate(made):
        moment = backup.id if number % 2 else backup.moment
        table = kudulite.restore(target, core.root / "root" / f"r{number}", at=moment)
        assert state_of(table) == state
        backup.verify()
    newest = kudulite.restore(target, core.root / "elsewhere" / NAME)
    assert state_of(newest) == made[-1][1]
    assert kudulite.list_backups(target) == [backup for backup, _ in made]
    assert client.list_tables() == [NAME, *(f"r{number}" for number in range(4))]


def test_backups_beside_a_writer_are_of_one_moment(core: CoreTables):
    """Another thread writes, compacts and collects garbage; each backup shows its moment."""
    client, target = core.client(), core.root / "backups"
    table = make_table(client)
    is_over, has_turned = threading.Event(), threading.Event()

    def write() -> None:
        for turn in range(1000):
            table.upsert(rows(range(turn % 7, 300, 5), b=turn % 1000, a=f"turn {turn}"))
            table.delete_ignore(rows(range(turn % 11, 300, 11)))
            change_one(client, turn % 300)
            if turn % 3 == 0:
                table.maintain(0, 60)
            has_turned.set()
            if is_over.is_set():
                return

    with ThreadPoolExecutor() as pool:
        writer = pool.submit(write)
        try:
            made = []
            for number in range(4):
                # Between two signals lies a whole turn, so each increment has changes.
                for _ in range(2):
                    has_turned.clear()
                    assert has_turned.wait(60)
                made.append(kudulite.backup(table, target, content_hash=number == 2))
        finally:
            is_over.set()
        writer.result()
    assert [backup.is_full for backup in made] == [True, False, False, False]
    assert made[3].written_row_count > 0
    for number, backup in enumerate(made):
        restored = kudulite.restore(target, core.root / "root" / f"r{number}", at=backup.moment)
        assert stored(restored) == stored(table, backup.moment)


def change_one(client: kudulite.Client, key: int) -> None:
    """Write one row through a session."""
    session = client.new_session()
    session.apply(client.table(NAME).new_upsert({"k": key, "h": f"h{key % 7}", "b": 1}))
    session.flush()


def test_a_restored_table_is_a_table(core: CoreTables):
    """It takes rows, and backups of its own; not into the set that it came from."""
    client, target = core.client(), core.root / "backups"
    make_chain(client, target)
    table = kudulite.restore(target, core.root / "root" / "again")
    table.upsert(rows([1, 2], c=3))
    with pytest.raises(UsageError, match="is of table 'measured'.*choose another directory"):
        kudulite.backup(table, target)
    first = kudulite.backup(table, target, full=True)
    table.delete(rows([1]))
    kudulite.backup(table, target, full=False)
    assert stored(kudulite.restore(target, core.root / "copy" / "x", at=first.moment)) != stored(
        kudulite.restore(target, core.root / "copy" / "y")
    )
    assert stored(kudulite.open_table(core.root / "copy" / "y")) == stored(table)


def test_files_hold_changes_with_deletes_as_rows(core: CoreTables):
    """A data file is Parquet that anybody reads; column ids are field ids."""
    client, target = core.client(), core.root / "backups"
    make_table(client)
    kudulite.backup(client.table(NAME), target)
    CHANGES[0](client)
    backup = kudulite.backup(client.table(NAME), target)
    found = pa.concat_tables(pq.read_table(backup.path / file.ref.name) for file in backup.files)
    expected = client.table(NAME).changes(backup.start, backup.moment).to_arrow()
    order = [("k", "ascending"), ("h", "ascending")]
    assert found.sort_by(order).equals(expected.sort_by(order))
    assert backup.delete_count == found["_change_type"].to_pylist().count("delete") > 0
    ids = [field.metadata[b"PARQUET:field_id"] for field in list(found.schema)[:5]]
    assert ids == [b"0", b"1", b"2", b"3", b"4"]
    names = {path.name for path in files_below(backup.path)}
    assert names == {"manifest.json", *(file.ref.name for file in backup.files)}


def test_ranges_that_came_and_went_are_known_by_their_tablets(core: CoreTables):
    """Also one that is there again with the same bounds; changes list its rows as deletes, too."""
    made = [backup for backup, _ in make_chain(core.client(), core.root / "backups")]
    low, middle, high = made[0].partition.ranges
    found = [stale_ranges(before, after) for before, after in pairwise(made)]
    assert found == [frozenset(), {middle.bounds}, {middle.bounds, high.bounds}]
    parts = [pq.read_table(made[2].path / file.ref.name) for file in made[2].files]
    changes = pa.concat_tables(parts).filter(pc.field("_change_type") == "delete")
    keys = set(changes["k"].to_pylist())
    assert {105, 108, 195} <= keys and all(100 <= key < 200 for key in keys)
    assert low in made[3].partition.ranges


def test_owner_and_comment_are_those_of_each_backup(core: CoreTables):
    """Also where nothing else has changed between two of them."""
    client, target = core.client(), core.root / "backups"
    client.create_table("t", pa.schema([("k", pa.int64())]), primary_key="k", owner="ada")
    texts = [("ada", ""), ("ada", "of tests"), ("bob", "")]
    ids = []
    for owner, comment in texts:
        table = altered(client, "t", lambda a, o=owner, c=comment: a.set_owner(o).set_comment(c))
        ids.append(kudulite.backup(table, target).id)
    for number, (name, expected) in enumerate(zip(ids, texts, strict=True)):
        restored = kudulite.restore(target, client.root / f"r{number}", at=name)
        assert (restored.owner, restored.comment) == expected


def test_nothing_and_no_change_are_backed_up_too(core: CoreTables):
    """An empty table, and a window without a change."""
    client, target = core.client(), core.root / "backups"
    table = client.create_table("t", pa.schema([("k", pa.int64())]), primary_key="k")
    for _ in range(2):
        backup = kudulite.backup(table, target, content_hash=True)
        assert (backup.row_count, backup.files, backup.content_hash) == (0, (), 0)
    assert kudulite.restore(target, core.root / "root" / "r").scan().count() == 0
    table.insert({"k": [1]})
    kudulite.backup(table, target)
    assert stored(kudulite.restore(target, core.root / "root" / "s")) == [(1,)]


def test_an_increment_is_refused_when_the_history_is_gone(core: CoreTables):
    """The automatic choice takes a full one and says why."""
    clock = ManualClock()
    client, target = core.client(clock=clock), core.root / "backups"
    table = make_table(client)
    with pytest.raises(NotFoundError, match=r"has no backup.*full=True"):
        kudulite.backup(table, target, full=False)
    client.new_table_alterer(table).set_history_retention(10).alter()
    first = kudulite.backup(table, target)
    for _ in range(2):
        clock.microseconds += 20_000_000
        table.upsert(rows([1], b=1))
    with pytest.raises(TimestampError, match=rf"since {first.id}.*ancient.*take a full one"):
        kudulite.backup(table, target, full=False)
    with begin_backup(table, target) as job:
        assert job.kind == "full" and "is no longer kept" in job.why_full
        job.run()
        job.finish()
    assert [b.kind for b in kudulite.list_backups(target)] == ["full", "full"]


def test_purged_rows_make_the_next_backup_full(core: CoreTables):
    """No change tells of them, so an increment would bring them back."""
    client, target = core.client(), core.root / "backups"
    table = make_table(client)
    kudulite.backup(table, target)
    table.purge(rows([9, 12, 12000]).to_pylist())
    table.insert(rows([12], b=8))
    with pytest.raises(ConflictError, match="rows were purged"):
        kudulite.backup(table, target, full=False)
    assert kudulite.backup(table, target).is_full
    assert stored(kudulite.restore(target, core.root / "root" / "r")) == stored(table)


def test_a_purge_during_a_backup_is_noticed(core: CoreTables):
    """The parts that were read before and after the purge do not belong together."""
    client, target = core.client(), core.root / "backups"
    table = make_table(client)
    with begin_backup(table, target) as job:
        table.purge(rows([9]).to_pylist())
        job.run()
        with pytest.raises(ConflictError, match="purged meanwhile"):
            job.finish()
    assert kudulite.list_backups(target) == []


def test_changes_columns_by_that_name_are_backed_up_whole(core: CoreTables):
    """`_change_type` is a legal column, of which there is no increment."""
    client, target = core.client(), core.root / "backups"
    schema = pa.schema([("k", pa.int64()), ("_change_type", pa.string())])
    table = client.create_table("t", schema, primary_key="k")
    table.insert({"k": [1, 2], "_change_type": ["delete", "x"]})
    for _ in range(2):
        assert kudulite.backup(table, target).is_full
    with pytest.raises(ConflictError, match="'_change_type' has the name"):
        kudulite.backup(table, target, full=False)
    assert stored(kudulite.restore(target, core.root / "root" / "r")) == stored(table)


def test_a_backup_goes_on_with_the_files_it_has(core: CoreTables):
    """At its own moment; what was damaged meanwhile is written again."""
    client, target = core.client(), core.root / "backups"
    table = make_table(client)
    with begin_backup(table, target) as job:
        assert not job.is_resumed
        before = stored(table)
        for piece in job.pieces[:-1]:
            pickle.loads(pickle.dumps(piece)).run()
    folder = target / backup_id(job.moment)
    done = sorted(folder.glob("*.parquet"))
    assert len(done) == len(job.pieces) - 1 > 2
    stamps = [path.stat().st_mtime_ns for path in done[1:]]
    done[0].write_bytes(done[0].read_bytes()[:-1] + b"?")
    table.delete(rows(range(0, 30, 9)))
    altered(client, NAME, lambda a: a.alter_column("a", rename_to="z"))
    with begin_backup(client.table(NAME), target) as again:
        assert again.is_resumed and again.moment == job.moment
        again.run()
        backup = again.finish()
    assert [path.stat().st_mtime_ns for path in done[1:]] == stamps and not done[0].exists()
    restored = kudulite.restore(target, core.root / "root" / "r", at=backup.id)
    assert stored(restored) == before and restored.schema.names[2] == "a"
    kudulite.backup(client.table(NAME), target, full=False)
    table = kudulite.restore(target, core.root / "root" / "s")
    assert state_of(table) == state_of(client.table(NAME))


def test_a_backup_without_a_file_of_a_piece_is_not_finished(core: CoreTables):
    """Its manifest would promise rows that are not there. The next run writes the file again."""
    client, target = core.client(), core.root / "backups"
    table = make_table(client)
    with begin_backup(table, target) as job:
        job.run()
        path = min((target / backup_id(job.moment)).glob("*.parquet"))
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        with pytest.raises(CorruptionError, match=rf"{path.name}: \d+ bytes on disk, expected"):
            job.finish()
        path.unlink()
        with pytest.raises(StorageError, match=path.name):
            job.finish()
        assert kudulite.list_backups(target) == []
        job.run()
        job.finish()
    assert stored(kudulite.restore(target, core.root / "root" / "r")) == stored(table)


@in_directories
def test_what_cannot_go_on_is_removed(core: CoreTables):
    """Another kind, a column whose cells may be gone: a new backup, and one folder."""
    client, target = core.client(), core.root / "backups"
    table = make_table(client)
    kudulite.backup(table, target)
    for full, drop in ((False, None), (True, None), (None, "b")):
        with begin_backup(client.table(NAME), target, full=full) as job:
            assert not job.is_resumed
        if drop is not None:
            altered(client, NAME, lambda a, name=drop: a.drop_column(name))
            altered(client, NAME, lambda a: a.set_history_retention(0))
            table.maintain(0)
    with begin_backup(client.table(NAME), target) as last:
        assert not last.is_resumed and last.moment > job.moment
        assert len([path for path in target.iterdir() if path.is_dir()]) == 2


def test_a_backup_goes_on_after_a_column_was_dropped(core: CoreTables):
    """At its own moment, with the columns of then."""
    client, target = core.client(), core.root / "backups"
    table = make_table(client)
    with begin_backup(table, target) as begun:
        moment = begun.moment
    expected = stored(table)
    altered(client, NAME, lambda a: a.drop_column("b"))
    table.compact()
    with begin_backup(client.table(NAME), target) as job:
        assert job.is_resumed and job.moment == moment
        job.run()
        job.finish()
    restored = kudulite.restore(target, core.root / "root" / "r")
    assert "b" in restored.schema.names and stored(restored) == expected


@in_directories
def test_one_backup_and_one_restore_at_a_time(core: CoreTables):
    """The other one is told at once."""
    client, target = core.client(), core.root / "backups"
    table = make_table(client)
    with begin_backup(table, target) as job:
        with pytest.raises(LockTimeoutError, match="held by backup of 'measured'"):
            kudulite.backup(table, target)
        job.run()
        job.finish()
    with kudulite.begin_restore(target, core.root / "root" / "r"):
        with pytest.raises(LockTimeoutError, match="held by restore"):
            kudulite.restore(target, core.root / "root" / "r")
        assert client.list_tables() == [NAME]


def test_a_restore_goes_on_after_what_was_committed(core: CoreTables):
    """Of the same chain; of another one it starts over."""
    client, target = core.client(), core.root / "backups"
    made = make_chain(client, target)
    place = core.root / "root" / "r"
    with kudulite.begin_restore(target, place) as job:
        steps = job.steps()
        for _ in range(3):
            step = pickle.loads(pickle.dumps(next(steps)))
            step.commit([step.stage(index) for index in range(step.task_count)])
        steps.close()
    with kudulite.begin_restore(target, place) as again:
        assert again.is_resumed
        left = next(again.steps())
        assert left.backup_id == made[2][0].id
    assert state_of(kudulite.restore(target, place)) == made[3][1]
    with kudulite.begin_restore(target, core.root / "root" / "s"):
        pass
    with kudulite.begin_restore(target, core.root / "root" / "s", at=made[1][0].id) as other:
        assert not other.is_resumed
        other.run()
        assert state_of(other.finish()) == made[1][1]


@in_directories
def test_a_table_that_is_there_is_replaced_only_with_overwrite(core: CoreTables):
    """And what is no table never."""
    client, target = core.client(), core.root / "backups"
    table = make_table(client)
    kudulite.backup(table, target)
    before = stored(table)
    table.truncate()
    with pytest.raises(TableExistsError, match="overwrite=True"):
        kudulite.restore(target, table.path)
    assert stored(kudulite.restore(target, table.path, overwrite=True)) == before
    other = core.root / "root" / "other"
    other.mkdir()
    with pytest.raises(TableExistsError, match="is not a table"):
        kudulite.restore(target, other, overwrite=True)
    assert sorted(path.name for path in (core.root / "root").iterdir()) == [NAME, "other"]


def test_what_is_not_there_is_listed(core: CoreTables):
    """No backup, none that early, no such id."""
    client, target = core.client(), core.root / "backups"
    with pytest.raises(NotFoundError, match="has no backup"):
        kudulite.restore(target, core.root / "r")
    backup = kudulite.backup(make_table(client), target)
    for at in ("2001-01-01", backup_id(5 << 12)):
        with pytest.raises(NotFoundError, match=backup.id):
            kudulite.restore(target, core.root / "r", at=at)
    assert not (core.root / ".restore-r").exists()


def test_damage_is_refused_by_name(core: CoreTables):
    """A data file, a manifest, a missing link of the chain, a newer format; no table appears."""
    client, target = core.client(), core.root / "backups"
    made = [backup for backup, _ in make_chain(client, target, content_hash=True)]
    place = core.root / "root" / "r"

    def expect(error, message):
        with pytest.raises(error, match=message):
            kudulite.restore(target, place)
        assert not place.exists()

    file = made[1].path / made[1].files[0].ref.name
    whole = file.read_bytes()
    file.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    expect(CorruptionError, f"{file.name}.*CRC")
    with pytest.raises(CorruptionError, match=file.name):
        made[1].verify()
    file.unlink()
    expect(StorageError, file.name)
    file.write_bytes(whole)
    manifest = made[0].path / "manifest.json"
    content = manifest.read_bytes()
    manifest.write_bytes(content.replace(b"full", b"fuel"))
    expect(CorruptionError, "manifest.json: CRC")
    body = json.loads(content.split(b"\n")[0])
    manifest.write_bytes(encode_checked_json({**body, "format_version": 3}))
    expect(FormatVersionError, "format version 3, known: 1 to 2; upgrade")
    manifest.write_bytes(encode_checked_json({**body, "table_id": "other"}))
    expect(CorruptionError, rf"not the parent of backup {made[1].id}")
    manifest.write_bytes(encode_checked_json({"format_version": 1}))
    expect(CorruptionError, "not a backup's manifest")
    manifest.unlink()
    expect(StorageError, rf"needs backup {made[0].id}")
    manifest.write_bytes(content)
    kudulite.restore(target, place)


@pytest.mark.parametrize("field", ["row_count", "content_hash"])
def test_a_table_that_is_not_as_the_manifest_says_gets_no_name(core: CoreTables, field: str):
    """Counts and hashes are compared at the end."""
    client, target = core.client(), core.root / "backups"
    backup = kudulite.backup(make_table(client), target, content_hash=True)
    path = backup.path / "manifest.json"
    body = decode_checked_json(path.read_bytes(), "", "")
    path.write_bytes(encode_checked_json({**body, field: body[field] + 1}))
    with pytest.raises(CorruptionError, match="expected"):
        kudulite.restore(target, core.root / "root" / "r")
    assert client.list_tables() == [NAME]


def test_ids_sort_as_moments():
    """And tell them."""
    moments = [0, 1, 4095, 4096, (1_800_000_000_123_456 << 12) + 17, (1 << 63) + 5]
    ids = [backup_id(moment) for moment in moments]
    assert ids == sorted(ids) and [moment_of_id(text) for text in ids] == moments
    assert ids[4] == "20270115T080000.123456Z-0011"
    for wrong in ("", "lock", "20271315T080000.123456Z-0011", ids[4] + "x"):
        assert moment_of_id(wrong) is None


def test_a_backup_has_its_fields(core: CoreTables):
    """It is a value that can be compared and copied."""
    backup = kudulite.backup(make_table(core.client()), core.root / "backups")
    assert backup.byte_count == sum(file.ref.length for file in backup.files)
    assert backup.written_row_count == backup.row_count == 98
    assert dataclasses.replace(backup, tags={}) == backup


@pytest.mark.full
def test_random_changes_of_every_type_restore_exactly(tmp_path):
    """benchmarks/trials.py: more of them."""
    check_random_chain(tmp_path, seed=3)
