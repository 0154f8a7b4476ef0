"""Imports point down the layers, never in a circle, and outside the package only at public names.

    tools → ui → backups, kudu → client → reads → writes → upkeep → table → chain → tablet → rowset
            → delta → basefile, wal → model → shown → storage → errors

An import in a function or under TYPE_CHECKING counts as any other.
"""

import ast
import graphlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.source_tree import Import, SourceTree, project_tree

ROOT = Path(__file__).parents[2]

LAYERS = (
    ("errors",),
    ("storage",),
    ("shown",),
    ("model",),
    ("basefile", "wal"),
    ("delta",),
    ("rowset",),
    ("tablet",),
    ("chain",),
    ("table",),
    ("upkeep",),
    ("writes",),
    ("reads",),
    ("client",),
    ("backups", "kudu"),
    ("ui",),
    ("tools",),
)
HEIGHT = {layer: height for height, layers in enumerate(LAYERS) for layer in layers}
# kudulite/__init__.py: the public names, above all layers.
HEIGHT[""] = len(LAYERS)
# These have names for users. A program for kudu-python says `from kudu.client import Partitioning`,
# so the client layer passes some public names on; the other layers have a docstring only. The
# module for such programs has submodules of the same names.
PROGRAMS_MODULE = "kudulite.kudu"
PUBLIC_PACKAGES = (
    "kudulite",
    "kudulite.client",
    "kudulite.ui",
    PROGRAMS_MODULE,
    *(f"{PROGRAMS_MODULE}.{name}" for name in ("client", "errors", "schema", "util")),
)

# These stand outside the engine and use it as any user does. The command-line tools may do both.
USERS = ("kudulite_spark", "pyspark_kudulite", "examples")

CORE_DEPENDENCIES = {"mmh3", "numpy", "pyarrow", "sortedcontainers", "sqlglot"}
ALLOWED_DEPENDENCIES = {
    "kudulite": CORE_DEPENDENCIES,
    "kudulite.kudu.scanner": CORE_DEPENDENCIES | {"pandas"},
    "kudulite.reads.pandas_frames": CORE_DEPENDENCIES | {"pandas"},
    "kudulite.reads.native_scan": CORE_DEPENDENCIES | {"duckdb", "polars"},
    "kudulite.client.table_frame": CORE_DEPENDENCIES | {"duckdb", "polars"},  # in signatures only
    "kudulite.client.client": CORE_DEPENDENCIES | {"duckdb"},  # in signatures only
    "kudulite.client.sql": CORE_DEPENDENCIES | {"duckdb", "polars"},
    "kudulite.reads.sql_query": CORE_DEPENDENCIES | {"duckdb"},  # in signatures only
    "kudulite.client.sql_views": CORE_DEPENDENCIES | {"duckdb"},  # in signatures only
    "kudulite.storage.object_errors": CORE_DEPENDENCIES | {"obstore"},
    "kudulite.storage.object_reader": CORE_DEPENDENCIES | {"obstore"},
    "kudulite.storage.object_lister": CORE_DEPENDENCIES | {"obstore"},
    "kudulite.storage.object_storage": CORE_DEPENDENCIES | {"obstore"},
    "kudulite.ui": CORE_DEPENDENCIES | {"duckdb", "jinja2", "markupsafe", "starlette", "uvicorn"},
    "kudulite.tools": CORE_DEPENDENCIES | {"rich", "typer"},
    "kudulite_spark": {"kudulite", "numpy", "pandas", "py4j", "pyarrow", "pyspark"},
    "pyspark_kudulite": {"kudulite_spark", "pyspark"},
}


def layer_of(module: str) -> str:
    """`kudulite.model.types` is of layer `model`; `kudulite` itself of the layer without a name."""
    return ".".join(module.split(".")[1:2])


def is_engine(module: str) -> bool:
    """Is it kudulite or inside it?"""
    return module == "kudulite" or module.startswith("kudulite.")


def layer_problems(tree: SourceTree) -> list[str]:
    """Imports that point up or sideways, relative imports, and files that are in no layer."""
    problems = []
    for source in tree.packaged:
        if is_engine(source.name) and layer_of(source.name) not in HEIGHT:
            problems.append(f"{source.path}: no such layer; known: {', '.join(HEIGHT)}")
            continue
        for imported in tree.imports(source):
            place = source.place(imported.node)
            if imported.module.startswith("."):
                problems.append(f"{place}: relative import")
            elif is_engine(source.name) and is_engine(imported.module):
                problems += _direction_problems(imported, place)
    return problems


