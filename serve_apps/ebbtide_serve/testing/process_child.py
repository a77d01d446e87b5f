"""The child process of :class:`~ebbtide_serve.testing.process_engine.ProcessEngine`.

``python -m ebbtide_serve.testing.process_child <descriptor> <json arguments>``; not meant to be run by hand.

It behaves as an engine's process does towards the pool: it watches its replica's actor from its first moment, takes
the slot locks of the lease in its environment before it allocates anything, and holds them until it is gone.
Then it "generates": step by step, one token for each running sequence, as an engine with continuous batching does.

Protocol on the inherited socket, JSON lines. In: ``["+", id, tokens]`` a sequence, ``["-", id]`` forget it;
``["sleep"]`` free the memory and the locks, ``["wake", lease]`` take them again. Out, once: ``""`` ready, or why not;
then per step the ids that got a token; after a sleep or wake ``{"done": ""}``, or why it was not done.
"""

import asyncio
import json
import os
import socket
import sys
import time
from collections import deque
from typing import Any

from ebbtide.agent.errors import LockDirUnusable, SlotBusy
from ebbtide.agent.slot_locks.slot_lock import SlotLock
from ebbtide_serve.process.lease_env import LEASE_VARIABLE, lease_from_environment
from ebbtide_serve.process.parent_watch import arm_from_environment


def take_locks(timeout_s: float) -> list[SlotLock]:
    """The locks of all slots of the lease.

    Raises:
        SlotBusy, LockDirUnusable: not to be had.
        ValueError: there is no lease.
    """
    granted = lease_from_environment(os.environ)
    if granted is None:
        raise ValueError("no lease in the environment: no lock, no allocation")
    locks = []
    for rank, slot in enumerate(granted.lease.slots):
        lock = SlotLock(
            granted.lock_dir,
            slot,
            workload=granted.lease.workload,
            epoch=granted.lease.epoch,
            rank=rank,
            ledger=granted.ledger,
            log_dir=granted.log_dir,
        )
        lock.acquire(timeout_s)
        locks.append(lock)
    return locks


class Batch:
    """The sequences and how many tokens each still gets."""

    def __init__(self, max_running: int) -> None:
        self._max_running = max_running
        self._left: dict[int, int] = {}
        self._waiting: deque[tuple[int, int]] = deque()
        self.work = asyncio.Event()

    def take_in(self, line: bytes) -> None:
        """One line of the protocol."""
        what, number, *more = json.loads(line)
        if what == "+":
            self._waiting.append((number, more[0]))
        elif self._left.pop(number, None) is None:
            self._waiting = deque(entry for entry in self._waiting if entry[0] != number)
        self.work.set()

    def step(self) -> list[int]:
        """Who gets a token now."""
        while self._waiting and len(self._left) < self._max_running:
            number, tokens = self._waiting.popleft()
            self._left[number] = tokens
        lucky = list(self._left)
        for number in lucky:
            self._left[number] -= 1
            if self._left[number] <= 0:
                del self._left[number]
        if not self._left and not self._waiting:
            self.work.clear()
        return lucky


class Holdings:
    """What it has on its GPUs: the locks, and memory that is really there."""

    def __init__(self, args: dict[str, Any]) -> None:
        self._args = args
        self._locks: list[SlotLock] = []
        self._memory = bytearray()

    def take(self, lasting_s: float) -> str:
        """Lock, then allocate; deaf meanwhile, as an engine that loads. Gives why it could not."""
        try:
            self._locks = take_locks(self._args["lock_timeout_s"])
        except (SlotBusy, LockDirUnusable, ValueError) as error:
            return str(error)
        assert all(lock.held for lock in self._locks)
        self._memory = bytearray(int(self._args["allocate_mib"]) << 20)
        self._memory[::4096] = b"x" * len(self._memory[::4096])  # touched, so that it is really there
        time.sleep(lasting_s)
        return ""

    def obey(self, what: str, lease: str = "") -> str:
        """Sleep or wake; gives why it could not."""
        if what == "wake":
            os.environ[LEASE_VARIABLE] = lease
            return str(self._args["fail_wake"]) or self.take(self._args["wake_s"])
        if self._args["fail_sleep"]:
            return str(self._args["fail_sleep"])
        time.sleep(self._args["sleep_s"])
        self._memory = bytearray()
        for lock in self._locks:
            lock.release()
        return ""


async def generate(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, args: dict[str, Any], mine: Holdings
) -> None:
    """Serve until the other end is closed."""
    batch = Batch(int(args["max_running"]))
    step_s = 1.0 / args["tokens_per_s"]

    async def listen() -> None:
        while line := await reader.readline():
            what, *more = json.loads(line)
            if what in ("+", "-"):
                batch.take_in(line)
            else:
                writer.write(json.dumps({"done": mine.obey(what, *more)}).encode() + b"\n")
        os._exit(0)  # nobody is there for whom to generate

    listening = asyncio.create_task(listen())
    due_s = time.monotonic()
    while not listening.done():
        if not batch.work.is_set():
            await batch.work.wait()
            due_s = time.monotonic()
        due_s = max(due_s + step_s, time.monotonic() - step_s)  # a late step is not made up for by a burst
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        writer.write(json.dumps(batch.step()).encode() + b"\n")
        await writer.drain()


async def main(ours: socket.socket, args: dict[str, Any]) -> None:
    """Lock, allocate, generate."""
    reader, writer = await asyncio.open_connection(sock=ours)
    mine = Holdings(args)
    problem = mine.take(args["start_s"])
    writer.write(json.dumps(problem).encode() + b"\n")
    await writer.drain()
    if not problem:
        await generate(reader, writer, args, mine)


if __name__ == "__main__":
    arm_from_environment(os.environ)
    asyncio.run(main(socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2])))
