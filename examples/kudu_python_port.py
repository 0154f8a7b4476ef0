"""A program for kudu-python that runs on kudulite; only its import and the connect line changed.

    import kudu                                            →  import kudulite.kudu as kudu
    client = kudu.connect(host="kudu.master", port=7051)   →  client = kudu.connect(folder)

With the folder in the environment variable KUDULITE_DIRECTORY, even the second line stays.

It stores the readings of weather stations. It creates a table; inserts, upserts, updates and
deletes rows with sessions; handles the errors of single rows; scans with predicates and bounds;
reads a snapshot of the past; sends scan tokens to other processes; and alters the table: columns,
ranges, owner, comment and name. Then it does what Kudu's other examples for Python do: arrays,
immutable columns, keys that are not unique, soft deletes and statistics. Each step asserts its
result.

    python examples/kudu_python_port.py            the tables live in a temporary folder
    python examples/kudu_python_port.py FOLDER     the tables stay in FOLDER
"""

import sys
import tempfile
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context

import kudulite.kudu as kudu

TABLE = "readings"
START = datetime(2016, 1, 1, tzinfo=UTC)
STATIONS = ["Bergen", "Lima", "Osaka"]
HOURS = 24


def main(folder: str) -> None:
    """Run all steps on the tables of `folder`."""
    client = kudu.connect(folder)
    table = create(client)
    insert(client, table)
    before = client.latest_observed_timestamp()
    correct(client, table)
    handle_errors(client, table)
    scan(table)
    look_back(table, before)
    scan_in_processes(folder, table)
    alter(client, table)
    run_basic_example(client)
    write_arrays(client)
    keep_immutable_cells(client)
    number_rows(client)
    delete_softly(client)
    print(f"all steps passed; {len(client.table(TABLE).scanner().read_all_tuples())} rows")


def create(client: kudu.Client) -> kudu.Table:
    """Create a table with a composite key, hashed by station, with range partitions over time."""
    builder = kudu.schema_builder()
    builder.add_column("station").type(kudu.string).nullable(False)
    builder.add_column("at", kudu.unixtime_micros, nullable=False)
    builder.add_column(
        "degrees", kudu.double, compression="lz4", encoding=kudu.ENCODING_BIT_SHUFFLE
    )
    builder.add_column("rain", kudu.decimal, precision=6, scale=1)
    builder.add_column("note", type_="string")
    builder.set_primary_keys(["station", "at"])
    schema = builder.build()
    assert schema.primary_keys() == ["station", "at"]
    assert [column.name for column in schema if column.nullable] == ["degrees", "rain", "note"]

    partitioning = kudu.client.Partitioning()
    partitioning.add_hash_partitions(column_names=["station"], num_buckets=2)
    partitioning.set_range_partition_columns(["at"])
    partitioning.add_range_partition(lower_bound={"at": START}, upper_bound=None)
    partitioning.add_range_partition_split({"at": START + timedelta(days=7)})
    if client.table_exists(TABLE):
        client.delete_table(TABLE)
    client.create_table(TABLE, schema, partitioning, n_replicas=1, owner="weather")
    assert TABLE in client.list_tables()
    return client.table(TABLE)


def insert(client: kudu.Client, table: kudu.Table) -> None:
    """Insert a day of readings, buffered in the session and written by one flush."""
    session = client.new_session()
    for number, station in enumerate(STATIONS):
        for hour in range(HOURS):
            op = table.new_insert()
            op["station"] = station
            op["at"] = START + timedelta(hours=hour)
            op["degrees"] = 10.0 * number + hour
            session.apply(op)
    session.flush()
    assert session.get_write_op_metrics()["successful_inserts"] == len(STATIONS) * HOURS
    assert len(table.scanner().open().read_all_tuples()) == len(STATIONS) * HOURS


def correct(client: kudu.Client, table: kudu.Table) -> None:
    """Upsert, update and delete; a row may be a dict, a tuple, or set cell by cell."""
    session = client.new_session(flush_mode=kudu.FLUSH_MANUAL, timeout_ms=10_000)
    session.apply(table.new_upsert(("Lima", START, 21.5)))
    session.apply(
        table.new_upsert({"station": "Quito", "at": "2016-01-08T00:00:00.0", "note": "new"})
    )
    session.apply(table.new_update({"station": "Osaka", "at": ("2016-01-01", "%Y-%m-%d"), 4: "x"}))
    session.apply(table.new_delete({"station": "Bergen", "at": START}))
    session.flush()

    scanner = table.scanner()
    scanner.set_projected_column_names(["station", "degrees", "note"])
    scanner.add_predicate(table["at"] == START)
    assert sorted(scanner.open().read_all_tuples()) == [
        ("Lima", 21.5, None),
        ("Osaka", 20.0, "x"),
    ]


