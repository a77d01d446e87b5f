"""An engine without a model: exact, repeatable, as fast or slow and as faulty as a test wants.

It answers with the words ``t0 t1 t2 ...``, one per token. What is adjustable comes in ``EngineSettings.args``, so the
fake can take vLLM's place in a whole replica. In ``own_process`` mode it also has a child process that holds the slot
lock, as vLLM has. Not a model of vLLM's speed under load: sequences never slow each other down.
"""

import asyncio
import json
import multiprocessing
import os
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess

from ebbtide.agent.errors import SlotBusy
from ebbtide.agent.slot_locks.slot_lock import SlotLock
from ebbtide_serve.engine.port import EngineSettings, EngineStats, JsonReply, Reply, Route, StreamReply, error_reply
from ebbtide_serve.errors import EngineFailed, EngineRefused
from ebbtide_serve.process.lease_env import lease_from_environment
from ebbtide_serve.process.parent_watch import arm_from_environment

FAKE_ENGINE = "ebbtide_serve.testing.fake_engine:FakeEngine"


@dataclass(frozen=True, slots=True)
class FakeArgs:
    """The fake's engine arguments; the same names as keys of ``EngineSettings.args``."""

    tokens_per_s: float = 1000.0
    start_s: float = 0.0
    max_running: int = 16  # further sequences wait
    max_model_len: int = 4096  # words of prompt and answer
    fail_start: str = ""  # the message to fail with
    refuse_start: str = ""  # the same as a failure that is permanent
    fail_after_tokens: int = 0  # die in the middle of the stream that reaches it; 0 = never
    own_process: bool = False
    arms_itself: bool = True  # the child watches its parent by itself, as vLLM does with our plugin


@dataclass
class _Counts:
    unfinished: int = 0
    aborted: int = 0
    generated: int = 0
    prompts: list[str] = field(default_factory=list)


