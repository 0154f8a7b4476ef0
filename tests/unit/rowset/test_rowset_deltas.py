"""The newest overlay is made once; of the past, one moment is kept."""

from kudulite.delta.delta_applier import DeltaApplier
from kudulite.rowset.rowset_deltas import ApplierMemo


def test_an_overlay_is_made_once_for_all_that_is_the_same():
    """From the newest change on, whatever the moment; before it, as long as one moment is asked."""
    made: list[int] = []

    def fold(timestamp: int) -> DeltaApplier:
        made.append(timestamp)
        return DeltaApplier((), timestamp)

    memo = ApplierMemo(10)
    assert memo.at(10, fold) is memo.at(99, fold)
    assert memo.at(5, fold) is memo.at(5, fold)
    assert memo.at(6, fold) is not memo.at(5, fold)
    assert memo.at(11, fold) is memo.at(10, fold)
    assert made == [10, 5, 6, 5]
