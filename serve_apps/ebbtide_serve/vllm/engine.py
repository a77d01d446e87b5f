"""vLLM behind the engine port. Only this room and ``vllm_versions`` import vLLM.

Importing this module imports vLLM (5 to 15 s), which reads its environment then: set it first (``lease_env``) and
import this by name (``engine.factory``).

vLLM's own OpenAI serving classes do chat templates, usage counts, stop strings and streaming, so an answer is what
``vllm serve`` would have sent. They are not a stable interface: ``tests/serve_apps/vllm/test_engine.py`` says what
we lean on.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from pydantic import ValidationError
from starlette.datastructures import State
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.loggers import StatLoggerBase

from ebbtide.client.slot_share import slot_share_from_environment
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide_serve.engine.fault_record import FaultRecord
from ebbtide_serve.engine.memory_bounds import cpu_memory_defaults
from ebbtide_serve.engine.permanent_errors import is_permanent
from ebbtide_serve.engine.port import EngineSettings, EngineStats, JsonReply, Reply, Route, StreamReply, error_reply
from ebbtide_serve.engine.sleep import CanSleep
from ebbtide_serve.engine.start_report import StartReport, loads_of, stages_of
from ebbtide_serve.errors import EngineFailed, EngineRefused
from ebbtide_serve.loading.flat.publishing import publish_flat
from ebbtide_serve.process.background import nicely
from ebbtide_serve.process.lease_env import EngineLease
from ebbtide_serve.vllm.sleep_mode import VllmSleep, sleep_of
from ebbtide_serve.vllm_versions import compat
from ebbtide_serve.vllm_versions.compat import REQUEST_ERRORS, FrontendArgs, create_error_response, init_app_state

READ_ERRORS: tuple[type[Exception], ...] = (ValidationError, *REQUEST_ERRORS)

ERROR_EVENT = 'data: {"error"'  # how vLLM's streams tell of what went wrong
_log = logging.getLogger(__name__)

RANKS_ANSWER_S = 60.0  # the engine answers between two steps, and a step may be a long prefill


class _Load:
    """The last figures that vLLM's engine reported; it reports only while it steps."""

    def __init__(self) -> None:
        self.running = 0
        self.waiting = 0
        self.kv_usage = 0.0
        self.preemptions = 0
        self.generated_tokens = 0

    def logger_factory(self) -> Callable[[Any, int], StatLoggerBase]:
        """What vLLM calls to make its stat logger."""
        load = self

        class LoadLogger(StatLoggerBase):  # type: ignore[misc] # vLLM is not typed for us
            """Keeps the last figures."""

            def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
                self.engine_index = engine_index

            def log_engine_initialized(self) -> None:
                """vLLM asks for it; nothing to log."""

            def record(
                self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
            ) -> None:
                """Called once per engine step."""
                if scheduler_stats is not None:
                    load.running = scheduler_stats.num_running_reqs
                    load.waiting = scheduler_stats.num_waiting_reqs
                    load.kv_usage = scheduler_stats.kv_cache_usage
                if iteration_stats is not None:
                    load.preemptions += iteration_stats.num_preempted_reqs
                    load.generated_tokens += iteration_stats.num_generation_tokens

        return LoadLogger


