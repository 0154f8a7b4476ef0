"""How a program goes on where a store gives no answer: it asks again, and looks before it acts.

    again(work)          of work that changes nothing, or may be done twice
    once(store, work)    of work that must be done once; it gives a `Done` where it was not answered
    flush_once(…)        of a session's flush
    take(…)              of a step of a random machine

An operation that was not answered may be done, or still under way. The next entry of the chain
decides it: after that, it is in the chain or will never be. Where the storage has no such faults,
all do their work and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kudulite.chain.manifest import Manifest
from kudulite.chain.record_entry import RecordEntry
from kudulite.client.row_operations import WriteOperation
from kudulite.client.session import Session
from kudulite.errors import KuduliteError, RowError
from kudulite.storage.names import MANIFEST_FOLDER, version_name
from kudulite.table.table_store import TableStore
from tests.support.doubles.base_storage import LIBRARY
from tests.support.doubles.faulty_library import NO_ANSWER

T = TypeVar("T")
_TRIES_MAX = 100


def is_unanswered(error: BaseException | None) -> bool:
    """Whether an error is that of a store that has not answered."""
    return NO_ANSWER in str(error)


def again(work: Callable[[], T]) -> T:
    """Return what work does, which is begun again while the store does not answer."""
    for _ in range(_TRIES_MAX):
        try:
            return work()
        except KuduliteError as error:
            if not is_unanswered(error):
                raise
            last = error
    raise AssertionError(f"no answer in {_TRIES_MAX} tries") from last


@dataclass(frozen=True)
class Done:
    """Work that was done and not answered: its commit's time."""

    timestamp: int


def once(store: TableStore, work: Callable[[], T]) -> T | Done:
    """Return what work does, which is begun again while it is known not to be done."""
    for _ in range(_TRIES_MAX):
        number = _last_number(store)
        try:
            return work()
        except KuduliteError as error:
            if not is_unanswered(error):
                raise
        if timestamp := _decided(store, number):
            return Done(timestamp)
    raise AssertionError(f"no answer in {_TRIES_MAX} tries")


@dataclass
class Flushed:
    """The outcome of operations of a session, by their places; several commits where it failed.

    Of operations that were `unanswered` nobody knows whether they were refused.
    """

    reasons: dict[int, str] = field(default_factory=dict)
    timestamps: dict[int, int] = field(default_factory=dict)
    unanswered: set[int] = field(default_factory=set)

    def known(self, reasons: Mapping[int, str]) -> dict[int, str]:
        """Those of all reasons that can be known."""
        return {place: why for place, why in reasons.items() if place not in self.unanswered}


def flush_once(store: TableStore, session: Session, made: Sequence[WriteOperation]) -> Flushed:
    """Flush operations of a table that were applied, and again those that were not written.

    A tablet that cannot be read does not keep the rows of others from being written.
    """
    found, places = Flushed(), {id(operation): place for place, operation in enumerate(made)}
    left = set(range(len(made)))
    for _ in range(_TRIES_MAX):
        number = _last_number(store)
        is_raised = False
        try:
            session.flush()
        except KuduliteError as error:
            if not isinstance(error, RowError) and not is_unanswered(error):
                raise
            is_raised = True
        errors, _ = session.get_pending_errors()
        by_place = {places[id(error.operation)]: error for error in errors}
        failed = {place for place, error in by_place.items() if error.error is not None}
        reasons = {p: error.reason for p, error in by_place.items() if p not in failed}
        assert is_raised == bool(errors), "a flush raises if there are errors"
        found.reasons |= reasons
        written = left - by_place.keys()
        found.timestamps |= dict.fromkeys(written, session.last_timestamp or 0)
        if not failed:
            return found
        timestamp = _decided(store, number)
        if timestamp and failed == left:
            found.timestamps |= dict.fromkeys(left, timestamp)
            found.unanswered = left
            return found
        left = failed
        for place in sorted(left):
            session.apply(made[place])
    raise AssertionError(f"no answer in {_TRIES_MAX} tries")


def take(
    name: str, step: Callable[[], None], *, faultless: Collection[str], decided: Collection[str]
) -> None:
    """Take a step: without faults, or once as it decides itself what was done, or again."""
    if name in faultless:
        with LIBRARY.without_faults():
            step()
    elif name in decided:
        step()
    else:
        again(step)


def _decided(store: TableStore, number: int) -> int:
    """Make an entry, and return the time of what was done behind a number; 0 where nothing was."""
    again(lambda: store.in_turn("decision", store.log.fence))
    return max(_user_timestamp(store, n) for n in _numbers(store) if n > number)


def _last_number(store: TableStore) -> int:
    """The number of the newest entry; 0 where nothing is unanswered."""
    return _numbers(store)[-1] if LIBRARY.is_used else 0


def _numbers(store: TableStore) -> list[int]:
    """The numbers of the chain's entries, which are files, without a request."""
    names = (path.stem for path in (store.place / MANIFEST_FOLDER).iterdir())
    return sorted(int(name) for name in names if name.isdecimal())


def _user_timestamp(store: TableStore, number: int) -> int:
    """The time of an entry's rows, or of a version of users; 0 of any other entry."""
    path = store.place / MANIFEST_FOLDER / version_name(number)
    content = path.read_bytes()
    record = RecordEntry.decode(content, str(path))
    if record is not None:
        return max((commit.timestamp for commit in record.decode_commits(str(path))), default=0)
    users = Manifest.decode(content, str(path)).versions.users
    return max((row[1] for row in users if row[0] == number), default=0)
