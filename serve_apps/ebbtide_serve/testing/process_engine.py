"""An engine without a model but with a real process: for tests, chaos and benchmarks of everything around an engine.

``endpoints[].engine_class: ebbtide_serve.testing.process_engine:ProcessEngine`` puts it in vLLM's place. What it does
towards the pool is real: a child process of its own that takes the slot locks of its lease before it allocates, dies
with its actor, and breaks running streams when it is killed. It answers OpenAI's routes with the words ``t0 t1 t2 ...``
and starts in well under a second. Its arguments (``endpoints[].engine``) are those of :class:`ProcessArgs`.

Not guaranteed: a model's speed. Sequences never slow each other down.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass

from ebbtide_serve.engine.port import EngineSettings, EngineStats, JsonReply, Reply, Route, StreamReply
from ebbtide_serve.engine.sleep import CanSleep
from ebbtide_serve.errors import EngineFailed, EngineRefused
from ebbtide_serve.process.lease_env import EngineLease
from ebbtide_serve.testing.openai_words import Asked, Events, parse_request, whole

PROCESS_ENGINE = "ebbtide_serve.testing.process_engine:ProcessEngine"
CHILD = "ebbtide_serve.testing.process_child"


@dataclass(frozen=True, slots=True)
class ProcessArgs:
    """The engine arguments; keys that are not here (vLLM's) are ignored, so that a config can be used for both."""

    tokens_per_s: float = 100.0  # of each sequence
    start_s: float = 0.0  # "loading weights", with the slot locks held
    max_running: int = 64  # further sequences wait
    max_model_len: int = 32768  # words of prompt and answer
    lock_timeout_s: float = 10.0  # as vllm_worker's: a predecessor at the same seat may be in its last breath
    allocate_mib: int = 0  # memory that the child really takes
    sleeps: bool = True  # it can give up its locks and memory, and take them back
    sleep_s: float = 0.0
    wake_s: float = 0.0
    fail_sleep: str = ""  # the message to fail with
    fail_wake: str = ""
    fail_start: str = ""  # never becomes healthy: the message to fail with, before any lock is taken
    refuse_start: str = ""  # the same as a failure that is permanent


class ProcessEngine:
    """See ``ebbtide_serve.engine.port.Engine``."""

    def __init__(self, settings: EngineSettings) -> None:
        names = ProcessArgs.__dataclass_fields__
        self.args = ProcessArgs(**{key: value for key, value in settings.args.items() if key in names})  # type: ignore[arg-type]
        self._model = settings.model_name
        self._child: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._listener: asyncio.Task[None] | None = None
        self._steps: dict[int, asyncio.Queue[bool]] = {}  # by sequence: True per token, False when all is over
        self._begun: set[int] = set()
        self._next = 0
        self._generated = 0
        self._asked: asyncio.Future[str] | None = None  # to sleep or to wake
        self._asleep = False

    @property
    def child_pid(self) -> int:
        """Of the process that holds the locks; 0 before the start."""
        return 0 if self._child is None else self._child.pid

    async def start(self) -> None:
        """See the port."""
        if self.args.refuse_start:
            raise EngineRefused(self.args.refuse_start)
        if self.args.fail_start:
            raise EngineFailed(self.args.fail_start)
        ours, theirs = socket.socketpair()
        with theirs:
            args = json.dumps(asdict(self.args))
            self._child = await asyncio.to_thread(_spawn, theirs.fileno(), args)
        reader, self._writer = await asyncio.open_connection(sock=ours)
        said = await reader.readline()
        problem = json.loads(said) if said else "its process died while it started"
        if problem:
            await self.stop(1.0)
            raise EngineFailed(f"the process engine does not start: {problem}")
        self._listener = asyncio.create_task(self._listen(reader))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                told = json.loads(line)
                if isinstance(told, dict):
                    assert self._asked is not None, "it answers what it was asked"
                    self._asked.set_result(told["done"])
                    continue
                for number in told:
                    steps = self._steps.get(number)
                    if steps is not None:
                        self._begun.add(number)
                        self._generated += 1
                        steps.put_nowait(True)
        except OSError:
            pass  # killed with our words unread
        finally:
            for steps in self._steps.values():
                steps.put_nowait(False)
            if self._asked is not None and not self._asked.done():
                self._asked.set_result("its process died")

    def can_sleep(self) -> CanSleep:
        """See `Sleeps`."""
        if not self.args.sleeps:
            return CanSleep(why_not="it was told that it cannot")
        return CanSleep(max(1, self.args.allocate_mib << 20))

    async def sleep(self) -> None:
        """See `Sleeps`."""
        await self._ask("sleep")
        self._asleep = True

    async def wake(self, lease: EngineLease) -> None:
        """See `Sleeps`."""
        await self._ask("wake", lease.to_json())
        self._asleep = False

    async def _ask(self, what: str, *words: str) -> None:
        await self.check_health()
        self._asked = asyncio.get_running_loop().create_future()
        self._tell(what, *words)
        problem = await self._asked
        if problem:
            raise EngineFailed(f"the process engine does not {what}: {problem}")

    async def handle(self, route: Route, body: bytes) -> Reply:
        """See the port."""
        await self.check_health()
        if self._asleep:
            raise EngineFailed("a request came to an engine that is asleep")
        request = parse_request(route, body, model=self._model, max_model_len=self.args.max_model_len)
        if isinstance(request, JsonReply):
            return request
        if request.stream:
            return StreamReply(self._stream(request))
        async for _ in self._tokens(request.tokens):
            pass
        return whole(request)

    async def _stream(self, request: Asked) -> AsyncGenerator[bytes, None]:
        events = Events(request)
        tokens = self._tokens(request.tokens)
        try:
            async for number in tokens:
                yield events.word(number)
        finally:
            await tokens.aclose()
        yield events.end()

    async def _tokens(self, wanted: int) -> AsyncGenerator[int, None]:
        self._next += 1
        sequence = self._next
        steps = self._steps[sequence] = asyncio.Queue()
        left = wanted
        self._tell("+", sequence, wanted)
        try:
            while left:
                if not await steps.get():
                    raise EngineFailed("the engine's process died in the middle of an answer")
                left -= 1
                yield wanted - left - 1
        finally:
            del self._steps[sequence]
            self._begun.discard(sequence)
            if left:
                self._tell("-", sequence)

    def _tell(self, *words: object) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(json.dumps(words).encode() + b"\n")

    def stats(self) -> EngineStats:
        """See the port."""
        running = len(self._begun)
        return EngineStats(
            running=running,
            waiting=len(self._steps) - running,
            kv_usage=min(1.0, running / self.args.max_running),
            generated_tokens=self._generated,
        )

    async def check_health(self) -> None:
        """See the port."""
        if self._listener is None or self._listener.done() or self._child is None or self._child.poll() is not None:
            raise EngineFailed("the engine's process is dead")

    async def stop(self, timeout_s: float) -> None:
        """See the port."""
        child, self._child = self._child, None
        if self._writer is not None:
            self._writer.close()
        if child is not None:
            child.kill()
            await asyncio.to_thread(child.wait, timeout_s)
        if self._listener is not None:
            await asyncio.wait({self._listener}, timeout=timeout_s)


def _spawn(descriptor: int, args: str) -> "subprocess.Popen[bytes]":
    # -c and not -m: the folder that we happen to be in must not become importable (it may hold a `platform`).
    code = f"import runpy; runpy.run_module({CHILD!r}, run_name='__main__')"
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code, str(descriptor), args], pass_fds=(descriptor,), env=dict(os.environ)
    )
