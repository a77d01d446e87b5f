"""A replica's HTTP face: real sockets, a fake engine."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from ebbtide_serve.engine.port import EngineSettings
from ebbtide_serve.replica.http_app import ReplicaApp
from ebbtide_serve.replica.http_server import PortServer
from ebbtide_serve.testing.fake_engine import FakeEngine

TOKEN = {"x-ebbtide-token": "secret"}
SLOW: dict[str, Any] = {"model": "m", "prompt": "a", "max_tokens": 1000}


class Served:
    """One engine behind one port."""

    def __init__(self, app: ReplicaApp, engine: FakeEngine, url: str, client: aiohttp.ClientSession) -> None:
        self.app, self.engine, self.url, self.client = app, engine, url, client

    async def post(self, path: str = "/v1/completions", **body: Any) -> tuple[int, Any]:
        async with self.client.post(self.url + path, json=body, headers=TOKEN) as response:
            return response.status, await response.json()


async def until(condition: Any, timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    engine = FakeEngine(EngineSettings("m", "", getattr(request, "param", {})))
    await engine.start()
    app = ReplicaApp(token="secret")
    app.serve(engine)
    port = PortServer(app, "127.0.0.1")
    await port.start()
    async with aiohttp.ClientSession() as client:
        yield Served(app, engine, port.url, client)
    await port.stop()


def slow(**args: Any) -> Any:
    return pytest.mark.parametrize("served", [{"tokens_per_s": 50, **args}], indirect=True)


async def test_answers_whole_and_as_a_stream_on_both_routes(served: Served) -> None:
    status, body = await served.post("/v1/completions", model="m", prompt="a b", max_tokens=3)
    assert (status, body["choices"][0]["text"]) == (200, "t0 t1 t2")
    assert body["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    message = {"model": "m", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "stream": True}
    async with served.client.post(served.url + "/v1/chat/completions", json=message, headers=TOKEN) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        text = await response.text()
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    assert [json.loads(e)["choices"][0]["delta"].get("content") for e in events[:-1]] == [" t0", " t1", None]
    await until(lambda: served.app.inflight == 0)


@pytest.mark.proves("a replica answers only who shows the internal token")
@pytest.mark.parametrize("headers", [{}, {"x-ebbtide-token": "wrong"}, {"x-ebbtide-token": ""}])
@pytest.mark.parametrize("path", ["/v1/completions", "/health", "/nowhere"])
async def test_without_the_token_nothing_is_answered(served: Served, path: str, headers: dict[str, str]) -> None:
    async with served.client.post(served.url + path, json=SLOW, headers=headers) as response:
        assert response.status == 401
        assert (await response.json())["error"]["type"] == "authentication_error"
    assert served.engine.counts.prompts == []


@pytest.mark.proves("no replica starts without the internal token")
def test_a_replica_without_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match="internal token"):
        ReplicaApp(token="")


async def test_unknown_paths_and_methods_get_openai_shaped_errors(served: Served) -> None:
    assert (await served.post("/v1/embeddings", model="m"))[0] == 404
    async with served.client.get(served.url + "/v1/completions", headers=TOKEN) as response:
        assert response.status == 405
        assert "message" in (await response.json())["error"]


@pytest.mark.proves("a draining replica refuses what is new")
async def test_draining_refuses_new_requests_and_lets_running_ones_finish(served: Served) -> None:
    running = asyncio.create_task(served.post(model="m", prompt="a", max_tokens=100))
    await until(lambda: served.app.inflight == 1)
    served.app.draining = True
    status, body = await served.post(model="m", prompt="b")
    assert (status, body["error"]["code"]) == (503, "replica_draining")
    assert not await served.app.until_idle(0.0)
    assert (await running)[0] == 200
    assert await served.app.until_idle(1.0)


@pytest.mark.proves("a client that goes stops its generation")
@slow()
async def test_a_client_that_hangs_up_on_a_stream_stops_its_generation(served: Served) -> None:
    async with served.client.post(served.url + "/v1/completions", json={**SLOW, "stream": True}, headers=TOKEN) as r:
        await r.content.readany()
        assert served.engine.stats().running == 1
        r.close()
    await until(lambda: served.engine.stats().running == 0, timeout_s=1.0)
    assert served.engine.counts.aborted == 1
    await until(lambda: served.app.inflight == 0)


@slow()
async def test_a_client_that_hangs_up_before_a_whole_answer_stops_its_generation(served: Served) -> None:
    request = asyncio.create_task(served.post(**SLOW))
    await until(lambda: served.engine.stats().running == 1)
    request.cancel()
    await until(lambda: served.engine.stats().running == 0, timeout_s=1.0)
    assert served.engine.counts.aborted == 1
    await until(lambda: served.app.inflight == 0)


@slow(fail_after_tokens=3)
async def test_an_engine_that_dies_in_mid_stream_ends_it_with_an_error_event(served: Served) -> None:
    async with served.client.post(served.url + "/v1/completions", json={**SLOW, "stream": True}, headers=TOKEN) as r:
        assert r.status == 200
        events = [event for event in (await r.text()).split("\n\n") if event]
    assert json.loads(events[-1].removeprefix("data: "))["error"]["type"] == "server_error"
    assert "[DONE]" not in events[-1]
    async with served.client.get(served.url + "/health", headers=TOKEN) as response:
        assert response.status == 503


@slow(fail_after_tokens=1)
async def test_an_engine_that_dies_before_the_first_token_gives_a_status_so_that_it_can_be_tried_elsewhere(
    served: Served,
) -> None:
    status, body = await served.post(**SLOW, stream=True)
    assert (status, body["error"]["code"]) == (503, "engine_failed")


@pytest.mark.proves("a replica whose engine still starts refuses")
async def test_an_engine_still_starting_gives_503(served: Served) -> None:
    served.app._engine = None
    status, body = await served.post(**SLOW)
    assert (status, body["error"]["code"]) == (503, "replica_starting")


async def test_a_bug_in_the_engine_costs_the_one_request_that_met_it_and_tells_the_client_nothing_of_it(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def trips(_route: object, _body: bytes) -> None:
        raise AttributeError("'list' object has no attribute 'get' (/home/somebody/secret.py)")

    with monkeypatch.context() as patch:
        patch.setattr(served.engine, "handle", trips)
        for stream in (True, False):
            status, body = await served.post(model="m", prompt="a", stream=stream)
            assert status == 500 and set(body["error"]) == {"message", "type", "param", "code"}
            assert body["error"]["code"] == "engine_error" and "secret" not in str(body)
    assert (await served.post(model="m", prompt="a", max_tokens=1))[0] == 200
    await until(lambda: served.app.inflight == 0)
