"""Progress: shown after two seconds, on a terminal or in a notebook, of the main thread's calls."""

import io
import multiprocessing
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

import kudulite
from kudulite.shown import progress
from kudulite.shown.progress import Progress, Screen, Terminal
from tests.support.tables.core_tables import CoreTables


class Drawn:
    """A place that remembers the lines drawn in it; None stands for their removal."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, float | None, str] | None] = []
        self.is_drawn = threading.Event()

    def draw(self, text: str, share: float | None, figures: str) -> None:
        """Remember a line."""
        self.lines.append((text, share, figures))
        self.is_drawn.set()

    def remove(self) -> None:
        """Remember the removal."""
        self.lines.append(None)


class Shown:
    """A screen whose clock stands at `seconds`, and which a test looks at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = Drawn()
        self.seconds = 100.0
        self.screen = Screen(lambda: self.place, lambda: self.seconds, has_thread=False)
        monkeypatch.setattr(progress, "_screen", lambda: self.screen)

    def after(self, seconds: float) -> list[tuple[str, float | None, str] | None]:
        """Return the line that is drawn so many seconds later."""
        self.seconds += seconds
        self.place.lines.clear()
        self.screen.look()
        return list(self.place.lines)


@pytest.fixture
def shown(monkeypatch) -> Shown:
    """The screen of this process for a test."""
    return Shown(monkeypatch)


def test_a_call_is_drawn_once_it_takes_two_seconds_and_removed_at_its_end(shown):
    """With its figures and the time since it began."""
    with Progress("work", 3000) as call:
        assert shown.after(1.9) == []
        call.add(600)
        assert shown.after(0.1) == [("work", 0.2, "600 of 3,000 rows  0:02")]
        call.add(4000)
        call.say("rest")
        assert shown.after(60) == [("rest", 1.0, "4,600 of 3,000 rows  1:02")]
        shown.place.lines.clear()
    assert shown.place.lines == [None]
    assert shown.after(5) == []


def test_a_short_call_draws_nothing(shown):
    """Neither a line nor its removal."""
    with Progress("work"):
        shown.after(1)
    assert shown.place.lines == []


def test_the_innermost_call_gives_the_figures_unless_an_outer_one_knows_the_total(shown):
    """And the outermost is named first."""
    with Progress("outside"):
        with Progress("part", unit="bytes") as part:
            part.add(3 << 20)
            assert shown.after(2) == [("outside: part", None, "3.0 MiB  0:02")]
        assert shown.after(1) == [("outside", None, "0:03")]
    with Progress("write", 10), Progress("write") as inner:
        inner.add(5)
        assert shown.after(2) == [("write", 0.5, "5 of 10 rows  0:02")]
    with Progress("check", 10, "bytes"), Progress("count") as inner:
        inner.add(5)
        assert shown.after(2) == [("check: count", 0.0, "0 B of 10 B  0:02")]


def test_items_are_counted_when_the_next_is_asked_for(shown):
    """So the one that is worked on does not count yet."""
    with Progress("work", 4, "items") as call:
        found = call.counted(["a", "bc", "d"], len)
        assert [next(found), next(found)] == ["a", "bc"]
        assert call.done == 1
        assert list(found) == ["d"]
    assert call.done == 4
    call.report(2, 8)
    assert (call.share, call.figures) == (0.25, "2 of 8 items")


def test_calls_of_other_threads_are_not_shown(shown):
    """They may be background work."""

    def work() -> None:
        with Progress("work") as call:
            call.add(1)
            shown.after(9)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
    assert shown.place.lines == []


