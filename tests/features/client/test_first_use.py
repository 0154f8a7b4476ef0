"""Public names are imported at their first use: `import kudulite` is cheap, and nobody notices.

A process is measured by the modules that it has imported, not by its time.
"""

import ast
import inspect
import os
import pickle
import subprocess
import sys
from pathlib import Path

import kudulite
from tests.support.imports import ROOT, imported_by, packages


def test_the_import_of_the_package_imports_the_errors_only():
    """No table, no Arrow, no NumPy."""
    assert packages(imported_by("import kudulite")) == {"kudulite.errors"}


def test_names_that_need_no_table_import_no_table():
    """Types and options of stores are used by many processes that open no table."""
    found = packages(imported_by("import kudulite; kudulite.is_storage_option('aws_region')"))
    assert found == {"kudulite.errors", "kudulite.storage"}
    found = packages(imported_by("import kudulite; kudulite.int8"))
    assert found & {"kudulite.client", "kudulite.table", "kudulite.tablet", "sqlglot"} == set()


def test_a_write_and_a_read_parse_no_text(tmp_path):
    """sqlglot is imported for a condition or an expression that is text, and backups for them."""
    code = f"""
import kudulite, pyarrow as pa
with kudulite.connect({str(tmp_path / "w")!r}) as client:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    table = client.create_table("t", schema, primary_key="k")
    table.upsert([{{"k": 1, "v": 2}}])
    table.update(where=table["k"] == 1, set={{"v": 3}})
    bulk = table.new_bulk_write("insert")
    bulk.commit([bulk.stage([pa.record_batch({{"k": [2], "v": [4]}})])])
    assert table.scan(where=table["v"] > 2).count() == 2
"""
    found = packages(imported_by(code, tmp_path))
    assert found & {"sqlglot", "kudulite.backups", "kudulite.kudu", "kudulite.tools"} == set()
    read = f"kudulite.open_table({str(tmp_path / 'w' / 't')!r}).scan(where='v > 2').count()"
    assert "sqlglot" in packages(imported_by(f"import kudulite; {read}", tmp_path))


def test_the_module_of_each_name_is_the_one_that_type_checkers_see():
    """`kudulite/__init__.py` has both, side by side."""
    tree = ast.parse(Path(kudulite.__file__).read_text())
    [block] = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "typing.TYPE_CHECKING"
    ]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: node.module for node in imports for alias in node.names}
    assert seen == kudulite._MODULE_OF
    errors = {name for name in vars(kudulite.errors) if name.endswith("Error")}
    assert {*seen, *errors, "errors"} == {*kudulite.__all__}


def test_every_name_is_what_its_module_defines():
    """Types are not wrapped: pickles, isinstance and help see the classes themselves."""
    for name in kudulite.__all__:
        found = getattr(kudulite, name)
        assert found is getattr(kudulite, name)
        if inspect.isclass(found) and found.__module__.startswith("kudulite."):
            assert pickle.loads(pickle.dumps(found)) is found


def test_a_star_import_has_all_names():
    """As from a module that imports everything at once."""
    code = "from kudulite import *\nimport kudulite\n"
    code += "assert {*kudulite.__all__} <= {*globals()}\nassert Table is kudulite.Table"
    assert "kudulite.client.table" in imported_by(code)


def test_the_module_lists_and_explains_its_names():
    """dir, hasattr, inspect and help, in a process that has used no name."""
    code = """
import inspect, pydoc, kudulite
assert {*kudulite.__all__} <= {*dir(kudulite)}
assert "sqlglot" not in __import__("sys").modules
assert hasattr(kudulite, "Table") and not hasattr(kudulite, "Tabel")
assert {*kudulite.__all__} <= {name for name, _ in inspect.getmembers(kudulite)}
text = pydoc.plain(pydoc.render_doc(kudulite))
assert "class Table(" in text and "open_table(" in text
"""
    assert "kudulite.client.table" in imported_by(code)


def test_a_name_is_found_after_the_process_has_moved(tmp_path):
    """An interactive Python finds packages from its folder, which it may leave before the use."""
    code = f"import os, kudulite\nos.chdir({str(tmp_path)!r})\nkudulite.connect, kudulite.backup"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_threads_may_use_names_first_at_once():
    """Each thread gets whole modules, whichever of them imports first."""
    code = """
import threading, kudulite
names, found, start = kudulite.__all__, [], threading.Barrier(8)
def use(step):
    start.wait()
    found.append([getattr(kudulite, name) for name in names[::step]][::step])
threads = [threading.Thread(target=use, args=(1 if i % 2 else -1,)) for i in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(found) == 8 and all(each == found[0] for each in found)
"""
    imported_by(code)


def test_a_name_can_be_replaced_in_a_test(monkeypatch):
    """As users' tests do: the name is an attribute of the module like any other."""
    before = kudulite.open_table
    monkeypatch.setattr("kudulite.open_table", lambda path: path)
    assert kudulite.open_table("t") == "t"
    monkeypatch.undo()
    assert kudulite.open_table is before
