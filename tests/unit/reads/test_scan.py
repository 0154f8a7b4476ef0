"""Reading ahead in threads."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pyarrow as pa

from kudulite.reads.scan import read_ahead

BATCH = pa.record_batch({"k": [1]})


@dataclass
class HeldRead:
    """A read that ends when it may."""

    may_end: threading.Event
    ended: list[bool]
    is_short = False

    def run(self) -> pa.RecordBatch:
        """Wait until it may, for half a minute at most."""
        self.may_end.wait(30)
        self.ended.append(self.may_end.is_set())
        return BATCH


def test_a_reading_that_is_left_waits_for_no_thread():
    """Its generator may be closed by the garbage collector, in the midst of a thread's start."""
    released, held, ended = threading.Event(), threading.Event(), list[bool]()
    released.set()
    batches = read_ahead([HeldRead(released, []), *[HeldRead(held, ended)] * 20])
    assert next(batches) is BATCH
    batches.close()
    assert ended == []
    held.set()
