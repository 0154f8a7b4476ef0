"""The documents are true: their code runs, and their links and commands lead somewhere.

A `python` block holds a session as typed, `>>>` and what it prints, and runs as a doctest. The
blocks of one document share their names. `sh` blocks are for people, but see the README's two.
"""

import doctest
import importlib
import re
from pathlib import Path

import pytest

import kudulite
import kudulite_spark
from tests.support.notebook import code_cells, outputs, steady, stored
from tests.support.source_tree import project_tree

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
RUN_IN_SPARK = [path for path in DOCUMENTS if "kudulite_spark" in path.read_text()]
# The pages with the most Spark jobs are left to the full tier.
MARKS = {path: [pytest.mark.spark] for path in RUN_IN_SPARK}
for name in ("spark_kudu.md", "spark_sql.md", "spark_streams.md"):
    MARKS[ROOT / "docs" / name] = [pytest.mark.spark, pytest.mark.full]
# The page of recipes with packages that the tests do not install: a block that imports one of
# these is left out.
INTEGRATIONS = ROOT / "docs" / "integrations.md"
IMPORT = re.compile(r"^>>> (?:import|from) ([\w.]+)", re.MULTILINE)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
ANCHOR = re.compile(r"\]\(([^)#\s]*\.md)?#([^)\s]+)\)")
# A link to another page, and the name of a page's file as its text.
PAGE_LINK = re.compile(r"\[([^\]]*)\]\([^)\s]*\.(?:md|ipynb)(?:#[^)\s]*)?\)")
PAGE_NAME = re.compile(r"^`?[\w./]+\.(?:md|ipynb)`?$")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
# Where the documents keep their tables; the tests put a temporary folder there.
DATA = "/data/warehouse"


def blocks(text: str, language: str) -> list[tuple[int, str]]:
    """The fenced blocks of a language with the line each starts in."""
    return [
        (text.count("\n", 0, found.start(2)) + 1, found[2])
        for found in BLOCK.finditer(text)
        if found[1] == language
    ]


def missing_modules(block: str) -> list[str]:
    """The modules that a session imports and that are not installed, or lack another package."""
    return [name for name in IMPORT.findall(block) if not can_be_imported(name)]


def can_be_imported(name: str) -> bool:
    """Whether there is a module; Starlette raises a RuntimeError where another one is missing."""
    try:
        importlib.import_module(name)
    except (ImportError, RuntimeError):
        return False
    return True


def run_session(text: str, name: str, names: dict, line: int = 1) -> list[str]:
    """Run a typed session with these `names`, which it changes; what went wrong."""
    test = doctest.DocTestParser().get_doctest(text, {}, name, name, line - 1)
    # The parser copies the names; later blocks want what earlier ones defined.
    test.globs = names
    reports: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    runner.run(test, out=reports.append, clear_globs=False)
    return reports


@pytest.mark.parametrize(
    "document",
    [pytest.param(path, marks=MARKS.get(path, ())) for path in DOCUMENTS],
    ids=lambda path: path.name,
)
def test_the_code_in_a_document_runs(document, tmp_path, monkeypatch, request):
    """Each `python` block prints what it says it prints."""
    text = document.read_text()
    if document in RUN_IN_SPARK:
        request.getfixturevalue("spark")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for line, block in blocks(text, "python"):
        assert ">>> " in block, (
            f"{document.name}:{line}: a python block without a prompt runs nothing"
        )
        if document == INTEGRATIONS and missing_modules(block):
            continue
        reports = run_session(block.replace(DATA, str(tmp_path)), document.name, names, line)
        assert not reports, "".join(reports)


@pytest.mark.parametrize(
    "source",
    [source for source in project_tree().packaged if ">>> " in source.text],
    ids=lambda source: str(source.path),
)
def test_the_code_in_docstrings_runs(source, tmp_path, monkeypatch):
    """Each `>>>` in a docstring prints what it says it prints."""
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(source.name)
    reports: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    for test in doctest.DocTestFinder().find(module):
        runner.run(test, out=reports.append)
    assert not reports, "".join(reports)


def test_a_session_without_its_packages_is_found():
    """By its imports, of modules and of names."""
    assert missing_modules(">>> import json\n>>> from os.path import join\n") == []
    assert missing_modules(">>> import nothing.such\n>>> from no_more import x\n") == [
        "nothing.such",
        "no_more",
    ]


