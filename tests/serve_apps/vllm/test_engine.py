"""vLLM's CPU build behind the port, in a replica process of its own: what we lean on, and that it dies with us."""

import asyncio
import contextlib
import inspect
import json
import os
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from ebbtide.agent.slot_locks.slot_lock import probe
from ebbtide.client.messages import SlotRef
from ebbtide_serve.engine.port import EngineSettings
from ebbtide_serve.errors import EngineFailed, EngineRefused
from tests.serve_apps.odd_bodies import odd_bodies
from tests.serve_apps.replica_under_test import HEADERS, SLOT_INDEX, ReplicaUnderTest, gone, until

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]

CONTEXT_TOKENS = 4096
VOCABULARY = 8192  # of the tiny model, whose module would import transformers
ENGINE = "ebbtide_serve.vllm.engine:VllmEngine"
ARGS = {
    "max_model_len": CONTEXT_TOKENS,
    "max_num_seqs": 8,
    "max_num_batched_tokens": CONTEXT_TOKENS,
    "kv_cache_memory_bytes": 64 << 20,
    "enforce_eager": True,
}


@pytest.fixture(scope="module")
def work_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vllm")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(work_dir: Path, tiny_model: Path) -> AsyncIterator[ReplicaUnderTest]:
    assert json.loads((tiny_model / "config.json").read_text())["vocab_size"] == VOCABULARY
    replica = ReplicaUnderTest(ENGINE, work_dir, model_dir=str(tiny_model), args=ARGS)
    children = []
    try:
        await replica.until_ready()
        children = replica.children()
        yield replica
    finally:
        replica.clean_up(children)


async def ask(replica: ReplicaUnderTest, path: str, **body: Any) -> tuple[int, str]:
    url, whole = replica.report["url"] + path, {"model": "tiny"} | body
    async with aiohttp.ClientSession() as client, client.post(url, json=whole, headers=HEADERS) as answer:
        return answer.status, await answer.text()


def events(text: str) -> list[Any]:
    lines = [event.removeprefix("data: ") for event in text.split("\n\n") if event]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_the_engine_process_holds_the_slot_lock(replica: ReplicaUnderTest) -> None:
    holder = probe(replica.lock_dir, SlotRef("n", SLOT_INDEX))
    assert holder is not None
    assert (holder.workload, holder.epoch, holder.rank) == ("m/0", 7, 0)
    assert holder.pid != replica.process.pid
    assert holder.pid in [child.pid for child in replica.children()]


async def test_on_a_cpu_it_says_that_it_cannot_park(replica: ReplicaUnderTest) -> None:
    """Its sleep mode reports success there and does nothing."""
    assert "no sleep mode on this platform" in replica.report["cannot_park"] and not replica.report["park_bytes"]


async def test_what_is_leaned_on_of_vllms_sleep_is_there() -> None:
    vllm = pytest.importorskip("vllm.v1.engine.async_llm").AsyncLLM
    assert list(inspect.signature(vllm.sleep).parameters)[:2] == ["self", "level"]
    assert list(inspect.signature(vllm.collective_rpc).parameters)[:4] == ["self", "method", "timeout", "args"]
    compat = pytest.importorskip("ebbtide_serve.vllm_versions.compat")
    about_checkpoints = ("checkpoint_prepare", "checkpoint_restore") if compat.VERSION >= (0, 27) else ()
    for name in ("wake_up", *about_checkpoints):
        needed = [p for p in inspect.signature(getattr(vllm, name)).parameters.values() if p.default is p.empty]
        assert [p.name for p in needed] == ["self"]


async def test_a_start_by_vllms_own_loader_has_its_stages_too(replica: ReplicaUnderTest) -> None:
    assert {"process", "weights", "compile", "warm-up"} <= set(replica.report["stages_s"])


