"""Making a Spark session use the source: `register`, the JVM extension, and `local_session`.

**register.** If the package is installed for the Python that Spark's workers run, Spark finds the
source by itself (`pyspark_kudulite`). `register` is for all other cases: a session whose workers
would run another Python, a checkout that is not installed, a format name that another source has.

**The JVM extension**, in code the *front*, is a small jar (java/DefaultSource.java, whose head
explains it) that lets Spark prune columns and push filters. Stock Spark does neither for a Python
source, and it keeps one plan for all queries of a DataFrame. Once a session has the jar, Spark
finds the extension by its class name, `kudulite.DefaultSource`; the Python source stays registered
under its name. With the extension, one Python process plans and commits (`pyspark_kudulite`); stock
Spark starts two others for each of five steps, and every second one imports the package again. Only
the driver needs the package's jar, and Spark sends it to executors. The extension is optional: if
it cannot be installed, the reason is logged and the Python source works alone.

**local_session** starts Spark on this machine with the settings of kudulite's examples and tests,
and registers the session. Nothing in the connector depends on it. It avoids the usual problems of a
local session: a missing Java, workers with another Python interpreter, and 200 shuffle partitions
on two cores.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from kudulite import Timestamp
from kudulite.errors import NotSupportedError, UsageError
from kudulite_spark.datasource import KuduliteDataSource
from kudulite_spark.jvm import ensure_java
from kudulite_spark.options import absolute_path
from kudulite_spark.spark_versions import EXTENSION_VERSIONS, register_source


def register(
    spark: SparkSession,
    *,
    warehouse: str | os.PathLike[str] | None = None,
    catalog: str = "kudulite",
) -> None:
    """Register the format `kudulite` with a session (classic or Connect).

    With `warehouse`, a directory of tables, Spark SQL has it as the catalog `catalog`. Raises
    NotSupportedError if the session cannot have the catalog, and UsageError if it has another one
    of this name.

    Installs the JVM extension too, if possible: Spark then prunes columns and pushes filters. In a
    local session the workers run this interpreter, unless PYSPARK_PYTHON names one, and import the
    package from where this process did. On a cluster the package must be installed. Raises
    UsageError if the workers of a local session cannot import it."""
    if not is_remote():
        _pass_timestamps_as_integers()
    if _is_local(spark):
        context = spark.sparkContext
        if "PYSPARK_PYTHON" not in os.environ:
            context.pythonExec = sys.executable
        _add_python_path(context.environment, str(Path(__file__).resolve().parents[1]))
    activate(spark)
    register_source(spark, KuduliteDataSource)
    problem = _install_front(spark)
    if warehouse is None:
        return
    if not os.fspath(warehouse):
        raise UsageError(
            f"catalog {catalog!r}: its warehouse is an empty text; give a directory of tables"
        )
    place = absolute_path(warehouse, start_directory(spark))
    if problem is not None:
        raise NotSupportedError(
            f"catalog {catalog!r} of {place}: this session does not take the JVM extension,"
            f" which has the catalog of Spark SQL: {problem}. Without it use"
            " spark.read.format('kudulite').load(path), df.write and, for MERGE,"
            " kudulite_spark.merge(df, path); register(spark) without warehouse is enough for these"
        )
    _set_catalog(spark, catalog, place)


def _set_catalog(spark: SparkSession, catalog: str, place: str) -> None:
    """Make a directory a catalog of the session. Raises UsageError if the name is taken."""
    if not re.fullmatch(r"[\w-]+", catalog):
        raise UsageError(
            f"catalog {catalog!r} of {place}: Spark takes a name of letters, digits, _ and -"
        )
    name = f"spark.sql.catalog.{catalog}"
    has_views = not spark.version.startswith(VERSIONS_WITHOUT_VIEWS)
    # The settings of the session may have named the class without views.
    is_without = not has_views or spark.conf.get(name, None) == CATALOG_CLASS
    own = {
        name: CATALOG_CLASS if is_without else CATALOG_WITH_VIEWS_CLASS,
        f"{name}.warehouse": place,
    }
    for key, value in own.items():
        found = spark.conf.get(key, None)
        # Spark keeps a catalog from its first use until the session ends.
        if catalog == "spark_catalog" or found not in (None, value):
            raise UsageError(
                f"catalog {catalog!r} cannot be {place}: the session has a catalog of this name,"
                f" with {key} = {found}, and a catalog cannot be changed; give another name, as in"
                f" register(spark, warehouse={place!r}, catalog='other')"
            )
    for key in reversed(own):
        spark.conf.set(key, own[key])
    # Spark looks for the class with the class loader of the thread that names the catalog first,
    # and only this thread's is sure to have the jar.
    spark.sql(f"SHOW NAMESPACES IN `{catalog}`")


class TimestampConverter:
    """Passes a Timestamp to Java, as in a comparison of columns, as the integer that it is.

    Py4J sends the text of any integer, and that of a Timestamp has no digits only.
    """

    def can_convert(self, value: object) -> bool:
        """Whether Py4J has to call `convert`."""
        return isinstance(value, Timestamp)

    def convert(self, value: Timestamp, gateway_client: object) -> int:
        """Return the HybridTime."""
        return int(value)


def _pass_timestamps_as_integers() -> None:
    protocol = importlib.import_module("py4j.protocol")
    if not any(isinstance(known, TimestampConverter) for known in protocol.INPUT_CONVERTER):
        protocol.register_input_converter(TimestampConverter(), prepend=True)


def activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread, for calls that use the format.

    Spark looks a format up in the thread's active session, and a thread that Python has started
    has none. Raises UsageError if the workers of a local session cannot import the package: Spark
    would say DATA_SOURCE_NOT_FOUND."""
    if is_remote():
        return
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
    if not _is_local(spark):
        return
    context = spark.sparkContext
    python = shutil.which(context.pythonExec) or context.pythonExec
    if _identity(python) != _identity(sys.executable):
        _check_import(python, context.environment.get("PYTHONPATH", ""))


