"""One process that holds a state on the GPU, and does as it is told: ``ROLE BYTES DEVICE``; words come on stdin.

Each parameter's optimizer steps as soon as its gradient is there, so that gradients of all parameters never lie on the
GPU at once: a state of 60 GB then fits a GPU of 80.
"""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from benchmarks.gpu.ceilings import synchronize
from benchmarks.gpu.machine import hardware
from benchmarks.preempt.events import Event, figure, say
from benchmarks.preempt.state import Model, loss_of
from ebbtide.snapshot.eviction.host_pool import HostPool
from ebbtide.snapshot.eviction.tensor_eviction import Evicted, evict, plan, tensors_in

UNDISTURBED, EVICT, WHOLE, ABOUT = "undisturbed", "evict", "whole", "about"
LEAVE, COME = "leave", "come"
STEPS = 2  # before anybody wants the slot; the next one's loss is compared
LINK_BYTES = 1 << 30
CYCLES = 3
OUT, BACK = "link, device to host", "link, host to device"
EVICTED, RESTORED = "evict", "restore"
SPEED, SHARE = "GB/s", "share of the link"


@dataclass(slots=True)
class Training:
    """The model, and an optimizer for each of its parameters."""

    model: Model
    optimizers: dict[torch.Tensor, torch.optim.AdamW] = field(default_factory=dict)

    @classmethod
    def make(cls, size_bytes: int, device: torch.device) -> "Training":
        """On the device; every process makes the same."""
        with torch.device("meta"):
            model = Model(size_bytes)
        model.to_empty(device=device)
        torch.manual_seed(0)
        found = cls(model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.uniform_(-0.02, 0.02)
                found.optimizers[parameter] = torch.optim.AdamW([parameter], lr=1e-4)
                parameter.register_post_accumulate_grad_hook(found._step_of)  # type: ignore[no-untyped-call]
        return found

    def step(self, number: int) -> str:
        """One step; its loss as hex."""
        loss = loss_of(self.model, number, self.model.embedding.num_embeddings)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.item()).hex()

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All that must leave."""
        for name, parameter in self.model.named_parameters():
            yield name, parameter
            yield from tensors_in(name, self.optimizers[parameter].state[parameter])

    def _step_of(self, parameter: torch.Tensor) -> None:
        optimizer = self.optimizers[parameter]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


class Link:
    """What goes between page-locked host memory and the device, each way."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        size_bytes = LINK_BYTES if device.type == "cuda" else LINK_BYTES >> 5
        self._here = torch.empty(size_bytes, dtype=torch.uint8, device=device)
        self._host = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda").fill_(1)

    def measure(self) -> tuple[float, float]:
        """GB/s out and back, now."""
        return self._speed(self._host, self._here), self._speed(self._here, self._host)

    def _speed(self, target: torch.Tensor, source: torch.Tensor) -> float:
        synchronize(self._device)
        began_s = time.perf_counter()
        for _ in range(4):
            target.copy_(source, non_blocking=True)
        synchronize(self._device)
        return 4 * target.numel() / (time.perf_counter() - began_s) / 1e9


def registered_pool(size_bytes: int, device: torch.device) -> tuple[HostPool, str]:
    """Host memory, page-locked if that can be; why not, or the empty string. Tells how long both took."""
    began_s = time.perf_counter()
    pool = HostPool(size_bytes)
    figure("host memory mapped", time.perf_counter() - began_s)
    if device.type != "cuda":
        return pool, "the device is no GPU"
    began_s = time.perf_counter()
    code = torch.cuda.cudart().cudaHostRegister(pool.bytes.data_ptr(), pool.size_bytes, 0)  # type: ignore[no-untyped-call]
    figure("host memory page-locked", time.perf_counter() - began_s)
    return pool, "" if int(code) == 0 else f"cudaHostRegister gave {code}"


class Parkable:
    """A state with its place in host memory."""

    def __init__(self, training: Training, device: torch.device) -> None:
        self._device = device
        self._plan = plan(training.tensors())
        self._size_bytes = sum(place.size_bytes for place in self._plan.places)
        self._pool, why_not = registered_pool(self._plan.size_bytes, device)
        if why_not:
            say(Event.NOTE, text=f"host memory is not page-locked: {why_not}")

    def measure(self, link: Link) -> None:
        """One way out and back, and what the link gives right before and after."""
        before = link.measure()
        began_s = time.perf_counter()
        evicted = evict(self._plan, self._pool)
        synchronize(self._device)
        out = self._size_bytes / (time.perf_counter() - began_s) / 1e9
        began_s = time.perf_counter()
        evicted.restore()
        synchronize(self._device)
        back = self._size_bytes / (time.perf_counter() - began_s) / 1e9
        after = link.measure()
        for name, speed, limits in ((EVICTED, out, (before[0], after[0])), (RESTORED, back, (before[1], after[1]))):
            figure(f"{name}, {SPEED}", speed)
            figure(f"{name}, {SHARE}", speed / (sum(limits) / 2))
        for name, speeds in ((OUT, (before[0], after[0])), (BACK, (before[1], after[1]))):
            for speed in speeds:
                figure(name, speed)

    def leave(self) -> Evicted:
        """Everything goes to host memory; tells what torch still has on the device."""
        evicted = evict(self._plan, self._pool)
        if self._device.type == "cuda":
            figure("still reserved by torch", torch.cuda.memory_reserved(self._device) / 1e6)
        return evicted


def run(role: str, size_bytes: int, device: torch.device) -> None:
    """Train, leave, come back as told, and train on; `UNDISTURBED` only trains, `WHOLE` leaves itself where it is."""
    training = Training.make(size_bytes, device)
    for number in range(STEPS):
        training.step(number)
    if role != UNDISTURBED:
        parkable = Parkable(training, device) if role == EVICT else None
        if parkable is not None:
            link = Link(device)
            for _ in range(CYCLES):
                parkable.measure(link)
            del link  # nothing but the state may be there
        synchronize(device)
        say(Event.READY)
        _told(LEAVE)
        say(Event.SAFE_POINT)
        evicted = None if parkable is None else parkable.leave()
        say(Event.STAGED)
        _told(COME)
        if evicted is not None:
            evicted.restore()
        synchronize(device)
        say(Event.RUNNING)
    say(Event.LOSS, value=training.step(STEPS))


def about(device: torch.device) -> None:
    """Tell which machine it is; whoever asks then has no context of its own on the GPU."""
    say(Event.NOTE, text=hardware(device))
    if device.type == "cuda":
        say(Event.NOTE, text=f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        figure("memory of the GPU", float(torch.cuda.get_device_properties(device).total_memory))


def _told(word: str) -> None:
    if (heard := sys.stdin.readline().strip()) != word:
        raise SystemExit(f"was told {heard!r} instead of {word!r}")


def main() -> None:
    """See the module."""
    role, size_bytes, kind = sys.argv[1:]
    device = torch.device(kind, 0) if kind == "cuda" else torch.device(kind)
    if role == ABOUT:
        about(device)
        return
    if role not in (UNDISTURBED, WHOLE, EVICT):
        raise SystemExit(f"no such role: {role}")
    if device.type == "cpu":
        torch.set_num_threads(1)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS: needed for reproducible results
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    run(role, int(size_bytes), device)


if __name__ == "__main__":
    main()
