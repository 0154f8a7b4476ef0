"""Operations beside the renaming, deletion, or creation of their table, at each of their steps.

An operation is done, or says that the table is gone or has changed: its files are not damaged, and
a file that it does not find is no error of the disk.
"""

import itertools
from collections.abc import Callable
from functools import partial

from kudulite.client.client import Client
from kudulite.errors import LockTimeoutError, RetryableError, TableNotFoundError
from tests.support.doubles.interrupted_file_system import Interrupted
from tests.support.tables.core_tables import CoreTables
from tests.support.tables.table_operations import OPERATIONS, copied, new_table
from tests.support.tiers import tiered

MOVES: dict[str, Callable[[Client], object]] = {
    "rename": lambda client: client.rename_table("t", "moved"),
    "delete": lambda client: client.delete_table("t"),
    "soft delete": lambda client: client.soft_delete_table("t", 60),
    "create again": lambda client: (client.delete_table("t"), new_table(client)),
    "rename back": lambda client: (
        client.rename_table("t", "moved"),
        client.rename_table("moved", "t"),
    ),
}
ALSO = {
    "scan": lambda table: table.scan().to_arrow(),
    "get": lambda table: table.get(11),
    "bulk write": lambda table: table.new_bulk_write("upsert").abort(),
}
QUICK = [("flush", "rename"), ("update where", "create again")]


def moved(client: Client, move: str) -> None:
    """Move the table as another process does, unless the operation has a lock."""
    try:
        MOVES[move](client)
    except LockTimeoutError:
        pass


@tiered(("name", "move"), itertools.product([*OPERATIONS, *ALSO], MOVES), quick=QUICK)
def test_an_operation_survives_moves_ahead_of_each_of_its_steps(
    core: CoreTables, name: str, move: str
):
    """Every third step of the operation is tried, and its beginning."""
    new_table(core.client("made"))
    for at in itertools.count(0, 3):
        file_system = Interrupted(at)
        table = copied(core, "beside", file_system=file_system).table("t")
        table.schema  # noqa: B018 - opened
        other = core.client("beside", lock_timeout_seconds=0.0)
        file_system.action = partial(moved, other, move)
        try:
            (OPERATIONS | ALSO)[name](table)
        except (TableNotFoundError, RetryableError):
            assert file_system.steps_left < 0
        if file_system.steps_left >= 0:
            return
