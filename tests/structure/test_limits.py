"""Sizes, docstrings and prints: the numbers of the style that a test can enforce.

If a limit hurts, split by idea, not by length; if it still hurts, change the limit in a commit that
says why. Explanations cost nothing: a file of the product has a limit for its lines of code, which
are neither blank, nor comments, nor docstrings.
"""

import ast
import collections
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.source_tree import Source, SourceTree, project_tree

CODE_LINES_MAX = 450
FILE_LINES_MAX = 800
CLASS_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
PARAMETERS_MAX = 12
LINE_CHARACTERS_MAX = 100
FOLDER_FILES_MAX = 24

NOT_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def size_problems(tree: SourceTree) -> list[str]:
    """Files, classes, functions and lines that are too long, tests and examples included."""
    problems = []
    for source in tree.sources:
        lines = source.text.splitlines()
        if len(lines) > FILE_LINES_MAX:
            problems.append(f"{source.path}: {len(lines)} lines in a file")
        for number, line in enumerate(lines, 1):
            if len(line) > LINE_CHARACTERS_MAX:
                problems.append(f"{source.path}:{number}: {len(line)} characters in a line")
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef):
                problems += _length_problems(source, node, "class", CLASS_LINES_MAX)
            elif isinstance(node, Function):
                problems += _length_problems(source, node, "function", FUNCTION_LINES_MAX)
    for source in tree.packaged:
        if (code := _code_line_count(source)) > CODE_LINES_MAX:
            problems.append(f"{source.path}: {code} lines of code in a file")
    return problems


def _code_line_count(source: Source) -> int:
    """Lines with a token of code; a docstring of several lines is none of them."""
    tokens = tokenize.generate_tokens(io.StringIO(source.text).readline)
    code = {
        line
        for token in tokens
        if token.type not in NOT_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node):
            code -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(code)


def _length_problems(
    source: Source, node: ast.ClassDef | Function, kind: str, limit: int
) -> list[str]:
    """Counted from the line of `def` or `class`, docstring included, decorators not."""
    line_count = node.end_lineno - node.lineno + 1
    if line_count <= limit:
        return []
    return [f"{source.place(node)}: {line_count} lines in {kind} {node.name}"]


def parameter_problems(tree: SourceTree) -> list[str]:
    """Functions with too many parameters; of a command, each is an option that users type."""
    problems = []
    for source in tree.sources:
        is_command = source.name.startswith("kudulite.tools.commands_")
        for node in ast.walk(source.tree):
            if isinstance(node, Function) and not is_command:
                count = _parameter_count(node)
                if count > PARAMETERS_MAX:
                    problems.append(f"{source.place(node)}: {count} parameters of {node.name}")
    return problems


def _parameter_count(node: Function) -> int:
    """`*args` and `**kwargs` are one each; `self` and `cls` are none."""
    found = node.args
    named = [*found.posonlyargs, *found.args, *found.kwonlyargs]
    names = [parameter.arg for parameter in named if parameter.arg not in ("self", "cls")]
    return len(names) + (found.vararg is not None) + (found.kwarg is not None)


def docstring_problems(tree: SourceTree) -> list[str]:
    """Modules anywhere, and public classes, functions and methods of the packages, without one."""
    problems = []
    for source in tree.sources:
        if ast.get_docstring(source.tree) is None:
            problems.append(f"{source.path}: no docstring in the module")
    for source in tree.packaged:
        for node in _public_definitions(source.tree):
            if ast.get_docstring(node) is None:
                problems.append(f"{source.place(node)}: no docstring in {node.name}")
    return problems


