"""The parts of a release agree: versions of Python, of Spark and of packages, notes, recipe."""

import re
import runpy
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NOTES = runpy.run_path(str(ROOT / ".ci" / "release_notes"))["notes"]
CHANGELOG = """# Changelog

## 1.1.0, not released

- Nothing.

## 1.0.0, 2026-12-01

### New

- A table ([using.md](using.md#a-day), [a file](../kudulite/errors.py), [SQL](https://x.org/a)).

## 0.9.0, 2026-11-01

- Old.
"""


def test_the_notes_are_the_section_of_the_version():
    """Its links lead to the documents of the tag."""
    place = "https://host/owner/kudulite"
    assert NOTES(CHANGELOG, "v1.0.0", place) == (
        "### New\n\n"
        f"- A table ([using.md]({place}/blob/v1.0.0/docs/using.md#a-day),"
        f" [a file]({place}/blob/v1.0.0/kudulite/errors.py), [SQL](https://x.org/a)).\n"
    )


@pytest.mark.parametrize(
    ("tag", "message"),
    [("v1.1.0", "version 1.1.0 has no date .*not released"), ("v1.0", "has no version 1.0$")],
)
def test_a_version_that_is_not_released_has_no_notes(tag, message):
    """Nor has one that the changelog does not know, or knows by a longer number."""
    with pytest.raises(LookupError, match=message):
        NOTES(CHANGELOG, tag, "")


def test_the_changelog_can_be_published():
    """Each section has a version and a date, or is not released."""
    headings = re.findall(r"^## (.*)$", (ROOT / "docs" / "changelog.md").read_text(), re.M)
    assert headings
    for heading in headings:
        assert re.fullmatch(r"\d+\.\d+\.\d+, (\d{4}-\d\d-\d\d|not released)", heading), heading


def test_every_list_of_pythons_is_the_same():
    """Of the classifiers, the scripts and the workflows."""
    classifiers = " ".join(PROJECT["project"]["classifiers"])
    pythons = re.findall(r"Python :: (3\.\d+)", classifiers)
    assert PROJECT["project"]["requires-python"] == f">={pythons[0]}"
    for name in ("package", "pythons"):
        assert " ".join(pythons) in (ROOT / ".ci" / name).read_text(), name
    workflows = {path.stem: path.read_text() for path in (ROOT / ".github/workflows").iterdir()}
    assert str(pythons).replace("'", '"') in workflows["release"]
    others = [
        version for version in pythons if f'python-version: "{version}"' not in workflows["tests"]
    ]
    for name in ("tests", "weekly"):
        assert str(others).replace("'", '"') in workflows[name], name


def test_the_older_sparks_that_are_tested_are_those_of_the_page():
    """The page also names the newest, which .ci/run tests."""
    scripted = re.search(r"\$\{@:-([\d. ]+)\}", (ROOT / ".ci" / "spark_versions").read_text())
    page = re.search(r"tested on ([\d., and]+)\.", (ROOT / "docs" / "spark.md").read_text())
    weekly = re.search(r"spark: \[(.*)\]", (ROOT / ".github/workflows/weekly.yml").read_text())
    assert scripted is not None and page is not None and weekly is not None
    versions = scripted[1].split()
    assert re.findall(r"[\d.]+\d", page[1])[:-1] == versions
    assert re.findall(r"[\d.]+\d", weekly[1]) == versions
    oldest = ".".join(versions[0].split(".")[:2])
    assert f"pyspark>={oldest},<" in " ".join(PROJECT["project"]["optional-dependencies"]["spark"])


def test_the_recipe_of_conda_requires_what_the_project_does():
    """At run time and to build; extras are constraints on what a user installs beside it."""
    text = (ROOT / "conda" / "recipe.yaml").read_text()
    parts = {
        part: set(re.findall(r"^    - (.+)$", block, re.M))
        for part, block in re.findall(
            r"^  (host|run|run_constraints):\n((?:    .*\n)+)", text, re.M
        )
    }

    def conda(requirements: list[str]) -> set[str]:
        return {re.sub(r"(?=[<>])", " ", requirement, count=1) for requirement in requirements}

    extras = PROJECT["project"]["optional-dependencies"]
    assert parts["run"] - {"__unix", "python >=${{ python_min }}"} == conda(
        PROJECT["project"]["dependencies"]
    )
    assert conda(PROJECT["build-system"]["requires"]) < parts["host"]
    spark = [requirement for requirement in extras["spark"] if "pyspark" in requirement]
    assert parts["run_constraints"] == conda([*extras["cli"], *extras["sql"], *spark])


def test_the_scripts_are_valid_shell():
    """Also those that only a release or a workflow runs."""
    for path in sorted((ROOT / ".ci").iterdir()):
        if path.is_file() and path.read_bytes().startswith(b"#!/bin/sh"):
            done = subprocess.run(["sh", "-n", str(path)], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