def _direction_problems(imported: Import, place: str) -> list[str]:
    above, below = layer_of(imported.source.name), layer_of(imported.module)
    if above == below or (above, below) == ("tools", ""):
        return []
    if below not in HEIGHT:
        return [f"{place}: imports {imported.module}, which is in no layer"]
    if HEIGHT[below] > HEIGHT[above]:
        return [f"{place}: {above} imports {imported.module}, upwards"]
    if HEIGHT[below] == HEIGHT[above]:
        return [f"{place}: {above} imports {imported.module}, its sibling"]
    return []


def cycle_problems(tree: SourceTree) -> list[str]:
    """The first circle of modules that import each other."""
    names = {source.name for source in tree.packaged}
    graph = {
        source.name: {i.module for i in tree.imports(source) if i.module in names}
        for source in tree.packaged
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        # graphlib lists each module before the one that imports it, the first again at the end.
        *circle, _ = reversed(error.args[1])
        start = circle.index(min(circle))
        circle = circle[start:] + circle[:start]
        return [f"cycle: {' → '.join([*circle, circle[0]])}"]
    return []


def privacy_problems(tree: SourceTree) -> list[str]:
    """Uses of kudulite, outside it, that reach behind its public names."""
    problems = []
    for source in tree.sources:
        if source.top not in USERS:
            continue
        aliases: dict[str, str] = {}
        for imported in tree.imports(source):
            place = source.place(imported.node)
            if not is_engine(imported.module) or imported.module == "kudulite.errors":
                continue
            if imported.module not in PUBLIC_PACKAGES:
                problems.append(f"{place}: imports {imported.module}, which is not public")
            for name in imported.names:
                if imported.module in PUBLIC_PACKAGES:
                    if name not in tree.public_names(_owner_of_names(imported.module)):
                        problems.append(f"{place}: {imported.module}.{name} is not public")
            if isinstance(imported.node, ast.Import):
                aliases |= {alias.asname or alias.name: alias.name for alias in imported.node.names}
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module = aliases.get(node.value.id)
                if module in ("kudulite", PROGRAMS_MODULE) and node.attr != "__version__":
                    if node.attr not in tree.public_names(module):
                        problems.append(f"{source.place(node)}: {module}.{node.attr} is not public")
    return problems


def _owner_of_names(module: str) -> str:
    """The client layer passes names of `kudulite` on; other packages have names of their own."""
    return "kudulite" if module == "kudulite.client" else module


def dependency_problems(tree: SourceTree) -> list[str]:
    """Imports of distributions that the importing package does not depend on."""
    problems = []
    for source in tree.packaged:
        names = (source.name, source.name.rpartition(".")[0], source.top)
        owner = next(name for name in names if name in ALLOWED_DEPENDENCIES)
        allowed = ALLOWED_DEPENDENCIES[owner] | {source.top} | sys.stdlib_module_names
        for imported in tree.imports(source):
            top = imported.module.partition(".")[0]
            if top and top not in allowed:
                problems.append(f"{source.place(imported.node)}: {owner} may not import {top}")
    return problems


def package_problems(tree: SourceTree) -> list[str]:
    """A layer's `__init__.py` holds its docstring only: an import there would hide a dependency."""
    return [
        f"{source.path}: more than a docstring"
        for source in tree.packaged
        if source.path.name == "__init__.py"
        and source.name.startswith("kudulite.")
        and source.name not in PUBLIC_PACKAGES
        and len(source.tree.body) != 1
    ]


CHECKS = (
    layer_problems,
    cycle_problems,
    privacy_problems,
    dependency_problems,
    package_problems,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_project_keeps_the_layers(check):
    """STYLE of the project: a folder is a layer, imports are absolute and point down."""
    problems = check(project_tree())
    assert not problems, "\n".join(problems)


def test_the_core_depends_on_five_packages():
    """The engine may import the dependencies of `pip install kudulite` and nothing else."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.match(r"[\w.-]+", requirement)[0] for requirement in project["dependencies"]}
    assert names == CORE_DEPENDENCIES


# A legal file of each kind, which every bad tree below contains as well.
GOOD = {
    "kudulite/__init__.py": "from kudulite.client.table import Table\n__all__ = ['Table']",
    "kudulite/errors.py": "class KuduliteError(Exception): ...",
    "kudulite/client/__init__.py": "'''Client.'''",
    "kudulite/client/table.py": "import kudulite.delta.store\nfrom kudulite.model import types",
    "kudulite/delta/store.py": "import pyarrow as pa\nfrom kudulite.errors import KuduliteError",
    "kudulite/model/types.py": "import numpy.typing, mmh3, os.path",
    "kudulite/kudu/__init__.py": "from kudulite.kudu.client import Client\n__all__ = ['Client']",
    "kudulite/kudu/client.py": "import kudulite.client.table\nREAD, _A = 1, 2\nclass Client: ...",
    "examples/port.py": (
        "import kudulite.kudu as kudu\nfrom kudulite.kudu.client import Client, READ\nkudu.Client"
    ),
    "kudulite/tools/check.py": "import typer\nimport kudulite\nimport kudulite.delta.store",
    "kudulite_spark/reader.py": (
        "import kudulite\nfrom kudulite import Table\nfrom kudulite.errors import KuduliteError\n"
        "from kudulite.client import Table\nimport pyspark.sql\n"
        "kudulite.Table, kudulite.errors, kudulite.__version__"
    ),
    "pyspark_kudulite.py": "import kudulite_spark.reader",
}

BAD = [
    (layer_problems, "kudulite/model/a.py", "import kudulite.delta.store",
     "kudulite/model/a.py:1: model imports kudulite.delta.store, upwards"),
    (layer_problems, "kudulite/model/a.py", "from kudulite.delta import store",
     "kudulite/model/a.py:1: model imports kudulite.delta.store, upwards"),
    (layer_problems, "kudulite/model/a.py", "def f():\n    import kudulite.delta.store",
     "kudulite/model/a.py:2: model imports kudulite.delta.store, upwards"),
    (layer_problems, "kudulite/model/a.py", "if TYPE_CHECKING:\n    import kudulite.delta.store",
     "kudulite/model/a.py:2: model imports kudulite.delta.store, upwards"),
    (layer_problems, "kudulite/delta/a.py", "from kudulite import Table",
     "kudulite/delta/a.py:1: delta imports kudulite, upwards"),
    (layer_problems, "kudulite/wal/a.py", "from kudulite.basefile.bloom import X",
     "kudulite/wal/a.py:1: wal imports kudulite.basefile.bloom, its sibling"),
    (layer_problems, "kudulite/delta/a.py", "from . import store",
     "kudulite/delta/a.py:1: relative import"),
    (layer_problems, "kudulite/utils.py", "",
     "kudulite/utils.py: no such layer; known: " + ", ".join(HEIGHT)),
    (cycle_problems, "kudulite/model/types.py", "def f():\n    from kudulite.model import types",
     "cycle: kudulite.model.types → kudulite.model.types"),
    (cycle_problems, "kudulite/delta/store.py", "from kudulite.client.table import Table",
     "cycle: kudulite.client.table → kudulite.delta.store → kudulite.client.table"),
    (privacy_problems, "kudulite_spark/a.py", "from kudulite.model.types import X",
     "kudulite_spark/a.py:1: imports kudulite.model.types, which is not public"),
    (privacy_problems, "kudulite_spark/a.py", "from kudulite.model import types",
     "kudulite_spark/a.py:1: imports kudulite.model.types, which is not public"),
    (privacy_problems, "kudulite_spark/a.py", "from kudulite import Tablet",
     "kudulite_spark/a.py:1: kudulite.Tablet is not public"),
    (privacy_problems, "kudulite_spark/a.py", "from kudulite.client import Lookup",
     "kudulite_spark/a.py:1: kudulite.client.Lookup is not public"),
    (privacy_problems, "examples/a.py", "import kudulite as kudu\nkudu.model",
     "examples/a.py:2: kudulite.model is not public"),
    (privacy_problems, "examples/a.py", "import kudulite.kudu as kudu\nkudu.Table",
     "examples/a.py:2: kudulite.kudu.Table is not public"),
    (privacy_problems, "examples/a.py", "from kudulite.kudu.client import _A",
     "examples/a.py:1: kudulite.kudu.client._A is not public"),
    (layer_problems, "kudulite/client/a.py", "import kudulite.kudu.client",
     "kudulite/client/a.py:1: client imports kudulite.kudu.client, upwards"),
    (dependency_problems, "kudulite/model/a.py", "import pandas",
     "kudulite/model/a.py:1: kudulite may not import pandas"),
    (dependency_problems, "kudulite/delta/a.py", "from kudulite_spark import reader",
     "kudulite/delta/a.py:1: kudulite may not import kudulite_spark"),
    (dependency_problems, "pyspark_kudulite.py", "import pyarrow",
     "pyspark_kudulite.py:1: pyspark_kudulite may not import pyarrow"),
    (package_problems, "kudulite/delta/__init__.py", "'''Deltas.'''\nimport os",
     "kudulite/delta/__init__.py: more than a docstring"),
]  # fmt: skip


def tree_of(folder: Path, files: dict[str, str]) -> SourceTree:
    """A checkout that holds these files."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return SourceTree(folder)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_good_tree_has_no_problem(check, tmp_path):
    """The checks let through what is allowed."""
    assert check(tree_of(tmp_path, GOOD)) == []


@pytest.mark.parametrize(("check", "path", "text", "problem"), BAD)
def test_a_bad_import_is_found(check, path, text, problem, tmp_path):
    """Each rule can fail, and says where."""
    assert check(tree_of(tmp_path, GOOD | {path: text})) == [problem]
