"""What an endpoint's demand was, in bins of five minutes: what a forecast is made from. Pure.

Demand is in requests at work or waiting (their number needs no model of the engine, and Little's law makes it arrivals
times the time that each takes); any other unit does as well, as long as it stays one.

A bin in which the gateways were silent for most of the time has no value: unknown is neither zero nor as before.
"""

from collections.abc import Sequence
from dataclasses import dataclass

BIN_S = 300.0  # as fine as replicas start (a cold one takes minutes), as coarse as 2016 to a week
KEPT = 2 * 7 * 288  # bins: the week before, and what it takes to tell how good its word was
HEARD = 0.5  # a bin counts if it was heard for at least this share of it


@dataclass(frozen=True, slots=True)
class Bin:
    """Demand in one bin.

    Attributes:
        mean: over the time that was heard.
        peak: the highest that was heard.
        per_s: requests that arrived each second, likewise a mean; 0: nobody said. No forecast looks at it: with it a
            replay knows how long each took.
    """

    mean: float
    peak: float
    per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Demand:
    """An endpoint's bins without a gap: bin ``first + n`` is ``bins[n]``; None: unknown.

    ``first`` counts bins since 1970, so that bins of different endpoints, and of yesterday, are found by number.
    """

    first: int = 0
    bins: tuple[Bin | None, ...] = ()

    @property
    def end(self) -> int:
        """The number of the first bin that is not there yet."""
        return self.first + len(self.bins)


@dataclass(frozen=True, slots=True)
class OpenBin:
    """The bin that is being filled."""

    number: int
    heard_s: float = 0.0
    area: float = 0.0  # demand times seconds
    peak: float = 0.0
    arrived: float = 0.0  # requests

    def closed(self) -> Bin | None:
        """As it is kept."""
        if self.heard_s < HEARD * BIN_S:
            return None
        return Bin(self.area / self.heard_s, self.peak, self.arrived / self.heard_s)


def bin_of(now_s: float) -> int:
    """The number of the bin in which a moment (seconds since 1970) lies."""
    return int(now_s // BIN_S)


def add_sample(
    open_bin: OpenBin | None, demand: float, *, since_s: float, now_s: float, per_s: float = 0.0
) -> tuple[OpenBin, list[OpenBin]]:
    """Take in that demand was so from ``since_s`` until now.

    Args:
        open_bin: what the last call returned; None: nothing was heard yet.
        demand: not negative.
        since_s: when it was heard last before; a time before ``open_bin`` counts for nothing.
        now_s: not before ``since_s``.
        per_s: requests that arrived each second meanwhile.

    Returns:
        The bin that is open now, and those that were closed, oldest first. Bins in between of which nothing was heard
        are in neither: the numbers of the others tell, and a clock that is set ahead by decades passes millions.
    """
    if demand < 0:
        raise ValueError(f"demand of {demand}: it is a number of requests")
    one = open_bin or OpenBin(bin_of(since_s))
    closed: list[OpenBin] = []
    while True:
        begin_s, end_s = one.number * BIN_S, (one.number + 1) * BIN_S
        here_s = min(now_s, end_s) - max(since_s, begin_s)
        if here_s > 0:
            one = OpenBin(
                one.number,
                heard_s=one.heard_s + here_s,
                area=one.area + demand * here_s,
                peak=max(one.peak, demand),
                arrived=one.arrived + per_s * here_s,
            )
        if now_s < end_s:
            return one, closed
        closed.append(one)
        one = OpenBin(max(one.number + 1, bin_of(since_s)))


def grow(demand: Demand, closed: Sequence[tuple[int, Bin | None]]) -> Demand:
    """With further bins, each with its number, in order. A gap before one is unknown; one that is there is kept."""
    bins, first = list(demand.bins), demand.first if demand.bins else (closed[0][0] if closed else 0)
    for number, value in closed:
        missing = number - (first + len(bins))
        if missing < 0:
            continue
        if missing > KEPT:  # nothing of before would be left
            bins, first, missing = [], number, 0
        bins += [None] * missing + [value]
    cut = max(0, len(bins) - KEPT)
    return Demand(first + cut, tuple(bins[cut:]))
