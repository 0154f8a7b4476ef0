"""The Python sources of a checkout, parsed: what the structure tests look at.

A check is a function from a `SourceTree` to a list of problems, one readable line each, so the same
check runs on the project (which must have none) and on a small tree made to break the rule.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("kudulite", "kudulite_spark", "pyspark_kudulite")
FOLDERS = (*PACKAGES, "benchmarks", "examples", "tests")


@dataclass(frozen=True)
class Source:
    """One file: its dotted module name, its path under the root, and its text."""

    name: str
    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text)

    @property
    def top(self) -> str:
        """The package or folder it belongs to; for a file in the root its own name."""
        return self.name.partition(".")[0]

    def place(self, node: ast.AST) -> str:
        """`path:line` of a node, as editors open it."""
        return f"{self.path}:{getattr(node, 'lineno', 1)}"


@dataclass(frozen=True)
class Import:
    """One imported module, and the line that imports it.

    `names` are the names taken from it; empty for a plain `import module`.
    """

    source: Source
    node: ast.AST
    module: str
    names: tuple[str, ...] = ()


class SourceTree:
    """All Python files of the project under `root`, the ones in its root folder included."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def sources(self) -> list[Source]:
        """Every file, by path."""
        paths = [*self.root.glob("*.py")]
        for folder in FOLDERS:
            paths += (self.root / folder).rglob("*.py")
        return [self._read(path) for path in sorted(paths)]

    @property
    def packaged(self) -> list[Source]:
        """The files that are installed."""
        return [source for source in self.sources if source.top in PACKAGES]

    def public_names(self, module: str = "kudulite") -> frozenset[str]:
        """The names in the `__all__` of a module, and the module `errors` beside it.

        A module without `__all__` has all names that its file defines and that have no underscore.
        """
        for source in self.sources:
            if source.name != module:
                continue
            defined = set()
            for node in source.tree.body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                    return frozenset(ast.literal_eval(node.value)) | {"errors"}
                if isinstance(node, ast.ClassDef | ast.FunctionDef):
                    defined.add(node.name)
                elif isinstance(node, ast.Assign):
                    named = (name for target in node.targets for name in ast.walk(target))
                    defined |= {name.id for name in named if isinstance(name, ast.Name)}
            return frozenset(name for name in defined if not name.startswith("_"))
        return frozenset({"errors"})

    def imports(self, source: Source) -> Iterator[Import]:
        """All imports of a file wherever they stand: at the top, in functions, under TYPE_CHECKING.

        `from package import module` is an import of `package.module`. A relative import keeps its
        dots in `module`.
        """
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(source, node, alias.name)
            elif isinstance(node, ast.ImportFrom):
                yield from self._imports_from(source, node)

    def _imports_from(self, source: Source, node: ast.ImportFrom) -> Iterator[Import]:
        package = "." * node.level + (node.module or "")
        names = []
        for alias in node.names:
            if f"{package}.{alias.name}" in self._names:
                yield Import(source, node, f"{package}.{alias.name}")
            else:
                names.append(alias.name)
        if names:
            yield Import(source, node, package, tuple(names))

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(source.name for source in self.sources)

    def _read(self, path: Path) -> Source:
        relative = path.relative_to(self.root)
        parts = [*relative.parts[:-1], relative.stem]
        if parts[-1] == "__init__":
            parts.pop()
        text = path.read_text(encoding="utf-8")
        return Source(".".join(parts), relative, text)


@cache
def project_tree() -> SourceTree:
    """This checkout, read and parsed once."""
    return SourceTree(ROOT)
