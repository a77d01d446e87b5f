"""The child process of :class:`~ebbtide_serve.testing.process_engine.ProcessEngine`.

``python -m ebbtide_serve.testing.process_child <descriptor> <json arguments>``; not meant to be run by hand.

It behaves as an engine's process does towards the pool: it watches its replica's actor from its first moment, takes
the slot locks of the lease in its environment before it allocates anything, and holds them until it is gone.
Then it "generates": step by step, one token for each running sequence, as an engine with continuous batching does.

Protocol on the inherited socket, JSON lines. In: ``["+", id, tokens]`` a sequence, ``["-", id]`` forget it. Out, once:
``""`` ready, or why not; then per step the ids that got a token, and nothing else.
"""

import asyncio
import json
import os
import socket
import sys
import time
from collections import deque

from ebbtide.agent.errors import LockDirUnusable, SlotBusy
from ebbtide.agent.slot_lock import SlotLock
from ebbtide_serve.lease_env import lease_from_environment
from ebbtide_serve.parent_watch import arm_from_environment


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


async def generate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, args: dict[str, float]) -> None:
    """Serve until the other end is closed."""
    batch = Batch(int(args["max_running"]))
    step_s = 1.0 / args["tokens_per_s"]

    async def listen() -> None:
        while line := await reader.readline():
            batch.take_in(line)
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


async def main(ours: socket.socket, args: dict[str, float]) -> None:
    """Lock, allocate, generate."""
    reader, writer = await asyncio.open_connection(sock=ours)
    problem = ""
    try:
        locks = take_locks(args["lock_timeout_s"])
    except (SlotBusy, LockDirUnusable, ValueError) as error:
        problem = str(error)
    else:
        assert all(lock.held for lock in locks)
        memory = bytearray(int(args["allocate_mib"]) << 20)
        memory[::4096] = b"x" * len(memory[::4096])  # touched, so that it is really there
        time.sleep(args["start_s"])  # "loading weights": with the lock held, and deaf
    writer.write(json.dumps(problem).encode() + b"\n")
    await writer.drain()
    if not problem:
        await generate(reader, writer, args)


if __name__ == "__main__":
    arm_from_environment(os.environ)
    asyncio.run(main(socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2])))