class FakeEngine:
    """See ``ebbtide_serve.engine.port.Engine``."""

    def __init__(self, settings: EngineSettings) -> None:
        names = FakeArgs.__dataclass_fields__
        self.args = FakeArgs(**{key: value for key, value in settings.args.items() if key in names})  # type: ignore[arg-type]
        self._model = settings.model_name
        self._alive = False
        self._child: BaseProcess | None = None
        self._slots = asyncio.Semaphore(self.args.max_running)
        self.counts = _Counts()

    async def start(self) -> None:
        """See the port."""
        await asyncio.sleep(self.args.start_s)
        if self.args.refuse_start:
            raise EngineRefused(self.args.refuse_start)
        if self.args.fail_start:
            raise EngineFailed(self.args.fail_start)
        if self.args.own_process:
            await asyncio.to_thread(self._start_child)
        self._alive = True

    def _start_child(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._child = context.Process(target=hold_lock, args=(theirs, self.args.arms_itself), daemon=True)
        self._child.start()
        theirs.close()
        try:
            problem = ours.recv()
        except EOFError:
            problem = "the fake engine's process died"
        if problem:
            raise EngineFailed(problem)

    async def handle(self, route: Route, body: bytes) -> Reply:
        """See the port."""
        await self.check_health()
        try:
            raw = json.loads(body)
            model, wanted = raw["model"], int(raw.get("max_tokens") or 16)
            prompt = raw["prompt"] if route is Route.COMPLETIONS else raw["messages"][-1]["content"]
        except (ValueError, KeyError, TypeError, IndexError) as error:
            return error_reply(f"bad request: {error!r}", "invalid_request_error", 400)
        if model != self._model:
            return error_reply(f"The model `{model}` does not exist.", "NotFoundError", 404)
        if len(prompt.split()) + wanted > self.args.max_model_len:
            return error_reply(f"longer than {self.args.max_model_len} tokens", "BadRequestError", 400)
        self.counts.prompts.append(prompt)
        if raw.get("stream"):
            return StreamReply(self._stream(route, prompt, wanted, raw.get("stream_options") or {}))
        words = [word async for word in self._words(wanted)]
        return JsonReply(200, json.dumps(self._answer(route, " ".join(words), prompt, wanted)).encode())

    def _answer(self, route: Route, text: str, prompt: str, wanted: int) -> dict[str, object]:
        chat = route is Route.CHAT
        content: dict[str, object] = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        return {
            "id": "fake",
            "object": "chat.completion" if chat else "text_completion",
            "created": 0,
            "model": self._model,
            "choices": [{"index": 0, "finish_reason": "length"} | content],
            "usage": _usage(prompt, wanted),
        }

    async def _stream(
        self, route: Route, prompt: str, wanted: int, options: dict[str, object]
    ) -> AsyncGenerator[bytes, None]:
        chat = route is Route.CHAT
        frame = {
            "id": "fake",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": 0,
            "model": self._model,
        }
        words = self._words(wanted)
        try:
            async for word in words:
                delta: dict[str, object] = {"delta": {"content": f" {word}"}} if chat else {"text": f" {word}"}
                yield _event(frame | {"choices": [{"index": 0, "finish_reason": None} | delta]})
        finally:
            await words.aclose()
        last: dict[str, object] = {"delta": {}} if chat else {"text": ""}
        yield _event(frame | {"choices": [{"index": 0, "finish_reason": "length"} | last]})
        if options.get("include_usage"):
            yield _event(frame | {"choices": [], "usage": _usage(prompt, wanted)})
        yield b"data: [DONE]\n\n"

    async def _words(self, wanted: int) -> AsyncGenerator[str, None]:
        self.counts.unfinished += 1
        finished = False
        try:
            async with self._slots:
                for number in range(wanted):
                    await asyncio.sleep(1.0 / self.args.tokens_per_s)
                    self.counts.generated += 1
                    if self.args.fail_after_tokens and self.counts.generated >= self.args.fail_after_tokens:
                        self.kill()
                    await self.check_health()
                    yield f"t{number}"
            finished = True
        finally:
            self.counts.unfinished -= 1
            self.counts.aborted += not finished

    def stats(self) -> EngineStats:
        """See the port."""
        running = min(self.counts.unfinished, self.args.max_running)
        return EngineStats(
            running=running,
            waiting=self.counts.unfinished - running,
            kv_usage=running / self.args.max_running,
            generated_tokens=self.counts.generated,
        )

    async def check_health(self) -> None:
        """See the port."""
        if not self._alive or (self._child is not None and not self._child.is_alive()):
            raise EngineFailed("the fake engine is dead")

    def kill(self) -> None:
        """Die as an engine dies: running streams break, later requests fail."""
        self._alive = False

    async def stop(self, timeout_s: float) -> None:
        """See the port."""
        self._alive = False
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            await asyncio.to_thread(child.join, timeout_s)


def hold_lock(pipe: object, arms_itself: bool) -> None:
    """The child process: as an engine's process does, it takes the slot locks of its lease and lives until killed."""
    if arms_itself:
        arm_from_environment(os.environ)
    granted = lease_from_environment(os.environ)
    locks = []
    problem = "" if granted else "no lease in the environment"
    for rank, slot in enumerate(granted.lease.slots if granted else ()):
        assert granted is not None
        lock = SlotLock(
            granted.lock_dir,
            slot,
            workload=granted.lease.workload,
            epoch=granted.lease.epoch,
            rank=rank,
            ledger=granted.ledger,
            log_dir=granted.log_dir,
        )
        try:
            lock.acquire(5.0)
            locks.append(lock)
        except SlotBusy as error:
            problem = str(error)
    pipe.send(problem)  # type: ignore[attr-defined] # multiprocessing's Connection is not generic over messages
    while not problem:
        time.sleep(3600)


def _usage(prompt: str, wanted: int) -> dict[str, int]:
    words = len(prompt.split())
    return {"prompt_tokens": words, "completion_tokens": wanted, "total_tokens": words + wanted}


def _event(data: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"
