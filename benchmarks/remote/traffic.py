"""Traffic: the requests of a step by kind, their rounds, their bytes, and what they cost.

*Rounds* are the length of the longest row of requests each of which began when the one before had
been answered. Requests that are under way together are one round, whatever their number, so a step
takes at least its rounds × the delay of a request. Of intervals it is the greatest number that do
not overlap, which is found by always taking the one that ends first. A client that has only so many
connections has more rounds than its requests depend on each other: they did wait.

The kinds are those that S3 has prices for. LIST is a GET of a bucket; a POST that deletes many
objects is a DELETE; the requests of a multipart upload are POST and PUT. A request that its client
gave up or that was refused counts like others, and is in `refused` as well if its status is 400 or
more; S3 charges for most of them.

Prices are those of us-east-1 in 2026, for 1,000 requests, and for GB of bodies in Express One Zone.
Storage and traffic out of the region are not included.

**Source**: the pages on prices and the FAQ of Amazon S3.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from remote.proxy import Request

KINDS = ("GET", "PUT", "LIST", "HEAD", "DELETE", "POST")


@dataclass(frozen=True)
class Prices:
    """Dollars for 1,000 requests, by kind, and for a GB of bodies."""

    title: str
    by_kind: dict[str, float]
    gb_up: float = 0.0
    gb_down: float = 0.0


def _by_kind(writes: float, reads: float) -> dict[str, float]:
    return {"PUT": writes, "POST": writes, "LIST": writes, "GET": reads, "HEAD": reads}


STANDARD = Prices("S3 Standard", _by_kind(0.005, 0.0004))
EXPRESS = Prices("S3 Express One Zone", _by_kind(0.00113, 0.00003), gb_up=0.0032, gb_down=0.0006)


@dataclass(frozen=True)
class Traffic:
    """The requests of one run of a step."""

    kinds: dict[str, int]
    rounds: int
    bytes_up: int
    bytes_down: int
    refused: int

    @classmethod
    def of(cls, requests: list[Request]) -> Traffic:
        """Count the requests of a run."""
        counts = Counter(kind_of(request.method, request.target) for request in requests)
        return cls(
            kinds={kind: counts[kind] for kind in (*KINDS, *sorted(counts)) if counts[kind]},
            rounds=round_count(requests),
            bytes_up=sum(request.bytes_up for request in requests),
            bytes_down=sum(request.bytes_down for request in requests),
            refused=sum(request.status >= 400 for request in requests),
        )

    @property
    def requests(self) -> int:
        """The number of requests of all kinds."""
        return sum(self.kinds.values())

    def dollars(self, prices: Prices) -> float:
        """Return the price of this traffic."""
        by_kind = sum(prices.by_kind.get(kind, 0.0) * n for kind, n in self.kinds.items()) / 1_000
        return by_kind + (self.bytes_up * prices.gb_up + self.bytes_down * prices.gb_down) / 2**30


def kind_of(method: str, target: str) -> str:
    """Return one of KINDS, or another method."""
    path, _, query = target.partition("?")
    if method == "GET" and "/" not in path.strip("/"):
        return "LIST"
    names = {part.partition("=")[0] for part in query.split("&")}
    return "DELETE" if method == "POST" and "delete" in names else method


def round_count(requests: Iterable[Request]) -> int:
    """Return the length of the longest row of requests, each after the answer of the one before."""
    rounds, answered = 0, float("-inf")
    # One that is under way still ends last.
    by_end = sorted((float("inf") if r.end is None else r.end, r.begin) for r in requests)
    for end, begin in by_end:
        if begin >= answered:
            rounds, answered = rounds + 1, end
    return rounds


def figures(seconds: list[float], traffic: list[Traffic]) -> dict[str, Any]:
    """Return the figures of a step that was run several times: medians, and means of traffic."""
    count = len(traffic)

    def mean(numbers: Iterable[float]) -> float:
        return round(sum(numbers) / count, 3) if count else 0.0

    kinds = {kind: mean(one.kinds.get(kind, 0) for one in traffic) for kind in KINDS}
    return {
        "seconds": statistics.median(seconds),
        "seconds_longest": max(seconds),
        "repeats": len(seconds),
        "requests": mean(one.requests for one in traffic),
        "rounds": statistics.median(one.rounds for one in traffic) if traffic else 0,
        "rounds_most": max((one.rounds for one in traffic), default=0),
        "kinds": {kind: number for kind, number in kinds.items() if number},
        "refused": mean(one.refused for one in traffic),
        "mb_up": mean(one.bytes_up / 1e6 for one in traffic),
        "mb_down": mean(one.bytes_down / 1e6 for one in traffic),
        "dollars_per_1000": {
            prices.title: sum(one.dollars(prices) for one in traffic) / count * 1_000
            for prices in (STANDARD, EXPRESS)
            if count
        },
    }
