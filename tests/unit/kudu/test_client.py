"""Clients, tables, sessions and alterations of kudu-python's programs."""

import datetime

import pytest

import kudulite
import kudulite.kudu as kudu
from kudulite.kudu.client import Column, Partitioning, RangePartition, TableAlterer
from tests.support.tables.core_tables import CoreTables

UTC = datetime.UTC


@pytest.fixture
def client(core: CoreTables) -> kudu.Client:
    """A client of an empty directory."""
    return kudu.connect(core.root / "root")


def example_schema(client: kudu.Client) -> kudu.Schema:
    """A key, a number, a text and a time."""
    builder = client.schema_builder()
    builder.add_column("key", kudu.int32, nullable=False, comment="the key")
    builder.add_column("int_val", kudu.int32)
    builder.add_column("string_val", kudu.string, default=None)
    builder.add_column("at", kudu.unixtime_micros)
    builder.set_primary_keys(["key"])
    return builder.build()


def by_key() -> Partitioning:
    """One range over the key."""
    return Partitioning().set_range_partition_columns(["key"])


@pytest.fixture
def table(client: kudu.Client) -> kudu.Table:
    """An empty table."""
    return client.create_table("t", example_schema(client), by_key())


def rows(table: kudu.Table) -> list[tuple]:
    """All rows, in key order."""
    return table.scanner().set_fault_tolerant().open().read_all_tuples()


# -- connect


def test_a_directory_is_the_host(core: CoreTables, client: kudu.Client, monkeypatch):
    """As a path or a text with a slash; timeouts and encryption are accepted."""
    root = core.root / "root"
    for host in (root, str(root), [str(root)], f"{root}/"):
        assert (
            kudu.connect(host, 7051, admin_timeout_ms=1000, rpc_timeout_ms=1000).engine.root == root
        )
    assert kudu.connect(str(root), encryption_policy=kudu.ENCRYPTION_REQUIRED).engine.root == root
    monkeypatch.chdir(core.root)
    assert kudu.connect("root").engine.root == root
    assert not client.is_multimaster


def test_the_directory_of_a_host_is_in_the_environment(core: CoreTables, monkeypatch):
    """Programs that connect to a host need no change; a path is used as it is."""
    monkeypatch.setenv("KUDULITE_DIRECTORY", str(core.root / "env"))
    hosts = ["one", "two"]
    assert kudu.connect("kudu.master").engine.root == core.root / "env"
    assert (
        kudu.connect(hosts, 7051).engine.root
        == kudu.connect(hosts, [1, 2]).engine.root
        == core.root / "env"
    )
    assert kudu.connect(core.root / "other").engine.root == core.root / "other"
    assert kudu.DIRECTORY_VARIABLE == "KUDULITE_DIRECTORY"


def test_hosts_that_lead_nowhere_are_refused(core: CoreTables, monkeypatch):
    """With the errors of kudu-python, and with what to do."""
    monkeypatch.delenv("KUDULITE_DIRECTORY", raising=False)
    monkeypatch.chdir(core.root)
    with pytest.raises(kudu.KuduBadStatus, match="connect to kudu.master: .* KUDULITE_DIRECTORY"):
        kudu.connect("kudu.master")
    with pytest.raises(ValueError, match="Host and port lists are not of equal length"):
        kudu.connect(["a", "b"], [1])
    with pytest.raises(ValueError, match="List of ports provided but only a single host"):
        kudu.connect("a", [1])
    with pytest.raises(ValueError, match="Empty list of hosts"):
        kudu.connect([])
    with pytest.raises(kudu.KuduBadStatus, match="requires authentication, but server does not"):
        kudu.connect(core.root, require_authentication=True)


def test_one_server_holds_all_tablets(client: kudu.Client):
    """It has an id, a name and a port."""
    (server,) = client.list_tablet_servers()
    assert (server.uuid(), server.port()) == (str(client.engine.root), 0)
    assert server.hostname()


# -- tables


