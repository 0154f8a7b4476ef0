"""Memory or threads that are not to be had: an OutOfMemoryError and no damage; read again later."""

import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

import kudulite
from kudulite.errors import OutOfMemoryError
from tests.support.tables.core_tables import CoreTables

ROW_COUNT = 60_000
SCHEMA = pa.schema([("k", pa.int64()), ("w", pa.binary())])


@pytest.fixture
def table(core: CoreTables) -> kudulite.Table:
    """Files that are mapped, and some that are not, opened by nobody yet."""
    client = core.client()
    made = client.create_table("t", SCHEMA, primary_key="k")
    cells = [key.to_bytes(8, "little") * 12 for key in range(ROW_COUNT)]
    made.insert(pa.table({"k": range(ROW_COUNT), "w": cells}, SCHEMA))
    write = made.new_bulk_write("upsert")
    write.commit([write.stage([pa.table({"k": [5, -5], "w": [b"x", b"y"]}, SCHEMA)])])
    return core.client().table("t")


def raising(error: Exception) -> Callable[..., None]:
    """A function that fails as a library does."""

    def fail(*_args: object, **_options: object) -> None:
        raise error

    return fail


NO_MEMORY = pa.ArrowMemoryError("malloc of size 65536 failed")
NO_MAP = OSError(errno.ENOMEM, "Memory mapping file failed: Cannot allocate memory")


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("pyarrow.parquet.ParquetFile.read_row_groups", NO_MEMORY),
        ("pyarrow.parquet.read_metadata", NO_MEMORY),
        ("pyarrow.ipc.open_file", NO_MEMORY),
        ("pyarrow.memory_map", NO_MAP),
    ],
)
def test_files_for_which_memory_is_lacking_are_read_later(
    table: kudulite.Table, monkeypatch: pytest.MonkeyPatch, place: str, error: Exception
):
    """Each with its name."""
    with monkeypatch.context() as patch:
        patch.setattr(place, raising(error))
        with pytest.raises(OutOfMemoryError, match=rf"{table.path}.*: not enough memory to read"):
            table.scan(where="k < 10").to_arrow()
    assert table.scan().to_arrow().num_rows == ROW_COUNT + 1
    assert table.get(5) == {"k": 5, "w": b"x"}


def test_a_scan_that_may_begin_no_thread_can_be_read_again(
    table: kudulite.Table, monkeypatch: pytest.MonkeyPatch
):
    """As in a container with a limit of threads."""
    scan = table.scan()
    with monkeypatch.context() as patch:
        patch.setattr(ThreadPoolExecutor, "submit", raising(RuntimeError("can't start new thread")))
        with pytest.raises(OutOfMemoryError, match="cannot begin a thread to read ahead"):
            scan.to_arrow()
    assert scan.to_arrow().num_rows == ROW_COUNT + 1
