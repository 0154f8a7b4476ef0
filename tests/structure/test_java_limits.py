"""Sizes, heads and raw types of the Java sources, whose limits need no JDK to check.

javac refuses more when the jar is built (tests/support/front_build.py). The jar's own test sees
that it was built so.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.front_build import FOLDER

FILE_LINES_MAX = 450
METHOD_LINES_MAX = 60
LINE_CHARACTERS_MAX = 100
NESTED_CLASSES_MAX = 4

GENERIC = (
    "Broadcast|Class|Collection|Dataset|Function0|Function1|HashMap|HashSet|Iterator|List|Map"
    "|Option|PartitionReader|PythonPlannerRunner|Rule|Seq|Set"
)
# A declaration or a constructor: `Map found`, `new HashMap(`; `Map.of` and `Map<…>` are none.
RAW_TYPE = re.compile(rf"\b(?:(?:{GENERIC})\s+\w+\s*[;=,()]|new\s+(?:{GENERIC})\s*\()")
NOT_CODE = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)+\'|//[^\n]*|/\*.*?\*/', re.DOTALL)
CLASS = re.compile(r"\b(?:class|enum|interface|record)\s+(\w+)")
METHOD = re.compile(r"(\w+)\s*\([^{}]*\)\s*(?:throws\s[\w.,\s]+)?$")
HEAD = re.compile(r"^/\*\*.*?\*/\n(?:@\w.*\n)*(?:public )?(?:class|interface|record) ", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A class or a method, from the line that it begins at to its last brace."""

    kind: str
    name: str
    line: int
    line_count: int


def blocks(text: str) -> Iterator[Block]:
    """All classes and methods; anonymous classes are classes without a name."""
    code = NOT_CODE.sub(lambda found: re.sub(r"\S", " ", found[0]), text)
    opened: list[tuple[str, str, int]] = []
    start = 0
    for found in re.finditer("[{};]", code):
        header = code[start : found.start()]
        line = code.count("\n", 0, start + len(header) - len(header.lstrip())) + 1
        start = found.end()
        if found[0] == "{":
            in_class = bool(opened) and opened[-1][0] == "class"
            if named := CLASS.search(header):
                opened.append(("class", named[1], line))
            elif re.search(r"\bnew\s[^=]*\)\s*$", header):
                opened.append(("class", "", line))
            elif in_class and (method := METHOD.search(header)):
                opened.append(("method", method[1], line))
            else:
                opened.append(("block", "", line))
        elif found[0] == "}":
            kind, name, line = opened.pop()
            last = code.count("\n", 0, start) + 1
            yield Block(kind, name, line, last - line + 1)


def java_problems(folder: Path) -> list[str]:
    """Files, methods and lines that are too long, too many nested classes, raw types, no head."""
    problems = []
    for path in sorted(folder.glob("*.java")):
        text = path.read_text()
        lines = text.splitlines()
        if len(lines) > FILE_LINES_MAX:
            problems.append(f"{path.name}: {len(lines)} lines in a file")
        if not HEAD.search(text):
            problems.append(f"{path.name}: no head before the class")
        for number, line in enumerate(lines, 1):
            if len(line) > LINE_CHARACTERS_MAX:
                problems.append(f"{path.name}:{number}: {len(line)} characters in a line")
        found = list(blocks(text))
        if (nested := sum(block.kind == "class" for block in found) - 1) > NESTED_CLASSES_MAX:
            problems.append(f"{path.name}: {nested} classes in a class")
        problems += [
            f"{path.name}:{block.line}: {block.line_count} lines in method {block.name}"
            for block in found
            if block.kind == "method" and block.line_count > METHOD_LINES_MAX
        ]
        problems += raw_types(path.name, text)
    return problems


def raw_types(name: str, text: str) -> list[str]:
    """Generic types without their parameters, outside comments and texts."""
    code = NOT_CODE.sub(lambda found: re.sub(r"\S", " ", found[0]), text)
    return [
        f"{name}:{code.count(chr(10), 0, found.start()) + 1}: raw type in {found[0].strip()!r}"
        for found in RAW_TYPE.finditer(code)
    ]


def test_the_java_sources_keep_the_limits():
    """The numbers at the top of this file; a head; no raw types."""
    problems = java_problems(FOLDER)
    assert not problems, "\n".join(problems)


def test_every_method_is_seen():
    """Constructors, methods of nested and anonymous classes, and headers of several lines count."""
    text = """
class A {
  private int[] n = {1};  // it is no method() {
  A(int b) {
    for (int i = 0; i < b; i++) { call("{"); }
  }
  static <T> Map<T, T> c(
      T d) throws Bad {
    return new E(d) {
      public void f() {}
    };
  }
  record G(int h) {
    int i() { return switch (h) { default -> 1; }; }
  }
}
"""
    found = sorted((block.line, block.name) for block in blocks(text) if block.kind == "method")
    assert found == [(4, "A"), (7, "c"), (10, "f"), (14, "i")]
    assert sum(block.kind == "class" for block in blocks(text)) == 3  # A, the anonymous one, G


def java(*members: str) -> str:
    """A class with these members."""
    return "/** A. */\nclass A {\n" + "".join(f"{member}\n" for member in members) + "}\n"


def method(line_count: int) -> str:
    """A method of exactly that many lines."""
    return "\n".join(["  int b() {", *["    0;"] * (line_count - 2), "  }"])


@pytest.mark.parametrize(
    ("good", "bad", "problem"),
    [
        (java(*["//"] * 447), java(*["//"] * 448), "A.java: 451 lines in a file"),
        (java(method(60)), java(method(61)), "A.java:3: 61 lines in method b"),
        (java("//" + "a" * 98), java("//" + "a" * 99), "A.java:3: 101 characters in a line"),
        (java(*["class B {}"] * 4), java(*["class B {}"] * 5), "A.java: 5 classes in a class"),
        (java("Map<A, B> b;"), java("Map b;"), "A.java:3: raw type in 'Map b;'"),
        (java("int a = Set.of();"), java("Set b() {}"), "A.java:3: raw type in 'Set b('"),
        (java("A b = new HashSet<>(c);"), java("A b = new HashSet(c);"),
         "A.java:3: raw type in 'new HashSet('"),
        (java(), java().removeprefix("/** A. */\n"), "A.java: no head before the class"),
    ],
)  # fmt: skip
def test_a_broken_limit_is_found_and_the_last_legal_size_is_not(good, bad, problem, tmp_path):
    """Each rule can fail, one line later than it may."""
    (tmp_path / "A.java").write_text(good)
    assert java_problems(tmp_path) == []
    (tmp_path / "A.java").write_text(bad)
    assert java_problems(tmp_path) == [problem]
