"""kudulite.kudu as a module: lengths of time, its errors, the engine below it, and the example."""

import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import kudulite
import kudulite.kudu as kudu
from kudulite.kudu.client import Partitioning
from tests.support.tables.core_tables import CoreTables


@pytest.fixture
def table(client: kudu.Client) -> kudu.Table:
    """An empty table of a key and two values."""
    builder = client.schema_builder()
    builder.add_column("key", kudu.int32, nullable=False).primary_key()
    builder.add_column("int_val", kudu.int32)
    builder.add_column("string_val", kudu.string)
    return client.create_table("t", builder.build(), Partitioning())


def rows(table: kudu.Table) -> list[tuple]:
    """All rows, in key order."""
    return table.scanner().set_fault_tolerant().open().read_all_tuples()


def test_a_time_delta_is_a_length_of_time():
    """Of any unit; without a value it prints as nothing."""
    assert repr(kudu.TimeDelta()) == "kudu.TimeDelta()"
    assert kudu.timedelta(3.5).to_seconds() == 3.5
    assert kudu.timedelta(millis=3500).to_millis() == 3500
    assert kudu.timedelta(micros=3500).to_micros() == 3500
    assert kudu.timedelta(micros=1000).to_nanos() == 1_000_000
    assert kudu.timedelta(nanos=3500).to_nanos() == 3500
    assert repr(kudu.timedelta(1, 500)) == "kudu.TimeDelta(1.500s)"
    short, long = kudu.TimeDelta.from_seconds(1.5), kudu.TimeDelta.from_millis(1501)
    assert short == kudu.TimeDelta.from_micros(1_500_000)
    assert (short != long, short < long, short <= long, short > long) == (True, True, True, False)
    assert {short: 1}[kudu.timedelta(1.5)] == 1


def test_errors_are_one_tree_and_none_of_the_engine_leaves_it(
    client: kudu.Client, table: kudu.Table
):
    """Its error is the cause; the engine's own objects raise it as it is."""
    for kind in (kudu.KuduNotFound, kudu.KuduNotSupported, kudu.KuduInvalidArgument):
        assert issubclass(kind, kudu.KuduBadStatus)
        assert issubclass(kind, kudu.KuduException)
    assert not issubclass(kudu.KuduBadStatus, kudulite.errors.KuduliteError)
    with pytest.raises(kudu.KuduNotFound) as caught:
        table.scanner().set_projected_column_names(["absent"])
    assert isinstance(caught.value.__cause__, kudulite.errors.ColumnNotFoundError)
    with pytest.raises(kudulite.errors.ColumnNotFoundError):
        table.engine.scan(columns=["absent"])
    with pytest.raises(kudu.KuduNotSupported):
        alterer = client.new_table_alterer(table)
        alterer.alter_column("int_val").type("string")
        alterer.alter()
    client.delete_table("t")
    for use in (
        lambda: table.schema,
        table.scanner,
        lambda: table.new_insert((1,)),
        lambda: table.num_columns,
    ):
        with pytest.raises(kudu.KuduNotFound):
            use()


def test_the_engine_and_the_module_share_tables(
    core: CoreTables, client: kudu.Client, table: kudu.Table
):
    """Rows of one are seen by the other; a table has the engine's beside it."""
    other = kudulite.connect(core.root / "root").table("t")
    other.insert({"key": [1], "int_val": [2]})
    assert rows(table) == [(1, 2, None)]
    assert table.engine.scan(where="key = 1").count() == 1
    assert table.engine.arrow_schema == other.arrow_schema
    assert "int_val" in table.engine._repr_html_()
    assert pickle.loads(pickle.dumps(table)).schema.equals(table.schema)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table.engine.upsert({"key": [2], "int_val": [3]})
    assert [row["key"] for row in other.scan(ordered=True)] == [1, 2]


def test_a_name_of_the_engine_says_where_it_is(client: kudu.Client, table: kudu.Table):
    """Any other name is an error as of any object."""
    with pytest.raises(
        AttributeError, match=r"no scan; use table\.engine\.scan, .*kudulite\.Table"
    ):
        table.scan()
    with pytest.raises(
        AttributeError, match=r"no new_staging; use client\.engine\.new_staging, of"
    ):
        client.new_staging()
    with pytest.raises(AttributeError, match="^'Table' object has no attribute 'scannner'$"):
        table.scannner()
    with pytest.raises(TypeError, match="not iterable"):
        iter(table)
    with pytest.raises(TypeError, match="expected a table of kudulite.kudu, got <kudulite table"):
        client.new_table_alterer(table.engine)
    assert not hasattr(client, "new_staging") and not hasattr(table, "_repr_html_")