def test_a_table_has_the_properties_of_kudu_python(client: kudu.Client, table: kudu.Table):
    """Its schema stays readable without it."""
    assert (table.name, table.num_columns, table.num_replicas) == ("t", 4, 1)
    assert table.id == client.table("t").id
    schema = table.schema
    del table
    assert schema["key"].comment == "the key"


def test_columns_know_their_table(table: kudu.Table):
    """By name and number, from the end too."""
    for given, name, kind in (("key", "key", "int32"), (1, "int_val", "int32"),
                              (-1, "at", "unixtime_micros")):  # fmt: skip
        column = table[given]
        assert isinstance(column, Column)
        assert (column.name, column.parent) == (name, table)
        assert repr(column) == f"Column({name}, parent=t, type={kind})"
        assert column.spec.type.name == kind
    for absent, error in (("absent", KeyError), (4, IndexError)):
        with pytest.raises(error):
            table[absent]


def test_tables_are_listed_found_and_deleted(client: kudu.Client, table: kudu.Table):
    """A missing table or column is a KuduNotFound with the text of Kudu."""
    for name in ("foo1", "foo2"):
        client.create_table(name, example_schema(client), by_key())
    assert client.list_tables() == ["foo1", "foo2", "t"]
    assert (
        client.list_tables("foo") == client.list_tables(match_substring="foo") == ["foo1", "foo2"]
    )
    client.delete_table("foo1")
    assert (client.table_exists("foo1"), client.table_exists("foo2")) == (False, True)
    for use in (
        client.delete_table,
        lambda name: client.soft_delete_table(name, 60),
        client.table,
        client.get_table_statistics,
    ):
        with pytest.raises(
            kudu.KuduNotFound, match='^the table does not exist: table_name: "foo1"; no table'
        ) as caught:
            use("foo1")
        assert not isinstance(caught.value, kudu.KuduInvalidArgument)
    text = f"Already present: table t already exists with id {table.id}"
    with pytest.raises(kudu.KuduBadStatus, match=text):
        client.create_table("t", example_schema(client), by_key())


def test_a_table_is_created_with_the_parameters_of_kudu_python(client: kudu.Client):
    """By keyword; replicas are checked and ignored."""
    client.create_table(
        table_name="a", schema=example_schema(client), partitioning=by_key(), n_replicas=3
    )
    with pytest.raises(kudu.KuduInvalidArgument, match="replication factor must be odd"):
        client.create_table("b", example_schema(client), by_key(), n_replicas=2)
    with pytest.raises(TypeError, match="expected the Schema of a schema builder"):
        client.create_table("b", "schema", by_key())
    assert client.list_tables() == ["a"]


def test_an_encoding_that_its_type_does_not_have_is_refused_at_creation(client: kudu.Client):
    """The schema can be built, as in kudu-python."""
    builder = client.schema_builder()
    builder.add_column("k", "int64", nullable=False, primary_key=True)
    builder.add_column("x", "string", encoding="rle")
    schema = builder.build()
    with pytest.raises(kudu.KuduInvalidArgument, match="invalid encoding for column 'x': rle on"):
        client.create_table("x", schema, Partitioning())
    assert client.list_tables() == []


PARTITIONS = [
    (lambda p: p.add_hash_partitions(["key"], 2), 2),
    (lambda p: p.add_hash_partitions(column_names="key", num_buckets=3, seed=342310), 3),
    (
        lambda p: (
            by_key()
            .add_range_partition_split({"key": 10})
            .add_range_partition_split([20])
            .add_range_partition_split((30,))
        ),
        4,
    ),
    (lambda p: by_key().add_range_partition({"key": -5}, {"key": 5}, "exclusive", "INCLUSIVE"), 1),
    (
        lambda p: by_key().add_range_partition(
            [0], [9], kudu.INCLUSIVE_BOUND, kudu.EXCLUSIVE_BOUND
        ),
        1,
    ),
]


