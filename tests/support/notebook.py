"""Run a notebook in this process, and keep what its cells show.

    python -m tests.support.notebook docs/tour.ipynb      store the outputs in the notebook

Only the last value of a cell is shown, as HTML and as text. The folder and the writer are those of
nobody.
"""

import ast
import json
import os
import re
import sys
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

Cell = dict[str, Any]

# The parts that differ from run to run: moments but those of the notebook's rows, ids, and sizes.
_VARYING = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\.\d{6}(?:Z|\+00:00)(?:\+\d+)?"
    r"|\b7(?:\d{18}|(?:,\d{3}){6})\b"
    r"|\b[0-9a-f]{32}\b"
    r"|_bytes(?:_on_disk)?=\d+|bytes_on_disk=\d+|bytes(?:_on_disk)?</th><td[^>]*>[\d,]+"
)
_WRITER = re.compile(r"\b\w+@[\w.-]+:\d+")


def code_cells(path: Path) -> list[Cell]:
    """The cells of a notebook that have code."""
    cells = json.loads(path.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def outputs(cells: list[Cell], folder: Path) -> list[dict[str, str]]:
    """Run cells in a folder; what each shows by its kind, empty if its last line is no value."""
    names: dict[str, Any] = {}
    with chdir(folder):
        return [_shown("".join(cell["source"]), names, folder) for cell in cells]


def stored(cell: Cell) -> dict[str, str]:
    """The outputs of a cell in the notebook, by their kind."""
    return {
        kind: "".join(text) for output in cell["outputs"] for kind, text in output["data"].items()
    }


def steady(shown: dict[str, str]) -> dict[str, str]:
    """The outputs of a cell, without the parts that differ from run to run."""
    return {kind: _VARYING.sub("…", text) for kind, text in shown.items()}


def _shown(source: str, names: dict[str, Any], folder: Path) -> dict[str, str]:
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "notebook", "exec"), names)
    value = last and eval(compile(ast.Expression(last.value), "notebook", "eval"), names)
    if value is None:
        return {}
    html = getattr(value, "_repr_html_", lambda: None)()
    found = {"text/html": html, "text/plain": repr(value)}
    return {kind: _of_anybody(text, folder) for kind, text in found.items() if text}


def _of_anybody(text: str, folder: Path) -> str:
    text = text.replace(str(folder), "/home/ada").replace(os.path.realpath(folder), "/home/ada")
    return _WRITER.sub("ada@laptop:4711", text)


def main(path: Path) -> None:
    """Store what the cells of a notebook show."""
    notebook = json.loads(path.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    with tempfile.TemporaryDirectory() as folder:
        shown = outputs(cells, Path(folder))
    for number, (cell, data) in enumerate(zip(cells, shown, strict=True), 1):
        cell["execution_count"] = number
        result = {"output_type": "execute_result", "execution_count": number, "metadata": {}}
        lines = {kind: text.splitlines(keepends=True) for kind, text in data.items()}
        cell["outputs"] = [{**result, "data": lines}] if data else []
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
