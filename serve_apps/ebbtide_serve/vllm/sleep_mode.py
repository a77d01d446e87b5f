"""vLLM off its GPU and back: its own sleep mode for the weights, a CUDA checkpoint for whatever is left.

vLLM's sleep (level 1) copies the weights to host memory and drops the KV cache, but its process keeps a context,
graphs and workspaces on the GPU, and a slot is free only when nothing is there. So the node's helper then has the
driver take the process off (lock, checkpoint), and only after that the worker lets go of its slot lock, without CUDA.
Back: lock of the slot, restore, unlock, and vLLM wakes its weights up.

Not on CPUs: there vLLM's sleep does nothing and reports success. Not with several ranks: what NCCL has on a GPU no
driver takes off, unless it is gone before. Not run on a GPU so far: the order and the calls are tested with fakes.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from uuid import uuid4

from ebbtide.helper.client import Helper
from ebbtide.helper.errors import HelperError
from ebbtide.system.modes import Place, took
from ebbtide.system.runtime_dir import HELPER_SOCKET
from ebbtide_serve.engine.sleep import CanSleep
from ebbtide_serve.errors import EngineFailed
from ebbtide_serve.process.lease_env import EngineLease, lease_from_environment

REST_BYTES = 4 << 30  # context, graphs and workspaces of a rank, which the driver copies too: a guess, not yet measured


class SleepyEngine(Protocol):
    """What of vLLM's ``AsyncLLM`` is used here (0.29)."""

    async def sleep(self, level: int) -> None: ...
    async def wake_up(self) -> None: ...
    async def checkpoint_prepare(self) -> None: ...
    async def checkpoint_restore(self) -> None: ...
    async def collective_rpc(self, method: str, args: tuple[object, ...] = ()) -> Any: ...


class Driver(Protocol):
    """What of the helper's client is used here; every method blocks and may raise ``HelperError``."""

    def facts(self) -> Mapping[str, Any]: ...
    def register(self, name: str, pid: int, started: int) -> object: ...
    def lock(self, names: list[str]) -> object: ...
    def checkpoint(self, names: list[str]) -> object: ...
    def restore(self, names: list[str]) -> object: ...
    def unlock(self, names: list[str]) -> object: ...


def why_never(*, is_cpu: bool, ranks: int, started_so: bool) -> str:
    """Why such an engine cannot sleep wherever it runs; empty if nothing speaks against it yet."""
    if is_cpu:
        return "vLLM has no sleep mode on this platform (cpu)"
    if ranks > 1:
        return f"its {ranks} ranks share NCCL's memory, which no driver takes off a GPU"
    if not started_so:
        return "it was started without vLLM's sleep mode: its endpoint asked for no warm replicas then"
    return ""


async def sleep_of(
    llm: SleepyEngine, *, is_cpu: bool, ranks: int, started_so: bool
) -> "tuple[VllmSleep | None, CanSleep]":
    """How an engine that is up can sleep in this process, and whether it can at all."""
    why_not = why_never(is_cpu=is_cpu, ranks=ranks, started_so=started_so)
    granted = None if why_not else lease_from_environment(os.environ)
    if granted is None:
        took(Place.SLEEP, f"none: {why_not or 'it runs under no lease'}")
        return None, CanSleep(why_not=why_not or "it runs under no lease")
    found = VllmSleep(llm, Helper(granted.lock_dir.parent / HELPER_SOCKET))
    return found, await found.look()


class VllmSleep:
    """The sleep of one engine that is up."""

    def __init__(self, llm: SleepyEngine, driver: Driver) -> None:
        self._llm, self._driver = llm, driver
        self._name = f"replica:{uuid4().hex[:12]}"

    async def look(self) -> CanSleep:
        """Whether it can sleep here, and what it needs for that."""
        try:
            why_not = (await asyncio.to_thread(self._driver.facts))["driver"]["why_not_checkpoint"]
        except HelperError as error:
            return CanSleep(why_not=f"what vLLM leaves on the GPU needs the node's helper: {error}"[:300])
        if why_not:
            return CanSleep(why_not=f"what vLLM leaves on the GPU needs a CUDA checkpoint: {why_not}"[:300])
        took(Place.SLEEP, "vLLM's sleep at level 1, then a CUDA checkpoint by the helper")
        (rank,) = await self._llm.collective_rpc("ebbtide_rank")
        return CanSleep(int(rank["weight_bytes"]) + REST_BYTES)

    async def sleep(self) -> None:
        """See `Sleeps`."""
        (rank,) = await self._llm.collective_rpc("ebbtide_rank")
        await self._llm.sleep(level=1)
        await self._llm.checkpoint_prepare()
        await self._drive(lambda: self._driver.register(self._name, int(rank["pid"]), int(rank["started"])))
        await self._drive(lambda: self._driver.lock([self._name]))
        await self._drive(lambda: self._driver.checkpoint([self._name]))
        await self._llm.collective_rpc("ebbtide_leave_slot")

    async def wake(self, lease: EngineLease) -> None:
        """See `Sleeps`."""
        await self._llm.collective_rpc("ebbtide_take_slot", args=(lease.to_json(),))
        await self._drive(lambda: self._driver.restore([self._name]))
        await self._drive(lambda: self._driver.unlock([self._name]))
        await self._llm.checkpoint_restore()
        await self._llm.wake_up()

    async def _drive(self, ask: Callable[[], object]) -> None:
        """One verb of the helper. Whatever came of one that fails: this engine is stopped, nothing is replayed."""
        try:
            await asyncio.to_thread(ask)
        except HelperError as error:
            raise EngineFailed(f"the driver does not move vLLM: {error}") from error
