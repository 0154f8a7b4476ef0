"""`kudulite.__all__` is the list of what users may rely on: it is sorted, and it is the truth."""

import ast
import builtins
import importlib
import inspect
import re
import types
from pathlib import Path

import pytest

import kudulite
import kudulite_spark
from kudulite.tablet.operation import OPERATION_NAMES

WRITES = (*OPERATION_NAMES, "overwrite", "apply", "new_bulk_write")


def name_problems(module: types.ModuleType) -> list[str]:
    """Where `__all__` is out of order, or differs from the names that the module has.

    Modules count only if listed: importing a layer leaves its name in the package.
    """
    listed = list(module.__all__)
    present = {
        name
        for name in dir(module)
        if not name.startswith("_")
        and (name in listed or not isinstance(getattr(module, name), types.ModuleType))
    }
    problems = [f"{name} is in __all__ twice" for name in {*listed} if listed.count(name) > 1]
    missing = [name for name in listed if not hasattr(module, name)]
    problems += [f"{name} is in __all__ and not there" for name in missing]
    problems += [f"{name} is there and not in __all__" for name in sorted(present - {*listed})]
    if listed != sorted(listed, key=sort_key):
        problems.append("__all__ is not sorted")
    return problems


def sort_key(name: str) -> tuple[int, list[tuple[int, str]]]:
    """Constants, classes, functions; int8 before int16: ruff's order of `__all__`."""
    kind = 0 if len(name) > 1 and name.isupper() else 1 if name[0].isupper() else 2
    parts = re.findall(r"(\d+)|(\D+)", name)
    return kind, [(int(digits or 0), letters) for digits, letters in parts]


@pytest.mark.parametrize("name", ["kudulite", "kudulite.kudu", "kudulite.ui", "kudulite_spark"])
def test_all_names_are_listed_and_sorted(name):
    """Everything that is not in `__all__` may change without notice."""
    assert name_problems(importlib.import_module(name)) == []


def test_no_name_shadows_a_builtin():
    """`from kudulite import *` leaves `bool` and `float` alone."""
    assert set(kudulite.__all__) & set(dir(builtins)) == set()


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("bool", "use kudulite.bool_, or import"),
        ("KuduError", "use kudulite.PendingError"),
        ("UpsertIgnore", r"use table\.new_upsert_ignore\(…\)"),
        ("Scanner", r"use table\.scan\(…\)"),
        ("SchemaBuilder", r"use kudulite\.schema\(\[kudulite\.column\(…\), …\], primary_key=…\)"),
        ("schema_builder", r"use kudulite\.schema\(\[kudulite\.column\(…\)"),
        ("READ_AT_SNAPSHOT", "use the text of the choice, such as 'snapshot'"),
        ("LEADER_ONLY", "use the text of the choice"),
    ],
)
def test_a_name_of_kudu_python_says_what_to_type(name, instead):
    """`kudulite.kudu` has each of them; a name that nobody has is an error as of any module."""
    with pytest.raises(AttributeError, match=f"kudulite has no {name}, .*{instead}"):
        getattr(kudulite, name)
    assert hasattr(importlib.import_module("kudulite.kudu"), name)
    with pytest.raises(AttributeError, match="^module 'kudulite' has no attribute 'Scannner'$"):
        kudulite.Scannner  # noqa: B018


def test_the_connector_has_a_type_for_each_name():
    """Its names are imported at their first use; the stub file names the same modules."""
    stub = ast.parse(Path(kudulite_spark.__file__).with_suffix(".pyi").read_text())
    found = {alias.asname: node.module for node in stub.body for alias in node.names}
    assert found == kudulite_spark._MODULE_OF


def test_a_wrong_list_is_found():
    """Each rule can fail."""
    module = types.ModuleType("example")
    module.b, module.a, module.hidden, module.layer = 1, 2, 3, types.ModuleType("layer")
    module.__all__ = ["b", "a", "a", "gone"]
    assert name_problems(module) == [
        "a is in __all__ twice",
        "gone is in __all__ and not there",
        "hidden is there and not in __all__",
        "__all__ is not sorted",
    ]


@pytest.mark.parametrize("name", WRITES)
def test_the_help_of_a_write_explains_every_option(name):
    """With its default; the signature can be inspected."""
    write = getattr(kudulite.Table, name)
    defaults = {name: param.default for name, param in inspect.signature(write).parameters.items()}
    for option in kudulite.WriteOptions.__annotations__:
        line = re.search(rf"^{option}=(\S+)  +\w", inspect.getdoc(write), re.MULTILINE)
        assert line is not None, option
        assert line[1] == str(defaults.get(option, line[1]))


def test_the_options_of_a_session_are_spelled_out_and_explained():
    """Each has a type, a default and a line of the help; an unknown one is refused by name."""
    options = dict(inspect.signature(kudulite.Client.new_session).parameters)
    assert options.pop("unknown").annotation == "Never"
    assert [
        option for option in options.values() if option.default is inspect.Parameter.empty
    ] == []
    assert [option for option in options.values() if option.annotation == "Any"] == []
    explained = re.findall(r"^(\w+)  +\S", inspect.getdoc(kudulite.Session.__init__), re.MULTILINE)
    assert explained == list(options)
    with pytest.raises(
        kudulite.errors.OptionError, match=r"'buffer' of a session; known: flush_mode, "
    ):
        kudulite.Session(buffer=1)
