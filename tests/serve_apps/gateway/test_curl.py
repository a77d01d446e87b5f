"""curl, unmodified, against the real server; and the requests that `vllm bench serve` makes, with a real replica."""

import asyncio
import json
import shutil
from pathlib import Path

import aiohttp
import pytest

from ebbtide.client.messages import RoutingTable, SeatRoute
from ebbtide_serve.gateway.server import GatewayServer
from ebbtide_serve.testing.process_engine import PROCESS_ENGINE
from tests.builders.gateway import bearer, key
from tests.serve_apps.gateway.fakes import FakeArbiter, Scene, chat, running_gateway, settings
from tests.serve_apps.replica_under_test import ReplicaUnderTest

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


async def curl(*words: str) -> tuple[int, str]:
    """Exit status and what it printed, headers included."""
    process = await asyncio.create_subprocess_exec(
        "curl",
        "-sS",
        "-i",
        "--max-time",
        "10",
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    return process.returncode or 0, printed.decode()


def post(scene: Scene, body: dict[str, object], *more: str) -> tuple[str, ...]:
    where = f"{scene.url}/v1/chat/completions"
    return (*more, "-H", "content-type: application/json", "-d", json.dumps(body), where)


async def test_curl_gets_models_answers_streams_and_refusals(tmp_path: Path) -> None:
    async with running_gateway(keys=(key("full"), key("slow", requests_per_minute=3))) as scene:
        await scene.route(await scene.replica())
        auth = ("-H", f"authorization: {bearer('full')['authorization']}")
        status, text = await curl(*auth, f"{scene.url}/v1/models")
        assert status == 0 and text.startswith("HTTP/1.1 200 OK") and '"object":"list"' in text
        status, text = await curl(*post(scene, chat(), *auth, "-H", "x-request-id: curl-1"))
        assert status == 0 and "x-request-id: curl-1" in text and "t0 t1 t2" in text
        status, text = await curl("-N", *post(scene, chat(stream=True), *auth))
        assert status == 0 and "text/event-stream" in text and text.endswith("data: [DONE]\n\n")
        large = tmp_path / "large.json"  # above 1 MB curl asks first: Expect: 100-continue
        large.write_text(json.dumps(chat(user="x" * 2_000_000)))
        json_type = ("-H", "content-type: application/json", "--data-binary", f"@{large}")
        status, text = await curl(*auth, *json_type, f"{scene.url}/v1/chat/completions")
        assert status == 0 and "HTTP/1.1 100" in text and "HTTP/1.1 200 OK" in text
        slow = ("-H", f"authorization: {bearer('slow')['authorization']}")
        answers = [await curl(*post(scene, chat(), *slow)) for _ in range(4)]
        assert [text.split(" ")[1] for _, text in answers] == ["200", "200", "200", "429"]
        assert "x-ratelimit-remaining-requests: 2" in answers[0][1] and "retry-after: " in answers[3][1]
        status, text = await curl("--path-as-is", *auth, "-X", "POST", f"{scene.url}/v1/../invocations")
        assert status == 0 and " 404 " in text.split("\r\n")[0]
        status, text = await curl("--http1.0", *auth, f"{scene.url}/health")
        assert status == 0 and " 200 " in text.split("\r\n")[0]


async def test_the_requests_of_vllm_bench_serve_work_with_the_process_engine(tmp_path: Path) -> None:
    """As its backends `openai` and `openai-chat` make them (vllm/benchmarks/lib/endpoint_request_func.py)."""
    replica = ReplicaUnderTest(PROCESS_ENGINE, tmp_path, args={"tokens_per_s": 500})
    arbiter = FakeArbiter()
    server = GatewayServer(settings(endpoints=("tiny",), internal_token="secret"), arbiter)
    children = []
    try:
        await replica.until_ready(30.0)
        children = replica.children()
        arbiter.table = RoutingTable(1, {"tiny": (SeatRoute("tiny/0", "r", replica.report["url"]),)})
        await server.start()
        common = {"model": "tiny", "stream": True, "stream_options": {"include_usage": True}, "temperature": 0.0}
        text = common | {
            "prompt": "a b c",
            "repetition_penalty": 1.0,
            "max_tokens": 8,
            "ignore_eos": True,
            "logprobs": None,
        }
        content = [{"type": "text", "text": "a b c"}]
        talk = common | {
            "messages": [{"role": "user", "content": content}],
            "max_completion_tokens": 8,
            "ignore_eos": True,
        }
        async with aiohttp.ClientSession(trust_env=False) as http:
            for path, body in (("/v1/completions", text), ("/v1/chat/completions", talk)):
                async with http.post(server.gateway.url + path, json=body) as response:
                    assert response.status == 200, await response.text()
                    events = [line[6:] for line in (await response.text()).split("\n\n") if line]
                assert events[-1] == "[DONE]"
                parts = [json.loads(event) for event in events[:-1]]
                assert parts[-1]["usage"]["completion_tokens"] == 8
                words = [part["choices"][0] for part in parts if part["choices"]]
                said = "".join(one.get("text") or one.get("delta", {}).get("content") or "" for one in words)
                assert said.split() == [f"t{number}" for number in range(8)]
    finally:
        await server.stop(0.0)
        replica.clean_up(children)
