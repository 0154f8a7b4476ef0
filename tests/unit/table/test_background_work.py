"""Work in the background: each piece once, when it is due, again after an error, in one thread."""

import errno
import itertools
import logging
import os
import signal
import threading
from collections.abc import Callable

import pytest

from kudulite.errors import StorageError
from kudulite.table import background_work
from kudulite.table.background_work import BackgroundWork

WAIT_SECONDS = 60.0


class Desk:
    """Background work under a clock that the test moves, and a list of what was done."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.work = BackgroundWork(lambda: self.seconds)
        self.done: list[str] = []

    def note(self, name: str) -> Callable[[], object]:
        """A piece of work that notes its name."""
        return lambda: self.done.append(name)

    def schedule(self, *names: str, delay_seconds: float) -> None:
        """Schedule pieces of these names."""
        for name in names:
            self.work.schedule(name, self.note(name), delay_seconds)

    def look(self) -> list[str]:
        """The work done so far. All earlier work is done before work that is due now."""
        reached = threading.Event()
        self.work.schedule("look", reached.set, 0)
        assert reached.wait(WAIT_SECONDS)
        done, self.done[:] = list(self.done), []
        return done


def test_a_piece_is_done_when_it_is_due():
    """Not before, in the order of their times, and once."""
    desk = Desk()
    desk.schedule("late", delay_seconds=200)
    desk.schedule("soon", delay_seconds=100)
    assert desk.look() == []
    desk.seconds = 100
    assert desk.look() == ["soon"]
    desk.seconds = 300
    assert desk.look() == ["late"]
    assert desk.look() == []


def test_pieces_of_one_key_are_one_piece_at_the_earlier_time():
    """Whichever came first."""
    desk = Desk()
    for first, second in ((100, 200), (200, 100)):
        desk.seconds = 0
        desk.schedule("a", delay_seconds=first)
        desk.schedule("a", delay_seconds=second)
        desk.seconds = 100
        assert desk.look() == ["a"]
        desk.seconds = 300
        assert desk.look() == []


def test_a_piece_can_be_scheduled_while_it_runs():
    """It is done once more: what came meanwhile may have been too late for it."""
    desk = Desk()
    ended = threading.Event()

    def again() -> None:
        desk.done.append("first")
        desk.work.schedule("a", second, 0)

    def second() -> None:
        desk.done.append("second")
        ended.set()

    desk.work.schedule("a", again, 0)
    assert ended.wait(WAIT_SECONDS)
    assert desk.look() == ["first", "second"]


@pytest.mark.parametrize("error", [StorageError(28, "disk full"), ZeroDivisionError("a bug")])
def test_a_piece_that_fails_is_done_again_later(error, caplog: pytest.LogCaptureFixture):
    """The log says why; the other pieces are done in time, whatever the error is."""
    desk = Desk()
    errors = [error]

    def fails_once() -> None:
        desk.done.append("try")
        if errors:
            raise errors.pop()

    desk.work.schedule("a", fails_once, 0)
    desk.schedule("b", delay_seconds=0)
    assert desk.look() == ["try", "b"]
    assert str(error) in caplog.text
    desk.seconds = background_work.RETRY_SECONDS / 2
    assert desk.look() == []
    desk.seconds = background_work.RETRY_SECONDS
    assert desk.look() == ["try"]
    desk.seconds *= 3
    assert desk.look() == []


@pytest.mark.parametrize("is_done_by_a_caller", [False, True])
def test_an_error_that_lasts_is_logged_once_and_so_is_its_end(
    is_done_by_a_caller: bool, caplog: pytest.LogCaptureFixture
):
    """As warnings, with the table that it is of; the tries in between are not."""
    desk = Desk()
    errors = [StorageError(errno.EIO, f"no store, try {number}") for number in range(4)]

    def fails() -> None:
        if errors:
            raise errors.pop(0)

    def warnings() -> list[str]:
        return [record.message for record in caplog.records if record.levelname == "WARNING"]

    caplog.set_level(logging.INFO, background_work.__name__)
    desk.work.schedule(("/tables/t", "flush"), fails, 0)
    while errors:
        desk.look()
        desk.seconds += 1000
    assert warnings() == [
        "background work of /tables/t flush, tried again in 10 s: [Errno 5] no store, try 0"
    ]
    assert len(caplog.records) == 4
    if is_done_by_a_caller:
        desk.work.run_now(lambda key: True)
    desk.look()
    assert warnings()[1:] == ["background work of /tables/t flush succeeds again"]
    desk.work.schedule(("/tables/t", "flush"), fails, 0)
    desk.look()
    assert len(warnings()) == 2


@pytest.mark.parametrize("is_done_by_a_caller", [False, True])
def test_a_piece_that_fails_again_waits_longer_each_time(is_done_by_a_caller: bool):
    """Up to some minutes, and from the beginning once it has been done."""
    desk = Desk()
    errors = [StorageError(errno.ENOSPC, "full")] * 9
    tries = []

    def fails() -> None:
        tries.append(desk.seconds)
        if errors:
            raise errors.pop()

    def run() -> None:
        desk.work.schedule("a", fails, 0)
        while "a" in desk.work._pieces:
            desk.look()
            desk.seconds += 10

    run()
    waits = [after - before for before, after in itertools.pairwise(tries)]
    assert waits == [10, 20, 40, 80, 160, 320, 640, 640, 640]
    if is_done_by_a_caller:
        errors.append(StorageError(errno.ENOSPC, "full"))
        desk.work.schedule("a", fails, 0)
        desk.look()
        desk.work.run_now(lambda key: True)
    errors.append(StorageError(errno.ENOSPC, "full"))
    tries.clear()
    run()
    assert tries[1] - tries[0] == 10


def test_the_thread_ends_with_the_last_piece_and_comes_back():
    """A process without work has no thread of ours; it is a daemon."""
    desk = Desk()
    threads = []
    for _ in range(2):
        desk.work.schedule("a", lambda: threads.append(threading.current_thread()), 0)
        while desk.work._thread is not None:
            threads[-1:] and threads[-1].join(WAIT_SECONDS)
    assert [thread.is_alive() for thread in threads] == [False, False]
    assert [thread.daemon for thread in threads] == [True, True]
    assert threads[0] is not threads[1]


# -- now


def test_a_thread_that_cannot_be_had_is_started_by_the_next_piece(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """At the limit of threads, or as the interpreter ends: it is logged and nothing is lost."""
    caplog.set_level(logging.INFO, background_work.__name__)
    desk = Desk()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        desk.schedule("early", delay_seconds=0)
    assert "can't start new thread" in caplog.text
    assert not desk.work.is_scheduled("early")
    assert desk.look() == ["early"]


def test_run_now_does_wanted_pieces_in_the_callers_thread():
    """Once; the others stay."""
    desk = Desk()
    desk.schedule("a1", "b", "a2", delay_seconds=100)
    threads = []
    desk.work.schedule("a3", lambda: threads.append(threading.current_thread()), 100)
    desk.work.run_now(lambda key: key.startswith("a"))
    assert (desk.done, threads) == (["a1", "a2"], [threading.current_thread()])
    desk.seconds = 100
    assert desk.look() == ["a1", "a2", "b"]


def test_run_now_raises_and_keeps_what_is_not_done():
    """The failed piece and those behind it are done in the background, later."""
    desk = Desk()
    errors = [StorageError(5, "no disk")]

    def fails_once() -> None:
        if errors:
            raise errors.pop()
        desk.done.append("b")

    desk.schedule("a", delay_seconds=100)
    desk.work.schedule("b", fails_once, 100)
    desk.schedule("c", delay_seconds=100)
    with pytest.raises(StorageError, match="no disk"):
        desk.work.run_now(lambda key: True)
    assert desk.look() == ["a"]
    desk.seconds = background_work.RETRY_SECONDS
    assert desk.look() == ["b", "c"]


def test_run_now_waits_for_a_wanted_piece_that_runs():
    """When it returns, all that was scheduled before is done."""
    desk = Desk()
    started, may_end, asked = threading.Event(), threading.Event(), threading.Event()

    def slow() -> None:
        started.set()
        may_end.wait(WAIT_SECONDS)
        desk.done.append("slow")

    def is_wanted(key: object) -> bool:
        asked.set()
        return key == "slow"

    desk.work.schedule("slow", slow, 0)
    assert started.wait(WAIT_SECONDS)
    desk.work.run_now(lambda key: key == "another")  # of which nothing runs
    ended = []
    thread = threading.Thread(target=lambda: ended.append(desk.work.run_now(is_wanted)))
    thread.start()
    assert asked.wait(WAIT_SECONDS)
    assert (desk.done, ended) == ([], [])
    may_end.set()
    thread.join()
    assert desk.done == ["slow"]


# -- forks


def in_child(action: Callable[[], bool]) -> bool:
    """Whether an action is true in a forked child; an alarm kills a child that hangs."""
    child = os.fork()
    if child == 0:
        signal.alarm(int(WAIT_SECONDS))
        result = 1
        try:
            result = 0 if action() else 1
        finally:
            os._exit(result)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_child_begins_with_an_empty_list():
    """The parent does what it scheduled; a child's own work is done, though a thread of the parent
    has the lock at the moment of the fork."""
    desk = Desk()
    desk.schedule("of the parent", delay_seconds=100)

    def child() -> bool:
        desk.work.run_now(lambda key: True)
        desk.seconds = 200
        desk.schedule("of the child", delay_seconds=0)
        return desk.look() == ["of the child"]

    held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with desk.work._changed:
            held.set()
            may_end.wait(WAIT_SECONDS)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(WAIT_SECONDS)
    is_right = in_child(child)
    may_end.set()
    thread.join()
    assert is_right
    desk.seconds = 100
    assert desk.look() == ["of the parent"]