def test_a_thread_draws_while_a_call_runs(monkeypatch):
    """Again for a later call; it sleeps in between."""
    monkeypatch.setattr(progress, "SHOWN_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(progress, "INTERVAL_SECONDS", 0.001)
    places: list[Drawn] = []

    def place() -> Drawn:
        places.append(Drawn())
        return places[-1]

    screen = Screen(place)
    monkeypatch.setattr(progress, "_screen", lambda: screen)
    for _ in range(3):
        with Progress("work"):
            assert places[-1].is_drawn.wait(30)
        assert places[-1].lines[-1] is None


def test_nothing_is_written_where_there_is_no_terminal():
    """Not by a call of three seconds, whatever the clock says."""
    script = (
        "from kudulite.shown import progress\n"
        "progress.SHOWN_AFTER_SECONDS = 0.0\n"
        "with progress.Progress('work') as call:\n"
        "    call.add(1)\n"
        "    progress._screen().look()\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_a_terminal_gets_one_line_of_its_width(monkeypatch):
    """The line is written over itself, and removed without a trace."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "60")
    place = Terminal()
    place.draw("work", 0.5, "1 of 2 rows  0:02")
    place.draw("work", None, "x" * 99)
    place.remove()
    first, second, last = stream.getvalue().split("\r\x1b[K")[1:]
    assert first == "work  [##########----------]  1 of 2 rows  0:02"
    assert second == f"work  {'x' * 99}"[:59]
    assert last == ""


def test_every_long_call_of_a_table_has_progress(core: CoreTables, monkeypatch):
    """Each with its text; a small write and a `get` have none."""
    texts: list[str] = []
    monkeypatch.setattr(Screen, "enter", lambda _screen, call: texts.append(call.text))

    def texts_of(call) -> list[str]:
        texts.clear()
        call()
        return list(dict.fromkeys(texts))

    table = core.client().create_table("t", {"k": [1], "v": [1.0]}, primary_key="k")
    assert texts_of(lambda: table.get(1)) == []
    written = ["write to table 't'"]
    assert texts_of(lambda: table.upsert([{"k": 1, "v": 2.0}, {"k": 2, "v": 2.0}])) == written
    assert texts_of(lambda: table.delete(where="k = 2"))[-1] == "write to table 't'"
    assert texts_of(lambda: table.scan().to_arrow()) == ["read of table 't'"]
    assert texts_of(table.scan().count) == ["count of table 't'"]
    file = core.root / "t.parquet"
    assert texts_of(lambda: table.scan().to_parquet(file)) == ["export to t.parquet"]
    assert texts_of(table.flush) == []
    session = kudulite.Session()
    session.apply(table.new_insert({"k": 3, "v": 3.0}))
    session.flush()
    assert texts_of(table.flush) == ["flush of table 't'"]
    assert texts_of(table.compact)[0] == "compaction of table 't'"
    maintained = texts_of(table.maintain)
    assert maintained[0] == "maintenance of table 't'" and "garbage collection" in maintained
    assert texts_of(table.check)[0] == "check of table 't'"
    copied = texts_of(lambda: table.copy_to(core.root / "root" / "u"))
    assert "copy of table 't'" in copied
    backup, restored = core.root / "backups", core.root / "root" / "w"
    assert "backup of table 't'" in texts_of(lambda: kudulite.backup(table, backup))
    assert texts_of(lambda: kudulite.verify_backups(backup))[0].startswith("verification of ")
    assert "restore of table 'w'" in texts_of(lambda: kudulite.restore(backup, restored))


def test_processes_of_multiprocessing_show_nothing(monkeypatch):
    """They share a terminal with the process that started them, which has a line of its own."""

    class OfTerminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", OfTerminal())
    assert isinstance(progress._place(), Terminal)
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object())
    assert progress._place() is None


def test_a_program_that_has_imported_the_kernel_is_no_notebook(monkeypatch):
    """Only a shell with a kernel shows HTML; a program would print it."""
    shells = iter([None, SimpleNamespace(), SimpleNamespace(kernel=None)])
    monkeypatch.setitem(sys.modules, "ipykernel", SimpleNamespace())
    python = SimpleNamespace(get_ipython=lambda: next(shells))
    monkeypatch.setitem(sys.modules, "IPython", python)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert [progress._place() for _ in range(3)] == [None] * 3
    python.get_ipython = lambda: SimpleNamespace(kernel=object())
    monkeypatch.setattr(progress, "Notebook", lambda: "a notebook")
    assert progress._place() == "a notebook"