@pytest.mark.parametrize(("partition", "count"), PARTITIONS)
def test_a_table_is_partitioned_as_in_kudu_python(client: kudu.Client, partition, count):
    """A token of a whole scan is a tablet with rows."""
    table = client.create_table("p", example_schema(client), partition(Partitioning()))
    assert table.engine.tablet_count == count
    table.engine.upsert({"key": list(range(40))} if count > 1 else {"key": [0, 4]})
    found = table.scan_token_builder().build()
    assert len({token.tablet().id() for token in found}) == len(found) == count


def test_a_range_may_have_hash_partitions_of_its_own(client: kudu.Client):
    """At creation and in an alteration; a token is of one tablet."""
    own = RangePartition({"key": 0}, {"key": 100}).add_hash_partitions(["key"], 5)
    by_hash = by_key().add_hash_partitions(["key"], 2)
    by_hash.add_range_partition(lower_bound={"key": -100}, upper_bound={"key": 0})
    table = client.create_table(
        "h", example_schema(client), by_hash.add_custom_range_partition(own)
    )
    assert table.engine.tablet_count == 7
    alterer = client.new_table_alterer(table)
    more = RangePartition((100,), [200], kudu.INCLUSIVE_BOUND, "exclusive")
    alterer.add_custom_range_partition(more.add_hash_partitions("key", 3, seed=8))
    table = alterer.alter()
    table.engine.insert({"key": list(range(-100, 200))})
    tokens = table.scan_token_builder().set_fault_tolerant().build()
    assert len({token.tablet().id() for token in tokens}) == len(tokens) == 10
    alterer = client.new_table_alterer(table)
    alterer.drop_range_partition({"key": 0}, {"key": 100})
    assert alterer.alter().engine.tablet_count == 5
    with pytest.raises(ValueError, match="Range Partition Columns must be set"):
        Partitioning().add_custom_range_partition(own)
    with pytest.raises(kudu.KuduInvalidArgument, match="expected a kudulite.RangePartition"):
        client.new_table_alterer(table).add_custom_range_partition("range")


def test_ranges_need_columns_and_known_bounds():
    """With the errors of kudu-python."""
    for add in (Partitioning.add_range_partition, Partitioning.add_range_partition_split):
        with pytest.raises(ValueError, match="Range Partition Columns must be set before adding a"):
            add(Partitioning(), {"key": 1})
    for wrong in ("open", 2, None):
        with pytest.raises(ValueError, match=f"Invalid range partition bound type: {wrong}"):
            by_key().add_range_partition(None, None, wrong)


def test_a_bound_is_a_row_of_the_schema(client: kudu.Client):
    """A tuple has the values of the first columns, so of range columns only if they come first."""
    builder = client.schema_builder()
    builder.add_column("a", "string", nullable=False)
    builder.add_column("at", "unixtime_micros", nullable=False)
    schema = builder.set_primary_keys(["a", "at"]) and builder.build()
    ranges = Partitioning().set_range_partition_columns("at")
    bound = schema.new_row()
    bound["at"] = datetime.datetime(2016, 1, 1)
    ranges.add_range_partition(upper_bound=bound)
    ranges.add_range_partition(lower_bound={"at": ("2016-01-01", "%Y-%m-%d")})
    table = client.create_table("r", schema, ranges)
    assert table.engine.partition_schema.describe_all() == [
        "at: [-∞, 2016-01-01 00:00:00+00:00)",
        "at: [2016-01-01 00:00:00+00:00, +∞)",
    ]
    wrong = Partitioning().set_range_partition_columns("at").add_range_partition(("x",))
    with pytest.raises(kudu.KuduInvalidArgument, match="range bound names column 'a'"):
        client.create_table("w", schema, wrong)


