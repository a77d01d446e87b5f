"""Descriptors of a process that say something about itself.

Ray's processes hold connections to each other: the GCS one to five to every process of the cluster. Their number is the
number of those that live, which goes up and down with every tide and is bounded by itself. So connections to a process
that lives count only from the sixth on; all that have lost their other end, and all other descriptors, count as they
are.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psutil

PER_PEER = 5  # the most that two processes of Ray 2.60 were seen to hold (raylet and dashboard agent, 2026-11-22)

Address = tuple[str, int]  # psutil's are named tuples


@dataclass(frozen=True, slots=True)
class Connection:
    """One end of a TCP connection on this machine."""

    pid: int | None  # None: of nobody any more, or not of ours
    here: Address
    there: Address


def connections() -> list[Connection]:
    """All on this machine."""
    return [
        Connection(one.pid, one.laddr, one.raddr) for one in psutil.net_connections("tcp") if one.laddr and one.raddr
    ]


def to_the_living(found: Iterable[Connection]) -> Mapping[int, int]:
    """By pid: connections to processes that live, up to `PER_PEER` to each."""
    ends = list(found)
    owners = {(one.here, one.there): one.pid for one in ends}
    pairs: Counter[tuple[int, int]] = Counter()
    for one in ends:
        other = owners.get((one.there, one.here))
        if one.pid is not None and other is not None and other != one.pid:
            pairs[one.pid, other] += 1
    total: Counter[int] = Counter()
    for (pid, _), count in pairs.items():
        total[pid] += min(count, PER_PEER)
    return total
