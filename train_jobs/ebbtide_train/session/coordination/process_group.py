"""The process group of one formation of a gang: made at a rendezvous file, destroyed at a safe point.

A gang of one has no process group at all, unless its model shall be sharded all the same. Every formation uses a
rendezvous file of its own: a FileStore that was used once is spoilt.

Not guaranteed: that a rank notices a vanished peer sooner than the backend does (gloo: at once, by the closed socket).
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

# Of those who write a checkpoint: what they wait for has deadlines of its own, and who dies closes its sockets.
_BESIDE_TIMEOUT = timedelta(days=1)


class Group:
    """Collectives over the ranks of a gang; all ranks call the same ones in the same order."""

    def __init__(self, *, rank: int, world: int, device: torch.device, made: dist.ProcessGroup | None = None) -> None:
        """Over a group of torch's that has been made; None: the default one, which a gang of one does without."""
        self.rank = rank
        self.world = world
        self._device = device
        self._made = made
        self._beside: Group | None = None

    @classmethod
    def meet(
        cls,
        *,
        rank: int,
        world: int,
        device: torch.device,
        rendezvous: Path,
        timeout_s: float,
        alone_too: bool = False,
    ) -> "Group":
        """Meet the other ranks. Blocks until all are there. ``alone_too``: also a gang of one has torch's group.

        Raises:
            RuntimeError: they were not there within ``timeout_s`` (torch's own error).
        """
        if dist.is_initialized():
            dist.destroy_process_group()  # a launcher's: the session owns the group
        if world > 1 or alone_too:
            rendezvous.parent.mkdir(parents=True, exist_ok=True)
            dist.init_process_group(
                "nccl" if device.type == "cuda" else "gloo",
                init_method=f"file://{rendezvous}",
                rank=rank,
                world_size=world,
                timeout=timedelta(seconds=timeout_s),
            )
        return cls(rank=rank, world=world, device=device)

    def beside(self) -> "Group":
        """The same ranks in a second group, over the CPU, for a thread beside training. A collective; ends with this.

        Two threads must not share one: each group's collectives come in one order on all ranks.
        """
        if self._beside is None:
            made = None if self.world == 1 else dist.new_group(backend="gloo", timeout=_BESIDE_TIMEOUT)
            self._beside = Group(rank=self.rank, world=self.world, device=torch.device("cpu"), made=made)
        return self._beside

    def max_of(self, values: Sequence[int]) -> list[int]:
        """The element-wise maximum over all ranks."""
        return self.begin_max_of(values)()

    def begin_max_of(self, values: Sequence[int]) -> Callable[[], list[int]]:
        """The same, beside what this rank does next; what is returned waits for it."""
        if self.world == 1:
            return lambda: list(values)
        box = torch.tensor(values, dtype=torch.int64, device=self._device)
        work = dist.all_reduce(box, op=dist.ReduceOp.MAX, group=self._made, async_op=True)

        def result() -> list[int]:
            work.wait()
            return [int(value) for value in box.tolist()]

        return result

    def gather(self, data: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's ``data`` (equally shaped, on the CPU), in rank order, on the CPU."""
        if self.world == 1:
            return [data]
        boxes = [torch.empty_like(data, device=self._device) for _ in range(self.world)]
        dist.all_gather(boxes, data.to(self._device), group=self._made)
        return [box.cpu() for box in boxes]

    def gather_text(self, text: str, *, size_bytes: int = 512) -> list[str]:
        """Every rank's text, cut to ``size_bytes``, in rank order."""
        raw = text.encode()[:size_bytes].ljust(size_bytes, b"\0")
        boxes = self.gather(torch.frombuffer(bytearray(raw), dtype=torch.uint8).clone())
        return [box.numpy().tobytes().rstrip(b"\0").decode(errors="ignore") for box in boxes]

    def destroy(self) -> None:
        """Drop the group: no socket and no communicator is left; idempotent."""
        if dist.is_initialized():
            dist.destroy_process_group()