def test_statistics_are_those_of_the_table(client: kudu.Client, table: kudu.Table):
    """No limits are set; the repr has a line for each figure."""
    assert client.get_table_statistics("t").live_row_count == 0
    session = client.new_session()
    for key in range(10):
        session.apply(table.new_insert((key,)))
    session.flush()
    table.engine.flush()
    found = client.get_table_statistics("t")
    assert (found.live_row_count, found.on_disk_size_limit, found.live_row_count_limit) == (
        10,
        -1,
        -1,
    )
    assert found.on_disk_size == table.engine.statistics.bytes_on_disk > 0
    assert repr(found) == (
        f"on disk size: {found.on_disk_size}\nlive row count: 10\n"
        "on disk size limit: N/A\nlive row count limit: N/A\n"
    )


def test_a_soft_deleted_table_is_recalled(client: kudu.Client, table: kudu.Table):
    """By its id, under its name or another one; without a reserve it is gone."""
    session = client.new_session("sync")
    session.apply(table.new_insert((1,)))
    assert client.list_soft_deleted_tables() == []
    client.soft_delete_table("t", 600)
    assert (client.list_tables(), client.list_soft_deleted_tables()) == ([], ["t"])
    assert client.list_soft_deleted_tables("x") == []
    with pytest.raises(kudu.KuduNotFound, match="recall"):
        client.table("t")
    again = client.recall_table(table.id, "renamed")
    assert (again.name, rows(again), client.list_soft_deleted_tables()) == (
        "renamed", [(1, None, None, None)], [],
    )  # fmt: skip
    client.soft_delete_table("renamed", reserve_seconds=600)
    client.recall_table(table_id=table.id)
    assert client.list_tables() == ["renamed"]
    client.soft_delete_table("renamed", 600)
    with pytest.raises(kudu.KuduInvalidArgument, match="should not be soft deleted again"):
        client.soft_delete_table("renamed", 600)
    client.soft_delete_table("renamed")
    assert client.list_tables() == client.list_soft_deleted_tables() == []
    with pytest.raises(kudu.KuduNotFound):
        client.recall_table(table.id)


# -- writing


def test_rows_are_inserted_updated_upserted_and_deleted(client: kudu.Client, table: kudu.Table):
    """By tuple, list, dict, name and number; metrics count each kind of operation."""
    session = client.new_session()
    for key in range(100):
        new = table.new_insert_ignore if key % 2 == 0 else table.new_insert
        session.apply(new((key, key * 2, f"hello_{key}")))
    session.flush()
    counts = dict.fromkeys(session.get_write_op_metrics(), 0)
    assert session.get_write_op_metrics() == counts | {"successful_inserts": 100}

    op = table.new_update()
    op["key"], op["int_val"], op[2] = 1, 111, "updated"
    op["at"] = datetime.datetime(2016, 10, 30, 10, 12)  # UTC
    session.apply(op)
    session.apply(table.new_upsert({0: 2, 1: 222, "string_val": "upserted"}))
    session.apply(table.new_insert_ignore([3, 1, "ignored"]))
    session.apply(table.new_update_ignore((-999, 1, "ignored")))
    session.apply(table.new_upsert_ignore((4, 5)))
    session.apply(table.new_delete_ignore({"key": -998}))
    session.flush()
    assert rows(table)[:5] == [
        (0, 0, "hello_0", None),
        (1, 111, "updated", datetime.datetime(2016, 10, 30, 10, 12, tzinfo=UTC)),
        (2, 222, "upserted", None),
        (3, 6, "hello_3", None),
        (4, 5, "hello_4", None),
    ]
    for key in range(100):
        new = table.new_delete if key % 2 == 0 else table.new_delete_ignore
        session.apply(new({"key": key}))
    session.flush()
    assert rows(table) == []
    assert session.get_write_op_metrics() == {
        "successful_inserts": 100, "insert_ignore_errors": 1,
        "successful_upserts": 2, "upsert_ignore_errors": 0,
        "successful_updates": 1, "update_ignore_errors": 1,
        "successful_deletes": 100, "delete_ignore_errors": 1,
    }  # fmt: skip