def test_a_session_that_prints_something_else_is_found():
    """The runner can fail, and blocks of one document share their names."""
    names: dict = {}
    assert run_session(">>> a = 1\n", "good", names) == []
    assert run_session(">>> a\n1\n", "good", names) == []
    assert "Expected:\n    2\nGot:\n    1\n" in "".join(run_session(">>> a\n2\n", "bad", names))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files(document):
    """A link to a file of the project names one that is there."""
    targets = [found[1] for found in LINK.finditer(document.read_text())]
    missing = [
        target
        for target in targets
        if "://" not in target and not (document.parent / target).exists()
    ]
    assert missing == []


def file_name_texts(text: str) -> list[str]:
    """The links to pages whose text is a file's name in place of a title."""
    return [found[0] for found in PAGE_LINK.finditer(text) if PAGE_NAME.search(found[1])]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_text_of_a_link_to_a_page_is_no_file_name(document):
    """On the site a page has a title; sources have names."""
    assert file_name_texts(document.read_text()) == []


def test_a_link_text_that_is_a_file_name_is_found():
    """With code marks, folders and anchors, too; a source may be named."""
    assert file_name_texts("[a.md](a.md), [`b/a.md`](b/a.md#c), [x](a.md), [a.py](a.py)") == [
        "[a.md](a.md)",
        "[`b/a.md`](b/a.md#c)",
    ]


def anchors(text: str) -> set[str]:
    """The anchors that a document's headings have on the web."""
    titles = [found[1].lower() for found in HEADING.finditer(text)]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_headings(document):
    """A link to a part of a document names a heading of it."""
    missing = [
        found[0]
        for found in ANCHOR.finditer(document.read_text())
        if found[2] not in anchors((document.parent / (found[1] or document.name)).read_text())
    ]
    assert missing == []


def test_anchors_are_those_of_the_web():
    """Lower case, hyphens for spaces, no punctuation."""
    assert anchors("# The `a` b\n\n## Reading big: c_d\n") == {"the-a-b", "reading-big-c_d"}


def test_a_unit_test_is_named_after_its_file():
    """tests/unit/<folder>/test_<file>.py; a test of several files lies in tests/features."""
    spark = ROOT / "kudulite_spark"
    packages = {"spark": spark, "spark_sql": spark / "sql"}
    strangers = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests" / "unit").rglob("test_*.py"))
        if not (
            packages.get(path.parent.name, ROOT / "kudulite" / path.parent.name)
            / f"{path.stem.removeprefix('test_')}.py"
        ).is_file()
    ]
    assert strangers == []


def test_the_architecture_names_every_file():
    """Each module of the packages is linked from docs/architecture.md, under its own path."""
    page = ROOT / "docs" / "architecture.md"
    linked = {(page.parent / found[1]).resolve() for found in LINK.finditer(page.read_text())}
    paths = [s.path for s in project_tree().packaged if len(s.path.parts) > 1]
    expected = [path for path in paths if path.name != "__init__.py"]
    assert [str(path) for path in expected if (ROOT / path).resolve() not in linked] == []


def test_the_reference_has_every_public_name():
    """Each name of `kudulite` and of `kudulite_spark` stands in docs/api.md, as code."""
    page = (ROOT / "docs" / "api.md").read_text()
    present = set(re.findall(r"(?:kudulite\.|kudulite_spark\.|`)(\w+)", page))
    assert {*kudulite.__all__, *kudulite_spark.__all__} - present == set()


def test_the_readme_has_two_commands_and_ci_runs_the_second():
    """One runs the example, the other the tests, each from a fresh checkout."""
    example, tests = (
        line
        for _, block in blocks((ROOT / "README.md").read_text(), "sh")
        for line in block.splitlines()
        if line.startswith("python3 -m venv")
    )
    assert example.endswith("examples/flights.py")
    assert tests in (ROOT / ".ci" / "run").read_text()


@pytest.mark.full
def test_the_notebook_shows_what_its_code_returns(tmp_path):
    """`python -m tests.support.notebook docs/tour.ipynb` stores it again."""
    cells = code_cells(ROOT / "examples" / "tour.ipynb")
    assert len(cells) > 10
    for cell, found in zip(cells, outputs(cells, tmp_path), strict=True):
        assert steady(stored(cell)) == steady(found), "".join(cell["source"])


def test_what_differs_from_run_to_run_is_not_compared():
    """Moments, HybridTimes, ids and sizes; other numbers are."""
    first = "2026-03-01T00:00:00.000001Z+2 7355984105896812544 log_bytes=12 rows=3"
    second = "2027-03-01T00:00:00.000001Z 7,355,984,125,513,158,656 log_bytes=7 rows=3"
    assert steady({"a": first}) == steady({"a": second}) != steady({"a": first[:-1] + "4"})
