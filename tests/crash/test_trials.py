"""The runner of the trials notices every way in which a seed can fail, and continues records."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support import trials
from tests.support.trials import Trial, recorded, run_trials


def run(folder: Path, count: int = 10, **options: Any) -> trials.Run:
    """Run the trial `made` from seed 1 on."""
    return run_trials("made", count, first_seed=1, processes=2, folder=folder, **options)


def put(monkeypatch: pytest.MonkeyPatch, work: Any) -> None:
    """Make `work` the trial of the name `made`."""
    monkeypatch.setitem(trials.TRIALS, "made", Trial(work, 1, 1))


def test_a_run_ends_at_its_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, lambda folder, seed: seed)
    done = run(tmp_path)
    assert done.count == sum(done.seeds) >= 10


def test_a_record_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, lambda folder, seed: 1)
    record = tmp_path / "counts.json"
    first = run(tmp_path, 3, record=record)
    assert first.seeds == {1, 2, 3}
    # A seed that has ended is not run again.
    put(monkeypatch, lambda folder, seed: 1 if seed > 3 else 1 / 0)
    assert run(tmp_path, 7, record=record).seeds == set(range(1, 8))
    assert recorded(record)["made"].seeds == set(range(1, 8))
    assert recorded(record)["made"].count == 7


def test_seeds_are_written_as_ranges(tmp_path: Path) -> None:
    record = tmp_path / "counts.json"
    for seeds in ({5}, {1, 2, 3, 7, 9, 10}, set()):
        trials.note(trials.Run("made", 4, 2.0, set(seeds)), record)
        assert recorded(record)["made"].seeds == seeds
    trials.note(trials.Run("other", 1, 1.0, {1, 2, 4}), record)
    assert '"1-2, 4"' in record.read_text() and len(recorded(record)) == 2


def _killed(folder: Path, seed: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 1


def _waiting(folder: Path, seed: int) -> int:
    signal.pause()
    return 1


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (lambda folder, seed: 1 // (seed - 2), "seed 2: .*ZeroDivisionError"),
        (_killed, "ended with -9"),
        (_waiting, "no end after 1 s"),
    ],
    ids=["wrong", "killed", "hangs"],
)
def test_a_seed_that_fails_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Any, said: str
) -> None:
    put(monkeypatch, work)
    if work is _waiting:  # the others end by themselves, on a busy machine too
        monkeypatch.setattr(trials, "SEED_SECONDS_MAX", 1.0)
    with pytest.raises(AssertionError, match=f"(?s)made, {said}" if "seed" in said else said):
        run(tmp_path)
