"""Progress of a long call: a line on a terminal, or a bar in a notebook, once it takes two seconds.

    with Progress("write to table 'flights'", total=7_000_000) as progress:
        progress.add(65_536)

    write to table 'flights'  [######--------------]  2,311,420 of 7,000,000 rows  0:09

Calls that end within two seconds show nothing, and so does every call if standard error is neither
a terminal nor that of a notebook. The line is removed at the end of the call. Of calls within a
call the innermost gives the figures. Only calls of the main thread are shown: those of background
work, or of a server's workers, would write over each other. For the same reason processes that
`multiprocessing` has started show nothing.

A thread draws four times a second while there is a call to show, and sleeps otherwise. No call
waits for the drawing.

**Threads**: a `Progress` belongs to the thread that entered it. The drawing thread only reads it.
The lock of a screen is held while it draws, and to remove the line. A forked child begins without
the thread.
"""

from __future__ import annotations

import functools
import html
import importlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from os import register_at_fork
from typing import Any, TypeVar

SHOWN_AFTER_SECONDS = 2.0
INTERVAL_SECONDS = 0.25
_BAR_CELLS = 20
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

T = TypeVar("T")


class Progress:
    """One call: its text, the number of units done, and their total if that is known."""

    def __init__(self, text: str, total: int | None = None, unit: str = "rows") -> None:
        self.text, self.total, self.unit = text, total, unit
        self.done = 0
        self.begin = 0.0
        self.outer: Progress | None = None
        self._screen = _screen()

    def __enter__(self) -> Progress:
        self._screen.enter(self)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._screen.leave(self)

    def say(self, text: str) -> None:
        """Replace the text."""
        self.text = text

    def add(self, count: int) -> None:
        """Add units that were done, also to the call around this one if it counts the same."""
        self.done += count
        if self.outer is not None and self.outer.unit == self.unit:
            self.outer.add(count)

    def report(self, done: int, total: int) -> None:
        """Set how many units of all were done."""
        self.done, self.total = done, total

    def counted(self, items: Iterable[T], size_of: Callable[[T], int]) -> Iterator[T]:
        """Yield the items; each is added when the consumer comes back for the next one."""
        for item in items:
            yield item
            self.add(size_of(item))

    @property
    def share(self) -> float | None:
        """The share that is done, from 0 to 1; None if it is not known."""
        return min(1.0, self.done / self.total) if self.total else None

    @property
    def figures(self) -> str:
        """The units done and their total as text; empty if nothing is counted."""
        if not self.done and not self.total:
            return ""
        known = [count for count in (self.done, self.total) if count is not None]
        if self.unit == "bytes":
            return " of ".join(map(byte_text, known))
        return f"{' of '.join(f'{count:,}' for count in known)} {self.unit}"


def byte_text(count: int) -> str:
    """Return a number of bytes as text for people: `12.3 MiB`."""
    size, unit = float(count), 0
    while size >= 1024 and unit + 1 < len(_BYTE_UNITS):
        size, unit = size / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{size:.1f} {_BYTE_UNITS[unit]}"


class Terminal:
    """Draws a call as the last line of a terminal."""

    def draw(self, text: str, share: float | None, figures: str) -> None:
        """Draw the line over the one before."""
        bar = ""
        if share is not None:
            full = int(share * _BAR_CELLS)
            bar = f"  [{'#' * full}{'-' * (_BAR_CELLS - full)}]"
        columns = shutil.get_terminal_size().columns
        self._write(f"\r\x1b[K{f'{text}{bar}  {figures}'[: columns - 1]}")

    def remove(self) -> None:
        """Remove the line."""
        self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):
            pass  # the terminal is gone, and the call must not fail for that


class Notebook:
    """Draws a call as HTML below the cell that runs."""

    def __init__(self) -> None:
        display: Any = importlib.import_module("IPython.display")
        self._handle = display.DisplayHandle()
        self._is_new = True

    def draw(self, text: str, share: float | None, figures: str) -> None:
        """Replace what is shown."""
        value = "" if share is None else f" value='{share:.3f}'"
        line = f"<progress{value}></progress> {html.escape(f'{text}  {figures}')}"
        self._show({"text/html": line, "text/plain": f"{text}  {figures}"})

    def remove(self) -> None:
        """Leave nothing that is seen."""
        self._show({"text/html": "", "text/plain": ""})

    def _show(self, content: dict[str, str]) -> None:
        show = self._handle.display if self._is_new else self._handle.update
        self._is_new = False
        show(content, raw=True)


def _place() -> Terminal | Notebook | None:
    """Return where a call that begins now is shown, if it is."""
    # A process that multiprocessing has started has imported it.
    processes = sys.modules.get("multiprocessing")
    if processes is not None and processes.parent_process() is not None:
        return None
    # Libraries import IPython and its kernel in programs that are none.
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is not None:
        return Notebook()
    stream = sys.stderr
    return Terminal() if stream is not None and stream.isatty() else None


class Screen:
    """The calls of the main thread, from the outermost in, and the thread that shows them."""

    def __init__(
        self,
        place: Callable[[], Terminal | Notebook | None] = _place,
        now: Callable[[], float] = time.monotonic,
        *,
        has_thread: bool = True,
    ) -> None:
        self._find_place, self._now, self._has_thread = place, now, has_thread
        self._calls: list[Progress] = []
        self._place: Terminal | Notebook | None = None
        self._is_drawn = False
        self._lock = threading.Lock()
        self._is_wanted = threading.Event()
        self._thread: threading.Thread | None = None

    def enter(self, call: Progress) -> None:
        """Begin a call, if it is to be shown."""
        if threading.current_thread() is not threading.main_thread():
            return
        call.begin = self._now()
        if not self._calls:
            self._place = self._find_place()
            if self._place is None:
                return
            if self._has_thread and self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="kudulite-progress", daemon=True
                )
                self._thread.start()
            call.outer = None
        else:
            call.outer = self._calls[-1]
        self._calls.append(call)
        if not self._is_wanted.is_set():
            self._is_wanted.set()

    def leave(self, call: Progress) -> None:
        """End a call and those inside it; the outermost takes the line along."""
        if call not in self._calls:
            return
        with self._lock:
            del self._calls[self._calls.index(call) :]
            if self._is_drawn and not self._calls and self._place is not None:
                self._place.remove()
                self._is_drawn = False

    def look(self) -> None:
        """Draw the calls, if the outermost takes long enough."""
        with self._lock:
            calls = self._calls[:]
            if not calls or self._place is None:
                return
            seconds = self._now() - calls[0].begin
            if seconds < SHOWN_AFTER_SECONDS:
                return
            counting = max(reversed(calls), key=lambda c: (c.share is not None, bool(c.figures)))
            texts = dict.fromkeys((calls[0].text, calls[-1].text))
            elapsed = f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
            figures = "  ".join(part for part in (counting.figures, elapsed) if part)
            self._is_drawn = True
            self._place.draw(": ".join(texts), counting.share, figures)

    def _run(self) -> None:
        while True:
            self._is_wanted.wait()
            while self._calls:
                time.sleep(INTERVAL_SECONDS)
                self.look()
            self._is_wanted.clear()
            if self._calls:  # it began between the two lines above
                self._is_wanted.set()


@functools.cache
def _screen() -> Screen:
    """Return the screen of this process, made at first use."""
    return Screen()


register_at_fork(after_in_child=_screen.cache_clear)