def test_the_example_for_kudu_python_runs(core: CoreTables):
    """It imports this module only, and asserts the result of each step."""
    script = Path(__file__).parents[3] / "examples" / "kudu_python_port.py"
    command = [sys.executable, str(script), str(core.root / "root")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "all steps passed; 72 rows"


# -- limits


def wide_schema(client: kudu.Client, count: int) -> kudu.Schema:
    """A schema of so many columns: a key of two texts, and numbers."""
    builder = client.schema_builder()
    for name in ("a", "b"):
        builder.add_column(name, kudu.string, nullable=False)
    for number in range(count - 2):
        builder.add_column(f"n{number}", kudu.binary)
    builder.set_primary_keys(["a", "b"])
    return builder.build()


def test_limits_are_those_of_kudu_unless_the_client_raises_them(core: CoreTables):
    """Of columns, cells and encoded keys; the errors name the options."""
    root = core.root / "root"
    client, free = kudu.connect(root), kudu.connect(root, max_num_columns=301)
    with pytest.raises(kudu.KuduInvalidArgument, match=r"columns 301 is greater .* 300; .*max_num"):
        client.create_table("t", wide_schema(client, 301), Partitioning())
    table = client.create_table("t", wide_schema(client, 300), Partitioning())
    alterer = client.new_table_alterer(table)
    alterer.add_column("one_more", "int32")
    with pytest.raises(kudu.KuduInvalidArgument, match="number of columns 301"):
        alterer.alter()
    alterer = free.new_table_alterer(free.table("t"))
    alterer.add_column("one_more", "int32")
    assert len(alterer.alter().schema) == 301
    client.new_table_alterer(client.table("t")).drop_column("n0").alter()

    big = kudu.connect(root, max_cell_size_bytes=1 << 20, max_encoded_key_size_bytes=1 << 17)
    cell, key = b"x" * (1 << 16), "é" * (1 << 13)
    for given, text in (
        ({"a": "", "b": "", "n1": cell + b"x"},
         r"value too large for column 'n1' \(65537 bytes, maximum is 65536 bytes\); .*max_cell"),
        ({"a": "", "b": key}, r"key too large \(16386 bytes, maximum is 16384 .*max_encoded_key_s"),
        ({"a": "\0" * 8200, "b": ""}, "encoded key too large"),
    ):  # fmt: skip
        for name in ("new_insert", "new_upsert"):
            operation = getattr(client.table("t"), name)(given)
            with pytest.raises(kudu.KuduInvalidArgument, match=text):
                client.new_session().apply(operation)
        session = big.new_session()
        session.apply(big.table("t").new_upsert(given))
        session.flush()
    # Cells and keys at the limit are accepted, and a row with a larger key may be deleted.
    table, session = client.table("t"), client.new_session()
    session.apply(table.new_insert({"a": "", "b": key[:-1], "n1": cell}))
    session.apply(table.new_delete({"a": "", "b": key}))
    session.flush()
    found = table.scanner().set_fault_tolerant().read_all_tuples()
    assert [len(b) for _, b, *_ in found] == [0, len(key) - 1, 0]
    # The engine itself has no such limits.
    table.engine.upsert([{"a": "", "b": "", "n1": 2 * cell}])
    assert len(table.engine.get(("", ""))["n1"]) == 1 << 17


def test_an_array_has_as_many_elements_as_the_client_permits(core: CoreTables):
    """1024 unless `array_cell_max_elem_num` is raised; nulls count, and the engine has no limit."""
    root = core.root / "root"
    client, free = kudu.connect(root), kudu.connect(root, array_cell_max_elem_num=1025)
    builder = client.schema_builder()
    builder.add_column("k", kudu.int32, nullable=False).primary_key()
    builder.add_column("flags").nested_type(kudu.array_type(kudu.bool))
    table = client.create_table("t", builder.build(), Partitioning())
    for number, name in enumerate(("new_insert", "new_upsert", "new_update")):
        most, one_more = ([None] * 1023 + [True] * more for more in (1, 2))
        session = client.new_session()
        if name == "new_update":
            session.apply(table.new_insert({"k": number}))
        session.apply(getattr(table, name)({"k": number, "flags": most}))
        refusal = r"'flags' \(1025 elements, maximum is 1024 elements\); .*array_cell_max_elem_num"
        with pytest.raises(kudu.KuduInvalidArgument, match=refusal):
            session.apply(getattr(table, name)({"k": number, "flags": one_more}))
        session.flush()
        session = free.new_session()
        session.apply(free.table("t").new_upsert({"k": number + 10, "flags": one_more}))
        session.flush()
    table.engine.upsert([{"k": 20, "flags": [False] * 5000}])
    found = table.engine.scan(ordered=True).to_arrow().to_pydict()
    assert list(map(len, found["flags"])) == [1024] * 3 + [1025] * 3 + [5000]