def handle_errors(client: kudu.Client, table: kudu.Table) -> None:
    """Write rows that fail: the other rows of the flush are applied."""
    session = client.new_session()
    session.apply(table.new_insert({"station": "Lima", "at": START}))
    session.apply(table.new_insert({"station": "Nairobi", "at": START}))
    session.apply(table.new_update({"station": "Nowhere", "at": START, "note": "?"}))
    session.apply(table.new_delete_ignore({"station": "Nowhere", "at": START}))
    try:
        session.flush()
    except kudu.KuduBadStatus as error:
        print("expected:", error)
    else:
        raise AssertionError("two rows must fail")
    errors, overflowed = session.get_pending_errors()
    assert not overflowed
    assert [repr(error).count("Already present") for error in errors] == [1, 0]
    assert errors[1].failed_op().startswith('UPDATE string station="Nowhere"')
    names = table.scanner().set_projected_column_names("station").read_all_tuples()
    assert ("Nairobi",) in names
    assert ("Nowhere",) not in names

    for wrong, kind in (
        ({"station": None}, kudu.KuduInvalidArgument),
        ({"degrees": "warm"}, TypeError),
        ({"humidity": 1}, KeyError),
    ):
        try:
            table.new_insert({"station": "Lima", "at": START, **wrong})
        except kind as error:
            print("expected:", error)
        else:
            raise AssertionError(f"{wrong} must be refused")
    try:
        client.table("no such table")
    except kudu.KuduNotFound as error:
        print("expected:", error)


def scan(table: kudu.Table) -> None:
    """Scan with predicates, bounds, projections and batches."""
    scanner = table.scanner()
    scanner.set_fault_tolerant()
    scanner.set_projected_column_indexes([0, 2])
    scanner.add_predicates([table["station"].in_list(["Lima", "Osaka"]), table["degrees"] > 42])
    assert scanner.open().read_all_tuples() == [("Osaka", 43.0)]

    scanner = table.scanner().set_fault_tolerant()
    lower, upper = scanner.new_bound(), scanner.new_bound()
    lower["station"], lower["at"] = "Bergen", START + timedelta(hours=20)
    upper["station"], upper["at"] = "Lima", START + timedelta(hours=2)
    scanner.add_lower_bound(lower).add_exclusive_upper_bound(upper).open()
    hours = []
    while scanner.has_more_rows():
        for row in scanner.next_batch().as_tuples():
            hours.append((row[0], row[1].hour))
    assert hours == [("Bergen", h) for h in (20, 21, 22, 23)] + [("Lima", 0), ("Lima", 1)]

    noted = table.scanner().add_predicate(table["note"].is_not_null()).read_all_tuples()
    assert sorted(row[4] for row in noted) == ["new", "x"]


def look_back(table: kudu.Table, before: datetime) -> None:
    """Read the table as of before the corrections."""
    scanner = table.scanner().set_read_mode(kudu.READ_AT_SNAPSHOT).set_snapshot(before)
    scanner.add_predicate(table["at"] == START).set_projected_column_names(["station", "degrees"])
    assert sorted(scanner.open().read_all_tuples()) == [
        ("Bergen", 0.0),
        ("Lima", 10.0),
        ("Osaka", 20.0),
    ]


def scan_in_processes(folder: str, table: kudu.Table) -> None:
    """Read scan tokens in other processes; a token is bytes."""
    builder = table.scan_token_builder()
    builder.set_projected_column_names(["station", "at"]).set_fault_tolerant()
    tokens = builder.build()
    work = [(folder, token.serialize()) for token in tokens]
    with get_context("spawn").Pool(2) as pool:
        rows = [row for part in pool.map(read_token, work) for row in part]
    assert sorted(rows) == sorted((row[0], row[1]) for row in table.scanner().read_all_tuples())


def read_token(work: tuple[str, bytes]) -> list[tuple]:
    """Return the rows of one token, in the process that received it."""
    folder, token = work
    client = kudu.connect(folder)
    return client.deserialize_token_into_scanner(token).open().read_all_tuples()


