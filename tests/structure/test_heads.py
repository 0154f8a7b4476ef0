"""Heads: the docstring at the top of each file is one text about one subject.

    summary       one line that ends with a full stop
    the ideas     drawings, grammars and paragraphs, in any order
    sections      **Invariants**: …   **Damage**: …   **Threads**: …   **Source**: …

A file that was joined with another one keeps two summaries, and its sections stand in the middle.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.source_tree import PACKAGES, SourceTree, project_tree

SECTIONS = ("Invariants", "Damage", "Threads", "Source")
SECTION = re.compile(rf"\*\*({'|'.join(SECTIONS)})\*\*: \S")
# A section's name at the start of a paragraph, or anywhere with a colon, in whatever spelling.
OTHER_SPELLING = re.compile(
    r"\A\W*(?:Invariants?|Damage|Threads?|Sources?)\W*[*:.]|\b(?:Invariants?|Threads|Source):"
)
# "Scanner: a scan …", "How a table is …": the first words of a summary.
SUMMARY = re.compile(r"[A-Z]\w*: |How ")
FILE_NAME = re.compile(r"[\w/]+\.(?:py|java)\b")


def head_problems(tree: SourceTree) -> list[str]:
    """Heads of the packages that are not one text, and section names in another spelling."""
    problems = []
    for source in tree.sources:
        found = [p for text in _docstrings(source.tree) for p in _spelling_problems(text)]
        if source in tree.packaged:
            found += _order_problems(ast.get_docstring(source.tree) or "")
        problems += [f"{source.path}: {problem}" for problem in found]
    return problems


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield the head, and the docstrings of classes and functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            if (text := ast.get_docstring(node)) is not None:
                yield text


def _spelling_problems(text: str) -> Iterator[str]:
    """Yield the paragraphs that begin a section in another spelling than `**Threads**: any`."""
    for paragraph in text.split("\n\n"):
        if not SECTION.match(paragraph) and OTHER_SPELLING.search(paragraph):
            yield f"spelling of a section: {paragraph[:30]!r}"


def _order_problems(head: str) -> Iterator[str]:
    """Yield what does not stand in its place: the summary, the ideas, then each section once."""
    summary, *paragraphs = head.split("\n\n")
    if "\n" in summary or not summary.endswith("."):
        yield f"summary is not one line with a full stop: {summary[:30]!r}"
    sections = []
    for paragraph in paragraphs:
        if section := SECTION.match(paragraph):
            sections.append(section[1])
        elif sections:
            yield f"text behind the sections: {paragraph[:30]!r}"
        elif SUMMARY.match(paragraph):
            yield f"a second summary: {paragraph[:30]!r}"
    if sections != [name for name in SECTIONS if name in sections]:
        yield f"order of sections: {', '.join(sections)}"


def name_problems(tree: SourceTree) -> list[str]:
    """Names of files in heads that no file has; those under **Source** are of other projects."""
    known = {source.path.as_posix() for source in tree.sources}
    for package in PACKAGES:
        java = (tree.root / package).rglob("*.java")
        known |= {path.relative_to(tree.root).as_posix() for path in java}
    ends = {name[at:] for name in known for at in (0, *_slashes(name))}
    problems = []
    for source in tree.packaged:
        head = ast.get_docstring(source.tree) or ""
        own = "\n\n".join(p for p in head.split("\n\n") if not p.startswith("**Source**"))
        problems += [
            f"{source.path}: no file {name}" for name in FILE_NAME.findall(own) if name not in ends
        ]
    return problems


def _slashes(name: str) -> list[int]:
    return [at + 1 for at, character in enumerate(name) if character == "/"]


CHECKS = (head_problems, name_problems)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_each_file_has_one_head(check):
    """One summary, each section at most once, in one order and spelling; names of real files."""
    problems = check(project_tree())
    assert not problems, "\n".join(problems)


GOOD = '''"""A: a file.

    drawing

The ideas, see b.py.

**Invariants**: one.

**Threads**: any.

**Source**: Kudu c.py.
"""
'''
BAD = [
    ("A: a file.", "A: a\nfile.", "summary is not one line with a full stop: 'A: a\\nfile.'"),
    ("A: a file.", "A: a file", "summary is not one line with a full stop: 'A: a file'"),
    ("The ideas", "B: the ideas", "a second summary: 'B: the ideas, see b.py.'"),
    ("Kudu c.py.", "Kudu.\n\nAnother idea.", "text behind the sections: 'Another idea.'"),
    ("**Invariants**: one", "**Source**: one", "order of sections: Source, Threads, Source"),
    ("**Threads**: any", "**Threads** any", "spelling of a section: '**Threads** any.'"),
    ("**Threads**: any", "Threads: any", "spelling of a section: 'Threads: any.'"),
    ("**Invariants**: one", "**Invariant**: one", "spelling of a section: '**Invariant**: one.'"),
    ("see b.py", "see d/b.py", "no file d/b.py"),
]


def written(root: Path, head: str) -> SourceTree:
    """A checkout with one file of a package that has this head, and one that it names."""
    (root / "kudulite").mkdir()
    (root / "kudulite/a.py").write_text(head)
    (root / "kudulite/b.py").write_text('"""B."""\n')
    return SourceTree(root)


def test_a_good_head_has_no_problem(tmp_path):
    """The example of a head passes both checks."""
    tree = written(tmp_path, GOOD)
    assert [problem for check in CHECKS for problem in check(tree)] == []


@pytest.mark.parametrize(("old", "new", "problem"), BAD)
def test_a_head_that_breaks_a_rule_is_found(old, new, problem, tmp_path):
    """Each rule can fail."""
    assert GOOD.count(old) == 1
    tree = written(tmp_path, GOOD.replace(old, new))
    found = [found for check in CHECKS for found in check(tree)]
    assert f"kudulite/a.py: {problem}" in found
