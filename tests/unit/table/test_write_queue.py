"""The queue of a tablet's row writers: everybody's item is taken once, in order, by somebody."""

import threading

from kudulite.table.write_queue import WriteQueue


def test_items_are_taken_in_order_and_once():
    """The thread that takes the items writes all of them; the next one finds only later items."""
    queue = WriteQueue()
    for item in "abc":
        queue.add(item)
    assert queue.take_all() == ["a", "b", "c"]
    queue.add("d")
    assert queue.take_all() == ["d"]
    assert queue.take_all() == []


def test_an_item_that_is_discarded_is_not_taken():
    """It is known by identity: equal ones stay. One that was taken already may be discarded."""
    queue, first, second = WriteQueue(), [1], [1]
    queue.add(first)
    queue.add(second)
    queue.discard(first)
    (left,) = queue.take_all()
    assert left is second
    queue.discard(second)
    assert queue.take_all() == []


def test_threads_lose_nothing():
    """Each of many items is in one thread's hands, and those of a thread stay in order."""
    queue, taken = WriteQueue(), []

    def work(number: int) -> None:
        for turn in range(100):
            queue.add((number, turn))
            with queue.turn:
                taken.extend(queue.take_all())

    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [(number, turn) for number in range(4) for turn in range(100)]
    for number in range(4):
        assert [item for item in taken if item[0] == number] == [(number, t) for t in range(100)]