def _identity(python: str) -> tuple[str, str]:
    """Return what an interpreter's packages depend on: its folder, and the program behind links."""
    return os.path.dirname(os.path.abspath(python)), os.path.realpath(python)


@functools.cache
def _check_import(python: str, folders: str) -> None:
    """Raise UsageError if an interpreter cannot import the package."""
    inherited = os.environ.get("PYTHONPATH", "")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [inherited, folders]))}
    command = [python, "-c", "import pyspark_kudulite, kudulite_spark.datasource"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        problem = done.stderr.strip().rpartition("\n")[2] if done.returncode else ""
    except OSError as error:
        problem = str(error)
    if problem:
        raise UsageError(
            f"the workers of this Spark session run {python}, which cannot import kudulite:"
            f" {problem}. Call kudulite_spark.register(spark) before the session is used, or set"
            f" PYSPARK_PYTHON={sys.executable} before it is started"
        )


def _is_local(spark: SparkSession) -> bool:
    return not is_remote() and (spark.sparkContext.master or "").startswith("local")


def start_directory(spark: SparkSession) -> str | None:
    """Return the directory in which the session's JVM was started; None if it is not known."""
    if is_remote():
        return None
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    return str(jvm.java.lang.System.getProperty("user.dir"))


def _add_python_path(environment: dict[str, str], folder: str) -> None:
    """Let workers import from `folder`; Spark starts new workers for a changed environment."""
    inherited = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    if folder not in inherited and "site-packages" not in folder:
        own = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
        if folder not in own:
            environment["PYTHONPATH"] = os.pathsep.join([*own, folder])


JAR = Path(__file__).parent / "java" / "front.jar"
CLASS = "kudulite.DefaultSource"
CATALOG_CLASS = "kudulite.Catalog"
CATALOG_WITH_VIEWS_CLASS = "kudulite.CatalogWithViews"
# Their catalogs have no views, or not by the interface that the class has.
VERSIONS_WITHOUT_VIEWS = ("4.1", "4.2")
FRONT_SETTING = "spark.kudulite.front"


logger = logging.getLogger("kudulite.spark")


def _install_front(spark: SparkSession) -> str | None:
    """Give a session (classic or Connect) the jar, or return and log the reason why not."""
    reason = _why_not(spark)
    if reason is not None:
        logger.warning(
            "the JVM extension is not installed: %s; filters and columns stay options, and an"
            " INSERT into a view should name all columns, or it sets the others to NULL",
            reason,
        )
    return reason


def _why_not(spark: SparkSession) -> str | None:
    if not spark.version.startswith(EXTENSION_VERSIONS):
        versions = f"{EXTENSION_VERSIONS[0]} to {EXTENSION_VERSIONS[-1]}"
        return f"it needs Spark {versions}, and this is Spark {spark.version}"
    if not JAR.is_file():
        return f"{JAR} is missing"
    try:
        if is_remote():
            spark.addArtifacts(str(JAR))
            if spark.conf.get(FRONT_SETTING, None) is None:
                spark.conf.set(FRONT_SETTING, "true")
        elif not _has_front(spark) or not _is_sent(spark):
            _check(spark)
            spark.sql(f"ADD JAR '{JAR}'")
            if not _has_front(spark):
                return "Spark does not search jars that were added to the session"
    except (PySparkException, _java_error(), OSError, ValueError) as error:
        return str(error).splitlines()[0]
    return None


def has_front(spark: SparkSession) -> bool:
    """Whether loads use the JVM extension; for Connect, `register` notes it as a setting."""
    setting = str(spark.conf.get(FRONT_SETTING, "" if is_remote() else "true")).strip().lower()
    return setting == "true" if is_remote() else setting != "false" and _has_front(spark)


def _has_front(spark: SparkSession) -> bool:
    jvm: Any = spark._jvm
    lookup = jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource
    try:
        return (
            str(lookup("kudulite", spark._jsparkSession.sessionState().conf()).getName()) == CLASS
        )
    except _java_error():
        return False  # there is no source of that name


def _is_sent(spark: SparkSession) -> bool:
    """Whether executors get the jar, whose classes tasks of a write refer to.

    Java finds the jar of a session that was stopped, whose executors had the jar.
    """
    context: Any = spark.sparkContext._jsc.sc()
    return f"/{JAR.name}" in str(context.listJars().mkString("\n"))


def _check(spark: SparkSession) -> None:
    """Link the jar with Spark's classes in a separate class loader; raises if that fails."""
    jvm: Any = spark._jvm
    gateway: Any = spark.sparkContext._gateway
    urls = gateway.new_array(jvm.java.net.URL, 1)
    urls[0] = jvm.java.io.File(str(JAR)).toURI().toURL()
    parent = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    loader = jvm.java.net.URLClassLoader(urls, parent)
    try:
        make = loader.loadClass(CLASS).getDeclaredConstructor(
            gateway.new_array(jvm.java.lang.Class, 0)
        )
        make.newInstance(gateway.new_array(jvm.java.lang.Object, 0)).check()
    finally:
        loader.close()


def _java_error() -> type[Exception]:
    error: type[Exception] = importlib.import_module("py4j.protocol").Py4JError
    return error


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def local_session(
    name: str = "kudulite",
    *,
    cores: int = 2,
    options: Mapping[str, str] | None = None,
    warehouse: str | os.PathLike[str] | None = None,
    catalog: str = "kudulite",
) -> SparkSession:
    """Return the running Spark session, or a new one with `cores` task threads, registered.

    It has the JVM extension, or one line in the log says why it has not; with `warehouse`, a
    directory of tables, also that catalog (`register`).
    `options` are Spark settings that override the ones set here. Sets JAVA_HOME if needed
    (`ensure_java`), PYSPARK_PYTHON to this interpreter and SPARK_LOCAL_IP to the loopback address,
    all three for this process and its children.
    """
    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # An address, because the host name of a new container often does not resolve.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "ERROR",
        # Otherwise Spark's filters on Parquet miss a day that the machine's time zone skipped.
        "spark.sql.datetime.java8API.enabled": "true",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.ui.enabled": "false",
        # Spark's bar for stages, which a pipe or a file does not need.
        "spark.ui.showConsoleProgress": str(_is_terminal()).lower(),
        **(options or {}),
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    _pass_timestamps_as_integers()
    session = builder.getOrCreate()
    register(session, warehouse=warehouse, catalog=catalog)
    return session
