"""Faults put into a copy of the sources, one at a time, each with the tests that must find it.

Every fsync that can be left out, locks, checksums, marks that are off by one, and durable steps in
the wrong order are in mutations.txt. `python benchmarks/reliability.py --mutations` notes in
mutations_caught.txt by which test each is caught. Where one survives, a test is missing, or the
code is not needed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAULTS = Path(__file__).with_suffix(".txt")
CAUGHT = Path(__file__).with_name("mutations_caught.txt")
COPIED = (
    *("kudulite", "kudulite_spark", "tests"),
    *("conftest.py", "pyproject.toml", "pyspark_kudulite.py"),
)
SECONDS_MAX = 300
NEW_LINE = "⏎"
_CASES = "tests/crash/test_power_loss.py::test_power_lost_"
_TESTS = {
    "power": f"{_CASES}at_any_step_keeps_what_was_promised[{{}}-16]",
    "killed": f"{_CASES}after_a_kill_keeps_what_was_promised_since[{{}}-a session-5]",
}
_LOCKED = "                stack.enter_context(turn)"
_UNLOCKED = (
    "                turn._acquire = (lambda: None) if work.startswith({!r}) else turn._acquire\n"
    "                stack.enter_context(turn)"
)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Mutation:
    """One fault: in the file `path` one occurrence of `before` becomes `after`."""

    name: str
    path: str
    occurrence: int
    before: str
    after: str
    tests: tuple[str, ...]

    @staticmethod
    def of(line: str) -> Mutation:
        """Read a line of mutations.txt."""
        place, before, after, listed = line.split(" ¦ ")
        name = f"{place}: {before.strip()} → {after.strip() or 'nothing'}"
        path, _, number = place.partition("#")
        if before == "UNLOCKED":
            before, after = _LOCKED, _UNLOCKED.format(after)
        tests = []
        for test in listed.split(", "):
            kind, _, case = test.partition(": ")
            tests.append(_TESTS[kind].format(case) if case else test)
        texts = [text.replace(NEW_LINE, "\n") for text in (before, after)]
        return Mutation(name, path, int(number or 0), *texts, tuple(tests))

    def applied(self, text: str) -> str:
        """The file with the fault."""
        parts = text.split(self.before)
        assert len(parts) > self.occurrence + 1, f"not found, {self.name}"
        head = self.before.join(parts[: self.occurrence + 1])
        return head + self.after + self.before.join(parts[self.occurrence + 1 :])


@dataclass(frozen=True)
class Verdict:
    """A fault, and the test that has caught it; empty where none has."""

    mutation: Mutation
    caught_by: str
    seconds: float


def listed_mutations(only: str = "") -> list[Mutation]:
    """All faults, or those that have a text in their name."""
    lines = [line for line in FAULTS.read_text().splitlines() if line and line[0] != "#"]
    return [mutation for mutation in map(Mutation.of, lines) if only in mutation.name]


def known_catchers() -> dict[str, str]:
    """By the name of each listed fault the test that has caught it in its last run, if any."""
    lines = CAUGHT.read_text().splitlines() if CAUGHT.exists() else []
    return dict(line.rsplit(" ¦ ", 1) for line in lines)


def note(verdict: Verdict) -> None:
    """Note what has caught a fault, or that nothing has; the list is in the order of the faults."""
    known = known_catchers()
    known[verdict.mutation.name] = verdict.caught_by
    names = [mutation.name for mutation in listed_mutations() if known.get(mutation.name)]
    CAUGHT.write_text("".join(f"{name} ¦ {known[name]}\n" for name in names))


def run_mutations(mutations: list[Mutation]) -> Iterator[Verdict]:
    """Run the faults; first their tests without a fault, which must pass."""
    with tempfile.TemporaryDirectory(prefix="kudulite-mutations-") as folder:
        copy = Path(folder)
        for name in COPIED:
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, copy / name, ignore=ignored)
            else:
                shutil.copy(ROOT / name, copy)
        proved: set[str] = set()
        for mutation in mutations:
            unproved = tuple(test for test in mutation.tests if test not in proved)
            if unproved and (failed := caught_by(copy, unproved)):
                raise AssertionError(f"fails without a fault: {failed}")
            proved.update(unproved)
            path = copy / mutation.path
            text = path.read_text()
            path.write_text(mutation.applied(text))
            begin = time.perf_counter()
            found = caught_by(copy, mutation.tests)
            path.write_text(text)
            yield Verdict(mutation, found, time.perf_counter() - begin)


def caught_by(copy: Path, tests: tuple[str, ...]) -> str:
    """The first test that fails in a copy of the project; empty where all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    # Tests that are named one by one may be of any tier.
    tier = "-m=full or not full" if any("::" in test for test in tests) else "-m=not full"
    try:
        run = subprocess.run(
            [*command, tier, *tests],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"a test that does not end within {SECONDS_MAX} s"
    if run.returncode == 0:
        return ""
    if run.returncode < 0:
        return f"the end of the process by signal {-run.returncode}"
    found = _FAILED.search(run.stdout)
    if found is None:
        raise RuntimeError(f"the tests did not run:\n{run.stdout[-3000:]}{run.stderr[-3000:]}")
    return found[1]