async def test_chat_and_completions_count_what_they_used(replica: ReplicaUnderTest) -> None:
    messages = [{"role": "user", "content": "import this"}]
    for path, prompt in (("/v1/completions", {"prompt": "import"}), ("/v1/chat/completions", {"messages": messages})):
        status, text = await ask(replica, path, max_tokens=7, temperature=0, ignore_eos=True, **prompt)
        assert (status, json.loads(text)["usage"]["completion_tokens"]) == (200, 7)
        options = {"stream": True, "stream_options": {"include_usage": True}}
        status, text = await ask(replica, path, max_tokens=7, temperature=0, ignore_eos=True, **prompt, **options)
        assert (status, events(text)[-1]["usage"]["completion_tokens"]) == (200, 7)


async def test_a_prompt_over_the_context_length_gets_an_openai_shaped_400(replica: ReplicaUnderTest) -> None:
    for stream in (False, True):
        status, text = await ask(replica, "/v1/completions", prompt="def f(): " * CONTEXT_TOKENS, stream=stream)
        assert status == 400
        assert "maximum context length" in json.loads(text)["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        ({"model": "nope", "prompt": "a"}, 404, "nope"),
        ({}, 400, "prompt"),
        ({"prompt": "a", "temperature": -1}, 400, "temperature"),
        ({"prompt": "a", "max_tokens": "many"}, 400, "max_tokens"),
        # Any of these would end the engine process, or come back as a traceback's 500:
        ({"prompt": [VOCABULARY]}, 400, f"token id {VOCABULARY}"),
        ({"prompt": [[1], [2, VOCABULARY]]}, 400, f"token id {VOCABULARY}"),
        ({"prompt": [-1]}, 400, "token id -1"),
        ({"prompt": "a", "structured_outputs": [1]}, 400, "type that is not taken"),
        ({"prompt": "a", "top_k": 2**64}, 400, "64-bit"),
    ],
)
async def test_bad_requests_get_errors_that_name_the_place(
    replica: ReplicaUnderTest, body: dict[str, Any], status: int, named: str
) -> None:
    answered, text = await ask(replica, "/v1/completions", **body)
    assert answered == status, text
    assert named in json.loads(text)["error"]["message"]


async def test_no_body_whatever_is_answered_with_a_5xx_or_ends_the_engine(replica: ReplicaUnderTest) -> None:
    """``EBBTIDE_ODD_BODIES=3000`` makes a longer run of it."""
    number = int(os.environ.get("EBBTIDE_ODD_BODIES", "150"))
    for path, body in odd_bodies(1, number):
        status, text = await ask(replica, path, **body)
        assert status < 500, (path, body, text[:300])
        assert status == 200 or json.loads(text)["error"]["message"], (path, body)
    status, _ = await ask(replica, "/v1/completions", prompt="a", max_tokens=1)
    assert status == 200


async def test_a_client_that_hangs_up_stops_the_engine_itself(replica: ReplicaUnderTest) -> None:
    engine = replica.children()
    body = {"model": "tiny", "prompt": "a", "max_tokens": 4000, "ignore_eos": True}  # 13 s and more of work
    for stream in (True, False):
        async with aiohttp.ClientSession() as client:
            url = replica.report["url"] + "/v1/completions"
            request = asyncio.create_task(client.post(url, json=body | {"stream": stream}, headers=HEADERS))
            await until(lambda: replica.report["running"] == 1, 20.0)
            request.cancel()
        began_s = time.monotonic()
        await until(lambda: replica.report["running"] == 0 and replica.report["inflight"] == 0, 6.0)
        # The front's count could lie: an engine that goes on generating needs its processor time.
        while True:
            used_s = sum(sum(child.cpu_times()[:2]) for child in engine)
            await asyncio.sleep(0.4)
            if sum(sum(child.cpu_times()[:2]) for child in engine) - used_s < 0.05:
                break
            assert time.monotonic() - began_s < 9.0, "the engine goes on although its client has gone"