def alter(client: kudu.Client, table: kudu.Table) -> None:
    """Add, rename and drop columns and ranges, and rename the table; no row is rewritten."""
    alterer = client.new_table_alterer(table)
    alterer.add_column("country", type_="string", default="?")
    alterer.alter_column("degrees", rename_to="celsius")
    alterer.drop_column("rain")
    table = alterer.alter()
    assert table.schema.names == ["station", "at", "celsius", "note", "country"]
    session = client.new_session(flush_mode=kudu.FLUSH_AUTO_SYNC)
    session.apply(table.new_update({"station": "Lima", "at": START, "country": "Peru"}))
    rows = table.scanner().add_predicate(table["at"] == START).read_all_tuples()
    assert sorted((row[0], row[2], row[4]) for row in rows) == [
        ("Lima", 21.5, "Peru"),
        ("Nairobi", None, "?"),
        ("Osaka", 20.0, "?"),
    ]
    assert repr(table["celsius"]) == f"Column(celsius, parent={TABLE}, type=double)"

    alterer = client.new_table_alterer(table)
    alterer.drop_range_partition(lower_bound={"at": START + timedelta(days=7)})
    alterer.add_range_partition(
        {"at": START + timedelta(days=7)}, {"at": START + timedelta(days=14)}
    )
    alterer.set_owner("climate").set_comment("hourly").rename("renamed")
    table = alterer.alter()
    assert (table.name, table.owner, table.comment) == ("renamed", "climate", "hourly")
    client.new_table_alterer(table).rename(TABLE).alter()


def run_basic_example(client: kudu.Client) -> None:
    """Do what Kudu's basic example does: one of each operation, and a predicate on a time."""
    name = "python-example"
    builder = kudu.schema_builder()
    builder.add_column("key").type(kudu.int64).nullable(False).primary_key()
    builder.add_column("ts_val", type_=kudu.unixtime_micros, nullable=False, compression="lz4")
    partitioning = kudu.client.Partitioning()
    partitioning.add_hash_partitions(column_names=["key"], num_buckets=3)
    if client.table_exists(name):
        client.delete_table(name)
    client.create_table(name, builder.build(), partitioning)
    table = client.table(name)
    session = client.new_session()
    session.apply(table.new_insert({"key": 1, "ts_val": datetime(2020, 1, 1)}))
    session.apply(table.new_upsert({"key": 2, "ts_val": "2016-01-01T00:00:00.000000"}))
    session.apply(table.new_update({"key": 1, "ts_val": ("2017-01-01", "%Y-%m-%d")}))
    session.apply(table.new_delete({"key": 2}))
    try:
        session.flush()
    except kudu.KuduBadStatus:
        print(session.get_pending_errors())
        raise
    scanner = table.scanner()
    scanner.add_predicate(table["ts_val"] == datetime(2017, 1, 1))
    assert scanner.open().read_all_tuples() == [(1, datetime(2017, 1, 1, tzinfo=UTC))]
    client.delete_table(name)


def write_arrays(client: kudu.Client) -> None:
    """Write, update and delete arrays of any length, with nulls and without elements."""
    name = "python-array-example"
    builder = kudu.schema_builder()
    builder.add_column("key").type(kudu.int32).nullable(False).primary_key()
    builder.add_column("numbers").nested_type(kudu.array_type(kudu.int64))
    builder.add_column("words").nested_type(kudu.array_type(kudu.string))
    schema = builder.build()
    assert schema["numbers"].type_to_string() == "INT64 1D-ARRAY NULLABLE"
    by_key = kudu.client.Partitioning().add_hash_partitions("key", 3)
    if client.table_exists(name):
        client.delete_table(name)
    client.create_table(name, schema, by_key)
    table = client.table(name)
    session = client.new_session()
    for key in range(10):
        op = table.new_insert({"key": key})
        op["numbers"] = [key * 6, None, key * 7]
        op["words"] = [f"row_{key}"] * (key % 3)
        session.apply(op)
    session.apply(table.new_update({"key": 3, "numbers": [100, 200], "words": None}))
    session.apply(table.new_insert({"key": 100, "numbers": [], "words": []}))
    for key in (5, 6, 7):
        session.apply(table.new_delete({"key": key}))
    session.flush()
    scanner = table.scanner().set_fault_tolerant()
    scanner.add_predicates([table["key"] >= 2, table["key"] <= 8])
    found = []
    while scanner.has_more_rows():
        found += scanner.read_next_batch_tuples()
    assert found == [
        (2, [12, None, 14], ["row_2", "row_2"]),
        (3, [100, 200], None),
        (4, [24, None, 28], ["row_4"]),
        (8, [48, None, 56], ["row_8", "row_8"]),
    ]
    client.delete_table(name)


