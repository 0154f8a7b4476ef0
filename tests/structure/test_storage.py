"""Files are looked at, read and written by `kudulite.storage` only; all others ask a `Storage`.

Files of users are no files of tables: what tools import and export, and what `doctor` examines.
"""

import ast
from pathlib import Path

import pytest

from tests.support.source_tree import SourceTree, project_tree

# Of `os`, these look at no file.
PROCESS = {
    *("PathLike", "cpu_count", "environ", "fspath", "getpid", "getuid", "register_at_fork"),
    *("strerror", "sysconf"),
}
NAMES_ONLY = {"abspath", "basename", "dirname", "expanduser", "join", "split"}
MODULES = {"fcntl", "glob", "io", "mmap", "shutil", "stat", "tempfile"}
# Of a path; a Storage has none of these.
LOOKS = {
    *("chmod", "glob", "hardlink_to", "is_dir", "is_file", "is_symlink", "iterdir"),
    *("lstat", "mkdir", "read_bytes", "read_text", "readlink", "rename", "resolve", "rglob"),
    *("rmdir", "stat", "symlink_to", "touch", "unlink", "walk", "write_bytes", "write_text"),
}
ARROW = {"memory_map", "OSFile", "input_stream", "output_stream"}
MODES = {"rb", "wb", "xb", "ab", "r", "w", "x", "a", "r+b"}

# The engine's places for files of users and of the system, each with its reason.
OF_USERS = {
    "kudulite/basefile/block_cache.py": "reads how much memory a container may use",
    "kudulite/kudu/__init__.py": "asks whether a user's text is a directory",
    "kudulite/reads/row_files.py": "reads files with rows that users give",
    "kudulite/reads/source_paths.py": "finds the files with rows that users name",
    "kudulite/shown/progress.py": "asks how wide a terminal is",
    "kudulite/tools": "commands read and write files of users; doctor examines a file system",
}
TOOLS_OF_TABLES = "kudulite/tools/dump.py"


def is_of_users(path: str) -> bool:
    """Whether a file of the engine may look at files itself."""
    if path == TOOLS_OF_TABLES:
        return False
    return any(path == place or path.startswith(f"{place}/") for place in OF_USERS)


def storage_problems(tree: SourceTree) -> list[str]:
    """Imports and calls, above `storage/`, that look at files."""
    problems = []
    for source in tree.packaged:
        path = str(source.path)
        if not path.startswith("kudulite/") or path.startswith("kudulite/storage/"):
            continue
        if not is_of_users(path):
            problems += [
                f"{source.place(node)}: {found}"
                for node in ast.walk(source.tree)
                for found in looks_of(node)
            ]
    return problems


def looks_of(node: ast.AST) -> list[str]:
    """Return what of a node looks at files."""
    if isinstance(node, ast.Import):
        return [a.name for a in node.names if a.name == "os" or a.name in MODULES]
    if isinstance(node, ast.ImportFrom):
        names = {alias.name for alias in node.names}
        if node.module in ("os", "os.path"):
            return sorted(names - (PROCESS if node.module == "os" else NAMES_ONLY))
        return [node.module or ""] if node.module in MODULES else []
    if not isinstance(node, ast.Call):
        return []
    called = node.func
    if isinstance(called, ast.Name):
        return ["open()"] if called.id == "open" else []
    if not isinstance(called, ast.Attribute):
        return []
    owner = called.value.id if isinstance(called.value, ast.Name) else ""
    if called.attr == "resolve" and node.args:  # a Resolver's, of a batch
        return []
    if called.attr in LOOKS and owner not in ("spec", "alterer"):  # of a column, a table
        return [f".{called.attr}()"]
    if owner == "pa" and called.attr in ARROW:
        return [f"pa.{called.attr}()"]
    if called.attr == "open" and node.args and isinstance(node.args[0], ast.Constant):
        return [".open()"] if node.args[0].value in MODES else []
    return []


def test_only_the_storage_looks_at_files():
    """A second Storage then serves every layer above."""
    problems = storage_problems(project_tree())
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import os", "os"),
        ("from os import getpid, stat", "stat"),
        ("from os.path import abspath, exists", "exists"),
        ("import shutil", "shutil"),
        ("from fcntl import flock", "fcntl"),
        ("folder.iterdir()", ".iterdir()"),
        ("(folder / 'a').rename(target)", ".rename()"),
        ("path.stat().st_size", ".stat()"),
        ("path.open('rb')", ".open()"),
        ("open(path)", "open()"),
        ("pa.memory_map(text)", "pa.memory_map()"),
    ],
)
def test_each_rule_can_fail(text: str, problem: str):
    """A look at a file is found, and a call of the Storage is none."""
    assert [found for node in ast.walk(ast.parse(text)) for found in looks_of(node)] == [problem]
    for allowed in (
        "storage.exists(path)",
        "storage.open(path, ref)",
        "from os import getpid",
        "storage.directory.move(one, other)",
    ):
        assert not [found for node in ast.walk(ast.parse(allowed)) for found in looks_of(node)]


def test_the_places_of_users_are_there():
    """An exception that nothing needs would hide the next look."""
    root = Path(__file__).parents[2]
    assert [place for place in (*OF_USERS, TOOLS_OF_TABLES) if not (root / place).exists()] == []


# The places above `storage/` that may ask what kind a storage is, each with its reason.
ASKING = {
    "kudulite/table/table_store.py": "chooses the chain and the log of a table",
    "kudulite/client/client.py": "a directory of tables may be the folder of a table only on disk",
    "kudulite/tools/commands_upkeep.py": "doctor tests a file system, or the promises of a store",
}


def test_nobody_else_asks_what_kind_a_storage_is():
    """All other code above `storage/` is one path for directories and object stores."""
    found = {
        str(source.path)
        for source in project_tree().packaged
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute) and node.attr == "is_directory"
    }
    above = {path for path in found if not path.startswith("kudulite/storage/")}
    assert above == set(ASKING)
