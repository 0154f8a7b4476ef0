"""The project's language: words and openings of sentences that make a reader translate.

Documents are checked as a whole; of the sources, docstrings, comments and string literals.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.source_tree import Source, SourceTree, project_tree

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
# Folders of sources that are checked; `kudulite` is the files that stand in it directly.
CHECKED_FOLDERS = (
    "benchmarks",
    "examples",
    "kudulite",
    "kudulite/backups",
    "kudulite/basefile",
    "kudulite/chain",
    "kudulite/client",
    "kudulite/delta",
    "kudulite/kudu",
    "kudulite/model",
    "kudulite/rowset",
    "kudulite/shown",
    "kudulite/storage",
    "kudulite/table",
    "kudulite/tablet",
    "kudulite/tools",
    "kudulite/ui",
    "kudulite/upkeep",
    "kudulite/wal",
    "kudulite/writes",
    "kudulite_spark",
)

# "It is told", "whoever reads", "what goes": each has an exact verb or noun in its place.
BANNED_WORD = re.compile(
    r"\b(?:told|tells|whoever|himself|herself|goes|for\s+ever|be\s+it)\b", re.IGNORECASE
)
# The first word of a text, a line of a list or table, a paragraph, or a sentence.
SENTENCE = re.compile(
    r"(?:\A|\n[ \t]*\n|\n[ \t]*(?:[-*|#>]|\d+\.)|[.!?:|][ \t]*(?:\n[ \t]*)?(?<=\s))"
    r"[\s#>*_|\"'(]*(?P<opening>What|Who|That which)\b(?P<rest>[^.!?]*)(?P<end>[.!?]?)"
)


def word_problems(text: str) -> Iterator[tuple[int, str]]:
    """Yield each banned word or opening with the number of line breaks before it."""
    for match in BANNED_WORD.finditer(text):
        yield text.count("\n", 0, match.start()), " ".join(match[0].split())
    for match in SENTENCE.finditer(text):
        if match["end"] != "?":
            yield text.count("\n", 0, match.start("opening")), f"a sentence with {match['opening']}"


def document_problems(name: str, text: str) -> list[str]:
    """The problems of a document, with their lines."""
    return [f"{name}:{line + 1}: {problem}" for line, problem in sorted(word_problems(text))]


def code_problems(source: Source) -> list[str]:
    """The problems in docstrings, comments and string literals of a file, with their lines."""
    found = {
        (line + offset, problem)
        for line, text in (*_strings(source), *_comments(source))
        for offset, problem in word_problems(text)
    }
    return [f"{source.path}:{line}: {problem}" for line, problem in sorted(found)]


def _strings(source: Source) -> Iterator[tuple[int, str]]:
    """Yield the string literals of a file with their first lines; docstrings are some of them."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def _comments(source: Source) -> Iterator[tuple[int, str]]:
    """Yield the comments of a file with their first lines; neighbouring lines are one comment."""
    lines: list[str] = []
    first = 0
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        if lines and line != first + len(lines):
            yield first, "\n".join(lines)
            lines = []
        if not lines:
            first = line
        lines.append(token.string.lstrip("#").strip())
    if lines:
        yield first, "\n".join(lines)


def folder_problems(tree: SourceTree, folder: str) -> list[str]:
    """The problems of all files that stand in a folder, not below it."""
    return [
        problem
        for source in tree.sources
        if source.path.parent == Path(folder)
        for problem in code_problems(source)
    ]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_have_no_banned_words(document):
    """README, CONTRIBUTING and docs/ use exact verbs, and sentences begin with their subject."""
    problems = document_problems(document.name, document.read_text())
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("folder", CHECKED_FOLDERS)
def test_sources_have_no_banned_words(folder):
    """So do docstrings, comments, messages and all other literals of the product."""
    problems = folder_problems(project_tree(), folder)
    assert not problems, "\n".join(problems)


BAD = [
    ("A deleted row\nis told as well.", ["a:2: told"]),
    ("This tells a reader where each row goes.", ["a:1: goes", "a:1: tells"]),
    ("Whoever has it, be it\na thread, keeps it for\never himself.",
     ["a:1: Whoever", "a:1: be it", "a:2: for ever", "a:3: himself"]),
    ("What a scan reads: rows.", ["a:1: a sentence with What"]),
    ("Rows are read. Who reads them is logged.", ["a:1: a sentence with Who"]),
    ("Rows are read.\nWhat is left is logged.", ["a:2: a sentence with What"]),
    ("Rows:\n\n- **What is left** is logged.", ["a:3: a sentence with What"]),
    ("| a | b |\n|---|---|\n| What is left | 1 |", ["a:3: a sentence with What"]),
    ("## What has which name\n", ["a:1: a sentence with What"]),
    ("That which is left is logged.", ["a:1: a sentence with That which"]),
]  # fmt: skip
GOOD = (
    "What is read? Rows: what a scan needs, and who asked for it.\n\n"
    "- That is a set of rows. Whatever they hold, the reader says so, forever.\n"
    "- In the middle of a line\n  What is a name.\n"
)


def test_good_text_has_no_problem():
    """Questions, clauses in a sentence, and longer words are legal."""
    assert document_problems("a", GOOD) == []


@pytest.mark.parametrize(("text", "problems"), BAD)
def test_a_banned_word_is_found(text, problems):
    """Each rule can fail, and says in which line."""
    assert document_problems("a", text) == problems


def test_the_text_of_a_source_is_docstrings_comments_and_literals(tmp_path):
    """Names are not text; a comment of two lines is one."""
    file = tmp_path / "kudulite" / "wal" / "a.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        '"""What it is.\n\nIt goes."""\n\n'
        "goes = tells  # a reader is\n"
        "              # told\n"
        'raise ValueError(f"{goes} tells")\n'
    )
    (tmp_path / "kudulite" / "a.py").write_text("# It goes on here.\n")
    tree = SourceTree(tmp_path)
    assert folder_problems(tree, "kudulite/wal") == [
        "kudulite/wal/a.py:1: a sentence with What",
        "kudulite/wal/a.py:3: goes",
        "kudulite/wal/a.py:6: told",
        "kudulite/wal/a.py:7: tells",
    ]