async def test_after_kill_9_of_the_replica_no_engine_process_is_left(replica: ReplicaUnderTest) -> None:
    children = replica.children()
    assert children
    replica.kill()
    await until(lambda: gone(children), 5.0)
    assert probe(replica.lock_dir, SlotRef("n", SLOT_INDEX)) is None


@pytest.mark.parametrize("dead", [False, True])
async def test_an_error_event_is_the_clients_answer_unless_the_engine_process_is_dead(dead: bool) -> None:
    """vLLM makes the same event of a bad request and of its engine's death; the first alone is about the request."""
    module = pytest.importorskip("ebbtide_serve.vllm.engine")
    engine = module.VllmEngine(EngineSettings("tiny", "", {}))
    engine._llm = SimpleNamespace(errored=dead)
    said = ['data: {"id": 1}\n\n', 'data: {"error": {"code": 500}}\n\n', "data: [DONE]\n\n"]

    async def vllms() -> AsyncGenerator[str, None]:
        for event in said:
            yield event

    heard = []
    with pytest.raises(EngineFailed) if dead else contextlib.nullcontext():
        async for event in engine._as_bytes(vllms()):
            heard.append(event.decode())
    assert heard == (said[:1] if dead else said)


@pytest.mark.hunt  # short: the one before, test_process_engine.py, and engine x starting of the kill table
async def test_after_kill_9_of_the_engine_process_itself_what_was_begun_ends_by_an_error_and_the_rest_may_go_elsewhere(
    work_dir: Path, tiny_model: Path
) -> None:
    """The gateway sends what is answered by ``engine_failed`` to another replica, if no byte of an answer was there."""
    replica = ReplicaUnderTest(ENGINE, work_dir, model_dir=str(tiny_model), args=ARGS)
    children = []
    try:
        await replica.until_ready()
        children = replica.children()
        holder = probe(replica.lock_dir, SlotRef("n", SLOT_INDEX))
        assert holder is not None and holder.pid in [child.pid for child in children]
        words: dict[str, Any] = {"max_tokens": 4000, "ignore_eos": True}
        messages = [{"role": "user", "content": "import this"}]
        async with asyncio.TaskGroup() as users, aiohttp.ClientSession() as client:
            body = {"model": "tiny", "prompt": "a", "stream": True} | words
            async with client.post(replica.report["url"] + "/v1/completions", json=body, headers=HEADERS) as begun:
                assert begun.status == 200 and (await begun.content.readline()).startswith(b"data: ")
                os.kill(holder.pid, signal.SIGSTOP)
                asked = [
                    users.create_task(ask(replica, path, stream=stream, **prompt, **words))
                    for path, prompt in (
                        ("/v1/completions", {"prompt": "import"}),
                        ("/v1/chat/completions", {"messages": messages}),
                    )
                    for stream in (False, True)
                ]
                await until(lambda: replica.report["inflight"] == 1 + len(asked), 30.0)
                os.kill(holder.pid, signal.SIGKILL)
                async with asyncio.timeout(30.0):
                    rest = (await begun.content.read()).decode()
        last = rest.strip().rpartition("data: ")[2]
        assert "[DONE]" not in rest and json.loads(last)["error"]["message"], rest[-500:]
        for answer in [*(task.result() for task in asked), await ask(replica, "/v1/completions", prompt="a")]:
            status, text = answer
            assert (status, json.loads(text)["error"]["code"]) == (503, "engine_failed"), text
        url = replica.report["url"] + "/health"
        async with aiohttp.ClientSession() as client, client.get(url, headers=HEADERS) as health:
            assert health.status == 503, "by which Serve replaces it"
        assert probe(replica.lock_dir, SlotRef("n", SLOT_INDEX)) is None
        await until(lambda: gone(children), 10.0)
        assert replica.process.poll() is None, "it lives to say so"
    finally:
        replica.clean_up(children)


