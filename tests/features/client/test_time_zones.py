"""Days and instants in Python and on the command line are the same in every zone of the machine."""

import datetime
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

import kudulite
from tests.support.tiers import tiered

ROOT = Path(__file__).parents[3]

PROGRAM = """
import datetime, sys, kudulite
from kudulite.tools.cli import app
folder, day = sys.argv[1], datetime.date.fromisoformat(sys.argv[2])
table = kudulite.connect(folder, background_maintenance=False).table("t")
table.insert([{"id": 9, "d": day, "at": datetime.datetime(2011, 12, 30, 10, tzinfo=datetime.UTC)}])
midnight = datetime.datetime(day.year, day.month, day.day).isoformat()
for where in (
    [("d", "=", day)], [("d", "=", str(day))], f"d = DATE '{day}'", f"d IN ('{day}')",
    [("d", ">=", day), ("d", "<", day + datetime.timedelta(1))],
    "at = TIMESTAMP '2011-12-30 10:00:00'", f"n = TIMESTAMP_NTZ '{midnight}' OR id = 9",
):
    print(table.scan(where=where).count(), end=" ")
print(table.get(9)["d"], table.get(9)["at"].isoformat())
app(["scan", folder + "/t", "--where", f"d = DATE '{day}'", "--columns", "id,d", "--format", "csv"])
"""


@tiered(
    ("zone", "day"),
    [
        ("Pacific/Apia", "2011-12-30"),  # a day that the zone skipped
        ("America/Sao_Paulo", "2018-11-04"),  # a day without midnight
        ("America/Havana", "2022-11-06"),  # a day with two midnights
    ],
    quick=1,
)
def test_days_and_instants_in_a_zone_of_the_machine(tmp_path, zone, day):
    """Conditions of every form find them, and rows show them as they were written."""
    own = datetime.date.fromisoformat(day)
    types = [
        ("id", pa.int64()),
        ("d", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("n", pa.timestamp("us")),
    ]
    client = kudulite.connect(tmp_path, background_maintenance=False)
    table = client.create_table("t", pa.schema(types), primary_key="id")
    days = [own + datetime.timedelta(shift) for shift in (-1, 0, 1)]
    moment = datetime.datetime(2011, 12, 30, 10, tzinfo=datetime.UTC)
    for k, each in enumerate(days):
        midnight = datetime.datetime(each.year, each.month, each.day)
        table.insert([{"id": k, "d": each, "at": moment, "n": midnight}])
    table.flush()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), day],
        env={**os.environ, "TZ": zone},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    expected = f"2 2 2 2 2 4 2 {day} 2011-12-30T10:00:00+00:00"
    assert done.stdout.splitlines()[0] == expected, done.stderr[-2000:]
    assert sorted(done.stdout.splitlines()[1:]) == sorted(['"id","d"', f"1,{day}", f"9,{day}"])
