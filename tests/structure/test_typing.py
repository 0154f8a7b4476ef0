"""Users see our types: the wheel has `py.typed`, and what it says holds in a strict program."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("kudulite", "kudulite_spark", "pyspark_kudulite.py")
PROJECT_FILES = ("pyproject.toml", "README.md", "LICENSE")

PROGRAM = """\
import kudulite
import kudulite_spark
import pyarrow as pa

with kudulite.connect("/data/warehouse") as client:
    schema = pa.schema([("host", pa.string()), ("load", pa.float64())])
    table = client.create_table("metrics", schema, primary_key="host")
    result: kudulite.WriteResult = table.insert([{"host": "a", "load": 0.3}], ignore_null=True)
    count: int = table.scan(["host"], where=table["load"] > 0.2, at=result.timestamp).count()
    with client.new_session("manual") as session:
        session.apply(table.new_upsert({"host": "b", "load": 0.1}))
    row = table.get("b")
    print(count, None if row is None else row["load"])
    spark = kudulite_spark.local_session(cores=2)
    print(kudulite_spark.maintain(spark, "/data/warehouse/metrics").bytes_written)
"""

# Each line that is put into the program, and the kind of its error.
WRONG_LINES = {
    "client.create_table(7, schema)": "arg-type",
    "table.insert([], ignore_nulls=True)": "call-arg",
    'table.scan(colums=["host"])': "call-arg",
    "table.scan(where=3)": "arg-type",
    'client.new_session("manual").apply({"host": "b"})': "arg-type",
    'print(table.get("b")["load"])': "index",
    "kudulite_spark.local_session(core=2)": "call-arg",
    'kudulite_spark.maintain(7, "/data/warehouse/metrics")': "arg-type",
}


@pytest.fixture(scope="module")
def users_python(tmp_path_factory) -> Path:
    """The Python of an environment with the built wheel and, by path, what it depends on."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "source").mkdir()
    for name in SOURCES + PROJECT_FILES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / "source" / name)
    python = [sys.executable, "-m"]
    alone = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    run(*python, "pip", "wheel", *alone, "--no-build-isolation", "-w", folder, folder / "source")
    venv.create(folder / "venv", with_pip=False)
    environment = {"base": str(folder / "venv"), "platbase": str(folder / "venv")}
    packages = Path(sysconfig.get_path("purelib", "venv", environment))
    run(*python, "pip", "install", *alone, "--target", packages, *folder.glob("*.whl"))
    # A plain path: the .pth files in it, one of which may name this checkout, are not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "venv" / "bin" / "python"


def run(*command: str | Path) -> None:
    """Run a command; its output is the failure's text."""
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def strict_errors(python: Path, folder: Path, programs: dict[str, str]) -> list[str]:
    """Return what `mypy --strict` says of programs, without the checkout's settings."""
    for name, text in programs.items():
        (folder / name).write_text(text)
    options = ["--strict", "--config-file=", "--no-error-summary"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--python-executable", python, *programs],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "MYPYPATH"},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.full
def test_a_users_program_is_type_checked(users_python, tmp_path):
    """A right program has no error but that pyarrow has no types; each wrong line has its own."""
    lines = PROGRAM.count("\n")
    wrong = PROGRAM + "".join(f"    {line}\n" for line in WRONG_LINES)
    found = strict_errors(users_python, tmp_path, {"right.py": PROGRAM, "wrong.py": wrong})
    found = [line for line in found if '"pyarrow"' not in line and ": note: " not in line]
    assert [line for line in found if not line.startswith("wrong.py:")] == []
    expected = [
        (f"wrong.py:{number}", f"[{kind}]")
        for number, kind in enumerate(WRONG_LINES.values(), lines + 1)
    ]
    assert [(line.partition(": ")[0], line.split()[-1]) for line in found] == expected, found