async def test_kill_9_while_the_engine_process_is_being_born_leaves_none_either(
    work_dir: Path, tiny_model: Path
) -> None:
    replica = ReplicaUnderTest(ENGINE, work_dir, model_dir=str(tiny_model), args=ARGS)
    children = []
    try:
        # Seconds before vLLM is imported there, let alone our worker class.
        await until(lambda: bool(replica.children()), 100.0, lambda: replica.log.read_text()[-3000:])
        children = replica.children()
        replica.kill()
        await until(lambda: gone(children), 5.0)
    finally:
        replica.clean_up(children)
    assert probe(replica.lock_dir, SlotRef("n", SLOT_INDEX)) is None


async def test_why_the_engine_process_did_not_start_is_told_in_one_line(tmp_path: Path, tiny_model: Path) -> None:
    """vLLM's front only says that the cause is in the log of its process."""
    no_room = ARGS | {"kv_cache_memory_bytes": 1000}
    replica = ReplicaUnderTest(ENGINE, tmp_path, model_dir=str(tiny_model), args=no_room)
    try:
        await until(lambda: bool(replica.report.get("error")), 200.0, lambda: replica.log.read_text()[-3000:])
    finally:
        replica.clean_up(replica.children() if replica.process.poll() is None else [])
    # vLLM 0.26 words it differently from 0.29.
    refusals = (
        "No available memory for the cache blocks.",
        "To serve at least one request with the model's max seq len",
    )
    assert replica.report["error"].startswith(tuple(f"vLLM: ValueError: {refusal}" for refusal in refusals))
    assert len(replica.report["error"].splitlines()) == 1
    assert not replica.report["permanent"], "on another slot there may be more memory"


def with_config(tiny_model: Path, folder: Path, **changes: object) -> str:
    """The model, but for its config.json."""
    for file in tiny_model.iterdir():
        if file.name != "config.json":
            (folder / file.name).symlink_to(file)
    config = json.loads((tiny_model / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return str(folder)


@pytest.mark.parametrize(
    ("args", "changes", "cause"),
    [
        ({"max_model_len": 999999}, {}, "User-specified max_model_len (999999) is greater than the derived"),
        ({"max_num_batched_tokens": 4, "max_num_seqs": 8}, {}, "max_num_batched_tokens"),
        ({}, {"architectures": ["NoSuchForCausalLM"]}, "NoSuchForCausalLM"),
        ({}, {"model_type": "no_such_type"}, "no_such_type"),
        ({}, {"max_position_embeddings": "many"}, ""),
    ],
    ids=lambda one: str(one)[:40],
)
async def test_what_vllm_does_not_take_is_permanent(
    args: dict[str, object], changes: dict[str, object], cause: str, tmp_path: Path, tiny_model: Path
) -> None:
    module = pytest.importorskip("ebbtide_serve.vllm.engine")
    engine = module.VllmEngine(EngineSettings("tiny", with_config(tiny_model, tmp_path, **changes), ARGS | args))
    with pytest.raises(EngineRefused) as refused:
        await engine.start()
    assert cause in str(refused.value)


async def test_a_config_that_is_no_json_is_permanent(tmp_path: Path, tiny_model: Path) -> None:
    module = pytest.importorskip("ebbtide_serve.vllm.engine")
    model = with_config(tiny_model, tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": [')
    with pytest.raises(EngineRefused):
        await module.VllmEngine(EngineSettings("tiny", model, ARGS)).start()


@pytest.mark.proves("what fails where the GPU is in use is no wrong argument")
async def test_what_is_raised_after_the_configuration_is_built_is_not_permanent(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = pytest.importorskip("ebbtide_serve.vllm.engine")

    def refuse(*_: object, **__: object) -> None:
        raise ValueError("too large")

    monkeypatch.setattr(module.AsyncLLM, "from_vllm_config", refuse)
    with pytest.raises(EngineFailed) as failed:
        await module.VllmEngine(EngineSettings("tiny", str(tiny_model), ARGS)).start()
    assert type(failed.value) is EngineFailed and "too large" in str(failed.value)
