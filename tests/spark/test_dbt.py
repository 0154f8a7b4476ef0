"""docs/dbt.md: its project is built twice by dbt-spark, and a project without its macros.

dbt and the extra `test` want different versions of libraries, so dbt is installed for the test
into a folder that only its process imports from.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

import kudulite
from kudulite_spark import session

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "dbt.md"
FILE = re.compile(r"^`([\w/]+\.\w+)`:\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
PACKAGES = ("dbt-spark==1.11.*", "dbt-core==1.11.*")

# Runs each list of arguments; all runs share one Spark session.
RUNNER = """
import json, sys
from dbt.cli.main import dbtRunner
for arguments in json.loads(sys.argv[1]):
    found = dbtRunner().invoke(arguments)
    results = getattr(found.result, "results", None) or ()
    failed = [(r.node.name, r.message) for r in results if str(r.status) in ("error", "fail")]
    if not found.success:
        sys.exit(f"{arguments}: {found.exception} {failed}")
"""

SEEDS = {
    "customers": ("id,name,city", "1,Ada,London", "2,Bo,Oslo", "3,Cy,Rome"),
    "orders": (
        "order_id,customer_id,amount,ordered_at",
        "1,1,10.5,2026-01-01 10:00:00",
        "2,1,20.0,2026-01-02 10:00:00",
        "3,2,5.25,2026-01-03 10:00:00",
        "4,2,0.5,2026-01-04 10:00:00",
    ),
}
# The rows of the second run: Ada has moved, Cy is gone, Di is new; the last order of Bo is changed.
LATER = {
    "customers": ("id,name,city", "1,Ada,Paris", "2,Bo,Oslo", "4,Di,Bern"),
    "orders": (*SEEDS["orders"][:3], "3,2,7.25,2026-01-03 10:00:00", "5,4,1.5,2026-01-05 10:00:00"),
}
OTHER_FILES = {
    "seeds/properties.yml": """
version: 2
seeds:
  - {name: customers, config: {unique_key: id}}
  - {name: orders, config: {unique_key: order_id}}
""",
    "models/seen.sql": """
{{ config(materialized='incremental', unique_key=['order_id', 'run']) }}
select order_id, '{{ invocation_id }}' as run from {{ ref('orders') }}
""",
    "models/properties.yml": """
version: 2
models:
  - name: recent_orders
    description: Those of more than one
    columns: [{name: order_id, data_tests: [unique, not_null]}]
  - name: totals
    columns:
      - name: customer_id
        data_tests: [unique, {relationships: {arguments: {to: "ref('customers')", field: id}}}]
""",
    "models/first_view.sql": "select 1 as id",
    "models/first_table.sql": "{{ config(materialized='table', unique_key='id') }} select 1 as id",
    "tests/no_negative_total.sql": "select * from {{ ref('totals') }} where total < 0",
}
WITHOUT_MACROS = {
    "dbt_project.yml": "{name: plain, profile: shop}",
    "seeds/numbers.csv": "id,n\n1,10\n2,20\n",
    "models/small.sql": "select id, n from {{ ref('numbers') }} where n < 15",
    "models/made.sql": "{{ config(materialized='table', tblproperties={'primaryKey': 'n'}) }}"
    " select n from {{ ref('small') }}",
    "models/runs.sql": "{{ config(materialized='incremental') }}"
    " select '{{ invocation_id }}' as id, n from {{ ref('made') }}",
}


def write(folder: Path, files: dict[str, str]) -> None:
    """Write the files of a project."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def seeds(content: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """The files of seeds."""
    return {f"seeds/{name}.csv": "\n".join(lines) + "\n" for name, lines in content.items()}


@pytest.fixture(scope="module")
def dbt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with dbt, from the package index."""
    folder = tmp_path_factory.mktemp("dbt")
    install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), *PACKAGES]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"dbt cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project of the page, with seeds and tests."""
    files = dict(FILE.findall(PAGE.read_text()))
    assert len(files) == 7, files
    profile = files["profiles.yml"].replace("JAR", str(session.JAR))
    profile = profile.replace("/data/warehouse", str(tmp_path / "warehouse"))
    more = {"spark.kudulite.primaryKey": "id", "spark.ui.enabled": "'false'"}
    profile += "".join(f"        {name}: {value}\n" for name, value in more.items())
    folder = tmp_path / "shop"
    write(folder, {**files, **OTHER_FILES, **seeds(SEEDS), "profiles.yml": profile})
    write(tmp_path / "plain", {**WITHOUT_MACROS, "profiles.yml": profile})
    return folder


def run(dbt: Path, folder: Path, *arguments: list[str]) -> None:
    """Run dbt with each list of arguments in one process."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(dbt), str(ROOT)]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
    }
    command = [sys.executable, "-c", RUNNER, json.dumps(arguments)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]


@pytest.mark.timeout(1800)
@pytest.mark.skipif(pyspark.__version__ < "4.3", reason="Spark 4.3 is the first with views")
def test_the_project_of_the_page_is_built_twice(dbt, project):
    """Rows, history, views and documentation are those of each run."""
    plain = ["--project-dir", "../plain", "--profiles-dir", "../plain"]
    run(dbt, project, ["build"], ["build", *plain], ["build", *plain])
    client = kudulite.connect(project.parent / "warehouse" / "analytics")
    first = client["totals"].current_timestamp()
    assert {row["customer_id"]: row["total"] for row in client["totals"].scan()} == {
        1: 30.5,
        2: 5.25,
    }
    assert client["runs"].shape == (2, 2) and client["made"].schema.key_names == ["n"]
    assert client["numbers"].schema.key_names == ["id"]

    names = ["models/first_view.sql", "models/first_table.sql"]
    texts = [OTHER_FILES[name] for name in names]  # each becomes the kind of the other
    write(project, {**seeds(LATER), **dict(zip(names, reversed(texts), strict=True))})
    run(dbt, project, ["build"], ["docs", "generate"])
    totals = client["totals"]
    assert {row["customer_id"]: row["total"] for row in totals.scan()} == {1: 30.5, 2: 7.25, 4: 1.5}
    assert totals.scan(at=first).count() == 2 and totals.history_retention == 30 * 86400
    last = {row["customer_id"]: str(row["last_order"])[:10] for row in client["last_orders"].scan()}
    assert last == {1: "2026-01-02", 2: "2026-01-03", 4: "2026-01-05"}
    assert client["seen"].schema.key_names == ["order_id", "run"] and client["seen"].shape == (8, 2)
    past = client["customers_over_time"]
    assert past.schema.key_names == ["dbt_scd_id"]
    rows = sorted((r["name"], r["city"], r["dbt_valid_to"] is None) for r in past.scan())
    assert rows == [
        ("Ada", "London", False), ("Ada", "Paris", True), ("Bo", "Oslo", True),
        ("Cy", "Rome", False), ("Di", "Bern", True),
    ]  # fmt: skip
    assert client.list_views() == ["first_table", "recent_orders", "small"]
    assert client["first_view"].scan().to_pylist() == [{"id": 1}]
    nodes = json.loads((project / "target" / "catalog.json").read_text())["nodes"]
    kinds = {name.split(".")[-1]: node["metadata"]["type"] for name, node in nodes.items()}
    views = dict.fromkeys(("first_table", "recent_orders"), "view")
    assert len(kinds) == 9
    assert {name: kind for name, kind in kinds.items() if kind != "table"} == views
    assert list(nodes["model.shop.recent_orders"]["columns"])[:2] == ["order_id", "customer_id"]
