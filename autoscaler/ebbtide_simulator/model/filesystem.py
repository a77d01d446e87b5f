"""The shared filesystem of a simulated pool: who moves many bytes at once makes the others wait. Pure.

Two classes, as `ebbtide.storage.bandwidth.rate_scheduler` has them: weights of replicas go before what jobs read and
write, which keep a small share. Within a class all transfers are equally fast (processor sharing). Nothing is put on an
agenda: a transfer knows when it has ended once somebody has asked about a later moment, so one that nobody waits for
costs next to nothing.

Not modelled: links and disks of single nodes, the filesystem's servers, and checkpoints of jobs that train on; these
are 16 GB a GPU every half an hour, a hundredth of what is assumed here.
"""

import heapq
from dataclasses import dataclass

from ebbtide.storage.bandwidth.rate_scheduler import SHARES, TrafficClass

# One client of eight GPUs loads from such storage with 45 of 50 GB/s (InstantTensor, DeepSeek-R1 on 8 H200), and eight
# such nodes are taken to share it. 3FS has six times as much for each of its 180 nodes.
NODE_BYTES_PER_S = 50e9 / 8
ASSUMED_BYTES_PER_S = 50e9  # by which `Times` reckons already: only what takes longer is added to it
AGAIN_S = 0.05  # how soon to look again, at the soonest
SERVING, TRAINING = 0, 1
_KEPT = SHARES[TrafficClass.CHECKPOINT_WRITE]


@dataclass(slots=True)
class Transfer:
    """Some bytes on their way; ``end_s``: when they were there, None: they are not yet."""

    size: float
    begin_s: float
    end_s: float | None = None

    @property
    def late_s(self) -> float:
        """By how much it took longer than `Times` takes it to; of one that has ended."""
        assert self.end_s is not None
        return max(0.0, self.end_s - self.begin_s - self.size / ASSUMED_BYTES_PER_S)


class _Class:
    """Transfers that share a rate: each is through when ``served`` has come to its mark."""

    def __init__(self) -> None:
        self.served = 0.0  # bytes that each has had since the first one
        self.waiting: list[tuple[float, int, Transfer]] = []

    def left(self) -> float:
        """Bytes that each still has to get until the first is through."""
        return max(0.0, self.waiting[0][0] - self.served) * len(self.waiting)


class Filesystem:
    """As of the last moment that was asked about."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._classes = (_Class(), _Class())
        self._now_s, self._count = 0.0, 0

    def begin(self, now_s: float, size: float, kind: int) -> Transfer:
        """So many bytes, of `SERVING` or `TRAINING`, from now on."""
        self._until(now_s)
        found, of = Transfer(size, now_s), self._classes[kind]
        self._count += 1
        heapq.heappush(of.waiting, (of.served + size, self._count, found))
        return found

    def wait_s(self, now_s: float, transfer: Transfer, kind: int) -> float:
        """For how long it is worth while to wait before asking again; 0: it has ended."""
        self._until(now_s)
        if transfer.end_s is not None:
            return 0.0
        of = self._classes[kind]
        marks = [mark - of.served for mark, _, _ in of.waiting]
        [mine] = [mark - of.served for mark, _, one in of.waiting if one is transfer]
        return max(AGAIN_S, sum(min(mark, mine) for mark in marks) / self._bytes_per_s)

    def has_ended(self, now_s: float, transfer: Transfer) -> bool:
        """Whether it is there."""
        self._until(now_s)
        return transfer.end_s is not None

    def _until(self, now_s: float) -> None:
        serving, training = self._classes
        while self._now_s < now_s and (serving.waiting or training.waiting):
            kept = _KEPT if serving.waiting and training.waiting else 1.0
            rates = [self._bytes_per_s * share for share in ((1.0 - kept) or 1.0, kept)]
            busy = [(of, rate) for of, rate in zip(self._classes, rates, strict=True) if of.waiting]
            first_s = min(of.left() / rate for of, rate in busy)
            step_s = min(first_s, now_s - self._now_s)
            self._now_s += step_s
            for of, rate in busy:
                ends = of.left() / rate <= step_s * (1 + 1e-12)
                of.served = of.waiting[0][0] if ends else of.served + step_s * rate / len(of.waiting)
                while of.waiting and of.waiting[0][0] <= of.served:
                    heapq.heappop(of.waiting)[2].end_s = self._now_s
                if not of.waiting:
                    of.served = 0.0  # so that a year of bytes does not round off one transfer's
        self._now_s = max(self._now_s, now_s)
