"""Clients of an endpoint that does not start: told so at once, by class and id, and never why."""

import asyncio
from dataclasses import replace
from time import time

import httpx
import openai

from ebbtide.client.messages import Unavailable
from tests.serve_apps.gateway.fakes import MODEL, Scene, chat, until


async def fails(scene: Scene, again_in_s: float) -> None:
    """The arbiter says that starts of the endpoint fail."""
    table = scene.arbiter.table
    gone = {MODEL: Unavailable("3.14", time() + again_in_s)}
    scene.arbiter.table = replace(table, version=table.version + 1, endpoints={MODEL: ()}, unavailable=gone)
    version = scene.arbiter.table.version
    await until(lambda: bool(scene.arbiter.reports) and scene.arbiter.reports[-1].routes_seen >= version)


async def test_held_requests_and_newcomers_get_503_and_after_a_start_answers(
    scene: Scene, http: httpx.AsyncClient
) -> None:
    held = asyncio.create_task(http.post("/v1/chat/completions", json=chat()))
    await until(lambda: scene.traffic.held == 1)
    await fails(scene, 30.0)
    late = await http.post("/v1/chat/completions", json=chat(stream=True))
    for answer in (await held, late):
        assert answer.status_code == 503 and 1 <= int(answer.headers["retry-after"]) <= 30
        assert answer.headers["x-request-id"].startswith("req-")
        assert answer.json()["error"] == {
            "message": f"The model {MODEL!r} is not available now: it does not start. Tell its operator the id 3.14.",
            "type": "endpoint_unavailable",
            "param": None,
            "code": "start_failed",
        }
    assert scene.traffic.held == 0
    await scene.route(await scene.replica())  # FakeArbiter.route leaves the failure out
    answer = await http.post("/v1/chat/completions", json=chat())
    assert answer.status_code == 200


async def test_the_openai_client_sees_its_own_kind_of_error(scene: Scene, client: openai.AsyncOpenAI) -> None:
    await fails(scene, 30.0)
    try:
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "a"}])
    except openai.InternalServerError as error:
        assert (error.status_code, error.type, error.code) == (503, "endpoint_unavailable", "start_failed")
    else:
        raise AssertionError("it was answered")


async def test_other_endpoints_are_held_as_before(scene: Scene, http: httpx.AsyncClient) -> None:
    await fails(scene, 30.0)
    other = asyncio.create_task(http.post("/v1/chat/completions", json=chat(model="other")))
    await until(lambda: scene.server.gateway.report().traffic["other"].held == 1)
    other.cancel()