def test_immutable_cells_keep_the_values_of_inserts(client: kudu.Client):
    """As in Kudu: refused, or ignored and counted as both a success and an ignored error."""
    builder = client.schema_builder()
    builder.add_column("key", kudu.int32, nullable=False, primary_key=True)
    builder.add_column("fixed", kudu.string).mutable(False)
    builder.add_column("free", kudu.string).mutable(True)
    schema = builder.build()
    assert [column.mutable for column in schema] == [True, False, True]
    table = client.create_table("i", schema, Partitioning().add_hash_partitions(["key"], 2))
    session = client.new_session()

    def write(op: object, **metrics: int) -> None:
        before = session.get_write_op_metrics()
        session.apply(op)
        session.flush()
        after = session.get_write_op_metrics()
        assert {name: after[name] - n for name, n in before.items() if after[name] > n} == metrics

    write(table.new_insert((1, "a", "b")), successful_inserts=1)
    write(table.new_update({"key": 1, "free": "c"}), successful_updates=1)
    for op in (table.new_update({"key": 1, "fixed": "x"}), table.new_upsert((1, "x"))):
        with pytest.raises(kudu.KuduBadStatus):
            write(op)
        ((error,), _) = session.get_pending_errors()
        assert repr(error) == "KuduError('Immutable: UPDATE not allowed for immutable column')"
    write(table.new_update_ignore((1, "x", "d")), successful_updates=1, update_ignore_errors=1)
    with pytest.raises(kudu.KuduBadStatus):
        write(table.new_update_ignore({"key": 1, "fixed": "x"}))
    assert "Invalid argument: No fields updated" in repr(session.get_pending_errors()[0][0])
    write(table.new_upsert({"key": 1, "free": "e"}), successful_upserts=1)
    write(table.new_upsert_ignore({"key": 2, "free": "f"}), successful_upserts=1)
    write(table.new_upsert_ignore({"key": 3, "fixed": "g"}), successful_upserts=1)
    write(table.new_upsert_ignore((1, "x", "h")), successful_upserts=1, upsert_ignore_errors=1)
    assert rows(table) == [(1, "a", "h"), (2, None, "f"), (3, "g", None)]


def test_a_table_makes_an_operation_of_each_class(client):
    """As each class makes it from a table and a record."""
    table = client.create_table("t", _schema_of_one_key(), Partitioning())
    for kind in (kudu.Insert, kudu.Upsert, kudu.Update, kudu.Delete):
        name = f"new_{kind.__name__.lower()}"
        ignored = getattr(kudu, f"{kind.__name__}Ignore")
        assert type(getattr(table, name)((1,))) is kind
        assert type(getattr(table, f"{name}_ignore")((1,))) is ignored
        assert str(kind(table, (1,))) == str(getattr(table, name)((1,)))


def _schema_of_one_key() -> kudu.Schema:
    builder = kudu.schema_builder()
    builder.add_column("k", kudu.int32, nullable=False).primary_key()
    return builder.build()


def test_an_operation_is_applied_once(client: kudu.Client, table: kudu.Table):
    """And fixed from then on."""
    session = client.new_session()
    op = kudu.Insert(table, (1,))
    session.apply(op=op)
    with pytest.raises(kudu.KuduException, match="was applied already"):
        session.apply(op)
    with pytest.raises(kudu.KuduException, match="was applied already"):
        op["int_val"] = 1
    session.flush()
    with pytest.raises(kudu.KuduBadStatus, match="apply takes table.new_insert"):
        session.apply("op")


def test_a_bad_cell_has_the_error_of_kudu_python(table: kudu.Table):
    """Of no column, of a wrong type, too large, or null where it must not be."""
    op = table.new_insert()
    for key, error in (("not-there", KeyError), (5, IndexError), (-1, IndexError)):
        with pytest.raises(error):
            op[key] = "test"
    with pytest.raises(TypeError, match="an integer is required"):
        op["int_val"] = "incorrect"
    with pytest.raises(OverflowError, match="value too large to convert to int32_t"):
        op["int_val"] = 2**31
    with pytest.raises(kudu.KuduInvalidArgument, match="column not nullable: key"):
        op["key"] = None
    with pytest.raises(TypeError, match="Invalid record type <str>"):
        table.new_insert("record")
    with pytest.raises(TypeError, match="an integer is required"):
        table.new_insert((1, "text"))


