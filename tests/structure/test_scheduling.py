"""Files that start Spark are given to few workers, and every test is run once, in any order."""

import random
from types import SimpleNamespace

import pytest
from xdist.remote import Producer

from tests.support.scheduling import STARTS_SPARK, FewSparkWorkers, spark_worker_count
from tests.support.tiers import half_of


class Worker:
    """A worker that runs a test only when it has another one, or is shut down."""

    def __init__(self) -> None:
        self.gateway = SimpleNamespace(id="gw")
        self.queue: list[int] = []
        self.shutting_down = self.starts_spark = False

    def send_runtest_some(self, indexes: list[int]) -> None:
        """More to do."""
        assert not self.shutting_down
        self.queue += indexes

    def shutdown(self) -> None:
        """No more to do."""
        self.shutting_down = True

    @property
    def is_ready(self) -> bool:
        """Whether it can run a test now."""
        return len(self.queue) > (0 if self.shutting_down else 1)


def scheduler_of(worker_count: int, spark_workers: int) -> FewSparkWorkers:
    """A scheduler for so many workers."""
    config = SimpleNamespace(
        getvalue=lambda name: [f"{worker_count}*popen"],
        option=SimpleNamespace(loadscopereorder=False),
    )
    return FewSparkWorkers(config, Producer("", enabled=False), spark_workers)


def joined(scheduler: FewSparkWorkers, tests: list[str]) -> Worker:
    """A new worker that has collected these tests."""
    worker = Worker()
    scheduler.add_node(worker)
    scheduler.add_node_collection(worker, tests)
    return worker


@pytest.mark.parametrize("spark_workers", [1, 2])
@pytest.mark.parametrize("worker_count", [1, 2, 3, 5])
def test_every_test_runs_once_and_few_workers_start_spark(worker_count, spark_workers):
    """Whichever worker is faster."""
    for seed in range(30):
        chance = random.Random(seed)
        folders = ["tests/spark/", "tests/spark/", "tests/unit/"][: chance.randint(1, 3)]
        tests = [
            f"{chance.choice(folders)}test_{number}.py::test_{case}"
            for number in range(chance.randint(1, 12))
            for case in range(chance.randint(1, 6))
        ]
        tests.sort(key=lambda test: not test.startswith(STARTS_SPARK))
        scheduler = scheduler_of(worker_count, spark_workers)
        workers = [joined(scheduler, tests) for _ in range(worker_count)]
        scheduler.schedule()
        done: list[str] = []
        while not scheduler.tests_finished or any(worker.is_ready for worker in workers):
            if scheduler.tests_finished:
                for worker in workers:
                    worker.shutdown()
            worker = chance.choice([worker for worker in workers if worker.is_ready])
            index = worker.queue.pop(0)
            worker.starts_spark |= tests[index].startswith(STARTS_SPARK)
            done.append(tests[index])
            scheduler.mark_test_complete(worker, index)
            assert sum(worker.starts_spark for worker in workers) <= spark_workers, seed
        assert sorted(done) == sorted(tests), seed


def test_the_place_of_a_worker_that_has_crashed_is_free():
    """Its files are given to another one."""
    tests = [f"tests/spark/test_{n}.py::test_{case}" for n in range(3) for case in range(3)]
    scheduler = scheduler_of(2, 1)
    first, second = joined(scheduler, tests), joined(scheduler, tests)
    scheduler.schedule()
    assert first.queue and second.shutting_down and not second.queue
    assert scheduler.remove_node(first) == tests[0]
    third = joined(scheduler, tests)
    scheduler.schedule()
    assert third.queue


@pytest.mark.parametrize(("tier", "count"), [("full", {1, 2}), ("not full", {1})])
def test_the_quick_tier_has_one_session(tier, count):
    """The full tier has two where the memory suffices."""
    assert spark_worker_count(SimpleNamespace(getoption=lambda name: tier)) in count


def test_a_half_has_about_half_of_the_tests():
    """A test is always in the same one, whichever process asks."""
    names = [
        f"tests/unit/model/test_{letter}.py::test_it[{n}]" for letter in "ab" for n in range(99)
    ]
    halves = [half_of(name) for name in names]
    assert set(halves) == {0, 1} and 80 < sum(halves) < 118
    assert half_of("tests/unit/model/test_a.py::test_it[0]") == 0