def _public_definitions(parent: ast.Module | ast.ClassDef) -> Iterator[ast.ClassDef | Function]:
    """Classes, functions and methods that a user can name; what is inside a function is not."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
            if not _is_other_face(node):
                yield node
            if isinstance(node, ast.ClassDef):
                yield from _public_definitions(node)


def _is_other_face(node: ast.ClassDef | Function) -> bool:
    """A property's setter and a function's overloads are documented at the definition itself."""
    decorators = [ast.unparse(decorator).split(".")[-1] for decorator in node.decorator_list]
    return not {"overload", "setter"}.isdisjoint(decorators)


def print_problems(tree: SourceTree) -> list[str]:
    """Calls of print in the packages, outside the command-line tools."""
    return [
        f"{source.place(node)}: print"
        for source in tree.packaged
        if not source.name.startswith("kudulite.tools")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
    ]


def room_problems(tree: SourceTree) -> list[str]:
    """Product folders with too many files; `__init__.py` does not count."""
    paths = [source.path for source in tree.packaged if len(source.path.parts) > 1]
    counts = collections.Counter(path.parent for path in paths if path.name != "__init__.py")
    return [
        f"{folder}: {count} files in a folder"
        for folder, count in sorted(counts.items())
        if count > FOLDER_FILES_MAX
    ]


CHECKS = (size_problems, parameter_problems, docstring_problems, print_problems, room_problems)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_project_keeps_the_limits(check):
    """The numbers at the top of this file; docstrings; no print outside the command line."""
    problems = check(project_tree())
    assert not problems, "\n".join(problems)


def wide(count: int) -> str:
    """A method with exactly that many parameters."""
    names = ", ".join(f"p{number}" for number in range(count - 3))
    return DOC + f"class A:\n    def a(self, {names}, *b, c, **d): ..."


def long(head: str, line_count: int) -> str:
    """A definition of exactly that many lines."""
    return head + "\n" + "\n".join(["    '''Do.'''"] + ["    0"] * (line_count - 2))


DOC = "'''A module.'''\n"
BAD = [
    (size_problems, "tests/a.py", DOC + "0\n" * 799, DOC + "0\n" * 800,
     "tests/a.py: 801 lines in a file"),
    (size_problems, "kudulite/a.py", DOC + "#\n\n" * 99 + "0\n" * 450,
     DOC + "#\n\n" * 99 + "0\n" * 451, "kudulite/a.py: 451 lines of code in a file"),
    (size_problems, "examples/a.py", DOC + "#" * 100, DOC + "#" * 101,
     "examples/a.py:2: 101 characters in a line"),
    (size_problems, "tests/a.py", DOC + long("class A:", 500), DOC + long("class A:", 501),
     "tests/a.py:2: 501 lines in class A"),
    (size_problems, "kudulite/a.py", DOC + long("def a():", 60), DOC + long("def a():", 61),
     "kudulite/a.py:2: 61 lines in function a"),
    (parameter_problems, "tests/a.py", wide(12), wide(13), "tests/a.py:3: 13 parameters of a"),
    (parameter_problems, "kudulite/tools/a.py", wide(12), wide(13),
     "kudulite/tools/a.py:3: 13 parameters of a"),
    (docstring_problems, "tests/a.py", DOC, "0",
     "tests/a.py: no docstring in the module"),
    (docstring_problems, "a.py", DOC + "def a(): ...", "def a(): ...",
     "a.py: no docstring in the module"),
    (docstring_problems, "kudulite/a.py", DOC + "def _a(): ...", DOC + "def a(): ...",
     "kudulite/a.py:2: no docstring in a"),
    (docstring_problems, "kudulite_spark/a.py", DOC + "class _A:\n    def b(self): ...",
     DOC + "class A:\n    '''A.'''\n    def b(self): ...",
     "kudulite_spark/a.py:4: no docstring in b"),
    (docstring_problems, "pyspark_kudulite.py", DOC + "class A:\n    '''A.'''",
     DOC + "class A: ...",
     "pyspark_kudulite.py:2: no docstring in A"),
    (print_problems, "kudulite/model/a.py", "log('print(1)')", "def a():\n    print(1)",
     "kudulite/model/a.py:2: print"),
    (print_problems, "kudulite_spark/a.py", "a.print(1)", "print(1)",
     "kudulite_spark/a.py:1: print"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "path", "good", "bad", "problem"), BAD)
def test_a_broken_limit_is_found_and_the_last_legal_size_is_not(
    check, path, good, bad, problem, tmp_path
):
    """Each rule can fail, one line later than it may."""
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(good)
    assert check(SourceTree(tmp_path)) == []
    file.write_text(bad)
    assert check(SourceTree(tmp_path)) == [problem]


def test_a_command_may_have_more_parameters(tmp_path):
    """Each is an option of the command line."""
    file = tmp_path / "kudulite/tools/commands_a.py"
    file.parent.mkdir(parents=True)
    file.write_text(wide(20))
    assert parameter_problems(SourceTree(tmp_path)) == []


def filled(root: Path, counts: dict[str, int]) -> SourceTree:
    """A checkout with so many files in each folder."""
    for folder, count in counts.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            (root / folder / f"a{number}.py").write_text(DOC)
    return SourceTree(root)


def test_a_full_folder_is_found_and_the_last_legal_one_is_not(tmp_path):
    """A product folder may have 24 files and an `__init__.py`; one of tests may have more."""
    legal = filled(tmp_path, {"kudulite/wal": 24, "tests": 25})
    (tmp_path / "kudulite/wal/__init__.py").write_text(DOC)
    assert room_problems(legal) == []
    assert room_problems(filled(tmp_path, {"kudulite/wal": 25})) == [
        "kudulite/wal: 25 files in a folder"
    ]
