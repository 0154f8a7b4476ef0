"""A program for kudu-python that runs on kudulite; only its imports and the connect line changed.

    import kudu                                     →  import kudulite as kudu
    from kudu.client import Partitioning            →  from kudulite.client import Partitioning
    client = kudu.connect(host="kudu.master", port=7051)   →  client = kudu.connect(folder)

It stores the readings of weather stations. It creates a table; inserts, upserts, updates and
deletes rows with sessions; handles the errors of single rows; scans with predicates and bounds;
reads a snapshot of the past; sends scan tokens to other processes; and alters the table. Each step
asserts its result.

    python examples/kudu_python_port.py            the tables live in a temporary folder
    python examples/kudu_python_port.py FOLDER     the tables stay in FOLDER
"""

import sys
import tempfile
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context

import kudulite as kudu
from kudulite.client import Partitioning

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

    partitioning = Partitioning().add_hash_partitions(column_names=["station"], num_buckets=2)
    partitioning.set_range_partition_columns(["at"])
    partitioning.add_range_partition(lower_bound={"at": START}, upper_bound=None)
    partitioning.add_range_partition_split({"at": START + timedelta(days=7)})
    if client.table_exists(TABLE):
        client.delete_table(TABLE)
    client.create_table(TABLE, schema, partitioning)
    assert client.list_tables() == [TABLE]
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
    assert session.has_pending_operations()
    session.flush()
    assert not session.has_pending_operations()
    assert len(table.scanner().open().read_all_tuples()) == len(STATIONS) * HOURS


def correct(client: kudu.Client, table: kudu.Table) -> None:
    """Upsert, update and delete; a row may be a dict, a tuple, or set cell by cell."""
    session = client.new_session(flush_mode=kudu.FLUSH_MANUAL, timeout_ms=10_000)
    session.apply(table.new_upsert(("Lima", START, 21.5)))
    session.apply(
        table.new_upsert({"station": "Quito", "at": "2016-01-08T00:00:00", "note": "new"})
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
    assert [str(error).count("already present") for error in errors] == [1, 0]
    assert session.count_pending_errors() == 0
    names = table.scanner().set_projected_column_names("station").read_all_tuples()
    assert ("Nairobi",) in names
    assert ("Nowhere",) not in names

    for wrong in ({"station": None}, {"degrees": "warm"}, {"humidity": 1}):
        try:
            table.new_insert({"station": "Lima", "at": START, **wrong})
        except (kudu.KuduInvalidArgument, KeyError, TypeError) as error:
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
    """Add, rename and drop columns; no row is rewritten."""
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


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory(prefix="kudulite-readings-") as temporary:
            main(temporary)