class VllmEngine:
    """One AsyncLLM with its engine process."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._load = _Load()
        self._llm: AsyncLLM | None = None
        self._state = State()
        self._report = StartReport()
        self._sleep: VllmSleep | None = None
        self._can = CanSleep(why_not="it is not up")
        self._faults = FaultRecord(os.environ)

    async def start(self) -> None:
        """See the port. The long part runs in a thread, so that the caller can report meanwhile."""
        defaults: dict[str, object] = {
            "worker_cls": "ebbtide_serve.vllm.worker."
            + ("PoolCPUWorker" if current_platform.is_cpu() else "PoolGPUWorker")
        }
        if current_platform.is_cpu() and self._settings.args.get("tensor_parallel_size", 1) == 1:
            defaults["distributed_executor_backend"] = "uni"
        if current_platform.is_cpu():
            share = slot_share_from_environment(os.environ)
            slot_bytes = None if share is None else share.memory_bytes
            defaults |= cpu_memory_defaults(self._settings.args, slot_bytes)
        if self._settings.weights is not None:
            defaults["load_format"] = self._settings.load_format
            defaults["model_loader_extra_config"] = self._settings.weights.to_extra()
        ranks = int(str(self._settings.args.get("tensor_parallel_size", 1)))
        defaults["enable_sleep_mode"] = self._settings.sleeps and not current_platform.is_cpu() and ranks == 1
        began_s, configured = time.monotonic(), False
        try:
            args = AsyncEngineArgs(
                model=self._settings.model_dir,
                served_model_name=[self._settings.model_name],
                **(defaults | dict(self._settings.args)),
            )
            loggers = [self._load.logger_factory()]
            config = await asyncio.to_thread(args.create_engine_config, UsageContext.ENGINE_CONTEXT)
            configured = True
            llm: Any = await asyncio.to_thread(
                AsyncLLM.from_vllm_config,
                config,
                stat_loggers=loggers,
                enable_log_requests=args.enable_log_requests,
                disable_log_stats=args.disable_log_stats,
            )
            self._llm = llm
            flags = argparse.Namespace(**(vars(FrontendArgs()) | vars(args)))
            await init_app_state(llm, self._state, flags, await llm.get_supported_tasks())
            await self._warm_up()
            self._report = await self._told(llm, began_s)
            is_cpu, started_so = current_platform.is_cpu(), bool(args.enable_sleep_mode)
            self._sleep, self._can = await sleep_of(
                compat.sleepy(llm), is_cpu=is_cpu, ranks=ranks, started_so=started_so
            )
        # vLLM and the model's own code may raise anything, and whatever it is, the engine is not there.
        except Exception as error:
            why = f"vLLM: {self._faults.cause(error)}"
            _log.exception("%s; it was started with %s", why, self._settings)
            await self.stop(timeout_s=1.0)
            # guard: what fails where the GPU is in use is no wrong argument
            refused = not configured and is_permanent(error)
            raise (EngineRefused if refused else EngineFailed)(why) from error

    async def _told(self, llm: Any, began_s: float) -> StartReport:
        """What its processes tell of the start; workers of somebody else's tell nothing."""
        if self._settings.args.get("worker_cls") is not None:
            return StartReport()
        ready_s = time.monotonic()
        records = await llm.collective_rpc("ebbtide_start_record")
        return StartReport(stages_of(records, began_s, ready_s), loads_of(records, self._settings.why_own))

    def can_sleep(self) -> CanSleep:
        """See `Sleeps`."""
        return self._can

    async def sleep(self) -> None:
        """See `Sleeps`."""
        await self._move(lambda sleep: sleep.sleep())

    async def wake(self, lease: EngineLease) -> None:
        """See `Sleeps`."""
        await self._move(lambda sleep: sleep.wake(lease))

    async def _move(self, move: Callable[[VllmSleep], Awaitable[None]]) -> None:
        if self._sleep is None or self._can.why_not:
            raise EngineFailed(f"vLLM does not sleep here: {self._can.why_not}")
        try:
            await move(self._sleep)
        except (*REQUEST_ERRORS, EngineDeadError, RuntimeError) as error:
            raise EngineFailed(f"vLLM failed on its way off the GPU or back: {error}") from error

    def start_report(self) -> StartReport:
        """See `TellsOfItsStart`."""
        return self._report

    async def settle(self, store: ObjectStore) -> str:
        """See `TellsOfItsStart`: have the flat form published, if this start had to do without."""
        weights, llm, loop = self._settings.weights, self._llm, asyncio.get_running_loop()
        if weights is None or not weights.capture or llm is None:
            return "no flat form is to be made"

        def call(method: str, *args: object) -> Any:
            asked = asyncio.run_coroutine_threadsafe(llm.collective_rpc(method, args=args), loop)
            return asked.result(RANKS_ANSWER_S)

        try:
            outcome = await nicely(lambda: publish_flat(store, call), "flat form")
        except (EngineDeadError, TimeoutError) as error:
            return f"no flat form: the engine does not answer ({error!r})"
        return f"flat form: object {outcome.object}" if outcome.object else f"no flat form: {outcome.why}"

    async def _warm_up(self) -> None:
        """One token by each route: the first answer loads templates and kernels, and no user should wait for that."""
        common = {"model": self._settings.model_name, "max_tokens": 1}
        await self._answer(Route.COMPLETIONS, json.dumps(common | {"prompt": "a"}).encode())
        # A model without a chat template answers this one with an error, which harms nobody.
        with contextlib.suppress(*REQUEST_ERRORS):
            messages = [{"role": "user", "content": "a"}]
            await self._answer(Route.CHAT, json.dumps(common | {"messages": messages}).encode())

    async def handle(self, route: Route, body: bytes) -> Reply:
        """See the port."""
        if self._llm is None:
            raise EngineFailed("the engine is not started")
        try:
            reply = await self._answer(route, body)
        except EngineDeadError as error:
            raise EngineFailed(f"vLLM's engine process is dead: {error}") from error
        except ValidationError as error:
            return error_reply(_first_problem(error), "invalid_request_error", 400)
        except REQUEST_ERRORS as error:
            return _whole(create_error_response(error))
        if isinstance(reply, AsyncGenerator):
            return StreamReply(self._as_bytes(reply))
        return _whole(reply)

    async def _as_bytes(self, events: AsyncGenerator[str, None]) -> AsyncGenerator[bytes, None]:
        """vLLM's stream. If its engine process dies vLLM tells of it by an event like those for a bad request; that
        would be the client's answer, also where nothing was sent yet and another replica could have given it.
        """
        try:
            async for event in events:
                if event.startswith(ERROR_EVENT) and (self._llm is None or self._llm.errored):
                    raise EngineFailed("vLLM's engine process died in the middle of an answer")
                yield event.encode()
        except EngineDeadError as error:
            raise EngineFailed(f"vLLM's engine process died in mid-stream: {error}") from error
        finally:
            await events.aclose()  # a hang-up must not wait for the garbage collector

    async def _answer(self, route: Route, body: bytes) -> Any:
        raw = json.loads(body, parse_int=_integer)
        if not isinstance(raw, dict):
            raise ValueError("the request body is not a JSON object")
        assert self._llm is not None, "checked by who calls"
        _check_token_ids(raw.get("prompt"), self._llm.model_config.get_vocab_size())
        if route is Route.CHAT:
            return await self._state.openai_serving_chat.create_chat_completion(_read(ChatCompletionRequest, raw))
        return await self._state.openai_serving_completion.create_completion(_read(CompletionRequest, raw))

    def stats(self) -> EngineStats:
        """See the port. An idle engine reports nothing, so its last figures are replaced by what the front knows."""
        load, llm = self._load, self._llm
        busy = llm is not None and compat.unfinished_requests(llm) > 0
        return EngineStats(
            running=load.running if busy else 0,
            waiting=load.waiting if busy else 0,
            kv_usage=load.kv_usage if busy else 0.0,
            preemptions=load.preemptions,
            generated_tokens=load.generated_tokens,
        )

    async def check_health(self) -> None:
        """See the port."""
        if self._llm is None:
            raise EngineFailed("the engine is not started")
        try:
            await self._llm.check_health()
        except EngineDeadError as error:
            raise EngineFailed(f"vLLM's engine process is dead: {self._faults.cause(error)}") from error

    async def stop(self, timeout_s: float) -> None:
        """See the port."""
        llm, self._llm = self._llm, None
        if llm is not None:
            await asyncio.to_thread(llm.shutdown, timeout_s)
        self._faults.close()


