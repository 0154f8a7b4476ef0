"""docs/spark_statements.md: each statement and call in its tables runs and returns what it says."""

import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import kudulite
import kudulite_spark
from kudulite_spark import session
from tests.spark.conftest import FRONT

pytestmark = FRONT

PAGE = Path(__file__).parents[2] / "docs" / "spark_statements.md"
CODE = re.compile(r"(`{1,2})\s?(.+?)\s?\1(?!`)")
STATEMENT = re.compile(r"[A-Z]+ ")
NEWER = re.compile(r"\(Spark (\d\.\d) or newer\)")


def codes(cell: str) -> list[str]:
    """The code spans of a cell."""
    return [found[2] for found in CODE.finditer(cell)]


def cells(line: str) -> list[str]:
    """The cells of a line of a table."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def page_lines(text: str) -> list[tuple[list[str], str | None, str]]:
    """Of each line, the code in the second cell, the result in the third, and the first Spark."""
    found = []
    for line in text.splitlines():
        if line.startswith("| ") and (own := codes(cells(line)[1])):
            results = codes([*cells(line), ""][2])
            since = NEWER.search(line)
            found.append((own, results[0] if results else None, since[1] if since else ""))
    return found


def run(code: str, names: dict[str, Any], catalog: str) -> Any:
    """Run a statement of SQL or of Python; the value of an expression."""
    if STATEMENT.match(code):
        return names["spark"].sql(code.replace("kudulite.", f"{catalog}."))
    code = re.sub(r"\bkudulite\.(?=db\.)|(?<=CALL )kudulite\.", f"{catalog}.", code)
    try:
        return eval(code, names)
    except SyntaxError:
        exec(code, names)
        return None


def shown(value: Any) -> str:
    """A result as the page has it: rows in order, by their text."""
    if isinstance(value, DataFrame):
        return "; ".join(sorted(", ".join(map(str, row)) for row in value.collect()))
    return str(value)


def test_the_page_is_true(spark: SparkSession, tmp_path):
    """From its top to its bottom, with one catalog; an older Spark refuses its newer statements."""
    catalog = f"p{random.getrandbits(60):x}"
    (tmp_path / "db").mkdir()
    kudulite_spark.register(spark, warehouse=tmp_path, catalog=catalog)
    names = {"kudulite": kudulite, "kudulite_spark": kudulite_spark, "spark": spark}
    names |= {"expr": sf.expr, "lit": sf.lit}
    lines = page_lines(PAGE.read_text().replace("/data/warehouse", str(tmp_path)))
    assert len(lines) > 50
    for own, result, since in lines:
        if spark.version < since:
            with pytest.raises(ParseException, match="PARSE_SYNTAX_ERROR"):
                run(own[-1], names, catalog)
            continue
        for code in own:
            value = run(code, names, catalog)
        if result is not None:
            assert shown(value) == result, own


@pytest.mark.parametrize(
    "column", ["g BIGINT GENERATED ALWAYS AS (id + 1)", "g BIGINT GENERATED ALWAYS AS IDENTITY"]
)
def test_columns_that_spark_would_compute_are_refused(spark, tmp_path, column):
    """As the page says; a CHECK is refused by the catalog."""
    catalog = f"p{random.getrandbits(60):x}"
    kudulite_spark.register(spark, warehouse=tmp_path, catalog=catalog)
    with pytest.raises(AnalysisException, match="UNSUPPORTED_FEATURE"):
        spark.sql(f"CREATE TABLE {catalog}.t (id BIGINT, {column}, PRIMARY KEY (id))")
    assert not (tmp_path / "t").exists()


def test_a_page_that_is_not_true_is_found():
    """Code and results are those of the second and third cell; code may have backticks in it."""
    line = "| `A | `B C` and ``D `e` `` | `1` |"
    assert page_lines(line.replace("`A", "A")) == [(["B C", "D `e`"], "1", "")]
    assert page_lines("| x | `B` (Spark 4.2 or newer) | |") == [(["B"], None, "4.2")]
    assert page_lines("| x | y | |\n|---|---|") == []
    assert shown(3) == "3"


def test_the_shell_of_spark_has_the_catalog(tmp_path):
    """The command of the page, with no Python in its driver."""
    statements = (
        "CREATE TABLE kudulite.t (id BIGINT, v DOUBLE, PRIMARY KEY (id));"
        " INSERT INTO kudulite.t VALUES (1, 0.5), (2, 1.5);"
        " UPDATE kudulite.t SET v = v + 1 WHERE id = 2;"
        " SELECT sum(v) FROM kudulite.t"
    )
    kudulite_spark.ensure_java()
    conf = [
        f"spark.sql.catalog.kudulite={session.CATALOG_CLASS}",
        f"spark.sql.catalog.kudulite.warehouse={tmp_path / 'warehouse'}",
        "spark.sql.catalogImplementation=in-memory",
        "spark.ui.enabled=false",
    ]
    shell = Path(pyspark.__file__).parent / "bin" / "spark-sql"
    command = [str(shell), "--master", "local[2]", "--jars", str(session.JAR)]
    for setting in conf:
        command += ["--conf", setting]
    done = subprocess.run(
        [*command, "-e", statements],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.stdout.split() == ["3.0"], done.stderr[-3000:]
    assert len(kudulite.open_table(tmp_path / "warehouse" / "t")) == 2