def keep_immutable_cells(client: kudu.Client) -> None:
    """Cells of an immutable column keep the values of the inserts of their rows."""
    name = "immutable"
    builder = kudu.schema_builder()
    builder.add_column("key", kudu.int32, nullable=False, primary_key=True)
    builder.add_column("born", kudu.date).mutable(False)
    builder.add_column("city", kudu.string)
    if client.table_exists(name):
        client.delete_table(name)
    client.create_table(name, builder.build(), kudu.client.Partitioning())
    table = client.table(name)
    session = client.new_session("sync")
    born = datetime(1990, 5, 1).date()
    session.apply(table.new_insert((1, born, "Lima")))
    session.apply(table.new_upsert_ignore((1, datetime(2000, 1, 1).date(), "Osaka")))
    try:
        session.apply(table.new_update({"key": 1, "born": None}))
    except kudu.KuduBadStatus as error:
        print("expected:", error)
    else:
        raise AssertionError("an update of an immutable column must fail")
    assert table.scanner().read_all_tuples() == [(1, born, "Osaka")]
    client.delete_table(name)


def number_rows(client: kudu.Client) -> None:
    """Store rows whose key is not unique; find the ids of some, and update and delete these."""
    name = "python-non-unique-key-example"
    id_name = kudu.schema.Schema.get_auto_incrementing_column_name()
    builder = kudu.schema_builder()
    builder.add_column("key").type(kudu.int32).nullable(False).non_unique_primary_key()
    builder.add_column("value", type_=kudu.int32, nullable=False)
    schema = builder.build()
    assert schema.names == ["key", id_name, "value"]
    assert schema.primary_keys() == ["key", id_name]
    if client.table_exists(name):
        client.delete_table(name)
    client.create_table(name, schema, kudu.client.Partitioning().add_hash_partitions(["key"], 2))
    table = client.table(name)
    session = client.new_session()
    for number in range(10):
        op = table.new_insert()  # the id is left out: the tablet gives it
        op["key"] = number // 3 + 1
        op["value"] = number % 3
        session.apply(op)
    session.flush()

    def found(*predicates: kudu.client.Predicate) -> list[tuple[int, int, int]]:
        scanner = table.scanner().set_fault_tolerant().add_predicates(list(predicates))
        return scanner.open().read_all_tuples()

    def change(rows: list[tuple[int, int, int]], value: int | None) -> None:
        for key, row_id, _ in rows:  # an update or a delete needs the whole key
            op = table.new_delete() if value is None else table.new_update()
            op["key"], op[id_name] = key, row_id
            if value is not None:
                op["value"] = value
            session.apply(op)
        session.flush()

    assert [(key, value) for key, _, value in found()] == [(n // 3 + 1, n % 3) for n in range(10)]
    change(found(table["key"] == 1, table["value"] == 2), 98)
    change(found(table["key"] == 2), 99)
    first = found(table["key"] == 2)[0]
    change(found(table["key"] == 2, table[id_name] == first[1]), 100)
    change(found(table["key"] == 3, table["value"] == 1), None)
    expected = [(1, 0), (1, 1), (1, 98), (2, 100), (2, 99), (2, 99), (3, 0), (3, 2), (4, 0)]
    assert [(key, value) for key, _, value in found()] == expected
    change(found(table["key"] == 2), None)
    projected = table.scanner().set_projected_column_names(["key", id_name])
    ids = sorted(row_id for _, row_id in projected.read_all_tuples())
    assert len(ids) == 6
    assert ids[0] == 1
    client.delete_table(name)


def delete_softly(client: kudu.Client) -> None:
    """Delete a table for ten minutes, recall it by its id under another name, and delete it."""
    name = "soft"
    builder = kudu.schema_builder()
    builder.add_column("key", kudu.int32, nullable=False).primary_key()
    for old in (name, "recalled"):
        if client.table_exists(old):
            client.delete_table(old)
    client.create_table(name, builder.build(), kudu.client.Partitioning())
    table = client.table(name)
    session = client.new_session(flush_mode="sync")
    for key in range(10):
        session.apply(table.new_insert((key,)))
    assert client.get_table_statistics(name).live_row_count == 10
    client.soft_delete_table(name, reserve_seconds=600)
    assert name not in client.list_tables()
    assert name in client.list_soft_deleted_tables()
    client.recall_table(table.id, "recalled")
    assert len(client.table("recalled").scanner().read_all_tuples()) == 10
    client.delete_table("recalled")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory(prefix="kudulite-readings-") as temporary:
            main(temporary)