def test_a_row_that_fails_is_a_pending_error(client: kudu.Client, table: kudu.Table):
    """The flush raises KuduBadStatus, whose cause is the engine's error; other rows are written."""
    session = client.new_session()
    session.apply(table.new_insert({"key": 1}))
    session.flush()
    session.apply(table.new_insert({"key": 1}))
    session.apply(table.new_insert({"key": 2}))
    with pytest.raises(kudu.KuduBadStatus, match="^IO error: Some errors occurred") as caught:
        session.flush()
    assert isinstance(caught.value.__cause__, kudulite.errors.RowError)
    (error,), has_overflowed = session.get_pending_errors()
    assert not has_overflowed
    assert isinstance(error, kudu.KuduError)
    assert error.failed_op() == "INSERT int32 key=1"
    assert repr(error) == "KuduError('Already present: key already present')"
    assert not error.was_possibly_successful()
    assert session.get_write_op_metrics()["successful_inserts"] == 2
    assert [row[0] for row in rows(table)] == [1, 2]


def test_a_session_has_the_modes_and_buffers_of_kudu_python(client: kudu.Client):
    """By name or number; by option or setter."""
    for mode in (kudu.FLUSH_MANUAL, kudu.FLUSH_AUTO_SYNC, kudu.FLUSH_AUTO_BACKGROUND,
                 "manual", "sync", "background"):  # fmt: skip
        client.new_session(flush_mode=mode)
    with pytest.raises(ValueError, match="Invalid flush mode: foo"):
        client.new_session(flush_mode="foo")
    session = client.new_session(
        flush_mode=kudu.FLUSH_AUTO_BACKGROUND,
        mutation_buffer_sz=10 << 20,
        mutation_buffer_watermark=0.5,
        mutation_buffer_flush_interval=2000,
        mutation_buffer_max_num=3,
    )
    session.set_mutation_buffer_space(size_bytes=10 << 20)
    session.set_mutation_buffer_flush_watermark(watermark_pct=0.5)
    session.set_mutation_buffer_flush_interval(millis=2000)
    session.set_mutation_buffer_max_num(max_num=3)
    session.set_timeout_ms(ms=100)


def test_a_negative_size_is_an_overflow_error(client: kudu.Client):
    """A watermark above 1 is a KuduInvalidArgument in percent."""
    session = client.new_session(flush_mode=kudu.FLUSH_AUTO_BACKGROUND)
    for change, kind in (
        (session.set_mutation_buffer_max_num, "unsigned int"),
        (session.set_mutation_buffer_flush_interval, "unsigned int"),
        (session.set_mutation_buffer_space, "size_t"),
    ):
        with pytest.raises(OverflowError, match=f"can't convert negative value to {kind}"):
            change(-1)
    with pytest.raises(kudu.KuduInvalidArgument, match="^120: watermark must be between 0 and 100"):
        session.set_mutation_buffer_flush_watermark(1.2)


def test_a_background_session_counts_what_its_thread_writes(client: kudu.Client, table: kudu.Table):
    """The metrics are complete once a flush has returned."""
    session = client.new_session("background")
    for key in range(50):
        session.apply(table.new_upsert((key,)))
    session.flush()
    assert session.get_write_op_metrics()["successful_upserts"] == 50
    session.close()


# -- alterations