def _integer(digits: str) -> int:
    number = int(digits)
    if not -(2**63) <= number < 2**63:  # the wire to the engine process has 64 bits, and says so only as a bare 500
        raise ValueError(f"{digits[:30]} is larger than a 64-bit integer")
    return number


def _read(kind: Any, raw: dict[str, Any]) -> Any:
    try:
        return kind(**raw)
    except READ_ERRORS:
        raise
    except Exception as error:  # vLLM's validators trip over types that they did not think of; nothing was begun yet
        raise ValueError(f"a field has a value of a type that is not taken: {error}") from error


def _check_token_ids(prompt: object, vocabulary: int) -> None:
    """Refuse ids that the model has no embedding for.

    vLLM lets the first one above the vocabulary through where tokenizer and model have the same size (its
    ``max_token_id`` is then one too high), and the look-up ends the engine process: any client could.
    """
    for part in prompt if isinstance(prompt, list) else ():
        for token in part if isinstance(part, list) else (part,):
            if isinstance(token, int) and not 0 <= token < vocabulary:
                raise ValueError(f"prompt: the token id {token} is not within 0..{vocabulary - 1}")


def _whole(answer: Any) -> JsonReply:
    """One of vLLM's pydantic answers, errors included, as bytes."""
    error = getattr(answer, "error", None)
    return JsonReply(200 if error is None else int(error.code), answer.model_dump_json().encode())


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in problem["loc"])
    return f"{place}: {problem['msg']}" if place else str(problem["msg"])