def test_a_table_is_renamed_and_its_columns_are_altered(client: kudu.Client, table: kudu.Table):
    """The new table has them; a dropped column is a KeyError."""
    session = client.new_session("sync")
    session.apply(table.new_insert((1, 2, "a")))
    table = client.new_table_alterer(table).rename("renamed").alter()
    assert (table.name, client.list_tables()) == ("renamed", ["renamed"])
    alterer = client.new_table_alterer(table)
    alterer.alter_column("string_val", rename_to="text")
    alterer.alter_column("key").comment("another")
    added = alterer.add_column("added", type_="int64", default=0)
    added.compression(kudu.COMPRESSION_LZ4).encoding(kudu.ENCODING_PLAIN)
    alterer.add_column("list").nested_type(kudu.array_type(kudu.int8))
    table = alterer.alter()
    assert table["key"].spec.comment == "another"
    assert repr(table["added"]) == "Column(added, parent=renamed, type=int64)"
    assert rows(table) == [(1, 2, "a", None, 0, None)]
    alterer = TableAlterer(table)
    alterer.drop_column("added").drop_column("list")
    table = alterer.alter()
    with pytest.raises(KeyError):
        table["added"]
    with pytest.raises(kudu.KuduInvalidArgument, match="no alter steps provided"):
        client.new_table_alterer(table).alter()


def test_a_table_has_an_owner_and_a_comment(client: kudu.Client):
    """At creation and altered; None is a TypeError. Nothing is enforced by them."""
    table = client.create_table(
        "o", example_schema(client), by_key(), owner="alice", comment="of the first day"
    )
    assert (table.owner, table.comment) == ("alice", "of the first day")
    client.new_table_alterer(table).set_owner("bob").set_comment("of the second").alter()
    assert (client.table("o").owner, client.table("o").comment) == ("bob", "of the second")
    for change in ("set_owner", "set_comment"):
        with pytest.raises(TypeError, match="expected str, got NoneType"):
            getattr(client.new_table_alterer(table), change)(None)


def test_ranges_are_added_and_dropped(client: kudu.Client, table: kudu.Table):
    """Bounds are dicts, tuples or rows; the unbounded range has none."""
    alterer = client.new_table_alterer(table)
    alterer.drop_range_partition()
    alterer.add_range_partition(lower_bound={"key": 0}, upper_bound={"key": 100})
    table = alterer.alter()
    session = client.new_session("sync")
    session.apply(table.new_insert((99,)))
    with pytest.raises(kudu.KuduBadStatus, match="Not found: no range partition covers the key"):
        session.apply(table.new_insert((100,)))
    alterer = client.new_table_alterer(table)
    alterer.drop_range_partition((-1,), [99], kudu.EXCLUSIVE_BOUND, "inclusive")
    alterer.add_range_partition()
    table = alterer.alter()
    assert (rows(table), table.engine.tablet_count) == ([], 1)


# -- keys that are not unique


def test_a_scanner_shows_the_ids_that_rows_were_given(client: kudu.Client):
    """Unless other columns are projected; a key may have any number of rows."""
    builder = client.schema_builder()
    builder.add_column("key", kudu.int32).non_unique_primary_key()
    builder.add_column("data", kudu.string)
    partitioning = Partitioning().add_hash_partitions(["key"], 2)
    table = client.create_table("t", builder.build(), partitioning)
    session = client.new_session()
    for _ in range(3):
        session.apply(table.new_insert({"key": 1, "data": "text"}))
    session.flush()
    assert rows(table) == [(1, 1, "text"), (1, 2, "text"), (1, 3, "text")]
    assert table.scanner().set_projected_column_names(["key"]).read_all_tuples() == [(1,)] * 3
    # The second place of a record is the id, which no insert may set.
    for record in ((1, "text"), [1, "text"]):
        with pytest.raises(TypeError, match="an integer is required"):
            table.new_insert(record)
    given = table.new_insert({"key": 1, "auto_incrementing_id": 1})
    with pytest.raises(kudu.KuduInvalidArgument, match="should not be specified for Insert"):
        session.apply(given)
    with pytest.raises(kudu.KuduInvalidArgument, match="should be set for UPSERT/UPSERT_IGNORE"):
        session.apply(table.new_upsert({"key": 1}))
